/* random.c — random numbers that are a function of (seed, counter): Philox-4x32-10, Salmon et al. 2011.
 *
 * One primitive yields 32 random bits an element: Philox keyed with the seed, at a counter that begins at the
 * recorder's next free number. Seed and counter are runtime scalars, so new numbers make no new plan, a captured graph
 * moves on by as many as it used at every launch, and whatever a backward pass needs again (a dropout mask) is computed
 * again instead of kept. The same numbers come from every device and any number of threads. The public functions take a
 * run of counters and record. */
#include <math.h>

#include "kir/kir_math.h"
#include "ops/common.h"

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* Attributes: skip (numbers left out between the counter and the first element), shape. */
static tn_status infer_random_bits(tn_infer *c) {
    c->dtype = TN_U32;
    return tn_infer_shape(c, c->attrs->i + 2, c->attrs->i[1]);
}

/* The element's number in row-major order. */
static kir_aff flat_index(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_aff flat = kir_aff_const(0);
    for (int d = 0; d < n->rank; d++) {
        flat = tn_aff_scale(lw, &flat, n->shape[d]);
        flat = tn_aff_add(lw, &flat, &at[d]);
    }
    return flat;
}

static kir_val lower_random_bits(tn_lower *lw, const tn_node *n, const kir_aff *at) {
    kir_builder *kb = lw->kb;
    kir_aff flat = flat_index(lw, n, at);
    kir_val skip = kir_const_i(kb, KIR_I64, n->i[TN_RANDOM_BITS_SKIP]);
    kir_val first = kir_binary(kb, KIR_ADD, tn_lower_in(lw, n, 1, at), skip);
    kir_val counter = kir_binary(kb, KIR_ADD, first, kir_index(kb, &flat));
    kir_val key = tn_lower_in(lw, n, 0, at);
    return kir_philox(kb, kir_bitcast(kb, KIR_U64, key), kir_bitcast(kb, KIR_U64, counter));
}

static void reference_random_bits(const tn_reference *r) {
    int64_t count = tn_node_numel(r->node);
    uint64_t key = (uint64_t)(int64_t)r->in[0][0];
    uint64_t first = (uint64_t)((int64_t)r->in[1][0] + r->node->i[TN_RANDOM_BITS_SKIP]);
    for (int64_t i = 0; i < count; i++)
        r->out[i] = kir_philox_u32(key, first + (uint64_t)i);
}

/* random_bits(key, counter, skip, shape): 32 random bits an element: Philox of key at counter
 * + skip + the element's number. */
const tn_op_impl tn_impl_random_bits = {
    .class_ = TN_ELEMENTWISE,
    .infer = infer_random_bits,
    .lower = lower_random_bits,
    .reference = reference_random_bits,
    .cases = "[]:i64@0..99 []:i64@0..99 skip=0 shape=(2,3,5); []:i64@0..9 []:i64@0..9 skip=7 shape=();"
             "[]:i64@0..9 []:i64@0..9 skip=0 shape=(0,4); []:i64@0..9 []:i64@0..9 skip=3 shape=(1300)",
    .flops = 60,
};

/* ---- distributions ----------------------------------------------------------------------------------------------- */

static tn_status infer_random_uniform(tn_infer *c) {
    TRY(infer_random_bits(c));
    c->dtype = TN_F32;
    return TN_OK;
}

/* The upper 24 bits, all that an f32 holds, over 2^24. */
static tn_node *uniform(tn_build *b, tn_node *key, tn_node *counter, int64_t skip, const int64_t *shape, int rank) {
    tn_node *bits = tn_b_random_bits(b, key, counter, skip, shape, rank);
    tn_node *upper = tn_b_bitwise_right_shift(b, bits, tn_b_const(b, 8.0, bits));
    return tn_b_scale(b, tn_b_cast(b, upper, TN_F32), 0x1p-24);
}

static tn_node *compose_random_uniform(tn_build *b, const tn_node *n) {
    return uniform(b, n->in[0], n->in[1], n->i[TN_RANDOM_UNIFORM_SKIP], n->shape, n->rank);
}

/* random_uniform(key, counter, skip, shape): f32 in [0, 1) of random_bits. */
const tn_op_impl tn_impl_random_uniform = {
    .infer = infer_random_uniform,
    .compose = compose_random_uniform,
    .cases = "[]:i64@0..99 []:i64@0..99 skip=0 shape=(2,3,5); []:i64@0..9 []:i64@0..9 skip=7 shape=(); "
             "[]:i64@0..9 []:i64@0..9 skip=0 shape=(0,4)"};

/* Attributes: shape alone. */
static tn_status infer_random_normal(tn_infer *c) {
    c->dtype = TN_F32;
    return tn_infer_shape(c, c->attrs->i + 1, c->attrs->i[0]);
}

