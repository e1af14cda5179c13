/* A parent and its children.
 *
 * fork N M          N children by fork; each calls `parent_work` M times and `child_work` M times, checks results, exits 42
 * vfork N           N children by vfork; each calls `shared_work` once before exec
 * spawn N           N children by posix_spawn
 * keep              forks a child that lives on: prints `child PID`
 * poke N            that child calls `parent_work` N times and answers: `poked`
 * drop              ends that child
 * gs                (with OWN_GS) puts its own value into the gs base; from then on it and its children by fork see whether it is still there
 * The parent calls `parent_work` once for each child it makes. Tallies are the parent's.
 */
#include "mutatee.h"
#include <spawn.h>
#include <sys/wait.h>

COUNTED long parent_work(long x) { return x * 3 + 1; }
COUNTED long child_work(long x) { return x * 5 + 1; }
COUNTED long shared_work(long x) { return x * 9 + 1; }

extern char **environ;
static long parent_tally, shared_tally, bad;
static int to_kept[2] = {-1, -1}, from_kept[2] = {-1, -1};
static pid_t kept;

static void reap(pid_t pid, int wanted) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    if (got != pid || !WIFEXITED(status) || WEXITSTATUS(status) != wanted) {
        bad++;
        say("bad child %d status %x", pid, got == pid ? status : -1);
    }
}

#ifdef OWN_GS
/* asm/prctl.h is not there for every compiler */
enum { ARCH_SET_GS = 0x1001, ARCH_GET_GS = 0x1004 };
static int own_gs;

static void take_gs(void) {
    if (syscall(SYS_arch_prctl, ARCH_SET_GS, &own_gs)) abort();
    own_gs = 1;
}

static int gs_is_right(void) {
    unsigned long base = 0;
    return !own_gs || (!syscall(SYS_arch_prctl, ARCH_GET_GS, &base) && base == (unsigned long)&own_gs);
}
#else
static void take_gs(void) { abort(); }
static int gs_is_right(void) { return 1; }
#endif

static void work_in_parent(void) {
    if (!gs_is_right()) bad++;
    if (parent_work(parent_tally) != parent_tally * 3 + 1) bad++;
    parent_tally++;
}

static void kept_life(void) {
    long n;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_kept[1]);
    close(from_kept[0]);
    while (read(to_kept[0], &n, sizeof n) == sizeof n) {
        long wrong = 0;
        for (long i = 0; i < n; i++) wrong += parent_work(i) != i * 3 + 1;
        if (write(from_kept[1], &wrong, sizeof wrong) != sizeof wrong) break;
    }
    _exit(42);
}

int main(void) {
    char *command[] = {"/bin/true", NULL};
    say_ready();
    for (char *line; (line = next_command());) {
        long n = 0, m = 0;
        if (sscanf(line, "fork %ld %ld", &n, &m) == 2) {
            for (long i = 0; i < n; i++) {
                pid_t pid = fork();
                if (pid == 0) {
                    long wrong = 0;
                    for (long k = 0; k < m; k++) wrong += (parent_work(k) != k * 3 + 1) + (child_work(k) != k * 5 + 1);
                    _exit(wrong || !gs_is_right() ? 1 : 42);
                }
                if (pid < 0) abort();
                work_in_parent();
                reap(pid, 42);
            }
        } else if (sscanf(line, "vfork %ld", &n) == 1) {
            for (volatile long i = 0; i < n; i++) {
                work_in_parent();
                pid_t pid = vfork();
                if (pid == 0) {
                    if (shared_work(i) != i * 9 + 1) _exit(1);
                    execv(command[0], command);
                    _exit(2);
                }
                if (pid < 0) abort();
                shared_tally++;
                reap(pid, 0);
            }
        } else if (sscanf(line, "spawn %ld", &n) == 1) {
            for (long i = 0; i < n; i++) {
                pid_t pid;
                work_in_parent();
                if (posix_spawn(&pid, command[0], NULL, NULL, command, environ)) abort();
                reap(pid, 0);
            }
        } else if (!strcmp(line, "keep")) {
            if (pipe(to_kept) || pipe(from_kept)) abort();
            kept = fork();
            if (kept == 0) kept_life();
            if (kept < 0) abort();
            close(to_kept[0]);
            close(from_kept[1]);
            say("child %d", kept);
        } else if (sscanf(line, "poke %ld", &n) == 1) {
            long wrong = -1;
            if (write(to_kept[1], &n, sizeof n) != sizeof n || read(from_kept[0], &wrong, sizeof wrong) != sizeof wrong || wrong) bad++;
            say("poked");
        } else if (!strcmp(line, "gs")) {
            take_gs();
        } else if (!strcmp(line, "drop")) {
            close(to_kept[1]);
            close(from_kept[0]);
            reap(kept, 42);
        } else {
            say("unknown command %s", line);
        }
        say("tally parent_work %ld", parent_tally);
        say("tally child_work 0");
        say("tally shared_work %ld", shared_tally);
        say("wrong %ld", bad);
        say("done");
    }
    return 0;
}
