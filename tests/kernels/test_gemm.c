/* test_gemm.c — matrix products: the same bits as their definition, whatever the layout, processor and thread count.
 *
 * Random products are computed by a scalar loop that spells out the numerics contract, and by the kernels of every
 * instruction set that this processor has, on one, two and three threads, with and without a kept copy of B. C lies in
 * a larger buffer of marks, which shows every write beside it; the workspace has exactly the size that was asked for,
 * so that the address sanitizer sees every step beyond. A processor that multiplies pairs of bf16 may round otherwise:
 * there, what is not exact keeps within a bound. */
#include "test_support.h"

#include <math.h>

#include "cpu/isa.h"
#include "kir/kir_math.h"
#include "random_numbers.h"

enum { AXES = TN_GEMM_BATCH_AXES + 2, ROW = TN_GEMM_BATCH_AXES, COL = ROW + 1 };
enum { MAX_THREADS = 3 };
#define CASES TEST_SWEEP(300)

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) { return random_mixed(&random_state); }

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static double random_real(void) { return (double)random_below(2000001) / 1000000.0 - 1.0; }

/* ---- arrays of either type, in any layout ------------------------------------------------------------------------ */

typedef struct array {
    tn_dtype dtype;
    int64_t extent[AXES], stride[AXES];
    int64_t first, size; /* index of element 0, elements in all */
    void *memory;
} array;

TEST_DEFINITION static void put(const array *x, int64_t at, double v) {
    switch (x->dtype) {
    case TN_F64: ((double *)x->memory)[at] = v; break;
    case TN_F16: ((uint16_t *)x->memory)[at] = kir_to_f16((float)v); break;
    case TN_BF16: ((uint16_t *)x->memory)[at] = kir_to_bf16((float)v); break;
    case TN_I32: ((int32_t *)x->memory)[at] = (int32_t)v; break;
    case TN_I8: ((int8_t *)x->memory)[at] = (int8_t)v; break;
    case TN_U8: ((uint8_t *)x->memory)[at] = (uint8_t)v; break;
    default: ((float *)x->memory)[at] = (float)v;
    }
}

TEST_DEFINITION static double get(const array *x, int64_t at) {
    switch (x->dtype) {
    case TN_F64: return ((double *)x->memory)[at];
    case TN_F16: return (double)kir_from_f16(((uint16_t *)x->memory)[at]);
    case TN_BF16: return (double)kir_from_bf16(((uint16_t *)x->memory)[at]);
    case TN_I32: return ((int32_t *)x->memory)[at];
    case TN_I8: return ((int8_t *)x->memory)[at];
    case TN_U8: return ((uint8_t *)x->memory)[at];
    default: return (double)((float *)x->memory)[at];
    }
}

static bool is_half(tn_dtype dtype) { return dtype == TN_F16 || dtype == TN_BF16; }

TEST_DEFINITION static int64_t index_of(const array *x, const int64_t *point) {
    int64_t at = x->first;
    for (int axis = 0; axis < AXES; axis++)
        at += point[axis] * x->stride[axis];
    return at;
}

/* Axes from the innermost to the outermost: usually rows and columns inside, in one order or the other. */
static void random_order(int *order) {
    for (int i = 0; i < AXES; i++)
        order[i] = AXES - 1 - i;
    if (random_below(2)) order[0] = ROW, order[1] = COL;
    if (random_below(5)) return;
    for (int i = AXES - 1; i > 0; i--) {
        int j = (int)random_below(i + 1), axis = order[i];
        order[i] = order[j];
        order[j] = axis;
    }
}

/* Gaps, backward strides and, if allowed, axes along which one element is read again and again. */
static void random_layout(array *x, bool broadcast) {
    int order[AXES];
    random_order(order);
    int64_t distance = random_below(8) ? 1 : 2;
    x->first = 0;
    x->size = 1;
    for (int i = 0; i < AXES; i++) {
        int axis = order[i];
        bool backward = random_below(10) == 0;
        bool again = broadcast && random_below(axis < TN_GEMM_BATCH_AXES ? 3 : 20) == 0;
        x->stride[axis] = again ? 0 : backward ? -distance : distance;
        if (x->extent[axis] == 0 || again) continue;
        int64_t reach = (x->extent[axis] - 1) * distance;
        if (backward) x->first += reach;
        x->size += reach;
        distance = distance * x->extent[axis] + (random_below(4) ? 0 : random_below(20));
    }
}

