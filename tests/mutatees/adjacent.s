# Functions in which a call follows right where another one returns.

    .macro begins name
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    .endm

    .macro ends name
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size \name, . - \name
    .endm

    .text

    begins direct
    call first
    call second
    ends direct

# an instruction of one byte between them
    begins spaced
    call first
    cld
    call second
    ends spaced

# an argument between them, whose register is dead before
    begins passing
    call first
    push $77
    .cfi_adjust_cfa_offset 8
    pop %rax
    .cfi_adjust_cfa_offset -8
    call keep
    ends passing

# control comes to the second call from the first one's return, and by a jump
    begins looped
    mov %edi, %ebx
1:  mov %ebx, %edi
    call first
2:  call second
    dec %ebx
    je 3f
    test $1, %bl
    jne 2b
    jmp 1b
3:
    ends looped

# three in a row, the middle one of the function itself
    begins again
    mov %edi, %ebx
    test %edi, %edi
    je 1f
    call first
    call less
    call second
1:
    ends again

    .p2align 4
    .type less, @function
less:
    .cfi_startproc
    lea -1(%rbx), %edi
    jmp again
    .cfi_endproc
    .size less, . - less

    begins memory
    call first
    call *slot(%rip)
    ends memory

    begins by_register
    lea second(%rip), %rbx
    call first
    call *%rbx
    ends by_register

    begins waits
    call wait_first
    call wait_second
    ends waits

# returns rax, the number of its caller
    .p2align 4
    .globl keep
    .type keep, @function
keep:
    .cfi_startproc
    ret
    .cfi_endproc
    .size keep, . - keep

    .data
    .p2align 3
slot:
    .quad second

    .section .note.GNU-stack,"",@progbits
