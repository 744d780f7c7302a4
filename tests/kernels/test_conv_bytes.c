/* test_conv_bytes.c — convolutions of bytes: whole numbers, the same as their definition, whatever the window, layout,
 * processor and thread count; their sums, and those of products, rounded to bytes.
 *
 * Loops spell out the sums; the kernels of every instruction set that this processor has follow, on one, two and three
 * threads, with filters packed before and at the run. Results lie between marks; workspace and images have exactly
 * their sizes, so that the address sanitizer sees each step beyond. Where there is no kernel (neither dot products of
 * bytes nor AVX2), the operation's composition is all that is looked at. */
#include "test_support.h"

#include <math.h>

#include "cpu/conv.h"
#include "cpu/conv_vec.h"
#include "cpu/isa.h"
#include "random_numbers.h"
#include "trunnion/ops.h"

enum { MAX_POINTS = 64, MAX_THREADS = 3, MARK = 12345 };
#define CASES TEST_SWEEP(90)

static uint64_t random_state = 20;

static int64_t random_below(int64_t n) { return (int64_t)(random_mixed(&random_state) % (uint64_t)n); }

static int64_t random_from(int64_t low, int64_t high) { return low + random_below(high - low + 1); }

/* Bytes in four axes, in the usual order, channels last, or with gaps and backwards. */
typedef struct bytes {
    uint8_t *memory;
    int64_t first, stride[4];
} bytes;

static bytes random_bytes(const int64_t *extent, bool plain) {
    static const int orders[][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}};
    bytes x = {0};
    const int *order = orders[!plain && random_below(3) == 0];
    bool gaps = !plain && random_below(3) == 0;
    int64_t distance = gaps ? 1 + random_below(2) : 1, size = 1;
    for (int i = 0; i < 4; i++) {
        int64_t reach = (extent[order[i]] - 1) * distance;
        bool backward = gaps && random_below(4) == 0;
        x.stride[order[i]] = backward ? -distance : distance;
        if (backward) x.first += reach;
        size += reach;
        distance = distance * extent[order[i]] + (gaps ? random_below(5) : 0);
    }
    x.memory = tn_mem_alloc((size_t)size);
    assert_non_null(x.memory);
    for (int64_t i = 0; i < size; i++)
        x.memory[i] = (uint8_t)random_below(256);
    return x;
}

/* Makes some runs of bytes of each filter half or a quarter as large: kernels that add products in 16 bits treat large
 * filters differently. */
static void shrink_some(uint8_t *filters, int64_t count, int64_t filter) {
    enum { RUN = 40, SIZES = 3 };
    for (int64_t i = 0; i < count; i++)
        filters[i] = (uint8_t)((int8_t)filters[i] / (1 << (i % filter / RUN + filter) % SIZES));
}

TEST_DEFINITION static const uint8_t *at(const bytes *x, int64_t i, int64_t j, int64_t k, int64_t l) {
    return x->memory + x->first + i * x->stride[0] + j * x->stride[1] + k * x->stride[2] + l * x->stride[3];
}

typedef struct problem {
    tn_conv_args a;
    uint8_t outside;
    bytes x, weight;
} problem;

TEST_DEFINITION static int32_t pixel_of(const problem *p, int64_t image, int64_t o, int64_t u, int64_t v) {
    const tn_conv_args *a = &p->a;
    uint32_t sum = 0;
    for (int64_t k = 0; k < a->channels * a->kernel[0] * a->kernel[1]; k++) {
        int64_t j = k % a->kernel[1], i = k / a->kernel[1] % a->kernel[0], c = k / a->kernel[1] / a->kernel[0];
        int64_t row = u * a->stride[0] + i * a->dilation[0] - a->pad_before[0];
        int64_t column = v * a->stride[1] + j * a->dilation[1] - a->pad_before[1];
        bool inside = row >= 0 && row < a->size[0] && column >= 0 && column < a->size[1];
        int64_t channel = o / a->out_channels * a->channels + c;
        int32_t seen = inside ? *at(&p->x, image, channel, row, column) : p->outside;
        sum += (uint32_t)(seen * (int8_t)*at(&p->weight, o, c, i, j));
    }
    return (int32_t)sum;
}

