/* half.h — kernels for weights in f16 and bf16; part of qplain.c.
 *
 * Weights of 16 rows lie side by side, step of k after step of k. They are widened in registers, where a tile of rows
 * of x uses them at once, or the one row of x that there is. The result is that of a product in f32 with the widened
 * weight: chains of KIR_KSUM fused multiply-adds from +0, added in order. */
#ifndef TN_HALF_H
#define TN_HALF_H

#include "kern/cpu/qtile.h"
#include "kern/cpu/qvec.h"
#include "kern/cpu/widen.h"

enum {
    HALF_ROWS = TN_QROWS,
    HALF_AT_ONCE = (int)VL == (int)HALF_ROWS ? 2 : 1, /* groups that give two vectors of columns … */
    HALF_LAST = (int)VL == (int)HALF_ROWS ? 1 : 2     /* … and vectors where one group is left */
};

VEC_INLINE V half_load(const uint8_t *p, bool brain) { return brain ? v_bf16(p) : v_f16(p); }

/* Two vectors of columns at once, where a group has so many or another group follows. */
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

#endif
