/* test_ops.c — every op of the table, by the cases that stand in its row's code (docs/new-op.md has their language).
 *
 * For each case: the result against the op's definition in f64 — for a composed op the composition of definitions, and
 * its own one where it has one —, the same from strided views of the inputs, refusals by a word of their text,
 * gradients against central differences, second derivatives too; for element-wise ops all pairs of special values;
 * every allocation that fails in its turn. TRUNNION_TEST_FULL=1 does so for many more values. */
#include "test_support.h"
#include "trial.h"

#include <math.h>

#include "check/check.h"
#include "ops/ops_common.h"
#include "trunnion/autograd.h"

enum {
    MOST_DIFFERENCES = 80, /* elements of inputs that are moved to measure a gradient */
    MOST_DIFFERENCES_FULL = 600,
    MOST_SECOND = 24, /* the same for second derivatives */
    SEEDS = 2,        /* values that each case is run with */
    SEEDS_FULL = 12
};

static bool full_run(void) { return getenv("TRUNNION_TEST_FULL") != NULL; }

static void say(const trial *t, const char *what) {
    print_error("%s, case '%.*s' with %s: %s\n", tn_op(t->op)->name, t->c->length, t->c->text,
                tn_dtype_name(t->c->type), what);
}

static void complain(const trial *t, const char *what, int64_t at, double got, double want) {
    char text[200];
    snprintf(text, sizeof text, "%s: element %lld is %.17g, it should be %.17g", what, (long long)at, got, want);
    say(t, text);
    fail();
}

static void compare(const trial *t, const char *what, const double *got, const double *want, int64_t n,
                    tn_dtype dtype) {
    for (int64_t i = 0; i < n; i++)
        if (!tn_case_allows(t->c, dtype, got[i], want[i])) complain(t, what, i, got[i], want[i]);
}

static const double *reference_values(const trial *t, tn_reference_values *v, tn_node *n) {
    const double *out = NULL;
    if (tn_reference_of(v, n, &out) == TN_OK) return out;
    say(t, tn_error());
    fail();
    return NULL;
}

/* A composed op that has a definition of its own: does its composition mean the same? */
static void check_definition(const trial *t, tn_node *n, tn_reference_values *v, const double *composed) {
    const tn_op_row *row = tn_op(t->op);
    if (row->kind != TN_COMPOSED || !tn_op_has_reference(row)) return;
    const double *in[TN_CASE_INPUTS];
    for (int i = 0; i < n->n_in; i++)
        in[i] = reference_values(t, v, n->in[i]);
    int64_t count = tn_node_numel(n);
    double *own = calloc((size_t)count + 1, sizeof *own);
    tn_op_reference(&(tn_reference){.node = n, .in = in, .out = own});
    for (int64_t i = 0; i < count; i++)
        if (fabs(own[i] - composed[i]) > 1e-13 * fabs(own[i])) complain(t, "the composition", i, composed[i], own[i]);
    free(own);
}

/* Views that cannot be had of any strides, and kernels whose composition lays their inputs out for them. */
static bool needs_layout(int op) {
    return op == TN_OP_VIEW || op == TN_OP_AS_STRIDED || op == TN_OP_LINEAR_QUANTIZED || op == TN_OP_LINEAR_HALF ||
           tn_op(op)->impl->class_ == TN_NATIVE;
}

static void check_forward(trial *t, bool strided) {
    TN_SCOPE;
    trial_make_tensors(t, strided);
    tn_tensor *y = trial_apply(t);
    if (strided && tn_status_of(y) != TN_OK && needs_layout(t->op)) return;
    if (tn_status_of(y) != TN_OK) {
        say(t, tn_error());
        fail();
    }
    tn_reference_values v = {0};
    const double *want = reference_values(t, &v, tn_tensor_node(y));
    check_definition(t, tn_tensor_node(y), &v, want);
    double *got = trial_doubles(y);
    compare(t, strided ? "from strided inputs" : "forward", got, want, tn_numel(y), tn_dtype_of(y));
    free(got);
    tn_reference_free(&v);
}

