/* products.c — einsum and its kin, as batched matrix products; functions of matrices. */
#include <ctype.h>
#include <float.h>
#include <stdio.h>

#include "functions/common.h"

/* ---- einsum ------------------------------------------------------------------------------------------------------ */

enum { LABELS = 52, DOTS = LABELS, PLACES = LABELS + TN_MAX_RANK, MOST_OPERANDS = 32 };

typedef struct equation {
    int in[MOST_OPERANDS][TN_MAX_RANK + 1], in_count[MOST_OPERANDS]; /* labels; DOTS for "..." */
    int out[LABELS + 1], out_count;
    int seen[LABELS + 1]; /* how often each label occurs in the operands */
    int operands, dots;   /* dots: the most dims that "..." stands for */
} equation;

/* A tensor and, ascending, the place of each of its dims. Dims of one place belong to one label. */
typedef struct operand {
    const tn_tensor *t;
    int place[TN_MAX_RANK];
} operand;

static int label_of(char c) { return islower((unsigned char)c) ? c - 'a' + 26 : c - 'A'; }

/* One list of labels; returns where it ended, NULL for an error. Upper case comes first, as in PyTorch's order. */
static const char *read_labels(const char *p, int *labels, int most, int *count) {
    for (*count = 0; *p && *p != ',' && strncmp(p, "->", 2) != 0; p++) {
        if (*p == ' ') continue;
        if (*count == most) return NULL;
        if (strncmp(p, "...", 3) == 0)
            labels[(*count)++] = DOTS, p += 2;
        else if (isalpha((unsigned char)*p))
            labels[(*count)++] = label_of(*p);
        else
            return NULL;
    }
    return p;
}

static tn_tensor *read_equation(const char *text, int count, equation *e) {
    const char *p = text;
    if (!text || count < 1 || count > MOST_OPERANDS)
        return tn_failed(TN_ERR_ARGUMENT, "einsum: an equation and 1 to %d tensors are needed", MOST_OPERANDS);
    for (e->operands = 0;;) {
        if (e->operands == count)
            return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\" has more than %d operands", text, count);
        p = read_labels(p, e->in[e->operands], TN_MAX_RANK + 1, &e->in_count[e->operands]);
        if (!p)
            return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\": operand %d is not a list of at most %d letters", text,
                             e->operands, TN_MAX_RANK);
        e->operands++;
        if (*p != ',') break;
        p++;
    }
    if (e->operands != count)
        return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\" has %d operands, but %d tensors were passed", text,
                         e->operands, count);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < e->in_count[k]; i++)
            e->seen[e->in[k][i]]++;
    if (*p == '-') {
        p = read_labels(p + 2, e->out, TN_MAX_RANK + 1, &e->out_count);
        if (!p || *p)
            return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\": the result is not a list of at most %d letters", text,
                             TN_MAX_RANK);
        for (int i = 0; i < e->out_count; i++) {
            for (int j = 0; j < i; j++)
                if (e->out[j] == e->out[i])
                    return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\": a label occurs twice in the result", text);
            if (!e->seen[e->out[i]] && e->out[i] != DOTS)
                return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\": a label of the result is in no operand", text);
        }
        return NULL;
    }
    if (*p) return tn_failed(TN_ERR_ARGUMENT, "einsum: \"%s\" cannot be read from \"%s\" on", text, p);
    if (e->seen[DOTS]) e->out[e->out_count++] = DOTS;
    for (int l = 0; l < LABELS; l++)
        if (e->seen[l] == 1) e->out[e->out_count++] = l;
    return NULL;
}

/* Dims of "...", and the first place of each label: first those of the result in its order, then the summed labels in
 * the order in which they occur. */
