/* test_kir_vm.c — the tile VM yields the interpreter's bits: random programs on every instruction set, on one, two and
 * three threads, whole and in boxes.
 *
 * A case is made from its seed alone: axes, buffers with strided, broadcast, reversed, transposed, masked and gathered
 * accesses, values of every type, loops with reductions and scans, stores into memory of their own or in place. All
 * buffers lie in one block of memory, whose copy each run starts from and whose every byte is compared afterwards (two
 * NaN are equal). A seed that fails is printed with its program: --seeds N N+1 repeats it. */
#include "test_support.h"

#include <math.h>

#include "kir/kir.h"
#include "kir/vm.h"

enum { MOST_VALUES = 256, MOST_POINTS = 6000, CASES = 120, LONG_CASES = 6, MAX_THREADS = 3 };

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t x = random_state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int64_t below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static bool one_in(int64_t n) { return below(n) == 0; }

/* ---- a case ------------------------------------------------------------------------------------------------------ */

typedef struct area {
    tn_dtype dtype;
    int64_t first, elements; /* where element 0 lies behind the area's begin; elements in all */
    size_t at;               /* of the area in the block of memory */
    int64_t limit;           /* an index buffer holds 0 … limit-1; 0: any values */
    bool permutation;        /* … each of them once */
} area;

typedef struct test_case {
    kir_builder *b;
    int n_par, n_loop;
    int64_t extent[KIR_MAX_AXES];
    area areas[KIR_MAX_BUFFERS];
    int n_areas;
    size_t bytes;
    kir_val values[MOST_VALUES];
    int depth_of[MOST_VALUES]; /* 0: visible everywhere from now on, 1: in the current loop */
    int n_values;
    bool in_loop, across; /* across: memory runs along the parallel axes, not along the loops */
    kir_program *program;
    int64_t *sizes;
    kir_dial dials[4];
} test_case;

static int axes_of(const test_case *t) { return t->n_par + t->n_loop; }

static int visible_axes(const test_case *t) { return t->in_loop ? axes_of(t) : t->n_par; }

static void keep(test_case *t, kir_val v) {
    if (v == KIR_NONE || t->n_values == MOST_VALUES) return;
    t->depth_of[t->n_values] = t->in_loop;
    t->values[t->n_values++] = v;
}

/* Any value of this type, or KIR_NONE. */
static kir_val pick(const test_case *t, kir_type type) {
    for (int tries = 0; tries < 40 && t->n_values > 0; tries++) {
        kir_val v = t->values[t->n_values - 1 - below(tn_min64(t->n_values, tries < 20 ? 8 : t->n_values))];
        if (kir_val_type(t->b, v) == type) return v;
    }
    return KIR_NONE;
}

static kir_val need(test_case *t, kir_type type) {
    kir_val v = pick(t, type);
    if (v != KIR_NONE) return v;
    if (t->n_values > 0 && !one_in(3)) return kir_cast(t->b, type, t->values[below(t->n_values)]);
    return one_in(4) ? kir_dial_value(t->b, type, (int)below(4)) : kir_const(t->b, type, (double)below(7) - 2.5);
}

/* ---- axes and areas ---------------------------------------------------------------------------------------------- */

static int64_t random_extent(void) {
    switch (below(12)) {
    case 0: return one_in(6) ? 0 : 1;
    case 1:
    case 2: return 1;
    case 3: return 16 + below(100);
    case 4: return 200 + below(900);
    default: return 2 + below(9);
    }
}

static void random_axes(test_case *t, bool long_loop) {
    t->n_par = (int)below(5);
    t->across = one_in(3);
    t->n_loop = long_loop ? 1 + (int)below(2) : (int)below(4);
    int64_t points = 1, most = long_loop ? 4 : MOST_POINTS;
    for (int i = 0; i < axes_of(t); i++) {
        if (long_loop && i == t->n_par) most = 90000;
        int64_t extent = long_loop && i >= t->n_par ? (i == t->n_par ? 120 : 350) + below(250) : random_extent();
        if (long_loop && i == t->n_par && t->n_loop == 1) extent = 33000 + below(40000);
        if (long_loop && i < t->n_par && one_in(3)) extent = 4;
        if (t->across && i == t->n_par - 1 && !long_loop && one_in(2)) extent = 5 + below(300);
        while (points * extent > most && extent > 1)
            extent = extent / 2;
        t->extent[i] = extent;
        points *= tn_max64(extent, 1);
        if (long_loop && i < t->n_par) points = 1;
    }
}

