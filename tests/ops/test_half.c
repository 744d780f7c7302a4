/* test_half.c — f16 and bf16: what an op computes is computed in f32 and rounded once.
 *
 * The element-wise ops are found in the table by what they are composed of, so a new op is swept too. Results are
 * compared with the f64 definition (check/check.h), rounded to the half type. The bound is one ulp, and what f32
 * steps may lose: for several inputs, some last bits of the largest value that occurs on the way. */
#include "test_support.h"
#include "trial.h"

#include <math.h>

#include "check/check.h"
#include "kir/kir_math.h"
#include "plan/passes.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/trunnion.h"

enum { PATTERNS = 1 << 16 }; /* of the bits of a half */

/* ---- halves ------------------------------------------------------------------------------------------------------ */

static uint16_t half_of(tn_dtype t, double v) { return t == TN_F16 ? kir_to_f16((float)v) : kir_to_bf16((float)v); }
static double value_of(tn_dtype t, uint16_t bits) {
    return (double)(t == TN_F16 ? kir_from_f16(bits) : kir_from_bf16(bits));
}

/* Halves counted from 0 outwards, so that neighbours differ by 1 and infinity follows the largest number. */
static int rank_of(uint16_t bits) {
    int size = bits & 0x7FFF;
    return bits >> 15 ? -size : size;
}

static double ulp_of(tn_dtype t, double v) {
    int digits = t == TN_F16 ? 10 : 7, least = t == TN_F16 ? -24 : -133, e;
    if (v == 0 || !isfinite(v)) return ldexp(1, least);
    frexp(v, &e);
    return ldexp(1, e - 1 - digits > least ? e - 1 - digits : least);
}

/* f32's own range: below it a factor may have been rounded to 0 (1 / (1 + exp(89))), and a number that is multiplied by
 * another one afterwards may have been rounded to infinity. Only bf16 comes near. */
static const double TINY = 0x1p-121, NEARLY_INFINITE = 0x1p126;

/* Is `got` the definition's value `want`, up to `ulps` and `slack`? A zero has the definition's sign. */
static bool is_near(tn_dtype t, uint16_t got, double want, int ulps, double slack) {
    double g = value_of(t, got);
    uint16_t best = half_of(t, want);
    if (isnan(want) || isnan(g)) return isnan(want) && isnan(g);
    if (got == best) return true;
    if (g == 0 && want == 0) return false;
    if (isinf(g) && fabs(want) > NEARLY_INFINITE) return (g < 0) == (want < 0);
    return abs(rank_of(got) - rank_of(best)) <= ulps || fabs(g - want) <= fmax(slack, TINY);
}

/* Where f32 steps cancel, the error is absolute. PyTorch has the same formulas, and these errors. */
static const struct cancels {
    const char *op, *why;
    double result, gradient;
} cancels[] = {
    {"gelu", "x · (1 + erf(x/√2)) for x < -4.5", 0x1p-22, 0x1p-21},
    {"tanh", "1 - y² for |x| > 7", 0, 0x1p-23},
    {"sigmoid", "y · (1 - y) for x > 12", 0, 0x1p-23},
    {"expm1", "y + 1 for x < -13", 0, 0x1p-23},
    {"tanhshrink", "x - tanh(x) near 0", 0x1p-24, 0},
    {"i0e", "i1e - i0e for |x| > 10 000", 0, 0x1p-31},
    {"i1e", "i0e - i1e for |x| > 10 000", 0, 0x1p-31},
};

static double slack_of(int op, bool gradient) {
    for (size_t i = 0; i < TN_COUNT(cancels); i++)
        if (strcmp(cancels[i].op, tn_op(op)->name) == 0) return gradient ? cancels[i].gradient : cancels[i].result;
    return 0;
}

/* ---- which ops --------------------------------------------------------------------------------------------------- */

enum { MOST_NODES = 1000 };
typedef struct visited {
    const tn_node *node[MOST_NODES];
    int count;
} visited;

/* Does each element of n come from the elements at its own place alone? */
static bool is_elementwise(tn_node *n, visited *v) {
    if (n->op == TN_OP_NONE || n->op == TN_OP_FULL) return true;
    for (int i = 0; i < v->count; i++)
        if (v->node[i] == n) return true;
    assert_true(v->count < MOST_NODES);
    v->node[v->count++] = n;
    const tn_op_row *row = tn_op(n->op);
    if (row->kind == TN_COMPOSED) return tn_expand_node(n) == TN_OK && is_elementwise(n->expansion, v);
    if (row->impl->class_ != TN_ELEMENTWISE && n->op != TN_OP_CONTIGUOUS) return false;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && !is_elementwise(n->in[i], v)) return false;
    return true;
}

