/* A program that executes itself again and again.
 * execs PAUSE        says "ready", then executes itself every PAUSE microseconds until it is killed, at most for a minute */
#include "mutatee.h"

COUNTED long again(long x) { return x * 3 + 1; }

int main(int argc, char **argv) {
    if (argc < 2) return 3;
    if (argc == 2) {
        alarm(60); /* execve(2) keeps it, as it keeps the wish to end with the parent */
        say_ready();
    }
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (again(argc) < 0) return 4;
    usleep((useconds_t)atoi(argv[1]));
    execl("/proc/self/exe", argv[0], argv[1], "again", (char *)NULL);
    return 5;
}
