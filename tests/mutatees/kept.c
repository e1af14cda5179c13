/* Functions whose callers keep values in registers over a call, because they know what the function overwrites (-fipa-ra of gcc).
 *
 * go N     calls `interpret` and `choose` N times; `tally` of both, and `wrong`, the number of registers that were changed */
#include "mutatee.h"

/* Runs a code, as gcc has compiled such a function: the loads of the next address lead to one jump. It leaves r11 alone. */
long interpret(long start);
/* Jumps through a table to one of two places. It overwrites rax, rdx and rdi. */
long choose(long start);
__asm__(".text\n.p2align 4\n.globl interpret\n.type interpret, @function\ninterpret:\n"
        "mov %rdi, %rax\nmov $0x13, %esi\nxor %edx, %edx\nmov %rdi, %r8\nlea code(%rip), %r9\nlea 1(%rdi), %rcx\n"
        "xor $4, %r8\nmov $4, %r10d\ndiv %rsi\nlea table(%rip), %rdi\nmovzbl (%r9,%rdx), %eax\nadd $2, %edx\n"
        "mov (%rdi,%rax,8), %rsi\n1: lea -1(%rdx), %eax\njmp *%rsi\n"
        "2: sub $0x13, %r10\n3: movzbl (%r9,%rax), %eax\ninc %edx\nmov (%rdi,%rax,8), %rsi\njmp 1b\n"
        "4: sub $0x75, %rcx\njmp 3b\n"
        "5: add %r10, %rcx\nlea 0x13(%r8,%rcx), %rax\nret\n.size interpret, . - interpret\n"
        ".p2align 4\n.globl choose\n.type choose, @function\nchoose:\n"
        "mov %rdi, %rax\nlea way(%rip), %rdx\nand $1, %eax\njmp *(%rdx,%rax,8)\n"
        ".p2align 4\n6: lea (%rdi,%rdi), %rdi\nmov %rdi, %rax\nret\n"
        ".p2align 4\n7: mov $6, %eax\nret\n.size choose, . - choose\n"
        ".section .data.rel.ro, \"aw\"\n.p2align 3\nway: .quad 6b, 7b\ntable: .quad 2b, 4b, 5b\n"
        ".section .rodata\ncode: .byte 0, 1, 0, 0, 1, 1, 0, 2, 0, 1, 0, 0, 1, 2, 1, 1, 0, 1, 2, 0, 0, 1, 0, 2, 2, 2\n.text\n");

/* Calls a function with numbers in registers that it leaves alone, and counts those that it has changed. */
static long kept(long (*function)(long), long start) {
    register long r11 __asm__("r11") = start + 11;
    long rax = (long)function, rdi = start;
    __asm__ volatile("sub $128, %%rsp\ncall *%%rax\nadd $128, %%rsp"
                     : "+a"(rax), "+D"(rdi), "+r"(r11)
                     :
                     : "rcx", "rdx", "rsi", "r8", "r9", "r10", "memory", "cc");
    return r11 != start + 11;
}

int main(void) {
    long calls = 0, wrong = 0;
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "go %ld", &n) != 1) continue;
        for (long i = 0; i < n; i++) {
            wrong += kept(interpret, i) + kept(choose, i);
            calls++;
        }
        say("tally interpret %ld", calls);
        say("tally choose %ld", calls);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
