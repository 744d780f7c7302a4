/* plan_key.c — the key of a recording: the needed nodes as words; expansion of composed ops; a table from pointers to
 * small numbers.
 *
 * The key lists each needed node: op, dtype, extents, attributes, inputs by number, leaves by slot and layout.
 * Recordings with equal keys share a plan. Keys are compared word by word (same_key in flush.c), so a hit is never
 * wrong. Values of runtime scalars and varying numbers (values.c) are left out; a symbolic extent is its symbol. */
#include <string.h>

#include "cpu/blas.h"
#include "hal/hal.h"
#include "plan/passes.h"
#include "plan/plan.h"

static void map_clear(tn_pointer_map *m); /* keeps its memory */

enum { NEEDED = TN_MARK_NEEDED, OUTPUT = 2 };
enum { INPUT_NONE = 0, INPUT_NODE = 1, INPUT_LEAF = TN_KEY_LEAF };

/* ---- what is needed ---------------------------------------------------------------------------------------------- */

static const tn_node *root_of(const tn_node *n) { return n->flags & TN_NODE_VIEW ? n->root : n; }

static void mark_output(tn_binding *b, const tn_node *n) {
    n = root_of(n);
    if (n->recorder == b->recorder) b->scratch.marks[n->index] |= OUTPUT;
}

/* Whoever asks for them: a handle, or a view made later. */
static void mark_outputs(tn_binding *b, const tn_node *const *targets, int count) {
    const tn_recorder *r = b->recorder;
    memset(b->scratch.marks, 0, r->count);
    for (int i = 0; i < b->request.only_count; i++)
        mark_output(b, b->request.only[i]);
    if (b->request.only_count) return;
    for (size_t i = 0; i < r->count; i++) {
        const tn_node *n = r->pending[i];
        if (n && atomic_load_explicit(&n->handles, memory_order_relaxed) > 0) mark_output(b, n);
    }
    for (int i = 0; i < count; i++)
        mark_output(b, targets[i]);
    for (size_t i = 0; i < b->postponed_count; i++)
        b->scratch.marks[b->postponed[i].node->index] &= (uint8_t)~OUTPUT;
}

/* Outputs are listed in recording order, because the key says which nodes are outputs, not their order. Only those on
 * the first one's device: a recording on two devices is two plans. */
static tn_status list_outputs(tn_binding *b) {
    const tn_recorder *r = b->recorder;
    for (size_t i = 0; i < r->count; i++) {
        if (!(b->scratch.marks[i] & OUTPUT)) continue;
        if (!b->device) b->device = r->pending[i]->device;
        if (r->pending[i]->device != b->device) {
            b->scratch.marks[i] = 0;
            b->elsewhere = true;
            continue;
        }
        TRY(tn_mem_reserve(&b->outputs, &b->output_capacity, b->output_count + 1, sizeof *b->outputs));
        b->outputs[b->output_count++] = (tn_output){.node = r->pending[i], .home = -1};
    }
    return TN_OK;
}

/* Whether the value begins at another offset of its root's memory in each run. Then it is bound separately, from that
 * offset. Not for a view of a state that this evaluation writes, because the planner must see that both share
 * memory. */
static bool is_bound_apart(const tn_binding *b, const tn_node *n) {
    if (!b->request.varies || !(n->flags & TN_NODE_VIEW) || !n->root->buffer || !b->device->is_cpu) return false;
    if (tn_dtype_block((tn_dtype)n->dtype) != 1 || tn_node_numel(n) == 0) return false;
    for (int d = 0; d < n->rank; d++)
        if (n->layout[1 + d] < 0) return false;
    for (const tn_storage *s = b->recorder->written; s; s = s->next_written)
        if (s->home == n->root->buffer) return false;
    return true;
}

static inline bool bound_apart(const tn_binding *b, const tn_node *n) {
    return (n->flags & TN_NODE_VARIES) && is_bound_apart(b, n);
}