TEST_DEFINITION static void define(const problem *p, int32_t *out) {
    const tn_conv_args *a = &p->a;
    int64_t all = a->groups * a->out_channels, plane = a->out_size[0] * a->out_size[1];
    for (int64_t n = 0; n < a->batch * all * plane; n++)
        out[n] = pixel_of(p, n / plane / all, n / plane % all, n % plane / a->out_size[1], n % a->out_size[1]);
}

static void run_once(const problem *p, int threads, const void *packed, const int32_t *want, int64_t count) {
    tn_conv_args a = p->a;
    size_t room = tn_conv_bytes_workspace(&a, threads);
    int32_t *out = tn_mem_alloc((size_t)(count + 2 * MAX_POINTS) * sizeof *out);
    a.workspace = tn_mem_alloc(room);
    assert_true(out && a.workspace);
    for (int64_t i = 0; i < count + 2 * MAX_POINTS; i++)
        out[i] = MARK;
    memset(a.workspace, 0xff, room);
    a.packed = packed;
    a.out = (float *)(void *)(out + MAX_POINTS);
    tn_conv_bytes(&a, p->outside);
    for (int64_t i = 0; i < count + 2 * MAX_POINTS; i++) {
        int32_t wanted = i < MAX_POINTS || i >= MAX_POINTS + count ? MARK : want[i - MAX_POINTS];
        if (out[i] == wanted) continue;
        fail_msg(
            "%lld images, %lld groups of %lld channels and %lld filters, %lld×%lld seen by %lld×%lld at %lld×%lld: "
            "element %lld is %d, not %d",
            (long long)a.batch, (long long)a.groups, (long long)a.channels, (long long)a.out_channels,
            (long long)a.size[0], (long long)a.size[1], (long long)a.kernel[0], (long long)a.kernel[1],
            (long long)a.out_size[0], (long long)a.out_size[1], (long long)i - MAX_POINTS, out[i], wanted);
    }
    tn_mem_free(a.workspace);
    tn_mem_free(out);
}

/* How many instruction sets have a kernel for it. */
static int check_everywhere(problem *p) {
    tn_conv_args *a = &p->a;
    int kernels = 0;
    int64_t count = a->batch * a->groups * a->out_channels * a->out_size[0] * a->out_size[1];
    int32_t *want = tn_mem_alloc((size_t)count * sizeof *want);
    assert_non_null(want);
    define(p, want);
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use((tn_isa)isa) || !tn_conv_bytes_fits(a)) continue;
        kernels++;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
            assert_ok(tn_threads_set(threads));
            void *packed = tn_mem_alloc(tn_conv_bytes_packed_bytes(a));
            assert_non_null(packed);
            tn_conv_bytes_pack(a, packed);
            run_once(p, threads, threads == 2 ? NULL : packed, want, count);
            tn_mem_free(packed);
        }
    }
    tn_mem_free(want);
    return kernels;
}

static int check_problem(problem *p, bool plain) {
    tn_conv_args *a = &p->a;
    p->x = random_bytes((int64_t[]){a->batch, a->groups * a->channels, a->size[0], a->size[1]}, plain);
    p->weight = random_bytes((int64_t[]){a->groups * a->out_channels, a->channels, a->kernel[0], a->kernel[1]}, plain);
    const int64_t filter = a->channels * a->kernel[0] * a->kernel[1];
    if (plain && random_below(2)) shrink_some(p->weight.memory, a->groups * a->out_channels * filter, filter);
    a->x = (const float *)(const void *)at(&p->x, 0, 0, 0, 0);
    a->weight = (const float *)(const void *)at(&p->weight, 0, 0, 0, 0);
    memcpy(a->x_stride, p->x.stride, sizeof a->x_stride);
    memcpy(a->weight_stride, p->weight.stride, sizeof a->weight_stride);
    a->weight_group = a->out_channels * a->weight_stride[0];
    int kernels = check_everywhere(p);
    tn_mem_free(p->x.memory);
    tn_mem_free(p->weight.memory);
    return kernels;
}

/* Is there an instruction set here that multiplies several bytes at a time? */
static bool bytes_are_multiplied(void) {
    bool some = false;
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT; isa++)
        some |= tn_gemm_use((tn_isa)isa) && tn_byte_tiles();
    return some;
}

/* Every third case runs with the kernels of AVX2, the others with the best ones. Are there such of bytes? */
static bool choose_kernels(int n) {
    tn_clear_plans();
    if (n % 3 != 2 || !tn_gemm_use(TN_ISA_AVX2)) bytes_are_multiplied();
    assert_ok(tn_threads_set(1 + n % MAX_THREADS));
    return tn_byte_tiles();
}

