/* quantize.c — numbers into the block formats of GGUF files, with small errors.
 *
 * The one idea: what is stored is searched for, by its sum of squared errors after everything was rounded as the file
 * rounds it. A run of 16 or 32 numbers that share a factor s (and perhaps a minimum m) is fitted first: some factors
 * around the one that just spans the largest number are tried, each improved by least squares for the codes that it
 * leads to. In large blocks factors and minima are themselves rounded to few bits: for each run the neighbouring codes
 * are tried too, and the block's own factors follow by least squares from all its numbers.
 *
 * An error counts by the size of its number, |x| and the root mean square together: models come out nearer to what
 * they were than without (their outputs diverge by a tenth less in four bits), while the plain error grows by a
 * percent. Where the caller says how large the numbers are that a column is multiplied with, that counts besides: it is
 * by how much the column's errors reach the product. Sums run in eight lanes, so that they become vector code and are
 * the same on every machine. */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "cpu/qformat.h"
#include "kir/kir_math.h"
#include "trunnion/model.h"

enum { LANES = 8, RUN = TN_QBLOCK, RUNS = TN_QSUPER / 16, STEPS = 5, ROUNDS = 2 };

static const float HUGE_RMS = 1e15f;
static const float TINY = 1e-30f;     /* no factor is smaller, but 0 */
static const float STEP = 0.2f;       /* between the spans that are tried, in codes */
static const float ROUND = 0x1.8p23f; /* added and taken away again: leaves the nearest whole number */

/* A run: its numbers, the codes that they have, and the least and the greatest of these. */
typedef struct run {
    const float *x;
    int n;
    float low, high;
    float weight[RUN];
    double weights, sum, squares; /* of the weights, and of weighted numbers and their squares */
} run;

/* x ≈ s·q + m */
typedef struct fit {
    float s, m;
    double error;
} fit;

/* Of codes, their squares, and numbers times codes. */
typedef struct sums {
    double q, qq, xq;
} sums;

typedef struct target {
    tn_dtype dtype;
    int8_t low, high;   /* codes, zero point taken off */
    uint8_t d, minimum; /* places of the f16 factors; 255: none */
    void (*pack)(const tn_qunpacked *b, uint8_t *to);
} target;

static float inverse(float s) { return fabsf(s) < TINY ? 0 : 1 / s; }

static float half(float v) { return kir_from_f16(kir_to_f16(fminf(fmaxf(v, -65504), 65504))); }

/* A factor as f16 holds it. The smallest ones have few bits left there and are rounded away from 0: a factor of 0 says
 * nothing of a block, and one too small cuts the largest numbers off, which costs more than coarser steps. */
static float half_factor(float v) {
    const float unit = 0x1p-24f;
    return fabsf(v) < 16 * unit ? ceilf(fabsf(v) / unit) * copysignf(unit, v) : half(v);
}

static double total(const float *lanes) {
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += (double)lanes[l];
    return sum;
}

/* importance: of each number; NULL: alike */
static run run_of(const float *x, const float *importance, int n, const target *t) {
    run r = {.x = x, .n = n, .low = t->low, .high = t->high};
    float size[LANES] = {0}, weights[LANES] = {0}, sum[LANES] = {0}, squares[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            size[l] += x[i + l] * x[i + l];
    float rms = (float)sqrt(total(size) / n);
    bool usual = rms > TINY && rms < HUGE_RMS; /* else all count alike */
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l], w = usual ? rms + fabsf(v) : 1;
            if (importance) w *= importance[i + l];
            r.weight[i + l] = w;
            weights[l] += w;
            sum[l] += w * v;
            squares[l] += w * v * v;
        }
    r.weights = total(weights);
    r.sum = total(sum);
    r.squares = total(squares);
    return r;
}

/* The nearest code. */
static inline float code_of(const run *r, float v) {
    v = v > r->low ? v : r->low;
    v = v < r->high ? v : r->high;
    return (v + ROUND) - ROUND;
}

