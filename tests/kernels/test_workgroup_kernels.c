/* test_workgroup_kernels.c — kernels of workgroups (gpu/gpu.h), whole recordings of them: what a device
 * without native kernels computes has the bits that the cpu's kernels yield, for sizes on both sides of every edge and
 * whatever joins the template. The far device interprets them, and its interpreter reports races. With
 * TRUNNION_TEST_DEVICE another device takes its place, which must promise exact arithmetic. */
#include "test_support.h"

#include <math.h>

#include "check/check.h"
#include "conv_options.h"
#include "far_driver.h"
#include "random_numbers.h"
#include "sources.h"
#include "trunnion/trunnion.h"

static tn_device *far, *cpu;

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &cpu) != TN_OK) return -1;
    const char *name = getenv("TRUNNION_TEST_DEVICE");
    if (name) return tn_device_open(name, &o, NULL, &far) == TN_OK ? 0 : -1;
    far = far_open(0, NULL);
    return 0;
}

static int close_devices(void **state) {
    tn_set_current_device(NULL);
    tn_device_close(far);
    tn_device_close(cpu);
    return remove_scratch(state);
}

/* ---- the same recording here and there --------------------------------------------------------------------------- */

/* Values that are the same on both devices. */
static tn_tensor *numbers(const int64_t *shape, int rank, tn_dtype t, uint64_t seed) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= shape[d];
    float *values = malloc((size_t)(n + 1) * sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        values[i] = (float)((int64_t)(random_step(&seed) >> 40) - (1 << 23)) / (float)(1 << 22);
    }
    tn_tensor *x = tn_from_data(values, shape, rank, TN_F32);
    free(values);
    return t == TN_F32 ? x : tn_cast(tn_dtype_is_float(t) ? x : tn_mul(x, tn_scalar(100)), t);
}

typedef tn_tensor *(*recording)(const void *arguments);

static char *bytes_on(tn_device *d, recording record, const void *arguments, size_t *bytes) {
    char *out = NULL;
    assert_ok(tn_set_current_device(d));
    TN_SCOPE;
    tn_tensor *y = record(arguments);
    assert_ok(tn_status_of(y));
    *bytes = (size_t)tn_numel(y) * tn_dtype_size(tn_dtype_of(y));
    out = malloc(*bytes + 1);
    assert_ok(tn_read(y, out, *bytes));
    return out;
}

static void any_kernel_has_the_bits(recording record, const void *arguments, const char *what) {
    size_t here, there;
    char *a = bytes_on(cpu, record, arguments, &here), *b = bytes_on(far, record, arguments, &there);
    assert_int_equal(here, there);
    for (size_t i = 0; i < here; i += 4)
        if (memcmp(a + i, b + i, here - i < 4 ? here - i : 4) != 0)
            fail_msg("%s: word %zu of %zu differs", what, i / 4, here / 4);
    free(a);
    free(b);
}

static void same_bits(recording record, const void *arguments, const char *what) {
    const int64_t before = far_counts_now.group_launches;
    any_kernel_has_the_bits(record, arguments, what);
    if (!getenv("TRUNNION_TEST_DEVICE") && far_counts_now.group_launches == before)
        fail_msg("%s: computed without a template", what);
}

