/* Functions that take known processor times, by this program's own clock of each thread.
 *
 * burn N US         N calls that compute for US microseconds of processor time each
 * doze N US         N calls that sleep US microseconds each
 * mix N US          N calls of `both`, which burns, dozes and burns again for US microseconds each
 * dive N US         one recursion N calls deep that burns for US microseconds on each level
 * crowd T N US      T threads that do `mix N US` each, at the same time
 * forks N US        a fork child that does `mix N US`, and then this process does
 * long / short      a thread enters `hold` and computes there / leaves it
 * Each answer has `ns FUNCTION TIME`, from right before each call to right behind it, `tally FUNCTION CALLS`, and `left N`: how many
 * threads, ended ones included, have a pointer to a critical section in their rseq area. */
#include "mutatee.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>

static long long cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { BURN, DOZE, BOTH, DIVE, HOLD, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"burn", "doze", "both", "dive", "hold"};
static long long ns[FUNCTIONS], calls[FUNCTIONS];

#define TIMED(function, call)                                                    \
    do {                                                                         \
        long long begin = cpu();                                                 \
        call;                                                                    \
        __atomic_add_fetch(&ns[function], cpu() - begin, __ATOMIC_RELAXED);      \
        __atomic_add_fetch(&calls[function], 1, __ATOMIC_RELAXED);               \
    } while (0)

/* Offset of the rseq area from the thread pointer, in glibc 2.35 and later; other C libraries register no area. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
enum { AREAS = 1000 };
static uint64_t *areas[AREAS];
static int known;

static void remember(void) {
    int i = __atomic_fetch_add(&known, 1, __ATOMIC_RELAXED);
    if (&__rseq_offset && i < AREAS)
        areas[i] = (uint64_t *)((char *)__builtin_thread_pointer() + __rseq_offset + 8);
}

COUNTED void burn(long us) {
    for (long long end = cpu() + us * 1000; cpu() < end;) {
    }
}

COUNTED void doze(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

COUNTED void both(long us) {
    TIMED(BURN, burn(us));
    TIMED(DOZE, doze(us));
    TIMED(BURN, burn(us));
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) int dive(int n, long us) {
    TIMED(BURN, burn(us));
    if (n == 0) return 0;
    int result;
    TIMED(DIVE, result = dive(n - 1, us));
    return result + 1;
}

static int go_on;

COUNTED void hold(void) {
    while (__atomic_load_n(&go_on, __ATOMIC_RELAXED)) {
    }
}

struct work {
    long n, us;
};

static void *member(void *given) {
    struct work *work = given;
    remember();
    for (long i = 0; i < work->n; i++) TIMED(BOTH, both(work->us));
    return NULL;
}

static void *holder(void *unused) {
    remember();
    TIMED(HOLD, hold());
    return unused;
}

int main(void) {
    pthread_t held;
    remember();
    say_ready();
    for (char *line; (line = next_command());) {
        long t, n, us;
        if (sscanf(line, "burn %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(BURN, burn(us));
        } else if (sscanf(line, "doze %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(DOZE, doze(us));
        } else if (sscanf(line, "mix %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(BOTH, both(us));
        } else if (sscanf(line, "dive %ld %ld", &n, &us) == 2) {
            TIMED(DIVE, dive((int)n, us));
        } else if (sscanf(line, "crowd %ld %ld %ld", &t, &n, &us) == 3 && t <= 64) {
            pthread_t threads[64];
            struct work work = {n, us};
            /* The stacks are small, so that libc keeps them all, with the areas of ended threads, for the next threads. */
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 256 << 10);
            for (long i = 0; i < t; i++) pthread_create(&threads[i], &small, member, &work);
            for (long i = 0; i < t; i++) pthread_join(threads[i], NULL);
        } else if (sscanf(line, "forks %ld %ld", &n, &us) == 2) {
            pid_t child = fork();
            for (long i = 0; i < n; i++) TIMED(BOTH, both(us));
            if (child == 0) _exit(0);
            int status;
            waitpid(child, &status, 0);
            say("child %d", status);
        } else if (!strcmp(line, "long")) {
            go_on = 1;
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 256 << 10);
            pthread_create(&held, &small, holder, NULL);
        } else if (!strcmp(line, "short")) {
            __atomic_store_n(&go_on, 0, __ATOMIC_RELAXED);
            pthread_join(held, NULL);
        } else {
            say("unknown command %s", line);
        }
        int left = 0;
        for (int i = 0; i < known && i < AREAS; i++) left += areas[i] && *areas[i];
        say("left %d", left);
        for (int f = 0; f < FUNCTIONS; f++) {
            say("tally %s %lld", names[f], calls[f]);
            say("ns %s %lld", names[f], ns[f]);
        }
        say("done");
    }
    return 0;
}
