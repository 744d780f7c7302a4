/* tiles_bytes.c — tiles.c for processors that add several products of bytes in one instruction, from the same source;
 * also depthwise windows of bytes, and what rounds sums to bytes.
 *
 * It is compiled as qtile.c is. With instructions for bytes, a word holds four of them. AVX2 lacks these. For matrix
 * products a word holds two bytes there, widened to 16 bits when they are packed, whose products vpmaddwd adds exactly.
 * For convolutions it holds four: vpmaddubsw saturates sums of two products to 16 bits, so steps whose filters may
 * reach that are packed in 16 bits (conv_bytes.c), and sums of others are added in 16 bits two by two where that fits.
 * Elsewhere bytes are widened to floats. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8) || defined(__AVX2__)
#define TN_VEC_QUADS
#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define TN_VEC_WIDENED
#endif
#include <math.h>
#include <string.h>

#include "cpu/cpu_kernels.h"
#include "cpu/vec.h"

enum { QUAD = 4 }; /* channels of a word */

/* ---- rounding to bytes ------------------------------------------------------------------------------------------- */

static float least_of(const tn_byte_rounding *r, int32_t zero) { return (float)((r->is_signed ? INT8_MIN : 0) - zero); }
static float most_of(const tn_byte_rounding *r, int32_t zero) {
    return (float)((r->is_signed ? INT8_MAX : UINT8_MAX) - zero);
}

/* x as a byte with this zero point. */
static uint8_t byte_of(const tn_byte_rounding *r, int32_t zero, float x) {
    const float least = least_of(r, zero), most = most_of(r, zero);
    return (uint8_t)((int32_t)rintf(x > least ? x < most ? x : most : least) + zero);
}

static uint8_t rounded(const tn_byte_rounding *r, int64_t channel, int32_t sum) {
    const int32_t biased = (int32_t)((uint32_t)sum + (uint32_t)r->bias[channel]);
    return byte_of(r, r->zero, (float)biased * r->scale[channel]);
}

/* The layout of results decides where a channel begins, and the distance of its bytes. */
static void round_some(const byte_result *r, int64_t channel, int64_t channels, int64_t pixel, int64_t pixels) {
    const bool words = r->rounding->words;
    const int64_t step = r->row ? r->row : words ? QUAD : 1;
    for (int64_t c = channel; c < channel + channels; c++) {
        uint8_t *to = r->row ? r->to + c : words ? r->to + c / QUAD * QUAD * r->plane + c % QUAD : r->to + c * r->plane;
        for (int64_t p = pixel; p < pixel + pixels; p++)
            to[p * step] = rounded(r->rounding, r->channel + c, r->from[p * r->from_row + c]);
    }
}

