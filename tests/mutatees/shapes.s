# Function entries of every awkward shape. Each is called by shapes.c through a checker that compares all general registers,
# the vector registers and what the function may return with a first, unmeasured call.
    .intel_syntax noprefix
    .text

    .macro begin name
    .globl \name
    .type \name, @function
\name:
    .endm
    .macro finish name
    .size \name, . - \name
    .endm

    # exactly five bytes before the return
    .p2align 4, 0xcc
begin exact5
    mov eax, 1
    ret
finish exact5

    # only a return, padding behind it
    .p2align 4, 0xcc
begin only_ret
    ret
finish only_ret

    # three bytes, padding behind
    .p2align 4, 0xcc
begin short_padded
    xor eax, eax
    ret
finish short_padded

    # three bytes, the next function follows at once
    .p2align 4, 0xcc
begin short_crowded
    xor eax, eax
    ret
finish short_crowded
begin after_crowded
    lea eax, [rdi + rdi*2]
    add eax, 5
    ret
finish after_crowded

    # padding made of long nops, as compilers do
    .p2align 4, 0xcc
begin short_nops
    mov eax, edi
    ret
finish short_nops
    .p2align 4

    # a landing place for indirect branches
    .p2align 4, 0xcc
begin endbr
    endbr64
    lea eax, [rdi + 1]
    ret
finish endbr

    .p2align 4, 0xcc
begin endbr_only
    endbr64
    ret
finish endbr_only

    # the entry is the head of a loop, short branch back
    .p2align 4, 0xcc
begin loop_rel8
    lea rax, [rax + rdi]
    dec edi
    jne loop_rel8
    ret
finish loop_rel8

    # the same with a long branch back
    .p2align 4, 0xcc
begin loop_rel32
    lea rax, [rax + rdi]
    dec edi
    .byte 0x0f, 0x85
    .long loop_rel32 - . - 4
    ret
finish loop_rel32

    # the entry is a loop head and the red zone is in use when the branch comes back
    .p2align 4, 0xcc
begin loop_red_zone
    add rax, rdi
    mov [rsp - 8], rax
    mov [rsp - 64], rdi
    mov [rsp - 128], rax
    dec rdi
    jz 1f
    mov rcx, [rsp - 8]
    cmp rcx, [rsp - 128]
    jne 2f
    mov rcx, [rsp - 64]
    dec rcx
    cmp rcx, rdi
    je loop_red_zone
2:  mov rax, -1
1:  ret
finish loop_red_zone

    # a loop head at byte 3, inside what a springboard covers
    .p2align 4, 0xcc
begin branch_inside
    xor eax, eax
    nop
1:  add eax, edi
    dec edi
    jne 1b
    ret
finish branch_inside

    # first instruction addresses memory relative to itself, in every form
    .p2align 4, 0xcc
begin rip_load
    mov eax, [rip + shapes_data]
    add eax, edi
    ret
finish rip_load

    .p2align 4, 0xcc
begin rip_immediate
    cmp dword ptr [rip + shapes_data], 7
    sete al
    movzx eax, al
    ret
finish rip_immediate

    .p2align 4, 0xcc
begin rip_lea
    lea rax, [rip + shapes_data]
    mov eax, [rax]
    ret
finish rip_lea

    .p2align 4, 0xcc
begin rip_jump
    jmp qword ptr [rip + shapes_pointer]
finish rip_jump

    # branches that have only a short form
    .p2align 4, 0xcc
begin jrcxz_first
    mov ecx, edi
    jrcxz 1f
    lea eax, [rdi + 1]
    ret
1:  mov eax, 77
    ret
finish jrcxz_first

    .p2align 4, 0xcc
begin loop_first
    mov ecx, edi
1:  loop 1b
    mov eax, ecx
    ret
finish loop_first

    .p2align 4, 0xcc
begin short_branch
    test edi, edi
    jg 1f
    mov eax, 3
    ret
1:  lea eax, [rdi + 9]
    ret
finish short_branch

    # a call among the first five bytes
    .p2align 4, 0xcc
begin call_first
    push rbx
    call shapes_target
    pop rbx
    ret
finish call_first

    # a call as the very first instruction: the stack is off by eight, the callee does not mind
    .p2align 4, 0xcc
begin call_only
    call shapes_target
    ret
finish call_only

    # reads its own address by call and pop
    .p2align 4, 0xcc
begin call_pop
    call 1f
1:  pop rax
    lea rcx, [rip + 1b]
    sub rax, rcx
    ret
finish call_pop

    # an indirect call first, through memory beside the code
    .p2align 4, 0xcc
begin call_memory
    call qword ptr [rip + shapes_pointer]
    inc eax
    ret
finish call_memory

    # tail calls, long, short and conditional
    .p2align 4, 0xcc
begin tail_long
    .byte 0xe9
    .long shapes_target - . - 4
finish tail_long

    .p2align 4, 0xcc
begin tail_conditional
    test edi, edi
    .byte 0x0f, 0x85
    .long shapes_target - . - 4
    mov eax, 5
    ret
finish tail_conditional

    # leaves by pushing the address of another function and returning to it
    .p2align 4, 0xcc
begin push_ret
    lea rax, [rip + shapes_target]
    push rax
    ret
finish push_ret

    # the first five bytes straddle a page
    .p2align 12, 0xcc
    .skip 4093, 0xcc
begin page_straddle
    mov eax, edi
    add eax, 3
    ret
finish page_straddle

    # the whole function ends with its page
    .p2align 12, 0xcc
    .skip 4090, 0xcc
begin page_end
    mov eax, 12
    ret
finish page_end

    # takes arguments in the flags
    .p2align 4, 0xcc
begin flags_carry
    setc al
    movzx eax, al
    ret
