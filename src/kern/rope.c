/* rope.c — rotary positions: pairs of features turned by the angles of their row.
 *
 * Two products and a sum an element, rounded one by one as the op's definition has them; bound by memory, so sixteen
 * bytes at a time are enough. Rows are shared out when there are many. */
#include <string.h>

#include "kern/kern.h"

enum { SERIAL_ELEMENTS = 32768 }; /* below that one core is done before another has woken */

typedef float floats __attribute__((vector_size(16), aligned(sizeof(float)), may_alias));

static floats load_rope(const float *p) { return *(const floats *)p; }
static void store_rope(float *p, floats v) { *(floats *)p = v; }

static void rotate_one(const float *c, const float *s, float x, float y, float *first, float *second) {
    *first = x * *c - y * *s;
    *second = y * *c + x * *s;
}

static void rotate_halves(const tn_rope_args *a, const float *x, const float *c, const float *s, float *out) {
    int64_t half = a->half, i = 0;
    for (; i + 4 <= half; i += 4) {
        floats first = load_rope(x + i), second = load_rope(x + half + i), cosine = load_rope(c + i),
               sine = load_rope(s + i);
        store_rope(out + i, first * cosine - second * sine);
        store_rope(out + half + i, second * cosine + first * sine);
    }
    for (; i < half; i++)
        rotate_one(c + i, s + i, x[i], x[half + i], out + i, out + half + i);
}

static void rotate_neighbours(const tn_rope_args *a, const float *x, const float *c, const float *s, float *out) {
    int64_t half = a->half, i = 0;
    for (; i + 4 <= half; i += 4) {
        floats low = load_rope(x + 2 * i), high = load_rope(x + 2 * i + 4), cosine = load_rope(c + i),
               sine = load_rope(s + i);
        floats first = __builtin_shufflevector(low, high, 0, 2, 4, 6),
               second = __builtin_shufflevector(low, high, 1, 3, 5, 7);
        floats turned = first * cosine - second * sine, other = second * cosine + first * sine;
        store_rope(out + 2 * i, __builtin_shufflevector(turned, other, 0, 4, 1, 5));
        store_rope(out + 2 * i + 4, __builtin_shufflevector(turned, other, 2, 6, 3, 7));
    }
    for (; i < half; i++)
        rotate_one(c + i, s + i, x[2 * i], x[2 * i + 1], out + 2 * i, out + 2 * i + 1);
}

static void rotate_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const tn_rope_args *a = ctx;
    int64_t at[TN_ROPE_AXES], table = 0, rest = begin;
    (void)worker;
    for (int d = TN_ROPE_AXES - 1; d >= 0; d--) {
        at[d] = rest % a->extent[d];
        rest /= a->extent[d];
        table += at[d] * a->table_stride[d];
    }
    for (int64_t row = begin; row < end; row++) {
        const float *x = a->x + row * a->features;
        float *out = a->out + row * a->features;
        (a->interleaved ? rotate_neighbours : rotate_halves)(a, x, a->cosine + table, a->sine + table, out);
        size_t stay = (size_t)(a->features - 2 * a->half) * sizeof *x;
        if (stay) memcpy(out + 2 * a->half, x + 2 * a->half, stay);
        for (int d = TN_ROPE_AXES - 1; d >= 0; d--) {
            table += a->table_stride[d];
            if (++at[d] < a->extent[d]) break;
            table -= at[d] * a->table_stride[d];
            at[d] = 0;
        }
    }
}

void tn_rope_f32(const tn_rope_args *args) {
    tn_rope_args own = *args;
    int64_t rows = 1;
    for (int d = 0; d < TN_ROPE_AXES; d++)
        rows *= own.extent[d];
    if (rows == 0 || own.features == 0) return;
    if (rows * own.features < SERIAL_ELEMENTS)
        rotate_rows(&own, 0, rows, 0);
    else
        tn_parallel(rows, tn_max64(1, SERIAL_ELEMENTS / 4 / own.features), rotate_rows, &own);
}
