/* Threads that end soon, and calls that are so deep that not all of them have a record.
 *
 * brief COUNT US     COUNT threads, one after the other, each of which is in `b_works` for US microseconds. The answer has the number of calls `works`,
 *                    and the time `all` of `b_starts`, which starts them, in nanoseconds
 * deep N             `b_deep` calls itself until it is N calls deep; after that, `b_after` is called 1000 times. The answer has the numbers of calls
 */
#include "mutatee.h"
#include <time.h>

#define STACK (1UL << 30)

static long works, deep, after;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

COUNTED void b_works(long us) {
    long end = now() + us * 1000;
    while (now() < end) {}
    works++;
}

static void *work(void *us) {
    b_works(*(long *)us);
    return NULL;
}

COUNTED long b_starts(long count, long us) {
    long begin = now();
    for (long n = 0; n < count; n++) {
        pthread_t id;
        if (pthread_create(&id, NULL, work, &us)) abort();
        pthread_join(id, NULL);
    }
    return now() - begin;
}

COUNTED void b_deep(long n) {
    deep++;
    if (n > 1) b_deep(n - 1);
    asm volatile("" ::: "memory"); /* no tail call */
}

COUNTED void b_after(long n) {
    if (n % 4 == 0) after++;
    after++;
}

static void *dive(void *n) {
    b_deep(*(long *)n);
    for (long i = 0; i < 1000; i++) b_after(i);
    return NULL;
}

int main(void) {
    say_ready();
    for (char *command; (command = next_command());) {
        long n, us;
        if (sscanf(command, "brief %ld %ld", &n, &us) == 2) {
            works = 0;
            long all = b_starts(n, us);
            say("works %ld", works);
            say("all %ld", all);
        } else if (sscanf(command, "deep %ld", &n) == 1) {
            pthread_attr_t attributes;
            pthread_t id;
            deep = 0;
            if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, STACK)) abort();
            if (pthread_create(&id, &attributes, dive, &n)) abort();
            pthread_join(id, NULL);
            say("deep %ld", deep);
            say("after 1000");
        }
        say("done");
    }
}
