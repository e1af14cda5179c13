/* Calls whose arguments and results are enumerators.
 *
 * run N   calls `step` N times; each call answers with a line of JSON that has what an observer should see of it */
#include "mutatee.h"
#ifdef __clang__ /* it knows `noipa` by another name */
#undef COUNTED
#define COUNTED __attribute__((noinline, used))
#endif

enum state { IDLE, READY, BUSY = 7, FAILED = -1 };
typedef enum state state_t;
enum __attribute__((packed)) mode { PLAIN = 1, QUICK = 2, CAREFUL = 0xfe };
enum flag { READS = 1, WRITES = 2, BOTH = READS | WRITES, SHARES = 1 << 31 };

struct conn {
    long id;
    const struct conn *peer;
    volatile enum mode mode;
    state_t state;
};

COUNTED state_t step(state_t wanted, const struct conn *conn, enum flag flags, int plain) {
    __asm__ volatile("" : : "r"(conn), "r"(flags), "r"(plain));
    return wanted == READY ? BUSY : wanted;
}

/* The name of a number in JSON, or null. */
static const char *state_name(int state) {
    switch (state) {
    case IDLE: return "\"IDLE\"";
    case READY: return "\"READY\"";
    case BUSY: return "\"BUSY\"";
    case FAILED: return "\"FAILED\"";
    default: return "null";
    }
}

int main(void) {
    static const int states[] = {IDLE, READY, BUSY, FAILED, 17};
    static const enum mode modes[] = {PLAIN, QUICK, CAREFUL, (enum mode)5};
    static const char *const mode_names[] = {"\"PLAIN\"", "\"QUICK\"", "\"CAREFUL\"", "null"};
    static const int flags[] = {READS, BOTH, SHARES, 5};
    static const char *const flag_names[] = {"\"READS\"", "\"BOTH\"", "\"SHARES\"", "null"};
    say("ready");
    char *line;
    while ((line = next_command())) {
        int n;
        if (sscanf(line, "run %d", &n) != 1) return 2;
        for (int i = 0; i < n; i++) {
            struct conn peer = {i, NULL, modes[i % 4], (state_t)states[(i + 1) % 5]};
            struct conn conn = {-i, &peer, modes[(i + 1) % 4], (state_t)states[i % 5]};
            int result = step((state_t)states[i % 5], &conn, (enum flag)flags[i % 4], i);
            say("{\"wanted\":%d,\"peer\":%d,\"mode\":%d,\"flags\":%d,\"return\":%d,\"names\":{\"wanted\":%s,\"peer\":%s,\"mode\":%s,"
                "\"flags\":%s,\"$return\":%s}}",
                states[i % 5], states[(i + 1) % 5], modes[(i + 1) % 4], flags[i % 4], result, state_name(states[i % 5]),
                state_name(states[(i + 1) % 5]), mode_names[(i + 1) % 4], flag_names[i % 4], state_name(result));
        }
        say("done");
    }
}
