/* anomaly.c — anomaly detection: the first operation whose result has a NaN, or an infinity, becomes an error.
 *
 * Operations are evaluated when they are recorded, so the first bad one is found without looking for it. An infinity is
 * reported if the inputs have none: masks are full of infinities. */
#include <stdio.h>

#include "plan/plan.h"
#include "trunnion/autograd.h"

/* Of a floating dtype: an element is infinite or NaN if all bits of `exponent` are set, NaN if others below are too. */
typedef struct format {
    uint64_t exponent, mantissa;
} format;

static const format formats[] = {
    [TN_F32] = {0x7f800000, 0x007fffff},
    [TN_F64] = {0x7ff0000000000000, 0x000fffffffffffff},
    [TN_F16] = {0x7c00, 0x03ff},
    [TN_BF16] = {0x7f80, 0x007f},
};

static uint64_t element_at(const void *data, int64_t i, size_t size) {
    if (size == 8) return ((const uint64_t *)data)[i];
    return size == 4 ? ((const uint32_t *)data)[i] : ((const uint16_t *)data)[i];
}

/* How many elements are not finite, and the first NaN and infinity; -1: none. */
typedef struct findings {
    int64_t nan, infinity, count;
} findings;

static tn_status find_in(tn_node *n, findings *f) {
    *f = (findings){-1, -1, 0};
    if (!tn_dtype_is_float((tn_dtype)n->dtype) || tn_node_numel(n) == 0) return TN_OK;
    size_t size = tn_dtype_size((tn_dtype)n->dtype);
    const format *of = &formats[n->dtype];
    AUTO_FREE void *data = tn_mem_alloc(tn_node_bytes(n));
    if (!data) return TN_ERR_MEMORY;
    AUTO_TENSOR tn_tensor *t = tn_tensor_unscoped(tn_tensor_new(tn_node_retain(n)));
    TRY(tn_read(t, data, tn_node_bytes(n)));
    for (int64_t i = 0; i < tn_node_numel(n); i++) {
        uint64_t bits = element_at(data, i, size);
        if ((bits & of->exponent) != of->exponent) continue;
        int64_t *first = bits & of->mantissa ? &f->nan : &f->infinity;
        if (*first < 0) *first = i;
        f->count++;
    }
    return TN_OK;
}

static size_t append(char *text, size_t size, size_t at, const tn_node *in, const findings *f) {
    char shape[96];
    int n = snprintf(text + at, size - at, "%s%s %s%s", at ? ", " : "", tn_shape_text(in, shape, sizeof shape),
                     tn_dtype_name((tn_dtype)in->dtype),
                     f->nan >= 0        ? " with NaN"
                     : f->infinity >= 0 ? " with infinities"
                                        : "");
    return n > 0 && (size_t)n < size - at ? at + (size_t)n : at;
}

static tn_status examine(tn_node *n, bool infinities) {
    findings own, of;
    char shape[96], inputs[256] = "";
    size_t at = 0;
    bool excused = false;
    if (n->flags & (TN_NODE_VIEW | TN_NODE_ERROR)) return TN_OK;
    TRY(find_in(n, &own));
    if (own.nan < 0 && (own.infinity < 0 || !infinities || n->n_in == 0)) return TN_OK;
    for (int i = 0; i < n->n_in; i++) {
        if (!n->in[i]) continue;
        TRY(find_in(n->in[i], &of));
        excused |= own.nan < 0 && of.count > 0;
        at = append(inputs, sizeof inputs, at, n->in[i], &of);
    }
    if (excused) return TN_OK;
    const char *kind = own.nan >= 0 ? "NaN" : "an infinity";
    return tn_fail(TN_ERR_STATE,
                   "%s: the result %s %s has %s at element %lld (%lld of %lld are not finite); inputs: %s",
                   tn_op(n->op)->name, tn_shape_text(n, shape, sizeof shape), tn_dtype_name((tn_dtype)n->dtype), kind,
                   (long long)(own.nan >= 0 ? own.nan : own.infinity), (long long)own.count,
                   (long long)tn_node_numel(n), at ? inputs : "none");
}

tn_status tn_find_anomaly(tn_node *const *nodes, size_t count) {
    tn_recorder *r = tn_recorder_here();
    tn_anomaly mode = tn_detect_anomaly();
    if (mode == TN_ANOMALY_OFF || !r || r->capturing || r->planning || count == 0) return TN_OK;
    TRY(tn_flush(r, nodes, (int)count));
    for (size_t i = 0; i < count; i++)
        TRY(examine(nodes[i], mode == TN_ANOMALY_INF));
    return TN_OK;
}

tn_status tn_set_detect_anomaly(tn_anomaly mode) {
    if ((unsigned)mode > TN_ANOMALY_INF)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_set_detect_anomaly: mode is %d; it must be one of TN_ANOMALY_OFF, TN_ANOMALY_NAN, "
                       "TN_ANOMALY_INF",
                       (int)mode);
    atomic_store(&tn_anomaly_mode, (int)mode);
    return TN_OK;
}

tn_anomaly tn_detect_anomaly(void) {
    int mode = atomic_load(&tn_anomaly_mode), before = -1;
    if (mode >= 0) return (tn_anomaly)mode;
    static const tn_anomaly modes[] = {TN_ANOMALY_NAN, TN_ANOMALY_INF};
    int word = tn_env_word("TRUNNION_DETECT_ANOMALY", (const char *const[]){"nan", "inf", NULL});
    mode = word < 0 ? TN_ANOMALY_OFF : (int)modes[word];
    return (tn_anomaly)(atomic_compare_exchange_strong(&tn_anomaly_mode, &before, mode) ? mode : before);
}
