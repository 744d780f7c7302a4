/* index_check.c — compares indices with their range while a plan runs.
 *
 * A kernel cannot fail, so it reads NaN or skips for an index out of range. Instead the host checks the indices: right
 * after the command that computes them, or before the first command if they are data. So indices are always stored in
 * memory. No check is in the commit section, so a run that is stopped by a check has changed no state. On the CPU a
 * check is one pass over the indices; on other devices indices that the host has sent are compared by what it knows of
 * them. What such a device has computed is not waited for: a kernel counts the indices outside, and the host reports
 * the count when it next waits (hal/error_counters.c), after states were written. With TRUNNION_CHECK_INDICES, and if
 * the device cannot run that kernel, they are copied to the host and compared there.
 *
 * An op reads its indices through a view that has the check, so the results that depend on this view are those that a
 * failed check affects. They become errors; everything else is computed. */
#include <stdio.h>
#include <string.h>

#include "gpu/gpu.h"
#include "ops/ops_common.h"
#include "plan/plan.h"

typedef struct tn_plan_check {
    tn_index_list list;
    tn_index_range range;
    const char *name; /* of the op or function */
    int node;         /* place in the binding's list of nodes with a check; -1: not there */
    int32_t line;     /* where the op was recorded when the plan was made */
    const char *file;
    size_t before;        /* the command before which it runs */
    int slot;             /* of data */
    void **pointer;       /* of the root; `bytes` bytes from byte `begin` on have the indices */
    int64_t begin, first; /* first: bytes from `begin` to element 0, …, 0 */
    size_t bytes;
    tn_kernel *kernel; /* on other devices: counts those outside; NULL: the host compares them */
    tn_launch count;
    const tn_buffer *checked; /* data: in this buffer and version of it all indices are inside */
    uint64_t version;
} tn_plan_check;

enum { COUNTED_PARTS = 64 }; /* of a long list: workgroups that count at the same time */

/* ---- when a plan is made ----------------------------------------------------------------------------------------- */

tn_status tn_note_checked(tn_graph_plan *g, const tn_node *n) {
    if (tn_map_find(&g->checked.of, n) >= 0) return TN_OK;
    TRY(tn_scratch_grow(&g->scratch, &g->checked.list, &g->checked.capacity, g->checked.count + 1,
                        sizeof *g->checked.list));
    TRY(tn_map_put(&g->checked.of, n, (int32_t)g->checked.count));
    g->checked.list[g->checked.count++] = (tn_checked_value){.node = n, .value = -1};
    return TN_OK;
}

tn_status tn_find_checked(tn_graph_plan *g) {
    for (size_t i = 0; i < g->checked.count; i++) {
        tn_checked_value *c = &g->checked.list[i];
        c->value = tn_value_of(g, tn_index_source(c->node));
        if (c->value < 0) c->value = tn_value_of(g, c->node);
        if (c->value < 0)
            return tn_fail(TN_ERR_INTERNAL, "%s: the indices to check have no value", c->node->check->name);
    }
    return TN_OK;
}

void tn_want_checked(tn_graph_plan *g) {
    for (size_t i = 0; i < g->checked.count; i++) {
        tn_value *root = &g->values[g->values[g->checked.list[i].value].root];
        if (root->row) root->fusion.wants_memory = true;
    }
}

void tn_mark_checked(tn_graph_plan *g) {
    for (size_t i = 0; i < g->checked.count; i++) {
        const tn_value *root = &g->values[g->values[g->checked.list[i].value].root];
        if (root->group >= 0) g->groups[root->group].order.checked = true;
    }
}

tn_status tn_make_checks(const tn_graph_plan *g, tn_plan *p) {
    if (g->checked.count == 0) return TN_OK;
    p->checks.list = tn_plan_own(p, g->checked.count * sizeof *p->checks.list);
    if (!p->checks.list) return TN_ERR_MEMORY;
    if (p->device->is_cpu || tn_indices_checked_everywhere()) return TN_OK;
    return tn_error_counters_new(p->device, (int)g->checked.count, COUNTED_PARTS, &p->checks.counters);
}

