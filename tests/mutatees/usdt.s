# Functions with static probes (USDT). The notes have the form of <sys/sdt.h>. Besides them, only the distance of each probe from its function
# is in the program: an address in data would be a way into the function.

    .macro PROBE name function
.L\name:
    nop
    .pushsection .rodata
    .globl \name
    .balign 8
\name:
    .8byte .L\name - \function
    .popsection
    .pushsection .note.stapsdt, "", "note"
    .balign 4
    .4byte 992f - 991f, 994f - 993f, 3
991:
    .asciz "stapsdt"
992:
    .balign 4
993:
    .8byte .L\name, _.stapsdt.base, 0
    .asciz "usdt"
    .asciz "\name"
    .asciz ""
994:
    .balign 4
    .popsection
    .endm

    .section .stapsdt.base, "aG", "progbits", .stapsdt.base, comdat
    .weak _.stapsdt.base
    .hidden _.stapsdt.base
_.stapsdt.base:
    .space 1
    .size _.stapsdt.base, 1

    .text
    .p2align 4
    .type helper, @function
helper:
    lea 1(%rdi,%rdi,2), %rax
    ret
    .size helper, . - helper

# long returns(long): the probe is where a call returns
    .p2align 4
    .globl returns
    .type returns, @function
returns:
    push %rbx
    mov %rdi, %rbx
    call helper
    PROBE at_return returns
    add %rbx, %rax
    test $1, %bl
    je 1f
    add $2, %rax
1:  pop %rbx
    ret
    .size returns, . - returns

# long follows(long): the probe is three bytes behind that
    .p2align 4
    .globl follows
    .type follows, @function
follows:
    push %rbx
    mov %rdi, %rbx
    call helper
    add %rbx, %rax
    PROBE behind_return follows
    test $1, %bl
    je 1f
    add $2, %rax
1:  pop %rbx
    ret
    .size follows, . - follows

# long begins(long): the probe is the second instruction
    .p2align 4
    .globl begins
    .type begins, @function
begins:
    push %rbx
    PROBE at_beginning begins
    mov %rdi, %rbx
    mov %rdi, %rax
    test $1, %bl
    je 1f
    add $2, %rax
1:  pop %rbx
    ret
    .size begins, . - begins

# long leaves(long): the probe is before the return
    .p2align 4
    .globl leaves
    .type leaves, @function
leaves:
    mov %rdi, %rax
    test $1, %dil
    je 1f
    add $2, %rax
    xor %edx, %edx
    xor %ecx, %ecx
1:  PROBE before_exit leaves
    ret
    .size leaves, . - leaves

    .section .note.GNU-stack, "", @progbits
