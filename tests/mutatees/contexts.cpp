/* Functions that call each other at random, and whose program keeps its own account of calling contexts: the compiler calls the hooks below at
 * the beginning and the end of each function whose name begins with `c_` (-finstrument-functions).
 *
 * run SEED CALLS THREADS   each thread makes about so many calls. Some calls end by an exception or by a longjmp. With `+` before SEED, the calls
 *                          are made inside of four others, which began when the program did
 * allocate N               N times, `c_small` asks for 10 bytes, and `c_large` for 1000 in three ways, all of which are freed
 * wait N MS                N times, `c_sleeps` sleeps, and `c_locks` waits for a mutex that another thread holds for so long
 * signal N                 N times, `c_raises` gets a signal whose handler is `c_handles`
 * pass N                   N times, `c_begins` calls `c_passes`, which ends by a jump to `c_hands`, and that one by a jump to `c_takes`; then it
 *                          calls `c_after`, and `c_turns`, which ends by a jump to `c_after`
 * With a number as its argument, the program only does `allocate N`.
 * The answer of `run` has a line for each context: `node ID PARENT FUNCTION SITE CALLS BACK`. SITE is the distance of the return address from the
 * program's beginning, PARENT and BACK are ids. A recursive call has the id of the context to which it leads back in BACK, others have 0. Only calls of
 * this command count. */
extern "C" {
#include "mutatee.h"
}
#include <csetjmp>
#include <ctime>
#include <map>
#include <tuple>
#include <vector>

#define PLAIN __attribute__((no_instrument_function))

extern "C" char __executable_start;

namespace {

struct Node {
    void *function;
    char *site;
    int parent;
    long calls;
    int target;
};

struct Account {
    std::vector<Node> nodes{Node{}};
    std::map<std::tuple<int, void *, char *>, int> known;
    int current = 0;
};

struct Run {
    unsigned long state;
    long left;
    jmp_buf *back;
    PLAIN unsigned random(unsigned below) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        return (unsigned)(state >> 33) % below;
    }
};

thread_local Account account;
thread_local std::vector<int> open;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Account all;

/* Whether the thread is in a hook, which calls functions that have hooks too. */
thread_local bool inside_hook;

PLAIN int child(Account &of, int parent, void *function, char *site) {
    auto key = std::make_tuple(parent, function, site);
    auto found = of.known.find(key);
    if (found != of.known.end()) return found->second;
    int id = (int)of.nodes.size(), target = id;
    for (int above = parent; above; above = of.nodes[above].parent)
        if (of.nodes[above].function == function) {
            target = above;
            break;
        }
    of.nodes.push_back(Node{function, site, parent, 0, target});
    of.known[key] = id;
    return id;
}

PLAIN void add_to_all() {
    inside_hook = true;
    pthread_mutex_lock(&lock);
    std::vector<int> ids(account.nodes.size());
    for (size_t n = 1; n < account.nodes.size(); n++) {
        Node &node = account.nodes[n];
        ids[n] = child(all, ids[node.parent], node.function, node.site);
        all.nodes[ids[n]].calls += node.calls;
        node.calls = 0;
    }
    pthread_mutex_unlock(&lock);
    inside_hook = false;
}

} // namespace

