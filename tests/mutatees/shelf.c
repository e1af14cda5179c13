/* Tables and lists, to compare their coverage with gcov's: reads words, counts them in a hash table, sorts them in two ways. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next;
    long count;
    char word[24];
};

static struct entry **table;
static unsigned long size, used;

static unsigned long hash(const char *word) {
    unsigned long value = 5381;
    while (*word) value = value * 33 ^ (unsigned char)*word++;
    return value;
}

static void grow(void) {
    unsigned long more = size ? size * 2 : 4;
    struct entry **next = calloc(more, sizeof *next);
    if (!next) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    for (unsigned long i = 0; i < size; i++) {
        struct entry *entry = table[i];
        while (entry) {
            struct entry *rest = entry->next;
            unsigned long place = hash(entry->word) % more;
            entry->next = next[place];
            next[place] = entry;
            entry = rest;
        }
    }
    free(table);
    table = next;
    size = more;
}

static struct entry *find(const char *word, int make) {
    if (size) {
        for (struct entry *entry = table[hash(word) % size]; entry; entry = entry->next)
            if (!strcmp(entry->word, word)) return entry;
    }
    if (!make) return NULL;
    if (used >= size) grow();
    struct entry *entry = malloc(sizeof *entry);
    snprintf(entry->word, sizeof entry->word, "%s", word);
    entry->count = 0;
    entry->next = table[hash(word) % size];
    table[hash(word) % size] = entry;
    used++;
    return entry;
}

static int by_count(const struct entry *a, const struct entry *b) {
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    return strcmp(a->word, b->word);
}

static int by_word(const struct entry *a, const struct entry *b) { return strcmp(a->word, b->word); }

typedef int order(const struct entry *, const struct entry *);

static void sort(struct entry **all, unsigned long n, order *compare) {
    if (n < 2) return;
    if (n == 2) {
        if (compare(all[0], all[1]) > 0) {
            struct entry *first = all[0];
            all[0] = all[1];
            all[1] = first;
        }
        return;
    }
    struct entry *pivot = all[n / 2];
    unsigned long i = 0, j = n - 1;
    for (;;) {
        while (compare(all[i], pivot) < 0) i++;
        while (compare(all[j], pivot) > 0) j--;
        if (i >= j) break;
        struct entry *kept = all[i];
        all[i++] = all[j];
        all[j--] = kept;
    }
    sort(all, i, compare);
    sort(all + i, n - i, compare);
}

int main(int argc, char **argv) {
    order *compare = by_count;
    long least = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--words")) compare = by_word;
        else if (!strncmp(argv[i], "--least=", 8)) least = atol(argv[i] + 8);
        else if (argv[i][0] == '-') {
            fprintf(stderr, "what is %s?\n", argv[i]);
            return 1;
        } else find(argv[i], 1)->count++;
    }
    if (!used) return 3;
    struct entry **all = malloc(used * sizeof *all);
    unsigned long n = 0;
    for (unsigned long i = 0; i < size; i++)
        for (struct entry *entry = table[i]; entry; entry = entry->next) all[n++] = entry;
    sort(all, n, compare);
    for (unsigned long i = 0; i < n; i++)
        if (all[i]->count >= least) printf("%ld %s\n", all[i]->count, all[i]->word);
    if (find("nothing", 0)) printf("nothing was there\n");
    free(all);
    return 0;
}
