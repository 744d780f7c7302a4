/* test_quantized.c — tensors that are quantised in blocks: what may be done with them, that their values are those of
 * the files' other readers, and that a product with them is packed once and shared.
 *
 * What each op computes is checked by its cases (test_ops); tests/golden/blocks.txt holds blocks and their values as
 * the gguf package decodes them. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>

#include "check/check.h"
#include "cpu/cpu_kernels.h"
#include "hal/hal.h"
#include "tensor/graph.h"
#include "trunnion/autograd.h"
#include "trunnion/model.h"
#include "trunnion/ops.h"

static tn_case_input matrix(tn_dtype t, int64_t rows, int64_t columns) {
    return (tn_case_input){.dtype = t, .rank = 2, .shape = {rows, columns}, .low = -2, .high = 2};
}

static void *blocks_of(tn_dtype t, int64_t rows, int64_t columns) {
    void *blocks = malloc(tn_dtype_bytes(t, rows * columns) + 1);
    tn_case_input in = matrix(t, rows, columns);
    tn_case_blocks(&in, 3, blocks);
    return blocks;
}

static tn_tensor *weight_of(tn_dtype t, int64_t rows, int64_t columns) {
    void *blocks = blocks_of(t, rows, columns);
    tn_tensor *w = tn_from_data(blocks, TN_DIMS(rows, columns), t);
    free(blocks);
    return w;
}

static tn_tensor *floats_of(int64_t rows, int64_t columns, uint64_t seed) {
    double *values = malloc((size_t)(rows * columns + 1) * sizeof *values);
    float *narrow = malloc((size_t)(rows * columns + 1) * sizeof *narrow);
    tn_case_input in = matrix(TN_F32, rows, columns);
    tn_case_values(&in, seed, values);
    for (int64_t i = 0; i < rows * columns; i++)
        narrow[i] = (float)values[i];
    tn_tensor *x = tn_from_data(narrow, TN_DIMS(rows, columns), TN_F32);
    free(values);
    free(narrow);
    return x;
}

static float *read_floats(const tn_tensor *t) {
    size_t bytes = (size_t)tn_numel(t) * sizeof(float);
    float *out = malloc(bytes + 1);
    assert_ok(tn_read(t, out, bytes));
    return out;
}

static void assert_same(const tn_tensor *a, const tn_tensor *b) {
    float *x = read_floats(a), *y = read_floats(b);
    assert_int_equal(tn_numel(a), tn_numel(b));
    for (int64_t i = 0; i < tn_numel(a); i++)
        if (memcmp(x + i, y + i, sizeof *x) != 0)
            fail_msg("[%lld] is %a, should be %a", (long long)i, (double)x[i], (double)y[i]);
    free(x);
    free(y);
}

static void assert_refused(const tn_tensor *t, const char *word) {
    assert_int_not_equal(tn_status_of(t), TN_OK);
    assert_text_has(tn_error(), word);
}

/* ---- the tensors ------------------------------------------------------------------------------------------------- */

static void rows_are_views_and_bytes_stay(void **state) {
    (void)state;
    enum { ROWS = 5, COLUMNS = 64, ROW_BYTES = 2 * 18 };
    TN_SCOPE;
    uint8_t *blocks = blocks_of(TN_Q4_0, ROWS, COLUMNS), got[ROWS * ROW_BYTES];
    tn_tensor *w = tn_from_data(blocks, TN_DIMS(ROWS, COLUMNS), TN_Q4_0);
    assert_ok(tn_read(w, got, sizeof got));
    assert_memory_equal(got, blocks, sizeof got);
    tn_tensor *odd = tn_slice(w, 0, 3, INT64_MIN, -2); /* rows 3 and 1 */
    assert_ok(tn_read(odd, got, 2 * ROW_BYTES));
    assert_memory_equal(got, blocks + 3 * ROW_BYTES, ROW_BYTES);
    assert_memory_equal(got + ROW_BYTES, blocks + ROW_BYTES, ROW_BYTES);
    assert_same(tn_dequantize(odd, TN_F32), tn_slice(tn_dequantize(w, TN_F32), 0, 3, INT64_MIN, -2));
    assert_same(tn_dequantize(tn_select(w, 0, 2), TN_F32), tn_select(tn_cast(w, TN_F32), 0, 2));
    free(blocks);
}