finish flags_carry

    .p2align 4, 0xcc
begin flags_all
    pushfq
    pop rax
    and eax, 0xcd5
    ret
finish flags_all

    .p2align 4, 0xcc
begin adc_first
    adc edi, 0
    mov eax, edi
    ret
finish adc_first

    # touches nothing at all
    .p2align 4, 0xcc
begin all_registers
    nop dword ptr [rax + rax*1 + 0]
    ret
finish all_registers

    # a register that the calling convention would give away, and rax as the count of vector arguments
    .p2align 4, 0xcc
begin odd_arguments
    add rax, r10
    add rax, r11
    ret
finish odd_arguments

    .p2align 4, 0xcc
begin vectors
    addsd xmm0, xmm1
    mulsd xmm0, xmm2
    ret
finish vectors

    # a system call among the first bytes
    .p2align 4, 0xcc
begin syscall_first
    push 39
    pop rax
    syscall
    mov ecx, 0
    mov r11d, 0
    ret
finish syscall_first

    # returns with other than plain ret
    .p2align 4, 0xcc
begin ret_repz
    mov eax, edi
    not eax
    rep ret
finish ret_repz

    # a second entry three bytes into the first
    .p2align 4, 0xcc
begin entry_outer
    lea edi, [rdi + 1]
begin entry_inner
    lea eax, [rdi + rdi*4 + 2]
    ret
finish entry_inner
finish entry_outer

    # a jump table
    .p2align 4, 0xcc
begin jump_table
    cmp edi, 3
    ja 9f
    lea rcx, [rip + shapes_table]
    movsxd rax, dword ptr [rcx + rdi*4]
    add rax, rcx
    jmp rax
1:  mov eax, 10
    ret
2:  mov eax, 20
    ret
3:  mov eax, 30
    ret
9:  mov eax, -1
    ret
finish jump_table
    .section .rodata
    .p2align 2
shapes_table:
    .long 1b - shapes_table
    .long 2b - shapes_table
    .long 3b - shapes_table
    .long 1b - shapes_table
    .text

    # recursion through the first instructions
    .p2align 4, 0xcc
begin recursive
    test edi, edi
    je 1f
    push rdi
    dec edi
    call recursive
    pop rdi
    add eax, edi
    ret
1:  xor eax, eax
    ret
finish recursive

    # what the others call
    .p2align 4, 0xcc
begin shapes_target
    mov eax, 1000
    add eax, edi
    ret
finish shapes_target

    # check(state *in, state *out, function): loads everything from *in, calls, stores everything to *out
    # layout: rax rbx rcx rdx rsi rdi rbp r8-r15 (15 words), flags, xmm0-15
    .p2align 4, 0xcc
begin shapes_check
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rsi
    mov [rip + check_function], rdx
    mov rbx, rdi
    movups xmm0, [rbx + 128]
    movups xmm1, [rbx + 144]
    movups xmm2, [rbx + 160]
    movups xmm3, [rbx + 176]
    movups xmm4, [rbx + 192]
    movups xmm5, [rbx + 208]
    movups xmm6, [rbx + 224]
    movups xmm7, [rbx + 240]
    movups xmm8, [rbx + 256]
    movups xmm9, [rbx + 272]
    movups xmm10, [rbx + 288]
    movups xmm11, [rbx + 304]
    movups xmm12, [rbx + 320]
    movups xmm13, [rbx + 336]
    movups xmm14, [rbx + 352]
    movups xmm15, [rbx + 368]
    push qword ptr [rbx + 120]
    mov rax, [rbx]
    mov rcx, [rbx + 16]
    mov rdx, [rbx + 24]
    mov rsi, [rbx + 32]
    mov rdi, [rbx + 40]
    mov rbp, [rbx + 48]
    mov r8, [rbx + 56]
    mov r9, [rbx + 64]
    mov r10, [rbx + 72]
    mov r11, [rbx + 80]
    mov r12, [rbx + 88]
    mov r13, [rbx + 96]
    mov r14, [rbx + 104]
    mov r15, [rbx + 112]
    mov rbx, [rbx + 8]
    popfq
    call qword ptr [rip + check_function]
    pushfq
    push rbx
    mov rbx, [rsp + 16]
    mov [rbx], rax
    pop rax
    mov [rbx + 8], rax
    mov [rbx + 16], rcx
    mov [rbx + 24], rdx
    mov [rbx + 32], rsi
    mov [rbx + 40], rdi
    mov [rbx + 48], rbp
    mov [rbx + 56], r8
    mov [rbx + 64], r9
    mov [rbx + 72], r10
    mov [rbx + 80], r11
    mov [rbx + 88], r12
    mov [rbx + 96], r13
    mov [rbx + 104], r14
    mov [rbx + 112], r15
    pop rax
    mov [rbx + 120], rax
    movups [rbx + 128], xmm0
    movups [rbx + 144], xmm1
    movups [rbx + 160], xmm2
    movups [rbx + 176], xmm3
    movups [rbx + 192], xmm4
    movups [rbx + 208], xmm5
    movups [rbx + 224], xmm6
    movups [rbx + 240], xmm7
    movups [rbx + 256], xmm8
    movups [rbx + 272], xmm9
    movups [rbx + 288], xmm10
    movups [rbx + 304], xmm11
    movups [rbx + 320], xmm12
    movups [rbx + 336], xmm13
    movups [rbx + 352], xmm14
    movups [rbx + 368], xmm15
    cld
    pop rsi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
finish shapes_check

    .data
    .p2align 4
    .globl shapes_data
shapes_data: .long 7
    .p2align 4
shapes_pointer: .quad shapes_target
    .bss
    .p2align 3
check_function: .skip 8
    .section .note.GNU-stack, "", @progbits
