/* placement.c — decides where each group of a plan is computed: on its device, on the host, or by a vendor library.
 *
 * A device computes a group if it supports the program's types, sizes and memory, and its compiler accepts the kernel.
 * The host computes the rest. Nothing else is moved, with one exception: a small element-wise group between two groups
 * of the host is computed there too, to save copying its operands and results.
 *
 * Fallback to the host is always reported. The plan keeps an entry for each operation, the log has one line per device
 * and reason, and for a device that was opened with the strict policy it is an error. */
#include <stdio.h>
#include <string.h>

#include "hal/hal.h"
#include "plan/native.h"
#include "plan/plan.h"

tn_device *tn_host_device(void) {
    static _Atomic(tn_device *) host;
    tn_device *d = atomic_load_explicit(&host, memory_order_acquire);
    if (d) return d;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (tn_device_open("cpu", &o, NULL, &d) != TN_OK) return NULL;
    tn_device *expected = NULL;
    if (atomic_compare_exchange_strong(&host, &expected, d)) return d;
    tn_device_close(d); /* another thread was quicker */
    return expected;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static const char NO_KERNEL[] = "no_kernel", REFUSED[] = "refused_by_compiler", FOLLOWS[] = "follows";

static bool has_native_kernel(const tn_value *v) {
    tn_op_class c = v->row->impl->class_;
    return !v->host.only && (c == TN_NATIVE || c == TN_MATMUL);
}

/* Of what the device refused, the host has better than the program that was meant for the device: a native kernel. */
static bool take_back(tn_plan *p, tn_graph_plan *g, const tn_group *group, const tn_kernel_answer *reason) {
    tn_kernel_answer *kept = NULL;
    bool any = false;
    for (size_t i = 0; i < group->member_count; i++) {
        tn_value *v = &g->values[group->members[i]];
        if (tn_group_is_native(group) || !has_native_kernel(v)) continue;
        if (!any && (kept = tn_plan_own(p, sizeof *kept))) *kept = *reason;
        any = v->host.only = true;
        v->host.refusal = kept;
    }
    return any;
}

/* A native kernel is the host's: because the device refused the program that stood there before, or has none at all. */
static void explain_native(const tn_graph_plan *g, const tn_group *group, tn_kernel_answer *reason) {
    for (size_t i = 0; i < group->member_count; i++)
        if (g->values[group->members[i]].host.refusal) {
            *reason = *g->values[group->members[i]].host.refusal;
            return;
        }
    reason->code = NO_KERNEL;
    snprintf(reason->why, sizeof reason->why, "has no kernel for it");
}

/* Bytes of each of the group's buffers, from the address that launches have. */
static void list_bytes(const tn_graph_plan *g, const tn_group *group, int64_t *bytes) {
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        bytes[b] = 0;
        if (group->lowered.buffer_values[b] == TN_BLOCK) continue;
        tn_value v = g->values[group->lowered.buffer_values[b]];
        v.memory.bytes = (int64_t)tn_node_bytes(v.node);
        if (v.slot >= 0) tn_leaf_byte_range(&v);
        bytes[b] = v.memory.first + v.memory.bytes;
    }
}

/* Does it reach what the group's program reads wherever it likes, or all there is? And can it run it then? */
static bool can_reach(const tn_plan *p, const tn_group *group, const int64_t *bytes, bool all,
                      tn_kernel_answer *reason) {
    for (int b = 0; b < group->lowered.buffer_count; b++)
        if (group->lowered.buffer_values[b] != TN_BLOCK &&
            !tn_kernel_addresses(p->device, group->lowered.program, b, bytes[b], all, reason))
            return false;
    return tn_kernel_supported(p->device, group->lowered.program, group->lowered.sizes, reason) &&
           tn_kernel_in_bounds(p->device, group->lowered.program, group->lowered.sizes, bytes, reason);
}

/* Can it run the group's program? What no division makes small enough may still be reached as a whole. */
static bool can_run(const tn_plan *p, const tn_graph_plan *g, const tn_group *group, tn_kernel_answer *reason) {
    int64_t bytes[KIR_MAX_BUFFERS] = {0};
    list_bytes(g, group, bytes);
    return can_reach(p, group, bytes, false, reason) ||
           (!strcmp(reason->code, "buffer_too_large") && can_reach(p, group, bytes, true, reason));
}

