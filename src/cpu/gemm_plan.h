/* gemm_plan.h — the plan of a product before it runs: its arguments simplified, the source of B, sizes of blocks and
 * memory. Part of gemm.c, for float and for double; gemm.c explains sources and blocks. */
#ifndef TN_GEMM_PLAN_H
#define TN_GEMM_PLAN_H

#include "cpu/isa.h"
#include "cpu/tile_set.h"

enum {
    CHUNK = KIR_KSUM,
    QUAD = 4, /* bytes in a step */
    BLOCK_LD = TN_GEMM_BLOCK_LD,
    K_BLOCK = 16 * CHUNK, /* steps of A and B that are packed at once, at most */
    /* Costs of one strip, in multiplications (measured): */
    PACK_COST = 10,  /* packing an element */
    READ_COST = 30,  /* reading an element of B in place, if half of B is in another thread's cache */
    CUT_COST = 16000 /* writing a row of C that two threads share, once for all steps of k */
};

/* A: a block of rows. */
enum {
    A_ELEMENTS = (512 << 10) / sizeof(real), /* packed by one thread: half of a second cache of 1 MiB */
    MIN_TILES = 4,                           /* fewer would read B too often … */
    MAX_TILES = 12,                          /* … and with more C falls out of the cache */
    SHORT_COLUMN = 512 / sizeof(real),       /* eight to a page: read in place */
    FEW_PANELS = 16,                         /* too few uses of a packed row */
    COPY_ROWS = 14,                          /* of tiles that copy theirs */
    LOW_ROWS = 8 /* tiles with fewer multiply too little in a step to hide a line's arrival */
};

/* B: panels of columns. */
enum {
    FLY_PANELS = 4,                        /* packed just before use: with CHUNK steps they stay in the second cache */
    B_ELEMENTS = (8 << 20) / sizeof(real), /* packed by all threads together: a share of the third cache … */
    MIN_COLUMNS = 512,                     /* … but at least this many columns */
    LOAD_STEPS = 16,                       /* a prologue fills blocks of this many steps … */
    LOAD_PANELS = 8,                       /* … and columns: 4096 elements with AVX-512 */
    OWN_B_ELEMENTS = (1 << 20) / sizeof(real), /* a batch whose B is smaller is split over threads by product */
    NEAR_ELEMENTS = (1 << 20) / sizeof(real)   /* so much of B is in a second cache: nothing need be asked for */
};

/* Threads share the steps of k. */
enum {
    LITTLE = 256,           /* rows and columns of C at most */
    CHAINS_A_THREAD = 4,    /* … and at least this many chains: the last thread may have one fewer */
    SUMS_COLUMNS = 16,      /* added at once: vectors, whatever the instruction set */
    SUMS_ELEMENTS = 1 << 18 /* of all chains that wait to be added up */
};

static const double TOGETHER_FLOPS = 3e7; /* fewer do not repay packing B only because its lines conflict */
static const double PIECE_FLOPS = 4e6;    /* of a piece that threads steal from each other */
static const double LITTLE_FLOPS = 2.5e6; /* … of columns, where next to nothing is packed */
enum { PIECES_A_THREAD = 4 };             /* fewer: each thread has its strip */

static const double MOVE_FLOPS = 128; /* reading an element of another thread costs as many */
enum { NARROW = 16 };                 /* columns of less than a panel: sums are few */
enum { FEW_ROWS = 16 };               /* fewer are made by one thread, or by columns */

enum {
    ENDS = sizeof(real) == sizeof(float), /* are there endings? */
    MOST_SUMS = 2048 / sizeof(real)       /* of a tile: 14 by 32 with AVX-512 */
};

typedef enum b_source { B_CACHED, B_IN_PLACE, B_TOGETHER, B_ON_THE_FLY, B_LINES } b_source;

/* Layout of an operand in memory. */
typedef struct layout {
    pack_kind kind;
    int64_t second; /* if a step has several elements: the distance from one to the next */
} layout;

/* Facts of a call, computed before it starts. */
typedef struct gemm {
    const tile_set *with;
    tn_gemm_args args; /* simplified: see simplify() */
    tn_dtype dtype;    /* of A, B and, unless it is wide, C in memory */
    layout a_layout, b_layout;
    int rest;      /* words: elements of the last step of k, if there are fewer */
    bool whole;    /* C is i32, sums are floats */
    int64_t panel; /* columns: 1 << panel_shift */
    int panel_shift;
    int64_t batches;
    double handed_on; /* of A, whose rows threads have probably just made, or 0 */
    bool swapped;     /* rows have become columns: see swap_sides() */
    bool b_fixed;     /* one B for all batches */
    b_source b_source;
    bool a_in_place;
    bool direct;    /* tiles write C itself */
    bool ends;      /* … where the epilogue would, which they take the place of */
    bool begins;    /* so do sums that begin as what it would add */
    int64_t chains; /* chains that threads share: this many at once, each with its own sums; 0: none */
    int64_t m_block, n_block, k_block;
    size_t a_bytes, b_bytes, c_bytes, load_bytes, scratch_bytes; /* of one part */
    size_t sums_bytes, shared_bytes; /* of all parts together: sums, then packed panels of B */
    size_t part_bytes;
} gemm;

