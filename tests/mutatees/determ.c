/* A deterministic run from constructor to destructor, to be compared with what a simulator counts.
 *
 * determ N          sorts, hashes and recurses; prints one line and exits 7
 */
#include "mutatee.h"

COUNTED static int compare(const void *a, const void *b) { return *(const int *)a < *(const int *)b ? -1 : *(const int *)a > *(const int *)b; }
COUNTED unsigned hash_step(unsigned hash, unsigned char byte) { return (hash ^ byte) * 16777619u; }
COUNTED unsigned hash_text(const char *text) {
    unsigned hash = 2166136261u;
    while (*text) hash = hash_step(hash, (unsigned char)*text++);
    return hash;
}
COUNTED long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
COUNTED int even(int n);
COUNTED int odd(int n) { return n == 0 ? 0 : even(n - 1); }
COUNTED int even(int n) { return n == 0 ? 1 : odd(n - 1); }
COUNTED void early(void) { __asm__ volatile("nopl 0(%rax,%rax,1)"); }
__attribute__((constructor)) static void at_start(void) { early(); }
__attribute__((destructor)) static void at_end(void) { early(); }

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1000;
    int *values = malloc(sizeof *values * (size_t)n);
    unsigned state = 1, sum = 0;
    for (int i = 0; i < n; i++) values[i] = (int)(state = state * 1103515245u + 12345u);
    qsort(values, (size_t)n, sizeof *values, compare);
    for (int i = 0; i < n; i++) {
        char text[32];
        snprintf(text, sizeof text, "%d", values[i]);
        sum += hash_text(text);
    }
    say("result %u %ld %d", sum, fib(18), even(n));
    free(values);
    return 7;
}
