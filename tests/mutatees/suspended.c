/* A scheduler in the program: a timer's handler takes the processor from the running context and gives it to the next one. The contexts
 * that wait stand in signal frames on stacks of their own, at whatever instruction the timer found them.
 *
 * suspended COUNT [MICROSECONDS [MIB]]   COUNT contexts, one signal every so many microseconds; so much more memory is written
 * look                             the answer has `rounds` (checked results), `switches` and `wrong` (results that were)
 * stop                             the same, and the timer stops: every context stays where it is, and this one goes on alone
 * go                               the same, and the timer starts again
 * note                             the same, and the handler writes down for ever where it found the next 256 contexts
 * aim                              the same, and words that point near the ends of executable mappings without a file are written down for ever
 * The contexts run all the time; the thread that reads the commands runs on its own stack and gets no such signal. */
#include "mutatee.h"
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

#define STACK (64 << 10)
#define CELLS 32

struct task {
    ucontext_t context;
    unsigned long seed;
    unsigned cells[CELLS];
};

static struct task *all;
static int count;
static volatile int current;
static timer_t timer;
static sigset_t alarm_only;
static struct itimerspec often;
static volatile long switches;
static _Atomic long rounds, wrong;

/* Loops and branches, so that a copy of it has counters on many edges. */
COUNTED unsigned long grind(unsigned *cells, unsigned long seed) {
    unsigned long sum = 0;
    for (int i = 0; i < CELLS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        cells[i] = (unsigned)(seed >> 33);
    }
    for (int turn = 0; turn < 8; turn++) {
        for (int i = 0; i < CELLS; i++) {
            unsigned x = cells[i];
            if (x & 1) x = x * 3 + 1;
            else if (x & 2) x ^= x >> 5;
            else x >>= 1;
            cells[i] = x;
            sum += x;
        }
    }
    return sum;
}

COUNTED unsigned long small(unsigned long x) { return x * 2654435761u ^ x >> 7; }

COUNTED unsigned long chew(unsigned *cells, unsigned long seed) {
    unsigned long sum = grind(cells, seed);
    for (int i = 0; i < CELLS; i++) sum = small(sum + cells[i]);
    return sum;
}

static void body(unsigned low, unsigned high) {
    struct task *task = (struct task *)((unsigned long)high << 32 | low);
    /* Not by swapcontext, which a signal would interrupt while it loads this context. */
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
    for (unsigned long n = 0;; n = (n + 1) % 16) {
        /* The same 16 results again and again; a context that went on with wrong registers finds another one. */
        static _Atomic unsigned long right[16];
        unsigned long found = chew(task->cells, n + 1), known = right[n];
        if (!known) right[n] = found;
        else if (known != found) wrong++;
        rounds++;
    }
}

#define NOTES 65536
static volatile unsigned long noted[NOTES];
static volatile int notes, until;

/* Writes down words that look like program counters in memory that has never had any code. */
static void aim(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[5];
    for (unsigned long start, end; maps && fgets(line, sizeof line, maps);) {
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3) continue;
        if (strchr(rights, 'x') && !strpbrk(line, "/[") && notes < NOTES) noted[notes++] = end - 512;
    }
    if (maps) fclose(maps);
}

static void next(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    if (notes < until) noted[notes++] = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    int saved = errno, from = current, to = (from + 1) % count;
    current = to;
    switches++;
    if (swapcontext(&all[from].context, &all[to].context)) abort();
    errno = saved;
}

static void *run(void *period) {
    struct sigaction action = {.sa_sigaction = next, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigaction(SIGALRM, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    event._sigev_un._tid = own_tid();
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) abort();
    long ns = 1000 * atol(period);
    often = (struct itimerspec){{0, ns}, {0, ns}};
    if (timer_settime(timer, 0, &often, NULL)) abort();
    setcontext(&all[0].context);
    abort();
}

int main(int argc, char **argv) {
    count = argc > 1 ? atoi(argv[1]) : 16;
    all = calloc((size_t)count, sizeof *all);
    sigaddset(&alarm_only, SIGALRM);
    for (int i = 0; i < count; i++) {
        struct task *task = &all[i];
        getcontext(&task->context);
        task->context.uc_sigmask = alarm_only;
        task->context.uc_stack.ss_size = STACK;
        task->context.uc_stack.ss_sp = malloc(STACK);
        makecontext(&task->context, (void (*)(void))body, 2, (unsigned)(unsigned long)task,
                    (unsigned)((unsigned long)task >> 32));
    }
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    size_t more = argc > 3 ? (size_t)atoi(argv[3]) << 20 : 0;
    if (more) memset(malloc(more), 1, more);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argc > 2 ? argv[2] : "200")) abort();
    while (switches < 2 * count) usleep(1000);
    say_ready();
    for (char *line; (line = next_command());) {
        struct itimerspec never = {{0}, {0}};
        if (!strcmp(line, "stop")) {
            timer_settime(timer, 0, &never, NULL);
            /* A signal that has been sent already arrives before long: the thread never sleeps. */
            for (long before = -1; before != switches;) {
                before = switches;
                usleep(20000);
            }
        }
        if (!strcmp(line, "note")) {
            until = notes + 256 < NOTES ? notes + 256 : NOTES;
            while (notes < until) usleep(1000);
        }
        if (!strcmp(line, "aim")) aim();
        if (!strcmp(line, "go")) timer_settime(timer, 0, &often, NULL);
        say("rounds %ld", (long)rounds);
        say("switches %ld", (long)switches);
        say("wrong %ld", (long)wrong);
        say("done");
    }
    return 0;
}
