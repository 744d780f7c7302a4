/* export_ops.c — how each op is written in ONNX: as one operator, or as a few.
 *
 * An op without attributes whose row in ops.def names an operator needs no row here. An op with neither is written as
 * its composition. If both are possible the operator is preferred: readers expect it, and other engines have kernels
 * for it. Operators are those of opset 21. Source: Operators.md of the ONNX standard. */
#include <math.h>
#include <string.h>

#include "onnx/export.h"
#include "plan/passes.h"

enum { MOST_PLACES = 1 << 20 }; /* of a view that becomes a table of indices in the file */

static const char *in(onnx_export *x, const tn_node *n, int k) {
    if (k < (int)TN_COUNT(x->widened) && x->widened[k]) return x->widened[k];
    return k < n->n_in && n->in[k] ? onnx_of(x, n->in[k]) : "";
}

/* Our ops whose operators of opset 21 lack a type. */
static const uint16_t no_bf16[] = {TN_OP_ACOS,
                                   TN_OP_ACOSH,
                                   TN_OP_ASIN,
                                   TN_OP_ASINH,
                                   TN_OP_ATAN,
                                   TN_OP_ATANH,
                                   TN_OP_COS,
                                   TN_OP_COSH,
                                   TN_OP_SIN,
                                   TN_OP_SINH,
                                   TN_OP_TAN,
                                   TN_OP_ROUND,
                                   TN_OP_ELU,
                                   TN_OP_SELU,
                                   TN_OP_MISH,
                                   TN_OP_HARDSWISH,
                                   TN_OP_CONV1D,
                                   TN_OP_CONV2D,
                                   TN_OP_CONV_TRANSPOSE2D,
                                   TN_OP_CONV2D_FORWARD,
                                   TN_OP_CONV2D_WGRAD,
                                   TN_OP_CONV2D_DGRAD,
                                   TN_OP_MAX_POOL2D,
                                   TN_OP_AVG_POOL2D,
                                   TN_OP_ADAPTIVE_AVG_POOL2D,
                                   TN_OP_TOPK,
                                   TN_OP_TOPK_INDICES,
                                   TN_OP_ARGSORT_LAST};
static const uint16_t no_bool[] = {
    TN_OP_TOPK,    TN_OP_TOPK_INDICES, TN_OP_ARGSORT_LAST, TN_OP_ARGMAX, TN_OP_ARGMIN, TN_OP_ADD, TN_OP_MUL,
    TN_OP_MAXIMUM, TN_OP_MINIMUM,      TN_OP_LT,           TN_OP_LE,     TN_OP_GT,     TN_OP_GE};
static const uint16_t no_u8[] = {TN_OP_NEG, TN_OP_RELU, TN_OP_MATMUL, TN_OP_MATMUL_BATCHED};

static bool is_among(const uint16_t *ops, size_t count, uint16_t op) {
    for (size_t i = 0; i < count; i++)
        if (ops[i] == op) return true;
    return false;
}

/* The type that n's ONNX operator computes in for our type `t`. */
static tn_dtype taken_as(const tn_node *n, tn_dtype t) {
    switch (t) {
    case TN_BF16: return is_among(no_bf16, TN_COUNT(no_bf16), n->op) ? TN_F32 : t;
    case TN_BOOL: return is_among(no_bool, TN_COUNT(no_bool), n->op) ? TN_I32 : t;
    case TN_U8: return is_among(no_u8, TN_COUNT(no_u8), n->op) ? TN_I32 : t;
    default: return t;
    }
}