void tn_free_checks(tn_plan *p) {
    for (size_t i = 0; i < p->checks.leaf_count; i++)
        tn_kernel_release(p->checks.list[i].kernel);
    tn_error_counters_release(p->checks.counters);
}

static int place_in_binding(const tn_binding *b, const tn_node *n) {
    for (size_t i = 0; i < b->key.checked_count; i++)
        if (b->key.checked[i] == n) return (int)i;
    return -1;
}

/* A kernel that adds to each of `parts` words how many indices of its part are outside. Buffers: the root of the
 * indices, the words. Runtime scalars: the range. A list without gaps has parts; another is one, with its dims. */
static tn_status make_counting_program(const tn_index_list *l, const tn_index_range *r, int64_t offset, int64_t parts,
                                       kir_program **program, int64_t **sizes) {
    enum { PART, WITHIN };
    int64_t extents[KIR_MAX_AXES] = {parts, (l->count + parts - 1) / parts};
    int loops = l->dense ? 1 : l->rank;
    kir_aff at = kir_aff_const(offset), number = tn_along(PART, extents[WITHIN]), word = tn_along(PART, 1);
    if (!l->dense) memcpy(extents + WITHIN, l->shape, (size_t)loops * sizeof *extents);
    number.s[WITHIN] = 1;
    for (int d = 0; d < loops; d++)
        at.s[WITHIN + d] = l->dense ? 1 : l->stride[d];
    if (l->dense) at.s[PART] = extents[WITHIN];
    kir_builder *b;
    TRY(kir_begin(1, loops, extents, &b));
    int indices = kir_buffer(b, l->dtype), words = kir_buffer(b, TN_U32);
    kir_loop(b, WITHIN, loops);
    kir_val there = l->dense ? tn_inside(b, &number, l->count) : KIR_NONE;
    kir_val index = kir_cast(b, KIR_I64, kir_load(b, indices, &at, there));
    kir_val below = kir_lt(b, index, kir_scalar_value(b, KIR_I64, 0));
    kir_val out = kir_or(b, below, kir_binary(b, KIR_LE, kir_scalar_value(b, KIR_I64, 1), index));
    if (r->ignores) {
        kir_val ignored = kir_eq(b, index, kir_scalar_value(b, KIR_I64, 2));
        out = kir_and(b, out, kir_xor(b, ignored, kir_const_i(b, KIR_BOOL, 1)));
    }
    if (there != KIR_NONE) out = kir_and(b, out, there);
    kir_val count = kir_reduce_value(b, KIR_SUM, kir_cast(b, KIR_U32, out), KIR_NONE);
    kir_end(b);
    kir_store(b, words, &word, kir_add(b, kir_load(b, words, &word, KIR_NONE), count), KIR_NONE);
    return kir_finish(b, program, sizes);
}

/* *kernel stays NULL if the device cannot run it. */
static tn_status load_counting_kernel(tn_plan *p, const kir_program *program, const int64_t *sizes, int64_t bytes,
                                      tn_kernel **kernel) {
    const int64_t of_each[] = {bytes, COUNTED_PARTS * (int64_t)sizeof(uint32_t)};
    tn_kernel_answer why;
    if (!tn_kernel_supported(p->device, program, sizes, &why) ||
        !tn_kernel_in_bounds(p->device, program, sizes, of_each, &why))
        return TN_OK;
    tn_status s = tn_kernel_get(p->device, program, kernel);
    return s == TN_ERR_MEMORY || s == TN_ERR_LOST ? s : TN_OK;
}

static tn_counted_error counted_error(const tn_plan *p, const tn_plan_check *k) {
    tn_counted_error e = {.what = k->name, .file = k->file, .line = k->line};
    snprintf(e.rule, sizeof e.rule,
             "of the indices that %s computed are out of bounds: valid indices are %lld to %lld; what was "
             "computed from them is not valid",
             p->device->info.id, (long long)k->range.low, (long long)k->range.high - 1);
    return e;
}

