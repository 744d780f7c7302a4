/* gemm.c — matrix products on the CPU: how they are divided and where operands are packed; compiled once for float and
 * once for double. The kernels that move and multiply come from a tile_set, one per instruction set (tile_set.h).
 *
 * C is divided into strips of rows and columns, one or more per thread. A strip brings a block of A into its cache
 * (packed, or read in place) and multiplies it with B block by block; every 256 steps of k are one chain that starts at
 * +0 and is added to C in order. Nothing else affects the bits: any division, any number of threads and any instruction
 * set give the same result.
 *
 * B has one of five sources: a packed copy that the caller keeps (weights); the matrix itself; a block that all threads
 * pack together; a few panels that a thread packs just before it needs them (few rows: nothing is used twice); or, for
 * very few rows, columns contiguous along k, which are transposed in registers (tiles.c). The micro-kernels write C
 * directly if its rows are contiguous and there is no epilogue; otherwise a block of up to 512 columns is finished in
 * the part's own memory, then passed to the epilogue or copied to C.
 *
 * Few sums of many steps (as for the gradient of a layer's weight over a large batch) are divided along k instead:
 * threads compute chains and add them in order afterwards.
 *
 * f16 and bf16 operands are widened when they are packed, and the result is rounded when it is copied out, so the
 * product is in f32. A processor that multiplies pairs of bf16 sees half as many steps of k with two elements each; if
 * these are contiguous in memory, a matrix of pairs is like any other matrix.
 *
 * Products of bytes are float products too: a chain is a sum of at most 256 · 255 · 255 < 2²⁴, so it is exact, and
 * chains are added to C as integers. If the processor adds four products of bytes at once (A unsigned, B signed), sums
 * are integers from the start, modulo 2³², and k has a quarter of the steps. */
#include "cpu/gemm_plan.h"

/* ---- one part: a thread with its memory -------------------------------------------------------------------------- */

typedef struct part {
    real *a_packed, *b_packed, *c_block, *load;
    fused_call a, b, c;
    epilogue_ops epilogue_ops; /* instead of c's program … */
    real *ends_in;             /* … and where its results begin */
} part;

static real *gemm_place_of(const tn_fused_program *program, const tn_epilogue_access *place) {
    return place->buffer < 0 ? NULL : (real *)program->launch.buffers[place->buffer] + place->first;
}

static __attribute__((noinline)) void open_epilogue(part *p, const tn_fused_program *program) {
    const tn_fused_epilogue *e = program->epilogue_ops;
    p->epilogue_ops = (epilogue_ops){.add = gemm_place_of(program, &e->add),
                                     .times = gemm_place_of(program, &e->times),
                                     .gate = gemm_place_of(program, &e->gate),
                                     .times_row = e->times.row,
                                     .gate_row = e->gate.row,
                                     .each = gemm_place_of(program, &e->each),
                                     .also = gemm_place_of(program, &e->also),
                                     .each_row = e->each.row,
                                     .also_row = e->also.row,
                                     .floor = gemm_place_of(program, &e->floor),
                                     .ceiling = gemm_place_of(program, &e->ceiling),
                                     .zero = e->zero,
                                     .relu = e->relu};
    p->ends_in = gemm_place_of(program, &e->to);
}

static __attribute__((noinline)) void part_open(part *p, const gemm *g, char *memory) {
    p->a_packed = (real *)(void *)memory;
    memory += g->a_bytes;
    p->b_packed = (real *)(void *)memory;
    memory += g->b_bytes;
    p->c_block = (real *)(void *)memory;
    memory += g->c_bytes;
    p->load = (real *)(void *)memory;
    memory += g->load_bytes;
    fused_call_open(&p->a, &g->args.a.fused, memory);
    fused_call_open(&p->b, &g->args.b.fused, memory);
    if (ENDS && (g->ends || g->begins))
        open_epilogue(p, &g->args.c.fused);
    else
        fused_call_open(&p->c, &g->args.c.fused, memory);
}

/* Where in the batch: its coordinates. */
static void batch_coordinates(const gemm *g, int64_t index, int64_t *batch) {
    for (int axis = TN_GEMM_BATCH_AXES - 1; axis >= 0; axis--) {
        int64_t extent = g->args.batch[axis];
        batch[axis] = extent > 1 ? index % extent : 0;
        index = extent > 1 ? index / extent : index;
    }
}

static void *address(const tn_matrix *x, int64_t size, const int64_t *batch, int64_t row, int64_t col) {
    int64_t at = row * x->row_stride + col * x->col_stride;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        at += batch[axis] * x->batch_stride[axis];
    return (char *)x->data + at * size;
}