static void check_refusal(trial *t) {
    TN_SCOPE;
    trial_make_tensors(t, false);
    tn_tensor *y = trial_apply(t);
    if (tn_status_of(y) == TN_OK) {
        say(t, "it should be refused");
        fail();
    }
    assert_text_has(tn_error(), t->c->error);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Σ y · weight, by definitions, with the values of the inputs as they now are. */
static double weighted_sum(const trial *t, tn_node *const *leaves, tn_node *y, const double *weight) {
    tn_reference_values v = {0};
    for (int i = 0; i < t->c->n_in; i++)
        if (leaves[i]) tn_reference_set(&v, leaves[i], t->values[i]);
    const double *values = reference_values(t, &v, y);
    double sum = 0;
    for (int64_t k = 0, n = tn_node_numel(y); k < n; k++)
        sum += values[k] * weight[k];
    tn_reference_free(&v);
    return sum;
}

/* d(Σ y · weight) / d(input i, element k), by a central difference. */
static double difference(trial *t, tn_node *const *leaves, tn_node *y, const double *weight, int i, int64_t k) {
    double *x = &t->values[i][k], before = *x, step = 1e-5 * fmax(1, fabs(before));
    *x = before + step;
    double above = weighted_sum(t, leaves, y, weight);
    *x = before - step;
    double below = weighted_sum(t, leaves, y, weight);
    *x = before;
    return (above - below) / (2 * step);
}

static bool moves(const trial *t, int i) { return !t->c->in[i].absent && t->c->in[i].dtype == TN_F64; }

static int64_t elements_to_move(const trial *t) {
    int64_t n = 0;
    for (int i = 0; i < t->c->n_in; i++)
        if (moves(t, i)) n += trial_numel(t->c->in[i].shape, t->c->in[i].rank);
    return n;
}

static void check_gradient_of(trial *t, tn_node *const *leaves, tn_node *y, const double *weight, int i,
                              tn_tensor *grad, const char *what) {
    tn_reference_values v = {0};
    tn_node *g = tn_tensor_node(grad);
    for (int k = 0; k < t->c->n_in; k++)
        if (leaves[k]) tn_reference_set(&v, leaves[k], t->values[k]);
    int64_t n = tn_node_numel(g);
    double *defined = calloc((size_t)n + 1, sizeof *defined);
    memcpy(defined, reference_values(t, &v, g), (size_t)n * sizeof *defined);
    tn_reference_free(&v);
    for (int64_t k = 0; k < n; k++) {
        double measured = difference(t, leaves, y, weight, i, k);
        if (fabs(defined[k] - measured) <= 2e-6 * fmax(1, fabs(measured))) continue;
        char text[80];
        snprintf(text, sizeof text, "%s of input %d", what, i + 1);
        complain(t, text, k, defined[k], measured);
    }
    double *computed = trial_doubles(grad);
    for (int64_t k = 0; k < n; k++)
        if (fabs(computed[k] - defined[k]) > 1e-9 * fmax(1, fabs(defined[k])))
            complain(t, "computed gradient", k, computed[k], defined[k]);
    free(defined);
    free(computed);
}

static double *weights(int64_t n) {
    double *w = calloc((size_t)n + 1, sizeof *w);
    tn_case_values(&(tn_case_input){.dtype = TN_F64, .rank = 1, .shape = {n}, .low = 0.5, .high = 1.5}, 99, w);
    return w;
}

/* All leaves whose gradients are asked for, in a row. */
typedef struct asked {
    tn_tensor *leaf[TN_CASE_INPUTS], *grad[TN_CASE_INPUTS];
    tn_node *node[TN_CASE_INPUTS]; /* by input; NULL for those that do not move */
    int input[TN_CASE_INPUTS], count;
} asked;

static asked ask(trial *t) {
    asked a = {0};
    for (int i = 0; i < t->c->n_in; i++) {
        if (!moves(t, i)) continue;
        assert_ok(tn_set_requires_grad(t->in[i], true));
        a.leaf[a.count] = t->in[i];
        a.input[a.count++] = i;
        a.node[i] = tn_tensor_node(t->in[i]);
    }
    return a;
}

static void check_second_order(trial *t, asked *a) {
    tn_tensor *sum = tn_scalar(0);
    for (int k = 0; k < a->count; k++) {
        double *w = weights(tn_numel(a->grad[k]));
        tn_tensor *weight = trial_tensor(w, tn_shape(a->grad[k]), tn_rank(a->grad[k]), TN_F64);
        sum = tn_add(sum, tn_sum(tn_mul(a->grad[k], weight), TN_ALL, false));
        free(w);
    }
    if (!tn_requires_grad(sum)) return;
    tn_tensor *second[TN_CASE_INPUTS];
    assert_ok(tn_gradients(&sum, 1, NULL, a->leaf, a->count, false, second));
    for (int k = 0; k < a->count; k++)
        check_gradient_of(t, a->node, tn_tensor_node(sum), (double[]){1}, a->input[k], second[k], "second derivative");
}

static void check_gradients(trial *t) {
    int64_t moved = elements_to_move(t);
    if (!t->c->gradient || moved == 0 || moved > (full_run() ? MOST_DIFFERENCES_FULL : MOST_DIFFERENCES)) return;
    TN_SCOPE;
    trial_make_tensors(t, false);
    asked a = ask(t);
    tn_tensor *y = trial_apply(t);
    if (tn_requires_grad(y) && tn_numel(y) > 0) {
        double *w = weights(tn_numel(y));
        tn_tensor *dy = trial_tensor(w, tn_shape(y), tn_rank(y), tn_dtype_of(y));
        if (tn_dtype_of(y) == TN_F64) {
            assert_ok(tn_gradients(&y, 1, &dy, a.leaf, a.count, true, a.grad));
            for (int k = 0; k < a.count; k++)
                check_gradient_of(t, a.node, tn_tensor_node(y), w, a.input[k], a.grad[k], "gradient");
            if (moved <= MOST_SECOND) check_second_order(t, &a);
        }
        free(w);
    }
}

/* ---- special values ---------------------------------------------------------------------------------------------- */

static const double specials_f32[] = {
    NAN, INFINITY,       -INFINITY,       0.0,      -0.0,      1,        -1,        0.5,          -0.5,  2,   3,
    -3,  0x1.FFFFFEp127, -0x1.FFFFFEp127, 0x1p-126, -0x1p-126, 0x1p-149, -0x1p-149, 0x1.000002p0, 1e10f, -7.5};
static const double specials_f64[] = {NAN,
                                      INFINITY,
                                      -INFINITY,
                                      0.0,
                                      -0.0,
                                      1,
                                      -1,
                                      0.5,
                                      -0.5,
                                      2,
                                      3,
                                      -3,
                                      0x1.FFFFFFFFFFFFFp1023,
                                      -0x1.FFFFFFFFFFFFFp1023,
                                      0x1p-1022,
                                      -0x1p-1022,
                                      0x1p-1074,
                                      -0x1p-1074,
                                      0x1.0000000000001p0,
                                      1e100,
                                      -7.5};
enum { SPECIALS = TN_COUNT(specials_f32) };

static double as_dtype(tn_dtype t, double v) { return t == TN_F32 ? (double)(float)v : v; }

static void check_specials_with(int op, const tn_case *like, tn_dtype dtype) {
    const double *all = dtype == TN_F32 ? specials_f32 : specials_f64;
    tn_case c = *like;
    c.text = "special values";
    c.length = (int)strlen(c.text);
    c.type = dtype;
    for (int i = 0; i < c.n_in; i++)
        c.in[i] = (tn_case_input){.dtype = dtype, .rank = 1, .shape = {SPECIALS * SPECIALS}};
    trial t = {.op = op, .c = &c};
    for (int i = 0; i < c.n_in; i++) {
        t.values[i] = calloc(SPECIALS * SPECIALS, sizeof(double));
        for (int k = 0; k < SPECIALS * SPECIALS; k++)
            t.values[i][k] = all[i == 0 ? k % SPECIALS : k / SPECIALS];
    }
    {
        TN_SCOPE;
        trial_make_tensors(&t, false);
        tn_tensor *y = trial_apply(&t);
        assert_ok(tn_status_of(y));
        double *want = calloc(SPECIALS * SPECIALS, sizeof *want);
        const double *in[2] = {t.values[0], t.values[1]};
        tn_op_reference(&(tn_reference){.node = tn_tensor_node(y), .in = in, .out = want});
        double *got = trial_doubles(y);
        for (int k = 0; k < SPECIALS * SPECIALS; k++) {
            double rounded = as_dtype(tn_dtype_of(y), want[k]);
            bool zero_fits = rounded != 0 || got[k] != 0 || signbit(rounded) == signbit(got[k]);
            if (zero_fits && tn_case_allows(&c, tn_dtype_of(y), got[k], want[k])) continue;
            char text[120];
            snprintf(text, sizeof text, "of %g and %g", in[0][k], c.n_in > 1 ? in[1][k] : 0.0);
            complain(&t, text, k, got[k], want[k]);
        }
        free(got);
        free(want);
    }
    trial_free_values(&t);
}

/* Element-wise ops of one or two operands of one float type, that say by themselves what they yield. */
static bool takes_specials(const trial *t) {
    const tn_op_impl *impl = tn_op(t->op)->impl;
    bool elementwise = tn_op(t->op)->kind == TN_KERNEL ? impl->class_ == TN_ELEMENTWISE : true;
    if (!elementwise || !tn_op_has_reference(tn_op(t->op)) || !t->c->special || t->c->n_in < 1 || t->c->n_in > 2)
        return false;
    for (int i = 0; i < t->c->n_in; i++)
        if (t->c->in[i].dtype != t->c->type) return false;
    return t->c->type == TN_F32 || t->c->type == TN_F64;
}

/* ---- memory runs out --------------------------------------------------------------------------------------------- */

/* One run of the case that may fail anywhere; true when it came through. */
static bool survives(trial *t) {
    bool through = false;
    TN_SCOPE;
    trial_make_tensors(t, false);
    tn_tensor *y = trial_apply(t);
    size_t bytes = (size_t)tn_numel(y) * tn_dtype_size(tn_dtype_of(y));
    void *out = calloc(bytes + 1, 1);
    through = tn_status_of(y) == TN_OK && tn_read(y, out, bytes) == TN_OK;
    free(out);
    return through;
}

/* Every allocation of a first run fails in its turn: an error, no crash, and the next run is as good as ever. */
static void check_memory(trial *t) {
    enum { MOST = 2000 };
    for (int64_t n = 1; n <= MOST; n++) {
        tn_recorder_drop(); /* no plan of an earlier run is left, no node kept for reuse */
        int64_t before = tn_mem_get_stats().calls;
        tn_mem_fail_at(n);
        bool through = survives(t);
        tn_mem_fail_at(0);
        if (tn_mem_get_stats().calls - before < n) {
            if (!through) fail_msg("%s: fails although memory is there: %s", tn_op(t->op)->name, tn_error());
            return;
        }
    }
}

/* ---- every op ---------------------------------------------------------------------------------------------------- */

static void run_case(trial *t) {
    if (t->c->error[0]) {
        check_refusal(t);
        return;
    }
    check_forward(t, false);
    check_forward(t, true);
    if (t->c->type == TN_F64) check_gradients(t);
}

static void every_case_of_an_op_holds(void **state) {
    int op = (int)(intptr_t)*state;
    tn_case_reader r;
    tn_case c;
    bool more = true, specials_done[TN_DTYPE_COUNT] = {false};
    int cases = 0;
    tn_cases_begin(&r, op);
    for (;;) {
        assert_ok(tn_cases_next(&r, &c, &more));
        if (!more) break;
        for (uint64_t seed = 1; seed <= (full_run() ? SEEDS_FULL : TEST_SANITIZED ? 1 : SEEDS); seed++) {
            trial t = {.op = op, .c = &c, .seed = seed * 7919};
            trial_make_values(&t);
            run_case(&t);
            trial_free_values(&t);
            if (seed > 1 || c.error[0] || specials_done[c.type] || !takes_specials(&t)) continue;
            specials_done[c.type] = true;
            check_specials_with(op, &c, c.type);
        }
        if (cases == 0 && !c.error[0]) {
            trial t = {.op = op, .c = &c, .seed = 1};
            trial_make_values(&t);
            check_memory(&t);
            trial_free_values(&t);
        }
        cases++;
    }
    bool alone = !(tn_op(op)->impl->facts & TN_FACT_EXCHANGE); /* the others: suite processes */
    if (cases == 0 && alone && tn_op(op)->impl->class_ != TN_LEAF_VALUE) fail_msg("%s has no cases", tn_op(op)->name);
}

static void cases_have_points_in_every_locale(void **state) {
    (void)state;
    test_enter_comma_locale();
    for (int op = 0; op < TN_OP_COUNT; op++) {
        tn_case_reader r;
        tn_case c;
        bool more = true;
        for (tn_cases_begin(&r, op); more;)
            assert_ok(tn_cases_next(&r, &c, &more));
    }
    setlocale(LC_ALL, "C");
}

/* ---- what the cases do not reach --------------------------------------------------------------------------------- */

static void expect_doubles(tn_tensor *t, const double *want, int64_t n) {
    if (tn_status_of(t) != TN_OK) fail_msg("%s", tn_error());
    assert_int_equal(tn_numel(t), n);
    double *got = trial_doubles(t);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("element %lld is %g, it should be %g", (long long)i, got[i], want[i]);
    free(got);
}
#define EXPECT(t, ...) \
    expect_doubles(t, (double[]){__VA_ARGS__}, (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)))