/* The codes of a run for s and m. */
static void encode_blocks(const run *r, float s, float m, float *q) {
    float by = inverse(s);
    for (int i = 0; i < r->n; i++)
        q[i] = code_of(r, (r->x[i] - m) * by);
}

/* The same, but only the sums are kept. */
static sums sums_with(const run *r, float s, float m) {
    float c[LANES] = {0}, cc[LANES] = {0}, xc[LANES] = {0}, by = inverse(s);
    for (int i = 0; i < r->n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = r->x[i + l], w = code_of(r, (v - m) * by), wc = r->weight[i + l] * w;
            c[l] += wc;
            cc[l] += wc * w;
            xc[l] += wc * v;
        }
    return (sums){total(c), total(cc), total(xc)};
}

static sums sums_of(const run *r, const float *q) {
    float c[LANES] = {0}, cc[LANES] = {0}, xc[LANES] = {0};
    for (int i = 0; i < r->n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = r->x[i + l], w = q[i + l], wc = r->weight[i + l] * w;
            c[l] += wc;
            cc[l] += wc * w;
            xc[l] += wc * v;
        }
    return (sums){total(c), total(cc), total(xc)};
}

/* What s and m leave of a run, by its sums; rounded, so for choosing only. */
static double error_by(const run *r, const sums *t, double s, double m) {
    return r->squares + s * s * t->qq + r->weights * m * m - 2 * (s * t->xq + m * r->sum - s * m * t->q);
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

typedef enum minimum_kind { MINIMUM_NONE, MINIMUM_BELOW_ZERO, MINIMUM_ANY } minimum_kind;

/* The least squares for these codes. */
static fit solve(const run *r, sums t, minimum_kind kind) {
    double n = r->weights, determinant = n * t.qq - t.q * t.q, s = 0, m = 0;
    bool flat = determinant <= 1e-6 * n * t.qq;
    if (kind != MINIMUM_NONE && !flat) {
        s = (n * t.xq - r->sum * t.q) / determinant;
        m = (t.qq * r->sum - t.q * t.xq) / determinant;
    }
    if (kind == MINIMUM_NONE || flat || (kind == MINIMUM_BELOW_ZERO && m > 0)) {
        m = 0;
        s = t.qq > 0 ? t.xq / t.qq : 0;
    }
    if (kind == MINIMUM_BELOW_ZERO && s < 0) s = 0;
    return (fit){(float)s, (float)m, error_by(r, &t, s, m)};
}

static void try_fit(const run *r, float s, float m, minimum_kind kind, fit *best) {
    fit f = solve(r, sums_with(r, s, m), kind);
    if (f.error < best->error) *best = f;
}

/* Codes on both sides of zero: the number of the largest magnitude gets one end or the other. */
static fit fit_signed(const run *r) {
    float most = 0;
    for (int i = 0; i < r->n; i++)
        if (fabsf(r->x[i]) > fabsf(most)) most = r->x[i];
    fit best = {0, 0, INFINITY};
    if (fabsf(most) < TINY) return (fit){0};
    for (int t = -STEPS; t <= STEPS; t++) {
        try_fit(r, most / (r->low - STEP * (float)t), 0, MINIMUM_NONE, &best);
        try_fit(r, most / (r->high + STEP * (float)t), 0, MINIMUM_NONE, &best);
    }
    for (int i = 0; i < ROUNDS; i++)
        try_fit(r, best.s, 0, MINIMUM_NONE, &best);
    return best;
}

static fit fit_affine(const run *r, minimum_kind kind) {
    float least = r->x[0], most = r->x[0];
    for (int i = 1; i < r->n; i++) {
        least = fminf(least, r->x[i]);
        most = fmaxf(most, r->x[i]);
    }
    if (kind == MINIMUM_BELOW_ZERO) least = fminf(least, 0);
    if (most - least < TINY) return (fit){0, kind == MINIMUM_BELOW_ZERO ? fminf(least, 0) : least, 0};
    fit best = {0, 0, INFINITY};
    for (int t = -STEPS; t <= STEPS; t++)
        try_fit(r, (most - least) / (r->high + STEP * (float)t), least, kind, &best);
    for (int i = 0; i < ROUNDS; i++)
        try_fit(r, best.s, best.m, kind, &best);
    return best;
}

/* ---- blocks of 32 ------------------------------------------------------------------------------------------------ */

static void put_codes(const tn_qformat *f, const float *q, int n, uint8_t *u) {
    for (int i = 0; i < n; i++)
        u[i] = (uint8_t)((int)q[i] + f->zero);
}

static void quantize_small(const tn_qformat *f, const float *x, const float *importance, const target *to,
                           tn_qunpacked *out) {
    float q[RUN];
    run of = run_of(x, importance, RUN, to), *r = &of;
    fit b = f->has_minimum ? fit_affine(r, MINIMUM_ANY) : fit_signed(r);
    b.s = half_factor(b.s);
    encode_blocks(r, b.s, b.m, q);
    if (f->has_minimum) { /* the rounded factor may want another minimum */
        sums t = sums_of(r, q);
        b.m = half((float)((r->sum - (double)b.s * t.q) / r->weights));
        encode_blocks(r, b.s, b.m, q);
    }
    out->d = kir_to_f16(b.s);
    out->minimum = kir_to_f16(b.m);
    put_codes(f, q, r->n, out->u);
}

/* ---- blocks of 256 ----------------------------------------------------------------------------------------------- */

/* Codes of the runs' factors and minima: how large they may be. */
typedef struct scale_codes {
    int low, high;
} scale_codes;

static scale_codes codes_of(tn_qscales form) {
    static const scale_codes rows[TN_QSCALES_COUNT] = {
        [TN_QSCALES_PAIR_M] = {0, 63},
        [TN_QSCALES_PAIR] = {-32, 31},
        [TN_QSCALES_I8] = {-128, 127},
        [TN_QSCALES_NIBBLE] = {0, 15},
    };
    return rows[form];
}

/* A block as it will be stored, and what is wrong with it. */
typedef struct attempt {
    float d, minimum; /* as f16 holds them */
    int scale[RUNS], min[RUNS];
    float q[TN_QSUPER];
    double error;
} attempt;

typedef struct super {
    const tn_qformat *format;
    scale_codes codes;
    int runs, length;
    run run[RUNS];
    fit fit[RUNS];
} super;

static int clamp_code(const super *b, float v) {
    float code = rintf(fminf(fmaxf(v, (float)b->codes.low), (float)b->codes.high));
    return (int)code;
}

/* The codes of run j: the nearest to its fit, or a neighbour if that gives the smaller error, or none: all zero. */
static void choose_codes(const super *b, int j, attempt *a) {
    bool has_minimum = b->format->has_minimum;
    int scale = clamp_code(b, b->fit[j].s * inverse(a->d)), min = clamp_code(b, -b->fit[j].m * inverse(a->minimum));
    double best = b->run[j].squares;
    float factor = 0, t = 0;
    a->scale[j] = a->min[j] = 0;
    for (int i = 0; i < (has_minimum ? 9 : 3); i++) {
        int s = scale + i % 3 - 1, m = has_minimum ? min + i / 3 - 1 : 0;
        if (s < b->codes.low || s > b->codes.high || m < 0 || m > b->codes.high) continue;
        float with = a->d * (float)s, less = -(a->minimum * (float)m);
        sums sum = sums_with(&b->run[j], with, less);
        double error = error_by(&b->run[j], &sum, (double)with, (double)less);
        if (error >= best) continue;
        best = error;
        factor = with;
        t = less;
        a->scale[j] = s;
        a->min[j] = m;
    }
    encode_blocks(&b->run[j], factor, t, a->q + j * b->length);
    a->error += best;
}

static attempt attempt_with(const super *b, float d, float minimum) {
    attempt a = {.d = half_factor(d), .minimum = half_factor(minimum)};
    for (int j = 0; j < b->runs; j++)
        choose_codes(b, j, &a);
    return a;
}

/* d and the minimum's factor of least error, with all codes as they are. */
static void solve_super(const super *b, const attempt *a, float *d, float *minimum) {
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0;
    for (int j = 0; j < b->runs; j++) {
        sums t = sums_of(&b->run[j], a->q + j * b->length);
        double s = a->scale[j], m = -a->min[j];
        uu += s * s * t.qq;
        uv += s * m * t.q;
        vv += m * m * b->run[j].weights;
        xu += s * t.xq;
        xv += m * b->run[j].sum;
    }
    double determinant = uu * vv - uv * uv;
    if (determinant > 1e-9 * uu * vv) {
        *d = (float)((xu * vv - xv * uv) / determinant);
        *minimum = (float)((xv * uu - xu * uv) / determinant);
    } else if (uu > 0) {
        *d = (float)(xu / uu);
    }
}

static void keep_better(const attempt *a, attempt *best) {
    if (a->error < best->error) *best = *a;
}

/* From one pair of factors to a better one, as long as it gets better. */
static void improve(const super *b, float d, float minimum, attempt *best) {
    attempt a = attempt_with(b, d, minimum);
    for (int i = 0; i < ROUNDS; i++) {
        keep_better(&a, best);
        solve_super(b, &a, &d, &minimum);
        a = attempt_with(b, d, minimum);
    }
    keep_better(&a, best);
}

static void quantize_super(const tn_qformat *f, const float *x, const float *importance, const target *to,
                           tn_qunpacked *out) {
    super b = {.format = f, .codes = codes_of(f->scales), .length = TN_QBLOCK / f->parts};
    float most = 0, most_minimum = 0;
    b.runs = TN_QSUPER / b.length;
    for (int j = 0; j < b.runs; j++) {
        b.run[j] = run_of(x + j * b.length, importance ? importance + j * b.length : NULL, b.length, to);
        b.fit[j] = f->has_minimum ? fit_affine(&b.run[j], MINIMUM_BELOW_ZERO) : fit_signed(&b.run[j]);
        if (fabsf(b.fit[j].s) > fabsf(most)) most = b.fit[j].s;
        most_minimum = fmaxf(most_minimum, -b.fit[j].m);
    }
    attempt best = {.error = INFINITY};
    float top = (float)b.codes.high, bottom = (float)b.codes.low;
    improve(&b, most / top, most_minimum / top, &best);
    if (b.codes.low < 0) improve(&b, most / bottom, 0, &best);
    if (f->scales == TN_QSCALES_NIBBLE) improve(&b, most / (top + 1.5f), most_minimum / (top + 1.5f), &best);
    out->d = kir_to_f16(best.d);
    out->minimum = kir_to_f16(best.minimum);
    for (int j = 0; j < b.runs; j++) {
        out->scale[j] = (uint8_t)(best.scale[j] + (f->scales == TN_QSCALES_PAIR ? 32 : 0));
        out->min[j] = (uint8_t)best.min[j];
    }
    put_codes(f, best.q, TN_QSUPER, out->u);
}

/* ---- blocks as files have them: cpu/qformat.c takes them apart again -------------------------------------------- */

static void join_nibbles(const uint8_t *u, int count, uint8_t *bytes) {
    for (int i = 0; i < count; i++)
        bytes[i] = (uint8_t)((u[i] & 15) | (u[count + i] & 15) << 4);
}

/* Bit `bit` of each code, in `each` bytes of which the j-th bit belongs to code `each`·j + l. */
static void join_bits(const uint8_t *u, int count, int each, int bit, uint8_t *bytes) {
    memset(bytes, 0, (size_t)each);
    for (int i = 0; i < count; i++)
        bytes[i % each] |= (uint8_t)((u[i] >> bit & 1) << (i / each));
}

static void join_pairs(const uint8_t *u, int shift, uint8_t *bytes) {
    memset(bytes, 0, 64);
    for (int i = 0; i < TN_QSUPER; i++)
        bytes[i / 128 * 32 + i % 32] |= (uint8_t)((u[i] >> shift & 3) << (i % 128 / 32 * 2));
}

static void put_half(uint8_t *at, uint16_t h) { memcpy(at, &h, sizeof h); }

static void pack_q4_0(const tn_qunpacked *b, uint8_t *to) { join_nibbles(b->u, 16, to + 2); }
static void pack_q4_1(const tn_qunpacked *b, uint8_t *to) { join_nibbles(b->u, 16, to + 4); }

/* The fifth bits stand in the order of the codes. */
static void join_fifth(const uint8_t *u, uint8_t *bytes) {
    memset(bytes, 0, 4);
    for (int i = 0; i < RUN; i++)
        bytes[i / 8] |= (uint8_t)((u[i] >> 4 & 1) << (i % 8));
}

static void pack_q5_0(const tn_qunpacked *b, uint8_t *to) {
    join_fifth(b->u, to + 2);
    join_nibbles(b->u, 16, to + 6);
}

static void pack_q5_1(const tn_qunpacked *b, uint8_t *to) {
    join_fifth(b->u, to + 4);
    join_nibbles(b->u, 16, to + 8);
}

static void pack_q8_0(const tn_qunpacked *b, uint8_t *to) {
    for (int i = 0; i < RUN; i++)
        to[2 + i] = b->u[i] ^ 0x80;
}

static void pack_q2_k(const tn_qunpacked *b, uint8_t *to) {
    for (int i = 0; i < 16; i++)
        to[i] = (uint8_t)(b->scale[i] | b->min[i] << 4);
    join_pairs(b->u, 0, to + 16);
}

static void pack_q3_k(const tn_qunpacked *b, uint8_t *to) {
    join_bits(b->u, TN_QSUPER, 32, 2, to);
    join_pairs(b->u, 0, to + 32);
    memset(to + 96, 0, 12);
    for (int i = 0; i < 16; i++) {
        to[96 + i % 8] |= (uint8_t)((b->scale[i] & 15) << (i / 8 * 4));
        to[104 + i % 4] |= (uint8_t)(b->scale[i] >> 4 << (i / 4 * 2));
    }
}

static void join_scales(const tn_qunpacked *b, uint8_t *to) {
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(b->scale[i] | b->scale[4 + i] >> 4 << 6);
        to[4 + i] = (uint8_t)(b->min[i] | b->min[4 + i] >> 4 << 6);
        to[8 + i] = (uint8_t)((b->scale[4 + i] & 15) | (b->min[4 + i] & 15) << 4);
    }
}

