/* test_qmat.c — products with block-quantised weights: the bits of their definition (cpu_kernels.h), in every way to
 * get them.
 *
 * The definition is spelled out here a second time, weight by weight from the bytes of a block and number by number in
 * scalar code, and compared with the kernels of every instruction set that this processor has, on one, two and three
 * threads, for few rows and many. What the definition is worth is tested too: its distance from the exact product stays
 * within what rounding x to 8 bits can do. C lies among marks, the workspace has
 * exactly the size that was asked for. */
#include "test_support.h"

#include <math.h>

#include "cpu/isa.h"
#include "random_numbers.h"

enum { MAX_THREADS = 3 };

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) { return random_mixed(&random_state); }

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static float random_real(void) { return (float)random_below(2000001) / 1000000.0f - 1.0f; }

static void *allocate(size_t bytes) {
    void *memory = tn_mem_alloc(bytes);
    assert_non_null(memory);
    return memory;
}

/* ---- the formats, weight by weight ------------------------------------------------------------------------------- */

/* A weight is s·u + t. */
typedef struct weight {
    int u;
    float s, t;
} weight;

TEST_DEFINITION static uint16_t half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

TEST_DEFINITION static float f16(const uint8_t *p) {
    int h = half_at(p), exponent = h >> 10 & 31, fraction = h & 1023;
    float size = exponent == 0    ? (float)fraction * 0x1p-24f
                 : exponent == 31 ? (fraction ? NAN : INFINITY)
                                  : (float)(1024 + fraction) * (float)(1 << exponent) * 0x1p-25f;
    return h >> 15 ? -size : size;
}

/* Blocks of 32: nibble i of 16 bytes is weight i (low) or 16 + i (high). */
TEST_DEFINITION static int nibble32(const uint8_t *bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }

TEST_DEFINITION static int bit32(const uint8_t *bytes, int i) { return bytes[i / 8] >> i % 8 & 1; }

/* Blocks of 256, in pairs of 32: low nibbles of 32 bytes, then their high nibbles. */
TEST_DEFINITION static int nibble256(const uint8_t *bytes, int i) {
    int byte = bytes[i / 64 * 32 + i % 32];
    return i % 64 < 32 ? byte & 15 : byte >> 4;
}

