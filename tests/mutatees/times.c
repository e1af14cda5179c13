/* Functions that take known times, by this program's own clock.
 *
 * nap N US          N calls that sleep US microseconds each
 * spin N US         N calls that compute for US microseconds each
 * nest N US         N calls of `around`, which naps and spins for US microseconds each
 * deep N US         one recursion N calls deep that naps for US microseconds at its deepest
 * block / release   a thread enters `held` and stays there / leaves it
 * Each answer has `ns FUNCTION TIME`, from right before each call to right behind it, and `tally FUNCTION CALLS`. */
#include "mutatee.h"
#include <time.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { NAP, SPIN, AROUND, DEEP, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"nap", "spin", "around", "deep"};
static long long ns[FUNCTIONS], calls[FUNCTIONS];

#define TIMED(function, call)              \
    do {                                   \
        long long begin = now();           \
        call;                              \
        ns[function] += now() - begin;     \
        calls[function]++;                 \
    } while (0)

COUNTED void nap(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

COUNTED void spin(long us) {
    for (long long end = now() + us * 1000; now() < end;) {
    }
}

COUNTED void around(long us) {
    TIMED(NAP, nap(us));
    TIMED(SPIN, spin(us));
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) int deep(int n, long us) {
    if (n == 0) {
        nap(us);
        return 0;
    }
    int result;
    TIMED(DEEP, result = deep(n - 1, us));
    return result + 1;
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_t holder;
static pthread_barrier_t entered;

COUNTED void *held(void *unused) {
    pthread_barrier_wait(&entered);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return unused;
}

int main(void) {
    pthread_barrier_init(&entered, NULL, 2);
    say_ready();
    for (char *line; (line = next_command());) {
        long n, us;
        if (sscanf(line, "nap %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(NAP, nap(us));
        } else if (sscanf(line, "spin %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(SPIN, spin(us));
        } else if (sscanf(line, "nest %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(AROUND, around(us));
        } else if (sscanf(line, "deep %ld %ld", &n, &us) == 2) {
            TIMED(DEEP, deep((int)n, us));
        } else if (!strcmp(line, "block")) {
            pthread_mutex_lock(&gate);
            pthread_create(&holder, NULL, held, NULL);
            pthread_barrier_wait(&entered);
        } else if (!strcmp(line, "release")) {
            pthread_mutex_unlock(&gate);
            pthread_join(holder, NULL);
        } else {
            say("unknown command %s", line);
        }
        for (int f = 0; f < FUNCTIONS; f++) {
            say("tally %s %lld", names[f], calls[f]);
            say("ns %s %lld", names[f], ns[f]);
        }
        say("done");
    }
    return 0;
}
