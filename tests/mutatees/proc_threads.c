/* Threads that run or sleep. proc_threads THREADS busy|idle|half|waking: half of them run
 * and half sleep, or all wake every 0.1 ms. Pages with many functions to patch follow. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int busy, half, waking;

__attribute__((naked, noinline, aligned(64))) uint64_t counted(uint64_t x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n imul $3, %rax, %rax\n ret\n");
}

/* 1,280 pages with functions to patch. */
__asm__(".text\n.balign 4096\n.globl pages\npages:\n.rept 1280*128\nendbr64\nlea 0x11(%rdi), %rax\nimul $3, %rax, %rax\nret\n.balign 32\n.endr\n");
extern char pages[];

static void *thread(void *arg) {
    uint64_t i = (uintptr_t)arg;
    for (;;) {
        if (busy || (half && (uintptr_t)arg % 2))
            for (int k = 0; k < 1000; k++) i = counted(i);
        else if (waking)
            i = counted(i), nanosleep(&(struct timespec){0, 100000}, NULL);
        else
            pause();
    }
    return NULL;
}

int main(int argc, char **argv) {
    int n = atoi(argv[1]);
    busy = argc > 2 && !strcmp(argv[2], "busy");
    half = argc > 2 && !strcmp(argv[2], "half");
    waking = argc > 2 && !strcmp(argv[2], "waking");
    alarm(600);
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 1 << 18);
    for (int i = 0; i < n; i++) {
        pthread_t t;
        pthread_create(&t, &a, thread, (void *)(uintptr_t)i);
    }
    printf("ready %d counted %p pages %p\n", getpid(), (void *)counted, (void *)pages);
    fflush(stdout);
    for (;;) pause();
}