/* Marks a node. One after `at` in the list, where the sweep has already been, is also pushed on the stack. */
static inline tn_status need_key(tn_binding *b, const tn_node *n, int32_t at, size_t *top) {
    if (!n || n->recorder != b->recorder || (b->scratch.marks[n->index] & NEEDED) || bound_apart(b, n)) return TN_OK;
    b->scratch.marks[n->index] |= NEEDED;
    if (n->index < at) return TN_OK;
    TRY(tn_mem_reserve(&b->scratch.work, &b->scratch.work_capacity, *top + 1, sizeof *b->scratch.work));
    b->scratch.work[(*top)++] = n;
    return TN_OK;
}

/* A composed node that autograd expanded is computed through its expansion. */
static inline tn_status need_inputs(tn_binding *b, const tn_node *n, int32_t at, size_t *top) {
    if (n->expansion) return need_key(b, n->expansion, at, top);
    for (int k = 0; k < n->n_in; k++)
        TRY(need_key(b, n->in[k], at, top));
    return TN_OK;
}

/* Inputs are recorded before their users, so one backward sweep finds all needed nodes. Only expansions come later. */
static tn_status mark_needed(tn_binding *b) {
    const tn_recorder *r = b->recorder;
    size_t top = 0;
    for (size_t i = r->count; i-- > 0;) {
        if (!b->scratch.marks[i]) continue;
        b->scratch.marks[i] |= NEEDED;
        TRY(need_inputs(b, r->pending[i], (int32_t)i, &top));
        while (top > 0)
            TRY(need_inputs(b, b->scratch.work[--top], (int32_t)i, &top));
    }
    return TN_OK;
}

static void key_number(tn_binding *b) {
    int32_t next = 0;
    for (size_t i = 0; i < b->recorder->count; i++)
        if (b->scratch.marks[i] & NEEDED) b->scratch.numbers[i] = next++;
}

/* ---- writing the key --------------------------------------------------------------------------------------------- */

static tn_status room(tn_binding *b, size_t words) {
    return tn_mem_reserve(&b->key.words, &b->key.capacity, b->key.count + words, sizeof *b->key.words);
}

/* The words of a node are written through a local cursor, which stays in a register; room was reserved for all of
 * them. */
static inline void put_key(uint64_t **at, uint64_t word) { *(*at)++ = word; }

static inline bool has_symbols(const tn_node *n) {
    for (int d = 0; d < n->rank; d++)
        if (n->symbol[d]) return true;
    return false;
}

static tn_status put_size(tn_binding *b, int64_t size) {
    TRY(tn_mem_reserve(&b->key.sizes, &b->key.size_capacity, b->key.size_count + 1, sizeof *b->key.sizes));
    b->key.sizes[b->key.size_count++] = size;
    return TN_OK;
}

static tn_status put_symbols(tn_binding *b, uint64_t **at, const tn_node *n) {
    for (int d = 0; d < n->rank; d++) {
        if (!n->symbol[d]) {
            put_key(at, (uint64_t)n->shape[d]);
            continue;
        }
        put_key(at, UINT64_MAX - n->symbol[d]);
        TRY(put_size(b, n->shape[d]));
    }
    return TN_OK;
}

/* Ranges of indices go with the sizes, because a symbolic extent may bound them. */
static tn_status put_check(tn_binding *b, const tn_node *n) {
    const tn_index_check *c = n->check;
    TRY(tn_mem_reserve(&b->key.checked, &b->key.checked_capacity, b->key.checked_count + 1, sizeof *b->key.checked));
    b->key.checked[b->key.checked_count++] = n;
    TRY(put_size(b, c->range.low));
    TRY(put_size(b, c->range.high));
    TRY(put_size(b, c->range.ignores ? c->range.ignored : INT64_MIN));
    return put_size(b, (int64_t)(intptr_t)c->name);
}

static inline tn_status put_extents(tn_binding *b, uint64_t **at, const tn_node *n) {
    if (has_symbols(n)) return put_symbols(b, at, n);
    for (int d = 0; d < n->rank; d++)
        put_key(at, (uint64_t)n->shape[d]);
    return TN_OK;
}

