/* memory.c — device memory: buffers, blocks kept for reuse, counts, packed weights.
 *
 * A freed block goes to the list of its size class, together with its tn_buffer, so allocating and releasing usually is
 * a pop and a push, without a driver call. Eight size classes per power of two bound the waste to one eighth. One spin
 * lock for all devices guards lists and counts; it is held for about a dozen instructions and never during a driver
 * call.
 *
 * Cached memory is bounded. It is freed by tn_memory_trim, and before an allocation may fail.
 *
 * A pool opened with `pool_initial` or `pool_growth` cuts its blocks out of large slabs, by best fit, if no cached
 * block fits. Before it adds a slab, cached blocks return to their slabs and merge with free neighbours. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "hal/discovery.h"
#include "hal/hal.h"
#include "hal/queue.h"

static void buffer_drop_packed(tn_buffer *b);
static tn_slab_pool *slab_pool_new(size_t alignment); /* of blocks: 64 at least. NULL when memory is out */
static void slab_pool_free(tn_slab_pool *p);          /* all pieces have been taken out; NULL is fine */
/* A piece from the driver. stays: slab_pool_take_empty leaves it until it is asked for all. */
static tn_status slab_pool_add(tn_slab_pool *p, void *address, size_t bytes, bool stays);
/* A block, out of the smallest room that is large enough; NULL when there is none. */
static tn_slab_block *slab_pool_alloc(tn_slab_pool *p, size_t bytes, void **address);
static void slab_pool_release(tn_slab_pool *p, tn_slab_block *c);
/* Removes an empty slab, to be returned to the driver; false: there is none. */
static bool slab_pool_take_empty(tn_slab_pool *p, bool all, void **address, size_t *bytes);
static tn_slab_pool_facts slab_pool_stats(tn_slab_pool *p);

enum {
    UNIT = 64,        /* smallest class, and the alignment of every class */
    STEPS = 8,        /* classes a power of two */
    FIRST_OCTAVE = 9, /* up to 2^9 the classes are the multiples of UNIT */
    LAST_OCTAVE = 46, /* no block beyond 64 TiB */
    CLASSES = STEPS + (LAST_OCTAVE - FIRST_OCTAVE) * STEPS,
    GIVEN_SLOTS = 1024, /* chains of blocks handed out by address */
    MAX_ALIGNMENT = 4096,
    VERSION_SHIFT = 20 /* writes that a buffer's version counts before it could meet another's start */
};
static const int64_t KEEP_MOST = (int64_t)512
                                 << 20; /* kept without use, at most; and at most a sixteenth of the device */

typedef struct pool {
    tn_buffer *kept[CLASSES];
    int64_t kept_bytes, keep_limit;
    int64_t taken_bytes, taken_limit; /* from the driver: in use and kept; limit 0: none */
    int64_t live_buffers, holds;
    bool closing;
    tn_buffer *given[GIVEN_SLOTS];
    int64_t in_use_bytes, in_use_peak; /* of blocks, whole classes */
    int64_t refused;                   /* bytes in use if the last request that failed had not; 0: none failed */
    int64_t asked, hits;               /* buffers asked for, and those that a kept block was right for */
    tn_slab_pool *pieces;              /* NULL: every block is allocated by the driver */
    size_t growth;                     /* bytes of a piece; 0: only what was taken at open is cut */
} pool;

static atomic_int heap_taken;
static tn_memory_stats stats; /* guarded, as all pools, by the heap lock */
static uint64_t serial;       /* buffers made so far */

static void heap_lock(void) {
    for (int tries = 0; atomic_exchange_explicit(&heap_taken, 1, memory_order_acquire); tries++)
        if (tries > 32) sched_yield();
}

static void heap_unlock(void) { atomic_store_explicit(&heap_taken, 0, memory_order_release); }

const char *tn_bytes_text(char *out, int64_t bytes) {
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) {
        snprintf(out, 24, "%d bytes", (int)bytes);
        return out;
    }
    double v = (double)bytes / 1024;
    size_t u = 0;
    for (; v >= 1024 && u + 1 < TN_COUNT(unit); u++)
        v /= 1024;
    snprintf(out, 24, v < 10 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return out;
}

/* ---- size classes ------------------------------------------------------------------------------------------------ */

static int log2_floor(size_t v) { return 63 - __builtin_clzll((unsigned long long)v); }

/* The class of a block of at least `bytes`; -1 beyond the largest. */
static int class_of(size_t bytes) {
    if (bytes <= (size_t)1 << FIRST_OCTAVE) return bytes <= UNIT ? 0 : (int)((bytes - 1) / UNIT);
    int octave = log2_floor(bytes - 1);
    if (octave >= LAST_OCTAVE) return -1;
    return STEPS + (octave - FIRST_OCTAVE) * STEPS + (int)((bytes - 1) >> (octave - 3)) - STEPS;
}

