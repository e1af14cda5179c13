/* Functions whose calls take more or less the same time, for predictions of the mean and the deviation.
 *
 * varied N          calls `serve` N times and `steady` N times, and ends
 */
#include "mutatee.h"

/* Each call has the same number of instructions. */
COUNTED long steady(long n) {
    for (int i = 0; i < 10; i++) n = n * 3 + i;
    return n;
}

COUNTED long rare(long n) {
    for (int i = 0; i < 500; i++) n = n * 5 + i;
    return n;
}

/* One call of ten calls `rare`, and one of two has a few instructions more. */
COUNTED long serve(long n) {
    long sum = steady(n);
    if (n % 2) sum = sum * 7 + 1;
    if (n % 10 == 4) sum += rare(n);
    return sum;
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 1000, sum = 0;
    for (long i = 0; i < n; i++) sum += serve(i) + steady(i);
    say("sum %ld", sum);
    return 0;
}