extern "C" {
typedef long Called(Run *, int);
COUNTED long c_leaf(Run *, int), c_fan(Run *, int), c_self(Run *, int), c_tries(Run *, int), c_throws(Run *, int),
    c_saves(Run *, int), c_jumps(Run *, int), c_table(Run *, int), c_outer(Run *, int), c_first(Run *, int),
    c_second(Run *, int), c_third(Run *, int);
COUNTED void *c_small(void), *c_large(int);
COUNTED void c_allocates(long), c_sleeps(long), c_locks(void), c_raises(void), c_handles(int);

/* The name of a function of the account; NULL for others, which have hooks too. */
static PLAIN const char *name_of(void *function) {
    static const struct {
        Called *function;
        const char *name;
    } names[] = {{c_leaf, "c_leaf"},   {c_fan, "c_fan"},       {c_self, "c_self"},   {c_tries, "c_tries"},
                       {c_throws, "c_throws"}, {c_saves, "c_saves"},   {c_jumps, "c_jumps"}, {c_table, "c_table"},
                       {c_outer, "c_outer"}, {c_first, "c_first"},   {c_second, "c_second"}, {c_third, "c_third"}};
    for (auto &known : names)
        if ((void *)known.function == function) return known.name;
    return nullptr;
}

PLAIN void __cyg_profile_func_enter(void *function, void *site) {
    if (inside_hook || !name_of(function)) return;
    inside_hook = true;
    open.push_back(account.current);
    int id = child(account, account.current, function, (char *)site);
    account.nodes[id].calls++;
    account.current = account.nodes[id].target;
    inside_hook = false;
}

PLAIN void __cyg_profile_func_exit(void *function, void *) {
    if (inside_hook || !name_of(function)) return;
    inside_hook = true;
    account.current = open.back();
    open.pop_back();
    inside_hook = false;
}

static Called *const callees[] = {c_leaf, c_fan, c_self, c_tries, c_throws, c_saves, c_jumps, c_table};

/* Calls one of all functions, unless there were enough calls or they are too deep. */
#define ANY(run, depth) ((run)->left-- > 0 && (depth) < 40 ? callees[(run)->random(8)](run, (depth) + 1) : 0)

long c_leaf(Run *, int depth) { return depth; }

long c_fan(Run *run, int depth) {
    long sum = c_leaf(run, depth);
    for (unsigned n = run->random(4); n > 0; n--) sum += ANY(run, depth);
    return sum + c_leaf(run, depth);
}

long c_self(Run *run, int depth) {
    long sum = ANY(run, depth);
    if (depth < 40 && run->random(2)) sum += c_self(run, depth + 1);
    if (depth < 40 && run->random(3) == 0) sum += c_self(run, depth + 1);
    return sum + c_leaf(run, depth);
}

long c_tries(Run *run, int depth) {
    long sum = 0;
    for (unsigned n = run->random(3); n > 0; n--) {
        try {
            sum += ANY(run, depth);
        } catch (int thrown) {
            sum += thrown + c_leaf(run, depth);
        }
    }
    return sum;
}

long c_throws(Run *run, int depth) {
    long sum = ANY(run, depth);
    if (run->random(3) == 0) throw depth;
    return sum;
}

long c_saves(Run *run, int depth) {
    jmp_buf here, *volatile outer = run->back;
    volatile size_t frames = open.size();
    volatile int context = account.current;
    run->back = &here;
    long sum = 0;
    if (!setjmp(here)) {
        try {
            sum = ANY(run, depth);
        } catch (int thrown) {
            sum = thrown;
        }
    } else {
        /* The calls in between have ended without a hook. */
        open.resize(frames);
        account.current = context;
    }
    run->back = outer;
    return sum + c_leaf(run, depth);
}

long c_jumps(Run *run, int depth) {
    long sum = ANY(run, depth);
    if (run->back && run->random(4) == 0) longjmp(*run->back, 1);
    return sum;
}

long c_table(Run *run, int depth) {
    long sum = ANY(run, depth);
    return sum + ANY(run, depth);
}

long c_outer(Run *run, int depth) { return c_first(run, depth) + 1; }
long c_first(Run *run, int depth) { return c_second(run, depth) + c_leaf(run, depth); }
long c_second(Run *run, int depth) { return c_third(run, depth) * 2; }
}

extern "C" {
void *c_small() { return malloc(10); }

void *c_large(int how) {
    if (how == 0) return malloc(1000);
    if (how == 1) return calloc(10, 100);
    void *volatile none = nullptr;
    return realloc(none, 1000);
}

void c_allocates(long times) {
    for (long n = 0; n < times; n++) {
        free(c_small());
        for (int how = 0; how < 3; how++) free(c_large(how));
    }
}

void c_sleeps(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, nullptr);
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

void c_locks() {
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
}
}

/* Functions without hooks, which would follow what is to be the last call. */
#define JUMPS __attribute__((noipa, used, no_instrument_function, optimize("optimize-sibling-calls")))

