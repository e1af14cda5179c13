/* Threads that hold locks while another one waits for them, one after the other.
 *
 * hold N MS   N rounds. In each, `k_sells` waits for the mutex `stock_lock`: first while `k_counts` holds it, for MS milliseconds from when the other
 *             is about to wait, then while `k_restocks` does, for three times as long. Then `k_quotes` waits as a reader of `price_lock`, which
 *             `k_reprices` holds as a writer, for MS; and `k_discounts` waits as a writer, while `k_reads` is a reader, for MS.
 * The answer has a line for each pair of functions: `waited FUNCTION HOLDER NS`, by the clock of the thread that waits. */
#include "mutatee.h"
#include <time.h>

pthread_mutex_t stock_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_rwlock_t price_lock = PTHREAD_RWLOCK_INITIALIZER;

static long ms;
static atomic_int is_held; /* whether the holder has the lock */
static atomic_int waits;   /* whether the other thread is about to wait */

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

/* Keeps a lock until the other thread has waited for so long. The function sleeps without a function of the C library that is measured. */
COUNTED void k_keeps(long long_ms) {
    atomic_store(&is_held, 1);
    while (!atomic_load(&waits)) sched_yield();
    struct timespec time = {long_ms / 1000, long_ms % 1000 * 1000000};
    syscall(SYS_nanosleep, &time, NULL);
}

COUNTED void k_counts(void) {
    pthread_mutex_lock(&stock_lock);
    k_keeps(ms);
    pthread_mutex_unlock(&stock_lock);
}

COUNTED void k_restocks(void) {
    pthread_mutex_lock(&stock_lock);
    k_keeps(3 * ms);
    pthread_mutex_unlock(&stock_lock);
}

COUNTED void k_reprices(void) {
    pthread_rwlock_wrlock(&price_lock);
    k_keeps(ms);
    pthread_rwlock_unlock(&price_lock);
}

COUNTED void k_reads(void) {
    pthread_rwlock_rdlock(&price_lock);
    k_keeps(ms);
    pthread_rwlock_unlock(&price_lock);
}

COUNTED void k_sells(void) {
    pthread_mutex_lock(&stock_lock);
    pthread_mutex_unlock(&stock_lock);
}

COUNTED void k_quotes(void) {
    pthread_rwlock_rdlock(&price_lock);
    pthread_rwlock_unlock(&price_lock);
}

COUNTED void k_discounts(void) {
    pthread_rwlock_wrlock(&price_lock);
    pthread_rwlock_unlock(&price_lock);
}

typedef void Work(void);

static void *runs(void *holder) {
    ((Work *)holder)();
    return NULL;
}

/* Time for which a function waits while another one holds the lock, in nanoseconds. */
static long waited(Work *waiter, Work *holder) {
    pthread_t thread;
    atomic_store(&is_held, 0);
    atomic_store(&waits, 0);
    if (pthread_create(&thread, NULL, runs, holder)) abort();
    while (!atomic_load(&is_held)) sched_yield();
    long begin = now();
    atomic_store(&waits, 1);
    waiter();
    long end = now();
    pthread_join(thread, NULL);
    return end - begin;
}

static const struct {
    Work *waiter, *holder;
    const char *names;
} pairs[] = {{k_sells, k_counts, "k_sells k_counts"},
             {k_sells, k_restocks, "k_sells k_restocks"},
             {k_quotes, k_reprices, "k_quotes k_reprices"},
             {k_discounts, k_reads, "k_discounts k_reads"}};
#define PAIRS ((int)(sizeof pairs / sizeof *pairs))

int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    say("ready");
    char *line;
    while ((line = next_command())) {
        long rounds, ns[PAIRS] = {0};
        if (sscanf(line, "hold %ld %ld", &rounds, &ms) != 2) return 2;
        for (; rounds > 0; rounds--)
            for (int i = 0; i < PAIRS; i++) ns[i] += waited(pairs[i].waiter, pairs[i].holder);
        for (int i = 0; i < PAIRS; i++) say("waited %s %ld", pairs[i].names, ns[i]);
        say("done");
    }
    return 0;
}
