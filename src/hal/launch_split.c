/* launch_split.c — which part of each buffer a launch touches: the check of its arguments, and its division where a
 * device's bindings are smaller than the buffers.
 *
 * An access is affine in the axes, so its range follows from extents and strides. A launch that needs too much of a
 * buffer is halved along the parallel axis that reaches furthest in it, until each part's range fits; a part is the
 * same kernel with other sizes: offsets moved by stride · begin, and buffers bound from where their range begins.
 * Masked accesses may touch less than their range: then the division is finer than it had to be, and a part may begin
 * behind a buffer's end, for which tn_kernel_in_bounds is there. */
#include <string.h>

#include "hal/kernel_code.h"

enum { MOST_HALVINGS = 40, MOST_PARTS = 1 << 16 };

/* A box of parallel points of a launch. */
typedef struct box {
    int64_t begin[KIR_MAX_AXES], end[KIR_MAX_AXES];
} box;

typedef struct division {
    const kir_program *p;
    const tn_launch *launch;
    int64_t most, alignment;
    int64_t *sizes;
    tn_launch_part_fn *emit;
    void *ctx;
    int parts;                   /* so far */
    bool moves;                  /* buffers may be bound further on */
    bool whole[KIR_MAX_BUFFERS]; /* the buffer is read at computed places too, or has windows: all of it is bound */
} division;

typedef struct range {
    int64_t low, high; /* elements; high < low: none */
} range;

/* The lowest and highest index of an access for the points of a box; false when they leave 64 bits. */
static bool access_range(const kir_program *p, const int64_t *sizes, int access, const box *at, range *out) {
    const int64_t *a = kir_sizes_access(p, sizes, access);
    int axes = p->n_par + p->n_loop;
    out->low = out->high = a[0];
    for (int i = 0; i < axes; i++) {
        int64_t first = i < p->n_par ? at->begin[i] : 0, last = (i < p->n_par ? at->end[i] : sizes[i]) - 1;
        int64_t x, y;
        if (last < first) continue; /* an empty loop touches nothing */
        if (tn_mul_overflow(a[1 + i], first, &x) || tn_mul_overflow(a[1 + i], last, &y)) return false;
        if (tn_add_overflow(out->low, tn_min64(x, y), &out->low) ||
            tn_add_overflow(out->high, tn_max64(x, y), &out->high))
            return false;
    }
    return true;
}

int64_t tn_reach(const tn_device *d, const kir_program *p) {
    int64_t most = d->caps.max_buffer, each = 1, reach;
    if (most <= 0) return INT64_MAX;
    if (d->caps.joins) each = tn_max64(1, d->caps.max_bindings / tn_max64(1, tn_global_buffers(p)));
    return tn_mul_overflow(most, each, &reach) ? INT64_MAX : reach;
}

static box launch_whole(const kir_program *p, const int64_t *sizes) {
    box b = {{0}, {0}};
    memcpy(b.end, sizes, p->n_par * sizeof *sizes);
    return b;
}

/* The range of a buffer over all of its accesses: what lies below 0 is masked. */
static bool buffer_range(const division *v, int buffer, const box *at, range *out) {
    *out = (range){INT64_MAX, -1};
    for (int i = 0; i < v->p->n_sized; i++) {
        range r;
        if (v->p->access[i].buffer != buffer) continue;
        if (!access_range(v->p, v->launch->sizes, i, at, &r)) return false;
        out->low = tn_min64(out->low, tn_max64(r.low, 0));
        out->high = tn_max64(out->high, r.high);
    }
    if (out->high < out->low) *out = (range){0, -1};
    return true;
}

static int64_t element_bytes(const kir_program *p, int buffer) {
    return (int64_t)tn_dtype_bytes((tn_dtype)p->buffer_dtype[buffer], 1);
}

/* Elements by which a buffer whose range begins at `low` can be bound further on: whole alignments. */
static int64_t moved(const division *v, int buffer, int64_t low) {
    int64_t unit = tn_max64(1, v->alignment / element_bytes(v->p, buffer));
    return v->moves ? low / unit * unit : 0;
}

