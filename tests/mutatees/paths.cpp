/* Functions that take ways at random, and whose program keeps its own account of them: each branch adds a digit to the way, and at each place where a
 * path ends, `told` counts it.
 *
 * run SEED ROUNDS THREADS   each thread makes so many rounds of calls. Some calls end by an exception or by a longjmp. With `+` before SEED, the calls
 *                           are made inside of four others, which began when the program did; the answer then comes after these have ended
 * ticks SEED ROUNDS         the same, with one thread, while a timer interrupts it, whose handler calls the same functions
 * places SEED ROUNDS THREADS   as run, but each thread makes its calls once in `c_first` and once in `c_second`. The answer has also a line for each way
 *                           in each of them: `at CALLER FUNCTION BEGINS ENDS COUNT`; CALLER is `-` for ways elsewhere
 * The answer has a line for each way: `way FUNCTION BEGINS ENDS COUNT`; for each function `left FUNCTION COUNT`, the number of paths that were left in the
 * middle; and `late COUNT`, the number of paths that ended and had begun before the command. */
extern "C" {
#include "mutatee.h"
}
#include <atomic>
#include <csetjmp>
#include <sys/time.h>
#include <vector>

using std::atomic_long;

enum Function { BRANCHES, LOOPS, CLIMBS, JUMPS, PASSES, TAKES, INSIDE, FUNCTIONS };
enum Kind { WHOLE, FIRST, AGAIN, LAST, CAUGHT, SAVES, RETURNS, KINDS };

static const char *const names[FUNCTIONS] = {"p_branches", "p_loops", "p_climbs", "p_jumps", "p_passes", "p_takes", "p_inside"};
/* Beginnings and ends of paths. */
static const char *const kinds[KINDS] = {"entry exit", "entry loop",  "loop loop", "loop exit", "elsewhere exit", "entry call", "return exit"};

/* Places of calls. */
enum Place { ELSEWHERE, IN_FIRST, IN_SECOND, PLACES };

static const char *const places[PLACES] = {"-", "c_first", "c_second"};

static atomic_long counts[PLACES][FUNCTIONS][KINDS][1 << 12];
static thread_local Place place = ELSEWHERE;
static atomic_long left_in[FUNCTIONS], late;

/* Whether the next path that ends in `p_inside` has begun before the command. */
static thread_local int begun_before;

extern "C" {
COUNTED void told(Function f, Kind kind, unsigned way) { counts[place][f][kind][way & 4095]++; }

COUNTED void told_left(Function f, long number) { left_in[f] += number; }

COUNTED unsigned random_of(unsigned long *state, unsigned below) {
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(*state >> 33) % below;
}

/* A branch that the compiler cannot replace by a selection. */
#define STEP(condition)               \
    do {                              \
        if (condition) {              \
            asm volatile("nop");      \
            way = way * 4 + 1;        \
        } else {                      \
            asm volatile("xchg %ax,%ax"); \
            way = way * 4 + 2;        \
        }                             \
    } while (0)

COUNTED long p_branches(unsigned long *state) {
    unsigned way = 0;
    STEP(random_of(state, 2));
    STEP(random_of(state, 3));
    if (random_of(state, 4) == 0) {
        told(BRANCHES, WHOLE, way * 4 + 1);
        return 1;
    }
    STEP(random_of(state, 5));
    told(BRANCHES, WHOLE, way * 4 + 2);
    return way;
}

COUNTED long p_loops(unsigned long *state) {
    unsigned way = 0, rounds = 0;
    Kind last = WHOLE;
    STEP(random_of(state, 3));
    for (;;) {
        STEP(random_of(state, 4));
        if (random_of(state, 3) == 0) break;
        STEP(random_of(state, 5));
        told(LOOPS, rounds ? AGAIN : FIRST, way);
        rounds++;
        way = 0;
        last = LAST;
    }
    STEP(random_of(state, 6));
    told(LOOPS, last, way);
    return way;
}

/* Number of open calls of p_climbs. */
static thread_local long climbers;

COUNTED long p_climbs(unsigned long *state, int height) {
    unsigned way = 0;
    long sum = 0;
    const long own = ++climbers;
    STEP(random_of(state, 2));
    if (height == 0) {
        if (random_of(state, 3) == 0) throw height;
        climbers = own - 1;
        told(CLIMBS, WHOLE, way * 4 + 3);
        return 0;
    }
    if (random_of(state, 2)) {
        sum = p_climbs(state, height - 1);
        way = way * 4 + 1;
    } else {
        way = way * 4 + 2;
        try {
            sum = p_climbs(state, height - 1);
        } catch (...) {
            /* The path to here, and the calls that the exception has left. */
            told_left(CLIMBS, climbers - own + 1);
            climbers = own;
            way = 0;
            STEP(random_of(state, 4));
            climbers = own - 1;
            told(CLIMBS, CAUGHT, way);
            return way;
        }
    }
    STEP(random_of(state, 3));
    climbers = own - 1;
    told(CLIMBS, WHOLE, way);
    return sum;
}

static thread_local jmp_buf *back;

COUNTED void jumps_back(unsigned long *state) {
    if (random_of(state, 3) == 0) longjmp(*back, 1);
}

COUNTED long p_jumps(unsigned long *state) {
    jmp_buf here;
    unsigned way = 0;
    STEP(random_of(state, 2));
    told(JUMPS, SAVES, way);
    back = &here;
    if (setjmp(here)) {
        told_left(JUMPS, 1);
        way = 1;
    } else {
        jumps_back(state);
        way = 2;
    }
    STEP(random_of(state, 3));
    told(JUMPS, RETURNS, way);
    return 2;
}

__attribute__((noipa, used, optimize("optimize-sibling-calls"))) long p_takes(unsigned long *state) {
    unsigned way = 0;
    STEP(random_of(state, 4));
    told(TAKES, WHOLE, way);
    return way;
}

__attribute__((noipa, used, optimize("optimize-sibling-calls"))) long p_passes(unsigned long *state) {
    unsigned way = 0;
    STEP(random_of(state, 3));
    told(PASSES, WHOLE, way);
    return p_takes(state);
}

static char *command;
COUNTED void obey_inside();

/* Calls itself, waits at the deepest call, and then goes on to a loop. */
COUNTED long p_inside(unsigned long *state, int depth) {
    unsigned way = 0, rounds = 0;
    Kind last = WHOLE;
    bool deepest = depth == 0;
    if (deepest)
        obey_inside();
    else
        p_inside(state, depth - 1);
    begun_before = 1;
    for (;;) {
        STEP(random_of(state, 2));
        if (rounds == 3) break;
        if (begun_before) {
            late++;
            begun_before = 0;
        } else {
            told(INSIDE, rounds ? AGAIN : FIRST, way);
        }
        rounds++;
        way = 0;
        last = LAST;
    }
    told(INSIDE, last, way);
    return way;
}
}