static void random_windows_have_the_sums_of_their_definition(void **state) {
    (void)state;
    int kernels = 0;
    for (int n = 0; n < CASES; n++) {
        problem p = {.outside = (uint8_t)random_below(256)};
        tn_conv_args *a = &p.a;
        *a = (tn_conv_args){.batch = random_from(1, 3), .groups = random_below(4) ? 1 : 2};
        a->channels = random_from(1, 70);
        a->out_channels = random_below(2) ? random_from(16, 32) : random_from(33, 80);
        for (int d = 0; d < 2; d++) {
            a->kernel[d] = random_from(1, 3);
            a->stride[d] = random_from(1, 2);
            a->dilation[d] = random_from(1, 2);
            a->pad_before[d] = random_from(0, 2);
            a->out_size[d] = random_from(d ? 4 : 1, 23);
            int64_t reach = (a->out_size[d] - 1) * a->stride[d] + (a->kernel[d] - 1) * a->dilation[d] + 1;
            a->size[d] = tn_max64(reach - a->pad_before[d] - random_below(3) + random_below(4), 1);
        }
        kernels += check_problem(&p, n % 3 == 0);
    }
    if (!bytes_are_multiplied()) skip();
    assert_true(kernels > CASES / 2);
}

/* Sums of several chunks of steps, and the largest numbers there are. */
static void deep_windows_have_the_sums_of_their_definition(void **state) {
    (void)state;
    int kernels = 0;
    for (int n = 0; n < 3; n++) {
        problem p = {.outside = 255};
        p.a = (tn_conv_args){.batch = 1, .groups = 1, .channels = 300 + 129 * n, .out_channels = 32, .size = {5, 9}};
        for (int d = 0; d < 2; d++) {
            p.a.kernel[d] = 3;
            p.a.stride[d] = p.a.dilation[d] = p.a.pad_before[d] = 1;
            p.a.out_size[d] = p.a.size[d];
        }
        kernels += check_problem(&p, true);
    }
    if (!bytes_are_multiplied()) skip();
    assert_true(kernels > 0);
}

/* Images and filters of bytes, a byte added a channel, and what lies on it rounded to a byte, as networks do. */
static void finish(const tn_tensor *x, const tn_tensor *w, const tn_tensor *add, const tn_int_conv2d_options *o,
                   bool apart, uint8_t *out) {
    TN_SCOPE;
    tn_tensor *y = tn_int_conv2d(x, w, o);
    if (apart) assert_ok(tn_eval(&y, 1));
    tn_tensor *z = tn_mul_scalar(tn_cast(tn_sub(y, add), TN_F32), 0.003);
    z = tn_cast(tn_clamp(tn_round(z), 0, 255), TN_U8);
    assert_ok(tn_read(z, out, (size_t)tn_numel(z)));
}

static tn_tensor *tensor_of_bytes(const int64_t *shape, int rank, tn_dtype dtype) {
    static uint8_t numbers[1 << 18];
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= shape[d];
    assert_true(count <= (int64_t)sizeof numbers);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (uint8_t)random_below(256);
    return tn_from_data(numbers, shape, rank, dtype);
}

static tn_tensor *filters_of_bytes(const int64_t *shape) {
    enum { MOST = 1 << 18 };
    static uint8_t numbers[MOST];
    const int64_t filter = shape[1] * shape[2] * shape[3], count = shape[0] * filter;
    assert_true(count <= MOST);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (uint8_t)random_below(256);
    if (random_below(3)) shrink_some(numbers, count, filter);
    return tn_from_data(numbers, shape, 4, TN_I8);
}

