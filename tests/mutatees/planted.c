/* A thread whose processor time is in three functions by known shares, a thread that sleeps, and one that waits for a lock.
 *
 * run               the busy thread begins: `seventy`, `twenty` and `ten` compute for 70, 20 and 10 % of the time of `laps`
 * rest              the busy thread ends
 * sleep / wake      a thread begins to sleep again and again in `sleeps` / it ends
 * tell              nothing
 * lock / unlock     a thread waits for a mutex in `waits_for_lock`, which the main thread holds / it gets it
 * Each answer has `tid NAME TID` for a thread that has begun, and `ns FUNCTION TIME`: the processor time of each function of the busy
 * thread, and of `laps`, which calls them, by the thread's own clock. The time of `laps` is that up to its last lap, of which it has the number
 * in `laps NUMBER`. */
#include "mutatee.h"
#include <stdint.h>
#include <time.h>

static long long cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { SEVENTY, TWENTY, TEN, LAPS, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"seventy", "twenty", "ten", "laps"};
static atomic_llong ns[FUNCTIONS];
static atomic_llong lap_count;
static atomic_int busy, sleepy, tids[3];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define PLANTED(name)                                           \
    COUNTED uint64_t name(uint64_t x, int turns) {              \
        for (int i = 0; i < turns; i++) {                       \
            x = x * 6364136223846793005u + 1442695040888963407; \
            __asm__ volatile("" : "+r"(x));                     \
        }                                                       \
        return x;                                               \
    }
PLANTED(seventy)
PLANTED(twenty)
PLANTED(ten)

#define TIMED(function, call)      \
    do {                           \
        long long begin = cpu();   \
        call;                      \
        ns[function] += cpu() - begin; \
    } while (0)

COUNTED void *laps(void *unused) {
    atomic_store(&tids[0], own_tid());
    long long begin = cpu(), before = ns[LAPS];
    uint64_t x = 1;
    while (atomic_load(&busy)) {
        TIMED(SEVENTY, x = seventy(x, 70000));
        TIMED(TWENTY, x = twenty(x, 20000));
        TIMED(TEN, x = ten(x, 10000));
        ns[LAPS] = before + cpu() - begin;
        atomic_fetch_add(&lap_count, 1);
    }
    return x == 42 ? &busy : unused;
}

COUNTED void *sleeps(void *unused) {
    atomic_store(&tids[1], own_tid());
    while (atomic_load(&sleepy)) {
        struct timespec t = {0, 5000000};
        nanosleep(&t, NULL);
    }
    return unused;
}

COUNTED void *waits_for_lock(void *unused) {
    atomic_store(&tids[2], own_tid());
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

static void begin(pthread_t *thread, int number, void *(*body)(void *)) {
    atomic_store(&tids[number], 0);
    if (pthread_create(thread, NULL, body, NULL)) abort();
    while (!atomic_load(&tids[number])) usleep(100);
    static const char *const threads[3] = {"busy", "sleeper", "waiter"};
    say("tid %s %d", threads[number], atomic_load(&tids[number]));
}

int main(void) {
    pthread_t threads[3];
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "run")) {
            atomic_store(&busy, 1);
            begin(&threads[0], 0, laps);
        } else if (!strcmp(line, "rest")) {
            atomic_store(&busy, 0);
            pthread_join(threads[0], NULL);
        } else if (!strcmp(line, "sleep")) {
            atomic_store(&sleepy, 1);
            begin(&threads[1], 1, sleeps);
        } else if (!strcmp(line, "wake")) {
            atomic_store(&sleepy, 0);
            pthread_join(threads[1], NULL);
        } else if (!strcmp(line, "lock")) {
            pthread_mutex_lock(&mutex);
            begin(&threads[2], 2, waits_for_lock);
        } else if (!strcmp(line, "unlock")) {
            pthread_mutex_unlock(&mutex);
            pthread_join(threads[2], NULL);
        } else if (strcmp(line, "tell")) {
            say("unknown command %s", line);
        }
        say("laps %lld", atomic_load(&lap_count));
        for (int f = 0; f < FUNCTIONS; f++) say("ns %s %lld", names[f], atomic_load(&ns[f]));
        say("done");
    }
    return 0;
}
