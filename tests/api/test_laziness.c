/* test_laziness.c — promises of lazy tensors that random programs meet too seldom, each with a program made for it. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>

#include "trunnion/autograd.h"
#include "trunnion/linalg.h"
#include "trunnion/ops.h"

enum { LONG = 200000 };

static tn_tensor *vector_of(int64_t count, double from) {
    float *v = malloc((size_t)count * sizeof *v + 1);
    for (int64_t n = 0; n < count; n++)
        v[n] = (float)(from + (double)(n % 13));
    tn_tensor *t = tn_from_data(v, &count, 1, TN_F32);
    free(v);
    return t;
}

static void assert_reads(const tn_tensor *t, const float *want, int count) {
    float got[64];
    assert_true(count <= 64);
    assert_ok(tn_read(t, got, (size_t)count * sizeof *got));
    for (int n = 0; n < count; n++)
        if (got[n] != want[n]) fail_msg("[%d] is %g, should be %g", n, (double)got[n], (double)want[n]);
}

#define ASSERT_READS(t, ...) \
    assert_reads(t, (const float[]){__VA_ARGS__}, (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

/* ---- order ------------------------------------------------------------------------------------------------------- */

static tn_tensor *turned(const tn_tensor *x) { return tn_contiguous(tn_slice(x, 0, INT64_MAX, INT64_MIN, -1)); }

static float first_of(const tn_tensor *t) { return (float)tn_item(tn_select(t, 0, 0)); }

/* Equal kernels in a row are one launch when they may run at once; these may not, whatever stands between them. */
static void equal_kernels_wait_for_each_other(void **state) {
    (void)state;
    int before = tn_get_num_threads();
    assert_ok(tn_set_num_threads(3));
    for (int round = 0; round < 20; round++) {
        TN_SCOPE;
        tn_tensor *x = vector_of(LONG, round);
        tn_tensor *a = turned(x);
        tn_tensor *nothing = tn_add(tn_full(TN_DIMS(0), 1.0, TN_F32), tn_scalar(1));
        tn_tensor *b = turned(a), *c = turned(b);
        assert_ok(tn_eval(NULL, 0));
        assert_int_equal(tn_numel(nothing), 0);
        assert_true(first_of(b) == first_of(x));
        float *want = malloc(LONG * sizeof *want), *got = malloc(LONG * sizeof *got);
        assert_ok(tn_read(a, want, LONG * sizeof *want));
        assert_ok(tn_read(c, got, LONG * sizeof *got));
        assert_memory_equal(want, got, LONG * sizeof *got);
        free(want);
        free(got);
    }
    assert_ok(tn_set_num_threads(before));
}

/* Where elements lie in a row; where they do not, there is no such place. */
static void peeking_computes_and_copies_nothing(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = vector_of(6, 1), *twice = tn_add(x, x), *wide = tn_reshape(twice, TN_DIMS(2, 3));
    const void *at = NULL, *again = NULL;
    assert_ok(tn_peek(twice, &at));
    assert_non_null(at);
    for (int i = 0; i < 6; i++)
        assert_float_equal(((const float *)at)[i], (float)(2 * (i + 1)), 0);
    assert_ok(tn_peek(wide, &again));
    assert_ptr_equal(again, at);
    assert_ok(tn_peek(tn_transpose(wide, 0, 1), &again));
    assert_null(again);
    assert_ok(tn_peek(tn_slice(twice, 0, 2, 4, 1), &again));
    assert_null(again);
    assert_int_equal(tn_peek(tn_add(x, vector_of(5, 1)), &again), TN_ERR_SHAPE);
    assert_null(again);
}