static const char *flat(onnx_export *x, const char *value) {
    return onnx_emit2(x, "Reshape", value, onnx_write_list(x, (int64_t[]){-1}, 1));
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

/* Of two names the second is for truth values. */
static const char *operator_of(const tn_node *n, char text[32]) {
    const char *first = tn_op(n->op)->onnx, *comma = strchr(first, ',');
    const char *name = comma && n->dtype == TN_BOOL ? comma + 1 : first;
    size_t length = strcspn(name, ",");
    memcpy(text, name, length);
    text[length] = '\0';
    return n->op == TN_OP_BITWISE_NOT && n->dtype == TN_BOOL ? "Not" : text;
}

static const char *onnx_write_plain(onnx_export *x, const tn_node *n) {
    const char *names[8];
    char text[32];
    for (int k = 0; k < n->n_in; k++)
        names[k] = in(x, n, k);
    return onnx_emit_of(x, x->writer->onnx ? x->writer->onnx : operator_of(n, text), names, n->n_in);
}

static const char *write_same(onnx_export *x, const tn_node *n) { return in(x, n, 0); }

static const char *write_cast(onnx_export *x, const tn_node *n) {
    return n->in[0]->dtype == n->dtype ? in(x, n, 0) : onnx_write_cast(x, in(x, n, 0), (tn_dtype)n->dtype);
}

static bool export_op_is_float(const tn_node *n) { return tn_dtype_is_float((tn_dtype)n->dtype); }

/* ONNX Runtime has no Where of truth values. */
static const char *write_where(onnx_export *x, const tn_node *n) {
    const char *on = in(x, n, 0), *a = in(x, n, 1), *b = in(x, n, 2);
    if (n->dtype != TN_BOOL) return onnx_emit3(x, "Where", on, a, b);
    const char *chosen = onnx_emit2(x, "And", on, a), *other = onnx_emit2(x, "And", onnx_emit1(x, "Not", on), b);
    return onnx_emit2(x, "Or", chosen, other);
}

/* With the divisor's sign, as ONNX's Mod of integers has it; that of floats has the dividend's. */
static const char *write_remainder(onnx_export *x, const tn_node *n) {
    const char *a = in(x, n, 0), *b = in(x, n, 1);
    if (!export_op_is_float(n)) return onnx_emit2(x, "Mod", a, b);
    const char *zero = onnx_write_number(x, 0, taken_as(n, (tn_dtype)n->dtype));
    onnx_attr_int(x, "fmod", 1);
    const char *rest = onnx_emit2(x, "Mod", a, b);
    const char *differ = onnx_emit2(x, "Xor", onnx_emit2(x, "Less", rest, zero), onnx_emit2(x, "Less", b, zero));
    const char *any = onnx_emit1(x, "Not", onnx_emit2(x, "Equal", rest, zero));
    return onnx_emit3(x, "Where", onnx_emit2(x, "And", differ, any), onnx_emit2(x, "Add", rest, b), rest);
}

/* A bound that is NaN makes all results NaN, but ONNX Runtime's Clip ignores it. */
static bool has_clip(const tn_node *n) { return n->dtype == TN_F32 && n->f[0] == n->f[0] && n->f[1] == n->f[1]; }

static const char *write_clamp(onnx_export *x, const tn_node *n) {
    const char *least = onnx_write_number(x, n->f[0], TN_F32), *most = onnx_write_number(x, n->f[1], TN_F32);
    return onnx_emit3(x, "Clip", in(x, n, 0), least, most);
}

static const char *write_fmod(onnx_export *x, const tn_node *n) {
    onnx_attr_int(x, "fmod", 1);
    return onnx_emit2(x, "Mod", in(x, n, 0), in(x, n, 1));
}

static const char *write_floor_divide(onnx_export *x, const tn_node *n) {
    const char *a = in(x, n, 0), *b = in(x, n, 1);
    if (export_op_is_float(n)) return onnx_emit1(x, "Floor", onnx_emit2(x, "Div", a, b));
    return onnx_emit2(x, "Div", onnx_emit2(x, "Sub", a, onnx_emit2(x, "Mod", a, b)), b);
}

/* Of a quotient too: ONNX's Div of integers is that already. */
static const char *write_trunc(onnx_export *x, const tn_node *n) {
    const char *a = x->writer->with ? onnx_emit2(x, "Div", in(x, n, 0), in(x, n, 1)) : in(x, n, 0);
    if (!export_op_is_float(n)) return a;
    return onnx_emit2(x, "Mul", onnx_emit1(x, "Sign", a), onnx_emit1(x, "Floor", onnx_emit1(x, "Abs", a)));
}

static const char *write_heaviside(onnx_export *x, const tn_node *n) {
    const char *a = in(x, n, 0), *zero = onnx_write_number(x, 0, (tn_dtype)n->dtype);
    const char *step = onnx_write_cast(x, onnx_emit2(x, "Greater", a, zero), (tn_dtype)n->dtype);
    return onnx_emit3(x, "Where", onnx_emit2(x, "Equal", a, zero), in(x, n, 1), step);
}

static bool is_unsigned(const tn_node *n) {
    return n->dtype == TN_U8 || n->dtype == TN_U16 || n->dtype == TN_U32 || n->dtype == TN_U64;
}

static const char *write_shift(onnx_export *x, const tn_node *n) {
    onnx_attr_text(x, "direction", x->writer->with ? "RIGHT" : "LEFT");
    return onnx_emit2(x, "BitShift", in(x, n, 0), in(x, n, 1));
}

static const char *write_exp2(onnx_export *x, const tn_node *n) {
    return onnx_emit2(x, "Pow", onnx_write_number(x, 2, (tn_dtype)n->dtype), in(x, n, 0));
}

static const char *write_log_of_base(onnx_export *x, const tn_node *n) {
    const char *base = onnx_write_number(x, log(x->writer->with), (tn_dtype)n->dtype);
    return onnx_emit2(x, "Div", onnx_emit1(x, "Log", in(x, n, 0)), base);
}

/* Activations with one number, which `onnx` names after the operator. */
static const char *write_alpha(onnx_export *x, const tn_node *n) {
    onnx_attr_float(x, "alpha", n->f[0]);
    return onnx_emit1(x, x->writer->onnx, in(x, n, 0));
}

static const char *write_gelu(onnx_export *x, const tn_node *n) {
    onnx_attr_text(x, "approximate", n->i[TN_GELU_APPROXIMATE] ? "tanh" : "none");
    return onnx_emit1(x, "Gelu", in(x, n, 0));
}

static bool of_truth(const tn_node *n) { return n->in[0]->dtype == TN_BOOL && n->in[n->n_in - 1]->dtype == TN_BOOL; }

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static const char *write_full(onnx_export *x, const tn_node *n) {
    const char *v = onnx_write_number(x, n->n_f ? n->f[0] : x->writer->with, (tn_dtype)n->dtype);
    return n->rank == 0 ? v : onnx_emit2(x, "Expand", v, onnx_write_shape(x, n));
}

static const char *write_arange(onnx_export *x, const tn_node *n) {
    tn_dtype t = (tn_dtype)n->dtype;
    const char *zero = onnx_write_number(x, 0, TN_I64), *one = onnx_write_number(x, 1, TN_I64);
    const char *count = onnx_write_number(x, (double)n->shape[0], TN_I64);
    const char *v = onnx_emit3(x, "Range", zero, count, one);
    if (t != TN_I64) v = onnx_write_cast(x, v, t);
    if (n->f[TN_ARANGE_STEP] != 1) v = onnx_emit2(x, "Mul", v, onnx_write_number(x, n->f[TN_ARANGE_STEP], t));
    return n->f[TN_ARANGE_START] == 0 ? v : onnx_emit2(x, "Add", v, onnx_write_number(x, n->f[TN_ARANGE_START], t));
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

static const char *write_view(onnx_export *x, const tn_node *n) {
    const char *shape = onnx_write_shape(x, n);
    for (int d = 0; d < n->rank; d++)
        if (n->shape[d] == 0) {
            onnx_attr_int(x, "allowzero", 1);
            break;
        }
    return onnx_emit2(x, "Reshape", in(x, n, 0), shape);
}

static const char *write_permute(onnx_export *x, const tn_node *n) {
    onnx_attr_ints(x, "perm", n->i + 1, n->rank);
    return onnx_emit1(x, "Transpose", in(x, n, 0));
}

static const char *write_expand(onnx_export *x, const tn_node *n) {
    return onnx_emit2(x, "Expand", in(x, n, 0), onnx_write_shape(x, n));
}

static const char *write_slice(onnx_export *x, const tn_node *n) {
    int64_t dim = n->i[TN_SLICE_DIM], stop = n->i[TN_SLICE_STOP], step = n->i[TN_SLICE_STEP];
    if (step > 0 && stop == n->in[0]->shape[dim]) stop = INT64_MAX;
    const char *names[] = {in(x, n, 0), onnx_write_list(x, &n->i[TN_SLICE_START], 1), onnx_write_list(x, &stop, 1),
                           onnx_write_list(x, &dim, 1), onnx_write_list(x, &step, 1)};
    return onnx_emit_of(x, "Slice", names, 5);
}

/* Where the elements of a view of this shape lie. */
static const char *places(onnx_export *x, const int64_t *shape, int rank, const int64_t *stride, int64_t offset,
                          bool in_one_row) {
    int64_t count = tn_product(shape, rank), at[TN_MAX_RANK] = {0};
    AUTO_FREE int64_t *table = tn_mem_alloc((size_t)count * sizeof *table);
    if (!table) {
        x->status = x->status == TN_OK ? TN_ERR_MEMORY : x->status;
        return "";
    }
    for (int64_t i = 0; i < count; i++) {
        table[i] = offset;
        for (int d = rank - 1; d >= 0; d--) {
            offset += stride[d];
            if (++at[d] < shape[d]) break;
            offset -= stride[d] * shape[d];
            at[d] = 0;
        }
    }
    return onnx_write_table(x, table, in_one_row ? &count : shape, in_one_row ? 1 : rank);
}

static bool has_few_places(const tn_node *n) { return tn_node_numel(n) <= MOST_PLACES; }

static const char *write_as_strided(onnx_export *x, const tn_node *n) {
    const int64_t *stride = n->i + 2 + n->rank;
    return onnx_emit2(x, "Gather", flat(x, in(x, n, 0)), places(x, n->shape, n->rank, stride, stride[n->rank], false));
}

static bool writes_few_places(const tn_node *n) { return has_few_places(n->in[1]); }

static const char *write_assign_view(onnx_export *x, const tn_node *n) {
    const tn_node *value = n->in[1];
    const char *to = places(x, value->shape, value->rank, n->i + 2, n->i[TN_ASSIGN_VIEW_OFFSET], true);
    const char *written = onnx_emit3(x, "ScatterElements", flat(x, in(x, n, 0)), to, flat(x, in(x, n, 1)));
    return onnx_emit2(x, "Reshape", written, onnx_write_shape(x, n));
}

/* ---- copies and indices ------------------------------------------------------------------------------------------ */

static const char *write_cat(onnx_export *x, const tn_node *n) {
    const char *names[UINT8_MAX];
    int count = 0;
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k]->rank == n->rank) names[count++] = in(x, n, k);
    onnx_attr_int(x, "axis", n->i[0]);
    return onnx_emit_of(x, "Concat", names, count);
}

