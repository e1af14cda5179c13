/* Locks of several objects by several threads, by this program's own tally.
 *
 * lock N T          T threads lock each object, the one at place i of `known` N * (i + 1) times in each of them
 * many N            N mutexes are locked once each
 * destroy           the object on the heap is given up
 * wait N US         N waits of US microseconds for the lock of one object that somebody else holds
 * Each answer has `object ADDRESS LOCKS NS` for each object: how often it was locked since the start, and how long `wait` has waited. */
#include "mutatee.h"
#include <semaphore.h>
#include <time.h>

static pthread_mutex_t pool[4];
static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t everybodys = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t *on_heap;

enum { KNOWN = 7 };
static pthread_mutex_t *known[KNOWN];
static long locked[KNOWN];
static long long waited[KNOWN];

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *locker(void *given) {
    for (int i = 0; i < KNOWN; i++) {
        for (long n = 0; n < *(long *)given * (i + 1); n++) {
            pthread_mutex_lock(known[i]);
            locked[i]++;
            pthread_mutex_unlock(known[i]);
        }
    }
    return NULL;
}

struct turn {
    long us;
    sem_t held;
};

static void *holder(void *given) {
    struct turn *turn = given;
    pthread_mutex_lock(&alone);
    sem_post(&turn->held);
    struct timespec t = {turn->us / 1000000, turn->us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    locked[4]++;
    pthread_mutex_unlock(&alone);
    return NULL;
}

COUNTED void await_lock(long us) {
    struct turn turn = {.us = us};
    sem_init(&turn.held, 0, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, holder, &turn)) abort();
    sem_wait(&turn.held);
    long long before = now();
    pthread_mutex_lock(&alone);
    waited[4] += now() - before;
    locked[4]++;
    pthread_mutex_unlock(&alone);
    pthread_join(thread, NULL);
}

int main(void) {
    for (int i = 0; i < 4; i++) known[i] = &pool[i];
    known[4] = &alone;
    known[5] = &everybodys;
    known[6] = on_heap = malloc(sizeof *on_heap);
    pthread_mutex_init(on_heap, NULL);
    for (int i = 0; i < 4; i++) pthread_mutex_init(&pool[i], NULL);
    /* The C library locks a mutex of its own for the first thread. */
    long none = 0;
    pthread_t first;
    pthread_create(&first, NULL, locker, &none);
    pthread_join(first, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        long n, t;
        if (sscanf(line, "lock %ld %ld", &n, &t) == 2 && t <= 64) {
            pthread_t threads[64];
            for (long i = 0; i < t; i++) {
                if (pthread_create(&threads[i], NULL, locker, &n)) abort();
            }
            for (long i = 0; i < t; i++) pthread_join(threads[i], NULL);
        } else if (sscanf(line, "many %ld", &n) == 1) {
            pthread_mutex_t *many = calloc((size_t)n, sizeof *many);
            for (long i = 0; i < n; i++) {
                pthread_mutex_lock(&many[i]);
                pthread_mutex_unlock(&many[i]);
            }
        } else if (!strcmp(line, "destroy")) {
            pthread_mutex_destroy(on_heap);
        } else if (sscanf(line, "wait %ld %ld", &n, &t) == 2) {
            for (long i = 0; i < n; i++) await_lock(t);
        } else {
            say("unknown command");
            continue;
        }
        for (int i = 0; i < KNOWN; i++) say("object %#lx %ld %lld", (unsigned long)known[i], locked[i], waited[i]);
        say("done");
    }
}
