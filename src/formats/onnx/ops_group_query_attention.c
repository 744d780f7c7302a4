/* ops_group_query_attention.c — GroupQueryAttention: the newest positions of sequences whose keys and values of before
 * come along.
 *
 * One sequence has its past in front of what is new, so places are numbers on the host. Several sequences may have
 * pasts of different lengths in one table (seqlens_k): there, places are tensors, and what is new is put behind each
 * one's own past. A given cache may be longer than what is in it (a buffer that is shared between steps): what comes
 * out is as long. Source: ONNX Runtime's ContribOperators. */
#include <math.h>

#include "formats/onnx/nn.h"

typedef struct grouped {
    const tn_tensor *parts[3]; /* queries, keys, values: [batch, heads, now, features] */
    int64_t heads, few, now, total;
    int64_t past;      /* of the given cache, how many positions count for the longest sequence */
    tn_tensor *before; /* [batch, 1]: how many do for each; NULL: all have `past` */
} grouped;

/* Numbers first … first + count − 1. */
static tn_tensor *grouped_counted(int64_t first, int64_t count) {
    return tn_arange((double)first, (double)(first + count), 1, TN_I32);
}

/* Three inputs, or one that holds all. */
static tn_status take_parts(onnx_call *c, grouped *g) {
    const tn_tensor *x;
    tn_tensor *made[3];
    TRY(onnx_need(c, 0, &x));
    if (tn_rank(x) != 3 || g->heads < 1 || g->few < 1 || g->heads > tn_size(x, -1) || g->few > g->heads ||
        g->heads % g->few)
        return tn_fail(TN_ERR_SHAPE,
                       "GroupQueryAttention: no heads that fit: %lld of queries, %lld of keys, an input of rank %d",
                       (long long)g->heads, (long long)g->few, tn_rank(x));
    g->now = tn_size(x, 1);
    g->parts[0] = x;
    if (onnx_has(c, 1)) {
        TRY(onnx_need(c, 1, &g->parts[1]));
        TRY(onnx_need(c, 2, &g->parts[2]));
    } else {
        int64_t each = tn_size(x, -1) / (g->heads + 2 * g->few);
        if (tn_split(x, (int64_t[]){g->heads * each, g->few * each, g->few * each}, 3, -1, made) != 3)
            return tn_status_of(made[0]);
        for (int i = 0; i < 3; i++)
            g->parts[i] = made[i];
    }
    for (int i = 0; i < 3; i++)
        TRY(tn_status_of(g->parts[i] = onnx_split_heads(g->parts[i], i ? g->few : g->heads)));
    return TN_OK;
}

static tn_status take_lengths(onnx_call *c, grouped *g) {
    int64_t batch = tn_size(g->parts[0], 0), given = onnx_has(c, 3) ? tn_size(onnx_in(c, 3), 2) : 0;
    TRY(onnx_read_int(c, 6, g->now, &g->total));
    g->past = g->total - g->now;
    if (g->past < 0 || g->past > given)
        return tn_fail(TN_ERR_SHAPE,
                       "GroupQueryAttention: %lld positions in all, of which %lld are new and %lld can be in the cache",
                       (long long)g->total, (long long)g->now, (long long)given);
    if (batch == 1 || g->past == 0 || !onnx_has(c, 5)) return TN_OK;
    tn_tensor *lengths = tn_reshape(tn_cast(onnx_in(c, 5), TN_I32), (int64_t[]){batch, 1}, 2);
    g->before = tn_add(lengths, tn_scalar_int(1 - g->now));
    return tn_status_of(g->before);
}

/* A row of the table for each new position. */
static tn_tensor *angles(const onnx_call *c, const grouped *g, const tn_tensor *table) {
    if (onnx_has(c, 9)) return tn_embedding(onnx_in(c, 9), table);
    if (!g->before) return onnx_rows_from(table, g->past, g->now);
    return tn_embedding(tn_add(g->before, grouped_counted(0, g->now)), table);
}

static tn_status turn_grouped(onnx_call *c, grouped *g) {
    const tn_tensor *cos, *sin;
    if (!onnx_int(c, "do_rotary", 0)) return TN_OK;
    TRY(onnx_need(c, 7, &cos));
    TRY(onnx_need(c, 8, &sin));
    for (int i = 0; i < 2; i++)
        g->parts[i] =
            onnx_turned(g->parts[i], angles(c, g, cos), angles(c, g, sin), onnx_int(c, "rotary_interleaved", 0) != 0);
    return TN_OK;
}

