/* Children that are born in the middle of a call.
 *
 * bear HOW N MS      `serve` makes N children by HOW: fork, nested (each child makes one more, in `serve` still), thread (a thread that is not the main
 *                    one forks), leave (children end in `serve`, by _exit), vfork, clone (the C library's, without shared memory), syscall (a raw
 *                    system call, which leaves the C library's number of the thread as it was). Every process calls `work` ten times in `serve` and ten
 *                    times behind it, computes for MS milliseconds in `serve` and sleeps there for as long, and adds what it says itself:
 * calls work         calls of `work` in `serve`, in all processes
 * wall_ns, cpu_ns    time in `serve` of all processes: of the parent from its beginning, of children from their birth
 */
#include "mutatee.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

struct truth {
    atomic_long calls, wall_ns, cpu_ns, served, bad;
};
static struct truth *truth;
static __thread long begun_wall, begun_cpu;
static long milliseconds;

static long now(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) abort();
    return t.tv_sec * 1000000000l + t.tv_nsec;
}

COUNTED long work(long x) { return x * 3 + 1; }

static void live(void) {
    for (long i = 0; i < 10; i++)
        if (work(i) != i * 3 + 1) truth->bad++;
    truth->calls += 10;
    long end = now(CLOCK_THREAD_CPUTIME_ID) + milliseconds * 1000000;
    while (now(CLOCK_THREAD_CPUTIME_ID) < end)
        ;
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&pause, &pause) && errno == EINTR)
        ;
}

static void note(void) {
    truth->wall_ns += now(CLOCK_MONOTONIC) - begun_wall;
    truth->cpu_ns += now(CLOCK_THREAD_CPUTIME_ID) - begun_cpu;
    truth->served++;
}

static void reap(pid_t pid) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, __WALL);
    while (got < 0 && errno == EINTR);
    if (got != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 42) truth->bad++;
}

/* The first action of a child. */
static void birth(void) {
    begun_wall = now(CLOCK_MONOTONIC);
    begun_cpu = 0;
}

static int in_clone(void *unused) {
    (void)unused;
    birth();
    live();
    note();
    _exit(42);
}

/* Returns 1 in children that go on by themselves. */
COUNTED int serve(const char *how, long n) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    volatile int is_child = 0;
    begun_wall = now(CLOCK_MONOTONIC);
    begun_cpu = now(CLOCK_THREAD_CPUTIME_ID);
    for (volatile long i = 0; i < n && !is_child; i++) {
        pid_t pid;
        if (!strcmp(how, "vfork")) {
            pid = vfork();
            if (pid == 0) {
                if (work(1) != 4) _exit(1);
                _exit(42);
            }
            truth->calls++;
        } else if (!strcmp(how, "clone")) {
            pid = clone(in_clone, stack + sizeof stack, SIGCHLD, NULL);
        } else if (!strcmp(how, "syscall")) {
            pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
            if (pid == 0) {
                birth();
                live();
                note();
                _exit(42);
            }
        } else {
            pid = fork();
            if (pid == 0) {
                birth();
                is_child = 1;
                if (!strcmp(how, "nested")) {
                    pid_t inner = fork();
                    if (inner == 0)
                        birth();
                    else if (inner > 0)
                        reap(inner);
                    else
                        abort();
                }
                if (!strcmp(how, "leave")) {
                    live();
                    note();
                    _exit(42);
                }
            }
        }
        if (pid < 0) abort();
        if (!is_child) reap(pid);
    }
    live();
    note();
    return is_child;
}

struct order {
    const char *how;
    long n;
};

static void *obey(void *argument) {
    struct order *order = argument;
    int is_child = serve(order->how, order->n);
    for (long i = 0; i < 10; i++)
        if (work(i) != i * 3 + 1) truth->bad++;
    if (is_child) _exit(42);
    return NULL;
}

int main(void) {
    truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (truth == MAP_FAILED) abort();
    say_ready();
    for (char *line; (line = next_command());) {
        char how[32];
        struct order order = {how, 0};
        if (sscanf(line, "bear %31s %ld %ld", how, &order.n, &milliseconds) == 3) {
            if (!strcmp(how, "thread")) {
                pthread_t thread;
                if (pthread_create(&thread, NULL, obey, &order) || pthread_join(thread, NULL)) abort();
            } else {
                obey(&order);
            }
        } else {
            say("unknown command %s", line);
        }
        say("calls work %ld", (long)truth->calls);
        say("served %ld", (long)truth->served);
        say("wall_ns %ld", (long)truth->wall_ns);
        say("cpu_ns %ld", (long)truth->cpu_ns);
        say("wrong %ld", (long)truth->bad);
        say("done");
    }
    return 0;
}