/* sqrt(-2 log(1 - u)) · cos(2π v): u < 1, so the logarithm is finite. Uses two numbers an element. */
static tn_node *compose_random_normal(tn_build *b, const tn_node *n) {
    tn_node *u = uniform(b, n->in[0], n->in[1], 0, n->shape, n->rank);
    tn_node *v = uniform(b, n->in[0], n->in[1], tn_node_numel(n), n->shape, n->rank);
    tn_node *tail = tn_b_sub(b, tn_b_const(b, 1.0, u), u);
    tn_node *radius = tn_b_sqrt(b, tn_b_scale(b, tn_b_log(b, tail), -2.0));
    return tn_b_mul(b, radius, tn_b_cos(b, tn_b_scale(b, v, 2.0 * M_PI)));
}

/* random_normal(key, counter, shape): f32 with mean 0 and variance 1. Source: Box and Muller 1958. */
const tn_op_impl tn_impl_random_normal = {
    .infer = infer_random_normal,
    .compose = compose_random_normal,
    .cases = "tol=4e-6 atol=4e-6; []:i64@0..99 []:i64@0..99 shape=(2,3,50); []:i64@0..9 []:i64@0..9 shape=()"};

static tn_status infer_random_integers(tn_infer *c) {
    int64_t low = c->attrs->i[TN_RANDOM_INTEGERS_LOW], high = c->attrs->i[TN_RANDOM_INTEGERS_HIGH], span;
    if (tn_add_overflow(high, -low, &span) || span < 1 || span > INT64_C(1) << 32)
        return tn_fail(TN_ERR_ARGUMENT, "randint: from %lld to below %lld: the range must hold 1 to 2^32 numbers",
                       (long long)low, (long long)high);
    c->dtype = TN_I64;
    return tn_infer_shape(c, c->attrs->i + TN_RANDOM_INTEGERS_SHAPE + 1, c->attrs->i[TN_RANDOM_INTEGERS_SHAPE]);
}

/* low + ⌊bits · span / 2^32⌋: each number's share of 2^32 differs by at most one. */
static tn_node *compose_random_integers(tn_build *b, const tn_node *n) {
    int64_t low = n->i[TN_RANDOM_INTEGERS_LOW], span = n->i[TN_RANDOM_INTEGERS_HIGH] - low;
    tn_node *bits = tn_b_cast(b, tn_b_random_bits(b, n->in[0], n->in[1], 0, n->shape, n->rank), TN_U64);
    tn_node *scaled = tn_b_mul(b, bits, tn_b_const(b, (double)span, bits));
    tn_node *upper = tn_b_bitwise_right_shift(b, scaled, tn_b_const(b, 32.0, scaled));
    return tn_b_offset(b, tn_b_cast(b, upper, TN_I64), (double)low);
}

/* random_integers(key, counter, low, high, shape): i64 from low to below high, all equally likely. */
const tn_op_impl tn_impl_random_integers = {.infer = infer_random_integers,
                                            .compose = compose_random_integers,
                                            .cases = "[]:i64@0..99 []:i64@0..99 low=-3 high=4 shape=(2,30); "
                                                     "error=range []:i64@0..9 []:i64@0..9 low=2 high=2 shape=(3)"};

static tn_status infer_bernoulli_by(tn_infer *c) {
    TRY(tn_need_float(c, 0));
    return tn_infer_same(c);
}

static tn_node *compose_bernoulli_by(tn_build *b, const tn_node *n) {
    tn_node *u = uniform(b, n->in[1], n->in[2], 0, n->shape, n->rank);
    return tn_b_cast_like(b, tn_b_lt(b, u, tn_b_cast(b, n->in[0], TN_F32)), n);
}

static tn_status no_gradient(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    return tn_grad_none(b, n, dy, grads);
}

/* bernoulli_by(p, key, counter): 1 with probability p, else 0, in p's dtype. */
const tn_op_impl tn_impl_bernoulli_by = {.keeps_half = true,
                                         .infer = infer_bernoulli_by,
                                         .compose = compose_bernoulli_by,
                                         .grad = no_gradient,
                                         .cases = "types=f32,f64 grad=off; [7,9]@0..1 []:i64@0..99 []:i64@0..99; "
                                                  "error=floating [3]:i64 []:i64@0..9 []:i64@0..9"};

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

static tn_status infer_dropout_by(tn_infer *c) {
    double p = c->attrs->f[TN_DROPOUT_BY_P];
    if (!(p >= 0.0 && p <= 1.0)) return tn_fail(TN_ERR_ARGUMENT, "dropout: p is %g, it must lie in [0, 1]", p);
    TRY(tn_need_float(c, 0));
    return tn_infer_same(c);
}

