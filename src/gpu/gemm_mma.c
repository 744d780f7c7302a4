/* gemm_mma.c — the product of two matrices of f16 or bf16, or of shortened f32, by subgroups that multiply matrices of
 * 16×16 (kir.h).
 *
 * A workgroup's subgroups form wy rows of wx, each with my × mx matrices of C in its registers. Panels of A and B,
 * DEPTH deep, pass through a ring of stages in workgroup memory: while one is multiplied, the next ones are being
 * loaded, so there is one barrier per panel. If an operand is in memory in the right layout, it is loaded in packets of
 * 16 bytes, asynchronously if the device can, else through registers; if it is computed or misaligned, element by
 * element, rounded to its dtype. Panels keep the operand's own direction, so memory is read along lines; a line is 8
 * elements longer than its panel, so that neighbours in a column are in different banks.
 *
 * At the end each subgroup stores a strip of its matrices to workgroup memory, and its items pass the elements to the
 * epilogue, along rows. Strips follow each other, so the epilogue is in the program once.
 *
 * If four subgroups multiply wide matrices, each group of four has one with 64 rows and multiplies from workgroup
 * memory. A panel is 64 deep and stored in packets (kir.h). Products of one panel are executing while the next one's
 * are issued, so panels are loaded two ahead of them, in a ring of four.
 *
 * No bits are defined here (kir.h, MMA): sums are f32 over exact products, in order along k. */
#include "gpu/gpu.h"

/* All are powers of two. */
typedef struct tile {
    int wy, wx, my, mx, stages, strip; /* matrices next to each other in a strip */
    int columns;                       /* of a wide matrix, which a subgroup has one of; else 0 */
} tile;

enum { NARROW_DEPTH = 32, WIDE_DEPTH = 64, PAD = 8, PACKET = 8, UNROLLED = 8, LEAST = 16, MOST_LOOPS = 5, FLAT = 16 };

/* From the largest; chosen by the size of a workgroup and the empty part of a tile. 64 × 64 per subgroup are 128
 * registers of sums per item, of 255; a step of k then takes 8 fragments for 16 products. Never run on a device. */
static const tile tiles_32[] = {
    {2, 2, 4, 4, 3, 2, 0}, {2, 2, 4, 4, 2, 1, 0}, {2, 2, 4, 2, 2, 2, 0}, {2, 2, 2, 2, 2, 2, 0}, {1, 4, 1, 2, 2, 2, 0}};
static const tile tiles_64[] = {{2, 2, 4, 4, 2, 4, 0}, {2, 1, 2, 4, 2, 4, 0}, {1, 2, 1, 4, 2, 4, 0}};
/* Subgroups of few items are one vector of a processor's: 64 registers of sums an item, of 128. */
static const tile tiles_16[] = {{4, 2, 2, 2, 2, 2, 0}, {2, 2, 1, 2, 2, 2, 0}, {1, 4, 1, 2, 2, 2, 0}};
static const tile tiles_8[] = {{4, 4, 1, 2, 2, 2, 0}, {2, 4, 1, 1, 2, 1, 0}, {1, 4, 1, 1, 2, 1, 0}};
static const struct {
    int lanes, count;
    const tile *tiles;
} lists[] = {{8, TN_COUNT(tiles_8), tiles_8},
             {16, TN_COUNT(tiles_16), tiles_16},
             {32, TN_COUNT(tiles_32), tiles_32},
             {64, TN_COUNT(tiles_64), tiles_64}};
/* The largest of which there are enough for three quarters of the device's processors. */
static const tile tiles_wide[] = {{2, 1, 1, 1, 4, 2, 256}, {2, 1, 1, 1, 4, 2, 128}, {1, 1, 1, 1, 4, 2, 128}};

static int matrix_rows(const tile *t) { return t->columns ? KIR_WIDE_ROWS : KIR_EDGE; }
static int mma_rows_of(const tile *t) { return t->wy * t->my * matrix_rows(t); }
static int mma_columns_of(const tile *t) { return t->wx * t->mx * (t->columns ? t->columns : KIR_EDGE); }
static int depth_of(const tile *t) { return t->columns ? WIDE_DEPTH : NARROW_DEPTH; }
/* Strips in which a subgroup's matrices are handed over. */
static int strips_of(const tile *t) { return (t->columns ? t->columns / KIR_EDGE : t->my * t->mx) / t->strip; }

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* One operand's part: lines of `length` neighbours in memory, `line` elements apart; a stage has `stage` elements. For
 * a wide one lines are 8 elements apart, and their packets `pitch`. */
