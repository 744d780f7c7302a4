/* qmat.c — products with weights as stored in files, block-quantized or in half precision: how they are divided.
 *
 * x is rounded to 8 bits once (records of 32 numbers, their scale and their sum), for some hundred rows at a time that
 * fit into the second-level cache. Each thread then takes a share of the groups of 16 weight rows. One row of x, or a
 * few on processors with 32 vector registers: the group's bits are unpacked in registers and used at once. More rows:
 * the group is unpacked into a panel of bytes and f32 scales in the first-level cache, and rows of x are multiplied
 * with it in tiles. The kernels for panels do not know the format, only the number of parts of a block and whether it
 * has a minimum. Weights in f16 and bf16 are computed the same way without rounding (qplain.c).
 *
 * Every result is one accumulator that adds its blocks in order, on all of these paths, so the bits are the same. */
#include "cpu/isa.h"

#include <string.h>

#include "cpu/qtile.h"

enum {
    BLOCK_LD = TN_GEMM_BLOCK_LD,
    PANEL_BLOCKS = 24, /* of a panel: with a tile of x it stays in a first cache of 32 KiB */
    SLAB_ROWS = 516,   /* of x rounded at once: with a panel's blocks, half of a second cache of 1 MiB */
    SUM_COLUMNS = 128, /* of C finished before an epilogue gets them: as much again … */
    FEW_ROWS = 48,     /* … if there are more rows than these */
    STRIPE_ROWS = 16, /* rows of x up to which unpacking a group for each STRIPE_HIGH of them costs less than a panel */
    CUTS = 1024       /* parts of all columns, by which shares are made larger or smaller */
};

static const double BYTES_A_PART = 30e3;  /* of weights: 2 to 3 µs from memory, less is not worth a fork-join … */
static const double OPS_A_PART = 1e6;     /* … nor for this many multiplications and additions */
static const double HALF_COST = 4;        /* of an operation on f16 or bf16 weights, relative to small integers */
static const int64_t ROUND_A_PART = 8192; /* numbers of x to round: as much time */

/* ---- a call ------------------------------------------------------------------------------------------------------ */

typedef struct qmat {
    const tn_qmat_args *args;
    const qtile_set *with;
    const tn_qformat *format;  /* NULL: weights are f16 or bf16, and "blocks" are steps of k */
    stripe_fn *const *stripes; /* by height */
    const panel_kernels *panels;
    tn_qlayout layout;
    int64_t blocks, groups; /* of 32 weights, of 16 rows */
    int64_t record, panel;  /* bytes of a record and of a panel's block */
    int64_t piece;          /* blocks of a panel */
    int64_t slab;           /* rows of x rounded at once, at most */
    int64_t sum_rows;       /* rows of C that are finished before they are written, at most */
    bool few;               /* more rows than one, but so few that stripes multiply them */
    bool direct;            /* full groups are written to C when they are finished */
    size_t rounded_bytes, panel_bytes, sums_bytes, part_bytes;
    int64_t row0, rows;                /* the current block of rows … */
    int64_t row_strips, column_strips; /* … and how it is cut */
    /* offset of the start of each thread's share from an equal division, in CUTS; NULL: none */
    int16_t *column_cuts;
    char *workspace;
    struct qmat *next;  /* in the same launch */
    struct qmat *later; /* … or behind the last of it, in the next one; NULL: not known */
} qmat;

/* Rows of x at once. */
static int64_t tile_of(const qmat *q) { return q->few ? STRIPE_HIGH : q->with->plain->heights[0]; }

/* Rows of the kernel that multiplies the last `rows` of a tile of few rows, the missing ones zero. */
static int64_t stripe_height(int64_t rows) { return rows > STRIPE_LOW ? STRIPE_HIGH : STRIPE_LOW; }

/* Positions of the groups of weights: all that is known of a later product. */
static void plan_groups(qmat *q, const tn_qmat_args *args) {
    *q = (qmat){.args = args, .with = tn_qtiles(), .format = tn_qformat_of(args->dtype)};
    q->groups = tn_ceil_div(args->n, TN_QROWS);
    q->column_cuts = args->m == 1 ? args->column_cuts : NULL;
    if (q->format)
        q->layout = tn_qlayout_of(q->format, args->k);
    else
        q->layout.group = tn_half_group_bytes(args->k);
}

