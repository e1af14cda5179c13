/* Threads that spend known times in functions below different callers, and that measure these times by themselves.
 *
 * run MS THREADS     so many threads repeat a lap for so long, and end. The answer has the sum of their times in nanoseconds: `heavy`, `medium` and
 *                    `light` in `w_spins` below the caller with this name, and `asleep` in `w_sleeps`
 * serve              begins a thread that is in `w_serves` for ever
 * served MS          the times of that thread until now, when it has run for so long at least: `busy` in `w_spins` below `w_serves`, and `all`
 * With `serve` as an argument, the program begins with the command `serve`. With MS THREADS, it only does that `run`.
 */
#include "mutatee.h"
#include <time.h>

#define LAP_NS 300000 /* the unit of a lap */
#define THREADS 256

enum { HEAVY, MEDIUM, LIGHT, ASLEEP, BUSY, PLACES };

static atomic_long spent[PLACES];
static atomic_long serving_since;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

COUNTED void w_spins(int place, long ns) {
    long begin = now(), end = begin;
    while (end < begin + ns) end = now();
    spent[place] += end - begin;
}

COUNTED void w_heavy(void) { w_spins(HEAVY, 7 * LAP_NS); }
COUNTED void w_medium(void) { w_spins(MEDIUM, 2 * LAP_NS); }
COUNTED void w_light(void) { w_spins(LIGHT, LAP_NS); }

COUNTED void w_sleeps(void) {
    long begin = now();
    struct timespec time = {0, 5 * LAP_NS};
    nanosleep(&time, NULL);
    spent[ASLEEP] += now() - begin;
}

COUNTED void w_laps(long until) {
    do {
        w_heavy();
        w_medium();
        w_light();
        w_sleeps();
    } while (now() < until);
}

static void *laps(void *until) {
    w_laps(*(long *)until);
    return NULL;
}

COUNTED void w_serves(void) {
    serving_since = now();
    for (;;) {
        w_spins(BUSY, 3 * LAP_NS);
        struct timespec time = {0, 7 * LAP_NS};
        nanosleep(&time, NULL);
    }
}

static void *server(void *none) {
    w_serves();
    return none;
}

static void serve(void) {
    pthread_t id;
    if (pthread_create(&id, NULL, server, NULL)) abort();
    while (!serving_since) sched_yield();
}

static void run(long ms, int count) {
    pthread_t ids[THREADS];
    if (count < 0 || count > THREADS) abort();
    for (int place = 0; place < PLACES; place++) spent[place] = 0;
    long until = now() + ms * 1000000;
    for (int n = 0; n < count; n++)
        if (pthread_create(&ids[n], NULL, laps, &until)) abort();
    for (int n = 0; n < count; n++) pthread_join(ids[n], NULL);
}

int main(int argc, char **argv) {
    if (argc > 2) {
        run(atol(argv[1]), atoi(argv[2]));
        return 0;
    }
    if (argc > 1) serve();
    say_ready();
    for (char *command; (command = next_command());) {
        long ms;
        int threads;
        if (sscanf(command, "run %ld %d", &ms, &threads) == 2) {
            run(ms, threads);
            say("heavy %ld", (long)spent[HEAVY]);
            say("medium %ld", (long)spent[MEDIUM]);
            say("light %ld", (long)spent[LIGHT]);
            say("asleep %ld", (long)spent[ASLEEP]);
        } else if (!strcmp(command, "serve")) {
            serve();
        } else if (sscanf(command, "served %ld", &ms) == 1) {
            spent[BUSY] = 0;
            long begin = now();
            struct timespec time = {ms / 1000, ms % 1000 * 1000000};
            nanosleep(&time, NULL);
            long busy = spent[BUSY];
            say("busy %ld", busy);
            say("all %ld", now() - begin);
        }
        say("done");
    }
}