/* Why the device does not take a group. *takes: it does, and the kernel is loaded. */
static tn_status device_takes_group(const tn_plan *p, const tn_graph_plan *g, tn_group *group, tn_kernel_answer *reason,
                                    bool *takes) {
    *takes = g->values[group->lead].by.vendor != NULL;
    if (*takes) return TN_OK;
    if (tn_group_is_native(group)) {
        explain_native(g, group, reason);
        return TN_OK;
    }
    if (!can_run(p, g, group, reason)) return TN_OK;
    tn_status s = tn_kernel_get(p->device, group->lowered.program, &group->run.kernel);
    *takes = s == TN_OK;
    if (s == TN_OK || s == TN_ERR_MEMORY) return s;
    reason->code = REFUSED;
    snprintf(reason->why, sizeof reason->why, "rejected the kernel (%s)", tn_error());
    return TN_OK;
}

/* ---- keeping the reasons ----------------------------------------------------------------------------------------- */

static void add_host_ops(tn_plan *p, const tn_graph_plan *g, const tn_group *group, const char *why) {
    for (size_t i = 0; i < group->member_count; i++) {
        const tn_value *v = &g->values[group->members[i]];
        tn_placed *at = &p->placement.placed[p->placement.placed_count++];
        *at = (tn_placed){.op = v->row->name, .code = group->host};
        snprintf(at->reason, sizeof at->reason, "%s", why);
        tn_node_describe(v->node, at->where, sizeof at->where);
    }
}

static tn_status refuse_strictly(const tn_plan *p, const tn_placed *at) {
    return tn_fail(TN_ERR_UNSUPPORTED,
                   "%s: %s %s, and no other device may compute it (strict): choose another dtype or device, "
                   "or allow fallback",
                   at->where, p->device->info.id, at->reason);
}

/* ---- neighbours -------------------------------------------------------------------------------------------------- */

enum { SMALL_MAP = 1 << 16, SMALL_LEAF = 4096 }; /* elements of a map; bytes of data that may be fetched for it */

static bool small_map(const tn_graph_plan *g, const tn_group *group) {
    if (group->kind != TN_GROUP_MAP || tn_group_writes_state(g, group)) return false;
    return tn_value_numel(&g->values[group->lead]) <= SMALL_MAP;
}

/* Whether everything that a group reads is computed on the host or is small data. */
static bool fed_by_host(const tn_graph_plan *g, const tn_group *group, int own) {
    bool any = false;
    for (int b = 0; b < group->lowered.buffer_count; b++) {
        const tn_value *v = &g->values[group->lowered.buffer_values[b]];
        if (v->group == own) continue;
        if (v->group >= 0 && !g->groups[v->group].host) return false;
        if (v->group < 0 && tn_node_bytes(v->node) > SMALL_LEAF) return false;
        any |= v->group >= 0;
    }
    return any;
}

static bool feeds_host_only(const tn_graph_plan *g, const tn_group *group) {
    for (size_t i = 0; i < group->member_count; i++) {
        const tn_value *v = &g->values[group->members[i]];
        if (v->output >= 0) return false;
        for (int k = 0; k < v->fusion.pull_count; k++)
            if (!g->groups[v->fusion.pulls[k]].host && v->fusion.pulls[k] != v->group) return false;
    }
    return true;
}

static void let_neighbours_follow(tn_graph_plan *g, tn_plan *p) {
    for (size_t i = 0; i < g->group_count; i++) {
        tn_group *group = &g->groups[i];
        if (group->host || !small_map(g, group) || !fed_by_host(g, group, (int)i) || !feeds_host_only(g, group))
            continue;
        group->host = FOLLOWS;
        tn_kernel_release(group->run.kernel);
        group->run.kernel = NULL;
        add_host_ops(p, g, group, "lies between operations that run on the host");
    }
}

/* ---- placing ----------------------------------------------------------------------------------------------------- */

static tn_status allocate_host_ops(tn_plan *p) {
    p->placement.placed_count = 0;
    p->placement.placed = tn_plan_own(p, (size_t)p->placement.operations * sizeof *p->placement.placed);
    return p->placement.placed ? TN_OK : TN_ERR_MEMORY;
}

static bool has_elements(const tn_graph_plan *g, const tn_group *group) {
    for (size_t i = 0; i < group->member_count; i++)
        if (tn_value_numel(&g->values[group->members[i]]) > 0) return true;
    return false;
}

