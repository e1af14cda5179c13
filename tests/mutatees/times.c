/* Functions that take known times, by this program's own clock.
 *
 * nap N US          N calls that sleep US microseconds each
 * spin N US         N calls that compute for US microseconds each
 * nest N US         N calls of `around`, which naps and spins for US microseconds each
 * deep N US         one recursion N calls deep that naps for US microseconds at its deepest
 * chain N           N calls of 40 multiplications, each of which needs the result of the one before: at least 120 cycles of the processor
 * rush MS           for MS milliseconds, again and again 64 calls of `spin` for a microsecond each, and one of `chain`
 * block / release   a thread enters `held` and stays there / leaves it
 * part N US HOW     N threads, one after the other, each with four calls of `part` that nap for US microseconds and return, and a fifth that
 *                   ends the thread: by pthread_exit (0), by the system call alone (1), by cancellation (2); `ns part TIME` is of all five,
 *                   `ns parted TIME` of the four
 * last US           does not answer: naps for US microseconds in `last`, which ends the program
 * Each answer has `ns FUNCTION TIME`, from right before each call to right behind it, and `tally FUNCTION CALLS`; for `chain` only if it was
 * called. */
#include "mutatee.h"
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

enum { NAP, SPIN, AROUND, DEEP, CHAIN, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"nap", "spin", "around", "deep", "chain"};
static long long ns[FUNCTIONS], calls[FUNCTIONS];

#define TIMED(function, call)              \
    do {                                   \
        long long begin = now();           \
        call;                              \
        ns[function] += now() - begin;     \
        calls[function]++;                 \
    } while (0)

COUNTED void nap(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

COUNTED void spin(long us) {
    for (long long end = now() + us * 1000; now() < end;) {
    }
}

COUNTED void around(long us) {
    TIMED(NAP, nap(us));
    TIMED(SPIN, spin(us));
}

COUNTED __attribute__((optimize("no-optimize-sibling-calls"))) int deep(int n, long us) {
    if (n == 0) {
        nap(us);
        return 0;
    }
    int result;
    TIMED(DEEP, result = deep(n - 1, us));
    return result + 1;
}

COUNTED long chain(long x) {
    __asm__ volatile(".rept 40\nimul %0, %0\n.endr" : "+r"(x));
    return x;
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_t holder;
static pthread_barrier_t entered;

COUNTED void *held(void *unused) {
    pthread_barrier_wait(&entered);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return unused;
}

static long long ns_part, ns_parted;
static long part_us;

COUNTED void part(int how) {
    long long begin = now();
    nap(part_us);
    long long took = now() - begin;
    ns_part += took;
    if (how < 0) ns_parted += took;
    if (how == 0) pthread_exit(NULL);
    if (how == 1) {
        syscall(SYS_exit, 0);
        abort();
    }
    if (how == 2) {
        pthread_cancel(pthread_self());
        pthread_testcancel();
        abort();
    }
}

static void *parter(void *how) {
    for (int i = 0; i < 4; i++) part(-1);
    part((int)(long)how);
    return NULL;
}

/* When the first thread ends in this way, the C library loads its unwinder. */
static void *ends(void *unused) {
    (void)unused;
    pthread_exit(NULL);
}

COUNTED void last(long us) {
    nap(us);
    _exit(3);
}

int main(void) {
    pthread_barrier_init(&entered, NULL, 2);
    say_ready();
    for (char *line; (line = next_command());) {
        long n, us, how;
        if (sscanf(line, "nap %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(NAP, nap(us));
        } else if (sscanf(line, "spin %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(SPIN, spin(us));
        } else if (sscanf(line, "nest %ld %ld", &n, &us) == 2) {
            for (long i = 0; i < n; i++) TIMED(AROUND, around(us));
        } else if (sscanf(line, "deep %ld %ld", &n, &us) == 2) {
            TIMED(DEEP, deep((int)n, us));
        } else if (sscanf(line, "chain %ld", &n) == 1) {
            for (long i = 0; i < n; i++) chain(i);
            calls[CHAIN] += n;
        } else if (sscanf(line, "rush %ld", &n) == 1) {
            for (long long end = now() + n * 1000000; now() < end;) {
                for (int i = 0; i < 64; i++) spin(1);
                calls[SPIN] += 64;
                chain(1);
                calls[CHAIN]++;
            }
        } else if (sscanf(line, "part %ld %ld %ld", &n, &us, &how) == 3) {
            pthread_t first;
            if (pthread_create(&first, NULL, ends, NULL)) abort();
            pthread_join(first, NULL);
            part_us = us;
            for (long i = 0; i < n; i++) {
                pthread_t id;
                if (pthread_create(&id, NULL, parter, (void *)how)) abort();
                pthread_join(id, NULL);
            }
            // The pause is so long that a timer that ran on would show.
            usleep(500000);
            say("ns part %lld", ns_part);
            say("ns parted %lld", ns_parted);
        } else if (sscanf(line, "last %ld", &us) == 1) {
            last(us);
        } else if (!strcmp(line, "block")) {
            pthread_mutex_lock(&gate);
            pthread_create(&holder, NULL, held, NULL);
            pthread_barrier_wait(&entered);
        } else if (!strcmp(line, "release")) {
            pthread_mutex_unlock(&gate);
            pthread_join(holder, NULL);
        } else {
            say("unknown command %s", line);
        }
        for (int f = 0; f < FUNCTIONS; f++) {
            if (f == CHAIN && !calls[f]) continue;
            say("tally %s %lld", names[f], calls[f]);
            say("ns %s %lld", names[f], ns[f]);
        }
        say("done");
    }
    return 0;
}
