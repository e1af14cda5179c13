/* Messages as MPI passes them, between threads of one process, by this program's own tally.
 *
 * send GROUP TAG N     N messages of 4 ints with a tag are sent and received in a communicator: 0 the world, 1 the half
 * late GROUP TAG N US  the same, each sent so many microseconds after the one before, and as much time spent reading what is no message
 * Each answer has `messages GROUP TAG N` for each that was used: how many calls of MPI_Send and MPI_Recv there were; the bytes of them as
 * `sent N` and `received N`; and in nanoseconds how long messages were waited for and the rest was read: `waited N` and `read N`. */
#include "mutatee.h"
#include <time.h>

enum { INT = 4, TAG_FIRST = -1, TAGS = 16, ITEMS = 4 };

/* A pipe: the bytes of one write are read by one read. */
struct communicator {
    int ends[2];
};

struct message {
    int tag, data[ITEMS];
};

struct communicator world;
static struct communicator half, rest;
static struct communicator *const groups[] = {&world, &half};
static _Atomic long calls[2][TAGS];

static _Atomic long long sent, received, waited, was_read;

static void note(struct communicator *group, int tag) { calls[group == &half][tag - TAG_FIRST]++; }

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

COUNTED int MPI_Type_size(int datatype, int *size) {
    *size = datatype;
    return 0;
}

/* Argument 4 is the tag, argument 5 the communicator, as in MPI. */
COUNTED int MPI_Send(const void *data, int count, int datatype, int to, int tag, struct communicator *group) {
    (void)to;
    note(group, tag);
    struct message message = {.tag = tag};
    memcpy(message.data, data, (size_t)count * (size_t)datatype);
    if (write(group->ends[1], &message, sizeof message) != sizeof message) abort();
    return 0;
}

COUNTED int MPI_Recv(void *data, int count, int datatype, int from, int tag, struct communicator *group, int *status) {
    (void)from;
    (void)status;
    note(group, tag);
    struct message message;
    if (read(group->ends[0], &message, sizeof message) != sizeof message || message.tag != tag) abort();
    memcpy(data, message.data, (size_t)count * (size_t)datatype);
    return 0;
}

/* For a vector whose index is the result. */
COUNTED int which(const struct communicator *group) { return group == &half; }

struct part {
    struct communicator *group;
    int tag;
    long n, us;
};

COUNTED void *receiver(void *given) {
    struct part *part = given;
    for (long i = 0; i < part->n; i++) {
        int data[ITEMS], status;
        long long begin = now();
        MPI_Recv(data, ITEMS, INT, 0, part->tag, part->group, &status);
        waited += now() - begin;
        received += ITEMS * INT;
        if (data[0] != (int)i) abort();
        if (part->us) {
            char byte;
            begin = now();
            if (read(rest.ends[0], &byte, 1) != 1) abort();
            was_read += now() - begin;
        }
    }
    return NULL;
}

static void doze(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

int main(void) {
    if (which(&world) || which(&half) != 1 || pipe(world.ends) || pipe(half.ends) || pipe(rest.ends)) abort();
    say_ready();
    for (char *line; (line = next_command());) {
        struct part part = {.us = 0};
        int group;
        int send = sscanf(line, "send %d %d %ld", &group, &part.tag, &part.n) == 3;
        int late = !send && sscanf(line, "late %d %d %ld %ld", &group, &part.tag, &part.n, &part.us) == 4;
        if (!(send || late) || group < 0 || group > 1 || part.tag < TAG_FIRST || part.tag >= TAG_FIRST + TAGS) {
            say("unknown command");
            continue;
        }
        part.group = groups[group];
        pthread_t thread;
        if (pthread_create(&thread, NULL, receiver, &part)) abort();
        for (long i = 0; i < part.n; i++) {
            int data[ITEMS] = {(int)i};
            if (part.us) doze(part.us);
            MPI_Send(data, ITEMS, INT, 0, part.tag, part.group);
            sent += ITEMS * INT;
            if (part.us) doze(part.us);
            if (part.us && write(rest.ends[1], "x", 1) != 1) abort();
        }
        pthread_join(thread, NULL);
        for (int of = 0; of < 2; of++) {
            for (int i = 0; i < TAGS; i++) {
                if (calls[of][i]) say("messages %s %d %ld", of ? "half" : "world", i + TAG_FIRST, calls[of][i]);
            }
        }
        say("sent %lld", sent);
        say("received %lld", received);
        say("waited %lld", waited);
        say("read %lld", was_read);
        say("done");
    }
}
