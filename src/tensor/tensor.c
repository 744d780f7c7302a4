/* tensor.c — handles, storages and scopes; recording through handles; views and writes under laziness.
 *
 * A handle holds the node that is its value. As soon as somebody views or writes a tensor it gets a storage, which all
 * its views share: the storage holds the current value and counts its replacements. A write makes a new value node and
 * bumps the count; a handle whose count is behind makes its view anew from its base when it is next used. So recording
 * stays functional, and the planner decides which writes really happen in place. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/graph.h"
#include "trunnion/amp.h"
#include "trunnion/autograd.h"

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

enum { NO_SLOT = -1, NOT_FREED = -2 /* the library's own handle: tn_free leaves it alone */, MAX_SCOPES = 256 };

/* Handles of all open scopes, innermost last; start[d] is where scope d begins. */
typedef struct scope_stack {
    tn_handle **items;
    size_t count, capacity;
    size_t start[MAX_SCOPES];
    int depth;
} scope_stack;

static _Thread_local scope_stack scopes;

static inline tn_status scope_add(tn_handle *t) {
    if (scopes.depth == 0) return TN_OK;
    TRY(tn_mem_reserve(&scopes.items, &scopes.capacity, scopes.count + 1, sizeof *scopes.items));
    t->slot = (int32_t)scopes.count;
    scopes.items[scopes.count++] = t;
    return TN_OK;
}

static void scope_forget(tn_handle *t) {
    if (t->slot >= 0 && (size_t)t->slot < scopes.count && scopes.items[t->slot] == t) scopes.items[t->slot] = NULL;
    t->slot = NO_SLOT;
}

tn_tensor *tn_tensor_unscoped(tn_tensor *t) {
    if (tn_handle_of(t)->slot >= 0) scope_forget(tn_handle_of(t));
    return t;
}

tn_scope tn_scope_begin(void) {
    tn_scope s = {.mark = scopes.count};
    if (scopes.depth < MAX_SCOPES) scopes.start[scopes.depth] = scopes.count;
    scopes.depth++;
    return s;
}

tn_function tn_function_begin(const char *name) {
    tn_recorder *r = tn_recorder_here();
    tn_function f = {.scope = tn_scope_begin(), .before = r ? r->called : NULL};
    if (r && !r->called) r->called = name;
    return f;
}

void tn_function_end(tn_function *f) {
    tn_recorder *r = tn_recorder_here();
    if (f && r) r->called = f->before;
    if (f) tn_scope_end(&f->scope);
}

static void handle_free(tn_handle *t);

void tn_scope_end(TN_UNUSED tn_scope *scope) {
    if (scopes.depth == 0) return;
    scopes.depth--;
    size_t start = scopes.depth < MAX_SCOPES ? scopes.start[scopes.depth] : scopes.count;
    while (scopes.count > start) {
        tn_handle *t = scopes.items[--scopes.count];
        if (!t) continue;
        t->slot = NO_SLOT;
        handle_free(t);
    }
    if (scopes.depth > 0) return;
    tn_mem_free(scopes.items);
    scopes.items = NULL; /* not the whole stack: start[] is 2 KiB, and unused at depth 0 */
    scopes.capacity = 0;
}

static void scope_swap(size_t a, size_t b) {
    tn_handle *x = scopes.items[a], *y = scopes.items[b];
    scopes.items[a] = y;
    scopes.items[b] = x;
    if (y) y->slot = (int32_t)a;
    if (x) x->slot = (int32_t)b;
}