static tn_status slot_of(tn_binding *b, tn_buffer *buffer, int32_t *slot) {
    *slot = tn_map_find(&b->scratch.buffer_slots, buffer);
    if (*slot >= 0) return TN_OK;
    TRY(tn_mem_reserve(&b->buffers, &b->buffer_capacity, b->buffer_count + 1, sizeof *b->buffers));
    *slot = (int32_t)b->buffer_count;
    b->buffers[b->buffer_count++] = buffer;
    return tn_map_put(&b->scratch.buffer_slots, buffer, *slot);
}

/* The slot of a value that is bound separately. *left: elements from the bound address to its first one. The address is
 * a multiple of ALIGN bytes, so alignment stays part of the plan. */
static tn_status slot_apart(tn_binding *b, const tn_node *n, int32_t *slot, int64_t *left) {
    enum { ALIGN = 64 };
    int64_t element = (int64_t)tn_dtype_size((tn_dtype)n->dtype), bytes = n->layout[0] * element;
    *left = bytes % ALIGN / element;
    TRY(tn_mem_reserve(&b->buffers, &b->buffer_capacity, b->buffer_count + 1, sizeof *b->buffers));
    TRY(tn_mem_reserve(&b->shifts, &b->shift_capacity, b->shift_count + 1, sizeof *b->shifts));
    *slot = (int32_t)b->buffer_count;
    b->buffers[b->buffer_count++] = n->root->buffer;
    b->shifts[b->shift_count++] = (tn_shift){.slot = *slot, .bytes = bytes - bytes % ALIGN};
    return tn_map_put(&b->scratch.buffer_slots, n, *slot);
}

static tn_status check_leaf(const tn_node *n) {
    const tn_node *root = root_of(n);
    if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
    if (root->flags & TN_NODE_ERROR) return tn_fail(root->status, "%s", root->error);
    if (root->flags & TN_NODE_STALE)
        return tn_fail(TN_ERR_STATE, "a needed value was overwritten in place (for gradients: run backward before the "
                                     "optimizer's step, or copy the tensor first)");
    if (!root->buffer)
        return tn_fail(TN_ERR_STATE,
                       "this tensor was recorded by another thread, which must evaluate it first (tn_eval)");
    return TN_OK;
}

/* Words that an input takes at most. */
enum { INPUT_WORDS = 4 + 2 * TN_MAX_RANK };

static tn_status describe_leaf(tn_binding *b, uint64_t **at, const tn_node *n, int32_t id) {
    int32_t slot = -1;
    int64_t first = n->flags & TN_NODE_VIEW ? n->layout[0] : 0;
    TRY(check_leaf(n));
    bool apart = bound_apart(b, n);
    TRY(apart ? slot_apart(b, n, &slot, &first) : slot_of(b, root_of(n)->buffer, &slot));
    TRY(tn_map_put(&b->scratch.leaf_ids, n, id));
    put_key(at, (uint64_t)slot | (uint64_t)n->dtype << 32 | (uint64_t)n->rank << 40 |
                    (uint64_t)(n->flags & TN_NODE_VIEW) << 48 | (uint64_t)apart << 56 |
                    (uint64_t)(n->check != NULL) << 57);
    if (n->check) TRY(put_check(b, n));
    TRY(put_extents(b, at, n));
    if (!(n->flags & TN_NODE_VIEW)) return TN_OK;
    put_key(at, (uint64_t)first);
    for (int d = 0; d < n->rank; d++)
        put_key(at, (uint64_t)n->layout[1 + d]);
    return TN_OK;
}

/* A leaf is described where it is met first; later it is its number. */
static tn_status put_leaf(tn_binding *b, uint64_t **at, const tn_node *n) {
    int32_t id = tn_map_find(&b->scratch.leaf_ids, n), fresh = (int32_t)b->scratch.leaf_ids.count;
    b->scratch.last_leaf = n;
    b->scratch.last_leaf_id = id >= 0 ? id : fresh;
    put_key(at, (uint64_t)b->scratch.last_leaf_id << 2 | INPUT_LEAF);
    return id < 0 ? describe_leaf(b, at, n, fresh) : TN_OK;
}

