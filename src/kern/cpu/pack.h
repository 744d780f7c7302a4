/* pack.h — brings a block of a matrix into the order in which the micro-kernels read it.
 *
 * A block is a number of lines (rows of A, columns of B) with one element of each at every step of k. Packed, the
 * elements of one step lie side by side, in groups as wide as a panel or a tile is, and steps follow each other at a
 * fixed distance. Whatever the strides of the matrix are, this is one of three copies: side by side already, along k (a
 * transpose), or neither. Elements in half precision and bytes are widened on the way; or they become words of several
 * steps of k: halves pairs, bytes quads. */
#ifndef TN_PACK_H
#define TN_PACK_H

#include <string.h>

#include "kern/cpu/vec.h"
#ifndef TN_VEC_F64
#include "kern/cpu/widen.h"
#endif

enum { PACK_AHEAD = 8 }; /* steps: rows that are far apart are strangers to the processor's own prefetcher */

/* ---- elements as the micro-kernels want them --------------------------------------------------------------------- */

#ifdef TN_VEC_F64
VEC_INLINE V pack_load(const char *p, pack_kind kind, int64_t second) {
    (void)kind, (void)second;
    return v_load((const real *)(const void *)p);
}

VEC_INLINE V pack_part(const char *p, pack_kind kind, int64_t second, int64_t n) {
    (void)kind, (void)second;
    return v_part_load((const real *)(const void *)p, v_mask(n));
}

VEC_INLINE real pack_one(const char *p, pack_kind kind, int64_t second) {
    (void)kind, (void)second;
    return *(const real *)(const void *)p;
}
#else
VEC_INLINE V pack_convert(v_halves first, v_halves second, pack_kind kind) {
    if (kind == PACK_F16) return v_widen_f16(first);
    if (kind == PACK_BF16) return v_widen_bf16(first);
    return (V)(v_widen_words(first) | v_widen_words(second) << 16);
}

#ifdef TN_VEC_QUADS
/* Bytes in words, each at its place. */
VEC_INLINE v_counts pack_bytes(const char *p, int64_t n, int place) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (v_counts)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)v_mask(n), p)) << 8 * place;
#else
    typedef uint8_t bytes_of_lanes __attribute__((vector_size(VL)));
    bytes_of_lanes b = {0};
    memcpy(&b, p, (size_t)n);
    return __builtin_convertvector(b, v_counts) << 8 * place;
#endif
}

VEC_INLINE V pack_quads(const char *p, int64_t second, int64_t n) {
    return (V)(pack_bytes(p, n, 0) | pack_bytes(p + second, n, 1) | pack_bytes(p + 2 * second, n, 2) |
               pack_bytes(p + 3 * second, n, 3));
}
#endif

/* VL neighbours. */
VEC_INLINE V pack_load(const char *p, pack_kind kind, int64_t second) {
    if (kind == PACK_REAL) return v_load((const real *)(const void *)p);
#ifdef TN_VEC_QUADS
    return pack_quads(p, second, VL);
#endif
    if (pack_size[kind] == 1) return v_widen_bytes(p, kind == PACK_I8);
    v_halves h = v_load_halves(p);
    return pack_convert(h, kind == PACK_PAIRS ? v_load_halves(p + 2 * second) : h, kind);
}

VEC_INLINE V pack_part(const char *p, pack_kind kind, int64_t second, int64_t n) {
    if (n > VL) n = VL;
    if (kind == PACK_REAL) return v_part_load((const real *)(const void *)p, v_mask(n));
#ifdef TN_VEC_QUADS
    return pack_quads(p, second, n);
#endif
    if (pack_size[kind] == 1) {
        char bytes[VL] = {0};
        memcpy(bytes, p, (size_t)n);
        return v_widen_bytes(bytes, kind == PACK_I8);
    }
    v_halves h = v_part_halves(p, n);
    return pack_convert(h, kind == PACK_PAIRS ? v_part_halves(p + 2 * second, n) : h, kind);
}

