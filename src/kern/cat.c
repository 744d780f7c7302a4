/* cat.c — tensors beside each other, and slices of one: elements copied to where the result has them.
 *
 * Strides of both sides are known, so a part is a copy between two layouts, whose axes are put together where both
 * allow it: what lies alike becomes one move of memory. The result is made a stretch of its first axis at a time, all
 * parts of it one after the other, so that parts of a few elements, which take turns in its lines, find these lines in
 * the first cache. */
#include <string.h>

#include "kern/kern.h"

enum { STRETCH = 1 << 13 }; /* elements: what a first cache holds */

/* Axes of a copy, innermost first. */
typedef struct layout {
    int n;
    int64_t extent[TN_CAT_AXES], to[TN_CAT_AXES], from[TN_CAT_AXES];
} layout;

static void add_axis(layout *l, int64_t extent, int64_t to, int64_t from) {
    if (extent == 1) return;
    int k = l->n - 1;
    if (k >= 0 && to == l->extent[k] * l->to[k] && from == l->extent[k] * l->from[k]) {
        l->extent[k] *= extent;
        return;
    }
    l->extent[l->n] = extent;
    l->to[l->n] = to;
    l->from[l->n++] = from;
}

static void copy_line(uint32_t *to, int64_t to_step, const uint32_t *from, int64_t from_step, int64_t count) {
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i * to_step] = from[i * from_step];
}

/* Each element some times, as images grow: two at once where there are as many. */
static void copy_each(uint32_t *to, int64_t times, const uint32_t *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t pair = from[i] | (uint64_t)from[i] << 32;
        int64_t k = 0;
        for (; k + 2 <= times; k += 2, to += 2)
            memcpy(to, &pair, sizeof pair);
        if (k < times) *to++ = from[i];
    }
}

static bool repeats_each(const layout *l) {
    return l->n > 1 && l->from[0] == 0 && l->to[0] == 1 && l->from[1] == 1 && l->to[1] == l->extent[0];
}

/* The lines of the first axis, or planes of the first two. Returns how many axes that are. */
static int copy_inner(const layout *l, uint32_t *to, const uint32_t *from) {
    if (!repeats_each(l)) {
        copy_line(to, l->to[0], from, l->from[0], l->extent[0]);
        return 1;
    }
    if (l->extent[0] == 2)
        copy_each(to, 2, from, l->extent[1]); /* a loop of its own */
    else
        copy_each(to, l->extent[0], from, l->extent[1]);
    return 2;
}

static void copy_all(const layout *l, uint32_t *to, const uint32_t *from) {
    int64_t at[TN_CAT_AXES] = {0};
    if (l->n == 0) *to = *from;
    for (int k = 0; k < l->n;) {
        for (k = copy_inner(l, to, from); k < l->n; k++) {
            to += l->to[k];
            from += l->from[k];
            if (++at[k] < l->extent[k]) break;
            to -= l->extent[k] * l->to[k];
            from -= l->extent[k] * l->from[k];
            at[k] = 0;
        }
    }
}

typedef struct job {
    const tn_cat_args *a;
    int64_t stride[TN_CAT_AXES]; /* of the result */
    int64_t place[TN_CAT_PARTS]; /* where along `dim` each part begins */
    int lead;                    /* the first axis that is one, if it comes before `dim` */
    int64_t rows, stretches;     /* of that axis in a stretch; how many */
} job;

static void copy_part(const job *j, int64_t stretch, int part) {
    const tn_cat_args *a = j->a;
    const tn_cat_part *p = &a->part[part];
    int64_t first = stretch * j->rows;
    layout l = {.n = 0};
    for (int d = a->rank - 1; d >= 0; d--) {
        int64_t extent = d == a->dim ? p->extent : a->shape[d];
        if (d == j->lead) extent = tn_min64(j->rows, extent - first);
        if (extent == 0) return;
        add_axis(&l, extent, j->stride[d], p->stride[d]);
    }
    uint32_t *to = a->out + j->place[part] * j->stride[a->dim];
    const uint32_t *from = p->data;
    if (from == to) return; /* it was made there */
    if (j->lead >= 0) {
        to += first * j->stride[j->lead];
        from += first * p->stride[j->lead];
    }
    copy_all(&l, to, from);
}

static void copy_parts(void *ctx, int64_t begin, int64_t end, int worker) {
    const job *j = ctx;
    (void)worker;
    for (int64_t n = begin; n < end; n++)
        copy_part(j, n / j->a->parts, (int)(n % j->a->parts));
}

void tn_cat_run(const tn_cat_args *a) {
    job j = {.a = a, .lead = -1, .rows = 1, .stretches = 1};
    int64_t elements = 1;
    for (int d = a->rank - 1; d >= 0; d--) {
        j.stride[d] = elements;
        elements *= a->shape[d];
        if (d < a->dim && a->shape[d] > 1) j.lead = d;
    }
    for (int k = 1; k < a->parts; k++)
        j.place[k] = j.place[k - 1] + a->part[k - 1].extent;
    if (elements == 0) return;
    if (j.lead >= 0) {
        j.rows = tn_min64(tn_max64(STRETCH / j.stride[j.lead], 1), a->shape[j.lead]);
        j.stretches = tn_ceil_div(a->shape[j.lead], j.rows);
    }
    int64_t tasks = j.stretches * a->parts, each = tn_max64(elements / tasks, 1);
    tn_parallel(tasks, tn_max64(2 * STRETCH / each, 1), copy_parts, &j);
}

/* ---- slices by their numbers ------------------------------------------------------------------------------------- */

static int64_t index_at(const tn_take_args *a, int64_t i) {
    int64_t at = i * a->index_stride;
    return a->wide ? ((const int64_t *)a->index)[at] : ((const int32_t *)a->index)[at];
}

/* Where slices begin whose places along the dims before `dim` are those of row `n`. */
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

static void take_slices(void *ctx, int64_t begin, int64_t end, int worker) {
    const tn_take_args *a = ctx;
    int64_t count = a->shape[a->dim], size = 1;
    layout l = {.n = 0};
    (void)worker;
    for (int d = a->rank - 1; d > a->dim; size *= a->shape[d--])
        add_axis(&l, a->shape[d], size, a->stride[d]);
    for (int64_t n = begin, i = begin % count; n < end; i = 0) {
        const uint32_t *from = cat_row_of(a, n / count);
        int64_t stop = tn_min64(count, i + end - n);
        if (size == 1) {
            take_elements(a, a->out + n, from, i, stop);
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
    int64_t slices = 1, size = 1;
    for (int d = 0; d < a->rank; d++)
        *(d <= a->dim ? &slices : &size) *= a->shape[d];
    if (slices * size > 0) tn_parallel(slices, tn_max64(2 * STRETCH / size, 1), take_slices, (void *)(uintptr_t)a);
}
