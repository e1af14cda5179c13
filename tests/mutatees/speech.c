/* What code of definitions says to a program and hears from it: texts, floating-point numbers, variables that it sets, faults of threads.
 *
 * scale N           N calls of `scale` with i * 0.75 - 10 and 1000.5f - i
 * greet WORD N      N calls of `greet` with WORD right in front of a page that is not there
 * touch PAGES       a call of `touch`, which touches PAGES fresh pages
 * nap N             a call of `nap`, which sleeps N times
 * leap PAGES        the same as `touch`, left by longjmp
 * work N            N calls of `work`
 * fork              a fork child calls `work`; `child 42` if none of its variables has changed
 * Each answer has the tallies and the variables. */
#include "mutatee.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

int level = 5;
short small = -3;
unsigned char tiny = 200;
static volatile long waiting = 1l << 40;
struct { char kind; long depth; } settings = {1, 2};
const int fixed = 7;
volatile int *const bound = &level;
double share = 0.5;

static long doubles, floats, products, faults, switches, greeted, told, worked;
static jmp_buf home;

COUNTED double scale(double x, long n, float y) {
    __asm__ volatile("" : : "x"(x), "r"(n), "x"(y));
    return x * y;
}

COUNTED void greet(const char *name) {
    __asm__ volatile("" : : "r"(name) : "memory");
    greeted++;
}

/* Called by definitions. */
COUNTED long tell(const char *text, long n) {
    long sum = n;
    told++;
    while (*text) sum = sum * 31 + *text++;
    return sum;
}

/* Called by definitions: returns a second result through a pointer, as functions of C do. */
COUNTED int split(long n, long *half) {
    *half = n / 2;
    return (int)(n % 2);
}

COUNTED void work(long n) {
    __asm__ volatile("" : : "r"(n));
    worked++;
}

static long counted(int of_faults) {
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return of_faults ? u.ru_minflt : u.ru_nvcsw + u.ru_nivcsw;
}

static void fresh(long n) {
    size_t bytes = (size_t)n * 4096;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || madvise(at, bytes, MADV_NOHUGEPAGE)) abort();
    for (size_t i = 0; i < bytes; i += 4096) at[i] = 1;
    munmap(at, bytes);
}

COUNTED void touch(long n) {
    long before = counted(1);
    fresh(n);
    faults += counted(1) - before;
}

COUNTED void leap(long n) {
    fresh(n);
    longjmp(home, 1);
}

COUNTED void nap(long n) {
    struct timespec t = {0, 1000000};
    long before = counted(0);
    while (n-- > 0) nanosleep(&t, NULL);
    switches += counted(0) - before;
}

int main(void) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        char word[64];
        if (sscanf(line, "scale %ld", &n) == 1) {
            for (long i = 0; i < n; i++) {
                double x = (double)i * 0.75 - 10;
                float y = 1000.5f - (float)i;
                doubles += (long)x;
                floats += (long)y;
                products += (long)scale(x, i, y);
            }
        } else if (sscanf(line, "greet %63s %ld", word, &n) == 2) {
            char *name = pages + 4096 - strlen(word) - 1;
            strcpy(name, word);
            for (long i = 0; i < n; i++) greet(name);
        } else if (sscanf(line, "touch %ld", &n) == 1) {
            touch(n);
        } else if (sscanf(line, "nap %ld", &n) == 1) {
            nap(n);
        } else if (sscanf(line, "leap %ld", &n) == 1) {
            if (!setjmp(home)) leap(n);
        } else if (sscanf(line, "work %ld", &n) == 1) {
            for (long i = 0; i < n; i++) work(i);
        } else if (!strcmp(line, "fork")) {
            pid_t child = fork();
            if (child == 0) {
                int before = level;
                long other = waiting;
                work(1);
                _exit(level == before && waiting == other ? 42 : 1);
            }
            int status;
            waitpid(child, &status, 0);
            say("child %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        }
        say("tally doubles %ld", doubles);
        say("tally floats %ld", floats);
        say("tally products %ld", products);
        say("tally faults %ld", faults);
        say("tally switches %ld", switches);
        say("tally greet %ld", greeted);
        say("tally tell %ld", told);
        say("tally work %ld", worked);
        say("variables %d %d %d %ld %d %ld %d", level, small, tiny, waiting, settings.kind, settings.depth, fixed + *bound);
        say("done");
    }
    return 0;
}