static void plan_blocks(qmat *q, const tn_qmat_args *args, const tn_qformat *f) {
    q->stripes = q->with->stripe[args->dtype];
    q->few = args->m > 1 && args->m <= STRIPE_ROWS && q->stripes[1];
    q->panels = q->with->panels(f);
    q->blocks = args->k / TN_QBLOCK;
    q->record = record_bytes(f->parts);
    q->panel = QBITS + f->parts * QLINE * (f->has_minimum ? 2 : 1);
    int64_t pieces = tn_max64(tn_ceil_div(q->blocks, PANEL_BLOCKS), 1), unit = q->layout.scale_blocks;
    q->piece = tn_ceil_div(tn_ceil_div(q->blocks, pieces), unit) * unit;
}

static void plan_qmat(qmat *q, const tn_qmat_args *args) {
    plan_groups(q, args);
    if (q->format) {
        plan_blocks(q, args, q->format);
    } else {
        q->blocks = args->k;
        q->piece = KIR_KSUM;
        q->panel = q->args->m > 1 ? tn_min64(args->m, SLAB_ROWS) * (int64_t)sizeof(float) : 0;
    }
    q->slab = tn_min64(args->m, SLAB_ROWS);
    q->rounded_bytes = tn_whole_lines((size_t)(tn_ceil_div(q->slab, STRIPE_LOW) * STRIPE_LOW * q->blocks * q->record));
    q->panel_bytes = args->m > 1 && !q->few ? tn_whole_lines((size_t)(q->piece * q->panel)) : 0;
    q->direct = !args->c.fused.vm && args->c.col_stride == 1;
    q->sum_rows = tn_min64(q->slab, q->direct ? FEW_ROWS : SLAB_ROWS);
    int64_t columns = q->sum_rows > FEW_ROWS ? SUM_COLUMNS : BLOCK_LD;
    q->sums_bytes = tn_whole_lines((size_t)((q->sum_rows - 1) * BLOCK_LD + columns) * sizeof(float));
    q->part_bytes = q->panel_bytes + q->sums_bytes + fused_call_scratch(&args->c.fused, 0);
}