static void what_would_cut_a_block_is_refused(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *w = weight_of(TN_Q4_1, 4, 64), *x = floats_of(4, 64, 1);
    assert_refused(tn_slice(w, 1, 0, 16, 1), "whole rows");
    assert_refused(tn_slice(w, 1, INT64_MAX, INT64_MIN, -1), "whole rows");
    assert_refused(tn_view(w, TN_DIMS(16, 16)), "whole rows");
    assert_refused(tn_transpose(w, 0, 1), "tn_dequantize");
    assert_refused(tn_add(x, w), "input 2");
    assert_refused(tn_matmul(x, w), "tn_dequantize");
    assert_refused(tn_contiguous(w), "q4_1");
    assert_refused(tn_linear(x, tn_slice(w, 0, 0, 4, 2), NULL), "step");
    assert_refused(tn_cast(x, TN_Q8_0), "files");
    assert_refused(tn_full(TN_DIMS(32), 0, TN_Q8_0), "not a dtype");
    assert_refused(tn_from_data(x, TN_DIMS(4, 48), TN_Q4_0), "block size 32");
    assert_refused(tn_from_data(x, NULL, 0, TN_Q4_0), "block size 32");
    assert_int_not_equal(tn_set_requires_grad(w, true), TN_OK);
    assert_text_has(tn_error(), "q4_1");
    tn_named_tensor named = {.name = "w", .tensor = w};
    assert_int_equal(tn_safetensors_save("/dev/null", &named, 1, NULL, 0), TN_ERR_DTYPE);
    assert_text_has(tn_error(), "tn_dequantize");
    char bytes[64];
    assert_refused(tn_from_ptr(bytes + ((uintptr_t)bytes % 2 == 0), TN_DIMS(32), TN_Q4_0, NULL, NULL), "aligned to 2");
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

static size_t bytes_of(const char *hex, uint8_t *out) {
    size_t n = 0;
    for (; hex[2 * n] && hex[2 * n + 1]; n++)
        out[n] = (uint8_t)(digit(hex[2 * n]) * 16 + digit(hex[2 * n + 1]));
    return n;
}

static tn_dtype dtype_named(const char *name) {
    for (int t = 0; t < TN_DTYPE_COUNT; t++)
        if (strcmp(tn_dtype_name((tn_dtype)t), name) == 0) return (tn_dtype)t;
    fail_msg("no dtype is called %s", name);
    return TN_DTYPE_COUNT;
}

static void values_are_those_of_the_gguf_package(void **state) {
    (void)state;
    enum { MOST = 2048 };
    static char name[16], blocks_hex[4 * MOST], values_hex[16 * MOST];
    static uint8_t blocks[2 * MOST];
    static float want[MOST], decoded[MOST], got[MOST];
    int formats = 0;
    FILE *file = fopen("tests/golden/blocks.txt", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "#%*[^\n]"), 0);
    while (fscanf(file, "%15s %8191s %32767s", name, blocks_hex, values_hex) == 3) {
        tn_dtype t = dtype_named(name);
        size_t bytes = bytes_of(blocks_hex, blocks), count = bytes_of(values_hex, (uint8_t *)want) / sizeof *want;
        assert_int_equal(bytes, tn_dtype_bytes(t, (int64_t)count));
        tn_decode_blocks(t, blocks, (int64_t)count / tn_dtype_block(t), decoded);
        tn_tensor *x = tn_from_data(blocks, TN_DIMS((int64_t)count), t), *y = tn_dequantize(x, TN_F32);
        assert_ok(tn_read(y, got, count * sizeof *got));
        for (size_t i = 0; i < count; i++)
            if (got[i] != want[i] || decoded[i] != want[i])
                fail_msg("%s: [%zu] is %a, and %a by the kernel; it should be %a", name, i, (double)got[i],
                         (double)decoded[i], (double)want[i]);
        tn_free(x);
        tn_free(y);
        formats++;
    }
    fclose(file);
    assert_int_equal(formats, 10);
}

static int64_t live_buffers(void) {
    tn_memory_stats s = tn_memory_get_stats();
    return s.live_buffers;
}

