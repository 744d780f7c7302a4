/* to_device.c — a tensor's value on another device. */
#include "core/core.h"
#include "trunnion/ops.h"

static tn_tensor *refuse_move(tn_status s) { return tn_tensor_error(s); }

/* A tensor with the same value whose elements lie in order from the start of its memory, and which has been computed.
 * */
static tn_status whole_value(const tn_tensor *t, tn_tensor **whole, const tn_node **node) {
    tn_tensor *c = tn_contiguous(t);
    tn_status s = tn_eval(&c, 1);
    const tn_node *n = tn_tensor_node(c);
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    if (s == TN_OK && (n->flags & TN_NODE_ERROR)) s = tn_fail(n->status, "%s", n->error);
    if (s == TN_OK && !root->buffer)
        s = tn_fail(TN_ERR_STATE,
                    "tn_to_device: another thread recorded this tensor and must evaluate it (tn_eval) first");
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
        return refuse_move(
            tn_fail(TN_ERR_STATE, "tn_to_device: a capture is of one device; move the tensor before it begins"));
    if (n->flags & TN_NODE_GRAD && !r->no_grad)
        return refuse_move(
            tn_fail(TN_ERR_UNSUPPORTED,
                    "tn_to_device: gradients do not go from device to device: move the data that a model begins "
                    "with, or move inside TN_NO_GRAD"));
    tn_tensor *whole = NULL;
    tn_node *moved = NULL;
    tn_status s = whole_value(t, &whole, &n);
    if (s != TN_OK) return refuse_move(s);
    s = copy_there(n, device, &moved);
    tn_free(whole);
    return s == TN_OK ? tn_tensor_new(moved) : refuse_move(s);
}