static bool is_ranged(const division *v, int buffer) { return !tn_is_local(v->p, buffer) && !v->whole[buffer]; }

/* The first buffer that does not fit into a binding, -1 when all do. A driver may have to bind from an aligned address
 * before the one that it is given. */
static int first_too_large(const division *v, const box *at) {
    for (int b = 0; b < v->p->n_buffers; b++) {
        range r;
        if (!is_ranged(v, b)) continue;
        if (!buffer_range(v, b, at, &r)) return b;
        int64_t elements = r.high < r.low ? 0 : r.high + 1 - moved(v, b, r.low);
        if (elements > (v->most - v->alignment) / element_bytes(v->p, b)) return b;
    }
    return -1;
}

/* The parallel axis along which the box reaches furthest in the buffer; -1: none can be halved. The items of a
 * workgroup stay together. */
static int axis_to_halve(const division *v, const box *at, int buffer) {
    int best = -1;
    double most = 0;
    for (int axis = 0; axis < v->p->n_par - v->p->n_items; axis++) {
        int64_t extent = at->end[axis] - at->begin[axis];
        if (extent < 2) continue;
        for (int i = 0; i < v->p->n_sized; i++) {
            if (v->p->access[i].buffer != buffer) continue;
            double stride = (double)kir_sizes_access(v->p, v->launch->sizes, i)[1 + axis];
            double reach = (stride < 0 ? -stride : stride) * (double)(extent - 1);
            if (reach <= most) continue;
            most = reach;
            best = axis;
        }
    }
    return best;
}

/* The launch for the points of a box: extents of the box, offsets moved by where it begins, and each buffer bound from
 * where its range begins. */
static tn_status emit_part(const division *v, const box *at) {
    const kir_program *p = v->p;
    void *buffers[KIR_MAX_BUFFERS];
    int64_t skipped[KIR_MAX_BUFFERS];
    size_t axes = (size_t)(p->n_par + p->n_loop);
    memcpy(v->sizes, v->launch->sizes, kir_sizes_count(p) * sizeof *v->sizes);
    for (int b = 0; b < p->n_buffers; b++) {
        range r = {0, -1};
        buffers[b] = NULL;
        skipped[b] = 0;
        if (tn_is_local(p, b)) continue;
        if (is_ranged(v, b)) (void)buffer_range(v, b, at, &r);
        skipped[b] = r.high < r.low ? 0 : moved(v, b, r.low);
        buffers[b] = v->launch->buffers[b];
        if (skipped[b]) buffers[b] = (char *)buffers[b] + skipped[b] * element_bytes(p, b);
    }
    for (int i = 0; i < p->n_par; i++)
        v->sizes[i] = at->end[i] - at->begin[i];
    for (int i = 0; i < p->n_sized; i++) {
        int64_t *a = v->sizes + axes + (size_t)i * (axes + 1);
        for (int k = 0; k < p->n_par; k++)
            a[0] += a[1 + k] * at->begin[k];
        if (p->access[i].buffer >= 0) a[0] -= skipped[p->access[i].buffer];
    }
    return v->emit(v->ctx, &(tn_launch){v->sizes, buffers, v->launch->scalars});
}

static tn_status divide_launch(division *v, const box *at, int depth) {
    int buffer = first_too_large(v, at);
    if (buffer < 0 && v->parts++ < MOST_PARTS) return v->emit ? emit_part(v, at) : TN_OK;
    int axis = buffer < 0 ? -1 : axis_to_halve(v, at, buffer);
    if (axis < 0 || depth == MOST_HALVINGS)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "a kernel needs more of a buffer at once than the %lld bytes that the device binds",
                       (long long)v->most);
    box first = *at, second = *at;
    first.end[axis] = second.begin[axis] = at->begin[axis] + (at->end[axis] - at->begin[axis]) / 2;
    TRY(divide_launch(v, &first, depth + 1));
    return divide_launch(v, &second, depth + 1);
}

