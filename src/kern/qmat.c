/* qmat.c — the product with weights in blocks, by workgroups.
 *
 * A workgroup of 64 items computes 64 columns of some rows, block of 32 after block. Together the items take the
 * weights' bits apart into small integers, and round x to eight bits; then each multiplies for its own column, in
 * integers, and adds what the block yields to its sums in the order that kern.h defines. */
#include "kern/workgroup_kernels.h"

#include <math.h>

/* Items stand in 4 rows of 16: 16 go along a block, which has two such runs. */
enum { IY = 4, IX = 16, COLUMNS = IY * IX, BLOCK = 32, RUNS = BLOCK / IX, MOST_ROWS = 16, ROW = BLOCK + 1 };

/* Rows of x that a workgroup computes: few where there are few. */
static int rows_for(int64_t m) { return m == 1 ? 1 : m <= 4 ? 4 : MOST_ROWS; }

/* Rows that are brought in and rounded: the items' rows come four at a time. */
static int rounded_rows(int rows) { return (rows + IY - 1) / IY * IY; }

static int64_t local_bytes(const tn_qmat_shape *s) {
    int64_t rows = rounded_rows(rows_for(s->m));
    return rows * BLOCK * 4 + rows * BLOCK + rows * 4 + COLUMNS * ROW + 2 * s->parts * COLUMNS * 4;
}

bool tn_qmat_workgroup_fits(const tn_qmat_shape *s, const tn_group_limits *limits) {
    return limits->items >= COLUMNS && limits->local_bytes >= local_bytes(s);
}

typedef struct maker {
    const tn_qmat_shape *s;
    const tn_qmat_callbacks *callbacks;
    kir_builder *kb;
    int rows;
    int down, across, item_row, item, blocks, passes; /* axes */
    int x, q, step, u, scale, minimum;                /* workgroup memory */
    bool has_minimum;
    kir_val sum[MOST_ROWS]; /* variables */
} maker;

static kir_val qmat_number(const maker *m, double v) { return kir_const(m->kb, KIR_F32, v); }

/* ---- filling ----------------------------------------------------------------------------------------------------- */

/* The item's element of a run: its place along the block. */
static kir_aff in_block(const maker *m, int run, int64_t stride) {
    kir_aff a = tn_along(m->item, stride);
    a.c = run * IX * stride;
    return a;
}

