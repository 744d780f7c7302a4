/* test_plans.c — what a plan costs to make, when one is found again, and what becomes of it. */
#include "test_support.h"

#include <pthread.h>

#include "plan/native.h"
#include "trunnion/autograd.h"
#include "trunnion/ops.h"

static tn_runtime_stats stats_now(void) {
    tn_runtime_stats s = {.struct_size = sizeof s};
    assert_ok(tn_get_runtime_stats(&s));
    return s;
}

static tn_tensor *evaluated(tn_tensor *t) {
    assert_ok(tn_eval(&t, 1));
    return tn_keep(t);
}

/* ---- long recordings --------------------------------------------------------------------------------------------- */

enum { BATCH = 2, HIDDEN = 16, FEATURES = 4 };

typedef struct lstm {
    tn_tensor *w, *u, *b, *x, *zero;
} lstm;

static lstm lstm_new(int steps) {
    TN_SCOPE;
    lstm m = {.w = tn_mul_scalar(tn_randn(TN_DIMS(FEATURES, 4 * HIDDEN)), 0.1),
              .u = tn_mul_scalar(tn_randn(TN_DIMS(HIDDEN, 4 * HIDDEN)), 0.1),
              .b = tn_zeros(TN_DIMS(4 * HIDDEN), TN_F32),
              .x = tn_randn(TN_DIMS(steps, BATCH, FEATURES)),
              .zero = tn_zeros(TN_DIMS(BATCH, HIDDEN), TN_F32)};
    tn_tensor *all[] = {m.w, m.u, m.b, m.x, m.zero};
    assert_ok(tn_eval(all, 5));
    for (int i = 0; i < 5; i++)
        tn_keep(all[i]);
    assert_ok(tn_set_requires_grad(m.w, true));
    assert_ok(tn_set_requires_grad(m.u, true));
    assert_ok(tn_set_requires_grad(m.b, true));
    return m;
}

static tn_tensor *gate(const tn_tensor *sums, int number) { return tn_narrow(sums, 1, number * HIDDEN, HIDDEN); }

/* One cell; both states are replaced, and kept from the scope. */
static void lstm_cell(const lstm *m, int step, tn_tensor **h, tn_tensor **c) {
    tn_scope scope = tn_scope_begin();
    tn_tensor *sums = tn_add(tn_add(tn_matmul(tn_select(m->x, 0, step), m->w), tn_matmul(*h, m->u)), m->b);
    tn_tensor *kept = tn_mul(tn_sigmoid(gate(sums, 0)), *c);
    tn_tensor *cell = tn_add(kept, tn_mul(tn_sigmoid(gate(sums, 1)), tn_tanh(gate(sums, 2))));
    tn_tensor *out = tn_mul(tn_sigmoid(gate(sums, 3)), tn_tanh(cell));
    tn_keep(cell);
    tn_keep(out);
    tn_scope_end(&scope);
    tn_free(*h);
    tn_free(*c);
    *h = out;
    *c = cell;
}

static void take_gradient(tn_tensor *parameter) {
    bool before = tn_set_grad_enabled(false);
    tn_tensor *g = tn_grad(parameter), *scaled = tn_mul_scalar(g, 0.01);
    tn_sub_(parameter, scaled);
    tn_free(scaled);
    tn_free(g);
    (void)tn_set_grad_enabled(before);
    tn_zero_grad(parameter);
}

static double lstm_step(const lstm *m, int steps) {
    tn_tensor *h = tn_add_scalar(m->zero, 0), *c = tn_add_scalar(m->zero, 0);
    for (int t = 0; t < steps; t++)
        lstm_cell(m, t, &h, &c);
    tn_tensor *squares = tn_mul(h, h), *loss = tn_mean(squares, TN_ALL, false);
    assert_ok(tn_backward(loss));
    take_gradient(m->w);
    take_gradient(m->u);
    take_gradient(m->b);
    double value = tn_item(loss);
    tn_free(loss);
    tn_free(squares);
    tn_free(h);
    tn_free(c);
    return value;
}

