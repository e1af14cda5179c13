/* Data of many kinds: variables of every width, and structures behind pointers, good and bad.
 *
 * set NAME VALUE    sets a variable
 * serve N           N calls of `serve` with a request of which everything differs from call to call
 * wild N            N rounds of calls of `serve` with pointers that lead nowhere
 * churn N           N calls of `serve` with a request in a page that another thread maps and unmaps all the time
 * drive N           `drive` calls `serve` N times, and nothing else
 * poke N            N rounds of calls of `poke` with an integer, a constant and two pointers that lead nowhere
 * own N             4 threads call `serve` N times, each with other data of its own
 * fork              a fork child calls `serve` and tells by its exit status that it lives
 * Each answer has `tally MEMBER SUM` of what the calls of `serve` that could be read were given. */
#include "mutatee.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum colour { RED, GREEN, BLUE };
typedef unsigned short port_t;

struct item {
    struct item *next;
    int64_t weight;
};

struct request {
    char kind;
    unsigned level : 3;
    struct {
        short depth;
        const port_t port;
    } inner;
    union {
        uint32_t length;
        float share;
    };
    volatile enum colour colour;
    struct item *head;
    struct request *self;
    double load;
    int history[4];
};

int8_t g_i8 = -5;
uint8_t g_u8 = 250;
int16_t g_i16 = -30000;
uint16_t g_u16 = 60000;
int g_i32 = -2000000000;
unsigned g_u32 = 4000000000u;
int64_t g_i64 = -5000000000;
bool g_bool = true;
enum colour g_colour = BLUE;
double g_double = 1.5;
int g_array[3] = {1, 2, 3};
__thread int g_own = 1;
static __thread struct item own_item;
static int waiting = 77;
static struct item last = {NULL, 11}, first = {&last, 22};
static struct request standing = {.inner = {.depth = -7, .port = 99}, .head = &first};
struct request *g_request = &standing;

static long long kind, depth, port, length, colour, weight, second, level, third;

COUNTED struct request *serve(struct request *r, double scale, int n) {
    __asm__ volatile("" : : "r"(r), "x"(scale), "r"(n) : "memory");
    return r;
}

/* Calls nothing but `serve`. */
COUNTED long drive(struct request *r, long n) {
    long sum = 0;
    for (long i = 0; i < n; i++) sum += serve(r, 1.5, (int)i)->inner.depth;
    return sum;
}

COUNTED uintptr_t poke(const volatile int *at) {
    __asm__ volatile("" : : "r"(at) : "memory");
    return (uintptr_t)at * 5 + 12345;
}

static const int fixed = 7;

static void fill(struct request *r, long i) {
    r->kind = (char)-(i % 100);
    r->level = i % 8;
    r->inner.depth = (short)(i % 7 - 3);
    *(port_t *)&r->inner.port = (port_t)(65000 + i % 500);
    r->length = 4000000000u + (unsigned)i;
    r->colour = i % 3;
    r->head = &first;
    r->self = r;
    for (int k = 0; k < 4; k++) r->history[k] = (int)(i * (k - 2));
    first.weight = -i;
    last.weight = i * 1000003;
}

static void tally(const struct request *r) {
    kind += r->kind;
    level += r->level;
    depth += r->inner.depth;
    port += r->inner.port;
    length += r->length;
    colour += r->colour;
    weight += r->head->weight;
    second += r->self->self->head->next->weight;
    for (int k = 0; k < 4; k++) third += r->history[k];
}

static _Atomic long owned, owned_weight, calls_of_each;

static void *with_own_data(void *given) {
    long k = (long)given;
    struct item behind = {NULL, -3 * k};
    g_own = (int)(1000 * k);
    errno = (int)(7 * k);
    own_item = (struct item){&behind, k << 40};
    for (long i = 0; i < calls_of_each; i++) {
        serve(&standing, 1.5, (int)i);
        owned_weight += own_item.weight;
    }
    owned += g_own;
    return NULL;
}

