/* Threads that are interrupted all the time by signals whose handler, on its own stack, calls counted functions.
 *
 * signals COUNT     COUNT threads that call `work` when told to
 * go N              each thread calls `work` N times while signals arrive; `tally work`, `tally on_signal`, `tally in_handler`
 */
#include "mutatee.h"
#include <ucontext.h>

COUNTED long work(long x) { return x * 3 + (x >> 2); }
COUNTED long in_handler(long x) { return x * 5 + 1; }

static atomic_long handled, wrong;
static pthread_t threads[256];
static int count;
static long each;
static pthread_barrier_t start, end, sent, handled_all;

COUNTED void on_signal(int number, siginfo_t *info, void *context) {
    int saved = errno;
    (void)number, (void)info, (void)context;
    long n = atomic_fetch_add(&handled, 1);
    if (in_handler(n) != n * 5 + 1) atomic_fetch_add(&wrong, 1);
    errno = saved;
}

static void *run(void *unused) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, NULL);
    for (;;) {
        pthread_barrier_wait(&start);
        long bad = 0;
        for (long i = 0; i < each; i++) bad += work(i) != i * 3 + (i >> 2);
        atomic_fetch_add(&wrong, bad);
        pthread_barrier_wait(&end);
        pthread_barrier_wait(&sent);
        sched_yield(); /* pending signals are handled before a system call returns, and no further ones are sent */
        pthread_barrier_wait(&handled_all);
    }
    return unused;
}

static atomic_int sending;
static void *send(void *unused) {
    while (atomic_load(&sending))
        for (int i = 0; i < count; i++) pthread_kill(threads[i], SIGUSR1);
    return unused;
}

int main(int argc, char **argv) {
    long tally = 0;
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    count = argc > 1 ? atoi(argv[1]) : 4;
    if (count > 256) abort();
    pthread_barrier_init(&start, NULL, (unsigned)count + 1);
    pthread_barrier_init(&end, NULL, (unsigned)count + 1);
    pthread_barrier_init(&sent, NULL, (unsigned)count + 1);
    pthread_barrier_init(&handled_all, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run, NULL)) abort();
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "go %ld", &n) == 1) {
            pthread_t sender;
            each = n;
            pthread_barrier_wait(&start);
            atomic_store(&sending, 1);
            pthread_create(&sender, NULL, send, NULL);
            pthread_barrier_wait(&end);
            atomic_store(&sending, 0);
            pthread_join(sender, NULL);
            for (int i = 0; i < count; i++) pthread_kill(threads[i], SIGUSR1); /* at least one signal for each thread */
            /* A signal may be pending, or handled but not in the tally yet. Each thread tells when it has no signal left. */
            pthread_barrier_wait(&sent);
            pthread_barrier_wait(&handled_all);
            tally += n * count;
            say("tally work %ld", tally);
            say("tally on_signal %ld", atomic_load(&handled));
            say("tally in_handler %ld", atomic_load(&handled));
            say("wrong %ld", atomic_load(&wrong));
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    _exit(0);
}