static void what_is_joined_is_what_is_not(void **state) {
    (void)state;
    enum { MOST = 1 << 16 };
    static uint8_t joined[MOST], apart[MOST];
    bool kernel = bytes_are_multiplied();
    for (int n = 0; n < 8; n++)
        for (int threads = 1; threads <= 2; threads++) {
            TN_SCOPE;
            tn_int_conv2d_options o = TN_INT_CONV2D_DEFAULTS;
            o.padding[0] = 1;
            o.padding[1] = 1;
            o.padding[2] = n % 2;
            o.padding[3] = 1;
            o.outside = 31 * n;
            o.stride[0] = o.stride[1] = 1 + n / 4;
            o.groups = 1 + n % 3 / 2;
            assert_ok(tn_threads_set(threads));
            tn_tensor *x = tensor_of_bytes(TN_DIMS(2, 40, 19, 15 + n), TN_U8);
            tn_tensor *w = tensor_of_bytes(TN_DIMS(64, 40 / o.groups, 3, 3), TN_I8);
            tn_tensor *add = tn_cast(tensor_of_bytes(TN_DIMS(64, 1, 1), TN_I8), TN_I32);
            assert_ok(tn_eval(&add, 1));
            finish(x, w, add, &o, false, joined);
            char *text = tn_explain_last();
            assert_true(!kernel || (text && strstr(text, "int_conv2d+")));
            tn_text_free(text);
            finish(x, w, add, &o, true, apart);
            tn_tensor *y = tn_int_conv2d(x, w, &o);
            assert_true(tn_numel(y) <= MOST);
            assert_memory_equal(joined, apart, (size_t)tn_numel(y));
        }
}

static tn_tensor *as_bytes(const tn_tensor *x, int64_t zero, tn_dtype dtype) {
    const bool is_signed = dtype == TN_I8;
    const tn_tensor *y = tn_add_scalar(tn_round(x), (double)zero);
    return tn_cast(tn_clamp(y, is_signed ? -128 : 0, is_signed ? 127 : 255), dtype);
}

static tn_tensor *as_numbers(const tn_tensor *x, int64_t zero, double scale) {
    return tn_mul_scalar(tn_add_scalar(tn_cast(x, TN_F32), -(double)zero), scale);
}

/* The operation by its definition. */
static tn_tensor *compose_rounded(const tn_tensor *x, const tn_tensor *w, const tn_tensor *bias, const tn_tensor *scale,
                                  const tn_tensor *addend, const tn_quantized_conv2d_options *q) {
    tn_int_conv2d_options o = TN_INT_CONV2D_DEFAULTS;
    const int64_t filters[] = {tn_numel(bias), 1, 1};
    memcpy(o.stride, q->stride, sizeof o.stride);
    memcpy(o.padding, q->padding, sizeof o.padding);
    memcpy(o.dilation, q->dilation, sizeof o.dilation);
    o.groups = q->groups;
    o.outside = q->outside;
    tn_tensor *y = tn_add(tn_int_conv2d(x, w, &o), tn_reshape(bias, filters, 3));
    y = as_bytes(tn_mul(tn_cast(y, TN_F32), tn_reshape(scale, filters, 3)), q->zero, tn_dtype_of(x));
    if (!addend) return y;
    y = tn_add(as_numbers(y, q->zero, q->own_scale), as_numbers(addend, q->addend_zero, q->addend_scale));
    return as_bytes(tn_mul_scalar(y, q->sum_scale), q->sum_zero, tn_dtype_of(x));
}

static void choose_addend(tn_quantized_conv2d_options *o, tn_dtype dtype) {
    const int64_t least = dtype == TN_I8 ? -128 : 0;
    o->own_scale = (double)((float)random_from(1, 4000) * 1e-5F);
    o->addend_scale = (double)((float)random_from(-4000, 4000) * 1e-5F);
    o->sum_scale = (double)((float)random_from(1, 4000) * 0.03F);
    o->addend_zero = least + random_from(0, 255);
    o->sum_zero = least + random_from(0, 255);
}

/* Bytes of a random convolution, perhaps with an addend: by its kernel, then by its composition. */
static int round_both(int n, const tn_quantized_conv2d_options *options, const int64_t *x_shape, const int64_t *w_shape,
                      tn_dtype dtype, bool adds) {
    enum { MOST = 1 << 20, MOST_FILTERS = 1 << 8 };
    int kernels = 0;
    static uint8_t kernel[MOST], composed[MOST];
    float scales[MOST_FILTERS];
    int32_t biases[MOST_FILTERS];
    TN_SCOPE;
    const int64_t filters = w_shape[0];
    assert_true(filters <= MOST_FILTERS);
    for (int64_t f = 0; f < filters; f++) {
        scales[f] = (float)random_from(1, 4000) * 1e-6F;
        biases[f] = (int32_t)random_from(-20000, 20000);
    }
    tn_tensor *x = tensor_of_bytes(x_shape, 4, dtype), *w = filters_of_bytes(w_shape);
    tn_tensor *bias = tn_from_data(biases, &filters, 1, TN_I32), *scale = tn_from_data(scales, &filters, 1, TN_F32);
    tn_quantized_conv2d_options q = *options, *o = &q;
    tn_tensor *y = tn_quantized_conv2d(x, w, bias, scale, NULL, o), *addend = NULL;
    if (adds) {
        addend = tensor_of_bytes(tn_shape(y), 4, dtype);
        choose_addend(o, dtype);
        y = tn_quantized_conv2d(x, w, bias, scale, addend, o);
    }
    assert_true(tn_numel(y) <= MOST);
    assert_ok(tn_read(y, kernel, (size_t)tn_numel(y)));
    char *text = tn_explain_last();
    kernels += text && strstr(text, "quantized_conv2d");
    tn_text_free(text);
    assert_ok(tn_read(compose_rounded(x, w, bias, scale, addend, o), composed, (size_t)tn_numel(y)));
    for (int64_t i = 0; i < tn_numel(y); i++)
        if (kernel[i] != composed[i])
            fail_msg("case %d: byte %lld is %d, not %d", n, (long long)i, kernel[i], composed[i]);
    return kernels;
}

