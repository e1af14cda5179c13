/* A program that ends while threads are in the middle of functions, and after others have just ended.
 *
 * WAY N     makes its calls and ends: by exit (leave), in another thread (other), by _exit (quick), or by exit after children of vfork (vfork). The same may
 *           be given as arguments.
 *
 * Four threads call `work` N times each, and end. Another one calls `stay` N times, and then once more: that call does not end. A further one calls
 * `turn` all the time. */
#include "mutatee.h"
#include <sys/wait.h>

static _Atomic long stayed;
static volatile int forever = 1;
static long calls;

COUNTED long work(long n) {
    long sum = 0;
    for (long i = 0; i < 16; i++)
        if ((n + i) % 3) sum += i;
    return sum;
}

/* Runs around a loop without a call if the last call has come. */
COUNTED long stay(long last) {
    long turns = 0;
    if (last) {
        stayed = -1;
        while (forever) turns++;
    }
    return turns;
}

COUNTED long turn(long n) { return n % 2 ? n + 1 : n - 1; }

static void *works(void *sum) {
    for (long i = 0; i < calls; i++) *(long *)sum += work(i);
    return NULL;
}

static void *stays(void *unused) {
    (void)unused;
    for (long i = 0; i < calls; i++) stay(0);
    stay(1);
    return NULL;
}

static void *turns(void *unused) {
    (void)unused;
    for (long n = 0;;) n = turn(n);
    return NULL;
}

static void *ends(void *unused) {
    (void)unused;
    exit(0);
}

/* Makes the calls, and ends in a way. Its answer comes before the end. */
static void part(const char *way) {
    pthread_t threads[4], other;
    long sums[4] = {0};
    pthread_create(&other, NULL, stays, NULL);
    pthread_create(&other, NULL, turns, NULL);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, works, &sums[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    while (stayed >= 0) sched_yield();
    for (int i = 0; !strcmp(way, "vfork") && i < 100; i++) {
        pid_t child = vfork();
        if (!child) {
            execl("/nonexistent", "nothing", (char *)NULL);
            _exit(3);
        }
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) abort();
    }
    if (!strcmp(way, "other")) {
        pthread_create(&other, NULL, ends, NULL);
        for (;;) pause();
    }
    if (!strcmp(way, "quick")) _exit(0);
    exit(0);
}

int main(int argc, char **argv) {
    if (argc > 2) {
        calls = atol(argv[2]);
        part(argv[1]);
    }
    say_ready();
    for (char *line; (line = next_command());) {
        char way[16];
        if (sscanf(line, "%15s %ld", way, &calls) == 2) part(way);
    }
    return 0;
}
