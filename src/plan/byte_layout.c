/* byte_layout.c — chooses which images of u8 and i8 lie in words of four channels (conv.h).
 *
 * Kernels for bytes multiply words of four channels. They copy an image in NCHW order into words first, and copy
 * results back. An image lies in words if the kernel that writes it and all kernels that read it support that:
 * convolutions, pooling, element-wise programs whose images all have the same layout, and in-place concatenations of
 * whole words. Runs after fusing; the images come from tn_quantized_conv2d, tn_max_pool2d and similar operations that
 * replace ONNX's (onnx/quant_graph.c). */
#include <string.h>

#include "plan/native.h"

enum { QUAD = 4 }; /* channels of a word */

/* Whether this group is a kernel of bytes that takes an image in words. */
static bool is_byte_kernel(const tn_group *group) {
    return group->run.native && !group->host && !group->order.commit && group->run.native->conv_in_bytes;
}

/* ---- element-wise programs --------------------------------------------------------------------------------------- */

/* Whether each point accesses its own element of a dense buffer, or (*scalar) all points access the same element. */
static bool is_at_point(const kir_program *p, const int64_t *sizes, int access, bool *scalar) {
    const int64_t *at = kir_sizes_access(p, sizes, access), *stride = at + 1;
    bool dense = at[0] == 0;
    int64_t inside = 1;
    *scalar = true;
    for (int d = p->n_par - 1; d >= 0; inside *= sizes[d--]) {
        *scalar = *scalar && (stride[d] == 0 || sizes[d] == 1);
        dense = dense && (stride[d] == inside || sizes[d] == 1);
    }
    return p->access[access].dyn == KIR_NONE && (*scalar || dense);
}

/* Images that a group reads or computes. */
typedef struct byte_images {
    int of[KIR_MAX_BUFFERS], count;
} byte_images;

/* Whether the group is an element-wise program: no loops, no computed indices. */
static bool is_elementwise(const tn_group *group, byte_images *images) {
    const kir_program *p = group->lowered.program;
    bool scalar;
    images->count = 0;
    if (group->run.native || group->host || group->order.commit || group->sibling || group->row_fused) return false;
    if (!p || p->n_loop > 0 || p->n_items > 0) return false;
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == KIR_INDEX) return false;
        if (p->ins[i].op != KIR_LOAD && p->ins[i].op != KIR_STORE) continue;
        const int access = (int)p->ins[i].imm.i, value = group->lowered.buffer_values[p->access[access].buffer];
        if (!is_at_point(p, group->lowered.sizes, access, &scalar)) return false;
        if (scalar) continue;
        if (value < 0 || images->count == KIR_MAX_BUFFERS) return false;
        images->of[images->count++] = value;
    }
    return images->count > 0;
}

/* ---- which images ------------------------------------------------------------------------------------------------ */

static bool is_image(const tn_value *v) { return v->node->rank == 4 && tn_dtype_is_byte(v->node->dtype); }

/* The image that a kernel adds to its results, in their layout; -1: none. */
static int addend_of(const tn_graph_plan *g, const tn_group *group) {
    const tn_value *lead = &g->values[group->lead];
    return lead->n_in > TN_CONV_ADDEND ? lead->in[TN_CONV_ADDEND] : -1;
}

static bool reads_as_image(const tn_graph_plan *g, const tn_group *group, int value) {
    const tn_value *lead = &g->values[group->lead];
    byte_images images;
    int others = 0;
    if (!is_byte_kernel(group)) return is_elementwise(group, &images);
    for (int k = 1; k < lead->n_in; k++)
        others += k != TN_CONV_ADDEND && lead->in[k] == value;
    return (lead->in[0] == value || addend_of(g, group) == value) && others == 0;
}

/* Whether v is a part of an in-place concatenation along the channels, and consists of whole words. */
static bool is_part_of_words(const tn_graph_plan *g, const tn_value *v) {
    return tn_concat_of_channels(g, v) && v->node->shape[1] % QUAD == 0 && tn_concat_is_in_place(g, v->memory.into);
}

