/* Functions whose blocks run a known number of times. Their code is written by hand, so that offsets of blocks are known.
 *
 * blocks COUNT      starts COUNT workers, which wait
 * go N              the main thread and each worker call `leaf` N times, with loops of 3 rounds; answers `wrong` if a result is
 * around N          calls `around` with a loop of N rounds
 */
#include "mutatee.h"

/* A leaf with values in the red zone. The head of its loop, at +0x11, is reached by running on and by a branch, and the carry flag is live
 * there. At +0x1b the loop is over. */
long leaf(long first, long rounds);
__asm__(".text\n.p2align 4\n.globl leaf\n.type leaf, @function\n"
        "leaf:\n"
        "  mov %rdi, -8(%rsp)\n"
        "  movq $7, -128(%rsp)\n" /* 9 bytes */
        "  xor %eax, %eax\n"      /* clears the carry flag */
        "  nop\n"
        "1: adc -128(%rsp), %rax\n"
        "  dec %rsi\n"
        "  jne 1b\n"
        "  adc -8(%rsp), %rax\n"
        "  ret\n"
        ".size leaf, . - leaf\n");

/* Calls `step` once before its loop, ROUNDS times in it and once after it. The loop begins at +0x9, where the first call returns, and its
 * other block at +0x13. The loop of `spin` begins at the function's first byte. */
void around(long rounds);
void spin(long rounds);
__asm__(".text\n.p2align 4\n.globl step\n.type step, @function\n"
        "step:\n"
        "  movl $1, %eax\n"
        "  ret\n"
        ".size step, . - step\n"
        ".p2align 4\n.globl around\n.type around, @function\n"
        "around:\n"
        "  push %rbx\n"
        "  mov %rdi, %rbx\n"
        "  call step\n"
        "1: nopl 0(%rax, %rax, 1)\n" /* 5 bytes, so that a springboard fits before the call */
        "  call step\n"
        "  dec %rbx\n"
        "  jne 1b\n"
        "  call step\n"
        "  pop %rbx\n"
        "  ret\n"
        ".size around, . - around\n"
        ".p2align 4\n.globl spin\n.type spin, @function\n"
        "spin:\n"
        "  dec %rdi\n"
        "  jne spin\n"
        "  ret\n"
        ".size spin, . - spin\n");

static long calls_each;
static pthread_barrier_t begin, end;

static long call(long n) {
    long wrong = 0;
    for (long i = 0; i < n; i++) wrong += leaf(i, 3) != i + 21;
    return wrong;
}

static atomic_long all_wrong;

static void *worker(void *unused) {
    for (;;) {
        pthread_barrier_wait(&begin);
        all_wrong += call(calls_each);
        pthread_barrier_wait(&end);
    }
    return unused;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0;
    pthread_barrier_init(&begin, NULL, (unsigned)count + 1);
    pthread_barrier_init(&end, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL)) abort();
    }
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strncmp(line, "go ", 3)) {
            calls_each = atol(line + 3);
            all_wrong = 0;
            pthread_barrier_wait(&begin);
            all_wrong += call(calls_each);
            pthread_barrier_wait(&end);
            say("wrong %ld", all_wrong);
        } else if (!strncmp(line, "around ", 7)) {
            around(atol(line + 7));
            spin(1);
        }
        say("done");
    }
    return 0;
}
