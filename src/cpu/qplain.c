/* qplain.c — products with stored weights, without integer dot products: rounding x, unpacking panels, half-precision
 * weights. */
#include <string.h>

#include "cpu/isa.h"
#include "cpu/qtile.h"
#include "cpu/qvec.h"
#include "cpu/widen.h"

/* ==== weights in f16 and bf16 ===================================================================================== */
/* Weights of 16 rows are next to each other, one step of k after the other. They are widened in registers and used at
 * once by a tile of rows of x, or its only row. The result is that of a product in f32 with the widened weight: chains
 * of KIR_KSUM fused multiply-adds from +0, added in order. */

enum {
    HALF_ROWS = TN_QROWS,
    HALF_AT_ONCE = (int)VL == (int)HALF_ROWS ? 2 : 1, /* groups that give two vectors of columns … */
    HALF_LAST = (int)VL == (int)HALF_ROWS ? 1 : 2     /* … and vectors where one group is left */
};

VEC_INLINE V half_load(const uint8_t *p, bool brain) { return brain ? v_bf16(p) : v_f16(p); }

/* Two vectors of columns at once, if a group has that many or another group follows. */
KERNEL void multiply_half(const half_tile *t, int height, int vectors, bool brain) {
    enum { MOST = 12 };
    const int64_t distance = (int)VL == (int)HALF_ROWS ? t->group : 2 * VL;
    for (int first = 0; first < HALF_ROWS; first += vectors * VL) {
        V acc[2][MOST];
        VEC_UNROLL for (int i = 0; i < vectors; i++) {
            VEC_UNROLL for (int r = 0; r < height; r++) acc[i][r] = v_zero();
        }
        const uint8_t *weights = t->weights + 2 * first;
        const float *x = t->x;
        for (int64_t k = 0; k < t->steps; k++, weights += 2 * HALF_ROWS, x += height) {
            V w[2] = {half_load(weights, brain)};
            if (vectors > 1) w[1] = half_load(weights + distance, brain);
            VEC_UNROLL for (int r = 0; r < height; r++) {
                V one = v_set1(x[r]);
                VEC_UNROLL for (int i = 0; i < vectors; i++) acc[i][r] = v_fma(w[i], one, acc[i][r]);
            }
        }
        VEC_UNROLL for (int r = 0; r < height; r++) {
            VEC_UNROLL for (int i = 0; i < vectors; i++) {
                float *c = t->c + r * t->c_row + first + i * VL;
                v_store(c, t->add ? v_load(c) + acc[i][r] : acc[i][r]);
            }
        }
    }
}

/* One row of x and `groups` groups side by side, whose chains do not wait for each other; all steps of k. */
KERNEL void multiply_half_row(const uint8_t *weights, int64_t group_bytes, int groups, int64_t k, const float *x,
                              float *c, bool brain) {
    enum { VECTORS = HALF_ROWS / VL, AHEAD_STEPS = 64 };
    V total[HALF_GROUPS * VECTORS];
    int64_t from = 0;
    do {
        int64_t steps = tn_min64(KIR_KSUM, k - from);
        V acc[HALF_GROUPS * VECTORS];
        VEC_UNROLL for (int i = 0; i < groups * VECTORS; i++) acc[i] = v_zero();
        for (int64_t step = from; step < from + steps; step++) {
            V one = v_set1(x[step]);
            const uint8_t *line = weights + 2 * HALF_ROWS * step;
            VEC_UNROLL for (int i = 0; i < groups * VECTORS; i++) {
                const uint8_t *at = line + i / VECTORS * group_bytes + i % VECTORS * 2 * VL;
                if (i % VECTORS == 0) __builtin_prefetch(at + AHEAD_STEPS * 2 * HALF_ROWS);
                acc[i] = v_fma(half_load(at, brain), one, acc[i]);
            }
        }
        VEC_UNROLL for (int i = 0; i < groups * VECTORS; i++) total[i] = from ? total[i] + acc[i] : acc[i];
        from += KIR_KSUM;
    } while (from < k);
    VEC_UNROLL for (int i = 0; i < groups * VECTORS; i++)
        v_store(c + i / VECTORS * HALF_ROWS + i % VECTORS * VL, total[i]);
}
/* ---- rows of x: records ------------------------------------------------------------------------------------------ */