static void looking_up_rows_decodes_no_others(void **state) {
    (void)state;
    enum { ROWS = 20000, COLUMNS = 256 };
    TN_SCOPE;
    tn_tensor *w = weight_of(TN_Q6_K, ROWS, COLUMNS);
    tn_tensor *index = tn_from_data((int64_t[]){7, ROWS - 1, 0}, TN_DIMS(3), TN_I64);
    tn_memory_reset_peak();
    int64_t before = tn_memory_get_stats().peak_bytes;
    tn_tensor *rows = tn_embedding(index, w);
    float *got = read_floats(rows);
    assert_true(tn_memory_get_stats().peak_bytes - before < 64 * COLUMNS);
    float *want = read_floats(tn_dequantize(tn_slice(w, 0, ROWS - 1, ROWS, 1), TN_F32));
    assert_memory_equal(got + COLUMNS, want, COLUMNS * sizeof *want);
    free(got);
    free(want);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static int64_t launches_of(const tn_tensor *t) {
    tn_reset_runtime_stats();
    free(read_floats(t));
    tn_runtime_stats s = {.struct_size = sizeof s};
    assert_ok(tn_get_runtime_stats(&s));
    return s.launches;
}

/* What follows a product element by element is computed on its blocks: the same bits, and no launch of its own. */
static void neighbours_join_the_product(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 5, 70};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        TN_SCOPE;
        int64_t m = rows[i];
        tn_tensor *x = floats_of(m, 128, 1), *w = weight_of(TN_Q4_1, 600, 128), *v = weight_of(TN_Q8_0, 600, 128);
        tn_tensor *bias = tn_contiguous(tn_select(floats_of(1, 600, 2), 0, 0)), *rest = floats_of(m, 600, 3);
        assert_ok(tn_eval((tn_tensor *[]){bias}, 1));
        tn_tensor *gate = tn_linear(x, w, NULL), *up = tn_linear(x, v, NULL);
        assert_ok(tn_eval((tn_tensor *[]){gate, up}, 2));
        tn_tensor *wanted = tn_add(tn_add(gate, bias), rest), *swiglu = tn_mul(tn_silu(gate), up);
        assert_ok(tn_eval((tn_tensor *[]){wanted, swiglu}, 2));
        tn_tensor *joined = tn_add(tn_linear(x, w, bias), rest);
        assert_int_equal(launches_of(joined), 1);
        assert_same(joined, wanted);
        tn_tensor *second = tn_mul(tn_silu(gate), tn_linear(x, v, NULL));
        assert_int_equal(launches_of(second), 1);
        assert_same(second, swiglu);
    }
}

static void assert_explained(const char *words, bool said) {
    char *text = tn_explain_last();
    if ((strstr(text, words) != NULL) != said) fail_msg("explained:\n%s", text);
    tn_text_free(text);
}

/* As a token's row of the embedding: the first norm needs it, and what is added later. */
static void what_several_kernels_need_is_decoded_once(void **state) {
    (void)state;
    tn_tensor *table = weight_of(TN_Q8_0, 1, 128), *w = weight_of(TN_Q4_1, 128, 128), *results[2];
    for (int stored = 0; stored < 2; stored++) {
        tn_tensor *row = tn_dequantize(table, TN_F32);
        if (stored) assert_ok(tn_eval(&row, 1));
        tn_tensor *norm = tn_rms_norm(row, TN_DIMS(128), NULL, NULL), *product = tn_linear(norm, w, NULL);
        results[stored] = tn_add(product, row);
        tn_free(row);
        tn_free(norm);
        tn_free(product);
        assert_ok(tn_eval(&results[stored], 1));
        assert_explained("cast+", !stored); /* stored by the norm's kernel, which is the first */
        assert_explained("+cast", false);
    }
    assert_same(results[0], results[1]);
    tn_free(results[0]);
    tn_free(results[1]);
    tn_free(table);
    tn_free(w);
}

