/* conv_vec.c — row operations of convolutions and Winograd's transforms; compiled once per instruction set. */
#include <string.h>

#include "cpu/conv_vec.h"
#include "cpu/isa.h"
#include "cpu/vec.h"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Elements of two vectors, numbered through: the even and the odd ones; x₀ y₀ x₁ y₁ …, the lower and the upper half. */
#if defined(__AVX512F__)
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define EVENS 0, 2, 4, 6
#define ODDS 1, 3, 5, 7
#define ZIP_LOW 0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif
VEC_INLINE V v_evens(V a, V b) { return __builtin_shufflevector(a, b, EVENS); }
VEC_INLINE V v_odds(V a, V b) { return __builtin_shufflevector(a, b, ODDS); }
VEC_INLINE V v_zip_low(V a, V b) { return __builtin_shufflevector(a, b, ZIP_LOW); }
VEC_INLINE V v_zip_high(V a, V b) { return __builtin_shufflevector(a, b, ZIP_HIGH); }

/* The first `count` elements of x to every second output pixel. */
VEC_INLINE void v_store_apart(float *to, V x, int64_t count) {
#if defined(__AVX512F__)
    V low = v_zip_low(x, x), high = v_zip_high(x, x);
    uint32_t mask = count >= VL ? 0x55555555u : 0x55555555u & ((1u << 2 * count) - 1u);
    v_part_store(to, (M)mask, low);
    v_part_store(to + VL, (M)(mask >> VL), high);
#elif defined(__AVX2__)
    V low = v_zip_low(x, x), high = v_zip_high(x, x);
    const M evens = _mm256_setr_epi32(-1, 0, -1, 0, -1, 0, -1, 0);
    v_part_store(to, _mm256_and_si256(evens, v_mask(2 * count)), low);
    v_part_store(to + VL, _mm256_and_si256(evens, v_mask(2 * count - VL)), high);
#else
    for (int64_t i = 0; i < count && i < VL; i++)
        to[2 * i] = x[i];
#endif
}

static void spread_row(float *to, const float *from, int64_t step, int64_t count) {
    int64_t i = 0;
    for (; step == 2 && i < count; i += VL)
        v_store_apart(to + 2 * i, v_part_load(from + i, v_mask(count - i)), count - i);
    for (; i < count; i++)
        to[i * step] = from[i];
}

/* Rows are short: what their last vectors hold is asked once for all of them. */
static void copy_rows_whole(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows,
                            int64_t count) {
    const int64_t whole = count / VL * VL;
    const M rest = v_mask(count - whole);
    for (; count == VL && rows > 0; rows--, to += to_row, from += from_row) /* pixels of blocks of channels */
        v_store(to, v_load(from));
    for (int64_t r = 0; r < rows; r++, to += to_row, from += from_row) {
        for (int64_t i = 0; i < whole; i += VL)
            v_store(to + i, v_load(from + i));
        if (whole < count) v_part_store(to + whole, rest, v_part_load(from + whole, rest));
    }
}

/* Every second element: of the last vectors those up to the last one that is taken. */
static void copy_rows_halved(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows,
                             int64_t count) {
    const int64_t whole = (count - 1) / VL * VL, there = 2 * (count - whole) - 1;
    const M low = v_mask(there), high = v_mask(tn_max64(there - VL, 0)), rest = v_mask(count - whole);
    for (int64_t r = 0; r < rows; r++, to += to_row, from += from_row) {
        for (int64_t i = 0; i < whole; i += VL)
            v_store(to + i, v_evens(v_load(from + 2 * i), v_load(from + 2 * i + VL)));
        V x = v_part_load(from + 2 * whole, low), y = v_part_load(from + 2 * whole + VL, high);
        v_part_store(to + whole, rest, v_evens(x, y));
    }
}

static void copy_row(float *to, const float *from, int64_t step, int64_t count) {
    int64_t i = 0;
    for (; step == 4 && i + VL <= count; i += VL) { /* behind the last one there need be nothing */
        const float *at = from + 4 * i;
        V last = v_part_load(at + 3 * VL, v_mask(VL - 3));
        V low = v_evens(v_load(at), v_load(at + VL)), high = v_evens(v_load(at + 2 * VL), last);
        v_store(to + i, v_evens(low, high));
    }
    for (; i < count; i++)
        to[i] = from[i * step];
}

static void copy_rows(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows, int64_t step,
                      int64_t count) {
    if (step == 1) {
        copy_rows_whole(to, to_row, from, from_row, rows, count);
    } else if (step == 2 && count > 0) {
        copy_rows_halved(to, to_row, from, from_row, rows, count);
    } else {
        for (int64_t r = 0; r < rows; r++)
            copy_row(to + r * to_row, from + r * from_row, step, count);
    }
}

/* ---- operands of products ---------------------------------------------------------------------------------------- */

