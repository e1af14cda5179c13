/* A program that ends while threads are in the middle of functions, and after others have just ended.
 *
 * WAY N     makes its calls and ends: by exit (leave), in another thread (other), by _exit (quick), or by exit after children of vfork (vfork), by a signal (kill), or by
 *           exit after it has forbidden itself the system calls by which threads wait, by prctl (prctl) or seccomp (seccomp). The same may be given as
 *           arguments.
 *
 * Four threads call `work` N times each, and end. Another one calls `stay` N times, and then once more: that call does not end. A further one calls
 * `turn` all the time. */
#include "mutatee.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/wait.h>

static _Atomic long stayed;
static volatile int forever = 1;
static long calls;

COUNTED long work(long n) {
    long sum = 0;
    for (long i = 0; i < 16; i++)
        if ((n + i) % 3) sum += i;
    return sum;
}

/* Runs around a loop without a call if the last call has come. */
COUNTED long stay(long last) {
    long turns = 0;
    if (last) {
        stayed = -1;
        while (forever) turns++;
    }
    return turns;
}

COUNTED long turn(long n) { return n % 2 ? n + 1 : n - 1; }

static void *works(void *sum) {
    for (long i = 0; i < calls; i++) *(long *)sum += work(i);
    return NULL;
}

static void *stays(void *unused) {
    (void)unused;
    for (long i = 0; i < calls; i++) stay(0);
    stay(1);
    return NULL;
}

static void *turns(void *unused) {
    (void)unused;
    for (long n = 0;;) n = turn(n);
    return NULL;
}

static void *ends(void *unused) {
    (void)unused;
    exit(0);
}

/* From now on, the kernel ends the process at a call of futex or clock_gettime of this thread. */
static void forbid_waits(int by_prctl) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) abort();
    long failed = by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)
                           : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
    if (failed) abort();
}

/* Makes the calls, and ends in a way. Its answer comes before the end. */
static void part(const char *way) {
    pthread_t threads[4], other;
    long sums[4] = {0};
    pthread_create(&other, NULL, stays, NULL);
    pthread_create(&other, NULL, turns, NULL);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, works, &sums[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    while (stayed >= 0) sched_yield();
    for (int i = 0; !strcmp(way, "vfork") && i < 100; i++) {
        pid_t child = vfork();
        if (!child) {
            execl("/nonexistent", "nothing", (char *)NULL);
            _exit(3);
        }
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) abort();
    }
    if (!strcmp(way, "other")) {
        pthread_create(&other, NULL, ends, NULL);
        for (;;) pause();
    }
    if (!strcmp(way, "prctl") || !strcmp(way, "seccomp")) forbid_waits(!strcmp(way, "prctl"));
    if (!strcmp(way, "kill")) raise(SIGKILL);
    if (!strcmp(way, "quick")) _exit(0);
    exit(0);
}

int main(int argc, char **argv) {
    if (argc > 2) {
        calls = atol(argv[2]);
        part(argv[1]);
    }
    say_ready();
    for (char *line; (line = next_command());) {
        char way[16];
        if (sscanf(line, "%15s %ld", way, &calls) == 2) part(way);
    }
    return 0;
}