/* Two bits of each of 128 weights in 32 bytes: 32 weights in the lowest bits, the next 32 above, … */
TEST_DEFINITION static int pair256(const uint8_t *bytes, int i) {
    return bytes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

TEST_DEFINITION static int bit256(const uint8_t *bytes, int i) { return bytes[i % 32] >> i / 32 & 1; }

TEST_DEFINITION static weight q4_0(const uint8_t *b, int i) { return (weight){nibble32(b + 2, i) - 8, f16(b), 0}; }
TEST_DEFINITION static weight q4_1(const uint8_t *b, int i) { return (weight){nibble32(b + 4, i), f16(b), f16(b + 2)}; }
TEST_DEFINITION static weight q5_0(const uint8_t *b, int i) {
    return (weight){nibble32(b + 6, i) + 16 * bit32(b + 2, i) - 16, f16(b), 0};
}
TEST_DEFINITION static weight q5_1(const uint8_t *b, int i) {
    return (weight){nibble32(b + 8, i) + 16 * bit32(b + 4, i), f16(b), f16(b + 2)};
}
TEST_DEFINITION static weight q8_0(const uint8_t *b, int i) { return (weight){(int8_t)b[2 + i], f16(b), 0}; }

TEST_DEFINITION static weight q2_k(const uint8_t *b, int i) {
    int both = b[i / 16];
    return (weight){pair256(b + 16, i), f16(b + 80) * (float)(both & 15), -(f16(b + 82) * (float)(both >> 4))};
}

/* Sixteen scales of 6 bits: their low halves in 8 bytes, scale i and 8 + i in one; their high parts in 4 bytes. */
TEST_DEFINITION static weight q3_k(const uint8_t *b, int i) {
    const uint8_t *packed = b + 96;
    int part = i / 16, low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
    int scale = low + 16 * (packed[8 + part % 4] >> part / 4 * 2 & 3) - 32;
    return (weight){pair256(b + 32, i) + 4 * bit256(b, i) - 4, f16(b + 108) * (float)scale, 0};
}

/* Eight scales and minima of 6 bits: four and four in 8 bytes, whose upper bits are those of the others. */
TEST_DEFINITION static weight scaled_k(const uint8_t *b, int i, int u) {
    const uint8_t *packed = b + 4;
    int part = i / 32, j = part % 4;
    int scale = packed[j] & 63, min = packed[4 + j] & 63;
    if (part >= 4) {
        scale = (packed[8 + j] & 15) + packed[j] / 64 * 16;
        min = packed[8 + j] / 16 + packed[4 + j] / 64 * 16;
    }
    return (weight){u, f16(b) * (float)scale, -(f16(b + 2) * (float)min)};
}

TEST_DEFINITION static weight q4_k(const uint8_t *b, int i) { return scaled_k(b, i, nibble256(b + 16, i)); }
TEST_DEFINITION static weight q5_k(const uint8_t *b, int i) {
    return scaled_k(b, i, nibble256(b + 48, i) + 16 * bit256(b + 16, i));
}

/* Halves of 128: 64 bytes of low nibbles (weights 0 … 63, then 64 … 127), 32 bytes of pairs above them. */
TEST_DEFINITION static weight q6_k(const uint8_t *b, int i) {
    int byte = b[i / 128 * 64 + i % 64], low = i % 128 < 64 ? byte & 15 : byte >> 4;
    return (weight){low + 16 * pair256(b + 128, i) - 32, f16(b + 208) * (float)(int8_t)b[192 + i / 16], 0};
}

/* Weights in f16 and bf16: "blocks" of one. */
TEST_DEFINITION static weight half(const uint8_t *b, int i) {
    (void)i;
    return (weight){1, f16(b), 0};
}

TEST_DEFINITION static weight brain(const uint8_t *b, int i) {
    (void)i;
    uint32_t bits = (uint32_t)half_at(b) << 16;
    weight w = {.u = 1};
    memcpy(&w.s, &bits, sizeof bits);
    return w;
}

TEST_DEFINITION static weight q8_x(const uint8_t *b, int i) {
    weight w = {.u = (int8_t)b[8 + i]};
    memcpy(&w.s, b + i / 16 * 4, sizeof w.s);
    return w;
}

/* `places`: bytes of a block where an f16 stands, but in Q8_X the upper half of an f32. */
typedef struct format {
    tn_dtype dtype;
    int elements, bytes, parts;
    bool has_minimum;
    int places[2];
    weight (*at)(const uint8_t *block, int i);
} format;

static const format formats[] = {
    {TN_Q4_0, 32, 18, 1, false, {0, -1}, q4_0},     {TN_Q4_1, 32, 20, 1, true, {0, 2}, q4_1},
    {TN_Q5_0, 32, 22, 1, false, {0, -1}, q5_0},     {TN_Q5_1, 32, 24, 1, true, {0, 2}, q5_1},
    {TN_Q8_0, 32, 34, 1, false, {0, -1}, q8_0},     {TN_Q2_K, 256, 84, 2, true, {80, 82}, q2_k},
    {TN_Q3_K, 256, 110, 2, false, {108, -1}, q3_k}, {TN_Q4_K, 256, 144, 1, true, {0, 2}, q4_k},
    {TN_Q5_K, 256, 176, 1, true, {0, 2}, q5_k},     {TN_Q6_K, 256, 210, 2, false, {208, -1}, q6_k},
    {TN_Q8_X, 32, 40, 2, false, {2, 6}, q8_x},
};

static const format halves[] = {{TN_F16, 1, 2, 1, false, {0, -1}, half}, {TN_BF16, 1, 2, 1, false, {-1, -1}, brain}};

TEST_DEFINITION static weight weight_at(const format *f, const uint8_t *blocks, int64_t i) {
    return f->at(blocks + i / f->elements * f->bytes, (int)(i % f->elements));
}

/* Any bytes, as in a little-endian file; the f16 factors are ordinary numbers, or with `wild` now and then anything at
 * all. */
static void random_blocks(const format *f, uint8_t *to, int64_t count, bool wild) {
    for (int64_t i = 0; i < count * f->bytes; i++)
        to[i] = (uint8_t)random_below(256);
    for (int64_t b = 0; b < count; b++) {
        if (f->dtype == TN_BF16 && !(wild && random_below(20) == 0))
            to[2 * b + 1] = (uint8_t)(random_below(2) << 7 | (0x3c + random_below(4)));
        for (int p = 0; p < 2 && f->places[p] >= 0; p++) {
            if (wild && random_below(20) == 0) continue;
            int64_t exponent = 4 + random_below(10), sign = random_below(2);
            to[b * f->bytes + f->places[p]] = (uint8_t)random_below(256);
            uint8_t *upper = to + b * f->bytes + f->places[p] + 1;
            *upper =
                (uint8_t)(sign << 7 | (f->dtype == TN_Q8_X ? 0x38 + exponent / 2 : exponent << 2 | random_below(4)));
        }
    }
    tn_dtype_little_endian(f->dtype, to, count * f->elements);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

typedef struct product {
    const format *f;
    int64_t m, n, k, x_stride, c_rows, c_cols; /* strides of C */
    float *x;
    uint8_t *blocks;
    float *bias;                /* NULL: no epilogue … */
    const struct product *with; /* … unless this one's elements are added */
    float *expected;
    int64_t c_size;
} product;

TEST_DEFINITION static void define_rounding(const float *x, float *dx, int *q) {
    float most = 0;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        finite = finite && isfinite(x[i]);
        most = fmaxf(most, fabsf(x[i]));
    }
    memset(q, 0, 32 * sizeof *q);
    *dx = finite ? 0 : NAN;
    if (!finite || most < ldexpf(1, -100)) return;
    *dx = most / 127;
    float inverse = 127 / most;
    for (int i = 0; i < 32; i++)
        q[i] = (int)nearbyintf(x[i] * inverse);
}

/* The product in f32 with the widened weight. */
TEST_DEFINITION static float define_half(const product *p, int64_t row, int64_t column) {
    const uint8_t *weights = p->blocks + column * p->k * 2;
    float total = 0;
    for (int64_t from = 0; from < p->k; from += KIR_KSUM) {
        float chain = 0;
        for (int64_t k = from; k < tn_min64(from + KIR_KSUM, p->k); k++)
            chain = fmaf(p->x[row * p->x_stride + k], weight_at(p->f, weights, k).s, chain);
        total = from ? total + chain : chain;
    }
    return total;
}

TEST_DEFINITION static float define(const product *p, int64_t row, int64_t column) {
    const format *f = p->f;
    if (f->elements == 1) return define_half(p, row, column);
    const uint8_t *blocks = p->blocks + column * (p->k / f->elements) * f->bytes;
    int length = 32 / f->parts;
    float acc = 0;
    for (int64_t k = 0; k < p->k; k += 32) {
        float dx;
        int q[32];
        define_rounding(p->x + row * p->x_stride + k, &dx, q);
        for (int first = 0; first < 32; first += length) {
            int sum = 0, plain = 0;
            for (int i = first; i < first + length; i++) {
                sum += weight_at(f, blocks, k + i).u * q[i];
                plain += q[i];
            }
            weight w = weight_at(f, blocks, k + first);
            acc = fmaf(w.s * dx, (float)sum, acc);
            if (f->has_minimum) acc = fmaf(w.t, dx * (float)plain, acc);
        }
    }
    return acc;
}

static float stored(float x, float bias) { return x + bias > 0 ? x + bias : 0; }

static int64_t place_in_c(const product *p, int64_t i, int64_t j) { return i * p->c_rows + j * p->c_cols; }

static void make_product(product *p, bool wild, bool program) {
    const format *f = p->f;
    int64_t count = p->n * (p->k / f->elements);
    p->blocks = allocate((size_t)(count * f->bytes + 1));
    random_blocks(f, p->blocks, count, wild);
    p->x_stride = p->k + random_below(3);
    p->x = allocate((size_t)(p->m * p->x_stride + 1) * sizeof *p->x);
    for (int64_t i = 0; i < p->m * p->x_stride; i++)
        p->x[i] = random_real() * (random_below(16) ? 1.0f : 30.0f);
    bool by_columns = random_below(6) == 0;
    p->c_rows = by_columns ? 1 : p->n + random_below(9);
    p->c_cols = by_columns ? p->m + random_below(9) : 1;
    if (!by_columns && random_below(8) == 0) p->c_rows *= 2, p->c_cols = 2;
    p->c_size = p->m * p->c_rows + p->n * p->c_cols + 1;
    p->expected = allocate((size_t)p->c_size * sizeof *p->expected);
    if (program) {
        p->bias = allocate((size_t)(p->n + 1) * sizeof *p->bias);
        for (int64_t i = 0; i < p->n; i++)
            p->bias[i] = random_real();
    }
}

static void compute_expected(product *p) {
    for (int64_t i = 0; i < p->c_size; i++)
        p->expected[i] = (float)i;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            float y = define(p, i, j);
            if (p->bias) y = stored(y, p->bias[j]);
            if (p->with) y = stored(y, p->with->expected[place_in_c(p->with, i, j)]);
            p->expected[place_in_c(p, i, j)] = y;
        }
    }
}

