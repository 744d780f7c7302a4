/* vendor_select.c — products and convolutions of a plan that a vendor's library computes on its device.
 *
 * The library is asked before anything is fused, for it is told where its operands will lie: views and data where they
 * are, everything else stored whole. A product that it takes stands alone: nothing joins it, and what it reads is in
 * memory. One that it does not take is ours, as if nobody had asked, and explain says why.
 *
 * A convolution is asked for earlier, before it would be composed: as a node, whose inputs are whole or are not. */
#include "hal/vendor.h"

#include "core/native.h"

/* Buffers and places in the arena begin at multiples of it: drivers see to that, and hal/memory.c looks. Memory that a
 * program brings along is that of devices which compute in the host's, and has no vendor's library. */
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
    c->vendor_why = "takes one batch, and this product has several";
    if (c->node->rank > TN_GEMM_BATCH_AXES + 2) return TN_OK;
    tn_native_product(g, c, &args);
    if (!tn_vendor_product_of(&args, (tn_dtype)c->node->dtype, alignment, &p, &c->vendor_why)) return TN_OK;
    return tn_vendor_make(g->binding->device, l, &p, NULL, &c->vendor, &c->vendor_why);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

static const struct conv_kind {
    tn_op_id op;
    tn_vendor_way way;
} conv_kinds[] = {{TN_OP_CONV2D_FORWARD, TN_VENDOR_RESULTS},
                  {TN_OP_CONV2D_DGRAD, TN_VENDOR_INPUT},
                  {TN_OP_CONV2D_WGRAD, TN_VENDOR_WEIGHT}};

static const struct conv_kind *conv_kind_of(const tn_node *n) {
    for (size_t i = 0; i < TN_COUNT(conv_kinds); i++)
        if (n->op == conv_kinds[i].op && !tn_node_computed(n))
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
    *why = "has no convolution of its dtype";
    if (n->dtype != TN_F32 && n->dtype != TN_F16 && n->dtype != TN_BF16) return false;
    *why = "takes tensors that lie whole";
    if (!tn_node_contiguous(n->in[0]) || !tn_node_contiguous(n->in[1])) return false;
    *why = "takes fewer than 2^31 elements, and some";
    c->dtype = (tn_dtype)n->dtype;
    c->groups = (int)a.groups;
    if (!fill_vendor(c->input, a.batch, a.groups * a.channels, a.size) ||
        !fill_vendor(c->weight, a.groups * a.out_channels, a.channels, a.kernel) ||
        !fill_vendor(c->results, a.batch, a.groups * a.out_channels, a.out_size))
        return false;
    *why = "pads both ends of an axis alike";
    return is_even(&a, c);
}

static tn_status add_answer(tn_graph_plan *g, const tn_vendor_library *l, const tn_node *n, tn_vendor_way way) {
    tn_vendor_conv c = {.way = way};
    TRY(tn_scratch_grow(&g->scratch, &g->answers, &g->answer_capacity, g->answer_count + 1, sizeof *g->answers));
    tn_vendor_answer *answer = &g->answers[g->answer_count];
    *answer = (tn_vendor_answer){.node = n};
    TRY(tn_map_put(&g->answer_of, n, (int32_t)g->answer_count));
    g->answer_count++;
    if (conv_of(n, &c, &answer->why)) TRY(tn_vendor_make(g->binding->device, l, NULL, &c, &answer->call, &answer->why));
    answer->taken = answer->call != NULL;
    return TN_OK;
}

tn_status tn_vendor_ask(tn_graph_plan *g, const tn_node *n, bool *taken) {
    const struct conv_kind *conv_kind = n->device->is_cpu || n->op == TN_OP_NONE ? NULL : conv_kind_of(n);
    const tn_vendor_library *l = conv_kind ? tn_vendor_for(g->binding->device, true) : NULL;
    *taken = false;
    if (!l) return TN_OK;
    if (tn_map_find(&g->answer_of, n) < 0) TRY(add_answer(g, l, n, conv_kind->way));
    *taken = g->answers[tn_map_find(&g->answer_of, n)].taken;
    return TN_OK;
}

/* To the values: equal ones need but one call. What the library refused was perhaps composed, of others that it refused
 * too: the first reason is what explain says. */
static void give_answers(tn_graph_plan *g) {
    for (size_t i = g->answer_count; i-- > 0;) {
        tn_vendor_answer *answer = &g->answers[i];
        int id = tn_value_of(g, answer->node);
        tn_value *v = id < 0 ? NULL : &g->values[g->values[id].root];
        if (!v) continue;
        if (!answer->taken) v->vendor_why = answer->why;
        if (!answer->taken || v->vendor) continue;
        v->vendor = answer->call;
        answer->call = NULL;
    }
}

void tn_vendor_forget(tn_graph_plan *g) {
    for (size_t i = 0; i < g->answer_count; i++)
        tn_vendor_free(g->answers[i].call);
    tn_map_free(&g->answer_of);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

tn_status tn_vendor_choose(tn_graph_plan *g) {
    const tn_device *d = g->binding->device;
    const tn_vendor_library *l = d->is_cpu ? NULL : tn_vendor_for(d, false);
    for (size_t i = 0; l && i < g->value_count; i++)
        if (g->values[i].row && g->values[i].node->op == TN_OP_MATMUL_BATCHED) TRY(ask_vendor(g, l, &g->values[i]));
    give_answers(g);
    return TN_OK;
}