static bool may_be_in_words(const tn_graph_plan *g, int value) {
    const tn_value *v = &g->values[value];
    byte_images images;
    if (!v->stored || v->root != value || v->output >= 0 || v->group < 0 || !is_image(v)) return false;
    const tn_group *maker = &g->groups[v->group];
    if (v->memory.into >= 0 && !is_part_of_words(g, v)) return false;
    const bool made = is_byte_kernel(maker) ? maker->lead == value : is_elementwise(maker, &images);
    if (!made && !(v->row && tn_concat_is_in_place(g, value))) return false;
    for (int k = 0; k < v->fusion.pull_count; k++) {
        const int reader = v->fusion.pulls[k];
        if (tn_concat_reads(g, v, reader)) continue;
        if (!reads_as_image(g, &g->groups[reader], value)) return false;
    }
    return v->fusion.pull_count > 0;
}

/* If the kernel does not support this layout of its images, removes one of them from `words` and returns true. */
static bool check_kernel(const tn_graph_plan *g, const tn_group *group, bool *words) {
    const int x = g->values[group->lead].in[0], y = group->lead, addend = addend_of(g, group);
    tn_conv_args a = group->run.native->conv;
    if (addend >= 0 && words[addend] != words[y]) {
        words[words[y] ? y : addend] = false;
        return true;
    }
    a.x_blocks = words[x];
    a.y_blocks = words[y];
    if (tn_conv_bytes_fits(&a)) return false;
    if (!words[x] && !words[y]) return false;
    words[words[x] ? x : y] = false;
    return true;
}

/* Unless all images of a program are in `words`, removes all of them; true if that changed something. */
static bool check_program(const tn_graph_plan *g, const tn_group *group, bool *words) {
    byte_images images;
    int some = 0;
    if (!is_elementwise(group, &images)) return false;
    const int64_t *shape = g->values[images.of[0]].node->shape;
    bool alike = true;
    for (int i = 0; i < images.count; i++) {
        const tn_node *n = g->values[images.of[i]].node;
        some += words[images.of[i]];
        alike =
            alike && words[images.of[i]] && memcmp(n->shape, shape, 4 * sizeof *shape) == 0 && n->shape[1] % QUAD == 0;
    }
    if (some == 0 || alike) return false;
    for (int i = 0; i < images.count; i++)
        words[images.of[i]] = false;
    return true;
}

static void agree(const tn_graph_plan *g, bool *words) {
    for (bool changed = true; changed;) {
        changed = tn_concat_agree(g, words);
        for (size_t i = 0; i < g->group_count; i++) {
            const tn_group *group = &g->groups[i];
            changed |= is_byte_kernel(group) ? check_kernel(g, group, words) : check_program(g, group, words);
        }
    }
}

static void lie_in_words(const tn_graph_plan *g, tn_group *group, const bool *words) {
    tn_native *n = group->run.native;
    n->conv.x_blocks = words[g->values[group->lead].in[0]];
    n->conv.y_blocks = words[group->lead];
    if (!n->conv.x_blocks && !n->conv.y_blocks) return;
    group->run.workspace = tn_conv_bytes_workspace(&n->conv, tn_threads());
    n->by = "in words of channels";
}

tn_status tn_lay_bytes_in_words(const tn_graph_plan *g) {
    bool any = false;
    for (size_t i = 0; i < g->group_count; i++)
        any = any || is_byte_kernel(&g->groups[i]);
    if (!any) return TN_OK;
    AUTO_FREE bool *words = tn_mem_alloc(g->value_count * sizeof *words);
    if (!words) return TN_ERR_MEMORY;
    for (size_t i = 0; i < g->value_count; i++)
        words[i] = may_be_in_words(g, (int)i);
    agree(g, words);
    for (size_t i = 0; i < g->group_count; i++)
        if (is_byte_kernel(&g->groups[i])) lie_in_words(g, &g->groups[i], words);
    for (size_t i = 0; i < g->value_count; i++) {
        const int64_t *shape = g->values[i].node->shape;
        if (words[i]) g->values[i].memory.padded = tn_conv_word_bytes(shape[0], shape[1], shape[2] * shape[3]);
    }
    return TN_OK;
}