static tn_tensor *place_labels(equation *e, tn_tensor *const *tensors, int *place, int *kept, int *places) {
    for (int k = 0; k < e->operands; k++) {
        int named = 0, dots = 0;
        for (int i = 0; i < e->in_count[k]; i++)
            e->in[k][i] == DOTS ? dots++ : named++;
        int rest = tn_rank(tensors[k]) - named;
        if (dots > 1 || rest < 0 || (!dots && rest))
            return tn_failed(TN_ERR_SHAPE, "einsum: operand %d has rank %d, but its labels stand for %d dims", k,
                             tn_rank(tensors[k]), named);
        if (dots && rest > e->dots) e->dots = rest;
    }
    for (int l = 0; l <= LABELS; l++)
        place[l] = -1;
    *places = 0;
    for (int k = -1; k < e->operands; k++) {
        const int *labels = k < 0 ? e->out : e->in[k];
        for (int i = 0; i < (k < 0 ? e->out_count : e->in_count[k]); i++)
            if (place[labels[i]] < 0) place[labels[i]] = *places, *places += labels[i] == DOTS ? e->dots : 1;
        if (k < 0) *kept = *places;
    }
    return NULL;
}

/* Operand k with its dims in the order of their places (of "..." the last dim is at the last place). */
static operand aligned(const equation *e, int k, const tn_tensor *x, const int *place) {
    operand y = {x, {0}};
    int places[TN_MAX_RANK], count = 0, dots = tn_rank(x), have[PLACES], at = 0;
    int64_t order[TN_MAX_RANK];
    for (int i = 0; i < e->in_count[k]; i++)
        dots -= e->in[k][i] != DOTS;
    for (int i = 0; i < e->in_count[k]; i++) {
        int l = e->in[k][i];
        for (int j = 0; j < (l == DOTS ? dots : 1); j++)
            places[count++] = l == DOTS ? place[DOTS] + e->dots - dots + j : place[l];
    }
    for (int p = 0; p < PLACES; p++)
        have[p] = -1;
    for (int d = 0; d < count; d++) {
        int p = places[d];
        if (have[p] < 0) {
            have[p] = d;
            continue;
        }
        if (tn_size(y.t, have[p]) != tn_size(y.t, d)) {
            y.t = tn_failed(TN_ERR_SHAPE, "einsum: operand %d repeats a label with extents %lld and %lld", k,
                            (long long)tn_size(y.t, have[p]), (long long)tn_size(y.t, d));
            return y;
        }
        y.t = tn_movedim(tn_diagonal(y.t, 0, have[p], d), -1, have[p]); /* the dim that was d is gone */
        memmove(places + d, places + d + 1, (size_t)(count - d - 1) * sizeof *places);
        count--, d--;
    }
    for (int p = 0; p < PLACES; p++)
        if (have[p] >= 0) y.place[at] = p, order[at++] = have[p];
    y.t = tn_permute(y.t, order, at);
    return y;
}

static int dim_at(const operand *x, int place) {
    for (int d = 0; d < tn_rank(x->t); d++)
        if (x->place[d] == place) return d;
    return -1;
}

static int64_t extent_at(const operand *x, int place) {
    int d = dim_at(x, place);
    return d < 0 ? 1 : tn_size(x->t, d);
}

/* Extents of one label must be equal, or 1. */
static tn_tensor *check_extents(const operand *x, int count, int places) {
    for (int p = 0; p < places; p++) {
        int64_t extent = 1;
        for (int k = 0; k < count; k++) {
            int64_t n = extent_at(&x[k], p);
            if (n == 1 || n == extent) continue;
            if (extent != 1)
                return tn_failed(TN_ERR_SHAPE, "einsum: a label has extents %lld and %lld", (long long)extent,
                                 (long long)n);
            extent = n;
        }
    }
    return NULL;
}

/* x without the places in `summed` at which y has an extent of 1; the other summed places keep their dims. */
static operand summed_alone(operand x, const operand *y, const bool *summed) {
    operand r = {x.t, {0}};
    int64_t dims[TN_MAX_RANK];
    int count = 0, rank = 0;
    for (int d = 0; d < tn_rank(x.t); d++)
        if (summed[x.place[d]] && (!y || extent_at(y, x.place[d]) == 1))
            dims[count++] = d;
        else
            r.place[rank++] = x.place[d];
    if (count) r.t = tn_cast(tn_sum(x.t, dims, count, false), tn_dtype_of(x.t));
    return r;
}

