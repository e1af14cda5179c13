// A coroutine that waits at the end of a small stack. The stacks lie side by side in one mapping with a guard below all of them, as those
// of goroutines do, so that any write below this stack changes the neighbouring stack.
//
// go N              calls `work` N times; `wrong` counts bytes of the neighbour that changed
#include "mutatee.h"
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SLOT = 16384, SLOTS = 8, GUARD = 65536, LEFT = 640, PATTERN = 0x5a };

static unsigned char *pool;
static ucontext_t home, waits;
static char line[128];
static long length;
static volatile long total;

COUNTED long work(long x) { return x * 3 + 1; }

/// Uses up its stack, then reads lines.
static void reader(void) {
    unsigned char *bottom = pool + (SLOTS - 1) * SLOT;
    unsigned char here;
    volatile unsigned char *rest = alloca((size_t)(&here - bottom) - LEFT);
    rest[0] = 1;
    for (;;) {
        long got = 0, n;
        do {
            __asm__ volatile("syscall"
                             : "=a"(n)
                             : "a"(SYS_read), "D"(0), "S"(line + got), "d"(1)
                             : "rcx", "r11", "memory");
            got += n > 0 ? n : 0;
        } while (n == 1 && line[got - 1] != '\n' && got < (long)sizeof line - 1);
        line[got] = 0;
        length = got;
        swapcontext(&waits, &home);
    }
}

int main(void) {
    unsigned char *all = mmap(NULL, GUARD + SLOTS * SLOT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + GUARD, SLOTS * SLOT, PROT_READ | PROT_WRITE))
        return 1;
    pool = all + GUARD;
    memset(pool, PATTERN, SLOTS * SLOT);
    getcontext(&waits);
    waits.uc_stack.ss_sp = pool + (SLOTS - 1) * SLOT;
    waits.uc_stack.ss_size = SLOT;
    waits.uc_link = &home;
    makecontext(&waits, reader, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    say_ready();
    for (;;) {
        swapcontext(&home, &waits);
        long n;
        if (length == 0)
            return 0;
        if (sscanf(line, "go %ld", &n) == 1) {
            for (long i = 0; i < n; i++)
                work(i);
            total += n;
        } else {
            printf("unknown command %s", line);
        }
        long wrong = 0;
        for (long i = 0; i < (SLOTS - 1) * SLOT; i++)
            wrong += pool[i] != PATTERN;
        printf("tally work %ld\nwrong %ld\ndone\n", total, wrong);
    }
}
