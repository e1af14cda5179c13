/* Many threads that call small functions a known number of times, while others start and end all the time.
 *
 * threads COUNT     starts COUNT workers, which wait
 * spin              workers call `noise` until further notice (load while somebody attaches)
 * rest              workers wait again
 * where             prints where functions are
 * beat              prints how often `noise` was called so far
 * go N              each worker calls `work_0` N times and `work_1` … `work_7` N/8 times each; others come and go
 * solo N            the main thread calls `work_0` N times
 */
#include "mutatee.h"

#define WORK(n) \
    COUNTED long work_##n(long x) { return x * (2 * n + 3) + (x >> 1); }
WORK(0) WORK(1) WORK(2) WORK(3) WORK(4) WORK(5) WORK(6) WORK(7)
COUNTED long noise(long x) { return x * 7 + 1; }
/* its first instruction is a branch, which does not stay in place before a springboard */
long never(long x);
__asm__(".text\n.p2align 4\n.globl never\n.type never,@function\n"
        "never: je 1f\n.skip 6,0x90\n1: lea 11(%rdi),%rax\nnop\nnop\nret\n.size never,.-never\n");

#ifdef MOVES
long move_text(const char *how);
#endif

static long (*const all[8])(long) = {work_0, work_1, work_2, work_3, work_4, work_5, work_6, work_7};

enum order { REST, SPIN, GO, QUIT };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum order order = REST;
static long generation, calls_each;
static int workers, finished, resting;
static atomic_int spinning;
static atomic_long beats, wrong, tallies[8];
static atomic_int churn_on;

struct entry { int tid; long calls; };
static struct entry *entries;
static size_t entry_count, entry_room;

static void enter(int tid, long calls) {
    pthread_mutex_lock(&lock);
    if (entry_count == entry_room) {
        entry_room = entry_room ? entry_room * 2 : 1024;
        entries = realloc(entries, entry_room * sizeof *entries);
        if (!entries) abort();
    }
    entries[entry_count++] = (struct entry){tid, calls};
    pthread_mutex_unlock(&lock);
}

static void call_many(long n) {
    long bad = 0;
    for (long i = 0; i < n; i++) bad += work_0(i) != i * 3 + (i >> 1);
    for (int f = 1; f < 8; f++)
        for (long i = 0; i < n / 8; i++) bad += all[f](i) != i * (2 * f + 3) + (i >> 1);
    atomic_fetch_add(&wrong, bad);
    atomic_fetch_add(&tallies[0], n);
    for (int f = 1; f < 8; f++) atomic_fetch_add(&tallies[f], n / 8);
    enter(own_tid(), n);
}

static void *work(void *unused) {
    long seen = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        resting++;
        pthread_cond_broadcast(&changed);
        while (order == REST || (order == GO && seen == generation)) pthread_cond_wait(&changed, &lock);
        resting--;
        enum order now = order;
        long n = calls_each, mine = generation;
        pthread_mutex_unlock(&lock);
        if (now == QUIT) return unused;
        if (now == SPIN) {
            long x = 1, count = 0;
            while (atomic_load_explicit(&spinning, memory_order_relaxed)) {
                x = noise(x);
                if (!(++count & 1023)) atomic_fetch_add(&beats, 1024);
            }
        } else {
            call_many(n);
            seen = mine;
            pthread_mutex_lock(&lock);
            finished++;
            pthread_cond_broadcast(&changed);
            pthread_mutex_unlock(&lock);
        }
    }
}

static void *short_life(void *unused) {
    call_many(160);
    return unused;
}

static void *churn(void *unused) {
    while (atomic_load(&churn_on)) {
        pthread_t some[4];
        for (int i = 0; i < 4; i++)
            if (pthread_create(&some[i], NULL, short_life, NULL)) abort();
        for (int i = 0; i < 4; i++) pthread_join(some[i], NULL);
    }
    return unused;
}

static void set_order(enum order to) {
    pthread_mutex_lock(&lock);
    order = to;
    atomic_store(&spinning, to == SPIN);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_resting(void) {
    pthread_mutex_lock(&lock);
    while (resting < workers) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void report(void) {
    for (int f = 0; f < 8; f++) say("tally work_%d %ld", f, atomic_load(&tallies[f]));
    say("tally never 0");
    for (size_t i = 0; i < entry_count; i++) say("thread %d %ld", entries[i].tid, entries[i].calls);
    say("wrong %ld", atomic_load(&wrong));
}

int main(int argc, char **argv) {
    workers = argc > 1 ? atoi(argv[1]) : 4;
    pthread_t *ids = calloc((size_t)workers + 1, sizeof *ids);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    for (int i = 0; i < workers; i++)
        if (pthread_create(&ids[i], &attributes, work, NULL)) abort();
    wait_resting();
    say_ready();
    for (char *line; (line = next_command());) {
        if (!strcmp(line, "spin")) {
            set_order(SPIN);
        } else if (!strcmp(line, "rest")) {
            set_order(REST);
            wait_resting();
        } else if (!strcmp(line, "beat")) {
            say("beats %ld", atomic_load(&beats));
        } else if (!strcmp(line, "where")) {
            say("at work_0 %lu", (unsigned long)work_0);
            say("at never %lu", (unsigned long)never);
        } else if (!strncmp(line, "solo ", 5)) {
            long n = atol(line + 5);
            for (long i = 0; i < n; i++)
                if (work_0(i) != i * 3 + (i >> 1)) atomic_fetch_add(&wrong, 1);
            atomic_fetch_add(&tallies[0], n);
            enter(own_tid(), n);
            report();
        } else if (!strncmp(line, "go ", 3)) {
            set_order(REST);
            wait_resting();
            pthread_t churners[2];
            atomic_store(&churn_on, 1);
            for (int i = 0; i < 2; i++) pthread_create(&churners[i], NULL, churn, NULL);
            pthread_mutex_lock(&lock);
            calls_each = atol(line + 3);
            finished = 0;
            generation++;
            order = GO;
            pthread_cond_broadcast(&changed);
            while (finished < workers) pthread_cond_wait(&changed, &lock);
            order = REST;
            pthread_mutex_unlock(&lock);
            atomic_store(&churn_on, 0);
            for (int i = 0; i < 2; i++) pthread_join(churners[i], NULL);
            report();
#ifdef MOVES
        } else if (!strncmp(line, "move ", 5)) {
            say("failed %ld", move_text(line + 5));
#endif
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    set_order(QUIT);
    return 0;
}
