/* What every target program shares: a line protocol on stdin and stdout.
 *
 * A mutatee prints `ready …` once it can be measured, then obeys one command a line and answers with lines of which the
 * last is `done`. Nothing is timed: whoever drives it waits for lines. It ends at the end of its input, and with its parent. */
#ifndef MUTATEE_H
#define MUTATEE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A function that the compiler neither inlines, clones, nor knows anything about at its call sites. */
#define COUNTED __attribute__((noipa, used))

/* Prints one line at once. */
__attribute__((format(printf, 1, 2), unused)) static void say(const char *format, ...) {
    char line[4096];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (length < 0) abort();
    if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    for (int written = 0; written < length;) {
        ssize_t n = write(1, line + written, (size_t)(length - written));
        if (n <= 0) _exit(3);
        written += (int)n;
    }
}

/* The next command without its newline, or NULL at the end of the input. The common ones are obeyed here. */
__attribute__((unused)) static char *next_command(void) {
    static char line[4096];
    for (;;) {
        if (!fgets(line, sizeof line, stdin)) return NULL;
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "ping")) {
            say("pong");
            say("done");
        } else if (!strcmp(line, "crash")) {
#ifndef NO_HANDLERS /* else a static program has nothing that concerns them */
            signal(SIGSEGV, SIG_DFL);
#endif
            raise(SIGSEGV);
        } else if (!strncmp(line, "exit ", 5)) {
            exit(atoi(line + 5));
        } else {
            return line;
        }
    }
}

/* Says that the program can be measured now. */
__attribute__((unused)) static void say_ready(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* a sibling may measure us where yama restricts ptrace */
    say("ready");
}

__attribute__((unused)) static int own_tid(void) { return (int)syscall(SYS_gettid); }

#endif
