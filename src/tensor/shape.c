/* shape.c — shape and dtype rules that ops share, and helpers that their lower functions share.
 *
 * A rule reads the inputs of a tn_infer and fills in the result, including symbolic extents. Its errors name the op,
 * the actual shapes, and what would be accepted. */
#include <math.h>
#include <string.h>

#include "tensor/graph.h"

const char *tn_shape_text(const tn_node *n, char *text, size_t size) {
    size_t used = tn_text_put(text, size, 0, "[");
    for (int d = 0; d < n->rank; d++) {
        if (d > 0) used = tn_text_put(text, size, used, ", ");
        used = tn_text_put_number(text, size, used, n->shape[d]);
    }
    tn_text_put(text, size, used, "]");
    return text;
}

tn_status tn_infer_dim(const tn_infer *c, int64_t dim, int rank, int64_t *out) {
    int64_t r = rank > 0 ? rank : 1; /* a rank-0 tensor may be named by dim 0 or -1, as in PyTorch */
    if (dim < -r || dim >= r)
        return tn_fail(TN_ERR_SHAPE, "%s: dim %lld is out of range for a tensor of rank %d: use %lld to %lld",
                       c->row->name, (long long)dim, rank, (long long)-r, (long long)r - 1);
    *out = dim < 0 ? dim + r : dim;
    return TN_OK;
}

/* The numbers of an integer type: low <= v < end, both of which a double has exactly. */
typedef struct integer_range {
    double low, end;
} integer_range;

static integer_range range_of(tn_dtype t) {
    bool is_unsigned = t == TN_U8 || t == TN_U16 || t == TN_U32 || t == TN_U64;
    double end = ldexp(1, 8 * (int)tn_dtype_size(t) - !is_unsigned);
    return (integer_range){is_unsigned ? 0 : -end, end};
}

bool tn_dtype_holds(tn_dtype t, double v) {
    if (t == TN_BOOL || tn_dtype_is_float(t)) return true;
    integer_range r = range_of(t);
    return v >= r.low && v < r.end;
}

tn_status tn_need_held(const tn_infer *c, tn_dtype t, const char *what, double v) {
    if (tn_dtype_holds(t, v)) return TN_OK;
    integer_range r = range_of(t);
    unsigned long long most = (unsigned long long)(r.end / 2) - 1 + (unsigned long long)(r.end / 2);
    return tn_fail(TN_ERR_ARGUMENT, "%s: %s is %.17g, which %s cannot hold (%.0f to %llu): cast the tensor first",
                   c->row->name, what, v, tn_dtype_name(t), r.low, most);
}

tn_status tn_need_bounds(const tn_infer *c, tn_dtype t, double min, double max) {
    TRY(tn_need_held(c, t, "the lower bound", fmax(min, 0)));
    return tn_need_held(c, t, "the upper bound", fmin(max, 0));
}

tn_status tn_infer_same(tn_infer *c) {
    const tn_node *x = c->in[0];
    c->dtype = (tn_dtype)x->dtype;
    c->rank = x->rank;
    memcpy(c->shape, x->shape, sizeof c->shape);
    memcpy(c->symbol, x->symbol, sizeof c->symbol);
    return TN_OK;
}

static tn_status refuse_broadcast(const tn_infer *c, const tn_node *x, int64_t have, int from_end) {
    tn_str all = {0};
    char one[128];
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]) tn_str_add(&all, all.length ? " and %s" : "%s", tn_shape_text(c->in[i], one, sizeof one));
    tn_status s = tn_fail(TN_ERR_SHAPE,
                          "%s: shapes %s do not broadcast: dimension %d, counted from the last, is %lld in one and "
                          "%lld in another; extents must be equal or 1",
                          c->row->name, tn_str_text(&all), from_end + 1, (long long)have,
                          (long long)x->shape[x->rank - 1 - from_end]);
    tn_str_free(&all);
    return s;
}

/* Joins x's extents, aligned at the end, into c->shape of c->rank entries. */
static tn_status broadcast_into(tn_infer *c, const tn_node *x) {
    for (int e = 0; e < x->rank; e++) {
        int from = x->rank - 1 - e;
        int to = c->rank - 1 - e;
        if (x->shape[from] == c->shape[to]) {
            if (!c->symbol[to]) c->symbol[to] = x->symbol[from];
        } else if (c->shape[to] == 1) {
            c->shape[to] = x->shape[from];
            c->symbol[to] = x->symbol[from];
        } else if (x->shape[from] != 1) {
            return refuse_broadcast(c, x, c->shape[to], e);
        }
    }
    return TN_OK;
}

