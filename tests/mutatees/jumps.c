/* Calls that end by longjmp, and what the frame that it leads to does then.
 *
 * land N            N rounds: `dive` naps and jumps over two frames; then `sink` naps deeper in the stack than `dive` was
 * keep N            N rounds of `keeper`, which is jumped back into, and naps before and afterwards
 * signal N          N rounds: a handler naps and jumps out of `pierced`, which it has interrupted; then `sink` naps
 * stack N           the same with the handler on a stack of its own, below the thread's
 * cancel N          N threads that end in `dropped`, by pthread_exit and by cancellation, and nap in a cleanup handler of `cleaner`
 * Answers are `tally FUNCTION CALLS`, `inside FUNCTION NAPS`: how often `nap` was called while the function was on the stack, and
 * `ns FUNCTION TIME`: how long its calls took, and `direct NAPS`: calls of `nap` by `keeper` itself.
 */
#include "mutatee.h"
#include <setjmp.h>
#include <stdint.h>
#include <time.h>

enum { DIVE, KEEPER, PIERCED, DROPPED, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"dive", "keeper", "pierced", "dropped"};
static long calls[FUNCTIONS], inside[FUNCTIONS], naps, direct, wrong;
static long long ns[FUNCTIONS], began[FUNCTIONS];
static int active[FUNCTIONS];
static sigjmp_buf home, inner_home;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void begin(int function) {
    calls[function]++;
    active[function] = 1;
    began[function] = now();
}

static void end(int function) {
    ns[function] += now() - began[function];
    active[function] = 0;
}

COUNTED void nap(void) {
    struct timespec t = {0, 1000000};
    naps++;
    for (int f = 0; f < FUNCTIONS; f++) inside[f] += active[f];
    nanosleep(&t, NULL);
}

COUNTED void sink(int n) {
    char buffer[1024];
    memset(buffer, n, sizeof buffer);
    __asm__ volatile("" : : "r"(buffer) : "memory");
    nap();
    if (buffer[9] != (char)n) wrong++;
}

COUNTED void leaver(sigjmp_buf to, int n) {
    nap();
    siglongjmp(to, n);
}

COUNTED void dive(int n) {
    begin(DIVE);
    nap();
    leaver(home, n);
    wrong++;
}

COUNTED void pierced(int n) {
    begin(PIERCED);
    nap();
    raise(SIGUSR1);
    wrong += n;
}

COUNTED void keeper(int n) {
    begin(KEEPER);
    nap();
    direct++;
    int got = sigsetjmp(inner_home, 0);
    if (got == 0) {
        leaver(inner_home, n);
    } else if (got != n) {
        wrong++;
    }
    nap();
    direct++;
    sink(n);
    end(KEEPER);
}

COUNTED void dropped(int n) {
    begin(DROPPED);
    nap();
    if (n % 2) pthread_exit(NULL);
    pthread_cancel(pthread_self());
    pthread_testcancel();
    wrong++;
}

/* The C library jumps back into `cleaner` to call this function. */
static void clean_up(void *unused) {
    (void)unused;
    end(DROPPED);
    sink(1);
}

COUNTED void *cleaner(void *n) {
    pthread_cleanup_push(clean_up, NULL);
    dropped((int)(intptr_t)n);
    pthread_cleanup_pop(0);
    return NULL;
}

static volatile int round_number;

static void handler(int signal) {
    (void)signal;
    leaver(home, round_number);
}

static void catch_signals(int flags) {
    static char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

static void rounds(int n, void (*callee)(int), int function) {
    for (round_number = 1; round_number <= n; round_number++) {
        int got = sigsetjmp(home, 1);
        if (got == 0) callee(round_number);
        end(function);
        if (got != round_number) wrong++;
        sink(got);
    }
}

/* When the first thread ends in this way, the C library loads its unwinder. */
static void *ends(void *unused) {
    (void)unused;
    pthread_exit(NULL);
}

int main(void) {
    pthread_t first;
    if (pthread_create(&first, NULL, ends, NULL)) abort();
    pthread_join(first, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        int n = 0;
        if (sscanf(line, "land %d", &n) == 1) {
            rounds(n, dive, DIVE);
        } else if (sscanf(line, "keep %d", &n) == 1) {
            for (int i = 1; i <= n; i++) keeper(i);
        } else if (sscanf(line, "cancel %d", &n) == 1) {
            for (intptr_t i = 1; i <= n; i++) {
                pthread_t id;
                if (pthread_create(&id, NULL, cleaner, (void *)i)) abort();
                pthread_join(id, NULL);
            }
        } else if (sscanf(line, "signal %d", &n) == 1) {
            catch_signals(0);
            rounds(n, pierced, PIERCED);
        } else if (sscanf(line, "stack %d", &n) == 1) {
            catch_signals(SA_ONSTACK);
            rounds(n, pierced, PIERCED);
        } else {
            say("unknown command %s", line);
        }
        for (int f = 0; f < FUNCTIONS; f++) {
            say("tally %s %ld", names[f], calls[f]);
            say("inside %s %ld", names[f], inside[f]);
            say("ns %s %lld", names[f], ns[f]);
        }
        say("direct %ld", direct);
        say("tally nap %ld", naps);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
