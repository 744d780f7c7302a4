/* host_read.c — values back to the host or to another device, and the counters that people look at. */
#include <math.h>
#include <string.h>

#include "kir/kir_math.h"
#include "plan/plan.h"
#include "trunnion/ops.h"

static tn_status evaluate_for_read(tn_recorder *r, tn_node **nodes, int count) {
    for (int i = 0; i < count; i++)
        if (nodes[i]->flags & TN_NODE_ERROR) return tn_fail(nodes[i]->status, "%s", nodes[i]->error);
    return tn_flush(r, nodes, count);
}

tn_status tn_eval(tn_tensor *const *tensors, int count) {
    if (count > 0) TRY(tn_need(tensors, "tn_eval: tensors"));
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    TRY(tn_refusal_report());
    for (int i = 0; i < count; i++)
        if (tensors[i] && !tn_tensor_is_live(tensors[i])) return tn_need_tensor(tensors[i], "tn_eval: a tensor");
    if (r->capturing && count <= 0) return TN_OK; /* a step of training asks for it: it is part of what is captured */
    AUTO_FREE tn_node **nodes = tn_mem_alloc((size_t)(count > 0 ? count : 0) * sizeof *nodes);
    if (!nodes) return TN_ERR_MEMORY;
    for (int i = 0; i < count; i++)
        nodes[i] = tn_tensor_node(tensors[i]);
    return evaluate_for_read(r, nodes, count);
}

static tn_status computed_node(const tn_tensor *t, tn_node **out) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    TRY(tn_refusal_report());
    *out = tn_tensor_node(t);
    if (!tn_node_computed(*out) || ((*out)->flags & TN_NODE_ERROR)) TRY(evaluate_for_read(r, out, 1));
    const tn_node *root = (*out)->flags & TN_NODE_VIEW ? (*out)->root : *out;
    if (root->flags & TN_NODE_ERROR) return tn_fail(root->status, "%s", root->error);
    if (root->flags & TN_NODE_STALE)
        return tn_fail(TN_ERR_STATE, "this value was overwritten in place; copy it before the write");
    if (root->buffer) return TN_OK;
    return tn_fail(TN_ERR_STATE, "this tensor was recorded by another thread, which must evaluate it first (tn_eval)");
}

/* Elements of a strided view, in order, out of its root's bytes; block by block where neighbours share one. */
static void gather_read(const tn_node *n, const char *root, char *out) {
    size_t size = tn_dtype_size((tn_dtype)n->dtype);
    int64_t block = tn_dtype_block((tn_dtype)n->dtype);
    int64_t at[TN_MAX_RANK] = {0}, place = n->layout[0];
    for (int64_t i = tn_node_numel(n) / block; i-- > 0; out += size) {
        memcpy(out, root + place / block * (int64_t)size, size);
        for (int d = n->rank - 1; d >= 0; d--) {
            int64_t step = d == n->rank - 1 ? block : 1;
            place += n->layout[1 + d] * step;
            if ((at[d] += step) < n->shape[d]) break;
            place -= n->layout[1 + d] * n->shape[d];
            at[d] = 0;
        }
    }
}

static tn_status copy_elements(const tn_node *n, void *out) {
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    if (!(n->flags & TN_NODE_VIEW) || tn_node_contiguous(n))
        return tn_buffer_read(root->buffer, 0, out, tn_node_bytes(n));
    if (n->device->caps.host_visible) {
        TRY(tn_buffer_await(root->buffer, false));
        if (!n->device->is_cpu) TRY(tn_device_synchronize(n->device));
        gather_read(n, root->buffer->address, out);
        return TN_OK;
    }
    AUTO_FREE char *bytes = tn_mem_alloc(tn_node_bytes(root));
    if (!bytes) return TN_ERR_MEMORY;
    TRY(tn_buffer_read(root->buffer, 0, bytes, tn_node_bytes(root)));
    gather_read(n, bytes, out);
    return TN_OK;
}

/* The host has waited for the device, so what was counted there is reported. */
static tn_status read_node(const tn_node *n, void *out) {
    if (tn_node_numel(n) == 0) return TN_OK;
    TRY(copy_elements(n, out));
    return tn_error_counters_report(n->device);
}

static tn_status computed_of_size(const char *function, const tn_tensor *t, const void *out, size_t bytes,
                                  tn_node **n) {
    TRY(tn_need_tensor(t, function));
    if (bytes) TRY(tn_need(out, function));
    TRY(computed_node(t, n));
    if (bytes == tn_node_bytes(*n)) return TN_OK;
    char shape[96];
    return tn_fail(TN_ERR_ARGUMENT, "%s: the memory has %zu bytes, but the tensor %s of %s has %zu", function, bytes,
                   tn_shape_text(*n, shape, sizeof shape), tn_dtype_name((tn_dtype)(*n)->dtype), tn_node_bytes(*n));
}