/* x as [`leads` batches, dims of kinds[1], dims of kinds[2]]; those of kinds[3] have extent 1. */
static tn_tensor *as_matrices(const operand *x, const int *kind, const int *kinds, const int64_t *size, int64_t *lead,
                              int leads) {
    int64_t order[TN_MAX_RANK];
    int at = 0;
    for (int k = 0; k < 4; k++)
        for (int d = 0; d < tn_rank(x->t); d++)
            if (kind[x->place[d]] == kinds[k]) order[at++] = d;
    lead[leads] = size[kinds[1]];
    lead[leads + 1] = size[kinds[2]];
    return tn_reshape(tn_permute(x->t, order, at), lead, leads + 2);
}

/* Σ x·y over the places in `summed`. Places that both have are batches, the others rows, columns and the length of one
 * batched product. */
static operand sum_of_products(operand x, operand y, const bool *summed, int places) {
    enum { BATCH, ROW, COLUMN, LENGTH, KINDS };
    int64_t back[TN_MAX_RANK], shape[TN_MAX_RANK], in_x[TN_MAX_RANK], in_y[TN_MAX_RANK], size[KINDS] = {1, 1, 1, 1};
    int64_t lead[TN_MAX_RANK + 2];
    int kind[PLACES], rank = 0, at = 0, leads = 0;
    operand r = {0}, whole = x;
    x = summed_alone(x, &y, summed);
    y = summed_alone(y, &whole, summed);
    for (int p = 0; p < places; p++) {
        int64_t a = extent_at(&x, p), b = extent_at(&y, p);
        kind[p] = summed[p] ? LENGTH : a != 1 && b != 1 ? BATCH : b == 1 ? ROW : COLUMN;
        size[kind[p]] *= a == 1 ? b : a;
        if (summed[p] || (dim_at(&x, p) < 0 && dim_at(&y, p) < 0)) continue;
        if (rank < TN_MAX_RANK) r.place[rank] = p, in_x[rank] = a, in_y[rank] = b;
        rank++;
    }
    if (rank > TN_MAX_RANK)
        r.t = tn_failed(TN_ERR_SHAPE, "einsum: a product has %d dims; at most %d are possible", rank, TN_MAX_RANK);
    else if (size[LENGTH] == 1)
        r.t = tn_mul(tn_reshape(x.t, in_x, rank), tn_reshape(y.t, in_y, rank));
    if (r.t) return r;
    for (int k = 0; k < LENGTH; k++)
        for (int d = 0; d < rank; d++)
            if (kind[r.place[d]] == k)
                shape[at] = in_x[d] == 1 ? in_y[d] : in_x[d], back[d] = at++, leads += k == BATCH;
    memcpy(lead, shape, (size_t)leads * sizeof *lead);
    if (leads > TN_MAX_RANK - 2) lead[0] = size[BATCH], leads = 1;
    tn_tensor *a = as_matrices(&x, kind, (int[]){BATCH, ROW, LENGTH, COLUMN}, size, lead, leads);
    tn_tensor *b = as_matrices(&y, kind, (int[]){BATCH, LENGTH, COLUMN, ROW}, size, lead, leads);
    r.t = tn_permute(tn_reshape(tn_matmul(a, b), shape, rank), back, rank);
    return r;
}