static void copy_piece(float *to, int64_t distance, const float *from, const int64_t *tap, int64_t base, int64_t rows) {
    for (int64_t r = 0; r < rows; r++, to += distance)
        v_store(to, v_load(from + (tap[r] - base)));
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */
/* A tile is some filters by some vectors of output pixels, which need not be neighbours. Its sums are in registers from
 * the first tap of a chunk to the last one; results leave them by masks, with their epilogue. */

/* Registers: sums, a vector of each group of output pixels, a weight. */
#if defined(__AVX512F__) || defined(VEC_NEON)
enum { TILE_FILTERS = 8 };
#define WINDOW_HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#else
enum { TILE_FILTERS = 4 };
#define WINDOW_HEIGHTS(X) X(1) X(2) X(3) X(4)
#endif

/* What is done to sums, in registers. */
typedef struct window_end {
    V add, floor, ceiling;
    bool adds, relu, floors, ceils;
} window_end;

VEC_INLINE window_end window_end_of(const epilogue_ops *e, int64_t channel) {
    window_end end = {0};
    if (!e) return end;
    end = (window_end){.adds = e->add, .relu = e->relu, .floors = e->floor, .ceils = e->ceiling};
    if (e->add) end.add = v_set1(e->add[channel]);
    if (e->floor) end.floor = v_set1(*e->floor);
    if (e->ceiling) end.ceiling = v_set1(*e->ceiling);
    return end;
}

/* `count` sums, as v_end does it. */
VEC_INLINE void window_finish(const window_end *e, V *sum, const int count) {
    if (e->adds) {
        VEC_UNROLL for (int r = 0; r < count; r++) sum[r] = sum[r] + e->add;
    }
    if (e->relu) {
        VEC_UNROLL for (int r = 0; r < count; r++) sum[r] = v_gate(sum[r], sum[r], v_zero());
    }
    if (e->floors) {
        VEC_UNROLL for (int r = 0; r < count; r++) sum[r] = v_greatest(sum[r], e->floor);
    }
    if (e->ceils) {
        VEC_UNROLL for (int r = 0; r < count; r++) sum[r] = v_least(sum[r], e->ceiling);
    }
}

VEC_INLINE void store_lanes(float *to, V x, int32_t low, int32_t high) {
#if defined(__AVX512F__) || defined(__AVX2__)
    v_part_store(to, v_mask_range(low, high), x);
#else
    for (int32_t i = low; i < high; i++)
        to[i] = x[i];
#endif
}

/* One chunk; `rows` and `vectors` are constants after inlining. */
VEC_INLINE void window_sum(const window_tile *t, V (*sum)[WINDOW_VECTORS], const int rows, const int vectors) {
    const float *from[WINDOW_VECTORS], *weight = t->weight;
    VEC_UNROLL for (int j = 0; j < vectors; j++) from[j] = t->input_tile + t->vector[j].from;
    VEC_UNROLL for (int i = 0; i < rows; i++) { VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_zero(); }
    for (const int64_t *tap = t->tap, *end = tap + t->k; tap < end; tap++, weight += rows) {
        V x[WINDOW_VECTORS];
        VEC_UNROLL for (int j = 0; j < vectors; j++) x[j] = v_load(from[j] + *tap);
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            const V w = v_set1(weight[i]);
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_fma(w, x[j], sum[i][j]);
        }
    }
}

VEC_INLINE void window_run_tile(const window_tile *t, const int rows, const int vectors) {
    V sum[WINDOW_ROWS][WINDOW_VECTORS];
    const epilogue_ops *end = t->end;
    if (t->last) {
        float *to = t->to;
        VEC_UNROLL for (int i = 0; i < rows; i++, to += t->to_row) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) __builtin_prefetch(to + t->run[t->vector[j].run].to, 1);
        }
    }
    window_sum(t, sum, rows, vectors);
    if (t->add) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
                v_load(t->sums + i * t->sums_row + j * VL) + sum[i][j];
        }
    }
    if (!t->last) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            VEC_UNROLL for (int j = 0; j < vectors; j++) v_store(t->sums + i * t->sums_row + j * VL, sum[i][j]);
        }
        return;
    }
    if (end) {
        VEC_UNROLL for (int i = 0; i < rows; i++) {
            const window_end e = window_end_of(end, t->channel + i);
            window_finish(&e, sum[i], vectors);
        }
    }
    VEC_UNROLL for (int j = 0; j < vectors; j++) {
        for (int64_t r = t->vector[j].run; r < t->vector[j + 1].run; r++) {
            const window_run run = t->run[r];
            float *to = t->to + run.to;
            VEC_UNROLL for (int i = 0; i < rows; i++) store_lanes(to + i * t->to_row, sum[i][j], run.low, run.high);
        }
    }
}

#define WINDOW_TILES(rows)                                                               \
    static void window_##rows##_1(const window_tile *t) { window_run_tile(t, rows, 1); } \
    static void window_##rows##_2(const window_tile *t) { window_run_tile(t, rows, 2); } \
    static void window_##rows##_3(const window_tile *t) { window_run_tile(t, rows, 3); }
#define WINDOW_ROW(rows) [rows] = {NULL, window_##rows##_1, window_##rows##_2, window_##rows##_3},
WINDOW_HEIGHTS(WINDOW_TILES)
static window_fn *const window_tiles[WINDOW_ROWS + 1][WINDOW_VECTORS + 1] = {WINDOW_HEIGHTS(WINDOW_ROW)};

/* ---- depthwise windows ------------------------------------------------------------------------------------------- */
/* Lanes are output pixels of a row or channels, in one code: only where taps lie differs. */

enum {
    WEIGH_RUN = 8,    /* vectors that are weighed at once: as many chains as keep the multipliers busy */
    WEIGH_ROWS = 4,   /* rows of output pixels, the same */
    GREATEST_RUN = 4, /* vectors whose maxima are computed at once */
    MOST_BLOCK_SIDE = 5
};

/* A row's vector `v`, and what happens to it. */
VEC_INLINE void weigh_store(const weigh_rows *w, const epilogue_ops *end, const M last, float *to, int64_t v, V x) {
    if (w->end && w->each_lane)
        x = v_end_each(end, x);
    else if (w->end)
        x = v_end(end, 0, x);
    if (v + 1 < w->vectors)
        v_store(to + v * VL, x);
    else
        v_part_store(to + v * VL, last, x);
}

/* Taps [first, last) of `n` vectors, each a chain. `n` is a constant after inlining, as is `pixels`: all lanes have one
 * weight then. */
VEC_INLINE void weigh_chain(const weigh_rows *w, const float *from, int64_t first, int64_t last, V *sum, const int n,
                            const bool pixels) {
    const int64_t *at = w->taps->at, step = w->step;
    VEC_UNROLL for (int i = 0; i < n; i++) sum[i] = v_zero();
    for (int64_t k = first; k < last; k++) {
        const float *x = from + at[k];
        const V weight = pixels ? v_set1(w->weight[k]) : v_load(w->weight + k * VL);
        VEC_UNROLL for (int i = 0; i < n; i++) sum[i] = v_fma(v_load(x + i * step), weight, sum[i]);
    }
}

