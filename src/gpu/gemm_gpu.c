/* gemm_gpu.c — matrix products by workgroups: of floats, and with block-quantized weights.
 *
 * A workgroup computes a tile of C. All of its items bring panels of A and B into workgroup memory, and each item
 * multiplies what its own elements of the tile need; these are variables. A few steps of k are unrolled; more would
 * make compilers slow and the product no faster.
 *
 * Chains of KIR_KSUM steps are the definition: after each panel that ends one, its sum is added to those before it.
 * Beyond the end of k A is −0 and B 0: their product −0 does not change any sum. Finished elements pass through
 * workgroup memory, so that the epilogue is in the program once.
 *
 * Convolutions are such products too, with an index of k or of a column divided into its digits. Division would cost
 * more than multiplication: a tile's columns are divided once and kept in workgroup memory; the digits of an item's
 * positions along k are incremented from panel to panel. */
#include <math.h>
#include <stdio.h>

#include "gpu/gpu.h"

/* Items form iy rows of ix; each has tm × tn elements of C. A panel is `depth` deep. depth, the rows iy·tm and the
 * columns ix·tn are divisible by ix and iy, so that items share panels evenly however they are read; tn is at most
 * iy. */
typedef struct tile {
    int iy, ix, tm, tn, depth;
} tile;

/* The rules choose among the first ones, from the largest; few rows of A use the flat one. Found by measurement on a
 * software device; the others are for tuning. The brief one is for devices whose fma is a function of fifty lines. */
enum { LARGE, SMALL, FLAT, BRIEF = 8 };
static const tile tiles[] = {[LARGE] = {16, 16, 4, 4, 16}, [SMALL] = {8, 8, 4, 4, 16}, [FLAT] = {4, 16, 1, 4, 16},
                             {16, 16, 8, 4, 16},           {8, 16, 8, 4, 16},          {8, 8, 8, 8, 16},
                             {16, 16, 4, 4, 32},           {16, 16, 2, 2, 16},         [BRIEF] = {16, 16, 1, 1, 16}};
enum { FLAT_ROWS = 8, MOST_OWN = 64, MOST_PLACES = 4, UNROLLED = 4 };

static int gemm_rows_of(const tile *t) { return t->iy * t->tm; }
static int gemm_columns_of(const tile *t) { return t->ix * t->tn; }

/* A panel's rows are one element further apart in memory, so that items along a column access different banks. */
static int64_t a_row(const tile *t) { return gemm_rows_of(t) + 1; }
static int64_t b_row(const tile *t) { return gemm_columns_of(t) + 1; }
static int64_t local_elements(const tile *t) {
    return t->depth * (a_row(t) + b_row(t)) + (int64_t)gemm_rows_of(t) * gemm_columns_of(t);
}

static bool tile_fits(const tile *t, const tn_gemm_shape *s, const tn_group_limits *limits) {
    int64_t bytes = local_elements(t) * (int64_t)tn_dtype_size(s->local_dtype);
    bytes += (int64_t)gemm_columns_of(t) * s->columns.count * (int64_t)sizeof(int32_t);
    return t->iy * t->ix <= limits->items && bytes <= limits->local_bytes;
}

/* -1: none fits. */
static int tile_by_rule(const tn_gemm_shape *s, const tn_group_limits *limits) {
    if (limits->long_fma && tile_fits(&tiles[BRIEF], s, limits)) return BRIEF;
    if (s->m <= FLAT_ROWS && tile_fits(&tiles[FLAT], s, limits)) return FLAT;
    bool large = s->m > gemm_rows_of(&tiles[LARGE]) / 2 && s->n > gemm_columns_of(&tiles[LARGE]) / 2;
    if (large && tile_fits(&tiles[LARGE], s, limits)) return LARGE;
    if (tile_fits(&tiles[SMALL], s, limits)) return SMALL;
    return tile_fits(&tiles[FLAT], s, limits) ? FLAT : -1;
}

static const tile *choose_tile(const tn_gemm_shape *s, const tn_group_limits *limits) {
    if (tn_gemm_tile_fits(s->tile, s, limits)) return &tiles[s->tile - 1];
    int i = tile_by_rule(s, limits);
    return i < 0 ? NULL : &tiles[i];
}

