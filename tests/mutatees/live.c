/* Threads that allocate, free each other's blocks, and let blocks grow. The program keeps its own account of what is live, by the function that asks
 * for memory and its caller.
 *
 * run SEED STEPS THREADS   each thread makes so many steps. A few of them free a block that was allocated before `ready`, and a few leak one
 * drop                     frees all blocks but the leaked ones
 * burst N                  allocates and frees a block N times
 * The answer has a line for each function and caller: `live CALLER FUNCTION BYTES BLOCKS`, and one with the number of blocks from before `ready` that were
 * freed so far: `earlier N`.
 * With a number as its argument, the program only does `run 1 STEPS 3`, and answers. */
#include "mutatee.h"

enum { SLOTS = 512, EARLIER = 1000, CALLERS = 2, WAYS = 7 };

/* The beginning of each block. */
struct block {
    long size;
    int caller, way;
};

static const char *const callers[CALLERS] = {"h_first", "h_second"};
static const char *const ways[WAYS] = {"h_malloc", "h_calloc", "h_grows", "h_array", "h_aligned", "h_stored", "h_leaks"};

static _Atomic(struct block *) slots[SLOTS];
static _Atomic(struct block *) earlier[EARLIER];
static atomic_long bytes[CALLERS][WAYS], blocks[CALLERS][WAYS], freed_earlier;
static struct block *volatile kept;

/* Each function asks once, and does something afterwards, so that it does not end by a jump. */
COUNTED void *h_malloc(long size) {
    void *p = malloc((size_t)size);
    kept = p;
    return p;
}

COUNTED void *h_calloc(long size) {
    void *p = calloc((size_t)size / 4, 4);
    kept = p;
    return p;
}

COUNTED void *h_grows(void *old, long size) {
    void *p = realloc(old, (size_t)size);
    kept = p;
    return p;
}

COUNTED void *h_array(void *old, long size) {
    void *p = reallocarray(old, (size_t)size / 4, 4);
    kept = p;
    return p;
}

COUNTED void *h_aligned(long size) {
    void *p = aligned_alloc(64, (size_t)size);
    kept = p;
    return p;
}

COUNTED void *h_stored(long size) {
    void *p = NULL;
    if (posix_memalign(&p, 128, (size_t)size)) return NULL;
    kept = p;
    return p;
}

COUNTED void *h_leaks(long size) {
    void *p = malloc((size_t)size);
    kept = p;
    return p;
}

/* A request that fails. */
COUNTED void h_fails(void *old) {
    volatile size_t huge = (size_t)1 << 62;
    if (realloc(old, huge)) abort();
    if (reallocarray(old, huge, 2)) abort();
    if (malloc(huge)) abort();
    void *p;
    if (!posix_memalign(&p, 64, huge)) abort();
}

/* Sizes are multiples of 64, as aligned_alloc needs. */
static void *ask(int way, void *old, long size) {
    switch (way) {
    case 0: return h_malloc(size);
    case 1: return h_calloc(size);
    case 2: return h_grows(old, size);
    case 3: return h_array(old, size);
    case 4: return h_aligned(size);
    case 5: return h_stored(size);
    default: return h_leaks(size);
    }
}

static void count(struct block *block, int sign) {
    atomic_fetch_add(&bytes[block->caller][block->way], sign * block->size);
    atomic_fetch_add(&blocks[block->caller][block->way], sign);
}

static struct block *made(int caller, int way, struct block *old, long size) {
    if (old) count(old, -1);
    struct block *block = ask(way, old, size);
    if (!block) abort();
    *block = (struct block){size, caller, way};
    count(block, 1);
    return block;
}

COUNTED struct block *h_first(int way, struct block *old, long size) { return made(0, way, old, size); }

COUNTED struct block *h_second(int way, struct block *old, long size) { return made(1, way, old, size); }

static void give_back(struct block *block) {
    if (!block) return;
    count(block, -1);
    free(block);
}

static unsigned next(unsigned long *state, unsigned below) {
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(*state >> 33) % below;
}

struct job {
    unsigned long seed;
    long steps;
};

static void *work(void *of) {
    struct job *job = of;
    unsigned long state = job->seed;
    for (long n = 0; n < job->steps; n++) {
        _Atomic(struct block *) *slot = &slots[next(&state, SLOTS)];
        struct block *old = atomic_exchange(slot, NULL), *new = NULL;
        unsigned what = next(&state, 100);
        long size = 64 * (1 + (long)next(&state, next(&state, 20) ? 8 : 4000));
        struct block *(*caller)(int, struct block *, long) = next(&state, 2) ? h_first : h_second;
        if (what < 40) {
            int way = (int)next(&state, WAYS - 1);
            /* Only these take an old block. */
            if (way != 2 && way != 3) {
                give_back(old);
                old = NULL;
            }
            new = caller(way, old, size);
        } else if (what < 45 && old) {
            h_fails(old);
            new = old;
        } else if (what < 50 && old) {
            count(old, -1);
            volatile size_t none = 0;
            if (realloc(old, none)) abort();
        } else {
            give_back(old);
            if (what == 99) caller(WAYS - 1, NULL, 64);
            if (what == 98) {
                struct block *block = atomic_exchange(&earlier[next(&state, EARLIER)], NULL);
                if (block) atomic_fetch_add(&freed_earlier, 1);
                free(block);
            }
        }
        /* Another thread may have put a block here. */
        give_back(atomic_exchange(slot, new));
    }
    return NULL;
}

static void report(void) {
    for (int caller = 0; caller < CALLERS; caller++)
        for (int way = 0; way < WAYS; way++)
            say("live %s %s %ld %ld", callers[caller], ways[way], bytes[caller][way], blocks[caller][way]);
    say("earlier %ld", freed_earlier);
}

static void run(unsigned long seed, long steps, int threads) {
    pthread_t ids[64];
    struct job jobs[64];
    for (int n = 0; n < threads; n++) {
        jobs[n] = (struct job){seed * 1000 + (unsigned long)n, steps};
        pthread_create(&ids[n], NULL, work, &jobs[n]);
    }
    for (int n = 0; n < threads; n++) pthread_join(ids[n], NULL);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        run(1, atol(argv[1]), 3);
        report();
        return 0;
    }
    for (int n = 0; n < EARLIER; n++) earlier[n] = malloc(200);
    say_ready();
    char *command;
    while ((command = next_command())) {
        unsigned long seed;
        long steps;
        int threads;
        if (sscanf(command, "run %lu %ld %d", &seed, &steps, &threads) == 3 && threads <= 64) {
            run(seed, steps, threads);
        } else if (!strcmp(command, "drop")) {
            for (int n = 0; n < SLOTS; n++) give_back(atomic_exchange(&slots[n], NULL));
        } else if (sscanf(command, "burst %ld", &steps) == 1) {
            for (long n = 0; n < steps; n++) give_back(h_first(0, NULL, 64));
        }
        report();
        say("done");
    }
    return 0;
}
