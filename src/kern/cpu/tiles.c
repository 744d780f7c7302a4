/* tiles.c — the kernels of matrix products, compiled once per instruction set and type of sums and products.
 *
 * What a product is cut into is gemm.c's; here is what touches every number: packing (pack.h), multiplying (tile.h, and
 * gemm_small_m.h for few rows), and storing sums that become something else. */
#include "base/base.h"
#include "kern/cpu/cpu.h"
#include "kern/cpu/pack.h"
#include "kern/cpu/tile.h"

#ifdef TN_VEC_QUADS
static const bool lines_take[PACK_QUADS + 1];
#define lines_run NULL
#else
#include "kern/cpu/gemm_small_m.h"
#endif

#if defined(TN_VEC_F64) || defined(TN_VEC_QUADS)
#define ROUND NULL
#define ADD NULL
#define END NULL
#else
#define ROUND round_out
#define ADD add_out

/* Chains that are whole numbers, added as such: modulo 2³². */
VEC_INLINE void add_row(uint32_t *to, const int64_t stride, const real *from, int64_t columns, bool add) {
    for (int64_t j = 0; j < columns; j++)
        to[j * stride] = (add ? to[j * stride] : 0) + (uint32_t)(int32_t)from[j];
}

static void add_out(const result_block *r, bool add) {
    for (int64_t i = 0; i < r->rows; i++) {
        uint32_t *row = (uint32_t *)r->to + i * r->row_stride;
        if (r->col_stride == 1) {
            add_row(row, 1, r->from + i * r->from_row, r->columns, add);
        } else {
            add_row(row, r->col_stride, r->from + i * r->from_row, r->columns, add);
        }
    }
}

/* VL columns of a row, rounded. */
VEC_INLINE void round_columns(uint16_t *to, int64_t stride, const real *from, int64_t columns, bool brain) {
    V x = columns >= VL ? v_load(from) : v_part_load(from, v_mask(columns));
    v_halves h = brain ? v_narrow_bf16(x) : v_narrow_f16(x);
    if (columns >= VL && stride == 1) {
        memcpy(to, &h, sizeof h);
        return;
    }
    uint16_t one[VL];
    memcpy(one, &h, sizeof h);
    for (int64_t j = 0; j < columns && j < VL; j++)
        to[j * stride] = one[j];
}

#ifdef TN_VEC_PAIRS
#define END NULL
#else
#define END end_block

/* Columns of a row: `left` of them, at most a vector's. */
VEC_INLINE V end_columns(const epilogue_ops *e, V x, int64_t row, int64_t column, M mask) {
    if (e->add) {
        V add = v_part_load(e->add + column, mask);
        if (e->times) add = v_fma(v_set1(e->times[row * e->times_row]), add, v_set1(e->zero));
        x = x + add;
    }
    if (!e->relu) return x;
    return v_gate(x, e->gate ? v_part_load(e->gate + row * e->gate_row + column, mask) : x, v_zero());
}

static void end_block(const epilogue_block *b) {
    for (int64_t i = 0; i < b->rows; i++) {
        for (int64_t j = 0; j < b->columns; j += VL) {
            M mask = v_mask(b->columns - j);
            V x = v_part_load(b->from + i * b->from_row + j, mask);
            v_part_store(b->to + i * b->to_row + j, mask,
                         end_columns(b->epilogue_ops, x, b->row + i, b->column + j, mask));
        }
    }
}
#endif

static void round_out(const result_block *r, bool brain) {
    for (int64_t i = 0; i < r->rows; i++) {
        uint16_t *row = (uint16_t *)r->to + i * r->row_stride;
        for (int64_t j = 0; j < r->columns; j += VL)
            round_columns(row + j * r->col_stride, r->col_stride, r->from + i * r->from_row + j, r->columns - j, brain);
    }
}
#endif

#if defined(TN_VEC_PAIRS)
enum { WIDTH = 2 };
#define SET VEC_JOIN(tn_tiles_bf16, TN_ISA_SUFFIX)
#elif defined(TN_VEC_QUADS)
enum { WIDTH = 4 };
#define SET VEC_JOIN(tn_tiles_bytes, TN_DOT_SUFFIX)
#elif defined(TN_VEC_F64)
enum { WIDTH = 1 };
#define SET VEC_JOIN(tn_tiles_f64, TN_ISA_SUFFIX)
#else
enum { WIDTH = 1 };
#define SET VEC_JOIN(tn_tiles_f32, TN_ISA_SUFFIX)
#endif

const tile_set SET = {.full = tile_full,
                      .edge = tile_edge,
                      .wide = tile_wide,
                      .tapped = tile_tapped,
                      .nhwc = tile_nhwc,
                      .wide_panels = tile_wide_panels,
                      .pack = pack_run,
                      .lines = lines_run,
                      .lines_take = lines_take,
                      .end = END,
                      .round = ROUND,
                      .add = ADD,
                      .lanes = VL,
                      .rows = TILE_ROWS,
                      .width = WIDTH,
                      .folds = V_FOLDS};