VEC_INLINE void weigh_run(const weigh_rows *w, const float *from, V *sum, const int n, const bool pixels) {
    const int64_t taps = w->taps->count;
    weigh_chain(w, from, 0, tn_min64(taps, KIR_KSUM), sum, n, pixels);
    for (int64_t k = KIR_KSUM; k < taps; k += KIR_KSUM) {
        V chain[WEIGH_RUN];
        weigh_chain(w, from, k, tn_min64(taps, k + KIR_KSUM), chain, n, pixels);
        VEC_UNROLL for (int i = 0; i < n; i++) sum[i] += chain[i];
    }
}

VEC_INLINE void weigh_some(const weigh_rows *w, const float *from, V *sum, int n, const bool pixels) {
    switch (n) {
    case 1: weigh_run(w, from, sum, 1, pixels); break;
    case 2: weigh_run(w, from, sum, 2, pixels); break;
    case 3: weigh_run(w, from, sum, 3, pixels); break;
    case 4: weigh_run(w, from, sum, 4, pixels); break;
    case 5: weigh_run(w, from, sum, 5, pixels); break;
    case 6: weigh_run(w, from, sum, 6, pixels); break;
    case 7: weigh_run(w, from, sum, 7, pixels); break;
    default: weigh_run(w, from, sum, WEIGH_RUN, pixels);
    }
}

/* Any window, in runs of nearly the same length. */
VEC_INLINE void weigh_any(const weigh_rows *w, const bool pixels) {
    V sum[WEIGH_RUN];
    const M last = v_mask(w->last);
    const int64_t runs = tn_ceil_div(w->vectors, WEIGH_RUN);
    for (int64_t r = 0; r < w->rows; r++) {
        const float *from = w->from + r * w->from_row;
        float *to = w->to + r * w->to_row;
        for (int64_t v = 0, run = 1; run <= runs; run++) {
            const int64_t first = v, end = w->vectors * run / runs;
            weigh_some(w, from + v * w->step, sum, (int)(end - v), pixels);
            for (; v < end; v++)
                weigh_store(w, w->end, last, to, v, sum[v - first]);
        }
    }
}

#if defined(__AVX512F__) || defined(__AVX2__)
/* Windows read where they lie in the image: outside of its columns by masks, outside of its rows as a row of zeros. A
 * block is a vector of output pixels in some rows: what several of these see is read once. */
enum { MOST_PARTS = MOST_BLOCK_SIDE + 1 }; /* loads of a row that a block sees */

/* Which lanes of each of these loads lie in the image, for each vector of a row. */
VEC_INLINE void window_masks(const weigh_image *w, M (*mask)[MOST_PARTS], const int side, const int stride) {
    const int parts = stride == 1 ? side : side + 1;
    int64_t column = w->left;
    for (int64_t v = 0; v < w->columns; v += VL, column += VL * stride, mask++) {
        for (int k = 0; k < parts; k++) {
            const int64_t at = column + (stride == 1 ? k : k / 2 * 2 + k % 2 * VL);
            (*mask)[k] = v_mask_range(-at, w->size[1] - at);
        }
    }
}

/* What the taps of a row of the window see. With a stride of 2 the even columns of two vectors, then the odd ones. */
VEC_INLINE void window_row(const float *from, const M *mask, V *x, const int side, const int stride) {
    VEC_UNROLL for (int j = 0; j < side; j += stride) {
        x[j] = v_part_load(from + j, mask[j]);
        if (stride == 1) continue;
        const V behind = v_part_load(from + j + VL, mask[j + 1]);
        if (j + 1 < side) x[j + 1] = v_odds(x[j], behind);
        x[j] = v_evens(x[j], behind);
    }
}

/* All but the filter and the addresses are constants after inlining; filters are in registers if there is room. */
VEC_INLINE void weigh_block(const float *const *row, int64_t column, const M *mask, const V *filter, V *sum,
                            const int rows, const int side, const int stride) {
    VEC_UNROLL for (int r = 0; r < rows; r++) sum[r] = v_zero();
    VEC_UNROLL for (int i = 0; i < (rows - 1) * stride + side; i++) {
        V x[MOST_PARTS];
        window_row(row[i] + column, mask, x, side, stride);
        VEC_UNROLL for (int j = 0; j < side; j++) {
            VEC_UNROLL for (int r = 0; r < rows; r++) {
                const int tap = i - r * stride;
                if (tap >= 0 && tap < side) sum[r] = v_fma(x[j], filter[tap * side + j], sum[r]);
            }
        }
    }
}

/* The last block of rows computes some of the one before again. */
VEC_INLINE void weigh_channel(const weigh_image *w, const float *x, const V *filter, const window_end *end, float *out,
                              const M (*mask)[MOST_PARTS], const int rows, const int side, const int stride) {
    enum { MOST_ROWS = (WEIGH_ROWS - 1) * 2 + MOST_BLOCK_SIDE };
    const int64_t columns = w->columns, to_row = w->to_row;
    for (int64_t r = 0; r < w->rows; r += rows) {
        const int64_t first = tn_min64(r, w->rows - rows), top = w->top + first * stride;
        const float *row[MOST_ROWS];
        VEC_UNROLL for (int i = 0; i < (rows - 1) * stride + side; i++) {
            const bool inside = (uint64_t)(top + i) < (uint64_t)w->size[0];
            row[i] = (inside ? x + (top + i) * w->x_row : w->zeros) + w->left;
        }
        float *to = out + first * to_row;
        for (int64_t v = 0; v < columns; v += VL) {
            V sum[WEIGH_ROWS];
            weigh_block(row, v * stride, mask[v / VL], filter, sum, rows, side, stride);
            window_finish(end, sum, rows);
            const M there = v_mask(columns - v);
            VEC_UNROLL for (int i = 0; i < rows; i++) v_part_store(to + i * to_row + v, there, sum[i]);
        }
    }
}

