/* Threads that take different ways through functions, and that tell by clocks of the C library how long they spun on each.
 *
 * run LAPS THREADS   so many threads make so many laps each, and end. The answer has the times in nanoseconds that they spun: `long` and `short` on the
 *                    ways of `s_forks`, `own` in `s_calls`, `loop` in the iterations of `s_loops`, `left` in calls that longjmp left, and `whole` of
 *                    all threads from beginning to end. With a `_cpu`, these are times of the processor
 */
#include "mutatee.h"
#include <setjmp.h>
#include <time.h>

#define THREADS 16

enum { LONG, SHORT, OWN, LOOP, LEFT, WHOLE, PLACES };

static const char *names[PLACES] = {"long", "short", "own", "loop", "left", "whole"};
static atomic_long spun[PLACES], spun_cpu[PLACES];

static long now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Not measured: its time is that of the function that calls it. */
static __attribute__((noinline)) void spin(int place, long ns) {
    long begin = now(CLOCK_MONOTONIC), begin_cpu = now(CLOCK_THREAD_CPUTIME_ID);
    while (now(CLOCK_MONOTONIC) - begin < ns) continue;
    spun_cpu[place] += now(CLOCK_THREAD_CPUTIME_ID) - begin_cpu;
    spun[place] += now(CLOCK_MONOTONIC) - begin;
}

COUNTED void s_forks(int way) {
    if (way)
        spin(LONG, 40000);
    else
        spin(SHORT, 5000);
    atomic_signal_fence(memory_order_seq_cst); /* not a tail call */
}

COUNTED void s_calls(void) {
    spin(OWN, 10000);
    s_forks(1);
    spin(OWN, 10000);
    s_forks(0);
    atomic_signal_fence(memory_order_seq_cst);
}

COUNTED void s_loops(int times) {
    for (int n = 0; n < times; n++) spin(LOOP, 3000);
}

COUNTED void s_leaves(jmp_buf *to) {
    spin(LEFT, 20000);
    longjmp(*to, 1);
}

COUNTED void s_returns(void) {
    jmp_buf to;
    if (!setjmp(to)) s_leaves(&to);
}

static void *laps(void *number) {
    long begin = now(CLOCK_MONOTONIC), begin_cpu = now(CLOCK_THREAD_CPUTIME_ID);
    for (long n = 0; n < *(long *)number; n++) {
        s_calls();
        s_loops(4);
        s_returns();
    }
    spun_cpu[WHOLE] += now(CLOCK_THREAD_CPUTIME_ID) - begin_cpu;
    spun[WHOLE] += now(CLOCK_MONOTONIC) - begin;
    return NULL;
}

int main(void) {
    say_ready();
    for (char *command; (command = next_command());) {
        long number;
        int count;
        for (int place = 0; place < PLACES; place++) spun[place] = spun_cpu[place] = 0;
        if (sscanf(command, "run %ld %d", &number, &count) == 2) {
            pthread_t ids[THREADS];
            if (count < 0 || count > THREADS) abort();
            for (int n = 0; n < count; n++)
                if (pthread_create(&ids[n], NULL, laps, &number)) abort();
            for (int n = 0; n < count; n++) pthread_join(ids[n], NULL);
            for (int place = 0; place < PLACES; place++) {
                say("%s %ld", names[place], (long)spun[place]);
                say("%s_cpu %ld", names[place], (long)spun_cpu[place]);
            }
        }
        say("done");
    }
}