static void rounded_sums_are_those_of_the_composition(void **state) {
    (void)state;
    int kernels = 0;
    for (int n = 0; n < CASES; n++) {
        tn_quantized_conv2d_options o = TN_QUANTIZED_CONV2D_DEFAULTS;
        const tn_dtype dtype = n % 2 ? TN_I8 : TN_U8;
        const bool depthwise = n % 3 == 0, tap = n % 3 == 1 && random_below(2);
        o.groups = depthwise ? random_from(2, 40) : random_from(1, 2);
        int64_t x[4] = {random_from(1, 2), o.groups * (depthwise ? 1 : random_from(1, 40)), 0, 0};
        int64_t w[4] = {o.groups * (depthwise ? random_from(1, 2) : random_from(1, 70)), x[1] / o.groups, 0, 0};
        for (int d = 0; d < 2; d++) {
            w[2 + d] = tap ? 1 : random_from(1, depthwise ? 7 : 3);
            o.stride[d] = tap && random_below(2) ? 1 : random_from(1, 3);
            o.dilation[d] = random_from(1, 2);
            o.padding[d] = tap ? 0 : random_from(0, 3);
            o.padding[2 + d] = tap ? 0 : random_from(0, 2);
            x[2 + d] = random_from((w[2 + d] - 1) * o.dilation[d] + 1, 40);
        }
        o.outside = random_from(dtype == TN_I8 ? -128 : 0, dtype == TN_I8 ? 127 : 255);
        o.zero = random_from(dtype == TN_I8 ? -128 : 0, dtype == TN_I8 ? 127 : 255);
        choose_kernels(n / 2);
        kernels += round_both(n, &o, x, w, dtype, n % 4 > 1);
    }
    if (!bytes_are_multiplied()) skip();
    assert_true(kernels > CASES / 2);
}

static bool explained_as(const char *what) {
    char *text = tn_explain_last();
    const bool found = text && strstr(text, what);
    tn_text_free(text);
    return found;
}

/* Of products, whose columns have what filters have. */
static void rounded_products_are_those_of_the_composition(void **state) {
    (void)state;
    enum { MOST = 1 << 16, MOST_COLUMNS = 300 };
    static uint8_t kernel[MOST], composed[MOST];
    bool there = false;
    for (int n = 0; n < CASES; n++) {
        TN_SCOPE;
        float scales[MOST_COLUMNS];
        int32_t biases[MOST_COLUMNS];
        const tn_dtype dtype = n % 5 ? TN_U8 : TN_I8;
        const int64_t rows = random_from(1, 70), depth = random_from(1, 870), columns = random_from(1, MOST_COLUMNS);
        tn_quantized_mm_options o = TN_QUANTIZED_MM_DEFAULTS;
        o.zero = random_from(dtype == TN_I8 ? -128 : 0, dtype == TN_I8 ? 127 : 255);
        for (int64_t k = 0; k < columns; k++) {
            scales[k] = (float)random_from(1, 4000) * 1e-6F;
            biases[k] = (int32_t)random_from(-20000, 20000);
        }
        there |= choose_kernels(n / 2);
        tn_tensor *x = tensor_of_bytes(TN_DIMS(rows, depth), dtype),
                  *w = tensor_of_bytes(TN_DIMS(depth, columns), TN_I8);
        tn_tensor *bias = tn_from_data(biases, &columns, 1, TN_I32), *scale = tn_from_data(scales, &columns, 1, TN_F32);
        tn_tensor *y = tn_quantized_mm(x, w, bias, scale, &o);
        assert_true(tn_numel(y) <= MOST);
        assert_ok(tn_read(y, kernel, (size_t)tn_numel(y)));
        assert_true(!tn_byte_tiles() || dtype == TN_I8 || explained_as("native  quantized_mm"));
        tn_tensor *sums = tn_mul(tn_cast(tn_add(tn_int_mm(x, w), bias), TN_F32), scale);
        assert_ok(tn_read(as_bytes(sums, o.zero, dtype), composed, (size_t)tn_numel(y)));
        assert_memory_equal(kernel, composed, (size_t)tn_numel(y));
    }
    if (!there) skip();
}

