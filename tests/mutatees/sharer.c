/* A process that is no thread and runs in the same memory, with the thread pointer of its parent (clone with CLONE_VM alone).
 *
 * go N              both call `work` N times at the same time
 * spin, rest        the child calls it all the time, until told to rest
 * quit              the child ends
 */
#include "mutatee.h"

#include <sched.h>
#include <sys/wait.h>

static struct side { _Alignas(64) volatile unsigned long calls, wrong; } sides[2];
static atomic_long budget;
static atomic_int leaves, rests;

COUNTED unsigned long work(unsigned long x) { return x * 3 + 1; }

static void call(struct side *side) {
    unsigned long x = side->calls++;
    if (work(x) != x * 3 + 1) side->wrong++;
}

static int run(void *unused) {
    (void)unused;
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    while (!atomic_load(&leaves)) {
        if (atomic_load(&budget) > 0) {
            call(&sides[1]);
            atomic_fetch_sub(&budget, 1);
        } else {
            atomic_store(&rests, 1);
            sched_yield();
        }
    }
    syscall(SYS_exit_group, 0);
    return 0;
}

int main(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    int child = clone(run, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL), status = 0;
    if (child < 0) abort();
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strncmp(line, "go ", 3)) {
            long count = atol(line + 3);
            atomic_store(&budget, count);
            for (long i = 0; i < count; i++) call(&sides[0]);
            while (atomic_load(&budget) > 0 && !waitpid(child, &status, WNOHANG)) sched_yield();
        } else if (!strcmp(line, "spin")) {
            atomic_store(&budget, 1L << 60);
        } else if (!strcmp(line, "rest")) {
            atomic_store(&budget, 0);
            atomic_store(&rests, 0);
            while (!atomic_load(&rests) && !waitpid(child, &status, WNOHANG)) sched_yield();
        } else if (!strcmp(line, "quit")) {
            atomic_store(&leaves, 1);
            waitpid(child, &status, 0);
        } else {
            say("unknown command %s", line);
        }
        say("tally work %lu", sides[0].calls + sides[1].calls);
        say("wrong %lu", sides[0].wrong + sides[1].wrong + (status != 0));
        say("done");
    }
    _exit(0);
}
