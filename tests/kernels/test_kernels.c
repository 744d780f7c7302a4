/* test_kernels.c — the immediate kernels: the bits of the operations of their names, near to f64, and safe to call.
 *
 * Each kernel runs on random memory of random size and is compared with the operation that its manual names, bit for
 * bit, and with a plain f64 loop. What may go wrong is called with every argument wrong in turn. */
#include "test_support.h"

#include <math.h>
#include <pthread.h>

#include "cpu/cpu_kernels.h"
#include "random_numbers.h"
#include "trunnion/trunnion.h"

static uint64_t random_state;

static int64_t random_below(int64_t n) { return (int64_t)((random_step(&random_state) >> 33) % (uint64_t)n); }

static float *random_numbers(int64_t count) {
    float *x = tn_mem_alloc((size_t)tn_max64(count, 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)random_below(2000001) / 1000000.0f - 1.0f;
    return x;
}

static float *copy_of(const float *x, int64_t count) {
    float *y = tn_mem_alloc((size_t)tn_max64(count, 1) * sizeof *y);
    assert_non_null(y);
    memcpy(y, x, (size_t)count * sizeof *y);
    return y;
}

/* The operation's values beside the kernel's. */
static void assert_bits(tn_tensor *op, const float *got, int64_t count, const char *what) {
    float *wanted = tn_mem_alloc((size_t)tn_max64(count, 1) * sizeof *wanted);
    assert_non_null(wanted);
    assert_ok(tn_read(op, wanted, (size_t)count * sizeof *wanted));
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&wanted[i], &got[i], sizeof *got) != 0 && !(isnan(wanted[i]) && isnan(got[i])))
            fail_msg("%s: element %lld is %a, the operation has %a", what, (long long)i, (double)got[i],
                     (double)wanted[i]);
    }
    tn_mem_free(wanted);
}

static void assert_near(double got, double wanted, double bound, const char *what) {
    if (!(fabs(got - wanted) <= bound)) fail_msg("%s: %.9g instead of %.9g (bound %g)", what, got, wanted, bound);
}

static tn_tensor *tensor(const float *data, int64_t rows, int64_t cols) {
    return rows < 0 ? tn_from_data(data, &cols, 1, TN_F32) : tn_from_data(data, (int64_t[]){rows, cols}, 2, TN_F32);
}

/* Roundings of a chain of k fused steps, in chains of 256 that are added. */
static double product_bound(int64_t k, double absolute) { return ((double)k + 2) * 0x1p-24 * absolute + 1e-40; }

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void matmul_vec_is_linear(void **unused) {
    (void)unused;
    random_state = 1;
    for (int i = 0; i < 40; i++) {
        int64_t rows = i == 0 ? 0 : random_below(300), cols = i == 1 ? 0 : random_below(700), gap = random_below(9);
        float *w = random_numbers(rows * (cols + gap)), *x = random_numbers(cols), *out = random_numbers(rows), *made;
        float *dense = random_numbers(rows * cols);
        for (int64_t r = 0; r < rows; r++)
            memcpy(dense + r * cols, w + r * (cols + gap), (size_t)cols * sizeof *w);
        assert_ok(tn_kernel_matmul_vec_into(w, cols + gap, rows, cols, x, out));
        assert_ok(tn_kernel_matmul_vec(dense, rows, cols, x, &made));
        {
            TN_SCOPE;
            assert_bits(tn_linear(tensor(x, -1, cols), tensor(dense, rows, cols), NULL), out, rows, "matmul_vec");
        }
        assert_memory_equal(made, out, (size_t)rows * sizeof *out);
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0, absolute = 0;
            for (int64_t k = 0; k < cols; k++) {
                double term = (double)dense[r * cols + k] * (double)x[k];
                sum += term, absolute += fabs(term);
            }
            assert_near((double)out[r], sum, product_bound(cols, absolute), "matmul_vec");
        }
        tn_kernel_free(made);
        tn_mem_free(w), tn_mem_free(x), tn_mem_free(out), tn_mem_free(dense);
    }
}

