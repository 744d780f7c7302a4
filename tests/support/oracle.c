/* oracle.c — the eager interpreter of oracle.h.
 *
 * An operation takes its operands' elements out of memory in row-major order, as doubles or as 64-bit integers, works
 * on them and puts the results into new memory. Computing in double and rounding once to f32 gives the bits of f32
 * arithmetic (double has more than twice its bits) for + − · / and square roots; only fused
 * multiply-adds and curves are told apart. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kir/kir.h"
#include "kir/kir_math.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *must(void *p) {
    if (!p) abort(); /* a test without memory has nothing to say */
    return p;
}

static int64_t numel_of(const int64_t *shape, int rank) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= shape[d];
    return n;
}

int64_t oracle_numel(const oracle *x) { return numel_of(x->shape, x->rank); }

void oracle_free(oracle *x) {
    if (!x) return;
    if (--x->storage->refs == 0) free(x->storage);
    free(x);
}

static void set_contiguous(oracle *x) {
    int64_t step = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        x->stride[d] = step;
        step *= x->shape[d];
    }
}

static oracle *new_tensor(const int64_t *shape, int rank, tn_dtype dtype) {
    oracle *x = must(calloc(1, sizeof *x));
    x->dtype = dtype;
    x->rank = rank;
    if (rank > 0) memcpy(x->shape, shape, (size_t)rank * sizeof *shape);
    set_contiguous(x);
    size_t bytes = (size_t)oracle_numel(x) * tn_dtype_size(dtype);
    x->storage = must(calloc(1, sizeof *x->storage + bytes + 1));
    x->storage->refs = 1;
    x->storage->bytes = bytes;
    return x;
}

oracle *oracle_alias(const oracle *x) {
    oracle *v = must(malloc(sizeof *v));
    *v = *x;
    v->number = false;
    v->storage->refs++;
    return v;
}

bool oracle_same_storage(const oracle *x, const oracle *y) { return x->storage == y->storage; }

/* ---- walking ----------------------------------------------------------------------------------------------------- */

/* The places of a tensor's elements in row-major order, broadcast to a shape. */
typedef struct walk {
    int rank;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK], at[TN_MAX_RANK], place, left;
} walk;

static walk walk_over(const oracle *x, const int64_t *shape, int rank) {
    walk w = {.rank = rank, .place = x->offset, .left = numel_of(shape, rank)};
    for (int d = 0; d < rank; d++) {
        int own = d - (rank - x->rank);
        w.shape[d] = shape[d];
        w.stride[d] = own >= 0 && x->shape[own] == shape[d] ? x->stride[own] : 0;
    }
    return w;
}

static void walk_step(walk *w) {
    w->left--;
    for (int d = w->rank - 1; d >= 0; d--) {
        w->place += w->stride[d];
        if (++w->at[d] < w->shape[d]) return;
        w->place -= w->stride[d] * w->shape[d];
        w->at[d] = 0;
    }
}

void oracle_read(const oracle *x, void *out) {
    size_t size = tn_dtype_size(x->dtype);
    char *to = out;
    for (walk w = walk_over(x, x->shape, x->rank); w.left > 0; walk_step(&w), to += size)
        memcpy(to, x->storage->data + (size_t)w.place * size, size);
}

