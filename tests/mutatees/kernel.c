/* Functions with system calls of their own: in a loop, in one that sleeps, and in one that signals interrupt.
 *
 * go N              calls `asks` and `picks` N times
 * sleep             a thread calls `reads`, which sleeps in a system call
 * signal N          the sleeper gets N signals, one by one, after which the kernel restarts the system call
 * interrupt N       the sleeper gets N signals, one by one, after which the system call fails with EINTR and `reads` calls again
 * wake              the sleeper's system call ends, and so does the thread
 *
 * With a number as argument, the program calls `asks` and `picks` that many times and ends. */
#include "mutatee.h"

static atomic_long asked, picked, interrupted, finished, wrong, handled;
static int order[2];
static pthread_t sleeper;
static atomic_int its_tid;

static inline long kernel(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

/* A loop around a system call, with a branch on its result. */
COUNTED long asks(long rounds, long parent) {
    long right = 0;
    for (long i = 0; i < rounds; i++) {
        if (kernel(SYS_getppid, 0, 0, 0) == parent) right++;
        else right -= 1000;
    }
    return right;
}

/* Two system calls, one right behind the other, of which a branch chooses the second. */
COUNTED long picks(long which) {
    long pid = kernel(SYS_getpid, 0, 0, 0);
    if (which & 1) return kernel(SYS_getuid, 0, 0, 0) + pid;
    return kernel(SYS_getgid, 0, 0, 0) - pid;
}

/* Sleeps in a system call until a byte comes. Returns the number of times that it was interrupted. */
COUNTED long reads(int from) {
    char byte;
    long times = 0;
    for (;;) {
        long n = kernel(SYS_read, from, (long)&byte, 1);
        if (n == 1) return times;
        if (n != -EINTR) return -1;
        times++;
        interrupted++;
    }
}

static void handler(int unused) {
    (void)unused;
    handled++;
}

static void go(long n) {
    long parent = getppid(), uid = getuid(), gid = getgid(), pid = getpid();
    for (long i = 0; i < n; i++) {
        wrong += asks(i % 5, parent) != i % 5;
        asked += i % 5;
        wrong += picks(i) != (i & 1 ? uid + pid : gid - pid);
        picked += i & 1;
    }
}

static void *sleeps(void *unused) {
    its_tid = own_tid();
    if (reads(order[0]) < 0) wrong++;
    finished++;
    return unused;
}

/* Waits until the sleeper is in its system call. */
static void until_asleep(void) {
    char path[64], text[64] = "";
    while (!its_tid) sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", its_tid);
    while (strncmp(text, "0 ", 2)) {
        FILE *file = fopen(path, "r");
        if (!file || !fgets(text, sizeof text, file)) text[0] = 0;
        if (file) fclose(file);
        sched_yield();
    }
}

static void send(int signal, long n) {
    for (long i = 0; i < n; i++) {
        long before = handled;
        pthread_kill(sleeper, signal);
        while (handled == before) sched_yield();
        until_asleep();
    }
}

int main(int argc, char **argv) {
    if (pipe(order)) abort();
    if (argc > 1) {
        go(atol(argv[1]));
        return wrong != 0;
    }
    struct sigaction again = {.sa_handler = handler, .sa_flags = SA_RESTART}, once = {.sa_handler = handler};
    sigaction(SIGUSR1, &again, NULL);
    sigaction(SIGUSR2, &once, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "go %ld", &n) == 1) {
            go(n);
        } else if (!strcmp(line, "sleep")) {
            its_tid = 0;
            if (pthread_create(&sleeper, NULL, sleeps, NULL)) abort();
            until_asleep();
        } else if (sscanf(line, "signal %ld", &n) == 1) {
            send(SIGUSR1, n);
        } else if (sscanf(line, "interrupt %ld", &n) == 1) {
            send(SIGUSR2, n);
        } else if (!strcmp(line, "wake")) {
            if (write(order[1], "x", 1) != 1) abort();
            pthread_join(sleeper, NULL);
        } else {
            say("unknown command %s", line);
        }
        say("tally asked %ld", (long)asked);
        say("tally picked %ld", (long)picked);
        say("tally interrupted %ld", (long)interrupted);
        say("tally handled %ld", (long)handled);
        say("wrong %ld", (long)wrong);
        say("done");
    }
    return 0;
}