static void fill_x(const maker *m) {
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
static void fill_u(const maker *m) {
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
static kir_aff own(const maker *m) {
    kir_aff a = tn_along(m->item_row, IX);
    a.s[m->item] = 1;
    return a;
}

static void fill_scales(maker *m) {
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

static kir_val greatest(const maker *m, int r) {
    kir_val most = qmat_number(m, 0);
    for (int k = 0; k < BLOCK; k++) {
        kir_aff at = tn_along(m->item_row, BLOCK);
        at.c = r * BLOCK + k;
        most = kir_binary(m->kb, KIR_MAX, most, kir_unary(m->kb, KIR_ABS, kir_load(m->kb, m->x, &at, KIR_NONE)));
    }
    return most;
}

/* A NaN or an infinity casts to 0 or is multiplied by 0: q is 0 then, and the step NaN. */
static void round_row(const maker *m, int r) {
    kir_builder *kb = m->kb;
    kir_val most = greatest(m, r), finite = kir_binary(kb, KIR_LT, most, qmat_number(m, INFINITY));
    kir_val tiny = kir_binary(kb, KIR_LT, most, qmat_number(m, 0x1p-100)), zero = qmat_number(m, 0),
            full = qmat_number(m, 127);
    kir_val none = kir_select(kb, finite, tiny, kir_const_i(kb, KIR_BOOL, 1));
    kir_val inverse = kir_select(kb, none, zero, kir_binary(kb, KIR_DIV, full, most));
    kir_val step = kir_select(kb, tiny, zero, kir_binary(kb, KIR_DIV, most, full));
    step = kir_select(kb, finite, step, qmat_number(m, NAN));
    for (int run = 0; run < RUNS; run++) {
        kir_aff at = in_block(m, run, 1);
        at.s[m->item_row] = BLOCK;
        at.c += r * BLOCK;
        kir_val scaled = kir_binary(kb, KIR_MUL, kir_load(kb, m->x, &at, KIR_NONE), inverse);
        kir_store(kb, m->q, &at, kir_cast(kb, KIR_I32, kir_rounding(kb, KIR_NEAREST_EVEN, scaled)), KIR_NONE);
    }
    kir_aff to = tn_along(m->item_row, 1), item = tn_along(m->item, 1);
    to.c = r;
    kir_val first = kir_binary(kb, KIR_EQ, kir_index(kb, &item), kir_const_i(kb, KIR_I64, 0));
    kir_store(kb, m->step, &to, step, first);
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

static kir_val load_at(const maker *m, int buffer, int64_t place) {
    kir_aff at = kir_aff_const(place);
    return kir_load(m->kb, buffer, &at, KIR_NONE);
}

static kir_val load_own(const maker *m, int buffer, int64_t stride, int64_t place) {
    kir_aff at = tn_along(m->item_row, IX * stride);
    at.s[m->item] = stride;
    at.c = place;
    return kir_load(m->kb, buffer, &at, KIR_NONE);
}

static void multiply_part(const maker *m, int part) {
    kir_builder *kb = m->kb;
    int length = BLOCK / m->s->parts;
    kir_val zero = kir_const_i(kb, KIR_I32, 0), dot[MOST_ROWS], sum[MOST_ROWS];
    for (int i = 0; i < m->rows; i++)
        dot[i] = sum[i] = zero;
    for (int k = part * length; k < (part + 1) * length; k++) {
        kir_val u = load_own(m, m->u, ROW, k);
        for (int i = 0; i < m->rows; i++) {
            kir_val q = load_at(m, m->q, i * BLOCK + k);
            dot[i] = kir_binary(kb, KIR_ADD, dot[i], kir_binary(kb, KIR_MUL, u, q));
            if (m->has_minimum) sum[i] = kir_binary(kb, KIR_ADD, sum[i], q);
        }
    }
    kir_val s = load_own(m, m->scale, 1, part * COLUMNS);
    for (int i = 0; i < m->rows; i++) {
        kir_val step = load_at(m, m->step, i), total = kir_get(kb, m->sum[i]);
        total = kir_fma(kb, kir_binary(kb, KIR_MUL, s, step), kir_cast(kb, KIR_F32, dot[i]), total);
        if (m->has_minimum) {
            kir_val t = load_own(m, m->minimum, 1, part * COLUMNS);
            total = kir_fma(kb, t, kir_binary(kb, KIR_MUL, step, kir_cast(kb, KIR_F32, sum[i])), total);
        }
        kir_set(kb, m->sum[i], total);
    }
}

static void store_rows(const maker *m) {
    for (int i = 0; i < m->rows; i++) {
        kir_aff row = tn_along(m->down, m->rows), column = own(m);
        row.c = i;
        column.s[m->across] = COLUMNS;
        kir_val mask = kir_binary(m->kb, KIR_AND, tn_inside(m->kb, &row, m->s->m), tn_inside(m->kb, &column, m->s->n));
        m->callbacks->store(m->callbacks->context, &row, &column, kir_get(m->kb, m->sum[i]), mask);
    }
}

static void append_qmat(maker *m) {
    int64_t rows = rounded_rows(m->rows);
    m->callbacks->begin(m->callbacks->context, m->kb);
    m->x = kir_local(m->kb, TN_F32, rows * BLOCK);
    m->q = kir_local(m->kb, TN_I8, rows * BLOCK);
    m->step = kir_local(m->kb, TN_F32, rows);
    m->u = kir_local(m->kb, TN_I8, COLUMNS * ROW);
    m->scale = kir_local(m->kb, TN_F32, m->s->parts * COLUMNS);
    m->minimum = kir_local(m->kb, TN_F32, m->s->parts * COLUMNS);
    for (int i = 0; i < m->rows; i++)
        m->sum[i] = kir_var(m->kb, qmat_number(m, 0));
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
    maker m = {
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