extern "C" {
JUMPS long c_after(long n) { return n; }

JUMPS long c_takes(long n) { return c_after(n) + 1; }

JUMPS long c_hands(long n) { return c_takes(n + 1); }

JUMPS long c_passes(long n) { return c_hands(n * 2); }

JUMPS long c_turns(long n) { return c_after(n + 5); }

JUMPS long c_begins(long n) {
    long sum = c_passes(n);
    return sum + c_after(n) * 3 + c_turns(n) * 7;
}

void c_handles(int) {}

void c_raises() { raise(SIGUSR1); }
}

static pthread_barrier_t both;

static PLAIN void *holder(void *of) {
    long ms = *(long *)of;
    pthread_mutex_lock(&held);
    pthread_barrier_wait(&both);
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, nullptr);
    pthread_mutex_unlock(&held);
    return nullptr;
}

static PLAIN void wait_for(long times, long ms) {
    pthread_barrier_init(&both, nullptr, 2);
    for (long n = 0; n < times; n++) {
        c_sleeps(ms);
        pthread_t other;
        pthread_create(&other, nullptr, holder, &ms);
        pthread_barrier_wait(&both);
        c_locks();
        pthread_join(other, nullptr);
    }
}

static PLAIN void work(unsigned long seed, long calls) {
    Run run = {seed, calls, nullptr};
    while (run.left > 0) {
        try {
            c_fan(&run, 0);
            c_saves(&run, 0);
        } catch (int) {
        }
    }
}

struct Job {
    unsigned long seed;
    long calls;
};

static PLAIN void *thread(void *of) {
    Job *job = (Job *)of;
    work(job->seed, job->calls);
    add_to_all();
    inside_hook = true; /* the account does not outlive the thread */
    return nullptr;
}

/* Forgets the calls so far, but not the contexts of those that go on. */
static PLAIN void forget() {
    for (Node &node : account.nodes) node.calls = 0;
}

static PLAIN void report() {
    for (size_t n = 1; n < all.nodes.size(); n++) {
        Node &node = all.nodes[n];
        say("node %zu %d %s %ld %ld %d", n, node.parent, name_of(node.function), (long)(node.site - &__executable_start), node.calls,
            node.target == (int)n ? 0 : node.target);
        node.calls = 0;
    }
}

/* Obeys commands; `inside` tells whether in calls that have begun with the program. Returns at a command for the other place. */
static PLAIN void obey(bool inside, char *&command) {
    do {
        unsigned long seed;
        long calls, times, ms;
        int threads;
        if (!command || (command[0] == '+') != inside) return;
        if (sscanf(command, inside ? "+run %lu %ld %d" : "run %lu %ld %d", &seed, &calls, &threads) == 3) {
            std::vector<pthread_t> ids((size_t)threads);
            std::vector<Job> jobs((size_t)threads);
            for (int n = 0; n < threads; n++) {
                jobs[n] = Job{seed + (unsigned long)n, calls};
                pthread_create(&ids[n], nullptr, thread, &jobs[n]);
            }
            work(seed + 1000, calls);
            add_to_all();
            for (pthread_t id : ids) pthread_join(id, nullptr);
            report();
        } else if (sscanf(command, "allocate %ld", &times) == 1) {
            c_allocates(times);
        } else if (sscanf(command, "+pass %ld", &times) == 1) {
            for (long n = 0; n < times; n++) c_begins(n);
        } else if (sscanf(command, "signal %ld", &times) == 1) {
            signal(SIGUSR1, c_handles);
            for (long n = 0; n < times; n++) c_raises();
        } else if (sscanf(command, "wait %ld %ld", &times, &ms) == 2) {
            wait_for(times, ms);
        }
        say("done");
    } while ((command = next_command()));
}

static char *command;

long c_third(Run *, int depth) {
    forget();
    if ((command = next_command())) obey(true, command);
    return depth;
}

PLAIN int main(int argc, char **argv) {
    if (argc > 1) {
        c_allocates(atol(argv[1]));
        inside_hook = true;
        return 0;
    }
    say_ready();
    Run run = {1, 0, nullptr};
    c_outer(&run, 1);
    while (command) {
        obey(false, command);
        if (command && command[0] == '+') {
            say("done");
            command = next_command();
        }
    }
    inside_hook = true;
}