/* What a caller takes for floats must be floats, and a NaN is not an error. */
static void reads_check_what_they_are_given(void **state) {
    (void)state;
    TN_SCOPE;
    float out[4] = {-1, -1, -1, -1};
    double value = -1;
    tn_tensor *whole = tn_full(TN_DIMS(4), 3, TN_I32), *x = vector_of(4, 1),
              *nan = tn_full(NULL, 0, (double)NAN, TN_F32);
    assert_int_equal(tn_read_as(whole, out, 4, TN_F32), TN_ERR_DTYPE);
    assert_text_has(tn_error(), "[4] has dtype i32, not f32");
    assert_int_equal(tn_read_as(x, out, 3, TN_F32), TN_ERR_SHAPE);
    assert_true(out[0] == -1);
    assert_ok(tn_read_as(x, out, 4, TN_F32));
    assert_true(out[3] == 4);
    assert_int_equal(tn_read_item(x, &value), TN_ERR_SHAPE);
    assert_true(value == -1 && isnan(tn_item(x)));
    assert_text_has(tn_error(), "tn_item: the tensor has [4] elements");
    assert_true(isnan(tn_item(nan)));
    assert_string_equal(tn_error(), "");
    assert_ok(tn_read_item(nan, &value));
    assert_true(isnan(value));
}

/* Views take no memory, so that shapes can be asked for which none could hold, or whose bytes no number tells. */
static void shapes_beyond_all_numbers_are_refused(void **state) {
    (void)state;
    for (int bits = 31; bits <= 32; bits++) {
        TN_SCOPE;
        const int64_t many = INT64_C(1) << bits;
        tn_tensor *x = vector_of(1, 1), *rows = tn_expand(x, TN_DIMS(many, 1)),
                  *columns = tn_expand(x, TN_DIMS(1, many));
        assert_int_equal(tn_status_of(tn_add(rows, columns)), TN_ERR_SHAPE);
        assert_int_equal(tn_status_of(tn_matmul(rows, columns)), TN_ERR_SHAPE);
        assert_int_equal(tn_status_of(tn_zeros(TN_DIMS(many, many), TN_F32)), TN_ERR_SHAPE);
    }
}

static void states_trade_their_values(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *a = vector_of(3, 1), *b = vector_of(3, 10);
    assert_ok(tn_make_state(a));
    assert_ok(tn_make_state(b));
    for (int round = 0; round < 4; round++) {
        {
            TN_SCOPE;
            tn_tensor *old = tn_add(a, tn_scalar(0));
            tn_copy_(a, b);
            tn_copy_(b, old);
        }
        assert_ok(tn_eval(NULL, 0));
    }
    ASSERT_READS(a, 1, 2, 3);
    ASSERT_READS(b, 10, 11, 12);
    {
        TN_SCOPE;
        tn_tensor *ends = tn_cat((tn_tensor *[]){tn_slice(b, 0, 2, 3, 1), tn_slice(a, 0, 0, 2, 1)}, 2, 0);
        tn_add_(a, tn_slice(b, 0, INT64_MAX, INT64_MIN, -1));
        tn_copy_(b, ends);
    }
    ASSERT_READS(b, 12, 1, 2);
    ASSERT_READS(a, 13, 13, 13);
}

/* More nodes than a recorder holds: they are computed unasked, in the middle of an operation, and nobody can tell. */
static void a_recording_without_reads_is_bounded(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *sum = tn_full(TN_DIMS(3), 0.0, TN_I64), *total = tn_full(TN_DIMS(3), 0.0, TN_I64);
    assert_ok(tn_make_state(sum));
    assert_ok(tn_make_state(total));
    for (int n = 1; n <= 5000; n++) {
        TN_SCOPE;
        tn_tensor *before = tn_mul(sum, tn_scalar_int(2));
        tn_add_(tn_slice(sum, 0, 0, 2, 1), tn_scalar_int(1));
        tn_add_(total, tn_sub(before, sum));
    }
    int64_t got[3];
    assert_ok(tn_read(total, got, sizeof got));
    /* before - sum is 2 (n - 1) - n = n - 2 where one is added, 0 elsewhere */
    assert_int_equal(got[0], 5000 * 5001 / 2 - 2 * 5000);
    assert_int_equal(got[2], 0);
}

/* The same operations with the same results kept, but asked for by other handles: what x was before the write by two
 * views or by the later one alone. */
