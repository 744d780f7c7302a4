/* iquant.c — GGUF's i-quants taken apart: each block of a file becomes blocks of TN_Q8_X with the same values.
 *
 * The formats differ in how few bits they spend: a code of 8 to 11 bits stands for eight numbers at once, a row of a
 * grid that was chosen for what weights look like (iquant_tables.h); signs and scales lie elsewhere in the block. What
 * all have in common is that a weight is a small whole number times a factor that 16 or more share. Factors of 1/2, 1/4
 * and 1/8 are moved from the numbers to the factor or back, which is exact. Source: the ggml project's description of
 * its types; the values are those of its gguf package. */
#include "formats/gguf.h"

#include "gen/iquant_tables.h"
#include "kir/kir_math.h"

enum { GROUP = 8, GROUPS = 256 / GROUP }; /* numbers of one code or byte of signs, and such groups of a large block */

static const int8_t numbers_2[4] = {8, 25, 43, 0};
static const int8_t numbers_3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t numbers_3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};
static const int8_t numbers_4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t numbers_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* e2m1, doubled */

static uint32_t iquant_word(const uint8_t *p) { return (uint32_t)(p[0] | p[1] << 8); }
static uint32_t long_word(const uint8_t *p) { return iquant_word(p) | iquant_word(p + 2) << 16; }
static float half(const uint8_t *p) { return kir_from_f16((uint16_t)iquant_word(p)); }

static int8_t *group_at(tn_block_q8_x *out, int group) { return out[group / 4].u + group % 4 * GROUP; }

static void set_scale(tn_block_q8_x *out, float s) { out->s[0] = out->s[1] = s; }

/* Seven bits of signs are stored: there is always an even number of minuses. */
static uint32_t even_signs(uint32_t seven) {
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return seven | (odd & 1) << 7;
}

static void negate_iquant(int8_t *u, uint32_t signs) {
    for (int i = 0; i < GROUP; i++)
        if (signs >> i & 1) u[i] = (int8_t)-u[i];
}

static void put_2(int8_t *u, uint32_t entry, uint32_t signs) {
    for (int i = 0; i < GROUP; i++)
        u[i] = numbers_2[entry >> (2 * i) & 3];
    negate_iquant(u, signs);
}

static void put_3(int8_t *u, const int8_t *numbers, uint32_t first, uint32_t second, uint32_t signs) {
    for (int i = 0; i < GROUP / 2; i++) {
        u[i] = numbers[first >> (4 * i) & 7];
        u[GROUP / 2 + i] = numbers[second >> (4 * i) & 7];
    }
    negate_iquant(u, signs);
}

/* Four bits each: weights 0 … count-1 in the low halves of the bytes, the rest in the high ones. */
static void put_4(int8_t *u, const int8_t *numbers, const uint8_t *bytes, int count) {
    for (int i = 0; i < count; i++) {
        u[i] = numbers[bytes[i] & 15];
        u[count + i] = numbers[bytes[i] >> 4];
    }
}

/* ---- two bits ---------------------------------------------------------------------------------------------------- */

void tn_decode_iq2_xxs(const uint8_t *b, tn_block_q8_x *out) {
    float d = half(b);
    for (int i = 0; i < GROUPS; i++) {
        const uint8_t *codes = b + 2 + i / 4 * 8;
        uint32_t rest = long_word(codes + 4);
        set_scale(&out[i / 4], d * (0.5f + (float)(rest >> 28)) * 0.25f);
        put_2(group_at(out, i), grid_iq2_xxs[codes[i % 4]], even_signs(rest >> (7 * (i % 4)) & 127));
    }
}

/* Scales of four bits, one for 16 weights. */
static void set_scales_2(tn_block_q8_x *out, float d, const uint8_t *scales) {
    for (int i = 0; i < 16; i++)
        out[i / 2].s[i % 2] = d * (0.5f + (float)(scales[i / 2] >> (4 * (i % 2)) & 15)) * 0.25f;
}

void tn_decode_iq2_xs(const uint8_t *b, tn_block_q8_x *out) {
    set_scales_2(out, half(b), b + 66);
    for (int i = 0; i < GROUPS; i++) {
        uint32_t code = iquant_word(b + 2 + 2 * i);
        put_2(group_at(out, i), grid_iq2_xs[code & 511], even_signs(code >> 9));
    }
}

void tn_decode_iq2_s(const uint8_t *b, tn_block_q8_x *out) {
    const uint8_t *codes = b + 2, *signs = b + 34, *high = b + 66;
    set_scales_2(out, half(b), b + 74);
    for (int i = 0; i < GROUPS; i++) {
        uint32_t code = codes[i] | (high[i / 4] >> (2 * (i % 4)) & 3u) << 8;
        put_2(group_at(out, i), grid_iq2_s[code], signs[i]);
    }
}

/* ---- three bits -------------------------------------------------------------------------------------------------- */

void tn_decode_iq3_xxs(const uint8_t *b, tn_block_q8_x *out) {
    const uint8_t *codes = b + 2;
    for (int i = 0; i < GROUPS; i++) {
        uint32_t rest = long_word(b + 66 + i / 4 * 4);
        set_scale(&out[i / 4], half(b) * (0.5f + (float)(rest >> 28)) * 0.5f);
        put_3(group_at(out, i), numbers_3_xxs, grid_iq3_xxs[codes[2 * i]], grid_iq3_xxs[codes[2 * i + 1]],
              even_signs(rest >> (7 * (i % 4)) & 127));
    }
}