static void lstm_free(lstm *m) {
    tn_free(m->w);
    tn_free(m->u);
    tn_free(m->b);
    tn_free(m->x);
    tn_free(m->zero);
}

static int64_t work_of_plans(void) {
    const tn_plan_cache *c = tn_plans_of(tn_recorder_here());
    int64_t work = 0;
    for (int i = 0; i < c->count; i++)
        work += c->plans[i]->report.planning_work;
    return work;
}

/* More nodes than an unasked flush waits for. */
static void a_long_step_is_planned_once(void **state) {
    (void)state;
    lstm m = lstm_new(400);
    double first = lstm_step(&m, 400);
    tn_runtime_stats before = stats_now();
    double second = lstm_step(&m, 400);
    tn_runtime_stats after = stats_now();
    assert_true(second < first);
    assert_int_equal(after.plan_misses, before.plan_misses);
    assert_int_equal(after.plans_made, before.plans_made);
    lstm_free(&m);
}

/* Four times the steps, four times the work: 4.5 leaves room for what is logarithmic. */
static void planning_is_linear_in_nodes(void **state) {
    (void)state;
    int64_t work[2];
    for (int i = 0; i < 2; i++) {
        int steps = (i ? 800 : 200) / test_every(1, 4);
        lstm m = lstm_new(steps);
        int64_t before = work_of_plans();
        lstm_step(&m, steps);
        work[i] = work_of_plans() - before;
        lstm_free(&m);
    }
    if ((double)work[1] > 4.5 * (double)work[0])
        fail_msg("planning took %lld looks, %lld for four times as many steps", (long long)work[0], (long long)work[1]);
}

/* ---- what varies ------------------------------------------------------------------------------------------------- */

enum { ROWS = 4, COLUMNS = 24, VALUES = 1000 };

/* 0 … 7 are values that constants are folded by; then ordinary ones. */
static double number(int k) {
    static const double special[] = {0.0, -0.0, 1.0, 2.0, 0.5, -1.0, 1e-30, 3.0};
    return k < (int)TN_COUNT(special) ? special[k] : 0.01 * k;
}

typedef tn_tensor *expression(const tn_tensor *x, int k);