static void free_product(product *p) {
    tn_mem_free(p->x);
    tn_mem_free(p->blocks);
    tn_mem_free(p->bias);
    tn_mem_free(p->expected);
}

/* ---- an epilogue: max(y + bias[column], 0), or + an element of another product --------------------------------- */

enum { AXES = TN_GEMM_BATCH_AXES + 2, ROW = TN_GEMM_BATCH_AXES, COL = ROW + 1 };

typedef struct bound_program {
    kir_vm *vm;
    int64_t *sizes;
    void *buffers[3];
} bound_program;

static void make_store(const product *p, float *c, float *with, bound_program *out) {
    int64_t extent[AXES] = {1, 1, 1, 1, p->m, p->n};
    kir_builder *b = NULL;
    assert_ok(kir_begin(AXES, 0, extent, &b));
    int result = kir_buffer(b, TN_F32), block = kir_buffer(b, TN_F32), column = kir_buffer(b, TN_F32);
    kir_aff at = kir_aff_const(0), from = kir_aff_const(0), of_bias = kir_aff_const(0);
    at.s[ROW] = p->c_rows;
    at.s[COL] = p->c_cols;
    from.s[ROW] = TN_GEMM_BLOCK_LD;
    from.s[COL] = 1;
    of_bias.s[ROW] = with ? p->with->c_rows : 0;
    of_bias.s[COL] = with ? p->with->c_cols : 1;
    kir_val x = kir_load(b, block, &from, KIR_NONE);
    x = kir_binary(b, KIR_ADD, x, kir_load(b, column, &of_bias, KIR_NONE));
    kir_store(b, result, &at, kir_binary(b, KIR_MAX, x, kir_const(b, KIR_F32, 0)), KIR_NONE);
    kir_program *program = NULL;
    assert_ok(kir_finish(b, &program, &out->sizes));
    assert_ok(kir_vm_compile(program, &out->vm));
    kir_free(program);
    out->buffers[0] = c;
    out->buffers[1] = NULL;
    out->buffers[2] = with ? with : p->bias;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct variant {
    tn_isa isa;
    bool vnni;
} variant;

static const variant variants[] = {
    {TN_ISA_BASE, false}, {TN_ISA_AVX2, false}, {TN_ISA_AVX2, true}, {TN_ISA_AVX512, false}, {TN_ISA_AVX512, true},
};

static bool same_bits(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

static void compare(const product *p, const float *c, const variant *v) {
    for (int64_t i = 0; i < p->c_size; i++) {
        if (same_bits(c[i], p->expected[i])) continue;
        fail_msg(
            "%s, %s%s, %d threads, %lld rows, [%lld, %lld]: element %lld of C is %.9g, not %.9g (strides %lld, %lld)",
            tn_dtype_name(p->f->dtype), tn_isa_name(v->isa), v->vnni ? " with vnni" : "", tn_threads(), (long long)p->m,
            (long long)p->n, (long long)p->k, (long long)i, (double)c[i], (double)p->expected[i], (long long)p->c_rows,
            (long long)p->c_cols);
    }
}

typedef struct call {
    tn_qmat_args args;
    float *c;
    void *packed;
    bound_program store;
} call;

/* with: the C of the product that this one's epilogue reads, or NULL. */
static void open_call(const product *p, float *with, call *out) {
    float *c = out->c = allocate((size_t)p->c_size * sizeof *c);
    for (int64_t i = 0; i < p->c_size; i++)
        c[i] = (float)i;
    out->packed = allocate(tn_qmat_packed_bytes(p->n, p->k, p->f->dtype));
    tn_qmat_pack(p->f->dtype, p->blocks, p->n, p->k, out->packed);
    out->args = (tn_qmat_args){.m = p->m, .n = p->n, .k = p->k, .dtype = p->f->dtype};
    out->args.x = p->x;
    out->args.x_stride = p->x_stride;
    out->args.packed = out->packed;
    out->args.c = (tn_matrix){.data = c, .row_stride = p->c_rows, .col_stride = p->c_cols};
    out->store = (bound_program){0};
    if (!p->bias && !with) return;
    make_store(p, c, with, &out->store);
    out->args.c = (tn_matrix){.fused = {.vm = out->store.vm, .block_buffer = 1, .buffer_count = 3}};
    out->args.c.fused.launch = (kir_launch){.sizes = out->store.sizes, .buffers = out->store.buffers};
}

static void close_call(call *p) {
    kir_vm_free(p->store.vm);
    tn_mem_free(p->store.sizes);
    tn_mem_free(p->packed);
    tn_mem_free(p->c);
}

static void launch(tn_qmat_args *args, size_t workspace) {
    args->workspace = allocate(workspace);
    memset(args->workspace, 0xff, workspace); /* NaN: a sum that starts from what lies there shows */
    tn_qmat(args);
    tn_mem_free(args->workspace);
}

/* Shares of any size, too large and too small ones among them. */
static void random_cuts(int16_t cuts[MAX_THREADS]) {
    for (int i = 0; i < MAX_THREADS; i++)
        cuts[i] = (int16_t)(random_below(2) ? random_below(400) - 200 : random_below(1 << 16) - (1 << 15));
}

/* The caller has chosen kernels and threads. */
static void check_product(const product *p, const variant *v) {
    call one;
    int16_t cuts[MAX_THREADS];
    random_cuts(cuts);
    open_call(p, NULL, &one);
    one.args.column_cuts = cuts;
    launch(&one.args, tn_qmat_workspace(&one.args, tn_threads()));
    compare(p, one.c, v);
    close_call(&one);
}

/* The same for products of one x in one launch; what comes later is one of them again. */
static void check_chain(const product *p, int count, const variant *v) {
    call each[TN_QMAT_MOST_SIBLINGS];
    size_t bytes = 0, own;
    for (int i = 0; i < count; i++) {
        open_call(&p[i], p[i].with ? each[p[i].with - p].c : NULL, &each[i]);
        if (i > 0) each[i - 1].args.next = &each[i].args;
        own = tn_qmat_workspace(&each[i].args, tn_threads());
        if (own > bytes) bytes = own;
    }
    int16_t cuts[MAX_THREADS];
    random_cuts(cuts);
    each[0].args.column_cuts = cuts;
    each[0].args.later = &each[count / 2].args;
    launch(&each[0].args, bytes);
    for (int i = 0; i < count; i++)
        compare(&p[i], each[i].c, v);
    for (int i = 0; i < count; i++)
        close_call(&each[i]);
}

static void check_everywhere(const product *p) {
    for (size_t i = 0; i < TN_COUNT(variants); i++) {
        if (!tn_qmat_use(variants[i].isa, variants[i].vnni)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, variants[i].isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
            assert_ok(tn_threads_set(threads));
            check_product(p, &variants[i]);
        }
    }
}

static void check_size(const format *f, int64_t m, int64_t n, int64_t k, bool wild, bool program) {
    product p = {.f = f, .m = m, .n = n, .k = k};
    make_product(&p, wild, program);
    compute_expected(&p);
    check_everywhere(&p);
    free_product(&p);
}

static int64_t random_columns(void) {
    static const int64_t sizes[] = {1, 2, 5, 15, 16, 17, 31, 32, 33, 48, 63, 100};
    return sizes[random_below((int64_t)TN_COUNT(sizes))];
}

static int64_t random_depth(const format *f) {
    if (f->elements == 256) return 256 * (1 + random_below(3));
    return 32 * (1 + random_below(20));
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void blocks_decode_to_their_weights(void **state) {
    (void)state;
    random_state = 1;
    enum { COUNT = 200 };
    for (size_t i = 0; i < TN_COUNT(formats); i++) {
        const format *f = &formats[i];
        uint8_t *blocks = allocate((size_t)(COUNT * f->bytes));
        float *out = allocate((size_t)(COUNT * f->elements) * sizeof *out);
        random_blocks(f, blocks, COUNT, true);
        tn_decode_blocks(f->dtype, blocks, COUNT, out);
        for (int64_t k = 0; k < COUNT * f->elements; k++) {
            weight w = weight_at(f, blocks, k);
            float want = f->has_minimum ? w.s * (float)w.u + w.t : w.s * (float)w.u;
            if (!same_bits(out[k], want)) {
                fail_msg("%s: weight %lld is %.9g, not %.9g", tn_dtype_name(f->dtype), (long long)k, (double)out[k],
                         (double)want);
            }
        }
        tn_mem_free(blocks);
        tn_mem_free(out);
    }
}

static void any_number_of_rows_has_the_bits_of_the_definition(void **state) {
    (void)state;
    random_state = 2;
    for (size_t i = 0; i < TN_COUNT(formats); i++) {
        for (int64_t m = 0; m <= 20; m++)
            check_size(&formats[i], m, random_columns(), random_depth(&formats[i]), false, m % 3 == 1);
        check_size(&formats[i], 100, random_columns(), random_depth(&formats[i]), false, i % 2);
    }
}

/* More columns than a block of C holds, more blocks than a panel, more rows than are finished or rounded at once. */
static void large_products_have_the_bits_of_the_definition(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1100, 256}, {3, 1043, 256},  {60, 600, 256}, {5, 40, 2816},
                                       {530, 20, 256}, {250, 33, 1024}, {70, 17, 10240}};
    random_state = 3;
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        const bool large = sizes[i][0] >= 60;
        for (size_t j = i % 4; j < TN_COUNT(formats); j += large ? (size_t)test_every(4, 8) : 2)
            check_size(&formats[j], sizes[i][0], sizes[i][1], sizes[i][2], false, (i + j) % 3 == 0);
    }
}

