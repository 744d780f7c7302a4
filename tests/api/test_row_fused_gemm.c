/* test_row_fused_gemm.c — promises of products that are done one behind the other, by rows (plan/native_product.c): the
 * bits that each step has when it is evaluated by itself, whatever joins the products, whoever else needs their
 * results, with any number of threads; and nothing is done by rows that needs others' rows. */
#include "step_by_step.h"

#include <math.h>

enum { MOST_ROWS = 700, WIDEST = 192, SQUARE = 256 };

static tn_tensor *waves(int64_t rows, int64_t columns, double by) {
    static float data[MOST_ROWS * WIDEST];
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = sinf((float)(by * (double)(i + 1))) / 8;
    return tn_from_data(data, (int64_t[]){rows, columns}, 2, TN_F32);
}

/* x times weights, which lie as they are, transposed, or are made in the same plan. */
static tn_tensor *times_weight(const tn_tensor *x, int64_t columns, int64_t kind) {
    int64_t k = tn_size(x, 1);
    if (kind == 0) return step(tn_matmul(x, waves(k, columns, 0.13)));
    if (kind == 1) return step(tn_matmul(x, tn_transpose(waves(columns, k, 0.17), 0, 1)));
    return step(tn_matmul(x, step(tn_tanh(waves(k, columns, 0.19)))));
}

static tn_tensor *biased(tn_tensor *y) {
    return step(tn_add(y, tn_reshape(waves(1, tn_size(y, 1), 0.3), (int64_t[]){-1}, 1)));
}

/* What joins a product: of its own rows, or of what was made before. */
static tn_tensor *joined_by(tn_tensor *y, const tn_tensor *before, int64_t kind) {
    if (kind == 0) return step(tn_relu(step(tn_add(y, waves(1, tn_size(y, 1), 0.3)))));
    if (kind == 1) return step(tn_silu(y));
    if (kind == 2 && tn_size(before, 1) == tn_size(y, 1)) return step(tn_add(step(tn_tanh(y)), before));
    if (kind == 3 && tn_size(before, 1) == tn_size(y, 1))
        return step(tn_where(step(tn_gt_scalar(before, 0.01)), y, waves(1, 1, 0.2)));
    return y;
}

static tn_tensor *summed(tn_tensor *x) { return step(tn_sum(x, (int64_t[]){0}, 1, true)); }

/* Scores of each row by all others. */
static tn_tensor *compared(const tn_tensor *x) {
    tn_tensor *q = times_weight(x, 32, 0), *k = times_weight(x, 32, 1), *v = times_weight(x, 16, 2);
    return step(tn_matmul(step(tn_matmul(q, tn_transpose(k, 0, 1))), v));
}

/* Needs all rows of x: as its second operand, turned, in another order, through other rows in an epilogue. */
static tn_tensor *mixed(tn_tensor *x, int64_t kind) {
    int64_t rows = tn_size(x, 0), columns = tn_size(x, 1);
    tn_tensor *y = times_weight(x, columns, below(2));
    if (kind == 0) return step(tn_matmul(x, step(tn_matmul(tn_transpose(x, 0, 1), x))));
    if (kind == 1) return step(tn_matmul(tn_flip(x, (int64_t[]){0}, 1), waves(columns, columns, 0.23)));
    if (kind == 2) return step(tn_add(y, tn_narrow(x, 0, rows - 1, 1)));
    if (kind == 3) return compared(x);
    if (kind == 4 && rows == columns) return step(tn_add(y, tn_transpose(x, 0, 1)));
    return step(tn_mul(y, summed(x)));
}

enum { DRAWN = 160 };

/* A network drawn at random, with some results that are held and some that only sums of need. */
static int of_chance(uint64_t seed, tn_tensor **out) {
    static const int64_t widths[] = {1, 4, 8, 16, 31, 64, 64, 128, 128, WIDEST};
    state_of_numbers = seed;
    int64_t rows = below(3) == 0 ? 64 : 16 + below(below(4) ? 80 : MOST_ROWS - 16), layers = 2 + below(4);
    int count = 0;
    tn_tensor *x = waves(rows, widths[below((int64_t)TN_COUNT(widths))], 0.07), *before = x;
    for (int64_t i = 0; i < layers; i++) {
        tn_tensor *y = times_weight(x, widths[below((int64_t)TN_COUNT(widths))], below(3));
        y = joined_by(y, before, below(5));
        if (below(4) == 0) y = mixed(y, below(6));
        if (below(3) == 0) out[count++] = below(2) ? y : summed(y);
        before = x;
        x = y;
    }
    static const int64_t narrow[] = {1, 2, 3, 5, 8, 15};
    for (int head = 0; head < 2; head++) {
        tn_tensor *y = times_weight(below(6) ? x : before, narrow[below((int64_t)TN_COUNT(narrow))], below(3));
        out[count++] = below(3) ? biased(y) : y;
    }
    return count;
}

/* The third result would fit where the first one lay, whose rows are longer: other threads are not through with it. */
static int of_narrower_rows(tn_tensor **out) {
    tn_tensor *a = times_weight(waves(MOST_ROWS, 32, 0.07), 128, 0);
    *out = summed(times_weight(times_weight(a, 64, 0), 64, 0));
    return 1;
}

/* x is read for the last time where the result is written, but all of it by the product before. */
static int of_operand_written_over(tn_tensor **out) {
    tn_tensor *a = waves(SQUARE, SQUARE, 0.07), *x = step(tn_tanh(waves(SQUARE, 64, 0.05)));
    tn_tensor *y = times_weight(step(tn_matmul(a, x)), 64, 0);
    *out = summed(step(tn_relu(step(tn_add(y, x)))));
    return 1;
}

