/* Functions that call each other a known number of times, for totals that include what a function calls. All that `outer` calls is in this
 * file, so the instructions of a call of `outer` are those of these functions.
 *
 * nested N          calls `outer(N)` and ends
 * nested            obeys commands:
 *   go N            calls `outer(N)`
 *   crew T N        T threads call `outer(N)` each, and end
 *   circle          a thread calls `outer` until the program ends, in one call of `endless`; answers when the first round is over
 *   rounds          answers the number of rounds of that thread
 *   leap N          calls `landed(N)`, which calls `leaper(N)`; that leaves by longjmp if N is odd
 */
#include "mutatee.h"
#include <setjmp.h>

/* The cost of a call depends on its argument. */
COUNTED long leaf(long n) {
    long sum = 1;
    while (n-- > 0) sum = sum * 3 + n;
    return sum;
}

/* Two calls of one function, with different costs. */
COUNTED long both(long n) {
    long sum = leaf(2);
    if (n % 3) sum += leaf(n % 7 + 20);
    return sum;
}

COUNTED long fact(long n) {
    long rest = n > 1 ? fact(n - 1) : 1;
    if (n > 3) rest += fact(n - 2);
    return rest * n + leaf(n);
}

COUNTED long even(long n);
COUNTED long odd(long n) {
    leaf(1);
    return n == 0 ? 0 : even(n - 1) + 1;
}
COUNTED long even(long n) { return n == 0 ? 1 : odd(n - 1) - 1; }

/* Ends by a jump to the function that it calls. */
COUNTED long tail(long n) { return both(n + 1); }

static long (*const choices[])(long) = {leaf, both, tail};
COUNTED long pick(long n) {
    long (*volatile chosen)(long) = choices[n % 3];
    return chosen(n % 11) + 1;
}

COUNTED long outer(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) {
        sum += both(i);
        sum += fact(i % 6);
        sum += even(i % 9);
        sum += tail(i);
        sum += pick(i);
    }
    return sum;
}

static jmp_buf landing;
COUNTED void leaper(long n) {
    leaf(n);
    if (n % 2) longjmp(landing, 1);
}
COUNTED long landed(long n) {
    if (setjmp(landing)) return leaf(1);
    leaper(n);
    return leaf(2);
}

static long each;
static _Atomic long rounds;

static void *member(void *unused) {
    (void)unused;
    outer(each);
    return NULL;
}

COUNTED void endless(void) {
    for (;;) {
        outer(5);
        rounds++;
    }
}

static void *circle(void *unused) {
    (void)unused;
    endless();
    return NULL;
}

int main(int count, char **arguments) {
    if (count > 1) {
        outer(atol(arguments[1]));
        return 0;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    say("ready");
    for (char *line; (line = next_command());) {
        long threads, n;
        if (sscanf(line, "go %ld", &n) == 1) {
            say("result %ld", outer(n));
        } else if (sscanf(line, "crew %ld %ld", &threads, &n) == 2 && threads <= 64) {
            pthread_t crew[64];
            each = n;
            for (long i = 0; i < threads; i++)
                if (pthread_create(&crew[i], NULL, member, NULL)) abort();
            for (long i = 0; i < threads; i++) pthread_join(crew[i], NULL);
        } else if (!strcmp(line, "circle")) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, circle, NULL)) abort();
            while (rounds == 0) sched_yield();
        } else if (!strcmp(line, "rounds")) {
            say("rounds %ld", (long)rounds);
        } else if (sscanf(line, "leap %ld", &n) == 1) {
            say("landed %ld", landed(n));
        } else {
            say("error");
        }
        say("done");
    }
    return 0;
}