static tn_tensor *by_narrow(const tn_tensor *x, int k) { return tn_narrow(x, 0, k % VALUES * ROWS, ROWS); }
static tn_tensor *by_select(const tn_tensor *x, int k) { return tn_mul(tn_select(x, 0, k), tn_select(x, 0, 2 * k)); }
static tn_tensor *by_columns(const tn_tensor *x, int k) {
    return tn_neg(tn_slice(tn_slice(x, 0, k, k + ROWS, 1), 1, k % 7, k % 7 + 9, 2));
}
static tn_tensor *of_view(const tn_tensor *x, int k) {
    tn_tensor *rows = tn_narrow(x, 0, k * 3, ROWS), *flat = tn_reshape(rows, TN_DIMS(COLUMNS, ROWS));
    return tn_softmax(tn_transpose(flat, 0, 1), 1);
}
static tn_tensor *first_rows(const tn_tensor *x) { return tn_narrow(x, 0, 0, ROWS); }
static tn_tensor *by_product(const tn_tensor *x, int k) {
    return tn_matmul(tn_narrow(x, 0, k, ROWS), tn_transpose(tn_narrow(x, 0, 2 * k, 16), 0, 1));
}
static tn_tensor *by_mul(const tn_tensor *x, int k) { return tn_mul_scalar(first_rows(x), number(k)); }
static tn_tensor *by_add(const tn_tensor *x, int k) { return tn_add_scalar(first_rows(x), number(k)); }
static tn_tensor *by_div(const tn_tensor *x, int k) { return tn_div_scalar(first_rows(x), number(k)); }
static tn_tensor *by_scalar(const tn_tensor *x, int k) { return tn_sub(first_rows(x), tn_scalar(number(k))); }
static tn_tensor *by_clamp(const tn_tensor *x, int k) { return tn_clamp(first_rows(x), -number(k), 2 * number(k)); }
static tn_tensor *by_pow(const tn_tensor *x, int k) { return tn_pow_scalar(tn_abs(first_rows(x)), number(k)); }
static tn_tensor *by_elu(const tn_tensor *x, int k) { return tn_elu(first_rows(x), number(k)); }
static tn_tensor *by_full(const tn_tensor *x, int k) {
    (void)x;
    return tn_full(TN_DIMS(ROWS, COLUMNS), number(k), TN_F32);
}
static tn_tensor *by_f64(const tn_tensor *x, int k) { return tn_mul_scalar(tn_cast(first_rows(x), TN_F64), 0.1 * k); }
static tn_tensor *by_half(const tn_tensor *x, int k) {
    return tn_mul_scalar(tn_cast(first_rows(x), TN_F16), number(k));
}
static tn_tensor *by_i64(const tn_tensor *x, int k) {
    return tn_add_scalar(tn_cast(tn_mul_scalar(first_rows(x), 100), TN_I64), (double)k);
}
/* Numbers that an integer type does not have: a constant is truncated. */
static tn_tensor *full_of(int k, tn_dtype t, double least, double most) {
    const double numbers[] = {least, most - 2, 5.5, 0.3, 100.9};
    return tn_full(TN_DIMS(ROWS, COLUMNS), numbers[k % (int)TN_COUNT(numbers)] + k % 3, t);
}
static tn_tensor *by_full_i32(const tn_tensor *x, int k) {
    (void)x;
    return full_of(k, TN_I32, INT32_MIN, INT32_MAX);
}
static tn_tensor *by_full_u64(const tn_tensor *x, int k) {
    (void)x;
    return full_of(k, TN_U64, 0, 0x1p63);
}
static tn_tensor *by_full_u8(const tn_tensor *x, int k) {
    (void)x;
    return full_of(k, TN_U8, 0, UINT8_MAX);
}
static double beyond(int k) {
    static const double numbers[] = {5, -6, 3e9, -3e9, 1e19, -1e19, INFINITY, -INFINITY, NAN, 300.7};
    return numbers[k % (int)TN_COUNT(numbers)] + k % 3;
}
static tn_tensor *by_above(const tn_tensor *x, int k) {
    return tn_gt_scalar(tn_cast(tn_mul_scalar(first_rows(x), 100), TN_I32), beyond(k));
}
static tn_tensor *by_uniform(const tn_tensor *x, int k) {
    (void)x;
    tn_manual_seed(7);
    return tn_uniform(number(k), 2 + number(k), TN_DIMS(ROWS, COLUMNS));
}
static tn_tensor *by_dropout(const tn_tensor *x, int k) {
    tn_manual_seed(7);
    return tn_dropout(first_rows(x), (k % 100) / 128.0, true);
}

static const struct {
    const char *name;
    expression *make;
    int most_plans; /* values by which a composition is another one make a plan of their own */
} varying[] = {
    {"narrow", by_narrow, 4},   {"select", by_select, 4},   {"columns", by_columns, 18},  {"view", of_view, 6},
    {"product", by_product, 6}, {"mul", by_mul, 4},         {"add", by_add, 4},           {"div", by_div, 4},
    {"scalar", by_scalar, 4},   {"clamp", by_clamp, 4},     {"pow", by_pow, 10},          {"elu", by_elu, 6},
    {"full", by_full, 4},       {"f64", by_f64, 4},         {"half", by_half, 4},         {"i64", by_i64, 4},
    {"uniform", by_uniform, 4}, {"dropout", by_dropout, 6}, {"full_i32", by_full_i32, 4}, {"full_u64", by_full_u64, 4},
    {"full_u8", by_full_u8, 4}, {"above", by_above, 4}};

