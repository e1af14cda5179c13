/* Functions whose calls the program times by itself, by the chain of calls that has led to them.
 *
 * run SEED ROUNDS THREADS   each thread makes so many rounds of calls. Some calls end by an exception, by a longjmp, or by a jump to another function.
 *                           With `+` before SEED, the calls are made inside of `t_outer`, which began when the program did; the answer then comes
 *                           after its end
 * The answer has a line for each chain: `chain NAMES CALLS TIMED LEAST MOST LONGEST BOUND`. NAMES are the functions from the outermost call on, with
 * `/` between them; a function is there once, and what a recursive call calls is below its first call. TIMED is the number of calls that have
 * returned and not by a jump that nobody can follow. LEAST is the sum of their times in nanoseconds from their first statement to their last one, and
 * MOST the sum from the outside. LONGEST and BOUND are the largest ones of both. */
extern "C" {
#include "mutatee.h"
}
#include <algorithm>
#include <csetjmp>
#include <ctime>
#include <map>
#include <string>
#include <vector>

enum Function { OUTER, FIRST, SECOND, MIDDLE, WORKS, DEEP, THROWS, LEAPS, PASSES, TAKES, BLIND };

static const char *const names[] = {"t_outer",  "t_first", "t_second", "t_middle", "t_works", "t_deep",
                                    "t_throws", "t_leaps", "t_passes", "t_takes",  "t_blind"};

struct Tally {
    long calls, timed, least, most, longest, bound;
    void add(long inside, long outside) {
        timed++;
        least += inside;
        most += outside;
        longest = std::max(longest, inside);
        bound = std::max(bound, outside);
    }
};

typedef std::vector<int> Chain;

static thread_local Chain chain;
static thread_local std::map<Chain, Tally> tallies;
/* Time inside of the last call that has returned. */
static thread_local long inside_ns;
static thread_local jmp_buf leap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static std::map<Chain, Tally> all;

static long now() {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}

/* Times the function in which it is. */
struct Inside {
    long began = now();
    ~Inside() { inside_ns = now() - began; }
    void spin(long ns) const {
        while (now() - began < ns) {}
    }
};

static Chain below(const Chain &of, Function function) {
    Chain result = of;
    auto found = std::find(result.begin(), result.end(), function);
    if (found != result.end()) result.erase(found + 1, result.end());
    else result.push_back(function);
    return result;
}

/* Makes a call of a function. `made` returns whether the call has returned. */
template <class Made> static void call(Function function, Made made) {
    Chain around = chain;
    chain = below(around, function);
    Tally &tally = tallies[chain];
    tally.calls++;
    long began = now();
    bool returned = made();
    long took = now() - began;
    if (returned && function != BLIND) tally.add(inside_ns, took);
    if (function == PASSES || function == BLIND) {
        /* After a jump that nobody can follow, the call of the other function is one of the caller. */
        Tally &taken = tallies[below(function == BLIND ? around : chain, TAKES)];
        taken.calls++;
        taken.add(inside_ns, took);
    }
    chain = around;
}

extern "C" {
COUNTED long t_works(long ns) {
    Inside inside;
    inside.spin(ns);
    return ns;
}

COUNTED long t_takes(long ns) {
    Inside inside;
    inside.spin(ns);
    return ns + 1;
}

COUNTED long t_passes(long ns) { return t_takes(ns + 1000); }

COUNTED long t_blind(long (*function)(long), long ns) { return function(ns); }

COUNTED long t_throws(long ns) {
    Inside inside;
    inside.spin(ns);
    if (ns & 1) throw 1;
    return ns;
}

COUNTED long t_leaps(long ns) {
    long began = now();
    while (now() - began < ns) {}
    if (ns & 1) longjmp(leap, 1);
    inside_ns = now() - began;
    return ns;
}

COUNTED long t_middle(long ns) {
    Inside inside;
    call(WORKS, [=] { return t_works(ns) > 0; });
    return ns;
}

COUNTED long t_deep(long depth) {
    Inside inside;
    if (depth > 0) call(DEEP, [=] { return t_deep(depth - 1) >= 0; });
    else call(WORKS, [=] { return t_works(500) > 0; });
    return depth;
}
}

