/* A program that executes another one, with more privileges, at a moment that the test chooses.
 * proc_execs main|busy|worker|shared GUEST: says "ready PID counted ADDRESS thread TID"; the main thread or another one waits for a line and
 * executes GUEST. With "busy" the other one never rests. With "shared" another process has the same memory, which stays when this one leaves it.
 * proc_execs guest: says "guest UID EUID"; at each line whether anybody has changed anything in it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The function that is patched: 8 bytes of whole instructions at its entry. */
__attribute__((naked, noinline, aligned(64))) uint64_t counted(uint64_t x) {
    __asm__("endbr64\n"
            "lea 0x11(%rdi), %rax\n"
            "imul $3, %rax, %rax\n"
            "ret\n");
}

static const unsigned char bytes[] = {0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x47, 0x11, 0x48, 0x6b, 0xc0, 0x03, 0xc3};

static const char *guest;
static atomic_int waiting;

static int touched(void) {
    char line[512];
    int found = memcmp((void *)counted, bytes, sizeof bytes) != 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        /* memory of an engine: its data area, or code without a file */
        char path[256] = "", flags[8] = "";
        sscanf(line, "%*s %7s %*s %*s %*s %255s", flags, path);
        if (strstr(line, "ingraft-area") || strstr(line, "memfd:ingraft")) found = 1;
        if (flags[2] == 'x' && path[0] == 0) found = 1;
    }
    if (maps) fclose(maps);
    return found;
}

static int be_guest(void) {
    char line[16];
    printf("guest %d %d\n", getuid(), geteuid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        puts(touched() ? "guest touched" : "guest clean");
        fflush(stdout);
    }
    return 0;
}

static void wait_and_exec(void) {
    char byte;
    atomic_store(&waiting, (int)syscall(SYS_gettid));
    if (read(0, &byte, 1) == 1) execl(guest, guest, "guest", (char *)NULL);
    _exit(1);
}

static void work(void) {
    for (uint64_t i = 0;; i++) {
        if (counted(i) != (i + 0x11) * 3) _exit(2);
        usleep(200);
    }
}

static void *spins(void *unused) {
    (void)unused;
    for (uint64_t i = 0;; i++) {
        if (counted(i) != (i + 0x11) * 3) _exit(2);
    }
    return NULL;
}

static void *waits(void *unused) {
    (void)unused;
    wait_and_exec();
    return NULL;
}

static void *works(void *unused) {
    (void)unused;
    work();
    return NULL;
}

__attribute__((noreturn)) static int sibling(void *unused) {
    (void)unused;
    close(0);
    close(1);
    alarm(20);
    for (;;) pause();
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc > 1 && strcmp(argv[1], "guest") == 0) return be_guest();
    if (argc < 3) return 3;
    alarm(60); /* never left behind */
    guest = argv[2];
    if (strcmp(argv[1], "shared") == 0) {
        char *stack = malloc(1 << 16);
        if (clone(sibling, stack + (1 << 16), CLONE_VM, NULL) < 0) return 4;
    }
    int busy = strcmp(argv[1], "busy") == 0, main_execs = busy || strcmp(argv[1], "main") == 0;
    pthread_create(&thread, NULL, busy ? spins : main_execs ? works : waits, NULL);
    if (main_execs) atomic_store(&waiting, getpid());
    while (!atomic_load(&waiting)) usleep(100);
    printf("ready %d counted %p thread %d\n", getpid(), (void *)counted, atomic_load(&waiting));
    fflush(stdout);
    if (main_execs) wait_and_exec();
    work();
}