typedef struct panel {
    bool is_a, along_k, packets;
    int lines, length, line, pitch, stage;
    int unit, a_pass, passes; /* elements an item moves at once; lines that all items do; how often they do */
    int local, pass_axis, steps;
    int64_t bound;
    kir_aff first;              /* of the tile, across k */
    kir_val down, along, place; /* an item's line and place in it, in a pass; both in workgroup memory */
} panel;

static panel panel_of(const tile *t, bool is_a, bool along_k, bool packets, int items) {
    panel p = {.is_a = is_a, .along_k = along_k, .unit = packets ? PACKET : 1};
    int across = is_a ? mma_rows_of(t) : mma_columns_of(t);
    p.lines = along_k ? across : depth_of(t);
    p.length = along_k ? depth_of(t) : across;
    p.line = t->columns ? PACKET : p.length + PAD;
    p.pitch = t->columns ? (p.lines + 1) * PACKET : PACKET;
    p.stage = t->columns ? p.length / PACKET * p.pitch : p.lines * p.line;
    p.a_pass = items * p.unit / p.length;
    p.packets = packets;
    if (packets && p.a_pass > p.lines) return panel_of(t, is_a, along_k, false, items);
    p.passes = p.a_pass > 0 ? p.lines / p.a_pass : 0;
    p.steps = p.passes > UNROLLED ? p.passes / UNROLLED : 1;
    return p;
}

typedef struct maker {
    const tn_gemm_shape *s;
    const tn_product_callbacks *callbacks;
    const tile *t;
    kir_builder *kb;
    int lanes;
    bool late;
    int down, across, wy, wx, lane, panels, strips, turns; /* axes */
    panel a, b;
    int staging;
    kir_aff batch[TN_WORKGROUP_BATCH_AXES];
    kir_val sum[16];
} maker;

static int items_of(const tile *t, int lanes) { return t->wy * t->wx * lanes; }
static int staging_line(const tile *t) { return t->strip * KIR_EDGE + PAD; }

static int64_t local_bytes(const maker *m) {
    int64_t panels = (int64_t)m->t->stages * (m->a.stage + m->b.stage) * (int64_t)tn_dtype_size(m->s->half);
    return panels + (int64_t)m->t->wy * m->t->wx * matrix_rows(m->t) * staging_line(m->t) * 4;
}

/* The maker with tile t, if the device has what that takes. */
static bool with_tile(maker *m, const tile *t, const tn_group_limits *limits) {
    int items = items_of(t, m->lanes);
    m->t = t;
    m->a = panel_of(t, true, m->s->a_along_k, m->callbacks && m->callbacks->fetch_a, items);
    m->b = panel_of(t, false, m->s->b_along_k, m->callbacks && m->callbacks->fetch_b, items);
    m->a.bound = m->s->m;
    m->b.bound = m->s->n;
    return m->a.passes > 0 && m->b.passes > 0 && items <= limits->items && local_bytes(m) <= limits->local_bytes;
}

/* A wide tile, for a product that fills enough of it. */
static bool choose_wide(maker *m, const tn_group_limits *limits) {
    int count = (int)TN_COUNT(tiles_wide), lanes = m->lanes;
    int64_t batch = 1;
    if (!(limits->matrix & TN_MATRIX_WIDE) || m->s->plain || m->s->k < WIDE_DEPTH) return false;
    for (int d = 0; d < m->s->batch_axes; d++)
        batch *= m->s->batch[d];
    m->lanes = KIR_WIDE;
    for (int i = 0; i < count; i++) {
        const tile *t = &tiles_wide[i];
        int64_t groups = batch * tn_ceil_div(m->s->m, mma_rows_of(t)) * tn_ceil_div(m->s->n, mma_columns_of(t));
        bool full = m->s->m > mma_rows_of(t) / 2 && m->s->n > mma_columns_of(t) / 2;
        bool enough = 4 * groups >= 3 * limits->processors || i + 1 == count;
        if (full && enough && with_tile(m, t, limits)) return true;
    }
    m->lanes = lanes;
    return false;
}

