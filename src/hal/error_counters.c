/* error_counters.c — errors that kernels count on their device, and that the host reports when it next waits.
 *
 * A kernel cannot fail, so it adds to words in device memory. After a wait the host reads the words of those counters
 * that kernels may have changed since the last look, and compares their sums with what it saw then. Nothing is written
 * back, so looking needs no order with later kernels, and programs without such kernels pay one load per wait.
 *
 * Words are read without `lock`, because reading waits for a queue whose work may be about to call touch. */
#include <pthread.h>

#include "hal/hal.h"

struct tn_error_counters {
    tn_error_counters *next;
    tn_buffer *words; /* `parts` of each counter */
    tn_counted_error *errors;
    uint32_t *seen, *read; /* sums at the last look; room for the words */
    int count, parts;
    bool touched, kept;   /* kept: released, but not yet looked at */
    bool is_read, closed; /* now, by the thread that reports; closed: nobody waits for the device any more */
    uint64_t looked;      /* the last report that has looked */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* the list and its members, except words and `read` */
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER; /* one report at a time; taken before `lock` */
static uint64_t reports;                                        /* guarded by report_lock */
static tn_error_counters *all;
static atomic_int touched_count;

static void counters_free(tn_error_counters *c) {
    tn_buffer_release(c->words);
    tn_mem_free_each(c->errors, c->seen, c->read, c);
}

tn_status tn_error_counters_new(tn_device *d, int count, int parts, tn_error_counters **out) {
    tn_error_counters *c = tn_mem_zalloc(1, sizeof *c);
    size_t words = (size_t)count * (size_t)parts;
    if (!c) return TN_ERR_MEMORY;
    *c = (tn_error_counters){.errors = tn_mem_zalloc((size_t)count, sizeof *c->errors),
                             .seen = tn_mem_zalloc((size_t)count, sizeof *c->seen),
                             .read = tn_mem_zalloc(words, sizeof *c->read),
                             .count = count,
                             .parts = parts};
    tn_status s = c->errors && c->seen && c->read ? TN_OK : TN_ERR_MEMORY;
    if (s == TN_OK) s = tn_buffer_new(d, words * sizeof *c->read, &c->words);
    if (s == TN_OK) s = tn_buffer_write(c->words, 0, c->read, words * sizeof *c->read);
    if (s != TN_OK) {
        counters_free(c);
        return s;
    }
    pthread_mutex_lock(&lock);
    c->next = all;
    all = c;
    pthread_mutex_unlock(&lock);
    *out = c;
    return TN_OK;
}

tn_buffer *tn_error_counters_words(const tn_error_counters *c) { return c->words; }

void tn_error_counters_name(tn_error_counters *c, int counter, const tn_counted_error *error) {
    AUTO_LOCK(&lock);
    c->errors[counter] = *error;
}

/* The caller holds the lock, as in the functions below. */
static void set_touched(tn_error_counters *c, bool touched) {
    if (c->touched == touched) return;
    c->touched = touched;
    atomic_fetch_add(&touched_count, touched ? 1 : -1);
}

void tn_error_counters_touch(tn_error_counters *c) {
    AUTO_LOCK(&lock);
    set_touched(c, true);
}

static void unlink_counters(tn_error_counters *c) {
    tn_error_counters **link = &all;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    set_touched(c, false);
}

void tn_error_counters_release(tn_error_counters *c) {
    if (!c) return;
    pthread_mutex_lock(&lock);
    bool kept = c->kept = c->is_read || (c->touched && !c->closed);
    if (!kept) unlink_counters(c);
    pthread_mutex_unlock(&lock);
    if (!kept) counters_free(c);
}

static tn_status report_one(const tn_error_counters *c, int counter, uint32_t count) {
    const tn_counted_error *e = &c->errors[counter];
    tn_status s = tn_fail(TN_ERR_ARGUMENT, "%s: %lu %s", e->what, (unsigned long)count, e->rule);
    return e->file ? tn_fail_prefix(s, "%s:%d", e->file, (int)e->line) : s;
}

/* The first counter that has grown is reported; the others stay for the next call. */
static tn_status compare(tn_error_counters *c) {
    for (int i = 0; i < c->count; i++) {
        uint32_t sum = 0;
        for (int k = 0; k < c->parts; k++)
            sum += c->read[i * c->parts + k];
        uint32_t more = sum - c->seen[i];
        c->seen[i] = sum;
        if (!more) continue;
        set_touched(c, true);
        return report_one(c, i, more);
    }
    return TN_OK;
}

/* Counters whose kernels another queue has yet to run are looked at after a later wait. */
static bool is_ready(tn_error_counters *c, const tn_device *d) {
    bool ordered = atomic_load_explicit(&d->ordered, memory_order_acquire);
    return c->touched && c->looked != reports && c->words->device == d &&
           (!ordered || tn_buffer_is_reusable(c->words, true));
}

/* Untouched before they are read, so that kernels which come too late for that are looked at again. */
static tn_error_counters *take_ready(const tn_device *d) {
    AUTO_LOCK(&lock);
    tn_error_counters *c = all;
    while (c && !is_ready(c, d))
        c = c->next;
    if (c) {
        set_touched(c, false);
        c->is_read = true;
        c->looked = reports;
    }
    return c;
}

static tn_status look(tn_error_counters *c) {
    tn_status s = tn_buffer_read(c->words, 0, c->read, (size_t)c->count * (size_t)c->parts * sizeof *c->read);
    pthread_mutex_lock(&lock);
    c->is_read = false;
    if (s == TN_OK)
        s = compare(c);
    else
        set_touched(c, true);
    bool done = c->kept && (!c->touched || c->closed);
    if (done) unlink_counters(c);
    pthread_mutex_unlock(&lock);
    if (done) counters_free(c);
    return s;
}

tn_status tn_error_counters_report(const tn_device *d) {
    tn_status s = TN_OK;
    /* the host compares indices of the CPU, which must go on if another device hangs while it is read */
    if (d->is_cpu || atomic_load_explicit(&touched_count, memory_order_acquire) == 0) return TN_OK;
    AUTO_LOCK(&report_lock);
    reports++;
    for (tn_error_counters *c; s == TN_OK && (c = take_ready(d));)
        s = look(c);
    return s;
}

void tn_error_counters_close(const tn_device *d) {
    tn_error_counters *gone = NULL;
    pthread_mutex_lock(&lock);
    for (tn_error_counters *c = all, *next; c; c = next) {
        next = c->next;
        if (c->words->device != d) continue;
        c->closed = true;
        if (!c->kept || c->is_read) continue;
        unlink_counters(c);
        c->next = gone;
        gone = c;
    }
    pthread_mutex_unlock(&lock);
    while (gone) {
        tn_error_counters *next = gone->next;
        counters_free(gone);
        gone = next;
    }
}