/* The bits of a pair or a quad as a number; of its `count` first elements. */
VEC_INLINE real pack_word(const char *p, pack_kind kind, int64_t second, int count) {
    const int64_t size = pack_size[kind];
    char bytes[sizeof(real)] = {0};
    for (int i = 0; i < count; i++)
        memcpy(bytes + i * size, p + i * second * size, (size_t)size);
    real x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

VEC_INLINE real pack_one(const char *p, pack_kind kind, int64_t second) {
    return kind == PACK_REAL ? *(const real *)(const void *)p
                             : pack_word(p, kind, second, (int)((int64_t)sizeof(real) / pack_size[kind]));
}
#endif

/* ---- the three copies -------------------------------------------------------------------------------------------- */

/* All groups of a step before the next step: rows are read as far as they go, each of their pages once. */
VEC_INLINE void pack_adjacent_by(const pack *p, const int64_t group, const pack_kind kind) {
    const int64_t whole = group / VL * VL, size = pack_size[kind];
    const M rest = v_mask(group - whole);
    int64_t groups = p->lines / group;
    for (int64_t step = 0; step < p->steps; step++) {
        const char *from = (const char *)p->from + step * p->along * size;
        const char *ahead = from + PACK_AHEAD * p->along * size;
        real *to = p->to + step * p->distance;
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t i = 0; i < whole; i += VL) {
                __builtin_prefetch(ahead + i * size);
                v_store(to + i, pack_load(from + i * size, kind, p->second));
            }
            if (whole < group)
                v_part_store(to + whole, rest, pack_part(from + whole * size, kind, p->second, group - whole));
            from += group * size;
            ahead += group * size;
            to += p->jump;
        }
    }
}

/* The usual group is a constant to the compiler; lines beyond the last whole group are a smaller group of their own. */
VEC_INLINE void pack_adjacent(const pack *p, const pack_kind kind, void (*any_group)(const pack *p)) {
    if (p->lines >= p->group) {
        if (p->group == 2 * VL && pack_size[kind] > 1) {
            pack_adjacent_by(p, 2 * VL, kind);
        } else {
            any_group(p);
        }
    }
    int64_t rest = p->lines % p->group;
    if (rest == 0) return;
    pack last = *p;
    last.to += p->lines / p->group * p->jump;
    last.from = (const char *)p->from + (p->lines - rest) * pack_size[kind];
    last.lines = last.group = rest;
    any_group(&last);
}

/* One number after the other; narrow ones are brought together before they are widened. */
VEC_INLINE void pack_strided(const pack *p, const pack_kind kind) {
    const int64_t size = pack_size[kind];
    for (int64_t step = 0; step < p->steps; step++) {
        const char *from = (const char *)p->from + step * p->along * size;
        real *to = p->to + step * p->distance;
        if (kind == PACK_REAL || kind == PACK_PAIRS || kind == PACK_QUADS) {
            for (int64_t line = 0; line < p->lines; line++)
                to[line] = pack_one(from + line * p->across * size, kind, p->second);
            continue;
        }
        for (int64_t line = 0; line < p->lines; line += VL) {
            char together[2 * VL];
            int64_t n = p->lines - line < VL ? p->lines - line : VL;
            for (int64_t i = 0; i < n; i++)
                memcpy(together + i * size, from + (line + i) * p->across * size, (size_t)size);
            v_part_store(to + line, v_mask(n), pack_part(together, kind, 0, n));
        }
    }
}

/* Pairs of halves stand at any multiple of two bytes. */
VEC_INLINE V pack_words(const char *p) {
    V words;
    memcpy(&words, p, sizeof words);
    return words;
}

#if defined(TN_VEC_F64) || defined(TN_VEC_WORDS)
VEC_INLINE V pack_end(const epilogue_ops *e, int64_t step, V x) {
    (void)e, (void)step;
    return x;
}
#else
/* A bias, and max(…, 0). */
VEC_INLINE V pack_end(const epilogue_ops *e, int64_t step, V x) {
    if (!e) return x;
    if (e->add) x = x + v_set1(e->add[step]);
    return e->relu ? v_gate(x, x, v_zero()) : x;
}
#endif

/* VL lines from `line` on; a line that is missing at the end is read from the last one there is, and not stored. */
VEC_INLINE void pack_transposed_lines(const pack *p, int64_t apart, int64_t line, const bool whole) {
    const char *from[VL];
    for (int i = 0; i < VL; i++) {
        int64_t there = whole || line + i < p->lines ? line + i : p->lines - 1;
        from[i] = (const char *)p->from + there * apart;
    }
    M lines = v_mask(p->lines - line);
    real *to = p->to + line;
    for (int64_t step = 0; step < p->steps; step += VL) {
        V r[VL];
        int64_t count = p->steps - step;
        if (count >= VL) {
            VEC_UNROLL for (int i = 0; i < VL; i++) r[i] = pack_words(from[i] + step * (int64_t)sizeof(real));
        } else {
            M steps = v_mask(count);
            VEC_UNROLL for (int i = 0; i < VL; i++) r[i] =
                v_part_load((const real *)(const void *)from[i] + step, steps);
        }
        v_transpose(r);
        VEC_UNROLL for (int i = 0; i < VL; i++) {
            if (i >= count) break;
            const V x = pack_end(p->epilogue_ops, step + i, r[i]);
            if (whole) {
                v_store(to, x);
            } else {
                v_part_store(to, lines, x);
            }
            to += p->distance;
        }
    }
}

/* Numbers side by side along k, as wide as the micro-kernels want them; lines are `apart` bytes from each other. Pairs
 * are words as floats are, and moved by the floats' code. */
