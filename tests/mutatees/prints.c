/* Calls whose arguments, texts, results and times are known.
 *
 * run N THREADS   each thread calls `work` N times, with numbers from 0 on. One in a hundred calls is left by a longjmp, one in a hundred
 *                 calls `work` once more, and one in a thousand takes 3 ms or more by the clock of the program
 * The answer has `calls`, `left`, `nested`, `slow` and `even` (calls with even numbers), each with the number of all threads together. */
#include "mutatee.h"
#include <setjmp.h>
#include <time.h>

struct request {
    long number;
    const char *path;
    struct {
        int level;
        char tag[8];
    } inner;
};

static _Thread_local jmp_buf back;
static atomic_long calls, left, nested, slow, even, last;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

COUNTED void note(long number) { last = number; }

COUNTED long work(long number, const char *name, struct request *request) {
    calls++;
    even += number % 2 == 0;
    if (number >= 0 && number % 100 == 7) {
        left++;
        longjmp(back, 1);
    }
    if (number >= 0 && number % 100 == 42) {
        nested++;
        struct request inner = {-number, "/nested", {9, "deep"}};
        return work(-number, "inner", &inner) - 1;
    }
    if (number % 1000 == 5) {
        slow++;
        for (long end = now() + 3000000; now() < end;) {}
    }
    note(number);
    return number * 3 + request->inner.level + name[0];
}

static long count;

static void *thread(void *_) {
    (void)_;
    static const char *const paths[] = {"/index.html", "", "/a/path/that/is/longer/than/the/sixty-four/bytes/that/are/read/of/a/text/at/most"};
    for (volatile long i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "name-%ld", i % 1000);
        struct request request = {i, paths[i % 3], {(int)(i % 5) - 2, "tag"}};
        if (!setjmp(back)) work(i, name, &request);
    }
    return NULL;
}

int main(void) {
    say("ready");
    char *line;
    while ((line = next_command())) {
        int threads;
        if (sscanf(line, "run %ld %d", &count, &threads) != 2 || threads > 64) return 2;
        pthread_t all[64];
        for (int i = 0; i < threads; i++) pthread_create(&all[i], NULL, thread, NULL);
        for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
        say("calls %ld", (long)calls);
        say("left %ld", (long)left);
        say("nested %ld", (long)nested);
        say("slow %ld", (long)slow);
        say("even %ld", (long)even);
        say("done");
    }
}