/* Counter i of the plan is that of check i. */
static tn_status add_count(tn_plan *p, tn_plan_check *k, int64_t offset, int64_t root_bytes, void **words) {
    enum { SMALL_PART = 1024 };
    int64_t parts = k->list.dense ? tn_min64(COUNTED_PARTS, (k->list.count + SMALL_PART - 1) / SMALL_PART) : 1;
    kir_program *program = NULL;
    int64_t *sizes = NULL;
    kir_scalar *range = tn_plan_own(p, 3 * sizeof *range);
    TRY(make_counting_program(&k->list, &k->range, offset, parts, &program, &sizes));
    tn_status s = range ? load_counting_kernel(p, program, sizes, root_bytes, &k->kernel) : TN_ERR_MEMORY;
    size_t bytes = kir_sizes_count(program) * sizeof *sizes;
    int64_t *own = s == TN_OK && k->kernel ? tn_plan_own(p, bytes) : NULL;
    if (own) memcpy(own, sizes, bytes);
    kir_free(program);
    tn_mem_free(sizes);
    if (s != TN_OK || !k->kernel) return s;
    if (!own) {
        tn_kernel_release(k->kernel);
        return TN_ERR_MEMORY;
    }
    range[0].i = k->list.dtype == TN_U64 && k->range.low < 0 ? 0 : k->range.low;
    range[1].i = k->range.high;
    range[2].i = k->range.ignored;
    size_t number = (size_t)(k - p->checks.list);
    *words = (uint32_t *)tn_error_counters_words(p->checks.counters)->address + number * COUNTED_PARTS;
    k->count = (tn_launch){.sizes = own, .buffers = k->pointer, .scalars = range};
    tn_counted_error error = counted_error(p, k);
    tn_error_counters_name(p->checks.counters, (int)number, &error);
    return TN_OK;
}

/* Indices that the plan computes are counted by a command behind the one that computes them. */
static void add_counting_command(tn_plan *p, tn_plan_check *k) {
    tn_command *c = &p->commands[p->command_count++];
    *c = (tn_command){.kind = TN_CMD_KERNEL, .kernel = k->kernel, .device = p->device, .launch_count = 1};
    c->launches = &k->count;
    c->cost.bytes = (int64_t)k->bytes;
    p->checks.counted++;
    snprintf(c->label, sizeof c->label, "count indices out of bounds for %s", k->name);
}

/* The check of node n, whose value is v. */
static tn_status add_check(tn_plan *p, const tn_node *n, const tn_value *v, const tn_value *root, void ***pointer) {
    int64_t size = (int64_t)tn_dtype_size((tn_dtype)v->node->dtype);
    tn_plan_check *k = &p->checks.list[p->checks.count];
    *k = (tn_plan_check){.range = n->check->range,
                         .name = n->check->name,
                         .line = n->check->line,
                         .file = n->check->file,
                         .before = p->command_count,
                         .slot = root->slot,
                         .pointer = *pointer,
                         .begin = root->memory.first,
                         .first = v->offset * size - root->memory.first,
                         .bytes = (size_t)root->memory.bytes};
    k->list = (tn_index_list){.dtype = (tn_dtype)v->node->dtype,
                              .rank = v->node->rank,
                              .dense = tn_value_dense(v),
                              .count = tn_value_numel(v)};
    memcpy(k->list.shape, v->node->shape, sizeof k->list.shape);
    memcpy(k->list.stride, v->stride, sizeof k->list.stride);
    tn_plan_patch(p, (*pointer)++, root->memory.place, root->memory.offset);
    if (p->checks.counters) TRY(add_count(p, k, v->offset, root->memory.first + root->memory.bytes, (*pointer)++));
    p->checks.count++;
    if (root->slot >= 0)
        p->checks.leaf_count++;
    else if (k->kernel)
        add_counting_command(p, k);
    return TN_OK;
}

