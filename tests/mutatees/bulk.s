# A library whose analysis takes long, because it has very many functions. Three of them are called.

    .altmacro

    .macro begins name
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    .endm

    .macro ends name
    ret
    .cfi_endproc
    .size \name, . - \name
    .endm

# a loop with a branch in it
    .macro filler n
    begins g\n
    xor %eax, %eax
    test %rdi, %rdi
    jle 3f
1:  test $1, %dil
    je 2f
    add %rdi, %rax
2:  dec %rdi
    jne 1b
3:
    ends g\n
    .endm

    .macro called name, factor
    begins \name
    imul $\factor, %rdi, %rax
    add $1, %rax
    ends \name
    .endm

    .text

    called f0, 3
    called f1, 5
    called f2, 7

    .set n, 0
    .rept 60000
    filler %n
    .set n, n + 1
    .endr

    .section .note.GNU-stack, "", @progbits