static real *element(const tn_matrix *x, const int64_t *batch, int64_t row, int64_t col) {
    return address(x, sizeof(real), batch, row, col);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Elements of the last of the steps before k, where they are fewer. */
static int rest_at(const gemm *g, int64_t k) { return k == g->args.k ? g->rest : 0; }

/* One block of B into panels that are `distance` elements apart. `at` counts in B: rows are steps of k. */
static void pack_b_memory(const gemm *g, const int64_t *batch, box at, real *to, int64_t distance) {
    const tn_matrix *b = &g->args.b;
    g->with->pack(&(pack){.to = to,
                          .distance = g->panel,
                          .group = g->panel,
                          .jump = distance,
                          .kind = g->b_layout.kind,
                          .from = address(b, pack_size[g->b_layout.kind], batch, at.row, at.col),
                          .along = b->row_stride,
                          .across = b->col_stride,
                          .second = g->b_layout.second,
                          .rest = rest_at(g, at.row + at.rows),
                          .steps = at.rows,
                          .lines = at.cols});
}

static void pack_b_prologue(const gemm *g, part *p, const int64_t *batch, box at, real *to, int64_t distance) {
    fused_call_run(&p->b, batch, at, p->load);
    g->with->pack(&(pack){.to = to,
                          .distance = g->panel,
                          .group = g->panel,
                          .jump = distance,
                          .from = p->load,
                          .along = BLOCK_LD,
                          .across = 1,
                          .steps = at.rows,
                          .lines = at.cols});
}

/* A block of at most CHUNK steps: its panels follow each other without a gap. */
static void pack_b(const gemm *g, part *p, const int64_t *batch, box at, real *to) {
    int64_t distance = at.rows * g->panel, most = LOAD_PANELS * g->panel;
    if (!g->args.b.fused.vm) {
        pack_b_memory(g, batch, at, to, distance);
        return;
    }
    for (int64_t j = 0; j < at.cols; j += most) {
        for (int64_t k = 0; k < at.rows; k += LOAD_STEPS) {
            box piece = {at.row + k, tn_min64(LOAD_STEPS, at.rows - k), at.col + j, tn_min64(most, at.cols - j)};
            pack_b_prologue(g, p, batch, piece, to + j * at.rows + k * g->panel, distance);
        }
    }
}

/* Rows of A that become tiles of one height; at.cols steps, at most CHUNK. */
static void pack_a_rows(const gemm *g, part *p, const int64_t *batch, box at, int64_t height, real *to) {
    const tn_matrix *a = &g->args.a;
    pack rows = {.to = to,
                 .distance = height,
                 .group = height,
                 .jump = at.cols * height,
                 .along = a->col_stride,
                 .across = a->row_stride,
                 .steps = at.cols,
                 .lines = at.rows};
    if (a->fused.vm) {
        fused_call_run(&p->a, batch, at, p->load);
        rows.from = p->load;
        rows.along = 1;
        rows.across = BLOCK_LD;
    } else {
        rows.kind = g->a_layout.kind;
        rows.from = address(a, pack_size[rows.kind], batch, at.row, at.col);
        rows.second = g->a_layout.second;
        rows.rest = rest_at(g, at.col + at.cols);
    }
    g->with->pack(&rows);
}

/* Rows left → rows of the next tile. A last one that takes several panels at once is worth a full one before it. */
static int64_t next_height(const gemm *g, int64_t left) {
    const int64_t full = g->with->rows;
    bool wide = left == full + WIDE_HEIGHT && g->with->wide_panels[WIDE_HEIGHT] > 1;
    return wide ? full : tile_height(left, full);
}

/* A block of at most CHUNK steps: the tile that starts at row i is at i · steps, its rows contiguous. Memory is packed
 * for all full tiles at once, because rows of A may be contiguous; a prologue fills memory for one tile. */
static void pack_a(const gemm *g, part *p, const int64_t *batch, box at, real *to) {
    for (int64_t i = 0, rows = 0; i < at.rows; i += rows) {
        const int64_t full = g->with->rows, height = next_height(g, at.rows - i);
        rows = height;
        if (height == full && !g->args.a.fused.vm) rows = tn_max64((at.rows - i) / full - 1, 1) * full;
        pack_a_rows(g, p, batch, (box){at.row + i, rows, at.col, at.cols}, height, to + i * at.cols);
    }
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

/* Data of A and B that a thread reads after the current steps. A tile prefetches CHUNK elements of it, line by line, or
 * several times as many. */
typedef struct coming {
    const real *at[2], *end[2];
    int64_t times;
} coming;

/* A block of A as tiles read it: in place, or packed chunk after chunk. */
typedef struct a_block {
    const real *data;
    int64_t row, k; /* in place: distances */
    bool packed;
    int64_t rows;     /* packed … */
    const real *next; /* … and in A itself the rows behind them, or NULL */
    int64_t left;     /* how many those are */
    coming *coming;
} a_block;

/* Points `t` at the tile of A that starts at row i of the chunk that starts at step k. */
static void aim(tile *t, const a_block *a, int64_t i, int64_t height, int64_t k) {
    t->a = a->packed ? a->data + k * a->rows + i * t->k : a->data + i * a->row + k * a->k;
    t->a_row = a->packed ? 1 : a->row;
    t->a_k = a->packed ? height : a->k;
}

/* Tiles of a panel finish their sums in registers; gates only those of full height, factors only with a gate. */
static bool ends_itself(const gemm *g, const tile *t, int64_t height) {
    const epilogue_ops *e = t->epilogue_ops;
    if (!ENDS || !e || (!e->times && !e->gate)) return true;
    return e->gate && height == g->with->rows && (!g->with->folds || tile_has_rows(t));
}

static __attribute__((noinline)) void multiply_and_end(const gemm *g, tile_fn *run, const tile *t, int64_t height,
                                                       int64_t columns) {
    real sums[MOST_SUMS] __attribute__((aligned(64)));
    tile apart = *t;
    epilogue_block b = {.epilogue_ops = t->epilogue_ops,
                        .to = t->c,
                        .to_row = t->c_row,
                        .row = t->row,
                        .rows = height,
                        .column = t->column,
                        .columns = columns};
    if (!t->add) {
        apart.c = sums;
        apart.c_row = columns;
        apart.c_next = NULL;
    }
    apart.epilogue_ops = NULL;
    run(&apart);
    b.from = apart.c;
    b.from_row = apart.c_row;
    g->with->end(&b);
}

static void run_tile(const gemm *g, tile_fn *run, const tile *t, int64_t height, int64_t columns) {
    if (ENDS && t->epilogue_ops)
        multiply_and_end(g, run, t, height, columns);
    else
        run(t);
}

/* Few rows: tiles several panels wide. Returns the columns done; the rest is narrower than such a tile. */
static int64_t multiply_wide(const gemm *g, tile *t, int64_t rows, int64_t columns) {
    int64_t panels = g->with->wide_panels[rows], width = panels * g->panel, j = 0;
    for (; j + width <= columns; j += width) {
        run_tile(g, g->with->wide[rows], t, rows, width);
        t->b += panels * t->b_panel;
        t->c += width;
        t->column += width;
    }
    return j;
}

static void ask_for_coming(tile *t, coming *next) {
    int which = next->at[0] >= next->end[0];
    t->ahead = next->at[which];
    t->ahead_row = CHUNK;
    t->ahead_rows = t->ahead < next->end[which] ? next->times : 0;
    next->at[which] += next->times * CHUNK;
}

/* A tile prefetches its share of A's next rows: if A is read in place, rows `begin` and following of the tile at row
 * `at`; if A is packed, as many rows of the next piece to pack as there are packed ones. */
static void prefetch_rows_of_a(const gemm *g, tile *t, const a_block *a, int64_t at, int64_t k, int64_t begin,
                               int64_t share) {
    if (a->coming) ask_for_coming(t, a->coming);
    if (a->k != 1 || (a->packed && !a->next)) return;
    int64_t row = begin + (a->packed ? at - g->with->rows : at);
    t->ahead = (a->packed ? a->next : a->data) + row * a->row + k;
    t->ahead_row = a->row;
    t->ahead_rows = tn_min64(share, g->with->rows - begin);
    if (a->packed) t->ahead_rows = tn_min64(t->ahead_rows, a->left - row);
}

/* A row of full tiles begins by copying what it reads of A, if it then has less to do. */
static void copy_first(const gemm *g, tile *t, const a_block *a, int64_t height, int64_t columns, real *copy) {
    t->from = NULL;
    if (a->packed || a->k != 1 || !g->with->folds || height < g->with->rows || columns < g->panel) return;
    t->from = t->a;
    t->from_row = a->row;
    t->a = t->copy = copy;
    t->a_row = TILE_COPY;
}

/* The last columns, fewer than a panel. */
static void multiply_edge(const gemm *g, tile t, int64_t height, int64_t columns) {
    const int64_t lanes = g->with->lanes;
    t.ahead_rows = 0; /* full tiles have asked */
    t.c_next = NULL;
    for (; columns > 0; columns -= lanes) {
        t.columns = columns;
        run_tile(g, g->with->edge[height], &t, height, tn_min64(columns, lanes));
        t.b += lanes;
        t.c += lanes;
        t.column += lanes;
    }
}

/* A row of tiles; `next` is the row of A behind it. */
static void multiply_rows(const gemm *g, const a_block *a, int64_t k, tile t, int64_t height, int64_t next,
                          int64_t columns) {
    const int64_t panel = g->panel, share = tn_ceil_div(g->with->rows, tn_max64(columns >> g->panel_shift, 1));
    const real *c = t.c;
    real copy[ENDS ? COPY_ROWS * TILE_COPY : 1] __attribute__((aligned(64)));
    int64_t j = height <= WIDE_HEIGHT ? multiply_wide(g, &t, height, columns) : 0;
    copy_first(g, &t, a, height, columns, copy);
    bool itself = ends_itself(g, &t, height);
    for (int64_t begin = 0; j + panel <= columns; j += panel, begin += share) {
        prefetch_rows_of_a(g, &t, a, next, k, begin, share);
        t.c_next = j + panel < columns ? t.c + panel : c + height * t.c_row;
        if (itself)
            g->with->full[height](&t);
        else
            multiply_and_end(g, g->with->full[height], &t, height, panel);
        t.from = NULL;
        t.b += t.b_panel;
        t.c += panel;
        t.column += panel;
    }
    if (j < columns) multiply_edge(g, t, height, columns - j);
}

/* A's rows from step k on times the panels of `t`. Rows are the outer loop: a tile of A stays in the first-level cache,
 * and the panels of B are read from the second-level cache. */
static void multiply_gemm(const gemm *g, const a_block *a, int64_t k, tile t, int64_t rows, int64_t columns) {
    for (int64_t i = 0, height = 0; i < rows; i += height, t.row += height, t.c += height * t.c_row) {
        height = next_height(g, rows - i);
        aim(&t, a, i, height, k);
        multiply_rows(g, a, k, t, height, i + height, columns);
    }
}

/* ---- a group: products that share one B, on some threads --------------------------------------------------------- */

typedef struct group {
    const gemm *g;
    int64_t first, batches; /* which products */
    int threads;
    real *b_packed;      /* memory of all parts together: packed panels … */
    real *sums;          /* … and a column block of C whose k comes in pieces */
    char *parts;         /* memory of each part */
    int64_t j0, columns; /* the current stage: columns of B and C … */
    int64_t k0, steps;   /* … and steps of k */
    int64_t row_strips, column_strips;
    int64_t strip_rows; /* of C: all of a strip, or 1 where threads share rows */
    int64_t piece;      /* shared: at least this many rows are taken at once, complete tiles; else 0 */
    bool adds;          /* to what was summed before this stage; else its first chain is the first */
    real *apart;        /* shared steps: where the chain's sums go, and are not touched any further; else NULL */
    int64_t *later;     /* … and the first chain of the stage that is not added to the first one's sums yet */
    coming *coming;     /* … and what the chain behind it reads, or NULL */
} group;

/* Points `t` at B's panels from step k and column j of the stage on. */
static void aim_b(const group *s, const part *p, const int64_t *batch, tile *t, int64_t k, int64_t j) {
    const gemm *g = s->g;
    const tn_matrix *b = &g->args.b;
    t->b_k = g->panel;
    t->b_panel = t->k * g->panel;
    if (g->b_source == B_CACHED) {
        t->b = (const real *)g->args.packed_b + (s->k0 + k) * round_up(g, g->args.n) + (s->j0 + j) * t->k;
    } else if (g->b_source == B_TOGETHER) {
        t->b = s->b_packed + k * round_up(g, s->columns) + j * t->k;
    } else if (g->b_source == B_ON_THE_FLY) {
        t->b = p->b_packed;
    } else if (g->b_source == B_IN_PLACE) {
        t->b_k = b->row_stride;
        t->b_panel = g->panel;
        t->b = element(b, batch, s->k0 + k, s->j0 + j);
    }
}

/* A's few rows times columns of B that are contiguous along k: at most a vector of them. */
static void multiply_lines(const group *s, const int64_t *batch, const a_block *a, int64_t k, tile t, box at) {
    const tn_matrix *b = &s->g->args.b;
    pack_kind kind = s->g->b_layout.kind;
    aim(&t, a, 0, at.rows, k);
    t.columns = at.cols;
    const char *first = address(b, pack_size[kind], batch, s->k0 + k, s->j0 + at.col);
    bool last = k + t.k == s->steps && at.col + at.cols + s->g->with->lanes <= s->columns;
    if (last && s->g->args.k * s->g->args.n > NEAR_ELEMENTS)
        t.ahead = address(b, pack_size[kind], batch, s->k0, s->j0 + at.col + at.cols);
    s->g->with->lines(&t, kind, first, b->col_stride * pack_size[kind], (int)at.rows);
}

/* All steps of the stage for a block of C, chain after chain, into c. */
static void accumulate(const group *s, part *p, const int64_t *batch, const a_block *a, box at, real *c,
                       int64_t c_row) {
    tile t = {.c = c, .c_row = c_row, .row = at.row, .column = s->j0 + at.col};
    int64_t k = 0;
    do {
        t.k = tn_min64(CHUNK, s->steps - k);
        t.add = k > 0 || s->adds || s->g->begins;
        t.epilogue_ops = s->g->ends && s->k0 + k + t.k == s->g->args.k ? &p->epilogue_ops : NULL;
        if (s->g->b_source == B_ON_THE_FLY)
            pack_b(s->g, p, batch, (box){s->k0 + k, t.k, s->j0 + at.col, at.cols}, p->b_packed);
        if (s->g->b_source == B_LINES) {
            multiply_lines(s, batch, a, k, t, at);
        } else {
            aim_b(s, p, batch, &t, k, at.col);
            multiply_gemm(s->g, a, k, t, at.rows, at.cols);
        }
        k += CHUNK;
    } while (k < s->steps);
}

static real *place_in_c(const gemm *g, const part *p, const int64_t *batch, int64_t row, int64_t col) {
    const tn_matrix *c = &g->args.c;
    bool joined = g->ends || g->begins;
    return joined ? p->ends_in + row * c->row_stride + col * c->col_stride : element(c, batch, row, col);
}

/* Destination of a block of sums, whose elements have `size` bytes in C. */
static result_block result_at(const gemm *g, int64_t size, const int64_t *batch, box at, const real *block) {
    const tn_matrix *c = &g->args.c;
    return (result_block){.to = address(c, size, batch, at.row, at.col),
                          .row_stride = c->row_stride,
                          .col_stride = c->col_stride,
                          .from = block,
                          .from_row = BLOCK_LD,
                          .rows = at.rows,
                          .columns = at.cols};
}

static void copy_out(const gemm *g, const part *p, const int64_t *batch, box at, const real *block) {
    const tn_matrix *matrix = &g->args.c;
    if (is_half(g->dtype) && !g->args.wide) {
        result_block r = result_at(g, sizeof(uint16_t), batch, at, block);
        g->with->round(&r, g->dtype == TN_BF16);
        return;
    }
    real *c = place_in_c(g, p, batch, at.row, at.col);
    if (matrix->row_stride == 1) {
        g->with->pack(&(pack){.to = c,
                              .distance = matrix->col_stride,
                              .group = at.rows,
                              .from = block,
                              .along = 1,
                              .across = BLOCK_LD,
                              .steps = at.cols,
                              .lines = at.rows});
        return;
    }
    for (int64_t i = 0; i < at.rows; i++)
        for (int64_t j = 0; j < at.cols; j++)
            c[i * matrix->row_stride + j * matrix->col_stride] = block[i * BLOCK_LD + j];
}

/* Sums of bytes, as bytes. */
static void round_block(const gemm *g, const int64_t *batch, box at, const real *block) {
    const tn_matrix *c = &g->args.c;
    g->with->bytes->round(&(byte_result){.rounding = g->args.rounding,
                                         .channel = at.col,
                                         .from = (const int32_t *)(const void *)block,
                                         .from_row = BLOCK_LD,
                                         .to = address(c, 1, batch, at.row, at.col),
                                         .row = c->row_stride,
                                         .channels = at.cols,
                                         .pixels = at.rows});
}

static void finish_block(const gemm *g, part *p, const int64_t *batch, box at, real *block) {
    if (g->args.rounding)
        round_block(g, batch, at, block);
    else if (g->args.c.fused.vm && !g->begins)
        fused_call_run(&p->c, batch, at, block);
    else
        copy_out(g, p, batch, at, block);
}

/* Sums start from the column's addend (a row's, if the sides were swapped), copied to where they will be. */
static void begin_sums(const gemm *g, const part *p, box at, real *c, int64_t c_row) {
    const real *add = p->epilogue_ops.add + (g->swapped ? at.row : at.col);
    if (!g->swapped && c_row == at.cols) { /* twice as many at a time */
        const int64_t all = at.rows * at.cols;
        memmove(c, add, (size_t)at.cols * sizeof *c); /* a plan may let a single row share memory with the bias */
        for (int64_t done = at.cols; done < all; done *= 2)
            memcpy(c + done, c, (size_t)tn_min64(done, all - done) * sizeof *c);
        return;
    }
    for (int64_t i = 0; i < at.rows; i++, c += c_row)
        for (int64_t j = 0; j < at.cols; j++)
            c[j] = add[g->swapped ? i : j];
}

/* One block of C, `at.col` counted from the stage's first column. */
static void compute_block(const group *s, part *p, const int64_t *batch, const a_block *a, box at) {
    const gemm *g = s->g;
    box whole = {at.row, at.rows, s->j0 + at.col, at.cols};
    if (s->apart) {
        accumulate(s, p, batch, a, at, s->apart + at.row * sums_row(g) + at.col, sums_row(g));
        return;
    }
    if (g->direct) {
        int64_t c_row = g->args.c.row_stride;
        real *c = place_in_c(g, p, batch, whole.row, whole.col);
        if (g->begins) begin_sums(g, p, whole, c, c_row);
        accumulate(s, p, batch, a, at, c, c_row);
        return;
    }
    real *block = keeps_sums(g) ? s->sums + at.row * BLOCK_LD + at.col : p->c_block;
    if (g->begins) begin_sums(g, p, whole, block, BLOCK_LD);
    accumulate(s, p, batch, a, at, block, BLOCK_LD);
    if (g->whole) {
        result_block r = result_at(g, sizeof(int32_t), batch, whole, block);
        g->with->add(&r, s->k0 > 0);
        return;
    }
    if (s->k0 + s->steps == g->args.k) finish_block(g, p, batch, whole, block);
}

/* What this thread packs next: rows of the strip from `row` to `end`, or most likely of its next piece. */
static void ask_for_rows(const group *s, const int64_t *batch, a_block *a, int64_t row, int64_t end) {
    const gemm *g = s->g;
    if (!a->packed || g->args.a.fused.vm || g->a_layout.kind != PACK_REAL) return;
    a->next = element(&g->args.a, batch, row, s->k0);
    a->left = (s->piece ? g->args.m : end) - row;
}

/* `at`: rows of one product, columns of the stage. */
static void compute_strip(const group *s, part *p, const int64_t *batch, box at) {
    const gemm *g = s->g;
    const tn_matrix *a = &g->args.a;
    int64_t width = BLOCK_LD;
    if (g->b_source == B_ON_THE_FLY) width = FLY_PANELS * g->panel;
    if (g->b_source == B_LINES) width = g->with->lanes;
    for (int64_t i = 0; i < at.rows; i += g->m_block) {
        int64_t row = at.row + i, rows = tn_min64(g->m_block, at.rows - i);
        a_block block = {
            .row = a->row_stride, .k = a->col_stride, .packed = !g->a_in_place, .rows = rows, .coming = s->coming};
        if (g->a_in_place) {
            block.data = element(a, batch, row, s->k0);
        } else {
            for (int64_t k = 0; k < s->steps; k += CHUNK) {
                box chunk = {row, rows, s->k0 + k, tn_min64(CHUNK, s->steps - k)};
                pack_a(g, p, batch, chunk, p->a_packed + k * rows);
            }
            block.data = p->a_packed;
        }
        for (int64_t j = 0; j < at.cols; j += width) {
            if (j + width >= at.cols) ask_for_rows(s, batch, &block, row + rows, at.row + at.rows);
            compute_block(s, p, batch, &block, (box){row, rows, at.col + j, tn_min64(width, at.cols - j)});
        }
    }
}

/* All strips but the last have a multiple of so many columns: a panel, or half of one if B is read in place. */
static int64_t strip_unit(const group *s) {
    return s->g->b_source == B_IN_PLACE && !s->piece ? s->g->with->lanes : s->g->panel;
}

/* The parallel body: strips [begin, end) of the stage. Consecutive strips of a product with the same columns, or the
 * same rows, are merged. */
static void compute_strips(void *ctx, int64_t begin, int64_t end, int worker) {
    const group *s = ctx;
    const gemm *g = s->g;
    part p;
    part_open(&p, g, s->parts + (size_t)worker * g->part_bytes);
    const int64_t unit = strip_unit(s), units = tn_ceil_div(s->columns, unit);
    for (int64_t i = begin, next; i < end; i = next) {
        int64_t row = i % s->row_strips, column = i / s->row_strips % s->column_strips;
        int64_t batch[TN_GEMM_BATCH_AXES];
        batch_coordinates(g, s->first + i / s->row_strips / s->column_strips, batch);
        bool alike = s->row_strips == 1;
        next = tn_min64(end, i + (alike ? s->column_strips - column : s->row_strips - row));
        int64_t r0 = row * s->strip_rows, r1 = tn_min64(r0 + (next - i) * s->strip_rows, g->args.m);
        int64_t c0 = units * column / s->column_strips * unit;
        int64_t c1 = tn_min64(units * (column + (alike ? next - i : 1)) / s->column_strips * unit, s->columns);
        compute_strip(s, &p, batch, (box){r0, r1 - r0, c0, c1 - c0});
    }
}

/* Cost of a strip per step of k: its multiplications, the elements of A and B that it packs for itself, and those that
 * it reads in place. Another thread may just have written half of these; B costs more, as each step is another line. */
static int64_t strip_cost(const gemm *g, int64_t rows, int64_t columns) {
    int64_t packed = (g->a_in_place ? 0 : rows) + (g->b_source == B_ON_THE_FLY ? columns : 0);
    int64_t read = (g->a_in_place ? rows : 0) + (g->b_source == B_IN_PLACE ? READ_COST * columns : 0);
    return rows * columns + PACK_COST * packed + read;
}

/* Many rows: threads take tiles of them, a number at a time. What a strip would pack for itself is packed for once. */
static bool shares_rows(group *s) {
    const gemm *g = s->g;
    if (g->b_source == B_ON_THE_FLY || g->b_source == B_LINES) return false;
    double tile_flops = 2.0 * (double)g->with->rows * (double)s->columns * (double)tn_max64(s->steps, 1);
    int64_t piece = ((int64_t)(PIECE_FLOPS / tile_flops) + 1) * g->with->rows;
    if (s->batches * g->args.m < PIECES_A_THREAD * s->threads * piece) return false;
    s->piece = piece;
    s->row_strips = g->args.m;
    s->strip_rows = 1;
    return true;
}

/* Threads that share columns of B in place also take several at a time. */
static void share_columns(group *s) {
    const gemm *g = s->g;
    double all = 2.0 * (double)g->args.m * (double)s->columns * (double)s->steps;
    int64_t pieces = tn_min64((int64_t)(all / LITTLE_FLOPS) / s->threads, 2 * PIECES_A_THREAD);
    if (s->batches > 1 || s->row_strips > 1 || s->column_strips < s->threads || g->b_source != B_IN_PLACE) return;
    s->column_strips *= tn_max64(pieces, 1);
    s->piece = pieces > 1;
}

/* Cuts C so that the busiest thread has as little to do as possible. */
static void choose_strips(group *s) {
    s->row_strips = s->column_strips = 1;
    s->strip_rows = s->g->args.m;
    s->piece = 0;
    if (s->threads == 1 || shares_rows(s)) return;
    const int64_t unit = strip_unit(s), units = tn_ceil_div(s->columns, unit);
    int64_t m = s->g->args.m, threads = s->threads, best = INT64_MAX;
    for (int64_t columns = 1; columns <= tn_min64(threads, units); columns++) {
        int64_t rows = s->batches % threads == 0 ? 1 : tn_ceil_div(threads, columns);
        rows = tn_max64(tn_min64(rows, m / 4), 1);
        int64_t strips = tn_ceil_div(s->batches * rows * columns, threads);
        int64_t wide = tn_min64(tn_ceil_div(units, columns) * unit, s->columns);
        int64_t cost = strips * strip_cost(s->g, tn_ceil_div(m, rows), wide);
        if (columns > 1) cost += tn_ceil_div(m, rows) * CUT_COST / tn_max64(s->steps, 1);
        if (cost >= best) continue;
        best = cost;
        s->strip_rows = tn_ceil_div(m, rows);
        s->row_strips = tn_ceil_div(m, s->strip_rows);
        s->column_strips = columns;
    }
    share_columns(s);
}

/* ---- threads that share the steps of k --------------------------------------------------------------------------- */

static const int64_t no_batch[TN_GEMM_BATCH_AXES] = {0};

/* The chain at step k reads its part of A and B from memory. If these are contiguous, tiles of the chain before
 * prefetch them evenly, because each line takes long. Amounts too large to be hidden are not prefetched. */
static __attribute__((noinline)) coming *plan_coming(const gemm *g, int64_t k, coming *next) {
    enum { MOST = 12 };
    const tn_matrix *a = &g->args.a, *b = &g->args.b;
    int64_t tiles = tn_ceil_div(g->args.m, g->with->rows) * (g->args.n >> g->panel_shift);
    bool whole = a->row_stride == 1 && a->col_stride == g->args.m && b->row_stride == g->args.n;
    if (!g->a_in_place || g->b_source != B_IN_PLACE || !whole || tiles == 0) return NULL;
    int64_t end = tn_min64(k + CHUNK, g->args.k);
    *next = (coming){.at = {element(a, no_batch, 0, k), element(b, no_batch, k, 0)},
                     .end = {element(a, no_batch, 0, end), element(b, no_batch, end, 0)},
                     .times = tn_ceil_div(g->args.m + g->args.n, tiles)};
    return next->times > MOST ? NULL : next;
}

/* Chains of the stage. The first ones are added directly, because they are first in order. */
static void compute_chains(void *ctx, int64_t begin, int64_t end, int worker) {
    const group *shared = ctx;
    group s = *shared;
    const gemm *g = s.g;
    part p;
    part_open(&p, g, s.parts + (size_t)worker * g->part_bytes);
    if (begin == 0) *s.later = end;
    for (int64_t i = begin; i < end; i++) {
        s.k0 = shared->k0 + i * CHUNK;
        s.steps = tn_min64(CHUNK, g->args.k - s.k0);
        s.adds = begin == 0 && s.k0 > 0;
        coming next;
        s.coming = i + 1 < end ? plan_coming(g, s.k0 + CHUNK, &next) : NULL;
        s.apart = s.sums + (begin ? i : 0) * g->args.m * sums_row(g);
        compute_strip(&s, &p, no_batch, (box){0, g->args.m, 0, g->args.n});
    }
}

/* SUMS_COLUMNS of a row: `first` and what the later chains have there, in order. */
static void add_chains(const group *s, const real *first, real sum[SUMS_COLUMNS]) {
    int64_t distance = s->g->args.m * sums_row(s->g), chains = tn_ceil_div(s->steps, CHUNK);
    for (int j = 0; j < SUMS_COLUMNS; j++)
        sum[j] = first[j];
    for (int64_t i = *s->later; i < chains; i++)
        for (int j = 0; j < SUMS_COLUMNS; j++)
            sum[j] += first[i * distance + j];
}

/* Rows of the sums; rows of C if there are no more steps. */
static void finish_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const group *s = ctx;
    const gemm *g = s->g;
    const tn_matrix *c = &g->args.c;
    bool last = s->k0 + s->steps == g->args.k;
    part p;
    part_open(&p, g, s->parts + (size_t)worker * g->part_bytes);
    for (int64_t i = begin, rows; i < end; i += rows) {
        rows = tn_min64(g->m_block, end - i);
        for (int64_t at = 0; at < rows * sums_row(g); at += SUMS_COLUMNS) {
            real sum[SUMS_COLUMNS], *first = s->sums + i * sums_row(g) + at;
            int64_t row = at / sums_row(g), col = at % sums_row(g);
            add_chains(s, first, sum);
            real *to = first;
            if (last) to = g->direct ? element(c, no_batch, i + row, col) : p.c_block + row * BLOCK_LD + col;
            memcpy(to, sum, (size_t)(last ? tn_min64(SUMS_COLUMNS, g->args.n - col) : SUMS_COLUMNS) * sizeof *sum);
        }
        if (last && !g->direct) finish_block(g, &p, no_batch, (box){i, rows, 0, g->args.n}, p.c_block);
    }
}

static bool shares_steps(const gemm *g, int threads) { return threads > 1 && g->chains >= CHAINS_A_THREAD * threads; }

static void run_chains(const gemm *g, int threads, char *shared) {
    int64_t later = 0; /* apart, since a part writes it while others copy the group */
    group s = {.g = g, .batches = 1, .columns = g->args.n, .parts = shared + g->shared_bytes, .later = &later};
    s.sums = (real *)(void *)shared;
    for (; s.k0 < g->args.k; s.k0 += s.steps) {
        s.steps = tn_min64(g->chains * CHUNK, g->args.k - s.k0);
        int64_t chains = tn_ceil_div(s.steps, CHUNK);
        tn_parallel(chains, tn_ceil_div(chains, threads), compute_chains, &s);
        tn_parallel(g->args.m, tn_ceil_div(g->args.m, threads), finish_rows, &s);
    }
}

/* ---- packing B together ------------------------------------------------------------------------------------------ */

/* A region of B, divided into blocks of some panels and CHUNK steps, and their destination: chunk by chunk, so that the
 * panels of one chunk are contiguous and use all sets of the cache. */
typedef struct b_region {
    const gemm *g;
    const int64_t *batch;
    box at;
    real *to;
    char *parts;
} b_region;

static void pack_b_blocks(void *ctx, int64_t begin, int64_t end, int worker) {
    const b_region *r = ctx;
    part p;
    if (r->g->args.b.fused.vm) part_open(&p, r->g, r->parts + (size_t)worker * r->g->part_bytes); /* else no memory */
    int64_t chunks = tn_ceil_div(r->at.rows, CHUNK), most = LOAD_PANELS * r->g->panel;
    for (int64_t i = begin; i < end; i++) {
        int64_t j = i / chunks * most, k = i % chunks * CHUNK;
        box at = {r->at.row + k, tn_min64(CHUNK, r->at.rows - k), r->at.col + j, tn_min64(most, r->at.cols - j)};
        pack_b(r->g, &p, r->batch, at, r->to + k * round_up(r->g, r->at.cols) + j * at.rows);
    }
}

static void pack_b_together(const gemm *g, const int64_t *batch, box at, real *to, char *parts, int threads) {
    b_region r = {g, batch, at, to, parts};
    int64_t blocks = tn_ceil_div(at.cols, LOAD_PANELS * g->panel) * tn_ceil_div(at.rows, CHUNK);
    if (threads == 1)
        pack_b_blocks(&r, 0, blocks, 0);
    else
        tn_parallel_shared(blocks, 1, pack_b_blocks, &r);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void run_stage(group *s) {
    const gemm *g = s->g;
    if (g->b_source == B_TOGETHER) {
        int64_t batch[TN_GEMM_BATCH_AXES];
        batch_coordinates(g, s->first, batch);
        pack_b_together(g, batch, (box){s->k0, s->steps, s->j0, s->columns}, s->b_packed, s->parts, s->threads);
    }
    choose_strips(s);
    int64_t strips = s->batches * s->row_strips * s->column_strips;
    if (s->threads == 1) {
        compute_strips(s, 0, strips, 0);
    } else if (s->piece) {
        tn_parallel_shared(strips, s->piece, compute_strips, s);
    } else {
        tn_parallel(strips, 1, compute_strips, s);
    }
}

/* Products `first` to `first + batches`, which share one B. `shared`: shared_bytes of memory, followed by the memory of
 * the parts. */
static void run_group(const gemm *g, int64_t first, int64_t batches, int threads, char *shared) {
    group s = {.g = g, .first = first, .batches = batches, .threads = threads, .parts = shared + g->shared_bytes};
    s.sums = (real *)(void *)shared;
    s.b_packed = (real *)(void *)(shared + g->sums_bytes);
    for (s.j0 = 0; s.j0 < g->args.n; s.j0 += g->n_block) {
        s.columns = tn_min64(g->n_block, g->args.n - s.j0);
        s.k0 = 0;
        do {
            s.steps = tn_min64(g->k_block, g->args.k - s.k0);
            s.adds = s.k0 > 0 && !g->whole;
            run_stage(&s);
            s.k0 += g->k_block;
        } while (s.k0 < g->args.k);
    }
}

static void run_batches(void *ctx, int64_t begin, int64_t end, int worker) {
    const gemm *g = ctx;
    char *memory = (char *)g->args.workspace + (size_t)worker * (g->shared_bytes + g->part_bytes);
    for (int64_t i = begin; i < end; i++)
        run_group(g, i, 1, 1, memory);
}

static void pack_all(const gemm *g, char *parts, int threads) {
    pack_b_together(g, no_batch, (box){0, g->args.k, 0, g->args.n}, g->args.packed_b, parts, threads);
}

static void fill_cache(const gemm *g, int threads) {
    if (g->b_source != B_CACHED || *g->args.packed_valid) return;
    pack_all(g, (char *)g->args.workspace + g->shared_bytes, threads);
    *g->args.packed_valid = true;
}

static bool is_empty(const tn_gemm_args *args) {
    bool empty = args->m == 0 || args->n == 0;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        empty = empty || args->batch[axis] == 0;
    return empty;
}

/* With fewer rows the time is that of reading the other operand, from a shared cache or further away. */
static const double LEAST_READ_ROWS = 3;

static double work_parts(const gemm *g) {
    double rows = (double)tn_max64(tn_min64(g->args.m, g->args.n), 1);
    double time = flops(g) * (rows < LEAST_READ_ROWS ? LEAST_READ_ROWS / rows : 1);
    double moved = g->b_source == B_ON_THE_FLY ? 0 : MOVE_FLOPS * g->handed_on; /* else each would pack B */
    return (time * (double)g->batches + moved) / PART_FLOPS;
}

static int choose_threads(const gemm *g) {
    double parts = work_parts(g);
    if (parts < 2) return 1;
    int most = tn_threads();
    if (g->args.way.threads && g->args.way.threads < most) most = g->args.way.threads;
    return parts < most ? (int)parts : most;
}

static void pack_b_alone(const tile_set *with, const tn_gemm_args *args, tn_dtype dtype) {
    enum { PART_ELEMENTS = 1 << 16 }; /* what is worth a second thread's waking */
    gemm g;
    if (args->n == 0 || args->k == 0) return;
    plan_gemm(&g, with, args, dtype);
    pack_all(&g, NULL, args->n * args->k < PART_ELEMENTS ? 1 : tn_threads());
}

static void run_gemm(const tile_set *with, const tn_gemm_args *args, tn_dtype dtype) {
    if (is_empty(args)) return;
    gemm g;
    plan_gemm(&g, with, args, dtype);
    int threads = choose_threads(&g);
    fill_cache(&g, threads);
    if (shares_steps(&g, threads)) {
        run_chains(&g, threads, g.args.workspace);
    } else if (threads > 1 && splits_by_batch(&g, threads)) {
        tn_parallel_shared(g.batches, 1, run_batches, &g);
    } else if (g.b_fixed && (g.direct || !in_pieces(&g))) {
        run_group(&g, 0, g.batches, threads, g.args.workspace);
    } else {
        for (int64_t i = 0; i < g.batches; i++)
            run_group(&g, i, 1, threads, g.args.workspace);
    }
}

/* The product as it will run: a copy of B that is kept is there then. */
static tn_gemm_args with_kept(const tn_gemm_args *args) {
    tn_gemm_args run = *args;
    run.packed_b = args->packed_valid ? args->packed_valid : NULL; /* anything but NULL */
    return run;
}

/* For any number of threads up to `threads`. */
static size_t workspace(const tile_set *with, const tn_gemm_args *args, tn_dtype dtype, int threads) {
    if (is_empty(args)) return 64;
    const tn_gemm_args run = with_kept(args);
    gemm g;
    plan_gemm(&g, with, &run, dtype);
    bool several = threads > 1 && args->way.threads != 1 && work_parts(&g) >= 2;
    size_t parts = several ? (size_t)threads : 1, most = 64;
    size_t together = g.shared_bytes + parts * g.part_bytes;
    size_t apart = may_split_by_batch(&g) ? parts * (g.shared_bytes + g.part_bytes) : 0;
    if (together > most) most = together;
    return apart > most ? apart : most;
}

static size_t packed_bytes(const tile_set *with, int64_t n, int64_t k) {
    int64_t panel = 2 * with->lanes;
    return area(tn_ceil_div(n, panel) * panel * tn_ceil_div(k, with->width));
}

#ifdef TN_VEC_F64
const tn_gemm_table tn_gemm_table_f64 = {run_gemm, workspace, packed_bytes, pack_b_alone};
#else
/* ==== row-fused GEMM chains ======================================================================================= */
/* If row r of a product's operand is row r of an earlier result, a thread takes its rows through all products: they
 * stay in its caches, and threads synchronize once instead of once per product. Each product is divided as on its own,
 * so the bits are the same. Operands B that must be packed are packed first, by all threads together. */

enum {
    PAIR_ROWS = 512, /* with fewer rows, packing both panels at each run takes longer than another pass over A */
    CHAIN_TILES = 6, /* rows that go through all products: few enough for the second-level cache, with all B */
    CHAIN_ROWS = 8   /* and fewer than that for each thread are better cut by columns */
};

/* Kept from run to run, and written only where addresses changed: lines that one thread writes are fetched again by all
 * others, which takes as long as some rows of a small product. */
typedef struct chain {
    gemm step[TN_ROW_FUSED_MOST];
    real *b_packed[TN_ROW_FUSED_MOST];
    struct addresses {
        const void *a, *b, *c, *packed_b;
    } bound[TN_ROW_FUSED_MOST];
    const void *memory;
    /* this step and the next have the same A and are run as a pair, unless this one is in a pair with the one before */
    bool pair[TN_ROW_FUSED_MOST];
    int count; /* 0: nothing is planned yet */
    int64_t rows, block;
    char *parts; /* memory of each part, which its steps use in turn */
    size_t part_bytes, shared_bytes;
} chain;

/* A step's B is packed once for all rows, or read in place. */
static void plan_step(gemm *g, const tile_set *with, const tn_gemm_args *args) {
    plan_gemm(g, with, args, TN_F32);
    if (g->swapped || (g->b_source != B_ON_THE_FLY && g->b_source != B_LINES)) return;
    tn_gemm_args together = *args;
    together.way.b = TN_GEMM_PACKED;
    plan_gemm(g, with, &together, TN_F32);
}

/* Rows of a result that is too narrow for a vector are columns of B, which are contiguous along k. */
static bool is_row_fusable(const gemm *g) {
    bool columns = g->swapped && g->b_source == B_LINES, rows = !g->swapped && g->b_source != B_LINES;
    return g->batches == 1 && (rows || columns) && !in_pieces(g) && g->n_block == g->args.n;
}

/* ---- pairs of products with the same left operand ---------------------------------------------------------------- */

/* A step as it was before its sides were changed, which these products do without. */
typedef struct narrow {
    const real *a, *b;
    int64_t a_row, a_k, b_k, b_column, c_row, c_column, columns;
} narrow;

static narrow narrow_of(const gemm *g) {
    const tn_matrix *a = &g->args.a, *b = &g->args.b, *c = &g->args.c;
    if (g->swapped)
        return (narrow){.a = b->data,
                        .b = a->data,
                        .a_row = b->col_stride,
                        .a_k = b->row_stride,
                        .b_k = a->col_stride,
                        .b_column = a->row_stride,
                        .c_row = c->col_stride,
                        .c_column = c->row_stride,
                        .columns = g->args.m};
    return (narrow){.a = a->data,
                    .b = b->data,
                    .a_row = a->row_stride,
                    .a_k = a->col_stride,
                    .b_k = b->row_stride,
                    .b_column = b->col_stride,
                    .c_row = c->row_stride,
                    .c_column = c->col_stride,
                    .columns = g->args.n};
}

/* May it be one of two? */
static bool is_narrow(const gemm *g) {
    return !has_epilogue(&g->args) && narrow_of(g).columns < g->with->lanes && g->args.k <= CHUNK;
}

static bool are_pair(const gemm *g, const gemm *h) {
    const narrow x = narrow_of(g), y = narrow_of(h);
    bool same = x.a == y.a && x.a_row == y.a_row && x.a_k == y.a_k && g->args.k == h->args.k;
    return same && x.columns + y.columns <= g->with->lanes && is_narrow(g) && is_narrow(h);
}

static void choose_pairs(chain *c) {
    for (int i = 0; i + 1 < c->count && c->rows >= PAIR_ROWS; i++)
        c->pair[i] = are_pair(&c->step[i], &c->step[i + 1]);
}

static void pack_pair(const gemm *pair, real *to) {
    for (const gemm *g = pair; g < pair + 2; g++) {
        narrow x = narrow_of(g);
        g->with->pack(&(pack){.to = to,
                              .distance = g->panel,
                              .group = g->panel,
                              .from = x.b,
                              .along = x.b_k,
                              .across = x.b_column,
                              .steps = g->args.k,
                              .lines = x.columns});
        to += x.columns;
    }
}

/* A tile's columns of one of the two, to where they are in C; column by column, as there are more rows. */
static void take_side(const gemm *g, const real *sums, int64_t row, int64_t rows) {
    const narrow x = narrow_of(g);
    real *c = (real *)g->args.c.data + row * x.c_row;
    for (int64_t j = 0; j < x.columns; j++)
        for (int64_t i = 0; i < rows; i++)
            c[i * x.c_row + j * x.c_column] = sums[i * g->panel + j];
}

static void run_pair(const gemm *g, const real *b_packed, int64_t row, int64_t rows) {
    real sums[MOST_SUMS] __attribute__((aligned(64)));
    const narrow x = narrow_of(g);
    tile t = {.a_row = x.a_row,
              .a_k = x.a_k,
              .b = b_packed,
              .b_k = g->panel,
              .c = sums,
              .c_row = g->panel,
              .k = g->args.k,
              .columns = x.columns + narrow_of(g + 1).columns};
    for (int64_t end = row + rows, height; row < end; row += height) {
        height = next_height(g, end - row);
        t.a = x.a + row * x.a_row;
        g->with->edge[height](&t);
        take_side(g, sums, row, height);
        take_side(g + 1, sums + x.columns, row, height);
    }
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

/* memory: NULL to compute the sizes only. */
static void lay_out_chain(chain *c, char *memory) {
    c->memory = memory;
    c->part_bytes = c->shared_bytes = 0;
    for (int i = 0; i < c->count; i++) {
        const gemm *g = &c->step[i];
        size_t panel = is_narrow(g) ? area(g->panel * g->args.k) : 0;
        c->b_packed[i] = memory ? (real *)(void *)(memory + c->shared_bytes) : NULL;
        c->shared_bytes += g->shared_bytes < panel ? panel : g->shared_bytes;
        if (c->part_bytes < g->part_bytes) c->part_bytes = g->part_bytes;
    }
    c->parts = memory ? memory + c->shared_bytes : NULL;
}

static void plan_chain(chain *c, const tile_set *with, const tn_gemm_row_fused *args) {
    bool moved = c->count == 0 || c->memory != args->workspace;
    for (int i = 0; i < args->count; i++) {
        const tn_gemm_args *x = args->step[i];
        struct addresses at = {x->a.data, x->b.data, x->c.data, x->packed_b};
        if (c->count && memcmp(&c->bound[i], &at, sizeof at) == 0) continue;
        plan_step(&c->step[i], with, x);
        c->bound[i] = at;
        moved = true;
    }
    if (!moved) return;
    c->count = args->count;
    c->rows = args->step[0]->m;
    c->block = CHAIN_TILES * with->rows;
    choose_pairs(c);
    lay_out_chain(c, args->workspace);
}

static void run_step(const gemm *g, real *b_packed, char *memory, int64_t row, int64_t rows) {
    group s = {.g = g, .batches = 1, .threads = 1, .b_packed = b_packed, .columns = g->args.n, .steps = g->args.k};
    part p;
    part_open(&p, g, memory);
    compute_strip(&s, &p, no_batch, g->swapped ? (box){0, g->args.m, row, rows} : (box){row, rows, 0, g->args.n});
}

static void chain_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const chain *c = ctx;
    char *memory = c->parts + (size_t)worker * c->part_bytes;
    for (int64_t i = begin, rows; i < end; i += rows) {
        rows = end - i < 2 * c->block ? end - i : c->block;
        for (int step = 0; step < c->count; step += 1 + c->pair[step]) {
            if (c->pair[step])
                run_pair(&c->step[step], c->b_packed[step], i, rows);
            else
                run_step(&c->step[step], c->b_packed[step], memory, i, rows);
        }
    }
}

static int chain_threads(const chain *c) {
    double all = 0;
    for (int i = 0; i < c->count; i++)
        all += flops(&c->step[i]);
    int64_t most = tn_min64(tn_threads(), tn_max64(c->rows / CHAIN_ROWS, 1));
    return all / PART_FLOPS < (double)most ? (int)tn_max64((int64_t)(all / PART_FLOPS), 1) : (int)most;
}

static void bring_b(const chain *c, int step, int threads) {
    const gemm *g = &c->step[step];
    if (c->pair[step]) {
        pack_pair(g, c->b_packed[step]);
        return;
    }
    bool keep = g->b_source == B_CACHED && !*g->args.packed_valid;
    if (!keep && g->b_source != B_TOGETHER) return;
    real *to = keep ? (real *)g->args.packed_b : c->b_packed[step];
    pack_b_together(g, no_batch, (box){0, g->args.k, 0, g->args.n}, to, c->parts, threads);
    if (keep) *g->args.packed_valid = true;
}

static void run_chain(const tile_set *with, const tn_gemm_row_fused *args) {
    chain *c = args->plan;
    plan_chain(c, with, args);
    int threads = chain_threads(c);
    for (int i = 0; i < c->count; i += 1 + c->pair[i])
        bring_b(c, i, threads);
    if (threads == 1) {
        chain_rows(c, 0, c->rows, 0);
    } else if (c->rows >= 2 * PIECES_A_THREAD * threads * c->block) {
        tn_parallel_shared(c->rows, c->block, chain_rows, c);
    } else {
        tn_parallel(c->rows, tn_ceil_div(c->rows, threads), chain_rows, c);
    }
}

static bool takes_step(const tile_set *with, const tn_gemm_args *args) {
    gemm g;
    if (is_empty(args) || args->m < 2 * CHAIN_ROWS) return false;
    plan_step(&g, with, args);
    return is_row_fusable(&g);
}

static size_t chain_workspace(const tile_set *with, const tn_gemm_row_fused *args, int threads) {
    tn_gemm_args kept[TN_ROW_FUSED_MOST];
    tn_gemm_row_fused run = *args;
    chain c = {.count = 0};
    for (int i = 0; i < args->count; i++) {
        kept[i] = with_kept(args->step[i]);
        run.step[i] = &kept[i];
    }
    plan_chain(&c, with, &run);
    return c.shared_bytes + (size_t)(threads > 1 ? threads : 1) * c.part_bytes;
}

const tn_gemm_table tn_gemm_table_f32 = {run_gemm, workspace, packed_bytes, pack_b_alone};
const tn_gemm_chain_table tn_gemm_chains = {sizeof(chain), takes_step, chain_workspace, run_chain};
#endif
