/* A stack that signals interrupt at random moments, with an account of its own.
 *
 * run SEED STOPS    walks up and down through the functions `u_*` until a timer's signals have come STOPS times. Some calls end by longjmp. The
 *                   handler runs on a stack of its own. It calls `u_probe` if the account is certain, or `u_unclear` if the signal came
 *                   between an end of a function and the moment at which the account has noted it. At each eighth certain stop, further
 *                   calls are made from the handler, the innermost of which is that of `u_probe`.
 *
 * late SEED STOPS   the same, but stops count only from the signal SIGUSR1 on. First answers with `running`.
 *
 * Answers with `chain COUNT NAME…` for the functions that were active at the certain stops, from the outermost one on, and with the numbers of
 * certain and unclear stops.
 */
#include "mutatee.h"
#include <setjmp.h>
#include <sys/time.h>

enum { DEPTH = 24, CHAINS = 1 << 16, TURNS = 60 };

static const char *const names[] = {"u_walks", "u_left", "u_right", "u_catches", "u_throws", "u_nested"};
enum { WALKS, LEFT, RIGHT, CATCHES, THROWS, NESTED };

struct chain {
    long count;
    int length;
    unsigned char of[DEPTH];
};

static struct chain chains[CHAINS];
static volatile unsigned char active[DEPTH + 2];
static volatile int depth, unnoted, quiet;
static volatile long certain, unclear, sink;
static jmp_buf *catcher;
static unsigned long state;

static unsigned long next(unsigned long below) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (state >> 33) % below;
}

static void begins(int function) {
    active[depth] = (unsigned char)function;
    depth = depth + 1;
    unnoted = 0;
}

static void ends(void) {
    unnoted = 1;
    depth = depth - 1;
}

static void turns(void) {
    for (int i = 0; i < TURNS; i++) sink = sink + i;
}

/* Calls a function, and notes that it has ended. */
#define CALL(function, n) (unnoted = 1, function(n), unnoted = 0)

COUNTED void u_probe(void) { sink++; }
COUNTED void u_unclear(void) { sink++; }

COUNTED void u_nested(int n) {
    begins(NESTED);
    if (n > 0) {
        CALL(u_nested, n - 1);
    } else {
        u_probe();
    }
    ends();
}

COUNTED void u_walks(int n);

COUNTED void u_throws(int n) {
    begins(THROWS);
    turns();
    if (catcher && n & 1) {
        unnoted = 1;
        longjmp(*catcher, 1);
    }
    ends();
}

COUNTED void u_left(int n) {
    begins(LEFT);
    turns();
    if (n > 0) CALL(u_walks, n - 1);
    turns();
    ends();
}

COUNTED void u_right(int n) {
    begins(RIGHT);
    turns();
    if (n > 1) CALL(u_left, n - 2);
    if (n > 0) CALL(u_throws, (int)next(4));
    ends();
}

COUNTED void u_catches(int n) {
    begins(CATCHES);
    jmp_buf here, *volatile outer = catcher;
    volatile int own = depth, left = n;
    if (setjmp(here) == 0) {
        catcher = &here;
        if (left > 0) CALL(u_walks, left - 1);
    } else {
        depth = own;
        unnoted = 0;
    }
    catcher = outer;
    turns();
    ends();
}

COUNTED void u_walks(int n) {
    begins(WALKS);
    turns();
    for (unsigned long i = 1 + next(2); i > 0; i--) {
        switch (next(4)) {
        case 0: CALL(u_left, n); break;
        case 1: CALL(u_right, n); break;
        case 2: CALL(u_catches, n); break;
        default: turns();
        }
    }
    ends();
}

static void note(void) {
    unsigned long hash = 17;
    for (int i = 0; i < depth; i++) hash = hash * 31 + active[i] + 1;
    for (unsigned long at = hash % CHAINS;; at = (at + 1) % CHAINS) {
        struct chain *chain = &chains[at];
        int same = chain->count > 0 && chain->length == depth;
        for (int i = 0; same && i < depth; i++) same = chain->of[i] == active[i];
        if (chain->count > 0 && !same) continue;
        chain->length = depth;
        for (int i = 0; i < depth; i++) chain->of[i] = active[i];
        chain->count++;
        return;
    }
}

static void stops(int signal) {
    (void)signal;
    if (quiet) return;
    if (unnoted) {
        unclear++;
        u_unclear();
        return;
    }
    certain++;
    if (certain % 8) {
        note();
        u_probe();
        return;
    }
    /* What `u_nested` notes stands above the functions that were interrupted. */
    int own = depth;
    active[own] = NESTED;
    active[own + 1] = NESTED;
    depth = own + 2;
    note();
    depth = own;
    CALL(u_nested, 1);
}

static void begins_to_count(int signal) {
    (void)signal;
    quiet = 0;
}

static void run(unsigned long seed, long wanted) {
    state = seed;
    struct itimerval often = {{0, 230}, {0, 230}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (certain + unclear < wanted) {
        CALL(u_walks, 6);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    for (int i = 0; i < CHAINS; i++) {
        char line[1024];
        int used = 0;
        if (!chains[i].count) continue;
        for (int at = 0; at < chains[i].length; at++) {
            used += snprintf(line + used, sizeof line - (size_t)used, " %s", names[chains[i].of[at]]);
        }
        line[used] = 0;
        say("chain %ld%s", chains[i].count, line);
    }
    say("stops %ld %ld", certain, unclear);
}

int main(void) {
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = stops, .sa_flags = SA_ONSTACK | SA_RESTART};
    if (sigaltstack(&other, NULL) || sigaction(SIGALRM, &action, NULL)) return 1;
    signal(SIGUSR1, begins_to_count);
    say("ready");
    for (char *command; (command = next_command());) {
        unsigned long seed;
        long wanted;
        if (sscanf(command, "run %lu %ld", &seed, &wanted) == 2) run(seed, wanted);
        if (sscanf(command, "late %lu %ld", &seed, &wanted) == 2) {
            quiet = 1;
            say("running");
            run(seed, wanted);
        }
        say("done");
    }
    return 0;
}
