/* Calls of one function at many depths of the stack, some of which a longjmp leaves.
 *
 * sweep THREADS   each thread leaves a call of `f_way` by longjmp, and then makes another call, nearer to the beginning of its stack, which makes one inside:
 *                 deeper by 16 bytes in each further thread. So one of these lies where the call was that was left
 * The answer is `same COUNT`, the number of threads with such a call, and `done`. */
#include "mutatee.h"

#include <alloca.h>
#include <setjmp.h>

static _Thread_local jmp_buf back;
static _Thread_local unsigned long left_at, inner_at;
static atomic_long same;

/* The way is 1 1 or 2 2, whatever the call inside of it does. */
COUNTED void f_way(int way, long inner, int leaves) {
    char *room = alloca((size_t)(inner > 0 ? inner : 0) + 16);
    unsigned long at = (unsigned long)__builtin_frame_address(0);
    asm volatile("" : : "r"(room) : "memory");
    if (way == 1)
        asm volatile("nop");
    else
        asm volatile("xchg %ax,%ax");
    if (leaves) {
        left_at = at;
        longjmp(back, 1);
    }
    if (inner >= 0) f_way(3 - way, -1, 0);
    if (inner < 0) inner_at = at;
    if (way == 1)
        asm volatile("nop\nnop");
    else
        asm volatile("xchg %ax,%ax\nnop");
}

COUNTED void deeper(long by, long inner, int leaves) {
    char *room = alloca((size_t)by + 16);
    asm volatile("" : : "r"(room) : "memory");
    f_way(leaves ? 1 : 2, inner, leaves);
    asm volatile("" : : "r"(room) : "memory");
}

static void *run(void *number) {
    if (!setjmp(back)) deeper(4096, -1, 1);
    deeper(0, (long)number * 16, 0);
    if (left_at == inner_at) atomic_fetch_add(&same, 1);
    return NULL;
}

int main(void) {
    say_ready();
    for (char *command; (command = next_command());) {
        const long threads = atol(command + strlen("sweep "));
        for (long n = 0; n < threads; n++) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, run, (void *)n)) abort();
            pthread_join(thread, NULL);
        }
        say("same %ld", (long)same);
        say("done");
    }
}