#if defined(__AVX512F__) || defined(__AVX2__)
enum { WORDS = VEC_BYTES / QUAD, PIXELS = 4 };
#if defined(__AVX512F__)
typedef __m512i byte_vec;
typedef __m512 float_vec;
#define BYTE_OP(name) _mm512_##name
#define LOAD_WORDS(p) _mm512_loadu_si512(p)
#define STORE_BYTES(p, x) _mm512_storeu_si512(p, x)
#define PERMUTE_WORDS(x, order) _mm512_permutexvar_epi32(order, x)
#define SPREAD_PIECE_OF(x) _mm512_broadcast_i32x4(x)
#define ADD_PRODUCTS(c, a, b, narrow) _mm512_dpbusd_epi32(c, a, b)
#define GATHER_WORDS(p, index) _mm512_i32gather_epi32(index, p, QUAD)
#define XOR_BITS(a, b) _mm512_xor_si512(a, b)
#define PIECE_OF(x, k) _mm512_extracti32x4_epi32(x, k)
#define STORE_WORDS(p, n, x) _mm512_mask_storeu_epi32(p, v_mask(n), x)
#else
typedef __m256i byte_vec;
typedef __m256 float_vec;
#define BYTE_OP(name) _mm256_##name
#define LOAD_WORDS(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define STORE_BYTES(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), x)
#define PERMUTE_WORDS(x, order) _mm256_permutevar8x32_epi32(x, order)
#define SPREAD_PIECE_OF(x) _mm256_broadcastsi128_si256(x)
#define GATHER_WORDS(p, index) _mm256_i32gather_epi32((const int *)(const void *)(p), index, QUAD)
#define XOR_BITS(a, b) _mm256_xor_si256(a, b)
#define PIECE_OF(x, k) _mm256_extracti128_si256(x, k)
#define STORE_WORDS(p, n, x) _mm256_maskstore_epi32((int *)(void *)(p), v_mask(n), x)
#ifdef TN_VEC_WIDENED
#define EVEN_BYTES(x) _mm256_and_si256(x, _mm256_set1_epi16(0xff))
/* narrow: sums of two products fit into 16 bits. Else products of the even and of the odd bytes. */
VEC_INLINE __m256i add_products(__m256i c, __m256i a, __m256i b, const bool narrow) {
    if (narrow) return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
    const __m256i even = _mm256_madd_epi16(EVEN_BYTES(a), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(c, _mm256_add_epi32(even, odd));
}
#define ADD_PRODUCTS add_products
#else
#define ADD_PRODUCTS(c, a, b, narrow) _mm256_dpbusd_avx_epi32(c, a, b)
#endif
#endif

#define SPREAD_PIECE(p) SPREAD_PIECE_OF(_mm_loadu_si128((const __m128i *)(const void *)(p)))

typedef struct rounding_vec {
    float_vec most, scale;
    byte_vec zero, bias; /* zero: 16 bits wide */
    bool is_signed;
} rounding_vec;

static rounding_vec spread(const tn_byte_rounding *r, int32_t zero) {
    return (rounding_vec){.most = BYTE_OP(set1_ps)(most_of(r, zero)),
                          .zero = BYTE_OP(set1_epi16)((int16_t)zero),
                          .is_signed = r->is_signed};
}

/* What is too low for an integer, or NaN, becomes the least one, and is saturated when it is packed. */
VEC_INLINE byte_vec to_integers(const rounding_vec *r, float_vec x) {
    return BYTE_OP(cvtps_epi32)(BYTE_OP(min_ps)(r->most, x)); /* min returns its second operand if one is NaN */
}

VEC_INLINE byte_vec round_sums(const rounding_vec *r, byte_vec sum) {
    return to_integers(r, BYTE_OP(mul_ps)(BYTE_OP(cvtepi32_ps)(BYTE_OP(add_epi32)(sum, r->bias)), r->scale));
}

VEC_INLINE byte_vec pack_two(const rounding_vec *r, byte_vec a, byte_vec b) {
    return BYTE_OP(adds_epi16)(BYTE_OP(packs_epi32)(a, b), r->zero);
}

/* Four vectors of numbers as bytes: each piece of 16 bytes has four of each. */
VEC_INLINE byte_vec pack_four(const rounding_vec *r, const byte_vec y[4]) {
    const byte_vec low = pack_two(r, y[0], y[1]), high = pack_two(r, y[2], y[3]);
    return r->is_signed ? BYTE_OP(packs_epi16)(low, high) : BYTE_OP(packus_epi16)(low, high);
}

VEC_INLINE byte_vec round_four(const rounding_vec *r, const byte_vec sum[4]) {
    byte_vec y[4];
    VEC_UNROLL
    for (int i = 0; i < 4; i++)
        y[i] = round_sums(r, sum[i]);
    return pack_four(r, y);
}

/* Biases and scales of the channels from `channel` on that there are. */
static void spread_channels(rounding_vec *to, const tn_byte_rounding *r, int64_t channel, int64_t channels) {
    int32_t bias[WORDS] = {0};
    float scale[WORDS] = {0};
    memcpy(bias, r->bias + channel, (size_t)channels * sizeof *bias);
    memcpy(scale, r->scale + channel, (size_t)channels * sizeof *scale);
    to->bias = LOAD_WORDS(bias);
    to->scale = BYTE_OP(loadu_ps)(scale);
}

VEC_INLINE byte_vec round_pixels(const byte_result *r, const rounding_vec *with, const int32_t *from) {
    byte_vec sum[PIXELS];
    VEC_UNROLL
    for (int i = 0; i < PIXELS; i++)
        sum[i] = LOAD_WORDS(from + i * r->from_row);
    return round_four(with, sum);
}

VEC_INLINE void store_piece(uint8_t *to, __m128i x) { _mm_storeu_si128((__m128i *)(void *)to, x); }

/* Four pixels of as many words as a vector of channels has, `count` of which are stored. */
VEC_INLINE void round_words(const byte_result *r, const rounding_vec *with, int64_t channel, int64_t pixel, int count) {
    const byte_vec y = round_pixels(r, with, r->from + pixel * r->from_row + channel);
    uint8_t *to = r->to + channel * r->plane + QUAD * pixel;
    store_piece(to, PIECE_OF(y, 0));
    if (count > 1) store_piece(to + QUAD * r->plane, PIECE_OF(y, 1));
#if defined(__AVX512F__)
    if (count > 2) store_piece(to + 2 * QUAD * r->plane, PIECE_OF(y, 2));
    if (count > 3) store_piece(to + 3 * QUAD * r->plane, PIECE_OF(y, 3));
#endif
}

/* The pixels behind the last four are rounded with some before them, which are the same bytes again. */
static void round_to_words(const byte_result *r) {
    rounding_vec with = spread(r->rounding, r->rounding->zero);
    for (int64_t channel = 0; channel < r->channels; channel += WORDS) {
        const int64_t channels = tn_min64(WORDS, r->channels - channel);
        const int count = (int)tn_ceil_div(channels, QUAD);
        spread_channels(&with, r->rounding, r->channel + channel, channels);
        for (int64_t pixel = 0; pixel < r->pixels; pixel += PIXELS)
            round_words(r, &with, channel, tn_min64(pixel, r->pixels - PIXELS), count);
    }
}

#if defined(__AVX512F__)
enum { ACROSS = 16, ALONG = 16 }; /* channels and pixels of a block */

VEC_INLINE void round_block(const byte_result *r, const rounding_vec *with, int64_t channel, int64_t pixel) {
    const __m512i by_channel =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const int32_t *from = r->from + pixel * r->from_row + channel;
    __m512i four[4];
    VEC_UNROLL
    for (int k = 0; k < 4; k++)
        four[k] = _mm512_shuffle_epi8(round_pixels(r, with, from + 4 * k * r->from_row), by_channel);
    const __m512i a = _mm512_unpacklo_epi32(four[0], four[1]), b = _mm512_unpackhi_epi32(four[0], four[1]);
    const __m512i c = _mm512_unpacklo_epi32(four[2], four[3]), d = _mm512_unpackhi_epi32(four[2], four[3]);
    const __m512i rows[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                             _mm512_unpackhi_epi64(b, d)};
    uint8_t *to = r->to + channel * r->plane + pixel;
    VEC_UNROLL
    for (int k = 0; k < 4; k++) {
        store_piece(to + k * r->plane, PIECE_OF(rows[k], 0));
        store_piece(to + (4 + k) * r->plane, PIECE_OF(rows[k], 1));
        store_piece(to + (8 + k) * r->plane, PIECE_OF(rows[k], 2));
        store_piece(to + (12 + k) * r->plane, PIECE_OF(rows[k], 3));
    }
}

#else
enum { ACROSS = WORDS, ALONG = PIXELS };

VEC_INLINE void round_block(const byte_result *r, const rounding_vec *with, int64_t channel, int64_t pixel) {
    const __m256i by_channel =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i four = round_pixels(r, with, r->from + pixel * r->from_row + channel);
    int32_t rows[WORDS];
    _mm256_storeu_si256((__m256i *)(void *)rows, _mm256_shuffle_epi8(four, by_channel));
    VEC_UNROLL
    for (int c = 0; c < WORDS; c++)
        memcpy(r->to + (channel + c) * r->plane + pixel, rows + c, sizeof *rows);
}
#endif

static void round_to_planes(const byte_result *r) {
    rounding_vec with = spread(r->rounding, r->rounding->zero);
    const int64_t whole = r->pixels >= ALONG ? r->channels / ACROSS * ACROSS : 0;
    for (int64_t channel = 0; channel < whole; channel += ACROSS) {
        spread_channels(&with, r->rounding, r->channel + channel, ACROSS);
        for (int64_t pixel = 0; pixel < r->pixels; pixel += ALONG)
            round_block(r, &with, channel, tn_min64(pixel, r->pixels - ALONG));
    }
    round_some(r, whole, r->channels - whole, 0, r->pixels);
}

/* Four vectors of channels of a pixel, side by side: words of the pieces of pack_four in the order of channels. */
VEC_INLINE byte_vec round_beside(rounding_vec *with, const byte_result *r, int64_t channel, const int32_t *from) {
    static const int32_t order[] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15},
                         half[] = {0, 4, 1, 5, 2, 6, 3, 7};
    byte_vec y[4];
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        with->bias = LOAD_WORDS(r->rounding->bias + r->channel + channel + i * WORDS);
        with->scale = BYTE_OP(loadu_ps)(r->rounding->scale + r->channel + channel + i * WORDS);
        y[i] = round_sums(with, LOAD_WORDS(from + i * WORDS));
    }
    return PERMUTE_WORDS(pack_four(with, y), LOAD_WORDS(WORDS == 16 ? order : half));
}

