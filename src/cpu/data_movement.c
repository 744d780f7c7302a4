/* data_movement.c — CPU kernels limited by memory: concatenation and slices, rotary positions, scatter, sort. */
#include <string.h>

#include "cpu/cpu_kernels.h"

/* ==== concatenation and slices ==================================================================================== */
/* The strides of both sides are known, so a part is a copy between two layouts, whose axes are merged where both allow
 * it: equal layouts become one memory move. The result is made a stretch of its first axis at a time, all parts of it
 * in order, so that parts with few elements, which alternate in its cache lines, find these lines in the first-level
 * cache. */

enum { STRETCH = 1 << 15 }; /* bytes: what a first cache holds */

/* Axes of a copy, innermost first; strides count bytes. */
typedef struct layout {
    int n;
    size_t size; /* of an element: 1, 2, 4 or 8 bytes */
    int64_t extent[TN_CAT_AXES], to[TN_CAT_AXES], from[TN_CAT_AXES];
} layout;

/* Strides count elements. */
static void add_axis(layout *l, int64_t extent, int64_t to, int64_t from) {
    if (extent == 1) return;
    to *= (int64_t)l->size;
    from *= (int64_t)l->size;
    int k = l->n - 1;
    if (k >= 0 && to == l->extent[k] * l->to[k] && from == l->extent[k] * l->from[k]) {
        l->extent[k] *= extent;
        return;
    }
    l->extent[l->n] = extent;
    l->to[l->n] = to;
    l->from[l->n++] = from;
}

/* A function whose argument `size` is a constant where it is called: the bytes of an element. */
#define SIZED static inline __attribute__((always_inline))

SIZED uint64_t bits_at(const char *data, int64_t i, size_t size) {
    const char *from = data + (size_t)i * size;
    uint64_t b64;
    uint32_t b32;
    uint16_t b16;
    if (size == 8) return memcpy(&b64, from, 8), b64;
    if (size == 4) return memcpy(&b32, from, 4), b32;
    if (size == 2) return memcpy(&b16, from, 2), b16;
    return (uint8_t)*from;
}