/* ---- the call, simplified ---------------------------------------------------------------------------------------- */

static void swap64(int64_t *a, int64_t *b) {
    int64_t x = *a;
    *a = *b;
    *b = x;
}

static void transpose(tn_matrix *x) { swap64(&x->row_stride, &x->col_stride); }

static bool has_epilogue(const tn_gemm_args *g) { return g->a.fused.vm || g->b.fused.vm || g->c.fused.vm; }

/* Strides of axes with one element say nothing: give them the values that the checks below like best. */
static void settle_strides(tn_matrix *x, int64_t rows, int64_t cols) {
    if (cols == 1) x->col_stride = 1;
    if (rows == 1) x->row_stride = cols == 1 ? 1 : x->row_stride;
}

/* The last batch axis becomes rows of A and C where they follow each other in memory and share one B. */
static void fold_batch(tn_gemm_args *g) {
    if (has_epilogue(g)) return;
    for (int axis = TN_GEMM_BATCH_AXES - 1; axis >= 0; axis--) {
        if (g->batch[axis] == 1) continue;
        if (g->m == 1) {
            g->a.row_stride = g->a.batch_stride[axis];
            g->c.row_stride = g->c.batch_stride[axis];
        }
        bool follows = g->b.batch_stride[axis] == 0 && g->a.batch_stride[axis] == g->m * g->a.row_stride &&
                       g->c.batch_stride[axis] == g->m * g->c.row_stride;
        if (!follows) return;
        g->m *= g->batch[axis];
        g->batch[axis] = 1;
    }
}

/* Both sides have fixed signedness then. */
static bool sums_integers(const gemm *g) { return g->with->bytes; }

/* Whether the epilogue only adds a number per column, to few columns and a single chain. Then sums may start with it: a
 * + b = b + a. C is where the epilogue would write. */
static bool begins_as_bias(const gemm *of) {
    const tn_gemm_args *g = &of->args;
    const tn_fused_epilogue *e = g->c.fused.epilogue_ops;
    if (!ENDS || !g->c.fused.vm || !e || of->dtype != TN_F32 || g->k > CHUNK || g->n >= NARROW) return false;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        if (g->batch[axis] > 1) return false;
    bool only = e->times.buffer < 0 && e->also.buffer < 0 && e->floor.buffer < 0 && e->ceiling.buffer < 0 && !e->relu;
    return e->add.buffer >= 0 && only && !g->a.fused.vm && !g->b.fused.vm;
}

/* Computes Cᵀ = Bᵀ·Aᵀ if C is column-major, or too narrow to fill a vector. a·b = b·a, so no bit changes. */
static void swap_sides(gemm *of) {
    tn_gemm_args *g = &of->args;
    if ((has_epilogue(g) && !of->begins) || g->packed_b || sums_integers(of)) return;
    bool by_columns = g->c.col_stride != 1 && g->c.row_stride == 1;
    bool narrow = g->n <= of->with->lanes / 4 && g->m >= of->with->lanes;
    if (!by_columns && !narrow) return;
    of->swapped = true;
    tn_matrix a = g->a;
    g->a = g->b;
    g->b = a;
    transpose(&g->a);
    transpose(&g->b);
    transpose(&g->c);
    swap64(&g->m, &g->n);
    layout a_layout = of->a_layout;
    of->a_layout = of->b_layout;
    of->b_layout = a_layout;
}

static bool is_half(tn_dtype dtype) { return dtype == TN_F16 || dtype == TN_BF16; }

/* An operand with distance `along` between elements along k and `across` between lines: in words if the memory has
 * words, else with several steps at a time. */
static layout layout_of_words(const gemm *g, tn_matrix *x, pack_kind kind, int64_t lines, int64_t *along,
                              int64_t *across) {
    const int64_t width = g->with->width;
    int64_t strides = lines > 1 ? *across : 0;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        strides |= g->args.batch[axis] > 1 ? x->batch_stride[axis] : 0;
    layout l = {.kind = kind, .second = *along};
    bool words = width * pack_size[kind] == (int64_t)sizeof(real) && *along == 1 && !g->rest;
    if (x->fused.vm || !words || strides & (width - 1)) {
        *along *= width;
        return l;
    }
    *across /= width;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        x->batch_stride[axis] /= width;
    return (layout){.kind = PACK_REAL};
}