static const char *padded(onnx_export *x, const char *value, const int64_t *before, const int64_t *after, int rank,
                          const char *with) {
    int64_t pads[2 * TN_MAX_RANK];
    memcpy(pads, before, (size_t)rank * sizeof *pads);
    memcpy(pads + rank, after, (size_t)rank * sizeof *pads);
    return onnx_emit3(x, "Pad", value, onnx_write_list(x, pads, 2 * rank), with);
}

/* Ours begin with the last dimension. */
static const char *write_pad(onnx_export *x, const tn_node *n) {
    int64_t before[TN_MAX_RANK] = {0}, after[TN_MAX_RANK] = {0};
    for (int k = 0; k < n->i[0]; k += 2) {
        before[n->rank - 1 - k / 2] = n->i[1 + k];
        after[n->rank - 1 - k / 2] = n->i[2 + k];
    }
    return padded(x, in(x, n, 0), before, after, n->rank, onnx_write_number(x, n->f[0], (tn_dtype)n->dtype));
}

/* Input k, which are indices. ONNX counts negative ones from the end; ours are out of range. An engine is given indices
 * that it refuses instead: the host then computes as if it had never been asked. */
static const char *indices(onnx_export *x, const tn_node *n, int k) {
    tn_dtype t = taken_as(n, (tn_dtype)n->in[k]->dtype);
    const char *v = in(x, n, k);
    if (!x->engine || (t != TN_I32 && t != TN_I64)) return v;
    const char *below = onnx_emit2(x, "Less", v, onnx_write_number(x, 0, t));
    return onnx_emit3(x, "Where", below, onnx_write_number(x, INT32_MAX, t), v);
}

/* ONNX has no axis of a tensor without dimensions: it becomes one with one element, and the result loses that axis. */
static const char *with_axis(onnx_export *x, const tn_node *n, const char *value) {
    return n->rank == 0 ? flat(x, value) : value;
}

static const char *without_axis(onnx_export *x, const tn_node *n, const char *value) {
    return n->rank == 0 ? onnx_emit2(x, "Reshape", value, onnx_write_shape(x, n)) : value;
}

static const char *write_indexed(onnx_export *x, const tn_node *n) {
    if (tn_node_numel(n) == 0) /* its index may have another rank than x */
        return onnx_emit2(x, "Expand", onnx_write_number(x, 0, (tn_dtype)n->dtype), onnx_write_shape(x, n));
    const char *from = with_axis(x, n->in[0], in(x, n, 0)), *at = with_axis(x, n->in[1], indices(x, n, 1));
    onnx_attr_int(x, "axis", n->i[0]);
    return without_axis(x, n, onnx_emit2(x, x->writer->onnx, from, at));
}

static const char *write_embedding(onnx_export *x, const tn_node *n) {
    return onnx_emit2(x, x->writer->onnx, in(x, n, 1), indices(x, n, 0));
}

/* The part of the source that the index speaks of. */
static const char *source(onnx_export *x, const tn_node *n) {
    const tn_node *index = n->in[0], *src = n->in[1];
    int64_t zeros[TN_MAX_RANK] = {0};
    if (!memcmp(index->shape, src->shape, sizeof *src->shape * src->rank)) return in(x, n, 1);
    return onnx_emit3(x, "Slice", in(x, n, 1), onnx_write_list(x, zeros, n->rank),
                      onnx_write_list(x, index->shape, n->rank));
}

/* The number that changes nothing; 2 and -2: the greatest and the least of the type. -1 is cast to the greatest u64. */
static double neutral(int with, tn_dtype t) {
    const unsigned no_sign = 1u << TN_BOOL | 1u << TN_U8 | 1u << TN_U16 | 1u << TN_U32 | 1u << TN_U64;
    const double values = ldexp(1, 8 * (int)tn_dtype_size(t));
    if (with != 2 && with != -2) return with;
    if (tn_dtype_is_float(t)) return with * (double)INFINITY;
    if (no_sign >> t & 1) return with < 0 ? 0 : t == TN_U64 ? -1 : values - 1;
    return with > 0 ? values / 2 - 1 : -values / 2;
}

static const char *write_scatter(onnx_export *x, const tn_node *n) {
    const char *fill = onnx_write_number(x, neutral(x->writer->with, (tn_dtype)n->dtype), (tn_dtype)n->dtype);
    const char *start = onnx_emit2(x, "Expand", fill, onnx_write_shape(x, n)), *from = source(x, n);
    const char *at = indices(x, n, 0);
    onnx_attr_int(x, "axis", n->i[0]);
    onnx_attr_text(x, "reduction", x->writer->onnx);
    return onnx_emit3(x, "ScatterElements", start, at, from);
}