static tn_tensor *data_rows(void) { return evaluated(tn_randn(TN_DIMS(VALUES * ROWS, COLUMNS))); }

/* The bytes of the expression for `k`. */
static size_t bytes_of(expression *make, const tn_tensor *x, int k, char *bytes, size_t room) {
    tn_scope scope = tn_scope_begin();
    tn_tensor *y = tn_contiguous(make(x, k));
    size_t size = (size_t)tn_numel(y) * tn_dtype_size(tn_dtype_of(y));
    assert_true(size <= room);
    assert_ok(tn_read(y, bytes, size));
    tn_scope_end(&scope);
    return size;
}

/* A thread has plans and lines of its own: here every expression is met for the first time, so all is constant. */
typedef struct constant {
    expression *make;
    const tn_tensor *x;
    int k;
    char bytes[2048];
    size_t size;
} constant;

static void *compute_constant(void *ctx) {
    constant *c = ctx;
    c->size = bytes_of(c->make, c->x, c->k, c->bytes, sizeof c->bytes);
    return NULL;
}

static void assert_as_constant(int which, const tn_tensor *x, int k, const char *bytes, size_t size) {
    constant c = {.make = varying[which].make, .x = x, .k = k};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, compute_constant, &c), 0);
    pthread_join(thread, NULL);
    assert_int_equal(c.size, size);
    if (memcmp(c.bytes, bytes, size) != 0)
        fail_msg("%s: other bits than a constant's at step %d", varying[which].name, k);
}

static void what_varies_makes_few_plans_and_a_constants_bits(void **state) {
    (void)state;
    tn_tensor *x = data_rows();
    for (int which = 0; which < (int)TN_COUNT(varying); which++) {
        tn_runtime_stats before = stats_now();
        for (int k = 0; k < (test_is_thin() ? 130 : 500); k++) {
            char bytes[2048];
            size_t size = bytes_of(varying[which].make, x, k, bytes, sizeof bytes);
            if (k < 12 || k % 61 == 0) assert_as_constant(which, x, k, bytes, size);
        }
        int64_t made = stats_now().plans_made - before.plans_made;
        if (made > varying[which].most_plans) fail_msg("%s: %lld plans", varying[which].name, (long long)made);
    }
    tn_free(x);
}

/* d/dx of clamp(v · x, −1, 1) · rows: v and the rows differ at each step. */
static void what_varies_has_the_right_gradient(void **state) {
    (void)state;
    tn_tensor *data = data_rows(), *x = evaluated(tn_randn(TN_DIMS(ROWS, COLUMNS)));
    float values[ROWS * COLUMNS], rows[ROWS * COLUMNS], grad[ROWS * COLUMNS];
    assert_ok(tn_read(x, values, sizeof values));
    assert_ok(tn_set_requires_grad(x, true));
    tn_runtime_stats before = stats_now();
    for (int k = 0; k < 200; k++) {
        tn_scope scope = tn_scope_begin();
        float v = 0.25f + 0.01f * (float)k;
        tn_tensor *part = tn_narrow(data, 0, k * ROWS, ROWS);
        tn_tensor *y = tn_mul(tn_clamp(tn_mul_scalar(x, (double)v), -1 - (double)v, 1), part);
        assert_ok(tn_backward(tn_sum(y, TN_ALL, false)));
        assert_ok(tn_read(tn_grad(x), grad, sizeof grad));
        assert_ok(tn_read(part, rows, sizeof rows));
        tn_zero_grad(x);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            float at = v * values[i], want = at >= -1 - v && at <= 1 ? rows[i] * v : 0;
            if (grad[i] != want) fail_msg("step %d, [%d]: %g, should be %g", k, i, (double)grad[i], (double)want);
        }
        tn_scope_end(&scope);
    }
    assert_true(stats_now().plans_made - before.plans_made <= 8);
    tn_free(x);
    tn_free(data);
}