static void word_layouts(gemm *g) {
    tn_gemm_args *x = &g->args;
    g->rest = (int)(x->k % g->with->width);
    x->k = tn_ceil_div(x->k, g->with->width);
    const bool bytes = g->with->bytes, quads = g->with->width == QUAD;
    pack_kind a = !bytes ? PACK_PAIRS : quads ? PACK_QUADS : PACK_U8, b = a == PACK_U8 ? PACK_I8 : a;
    g->a_layout = layout_of_words(g, &x->a, a, x->m, &x->a.col_stride, &x->a.row_stride);
    g->b_layout = layout_of_words(g, &x->b, b, x->n, &x->b.row_stride, &x->b.col_stride);
}

static pack_kind gemm_kind_of(tn_dtype dtype) {
    static const uint8_t kinds[TN_DTYPE_COUNT] = {
        [TN_F16] = PACK_F16, [TN_BF16] = PACK_BF16, [TN_I8] = PACK_I8, [TN_U8] = PACK_U8};
    return (pack_kind)kinds[dtype];
}

static void choose_layouts(gemm *g) {
    if (g->with->width > 1) {
        word_layouts(g);
        return;
    }
    g->a_layout.kind = gemm_kind_of(g->whole ? g->args.a_dtype : g->dtype);
    g->b_layout.kind = gemm_kind_of(g->whole ? g->args.b_dtype : g->dtype);
}

