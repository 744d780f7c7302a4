/* reference.c — a graph in f64, op by op: see check.h.
 *
 * Each op's row holds its definition; this file only walks. Nodes that wait for their inputs lie on a stack of our own,
 * so a long graph needs no deep recursion. */
#include "check/check.h"

#include <math.h>
#include <string.h>

#include "cpu/cpu_kernels.h"
#include "ops/ops_common.h"
#include "plan/passes.h"
#include "tensor/graph.h"

/* ---- from memory ------------------------------------------------------------------------------------------------- */

static double half_value(uint16_t h, int mantissa, int exponent_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int e = (h >> mantissa) & ((1 << exponent_bits) - 1);
    double fraction = ldexp(h & ((1 << mantissa) - 1), -mantissa);
    double size;
    if (e == (1 << exponent_bits) - 1)
        size = fraction > 0 ? NAN : INFINITY;
    else
        size = e == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, e - bias);
    return h >> 15 ? -size : size;
}

static double element(tn_dtype dtype, const void *from, int64_t i) {
    switch (dtype) {
    case TN_F32: return (double)((const float *)from)[i];
    case TN_F64: return ((const double *)from)[i];
    case TN_I32: return ((const int32_t *)from)[i];
    case TN_I64: return (double)((const int64_t *)from)[i];
    case TN_U32: return ((const uint32_t *)from)[i];
    case TN_U64: return (double)((const uint64_t *)from)[i];
    case TN_F16: return half_value(((const uint16_t *)from)[i], 10, 5);
    case TN_BF16: return half_value(((const uint16_t *)from)[i], 7, 8);
    case TN_I8: return ((const int8_t *)from)[i];
    case TN_I16: return ((const int16_t *)from)[i];
    case TN_U16: return ((const uint16_t *)from)[i];
    default: return ((const uint8_t *)from)[i];
    }
}

static void decoded(tn_dtype dtype, const void *from, int64_t count, double *to) {
    enum { MOST = 256 };
    float values[MOST];
    int64_t block = tn_dtype_block(dtype);
    const char *bytes = from;
    for (int64_t i = 0; i < count; i += block, bytes += tn_dtype_size(dtype)) {
        tn_decode_blocks(dtype, bytes, 1, values);
        for (int64_t k = 0; k < block; k++)
            to[i + k] = (double)values[k];
    }
}