/* Up to ROUND_BLOCKS blocks of a row, a multiple of ROUND_AT_ONCE. Each step is done for all blocks, because steps
 * depend on each other but blocks do not. */
static void round_blocks(const float *x, int count, const tn_qformat *f, uint8_t *record, int64_t step) {
    static const float least = 0x1p-100f;
    int32_t most[ROUND_BLOCKS], sum[ROUND_BLOCKS][2];
    float dx[ROUND_BLOCKS], factor[ROUND_BLOCKS];
    for (int b = 0; b < count; b += ROUND_AT_ONCE)
        q_most(x + b * TN_QBLOCK, most + b);
    for (int b = 0; b < count; b++) {
        float a = kir_from_bits_f32((uint32_t)most[b]);
        dx[b] = a < least ? 0 : a / 127.0f;
        factor[b] = a < least ? 0 : 127.0f / a;
    }
    for (int b = 0; b < count; b += ROUND_AT_ONCE)
        q_round(x + b * TN_QBLOCK, factor + b, record + b * step, step, sum + b);
    for (int b = 0; b < count; b++) {
        uint8_t *to = record + b * step;
        if (most[b] >= 0x7f800000) {
            memset(to, 0, TN_QBLOCK);
            sum[b][0] = sum[b][1] = 0;
            dx[b] = __builtin_nanf("");
        }
        memcpy(to + RECORD_SCALE, &dx[b], sizeof *dx);
        if (f->parts == 1) sum[b][0] += sum[b][1];
        for (int part = 0; part < f->parts; part++) {
            float scaled = dx[b] * (float)sum[b][part];
            int32_t start = -f->zero * sum[b][part];
            memcpy(to + RECORD_PARTS + 4 * part, f->has_minimum ? (void *)&scaled : (void *)&start, 4);
        }
    }
}

/* ---- halves ------------------------------------------------------------------------------------------------------ */