/* A chain: x is rounded once, and the memory of a part suffices for each product. */
static void plan_chain(qmat q[TN_QMAT_MOST_SIBLINGS], qmat *later, const tn_qmat_args *args) {
    size_t part_bytes = 0;
    if (args->m == 1 && args->later && args->later->packed)
        plan_groups(later, args->later);
    else
        later = NULL;
    for (int i = 0; args && i < TN_QMAT_MOST_SIBLINGS; i++, args = args->next) {
        plan_qmat(&q[i], args);
        if (i > 0) q[i - 1].next = &q[i];
        if (q[i].part_bytes > part_bytes) part_bytes = q[i].part_bytes;
    }
    for (qmat *each = q; each; each = each->next) {
        each->part_bytes = part_bytes;
        each->workspace = q->args->workspace;
        each->later = later;
    }
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static uint8_t *rounded(const qmat *q) { return (uint8_t *)q->workspace; }

/* The last incomplete vector of blocks is rounded together with blocks before it, a second time; or padded with
 * zeros. */
static void round_row(const qmat *q, const float *x, uint8_t *to, int64_t step) {
    const int at_once = q->with->plain->round_at_once;
    int64_t blocks = q->blocks, rest = blocks % at_once;
    for (int64_t b = 0; b < blocks - rest; b += ROUND_BLOCKS) {
        int count = (int)tn_min64(ROUND_BLOCKS, blocks - rest - b);
        q->with->plain->round(x + b * TN_QBLOCK, count, q->format, to + b * step, step);
    }
    if (rest == 0) return;
    if (blocks >= at_once) {
        int64_t b = blocks - at_once;
        q->with->plain->round(x + b * TN_QBLOCK, at_once, q->format, to + b * step, step);
        return;
    }
    float padded[ROUND_BLOCKS * TN_QBLOCK] = {0};
    uint8_t records[ROUND_BLOCKS * MOST_RECORD_BYTES];
    memcpy(padded, x, (size_t)rest * TN_QBLOCK * sizeof *x);
    q->with->plain->round(padded, at_once, q->format, records, q->record);
    for (int64_t b = 0; b < rest; b++)
        memcpy(to + b * step, records + b * q->record, (size_t)q->record);
}

/* Rounds one row (0 or 1) of a pair. Records of a pair are interleaved: 8 bytes of one row, 8 of the other; then each
 * scale and sum, 4 bytes of one row, 4 of the other. */
static void round_paired_row(const qmat *q, const float *x, uint8_t *to, int64_t step, int64_t row) {
    uint8_t record[MOST_RECORD_BYTES];
    for (int64_t b = 0; b < q->blocks; b++, x += TN_QBLOCK, to += step) {
        q->with->plain->round(x, 1, q->format, record, q->record);
        for (int64_t i = 0; i < TN_QBLOCK; i += 8)
            memcpy(to + 2 * i + 8 * row, record + i, 8);
        for (int64_t i = RECORD_SCALE; i < q->record; i += 4)
            memcpy(to + 2 * i + 4 * row, record + i, 4);
    }
}

/* Rows [begin, end) of the slab. */
static void round_rows(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const qmat *q = ctx;
    const int64_t most = tile_of(q), lowest = q->with->plain->heights[QHEIGHTS - 2]; /* rows left over are single */
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i / most * most, height = tn_min64(most, q->rows - first), row = i - first;
        const float *x = q->args->x + (q->row0 + i) * q->args->x_stride;
        uint8_t *rows = rounded(q) + first * q->blocks * q->record;
        if (q->few) height = stripe_height(height);
        if (q->with->pairs && row < height / lowest * lowest)
            round_paired_row(q, x, rows + (row - row % 2) * q->record, height * q->record, row % 2);
        else
            round_row(q, x, rows + row * q->record, height * q->record);
    }
}

/* Records of zeros behind the last row, up to the height of a kernel. */
static void round_missing_rows(const qmat *q) {
    int64_t first = q->rows / STRIPE_HIGH * STRIPE_HIGH, height = stripe_height(q->rows - first);
    uint8_t *rows = rounded(q) + first * q->blocks * q->record;
    if (first == q->rows) return;
    for (int64_t b = 0; b < q->blocks; b++)
        memset(rows + (b * height + q->rows - first) * q->record, 0, (size_t)((first + height - q->rows) * q->record));
}

/* ---- multiplying ------------------------------------------------------------------------------------------------- */

typedef struct part {
    uint8_t *panel;
    float *sums;
    int64_t end;     /* of its groups … */
    uintptr_t after; /* … and where the one is that is read after these, of another product */
    fused_call c;
} part;

static void part_open(part *p, const qmat *q, int worker) {
    char *memory = q->workspace + q->rounded_bytes + (size_t)worker * q->part_bytes;
    p->panel = (uint8_t *)memory;
    p->sums = (float *)(void *)(memory + q->panel_bytes);
    fused_call_open(&p->c, &q->args->c.fused, memory + q->panel_bytes + q->sums_bytes);
}

static const uint8_t *group_of(const qmat *q, int64_t g) {
    return (const uint8_t *)q->args->packed + g * q->layout.group;
}

/* What is unpacked after blocks k … of group g, of groups [group0, group1). */
static void look_ahead(const qmat *q, const part *p, int64_t g, int64_t group0, int64_t group1, int64_t k, qtile *t) {
    const tn_qlayout *l = &q->layout;
    bool same = g + 1 < group1, more = k + q->piece < q->blocks;
    const uint8_t *group = (const uint8_t *)p->after;
    if (same || more || group1 < p->end) group = group_of(q, same ? g + 1 : more ? group0 : group1);
    if (!same) k = more ? k + q->piece : 0;
    t->ahead[0] = group + k / l->scale_blocks * l->scale_bytes;
    t->ahead[1] = group + l->low + k * l->low_bytes;
    t->ahead[2] = group + l->high + k * l->high_bytes;
    t->ahead_bytes[0] = l->scale_bytes / l->scale_blocks;
    t->ahead_bytes[1] = l->low_bytes;
    t->ahead_bytes[2] = l->high_bytes;
}

