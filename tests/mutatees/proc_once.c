/* Calls `counted` once in a constructor and twice in main; with an argument, then waits. Ends with 0 if results are right. */
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

__attribute__((naked, noinline, aligned(64))) uint64_t counted(uint64_t x) {
    (void)x;
    __asm__("endbr64\n lea 0x11(%rdi), %rax\n imul $3, %rax, %rax\n ret\n");
}

static uint64_t first;

static void nothing(int sig) { (void)sig; }

__attribute__((constructor)) static void before_main(void) { first = counted(1); }

int main(int argc, char **argv) {
    (void)argv;
    signal(SIGUSR1, nothing);
    if (first != 54 || counted(2) != 57 || counted(3) != 60) return 1;
    if (argc > 1) {
        alarm(600);
        for (;;) pause();
    }
    return 0;
}