tn_status tn_place_groups(tn_graph_plan *g, tn_plan *p, bool *again) {
    TRY(allocate_host_ops(p));
    for (size_t i = 0; i < g->group_count; i++) {
        tn_group *group = &g->groups[i];
        tn_kernel_answer reason;
        bool takes;
        if (!has_elements(g, group)) continue;
        TRY(device_takes_group(p, g, group, &reason, &takes));
        if (takes) continue;
        *again |= take_back(p, g, group, &reason);
        group->host = reason.code;
        add_host_ops(p, g, group, reason.why);
    }
    if (*again || !p->placement.placed_count) return TN_OK;
    if (p->device->fallback == TN_FALLBACK_STRICT) return refuse_strictly(p, &p->placement.placed[0]);
    if (!tn_host_device()) return tn_error_code();
    let_neighbours_follow(g, p);
    return TN_OK;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

static int64_t count_host_ops(const tn_plan *p, const char *code) {
    int64_t count = 0;
    for (size_t i = 0; i < p->placement.placed_count; i++)
        count += strcmp(p->placement.placed[i].code, code) == 0;
    return count;
}

void tn_place_tell(const tn_plan *p) {
    for (size_t i = 0; i < p->placement.placed_count; i++) {
        const tn_placed *at = &p->placement.placed[i];
        bool first = tn_device_note_host(p->device, at->op, at->code, at->reason);
        if (!first || p->device->fallback != TN_FALLBACK_WARN) continue;
        int64_t count = count_host_ops(p, at->code);
        tn_log_line(TN_LOG_NOTICE,
                    "%s %s: %lld operation%s of this evaluation run%s on the cpu (use TN_FALLBACK_STRICT, or --strict "
                    "of the command, to forbid this): %s",
                    p->device->info.id, at->reason, (long long)count, count > 1 ? "s" : "", count > 1 ? "" : "s",
                    at->where);
    }
}

/* ==== vendor libraries ============================================================================================ */
/* The library is asked before fusing, because it is told the layout of its operands: views and data as they are, all
 * others stored contiguous. A product that it accepts is not fused with anything and reads memory. A product that it
 * does not accept is computed by our kernels, and explain gives the reason.
 *
 * A convolution is offered earlier, as a node, before its composition is made; its inputs are contiguous or not. */

/* Buffers and arena offsets are multiples of this: drivers guarantee it, and hal/memory.c checks. Memory that the
 * caller provides belongs to devices that compute in host memory, which have no vendor library. */
enum { ADDRESSES = 64 };

/* Bytes that an operand's address is a multiple of, a power of two. */
static int64_t alignment_of(const tn_value *v) {
    int64_t bytes = ADDRESSES, at = (int64_t)tn_native_byte_offset(v);
    while (at % bytes != 0)
        bytes /= 2;
    return bytes;
}

static tn_status ask_vendor(tn_graph_plan *g, const tn_vendor_library *l, tn_value *c) {
    const tn_value *a = &g->values[c->in[0]], *b = &g->values[c->in[1]];
    const int64_t alignment[] = {alignment_of(a), alignment_of(b), alignment_of(c)};
    tn_vendor_product p;
    tn_gemm_args args;
    c->by.vendor_why = "takes one batch dimension; this product has several";
    if (c->node->rank > TN_GEMM_BATCH_AXES + 2) return TN_OK;
    tn_native_product(g, c, &args);
    if (!tn_vendor_product_of(&args, (tn_dtype)c->node->dtype, alignment, &p, &c->by.vendor_why)) return TN_OK;
    return tn_vendor_make(g->binding->device, l, &p, NULL, &c->by.vendor, &c->by.vendor_why);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

static const struct conv_kind {
    uint32_t fact;
    tn_vendor_way way;
} conv_kinds[] = {{TN_FACT_CONV_FORWARD, TN_VENDOR_RESULTS},
                  {TN_FACT_CONV_DGRAD, TN_VENDOR_INPUT},
                  {TN_FACT_CONV_WGRAD, TN_VENDOR_WEIGHT}};

static const struct conv_kind *conv_kind_of(const tn_node *n) {
    for (size_t i = 0; i < TN_COUNT(conv_kinds); i++)
        if (tn_op_has(n, conv_kinds[i].fact) && !tn_node_computed(n))
            return n->rank == 4 && n->in[0]->rank == 4 ? &conv_kinds[i] : NULL;
    return NULL;
}

static bool fill_vendor(int out[4], int64_t n, int64_t channels, const int64_t size[2]) {
    const int64_t all[] = {n, channels, size[0], size[1]};
    int64_t count = 1;
    for (int d = 0; d < 4; d++) {
        if (all[d] < 1 || all[d] > INT32_MAX || (count *= all[d]) > INT32_MAX) return false;
        out[d] = (int)all[d];
    }
    return true;
}

/* As many zeros behind an image as before it, and every place of the window. */
static bool is_even(const tn_conv_args *a, tn_vendor_conv *out) {
    for (int d = 0; d < 2; d++) {
        int64_t most = INT32_MAX / 4, reach = (a->kernel[d] - 1) * a->dilation[d] + 1;
        if (a->pad_before[d] < 0 || a->pad_before[d] > most || a->stride[d] > most || a->dilation[d] > most ||
            reach > most)
            return false;
        if (a->out_size[d] != (a->size[d] + 2 * a->pad_before[d] - reach) / a->stride[d] + 1) return false;
        out->padding[d] = (int)a->pad_before[d];
        out->stride[d] = (int)a->stride[d];
        out->dilation[d] = (int)a->dilation[d];
    }
    return true;
}

/* Whether a convolution is of the form that libraries have; else *why is the rest of a sentence. */
static bool conv_of(const tn_node *n, tn_vendor_conv *c, const char **why) {
    tn_conv_args a = tn_conv_sizes(n);
    *why = "does not support convolutions of this dtype";
    if (n->dtype != TN_F32 && n->dtype != TN_F16 && n->dtype != TN_BF16) return false;
    *why = "takes contiguous tensors only";
    if (!tn_node_contiguous(n->in[0]) || !tn_node_contiguous(n->in[1])) return false;
    *why = "takes fewer than 2^31 elements; a tensor has more";
    c->dtype = (tn_dtype)n->dtype;
    c->groups = (int)a.groups;
    if (!fill_vendor(c->input, a.batch, a.groups * a.channels, a.size) ||
        !fill_vendor(c->weight, a.groups * a.out_channels, a.channels, a.kernel) ||
        !fill_vendor(c->results, a.batch, a.groups * a.out_channels, a.out_size))
        return false;
    *why = "requires equal padding at both ends of an axis";
    return is_even(&a, c);
}

static tn_status add_answer(tn_graph_plan *g, const tn_vendor_library *l, const tn_node *n, tn_vendor_way way) {
    tn_vendor_conv c = {.way = way};
    TRY(tn_scratch_grow(&g->scratch, &g->answers.list, &g->answers.capacity, g->answers.count + 1,
                        sizeof *g->answers.list));
    tn_vendor_answer *answer = &g->answers.list[g->answers.count];
    *answer = (tn_vendor_answer){.node = n};
    TRY(tn_map_put(&g->answers.of, n, (int32_t)g->answers.count));
    g->answers.count++;
    if (conv_of(n, &c, &answer->why)) TRY(tn_vendor_make(g->binding->device, l, NULL, &c, &answer->call, &answer->why));
    answer->taken = answer->call != NULL;
    return TN_OK;
}

tn_status tn_vendor_ask(tn_graph_plan *g, const tn_node *n, bool *taken) {
    const struct conv_kind *conv_kind = n->device->is_cpu || n->op == TN_OP_NONE ? NULL : conv_kind_of(n);
    const tn_vendor_library *l = conv_kind ? tn_vendor_for(g->binding->device, true) : NULL;
    *taken = false;
    if (!l) return TN_OK;
    if (tn_map_find(&g->answers.of, n) < 0) TRY(add_answer(g, l, n, conv_kind->way));
    *taken = g->answers.list[tn_map_find(&g->answers.of, n)].taken;
    return TN_OK;
}

/* Gives the answers to the values: equal ones need only one call. An op that the library refused may be composed of
 * others that it refuses too; explain gives the first reason. */
static void give_answers(tn_graph_plan *g) {
    for (size_t i = g->answers.count; i-- > 0;) {
        tn_vendor_answer *answer = &g->answers.list[i];
        int id = tn_value_of(g, answer->node);
        tn_value *v = id < 0 ? NULL : &g->values[g->values[id].root];
        if (!v) continue;
        if (!answer->taken) v->by.vendor_why = answer->why;
        if (!answer->taken || v->by.vendor) continue;
        v->by.vendor = answer->call;
        answer->call = NULL;
    }
}

void tn_vendor_forget(tn_graph_plan *g) {
    for (size_t i = 0; i < g->answers.count; i++)
        tn_vendor_free(g->answers.list[i].call);
    tn_map_free(&g->answers.of);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

tn_status tn_vendor_choose(tn_graph_plan *g) {
    const tn_device *d = g->binding->device;
    const tn_vendor_library *l = d->is_cpu ? NULL : tn_vendor_for(d, false);
    for (size_t i = 0; l && i < g->value_count; i++)
        if (g->values[i].row && tn_op_has(g->values[i].node, TN_FACT_VENDOR_PRODUCT))
            TRY(ask_vendor(g, l, &g->values[i]));
    give_answers(g);
    return TN_OK;
}
