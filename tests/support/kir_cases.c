/* kir_cases.c — see the header. Each maker declares its buffers, appends its instructions and leaves the rest. */
#include "kir_cases.h"

#include <math.h>

#include "kir/rules.h"
#include "test_support.h"

enum { POINTS = 3000 };

static const tn_dtype WIDE[KIR_TYPE_COUNT] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};

/* A buffer of its own of so many elements. */
static int add_buffer(kir_random *t, tn_dtype dtype, int64_t elements, int64_t limit) {
    kir_random_area *a = &t->areas[t->n_areas++];
    *a = (kir_random_area){.dtype = dtype, .elements = elements, .limit = limit, .at = t->bytes};
    t->bytes += ((size_t)elements * tn_dtype_size(dtype) + 63) / 64 * 64;
    return kir_buffer(t->b, dtype);
}

static int add_local(kir_random *t, tn_dtype dtype, int64_t elements) {
    t->areas[t->n_areas++] = (kir_random_area){.dtype = dtype};
    return kir_local(t->b, dtype, elements);
}

static void begin(kir_random *t, int n_par, int n_loop, const int64_t *extents) {
    t->n_par = n_par;
    t->n_loop = n_loop;
    memcpy(t->extent, extents, (size_t)(n_par + n_loop) * sizeof *extents);
    assert_ok(kir_begin(n_par, n_loop, extents, &t->b));
}

static kir_aff along(int axis, int64_t stride, int64_t offset) {
    kir_aff index = kir_aff_const(offset);
    index.s[axis] = stride;
    return index;
}

/* Where results go: one after another, POINTS each. */
typedef struct sink {
    int buffer;
    int64_t next;
} sink;

static sink add_sink(kir_random *t, tn_dtype dtype, int results) {
    return (sink){add_buffer(t, dtype, (int64_t)results * POINTS, 0), 0};
}