/* Rows [first, first + rows) of the slab, which start with a tile, times the panel's blocks from k on. `next`: what the
 * first tile asks for. */
static void multiply_rows(const qmat *q, const part *p, int64_t first, int64_t rows, int64_t k, int64_t blocks,
                          float *c, int64_t c_row, const qtile *next) {
    const int64_t most = tile_of(q);
    const int *heights = q->with->plain->heights;
    for (int64_t i = 0; i < rows; i += most) {
        int64_t height = tn_min64(most, q->rows - first - i), done = 0;
        const uint8_t *x = rounded(q) + ((first + i) * q->blocks + k * height) * q->record;
        qtile t = *next;
        t.panel = p->panel;
        t.blocks = blocks;
        t.x_step = height * q->record;
        t.c_row = c_row;
        t.add = k > 0;
        if (i > 0) t.ahead[0] = NULL;
        for (int64_t r = i + most; t.add && r < tn_min64(i + 2 * most, rows); r++)
            __builtin_prefetch(c + r * c_row, 1);
        for (int kind = 0; kind < QHEIGHTS; kind++) {
            for (; height - done >= heights[kind]; done += heights[kind]) {
                t.x = x + done * q->record;
                t.c = c + (i + done) * c_row;
                q->panels->run[kind](&t);
                t.ahead[0] = NULL;
            }
        }
    }
}

/* Blocks [k, k + blocks) of a group. */
static void unpack_panel(const qmat *q, const part *p, int64_t g, int64_t k, int64_t blocks) {
    const tn_qlayout *l = &q->layout;
    const uint8_t *group = group_of(q, g), *scales_from = group + k / l->scale_blocks * l->scale_bytes;
    const uint8_t *low = group + l->low + k * l->low_bytes, *high = group + l->high + k * l->high_bytes;
    q->with->plain->bits_to_panel[q->format->bits](low, high, l, blocks, p->panel, q->panel);
    q->with->plain->scales_to_panel(q->format->scales, scales_from, l, blocks, p->panel + QBITS, q->panel);
}

/* Packs rows of x at some steps of k into tiles of the kernels' heights, one tile after the other. */
static void pack_x(const qmat *q, const float *x, int64_t rows, int64_t steps, float *to) {
    for (int kind = 0; kind < QHEIGHTS && rows > 0; kind++) {
        int64_t height = q->with->plain->heights[kind], whole = rows / height * height;
        if (whole == 0) continue;
        q->with->plain->tiles->pack(&(pack){.to = to,
                                            .distance = height,
                                            .group = height,
                                            .jump = steps * height,
                                            .from = x,
                                            .along = 1,
                                            .across = q->args->x_stride,
                                            .steps = steps,
                                            .lines = whole});
        x += whole * q->args->x_stride;
        to += whole * steps;
        rows -= whole;
    }
}

/* `at_once` groups of 16 columns, all rows of packed x. */
static void multiply_half_rows(const qtile_set *with, const half_set *kernels, half_tile t, int64_t at_once,
                               int64_t rows) {
    const int *heights = with->plain->heights;
    int64_t done = 0;
    for (int kind = 0; kind < QHEIGHTS; kind++) {
        for (; rows - done >= heights[kind]; done += heights[kind]) {
            kernels->tile[at_once < with->plain->halves_at_once][kind](&t);
            t.x += heights[kind] * t.steps;
            t.c += heights[kind] * t.c_row;
        }
    }
}

