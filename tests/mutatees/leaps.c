/* Functions that a signal handler leaves by siglongjmp, each with counts of its own.
 *
 * fault N           calls `touch` N times; every fourth call reads memory that is not mapped, and the handler of the fault jumps out of it
 * timer N           calls `spin` until a timer's handler has jumped out of it N times
 * context N         as `fault`, but the handler leaves by setcontext
 * plain N           calls `touch` N times without a fault, and jumps out of `deep` as often by siglongjmp, without a handler
 * end               the process is killed by another thread, while a thread is in `forever`
 *
 * Answers with the number of jumps out of handlers and the counts of each place. `idle` is never called.
 */
#include "mutatee.h"
#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>

static sigjmp_buf home;
static ucontext_t back;
static volatile sig_atomic_t by_context, armed;
static volatile long leaps, touched, reads, passed, odd, even, returned, spun, rounds, left, deepest;

COUNTED long idle(long n) { return n > 3 ? n * 7 : n + 1; }

/* A loop over a load that faults, with a branch behind it. */
COUNTED long touch(long *const *items, long n) {
    long sum = 0;
    touched++;
    for (long i = 0; i < n; i++) {
        reads++;
        sum += *items[i];
        passed++;
        if (sum & 1) {
            odd++;
            sum *= 3;
        } else {
            even++;
            sum += i;
        }
    }
    returned++;
    return sum;
}

COUNTED long spin(long n) {
    long sum = 0;
    spun++;
    for (long i = 0; i < n; i++) {
        rounds++;
        if (sum % 3 == 1) sum += i;
        else sum++;
    }
    left++;
    return sum;
}

COUNTED void deep(long n) {
    deepest++;
    if (n > 0) deep(n - 1);
    else siglongjmp(home, 1);
    deepest++;
}

COUNTED void *forever(void *at) {
    for (;;) ++*(volatile long *)at;
}

static void on_signal(int signal) {
    if (signal == SIGALRM && !armed) return;
    armed = 0;
    leaps++;
    if (by_context) setcontext(&back);
    siglongjmp(home, 1);
}

static void catch(int signal) {
    struct sigaction action = {.sa_handler = on_signal};
    if (sigaction(signal, &action, NULL)) abort();
}

static void faults(long n) {
    static long good = 5;
    catch(SIGSEGV);
    for (volatile long i = 0; i < n; i++) {
        long *bad = (long *)8, *items[8];
        for (int k = 0; k < 8; k++) items[k] = &good;
        if (i % 4 == 3) items[i % 7] = bad;
        if (by_context) {
            volatile int again = 0;
            getcontext(&back);
            if (!again++) touch(items, 8);
        } else if (!sigsetjmp(home, 1)) {
            touch(items, 8);
        }
    }
}

static void timers(long n) {
    struct itimerval each = {{0, 500}, {0, 500}}, none = {{0, 0}, {0, 0}};
    catch(SIGALRM);
    long before = leaps;
    setitimer(ITIMER_REAL, &each, NULL);
    while (leaps < before + n) {
        if (!sigsetjmp(home, 1)) {
            armed = 1;
            spin(100000);
            armed = 0;
        }
    }
    armed = 0;
    setitimer(ITIMER_REAL, &none, NULL);
}

static void *end(void *unused) {
    (void)unused;
    kill(getpid(), SIGKILL);
    return NULL;
}

int main(void) {
    long n;
    say_ready();
    for (char *line; (line = next_command());) {
        if (sscanf(line, "fault %ld", &n) == 1) {
            faults(n);
        } else if (sscanf(line, "context %ld", &n) == 1) {
            by_context = 1;
            faults(n);
            by_context = 0;
        } else if (sscanf(line, "timer %ld", &n) == 1) {
            timers(n);
        } else if (sscanf(line, "plain %ld", &n) == 1) {
            static long good = 5;
            long *items[] = {&good, &good};
            for (volatile long i = 0; i < n; i++) {
                touch(items, 2);
                if (!sigsetjmp(home, 0)) deep(i % 5);
            }
        } else if (!strcmp(line, "end")) {
            static volatile long at;
            pthread_t one, two;
            if (pthread_create(&one, NULL, forever, (void *)&at)) abort();
            while (at < 1000) continue;
            if (pthread_create(&two, NULL, end, NULL)) abort();
            pthread_join(two, NULL);
        } else {
            say("unknown command %s", line);
        }
        say("leaps %ld", leaps);
        say("touched %ld", touched);
        say("places %ld %ld %ld %ld %ld", reads, passed, odd, even, returned);
        say("spun %ld", spun);
        say("spins %ld %ld", rounds, left);
        say("deep %ld", deepest);
        say("done");
    }
    return 0;
}
