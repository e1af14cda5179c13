/* Counts queued signals by the value each carries: every one must arrive exactly once.
 * proc_signals THREADS. Says "ready PID"; at SIGTERM "done received N lost L twice T". SIGALRM ends it after ten minutes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 2000000
static atomic_uchar seen[MOST];
static atomic_int received, highest = -1;
static volatile sig_atomic_t ending;

__attribute__((naked, noinline, aligned(64))) uint64_t counted(uint64_t x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n imul $3, %rax, %rax\n ret\n");
}

static void on_value(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    int v = info->si_value.sival_int;
    if (v >= 0 && v < MOST) atomic_fetch_add(&seen[v], 1);
    int h = atomic_load(&highest);
    while (v > h && !atomic_compare_exchange_weak(&highest, &h, v)) {}
    atomic_fetch_add(&received, 1);
    if (counted(1) != 54) _exit(1);
}

static void on_term(int sig) {
    (void)sig;
    ending = 1;
}

static void *thread(void *arg) {
    uint64_t x = (uintptr_t)arg;
    while (!ending) {
        if (counted(x) != (x + 0x11) * 3) _exit(1);
        x++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct sigaction a = {.sa_sigaction = on_value, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN + 4, &a, NULL);
    a.sa_handler = on_term;
    a.sa_flags = 0;
    sigaction(SIGTERM, &a, NULL);
    alarm(600);
    int n = argc > 1 ? atoi(argv[1]) : 1;
    pthread_t t[256];
    for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)i);
    printf("ready %d counted %p received %p\n", getpid(), (void *)counted, (void *)&received);
    fflush(stdout);
    while (!ending) usleep(1000);
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
    int lost = 0, twice = 0;
    for (int i = 0; i <= highest; i++) {
        lost += seen[i] == 0;
        twice += seen[i] > 1;
    }
    printf("done received %d lost %d twice %d\n", received, lost, twice);
    return 0;
}
