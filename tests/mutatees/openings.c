/* Functions with first instructions of each kind, called by several threads at once.
 *
 * openings THREADS
 * where    prints the address of each function
 * go N     each thread calls each function N times; prints the tallies
 * faults N calls `loads` N times with an address that cannot be read; a handler leaves it by siglongjmp
 */
#include <setjmp.h>
#include <signal.h>

#include "mutatee.h"

long pushes(long, long *), reserves(long, long *), compares(long, long *), loses(long, long *), changes(long, long *);
long loads(long, long *), stores(long, long *), jumps(long, long *), loops(void);

/* clang-format off */
#define FUNCTION(name, code) \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" code "ret\n.size " #name ",.-" #name "\n")
FUNCTION(pushes, "push %rbx\nmov %rdi,%rbx\nlea 1(%rbx),%rax\npop %rbx\n");
FUNCTION(reserves, "sub $24,%rsp\nmov %rdi,(%rsp)\nmov (%rsp),%rax\nadd $24,%rsp\n");
FUNCTION(compares, "test %rdi,%rdi\nsetne %al\nmovzbl %al,%eax\n");
FUNCTION(loses, "mov $7,%edi\nlea 3(%rdi),%rax\nnop\n");
/* its own branch leads back to the first instruction three times */
FUNCTION(loops, "push %rbx\nmov $4,%ebx\npop %rbx\ninc %rsi\ncmp $3,%rsi\njl loops\nmov %rsi,%rax\n");
/* two executions of the first instruction differ from one, so it runs once, before the springboard */
FUNCTION(changes, "inc %rdi\nmov %rdi,%rax\nnop\nnop\n");
FUNCTION(loads, "mov (%rsi),%rax\nadd %rdi,%rax\nnop\nnop\n");
FUNCTION(stores, "mov %rdi,(%rsi)\nmov (%rsi),%rax\nnop\nnop\n");
/* a branch cannot stay */
FUNCTION(jumps, "je 1f\n.skip 6,0x90\n1: lea 2(%rdi),%rax\nnop\nnop\n");
/* clang-format on */

static struct { const char *name; long (*call)(long, long *); } const all[] = {
    {"pushes", pushes}, {"reserves", reserves}, {"compares", compares}, {"loses", loses}, {"changes", changes},
    {"loads", loads}, {"stores", stores}, {"jumps", jumps},
};
#define COUNT (sizeof all / sizeof *all)

static atomic_long wrong, tally;
static long calls_each;

static long expected(size_t f, long x) {
    long const results[COUNT] = {x + 1, x, x != 0, 10, x + 1, x + 5, x, x + 2};
    return results[f];
}

static long loop(void) {
    long result;
    __asm__ volatile("xor %%esi,%%esi\ncall loops" : "=a"(result) : : "rsi", "rdi", "rcx", "rdx", "r8", "r9", "r10", "r11", "memory", "cc");
    return result;
}

static void *work(void *unused) {
    for (long i = 0; i < calls_each; i++) {
        for (size_t f = 0; f < COUNT; f++) {
            long cell = 5;
            if (all[f].call(i, &cell) != expected(f, i)) atomic_fetch_add(&wrong, 1);
        }
        if (loop() != 3) atomic_fetch_add(&wrong, 1);
    }
    atomic_fetch_add(&tally, calls_each);
    return unused;
}

static sigjmp_buf home;

static void leave(int unused) {
    (void)unused;
    siglongjmp(home, 1);
}

static void fault(long times) {
    static volatile long n;
    signal(SIGSEGV, leave);
    for (n = 0; n < times; n++)
        if (!sigsetjmp(home, 1)) {
            loads(n, NULL);
            atomic_fetch_add(&wrong, 1);
        }
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    pthread_t *ids = calloc((size_t)threads + 1, sizeof *ids);
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "where")) {
            for (size_t f = 0; f < COUNT; f++) say("at %s %lu", all[f].name, (unsigned long)all[f].call);
            say("at loops %lu", (unsigned long)loops);
        } else if (!strncmp(line, "go ", 3)) {
            calls_each = atol(line + 3);
            for (int i = 1; i < threads; i++)
                if (pthread_create(&ids[i], NULL, work, NULL)) abort();
            work(NULL);
            for (int i = 1; i < threads; i++) pthread_join(ids[i], NULL);
            for (size_t f = 0; f < COUNT; f++) say("tally %s %ld", all[f].name, atomic_load(&tally));
            say("tally loops %ld", atomic_load(&tally));
            say("wrong %ld", atomic_load(&wrong));
        } else if (!strncmp(line, "faults ", 7)) {
            fault(atol(line + 7));
            say("wrong %ld", atomic_load(&wrong));
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
