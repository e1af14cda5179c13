/* Threads that call a small function without end while a timer's signals interrupt them, half of them handled on a stack of their own.
 *
 * beat              prints `handled N`, the signals so far, and `wrong N`, the calls that did not give what they must
 */
#include "mutatee.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

static atomic_long handled, wrong;

COUNTED long tick(long x) { return x * 5 + 3; }

static void on_tick(int sig) {
    /* The handler takes so long that a stop often finds a thread in it. */
    for (volatile int i = 0; i < 20000; i++) {
    }
    if (tick(sig) != sig * 5L + 3) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&handled, 1);
}

static void *work(void *number) {
    if ((long)number % 2) {
        stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
        sigaltstack(&stack, NULL);
    }
    for (long x = 0;; x++) {
        if (tick(x) != x * 5 + 3) atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    for (long i = 0, n = argc > 1 ? atol(argv[1]) : 1; i < n; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)i);
    }
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_PROF, &every, NULL);
    say_ready();
    for (char *line; (line = next_command());) {
        if (strcmp(line, "beat")) say("unknown command %s", line);
        say("handled %ld", atomic_load(&handled));
        say("wrong %ld", atomic_load(&wrong));
        say("done");
    }
    return 0;
}