static __attribute__((noinline)) bool throws(long ns) {
    try {
        t_throws(ns);
        return true;
    } catch (int) {
        return false;
    }
}

static __attribute__((noinline)) bool leaps(long ns) {
    if (setjmp(leap)) return false;
    t_leaps(ns);
    return true;
}

extern "C" {
COUNTED long t_first(unsigned random) {
    Inside inside;
    long ns = 1000 + random % 5000;
    call(WORKS, [=] { return t_works(ns) > 0; });
    call(MIDDLE, [=] { return t_middle(ns) > 0; });
    call(DEEP, [=] { return t_deep(random % 4) >= 0; });
    call(PASSES, [=] { return t_passes(ns) > 0; });
    call(THROWS, [=] { return throws(ns); });
    call(LEAPS, [=] { return leaps(ns); });
    return ns;
}

COUNTED long t_second(unsigned random) {
    Inside inside;
    long ns = 8000 + random % 30000;
    call(WORKS, [=] { return t_works(ns) > 0; });
    call(WORKS, [=] { return t_works(ns / 2) > 0; });
    call(MIDDLE, [=] { return t_middle(ns) > 0; });
    call(BLIND, [=] { return t_blind(t_takes, ns) > 0; });
    return ns;
}
}

static void rounds(unsigned long seed, long count) {
    unsigned long state = seed;
    for (long n = 0; n < count; n++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        unsigned random = (unsigned)(state >> 33);
        call(FIRST, [=] { return t_first(random) > 0; });
        call(SECOND, [=] { return t_second(random) > 0; });
    }
    pthread_mutex_lock(&lock);
    for (auto &[of, tally] : tallies) {
        Tally &sum = all[of];
        sum.calls += tally.calls;
        sum.timed += tally.timed;
        sum.least += tally.least;
        sum.most += tally.most;
        sum.longest = std::max(sum.longest, tally.longest);
        sum.bound = std::max(sum.bound, tally.bound);
    }
    tallies.clear();
    pthread_mutex_unlock(&lock);
}

struct Job {
    unsigned long seed;
    long count;
};

static void *thread(void *of) {
    Job *job = (Job *)of;
    rounds(job->seed, job->count);
    return nullptr;
}

static void run(unsigned long seed, long count, int threads) {
    std::vector<pthread_t> ids((size_t)threads);
    std::vector<Job> jobs((size_t)threads);
    for (int n = 0; n < threads; n++) {
        jobs[n] = Job{seed + (unsigned long)n, count};
        pthread_create(&ids[n], nullptr, thread, &jobs[n]);
    }
    rounds(seed + 1000, count);
    for (pthread_t id : ids) pthread_join(id, nullptr);
}

static void report() {
    for (auto &[of, tally] : all) {
        std::string text;
        for (int function : of) text += (text.empty() ? "" : "/") + std::string(names[function]);
        say("chain %s %ld %ld %ld %ld %ld %ld", text.c_str(), tally.calls, tally.timed, tally.least, tally.most, tally.longest,
            tally.bound);
    }
    all.clear();
    say("done");
}

static char *command;

/* Obeys commands with `+` or those without it, up to the first one of the other kind, which stays. */
static void obey(bool inside) {
    for (; command; command = next_command()) {
        unsigned long seed;
        long count;
        int threads;
        if ((command[0] == '+') != inside) return;
        if (sscanf(command, inside ? "+run %lu %ld %d" : "run %lu %ld %d", &seed, &count, &threads) != 3) continue;
        run(seed, count, threads);
        if (inside) {
            command = nullptr;
            return;
        }
        report();
    }
}

extern "C" COUNTED void t_outer(void) {
    chain = {OUTER};
    command = next_command();
    obey(true);
    chain.clear();
}

int main() {
    say_ready();
    t_outer();
    if (!all.empty()) report();
    if (!command) command = next_command();
    obey(false);
    return 0;
}
