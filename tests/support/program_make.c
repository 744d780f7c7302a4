/* program_make.c — random programs.
 *
 * The oracle runs along in two variants (other values, other runtime scalars, other symbolic extents), so a step is
 * taken only when both can do it and when its values stay of a size that hides nothing. What is in memory decides what
 * comes next: views of views are preferred, then writes through them, with operands that often look into the same
 * memory. */
#include <stdlib.h>
#include <string.h>

#include "programs.h"
#include "tensor/graph.h"

typedef struct maker {
    program *p;
    machine *m[2];
    uint64_t random;
    int live[MAX_REGISTERS], live_count; /* registers, oldest first */
    int next, keep_below;                /* registers below are not freed: other threads', a capture's inputs */
    int64_t most;                        /* elements of a tensor */
    bool wild;
    program_form format;
} maker;

enum { SYMBOLIC_EXTENT = 5 }; /* as it is in the first variant */

uint64_t program_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static int below(maker *k, int n) { return n > 0 ? (int)(program_random(&k->random) % (uint64_t)n) : 0; }
static bool chance(maker *k, int of_a_hundred) { return below(k, 100) < of_a_hundred; }

static oracle *at(const maker *k, int r) { return k->m[0]->reg[r]; }

/* ---- taking a step ----------------------------------------------------------------------------------------------- */

static step new_step(step_kind kind) { return (step){.kind = kind, .to = -1}; }

static void add_in(step *s, int r) { s->in[s->n_in++] = r; }
static void add_int(step *s, int64_t v) { s->i[s->n_i++] = v; }

static void add_list(step *s, const int64_t *items, int count) {
    add_int(s, count);
    for (int n = 0; n < count; n++)
        add_int(s, items[n]);
}

/* Differences need f64 and functions without poles; what is no float takes part as a constant. */
static bool smooth(const step *s, const oracle *x) {
    if (s->kind == STEP_detach || s->kind == STEP_sqrt || s->kind == STEP_div || s->kind == STEP_make_state)
        return false;
    return !x || !tn_dtype_is_float(x->dtype) || x->dtype == TN_F64 || x->number;
}

static bool tame(const maker *k, const machine *m, const step *s) {
    bool gradient = k->format == PROGRAM_GRADIENT;
    if (gradient && !smooth(s, m->pending)) return false;
    if (!m->pending) return true;
    if (oracle_numel(m->pending) > k->most) return false;
    return k->wild || oracle_greatest(m->pending) < (gradient ? 30 : 1e5);
}

static void forget(maker *k, int r) {
    for (int n = 0; n < k->live_count; n++)
        if (k->live[n] == r) {
            memmove(&k->live[n], &k->live[n + 1], (size_t)(k->live_count - n - 1) * sizeof *k->live);
            k->live_count--;
            return;
        }
}

static void remember(maker *k, int r) {
    forget(k, r);
    k->live[k->live_count++] = r;
}

/* Appends s when both variants can do it. */
static bool take(maker *k, const step *s) {
    if (k->p->count == MAX_STEPS) return false;
    bool a = machine_prepare(k->m[0], s), b = machine_prepare(k->m[1], s);
    if (!a || !b || !tame(k, k->m[0], s) || !tame(k, k->m[1], s)) {
        machine_cancel(k->m[0]);
        machine_cancel(k->m[1]);
        return false;
    }
    machine_commit(k->m[0], s);
    machine_commit(k->m[1], s);
    k->p->steps[k->p->count++] = *s;
    if (s->kind == STEP_free) forget(k, s->in[0]);
    if (s->to >= 0) remember(k, s->to);
    return true;
}

/* The same for a step that makes a register; its number, or -1. */
static int take_new(maker *k, step *s) {
    if (k->next == MAX_REGISTERS) return -1;
    s->to = k->next;
    s->salt = program_random(&k->random);
    if (!take(k, s)) return -1;
    return k->next++;
}

static bool is_runtime_scalar(const maker *k, int r) {
    for (int n = k->p->count - 1; n >= 0; n--)
        if (k->p->steps[n].to == r) return k->p->steps[n].kind == STEP_runtime_scalar;
    return false;
}

/* A captured runtime scalar is named by its number among those that take part: none of them goes. */
static bool may_be_freed(const maker *k, int r) {
    return r >= k->keep_below && !(k->format == PROGRAM_CAPTURE && is_runtime_scalar(k, r));
}

