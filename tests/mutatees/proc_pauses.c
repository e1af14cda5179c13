/* Calls `counted`, whose system call waits for a signal, again and again. Says "returned" after each call. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* pause(), with the system call in the last of the 8 bytes after the endbr64. */
__attribute__((naked, noinline, aligned(64))) int64_t counted(void) {
    __asm__("endbr64\n mov $34, %eax\n nop\n syscall\n ret\n");
}

static void nothing(int sig) { (void)sig; }

int main(void) {
    signal(SIGUSR1, nothing);
    alarm(600);
    printf("ready %d counted %p\n", getpid(), (void *)counted);
    fflush(stdout);
    for (;;) {
        printf("returned %ld\n", (long)counted());
        fflush(stdout);
    }
}