/* Keys or values [batch, heads, total, features] behind those of before. */
static const tn_tensor *continued(const grouped *g, const tn_tensor *given, const tn_tensor *x) {
    if (!g->past) return x;
    tn_tensor *both[] = {tn_slice(given, 2, 0, g->past, 1), tn_detach(x)};
    tn_tensor *all = tn_cat(both, 2, 2);
    if (!g->before) return all;
    tn_tensor *ahead = tn_sub(grouped_counted(0, g->total), g->before); /* [batch, total]; below 0: of before */
    tn_tensor *fresh =
        tn_minimum(tn_add(ahead, tn_scalar_int(g->past)), tn_full(NULL, 0, (double)(g->total - 1), TN_I32));
    tn_tensor *place = tn_where(tn_lt_scalar(ahead, 0), grouped_counted(0, g->total), fresh);
    int64_t shape[] = {tn_size(x, 0), 1, g->total, 1};
    tn_tensor *moved = tn_take_along_dim(all, 2, tn_cast(tn_reshape(place, shape, 4), TN_I64));
    tn_tensor *there = tn_reshape(tn_lt_scalar(ahead, (double)g->now), shape, 4); /* 0 behind a shorter one's end */
    return tn_where(there, moved, onnx_number(0, moved));
}

static tn_status put_present(onnx_call *c, int k, int64_t room, const tn_tensor *x) {
    if (!onnx_wants(c, k)) return TN_OK;
    int64_t pads[] = {0, 0, 0, tn_max64(room - tn_size(x, 2), 0)};
    return onnx_put(c, k, pads[3] ? tn_pad(x, pads, 4, 0) : tn_contiguous(x));
}

/* Bool: keys up to the query's own place, and of these the last `window` ones if that is above 0. */
static tn_tensor *seen_from(const grouped *g, int64_t window) {
    tn_tensor *own = tn_reshape(grouped_counted(g->before ? 0 : g->past, g->now), (int64_t[]){g->now, 1}, 2);
    if (g->before) own = tn_add(own, tn_reshape(g->before, (int64_t[]){-1, 1, 1, 1}, 4));
    tn_tensor *key = grouped_counted(0, g->total), *seen = tn_le(key, own);
    return window > 0 ? tn_logical_and(seen, tn_gt(key, tn_sub(own, tn_scalar_int(window)))) : seen;
}

static tn_status refuse_others(const onnx_call *c) {
    static const char *const names[] = {"scales of a quantised cache", "scales of a quantised cache",
                                        "norms of queries and keys", "norms of queries and keys", "lengths of queries"};
    for (int i = 12; i < 17; i++)
        if (onnx_has(c, i)) return onnx_refuse(c, "%s", names[i - 12]);
    return onnx_wants(c, 3) ? onnx_refuse(c, "the scores as an output") : TN_OK;
}

tn_status onnx_grouped_attention(onnx_call *c) {
    grouped g = {.heads = onnx_int(c, "num_heads", 0), .few = onnx_int(c, "kv_num_heads", 0)};
    onnx_heads h = {.scale = onnx_float(c, "scale", 0)};
    tn_tensor *y;
    TRY(refuse_others(c));
    TRY(take_parts(c, &g));
    TRY(take_lengths(c, &g));
    TRY(turn_grouped(c, &g));
    for (int i = 1; i < 3; i++) {
        const tn_tensor *given = onnx_has(c, 2 + i) ? onnx_in(c, 2 + i) : NULL;
        g.parts[i] = continued(&g, given, g.parts[i]);
        TRY(put_present(c, i, given ? tn_size(given, 2) : 0, g.parts[i]));
    }
    h.q = g.parts[0], h.k = g.parts[1], h.v = g.parts[2];
    if (h.scale == 0) h.scale = 1 / sqrt((double)tn_size(h.q, 3));
    h.bias = onnx_has(c, 10) ? onnx_in(c, 10) : NULL;
    if (onnx_has(c, 11)) h.sink = onnx_in(c, 11);
    if (!h.sink && onnx_int(c, "smooth_softmax", 0)) h.sink = tn_zeros(&g.heads, 1, TN_F32);
    int64_t window = onnx_int(c, "local_window_size", -1);
    bool plain = onnx_attends_plainly(c, &h) && !g.past && window < 1 && !h.bias;
    bool alone = g.now == 1 && !g.before && window < 1; /* a single query sees all */
    if (!plain && !alone) h.seen = seen_from(&g, window);
    TRY(onnx_attend(c, &h, plain && !alone, &y));
    return onnx_put(c, 0, onnx_joined_heads(y));
}
