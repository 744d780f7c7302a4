/* blocks.c — weights quantised in blocks, decoded inside a kernel: the KIR that yields one element from its block's
 * bytes.
 *
 * The memory is bound twice, as bytes and as factors: f16, in one format f32; the place of an element is computed from
 * its number, so any view of whole rows and any gather works. Formats are GGUF's; every value is s·u + t with one
 * rounding (kern.h), as tn_decode_blocks has it. A row of the table is a function: the formats differ in where bits
 * lie, and little else. */
#include "core/core.h"

/* An element on its way: its block's first byte and first factor, and its place in the block. */
typedef struct element {
    kir_builder *kb;
    int bytes, halves;    /* buffers */
    kir_val byte0, half0; /* I64 */
    kir_val at;           /* I32 */
    kir_val mask;
} element;

static kir_val int_constant(const element *e, int64_t v) { return kir_const_i(e->kb, KIR_I32, v); }
static kir_val block_both(const element *e, kir_val v, int64_t mask) {
    return kir_binary(e->kb, KIR_AND, v, int_constant(e, mask));
}
static kir_val shr(const element *e, kir_val v, int64_t by) {
    return kir_binary(e->kb, KIR_SHR, v, int_constant(e, by));
}
static kir_val shl(const element *e, kir_val v, int64_t by) {
    return kir_binary(e->kb, KIR_SHL, v, int_constant(e, by));
}
static kir_val plus(const element *e, kir_val a, kir_val b) { return kir_binary(e->kb, KIR_ADD, a, b); }
static kir_val shift_by(const element *e, kir_val v, kir_val by) { return kir_binary(e->kb, KIR_SHR, v, by); }
static kir_val times(const element *e, kir_val a, kir_val b) { return kir_binary(e->kb, KIR_MUL, a, b); }
static kir_val block_number(const element *e, kir_val v) { return kir_cast(e->kb, KIR_F32, v); }

/* The byte at `offset` + `place` of the block. */
static kir_val byte_at(const element *e, int64_t offset, kir_val place) {
    kir_aff index = kir_aff_const(offset);
    index.dyn = kir_binary(e->kb, KIR_ADD, e->byte0, kir_cast(e->kb, KIR_I64, place));
    return kir_load(e->kb, e->bytes, &index, e->mask);
}

static kir_val half_at(const element *e, int64_t offset) {
    kir_aff index = kir_aff_const(offset / 2);
    index.dyn = e->half0;
    return kir_load(e->kb, e->halves, &index, e->mask);
}

static kir_val signed_byte(const element *e, kir_val v) { return shr(e, shl(e, v, 24), 24); }

static tn_quant decoded(kir_val s, kir_val u, kir_val t) { return (tn_quant){.u = u, .s = s, .t = t}; }

/* ---- blocks of 32 ------------------------------------------------------------------------------------------------ */

/* Four bits: those of elements 0 … 15 in the low halves of 16 bytes, of 16 … 31 in the high ones. */
static kir_val nibble_32(const element *e, int64_t offset) {
    kir_val byte = byte_at(e, offset, block_both(e, e->at, 15));
    return block_both(e, shift_by(e, byte, shl(e, shr(e, e->at, 4), 2)), 15);
}

static kir_val fifth_bit_32(const element *e, int64_t offset) {
    kir_val byte = byte_at(e, offset, shr(e, e->at, 3));
    return shl(e, block_both(e, shift_by(e, byte, block_both(e, e->at, 7)), 1), 4);
}

static tn_quant decode_q4_0(const element *e) {
    return decoded(half_at(e, 0), plus(e, nibble_32(e, 2), int_constant(e, -8)), KIR_NONE);
}

static tn_quant decode_q4_1(const element *e) { return decoded(half_at(e, 0), nibble_32(e, 4), half_at(e, 2)); }

static tn_quant decode_q5_0(const element *e) {
    kir_val u = kir_binary(e->kb, KIR_OR, nibble_32(e, 6), fifth_bit_32(e, 2));
    return decoded(half_at(e, 0), plus(e, u, int_constant(e, -16)), KIR_NONE);
}

static tn_quant decode_q5_1(const element *e) {
    kir_val u = kir_binary(e->kb, KIR_OR, nibble_32(e, 8), fifth_bit_32(e, 4));
    return decoded(half_at(e, 0), u, half_at(e, 2));
}

