/* 4,096 functions, f_0_0_0 to f_f_f, that many threads call, each its own share.
 * `calls N`: 8 threads, of which the n-th calls every function whose number leaves n divided by 8, N times; those with an odd
 * number take some 2 us more. `all N`: one thread calls all of them N times, and ends. `map N`: has as many mappings as the kernel allows but N.
 * Each answer says how many pages of shared memory there are. */
#include "mutatee.h"
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define FUNCTIONS 4096
#define THREADS 8

static void linger(unsigned number) {
    if (number % 2) {
        struct timespec from, now;
        clock_gettime(CLOCK_MONOTONIC, &from);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - from.tv_sec) * 1000000000l + now.tv_nsec - from.tv_nsec < 2000);
    }
}

#define ONE(P, Q, R)                               \
    COUNTED unsigned f_##P##_##Q##_##R(unsigned n) { \
        linger(0x##P##Q##R);                         \
        return n + 0x##P##Q##R;                      \
    }
#define NAME(P, Q, R) f_##P##_##Q##_##R,
/* a macro does not expand within itself: one for each digit */
#define DIGIT3(X, P, Q) \
    X(P, Q, 0) X(P, Q, 1) X(P, Q, 2) X(P, Q, 3) X(P, Q, 4) X(P, Q, 5) X(P, Q, 6) X(P, Q, 7) \
    X(P, Q, 8) X(P, Q, 9) X(P, Q, a) X(P, Q, b) X(P, Q, c) X(P, Q, d) X(P, Q, e) X(P, Q, f)
#define DIGIT2(X, P) \
    DIGIT3(X, P, 0) DIGIT3(X, P, 1) DIGIT3(X, P, 2) DIGIT3(X, P, 3) \
    DIGIT3(X, P, 4) DIGIT3(X, P, 5) DIGIT3(X, P, 6) DIGIT3(X, P, 7) \
    DIGIT3(X, P, 8) DIGIT3(X, P, 9) DIGIT3(X, P, a) DIGIT3(X, P, b) \
    DIGIT3(X, P, c) DIGIT3(X, P, d) DIGIT3(X, P, e) DIGIT3(X, P, f)
#define DIGIT1(X) \
    DIGIT2(X, 0) DIGIT2(X, 1) DIGIT2(X, 2) DIGIT2(X, 3) \
    DIGIT2(X, 4) DIGIT2(X, 5) DIGIT2(X, 6) DIGIT2(X, 7) \
    DIGIT2(X, 8) DIGIT2(X, 9) DIGIT2(X, a) DIGIT2(X, b) \
    DIGIT2(X, c) DIGIT2(X, d) DIGIT2(X, e) DIGIT2(X, f)
DIGIT1(ONE)

static unsigned (*const all[FUNCTIONS])(unsigned) = {DIGIT1(NAME)};

static long times;

static void *calls(void *share) {
    for (long i = 0; i < times; i++)
        for (uintptr_t n = (uintptr_t)share; n < FUNCTIONS; n += THREADS) all[n](1);
    return NULL;
}

static void *calls_all(void *unused) {
    (void)unused;
    for (long i = 0; i < times; i++)
        for (int n = 0; n < FUNCTIONS; n++) all[n](1);
    return NULL;
}

static long resident(void) {
    long pages = 0, shared = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%*d %ld %ld", &pages, &shared) != 2) return -1;
    fclose(statm);
    return shared;
}

static long number_in(const char *file) {
    long number = -1;
    FILE *in = fopen(file, "r");
    if (!in || fscanf(in, "%ld", &number) != 1) abort();
    fclose(in);
    return number;
}

static long mappings(void) {
    long lines = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps && (c = fgetc(maps)) != EOF;) lines += c == '\n';
    if (maps) fclose(maps);
    return lines;
}

/* Every other page gets another protection, so that each is a mapping of its own. */
static void map(long left) {
    long more = number_in("/proc/sys/vm/max_map_count") - left - mappings();
    if (more < 2) return;
    char *pages = mmap(NULL, (size_t)more * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) abort();
    for (long i = 1; i < more; i += 2) mprotect(pages + i * 4096, 4096, PROT_READ);
}

int main(void) {
    say_ready();
    pthread_t threads[THREADS];
    long left;
    for (char *line; (line = next_command());) {
        if (sscanf(line, "calls %ld", &times) == 1) {
            for (uintptr_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, calls, (void *)n);
            for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
        } else if (sscanf(line, "all %ld", &times) == 1) {
            pthread_create(&threads[0], NULL, calls_all, NULL);
            pthread_join(threads[0], NULL);
        } else if (sscanf(line, "map %ld", &left) == 1) {
            map(left);
        }
        say("resident %ld", resident());
        say("done");
    }
    return 0;
}