tn_tensor *(tn_einsum)(const char *text, tn_tensor *const *tensors, int count) {
    equation e = {0};
    int place[LABELS + 1], kept = 0, places = 0;
    operand x[MOST_OPERANDS], y = {0};
    if (!tensors) count = 0;
    for (int k = 0; k < count; k++)
        if (tn_status_of(tensors[k]) != TN_OK) return tn_contiguous(tensors[k]);
    TN_SCOPE;
    tn_tensor *error = read_equation(text, count, &e);
    if (!error) error = place_labels(&e, tensors, place, &kept, &places);
    for (int k = 0; k < count && !error; k++) {
        x[k] = aligned(&e, k, tensors[k], place);
        if (tn_status_of(x[k].t) != TN_OK) error = tn_contiguous(x[k].t);
    }
    if (!error) error = check_extents(x, count, places);
    if (error) return tn_keep(error);
    for (int k = 0; k < count; k++) {
        bool summed[PLACES];
        for (int p = 0; p < places; p++) {
            summed[p] = p >= kept;
            for (int j = k + 1; j < count; j++)
                summed[p] &= extent_at(&x[j], p) == 1;
        }
        y = k ? sum_of_products(y, x[k], summed, places) : count == 1 ? summed_alone(x[0], NULL, summed) : x[0];
    }
    return tn_keep(tn_contiguous(y.t));
}

/* ---- other products ---------------------------------------------------------------------------------------------- */

tn_tensor *(tn_tensordot)(const tn_tensor *x, const tn_tensor *y, const int64_t *dims_x, int dims_x_count,
                          const int64_t *dims_y, int dims_y_count) {
    char labels_x[] = "abcdefgh", labels_y[] = "ABCDEFGH", kept[2 * TN_MAX_RANK + 1] = "", text[64];
    _Static_assert(sizeof labels_x == TN_MAX_RANK + 1, "one label for each dim");
    bool used_x[TN_MAX_RANK] = {0}, used_y[TN_MAX_RANK] = {0};
    TN_FUNCTION("tensordot");
    tn_tensor *bad = refused2(x, y);
    if (bad) return tn_keep(bad);
    int rank_x = tn_rank(x), rank_y = tn_rank(y), at = 0;
    bool fits = dims_x_count == dims_y_count && (!dims_x_count || (dims_x && dims_y)) && dims_x_count >= 0 &&
                dims_x_count <= rank_x && dims_x_count <= rank_y;
    for (int k = 0; fits && k < dims_x_count; k++) {
        int64_t a = dim_of(x, dims_x[k]), b = dim_of(y, dims_y[k]);
        fits = a >= 0 && b >= 0 && !used_x[a] && !used_y[b] &&
               (tn_size(x, a) == tn_size(y, b) || tn_size(x, a) == 1 || tn_size(y, b) == 1); /* 1 is repeated */
        if (!fits) break;
        used_x[a] = used_y[b] = true;
        labels_y[b] = labels_x[a];
    }
    if (!fits || rank_x + rank_y - 2 * dims_x_count > TN_MAX_RANK)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "tensordot: the lists must name as many different dims of x and y, with "
                                               "equal extents, and leave at most 8 dims"));
    for (int d = 0; d < rank_x; d++)
        if (!used_x[d]) kept[at++] = labels_x[d];
    for (int d = 0; d < rank_y; d++)
        if (!used_y[d]) kept[at++] = labels_y[d];
    snprintf(text, sizeof text, "%.*s,%.*s->%s", rank_x, labels_x, rank_y, labels_y, kept);
    return tn_keep((tn_einsum)(text, (tn_tensor *[]){(tn_tensor *)(uintptr_t)x, (tn_tensor *)(uintptr_t)y}, 2));
}

tn_tensor *(tn_inner)(const tn_tensor *x, const tn_tensor *y) {
    TN_FUNCTION("inner");
    tn_tensor *bad = refused2(x, y);
    if (bad) return tn_keep(bad);
    if (!tn_rank(x) || !tn_rank(y)) return tn_keep(tn_mul(x, y));
    long long m = tn_size(x, -1), n = tn_size(y, -1);
    if (m == n) return tn_keep((tn_tensordot)(x, y, (int64_t[]){-1}, 1, (int64_t[]){-1}, 1));
    return tn_keep(tn_failed(TN_ERR_SHAPE, "inner: the last extents are %lld and %lld; they must be equal", m, n));
}