/* What is read in the loops is copied: results might be anywhere. */
VEC_INLINE void weigh_blocks(const weigh_image *image, const int rows, const int side, const int stride) {
    const weigh_image w = *image;
    M mask[WEIGH_COLUMNS / VL][MOST_PARTS];
    window_masks(&w, mask, side, stride);
    for (int64_t c = 0; c < w.channels; c++) {
        const window_end end = window_end_of(w.end, c);
        V filter[MOST_BLOCK_SIDE * MOST_BLOCK_SIDE];
        VEC_UNROLL for (int i = 0; i < side; i++) {
            VEC_UNROLL for (int j = 0; j < side; j++) filter[i * side + j] =
                v_set1(w.weight[c * w.weight_channel + i * side + j]);
        }
        weigh_channel(&w, w.x + c * w.x_channel, filter, &end, w.to + c * w.to_channel, mask, rows, side, stride);
    }
}

/* `name` does what `weigh` does, with constants for each window and for one or several rows at once. */
#define WINDOW(name, weigh, side, stride)                           \
    static void name##_##side##_by_##stride(const weigh_image *w) { \
        if (w->rows >= WEIGH_ROWS)                                  \
            weigh(w, WEIGH_ROWS, side, stride);                     \
        else                                                        \
            weigh(w, 1, side, stride);                              \
    }