static void round_to_rows(const byte_result *r) {
    rounding_vec with = spread(r->rounding, r->rounding->zero);
    const int64_t whole = r->channels / VEC_BYTES * VEC_BYTES;
    for (int64_t pixel = 0; pixel < r->pixels; pixel++)
        for (int64_t channel = 0; channel < whole; channel += VEC_BYTES)
            STORE_BYTES(r->to + pixel * r->row + channel,
                        round_beside(&with, r, channel, r->from + pixel * r->from_row + channel));
    round_some(r, whole, r->channels - whole, 0, r->pixels);
}

/* Numbers of one operand of a sum: bytes of each word less `zero`, times `scale`. */
typedef struct operand_vec {
    byte_vec zero;
    float_vec scale;
} operand_vec;

/* Bytes are read without a sign: signed ones with 128 added. */
static operand_vec spread_operand(const tn_byte_rounding *r, int32_t zero, float scale) {
    return (operand_vec){BYTE_OP(set1_epi32)(zero - (r->is_signed ? INT8_MIN : 0)), BYTE_OP(set1_ps)(scale)};
}

VEC_INLINE float_vec numbers_of(const operand_vec *o, byte_vec bytes, byte_vec which) {
    const byte_vec x = BYTE_OP(sub_epi32)(BYTE_OP(shuffle_epi8)(bytes, which), o->zero);
    return BYTE_OP(mul_ps)(BYTE_OP(cvtepi32_ps)(x), o->scale);
}