static tn_tensor *counted(const int64_t *shape, int rank, tn_dtype t) {
    int64_t n = trial_numel(shape, rank);
    return tn_reshape(tn_arange(0, (double)n, 1, t), shape, rank);
}

static void view_functions_are_what_pytorch_says(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = counted(TN_DIMS(2, 3), TN_F32);
    EXPECT(tn_transpose(x, 0, 1), 0, 3, 1, 4, 2, 5);
    EXPECT(tn_t(x), 0, 3, 1, 4, 2, 5);
    EXPECT(tn_select(x, 0, -1), 3, 4, 5);
    EXPECT(tn_select(x, 1, 1), 1, 4);
    EXPECT(tn_narrow(x, 1, 1, 2), 1, 2, 4, 5);
    EXPECT(tn_flatten(tn_t(x), 0, -1), 0, 3, 1, 4, 2, 5);
    EXPECT(tn_movedim(counted(TN_DIMS(2, 1, 3), TN_F32), 2, 0), 0, 3, 1, 4, 2, 5);
    assert_int_equal(tn_rank(tn_unsqueeze(x, -1)), 3);
    assert_int_equal(tn_size(tn_unsqueeze(x, -1), 2), 1);
    assert_int_equal(tn_rank(tn_squeeze(tn_unsqueeze(x, 1), TN_ALL)), 2);
    assert_int_equal(tn_rank(tn_squeeze(tn_unsqueeze(x, 1), TN_DIMS(0))), 3);
    assert_int_equal(tn_size(tn_unflatten(counted(TN_DIMS(12), TN_F32), 0, TN_DIMS(3, -1)), 1), 4);
    EXPECT(tn_expand_as(tn_scalar(4), tn_select(x, 0, 0)), 4, 4, 4);
    EXPECT(tn_view_as(x, counted(TN_DIMS(6), TN_F32)), 0, 1, 2, 3, 4, 5);
    assert_int_not_equal(tn_status_of(tn_select(x, 0, 2)), TN_OK);
    assert_text_has(tn_error(), "select");
    assert_int_not_equal(tn_status_of(tn_unsqueeze(x, 4)), TN_OK);
    assert_int_not_equal(tn_status_of(tn_view(tn_t(x), TN_DIMS(6))), TN_OK);
    assert_text_has(tn_error(), "reshape");
}