static void a_plan_is_found_again_whoever_keeps_its_results(void **state) {
    (void)state;
    for (int round = 0; round < 4; round++) {
        TN_SCOPE;
        tn_tensor *x = tn_neg(vector_of(3, 1)), *first = tn_slice(x, 0, 0, 1, 1), *y = tn_abs(vector_of(3, 20));
        tn_tensor *second = tn_slice(x, 0, 1, 3, 1), *written = tn_slice(x, 0, 0, 2, 1);
        if (round % 2) tn_free(first);
        tn_add_(written, tn_scalar(1));
        ASSERT_READS(y, 20, 21, 22);
        ASSERT_READS(second, -1, -3);
        ASSERT_READS(x, 0, -1, -3);
    }
}

/* ---- captured graphs --------------------------------------------------------------------------------------------- */

/* A product keeps its weight packed between runs; a launch that writes the weight must not leave it so. */
static void a_product_notices_that_a_launch_wrote_its_weight(void **state) {
    (void)state;
    enum { ROWS = 4, COLUMNS = 8, COUNT = ROWS * COLUMNS, SUM = 203 }; /* fewer columns are not kept packed */
    TN_SCOPE;
    tn_tensor *w = vector_of(COUNT, 1), *x = tn_full(TN_DIMS(1, ROWS), 1.0, TN_F32),
              *by = tn_full(TN_DIMS(1), 1.0, TN_F32);
    tn_graph *graph = NULL;
    assert_ok(tn_make_state(w));
    assert_ok(tn_eval(NULL, 0));
    assert_ok(tn_capture_begin());
    tn_add_(w, by);
    tn_tensor *out = tn_sum(w, TN_ALL, false);
    assert_ok(tn_capture_end(&by, 1, &out, 1, &graph));
    for (int round = 1; round <= 4; round++) {
        tn_tensor *result = NULL;
        {
            TN_SCOPE;
            tn_tensor *y = tn_matmul(x, tn_view(w, TN_DIMS(ROWS, COLUMNS)));
            assert_true(tn_item(tn_sum(y, TN_ALL, false)) == SUM + COUNT * round);
        }
        assert_ok(tn_graph_launch(graph, &by, &result));
        assert_true(tn_item(result) == SUM + COUNT * (round + 1));
    }
    tn_graph_free(graph);
}

/* A plan's working memory is measured out for the threads at its making; a launch must not use more. */
static void a_launch_may_come_when_there_are_more_threads(void **state) {
    (void)state;
    enum { ROWS = 64, LENGTH = 300 };
    static float numbers[ROWS * LENGTH];
    static int64_t order[ROWS * LENGTH];
    for (int64_t i = 0; i < ROWS * LENGTH; i++)
        numbers[i] = (float)(i % LENGTH * 7919 % LENGTH);
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(numbers, TN_DIMS(ROWS, LENGTH), TN_F32), *result = NULL;
        tn_graph *graph = NULL;
        assert_ok(tn_eval(&x, 1));
        assert_ok(tn_set_num_threads(1));
        assert_ok(tn_capture_begin());
        tn_tensor *out = tn_argsort(x, 1, false);
        assert_ok(tn_capture_end(&x, 1, &out, 1, &graph));
        assert_ok(tn_set_num_threads(16));
        assert_ok(tn_graph_launch(graph, &x, &result));
        assert_ok(tn_read(result, order, sizeof order));
        assert_ok(tn_set_num_threads(0));
        tn_graph_free(graph);
    }
    for (int64_t i = 0; i < ROWS * LENGTH; i++)
        assert_true(numbers[i / LENGTH * LENGTH + order[i]] == (float)(i % LENGTH));
}