/* Bytes: all there are, the greatest often; or a mark. */
static double random_integer(tn_dtype dtype) {
    if (dtype == TN_I32) return (double)random_below(1000000);
    double v = random_below(3) ? (double)random_below(256) : 255;
    return dtype == TN_U8 ? v : v - 128;
}

/* whole: small integers, whose sums are exact in any order. Strides of rows and columns that are given stay. */
static void random_array(array *x, tn_dtype dtype, bool broadcast, bool whole) {
    x->dtype = dtype;
    if (x->stride[COL] == 0)
        random_layout(x, broadcast);
    else
        x->size = (x->extent[ROW] - 1) * x->stride[ROW] + (x->extent[COL] - 1) * x->stride[COL] + 1;
    x->memory = tn_mem_alloc((size_t)x->size * tn_dtype_size(dtype));
    assert_non_null(x->memory);
    bool integer = dtype == TN_I8 || dtype == TN_U8 || dtype == TN_I32;
    for (int64_t i = 0; i < x->size; i++)
        put(x, i, integer ? random_integer(dtype) : whole ? (double)(random_below(9) - 4) : random_real());
}

static tn_matrix matrix_of(const array *x) {
    tn_matrix m = {.data = (char *)x->memory + (size_t)x->first * tn_dtype_size(x->dtype),
                   .row_stride = x->stride[ROW],
                   .col_stride = x->stride[COL]};
    memcpy(m.batch_stride, x->stride, sizeof m.batch_stride);
    return m;
}

/* ---- fused programs ---------------------------------------------------------------------------------------------- */

/* A fused program with what its launch needs. Loads yield x · 0.75 + 0.5; stores take max(x + bias[column], 0). */
typedef struct bound_program {
    kir_vm *vm;
    int64_t *sizes;
    void *buffers[3];
} bound_program;

static float loaded(float x) { return x * 0.75f + 0.5f; }
static float stored(float x, float bias) { return x + bias > 0 ? x + bias : 0; }

static kir_aff affine(int64_t first, const int64_t *stride) {
    kir_aff a = kir_aff_const(first);
    memcpy(a.s, stride, AXES * sizeof *stride);
    return a;
}

static kir_aff block_index(void) {
    kir_aff a = kir_aff_const(0);
    a.s[ROW] = TN_GEMM_BLOCK_LD;
    a.s[COL] = 1;
    return a;
}

static void finish_program(kir_builder *b, bound_program *out) {
    kir_program *program = NULL;
    assert_ok(kir_finish(b, &program, &out->sizes));
    assert_ok(kir_vm_compile(program, &out->vm));
    kir_free(program);
}

static kir_val scaled(kir_builder *b, kir_val x) {
    kir_val product = kir_binary(b, KIR_MUL, x, kir_const(b, KIR_F32, 0.75));
    return kir_binary(b, KIR_ADD, product, kir_const(b, KIR_F32, 0.5));
}

static void make_load(const array *from, bound_program *out) {
    kir_builder *b = NULL;
    assert_ok(kir_begin(AXES, 0, from->extent, &b));
    int source = kir_buffer(b, TN_F32), block = kir_buffer(b, TN_F32);
    kir_aff at = affine(from->first, from->stride), to = block_index();
    kir_store(b, block, &to, scaled(b, kir_load(b, source, &at, KIR_NONE)), KIR_NONE);
    out->buffers[0] = from->memory;
    out->buffers[1] = NULL;
    finish_program(b, out);
}