static tn_status note_runtime_scalar(tn_binding *b, const tn_node *n) {
    TRY(tn_mem_reserve(&b->scalar_nodes, &b->scalar_capacity, b->scalar_count + 1, sizeof *b->scalar_nodes));
    b->scalar_nodes[b->scalar_count++] = n;
    return TN_OK;
}

static tn_status put_runtime_scalar(tn_binding *b, uint64_t **at, const tn_node *n) {
    put_key(at, (uint64_t)n->i[0]);
    return note_runtime_scalar(b, n);
}

static tn_status put_attributes(tn_binding *b, uint64_t **at, const tn_node *n) {
    uint32_t facts = tn_op_facts(n);
    if (facts & TN_FACT_LAUNCH_SCALAR) return put_runtime_scalar(b, at, n);
    /* Extents are already in the key, by symbol where they may vary. */
    for (int k = 0; k < n->n_i && !(facts & TN_FACT_EXTENTS); k++)
        put_key(at, (uint64_t)n->i[k]);
    if (tn_number_varies(b, n))
        return n->expansion ? TN_OK : note_runtime_scalar(b, n); /* a composed one's are its expansion's */
    for (int k = 0; k < n->n_f; k++) {
        uint64_t bits = 0;
        memcpy(&bits, &n->f[k], sizeof bits);
        put_key(at, bits);
    }
    return TN_OK;
}

static inline tn_status put_input(tn_binding *b, uint64_t **at, const tn_node *in) {
    if (!in)
        put_key(at, INPUT_NONE);
    else if (in->recorder == b->recorder && !bound_apart(b, in))
        put_key(at, (uint64_t)b->scratch.numbers[in->index] << 2 | INPUT_NODE);
    else if (in == b->scratch.last_leaf)
        put_key(at, (uint64_t)b->scratch.last_leaf_id << 2 | INPUT_LEAF);
    else
        return put_leaf(b, at, in);
    return TN_OK;
}

static inline tn_status put_node(tn_binding *b, const tn_node *n) {
    uint64_t mark = b->scratch.marks[n->index] & OUTPUT ? 1 : 0, expanded = n->expansion ? 1 : 0,
             varies = tn_number_varies(b, n), checked = n->check ? 1 : 0;
    TRY(room(b, 1 + TN_MAX_RANK + (size_t)n->n_i + n->n_f + (size_t)(n->n_in + 1) * INPUT_WORDS));
    uint64_t *at = b->key.words + b->key.count;
    put_key(&at, n->op | (uint64_t)n->dtype << 16 | (uint64_t)n->rank << 24 | (uint64_t)n->n_in << 32 | mark << 40 |
                     expanded << 41 | varies << 42 | checked << 43);
    if (n->check) TRY(put_check(b, n));
    TRY(put_extents(b, &at, n));
    if (n->n_i + n->n_f) TRY(put_attributes(b, &at, n));
    if (n->expansion) TRY(put_input(b, &at, n->expansion));
    for (int k = 0; k < n->n_in && !n->expansion; k++)
        TRY(put_input(b, &at, n->in[k]));
    b->key.count = (size_t)(at - b->key.words);
    return TN_OK;
}

static void put_word(tn_binding *b, uint64_t word) { b->key.words[b->key.count++] = word; }

/* States with a pending write: their homes are bound, because the new values go there. */
static tn_status put_homes(tn_binding *b) {
    if (b->request.only_count) return TN_OK;
    for (tn_storage *s = b->recorder->written; s; s = s->next_written) {
        int32_t slot = -1;
        if (s->value->recorder != b->recorder || s->value->device != b->device) continue;
        TRY(slot_of(b, s->home, &slot));
        TRY(room(b, 2));
        put_word(b, (uint64_t)b->scratch.numbers[s->value->index]);
        put_word(b, (uint64_t)slot);
        for (size_t i = 0; i < b->output_count; i++)
            if (b->outputs[i].node == s->value) b->outputs[i].home = slot;
    }
    return TN_OK;
}

