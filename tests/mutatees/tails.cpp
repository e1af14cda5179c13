/* Calls that end by a jump to another function: `return slow(us);` makes the compiler leave the function before the call has ended.
 *
 * run N US          N calls of each function but the last four; `slow` naps for US microseconds
 * pointer N US      N calls of `pointed`, which jumps through a pointer to `slow`, and of `picked`, which jumps through one of a table
 * repoint           the pointer leads to `middle` from now on
 * turns N           N calls of `even`, which takes turns with `odd`, 6 each
 * throw N US        N calls of `risky`, which jumps to `thrower`, which naps and throws every second time; each caught, and only those accounted for
 *                   that return
 * catch N US        N calls of `catcher`, whose last act is to catch what every second call throws, and of `passes`, which jumps to it; the handler
 *                   naps for US microseconds
 * label N           N calls of `label`, which returns a string
 * Each answer has `ns FUNCTION TIME`, from right before each call to right behind it, `tally FUNCTION CALLS`, and `sum FUNCTION RESULTS`. */
#include "mutatee.h"
#include <string>
#include <time.h>

static long long now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void nap(long us) {
    timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, nullptr);
}

struct Account {
    const char *name;
    long long ns, calls, sum;
};
enum { DIRECT, CHAIN, SOMETIMES, BRANCH, MEMBER, LIBRARY, SLOW, POINTED, PICKED, EVEN, RISKY, CATCHER, PASSES, LABEL, ACCOUNTS };
static Account accounts[ACCOUNTS] = {{"direct", 0, 0, 0},  {"chain", 0, 0, 0},     {"sometimes", 0, 0, 0}, {"branch", 0, 0, 0},
                                     {"member", 0, 0, 0}, {"library", 0, 0, 0}, {"slow", 0, 0, 0},      {"pointed", 0, 0, 0},
                                     {"picked", 0, 0, 0}, {"even", 0, 0, 0},   {"risky", 0, 0, 0},
                                     {"catcher", 0, 0, 0}, {"passes", 0, 0, 0}, {"label", 0, 0, 0}};

extern "C" {
COUNTED long slow(long us) {
    nap(us);
    return us + 1;
}

COUNTED long middle(long us) {
    asm volatile("" ::: "memory");
    return slow(us);
}

COUNTED long direct(long us) { return slow(us); }

COUNTED long chain(long us) { return middle(us); }

/* One call in three returns, one jumps, one goes by two jumps. */
COUNTED long sometimes(long us, long n) {
    if (n % 3 == 0) return n;
    if (n % 3 == 1) return slow(us);
    return middle(us + 1);
}

/* The jump may be a conditional one. */
COUNTED long branch(long us, long n) {
    if (n & 1) return slow(us);
    return 7;
}

COUNTED int library(useconds_t us) { return usleep(us); }

static long (*volatile pointer)(long) = slow;
COUNTED long pointed(long us) { return pointer(us); }

static long (*volatile table[2])(long) = {slow, middle};
COUNTED long picked(long us, long n) { return table[n & 1](us); }

long odd(long n);
COUNTED long even(long n) {
    if (n == 0) return 1;
    return odd(n - 1);
}
COUNTED long odd(long n) {
    if (n == 0) return 0;
    return even(n - 1);
}

static long thrown;
COUNTED long thrower(long us) {
    nap(us);
    if (thrown++ & 1) throw us;
    return 1;
}
COUNTED long risky(long us) { return thrower(us); }
}

static long tries;
COUNTED void may_throw() {
    if (tries++ & 1) throw 1;
}
COUNTED void catcher(long us) {
    try {
        may_throw();
    } catch (int) {
        nap(us);
    }
}

COUNTED void passes(long us) { catcher(us); }

/* The name of a function whose result is such a string has a tag. */
COUNTED std::string label(long n) { return std::string(n % 64, 'x'); }

struct Shape {
    long us;
    __attribute__((noipa, used)) long work(long n) { return slow(us + n); }
};

template <class Call> static void timed(int which, Call call) {
    long long begin = now();
    long result = call();
    accounts[which].ns += now() - begin;
    accounts[which].calls++;
    accounts[which].sum += result;
}

int main() {
    say_ready();
    for (char *line; (line = next_command());) {
        long n, us;
        if (sscanf(line, "run %ld %ld", &n, &us) == 2) {
            Shape shape = {us};
            for (long i = 0; i < n; i++) {
                timed(DIRECT, [&] { return direct(us); });
                timed(CHAIN, [&] { return chain(us); });
                timed(SOMETIMES, [&] { return sometimes(us, i); });
                timed(BRANCH, [&] { return branch(us, i); });
                timed(MEMBER, [&] { return shape.work(0); });
                timed(LIBRARY, [&] { return library(us); });
                timed(SLOW, [&] { return slow(us); });
            }
        } else if (sscanf(line, "pointer %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) {
                timed(POINTED, [&] { return pointed(us); });
                timed(PICKED, [&] { return picked(us, i); });
            }
        } else if (!strcmp(line, "repoint")) {
            pointer = middle;
        } else if (sscanf(line, "turns %ld", &n) == 1) {
            for (long i = 0; i < n; i++) timed(EVEN, [&] { return even(6); });
        } else if (sscanf(line, "throw %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) {
                bool returned = true;
                long long begin = now();
                try {
                    risky(us);
                } catch (long) {
                    returned = false;
                }
                if (!returned) continue;
                accounts[RISKY].ns += now() - begin;
                accounts[RISKY].calls++;
            }
        } else if (sscanf(line, "catch %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) {
                timed(CATCHER, [&] {
                    catcher(us);
                    return 0L;
                });
                timed(PASSES, [&] {
                    passes(us);
                    return 0L;
                });
            }
        } else if (sscanf(line, "label %ld", &n) == 1) {
            for (long i = 0; i < n; i++) timed(LABEL, [&] { return (long)label(i).size(); });
        }
        for (const Account &a : accounts) {
            say("ns %s %lld", a.name, a.ns);
            say("tally %s %lld", a.name, a.calls);
            say("sum %s %lld", a.name, a.sum);
        }
        say("done");
    }
}