static void make_store(const array *to, float *bias, bound_program *out) {
    kir_builder *b = NULL;
    assert_ok(kir_begin(AXES, 0, to->extent, &b));
    int result = kir_buffer(b, to->dtype), block = kir_buffer(b, TN_F32), column = kir_buffer(b, TN_F32);
    kir_aff at = affine(to->first, to->stride), from = block_index(), of_bias = kir_aff_const(0);
    of_bias.s[COL] = 1;
    kir_val x = kir_load(b, block, &from, KIR_NONE);
    x = kir_binary(b, KIR_ADD, x, kir_load(b, column, &of_bias, KIR_NONE));
    kir_store(b, result, &at, kir_binary(b, KIR_MAX, x, kir_const(b, KIR_F32, 0)), KIR_NONE);
    out->buffers[0] = to->memory;
    out->buffers[1] = NULL;
    out->buffers[2] = bias;
    finish_program(b, out);
}

static void free_program(bound_program *p) {
    kir_vm_free(p->vm);
    tn_mem_free(p->sizes);
    *p = (bound_program){0};
}

static tn_fused_program epilogue_of(bound_program *p, int buffers) {
    tn_fused_program program = {.vm = p->vm, .block_buffer = 1, .buffer_count = buffers};
    program.launch = (kir_launch){.sizes = p->sizes, .buffers = p->buffers};
    return program;
}

/* ---- a product, and its definition ------------------------------------------------------------------------------- */

typedef struct product {
    tn_dtype dtype;
    int64_t batch[TN_GEMM_BATCH_AXES], m, n, k;
    array a, b, c, expected;
    bool load_a, load_b, store_c; /* fused programs */
    bool whole;                   /* operands are small integers */
    float *bias;                  /* of store_c, one a column */
} product;

static void set_extents(array *x, const product *p, int64_t rows, int64_t cols) {
    memcpy(x->extent, p->batch, sizeof p->batch);
    x->extent[ROW] = rows;
    x->extent[COL] = cols;
}

/* One element as the contract has it: chains of KIR_KSUM fused multiply-adds from +0, added in order. */
TEST_DEFINITION static double define(const product *p, const int64_t *point) {
    const int64_t a = index_of(&p->a, point) - point[COL] * p->a.stride[COL];
    const int64_t b = index_of(&p->b, point) - point[ROW] * p->b.stride[ROW];
    double total = 0;
    for (int64_t k = 0; k < p->k; k += KIR_KSUM) {
        double chain = 0;
        for (int64_t i = k; i < p->k && i < k + KIR_KSUM; i++) {
            double x = get(&p->a, a + i * p->a.stride[COL]), y = get(&p->b, b + i * p->b.stride[ROW]);
            if (p->load_a) x = (double)loaded((float)x);
            if (p->load_b) y = (double)loaded((float)y);
            bool wide = p->dtype == TN_F64 || p->dtype == TN_I32;
            chain = wide ? fma(x, y, chain) : (double)fmaf((float)x, (float)y, (float)chain);
        }
        if (k == 0) {
            total = chain;
        } else {
            bool wide = p->dtype == TN_F64 || p->dtype == TN_I32;
            total = wide ? total + chain : (double)((float)total + (float)chain);
        }
    }
    return p->store_c ? (double)stored((float)total, p->bias[point[COL]]) : total;
}

static int64_t points_of(const array *x) {
    int64_t count = 1;
    for (int axis = 0; axis < AXES; axis++)
        count *= x->extent[axis];
    return count;
}

static void point_at(const array *x, int64_t i, int64_t *point) {
    for (int axis = AXES - 1; axis >= 0; axis--) {
        point[axis] = i % x->extent[axis];
        i /= x->extent[axis];
    }
}

static void make_product(product *p) {
    set_extents(&p->a, p, p->m, p->k);
    set_extents(&p->b, p, p->k, p->n);
    set_extents(&p->c, p, p->m, p->n);
    bool of_bytes = p->dtype == TN_I32, quads = random_below(2); /* u8 by i8, which some processors take four by four */
    random_array(&p->a, !of_bytes ? p->dtype : quads || random_below(2) ? TN_U8 : TN_I8, true, p->whole);
    random_array(&p->b, !of_bytes ? p->dtype : quads || random_below(2) ? TN_I8 : TN_U8, true, p->whole);
    random_array(&p->c, p->dtype, false, false);
    if (p->store_c) {
        p->bias = tn_mem_alloc((size_t)(p->n + 1) * sizeof *p->bias);
        assert_non_null(p->bias);
        for (int64_t i = 0; i < p->n; i++)
            p->bias[i] = (float)random_real();
    }
    p->expected = p->c;
    size_t bytes = (size_t)p->c.size * tn_dtype_size(p->dtype);
    p->expected.memory = tn_mem_alloc(bytes);
    assert_non_null(p->expected.memory);
    memcpy(p->expected.memory, p->c.memory, bytes);
    for (int64_t i = 0; i < points_of(&p->c); i++) {
        int64_t point[AXES];
        point_at(&p->c, i, point);
        put(&p->expected, index_of(&p->c, point), define(p, point));
    }
}