tn_tensor *tn_keep(tn_tensor *t) {
    tn_handle *h = tn_handle_of(t);
    if (!t || !tn_tensor_is_live(t) || h->slot < 0 || scopes.depth == 0 || scopes.depth > MAX_SCOPES) return t;
    size_t *start = &scopes.start[scopes.depth - 1];
    if ((size_t)h->slot < *start) return t; /* belongs to a scope further out already */
    if (scopes.depth == 1) {
        scope_forget(h);
        return t;
    }
    scope_swap((size_t)h->slot, *start);
    (*start)++;
    return t;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static tn_node *pin(tn_node *n) {
    tn_node_count(n, &n->handles, 1);
    return n;
}

/* What a caller gets when not even a handle can be had; never freed, never written. */
static tn_node no_memory_node = {.refs = 1 << 30,
                                 .handles = 1,
                                 .flags = TN_NODE_ERROR,
                                 .index = -1,
                                 .op = TN_OP_NONE,
                                 .status = TN_ERR_MEMORY,
                                 .error = (char[]){"out of host memory while recording"}};
/* What stands for a tensor that is NULL. */
static tn_node null_node = {.refs = 1 << 30,
                            .handles = 1,
                            .flags = TN_NODE_ERROR,
                            .index = -1,
                            .op = TN_OP_NONE,
                            .status = TN_ERR_ARGUMENT,
                            .error = (char[]){"the tensor is NULL"}};
/* The node of every tensor that was freed. */
static tn_node freed_node = {.refs = 1 << 30,
                             .handles = 1,
                             .flags = TN_NODE_ERROR,
                             .index = -1,
                             .op = TN_OP_NONE,
                             .status = TN_ERR_ARGUMENT,
                             .error = (char[]){"the tensor was freed before this call (by tn_free, or at the end of "
                                               "its scope)"}};
static tn_handle no_memory_handle = {.refs = 1 << 30, .node = &no_memory_node, .slot = NOT_FREED};

/* The pointer that callers hold. */
static inline tn_tensor *named(tn_handle *h) { return (tn_tensor *)((uintptr_t)h | h->generation); }

static tn_tensor *no_memory(void) { return named(&no_memory_handle); }

tn_status tn_tensor_missing(const tn_tensor *t, const char *what) {
    TRY(tn_need(t, what));
    return tn_fail(TN_ERR_ARGUMENT, "%s was freed before this call (by tn_free, or at the end of its scope)", what);
}

/* Freed handles are reused, the latest of this thread first. Their memory is returned to the system only in leak tests,
 * because the generation in it identifies stale pointers (graph.h). After its last generation a handle waits. */
enum { FREE_HANDLES_MAX = 4096 };
static _Thread_local tn_handle *free_handles; /* chained through base */
static _Thread_local int free_handle_count;
static struct {
    pthread_mutex_t lock;
    tn_handle *first;
    tn_handle *retired, *newest; /* the line of those without a generation left, the oldest first */
    int retired_count;
} spare_handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* From the front of the line, if it is long enough. The caller holds the lock. */
static tn_handle *handle_return(void) {
    tn_handle *t = spare_handles.retired;
    if (spare_handles.retired_count <= TN_RETIRED_HANDLES) return NULL;
    spare_handles.retired = t->base;
    spare_handles.retired_count--;
    return t;
}

static __attribute__((noinline)) tn_handle *handle_make(void) {
    pthread_mutex_lock(&spare_handles.lock);
    tn_handle *t = spare_handles.first;
    if (t)
        spare_handles.first = t->base;
    else
        t = handle_return();
    pthread_mutex_unlock(&spare_handles.lock);
    if (t) return t;
    t = tn_mem_alloc(sizeof *t);
    if (t) t->generation = TN_GENERATIONS;
    return t;
}

static inline tn_handle *handle_alloc(void) {
    tn_handle *t = free_handles;
    if (t) {
        free_handles = t->base;
        free_handle_count--;
    } else {
        t = handle_make();
        if (!t) return NULL;
    }
    t->generation -= TN_GENERATIONS;
    return t;
}

static __attribute__((noinline)) void handle_spare(tn_handle *t) {
    AUTO_LOCK(&spare_handles.lock);
    t->base = spare_handles.first;
    spare_handles.first = t;
}

static __attribute__((noinline)) void handle_retire(tn_handle *t) {
    t->base = NULL;
    AUTO_LOCK(&spare_handles.lock);
    if (spare_handles.retired)
        spare_handles.newest->base = t;
    else
        spare_handles.retired = t;
    spare_handles.newest = t;
    spare_handles.retired_count++;
}

static inline void handle_recycle(tn_handle *t) {
    t->generation = TN_GENERATIONS + (t->generation + 1) % TN_GENERATIONS;
    if (t->generation == TN_GENERATIONS) {
        handle_retire(t);
        return;
    }
    if (free_handle_count >= FREE_HANDLES_MAX) {
        handle_spare(t);
        return;
    }
    t->base = free_handles;
    free_handles = t;
    free_handle_count++;
}

/* Failed in-place operations of this thread return this handle. The thread owns it and tn_free ignores it, so a caller
 * that ignores the result leaks nothing. */
static _Thread_local struct refusal {
    tn_handle *handle;
    bool unreported;
} refusal;

static void refusal_drop(void) {
    tn_handle *t = refusal.handle;
    refusal = (struct refusal){NULL, false};
    if (!t) return;
    t->slot = NO_SLOT;
    handle_free(t);
}

static tn_tensor *refused(void) { return refusal.handle ? named(refusal.handle) : no_memory(); }

void tn_handles_retire(void) {
    refusal_drop();
    while (free_handles) {
        tn_handle *t = free_handles;
        free_handles = t->base;
        handle_spare(t);
    }
    free_handle_count = 0;
}

static void handles_free(tn_handle *first) {
    while (first) {
        tn_handle *next = first->base;
        tn_mem_free(first);
        first = next;
    }
}

void tn_handles_drop(void) {
    tn_handles_retire();
    AUTO_LOCK(&spare_handles.lock);
    handles_free(spare_handles.first);
    handles_free(spare_handles.retired);
    spare_handles.first = spare_handles.retired = spare_handles.newest = NULL;
    spare_handles.retired_count = 0;
}

/* A handle that no scope knows, which takes the reference; NULL when memory is out. */
static inline tn_handle *new_handle(tn_node *n) {
    tn_handle *t = n ? handle_alloc() : NULL;
    if (!t) {
        tn_node_release(n);
        return NULL;
    }
    atomic_init(&t->refs, 1);
    t->node = pin(n);
    atomic_init(&t->storage, NULL);
    t->version = 0;
    t->slot = NO_SLOT;
    t->base = NULL;
    return t;
}

tn_tensor *tn_tensor_new(tn_node *n) {
    tn_handle *t = new_handle(n);
    if (!t) return no_memory();
    if (scope_add(t) == TN_OK) return named(t);
    handle_free(t);
    return no_memory();
}

static void handle_retain(tn_handle *t) {
    if (t->slot != NOT_FREED) atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

tn_tensor *tn_retain(tn_tensor *t) {
    if (t && tn_need_tensor(t, "tn_retain: the tensor") == TN_OK) handle_retain(tn_handle_of(t));
    return t;
}

void tn_storage_release(tn_storage *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    tn_node_unpin(s->value);
    if (s->resident) tn_node_release(s->resident);
    tn_buffer_release(s->home);
    tn_grad_slot_close(s->slot);
    while (s->watched) {
        tn_grad_slot *next = s->watched->next;
        tn_grad_slot_close(s->watched);
        s->watched = next;
    }
    tn_mem_free(s);
}

void tn_storage_restore(tn_storage *s) {
    if (!s->resident || s->value == s->resident) return;
    tn_node_unpin(s->value);
    s->value = pin(tn_node_retain(s->resident));
    s->version++;
}

/* Freeing a view frees its hold on its base, which may be a view again: a loop, so that
 * long chains are no deep stack. */
static inline __attribute__((always_inline)) void release_chain(tn_handle *t) {
    while (t && t->slot != NOT_FREED) {
        /* A sole owner needs no atomic instruction: no other thread can change the count. */
        if (atomic_load_explicit(&t->refs, memory_order_acquire) != 1 &&
            atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
            return;
        tn_handle *base = t->base;
        if (t->slot >= 0) scope_forget(t);
        tn_node_unpin(t->node);
        tn_storage *s = atomic_load_explicit(&t->storage, memory_order_relaxed);
        if (s) tn_storage_release(s);
        handle_recycle(t);
        t = base;
    }
}

static void handle_free(tn_handle *t) { release_chain(t); }

/* Few callers look at tn_error() after a function that returns nothing, so a second tn_free is also logged. */
static __attribute__((noinline)) void freed_twice(const tn_tensor *t) {
    (void)tn_need_tensor(t, "tn_free: the tensor");
    tn_log_line(TN_LOG_NOTICE, "%s; ignored", tn_error());
}

void tn_free(tn_tensor *t) {
    if (!t) return;
    if (!tn_tensor_is_live(t)) {
        freed_twice(t);
        return;
    }
    release_chain(tn_handle_of(t));
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

/* A cache: every thread that looks would make the same. */
static tn_storage *storage_of(tn_handle *t) {
    static _Atomic uint64_t ids;
    tn_storage *s = atomic_load_explicit(&t->storage, memory_order_acquire);
    if (s) return s;
    tn_storage *fresh = tn_mem_zalloc(1, sizeof *fresh);
    if (!fresh) return NULL;
    atomic_init(&fresh->refs, 1);
    fresh->id = 1 + atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed);
    fresh->value = pin(tn_node_retain(t->node));
    if (atomic_compare_exchange_strong(&t->storage, &s, fresh)) return fresh;
    tn_storage_release(fresh);
    return s;
}

tn_storage *tn_tensor_storage(const tn_tensor *t) { return storage_of(tn_handle_of(t)); }

/* Records an operation with its gradient history, also under TN_NO_GRAD. */
static tn_node *make_with_history(int op, tn_node *const *in, int n_in, const tn_attrs *attrs) {
    tn_recorder *r = tn_recorder_here();
    bool no_grad = r && r->no_grad;
    if (r) r->no_grad = false;
    tn_node *n = tn_node_make(op, in, n_in, attrs);
    if (r) r->no_grad = no_grad;
    return n;
}

/* Its history is that of the base, wherever it is used again first. */
static tn_node *replay_view(const tn_handle *t, tn_node *base) {
    tn_attrs a = {.n_i = t->node->n_i, .n_f = t->node->n_f};
    memcpy(a.i, t->node->i, a.n_i * sizeof *a.i);
    memcpy(a.f, t->node->f, a.n_f * sizeof *a.f);
    return make_with_history(t->node->op, &base, 1, &a);
}

static pthread_mutex_t refresh_lock = PTHREAD_MUTEX_INITIALIZER;

/* False when memory is out: what could not be made anew is tried again next time. */
static bool refresh(tn_handle *t, const tn_storage *s) {
    /* Walk to the first handle up the chain that is current, then make the views below it anew, one by one. */
    enum { MAX_CHAIN = TN_MAX_VIEW_CHAIN + 1 };
    tn_handle *chain[MAX_CHAIN];
    int length = 0;
    tn_handle *up = t;
    while (up->base && up->version != s->version && length < MAX_CHAIN) {
        chain[length++] = up;
        up = up->base;
    }
    /* Not a view: the value of the storage. The handle may refer to another storage by now (tn_swap). */
    if (!up->base && up->version != s->version && atomic_load_explicit(&up->storage, memory_order_relaxed) == s) {
        tn_node_unpin(up->node);
        up->node = pin(tn_node_retain(s->value));
        up->version = s->version;
    }
    tn_node *base = up->base ? up->node : s->value;
    while (length > 0) {
        tn_handle *v = chain[--length];
        tn_node *n = replay_view(v, base);
        if (n->flags & TN_NODE_ERROR) {
            tn_node_release(n);
            return false;
        }
        tn_node_unpin(v->node);
        v->node = base = pin(n);
        v->version = s->version;
    }
    return true;
}

static __attribute__((noinline)) tn_node *refreshed_node(tn_handle *t, const tn_storage *s) {
    AUTO_LOCK(&refresh_lock);
    bool current = refresh(t, s);
    return current ? t->node : &no_memory_node;
}

static inline tn_node *node_of(const tn_tensor *name) {
    if (!tn_tensor_is_live(name)) return &freed_node;
    tn_handle *t = tn_handle_of(name);
    const tn_storage *s = atomic_load_explicit(&t->storage, memory_order_acquire);
    return !s || t->version == s->version ? t->node : refreshed_node(t, s);
}

tn_node *tn_tensor_node(const tn_tensor *t) { return t ? node_of(t) : &null_node; }

/* ---- recording --------------------------------------------------------------------------------------------------- */

static int view_depth(const tn_handle *t) {
    int depth = 0;
    for (; t->base; t = t->base)
        depth++;
    return depth;
}

/* Ties a view's handle to the storage of the tensor it looks into. */
static tn_tensor *attach_view(tn_handle *view, tn_handle *base) {
    tn_storage *s = storage_of(base);
    if (!s) {
        handle_free(view);
        return no_memory();
    }
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&view->storage, s, memory_order_release);
    view->version = s->version;
    handle_retain(base);
    view->base = base;
    return named(view);
}

/* The error of an op with an input that was freed, which the op's rule never sees. */
static __attribute__((noinline)) tn_status input_was_freed(int op, const tn_tensor *const *in, int n_in) {
    char what[96];
    int i = 0;
    while (i < n_in - 1 && (!in[i] || tn_tensor_is_live(in[i])))
        i++;
    snprintf(what, sizeof what, "%s: tensor %d", tn_op(op)->name, i + 1);
    return tn_need_tensor(in[i], what);
}

/* A long list, as cat and stack accept. The result is not a view. */
static tn_tensor *record_many(int op, const tn_tensor *const *in, int n_in, const tn_attrs *attrs) {
    tn_node **nodes = tn_mem_alloc((size_t)n_in * sizeof *nodes);
    if (!nodes) return tn_tensor_error(TN_ERR_MEMORY);
    for (int i = 0; i < n_in; i++)
        nodes[i] = in[i] ? node_of(in[i]) : NULL;
    tn_node *n = tn_node_make(op, nodes, n_in, attrs);
    tn_mem_free(nodes);
    return n == &freed_node ? tn_tensor_error(input_was_freed(op, in, n_in)) : tn_tensor_new(n);
}

/* The handle of the new node n, a view into in[0] or an error. */
static tn_tensor *view_handle(int op, const tn_tensor *const *in, tn_node *n) {
    tn_tensor *t = tn_tensor_new(n);
    if (!(n->flags & TN_NODE_VIEW) || t == no_memory()) return t;
    tn_handle *base = tn_handle_of(in[0]);
    if (view_depth(base) < TN_MAX_VIEW_CHAIN) return attach_view(tn_handle_of(t), base);
    tn_free(t);
    tn_fail(TN_ERR_UNSUPPORTED, "%s: a view of a view is nested %d deep: make it contiguous first", tn_op(op)->name,
            TN_MAX_VIEW_CHAIN);
    return tn_tensor_error(TN_ERR_UNSUPPORTED);
}

/* The dtype that inputs of an op get under TN_AUTOCAST. TN_OK with *to = TN_BOOL: they stay as they are. */
static tn_status input_dtype(const tn_recorder *r, int op, tn_dtype *to) {
    tn_autocast_class how = tn_op(op)->autocast;
    *to = how == TN_AUTOCAST_NONE ? TN_BOOL : how == TN_AUTOCAST_F32 ? TN_F32 : (tn_dtype)r->autocast;
    if (how != TN_AUTOCAST_LOW || tn_dtype_is_half(r->autocast)) return TN_OK;
    return tn_fail(TN_ERR_DTYPE, "%s: TN_AUTOCAST of %s; the low precision must be TN_F16 or TN_BF16 (TN_F32: off)",
                   tn_op(op)->name, tn_dtype_name((tn_dtype)r->autocast));
}

/* Whether any thread has used autocast: spares the others a look at their recorder for each op. */
static atomic_bool autocast_used;

/* f64 stays, as in PyTorch. */
static bool autocasts(const tn_node *x, tn_dtype to) {
    return x && !(x->flags & TN_NODE_ERROR) && x->dtype != to && (x->dtype == TN_F32 || tn_dtype_is_half(x->dtype));
}

/* tn_node_make on inputs cast by the op's row. Equal casts of one weight are computed once (plan/values.c). */
static __attribute__((noinline)) tn_node *make_autocast(const tn_recorder *r, int op, tn_node **nodes, int n_in,
                                                        const tn_attrs *attrs) {
    tn_dtype to;
    tn_status s = input_dtype(r, op, &to);
    if (s != TN_OK) return tn_node_failed(s);
    bool stay = to == TN_BOOL;
    for (int i = 0; i < n_in; i++) /* products with blocks take f32 */
        stay |= nodes[i] && tn_dtype_is_quantized((tn_dtype)nodes[i]->dtype);
    if (stay) return tn_node_make(op, nodes, n_in, attrs);
    uint64_t made = 0; /* bit i: nodes[i] is a cast */
    for (int i = 0; i < n_in; i++) {
        if (!autocasts(nodes[i], to)) continue;
        nodes[i] = tn_node_cast(nodes[i], to);
        made |= UINT64_C(1) << i;
    }
    tn_node *n = tn_node_make(op, nodes, n_in, attrs);
    for (int i = 0; i < n_in; i++)
        if (made >> i & 1) tn_node_release(nodes[i]);
    return n;
}

_Atomic int tn_anomaly_mode = -1;

/* The node itself, or an error in its place if it has a NaN or infinity that anomaly detection looks for. */
static tn_node *examined(tn_node *n) {
    tn_status s = n->flags & TN_NODE_ERROR ? TN_OK : tn_graph_evaluator.find_anomaly(&n, 1);
    if (s == TN_OK) return n;
    tn_node_release(n);
    return tn_node_failed(s);
}

tn_tensor *tn_record(int op, const tn_tensor *const *in, int n_in, const tn_attrs *attrs) {
    tn_node *nodes[TN_MAX_INPUTS];
    if (n_in > TN_MAX_INPUTS) return record_many(op, in, n_in, attrs);
    for (int i = 0; i < n_in; i++)
        nodes[i] = in[i] ? node_of(in[i]) : NULL;
    bool cast = atomic_load_explicit(&autocast_used, memory_order_relaxed) && tn_autocast_dtype() != TN_F32;
    tn_node *n =
        cast ? make_autocast(tn_recorder_here(), op, nodes, n_in, attrs) : tn_node_make(op, nodes, n_in, attrs);
    if (__builtin_expect(atomic_load_explicit(&tn_anomaly_mode, memory_order_relaxed) != 0, false)) n = examined(n);
    if (!(n->flags & (TN_NODE_VIEW | TN_NODE_ERROR))) return tn_tensor_new(n);
    return n == &freed_node ? tn_tensor_error(input_was_freed(op, in, n_in)) : view_handle(op, in, n);
}

tn_tensor *tn_tensor_error(tn_status status) { return tn_tensor_new(tn_node_failed(status)); }

tn_tensor *tn_failed(tn_status code, const char *format, ...) {
    char text[512];
    va_list args;
    if (code == TN_OK) code = TN_ERR_ARGUMENT; /* TN_OK is not a failure */
    va_start(args, format);
    vsnprintf(text, sizeof text, format ? format : "failed", args);
    va_end(args);
    return tn_tensor_error(tn_fail(code, "%s", text));
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool overlaps(const tn_node *n) {
    if (tn_node_numel(n) == 0) return false;
    for (int d = 0; d < n->rank; d++)
        if (n->shape[d] > 1 && n->layout[1 + d] == 0) return true;
    /* Sort by stride and see that each dimension steps over all that is below it. */
    int order[TN_MAX_RANK], count = 0;
    for (int d = 0; d < n->rank; d++)
        if (n->shape[d] > 1) order[count++] = d;
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && llabs(n->layout[1 + order[j]]) < llabs(n->layout[1 + order[j - 1]]); j--) {
            int swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }
    int64_t reach = 0;
    for (int i = 0; i < count; i++) {
        int64_t step = llabs(n->layout[1 + order[i]]);
        if (step <= reach) return true;
        reach += step * (n->shape[order[i]] - 1);
    }
    return false;
}

/* The value of the whole storage once `value` stands where the view node `place` looks. */
static tn_node *assign_view(tn_node *whole, const tn_node *place, tn_node *value) {
    tn_attrs a = {.n_i = (uint8_t)(1 + 1 + place->rank)};
    a.i[0] = place->layout[0];
    a.i[1] = place->rank;
    memcpy(a.i + 2, place->layout + 1, (size_t)place->rank * sizeof *a.i);
    tn_node *in[] = {whole, value};
    return tn_node_make(TN_OP_ASSIGN_VIEW, in, 2, &a);
}

static tn_node *expand_to(tn_node *value, const tn_node *like) {
    bool same =
        value->rank == like->rank && memcmp(value->shape, like->shape, (size_t)like->rank * sizeof *like->shape) == 0;
    if (same) return tn_node_retain(value);
    tn_attrs a = {.n_i = (uint8_t)(1 + like->rank), .i = {like->rank}};
    memcpy(a.i + 1, like->shape, (size_t)like->rank * sizeof *a.i);
    return tn_node_make(TN_OP_EXPAND, &value, 1, &a);
}

/* A node that may become the complete value of a storage: not a view, and not the value of another tensor. */
static tn_node *own_value(tn_node *value, bool fresh) {
    if (fresh && !(value->flags & TN_NODE_VIEW) && value->op != TN_OP_NONE && value->n_in > 0)
        return tn_node_retain(value);
    return tn_node_make(TN_OP_CONTIGUOUS, &value, 1, NULL);
}

static tn_node *cast_to(tn_node *value, const tn_node *like) {
    if (value->dtype == like->dtype) return tn_node_retain(value);
    return tn_node_cast(value, (tn_dtype)like->dtype);
}

static tn_node *fit_to(tn_node *value, const tn_node *like) {
    tn_node *cast = cast_to(value, like);
    tn_node *fitted = expand_to(cast, like);
    tn_node_release(cast);
    return fitted;
}

/* value as the whole storage of dst, whose node is `place`, would read; the caller's reference. fresh: nobody else
 * holds `value`; fits: it has place's dtype and shape. */
static tn_node *written_value(const tn_tensor *dst, const tn_node *place, const tn_storage *s, tn_node *value,
                              bool fresh, bool fits) {
    tn_node *fitted = fits ? tn_node_retain(value) : fit_to(value, place);
    fresh = fresh && fitted == value;
    tn_node *whole = tn_handle_of(dst)->base ? assign_view(s->value, place, fitted) : own_value(fitted, fresh);
    tn_node_release(fitted);
    return whole;
}

/* Has the storage s a gradient history that a write to its tensor `place` does not record? Leaves have none. */
static bool has_other_history(const tn_recorder *r, const tn_storage *s, const tn_node *place) {
    bool recorded = !r->no_grad && (place->flags & TN_NODE_GRAD);
    return !recorded && (s->value->flags & TN_NODE_GRAD) && !(s->value->flags & TN_NODE_LEAF) && !s->slot;
}

static bool is_detached(const tn_tensor *x) {
    const tn_handle *t = tn_handle_of(x);
    while (t->base && t->node->op != TN_OP_DETACH)
        t = t->base;
    return t->base != NULL;
}

/* As in PyTorch, a write that records no gradients (TN_NO_GRAD, or through tn_detach) leaves the history of its target:
 * gradients flow on to what the target was computed from. `whole` is the storage's value after the write `place`. Takes
 * its reference. */
static tn_node *keep_history(const tn_recorder *r, const tn_storage *s, const tn_node *place, tn_node *whole) {
    tn_node *before = s->value;
    if (!has_other_history(r, s, place) || (whole->flags & TN_NODE_ERROR)) return whole;
    if (before->op == TN_OP_REWRITTEN) before = before->in[0]; /* many writes make no chain */
    tn_node *kept = make_with_history(TN_OP_REWRITTEN, (tn_node *[]){before, whole}, 2, NULL);
    tn_node_release(whole);
    return kept;
}

/* The value of a storage that is a leaf is one. */
static void mark_as_leaf(const tn_storage *s, tn_node *whole) {
    if (!s->slot) return;
    whole->flags |= TN_NODE_GRAD | TN_NODE_LEAF;
    if (whole->slot) return;
    atomic_fetch_add_explicit(&s->slot->refs, 1, memory_order_relaxed);
    whole->slot = s->slot;
}

void tn_storage_moved(tn_storage *s, tn_node *next) {
    s->version++;
    if (!next) return;
    mark_as_leaf(s, next);
    s->resident->flags |= TN_NODE_STALE;
    tn_node_release(s->resident);
    tn_node_unpin(s->value);
    s->resident = next;
    s->value = pin(tn_node_retain(next));
}

void tn_storage_lost(tn_storage *s, tn_node *error) {
    s->version++;
    tn_node_unpin(s->value);
    s->value = pin(error);
}

static void storage_set(tn_recorder *r, tn_storage *s, tn_node *whole) {
    mark_as_leaf(s, whole);
    tn_node_unpin(s->value);
    s->value = pin(whole);
    s->version++;
    if (!s->state || s->in_written) return;
    s->in_written = true;
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    s->next_written = r->written;
    r->written = s;
}

/* Takes the reference. An earlier failure that has not been read yet is kept. */
static tn_tensor *refuse_tensor(tn_node *error) {
    tn_handle *t = refusal.handle;
    if (refusal.unreported) {
        tn_node_release(error);
        return refused();
    }
    refusal.unreported = true;
    if (t) {
        tn_node_unpin(t->node);
        t->node = pin(error);
        return refused();
    }
    t = new_handle(error);
    if (t) t->slot = NOT_FREED;
    refusal.handle = t;
    return refused();
}

tn_tensor *tn_refuse_write(tn_status status) { return refuse_tensor(tn_node_failed(status)); }

tn_status tn_refusal_report(void) {
    if (!refusal.unreported) return TN_OK;
    refusal.unreported = false;
    const tn_node *n = refusal.handle ? refusal.handle->node : &no_memory_node;
    return tn_fail(n->status, "%s", n->error);
}

/* n: the value of a handle with storage s. */
static tn_status check_writable(const tn_node *n, const tn_storage *s, const tn_recorder *r, const char *what) {
    if ((n->flags & TN_NODE_VIEW) && overlaps(n))
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s_: in-place write to a tensor whose elements share memory (an expanded view): copy it with "
                       "tn_contiguous first",
                       what);
    bool leaf = s->slot || (n->flags & TN_NODE_LEAF);
    if (leaf && !r->no_grad)
        return tn_fail(TN_ERR_STATE,
                       "%s_: in-place write to a leaf that requires gradients: wrap the write in TN_NO_GRAD", what);
    return TN_OK;
}

/* Can dst hold the result of an op without losing its fraction, or becoming a number: torch.can_cast. */
static tn_status check_dtype(const tn_node *dst, const tn_node *result, const char *what) {
    char shape[96];
    bool to_whole = tn_dtype_is_float((tn_dtype)result->dtype) && !tn_dtype_is_float((tn_dtype)dst->dtype);
    bool to_bool = dst->dtype == TN_BOOL && result->dtype != TN_BOOL;
    if (!to_whole && !to_bool) return TN_OK;
    return tn_fail(TN_ERR_DTYPE,
                   "%s_: the result has dtype %s, which the target %s of %s cannot store; convert the target with "
                   "tn_cast, or store the result with tn_copy_",
                   what, tn_dtype_name((tn_dtype)result->dtype), tn_shape_text(dst, shape, sizeof shape),
                   tn_dtype_name((tn_dtype)dst->dtype));
}

static tn_status check_shape(const tn_node *dst, const tn_node *value, const char *what) {
    char is[96], wanted[96];
    bool fits = value->rank <= dst->rank;
    for (int d = 1; fits && d <= value->rank; d++) {
        int64_t extent = value->shape[value->rank - d];
        fits = extent == 1 || extent == dst->shape[dst->rank - d];
    }
    if (fits) return TN_OK;
    return tn_fail(TN_ERR_SHAPE, "%s_: %s does not fit the target %s; an in-place operation keeps the target's shape",
                   what, tn_shape_text(value, is, sizeof is), tn_shape_text(dst, wanted, sizeof wanted));
}

static __attribute__((noinline)) tn_tensor *target_was_freed(const char *what) {
    tn_status s = tn_fail(TN_ERR_ARGUMENT,
                          "%s_: the target was freed before this call (by tn_free, or at the end of its scope)", what);
    return tn_refuse_write(s);
}

static bool same_form(const tn_node *a, const tn_node *b) {
    return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof *a->shape);
}