static tn_quant decode_q8_0(const element *e) {
    return decoded(half_at(e, 0), signed_byte(e, byte_at(e, 2, e->at)), KIR_NONE);
}

/* Two factors of 32 bits, then bytes. */
static tn_quant decode_q8_x(const element *e) {
    kir_aff index = kir_aff_const(0);
    index.dyn = kir_binary(e->kb, KIR_ADD, e->half0, kir_cast(e->kb, KIR_I64, shr(e, e->at, 4)));
    kir_val s = kir_load(e->kb, e->halves, &index, e->mask);
    return decoded(s, signed_byte(e, byte_at(e, 8, e->at)), KIR_NONE);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------------------------- */

/* Two bits: bytes hold elements l, l + 32, l + 64 and l + 96 of each half of the block. */
static kir_val pair_bits(const element *e, int64_t offset) {
    kir_val place = kir_binary(e->kb, KIR_OR, shl(e, shr(e, e->at, 7), 5), block_both(e, e->at, 31));
    kir_val by = shl(e, block_both(e, shr(e, e->at, 5), 3), 1);
    return block_both(e, shift_by(e, byte_at(e, offset, place), by), 3);
}

static kir_val negative(const element *e, kir_val v) { return kir_unary(e->kb, KIR_NEG, v); }

static tn_quant decode_q2_k(const element *e) {
    kir_val part = byte_at(e, 0, shr(e, e->at, 4)); /* scale and minimum of 16 elements */
    kir_val s = times(e, half_at(e, 80), block_number(e, block_both(e, part, 15)));
    kir_val t = negative(e, times(e, half_at(e, 82), block_number(e, shr(e, part, 4))));
    return decoded(s, pair_bits(e, 16), t);
}

/* Scales of six bits: the low four of 0 … 7 and 8 … 15 share eight bytes, the high two of
 * i, i + 4, i + 8, i + 12 four. */
static tn_quant decode_q3_k(const element *e) {
    kir_val part = shr(e, e->at, 4);
    kir_val low = block_both(e, shift_by(e, byte_at(e, 96, block_both(e, part, 7)), shl(e, shr(e, part, 3), 2)), 15);
    kir_val high = block_both(e, shift_by(e, byte_at(e, 104, block_both(e, part, 3)), shl(e, shr(e, part, 2), 1)), 3);
    kir_val scale = plus(e, kir_binary(e->kb, KIR_OR, low, shl(e, high, 4)), int_constant(e, -32));
    kir_val top = block_both(e, shift_by(e, byte_at(e, 0, block_both(e, e->at, 31)), shr(e, e->at, 5)), 1);
    kir_val u = plus(e, kir_binary(e->kb, KIR_OR, pair_bits(e, 32), shl(e, top, 2)), int_constant(e, -4));
    return decoded(times(e, half_at(e, 108), block_number(e, scale)), u, KIR_NONE);
}

/* Scale and minimum of the eight parts, six bits each: parts 0 … 3 in the low six of bytes 0 … 3 and 4 … 7; parts 4 … 7
 * have their low four bits in bytes 8 … 11 and their high two above those of parts 0 … 3. */
static void scale_and_minimum(const element *e, kir_val *scale, kir_val *minimum) {
    kir_val part = shr(e, e->at, 5), quarter = block_both(e, part, 3);
    kir_val first = kir_binary(e->kb, KIR_LT, part, int_constant(e, 4));
    kir_val a = byte_at(e, 4, quarter), b = byte_at(e, 8, quarter), c = byte_at(e, 12, quarter);
    kir_val late_scale = kir_binary(e->kb, KIR_OR, block_both(e, c, 15), shl(e, shr(e, a, 6), 4));
    kir_val late_minimum = kir_binary(e->kb, KIR_OR, shr(e, c, 4), shl(e, shr(e, b, 6), 4));
    *scale = kir_select(e->kb, first, block_both(e, a, 63), late_scale);
    *minimum = kir_select(e->kb, first, block_both(e, b, 63), late_minimum);
}

/* Four bits: bytes hold elements l and l + 32 of each quarter of the block. */
static kir_val nibble_256(const element *e, int64_t offset) {
    kir_val place = kir_binary(e->kb, KIR_OR, shl(e, shr(e, e->at, 6), 5), block_both(e, e->at, 31));
    return block_both(e, shift_by(e, byte_at(e, offset, place), shl(e, block_both(e, shr(e, e->at, 5), 1), 2)), 15);
}

static tn_quant decode_with_minimum(const element *e, kir_val u) {
    kir_val scale = KIR_NONE, minimum = KIR_NONE;
    scale_and_minimum(e, &scale, &minimum);
    kir_val t = negative(e, times(e, half_at(e, 2), block_number(e, minimum)));
    return decoded(times(e, half_at(e, 0), block_number(e, scale)), u, t);
}

static tn_quant decode_q4_k(const element *e) { return decode_with_minimum(e, nibble_256(e, 16)); }

static tn_quant decode_q5_k(const element *e) {
    kir_val top = block_both(e, shift_by(e, byte_at(e, 16, block_both(e, e->at, 31)), shr(e, e->at, 5)), 1);
    return decode_with_minimum(e, kir_binary(e->kb, KIR_OR, nibble_256(e, 48), shl(e, top, 4)));
}

/* Low four bits: bytes hold elements l and l + 64 of each half of the block. */
static tn_quant decode_q6_k(const element *e) {
    kir_val place = kir_binary(e->kb, KIR_OR, shl(e, shr(e, e->at, 7), 6), block_both(e, e->at, 63));
    kir_val low = block_both(e, shift_by(e, byte_at(e, 0, place), shl(e, block_both(e, shr(e, e->at, 6), 1), 2)), 15);
    kir_val u = plus(e, kir_binary(e->kb, KIR_OR, low, shl(e, pair_bits(e, 128), 4)), int_constant(e, -32));
    kir_val scale = signed_byte(e, byte_at(e, 192, shr(e, e->at, 4)));
    return decoded(times(e, half_at(e, 208), block_number(e, scale)), u, KIR_NONE);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static tn_quant (*const decoders[TN_DTYPE_COUNT])(const element *e) = {
    [TN_Q4_0] = decode_q4_0, [TN_Q4_1] = decode_q4_1, [TN_Q5_0] = decode_q5_0, [TN_Q5_1] = decode_q5_1,
    [TN_Q8_0] = decode_q8_0, [TN_Q2_K] = decode_q2_k, [TN_Q3_K] = decode_q3_k, [TN_Q4_K] = decode_q4_k,
    [TN_Q5_K] = decode_q5_k, [TN_Q6_K] = decode_q6_k, [TN_Q8_X] = decode_q8_x,
};

tn_dtype tn_block_factor(tn_dtype dtype) { return dtype == TN_Q8_X ? TN_F32 : TN_F16; }

tn_quant tn_lower_block_parts(const tn_blocks *b, const kir_aff *index, int by) {
    int64_t block = tn_dtype_block(b->dtype), size = (int64_t)tn_dtype_size(b->dtype);
    int shift = block == 32 ? 5 : 8; /* the blocks that there are */
    kir_builder *kb = b->kb;
    kir_val number = kir_index(kb, index);
    kir_val which = kir_binary(kb, KIR_SHR, number, kir_const_i(kb, KIR_I64, shift));
    kir_val within = kir_binary(kb, KIR_AND, number, kir_const_i(kb, KIR_I64, block - 1));
    element e = {.kb = kb, .bytes = b->bytes, .halves = b->halves, .mask = b->mask};
    e.byte0 = kir_binary(kb, KIR_MUL, which, kir_const_i(kb, KIR_I64, size));
    e.half0 = kir_binary(kb, KIR_MUL, which,
                         kir_const_i(kb, KIR_I64, size / (int64_t)tn_dtype_size(tn_block_factor(b->dtype))));
    e.at = plus(&e, kir_cast(kb, KIR_I32, within), int_constant(&e, by));
    return decoders[b->dtype](&e);
}

kir_val tn_lower_block_element(const tn_blocks *b, const kir_aff *index) {
    tn_quant q = tn_lower_block_parts(b, index, 0);
    kir_val product = kir_binary(b->kb, KIR_MUL, q.s, kir_cast(b->kb, KIR_F32, q.u));
    return q.t == KIR_NONE ? product : kir_binary(b->kb, KIR_ADD, product, q.t);
}