static void free_product(product *p) {
    tn_mem_free(p->a.memory);
    tn_mem_free(p->b.memory);
    tn_mem_free(p->c.memory);
    tn_mem_free(p->expected.memory);
    tn_mem_free(p->bias);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void *dirty_memory(size_t bytes) {
    void *memory = tn_mem_alloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes); /* NaN: a sum that starts from what lies there shows */
    return memory;
}

/* Products of pairs: each of k sums is off by 2⁻²⁴ of at most k. The result and the definition's are each rounded to
 * bf16, by half a place: next to the middle of two numbers they differ by a place, 2⁻⁷ of them. */
static bool is_near(const product *p, double got, double want) {
    double k = (double)p->k;
    return fabs(got - want) <= 0x1p-7 * fabs(want) + k * k * 0x1p-24;
}

static bool pairs;           /* the kernels in use multiply pairs of bf16 */
static void *first_of_pairs; /* their first result: however a product is divided, its bits are the same */

static void compare_pairs(const product *p, const array *result, const char *how) {
    size_t bytes = (size_t)p->c.size * tn_dtype_size(p->dtype);
    if (!first_of_pairs) {
        first_of_pairs = tn_mem_alloc(bytes);
        assert_non_null(first_of_pairs);
        memcpy(first_of_pairs, result->memory, bytes);
    }
    if (memcmp(first_of_pairs, result->memory, bytes) != 0)
        fail_msg("%s, %d threads, [%lld, %lld]·[%lld, %lld] in pairs: other bits than those of the first call", how,
                 tn_threads(), (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n);
}

static void compare(const product *p, const array *result, const char *how) {
    size_t size = tn_dtype_size(p->dtype);
    if (pairs) compare_pairs(p, result, how);
    for (int64_t i = 0; i < p->c.size; i++) {
        const char *got = (const char *)result->memory + (size_t)i * size;
        const char *want = (const char *)p->expected.memory + (size_t)i * size;
        if (memcmp(got, want, size) == 0) continue;
        bool inexact = pairs && p->dtype == TN_BF16 && !p->whole;
        if (inexact && is_near(p, get(result, i), get(&p->expected, i))) continue;
        fail_msg(
            "%s, %s, %d threads, %s: [%lld, %lld]·[%lld, %lld], batch %lld %lld %lld %lld: element %lld of C is %.9g, "
            "not %.9g (C strides %lld, %lld)",
            how, tn_isa_name(tn_cpu().isa), tn_threads(), tn_dtype_name(p->dtype), (long long)p->m, (long long)p->k,
            (long long)p->k, (long long)p->n, (long long)p->batch[0], (long long)p->batch[1], (long long)p->batch[2],
            (long long)p->batch[3], (long long)i, get(result, i), get(&p->expected, i), (long long)p->c.stride[ROW],
            (long long)p->c.stride[COL]);
    }
}

static bool b_is_fixed(const product *p) {
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++) {
        if (p->batch[axis] > 1 && p->b.stride[axis] != 0) return false;
    }
    return true;
}

static void call(const product *p, const tn_gemm_args *args, array *c, const char *how) {
    memcpy(c->memory, p->c.memory, (size_t)p->c.size * tn_dtype_size(p->dtype));
    tn_gemm_run(args, p->dtype);
    compare(p, c, how);
}

typedef struct callbacks {
    bound_program a, b, c;
} callbacks;