void tn_doubles_of(tn_dtype dtype, const void *from, int64_t count, double *to) {
    if (tn_dtype_is_quantized(dtype)) {
        decoded(dtype, from, count, to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = element(dtype, from, i);
}

/* The elements of a computed node, through its layout. */
static tn_status read_buffer(const tn_node *n, double *out) {
    int64_t offset, stride[TN_MAX_RANK], at[TN_MAX_RANK] = {0};
    const tn_node *root = tn_node_layout(n, &offset, stride);
    size_t bytes = tn_node_bytes(root);
    AUTO_FREE void *host = tn_mem_alloc(bytes);
    AUTO_FREE double *all = tn_mem_alloc((size_t)tn_node_numel(root) * sizeof *all);
    if (!host || !all) return TN_ERR_MEMORY;
    if (bytes) TRY(tn_buffer_read(root->buffer, 0, host, bytes));
    tn_doubles_of((tn_dtype)n->dtype, host, tn_node_numel(root), all);
    for (int64_t i = 0, count = tn_node_numel(n); i < count; i++) {
        out[i] = all[offset];
        for (int d = n->rank - 1; d >= 0; d--) {
            offset += stride[d];
            if (++at[d] < n->shape[d]) break;
            offset -= at[d] * stride[d];
            at[d] = 0;
        }
    }
    return TN_OK;
}

/* ---- known values ------------------------------------------------------------------------------------------------ */

static double *find_reference(const tn_reference_values *v, const tn_node *n) {
    for (size_t i = v->count; i-- > 0;)
        if (v->entries[i].node == n) return v->entries[i].values;
    return NULL;
}

static tn_status add_reference(tn_reference_values *v, const tn_node *n, double **values) {
    *values = tn_mem_alloc((size_t)tn_node_numel(n) * sizeof **values);
    if (!*values) return TN_ERR_MEMORY;
    tn_status s = tn_mem_grow(&v->entries, &v->capacity, v->count + 1, sizeof *v->entries);
    if (s != TN_OK) {
        tn_mem_free(*values);
        return s;
    }
    v->entries[v->count].node = n;
    v->entries[v->count++].values = *values;
    return TN_OK;
}

tn_status tn_reference_set(tn_reference_values *v, const tn_node *n, const double *values) {
    double *own = find_reference(v, n);
    if (!own) TRY(add_reference(v, n, &own));
    memcpy(own, values, (size_t)tn_node_numel(n) * sizeof *own);
    return TN_OK;
}

void tn_reference_free(tn_reference_values *v) {
    for (size_t i = 0; i < v->count; i++)
        tn_mem_free(v->entries[i].values);
    tn_mem_free(v->entries);
    *v = (tn_reference_values){0};
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

typedef struct waiting {
    tn_node **nodes;
    size_t count, capacity;
} waiting;

static tn_status wait_for_reference(waiting *w, tn_node *n) {
    TRY(tn_mem_grow(&w->nodes, &w->capacity, w->count + 1, sizeof *w->nodes));
    w->nodes[w->count++] = n;
    return TN_OK;
}

/* Data, and what has been computed and forgotten how. */
static bool only_in_memory(const tn_node *n) {
    return n->op == TN_OP_NONE || (n->n_in == 0 && !n->expansion && tn_node_computed(n));
}

static tn_status apply_reference(tn_reference_values *v, const tn_node *n, double *out) {
    enum { MOST = 64 }; /* inputs that a node can have */
    const double *in[MOST] = {NULL};
    for (int i = 0; i < n->n_in && i < MOST; i++)
        if (n->in[i]) in[i] = find_reference(v, n->in[i]);
    tn_reference r = {.node = n, .in = in, .out = out};
    tn_op_reference(&r);
    return TN_OK;
}

/* Puts what n still needs on the stack; *ready when it needs nothing. */
static tn_status wait_for_needs(tn_reference_values *v, waiting *w, tn_node *n, bool composed, bool *ready) {
    *ready = true;
    if (composed) {
        TRY(tn_expand_node(n));
        *ready = find_reference(v, n->expansion) != NULL;
        return *ready ? TN_OK : wait_for_reference(w, n->expansion);
    }
    for (int i = 0; i < n->n_in; i++) {
        if (!n->in[i] || find_reference(v, n->in[i])) continue;
        *ready = false;
        TRY(wait_for_reference(w, n->in[i]));
    }
    return TN_OK;
}

static tn_status step(tn_reference_values *v, waiting *w) {
    tn_node *n = w->nodes[w->count - 1];
    double *out = find_reference(v, n);
    bool in_memory = only_in_memory(n), ready = true;
    if (out) {
        w->count--;
        return TN_OK;
    }
    if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
    bool composed = !in_memory && tn_op(n->op)->kind == TN_COMPOSED;
    if (!in_memory && !composed && !tn_op_has_reference(tn_op(n->op)))
        return tn_fail(TN_ERR_UNSUPPORTED, "%s has no reference implementation", tn_op(n->op)->name);
    if (!in_memory) TRY(wait_for_needs(v, w, n, composed, &ready));
    if (!ready) return TN_OK;
    TRY(add_reference(v, n, &out));
    w->count--;
    if (in_memory) return read_buffer(n, out);
    if (!composed) return apply_reference(v, n, out);
    memcpy(out, find_reference(v, n->expansion), (size_t)tn_node_numel(n) * sizeof *out);
    return TN_OK;
}

tn_status tn_reference_of(tn_reference_values *v, tn_node *n, const double **out) {
    waiting w = {0};
    tn_status s = wait_for_reference(&w, n);
    while (s == TN_OK && w.count > 0)
        s = step(v, &w);
    tn_mem_free(w.nodes);
    *out = s == TN_OK ? find_reference(v, n) : NULL;
    return s;
}