static bool takes_half(const tn_case *c) {
    bool any = false;
    for (int i = 0; i < c->n_in; i++)
        any |= !c->in[i].absent && c->in[i].dtype == c->type;
    return any && !c->error[0];
}

/* least to most inputs, all of them of one float type. */
static bool takes_only_half(const tn_case *c, int least, int most) {
    int count = 0;
    for (int i = 0; i < c->n_in; i++) {
        count += !c->in[i].absent;
        if (!c->in[i].absent && c->in[i].dtype != c->type) return false;
    }
    return count >= least && count <= most && !c->error[0];
}

/* The case with halves in place of its own type. */
static void as_half(tn_case *c, tn_dtype t) {
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i].dtype == c->type) c->in[i].dtype = t;
    c->type = t;
}

/* ---- one op on given halves -------------------------------------------------------------------------------------- */

typedef struct sweep {
    int op;
    const tn_case *c;
    tn_dtype type;
    int64_t count;
    uint16_t *in[TN_CASE_INPUTS];
} sweep;

static tn_tensor *applied(const sweep *s, tn_tensor **in) {
    for (int i = 0; i < s->c->n_in; i++) {
        in[i] = s->c->in[i].absent ? NULL : tn_from_data(s->in[i], &s->count, 1, s->type);
    }
    return tn_record(s->op, (const tn_tensor *const *)in, s->c->n_in, &s->c->attrs);
}

/* The largest finite value on the way to each element. */
static double *largest_of(const tn_reference_values *v, int64_t count) {
    double *most = calloc((size_t)count, sizeof *most);
    for (size_t k = 0; k < v->count; k++) {
        if (v->entries[k].node->op == TN_OP_FULL) continue;
        int64_t n = tn_node_numel(v->entries[k].node);
        for (int64_t i = 0; i < count && (n == count || n == 1); i++) {
            double size = fabs(v->entries[k].values[n == 1 ? 0 : i]);
            if (isfinite(size) && size > most[i]) most[i] = size;
        }
    }
    return most;
}

static void complain(const sweep *s, const char *what, int64_t i, double got, double want) {
    char text[400];
    int length = snprintf(text, sizeof text, "%s (%.*s) of %s, %s: of", tn_op(s->op)->name, s->c->length, s->c->text,
                          tn_dtype_name(s->type), what);
    for (int k = 0; k < s->c->n_in; k++)
        if (s->in[k])
            length += snprintf(text + length, sizeof text - (size_t)length, " %.9g", value_of(s->type, s->in[k][i]));
    print_error("%s: %.9g, it should be %.9g (%.2f ulp)\n", text, got, want, fabs(got - want) / ulp_of(s->type, want));
}

/* Compares t's elements with its definition; returns how many are wrong. f32_bits: what the steps may lose, relative to
 * the largest of them. */
static int wrong(const sweep *s, const char *what, const tn_tensor *t, int ulps, double slack, double f32_bits) {
    enum { SHOWN = 3 };
    tn_reference_values v = {0};
    const double *want = NULL;
    tn_dtype type = tn_dtype_of(t);
    uint16_t *got = calloc((size_t)s->count, sizeof *got);
    int faults = 0;
    assert_ok(tn_reference_of(&v, tn_tensor_node(t), &want));
    double *most = largest_of(&v, s->count);
    assert_ok(tn_read(t, got, (size_t)s->count * tn_dtype_size(type)));
    for (int64_t i = 0; i < s->count; i++) {
        if (is_near(type, got[i], want[i], ulps, slack + most[i] * f32_bits)) continue;
        if (faults++ < SHOWN) complain(s, what, i, value_of(type, got[i]), want[i]);
    }
    tn_reference_free(&v);
    free(most);
    free(got);
    return faults;
}

/* Of one input the bound is absolute; of several, sums cancel at any value. */
static double lost_bits(const sweep *s, double several) { return s->c->n_in > 1 ? several : 0; }