/* Wherever it lies among the channels and pixels that are rounded together: 0 times infinity. */
static void sums_that_are_no_numbers_become_the_least_byte(void **state) {
    (void)state;
    enum { FILTERS = 13, ACROSS = 7, CASES_OF_EACH = 3 };
    for (int n = 0; n < 4 * CASES_OF_EACH; n++) {
        TN_SCOPE;
        const bool is_signed = n % 2, depthwise = n % 4 > 1;
        const int least = is_signed ? INT8_MIN : 0;
        uint8_t out[FILTERS * ACROSS];
        tn_quantized_conv2d_options o = TN_QUANTIZED_CONV2D_DEFAULTS;
        o.groups = depthwise ? FILTERS : 1;
        o.zero = 7;
        if (n < 4)
            tn_gemm_use(TN_ISA_BASE);
        else
            choose_kernels(n / 4);
        tn_clear_plans();
        tn_tensor *x = tn_zeros(TN_DIMS(1, FILTERS, 1, ACROSS), is_signed ? TN_I8 : TN_U8);
        tn_tensor *w = tn_ones(TN_DIMS(FILTERS, FILTERS / o.groups, 1, 1), TN_I8);
        tn_tensor *scale = tn_full(TN_DIMS(FILTERS), (double)INFINITY, TN_F32);
        tn_tensor *y = tn_quantized_conv2d(x, w, tn_zeros(TN_DIMS(FILTERS), TN_I32), scale, NULL, &o);
        assert_ok(tn_read(y, out, sizeof out));
        for (int i = 0; i < FILTERS * ACROSS; i++)
            if (out[i] != (uint8_t)least) fail_msg("case %d: byte %d is %d, not %d", n, i, out[i], (uint8_t)least);
    }
    bytes_are_multiplied();
}

/* Channels last, as between layers that normalize channels: the image is copied, and the kernel computes. */
static void permuted_images_take_the_kernel_too(void **state) {
    (void)state;
    enum { CHANNELS = 24, SIDE = 11, ELEMENTS = CHANNELS * SIDE * SIDE };
    static uint8_t permuted[ELEMENTS], dense[ELEMENTS];
    const bool there = bytes_are_multiplied();
    for (int depthwise = 0; depthwise < 2; depthwise++) {
        TN_SCOPE;
        tn_quantized_conv2d_options o = TN_QUANTIZED_CONV2D_DEFAULTS;
        o.groups = depthwise ? CHANNELS : 1;
        o.padding[0] = o.padding[1] = o.padding[2] = o.padding[3] = 3;
        tn_tensor *rows = tensor_of_bytes(TN_DIMS(1, SIDE, SIDE, CHANNELS), TN_U8);
        tn_tensor *x = tn_permute(rows, (int64_t[]){0, 3, 1, 2}, 4);
        tn_tensor *w = filters_of_bytes((int64_t[]){CHANNELS, CHANNELS / o.groups, 7, 7});
        tn_tensor *bias = tn_zeros(TN_DIMS(CHANNELS), TN_I32), *scale = tn_full(TN_DIMS(CHANNELS), 1e-3, TN_F32);
        assert_ok(tn_read(tn_quantized_conv2d(x, w, bias, scale, NULL, &o), permuted, sizeof permuted));
        assert_true(!there || explained_as("quantized_conv2d"));
        tn_tensor *copy = tn_contiguous(x);
        assert_ok(tn_eval(&copy, 1));
        assert_ok(tn_read(tn_quantized_conv2d(copy, w, bias, scale, NULL, &o), dense, sizeof dense));
        assert_memory_equal(permuted, dense, sizeof dense);
    }
}

