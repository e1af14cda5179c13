// Threads that end in signal handlers which interrupt hot code. The destructors of the interrupted calls must run.
//
// departs exit     the handler of SIGUSR1 calls pthread_exit, through another function
// departs cancel   the handler of SIGUSR1 calls a cancellation point, and its thread was cancelled before
// departs quiet    the handler of SIGUSR1 tells the hot code to return
// departs late     as `exit`, but the handler is set by the command `set`, and taken away by `unset`
//
// end N            N threads, one after the other, compute until they get SIGUSR1: `destroyed N`
#include "mutatee.h"

static volatile sig_atomic_t begun, over;
static long destroyed;

struct Witness {
    ~Witness() { __atomic_fetch_add(&destroyed, 1, __ATOMIC_SEQ_CST); }
};

extern "C" {
COUNTED void depart(int n) {
    if (n > 0) pthread_exit(nullptr);
}

static void leave(int signal) { depart(signal); }

static void wait(int) {
    timespec t = {0, 1000};
    nanosleep(&t, nullptr);
}

static void tell(int) { over = 1; }

COUNTED void work(volatile unsigned *n) {
    begun = 1;
    for (unsigned sum = *n; !over; *n = sum)
        for (unsigned i = 0; i < sum % 7 + 3; i++) sum = sum % 3 ? sum / 3 + i : sum * 5 + 1;
    if (over > 1) throw over; // else the caller would have no landing pad
}

COUNTED void compute(void) {
    volatile unsigned n = 1;
    Witness witness;
    work(&n);
}

static void *body(void *) {
    compute();
    return nullptr;
}
}

static void handle(void (*handler)(int)) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, nullptr);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "quiet";
    bool cancels = !strcmp(how, "cancel");
    if (!strcmp(how, "exit")) handle(leave);
    if (cancels) handle(wait);
    if (!strcmp(how, "quiet")) handle(tell);
    say_ready();
    for (char *line; (line = next_command());) {
        int n = 0;
        if (sscanf(line, "end %d", &n) == 1) {
            long before = destroyed;
            for (int i = 0; i < n; i++) {
                pthread_t id;
                begun = over = 0;
                while (pthread_create(&id, nullptr, body, nullptr)) usleep(100);
                while (!begun) usleep(100);
                if (cancels) pthread_cancel(id);
                pthread_kill(id, SIGUSR1);
                pthread_join(id, nullptr);
            }
            say("destroyed %ld", destroyed - before);
        } else if (!strcmp(line, "set")) {
            handle(leave);
        } else if (!strcmp(line, "unset")) {
            handle(SIG_DFL);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