#define WINDOWS(name, weigh)                                     \
    WINDOW(name, weigh, 3, 1)                                    \
    WINDOW(name, weigh, 3, 2)                                    \
    WINDOW(name, weigh, 5, 1)                                    \
    WINDOW(name, weigh, 5, 2)                                    \
    static void name(const weigh_image *w) {                     \
        if (w->side == 3)                                        \
            (w->stride == 1 ? name##_3_by_1 : name##_3_by_2)(w); \
        else                                                     \
            (w->stride == 1 ? name##_5_by_1 : name##_5_by_2)(w); \
    }
WINDOWS(weigh_in_image, weigh_blocks)

/* The same where lanes are channels: a pixel is a vector, which all output pixels of a tile of `rows` by two that see
 * it share. Columns outside of the image are loads without lanes. */
enum { TILE_COLUMNS = 2, MOST_COLUMNS = (TILE_COLUMNS - 1) * 2 + MOST_BLOCK_SIDE, CACHE_LINE = 16 };

VEC_INLINE void weigh_pixel_tile(const float *const *row, int64_t column, const M *mask, const V *filter,
                                 V (*sum)[TILE_COLUMNS], const int rows, const int side, const int stride) {
    VEC_UNROLL for (int r = 0; r < rows; r++) {
        VEC_UNROLL for (int c = 0; c < TILE_COLUMNS; c++) sum[r][c] = v_zero();
    }
    VEC_UNROLL for (int i = 0; i < (rows - 1) * stride + side; i++) {
        V x[MOST_COLUMNS];
        VEC_UNROLL for (int j = 0; j < (TILE_COLUMNS - 1) * stride + side; j++) x[j] =
            v_part_load(row[i] + (column + j) * VL, mask[j]);
        VEC_UNROLL for (int j = 0; j < side; j++) {
            VEC_UNROLL for (int r = 0; r < rows; r++) {
                const int tap = i - r * stride;
                if (tap < 0 || tap >= side) continue;
                VEC_UNROLL for (int c = 0; c < TILE_COLUMNS; c++) sum[r][c] =
                    v_fma(x[c * stride + j], filter[tap * side + j], sum[r][c]);
            }
        }
    }
}

/* The last tiles compute some of those before again. Each prefetches what the rows of tiles below it see next: hardware
 * does not follow several short rows. */
VEC_INLINE void weigh_pixels(const weigh_image *image, const int rows, const int side, const int stride) {
    enum { MOST_ROWS = (WEIGH_ROWS - 1) * 2 + MOST_BLOCK_SIDE };
    const weigh_image w = *image;
    const epilogue_ops end = w.end ? *w.end : (epilogue_ops){0};
    V filter[MOST_BLOCK_SIDE * MOST_BLOCK_SIDE];
    VEC_UNROLL for (int i = 0; i < side * side; i++) filter[i] = v_load(w.weight + i * VL);
    for (int64_t r = 0; r < w.rows; r += rows) {
        const int64_t first = tn_min64(r, w.rows - rows), top = w.top + first * stride;
        const float *row[MOST_ROWS];
        VEC_UNROLL for (int i = 0; i < (rows - 1) * stride + side; i++) row[i] =
            (uint64_t)(top + i) < (uint64_t)w.size[0] ? w.x + (top + i) * w.x_row : w.zeros;
        const float *const below = w.x + (top + (rows - 1) * stride + side) * w.x_row;
        for (int64_t c = 0; c < w.columns; c += TILE_COLUMNS) {
            const int64_t at = tn_min64(c, w.columns - TILE_COLUMNS), column = w.left + at * stride;
            V sum[WEIGH_ROWS][TILE_COLUMNS];
            M mask[MOST_COLUMNS];
            VEC_UNROLL for (int j = 0; j < (TILE_COLUMNS - 1) * stride + side; j++) mask[j] =
                v_mask((uint64_t)(column + j) < (uint64_t)w.size[1] ? VL : 0);
            VEC_UNROLL for (int i = 0; i < rows * stride; i++) {
                VEC_UNROLL for (int j = 0; j < TILE_COLUMNS * stride * VL; j += CACHE_LINE)
                    __builtin_prefetch(below + i * w.x_row + column * VL + j);
            }
            weigh_pixel_tile(row, column, mask, filter, sum, rows, side, stride);
            float *to = w.to + first * w.to_row + at * VL;
            VEC_UNROLL for (int i = 0; i < rows; i++, to += w.to_row) {
                VEC_UNROLL for (int j = 0; j < TILE_COLUMNS; j++) v_store(to + j * VL, v_end_each(&end, sum[i][j]));
            }
        }
    }
}

WINDOWS(weigh_in_block, weigh_pixels)
#else
#define weigh_in_image NULL
#define weigh_in_block NULL
#endif

/* The greatest of a window in `n` vectors: a chain of taps for each lane of a reduction, which are folded by halves. */
VEC_INLINE void greatest_run(const weigh_rows *w, const float *from, V *most, const int n) {
    const window_taps *t = w->taps;
    const int64_t lanes = tn_min64(t->count, KIR_LANES);
    for (int64_t l = 0; l < lanes; l++) {
        VEC_UNROLL for (int i = 0; i < n; i++) most[l * n + i] = v_load(from + t->at[l] + i * w->step);
        for (int64_t k = l + KIR_LANES; k < t->count; k += KIR_LANES) {
            VEC_UNROLL for (int i = 0; i < n; i++) most[l * n + i] =
                v_greatest(most[l * n + i], v_load(from + t->at[k] + i * w->step));
        }
    }
    for (int64_t half = KIR_LANES / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half && l + half < lanes; l++) {
            VEC_UNROLL for (int i = 0; i < n; i++) most[l * n + i] =
                v_greatest(most[l * n + i], most[(l + half) * n + i]);
        }
}

static void greatest_any(const weigh_rows *w) {
    V most[KIR_LANES * GREATEST_RUN];
    const M last = v_mask(w->last);
    for (int64_t r = 0; r < w->rows; r++) {
        const float *from = w->from + r * w->from_row;
        float *to = w->to + r * w->to_row;
        int64_t v = 0;
        for (; v + GREATEST_RUN <= w->vectors; v += GREATEST_RUN, from += GREATEST_RUN * w->step) {
            greatest_run(w, from, most, GREATEST_RUN);
            for (int i = 0; i < GREATEST_RUN; i++)
                weigh_store(w, w->end, last, to, v + i, most[i]);
        }
        for (; v < w->vectors; v++, from += w->step) {
            greatest_run(w, from, most, 1);
            weigh_store(w, w->end, last, to, v, most[0]);
        }
    }
}

/* The same of the usual windows, where taps lie and their number being constants. Lanes folded by halves:
 * s[l] += s[l + 32], then 16 … 1, a branch of that tree after the other. */
typedef struct fixed_window {
    const float *row[MOST_BLOCK_SIDE]; /* each a pointer, so that taps are at constant distances */
    int64_t phase;
    int side, phases, step;
} fixed_window;

VEC_INLINE V fold_lane(const fixed_window *t, const int tap, TN_UNUSED const int taps) {
    const int i = tap / t->side, j = tap % t->side;
    return v_load(t->row[i] + j % t->phases * t->phase + j / t->phases * t->step);
}

#define FOLD(level, next, half)                                                \
    VEC_INLINE V level(const fixed_window *t, const int tap, const int taps) { \
        V first = next(t, tap, taps);                                          \
        if (tap + half >= taps) return first;                                  \
        return v_greatest(first, next(t, tap + half, taps));                   \
    }
FOLD(fold_16, fold_lane, 16)
FOLD(fold_8, fold_16, 8)
FOLD(fold_4, fold_8, 4)
FOLD(fold_2, fold_4, 2)
FOLD(fold_1, fold_2, 1)
_Static_assert(MOST_BLOCK_SIDE *MOST_BLOCK_SIDE <= 32, "as fold_16 has it");

/* All but `rows` are constants. */
VEC_INLINE void greatest_fixed(const weigh_rows *rows, const int side, const int phases, const int step) {
    const weigh_rows w = *rows;
    const epilogue_ops end = w.end ? *w.end : (epilogue_ops){0};
    const M last = v_mask(w.last);
    fixed_window t = {{NULL}, w.taps->phase, side, phases, step};
    const int64_t row = w.taps->row;
    for (int64_t r = 0; r < w.rows; r++) {
        VEC_UNROLL for (int i = 0; i < side; i++) t.row[i] = w.from + r * w.from_row + i * row;
        for (int64_t v = 0; v < w.vectors; v++) {
            weigh_store(&w, &end, last, w.to + r * w.to_row, v, fold_1(&t, 0, side * side));
            VEC_UNROLL for (int i = 0; i < side; i++) t.row[i] += w.step;
        }
    }
}

static void greatest(const weigh_rows *w) {
    const window_taps *t = w->taps;
    if (t->square == 3 && t->step == 1 && t->phases == 1)
        greatest_fixed(w, 3, 1, 1);
    else if (t->square == 3 && t->step == 1 && t->phases == 2)
        greatest_fixed(w, 3, 2, 1);
    else if (t->square == 3 && t->step == VL)
        greatest_fixed(w, 3, 1, VL);
    else if (t->square == 5 && t->step == VL)
        greatest_fixed(w, 5, 1, VL);
    else
        greatest_any(w);
}

static void weigh(const weigh_rows *w) {
    if (!w->weight)
        greatest(w);
    else if (w->taps->step == 1)
        weigh_any(w, true);
    else
        weigh_any(w, false);
}

/* ---- pooling of windows side by side ----------------------------------------------------------------------------- */

/* Two by two: the same tree of four, but pairs that lie one above the other are met first, before the rows are cut. */
static void greatest_of_four(const float *upper, const float *lower, float *to, int64_t out_pixels) {
    int64_t i = 0;
    for (; i + VL <= out_pixels; i += VL) {
        V first = v_greatest(v_load(upper + 2 * i), v_load(lower + 2 * i));
        V second = v_greatest(v_load(upper + 2 * i + VL), v_load(lower + 2 * i + VL));
        v_store(to + i, v_greatest(v_evens(first, second), v_odds(first, second)));
    }
    int64_t left = 2 * (out_pixels - i);
    if (left == 0) return;
    M low = v_mask(left);
    V first = v_greatest(v_part_load(upper + 2 * i, low), v_part_load(lower + 2 * i, low));
    V second = first;
    if (left > VL) {
        M high = v_mask(left - VL);
        second = v_greatest(v_part_load(upper + 2 * i + VL, high), v_part_load(lower + 2 * i + VL, high));
    }
    v_part_store(to + i, v_mask(out_pixels - i), v_greatest(v_evens(first, second), v_odds(first, second)));
}

/* Four beside each other, by the same tree: taps 0 and 2, 1 and 3, then these two. */
VEC_INLINE V v_greatest_pairs(const float *from) {
    V a = v_load(from), b = v_load(from + VL), c = v_load(from + 2 * VL), d = v_load(from + 3 * VL);
    V evens = v_evens(a, b), odds = v_odds(a, b), more_evens = v_evens(c, d), more_odds = v_odds(c, d);
    V first = v_greatest(v_evens(evens, more_evens), v_odds(evens, more_evens));
    return v_greatest(first, v_greatest(v_evens(odds, more_odds), v_odds(odds, more_odds)));
}

static void greatest_pairs(const float *from, float *to, int64_t out_pixels) {
    int64_t i = 0;
    for (; i + VL <= out_pixels; i += VL)
        v_store(to + i, v_greatest_pairs(from + 4 * i));
    if (i == out_pixels) return;
    float rest[4 * VL] = {0};
    memcpy(rest, from + 4 * i, (size_t)(4 * (out_pixels - i)) * sizeof *rest);
    v_part_store(to + i, v_mask(out_pixels - i), v_greatest_pairs(rest));
}

/* Not for processors without fma, where it is a call: multiplications are not what takes the time there. */
#if defined(__x86_64__) && !defined(__FMA__)
#define WINOGRAD NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#else
/* ==== transforms of Winograd's algorithm ========================================================================== */
/* Four results of a filter of three taps are a product of polynomials, which is known by its values at six points: 0,
 * ±3/4, ±3/2 and ∞ (Winograd; Cook and Toom). Six numbers of an image become six values (`forth`), these are multiplied
 * with the filter's, summed over channels, and six sums become four results (`back`); in two dims one axis after the
 * other, so that 36 multiplications take the place of 144. These points have the least error among those whose numbers
 * here are exact in f32: with 64 channels twice that of sums of products, with the usual 0, ±1, ±2 and ∞ it is four
 * times. Lanes are tiles of 4×4 results side by side. */

/* The points a and b, their squares, cubes, and the sum and the product of both squares. */
#define POINT_A 0.75f
#define POINT_B 1.5f
#define SQUARE_A 0.5625f
#define SQUARE_B 2.25f
#define CUBE_A 0.421875f
#define CUBE_B 3.375f
#define SQUARES 2.8125f
#define PRODUCT 1.265625f

/* Values at 0, a, −a, b, −b and ∞ of what filters of three taps see of d: rows of the transposed matrix of Toom's. */
VEC_INLINE void winograd_forth(const V *d, V *v) {
    const V a = v_set1(POINT_A), b = v_set1(POINT_B), aa = v_set1(-SQUARE_A), bb = v_set1(-SQUARE_B);
    const V both = v_set1(-SQUARES), product = v_set1(PRODUCT);
    V even_a = v_fma(bb, d[2], d[4]), odd_a = v_fma(bb, d[1], d[3]);
    V even_b = v_fma(aa, d[2], d[4]), odd_b = v_fma(aa, d[1], d[3]);
    v[0] = v_fma(product, d[0], v_fma(both, d[2], d[4]));
    v[1] = v_fma(a, odd_a, even_a);
    v[2] = v_fma(-a, odd_a, even_a);
    v[3] = v_fma(b, odd_b, even_b);
    v[4] = v_fma(-b, odd_b, even_b);
    v[5] = v_fma(product, d[1], v_fma(both, d[3], d[5]));
}

/* Four results of six sums. */
VEC_INLINE void winograd_back(const V *m, V *y) {
    V sum_a = m[1] + m[2], sum_b = m[3] + m[4], odd_a = m[1] - m[2], odd_b = m[3] - m[4];
    y[0] = m[0] + sum_a + sum_b;
    y[1] = v_fma(v_set1(POINT_B), odd_b, v_set1(POINT_A) * odd_a);
    y[2] = v_fma(v_set1(SQUARE_B), sum_b, v_set1(SQUARE_A) * sum_a);
    y[3] = v_fma(v_set1(CUBE_B), odd_b, v_fma(v_set1(CUBE_A), odd_a, m[5]));
}

/* Every fourth element of four vectors, from the first and from the second on; or from each. */
VEC_INLINE void winograd_apart(const float *from, V *d, const int count) {
    V x0 = v_load(from), x1 = v_load(from + VL), x2 = v_load(from + 2 * VL), x3 = v_load(from + 3 * VL);
    V evens = v_evens(x0, x1), more_evens = v_evens(x2, x3), odds = v_odds(x0, x1), more_odds = v_odds(x2, x3);
    d[0] = v_evens(evens, more_evens);
    d[1] = v_evens(odds, more_odds);
    if (count == 2) return;
    d[2] = v_odds(evens, more_evens);
    d[3] = v_odds(odds, more_odds);
}

static void winograd_rows(const float *lines, int64_t line, int64_t count, float *input_tile, int64_t distance,
                          int64_t across) {
    V d[WINOGRAD_IN], v[WINOGRAD_IN];
    for (int64_t y = 0; y < count; y++, lines += line) {
        float *to = input_tile + y % WINOGRAD_OUT * WINOGRAD_IN * distance + y / WINOGRAD_OUT * across;
        for (int64_t t = 0; t < across; t += VL) {
            winograd_apart(lines + 4 * t, d, 4);
            winograd_apart(lines + 4 * t + 4, d + 4, 2);
            winograd_forth(d, v);
            VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) v_store(to + i * distance + t, v[i]);
        }
    }
}

static void winograd_columns(const float *input_tile, int64_t distance, int64_t across, float *to, int64_t point,
                             int64_t tiles) {
    V d[WINOGRAD_IN], v[WINOGRAD_IN];
    for (int64_t t = 0; t < tiles; t += VL)
        for (int64_t h = 0; h < WINOGRAD_IN; h++) {
            const float *from = input_tile + h * distance + t;
            VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) {
                int phase = i % WINOGRAD_OUT;
                d[i] = v_load(from + phase * WINOGRAD_IN * distance + (i / WINOGRAD_OUT) * across);
            }
            winograd_forth(d, v);
            VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) v_store(to + (i * WINOGRAD_IN + h) * point + t, v[i]);
        }
}

