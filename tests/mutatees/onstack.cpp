// Threads whose stacks are always deep, halted at random places of them, with a shadow of every stack.
//
// onstack COUNT [DEPTH]   with a depth all threads are halted at the bottom of that many calls of `deep`, and one more
// halt              every thread stays where it is: some spin, some sleep, some of either in a signal handler
// run NAPS          lets them run until they have called `nap` NAPS more times, then halts them
// Each answer has these values of all threads together: `tally nap`; `inside`, the calls of nap while f was on the thread's stack;
// `direct`, the calls of nap by `plain` itself; `plain`, its calls in progress; `ns`, the time since the start with f on the stack;
// `now`, the time by the clock of `ns`; `frames`, the calls of f in progress; `threads`, the threads with such calls.
#include "mutatee.h"
#include <atomic>
#include <ctime>
#include <stdexcept>

struct Thread {
    pthread_t id;
    unsigned seed;
    bool spins, handles;
    volatile long frames, naps, inside, plain, direct, ns, begin;
    char pad[64];
};

static Thread *threads;
static int count, depth;
static std::atomic<int> halt, halted;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static thread_local Thread *self;

static long now() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static unsigned pick(Thread *t, unsigned n) {
    t->seed = t->seed * 1664525 + 1013904223;
    return (t->seed >> 8) % n;
}

// A place at which a thread can be halted.
COUNTED static void place(Thread *t) {
    if (!halt.load()) return;
    halted++;
    if (t->spins) {
        while (halt.load()) __builtin_ia32_pause();
    } else {
        pthread_mutex_lock(&gate);
        while (halt.load()) pthread_cond_wait(&opened, &gate);
        pthread_mutex_unlock(&gate);
    }
    halted--;
}

struct Shadow {
    Thread *t;
    explicit Shadow(Thread *t) : t(t) {
        if (t->frames == 0) t->begin = now();
        t->frames = t->frames + 1;
    }
    ~Shadow() {
        t->frames = t->frames - 1;
        if (t->frames == 0) t->ns = t->ns + now() - t->begin;
    }
};

extern "C" {
COUNTED void walk(Thread *t, int depth);

COUNTED void nap(Thread *t) {
    t->naps = t->naps + 1;
    if (t->frames) t->inside = t->inside + 1;
    // Some work, so that the readings of clocks take little time in comparison.
    for (volatile int i = 0; i < 100; i++) continue;
}

COUNTED __attribute__((cold)) void rare(Thread *t, int depth) { walk(t, depth - 1); }

// A function that saves registers, has a buffer, and has a part that the compiler moves away.
COUNTED void f(Thread *t, int depth) {
    char buffer[96];
    memset(buffer, depth, sizeof buffer);
    __asm__ volatile("" : : "r"(buffer) : "memory");
    Shadow shadow(t);
    if (__builtin_expect(depth % 5 == 0, 0)) {
        rare(t, depth);
        place(t);
    }
    walk(t, depth - 1);
    place(t);
    nap(t);
    if (buffer[3] != (char)depth) abort();
}

// Makes room between the calls of `plain`.
#define ROOM __asm__ volatile("nopw 0x200(%rax,%rax,1)\n\tnopw 0x200(%rax,%rax,1)")

static void (*volatile by_pointer)(Thread *, int) = walk;

// The instruction of the call by a pointer is too short for a springboard of its own.
COUNTED __attribute__((optimize("no-crossjumping"))) void plain(Thread *t, int depth) {
    t->plain = t->plain + 1;
    ROOM;
    if (depth & 1) {
        by_pointer(t, depth - 1);
        ROOM;
    } else {
        walk(t, depth - 1);
        ROOM;
    }
    t->direct = t->direct + 1;
    ROOM;
    nap(t);
    ROOM;
    t->plain = t->plain - 1;
}

COUNTED void between(Thread *t, int depth) {
    try {
        place(t);
        walk(t, depth - 1);
        if (depth % 7 == 0) throw depth;
    } catch (int) {
        nap(t);
    }
    place(t);
}

COUNTED void walk(Thread *t, int depth) {
    place(t);
    nap(t);
    if (depth <= 0) return;
    switch (pick(t, 5)) {
    case 0: f(t, depth); break;
    case 1: between(t, depth); break;
    case 3: plain(t, depth); break;
    case 2:
        if (t->handles) {
            raise(SIGUSR1);
            break;
        }
        // fall through
    default:
        f(t, depth - 1);
        place(t);
    }
    place(t);
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) long deep(Thread *t, int n) {
    if (n > 0) return deep(t, n - 1) + 1;
    place(t);
    return 1;
}

static void handler(int) {
    place(self);
    nap(self);
    walk(self, 3);
}
}

static void *work(void *argument) {
    Thread *t = self = static_cast<Thread *>(argument);
    for (;;) {
        if (depth) deep(t, depth);
        else walk(t, 20 + (int)pick(t, 20));
        place(t);
    }
}

static void answer() {
    while (halted.load() < count) usleep(100);
    long naps = 0, inside = 0, plain = 0, direct = 0, ns = 0, frames = 0, with = 0, at = now();
    for (int i = 0; i < count; i++) {
        Thread *t = &threads[i];
        naps += t->naps, inside += t->inside, plain += t->plain, direct += t->direct, frames += t->frames, with += t->frames > 0;
        ns += t->ns + (t->frames ? at - t->begin : 0);
    }
    say("tally nap %ld", naps);
    say("inside %ld", inside);
    say("plain %ld", plain);
    say("direct %ld", direct);
    say("ns %ld", ns);
    say("now %ld", at);
    say("frames %ld", frames);
    say("threads %ld", with);
    say("done");
}

static long naps() {
    long sum = 0;
    for (int i = 0; i < count; i++) sum += threads[i].naps;
    return sum;
}

int main(int argc, char **argv) {
    count = argc > 1 ? atoi(argv[1]) : 4;
    depth = argc > 2 ? atoi(argv[2]) : 0;
    halt = depth > 0;
    threads = static_cast<Thread *>(calloc((size_t)count, sizeof *threads));
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGUSR1, &action, nullptr);
    for (int i = 0; i < count; i++) {
        Thread *t = &threads[i];
        t->seed = 77u * (unsigned)(i + 1);
        t->spins = !depth && i % 4 == 1;
        t->handles = i % 3 == 0;
        if (pthread_create(&t->id, nullptr, work, t)) abort();
    }
    while (depth && halted.load() < count) usleep(100);
    say_ready();
    for (char *line; (line = next_command());) {
        long n = 0;
        if (sscanf(line, "run %ld", &n) == 1) {
            pthread_mutex_lock(&gate);
            halt = 0;
            pthread_cond_broadcast(&opened);
            pthread_mutex_unlock(&gate);
            while (halted.load() > 0) sched_yield();
            for (long until = naps() + n; naps() < until;) usleep(100);
            halt = 1;
        } else if (!strcmp(line, "halt")) {
            halt = 1;
        } else {
            say("unknown command %s", line);
        }
        answer();
    }
}
