/* node.c — nodes: making them from an op's row, their lifetime, and the recorder that keeps them in order.
 *
 * Recording is the hot path of every small model, so nodes come from a free list of the thread, all in one size, with
 * their attributes and view layout packed behind them. */
#include "tensor/graph.h"

#include <pthread.h>
#include <string.h>

/* ---- the thread's recorder and free list ------------------------------------------------------------------------- */

enum {
    NODE_TAIL = TN_MAX_ATTR_INTS + TN_MAX_ATTR_FLOATS + TN_MAX_RANK + 1, /* 8-byte words behind a node */
    FREE_LIST_MAX = 8192                                                 /* nodes kept for reuse: two full recordings */
};

typedef struct node_block {
    tn_node node;
    int64_t tail[NODE_TAIL];
} node_block;

/* References to a leaf that this thread has in hand: see "lifetime". */
typedef struct biased_count {
    tn_node *node;
    int32_t count;
} biased_count;

enum { BIASED_COUNTS = 32 };

typedef struct thread_state {
    tn_recorder recorder;
    biased_count biased_counts[BIASED_COUNTS];
    uint32_t biased_used; /* bit i: biased_counts[i] is in use */
    node_block *free;     /* chained through node.in */
    int free_count;
} thread_state;

static _Thread_local thread_state *here;
static pthread_key_t exit_key;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static void free_list_clear(thread_state *t) {
    while (t->free) {
        node_block *next = (node_block *)(void *)t->free->node.in;
        tn_mem_free(t->free);
        t->free = next;
    }
    t->free_count = 0;
}

static void merge_biased_counts(thread_state *t);

static void release_devices(tn_recorder *r) {
    while (r->retained_count > 0)
        tn_device_release(r->retained[--r->retained_count]);
}

void tn_recorder_drop(void) {
    thread_state *t = here;
    if (!t) return;
    tn_recorder *r = &t->recorder;
    for (size_t i = 0; i < r->count; i++) {
        tn_node *n = r->pending[i];
        r->pending[i] = NULL;
        if (!n) continue;
        n->recorder = NULL;
        n->index = -1;
        tn_node_release(n);
    }
    while (r->written) {
        tn_storage *s = r->written;
        r->written = s->next_written;
        s->next_written = NULL;
        s->in_written = false;
        tn_storage_release(s);
    }
    merge_biased_counts(t);
    tn_mem_free_each(r->pending, r->sites);
    if (r->plans_free) r->plans_free(r->plans);
    release_devices(r);
    free_list_clear(t);
    here = NULL;
    pthread_setspecific(exit_key, NULL);
    tn_mem_free(t);
}

static void at_thread_exit(void *state) {
    here = state;
    tn_recorder_drop();
    tn_handles_retire();
}

void tn_recorder_trim(void) {
    thread_state *t = here;
    if (!t) return;
    tn_recorder *r = &t->recorder;
    free_list_clear(t);
    tn_handles_drop();
    tn_mem_free(r->sites);
    r->sites = NULL;
    r->site_count = r->site_capacity = 0;
    r->watches = false;
    if (r->count > 0) return;
    tn_mem_free(r->pending);
    r->pending = NULL;
    r->capacity = 0;
}

static void make_exit_key(void) { pthread_key_create(&exit_key, at_thread_exit); }

static __attribute__((noinline)) thread_state *thread_begin(void) {
    pthread_once(&exit_once, make_exit_key);
    thread_state *t = tn_mem_zalloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_setspecific(exit_key, t);
    here = t;
    return t;
}

static inline thread_state *thread_here(void) { return here ? here : thread_begin(); }

tn_recorder *tn_recorder_here(void) {
    thread_state *t = thread_here();
    return t ? &t->recorder : NULL;
}

void(tn_at)(const char *file, int line) {
    thread_state *t = thread_here();
    if (!t) return;
    t->recorder.file = file;
    t->recorder.line = line;
}

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

static inline tn_node *node_new(void) {
    thread_state *t = thread_here();
    if (!t) return NULL;
    node_block *b = t->free;
    if (b) {
        t->free = (node_block *)(void *)b->node.in;
        t->free_count--;
    } else {
        b = tn_mem_alloc(sizeof *b);
        if (!b) return NULL;
    }
    /* Field by field: shape, symbols and inputs are written before they are read, and
     * clearing them would double the cost. */
    tn_node *n = &b->node;
    atomic_init(&n->refs, 1);
    atomic_init(&n->handles, 0);
    n->op = TN_OP_NONE;
    n->dtype = n->rank = n->flags = n->n_in = n->n_i = n->n_f = 0;
    n->index = -1;
    n->line = 0;
    n->file = NULL;
    n->in = n->in_small;
    n->device = NULL;
    n->buffer = NULL;
    n->recorder = NULL;
    n->expansion = n->root = NULL;
    n->slot = NULL;
    n->check = NULL;
    n->layout = NULL;
    n->i = b->tail;
    n->f = NULL;
    n->error = NULL;
    n->status = TN_OK;
    n->origin = 0;
    return n;
}

static void node_recycle(tn_node *n) {
    thread_state *t = here;
    node_block *b = (node_block *)(void *)n;
    if (!t || t->free_count >= FREE_LIST_MAX) {
        tn_mem_free(b);
        return;
    }
    n->in = (tn_node **)(void *)t->free;
    t->free = b;
    t->free_count++;
}