tn_tensor *(tn_kron)(const tn_tensor *x, const tn_tensor *y) {
    int64_t a[2 * TN_MAX_RANK], b[2 * TN_MAX_RANK], shape[TN_MAX_RANK];
    TN_FUNCTION("kron");
    tn_tensor *bad = refused2(x, y);
    if (bad) return tn_keep(bad);
    int rank = tn_rank(x) > tn_rank(y) ? tn_rank(x) : tn_rank(y), pairs = 0;
    for (int d = 0; d < rank; d++) {
        int64_t n = d < rank - tn_rank(x) ? 1 : tn_size(x, d - rank + tn_rank(x));
        int64_t m = d < rank - tn_rank(y) ? 1 : tn_size(y, d - rank + tn_rank(y));
        shape[d] = n * m;
        if (n != 1) a[pairs] = n, b[pairs++] = 1;
        if (m != 1) a[pairs] = 1, b[pairs++] = m;
    }
    if (pairs > TN_MAX_RANK)
        return tn_keep(
            tn_failed(TN_ERR_SHAPE, "kron: the product needs %d dims; at most %d are possible", pairs, TN_MAX_RANK));
    return tn_keep(tn_reshape(tn_mul(tn_reshape(x, a, pairs), tn_reshape(y, b, pairs)), shape, rank));
}

tn_tensor *(tn_linalg_cross)(const tn_tensor *x, const tn_tensor *y, int64_t dim) {
    TN_FUNCTION("linalg_cross");
    tn_tensor *bad = refused2(x, y);
    if (bad) return tn_keep(bad);
    int64_t at = dim_of(x, dim);
    if (tn_rank(x) != tn_rank(y) || !tn_rank(x) || at < 0 || tn_size(x, at) != 3 || tn_size(y, at) != 3)
        return tn_keep(tn_failed(TN_ERR_SHAPE,
                                 "linalg_cross: both tensors must have the same rank and extent 3 in dim %lld",
                                 (long long)dim));
    tn_tensor *once = tn_mul(tn_roll(x, (int64_t[]){-1}, 1, &at, 1), tn_roll(y, (int64_t[]){-2}, 1, &at, 1));
    tn_tensor *turned = tn_mul(tn_roll(x, (int64_t[]){-2}, 1, &at, 1), tn_roll(y, (int64_t[]){-1}, 1, &at, 1));
    return tn_keep(tn_sub(once, turned));
}

tn_tensor *(tn_bilinear)(const tn_tensor *x1, const tn_tensor *x2, const tn_tensor *weight, const tn_tensor *bias) {
    TN_FUNCTION("bilinear");
    tn_tensor *bad = refused2(x1, x2);
    if (!bad) bad = bias ? refused2(weight, bias) : refused(weight);
    if (bad) return tn_keep(bad);
    if (are_halves(x1, x2) && are_halves(x1, weight) && are_halves(x1, bias))
        return tn_keep(tn_cast((tn_bilinear)(in_f32(x1), in_f32(x2), in_f32(weight), in_f32(bias)), tn_dtype_of(x1)));
    bool fits = tn_rank(weight) == 3 && tn_rank(x1) && tn_rank(x1) == tn_rank(x2) &&
                tn_size(x1, -1) == tn_size(weight, 1) && tn_size(x2, -1) == tn_size(weight, 2);
    if (!fits)
        return tn_keep(tn_failed(TN_ERR_SHAPE, "bilinear: x1 [..., a], x2 [..., b] and weight [out, a, b] are needed"));
    tn_tensor *y = tn_einsum("...a,oab,...b->...o",
                             (tn_tensor *[]){tn_contiguous(x1), tn_contiguous(weight), tn_contiguous(x2)}, 3);
    return tn_keep(bias ? tn_add(y, bias) : y);
}

/* ---- functions of matrices --------------------------------------------------------------------------------------- */