/* A vector of tiles' sums to their results, a row of tiles behind the other. */
VEC_INLINE void winograd_results(const float *sums, int64_t point, float *rows) {
    V half[WINOGRAD_IN][WINOGRAD_OUT], m[WINOGRAD_IN], y[WINOGRAD_OUT];
    for (int64_t i = 0; i < WINOGRAD_IN; i++, sums += WINOGRAD_IN * point) {
        VEC_UNROLL for (int j = 0; j < WINOGRAD_IN; j++) m[j] = v_load(sums + j * point);
        winograd_back(m, half[i]);
    }
    for (int64_t j = 0; j < WINOGRAD_OUT; j++) {
        VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) m[i] = half[i][j];
        winograd_back(m, y);
        VEC_UNROLL for (int i = 0; i < WINOGRAD_OUT; i++) v_store(rows + (i * WINOGRAD_OUT + j) * VL, y[i]);
    }
    for (int64_t i = 0; i < WINOGRAD_OUT; i++, rows += WINOGRAD_OUT * VL) {
        V x0 = v_load(rows), x1 = v_load(rows + VL), x2 = v_load(rows + 2 * VL), x3 = v_load(rows + 3 * VL);
        V evens = v_zip_low(x0, x2), odds = v_zip_low(x1, x3);
        V more_evens = v_zip_high(x0, x2), more_odds = v_zip_high(x1, x3);
        v_store(rows, v_zip_low(evens, odds));
        v_store(rows + VL, v_zip_high(evens, odds));
        v_store(rows + 2 * VL, v_zip_low(more_evens, more_odds));
        v_store(rows + 3 * VL, v_zip_high(more_evens, more_odds));
    }
}

