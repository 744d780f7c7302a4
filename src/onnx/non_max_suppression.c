/* non_max_suppression.c — ONNX: NonMaxSuppression.
 *
 * Corners and areas are computed once per box. Threads share the (image, class) pairs. The candidates of a class are a
 * heap by score, so that only those that are looked at are sorted; each is compared with the boxes kept so far, eight
 * at a time. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "onnx/operator_support.h"

/* Boxes as five lines of numbers, `pitch` apart: low and high corner, and the area; NaN where it has none, so that
 * nothing is told to overlap it. */
enum { LOW = 0, HIGH = 2, AREA = 4, LINES = 5 };

typedef struct suppression {
    float *box, *score;
    double *shape; /* LINES lines a batch */
    int64_t batches, classes, boxes, most;
    double overlap, least;
    bool centred, any_score;
    int32_t **kept; /* of each class of each batch; NULL: none */
    int64_t *counts;
    atomic_bool failed;
} suppression;

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static void measure_nms(const suppression *s, const float *box, double *line) {
    double area = 1;
    for (int d = 0; d < 2; d++) {
        double a = (double)box[d], b = (double)box[2 + d];
        double low = s->centred ? a - b / 2 : fmin(a, b), high = s->centred ? a + b / 2 : fmax(a, b);
        line[(LOW + d) * s->boxes] = low;
        line[(HIGH + d) * s->boxes] = high;
        area *= high - low;
    }
    line[AREA * s->boxes] = area > 0 ? area : (double)NAN;
}

static tn_status measure_all(suppression *s) {
    s->shape = tn_mem_alloc((size_t)tn_max64(s->batches * s->boxes * LINES, 1) * sizeof *s->shape);
    if (!s->shape) return TN_ERR_MEMORY;
    for (int64_t b = 0; b < s->batches; b++)
        for (int64_t i = 0; i < s->boxes; i++)
            measure_nms(s, s->box + 4 * (b * s->boxes + i), s->shape + b * s->boxes * LINES + i);
    return TN_OK;
}

static inline double lesser(double a, double b) { return a < b ? a : b; }
static inline double greater(double a, double b) { return a > b ? a : b; }

static inline double common(const double *kept, int64_t pitch, const double *one) {
    double x = lesser(kept[HIGH * pitch], one[HIGH]) - greater(kept[LOW * pitch], one[LOW]);
    double y = lesser(kept[(HIGH + 1) * pitch], one[HIGH + 1]) - greater(kept[(LOW + 1) * pitch], one[LOW + 1]);
    return greater(x, 0) * greater(y, 0);
}

/* Boxes that were kept: their shapes, and their corners rounded outwards to f32. These show quickly that most boxes do
 * not meet. */
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t flags __attribute__((vector_size(16)));
enum { LANES = 4, AT_ONCE = 2 * LANES };

typedef struct kept_boxes {
    float *near[2 * 2]; /* low and high corners; `room` each, a multiple of AT_ONCE */
    double *shape;      /* LINES lines of `room` */
    int64_t room, count;
} kept_boxes;

static float rounded_down(double x) {
    float y = (float)x;
    return (double)y > x ? nextafterf(y, -INFINITY) : y;
}

static void keep_box(kept_boxes *k, const double *one) {
    int64_t at = k->count++;
    for (int i = 0; i < LINES; i++)
        k->shape[i * k->room + at] = one[i];
    for (int d = 0; d < 2; d++) {
        k->near[LOW + d][at] = rounded_down(one[LOW + d]);
        k->near[HIGH + d][at] = -rounded_down(-one[HIGH + d]);
    }
}

/* Whether one of AT_ONCE kept boxes may meet the box with these corners. */
static inline bool meets(const kept_boxes *k, int64_t first, const float *one) {
    flags any = {0};
    for (int64_t i = first; i < first + AT_ONCE; i += LANES) {
        lanes low[2], high[2];
        for (int d = 0; d < 2; d++) {
            memcpy(&low[d], k->near[LOW + d] + i, sizeof low[d]);
            memcpy(&high[d], k->near[HIGH + d] + i, sizeof high[d]);
        }
        any |= (high[0] > one[LOW]) & (low[0] < one[HIGH]) & (high[1] > one[LOW + 1]) & (low[1] < one[HIGH + 1]);
    }
    uint64_t half[2];
    memcpy(half, &any, sizeof half);
    return (half[0] | half[1]) != 0;
}

