/* Threads that sleep in the kernel where no signal and no tracer wakes them (state D).
 *
 * work N            the main thread calls `work` N times, and so does the sleeper unless it sleeps
 * vfork             the sleeper waits for its vfork child, which waits for `wake`: answers `asleep TID`
 * fault             the sleeper's system call touches a page that nobody provides before `wake` (userfaultfd): answers `asleep TID`, or
 *                   `skipped WHY`
 * wake              the sleeper goes on, calls `work` ten times more, and waits for commands again
 * bases             prints the gs base of both threads
 * residue N         both threads set their gs base to N, as if an engine had left it behind
 */
#include "mutatee.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { PAGE = 4096, LAST_CALLS = 10 };

COUNTED long work(long x) { return x * 3 + 1; }

static atomic_long tally, wrong;
static int orders[2], answers[2], gate[2];
static char *missing;
static int provider;
/* The number is no constant in the code: ingraft would take such code as setting the gs base, and not measure by thread. */
static volatile long set_gs = ARCH_SET_GS;

static void call(long n) {
    for (long i = 0; i < n; i++) wrong += work(i) != i * 3 + 1;
    tally += n;
}

static unsigned long gs_base(void) {
    unsigned long base = 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_GS, &base)) abort();
    return base;
}

struct order {
    char what;
    long n;
};

static void *sleeper(void *unused) {
    struct order order;
    long answer = own_tid();
    if (write(answers[1], &answer, sizeof answer) != sizeof answer) abort();
    while (read(orders[0], &order, sizeof order) == sizeof order) {
        answer = 0;
        switch (order.what) {
        case 'w':
            call(order.n);
            break;
        case 'b':
            answer = (long)gs_base();
            break;
        case 'r':
            if (syscall(SYS_arch_prctl, set_gs, order.n)) abort();
            break;
        case 'v': {
            pid_t pid = vfork();
            if (pid == 0) {
                char byte;
                /* A child does not inherit the death signal of its parent, and must not outlive a test that failed. */
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (read(gate[0], &byte, 1) != 1) _exit(1);
                _exit(0);
            }
            waitpid(pid, NULL, 0);
            call(LAST_CALLS);
            break;
        }
        case 'f': {
            /* The kernel reads our own page for us. Only a fatal signal ends such a wait for the page. */
            char byte = 0;
            struct iovec to = {&byte, 1}, from = {missing, 1};
            wrong += process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1 || byte != 'x';
            call(LAST_CALLS);
            break;
        }
        }
        if (write(answers[1], &answer, sizeof answer) != sizeof answer) abort();
    }
    return unused;
}

static void tell(char what, long n) {
    struct order order = {what, n};
    if (write(orders[1], &order, sizeof order) != sizeof order) abort();
}

static long hear(void) {
    long answer;
    if (read(answers[0], &answer, sizeof answer) != sizeof answer) abort();
    return answer;
}

/* Makes a page whose content this program must provide. Returns NULL, or the reason why that is impossible. */
static const char *make_missing(void) {
    missing = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (missing == MAP_FAILED) abort();
    provider = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (provider < 0) return "userfaultfd is not permitted";
    struct uffdio_api api = {.api = UFFD_API};
    if (ioctl(provider, UFFDIO_API, &api)) return "userfaultfd has another interface";
    struct uffdio_register all = {.range = {(unsigned long)missing, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(provider, UFFDIO_REGISTER, &all) ? "userfaultfd takes no range" : NULL;
}

static void provide(void) {
    static char page[PAGE] __attribute__((aligned(PAGE))) = "x";
    struct uffdio_copy copy = {.dst = (unsigned long)missing, .src = (unsigned long)page, .len = PAGE};
    if (ioctl(provider, UFFDIO_COPY, &copy)) abort();
}

static void forget_missing(void) {
    close(provider);
    munmap(missing, PAGE);
}

int main(void) {
    pthread_t id;
    char waits = 0;
    if (pipe(orders) || pipe(answers) || pipe(gate)) abort();
    if (pthread_create(&id, NULL, sleeper, NULL)) abort();
    long tid = hear();
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "work %ld", &n) == 1) {
            call(n);
            if (!waits) {
                tell('w', n);
                hear();
            }
        } else if (!strcmp(line, "vfork")) {
            tell(waits = 'v', 0);
            say("asleep %ld", tid);
        } else if (!strcmp(line, "fault")) {
            const char *why = make_missing();
            if (why) {
                say("skipped %s", why);
            } else {
                tell(waits = 'f', 0);
                say("asleep %ld", tid);
            }
        } else if (!strcmp(line, "wake")) {
            if (waits == 'f') provide();
            else if (waits == 'v' && write(gate[1], "g", 1) != 1) abort();
            if (waits) hear();
            if (waits == 'f') forget_missing();
            waits = 0;
        } else if (sscanf(line, "residue %ld", &n) == 1) {
            if (syscall(SYS_arch_prctl, set_gs, n)) abort();
            tell('r', n);
            hear();
        } else if (!strcmp(line, "bases")) {
            say("main %lu", gs_base());
            if (!waits) {
                tell('b', 0);
                say("sleeper %lu", (unsigned long)hear());
            }
        } else {
            say("unknown command %s", line);
        }
        say("tally work %ld", (long)tally);
        say("wrong %ld", (long)wrong);
        say("done");
    }
    return 0;
}
