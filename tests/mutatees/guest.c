/* A program whose functions definitions call.
 *
 * work N            N calls of `work`, each with its number
 * threads T N       the same in T threads at once
 * alarms N          N calls of `work` while a timer's signals call `handled` all the time, on an alternate stack
 * enter / leave     a thread calls `gate`, whose code is to call `linger`, and waits there / goes on
 * leaps N           N calls of `bounce`, whose code is to call `leap`, which leaves by longjmp
 * forks N           N children that call `work` 10 times each and are waited for
 * Each answer has `tally FUNCTION CALLS`; `tally helper` has all calls, whoever made them. */
#include "mutatee.h"
#include <setjmp.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <semaphore.h>

static _Atomic long worked, helped, reentered, gated, lingered, bounced, leapt, handled_count, sum, wrong;
static sem_t inside, out;
static jmp_buf home;

/* Called by definitions: the result depends on both arguments. */
COUNTED long helper(long a, long b) {
    helped++;
    volatile double x = (double)a * 0.5; /* computed in vector registers */
    return 3 * a + b + (x < 0);
}

COUNTED long work(long n) {
    worked++;
    sum += n;
    return n;
}

/* Called by definitions: calls the function into which they are woven. */
COUNTED long reenter(long n) {
    reentered++;
    return work(n) + 1;
}

COUNTED long linger(void) {
    lingered++;
    sem_post(&inside);
    sem_wait(&out);
    return 7;
}

COUNTED long gate(long n) {
    gated++;
    return n * 2;
}

COUNTED long leap(void) {
    if (leapt++ >= 0) longjmp(home, 1); /* the condition hides from the compiler that the function never returns */
    return 1;
}

COUNTED void bounce(void) { bounced++; }

COUNTED void handled(void) { handled_count++; }

static void on_alarm(int signal) {
    (void)signal;
    handled();
}

static void works(long n) {
    for (long i = 0; i < n; i++) {
        if (work(i) != i) wrong++;
    }
}

static void *in_thread(void *n) {
    works((long)n);
    return NULL;
}

static void *through_gate(void *unused) {
    if (gate(21) != 42) wrong++;
    return unused;
}

int main(void) {
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART};
    pthread_t guest;
    sigaltstack(&alternate, NULL);
    sigaction(SIGALRM, &action, NULL);
    sem_init(&inside, 0, 0);
    sem_init(&out, 0, 0);
    say_ready();
    for (char *line; (line = next_command());) {
        long n, t;
        if (sscanf(line, "work %ld", &n) == 1) {
            works(n);
        } else if (sscanf(line, "threads %ld %ld", &t, &n) == 2 && t <= 64) {
            pthread_t threads[64];
            for (long i = 0; i < t; i++) pthread_create(&threads[i], NULL, in_thread, (void *)n);
            for (long i = 0; i < t; i++) pthread_join(threads[i], NULL);
        } else if (sscanf(line, "alarms %ld", &n) == 1) {
            struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
            setitimer(ITIMER_REAL, &often, NULL);
            works(n);
            setitimer(ITIMER_REAL, &never, NULL);
        } else if (!strcmp(line, "enter")) {
            pthread_create(&guest, NULL, through_gate, NULL);
            sem_wait(&inside);
        } else if (!strcmp(line, "leave")) {
            sem_post(&out);
            pthread_join(guest, NULL);
        } else if (sscanf(line, "leaps %ld", &n) == 1) {
            for (volatile long i = 0; i < n; i++) {
                if (!setjmp(home)) bounce();
            }
        } else if (sscanf(line, "forks %ld", &n) == 1) {
            for (long i = 0; i < n; i++) {
                pid_t child = fork();
                if (child == 0) {
                    wrong = 0;
                    works(10);
                    _exit(wrong != 0);
                }
                int status;
                if (waitpid(child, &status, 0) != child || status != 0) wrong++;
            }
        } else {
            say("unknown command %s", line);
        }
        say("tally work %ld", worked);
        say("tally helper %ld", helped);
        say("tally reenter %ld", reentered);
        say("tally gate %ld", gated);
        say("tally linger %ld", lingered);
        say("tally bounce %ld", bounced);
        say("tally leap %ld", leapt);
        say("tally handled %ld", handled_count);
        say("sum %ld", sum);
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
