/* Calls on a stack that no thread executes, and jumps to functions that only a register tells.
 *
 * suspend DEPTH   a coroutine calls `f_deep` DEPTH times inside of itself, and gives control back from the innermost call
 * resume          the coroutine goes on to its end
 * jump NUMBER     `f_from` calls `f_jumper` so often, which ends in a jump to `f_there`
 * Each answer is `done`. */
#include "mutatee.h"

#include <ucontext.h>

static ucontext_t outside, inside;
static char stack[1 << 20];
static long depth;
typedef long function(long);

COUNTED long f_deep(long left) {
    if (left > 1)
        asm volatile("" : : "r"(f_deep(left - 1)));
    else
        swapcontext(&inside, &outside);
    asm volatile("nop");
    return left;
}

static void body(void) { f_deep(depth); }

COUNTED long f_there(long x) {
    asm volatile("nop");
    return x + 1;
}

static function *volatile there = f_there;

COUNTED long f_before(long x) {
    asm volatile("nop");
    return x;
}

COUNTED long f_jumper(long x) {
    function *to = there;
    x += f_before(x);
    return to(x);
}

COUNTED long f_from(long x) {
    x += f_jumper(x);
    asm volatile("nop");
    return x;
}

int main(void) {
    say_ready();
    for (char *command; (command = next_command());) {
        if (sscanf(command, "suspend %ld", &depth) == 1) {
            getcontext(&inside);
            inside.uc_stack.ss_sp = stack;
            inside.uc_stack.ss_size = sizeof stack;
            inside.uc_link = &outside;
            makecontext(&inside, body, 0);
            swapcontext(&outside, &inside);
        } else if (!strcmp(command, "resume")) {
            swapcontext(&outside, &inside);
        } else {
            for (long n = atol(command + strlen("jump ")); n > 0; n--) f_from(n);
        }
        say("done");
    }
}