static tn_tensor *not_square(const char *name, const tn_tensor *x) {
    if (tn_status_of(x) != TN_OK) return tn_contiguous(x);
    if (tn_rank(x) >= 2 && tn_size(x, -1) == tn_size(x, -2)) return NULL;
    return tn_failed(TN_ERR_SHAPE, "%s: square matrices [..., n, n] are needed", name);
}

tn_tensor *(tn_linalg_matrix_power)(const tn_tensor *x, int64_t n) {
    TN_FUNCTION("linalg_matrix_power");
    tn_tensor *bad = not_square("linalg_matrix_power", x), *y = NULL;
    if (bad) return tn_keep(bad);
    tn_tensor *square = n < 0 ? tn_linalg_inv(x) : tn_contiguous(x);
    for (uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n; left; left >>= 1) {
        if (left & 1) y = y ? tn_matmul(y, square) : square;
        if (left > 1) square = tn_matmul(square, square);
    }
    if (y) return tn_keep(tn_contiguous(y));
    /* x to the power of 0 depends on x, with a gradient of 0 */
    return tn_keep(tn_where(tn_zeros(NULL, 0, TN_BOOL), x, tn_eye(tn_size(x, -1), tn_size(x, -1), tn_dtype_of(x))));
}

/* x / 2^s with a 1-norm of at most 1/2, Taylor's series to degree 18, then s squarings of each matrix (those that need
 * fewer keep their value). */
tn_tensor *(tn_linalg_matrix_exp)(const tn_tensor *x) {
    enum { DEGREE = 18, MOST_SQUARINGS = 12 };
    TN_FUNCTION("linalg_matrix_exp");
    tn_tensor *bad = not_square("linalg_matrix_exp", x);
    if (bad) return tn_keep(bad);
    if (!is_float(x))
        return tn_keep(tn_failed(TN_ERR_DTYPE, "linalg_matrix_exp: the matrices must be of a floating point type"));
    if (tn_numel(x) == 0) return tn_keep(tn_contiguous(x));
    tn_tensor *one = tn_eye(tn_size(x, -1), tn_size(x, -1), tn_dtype_of(x));
    tn_tensor *size = tn_amax(sum_dim(tn_abs(tn_detach(x)), -2, true), (int64_t[]){-1}, 1, true);
    tn_tensor *doublings = tn_ceil(plus(tn_log2(tn_maximum(size, tn_scalar(0.25))), 1));
    tn_tensor *too_large = tn_gt(doublings, tn_scalar(MOST_SQUARINGS));
    doublings = tn_minimum(tn_maximum(doublings, tn_scalar(0)), tn_scalar(MOST_SQUARINGS));
    tn_tensor *small = tn_div(x, tn_exp2(doublings)), *y = tn_add(tn_div(small, tn_scalar(DEGREE)), one);
    for (int k = DEGREE - 1; k >= 1; k--)
        y = tn_add(tn_div(tn_matmul(small, y), tn_scalar(k)), one);
    for (int k = 0; k < MOST_SQUARINGS; k++)
        y = tn_where(tn_gt(doublings, tn_scalar(k)), tn_matmul(y, y), y);
    return tn_keep(tn_where(too_large, tn_scalar(NAN), y));
}

static double unit_of(const tn_tensor *x) { return tn_dtype_of(x) == TN_F64 ? DBL_EPSILON : (double)FLT_EPSILON; }

/* Singular values that count, as a mask. */
static tn_tensor *counting(const tn_tensor *x, const tn_tensor *s, double rtol) {
    int64_t m = tn_size(x, -2), n = tn_size(x, -1);
    if (rtol < 0) rtol = (double)(m > n ? m : n) * unit_of(s);
    return tn_gt(s, times(tn_amax(s, (int64_t[]){-1}, 1, true), rtol));
}

static tn_tensor *bad_rtol(const char *name, double rtol) {
    return isnan(rtol) ? tn_failed(TN_ERR_ARGUMENT, "%s: rtol is nan; it must be a number", name) : NULL;
}