#if defined(__AVX512F__) && !defined(TN_VEC_F64)
#define pack_transposed tn_pack_transposed_avx512
void pack_transposed(const pack *p, int64_t apart);
#else
static void pack_transposed(const pack *p, int64_t apart);
#endif

#if !defined(TN_VEC_WORDS) || !defined(__AVX512F__)
void pack_transposed(const pack *p, int64_t apart) {
    int64_t line = 0;
    for (; line + VL <= p->lines; line += VL)
        pack_transposed_lines(p, apart, line, true);
    if (line < p->lines) pack_transposed_lines(p, apart, line, false);
}
#endif

/* The same for narrow ones: they are widened where they stand side by side, some lines by some steps at a time. */
VEC_INLINE void pack_transposed_as(const pack *p, const pack_kind kind) {
    enum { STEPS = 64 };
    const int64_t size = pack_size[kind];
    real wide[VL][STEPS];
    for (int64_t line = 0; line < p->lines; line += VL) {
        int64_t lines = p->lines - line < VL ? p->lines - line : VL;
        for (int64_t step = 0; step < p->steps; step += STEPS) {
            int64_t steps = p->steps - step < STEPS ? p->steps - step : STEPS;
            for (int64_t i = 0; i < lines; i++) {
                const char *from = (const char *)p->from + (step + (line + i) * p->across) * size;
                int64_t s = 0;
                for (; s + VL <= steps; s += VL)
                    v_store(wide[i] + s, pack_load(from + s * size, kind, 0));
                if (s < steps) v_store(wide[i] + s, pack_part(from + s * size, kind, 0, steps - s));
            }
            pack_transposed(&(pack){.to = p->to + line + step * p->distance,
                                    .distance = p->distance,
                                    .from = wide,
                                    .steps = steps,
                                    .lines = lines},
                            sizeof *wide);
        }
    }
}

VEC_INLINE void pack_as(const pack *p, const pack_kind kind, void (*any_group)(const pack *p)) {
    if (p->across == 1) {
        pack_adjacent(p, kind, any_group);
        return;
    }
    bool words = kind == PACK_PAIRS || kind == PACK_QUADS;
    bool in_row = words ? p->along > 1 && p->second == 1 : p->along == 1;
    for (int64_t line = 0; line < p->lines; line += p->group) {
        pack one = *p;
        one.to += line / p->group * p->jump;
        one.from = (const char *)p->from + line * p->across * pack_size[kind];
        one.lines = p->lines - line < p->group ? p->lines - line : p->group;
        if (in_row && (kind == PACK_REAL || words)) { /* neighbours are words already */
            pack_transposed(&one, p->across * pack_size[kind]);
        } else if (in_row) {
            pack_transposed_as(&one, kind);
        } else {
            pack_strided(&one, kind);
        }
    }
}

#ifdef TN_VEC_WORDS
static void pack_rest(const pack *p) {
    const int64_t size = pack_size[p->kind];
    const char *from = (const char *)p->from + (p->steps - 1) * p->along * size;
    real *to = p->to + (p->steps - 1) * p->distance;
    for (int64_t line = 0; line < p->lines; line++)
        to[line / p->group * p->jump + line % p->group] =
            pack_word(from + line * p->across * size, p->kind, p->second, p->rest);
}
#endif

#ifdef TN_VEC_WORDS
#define pack_real TILES.pack
#else
static __attribute__((noinline)) void pack_real_groups(const pack *p) { pack_adjacent_by(p, p->group, PACK_REAL); }
static void pack_real(const pack *p) { pack_as(p, PACK_REAL, pack_real_groups); }
#endif

/* All kinds but the sums' type in one: which it is is asked at each vector, which takes a fourth of the code of one
 * each. Pairs and quads have sets to themselves, f64 has no other kind. */
#if defined(TN_VEC_F64)
#define pack_other pack_real
#else
#if defined(TN_VEC_PAIRS)
#define PACK_OTHER(p) PACK_PAIRS
#elif defined(TN_VEC_QUADS)
#define PACK_OTHER(p) PACK_QUADS
#else
#define PACK_OTHER(p) ((p)->kind)
#endif
static __attribute__((noinline)) void pack_other_groups(const pack *p) { pack_adjacent_by(p, p->group, PACK_OTHER(p)); }
static void pack_other(const pack *p) { pack_as(p, PACK_OTHER(p), pack_other_groups); }
#endif

static void pack_run(const pack *p) {
    void (*run)(const pack *p) = p->kind == PACK_REAL ? pack_real : pack_other;
#ifdef TN_VEC_WORDS
    if (p->rest) {
        pack full = *p;
        full.steps--;
        run(&full);
        pack_rest(p);
        return;
    }
#endif
    run(p);
}

#endif