static int sweep_forward(const sweep *s) {
    TN_SCOPE;
    tn_tensor *in[TN_CASE_INPUTS], *y = applied(s, in);
    assert_ok(tn_status_of(y));
    if (tn_dtype_of(y) != s->type) return 0;
    return wrong(s, "result", y, 1, slack_of(s->op, false), lost_bits(s, 0x1p-23));
}

static int sweep_backward(const sweep *s) {
    TN_SCOPE;
    tn_tensor *in[TN_CASE_INPUTS], *leaf[TN_CASE_INPUTS], *grad[TN_CASE_INPUTS];
    int leaves = 0, faults = 0;
    for (int i = 0; i < s->c->n_in; i++)
        in[i] = s->c->in[i].absent ? NULL : tn_from_data(s->in[i], &s->count, 1, s->type);
    for (int i = 0; i < s->c->n_in; i++)
        if (in[i]) leaf[leaves++] = in[i];
    for (int i = 0; i < leaves; i++)
        assert_ok(tn_set_requires_grad(leaf[i], true));
    tn_tensor *y = tn_record(s->op, (const tn_tensor *const *)in, s->c->n_in, &s->c->attrs);
    if (!tn_requires_grad(y) || tn_dtype_of(y) != s->type) return 0;
    tn_tensor *dy = tn_full(&s->count, 1, 0.7, s->type);
    assert_ok(tn_eval(&dy, 1));
    assert_ok(tn_gradients(&y, 1, &dy, leaf, leaves, false, grad));
    for (int i = 0; i < leaves; i++) {
        faults += wrong(s, "gradient", grad[i], 2, slack_of(s->op, true), lost_bits(s, 0x1p-22));
        tn_free(grad[i]);
    }
    return faults;
}

/* ---- all values -------------------------------------------------------------------------------------------------- */

typedef int sweep_function(const sweep *s);

/* Same attributes as an earlier case: the values of the case are not used here, so it would be the same sweep. */
static bool is_elementwise_case(int op, const tn_case *c) {
    TN_SCOPE;
    tn_tensor *in[TN_CASE_INPUTS];
    int64_t four = 4;
    for (int i = 0; i < c->n_in; i++)
        in[i] = c->in[i].absent ? NULL : tn_cast(tn_ones(&four, 1, TN_F32), c->in[i].dtype);
    tn_tensor *y = tn_record(op, (const tn_tensor *const *)in, c->n_in, &c->attrs);
    if (tn_status_of(y) != TN_OK || tn_rank(y) != 1 || tn_numel(y) != four) return false;
    visited v = {.count = 0};
    return is_elementwise(tn_tensor_node(y), &v);
}

/* Calls f for each element-wise op with `inputs` inputs, once for each of its settings. */
static int for_each_op(int least, int most, sweep *s, sweep_function *f, int *ops) {
    int faults = 0;
    for (int op = 0; op < tn_op_count(); op++) {
        tn_case_reader r;
        tn_case c;
        tn_attrs done[32];
        int settings = 0;
        bool more = true;
        if (!tn_op(op)->impl || !tn_op(op)->impl->cases) continue;
        for (tn_cases_begin(&r, op);;) {
            assert_ok(tn_cases_next(&r, &c, &more));
            if (!more) break;
            if (!takes_only_half(&c, least, most)) continue;
            as_half(&c, s->type);
            bool known = false;
            for (int k = 0; k < settings; k++)
                known |= done[k].n_i == c.attrs.n_i && !memcmp(done[k].i, c.attrs.i, c.attrs.n_i * sizeof *c.attrs.i) &&
                         !memcmp(done[k].f, c.attrs.f, c.attrs.n_f * sizeof *c.attrs.f);
            if (known || settings == TN_COUNT(done) || !is_elementwise_case(op, &c)) continue;
            done[settings++] = c.attrs;
            s->op = op;
            s->c = &c;
            faults += f(s);
        }
        *ops += settings > 0;
    }
    return faults;
}

static void sweep_all_values(tn_dtype t, sweep_function *f) {
    const int every = test_every(4, 16);
    sweep s = {.type = t, .count = PATTERNS / every};
    int ops = 0;
    s.in[0] = calloc(PATTERNS, sizeof *s.in[0]);
    for (int i = 0; i < PATTERNS / every; i++)
        s.in[0][i] = (uint16_t)(i * every + i % every);
    int faults = for_each_op(1, 1, &s, f, &ops);
    free(s.in[0]);
    print_message("%d ops\n", ops);
    assert_true(ops > 60);
    assert_int_equal(faults, 0);
}

