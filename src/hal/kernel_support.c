/* kernel_support.c — what a device can run, told from its capabilities before anything is compiled. */
#include <stdio.h>
#include <string.h>

#include "hal/kernel_code.h"
#include "kir/rules.h"

/* What a program needs of a device. */
typedef struct needs {
    bool f64, i64;
    int bindings;
    int64_t items, local_bytes;
} needs;

static needs needs_of(const kir_program *p) {
    needs n = {.bindings = tn_global_bindings(p), .items = kir_items(p), .local_bytes = kir_local_bytes(p)};
    for (int i = 0; i < p->n_ins; i++) {
        n.f64 |= p->ins[i].type == KIR_F64;
        n.i64 |= p->ins[i].type == KIR_I64 || p->ins[i].type == KIR_U64;
    }
    return n;
}

static bool no(tn_kernel_answer *a, const char *code, const char *format, ...) TN_PRINTF(3, 4);
static bool no(tn_kernel_answer *a, const char *code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    a->code = code;
    vsnprintf(a->why, sizeof a->why, format, args);
    va_end(args);
    return false;
}

static bool caps_fit(const tn_caps *c, const kir_program *p, tn_kernel_answer *a) {
    needs n = needs_of(p);
    if (c->code != TN_CODE_KIR && !tn_code_is_rendered(c->code))
        return no(a, "no_renderer", "takes kernels in a form that this version does not write");
    if (n.f64 && !c->f64) return no(a, "no_f64", "has no f64");
    if (n.i64 && !c->i64 && !tn_code_has_words(c->code)) return no(a, "no_i64", "has no i64");
    if (c->max_bindings && n.bindings > c->max_bindings)
        return no(a, "too_many_bindings", "binds %d buffers at most, this kernel has %d", c->max_bindings, n.bindings);
    if (c->max_group && n.items > c->max_group && p->n_items)
        return no(a, "group_too_large", "has workgroups of %lld items at most, this kernel's have %lld",
                  (long long)c->max_group, (long long)n.items);
    /* a driver of KIR runs groups itself, out of the memory that it likes */
    if (c->code != TN_CODE_KIR && n.local_bytes > c->shared_memory)
        return no(a, "local_memory", "has %lld bytes of workgroup memory, this kernel needs %lld",
                  (long long)c->shared_memory, (long long)n.local_bytes);
    return true;
}

/* How often an item goes round its loops, at most: a loop counts a last round, in which it sees that it is at its end,
 * and one that is passed over counts it too. Points in blocks of a lane each: 5 rounds a block beside theirs, and what
 * folds KIR_BLOCK of them. */
static double rounds_of(const kir_program *p, const int64_t *sizes) {
    enum { NESTED = 16, LANES_TAKE = 4 * KIR_LANES, BESIDE = 8 };
    double points[NESTED + 1] = {1}, rounds = 0;
    for (int i = 0, depth = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth > NESTED) return (double)INT64_MAX;
        if (in->op == KIR_REDUCE) rounds += LANES_TAKE * points[depth - 1] + points[depth] / BESIDE;
        if (in->op != KIR_LOOP) continue;
        points[depth] = points[depth - 1];
        for (int k = kir_loop_first(in); k < kir_loop_first(in) + kir_loop_count(in); k++) {
            rounds += points[depth];
            rounds += points[depth] *= (double)sizes[k];
        }
    }
    return rounds;
}

bool tn_kernel_supported(tn_device *d, const kir_program *p, const int64_t *sizes, tn_kernel_answer *answer) {
    tn_kernel_answer unwanted, *a = answer ? answer : &unwanted;
    char name[TN_KERNEL_NAME], why[120];
    *a = (tn_kernel_answer){.code = ""};
    if (!caps_fit(&d->caps, p, a)) return false;
    if (tn_certify_list_has(d, tn_kernel_name(p, name), why, sizeof why))
        return no(a, "not_certified", "computed kernel %s wrongly before: %s", name, why);
    if (tn_kernel_refused(d, p, why, sizeof why))
        return no(a, "refused_by_compiler", "refused kernel %s: %s", name, why);
    if (!sizes) return true;
    if (!d->caps.i64 && tn_code_has_words(d->caps.code) && !tn_launch_is_narrow(p, sizes))
        return no(a, "no_i64", "has no i64, which indices of so many elements need");
    double rounds = d->caps.max_loop ? rounds_of(p, sizes) : 0;
    if (rounds > (double)d->caps.max_loop)
        return no(a, "loop_too_long", "goes round loops %lld times at most, an item of this kernel would %.0f times",
                  (long long)d->caps.max_loop, rounds);
    tn_launch launch = {.sizes = sizes};
    int64_t most = tn_reach(d, p);
    if (tn_launch_split(p, &launch, most, d->caps.alignment, NULL, NULL, NULL) != TN_OK)
        return no(a, "buffer_too_large", "binds %lld bytes at once, one point of this kernel needs more",
                  (long long)most);
    return true;
}

