/* Threads that repeat a lap whose every instruction is the same each time, so that what a thread has executed follows from its number of beats
 * and its registers.
 *
 * lap I             the first thread runs the lap of thread I once
 * run N             N threads begin, each repeats its lap for ever
 * join              the threads end after their present laps
 *
 * Between two beats of a thread, no instruction is executed twice at the same depth of the stack.
 */
#include "mutatee.h"
#include <setjmp.h>

#define MOST 16

struct pace {
    volatile long beat;  /* beats since the start */
    volatile long base;  /* stack pointer in the frame that calls `lap` */
    volatile long tid;
    long turns;          /* length of a lap */
    unsigned state;
    unsigned seed;
    volatile long sum;
    jmp_buf way_out;
};

static struct pace paces[MOST];
static pthread_t threads[MOST];
static volatile int ending;

static inline unsigned next(struct pace *p) {
    p->state = p->state * 1664525u + 1013904223u;
    return p->state >> 16;
}

COUNTED long leaf(struct pace *p, long x) {
    p->beat++;
    return x * 3 + 1;
}
COUNTED long guarded(struct pace *p, long x) { return x & 1 ? leaf(p, x) + 2 : x; }
COUNTED long looped(struct pace *p, long x) {
    long sum = 0;
    for (long i = 0; i < (x & 7); i++) {
        p->beat++;
        if (next(p) % 3 == 0) sum += i;
        else if (sum > 5) sum -= 2;
    }
    return sum;
}
COUNTED long chosen(struct pace *p, long x) {
    p->beat++;
    switch (x % 7) {
    case 0: return x + 1;
    case 1: return leaf(p, x);
    case 2: return x * x;
    case 3: return looped(p, x);
    case 4: return x ^ 0x55;
    case 5: return guarded(p, x);
    default: return 0;
    }
}
COUNTED long inner(struct pace *p, long depth, long x) {
    long sum = guarded(p, x);
    p->beat++;
    if (depth > 0) sum += inner(p, depth - 1, x + 1);
    p->beat++;
    if (next(p) % 3 == 0) sum += leaf(p, depth);
    return sum + 1;
}
COUNTED long leaver(struct pace *p, long x) {
    leaf(p, x);
    if (next(p) % 4 == 0) _longjmp(p->way_out, 1);
    return x + 1;
}
COUNTED long middle(struct pace *p, long x) {
    long (*volatile by_pointer)(struct pace *, long) = next(p) & 1 ? leaf : chosen;
    long sum = by_pointer(p, x);
    sum += leaver(p, x);
    return sum + leaf(p, x);
}
COUNTED long outer(struct pace *p, long x) {
    volatile long sum = inner(p, (long)(next(p) % 5), x);
    p->beat++;
    if (_setjmp(p->way_out) == 0) sum += middle(p, x);
    p->beat++;
    sum += chosen(p, x);
    return sum;
}
COUNTED void lap(struct pace *p) {
    p->state = p->seed;
    long sum = 0;
    for (long i = 0; i < p->turns; i++) {
        p->beat++;
        sum += outer(p, i);
    }
    p->sum = sum;
    p->beat++;
}

static void *runner(void *of) {
    struct pace *p = of;
    p->tid = own_tid();
    register long sp __asm__("rsp");
    p->base = sp;
    while (!ending) lap(p);
    return NULL;
}

int main(void) {
    int running = 0;
    for (int i = 0; i < MOST; i++) {
        paces[i].seed = (unsigned)i * 977 + 1;
        paces[i].turns = 20 + 7 * i;
    }
    say_ready();
    for (char *line; (line = next_command());) {
        int n = 0;
        if (sscanf(line, "lap %d", &n) == 1 && n < MOST) {
            lap(&paces[n]);
            say("beats %ld", paces[n].beat);
        } else if (sscanf(line, "run %d", &n) == 1 && n <= MOST) {
            for (running = 0; running < n; running++)
                if (pthread_create(&threads[running], NULL, runner, &paces[running])) abort();
        } else if (!strcmp(line, "join")) {
            ending = 1;
            while (running > 0) pthread_join(threads[--running], NULL);
            ending = 0;
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