/* Products of one operand are one launch, also where the last one's epilogue reads another: the bits of single ones. */
static void products_of_one_operand_are_one_launch(void **state) {
    (void)state;
    static const struct {
        int64_t m, n, k;
        tn_dtype dtype;
    } sizes[] = {{1, 192, 576, TN_Q4_1}, {3, 600, 256, TN_Q6_K}, {70, 1000, 128, TN_Q8_0}, {2, 130, 77, TN_F16}};
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        TN_SCOPE;
        int64_t m = sizes[i].m, n = sizes[i].n, k = sizes[i].k;
        tn_tensor *x = floats_of(m, k, 1), *w[3];
        for (int j = 0; j < 3; j++)
            w[j] = sizes[i].dtype == TN_F16 ? tn_cast(floats_of(j ? n : 3 * n, k, (uint64_t)j), TN_F16)
                                            : weight_of(sizes[i].dtype, j ? n : 3 * n, k);
        assert_ok(tn_eval(w, 3));
        tn_tensor *one[] = {tn_linear(x, w[0], NULL), tn_linear(x, w[1], NULL), tn_linear(x, w[2], NULL)};
        for (int j = 0; j < 3; j++)
            assert_ok(tn_eval(&one[j], 1));
        tn_tensor *swiglu = tn_mul(tn_silu(one[1]), one[2]);
        tn_tensor *turned = tn_mul(tn_flip(one[1], (int64_t[]){1}, 1), one[2]);
        assert_ok(tn_eval((tn_tensor *[]){swiglu, turned}, 2));

        tn_tensor *all[] = {tn_linear(x, w[0], NULL), tn_linear(x, w[1], NULL), tn_linear(x, w[2], NULL)};
        tn_reset_runtime_stats();
        assert_ok(tn_eval(all, 3));
        tn_runtime_stats s = {.struct_size = sizeof s};
        assert_ok(tn_get_runtime_stats(&s));
        assert_int_equal(s.launches, 1);
        assert_explained("&", true);
        for (int j = 0; j < 3; j++)
            assert_same(all[j], one[j]);

        tn_tensor *within[3], *soft[3]; /* the products in a plan's own memory, beside what the launch works with */
        for (int j = 0; j < 3; j++)
            soft[j] = tn_softmax(one[j], -1);
        assert_ok(tn_eval(soft, 3));
        {
            TN_SCOPE;
            for (int j = 0; j < 3; j++)
                within[j] = tn_retain(tn_softmax(tn_linear(x, w[j], NULL), -1));
        }
        assert_ok(tn_eval(within, 3));
        assert_explained("&", true);
        for (int j = 0; j < 3; j++) {
            assert_same(within[j], soft[j]);
            tn_free(within[j]);
        }

        tn_tensor *joined = tn_mul(tn_silu(tn_linear(x, w[1], NULL)), tn_linear(x, w[2], NULL));
        assert_int_equal(launches_of(joined), 1);
        assert_same(joined, swiglu);

        tn_tensor *apart = tn_mul(tn_flip(tn_linear(x, w[1], NULL), (int64_t[]){1}, 1), tn_linear(x, w[2], NULL));
        assert_same(apart, turned); /* another's places: made before */
        assert_explained("&", false);
    }
}

/* Of one operand, but each is read before the next is needed: one at a time is in memory. */
static void large_products_of_one_operand_do_not_wait_for_readers(void **state) {
    (void)state;
    enum { M = 5000, N = 1024, K = 32, PRODUCTS = 4 };
    TN_SCOPE;
    tn_tensor *x = floats_of(M, K, 1), *w[PRODUCTS], *all = NULL;
    for (int i = 0; i < PRODUCTS; i++)
        w[i] = tn_cast(floats_of(N, K, (uint64_t)i), TN_F16);
    assert_ok(tn_eval(w, PRODUCTS));
    {
        TN_SCOPE;
        for (int i = 0; i < PRODUCTS; i++) {
            tn_tensor *sum = tn_sum(tn_linear(x, w[i], NULL), (int64_t[]){0}, 1, false);
            all = all ? tn_add(sum, all) : sum;
        }
        all = tn_retain(all);
    }
    assert_ok(tn_eval(&all, 1));
    tn_free(all);
    char *text = tn_explain_last();
    const char *arena = strstr(text, "arena ");
    assert_non_null(arena);
    if (strtoll(arena + strlen("arena "), NULL, 10) > (long long)2 * M * N * (int)sizeof(float))
        fail_msg("explained:\n%s", text);
    tn_text_free(text);
}