static void unary_ops_of_f16_are_right_to_an_ulp_for_all_values(void **state) {
    (void)state;
    sweep_all_values(TN_F16, sweep_forward);
}
static void unary_ops_of_bf16_are_right_to_an_ulp_for_all_values(void **state) {
    (void)state;
    sweep_all_values(TN_BF16, sweep_forward);
}
static void gradients_of_unary_ops_of_f16_are_right_for_all_values(void **state) {
    (void)state;
    sweep_all_values(TN_F16, sweep_backward);
}
static void gradients_of_unary_ops_of_bf16_are_right_for_all_values(void **state) {
    (void)state;
    sweep_all_values(TN_BF16, sweep_backward);
}

/* ---- several inputs ---------------------------------------------------------------------------------------------- */

/* Each of these with each other, then numbers of all sizes that f32 can square. */
static const double edges[] = {0,     -0.0, 1,     -1,      0.5,    -0.5, 3,     -3,      0.1,      -0.1,      1e-3,
                               -1e-3, 100,  -1000, 65504.0, -65504, 3e-5, -3e-5, 1 / 3.0, INFINITY, -INFINITY, NAN};

static void fill_inputs(sweep *s, int inputs) {
    const int64_t random = 20000 / test_every(5, 20);
    int64_t pairs = (int64_t)TN_COUNT(edges) * TN_COUNT(edges);
    s->count = pairs + random;
    for (int k = 0; k < inputs; k++) {
        uint64_t seed = 77 + (uint64_t)k;
        s->in[k] = calloc((size_t)s->count, sizeof *s->in[k]);
        for (int64_t i = 0; i < s->count; i++) {
            uint64_t word[2] = {seed, (uint64_t)i}, bits = tn_hash64(word, sizeof word, 0);
            double v = ldexp((double)(bits >> 40) / 0x1p24 + 1, (int)(bits % 24) - 12) * (bits >> 32 & 1 ? -1 : 1);
            if (i < pairs)
                v = edges[k == 0   ? i % (int64_t)TN_COUNT(edges)
                          : k == 1 ? i / (int64_t)TN_COUNT(edges)
                                   : (i * 7) % (int64_t)TN_COUNT(edges)];
            s->in[k][i] = half_of(s->type, v);
        }
    }
}

static void sweep_several(tn_dtype t, sweep_function *f) {
    enum { MOST = 3 };
    sweep s = {.type = t};
    int ops = 0;
    fill_inputs(&s, MOST);
    int faults = for_each_op(2, MOST, &s, f, &ops);
    for (int k = 0; k < MOST; k++)
        free(s.in[k]);
    print_message("%d ops\n", ops);
    assert_true(ops > 20);
    assert_int_equal(faults, 0);
}

static void ops_of_several_inputs_round_once(void **state) {
    (void)state;
    sweep_several(TN_F16, sweep_forward);
    sweep_several(TN_BF16, sweep_forward);
}
static void gradients_of_several_inputs_round_once(void **state) {
    (void)state;
    sweep_several(TN_F16, sweep_backward);
    sweep_several(TN_BF16, sweep_backward);
}

/* ---- everything else, by its cases ------------------------------------------------------------------------------- */

/* A result whose own case allows it in f32 may be an ulp of a half away from that. */
static bool allows_half(const tn_case *c, tn_dtype t, double got, double want, int ulps) {
    if (got == value_of(t, half_of(t, want))) return true;
    tn_case loose = *c;
    loose.absolute += 1e-6;
    loose.relative += ulps * (t == TN_F16 ? 0x1p-10 : 0x1p-7);
    loose.absolute += t == TN_F16 ? 0x1p-24 : 0;
    return tn_case_allows(&loose, TN_F32, got, (double)(float)want);
}

static int compare_case(const trial *t, const char *what, const tn_tensor *y, int ulps) {
    tn_reference_values v = {0};
    const double *want = NULL;
    int faults = 0;
    assert_ok(tn_reference_of(&v, tn_tensor_node(y), &want));
    double *got = trial_doubles(y);
    for (int64_t i = 0; i < tn_numel(y); i++) {
        if (allows_half(t->c, tn_dtype_of(y), got[i], want[i], ulps) || faults++ > 3) continue;
        print_error("%s, case '%.*s' of %s, %s %lld: %.9g, it should be %.9g\n", tn_op(t->op)->name, t->c->length,
                    t->c->text, tn_dtype_name(t->c->type), what, (long long)i, got[i], want[i]);
    }
    free(got);
    tn_reference_free(&v);
    return faults;
}

