# Functions of one byte right behind each other, which have no room for a springboard.

    .text
    .globl first
    .type first, @function
first:
    ret
    .size first, . - first

    .globl second
    .type second, @function
second:
    ret
    .size second, . - second

# calls them once a second, until it is killed
    .globl main
    .type main, @function
main:
    .cfi_startproc
    push %rbp
    .cfi_adjust_cfa_offset 8
1:  call first
    call second
    mov $1, %edi
    call sleep
    jmp 1b
    .cfi_endproc
    .size main, . - main

    .section .note.GNU-stack, "", @progbits