/* An area big enough for the access, whose offset is chosen so that it lies inside. Returns the buffer's number. */
static int add_area(test_case *t, tn_dtype dtype, const kir_aff *index, int axes, int64_t more) {
    if (t->n_areas == KIR_MAX_BUFFERS) return -1;
    int64_t low = index->c, high = index->c + more;
    for (int k = 0; k < axes; k++) {
        int64_t reach = (tn_max64(t->extent[k], 1) - 1) * index->s[k];
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    area *a = &t->areas[t->n_areas++];
    *a = (area){.dtype = dtype, .first = -low, .elements = high - low + 1};
    a->at = t->bytes;
    t->bytes += ((size_t)a->elements * tn_dtype_size(dtype) + 63 + (size_t)below(3)) / 64 * 64;
    return kir_buffer(t->b, dtype);
}

/* Strides that give each point of the axes an element of its own: any order of axes, any
 * direction, with gaps or none. */
static kir_aff apart(const test_case *t, int axes) {
    kir_aff index = kir_aff_const(below(3) - 1);
    int order[KIR_MAX_AXES];
    int64_t stride = one_in(6) ? 2 : 1;
    for (int k = 0; k < axes; k++)
        order[k] = axes - 1 - k;
    for (int k = 0; t->across && axes > t->n_par && k < axes; k++) {
        order[k] = k < t->n_par ? t->n_par - 1 - k : axes - 1 - (k - t->n_par);
    }
    for (int swaps = one_in(3) ? (int)below(3) : 0; swaps > 0 && axes > 1; swaps--) {
        int i = (int)below(axes), j = (int)below(axes);
        int other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (int k = 0; k < axes; k++) {
        index.s[order[k]] = one_in(12) ? -stride : stride;
        stride *= tn_max64(t->extent[order[k]], 1);
        if (one_in(10)) stride += below(5);
    }
    return index;
}

/* The same, but some axes are not looked at. */
static kir_aff anywhere(const test_case *t, int axes) {
    kir_aff index = apart(t, axes);
    for (int k = 0; k < axes; k++) {
        if (one_in(5)) index.s[k] = 0;
        if (one_in(25)) index.s[k] = below(5) - 2;
    }
    return index;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static kir_val random_mask(test_case *t) {
    if (!one_in(5)) return KIR_NONE;
    int axes = visible_axes(t);
    if (axes == 0 || one_in(3)) return pick(t, KIR_BOOL);
    kir_aff index = kir_aff_const(0);
    int axis = (int)below(axes);
    index.s[axis] = 1;
    kir_val at = kir_index(t->b, &index);
    kir_val limit = kir_const_i(t->b, KIR_I64, below(t->extent[axis] + 2));
    return one_in(2) ? kir_binary(t->b, KIR_LT, at, limit) : kir_binary(t->b, KIR_LE, limit, at);
}

static void add_load(test_case *t) {
    tn_dtype dtype = one_in(3) ? (tn_dtype)below(TN_PLAIN_DTYPES) : TN_F32;
    kir_aff index = anywhere(t, visible_axes(t));
    kir_val mask = random_mask(t);
    int buffer = -1;
    if (one_in(5)) { /* a gather by an index that was loaded */
        int64_t limit = 1 + below(40);
        kir_aff from = anywhere(t, visible_axes(t));
        int indices = add_area(t, TN_I64, &from, visible_axes(t), 0);
        if (indices < 0) return;
        t->areas[indices].limit = limit;
        index.dyn = kir_load(t->b, indices, &from, KIR_NONE);
        buffer = add_area(t, dtype, &index, visible_axes(t), limit - 1);
    } else {
        buffer = add_area(t, dtype, &index, visible_axes(t), 0);
    }
    if (buffer < 0) return;
    keep(t, kir_load(t->b, buffer, &index, mask));
    if (one_in(6)) keep(t, kir_load(t->b, buffer, &index, KIR_NONE));
}

static kir_type random_type(void) {
    static const kir_type types[] = {KIR_F32, KIR_F32, KIR_F32, KIR_F32, KIR_F64,
                                     KIR_I32, KIR_I64, KIR_U32, KIR_U64, KIR_BOOL};
    return types[below((int64_t)TN_COUNT(types))];
}

static bool is_float(kir_type t) { return t == KIR_F32 || t == KIR_F64; }

static void add_unary(test_case *t) {
    static const kir_op of_floats[] = {KIR_NEG, KIR_ABS, KIR_SQRT, KIR_EXP, KIR_LOG,
                                       KIR_SIN, KIR_COS, KIR_TANH, KIR_ERF};
    kir_type type = random_type();
    if (type == KIR_BOOL) type = KIR_F32;
    kir_val v = need(t, type);
    if (is_float(type) && one_in(6))
        keep(t, kir_rounding(t->b, (kir_round)below(4), v));
    else
        keep(t, kir_unary(t->b, of_floats[below(is_float(type) ? (int64_t)TN_COUNT(of_floats) : 2)], v));
}

static void add_binary(test_case *t) {
    static const kir_op of_floats[] = {KIR_ADD, KIR_SUB, KIR_MUL, KIR_ADD, KIR_SUB,
                                       KIR_MUL, KIR_DIV, KIR_MIN, KIR_MAX, KIR_MOD};
    static const kir_op of_ints[] = {KIR_ADD, KIR_SUB, KIR_MUL, KIR_DIV, KIR_MOD, KIR_MIN,
                                     KIR_MAX, KIR_AND, KIR_OR,  KIR_XOR, KIR_SHL, KIR_SHR};
    static const kir_op of_bools[] = {KIR_MIN, KIR_MAX, KIR_AND, KIR_OR, KIR_XOR};
    kir_type type = random_type();
    kir_val a = need(t, type), b = need(t, type);
    if (one_in(4))
        keep(t, kir_binary(t->b, (kir_op)(KIR_EQ + below(3)), a, b));
    else if (type == KIR_BOOL)
        keep(t, kir_binary(t->b, of_bools[below((int64_t)TN_COUNT(of_bools))], a, b));
    else if (is_float(type))
        keep(t, kir_binary(t->b, of_floats[below((int64_t)TN_COUNT(of_floats))], a, b));
    else
        keep(t, kir_binary(t->b, of_ints[below((int64_t)TN_COUNT(of_ints))], a, b));
}

static void add_ternary(test_case *t) {
    kir_type type = random_type();
    if (is_float(type) && one_in(2))
        keep(t, kir_fma(t->b, need(t, type), need(t, type), need(t, type)));
    else
        keep(t, kir_select(t->b, need(t, KIR_BOOL), need(t, type), need(t, type)));
}

static void add_choice(test_case *t) {
    kir_val a = need(t, KIR_F32), b = need(t, KIR_F32), yes = need(t, KIR_F32), no = need(t, KIR_F32);
    keep(t, kir_select(t->b, kir_binary(t->b, (kir_op)(KIR_EQ + below(3)), a, b), yes, no));
}

/* Every point has an element of its own, in the order of a permutation. */
static void add_scatter(test_case *t) {
    if (t->n_areas >= KIR_MAX_BUFFERS - 2) return;
    int axes = visible_axes(t);
    kir_aff from = kir_aff_const(0), to = kir_aff_const(below(3));
    int64_t points = 1;
    for (int k = axes - 1; k >= 0; k--) {
        from.s[k] = points;
        points *= tn_max64(t->extent[k], 1);
    }
    int indices = add_area(t, TN_I64, &from, axes, 0);
    t->areas[indices].limit = points;
    t->areas[indices].permutation = true;
    to.dyn = kir_load(t->b, indices, &from, KIR_NONE);
    int buffer = add_area(t, TN_F32, &to, 0, points - 1);
    kir_store(t->b, buffer, &to, need(t, KIR_F32), random_mask(t));
}

/* No float is read as bits: which NaN an operation yields is nobody's promise. */
static void add_cast(test_case *t) {
    kir_val v = need(t, random_type());
    kir_type from = kir_val_type(t->b, v);
    if (!one_in(3))
        keep(t, kir_cast(t->b, random_type(), v));
    else if (from == KIR_I32 || from == KIR_U32)
        keep(t, kir_bitcast(t->b, one_in(2) ? KIR_F32 : from == KIR_I32 ? KIR_U32 : KIR_I32, v));
    else if (from == KIR_I64 || from == KIR_U64)
        keep(t, kir_bitcast(t->b, one_in(2) ? KIR_F64 : from == KIR_I64 ? KIR_U64 : KIR_I64, v));
}

static void add_index(test_case *t) {
    kir_aff index = anywhere(t, visible_axes(t));
    if (one_in(4)) index.dyn = need(t, KIR_I64);
    keep(t, kir_index(t->b, &index));
}

static void add_philox(test_case *t) { keep(t, kir_philox(t->b, need(t, KIR_U64), need(t, KIR_U64))); }

static void add_store(test_case *t) {
    if (t->n_values == 0 || t->n_areas >= KIR_MAX_BUFFERS - 1) return;
    kir_val v = t->values[t->n_values - 1 - below(tn_min64(t->n_values, 5))];
    static const tn_dtype wide[KIR_TYPE_COUNT] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};
    tn_dtype dtype = one_in(4) ? (tn_dtype)below(TN_PLAIN_DTYPES) : wide[kir_val_type(t->b, v)];
    kir_aff index = apart(t, visible_axes(t));
    int buffer = add_area(t, dtype, &index, visible_axes(t), 0);
    kir_store(t->b, buffer, &index, v, random_mask(t));
}

/* The store's memory is that of a load at the same index, under the same or another number. */
static void add_in_place(test_case *t) {
    if (t->n_areas >= KIR_MAX_BUFFERS - 2) return;
    kir_aff index = apart(t, visible_axes(t));
    int from = add_area(t, TN_F32, &index, visible_axes(t), 0), to = from;
    if (one_in(2)) {
        to = kir_buffer(t->b, TN_F32);
        t->areas[t->n_areas++] = t->areas[from];
    }
    kir_val x = kir_load(t->b, from, &index, KIR_NONE);
    keep(t, x);
    kir_val y = kir_binary(t->b, KIR_ADD, x, need(t, KIR_F32));
    keep(t, y);
    if (one_in(2)) keep(t, kir_binary(t->b, KIR_MUL, x, y));
    kir_store(t->b, to, &index, one_in(2) ? y : need(t, KIR_F32), random_mask(t));
    keep(t, kir_binary(t->b, KIR_SUB, x, y));
    if (one_in(2)) keep(t, kir_load(t->b, one_in(2) ? from : to, &index, KIR_NONE));
    if (one_in(3)) kir_store(t->b, from, &index, need(t, KIR_F32), KIR_NONE);
}

static void add_something(test_case *t) {
    typedef void maker(test_case *);
    static maker *const makers[] = {add_load,   add_load,     add_unary,   add_unary,  add_binary, add_binary,
                                    add_binary, add_binary,   add_ternary, add_cast,   add_index,  add_philox,
                                    add_store,  add_in_place, add_choice,  add_scatter};
    makers[below((int64_t)TN_COUNT(makers))](t);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static void add_reduction(test_case *t, kir_val *results, int *n_results, bool plain) {
    static const kir_reduce any[] = {KIR_SUM,    KIR_SUM,    KIR_RMAX,  KIR_RMIN, KIR_PROD,
                                     KIR_ARGMAX, KIR_ARGMIN, KIR_CHAIN, KIR_SEQ};
    kir_type type = random_type();
    kir_reduce kind = any[below(plain ? 7 : (int64_t)TN_COUNT(any))];
    bool takes_bool = kind == KIR_RMAX || kind == KIR_RMIN || kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    if (type == KIR_BOOL && !takes_bool) type = KIR_F32;
    kir_val v = need(t, type);
    results[(*n_results)++] = kir_reduce_value(t->b, kind, v, kind == KIR_CHAIN ? need(t, type) : KIR_NONE);
}

static void add_scan(test_case *t) {
    kir_type type = random_type();
    kir_reduce kind = (kir_reduce)below(4);
    if (type == KIR_BOOL && kind < KIR_RMAX) kind = KIR_RMAX;
    keep(t, kir_scan(t->b, kind, need(t, type)));
}

static void add_loop(test_case *t, bool plain) {
    kir_val results[8];
    int n_results = 0, before = t->n_values;
    t->in_loop = true;
    kir_loop(t->b, t->n_par, t->n_loop);
    add_load(t);
    for (int i = (int)below(9); i > 0; i--) {
        add_something(t);
        if (one_in(4) && n_results < 4) add_reduction(t, results, &n_results, plain);
        if (!plain && one_in(10)) add_scan(t);
    }
    if (n_results == 0 || one_in(3)) add_reduction(t, results, &n_results, plain);
    if (one_in(2)) add_store(t);
    kir_end(t->b);
    t->in_loop = false;
    t->n_values = before;
    for (int i = 0; i < n_results; i++)
        keep(t, results[i]);
}

static void make_case(test_case *t, uint64_t seed, bool long_loop) {
    random_state = seed * 1000003;
    *t = (test_case){.n_par = 0};
    random_axes(t, long_loop);
    assert_ok(kir_begin(t->n_par, t->n_loop, t->extent, &t->b));
    for (int i = 0; i < 4; i++)
        t->dials[i] = (kir_dial){.i = below(1000)};
    int loops = t->n_loop > 0 ? 1 + (int)below(3) : 0;
    add_load(t);
    for (int k = 0; k <= loops; k++) {
        for (int i = (int)below(loops ? 4 : 14); i > 0; i--)
            add_something(t);
        if (k < loops) add_loop(t, long_loop && !one_in(4));
    }
    add_store(t);
    add_store(t);
    assert_ok(kir_finish(t->b, &t->program, &t->sizes));
}

static void free_case(test_case *t) {
    kir_free(t->program);
    tn_mem_free(t->sizes);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static double random_number(void) {
    static const double special[] = {0.0,   -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN,
                                     1e-40, 3e38, 0.5, 1e10, -2.5e9,   88.0};
    if (one_in(30)) return special[below((int64_t)TN_COUNT(special))];
    double x = (double)below(2000001) / 500000.0 - 2.0;
    return one_in(10) ? x * 300 : x;
}

static void fill_element(char *at, tn_dtype dtype, int64_t limit) {
    uint64_t bits = random_bits();
    double x = random_number();
    float single = (float)x;
    int64_t small = below(2001) - 1000;
    switch (dtype) {
    case TN_F32: memcpy(at, &single, 4); break;
    case TN_F64: memcpy(at, &x, 8); break;
    case TN_BOOL: *at = (char)(bits & 1); break;
    case TN_F16: /* any pattern but NaN, whose payload may change on the way */
        bits &= 0xfbff;
        memcpy(at, &bits, 2);
        break;
    case TN_BF16:
        bits &= 0xff7f;
        memcpy(at, &bits, 2);
        break;
    default:
        if (limit > 0)
            small = (int64_t)(bits % (uint64_t)limit);
        else if (one_in(8))
            small = (int64_t)bits;
        memcpy(at, &small, tn_dtype_size(dtype));
    }
}

static void shuffle(int64_t *at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t j = below(i + 1);
        at[i] = at[j];
        at[j] = i;
    }
}

static char *make_memory(const test_case *t, uint64_t seed) {
    random_state = seed;
    char *memory = calloc(1, t->bytes + 64);
    assert_non_null(memory);
    for (int i = 0; i < t->n_areas; i++) {
        const area *a = &t->areas[i];
        if (a->permutation) shuffle((int64_t *)(void *)(memory + a->at), a->elements);
        for (int64_t e = 0; e < a->elements && !a->permutation; e++) {
            fill_element(memory + a->at + (size_t)e * tn_dtype_size(a->dtype), a->dtype, a->limit);
        }
    }
    return memory;
}

static void set_buffers(const test_case *t, char *memory, void **buffers) {
    for (int i = 0; i < t->n_areas; i++) {
        buffers[i] = memory + t->areas[i].at + t->areas[i].first * (int64_t)tn_dtype_size(t->areas[i].dtype);
    }
}

static bool is_nan(const char *at, tn_dtype dtype) {
    float single;
    double x;
    uint16_t half;
    memcpy(&half, at, 2);
    if (dtype == TN_F16) return (half & 0x7fff) > 0x7c00;
    if (dtype == TN_BF16) return (half & 0x7fff) > 0x7f80;
    if (dtype == TN_F32) return memcpy(&single, at, 4), single != single;
    if (dtype == TN_F64) return memcpy(&x, at, 8), x != x;
    return false;
}

/* Prints the first difference; true when there is none. */
static bool same_memory(const test_case *t, const char *want, const char *got, const char *what) {
    for (int i = 0; i < t->n_areas; i++) {
        const area *a = &t->areas[i];
        size_t size = tn_dtype_size(a->dtype);
        for (int64_t e = 0; e < a->elements; e++) {
            const char *x = want + a->at + (size_t)e * size, *y = got + a->at + (size_t)e * size;
            if (memcmp(x, y, size) == 0 || (is_nan(x, a->dtype) && is_nan(y, a->dtype))) continue;
            uint64_t u = 0, v = 0;
            memcpy(&u, x, size);
            memcpy(&v, y, size);
            print_error("%s: buffer %d (%s) element %lld: %llx, should be %llx\n", what, i, tn_dtype_name(a->dtype),
                        (long long)(e - a->first), (unsigned long long)v, (unsigned long long)u);
            return false;
        }
    }
    return true;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

enum { LAUNCHES = 3 }; /* each with memory of its own, all but the first with smaller extents */

typedef struct runner {
    const test_case *t;
    const kir_vm *vm;
    char *start, *want[LAUNCHES], *got[LAUNCHES];
    int64_t *sizes[LAUNCHES];
    void *buffers[LAUNCHES][KIR_MAX_BUFFERS];
    kir_launch launches[LAUNCHES];
} runner;

static void start_anew(runner *r) {
    for (int i = 0; i < LAUNCHES; i++) {
        memcpy(r->got[i], r->start, r->t->bytes);
        set_buffers(r->t, r->got[i], r->buffers[i]);
    }
}

static bool is_right(const runner *r, int launch, const char *how) {
    return same_memory(r->t, r->want[launch], r->got[launch], how);
}

static bool check_run(runner *r, const char *isa, int threads, int count) {
    char how[64];
    snprintf(how, sizeof how, "%s, %d threads, %d launches", isa, threads, count);
    start_anew(r);
    assert_ok(tn_threads_set(threads));
    assert_ok(kir_vm_run(r->vm, r->launches, count));
    bool good = true;
    for (int i = 0; i < count; i++) {
        if (good && !is_right(r, i, how)) {
            good = false;
            print_error("launch %d:", i);
            for (int k = 0; k < axes_of(r->t); k++)
                print_error(" %lld", (long long)r->sizes[i][k]);
            print_error("\n");
        }
    }
    return good;
}

/* Runs the box as a whole, or cut in two along some axis. */
static void run_boxes(runner *r, int64_t *lo, int64_t *hi, void *scratch, int depth) {
    int axis = r->t->n_par > 0 ? (int)below(r->t->n_par) : 0;
    if (depth == 0 || r->t->n_par == 0 || hi[axis] - lo[axis] < 2) {
        kir_vm_run_box(r->vm, &r->launches[0], lo, hi, scratch);
        return;
    }
    int64_t begin = lo[axis], end = hi[axis], middle = begin + 1 + below(end - begin - 1);
    hi[axis] = middle;
    run_boxes(r, lo, hi, scratch, depth - 1);
    hi[axis] = end;
    lo[axis] = middle;
    run_boxes(r, lo, hi, scratch, depth - 1);
    lo[axis] = begin;
}

static bool check_boxes(runner *r, const char *isa) {
    char how[64];
    snprintf(how, sizeof how, "%s, boxes", isa);
    start_anew(r);
    int64_t lo[KIR_MAX_AXES] = {0}, hi[KIR_MAX_AXES];
    memcpy(hi, r->t->extent, sizeof hi);
    void *scratch = tn_mem_alloc(kir_vm_scratch(r->vm));
    assert_non_null(scratch);
    run_boxes(r, lo, hi, scratch, 3);
    tn_mem_free(scratch);
    return is_right(r, 0, how);
}

static bool check_all(runner *r) {
    bool good = true;
    for (int isa = TN_ISA_BASE; isa < TN_ISA_COUNT && good; isa++) {
        if (!kir_vm_use((tn_isa)isa)) continue;
        const char *name = tn_isa_name((tn_isa)isa);
        good = good && check_run(r, name, 1, 1) && check_run(r, name, 2, 1) && check_run(r, name, 1, LAUNCHES) &&
               check_run(r, name, MAX_THREADS, LAUNCHES);
        if (r->t->n_loop == 0) good = good && check_boxes(r, name);
    }
    kir_vm_use(tn_cpu().isa);
    return good;
}

static void print_case(const test_case *t, uint64_t seed) {
    tn_str text = {0};
    kir_print(t->program, t->sizes, &text);
    fprintf(stderr, "seed %llu\n%s", (unsigned long long)seed, tn_str_text(&text)); /* longer than print_error takes */
    tn_str_free(&text);
}

/* The same program on fewer points. */
static int64_t *smaller(const test_case *t, int launch) {
    size_t bytes = kir_sizes_count(t->program) * sizeof(int64_t);
    int64_t *sizes = malloc(bytes + 1);
    assert_non_null(sizes);
    memcpy(sizes, t->sizes, bytes);
    for (int k = 0; k < axes_of(t) && launch > 0; k++) {
        if (one_in(2)) sizes[k] = one_in(12) ? 0 : tn_min64(sizes[k], 1 + below(sizes[k] + 1));
    }
    return sizes;
}

static void runner_open(runner *r, const test_case *t, const kir_vm *vm, uint64_t seed) {
    *r = (runner){.t = t, .vm = vm, .start = make_memory(t, seed)};
    for (int i = 0; i < LAUNCHES; i++) {
        r->want[i] = calloc(1, t->bytes + 64);
        r->got[i] = calloc(1, t->bytes + 64);
        assert_true(r->want[i] && r->got[i]);
        r->sizes[i] = smaller(t, i);
        r->launches[i] = (kir_launch){r->sizes[i], r->buffers[i], t->dials};
        memcpy(r->want[i], r->start, t->bytes);
        set_buffers(t, r->want[i], r->buffers[i]);
        assert_ok(kir_interpret(t->program, &r->launches[i]));
    }
}

static void runner_close(runner *r) {
    free(r->start);
    for (int i = 0; i < LAUNCHES; i++) {
        free(r->want[i]);
        free(r->got[i]);
        free(r->sizes[i]);
    }
}

static bool run_case(uint64_t seed, bool long_loop, bool show) {
    test_case t;
    make_case(&t, seed, long_loop);
    if (show) print_case(&t, seed);
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(t.program, &vm));
    runner r;
    runner_open(&r, &t, vm, seed);
    bool good = check_all(&r);
    if (!good && !show) print_case(&t, seed);
    runner_close(&r);
    kir_vm_free(vm);
    free_case(&t);
    return good;
}

/* Every check runs a few; TRUNNION_TEST_FULL, ten times as many. */
static uint64_t cases(uint64_t few) { return getenv("TRUNNION_TEST_FULL") ? 10 * few : few; }

static void random_programs_match_the_interpreter(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < cases(CASES); seed++)
        assert_true(run_case(seed, false, false));
}

static void long_loops_match_the_interpreter(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < cases(LONG_CASES); seed++)
        assert_true(run_case(seed, true, false));
}

static int run_seeds(uint64_t begin, uint64_t end, bool long_loop, bool show) {
    for (uint64_t seed = begin; seed < end; seed++) {
        if (!run_case(seed, long_loop, show)) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    kir_vm_worth_a_thread(0); /* so that even small programs are divided */
    if (argc == 4) {          /* --seeds or --long, first, one past the last */
        uint64_t begin = strtoull(argv[2], NULL, 10), end = strtoull(argv[3], NULL, 10);
        return run_seeds(begin, end, strcmp(argv[1], "--long") == 0, end == begin + 1);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_match_the_interpreter),
        cmocka_unit_test(long_loops_match_the_interpreter),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kir_vm_trim();
    return failed;
}