/* Writes value to dst by the function `what`_. Nothing of dst changes before all that can fail has succeeded. fresh:
 * the value is an op's result, which nobody else holds; else it is what tn_copy_ was given, which is converted. */
static tn_tensor *write_node(tn_tensor *dst, tn_node *value, bool fresh, const char *what) {
    if (refusal.unreported) return refused();
    tn_node *now = tn_tensor_node(dst);
    if (now == &freed_node) return target_was_freed(what);
    if (now->flags & TN_NODE_ERROR) return dst;
    if (value->flags & TN_NODE_ERROR) return refuse_tensor(tn_node_retain(value));
    tn_recorder *r = tn_recorder_here();
    tn_storage *s = tn_tensor_storage(dst);
    if (!r || !s) return refuse_tensor(tn_node_error(TN_ERR_MEMORY, "out of host memory while recording a write"));
    tn_status ok = check_writable(now, s, r, what);
    bool fits = same_form(now, value);
    if (ok == TN_OK && fresh && !fits) ok = check_dtype(now, value, what);
    if (ok == TN_OK && !fits) ok = check_shape(now, value, what);
    bool recorded = !r->no_grad && (value->flags & TN_NODE_GRAD);
    if (ok == TN_OK && recorded && (is_detached(dst) || has_other_history(r, s, now)))
        ok = tn_fail(TN_ERR_STATE,
                     "%s_: the result requires gradients, and the target is detached from a tensor in the same memory, "
                     "which would get its gradient history: copy the target with tn_clone, or wrap the write in "
                     "TN_NO_GRAD",
                     what);
    if (ok != TN_OK) return tn_refuse_write(ok);
    const char *called = r->called;
    if (!called) r->called = what;
    tn_node *whole = written_value(dst, now, s, value, fresh, fits);
    whole = keep_history(r, s, now, whole);
    r->called = called;
    if (whole->flags & TN_NODE_ERROR) return refuse_tensor(whole);
    bool earlier = tn_node_computed(s->value) && !(s->value->flags & TN_NODE_CAPTURED);
    if (r->capturing && !s->state && earlier) r->captured_write = what;
    storage_set(r, s, whole);
    tn_tensor_node(dst); /* releases the old value, which need not be stored now */
    return dst;
}