static void add_run(const tn_byte_rounding *r, uint8_t *to, const uint8_t *addend, int64_t count) {
    const tn_byte_addend *a = r->addend;
    const rounding_vec with = spread(r, a->sum_zero);
    const operand_vec own = spread_operand(r, r->zero, a->own_scale), other = spread_operand(r, a->zero, a->scale);
    const byte_vec turned = BYTE_OP(set1_epi8)(r->is_signed ? INT8_MIN : 0);
    const __m128i first = _mm_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1);
    for (int64_t i = 0; i < count; i += VEC_BYTES) {
        uint8_t piece[2][VEC_BYTES];
        const bool whole = count - i >= VEC_BYTES;
        const size_t bytes = (size_t)tn_min64(VEC_BYTES, count - i);
        if (!whole) memcpy(piece[0], to + i, bytes);
        if (!whole) memcpy(piece[1], addend + i, bytes);
        const byte_vec x = XOR_BITS(LOAD_WORDS(whole ? to + i : piece[0]), turned);
        const byte_vec y = XOR_BITS(LOAD_WORDS(whole ? addend + i : piece[1]), turned);
        byte_vec sum[4];
        VEC_UNROLL
        for (int k = 0; k < 4; k++) {
            const byte_vec which = SPREAD_PIECE_OF(_mm_add_epi32(first, _mm_set1_epi32(QUAD * k)));
            const float_vec both = BYTE_OP(add_ps)(numbers_of(&own, x, which), numbers_of(&other, y, which));
            sum[k] = to_integers(&with, BYTE_OP(mul_ps)(both, BYTE_OP(set1_ps)(a->sum_scale)));
        }
        STORE_BYTES(whole ? to + i : piece[0], pack_four(&with, sum));
        if (!whole) memcpy(to + i, piece[0], bytes);
    }
}

static void round_sums_of(const byte_result *r) {
    if (r->row)
        round_to_rows(r);
    else if (!r->rounding->words)
        round_to_planes(r);
    else if (r->pixels >= PIXELS)
        round_to_words(r);
    else
        round_some(r, 0, r->channels, 0, r->pixels);
}
#else
static float number_of(const tn_byte_rounding *r, uint8_t byte, int32_t zero, float scale) {
    return (float)((r->is_signed ? (int8_t)byte : byte) - zero) * scale;
}

static void add_run(const tn_byte_rounding *r, uint8_t *to, const uint8_t *addend, int64_t count) {
    const tn_byte_addend *a = r->addend;
    for (int64_t i = 0; i < count; i++) {
        const float own = number_of(r, to[i], r->zero, a->own_scale);
        to[i] = byte_of(r, a->sum_zero, (own + number_of(r, addend[i], a->zero, a->scale)) * a->sum_scale);
    }
}