static void parts_of_a_tensor_are_views_of_it(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_contiguous(counted(TN_DIMS(5, 2), TN_F32)), *parts[5];
    assert_int_equal(tn_split(x, TN_DIMS(2, 0, 3), 0, parts), 3);
    EXPECT(parts[2], 4, 5, 6, 7, 8, 9);
    assert_int_equal(tn_size(parts[1], 0), 0);
    tn_mul_scalar_(parts[0], -1);
    EXPECT(tn_select(x, 0, 1), -2, -3);
    assert_int_equal(tn_chunk(x, 4, 0, parts), 3);
    EXPECT(parts[2], 8, 9);
    assert_int_equal(tn_split(x, TN_DIMS(1, 1), 0, parts), 2);
    assert_int_not_equal(tn_status_of(parts[1]), TN_OK);
    assert_text_has(tn_error(), "split");
}

static void in_place_variants_write_and_return_their_target(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_contiguous(counted(TN_DIMS(2, 2), TN_F32));
    tn_tensor *row = tn_select(x, 0, 0);
    assert_ptr_equal(tn_add_(row, tn_scalar(10)), row);
    EXPECT(x, 10, 11, 2, 3);
    EXPECT(tn_neg_(x), -10, -11, -2, -3);
    EXPECT(row, -10, -11);
    EXPECT(tn_clamp_(x, -5, INFINITY), -5, -5, -2, -3);
    EXPECT(tn_masked_fill_(x, tn_eq_scalar(x, -5), 1), 1, 1, -2, -3);
    EXPECT(tn_fill_(row, 7), 7, 7);
    EXPECT(tn_zero_(x), 0, 0, 0, 0);
    EXPECT(row, 0, 0);
}