tn_tensor *tn_copy_(tn_tensor *dst, const tn_tensor *src) {
    const char *missing = !dst ? "tn_copy_: dst" : !src ? "tn_copy_: src" : NULL;
    if (missing) return tn_refuse_write(tn_need(NULL, missing));
    tn_status s = tn_need_tensor(src, "tn_copy_: src");
    if (s != TN_OK) return tn_refuse_write(s);
    tn_node *value = tn_tensor_node(src), *now = tn_tensor_node(dst);
    bool apart = !((value->flags | now->flags) & TN_NODE_ERROR) && value->device != now->device;
    if (!apart) return write_node(dst, value, false, "copy");
    AUTO_TENSOR tn_tensor *moved = tn_tensor_unscoped(tn_graph_evaluator.to_device(src, now->device));
    return write_node(dst, tn_tensor_node(moved), false, "copy");
}

tn_tensor *tn_record_inplace(tn_tensor *dst, int op, const tn_tensor *const *in, int n_in, const tn_attrs *attrs) {
    tn_node *nodes[TN_MAX_INPUTS];
    for (int i = 0; i < n_in && i < TN_MAX_INPUTS; i++)
        nodes[i] = in[i] ? tn_tensor_node(in[i]) : NULL;
    tn_node *n = tn_node_make(op, nodes, n_in < TN_MAX_INPUTS ? n_in : TN_MAX_INPUTS, attrs);
    if (__builtin_expect(atomic_load_explicit(&tn_anomaly_mode, memory_order_relaxed) != 0, false)) n = examined(n);
    bool freed = n == &freed_node && tn_tensor_is_live(dst); /* an operand, not the target */
    tn_status s = freed ? input_was_freed(op, in, n_in) : tn_takes_indices(op) ? tn_check_indices(n) : TN_OK;
    dst = s != TN_OK ? tn_refuse_write(s) : write_node(dst, n, true, tn_op(op)->name);
    tn_node_release(n);
    return dst;
}

