/* A run whose every instruction is the same each time, so that what is executed from any moment on is known in advance.
 *
 * run N             `rounds` calls `outer` N times, which calls others, by itself and by pointers, recursively, and leaves some by longjmp
 *
 * Nothing between the first and the last instruction of `rounds` asks the kernel anything.
 */
#include "mutatee.h"
#include <setjmp.h>

static unsigned state;
static jmp_buf way_out;

static unsigned next(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

COUNTED long leaf(long x) { return x * 3 + 1; }
COUNTED long guarded(long x) { return leaf(x) + 2; }
COUNTED long inner(long depth, long x) {
    long sum = guarded(x);
    if (depth > 0) sum += inner(depth - 1, x + 1);
    if (next() % 3 == 0) sum += leaf(depth);
    return sum + 1;
}
COUNTED long leaver(long x) {
    leaf(x);
    if (next() % 4 == 0) _longjmp(way_out, 1);
    return x + 1;
}
COUNTED long middle(long x) {
    long (*volatile by_pointer)(long) = next() & 1 ? leaf : guarded;
    long sum = by_pointer(x);
    sum += leaver(x);
    return sum + leaf(x);
}
COUNTED long outer(long x) {
    volatile long sum = inner((long)(next() % 4), x);
    if (_setjmp(way_out) == 0) sum += middle(x);
    sum += leaf(x);
    return sum;
}
COUNTED long rounds(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += outer(i);
    return sum;
}

int main(void) {
    say_ready();
    for (char *line; (line = next_command());) {
        long n = 0;
        if (sscanf(line, "run %ld", &n) == 1) {
            state = 1;
            say("sum %ld", rounds(n));
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
