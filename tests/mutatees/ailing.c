/* A program whose time goes to one known cause, for searches for it.
 *
 * burn              a thread computes in `burns`
 * contend           four threads take one mutex in `takes_turns`, and hold it most of the time
 * store PATH        a thread writes to a file and forces each block to the disk in `stores`
 * churn             a thread maps, touches and unmaps memory in `churns`
 * doze              a thread calls `handles`, which sleeps in `naps`
 * ask PORT          a thread asks a server at 127.0.0.1 in `asks_upstream` and waits for each answer
 * spin              a thread reads from an empty pipe that does not block, again and again, in `polls`
 * pool N            N threads wait for work in `works`, and get none
 * rest              all threads but those of the pool end
 * Answers are `address ADDRESS` of the mutex, and `done`. Each cause may be begun once. */
#include "mutatee.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

static atomic_int going = 1;
static pthread_t threads[16];
static int begun;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static char path[4096];
static int port, ends[2];

/* Work on the processor. */
COUNTED uint64_t computes(int turns) {
    uint64_t x = 1;
    for (int i = 0; i < turns; i++) {
        x = x * 6364136223846793005u + 1442695040888963407;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

COUNTED uint64_t burns(int turns) {
    uint64_t x = 1;
    for (int i = 0; i < turns; i++) {
        x = x * 6364136223846793005u + 1442695040888963407;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

COUNTED void *burning(void *unused) {
    while (atomic_load(&going)) burns(100000);
    return unused;
}

COUNTED void takes_turns(void) {
    if (pthread_mutex_lock(&mutex)) abort();
    struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
    pthread_mutex_unlock(&mutex);
}

COUNTED void *contending(void *unused) {
    while (atomic_load(&going)) {
        takes_turns();
        computes(1000);
    }
    return unused;
}

COUNTED void stores(int file) {
    static char block[65536];
    if (pwrite(file, block, sizeof block, 0) != sizeof block || fsync(file)) abort();
}

COUNTED void *storing(void *unused) {
    int file = open(path, O_CREAT | O_RDWR, 0600);
    if (file < 0) abort();
    while (atomic_load(&going)) stores(file);
    close(file);
    return unused;
}

COUNTED void churns(size_t length) {
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    madvise(memory, length, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < length; i += 4096) ((volatile char *)memory)[i] = 1;
    munmap(memory, length);
}

COUNTED void *churning(void *unused) {
    while (atomic_load(&going)) churns(16 << 20);
    return unused;
}

COUNTED void naps(void) {
    struct timespec t = {0, 5000000};
    nanosleep(&t, NULL);
}

COUNTED void handles(void) {
    computes(20000);
    naps();
}

COUNTED void *dozing(void *unused) {
    while (atomic_load(&going)) handles();
    return unused;
}

COUNTED void asks_upstream(int server) {
    char answer[16];
    if (send(server, "?", 1, MSG_NOSIGNAL) != 1) return;
    if (recv(server, answer, sizeof answer, 0) <= 0) usleep(1000);
}

COUNTED void *asking(void *unused) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(server, (struct sockaddr *)&address, sizeof address)) abort();
    while (atomic_load(&going)) {
        asks_upstream(server);
        computes(20000);
    }
    close(server);
    return unused;
}

COUNTED void polls(void) {
    char byte;
    if (read(ends[0], &byte, 1) != -1 || errno != EAGAIN) abort();
}

COUNTED void *spinning(void *unused) {
    if (pipe2(ends, O_NONBLOCK)) abort();
    while (atomic_load(&going)) polls();
    return unused;
}

COUNTED void *works(void *unused) {
    pthread_mutex_lock(&pool_mutex);
    for (;;) pthread_cond_wait(&work, &pool_mutex);
    return unused;
}

static void begin(void *(*body)(void *)) {
    if (begun == 16 || pthread_create(&threads[begun++], NULL, body, NULL)) abort();
}

int main(void) {
    say_ready();
    for (char *line; (line = next_command());) {
        int n;
        if (!strcmp(line, "burn")) {
            begin(burning);
        } else if (!strcmp(line, "contend")) {
            say("address %lld", (long long)(intptr_t)&mutex);
            for (int i = 0; i < 4; i++) begin(contending);
        } else if (!strncmp(line, "store ", 6)) {
            snprintf(path, sizeof path, "%s", line + 6);
            begin(storing);
        } else if (!strcmp(line, "churn")) {
            begin(churning);
        } else if (!strcmp(line, "doze")) {
            begin(dozing);
        } else if (sscanf(line, "ask %d", &port) == 1) {
            begin(asking);
        } else if (!strcmp(line, "spin")) {
            begin(spinning);
        } else if (sscanf(line, "pool %d", &n) == 1) {
            for (pthread_t t; n > 0; n--)
                if (pthread_create(&t, NULL, works, NULL)) abort();
        } else if (!strcmp(line, "rest")) {
            atomic_store(&going, 0);
            while (begun) pthread_join(threads[--begun], NULL);
            atomic_store(&going, 1);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
