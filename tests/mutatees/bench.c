/* The limit and the product side by side: an empty function called as it is, with a patch made by hand (jump, plain
 * increment, jump back), with two readings of the clock and their difference added up, and as whoever measures this program has woven it, in
 * turns within one run.
 *
 * measure N ROUNDS THREADS
 *     `time KIND THREADS NS` for every round, in nanoseconds per call: the slowest thread's; KIND is plain, hand, clock, woven.
 *     Every thread has a hand-made patch with a counter of its own, so that no cache line is shared: the strictest limit.
 */
#include "mutatee.h"
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define THREADS_MAX 4
/* Three kinds of the same function: a five-byte nop and a return, each in a cache line of its own. */
#define EMPTY(name) \
    ".p2align 6\n.globl " name "\n.type " name ",@function\n" name ":\n.byte 0x0f,0x1f,0x44,0,0\nret\n.size " name ",.-" name "\n"
__asm__(".text\n" EMPTY("plain") EMPTY("woven") EMPTY("hand0") EMPTY("hand1") EMPTY("hand2") EMPTY("hand3"));
/* The clock kept, an instruction, the clock again when that has ended, the difference added up: what a timer must do at least. */
#define CLOCK(name, place) \
    ".p2align 6\n.globl " name "\n.type " name ",@function\n" name ":\n" \
    "rdtsc\nshl $32,%rdx\nor %rdx,%rax\nmov %rax," place "(%rip)\n.byte 0x0f,0x1f,0x44,0,0\n" \
    "lfence\nrdtsc\nshl $32,%rdx\nor %rdx,%rax\nsub " place "(%rip),%rax\nadd %rax," place "+8(%rip)\nret\n.size " name ",.-" name "\n"
__asm__(".bss\n.p2align 7\ntimes: .skip 512\n.text\n" CLOCK("clock0", "times") CLOCK("clock1", "times+128") CLOCK("clock2", "times+256")
            CLOCK("clock3", "times+384"));
void clock0(void);
void clock1(void);
void clock2(void);
void clock3(void);
void plain(void);
void woven(void);
void hand0(void);
void hand1(void);
void hand2(void);
void hand3(void);
static void (*const hands[THREADS_MAX])(void) = {hand0, hand1, hand2, hand3};
static void (*const clocks[THREADS_MAX])(void) = {clock0, clock1, clock2, clock3};
static struct { uint64_t count; char pad[120]; } counters[THREADS_MAX] __attribute__((aligned(128)));

/* call_many(function, n): a loop that is aligned and the same for all kinds; the argument of call i is n - i */
void call_many(void (*function)(void), long n);
__asm__(".text\n.p2align 6\n.type call_many,@function\ncall_many:\npush %rbx\npush %rbp\npush %r12\nmov %rdi,%rbx\nmov %rsi,%rbp\n"
        ".p2align 5\n1: mov %rbp,%rdi\ncall *%rbx\ndec %rbp\njne 1b\npop %r12\npop %rbp\npop %rbx\nret\n.size call_many,.-call_many\n");

static void patch_by_hand(void) {
    char *near = (char *)(((uintptr_t)hand0 & ~0xfffull) + (64ull << 20));
    unsigned char *arena = MAP_FAILED;
    for (int i = 0; i < 16 && arena == MAP_FAILED; i++)
        arena = mmap(near + ((size_t)i << 24), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (arena == MAP_FAILED) abort();
    uintptr_t first = (uintptr_t)hand0 & ~0xfffull;
    if (mprotect((void *)first, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) abort();
    for (int i = 0; i < THREADS_MAX; i++) {
        unsigned char *code = arena + 64 * i, *function = (unsigned char *)(uintptr_t)hands[i];
        unsigned char increment[7] = {0x48, 0xff, 0x05}; /* inc qword ptr [rip + disp] */
        int32_t distance = (int32_t)((intptr_t)&counters[i].count - (intptr_t)(code + 7));
        memcpy(increment + 3, &distance, 4);
        memcpy(code, increment, 7);
        memcpy(code + 7, function, 5);
        code[12] = 0xe9;
        distance = (int32_t)((function + 5) - (code + 17));
        memcpy(code + 13, &distance, 4);
        distance = (int32_t)(code - (function + 5));
        function[0] = 0xe9;
        memcpy(function + 1, &distance, 4);
    }
    if (mprotect((void *)first, 8192, PROT_READ | PROT_EXEC) || mprotect(arena, 4096, PROT_READ | PROT_EXEC)) abort();
}

struct job {
    pthread_barrier_t *gate;
    void (*function)(void);
    long n;
    double ns;
};

static void *run(void *argument) {
    struct job *job = argument;
    struct timespec a, b;
    call_many(job->function, 1000);
    pthread_barrier_wait(job->gate);
    clock_gettime(CLOCK_MONOTONIC, &a);
    call_many(job->function, job->n);
    clock_gettime(CLOCK_MONOTONIC, &b);
    job->ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)job->n;
    return NULL;
}

static double round_of(int kind, int threads, long n) {
    pthread_barrier_t gate;
    pthread_t ids[THREADS_MAX];
    struct job jobs[THREADS_MAX];
    double slowest = 0;
    pthread_barrier_init(&gate, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (struct job){&gate, kind == 0 ? plain : kind == 1 ? hands[i] : kind == 2 ? clocks[i] : woven, n, 0};
        pthread_create(&ids[i], NULL, run, &jobs[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        if (jobs[i].ns > slowest) slowest = jobs[i].ns;
    }
    pthread_barrier_destroy(&gate);
    return slowest;
}

int main(void) {
    enum { KINDS = 4 };
    static const char *const kinds[KINDS] = {"plain", "hand", "clock", "woven"};
    long tally = 0;
    patch_by_hand();
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        int rounds, threads;
        if (sscanf(line, "measure %ld %d %d", &n, &rounds, &threads) == 3 && threads >= 1 && threads <= THREADS_MAX) {
            for (int r = 0; r < rounds; r++)
                for (int kind = 0; kind < KINDS; kind++) say("time %s %d %.4f", kinds[kind], threads, round_of(kind, threads, n));
            tally += (n + 1000) * rounds * threads;
            say("tally woven %ld", tally);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