void tn_grad_slot_release(tn_grad_slot *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    tn_free(s->grad);
    while (s->hooks) {
        tn_slot_hook *next = s->hooks->next;
        tn_mem_free(s->hooks);
        s->hooks = next;
    }
    tn_mem_free(s);
}

/* A gradient that was never computed refers, through what it is computed from, to the leaf's own nodes and so to this
 * slot: were it not dropped here, that circle would stay. */
void tn_grad_slot_close(tn_grad_slot *s) {
    if (!s) return;
    s->closed = true;
    tn_tensor *grad = s->grad;
    s->grad = NULL;
    tn_free(grad);
    tn_grad_slot_release(s);
}

/* Nodes whose last reference went wait here, so that a long chain is freed by a loop. Chained through n->expansion. */
static _Thread_local tn_node *deferred_free;
static _Thread_local bool releasing;

static void defer_free(tn_node *n);

/* A leaf may be used by several threads, so its count takes locked instructions, and a recording counts the same few
 * leaves over and over. So references are borrowed many at a time, and what comes back is kept, until the next flush
 * has ended or no other reference is left: biased_counts[i].count of the node's references are this thread's to hand
 * out. */
enum { BIASED_BATCH = 64 };

static inline biased_count *biased_count_of(thread_state *t, const tn_node *n) {
    return &t->biased_counts[(uint64_t)((uintptr_t)n >> 6) * 0x9E3779B97F4A7C15u >> 59];
}

static __attribute__((noinline)) void merge_biased_count(biased_count *l) {
    tn_node *n = l->node;
    int32_t count = l->count;
    *l = (biased_count){NULL, 0};
    if (n && count && tn_node_count(n, &n->refs, -count) == count) tn_node_end(n);
}

/* Only the list's own reference to a pending node is left, so nothing can use it: free it now and not with
 * the next flush, which may never come, while its inputs keep memory. Not while a plan is made: the planner ends its
 * part of the list itself. */
static bool leave_list(tn_node *n) {
    if (!here || n->recorder != &here->recorder || here->recorder.planning) return false;
    tn_recorder *r = n->recorder;
    r->pending[n->index] = NULL;
    while (r->count > 0 && !r->pending[r->count - 1])
        r->count--;
    n->recorder = NULL;
    n->index = -1;
    return true;
}

/* After a reference has gone and few are left, or a leaf's: whether it was the last that counts. A leaf of which others
 * hold the rest may be gone by now: it is not touched unless this thread's loan is that rest. */
static __attribute__((noinline)) void after_release(tn_node *n, int32_t left, bool listed) {
    if (left == 0 || (left == 1 && listed && leave_list(n))) {
        defer_free(n);
    } else if (!listed && here && here->biased_used) {
        biased_count *l = biased_count_of(here, n);
        if (l->node == n && l->count == left) merge_biased_count(l);
    }
}

static inline void drop_reference(tn_node *n) {
    if (!n) return;
    bool listed = n->recorder != NULL;
    int32_t left = tn_node_count(n, &n->refs, -1) - 1;
    if (left < 2 || !listed) after_release(n, left, listed);
}

static void defer_free(tn_node *n) {
    drop_reference(n->expansion);
    n->expansion = deferred_free;
    deferred_free = n;
}

static void merge_biased_counts(thread_state *t) {
    while (t->biased_used) {
        int i = __builtin_ctz(t->biased_used);
        t->biased_used &= t->biased_used - 1;
        merge_biased_count(&t->biased_counts[i]);
    }
}

void tn_recorder_merge_counts(void) {
    if (here && here->biased_used) merge_biased_counts(here);
    if (here && here->recorder.count == 0) release_devices(&here->recorder);
}

static __attribute__((noinline)) void refill_biased_count(thread_state *t, biased_count *l, tn_node *n) {
    if (l->node != n) merge_biased_count(l);
    tn_node_count(n, &n->refs, BIASED_BATCH);
    *l = (biased_count){n, BIASED_BATCH};
    t->biased_used |= 1u << (l - t->biased_counts);
}

static inline void retain_input(thread_state *t, tn_node *n) {
    if (!n || n->recorder) {
        tn_node_retain(n);
        return;
    }
    biased_count *l = biased_count_of(t, n);
    if (l->node != n || l->count == 0) refill_biased_count(t, l, n);
    l->count--;
}

static inline void drop_input(tn_node *n) {
    biased_count *l = n && !n->recorder && here ? biased_count_of(here, n) : NULL;
    if (!l || l->node != n)
        drop_reference(n);
    else if (++l->count == atomic_load_explicit(&n->refs, memory_order_acquire))
        merge_biased_count(l);
}

static void node_destroy(tn_node *n) {
    for (int i = 0; i < n->n_in; i++)
        drop_input(n->in[i]);
    if (n->in != n->in_small) tn_mem_free(n->in);
    drop_reference(n->root);
    if (n->buffer) tn_buffer_release(n->buffer);
    if (n->slot) tn_grad_slot_release(n->slot);
    if (n->error) tn_mem_free(n->error);
    if (n->check) tn_mem_free(n->check);
    node_recycle(n);
}

static void free_deferred(void) {
    if (releasing) return;
    releasing = true;
    while (deferred_free) {
        tn_node *next = deferred_free;
        deferred_free = next->expansion;
        next->expansion = NULL;
        node_destroy(next);
    }
    releasing = false;
}

