# Assembly whose symbols have no type, as assemblers write them unless they are told otherwise.

    .text

# long direct(long): a call leads to it
    .p2align 4
    .globl direct
direct:
    push %rbx
    mov %rdi, %rbx
    call helper
    add %rbx, %rax
    pop %rbx
    ret

# the same, and other files cannot see it
    .p2align 4
helper:
    lea 1(%rdi,%rdi), %rax
inside_of_helper:
    add $1, %rax
    sub $1, %rax
    ret

# long framed(long): the unwind table has it, only a pointer leads to it
    .p2align 4
    .globl framed
framed:
    .cfi_startproc
    lea 3(%rdi), %rax
    add $1, %rax
    ret
    .cfi_endproc

# long pointed(long): nothing but a pointer leads to it, and it begins as data might
    .p2align 4
    .globl pointed
pointed:
    lea 5(%rdi), %rax
    add $1, %rax
    ret

# data between functions: eight bytes that the program reads
    .p2align 4
    .globl numbers
numbers:
    .quad 0x0123456789abcdef

    .section .note.GNU-stack,"",@progbits
