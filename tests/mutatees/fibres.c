/* Calls on several stacks, with an account of their own.
 *
 * fibres KIND THREADS    stacks are switched by `ucontext` or by `own` code
 * run SEED ROUNDS        each thread resumes one of its fibres in each round; a fibre calls functions that call each other, and gives way in the
 *                        middle of them. A fibre ends, or is given up in the middle of its calls, and another one begins on its stack.
 * The answer has `chain COUNT FUNCTIONS...` for each chain of calls, the outermost function first, `tally FUNCTION` with its calls, `open FUNCTION`
 * with those that were given up, and `wrong`, the number of results that were. */
#include "mutatee.h"
#include <setjmp.h>
#include <stdint.h>
#include <ucontext.h>

enum { FIBRES = 7, STACK = 64 << 10, FUNCTIONS = 7, DEPTH = 9 };
enum { F_ROUND, F_RESUME, F_BODY, F_LEFT, F_RIGHT, F_AGAIN, F_YIELD };
static const char *const names[FUNCTIONS] = {"f_round", "f_resume", "f_body", "f_left", "f_right", "f_again", "f_yield"};

struct node {
    long calls;
    struct node *of[FUNCTIONS];
};

struct thread;

/* A stack with the calls on it: those of a fibre, or those of the thread itself. */
struct fibre {
    ucontext_t context;
    void *sp;
    char *stack;
    struct node *chain[64];
    int functions[64], depth, lives, steps;
    struct thread *thread;
};

struct thread {
    struct fibre own, fibres[FIBRES];
    struct node root;
    long tally[FUNCTIONS], open[FUNCTIONS], wrong;
    uint64_t seed;
    struct fibre *now;
    int rounds;
    pthread_t id;
};

static int by_ucontext;
static __thread struct thread *self;

/* Keeps the registers and the stack pointer of a stack, and goes on at another one. */
void own_switch(void **save, void *to);
__asm__(".text\n.p2align 4\n.globl own_switch\n.type own_switch, @function\nown_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size own_switch, . - own_switch\n");

static unsigned draw(struct thread *t, unsigned below) {
    t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(t->seed >> 33) % below;
}

static void enter(struct fibre *f, int function) {
    struct node *parent = f->depth ? f->chain[f->depth - 1] : &f->thread->root;
    if (!parent->of[function]) parent->of[function] = calloc(1, sizeof(struct node));
    f->chain[f->depth] = parent->of[function];
    f->functions[f->depth++] = function;
    parent->of[function]->calls++;
    f->thread->tally[function]++;
}

static void leave(struct fibre *f) { f->depth--; }

static void change(struct fibre *from, struct fibre *to) {
    from->thread->now = to;
    if (by_ucontext)
        swapcontext(&from->context, &to->context);
    else
        own_switch(&from->sp, to->sp);
}

COUNTED long f_yield(struct fibre *f, long x) {
    enter(f, F_YIELD);
    change(f, &f->thread->own);
    leave(f);
    return x + 1;
}

COUNTED long f_left(struct fibre *f, long x, int depth);
COUNTED long f_right(struct fibre *f, long x, int depth);
COUNTED long f_again(struct fibre *f, long x, int depth);

static long some(struct fibre *f, long x, int depth) {
    for (unsigned n = draw(f->thread, 3); n > 0 && depth > 0; n--) {
        long before = x;
        switch (draw(f->thread, 4)) {
        case 0: x = f_left(f, x, depth - 1); break;
        case 1: x = f_right(f, x, depth - 1); break;
        case 2: x = f_again(f, x, depth - 1); break;
        default: x = f_yield(f, x);
        }
        if (x <= before) f->thread->wrong++;
    }
    return x + 1;
}

COUNTED long f_left(struct fibre *f, long x, int depth) {
    enter(f, F_LEFT);
    x = some(f, x, depth) + 1;
    leave(f);
    return x;
}

COUNTED long f_right(struct fibre *f, long x, int depth) {
    enter(f, F_RIGHT);
    volatile char room[200];
    room[0] = (char)x;
    x = some(f, x, depth) + 2 + 0 * room[0];
    leave(f);
    return x;
}

COUNTED long f_again(struct fibre *f, long x, int depth) {
    enter(f, F_AGAIN);
    if (depth > 1) x = f_again(f, x, depth - 1);
    x = some(f, x, depth / 2) + 3;
    leave(f);
    return x;
}

