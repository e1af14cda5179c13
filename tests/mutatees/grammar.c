/* A calculator, to compare its coverage with gcov's: evaluates each argument, prints the values, and exits with the number of errors. */
#include <ctype.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *at;
static jmp_buf wrong;
static long variables[26];

static void fail(const char *what) {
    fprintf(stderr, "%s at `%s`\n", what, at);
    longjmp(wrong, 1);
}

static void blanks(void) {
    while (isspace((unsigned char)*at)) at++;
}

static int accept(char c) {
    blanks();
    if (*at != c) return 0;
    at++;
    return 1;
}

static long sum(void);

static long primary(void) {
    blanks();
    if (accept('(')) {
        long value = sum();
        if (!accept(')')) fail("no closing parenthesis");
        return value;
    }
    if (isdigit((unsigned char)*at)) return strtol(at, (char **)&at, 0);
    if (islower((unsigned char)*at)) {
        int name = *at++ - 'a';
        if (accept('=')) variables[name] = sum();
        return variables[name];
    }
    switch (*at) {
    case '-': at++; return -primary();
    case '~': at++; return ~primary();
    case '!': at++; return !primary();
    case 0: fail("an early end"); break;
    default: fail("no value");
    }
    return 0;
}

static long product(void) {
    long value = primary();
    for (;;) {
        if (accept('*')) value *= primary();
        else if (accept('/')) {
            long by = primary();
            if (by == 0) fail("a division by 0");
            value /= by;
        } else if (accept('%')) {
            long by = primary();
            if (by == 0) goto zero;
            value %= by;
        } else return value;
    }
zero:
    fail("a remainder by 0");
    return 0;
}

static long sum(void) {
    long value = product();
    int more = 1;
    do {
        if (accept('+')) value += product();
        else if (accept('-')) value -= product();
        else more = 0;
    } while (more);
    return value;
}

static long choice(void) {
    long value = sum();
    if (!accept('?')) return value;
    long yes = choice();
    if (!accept(':')) fail("no colon");
    long no = choice();
    return value ? yes : no;
}

int main(int argc, char **argv) {
    volatile int errors = 0;
    for (volatile int i = 1; i < argc; i++) {
        at = argv[i];
        if (setjmp(wrong)) {
            errors++;
            continue;
        }
        long value = choice();
        blanks();
        if (*at) fail("something behind the end");
        printf("%ld%s", value, value < 0 && value > -10 ? " (slightly negative)\n" : "\n");
    }
    if (errors > 200) abort();
    return errors;
}
