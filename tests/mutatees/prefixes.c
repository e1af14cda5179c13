/* Functions that jump over the prefix `lock`, as those of the C library do in programs with one thread. The instruction without its prefix is a
 * block that begins inside of the instruction with it.
 *
 * go N              calls each function N times with the prefix and N times without; answers with the sums, `added` and `counted`
 */
#include "mutatee.h"

/* Adds to a cell, and returns what was there. */
long locked_add(long *cell, long add, long alone);
/* The function ends right behind that instruction, and is short. */
void locked_count(long *cell, long alone);
/* Goes back to its beginning behind that instruction. */
void locked_rounds(long *cell, long alone, long rounds);
__asm__(".text\n.p2align 4\n.globl locked_add\n.type locked_add, @function\n"
        "locked_add:\n"
        "  nopl 0(%rax, %rax, 1)\n"
        "  test %rdx, %rdx\n"
        "  jne 1f\n"
        "  lock\n"
        "1: xaddq %rsi, 0(%rdi)\n"
        "  mov %rsi, %rax\n"
        "  nopl 0(%rax, %rax, 1)\n"
        "  ret\n"
        ".size locked_add, . - locked_add\n"
        ".p2align 4\n.globl locked_count\n.type locked_count, @function\n"
        "locked_count:\n"
        "  nopl 0(%rax, %rax, 1)\n"
        "  test %rsi, %rsi\n"
        "  jne 1f\n"
        "  lock\n"
        "1: addq $1, 0(%rdi)\n"
        "  ret\n"
        ".size locked_count, . - locked_count\n"
        ".p2align 4\n.globl locked_rounds\n.type locked_rounds, @function\n"
        "locked_rounds:\n"
        "  test %rdx, %rdx\n"
        "  je 2f\n"
        "  dec %rdx\n"
        "  test %rsi, %rsi\n"
        "  jne 1f\n"
        "  lock\n"
        "1: addq $1, 0(%rdi)\n"
        "  jmp locked_rounds\n"
        "2: ret\n"
        ".size locked_rounds, . - locked_rounds\n");

int main(void) {
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strncmp(line, "go ", 3)) {
            long n = atol(line + 3), added = 0, counted = 0;
            for (long i = 0; i < n; i++) {
                for (long alone = 0; alone < 2; alone++) {
                    locked_add(&added, i, alone);
                    locked_count(&counted, alone);
                    locked_rounds(&counted, alone, 3);
                }
            }
            say("added %ld", added);
            say("counted %ld", counted);
        }
        say("done");
    }
    return 0;
}