void tn_decode_iq3_s(const uint8_t *b, tn_block_q8_x *out) {
    const uint8_t *codes = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
    for (int i = 0; i < 8; i++)
        set_scale(&out[i], half(b) * (float)(1 + 2 * (scales[i / 2] >> (4 * (i % 2)) & 15)));
    for (int i = 0; i < GROUPS; i++) {
        uint32_t bits = (uint32_t)high[i / 4] >> (2 * (i % 4));
        put_3(group_at(out, i), numbers_3_s, grid_iq3_s[codes[2 * i] | (bits & 1) << 8],
              grid_iq3_s[codes[2 * i + 1] | (bits >> 1 & 1) << 8], signs[i]);
    }
}

/* ---- one bit ----------------------------------------------------------------------------------------------------- */

/* −1, 0 or 1, and an eighth more or less: in eighths. */
static void put_1(int8_t *u, uint32_t code, bool less) {
    for (int i = 0; i < GROUP; i++)
        u[i] = (int8_t)(8 * ((grid_iq1_s[code] >> (2 * i) & 3) - 1) + (less ? -1 : 1));
}

void tn_decode_iq1_s(const uint8_t *b, tn_block_q8_x *out) {
    for (int i = 0; i < GROUPS; i++) {
        uint32_t high = iquant_word(b + 34 + i / 4 * 2);
        set_scale(&out[i / 4], half(b) * (float)(2 * (high >> 12 & 7) + 1) * 0.125f);
        put_1(group_at(out, i), b[2 + i] | (high >> (3 * (i % 4)) & 7) << 8, high >> 15);
    }
}

/* The f16 factor is spread over the highest four bits of the words of scales. */
void tn_decode_iq1_m(const uint8_t *b, tn_block_q8_x *out) {
    const uint8_t *high = b + 32, *scales = b + 48;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++)
        d |= iquant_word(scales + 2 * i) >> 12 << (4 * i);
    for (int i = 0; i < 16; i++) {
        uint32_t scale = iquant_word(scales + i / 4 * 2) >> (3 * (i % 4)) & 7;
        out[i / 2].s[i % 2] = kir_from_f16((uint16_t)d) * (float)(2 * scale + 1) * 0.125f;
    }
    for (int i = 0; i < GROUPS; i++) {
        uint32_t bits = (uint32_t)high[i / 2] >> (4 * (i % 2));
        put_1(group_at(out, i), b[i] | (bits & 7) << 8, bits >> 3 & 1);
    }
}

/* ---- four bits --------------------------------------------------------------------------------------------------- */

void tn_decode_iq4_nl(const uint8_t *b, tn_block_q8_x *out) {
    set_scale(out, half(b));
    put_4(out->u, numbers_4, b + 2, 16);
}

void tn_decode_iq4_xs(const uint8_t *b, tn_block_q8_x *out) {
    for (int i = 0; i < 8; i++) {
        int scale = (b[4 + i / 2] >> (4 * (i % 2)) & 15) | (int)(iquant_word(b + 2) >> (2 * i) & 3) << 4;
        set_scale(&out[i], half(b) * (float)(scale - 32));
        put_4(out[i].u, numbers_4, b + 8 + 16 * i, 16);
    }
}

/* A power of two in eight bits, halved for the doubled numbers. */
void tn_decode_mxfp4(const uint8_t *b, tn_block_q8_x *out) {
    uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    set_scale(out, kir_from_bits_f32(bits));
    put_4(out->u, numbers_fp4, b + 1, 16);
}

/* Factors are 8-bit floats without a sign: four bits of exponent, three of significand; the largest code means 0. */
void tn_decode_nvfp4(const uint8_t *b, tn_block_q8_x *out) {
    for (int i = 0; i < 4; i++) {
        uint32_t exponent = b[i] >> 3 & 15, significand = b[i] & 7;
        float unit = kir_from_bits_f32((exponent ? exponent + 127 - 7 - 3 - 1 : 127 - 9 - 1) << 23);
        out[i / 2].s[i % 2] = b[i] == 0x7f ? 0 : unit * (float)(exponent ? 8 + significand : significand);
        put_4(out[i / 2].u + i % 2 * 16, numbers_fp4, b + 4 + 8 * i, 8);
    }
}

/* ---- three values ------------------------------------------------------------------------------------------------ */

static void put_at(tn_block_q8_x *out, int i, int u) { out[i / 32].u[i % 32] = (int8_t)u; }

/* Digits of base 3, so scaled that the highest is what a multiplication by 3 carries out of eight bits. */
static void put_digits(tn_block_q8_x *out, int from, const uint8_t *bytes, int count, int digits) {
    for (int l = 0; l < count; l++) {
        uint8_t rest = bytes[l];
        for (int j = 0; j < digits; j++, rest = (uint8_t)(rest * 3))
            put_at(out, from + count * j + l, (rest * 3 >> 8) - 1);
    }
}

void tn_decode_tq1_0(const uint8_t *b, tn_block_q8_x *out) {
    for (int i = 0; i < 8; i++)
        set_scale(&out[i], half(b + 52));
    put_digits(out, 0, b, 32, 5);
    put_digits(out, 160, b + 32, 16, 5);
    put_digits(out, 240, b + 48, 4, 4);
}

void tn_decode_tq2_0(const uint8_t *b, tn_block_q8_x *out) {
    for (int i = 0; i < 8; i++) {
        set_scale(&out[i], half(b + 64));
        for (int l = 0; l < 32; l++)
            out[i].u[l] = (int8_t)((b[i / 4 * 32 + l] >> (2 * (i % 4)) & 3) - 1);
    }
}
