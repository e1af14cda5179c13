/* A thread that calls `leaf` through known stacks, and one that waits in `rests` through another.
 *
 * run      the thread begins: each lap calls `alpha` (three times `inner`), `beta` (once `inner`), `gamma_` (by an inlined helper) and
 *          `again` (which calls itself twice); each `inner` and the others call `leaf`
 * rest     the thread ends
 * wait     a thread begins to sleep again and again: `nap` is called by `rests`
 * wake     it ends
 * The answer has `edge CALLER CALLEE NUMBER` for all calls so far, and `ns WAY TIME`: the processor time of each of the four ways by the
 * thread's own clock. */
#include "mutatee.h"
#include <stdint.h>
#include <time.h>

enum { LAPS_ALPHA, LAPS_BETA, LAPS_GAMMA, LAPS_AGAIN, ALPHA_INNER, BETA_INNER, INNER_LEAF, GAMMA_LEAF, AGAIN_AGAIN, AGAIN_LEAF, EDGES };
static const char *const names[EDGES] = {"laps alpha",   "laps beta",   "laps gamma_", "laps again",  "alpha inner",
                                         "beta inner",   "inner leaf",  "gamma_ leaf", "again again", "again leaf"};
static const char *const ways[4] = {"alpha", "beta", "gamma_", "again"};
static long edges[EDGES];
static long long ns[4];
static atomic_int busy, sleepy, begun;

#define CALL(edge, call) (edges[edge]++, (call))

static long long cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

COUNTED uint64_t leaf(uint64_t x) {
    for (int i = 0; i < 10000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

COUNTED uint64_t inner(uint64_t x) { return CALL(INNER_LEAF, leaf(x)) + 1; }

COUNTED uint64_t alpha(uint64_t x) {
    for (int i = 0; i < 3; i++) x = CALL(ALPHA_INNER, inner(x)) + 1;
    return x;
}

COUNTED uint64_t beta(uint64_t x) { return CALL(BETA_INNER, inner(x)) + 1; }

static inline __attribute__((always_inline)) uint64_t helper(uint64_t x) { return CALL(GAMMA_LEAF, leaf(x)) ^ 5; }

COUNTED uint64_t gamma_(uint64_t x) { return helper(x + 3) + 1; }

COUNTED uint64_t again(uint64_t x, int depth) {
    if (depth == 0) return CALL(AGAIN_LEAF, leaf(x)) + 1;
    x = CALL(AGAIN_AGAIN, again(x, depth - 1));
    __asm__ volatile("" : "+r"(x)); /* or the compiler makes a loop of it */
    return x + 1;
}

#define TIMED(way, call)               \
    do {                               \
        long long begin = cpu();       \
        x = call;                      \
        ns[way] += cpu() - begin;      \
    } while (0)

COUNTED void *laps(void *unused) {
    atomic_store(&begun, own_tid());
    uint64_t x = 1;
    while (atomic_load(&busy)) {
        TIMED(0, CALL(LAPS_ALPHA, alpha(x)));
        TIMED(1, CALL(LAPS_BETA, beta(x)));
        TIMED(2, CALL(LAPS_GAMMA, gamma_(x)));
        TIMED(3, CALL(LAPS_AGAIN, again(x, 2)));
    }
    return x == 42 ? &busy : unused;
}

COUNTED int nap(int ms) {
    struct timespec t = {0, ms * 1000000};
    return nanosleep(&t, NULL) + 1;
}

COUNTED void *rests(void *unused) {
    atomic_store(&begun, own_tid());
    while (atomic_load(&sleepy) == nap(5)) {}
    return unused;
}

static void begin(pthread_t *thread, void *(*body)(void *)) {
    atomic_store(&begun, 0);
    if (pthread_create(thread, NULL, body, NULL)) abort();
    while (!atomic_load(&begun)) usleep(100);
}

int main(void) {
    pthread_t threads[2];
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "run")) {
            atomic_store(&busy, 1);
            begin(&threads[0], laps);
        } else if (!strcmp(line, "rest")) {
            atomic_store(&busy, 0);
            pthread_join(threads[0], NULL);
        } else if (!strcmp(line, "wait")) {
            atomic_store(&sleepy, 1);
            begin(&threads[1], rests);
        } else if (!strcmp(line, "wake")) {
            atomic_store(&sleepy, 0);
            pthread_join(threads[1], NULL);
        } else {
            say("unknown command %s", line);
        }
        for (int e = 0; e < EDGES; e++) say("edge %s %ld", names[e], edges[e]);
        for (int w = 0; w < 4; w++) say("ns %s %lld", ways[w], ns[w]);
        say("done");
    }
    return 0;
}