static void greatest_bytes_are_those_of_floats(void **state) {
    (void)state;
    enum { MOST = 1 << 16 };
    static uint8_t own[MOST], floats[MOST];
    for (int n = 0; n < CASES; n++) {
        TN_SCOPE;
        tn_max_pool2d_options o = TN_MAX_POOL2D_DEFAULTS;
        const tn_dtype dtype = n % 2 ? TN_I8 : TN_U8;
        int64_t shape[4] = {random_from(1, 2), random_from(1, 21), 0, 0}, kernel[2];
        for (int d = 0; d < 2; d++) {
            kernel[d] = random_from(1, 4);
            o.stride[d] = random_from(1, 3);
            o.padding[d] = random_from(0, kernel[d] / 2);
            o.dilation[d] = random_from(1, 2);
            shape[2 + d] = random_from((kernel[d] - 1) * o.dilation[d] + 1, 30);
        }
        o.ceil_mode = random_below(2);
        const bool there = choose_kernels(n / 2);
        tn_tensor *x = tensor_of_bytes(shape, 4, dtype), *y = tn_max_pool2d(x, kernel, &o);
        assert_true(tn_numel(y) <= MOST);
        assert_ok(tn_read(y, own, (size_t)tn_numel(y)));
        assert_true(!there || explained_as("native"));
        tn_tensor *z = tn_cast(tn_max_pool2d(tn_cast(x, TN_F32), kernel, &o), dtype);
        assert_ok(tn_read(z, floats, (size_t)tn_numel(z)));
        assert_memory_equal(own, floats, (size_t)tn_numel(y));
    }
}

/* A random convolution of x that keeps its size; depthwise ones too. addend: NULL, or like its result. */
static tn_tensor *random_conv_add(const tn_tensor *x, int64_t filters, bool depthwise, const tn_tensor *addend) {
    tn_quantized_conv2d_options o = TN_QUANTIZED_CONV2D_DEFAULTS;
    const bool is_signed = tn_dtype_of(x) == TN_I8;
    const int64_t side = random_below(2) ? 3 : 1, channels = tn_size(x, 1);
    float scales[MAX_POINTS];
    int32_t biases[MAX_POINTS];
    if (depthwise) filters = o.groups = channels;
    assert_true(filters <= MAX_POINTS);
    for (int64_t f = 0; f < filters; f++) {
        scales[f] = (float)random_from(1, 4000) * 1e-6F;
        biases[f] = (int32_t)random_from(-20000, 20000);
    }
    for (int d = 0; d < 4; d++)
        o.padding[d] = side / 2;
    o.outside = random_from(0, 100);
    o.zero = random_from(is_signed ? -20 : 0, 90);
    if (addend) choose_addend(&o, tn_dtype_of(x));
    tn_tensor *w = tensor_of_bytes(TN_DIMS(filters, depthwise ? 1 : channels, side, side), TN_I8);
    return tn_quantized_conv2d(x, w, tn_from_data(biases, &filters, 1, TN_I32),
                               tn_from_data(scales, &filters, 1, TN_F32), addend, &o);
}

static tn_tensor *random_conv(const tn_tensor *x, int64_t filters, bool depthwise) {
    return random_conv_add(x, filters, depthwise, NULL);
}

static tn_tensor *half_of_sum(const tn_tensor *x, const tn_tensor *y) {
    tn_tensor *sum = tn_add(tn_cast(x, TN_F32), tn_cast(y, TN_F32));
    return tn_cast(tn_round(tn_mul_scalar(sum, 0.5)), tn_dtype_of(x));
}

/* x and another image, added by a program or by the convolution that makes the other one. */
static tn_tensor *random_sum(int n, const tn_tensor *x, const tn_tensor *before, int64_t channels) {
    if (n % 4 > 1) return random_conv_add(before, channels, false, x);
    return half_of_sum(x, n % 4 ? before : random_conv(before, channels, false));
}

static tn_tensor *joined_convs(const tn_tensor *x, int64_t channels) {
    tn_tensor *first = random_conv(x, channels, false), *second = random_conv(x, 8, false);
    return tn_cat((tn_tensor *[]){first, second, half_of_sum(second, second)}, 3, 1);
}