static void integers_and_numbers_promote_as_in_pytorch(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *i = counted(TN_DIMS(3), TN_I32), *f = counted(TN_DIMS(3), TN_F32), *l = counted(TN_DIMS(3), TN_I64);
    tn_tensor *u = counted(TN_DIMS(3), TN_U8), *s = counted(TN_DIMS(3), TN_I8), *h = counted(TN_DIMS(3), TN_F16);
    tn_tensor *d = counted(TN_DIMS(), TN_F64), *b = counted(TN_DIMS(3), TN_BF16);
    assert_int_equal(tn_dtype_of(tn_add(i, f)), TN_F32);
    assert_int_equal(tn_dtype_of(tn_add(i, l)), TN_I64);
    assert_int_equal(tn_dtype_of(tn_add(u, s)), TN_I16);
    assert_int_equal(tn_dtype_of(tn_add(h, b)), TN_F32);
    assert_int_equal(tn_dtype_of(tn_add(h, i)), TN_F16);
    assert_int_equal(tn_dtype_of(tn_add(f, d)), TN_F32); /* without dims it counts only by category */
    assert_int_equal(tn_dtype_of(tn_add(i, d)), TN_F64);
    assert_int_equal(tn_dtype_of(tn_div(i, l)), TN_F32);
    assert_int_equal(tn_dtype_of(tn_add_scalar(i, 2)), TN_F32); /* a double is a Python float, whatever its value */
    assert_int_equal(tn_dtype_of(tn_add(i, tn_scalar_int(2))), TN_I32);
    assert_int_equal(tn_dtype_of(tn_add(u, tn_scalar_int(2))), TN_U8);
    assert_int_equal(tn_dtype_of(tn_add(h, tn_scalar_int(2))), TN_F16);
    assert_int_equal(tn_dtype_of(tn_add(tn_cast(i, TN_BOOL), tn_scalar_int(2))), TN_I64);
    assert_int_equal(tn_dtype_of(tn_add_scalar(i, 2.5)), TN_F32);
    assert_int_equal(tn_dtype_of(tn_mul_scalar(h, 2.5)), TN_F16);
    assert_int_equal(tn_dtype_of(tn_sum(i, TN_ALL, false)), TN_I64);
    assert_int_equal(tn_dtype_of(tn_sum(h, TN_ALL, false)), TN_F16);
    assert_int_equal(tn_dtype_of(tn_add(d, tn_scalar(1))), TN_F64);
    EXPECT(tn_floor_divide(tn_sub(i, tn_scalar_int(2)), tn_scalar_int(2)), -1, -1, 0);
    tn_tensor *large = tn_sub(tn_scalar_int(INT64_MAX), tn_scalar_int(INT64_MAX - 3)); /* more than a double holds */
    EXPECT(large, 3);
    EXPECT(tn_add(d, tn_scalar(0.1)), 0.1); /* not by way of f32 */
}

