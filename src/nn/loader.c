/* loader.c — the order in which samples are visited; batches of a source, read ahead by threads.
 *
 * A ring of slots: the k-th batch goes to slot k % ahead. A thread takes the next batch's number and samples under the
 * lock, reads them without it, and marks the slot ready; the caller takes slots in order. So batches are the same with
 * any number of threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/make.h"
#include "trunnion/backend.h"
#include "trunnion/data.h"

/* ---- order of samples -------------------------------------------------------------------------------------------- */
/* The place of a sample is found by a keyed permutation of [0, count): a Feistel network over the smallest even number
 * of bits that holds count, applied again until the result is below count (at most four times on average). So the
 * order of an epoch takes no memory, and a position is two numbers. */

enum { ROUNDS = 6 };

static uint64_t mixed(uint64_t z) { /* SplitMix64's finalizer: Steele, Lea and Flood 2014 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static int64_t permuted(const tn_batches *b, int64_t place) {
    int half = 1;
    while (half < 31 && (int64_t)1 << 2 * half < b->count)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = mixed(b->seed + 0x9E3779B97F4A7C15u * (uint64_t)(b->epoch + 1));
    uint64_t x = (uint64_t)place;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 1; round <= ROUNDS; round++) {
            uint64_t next = left ^ (mixed(key + round * 0xD1342543DE82EF95u + right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)b->count);
    return (int64_t)x;
}

int64_t tn_batches_per_epoch(const tn_batches *b) {
    tn_batches o = TN_BATCHES_DEFAULTS;
    if (!b || tn_options_read(&o, b, "tn_batches", "tn_batches b = TN_BATCHES_DEFAULTS") != TN_OK) return 0;
    int64_t batches = o.batch < 1 ? 0 : o.drop_last ? o.count / o.batch : o.count / o.batch + (o.count % o.batch != 0);
    if (o.count >= 1 && o.count <= INT64_C(1) << 60 && batches >= 1 && o.epoch >= 0 && o.next >= 0) return batches;
    (void)tn_backend_fail(TN_ERR_ARGUMENT,
                          "tn_batches: %lld samples in batches of %lld%s at epoch %lld, batch %lld; there must be at "
                          "least one batch, and no negative number",
                          (long long)o.count, (long long)o.batch, o.drop_last ? " (drop_last)" : "", (long long)o.epoch,
                          (long long)o.next);
    return 0;
}

int64_t tn_batches_next(tn_batches *b, int64_t *indices) {
    int64_t batches = tn_batches_per_epoch(b);
    if (batches == 0 || !indices) return 0;
    if (b->next >= batches) {
        b->next = 0;
        b->epoch++;
    }
    int64_t first = b->next++ * b->batch, count = b->count - first < b->batch ? b->count - first : b->batch;
    for (int64_t i = 0; i < count; i++)
        indices[i] = b->shuffle ? permuted(b, first + i) : first + i;
    return count;
}

/* ---- reading ahead ----------------------------------------------------------------------------------------------- */

enum { MOST_THREADS = 64, MOST_AHEAD = 64, MESSAGE = 512 };

struct tn_dataset {
    int64_t count;
    int field_count;
    tn_dataset_field fields[TN_DATASET_FIELDS];
    size_t bytes[TN_DATASET_FIELDS];
    tn_dataset_read *read;
    void (*destroy)(void *ctx);
    void *ctx;
};

/* ---- source ------------------------------------------------------------------------------------------------------ */

static tn_status check_field(const tn_dataset_field *f, size_t *bytes) {
    size_t most = sizeof(size_t) > 4 ? (size_t)(UINT64_C(1) << 40) : SIZE_MAX / 16, count = 1;
    bool good = f->rank >= 0 && f->rank < TN_MAX_RANK && f->dtype < TN_DTYPE_COUNT && tn_dtype_block(f->dtype) == 1;
    for (int d = 0; d < f->rank && good; d++) {
        good = f->shape[d] > 0 && (size_t)f->shape[d] <= most / count;
        if (good) count *= (size_t)f->shape[d];
    }
    *bytes = good ? count * tn_dtype_size(f->dtype) : 0;
    return good ? TN_OK
                : tn_backend_fail(TN_ERR_ARGUMENT,
                                  "tn_dataset_new: a field must have a plain dtype, at most %d "
                                  "dimensions, and extents above 0",
                                  TN_MAX_RANK - 1);
}

tn_status tn_dataset_new(int64_t count, const tn_dataset_field *fields, int field_count, tn_dataset_read *read,
                         void (*destroy)(void *ctx), void *ctx, tn_dataset **out) {
    tn_dataset *d = calloc(1, sizeof *d);
    tn_status status = d ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    if (status == TN_OK &&
        (!out || !fields || !read || count < 1 || field_count < 1 || field_count > TN_DATASET_FIELDS))
        status = tn_backend_fail(TN_ERR_ARGUMENT,
                                 "tn_dataset_new: %lld samples with %d fields; there must be samples, 1 to %d fields, "
                                 "and a function that reads them",
                                 (long long)count, field_count, TN_DATASET_FIELDS);
    if (out) *out = NULL;
    if (d) *d = (tn_dataset){.count = count, .field_count = field_count, .read = read, .destroy = destroy, .ctx = ctx};
    for (int f = 0; f < field_count && status == TN_OK; f++) {
        d->fields[f] = fields[f];
        status = check_field(&fields[f], &d->bytes[f]);
    }
    if (status == TN_OK) {
        *out = d;
        return TN_OK;
    }
    if (destroy) destroy(ctx);
    free(d);
    return status;
}

void tn_dataset_free(tn_dataset *d) {
    if (!d) return;
    if (d->destroy) d->destroy(d->ctx);
    free(d);
}

int64_t tn_dataset_count(const tn_dataset *d) { return d ? d->count : 0; }
int tn_dataset_fields(const tn_dataset *d) { return d ? d->field_count : 0; }

/* ---- slots ------------------------------------------------------------------------------------------------------- */

typedef enum slot_state { SLOT_FREE, SLOT_TAKEN, SLOT_READY } slot_state;

typedef struct slot {
    slot_state state;
    int64_t rows, *samples;
    tn_batches behind; /* the position after this batch */
    void *data[TN_DATASET_FIELDS];
    tn_status status;
    char message[MESSAGE];
} slot;

struct tn_loader {
    tn_dataset *d;
    tn_batches batches;  /* of the next batch to read */
    tn_batches position; /* behind the last one handed out */
    slot *slots;
    int ahead, thread_count;
    int64_t begun, handed_out; /* batches that threads have begun, and that were handed out */
    bool ends;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t threads[MOST_THREADS];
};

/* The next batch's samples, for a slot. */
static void assign(tn_loader *l, slot *s) {
    s->rows = tn_batches_next(&l->batches, s->samples);
    s->behind = l->batches;
    s->state = SLOT_TAKEN;
    l->begun++;
}

static void fill(const tn_dataset *d, slot *s) {
    s->status = TN_OK;
    for (int64_t i = 0; i < s->rows && s->status == TN_OK; i++)
        for (int f = 0; f < d->field_count && s->status == TN_OK; f++) {
            s->status = d->read(d->ctx, s->samples[i], f, (char *)s->data[f] + (size_t)i * d->bytes[f]);
            if (s->status != TN_OK)
                snprintf(s->message, sizeof s->message, "sample %lld: %.450s", (long long)s->samples[i], tn_error());
        }
}

static void *read_ahead(void *of) {
    tn_loader *l = of;
    pthread_mutex_lock(&l->lock);
    while (!l->ends) {
        slot *s = &l->slots[l->begun % l->ahead];
        if (s->state != SLOT_FREE) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        assign(l, s);
        pthread_mutex_unlock(&l->lock);
        fill(l->d, s);
        pthread_mutex_lock(&l->lock);
        s->state = SLOT_READY;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void stop_threads(tn_loader *l) {
    pthread_mutex_lock(&l->lock);
    l->ends = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->thread_count; i++)
        pthread_join(l->threads[i], NULL);
    l->thread_count = 0;
    l->ends = false;
}

static tn_status start_threads(tn_loader *l, int count) {
    for (int i = 0; i < count; i++) {
        if (pthread_create(&l->threads[i], NULL, read_ahead, l) != 0)
            return tn_backend_fail(TN_ERR_MEMORY, "tn_loader: thread %d of %d could not be started", i + 1, count);
        l->thread_count++;
    }
    return TN_OK;
}

/* ---- loader ------------------------------------------------------------------------------------------------------ */

static tn_status make_slots(tn_loader *l) {
    size_t batch = (size_t)l->batches.batch;
    l->slots = calloc((size_t)l->ahead, sizeof *l->slots);
    bool good = l->slots != NULL;
    for (int i = 0; i < l->ahead && good; i++) {
        slot *s = &l->slots[i];
        s->samples = calloc(batch, sizeof *s->samples);
        good = s->samples != NULL;
        for (int f = 0; f < l->d->field_count && good; f++)
            good = (s->data[f] = calloc(batch, l->d->bytes[f])) != NULL;
    }
    return good ? TN_OK : tn_backend_fail(TN_ERR_MEMORY, "tn_loader_new: out of memory for %d batches", l->ahead);
}

static tn_status check_loader(const tn_loader_options *o, const tn_batches *b) {
    if (o->threads < 0 || o->threads > MOST_THREADS || o->ahead < 1 || o->ahead > MOST_AHEAD)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_loader_new: threads is %d, ahead %d; they must be 0 to %d and 1 to %d", o->threads,
                               o->ahead, MOST_THREADS, MOST_AHEAD);
    return tn_batches_per_epoch(b) > 0 ? TN_OK : TN_ERR_ARGUMENT;
}

tn_status tn_loader_new(tn_dataset *d, const tn_loader_options *options, tn_loader **out) {
    tn_loader_options o = TN_LOADER_DEFAULTS;
    TRY(tn_options_read(&o, options, "tn_loader_new", "tn_loader_options o = TN_LOADER_DEFAULTS"));
    if (!d || !out) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_loader_new: the source or out is NULL");
    *out = NULL;
    tn_batches b = TN_BATCHES_DEFAULTS;
    b.count = d->count;
    b.batch = o.batch;
    b.seed = o.seed;
    b.shuffle = o.shuffle;
    b.drop_last = o.drop_last;
    TRY(check_loader(&o, &b));
    tn_loader *l = calloc(1, sizeof *l);
    if (!l) return tn_backend_fail(TN_ERR_MEMORY, "out of memory");
    l->d = d;
    l->batches = l->position = b;
    l->ahead = o.ahead;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    tn_status status = make_slots(l);
    if (status == TN_OK) status = start_threads(l, o.threads);
    if (status == TN_OK)
        *out = l;
    else
        tn_loader_free(l);
    return status;
}

void tn_loader_free(tn_loader *l) {
    if (!l) return;
    stop_threads(l);
    for (int i = 0; l->slots && i < l->ahead; i++) {
        free(l->slots[i].samples);
        for (int f = 0; f < l->d->field_count; f++)
            free(l->slots[i].data[f]);
    }
    free(l->slots);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static tn_status hand_out(const tn_loader *l, const slot *s, tn_tensor **fields) {
    if (s->status != TN_OK) return tn_backend_fail(s->status, "%s", s->message);
    for (int f = 0; f < l->d->field_count; f++) {
        const tn_dataset_field *field = &l->d->fields[f];
        int64_t shape[TN_MAX_RANK] = {s->rows};
        memcpy(shape + 1, field->shape, (size_t)field->rank * sizeof *shape);
        fields[f] = tn_from_data(s->data[f], shape, field->rank + 1, field->dtype);
        tn_status status = tn_status_of(fields[f]);
        if (status == TN_OK) continue;
        for (int i = 0; i <= f; i++)
            tn_free(fields[i]);
        return status;
    }
    return TN_OK;
}

tn_status tn_loader_next(tn_loader *l, tn_tensor **fields, int64_t *rows) {
    if (!l || !fields) return tn_backend_fail(TN_ERR_ARGUMENT, "tn_loader_next: the loader or fields is NULL");
    slot *s = &l->slots[l->handed_out % l->ahead];
    pthread_mutex_lock(&l->lock);
    if (l->thread_count == 0) {
        assign(l, s);
        fill(l->d, s);
        s->state = SLOT_READY;
    }
    while (s->state != SLOT_READY)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    tn_status status = hand_out(l, s, fields);
    if (rows) *rows = s->rows;
    pthread_mutex_lock(&l->lock);
    l->position = s->behind;
    s->state = SLOT_FREE;
    l->handed_out++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return status;
}

void tn_loader_position(const tn_loader *l, int64_t *epoch, int64_t *next) {
    if (epoch) *epoch = l ? l->position.epoch : 0;
    if (next) *next = l ? l->position.next : 0;
}

tn_status tn_loader_seek(tn_loader *l, int64_t epoch, int64_t next) {
    if (!l || epoch < 0 || next < 0)
        return tn_backend_fail(TN_ERR_ARGUMENT,
                               "tn_loader_seek: the loader is NULL, or epoch %lld, batch %lld is negative",
                               (long long)epoch, (long long)next);
    int threads = l->thread_count;
    stop_threads(l);
    for (int i = 0; i < l->ahead; i++)
        l->slots[i].state = SLOT_FREE;
    l->begun = l->handed_out = 0;
    l->batches.epoch = epoch;
    l->batches.next = next;
    l->position = l->batches;
    return start_threads(l, threads);
}