VEC_INLINE void winograd_copy(float *to, const float *from, int64_t count) {
    int64_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store(to + i, v_load(from + i));
    if (i < count) v_part_store(to + i, v_mask(count - i), v_load(from + i));
}

/* Tiles follow each other through rows of tiles: a vector of them may belong to several. */
static void winograd_finish(const winograd_area *area, const float *sums, int64_t point, int64_t offset) {
    float rows[WINOGRAD_OUT * WINOGRAD_OUT * VL + VL];
    const int64_t tiles = area->down * area->across;
    for (int64_t t = 0, down = 0, left = area->across; t < tiles; t += VL) {
        winograd_results(sums + t, point, rows);
        for (int64_t lane = 0, n = 0; lane < VL && down < area->down; lane += n) {
            n = left < VL - lane ? left : VL - lane;
            int64_t column = (area->across - left) * WINOGRAD_OUT, count = area->columns - column;
            if (count > n * WINOGRAD_OUT) count = n * WINOGRAD_OUT;
            for (int64_t i = 0; i < WINOGRAD_OUT && down * WINOGRAD_OUT + i < area->rows; i++) {
                float *to = area->row[down * WINOGRAD_OUT + i] + offset + column;
                winograd_copy(to, rows + (i * VL + lane) * WINOGRAD_OUT, count);
            }
            left -= n;
            if (left > 0) continue;
            left = area->across;
            down++;
        }
    }
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* Values of three taps, but for a factor of each point. */
VEC_INLINE void winograd_points(V g0, V g1, V g2, V *u) {
    const V a = v_set1(POINT_A), b = v_set1(POINT_B);
    V even_a = v_fma(v_set1(SQUARE_A), g2, g0), even_b = v_fma(v_set1(SQUARE_B), g2, g0);
    u[0] = g0;
    u[1] = v_fma(a, g1, even_a);
    u[2] = v_fma(-a, g1, even_a);
    u[3] = v_fma(b, g1, even_b);
    u[4] = v_fma(-b, g1, even_b);
    u[5] = g2;
}

/* The factors: one divided by what a point's distances from the other points multiply to. */
#define FACTOR_0 (64.0 / 81)
#define FACTOR_A (-128.0 / 243)
#define FACTOR_B (32.0 / 243)

static void winograd_out_channels(const float *taps, int64_t step, float *to, int64_t point, int64_t rows) {
    static const double factor[] = {FACTOR_0, FACTOR_A, FACTOR_A, FACTOR_B, FACTOR_B, 1};
    V half[3][WINOGRAD_IN], u[WINOGRAD_IN];
    const M mask = v_mask(rows);
    VEC_UNROLL for (int i = 0; i < 3; i++, taps += 3 * step)
        winograd_points(v_load(taps), v_load(taps + step), v_load(taps + 2 * step), half[i]);
    VEC_UNROLL for (int j = 0; j < WINOGRAD_IN; j++) {
        winograd_points(half[0][j], half[1][j], half[2][j], u);
        VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++)
            v_part_store(to + (i * WINOGRAD_IN + j) * point, mask, v_set1((float)(factor[i] * factor[j])) * u[i]);
    }
}

/* Tiles of two output pixels. */
static void winograd_1d(const float *line, int64_t tiles, float *to, int64_t point) {
    V d[WINOGRAD_IN], v[WINOGRAD_IN];
    for (int64_t t = 0; t < tiles; t += VL) {
        VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i += 2) {
            const float *from = line + WINOGRAD_1D_OUT * t + i;
            V x = v_load(from), y = v_load(from + VL);
            d[i] = v_evens(x, y);
            d[i + 1] = v_odds(x, y);
        }
        winograd_forth(d, v);
        VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) v_store(to + i * point + t, v[i]);
    }
}

