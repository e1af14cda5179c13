/* Threads that touch fresh pages below different callers, and that ask the kernel how many page faults that took.
 *
 * run LAPS THREADS   so many threads make so many laps each, and end. The answer has the page faults in `e_touches` below `e_few`, `e_many` and
 *                    `e_deep`, and the switches in `e_waits`
 * ticks LAPS         one thread makes so many laps, while a timer interrupts it. The answer also has the page faults below `e_ticks`, the handler
 */
#include "mutatee.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#define PAGE 4096
#define THREADS 64

enum { FEW, MANY, DEEP, TICKS, PLACES };

static atomic_long faults[PLACES], switches;

static struct rusage usage(void) {
    struct rusage all;
    if (getrusage(RUSAGE_THREAD, &all)) abort();
    return all;
}

COUNTED long e_touches(volatile char *pages, int count) {
    long before = usage().ru_minflt;
    for (int n = 0; n < count; n++) pages[n * PAGE] = 1;
    return usage().ru_minflt - before;
}

static char *fresh(int count) {
    char *pages = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) abort();
    madvise(pages, (size_t)count * PAGE, MADV_NOHUGEPAGE);
    return pages;
}

static void touch(int place, int count) {
    char *pages = fresh(count);
    faults[place] += e_touches(pages, count);
    munmap(pages, (size_t)count * PAGE);
}

COUNTED void e_few(void) { touch(FEW, 3); }
COUNTED void e_many(void) { touch(MANY, 17); }

COUNTED void e_deep(int depth) {
    touch(DEEP, 2);
    if (depth > 0) e_deep(depth - 1);
    faults[DEEP] += 0; /* not a tail call */
}

COUNTED void e_waits(void) {
    struct rusage before = usage(), after;
    struct timespec time = {0, 1000};
    nanosleep(&time, NULL);
    after = usage();
    switches += after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw;
}

COUNTED void e_laps(long laps) {
    for (long n = 0; n < laps; n++) {
        e_few();
        e_many();
        e_deep(4);
        e_waits();
    }
}

COUNTED void e_ticks(int signal) {
    (void)signal;
    int error = errno;
    touch(TICKS, 1);
    errno = error;
}

static void *laps(void *number) {
    e_laps(*(long *)number);
    return NULL;
}

static void answer(void) {
    say("few %ld", (long)faults[FEW]);
    say("many %ld", (long)faults[MANY]);
    say("deep %ld", (long)faults[DEEP]);
    say("ticks %ld", (long)faults[TICKS]);
    say("switches %ld", (long)switches);
}

int main(void) {
    say_ready();
    for (char *command; (command = next_command());) {
        long number;
        int count;
        for (int place = 0; place < PLACES; place++) faults[place] = 0;
        switches = 0;
        if (sscanf(command, "run %ld %d", &number, &count) == 2) {
            pthread_t ids[THREADS];
            if (count < 0 || count > THREADS) abort();
            for (int n = 0; n < count; n++)
                if (pthread_create(&ids[n], NULL, laps, &number)) abort();
            for (int n = 0; n < count; n++) pthread_join(ids[n], NULL);
            answer();
        } else if (sscanf(command, "ticks %ld", &number) == 1) {
            struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
            signal(SIGALRM, e_ticks);
            setitimer(ITIMER_REAL, &often, NULL);
            e_laps(number);
            setitimer(ITIMER_REAL, &never, NULL);
            answer();
        }
        say("done");
    }
}
