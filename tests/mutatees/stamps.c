/* Threads that read the clock right before and right after each call.
 *
 * go THREADS N FILE   each of the threads calls `tick` N times, and `tock` from each of them; FILE gets a line for each call of `tick`:
 *                     the thread, and Unix time in nanoseconds before and after the call
 */
#include "mutatee.h"
#include <time.h>

enum { THREADS_MAX = 16, CALLS_MAX = 100000 };

COUNTED long tock(long x) { return x * 5 + 1; }
COUNTED long tick(long x) { return tock(x) + (x & 3 ? 2 : 7); }

struct call { long before, after; };
struct worker { pthread_t thread; int tid; long calls; struct call *all; };

static struct worker workers[THREADS_MAX];
static atomic_long wrong;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *work(void *own) {
    struct worker *worker = own;
    worker->tid = own_tid();
    for (long i = 0; i < worker->calls; i++) {
        worker->all[i].before = now();
        long x = tick(i);
        worker->all[i].after = now();
        wrong += x != i * 5 + 1 + (i & 3 ? 2 : 7);
    }
    return NULL;
}

int main(void) {
    say_ready();
    for (char *line; (line = next_command());) {
        int threads;
        long calls;
        char path[1024];
        if (sscanf(line, "go %d %ld %1023s", &threads, &calls, path) != 3 || threads > THREADS_MAX || calls > CALLS_MAX)
            return 2;
        for (int t = 0; t < threads; t++) {
            workers[t].calls = calls;
            if (!(workers[t].all = calloc((size_t)calls, sizeof(struct call)))) return 3;
            if (pthread_create(&workers[t].thread, NULL, work, &workers[t])) return 3;
        }
        FILE *file = fopen(path, "w");
        if (!file) return 3;
        for (int t = 0; t < threads; t++) {
            pthread_join(workers[t].thread, NULL);
            for (long i = 0; i < calls; i++)
                fprintf(file, "%d %ld %ld\n", workers[t].tid, workers[t].all[i].before, workers[t].all[i].after);
            free(workers[t].all);
        }
        fclose(file);
        say("tally tick %ld", threads * calls);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