static void round_sums_of(const byte_result *r) { round_some(r, 0, r->channels, 0, r->pixels); }
#endif

static void round_to_bytes(const byte_result *r) {
    const int64_t together = r->rounding->words ? QUAD : 1, planes = tn_ceil_div(r->channels, together);
    round_sums_of(r);
    if (!r->addend) return;
    const bool follow = r->pixels == r->plane; /* planes, without gaps */
    for (int64_t n = 0; n < (follow ? 1 : planes); n++) {
        const int64_t at = n * r->plane * together;
        add_run(r->rounding, r->to + at, r->addend + at, (follow ? planes : 1) * r->pixels * together);
    }
}

/* ---- windows of single channels ---------------------------------------------------------------------------------- */
/* A word holds one pixel of four channels. The bytes of four rows of words are interleaved, so that a lane holds four
 * taps of one channel, one below the other, and a register holds four channels of every fourth pixel. */

#if defined(__AVX512F__) || defined(__AVX2__)
VEC_INLINE byte_vec load_words(const uint32_t *from, const int64_t stride) {
    static const int32_t steps[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (stride == 1) return LOAD_WORDS(from);
    const byte_vec index = BYTE_OP(mullo_epi32)(LOAD_WORDS(steps), BYTE_OP(set1_epi32)((int32_t)stride));
#if defined(__AVX512F__)
    if (stride == 2) return _mm512_permutex2var_epi32(LOAD_WORDS(from), index, LOAD_WORDS(from + WORDS));
#else
    if (stride == 2) {
        const __m256 low = _mm256_loadu_ps((const float *)(const void *)from);
        const __m256 high = _mm256_loadu_ps((const float *)(const void *)(from + WORDS));
        return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)), 0xD8);
    }
#endif
    return GATHER_WORDS(from, index);
}

/* seen[i]: pixels i, i + 4, … of four rows. Only the first `rows` rows are loaded; the weights of the others are 0. */
VEC_INLINE void interleave(byte_vec seen[4], const uint32_t *from, int64_t row, const int64_t stride, const int rows) {
    byte_vec x[4];
    VEC_UNROLL
    for (int i = 0; i < 4; i++)
        x[i] = i < rows ? load_words(from + i * row, stride) : BYTE_OP(set1_epi32)(0);
    const byte_vec a = BYTE_OP(unpacklo_epi8)(x[0], x[1]), b = BYTE_OP(unpackhi_epi8)(x[0], x[1]);
    const byte_vec c = BYTE_OP(unpacklo_epi8)(x[2], x[3]), d = BYTE_OP(unpackhi_epi8)(x[2], x[3]);
    seen[0] = BYTE_OP(unpacklo_epi16)(a, c);
    seen[1] = BYTE_OP(unpackhi_epi16)(a, c);
    seen[2] = BYTE_OP(unpacklo_epi16)(b, d);
    seen[3] = BYTE_OP(unpackhi_epi16)(b, d);
}

VEC_INLINE void add_column(byte_vec sum[4], const byte_vec *seen, byte_vec weight, TN_UNUSED const bool narrow) {
    VEC_UNROLL
    for (int i = 0; i < 4; i++)
        sum[i] = ADD_PRODUCTS(sum[i], seen[i], weight, narrow);
}

/* For three adjacent columns: column k of a window is column 0 of the window k pixels further, so pixels are
 * interleaved once for all three. */
VEC_INLINE void add_three_beside(byte_vec sum[4], const byte_windows *w, const uint32_t *from, const bool narrow) {
    byte_vec seen[8];
    interleave(seen, from, w->from_row, 1, 3);
    interleave(seen + 4, from + 4, w->from_row, 1, 3);
    VEC_UNROLL
    for (int k = 0; k < 3; k++)
        add_column(sum, seen + k, SPREAD_PIECE(w->weights + QUAD * k), narrow);
}

/* rows, columns, stride: w's, constants after inlining for usual windows. */
VEC_INLINE void add_window(byte_vec sum[4], const byte_windows *w, const uint32_t *from, const int rows,
                           const int columns, const int64_t stride, const bool narrow) {
    const int32_t *weight = w->weights;
    byte_vec seen[4];
    for (int row = 0; row < rows; row += 4, from += 4 * w->from_row)
        for (int k = 0; k < columns; k++, weight += QUAD) {
            interleave(seen, from + k * w->dilation, w->from_row, stride, rows - row);
            add_column(sum, seen, SPREAD_PIECE(weight), narrow);
        }
}