tn_status tn_swap(tn_tensor *first, tn_tensor *second) {
    TRY(tn_need_tensor(first, "tn_swap: a"));
    TRY(tn_need_tensor(second, "tn_swap: b"));
    tn_handle *a = tn_handle_of(first), *b = tn_handle_of(second);
    if (a->slot == NOT_FREED || b->slot == NOT_FREED) {
        TRY(tn_status_of(first));
        return tn_status_of(second);
    }
    if (a->base || b->base) return tn_fail(TN_ERR_ARGUMENT, "tn_swap: a view cannot be swapped; swap its base");
    tn_storage *storage = atomic_load(&a->storage);
    tn_node *node = a->node;
    uint32_t version = a->version;
    a->node = b->node;
    a->version = b->version;
    atomic_store(&a->storage, atomic_load(&b->storage));
    b->node = node;
    b->version = version;
    atomic_store(&b->storage, storage);
    return TN_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* What the function `what` was given: a shape of a dtype, in bytes. */
static tn_status data_bytes(const char *what, const int64_t *shape, int rank, tn_dtype dtype, size_t *bytes) {
    if (rank < 0 || rank > TN_MAX_RANK)
        return tn_fail(TN_ERR_SHAPE, "%s: a tensor of rank %d is not supported: rank must be 0 to %d", what, rank,
                       TN_MAX_RANK);
    if (rank > 0 && !shape) return tn_fail(TN_ERR_ARGUMENT, "%s: shape is NULL, but the rank is %d", what, rank);
    if (tn_dtype_size(dtype) == 0) return tn_fail(TN_ERR_DTYPE, "%s: %d is not a dtype", what, (int)dtype);
    int64_t total = (int64_t)tn_dtype_size(dtype), block = tn_dtype_block(dtype);
    if (block > 1 && (rank == 0 || shape[rank - 1] % block))
        return tn_fail(TN_ERR_SHAPE,
                       "%s: the last extent of a %s tensor is %lld; it must be a multiple of the block size %lld", what,
                       tn_dtype_name(dtype), (long long)(rank ? shape[rank - 1] : 1), (long long)block);
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            return tn_fail(TN_ERR_SHAPE, "%s: extent %d of the shape is %lld: negative", what, d, (long long)shape[d]);
        if (tn_mul_overflow(total, d == rank - 1 ? shape[d] / block : shape[d], &total))
            return tn_fail(TN_ERR_SHAPE, "%s: the shape has more than 2^63 bytes", what);
    }
    *bytes = (size_t)total;
    return TN_OK;
}

