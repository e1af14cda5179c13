/* Threads that compute all the time, and whose handlers stay where they are until they are told to return.
 *
 * lingers COUNT [DEPTH]   COUNT threads, whose handlers stand DEPTH bytes below the frames that they have interrupted
 * hold                    every thread gets a signal, and stays in its handler: `inside COUNT`
 * go                      the handlers return
 * look                    the answer has `rounds` (checked results) of the thread that has the fewest, and `wrong` (results that were) */
#include "mutatee.h"
#include <alloca.h>
#include <signal.h>

#define CELLS 32

struct worker {
    pthread_t thread;
    unsigned cells[CELLS];
    _Atomic long rounds;
};

static struct worker *all;
static int count;
static size_t depth;
static _Atomic int held, inside;
static _Atomic long wrong;

/* Loops and branches, so that a copy of it has counters on many edges. */
COUNTED unsigned long grind(unsigned *cells, unsigned long seed) {
    unsigned long sum = 0;
    for (int i = 0; i < CELLS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        cells[i] = (unsigned)(seed >> 33);
    }
    for (int i = 0; i < CELLS; i++) {
        unsigned x = cells[i];
        if (x & 1) x = x * 3 + 1;
        else if (x & 2) x ^= x >> 5;
        else x >>= 1;
        cells[i] = x;
        sum += x;
    }
    return sum;
}

COUNTED unsigned long small(unsigned long x) { return x * 2654435761u ^ x >> 7; }

COUNTED unsigned long chew(unsigned *cells, unsigned long seed) {
    unsigned long sum = grind(cells, seed);
    for (int i = 0; i < CELLS; i++) sum = small(sum + cells[i]);
    return sum;
}

static void stay(int signal) {
    (void)signal;
    int saved = errno;
    volatile char *below = alloca(depth + 1);
    *below = 1;
    inside++;
    while (held) usleep(200);
    inside--;
    errno = saved;
}

static void *run(void *of) {
    struct worker *worker = of;
    unsigned long right[16] = {0};
    for (unsigned long n = 0;; n = (n + 1) % 16) {
        unsigned long found = chew(worker->cells, n + 1);
        if (!right[n]) right[n] = found;
        else if (right[n] != found) wrong++;
        worker->rounds++;
    }
    return NULL;
}

static void look(void) {
    long least = all[0].rounds;
    for (int i = 1; i < count; i++)
        if (all[i].rounds < least) least = all[i].rounds;
    say("rounds %ld", least);
    say("wrong %ld", (long)wrong);
}

int main(int argc, char **argv) {
    count = argc > 1 ? atoi(argv[1]) : 4;
    depth = argc > 2 ? (size_t)atol(argv[2]) : 0;
    all = calloc((size_t)count, sizeof *all);
    struct sigaction action = {.sa_handler = stay, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < count; i++)
        if (pthread_create(&all[i].thread, NULL, run, &all[i])) abort();
    while (!all[count - 1].rounds) usleep(1000);
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "hold")) {
            held = 1;
            for (int i = 0; i < count; i++) pthread_kill(all[i].thread, SIGUSR1);
            while (inside < count) usleep(200);
            say("inside %d", (int)inside);
        } else if (!strcmp(line, "go")) {
            held = 0;
            while (inside) usleep(200);
        }
        look();
        say("done");
    }
    return 0;
}