static void free_chain(product *p, int count) {
    for (int i = 1; i < count; i++)
        p[i].x = NULL;
    for (int i = 0; i < count; i++)
        free_product(&p[i]);
}

/* Products of m rows with one x: the last one's epilogue reads what the first one wrote, if as many columns have it. */
static void check_chain_size(const format *f, int64_t m, int64_t k, int count, bool alike) {
    enum { WIDE = 200 }; /* columns: threads share them */
    product p[TN_QMAT_MOST_SIBLINGS];
    for (int i = 0; i < count; i++) {
        bool first = alike && (i == 0 || i == count - 1);
        p[i] = (product){.f = f, .m = m, .k = k, .n = first ? WIDE : random_columns()};
        make_product(&p[i], false, i == 1);
        if (i > 0) tn_mem_free(p[i].x);
        p[i].x = p[0].x;
        p[i].x_stride = p[0].x_stride;
        if (alike && i == count - 1) p[i].with = &p[0];
        if (p[i].with) tn_mem_free(p[i].bias), p[i].bias = NULL;
        compute_expected(&p[i]);
    }
    for (size_t i = 0; i < TN_COUNT(variants); i++) {
        if (!tn_qmat_use(variants[i].isa, variants[i].vnni)) continue;
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            if (test_leaves_out(threads, variants[i].isa == TN_ISA_BASE && TEST_BASE_IS_SLOW)) continue;
            assert_ok(tn_threads_set(threads));
            check_chain(p, count, &variants[i]);
        }
    }
    free_chain(p, count);
}

