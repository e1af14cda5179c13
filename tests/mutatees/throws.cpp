// A C++ program that throws through counted functions, jumps over them, is cancelled in them, and looks at its own stack from them.
//
// throw N           N exceptions through three frames, each caught by the right handler
// jump N            N longjmps over two frames
// cancel N          N threads cancelled and N threads that call pthread_exit two frames down; destructors must run
// cut N             N exceptions out of `dive`, each with a nap in it; the handler naps deeper in the stack than `dive` was;
//                   `ns dive TIME` is the time until the exception is caught
// trace             prints `frame SYMBOL+OFFSET` for each frame that backtrace() sees three counted calls down
#include "mutatee.h"
#include <csetjmp>
#include <ctime>
#include <execinfo.h>
#include <stdexcept>

static long middle_tally, thrower_tally, tracer_tally, destroyed, wrong;
static jmp_buf home;

struct Witness {
    ~Witness() { __atomic_fetch_add(&destroyed, 1, __ATOMIC_SEQ_CST); }
};

extern "C" {
COUNTED int thrower(int n) {
    thrower_tally++;
    if (n % 3 == 0) throw std::runtime_error("three");
    if (n % 3 == 1) throw n;
    throw "text";
}

COUNTED int middle(int n) {
    Witness witness;
    middle_tally++;
    return thrower(n) + 1;
}

COUNTED int outer(int n) {
    try {
        return middle(n) + 1;
    } catch (int value) {
        return value == n ? 1 : -1;
    } catch (const std::runtime_error &error) {
        return strcmp(error.what(), "three") ? -1 : 0;
    } catch (const char *) {
        return 2;
    }
}

COUNTED void nap(void) {
    timespec t = {0, 1000000};
    nanosleep(&t, nullptr);
}

static long long ns_dive, dived;

static long long now(void) {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

COUNTED void dive(int n) {
    dived = now();
    nap();
    throw n;
}

COUNTED void sink(int n) {
    char buffer[1024];
    memset(buffer, n, sizeof buffer);
    __asm__ volatile("" : : "r"(buffer) : "memory");
    nap();
    if (buffer[9] != (char)n) wrong++;
}

// The cleanup runs while the exception passes through this frame.
COUNTED void through(int n) {
    struct Cleanup {
        int n;
        ~Cleanup() { sink(n); }
    } cleanup = {n};
    dive(n);
}

COUNTED void cut(int n) {
    try {
        through(n);
    } catch (int value) {
        ns_dive += now() - dived;
        sink(value);
    }
}

COUNTED void jumper(int n) { longjmp(home, n); }
COUNTED void jump_middle(int n) {
    jumper(n);
    wrong++;
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) void *tracer(int depth) {
    tracer_tally++;
    if (depth > 0) return tracer(depth - 1);
    void *frames[64];
    int count = backtrace(frames, 64);
    char **names = backtrace_symbols(frames, count);
    for (int i = 0; i < count; i++) {
        char *name = strrchr(names[i], '/');
        char *bracket = strchr(names[i], '[');
        if (bracket) *bracket = 0; // the address itself differs from run to run; module and offset do not
        say("frame %s", name ? name + 1 : names[i]);
    }
    free(names);
    return frames[0];
}

COUNTED void *wait_inside(void *gate) {
    Witness witness;
    pthread_barrier_wait((pthread_barrier_t *)gate);
    for (;;) {
        char byte;
        static int pipe_ends[2] = {-1, -1};
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, [] {
            if (pipe(pipe_ends)) abort();
        });
        if (read(pipe_ends[0], &byte, 1) < 0) abort();
    }
}

COUNTED void leave_inside(void) {
    Witness witness;
    pthread_exit(nullptr);
}
COUNTED void *leaver(void *) {
    Witness witness;
    leave_inside();
    return nullptr;
}
}

int main() {
    volatile long jump_tally = 0, wait_tally = 0, leave_tally = 0, outer_tally = 0;
    say_ready();
    for (char *line; (line = next_command());) {
        int n = 0;
        if (sscanf(line, "throw %d", &n) == 1) {
            for (int i = 0; i < n; i++) {
                outer_tally = outer_tally + 1;
                int expected = i % 3 == 0 ? 0 : i % 3;
                if (outer(i) != expected) wrong++;
            }
        } else if (sscanf(line, "jump %d", &n) == 1) {
            for (volatile int i = 1; i <= n; i++) {
                int got = setjmp(home);
                if (got == 0) {
                    jump_tally = jump_tally + 1;
                    jump_middle(i);
                } else if (got != i) {
                    wrong++;
                }
            }
        } else if (sscanf(line, "cancel %d", &n) == 1) {
            long before = destroyed;
            for (int i = 0; i < n; i++) {
                pthread_barrier_t gate;
                pthread_t id;
                pthread_barrier_init(&gate, nullptr, 2);
                pthread_create(&id, nullptr, wait_inside, &gate);
                pthread_barrier_wait(&gate);
                pthread_cancel(id);
                void *result;
                pthread_join(id, &result);
                if (result != PTHREAD_CANCELED) wrong++;
                pthread_barrier_destroy(&gate);
                wait_tally = wait_tally + 1;
                pthread_create(&id, nullptr, leaver, nullptr);
                pthread_join(id, nullptr);
                leave_tally = leave_tally + 1;
            }
            if (destroyed - before != 3L * n) wrong++;
        } else if (sscanf(line, "cut %d", &n) == 1) {
            for (int i = 0; i < n; i++) cut(i);
        } else if (!strcmp(line, "trace")) {
            tracer(3);
        } else {
            say("unknown command %s", line);
        }
        say("tally outer %ld", outer_tally);
        say("tally middle %ld", middle_tally);
        say("tally thrower %ld", thrower_tally);
        say("tally jumper %ld", jump_tally);
        say("tally tracer %ld", tracer_tally);
        say("tally wait_inside %ld", wait_tally);
        say("tally leave_inside %ld", leave_tally);
        say("ns dive %lld", ns_dive);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
