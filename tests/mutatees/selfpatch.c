/* A program that writes its own code while it runs: a static key, whose five bytes are a nop or a jump, and a constant in an instruction.
 *
 * go N        calls each function N times; prints `wrong N`, the number of wrong answers of these calls
 * spin N      N threads call the functions without end, until `rest`
 * rest        they end; prints how many of their answers were wrong
 * key on|off  switches the static key
 * set K       changes the constant
 * drop N      discards the pages of its text N times, so that they come from the file again
 *
 * While it writes, its own threads wait outside of the functions. */
#include "mutatee.h"
#include <stdint.h>
#include <sys/mman.h>

/* The static key, as a table of the program tells: distances from the fields themselves. */
struct entry {
    int32_t code, target;
    int64_t key;
};
extern struct entry __start___jump_table[];

static long key_is_on, factor = 3;

/* A loop of two ways, with a static key in it. */
COUNTED long gated(long x) {
    long sum = 0;
    for (long i = 0; i < x % 8 + 1; i++) {
        __asm__ goto("1: .byte 0x0f, 0x1f, 0x44, 0, 0\n"
                     ".pushsection __jump_table, \"aw\"\n .balign 8\n"
                     " .long 1b - ., %l[on] - .\n .quad key_is_on - .\n .popsection\n"
                     :
                     :
                     :
                     : on);
        sum += 1;
        continue;
    on:
        sum += 100;
    }
    return sum;
}

/* A loop with a constant that the program writes into its `mov`. No table tells of it. */
COUNTED long constant(long x) {
    long sum = 0;
    for (long i = 0; i < x % 8 + 1; i++) {
        int by;
        __asm__ volatile(".byte 0xb8\n .long 3\n" : "=a"(by));
        sum += i & 1 ? by : 2 * by;
    }
    return sum;
}

/* The first byte of the constant. */
static uintptr_t the_constant;

static void find_constant(void) {
    static const unsigned char mov[] = {0xb8, 3, 0, 0, 0};
    unsigned char *found = memmem((void *)(uintptr_t)constant, 256, mov, sizeof mov);
    if (!found) abort();
    the_constant = (uintptr_t)found + 1;
}

COUNTED long plain(long x) {
    long sum = 0;
    for (long i = 0; i < x % 8 + 1; i++) sum += i & 1 ? 5 : 7;
    return sum;
}

static long call(long x) {
    long n = x % 8 + 1, odd = n / 2, even = n - odd;
    return (gated(x) != n * (key_is_on ? 100 : 1)) + (constant(x) != (odd + 2 * even) * factor) +
           (plain(x) != odd * 5 + even * 7);
}

static atomic_int resting, pausing, paused;
static atomic_long spun_wrong;
static pthread_t spinners[16];
static int spinning;

static void *spin(void *unused) {
    for (long x = 0; !resting; x++) {
        if (pausing) {
            paused++;
            while (pausing) sched_yield();
            paused--;
        }
        spun_wrong += call(x);
    }
    return unused;
}

static void write_code(uintptr_t at, const unsigned char *bytes, size_t count) {
    pausing = 1;
    while (paused < spinning) sched_yield();
    uintptr_t page = at & ~4095ul;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) abort();
    memcpy((void *)at, bytes, count);
    if (mprotect((void *)page, 8192, PROT_READ | PROT_EXEC)) abort();
}

static void resume(void) {
    pausing = 0;
    while (paused) sched_yield();
}

static void switch_key(int on) {
    struct entry *entry = __start___jump_table;
    uintptr_t at = (uintptr_t)&entry->code + entry->code, target = (uintptr_t)&entry->target + entry->target;
    unsigned char code[5] = {0x0f, 0x1f, 0x44, 0, 0};
    if (on) {
        int32_t distance = (int32_t)(target - (at + 5));
        code[0] = 0xe9;
        memcpy(code + 1, &distance, 4);
    }
    write_code(at, code, sizeof code);
    key_is_on = on;
    resume();
}

static void set_constant(int value) {
    unsigned char code[4];
    memcpy(code, &value, 4);
    write_code(the_constant, code, sizeof code);
    factor = value;
    resume();
}

extern char __executable_start, etext;

static void drop(long times) {
    uintptr_t from = (uintptr_t)&__executable_start, until = ((uintptr_t)&etext + 4095) & ~4095ul;
    while (times--) {
        if (madvise((void *)from, until - from, MADV_DONTNEED)) abort();
        sched_yield();
    }
}

int main(void) {
    find_constant();
    say_ready();
    for (char *line; (line = next_command());) {
        long n, wrong = 0;
        if (sscanf(line, "go %ld", &n) == 1) {
            for (long x = 0; x < n; x++) wrong += call(x);
        } else if (sscanf(line, "spin %ld", &n) == 1) {
            resting = 0;
            spun_wrong = 0;
            for (; spinning < n && spinning < 16; spinning++) {
                if (pthread_create(&spinners[spinning], NULL, spin, NULL)) abort();
            }
        } else if (!strcmp(line, "rest")) {
            resting = 1;
            while (spinning) pthread_join(spinners[--spinning], NULL);
            wrong = spun_wrong;
        } else if (!strcmp(line, "key on") || !strcmp(line, "key off")) {
            switch_key(line[5] == 'n');
        } else if (sscanf(line, "set %ld", &n) == 1) {
            set_constant((int)n);
        } else if (sscanf(line, "drop %ld", &n) == 1) {
            drop(n);
        } else {
            say("unknown command %s", line);
        }
        say("wrong %ld", wrong);
        say("done");
    }
    return 0;
}
