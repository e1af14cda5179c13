/* Threads that count for each processor by restartable sequences (rseq(2)) of the program's own, as memory allocators do.
 *
 * sequences THREADS
 * go N   each thread runs each sequence N times: `lost NAME X` says how many of its counts are missing, `wrong X` all of them
 *
 * The sequences differ in the place of their descriptor: in the section that librseq uses, in other data, and on the stack. One has its
 * signature without an instruction around it.
 */
#include "mutatee.h"
#include <linux/rseq.h>
#include <sys/rseq.h>

#define WORDS 8 /* of a line of the cache */
#define PROCESSORS 1024

static struct rseq *own_area(void) { return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset); }

/* clang-format off */
#define DESCRIPTOR(name, section) \
    ".pushsection " section ",\"aw\"\n.balign 32\n" #name "_cs:\n.long 0, 0\n.quad 2f, 4f - 2f, 5f\n.popsection\n"
#define LISTED(name) DESCRIPTOR(name, "__rseq_cs") "lea " #name "_cs(%rip),%rax\n"
#define ELSEWHERE(name) DESCRIPTOR(name, ".data.rel.ro.own") "lea " #name "_cs(%rip),%rax\n"
#define MADE(name) \
    "movq $0,-64(%rsp)\nlea 2f(%rip),%rax\nmov %rax,-56(%rsp)\nmovq $4f - 2f,-48(%rsp)\n" \
    "lea 5f(%rip),%rax\nmov %rax,-40(%rsp)\nlea -64(%rsp),%rax\n"
#define INSTRUCTION ".byte 0x0f,0xb9,0x3d\n"
/* long NAME(long *counters, struct rseq *): adds one to the counter of the processor, and takes long enough to be interrupted there */
#define SEQUENCE(name, descriptor, before) \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" \
            "mov $2000,%r8d\n" \
            "1: " descriptor(name) "mov %rax,8(%rsi)\n" \
            "2: mov 4(%rsi),%ecx\nshl $6,%rcx\nmov (%rdi,%rcx),%rdx\nmov %r8d,%r9d\n" \
            "3: dec %r9d\njnz 3b\ninc %rdx\nmov %rdx,(%rdi,%rcx)\n" \
            "4: movq $0,8(%rsi)\nmov %rdx,%rax\nret\n" \
            ".size " #name ",.-" #name "\n" \
            ".pushsection .text.aborted,\"ax\"\n" before ".long 0x53053053\n5: jmp 1b\n.popsection\n"); \
    long name(long *, struct rseq *);
SEQUENCE(listed, LISTED, INSTRUCTION)
SEQUENCE(elsewhere, ELSEWHERE, INSTRUCTION)
SEQUENCE(bare, ELSEWHERE, "")
SEQUENCE(made, MADE, INSTRUCTION)
/* clang-format on */

static struct { const char *name; long (*run)(long *, struct rseq *); long counters[PROCESSORS * WORDS]; } all[] = {
    {"listed", listed, {0}}, {"elsewhere", elsewhere, {0}}, {"bare", bare, {0}}, {"made", made, {0}},
};
#define COUNT (sizeof all / sizeof *all)

static long times;

static void *work(void *unused) {
    struct rseq *area = own_area();
    for (long i = 0; i < times; i++)
        for (size_t f = 0; f < COUNT; f++) all[f].run(all[f].counters, area);
    return unused;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    long made_so_far = 0;
    if (!__rseq_size) return 2;
    say_ready();
    for (char *line; (line = next_command());) {
        if (sscanf(line, "go %ld", &times) == 1) {
            pthread_t ids[64];
            long wrong = 0;
            for (int i = 0; i < threads && i < 64; i++) pthread_create(&ids[i], NULL, work, NULL);
            for (int i = 0; i < threads && i < 64; i++) pthread_join(ids[i], NULL);
            made_so_far += threads * times;
            for (size_t f = 0; f < COUNT; f++) {
                long counted = 0;
                for (int p = 0; p < PROCESSORS; p++) counted += all[f].counters[p * WORDS];
                say("tally %s %ld", all[f].name, made_so_far);
                say("lost %s %ld", all[f].name, made_so_far - counted);
                wrong += made_so_far - counted;
            }
            say("wrong %ld", wrong);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