tn_status tn_add_checks(const tn_graph_plan *g, tn_plan *p, int group, void ***pointer) {
    if (g->checked.count == 0 || (group >= 0 && !g->groups[group].order.checked)) return TN_OK;
    for (size_t i = 0; i < g->checked.count; i++) {
        const tn_value *v = &g->values[g->checked.list[i].value], *root = &g->values[v->root];
        bool here = group < 0 ? root->slot >= 0 : root->slot < 0 && root->group == group;
        if (!here || root->memory.place < 0 || tn_value_numel(v) == 0) continue;
        TRY(add_check(p, g->checked.list[i].node, v, root, pointer));
        p->checks.list[p->checks.count - 1].node = place_in_binding(g->binding, g->checked.list[i].node);
    }
    return TN_OK;
}

/* ---- when it runs ------------------------------------------------------------------------------------------------ */

static tn_status compare(tn_plan *p, tn_plan_check *k, const char *indices) {
    k->list.first = indices + k->first;
    if (tn_indices_inside(&k->list, &k->range)) return TN_OK;
    p->runs.failed = k;
    return tn_indices_refuse(k->name, &k->list, &k->range);
}

static tn_status check(tn_plan *p, tn_plan_check *k) {
    const char *there = (const char *)*k->pointer + k->begin;
    if (p->device->is_cpu) return compare(p, k, there);
    AUTO_FREE char *fetched = tn_mem_alloc(k->bytes);
    if (!fetched) return TN_ERR_MEMORY;
    TRY(tn_device_fetch(p->device, tn_stream_handle(p->device), fetched, there, k->bytes));
    return compare(p, k, fetched);
}

/* Borrowed memory may change without a new version. */
static bool seen_before(const tn_plan *p, const tn_plan_check *k, const tn_buffer *b) {
    return k->checked == b && k->version == b->version && p->shift_count == 0 && !tn_buffer_is_borrowed(b);
}

tn_status tn_check_leaves(tn_plan *p, tn_buffer *const *bound) {
    for (size_t i = 0; i < p->checks.leaf_count; i++) {
        tn_plan_check *k = &p->checks.list[i];
        bool known = bound && !p->device->is_cpu && tn_buffer_is_known(bound[k->slot]), counts = k->kernel && !known;
        if (known && tn_known_inside(bound[k->slot], &k->range)) continue;
        if (bound && seen_before(p, k, bound[k->slot])) continue;
        tn_status s = counts ? tn_kernel_launch(p->device, k->kernel, &k->count, 1) : check(p, k);
        if (counts) tn_error_counters_touch(p->checks.counters);
        TRY(s);
        k->checked = bound ? bound[k->slot] : NULL;
        k->version = bound ? bound[k->slot]->version : 0;
    }
    return TN_OK;
}

tn_status tn_check_before(tn_plan *p, size_t command, size_t *next) {
    for (; *next < p->checks.count && p->checks.list[*next].before <= command; ++*next)
        if (!p->checks.list[*next].kernel) TRY(check(p, &p->checks.list[*next]));
    return TN_OK;
}

void tn_name_counted(const tn_plan *p, const tn_binding *b) {
    for (size_t i = 0; p->checks.counters && i < p->checks.count; i++) {
        tn_plan_check *k = &p->checks.list[i];
        const tn_index_check *now = k->node >= 0 ? b->key.checked[k->node]->check : NULL;
        if (!k->kernel || !now || (now->line == k->line && now->file == k->file)) continue;
        k->line = now->line;
        k->file = now->file;
        tn_counted_error error = counted_error(p, k);
        tn_error_counters_name(p->checks.counters, (int)i, &error);
    }
}

const tn_node *tn_failed_indices(const tn_plan *p, const tn_binding *b) {
    return p->runs.failed && p->runs.failed->node >= 0 ? b->key.checked[p->runs.failed->node] : NULL;
}

tn_status tn_check_name_line(const tn_plan *p, const tn_node *indices, tn_status s) {
    const tn_plan_check *k = p->runs.failed;
    if (s == TN_OK || !k) return s;
    const char *file = indices ? indices->check->file : k->file;
    int line = indices ? (int)indices->check->line : (int)k->line;
    return file ? tn_fail_prefix(s, "%s:%d", file, line) : s;
}