COUNTED void f_body(struct fibre *f) {
    enter(f, F_BODY);
    while (f->steps-- > 0) {
        some(f, f->steps, DEPTH);
        f_yield(f, 0);
    }
    leave(f);
}

static void begins(unsigned low, unsigned high) {
    struct fibre *f = (struct fibre *)((uintptr_t)high << 32 | low);
    f_body(f);
    f->lives = 0;
    f->thread->now = &f->thread->own;
    if (by_ucontext) return; /* to its uc_link */
    own_switch(&f->sp, f->thread->own.sp);
    abort();
}

static void begins_own(void) {
    struct fibre *f = self->now;
    begins((unsigned)(uintptr_t)f, (unsigned)((uintptr_t)f >> 32));
}

static void renew(struct fibre *f, struct thread *t) {
    for (int n = 0; n < f->depth; n++) t->open[f->functions[n]]++;
    f->depth = 0;
    f->thread = t;
    f->lives = 1;
    f->steps = 1 + (int)draw(t, 6);
    if (!f->stack) f->stack = malloc(STACK);
    if (by_ucontext) {
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack;
        f->context.uc_stack.ss_size = STACK;
        f->context.uc_link = &t->own.context;
        makecontext(&f->context, (void (*)(void))begins, 2, (unsigned)(uintptr_t)f, (unsigned)((uintptr_t)f >> 32));
    } else {
        void **top = (void **)((uintptr_t)(f->stack + STACK) & ~(uintptr_t)15);
        *--top = 0; /* where a return address would lie */
        *--top = (void *)begins_own;
        f->sp = top - 6;
    }
}

COUNTED void f_resume(struct thread *t) {
    enter(&t->own, F_RESUME);
    struct fibre *f = &t->fibres[draw(t, FIBRES)];
    if (!f->lives || draw(t, 40) == 0) renew(f, t);
    change(&t->own, f);
    leave(&t->own);
}

COUNTED void f_round(struct thread *t) {
    enter(&t->own, F_ROUND);
    f_resume(t);
    leave(&t->own);
}

static void *run(void *of) {
    self = of;
    for (int n = 0; n < self->rounds; n++) f_round(self);
    return NULL;
}

static void tell(struct node *node, const char *chain) {
    for (int n = 0; n < FUNCTIONS; n++) {
        if (!node->of[n]) continue;
        char longer[512];
        snprintf(longer, sizeof longer, "%s %s", chain, names[n]);
        say("chain %ld%s", node->of[n]->calls, longer);
        tell(node->of[n], longer);
    }
}

static void add(struct node *to, const struct node *from) {
    to->calls += from->calls;
    for (int n = 0; n < FUNCTIONS; n++) {
        if (!from->of[n]) continue;
        if (!to->of[n]) to->of[n] = calloc(1, sizeof(struct node));
        add(to->of[n], from->of[n]);
    }
}

int main(int argc, char **argv) {
    by_ucontext = argc > 1 && !strcmp(argv[1], "ucontext");
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    say_ready();
    for (char *line; (line = next_command());) {
        unsigned seed;
        int rounds;
        if (sscanf(line, "run %u %d", &seed, &rounds) != 2) continue;
        struct thread *all = calloc((size_t)threads, sizeof *all);
        for (int n = 0; n < threads; n++) {
            all[n].own.thread = &all[n];
            all[n].seed = seed * 1000 + (unsigned)n;
            all[n].rounds = rounds;
            if (pthread_create(&all[n].id, NULL, run, &all[n])) abort();
        }
        struct thread sum = {0};
        for (int n = 0; n < threads; n++) {
            pthread_join(all[n].id, NULL);
            add(&sum.root, &all[n].root);
            sum.wrong += all[n].wrong;
            for (int i = 0; i < FIBRES; i++)
                for (int d = 0; d < all[n].fibres[i].depth; d++) all[n].open[all[n].fibres[i].functions[d]]++;
            for (int f = 0; f < FUNCTIONS; f++) sum.tally[f] += all[n].tally[f], sum.open[f] += all[n].open[f];
        }
        tell(&sum.root, "");
        for (int f = 0; f < FUNCTIONS; f++) say("tally %s %ld", names[f], sum.tally[f]);
        for (int f = 0; f < FUNCTIONS; f++) say("open %s %ld", names[f], sum.open[f]);
        say("wrong %ld", sum.wrong);
        say("done");
    }
    return 0;
}