static int run_half_case(trial *t) {
    TN_SCOPE;
    tn_tensor *leaf[TN_CASE_INPUTS], *grad[TN_CASE_INPUTS];
    int leaves = 0, faults = 0;
    trial_make_tensors(t, false);
    for (int i = 0; i < t->c->n_in; i++)
        if (!t->c->in[i].absent && t->c->in[i].dtype == t->c->type) leaf[leaves++] = t->in[i];
    for (int i = 0; i < leaves; i++)
        assert_ok(tn_set_requires_grad(leaf[i], true));
    tn_tensor *y = trial_apply(t);
    if (tn_status_of(y) != TN_OK) return 0; /* the op takes no halves */
    faults += compare_case(t, "element", y, 1);
    if (!t->c->gradient || !tn_requires_grad(y)) return faults;
    tn_tensor *dy = tn_full(tn_shape(y), tn_rank(y), 0.7, tn_dtype_of(y));
    assert_ok(tn_gradients(&y, 1, &dy, leaf, leaves, false, grad));
    for (int i = 0; i < leaves; i++) {
        faults += compare_case(t, "gradient's element", grad[i], 2);
        tn_free(grad[i]);
    }
    return faults;
}

static void every_case_of_a_composed_op_holds_in_half_precision(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_F16, TN_BF16};
    int faults = 0, cases = 0;
    for (int op = 0; op < tn_op_count(); op++) {
        tn_case_reader r;
        tn_case c;
        bool more = true;
        const tn_op_impl *impl = tn_op(op)->impl;
        if (!impl || !impl->cases || tn_op(op)->kind != TN_COMPOSED || impl->keeps_half) continue;
        for (tn_cases_begin(&r, op);;) {
            assert_ok(tn_cases_next(&r, &c, &more));
            if (!more) break;
            if (c.type != TN_F32 || !takes_half(&c)) continue;
            for (int k = 0; k < 2; k++) {
                as_half(&c, types[k]);
                trial t = {.op = op, .c = &c, .seed = 7};
                trial_make_values(&t);
                faults += run_half_case(&t);
                trial_free_values(&t);
                cases++;
            }
        }
    }
    print_message("%d cases\n", cases);
    assert_true(cases > 200);
    assert_int_equal(faults, 0);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* How many products n is computed with; each has to be of halves. */
static int products_of_half(tn_node *n, visited *v) {
    if (n->op == TN_OP_NONE || n->op == TN_OP_FULL) return 0;
    for (int i = 0; i < v->count; i++)
        if (v->node[i] == n) return 0;
    assert_true(v->count < MOST_NODES);
    v->node[v->count++] = n;
    const tn_op_row *row = tn_op(n->op);
    bool conv = n->op == TN_OP_CONV2D_FORWARD || n->op == TN_OP_CONV2D_DGRAD;
    bool product = row->impl->class_ == TN_MATMUL || conv;
    bool converted = conv && tn_conv_in_f32(n->in[0]->op == TN_OP_CAST ? n->in[0]->in[0] : n);
    if (product && !converted) assert_true(tn_dtype_is_half(n->in[0]->dtype) && tn_dtype_is_half(n->in[1]->dtype));
    if (row->kind == TN_COMPOSED) {
        assert_ok(tn_expand_node(n));
        return products_of_half(n->expansion, v);
    }
    int count = product;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) count += products_of_half(n->in[i], v);
    return count;
}

