/* Functions whose instructions fault, and handlers that skip the faulting instruction by its length.
 *
 * spin N      N threads call the functions and fault without end, until `rest`
 * rest        they end
 * go N        calls each function N times
 * hold        a thread faults at the second instruction of `adds`, and its handler does not return until `let`
 * let         it returns
 *
 * With the argument `plain`, the handler of SIGSEGV does not ask for a siginfo. */
#include "mutatee.h"
#include <ucontext.h>

#define EMULATED 7

/* Faults at its first instruction, which the handler emulates: rax = 7. */
long reads(const long *from, long x);
/* Faults at its second instruction, which the handler emulates: rax += 7. */
long adds(const long *from, long x);
/* Faults at its third instruction, the second of two bytes, which the handler emulates: eax += 7. */
long third(const long *from, long x);
/* Divides by zero at its first instruction, which the handler emulates: eax = 7. */
long divides(long x, long by);

__asm__(".text\n"
        ".globl reads, adds, third, divides\n"
        ".type reads, @function\n.type adds, @function\n.type third, @function\n.type divides, @function\n"
        ".p2align 5\n"
        "reads:\n mov (%rdi), %rax\n add %rsi, %rax\n lea 1(%rax,%rax), %rax\n ret\n.size reads, .-reads\n"
        ".p2align 5\n"
        "adds:\n mov %rsi, %rax\n add (%rdi), %rax\n lea 1(%rax,%rax), %rax\n ret\n.size adds, .-adds\n"
        ".p2align 5\n"
        "third:\n mov %rsi, %rax\n test %edi, %edi\n add (%rdi), %eax\n lea 1(%rax,%rax), %rax\n ret\n.size third, .-third\n"
        ".p2align 5\n"
        "divides:\n idiv %esi\n add %edi, %eax\n lea 1(%rax,%rax), %eax\n ret\n.size divides, .-divides\n");

static atomic_long calls, wrong;
static atomic_int resting, holding, held;
static pthread_t spinners[64], holder;
static int spinning;

static void skip(int sig, ucontext_t *context) {
    greg_t *regs = context->uc_mcontext.gregs;
    /* The program counter is read long before it is written. */
    greg_t at = regs[REG_RIP];
    if (holding && pthread_equal(pthread_self(), holder)) {
        held = 1;
        while (holding) usleep(1000);
    }
    for (volatile int i = 0; i < 200; i++) {
    }
    unsigned char bytes[3];
    memcpy(bytes, (void *)at, sizeof bytes);
    int is_wide = bytes[0] == 0x48, is_add = bytes[is_wide] == 0x03;
    regs[REG_RAX] = sig == SIGSEGV && is_add ? regs[REG_RAX] + EMULATED : EMULATED;
    regs[REG_RIP] = at + (is_wide ? 3 : 2);
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)info;
    skip(sig, context);
}

static void call(long i) {
    long x = i % 1000;
    long right = 2 * (x + EMULATED) + 1;
    wrong += (reads(NULL, x) != right) + (adds(NULL, x) != right) + (third(NULL, x) != right) +
             (divides(x, 0) != right);
    calls++;
}

static void *spin(void *unused) {
    for (long i = 0; !resting; i++) call(i);
    return unused;
}

static void *hold(void *unused) {
    wrong += adds(NULL, 1) != 2 * (1 + EMULATED) + 1;
    return unused;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGFPE, &action, NULL);
    /* The kernel passes the context to every handler. */
    if (argc > 1 && !strcmp(argv[1], "plain")) action.sa_flags = 0;
    sigaction(SIGSEGV, &action, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "go %ld", &n) == 1) {
            for (long i = 0; i < n; i++) call(i);
        } else if (sscanf(line, "spin %ld", &n) == 1) {
            resting = 0;
            for (spinning = 0; spinning < n && spinning < 64; spinning++) {
                if (pthread_create(&spinners[spinning], NULL, spin, NULL)) abort();
            }
        } else if (!strcmp(line, "rest")) {
            resting = 1;
            while (spinning) pthread_join(spinners[--spinning], NULL);
        } else if (!strcmp(line, "hold")) {
            held = 0;
            holding = 1;
            if (pthread_create(&holder, NULL, hold, NULL)) abort();
            while (!held) sched_yield();
        } else if (!strcmp(line, "let")) {
            holding = 0;
            pthread_join(holder, NULL);
        } else {
            say("unknown command %s", line);
        }
        say("tally calls %ld", (long)calls);
        say("wrong %ld", (long)wrong);
        say("done");
    }
    return 0;
}