static void many_tensors_are_joined(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *parts[50];
    for (int k = 0; k < 50; k++)
        parts[k] = tn_full(TN_DIMS(2), k, TN_F32);
    tn_tensor *all = tn_cat(parts, 50, 0);
    assert_int_equal(tn_size(all, 0), 100);
    EXPECT(tn_narrow(all, 0, 61, 3), 30, 31, 31);
    EXPECT(tn_select(tn_stack(parts, 3, 1), 0, 1), 0, 1, 2);
}

static void a_missing_tensor_is_an_error_not_a_crash(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_scalar(1);
    assert_int_not_equal(tn_status_of(tn_add(x, NULL)), TN_OK);
    assert_text_has(tn_error(), "add: tensor 2 is NULL");
    assert_int_not_equal(tn_status_of(tn_reshape(NULL, TN_DIMS(1))), TN_OK);
    assert_int_not_equal(tn_status_of(tn_cat(NULL, 0, 0)), TN_OK);
    assert_int_not_equal(tn_status_of(tn_sum(x, NULL, 3, false)), TN_OK);
    assert_text_has(tn_error(), "sum");
    tn_tensor *bad = tn_add(x, NULL);
    assert_int_not_equal(tn_status_of(tn_transpose(bad, 0, 1)), TN_OK);
    assert_text_has(tn_error(), "add: tensor 2 is NULL");
}