SIZED void copy_line(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t count, size_t size) {
    if (to_step == (int64_t)size && from_step == (int64_t)size) {
        memcpy(to, from, (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++, to += to_step, from += from_step)
        memcpy(to, from, size);
}

/* Repeats each element `times` times, as when images are enlarged; eight bytes at once where possible. */
SIZED void copy_each(char *to, int64_t times, const char *from, int64_t count, size_t size) {
    const uint64_t ones = UINT64_MAX / (UINT64_MAX >> (64 - 8 * size)); /* 1 in each element */
    for (int64_t i = 0; i < count; i++, from += size) {
        const uint64_t same = bits_at(from, 0, size) * ones;
        size_t left = (size_t)times * size;
        for (; left >= sizeof same; left -= sizeof same, to += sizeof same)
            memcpy(to, &same, sizeof same);
        for (; left > 0; left -= size, to += size)
            memcpy(to, from, size);
    }
}

static bool repeats_each(const layout *l) {
    const int64_t size = (int64_t)l->size;
    return l->n > 1 && l->from[0] == 0 && l->to[0] == size && l->from[1] == size && l->to[1] == l->extent[0] * size;
}

/* The lines of the first axis, or planes of the first two. Returns how many axes that are. */
SIZED int copy_inner(const layout *l, char *to, const char *from, size_t size) {
    if (!repeats_each(l)) {
        copy_line(to, l->to[0], from, l->from[0], l->extent[0], size);
        return 1;
    }
    if (l->extent[0] == 2)
        copy_each(to, 2, from, l->extent[1], size); /* in its own loop */
    else
        copy_each(to, l->extent[0], from, l->extent[1], size);
    return 2;
}

SIZED void copy_axes(const layout *l, char *to, const char *from, size_t size) {
    int64_t at[TN_CAT_AXES] = {0};
    if (l->n == 0) memcpy(to, from, size);
    for (int k = 0; k < l->n;) {
        for (k = copy_inner(l, to, from, size); k < l->n; k++) {
            to += l->to[k];
            from += l->from[k];
            if (++at[k] < l->extent[k]) break;
            to -= l->extent[k] * l->to[k];
            from -= l->extent[k] * l->from[k];
            at[k] = 0;
        }
    }
}

static void copy_all(const layout *l, void *to, const void *from) {
    switch (l->size) {
    case 1: copy_axes(l, to, from, 1); break;
    case 2: copy_axes(l, to, from, 2); break;
    case 4: copy_axes(l, to, from, 4); break;
    default: copy_axes(l, to, from, 8);
    }
}

typedef struct cat_job {
    const tn_cat_args *a;
    int64_t stride[TN_CAT_AXES]; /* of the result */
    int64_t place[TN_CAT_PARTS]; /* where along `dim` each part begins */
    int lead;                    /* the first axis with a part, if it comes before `dim` */
    int64_t rows, stretches;     /* of that axis in a stretch; how many */
} cat_job;

static void copy_part(const cat_job *j, int64_t stretch, int part) {
    const tn_cat_args *a = j->a;
    const tn_cat_part *p = &a->part[part];
    int64_t first = stretch * j->rows;
    const int64_t size = (int64_t)a->size;
    layout l = {.size = a->size};
    for (int d = a->rank - 1; d >= 0; d--) {
        int64_t extent = d == a->dim ? p->extent : a->shape[d];
        if (d == j->lead) extent = tn_min64(j->rows, extent - first);
        if (extent == 0) return;
        add_axis(&l, extent, j->stride[d], p->stride[d]);
    }
    char *to = (char *)a->out + j->place[part] * j->stride[a->dim] * size;
    const char *from = p->data;
    if (from == to) return; /* it was made there */
    if (j->lead >= 0) {
        to += first * j->stride[j->lead] * size;
        from += first * p->stride[j->lead] * size;
    }
    copy_all(&l, to, from);
}

static void copy_parts(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const cat_job *j = ctx;
    for (int64_t n = begin; n < end; n++)
        copy_part(j, n / j->a->parts, (int)(n % j->a->parts));
}

void tn_cat_run(const tn_cat_args *a) {
    cat_job j = {.a = a, .lead = -1, .rows = 1, .stretches = 1};
    int64_t elements = 1, stretch = STRETCH / (int64_t)a->size;
    for (int d = a->rank - 1; d >= 0; d--) {
        j.stride[d] = elements;
        elements *= a->shape[d];
        if (d < a->dim && a->shape[d] > 1) j.lead = d;
    }
    for (int k = 1; k < a->parts; k++)
        j.place[k] = j.place[k - 1] + a->part[k - 1].extent;
    if (elements == 0) return;
    if (j.lead >= 0) {
        j.rows = tn_min64(tn_max64(stretch / j.stride[j.lead], 1), a->shape[j.lead]);
        j.stretches = tn_ceil_div(a->shape[j.lead], j.rows);
    }
    int64_t tasks = j.stretches * a->parts, each = tn_max64(elements / tasks, 1);
    tn_parallel(tasks, tn_max64(2 * stretch / each, 1), copy_parts, &j);
}

/* ---- slices by their numbers ------------------------------------------------------------------------------------- */

enum { TAKE_LINE = 1 << 10 }; /* rows of at most this many selected elements look up their offsets once for all rows */

static int64_t index_at(const tn_take_args *a, int64_t i) {
    int64_t at = i * a->index_stride;
    return a->wide ? ((const int64_t *)a->index)[at] : ((const int32_t *)a->index)[at];
}

/* Start of the slices at row `n` of the dims before `dim`. */
static const uint32_t *cat_row_of(const tn_take_args *a, int64_t n) {
    const uint32_t *from = a->data;
    for (int d = a->dim; d-- > 0; n /= a->shape[d])
        from += n % a->shape[d] * a->stride[d];
    return from;
}

static void take_slice(const tn_take_args *a, const layout *l, int64_t size, uint32_t *to, const uint32_t *from) {
    if (from)
        copy_all(l, to, from);
    else
        for (int64_t k = 0; k < size; k++)
            to[k] = a->outside;
}

static void take_elements(const tn_take_args *a, uint32_t *to, const uint32_t *from, int64_t begin, int64_t end) {
    int64_t step = a->stride[a->dim], extent = a->extent;
    uint32_t outside = a->outside;
    for (int64_t i = begin; i < end; i++) {
        int64_t index = index_at(a, i);
        *to++ = index >= 0 && index < extent ? from[index * step] : outside;
    }
}

/* Offsets of all selected elements in a row. False if an index is out of range, or there are too many or too far. */
static bool find_elements(const tn_take_args *a, int32_t at[TAKE_LINE]) {
    const int64_t count = a->shape[a->dim], step = a->stride[a->dim];
    if (count > TAKE_LINE || (double)a->extent * (double)(step < 0 ? -step : step) > INT32_MAX) return false;
    for (int64_t i = 0; i < count; i++) {
        const int64_t index = index_at(a, i);
        if (index < 0 || index >= a->extent) return false;
        at[i] = (int32_t)(index * step);
    }
    return true;
}

static void take_slices(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const tn_take_args *a = ctx;
    int64_t count = a->shape[a->dim], size = 1;
    layout l = {.size = sizeof *a->out};
    int32_t at[TAKE_LINE];
    for (int d = a->rank - 1; d > a->dim; size *= a->shape[d--])
        add_axis(&l, a->shape[d], size, a->stride[d]);
    const bool found = size == 1 && end - begin > 2 * count && find_elements(a, at);
    for (int64_t n = begin, i = begin % count; n < end; i = 0) {
        const uint32_t *from = cat_row_of(a, n / count);
        int64_t stop = tn_min64(count, i + end - n);
        if (size == 1) {
            uint32_t *to = a->out + n - i;
            if (!found) take_elements(a, a->out + n, from, i, stop);
            for (int64_t k = i; found && k < stop; k++)
                to[k] = from[at[k]];
            n += stop - i;
            continue;
        }
        for (; i < stop; i++, n++) {
            int64_t index = index_at(a, i);
            bool inside = index >= 0 && index < a->extent;
            take_slice(a, &l, size, a->out + n * size, inside ? from + index * a->stride[a->dim] : NULL);
        }
    }
}

void tn_take_run(const tn_take_args *a) {
    const int own = a->dim + 1;
    const int64_t slices = tn_product(a->shape, own), size = tn_product(a->shape + own, a->rank - own);
    if (slices * size > 0)
        tn_parallel(slices, tn_max64(2 * STRETCH / (int64_t)sizeof *a->out / size, 1), take_slices,
                    (void *)(uintptr_t)a);
}

/* ==== places of another size ====================================================================================== */
/* Places of the last dim are computed for four rows at once, whose elements are interleaved first: so each weight and
 * each place is looked up once for four results, in vectors. */

typedef float floats __attribute__((vector_size(16), aligned(sizeof(float)), may_alias));

static floats load_floats(const float *p) { return *(const floats *)p; }
static void store_floats(float *p, floats v) { *(floats *)p = v; }

enum { LINES = 4, MOST_EXTENT = 1 << 10 /* of interleaved rows */ };

static bool tap_exists(const tn_resample_args *a, int64_t tap) { return (uint64_t)a->index[tap] < (uint64_t)a->extent; }

static bool taps_exist(const tn_resample_args *a) {
    bool exist = true;
    for (int64_t k = 0; k < a->taps * a->places; k++)
        exist = exist && tap_exists(a, k);
    return exist;
}

/* One place of `inner` elements. */
static void resample_place(const tn_resample_args *a, int64_t row, int64_t place) {
    float *to = a->out + (row * a->places + place) * a->inner;
    for (int64_t t = 0; t < a->taps; t++) {
        const int64_t k = t * a->places + place;
        const bool exists = tap_exists(a, k);
        const float weight = exists ? a->weight[k] : NAN;
        const float *from = exists ? a->x + (row * a->extent + a->index[k]) * a->inner : to; /* any times NaN */
        for (int64_t j = 0; j < a->inner; j++)
            to[j] = t ? to[j] + from[j] * weight : from[j] * weight;
    }
}

/* Places of four rows. */
static void resample_lines(const tn_resample_args *a, int64_t row) {
    floats beside[MOST_EXTENT];
    const float *x = a->x + row * a->extent;
    const int64_t in = a->extent, out = a->places;
    int64_t i = 0;
    for (int64_t j = 0; j < in; j++)
        beside[j] = (floats){x[j], x[in + j], x[2 * in + j], x[3 * in + j]};
    for (; i + LINES <= out; i += LINES) {
        floats y[LINES];
        for (int k = 0; k < (int)LINES; k++)
            for (int64_t t = 0; t < a->taps; t++) {
                floats sum = beside[a->index[t * out + i + k]] * a->weight[t * out + i + k];
                if (t) sum = y[k] + sum;
                y[k] = sum;
            }
        const floats a0 = __builtin_shufflevector(y[0], y[1], 0, 4, 1, 5),
                     a1 = __builtin_shufflevector(y[2], y[3], 0, 4, 1, 5);
        const floats b0 = __builtin_shufflevector(y[0], y[1], 2, 6, 3, 7),
                     b1 = __builtin_shufflevector(y[2], y[3], 2, 6, 3, 7);
        float *to = a->out + row * out + i;
        store_floats(to, __builtin_shufflevector(a0, a1, 0, 1, 4, 5));
        store_floats(to + out, __builtin_shufflevector(a0, a1, 2, 3, 6, 7));
        store_floats(to + 2 * out, __builtin_shufflevector(b0, b1, 0, 1, 4, 5));
        store_floats(to + 3 * out, __builtin_shufflevector(b0, b1, 2, 3, 6, 7));
    }
    for (; i < out; i++)
        for (int64_t k = 0; k < LINES; k++)
            resample_place(a, row + k, i);
}

/* Blocks of LINES rows. */
static void resample_rows(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const tn_resample_args *a = ctx;
    const bool beside = a->inner == 1 && a->extent <= MOST_EXTENT && taps_exist(a);
    for (int64_t n = begin; n < end; n++) {
        const int64_t first = n * LINES, last = tn_min64(first + LINES, a->rows);
        if (beside && last == first + LINES) {
            resample_lines(a, first);
            continue;
        }
        for (int64_t row = first; row < last; row++)
            for (int64_t i = 0; i < a->places; i++)
                resample_place(a, row, i);
    }
}

void tn_resample_run(const tn_resample_args *a) {
    const int64_t block = LINES * a->places * a->inner;
    if (a->rows * a->places * a->inner > 0)
        tn_parallel(tn_ceil_div(a->rows, LINES), tn_max64(STRETCH / (int64_t)sizeof *a->out / block, 1), resample_rows,
                    (void *)(uintptr_t)a);
}

/* ==== rotary positions ============================================================================================ */
/* Two products and a sum per element, each rounded, as in the op's definition; bound by memory, so 16 bytes at a time
 * are enough. Threads share rows if there are many. */

enum { SERIAL_ELEMENTS = 32768 }; /* below that one core is done before another has woken */

static void rotate_one(const float *c, const float *s, float x, float y, float *first, float *second) {
    *first = x * *c - y * *s;
    *second = y * *c + x * *s;
}

static void rotate_halves(const tn_rope_args *a, const float *x, const float *c, const float *s, float *out) {
    int64_t half = a->half, i = 0;
    for (; i + 4 <= half; i += 4) {
        floats first = load_floats(x + i), second = load_floats(x + half + i), cosine = load_floats(c + i),
               sine = load_floats(s + i);
        store_floats(out + i, first * cosine - second * sine);
        store_floats(out + half + i, second * cosine + first * sine);
    }
    for (; i < half; i++)
        rotate_one(c + i, s + i, x[i], x[half + i], out + i, out + half + i);
}

static void rotate_neighbours(const tn_rope_args *a, const float *x, const float *c, const float *s, float *out) {
    int64_t half = a->half, i = 0;
    for (; i + 4 <= half; i += 4) {
        floats low = load_floats(x + 2 * i), high = load_floats(x + 2 * i + 4), cosine = load_floats(c + i),
               sine = load_floats(s + i);
        floats first = __builtin_shufflevector(low, high, 0, 2, 4, 6),
               second = __builtin_shufflevector(low, high, 1, 3, 5, 7);
        floats turned = first * cosine - second * sine, other = second * cosine + first * sine;
        store_floats(out + 2 * i, __builtin_shufflevector(turned, other, 0, 4, 1, 5));
        store_floats(out + 2 * i + 4, __builtin_shufflevector(turned, other, 2, 6, 3, 7));
    }
    for (; i < half; i++)
        rotate_one(c + i, s + i, x[2 * i], x[2 * i + 1], out + 2 * i, out + 2 * i + 1);
}

static void rotate_rows(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const tn_rope_args *a = ctx;
    int64_t at[TN_ROPE_AXES], table = 0, rest = begin;
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
    int64_t rows = tn_product(own.extent, TN_ROPE_AXES);
    if (rows == 0 || own.features == 0) return;
    if (rows * own.features < SERIAL_ELEMENTS)
        rotate_rows(&own, 0, rows, 0);
    else
        tn_parallel(rows, tn_max64(1, SERIAL_ELEMENTS / 4 / own.features), rotate_rows, &own);
}

/* ==== scatter-add ================================================================================================= */
/* Several rows may go to one place, and float addition depends on order: each element of the output is summed in
 * ascending order of the rows, by one thread. So threads share either the columns or the rows of the output, never the
 * rows of the source; every thread reads the whole index. */

enum {
    SCATTER_SERIAL_ELEMENTS = 16384, /* below that one core is done before another has woken */
    MIN_COLUMNS = 64                 /* of a part: whole cache lines, and adding outweighs reading the index */
};

typedef void add_row(void *out, const void *src, int64_t begin, int64_t count);

typedef struct scatter_job {
    const tn_scatter_args *args;
    add_row *add;
    size_t size; /* bytes an element */
} scatter_job;

/* Sixteen bytes at a time: every processor has that, and adding a column of rows is bound by memory. */
typedef float floats __attribute__((vector_size(16), aligned(sizeof(float)), may_alias));
typedef double doubles __attribute__((vector_size(16), aligned(sizeof(double)), may_alias));

static void add_f32(void *out, const void *src, int64_t begin, int64_t count) {
    float *o = (float *)out + begin;
    const float *s = (const float *)src + begin;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        *(floats *)(o + i) += *(const floats *)(s + i);
    for (; i < count; i++)
        o[i] += s[i];
}

static void add_f64(void *out, const void *src, int64_t begin, int64_t count) {
    double *o = (double *)out + begin;
    const double *s = (const double *)src + begin;
    int64_t i = 0;
    for (; i + 2 <= count; i += 2)
        *(doubles *)(o + i) += *(const doubles *)(s + i);
    for (; i < count; i++)
        o[i] += s[i];
}

/* Adds columns [c0, c1) of all rows whose destination is in [r0, r1). */
static void add_rows(const scatter_job *job, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    const tn_scatter_args *x = job->args;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t row = x->index[i];
        if (row < r0 || row >= r1) continue;
        char *out = (char *)x->out + (size_t)(row * x->width) * job->size;
        const char *src = (const char *)x->src + i * x->src_stride * (int64_t)job->size;
        job->add(out, src, c0, c1 - c0);
    }
}

static void add_columns_part(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const scatter_job *job = ctx;
    add_rows(job, 0, job->args->rows, begin, end);
}

static void add_rows_part(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const scatter_job *job = ctx;
    add_rows(job, begin, end, 0, job->args->width);
}

static int64_t count_skipped(const tn_scatter_args *x) {
    int64_t skipped = 0;
    for (int64_t i = 0; i < x->count; i++)
        skipped += x->index[i] < 0 || x->index[i] >= x->rows;
    return skipped;
}

static int64_t scatter_add(const tn_scatter_args *x, add_row *add, size_t size) {
    scatter_job job = {.args = x, .add = add, .size = size};
    if (x->width > 0 && x->rows > 0) {
        if ((double)x->count * (double)x->width < SCATTER_SERIAL_ELEMENTS) {
            add_rows(&job, 0, x->rows, 0, x->width);
        } else if (x->width >= 2 * MIN_COLUMNS) {
            tn_parallel(x->width, MIN_COLUMNS, add_columns_part, &job);
        } else {
            tn_parallel(x->rows, 1, add_rows_part, &job);
        }
    }
    return count_skipped(x);
}

int64_t tn_scatter_add_f32(const tn_scatter_args *args) { return scatter_add(args, add_f32, sizeof(float)); }

int64_t tn_scatter_add_f64(const tn_scatter_args *args) { return scatter_add(args, add_f64, sizeof(double)); }

/* ==== stable sort of rows ========================================================================================= */
/* Every type is first mapped to unsigned keys with the wanted order: the sign is flipped, NaN comes last, both zeros
 * are equal, and for descending order all bits are inverted. Then one sort serves all: insertion sort for short rows,
 * otherwise radix sort from the lowest byte to the highest; each pass is stable, and a byte that is the same everywhere
 * costs nothing. */

enum {
    SHORT_ROW = 48, /* below that insertion beats clearing and summing the counts */
    RADIX = 256,    /* one byte a pass: its counts and the open ends of its buckets fit the first cache */
    KEY_BYTES = 8,
    PART_ELEMENTS = 4096 /* threads share rows in parts of at least this many elements */
};

typedef enum key_kind { KEY_UNSIGNED, KEY_SIGNED, KEY_FLOAT } key_kind;

/* How a type is read: `infinity` is the bits of +inf; a float whose magnitude is above it is NaN. */
typedef struct key_rule {
    key_kind kind;
    uint64_t infinity;
} key_rule;

static const key_rule rules[TN_PLAIN_DTYPES] = {
    [TN_F32] = {KEY_FLOAT, 0x7f800000}, [TN_F64] = {KEY_FLOAT, 0x7ff0000000000000},
    [TN_F16] = {KEY_FLOAT, 0x7c00},     [TN_BF16] = {KEY_FLOAT, 0x7f80},
    [TN_I32] = {KEY_SIGNED, 0},         [TN_I64] = {KEY_SIGNED, 0},
    [TN_I8] = {KEY_SIGNED, 0},          [TN_I16] = {KEY_SIGNED, 0},
    [TN_U32] = {KEY_UNSIGNED, 0},       [TN_U64] = {KEY_UNSIGNED, 0},
    [TN_BOOL] = {KEY_UNSIGNED, 0},      [TN_U8] = {KEY_UNSIGNED, 0},
    [TN_U16] = {KEY_UNSIGNED, 0},
};

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint64_t sort_key_of(uint64_t bits, const key_rule *rule, uint64_t sign) {
    if (rule->kind == KEY_UNSIGNED) return bits;
    if (rule->kind == KEY_SIGNED) return bits ^ sign;
    uint64_t magnitude = bits & (sign - 1);
    if (magnitude > rule->infinity) return sign | (sign - 1);
    if (magnitude == 0) return sign;
    return bits & sign ? (sign - 1) & ~bits : bits | sign;
}

static void make_keys(const tn_argsort_args *x, int64_t row, uint64_t *keys) {
    size_t size = tn_dtype_size(x->dtype);
    const key_rule *rule = &rules[x->dtype];
    const char *data = (const char *)x->data + (size_t)(row * x->length) * size;
    uint64_t sign = (uint64_t)1 << (8 * size - 1), all = sign | (sign - 1);
    uint64_t turned = x->descending ? all : 0;
    for (int64_t i = 0; i < x->length; i++)
        keys[i] = sort_key_of(bits_at(data, i, size), rule, sign) ^ turned;
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

static void sort_by_insertion(const uint64_t *keys, int64_t *order, int64_t length) {
    for (int64_t i = 0; i < length; i++) {
        int64_t j = i;
        for (; j > 0 && keys[order[j - 1]] > keys[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

static void count_bytes(const uint64_t *keys, int64_t length, size_t bytes, int64_t counts[][RADIX]) {
    memset(counts, 0, bytes * sizeof *counts);
    for (int64_t i = 0; i < length; i++)
        for (size_t byte = 0; byte < bytes; byte++)
            counts[byte][keys[i] >> (8 * byte) & (RADIX - 1)]++;
}

/* One pass: `from` to `to`, by one byte of the keys. NULL for `from`: 0, 1, 2 … */
static void distribute(const uint64_t *keys, int64_t length, size_t byte, const int64_t *counts, const int64_t *from,
                       int64_t *to) {
    int64_t ends[RADIX], end = 0;
    for (int digit = 0; digit < RADIX; digit++) {
        ends[digit] = end;
        end += counts[digit];
    }
    for (int64_t i = 0; i < length; i++) {
        int64_t position = from ? from[i] : i;
        to[ends[keys[position] >> (8 * byte) & (RADIX - 1)]++] = position;
    }
}

static void sort_by_bytes(const uint64_t *keys, int64_t *order, int64_t *other, int64_t length, size_t bytes) {
    int64_t counts[KEY_BYTES][RADIX];
    count_bytes(keys, length, bytes, counts);
    const int64_t *from = NULL;
    int64_t *to = order;
    for (size_t byte = 0; byte < bytes; byte++) {
        if (counts[byte][keys[0] >> (8 * byte) & (RADIX - 1)] == length) continue;
        distribute(keys, length, byte, counts[byte], from, to);
        from = to;
        to = to == order ? other : order;
    }
    if (!from) {
        for (int64_t i = 0; i < length; i++)
            order[i] = i;
    } else if (from == other) {
        memcpy(order, other, (size_t)length * sizeof *order);
    }
}

static void sort_rows(void *ctx, int64_t begin, int64_t end, int worker) {
    const tn_argsort_args *x = ctx;
    uint64_t *keys = (uint64_t *)x->workspace + (int64_t)worker * 2 * x->length;
    int64_t *other = (int64_t *)keys + x->length;
    for (int64_t row = begin; row < end; row++) {
        int64_t *order = x->order + row * x->length;
        make_keys(x, row, keys);
        if (x->length < SHORT_ROW)
            sort_by_insertion(keys, order, x->length);
        else
            sort_by_bytes(keys, order, other, x->length, tn_dtype_size(x->dtype));
    }
}

void tn_argsort_rows(const tn_argsort_args *args) {
    if (args->length == 0) return;
    tn_argsort_args x = *args;
    tn_parallel(x.rows, tn_max64(PART_ELEMENTS / x.length, 1), sort_rows, &x);
}