/* Half precision is widened, not rounded: the bits of the product with the cast weight. */
static void half_weights_are_widened(void **state) {
    (void)state;
    static const tn_dtype halves[] = {TN_F16, TN_BF16};
    for (size_t i = 0; i < 2 * 4; i++) {
        TN_SCOPE;
        int64_t m = (int64_t[]){1, 3, 20, 100}[i / 2];
        tn_tensor *x = floats_of(m, 700, 1), *w = tn_cast(floats_of(130, 700, 2), halves[i % 2]),
                  *rest = floats_of(m, 130, 3);
        tn_tensor *wide = tn_cast(w, TN_F32);
        assert_ok(tn_eval((tn_tensor *[]){w, wide}, 2));
        tn_tensor *y = tn_add(tn_linear(x, w, NULL), rest);
        assert_int_equal(launches_of(y), 1);
        assert_same(y, tn_add(tn_linear(x, wide, NULL), rest));
        tn_tensor *some = tn_slice(w, 0, 30, 97, 1), *other = tn_slice(w, 0, 5, 130, 3);
        assert_same(tn_linear(x, some, NULL), tn_linear(x, tn_slice(wide, 0, 30, 97, 1), NULL));
        assert_same(tn_linear(x, other, NULL), tn_linear(x, tn_slice(wide, 0, 5, 130, 3), NULL));
        tn_tensor *made = tn_cast(floats_of(130, 700, 2), halves[i % 2]); /* in the same plan */
        assert_same(tn_linear(x, made, NULL), tn_linear(x, wide, NULL));
    }
}

/* A row's result does not depend on the rows beside it, however the batch is shaped. */
static void rows_stand_alone(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = floats_of(24, 96, 1), *w = weight_of(TN_Q5_0, 40, 96);
    tn_tensor *all = tn_linear(x, w, NULL);
    assert_same(tn_linear(tn_reshape(x, TN_DIMS(2, 3, 4, 96)), w, NULL), all);
    for (int64_t i = 0; i < 24; i += 7)
        assert_same(tn_linear(tn_select(x, 0, i), w, NULL), tn_select(all, 0, i));
    tn_tensor *turned = tn_contiguous(tn_transpose(x, 0, 1));
    assert_ok(tn_eval((tn_tensor *[]){turned}, 1));
    assert_same(tn_linear(tn_transpose(turned, 0, 1), w, NULL), all);
}

/* What ops with kernels of their own are where there are none: their lowering, here on the same device. Plans are
 * dropped where kernels come and go, for their keys say nothing of that. */
static void devices_without_kernels_do_it_by_definition(void **state) {
    (void)state;
    static const tn_dtype formats[] = {TN_Q4_1, TN_Q8_0, TN_Q3_K, TN_Q6_K};
    tn_device *device = tn_current_device();
    for (size_t i = 0; i < TN_COUNT(formats); i++) {
        TN_SCOPE;
        tn_tensor *x = floats_of(3, 256, 1), *w = weight_of(formats[i], 7, 256), *kernel = tn_linear(x, w, NULL);
        assert_ok(tn_eval(&kernel, 1));
        device->is_cpu = false;
        tn_recorder_drop();
        tn_tensor *lowered = tn_linear(x, w, NULL);
        assert_ok(tn_eval(&lowered, 1));
        tn_recorder_drop();
        device->is_cpu = true;
        assert_same(lowered, kernel);
    }
    TN_SCOPE;
    tn_tensor *x = tn_reshape(floats_of(20, 26, 1), TN_DIMS(5, 4, 26)),
              *c = tn_reshape(floats_of(5, 12, 2), TN_DIMS(5, 1, 12));
    tn_tensor *s = tn_reshape(floats_of(5, 12, 3), TN_DIMS(5, 1, 12));
    for (int k = 0; k < 2; k++) {
        tn_rope_options o = TN_ROPE_DEFAULTS;
        o.interleaved = k == 1;
        tn_tensor *kernel = tn_rope(x, c, s, &o), *lowered;
        assert_ok(tn_eval(&kernel, 1));
        device->is_cpu = false;
        tn_recorder_drop();
        lowered = tn_rope(x, c, s, &o);
        assert_ok(tn_eval(&lowered, 1));
        tn_recorder_drop();
        device->is_cpu = true;
        assert_same(lowered, kernel);
    }
}

/* A row has the bits of its expert's own product: of one token or of many, whatever the threads; and one that names no
 * expert is NaN. */
