/* Messages by functions that have the names of a library for message passing, from inside and outside of a function, by this program's own tally.
 *
 * pass N M    N messages are sent and received by `foo`, M by `bar`
 * Each answer has `tally NAME N`: calls of each function, and `tally foo_messages N`: messages that `foo` sent and received. */
#include "mutatee.h"

static long sends, receives, foos, bars, of_foo;
static long box;

COUNTED int pvm_send(int to, long message) {
    sends++;
    box = message + to;
    return 0;
}

COUNTED long pvm_recv(int from, int tag) {
    receives++;
    return box + from + tag;
}

COUNTED long foo(long n) {
    long sum = 0;
    foos++;
    for (long i = 0; i < n; i++) {
        pvm_send(1, i);
        sum += pvm_recv(2, 3);
        of_foo += 2;
    }
    return sum;
}

COUNTED long bar(long n) {
    long sum = 0;
    bars++;
    for (long i = 0; i < n; i++) {
        pvm_send(4, i);
        sum += pvm_recv(5, 6);
    }
    return sum;
}

int main(void) {
    volatile long sum = 0;
    say_ready();
    for (char *line; (line = next_command());) {
        long n, m;
        if (sscanf(line, "pass %ld %ld", &n, &m) != 2) {
            say("unknown command");
            continue;
        }
        sum += foo(n) + bar(m);
        say("tally pvm_send %ld", sends);
        say("tally pvm_recv %ld", receives);
        say("tally foo %ld", foos);
        say("tally bar %ld", bars);
        say("tally foo_messages %ld", of_foo);
        say("done");
    }
}
