/* Messages as MPI passes them, between threads of one process, by this program's own tally.
 *
 * send GROUP TAG N     N messages of 4 ints with a tag are sent and received in a communicator: 0 the world, 1 the half
 * Each answer has `messages GROUP TAG N` for each that was used: how many calls of MPI_Send and MPI_Recv there were. */
#include "mutatee.h"

enum { INT = 4, TAG_FIRST = -1, TAGS = 16, ITEMS = 4 };

struct communicator {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int full, tag, data[ITEMS];
};

struct communicator world = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, {0}};
static struct communicator half = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, {0}};
static struct communicator *const groups[] = {&world, &half};
static _Atomic long calls[2][TAGS];

static void note(struct communicator *group, int tag) { calls[group == &half][tag - TAG_FIRST]++; }

/* Argument 4 is the tag, argument 5 the communicator, as in MPI. */
COUNTED int MPI_Send(const void *data, int count, int datatype, int to, int tag, struct communicator *group) {
    (void)to;
    note(group, tag);
    pthread_mutex_lock(&group->lock);
    while (group->full) pthread_cond_wait(&group->changed, &group->lock);
    memcpy(group->data, data, (size_t)count * (size_t)datatype);
    group->tag = tag;
    group->full = 1;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    return 0;
}

COUNTED int MPI_Recv(void *data, int count, int datatype, int from, int tag, struct communicator *group, int *status) {
    (void)from;
    (void)status;
    note(group, tag);
    pthread_mutex_lock(&group->lock);
    while (!group->full) pthread_cond_wait(&group->changed, &group->lock);
    if (group->tag != tag) abort();
    memcpy(data, group->data, (size_t)count * (size_t)datatype);
    group->full = 0;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    return 0;
}

/* For a vector over what it returns. */
COUNTED int which(const struct communicator *group) { return group == &half; }

struct part {
    struct communicator *group;
    int tag;
    long n;
};

static void *receiver(void *given) {
    struct part *part = given;
    for (long i = 0; i < part->n; i++) {
        int data[ITEMS], status;
        MPI_Recv(data, ITEMS, INT, 0, part->tag, part->group, &status);
        if (data[0] != (int)i) abort();
    }
    return NULL;
}

int main(void) {
    if (which(&world) || which(&half) != 1) abort();
    say_ready();
    for (char *line; (line = next_command());) {
        struct part part;
        int group;
        if (sscanf(line, "send %d %d %ld", &group, &part.tag, &part.n) != 3 || group < 0 || group > 1 ||
            part.tag < TAG_FIRST || part.tag >= TAG_FIRST + TAGS) {
            say("unknown command");
            continue;
        }
        part.group = groups[group];
        pthread_t thread;
        if (pthread_create(&thread, NULL, receiver, &part)) abort();
        for (long i = 0; i < part.n; i++) {
            int data[ITEMS] = {(int)i};
            MPI_Send(data, ITEMS, INT, 0, part.tag, part.group);
        }
        pthread_join(thread, NULL);
        for (int of = 0; of < 2; of++) {
            for (int i = 0; i < TAGS; i++) {
                if (calls[of][i]) say("messages %s %d %ld", of ? "half" : "world", i + TAG_FIRST, calls[of][i]);
            }
        }
        say("done");
    }
}