static tn_tensor *not_matrix(const char *name, const tn_tensor *x) {
    if (tn_status_of(x) != TN_OK) return tn_contiguous(x);
    return tn_rank(x) >= 2 ? NULL : tn_failed(TN_ERR_SHAPE, "%s: matrices [..., m, n] are needed", name);
}

/* One step, from p, of an iteration whose fixed point is the pseudo-inverse. There its derivative by p is 0, so
 * that each step makes one more order of derivatives right, also where singular values are equal or 0. */
static tn_tensor *pinv_step(const tn_tensor *x, const tn_tensor *p) {
    int64_t m = tn_size(x, -2), n = tn_size(x, -1);
    tn_tensor *turned = tn_transpose(x, -2, -1), *back = tn_transpose(p, -2, -1);
    tn_tensor *xp = tn_matmul(x, p), *px = tn_matmul(p, x);
    tn_tensor *left = tn_matmul(turned, tn_sub(tn_eye(m, m, tn_dtype_of(x)), xp));
    tn_tensor *right = tn_matmul(tn_sub(tn_eye(n, n, tn_dtype_of(x)), px), turned);
    tn_tensor *own = tn_add(tn_matmul(px, p), tn_matmul(p, tn_matmul(back, left)));
    return tn_add(own, tn_matmul(tn_matmul(right, back), p));
}

/* The value is p's, the gradients are those of two steps: right up to the second derivative. */
static tn_tensor *with_pinv_gradients(const tn_tensor *x, tn_tensor *p) {
    if (!tn_requires_grad(x)) return p;
    tn_tensor *y = pinv_step(x, pinv_step(x, p));
    return tn_add(p, tn_sub(y, tn_detach(y)));
}

tn_tensor *(tn_linalg_pinv)(const tn_tensor *x, double rtol) {
    TN_FUNCTION("linalg_pinv");
    tn_tensor *bad = not_matrix("linalg_pinv", x), *u, *s, *vh;
    if (!bad) bad = bad_rtol("linalg_pinv", rtol);
    if (bad) return tn_keep(bad);
    if (tn_numel(x) == 0) return tn_keep(tn_contiguous(tn_transpose(x, -2, -1)));
    tn_linalg_svd(tn_detach(x), false, &u, &s, &vh);
    tn_tensor *kept = counting(x, s, rtol);
    tn_tensor *inverse = tn_where(kept, tn_reciprocal(tn_where(kept, s, tn_scalar(1))), tn_scalar(0));
    tn_tensor *left = tn_mul(tn_transpose(vh, -2, -1), tn_unsqueeze(inverse, -2));
    return tn_keep(with_pinv_gradients(x, tn_matmul(left, tn_transpose(u, -2, -1))));
}

static tn_tensor *bad_system(const tn_tensor *a, const tn_tensor *b) {
    tn_dtype types[] = {tn_dtype_of(a), tn_dtype_of(b)};
    if (types[0] != types[1] || (types[0] != TN_F32 && types[0] != TN_F64))
        return tn_failed(TN_ERR_DTYPE, "linalg_lstsq: a is %s and b is %s; both must be f32 or both f64 (tn_cast)",
                         tn_dtype_name(types[0]), tn_dtype_name(types[1]));
    int64_t rows[] = {tn_size(a, -2), tn_size(b, -2)};
    if (rows[0] == rows[1]) return NULL;
    return tn_failed(TN_ERR_SHAPE, "linalg_lstsq: a has %lld rows and b %lld; both must have as many",
                     (long long)rows[0], (long long)rows[1]);
}

tn_tensor *(tn_linalg_lu_solve)(const tn_tensor *p, const tn_tensor *l, const tn_tensor *u, const tn_tensor *b) {
    TN_FUNCTION("linalg_lu_solve");
    tn_tensor *below = tn_linalg_solve_triangular(l, tn_matmul(tn_transpose(p, -2, -1), b), false);
    return tn_keep(tn_linalg_solve_triangular(u, below, true));
}

