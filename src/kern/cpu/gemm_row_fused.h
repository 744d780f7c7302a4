/* gemm_row_fused.h — products one behind the other, done by rows; part of gemm.c, for float alone.
 *
 * Where row r of what a product reads was made as row r by those before it, a thread takes its rows through all of
 * them: they stay in its caches, and threads meet once instead of once a product. Each product is cut as it is by
 * itself, so no bit depends on it. Operands B that have to be packed are packed before, by all threads together. */
#ifndef TN_GEMM_ROW_FUSED_H
#define TN_GEMM_ROW_FUSED_H

enum {
    PAIR_ROWS = 512, /* of fewer, packing both panels anew at each run takes longer than another pass over A */
    CHAIN_TILES = 6, /* rows that go through all products at once: few enough for the second cache, beside all B */
    CHAIN_ROWS = 8   /* and fewer than that for each thread are better cut by columns */
};

/* Kept from run to run, and written only where addresses changed: lines that a thread writes anew are fetched by all
 * the others, which takes as long as some rows of a small product. */
typedef struct chain {
    gemm step[TN_ROW_FUSED_MOST];
    real *b_packed[TN_ROW_FUSED_MOST];
    struct addresses {
        const void *a, *b, *c, *packed_b;
    } bound[TN_ROW_FUSED_MOST];
    const void *memory;
    /* this step and the next stand beside each other, unless it did with the one before */
    bool pair[TN_ROW_FUSED_MOST];
    int count;                /* 0: nothing is planned yet */
    int64_t rows, block;
    char *parts; /* memory of each part, which its steps use one after the other */
    size_t part_bytes, shared_bytes;
} chain;

/* A step's B is packed once for all rows, or lies there. */
static void plan_step(gemm *g, const tile_set *with, const tn_gemm_args *args) {
    plan_gemm(g, with, args, TN_F32);
    if (g->swapped || (g->b_source != B_ON_THE_FLY && g->b_source != B_LINES)) return;
    tn_gemm_args together = *args;
    together.way.b = TN_GEMM_PACKED;
    plan_gemm(g, with, &together, TN_F32);
}

/* Rows of a result that is too narrow for a vector are columns of B, which lie along k. */
static bool is_row_fusable(const gemm *g) {
    bool columns = g->swapped && g->b_source == B_LINES, rows = !g->swapped && g->b_source != B_LINES;
    return g->batches == 1 && (rows || columns) && !in_pieces(g) && g->n_block == g->args.n;
}

/* ---- two products beside each other ------------------------------------------------------------------------------ */

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
    for (int64_t j = 0; j < x.columns; j++) {
        for (int64_t i = 0; i < rows; i++)
            c[i * x.c_row + j * x.c_column] = sums[i * g->panel + j];
    }
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

static void lay_out_chain(chain *c, char *memory) {
    c->memory = memory;
    c->part_bytes = c->shared_bytes = 0;
    for (int i = 0; i < c->count; i++) {
        const gemm *g = &c->step[i];
        size_t panel = is_narrow(g) ? area(g->panel * g->args.k) : 0;
        c->b_packed[i] = (real *)(void *)(memory + c->shared_bytes);
        c->shared_bytes += g->shared_bytes < panel ? panel : g->shared_bytes;
        if (c->part_bytes < g->part_bytes) c->part_bytes = g->part_bytes;
    }
    c->parts = memory + c->shared_bytes;
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
    chain c = {.count = 0};
    plan_chain(&c, with, args);
    return c.shared_bytes + (size_t)(threads > 1 ? threads : 1) * c.part_bytes;
}

#endif