/* What x is multiplied with: 0 with probability p, else 1/(1 - p). */
static tn_node *dropout_mask(tn_build *b, const tn_node *n) {
    double p = n->f[TN_DROPOUT_BY_P];
    tn_node *u = uniform(b, n->in[1], n->in[2], 0, n->shape, n->rank);
    tn_node *dropped = tn_b_lt(b, u, tn_b_const(b, p, u));
    tn_node *kept = tn_b_const(b, p < 1.0 ? 1.0 / (1.0 - p) : 0.0, n);
    return tn_b_where(b, dropped, tn_b_const(b, 0.0, n), kept);
}

static tn_node *compose_dropout_by(tn_build *b, const tn_node *n) { return tn_b_mul(b, n->in[0], dropout_mask(b, n)); }

static tn_status grad_dropout_by(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads) {
    grads[0] = tn_b_mul(b, dy, dropout_mask(b, n));
    return b->status;
}

/* dropout_by(x, key, counter, p): x with each element 0 with probability p, the others times 1/(1 - p). */
const tn_op_impl tn_impl_dropout_by = {
    .infer = infer_dropout_by,
    .compose = compose_dropout_by,
    .grad = grad_dropout_by,
    .cases = "types=f32,f64 tol=1e-6; [4,5] []:i64@0..99 []:i64@0..99 p=0.3; [4,5] []:i64@0..9 []:i64@0..9 p=1; "
             "error=lie [3] []:i64@0..9 []:i64@0..9 p=1.5; error=floating [3]:i64 []:i64@0..9 []:i64@0..9 p=0.5"};

/* ---- the public functions: a run of counters, then a record ------------------------------------------------------ */

/* The seed of a thread that was given none. The first such thread to ask has seed 0, so a program with one thread needs
 * no thought; each further one gets a number of its own, else all threads would draw the same numbers. A thread keeps
 * its seed when its recorder is dropped. */
static uint64_t own_seed(void) {
    static _Atomic uint64_t threads;
    static _Thread_local uint64_t number; /* from 1; 0: not yet given */
    if (!number) number = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    if (number == 1) return 0;
    /* SplitMix64 (Steele, Lea, Flood 2014): far from the small numbers that people choose as seeds */
    uint64_t z = (number - 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

tn_recorder *tn_random_here(void) {
    tn_recorder *r = tn_recorder_here();
    if (!r || r->seeded) return r;
    r->seed = own_seed();
    r->seeded = true;
    return r;
}

void tn_set_random_state(tn_random_state state) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return;
    r->seed = state.seed;
    r->random_offset = state.offset;
    r->reseeds++;
    r->seeded = true;
}

void tn_manual_seed(uint64_t seed) { tn_set_random_state((tn_random_state){.seed = seed}); }

tn_random_state tn_get_random_state(void) {
    const tn_recorder *r = tn_random_here();
    return r ? (tn_random_state){r->seed, r->random_offset} : (tn_random_state){0};
}

static tn_tensor *scalar(int64_t kind, int64_t value, int64_t count) {
    tn_attrs a = {.n_i = 3, .n_f = 1};
    a.i[TN_RUNTIME_SCALAR_KIND] = kind;
    a.i[TN_RUNTIME_SCALAR_VALUE] = value;
    a.i[TN_RUNTIME_SCALAR_COUNT] = count;
    return tn_record(TN_OP_RUNTIME_SCALAR, NULL, 0, &a);
}

/* Seed and a run of `count` counters that nobody else gets. */
typedef struct draw {
    tn_tensor *key, *counter;
} draw;

static draw draw_numbers(int64_t count) {
    tn_recorder *r = tn_random_here();
    draw d = {0};
    if (!r) return d;
    d.key = scalar(TN_SCALAR_SEED, (int64_t)r->seed, 0);
    d.counter = scalar(TN_SCALAR_RANDOM, (int64_t)r->random_offset, count);
    r->random_offset += (uint64_t)count;
    return d;
}

static void draw_free(draw d) {
    tn_free(d.key);
    tn_free(d.counter);
}

/* The attributes `before` and a shape; TN_ERR_ARGUMENT for a list that is none. */
static tn_status put_shape(tn_attrs *a, const char *op, const int64_t *shape, int rank) {
    if (rank < 0 || rank > TN_MAX_RANK || (rank && !shape))
        return tn_fail(TN_ERR_ARGUMENT, "%s: a shape of %d extents; 0 to %d are possible", op, rank, TN_MAX_RANK);
    a->i[a->n_i++] = rank;
    for (int d = 0; d < rank; d++)
        a->i[a->n_i++] = shape[d];
    return TN_OK;
}

/* Elements of a shape that may still be wrong: then the op says so, and no number is used. */
static int64_t element_count(const int64_t *shape, int rank) {
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        if (shape[d] < 0 || tn_mul_overflow(count, shape[d], &count)) return 0;
    return count;
}

/* Records op(key, counter; attributes of a, shape), which uses `each` numbers an element. */
static tn_tensor *record_shaped(int op, const char *name, tn_attrs a, const int64_t *shape, int rank, int64_t each) {
    tn_status s = put_shape(&a, name, shape, rank);
    if (s != TN_OK) return tn_tensor_error(s);
    draw d = draw_numbers(each * element_count(shape, rank));
    if (!d.key) return tn_tensor_error(TN_ERR_MEMORY);
    tn_tensor *t = tn_record(op, (const tn_tensor *const[]){d.key, d.counter}, 2, &a);
    draw_free(d);
    return t;
}

/* Records op(x, key, counter; a), which uses one number an element of x. */
static tn_tensor *record_on(int op, const tn_tensor *x, const tn_attrs *a) {
    draw d = draw_numbers(tn_numel(x));
    if (!d.key) return tn_tensor_error(TN_ERR_MEMORY);
    tn_tensor *t = tn_record(op, (const tn_tensor *const[]){x, d.key, d.counter}, 3, a);
    draw_free(d);
    return t;
}

/* y · factor + offset, taking y. */
static tn_tensor *moved(tn_tensor *y, double factor, double offset) {
    tn_tensor *scale = tn_scalar(factor), *shift = tn_scalar(offset);
    tn_tensor *scaled = (tn_mul)(y, scale), *t = (tn_add)(scaled, shift);
    tn_free(y);
    tn_free(scale);
    tn_free(shift);
    tn_free(scaled);
    return t;
}

/* rand(shape): f32, uniform in [0, 1). */
tn_tensor *(tn_rand)(const int64_t *shape, int rank) {
    return record_shaped(TN_OP_RANDOM_UNIFORM, "rand", (tn_attrs){.n_i = 1}, shape, rank, 1);
}

/* uniform(low, high, shape): f32, uniform in [low, high). */
tn_tensor *(tn_uniform)(double low, double high, const int64_t *shape, int rank) {
    if (!(low <= high) || !isfinite(high - low))
        return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT,
                                       "uniform: low is %g and high %g; low must not be greater, the range finite", low,
                                       high));
    return moved((tn_rand)(shape, rank), high - low, low);
}

