/* A function that is called from several places, in several ways, with arguments that are known.
 *
 * run N   N turns; each calls `leaf` once from `once`, twice from `twice`, once by a tail jump from `jumps` (which `over` calls), once
 *         through a pointer from `pointer`, and once from `recursive` at each of three depths; and `handle` once, with methods from 0 to
 *         3, lengths from 0 to 9, and flags 0 and 1
 * The answer has `calls CALLER NUMBER` for each of them, `kind KIND NUMBER` and `size KIND SUM` for each first argument of `leaf`,
 * `large NUMBER` for its calls with a second argument above 100, and `length SUM` for the lengths and flags of `handle`. */
#include "mutatee.h"

enum { ONCE, TWICE, OVER, POINTER, RECURSIVE, CALLERS };
static const char *const names[CALLERS] = {"once", "twice", "over", "pointer", "recursive"};
static long calls[CALLERS], kinds[8], sizes[8], large;

struct Body {
    long length;
};

struct Request {
    int method;
    Body *body;
};

extern "C" {
COUNTED long leaf(long kind, long size) {
    kinds[kind]++;
    sizes[kind] += size;
    large += size > 100;
    return size - 50;
}

COUNTED long handle(Request *request, unsigned char flags) { return request->body->length + flags; }

COUNTED long once(long n) {
    calls[ONCE]++;
    return leaf(n % 3, n % 200) + 1;
}

COUNTED long twice(long n) {
    calls[TWICE] += 2;
    long first = leaf(3, 7);
    return leaf(4, n % 150) + first;
}

COUNTED long jumps(long n) { return leaf(5, n % 50); }

COUNTED long over(long n) {
    calls[OVER]++;
    return jumps(n) + 1;
}

static long (*volatile function)(long, long) = leaf;
COUNTED long pointer(long n) {
    calls[POINTER]++;
    return function(6, n % 101) + 1;
}

COUNTED long recursive(long depth) {
    if (depth == 0) return 0;
    calls[RECURSIVE]++;
    return recursive(depth - 1) + leaf(7, depth) + 1;
}
}

int main() {
    say("ready");
    while (char *line = next_command()) {
        long n;
        if (sscanf(line, "run %ld", &n) != 1) return 2;
        long sum = 0, length = 0;
        for (long i = 0; i < n; i++) {
            Body body = {i % 10};
            Request request = {(int)(i % 4), &body};
            length += handle(&request, (unsigned char)(i % 2));
            sum += once(i) + twice(i) + over(i) + pointer(i) + recursive(3);
        }
        for (int i = 0; i < CALLERS; i++) say("calls %s %ld", names[i], calls[i]);
        for (int i = 0; i < 8; i++) say("kind %d %ld", i, kinds[i]);
        for (int i = 0; i < 8; i++) say("size %d %ld", i, sizes[i]);
        say("large %ld", large);
        say("length %ld", length);
        say("sum %ld", sum);
        say("done");
    }
}