/* Does a kept box share more of its area with `one` than is allowed? */
static bool hidden(const suppression *s, const kept_boxes *k, const double *one) {
    bool always = s->overlap < 0; /* then boxes that share nothing may be too much */
    float near[2 * 2];
    if (isnan(one[AREA])) return false;
    for (int d = 0; d < 2; d++) {
        near[LOW + d] = rounded_down(one[LOW + d]);
        near[HIGH + d] = -rounded_down(-one[HIGH + d]);
    }
    for (int64_t first = 0; first < k->count; first += AT_ONCE) {
        if (!always && !meets(k, first, near)) continue;
        for (int64_t i = first; i < tn_min64(first + AT_ONCE, k->count); i++) {
            double shared = common(k->shape + i, k->room, one);
            if (shared / (k->shape[AREA * k->room + i] + one[AREA] - shared) > s->overlap) return true;
        }
    }
    return false;
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

/* A number that is the greater, the better the candidate: by score, and of equal scores the first box. NaN is last. */
static uint64_t rank_of(float score, int64_t box) {
    uint32_t bits = 0;
    if (!isnan(score)) {
        score = score == 0 ? 0.0F : score; /* not −0 */
        memcpy(&bits, &score, sizeof bits);
        bits = bits >> 31 ? ~bits : bits | 1U << 31;
    }
    return (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)box);
}

static int64_t box_of(uint64_t rank) { return UINT32_MAX - (uint32_t)rank; }

/* Puts `value` below place i of a heap whose first is the greatest. */
static void sink(uint64_t *heap, int64_t count, int64_t i, uint64_t value) {
    for (int64_t below = 2 * i + 1; below < count; below = 2 * i + 1) {
        below += below + 1 < count && heap[below + 1] > heap[below];
        if (heap[below] <= value) break;
        heap[i] = heap[below];
        i = below;
    }
    heap[i] = value;
}

static int64_t take_candidates(const suppression *s, const float *score, uint64_t *heap) {
    int64_t count = 0;
    for (int64_t i = 0; i < s->boxes; i++)
        if (s->any_score || (double)score[i] > s->least) heap[count++] = rank_of(score[i], i);
    for (int64_t i = count / 2; i-- > 0;)
        sink(heap, count, i, heap[i]);
    return count;
}

static tn_status make_kept(kept_boxes *k, int64_t most) {
    k->room = tn_ceil_div(most, AT_ONCE) * AT_ONCE;
    k->shape = tn_mem_alloc((size_t)k->room * (LINES * sizeof *k->shape + 4 * sizeof *k->near[0]));
    if (!k->shape) return TN_ERR_MEMORY;
    for (int i = 0; i < 4; i++) {
        k->near[i] = (float *)(void *)(k->shape + LINES * k->room) + i * k->room;
        for (int64_t at = 0; at < k->room; at++)
            k->near[i][at] = (float)NAN; /* what nothing meets */
    }
    return TN_OK;
}

/* One class of one image: the best candidate, then the best of those that it does not hide, and so on. */
static tn_status suppress(suppression *s, int64_t which, uint64_t *heap) {
    int64_t left = take_candidates(s, s->score + which * s->boxes, heap), most = tn_min64(s->most, left);
    const double *shape = s->shape + which / s->classes * s->boxes * LINES;
    kept_boxes k = {.count = 0};
    if (most < 1) return TN_OK;
    int32_t *list = s->kept[which] = tn_mem_alloc((size_t)most * sizeof *list);
    if (!list) return TN_ERR_MEMORY;
    TRY(make_kept(&k, most));
    for (; left > 0 && k.count < most; left--) {
        int64_t box = box_of(heap[0]);
        double one[LINES];
        sink(heap, left - 1, 0, heap[left - 1]);
        for (int i = 0; i < LINES; i++)
            one[i] = shape[i * s->boxes + box];
        if (hidden(s, &k, one)) continue;
        list[k.count] = (int32_t)box;
        keep_box(&k, one);
    }
    s->counts[which] = k.count;
    tn_mem_free(k.shape);
    return TN_OK;
}