/* Doubles are not every device's, and matrix units add in an order of their own. */
static bool lacks(tn_dtype t) {
    return t == TN_F64 ? !far->caps.f64 : (t == TN_F16 || t == TN_BF16) && far->caps.matrix != 0;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct product {
    int64_t m, n, k;
    tn_dtype dtype;
    bool a_turned, b_turned, joined;
} product;

static tn_tensor *matrix(int64_t rows, int64_t columns, bool turned, tn_dtype t, uint64_t seed) {
    int64_t shape[2] = {turned ? columns : rows, turned ? rows : columns};
    tn_tensor *x = numbers(shape, 2, t, seed);
    return turned ? tn_transpose(x, 0, 1) : x;
}

static tn_tensor *record_product(const void *arguments) {
    const product *p = arguments;
    tn_tensor *a = matrix(p->m, p->k, p->a_turned, p->dtype, 1), *b = matrix(p->k, p->n, p->b_turned, p->dtype, 2);
    tn_tensor *y = tn_matmul(a, b);
    if (!p->joined) return y;
    tn_tensor *bias = numbers(&p->n, 1, p->dtype, 3), *rest = matrix(p->m, p->n, false, p->dtype, 4);
    return tn_add(tn_relu(tn_add(y, bias)), rest);
}

static void products_of_all_sizes(void **state) {
    (void)state;
    static const product products[] = {
        {64, 64, 16, TN_F32, false, false, false},  {65, 66, 17, TN_F32, true, false, true},
        {130, 70, 256, TN_F32, false, true, false}, {33, 40, 300, TN_F32, true, true, true},
        {31, 5, 513, TN_F32, false, false, true},   {5, 200, 530, TN_F32, false, true, true},
        {2, 100, 77, TN_F32, false, true, false},   {8, 65, 40, TN_F32, true, false, false},
        {40, 40, 270, TN_F64, false, true, true},   {20, 40, 35, TN_I32, false, false, true},
        {20, 40, 35, TN_I64, true, true, false},    {40, 40, 30, TN_F16, false, false, false},
        {3, 70, 0, TN_F32, false, false, true},     {300, 1, 40, TN_F32, true, false, true},
    };
    for (size_t i = 0; i < TN_COUNT(products); i++) {
        char what[80];
        const product *p = &products[i];
        if (lacks(p->dtype)) continue;
        snprintf(what, sizeof what, "%lld × %lld × %lld of %s", (long long)p->m, (long long)p->n, (long long)p->k,
                 tn_dtype_name(p->dtype));
        same_bits(record_product, p, what);
    }
}

static tn_tensor *record_batches(const void *arguments) {
    (void)arguments;
    tn_tensor *a = numbers((int64_t[]){2, 1, 3, 20, 30}, 5, TN_F32, 1);
    tn_tensor *b = numbers((int64_t[]){4, 1, 30, 12}, 4, TN_F32, 2);
    return tn_softmax(tn_matmul(a, b), -1);
}

static tn_tensor *record_half(const void *arguments) {
    const tn_dtype *t = arguments;
    tn_tensor *x = numbers((int64_t[]){9, 70}, 2, TN_F32, 1), *w = numbers((int64_t[]){50, 70}, 2, *t, 2);
    return tn_gelu(tn_linear(x, w, numbers((int64_t[]){50}, 1, TN_F32, 3)), NULL);
}

static tn_tensor *record_inlined_operands(const void *arguments) {
    (void)arguments;
    tn_tensor *a = numbers((int64_t[]){40, 24}, 2, TN_F32, 1), *b = numbers((int64_t[]){24, 40}, 2, TN_F32, 2);
    return tn_matmul(tn_neg(tn_flip(a, (int64_t[]){1}, 1)),
                     tn_pad(tn_slice(b, 1, 0, 20, 1), (int64_t[]){3, 4}, 2, 0.5));
}

static void what_joins_a_product(void **state) {
    (void)state;
    same_bits(record_batches, NULL, "batches");
    same_bits(record_half, &(tn_dtype){TN_F16}, "f16 weights");
    same_bits(record_half, &(tn_dtype){TN_BF16}, "bf16 weights");
    same_bits(record_inlined_operands, NULL, "operands that are computed where they are read");
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

typedef struct convolution {
    int64_t images, channels, height, width, results, kernel[2];
    tn_conv2d_options options;
    bool backward;
} convolution;

static tn_tensor *record_convolution(const void *arguments) {
    const convolution *c = arguments;
    tn_conv2d_options o = conv2d_of_row(&c->options);
    int64_t groups = o.groups, flat = -1;
    tn_tensor *x = numbers((int64_t[]){c->images, c->channels, c->height, c->width}, 4, TN_F32, 1);
    tn_tensor *w = numbers((int64_t[]){c->results, c->channels / groups, c->kernel[0], c->kernel[1]}, 4, TN_F32, 2);
    tn_tensor *bias = numbers(&c->results, 1, TN_F32, 3);
    assert_ok(tn_set_requires_grad(x, true));
    assert_ok(tn_set_requires_grad(w, true));
    tn_tensor *y = tn_relu(tn_conv2d(x, w, bias, &o));
    if (!c->backward) return y;
    tn_tensor *seed = numbers(tn_shape(y), 4, TN_F32, 4), *grads[2];
    assert_ok(tn_gradients(&y, 1, &seed, (tn_tensor *[]){x, w}, 2, false, grads));
    return tn_cat((tn_tensor *[]){tn_reshape(grads[0], &flat, 1), tn_reshape(grads[1], &flat, 1)}, 2, 0);
}

static void windows_are_never_stored(void **state) {
    (void)state;
    static const convolution some[] = {
        {2, 3, 9, 8, 5, {3, 3}, {.padding = {1, 1}}, true},
        {1, 40, 6, 7, 17, {3, 3}, {.padding = {2, 0}, .dilation = {2, 1}}, false},
        {2, 4, 7, 19, 40, {1, 1}, {.stride = {2, 1}}, false},
        {2, 4, 6, 35, 6, {2, 3}, {.stride = {2, 1}, .padding = {1, 2}, .groups = 2}, true},
        {3, 2, 1, 9, 70, {1, 4}, {.stride = {1, 3}}, false},
    };
    for (size_t i = 0; i < TN_COUNT(some); i++)
        same_bits(record_convolution, &some[i], "a convolution");
}

/* These have no kernel by workgroups: each result is a chain of its own. */
static void one_filter_a_channel_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    static const convolution some[] = {
        {2, 5, 9, 8, 5, {3, 3}, {.padding = {1, 1}, .groups = 5}, true},
        {1, 18, 7, 19, 18, {5, 5}, {.stride = {2, 2}, .padding = {2, 2}, .groups = 18}, false},
        {1, 2, 20, 20, 2, {17, 16}, {.padding = {3, 3}, .groups = 2}, false},
        {1, 3, 9, 11, 3, {3, 2}, {.padding = {2, 0}, .dilation = {2, 3}, .groups = 3}, true},
    };
    for (size_t i = 0; i < TN_COUNT(some); i++)
        any_kernel_has_the_bits(record_convolution, &some[i], "a depthwise convolution");
}

/* ---- products with weights in blocks ----------------------------------------------------------------------------- */

typedef struct blocks {
    int64_t m, n, k;
    tn_dtype dtype;
    bool joined;
} blocks;

static tn_tensor *weight_in_blocks(int64_t rows, int64_t columns, tn_dtype t) {
    tn_case_input in = {.dtype = t, .rank = 2, .shape = {rows, columns}, .low = -2, .high = 2};
    void *bytes = calloc(tn_dtype_bytes(t, rows * columns) + 1, 1);
    tn_case_blocks(&in, 5, bytes);
    tn_tensor *w = tn_from_data(bytes, in.shape, 2, t);
    free(bytes);
    return w;
}

static tn_tensor *record_blocks(const void *arguments) {
    const blocks *p = arguments;
    tn_tensor *x = numbers((int64_t[]){p->m, p->k}, 2, TN_F32, 1), *w = weight_in_blocks(p->n, p->k, p->dtype);
    if (!p->joined) return tn_linear(x, w, NULL);
    return tn_silu(tn_linear(tn_mul(x, tn_scalar(1e-3)), tn_slice(w, 0, 1, p->n, 1), NULL));
}

static void weights_in_all_formats(void **state) {
    (void)state;
    static const tn_dtype formats[] = {TN_Q4_0, TN_Q4_1, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q2_K,
                                       TN_Q3_K, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_Q8_X};
    for (size_t i = 0; i < TN_COUNT(formats); i++) {
        int64_t k = tn_dtype_block(formats[i]) == 32 ? 96 : 512;
        const blocks some[] = {
            {1, 70, k, formats[i], false}, {3, 10, k, formats[i], true}, {21, 65, k, formats[i], i % 2}};
        for (size_t j = 0; j < TN_COUNT(some); j++)
            same_bits(record_blocks, &some[j], tn_dtype_name(formats[i]));
    }
}

/* Rows that are not finite, tiny or zero. */
static tn_tensor *record_odd_rows(const void *arguments) {
    const tn_dtype *t = arguments;
    float x[6 * 256] = {0};
    for (int i = 0; i < 256; i++) {
        x[256 + i] = (float)i * 1e-36F;
        x[512 + i] = i == 40 ? INFINITY : 1;
        x[768 + i] = i == 100 ? NAN : -1;
        x[1024 + i] = i % 2 ? -1e38F : 1e38F;
        x[1280 + i] = (float)i * 0x1p-109F;
    }
    tn_tensor *y = tn_linear(tn_from_data(x, (int64_t[]){6, 256}, 2, TN_F32), weight_in_blocks(9, 256, *t), NULL);
    return tn_where(tn_isnan(y), tn_scalar(7), y); /* which NaN it is nobody promises */
}

static void odd_rows_are_rounded_alike(void **state) {
    (void)state;
    same_bits(record_odd_rows, &(tn_dtype){TN_Q5_1}, "odd rows with q5_1");
    same_bits(record_odd_rows, &(tn_dtype){TN_Q6_K}, "odd rows with q6_k");
}

/* ---- sorting, adding by index, caches ---------------------------------------------------------------------------- */

typedef struct order {
    int64_t rows, length;
    tn_dtype dtype;
    bool descending, few; /* few: many elements are equal */
} order;

static tn_tensor *record_order(const void *arguments) {
    const order *o = arguments;
    tn_tensor *x = numbers((int64_t[]){o->rows, o->length}, 2, TN_F32, 1);
    if (o->few) x = tn_where(tn_lt(x, tn_scalar(-1.5)), tn_scalar(NAN), tn_round(x));
    return tn_argsort(tn_cast(x, o->dtype), 1, o->descending);
}

static void rows_are_sorted(void **state) {
    (void)state;
    static const order orders[] = {{3, 1, TN_F32, false, false},  {2, 2, TN_F32, true, false},
                                   {2, 63, TN_F32, false, true},  {2, 64, TN_F64, true, true},
                                   {1, 65, TN_I32, false, false}, {1, 200, TN_F32, true, true},
                                   {2, 129, TN_I64, true, false}};
    for (size_t i = 0; i < TN_COUNT(orders); i++)
        if (!lacks(orders[i].dtype)) same_bits(record_order, &orders[i], "a sorted row");
}

static tn_tensor *record_index_add(const void *arguments) {
    const int64_t *width = arguments;
    int64_t index[300];
    for (int i = 0; i < 300; i++)
        index[i] = 1 + i * 7 % 9;
    tn_tensor *x = numbers((int64_t[]){9, *width}, 2, TN_F32, 1),
              *src = numbers((int64_t[]){300, *width}, 2, TN_F32, 2);
    /* Computed by the plan, from 0 to 8. */
    tn_tensor *rows = tn_sub(tn_from_data(index, (int64_t[]){300}, 1, TN_I64), tn_scalar_int(1));
    return tn_index_add(tn_mul(x, tn_scalar(-0.0)), 0, rows, src);
}

typedef struct sequence {
    int64_t tokens, position, window;
    tn_dtype dtype;
    bool twice; /* the list of pages names one twice */
    bool small; /* one page of narrow rows */
    double cap;
} sequence;

/* A cache that is appended to, and attention over it before. */
static tn_tensor *record_sequence(const void *arguments) {
    const sequence *s = arguments;
    enum { KV_HEADS = 2, HEADS = 6 };
    int64_t page_count = s->small ? 1 : 4, width = s->small ? 5 : 70;
    int64_t cache[4] = {page_count, KV_HEADS, 64, width}, new[3] = {s->tokens, KV_HEADS, width};
    int64_t list[3] = {s->small ? 0 : 2, s->twice ? 2 : 0, 3}, listed[1] = {s->small ? 1 : 3};
    tn_tensor *keys = numbers(cache, 4, s->dtype, 1), *values = numbers(cache, 4, s->dtype, 2);
    assert_ok(tn_make_state(keys));
    assert_ok(tn_make_state(values));
    tn_tensor *pages = tn_from_data(list, listed, 1, TN_I64), *position = tn_runtime_scalar_int(s->position);
    tn_tensor *q = numbers((int64_t[]){s->tokens, HEADS, width}, 3, TN_F32, 3);
    tn_tensor *k = numbers(new, 3, TN_F32, 4), *v = numbers(new, 3, TN_F32, 5);
    tn_cached_attention_options o = TN_CACHED_ATTENTION_DEFAULTS;
    o.window = s->window;
    o.softcap = s->cap;
    tn_tensor *y = tn_cached_attention(q, k, v, keys, values, position, pages, NULL, &o);
    tn_cache_append_(keys, k, position, pages);
    tn_cache_append_(values, v, position, pages);
    tn_tensor *parts[3] = {tn_reshape(y, (int64_t[]){-1}, 1), tn_reshape(tn_cast(keys, TN_F32), (int64_t[]){-1}, 1),
                           tn_reshape(tn_cast(values, TN_F32), (int64_t[]){-1}, 1)};
    return tn_cat(parts, 3, 0);
}

static void rows_go_where_data_says(void **state) {
    (void)state;
    same_bits(record_index_add, &(int64_t){70}, "rows added by index");
    static const sequence sequences[] = {{5, 0, 0, TN_F32, .cap = 0},         {3, 62, 0, TN_F16, .cap = 0},
                                         {70, 100, 0, TN_F32, .twice = true}, {1, 130, 50, TN_BF16, .cap = 0},
                                         {9, 190, 64, TN_F16, .twice = true}, {2, -3, 0, TN_F32, .cap = 0},
                                         {3, 130, 70, TN_F32, .cap = 0.5},    {70, 1, 0, TN_F16, .cap = 30}};
    for (size_t i = 0; i < TN_COUNT(sequences); i++)
        same_bits(record_sequence, &sequences[i], "a sequence");
}

/* ---- attention over tensors ------------------------------------------------------------------------------------ */

typedef struct attention {
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    enum { NO_MASK, ADDED, HIDING, INFINITE } mask;
    bool causal;
} attention;

static tn_tensor *mask_of(const attention *a) {
    tn_tensor *x = numbers((int64_t[]){a->mask == ADDED ? a->heads : 1, a->queries, a->keys}, 3, TN_F32, 4);
    if (a->mask == ADDED) return x;
    tn_tensor *rows = tn_reshape(tn_arange(0, (double)a->queries, 1, TN_F32), (int64_t[]){a->queries, 1}, 2);
    tn_tensor *seen = tn_logical_and(tn_lt(x, tn_scalar(0.5)), tn_ne(rows, tn_scalar(3))); /* query 3 sees nothing */
    if (a->mask == HIDING) return seen;
    return tn_where(seen, x, tn_scalar(a->mask == INFINITE ? (double)INFINITY : 0));
}

static tn_tensor *record_attention(const void *arguments) {
    const attention *a = arguments;
    tn_tensor *q = numbers((int64_t[]){a->batch, a->heads, a->queries, a->width}, 4, TN_F32, 1);
    tn_tensor *k = numbers((int64_t[]){a->batch, a->keys, a->kv_heads, a->width}, 4, TN_F32, 2);
    tn_tensor *v = numbers((int64_t[]){a->batch, a->kv_heads, a->keys, a->value_width}, 4, TN_F32, 3);
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.is_causal = a->causal;
    q = tn_mul(q, tn_scalar(3));
    tn_tensor *y = tn_scaled_dot_product_attention(q, tn_transpose(k, 1, 2), v, a->mask ? mask_of(a) : NULL, &o);
    return tn_where(tn_isnan(y), tn_scalar(7), y);
}

static void attention_over_tensors(void **state) {
    (void)state;
    static const attention some[] = {
        {2, 2, 2, 33, 65, 17, 5, NO_MASK, false},   {1, 4, 2, 70, 130, 40, 70, NO_MASK, true},
        {1, 2, 1, 9, 64, 16, 64, ADDED, false},     {2, 2, 2, 40, 63, 8, 20, HIDING, false},
        {1, 1, 1, 32, 200, 256, 131, HIDING, true}, {1, 1, 1, 10, 3, 3, 129, INFINITE, false},
    };
    for (size_t i = 0; i < TN_COUNT(some); i++) {
        char what[80];
        snprintf(what, sizeof what, "attention %zu", i);
        same_bits(record_attention, &some[i], what);
    }
}

/* ---- small ones, for checkers of kernels that take long ---------------------------------------------------------- */

static void a_product(void **state) {
    (void)state;
    same_bits(record_product, &(product){9, 20, 18, TN_F32, true, false, true}, "a product");
}

static void rows_times_a_matrix(void **state) {
    (void)state;
    same_bits(record_product, &(product){2, 70, 33, TN_F32, false, true, false}, "rows times a matrix");
}

static void a_convolution(void **state) {
    (void)state;
    same_bits(record_convolution, &(convolution){2, 2, 4, 5, 3, {3, 2}, {.padding = {1, 1}}, false}, "a convolution");
}

static void weights_in_blocks(void **state) {
    (void)state;
    same_bits(record_blocks, &(blocks){1, 5, 32, TN_Q4_0, false}, "weights in blocks");
}

static void a_sorted_row(void **state) {
    (void)state;
    same_bits(record_order, &(order){1, 33, TN_F32, false, true}, "a sorted row");
}

static void rows_added_by_index(void **state) {
    (void)state;
    same_bits(record_index_add, &(int64_t){3}, "rows added by index");
}

static void a_sequence(void **state) {
    (void)state;
    same_bits(record_sequence, &(sequence){2, 3, 0, TN_F16, .small = true}, "a sequence");
}

static void some_attention(void **state) {
    (void)state;
    same_bits(record_attention, &(attention){1, 2, 1, 9, 5, 4, 3, HIDING, true}, "attention");
}

static const struct CMUnitTest small[] = {
    cmocka_unit_test(a_product),     cmocka_unit_test(rows_times_a_matrix), cmocka_unit_test(weights_in_blocks),
    cmocka_unit_test(a_convolution), cmocka_unit_test(a_sorted_row),        cmocka_unit_test(rows_added_by_index),
    cmocka_unit_test(a_sequence),    cmocka_unit_test(some_attention),
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--sources") == 0) { /* writes all kernels as files for compilers */
        sources_begin(argv[2], "template");
        far_loaded = sources_take;
    }
    /* One kernel of each kind, unless all are asked for: the interpreter takes most of the time. */
    if ((argc > 1 && strcmp(argv[1], "--small") == 0) || (argc == 1 && !test_is_full()))
        return cmocka_run_group_tests_name("templates", small, open_devices, close_devices);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_all_sizes),    cmocka_unit_test(what_joins_a_product),
        cmocka_unit_test(windows_are_never_stored), cmocka_unit_test(one_filter_a_channel_has_the_bits_of_the_cpu),
        cmocka_unit_test(weights_in_all_formats),   cmocka_unit_test(odd_rows_are_rounded_alike),
        cmocka_unit_test(rows_are_sorted),          cmocka_unit_test(rows_go_where_data_says),
        cmocka_unit_test(attention_over_tensors),
    };
    return cmocka_run_group_tests_name("templates", tests, open_devices, close_devices);
}
