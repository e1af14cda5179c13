/* Calls that wander: coroutines on stacks of their own, taken up by whichever thread is free.
 *
 * coroutines THREADS COUNT   COUNT coroutines, run by THREADS threads
 * go N                       each coroutine calls `work` N times; `work` calls `leaf`, gives its thread away, and calls `leaf` again
 * The answer has `tally` of both, `moved` (returns of work on another thread than it was entered on), and `wrong` (results that were). */
#include "mutatee.h"
#include <sched.h>
#include <ucontext.h>

struct coroutine {
    ucontext_t context;
    ucontext_t *home; /* context of the thread that runs the coroutine now */
    long calls, wrong, moved;
    int left;
    unsigned seed;
    struct coroutine *next;
};

static struct coroutine *all, *waiting;
static int threads, count, busy, rounds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void put(struct coroutine *c) {
    pthread_mutex_lock(&lock);
    struct coroutine **end = &waiting;
    while (*end) end = &(*end)->next;
    *end = c;
    c->next = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

COUNTED long leaf(long x) { return x * 2654435761u ^ x >> 7; }

COUNTED long work(struct coroutine *c, long x) {
    int thread = own_tid();
    long before = leaf(x);
    ucontext_t *home = c->home;
    if (swapcontext(&c->context, home)) abort();
    if (own_tid() != thread) c->moved++;
    return before + leaf(x + 1);
}

static void body(unsigned low, unsigned high) {
    struct coroutine *c = (struct coroutine *)((unsigned long)high << 32 | low);
    for (;;) {
        for (int i = 0; i < rounds; i++) {
            c->seed = c->seed * 1664525 + 1013904223;
            long x = c->seed;
            long right = (x * 2654435761u ^ x >> 7) + ((x + 1) * 2654435761u ^ (x + 1) >> 7);
            if (work(c, x) != right) c->wrong++;
            c->calls++;
        }
        c->left = 0;
        if (swapcontext(&c->context, c->home)) abort();
    }
}

static void *run(void *unused) {
    ucontext_t home;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!waiting) pthread_cond_wait(&changed, &lock);
        struct coroutine *c = waiting;
        waiting = c->next;
        pthread_mutex_unlock(&lock);
        c->home = &home;
        if (swapcontext(&home, &c->context)) abort();
        if (c->left) {
            put(c); /* only now the coroutine's context is complete */
        } else {
            pthread_mutex_lock(&lock);
            busy--;
            pthread_cond_broadcast(&changed);
            pthread_mutex_unlock(&lock);
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    threads = argc > 1 ? atoi(argv[1]) : 2;
    count = argc > 2 ? atoi(argv[2]) : 8;
    all = calloc((size_t)count, sizeof *all);
    for (int i = 0; i < count; i++) {
        struct coroutine *c = &all[i];
        getcontext(&c->context);
        c->context.uc_stack.ss_size = 64 << 10;
        c->context.uc_stack.ss_sp = malloc(c->context.uc_stack.ss_size);
        c->seed = (unsigned)i + 1;
        makecontext(&c->context, (void (*)(void))body, 2, (unsigned)(unsigned long)c, (unsigned)((unsigned long)c >> 32));
    }
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL)) abort();
    }
    say_ready();
    for (char *line; (line = next_command());) {
        int n;
        if (sscanf(line, "go %d", &n) == 1) {
            pthread_mutex_lock(&lock);
            rounds = n;
            busy = count;
            pthread_mutex_unlock(&lock);
            for (int i = 0; i < count; i++) {
                all[i].left = 1;
                put(&all[i]);
            }
            pthread_mutex_lock(&lock);
            while (busy) pthread_cond_wait(&changed, &lock);
            pthread_mutex_unlock(&lock);
        }
        long calls = 0, wrong = 0, moved = 0;
        for (int i = 0; i < count; i++) calls += all[i].calls, wrong += all[i].wrong, moved += all[i].moved;
        say("tally work %ld", calls);
        say("tally leaf %ld", 2 * calls);
        say("moved %ld", moved);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