static void gradients_of_equal_extremes_are_pytorchs(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((float[]){3, 1, 3}, TN_DIMS(3), TN_F32), *g;
    assert_ok(tn_set_requires_grad(x, true));
    tn_tensor *y = tn_amax(x, TN_ALL, false);
    assert_ok(tn_gradients(&y, 1, NULL, &x, 1, false, &g));
    EXPECT(g, 0.5, 0, 0.5);
    y = tn_max(x, 0, false);
    assert_ok(tn_gradients(&y, 1, NULL, &x, 1, false, &g));
    EXPECT(g, 1, 0, 0);
    y = tn_sum(tn_maximum(x, tn_from_data((float[]){3, 2, 1}, TN_DIMS(3), TN_F32)), TN_ALL, false);
    assert_ok(tn_gradients(&y, 1, NULL, &x, 1, false, &g));
    EXPECT(g, 0.5, 0, 1);
    y = tn_sum(tn_abs(tn_sub_scalar(x, 3)), TN_ALL, false);
    assert_ok(tn_gradients(&y, 1, NULL, &x, 1, false, &g));
    EXPECT(g, 0, -1, 0);
}

/* Small types store what they can hold, in a chain of ops as after each of them. */
static void small_types_wrap_and_round(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_from_data((int8_t[]){100, -100, 5}, TN_DIMS(3), TN_I8);
    EXPECT(tn_cast(tn_add(x, x), TN_I32), -56, 56, 10);
    tn_tensor *f = tn_from_data((float[]){1.0004883f, 70000, -1e-8f}, TN_DIMS(3), TN_F32);
    EXPECT(tn_cast(tn_cast(f, TN_F16), TN_F32), 1, INFINITY, 0);
    EXPECT(tn_cast(tn_cast(f, TN_BF16), TN_F32), 1, 70144, -0x1.58p-27);
    EXPECT(tn_cast(tn_from_data((float[]){3e9f, -7.9f, NAN}, TN_DIMS(3), TN_F32), TN_I32), INT32_MAX, -7, 0);
}