static _Atomic bool stop;
static void *page;

static void *churn(void *unused) {
    while (!stop) {
        mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(page, 4096);
    }
    return unused;
}

int main(void) {
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        char name[32];
        if (sscanf(line, "set %31s %ld", name, &n) == 2) {
            if (!strcmp(name, "g_i8")) g_i8 = (int8_t)n;
            else if (!strcmp(name, "g_u8")) g_u8 = (uint8_t)n;
            else if (!strcmp(name, "g_i16")) g_i16 = (int16_t)n;
            else if (!strcmp(name, "g_u16")) g_u16 = (uint16_t)n;
            else if (!strcmp(name, "g_i32")) g_i32 = (int)n;
            else if (!strcmp(name, "g_u32")) g_u32 = (unsigned)n;
            else if (!strcmp(name, "g_i64")) g_i64 = n;
            else if (!strcmp(name, "waiting")) waiting = (int)n;
            else if (!strcmp(name, "optind")) optind = (int)n;
            else say("unknown variable %s", name);
        } else if (sscanf(line, "serve %ld", &n) == 1) {
            struct request r = {0};
            for (long i = 0; i < n; i++) {
                fill(&r, i);
                if (serve(&r, 1.5, (int)i) != &r) abort();
                tally(&r);
            }
        } else if (sscanf(line, "wild %ld", &n) == 1) {
            const uintptr_t bad[] = {0, 1, 4095, (uintptr_t)page, 0x7fffffffeff8, 0x800000000000, 0xffff800000000000, UINTPTR_MAX, 1ul << 63};
            for (long i = 0; i < n; i++)
                for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) serve((struct request *)bad[k], 0.5, 1);
        } else if (sscanf(line, "churn %ld", &n) == 1) {
            pthread_t thread;
            stop = false;
            pthread_create(&thread, NULL, churn, NULL);
            for (long i = 0; i < n; i++) serve(page, 0.5, 1);
            stop = true;
            pthread_join(thread, NULL);
            mmap(page, 4096, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        } else if (sscanf(line, "drive %ld", &n) == 1) {
            fill(&standing, n);
            say("drove %ld %ld", drive(&standing, n), (long)standing.head->weight);
        } else if (sscanf(line, "poke %ld", &n) == 1) {
            long sum = 0;
            for (long i = 0; i < n; i++) {
                volatile int own = (int)i;
                poke(&own);
                sum += own;
                poke(&fixed);
                poke(NULL);
                poke(page);
            }
            say("poked %ld %d", sum, *(const volatile int *)&fixed);
        } else if (sscanf(line, "own %ld", &n) == 1) {
            pthread_t threads[4];
            calls_of_each = n;
            owned = owned_weight = 0;
            for (long k = 0; k < 4; k++) pthread_create(&threads[k], NULL, with_own_data, (void *)(k + 1));
            for (long k = 0; k < 4; k++) pthread_join(threads[k], NULL);
            say("owned %ld %ld", (long)owned, (long)owned_weight);
        } else if (!strcmp(line, "fork")) {
            pid_t child = fork();
            if (child == 0) {
                fill(&standing, 5);
                serve(&standing, 1.5, 1);
                _exit(standing.length == 4000000005u ? 42 : 43);
            }
            int status;
            waitpid(child, &status, 0);
            say("child %d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        } else {
            say("unknown command %s", line);
        }
        say("tally kind %lld", kind);
        say("tally depth %lld", depth);
        say("tally port %lld", port);
        say("tally length %lld", length);
        say("tally colour %lld", colour);
        say("tally weight %lld", weight);
        say("tally second %lld", second);
        say("tally history %lld", third);
        say("variables %d %d %d", waiting, g_own, g_array[0] + (int)g_double + (int)g_colour + g_bool);
        say("done");
    }
    return 0;
}
