/* tiles_bytes.c — tiles.c for processors that add four products of bytes in one instruction, from the same source; also
 * depthwise windows of bytes, and what rounds sums to bytes.
 *
 * It is compiled as qtile.c is. Without such instructions bytes are widened to floats. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
#define TN_VEC_QUADS
#include <math.h>
#include <string.h>

#include "cpu/cpu_kernels.h"
#include "cpu/vec.h"

/* ---- rounding to bytes ------------------------------------------------------------------------------------------- */

static float least_of(const tn_byte_rounding *r) { return (float)((r->is_signed ? INT8_MIN : 0) - r->zero); }
static float most_of(const tn_byte_rounding *r) { return (float)((r->is_signed ? INT8_MAX : UINT8_MAX) - r->zero); }

static uint8_t rounded(const tn_byte_rounding *r, int64_t channel, int32_t sum) {
    const float x = (float)(int32_t)((uint32_t)sum + (uint32_t)r->bias[channel]) * r->scale[channel];
    const float y = x > least_of(r) ? x < most_of(r) ? x : most_of(r) : least_of(r);
    return (uint8_t)((int32_t)rintf(y) + r->zero);
}

static void round_some(const byte_result *r, int64_t channel, int64_t channels, int64_t pixel, int64_t pixels) {
    for (int64_t c = channel; c < channel + channels; c++)
        for (int64_t p = pixel; p < pixel + pixels; p++)
            r->to[c * r->plane + p] = rounded(r->rounding, r->channel + c, r->from[p * r->from_row + c]);
}

#if defined(__AVX512F__)
typedef struct rounding_512 {
    __m512 least, most;
    __m512i zero;
} rounding_512;

static rounding_512 spread_512(const tn_byte_rounding *r) {
    return (rounding_512){_mm512_set1_ps(least_of(r)), _mm512_set1_ps(most_of(r)), _mm512_set1_epi32(r->zero)};
}

VEC_INLINE __m512i round_512(const rounding_512 *r, __m512i sum, __m512i bias, __m512 scale) {
    const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sum, bias)), scale);
    return _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(x, r->most), r->least)), r->zero);
}

/* 16 channels of 16 pixels. Packing interleaves four pixels of four channels in each piece of 16 bytes. */
VEC_INLINE void round_square(const byte_result *r, const rounding_512 *with, int64_t channel, int64_t pixel) {
    const __m512i by_channel =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i bias = _mm512_loadu_si512(r->rounding->bias + r->channel + channel);
    const __m512 scale = _mm512_loadu_ps(r->rounding->scale + r->channel + channel);
    const int32_t *from = r->from + pixel * r->from_row + channel;
    __m512i four[4];
    VEC_UNROLL
    for (int k = 0; k < 4; k++) {
        __m512i one[4];
        VEC_UNROLL
        for (int i = 0; i < 4; i++)
            one[i] = round_512(with, _mm512_loadu_si512(from + (4 * k + i) * r->from_row), bias, scale);
        const __m512i low = _mm512_packs_epi32(one[0], one[1]), high = _mm512_packs_epi32(one[2], one[3]);
        four[k] = r->rounding->is_signed ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
        four[k] = _mm512_shuffle_epi8(four[k], by_channel);
    }
    const __m512i a = _mm512_unpacklo_epi32(four[0], four[1]), b = _mm512_unpackhi_epi32(four[0], four[1]);
    const __m512i c = _mm512_unpacklo_epi32(four[2], four[3]), d = _mm512_unpackhi_epi32(four[2], four[3]);
    const __m512i rows[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                             _mm512_unpackhi_epi64(b, d)};
    uint8_t *to = r->to + channel * r->plane + pixel;
    VEC_UNROLL
    for (int k = 0; k < 4; k++) {
        _mm_storeu_si128((__m128i *)(void *)(to + k * r->plane), _mm512_castsi512_si128(rows[k]));
        _mm_storeu_si128((__m128i *)(void *)(to + (4 + k) * r->plane), _mm512_extracti32x4_epi32(rows[k], 1));
        _mm_storeu_si128((__m128i *)(void *)(to + (8 + k) * r->plane), _mm512_extracti32x4_epi32(rows[k], 2));
        _mm_storeu_si128((__m128i *)(void *)(to + (12 + k) * r->plane), _mm512_extracti32x4_epi32(rows[k], 3));
    }
}

/* The pixels behind the last square are rounded with some before them, which are the same bytes again. */
static void round_to_bytes(const byte_result *r) {
    enum { SIDE = 16 };
    const rounding_512 with = spread_512(r->rounding);
    const int64_t whole = r->pixels >= SIDE ? r->channels / SIDE * SIDE : 0;
    for (int64_t channel = 0; channel < whole; channel += SIDE)
        for (int64_t pixel = 0; pixel < r->pixels; pixel += SIDE)
            round_square(r, &with, channel, pixel + SIDE <= r->pixels ? pixel : r->pixels - SIDE);
    round_some(r, whole, r->channels - whole, 0, r->pixels);
}
#else
static void round_to_bytes(const byte_result *r) { round_some(r, 0, r->channels, 0, r->pixels); }
#endif