/* A state that is written is read as it was before, also by a view whose place varies. */
static void a_view_that_varies_sees_writes_in_order(void **state) {
    (void)state;
    tn_tensor *x = tn_zeros(TN_DIMS(64), TN_F32);
    assert_ok(tn_make_state(x));
    for (int k = 0; k < 60; k++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *before = tn_mul_scalar(tn_narrow(x, 0, k, 4), 1);
        tn_add_(x, tn_scalar(1));
        tn_tensor *after = tn_mul_scalar(tn_narrow(x, 0, k, 4), 1);
        float was[4], is[4];
        assert_ok(tn_read(after, is, sizeof is));
        assert_ok(tn_read(before, was, sizeof was));
        for (int i = 0; i < 4; i++) {
            assert_float_equal(was[i], k, 0);
            assert_float_equal(is[i], k + 1, 0);
        }
        tn_scope_end(&scope);
    }
    tn_free(x);
}

/* More of them than a kernel has room for: some are read from memory. */
static void many_numbers_vary_in_one_kernel(void **state) {
    (void)state;
    tn_tensor *x = evaluated(tn_ones(TN_DIMS(5), TN_F32));
    for (int k = 0; k < 20; k++) {
        tn_scope scope = tn_scope_begin();
        tn_tensor *y = tn_mul_scalar(x, 1);
        double want = 1;
        for (int i = 0; i < 40; i++) {
            y = tn_add_scalar(y, (double)(i + k));
            want += i + k;
        }
        assert_true(tn_item(tn_select(y, 0, 0)) == want);
        tn_scope_end(&scope);
    }
    tn_free(x);
}

/* ---- what cannot vary -------------------------------------------------------------------------------------------- */

/* What `run` writes to standard error. */
static char *errors_of(void (*run)(void)) {
    const char *path = test_scratch("errors");
    int kept = dup(STDERR_FILENO);
    fflush(stderr);
    assert_non_null(freopen(path, "w", stderr));
    run();
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    char *text = NULL;
    size_t size;
    assert_ok(tn_file_read(path, &text, &size, 1 << 16));
    return text;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        count++;
    return count;
}

static void move_and_grow(void) {
    tn_tensor *x = evaluated(tn_ones(TN_DIMS(40, 40), TN_F32));
    for (int k = 1; k < 40; k++) {
        tn_scope scope = tn_scope_begin();
        assert_true(tn_item(tn_sum(tn_roll(x, TN_DIMS(k), TN_DIMS(0)), TN_ALL, false)) == 1600);
        tn_tensor *part = tn_contiguous(tn_narrow(x, 0, 0, k));
        assert_ok(tn_eval(&part, 1));
        assert_true(tn_item(tn_sum(part, TN_ALL, false)) == 40.0 * k);
        tn_scope_end(&scope);
    }
    tn_free(x);
}

static void a_line_that_misses_again_and_again_is_named_once(void **state) {
    (void)state;
    tn_clear_plans();
    char *text = errors_of(move_and_grow);
    assert_int_equal(count_of(text, "an integer argument changes"), 1);
    assert_int_equal(count_of(text, ": roll [40, 40] f32: 8 evaluations could not reuse a plan"), 1);
    assert_true(count_of(text, "its shape changes") >= 1);
    assert_int_equal(count_of(text, "\n"), count_of(text, "test_plans.c:"));
    tn_mem_free(text);
    text = errors_of(move_and_grow);
    assert_string_equal(text, "");
    tn_mem_free(text);
}

/* ---- new shapes -------------------------------------------------------------------------------------------------- */

enum { MOST_KERNELS = 16 };

/* The kernels of the plan that ran last, in order; a product's is that of the program that joins it, or NULL. */
static int kernels_of_last(const tn_kernel **out) {
    const tn_plan *p = tn_plans_of(tn_recorder_here())->last;
    assert_true(p->command_count <= MOST_KERNELS);
    for (size_t i = 0; i < p->command_count; i++)
        out[i] = p->commands[i].native ? p->commands[i].native->fused.kernel : p->commands[i].kernel;
    return (int)p->command_count;
}

