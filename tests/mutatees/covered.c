/* Functions with blocks that run only when they are asked to.
 *
 * choose N          calls `choose` with N
 * race N M          M threads call `choose` with 0 to N in turn, each a million times; answers `done` when all have ended
 * fork N            a child calls `choose` with N and ends; answers when it has ended
 * spin N            calls `choose` with 1, N times
 */
#include "mutatee.h"
#include <sys/wait.h>

static long total;

/* A switch, a loop, a condition of two parts, and a place that nothing reaches. */
COUNTED long choose(long n) {
    long sum = 0;
    switch (n) {
    case 0: sum = 10; break;
    case 1: sum = 20; break;
    case 2: sum = 30; break;
    case 3: sum = 40; break;
    case 4: sum = 50; break;
    default: sum = n > 100 ? n * 3 : -n;
    }
    for (long i = 0; i < n; i++) sum += i ^ 5;
    if (n > 1 && sum % 2 == 0) total += sum;
    if (n < 0) {
        say("negative");
        sum = -sum;
    }
    return sum;
}

COUNTED long never(long n) { return n > 0 ? n : -n; }

static void *racer(void *largest) {
    long most = (long)largest;
    for (long i = 0; i < 1000000; i++) choose(i % (most + 1));
    return NULL;
}

static void race(long most, int count) {
    pthread_t threads[64];
    for (int i = 0; i < count && i < 64; i++) pthread_create(&threads[i], NULL, racer, (void *)most);
    for (int i = 0; i < count && i < 64; i++) pthread_join(threads[i], NULL);
}

static void child(long n) {
    pid_t pid = fork();
    if (pid == 0) _exit(choose(n) == 0);
    int status;
    waitpid(pid, &status, 0);
}

int main(int argc, char **argv) {
    if (argc > 5) never(atoi(argv[1]));
    say("ready");
    char *line;
    long n;
    int count;
    while ((line = next_command())) {
        if (sscanf(line, "choose %ld", &n) == 1) choose(n);
        else if (sscanf(line, "race %ld %d", &n, &count) == 2) race(n, count);
        else if (sscanf(line, "fork %ld", &n) == 1) child(n);
        else if (sscanf(line, "spin %ld", &n) == 1) {
            while (n-- > 0) choose(1);
        }
        say("done");
    }
    return 0;
}