tn_status tn_launch_split(const kir_program *p, const tn_launch *launch, int64_t most, int64_t alignment,
                          int64_t *sizes, tn_launch_part_fn *emit, void *ctx) {
    if (most == INT64_MAX) return emit ? emit(ctx, launch) : TN_OK;
    division v = {
        .p = p, .launch = launch, .most = most, .alignment = alignment, .sizes = sizes, .emit = emit, .ctx = ctx};
    for (int b = 0; b < p->n_buffers; b++)
        v.whole[b] = p->windows[b] > 0;
    for (int i = 0; i < p->n_sized; i++)
        if (p->access[i].buffer >= 0 && p->access[i].dyn != KIR_NONE) v.whole[p->access[i].buffer] = true;
    box all = launch_whole(p, launch->sizes);
    if (first_too_large(&v, &all) < 0) return emit ? emit(ctx, launch) : TN_OK;
    v.moves = true;
    v.emit = NULL; /* nothing is emitted of what cannot be divided to the end */
    TRY(divide_launch(&v, &all, 0));
    v.emit = emit;
    v.parts = 0;
    return emit ? divide_launch(&v, &all, 0) : TN_OK;
}

bool tn_launch_is_narrow(const kir_program *p, const int64_t *sizes) {
    int64_t points = 1, steps = 1;
    for (int i = 0; i < p->n_par + p->n_loop; i++)
        if (tn_mul_overflow(i < p->n_par ? points : steps, sizes[i], i < p->n_par ? &points : &steps)) return false;
    /* a kernel's counters go a little further */
    if (points > INT32_MAX - KIR_MAX_ITEMS || steps > INT32_MAX - KIR_LANES) return false;
    box all = launch_whole(p, sizes);
    for (int i = 0; i < p->n_sized; i++) {
        range r;
        if (!access_range(p, sizes, i, &all, &r) || r.low < INT32_MIN || r.high > INT32_MAX) return false;
    }
    return true;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static tn_status check_sizes(const kir_program *p, const int64_t *sizes, int64_t number, int64_t *points) {
    *points = 1;
    for (int i = 0; i < p->n_par + p->n_loop; i++) {
        if (sizes[i] < 0)
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: the extent of axis %d is %lld", (long long)number, i,
                           (long long)sizes[i]);
        if (i < p->n_par && tn_mul_overflow(*points, sizes[i], points))
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: more than 2^63 points", (long long)number);
    }
    return TN_OK;
}

static tn_status check_buffers(const kir_program *p, void *const *buffers, int64_t number) {
    for (int b = 0; b < p->n_buffers; b++) {
        if (tn_is_local(p, b)) continue;
        if (!buffers[b]) return tn_fail(TN_ERR_ARGUMENT, "launch %lld: buffer %d is NULL", (long long)number, b);
        if ((uintptr_t)buffers[b] % (uintptr_t)element_bytes(p, b))
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: buffer %d begins within an element of %lld bytes",
                           (long long)number, b, (long long)element_bytes(p, b));
    }
    return TN_OK;
}

tn_status tn_launch_check(const kir_program *p, const tn_launch *launches, int64_t count) {
    if (count < 0 || (count && !launches))
        return tn_fail(TN_ERR_ARGUMENT, "%lld launches%s", (long long)count, count < 0 ? "" : " at NULL");
    for (int64_t i = 0; i < count; i++) {
        const tn_launch *l = &launches[i];
        bool lacking =
            (kir_sizes_count(p) && !l->sizes) || (p->n_buffers && !l->buffers) || (p->n_scalars && !l->scalars);
        if (lacking)
            return tn_fail(TN_ERR_ARGUMENT, "launch %lld: sizes, buffers or runtime scalars are NULL", (long long)i);
        int64_t points;
        TRY(check_sizes(p, l->sizes, i, &points));
        if (points) TRY(check_buffers(p, l->buffers, i));
    }
    return TN_OK;
}