static void reset(tn_binding *b, tn_recorder *r) {
    b->recorder = r;
    b->device = NULL;
    b->elsewhere = false;
    b->shift_count = 0;
    b->output_count = b->buffer_count = b->scalar_count = b->key.count = b->key.size_count = b->key.checked_count = 0;
    b->scratch.last_leaf = NULL;
    map_clear(&b->scratch.buffer_slots);
    map_clear(&b->scratch.leaf_ids);
}

static tn_status write_key_key(tn_binding *b) {
    const tn_recorder *r = b->recorder;
    TRY(room(b, 5));
    put_word(b, b->device->serial << 2 | (uint64_t)b->request.on_host << 1 | b->request.whole);
    b->numerics = tn_device_numerics(b->device);
    put_word(b, (uint64_t)tn_threads() | (uint64_t)b->numerics << 32);
    put_word(b, (uint64_t)(uintptr_t)tn_library_chosen() + tn_blas_is_open_choice());
    put_word(b, tn_vendors_chosen());
    put_word(b, tn_tune_generation());
    for (size_t i = 0; i < r->count; i++)
        if (b->scratch.marks[i] & NEEDED) TRY(put_node(b, r->pending[i]));
    return put_homes(b);
}

tn_status tn_binding_make(tn_binding *b, tn_recorder *r, const tn_node *const *targets, int count) {
    reset(b, r);
    TRY(tn_mem_reserve(&b->scratch.marks, &b->scratch.mark_capacity, r->count + 1, sizeof *b->scratch.marks));
    TRY(tn_mem_reserve(&b->scratch.numbers, &b->scratch.number_capacity, r->count + 1, sizeof *b->scratch.numbers));
    mark_outputs(b, targets, count);
    TRY(list_outputs(b));
    if (b->output_count == 0) return TN_OK;
    b->request.varies &= !b->device->is_engine; /* its graphs have numbers and offsets as constants */
    TRY(mark_needed(b));
    key_number(b);
    return write_key_key(b);
}

void tn_binding_free(tn_binding *b) {
    tn_mem_free_each(b->outputs, b->postponed, b->buffers, b->scalar_nodes, b->shifts, b->key.words, b->key.sizes,
                     b->key.checked, b->scratch.marks, b->scratch.numbers, b->scratch.work);
    tn_map_free(&b->scratch.buffer_slots);
    tn_map_free(&b->scratch.leaf_ids);
    *b = (tn_binding){0};
}

/* ==== compositions of ops ========================================================================================= */

enum { MOST_INPUTS = 64 }; /* that a node can have */

static bool reads_half(const tn_node *n) {
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && tn_dtype_is_half(n->in[i]->dtype)) return true;
    return false;
}

bool tn_is_widened(const tn_node *n) {
    const tn_op_row *row = tn_op(n->op);
    if (!tn_dtype_is_half(n->dtype) || row->impl->keeps_half) return false;
    tn_op_class c = row->impl->class_;
    bool computes = row->kind == TN_COMPOSED || c == TN_ELEMENTWISE || c == TN_REDUCTION || c == TN_SCANNING;
    return computes && reads_half(n);
}

static tn_node *widened(tn_build *b, const tn_node *n) {
    tn_node *in[MOST_INPUTS];
    tn_attrs a = {.n_i = n->n_i, .n_f = n->n_f};
    for (int i = 0; i < n->n_in; i++)
        in[i] = n->in[i] && tn_dtype_is_half(n->in[i]->dtype) ? tn_b_cast(b, n->in[i], TN_F32) : n->in[i];
    if (n->n_i) memcpy(a.i, n->i, n->n_i * sizeof *n->i);
    if (n->n_f) memcpy(a.f, n->f, n->n_f * sizeof *n->f);
    tn_node *wide = b->status == TN_OK ? tn_b_op(b, n->op, in, n->n_in, &a) : NULL;
    return wide ? tn_b_cast(b, wide, (tn_dtype)n->dtype) : NULL;
}

static bool is_conv_in_f32(const tn_node *n) {
    return tn_op_has(n, TN_FACT_CONV_FORWARD | TN_FACT_CONV_DGRAD | TN_FACT_CONV_WGRAD) && tn_conv_in_f32(n);
}

