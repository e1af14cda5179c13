/* Threads that look at their clocks without a pause, and note for how long in one piece they were kept from running: the time that passed,
 * without the time in which they ran (or the machine did something else in their name) or waited for a processor.
 *
 * gaps COUNT
 * look              prints the longest such time of any thread since the last look: `away NANOSECONDS`
 * Each thread calls `work` at every turn. */
#include "mutatee.h"
#include <fcntl.h>
#include <stdint.h>
#include <time.h>

/* Shorter times are not looked into. */
#define SHORT 20000

static _Atomic int64_t away;

COUNTED void work(void) {
    __asm__ volatile("");
}

static int64_t nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000l + t.tv_nsec;
}

/* How long this thread has waited for a processor since its start. */
static int64_t waited(int schedstat) {
    char text[128] = "";
    long long ran, delayed;
    if (pread(schedstat, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%lld %lld", &ran, &delayed) != 2) abort();
    return delayed;
}

static void *watch(void *unused) {
    (void)unused;
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    int64_t delay = waited(schedstat), last = nanoseconds(CLOCK_MONOTONIC), last_ran = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    for (;;) {
        work();
        int64_t now = nanoseconds(CLOCK_MONOTONIC), ran = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        if (now - last > SHORT) {
            int64_t delayed = waited(schedstat), most = atomic_load(&away);
            int64_t lost = now - last - (ran - last_ran) - (delayed - delay);
            while (lost > most && !atomic_compare_exchange_weak(&away, &most, lost)) {}
            delay = delayed;
            now = nanoseconds(CLOCK_MONOTONIC), ran = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        }
        last = now, last_ran = ran;
    }
    return NULL;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 2;
    for (int i = 0; i < count; i++) {
        pthread_t id;
        if (pthread_create(&id, NULL, watch, NULL)) abort();
    }
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "look")) say("away %lld", (long long)atomic_exchange(&away, 0));
        else say("unknown command %s", line);
        say("done");
    }
    _exit(0);
}
