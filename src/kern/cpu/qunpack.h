/* qunpack.h — weights as files store them, from their bits to vectors of bytes and of scales; for qtile.c, which
 * multiplies them on the way, and qplain.c, which lays them out for many rows. */
#ifndef TN_QUNPACK_H
#define TN_QUNPACK_H

#include "kern/cpu/qtile.h"
#include "kern/cpu/qvec.h"
#include "kern/cpu/widen.h"

/* Rows of x at once: 12 sums and 12 accumulators of 32 registers, 6 and 6 of 16. */
#if defined(__AVX512F__)
enum { TILE = 12 };
#elif defined(__AVX2__)
enum { TILE = 6 };
#else
enum { TILE = 4 };
#endif

enum {
    CHUNKS = QCHUNKS,
    LINE = QLINE,
    BITS = QBITS,
    HALVES = TN_QROWS / VL, /* vectors of a group: one, two or four */
    LANE = VL * 4           /* bytes of a vector of f32 */
};

/* Chunk after chunk of a block, one vector of rows. */
KERNEL void unpack_bits(tn_qbits bits, const uint8_t *low, const uint8_t *high, VB w[CHUNKS]) {
    bool nibbles = bits <= TN_QBITS_4_2, pairs = bits == TN_QBITS_2 || bits == TN_QBITS_2_1;
    VEC_UNROLL for (int c = 0; c < CHUNKS; c++) {
        if (nibbles) w[c] = q_field(q_load(low + c % 4 * LINE), c / 4 * 4, 0, 15);
        if (pairs) w[c] = q_field(q_load(low + c / 4 * LINE), c % 4 * 2, 0, 3);
        if (bits == TN_QBITS_8) w[c] = q_load(low + c * LINE);
        if (bits == TN_QBITS_4_1) w[c] |= q_field(q_load(high), c, 4, 16);
        if (bits == TN_QBITS_4_2) w[c] |= q_field(q_load(high + c / 4 * LINE), c % 4 * 2, 4, 48);
        if (bits == TN_QBITS_2_1) w[c] |= q_field(q_load(high), c, 2, 4);
    }
}

VEC_INLINE bool form_has_minimum(tn_qscales form) {
    return form == TN_QSCALES_DM || form == TN_QSCALES_PAIR_M || form == TN_QSCALES_NIBBLE;
}

VEC_INLINE int form_parts(tn_qscales form) {
    return form == TN_QSCALES_PAIR || form >= TN_QSCALES_I8 ? 2 : 1;
}

typedef struct scales {
    V s[2], t[2];
} scales;

/* Of block `b` of a super-block, or of a block that has its own (b = 0); rows from `row` on. */
KERNEL void unpack_scales(tn_qscales form, const uint8_t *p, int b, int row, scales *out) {
    if (form == TN_QSCALES_F32) {
        VEC_UNROLL for (int part = 0; part < 2; part++) out->s[part] =
            v_load((const float *)(const void *)(p + 64 * part + 4 * row));
        out->t[0] = out->t[1] = v_zero();
        return;
    }
    bool has_minimum = form_has_minimum(form);
    V d = v_f16(p + 2 * row), m = has_minimum ? v_f16(p + 32 + 2 * row) : v_zero();
    const uint8_t *small = p + (has_minimum ? 64 : 32) + row;
    out->s[0] = d;
    out->t[0] = m;
    if (form == TN_QSCALES_PAIR || form == TN_QSCALES_PAIR_M) {
        VI low = q_u8(small + 16 * b), high = q_u8(small + 128 + b / 2 * 16) >> (b % 2 * 4);
        VI first = (low & 15) | (high & 3) << 4, second = low >> 4 | (high & 12) << 2;
        if (form == TN_QSCALES_PAIR) {
            out->s[0] = d * q_float(first - 32);
            out->s[1] = d * q_float(second - 32);
        } else {
            out->s[0] = d * q_float(first);
            out->t[0] = -(m * q_float(second));
        }
    }
    if (form == TN_QSCALES_I8 || form == TN_QSCALES_NIBBLE) {
        VEC_UNROLL for (int part = 0; part < 2; part++) {
            const uint8_t *at = small + (2 * b + part) * 16;
            if (form == TN_QSCALES_I8) {
                out->s[part] = d * q_float(q_i8(at));
            } else {
                VI both = q_u8(at);
                out->s[part] = d * q_float(both & 15);
                out->t[part] = -(m * q_float(both >> 4));
            }
        }
    }
}

#endif
