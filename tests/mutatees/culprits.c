/* A server's functions, each with one planted cause of its variance, and whose program measures what they do by the processor's counter.
 *
 * loop N          N calls of `serve_loop`: a loop that iterates 0 to 99 times, and calls `step` each time; then `steady`
 * own N           N calls of `serve_own`: a loop that iterates 0 to 99 times and calls nothing; then `steady`
 * call N          N calls of `serve_call`: `steady`, and `uneven`, which takes long in one of ten calls
 * branch N        N calls of `serve_branch`: `steady`, and in one of ten calls `rare`
 * wait N          N calls of `serve_wait`: `steady`, and `usleep` in one of ten calls
 * nested N        N calls of `serve_nested`, each of which calls itself twice, and `uneven` at each of three levels
 * leave N         N calls of `serve_leave`, which is left by a longjmp out of `uneven_leave` in one of ten calls
 * caught N        N calls of `serve_caught`, which comes back by a longjmp out of `uneven_leave` in one of ten calls, and goes on
 * jump N          N calls of `serve_jump`, which calls `steady` and ends in a tail jump to `uneven`
 * threads N       four threads, each with N calls of `serve_call`
 * The answer has the number of calls and of those that were left, and for `loop`, `own`, `call`, `branch` and `wait` the share of the planted cause
 * in thousandths: for a loop, the square of the correlation of the number of iterations and the time of the call; for a call, the covariance of its
 * time with that of the function, divided by the variance of that. */
#include "mutatee.h"
#include <setjmp.h>
#include <x86intrin.h>

static _Thread_local jmp_buf back;
static _Thread_local unsigned long seed = 88172645463325252UL;
static _Thread_local long part; /* ticks of the planted cause in the present call */

static unsigned long random_number(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

COUNTED long burn(long n) {
    for (long i = 0, end = n; i < end; i++) n = n * 5 + i;
    return n;
}

COUNTED long step(long n) { return burn(30) + n; }
COUNTED long steady(long n) { return burn(500) + n; }
COUNTED long rare(long n) { return burn(20000) + n; }
COUNTED long uneven(long slow) { return burn(slow ? 20000 : 200); }

#define PART(call)                     \
    do {                               \
        long begin = (long)__rdtsc();  \
        call;                          \
        part += (long)__rdtsc() - begin; \
    } while (0)

COUNTED long serve_loop(long n, long trips) {
    long sum = n;
    for (long i = 0; i < trips; i++) sum += step(i);
    return sum + steady(n);
}

COUNTED long serve_own(long n, long trips) {
    long sum = n;
    for (long i = 0; i < 50 * trips; i++) sum = sum * 5 + i;
    return sum + steady(n);
}

COUNTED long serve_call(long n, long slow) {
    long sum = steady(n);
    PART(sum += uneven(slow));
    return sum + 1;
}

COUNTED long serve_branch(long n, long slow) {
    long sum = steady(n);
    if (slow) PART(sum += rare(n));
    return sum + 1;
}

COUNTED long serve_wait(long n, long slow) {
    long sum = steady(n);
    if (slow) PART(sum += usleep(200));
    return sum + 1;
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) long serve_nested(long level, long slow) {
    long sum = uneven(slow);
    if (level < 2) {
        sum += serve_nested(level + 1, slow);
        sum += serve_nested(level + 1, 0);
    }
    return sum + 1;
}

COUNTED long uneven_leave(long slow) {
    long sum = burn(slow ? 20000 : 200);
    if (slow) longjmp(back, 1);
    return sum;
}

COUNTED long serve_leave(long n, long slow) { return steady(n) + uneven_leave(slow) + 1; }

COUNTED long serve_caught(long n, long slow) {
    volatile long sum = steady(n);
    if (!setjmp(back)) sum += uneven_leave(slow);
    return sum + steady(n);
}

COUNTED long serve_jump(long n, long slow) {
    steady(n);
    return uneven(slow);
}

static double times[1 << 16], parts[1 << 16];
static long (*serve)(long, long);
static long count;

static void *four(void *of) {
    seed += 77 * (unsigned long)(of != NULL) * (unsigned long)of;
    for (long i = 0; i < count; i++) serve_call(i, random_number() % 10 == 0);
    return NULL;
}

/* The share of the planted part in thousandths. */
static long share(long n, int of_loop) {
    double mean = 0, mean_part = 0, variance = 0, covariance = 0, variance_part = 0;
    for (long i = 0; i < n; i++) mean += times[i] / n, mean_part += parts[i] / n;
    for (long i = 0; i < n; i++) {
        variance += (times[i] - mean) * (times[i] - mean);
        covariance += (times[i] - mean) * (parts[i] - mean_part);
        variance_part += (parts[i] - mean_part) * (parts[i] - mean_part);
    }
    double slope = !of_loop ? 1 : variance_part > 0 ? covariance / variance_part : 0;
    return variance > 0 ? (long)(1000 * slope * covariance / variance) : 0;
}

int main(void) {
    static const struct {
        const char *name;
        long (*serve)(long, long);
        int kind; /* 1 if the second argument is a number of iterations, 2 if it is a level */
    } all[] = {{"loop", serve_loop, 1},   {"own", serve_own, 1},       {"call", serve_call, 0},   {"branch", serve_branch, 0},
               {"wait", serve_wait, 0},   {"nested", serve_nested, 2}, {"leave", serve_leave, 0}, {"caught", serve_caught, 0},
               {"jump", serve_jump, 0}};
    say_ready();
    for (char *command; (command = next_command());) {
        char name[16] = "";
        if (sscanf(command, "%15s %ld", name, &count) != 2 || count > 1 << 16) return 2;
        volatile long left = 0;
        if (!strcmp(name, "threads")) {
            pthread_t threads[4];
            for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, four, (void *)(i + 1));
            for (long i = 0; i < 4; i++) pthread_join(threads[i], NULL);
            say("calls %ld", 4 * count);
            say("done");
            continue;
        }
        volatile int kind = -1;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (!strcmp(name, all[i].name)) serve = all[i].serve, kind = all[i].kind;
        if (kind < 0) return 2;
        for (volatile long i = 0; i < count; i++) {
            unsigned long number = random_number();
            volatile long argument = kind == 1 ? (long)(number % 100) : number % 10 == 0;
            part = 0;
            volatile long begin = (long)__rdtsc();
            if (serve == serve_leave && setjmp(back)) left++;
            else serve(kind == 2 ? 0 : i, argument);
            times[i] = (double)((long)__rdtsc() - begin), parts[i] = (double)(kind == 1 ? argument : part);
        }
        say("calls %ld", count);
        say("left %ld", left);
        say("share %ld", share(count, kind == 1));
        say("done");
    }
    return 0;
}