static bool choose_tile(maker *m, const tn_group_limits *limits) {
    size_t list = 0;
    while (list < TN_COUNT(lists) && lists[list].lanes != m->lanes)
        list++;
    if (list == TN_COUNT(lists)) return false;
    const tile *tiles = lists[list].tiles;
    int count = lists[list].count;
    m->late = limits->matrix & TN_MATRIX_LATE;
    if (choose_wide(m, limits)) return true;
    if (m->s->m <= FLAT && with_tile(m, &tiles[count - 1], limits)) return true;
    for (int i = 0; i < count - 1; i++) {
        const tile *t = &tiles[i];
        bool worth = i + 2 == count || (m->s->m > mma_rows_of(t) / 2 && m->s->n > mma_columns_of(t) / 2);
        if (worth && with_tile(m, t, limits)) return true;
    }
    return with_tile(m, &tiles[count - 1], limits);
}

bool tn_gemm_matrix_fits(const tn_gemm_shape *s, const tn_group_limits *limits) {
    maker m = {.s = s, .lanes = (int)limits->subgroup};
    uint32_t wanted = s->half == TN_F16 ? TN_MATRIX_F16 : s->half == TN_BF16 ? TN_MATRIX_BF16 : 0;
    if (s->plain) wanted = TN_MATRIX_TF32;
    if (!(limits->matrix & wanted)) return false;
    if (s->a_k.count || s->b_k.count || s->columns.count || s->batch_axes + 5 + MOST_LOOPS > KIR_MAX_AXES) return false;
    return s->m * s->n >= LEAST * LEAST && s->k >= LEAST && choose_tile(&m, limits);
}

/* ---- filling panels ---------------------------------------------------------------------------------------------- */

static kir_aff item_number(const maker *m) {
    kir_aff id = tn_along(m->lane, 1);
    id.s[m->wx] = m->lanes;
    id.s[m->wy] = (int64_t)m->t->wx * m->lanes;
    return id;
}

static kir_aff with_dyn(kir_aff a, kir_val v) {
    a.dyn = v;
    return a;
}

/* Position along a line in a wide panel. */
static kir_val along_packets(const maker *m, const panel *p) {
    kir_val packet = kir_shr(m->kb, p->along, kir_whole(m->kb, __builtin_ctz(PACKET)));
    kir_val in_packet = kir_and(m->kb, p->along, kir_whole(m->kb, PACKET - 1));
    return kir_add(m->kb, kir_mul(m->kb, packet, kir_whole(m->kb, p->pitch)), in_packet);
}

/* Position of an item in a pass. */
static void begin_panel(const maker *m, panel *p) {
    int a_line = p->length / p->unit;
    kir_aff number = item_number(m);
    kir_val id = kir_index(m->kb, &number);
    p->local = kir_local(m->kb, m->s->half, (int64_t)m->t->stages * p->stage);
    p->down = kir_shr(m->kb, id, kir_whole(m->kb, __builtin_ctz((unsigned)a_line)));
    p->along = kir_and(m->kb, id, kir_whole(m->kb, a_line - 1));
    p->along = kir_mul(m->kb, p->along, kir_whole(m->kb, p->unit));
    kir_val along = m->t->columns ? along_packets(m, p) : p->along;
    p->place = kir_add(m->kb, kir_mul(m->kb, p->down, kir_whole(m->kb, p->line)), along);
}

/* Which panel, and where in the ring: numbers before the loop, in it `ahead` of the one that is multiplied. */
typedef struct turn {
    kir_aff k;
    kir_aff stage_a, stage_b;
} turn;

static turn turn_before(const maker *m, int number) {
    turn t = {kir_aff_const((int64_t)number * depth_of(m->t)), kir_aff_const((int64_t)number * m->a.stage),
              kir_aff_const((int64_t)number * m->b.stage)};
    return t;
}

static turn turn_in_loop(const maker *m, int ahead) {
    kir_aff number = tn_along(m->panels, 1);
    number.c = ahead;
    kir_val stage = kir_mod(m->kb, kir_index(m->kb, &number), kir_whole(m->kb, m->t->stages));
    turn t = {tn_along(m->panels, depth_of(m->t)), kir_aff_const(0), kir_aff_const(0)};
    t.k.c = (int64_t)ahead * depth_of(m->t);
    t.stage_a.dyn = kir_mul(m->kb, stage, kir_whole(m->kb, m->a.stage));
    t.stage_b.dyn = kir_mul(m->kb, stage, kir_whole(m->kb, m->b.stage));
    return t;
}

static kir_aff plus(const maker *m, kir_aff a, const kir_aff *b) {
    a.c += b->c;
    for (int x = 0; x < KIR_MAX_AXES; x++)
        a.s[x] += b->s[x];
    if (a.dyn != KIR_NONE && b->dyn != KIR_NONE) a.dyn = kir_add(m->kb, a.dyn, b->dyn);
    if (a.dyn == KIR_NONE) a.dyn = b->dyn;
    return a;
}