/* A block of a network; `apart`: each step is evaluated before the next, so that nothing lies in words. */
static tn_tensor *make_block(int n, bool apart, int64_t channels) {
    TN_SCOPE;
    enum { STEPS = 7 };
    const int64_t filters = 1 + random_below(MAX_POINTS), kernel[2] = {3, 2};
    tn_max_pool2d_options o = TN_MAX_POOL2D_DEFAULTS;
    o.stride[0] = o.stride[1] = 2;
    o.padding[0] = 1;
    tn_tensor *step[STEPS] = {tensor_of_bytes(TN_DIMS(1 + n % 2, 5, 11, 9 + n % 7), n % 3 ? TN_U8 : TN_I8)};
    for (int i = 1; i < STEPS; i++) {
        tn_tensor *x = step[i - 1];
        step[i] = i == 1   ? random_conv(x, channels, false)
                  : i == 2 ? random_conv(x, 0, true)
                  : i == 3 ? random_sum(n, x, step[1], channels)
                  : i == 4 ? tn_max_pool2d(x, kernel, &o)
                  : i == 5 ? joined_convs(x, channels)
                           : random_conv(x, filters, false);
        if (apart) assert_ok(tn_eval(&step[i], 1));
    }
    return tn_keep(step[STEPS - 1]);
}

static int64_t run_block(int n, bool apart, int64_t channels, uint8_t *out) {
    TN_SCOPE;
    tn_tensor *y = make_block(n, apart, channels);
    assert_ok(tn_read(y, out, (size_t)tn_numel(y)));
    return tn_numel(y);
}

/* Some channels of an image, which a convolution reads in their place; `apart`: that of an evaluated image. */
static tn_tensor *conv_of_part(bool apart) {
    TN_SCOPE;
    random_state = 77;
    tn_tensor *y = random_conv(tensor_of_bytes(TN_DIMS(1, 5, 11, 13), TN_U8), 16, false);
    if (apart) assert_ok(tn_eval(&y, 1));
    return tn_keep(random_conv(tn_narrow(y, 1, 4, 8), 8, false));
}

/* A view of the same elements is no other layout. */
static tn_tensor *conv_of_detached(void) {
    TN_SCOPE;
    tn_tensor *y = random_conv(tensor_of_bytes(TN_DIMS(1, 5, 11, 13), TN_U8), 16, false);
    return tn_keep(random_conv(tn_detach(y), 8, false));
}

static void detached_images_lie_in_words(void **state) {
    (void)state;
    const bool there = bytes_are_multiplied();
    tn_tensor *y = conv_of_detached();
    assert_ok(tn_eval(&y, 1));
    assert_true(!there || explained_as("in words of channels"));
    tn_free(y);
}

static void parts_of_images_are_read_as_planes(void **state) {
    (void)state;
    uint8_t bytes_of[2][8 * 11 * 13];
    bytes_are_multiplied();
    for (int k = 0; k < 2; k++) {
        tn_tensor *y = conv_of_part(k);
        assert_ok(tn_read(y, bytes_of[k], sizeof bytes_of[k]));
        tn_free(y);
    }
    assert_memory_equal(bytes_of[0], bytes_of[1], sizeof bytes_of[0]);
}

static void images_in_words_have_the_bytes_of_planes(void **state) {
    (void)state;
    enum { MOST = 1 << 16 };
    static uint8_t together[MOST], apart[MOST];
    for (int n = 0; n < CASES; n++) {
        const bool there = choose_kernels(n / 2);
        const int64_t channels = 1 + random_below(MAX_POINTS);
        const uint64_t before = random_state;
        const int64_t count = run_block(n, false, channels, together);
        assert_true(!there || explained_as("in words of channels"));
        random_state = before;
        assert_int_equal(run_block(n, true, channels, apart), count);
        assert_memory_equal(together, apart, (size_t)count);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_joined_is_what_is_not),
        cmocka_unit_test(greatest_bytes_are_those_of_floats),
        cmocka_unit_test(images_in_words_have_the_bytes_of_planes),
        cmocka_unit_test(parts_of_images_are_read_as_planes),
        cmocka_unit_test(detached_images_lie_in_words),
        cmocka_unit_test(rounded_sums_are_those_of_the_composition),
        cmocka_unit_test(rounded_products_are_those_of_the_composition),
        cmocka_unit_test(sums_that_are_no_numbers_become_the_least_byte),
        cmocka_unit_test(permuted_images_take_the_kernel_too),
        cmocka_unit_test(random_windows_have_the_sums_of_their_definition),
        cmocka_unit_test(deep_windows_have_the_sums_of_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