/* ---- depthwise windows ------------------------------------------------------------------------------------------- */

#if defined(__AVX512F__) || defined(__AVX2__)
enum { WORDS = VEC_BYTES / 4 };
#if defined(__AVX512F__)
typedef __m512i byte_vec;
#define BYTE_OP(name) _mm512_##name
#define LOAD_BYTES(p) _mm512_loadu_si512(p)
#define MOVE_WORDS(index, x) _mm512_permutexvar_epi32(index, x)
#define ADD_PRODUCTS(c, a, b) _mm512_dpbusd_epi32(c, a, b)
#else
typedef __m256i byte_vec;
#define BYTE_OP(name) _mm256_##name
#define LOAD_BYTES(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define MOVE_WORDS(index, x) _mm256_permutevar8x32_epi32(x, index)
#define ADD_PRODUCTS(c, a, b) _mm256_dpbusd_avx_epi32(c, a, b)
#endif

/* rows, words: w's, constants after inlining for usual windows. */
VEC_INLINE byte_vec window_sums(const byte_windows *w, const int rows, const int count, const uint8_t *from,
                                byte_vec words, byte_vec places) {
    byte_vec sum = BYTE_OP(set1_epi32)(0);
    VEC_UNROLL
    for (int row = 0; row < rows; row++, from += w->from_row)
        for (int k = 0; k < count; k++) {
            const byte_vec seen = MOVE_WORDS(words, LOAD_BYTES(from + 4 * k * w->dilation));
            sum = ADD_PRODUCTS(sum, BYTE_OP(shuffle_epi8)(seen, places),
                               BYTE_OP(set1_epi32)(w->weights[row * count + k]));
        }
    return sum;
}

#if defined(__AVX512F__)
VEC_INLINE void weigh_rows(const byte_windows *w, const int rows, const int count) {
    const rounding_512 with = spread_512(w->rounding);
    const byte_vec bias = _mm512_set1_epi32(w->rounding->bias[w->channel]);
    const __m512 scale = _mm512_set1_ps(w->rounding->scale[w->channel]);
    const byte_vec words = LOAD_BYTES(w->word_at), places = LOAD_BYTES(w->byte_at);
    for (int64_t row = 0; row < w->out_rows; row++)
        for (int64_t column = 0; column < w->out_columns; column += WORDS) {
            const uint8_t *from = w->from + row * w->from_down + column * w->stride;
            const byte_vec y = round_512(&with, window_sums(w, rows, count, from, words, places), bias, scale);
            _mm512_mask_cvtepi32_storeu_epi8(w->to + row * w->out_columns + column, v_mask(w->out_columns - column), y);
        }
}
#else
VEC_INLINE void weigh_rows(const byte_windows *w, const int rows, const int count) {
    int32_t sums[WORDS];
    const byte_vec words = LOAD_BYTES(w->word_at), places = LOAD_BYTES(w->byte_at);
    for (int64_t row = 0; row < w->out_rows; row++)
        for (int64_t column = 0; column < w->out_columns; column += WORDS) {
            const uint8_t *from = w->from + row * w->from_down + column * w->stride;
            const byte_vec y = window_sums(w, rows, count, from, words, places);
            memcpy(sums, &y, sizeof sums);
            for (int64_t i = 0; i < WORDS && column + i < w->out_columns; i++)
                w->to[row * w->out_columns + column + i] = rounded(w->rounding, w->channel, sums[i]);
        }
}
#endif

static void weigh_bytes(const byte_windows *w) {
    if (w->rows == 3 && w->words == 1)
        weigh_rows(w, 3, 1);
    else if (w->rows == 5 && w->words == 2)
        weigh_rows(w, 5, 2);
    else
        weigh_rows(w, w->rows, w->words);
}
#else
static void weigh_bytes(const byte_windows *w) {
    const int8_t *weight = (const int8_t *)(const void *)w->weights;
    for (int64_t row = 0; row < w->out_rows; row++)
        for (int64_t column = 0; column < w->out_columns; column++) {
            const uint8_t *from = w->from + row * w->from_down + column * w->stride;
            int32_t sum = 0;
            for (int r = 0; r < w->rows; r++)
                for (int k = 0; k < 4 * w->words; k++)
                    sum += from[r * w->from_row + k * w->dilation] * weight[r * 4 * w->words + k];
            w->to[row * w->out_columns + column] = rounded(w->rounding, w->channel, sum);
        }
}
#endif

static const byte_kernels byte_rows = {round_to_bytes, weigh_bytes};

#include "cpu/tiles.c"
#else
#include "cpu/isa.h"
#endif