tn_status tn_read(const tn_tensor *t, void *out, size_t bytes) {
    tn_node *n = NULL;
    TRY(computed_of_size("tn_read", t, out, bytes, &n));
    return read_node(n, out);
}

tn_status tn_read_to_device(const tn_tensor *t, void *address, size_t bytes) {
    tn_node *n = NULL;
    TRY(computed_of_size("tn_read_to_device", t, address, bytes, &n));
    if (!bytes) return TN_OK;
    if (n->flags & TN_NODE_VIEW && !tn_node_contiguous(n))
        return tn_fail(TN_ERR_ARGUMENT, "tn_read_to_device: the tensor is a view with gaps; use tn_contiguous first");
    if (!tn_device_owns(n->device, address, bytes))
        return tn_fail(TN_ERR_ARGUMENT, "tn_read_to_device: %zu bytes at %p are not in memory of tn_device_alloc of %s",
                       bytes, address, n->device->info.id);
    const tn_buffer *b = (n->flags & TN_NODE_VIEW ? n->root : n)->buffer;
    TRY(tn_buffer_await((tn_buffer *)(uintptr_t)b, false));
    TRY(tn_device_copy(n->device, address, n->device, b->address, bytes));
    return tn_error_counters_report(n->device);
}

tn_status tn_read_as(const tn_tensor *t, void *out, int64_t count, tn_dtype dtype) {
    tn_node *n = NULL;
    char shape[96];
    TRY(tn_need_tensor(t, "tn_read_as: the tensor"));
    if (count) TRY(tn_need(out, "tn_read_as: out"));
    TRY(computed_node(t, &n));
    if (n->dtype != dtype)
        return tn_fail(TN_ERR_DTYPE, "tn_read_as: the tensor %s has dtype %s, not %s; convert it with tn_cast first",
                       tn_shape_text(n, shape, sizeof shape), tn_dtype_name((tn_dtype)n->dtype), tn_dtype_name(dtype));
    if (tn_node_numel(n) != count)
        return tn_fail(TN_ERR_SHAPE, "tn_read_as: the buffer has room for %lld elements, but the tensor %s has %lld",
                       (long long)count, tn_shape_text(n, shape, sizeof shape), (long long)tn_node_numel(n));
    return read_node(n, out);
}

tn_status tn_peek(const tn_tensor *t, const void **out) {
    tn_node *n = NULL;
    TRY(tn_need(out, "tn_peek: out"));
    *out = NULL;
    TRY(tn_need_tensor(t, "tn_peek: the tensor"));
    TRY(computed_node(t, &n));
    const tn_buffer *b = (n->flags & TN_NODE_VIEW ? n->root : n)->buffer;
    if (!n->device->is_cpu || ((n->flags & TN_NODE_VIEW) && !tn_node_contiguous(n))) return TN_OK;
    TRY(tn_buffer_await((tn_buffer *)(uintptr_t)b, false));
    *out = b->address;
    return TN_OK;
}

static double as_double(tn_dtype t, const void *p) {
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
        uint32_t u32;
        uint64_t u64;
        uint16_t u16;
        int16_t i16;
        uint8_t u8;
        int8_t i8;
    } v;
    memcpy(&v, p, tn_dtype_size(t));
    switch (t) {
    case TN_F32: return (double)v.f32;
    case TN_F64: return v.f64;
    case TN_I32: return v.i32;
    case TN_I64: return (double)v.i64;
    case TN_U32: return v.u32;
    case TN_U64: return (double)v.u64;
    case TN_F16: return (double)kir_from_f16(v.u16);
    case TN_BF16: return (double)kir_from_bf16(v.u16);
    case TN_I16: return v.i16;
    case TN_U16: return v.u16;
    case TN_I8: return v.i8;
    default: return v.u8;
    }
}

/* what: "tn_item: the tensor". */
static tn_status read_item(const char *what, const tn_tensor *t, double *out) {
    tn_node *n = NULL;
    char shape[96], bytes[8];
    TRY(tn_need_tensor(t, what));
    TRY(computed_node(t, &n));
    if (tn_node_numel(n) != 1)
        return tn_fail(TN_ERR_SHAPE, "%s has %s elements; exactly one is required", what,
                       tn_shape_text(n, shape, sizeof shape));
    TRY(read_node(n, bytes));
    *out = as_double((tn_dtype)n->dtype, bytes);
    return TN_OK;
}