static void make_epilogues(const product *p, const array *c, callbacks *j, tn_gemm_args *args) {
    *j = (callbacks){0};
    if (p->load_a) make_load(&p->a, &j->a);
    if (p->load_b) make_load(&p->b, &j->b);
    if (p->store_c) make_store(c, p->bias, &j->c);
    if (p->load_a) args->a = (tn_matrix){.fused = epilogue_of(&j->a, 2)};
    if (p->load_b) args->b = (tn_matrix){.fused = epilogue_of(&j->b, 2)};
    if (p->store_c) args->c = (tn_matrix){.fused = epilogue_of(&j->c, 3)};
}

static void free_epilogues(callbacks *j) {
    free_program(&j->a);
    free_program(&j->b);
    free_program(&j->c);
}

/* The caller has chosen kernels and threads. */
static void check_product(const product *p) {
    size_t bytes = (size_t)p->c.size * tn_dtype_size(p->dtype);
    array c = p->c;
    c.memory = tn_mem_alloc(bytes);
    assert_non_null(c.memory);
    tn_gemm_args args = {.m = p->m, .n = p->n, .k = p->k, .a_dtype = p->a.dtype, .b_dtype = p->b.dtype};
    memcpy(args.batch, p->batch, sizeof args.batch);
    args.a = matrix_of(&p->a);
    args.b = matrix_of(&p->b);
    args.c = matrix_of(&c);
    callbacks j;
    make_epilogues(p, &c, &j, &args);
    if (random_below(2)) /* a way that was asked for: no other bits */
        args.way = (tn_gemm_way){(uint8_t)random_below(3), (uint8_t)random_below(4), (uint8_t)random_below(3)};
    args.workspace = dirty_memory(tn_gemm_workspace(&args, p->dtype, tn_threads()));
    call(p, &args, &c, "packed anew");
    if (b_is_fixed(p)) {
        bool valid = false;
        bool quads = p->dtype == TN_I32 && tn_gemm_takes_quads(&args);
        args.packed_b = dirty_memory(tn_gemm_packed_bytes(p->n, p->k, quads ? TN_I8 : p->dtype));
        args.packed_valid = &valid;
        tn_mem_free(args.workspace);
        args.workspace = dirty_memory(tn_gemm_workspace(&args, p->dtype, tn_threads()));
        call(p, &args, &c, "packed and kept");
        assert_true(valid || points_of(&p->c) == 0);
        if (valid) {
            args.b.data = NULL; /* what is kept is enough */
            j.b.buffers[0] = NULL;
            call(p, &args, &c, "kept");
        }
        tn_mem_free(args.packed_b);
    }
    free_epilogues(&j);
    tn_mem_free(args.workspace);
    tn_mem_free(c.memory);
}

static void check_on_threads(const product *p, bool slow) {
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        if (test_leaves_out(threads, slow)) continue;
        assert_ok(tn_threads_set(threads));
        check_product(p);
    }
}

static void check_from(const product *p, int first_isa) {
    for (int isa = first_isa; isa < TN_ISA_COUNT; isa++) {
        if (!tn_gemm_use((tn_isa)isa)) continue;
        tn_gemm_use_pairs(false);
        tn_gemm_use_quads(false);
        check_on_threads(p, isa == TN_ISA_BASE && TEST_BASE_IS_SLOW);
        if (tn_gemm_use_quads(true) && p->dtype == TN_I32) check_on_threads(p, false);
        pairs = isa == (int)tn_cpu().isa && p->dtype == TN_BF16 && tn_gemm_use_pairs(true);
        if (pairs) check_on_threads(p, false);
        pairs = false;
        tn_mem_free(first_of_pairs);
        first_of_pairs = NULL;
    }
}

static void check_everywhere(const product *p) { check_from(p, TN_ISA_BASE); }

static int64_t random_size(void) {
    static const int64_t sizes[] = {1,  1,  2,  3,  4,  5,  7,  8,  9,  13, 14, 15,  16,
                                    17, 27, 28, 29, 31, 32, 33, 48, 63, 64, 65, 100, 130};
    return sizes[random_below((int64_t)TN_COUNT(sizes))];
}