/* multiply_groups for weights in f16 and bf16. */
static void multiply_half_groups(const qmat *q, const part *p, int64_t group0, int64_t group1, int64_t first,
                                 int64_t rows, float *c, int64_t c_row) {
    const half_set *kernels = q->args->dtype == TN_BF16 ? q->with->plain->brain : q->with->plain->half;
    const float *x = q->args->x + (q->row0 + first) * q->args->x_stride;
    int64_t groups = 0, k = 0;
    if (q->rows == 1) {
        for (int64_t g = group0; g < group1; g += groups, c += groups * TN_QROWS) {
            groups = group1 - g >= HALF_GROUPS ? HALF_GROUPS : 1;
            kernels->row[groups > 1](group_of(q, g), q->layout.group, q->blocks, x, c);
        }
        return;
    }
    float *packed = (float *)(void *)p->panel;
    do {
        half_tile t = {.group = q->layout.group, .steps = tn_min64(q->piece, q->blocks - k), .x = packed};
        t.c_row = c_row;
        t.add = k > 0;
        pack_x(q, x + k, rows, t.steps, packed);
        for (int64_t g = group0; g < group1; g += groups) {
            groups = tn_min64(q->with->plain->halves_at_once, group1 - g);
            t.weights = group_of(q, g) + k * 2 * TN_QROWS;
            t.c = c + (g - group0) * TN_QROWS;
            multiply_half_rows(q->with, kernels, t, groups, rows);
        }
        k += q->piece;
    } while (k < q->blocks);
}

/* Rows [first, first + rows) of the slab, which start with a tile, times group g: one row, or few. */
static void multiply_stripes(const qmat *q, const part *p, int64_t g, int64_t first, int64_t rows, float *c,
                             int64_t c_row) {
    const uint8_t *group = group_of(q, g);
    stripe s = {group, group + q->layout.low, group + q->layout.high, .blocks = q->blocks, .c_row = c_row};
    s.next = g + 1 < p->end ? q->layout.group : (int64_t)(p->after - (uintptr_t)group);
    for (int64_t i = 0; i < rows; i += STRIPE_HIGH) {
        s.x = rounded(q) + (first + i) * q->blocks * q->record;
        s.c = c + i * c_row;
        s.rows = tn_min64(rows - i, STRIPE_HIGH);
        q->stripes[!q->few ? 0 : stripe_height(s.rows) == STRIPE_LOW ? 1 : 2](&s);
    }
}

/* Some groups of columns; c: the first element. A panel's blocks of all rows stay in the second-level cache while the
 * groups are processed. */
static void multiply_groups(const qmat *q, const part *p, int64_t group0, int64_t group1, int64_t first, int64_t rows,
                            float *c, int64_t c_row) {
    if (!q->format) {
        multiply_half_groups(q, p, group0, group1, first, rows, c, c_row);
        return;
    }
    if (q->rows == 1 || q->few) {
        for (int64_t g = group0; g < group1; g++, c += TN_QROWS)
            multiply_stripes(q, p, g, first, rows, c, c_row);
        return;
    }
    int64_t k = 0;
    do {
        int64_t blocks = tn_min64(q->piece, q->blocks - k);
        for (int64_t g = group0; g < group1; g++) {
            qtile next;
            look_ahead(q, p, g, group0, group1, k, &next);
            unpack_panel(q, p, g, k, blocks);
            multiply_rows(q, p, first, rows, k, blocks, c + (g - group0) * TN_QROWS, c_row, &next);
        }
        k += q->piece;
    } while (k < q->blocks);
}

static void write_sums(const qmat *q, part *p, box at) {
    static const int64_t origin[TN_GEMM_BATCH_AXES] = {0};
    const tn_matrix *c = &q->args->c;
    if (c->fused.vm) {
        fused_call_run(&p->c, origin, at, p->sums);
        return;
    }
    for (int64_t i = 0; i < at.rows; i++) {
        float *to = (float *)c->data + (at.row + i) * c->row_stride + at.col * c->col_stride;
        const float *from = p->sums + i * BLOCK_LD;
        if (c->col_stride == 1) {
            memcpy(to, from, (size_t)at.cols * sizeof *to);
        } else {
            for (int64_t j = 0; j < at.cols; j++)
                to[j * c->col_stride] = from[j];
        }
    }
}