static tn_tensor *from_buffer(tn_buffer *b, const int64_t *shape, int rank, tn_dtype dtype) {
    tn_node *n = tn_node_data(b, shape, rank, dtype);
    tn_buffer_release(b);
    return tn_tensor_new(n);
}

tn_tensor *tn_from_data(const void *data, const int64_t *shape, int rank, tn_dtype dtype) {
    size_t bytes = 0;
    tn_buffer *b = NULL;
    tn_status s = data_bytes("tn_from_data", shape, rank, dtype, &bytes);
    tn_device *device = tn_current_device();
    if (s == TN_OK && !device) s = tn_error_code();
    if (s == TN_OK && bytes) s = tn_need(data, "tn_from_data: data");
    if (s == TN_OK) s = tn_buffer_new_for_host(device, bytes, &b);
    if (s == TN_OK && bytes) s = tn_buffer_write(b, 0, data, bytes);
    if (s == TN_OK && bytes && !device->is_cpu) tn_buffer_note_integers(b, dtype, data, bytes);
    if (s == TN_OK) return from_buffer(b, shape, rank, dtype);
    tn_buffer_release(b);
    return tn_tensor_error(s);
}

tn_tensor *tn_from_ptr(void *data, const int64_t *shape, int rank, tn_dtype dtype, void (*release)(void *), void *ctx) {
    tn_device *device = tn_current_device();
    size_t bytes = 0;
    tn_buffer *b = NULL;
    tn_status s = data_bytes("tn_from_ptr", shape, rank, dtype, &bytes);
    if (s == TN_OK && device && !device->caps.host_visible && !tn_device_owns(device, data, bytes)) {
        tn_tensor *t = tn_from_data(data, shape, rank, dtype);
        if (release) release(ctx);
        return t;
    }
    if (s == TN_OK && !device) s = tn_error_code();
    if (s == TN_OK && bytes) s = tn_need(data, "tn_from_ptr: data");
    if (s == TN_OK && tn_dtype_is_quantized(dtype) && (uintptr_t)data % (dtype == TN_Q8_X ? 4 : 2))
        s = tn_fail(TN_ERR_ARGUMENT,
                    "tn_from_ptr: the data of %s must be aligned to 2 bytes (q8_x: to 4): copy them with tn_from_data",
                    tn_dtype_name(dtype));
    if (s == TN_OK) s = tn_buffer_borrow(device, data, bytes, release, ctx, &b);
    if (s == TN_OK) return from_buffer(b, shape, rank, dtype);
    if (release) release(ctx);
    return tn_tensor_error(s);
}