/* The greatest number along the dim: each place of the index sends its own. */
static const char *write_scatter_last(onnx_export *x, const tn_node *n) {
    const tn_node *index = n->in[0];
    int64_t along[TN_MAX_RANK] = {0};
    along[n->i[0]] = 1;
    const char *from = places(x, index->shape, index->rank, along, 0, false);
    const char *start = onnx_emit2(x, "Expand", onnx_write_number(x, -1, TN_I64), onnx_write_shape(x, n));
    const char *at = indices(x, n, 0);
    onnx_attr_int(x, "axis", n->i[0]);
    onnx_attr_text(x, "reduction", x->writer->onnx);
    return onnx_emit3(x, "ScatterElements", start, at, from);
}

static bool has_few_sources(const tn_node *n) { return has_few_places(n->in[0]); }

static const char *write_index_add(onnx_export *x, const tn_node *n) {
    const char *rows = onnx_emit2(x, "Unsqueeze", in(x, n, 1), onnx_write_list(x, (int64_t[]){-1}, 1));
    onnx_attr_text(x, "reduction", "add");
    return onnx_emit3(x, "ScatterND", in(x, n, 0), rows, in(x, n, 2));
}

/* `with`: which of TopK's results, the values or where they are. */
static const char *write_topk(onnx_export *x, const tn_node *n) {
    bool all = n->op == TN_OP_ARGSORT_LAST;
    int64_t k = all ? n->shape[n->rank - 1] : n->i[TN_TOPK_K];
    const char *names[] = {with_axis(x, n->in[0], in(x, n, 0)), onnx_write_list(x, &k, 1)};
    onnx_attr_int(x, "axis", all ? -1 : n->i[TN_TOPK_DIM]);
    onnx_attr_int(x, "largest", all ? n->i[TN_ARGSORT_LAST_DESCENDING] : n->i[TN_TOPK_LARGEST]);
    return without_axis(x, n, onnx_emit_nth(x, "TopK", names, 2, x->writer->with, 2));
}

/* Both axes are looked up in tables [taps, places], then the taps are put together. */
static const char *write_windows(onnx_export *x, const tn_node *n) {
    const int64_t *i = n->i, *pad = i + TN_UNFOLD2D_PADDING;
    int64_t before[] = {0, 0, pad[0], pad[1]};
    const char *v = in(x, n, 0);
    if (pad[0] || pad[1])
        v = padded(x, v, before, before, 4, onnx_write_number(x, n->f[TN_UNFOLD2D_VALUE], (tn_dtype)n->dtype));
    for (int a = 0; a < 2; a++) {
        int64_t shape[] = {i[a], n->shape[4 + a]};
        int64_t stride[] = {i[TN_UNFOLD2D_DILATION + a], i[TN_UNFOLD2D_STRIDE + a]};
        const char *table = places(x, shape, 2, stride, 0, false);
        onnx_attr_int(x, "axis", 2 + 2 * a);
        v = onnx_emit2(x, "Gather", v, table);
    }
    onnx_attr_ints(x, "perm", (int64_t[]){0, 1, 2, 4, 3, 5}, 6);
    return onnx_emit1(x, "Transpose", v);
}