/* Ends the division where a part binds a buffer from behind its end. */
static tn_status stay_within(void *ctx, const tn_launch *part) {
    const void *const *ends = ctx;
    for (int b = 0; b < KIR_MAX_BUFFERS && ends[b]; b++)
        if ((uintptr_t)part->buffers[b] > (uintptr_t)ends[b]) return TN_ERR_UNSUPPORTED;
    return TN_OK;
}

bool tn_kernel_in_bounds(tn_device *d, const kir_program *p, const int64_t *sizes, const int64_t *bytes,
                         tn_kernel_answer *answer) {
    enum { PLACE = 1 << 12 }; /* no memory is there yet: any number does for an address */
    void *begins[KIR_MAX_BUFFERS], *ends[KIR_MAX_BUFFERS] = {NULL};
    int64_t *room = tn_mem_alloc(kir_sizes_count(p) * sizeof *room);
    for (int b = 0; b < p->n_buffers; b++) {
        begins[b] = (void *)(uintptr_t)PLACE;
        ends[b] = (void *)((uintptr_t)PLACE + (uintptr_t)bytes[b]);
    }
    tn_launch launch = {.sizes = sizes, .buffers = begins};
    bool stays =
        room && tn_launch_split(p, &launch, tn_reach(d, p), d->caps.alignment, room, stay_within, ends) == TN_OK;
    tn_mem_free(room);
    return stays || no(answer, "buffer_too_large", "binds parts of buffers, and masked accesses go beyond their ends");
}

/* Makes the program bind a buffer in so many windows as reach so far, from a place within an alignment on; false where
 * the device has no windows, or too few. */
static bool take_windows(const tn_caps *c, kir_program *p, int buffer, int64_t bytes) {
    uint8_t windows[KIR_MAX_BUFFERS];
    int64_t each = tn_window_bytes(c), count = (bytes + c->alignment - 1) / tn_max64(1, each) + 1;
    if (c->code != TN_CODE_SPIRV || !(c->features & TN_SPIRV_WINDOWS) || kir_lanes(p) || count > UINT8_MAX)
        return false;
    if (bytes / (int64_t)tn_dtype_size((tn_dtype)p->buffer_dtype[buffer]) > INT32_MAX) return false;
    memcpy(windows, p->windows, sizeof windows);
    windows[buffer] = 1;
    kir_set_windows(p, windows, KIR_MAX_BUFFERS);
    if (tn_global_bindings(p) - 1 + count > c->max_bindings) return false;
    windows[buffer] = (uint8_t)count;
    kir_set_windows(p, windows, KIR_MAX_BUFFERS);
    return true;
}

static bool reads_anywhere(const kir_program *p, int buffer) {
    for (int i = 0; i < p->n_sized; i++)
        if (p->access[i].buffer == buffer && p->access[i].dyn != KIR_NONE) return true;
    return false;
}

bool tn_kernel_addresses(tn_device *d, kir_program *p, int buffer, int64_t bytes, bool all, tn_kernel_answer *answer) {
    int64_t reach = tn_reach(d, p);
    bool fits = bytes <= reach - d->caps.alignment;
    if (!all && (fits || !reads_anywhere(p, buffer))) return true;
    /* what fits takes its window, too: a range may go beyond a buffer, where accesses are masked */
    return take_windows(&d->caps, p, buffer, bytes) || fits ||
           no(answer, "buffer_too_large", "binds %lld bytes at once, this kernel reads anywhere in %lld",
              (long long)reach, (long long)bytes);
}