tn_status tn_infer_broadcast(tn_infer *c) {
    if (tn_all_alike(c->in, c->n_in)) return tn_infer_same(c);
    c->rank = 0;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && c->in[i]->rank > c->rank) c->rank = c->in[i]->rank;
    for (int d = 0; d < c->rank; d++) {
        c->shape[d] = 1;
        c->symbol[d] = 0;
    }
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]) TRY(broadcast_into(c, c->in[i]));
    c->dtype = (tn_dtype)c->in[0]->dtype;
    return TN_OK;
}

tn_status tn_infer_counted(const tn_infer *c) {
    enum { SPARE_BITS = 4 };
    int64_t numel = 1 << SPARE_BITS;
    for (int d = 0; d < c->rank; d++)
        if (c->shape[d] > 0 && (tn_mul_overflow(numel, c->shape[d], &numel) || numel > PTRDIFF_MAX))
            return tn_fail(TN_ERR_SHAPE, "%s: the shape has 2^%d elements or more", c->row->name,
                           (int)(8 * sizeof(size_t)) - 1 - SPARE_BITS);
    return TN_OK;
}

tn_status tn_refuse_dtype(const tn_infer *c, int input, const char *wanted) {
    return tn_fail(TN_ERR_DTYPE, "%s: dtype %s of input %d is not supported: it must be %s; convert it with tn_cast",
                   c->row->name, tn_dtype_name((tn_dtype)c->in[input]->dtype), input + 1, wanted);
}

tn_status tn_need_float(const tn_infer *c, int input) {
    return tn_dtype_is_float((tn_dtype)c->in[input]->dtype) ? TN_OK : tn_refuse_dtype(c, input, "floating point");
}

tn_status tn_infer_float(tn_infer *c) {
    TRY(tn_need_float(c, 0));
    return tn_infer_broadcast(c);
}

tn_status tn_infer_not_bool(tn_infer *c) {
    if (c->in[0]->dtype == TN_BOOL) return tn_refuse_dtype(c, 0, "a number type");
    return tn_infer_broadcast(c);
}

tn_status tn_infer_compare(tn_infer *c) {
    TRY(tn_infer_broadcast(c));
    c->dtype = TN_BOOL;
    return TN_OK;
}

/* Marks the reduced dims of attribute list i[0] | i[1…]; an empty list marks all. */
static tn_status mark_dims(const tn_infer *c, int rank, bool reduced[TN_MAX_RANK]) {
    int64_t count = c->attrs->i[0];
    for (int d = 0; d < rank; d++)
        reduced[d] = count == 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t dim;
        TRY(tn_infer_dim(c, c->attrs->i[1 + k], rank, &dim));
        if (reduced[dim] && count > 1)
            return tn_fail(TN_ERR_SHAPE, "%s: dim %lld is given twice", c->row->name, (long long)dim);
        reduced[dim] = true;
    }
    return TN_OK;
}

/* The canonical form: all reduced dims by name, ascending. */
static void write_dims(tn_attrs *a, int rank, const bool reduced[TN_MAX_RANK]) {
    int64_t behind[TN_MAX_ATTR_INTS];
    int rest = a->n_i - 1 - (int)a->i[0];
    memcpy(behind, a->i + 1 + a->i[0], (size_t)rest * sizeof *behind);
    int count = 0;
    for (int d = 0; d < rank; d++)
        if (reduced[d]) a->i[1 + count++] = d;
    a->i[0] = count;
    memcpy(a->i + 1 + count, behind, (size_t)rest * sizeof *behind);
    a->n_i = (uint8_t)(1 + count + rest);
}

tn_status tn_infer_reduce(tn_infer *c) {
    const tn_node *x = c->in[0];
    bool reduced[TN_MAX_RANK] = {false};
    bool keepdim = c->attrs->i[1 + c->attrs->i[0]] != 0;
    TRY(mark_dims(c, x->rank, reduced));
    write_dims(c->attrs, x->rank, reduced);
    c->dtype = (tn_dtype)x->dtype;
    c->rank = 0;
    for (int d = 0; d < x->rank; d++) {
        if (reduced[d] && !keepdim) continue;
        c->shape[c->rank] = reduced[d] ? 1 : x->shape[d];
        c->symbol[c->rank] = reduced[d] ? 0 : x->symbol[d];
        c->rank++;
    }
    return TN_OK;
}

/* ---- promotion --------------------------------------------------------------------------------------------------- */

typedef enum category { CATEGORY_BOOL, CATEGORY_INTEGER, CATEGORY_FLOAT } category;

static category category_of(tn_dtype t) {
    if (t == TN_BOOL) return CATEGORY_BOOL;
    return tn_dtype_is_float(t) ? CATEGORY_FLOAT : CATEGORY_INTEGER;
}

static bool is_signed(tn_dtype t) { return t == TN_I8 || t == TN_I16 || t == TN_I32 || t == TN_I64; }