/* Loads what the unrolled pass `i` needs: an element or a packet. */
static kir_val bring(const maker *m, const panel *p, const turn *t, int i) {
    kir_aff down = with_dyn(kir_aff_const((int64_t)i * p->a_pass), p->down),
            along = with_dyn(kir_aff_const(0), p->along);
    if (p->steps > 1) down.s[p->pass_axis] = (int64_t)UNROLLED * p->a_pass;
    kir_aff k = plus(m, t->k, p->along_k ? &along : &down), w = plus(m, p->first, p->along_k ? &down : &along);
    kir_val mask = kir_and(m->kb, tn_inside(m->kb, &w, p->bound), tn_inside(m->kb, &k, m->s->k));
    const tn_product_callbacks *j = m->callbacks;
    if (p->is_a) return (p->packets ? j->fetch_a : j->load_a)(j->context, m->batch, &w, &k, mask);
    return (p->packets ? j->fetch_b : j->load_b)(j->context, m->batch, &k, &w, mask);
}

static void lay_down(const maker *m, const panel *p, const turn *t, int i, kir_val v) {
    kir_aff to = with_dyn(kir_aff_const((int64_t)i * p->a_pass * p->line), p->place);
    if (p->steps > 1) to.s[p->pass_axis] = (int64_t)UNROLLED * p->a_pass * p->line;
    to = plus(m, to, p->is_a ? &t->stage_a : &t->stage_b);
    if (p->packets)
        kir_put(m->kb, p->local, &to, v, m->late);
    else
        kir_store(m->kb, p->local, &to, v, KIR_NONE);
}

static int at_once(const panel *p) { return p->steps > 1 ? UNROLLED : p->passes; }

