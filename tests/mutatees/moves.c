/* Moves the program's own text to anonymous memory, as programs do that want it in huge pages (node, ClickHouse, iodlr, libhugetlbfs).
 *
 * move copy     copy it away, map anonymous memory over it, copy it back: all other threads have to rest
 * move part     the same with the first pages of the text alone
 * move remap    copy it to anonymous memory and put that in its place at once: the others may run on
 * move begin    the first step of `copy` alone
 * move end      the other steps
 * move twice    maps the file's text a second and a third time, far below and far above the first
 * move chance   make code that has the same jumps as the text at the same places of pages, and nothing else of it
 * move collapse ask the kernel for huge pages of the text as it is
 */
#include "mutatee.h"
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>

enum step { BEGIN = 1, END = 2, REMAP = 4 };

/* Runs in a page of its own, and calls no function. */
COUNTED __attribute__((aligned(64), no_stack_protector)) static long mover(char *text, char *aside, size_t length, long steps) {
    long result = 0;
#define CALL(number, a, b, c, d, e)                                                                                    \
    ({                                                                                                                 \
        long ret_;                                                                                                     \
        register long r10_ __asm__("r10") = (d);                                                                       \
        register long r8_ __asm__("r8") = (e);                                                                         \
        register long r9_ __asm__("r9") = 0;                                                                           \
        __asm__ volatile("syscall" : "=a"(ret_)                                                                        \
                         : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10_), "r"(r8_), "r"(r9_)                          \
                         : "rcx", "r11", "memory");                                                                    \
        ret_;                                                                                                          \
    })
#define COPY(to, from)                                                                                                 \
    do {                                                                                                               \
        char *to_ = (to), *from_ = (from);                                                                             \
        size_t n_ = length;                                                                                            \
        __asm__ volatile("rep movsb" : "+D"(to_), "+S"(from_), "+c"(n_) : : "memory");                                 \
    } while (0)
    if (steps & BEGIN) COPY(aside, text);
    if (steps & REMAP) {
        result = CALL(SYS_mprotect, aside, length, PROT_READ | PROT_EXEC, 0, 0);
        long at = CALL(SYS_mremap, aside, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (long)text);
        return result | (at != (long)text);
    }
    if (steps & END) {
        long at = CALL(SYS_mmap, text, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
        if (at != (long)text) return 1;
        COPY(text, aside);
        result = CALL(SYS_mprotect, text, length, PROT_READ | PROT_EXEC, 0, 0);
        CALL(SYS_munmap, aside, length, 0, 0, 0);
    }
    return result;
}

static char *text_start;
static size_t text_length;
static long text_offset;

static int find(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        unsigned long from = (info->dlpi_addr + p->p_vaddr) & ~4095ul;
        text_start = (char *)from;
        text_offset = (long)(p->p_offset & ~4095ul);
        text_length = ((info->dlpi_addr + p->p_vaddr + p->p_memsz + 4095) & ~4095ul) - from;
    }
    return 1; /* stop: the first object is the program itself */
}

long move_text(const char *how) {
    static char *aside;
    dl_iterate_phdr(find, NULL);
    size_t length = text_length;
    if (!strcmp(how, "collapse")) return madvise(text_start, length, 25 /* MADV_COLLAPSE */) ? errno : 0;
    if (!strcmp(how, "twice")) {
        int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        for (int i = 0; i < 2; i++) {
            void *far = i ? (void *)0x700000000000 : (void *)0x70000000;
            if (mmap(far, text_length, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, text_offset) != far)
                return errno;
        }
        return close(fd);
    }
    if (!strcmp(how, "chance")) {
        char *code = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (code == MAP_FAILED) return errno;
        for (size_t i = 0, jump = 0; i < length; i++) {
            if (!jump && (unsigned char)text_start[i] == 0xe9) jump = 5;
            code[i] = jump ? text_start[i] : ~text_start[i];
            if (jump) jump--;
        }
        return 0;
    }
    long steps = BEGIN | END;
    if (!strcmp(how, "part")) length = 4096;
    if (!strcmp(how, "remap")) steps = BEGIN | REMAP;
    if (!strcmp(how, "begin")) steps = BEGIN;
    if (!strcmp(how, "end")) steps = END;
    if (steps & BEGIN)
        aside = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (aside == MAP_FAILED || code == MAP_FAILED) return errno;
    memcpy(code, (char *)mover, 1024);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC)) return errno;
    long failed = ((long (*)(char *, char *, size_t, long))code)(text_start, aside, length, steps);
    munmap(code, 4096);
    return failed;
}
