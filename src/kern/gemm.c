/* gemm.c — the product of two matrices by workgroups.
 *
 * A workgroup computes a tile of C. Panels of A and B, as deep as a panel of k, are brought into its memory by all of
 * its items, and each item multiplies what its own elements of the tile need, which it keeps in variables. Everything
 * within a panel is unrolled, so that places in the workgroup's memory are numbers.
 *
 * Chains of KIR_KSUM steps are the definition: a loop over whole chains, each a loop over its panels, then one over the
 * panels of a last, shorter chain. Behind the end of k A is −0 and B 0: their product −0 leaves any sum as it is. */
#include "kern/templates.h"

#include <string.h>

/* Items stand in iy rows of ix; each has tm × tn elements of C. A panel is `depth` deep. Divisible so that items share
 * out panels evenly: by ix and iy are depth, the rows iy·tm and the columns ix·tn (whichever way a panel is read). */
typedef struct tile {
    int iy, ix, tm, tn, depth;
} tile;

/* From the largest; few rows of A want a flat one. Found by trial on a software device. */
static const tile tiles[] = {{16, 16, 4, 4, 16}, {8, 8, 4, 4, 16}};
static const tile flat_tile = {4, 16, 1, 4, 16};
enum { FLAT_ROWS = 8, MOST_OWN = 16 };

static int rows_of(const tile *t) { return t->iy * t->tm; }
static int columns_of(const tile *t) { return t->ix * t->tn; }

/* A panel's rows in memory lie one element further apart, so that items which go down a column meet other banks. */
static int64_t a_row(const tile *t) { return rows_of(t) + 1; }
static int64_t b_row(const tile *t) { return columns_of(t) + 1; }
static int64_t local_elements(const tile *t) { return t->depth * (a_row(t) + b_row(t)); }

static bool tile_fits(const tile *t, const tn_gemm_shape *s, const tn_group_limits *limits) {
    int64_t bytes = local_elements(t) * (int64_t)tn_dtype_size(s->local_dtype);
    return t->iy * t->ix <= limits->items && bytes <= limits->local_bytes;
}

static const tile *choose_tile(const tn_gemm_shape *s, const tn_group_limits *limits) {
    if (s->m <= FLAT_ROWS && tile_fits(&flat_tile, s, limits)) return &flat_tile;
    for (size_t i = 0; i < TN_COUNT(tiles); i++) {
        bool worth = i + 1 == TN_COUNT(tiles) || (s->m > rows_of(&tiles[i]) / 2 && s->n > columns_of(&tiles[i]) / 2);
        if (worth && tile_fits(&tiles[i], s, limits)) return &tiles[i];
    }
    return tile_fits(&flat_tile, s, limits) ? &flat_tile : NULL;
}

