// A deterministic program with branches, loops, a jump table, recursion, calls through pointers and inlined functions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int twice(int x) { return x > 3 ? x + x : 2 * x + (x & 1); }

static __attribute__((noinline)) int step(int x) {
    if (x & 1)
        return 3 * x + 1;
    return x / 2;
}

static __attribute__((noinline)) int length(int x) {
    int n = 0;
    while (x != 1) {
        x = step(x);
        n++;
    }
    return n;
}

__attribute__((noinline)) int kind(int x) {
    switch (x % 9) {
    case 0: return 5;
    case 1: return x + 3;
    case 2: return x * 9;
    case 3: return x - 77;
    case 4: return twice(x) ^ 3;
    case 5: return x | 64;
    case 6: return strlen("abc") + x;
    default: return 0;
    }
}

__attribute__((noinline)) int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__attribute__((noinline)) int never(int x) {
    if (x > 5)
        return 1;
    return kind(x);
}

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv) {
    int longest = 0, sum = 0, values[20];
    for (int i = 1; i < 40; i++) {
        int n = length(i);
        if (n > longest)
            longest = n;
        sum += kind(i) + twice(i);
        values[i % 20] = sum;
    }
    qsort(values, 20, sizeof values[0], compare);
    if (argc > 1)
        sum += never(argc);
    printf("%d %d %d %d\n", longest, sum, values[10], fibonacci(9));
    return 0;
}
