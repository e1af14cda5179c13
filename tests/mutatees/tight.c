/* A function whose last blocks have no room for a jump in a copy: short blocks behind calls, without padding around them.
 *
 * tight N     calls `t_deep` N times, three calls deep, and ends; `t_leaf` is called five times by each of them */
#include "mutatee.h"

void t_deep(long kind, long depth);
volatile long sum;
COUNTED void t_leaf(long kind) { sum += kind; }
__asm__(".text\n.p2align 4\n.type before, @function\nbefore: .rept 60\nlea 1(%rax), %rax\n.endr\nret\n.size before, . - before\n"
        ".globl t_deep\n.type t_deep, @function\nt_deep:\n"
        "push %rbx\nmov %edi, %ebx\ntest %esi, %esi\nje 1f\nsub $1, %esi\ncall t_deep\n"
        "2: mov $2, %edi\ncall t_leaf\npop %rbx\nret\n"
        "1: mov $1, %edi\ncall t_leaf\nmov %ebx, %edi\ncall t_other\njmp 2b\n.size t_deep, . - t_deep\n"
        ".globl t_other\n.type t_other, @function\nt_other: push %rbx\nmov %edi, %ebx\npop %rbx\nret\n.size t_other, . - t_other\n"
        ".type behind, @function\nbehind: .rept 60\nlea 1(%rax), %rax\n.endr\nret\n.size behind, . - behind\n");

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 0;
    for (long n = 0; n < calls; n++) t_deep(1, 3);
    return 0;
}