static void matmul_is_matmul(void **unused) {
    (void)unused;
    random_state = 2;
    for (int i = 0; i < 40; i++) {
        int64_t m = random_below(60), k = i == 0 ? 0 : random_below(300), n = random_below(90);
        float *a = random_numbers(m * k), *b = random_numbers(k * n), *out = random_numbers(m * n);
        assert_ok(tn_kernel_matmul(a, b, m, k, n, out));
        {
            TN_SCOPE;
            assert_bits(tn_matmul(tensor(a, m, k), tensor(b, k, n)), out, m * n, "matmul");
        }
        for (int64_t e = 0; e < m * n; e++) {
            double sum = 0, absolute = 0;
            for (int64_t p = 0; p < k; p++) {
                double term = (double)a[e / n * k + p] * (double)b[p * n + e % n];
                sum += term, absolute += fabs(term);
            }
            assert_near((double)out[e], sum, product_bound(k, absolute), "matmul");
        }
        tn_mem_free(a), tn_mem_free(b), tn_mem_free(out);
    }
}

/* The planner makes an element-wise product of it, which has a product's zeros: none is negative. */
static void a_column_times_a_row_is_matmul(void **unused) {
    (void)unused;
    static const float pool[] = {0, -0.0F, 1, -1, 1e-30F, -1e-30F, 3.3e38F, -0.7F};
    enum { M = 370, N = 290 };
    static float a[M], b[N], out[M * N];
    for (int i = 0; i < M; i++)
        a[i] = pool[i % 8];
    for (int j = 0; j < N; j++)
        b[j] = pool[j * 3 % 8] * (j < 16 ? 1.0F : 1e-11F);
    assert_ok(tn_kernel_matmul(a, b, M, 1, N, out));
    TN_SCOPE;
    tn_tensor *product = tn_matmul(tensor(a, M, 1), tensor(b, 1, N));
    assert_bits(product, out, (int64_t)M * N, "matmul");
    for (int i = 0; i < M * N; i++)
        out[i] = out[i] - 0.5F * out[i];
    assert_bits(tn_sub(product, tn_mul_scalar(product, 0.5)), out, (int64_t)M * N, "matmul, joined");
}

static void attention_by_hand_is_matmul_and_mul(void **unused) {
    (void)unused;
    random_state = 3;
    for (int i = 0; i < 40; i++) {
        int64_t n = random_below(400), d = 1 + random_below(130), gap = random_below(2) * 3;
        float *query = random_numbers(d), *keys = random_numbers(n * (d + gap)), *scores = random_numbers(n);
        float *dense = random_numbers(n * d), *sum = random_numbers(d), scale = 0.125f;
        for (int64_t r = 0; r < n; r++)
            memcpy(dense + r * d, keys + r * (d + gap), (size_t)d * sizeof *keys);
        assert_ok(tn_kernel_attention_scores(query, keys, d + gap, n, d, scale, scores));
        assert_ok(tn_kernel_weighted_sum_rows(scores, keys, d + gap, n, d, sum));
        {
            TN_SCOPE;
            tn_tensor *product = tn_matmul(tensor(dense, n, d), tensor(query, -1, d));
            assert_bits(tn_mul(product, tn_scalar((double)scale)), scores, n, "attention_scores");
            assert_bits(tn_matmul(tensor(scores, -1, n), tensor(dense, n, d)), sum, d, "weighted_sum_rows");
        }
        for (int64_t e = 0; e < d; e++) {
            double wanted = 0, absolute = 0;
            for (int64_t r = 0; r < n; r++) {
                double term = (double)scores[r] * (double)dense[r * d + e];
                wanted += term, absolute += fabs(term);
            }
            assert_near((double)sum[e], wanted, product_bound(n, absolute), "weighted_sum_rows");
        }
        tn_mem_free(query), tn_mem_free(keys), tn_mem_free(scores), tn_mem_free(dense), tn_mem_free(sum);
    }
}

/* ---- quantised --------------------------------------------------------------------------------------------------- */

