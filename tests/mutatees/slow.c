/* Calls of which a few are slow, and whose program knows what they did.
 *
 * run N THREADS   each thread calls `serve` N times, with numbers from 0 on, and times each call by its own clock. By the number's
 *                 remainder modulo 1,000:
 *                 500   the call is slow: `load` fetches three parts, and waits for each; then `store` computes
 *                 700   the call is left by a longjmp out of `load`, after it was slow
 *                 900   the call makes another call of `serve`, which is slow
 *                 others are quick, and call `hash` fifty times
 * plant AT N      one thread calls `serve` N times, of which that with the number AT is slow, and none does anything else
 * jump N          one thread calls `serve_jumping` N times: it calls two functions in turn, each of which jumps to the other one, which jumps to
 *                 `wait_for_part`
 * spin            a thread calls `serve` over and over, quickly, until the end
 * The answers have `calls` and `left`, with the numbers of all threads together, and for each call that took 10 ms or more by the program's
 * clock a line `slow NUMBER NS`. */
#include "mutatee.h"
#include <setjmp.h>
#include <time.h>

#define MS 1000000L
#define SLOW_MAX 4096

static _Thread_local jmp_buf back;
static atomic_long calls, left, slow;
static long slow_number[SLOW_MAX], slow_ns[SLOW_MAX];

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

COUNTED static long hash(long n) { return n * 0x9e3779b97f4a7c15L >> 7; }

COUNTED static void wait_for_part(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * MS};
    while (nanosleep(&t, &t)) {}
}

static const char *const names[] = {"first", "second", "third"};

COUNTED static void fetch(long number, int part, const char *name) { wait_for_part(3 + part + number * 0 + name[0] * 0); }

COUNTED static void load(long number) {
    for (int part = 0; part < 3; part++) fetch(number, part, names[part]);
    if (number % 1000 == 700) longjmp(back, 1);
}

COUNTED static long store(long ms) {
    long end = now() + ms * MS, n = 0;
    while (now() < end) n++;
    return n;
}

COUNTED long serve(long number, const char *name) {
    long kind = number % 1000, sum = name[0];
    for (int i = 0; i < 50; i++) sum += hash(sum + i);
    if (kind == 500 || kind == 700) {
        load(number);
        sum += store(2);
    }
    if (kind == 900) {
        char inner[8] = "inner"; /* in use until the call returns, so the call does not become a loop */
        sum += serve(number + 600, inner) - inner[0]; /* 500 modulo 1,000 */
    }
    return sum;
}

COUNTED long serve_planted(long number, long at) {
    long sum = hash(number);
    if (number == at) load(number);
    return sum;
}

COUNTED static void jump_b(long ms, int on);

COUNTED static void jump_a(long ms, int on) {
    if (on) jump_b(ms, 0);
    else wait_for_part(ms);
}

COUNTED static void jump_b(long ms, int on) {
    if (on) jump_a(ms, 0);
    else wait_for_part(ms);
}

COUNTED long serve_jumping(long number, long ms) {
    jump_a(ms, 1);
    jump_b(ms, 1);
    return hash(number);
}

static void note(long number, long ns) {
    if (ns < 10 * MS) return;
    long n = slow++;
    if (n < SLOW_MAX) slow_number[n] = number, slow_ns[n] = ns;
}

static long count;

static void *thread(void *_) {
    (void)_;
    for (volatile long i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "name-%ld", i);
        calls++;
        long begin = now();
        if (!setjmp(back)) {
            serve(i, name);
            note(i, now() - begin);
        } else {
            left++;
        }
    }
    return NULL;
}

static void *spin(void *_) {
    for (;;) serve(1, "spin");
    return _;
}

static void tell(void) {
    say("calls %ld", (long)calls);
    say("left %ld", (long)left);
    for (long n = 0; n < slow && n < SLOW_MAX; n++) say("slow %ld %ld", slow_number[n], slow_ns[n]);
    calls = left = slow = 0;
    say("done");
}

int main(void) {
    say("ready");
    char *line;
    while ((line = next_command())) {
        int threads;
        long at;
        pthread_t all[64];
        if (sscanf(line, "run %ld %d", &count, &threads) == 2 && threads <= 64) {
            for (int i = 0; i < threads; i++) pthread_create(&all[i], NULL, thread, NULL);
            for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
            tell();
        } else if (sscanf(line, "plant %ld %ld", &at, &count) == 2) {
            for (long i = 0; i < count; i++) {
                calls++;
                long begin = now();
                serve_planted(i, at);
                note(i, now() - begin);
            }
            tell();
        } else if (sscanf(line, "jump %ld", &count) == 1) {
            for (long i = 0; i < count; i++) serve_jumping(i, 6);
            tell();
        } else if (!strcmp(line, "spin")) {
            pthread_create(&all[0], NULL, spin, NULL);
            say("done");
        } else {
            return 2;
        }
    }
}