tn_tensor *tn_scalar(double value) { return tn_tensor_new(tn_node_number(value)); }

tn_tensor *tn_scalar_int(int64_t value) {
    enum { EXACT_BITS = 53 }; /* a number node holds a double; a larger value is data */
    tn_node *n = NULL;
    if (value >= -(INT64_C(1) << EXACT_BITS) && value <= INT64_C(1) << EXACT_BITS) {
        tn_attrs a = {.n_i = 2, .n_f = 1, .i = {0, TN_I64}, .f = {(double)value}};
        n = tn_node_make(TN_OP_FULL, NULL, 0, &a);
        if (!(n->flags & TN_NODE_ERROR)) n->flags |= TN_NODE_WRAPPED;
        return tn_tensor_new(n);
    }
    tn_tensor *t = (tn_from_data)(&value, NULL, 0, TN_I64);
    n = tn_tensor_node(t);
    if (!(n->flags & TN_NODE_ERROR)) n->flags |= TN_NODE_WRAPPED;
    return t;
}

static tn_tensor *scalar(int kind, int64_t i, double f) {
    tn_attrs a = {.n_i = 3, .n_f = 1, .i = {kind, i, 0}, .f = {f}};
    return tn_tensor_new(tn_node_make(TN_OP_RUNTIME_SCALAR, NULL, 0, &a));
}

tn_tensor *tn_runtime_scalar(double value) { return scalar(TN_SCALAR_FLOAT, 0, value); }
tn_tensor *tn_runtime_scalar_int(int64_t value) { return scalar(TN_SCALAR_INT, value, 0.0); }

tn_tensor *tn_symbolic(const tn_tensor *t, int64_t dim, int symbol) {
    tn_status s = tn_need_tensor(t, "tn_symbolic: the tensor");
    if (s != TN_OK) return tn_tensor_error(s);
    tn_node *n = tn_tensor_node(t);
    if (n->flags & TN_NODE_ERROR) return tn_tensor_new(tn_node_retain(n));
    int64_t d = dim < 0 ? dim + n->rank : dim;
    if (d < 0 || d >= n->rank || symbol < 0 || symbol >= TN_SYMBOLS) {
        tn_fail(TN_ERR_ARGUMENT,
                "tn_symbolic: dim %lld of a tensor of rank %d, symbol %d (0 to 3): a value is out of range",
                (long long)dim, n->rank, symbol);
        return tn_tensor_error(TN_ERR_ARGUMENT);
    }
    if (!n->buffer)
        return tn_tensor_error(tn_fail(
            TN_ERR_STATE, "tn_symbolic: only inputs can be marked (data or evaluated tensors), not recorded results"));
    tn_node *marked = tn_node_data(n->buffer, n->shape, n->rank, (tn_dtype)n->dtype);
    if (!(marked->flags & TN_NODE_ERROR)) {
        memcpy(marked->symbol, n->symbol, sizeof marked->symbol);
        marked->symbol[d] = (uint8_t)(1 + symbol);
    }
    return tn_tensor_new(marked);
}

