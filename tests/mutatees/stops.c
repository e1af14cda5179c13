/* Functions with instructions that fault on purpose, and handlers that continue behind them, as debugging aids do.
 *
 * go N   calls each function N times: `tally breaks N` and so on, `wrong X` wrong results
 */
#include "mutatee.h"
#include <ucontext.h>

long breaks(long), undefined(long);

/* Each adds 3 for an odd argument, and passes its instruction then. */
__asm__(".text\n"
        ".p2align 4\n.globl breaks\n.type breaks, @function\n"
        "breaks:\n mov %rdi, %rax\n test $1, %dil\n je 1f\n add $1, %rax\n int3\n add $2, %rax\n"
        "1: lea 5(%rax), %rax\n ret\n.size breaks, .-breaks\n"
        ".p2align 4\n.globl undefined\n.type undefined, @function\n"
        "undefined:\n mov %rdi, %rax\n test $1, %dil\n je 1f\n add $1, %rax\n ud2\n add $2, %rax\n"
        "1: lea 5(%rax), %rax\n ret\n.size undefined, .-undefined\n");

static long handled;

static void skip(int signal, siginfo_t *info, void *context) {
    ucontext_t *c = context;
    (void)info;
    handled++;
    /* After a breakpoint the program counter is behind it already. */
    if (signal == SIGILL) c->uc_mcontext.gregs[REG_RIP] += 2;
}

int main(void) {
    long tally = 0, wrong = 0;
    struct sigaction action = {.sa_sigaction = skip, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    sigaction(SIGILL, &action, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        int times;
        if (sscanf(line, "go %d", &times) == 1) {
            long before = handled, odd = 0;
            for (long i = 0; i < times; i++) {
                odd += i & 1;
                wrong += breaks(i) != i + 5 + 3 * (i & 1);
                wrong += undefined(i) != i + 5 + 3 * (i & 1);
                tally++;
            }
            wrong += handled - before != 2 * odd;
            say("tally breaks %ld", tally);
            say("tally undefined %ld", tally);
            say("wrong %ld", wrong);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