tn_tensor *(tn_linalg_lstsq)(const tn_tensor *a, const tn_tensor *b, double rtol) {
    TN_FUNCTION("linalg_lstsq");
    tn_tensor *bad = refused2(a, b);
    if (!bad) bad = not_matrix("linalg_lstsq", a);
    if (!bad) bad = not_matrix("linalg_lstsq", b);
    if (!bad) bad = bad_rtol("linalg_lstsq", rtol);
    if (!bad) bad = bad_system(a, b);
    return tn_keep(bad ? bad : tn_matmul(tn_linalg_pinv(a, rtol), b));
}

tn_tensor *(tn_linalg_matrix_rank)(const tn_tensor *x, double rtol) {
    TN_FUNCTION("linalg_matrix_rank");
    tn_tensor *bad = not_matrix("linalg_matrix_rank", x);
    if (!bad) bad = bad_rtol("linalg_matrix_rank", rtol);
    if (bad) return tn_keep(bad);
    if (tn_numel(x) == 0) return tn_keep(tn_zeros(tn_shape(x), tn_rank(x) - 2, TN_I64));
    return tn_keep(sum_dim(counting(x, tn_linalg_svdvals(x), rtol), -1, false));
}

tn_tensor *(tn_linalg_matrix_norm)(const tn_tensor *x, tn_matrix_norm ord, bool keepdim) {
    TN_FUNCTION("linalg_matrix_norm");
    tn_tensor *bad = not_matrix("linalg_matrix_norm", x);
    if (!bad)
        bad = no_choice("linalg_matrix_norm: ord", (int)ord, TN_MATRIX_NORM_NUC,
                        "TN_MATRIX_NORM_FRO, TN_MATRIX_NORM_NUC");
    if (bad) return tn_keep(bad);
    if (ord == TN_MATRIX_NORM_FRO) return tn_keep(tn_norm(x, 2, (int64_t[]){-2, -1}, 2, keepdim));
    tn_tensor *sum = sum_dim(tn_linalg_svdvals(x), -1, false);
    return tn_keep(keepdim ? tn_unsqueeze(tn_unsqueeze(sum, -1), -1) : sum);
}

tn_tensor *(tn_linalg_matrix_norm_of)(const tn_tensor *x, double ord, bool keepdim) {
    TN_FUNCTION("linalg_matrix_norm_of");
    tn_tensor *bad = not_matrix("linalg_matrix_norm", x), *v;
    if (bad) return tn_keep(bad);
    double size = fabs(ord);
    if (size == 2)
        v = tn_unsqueeze(tn_linalg_svdvals(x), -1);
    else if (size == 1)
        v = sum_dim(tn_abs(x), -2, true);
    else if (isinf(ord))
        v = sum_dim(tn_abs(x), -1, true);
    else
        return tn_keep(tn_failed(
            TN_ERR_ARGUMENT, "linalg_matrix_norm: ord is %g; 1, 2, infinity and their negatives are possible", ord));
    v = ord > 0 ? tn_amax(v, (int64_t[]){-2, -1}, 2, keepdim) : tn_amin(v, (int64_t[]){-2, -1}, 2, keepdim);
    return tn_keep(v);
}

tn_tensor *(tn_linalg_cond)(const tn_tensor *x, double p) {
    TN_FUNCTION("linalg_cond");
    tn_tensor *bad = fabs(p) == 2 ? not_matrix("linalg_cond", x) : not_square("linalg_cond", x);
    if (bad) return tn_keep(bad);
    if (fabs(p) != 2)
        return tn_keep(
            tn_mul(tn_linalg_matrix_norm_of(x, p, false), tn_linalg_matrix_norm_of(tn_linalg_inv(x), p, false)));
    tn_tensor *s = tn_linalg_svdvals(x), *most = tn_select(s, -1, 0), *least = tn_select(s, -1, -1);
    return tn_keep(p > 0 ? tn_div(most, least) : tn_div(least, most));
}