static void check_experts(tn_dtype t, int64_t tokens, bool each) {
    enum { EXPERTS = 5, OUT = 70, IN = 256, CHOICES = 3 };
    int64_t rows = tokens * CHOICES, *chosen = malloc((size_t)rows * sizeof *chosen);
    tn_tensor *all = weight_of(t, EXPERTS * OUT, IN), *x = floats_of(each ? rows : tokens, IN, 9);
    tn_tensor *weight = tn_reshape(all, TN_DIMS(EXPERTS, OUT, IN));
    tn_tensor *given = each ? tn_reshape(x, TN_DIMS(tokens, CHOICES, IN)) : tn_retain(x);
    for (int64_t i = 0; i < rows; i++)
        chosen[i] = i % 11 == 10 ? EXPERTS : i * i % 7 % EXPERTS;
    tn_tensor *choice = tn_from_data(chosen, TN_DIMS(tokens, CHOICES), TN_I64);
    for (int threads = 1; threads <= 3; threads++) {
        assert_ok(tn_threads_set(threads));
        tn_tensor *y = tn_linear_experts(given, weight, choice);
        float *got = read_floats(y);
        for (int64_t i = 0; i < rows; i++) {
            if (chosen[i] == EXPERTS) {
                assert_true(isnan(got[i * OUT]) && isnan(got[i * OUT + OUT - 1]));
                continue;
            }
            tn_tensor *w = tn_narrow(all, 0, chosen[i] * OUT, OUT), *row = tn_narrow(x, 0, each ? i : i / CHOICES, 1);
            tn_tensor *own = tn_linear(row, w, NULL);
            float *wanted = read_floats(own);
            if (memcmp(got + i * OUT, wanted, OUT * sizeof *got) != 0)
                fail_msg("%s, %lld tokens, %d threads: row %lld is not that of expert %lld", tn_dtype_name(t),
                         (long long)tokens, threads, (long long)i, (long long)chosen[i]);
            free(wanted);
            tn_free(own);
            tn_free(row);
            tn_free(w);
        }
        free(got);
        tn_free(y);
    }
    assert_ok(tn_threads_set(0));
    tn_free(choice);
    tn_free(given);
    tn_free(weight);
    tn_free(x);
    tn_free(all);
    free(chosen);
}

static void rows_of_experts_are_their_own_products(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_F32, TN_F16, TN_Q4_0, TN_Q6_K};
    for (size_t i = 0; i < TN_COUNT(types); i++) {
        check_experts(types[i], 1, false);
        check_experts(types[i], 1, true);
        check_experts(types[i], 5, false);
        check_experts(types[i], 300, true);
    }
}

/* The gradient of the other operand is that of the product with the decoded weight. */
static void gradients_pass_through(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = floats_of(3, 64, 1), *bias = tn_zeros(TN_DIMS(5), TN_F32), *w = weight_of(TN_Q4_0, 5, 64),
              *dy = floats_of(3, 5, 2);
    bias = tn_contiguous(bias);
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_set_requires_grad(bias, true));
    tn_tensor *y = tn_linear(x, w, bias), *grads[2];
    assert_ok(tn_gradients(&y, 1, &dy, (tn_tensor *[]){x, bias}, 2, false, grads));
    assert_same(grads[0], tn_matmul(dy, tn_dequantize(w, TN_F32)));
    assert_same(grads[1], tn_sum(dy, TN_DIMS(0), false));
}

/* … and one in half precision has a gradient itself, as precise as it is. */
static void half_weights_have_gradients(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = floats_of(3, 6, 1), *w = tn_cast(floats_of(5, 6, 2), TN_BF16), *dy = floats_of(3, 5, 3), *grads[2];
    assert_ok(tn_eval(&w, 1));
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_set_requires_grad(w, true));
    tn_tensor *y = tn_linear(x, w, NULL);
    assert_ok(tn_gradients(&y, 1, &dy, (tn_tensor *[]){x, w}, 2, false, grads));
    assert_int_equal(tn_dtype_of(grads[1]), TN_BF16);
    assert_same(grads[0], tn_matmul(dy, tn_cast(w, TN_F32)));
    tn_tensor *wide = tn_matmul(tn_transpose(dy, 0, 1), x);
    assert_same(tn_cast(grads[1], TN_F32), tn_cast(tn_cast(wide, TN_BF16), TN_F32));
}

/* One packed copy for all plans, which goes with the weight: of blocks and of floats. */
static void a_weight_is_packed_once(void **state) {
    (void)state;
    for (int floats = 0; floats < 2; floats++) {
        tn_recorder_drop(); /* plans and their arena, of the tests before */
        int64_t before = live_buffers();
        tn_tensor *w = floats ? floats_of(64, 256, 5) : weight_of(TN_Q4_K, 64, 256);
        for (int64_t m = 1; m <= 4; m++) {
            tn_tensor *x = floats_of(m, 256, 1), *y = tn_linear(x, w, NULL);
            free(read_floats(y));
            tn_free(x);
            tn_free(y);
        }
        tn_recorder_drop();
        assert_int_equal(live_buffers() - before, floats ? 2 : 3); /* forms of blocks share pieces of memory */
        tn_free(w);
        assert_int_equal(live_buffers() - before, 0);
    }
}

