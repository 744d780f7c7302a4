/* kir_random.c — makes programs and memory from seeds (see kir_random.h). */
#include "test_support.h"

#include <math.h>

#include "gpu/gpu.h"
#include "kir_print.h"
#include "kir_random.h"

enum { MOST_POINTS = 6000 };

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

void kir_random_seed(uint64_t seed) { random_state = seed; }
int64_t kir_random_below(int64_t n) { return below(n); }

/* ---- a case ------------------------------------------------------------------------------------------------------ */

static int axes_of(const kir_random *t) { return t->n_par + t->n_loop; }

static int visible_axes(const kir_random *t) { return t->n_par + t->open_axes; }

static bool has_room(const kir_random *t, int buffers) {
    int most = t->options.most_buffers ? t->options.most_buffers : KIR_MAX_BUFFERS;
    return t->n_areas + buffers <= most;
}

static void keep(kir_random *t, kir_val v) {
    if (v != KIR_NONE && t->n_values < KIR_RANDOM_VALUES) t->values[t->n_values++] = v;
}

static kir_type random_type(const kir_random *t) {
    static const kir_type types[] = {KIR_F32, KIR_F32, KIR_F32, KIR_F32, KIR_F64,
                                     KIR_I32, KIR_I64, KIR_U32, KIR_U64, KIR_BOOL};
    kir_type type = types[below((int64_t)TN_COUNT(types))];
    if (t->options.narrow && kir_type_size(type) == 8) return below(2) ? KIR_I32 : KIR_U32;
    return type == KIR_F64 && t->options.no_f64 ? KIR_F32 : type;
}

static tn_dtype random_dtype(const kir_random *t) {
    tn_dtype dtype = (tn_dtype)below(TN_PLAIN_DTYPES);
    if (t->options.narrow && tn_dtype_size(dtype) == 8) return TN_F32;
    bool lacking = (dtype == TN_F64 && t->options.no_f64) || (dtype == TN_F16 && t->options.no_f16);
    return lacking ? TN_F32 : dtype;
}

/* Any value of this type, or KIR_NONE. */
static kir_val pick(const kir_random *t, kir_type type) {
    for (int tries = 0; tries < 40 && t->n_values > 0; tries++) {
        kir_val v = t->values[t->n_values - 1 - below(tn_min64(t->n_values, tries < 20 ? 8 : t->n_values))];
        if (kir_val_type(t->b, v) == type) return v;
    }
    return KIR_NONE;
}