/* A product of halves has kernels that take them, and matrix units: what surrounds it must not make it one of f32. */
static void products_of_halves_stay_products_of_halves(void **state) {
    (void)state;
    static const char *const names[] = {"matmul",  "mm",   "bmm",  "mv",     "dot",    "linear",          "addmm",
                                        "baddbmm", "gemm", "gemv", "conv1d", "conv2d", "conv_transpose2d"};
    for (size_t k = 0; k < TN_COUNT(names); k++) {
        TN_SCOPE;
        int op = 0;
        while (strcmp(tn_op(op)->name, names[k]) != 0)
            op++;
        tn_case_reader r;
        tn_case c;
        bool more = true;
        tn_cases_begin(&r, op);
        assert_ok(tn_cases_next(&r, &c, &more));
        as_half(&c, TN_F16);
        trial t = {.op = op, .c = &c, .seed = 1};
        trial_make_values(&t);
        trial_make_tensors(&t, false);
        tn_tensor *y = trial_apply(&t);
        assert_ok(tn_status_of(y));
        visited v = {.count = 0};
        if (products_of_half(tn_tensor_node(y), &v) == 0) fail_msg("%s: no product", names[k]);
        trial_free_values(&t);
    }
}

/* ---- what was seen to be wrong ----------------------------------------------------------------------------------- */

static double item_of(const tn_tensor *y) {
    double *v = trial_doubles(y), first = v[0];
    free(v);
    return first;
}

static void values_that_a_step_in_half_loses_are_right(void **state) {
    (void)state;
    enum { LONG = 512 };
    TN_SCOPE;
    tn_tensor *x = tn_full(NULL, 0, 256, TN_F16), *y = tn_full(NULL, 0, -3, TN_BF16);
    assert_float_equal(item_of(tn_asinh(x)), asinh(256), 0.004);
    assert_float_equal(item_of(tn_gelu(y, NULL)), -0.00405, 0.00002);
    assert_float_equal(item_of(tn_acosh(tn_full(NULL, 0, 40000, TN_F16))), acosh(40000), 0.008);
    assert_float_equal(item_of(tn_silu(tn_full(NULL, 0, -12, TN_F16))), -7.3730e-5, 1e-7);
    tn_tensor *row = tn_full(TN_DIMS(LONG), 300, TN_F16);
    assert_float_equal(item_of(tn_cosine_similarity(row, row, 0, NULL)), 1, 0);
    assert_float_equal(item_of(tn_mse_loss(row, tn_neg(row), TN_REDUCTION_MEAN)), INFINITY, 0);
    assert_float_equal(item_of(tn_huber_loss(row, tn_neg(row), TN_REDUCTION_MEAN, NULL)), 599.5, 0);
    assert_float_equal(
        item_of(tn_addmm(x, tn_full(TN_DIMS(1, 1), 200, TN_F16), tn_full(TN_DIMS(1, 1), 300, TN_F16), 0.5, 0.5)), 30128,
        0);
    double *even = trial_doubles(tn_linspace(0, 3000, 3001, TN_F16));
    for (int i = 0; i <= 3000; i++)
        assert_float_equal(even[i], value_of(TN_F16, half_of(TN_F16, i)), 0);
    free(even);
}

/* Factors of ones and a sum that lies between two halves: `bias` brings it to one of them. Rounded before that too, it
 * would be `bias` too small. */
typedef struct between {
    tn_dtype type;
    double most, bias;
} between;

static const between sums[] = {{TN_F16, 2048, 1}, {TN_BF16, 256, 1}};

/* [rows, k] or [batch, channels, …] whose products with ones sum to most + 1. */
static tn_tensor *summands(const between *c, const int64_t *shape, int rank, int64_t k) {
    tn_tensor *rest = tn_zeros(TN_DIMS(k - 2), c->type);
    tn_tensor *both[] = {tn_full(TN_DIMS(1), c->most, c->type), tn_ones(TN_DIMS(1), c->type), rest};
    int64_t all[TN_MAX_RANK];
    memcpy(all, shape, (size_t)rank * sizeof *all);
    for (int d = 2; d < rank; d++)
        all[d] = 1;
    tn_tensor *line = tn_cat(both, 3, 0);
    return tn_contiguous(tn_expand(rank > 1 ? tn_reshape(line, (int64_t[]){1, k, 1, 1}, rank) : line, shape, rank));
}

static void expect_all(tn_tensor *y, const between *c, const char *what) {
    assert_ok(tn_status_of(y));
    assert_int_equal(tn_dtype_of(y), c->type);
    double *v = trial_doubles(y), want = c->most + 1 + c->bias;
    for (int64_t i = 0; i < tn_numel(y); i++)
        if (v[i] != want)
            fail_msg("%s, %s: [%lld] is %g, not %g", what, tn_dtype_name(c->type), (long long)i, v[i], want);
    free(v);
}