/* randn(shape): f32, normally distributed with mean 0 and variance 1. */
tn_tensor *(tn_randn)(const int64_t *shape, int rank) {
    return record_shaped(TN_OP_RANDOM_NORMAL, "randn", (tn_attrs){0}, shape, rank, 2);
}

/* normal(mean, std, shape): f32, normally distributed. */
tn_tensor *(tn_normal)(double mean, double std, const int64_t *shape, int rank) {
    if (!(std >= 0.0))
        return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "normal: std is %g; it must be at least 0", std));
    return moved((tn_randn)(shape, rank), std, mean);
}

/* randint(low, high, shape): i64, uniform from low to below high (at most 2^32 numbers). */
tn_tensor *(tn_randint)(int64_t low, int64_t high, const int64_t *shape, int rank) {
    return record_shaped(TN_OP_RANDOM_INTEGERS, "randint", (tn_attrs){.n_i = 2, .i = {low, high}}, shape, rank, 1);
}

/* randperm(n): the numbers 0 … n - 1 in random order, as i64. */
tn_tensor *(tn_randperm)(int64_t n) {
    tn_tensor *bits = record_shaped(TN_OP_RANDOM_BITS, "randperm", (tn_attrs){.n_i = 1}, &n, 1, 1);
    tn_tensor *order = (tn_argsort)(bits, 0, false);
    tn_free(bits);
    return order;
}

/* bernoulli(p): 1 with probability p, else 0, element by element, in p's dtype. No gradient. */
tn_tensor *(tn_bernoulli)(const tn_tensor *p) {
    if (!p) return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "bernoulli: the tensor is NULL"));
    return record_on(TN_OP_BERNOULLI_BY, p, &(tn_attrs){0});
}

/* dropout(x, p, training): in training, each element 0 with probability p and the others times 1/(1 - p); else x
 * itself. The mask is not kept for the backward pass but drawn again. Source: Srivastava et al. 2014. */
tn_tensor *(tn_dropout)(const tn_tensor *x, double p, bool training) {
    if (!x) return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "dropout: the tensor is NULL"));
    if (!(p >= 0.0 && p <= 1.0))
        return tn_tensor_error(tn_fail(TN_ERR_ARGUMENT, "dropout: p is %g; it must be between 0 and 1", p));
    tn_attrs a = {.n_f = 1, .f = {p}};
    if (training && p != 0.0) return record_on(TN_OP_DROPOUT_BY, x, &a);
    return (tn_view_as)(x, x);
}