static void what_a_launch_hands_out_keeps_its_value(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *w = vector_of(3, 0), *by = tn_full(TN_DIMS(3), 10.0, TN_F32);
    tn_graph *graph = NULL;
    tn_tensor *first = NULL, *second = NULL;
    assert_ok(tn_make_state(w));
    assert_ok(tn_eval(NULL, 0));
    assert_ok(tn_capture_begin());
    tn_add_(w, by);
    assert_ok(tn_capture_end(&by, 1, &w, 1, &graph));
    assert_ok(tn_graph_launch(graph, &by, &first));
    assert_ok(tn_graph_launch(graph, &by, &second));
    ASSERT_READS(w, 30, 31, 32);
    ASSERT_READS(first, 20, 21, 22);
    ASSERT_READS(second, 30, 31, 32);
    tn_mul_(second, tn_scalar(2));
    ASSERT_READS(w, 30, 31, 32);
    tn_graph_free(graph);
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static int64_t live_bytes(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    assert_ok(tn_get_runtime_stats(&stats));
    return stats.live_bytes;
}

static void a_state_has_one_memory(void **state) {
    (void)state;
    int64_t before = live_bytes();
    tn_tensor *t = NULL;
    {
        TN_SCOPE;
        t = tn_retain(tn_zeros(TN_DIMS(LONG), TN_F32));
    }
    assert_ok(tn_make_state(t));
    int64_t taken = live_bytes() - before;
    assert_in_range(taken, LONG * 3, LONG * 5); /* and not twice its bytes */
    tn_free(t);
}

/* The memory that stays with a weight after two products with it, or two steps that train what is before it, or two
 * evaluations of that. */
static int64_t kept_with_weight(bool frozen, bool backward, bool composed) {
    enum { SIZE = 512, ROWS = 16 };
    int64_t before = 0, after = 0;
    TN_SCOPE;
    tn_tensor *w = tn_full(TN_DIMS(SIZE, SIZE), 0.5, TN_F32), *by = tn_full(TN_DIMS(SIZE), 3.0, TN_F32);
    tn_tensor *x = tn_full(TN_DIMS(ROWS, SIZE), 1.0, TN_F32);
    assert_ok(tn_eval((tn_tensor *[]){w, by, x}, 3));
    assert_ok(tn_set_requires_grad(frozen ? by : w, true));
    for (int round = 0; round < 2; round++) {
        TN_SCOPE;
        if (round == 0) before = live_bytes();
        tn_tensor *trained = tn_mul(x, by), *a = composed ? tn_softsign(trained) : trained;
        tn_tensor *loss = tn_sum(tn_matmul(frozen ? a : x, w), TN_ALL, false);
        if (backward) assert_ok(tn_backward(loss));
        assert_true(tn_item(loss) == 0.5 * SIZE * SIZE * ROWS * (composed ? 0.75 : frozen ? 3 : 1));
        if (backward) assert_ok(tn_eval((tn_tensor *[]){tn_grad(by)}, 1));
    }
    after = live_bytes();
    return (after - before) / (int64_t)(SIZE * SIZE * sizeof(float));
}

/* The same of a trained weight, behind a trained bias, in passes without gradients: as modules are used. */
static int64_t kept_without_gradients(void) {
    enum { SIZE = 512, ROWS = 16 };
    int64_t before = 0;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *w = tn_full(TN_DIMS(SIZE, SIZE), 0.5, TN_F32), *bias = tn_full(TN_DIMS(SIZE), 3.0, TN_F32);
    tn_tensor *x = tn_full(TN_DIMS(ROWS, SIZE), 1.0, TN_F32);
    assert_ok(tn_eval((tn_tensor *[]){w, bias, x}, 3));
    assert_ok(tn_set_requires_grad(w, true));
    assert_ok(tn_set_requires_grad(bias, true));
    for (int round = 0; round < 2; round++) {
        TN_SCOPE;
        if (round == 0) before = live_bytes();
        tn_tensor *sum = tn_sum(tn_matmul(tn_add(x, bias), tn_transpose(w, 0, 1)), TN_ALL, false);
        assert_true(tn_item(sum) == 4 * 0.5 * SIZE * SIZE * ROWS);
    }
    return (live_bytes() - before) / (int64_t)(SIZE * SIZE * sizeof(float));
}

/* A packed copy for a product makes later ones faster; for both passes of training there would be two copies. */
static void a_weight_is_kept_packed_unless_it_is_read_in_two_orders(void **state) {
    (void)state;
    assert_int_equal(kept_with_weight(false, false, false), 1);
    assert_int_equal(kept_with_weight(true, true, false), 0);
    assert_int_equal(kept_with_weight(true, false, false), 0);
    assert_int_equal(kept_with_weight(true, false, true), 0);
    assert_int_equal(kept_without_gradients(), 1);
}

static void a_kept_runtime_scalar_has_its_value(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *d = tn_runtime_scalar(2.5), *wide = tn_expand(d, TN_DIMS(1, 3));
    tn_tensor *product = tn_matmul(wide, tn_full(TN_DIMS(3, 1), 2.0, TN_F32));
    assert_true(tn_item(product) == 15.0);
    ASSERT_READS(d, 2.5f);
    ASSERT_READS(wide, 2.5f, 2.5f, 2.5f);
}

static void a_refused_write_spoils_nothing(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = vector_of(3, 1), *wide = tn_expand(x, TN_DIMS(2, 3)), *rest = tn_slice(x, 0, 1, 3, 1);
    assert_int_equal(tn_status_of(tn_add_(wide, tn_scalar(1))), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "share memory");
    assert_int_equal(tn_status_of(tn_add_(rest, vector_of(3, 0))), TN_ERR_SHAPE); /* does not fit */
    tn_mul_(x, tn_scalar(2));
    ASSERT_READS(x, 2, 4, 6);
    ASSERT_READS(rest, 4, 6);
    ASSERT_READS(wide, 2, 4, 6, 2, 4, 6);
}

/* A view and its views are what they were before a write to them was refused. */
static void views_of_a_refused_target_keep_their_place(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = tn_reshape(vector_of(12, 0), TN_DIMS(4, 3));
    tn_tensor *middle = tn_slice(x, 0, 1, 3, 1), *row = tn_select(middle, 0, 0);
    assert_int_equal(tn_status_of(tn_add_(middle, vector_of(5, 0))), TN_ERR_SHAPE); /* does not fit */
    tn_add_(x, tn_scalar(100));
    ASSERT_READS(row, 103, 104, 105);
    tn_mul_(row, tn_scalar(0));
    ASSERT_READS(x, 100, 101, 102, 0, 0, 0, 106, 107, 108, 109, 110, 111);
    ASSERT_READS(middle, 0, 0, 0, 106, 107, 108);
}

static int releases;

static void count_release(void *ctx) {
    (void)ctx;
    releases++;
}

static void borrowed_memory_is_read_and_never_written(void **state) {
    (void)state;
    float memory[4] = {1, 2, 3, 4};
    releases = 0;
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_ptr(memory, TN_DIMS(4), TN_F32, count_release, NULL);
        tn_tensor *view = tn_slice(x, 0, 0, 4, 2);
        tn_add_(view, tn_scalar(10));
        ASSERT_READS(x, 11, 2, 13, 4);
        tn_tensor *state_of_it = tn_from_ptr(memory, TN_DIMS(4), TN_F32, count_release, NULL);
        assert_ok(tn_make_state(state_of_it));
        tn_mul_(state_of_it, tn_scalar(3));
        ASSERT_READS(state_of_it, 3, 6, 9, 12);
    }
    assert_memory_equal(memory, ((float[]){1, 2, 3, 4}), sizeof memory);
    assert_int_equal(releases, 2);
}