/* Rows of the slab and groups of columns: blocks of C are finished, then written. */
static void multiply_to_sums(const qmat *q, part *p, int64_t row0, int64_t row1, int64_t group0, int64_t group1) {
    int64_t width = (q->sum_rows > FEW_ROWS ? SUM_COLUMNS : BLOCK_LD) / TN_QROWS;
    for (int64_t g = group0; g < group1; g += width) {
        int64_t end = tn_min64(g + width, group1), columns = tn_min64(end * TN_QROWS, q->args->n) - g * TN_QROWS;
        for (int64_t i = row0; i < row1; i += q->sum_rows) {
            int64_t rows = tn_min64(q->sum_rows, row1 - i);
            multiply_groups(q, p, g, end, i, rows, p->sums, BLOCK_LD);
            write_sums(q, p, (box){q->row0 + i, rows, g * TN_QROWS, columns});
        }
    }
}

static void multiply_strip(const qmat *q, part *p, int64_t row0, int64_t row1, int64_t group0, int64_t group1) {
    const tn_matrix *c = &q->args->c;
    int64_t full = q->direct ? tn_min64(group1, q->args->n / TN_QROWS) : group0;
    if (full > group0) {
        float *to = (float *)c->data + (q->row0 + row0) * c->row_stride + group0 * TN_QROWS;
        multiply_groups(q, p, group0, full, row0, row1 - row0, to, c->row_stride);
    }
    multiply_to_sums(q, p, row0, row1, full, group1);
}

/* A quarter of a share: so each begins behind the one before it, also where there were fewer when cuts were learned. */
static int64_t most_cut(int64_t columns) { return CUTS / (4 * columns); }

/* Where a share of the columns begins. */
static int64_t share_begin(const qmat *q, int64_t column, int64_t columns) {
    int64_t even = q->groups * column / columns, most = most_cut(columns);
    if (!q->column_cuts || column == 0 || column == columns) return even;
    return even + q->groups * tn_max64(tn_min64(q->column_cuts[column], most), -most) / CUTS;
}

/* The share of the next launch's first product, but what is asked for already. */
static void expect_later(const qmat *q, int64_t column, uintptr_t asked_from) {
    enum { MOST = 256 << 10 /* what ten microseconds bring */ };
    uintptr_t end = (uintptr_t)group_of(q->later, share_begin(q->later, column + 1, q->column_strips));
    tn_parallel_expect((const void *)(asked_from + QAHEAD), tn_min64((int64_t)(end - asked_from) - QAHEAD, MOST));
}

/* Of one product: a strip's rows, and its share of the columns. */
static void multiply_share(const qmat *q, int64_t strip, int worker) {
    const int64_t most = tile_of(q), tiles = tn_ceil_div(q->rows, most);
    int64_t row = strip / q->column_strips, column = strip % q->column_strips;
    int64_t row0 = tiles * row / q->row_strips * most;
    int64_t row1 = tn_min64(tiles * (row + 1) / q->row_strips * most, q->rows);
    int64_t columns = q->column_strips, group0 = share_begin(q, column, columns);
    int64_t group1 = share_begin(q, column + 1, columns);
    const qmat *after = q->next ? q->next : q->later;
    part p;
    part_open(&p, q, worker);
    p.end = group1;
    p.after = (uintptr_t)(after ? group_of(after, share_begin(after, column, columns)) : group_of(q, group1));
    multiply_strip(q, &p, row0, row1, group0, group1);
    if (after && !q->next) expect_later(q, column, p.after);
}

static void multiply_strips(void *ctx, int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++)
        for (const qmat *q = ctx; q; q = q->next)
            multiply_share(q, i, worker);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int choose_threads(const qmat *q) {
    double bytes = 0, ops = 0, rows = (double)q->rows;
    for (; q; q = q->next) {
        bytes += (double)q->groups * (double)q->layout.group;
        ops += (q->format ? 2.0 : 2.0 * HALF_COST) * rows * (double)q->args->n * (double)q->args->k;
    }
    double parts = bytes / BYTES_A_PART > ops / OPS_A_PART ? bytes / BYTES_A_PART : ops / OPS_A_PART;
    int most = tn_threads();
    return parts < 2 ? 1 : parts < most ? (int)parts : most;
}