static void round_of(unsigned long *state) {
    p_branches(state);
    p_loops(state);
    climbers = 0;
    try {
        p_climbs(state, 4);
    } catch (...) {
        told_left(CLIMBS, climbers);
    }
    p_jumps(state);
    p_passes(state);
}

static void rounds_of(unsigned long seed, long rounds) {
    unsigned long state = seed;
    for (long n = 0; n < rounds; n++) round_of(&state);
}

extern "C" {
COUNTED void c_first(unsigned long seed, long rounds) {
    place = IN_FIRST;
    rounds_of(seed, rounds);
    place = ELSEWHERE;
}

COUNTED void c_second(unsigned long seed, long rounds) {
    place = IN_SECOND;
    rounds_of(seed, rounds);
    place = ELSEWHERE;
}
}

static void rounds_in_places(unsigned long seed, long rounds) {
    c_first(seed, rounds);
    c_second(seed + 500, rounds);
}

struct Job {
    unsigned long seed;
    long rounds;
    bool in_places;
};

static void *thread(void *of) {
    Job *job = (Job *)of;
    (job->in_places ? rounds_in_places : rounds_of)(job->seed, job->rounds);
    return nullptr;
}

static void run(unsigned long seed, long rounds, int threads, bool in_places) {
    std::vector<pthread_t> ids((size_t)threads);
    std::vector<Job> jobs((size_t)threads);
    for (int n = 0; n < threads; n++) {
        jobs[n] = Job{seed + (unsigned long)n, rounds, in_places};
        pthread_create(&ids[n], nullptr, thread, &jobs[n]);
    }
    (in_places ? rounds_in_places : rounds_of)(seed + 1000, rounds);
    for (pthread_t id : ids) pthread_join(id, nullptr);
}

static unsigned long ticking = 77;

static void tick(int) {
    p_branches(&ticking);
    p_loops(&ticking);
}

static void with_ticks(unsigned long seed, long rounds) {
    struct sigaction action = {};
    action.sa_handler = tick;
    sigaction(SIGALRM, &action, nullptr);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {};
    setitimer(ITIMER_REAL, &often, nullptr);
    rounds_of(seed, rounds);
    setitimer(ITIMER_REAL, &never, nullptr);
}

static void report_places() {
    for (int at = 0; at < PLACES; at++)
        for (int f = 0; f < FUNCTIONS; f++)
            for (int kind = 0; kind < KINDS; kind++)
                for (atomic_long &count : counts[at][f][kind])
                    if (long n = count) say("at %s %s %s %ld", places[at], names[f], kinds[kind], n);
}

static void report() {
    for (int f = 0; f < FUNCTIONS; f++) {
        for (int kind = 0; kind < KINDS; kind++)
            for (int way = 0; way < 1 << 12; way++) {
                long n = 0;
                for (int at = 0; at < PLACES; at++) n += counts[at][f][kind][way].exchange(0);
                if (n) say("way %s %s %ld", names[f], kinds[kind], n);
            }
        say("left %s %ld", names[f], left_in[f].exchange(0));
    }
    say("late %ld", late.exchange(0));
}

/* Obeys commands; `inside` tells whether in calls that have begun with the program. Returns at a command for the other place. */
static void obey(bool inside) {
    do {
        unsigned long seed;
        long rounds;
        int threads;
        if (!command || (command[0] == '+') != inside) return;
        if (sscanf(command, inside ? "+run %lu %ld %d" : "run %lu %ld %d", &seed, &rounds, &threads) == 3) {
            run(seed, rounds, threads, false);
            if (inside) return;
            report();
        } else if (!inside && sscanf(command, "places %lu %ld %d", &seed, &rounds, &threads) == 3) {
            run(seed, rounds, threads, true);
            report_places();
            report();
        } else if (sscanf(command, "ticks %lu %ld", &seed, &rounds) == 2) {
            with_ticks(seed, rounds);
            report();
        }
        say("done");
    } while ((command = next_command()));
}

void obey_inside() {
    if ((command = next_command())) obey(true);
}

int main() {
    say_ready();
    unsigned long state = 5;
    p_inside(&state, 3);
    while (command) {
        obey(false);
        if (command && command[0] == '+') {
            report();
            say("done");
            command = next_command();
        }
    }
}