tn_status tn_make_state(tn_tensor *t) {
    TRY(tn_need_tensor(t, "tn_make_state: the tensor"));
    tn_node *n = tn_tensor_node(t);
    if (n->flags & TN_NODE_ERROR) return tn_fail(n->status, "%s", n->error);
    if (tn_handle_of(t)->base)
        return tn_fail(TN_ERR_ARGUMENT, "tn_make_state: a view cannot be a state; make its base one");
    tn_storage *s = tn_tensor_storage(t);
    tn_recorder *r = tn_recorder_here();
    if (!s || !r) return TN_ERR_MEMORY;
    if (s->state) return TN_OK;
    TRY(tn_graph_evaluator.flush(r, &n, 1));
    if (!n->buffer)
        return tn_fail(TN_ERR_STATE,
                       "tn_make_state: another thread recorded this tensor and must evaluate it (tn_eval) first");
    tn_buffer *home = NULL;
    TRY(tn_buffer_new(n->device, tn_node_bytes(n), &home));
    /* The value may be shared (borrowed memory, a constant): state has memory of its own. */
    tn_status status = TN_OK;
    if (home->bytes) status = tn_buffer_copy(home, n->buffer, tn_node_bytes(n));
    if (tn_buffer_is_known(n->buffer)) {
        home->known = n->buffer->known;
        home->known.version = home->version;
    }
    tn_node *value = status == TN_OK ? tn_node_data(home, n->shape, n->rank, (tn_dtype)n->dtype) : NULL;
    if (!value || (value->flags & TN_NODE_ERROR)) {
        tn_buffer_release(home);
        tn_node_release(value);
        return status != TN_OK ? status : TN_ERR_MEMORY;
    }
    s->home = home;
    home->is_home = true;
    s->resident = tn_node_retain(value);
    s->state = true;
    storage_set(r, s, value);
    /* The value is at home already: nothing is pending. */
    if (s->in_written && r->written == s) {
        r->written = s->next_written;
        s->in_written = false;
        tn_storage_release(s);
    }
    (void)tn_tensor_node(t); /* the handle follows, and lets go of the memory before */
    return TN_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* Of the current value: a handle may be behind, and hold an error where its tensor was restored since. */
int tn_rank(const tn_tensor *t) {
    const tn_node *n = tn_tensor_node(t);
    return n->flags & TN_NODE_ERROR ? 0 : n->rank;
}

int64_t tn_size(const tn_tensor *t, int64_t dim) {
    int rank = tn_rank(t);
    int64_t d = dim < 0 ? dim + rank : dim;
    return d >= 0 && d < rank ? tn_tensor_node(t)->shape[d] : -1;
}

const int64_t *tn_shape(const tn_tensor *t) { return tn_tensor_node(t)->shape; }
int64_t tn_numel(const tn_tensor *t) {
    const tn_node *n = tn_tensor_node(t);
    return n->flags & TN_NODE_ERROR ? 0 : tn_node_numel(n);
}
tn_dtype tn_dtype_of(const tn_tensor *t) { return (tn_dtype)tn_tensor_node(t)->dtype; }
tn_device *tn_device_of(const tn_tensor *t) { return tn_tensor_node(t)->device; }

tn_status tn_status_of(const tn_tensor *t) {
    bool refusals = t && tn_tensor_is_live(t) && tn_handle_of(t)->slot == NOT_FREED;
    if (refusals) refusal.unreported = false; /* this thread's, or there was no memory for it */
    const tn_node *n = tn_tensor_node(t);
    return n->flags & TN_NODE_ERROR ? tn_fail(n->status, "%s", n->error) : TN_OK;
}

int64_t tn_write_count(const tn_tensor *t) {
    bool live = t && tn_tensor_is_live(t);
    const tn_storage *s = live ? atomic_load_explicit(&tn_handle_of(t)->storage, memory_order_acquire) : NULL;
    return s ? (int64_t)s->version : 0;
}

uint64_t tn_value_id(const tn_tensor *t) {
    bool own = t && tn_tensor_is_live(t) && tn_handle_of(t)->slot != NOT_FREED;
    const tn_storage *s = own ? tn_tensor_storage(t) : NULL;
    return s ? s->id : 0;
}

bool tn_grad_enabled(void) {
    const tn_recorder *r = tn_recorder_here();
    return r && !r->no_grad;
}

bool tn_set_grad_enabled(bool enabled) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return true;
    bool before = !r->no_grad;
    r->no_grad = !enabled;
    return before;
}

bool tn_set_auto_recompute(bool on) {
    tn_recorder *r = tn_recorder_here();
    if (!r) return false;
    bool before = r->recomputes;
    r->recomputes = on;
    return before;
}

tn_dtype tn_autocast_dtype(void) {
    const tn_recorder *r = tn_recorder_here();
    return r ? (tn_dtype)r->autocast : TN_F32;
}

tn_autocast tn_autocast_begin(tn_dtype dtype) {
    tn_recorder *r = tn_recorder_here();
    tn_autocast before = {.before = tn_autocast_dtype()};
    if (r) r->autocast = (uint8_t)dtype;
    if (dtype != TN_F32) atomic_store_explicit(&autocast_used, true, memory_order_relaxed);
    return before;
}

void tn_autocast_end(tn_autocast *scope) {
    if (scope) (void)tn_autocast_begin(scope->before);
}

int32_t tn_recompute_regions(int count) {
    static _Atomic uint32_t regions;
    uint32_t first = atomic_fetch_add_explicit(&regions, (uint32_t)count, memory_order_relaxed);
    return 1 + (int32_t)(first % (uint32_t)(INT32_MAX - count));
}

tn_recompute tn_recompute_begin(void) {
    tn_recorder *r = tn_recorder_here();
    tn_recompute before = {.before = r ? r->origin : 0};
    if (r) r->origin = tn_recompute_regions(1);
    return before;
}

void tn_recompute_end(tn_recompute *scope) {
    tn_recorder *r = scope ? tn_recorder_here() : NULL;
    if (r) r->origin = scope->before;
}

tn_grad_mode tn_no_grad_begin(void) { return (tn_grad_mode){.before = tn_set_grad_enabled(false)}; }
void tn_no_grad_end(tn_grad_mode *mode) {
    if (mode) tn_set_grad_enabled(mode->before);
}
