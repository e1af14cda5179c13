/* Calls the functions of shapes.s with every register and flag set and compares what comes back with an unmeasured call.
 *
 * run N             each function N + its index times; `tally NAME CALLS` cumulative, `wrong NAME WORD` for differences
 */
#include "mutatee.h"
#include <stdint.h>

struct state {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8_15[8], flags, vectors[32];
};
void shapes_check(const struct state *in, struct state *out, void *function);

/* No caller relies on r11 after a function that ends by a jump to unknown code, so its value is not compared. */
static int leaves_for_unknown_code(const char *name) { return !strcmp(name, "rip_jump") || !strcmp(name, "call_memory"); }

/* name, times it is entered per call, calls of shapes_target per call */
#define SHAPES \
    S(exact5, 1, 0) S(only_ret, 1, 0) S(short_padded, 1, 0) S(short_crowded, 1, 0) S(after_crowded, 1, 0) S(short_nops, 1, 0) \
    S(endbr, 1, 0) S(endbr_only, 1, 0) S(loop_rel8, 1, 0) S(loop_rel32, 1, 0) S(loop_red_zone, 1, 0) S(branch_inside, 1, 0) \
    S(rip_load, 1, 0) S(rip_immediate, 1, 0) S(rip_lea, 1, 0) S(rip_jump, 1, 1) S(jrcxz_first, 1, 0) S(loop_first, 1, 0) \
    S(short_branch, 1, 0) S(call_first, 1, 1) S(call_only, 1, 1) S(call_pop, 1, 0) S(call_memory, 1, 1) S(tail_long, 1, 1) \
    S(tail_conditional, 1, 1) S(push_ret, 1, 1) S(page_straddle, 1, 0) S(page_end, 1, 0) S(flags_carry, 1, 0) \
    S(flags_all, 1, 0) S(adc_first, 1, 0) S(all_registers, 1, 0) S(odd_arguments, 1, 0) S(vectors, 1, 0) S(syscall_first, 1, 0) \
    S(ret_repz, 1, 0) S(entry_outer, 1, 0) S(jump_table, 1, 0) S(recursive, 4, 0)
#define S(name, entries, targets) extern char name[];
SHAPES
#undef S
static const struct shape {
    const char *name;
    void *function;
    int entries, targets;
} shapes[] = {
#define S(name, entries, targets) {#name, name, entries, targets},
    SHAPES
#undef S
};
enum { COUNT = sizeof shapes / sizeof *shapes };

static long tallies[COUNT], target_tally;
static struct state inputs[2], expected[COUNT][2];

int main(void) {
    for (int k = 0; k < 2; k++) {
        uint64_t *words = (uint64_t *)&inputs[k];
        for (size_t i = 0; i < sizeof inputs[k] / 8; i++) words[i] = 0x0101010101010101u * (i + 3) + (uint64_t)k;
        inputs[k].rdi = 3;
        inputs[k].flags = k ? 0xcd7 : 0x202; /* with and without carry, parity, adjust, zero, sign, direction, overflow */
        for (int i = 0; i < COUNT; i++) shapes_check(&inputs[k], &expected[i][k], shapes[i].function);
    }
    say_ready();
    for (char *line; (line = next_command());) {
        long n;
        if (sscanf(line, "run %ld", &n) == 1) {
            for (int i = 0; i < COUNT; i++) {
                for (long call = 0; call < n + i; call++) {
                    struct state out;
                    int k = call & 1;
                    shapes_check(&inputs[k], &out, shapes[i].function);
                    /* A function may change the flags, so they are compared only if it returns them in a register. */
                    out.flags = expected[i][k].flags;
                    if (leaves_for_unknown_code(shapes[i].name)) out.r8_15[3] = expected[i][k].r8_15[3];
                    if (memcmp(&out, &expected[i][k], sizeof out))
                        for (size_t w = 0; w < sizeof out / 8; w++)
                            if (((uint64_t *)&out)[w] != ((uint64_t *)&expected[i][k])[w])
                                say("wrong %s word %zu is %lx not %lx", shapes[i].name, w, ((uint64_t *)&out)[w],
                                    ((uint64_t *)&expected[i][k])[w]);
                }
                tallies[i] += (n + i) * shapes[i].entries;
                target_tally += (n + i) * shapes[i].targets;
            }
            for (int i = 0; i < COUNT; i++) say("tally %s %ld", shapes[i].name, tallies[i]);
            say("tally shapes_target %ld", target_tally);
        } else {
            say("unknown command %s", line);
        }
        say("done");
    }
    return 0;
}