static void symbols_follow_their_extents(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_symbolic(tn_from_data((float[12]){0}, TN_DIMS(4, 3), TN_F32), 0, 2);
    assert_int_equal(tn_tensor_node(x)->symbol[0], 3);
    assert_int_equal(tn_tensor_node(tn_add(tn_scalar(1), x))->symbol[0], 3);
    assert_int_equal(tn_tensor_node(tn_exp(x))->symbol[0], 3);
    assert_int_equal(tn_tensor_node(tn_sum(x, TN_DIMS(1), false))->symbol[0], 3);
    assert_int_equal(tn_tensor_node(tn_sum(x, TN_DIMS(0), true))->symbol[0], 0);
    assert_int_equal(tn_tensor_node(tn_transpose(x, 0, 1))->symbol[1], 3);
    assert_int_equal(tn_tensor_node(tn_unsqueeze(x, 1))->symbol[0], 3);
    assert_int_equal(tn_tensor_node(tn_narrow(x, 0, 0, 2))->symbol[0], 0);
    assert_int_equal(tn_tensor_node(tn_narrow(x, 1, 0, 2))->symbol[0], 3);
    assert_int_equal(tn_tensor_node(tn_pad(x, TN_DIMS(1, 1), 0))->symbol[0], 3);
    tn_tensor *y = tn_symbolic(tn_from_data((float[6]){0}, TN_DIMS(2, 3), TN_F32), 0, 0);
    tn_tensor *both = tn_cat((tn_tensor *[]){x, y}, 2, 0);
    assert_int_equal(tn_tensor_node(both)->symbol[0], TN_SYMBOL_SUM + 5);
    assert_int_equal(tn_tensor_node(tn_matmul(both, tn_transpose(both, 0, 1)))->symbol[1], TN_SYMBOL_SUM + 5);
    tn_tensor *twice = tn_cat((tn_tensor *[]){both, y}, 2, 0);
    assert_int_equal(tn_tensor_node(twice)->symbol[0], 0);
    tn_tensor *fixed = tn_cat((tn_tensor *[]){x, tn_ones(TN_DIMS(1, 3), TN_F32)}, 2, 0);
    assert_int_equal(tn_tensor_node(fixed)->symbol[0], 0);
}

/* Plans know of a sum which parts it has. */
static void open_parts_are_joined_at_all_their_extents(void **state) {
    (void)state;
    float ones[15], threes[15], got[15];
    for (int i = 0; i < 15; i++)
        ones[i] = 1, threes[i] = 3;
    for (int64_t rows = 0; rows <= 5; rows++) {
        TN_SCOPE;
        tn_tensor *x = tn_symbolic(tn_from_data(ones, TN_DIMS(rows, 3), TN_F32), 0, 1);
        tn_tensor *y = tn_symbolic(tn_from_data(threes, TN_DIMS(5 - rows, 3), TN_F32), 0, 2);
        assert_ok(tn_read(tn_neg(tn_cat((tn_tensor *[]){x, y}, 2, 0)), got, sizeof got));
        for (int i = 0; i < 15; i++)
            assert_float_equal(got[i], i < 3 * rows ? -1 : -3, 0);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static const struct CMUnitTest others[] = {
    cmocka_unit_test(cases_have_points_in_every_locale),
    cmocka_unit_test(view_functions_are_what_pytorch_says),
    cmocka_unit_test(parts_of_a_tensor_are_views_of_it),
    cmocka_unit_test(in_place_variants_write_and_return_their_target),
    cmocka_unit_test(integers_and_numbers_promote_as_in_pytorch),
    cmocka_unit_test(many_tensors_are_joined),
    cmocka_unit_test(a_missing_tensor_is_an_error_not_a_crash),
    cmocka_unit_test(gradients_of_equal_extremes_are_pytorchs),
    cmocka_unit_test(small_types_wrap_and_round),
    cmocka_unit_test(symbols_follow_their_extents),
    cmocka_unit_test(open_parts_are_joined_at_all_their_extents),
};

/* One test an op, named after it; arguments choose ops by name. */
int main(int argc, char **argv) {
    size_t count = 0, most = (size_t)tn_op_count() + TN_COUNT(others);
    struct CMUnitTest *tests = calloc(most, sizeof *tests);
    for (int op = 0; op < tn_op_count(); op++) {
        bool chosen = argc < 2;
        for (int a = 1; a < argc; a++)
            chosen |= strcmp(argv[a], tn_op(op)->name) == 0;
        if (!chosen) continue;
        tests[count++] = (struct CMUnitTest){
            .name = tn_op(op)->name, .test_func = every_case_of_an_op_holds, .initial_state = (void *)(intptr_t)op};
    }
    for (size_t i = 0; argc < 2 && i < TN_COUNT(others); i++)
        tests[count++] = others[i];
    int failed = _cmocka_run_group_tests("ops", tests, count, NULL, NULL);
    free(tests);
    return failed;
}