/* A layer, its activation and the mean of its squares, forward and backward, on a batch of this size; returns how many
 * allocations the library made. */
static int64_t step_on_batch(int64_t batch, tn_tensor *weight, tn_tensor *bias, const tn_kernel **kernels, int *count) {
    tn_scope scope = tn_scope_begin();
    tn_tensor *x = tn_ones(TN_DIMS(batch, FEATURES), TN_F32);
    assert_ok(tn_eval(&x, 1));
    int64_t before = tn_mem_get_stats().calls;
    tn_tensor *h = tn_relu(tn_linear(x, weight, bias));
    tn_tensor *loss = tn_mean(tn_mul(h, h), TN_ALL, false);
    assert_ok(tn_backward(loss));
    tn_tensor *wanted[] = {loss, tn_grad(weight), tn_grad(bias)};
    assert_ok(tn_eval(wanted, 3));
    int64_t calls = tn_mem_get_stats().calls - before;
    *count = kernels_of_last(kernels);
    assert_float_equal(tn_item(loss), 25, 1e-4); /* (4 · 1 + 1)² */
    float gradient;
    assert_ok(tn_read(tn_narrow(wanted[2], 0, 0, 1), &gradient, sizeof gradient));
    assert_float_equal(gradient, 2 * 5.0 / HIDDEN, 1e-5);
    tn_scope_end(&scope);
    tn_zero_grad(weight);
    tn_zero_grad(bias);
    return calls;
}

