// Functions that make calls of every kind, and tell how many.
//
// make N            N rounds of `maker`: each calls directly, through a pointer, a virtual function, a library's function, and a field
// own N US          N calls of `own_outer`, which computes for US microseconds, lets `own_inner` compute, and computes again
// throw N           N rounds of `catcher`, whose callee throws
// crowd N           `crowded` with N rounds, whose calls lie side by side and are jumped past
// jump N            N rounds of `lander`, whose callee jumps back into it
// Answers are `tally WHAT N` and `ns WHAT TIME`.
#include "mutatee.h"
#include <csetjmp>
#include <ctime>
#include <x86intrin.h>

static long made, caught, landed, marked, wrong;
static unsigned long long own_ticks, inner_ticks;
static jmp_buf home;

struct Figure {
    virtual long area(long n) = 0;
    virtual long edge(long n) = 0;
};
struct Square : Figure {
    COUNTED long area(long n) override { return n * n; }
    COUNTED long edge(long n) override { return 4 * n; }
};
struct Circle : Figure {
    COUNTED long area(long n) override { return 3 * n * n; }
    COUNTED long edge(long n) override { return 6 * n; }
};

extern "C" {
COUNTED long direct(long n) { return n + 1; }
COUNTED long sum_of_eight(long a, long b, long c, long d, long e, long f, long g, long h) {
    return a + b + c + d + e + f + g * 100 + h * 1000;
}
COUNTED long twice(long n) { return 2 * n; }
COUNTED long thrice(long n) { return 3 * n; }

typedef long (*Step)(long);
struct Steps {
    Step first, second;
};
Step volatile steps[2] = {twice, thrice};
Steps holder = {twice, thrice};
Figure *figures[2];

COUNTED long maker(long n, Steps *all) {
    long sum = 0;
    for (long i = 0; i < n; i++) {
        sum += direct(i);
        sum += steps[i & 1](i);
        sum += figures[i & 1]->area(i);
        sum += figures[i & 1]->edge(i);
        sum += all->second(i);
        sum += getppid() > 0;
        made += 6;
    }
    return sum;
}

COUNTED void mark(long n) { marked += n; }

COUNTED long crowded(long n) {
    for (long i = 0; i < n; i++) {
        if (i & 1) mark(i);
        if (i % 3 == 0) mark(1);
        mark(twice(direct(i)));
    }
    return marked;
}

// Calls nothing but a function of a library.
COUNTED long libraries(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) {
        sum += getppid() > 0;
        made++;
    }
    return sum;
}

COUNTED long arguments(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) {
        sum += sum_of_eight(i, 2, 3, 4, 5, 6, 7, i);
        sum ^= 0x5555;
    }
    return sum;
}

COUNTED void own_inner(unsigned long long ticks) {
    unsigned long long begin = __rdtsc(), now;
    do now = __rdtsc();
    while (now - begin < ticks);
    inner_ticks += now - begin;
}

COUNTED void own_outer(unsigned long long ticks) {
    unsigned long long begin = __rdtsc(), now;
    do now = __rdtsc();
    while (now - begin < ticks);
    own_ticks += now - begin;
    own_inner(3 * ticks);
    begin = __rdtsc();
    do now = __rdtsc();
    while (now - begin < ticks);
    own_ticks += now - begin;
    __asm__ volatile("nopl 0(%rax,%rax,1)");
}

COUNTED long thrower(long n) { throw n; }
COUNTED long catcher(long n) {
    try {
        long got = thrower(n);
        wrong++;
        return got + n * 77;
    } catch (long got) {
        caught++;
        if (got != n) wrong++;
    }
    return direct(n) ^ 0x1234567;
}

COUNTED void jumper(int n) { longjmp(home, n); }
COUNTED long lander(long n) {
    if (!_setjmp(home)) {
        jumper(1);
        wrong++;
    }
    landed++;
    return direct(n) ^ 0x1234567;
}
}

static long long clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main() {
    Square square;
    Circle circle;
    figures[0] = &square;
    figures[1] = &circle;
    long long began_ns = clock_ns();
    unsigned long long began = __rdtsc();
    while (clock_ns() - began_ns < 50000000) {
    }
    say_ready();
    for (char *line; (line = next_command());) {
        long n, us;
        if (sscanf(line, "make %ld", &n) == 1) {
            say("sum %ld", maker(n, &holder));
        } else if (sscanf(line, "libraries %ld", &n) == 1) {
            libraries(n);
        } else if (sscanf(line, "arguments %ld", &n) == 1) {
            say("sum %ld", arguments(n));
        } else if (sscanf(line, "own %ld %ld", &n, &us) == 2) {
            unsigned long long ticks =
                (unsigned long long)((double)us * 1000 * (double)(__rdtsc() - began) / (double)(clock_ns() - began_ns));
            for (long i = 0; i < n; i++) own_outer(ticks);
        } else if (sscanf(line, "throw %ld", &n) == 1) {
            for (long i = 0; i < n; i++) catcher(i);
        } else if (sscanf(line, "crowd %ld", &n) == 1) {
            say("marked %ld", crowded(n));
        } else if (sscanf(line, "jump %ld", &n) == 1) {
            for (long i = 0; i < n; i++) lander(i);
        } else {
            say("unknown command %s", line);
        }
        double ns = (double)(clock_ns() - began_ns) / (double)(__rdtsc() - began);
        say("ns own %lld", (long long)((double)own_ticks * ns));
        say("ns inner %lld", (long long)((double)inner_ticks * ns));
        say("tally made %ld", made);
        say("tally caught %ld", caught);
        say("tally landed %ld", landed);
        if (wrong) say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