tn_status tn_read_item(const tn_tensor *t, double *out) {
    TRY(tn_need(out, "tn_read_item: out"));
    return read_item("tn_read_item: the tensor", t, out);
}

double tn_item(const tn_tensor *t) {
    double value = NAN;
    if (read_item("tn_item: the tensor", t, &value) == TN_OK && isnan(value)) tn_error_clear();
    return value;
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

tn_status tn_get_runtime_stats(tn_runtime_stats *stats) {
    TRY(tn_result_check(stats, "tn_get_runtime_stats: stats"));
    tn_recorder *r = tn_recorder_here();
    tn_plan_cache *c = r ? tn_plans_of(r) : NULL;
    if (!c) return TN_ERR_MEMORY;
    tn_memory_stats memory = tn_memory_get_stats();
    tn_runtime_stats full = {.struct_size = sizeof full,
                             .plans_made = c->made,
                             .plan_hits = c->hits,
                             .plan_misses = c->misses,
                             .nodes_recorded = r->nodes_recorded,
                             .launches = c->launches,
                             .live_bytes = memory.live_bytes,
                             .peak_bytes = memory.peak_bytes,
                             .plan_seconds = c->plan_seconds,
                             .run_seconds = c->run_seconds};
    return tn_result_write(stats, &full, sizeof full, "tn_get_runtime_stats: stats");
}

void tn_reset_runtime_stats(void) {
    tn_recorder *r = tn_recorder_here();
    tn_plan_cache *c = r ? tn_plans_of(r) : NULL;
    tn_memory_reset_peak();
    if (!c) return;
    c->made = c->hits = c->misses = c->resized = c->launches = 0;
    c->plan_seconds = c->run_seconds = 0;
    r->nodes_recorded = 0;
}

/* ==== to another device =========================================================================================== */

static tn_tensor *refuse_move(tn_status s) { return tn_tensor_error(s); }

tn_status tn_whole_value(const tn_tensor *t, tn_tensor **whole, const tn_node **node) {
    tn_tensor *c = tn_contiguous(t);
    tn_status s = tn_eval(&c, 1);
    const tn_node *n = tn_tensor_node(c);
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    if (s == TN_OK && (n->flags & TN_NODE_ERROR)) s = tn_fail(n->status, "%s", n->error);
    if (s == TN_OK && !root->buffer)
        s = tn_fail(TN_ERR_STATE, "this tensor was recorded by another thread, which must evaluate it (tn_eval) first");
    if (s != TN_OK) {
        tn_free(c);
        return s;
    }
    *whole = c;
    *node = n;
    return TN_OK;
}

static tn_status copy_there(const tn_node *n, tn_device *device, tn_node **out) {
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    tn_buffer *b = NULL;
    TRY(tn_buffer_new_for_host(device, tn_node_bytes(n), &b));
    tn_status s = tn_buffer_move(b, root->buffer, tn_node_bytes(n));
    if (s == TN_OK) *out = tn_node_data(b, n->shape, n->rank, (tn_dtype)n->dtype);
    tn_buffer_release(b);
    return s;
}

tn_tensor *tn_to_device(const tn_tensor *t, tn_device *device) {
    tn_status given = tn_need_tensor(t, "tn_to_device: the tensor");
    if (given != TN_OK) return refuse_move(given);
    if (!device) return refuse_move(tn_need(device, "tn_to_device: the device"));
    const tn_node *n = tn_tensor_node(t);
    if (n->flags & TN_NODE_ERROR || n->device == device) return tn_expand(t, n->shape, n->rank);
    const tn_recorder *r = tn_recorder_here();
    if (!r) return refuse_move(TN_ERR_MEMORY);
    if (r->capturing)
        return refuse_move(tn_fail(
            TN_ERR_STATE, "tn_to_device: a capture runs on one device; move the tensor before the capture begins"));
    if (n->flags & TN_NODE_GRAD && !r->no_grad)
        return refuse_move(tn_fail(TN_ERR_UNSUPPORTED,
                                   "tn_to_device: gradients do not flow between devices: move a tensor that does "
                                   "not require gradients, or move it inside TN_NO_GRAD"));
    tn_tensor *whole = NULL;
    tn_node *moved = NULL;
    tn_status s = tn_whole_value(t, &whole, &n);
    if (s != TN_OK) return refuse_move(s);
    s = copy_there(n, device, &moved);
    if (s == TN_OK && (s = tn_error_counters_report(n->device)) != TN_OK) tn_node_release(moved);
    tn_free(whole);
    return s == TN_OK ? tn_tensor_new(moved) : refuse_move(s);
}