static void products_of_one_launch_have_the_bits_of_single_ones(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 1, 2, 13};
    random_state = 9;
    for (size_t i = 0; i < TN_COUNT(formats) + TN_COUNT(halves); i++) {
        const format *f = i < TN_COUNT(formats) ? &formats[i] : &halves[i - TN_COUNT(formats)];
        for (size_t j = 0; j < TN_COUNT(rows); j++)
            check_chain_size(f, rows[j], 256 * (1 + random_below(2)), 2 + (int)random_below(3), j % 2 == 0);
    }
    check_chain_size(&formats[1], 530, 64, 3, true);
}

/* A row that is shared out, alone and in a chain; check_product and check_chain say how. */
static void shares_of_any_size_have_the_same_bits(void **state) {
    (void)state;
    random_state = 11;
    for (size_t i = 0; i < TN_COUNT(formats); i++) {
        for (int program = 0; program < 2; program++)
            check_size(&formats[i], 1, 1100, 512, false, program);
        check_chain_size(&formats[i], 1, 2048, 3, i % 2);
    }
}

static void empty_products_are_zero_or_nothing(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{0, 20, 256}, {3, 0, 256}, {3, 20, 0}, {1, 20, 0}, {0, 0, 0}};
    random_state = 4;
    for (size_t i = 0; i < TN_COUNT(sizes) * TN_COUNT(formats); i++) {
        const int64_t *size = sizes[i % TN_COUNT(sizes)];
        check_size(&formats[i / TN_COUNT(sizes)], size[0], size[1], size[2], false, false);
    }
}