/* The smallest type that holds both integer types; u64 with a signed one has none, so i64 it is. */
static tn_dtype join_integers(tn_dtype a, tn_dtype b) {
    static const tn_dtype signed_of_size[9] = {[1] = TN_I8, [2] = TN_I16, [4] = TN_I32, [8] = TN_I64};
    if (is_signed(a) == is_signed(b)) return tn_dtype_size(a) >= tn_dtype_size(b) ? a : b;
    size_t plain = tn_dtype_size(is_signed(a) ? b : a);
    size_t wide = tn_dtype_size(is_signed(a) ? a : b);
    size_t size = wide > plain ? wide : plain * 2;
    return signed_of_size[size > 8 ? 8 : size];
}

static tn_dtype join_floats(tn_dtype a, tn_dtype b) {
    if (a == b) return a;
    if (tn_dtype_size(a) != tn_dtype_size(b)) return tn_dtype_size(a) > tn_dtype_size(b) ? a : b;
    return TN_F32; /* f16 and bf16 */
}

static tn_dtype join_shape(tn_dtype a, tn_dtype b) {
    category ca = category_of(a), cb = category_of(b);
    if (ca != cb) return ca > cb ? a : b;
    if (ca == CATEGORY_FLOAT) return join_floats(a, b);
    return ca == CATEGORY_INTEGER ? join_integers(a, b) : TN_BOOL;
}

/* How much a tensor's dtype counts: one with dims before one without, that before a plain number. */
static int weight(const tn_node *n) {
    if (n->flags & TN_NODE_WRAPPED) return 0;
    return n->rank > 0 ? 2 : 1;
}

tn_dtype tn_promote_with(tn_dtype so_far, const tn_node *first, const tn_node *next) {
    tn_dtype t = (tn_dtype)next->dtype;
    int a = weight(first), b = weight(next);
    if (a == b) return join_shape(so_far, t);
    tn_dtype heavy = a > b ? so_far : t;
    tn_dtype light = a > b ? t : so_far;
    return category_of(heavy) >= category_of(light) ? heavy : light;
}

/* ==== what the ops' lower functions share: index arithmetic, masked loads, reductions ============================= */
/* Values come from the planner through tn_lower_calls; nothing here knows groups or buffers. */

kir_val tn_dyn_add(tn_lower *lw, kir_val a, kir_val b) {
    if (a == KIR_NONE || b == KIR_NONE) return a == KIR_NONE ? b : a;
    return kir_add(lw->kb, a, b);
}

kir_val tn_dyn_scale(tn_lower *lw, kir_val dyn, int64_t k) {
    if (dyn == KIR_NONE || k == 1) return dyn;
    kir_aff size = kir_aff_const(k);
    kir_val by = lw->sized ? kir_index(lw->kb, &size) : kir_whole(lw->kb, k);
    return k == 0 ? KIR_NONE : kir_mul(lw->kb, dyn, by);
}

kir_aff tn_aff_add(tn_lower *lw, const kir_aff *a, const kir_aff *b) {
    kir_aff r = *a;
    r.c += b->c;
    for (int x = 0, axes = kir_axes(lw->kb); x < axes; x++)
        r.s[x] += b->s[x];
    r.dyn = tn_dyn_add(lw, a->dyn, b->dyn);
    return r;
}

kir_aff tn_aff_scale(tn_lower *lw, const kir_aff *a, int64_t k) {
    kir_aff r = *a;
    r.c *= k;
    for (int x = 0, axes = kir_axes(lw->kb); x < axes; x++)
        r.s[x] *= k;
    r.dyn = tn_dyn_scale(lw, a->dyn, k);
    return r;
}

kir_val tn_lower_at_masked(tn_lower *lw, const tn_node *node, const kir_aff *at, kir_val mask) {
    kir_val before = lw->mask;
    lw->mask = before == KIR_NONE ? mask : kir_and(lw->kb, before, mask);
    kir_val r = tn_lower_at(lw, node, at);
    lw->mask = before;
    return r;
}

bool tn_is_reduced(const tn_node *r, int d) {
    for (int64_t k = 0; k < r->i[0]; k++)
        if (r->i[1 + k] == d) return true;
    return r->i[0] == 0;
}

int tn_loops_over_dims(const tn_node *n, int64_t extent[TN_MAX_RANK]) {
    const tn_node *in = n->in[0];
    int count = 0;
    for (int d = 0; d < in->rank; d++)
        if (tn_is_reduced(n, d)) extent[count++] = in->shape[d];
    return count;
}

kir_val tn_lower_reduced(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    const tn_node *in = n->in[0];
    bool keepdim = n->rank == in->rank;
    kir_aff index[TN_MAX_RANK];
    int out = 0, loop = n->rank;
    for (int d = 0; d < in->rank; d++) {
        bool reduced = tn_is_reduced(n, d);
        index[d] = reduced ? at[loop++] : at[out];
        if (!reduced || keepdim) out++;
    }
    return tn_lower_at(lw, in, index);
}
