/* A program in which system calls or the time stamp counter do not work as usual.
 *
 * work N            calls `work` N times in the main thread
 * dispatch MODE     turns Syscall User Dispatch on in the main thread; a handler of SIGSYS makes the calls. MODE is
 *                   block (the selector always blocks), allow (the selector allows while the handler makes a call),
 *                   range (all code of the C library and above may make calls)
 * thread            starts a thread that sleeps, without dispatch (before the main thread turns it on)
 * notsc             turns the time stamp counter off in the main thread; `notsc thread` in a new thread only
 * strict            strict seccomp in a new thread
 * Answers with `unsupported 1` if the kernel has no Syscall User Dispatch.
 */
#include "mutatee.h"
#include <dlfcn.h>
#include <link.h>
#include <linux/seccomp.h>
#include <ucontext.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif
#define ALLOW 0
#define BLOCK 1

COUNTED long work(long x) { return x * 3 + 1; }

/* The only code of this file that makes system calls while dispatch is on. The engine cannot use it for its own calls. */
__asm__(".pushsection .text\n"
        "allowed_begin:\n"
        "allowed_call: mov %rdi, %rax\n mov %rsi, %r11\n"
        " mov (%r11), %rdi\n mov 8(%r11), %rsi\n mov 16(%r11), %rdx\n mov 24(%r11), %r10\n mov 32(%r11), %r8\n mov 40(%r11), %r9\n"
        " syscall\n jmp 1f\n1: ret\n"
        "allowed_restorer: xor %eax, %eax\n mov $15, %al\n syscall\n nop\n"
        "allowed_end:\n"
        ".popsection\n");
extern char allowed_begin[], allowed_end[], allowed_restorer[];
long allowed_call(long number, const long *arguments);

static volatile char selector = ALLOW;
static char during_call = BLOCK;
static volatile long tally, wrong, handled;

static void on_sigsys(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long arguments[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    selector = during_call;
    r[REG_RAX] = allowed_call(r[REG_RAX], arguments);
    selector = BLOCK;
    handled++;
}

static int libc_range(struct dl_phdr_info *info, size_t size, void *to) {
    (void)size;
    if (!strstr(info->dlpi_name, "libc.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        ((unsigned long *)to)[0] = info->dlpi_addr + p->p_vaddr;
        ((unsigned long *)to)[1] = p->p_memsz;
    }
    return 1;
}

/* Returns whether the kernel has it. */
static int dispatch(const char *mode) {
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = {
        (void *)on_sigsys, SA_SIGINFO | 0x04000000 /* SA_RESTORER */ | SA_NODEFER, allowed_restorer, 0};
    unsigned long range[2] = {(unsigned long)allowed_begin, (unsigned long)(allowed_end - allowed_begin)};
    if (!strcmp(mode, "range")) {
        dl_iterate_phdr(libc_range, range);
        range[1] = (1ul << 47) - range[0]; /* the vDSO lies above */
    }
    if (!strcmp(mode, "allow")) during_call = ALLOW;
    if (syscall(SYS_rt_sigaction, SIGSYS, &action, NULL, 8)) abort();
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, range[0], range[1], &selector)) return 0;
    selector = BLOCK;
    return 1;
}

static void *sleeper(void *ready) {
    atomic_store((atomic_int *)ready, 1);
    while (pause() < 0) continue;
    return ready;
}

static void *without_counter(void *ready) {
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) abort();
    return sleeper(ready);
}

static void *strict(void *ready) {
    static int ends[2];
    char byte;
    if (pipe(ends) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) abort();
    atomic_store((atomic_int *)ready, 1);
    while (syscall(SYS_read, ends[0], &byte, 1) < 2) continue;
    return ready;
}

static void start(void *(*body)(void *)) {
    atomic_int ready = 0;
    pthread_t id;
    if (pthread_create(&id, NULL, body, &ready)) abort();
    while (!atomic_load(&ready)) sched_yield();
}

int main(void) {
    long n;
    say_ready();
    for (char *line; (line = next_command());) {
        if (sscanf(line, "work %ld", &n) == 1) {
            for (long i = 0; i < n; i++) wrong += work(i) != i * 3 + 1;
            tally += n;
        } else if (!strncmp(line, "dispatch ", 9)) {
            say("unsupported %d", !dispatch(line + 9));
        } else if (!strcmp(line, "thread")) {
            start(sleeper);
        } else if (!strcmp(line, "notsc")) {
            if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) abort();
        } else if (!strcmp(line, "notsc thread")) {
            start(without_counter);
        } else if (!strcmp(line, "strict")) {
            start(strict);
        } else {
            say("unknown command %s", line);
        }
        say("tally work %ld", tally);
        say("handled %ld", handled);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