static size_t class_bytes(int c) {
    if (c < STEPS) return (size_t)(c + 1) * UNIT;
    int octave = FIRST_OCTAVE + (c - STEPS) / STEPS;
    return (size_t)(STEPS + c % STEPS + 1) << (octave - 3);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static int64_t block_bytes(const tn_buffer *b) {
    return b->size_class == CLASSES ? 0 : (int64_t)class_bytes(b->size_class);
}

static void count_in(pool *p, tn_buffer *b) {
    p->live_buffers++;
    p->asked++;
    p->in_use_bytes += block_bytes(b);
    if (b->size_class != CLASSES) tn_dry_touch(b);
    if (p->in_use_bytes > p->in_use_peak) p->in_use_peak = p->in_use_bytes;
    stats.live_buffers++;
    stats.live_bytes += (int64_t)b->bytes;
    if (stats.live_bytes > stats.peak_bytes) stats.peak_bytes = stats.live_bytes;
}

/* Initializes the fields of a buffer that are new at each use. */
static void begin_use(tn_buffer *b, size_t bytes) {
    atomic_store_explicit(&b->refs, 1, memory_order_relaxed);
    b->bytes = bytes;
    b->version = ++serial << VERSION_SHIFT;
    b->next = NULL;
    b->is_home = b->unasked = false;
}

/* Describes this process's memory on the device: ", of which 3 GiB in 210 buffers in use …". */
static void say_use(const tn_device *d, char *text, size_t size) {
    tn_pool_stats s = {.struct_size = sizeof s};
    char used[24], kept[24], cut[24], largest[24], most[24];
    text[0] = 0;
    if (!d->pool || tn_device_get_pool_stats(d, &s) != TN_OK) return;
    int n = snprintf(text, size, "; %s in use by %lld buffers, %s cached", tn_bytes_text(used, s.in_use_bytes),
                     (long long)s.buffers, tn_bytes_text(kept, s.kept_bytes));
    if (n > 0 && s.pieces)
        n += snprintf(text + n, size - (size_t)n, ", %s free in pieces (largest: %s)", tn_bytes_text(cut, s.free_bytes),
                      tn_bytes_text(largest, s.largest_free));
    if (n > 0 && s.limit) (void)snprintf(text + n, size - (size_t)n, ", limit %s", tn_bytes_text(most, s.limit));
}

void tn_pool_refuse_more(tn_device *d, int64_t bytes) {
    pool *p = d->pool;
    heap_lock();
    p->refused += bytes;
    heap_unlock();
}

static tn_status pool_out_of_memory(tn_device *d, size_t bytes) {
    pool *p = d->pool;
    heap_lock();
    p->refused = p->in_use_bytes + (int64_t)bytes;
    heap_unlock();
    char want[24], total[24], left[24], use[240];
    int64_t all = d->info.total_memory, unused = d->info.free_memory;
    if (d->driver->memory) (void)d->driver->memory(d->handle, &all, &unused);
    say_use(d, use, sizeof use);
    return tn_fail(TN_ERR_MEMORY,
                   "%s: out of device memory: %s requested (free: %s of %s%s); try a smaller batch, a smaller dtype, "
                   "or another device",
                   d->info.id, tn_bytes_text(want, (int64_t)bytes), tn_bytes_text(left, unused),
                   tn_bytes_text(total, all), use);
}

/* Books `bytes` from the driver against the limit; false when they do not fit. */
static bool take_booked(pool *p, int64_t bytes) {
    heap_lock();
    bool fits = !p->taken_limit || bytes <= p->taken_limit - p->taken_bytes;
    if (fits) p->taken_bytes += bytes;
    heap_unlock();
    return fits;
}

static void give_booked(pool *p, int64_t bytes) {
    heap_lock();
    p->taken_bytes -= bytes;
    heap_unlock();
}

static tn_status driver_alloc(tn_device *d, size_t bytes, void **address) {
    pool *p = d->pool;
    if (!take_booked(p, (int64_t)bytes)) return TN_ERR_MEMORY;
    *address = NULL;
    tn_status s = d->dry ? tn_dry_alloc(d, bytes, address) : d->driver->alloc(d->handle, bytes, address);
    if (s == TN_OK && !*address)
        s = tn_fail(TN_ERR_DEVICE, "%s: its driver's alloc of %zu bytes returned neither an address nor an error",
                    d->info.id, bytes);
    if (s == TN_OK && (uintptr_t)*address % UNIT != 0) {
        s = tn_fail(TN_ERR_DEVICE, "%s: its driver's alloc of %zu bytes returned %p, which is not aligned to %d",
                    d->info.id, bytes, *address, UNIT);
        d->driver->free(d->handle, *address);
    }
    if (s != TN_OK) give_booked(p, (int64_t)bytes);
    return s;
}

static void driver_free(tn_device *d, void *address, size_t bytes) {
    if (d->dry)
        tn_dry_free(d, address);
    else
        d->driver->free(d->handle, address);
    give_booked(d->pool, (int64_t)bytes);
}

/* Returns a block and its buffer to where they came from. */
static void block_free(tn_device *d, tn_buffer *b) {
    pool *p = d->pool;
    (void)tn_buffer_await(b, true);
    tn_dry_untouch(b);
    if (b->slab_block) {
        /* the next user is ordered after it by the device */
        slab_pool_release(p->pieces, b->slab_block);
    } else {
        (void)tn_device_wait(d, d->handle); /* work under way may still use it */
        driver_free(d, b->address, class_bytes(b->size_class));
    }
    tn_mem_free(b);
}

static tn_status piece_add(tn_device *d, size_t bytes, bool stays) {
    pool *p = d->pool;
    void *address;
    TRY(driver_alloc(d, bytes, &address));
    tn_status s = slab_pool_add(p->pieces, address, bytes, stays);
    if (s != TN_OK) driver_free(d, address, bytes);
    return s;
}

static void kept_release(tn_device *d, bool cut);

/* Room in a piece; *cut stays NULL when there is none and none is to be had. */
static void cut_block(tn_device *d, size_t bytes, tn_slab_block **cut, void **address) {
    pool *p = d->pool;
    *cut = slab_pool_alloc(p->pieces, bytes, address);
    if (*cut) return;
    kept_release(d, true);
    *cut = slab_pool_alloc(p->pieces, bytes, address);
    if (*cut || bytes > p->growth || piece_add(d, p->growth, false) != TN_OK) return;
    *cut = slab_pool_alloc(p->pieces, bytes, address);
}

/* A block of class c from a piece or the driver; kept blocks are given back before this fails. */
static tn_status block_alloc(tn_device *d, int c, tn_slab_block **cut, void **address) {
    pool *p = d->pool;
    size_t bytes = class_bytes(c);
    *cut = NULL;
    if (p->pieces) cut_block(d, bytes, cut, address);
    if (*cut) return TN_OK;
    tn_status s = driver_alloc(d, bytes, address);
    if (s != TN_ERR_MEMORY) return s;
    tn_memory_trim(d);
    s = driver_alloc(d, bytes, address);
    return s == TN_ERR_MEMORY ? pool_out_of_memory(d, bytes) : s;
}

static tn_status buffer_make(tn_device *d, int c, size_t bytes, tn_buffer **out) {
    tn_buffer *b = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    tn_status s = block_alloc(d, c, &b->slab_block, &b->address);
    if (s != TN_OK) {
        tn_mem_free(b);
        return s;
    }
    b->device = d;
    b->size_class = (uint16_t)c;
    if (d->is_cpu && !b->slab_block) tn_large_pages_until(b->address, bytes, class_bytes(c));
    heap_lock();
    begin_use(b, bytes);
    count_in(d->pool, b);
    heap_unlock();
    *out = b;
    return TN_OK;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* The caller holds the heap lock. */
static void kept_push(pool *p, tn_buffer *b) {
    b->next = p->kept[b->size_class];
    p->kept[b->size_class] = b;
    p->kept_bytes += block_bytes(b);
}

/* Takes the most recently freed one; it then belongs to the caller. The caller holds the heap lock. */
static tn_buffer *kept_first(pool *p, int c) {
    tn_buffer *b = p->kept[c];
    if (!b) return NULL;
    p->kept[c] = b->next;
    p->kept_bytes -= block_bytes(b);
    return b;
}

/* One that was taken is used. The caller holds the heap lock. */
static void kept_use(pool *p, tn_buffer *b, size_t bytes) {
    p->hits++;
    begin_use(b, bytes);
    count_in(p, b);
}

static tn_buffer *kept_pop(pool *p, int c, size_t bytes) {
    heap_lock();
    tn_buffer *b = kept_first(p, c);
    if (b) kept_use(p, b, bytes);
    heap_unlock();
    return b;
}

/* A block that no queue uses, or that this thread's queue will have finished with when its next work begins. Only the
 * most recent ones are examined, because waiting for a block costs more than allocating one. */
static tn_buffer *kept_pop_for(tn_device *d, int c, size_t bytes, bool for_host) {
    enum { LOOK_AT = 8 };
    tn_buffer *looked_at[LOOK_AT], *b = NULL;
    int count = 0;
    heap_lock();
    while (count < LOOK_AT && (looked_at[count] = kept_first(d->pool, c)))
        count++;
    heap_unlock();
    for (int i = 0; i < count && !b; i++)
        if (tn_buffer_is_reusable(looked_at[i], for_host)) b = looked_at[i];
    heap_lock();
    while (count-- > 0)
        if (looked_at[count] != b) kept_push(d->pool, looked_at[count]);
    if (b) kept_use(d->pool, b, bytes);
    heap_unlock();
    return b;
}

static tn_status buffer_take(tn_device *d, size_t bytes, bool for_host, tn_buffer **out) {
    *out = NULL;
    int c = class_of(bytes);
    if (c < 0) return pool_out_of_memory(d, bytes);
    tn_buffer *b = tn_queues_exist() ? kept_pop_for(d, c, bytes, for_host) : kept_pop(d->pool, c, bytes);
    if (!b) return buffer_make(d, c, bytes, out);
    *out = b;
    return TN_OK;
}

tn_status tn_buffer_new(tn_device *d, size_t bytes, tn_buffer **out) { return buffer_take(d, bytes, false, out); }

tn_status tn_buffer_new_for_host(tn_device *d, size_t bytes, tn_buffer **out) {
    return buffer_take(d, bytes, true, out);
}

bool tn_buffer_is_borrowed(const tn_buffer *b) { return b->size_class == CLASSES; }

tn_status tn_buffer_borrow(tn_device *d, void *address, size_t bytes, void (*release)(void *), void *ctx,
                           tn_buffer **out) {
    *out = NULL;
    if (!address && bytes) return tn_fail(TN_ERR_ARGUMENT, "cannot borrow %zu bytes of memory at NULL", bytes);
    tn_buffer *b = tn_mem_zalloc(1, sizeof *b);
    if (!b) return TN_ERR_MEMORY;
    b->device = d;
    b->address = address;
    b->release = release;
    b->release_ctx = ctx;
    b->size_class = CLASSES; /* none */
    heap_lock();
    begin_use(b, 0);
    count_in(d->pool, b);
    heap_unlock();
    b->bytes = bytes;
    *out = b;
    return TN_OK;
}

/* Counts a buffer out. true: the device was only waiting for this one, and the caller ends it. */
static bool count_out(pool *p, const tn_buffer *b) {
    p->live_buffers--;
    p->in_use_bytes -= block_bytes(b);
    stats.live_buffers--;
    return p->closing && p->live_buffers + p->holds == 0;
}

void tn_device_retain(tn_device *d) {
    heap_lock();
    ((pool *)d->pool)->holds++;
    heap_unlock();
}

void tn_device_release(tn_device *d) {
    pool *p = d->pool;
    heap_lock();
    bool last = --p->holds == 0 && p->closing && p->live_buffers == 0;
    heap_unlock();
    if (last) tn_device_end(d);
}

/* Keeps a buffer's block for later if there is room for it, and counts the buffer out then. */
static bool keep_pool(pool *p, tn_buffer *b) {
    bool borrowed = b->size_class == CLASSES;
    int64_t size = block_bytes(b);
    heap_lock();
    stats.live_bytes -= borrowed ? 0 : (int64_t)b->bytes;
    bool kept = !borrowed && !p->closing && (b->slab_block || p->kept_bytes + size <= p->keep_limit);
    if (kept) {
        kept_push(p, b);
        (void)count_out(p, b);
    }
    heap_unlock();
    return kept;
}

void tn_buffer_release(tn_buffer *b) {
    if (!b) return;
    /* The only owner needs no atomic exchange, because nobody else can change the count. */
    if (atomic_load_explicit(&b->refs, memory_order_acquire) != 1 &&
        atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1)
        return;
    tn_device *d = b->device;
    if (b->release || atomic_load_explicit(&b->packed_weights, memory_order_relaxed)) (void)tn_buffer_await(b, true);
    buffer_drop_packed(b);
    if (b->release) b->release(b->release_ctx);
    if (keep_pool(d->pool, b)) return;
    tn_buffer gone = {.size_class = b->size_class};
    if (b->size_class == CLASSES) {
        tn_dry_untouch(b);
        tn_mem_free(b);
    } else
        block_free(d, b);
    /* counted only now: a closed device ends when the last buffer is out, and the block was the device's */
    heap_lock();
    bool last = count_out(d->pool, &gone);
    heap_unlock();
    if (last) tn_device_end(d);
}

tn_memory_stats tn_memory_get_stats(void) {
    heap_lock();
    tn_memory_stats s = stats;
    heap_unlock();
    return s;
}

void tn_memory_reset_peak(void) {
    heap_lock();
    stats.peak_bytes = stats.live_bytes;
    heap_unlock();
}

/* Takes the kept blocks that were cut out of pieces, or those that were not, as one list. */
static tn_buffer *kept_take(pool *p, bool cut) {
    tn_buffer *all = NULL;
    heap_lock();
    for (int c = 0; c < CLASSES; c++) {
        tn_buffer **link = &p->kept[c];
        while (*link) {
            tn_buffer *b = *link;
            if ((b->slab_block != NULL) != cut) {
                link = &b->next;
                continue;
            }
            *link = b->next;
            p->kept_bytes -= (int64_t)class_bytes(c);
            b->next = all;
            all = b;
        }
    }
    heap_unlock();
    return all;
}

static void kept_release(tn_device *d, bool cut) {
    tn_buffer *next;
    for (tn_buffer *b = kept_take(d->pool, cut); b; b = next) {
        next = b->next;
        block_free(d, b);
    }
}

/* Returns slabs that are empty to the driver. */
static void give_pieces(tn_device *d, bool all) {
    pool *p = d->pool;
    void *address;
    size_t bytes;
    if (!p->pieces) return;
    kept_release(d, true);
    while (slab_pool_take_empty(p->pieces, all, &address, &bytes)) {
        (void)tn_device_wait(d, d->handle);
        driver_free(d, address, bytes);
    }
}

void tn_memory_trim(tn_device *d) {
    kept_release(d, false);
    give_pieces(d, false);
}

void tn_memory_trim_for(tn_device *d, size_t bytes) {
    const pool *p = d->pool;
    int c = class_of(bytes);
    heap_lock();
    bool fits = c >= 0 && p->kept[c];
    heap_unlock();
    if (!fits) tn_memory_trim(d);
}

/* ---- a device's pool --------------------------------------------------------------------------------------------- */

static tn_status pieces_open(tn_device *d, const tn_device_options *o) {
    pool *p = d->pool;
    if (!o->pool_initial && !o->pool_growth) return TN_OK;
    p->growth = o->pool_growth;
    p->pieces = slab_pool_new((size_t)tn_max64(d->caps.alignment, UNIT));
    if (!p->pieces) return TN_ERR_MEMORY;
    if (!o->pool_initial) return TN_OK;
    tn_status s = piece_add(d, o->pool_initial, true);
    return s == TN_ERR_MEMORY ? pool_out_of_memory(d, o->pool_initial) : s;
}

tn_status tn_pool_open(tn_device *d, const tn_device_options *o) {
    pool *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return TN_ERR_MEMORY;
    int64_t total = d->info.total_memory;
    p->keep_limit = total ? tn_min64(KEEP_MOST, total / 16) : KEEP_MOST;
    p->taken_limit = (uint64_t)o->pool_max > INT64_MAX ? INT64_MAX : (int64_t)o->pool_max;
    d->pool = p;
    tn_status s = pieces_open(d, o);
    if (s != TN_OK) tn_pool_free(d);
    return s;
}

bool tn_pool_close(tn_device *d) {
    pool *p = d->pool;
    heap_lock();
    p->closing = true;
    bool idle = p->live_buffers + p->holds == 0;
    heap_unlock();
    return idle;
}

void tn_pool_free(tn_device *d) {
    pool *p = d->pool;
    if (!p) return;
    kept_release(d, false);
    give_pieces(d, true);
    slab_pool_free(p->pieces);
    tn_mem_free(p);
    d->pool = NULL;
}

tn_status tn_device_set_pool_max(tn_device *d, size_t bytes) {
    TRY(tn_need(d, "tn_device_set_pool_max: device"));
    pool *p = d->pool;
    heap_lock();
    p->taken_limit = (uint64_t)bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
    heap_unlock();
    tn_registry_lock();
    d->settings.pool_max = bytes;
    tn_registry_unlock();
    if (bytes) tn_memory_trim(d); /* cached blocks would be handed out without asking for the limit */
    return TN_OK;
}

tn_status tn_device_get_pool_stats(const tn_device *d, tn_pool_stats *out) {
    TRY(tn_need(d, "tn_device_get_pool_stats: device"));
    const pool *p = d->pool;
    tn_slab_pool_facts f = p->pieces ? slab_pool_stats(p->pieces) : (tn_slab_pool_facts){0};
    heap_lock();
    tn_pool_stats s = {.struct_size = sizeof s,
                       .in_use_bytes = p->in_use_bytes,
                       .peak_bytes = p->in_use_peak,
                       .kept_bytes = p->kept_bytes,
                       .taken_bytes = p->taken_bytes,
                       .limit = p->taken_limit,
                       .buffers = p->live_buffers,
                       .allocations = p->asked,
                       .hits = p->hits,
                       .refused_bytes = p->refused};
    heap_unlock();
    s.dry_peak_bytes = tn_dry_peak(d);
    s.pieces = f.pieces;
    s.free_bytes = f.free_bytes;
    s.largest_free = f.largest;
    s.fragmentation = f.free_bytes ? 1 - (double)f.largest / (double)f.free_bytes : 0;
    return tn_result_write(out, &s, sizeof s, "tn_device_get_pool_stats: stats");
}

void tn_device_reset_pool_peak(tn_device *d) {
    if (!d) return;
    pool *p = d->pool;
    heap_lock();
    p->in_use_peak = p->in_use_bytes;
    p->asked = p->hits = 0;
    heap_unlock();
}

static int64_t taken_now(const pool *p) {
    heap_lock();
    int64_t taken = p->taken_bytes;
    heap_unlock();
    return taken;
}

static tn_status give_back(tn_device *d, int64_t *given, const char *function, void (*what)(tn_device *)) {
    if (!d) return tn_fail(TN_ERR_ARGUMENT, "%s: device is NULL", function);
    int64_t before = taken_now(d->pool);
    what(d);
    if (given) *given = before - taken_now(d->pool);
    return TN_OK;
}

static void join_and_give(tn_device *d) { give_pieces(d, false); }

tn_status tn_device_trim(tn_device *d, int64_t *given) { return give_back(d, given, "tn_device_trim", tn_memory_trim); }

tn_status tn_device_defragment(tn_device *d, int64_t *given) {
    return give_back(d, given, "tn_device_defragment", join_and_give);
}

/* ---- by hand (device.h) ------------------------------------------------------------------------------------------ */

static tn_buffer **given_slot(pool *p, const void *address) {
    uintptr_t a = (uintptr_t)address;
    return &p->given[(a >> 6 ^ a >> 16) % GIVEN_SLOTS];
}

tn_status tn_device_alloc(tn_device *d, size_t size, size_t alignment, void **out) {
    if (!d || !out) return tn_fail(TN_ERR_ARGUMENT, "tn_device_alloc: %s is NULL", d ? "out" : "device");
    *out = NULL;
    if (!alignment || alignment & (alignment - 1) || alignment > MAX_ALIGNMENT)
        return tn_fail(TN_ERR_ARGUMENT, "tn_device_alloc: alignment %zu is not a power of two up to %d", alignment,
                       MAX_ALIGNMENT);
    size_t slack = alignment > UNIT ? alignment - UNIT : 0;
    if (size > SIZE_MAX - slack) return pool_out_of_memory(d, size);
    tn_buffer *b;
    TRY(tn_buffer_new_for_host(d, size + slack, &b));
    (void)tn_buffer_await(b, true);
    uintptr_t a = ((uintptr_t)b->address + alignment - 1) & ~(uintptr_t)(alignment - 1);
    b->given = (char *)b->address + (a - (uintptr_t)b->address);
    heap_lock();
    tn_buffer **slot = given_slot(d->pool, b->given);
    b->next = *slot;
    *slot = b;
    heap_unlock();
    *out = b->given;
    return TN_OK;
}

bool tn_device_owns(const tn_device *d, const void *address, size_t bytes) {
    bool found = false;
    uintptr_t a = (uintptr_t)address;
    if (!d || !address) return false;
    const pool *p = d->pool;
    heap_lock();
    for (int i = 0; i < GIVEN_SLOTS && !found; i++)
        for (const tn_buffer *b = p->given[i]; b && !found; b = b->next) {
            uintptr_t first = (uintptr_t)b->given, end = (uintptr_t)b->address + b->bytes;
            found = a >= first && a <= end && bytes <= end - a;
        }
    heap_unlock();
    return found;
}

void tn_device_dealloc(tn_device *d, void *address) {
    if (!d || !address) return;
    heap_lock();
    tn_buffer **link = given_slot(d->pool, address);
    while (*link && (*link)->given != address)
        link = &(*link)->next;
    tn_buffer *b = *link;
    if (b) *link = b->next;
    heap_unlock();
    if (b && atomic_load_explicit(&d->ordered, memory_order_acquire)) (void)tn_device_drain(d);
    if (b)
        tn_buffer_release(b);
    else
        (void)tn_fail(TN_ERR_ARGUMENT, "tn_device_dealloc: %p was not allocated by tn_device_alloc of %s", address,
                      d->info.id);
}

/* ==== packed weights: made once from a buffer's content =========================================================== */
/* The list of a buffer only grows, and each entry stores the version of the contents from which it was made, so a
 * look-up takes no lock. One global lock guards packing, which happens once per weight.
 *
 * Packed weights that replace the contents are a model's weights: they get memory next to each other in large pages. */

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

/* Kernels read the packed weight from now on, so pages of a file that held the contents are dropped. If rows of a
 * weight are also read from the file itself (an embedding that is the output matrix too), its pages become resident one
 * by one; they are dropped again whenever the packed weight is requested. */
static void form_give_back(const tn_packed_weight *packed, const tn_buffer *b) {
    if (packed->replaces) tn_map_return_pages(b->address, b->bytes);
}

static void make_entry(packed_entry *e, const tn_buffer *b) {
    if (!tn_dry_has(e->result->device, e->result->address)) e->format.make(&e->format, b->address, e->result->address);
    atomic_store_explicit(&e->version, b->version, memory_order_release);
    tn_map_return_pages(b->address, b->bytes);
}

/* ---- memory of forms that replace the content -------------------------------------------------------------------- */

/* Many weights of a model are smaller than a large page, and each token reads all of them. They are placed next to each
 * other in slabs of large pages. A slab is freed with its last packed weight. */
enum { SLAB_BYTES = 16 << 20, PACKED_ALIGNMENT = 64, SLAB_REST = 64 << 10 /* no longer searched with less left */ };

typedef struct slab {
    tn_buffer *memory;
    size_t used;
    int64_t packed_weights;
    struct slab *next;
} slab;

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static slab *open_slabs; /* with room left, newest first: small weights fill what large ones leave */

/* The caller holds the lock. */
static void slab_unlink(const slab *s) {
    for (slab **link = &open_slabs; *link; link = &(*link)->next)
        if (*link == s) {
            *link = s->next;
            return;
        }
}

static void slab_release(void *ctx) {
    slab *s = ctx;
    pthread_mutex_lock(&slab_lock);
    bool last = --s->packed_weights == 0;
    if (last) slab_unlink(s);
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
    slab *s = open_slabs;
    while (s && (s->memory->device != d || bytes > SLAB_BYTES - s->used))
        s = s->next;
    bool fresh = !s;
    if (fresh) TRY(slab_new(d, &s));
    tn_status status = tn_buffer_borrow(d, (char *)s->memory->address + s->used, bytes, slab_release, s, out);
    if (status == TN_OK) {
        s->used += (bytes + PACKED_ALIGNMENT - 1) / PACKED_ALIGNMENT * PACKED_ALIGNMENT;
        s->packed_weights++;
        if (fresh) {
            s->next = open_slabs;
            open_slabs = s;
        }
        if (SLAB_BYTES - s->used < SLAB_REST) slab_unlink(s);
    } else if (fresh) {
        tn_buffer_release(s->memory);
        tn_mem_free(s);
    }
    return status;
}

static tn_status allocate_packed(tn_device *d, const tn_packed_weight *packed, tn_buffer **out) {
    bool large = packed->bytes >= TN_LARGE_PAGE;
    if (!d->is_cpu || !packed->replaces || large || packed->bytes == 0)
        return tn_buffer_new_for_host(d, packed->bytes, out);
    AUTO_LOCK(&slab_lock);
    return slab_carve(d, packed->bytes, out);
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static tn_status add_entry(tn_buffer *b, const tn_packed_weight *packed, packed_entry **out) {
    packed_entry *e = tn_mem_zalloc(1, sizeof *e);
    if (!e) return TN_ERR_MEMORY;
    tn_status s = allocate_packed(b->device, packed, &e->result);
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
        form_give_back(&e->format, b);
    } else {
        AUTO_LOCK(&making);
        (void)tn_buffer_await(b, true); /* until it is written, and the old packed weight is not read */
        e = find_packed(b, packed);
        if (!e)
            s = add_entry(b, packed, &e);
        else if (!is_current(e, b))
            make_entry(e, b);
    }
    *out = e ? e->result->address : NULL;
    return s;
}

static void buffer_drop_packed(tn_buffer *b) {
    packed_entry *e = atomic_exchange_explicit(&b->packed_weights, NULL, memory_order_acquire);
    while (e) {
        packed_entry *next = e->next;
        tn_buffer_release(e->result);
        tn_mem_free(e);
        e = next;
    }
}

/* ==== blocks of large pieces of device memory ===================================================================== */
/* The pool allocates a slab when it is opened (pool_initial) and when it grows (pool_growth). It is used only if no
 * cached block of the size class fits. A freed block merges with its free neighbours at once, so an empty slab is a
 * single block and can be returned to the driver. Blocks in use never move, because plans, graphs and callers keep
 * their addresses. */

typedef struct pieces_slab pieces_slab;

struct tn_slab_block {
    tn_slab_block *before, *after; /* in the piece, by address */
    tn_slab_block *next, **link;   /* in the list of the free; link: what points here */
    pieces_slab *slab;
    size_t offset, bytes;
};

struct pieces_slab {
    pieces_slab *next;
    char *address;
    size_t bytes;
    bool stays; /* allocated at open: freed only at the end */
};

struct tn_slab_pool {
    pthread_mutex_t lock;
    pieces_slab *pieces;
    tn_slab_block *free;
    size_t alignment;
};

static tn_slab_pool *slab_pool_new(size_t alignment) {
    tn_slab_pool *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->alignment = alignment > 64 ? alignment : 64;
    return p;
}

static void list_add(tn_slab_pool *p, tn_slab_block *c) {
    c->next = p->free;
    c->link = &p->free;
    if (p->free) p->free->link = &c->next;
    p->free = c;
}

static void list_remove(tn_slab_block *c) {
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->next = NULL;
    c->link = NULL;
}

static bool is_free(const tn_slab_block *c) { return c && c->link; }

static tn_status slab_pool_add(tn_slab_pool *p, void *address, size_t bytes, bool stays) {
    pieces_slab *at = tn_mem_zalloc(1, sizeof *at);
    tn_slab_block *whole = tn_mem_zalloc(1, sizeof *whole);
    if (!at || !whole) {
        tn_mem_free_each(at, whole);
        return TN_ERR_MEMORY;
    }
    *at = (pieces_slab){.address = address, .bytes = bytes, .stays = stays};
    *whole = (tn_slab_block){.slab = at, .bytes = bytes};
    AUTO_LOCK(&p->lock);
    at->next = p->pieces;
    p->pieces = at;
    list_add(p, whole);
    return TN_OK;
}

/* The smallest free block that is large enough. */
static tn_slab_block *best_fit(const tn_slab_pool *p, size_t bytes) {
    tn_slab_block *best = NULL;
    for (tn_slab_block *c = p->free; c; c = c->next)
        if (c->bytes >= bytes && (!best || c->bytes < best->bytes)) best = c;
    return best;
}

/* Splits off what follows the first `bytes` as a free block, if anything is left and there is memory to record it. */
static void split_slab(tn_slab_pool *p, tn_slab_block *c, size_t bytes) {
    tn_slab_block *rest = c->bytes > bytes ? tn_mem_zalloc(1, sizeof *rest) : NULL;
    if (!rest) return;
    *rest = (tn_slab_block){
        .before = c, .after = c->after, .slab = c->slab, .offset = c->offset + bytes, .bytes = c->bytes - bytes};
    if (c->after) c->after->before = rest;
    c->after = rest;
    c->bytes = bytes;
    list_add(p, rest);
}

static tn_slab_block *slab_pool_alloc(tn_slab_pool *p, size_t bytes, void **address) {
    if (bytes > SIZE_MAX - p->alignment) return NULL;
    bytes = (bytes + p->alignment - 1) / p->alignment * p->alignment;
    AUTO_LOCK(&p->lock);
    tn_slab_block *c = best_fit(p, bytes);
    if (c) {
        list_remove(c);
        split_slab(p, c, bytes);
        *address = c->slab->address + c->offset;
    }
    return c;
}

/* c takes in the block behind it. */
static void join_next(tn_slab_block *c) {
    tn_slab_block *gone = c->after;
    list_remove(gone);
    c->bytes += gone->bytes;
    c->after = gone->after;
    if (c->after) c->after->before = c;
    tn_mem_free(gone);
}

static void slab_pool_release(tn_slab_pool *p, tn_slab_block *c) {
    AUTO_LOCK(&p->lock);
    list_add(p, c);
    if (is_free(c->after)) join_next(c);
    if (is_free(c->before)) join_next(c->before);
}

static bool slab_is_whole(const tn_slab_block *c) { return !c->before && !c->after; }

static void unlink_slab(tn_slab_pool *p, const pieces_slab *gone) {
    pieces_slab **link = &p->pieces;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
}

static bool slab_pool_take_empty(tn_slab_pool *p, bool all, void **address, size_t *bytes) {
    AUTO_LOCK(&p->lock);
    tn_slab_block *c = p->free;
    while (c && (!slab_is_whole(c) || (c->slab->stays && !all)))
        c = c->next;
    if (c) {
        *address = c->slab->address;
        *bytes = c->slab->bytes;
        list_remove(c);
        unlink_slab(p, c->slab);
        tn_mem_free_each(c->slab, c);
    }
    return c != NULL;
}

static tn_slab_pool_facts slab_pool_stats(tn_slab_pool *p) {
    tn_slab_pool_facts f = {0};
    AUTO_LOCK(&p->lock);
    for (const pieces_slab *at = p->pieces; at; at = at->next)
        f.pieces++;
    for (const tn_slab_block *c = p->free; c; c = c->next) {
        f.free_bytes += (int64_t)c->bytes;
        f.largest = tn_max64(f.largest, (int64_t)c->bytes);
    }
    return f;
}

static void slab_pool_free(tn_slab_pool *p) {
    if (!p) return;
    pthread_mutex_destroy(&p->lock);
    tn_mem_free(p);
}