static void weights_in_half_precision_have_the_bits_of_wide_ones(void **state) {
    (void)state;
    random_state = 7;
    for (size_t i = 0; i < TN_COUNT(halves); i++) {
        for (int64_t m = 0; m <= 20; m++)
            check_size(&halves[i], m, random_columns(), random_below(700), m % 3 == 0, m % 3 == 1);
        check_size(&halves[i], 1, 1100, 33, false, i);
        check_size(&halves[i], 530, 40, 70, false, i);
        check_size(&halves[i], 3, 0, 5, false, false);
    }
}

/* Zeros, both of them; infinity, NaN, the largest number, the smallest; sizes around the one that counts as zero; what
 * lies half-way between two integers. */
static void special_numbers_keep_to_their_block(void **state) {
    (void)state;
    static const float special[] = {0.0f,     -0.0f,      INFINITY,         -INFINITY, NAN,       3.4e38f,
                                    -3.4e38f, 1e-45f,     -1e-45f,          0x1p-126f, 0x1p-100f, 0x1.fffffep-101f,
                                    0x1p-99f, 1.0f / 254, 127.0f * 0x1p-90f};
    random_state = 5;
    for (size_t i = 0; i < TN_COUNT(formats) * 12; i++) {
        product p = {.f = &formats[i / 12], .m = 1 + (int64_t)(i % 12 % 8), .n = random_columns()};
        p.k = random_depth(p.f);
        make_product(&p, i % 2, false);
        for (int64_t r = 0; r < p.m; r++) {
            float *x = p.x + r * p.x_stride;
            float scale = random_below(3) ? 1.0f : special[random_below((int64_t)TN_COUNT(special))];
            for (int64_t k = 0; k < p.k; k++)
                x[k] = k % 32 == 0 ? 127.0f : (float)random_below(255) - 127 + 0.5f * (float)random_below(2);
            for (int64_t k = 0; k < p.k && isfinite(scale) && scale < 1e30f; k++)
                x[k] *= scale;
            if (random_below(2)) memset(x + p.k - 32, 0, 32 * sizeof *x);
            for (int n = 0; n < 2 && random_below(4); n++)
                x[random_below(p.k)] = special[random_below((int64_t)TN_COUNT(special))];
        }
        compute_expected(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

/* Half a step of dx a number of x, each weight's size; and one rounding each of two products and two sums a part, each
 * no larger than all terms together. */
static void results_are_as_near_as_8_bits_allow(void **state) {
    (void)state;
    random_state = 6;
    assert_ok(tn_threads_set(2));
    for (size_t i = 0; i < TN_COUNT(formats) * 4; i++) {
        product p = {.f = &formats[i / 4], .m = 1 + (int64_t)(i % 4) * 5, .n = random_columns()};
        p.k = random_depth(p.f);
        make_product(&p, false, false);
        double worst = 0;
        for (int64_t r = 0; r < p.m; r++) {
            for (int64_t j = 0; j < p.n; j++) {
                const uint8_t *blocks = p.blocks + j * (p.k / p.f->elements) * p.f->bytes;
                double exact = 0, rounding = 0, terms = 0;
                for (int64_t k = 0; k < p.k; k += 32) {
                    const float *x = p.x + r * p.x_stride + k;
                    float most = 0;
                    for (int n = 0; n < 32; n++)
                        most = fmaxf(most, fabsf(x[n]));
                    for (int n = 0; n < 32; n++) {
                        weight w = weight_at(p.f, blocks, k + n);
                        double value = (double)w.s * w.u + (double)w.t;
                        exact += value * (double)x[n];
                        rounding += fabs(value) * (double)most / 254 * (1 + 1e-5);
                        terms += (fabs((double)w.s * w.u) + fabs((double)w.t)) * (double)most;
                    }
                }
                double parts = (double)(p.k / 32 * p.f->parts), error = fabs((double)define(&p, r, j) - exact);
                double bound = rounding + terms * (4 + 2 * parts) * ldexp(1, -24);
                if (error > bound) fail_msg("%s: error %g, allowed %g", tn_dtype_name(p.f->dtype), error, bound);
                worst = fmax(worst, error / bound);
            }
        }
        assert_true(worst > 0.001); /* a bound that nothing comes near says nothing */
        compute_expected(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

static void the_packed_form_is_as_small_as_the_blocks(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(formats); i++) {
        const format *f = &formats[i];
        for (int64_t n = 1; n < 100; n += 7) {
            for (int64_t k = 256; k < 5000; k += 256) {
                int64_t rows = (n + 15) / 16 * 16, blocks = rows * (k / f->elements) * f->bytes;
                assert_true((double)tn_qmat_packed_bytes(n, k, f->dtype) <=
                            1.02 * (double)blocks + 64.0 * (double)rows / 16);
            }
        }
        assert_int_equal(tn_qmat_packed_bytes(0, 256, f->dtype), 0);
    }
}

static void the_workspace_does_not_shrink_with_more_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(variants); i++) {
        if (!tn_qmat_use(variants[i].isa, variants[i].vnni)) continue;
        size_t before = 0;
        for (int64_t m = 0; m < 700; m++) {
            tn_qmat_args args = {.m = m, .n = 1000, .k = 1024, .dtype = TN_Q6_K};
            size_t bytes = tn_qmat_workspace(&args, 3);
            assert_true(bytes >= before);
            before = bytes;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_decode_to_their_weights),
        cmocka_unit_test(any_number_of_rows_has_the_bits_of_the_definition),
        cmocka_unit_test(large_products_have_the_bits_of_the_definition),
        cmocka_unit_test(products_of_one_launch_have_the_bits_of_single_ones),
        cmocka_unit_test(shares_of_any_size_have_the_same_bits),
        cmocka_unit_test(empty_products_are_zero_or_nothing),
        cmocka_unit_test(weights_in_half_precision_have_the_bits_of_wide_ones),
        cmocka_unit_test(special_numbers_keep_to_their_block),
        cmocka_unit_test(results_are_as_near_as_8_bits_allow),
        cmocka_unit_test(the_packed_form_is_as_small_as_the_blocks),
        cmocka_unit_test(the_workspace_does_not_shrink_with_more_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