#define HALF_KERNELS(name, brain)                                                                                      \
    static void name##_full(const half_tile *t) { multiply_half(t, TILE, 2, brain); }                                  \
    static void name##_two(const half_tile *t) { multiply_half(t, 2 * TILE / 3, 2, brain); }                           \
    static void name##_third(const half_tile *t) { multiply_half(t, TILE / 3, 2, brain); }                             \
    static void name##_one(const half_tile *t) { multiply_half(t, 1, 2, brain); }                                      \
    static void name##_full_last(const half_tile *t) { multiply_half(t, TILE, HALF_LAST, brain); }                     \
    static void name##_two_last(const half_tile *t) { multiply_half(t, 2 * TILE / 3, HALF_LAST, brain); }              \
    static void name##_third_last(const half_tile *t) { multiply_half(t, TILE / 3, HALF_LAST, brain); }                \
    static void name##_one_last(const half_tile *t) { multiply_half(t, 1, HALF_LAST, brain); }                         \
    static void name##_row(const uint8_t *weights, int64_t group, int64_t k, const float *x, float *c) {               \
        multiply_half_row(weights, group, 1, k, x, c, brain);                                                          \
    }                                                                                                                  \
    static void name##_rows(const uint8_t *weights, int64_t group, int64_t k, const float *x, float *c) {              \
        multiply_half_row(weights, group, HALF_GROUPS, k, x, c, brain);                                                \
    }                                                                                                                  \
    static const half_set name##_kernels = {{{name##_full, name##_two, name##_third, name##_one},                      \
                                             {name##_full_last, name##_two_last, name##_third_last, name##_one_last}}, \
                                            {name##_row, name##_rows}};

HALF_KERNELS(half, false)
HALF_KERNELS(brain, true)

/* ---- panels ------------------------------------------------------------------------------------------------------ */

enum { PANEL_AHEAD = 2048 /* bytes from a block to what is asked for: five to eight blocks */ };

KERNEL void bits_to_panel_as(tn_qbits bits, const uint8_t *low, const uint8_t *high, const tn_qlayout *l,
                             int64_t blocks, uint8_t *to, int64_t step) {
    for (int64_t b = 0; b < blocks; b++, low += l->low_bytes, high += l->high_bytes, to += step) {
        for (int i = 0; i < l->low_bytes; i += 64)
            __builtin_prefetch(low + PANEL_AHEAD + i);
        for (int half = 0; half < HALVES; half++) {
            VB w[CHUNKS];
            unpack_bits(bits, low + half * VEC_BYTES, high + half * VEC_BYTES, w);
            VEC_UNROLL for (int c = 0; c < CHUNKS; c++) q_store(to + c * LINE + half * VEC_BYTES, w[c]);
        }
    }
}

#define BITS_TO_PANEL(name, bits)                                                                               \
    static void name(const uint8_t *low, const uint8_t *high, const tn_qlayout *l, int64_t blocks, uint8_t *to, \
                     int64_t step) {                                                                            \
        bits_to_panel_as(bits, low, high, l, blocks, to, step);                                                 \
    }

BITS_TO_PANEL(bits_4, TN_QBITS_4)
BITS_TO_PANEL(bits_4_1, TN_QBITS_4_1)
BITS_TO_PANEL(bits_4_2, TN_QBITS_4_2)
BITS_TO_PANEL(bits_2, TN_QBITS_2)
BITS_TO_PANEL(bits_2_1, TN_QBITS_2_1)
BITS_TO_PANEL(bits_8, TN_QBITS_8)

static bits_unpacker *const bits_to_panel[TN_QBITS_COUNT] = {bits_4, bits_4_1, bits_4_2, bits_2, bits_2_1, bits_8};

KERNEL void scales_to_panel_as(tn_qscales form, const uint8_t *from, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                               int64_t step) {
    bool has_minimum = form_has_minimum(form);
    int parts = form_parts(form);
    for (int64_t b = 0; b < blocks; b++, to += step) {
        const uint8_t *unit = from + b / l->scale_blocks * l->scale_bytes;
        for (int half = 0; half < HALVES; half++) {
            scales sc;
            unpack_scales(form, unit, (int)(b % l->scale_blocks), half * VL, &sc);
            uint8_t *at = to + half * LANE;
            VEC_UNROLL for (int part = 0; part < parts; part++) {
                *(V *)(void *)(at + part * LINE) = sc.s[part];
                if (has_minimum) *(V *)(void *)(at + (parts + part) * LINE) = sc.t[part];
            }
        }
    }
}

static void scales_to_panel(tn_qscales form, const uint8_t *from, const tn_qlayout *l, int64_t blocks, uint8_t *to,
                            int64_t step) {
    if (form == TN_QSCALES_D) scales_to_panel_as(TN_QSCALES_D, from, l, blocks, to, step);
    if (form == TN_QSCALES_DM) scales_to_panel_as(TN_QSCALES_DM, from, l, blocks, to, step);
    if (form == TN_QSCALES_PAIR_M) scales_to_panel_as(TN_QSCALES_PAIR_M, from, l, blocks, to, step);
    if (form == TN_QSCALES_PAIR) scales_to_panel_as(TN_QSCALES_PAIR, from, l, blocks, to, step);
    if (form == TN_QSCALES_I8) scales_to_panel_as(TN_QSCALES_I8, from, l, blocks, to, step);
    if (form == TN_QSCALES_NIBBLE) scales_to_panel_as(TN_QSCALES_NIBBLE, from, l, blocks, to, step);
    if (form == TN_QSCALES_F32) scales_to_panel_as(TN_QSCALES_F32, from, l, blocks, to, step);
}

/* ---- the set ----------------------------------------------------------------------------------------------------- */

const qplain_set QPLAIN = {.tiles = &TILES,
                           .heights = {TILE, 2 * TILE / 3, TILE / 3, 1},
                           .round_at_once = ROUND_AT_ONCE,
                           .halves_at_once = HALF_AT_ONCE,
                           .round = round_blocks,
                           .bits_to_panel = bits_to_panel,
                           .scales_to_panel = scales_to_panel,
                           .half = &half_kernels,
                           .brain = &brain_kernels};
