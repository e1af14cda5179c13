/* A program whose threads all sit in the counted function: it begins with its own loop, so that program counters are
 * always within the bytes that an entry springboard overwrites.
 *
 * spin COUNT
 * beat              prints how often all threads together went round
 * leave             lets every thread leave the function and enter it again once: `tally sit N`
 */
#include "mutatee.h"

static atomic_int leave_round;
static atomic_long entered;
static int count;

/* sit(counter, stop, round): `1: inc (rdi); cmp [rsi], edx; je 1b; ret`, the loop head being the entry. */
long sit(long *counter, atomic_int *stop, int round);
__asm__(".text\n.p2align 4\n.globl sit\n.type sit,@function\nsit:\n.cfi_startproc\n"
        "incq (%rdi)\ncmpl %edx,(%rsi)\nje sit\nmovq (%rdi),%rax\nret\n.cfi_endproc\n.size sit,.-sit\n");

struct slot { long value; char pad[56]; };
static struct slot *slots;

static void *work(void *argument) {
    struct slot *slot = argument;
    int round = 0;
    for (;;) {
        atomic_fetch_add(&entered, 1);
        sit(&slot->value, &leave_round, round);
        round = atomic_load(&leave_round);
    }
    return NULL;
}

int main(int argc, char **argv) {
    count = argc > 1 ? atoi(argv[1]) : 4;
    slots = calloc((size_t)count, sizeof *slots);
    for (int i = 0; i < count; i++) {
        pthread_t id;
        if (pthread_create(&id, NULL, work, &slots[i])) abort();
    }
    while (atomic_load(&entered) < count) sched_yield();
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "beat")) {
            long sum = 0;
            for (int i = 0; i < count; i++) sum += ((volatile struct slot *)&slots[i])->value;
            say("beats %ld", sum);
        } else if (!strcmp(line, "leave")) {
            long before = atomic_load(&entered);
            atomic_fetch_add(&leave_round, 1);
            while (atomic_load(&entered) < before + count) sched_yield();
            say("tally sit %ld", atomic_load(&entered));
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    _exit(0);
}