static void winograd_1d_finish(const float *sums, int64_t point, float *to, int64_t count) {
    for (int64_t t = 0; count > 0; t += VL, to += WINOGRAD_1D_OUT * VL, count -= WINOGRAD_1D_OUT * VL) {
        V m[WINOGRAD_IN];
        float both[WINOGRAD_1D_OUT * VL];
        VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) m[i] = v_load(sums + i * point + t);
        V first = m[0] + (m[1] + m[2]) + (m[3] + m[4]);
        V second = v_fma(v_set1(POINT_B), m[3] - m[4], v_fma(v_set1(POINT_A), m[1] - m[2], m[5]));
        v_store(both, v_zip_low(first, second));
        v_store(both + VL, v_zip_high(first, second));
        winograd_copy(to, both, count < WINOGRAD_1D_OUT * VL ? count : WINOGRAD_1D_OUT * VL);
    }
}

/* ---- the gradient of filters ------------------------------------------------------------------------------------- */

/* Values of four results: `winograd_back` turned around. */
VEC_INLINE void winograd_back_transposed(const V *y, V *w) {
    V even_a = v_fma(v_set1(SQUARE_A), y[2], y[0]), odd_a = v_fma(v_set1(CUBE_A), y[3], v_set1(POINT_A) * y[1]);
    V even_b = v_fma(v_set1(SQUARE_B), y[2], y[0]), odd_b = v_fma(v_set1(CUBE_B), y[3], v_set1(POINT_B) * y[1]);
    w[0] = y[0];
    w[1] = even_a + odd_a;
    w[2] = even_a - odd_a;
    w[3] = even_b + odd_b;
    w[4] = even_b - odd_b;
    w[5] = y[3];
}

/* Columns first, of all rows of points: a task of some rows spares what is most, their columns. */
VEC_INLINE void winograd_values(const float *pixels, int64_t row, int64_t pixel, float *to, int64_t point,
                                int64_t channels, int64_t first, int64_t count, const bool results) {
    const int side = results ? WINOGRAD_OUT : WINOGRAD_IN;
    V half[WINOGRAD_IN][WINOGRAD_IN], d[WINOGRAD_IN], v[WINOGRAD_IN];
    for (int64_t c = 0; c < channels; c += VL) {
        for (int j = 0; j < side; j++) {
            VEC_UNROLL for (int i = 0; i < side; i++) d[i] = v_load(pixels + i * row + j * pixel + c);
            (results ? winograd_back_transposed : winograd_forth)(d, half[j]);
        }
        for (int64_t i = 0; i < count; i++) {
            VEC_UNROLL for (int j = 0; j < side; j++) d[j] = half[j][first + i];
            (results ? winograd_back_transposed : winograd_forth)(d, v);
            VEC_UNROLL for (int j = 0; j < WINOGRAD_IN; j++) v_store(to + (i * WINOGRAD_IN + j) * point + c, v[j]);
        }
    }
}

static void winograd_images(const float *pixels, int64_t row, int64_t pixel, float *to, int64_t point, int64_t channels,
                            int64_t first, int64_t count) {
    winograd_values(pixels, row, pixel, to, point, channels, first, count, false);
}

static void winograd_gradients(const float *pixels, int64_t row, int64_t pixel, float *to, int64_t point,
                               int64_t channels, int64_t first, int64_t count) {
    winograd_values(pixels, row, pixel, to, point, channels, first, count, true);
}

/* Three taps of six sums: `winograd_points` turned around, with its factors. */
VEC_INLINE void winograd_points_transposed(const V *m, V *g) {
    V sum_a = m[1] + m[2], sum_b = m[3] + m[4], odd_a = m[1] - m[2], odd_b = m[3] - m[4];
    V zero = v_set1((float)FACTOR_0) * m[0];
    g[0] = v_fma(v_set1((float)FACTOR_A), sum_a, v_fma(v_set1((float)FACTOR_B), sum_b, zero));
    g[1] = v_fma(v_set1((float)(FACTOR_A * 0.75)), odd_a, v_set1((float)(FACTOR_B * 1.5)) * odd_b);
    g[2] = v_fma(v_set1((float)(FACTOR_A * 0.5625)), sum_a, v_fma(v_set1((float)(FACTOR_B * 2.25)), sum_b, m[5]));
}

static void winograd_taps(const float *sums, int64_t point, float *to, int64_t channels) {
    V half[3][WINOGRAD_IN], m[WINOGRAD_IN], g[3];
    for (int64_t c = 0; c < channels; c += VL) {
        VEC_UNROLL for (int i = 0; i < WINOGRAD_IN; i++) {
            VEC_UNROLL for (int j = 0; j < WINOGRAD_IN; j++) m[j] = v_load(sums + (i * WINOGRAD_IN + j) * point + c);
            winograd_points_transposed(m, g);
            VEC_UNROLL for (int j = 0; j < 3; j++) half[j][i] = g[j];
        }
        VEC_UNROLL for (int j = 0; j < 3; j++) {
            winograd_points_transposed(half[j], g);
            VEC_UNROLL for (int i = 0; i < 3; i++) v_store(to + (3 * i + j) * channels + c, g[i]);
        }
    }
}
#define WINOGRAD                                                                                              \
    winograd_rows, winograd_columns, winograd_finish, winograd_out_channels, winograd_1d, winograd_1d_finish, \
        winograd_images, winograd_gradients, winograd_taps
#endif

const conv_vec VEC_JOIN(tn_conv_vec, TN_ISA_SUFFIX) = {&TILES,         copy_rows,        spread_row,     copy_piece,
                                                       window_tiles,   TILE_FILTERS,     weigh,          weigh_in_image,
                                                       weigh_in_block, greatest_of_four, greatest_pairs, WINOGRAD};