static int64_t random_depth(void) {
    static const int64_t depths[] = {1, 2, 3, 4, 5, 16, 64, 100, 255, 256, 257, 300, 512, 520};
    return depths[random_below((int64_t)TN_COUNT(depths))];
}

static void random_product(product *p) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F32, TN_F64, TN_F16, TN_BF16, TN_BF16, TN_I32};
    p->dtype = dtypes[random_below((int64_t)TN_COUNT(dtypes))];
    p->whole = is_half(p->dtype) && random_below(2);
    int64_t room = 3000000; /* multiplications of the definition: bounds the time of a case */
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        p->batch[axis] = random_below(5) ? 1 : 1 + random_below(3);
    do {
        p->m = random_size();
        p->n = random_size();
        p->k = random_depth();
    } while (p->m * p->n * p->k * p->batch[0] * p->batch[1] * p->batch[2] * p->batch[3] > room);
}

static void products_have_the_bits_of_their_definition(void **state) {
    (void)state;
    random_state = 1;
    for (int i = 0; i < CASES; i++) {
        product p = {0};
        random_product(&p);
        make_product(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

static void fused_programs_see_every_element_once(void **state) {
    (void)state;
    random_state = 4;
    for (int i = 0; i < CASES / 2; i++) {
        product p = {0};
        random_product(&p);
        if (p.dtype == TN_F64 || p.dtype == TN_I32) p.dtype = TN_F32;
        int which = is_half(p.dtype) ? 4 : 1 + (int)random_below(7);
        p.load_a = which & 1;
        p.load_b = which & 2;
        p.store_c = which & 4;
        make_product(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

/* Large in one direction: blocks of columns, of rows, and of k, where C is visited several times. From LARGEST
 * on, threads take tiles of rows from each other, whatever the type: each size has half of the types, and only one runs
 * the kernels that emulate fma. Under a sanitizer each size has one type. */
static void large_products_have_the_bits_of_their_definition(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{3, 1100, 40},   {700, 3, 40},   {400, 600, 7},  {20, 5, 9000},
                                       {40, 40, 5000},  {1, 600, 4100}, {30, 530, 300}, {33, 200, 150},
                                       {703, 130, 300}, {145, 60, 5000}};
    random_state = 2;
    static const tn_dtype dtypes[] = {TN_F32, TN_F32, TN_F64, TN_F16, TN_BF16, TN_I32};
    enum { TYPES = TN_COUNT(dtypes), LARGEST = TN_COUNT(sizes) - 2 };
    for (int i = 0; i < (int)TN_COUNT(sizes) * TYPES; i++) {
        const int64_t *size = sizes[i / TYPES];
        const int type = i % TYPES, row = i / TYPES;
        const bool largest = row >= LARGEST;
        if (largest && (row + type) % 2) continue;
        if (test_is_thin() && type != row % TYPES) continue;
        product p = {.dtype = dtypes[type], .batch = {1, 1, 1, 1}, .m = size[0], .n = size[1], .k = size[2]};
        p.whole = is_half(p.dtype);
        p.load_a = p.load_b = p.store_c = type == 1;
        make_product(&p);
        check_from(&p, largest && TEST_BASE_IS_SLOW && type > 0 ? TN_ISA_BASE + 1 : TN_ISA_BASE);
        free_product(&p);
    }
}

/* Few sums of many steps: threads share the steps. More chains than wait at once, a last one that is short; with an
 * epilogue
 * , and with sums that are copied out. */
static void shared_steps_have_the_bits_of_their_definition(void **state) {
    (void)state;
    static const struct {
        tn_dtype dtype;
        int64_t m, n, k;
        bool program;
    } cases[] = {{TN_F32, 128, 116, 4400, false}, {TN_F32, 33, 17, 4196, true},  {TN_F32, 8, 128, 4096, true},
                 {TN_F64, 10, 20, 5000, false},   {TN_BF16, 9, 33, 7000, false}, {TN_F32, 1, 128, 4096, false}};
    random_state = 5;
    for (size_t i = 0; i < TN_COUNT(cases); i++) {
        product p = {.dtype = cases[i].dtype, .batch = {1, 1, 1, 1}, .m = cases[i].m, .n = cases[i].n, .k = cases[i].k};
        p.whole = is_half(p.dtype);
        p.store_c = cases[i].program;
        make_product(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

/* Rows of A lie as tiles have those that they copied, or nearly so, or share a set of the cache. */
static void rows_of_a_lie_where_tiles_copy_them_to(void **state) {
    (void)state;
    static const int64_t strides[][2] = {{272, 1}, {272, 2}, {544, 2}, {273, 2}, {300, 1}, {1024, 1}};
    static const int64_t sizes[][3] = {{28, 32, 20}, {33, 70, 130}, {14, 130, 136}, {45, 70, 600}};
    random_state = 6;
    for (size_t i = 0; i < TN_COUNT(strides) * TN_COUNT(sizes); i++) {
        const int64_t *stride = strides[i % TN_COUNT(strides)], *size = sizes[i / TN_COUNT(strides)];
        product p = {.dtype = TN_F32, .batch = {1, 1, 1, 1}, .m = size[0], .n = size[1], .k = size[2]};
        memcpy(p.a.stride + ROW, stride, 2 * sizeof *stride);
        make_product(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

/* ---- products by rows -------------------------------------------------------------------------------------------- */

enum { LINKS = 5, LINK_ROWS = 200, LINK_WIDTH = 200 };

typedef struct links {
    int count;
    tn_gemm_args step[LINKS];
    float *b[LINKS], *result[LINKS];
    bool kept[LINKS];
} links;

static float *random_floats(int64_t count) {
    float *x = tn_mem_alloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)random_real();
    return x;
}

/* Each reads the result of one before it, the first one x; B lies by rows or by columns. */
static void random_links(links *l, float *x) {
    static const int64_t widths[] = {1, 2, 7, 8, 16, 33, 64, 128, 200};
    int64_t rows = 16 + random_below(LINK_ROWS - 16), width[LINKS + 1];
    float *from[LINKS + 1] = {x};
    width[0] = widths[random_below((int64_t)TN_COUNT(widths))];
    l->count = 1 + (int)random_below(LINKS);
    for (int i = 0; i < l->count; i++) {
        int source = (int)random_below(3) ? i : (int)random_below(i + 1);
        int64_t k = width[source], n = width[i + 1] = widths[random_below((int64_t)TN_COUNT(widths))];
        bool by_columns = random_below(2);
        l->b[i] = random_floats(k * n);
        l->result[i] = from[i + 1] = random_floats(rows * LINK_WIDTH);
        l->kept[i] = false;
        l->step[i] = (tn_gemm_args){.batch = {1, 1, 1, 1}, .m = rows, .n = n, .k = k};
        l->step[i].a = (tn_matrix){.data = from[source], .row_stride = source ? width[source] : LINK_WIDTH};
        l->step[i].b = (tn_matrix){.data = l->b[i], .row_stride = by_columns ? 1 : n};
        l->step[i].c = (tn_matrix){.data = l->result[i], .row_stride = n};
        l->step[i].a.col_stride = l->step[i].c.col_stride = 1;
        l->step[i].b.col_stride = by_columns ? k : 1;
        if (n < 8 || random_below(2)) continue;
        l->step[i].packed_b = tn_mem_alloc(tn_gemm_packed_bytes(n, k, TN_F32));
        l->step[i].packed_valid = &l->kept[i];
    }
}

static void free_links(links *l) {
    for (int i = 0; i < l->count; i++) {
        tn_mem_free(l->b[i]);
        tn_mem_free(l->result[i]);
        tn_mem_free(l->step[i].packed_b);
    }
}

/* One after the other, into `wanted`. */
static void run_links_apart(const links *l, float *wanted[LINKS]) {
    for (int i = 0; i < l->count; i++) {
        tn_gemm_args args = l->step[i];
        size_t bytes = (size_t)(args.m * args.n) * sizeof(float);
        args.packed_b = NULL;
        args.packed_valid = NULL;
        args.workspace = dirty_memory(tn_gemm_workspace(&args, TN_F32, tn_threads()));
        tn_gemm_run(&args, TN_F32);
        wanted[i] = tn_mem_alloc(bytes);
        memcpy(wanted[i], l->result[i], bytes);
        tn_mem_free(args.workspace);
    }
    for (int i = 0; i < l->count; i++)
        memset(l->result[i], 0xff, (size_t)(l->step[i].m * l->step[i].n) * sizeof(float));
}

static void compare_links(const links *l, float *const wanted[LINKS], const char *how) {
    for (int i = 0; i < l->count; i++) {
        const tn_gemm_args *x = &l->step[i];
        for (int64_t at = 0; at < x->m * x->n; at++)
            if (memcmp(&wanted[i][at], &l->result[i][at], sizeof(float)) != 0)
                fail_msg("%s: product %d of %d, [%d, %d] of k %d, %d threads: %.9g at %d instead of %.9g", how, i,
                         l->count, (int)x->m, (int)x->n, (int)x->k, tn_threads(), (double)l->result[i][at], (int)at,
                         (double)wanted[i][at]);
        memset(l->result[i], 0xff, (size_t)(x->m * x->n) * sizeof(float));
    }
}

static void check_links(void) {
    links l;
    float *x = random_floats(LINK_ROWS * LINK_WIDTH), *wanted[LINKS];
    random_links(&l, x);
    run_links_apart(&l, wanted);
    tn_gemm_row_fused chain = {.count = l.count, .plan = tn_mem_zalloc(1, tn_gemm_row_fused_bytes())};
    bool taken = true;
    for (int i = 0; i < l.count; i++) {
        chain.step[i] = &l.step[i];
        taken = taken && tn_gemm_row_fused_takes(&l.step[i]);
    }
    if (taken) {
        chain.workspace = dirty_memory(tn_gemm_row_fused_workspace(&chain, tn_threads()));
        tn_gemm_row_fused_run(&chain);
        compare_links(&l, wanted, "planned");
        tn_gemm_row_fused_run(&chain);
        compare_links(&l, wanted, "planned before");
        tn_mem_free(chain.workspace);
        for (int i = 0; i < l.count; i++)
            tn_mem_free(wanted[i]);
        chain.workspace = dirty_memory(tn_gemm_row_fused_workspace(&chain, tn_threads()));
        x[0] += 1;
        run_links_apart(&l, wanted);
        tn_gemm_row_fused_run(&chain);
        compare_links(&l, wanted, "with memory elsewhere");
        tn_mem_free(chain.workspace);
    }
    for (int i = 0; i < l.count; i++)
        tn_mem_free(wanted[i]);
    tn_mem_free(chain.plan);
    tn_mem_free(x);
    free_links(&l);
}

static void row_fused_products_have_the_same_bits(void **state) {
    (void)state;
    random_state = 17;
    for (int i = 0; i < CASES; i++) {
        if (!tn_gemm_use((tn_isa)random_below(TN_ISA_COUNT))) continue;
        assert_ok(tn_threads_set(1 + (int)random_below(MAX_THREADS)));
        check_links();
    }
}

static void empty_products_are_zero_or_nothing(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{0, 5, 5, 1},  {5, 0, 5, 1}, {5, 5, 0, 1}, {5, 40, 0, 3},
                                       {40, 1, 0, 2}, {0, 0, 0, 1}, {5, 5, 5, 0}};
    random_state = 3;
    for (size_t i = 0; i < TN_COUNT(sizes) * 2; i++) {
        const int64_t *size = sizes[i / 2];
        product p = {
            .dtype = i % 2 ? TN_BF16 : TN_F32, .batch = {1, size[3], 1, 1}, .m = size[0], .n = size[1], .k = size[2]};
        make_product(&p);
        check_everywhere(&p);
        free_product(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_their_definition),
        cmocka_unit_test(fused_programs_see_every_element_once),
        cmocka_unit_test(large_products_have_the_bits_of_their_definition),
        cmocka_unit_test(shared_steps_have_the_bits_of_their_definition),
        cmocka_unit_test(rows_of_a_lie_where_tiles_copy_them_to),
        cmocka_unit_test(row_fused_products_have_the_same_bits),
        cmocka_unit_test(empty_products_are_zero_or_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