static void fill_mma(const maker *m, const panel *p, const turn *t) {
    kir_val v[UNROLLED];
    if (p->steps > 1) kir_loop(m->kb, p->pass_axis, 1);
    for (int i = 0; i < at_once(p); i++)
        v[i] = bring(m, p, t, i);
    for (int i = 0; i < at_once(p); i++)
        lay_down(m, p, t, i, v[i]);
    if (p->steps > 1) kir_end(m->kb);
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

/* Fragment `i` of the subgroup at step `k`; `axis`: the direction of its subgroups, each with `own` fragments. */
static kir_val fragment(const maker *m, const panel *p, const kir_aff *stage, int axis, int own, int i, int k) {
    kir_aff at = *stage;
    at.c += (int64_t)KIR_EDGE * (p->along_k ? i * p->line + k : k * p->line + i);
    at.s[axis] += (int64_t)own * KIR_EDGE * (p->along_k ? p->line : 1);
    int kind = (p->is_a ? 0 : KIR_FACTOR_B) | (p->along_k ? KIR_ALONG_K : 0);
    return kir_fragment(m->kb, p->local, &at, kind, p->line);
}

/* A wide one's factor: all of the tile across for B, the subgroup's rows for A. */
static kir_val wide_fragment(const maker *m, const panel *p, const kir_aff *stage, int k) {
    kir_aff at = *stage;
    at.c += (int64_t)k * KIR_EDGE / PACKET * (p->along_k ? p->pitch : PACKET * p->line);
    if (p->is_a) at.s[m->wy] += p->along_k ? KIR_WIDE_ROWS * p->line : KIR_WIDE_ROWS / PACKET * p->pitch;
    int kind = (p->is_a ? 0 : KIR_FACTOR_B) | (p->along_k ? KIR_ALONG_K : 0);
    return kir_wide_fragment(m->kb, p->local, &at, kind, p->lines);
}

static void multiply_wide(const maker *m) {
    turn now = turn_in_loop(m, 0);
    for (int k = 0; k < WIDE_DEPTH / KIR_EDGE; k++) {
        kir_val x = wide_fragment(m, &m->a, &now.stage_a, k);
        kir_mma(m->kb, m->sum[0], x, wide_fragment(m, &m->b, &now.stage_b, k));
    }
    kir_wide_commit(m->kb);
    kir_wide_wait(m->kb, 1);
}

static void multiply_mma(const maker *m) {
    const tile *t = m->t;
    if (t->columns) {
        multiply_wide(m);
        return;
    }
    turn now = turn_in_loop(m, 0);
    for (int k = 0; k < NARROW_DEPTH / KIR_EDGE; k++) {
        kir_val x[4], y[4];
        for (int i = 0; i < t->my; i++)
            x[i] = fragment(m, &m->a, &now.stage_a, m->wy, t->my, i, k);
        for (int j = 0; j < t->mx; j++)
            y[j] = fragment(m, &m->b, &now.stage_b, m->wx, t->mx, j, k);
        for (int e = 0; e < t->my * t->mx; e++)
            kir_mma(m->kb, m->sum[e], x[e / t->mx], y[e % t->mx]);
    }
}

/* Packets that are not late are on their way in registers while the panel before is multiplied. */
static void multiply_and_fill(const maker *m, const turn *next) {
    const panel *both_panels[] = {&m->a, &m->b};
    kir_val v[2][UNROLLED];
    for (int o = 0; o < 2; o++) {
        const panel *p = both_panels[o];
        bool held = p->packets && !m->late && p->steps == 1;
        for (int i = 0; held && i < p->passes; i++)
            v[o][i] = bring(m, p, next, i);
        if (!held) fill_mma(m, p, next);
    }
    if (m->late) kir_commit(m->kb);
    multiply_mma(m);
    for (int o = 0; o < 2; o++) {
        const panel *p = both_panels[o];
        for (int i = 0; p->packets && !m->late && p->steps == 1 && i < p->passes; i++)
            lay_down(m, p, next, i, v[o][i]);
    }
}

static void do_panels(maker *m) {
    int ahead = m->t->stages - (m->t->columns ? 2 : 1);
    for (int i = 0; i < ahead; i++) {
        turn t = turn_before(m, i);
        fill_mma(m, &m->a, &t);
        fill_mma(m, &m->b, &t);
        if (m->late) kir_commit(m->kb);
    }
    kir_loop(m->kb, m->panels, 1);
    if (m->late) kir_wait(m->kb, ahead - 1);
    kir_barrier(m->kb);
    turn next = turn_in_loop(m, ahead);
    multiply_and_fill(m, &next);
    kir_end(m->kb);
    if (m->late) kir_wait(m->kb, 0);
    if (m->t->columns) kir_wide_wait(m->kb, 0);
}

/* ---- the finished tile ------------------------------------------------------------------------------------------- */

/* Neighbours along a line of a strip, and how often its items hand over an element each. */
static int strip_width(const tile *t) { return t->strip * KIR_EDGE; }
static int strip_turns(const maker *m) { return matrix_rows(m->t) * strip_width(m->t) / m->lanes; }

/* An item's row and column in a strip, whose elements the items go through in order. */
static void place_in_strip(const maker *m, kir_aff *row, kir_aff *column) {
    *row = tn_along(m->turns, 1);
    *column = tn_along(m->lane, 1);
    if (m->lanes == strip_width(m->t)) return;
    column->s[m->turns] = m->lanes;
    kir_val number = kir_index(m->kb, column);
    int across = strip_width(m->t);
    *row = with_dyn(kir_aff_const(0), kir_shr(m->kb, number, kir_whole(m->kb, __builtin_ctz((unsigned)across))));
    *column = with_dyn(kir_aff_const(0), kir_and(m->kb, number, kir_whole(m->kb, across - 1)));
}

/* Its position in workgroup memory and in the result. */
static void hand_over_mma(const maker *m, const kir_aff *own, const kir_aff *down, const kir_aff *right) {
    const tile *t = m->t;
    int line = staging_line(t);
    kir_aff row, column, from = *own;
    place_in_strip(m, &row, &column);
    from.s[m->turns] = row.s[m->turns] * line;
    if (row.dyn != KIR_NONE) from.dyn = kir_mul(m->kb, row.dyn, kir_whole(m->kb, line));
    from = plus(m, from, &column);
    row.s[m->down] = mma_rows_of(t);
    row.s[m->wy] = (int64_t)t->my * matrix_rows(t);
    column.s[m->across] = mma_columns_of(t);
    column.s[m->wx] = mma_columns_of(t) / t->wx;
    row = plus(m, row, down);
    column = plus(m, column, right);
    kir_val v = kir_load(m->kb, m->staging, &from, KIR_NONE);
    kir_val mask = kir_and(m->kb, tn_inside(m->kb, &row, m->s->m), tn_inside(m->kb, &column, m->s->n));
    m->callbacks->store(m->callbacks->context, m->batch, &row, &column, v, mask);
}

/* Number e of what strips are made of: a matrix, or 16 columns of a wide one. */
static void lay_in_strip(const maker *m, const kir_aff *to, int e, kir_val mask) {
    int line = staging_line(m->t);
    if (m->t->columns)
        kir_wide_store(m->kb, m->staging, to, line, m->sum[0], e * KIR_EDGE, mask);
    else
        kir_matrix_store(m->kb, m->staging, to, line, m->sum[e], mask);
}

static void store_tile(const maker *m) {
    const tile *t = m->t;
    int beside = t->mx / t->strip, line = staging_line(t);
    int64_t rows = matrix_rows(t);
    kir_aff own = tn_along(m->wx, rows * line), number = tn_along(m->strips, 1);
    kir_aff down = tn_along(m->strips, t->columns ? 0 : KIR_EDGE), right = kir_aff_const(0);
    if (t->columns) right = tn_along(m->strips, (int64_t)t->strip * KIR_EDGE);
    own.s[m->wy] = t->wx * rows * line;
    kir_loop(m->kb, m->strips, 1);
    kir_val strip = kir_index(m->kb, &number);
    for (int e = 0; e < strips_of(t) * t->strip; e++) {
        kir_aff to = own;
        to.c = (int64_t)(e % t->strip) * KIR_EDGE;
        lay_in_strip(m, &to, e, kir_eq(m->kb, strip, kir_whole(m->kb, e / t->strip)));
    }
    if (beside > 1) {
        kir_val i = kir_div(m->kb, strip, kir_whole(m->kb, beside)), j;
        j = kir_mod(m->kb, strip, kir_whole(m->kb, beside));
        down = with_dyn(kir_aff_const(0), kir_mul(m->kb, i, kir_whole(m->kb, KIR_EDGE)));
        right.dyn = kir_mul(m->kb, j, kir_whole(m->kb, (int64_t)t->strip * KIR_EDGE));
    }
    kir_barrier(m->kb);
    kir_loop(m->kb, m->turns, 1);
    hand_over_mma(m, &own, &down, &right);
    kir_end(m->kb);
    kir_barrier(m->kb);
    kir_end(m->kb);
}

static void set_axes(maker *m, int64_t *extents, int *n_par, int *count) {
    const tile *t = m->t;
    int axis = 0;
    for (int d = 0; d < m->s->batch_axes; d++) {
        m->batch[d] = tn_along(axis, 1);
        extents[axis++] = m->s->batch[d];
    }
    extents[m->down = axis++] = tn_ceil_div(m->s->m, mma_rows_of(t));
    extents[m->across = axis++] = tn_ceil_div(m->s->n, mma_columns_of(t));
    extents[m->wy = axis++] = t->wy;
    extents[m->wx = axis++] = t->wx;
    extents[m->lane = axis++] = m->lanes;
    *n_par = axis;
    extents[m->panels = axis++] = tn_ceil_div(m->s->k, depth_of(t));
    extents[m->a.pass_axis = axis++] = m->a.steps;
    extents[m->b.pass_axis = axis++] = m->b.steps;
    extents[m->strips = axis++] = strips_of(t);
    extents[m->turns = axis++] = strip_turns(m);
    *count = axis;
    m->a.first = tn_along(m->down, mma_rows_of(t));
    m->b.first = tn_along(m->across, mma_columns_of(t));
}

tn_status tn_gemm_matrix(const tn_gemm_shape *s, const tn_group_limits *limits, const tn_product_callbacks *callbacks,
                         tn_workgroup_program *out) {
    maker m = {.s = s, .callbacks = callbacks, .lanes = (int)limits->subgroup};
    int64_t extents[KIR_MAX_AXES] = {0};
    int n_par, count;
    if (!choose_tile(&m, limits)) return tn_fail(TN_ERR_UNSUPPORTED, "matmul: no matrix-unit tile fits this product");
    set_axes(&m, extents, &n_par, &count);
    TRY(kir_begin(n_par, count - n_par, extents, &m.kb));
    kir_group(m.kb, 3);
    callbacks->begin(callbacks->context, m.kb);
    begin_panel(&m, &m.a);
    begin_panel(&m, &m.b);
    m.staging = kir_local(m.kb, TN_F32, (int64_t)m.t->wy * m.t->wx * matrix_rows(m.t) * staging_line(m.t));
    for (int e = 0; e < m.t->my * m.t->mx; e++)
        m.sum[e] = m.t->columns ? kir_wide_matrix(m.kb, m.t->columns) : kir_matrix(m.kb);
    do_panels(&m);
    store_tile(&m);
    return kir_finish(m.kb, &out->program, &out->sizes);
}