/* Divides columns first, so that each group is unpacked once; rows too if threads would be idle. */
static void choose_strips(qmat *q, int threads) {
    q->row_strips = q->column_strips = 1;
    int64_t tiles = tn_ceil_div(q->rows, tile_of(q)), best = INT64_MAX, groups = 0;
    for (const qmat *each = q; each; each = each->next)
        groups += each->groups;
    for (int64_t columns = tn_min64(threads, groups); columns >= 1; columns--) {
        int64_t rows = tn_min64(tn_ceil_div(threads, columns), tiles);
        int64_t strips = tn_ceil_div(rows * columns, threads);
        int64_t cost = strips * (tn_ceil_div(tiles, rows) + 1) * tn_ceil_div(groups, columns);
        if (cost >= best) continue;
        best = cost;
        q->row_strips = rows;
        q->column_strips = columns;
    }
}

/* Memory is idle while one thread prepares the product, so it prefetches a little of its share. */
static void ask_for_expected(const qmat *q) {
    enum { LINE = 64, BYTES = 16 * LINE };
    const char *at = q->args->m == 1 ? tn_parallel_expected(BYTES) : NULL;
    for (int i = 0; at && i < BYTES; i += LINE)
        __builtin_prefetch(at + i, 0, 2);
}

/* For some threads memory is slower for the whole life of a process: the last one to finish gets a smaller share in the
 * next run. */
static void learn_cuts(const qmat *q) {
    int64_t columns = q->column_strips, most = most_cut(columns);
    int slow = tn_parallel_awaited(), by = slow ? 1 : -1;
    if (!q->column_cuts || slow < 0 || columns < 2) return;
    /* the caller: it gives to each in turn */
    int64_t other = slow ? slow : 1 + (uint16_t)q->column_cuts[0]++ % (columns - 1);
    for (int64_t i = 1; i <= other && i < columns; i++)
        q->column_cuts[i] = (int16_t)tn_max64(tn_min64(q->column_cuts[i] + by, most), -most);
}

/* The same slab and the same cut for all of a chain. */
static void follow(qmat *first) {
    for (qmat *q = first->next; q; q = q->next) {
        q->row0 = first->row0;
        q->rows = first->rows;
        q->row_strips = first->row_strips;
        q->column_strips = first->column_strips;
        q->column_cuts = first->column_cuts;
    }
}

void tn_qmat(const tn_qmat_args *args) {
    if (args->m == 0 || args->n == 0) return;
    qmat chain[TN_QMAT_MOST_SIBLINGS], later, *q = chain;
    plan_chain(chain, &later, args);
    ask_for_expected(q);
    int64_t slabs = tn_ceil_div(args->m, q->slab);
    int64_t even = tn_ceil_div(tn_ceil_div(args->m, slabs), tile_of(q)) * tile_of(q);
    if (even < q->slab) q->slab = even;
    for (q->row0 = 0; q->row0 < args->m; q->row0 += q->slab) {
        q->rows = tn_min64(q->slab, args->m - q->row0);
        int64_t grain = tn_ceil_div(ROUND_A_PART, tn_max64(args->k, 1));
        if (q->format) tn_parallel(q->rows, grain, round_rows, q);
        if (q->few) round_missing_rows(q);
        ask_for_expected(q);
        int threads = choose_threads(q);
        choose_strips(q, threads);
        follow(q);
        if (threads == 1) {
            multiply_strips(q, 0, 1, 0);
        } else {
            tn_parallel(q->row_strips * q->column_strips, 1, multiply_strips, q);
            learn_cuts(q);
        }
    }
}

size_t tn_qmat_workspace(const tn_qmat_args *args, int threads) {
    if (args->m == 0 || args->n == 0) return 64;
    qmat q;
    plan_qmat(&q, args);
    return q.rounded_bytes + (size_t)(threads > 1 ? threads : 1) * q.part_bytes;
}