static const tn_dtype block_dtypes[] = {TN_Q4_0, TN_Q4_1, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q2_K,
                                        TN_Q3_K, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_Q8_X};

/* Random bytes are blocks, but for scales that are not numbers: halves get a small exponent. */
static uint8_t *random_blocks(tn_dtype dtype, int64_t rows, int64_t cols) {
    size_t bytes = tn_dtype_bytes(dtype, rows * cols);
    uint8_t *blocks = tn_mem_alloc(bytes + 1);
    float *decoded = tn_mem_alloc((size_t)tn_dtype_block(dtype) * sizeof *decoded);
    assert_true(blocks && decoded);
    size_t size = tn_dtype_size(dtype);
    for (size_t at = 0; at < bytes; at += size) {
        bool finite = false;
        while (!finite) {
            for (size_t i = 0; i < size; i++)
                blocks[at + i] = (uint8_t)random_below(256);
            tn_decode_blocks(dtype, blocks + at, 1, decoded);
            finite = true;
            for (int64_t i = 0; i < tn_dtype_block(dtype); i++)
                finite = finite && fabsf(decoded[i]) < 1e6f;
        }
    }
    tn_mem_free(decoded);
    return blocks;
}

static void quantised_products_are_linear(void **unused) {
    (void)unused;
    random_state = 4;
    for (size_t t = 0; t < TN_COUNT(block_dtypes); t++) {
        tn_dtype dtype = block_dtypes[t];
        for (int i = 0; i < 4; i++) {
            int64_t cols = tn_dtype_block(dtype) * (1 + random_below(4)), m = 1 + random_below(9);
            int64_t rows = i == 3 ? 5000 : 1 + random_below(70); /* more than is packed at once */
            uint8_t *blocks = random_blocks(dtype, rows, cols);
            float *x = random_numbers(m * cols), *out = random_numbers(m * rows), *one = random_numbers(rows);
            tn_kernel_matrix *w;
            assert_ok(tn_kernel_pack_quantized(dtype, blocks, rows, cols, &w));
            assert_ok(tn_kernel_matmul_packed(w, x, m, out));
            assert_ok(tn_kernel_matmul_vec_quantized(dtype, blocks, rows, cols, x, one));
            assert_memory_equal(one, out, (size_t)rows * sizeof *one);
            {
                TN_SCOPE;
                tn_tensor *weight = tn_from_data(blocks, (int64_t[]){rows, cols}, 2, dtype);
                assert_bits(tn_linear(tensor(x, m, cols), weight, NULL), out, m * rows, tn_dtype_name(dtype));
            }
            tn_kernel_matrix_free(w);
            tn_mem_free(blocks), tn_mem_free(x), tn_mem_free(out), tn_mem_free(one);
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void rmsnorm_is_rms_norm(void **unused) {
    (void)unused;
    random_state = 5;
    for (int i = 0; i < 40; i++) {
        int64_t n = i == 0 ? 0 : i < 4 ? i : i == 5 ? 40000 : random_below(2000);
        float *x = random_numbers(n), *weight = random_numbers(n), *out = copy_of(x, n);
        assert_ok(tn_kernel_rmsnorm(out, weight, n, 1e-5f));
        if (n > 0) {
            TN_SCOPE;
            tn_rms_norm_options o = TN_RMS_NORM_DEFAULTS;
            o.eps = 1e-5;
            assert_bits(tn_rms_norm(tensor(x, -1, n), &n, 1, tensor(weight, -1, n), &o), out, n, "rmsnorm");
        }
        double sum = 0;
        for (int64_t e = 0; e < n; e++)
            sum += (double)x[e] * (double)x[e];
        for (int64_t e = 0; e < n; e++) {
            double wanted = (double)x[e] / sqrt(sum / (double)n + (double)1e-5f) * (double)weight[e];
            assert_near((double)out[e], wanted, fabs(wanted) * ((double)n / 128 + 16) * 0x1p-24 + 1e-40, "rmsnorm");
        }
        tn_mem_free(x), tn_mem_free(weight), tn_mem_free(out);
    }
}

static void softmax_is_softmax(void **unused) {
    (void)unused;
    random_state = 6;
    for (int i = 0; i < 60; i++) {
        int64_t n = i == 0 ? 0 : i == 1 ? 50000 : 1 + random_below(i % 2 ? 20 : 2000), stride = 1 + random_below(4);
        float *x = random_numbers(n), *out = copy_of(x, n), *wide = random_numbers(n * stride);
        bool backwards = i % 3 == 0;
        for (int64_t e = 0; e < n; e++) {
            if (i % 4 == 0) x[e] *= 60;
            if (i % 20 == 7 && e % 3 == 0) x[e] = -INFINITY;
            out[e] = x[e];
            wide[(backwards ? n - 1 - e : e) * stride] = x[e];
        }
        float *before = copy_of(wide, n * stride);
        assert_ok(tn_kernel_softmax(out, n));
        assert_ok(
            tn_kernel_softmax_view(backwards && n ? wide + (n - 1) * stride : wide, n, backwards ? -stride : stride));
        if (n > 0) {
            TN_SCOPE;
            assert_bits(tn_softmax(tensor(x, -1, n), 0), out, n, "softmax");
        }
        double most = -HUGE_VAL, sum = 0;
        for (int64_t e = 0; e < n; e++)
            most = fmax(most, (double)x[e]);
        for (int64_t e = 0; e < n; e++)
            sum += exp((double)x[e] - most);
        for (int64_t e = 0; e < n; e++) {
            double wanted = exp((double)x[e] - most) / sum;
            if (n > 1 || isfinite(most)) /* relative: exp's argument is off by up to 120 · 2^-24 */
                assert_near((double)out[e], wanted, wanted * (130 + (double)n / 64) * 0x1p-23 + 2e-45, "softmax");
            float viewed = wide[(backwards ? n - 1 - e : e) * stride];
            assert_true(viewed == out[e] || (isnan(viewed) && isnan(out[e])));
        }
        for (int64_t e = 0; e < n * stride; e++)
            assert_true(e % stride == 0 || wide[e] == before[e]);
        tn_mem_free(x), tn_mem_free(out), tn_mem_free(wide), tn_mem_free(before);
    }
}

static void silu_is_silu(void **unused) {
    (void)unused;
    random_state = 7;
    for (int i = 0; i < 30; i++) {
        int64_t n = i == 0 ? 0 : i == 1 ? 300000 : random_below(3000);
        float *x = random_numbers(n), *out = random_numbers(n);
        for (int64_t e = 0; e < n; e++)
            x[e] *= i % 2 ? 100 : 5;
        assert_ok(tn_kernel_silu(x, n, out));
        {
            TN_SCOPE;
            assert_bits(tn_silu(tensor(x, -1, n)), out, n, "silu");
        }
        for (int64_t e = 0; e < n; e++) {
            double wanted = (double)x[e] / (1 + exp(-(double)x[e]));
            assert_near((double)out[e], wanted, fabs(wanted) * 8 * 0x1p-24 + 1e-36, "silu");
        }
        assert_ok(tn_kernel_silu(x, n, x));
        assert_memory_equal(x, out, (size_t)n * sizeof *x);
        tn_mem_free(x), tn_mem_free(out);
    }
}

static void apply_rope_is_rope(void **unused) {
    (void)unused;
    random_state = 8;
    for (int i = 0; i < 60; i++) {
        int64_t rows = random_below(12), half = random_below(70), features = 2 * half + random_below(3);
        bool interleaved = i % 2;
        float *x = random_numbers(rows * features), *out = copy_of(x, rows * features);
        float *cosine = random_numbers(half), *sine = random_numbers(half);
        assert_ok(tn_kernel_apply_rope(out, rows, features, cosine, sine, half, interleaved));
        if (half > 0) {
            TN_SCOPE;
            tn_rope_options o = TN_ROPE_DEFAULTS;
            o.interleaved = interleaved;
            tn_tensor *heads = tn_from_data(x, (int64_t[]){rows, 1, features}, 3, TN_F32);
            tn_tensor *turned = tn_rope(heads, tensor(cosine, 1, half), tensor(sine, 1, half), &o);
            assert_bits(turned, out, rows * features, "apply_rope");
        }
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t p = 0; p < half; p++) {
                int64_t a = r * features + (interleaved ? 2 * p : p), b = interleaved ? a + 1 : a + half;
                double c = (double)cosine[p], s = (double)sine[p], u = (double)x[a], v = (double)x[b];
                assert_near((double)out[a], u * c - v * s, 3 * 0x1p-24 * (fabs(u * c) + fabs(v * s)), "apply_rope");
                assert_near((double)out[b], v * c + u * s, 3 * 0x1p-24 * (fabs(v * c) + fabs(u * s)), "apply_rope");
            }
            for (int64_t e = 2 * half; e < features; e++)
                assert_true(out[r * features + e] == x[r * features + e]);
        }
        tn_mem_free(x), tn_mem_free(out), tn_mem_free(cosine), tn_mem_free(sine);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

#define assert_refused(call, part)                 \
    do {                                           \
        assert_int_equal((call), TN_ERR_ARGUMENT); \
        assert_text_has(tn_error(), part);         \
    } while (0)

static void wrong_arguments_are_refused_with_their_names(void **unused) {
    (void)unused;
    float x[16] = {0}, y[16] = {0}, *made;
    const int64_t huge = INT64_MAX / 8;
    assert_refused(tn_kernel_matmul_vec(NULL, 2, 2, x, &made), "tn_kernel_matmul_vec: w is NULL");
    assert_null(made);
    assert_refused(tn_kernel_matmul_vec(x, 2, 2, y, NULL), "out is NULL");
    assert_refused(tn_kernel_matmul_vec(x, 2, -2, y, &made), "negative");
    assert_refused(tn_kernel_matmul_vec(x, huge, 4, y, &made), "the address space");
    assert_refused(tn_kernel_matmul_vec_into(x, 2, 2, 2, NULL, y), "x is NULL");
    assert_refused(tn_kernel_matmul_vec_into(x, 1, 2, 2, y, y + 4), "rows of w are 1 elements apart");
    assert_refused(tn_kernel_matmul_vec_into(x, 2, 2, 2, x + 4, x + 5), "out overlaps x");
    assert_refused(tn_kernel_matmul(x, x, 2, 2, 2, x + 3), "out overlaps a");
    assert_refused(tn_kernel_matmul(x, NULL, 2, 2, 2, y), "b is NULL");
    assert_refused(tn_kernel_matmul(x, y, 2, -1, 2, y), "negative");
    assert_refused(tn_kernel_rmsnorm(NULL, x, 2, 0), "x is NULL");
    assert_refused(tn_kernel_rmsnorm(x, NULL, 2, 0), "weight is NULL");
    assert_refused(tn_kernel_rmsnorm(x, y, 2, -1), "eps");
    assert_refused(tn_kernel_rmsnorm(x, y, 2, NAN), "eps");
    assert_refused(tn_kernel_rmsnorm(x, x + 1, 2, 0), "x overlaps weight");
    assert_refused(tn_kernel_softmax(NULL, 1), "x is NULL");
    assert_refused(tn_kernel_softmax(x, -1), "negative");
    assert_refused(tn_kernel_softmax_view(x, 2, 0), "stride is 0");
    assert_refused(tn_kernel_softmax_view(x, 4, INT64_MIN / 4), "the address space");
    assert_refused(tn_kernel_silu(x, 3, x + 1), "out overlaps x");
    assert_refused(tn_kernel_silu(x, 3, NULL), "out is NULL");
    assert_refused(tn_kernel_apply_rope(x, 2, 4, y, y, 3, false), "at most half");
    assert_refused(tn_kernel_apply_rope(x, 2, 4, x, y, 2, false), "x overlaps cos");
    assert_refused(tn_kernel_apply_rope(x, huge, 16, y, y, 2, false), "the address space");
    assert_refused(tn_kernel_attention_scores(x, NULL, 2, 2, 2, 1, y), "keys is NULL");
    assert_refused(tn_kernel_attention_scores(x, y, 1, 2, 2, 1, y + 8), "rows of keys");
    assert_refused(tn_kernel_weighted_sum_rows(x, y, 2, 2, 2, y + 3), "out overlaps matrix");
    assert_refused(tn_kernel_weighted_sum_rows(x, y, 2, -2, 2, y + 8), "negative");
    assert_refused(tn_kernel_matmul_vec_quantized(TN_Q8_0, x, 1, 33, x, y), "a multiple of 32");
    assert_refused(tn_kernel_matmul_vec_quantized(TN_Q8_0, NULL, 1, 32, x, y), "blocks is NULL");
    assert_refused(tn_kernel_matmul_vec_quantized(TN_Q8_0, x, INT64_MAX / 2, 32, x, y), "the address space");
    assert_int_equal(tn_kernel_matmul_vec_quantized(TN_F32, x, 1, 32, x, y), TN_ERR_DTYPE);
    assert_refused(tn_kernel_pack_quantized(TN_Q8_0, x, 1, 32, NULL), "out is NULL");
    assert_refused(tn_kernel_matmul_packed(NULL, x, 1, y), "w is NULL");
}

static tn_status call_everything(void) {
    float x[64], y[64], *made;
    uint8_t blocks[34 * 2] = {0};
    for (int i = 0; i < 64; i++)
        x[i] = y[i] = 1;
    TRY(tn_kernel_matmul_vec(x, 4, 4, y, &made));
    tn_kernel_free(made);
    TRY(tn_kernel_matmul(x, x, 4, 4, 4, y));
    TRY(tn_kernel_rmsnorm(x, y, 32, 0));
    TRY(tn_kernel_softmax(x, 32));
    TRY(tn_kernel_silu(x, 32, y));
    TRY(tn_kernel_apply_rope(x, 2, 8, y, y, 4, false));
    TRY(tn_kernel_matmul_vec_quantized(TN_Q8_0, blocks, 2, 32, x, y));
    tn_kernel_matrix *w;
    TRY(tn_kernel_pack_quantized(TN_Q8_0, blocks, 2, 32, &w));
    tn_status status = tn_kernel_matmul_packed(w, x, 1, y);
    tn_kernel_matrix_free(w);
    return status;
}

/* Before any other test has made the programs. */
static void memory_may_run_out_at_every_call(void **unused) {
    (void)unused;
    int64_t n = 1;
    for (;; n++) {
        tn_mem_fail_at(n);
        tn_status status = call_everything();
        tn_mem_fail_at(0);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
        assert_true(n < 1000);
    }
    assert_true(n > 10);
    for (int call = 2; call <= 3; call++) /* at the second one programs get machine code, at the third a recipe */
        assert_ok(call_everything());
    int64_t blocks = tn_mem_get_stats().live_blocks;
    assert_ok(call_everything());
    assert_int_equal(tn_mem_get_stats().live_blocks, blocks);
}

static void *call_often(void *failed) {
    for (int i = 0; i < 50; i++) {
        if (call_everything() != TN_OK) *(_Atomic bool *)failed = true;
    }
    return NULL;
}

static void threads_may_call_at_once(void **unused) {
    (void)unused;
    pthread_t threads[3];
    _Atomic bool failed = false;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &failed), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_false(failed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_may_run_out_at_every_call),
        cmocka_unit_test(threads_may_call_at_once),
        cmocka_unit_test(matmul_vec_is_linear),
        cmocka_unit_test(matmul_is_matmul),
        cmocka_unit_test(a_column_times_a_row_is_matmul),
        cmocka_unit_test(attention_by_hand_is_matmul_and_mul),
        cmocka_unit_test(quantised_products_are_linear),
        cmocka_unit_test(rmsnorm_is_rms_norm),
        cmocka_unit_test(softmax_is_softmax),
        cmocka_unit_test(silu_is_silu),
        cmocka_unit_test(apply_rope_is_rope),
        cmocka_unit_test(wrong_arguments_are_refused_with_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