static void *record_only(void *ctx) {
    TN_SCOPE;
    *(tn_tensor **)ctx = tn_keep(tn_add(tn_full(TN_DIMS(3), 1.0, TN_F32), tn_scalar(1)));
    return NULL;
}

static void what_another_thread_did_not_compute_is_refused(void **state) {
    (void)state;
    tn_tensor *x = NULL;
    pthread_t thread;
    float room[3];
    assert_int_equal(pthread_create(&thread, NULL, record_only, &x), 0);
    pthread_join(thread, NULL);
    assert_int_equal(tn_read(x, room, sizeof room), TN_ERR_STATE);
    assert_text_has(tn_error(), "tn_eval");
    assert_int_equal(tn_make_state(x), TN_ERR_STATE);
    tn_tensor *y = tn_add(x, x);
    assert_int_not_equal(tn_read(y, room, sizeof room), TN_OK);
    tn_free(y);
    tn_free(x);
}

static void views_of_views_have_an_end(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = vector_of(3, 1), *v = x;
    for (int n = 0; n < 60; n++)
        v = tn_slice(v, 0, INT64_MAX, INT64_MIN, -1);
    tn_add_(tn_slice(v, 0, 0, 1, 1), tn_scalar(5));
    ASSERT_READS(x, 6, 2, 3);
    ASSERT_READS(v, 6, 2, 3);
    for (int n = 0; n < 10; n++)
        v = tn_detach(v);
    assert_int_equal(tn_status_of(v), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "contiguous");
}