static void check_biased(const between *c, int64_t rows, int64_t k, int64_t columns) {
    TN_SCOPE;
    tn_tensor *x = tn_expand(tn_unsqueeze(summands(c, &k, 1, k), 0), TN_DIMS(rows, k));
    tn_tensor *w = tn_ones(TN_DIMS(columns, k), c->type), *turned = tn_t(w), *one = tn_ones(TN_DIMS(k), c->type);
    tn_tensor *bias = tn_full(TN_DIMS(columns), c->bias, c->type), *number = tn_full(NULL, 0, c->bias, c->type);
    expect_all(tn_linear(x, w, bias), c, "linear");
    expect_all(tn_linear(tn_select(x, 0, 0), w, bias), c, "linear of a vector");
    expect_all(tn_linear(x, one, number), c, "linear with a weight [in]");
    expect_all(tn_addmm(bias, x, turned, 1, 1), c, "addmm");
    expect_all(tn_gemm(x, turned, bias, 1, 1, false, false), c, "gemm");
    expect_all(tn_gemv(x, one, number, 1, 1, false), c, "gemv");
    tn_tensor *batch = tn_expand(tn_unsqueeze(x, 0), TN_DIMS(2, rows, k));
    tn_tensor *weights = tn_expand(tn_unsqueeze(turned, 0), TN_DIMS(2, k, columns));
    expect_all(tn_baddbmm(bias, batch, weights, 1, 1), c, "baddbmm");
}

static void check_biased_windows(const between *c, int64_t channels, int64_t out, int64_t side) {
    TN_SCOPE;
    tn_tensor *images = summands(c, TN_DIMS(2, channels, side, side), channels);
    tn_tensor *bias = tn_full(TN_DIMS(out), c->bias, c->type);
    tn_tensor *w = tn_ones(TN_DIMS(out, channels, 1, 1), c->type);
    tn_tensor *back = tn_ones(TN_DIMS(channels, out, 1, 1), c->type);
    expect_all(tn_conv2d(images, w, bias, NULL), c, "conv2d");
    expect_all(tn_conv2d(tn_select(images, 0, 0), w, bias, NULL), c, "conv2d without a batch");
    expect_all(tn_conv_transpose2d(images, back, bias, NULL), c, "conv_transpose2d");
    tn_tensor *line = tn_select(images, 2, 0);
    expect_all(tn_conv1d(line, tn_squeeze(w, TN_DIMS(3)), bias, NULL), c, "conv1d");
    /* one channel a group: of the window's two taps, most and 1 */
    tn_tensor *pair[] = {tn_full(TN_DIMS(1), c->most, c->type), tn_ones(TN_DIMS(1), c->type)};
    tn_tensor *taps = tn_expand(tn_view(tn_cat(pair, 2, 0), TN_DIMS(1, 1, 1, 2)), TN_DIMS(out, 1, 1, 2));
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.groups = out;
    expect_all(tn_conv2d(tn_ones(TN_DIMS(1, out, side, side), c->type), taps, bias, &o), c, "depthwise conv2d");
}

static void a_bias_is_added_before_the_sum_is_rounded(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(sums); i++) {
        check_biased(&sums[i], 1, 2, 1);
        check_biased(&sums[i], 3, 5, 4);
        check_biased(&sums[i], 70, 33, 65);
        check_biased_windows(&sums[i], 2, 3, 4);
        check_biased_windows(&sums[i], 20, 17, 12);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_ops_of_f16_are_right_to_an_ulp_for_all_values),
        cmocka_unit_test(unary_ops_of_bf16_are_right_to_an_ulp_for_all_values),
        cmocka_unit_test(gradients_of_unary_ops_of_f16_are_right_for_all_values),
        cmocka_unit_test(gradients_of_unary_ops_of_bf16_are_right_for_all_values),
        cmocka_unit_test(ops_of_several_inputs_round_once),
        cmocka_unit_test(gradients_of_several_inputs_round_once),
        cmocka_unit_test(every_case_of_a_composed_op_holds_in_half_precision),
        cmocka_unit_test(products_of_halves_stay_products_of_halves),
        cmocka_unit_test(values_that_a_step_in_half_loses_are_right),
        cmocka_unit_test(a_bias_is_added_before_the_sum_is_rounded),
    };
    return cmocka_run_group_tests_name("half", tests, NULL, NULL);
}