/* What differs with the batch, 1 / elements among it, comes with the launch. */
static void a_new_batch_compiles_nothing_and_allocates_little(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    enum { MOST_CALLS = 1000 }; /* base/mem.c makes an allocation of each piece */
#else
    enum { MOST_CALLS = 64 };
#endif
    enum { SEEN = 7, FIRST = 11, BATCHES = 20 };
    TN_SCOPE;
    tn_tensor *weight = tn_ones(TN_DIMS(HIDDEN, FEATURES), TN_F32), *bias = tn_ones(TN_DIMS(HIDDEN), TN_F32);
    assert_ok(tn_set_requires_grad(weight, true));
    assert_ok(tn_set_requires_grad(bias, true));
    const tn_kernel *seen[MOST_KERNELS], *kernels[MOST_KERNELS];
    int seen_count, count;
    step_on_batch(SEEN, weight, bias, seen, &seen_count);
    for (int64_t batch = FIRST; batch < FIRST + BATCHES; batch++) {
        int64_t calls = step_on_batch(batch, weight, bias, kernels, &count);
        assert_int_equal(count, seen_count);
        for (int i = 0; i < count; i++)
            assert_ptr_equal(kernels[i], seen[i]);
        if (calls > MOST_CALLS) fail_msg("batch %d: %d allocations, at most %d", (int)batch, (int)calls, MOST_CALLS);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void use_plans(int steps) {
    lstm m = lstm_new(steps);
    lstm_step(&m, steps);
    lstm_step(&m, steps);
    lstm_free(&m);
    for (int n = 1; n < 100; n++) {
        tn_scope scope = tn_scope_begin();
        assert_true(tn_item(tn_sum(tn_ones(TN_DIMS(n, 3), TN_F32), TN_ALL, false)) == 3.0 * n);
        tn_scope_end(&scope);
    }
}

/* Devices keep a few kernels that no plan uses: the same ones after the same evaluations. */
static void cleared_plans_leave_no_memory(void **state) {
    (void)state;
    tn_mem_stats cleared[3];
    int64_t of_tensors[3];
    for (int round = 0; round < 3; round++) {
        use_plans(40);
        tn_mem_stats with_plans = tn_mem_get_stats();
        tn_clear_plans();
        cleared[round] = tn_mem_get_stats();
        of_tensors[round] = stats_now().live_bytes;
        assert_true(with_plans.live_bytes - cleared[round].live_bytes > 1 << 20);
    }
    assert_int_equal(cleared[2].live_bytes, cleared[1].live_bytes);
    assert_int_equal(cleared[2].live_blocks, cleared[1].live_blocks);
    assert_int_equal(of_tensors[2], of_tensors[1]);
}

static void plans_are_bounded_in_bytes(void **state) {
    (void)state;
    if (test_is_thin()) skip(); /* it takes as many large plans as the limit holds */
    tn_plan_cache *c = tn_plans_of(tn_recorder_here());
    tn_clear_plans();
    for (int steps = 600, count = -1; c->count > count; steps++) { /* until the first one goes */
        count = c->count;
        lstm m = lstm_new(steps);
        lstm_step(&m, steps);
        lstm_free(&m);
        size_t bytes = 0;
        for (int i = 0; i < c->count; i++)
            bytes += c->plans[i]->bytes;
        assert_int_equal(bytes, c->bytes);
        assert_true(bytes <= TN_MAX_PLAN_BYTES);
        assert_true(steps < 640);
    }
    assert_true(c->bytes > TN_MAX_PLAN_BYTES / 2);
    tn_clear_plans();
    assert_int_equal(c->bytes, 0);
}

static void explain_names_what_varies(void **state) {
    (void)state;
    tn_tensor *x = evaluated(tn_ones(TN_DIMS(5), TN_F32));
    for (int k = 0; k < 4; k++) {
        TN_SCOPE;
        tn_tensor *y = tn_mul_scalar(x, 1.25 + k);
        assert_true(tn_item(tn_sum(y, TN_ALL, false)) == 5 * (1.25 + k));
    }
    char *text = tn_explain_last();
    assert_text_has(text, "runtime scalars: ");
    assert_text_has(text, "test_plans.c");
    tn_text_free(text);
    tn_free(x);
}

/* ---- functions of a byte ----------------------------------------------------------------------------------------- */

static tn_tensor *as_byte(const tn_tensor *x) {
    return tn_cast(tn_clamp(tn_add_scalar(tn_round(tn_mul_scalar(x, 16)), 128), 0, 255), TN_U8);
}

static tn_tensor *as_number(const tn_tensor *byte) {
    return tn_mul_scalar(tn_add_scalar(tn_cast(byte, TN_F32), -128), 0.0625);
}

/* How dear the function is, and whether a view lies inside of it. */
enum { CHEAP, DEAR, DEAR_WITH_VIEW, FUNCTIONS };

static tn_tensor *function_of(tn_tensor *x, int function) {
    if (function == CHEAP) return tn_relu(x);
    tn_tensor *y = tn_tanh(x);
    return tn_mul(x, as_number(as_byte(function == DEAR ? y : tn_detach(y))));
}

static int kernels_in_last_plan(void) {
    int kernels = 0;
    char *text = tn_explain_last();
    for (const char *at = text; at && (at = strstr(at, "kernel")); at++)
        kernels++;
    tn_text_free(text);
    return kernels;
}

/* Bytes of x, and bytes of a function of them; with `apart` each is evaluated alone. Returns the kernels of the last
 * evaluation. */
static int bytes_of_bytes(const tn_tensor *x, int function, bool apart, uint8_t *out, size_t bytes) {
    tn_tensor *y;
    {
        TN_SCOPE; /* tensors that are freed before y is read are not stored */
        tn_tensor *first = as_byte(x);
        if (apart) assert_ok(tn_eval(&first, 1));
        y = tn_keep(as_byte(function_of(as_number(first), function)));
    }
    assert_ok(tn_read(y, out, bytes));
    tn_free(y);
    return kernels_in_last_plan();
}

/* A dear function gets the byte from memory, so that its 256 results are computed once; a cheap one is one pass. */
static void a_dear_function_of_a_byte_is_a_kernel(void **state) {
    (void)state;
    enum { LINES = 48, NUMBERS = 500 };
    static uint8_t together[LINES * NUMBERS], apart[LINES * NUMBERS];
    TN_SCOPE;
    tn_tensor *x = evaluated(tn_mul_scalar(tn_randn(TN_DIMS(LINES, NUMBERS)), 3));
    for (int function = 0; function < FUNCTIONS; function++) {
        assert_int_equal(bytes_of_bytes(x, function, false, together, sizeof together), function == CHEAP ? 1 : 2);
        (void)bytes_of_bytes(x, function, true, apart, sizeof apart);
        assert_memory_equal(together, apart, sizeof apart);
    }
    tn_free(x);
}

/* Sums of looked-up bytes read them: no kernel computes the function again, and none stores the numbers that they stand
 * for. */
static void sums_of_looked_up_bytes_read_bytes(void **state) {
    (void)state;
    enum { LINES = 48, NUMBERS = 500 };
    float together[LINES], apart[LINES];
    TN_SCOPE;
    tn_tensor *x = evaluated(tn_cast(tn_clamp(tn_mul_scalar(tn_randn(TN_DIMS(LINES, NUMBERS)), 90), 0, 255), TN_U8));
    for (int k = 0; k < 2; k++) {
        tn_tensor *sums;
        {
            TN_SCOPE;
            tn_tensor *y = as_byte(function_of(as_number(x), DEAR));
            if (k) assert_ok(tn_eval(&y, 1));
            sums = tn_keep(tn_sum(as_number(y), TN_DIMS(1), false));
        }
        assert_ok(tn_read(sums, k ? apart : together, sizeof apart));
        tn_free(sums);
        if (!k) assert_int_equal(kernels_in_last_plan(), 2);
    }
    assert_memory_equal(together, apart, sizeof apart);
    tn_free(x);
}

/* A norm passes over its rows several times: bytes that many operations make are computed once, in another kernel. */
static void norms_read_dear_bytes(void **state) {
    (void)state;
    enum { LINES = 48, NUMBERS = 500 };
    static float together[LINES * NUMBERS], apart[LINES * NUMBERS];
    TN_SCOPE;
    tn_tensor *x = evaluated(tn_randn(TN_DIMS(LINES, NUMBERS)));
    for (int k = 0; k < 2; k++) {
        tn_tensor *normed;
        {
            TN_SCOPE;
            tn_tensor *y = as_byte(tn_tanh(tn_mul_scalar(x, 2)));
            if (k) assert_ok(tn_eval(&y, 1));
            normed = tn_keep(tn_layer_norm(as_number(y), TN_DIMS(NUMBERS), NULL, NULL, NULL));
        }
        assert_ok(tn_read(normed, k ? apart : together, sizeof apart));
        tn_free(normed);
        if (!k) assert_int_equal(kernels_in_last_plan(), 2);
    }
    assert_memory_equal(together, apart, sizeof apart);
    tn_free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_step_is_planned_once),
        cmocka_unit_test(planning_is_linear_in_nodes),
        cmocka_unit_test(what_varies_makes_few_plans_and_a_constants_bits),
        cmocka_unit_test(what_varies_has_the_right_gradient),
        cmocka_unit_test(a_view_that_varies_sees_writes_in_order),
        cmocka_unit_test(many_numbers_vary_in_one_kernel),
        cmocka_unit_test(explain_names_what_varies),
        cmocka_unit_test(a_line_that_misses_again_and_again_is_named_once),
        cmocka_unit_test(a_new_batch_compiles_nothing_and_allocates_little),
        cmocka_unit_test(cleared_plans_leave_no_memory),
        cmocka_unit_test(a_dear_function_of_a_byte_is_a_kernel),
        cmocka_unit_test(sums_of_looked_up_bytes_read_bytes),
        cmocka_unit_test(norms_read_dear_bytes),
        cmocka_unit_test(plans_are_bounded_in_bytes),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