bool tn_gemm_template_fits(const tn_gemm_shape *s, const tn_group_limits *limits) {
    return s->batch_axes <= TN_TEMPLATE_BATCH_AXES && choose_tile(s, limits) != NULL;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

/* Axes: batches, tiles down, tiles across, item rows, items; loops: chains, panels of a chain, of the last one. */
typedef struct maker {
    const tn_gemm_shape *s;
    const tn_product_joints *joints;
    const tile *t;
    kir_builder *kb;
    int down, across, item_row, item, chains, panels, rest;
    int a, b; /* panels in workgroup memory */
    kir_aff batch[TN_TEMPLATE_BATCH_AXES];
    kir_val sum[MOST_OWN], total[MOST_OWN]; /* variables: the chain that runs, and those that are closed */
} maker;

static kir_val zero(const maker *m) { return kir_const(m->kb, m->s->type, 0); }

static kir_aff along(int axis, int64_t stride) {
    kir_aff a = kir_aff_const(0);
    a.s[axis] = stride;
    return a;
}

static kir_val number(const maker *m, int64_t v) {
    kir_aff a = kir_aff_const(v);
    return kir_index(m->kb, &a);
}

/* index < bound, the bound being a size */
static kir_val inside(const maker *m, const kir_aff *index, int64_t bound) {
    kir_aff left = *index;
    left.c -= bound;
    return kir_binary(m->kb, KIR_LT, kir_index(m->kb, &left), kir_const_i(m->kb, KIR_I64, 0));
}

static kir_val both(const maker *m, kir_val x, kir_val y) {
    return y == KIR_NONE ? x : kir_binary(m->kb, KIR_AND, x, y);
}

/* One operand's part in a panel: `rows` wide beside k, of which the workgroup's first is `base`. */
typedef struct panel {
    bool is_a, along_k;
    int local, width;
    int64_t local_row, bound;
    kir_aff base;
} panel;

static void fill_element(const maker *m, const panel *p, const kir_aff *k0, int in_k, int in_width, bool edge) {
    /* the item's place: along memory by its own number, across by that of its row */
    int k_axis = p->along_k ? m->item : m->item_row, w_axis = p->along_k ? m->item_row : m->item;
    kir_aff k = *k0, w = p->base, to = kir_aff_const(in_k * p->local_row + in_width);
    k.c += in_k;
    k.s[k_axis] += 1;
    w.c += in_width;
    w.s[w_axis] += 1;
    to.s[k_axis] = p->local_row;
    to.s[w_axis] = 1;
    kir_val depth = edge ? inside(m, &k, m->s->k) : KIR_NONE, mask = both(m, inside(m, &w, p->bound), depth);
    void *context = m->joints->context;
    kir_val v = p->is_a ? m->joints->load_a(context, m->batch, &w, &k, mask)
                        : m->joints->load_b(context, m->batch, &k, &w, mask);
    bool is_float = m->s->type == KIR_F32 || m->s->type == KIR_F64;
    if (edge && p->is_a && is_float) v = kir_select(m->kb, depth, v, kir_const(m->kb, m->s->type, -0.0));
    kir_store(m->kb, p->local, &to, v, KIR_NONE);
}

static void fill_panel(const maker *m, panel *p, const kir_aff *k0, bool edge) {
    if (p->width % m->t->ix != 0) p->along_k = true; /* too narrow to go across it */
    int k_step = p->along_k ? m->t->ix : m->t->iy, w_step = p->along_k ? m->t->iy : m->t->ix;
    for (int w = 0; w < p->width; w += w_step)
        for (int k = 0; k < m->t->depth; k += k_step)
            fill_element(m, p, k0, k, w, edge);
}

static kir_val multiply_add(const maker *m, kir_val a, kir_val b, kir_val c) {
    if (m->s->type == KIR_F32 || m->s->type == KIR_F64) return kir_fma(m->kb, a, b, c);
    return kir_binary(m->kb, KIR_ADD, c, kir_binary(m->kb, KIR_MUL, a, b));
}

/* Rows of an item follow each other; its columns lie ix apart, so that neighbours read and write neighbours. */
static void multiply_panels(const maker *m) {
    const tile *t = m->t;
    kir_val sum[MOST_OWN];
    for (int e = 0; e < t->tm * t->tn; e++)
        sum[e] = kir_get(m->kb, m->sum[e]);
    for (int k = 0; k < t->depth; k++) {
        kir_val b[MOST_OWN];
        for (int j = 0; j < t->tn; j++) {
            kir_aff at = along(m->item, 1);
            at.c = k * b_row(t) + j * t->ix;
            b[j] = kir_load(m->kb, m->b, &at, KIR_NONE);
        }
        for (int i = 0; i < t->tm; i++) {
            kir_aff at = along(m->item_row, t->tm);
            at.c = k * a_row(t) + i;
            kir_val a = kir_load(m->kb, m->a, &at, KIR_NONE);
            for (int j = 0; j < t->tn; j++)
                sum[i * t->tn + j] = multiply_add(m, a, b[j], sum[i * t->tn + j]);
        }
    }
    for (int e = 0; e < t->tm * t->tn; e++)
        kir_set(m->kb, m->sum[e], sum[e]);
}

static void do_panel(const maker *m, const kir_aff *k0, bool edge) {
    const tile *t = m->t;
    panel a = {true, m->s->a_along_k, m->a, rows_of(t), a_row(t), m->s->m, along(m->down, rows_of(t))};
    panel b = {false, m->s->b_along_k, m->b, columns_of(t), b_row(t), m->s->n, along(m->across, columns_of(t))};
    fill_panel(m, &a, k0, edge);
    fill_panel(m, &b, k0, edge);
    kir_barrier(m->kb);
    multiply_panels(m);
    kir_barrier(m->kb);
}

static void set_all(const maker *m, const kir_val *var, kir_val v) {
    for (int e = 0; e < m->t->tm * m->t->tn; e++)
        kir_set(m->kb, var[e], v);
}

/* A chain has ended: the first stands alone, others are added. `first`: is it the first? */
static kir_val closed(const maker *m, int e, kir_val first) {
    kir_val sum = kir_get(m->kb, m->sum[e]), total = kir_get(m->kb, m->total[e]);
    return kir_select(m->kb, first, sum, kir_binary(m->kb, KIR_ADD, total, sum));
}

static void whole_chains(const maker *m) {
    kir_aff k0 = along(m->chains, KIR_KSUM), chain = along(m->chains, 1);
    k0.s[m->panels] = m->t->depth;
    kir_loop(m->kb, m->chains, 1);
    set_all(m, m->sum, zero(m));
    kir_loop(m->kb, m->panels, 1);
    do_panel(m, &k0, false);
    kir_end(m->kb);
    kir_val first = kir_binary(m->kb, KIR_EQ, kir_index(m->kb, &chain), kir_const_i(m->kb, KIR_I64, 0));
    for (int e = 0; e < m->t->tm * m->t->tn; e++)
        kir_set(m->kb, m->total[e], closed(m, e, first));
    kir_end(m->kb);
}

static void last_chain(const maker *m) {
    kir_aff k0 = along(m->rest, m->t->depth);
    k0.c = m->s->k / KIR_KSUM * KIR_KSUM;
    set_all(m, m->sum, zero(m));
    kir_loop(m->kb, m->rest, 1);
    do_panel(m, &k0, true);
    kir_end(m->kb);
}

static void store_tile(const maker *m) {
    const tile *t = m->t;
    kir_val none = kir_const_i(m->kb, KIR_I64, 0);
    kir_val first = kir_binary(m->kb, KIR_EQ, number(m, m->s->k / KIR_KSUM), none);
    kir_val more = kir_binary(m->kb, KIR_LT, none, number(m, m->s->k % KIR_KSUM));
    for (int i = 0; i < t->tm; i++)
        for (int j = 0; j < t->tn; j++) {
            int e = i * t->tn + j;
            kir_aff row = along(m->down, rows_of(t)), column = along(m->across, columns_of(t));
            row.s[m->item_row] = t->tm;
            row.c = i;
            column.s[m->item] = 1;
            column.c = j * t->ix;
            kir_val v = kir_select(m->kb, more, closed(m, e, first), kir_get(m->kb, m->total[e]));
            kir_val mask = both(m, inside(m, &row, m->s->m), inside(m, &column, m->s->n));
            m->joints->store(m->joints->context, m->batch, &row, &column, v, mask);
        }
}

static void append(maker *m) {
    m->joints->begin(m->joints->context, m->kb);
    m->a = kir_local(m->kb, m->s->local_dtype, m->t->depth * a_row(m->t));
    m->b = kir_local(m->kb, m->s->local_dtype, m->t->depth * b_row(m->t));
    for (int e = 0; e < m->t->tm * m->t->tn; e++) {
        m->sum[e] = kir_var(m->kb, zero(m));
        m->total[e] = kir_var(m->kb, zero(m));
    }
    whole_chains(m);
    last_chain(m);
    store_tile(m);
}

static int64_t pieces(int64_t n, int64_t of) { return (n + of - 1) / of; }

tn_status tn_gemm_template(const tn_gemm_shape *s, const tn_group_limits *limits, const tn_product_joints *joints,
                           tn_template_program *out) {
    maker m = {.s = s, .joints = joints, .t = choose_tile(s, limits)};
    if (!m.t)
        return tn_fail(TN_ERR_UNSUPPORTED, "a product has no tile for workgroups of %lld", (long long)limits->items);
    int64_t extents[KIR_MAX_AXES] = {0};
    int axis = 0;
    for (int d = 0; d < s->batch_axes; d++) {
        m.batch[d] = along(axis, 1);
        extents[axis++] = s->batch[d];
    }
    extents[m.down = axis++] = pieces(s->m, rows_of(m.t));
    extents[m.across = axis++] = pieces(s->n, columns_of(m.t));
    extents[m.item_row = axis++] = m.t->iy;
    extents[m.item = axis++] = m.t->ix;
    int n_par = axis;
    extents[m.chains = axis++] = s->k / KIR_KSUM;
    extents[m.panels = axis++] = KIR_KSUM / m.t->depth;
    extents[m.rest = axis++] = pieces(s->k % KIR_KSUM, m.t->depth);
    TRY(kir_begin(n_par, axis - n_par, extents, &m.kb));
    kir_group(m.kb, 2);
    append(&m);
    return kir_finish(m.kb, &out->program, &out->sizes);
}