/* Two lists, each of which fits, that together do not: nothing is written behind the room for them. */
static void lists_that_do_not_fit_are_refused(void **state) {
    const int64_t items[16] = {0};
    (void)state;
    TN_SCOPE;
    tn_tensor *x = vector_of(3, 1);
    for (int count = 10; count <= 16; count++) {
        tn_tensor *y = tn_as_strided(x, items, 26 - count, items, count, 0);
        assert_int_equal(tn_status_of(y), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), "a list of");
    }
}

/* TN_SCOPE and TN_NO_GRAD are declarations, not loops: break and continue are those of the loop around them. */
static void break_in_a_scope_leaves_the_users_loop(void **state) {
    (void)state;
    int passes = 0, ends = 0;
    for (int i = 0; i < 8; i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        passes++;
        assert_false(tn_grad_enabled());
        if (tn_item(tn_add_scalar(tn_scalar(i), 1)) == 2) continue;
        if (tn_item(tn_scalar(i)) == 3) break;
        ends++;
    }
    assert_int_equal(passes, 4);
    assert_int_equal(ends, 2);
    assert_true(tn_grad_enabled());
}

/* A view made in several steps: the step between is its own alone, once the scope around has ended. */
static void a_view_outlives_the_scope_it_was_made_in(void **state) {
    (void)state;
    tn_tensor *x = vector_of(4, 1), *kept = NULL, *s = NULL;
    {
        TN_SCOPE;
        tn_tensor *turned = tn_t(tn_view(x, (int64_t[]){2, 2}, 2));
        kept = tn_keep(tn_flatten(turned, 0, 1));
        tn_linalg_svd(turned, false, NULL, &s, NULL);
        s = tn_keep(s);
    }
    ASSERT_READS(kept, 1, 3, 2, 4);
    assert_int_equal(tn_status_of(s), TN_OK);
    tn_free(s);
    tn_free(kept);
    tn_free(x);
}

/* ---- tensors beside each other ----------------------------------------------------------------------------------- */

/* Parts of few elements and of many, in any layout, one of nothing: each element is that of its part. */
static void joined_tensors_have_the_elements_of_their_parts(void **state) {
    (void)state;
    enum { PARTS = 4, A = 40, B = 30 };
    for (int64_t dim = 0; dim < 3; dim++) {
        TN_SCOPE;
        tn_tensor *x = tn_reshape(vector_of((int64_t)A * B * 2, 0), TN_DIMS(A, B, 2));
        tn_tensor *y = tn_transpose(tn_reshape(vector_of((int64_t)A * B * 2, 5), TN_DIMS(B, A, 2)), 0, 1);
        tn_tensor *parts[PARTS] = {tn_narrow(x, dim, 0, 1), y, tn_narrow(x, dim, 1, 0), tn_narrow(y, dim, 1, 1)};
        tn_tensor *all = tn_cat(parts, PARTS, dim);
        for (int64_t k = 0, at = 0; k < PARTS; at += tn_size(parts[k++], dim)) {
            tn_tensor *part = tn_contiguous(tn_narrow(all, dim, at, tn_size(parts[k], dim)));
            assert_ok(tn_eval((tn_tensor *[]){all, part}, 2));
            assert_true(tn_numel(part) == 0 || tn_item(tn_all(tn_eq(part, parts[k]), NULL, 0, false)) == 1);
        }
    }
}

