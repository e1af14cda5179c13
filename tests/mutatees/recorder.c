/* A program whose trace tells the number of each step.
 *
 * load THREADS      so many threads compute until the end
 * flow US           a thread calls `step` for 1, 2, …, and sleeps between the calls, until `still`
 * count             prints the number of steps so far, and the time since `flow` in milliseconds
 * still FILE        ends the flow; FILE gets a line for each step: Unix time in nanoseconds before and after it
 * steps N           the main thread calls `step` for 1 to N
 *
 * `step` calls `one` or `zero` for each of the bits of its number, the lowest one first.
 */
#include "mutatee.h"
#include <time.h>

enum { BITS = 20, STEPS_MAX = 1 << BITS };

COUNTED long zero(long x) { return x + 1; }
COUNTED long one(long x) { return x + 2; }
COUNTED long step(long n) {
    long x = 0;
    for (int bit = 0; bit < BITS; bit++) x = n >> bit & 1 ? one(x) : zero(x);
    return x == BITS + __builtin_popcountl(n) ? n : -1;
}

static struct { long before, after; } times[STEPS_MAX];
static atomic_long steps, wrong;
static atomic_int flowing;
static pthread_t flow;
static long began;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *run(void *pause) {
    began = now();
    for (long n = 1; flowing && n < STEPS_MAX; n++) {
        times[n].before = now();
        wrong += step(n) != n;
        times[n].after = now();
        steps = n;
        if (usleep((unsigned)(long)pause)) abort();
    }
    return NULL;
}

static void *compute(void *unused) {
    for (volatile long x = 1;;) x = x * 5 + 1;
    return unused;
}

int main(void) {
    say_ready();
    for (char *line; (line = next_command());) {
        long number;
        char path[1024];
        pthread_t thread;
        if (sscanf(line, "load %ld", &number) == 1) {
            while (number-- > 0)
                if (pthread_create(&thread, NULL, compute, NULL)) return 3;
        } else if (sscanf(line, "flow %ld", &number) == 1) {
            flowing = 1;
            if (pthread_create(&flow, NULL, run, (void *)number)) return 3;
        } else if (!strcmp(line, "count")) {
            say("steps %ld", steps);
            say("elapsed %ld", steps ? (now() - began) / 1000000 : 0);
        } else if (sscanf(line, "still %1023s", path) == 1) {
            flowing = 0;
            pthread_join(flow, NULL);
            FILE *file = fopen(path, "w");
            if (!file) return 3;
            for (long n = 1; n <= steps; n++) fprintf(file, "%ld %ld\n", times[n].before, times[n].after);
            fclose(file);
        } else if (sscanf(line, "steps %ld", &number) == 1) {
            for (long n = 1; n <= number; n++) wrong += step(n) != n;
        } else {
            return 2;
        }
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
