/* states.c — states of one shape that lie side by side in one block of memory, which goes with the last of them.
 *
 * They are borrowed parts of it: to all else each is a state as any other. */
#include <string.h>

#include "core/core.h"
#include "trunnion/ops.h"

typedef struct state_block {
    tn_buffer *memory;
    _Atomic int64_t users; /* states, and who makes them */
} state_block;

static void block_let_go(void *ctx) {
    state_block *b = ctx;
    if (atomic_fetch_sub(&b->users, 1) > 1) return;
    tn_buffer_release(b->memory);
    tn_mem_free(b);
}

static tn_status block_new(tn_device *d, size_t bytes, state_block **out) {
    state_block *b = *out = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    b->users = 1;
    TRY(tn_buffer_new_for_host(d, bytes, &b->memory));
    TRY(tn_buffer_await(b->memory, true));
    if (bytes) memset(b->memory->address, 0, bytes);
    return TN_OK;
}

/* A state like `zero` whose value is what lies there; NULL when memory is out. */
static tn_tensor *state_at(state_block *b, int64_t at, const tn_node *zero) {
    tn_buffer *home;
    char *address = (char *)b->memory->address + at;
    b->users++;
    if (tn_buffer_borrow(zero->device, address, tn_node_bytes(zero), block_let_go, b, &home) != TN_OK) {
        block_let_go(b);
        return NULL;
    }
    tn_tensor *t = tn_tensor_new(tn_node_data(home, zero->shape, zero->rank, (tn_dtype)zero->dtype));
    tn_storage *s = tn_status_of(t) == TN_OK ? tn_tensor_storage(t) : NULL;
    if (s) {
        s->home = tn_buffer_retain(home);
        s->resident = tn_node_retain(tn_tensor_node(t));
        s->state = true;
    }
    tn_buffer_release(home);
    if (s) return t;
    tn_free(t);
    return NULL;
}

static tn_status make_side_by_side(const tn_node *zero, tn_tensor **out, int count) {
    enum { LINE = 64 };
    int64_t step = ((int64_t)tn_node_bytes(zero) + LINE - 1) / LINE * LINE, all;
    if (tn_mul_overflow(step, count, &all)) return tn_fail(TN_ERR_SHAPE, "tn_zero_states: more than 2^63 bytes");
    state_block *b = NULL;
    tn_status status = block_new(zero->device, (size_t)all, &b);
    for (int i = 0; i < count && status == TN_OK; i++) {
        out[i] = state_at(b, i * step, zero);
        if (!out[i]) status = TN_ERR_MEMORY;
    }
    if (b) block_let_go(b);
    return status;
}

static tn_status make_one_by_one(const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out, int count) {
    tn_status status = TN_OK;
    for (int i = 0; i < count && status == TN_OK; i++) {
        out[i] = tn_zeros(shape, rank, dtype);
        status = tn_make_state(out[i]);
    }
    return status;
}

tn_status tn_zero_states(const int64_t *shape, int rank, tn_dtype dtype, tn_tensor **out, int count) {
    if (count < 0) return tn_fail(TN_ERR_ARGUMENT, "tn_zero_states: %d states", count);
    if (count > 0) TRY(tn_need(out, "tn_zero_states: out"));
    for (int i = 0; i < count; i++)
        out[i] = NULL;
    tn_tensor *zero = tn_zeros(shape, rank, dtype);
    tn_status status = tn_status_of(zero);
    bool here = status == TN_OK && tn_device_of(zero)->is_cpu;
    if (here) status = make_side_by_side(tn_tensor_node(zero), out, count);
    tn_free(zero); /* else it would be computed with the first of them */
    if (!here && status == TN_OK) status = make_one_by_one(shape, rank, dtype, out, count);
    for (int i = 0; i < count && status != TN_OK; i++) {
        tn_free(out[i]);
        out[i] = NULL;
    }
    return status;
}