tn_node *tn_compose(tn_build *b, const tn_node *n) {
    return tn_is_widened(n) || is_conv_in_f32(n) ? widened(b, n) : tn_op(n->op)->impl->compose(b, n);
}

static tn_status check_composition_shape(const tn_node *n, const tn_node *root) {
    if (tn_same_shape(root, n) && root->dtype == n->dtype) return TN_OK;
    char is[96], want[96];
    return tn_fail(TN_ERR_INTERNAL, "%s: its composition gives %s %s, but its shape rule %s %s: a defect in the op",
                   tn_op(n->op)->name, tn_shape_text(root, is, sizeof is), tn_dtype_name((tn_dtype)root->dtype),
                   tn_shape_text(n, want, sizeof want), tn_dtype_name((tn_dtype)n->dtype));
}

static tn_status expand_with(tn_build *b, tn_node *n) {
    tn_node *root = tn_compose(b, n);
    TRY(b->status);
    if (!root)
        return tn_fail(TN_ERR_INTERNAL, "%s: its composition gives no value: a defect in the op", tn_op(n->op)->name);
    TRY(check_composition_shape(n, root));
    n->expansion = tn_node_retain(root);
    return TN_OK;
}

tn_status tn_expand_node(tn_node *n) {
    if (n->expansion) return TN_OK;
    tn_recorder *r = tn_recorder_here();
    if (!r) return TN_ERR_MEMORY;
    bool no_grad = r->no_grad;
    int32_t origin = r->origin;
    r->no_grad = !(n->flags & TN_NODE_GRAD);
    r->origin = n->origin;
    tn_build b = {0};
    tn_status s = expand_with(&b, n);
    tn_build_end(&b);
    r->no_grad = no_grad;
    r->origin = origin;
    return s;
}

/* ==== table from pointers to small numbers ======================================================================== */
/* Open addressing with linear probing, at most half full. The table is cleared at every flush; it starts small and
 * never shrinks, so a recording with few leaves clears few words. */

enum { FIRST_CAPACITY = 16 };

static size_t map_place(const tn_pointer_map *m, const void *key) {
    size_t h = (size_t)((uintptr_t)key >> 4) * (size_t)0x9E3779B97F4A7C15u;
    size_t i = (h >> 20) & (m->capacity - 1);
    while (m->keys[i] && m->keys[i] != key)
        i = (i + 1) & (m->capacity - 1);
    return i;
}

int32_t tn_map_find(const tn_pointer_map *m, const void *key) {
    if (m->count == 0) return -1;
    size_t i = map_place(m, key);
    return m->keys[i] ? m->values[i] : -1;
}

static tn_status map_grow(tn_pointer_map *m) {
    tn_pointer_map old = *m;
    size_t capacity = old.capacity ? 2 * old.capacity : FIRST_CAPACITY;
    const void **keys = tn_mem_zalloc(capacity, sizeof *keys);
    int32_t *values = tn_mem_alloc(capacity * sizeof *values);
    if (!keys || !values) {
        tn_mem_free_each(keys, values);
        return TN_ERR_MEMORY;
    }
    *m = (tn_pointer_map){.keys = keys, .values = values, .count = old.count, .capacity = capacity};
    for (size_t i = 0; i < old.capacity; i++) {
        if (!old.keys[i]) continue;
        size_t at = map_place(m, old.keys[i]);
        keys[at] = old.keys[i];
        values[at] = old.values[i];
    }
    tn_mem_free_each(old.keys, old.values);
    return TN_OK;
}

tn_status tn_map_put(tn_pointer_map *m, const void *key, int32_t value) {
    if (2 * (m->count + 1) > m->capacity) TRY(map_grow(m));
    size_t i = map_place(m, key);
    if (!m->keys[i]) m->count++;
    m->keys[i] = key;
    m->values[i] = value;
    return TN_OK;
}

static void map_clear(tn_pointer_map *m) {
    if (m->count) memset(m->keys, 0, m->capacity * sizeof *m->keys);
    m->count = 0;
}

void tn_map_free(tn_pointer_map *m) {
    tn_mem_free_each(m->keys, m->values);
    *m = (tn_pointer_map){0};
}