void tn_node_end(tn_node *n) {
    defer_free(n);
    free_deferred();
}

void tn_node_after_release(tn_node *n, int32_t left, bool listed) {
    after_release(n, left, listed);
    if (deferred_free) free_deferred();
}

void tn_node_exchange_input(tn_node *n, int input, tn_node *by) {
    tn_node_retain(by);
    drop_input(n->in[input]);
    n->in[input] = by;
    free_deferred();
}

void tn_node_forget_inputs(tn_node *n) {
    for (int i = 0; i < n->n_in; i++)
        tn_node_release(n->in[i]);
    n->n_in = 0;
    tn_node_release(n->expansion);
    n->expansion = NULL;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

int64_t tn_node_numel(const tn_node *n) { return tn_product(n->shape, n->rank); }

size_t tn_node_bytes(const tn_node *n) { return tn_dtype_bytes((tn_dtype)n->dtype, tn_node_numel(n)); }

void tn_strides_contiguous(const int64_t *shape, int rank, int64_t *stride) {
    int64_t s = 1;
    for (int d = rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= shape[d];
    }
}

bool tn_strides_are_contiguous(const int64_t *shape, int rank, const int64_t *stride) {
    int64_t follows[TN_MAX_RANK];
    tn_strides_contiguous(shape, rank, follows);
    for (int d = 0; d < rank; d++)
        if (shape[d] != 1 && stride[d] != follows[d]) return false;
    return true;
}

const tn_node *tn_node_layout(const tn_node *n, int64_t *offset, int64_t stride[TN_MAX_RANK]) {
    if (!(n->flags & TN_NODE_VIEW)) {
        *offset = 0;
        tn_strides_contiguous(n->shape, n->rank, stride);
        return n;
    }
    *offset = n->layout[0];
    memcpy(stride, n->layout + 1, (size_t)n->rank * sizeof *stride);
    return n->root;
}

bool tn_node_contiguous(const tn_node *n) {
    if (!(n->flags & TN_NODE_VIEW)) return true;
    if (n->layout[0] != 0 || tn_node_numel(n) != tn_node_numel(n->root)) return false;
    int64_t expected = 1;
    for (int d = n->rank - 1; d >= 0; d--) {
        if (n->shape[d] != 1 && n->layout[1 + d] != expected) return false;
        expected *= n->shape[d];
    }
    return true;
}

bool tn_node_computed(const tn_node *n) {
    const tn_node *root = n->flags & TN_NODE_VIEW ? n->root : n;
    return root->buffer != NULL;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Used if allocating an error node fails, too: one static node, never freed. */
static tn_node out_of_memory = {.refs = 1 << 30,
                                .flags = TN_NODE_ERROR,
                                .index = -1,
                                .status = TN_ERR_MEMORY,
                                .error = (char[]){"out of host memory while recording"}};

tn_node *tn_node_error(tn_status status, const char *text) {
    tn_node *n = node_new();
    if (!n) return tn_node_retain(&out_of_memory);
    n->op = TN_OP_NONE;
    n->flags = TN_NODE_ERROR;
    n->status = status;
    n->error = tn_mem_strdup(text);
    if (n->error) return n;
    tn_node_release(n);
    return tn_node_retain(&out_of_memory);
}

/* Does the text begin as "file.c:12: "? Then it is passed on from an earlier failure, whose line is the one to tell. */
static bool names_a_line(const char *text) {
    size_t name = strcspn(text, ": ");
    if (text[name] != ':' || !memchr(text, '.', name)) return false;
    size_t digits = strspn(text + name + 1, "0123456789");
    return digits > 0 && strncmp(text + name + 1 + digits, ": ", 2) == 0;
}

/* "index_select: …" becomes "masked_select: …" where the caller called that (TN_FUNCTION). */
static void name_function(const tn_recorder *r, tn_status status) {
    const char *text = tn_error();
    size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (r->called && name && strncmp(text + name, ": ", 2) == 0) tn_fail(status, "%s%s", r->called, text + name);
}

/* The pending failure of this thread as an error node, with the caller's line. */
static tn_node *failed_here(const tn_recorder *r, tn_status status) {
    if (r) name_function(r, status);
    if (r && r->file && !names_a_line(tn_error())) tn_fail_prefix(status, "%s:%d", r->file, r->line);
    return tn_node_error(status, tn_error());
}

tn_node *tn_node_failed(tn_status status) { return failed_here(tn_recorder_here(), status); }

tn_node *tn_node_data(tn_buffer *buffer, const int64_t *shape, int rank, tn_dtype dtype) {
    tn_node *n = node_new();
    if (!n) return tn_node_retain(&out_of_memory);
    n->op = TN_OP_NONE;
    n->dtype = (uint8_t)dtype;
    n->rank = (uint8_t)rank;
    if (rank > 0) memcpy(n->shape, shape, (size_t)rank * sizeof *shape);
    memset(n->symbol, 0, sizeof n->symbol);
    n->buffer = tn_buffer_retain(buffer);
    n->device = buffer->device;
    const tn_recorder *r = tn_recorder_here();
    if (r && r->capturing) n->flags |= TN_NODE_CAPTURED;
    return n;
}

/* What is recorded without inputs is alone in naming its device, which has to stay until that is computed. */
static tn_status retain_device(tn_recorder *r, tn_device *d) {
    for (int i = 0; i < r->retained_count; i++)
        if (r->retained[i] == d) return TN_OK;
    if (r->retained_count == (int)TN_COUNT(r->retained))
        return tn_fail(TN_ERR_STATE,
                       "operations on %d devices are recorded but not evaluated; evaluate them first (tn_eval)",
                       r->retained_count);
    tn_device_retain(d);
    r->retained[r->retained_count++] = d;
    return TN_OK;
}

static tn_status recorder_append(tn_recorder *r, tn_node *n) {
    TRY(tn_mem_reserve(&r->pending, &r->capacity, r->count + 1, sizeof *r->pending));
    n->recorder = r;
    n->index = (int32_t)r->count;
    r->pending[r->count++] = tn_node_retain(n);
    r->nodes_recorded++;
    return TN_OK;
}

/* Does a flush shorten the list by half or more? It removes what gets a buffer and what no gradient needs. The tape of
 * values that nobody holds stays, and its values would be computed again for the gradient. */
static bool flush_shortens(const tn_recorder *r) {
    size_t stays = 0;
    for (size_t i = 0; i < r->count; i++) {
        const tn_node *n = r->pending[i];
        stays += n && (n->flags & TN_NODE_GRAD) && atomic_load_explicit(&n->handles, memory_order_relaxed) == 0;
    }
    return 2 * stays < r->count;
}

/* A recording that is never read must not grow without bound. Every flush resets the limit, so equal steps are cut at
 * equal places and reuse their plans. */
static tn_status recorder_bound(tn_recorder *r) {
    if (r->count < TN_MAX_PENDING || r->count < r->limit) return TN_OK;
    if (r->capturing || r->planning || r->differentiating) return TN_OK;
    if (!flush_shortens(r)) {
        r->limit = 2 * r->count;
        return TN_OK;
    }
    r->unasked = true;
    tn_status s = tn_graph_evaluator.flush(r, NULL, 0);
    r->unasked = false;
    return s;
}

bool tn_recorder_begin_gradient(tn_recorder *r) {
    bool before = r->differentiating;
    r->differentiating = true;
    return before;
}

void tn_recorder_end_gradient(tn_recorder *r, bool before, size_t count) {
    r->differentiating = before;
    if (r->count > count + TN_MAX_PENDING / 2) r->limit = r->count + TN_MAX_PENDING;
}

/* What the inputs of an op have in common, found in one look. */
typedef struct input_facts {
    unsigned flags;    /* TN_NODE_…: any of them */
    tn_device *device; /* of the first; NULL without inputs */
    int dtype;         /* of the first */
    bool two_dtypes, two_devices, quantized;
} input_facts;

static inline input_facts look_at(tn_node *const *in, int n_in) {
    input_facts f = {.flags = 0};
    const tn_node *first = NULL;
    for (int i = 0; i < n_in; i++) {
        const tn_node *x = in[i];
        if (!x) continue;
        if (!first) first = x;
        f.flags |= x->flags;
        f.two_dtypes |= x->dtype != first->dtype;
        f.two_devices |= x->device != first->device;
        f.quantized |= tn_dtype_is_quantized((tn_dtype)x->dtype);
    }
    if (!first) return f;
    f.device = first->device;
    f.dtype = first->dtype;
    return f;
}

static bool differentiable(const tn_op_row *row) { return row->kind == TN_COMPOSED || tn_op_has_grad(row); }

static inline tn_status take_inputs(tn_node *n, tn_node *const *in, int n_in) {
    if (n_in > (int)TN_COUNT(n->in_small)) {
        n->in = tn_mem_alloc((size_t)n_in * sizeof *n->in);
        if (!n->in) {
            n->in = n->in_small;
            return TN_ERR_MEMORY;
        }
    }
    n->n_in = (uint8_t)n_in;
    for (int i = 0; i < n_in; i++) {
        n->in[i] = in[i];
        retain_input(here, in[i]);
    }
    return TN_OK;
}

static void take_attributes(tn_node *n, const tn_attrs *a) {
    n->n_i = a->n_i;
    n->n_f = a->n_f;
    n->f = (double *)(void *)(n->i + n->n_i);
    if (n->n_i) memcpy(n->i, a->i, (size_t)n->n_i * sizeof *n->i);
    if (n->n_f) memcpy(n->f, a->f, (size_t)n->n_f * sizeof *n->f);
}

static void take_layout(tn_node *n, const tn_infer *c) {
    tn_node *root = c->in[0]->flags & TN_NODE_VIEW ? c->in[0]->root : c->in[0];
    n->flags |= TN_NODE_VIEW;
    n->root = tn_node_retain(root);
    n->layout = n->i + n->n_i + n->n_f;
    n->layout[0] = c->offset;
    memcpy(n->layout + 1, c->stride, (size_t)c->rank * sizeof *c->stride);
}

static tn_status node_fill(tn_node *n, const tn_infer *c, int op) {
    TRY(take_inputs(n, c->in, c->n_in));
    n->op = (uint16_t)op;
    n->dtype = (uint8_t)c->dtype;
    n->rank = (uint8_t)c->rank;
    memcpy(n->shape, c->shape, sizeof n->shape); /* all of it: a copy of known size is a few moves */
    memcpy(n->symbol, c->symbol, sizeof n->symbol);
    take_attributes(n, c->attrs);
    if (c->row->impl->class_ == TN_VIEW_OP && c->row->kind == TN_KERNEL) take_layout(n, c);
    return TN_OK;
}

static tn_status refuse_devices(const tn_infer *c) {
    const tn_node *first = NULL, *other = NULL;
    for (int i = 0; i < c->n_in && !other; i++) {
        if (!c->in[i]) continue;
        if (!first) first = c->in[i];
        if (c->in[i]->device != first->device) other = c->in[i];
    }
    return tn_fail(TN_ERR_ARGUMENT, "%s: the tensors are on two devices, %s and %s: move one with tn_to_device",
                   c->row->name, first->device->info.id, other->device->info.id);
}

/* A view of blocks keeps them whole: rows of whole blocks, one behind the other inside a row. */
static tn_status check_blocks(const tn_infer *c) {
    int64_t block = tn_dtype_block(c->dtype);
    bool whole = c->rank > 0 && c->shape[c->rank - 1] % block == 0 && c->offset % block == 0;
    for (int d = 0; whole && d < c->rank; d++)
        whole = d == c->rank - 1 ? c->stride[d] == 1 : c->stride[d] % block == 0;
    if (whole) return TN_OK;
    char text[96];
    return tn_fail(TN_ERR_DTYPE,
                   "%s: %s is %s, whose blocks of %lld elements would be split: only whole rows can be taken; use "
                   "tn_dequantize first",
                   c->row->name, tn_shape_text(c->in[0], text, sizeof text), tn_dtype_name(c->dtype), (long long)block);
}

/* The rule may put attributes into canonical form: it gets a copy. */
static void copy_attributes(tn_attrs *own, const tn_attrs *given) {
    own->n_i = own->n_f = 0;
    if (!given) return;
    own->n_i = given->n_i;
    own->n_f = given->n_f;
    if (own->n_i) memcpy(own->i, given->i, own->n_i * sizeof *own->i);
    if (own->n_f) memcpy(own->f, given->f, own->n_f * sizeof *own->f);
}

/* ---- numbers and offsets that vary ------------------------------------------------------------------------------- */

bool tn_node_can_vary(const tn_node *n) {
    const tn_op_row *row = tn_op(n->op);
    if (n->flags & TN_NODE_VIEW) return true;
    if (row->impl->varies) return n->dtype != TN_BOOL;
    return row->kind == TN_COMPOSED && row->impl->class_ != TN_NATIVE && n->n_f > 0;
}

tn_site *tn_recorder_site(tn_recorder *r, const tn_node *n) {
    for (size_t i = 0; i < r->site_count; i++) {
        tn_site *s = &r->sites[i];
        if (s->line == n->line && s->op == n->op && s->file == n->file) return s;
    }
    return NULL;
}

void tn_node_fix(tn_node *n) {
    tn_recorder *r = tn_recorder_here();
    if (!(n->flags & TN_NODE_VARIES) || !r) return;
    n->flags &= (uint8_t)~TN_NODE_VARIES;
    r->fixed = true;
    for (size_t i = 0; i < r->site_count; i++) {
        tn_site *s = &r->sites[i];
        if (s->line != n->line || s->file != n->file) continue;
        s->stays = true;
        s->varies = false;
    }
}

/* A view of a view that varies does so too, also one that the planner makes. */
static __attribute__((noinline)) void note_varying(tn_recorder *r, tn_node *n) {
    bool view = n->flags & TN_NODE_VIEW;
    if (view) n->flags |= n->in[0]->flags & TN_NODE_VARIES;
    if (r->planning || r->capturing || !tn_node_can_vary(n)) return;
    const tn_site *s = tn_recorder_site(r, n);
    if ((r->varying && !view) || (s && s->varies)) n->flags |= TN_NODE_VARIES;
}

/* A composed operation that varies is expanded at once: its composition's numbers are what comes with a run. */
static __attribute__((noinline)) tn_status expand_varying(tn_recorder *r, tn_node *n) {
    if (tn_op(n->op)->kind != TN_COMPOSED) return TN_OK;
    bool before = r->varying;
    r->varying = true;
    tn_status s = tn_graph_evaluator.expand(n);
    r->varying = before;
    return s;
}

/* What every new node gets, and its place in the list; n is the caller's no more when this fails. */
static inline tn_status node_finish(tn_recorder *r, tn_node *n, const tn_op_row *row, const input_facts *f) {
    tn_status s = TN_OK;
    n->device = f->device;
    n->file = r->file;
    n->line = r->line;
    n->origin = r->origin;
    if (!n->device) {
        n->device = tn_current_device();
        s = n->device ? retain_device(r, n->device) : tn_error_code();
    }
    if ((f->flags & TN_NODE_GRAD) && !r->no_grad && differentiable(row) && tn_dtype_is_float((tn_dtype)n->dtype))
        n->flags |= TN_NODE_GRAD;
    if (__builtin_expect(r->watches, false)) note_varying(r, n);
    if (s == TN_OK) s = recorder_append(r, n);
    if (s != TN_OK) tn_node_release(n);
    return s;
}

static tn_status check_contiguous(const tn_infer *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->row->impl->contiguous >> i & 1 && c->in[i] && !tn_node_contiguous(c->in[i]))
            return tn_fail(TN_ERR_SHAPE, "%s: input %d must be contiguous", c->row->name, i + 1);
    return TN_OK;
}

static tn_status node_try(tn_recorder *r, int op, tn_node *const *in, int n_in, const tn_attrs *attrs,
                          const input_facts *f, tn_node **out) {
    const tn_op_row *row = tn_op(op);
    tn_attrs own;
    tn_infer c;
    copy_attributes(&own, attrs);
    /* Field by field: an initializer would also clear the strides, which only views need. */
    c.row = row;
    c.in = in;
    c.n_in = n_in;
    c.attrs = &own;
    c.rank = 0;
    c.dtype = TN_F32;
    c.offset = 0;
    memset(c.shape, 0, sizeof c.shape);
    memset(c.symbol, 0, sizeof c.symbol);
    if (row->impl->class_ == TN_VIEW_OP) memset(c.stride, 0, sizeof c.stride);
    if (f->two_devices) return refuse_devices(&c);
    TRY(row->impl->infer(&c));
    if (row->impl->contiguous) TRY(check_contiguous(&c));
    if (row->impl->gives) c.dtype = (tn_dtype)(row->impl->gives - 1);
    TRY(tn_infer_counted(&c));
    if (tn_dtype_is_quantized(c.dtype)) TRY(check_blocks(&c));
    tn_node *n = node_new();
    if (!n) return TN_ERR_MEMORY;
    tn_status s = node_fill(n, &c, op);
    if (s != TN_OK) {
        tn_node_release(n);
        return s;
    }
    *out = n;
    return node_finish(r, n, row, f);
}

/* The inputs broadcast together, and no rule is left that floats might break. */
static inline bool broadcasts(const tn_op_row *row, const input_facts *f) {
    const tn_op_impl *impl = row->impl;
    if (impl->infer == tn_infer_broadcast) return true;
    bool of_floats = impl->infer == tn_infer_float || impl->infer == tn_infer_not_bool;
    return of_floats && tn_dtype_is_float((tn_dtype)f->dtype);
}

/* The commonest case: shape and dtype are those of the first input, as of all others but numbers. */
static inline bool node_is_plain(const tn_op_row *row, tn_node *const *in, int n_in, const input_facts *f) {
    return f->device && !f->two_dtypes && !f->two_devices && in[0] && broadcasts(row, f) && tn_all_alike(in, n_in);
}

static inline tn_status node_plain(tn_recorder *r, int op, tn_node *const *in, int n_in, const tn_attrs *attrs,
                                   const input_facts *f, tn_node **out) {
    const tn_node *like = in[0];
    tn_node *n = node_new();
    if (!n) return TN_ERR_MEMORY;
    n->op = (uint16_t)op;
    n->dtype = like->dtype;
    n->rank = like->rank;
    memcpy(n->shape, like->shape, sizeof n->shape);
    memcpy(n->symbol, like->symbol, sizeof n->symbol);
    if (attrs)
        take_attributes(n, attrs);
    else
        n->f = (double *)(void *)n->i;
    tn_status s = take_inputs(n, in, n_in);
    if (s != TN_OK) {
        tn_node_release(n);
        return s;
    }
    *out = n;
    return node_finish(r, n, tn_op(op), f);
}

/* ---- promotion --------------------------------------------------------------------------------------------------- */

tn_node *tn_node_cast(tn_node *x, tn_dtype to) {
    tn_attrs a = {.n_i = 1, .i = {to}};
    bool plain_number = (x->flags & TN_NODE_WRAPPED) && x->op == TN_OP_FULL && tn_dtype_holds(to, x->f[0]);
    /* A number is made anew in the wanted type: on the way through f32 it would be rounded. */
    if (plain_number) a = (tn_attrs){.n_i = 2, .n_f = 1, .i = {0, to}, .f = {x->f[0]}};
    tn_node *n = plain_number ? tn_node_make(TN_OP_FULL, NULL, 0, &a) : tn_node_make(TN_OP_CAST, &x, 1, &a);
    if (plain_number && !(n->flags & TN_NODE_ERROR)) n->device = x->device;
    if (x->flags & TN_NODE_WRAPPED) n->flags |= TN_NODE_WRAPPED;
    return n;
}

/* Is x a number (tn_scalar_int) that is lost in a tensor of dtype t? One that is data is more than 2^53. */
static bool is_lost_in(const tn_node *x, tn_dtype t) {
    if (!x || !(x->flags & TN_NODE_WRAPPED) || tn_dtype_is_float((tn_dtype)x->dtype) || tn_dtype_is_float(t))
        return false;
    return x->op == TN_OP_FULL ? !tn_dtype_holds(t, x->f[0]) : tn_dtype_size(t) < sizeof(int64_t);
}

/* Numbers wrap around in arithmetic of a narrow integer dtype, as in PyTorch. A comparison with one outside the dtype
 * is made where both are exact: i64, or f32 for a negative number and u64, where only the sign counts. */
static tn_dtype dtype_to_compare(tn_node *const *in, int n_in, tn_dtype t) {
    for (int i = 0; i < n_in; i++)
        if (is_lost_in(in[i], t)) return t == TN_U64 ? TN_F32 : TN_I64;
    return t;
}

static bool promoted_dtype(const tn_op_row *row, tn_node *const *in, int n_in, tn_dtype *out) {
    const tn_op_impl *impl = row->impl;
    if (!impl->promote && !impl->to_float) return false;
    const tn_node *heaviest = NULL; /* tensors with dims count more than those without, these more than numbers */
    for (int i = impl->promote_from; i < n_in; i++) {
        if (!in[i]) continue;
        *out = heaviest ? tn_promote_with(*out, heaviest, in[i]) : (tn_dtype)in[i]->dtype;
        bool heavier = heaviest && (in[i]->rank > 0 || (heaviest->rank == 0 && (heaviest->flags & TN_NODE_WRAPPED)));
        if (!heaviest || heavier) heaviest = in[i];
    }
    if (!heaviest) return false;
    if (impl->to_float && !tn_dtype_is_float(*out)) *out = TN_F32;
    if (impl->infer == tn_infer_compare) *out = dtype_to_compare(in, n_in, *out);
    return true;
}

static tn_node *first_error(tn_node *const *in, int n_in) {
    for (int i = 0; i < n_in; i++)
        if (in[i] && (in[i]->flags & TN_NODE_ERROR)) return in[i];
    return NULL;
}

/* Blocks are weights: few ops read them, and no promotion may decode them unasked. */
static tn_status check_plain(const tn_op_row *row, tn_node *const *in, int n_in) {
    for (int i = 0; i < n_in; i++) {
        bool refused =
            in[i] && tn_dtype_is_quantized((tn_dtype)in[i]->dtype) && !(i < 8 && row->impl->quantized >> i & 1);
        if (!refused) continue;
        char text[96];
        return tn_fail(TN_ERR_DTYPE,
                       "%s: input %d, %s, is %s, a block-quantized type; use tn_dequantize(x, TN_F32) first (only "
                       "tn_linear, tn_embedding and slices of whole rows take it directly)",
                       row->name, i + 1, tn_shape_text(in[i], text, sizeof text),
                       tn_dtype_name((tn_dtype)in[i]->dtype));
    }
    return TN_OK;
}

static __attribute__((noinline)) bool differs_from_promoted(const tn_op_row *row, tn_node *const *in, int n_in,
                                                            tn_dtype *to) {
    if (!promoted_dtype(row, in, n_in, to)) return false;
    for (int i = row->impl->promote_from; i < n_in; i++)
        if (in[i] && in[i]->dtype != *to) return true;
    return false;
}

static inline bool needs_casts(const tn_op_row *row, tn_node *const *in, int n_in, const input_facts *f, tn_dtype *to) {
    bool may = f->two_dtypes || (row->impl->to_float && !tn_dtype_is_float((tn_dtype)f->dtype));
    return may && differs_from_promoted(row, in, n_in, to);
}

/* The op on inputs cast to one dtype. where() and masked ops keep their BOOL condition: promotion starts behind it. */
static tn_status node_promoted(tn_recorder *r, int op, tn_node *const *given, int n_in, const tn_attrs *attrs,
                               tn_dtype to, tn_node **out) {
    tn_node *in[TN_MAX_INPUTS];
    for (int i = 0; op == TN_OP_WHERE && i < n_in; i++)
        if (is_lost_in(given[i], to))
            return tn_fail(TN_ERR_ARGUMENT, "where: %s cannot hold the number of input %d: cast the other input first",
                           tn_dtype_name(to), i + 1);
    for (int i = 0; i < n_in; i++) {
        bool cast = given[i] && i >= tn_op(op)->impl->promote_from && given[i]->dtype != to;
        in[i] = cast ? tn_node_cast(given[i], to) : tn_node_retain(given[i]);
    }
    tn_node *bad = first_error(in, n_in);
    tn_status s = TN_OK;
    if (bad)
        *out = tn_node_retain(bad);
    else {
        input_facts f = look_at(in, n_in);
        s = node_try(r, op, in, n_in, attrs, &f, out);
    }
    for (int i = 0; i < n_in; i++)
        tn_node_release(in[i]);
    return s;
}

/* A number or a runtime scalar belongs to no device until it is used: it was noted for the one that was current then.
 * */
static bool goes_anywhere(const tn_node *x) {
    return x && x->rank == 0 && x->n_in == 0 && (x->op == TN_OP_FULL || x->op == TN_OP_RUNTIME_SCALAR);
}

/* The same number for another device. */
static tn_node *made_anew(const tn_node *x, tn_device *device) {
    tn_attrs a = {.n_i = x->n_i, .n_f = x->n_f};
    memcpy(a.i, x->i, x->n_i * sizeof *a.i);
    memcpy(a.f, x->f, x->n_f * sizeof *a.f);
    tn_node *n = tn_node_make(x->op, NULL, 0, &a);
    if (n->flags & TN_NODE_ERROR) return n;
    n->device = device;
    n->flags |= x->flags & TN_NODE_WRAPPED;
    return n;
}

/* The op with numbers on the device of its tensors; NULL when tensors themselves are on two. */
static tn_node *make_on_one_device(int op, tn_node *const *given, int n_in, const tn_attrs *attrs) {
    tn_node *in[TN_MAX_INPUTS], *result = NULL;
    tn_device *device = NULL;
    for (int i = 0; i < n_in && i < TN_MAX_INPUTS; i++) {
        if (!given[i] || goes_anywhere(given[i])) continue;
        if (device && device != given[i]->device) return NULL;
        device = given[i]->device;
    }
    for (int i = 0; i < n_in && !device; i++)
        device = given[i] ? given[i]->device : NULL;
    if (!device || n_in > TN_MAX_INPUTS) return NULL;
    for (int i = 0; i < n_in; i++)
        in[i] = given[i] && given[i]->device != device ? made_anew(given[i], device) : tn_node_retain(given[i]);
    result = tn_node_make(op, in, n_in, attrs);
    for (int i = 0; i < n_in; i++)
        tn_node_release(in[i]);
    return result;
}

/* A list longer than a node holds: the op on pieces of TN_MAX_INPUTS tensors, whose results cat joins along the same
 * dim (again in pieces where they are many). All are cast first, as the dtype of a piece is not that of the list. */
static __attribute__((noinline)) tn_node *make_in_pieces(int op, tn_node *const *in, int n_in, const tn_attrs *attrs,
                                                         const input_facts *f) {
    const tn_op_row *row = tn_op(op);
    if (op != TN_OP_CAT && op != TN_OP_STACK)
        return tn_node_failed(
            tn_fail(TN_ERR_ARGUMENT, "%s: %d tensors given; the limit is %d", row->name, n_in, TN_MAX_INPUTS));
    int count = (n_in + TN_MAX_INPUTS - 1) / TN_MAX_INPUTS;
    AUTO_FREE tn_node **pieces = tn_mem_zalloc((size_t)count, sizeof *pieces);
    tn_node *result;
    if (!pieces) return tn_node_retain(&out_of_memory);
    tn_dtype to = TN_F32;
    bool cast = needs_casts(row, in, n_in, f, &to);
    for (int k = 0; k < count; k++) {
        tn_node *some[TN_MAX_INPUTS];
        int first = k * TN_MAX_INPUTS, n = n_in - first < TN_MAX_INPUTS ? n_in - first : TN_MAX_INPUTS;
        for (int i = 0; i < n; i++)
            some[i] =
                cast && in[first + i]->dtype != to ? tn_node_cast(in[first + i], to) : tn_node_retain(in[first + i]);
        pieces[k] = tn_node_make(op, some, n, attrs);
        for (int i = 0; i < n; i++)
            tn_node_release(some[i]);
    }
    result = tn_node_make(TN_OP_CAT, pieces, count, attrs);
    for (int k = 0; k < count; k++)
        tn_node_release(pieces[k]);
    return result;
}

tn_node *tn_node_make(int op, tn_node *const *in, int n_in, const tn_attrs *attrs) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return tn_node_retain(&out_of_memory);
    input_facts f = look_at(in, n_in);
    if (f.flags & TN_NODE_ERROR) return tn_node_retain(first_error(in, n_in));
    tn_node *together = f.two_devices ? make_on_one_device(op, in, n_in, attrs) : NULL;
    if (together) return together;
    const tn_op_row *row = tn_op(op);
    if (n_in < 0)
        return failed_here(r,
                           tn_fail(TN_ERR_ARGUMENT, "%s: %d tensors given; at least 1 is required", row->name, n_in));
    if (n_in > TN_MAX_INPUTS) return make_in_pieces(op, in, n_in, attrs, &f);
    tn_dtype to = TN_F32;
    tn_node *n = NULL;
    tn_status s = f.quantized ? check_plain(row, in, n_in) : TN_OK;
    if (s != TN_OK) return failed_here(r, s);
    if (needs_casts(row, in, n_in, &f, &to))
        s = node_promoted(r, op, in, n_in, attrs, to, &n);
    else if (node_is_plain(row, in, n_in, &f))
        s = node_plain(r, op, in, n_in, attrs, &f, &n);
    else
        s = node_try(r, op, in, n_in, attrs, &f, &n);
    if (s != TN_OK) return failed_here(r, s);
    if (__builtin_expect(n->flags & TN_NODE_VARIES, 0)) s = expand_varying(r, n);
    if (s == TN_OK) s = recorder_bound(r);
    if (s == TN_OK) return n;
    tn_node_release(n);
    return failed_here(r, s);
}

