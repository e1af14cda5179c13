/* Threads that work and check themselves: general registers, vector registers, results, signals.
 * proc_worker THREADS [idle|churn]: says "ready PID", then "wrong: ..." and exits with 1 at the first error.
 * SIGUSR1: handler that computes and counts. SIGTERM: prints totals and exits with 0. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_ulong total, signals, started;
static volatile sig_atomic_t ending;
static int churn, idle;

/* The function that is patched: 8 bytes of whole instructions at its entry. */
__attribute__((naked, noinline, aligned(64))) uint64_t counted(uint64_t x) {
    __asm__("endbr64\n"
            "lea 0x11(%rdi), %rax\n"
            "imul $3, %rax, %rax\n"
            "ret\n");
}

/* Fills registers with patterns, waits a little, compares. Returns 0 if all is well. */
__attribute__((noinline)) static uint64_t registers_hold(uint64_t seed) {
    uint64_t bad;
    __asm__ volatile(
        "vmovq %1, %%xmm0\n vpbroadcastq %%xmm0, %%ymm0\n"
        "vpaddq %%ymm0, %%ymm0, %%ymm1\n vpaddq %%ymm1, %%ymm0, %%ymm2\n vpaddq %%ymm2, %%ymm0, %%ymm3\n"
        "vmovdqa %%ymm0, %%ymm12\n vmovdqa %%ymm1, %%ymm13\n vmovdqa %%ymm2, %%ymm14\n vmovdqa %%ymm3, %%ymm15\n"
        "mov %1, %%r8\n lea 1(%1), %%r9\n lea 2(%1), %%r10\n lea 3(%1), %%r11\n"
        "lea 4(%1), %%r12\n lea 5(%1), %%r13\n lea 6(%1), %%r14\n lea 7(%1), %%r15\n"
        "mov %%r8, -8(%%rsp)\n mov %%r9, -128(%%rsp)\n" /* the red zone */
        "mov $300, %%ecx\n"
        "1: dec %%ecx\n jnz 1b\n"
        "xor %%eax, %%eax\n"
        "mov -8(%%rsp), %%rdx\n sub %%r8, %%rdx\n or %%rdx, %%rax\n"
        "mov -128(%%rsp), %%rdx\n sub %%r9, %%rdx\n or %%rdx, %%rax\n"
        "sub %1, %%r8\n or %%r8, %%rax\n"
        "sub %1, %%r9\n dec %%r9\n or %%r9, %%rax\n"
        "sub %1, %%r12\n sub $4, %%r12\n or %%r12, %%rax\n"
        "sub %1, %%r15\n sub $7, %%r15\n or %%r15, %%rax\n"
        "sub %1, %%r10\n sub $2, %%r10\n or %%r10, %%rax\n"
        "sub %1, %%r11\n sub $3, %%r11\n or %%r11, %%rax\n"
        "vpxor %%ymm0, %%ymm12, %%ymm12\n vpxor %%ymm1, %%ymm13, %%ymm13\n"
        "vpxor %%ymm2, %%ymm14, %%ymm14\n vpxor %%ymm3, %%ymm15, %%ymm15\n"
        "vpor %%ymm12, %%ymm13, %%ymm12\n vpor %%ymm14, %%ymm15, %%ymm14\n vpor %%ymm12, %%ymm14, %%ymm12\n"
        "xor %%edx, %%edx\n vptest %%ymm12, %%ymm12\n setnz %%dl\n or %%rdx, %%rax\n"
        "mov %%rax, %0\n vzeroupper\n"
        : "=&r"(bad) : "r"(seed)
        : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0", "xmm1",
          "xmm2", "xmm3", "xmm12", "xmm13", "xmm14", "xmm15");
    return bad;
}

static void wrong(const char *what, uint64_t a, uint64_t b) {
    printf("wrong: %s %lx %lx\n", what, a, b);
    fflush(stdout);
    _exit(1);
}

static void work(uint64_t i) {
    uint64_t r = counted(i);
    if (r != (i + 0x11) * 3) wrong("result", i, r);
    uint64_t bad = registers_hold(i * 0x9e3779b97f4a7c15u + 1);
    if (bad) wrong("registers", i, bad);
    atomic_fetch_add(&total, 1);
}

static void on_signal(int sig) {
    (void)sig;
    if (counted(7) != 72) wrong("in handler", 0, 0);
    atomic_fetch_add(&signals, 1);
}

static void on_term(int sig) {
    (void)sig;
    ending = 1;
}

static void *short_life(void *arg) {
    for (uint64_t i = 0; i < 20; i++) work((uintptr_t)arg + i);
    return NULL;
}

static void *thread(void *arg) {
    uint64_t i = (uintptr_t)arg << 32;
    atomic_fetch_add(&started, 1);
    while (!ending) {
        if (idle) {
            struct timespec t = {0, 50000000};
            nanosleep(&t, NULL);
        }
        work(i++);
        if (churn) {
            pthread_t t;
            if (pthread_create(&t, NULL, short_life, (void *)(uintptr_t)i) == 0) pthread_join(t, NULL);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1;
    churn = argc > 2 && strcmp(argv[2], "churn") == 0;
    idle = argc > 2 && strcmp(argv[2], "idle") == 0;
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGRTMIN + 3, &a, NULL);
    a.sa_handler = on_term;
    a.sa_flags = 0;
    sigaction(SIGTERM, &a, NULL);
    alarm(600); /* never left behind */
    pthread_t t[4096];
    for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)(i + 1));
    while (atomic_load(&started) < (unsigned long)n) usleep(1000);
    printf("ready %d counted %p\n", getpid(), (void *)counted);
    fflush(stdout);
    while (!ending) {
        struct timespec ts = {0, 2000000};
        nanosleep(&ts, NULL);
        work(5);
    }
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
    printf("done total %lu signals %lu\n", atomic_load(&total), atomic_load(&signals));
    fflush(stdout);
    return 0;
}