static const char *write_fold(onnx_export *x, const tn_node *n) {
    const int64_t *y = n->in[0]->shape, *pad = n->i + TN_FOLD2D_PADDING;
    int64_t columns[] = {y[0], y[1] * y[2] * y[3], y[4] * y[5]};
    const char *v = onnx_emit2(x, "Reshape", in(x, n, 0), onnx_write_list(x, columns, 3));
    const char *size = onnx_write_list(x, n->shape + 2, 2), *kernel = onnx_write_list(x, n->i, 2);
    onnx_attr_ints(x, "strides", n->i + TN_FOLD2D_STRIDE, 2);
    onnx_attr_ints(x, "dilations", n->i + TN_FOLD2D_DILATION, 2);
    onnx_attr_ints(x, "pads", (int64_t[]){pad[0], pad[1], pad[0], pad[1]}, 4);
    return onnx_emit3(x, "Col2Im", v, size, kernel);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static const char *write_reduce(onnx_export *x, const tn_node *n) {
    int count = (int)n->i[0];
    const char *v = in(x, n, 0);
    if (n->in[0]->dtype != n->dtype) v = onnx_write_cast(x, v, (tn_dtype)n->dtype);
    if (count == 0) return v;
    const char *dims = onnx_write_list(x, n->i + 1, count);
    onnx_attr_int(x, "keepdims", n->i[1 + count]);
    return onnx_emit2(x, x->writer->onnx, v, dims);
}

/* Several dims go to the end, where they become one. */
static const char *write_arg(onnx_export *x, const tn_node *n) {
    const tn_node *v = n->in[0];
    int64_t order[TN_MAX_RANK], shape[TN_MAX_RANK] = {0}, count = n->i[0], last = 1;
    int kept = 0, reduced = v->rank - (int)count;
    for (int d = 0; d < v->rank; d++) {
        bool gone = d - kept < count && n->i[1 + d - kept] == d; /* d − kept dims were removed before this one */
        order[gone ? reduced++ : kept++] = d;
        if (gone)
            last *= v->shape[d];
        else
            shape[kept - 1] = v->shape[d];
    }
    shape[kept] = last;
    onnx_attr_ints(x, "perm", order, v->rank);
    const char *rows = onnx_emit1(x, "Transpose", in(x, n, 0));
    rows = onnx_emit2(x, "Reshape", rows, onnx_write_list(x, shape, kept + 1));
    onnx_attr_int(x, "axis", -1);
    onnx_attr_int(x, "keepdims", 0);
    return onnx_emit2(x, "Reshape", onnx_emit1(x, x->writer->onnx, rows), onnx_write_shape(x, n));
}

static const char *write_arg_of_dim(onnx_export *x, const tn_node *n) {
    if (n->i[0] != 1) return write_arg(x, n);
    onnx_attr_int(x, "axis", n->i[1]);
    onnx_attr_int(x, "keepdims", n->i[2]);
    return onnx_emit1(x, x->writer->onnx, in(x, n, 0));
}

static const char *write_cumsum(onnx_export *x, const tn_node *n) {
    const char *v = with_axis(x, n, in(x, n, 0));
    if (n->in[0]->dtype != n->dtype) v = onnx_write_cast(x, v, (tn_dtype)n->dtype);
    return without_axis(x, n, onnx_emit2(x, "CumSum", v, onnx_write_number(x, (double)n->i[0], TN_I64)));
}

static bool has_dims(const tn_node *n) { return n->rank > 0; }

static const char *write_axis(onnx_export *x, const tn_node *n) {
    onnx_attr_int(x, "axis", n->i[0]);
    return onnx_emit1(x, x->writer->onnx, in(x, n, 0));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* x wᵀ, the weight widened to x's type. */
static const char *write_linear(onnx_export *x, const tn_node *n) {
    const char *weight = in(x, n, 1);
    if (!tn_dtype_is_quantized((tn_dtype)n->in[1]->dtype)) weight = onnx_write_cast(x, weight, (tn_dtype)n->dtype);
    onnx_attr_ints(x, "perm", (int64_t[]){1, 0}, 2);
    return onnx_emit2(x, "MatMul", in(x, n, 0), onnx_emit1(x, "Transpose", weight));
}

/* A product of halves whose sums are not rounded. */
static const char *write_wide_product(onnx_export *x, const tn_node *n) {
    const char *left = onnx_write_cast(x, in(x, n, 0), TN_F32);
    return onnx_emit2(x, x->writer->onnx, left, onnx_write_cast(x, in(x, n, 1), TN_F32));
}

/* Where the elements of a list would stand, sorted. */
static const char *write_order(onnx_export *x, const char *list) {
    const char *names[] = {list, onnx_emit1(x, "Shape", list)};
    onnx_attr_int(x, "axis", 0);
    onnx_attr_int(x, "largest", 0);
    return onnx_emit_nth(x, "TopK", names, 2, 1, 2);
}

static const char *write_rows_of(onnx_export *x, const char *table, const char *rows) {
    onnx_attr_int(x, "axis", 0);
    return onnx_emit2(x, "Gather", table, rows);
}

/* How many rows each expert has. */
static const char *write_counts(onnx_export *x, const char *chosen, int64_t experts, int64_t *numbers) {
    for (int64_t e = 0; e < experts; e++)
        numbers[e] = e;
    const char *column = onnx_emit2(x, "Unsqueeze", chosen, onnx_write_list(x, (int64_t[]){1}, 1));
    const char *same = onnx_emit2(x, "Equal", column, onnx_write_list(x, numbers, (int)experts));
    const char *ones = onnx_write_cast(x, same, TN_I64);
    onnx_attr_int(x, "keepdims", 0);
    return onnx_emit2(x, "ReduceSum", ones, onnx_write_list(x, (int64_t[]){0}, 1));
}

/* Rows in the order of their experts are cut where one ends; each part is multiplied with its matrix, and what comes of
 * it goes back to where it was. parts, matrices: room for one of each expert. */
static const char *multiply_parts(onnx_export *x, const tn_node *n, const char *weight, const char **parts,
                                  const char **matrices, int64_t *numbers) {
    const tn_node *from = n->in[0];
    int64_t experts = n->in[1]->shape[0], choices = n->shape[1];
    const char *chosen = onnx_emit2(x, "Reshape", in(x, n, 2), onnx_write_list(x, (int64_t[]){-1}, 1));
    const char *order = write_order(x, chosen), *rows = in(x, n, 0), *row = order;
    if (from->rank == 2) row = onnx_emit2(x, "Div", order, onnx_write_number(x, (double)choices, TN_I64));
    if (from->rank == 3) rows = onnx_emit2(x, "Reshape", rows, onnx_write_list(x, (int64_t[]){-1, from->shape[2]}, 2));
    const char *cut[] = {write_rows_of(x, rows, row), write_counts(x, chosen, experts, numbers)};
    onnx_attr_int(x, "axis", 0);
    onnx_emit_all(x, "Split", cut, 2, parts, (int)experts);
    onnx_attr_int(x, "axis", 0);
    onnx_attr_int(x, "num_outputs", experts);
    onnx_emit_all(x, "Split", &weight, 1, matrices, (int)experts);
    const char *first = onnx_write_list(x, (int64_t[]){0}, 1);
    for (int64_t e = 0; e < experts; e++) {
        const char *matrix = onnx_emit2(x, "Squeeze", matrices[e], first);
        onnx_attr_ints(x, "perm", (int64_t[]){1, 0}, 2);
        parts[e] = onnx_emit2(x, "MatMul", parts[e], onnx_emit1(x, "Transpose", matrix));
    }
    onnx_attr_int(x, "axis", 0);
    const char *made = onnx_emit_of(x, "Concat", parts, (int)experts);
    return onnx_emit2(x, "Reshape", write_rows_of(x, made, write_order(x, order)), onnx_write_shape(x, n));
}

static bool has_experts(const tn_node *n) { return n->in[1]->shape[0] > 0; }

static const char *write_experts(onnx_export *x, const tn_node *n) {
    const char *weight = in(x, n, 1), *made = "";
    size_t experts = (size_t)n->in[1]->shape[0];
    AUTO_FREE const char **parts = tn_mem_zalloc(2 * experts, sizeof *parts);
    AUTO_FREE int64_t *numbers = tn_mem_zalloc(experts, sizeof *numbers);
    if (!tn_dtype_is_quantized((tn_dtype)n->in[1]->dtype)) weight = onnx_write_cast(x, weight, (tn_dtype)n->dtype);
    if (parts && numbers)
        made = multiply_parts(x, n, weight, parts, parts + experts, numbers);
    else if (x->status == TN_OK)
        x->status = TN_ERR_MEMORY;
    return made;
}

/* ---- normalisation ----------------------------------------------------------------------------------------------- */

static bool has_weight(const tn_node *n) { return n->in[1] != NULL; }

static const char *write_layer_norm(onnx_export *x, const tn_node *n) {
    onnx_attr_int(x, "axis", -n->i[0]);
    onnx_attr_float(x, "epsilon", n->f[0]);
    return onnx_emit3(x, "LayerNormalization", in(x, n, 0), in(x, n, 1), in(x, n, 2));
}

static bool is_inference(const tn_node *n) {
    for (int k = 0; k < 5; k++)
        if (k >= n->n_in || !n->in[k]) return false;
    return !n->i[TN_BATCH_NORM_TRAINING];
}

static const char *write_batch_norm(onnx_export *x, const tn_node *n) {
    const char *names[] = {in(x, n, 0), in(x, n, 3), in(x, n, 4), in(x, n, 1), in(x, n, 2)};
    onnx_attr_float(x, "epsilon", n->f[0]);
    return onnx_emit_of(x, "BatchNormalization", names, 5);
}

/* ---- convolution, pooling ---------------------------------------------------------------------------------------- */

/* ONNX's operators want a batch, and no whole numbers. */
static bool has_batch(const tn_node *n) {
    return export_op_is_float(n) && n->in[0]->rank == (n->op == TN_OP_CONV1D ? 3 : 4);
}

static void attr_both_sides(onnx_export *x, const int64_t *pad, int axes) {
    int64_t pads[4];
    for (int k = 0; k < 2 * axes; k++)
        pads[k] = pad[k % axes];
    onnx_attr_ints(x, "pads", pads, 2 * axes);
}

/* `with`: the number of axes; the attributes are lists of that length, then the groups. */
static const char *write_conv(onnx_export *x, const tn_node *n) {
    int axes = x->writer->with;
    onnx_attr_ints(x, "strides", n->i, axes);
    attr_both_sides(x, n->i + axes, axes);
    onnx_attr_ints(x, "dilations", n->i + 2 * axes, axes);
    onnx_attr_int(x, "group", n->i[3 * axes]);
    return onnx_emit3(x, "Conv", in(x, n, 0), in(x, n, 1), in(x, n, 2));
}

static bool is_plain_transposed(const tn_node *n) {
    for (int a = 0; a < 2; a++)
        if (n->i[TN_CONV_TRANSPOSE2D_OUTPUT_PADDING + a] >= n->i[TN_CONV_TRANSPOSE2D_STRIDE + a]) return false;
    return has_batch(n);
}

static const char *write_conv_transpose(onnx_export *x, const tn_node *n) {
    onnx_attr_ints(x, "strides", n->i + TN_CONV_TRANSPOSE2D_STRIDE, 2);
    attr_both_sides(x, n->i + TN_CONV_TRANSPOSE2D_PADDING, 2);
    onnx_attr_ints(x, "output_padding", n->i + TN_CONV_TRANSPOSE2D_OUTPUT_PADDING, 2);
    onnx_attr_ints(x, "dilations", n->i + TN_CONV_TRANSPOSE2D_DILATION, 2);
    onnx_attr_int(x, "group", n->i[TN_CONV_TRANSPOSE2D_GROUPS]);
    return onnx_emit3(x, "ConvTranspose", in(x, n, 0), in(x, n, 1), in(x, n, 2));
}

/* A product of filters with windows: images of `size`, at `places` places. What no window reaches is cut off. */
typedef struct filtering {
    const int64_t *size, *kernel, *places, *stride, *before, *dilation;
    int64_t groups;
} filtering;

static const char *filtered(onnx_export *x, const char *images, const char *filters, const filtering *f,
                            tn_dtype dtype) {
    int64_t before[] = {0, 0, f->before[0], f->before[1]}, after[4] = {0};
    bool cut = false;
    for (int a = 0; a < 2; a++) {
        int64_t reach = (f->places[a] - 1) * f->stride[a] + f->dilation[a] * (f->kernel[a] - 1) + 1;
        after[2 + a] = reach - f->before[a] - f->size[a];
        cut |= f->before[a] < 0 || after[2 + a] < 0;
    }
    if (cut) images = padded(x, images, before, after, 4, onnx_write_number(x, 0, dtype));
    onnx_attr_ints(x, "strides", f->stride, 2);
    onnx_attr_ints(x, "dilations", f->dilation, 2);
    if (!cut) onnx_attr_ints(x, "pads", (int64_t[]){before[2], before[3], after[2], after[3]}, 4);
    onnx_attr_int(x, "group", f->groups);
    return onnx_emit2(x, "Conv", images, filters);
}

static const char *write_conv_forward(onnx_export *x, const tn_node *n) {
    const int64_t *i = n->i;
    filtering f = {n->in[0]->shape + 2,
                   n->in[1]->shape + 2,
                   n->shape + 2,
                   i + TN_CONV2D_FORWARD_STRIDE,
                   i + TN_CONV2D_FORWARD_PAD_BEFORE,
                   i + TN_CONV2D_FORWARD_DILATION,
                   i[TN_CONV2D_FORWARD_GROUPS]};
    return filtered(x, in(x, n, 0), in(x, n, 1), &f, taken_as(n, (tn_dtype)n->dtype));
}

/* The weight's gradient is a convolution too, of images and results with batch and channels exchanged: taps are its
 * places. */
static bool has_one_group(const tn_node *n) { return n->in[0]->rank == 4 && n->i[TN_CONV2D_WGRAD_GROUPS] == 1; }

static const char *exchanged(onnx_export *x, const char *v) {
    onnx_attr_ints(x, "perm", (int64_t[]){1, 0, 2, 3}, 4);
    return onnx_emit1(x, "Transpose", v);
}

static const char *write_conv_weight(onnx_export *x, const tn_node *n) {
    const int64_t *i = n->i;
    filtering f = {n->in[0]->shape + 2,
                   n->in[1]->shape + 2,
                   n->shape + 2,
                   i + TN_CONV2D_WGRAD_DILATION,
                   i + TN_CONV2D_WGRAD_PADDING,
                   i + TN_CONV2D_WGRAD_STRIDE,
                   1};
    const char *images = exchanged(x, in(x, n, 0)), *results = exchanged(x, in(x, n, 1));
    return exchanged(x, filtered(x, images, results, &f, taken_as(n, (tn_dtype)n->dtype)));
}

/* How far the transposed window reaches beyond the image, after it; less than 0: not as far. */
static int64_t spread_after(const tn_node *n, int a) {
    const int64_t *i = n->i;
    int64_t reach = (n->in[0]->shape[2 + a] - 1) * i[TN_CONV2D_DGRAD_STRIDE + a] +
                    i[TN_CONV2D_DGRAD_DILATION + a] * (n->in[1]->shape[2 + a] - 1) + 1;
    return reach - i[TN_CONV2D_DGRAD_PADDING + a] - n->shape[2 + a];
}

static bool is_transposed_conv(const tn_node *n) {
    for (int a = 0; a < 2; a++)
        if (n->i[TN_CONV2D_DGRAD_PADDING + a] < 0 || -spread_after(n, a) >= n->i[TN_CONV2D_DGRAD_STRIDE + a])
            return false;
    return true;
}

static const char *write_spread(onnx_export *x, const tn_node *n) {
    int64_t pads[4], more[2];
    for (int a = 0; a < 2; a++) {
        pads[a] = n->i[TN_CONV2D_DGRAD_PADDING + a];
        pads[2 + a] = tn_max64(spread_after(n, a), 0);
        more[a] = tn_max64(-spread_after(n, a), 0);
    }
    onnx_attr_ints(x, "strides", n->i + TN_CONV2D_DGRAD_STRIDE, 2);
    onnx_attr_ints(x, "dilations", n->i + TN_CONV2D_DGRAD_DILATION, 2);
    onnx_attr_ints(x, "pads", pads, 4);
    onnx_attr_ints(x, "output_padding", more, 2);
    onnx_attr_int(x, "group", n->i[TN_CONV2D_DGRAD_GROUPS]);
    return onnx_emit2(x, "ConvTranspose", in(x, n, 0), in(x, n, 1));
}

static bool is_plain_pool(const tn_node *n) {
    if (!has_batch(n)) return false;
    if (n->op == TN_OP_MAX_POOL2D) return !n->i[TN_MAX_POOL2D_CEIL_MODE];
    return !n->i[TN_AVG_POOL2D_CEIL_MODE] && !n->i[TN_AVG_POOL2D_DIVISOR_OVERRIDE];
}

static const char *write_pool(onnx_export *x, const tn_node *n) {
    const int64_t *kernel = n->i, *stride = n->i + TN_MAX_POOL2D_STRIDE;
    int64_t steps[2];
    for (int a = 0; a < 2; a++)
        steps[a] = stride[a] ? stride[a] : kernel[a];
    onnx_attr_ints(x, "kernel_shape", kernel, 2);
    onnx_attr_ints(x, "strides", steps, 2);
    attr_both_sides(x, n->i + TN_MAX_POOL2D_PADDING, 2);
    if (n->op == TN_OP_MAX_POOL2D)
        onnx_attr_ints(x, "dilations", n->i + TN_MAX_POOL2D_DILATION, 2);
    else
        onnx_attr_int(x, "count_include_pad", n->i[TN_AVG_POOL2D_COUNT_INCLUDE_PAD]);
    return onnx_emit1(x, x->writer->onnx, in(x, n, 0));
}

static bool is_global_pool(const tn_node *n) { return has_batch(n) && n->i[0] == 1 && n->i[1] == 1; }

/* ---- as other ops ------------------------------------------------------------------------------------------------ */

/* Pairs (x, y) become (x · cos − y · sin, y · cos + x · sin); features after the pairs stay. */
static tn_node *rewrite_rope(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *cosine = n->in[1], *sine = n->in[2], *parts[3];
    int64_t half = cosine->shape[cosine->rank - 1], last = n->rank - 1, all = n->shape[last];
    bool neighbours = n->i[TN_ROPE_ROWS_INTERLEAVED];
    tn_node *first = tn_b_slice(b, x, last, 0, neighbours ? 2 * half : half, neighbours ? 2 : 1);
    tn_node *second = tn_b_slice(b, x, last, neighbours ? 1 : half, 2 * half, neighbours ? 2 : 1);
    parts[0] = tn_b_sub(b, tn_b_mul(b, first, cosine), tn_b_mul(b, second, sine));
    parts[1] = tn_b_add(b, tn_b_mul(b, second, cosine), tn_b_mul(b, first, sine));
    parts[2] = 2 * half < all ? tn_b_slice(b, x, last, 2 * half, all, 1) : NULL;
    int count = parts[2] ? 3 : 2;
    if (!neighbours) return tn_b_cat(b, parts, count, last);
    int64_t shape[TN_MAX_RANK];
    memcpy(shape, n->shape, sizeof shape);
    shape[last] = 2 * half;
    tn_node *turned = tn_b_reshape(b, tn_b_stack(b, parts, 2, n->rank), shape, n->rank);
    return parts[2] ? tn_b_cat(b, (tn_node *[]){turned, parts[2]}, 2, last) : turned;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const onnx_writer writers[] = {
    {TN_OP_CAST, NULL, write_cast, NULL, NULL, 0},
    {TN_OP_TRUNC, NULL, write_trunc, NULL, NULL, 0},
    {TN_OP_DIV_TRUNC, NULL, write_trunc, NULL, NULL, 1},
    {TN_OP_REMAINDER, NULL, write_remainder, NULL, NULL, 0},
    {TN_OP_CLAMP, NULL, write_clamp, has_clip, NULL, 0},
    {TN_OP_FMOD, NULL, write_fmod, NULL, NULL, 0},
    {TN_OP_FLOOR_DIVIDE, NULL, write_floor_divide, NULL, NULL, 0},
    {TN_OP_HEAVISIDE, NULL, write_heaviside, NULL, NULL, 0},
    {TN_OP_BITWISE_LEFT_SHIFT, NULL, write_shift, is_unsigned, NULL, 0},
    {TN_OP_BITWISE_RIGHT_SHIFT, NULL, write_shift, is_unsigned, NULL, 1},
    {TN_OP_EXP2, NULL, write_exp2, NULL, NULL, 0},
    {TN_OP_LOG2, NULL, write_log_of_base, NULL, NULL, 2},
    {TN_OP_LOG10, NULL, write_log_of_base, NULL, NULL, 10},
    {TN_OP_LEAKY_RELU, "LeakyRelu", write_alpha, NULL, NULL, 0},
    {TN_OP_ELU, "Elu", write_alpha, NULL, NULL, 0},
    {TN_OP_GELU, NULL, write_gelu, NULL, NULL, 0},
    {TN_OP_LOGICAL_NOT, "Not", onnx_write_plain, of_truth, NULL, 0},
    {TN_OP_LOGICAL_AND, "And", onnx_write_plain, of_truth, NULL, 0},
    {TN_OP_LOGICAL_OR, "Or", onnx_write_plain, of_truth, NULL, 0},
    {TN_OP_LOGICAL_XOR, "Xor", onnx_write_plain, of_truth, NULL, 0},
    {TN_OP_FULL, NULL, write_full, NULL, NULL, 0},
    {TN_OP_ZEROS_LIKE, NULL, write_full, NULL, NULL, 0},
    {TN_OP_ONES_LIKE, NULL, write_full, NULL, NULL, 1},
    {TN_OP_FULL_LIKE, NULL, write_full, NULL, NULL, 0},
    {TN_OP_ARANGE, NULL, write_arange, NULL, NULL, 0},
    {TN_OP_VIEW, NULL, write_view, NULL, NULL, 0},
    {TN_OP_PERMUTE, NULL, write_permute, NULL, NULL, 0},
    {TN_OP_EXPAND, NULL, write_expand, NULL, NULL, 0},
    {TN_OP_SLICE, NULL, write_slice, NULL, NULL, 0},
    {TN_OP_AS_STRIDED, NULL, write_as_strided, has_few_places, NULL, 0},
    {TN_OP_DETACH, NULL, write_same, NULL, NULL, 0},
    {TN_OP_CONTIGUOUS, NULL, write_same, NULL, NULL, 0},
    {TN_OP_GATED, NULL, write_same, NULL, NULL, 0},
    {TN_OP_ASSIGN_VIEW, NULL, write_assign_view, writes_few_places, NULL, 0},
    {TN_OP_CAT, NULL, write_cat, NULL, NULL, 0},
    {TN_OP_CAT_FEW, NULL, write_cat, NULL, NULL, 0},
    {TN_OP_PAD, NULL, write_pad, NULL, NULL, 0},
    {TN_OP_WHERE, NULL, write_where, NULL, NULL, 0},
    {TN_OP_GATHER, "GatherElements", write_indexed, NULL, NULL, 0},
    {TN_OP_INDEX_SELECT, "Gather", write_indexed, NULL, NULL, 0},
    {TN_OP_EMBEDDING, "Gather", write_embedding, NULL, NULL, 0},
    {TN_OP_SCATTER_SUM, "add", write_scatter, NULL, NULL, 0},
    {TN_OP_SCATTER_PROD, "mul", write_scatter, NULL, NULL, 1},
    {TN_OP_SCATTER_AMAX, "max", write_scatter, NULL, NULL, -2},
    {TN_OP_SCATTER_AMIN, "min", write_scatter, NULL, NULL, 2},
    {TN_OP_SCATTER_LAST, "max", write_scatter_last, has_few_sources, NULL, 0},
    {TN_OP_INDEX_ADD_ROWS, NULL, write_index_add, NULL, NULL, 0},
    {TN_OP_ARGSORT_LAST, NULL, write_topk, NULL, NULL, 1},
    {TN_OP_TOPK, NULL, write_topk, NULL, NULL, 0},
    {TN_OP_TOPK_INDICES, NULL, write_topk, NULL, NULL, 1},
    {TN_OP_UNFOLD2D, NULL, write_windows, NULL, NULL, 0},
    {TN_OP_FOLD2D, NULL, write_fold, NULL, NULL, 0},
    {TN_OP_SUM, "ReduceSum", write_reduce, NULL, NULL, 0},
    {TN_OP_PROD, "ReduceProd", write_reduce, NULL, NULL, 0},
    {TN_OP_AMAX, "ReduceMax", write_reduce, NULL, NULL, 0},
    {TN_OP_AMIN, "ReduceMin", write_reduce, NULL, NULL, 0},
    {TN_OP_MEAN, "ReduceMean", write_reduce, NULL, NULL, 0},
    {TN_OP_ARGMAX, "ArgMax", write_arg_of_dim, NULL, NULL, 0},
    {TN_OP_ARGMIN, "ArgMin", write_arg_of_dim, NULL, NULL, 0},
    {TN_OP_CUMSUM, NULL, write_cumsum, NULL, NULL, 0},
    {TN_OP_MATMUL_BATCHED, "MatMul", onnx_write_plain, NULL, NULL, 0},
    {TN_OP_MATMUL_WIDE, "MatMul", write_wide_product, NULL, NULL, 0},
    {TN_OP_LINEAR_QUANTIZED, NULL, write_linear, NULL, NULL, 0},
    {TN_OP_LINEAR_HALF, NULL, write_linear, NULL, NULL, 0},
    {TN_OP_LINEAR_EXPERTS_ROWS, NULL, write_experts, has_experts, NULL, 0},
    {TN_OP_SOFTMAX, "Softmax", write_axis, has_dims, NULL, 0},
    {TN_OP_LOG_SOFTMAX, "LogSoftmax", write_axis, has_dims, NULL, 0},
    {TN_OP_LAYER_NORM, NULL, write_layer_norm, has_weight, NULL, 0},
    {TN_OP_BATCH_NORM, NULL, write_batch_norm, is_inference, NULL, 0},
    {TN_OP_CONV1D, NULL, write_conv, has_batch, NULL, 1},
    {TN_OP_CONV2D, NULL, write_conv, has_batch, NULL, 2},
    {TN_OP_CONV_TRANSPOSE2D, NULL, write_conv_transpose, is_plain_transposed, NULL, 0},
    {TN_OP_CONV2D_FORWARD, NULL, write_conv_forward, NULL, NULL, 0},
    {TN_OP_CONV2D_WGRAD, NULL, write_conv_weight, has_one_group, NULL, 0},
    {TN_OP_CONV2D_DGRAD, NULL, write_spread, is_transposed_conv, NULL, 0},
    {TN_OP_MAX_POOL2D, "MaxPool", write_pool, is_plain_pool, NULL, 0},
    {TN_OP_AVG_POOL2D, "AveragePool", write_pool, is_plain_pool, NULL, 0},
    {TN_OP_ADAPTIVE_AVG_POOL2D, "GlobalAveragePool", onnx_write_plain, is_global_pool, NULL, 0},
    {TN_OP_ROPE_ROWS, NULL, NULL, NULL, rewrite_rope, 0},
};

static const onnx_writer *find_export_op(const tn_node *n) {
    for (size_t i = 0; i < TN_COUNT(writers); i++)
        if (writers[i].op == n->op) return &writers[i];
    return NULL;
}

/* Has it no attributes, and an operator of opset 21? Swish is younger. */
static bool export_op_is_plain(const tn_node *n) {
    return tn_op(n->op)->onnx[0] && n->n_i == 0 && n->n_f == 0 && n->op != TN_OP_SILU;
}

const onnx_writer *onnx_writer_of(const tn_node *n) {
    static const onnx_writer plain = {.write = onnx_write_plain};
    const onnx_writer *w = find_export_op(n);
    if (!w) return export_op_is_plain(n) ? &plain : NULL;
    return w->write && (!w->fits || w->fits(n)) ? w : NULL;
}

const char *onnx_write_node(onnx_export *x, const tn_node *n) {
    const onnx_writer *w = onnx_writer_of(n);
    tn_dtype own = (tn_dtype)n->dtype;
    for (int k = 0; k < n->n_in && k < (int)TN_COUNT(x->widened); k++) {
        tn_dtype from = n->in[k] ? (tn_dtype)n->in[k]->dtype : own, to = taken_as(n, from);
        if (n->in[k] && to != from) x->widened[k] = onnx_write_cast(x, onnx_of(x, n->in[k]), to);
    }
    x->writer = w;
    const char *value = w->write(x, n);
    memset(x->widened, 0, sizeof x->widened);
    return taken_as(n, own) == own ? value : onnx_write_cast(x, value, own);
}

tn_node *onnx_composed(tn_build *b, const tn_node *n) {
    const onnx_writer *w = find_export_op(n);
    const tn_op_impl *impl = tn_op(n->op)->impl;
    if (w && w->rewrite) return w->rewrite(b, n);
    return impl->compose ? tn_compose(b, n) : NULL;
}