bool tn_gemm_tile_fits(int number, const tn_gemm_shape *s, const tn_group_limits *limits) {
    return number > 0 && number <= (int)TN_COUNT(tiles) && tile_fits(&tiles[number - 1], s, limits);
}

int tn_gemm_tile_by_rule(const tn_gemm_shape *s, const tn_group_limits *limits) { return tile_by_rule(s, limits) + 1; }

bool tn_gemm_tile_name(int number, char out[TN_TILE_NAME]) {
    if (number < 1 || number > (int)TN_COUNT(tiles)) return false;
    const tile *t = &tiles[number - 1];
    snprintf(out, TN_TILE_NAME, "%dx%dx%d by %dx%d", gemm_rows_of(t), gemm_columns_of(t), t->depth, t->iy, t->ix);
    return true;
}

bool tn_gemm_workgroup_fits(const tn_gemm_shape *s, const tn_group_limits *limits) {
    return s->batch_axes <= TN_WORKGROUP_BATCH_AXES && choose_tile(s, limits) != NULL;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

/* Axes: batches, tiles down, tiles across, item rows, items. Loops: panels, steps in a panel, passes of the items over
 * each operand's panel, and over the rows and the columns of the finished tile. */
typedef struct maker {
    const tn_gemm_shape *s;
    const tn_product_callbacks *callbacks;
    const tile *t;
    kir_builder *kb;
    int down, across, item_row, item, panels, steps, a_passes, b_passes, rows, columns;
    bool a_along_k, b_along_k;
    int a, b, c; /* in workgroup memory: panels, the finished tile */
    int digits;  /* in workgroup memory: of the tile's columns, one row a digit */
    kir_aff batch[TN_WORKGROUP_BATCH_AXES];
    kir_val sum[MOST_OWN], total[MOST_OWN]; /* variables: the chain that runs, and those that are closed */
} maker;

static kir_val zero(const maker *m) { return kir_const(m->kb, m->s->type, 0); }

static bool gemm_is_float(const maker *m) { return m->s->type == KIR_F32 || m->s->type == KIR_F64; }

/* ---- digits ------------------------------------------------------------------------------------------------------ */

/* The digits of a number, by division: in 32 bits, which is several times quicker. */
static void divide_gemm(const maker *m, const tn_digits *d, const kir_aff *number, kir_val *digit) {
    kir_val rest = kir_cast(m->kb, KIR_I32, kir_index(m->kb, number));
    for (int i = d->count - 1; i > 0; i--) {
        kir_val extent = kir_cast(m->kb, KIR_I32, tn_launch_size(m->kb, d->extent[i]));
        digit[i] = kir_mod(m->kb, rest, extent);
        rest = kir_div(m->kb, rest, extent);
    }
    digit[0] = rest;
}

/* Counts `by` on: each digit is at most one carry away. */
static void count_on(const maker *m, const tn_digits *d, int64_t by, kir_val *digit) {
    kir_val carry = KIR_NONE;
    for (int i = d->count - 1; i >= 0; i--) {
        int64_t step = i > 0 ? by % d->extent[i] : by;
        digit[i] = kir_add(m->kb, digit[i], tn_launch_size(m->kb, step));
        if (carry != KIR_NONE) digit[i] = kir_add(m->kb, digit[i], carry);
        if (i == 0) return;
        kir_val extent = tn_launch_size(m->kb, d->extent[i]), over = kir_le(m->kb, extent, digit[i]);
        carry = kir_cast(m->kb, KIR_I64, over);
        digit[i] = kir_select(m->kb, over, kir_sub(m->kb, digit[i], extent), digit[i]);
        by /= d->extent[i];
    }
}

/* Each item divides one column index; there are at least as many items. */
static void divide_columns(const maker *m) {
    const tile *t = m->t;
    kir_aff column = tn_along(m->across, gemm_columns_of(t)), to = tn_along(m->item, 1), row = tn_along(m->item_row, 1);
    kir_val digit[TN_WORKGROUP_DIGITS], one = kir_lt(m->kb, kir_index(m->kb, &row), kir_whole(m->kb, t->tn));
    to.s[m->item_row] = t->ix;
    column.s[m->item] = 1;
    column.s[m->item_row] = t->ix;
    divide_gemm(m, &m->s->columns, &column, digit);
    for (int i = 0; i < m->s->columns.count; i++, to.c += gemm_columns_of(t))
        kir_store(m->kb, m->digits, &to, digit[i], one);
    kir_barrier(m->kb);
}

/* Column `local` of the tile, as digits if it has any. */
static void column_at(const maker *m, const kir_aff *column, kir_aff local, kir_aff *out) {
    *out = *column;
    for (int i = 0; i < m->s->columns.count; i++, local.c += gemm_columns_of(m->t))
        out[i] = kir_aff_value(kir_cast(m->kb, KIR_I64, kir_load(m->kb, m->digits, &local, KIR_NONE)));
}

/* ---- filling panels ---------------------------------------------------------------------------------------------- */

/* One operand's part in a panel: `row` is the distance between neighbours along k; `bound` is its extent across k. */
typedef struct panel {
    bool is_a, along_k;
    int local, passes;
    int64_t row, bound;
    kir_aff first; /* of the tile, across k */
    const tn_digits *k;
    kir_val digit[MOST_PLACES][TN_WORKGROUP_DIGITS]; /* variables: of the item's places along k */
} panel;

/* Distance of an item's positions along k. */
static int k_step(const maker *m, const panel *p) { return p->along_k ? m->t->ix : m->t->iy; }

/* Items are along memory by their own index, across by that of their row. */
static int k_axis(const maker *m, const panel *p) { return p->along_k ? m->item : m->item_row; }

static kir_aff place_along_k(const maker *m, const panel *p, int place) {
    kir_aff k = tn_along(k_axis(m, p), 1);
    k.c = place * k_step(m, p);
    return k;
}

static void begin_digits(const maker *m, panel *p) {
    for (int place = 0; p->k->count > 0 && place * k_step(m, p) < m->t->depth; place++) {
        kir_aff k = place_along_k(m, p, place);
        divide_gemm(m, p->k, &k, p->digit[place]);
        for (int i = 0; i < p->k->count; i++)
            p->digit[place][i] = kir_var(m->kb, kir_cast(m->kb, KIR_I64, p->digit[place][i]));
    }
}

static void count_on_to_next_panel(const maker *m, const panel *p) {
    for (int place = 0; p->k->count > 0 && place * k_step(m, p) < m->t->depth; place++) {
        kir_val digit[TN_WORKGROUP_DIGITS];
        for (int i = 0; i < p->k->count; i++)
            digit[i] = kir_get(m->kb, p->digit[place][i]);
        count_on(m, p->k, m->t->depth, digit);
        for (int i = 0; i < p->k->count; i++)
            kir_set(m->kb, p->digit[place][i], digit[i]);
    }
}

static kir_val load_operand(const maker *m, const panel *p, int place, const kir_aff *k, const kir_aff *w,
                            const kir_aff *local, kir_val mask) {
    kir_aff at[TN_WORKGROUP_DIGITS] = {*k}, column[TN_WORKGROUP_DIGITS];
    for (int i = 0; i < p->k->count; i++)
        at[i] = kir_aff_value(kir_get(m->kb, p->digit[place][i]));
    if (p->is_a) return m->callbacks->load_a(m->callbacks->context, m->batch, w, at, mask);
    column_at(m, w, *local, column);
    return m->callbacks->load_b(m->callbacks->context, m->batch, at, column, mask);
}

static void fill_element(const maker *m, const panel *p, int place) {
    int w_axis = p->along_k ? m->item_row : m->item, w_step = p->along_k ? m->t->iy : m->t->ix;
    kir_aff k = place_along_k(m, p, place), local = tn_along(w_axis, 1), w = p->first, to;
    k.s[m->panels] = m->t->depth;
    local.s[p->passes] = w_step;
    w.s[w_axis] = 1;
    w.s[p->passes] = w_step;
    to = local;
    to.c = k.c * p->row;
    to.s[k_axis(m, p)] = p->row;
    kir_val depth = tn_inside(m->kb, &k, m->s->k), mask = kir_and(m->kb, tn_inside(m->kb, &w, p->bound), depth);
    kir_val v = load_operand(m, p, place, &k, &w, &local, mask);
    if (p->is_a && gemm_is_float(m)) v = kir_select(m->kb, depth, v, kir_const(m->kb, m->s->type, -0.0));
    kir_store(m->kb, p->local, &to, v, KIR_NONE);
}

static void fill_panel(const maker *m, const panel *p) {
    kir_loop(m->kb, p->passes, 1);
    for (int place = 0; place * k_step(m, p) < m->t->depth; place++)
        fill_element(m, p, place);
    kir_end(m->kb);
    count_on_to_next_panel(m, p);
}

static int passes_of(const tile *t, int width, bool along_k) { return width / (along_k ? t->iy : t->ix); }

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

static kir_val multiply_add(const maker *m, kir_val a, kir_val b, kir_val c) {
    if (gemm_is_float(m)) return kir_fma(m->kb, a, b, c);
    return kir_add(m->kb, c, kir_mul(m->kb, a, b));
}

/* Rows of an item are contiguous; its columns are ix apart, so that neighbouring items access neighbouring elements. */
static void multiply_step(const maker *m, int k, kir_val *sum) {
    const tile *t = m->t;
    kir_val b[MOST_OWN];
    for (int j = 0; j < t->tn; j++) {
        kir_aff at = tn_along(m->item, 1);
        at.c = k * b_row(t) + j * t->ix;
        at.s[m->steps] = UNROLLED * b_row(t);
        b[j] = kir_load(m->kb, m->b, &at, KIR_NONE);
    }
    for (int i = 0; i < t->tm; i++) {
        kir_aff at = tn_along(m->item_row, t->tm);
        at.c = k * a_row(t) + i;
        at.s[m->steps] = UNROLLED * a_row(t);
        kir_val a = kir_load(m->kb, m->a, &at, KIR_NONE);
        for (int j = 0; j < t->tn; j++)
            sum[i * t->tn + j] = multiply_add(m, a, b[j], sum[i * t->tn + j]);
    }
}

static void multiply_panels(const maker *m) {
    kir_val sum[MOST_OWN];
    int own = m->t->tm * m->t->tn;
    kir_loop(m->kb, m->steps, 1);
    for (int e = 0; e < own; e++)
        sum[e] = kir_get(m->kb, m->sum[e]);
    for (int k = 0; k < UNROLLED; k++)
        multiply_step(m, k, sum);
    for (int e = 0; e < own; e++)
        kir_set(m->kb, m->sum[e], sum[e]);
    kir_end(m->kb);
}

/* After the last panel of a chain its sum is added to the others; the first chain's is copied. */
static void close_chain(const maker *m) {
    kir_builder *kb = m->kb;
    kir_aff number = tn_along(m->panels, 1), left = tn_along(m->panels, m->t->depth);
    left.c = m->t->depth - m->s->k;
    kir_val place = kir_index(kb, &number), zero_i = kir_whole(kb, 0);
    kir_val mask = kir_whole(kb, KIR_KSUM / m->t->depth - 1);
    kir_val full = kir_eq(kb, kir_and(kb, place, mask), mask);
    kir_val ends = kir_or(kb, full, kir_le(kb, zero_i, kir_index(kb, &left)));
    kir_val first = kir_lt(kb, place, kir_whole(kb, KIR_KSUM / m->t->depth));
    for (int e = 0; e < m->t->tm * m->t->tn; e++) {
        kir_val sum = kir_get(kb, m->sum[e]), total = kir_get(kb, m->total[e]);
        kir_val more = kir_select(kb, first, sum, kir_add(kb, total, sum));
        kir_set(kb, m->total[e], kir_select(kb, ends, more, total));
        kir_set(kb, m->sum[e], kir_select(kb, ends, zero(m), sum));
    }
}

static void do_panels(const maker *m) {
    const tile *t = m->t;
    panel a = {.is_a = true,
               .along_k = m->a_along_k,
               .local = m->a,
               .passes = m->a_passes,
               .row = a_row(t),
               .bound = m->s->m,
               .first = tn_along(m->down, gemm_rows_of(t)),
               .k = &m->s->a_k};
    panel b = {.along_k = m->b_along_k,
               .local = m->b,
               .passes = m->b_passes,
               .row = b_row(t),
               .bound = m->s->n,
               .first = tn_along(m->across, gemm_columns_of(t)),
               .k = &m->s->b_k};
    begin_digits(m, &a);
    begin_digits(m, &b);
    kir_loop(m->kb, m->panels, 1);
    fill_panel(m, &a);
    fill_panel(m, &b);
    kir_barrier(m->kb);
    multiply_panels(m);
    close_chain(m);
    kir_barrier(m->kb);
    kir_end(m->kb);
}

/* ---- the finished tile ------------------------------------------------------------------------------------------- */

static void store_tile(const maker *m) {
    const tile *t = m->t;
    for (int e = 0; e < t->tm * t->tn; e++) {
        kir_aff to = tn_along(m->item_row, (int64_t)t->tm * gemm_columns_of(t));
        to.s[m->item] = 1;
        to.c = (int64_t)(e / t->tn) * gemm_columns_of(t) + (int64_t)(e % t->tn) * t->ix;
        kir_store(m->kb, m->c, &to, kir_get(m->kb, m->total[e]), KIR_NONE);
    }
    kir_barrier(m->kb);
    kir_loop(m->kb, m->rows, 1);
    kir_loop(m->kb, m->columns, 1);
    kir_aff row = tn_along(m->item_row, 1), column = tn_along(m->item, 1), from, local, at[TN_WORKGROUP_DIGITS];
    row.s[m->rows] = t->iy;
    column.s[m->columns] = t->ix;
    from = local = column;
    from.s[m->item_row] = gemm_columns_of(t);
    from.s[m->rows] = (int64_t)t->iy * gemm_columns_of(t);
    row.s[m->down] = gemm_rows_of(t);
    column.s[m->across] = gemm_columns_of(t);
    kir_val v = kir_load(m->kb, m->c, &from, KIR_NONE);
    kir_val mask = kir_and(m->kb, tn_inside(m->kb, &row, m->s->m), tn_inside(m->kb, &column, m->s->n));
    column_at(m, &column, local, at);
    m->callbacks->store(m->callbacks->context, m->batch, &row, at, v, mask);
    kir_end(m->kb);
    kir_end(m->kb);
}

static void append_gemm(maker *m) {
    const tile *t = m->t;
    m->callbacks->begin(m->callbacks->context, m->kb);
    m->a = kir_local(m->kb, m->s->local_dtype, t->depth * a_row(t));
    m->b = kir_local(m->kb, m->s->local_dtype, t->depth * b_row(t));
    m->c = kir_local(m->kb, m->s->local_dtype, (int64_t)gemm_rows_of(t) * gemm_columns_of(t));
    if (m->s->columns.count > 0) {
        m->digits = kir_local(m->kb, TN_I32, (int64_t)m->s->columns.count * gemm_columns_of(t));
        divide_columns(m);
    }
    for (int e = 0; e < t->tm * t->tn; e++) {
        m->sum[e] = kir_var(m->kb, zero(m));
        m->total[e] = kir_var(m->kb, zero(m));
    }
    do_panels(m);
    store_tile(m);
}

/* A loop axis of this extent: `like`, if it has the same extent and is not in a loop around it. */
static int loop_axis(int64_t *extents, int *axis, int like, int64_t extent) {
    if (like >= 0 && extents[like] == extent) return like;
    extents[*axis] = extent;
    return (*axis)++;
}

static tn_status make_gemm(maker *m, tn_workgroup_program *out) {
    const tn_gemm_shape *s = m->s;
    const tile *t = m->t;
    int64_t extents[KIR_MAX_AXES] = {0};
    int axis = 0;
    for (int d = 0; d < s->batch_axes; d++) {
        m->batch[d] = tn_along(axis, 1);
        extents[axis++] = s->batch[d];
    }
    extents[m->down = axis++] = tn_ceil_div(s->m, gemm_rows_of(t));
    extents[m->across = axis++] = tn_ceil_div(s->n, gemm_columns_of(t));
    extents[m->item_row = axis++] = t->iy;
    extents[m->item = axis++] = t->ix;
    int n_par = axis;
    /* a panel that is too narrow for items to go across k is filled along it */
    m->a_along_k = s->a_along_k || gemm_rows_of(t) % t->ix != 0;
    m->b_along_k = s->b_along_k;
    m->panels = loop_axis(extents, &axis, -1, tn_ceil_div(s->k, t->depth));
    m->steps = loop_axis(extents, &axis, -1, t->depth / UNROLLED);
    m->a_passes = loop_axis(extents, &axis, -1, passes_of(t, gemm_rows_of(t), m->a_along_k));
    m->b_passes = loop_axis(extents, &axis, -1, passes_of(t, gemm_columns_of(t), m->b_along_k));
    m->rows = loop_axis(extents, &axis, m->a_passes, t->tm);
    m->columns = loop_axis(extents, &axis, m->b_passes, t->tn);
    TRY(kir_begin(n_par, axis - n_par, extents, &m->kb));
    kir_group(m->kb, 2);
    append_gemm(m);
    return kir_finish(m->kb, &out->program, &out->sizes);
}

tn_status tn_gemm_workgroup(const tn_gemm_shape *s, const tn_group_limits *limits,
                            const tn_product_callbacks *callbacks, tn_workgroup_program *out) {
    maker m = {.s = s, .callbacks = callbacks, .t = choose_tile(s, limits)};
    if (m.t) return make_gemm(&m, out);
    return tn_fail(TN_ERR_UNSUPPORTED, "matmul: no tile fits workgroups of %lld items", (long long)limits->items);
}

/* ==== weights in blocks =========================================================================================== */
/* A workgroup of 64 items computes 64 columns of some rows, one block of 32 at a time. Together the items unpack the
 * weights' bits to small integers and round x to eight bits; then each item multiplies for its own column, in integers,
 * and adds the block's result to its sums in the order that cpu_kernels.h defines. */

/* Items form 4 rows of 16: 16 are along a block, which has two such runs. */
enum { IY = 4, IX = 16, COLUMNS = IY * IX, BLOCK = 32, RUNS = BLOCK / IX, MOST_ROWS = 16, ROW = BLOCK + 1 };

/* Rows of x that a workgroup computes: few where there are few. */
static int rows_for(int64_t m) { return m == 1 ? 1 : m <= 4 ? 4 : MOST_ROWS; }

/* Rows that are loaded and rounded: the items' rows come four at a time. */
static int rounded_rows(int rows) { return (rows + IY - 1) / IY * IY; }

static int64_t local_bytes(const tn_qmat_shape *s) {
    int64_t rows = rounded_rows(rows_for(s->m));
    return rows * BLOCK * 4 + rows * BLOCK + rows * 4 + COLUMNS * ROW + 2 * s->parts * COLUMNS * 4;
}

bool tn_qmat_workgroup_fits(const tn_qmat_shape *s, const tn_group_limits *limits) {
    return limits->items >= COLUMNS && limits->local_bytes >= local_bytes(s);
}

typedef struct qmat_maker {
    const tn_qmat_shape *s;
    const tn_qmat_callbacks *callbacks;
    kir_builder *kb;
    int rows;
    int down, across, item_row, item, blocks, passes; /* axes */
    int x, q, step, u, scale, minimum;                /* workgroup memory */
    bool has_minimum;
    kir_val sum[MOST_ROWS]; /* variables */
} qmat_maker;

/* ---- filling ----------------------------------------------------------------------------------------------------- */

/* The item's element of a run: its place along the block. */
static kir_aff in_block(const qmat_maker *m, int run, int64_t stride) {
    kir_aff a = tn_along(m->item, stride);
    a.c = run * IX * stride;
    return a;
}

static void fill_x(const qmat_maker *m) {
    for (int r = 0; r < rounded_rows(m->rows); r += IY)
        for (int run = 0; run < RUNS; run++) {
            kir_aff row = tn_along(m->down, m->rows), k = in_block(m, run, 1), to = in_block(m, run, 1);
            row.s[m->item_row] = 1;
            row.c = r;
            k.s[m->blocks] = BLOCK;
            to.s[m->item_row] = BLOCK;
            to.c += r * BLOCK;
            kir_val v = m->callbacks->load_x(m->callbacks->context, &row, &k, tn_inside(m->kb, &row, m->s->m));
            kir_store(m->kb, m->x, &to, v, KIR_NONE);
        }
}

/* u of all columns, four columns a pass. */
static void fill_u(const qmat_maker *m) {
    kir_loop(m->kb, m->passes, 1);
    for (int run = 0; run < RUNS; run++) {
        kir_aff column = tn_along(m->across, COLUMNS), k = in_block(m, run, 1), to = in_block(m, run, 1);
        column.s[m->passes] = IY;
        column.s[m->item_row] = 1;
        k.s[m->blocks] = BLOCK;
        to.s[m->passes] = IY * ROW;
        to.s[m->item_row] = ROW;
        kir_val mask = tn_inside(m->kb, &column, m->s->n);
        kir_store(m->kb, m->u, &to, m->callbacks->load_weight(m->callbacks->context, &column, &k, mask).u, KIR_NONE);
    }
    kir_end(m->kb);
}

/* The item's own column. */
static kir_aff own(const qmat_maker *m) {
    kir_aff a = tn_along(m->item_row, IX);
    a.s[m->item] = 1;
    return a;
}

static void fill_scales(qmat_maker *m) {
    for (int part = 0; part < m->s->parts; part++) {
        kir_aff column = own(m), k = tn_along(m->blocks, BLOCK), to = own(m);
        column.s[m->across] = COLUMNS;
        k.c = part * IX;
        to.c = part * COLUMNS;
        tn_weight_parts w =
            m->callbacks->load_weight(m->callbacks->context, &column, &k, tn_inside(m->kb, &column, m->s->n));
        kir_store(m->kb, m->scale, &to, w.s, KIR_NONE);
        m->has_minimum = w.t != KIR_NONE;
        if (m->has_minimum) kir_store(m->kb, m->minimum, &to, w.t, KIR_NONE);
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static kir_val greatest(const qmat_maker *m, int r) {
    kir_val most = kir_real(m->kb, 0);
    for (int k = 0; k < BLOCK; k++) {
        kir_aff at = tn_along(m->item_row, BLOCK);
        at.c = r * BLOCK + k;
        most = kir_max(m->kb, most, kir_unary(m->kb, KIR_ABS, kir_load(m->kb, m->x, &at, KIR_NONE)));
    }
    return most;
}

/* A NaN or an infinity casts to 0 or is multiplied by 0: q is 0 then, and the step NaN. */
static void round_row(const qmat_maker *m, int r) {
    kir_builder *kb = m->kb;
    kir_val most = greatest(m, r), finite = kir_lt(kb, most, kir_real(m->kb, INFINITY));
    kir_val tiny = kir_lt(kb, most, kir_real(m->kb, 0x1p-100)), zero = kir_real(m->kb, 0), full = kir_real(m->kb, 127);
    kir_val none = kir_select(kb, finite, tiny, kir_const_i(kb, KIR_BOOL, 1));
    kir_val inverse = kir_select(kb, none, zero, kir_div(kb, full, most));
    kir_val step = kir_select(kb, tiny, zero, kir_div(kb, most, full));
    step = kir_select(kb, finite, step, kir_real(m->kb, NAN));
    for (int run = 0; run < RUNS; run++) {
        kir_aff at = in_block(m, run, 1);
        at.s[m->item_row] = BLOCK;
        at.c += r * BLOCK;
        kir_val scaled = kir_mul(kb, kir_load(kb, m->x, &at, KIR_NONE), inverse);
        kir_store(kb, m->q, &at, kir_cast(kb, KIR_I32, kir_rounding(kb, KIR_NEAREST_EVEN, scaled)), KIR_NONE);
    }
    kir_aff to = tn_along(m->item_row, 1), item = tn_along(m->item, 1);
    to.c = r;
    kir_val first = kir_eq(kb, kir_index(kb, &item), kir_whole(kb, 0));
    kir_store(kb, m->step, &to, step, first);
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

static kir_val load_at(const qmat_maker *m, int buffer, int64_t place) {
    kir_aff at = kir_aff_const(place);
    return kir_load(m->kb, buffer, &at, KIR_NONE);
}

static kir_val load_own(const qmat_maker *m, int buffer, int64_t stride, int64_t place) {
    kir_aff at = tn_along(m->item_row, IX * stride);
    at.s[m->item] = stride;
    at.c = place;
    return kir_load(m->kb, buffer, &at, KIR_NONE);
}

static void multiply_part(const qmat_maker *m, int part) {
    kir_builder *kb = m->kb;
    int length = BLOCK / m->s->parts;
    kir_val zero = kir_const_i(kb, KIR_I32, 0), dot[MOST_ROWS], sum[MOST_ROWS];
    for (int i = 0; i < m->rows; i++)
        dot[i] = sum[i] = zero;
    for (int k = part * length; k < (part + 1) * length; k++) {
        kir_val u = load_own(m, m->u, ROW, k);
        for (int i = 0; i < m->rows; i++) {
            kir_val q = load_at(m, m->q, i * BLOCK + k);
            dot[i] = kir_add(kb, dot[i], kir_mul(kb, u, q));
            if (m->has_minimum) sum[i] = kir_add(kb, sum[i], q);
        }
    }
    kir_val s = load_own(m, m->scale, 1, part * COLUMNS);
    for (int i = 0; i < m->rows; i++) {
        kir_val step = load_at(m, m->step, i), total = kir_get(kb, m->sum[i]);
        total = kir_fma(kb, kir_mul(kb, s, step), kir_cast(kb, KIR_F32, dot[i]), total);
        if (m->has_minimum) {
            kir_val t = load_own(m, m->minimum, 1, part * COLUMNS);
            total = kir_fma(kb, t, kir_mul(kb, step, kir_cast(kb, KIR_F32, sum[i])), total);
        }
        kir_set(kb, m->sum[i], total);
    }
}

static void store_rows(const qmat_maker *m) {
    for (int i = 0; i < m->rows; i++) {
        kir_aff row = tn_along(m->down, m->rows), column = own(m);
        row.c = i;
        column.s[m->across] = COLUMNS;
        kir_val mask = kir_and(m->kb, tn_inside(m->kb, &row, m->s->m), tn_inside(m->kb, &column, m->s->n));
        m->callbacks->store(m->callbacks->context, &row, &column, kir_get(m->kb, m->sum[i]), mask);
    }
}

static void append_qmat(qmat_maker *m) {
    int64_t rows = rounded_rows(m->rows);
    m->callbacks->begin(m->callbacks->context, m->kb);
    m->x = kir_local(m->kb, TN_F32, rows * BLOCK);
    m->q = kir_local(m->kb, TN_I8, rows * BLOCK);
    m->step = kir_local(m->kb, TN_F32, rows);
    m->u = kir_local(m->kb, TN_I8, COLUMNS * ROW);
    m->scale = kir_local(m->kb, TN_F32, m->s->parts * COLUMNS);
    m->minimum = kir_local(m->kb, TN_F32, m->s->parts * COLUMNS);
    for (int i = 0; i < m->rows; i++)
        m->sum[i] = kir_var(m->kb, kir_real(m->kb, 0));
    kir_loop(m->kb, m->blocks, 1);
    fill_x(m);
    fill_u(m);
    fill_scales(m);
    kir_barrier(m->kb);
    for (int r = 0; r < rows; r += IY)
        round_row(m, r);
    kir_barrier(m->kb);
    for (int part = 0; part < m->s->parts; part++)
        multiply_part(m, part);
    kir_barrier(m->kb);
    kir_end(m->kb);
    store_rows(m);
}

tn_status tn_qmat_workgroup(const tn_qmat_shape *s, const tn_qmat_callbacks *callbacks, tn_workgroup_program *out) {
    enum { DOWN, ACROSS, ITEM_ROW, ITEM, PARALLEL, BLOCKS = PARALLEL, PASSES, AXES };
    qmat_maker m = {
        .s = s, .callbacks = callbacks, .rows = rows_for(s->m), .down = DOWN, .across = ACROSS, .blocks = BLOCKS};
    m.item_row = ITEM_ROW;
    m.item = ITEM;
    m.passes = PASSES;
    int64_t extents[AXES] = {[DOWN] = (s->m + m.rows - 1) / m.rows,
                             [ACROSS] = (s->n + COLUMNS - 1) / COLUMNS,
                             [ITEM_ROW] = IY,
                             [ITEM] = IX,
                             [BLOCKS] = s->k / BLOCK,
                             [PASSES] = COLUMNS / IY};
    TRY(kir_begin(PARALLEL, AXES - PARALLEL, extents, &m.kb));
    kir_group(m.kb, 2);
    append_qmat(&m);
    return kir_finish(m.kb, &out->program, &out->sizes);
}
