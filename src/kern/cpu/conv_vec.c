/* conv_vec.c — rows of images, copied and weighed by vectors; compiled once per instruction set (conv_vec.h). */
#include "kern/cpu/conv_vec.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/vec.h"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Every second element of two vectors. */
VEC_INLINE V v_evens(V a, V b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
    return __builtin_shufflevector(a, b, 0, 2, 4, 6);
#endif
}

VEC_INLINE V v_odds(V a, V b) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
    return __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}

/* x₀ y₀ x₁ y₁ …: the lower and the upper half of it. */
VEC_INLINE V v_zip_low(V x, V y) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(__AVX2__)
    return __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(x, y, 0, 4, 1, 5);
#endif
}

VEC_INLINE V v_zip_high(V x, V y) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
    return __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(x, y, 2, 6, 3, 7);
#endif
}

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

/* `n` is a constant after inlining. */
VEC_INLINE void copy_pieces(float *to, const float *input_tile, const piece *p, const int n, const int64_t *tap,
                            int64_t base, int64_t steps) {
    for (int64_t k = 0; k < steps; k++, to += PANEL) {
        const float *from = input_tile + (tap[k] - base);
        VEC_UNROLL for (int i = 0; i < n; i++) v_store(to + p[i].to % PANEL, v_load(from + p[i].from));
    }
}

static void copy_steps(float *to, const float *input_tile, const piece *p, int n, const int64_t *tap, int64_t base,
                       int64_t steps) {
    switch (n) { /* the usual numbers of pieces */
    case 1: copy_pieces(to, input_tile, p, 1, tap, base, steps); break;
    case 2: copy_pieces(to, input_tile, p, 2, tap, base, steps); break;
    case 3: copy_pieces(to, input_tile, p, 3, tap, base, steps); break;
    case 4: copy_pieces(to, input_tile, p, 4, tap, base, steps); break;
    default: copy_pieces(to, input_tile, p, n, tap, base, steps);
    }
}

/* ---- one filter a channel ---------------------------------------------------------------------------------------- */

/* The greater one as KIR has it: NaN if there is one, the first of two. */
VEC_INLINE V v_greatest(V x, V y) {
#if defined(__AVX512F__)
    __m512 a = (__m512)x;
    return (V)_mm512_mask_mov_ps(_mm512_max_ps(a, (__m512)y), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
#else
    typedef int32_t bits __attribute__((vector_size(VEC_BYTES)));
    bits first = (x > y) | (x != x);
    return (V)((first & (bits)x) | (~first & (bits)y));
#endif
}

VEC_INLINE V weigh_step(V sum, V x, V weight, const bool greatest) {
    return greatest ? v_greatest(sum, x) : sum + x * weight;
}

/* `n` vectors of output pixels, into sum[0 … n): the chains, then folded by halves. `n` and `greatest` are constants.
 * */
VEC_INLINE void weigh_run(const tap_chains *c, const float *from, const float *weight, V *sum, const int n,
                          const bool greatest) {
    const int64_t *at = c->at;
    for (int64_t l = 0, k = 0; l < c->chains; l++) {
        V s[WEIGH_RUN], w = greatest ? v_zero() : v_set1(weight[k]);
        VEC_UNROLL for (int i = 0; i < n; i++) {
            s[i] = v_load(from + at[k] + i * VL);
            if (!greatest) s[i] = s[i] * w;
        }
        for (k++; k < c->end[l]; k++) {
            w = greatest ? w : v_set1(weight[k]);
            VEC_UNROLL for (int i = 0; i < n; i++) s[i] = weigh_step(s[i], v_load(from + at[k] + i * VL), w, greatest);
        }
        VEC_UNROLL for (int i = 0; i < n; i++) sum[l * n + i] = s[i];
    }
    for (int64_t half = KIR_LANES / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half && l + half < c->chains; l++) {
            VEC_UNROLL for (int i = 0; i < n; i++) {
                V other = sum[(l + half) * n + i];
                sum[l * n + i] = greatest ? v_greatest(sum[l * n + i], other) : sum[l * n + i] + other;
            }
        }
    if (!c->from_zero) return;
    VEC_UNROLL for (int i = 0; i < n; i++) sum[i] += v_zero();
}

VEC_INLINE void depthwise_pixel(const tap_chains *c, const float *from, const float *weight, float *to,
                                int64_t out_pixels, const bool greatest) {
    V sum[KIR_LANES * WEIGH_RUN];
    int64_t i = 0;
    for (; i + WEIGH_RUN * VL <= out_pixels; i += WEIGH_RUN * VL) {
        weigh_run(c, from + i, weight, sum, WEIGH_RUN, greatest);
        VEC_UNROLL for (int k = 0; k < WEIGH_RUN; k++) v_store(to + i + k * VL, sum[k]);
    }
    if (i >= out_pixels) return;
    bool several = out_pixels - i > VL;
    if (several)
        weigh_run(c, from + i, weight, sum, WEIGH_RUN, greatest);
    else
        weigh_run(c, from + i, weight, sum, 1, greatest);
    for (int k = 0; i < out_pixels; i += VL, k++)
        v_part_store(to + i, v_mask(out_pixels - i), sum[k]);
}

static void weigh_row(const tap_chains *c, const float *from, const float *weight, float *to, int64_t out_pixels) {
    depthwise_pixel(c, from, weight, to, out_pixels, false);
}

static void greatest_row(const tap_chains *c, const float *from, const float *weight, float *to, int64_t out_pixels) {
    depthwise_pixel(c, from, weight, to, out_pixels, true);
}

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
#include "kern/cpu/winograd.h"
#define WINOGRAD                                                                                              \
    winograd_rows, winograd_columns, winograd_finish, winograd_out_channels, winograd_1d, winograd_1d_finish, \
        winograd_images, winograd_gradients, winograd_taps
#endif

const conv_vec VEC_JOIN(tn_conv_vec, TN_ISA_SUFFIX) = {&TILES,         copy_rows, spread_row,   copy_piece,
                                                       copy_steps,     weigh_row, greatest_row, greatest_of_four,
                                                       greatest_pairs, WINOGRAD};