bool oracle_overlaps(const oracle *x) {
    size_t size = tn_dtype_size(x->dtype), places = x->storage->bytes / size;
    char *met = must(calloc(places + 1, 1));
    bool twice = false;
    for (walk w = walk_over(x, x->shape, x->rank); w.left > 0; walk_step(&w))
        twice |= met[w.place]++ != 0;
    free(met);
    return twice;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Row-major elements: d for floats, i for the others. */
typedef struct elements {
    int64_t count;
    double *d;
    int64_t *i;
} elements;

static bool is_float(tn_dtype t) { return tn_dtype_is_float(t); }

static elements new_elements(int64_t count, bool floats) {
    elements e = {.count = count};
    size_t bytes = (size_t)count * 8 + 8;
    if (floats)
        e.d = must(malloc(bytes));
    else
        e.i = must(malloc(bytes));
    return e;
}

static void free_elements(elements *e) {
    free(e->d);
    free(e->i);
}

static double load_float(tn_dtype t, const char *at) {
    if (t == TN_F64) {
        double v;
        memcpy(&v, at, sizeof v);
        return v;
    }
    if (t == TN_F32) {
        float v;
        memcpy(&v, at, sizeof v);
        return (double)v;
    }
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return (double)(t == TN_F16 ? kir_from_f16(bits) : kir_from_bf16(bits));
}

static int64_t load_integer(tn_dtype t, const char *at) {
    switch (t) {
    case TN_I64: {
        int64_t v;
        memcpy(&v, at, sizeof v);
        return v;
    }
    case TN_I32: {
        int32_t v;
        memcpy(&v, at, sizeof v);
        return v;
    }
    case TN_I8: return (int8_t)*at;
    default: return (uint8_t)*at;
    }
}

static void store_float(tn_dtype t, char *at, double v) {
    float f = (float)v;
    uint16_t bits = t == TN_F16 ? kir_to_f16(f) : kir_to_bf16(f);
    if (t == TN_F64)
        memcpy(at, &v, sizeof v);
    else if (t == TN_F32)
        memcpy(at, &f, sizeof f);
    else
        memcpy(at, &bits, sizeof bits);
}

static void store_integer(tn_dtype t, char *at, int64_t v) {
    if (t == TN_BOOL) v = v != 0;
    memcpy(at, &v, tn_dtype_size(t)); /* the low bytes come first on every machine that this runs on */
}

static elements elements_over(const oracle *x, const int64_t *shape, int rank) {
    elements e = new_elements(numel_of(shape, rank), is_float(x->dtype));
    size_t size = tn_dtype_size(x->dtype);
    int64_t n = 0;
    for (walk w = walk_over(x, shape, rank); w.left > 0; walk_step(&w), n++) {
        const char *at = x->storage->data + (size_t)w.place * size;
        if (e.d)
            e.d[n] = load_float(x->dtype, at);
        else
            e.i[n] = load_integer(x->dtype, at);
    }
    return e;
}

static elements elements_of(const oracle *x) { return elements_over(x, x->shape, x->rank); }

/* Stores e into x's places, as x's dtype; frees e. */
static void put_elements(oracle *x, elements e) {
    size_t size = tn_dtype_size(x->dtype);
    int64_t n = 0;
    for (walk w = walk_over(x, x->shape, x->rank); w.left > 0; walk_step(&w), n++) {
        char *at = x->storage->data + (size_t)w.place * size;
        if (e.d)
            store_float(x->dtype, at, e.d[n]);
        else
            store_integer(x->dtype, at, e.i[n]);
    }
    free_elements(&e);
}

static oracle *from_elements(elements e, const int64_t *shape, int rank, tn_dtype dtype) {
    oracle *x = new_tensor(shape, rank, dtype);
    put_elements(x, e);
    return x;
}

double oracle_greatest(const oracle *x) {
    if (!is_float(x->dtype)) return 0;
    elements e = elements_of(x);
    double most = 0;
    for (int64_t n = 0; n < e.count; n++) {
        double size = isfinite(e.d[n]) ? fabs(e.d[n]) : (double)INFINITY;
        if (size > most) most = size;
    }
    free_elements(&e);
    return most;
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */

/* Truncates and saturates; NaN gives 0. What is narrower than 32 bits is a 32-bit integer first, then its low bits. */
static int64_t to_integer(double v, tn_dtype t) {
    bool wide = t == TN_I64;
    double limit = wide ? 0x1p63 : 0x1p31;
    if (v != v) return 0;
    if (v >= limit) return wide ? INT64_MAX : INT32_MAX;
    if (v <= -limit) return wide ? INT64_MIN : INT32_MIN;
    return (int64_t)v;
}

static double rounded_to(tn_dtype t, double v) {
    char room[8];
    store_float(t, room, v);
    return load_float(t, room);
}

static int64_t wrapped_to(tn_dtype t, int64_t v) {
    char room[8] = {0};
    store_integer(t, room, v);
    return load_integer(t, room);
}

/* An integer becomes an f32 in one rounding, not by way of f64. */
static double float_of_integer(tn_dtype t, int64_t v) {
    return t == TN_F64 ? (double)v : rounded_to(t, (double)(float)v);
}

static elements cast_elements(elements e, tn_dtype from, tn_dtype to) {
    if (from == to) return e;
    elements r = new_elements(e.count, is_float(to));
    for (int64_t n = 0; n < e.count; n++) {
        if (e.d && r.d)
            r.d[n] = rounded_to(to, e.d[n]);
        else if (e.d)
            r.i[n] = to == TN_BOOL ? e.d[n] != 0 : wrapped_to(to, to_integer(e.d[n], to));
        else if (r.d)
            r.d[n] = float_of_integer(to, e.i[n]);
        else
            r.i[n] = wrapped_to(to, e.i[n]);
    }
    free_elements(&e);
    return r;
}

/* x, broadcast to a shape, as another dtype. */
static elements operand(const oracle *x, const int64_t *shape, int rank, tn_dtype dtype) {
    elements e = elements_over(x, shape, rank);
    if (!x->number || dtype == TN_F32) return cast_elements(e, x->dtype, dtype);
    for (int64_t n = 0; n < e.count; n++)
        e.d[n] = x->value;
    return cast_elements(e, TN_F64, dtype);
}

/* torch.promote_types */
static tn_dtype promote_types(tn_dtype a, tn_dtype b) {
    static const tn_dtype integers[] = {TN_BOOL, TN_U8, TN_I8, TN_I32, TN_I64};
    static const tn_dtype floats[] = {TN_F16, TN_F32, TN_F64};
    int ia = -1, ib = -1, fa = -1, fb = -1;
    for (int k = 0; k < 5; k++) {
        if (integers[k] == a) ia = k;
        if (integers[k] == b) ib = k;
    }
    for (int k = 0; k < 3; k++) {
        if (floats[k] == a) fa = k;
        if (floats[k] == b) fb = k;
    }
    if (fa >= 0 || fb >= 0) return floats[fa > fb ? fa : fb];
    if (ia + ib == 3 && ia > 0 && ib > 0) return TN_I16; /* u8 with i8 */
    return integers[ia > ib ? ia : ib];
}

static bool raises(tn_dtype higher, tn_dtype lower) {
    if (is_float(higher)) return false;
    return higher == TN_BOOL || is_float(lower);
}

/* torch.result_type: tensors with dimensions, then those without, then numbers; the lower one counts only when it is of
 * a higher category. */
static tn_dtype result_type(const oracle *x, const oracle *y) {
    int a = x->number ? 0 : x->rank > 0 ? 2 : 1;
    int b = y->number ? 0 : y->rank > 0 ? 2 : 1;
    if (a == b) return promote_types(x->dtype, y->dtype);
    const oracle *higher = a > b ? x : y, *lower = a > b ? y : x;
    return raises(higher->dtype, lower->dtype) ? promote_types(higher->dtype, lower->dtype) : higher->dtype;
}

oracle *oracle_cast(const oracle *x, tn_dtype dtype) {
    return from_elements(cast_elements(elements_of(x), x->dtype, dtype), x->shape, x->rank, dtype);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

oracle *oracle_data(const void *data, const int64_t *shape, int rank, tn_dtype dtype) {
    oracle *x = new_tensor(shape, rank, dtype);
    if (x->storage->bytes) memcpy(x->storage->data, data, x->storage->bytes);
    return x;
}

oracle *oracle_full(const int64_t *shape, int rank, double v, tn_dtype dtype) {
    elements e = new_elements(numel_of(shape, rank), true);
    for (int64_t n = 0; n < e.count; n++)
        e.d[n] = v;
    return from_elements(cast_elements(e, TN_F64, dtype), shape, rank, dtype);
}

oracle *oracle_number(double v) {
    oracle *x = oracle_full(NULL, 0, v, TN_F32);
    x->number = true;
    x->value = v;
    return x;
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

static double unary_float(oracle_unary_op op, double v, bool f32) {
    switch (op) {
    case ORACLE_NEG: return -v;
    case ORACLE_ABS: return fabs(v);
    case ORACLE_SQRT: return sqrt(v);
    case ORACLE_EXP: return f32 ? (double)kir_exp_f32((float)v) : kir_exp_f64(v);
    case ORACLE_TANH: return f32 ? (double)kir_tanh_f32((float)v) : kir_tanh_f64(v);
    default: return floor(v);
    }
}

static int64_t unary_integer(oracle_unary_op op, int64_t v, tn_dtype t) {
    switch (op) {
    case ORACLE_NEG: return (int64_t)(0 - (uint64_t)v);
    case ORACLE_ABS: return v < 0 ? (int64_t)(0 - (uint64_t)v) : v;
    case ORACLE_NOT: return t == TN_BOOL ? !v : ~v;
    default: return v;
    }
}

oracle *oracle_unary(oracle_unary_op op, const oracle *x) {
    bool curve = op == ORACLE_SQRT || op == ORACLE_EXP || op == ORACLE_TANH;
    bool bits = op == ORACLE_NOT;
    tn_dtype t = curve && !is_float(x->dtype) ? TN_F32 : x->dtype;
    if (bits ? is_float(t) : t == TN_BOOL) return NULL;
    elements e = cast_elements(elements_of(x), x->dtype, t);
    for (int64_t n = 0; n < e.count; n++) {
        if (e.d)
            e.d[n] = unary_float(op, e.d[n], t != TN_F64);
        else
            e.i[n] = unary_integer(op, e.i[n], t);
    }
    return from_elements(e, x->shape, x->rank, t);
}

static double binary_float(oracle_binary_op op, double a, double b) {
    switch (op) {
    case ORACLE_ADD: return a + b;
    case ORACLE_SUB: return a - b;
    case ORACLE_MUL: return a * b;
    case ORACLE_DIV: return a / b;
    case ORACLE_MAX: return a > b || a != a ? a : b;
    case ORACLE_MIN: return a < b || a != a ? a : b;
    case ORACLE_EQ: return a == b;
    case ORACLE_LT: return a < b;
    default: return a <= b;
    }
}

static int64_t binary_integer(oracle_binary_op op, int64_t a, int64_t b, bool bools) {
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    switch (op) {
    case ORACLE_ADD: return bools ? a | b : (int64_t)(ua + ub);
    case ORACLE_SUB: return (int64_t)(ua - ub);
    case ORACLE_MUL: return (int64_t)(ua * ub);
    case ORACLE_MAX: return a > b ? a : b;
    case ORACLE_MIN: return a < b ? a : b;
    case ORACLE_EQ: return a == b;
    case ORACLE_LT: return a < b;
    case ORACLE_LE: return a <= b;
    case ORACLE_AND: return a & b;
    case ORACLE_OR: return a | b;
    default: return a ^ b;
    }
}

enum { MOST_ELEMENTS = 1 << 18 }; /* larger results are refused: nobody wants to wait for them */

static bool broadcast(const oracle *const *x, int count, int64_t *shape, int *rank) {
    *rank = 0;
    for (int k = 0; k < count; k++)
        if (x[k]->rank > *rank) *rank = x[k]->rank;
    for (int d = 0; d < *rank; d++)
        shape[d] = 1;
    for (int k = 0; k < count; k++)
        for (int d = 0; d < x[k]->rank; d++) {
            int64_t have = x[k]->shape[d], *to = &shape[*rank - x[k]->rank + d];
            if (have != *to && have != 1 && *to != 1) return false;
            if (have != 1) *to = have;
        }
    return numel_of(shape, *rank) <= MOST_ELEMENTS;
}

static bool compares(oracle_binary_op op) { return op == ORACLE_EQ || op == ORACLE_LT || op == ORACLE_LE; }

static bool possible(oracle_binary_op op, tn_dtype t) {
    if (op == ORACLE_SUB) return t != TN_BOOL;
    if (op == ORACLE_AND || op == ORACLE_OR || op == ORACLE_XOR) return !is_float(t);
    return true;
}

oracle *oracle_binary(oracle_binary_op op, const oracle *x, const oracle *y) {
    int64_t shape[TN_MAX_RANK];
    int rank;
    if (!broadcast((const oracle *[]){x, y}, 2, shape, &rank)) return NULL;
    tn_dtype t = result_type(x, y);
    if (op == ORACLE_DIV && !is_float(t)) t = TN_F32;
    if (!possible(op, t)) return NULL;
    elements a = operand(x, shape, rank, t);
    elements b = operand(y, shape, rank, t);
    for (int64_t n = 0; n < a.count; n++) {
        if (a.d)
            a.d[n] = binary_float(op, a.d[n], b.d[n]);
        else
            a.i[n] = binary_integer(op, a.i[n], b.i[n], t == TN_BOOL);
    }
    free_elements(&b);
    if (!compares(op)) return from_elements(a, shape, rank, t);
    return from_elements(cast_elements(a, a.d ? TN_F64 : TN_I64, TN_BOOL), shape, rank, TN_BOOL);
}

oracle *oracle_where(const oracle *condition, const oracle *x, const oracle *y) {
    int64_t shape[TN_MAX_RANK];
    int rank;
    if (condition->dtype != TN_BOOL || !broadcast((const oracle *[]){condition, x, y}, 3, shape, &rank)) return NULL;
    tn_dtype t = result_type(x, y);
    elements c = elements_over(condition, shape, rank);
    elements a = operand(x, shape, rank, t);
    elements b = operand(y, shape, rank, t);
    for (int64_t n = 0; n < a.count; n++) {
        if (c.i[n]) continue;
        if (a.d)
            a.d[n] = b.d[n];
        else
            a.i[n] = b.i[n];
    }
    free_elements(&b);
    free_elements(&c);
    return from_elements(a, shape, rank, t);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static bool known_dim(int64_t *dim, int rank) {
    int64_t r = rank > 0 ? rank : 1;
    if (*dim < -r || *dim >= r) return false;
    if (*dim < 0) *dim += r;
    return true;
}

static double combine_float(oracle_reduce_op op, double a, double b, tn_dtype t) {
    if (op == ORACLE_SUM) return rounded_to(t == TN_F64 ? TN_F64 : TN_F32, a + b);
    return binary_float(op == ORACLE_AMAX ? ORACLE_MAX : ORACLE_MIN, a, b);
}

/* 64 lanes in turn; after each block of KIR_BLOCK the lanes are folded by halves and
 * the block joins those before it. */
static double reduce_floats(oracle_reduce_op op, const double *v, int64_t count, tn_dtype t) {
    double first = op == ORACLE_SUM ? 0 : op == ORACLE_AMAX ? -(double)INFINITY : (double)INFINITY, total = first;
    for (int64_t from = 0; from < count; from += KIR_BLOCK) {
        double lane[KIR_LANES];
        int64_t size = count - from < KIR_BLOCK ? count - from : KIR_BLOCK;
        for (int k = 0; k < KIR_LANES; k++)
            lane[k] = first;
        for (int64_t k = 0; k < size; k++)
            lane[k % KIR_LANES] = combine_float(op, lane[k % KIR_LANES], v[from + k], t);
        for (int half = KIR_LANES / 2; half > 0; half /= 2)
            for (int k = 0; k < half; k++)
                lane[k] = combine_float(op, lane[k], lane[k + half], t);
        total = from == 0 ? lane[0] : combine_float(op, total, lane[0], t);
    }
    return total;
}

static int64_t reduce_integers(oracle_reduce_op op, const int64_t *v, int64_t count) {
    int64_t total = op == ORACLE_SUM ? 0 : v[0];
    for (int64_t k = 0; k < count; k++) {
        if (op == ORACLE_SUM)
            total = (int64_t)((uint64_t)total + (uint64_t)v[k]);
        else if (op == ORACLE_AMAX ? v[k] > total : v[k] < total)
            total = v[k];
    }
    return total;
}

/* The first of the greatest; a NaN is the greatest of all. */
static int64_t place_of_greatest(const elements *e, int64_t from, int64_t count) {
    int64_t best = 0;
    for (int64_t k = 1; k < count; k++) {
        bool more = e->i ? e->i[from + k] > e->i[from + best]
                         : e->d[from + k] > e->d[from + best] || e->d[from + k] != e->d[from + k];
        if (e->d && e->d[from + best] != e->d[from + best]) more = false;
        if (more) best = k;
    }
    return best;
}

/* x with its reduced dims last, in their order, as a view; *inner is their product. */
static oracle *reduced_last(const oracle *x, const bool *reduced, int64_t *inner) {
    oracle *v = oracle_alias(x);
    int to = 0;
    *inner = 1;
    for (int pass = 0; pass < 2; pass++)
        for (int d = 0; d < x->rank; d++) {
            if (reduced[d] != (pass == 1)) continue;
            v->shape[to] = x->shape[d];
            v->stride[to++] = x->stride[d];
            if (pass == 1) *inner *= x->shape[d];
        }
    return v;
}

static elements reduce_rows(oracle_reduce_op op, const elements *e, int64_t rows, int64_t inner, tn_dtype t) {
    elements r = new_elements(rows, e->d && op != ORACLE_ARGMAX);
    for (int64_t row = 0; row < rows; row++) {
        if (op == ORACLE_ARGMAX)
            r.i[row] = place_of_greatest(e, row * inner, inner);
        else if (e->d)
            r.d[row] = reduce_floats(op, e->d + row * inner, inner, t);
        else
            r.i[row] = reduce_integers(op, e->i + row * inner, inner);
    }
    return r;
}

oracle *oracle_reduce(oracle_reduce_op op, const oracle *x, const int64_t *dims, int count, bool keepdim) {
    bool reduced[TN_MAX_RANK];
    for (int d = 0; d < x->rank; d++)
        reduced[d] = count == 0;
    for (int k = 0; k < count; k++) {
        int64_t dim = dims[k];
        if (!known_dim(&dim, x->rank) || (x->rank > 0 && reduced[dim])) return NULL;
        if (x->rank > 0) reduced[dim] = true;
    }
    int64_t shape[TN_MAX_RANK], inner;
    int rank = 0;
    for (int d = 0; d < x->rank; d++)
        if (!reduced[d] || keepdim) shape[rank++] = reduced[d] ? 1 : x->shape[d];
    oracle *v = reduced_last(x, reduced, &inner);
    elements e = elements_of(v);
    oracle_free(v);
    tn_dtype t = op == ORACLE_ARGMAX || (op == ORACLE_SUM && !is_float(x->dtype)) ? TN_I64 : x->dtype;
    oracle *r = NULL;
    if (op == ORACLE_SUM || inner > 0)
        r = from_elements(reduce_rows(op, &e, numel_of(shape, rank), inner, t), shape, rank, t);
    free_elements(&e);
    return r;
}

/* Adds to each block of a row, which has its running sum, the sum of the blocks before it. */
static void add_blocks_before(double *row, int64_t length, int64_t step, int64_t block) {
    double before = 0;
    for (int64_t at = 0; at < length; at += block) {
        int64_t end = at + block < length ? at + block : length;
        double sum = row[(end - 1) * step];
        for (int64_t n = at; n < end; n++)
            row[n * step] = combine_float(ORACLE_SUM, row[n * step], before, TN_F32);
        before = combine_float(ORACLE_SUM, before, sum, TN_F32);
    }
}

oracle *oracle_cumsum(const oracle *x, int64_t dim) {
    if (x->rank == 0 || !known_dim(&dim, x->rank)) return NULL;
    tn_dtype t = is_float(x->dtype) ? x->dtype : TN_I64;
    elements e = cast_elements(elements_of(x), x->dtype, t);
    int64_t behind = numel_of(x->shape + dim + 1, x->rank - 1 - (int)dim), length = x->shape[dim];
    bool in_blocks = t == TN_F32 && length > 4096 && x->rank < TN_MAX_RANK; /* docs/numerics.md */
    int64_t block = in_blocks ? 512 : length;
    for (int64_t n = 0; n < e.count; n++) {
        bool begins = n / behind % length % block == 0;
        if (e.d)
            e.d[n] = combine_float(ORACLE_SUM, begins ? 0 : e.d[n - behind], e.d[n], t);
        else
            e.i[n] = (int64_t)((uint64_t)(begins ? 0 : e.i[n - behind]) + (uint64_t)e.i[n]);
    }
    for (int64_t n = 0; in_blocks && n < e.count; n++)
        if (n / behind % length == 0) add_blocks_before(e.d + n, length, behind, block);
    return from_elements(e, x->shape, x->rank, t);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Chains of KIR_KSUM fused multiply-adds, each begun at 0, added in order. */
static double product_element(const double *a, const double *b, int64_t k, int64_t step, tn_dtype t) {
    double total = 0, chain = 0;
    for (int64_t n = 0; n < k; n++) {
        if (n % KIR_KSUM == 0 && n > 0) {
            total = n == KIR_KSUM ? chain : combine_float(ORACLE_SUM, total, chain, t);
            chain = 0;
        }
        chain =
            t == TN_F64 ? fma(a[n], b[n * step], chain) : (double)fmaf((float)a[n], (float)b[n * step], (float)chain);
    }
    return k <= KIR_KSUM ? chain : combine_float(ORACLE_SUM, total, chain, t);
}

static int64_t product_integer(const int64_t *a, const int64_t *b, int64_t k, int64_t step) {
    uint64_t total = 0;
    for (int64_t n = 0; n < k; n++)
        total += (uint64_t)a[n] * (uint64_t)b[n * step];
    return (int64_t)total;
}

static void product(elements *c, const elements *a, const elements *b, int64_t batch, const int64_t size[3],
                    tn_dtype t) {
    int64_t m = size[0], k = size[1], n = size[2];
    for (int64_t at = 0; at < batch * m * n; at++) {
        int64_t left = at / n * k, right = at / (m * n) * k * n + at % n;
        if (c->d)
            c->d[at] = product_element(a->d + left, b->d + right, k, n, t);
        else
            c->i[at] = product_integer(a->i + left, b->i + right, k, n);
    }
}

static oracle batch_of(const oracle *x) {
    oracle v = *x;
    v.rank -= 2;
    return v;
}

oracle *oracle_matmul(const oracle *x, const oracle *y) {
    if (x->rank < 2 || y->rank < 2 || x->dtype != y->dtype || x->dtype == TN_BOOL) return NULL;
    int64_t m = x->shape[x->rank - 2], k = x->shape[x->rank - 1], n = y->shape[y->rank - 1], shape[TN_MAX_RANK];
    int rank;
    oracle bx = batch_of(x), by = batch_of(y);
    if (y->shape[y->rank - 2] != k || !broadcast((const oracle *[]){&bx, &by}, 2, shape, &rank)) return NULL;
    int64_t batch = numel_of(shape, rank);
    if (batch * m * n > MOST_ELEMENTS || batch * m * k > MOST_ELEMENTS || batch * k * n > MOST_ELEMENTS) return NULL;
    shape[rank] = m;
    shape[rank + 1] = k;
    elements a = elements_over(x, shape, rank + 2);
    shape[rank] = k;
    shape[rank + 1] = n;
    elements b = elements_over(y, shape, rank + 2);
    shape[rank] = m;
    elements c = new_elements(batch * m * n, a.d != NULL);
    product(&c, &a, &b, batch, (int64_t[]){m, k, n}, x->dtype);
    free_elements(&a);
    free_elements(&b);
    return from_elements(c, shape, rank + 2, x->dtype);
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

static int64_t place_at(const oracle *x, int64_t number) {
    int64_t place = x->offset;
    for (int d = x->rank - 1; d >= 0; d--) {
        place += number % x->shape[d] * x->stride[d];
        number /= x->shape[d];
    }
    return place;
}

static bool fill_in(const oracle *x, const int64_t *shape, int rank, int64_t *full) {
    int64_t known = 1, open = -1, all = oracle_numel(x);
    for (int d = 0; d < rank; d++) {
        full[d] = shape[d];
        if (shape[d] == -1 && open < 0)
            open = d;
        else
            known *= shape[d];
    }
    if (open >= 0 && (known <= 0 || all % known != 0)) return false;
    if (open >= 0) full[open] = all / known;
    return numel_of(full, rank) == all;
}

/* A shape can be seen in x when the places of its elements are affine in its indices:
 * read the strides off, then check. */
oracle *oracle_view(const oracle *x, const int64_t *shape, int rank) {
    int64_t full[TN_MAX_RANK], behind = 1;
    if (!fill_in(x, shape, rank, full)) return NULL;
    oracle *v = oracle_alias(x);
    v->rank = rank;
    if (rank > 0) memcpy(v->shape, full, (size_t)rank * sizeof *full);
    set_contiguous(v);
    if (oracle_numel(x) == 0) return v;
    for (int d = rank - 1; d >= 0; d--) {
        v->stride[d] = full[d] > 1 ? place_at(x, behind) - x->offset : 1;
        behind *= full[d];
    }
    walk old = walk_over(x, x->shape, x->rank), new = walk_over(v, v->shape, v->rank);
    while (old.left > 0 && old.place == new.place) {
        walk_step(&old);
        walk_step(&new);
    }
    if (old.left == 0) return v;
    oracle_free(v);
    return NULL;
}

oracle *oracle_reshape(const oracle *x, const int64_t *shape, int rank) {
    oracle *v = oracle_view(x, shape, rank);
    if (v) return v;
    oracle *copy = oracle_contiguous(x);
    v = oracle_view(copy, shape, rank);
    oracle_free(copy);
    return v;
}

oracle *oracle_permute(const oracle *x, const int64_t *dims, int count) {
    if (count != x->rank) return NULL;
    oracle *v = oracle_alias(x);
    for (int d = 0; d < count; d++) {
        int64_t from = dims[d];
        if (!known_dim(&from, x->rank)) {
            oracle_free(v);
            return NULL;
        }
        v->shape[d] = x->shape[from];
        v->stride[d] = x->stride[from];
    }
    return v;
}

oracle *oracle_expand(const oracle *x, const int64_t *shape, int rank) {
    if (rank < x->rank || rank > TN_MAX_RANK) return NULL;
    oracle *v = oracle_alias(x);
    v->rank = rank;
    for (int d = 0; d < rank; d++) {
        int own = d - (rank - x->rank);
        int64_t have = own >= 0 ? x->shape[own] : 1;
        v->shape[d] = shape[d] == -1 && own >= 0 ? have : shape[d];
        v->stride[d] = own >= 0 && have == v->shape[d] ? x->stride[own] : 0;
        if (v->shape[d] == have || (have == 1 && v->shape[d] >= 0)) continue;
        oracle_free(v);
        return NULL;
    }
    return v;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

/* Python's x[start:stop:step]; INT64_MAX and INT64_MIN as stop mean that none is given. */
oracle *oracle_slice(const oracle *x, int64_t dim, int64_t start, int64_t stop, int64_t step) {
    if (x->rank == 0 || !known_dim(&dim, x->rank) || step == 0) return NULL;
    int64_t size = x->shape[dim], count = 0;
    bool open = step > 0 ? stop == INT64_MAX : stop == INT64_MIN;
    if (start < 0 && start != INT64_MIN) start += size;
    if (stop < 0 && !open) stop += size;
    start = step > 0 ? clamp(start, 0, size) : clamp(start, -1, size - 1);
    stop = step > 0 ? clamp(stop, 0, size) : open ? -1 : clamp(stop, -1, size - 1);
    for (int64_t k = start; step > 0 ? k < stop : k > stop; k += step)
        count++;
    oracle *v = oracle_alias(x);
    if (count > 0) v->offset += start * x->stride[dim];
    v->shape[dim] = count;
    v->stride[dim] *= step;
    return v;
}

static void drop_dim(oracle *v, int dim) {
    v->rank--;
    for (int d = dim; d < v->rank; d++) {
        v->shape[d] = v->shape[d + 1];
        v->stride[d] = v->stride[d + 1];
    }
}

oracle *oracle_select(const oracle *x, int64_t dim, int64_t index) {
    if (x->rank == 0 || !known_dim(&dim, x->rank)) return NULL;
    if (index < 0) index += x->shape[dim];
    if (index < 0 || index >= x->shape[dim]) return NULL;
    oracle *v = oracle_alias(x);
    v->offset += index * x->stride[dim];
    drop_dim(v, (int)dim);
    return v;
}

oracle *oracle_squeeze(const oracle *x, const int64_t *dims, int count) {
    bool named[TN_MAX_RANK] = {false};
    for (int k = 0; k < count; k++) {
        int64_t dim = dims[k];
        if (!known_dim(&dim, x->rank)) return NULL;
        named[dim] = true;
    }
    oracle *v = oracle_alias(x);
    for (int d = x->rank - 1; d >= 0; d--)
        if ((count == 0 || named[d]) && x->shape[d] == 1) drop_dim(v, d);
    return v;
}

oracle *oracle_unsqueeze(const oracle *x, int64_t dim) {
    if (x->rank == TN_MAX_RANK || !known_dim(&dim, x->rank + 1)) return NULL;
    oracle *v = oracle_alias(x);
    for (int d = v->rank++; d > dim; d--) {
        v->shape[d] = v->shape[d - 1];
        v->stride[d] = v->stride[d - 1];
    }
    v->shape[dim] = 1;
    v->stride[dim] = 1;
    return v;
}

static bool is_contiguous(const oracle *x) {
    int64_t expected = 1;
    if ((size_t)oracle_numel(x) * tn_dtype_size(x->dtype) != x->storage->bytes || x->offset != 0) return false;
    for (int d = x->rank - 1; d >= 0; d--) {
        if (x->shape[d] != 1 && x->stride[d] != expected) return false;
        expected *= x->shape[d];
    }
    return true;
}

oracle *oracle_as_strided(const oracle *x, const int64_t *shape, const int64_t *stride, int rank, int64_t offset) {
    if (!is_contiguous(x)) return NULL;
    int64_t low = offset, high = offset;
    for (int d = 0; d < rank; d++) {
        if (stride[d] < 0)
            low += (shape[d] - 1) * stride[d];
        else
            high += (shape[d] - 1) * stride[d];
    }
    if (numel_of(shape, rank) > 0 && (low < 0 || high >= oracle_numel(x))) return NULL;
    oracle *v = oracle_alias(x);
    v->rank = rank;
    v->offset = offset;
    if (rank > 0) memcpy(v->shape, shape, (size_t)rank * sizeof *shape);
    if (rank > 0) memcpy(v->stride, stride, (size_t)rank * sizeof *stride);
    return v;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

oracle *oracle_contiguous(const oracle *x) { return from_elements(elements_of(x), x->shape, x->rank, x->dtype); }

bool oracle_write(oracle *dst, const oracle *src) {
    oracle *wide = oracle_expand(src, dst->shape, dst->rank);
    if (!wide) return false;
    put_elements(dst, operand(src, dst->shape, dst->rank, dst->dtype));
    oracle_free(wide);
    return true;
}

/* Writes src into the part of dst that begins at `start` along dim. */
static void write_part(oracle *dst, int64_t dim, int64_t start, const oracle *src) {
    oracle *part = oracle_slice(dst, dim, start, start + src->shape[dim], 1);
    oracle_write(part, src);
    oracle_free(part);
}

oracle *oracle_cat(const oracle *const *parts, int count, int64_t dim) {
    const oracle *x = parts[0];
    if (x->rank == 0 || !known_dim(&dim, x->rank)) return NULL;
    int64_t shape[TN_MAX_RANK], start = 0;
    tn_dtype t = x->dtype;
    memcpy(shape, x->shape, sizeof shape);
    for (int k = 1; k < count; k++) {
        const oracle *y = parts[k];
        if (y->rank != x->rank) return NULL;
        for (int d = 0; d < x->rank; d++)
            if (d != dim && y->shape[d] != x->shape[d]) return NULL;
        shape[dim] += y->shape[dim];
        t = promote_types(t, y->dtype);
    }
    oracle *r = new_tensor(shape, x->rank, t);
    for (int k = 0; k < count; k++) {
        write_part(r, dim, start, parts[k]);
        start += parts[k]->shape[dim];
    }
    return r;
}

oracle *oracle_pad(const oracle *x, const int64_t *pads, int count, double value) {
    int64_t shape[TN_MAX_RANK], index[TN_MAX_RANK];
    if (count % 2 || count > 2 * x->rank) return NULL;
    for (int d = 0; d < x->rank; d++) {
        int k = 2 * (x->rank - 1 - d);
        shape[d] = x->shape[d] + (k < count ? pads[k] + pads[k + 1] : 0);
        if (shape[d] < 0) return NULL;
    }
    oracle *r = oracle_full(shape, x->rank, value, x->dtype);
    size_t size = tn_dtype_size(x->dtype);
    for (walk w = walk_over(x, x->shape, x->rank); w.left > 0; walk_step(&w)) {
        int64_t to = 0;
        bool inside = true;
        for (int d = 0; d < x->rank; d++) {
            int k = 2 * (x->rank - 1 - d);
            index[d] = w.at[d] + (k < count ? pads[k] : 0);
            inside &= index[d] >= 0 && index[d] < shape[d];
            to += index[d] * r->stride[d];
        }
        if (inside) memcpy(r->storage->data + (size_t)to * size, x->storage->data + (size_t)w.place * size, size);
    }
    return r;
}

oracle *oracle_gather(const oracle *x, int64_t dim, const oracle *index) {
    if (x->rank == 0 || index->rank != x->rank || !known_dim(&dim, x->rank)) return NULL;
    if (is_float(index->dtype) || index->dtype == TN_BOOL) return NULL;
    for (int d = 0; d < x->rank; d++)
        if (d != dim && index->shape[d] > x->shape[d]) return NULL;
    oracle *r = oracle_full(index->shape, index->rank, is_float(x->dtype) ? (double)NAN : 0, x->dtype);
    elements to = elements_of(index);
    size_t size = tn_dtype_size(x->dtype);
    int64_t n = 0;
    for (walk w = walk_over(r, r->shape, r->rank); w.left > 0; walk_step(&w), n++) {
        int64_t from = x->offset;
        if (to.i[n] < 0 || to.i[n] >= x->shape[dim]) continue;
        for (int d = 0; d < x->rank; d++)
            from += (d == dim ? to.i[n] : w.at[d]) * x->stride[d];
        memcpy(r->storage->data + (size_t)w.place * size, x->storage->data + (size_t)from * size, size);
    }
    free_elements(&to);
    return r;
}

oracle *oracle_index_select(const oracle *x, int64_t dim, const oracle *index) {
    if (x->rank == 0 || index->rank > 1 || !known_dim(&dim, x->rank)) return NULL;
    oracle *wide = oracle_alias(index);
    int64_t shape[TN_MAX_RANK], count = oracle_numel(index);
    for (int d = 0; d < x->rank; d++) {
        shape[d] = d == dim ? count : x->shape[d];
        wide->shape[d] = shape[d];
        wide->stride[d] = d == dim && index->rank ? index->stride[0] : 0;
    }
    wide->rank = x->rank;
    oracle *r = oracle_gather(x, dim, wide);
    oracle_free(wide);
    return r;
}

oracle *oracle_index_add(const oracle *x, int64_t dim, const oracle *index, const oracle *src) {
    if (x->rank == 0 || src->rank != x->rank || index->rank != 1 || x->dtype != src->dtype || !known_dim(&dim, x->rank))
        return NULL;
    if (is_float(index->dtype) || index->dtype == TN_BOOL || x->dtype == TN_BOOL) return NULL;
    for (int d = 0; d < x->rank; d++)
        if (src->shape[d] != (d == dim ? index->shape[0] : x->shape[d])) return NULL;
    oracle *r = oracle_contiguous(x);
    elements to = elements_of(index);
    for (int64_t k = 0; k < to.count; k++) {
        oracle *row = oracle_select(src, dim, k), *own = to.i[k] >= 0 ? oracle_select(r, dim, to.i[k]) : NULL;
        oracle *sum = own ? oracle_binary(ORACLE_ADD, own, row) : NULL;
        if (sum) oracle_write(own, sum);
        oracle_free(row);
        oracle_free(own);
        oracle_free(sum);
    }
    free_elements(&to);
    return r;
}