static void join_quarters(const uint8_t *u, uint8_t *to) {
    for (int i = 0; i < 4; i++)
        join_nibbles(u + 64 * i, 32, to + 32 * i);
}

static void pack_q4_k(const tn_qunpacked *b, uint8_t *to) {
    join_scales(b, to + 4);
    join_quarters(b->u, to + 16);
}

static void pack_q5_k(const tn_qunpacked *b, uint8_t *to) {
    join_scales(b, to + 4);
    join_bits(b->u, TN_QSUPER, 32, 4, to + 16);
    join_quarters(b->u, to + 48);
}

static void pack_q6_k(const tn_qunpacked *b, uint8_t *to) {
    join_nibbles(b->u, 64, to);
    join_nibbles(b->u + 128, 64, to + 64);
    join_pairs(b->u, 4, to + 128);
    memcpy(to + 192, b->scale, 16);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const target targets[] = {
    {TN_Q4_0, -8, 7, 0, 255, pack_q4_0},     {TN_Q4_1, 0, 15, 0, 2, pack_q4_1},
    {TN_Q5_0, -16, 15, 0, 255, pack_q5_0},   {TN_Q5_1, 0, 31, 0, 2, pack_q5_1},
    {TN_Q8_0, -127, 127, 0, 255, pack_q8_0}, {TN_Q2_K, 0, 3, 80, 82, pack_q2_k},
    {TN_Q3_K, -4, 3, 108, 255, pack_q3_k},   {TN_Q4_K, 0, 15, 0, 2, pack_q4_k},
    {TN_Q5_K, 0, 31, 0, 2, pack_q5_k},       {TN_Q6_K, -32, 31, 208, 255, pack_q6_k},
};

static const target *find_target(tn_dtype dtype) {
    for (size_t i = 0; i < TN_COUNT(targets); i++)
        if (targets[i].dtype == dtype) return &targets[i];
    return NULL;
}

typedef struct work {
    const target *target;
    const tn_qformat *format;
    const float *x, *importance; /* importance: [columns], around 1; NULL */
    int64_t columns;
    uint8_t *blocks;
} work;

static void quantize_range(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const work *w = ctx;
    const tn_qformat *f = w->format;
    for (int64_t i = begin; i < end; i++) {
        float x[TN_QSUPER];
        tn_qunpacked block = {0};
        for (int k = 0; k < f->elements; k++) {
            float v = w->x[i * f->elements + k];
            x[k] = isfinite(v) ? v : 0;
        }
        const float *importance = w->importance ? w->importance + i * f->elements % w->columns : NULL;
        (f->elements == TN_QBLOCK ? quantize_small : quantize_super)(f, x, importance, w->target, &block);
        uint8_t *to = w->blocks + i * f->bytes;
        w->target->pack(&block, to);
        put_half(to + w->target->d, block.d);
        if (f->has_minimum) put_half(to + w->target->minimum, block.minimum);
    }
}

/* By their mean, within bounds in which sums of them stay exact enough. */
static float *relative(const float *importance, int64_t columns) {
    const float least = 1e-4F, most = 1e4F;
    float *out = tn_mem_alloc((size_t)columns * sizeof *out);
    double sum = 0;
    for (int64_t k = 0; k < columns && out; k++)
        sum += isfinite(importance[k]) && importance[k] > 0 ? (double)importance[k] : 0;
    for (int64_t k = 0; k < columns && out; k++) {
        float v = (float)((double)importance[k] * (double)columns / sum);
        out[k] = sum > 0 && isfinite(v) ? fminf(fmaxf(v, least), most) : 1;
    }
    return out;
}

tn_status tn_quantize_rows(tn_dtype dtype, const float *x, int64_t count, const float *importance, int64_t columns,
                           void *blocks) {
    const target *t = find_target(dtype);
    if (!t)
        return tn_fail(
            TN_ERR_DTYPE,
            "tn_quantize_blocks: cannot quantize to %s; supported are q4_0, q4_1, q5_0, q5_1, q8_0, q2_k … q6_k",
            tn_dtype_name(dtype));
    work w = {.target = t, .format = tn_qformat_of(dtype), .x = x, .columns = columns, .blocks = blocks};
    if (count < 0 || count % w.format->elements != 0 || columns < 0 || columns % w.format->elements != 0)
        return tn_fail(TN_ERR_ARGUMENT, "tn_quantize_blocks: %lld numbers, in rows of %lld, are not a multiple of %d",
                       (long long)count, (long long)columns, w.format->elements);
    if (count > 0) TRY(tn_need(x, "tn_quantize_blocks: x"));
    if (count > 0) TRY(tn_need(blocks, "tn_quantize_blocks: blocks"));
    AUTO_FREE float *by = importance && columns > 0 ? relative(importance, columns) : NULL;
    if (importance && columns > 0 && !by) return TN_ERR_MEMORY;
    w.importance = by;
    tn_parallel(count / w.format->elements, TN_QSUPER / w.format->elements * 4, quantize_range, &w);
    return TN_OK;
}

tn_status tn_quantize_blocks(tn_dtype dtype, const float *x, int64_t count, void *blocks) {
    return tn_quantize_rows(dtype, x, count, NULL, 0, blocks);
}