/* Few columns, and many rows; with more steps than a chain has; pairs, and one that is left over. */
static int of_narrow_products(tn_tensor **out, int64_t steps) {
    static const int64_t columns[] = {8, 1, 15, 3, 12, 2};
    tn_tensor *x = times_weight(waves(MOST_ROWS, 16, 0.07), steps, 0);
    for (int i = 0; i < (int)TN_COUNT(columns); i++)
        out[i] = times_weight(x, columns[i], i % 2);
    return (int)TN_COUNT(columns);
}

/* The rest of them are drawn. */
static int network(uint64_t seed, tn_tensor **out) {
    if (seed == 0) return of_narrower_rows(out);
    if (seed == 1) return of_operand_written_over(out);
    return seed < 4 ? of_narrow_products(out, seed == 2 ? 100 : 300) : of_chance(seed, out);
}

static bool was_by_rows(void) {
    char *plan = tn_explain_last();
    bool found = strstr(plan, "(row-fused: ") != NULL;
    tn_text_free(plan);
    return found;
}

static void row_fused_products_have_the_same_bits(void **state) {
    (void)state;
    int by_rows = 0;
    for (uint64_t seed = 0; seed < DRAWN; seed++) {
        float *wanted[MOST_RESULTS], *got[MOST_RESULTS];
        int64_t counts[MOST_RESULTS];
        assert_ok(tn_set_num_threads(1 + (int)((2 * seed + 1) % 3)));
        int count = results_of(network, seed, true, wanted, counts);
        for (int run = 0; run < 2; run++) {
            assert_int_equal(results_of(network, seed, false, got, counts), count);
            by_rows += was_by_rows();
            if (seed < 4) assert_true(was_by_rows());
            assert_same_bits(seed, run, count, got, wanted, counts);
        }
        for (int i = 0; i < count; i++)
            free(wanted[i]);
    }
    assert_true(by_rows > DRAWN / 2);
}

/* Two products of one tensor may stand beside each other, and of two tensors not, whichever were there before. */
static void inputs_that_were_one_are_two(void **state) {
    (void)state;
    apart = false;
    assert_ok(tn_set_num_threads(2));
    tn_graph *g = NULL;
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x[2] = {waves(MOST_ROWS, 32, 0.1), waves(MOST_ROWS, 32, 0.2)},
              *w[2] = {waves(32, 8, 0.3), waves(32, 3, 0.4)};
    assert_ok(tn_capture_begin());
    tn_tensor *y[2] = {tn_matmul(x[0], w[0]), tn_matmul(x[1], w[1])};
    assert_ok(tn_capture_end(x, 2, y, 2, &g));
    assert_true(was_by_rows());
    for (int other = 0; other < 2; other++) {
        tn_tensor *in[2] = {x[0], x[other]}, *got[2], *wanted = tn_matmul(in[1], w[1]);
        assert_ok(tn_graph_launch(g, in, got));
        float values[2][MOST_ROWS * 3];
        assert_ok(tn_read(got[1], values[0], sizeof values[0]));
        assert_ok(tn_read(wanted, values[1], sizeof values[1]));
        assert_memory_equal(values[0], values[1], sizeof values[0]);
    }
    tn_graph_free(g);
}

static void plans_say_what_is_row_fused(void **state) {
    (void)state;
    apart = false;
    assert_ok(tn_set_num_threads(2));
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = waves(64, 64, 0.1), *h = tn_relu(tn_matmul(x, waves(64, 128, 0.2)));
    tn_tensor *y = tn_matmul(h, waves(128, 32, 0.3));
    assert_ok(tn_eval(&y, 1));
    char *plan = tn_explain_last();
    assert_text_has(plan, "matmul_batched+maximum [64, 128] > matmul_batched [64, 32]  (row-fused: ");
    tn_text_free(plan);
    tn_tensor *heads[] = {biased(times_weight(h, 8, 1)), biased(times_weight(h, 1, 1))};
    assert_ok(tn_eval(heads, 2));
    plan = tn_explain_last();
    assert_text_has(plan, "matmul_batched+add [64, 8] > matmul_batched+add [64, 1]  (row-fused: ");
    tn_text_free(plan);
    tn_tensor *z = tn_matmul(tn_transpose(tn_relu(tn_matmul(x, waves(64, 64, 0.2))), 0, 1), waves(64, 32, 0.3));
    assert_ok(tn_eval(&z, 1));
    assert_false(was_by_rows());
    tn_tensor *made = tn_matmul(h, tn_tanh(waves(128, 32, 0.3)));
    assert_ok(tn_eval(&made, 1));
    assert_false(was_by_rows());
    tn_tensor *large = tn_full((int64_t[]){40000, 64}, 2, 0.5, TN_F32);
    tn_tensor *l = tn_matmul(tn_matmul(large, waves(64, 128, 0.2)), waves(128, 32, 0.3));
    assert_ok(tn_eval(&l, 1));
    assert_false(was_by_rows());
    tn_tensor *few = waves(4, 64, 0.1), *w = tn_matmul(tn_matmul(few, waves(64, 64, 0.2)), waves(64, 32, 0.3));
    assert_ok(tn_eval(&w, 1));
    assert_false(was_by_rows());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_fused_products_have_the_same_bits),
        cmocka_unit_test(inputs_that_were_one_are_two),
        cmocka_unit_test(plans_say_what_is_row_fused),
    };
    printf("ran on: cpu\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