/* ---- building inside the library --------------------------------------------------------------------------------- */

tn_node *tn_b_own(tn_build *b, tn_node *n) {
    if (!n) return NULL;
    if (n->flags & TN_NODE_ERROR) {
        if (b->status == TN_OK) b->status = tn_fail(n->status, "%s", n->error);
        tn_node_release(n);
        return NULL;
    }
    tn_status s = tn_mem_reserve(&b->made, &b->capacity, b->count + 1, sizeof *b->made);
    if (s != TN_OK) {
        b->status = s;
        tn_node_release(n);
        return NULL;
    }
    tn_node_count(n, &n->handles, 1);
    b->made[b->count++] = n;
    return n;
}

tn_node *tn_b_op(tn_build *b, int op, tn_node *const *in, int n_in, const tn_attrs *attrs) {
    if (b->status != TN_OK) return NULL;
    return tn_b_own(b, tn_node_make(op, in, n_in, attrs));
}

void tn_build_end(tn_build *b) {
    for (size_t i = 0; i < b->count; i++)
        tn_node_unpin(b->made[i]);
    tn_mem_free(b->made);
    *b = (tn_build){.status = b->status};
}

tn_node *tn_node_number(double v) {
    tn_attrs a = {.n_i = 2, .n_f = 1, .i = {0, TN_F32}, .f = {v}};
    tn_node *n = tn_node_make(TN_OP_FULL, NULL, 0, &a);
    n->flags |= TN_NODE_WRAPPED;
    return n;
}

tn_node *tn_b_cast_like(tn_build *b, tn_node *x, const tn_node *like) {
    if (b->status != TN_OK || !x || x->dtype == like->dtype) return x;
    return tn_b_own(b, tn_node_cast(x, (tn_dtype)like->dtype));
}