static void put(kir_random *t, sink *s, kir_val v) {
    kir_aff index = along(0, 1, s->next++ * POINTS);
    kir_store(t->b, s->buffer, &index, v, KIR_NONE);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static bool takes(kir_op op, kir_type type) {
    kir_ins in = {.op = (uint8_t)op, .type = (uint8_t)type, .a = 0, .b = 0, .c = 0};
    kir_type types[3] = {type, type, type};
    if (op == KIR_EQ || op == KIR_LT || op == KIR_LE) in.type = KIR_BOOL;
    return kir_type_error(&in, types, false) == NULL;
}

static void put_casts(kir_random *t, sink *sinks, kir_type type, kir_val x) {
    for (int to = 0; to < KIR_TYPE_COUNT; to++) {
        if (sinks[to].buffer >= 0 && to != (int)type) put(t, &sinks[to], kir_cast(t->b, (kir_type)to, x));
    }
}

/* No float is read as bits where it may be a NaN: which one is nobody's promise. */
static void put_bitcasts(kir_random *t, sink *sinks, kir_type type, kir_val x) {
    kir_val number = kir_select(t->b, kir_binary(t->b, KIR_EQ, x, x), x, kir_const(t->b, type, 1.0));
    for (int to = 0; to < KIR_TYPE_COUNT; to++) {
        bool fits = kir_type_size((kir_type)to) == kir_type_size(type) && to != (int)type;
        if (fits && sinks[to].buffer >= 0) put(t, &sinks[to], kir_bitcast(t->b, (kir_type)to, number));
    }
}

static void make_operations(kir_random *t, kir_type type) {
    begin(t, 1, 0, (int64_t[]){POINTS});
    int x_in = add_buffer(t, WIDE[type], POINTS, -1), y_in = add_buffer(t, WIDE[type], POINTS, -1);
    int z_in = add_buffer(t, WIDE[type], POINTS, -1);
    sink sinks[KIR_TYPE_COUNT];
    for (int to = 0; to < KIR_TYPE_COUNT; to++) {
        bool left_out = to == KIR_F64 && type != KIR_F64; /* doubles have a case of their own */
        sinks[to] = left_out ? (sink){-1, 0} : add_sink(t, WIDE[to], to == (int)type ? 40 : 8);
    }
    kir_aff index = along(0, 1, 0);
    kir_val x = kir_load(t->b, x_in, &index, KIR_NONE), y = kir_load(t->b, y_in, &index, KIR_NONE);
    kir_val z = kir_load(t->b, z_in, &index, KIR_NONE);
    for (int op = KIR_NEG; op <= KIR_PHILOX; op++) {
        if (op == KIR_ROUND || op == KIR_CAST || op == KIR_BITCAST || op == KIR_PHILOX) continue;
        if (op == KIR_SELECT || !takes((kir_op)op, type)) continue;
        bool compares = op == KIR_EQ || op == KIR_LT || op == KIR_LE;
        sink *s = compares ? &sinks[KIR_BOOL] : &sinks[type];
        if (kir_op_takes((kir_op)op, 1)) put(t, s, kir_unary(t->b, (kir_op)op, x));
        if (kir_op_takes((kir_op)op, 2)) put(t, s, kir_binary(t->b, (kir_op)op, x, y));
        if (op == KIR_FMA) put(t, s, kir_fma(t->b, x, y, z));
    }
    put(t, &sinks[type], kir_select(t->b, kir_binary(t->b, KIR_LT, x, y), z, x));
    for (int mode = KIR_FLOOR; mode <= KIR_NEAREST_EVEN && kir_is_float(type); mode++)
        put(t, &sinks[type], kir_rounding(t->b, (kir_round)mode, x));
    if (type == KIR_I32 || type == KIR_U32 || type == KIR_I64 || type == KIR_U64) { /* counts of shifts that matter */
        kir_val count = kir_binary(t->b, KIR_AND, y, kir_const(t->b, type, 127));
        put(t, &sinks[type], kir_binary(t->b, KIR_SHL, x, count));
        put(t, &sinks[type], kir_binary(t->b, KIR_SHR, x, count));
    }
    if (type == KIR_U64) put(t, &sinks[KIR_U32], kir_philox(t->b, x, y));
    put_casts(t, sinks, type, x);
    put_bitcasts(t, sinks, type, x);
}

/* Constants that are hard to write down, runtime scalars, indices. */
static void make_literals(kir_random *t, kir_type type) {
    static const double hard[] = {0.0, -0.0, 1e-45, -3.4028234e38, INFINITY, -INFINITY, NAN, 0.1, -123456789.0, 1e300};
    static const int64_t whole[] = {INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, -1, 0, 7};
    begin(t, 1, 0, (int64_t[]){POINTS});
    sink s = add_sink(t, WIDE[type], 24);
    for (size_t i = 0; i < TN_COUNT(hard); i++)
        put(t, &s, kir_const(t->b, type, hard[i]));
    for (size_t i = 0; i < TN_COUNT(whole); i++)
        put(t, &s, kir_const_i(t->b, type, whole[i]));
    for (int scalar = 0; scalar < KIR_RANDOM_RUNTIME_SCALARS; scalar++)
        put(t, &s, kir_scalar_value(t->b, type, scalar));
    kir_aff index = along(0, -3, 40);
    put(t, &s, kir_cast(t->b, type, kir_index(t->b, &index)));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Every dtype is loaded and stored, with and without a mask, by an index that was loaded. */
static void make_memory(kir_random *t, kir_type type) {
    begin(t, 2, 0, (int64_t[]){3, 500});
    kir_aff index = along(1, 1, 0);
    index.s[0] = 500;
    int indices = add_buffer(t, TN_I64, 1500, 1500), bools = add_buffer(t, TN_BOOL, 1500, 0);
    kir_aff gather = kir_aff_const(0);
    gather.dyn = kir_load(t->b, indices, &index, KIR_NONE);
    kir_val mask = kir_load(t->b, bools, &index, KIR_NONE);
    for (int dtype = 0; dtype < TN_PLAIN_DTYPES; dtype++) {
        if ((dtype == TN_F64) != (type == KIR_F64)) continue;
        int from = add_buffer(t, (tn_dtype)dtype, 1500, -1), to = add_buffer(t, (tn_dtype)dtype, 1500, -1);
        kir_val x = kir_load(t->b, from, &gather, mask), y = kir_load(t->b, from, &index, KIR_NONE);
        kir_type computes = kir_type_of((tn_dtype)dtype);
        kir_val sum = kir_binary(t->b, computes == KIR_BOOL ? KIR_XOR : KIR_ADD, x, y);
        kir_store(t->b, to, &index, sum, dtype % 2 ? mask : KIR_NONE);
    }
}

/* So many parameters that they do not fit into a call. */
static void make_many_sizes(kir_random *t, kir_type type) {
    begin(t, 6, 0, (int64_t[]){2, 3, 2, 5, 2, 3});
    int from = add_buffer(t, WIDE[type], 4000, 0), to = add_buffer(t, WIDE[type], 4000, 0);
    kir_val sum = kir_const(t->b, type, 0);
    for (int i = 0; i < 24; i++) {
        kir_aff index = kir_aff_const(i);
        for (int axis = 0; axis < 6; axis++)
            index.s[axis] = (i * 7 + axis * 5) % 40;
        sum = kir_binary(t->b, KIR_ADD, sum, kir_load(t->b, from, &index, KIR_NONE));
    }
    kir_aff index = kir_aff_const(0);
    for (int axis = 5, stride = 1; axis >= 0; axis--) {
        index.s[axis] = stride;
        stride *= (int)t->extent[axis];
    }
    kir_store(t->b, to, &index, sum, KIR_NONE);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static bool reduces(kir_reduce kind, kir_type type) {
    bool any = kind == KIR_RMAX || kind == KIR_RMIN || kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    return any || type != KIR_BOOL;
}

/* Every reduction over two loop axes of more elements than a block holds, and scans. */
static void make_reductions(kir_random *t, kir_type type) {
    const int64_t rows = 3, n = 130, m = 131;
    begin(t, 1, 2, (int64_t[]){rows, n, m});
    kir_aff index = along(0, n * m, 0), result = along(0, 1, 0);
    index.s[1] = m;
    index.s[2] = 1;
    int from = add_buffer(t, WIDE[type], rows * n * m, 0), scanned = add_buffer(t, WIDE[type], rows * n * m, 0);
    kir_val yields[KIR_SEQ + 1], scan = KIR_NONE;
    kir_loop(t->b, 1, 2);
    kir_val x = kir_load(t->b, from, &index, KIR_NONE);
    for (int kind = KIR_SUM; kind <= KIR_SEQ; kind++) {
        yields[kind] = KIR_NONE;
        if (!reduces((kir_reduce)kind, type)) continue;
        yields[kind] = kir_reduce_value(t->b, (kir_reduce)kind, x, kind == KIR_CHAIN ? x : KIR_NONE);
    }
    for (int kind = KIR_SUM; kind <= KIR_RMIN; kind++) {
        if (!reduces((kir_reduce)kind, type)) continue;
        kir_val s = kir_scan(t->b, (kir_reduce)kind, x);
        scan = scan == KIR_NONE ? s : kir_binary(t->b, KIR_MAX, scan, s);
    }
    kir_store(t->b, scanned, &index, scan, KIR_NONE);
    kir_end(t->b);
    for (int kind = KIR_SUM; kind <= KIR_SEQ; kind++) {
        if (yields[kind] == KIR_NONE) continue;
        bool arg = kind == KIR_ARGMAX || kind == KIR_ARGMIN;
        kir_store(t->b, add_buffer(t, arg ? TN_I64 : WIDE[type], rows, 0), &result, yields[kind], KIR_NONE);
    }
}

/* Reductions along one axis, which is no multiple of the lanes, of buffers that begin somewhere. */
static void make_rows(kir_random *t, kir_type type) {
    const int64_t rows = 20, n = 150;
    begin(t, 1, 1, (int64_t[]){rows, n});
    int a = add_buffer(t, WIDE[type], rows * n + 3, 0), b = add_buffer(t, WIDE[type], rows * n + 5, 0);
    int sums = add_buffer(t, WIDE[type], 2 * rows + 1, 0);
    kir_aff in_a = along(0, n, 3), in_b = along(0, n, 5), sum = along(0, 2, 1), most = along(0, 2, 0);
    in_a.s[1] = in_b.s[1] = 1;
    kir_loop(t->b, 1, 1);
    kir_val x = kir_load(t->b, a, &in_a, KIR_NONE), y = kir_load(t->b, b, &in_b, KIR_NONE);
    kir_val added = kir_reduce_value(t->b, KIR_SUM, kir_binary(t->b, KIR_MUL, x, y), KIR_NONE);
    kir_val greatest = kir_reduce_value(t->b, KIR_RMAX, x, KIR_NONE);
    kir_end(t->b);
    kir_store(t->b, sums, &sum, added, KIR_NONE);
    kir_store(t->b, sums, &most, greatest, KIR_NONE);
}

/* Loops in loops, a loop over no axis, a variable through all of them. */
static void make_nested(kir_random *t, kir_type type) {
    begin(t, 1, 3, (int64_t[]){20, 3, 70, 5});
    int from = add_buffer(t, WIDE[type], 20 * 3 * 70 * 5, 0), to = add_buffer(t, WIDE[type], 20 * 3 * 2 + 20, 0);
    kir_aff index = along(0, 3 * 70 * 5, 0), each = along(0, 6, 0), last = along(0, 1, 120);
    index.s[1] = 70 * 5;
    index.s[2] = 5;
    index.s[3] = 1;
    each.s[1] = 2;
    kir_val var = kir_var(t->b, kir_const(t->b, type, 1));
    kir_loop(t->b, 1, 1);
    kir_loop(t->b, 2, 2);
    kir_val x = kir_load(t->b, from, &index, KIR_NONE);
    kir_val sum = kir_reduce_value(t->b, KIR_SUM, x, KIR_NONE), most = kir_reduce_value(t->b, KIR_RMAX, x, KIR_NONE);
    kir_set(t->b, var, kir_binary(t->b, KIR_MAX, kir_get(t->b, var), x));
    kir_end(t->b);
    kir_store(t->b, to, &each, sum, KIR_NONE);
    kir_loop(t->b, 2, 0);
    kir_val once = kir_reduce_value(t->b, KIR_CHAIN, sum, most);
    kir_end(t->b);
    each.c = 1;
    kir_store(t->b, to, &each, once, KIR_NONE);
    kir_end(t->b);
    kir_store(t->b, to, &last, kir_get(t->b, var), KIR_NONE);
}

/* ---- workgroups -------------------------------------------------------------------------------------------------- */

/* A matrix is transposed by tiles of 8 × 8 through local memory. */
static void make_transpose(kir_random *t, kir_type type) {
    begin(t, 4, 0, (int64_t[]){5, 4, 8, 8});
    kir_group(t->b, t->n_items = 2);
    int from = add_buffer(t, WIDE[type], 40 * 32, 0), to = add_buffer(t, WIDE[type], 40 * 32, 0);
    int tile = add_local(t, WIDE[type], 8 * 9);
    kir_aff in = kir_aff_const(0), out = kir_aff_const(0), across = kir_aff_const(0), down = kir_aff_const(0);
    in.s[0] = 8 * 32, in.s[1] = 8, in.s[2] = 32, in.s[3] = 1;
    out.s[0] = 8, out.s[1] = 8 * 40, out.s[2] = 40, out.s[3] = 1;
    across.s[2] = 9, across.s[3] = 1;
    down.s[2] = 1, down.s[3] = 9;
    kir_store(t->b, tile, &across, kir_load(t->b, from, &in, KIR_NONE), KIR_NONE);
    kir_barrier(t->b);
    kir_store(t->b, to, &out, kir_load(t->b, tile, &down, KIR_NONE), KIR_NONE);
}

/* C = A B by tiles, a barrier in a loop. */
static void make_product(kir_random *t, kir_type type) {
    begin(t, 4, 2, (int64_t[]){2, 3, 8, 8, 4, 8});
    kir_group(t->b, t->n_items = 2);
    int a = add_buffer(t, WIDE[type], 16 * 32, 0), b = add_buffer(t, WIDE[type], 32 * 24, 0);
    int c = add_buffer(t, WIDE[type], 16 * 24, 0);
    int left = add_local(t, WIDE[type], 64), right = add_local(t, WIDE[type], 64);
    kir_aff from_a = kir_aff_const(0), from_b = kir_aff_const(0), to = kir_aff_const(0), mine = kir_aff_const(0);
    from_a.s[0] = 8 * 32, from_a.s[2] = 32, from_a.s[3] = 1, from_a.s[4] = 8;
    from_b.s[1] = 8, from_b.s[2] = 24, from_b.s[3] = 1, from_b.s[4] = 8 * 24;
    to.s[0] = 8 * 24, to.s[1] = 8, to.s[2] = 24, to.s[3] = 1;
    mine.s[2] = 8, mine.s[3] = 1;
    kir_aff row = kir_aff_const(0), column = kir_aff_const(0);
    row.s[2] = 8, row.s[5] = 1;
    column.s[3] = 1, column.s[5] = 8;
    kir_val acc = kir_var(t->b, kir_const(t->b, type, 0));
    kir_loop(t->b, 4, 1);
    kir_store(t->b, left, &mine, kir_load(t->b, a, &from_a, KIR_NONE), KIR_NONE);
    kir_store(t->b, right, &mine, kir_load(t->b, b, &from_b, KIR_NONE), KIR_NONE);
    kir_barrier(t->b);
    kir_loop(t->b, 5, 1);
    kir_val x = kir_load(t->b, left, &row, KIR_NONE), y = kir_load(t->b, right, &column, KIR_NONE);
    kir_val sum = kir_reduce_value(t->b, KIR_CHAIN, x, y);
    kir_end(t->b);
    kir_set(t->b, acc, kir_binary(t->b, KIR_ADD, kir_get(t->b, acc), sum));
    kir_barrier(t->b);
    kir_end(t->b);
    kir_store(t->b, c, &to, kir_get(t->b, acc), KIR_NONE);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

const kir_case kir_cases[] = {
    {"operations f32", KIR_F32, make_operations, false, false},
    {"operations f64", KIR_F64, make_operations, false, true},
    {"operations i32", KIR_I32, make_operations, false, false},
    {"operations i64", KIR_I64, make_operations, false, false},
    {"operations u32", KIR_U32, make_operations, false, false},
    {"operations u64", KIR_U64, make_operations, false, false},
    {"operations bool", KIR_BOOL, make_operations, false, false},
    {"literals f32", KIR_F32, make_literals, false, false},
    {"literals f64", KIR_F64, make_literals, false, true},
    {"literals i32", KIR_I32, make_literals, false, false},
    {"literals i64", KIR_I64, make_literals, false, false},
    {"literals u32", KIR_U32, make_literals, false, false},
    {"literals u64", KIR_U64, make_literals, false, false},
    {"literals bool", KIR_BOOL, make_literals, false, false},
    {"memory", KIR_F32, make_memory, false, false},
    {"memory f64", KIR_F64, make_memory, false, true},
    {"many sizes", KIR_F32, make_many_sizes, false, false},
    {"reductions f32", KIR_F32, make_reductions, false, false},
    {"reductions f64", KIR_F64, make_reductions, false, true},
    {"reductions i32", KIR_I32, make_reductions, false, false},
    {"reductions u64", KIR_U64, make_reductions, false, false},
    {"reductions bool", KIR_BOOL, make_reductions, false, false},
    {"rows", KIR_F32, make_rows, false, false},
    {"nested loops", KIR_F32, make_nested, false, false},
    {"transpose", KIR_F32, make_transpose, true, false},
    {"product", KIR_F32, make_product, true, false},
};
const int kir_case_count = (int)TN_COUNT(kir_cases);

void kir_case_make(kir_random *t, const kir_case *c) {
    *t = (kir_random){.n_par = 0};
    static const double scalars[KIR_RANDOM_RUNTIME_SCALARS] = {0.1, -1e-40, 3.5e38, -7.0};
    for (int i = 0; i < KIR_RANDOM_RUNTIME_SCALARS; i++) {
        t->scalars[i].f = scalars[i];
        if (!kir_is_float(c->type)) t->scalars[i].i = 0x123456789abcdef * (i + 1) - i * 5;
    }
    c->make(t, c->type);
    assert_ok(kir_finish(t->b, &t->program, &t->sizes));
}