/* Views of what was computed have forgotten what they were made of; joined again, nobody looks for it. */
/* +0 and the element, as a sum begins: −0 becomes +0, NaN and infinity stay. */
static void sums_of_one_element_are_no_reductions(void **state) {
    (void)state;
    const float data[] = {-0.0f, 1.5f, -INFINITY, NAN, 1e-45f, -1e-45f};
    const float wanted[] = {0.0f, 1.5f, -INFINITY, NAN, 1e-45f, -1e-45f};
    float got[TN_COUNT(data)];
    {
        TN_SCOPE;
        tn_tensor *x = tn_from_data(data, (int64_t[]){1, TN_COUNT(data)}, 2, TN_F32);
        tn_tensor *y = tn_sum(tn_exp(tn_neg(x)), (int64_t[]){0}, 1, false);
        assert_ok(tn_eval(&y, 1));
        char *plan = tn_explain_last();
        assert_null(strstr(plan, "sum"));
        tn_text_free(plan);
        assert_ok(tn_read(tn_sum(x, (int64_t[]){0}, 1, true), got, sizeof got));
    }
    assert_memory_equal(got, wanted, sizeof got);
}

static void views_of_computed_tensors_are_joined(void **state) {
    (void)state;
    enum { A = 40, B = 30 };
    tn_tensor *view = NULL;
    {
        TN_SCOPE;
        tn_tensor *whole = tn_reshape(tn_neg(vector_of((int64_t)A * B, 0)), TN_DIMS(A, B));
        view = tn_keep(tn_transpose(whole, 0, 1));
        assert_ok(tn_eval(&view, 1));
    }
    {
        TN_SCOPE;
        tn_tensor *parts[4];
        for (int k = 0; k < 4; k++) /* these take the places of what was forgotten */
            parts[k] = k % 2 ? view : tn_narrow(view, 1, 0, A);
        tn_tensor *second = tn_contiguous(tn_narrow(tn_cat(parts, 4, 1), 1, A, A));
        assert_int_equal(tn_item(tn_all(tn_eq(second, view), NULL, 0, false)), 1);
    }
    tn_free(view);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_kernels_wait_for_each_other),
        cmocka_unit_test(peeking_computes_and_copies_nothing),
        cmocka_unit_test(shapes_beyond_all_numbers_are_refused),
        cmocka_unit_test(states_trade_their_values),
        cmocka_unit_test(a_recording_without_reads_is_bounded),
        cmocka_unit_test(a_plan_is_found_again_whoever_keeps_its_results),
        cmocka_unit_test(a_product_notices_that_a_launch_wrote_its_weight),
        cmocka_unit_test(a_launch_may_come_when_there_are_more_threads),
        cmocka_unit_test(what_a_launch_hands_out_keeps_its_value),
        cmocka_unit_test(a_state_has_one_memory),
        cmocka_unit_test(a_kept_runtime_scalar_has_its_value),
        cmocka_unit_test(reads_check_what_they_are_given),
        cmocka_unit_test(a_refused_write_spoils_nothing),
        cmocka_unit_test(views_of_a_refused_target_keep_their_place),
        cmocka_unit_test(borrowed_memory_is_read_and_never_written),
        cmocka_unit_test(what_another_thread_did_not_compute_is_refused),
        cmocka_unit_test(views_of_views_have_an_end),
        cmocka_unit_test(lists_that_do_not_fit_are_refused),
        cmocka_unit_test(break_in_a_scope_leaves_the_users_loop),
        cmocka_unit_test(a_view_outlives_the_scope_it_was_made_in),
        cmocka_unit_test(a_weight_is_kept_packed_unless_it_is_read_in_two_orders),
        cmocka_unit_test(joined_tensors_have_the_elements_of_their_parts),
        cmocka_unit_test(sums_of_one_element_are_no_reductions),
        cmocka_unit_test(views_of_computed_tensors_are_joined),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    puts("ran on: cpu");
    return failed;
}
