/* forms.c — what is made of a buffer's content once and used many times: see tn_form.
 *
 * The list of a buffer only grows, and an entry says which version of the content it was made of: so a kernel that
 * finds what it needs takes no lock. One lock for all guards the making, which happens once a weight.
 *
 * Forms that replace the content are weights of a model: they get memory side by side in large pages. */
#include <pthread.h>
#include <string.h>

#include "hal/hal.h"

typedef struct tn_form_entry {
    tn_form form;
    tn_buffer *result;
    _Atomic uint64_t version; /* of the content it was made of */
    struct tn_form_entry *next;
} form_entry;

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static bool same_form(const tn_form *a, const tn_form *b) {
    return a->make == b->make && a->bytes == b->bytes && memcmp(a->word, b->word, sizeof a->word) == 0;
}

static form_entry *find(const tn_buffer *b, const tn_form *form) {
    form_entry *e = atomic_load_explicit(&b->forms, memory_order_acquire);
    while (e && !same_form(&e->form, form))
        e = e->next;
    return e;
}

static bool is_current(const form_entry *e, const tn_buffer *b) {
    return e && atomic_load_explicit(&e->version, memory_order_acquire) == b->version;
}

/* Rows of a weight that are looked up in the file itself (an embedding that is the output matrix too) bring its pages
 * back one by one: they go again whenever somebody asks for the form anew. */
static void give_back(const tn_form *form, const tn_buffer *b) {
    if (form->replaces) tn_map_return_pages(b->address, b->bytes);
}

static void make_entry(form_entry *e, const tn_buffer *b) {
    e->form.make(&e->form, b->address, e->result->address);
    atomic_store_explicit(&e->version, b->version, memory_order_release);
    give_back(&e->form, b);
}

/* ---- memory of forms that replace the content -------------------------------------------------------------------- */

/* A model's weights, of which many are smaller than a large page, side by side in pieces of memory made of large pages:
 * a token reads them all. A piece goes when its last form has gone. */
enum { SLAB_BYTES = 16 << 20, FORM_ALIGNMENT = 64 };

typedef struct slab {
    tn_buffer *memory;
    size_t used;
    int64_t forms;
} slab;

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static slab *newest; /* NULL, or the piece that is being filled */

static void slab_release(void *ctx) {
    slab *s = ctx;
    pthread_mutex_lock(&slab_lock);
    bool last = --s->forms == 0;
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
        s->used += (bytes + FORM_ALIGNMENT - 1) / FORM_ALIGNMENT * FORM_ALIGNMENT;
        s->forms++;
        newest = s;
    } else if (s->forms == 0) {
        tn_buffer_release(s->memory);
        tn_mem_free(s);
    }
    return status;
}

static tn_status form_memory(tn_device *d, const tn_form *form, tn_buffer **out) {
    bool large = form->bytes >= TN_LARGE_PAGE;
    if (!d->is_cpu || !form->replaces || large || form->bytes == 0)
        return tn_buffer_new_for_host(d, form->bytes, out);
    pthread_mutex_lock(&slab_lock);
    tn_status s = slab_carve(d, form->bytes, out);
    pthread_mutex_unlock(&slab_lock);
    return s;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static tn_status add_entry(tn_buffer *b, const tn_form *form, form_entry **out) {
    form_entry *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    tn_status s = form_memory(b->device, form, &e->result);
    if (s == TN_OK) (void)tn_buffer_await(e->result, true); /* it is written by this thread */
    if (s != TN_OK) {
        tn_mem_free(e);
        return s;
    }
    e->form = *form;
    make_entry(e, b);
    e->next = atomic_load_explicit(&b->forms, memory_order_relaxed);
    atomic_store_explicit(&b->forms, e, memory_order_release);
    *out = e;
    return TN_OK;
}

tn_status tn_buffer_form(tn_buffer *b, const tn_form *form, void **out) {
    form_entry *e = find(b, form);
    tn_status s = TN_OK;
    if (is_current(e, b)) {
        give_back(&e->form, b);
    } else {
        pthread_mutex_lock(&making);
        (void)tn_buffer_await(b, true); /* the content is to be there, and nobody to read the form as it was */
        e = find(b, form);
        if (!e)
            s = add_entry(b, form, &e);
        else if (!is_current(e, b))
            make_entry(e, b);
        pthread_mutex_unlock(&making);
    }
    *out = e ? e->result->address : NULL;
    return s;
}

void tn_buffer_drop_forms(tn_buffer *b) {
    form_entry *e = atomic_exchange_explicit(&b->forms, NULL, memory_order_acquire);
    while (e) {
        form_entry *next = e->next;
        tn_buffer_release(e->result);
        tn_mem_free(e);
        e = next;
    }
}