static void simplify(gemm *of) {
    tn_gemm_args *g = &of->args;
    choose_layouts(of);
    fold_batch(g);
    settle_strides(&g->a, g->m, g->k);
    settle_strides(&g->b, g->k, g->n);
    of->begins = begins_as_bias(of);
    if (of->begins) {
        g->c.row_stride = g->c.fused.epilogue_ops->to.row;
        g->c.col_stride = 1;
    }
    settle_strides(&g->c, g->m, g->n);
    swap_sides(of);
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* Number of panels for this many columns, and their columns. */
static int64_t panels_of(const gemm *g, int64_t columns) { return (columns + g->panel - 1) >> g->panel_shift; }
static int64_t round_up(const gemm *g, int64_t columns) { return panels_of(g, columns) << g->panel_shift; }

static int64_t max_rows(const gemm *g) { return MAX_TILES * g->with->rows; }

/* Results of a prologue of B may differ from product to product, unless the caller keeps one packed copy for all. */
static bool is_b_fixed(const tn_gemm_args *g) {
    if (g->packed_b) return true;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        if (g->batch[axis] > 1 && (g->b.batch_stride[axis] != 0 || g->b.fused.vm)) return false;
    return true;
}

/* Lines at this distance share `sets` sets of the first cache, whose ways have 4096 bytes, or fewer. */
static bool share_sets(int64_t stride, int sets) { return stride * (int64_t)sizeof(real) % (4096 / sets) == 0; }

static bool has_low_tiles(const gemm *g) { return g->with->rows < LOW_ROWS; }
static double flops(const gemm *g) { return 2.0 * (double)g->args.m * (double)g->args.n * (double)g->args.k; }

static bool has_readable_b(const gemm *g) {
    const tn_gemm_args *x = &g->args;
    return !x->b.fused.vm && g->b_layout.kind == PACK_REAL && x->b.col_stride == 1;
}

/* Contiguous rows of B are read in place if B is read only a few times, or from a cache where its lines stay. */
static bool is_b_readable(const gemm *g) {
    const tn_gemm_args *x = &g->args;
    if (!has_readable_b(g)) return false;
    if (x->m <= max_rows(g)) return true;
    const double most = 2.0 * (double)tn_cpu().l2 / sizeof(real);
    const bool often = has_low_tiles(g) && flops(g) >= TOGETHER_FLOPS;
    return (double)x->k * (double)x->n < most && !share_sets(x->b.row_stride, often ? 4 : 1);
}

/* Packing for many rows of A is worth a barrier of all threads; if B is used for one block of rows, the thread that
 * uses it packs it. */
static b_source choose_b(const gemm *g) {
    const tn_gemm_args *x = &g->args;
    if (x->packed_b) return B_CACHED;
    bool used_once = x->m <= max_rows(g) && !(g->b_fixed && g->batches > 1);
    if (x->way.b == TN_GEMM_IN_PLACE && has_readable_b(g)) return B_IN_PLACE;
    if (x->way.b == TN_GEMM_AT_USE && used_once) return B_ON_THE_FLY;
    if (x->way.b == TN_GEMM_PACKED) return B_TOGETHER;
    if (is_b_readable(g)) return B_IN_PLACE;
    if (!used_once) return B_TOGETHER;
    bool lines = x->m <= LINES_ROWS && !x->b.fused.vm && x->b.row_stride == 1 && g->with->lines_take[g->b_layout.kind];
    return lines ? B_LINES : B_ON_THE_FLY;
}

/* Tiles of full height copy their rows first if that makes their loads cheaper. With many panels of B, packing them
 * costs little compared with the product, and is better if another thread shares the core, because a step's elements
 * are then in one cache line. */
static bool has_few_panels(const gemm *g) { return g->args.n <= FEW_PANELS * g->panel; }

/* Contiguous rows are streams: packing them gains nothing, unless they conflict in the cache. Columns are read 14
 * elements at a time and leave the page at almost every step, unless they are short. Low tiles have fewer rows than a
 * set has lines, and read a part of a column's line, which the next tile finds in the cache unless columns conflict. */
static bool choose_a_in_place(const gemm *g) {
    const tn_gemm_args *x = &g->args;
    if (x->a.fused.vm || g->a_layout.kind != PACK_REAL) return false;
    if (x->way.a) return x->way.a == TN_GEMM_IN_PLACE;
    if (x->m <= g->with->rows || x->n <= 2 * g->panel) return true;
    if (x->a.col_stride == 1 && g->with->folds && x->m >= 2 * g->with->rows) return has_few_panels(g);
    if (x->a.col_stride == 1) return !share_sets(x->a.row_stride, 1) || (has_low_tiles(g) && has_few_panels(g));
    if (x->a.row_stride != 1 || x->a.col_stride <= 0) return false;
    return has_low_tiles(g) ? !share_sets(x->a.col_stride, 2) : x->a.col_stride <= SHORT_COLUMN;
}

/* Whether the fused epilogue reads elements at C's places, so that a plan may share their memory: a matrix, or, if C is
 * a single line, also the addend. */
static bool epilogue_reads_c_places(const tn_gemm_args *x) {
    const tn_fused_epilogue *e = x->c.fused.epilogue_ops;
    bool line = x->m == 1 || x->n == 1;
    if (e->also.buffer >= 0 || (line && e->each.buffer >= 0)) return true;
    return e->gate.buffer >= 0 || (e->add.buffer >= 0 && line);
}

/* Such elements must not be overwritten before a sum is complete. */
static bool finishes_in_registers(const gemm *g) {
    const tn_fused_program *program = &g->args.c.fused;
    if (!ENDS || !program->vm || !program->epilogue_ops || g->dtype != TN_F32 || g->batches > 1) return false;
    if (g->begins || g->args.m <= WIDE_HEIGHT) return false; /* tiles of several panels do not finish in registers */
    return g->b_source != B_LINES && !g->chains && (g->args.k <= CHUNK || !epilogue_reads_c_places(&g->args));
}

/* k is too long to be packed at once: C is visited several times. */
static bool in_pieces(const gemm *g) { return g->args.k > g->k_block; }

/* … and its sums are kept in separate memory meanwhile. */
static bool keeps_sums(const gemm *g) { return !g->direct && !g->whole && in_pieces(g); }

/* How much is packed and finished at once. */
static void choose_blocks(gemm *g) {
    const tn_gemm_args *x = &g->args;
    const int64_t height = g->with->rows;
    bool fly = g->b_source == B_ON_THE_FLY, together = g->b_source == B_TOGETHER;
    int64_t depth = K_BLOCK;
    if (fly) depth = tn_max64(A_ELEMENTS / x->m / CHUNK, 1) * CHUNK;
    if (g->a_in_place && !together) depth = x->k;
    if (g->whole) depth = CHUNK;
    g->k_block = tn_max64(tn_min64(x->k, depth), 1);
    int64_t width = x->n;
    if (together) width = tn_max64((B_ELEMENTS / g->k_block >> g->panel_shift) << g->panel_shift, MIN_COLUMNS);
    if (keeps_sums(g)) width = BLOCK_LD;
    g->n_block = tn_min64(width, x->n);
    int64_t tiles = tn_min64(tn_max64(A_ELEMENTS / g->k_block / height, MIN_TILES), MAX_TILES);
    if (!g->direct && x->k <= 2 * CHUNK) tiles = 2;
    if (fly) tiles = MAX_TILES;
    g->m_block = tn_min64(tiles * height, x->m);
}

static int64_t sums_row(const gemm *g) { return tn_ceil_div(g->args.n, SUMS_COLUMNS) * SUMS_COLUMNS; }

/* If threads share rows or columns of a small C, each reads nearly all of both operands, half of which another thread
 * has just written. If they share steps of k, each reads its own part, and only a small C per chain is exchanged. */
static int64_t chains_to_share(const gemm *g) {
    const tn_gemm_args *x = &g->args;
    bool small = g->batches == 1 && x->m <= LITTLE && x->n <= LITTLE && g->dtype != TN_I32;
    bool own = g->b_source != B_TOGETHER && g->b_source != B_LINES && !x->a.fused.vm && !x->b.fused.vm;
    if (!small || !own) return 0;
    int64_t chains = tn_min64(SUMS_ELEMENTS / (x->m * sums_row(g)), tn_ceil_div(x->k, CHUNK));
    return chains >= 2 * CHAINS_A_THREAD ? chains : 0;
}

static size_t area(int64_t elements) { return tn_whole_lines((size_t)elements * sizeof(real)); }

static void choose_memory(gemm *g) {
    const tn_gemm_args *x = &g->args;
    bool pieces = keeps_sums(g);
    int64_t columns = tn_min64(x->n, BLOCK_LD);
    g->a_bytes = g->a_in_place ? 0 : area(g->m_block * g->k_block);
    int64_t fly = tn_min64(round_up(g, x->n), FLY_PANELS * g->panel) * tn_min64(x->k, CHUNK);
    g->b_bytes = g->b_source == B_ON_THE_FLY ? area(fly) : 0;
    g->c_bytes = g->direct || (pieces && !g->chains) ? 0 : area((g->m_block - 1) * BLOCK_LD + columns);
    g->load_bytes = x->a.fused.vm ? area(g->with->rows * BLOCK_LD) : 0;
    if (x->b.fused.vm && g->load_bytes < area(LOAD_STEPS * BLOCK_LD)) g->load_bytes = area(LOAD_STEPS * BLOCK_LD);
    g->scratch_bytes = fused_call_scratch(
        &x->a.fused, fused_call_scratch(&x->b.fused, g->ends || g->begins ? 0 : fused_call_scratch(&x->c.fused, 0)));
    g->part_bytes = g->a_bytes + g->b_bytes + g->c_bytes + g->load_bytes + g->scratch_bytes;
    g->shared_bytes = g->b_source == B_TOGETHER ? area(round_up(g, g->n_block) * g->k_block) : 0;
    g->sums_bytes = pieces ? area(x->m * BLOCK_LD) : 0;
    size_t apart = g->chains ? area(g->chains * x->m * sums_row(g)) : 0;
    if (g->sums_bytes < apart) g->sums_bytes = apart;
    g->shared_bytes += g->sums_bytes;
}

static void plan_gemm(gemm *g, const tile_set *with, const tn_gemm_args *args, tn_dtype dtype) {
    *g = (gemm){.with = with,
                .args = *args,
                .dtype = dtype,
                .whole = dtype == TN_I32 && !with->bytes,
                .panel = 2 * with->lanes};
    g->panel_shift = __builtin_ctz((unsigned)g->panel);
    bool rows = args->a.col_stride == 1 && args->m >= FEW_ROWS;
    g->handed_on = rows ? (double)args->m * (double)args->k : 0;
    simplify(g);
    const tn_gemm_args *x = &g->args;
    g->batches = 1;
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++)
        g->batches *= x->batch[axis];
    g->b_fixed = is_b_fixed(x);
    g->b_source = choose_b(g);
    g->a_in_place = choose_a_in_place(g);
    g->chains = chains_to_share(g);
    g->ends = finishes_in_registers(g);
    if (g->ends) { /* C is where its fused epilogue puts it */
        g->args.c.row_stride = x->c.fused.epilogue_ops->to.row;
        g->args.c.col_stride = 1;
    }
    g->direct = g->ends ||
                ((!x->c.fused.vm || g->begins) && x->c.col_stride == 1 && !is_half(dtype) && !g->whole && !x->rounding);
    choose_blocks(g);
    choose_memory(g);
}

/* Small products with a B each: threads take whole products. */
static bool may_split_by_batch(const gemm *g) {
    return g->batches > 1 && !g->b_fixed && (double)g->args.k * (double)g->args.n <= OWN_B_ELEMENTS;
}

static bool splits_by_batch(const gemm *g, int threads) {
    if (!may_split_by_batch(g)) return false;
    return flops(g) < 4 * PART_FLOPS || g->batches % threads == 0 || g->batches >= 4 * threads;
}

#endif
