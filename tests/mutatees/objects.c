/* Locks of several objects by several threads, by this program's own tally.
 *
 * lock N T          T threads lock each object, the one at place i of `known` N * (i + 1) times in each of them
 * many N            N mutexes are locked once each
 * destroy           the object on the heap is given up
 * wait N US         N waits of US microseconds for the lock of one object that somebody else holds
 * kinds             one object of each other kind is used: a read-write lock, a semaphore, a condition variable, a barrier, a spin lock
 * life N T          T threads take turns N times with each of 64 mutexes: use, destroy and initialise them
 * row N T           T threads lock each of 96 mutexes, the one at place i N * (i % 7 + 1) times in each of them; the answer has `row ADDRESS LOCKS`
 *                   for each, with its locks since the start, and `took NS` for the time of all threads together
 * ends              the objects of `kinds` are destroyed; the barrier is initialised again
 * The last three answer `state ADDRESS KIND STATE` for each of these objects.
 * Each answer has `object ADDRESS LOCKS NS` for each object: how often it was locked since the start, and how long `wait` has waited. */
#include "mutatee.h"
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
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

enum { RING = 64, TURNS_MAX = 16 };
static pthread_mutex_t ring[RING];
static struct {
    _Atomic long turn;
    int live;
} turns[RING];

struct player {
    long number, players, rounds;
    unsigned long random;
};

/* An object belongs to the thread whose turn it is. The turn is the only information that threads exchange. */
static void *play(void *given) {
    struct player *own = given;
    for (long round = 0; round < own->rounds; round++) {
        for (int i = 0; i < RING; i++) {
            while (atomic_load_explicit(&turns[i].turn, memory_order_acquire) != own->number) sched_yield();
            own->random = own->random * 6364136223846793005UL + 1442695040888963407UL;
            if (!turns[i].live) {
                pthread_mutex_init(&ring[i], NULL);
                turns[i].live = 1;
            } else if (own->random >> 63) {
                pthread_mutex_destroy(&ring[i]);
                turns[i].live = 0;
            } else {
                pthread_mutex_lock(&ring[i]);
                pthread_mutex_unlock(&ring[i]);
            }
            atomic_store_explicit(&turns[i].turn, (own->number + 1) % own->players, memory_order_release);
        }
    }
    return NULL;
}

static void take_turns(long rounds, long players) {
    pthread_t threads[TURNS_MAX];
    struct player all[TURNS_MAX];
    for (int i = 0; i < RING; i++) turns[i].turn = 0;
    for (long n = 0; n < players; n++) {
        all[n] = (struct player){n, players, rounds, 7919UL * (unsigned long)(n + 1)};
        if (pthread_create(&threads[n], NULL, play, &all[n])) abort();
    }
    for (long n = 0; n < players; n++) pthread_join(threads[n], NULL);
    for (int i = 0; i < RING; i++) say("state %#lx Mutex %s", (unsigned long)&ring[i], turns[i].live ? "live" : "retired");
}

enum { ROW = 96 };
static pthread_mutex_t row[ROW];
static _Atomic long row_locked[ROW];
static _Atomic long long row_took;

static void *row_locker(void *given) {
    long rounds = *(long *)given;
    long long before = now();
    for (long n = 0; n < rounds; n++) {
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k <= i % 7; k++) {
                pthread_mutex_lock(&row[i]);
                pthread_mutex_unlock(&row[i]);
            }
        }
    }
    row_took += now() - before;
    for (int i = 0; i < ROW; i++) row_locked[i] += rounds * (i % 7 + 1);
    return NULL;
}

static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;

static void tell_kinds(const char *state, const char *of_barrier) {
    say("state %#lx RwLock %s", (unsigned long)&rwlock, state);
    say("state %#lx CondVar %s", (unsigned long)&condition, state);
    say("state %#lx Semaphore %s", (unsigned long)&semaphore, state);
    say("state %#lx Barrier %s", (unsigned long)&barrier, of_barrier);
    say("state %#lx SpinLock %s", (unsigned long)&spin, state);
}

static void use_kinds(void) {
    pthread_rwlock_rdlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
    pthread_cond_signal(&condition);
    sem_post(&semaphore);
    pthread_barrier_wait(&barrier);
    pthread_spin_lock(&spin);
    pthread_spin_unlock(&spin);
    tell_kinds("live", "live");
}

static void end_kinds(void) {
    pthread_rwlock_destroy(&rwlock);
    pthread_cond_destroy(&condition);
    sem_destroy(&semaphore);
    pthread_barrier_destroy(&barrier);
    pthread_barrier_init(&barrier, NULL, 1);
    pthread_spin_destroy(&spin);
    tell_kinds("retired", "live");
}

int main(void) {
    sem_init(&semaphore, 0, 0);
    pthread_barrier_init(&barrier, NULL, 1);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
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
        } else if (sscanf(line, "row %ld %ld", &n, &t) == 2 && t <= 64) {
            pthread_t threads[64];
            row_took = 0;
            for (long i = 0; i < t; i++) {
                if (pthread_create(&threads[i], NULL, row_locker, &n)) abort();
            }
            for (long i = 0; i < t; i++) pthread_join(threads[i], NULL);
            for (int i = 0; i < ROW; i++) say("row %#lx %ld", (unsigned long)&row[i], row_locked[i]);
            say("took %lld", row_took);
        } else if (!strcmp(line, "destroy")) {
            pthread_mutex_destroy(on_heap);
        } else if (!strcmp(line, "kinds")) {
            use_kinds();
        } else if (!strcmp(line, "ends")) {
            end_kinds();
        } else if (sscanf(line, "life %ld %ld", &n, &t) == 2 && t >= 1 && t <= TURNS_MAX) {
            take_turns(n, t);
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
