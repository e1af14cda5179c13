/* Functions whose numbers of instructions and of accesses to memory are known.
 *
 * run LAPS THREADS   so many threads make so many laps each, and end
 * begin              begins a thread that makes laps until `end`
 * end                ends that thread; the answer has the number of its laps
 */
#include "mutatee.h"

#define THREADS 64

#define NAKED __attribute__((naked, noinline, used))

/* 2 + 3 n instructions, of which the return alone reads. */
NAKED long i_counts(long n) {
    (void)n;
    __asm__("xor %eax, %eax\n 1: add $1, %rax\n dec %rdi\n jnz 1b\n ret\n");
}

/* 2 + 4 n instructions with n reads and n writes, and the read of the return. */
NAKED long i_copies(long n) {
    (void)n;
    __asm__("mov %rdi, %rcx\n 1: mov -8(%rsp), %rax\n mov %rax, -16(%rsp)\n dec %rcx\n jnz 1b\n ret\n");
}

/* 7 instructions for each level but the last one, which has 3. */
NAKED void i_deep(long n) {
    (void)n;
    __asm__("test %rdi, %rdi\n jz 1f\n push %rdi\n dec %rdi\n call i_deep\n pop %rdi\n 1: ret\n .skip 8, 0xcc\n");
}

COUNTED void i_few(void) {
    i_counts(3);
    i_copies(5);
}

COUNTED void i_many(void) {
    i_counts(100);
    i_copies(70);
    i_deep(9);
}

COUNTED void i_laps(long laps) {
    for (long n = 0; n < laps; n++) {
        i_few();
        i_many();
        i_many();
    }
}

static void *laps(void *number) {
    i_laps(*(long *)number);
    return NULL;
}

static atomic_long made;
static atomic_int is_over;

static void *without_end(void *none) {
    while (!is_over) {
        i_laps(10);
        made += 10;
    }
    return none;
}

int main(void) {
    pthread_t maker;
    say_ready();
    for (char *command; (command = next_command());) {
        long number;
        int count;
        if (sscanf(command, "run %ld %d", &number, &count) == 2) {
            pthread_t ids[THREADS];
            if (count < 0 || count > THREADS) abort();
            for (int n = 0; n < count; n++)
                if (pthread_create(&ids[n], NULL, laps, &number)) abort();
            for (int n = 0; n < count; n++) pthread_join(ids[n], NULL);
        } else if (!strcmp(command, "begin")) {
            if (pthread_create(&maker, NULL, without_end, NULL)) abort();
            while (made < 1000) sched_yield();
        } else if (!strcmp(command, "end")) {
            long before = made;
            while (made < before + 2000) sched_yield();
            is_over = 1;
            pthread_join(maker, NULL);
            say("made %ld", (long)made);
        }
        say("done");
    }
}