static void take_free(maker *k, int r) {
    step s = new_step(STEP_free);
    add_in(&s, r);
    if (may_be_freed(k, r)) take(k, &s);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

typedef bool wanted_fn(const maker *k, int r);

/* A live register, mostly a recent one, that is wanted; -1 when luck fails. */
static int pick(maker *k, wanted_fn *wanted) {
    for (int tries = 0; tries < 24 && k->live_count > 0; tries++) {
        int n = below(k, k->live_count);
        if (chance(k, 50)) n = k->live_count - 1 - below(k, k->live_count < 6 ? k->live_count : 6);
        if (!wanted || wanted(k, k->live[n])) return k->live[n];
    }
    return -1;
}

static bool is_float(const maker *k, int r) { return tn_dtype_is_float(at(k, r)->dtype); }
static bool has_dims(const maker *k, int r) { return at(k, r)->rank > 0; }
static bool has_two_dims(const maker *k, int r) { return at(k, r)->rank > 1; }
static bool float_with_dims(const maker *k, int r) { return is_float(k, r) && has_dims(k, r); }
static bool is_no_bool(const maker *k, int r) { return at(k, r)->dtype != TN_BOOL; }
static bool is_bool(const maker *k, int r) { return at(k, r)->dtype == TN_BOOL; }
static bool is_view(const maker *k, int r) { return k->m[0]->view[r]; }
static bool has_elements(const maker *k, int r) { return oracle_numel(at(k, r)) > 0; }

static tn_dtype random_dtype(maker *k) {
    static const tn_dtype often[] = {TN_F32, TN_F32, TN_F32, TN_F32, TN_F32, TN_F32,  TN_F32, TN_F32, TN_F32,
                                     TN_F32, TN_I64, TN_I64, TN_I32, TN_I32, TN_BOOL, TN_U8,  TN_F64, TN_F16};
    if (k->format == PROGRAM_GRADIENT) return TN_F64;
    return often[below(k, (int)(sizeof often / sizeof *often))];
}

static int random_shape(maker *k, int64_t *shape) {
    static const int64_t large[][4] = {{1, 1030},      {1, 2049}, {2, 33, 64}, {2, 3, 700},
                                       {3, 5, 20, 21}, {1, 4096}, {2, 1100, 2}};
    static const int64_t huge[][4] = {{1, 20000}, {2, 3, 17000}, {2, 130, 140}, {1, 33000}, {2, 17000, 2}};
    if (k->most > 60000 && chance(k, 60)) {
        const int64_t *row = huge[below(k, 5)];
        memcpy(shape, row + 1, (size_t)row[0] * sizeof *shape);
        return (int)row[0];
    }
    if (k->most > 3000 && chance(k, 60)) {
        const int64_t *row = large[below(k, 7)];
        memcpy(shape, row + 1, (size_t)row[0] * sizeof *shape);
        return (int)row[0];
    }
    int rank = chance(k, 8) ? 0 : 1 + below(k, 3) + (chance(k, 15) ? 1 : 0);
    for (int d = 0; d < rank; d++)
        shape[d] = chance(k, 2) ? 0 : chance(k, 15) ? 1 : 2 + below(k, 5);
    return rank;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static int make_data(maker *k, const int64_t *shape, int rank, tn_dtype dtype, content what, int64_t limit) {
    step s = new_step(STEP_data);
    int symbolic =
        k->format == PROGRAM_SYMBOLIC && what != CONTENT_INDEX && rank > 0 && shape[0] == SYMBOLIC_EXTENT ? 0 : -1;
    s.dtype = dtype;
    add_list(&s, shape, rank);
    add_int(&s, (int64_t)what);
    add_int(&s, limit);
    add_int(&s, symbolic);
    int r = take_new(k, &s);
    if (symbolic < 0 || r < 0) return r;
    step mark = new_step(STEP_symbolic);
    add_in(&mark, r);
    add_int(&mark, 0);
    add_int(&mark, 0);
    int marked = take_new(k, &mark);
    take_free(k, r);
    return marked;
}

static content content_for(maker *k, tn_dtype dtype) {
    if (k->format == PROGRAM_GRADIENT) return CONTENT_DISTINCT; /* equal values would be kinks of max */
    if (k->wild && chance(k, 50)) return tn_dtype_is_float(dtype) ? CONTENT_WILD : CONTENT_WIDE;
    return CONTENT_PLAIN;
}

static int make_any(maker *k) {
    int64_t shape[TN_MAX_RANK];
    int rank = random_shape(k, shape);
    tn_dtype dtype = random_dtype(k);
    if (k->format == PROGRAM_SYMBOLIC && rank > 0) shape[0] = SYMBOLIC_EXTENT;
    return make_data(k, shape, rank, dtype, content_for(k, dtype), 0);
}

/* Data of the same shape as x, so that they can meet. */
static int make_like(maker *k, int x) {
    return make_data(k, at(k, x)->shape, at(k, x)->rank, random_dtype(k),
                     k->format == PROGRAM_GRADIENT ? CONTENT_DISTINCT : CONTENT_PLAIN, 0);
}

static int make_number(maker *k) {
    static const double values[] = {2.0, 0.5, -1.5, 3.0, 0.1, 1.0, -0.0, 7.0};
    step s = new_step(chance(k, 30) ? STEP_runtime_scalar : STEP_number);
    s.f = values[below(k, 8)];
    return take_new(k, &s);
}

/* A number with which a tensor of the dtype can be filled. */
static double held(tn_dtype t, double v) { return tn_dtype_holds(t, v) ? v : -v; }

static int make_full(maker *k) {
    int64_t shape[TN_MAX_RANK];
    step s = new_step(STEP_full);
    add_list(&s, shape, random_shape(k, shape));
    s.dtype = random_dtype(k);
    s.f = held(s.dtype, (double)(below(k, 9) - 4) * 0.75);
    return take_new(k, &s);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

static bool shapes_meet(const oracle *x, const oracle *y) {
    int rank = x->rank < y->rank ? x->rank : y->rank;
    for (int e = 1; e <= rank; e++) {
        int64_t a = x->shape[x->rank - e], b = y->shape[y->rank - e];
        if (a != b && a != 1 && b != 1) return false;
    }
    return true;
}

/* Something that broadcasts with x: of the same memory, of the same shape, or made for it. */
static int partner(maker *k, int x) {
    bool kin = chance(k, 30);
    for (int tries = 0; tries < 30; tries++) {
        int y = pick(k, NULL);
        if (y < 0 || !shapes_meet(at(k, x), at(k, y))) continue;
        if (!kin || tries > 15 || oracle_same_storage(at(k, x), at(k, y))) return y;
    }
    if (chance(k, 40)) return make_number(k);
    return make_like(k, x);
}

static int unary(maker *k, step_kind kind, int x) {
    step s = new_step(kind);
    add_in(&s, x);
    return take_new(k, &s);
}

/* Indices from 0 to limit - 1; nothing (-1) if there are none: indices outside are refused. Symbolic programs compute
 * theirs. */
static int index_data(maker *k, const int64_t *shape, int rank, int64_t limit) {
    if (limit == 0) return -1;
    int index = make_data(k, shape, rank, chance(k, 75) ? TN_I64 : TN_I32, CONTENT_INDEX, limit);
    for (int n = 0; n < 2 && index >= 0 && k->format == PROGRAM_SYMBOLIC; n++) {
        int computed = unary(k, STEP_bitwise_not, index);
        take_free(k, index);
        index = computed;
    }
    return index;
}

/* As far as an index may go in both variants. */
static int64_t least_extent(const maker *k, int x, int dim) {
    int64_t first = k->m[0]->reg[x]->shape[dim], second = k->m[1]->reg[x]->shape[dim];
    return first < second ? first : second;
}

static int binary(maker *k, step_kind kind, int x, int y) {
    if (x < 0 || y < 0) return -1;
    step s = new_step(kind);
    add_in(&s, x);
    add_in(&s, y);
    return take_new(k, &s);
}

static int cast_to(maker *k, int x, tn_dtype dtype) {
    step s = new_step(STEP_cast);
    s.dtype = dtype;
    add_in(&s, x);
    return take_new(k, &s);
}

static int choose_between(maker *k, int x) {
    int c = pick(k, is_bool);
    if (c < 0 || !shapes_meet(at(k, c), at(k, x))) c = binary(k, chance(k, 50) ? STEP_lt : STEP_le, x, partner(k, x));
    int y = c < 0 ? -1 : partner(k, x);
    if (y < 0) return -1;
    step s = new_step(STEP_where);
    add_in(&s, c);
    add_in(&s, x);
    add_in(&s, y);
    return take_new(k, &s);
}

static int elementwise(maker *k, int x) {
    static const step_kind ones[] = {STEP_neg, STEP_abs, STEP_tanh, STEP_floor, STEP_sqrt, STEP_exp, STEP_bitwise_not};
    static const step_kind twos[] = {STEP_add, STEP_add,     STEP_sub,         STEP_sub,        STEP_mul,
                                     STEP_mul, STEP_maximum, STEP_minimum,     STEP_div,        STEP_eq,
                                     STEP_lt,  STEP_le,      STEP_bitwise_and, STEP_bitwise_or, STEP_bitwise_xor};
    int what = below(k, 100);
    if (what < 22) return unary(k, ones[below(k, 7)], x);
    if (what < 28) return cast_to(k, x, random_dtype(k));
    if (what < 35) return choose_between(k, x);
    int y = partner(k, x);
    return chance(k, 50) ? binary(k, twos[below(k, 15)], x, y) : binary(k, twos[below(k, 15)], y, x);
}

/* A chain whose links nobody keeps: what fusion is for. */
static void expression(maker *k) {
    int x = pick(k, NULL);
    bool link = false;
    for (int n = 1 + below(k, 5); n > 0 && x >= 0; n--) {
        int y = elementwise(k, x);
        if (y < 0) continue;
        if ((link || chance(k, 20)) && k->live_count > 3) take_free(k, x);
        x = y;
        link = chance(k, 85);
    }
}

/* ---- over dimensions --------------------------------------------------------------------------------------------- */

static int reduce(maker *k, step_kind kind, int x, int dim, bool keepdim) {
    step s = new_step(kind);
    int64_t dims[TN_MAX_RANK];
    int count = 0;
    if (dim >= 0) dims[count++] = dim;
    for (int d = 0; dim < 0 && d < at(k, x)->rank; d++)
        if (chance(k, 45)) dims[count++] = chance(k, 30) ? d - at(k, x)->rank : d;
    add_in(&s, x);
    add_list(&s, dims, count);
    add_int(&s, keepdim);
    return take_new(k, &s);
}

static void some_reduction(maker *k) {
    static const step_kind kinds[] = {STEP_sum,  STEP_sum,  STEP_sum,  STEP_mean,
                                      STEP_mean, STEP_amax, STEP_amin, STEP_argmax};
    int x = pick(k, chance(k, 90) ? has_dims : NULL);
    if (x >= 0) reduce(k, kinds[below(k, 8)], x, -1, chance(k, 50));
}

static void some_running_sum(maker *k) {
    int x = pick(k, has_dims);
    if (x < 0) return;
    step s = new_step(STEP_cumsum);
    add_in(&s, x);
    add_int(&s, below(k, at(k, x)->rank) - (chance(k, 30) ? at(k, x)->rank : 0));
    take_new(k, &s);
}

/* The same kernel several times, each reading what the one before it made: nothing that could be done side by side. */
static void chain(maker *k) {
    static const step_kind kinds[] = {STEP_cumsum, STEP_slice, STEP_index_select};
    step_kind kind = kinds[below(k, 3)];
    int x = pick(k, float_with_dims);
    if (x < 0) return;
    int64_t count = at(k, x)->shape[0];
    int order = kind == STEP_index_select ? index_data(k, &count, 1, least_extent(k, x, 0)) : -1;
    if (kind == STEP_index_select && order < 0) return;
    for (int n = 2 + below(k, 3); n > 0 && x >= 0; n--) {
        step s = new_step(kind);
        add_in(&s, x);
        if (order >= 0) add_in(&s, order);
        if (kind == STEP_slice)
            for (int word = 0; word < 4; word++)
                add_int(&s, (int64_t[]){0, INT64_MAX, INT64_MIN, -1}[word]);
        else
            add_int(&s, 0);
        int y = take_new(k, &s);
        if (kind == STEP_slice && y >= 0) y = unary(k, STEP_contiguous, y);
        x = kind == STEP_cumsum && y >= 0 ? unary(k, STEP_tanh, y) : y;
    }
}

/* exp(x - max) / sum, its parts freed as one would. */
static void softmax(maker *k) {
    int x = pick(k, float_with_dims);
    if (x < 0) return;
    int dim = below(k, at(k, x)->rank);
    int top = reduce(k, STEP_amax, x, dim, true);
    int low = top < 0 ? -1 : binary(k, STEP_sub, x, top);
    int e = low < 0 ? -1 : unary(k, STEP_exp, low);
    int sum = e < 0 ? -1 : reduce(k, STEP_sum, e, dim, true);
    if (sum >= 0) binary(k, STEP_div, e, sum);
    int parts[] = {top, low, e, sum};
    for (int n = 0; n < 4; n++)
        if (parts[n] >= 0 && chance(k, 80)) take_free(k, parts[n]);
}

/* (x - mean) / sqrt(mean of squares + 0.1) */
static void normalise(maker *k) {
    int x = pick(k, float_with_dims);
    if (x < 0) return;
    int dim = below(k, at(k, x)->rank);
    int mean = reduce(k, STEP_mean, x, dim, true);
    int low = mean < 0 ? -1 : binary(k, STEP_sub, x, mean);
    int square = low < 0 ? -1 : binary(k, STEP_mul, low, low);
    int variance = square < 0 ? -1 : reduce(k, STEP_mean, square, dim, true);
    int number = variance < 0 ? -1 : make_number(k);
    int more = number < 0 ? -1 : binary(k, STEP_maximum, variance, number);
    int root = more < 0 ? -1 : unary(k, STEP_sqrt, more);
    if (root >= 0) binary(k, STEP_div, low, root);
    int parts[] = {mean, low, square, variance, number, more, root};
    for (int n = 0; n < 7; n++)
        if (parts[n] >= 0 && chance(k, 85)) take_free(k, parts[n]);
}

static bool float_matrix(const maker *k, int r) {
    tn_dtype t = at(k, r)->dtype;
    return has_two_dims(k, r) && t != TN_BOOL && t != TN_U8 && t != TN_F16;
}

static void some_product(maker *k) {
    int x = pick(k, float_matrix);
    if (x < 0) return;
    const oracle *a = at(k, x);
    int64_t inner = a->shape[a->rank - 1], shape[2] = {inner, 1 + below(k, 7)};
    if (oracle_numel(a) * shape[1] > 200000) return;
    int y = -1;
    for (int tries = 0; tries < 12 && y < 0; tries++) {
        int r = pick(k, float_matrix);
        if (r >= 0 && at(k, r)->dtype == a->dtype && at(k, r)->shape[at(k, r)->rank - 2] == inner) y = r;
    }
    if (y < 0) y = make_data(k, shape, 2, a->dtype, CONTENT_PLAIN, 0);
    if (y >= 0) binary(k, STEP_matmul, x, y);
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

static void add_random_factors(maker *k, step *s, int64_t numel) {
    int64_t shape[TN_MAX_RANK];
    int rank = 0;
    while (rank < 4 && numel > 1 && chance(k, 80)) {
        int64_t f = 1 + below(k, 6);
        if (numel % f != 0) continue;
        shape[rank++] = f;
        numel /= f;
    }
    if (rank == 0 || numel != 1 || chance(k, 20)) shape[rank++] = numel;
    if (chance(k, 25)) shape[below(k, rank)] = -1;
    add_list(s, shape, rank);
}

static void add_random_slice(maker *k, step *s, const oracle *x) {
    int64_t dim = below(k, x->rank), size = x->shape[dim];
    int64_t pace = 1 + below(k, 3), start = below(k, (int)(size < 8 ? size + 1 : 8)),
            stop = size - below(k, (int)(size < 5 ? size + 1 : 5));
    if (chance(k, 30)) stop = INT64_MAX;
    if (chance(k, 25)) {
        pace = -pace;
        start = chance(k, 50) ? INT64_MAX : size - 1 - below(k, 2);
        stop = chance(k, 60) ? INT64_MIN : below(k, (int)(size < 4 ? size + 1 : 4));
    }
    if (chance(k, 15) && start != INT64_MAX) start -= size;
    add_int(s, chance(k, 20) ? dim - x->rank : dim);
    add_int(s, start);
    add_int(s, stop);
    add_int(s, pace);
}

static void add_permutation(maker *k, step *s, const oracle *x) {
    int64_t dims[TN_MAX_RANK];
    for (int d = 0; d < x->rank; d++)
        dims[d] = d;
    for (int d = x->rank - 1; d > 0; d--) {
        int other = below(k, d + 1);
        int64_t swap = dims[d];
        dims[d] = dims[other];
        dims[other] = swap;
    }
    add_list(s, dims, x->rank);
}

static void add_wider_shape(maker *k, step *s, const oracle *x) {
    int64_t shape[TN_MAX_RANK];
    int extra = chance(k, 40) && x->rank < 5 ? 1 : 0;
    if (extra) shape[0] = 1 + below(k, 3);
    for (int d = 0; d < x->rank; d++) {
        shape[extra + d] = chance(k, 50) ? -1 : x->shape[d];
        if (x->shape[d] == 1 && chance(k, 70)) shape[extra + d] = 1 + below(k, 4);
    }
    add_list(s, shape, x->rank + extra);
}

static void add_strided(maker *k, step *s, const oracle *x) {
    int64_t shape[2], stride[2], numel = oracle_numel(x), offset = below(k, (int)(numel < 5 ? numel : 5));
    int rank = 1 + below(k, 2);
    for (int d = 0; d < rank; d++) {
        shape[d] = 1 + below(k, 3);
        stride[d] = 1 + below(k, 3) - (chance(k, 20) ? 3 : 0);
    }
    add_list(s, shape, rank);
    add_list(s, stride, rank);
    add_int(s, offset);
}

static int some_view(maker *k) {
    static const step_kind kinds[] = {STEP_slice,     STEP_slice,     STEP_slice,     STEP_slice,  STEP_permute,
                                      STEP_permute,   STEP_transpose, STEP_view,      STEP_view,   STEP_reshape,
                                      STEP_flatten,   STEP_expand,    STEP_select,    STEP_select, STEP_squeeze,
                                      STEP_unsqueeze, STEP_detach,    STEP_as_strided};
    step s = new_step(kinds[below(k, 18)]);
    int r = pick(k, chance(k, 50) ? is_view : has_dims);
    if (r < 0) return -1;
    const oracle *x = at(k, r);
    add_in(&s, r);
    switch (s.kind) {
    case STEP_slice:
        if (x->rank == 0) return -1;
        add_random_slice(k, &s, x);
        break;
    case STEP_permute: add_permutation(k, &s, x); break;
    case STEP_transpose:
    case STEP_flatten:
        if (x->rank == 0) return -1;
        add_int(&s, below(k, x->rank));
        add_int(&s, below(k, x->rank));
        break;
    case STEP_view:
    case STEP_reshape: add_random_factors(k, &s, oracle_numel(x)); break;
    case STEP_expand: add_wider_shape(k, &s, x); break;
    case STEP_select: {
        if (x->rank == 0) return -1;
        int dim = below(k, x->rank);
        add_int(&s, dim);
        add_int(&s, below(k, (int)x->shape[dim]) - (chance(k, 30) ? x->shape[dim] : 0));
        break;
    }
    case STEP_squeeze: add_list(&s, (int64_t[]){below(k, x->rank)}, x->rank > 0 && chance(k, 60)); break;
    case STEP_unsqueeze: add_int(&s, below(k, x->rank + 1)); break;
    case STEP_as_strided: add_strided(k, &s, x); break;
    default: break;
    }
    return take_new(k, &s);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static int some_cat(maker *k) {
    step s = new_step(STEP_cat);
    int x = pick(k, has_dims);
    if (x < 0) return -1;
    add_in(&s, x);
    for (int n = 1 + below(k, 3); n > 0; n--) {
        int y = partner(k, x);
        if (y >= 0) add_in(&s, y);
    }
    add_int(&s, below(k, at(k, x)->rank));
    return take_new(k, &s);
}

static int some_pad(maker *k) {
    step s = new_step(STEP_pad);
    int x = pick(k, has_dims);
    if (x < 0) return -1;
    int64_t pads[2 * TN_MAX_RANK];
    int count = 2 * (1 + below(k, at(k, x)->rank));
    for (int n = 0; n < count; n++)
        pads[n] = below(k, 4) - 1;
    add_in(&s, x);
    add_list(&s, pads, count);
    s.f = held(at(k, x)->dtype, (double)(below(k, 5) - 2));
    return take_new(k, &s);
}

static int some_gather(maker *k) {
    int x = pick(k, has_dims);
    if (x < 0) return -1;
    const oracle *of = at(k, x);
    int64_t shape[TN_MAX_RANK];
    int dim = below(k, of->rank);
    memcpy(shape, of->shape, sizeof shape);
    shape[dim] = 1 + below(k, 5);
    step s = new_step(STEP_gather);
    int index = index_data(k, shape, of->rank, least_extent(k, x, dim));
    if (index < 0) return -1;
    add_in(&s, x);
    add_in(&s, index);
    add_int(&s, dim);
    return take_new(k, &s);
}

static int some_rows(maker *k) {
    int x = pick(k, has_dims);
    if (x < 0) return -1;
    int dim = below(k, at(k, x)->rank);
    int64_t count = 1 + below(k, 5);
    int index = index_data(k, &count, 1, least_extent(k, x, dim));
    if (index < 0) return -1;
    step s = new_step(STEP_index_select);
    add_in(&s, x);
    add_in(&s, index);
    add_int(&s, dim);
    int rows = take_new(k, &s);
    if (rows < 0 || chance(k, 50) || at(k, x)->dtype == TN_F16) return rows;
    /* … and added back where they came from. (The order of sums of f16 is not promised.) */
    step add = new_step(STEP_index_add);
    add_in(&add, x);
    add_in(&add, index);
    add_in(&add, rows);
    add_int(&add, dim);
    return take_new(k, &add);
}

static int some_copy(maker *k) {
    switch (below(k, 6)) {
    case 0: return some_cat(k);
    case 1: return some_pad(k);
    case 2: return some_gather(k);
    case 3:
    case 4: return some_rows(k);
    default: {
        int x = pick(k, NULL);
        return x < 0 ? -1 : unary(k, STEP_contiguous, x);
    }
    }
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

/* What fits into x: a partner, or, when that is larger than x, something smaller. */
static int source_for(maker *k, int x) {
    for (int tries = 0; tries < 4; tries++) {
        int y = partner(k, x);
        if (y < 0) return -1;
        if (at(k, y)->rank <= at(k, x)->rank && oracle_numel(at(k, y)) <= oracle_numel(at(k, x))) return y;
    }
    return make_number(k);
}

static void some_write(maker *k) {
    static const step_kind kinds[] = {STEP_copy_, STEP_copy_, STEP_copy_, STEP_add_, STEP_add_,
                                      STEP_sub_,  STEP_mul_,  STEP_neg_,  STEP_tanh_};
    step s = new_step(kinds[below(k, 9)]);
    int x = pick(k, chance(k, 70) ? is_view : has_elements);
    if (x < 0 || (k->format == PROGRAM_CAPTURE && is_runtime_scalar(k, x))) return;
    add_in(&s, x);
    if (s.kind != STEP_neg_ && s.kind != STEP_tanh_) {
        int y = source_for(k, x);
        if (y < 0) return;
        add_in(&s, y);
    }
    take(k, &s);
}

static bool is_state(const maker *k, int r) { return k->m[0]->state[r]; }

static void write_into(maker *k, step_kind kind, int x, int y) {
    step s = new_step(kind);
    add_in(&s, x);
    add_in(&s, y);
    take(k, &s);
}

/* Two states change, the second by what the first one was before: which of them may be written first? */
static void trade(maker *k) {
    static const step_kind kinds[] = {STEP_copy_, STEP_add_, STEP_sub_, STEP_mul_};
    int a = pick(k, is_state), b = pick(k, is_state);
    if (a < 0 || b < 0) return;
    int before = elementwise(k, a), change = elementwise(k, b);
    if (before < 0 || change < 0) return;
    write_into(k, kinds[below(k, 4)], a, change);
    write_into(k, kinds[below(k, 4)], b, before);
    if (chance(k, 70)) take_free(k, before);
    if (chance(k, 70)) take_free(k, change);
}

static void make_state(maker *k, int r) {
    step s = new_step(STEP_make_state);
    add_in(&s, r);
    take(k, &s);
}

static void some_state(maker *k) {
    int r = pick(k, is_no_bool);
    if (r < 0 || (k->format == PROGRAM_SYMBOLIC && has_dims(k, r))) return;
    make_state(k, r);
}

enum { WEIGHT_COLUMNS = 8 }; /* from so many on the packed form of a bound second operand is kept */

static bool is_weight(const maker *k, int r) {
    return is_state(k, r) && float_matrix(k, r) && at(k, r)->rank == 2 && at(k, r)->shape[1] >= WEIGHT_COLUMNS;
}

static int make_weight(maker *k) {
    int64_t shape[2] = {1 + below(k, 6), WEIGHT_COLUMNS + below(k, 5)};
    int w = make_data(k, shape, 2, chance(k, 70) ? TN_F32 : TN_F64, CONTENT_PLAIN, 0);
    if (w >= 0) make_state(k, w);
    return w;
}

/* A product with a weight, which may just have been written. */
static void weigh(maker *k, bool may_make) {
    int w = pick(k, is_weight), x = -1;
    if (w < 0 && may_make) w = make_weight(k);
    if (w < 0) return;
    if (chance(k, 40)) {
        step s = new_step(chance(k, 50) ? STEP_neg_ : STEP_tanh_);
        add_in(&s, w);
        take(k, &s);
    }
    int64_t inner = at(k, w)->shape[0], shape[2] = {1 + below(k, 4), inner};
    tn_dtype dtype = at(k, w)->dtype;
    for (int tries = 0; tries < 6 && x < 0; tries++) {
        int r = pick(k, float_matrix);
        if (r >= 0 && at(k, r)->dtype == dtype && at(k, r)->shape[at(k, r)->rank - 1] == inner) x = r;
    }
    if (x < 0) x = make_data(k, shape, 2, dtype, CONTENT_PLAIN, 0);
    if (x >= 0) binary(k, STEP_matmul, x, w);
}

/* ---- controls ---------------------------------------------------------------------------------------------------- */

static void some_read(maker *k) {
    int r = pick(k, NULL);
    if (r < 0) return;
    step s = new_step(oracle_numel(at(k, r)) == 1 && chance(k, 50) ? STEP_item : STEP_read);
    add_in(&s, r);
    take(k, &s);
}

static void some_eval(maker *k) {
    step s = new_step(STEP_eval);
    for (int n = below(k, 4); n > 0; n--) {
        int r = pick(k, NULL);
        if (r >= 0) add_in(&s, r);
    }
    take(k, &s);
}

static void some_free(maker *k) {
    int r = pick(k, may_be_freed);
    if (r >= 0 && k->live_count > 4) take_free(k, r);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void one_move(maker *k, bool reads) {
    int what = below(k, 100);
    if (k->live_count >= MAX_LIVE - 4) some_free(k);
    if (what < 5)
        make_any(k);
    else if (what < 7)
        make_full(k);
    else if (what < 9)
        make_number(k);
    else if (what < 24)
        expression(k);
    else if (what < 31)
        some_reduction(k);
    else if (what < 33)
        some_running_sum(k);
    else if (what < 34)
        chain(k);
    else if (what < 36)
        softmax(k);
    else if (what < 38)
        normalise(k);
    else if (what < 41)
        some_product(k);
    else if (what < 44 && k->format != PROGRAM_GRADIENT)
        weigh(k, reads);
    else if (what < 58)
        some_view(k);
    else if (what < 65)
        some_copy(k);
    else if (what < 80)
        some_write(k);
    else if (what < 83)
        trade(k);
    else if (what < 86)
        some_free(k);
    else if (what < 94)
        reads ? some_read(k) : some_free(k);
    else if (what < 97)
        reads ? some_eval(k) : some_free(k);
    else if (reads)
        some_state(k);
}

/* Steps from `from` on once more, as a training loop would: what they make is made anew. */
static void repeat(maker *k, int from) {
    int end = k->p->count, times = 1 + below(k, 3);
    for (int t = 0; t < times; t++) {
        for (int n = from; n < end; n++) {
            step again = k->p->steps[n];
            if (again.kind != STEP_make_state) take(k, &again);
        }
    }
}

/* What a step of optimisation does: states, read and written, over and over. */
static void prologue(maker *k) {
    for (int n = 2 + below(k, 3); n > 0; n--) {
        int r = make_any(k);
        if (r < 0 || k->format == PROGRAM_GRADIENT || !chance(k, 40) || !is_no_bool(k, r) ||
            (k->format == PROGRAM_SYMBOLIC && has_dims(k, r)))
            continue;
        int twin = chance(k, 50) ? make_like(k, r) : -1; /* of the same shape, so that they can meet */
        make_state(k, r);
        if (twin >= 0 && is_no_bool(k, twin)) make_state(k, twin);
    }
    if (k->format == PROGRAM_GRADIENT) {
        k->p->leaves = k->p->count;
        machine_freeze(k->m[0]);
        machine_freeze(k->m[1]);
    }
    for (int n = 1 + below(k, 3); n > 0; n--)
        some_view(k);
}

static void captured_part(maker *k, int moves) {
    step s = new_step(STEP_eval);
    take(k, &s);
    k->p->body = k->p->count;
    k->keep_below = k->next;
    machine_freeze(k->m[0]);
    machine_freeze(k->m[1]);
    for (; moves > 0 && k->p->count < MAX_STEPS - 60; moves--)
        one_move(k, false);
    k->p->body_end = k->p->count;
}

static void free_part(maker *k, int moves) {
    int from = k->p->count;
    for (; moves > 0 && k->p->count < MAX_STEPS - 60; moves--) {
        if (moves == 8) from = k->p->count;
        one_move(k, true);
    }
    if (chance(k, 25) && k->p->count - from < 50) repeat(k, from);
}

static void seed_machines(maker *k, oracle *const *shared, int shared_count) {
    for (int v = 0; v < 2; v++) {
        k->m[v] = calloc(1, sizeof *k->m[v]);
        k->m[v]->variant = v;
        for (int r = 0; r < shared_count; r++)
            k->m[v]->reg[r] = oracle_alias(shared[r]);
        machine_freeze(k->m[v]);
    }
    for (int r = 0; r < shared_count; r++)
        remember(k, r);
}

void program_make(program *p, uint64_t seed, program_form form, oracle *const *shared, int shared_count) {
    maker k = {.p = p,
               .random = seed * 0xD1342543DE82EF95u + 1,
               .format = form,
               .keep_below = shared_count,
               .next = shared_count};
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->symbolic = form == PROGRAM_SYMBOLIC;
    seed_machines(&k, shared, shared_count);
    int size = below(&k, 100);
    bool huge = size < 2 || form == PROGRAM_LARGE;
    k.most = huge ? 70000 : size < 14 ? 6000 : 1500;
    k.wild = chance(&k, 10) && form != PROGRAM_GRADIENT && form != PROGRAM_LARGE;
    prologue(&k);
    int moves = huge ? 8 + below(&k, 8) : 14 + below(&k, 26);
    if (form == PROGRAM_CAPTURE)
        captured_part(&k, moves);
    else
        free_part(&k, moves);
    for (int v = 0; v < 2; v++) {
        machine_clear(k.m[v]);
        free(k.m[v]);
    }
}

program_counts program_count(const program *p) {
    program_counts c = {0};
    for (int n = 0; n < p->count; n++) {
        step_class class_ = step_class_of(p->steps[n].kind);
        c.ops += class_ != STEP_CONTROLS && class_ != STEP_MAKES;
        c.views += class_ == STEP_VIEWS;
        c.writes += class_ == STEP_WRITES;
        c.reads += p->steps[n].kind == STEP_read || p->steps[n].kind == STEP_item;
    }
    return c;
}