VEC_INLINE void weigh_rows(const byte_windows *w, const int rows, const int columns, const int64_t stride,
                           const bool beside, const bool narrow) {
    rounding_vec with = spread(w->rounding, w->rounding->zero);
    int32_t bias[QUAD] = {0};
    float scale[QUAD] = {0};
    memcpy(bias, w->rounding->bias + w->channel, (size_t)w->channels * sizeof *bias);
    memcpy(scale, w->rounding->scale + w->channel, (size_t)w->channels * sizeof *scale);
    with.bias = SPREAD_PIECE(bias);
    with.scale = (float_vec)SPREAD_PIECE(scale);
    for (int64_t row = 0; row < w->out_rows; row++)
        for (int64_t column = 0; column < w->out_columns; column += WORDS) {
            const uint32_t *from = w->from + row * w->from_down + column * stride;
            byte_vec sum[4] = {BYTE_OP(set1_epi32)(0), BYTE_OP(set1_epi32)(0), BYTE_OP(set1_epi32)(0),
                               BYTE_OP(set1_epi32)(0)};
            if (beside)
                add_three_beside(sum, w, from, narrow);
            else
                add_window(sum, w, from, rows, columns, stride, narrow);
            STORE_WORDS(w->to + row * w->out_columns + column, w->out_columns - column, round_four(&with, sum));
        }
}

/* Whether sums of two products fit into 16 bits, where that matters. */
static bool are_narrow(TN_UNUSED const byte_windows *w) {
#ifdef TN_VEC_WIDENED
    __m128i most = _mm_setzero_si128();
    for (int64_t i = 0; i < (w->rows + 3) / 4 * w->columns; i++) {
        const __m128i weights = _mm_loadu_si128((const __m128i *)(const void *)(w->weights + QUAD * i));
        most = _mm_max_epi16(most, _mm_abs_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), weights)));
    }
    return _mm_movemask_epi8(_mm_cmpgt_epi16(most, _mm_set1_epi16(PAIR_MOST))) == 0;
#else
    return true;
#endif
}

VEC_INLINE void weigh_as(const byte_windows *w, const bool narrow) {
    const bool three = w->rows == 3 && w->columns == 3;
    if (three && w->stride == 1 && w->dilation == 1)
        weigh_rows(w, 3, 3, 1, true, narrow);
    else if (three && w->stride == 2)
        weigh_rows(w, 3, 3, 2, false, narrow);
    else if (w->rows == 5 && w->columns == 5 && w->stride == 1)
        weigh_rows(w, 5, 5, 1, false, narrow);
    else
        weigh_rows(w, w->rows, w->columns, w->stride, false, narrow);
}

static void weigh_words(const byte_windows *w) {
    if (are_narrow(w))
        weigh_as(w, true);
    else
        weigh_as(w, false);
}

VEC_INLINE void pool_rows(const byte_windows *w, const int64_t stride) {
    const byte_vec turned = BYTE_OP(set1_epi32)((int32_t)w->turned);
    for (int64_t row = 0; row < w->out_rows; row++)
        for (int64_t column = 0; column < w->out_columns; column += WORDS) {
            const uint32_t *from = w->from + row * w->from_down + column * stride;
            byte_vec most = BYTE_OP(set1_epi32)(0);
            for (int i = 0; i < w->rows; i++)
                for (int k = 0; k < w->columns; k++)
                    most = BYTE_OP(max_epu8)(most, load_words(from + i * w->from_row + k * w->dilation, stride));
            STORE_WORDS(w->to + row * w->out_columns + column, w->out_columns - column, XOR_BITS(most, turned));
        }
}