static void suppress_some(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    suppression *s = ctx;
    uint64_t *heap = tn_mem_alloc((size_t)tn_max64(s->boxes, 1) * sizeof *heap);
    bool failed = !heap;
    for (int64_t i = begin; i < end && !failed; i++)
        failed = suppress(s, i, heap) != TN_OK;
    if (failed) atomic_store(&s->failed, true);
    tn_mem_free(heap);
}

/* ---- the operator ------------------------------------------------------------------------------------------------ */

static tn_status read_suppression(const onnx_call *c, suppression *s) {
    const tn_tensor *boxes = onnx_in(c, 0), *scores = onnx_in(c, 1);
    TRY(tn_status_of(boxes));
    TRY(tn_status_of(scores));
    if (tn_rank(boxes) != 3 || tn_rank(scores) != 3 || tn_size(boxes, 2) != 4 ||
        tn_size(boxes, 0) != tn_size(scores, 0) || tn_size(boxes, 1) != tn_size(scores, 2))
        return onnx_refuse(
            c, "boxes must be [batch, boxes, 4] and scores [batch, classes, boxes], with equal batch and boxes");
    s->batches = tn_size(scores, 0);
    s->classes = tn_size(scores, 1);
    s->boxes = tn_size(scores, 2);
    if (s->boxes > INT32_MAX) return onnx_refuse(c, "%lld boxes are too many", (long long)s->boxes);
    s->centred = onnx_int(c, "center_point_box", 0) != 0;
    s->any_score = !onnx_has(c, 4);
    TRY(onnx_read_int(c, 2, 0, &s->most));
    TRY(onnx_read_float(c, 3, 0, &s->overlap));
    TRY(onnx_read_float(c, 4, 0, &s->least));
    TRY(onnx_read_f32(c, 0, &s->box));
    return onnx_read_f32(c, 1, &s->score);
}

static tn_status suppress_all(suppression *s) {
    int64_t pieces = s->batches * s->classes;
    s->kept = tn_mem_zalloc((size_t)pieces, sizeof *s->kept);
    s->counts = tn_mem_zalloc((size_t)pieces, sizeof *s->counts);
    if (!s->kept || !s->counts) return TN_ERR_MEMORY;
    TRY(measure_all(s));
    tn_parallel_shared(pieces, 1, suppress_some, s);
    return atomic_load(&s->failed) ? tn_fail(TN_ERR_MEMORY, "NonMaxSuppression: out of memory") : TN_OK;
}

/* [results, 3]: batch, class, box. */
static tn_status put_kept(onnx_call *c, const suppression *s) {
    int64_t shape[2] = {0, 3};
    for (int64_t i = 0; i < s->batches * s->classes; i++)
        shape[0] += s->counts[i];
    AUTO_FREE int64_t *out = tn_mem_alloc((size_t)tn_max64(shape[0], 1) * 3 * sizeof *out);
    int64_t *at = out;
    if (!out) return TN_ERR_MEMORY;
    for (int64_t i = 0; i < s->batches * s->classes; i++)
        for (int64_t k = 0; k < s->counts[i]; k++) {
            *at++ = i / s->classes;
            *at++ = i % s->classes;
            *at++ = s->kept[i][k];
        }
    return onnx_put(c, 0, tn_from_data(out, shape, 2, TN_I64));
}

tn_status onnx_non_max_suppression(onnx_call *c) {
    suppression s = {0};
    tn_status status = read_suppression(c, &s);
    if (status == TN_OK) status = suppress_all(&s);
    if (status == TN_OK) status = put_kept(c, &s);
    for (int64_t i = 0; s.kept && i < s.batches * s.classes; i++)
        tn_mem_free(s.kept[i]);
    void *all[] = {s.kept, s.counts, s.shape, s.box, s.score};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_mem_free(all[i]);
    return status;
}
