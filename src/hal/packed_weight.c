/* packed_weight.c — what is made of a buffer's content once and used many times: see tn_packed_weight.
 *
 * The list of a buffer only grows, and an entry says which version of the content it was made of: so a kernel that
 * finds what it needs takes no lock. One lock for all guards the making, which happens once a weight.
 *
 * Forms that replace the content are weights of a model: they get memory side by side in large pages. */
#include <pthread.h>
#include <string.h>

#include "hal/hal.h"

typedef struct tn_packed_entry {
    tn_packed_weight format;
    tn_buffer *result;
    _Atomic uint64_t version; /* of the content it was made of */
    struct tn_packed_entry *next;
} packed_entry;

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static bool same_packed(const tn_packed_weight *a, const tn_packed_weight *b) {
    return a->make == b->make && a->bytes == b->bytes && memcmp(a->word, b->word, sizeof a->word) == 0;
}

static packed_entry *find_packed(const tn_buffer *b, const tn_packed_weight *packed) {
    packed_entry *e = atomic_load_explicit(&b->packed_weights, memory_order_acquire);
    while (e && !same_packed(&e->format, packed))
        e = e->next;
    return e;
}

static bool is_current(const packed_entry *e, const tn_buffer *b) {
    return e && atomic_load_explicit(&e->version, memory_order_acquire) == b->version;
}

/* Rows of a weight that are looked up in the file itself (an embedding that is the output matrix too) bring its pages
 * back one by one: they go again whenever somebody asks for the form anew. */
static void give_back(const tn_packed_weight *packed, const tn_buffer *b) {
    if (packed->replaces) tn_map_return_pages(b->address, b->bytes);
}

static void make_entry(packed_entry *e, const tn_buffer *b) {
    e->format.make(&e->format, b->address, e->result->address);
    atomic_store_explicit(&e->version, b->version, memory_order_release);
    give_back(&e->format, b);
}

/* ---- memory of forms that replace the content -------------------------------------------------------------------- */

/* A model's weights, of which many are smaller than a large page, side by side in pieces of memory made of large pages:
 * a token reads them all. A piece goes when its last form has gone. */
enum { SLAB_BYTES = 16 << 20, PACKED_ALIGNMENT = 64 };

typedef struct slab {
    tn_buffer *memory;
    size_t used;
    int64_t packed_weights;
} slab;

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static slab *newest; /* NULL, or the piece that is being filled */

static void slab_release(void *ctx) {
    slab *s = ctx;
    pthread_mutex_lock(&slab_lock);
    bool last = --s->packed_weights == 0;
    if (last && newest == s) newest = NULL;
    pthread_mutex_unlock(&slab_lock);
    if (!last) return;
    tn_buffer_release(s->memory);
    tn_mem_free(s);
}

static tn_status slab_new(tn_device *d, slab **out) {
    slab *s = tn_mem_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    tn_status status = tn_buffer_new_for_host(d, SLAB_BYTES, &s->memory);
    if (status != TN_OK) {
        tn_mem_free(s);
        return status;
    }
    (void)tn_buffer_await(s->memory, true); /* written by this thread */
    *out = s;
    return TN_OK;
}

/* The caller holds the lock. */
static tn_status slab_carve(tn_device *d, size_t bytes, tn_buffer **out) {
    slab *s = newest;
    if (!s || s->memory->device != d || bytes > SLAB_BYTES - s->used) TRY(slab_new(d, &s));
    tn_status status = tn_buffer_borrow(d, (char *)s->memory->address + s->used, bytes, slab_release, s, out);
    if (status == TN_OK) {
        s->used += (bytes + PACKED_ALIGNMENT - 1) / PACKED_ALIGNMENT * PACKED_ALIGNMENT;
        s->packed_weights++;
        newest = s;
    } else if (s->packed_weights == 0) {
        tn_buffer_release(s->memory);
        tn_mem_free(s);
    }
    return status;
}

static tn_status packed_memory(tn_device *d, const tn_packed_weight *packed, tn_buffer **out) {
    bool large = packed->bytes >= TN_LARGE_PAGE;
    if (!d->is_cpu || !packed->replaces || large || packed->bytes == 0)
        return tn_buffer_new_for_host(d, packed->bytes, out);
    pthread_mutex_lock(&slab_lock);
    tn_status s = slab_carve(d, packed->bytes, out);
    pthread_mutex_unlock(&slab_lock);
    return s;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static tn_status add_entry(tn_buffer *b, const tn_packed_weight *packed, packed_entry **out) {
    packed_entry *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    tn_status s = packed_memory(b->device, packed, &e->result);
    if (s == TN_OK) (void)tn_buffer_await(e->result, true); /* it is written by this thread */
    if (s != TN_OK) {
        tn_mem_free(e);
        return s;
    }
    e->format = *packed;
    make_entry(e, b);
    e->next = atomic_load_explicit(&b->packed_weights, memory_order_relaxed);
    atomic_store_explicit(&b->packed_weights, e, memory_order_release);
    *out = e;
    return TN_OK;
}

tn_status tn_buffer_packed_weight(tn_buffer *b, const tn_packed_weight *packed, void **out) {
    packed_entry *e = find_packed(b, packed);
    tn_status s = TN_OK;
    if (is_current(e, b)) {
        give_back(&e->format, b);
    } else {
        pthread_mutex_lock(&making);
        (void)tn_buffer_await(b, true); /* the content is to be there, and nobody to read the form as it was */
        e = find_packed(b, packed);
        if (!e)
            s = add_entry(b, packed, &e);
        else if (!is_current(e, b))
            make_entry(e, b);
        pthread_mutex_unlock(&making);
    }
    *out = e ? e->result->address : NULL;
    return s;
}

void tn_buffer_drop_packed(tn_buffer *b) {
    packed_entry *e = atomic_exchange_explicit(&b->packed_weights, NULL, memory_order_acquire);
    while (e) {
        packed_entry *next = e->next;
        tn_buffer_release(e->result);
        tn_mem_free(e);
        e = next;
    }
}