static void pool_words(const byte_windows *w) {
    if (w->stride == 1)
        pool_rows(w, 1);
    else if (w->stride == 2)
        pool_rows(w, 2);
    else
        pool_rows(w, w->stride);
}
#else
/* Byte c of each word, a channel of its own. */
static void weigh_channel(const byte_windows *w, int c) {
    const uint8_t *from = (const uint8_t *)w->from + c;
    uint8_t *to = (uint8_t *)w->to + c;
    for (int64_t n = 0; n < w->out_rows * w->out_columns; n++) {
        const uint8_t *at = from + QUAD * (n / w->out_columns * w->from_down + n % w->out_columns * w->stride);
        const int8_t *weight = (const int8_t *)(const void *)w->weights;
        int32_t sum = 0;
        for (int row = 0; row < w->rows; row++)
            for (int k = 0; k < w->columns; k++)
                sum += at[QUAD * (row * w->from_row + k * w->dilation)] *
                       weight[((row / 4 * w->columns + k) * QUAD + c) * 4 + row % 4];
        to[QUAD * n] = rounded(w->rounding, w->channel + c, sum);
    }
}

static void weigh_words(const byte_windows *w) {
    for (int c = 0; c < w->channels; c++)
        weigh_channel(w, c);
}

static void pool_words(const byte_windows *w) {
    for (int64_t n = 0; n < QUAD * w->out_rows * w->out_columns; n++) {
        const int64_t pixel = n / QUAD, at = pixel / w->out_columns * w->from_down + pixel % w->out_columns * w->stride;
        const uint8_t *from = (const uint8_t *)(w->from + at) + n % QUAD;
        uint8_t most = 0;
        for (int64_t k = 0; k < w->rows * w->columns; k++) {
            const uint8_t x = from[QUAD * (k / w->columns * w->from_row + k % w->columns * w->dilation)];
            most = x > most ? x : most;
        }
        ((uint8_t *)w->to)[n] = most ^ (uint8_t)w->turned;
    }
}
#endif

/* ---- planes and words -------------------------------------------------------------------------------------------- */

enum { TOGETHER = 16 }; /* pixels of a register of 16 bytes */

static void join_planes(const uint8_t *const plane[4], int64_t count, uint32_t turned, uint32_t *to) {
    int64_t i = 0;
#if defined(__AVX512F__) || defined(__AVX2__)
    const __m128i turn = _mm_set1_epi32((int32_t)turned);
    for (; i + TOGETHER <= count; i += TOGETHER) {
        __m128i x[4];
        VEC_UNROLL
        for (int c = 0; c < 4; c++)
            x[c] = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)(plane[c] + i)), turn);
        const __m128i a = _mm_unpacklo_epi8(x[0], x[1]), b = _mm_unpackhi_epi8(x[0], x[1]);
        const __m128i c = _mm_unpacklo_epi8(x[2], x[3]), d = _mm_unpackhi_epi8(x[2], x[3]);
        store_piece((uint8_t *)(to + i), _mm_unpacklo_epi16(a, c));
        store_piece((uint8_t *)(to + i + 4), _mm_unpackhi_epi16(a, c));
        store_piece((uint8_t *)(to + i + 8), _mm_unpacklo_epi16(b, d));
        store_piece((uint8_t *)(to + i + 12), _mm_unpackhi_epi16(b, d));
    }
#endif
    for (; i < count; i++)
        to[i] = ((uint32_t)plane[0][i] | (uint32_t)plane[1][i] << 8 | (uint32_t)plane[2][i] << 16 |
                 (uint32_t)plane[3][i] << 24) ^
                turned;
}

static void split_words(const uint32_t *from, int64_t count, int channels, uint8_t *const plane[4]) {
    int64_t i = 0;
#if defined(__AVX512F__) || defined(__AVX2__)
    const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (; i + TOGETHER <= count; i += TOGETHER) {
        __m128i x[4];
        VEC_UNROLL
        for (int k = 0; k < 4; k++)
            x[k] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(from + i + 4 * k)), by_channel);
        const __m128i a = _mm_unpacklo_epi32(x[0], x[1]), b = _mm_unpackhi_epi32(x[0], x[1]);
        const __m128i c = _mm_unpacklo_epi32(x[2], x[3]), d = _mm_unpackhi_epi32(x[2], x[3]);
        store_piece(plane[0] + i, _mm_unpacklo_epi64(a, c));
        if (channels > 1) store_piece(plane[1] + i, _mm_unpackhi_epi64(a, c));
        if (channels > 2) store_piece(plane[2] + i, _mm_unpacklo_epi64(b, d));
        if (channels > 3) store_piece(plane[3] + i, _mm_unpackhi_epi64(b, d));
    }
#endif
    for (; i < count; i++)
        for (int c = 0; c < channels; c++)
            plane[c][i] = (uint8_t)(from[i] >> 8 * c);
}

#include "cpu/tiles.c"
#else
#include "cpu/isa.h"
#endif
