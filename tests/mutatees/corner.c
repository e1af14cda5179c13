/* A single-threaded program that puts itself into difficult states.
 *
 * work N            calls `work` N times
 * filter            from now on a system call outside a short list kills the process (seccomp)
 * limit             no more address space than now (mmap fails)
 * undumpable        not dumpable
 * gs                puts its own value into the gs base; `gs?` tells whether it is still there
 * exec PATH         replaces itself; `threadexec PATH` does it from another thread
 * hang              sits in vfork until its child is told to go by `unhang`
 * zombie            makes a child that has ended and is not reaped: `child PID`
 * argument A…       calls `arguments(1, 2, 3, 4, 5, 6)` once for each word
 */
#include "mutatee.h"
#include <asm/prctl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>

COUNTED long work(long x) { return x * 3 + 1; }
COUNTED long arguments(long a, long b, long c, long d, long e, long f) { return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f; }

static long tally, wrong, argument_tally;
static char *other[2];

static void filter(void) {
    static const int allowed[] = {SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_futex, SYS_restart_syscall};
    enum { N = sizeof allowed / sizeof *allowed };
    struct sock_filter code[N + 3];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < N; i++) code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], (unsigned char)(N - i), 0);
    code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {N + 3, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
}

static void limit(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) abort();
    fclose(file);
    struct rlimit l = {(rlim_t)pages * 4096, (rlim_t)pages * 4096};
    if (setrlimit(RLIMIT_AS, &l)) abort();
}

static void *exec_other(void *unused) {
    execv(other[0], other);
    return unused;
}

int main(void) {
    int gate[2] = {-1, -1};
    pthread_t id;
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "work %ld", &n) == 1) {
            for (long i = 0; i < n; i++) wrong += work(i) != i * 3 + 1;
            tally += n;
        } else if (!strncmp(line, "argument", 8)) {
            for (char *word = strtok(line, " "); (word = strtok(NULL, " "));) {
                wrong += arguments(atol(word), 2, 3, 4, 5, 6) != atol(word) + 90;
                argument_tally++;
            }
        } else if (!strcmp(line, "filter")) {
            filter();
        } else if (!strcmp(line, "limit")) {
            limit();
        } else if (!strcmp(line, "undumpable")) {
            if (prctl(PR_SET_DUMPABLE, 0)) abort();
        } else if (!strcmp(line, "gs")) {
            if (syscall(SYS_arch_prctl, ARCH_SET_GS, &tally)) abort();
        } else if (!strcmp(line, "gs?")) {
            unsigned long base = 0;
            if (syscall(SYS_arch_prctl, ARCH_GET_GS, &base) || base != (unsigned long)&tally) wrong++;
        } else if (!strncmp(line, "exec ", 5)) {
            other[0] = strdup(line + 5);
            exec_other(NULL);
            abort();
        } else if (!strncmp(line, "threadexec ", 11)) {
            other[0] = strdup(line + 11);
            pthread_create(&id, NULL, exec_other, NULL);
            pthread_join(id, NULL);
            abort();
        } else if (!strcmp(line, "hang")) {
            if (pipe(gate)) abort();
            say("hanging");
            pid_t pid = vfork();
            if (pid == 0) {
                char byte;
                /* the child reads the parent's command itself: the parent cannot run until we leave */
                while (read(0, &byte, 1) == 1 && byte != '\n') continue;
                _exit(0);
            }
            waitpid(pid, NULL, 0);
        } else if (!strcmp(line, "zombie")) {
            pid_t pid = fork();
            siginfo_t info;
            if (pid == 0) _exit(0);
            waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
            say("child %d", pid);
        } else {
            say("unknown command %s", line);
        }
        say("tally work %ld", tally);
        say("tally arguments %ld", argument_tally);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