static kir_val need(kir_random *t, kir_type type) {
    kir_val v = pick(t, type);
    if (v != KIR_NONE) return v;
    if (t->options.simple) {
        if (type != KIR_BOOL && one_in(4)) return kir_scalar_value(t->b, type, (int)below(KIR_RANDOM_RUNTIME_SCALARS));
        kir_val number = pick(t, KIR_F32);
        if (type == KIR_BOOL && number != KIR_NONE) return kir_cast(t->b, KIR_BOOL, number);
        return kir_const(t->b, type, (double)below(7) - 2.5);
    }
    if (t->n_values > 0 && !one_in(3)) return kir_cast(t->b, type, t->values[below(t->n_values)]);
    return one_in(4) ? kir_scalar_value(t->b, type, (int)below(KIR_RANDOM_RUNTIME_SCALARS))
                     : kir_const(t->b, type, (double)below(7) - 2.5);
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

static void random_axes(kir_random *t) {
    bool long_loop = t->options.long_loop;
    t->n_par = (int)below(5);
    t->across = one_in(3);
    t->n_loop = long_loop ? 1 + (int)below(2) : (int)below(4);
    int64_t points = 1, most = t->options.most_points ? t->options.most_points : MOST_POINTS;
    if (long_loop) most = one_in(2) ? 2 : 8; /* rows: threads share the loop where there are hardly any */
    for (int i = 0; i < axes_of(t); i++) {
        if (long_loop && i == t->n_par) {
            points = 1;
            most = 90000;
        }
        int64_t extent = long_loop && i >= t->n_par ? (i == t->n_par ? 120 : 350) + below(250) : random_extent();
        if (long_loop && i == t->n_par && t->n_loop == 1) extent = 33000 + below(40000);
        if (long_loop && i < t->n_par && one_in(3)) extent = 4;
        if (t->across && i == t->n_par - 1 && !long_loop && one_in(2)) extent = 5 + below(300);
        while (points * extent > most && extent > 1)
            extent = extent / 2;
        t->extent[i] = extent;
        points *= tn_max64(extent, 1);
    }
}

static int64_t extent_of_items(const kir_random *t) {
    static const int64_t of_one[] = {1, 7, 32, 64, 64, 100, 128}, of_several[] = {1, 2, 3, 4, 5};
    return t->n_items == 1 ? of_one[below((int64_t)TN_COUNT(of_one))]
                           : of_several[below((int64_t)TN_COUNT(of_several))];
}

static void random_group_axes(kir_random *t) {
    int outer = (int)below(3);
    t->n_items = 1 + (int)below(3);
    t->n_par = outer + t->n_items;
    t->n_loop = (int)below(4);
    for (int k = 0; k < axes_of(t); k++) {
        bool item = k >= outer && k < t->n_par;
        t->extent[k] = item ? extent_of_items(t) : one_in(20) ? 0 : 1 + below(k < outer ? 4 : 5);
    }
}

static int64_t items_of(const kir_random *t) {
    int64_t items = 1;
    for (int k = t->n_par - t->n_items; k < t->n_par; k++)
        items *= t->extent[k];
    return items;
}

/* An area big enough for the access, whose offset is chosen so that it lies inside. Returns the buffer's number. */
static int add_area(kir_random *t, tn_dtype dtype, const kir_aff *index, int axes, int64_t more) {
    if (!has_room(t, 1)) return -1;
    int64_t low = index->c, high = index->c + more;
    for (int k = 0; k < axes; k++) {
        int64_t reach = (tn_max64(t->extent[k], 1) - 1) * index->s[k];
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    kir_random_area *a = &t->areas[t->n_areas++];
    *a = (kir_random_area){.dtype = dtype, .first = -low, .elements = high - low + 1};
    a->at = t->bytes;
    t->bytes += ((size_t)a->elements * tn_dtype_size(dtype) + 63 + (size_t)below(3)) / 64 * 64;
    return kir_buffer(t->b, dtype);
}

/* Strides that give each point of the axes an element of its own: any order of axes, any
 * direction, with gaps or none. */
static kir_aff apart(const kir_random *t, int axes) {
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
static kir_aff anywhere(const kir_random *t, int axes) {
    kir_aff index = apart(t, axes);
    for (int k = 0; k < axes; k++) {
        if (one_in(5)) index.s[k] = 0;
        if (one_in(25)) index.s[k] = below(5) - 2;
    }
    return index;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static kir_val random_mask(kir_random *t) {
    if (!one_in(5)) return KIR_NONE;
    int axes = visible_axes(t);
    if (t->options.simple && t->n_loop > 0 && t->open_axes == 0) return KIR_NONE;
    if (axes == 0 || t->options.narrow || one_in(3)) return pick(t, KIR_BOOL);
    kir_aff index = kir_aff_const(0);
    int axis = (int)below(axes);
    index.s[axis] = 1;
    kir_val at = kir_index(t->b, &index);
    kir_val limit = kir_const_i(t->b, KIR_I64, below(t->extent[axis] + 2));
    return one_in(2) ? kir_binary(t->b, KIR_LT, at, limit) : kir_binary(t->b, KIR_LE, limit, at);
}

static void add_load(kir_random *t) {
    tn_dtype dtype = one_in(3) ? random_dtype(t) : TN_F32;
    kir_aff index = anywhere(t, visible_axes(t));
    kir_val mask = random_mask(t);
    int buffer = -1;
    if (!t->options.simple && one_in(5)) { /* a gather by an index that was loaded */
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

static bool is_float(kir_type t) { return t == KIR_F32 || t == KIR_F64; }

static void add_unary(kir_random *t) {
    static const kir_op of_floats[] = {KIR_NEG, KIR_ABS, KIR_SQRT, KIR_EXP, KIR_LOG,
                                       KIR_SIN, KIR_COS, KIR_TANH, KIR_ERF};
    kir_type type = random_type(t);
    if (type == KIR_BOOL) type = KIR_F32;
    kir_val v = need(t, type);
    if (is_float(type) && one_in(6)) {
        keep(t, kir_rounding(t->b, (kir_round)below(4), v));
        return;
    }
    kir_op op = of_floats[below(is_float(type) ? (int64_t)TN_COUNT(of_floats) : 2)];
    if (t->options.simple && (op == KIR_SIN || op == KIR_COS)) op = KIR_EXP;
    if (t->options.simple && type == KIR_F64 && op > KIR_SQRT) op = KIR_SQRT;
    keep(t, kir_unary(t->b, op, v));
}

static void add_binary(kir_random *t) {
    static const kir_op of_floats[] = {KIR_ADD, KIR_SUB, KIR_MUL, KIR_ADD, KIR_SUB,
                                       KIR_MUL, KIR_DIV, KIR_MIN, KIR_MAX, KIR_MOD};
    static const kir_op of_ints[] = {KIR_ADD, KIR_SUB, KIR_MUL, KIR_SHL, KIR_SHR, KIR_MIN, /* divisions last */
                                     KIR_MAX, KIR_AND, KIR_OR,  KIR_XOR, KIR_DIV, KIR_MOD};
    static const kir_op of_bools[] = {KIR_MIN, KIR_MAX, KIR_AND, KIR_OR, KIR_XOR};
    kir_type type = random_type(t);
    kir_val a = need(t, type), b = need(t, type);
    if (one_in(4))
        keep(t, kir_binary(t->b, (kir_op)(KIR_EQ + below(3)), a, b));
    else if (type == KIR_BOOL)
        keep(t, kir_binary(t->b, of_bools[below((int64_t)TN_COUNT(of_bools))], a, b));
    else if (is_float(type))
        keep(t, kir_binary(t->b, of_floats[below((int64_t)TN_COUNT(of_floats) - t->options.simple)], a, b));
    else
        keep(t, kir_binary(t->b, of_ints[below((int64_t)TN_COUNT(of_ints) - (t->options.simple ? 2 : 0))], a, b));
}

static void add_ternary(kir_random *t) {
    kir_type type = random_type(t);
    if (is_float(type) && one_in(2))
        keep(t, kir_fma(t->b, need(t, type), need(t, type), need(t, type)));
    else
        keep(t, kir_select(t->b, need(t, KIR_BOOL), need(t, type), need(t, type)));
}

static void add_choice(kir_random *t) {
    kir_val a = need(t, KIR_F32), b = need(t, KIR_F32), yes = need(t, KIR_F32), no = need(t, KIR_F32);
    keep(t, kir_select(t->b, kir_binary(t->b, (kir_op)(KIR_EQ + below(3)), a, b), yes, no));
}

/* Every point has an element of its own, in the order of a permutation. */
static void add_scatter(kir_random *t) {
    if (t->options.simple || !has_room(t, 3)) return;
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
static void add_cast(kir_random *t) {
    kir_val v = need(t, random_type(t));
    kir_type from = kir_val_type(t->b, v);
    if (t->options.simple && (is_float(from) || from == KIR_U32 || from == KIR_U64)) { /* the conversions there are */
        keep(t, kir_cast(t->b, from == KIR_F32 && one_in(2) ? KIR_I32 : KIR_BOOL, v));
        return;
    }
    if (!one_in(3))
        keep(t, kir_cast(t->b, random_type(t), v));
    else if (from == KIR_I32 || from == KIR_U32)
        keep(t, kir_bitcast(t->b, one_in(2) ? KIR_F32 : from == KIR_I32 ? KIR_U32 : KIR_I32, v));
    else if (from == KIR_I64 || from == KIR_U64)
        keep(t, kir_bitcast(t->b, one_in(2) && !t->options.no_f64 ? KIR_F64 : from == KIR_I64 ? KIR_U64 : KIR_I64, v));
}

static void add_index(kir_random *t) {
    if (t->options.narrow) return;
    kir_aff index = anywhere(t, visible_axes(t));
    if (!t->options.simple && one_in(4)) index.dyn = need(t, KIR_I64);
    keep(t, kir_index(t->b, &index));
}

static void add_philox(kir_random *t) {
    if (!t->options.simple) keep(t, kir_philox(t->b, need(t, KIR_U64), need(t, KIR_U64)));
}

static void add_store(kir_random *t) {
    if (t->n_values == 0 || !has_room(t, 2)) return;
    kir_val v = t->values[t->n_values - 1 - below(tn_min64(t->n_values, 5))];
    static const tn_dtype wide[KIR_TYPE_COUNT] = {TN_F32, TN_F64, TN_I32, TN_I64, TN_U32, TN_U64, TN_BOOL};
    tn_dtype dtype = one_in(4) ? random_dtype(t) : wide[kir_val_type(t->b, v)];
    if (t->options.simple && kir_type_of(dtype) != kir_val_type(t->b, v)) dtype = wide[kir_val_type(t->b, v)];
    kir_aff index = apart(t, visible_axes(t));
    int buffer = add_area(t, dtype, &index, visible_axes(t), 0);
    kir_store(t->b, buffer, &index, v, random_mask(t));
}

/* The store's memory is that of a load at the same index, under the same or another number. */
static void add_in_place(kir_random *t) {
    if (!has_room(t, 3)) return;
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

/* A new variable, one's value, or a new value for it from the old one. */
static void add_variable(kir_random *t) {
    if (t->n_vars == 0 || (one_in(4) && t->n_vars < KIR_RANDOM_VARS)) {
        t->vars[t->n_vars++] = kir_var(t->b, need(t, random_type(t)));
        return;
    }
    kir_val var = t->vars[below(t->n_vars)];
    kir_type type = kir_val_type(t->b, var);
    if (one_in(2)) keep(t, kir_get(t->b, var));
    kir_val now = kir_get(t->b, var), other = need(t, type);
    kir_set(t->b, var, kir_binary(t->b, type == KIR_BOOL ? KIR_XOR : KIR_ADD, now, other));
}

static void add_something(kir_random *t) {
    if (t->options.variables && one_in(5)) {
        add_variable(t);
        return;
    }
    typedef void maker(kir_random *);
    static maker *const makers[] = {add_load,   add_load,     add_unary,   add_unary,  add_binary, add_binary,
                                    add_binary, add_binary,   add_ternary, add_cast,   add_index,  add_philox,
                                    add_store,  add_in_place, add_choice,  add_scatter};
    makers[below((int64_t)TN_COUNT(makers))](t);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static void add_reduction(kir_random *t, kir_val *results, int *n_results, bool plain) {
    static const kir_reduce any[] = {KIR_SUM,    KIR_SUM,    KIR_RMAX,  KIR_RMIN, KIR_PROD,
                                     KIR_ARGMAX, KIR_ARGMIN, KIR_CHAIN, KIR_SEQ};
    kir_type type = random_type(t);
    kir_reduce kind = any[below(t->options.simple ? 5 : plain ? 7 : (int64_t)TN_COUNT(any))];
    if (t->options.simple && type == KIR_BOOL) type = KIR_F32;
    bool takes_bool = kind == KIR_RMAX || kind == KIR_RMIN || kind == KIR_ARGMAX || kind == KIR_ARGMIN;
    if (type == KIR_BOOL && !takes_bool) type = KIR_F32;
    kir_val v = need(t, type);
    results[(*n_results)++] = kir_reduce_value(t->b, kind, v, kind == KIR_CHAIN ? need(t, type) : KIR_NONE);
}

static void add_scan(kir_random *t) {
    kir_type type = random_type(t);
    kir_reduce kind = (kir_reduce)below(4);
    if (type == KIR_BOOL && kind < KIR_RMAX) kind = KIR_RMAX;
    keep(t, kir_scan(t->b, kind, need(t, type)));
}

static void add_loop(kir_random *t, bool plain) {
    kir_val results[8];
    int n_results = 0, values = t->n_values, vars = t->n_vars;
    t->open_axes = t->n_loop;
    kir_loop(t->b, t->n_par, t->n_loop);
    add_load(t);
    for (int i = (int)below(9); i > 0; i--) {
        add_something(t);
        if (one_in(4) && n_results < 4) add_reduction(t, results, &n_results, plain);
        if (!plain && !t->options.simple && one_in(10)) add_scan(t);
    }
    if (n_results == 0 || one_in(3)) add_reduction(t, results, &n_results, plain);
    if (one_in(2)) add_store(t);
    kir_end(t->b);
    t->open_axes = 0;
    t->n_values = values;
    t->n_vars = vars;
    for (int i = 0; i < n_results; i++)
        keep(t, results[i]);
}

static void make_plain(kir_random *t) {
    int loops = t->n_loop > 0 ? 1 + (int)below(3) : 0;
    bool long_loop = t->options.long_loop;
    add_load(t);
    for (int k = 0; k <= loops; k++) {
        for (int i = (int)below(loops ? 4 : 14); i > 0; i--)
            add_something(t);
        if (k < loops) add_loop(t, t->options.no_chains || (long_loop && !one_in(4)));
    }
}

/* ---- workgroups -------------------------------------------------------------------------------------------------- */

static void barrier(kir_random *t) {
    kir_barrier(t->b);
    for (int i = 0; i < t->n_shared; i++)
        t->shared[i].written = t->shared[i].read = false;
}

/* An element for each item, 0 … items-1, in some order. */
static kir_aff spread(const kir_random *t) {
    kir_aff index = kir_aff_const(0);
    int first = t->n_par - t->n_items, turn = (int)below(t->n_items);
    int64_t stride = 1;
    for (int k = t->n_items - 1; k >= 0; k--) {
        int axis = first + (k + turn) % t->n_items;
        bool back = one_in(3);
        index.s[axis] = back ? -stride : stride;
        if (back) index.c += stride * (t->extent[axis] - 1);
        stride *= t->extent[axis];
    }
    return index;
}

static kir_aff sum_of(kir_aff a, const kir_aff *b) {
    a.c += b->c;
    for (int k = 0; k < KIR_MAX_AXES; k++)
        a.s[k] += b->s[k];
    return a;
}

/* A local array, or as much global memory for each workgroup. */
static void add_shared(kir_random *t) {
    if (!has_room(t, 1) || t->n_shared == KIR_RANDOM_SHARED) return;
    kir_random_shared *s = &t->shared[t->n_shared];
    tn_dtype dtype = one_in(2) ? random_dtype(t) : TN_F32;
    *s = (kir_random_shared){.blocks = 1 + (int)below(3), .base = kir_aff_const(0)};
    int64_t elements = s->blocks * items_of(t);
    if (one_in(4)) {
        int64_t stride = elements;
        for (int k = t->n_par - t->n_items - 1; k >= 0; k--) {
            s->base.s[k] = stride;
            stride *= tn_max64(t->extent[k], 1);
        }
        s->buffer = add_area(t, dtype, &s->base, t->n_par - t->n_items, elements - 1);
        s->defined = true;
    } else {
        t->areas[t->n_areas++] = (kir_random_area){.dtype = dtype};
        s->buffer = kir_local(t->b, dtype, elements);
    }
    t->n_shared++;
}

/* Each item stores to elements of its own, all of them together to the whole array. */
static void store_shared(kir_random *t, kir_random_shared *s) {
    if (s->read || (s->written && one_in(2))) barrier(t);
    kir_aff own = spread(t);
    if (!s->written) s->mine = sum_of(s->base, &own);
    for (int block = 0; block < s->blocks; block++) {
        kir_aff index = s->mine;
        index.c += block * items_of(t);
        kir_val v = t->values[below(t->n_values)];
        kir_store(t->b, s->buffer, &index, v, s->defined ? random_mask(t) : KIR_NONE);
    }
    s->defined = s->written = true;
}

/* The item's own element again, or any behind a barrier. */
static void load_shared(kir_random *t, kir_random_shared *s) {
    int64_t elements = s->blocks * items_of(t);
    if (s->written && one_in(3)) {
        kir_aff index = s->mine;
        index.c += below(s->blocks) * items_of(t);
        keep(t, kir_load(t->b, s->buffer, &index, random_mask(t)));
        return;
    }
    if (!s->defined) store_shared(t, s);
    if (s->written) barrier(t);
    kir_aff index = s->base;
    if (one_in(4)) {
        index.c += below(elements);
    } else if (one_in(3)) {
        kir_val n = kir_const_i(t->b, KIR_I64, elements), at = kir_binary(t->b, KIR_MOD, need(t, KIR_I64), n);
        index.dyn = kir_binary(t->b, KIR_MOD, kir_binary(t->b, KIR_ADD, at, n), n);
    } else {
        kir_aff other = spread(t);
        index = sum_of(index, &other);
        index.c += below(s->blocks) * items_of(t);
    }
    keep(t, kir_load(t->b, s->buffer, &index, random_mask(t)));
    s->read = true;
    if (one_in(2)) add_store(t); /* so that it is of use */
}

static void add_of_group(kir_random *t) {
    if (t->n_shared == 0 || !t->shares || one_in(2)) {
        add_something(t);
        return;
    }
    kir_random_shared *s = &t->shared[below(t->n_shared)];
    (one_in(2) ? store_shared : load_shared)(t, s);
    if (one_in(8)) barrier(t);
}

/* A number of points that all items of a workgroup share; often more or fewer than there are. */
static kir_val random_end(kir_random *t) {
    kir_aff end = kir_aff_const(below(7) - 1);
    for (int k = 0; k < t->n_par - t->n_items; k++)
        end.s[k] = below(3) - 1;
    kir_val turns = kir_index(t->b, &end);
    return one_in(4) ? kir_binary(t->b, KIR_SHR, kir_scalar_value(t->b, KIR_I64, 0), turns) : turns;
}

/* Where a loop uses what is shared, a barrier at its begin parts its turns, and one behind it the last of them. */
static void add_group_loop(kir_random *t) {
    int count = t->n_loop - t->open_axes;
    if (count == 0) return;
    count = 1 + (int)below(count);
    kir_val end = one_in(3) ? random_end(t) : KIR_NONE, results[8];
    int n_results = 0, values = t->n_values, vars = t->n_vars;
    bool shared_before = t->shares, defined[KIR_RANDOM_SHARED];
    for (int i = 0; i < t->n_shared; i++)
        defined[i] = t->shared[i].defined;
    t->shares = t->shares && !one_in(3);
    bool shares = t->shares;
    if (end != KIR_NONE) {
        count = 1;
        kir_loop_until(t->b, t->n_par + t->open_axes, end);
    } else {
        kir_loop(t->b, t->n_par + t->open_axes, count);
    }
    t->open_axes += count;
    if (shares) barrier(t);
    for (int i = 1 + (int)below(6); i > 0; i--) {
        add_of_group(t);
        if (end == KIR_NONE && one_in(4) && n_results < 4) add_reduction(t, results, &n_results, false);
        if (end == KIR_NONE && one_in(10)) add_scan(t);
        if (one_in(5)) add_group_loop(t);
    }
    kir_end(t->b);
    if (shares) barrier(t);
    t->open_axes -= count;
    t->shares = shared_before;
    t->n_values = values;
    t->n_vars = vars;
    for (int i = 0; i < t->n_shared; i++)
        t->shared[i].defined = defined[i];
    for (int i = 0; i < n_results; i++)
        keep(t, results[i]);
}

static void make_group(kir_random *t) {
    for (int i = (int)below(KIR_RANDOM_SHARED); i >= 0; i--)
        add_shared(t);
    t->shares = true;
    add_load(t);
    add_index(t);
    for (int i = 3 + (int)below(10); i > 0; i--) {
        add_of_group(t);
        if (one_in(4)) add_group_loop(t);
    }
    if (t->n_shared > 0) load_shared(t, &t->shared[0]);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

void kir_random_make(kir_random *t, uint64_t seed, const kir_random_options *options) {
    random_state = seed * 1000003;
    *t = (kir_random){.options = *options};
    if (options->group)
        random_group_axes(t);
    else
        random_axes(t);
    assert_ok(kir_begin(t->n_par, t->n_loop, t->extent, &t->b));
    if (options->group) kir_group(t->b, t->n_items);
    for (int i = 0; i < KIR_RANDOM_RUNTIME_SCALARS; i++)
        t->scalars[i] = (kir_scalar){.i = below(1000)};
    if (options->group)
        make_group(t);
    else
        make_plain(t);
    add_store(t);
    add_store(t);
    assert_ok(kir_finish(t->b, &t->program, &t->sizes));
}

bool kir_random_share_rows(kir_random *t) {
    kir_rows *rows = NULL;
    if (kir_schedule_rows(t->program, &rows) != TN_OK) return false;
    int64_t *sizes = tn_mem_alloc(kir_sizes_count(rows->program) * sizeof *sizes);
    assert_non_null(sizes);
    kir_schedule_sizes(rows, t->sizes, sizes);
    kir_random_free(t);
    t->sizes = sizes;
    t->program = rows->program;
    rows->program = NULL;
    kir_rows_free(rows);
    return true;
}

void kir_random_free(kir_random *t) {
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

/* Any value there is, each exponent as likely as another. */
static void fill_with_bits(char *at, tn_dtype dtype) {
    uint64_t bits = random_bits();
    bits &= dtype == TN_BOOL ? 1 : dtype == TN_F16 ? 0xfbff : dtype == TN_BF16 ? 0xff7f : UINT64_MAX;
    memcpy(at, &bits, tn_dtype_size(dtype));
}

static void fill_element(char *at, tn_dtype dtype, int64_t limit) {
    if (limit < 0 && one_in(2)) {
        fill_with_bits(at, dtype);
        return;
    }
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

char *kir_random_memory(const kir_random *t, uint64_t seed) {
    random_state = seed;
    char *memory = calloc(1, t->bytes + 64);
    assert_non_null(memory);
    for (int i = 0; i < t->n_areas; i++) {
        const kir_random_area *a = &t->areas[i];
        if (a->permutation) shuffle((int64_t *)(void *)(memory + a->at), a->elements);
        for (int64_t e = 0; e < a->elements && !a->permutation; e++)
            fill_element(memory + a->at + (size_t)e * tn_dtype_size(a->dtype), a->dtype, a->limit);
    }
    return memory;
}

void kir_random_buffers(const kir_random *t, char *memory, void **buffers) {
    for (int i = 0; i < t->n_areas; i++) {
        const kir_random_area *a = &t->areas[i];
        buffers[i] = a->elements == 0 ? NULL : memory + a->at + a->first * (int64_t)tn_dtype_size(a->dtype);
    }
}

int64_t *kir_random_smaller(const kir_random *t) {
    size_t bytes = kir_sizes_count(t->program) * sizeof(int64_t);
    int64_t *sizes = malloc(bytes + 1);
    assert_non_null(sizes);
    memcpy(sizes, t->sizes, bytes);
    for (int k = 0; k < axes_of(t); k++) {
        bool item = k < t->n_par && k >= t->n_par - t->n_items;
        if (!item && one_in(2)) sizes[k] = one_in(12) ? 0 : tn_min64(sizes[k], 1 + below(sizes[k] + 1));
    }
    return sizes;
}

void kir_random_print(const kir_random *t, uint64_t seed) {
    tn_str text = {0};
    kir_print(t->program, t->sizes, &text);
    fprintf(stderr, "seed %llu\n%s", (unsigned long long)seed, tn_str_text(&text)); /* longer than print_error takes */
    tn_str_free(&text);
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

/* Elements first … end-1 of an area, one by one: NaNs may differ. */
static bool same_elements(const kir_random *t, int area, int64_t first, int64_t end, const char *const *memory,
                          const char *what) {
    const kir_random_area *a = &t->areas[area];
    size_t size = tn_dtype_size(a->dtype);
    for (int64_t e = first; e < end; e++) {
        const char *x = memory[0] + a->at + (size_t)e * size, *y = memory[1] + a->at + (size_t)e * size;
        if (memcmp(x, y, size) == 0 || (is_nan(x, a->dtype) && is_nan(y, a->dtype))) continue;
        uint64_t u = 0, v = 0;
        memcpy(&u, x, size);
        memcpy(&v, y, size);
        print_error("%s: buffer %d (%s) element %lld: %llx, should be %llx\n", what, area, tn_dtype_name(a->dtype),
                    (long long)(e - a->first), (unsigned long long)v, (unsigned long long)u);
        return false;
    }
    return true;
}

bool kir_random_same(const kir_random *t, const char *want, const char *got, const char *what) {
    enum { STRETCH = 64 };
    const char *const memory[] = {want, got};
    for (int i = 0; i < t->n_areas; i++) {
        const kir_random_area *a = &t->areas[i];
        size_t size = tn_dtype_size(a->dtype);
        for (int64_t e = 0; e < a->elements; e += STRETCH) {
            int64_t end = tn_min64(e + STRETCH, a->elements);
            size_t at = a->at + (size_t)e * size;
            if (memcmp(want + at, got + at, (size_t)(end - e) * size) == 0) continue;
            if (!same_elements(t, i, e, end, memory, what)) return false;
        }
    }
    return true;
}