/* What was packed before a write is not used after it. */
static void a_written_weight_is_packed_anew(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *x = floats_of(20, 64, 1), *w = floats_of(30, 64, 2), *other = floats_of(30, 64, 3);
    assert_ok(tn_make_state(w));
    assert_same(tn_linear(x, w, NULL), tn_linear(x, floats_of(30, 64, 2), NULL));
    tn_copy_(w, other);
    assert_ok(tn_eval(NULL, 0));
    assert_same(tn_linear(x, w, NULL), tn_linear(x, other, NULL));
}

/* A large weight is packed piece by piece: its products are those of its rows' parts. */
static void pieces_are_packed_as_one(void **state) {
    (void)state;
    enum { ROWS = 2900, COLUMNS = 1024, CUT = 1000 }; /* 3 MB, and no piece ends at a cut */
    tn_tensor *x = floats_of(2, COLUMNS, 1), *w = weight_of(TN_Q8_0, ROWS, COLUMNS), *whole = tn_linear(x, w, NULL);
    float *all = read_floats(whole);
    for (int64_t first = 0; first < ROWS; first += CUT) {
        int64_t n = tn_min64(CUT, ROWS - first);
        tn_tensor *part = tn_slice(w, 0, first, first + n, 1), *y = tn_linear(x, part, NULL);
        float *some = read_floats(y);
        for (int64_t row = 0; row < 2; row++)
            assert_memory_equal(some + row * n, all + row * ROWS + first, (size_t)n * sizeof *some);
        free(some);
        tn_free(y);
        tn_free(part);
    }
    free(all);
    tn_free(whole);
    tn_free(w);
    tn_free(x);
}

typedef struct sharer {
    const tn_tensor *x, *w;
    float *out;
} sharer;

static void *multiply(void *ctx) {
    sharer *s = ctx;
    tn_tensor *y = tn_linear(s->x, s->w, NULL);
    s->out = read_floats(y);
    tn_free(y);
    return NULL;
}

static void threads_share_the_packed_weight(void **state) {
    (void)state;
    enum { THREADS = 4 };
    tn_tensor *x = floats_of(2, 256, 1), *w = weight_of(TN_Q6_K, 300, 256);
    pthread_t threads[THREADS];
    sharer sharers[THREADS];
    tn_recorder_drop();
    int64_t before = live_buffers();
    for (int i = 0; i < THREADS; i++) {
        sharers[i] = (sharer){x, w, NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, multiply, &sharers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < THREADS; i++)
        assert_memory_equal(sharers[i].out, sharers[0].out, 600 * sizeof(float));
    for (int i = 0; i < THREADS; i++)
        free(sharers[i].out);
    assert_int_equal(live_buffers() - before, 2); /* the form, and the piece of memory it is in */
    tn_free(x);
    tn_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_views_and_bytes_stay),
        cmocka_unit_test(what_would_cut_a_block_is_refused),
        cmocka_unit_test(values_are_those_of_the_gguf_package),
        cmocka_unit_test(looking_up_rows_decodes_no_others),
        cmocka_unit_test(neighbours_join_the_product),
        cmocka_unit_test(what_several_kernels_need_is_decoded_once),
        cmocka_unit_test(products_of_one_operand_are_one_launch),
        cmocka_unit_test(large_products_of_one_operand_do_not_wait_for_readers),
        cmocka_unit_test(half_weights_are_widened),
        cmocka_unit_test(rows_stand_alone),
        cmocka_unit_test(rows_of_experts_are_their_own_products),
        cmocka_unit_test(devices_without_kernels_do_it_by_definition),
        cmocka_unit_test(gradients_pass_through),
        cmocka_unit_test(half_weights_have_gradients),
        cmocka_unit_test(a_weight_is_packed_once),
        cmocka_unit_test(a_written_weight_is_packed_anew),
        cmocka_unit_test(pieces_are_packed_as_one),
        cmocka_unit_test(threads_share_the_packed_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
