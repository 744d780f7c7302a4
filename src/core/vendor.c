/* vendor.c — products of a plan that a vendor's library computes on its device.
 *
 * The library is asked before anything is fused, for it is told where its operands will lie: views and data where they
 * are, everything else stored whole. A product that it takes stands alone: nothing joins it, and what it reads is in
 * memory. One that it does not take is ours, as if nobody had asked, and explain says why. */
#include "hal/vendor.h"

#include "core/native.h"

enum { ADDRESSES = 64 }; /* buffers and places in the arena begin at multiples of it */

/* Bytes that an operand's address is a multiple of, a power of two. */
static int64_t alignment_of(const tn_graph_plan *g, const tn_value *v) {
    int64_t bytes = ADDRESSES, at = (int64_t)tn_native_byte_offset(v);
    int slot = g->values[v->root].slot;
    if (slot >= 0) at += (int64_t)((uintptr_t)g->binding->buffers[slot]->address % ADDRESSES);
    while (at % bytes != 0)
        bytes /= 2;
    return bytes;
}

static tn_status ask(tn_graph_plan *g, const tn_vendor_library *l, tn_value *c) {
    const tn_value *a = &g->values[c->in[0]], *b = &g->values[c->in[1]];
    const int64_t alignment[] = {alignment_of(g, a), alignment_of(g, b), alignment_of(g, c)};
    tn_vendor_product p;
    tn_gemm_args args;
    c->vendor_why = "takes one batch, and this product has several";
    if (c->node->rank > TN_GEMM_BATCH_AXES + 2) return TN_OK;
    tn_native_product(g, c, &args);
    if (!tn_vendor_product_of(&args, (tn_dtype)c->node->dtype, alignment, &p, &c->vendor_why)) return TN_OK;
    return tn_vendor_make(g->binding->device, l, &p, &c->vendor, &c->vendor_why);
}

tn_status tn_vendor_choose(tn_graph_plan *g) {
    const tn_device *d = g->binding->device;
    const tn_vendor_library *l = d->is_cpu ? NULL : tn_vendor_for(d);
    for (size_t i = 0; l && i < g->value_count; i++)
        if (g->values[i].row && g->values[i].node->op == TN_OP_MATMUL_BATCHED) TRY(ask(g, l, &g->values[i]));
    return TN_OK;
}
