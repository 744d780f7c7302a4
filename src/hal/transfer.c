/* transfer.c — copies between host and devices, blocking and asynchronous; host memory that devices can access.
 *
 * Buffers of tensors are copied in the order of the calling thread's queue and wait for their timeline points. Memory
 * that the caller manages has no timeline points: a blocking copy waits for all queues of its devices; an asynchronous
 * one must be ordered by the caller, with queues and events. */
#include <string.h>

#include "hal/queue.h"

enum { STAGE_BYTES = 1 << 20, PAGE = 4096 };

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static tn_status check_range(const tn_buffer *b, size_t offset, size_t bytes, const char *verb) {
    if (offset <= b->bytes && bytes <= b->bytes - offset) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s %zu bytes at offset %zu of a buffer of %zu bytes", verb, bytes, offset,
                   b->bytes);
}

/* The queue for blocking calls: one with its own thread is waited for instead. */
static tn_queue *queue_at_once(const tn_device *d) {
    tn_queue *q = tn_queue_for(d);
    return tn_queue_has_thread(q) ? d->own : q;
}

static bool is_ordered(const tn_device *d) { return atomic_load_explicit(&d->ordered, memory_order_acquire); }

tn_status tn_buffer_write(tn_buffer *b, size_t offset, const void *host, size_t bytes) {
    TRY(check_range(b, offset, bytes, "writing"));
    if (!bytes) return TN_OK;
    tn_device *d = b->device;
    b->version++;
    if (!is_ordered(d)) return tn_device_send(d, d->handle, (char *)b->address + offset, host, bytes);
    tn_submission o;
    tn_submission_begin(&o, d, queue_at_once(d));
    tn_submission_use(&o, b, true, false);
    TRY(tn_submission_start(&o));
    return tn_submission_end(&o, tn_device_send(d, tn_stream_handle(d), (char *)b->address + offset, host, bytes));
}

int64_t tn_integer_at(tn_dtype t, const void *base, int64_t i) {
    switch (t) {
    case TN_I32: return ((const int32_t *)base)[i];
    case TN_I64: return ((const int64_t *)base)[i];
    case TN_U32: return ((const uint32_t *)base)[i];
    case TN_U64: return (int64_t)((const uint64_t *)base)[i];
    case TN_I16: return ((const int16_t *)base)[i];
    case TN_U16: return ((const uint16_t *)base)[i];
    case TN_I8: return ((const int8_t *)base)[i];
    default: return ((const uint8_t *)base)[i];
    }
}

static void note_integer(tn_known_integers *k, int64_t v) {
    if (v < k->low) {
        k->second_low = k->low;
        k->low = v;
    } else if (v > k->low && v < k->second_low) {
        k->second_low = v;
    }
    if (v > k->high) {
        k->second_high = k->high;
        k->high = v;
    } else if (v < k->high && v > k->second_high) {
        k->second_high = v;
    }
}

/* Can no number from low to high change what is known? None lies between two values that follow each other. */
static bool adds_nothing(const tn_known_integers *k, int64_t low, int64_t high) {
    bool low_ends = low >= k->second_low || (uint64_t)k->second_low - (uint64_t)k->low == 1;
    bool high_ends = high <= k->second_high || (uint64_t)k->high - (uint64_t)k->second_high == 1;
    return low >= k->low && high <= k->high && low_ends && high_ends;
}

/* Pictures and texts are sent as integers, too: most of their blocks are done with their least and greatest number. */
#define NOTE_INTEGERS(name, type)                                            \
    static void name(tn_known_integers *k, const void *from, size_t count) { \
        enum { BLOCK = 256 };                                                \
        const type *v = from, *end = v + count;                              \
        for (; end - v >= BLOCK; v += BLOCK) {                               \
            type low = v[0], high = v[0];                                    \
            for (int i = 0; i < BLOCK; i++) {                                \
                low = v[i] < low ? v[i] : low;                               \
                high = v[i] > high ? v[i] : high;                            \
            }                                                                \
            for (int i = 0; i < BLOCK && !adds_nothing(k, low, high); i++)   \
                note_integer(k, v[i]);                                       \
        }                                                                    \
        for (; v < end; v++)                                                 \
            note_integer(k, *v);                                             \
    }
NOTE_INTEGERS(note_i8, int8_t)
NOTE_INTEGERS(note_u8, uint8_t)
NOTE_INTEGERS(note_i16, int16_t)
NOTE_INTEGERS(note_u16, uint16_t)
NOTE_INTEGERS(note_i32, int32_t)
NOTE_INTEGERS(note_u32, uint32_t)
NOTE_INTEGERS(note_i64, int64_t)

void tn_buffer_note_integers(tn_buffer *b, tn_dtype dtype, const void *host, size_t bytes) {
    static void (*const note[])(tn_known_integers *, const void *, size_t) = {
        [TN_I8] = note_i8,   [TN_U8] = note_u8,   [TN_I16] = note_i16, [TN_U16] = note_u16,
        [TN_I32] = note_i32, [TN_U32] = note_u32, [TN_I64] = note_i64, [TN_U64] = note_i64};
    if ((size_t)dtype >= sizeof note / sizeof *note || !note[dtype]) return;
    tn_known_integers k = {b->version, INT64_MAX, INT64_MAX, INT64_MIN, INT64_MIN};
    note[dtype](&k, host, bytes / tn_dtype_size(dtype));
    if (dtype == TN_U64 && k.low < 0) k.high = INT64_MAX; /* from 2^63 on */
    b->known = k;
}

static tn_status copy_out(const tn_device *d, void *host, const char *address, size_t bytes) {
    return tn_device_fetch(d, tn_stream_handle(d), host, address, bytes);
}

tn_status tn_buffer_read(const tn_buffer *b, size_t offset, void *host, size_t bytes) {
    TRY(check_range(b, offset, bytes, "reading"));
    if (!bytes) return TN_OK;
    tn_device *d = b->device;
    const char *from = (const char *)b->address + offset;
    if (!is_ordered(d)) return copy_out(d, host, from, bytes);
    TRY(tn_buffer_await(b, false));
    tn_submission o;
    tn_submission_begin(&o, d, queue_at_once(d));
    TRY(tn_submission_start(&o));
    return tn_submission_end(&o, copy_out(d, host, from, bytes));
}

/* ---- copies by a queue's thread ---------------------------------------------------------------------------------- */

typedef struct copy_task {
    tn_task task;
    tn_device *dst_device, *src_device; /* NULL: the host */
    char *dst;
    const char *src;
    size_t bytes;
} copy_task;

static tn_status copy_now(tn_device *dst_device, char *dst, tn_device *src_device, const char *src, size_t len);

static tn_status run_copy(tn_task *t) {
    const copy_task *c = (const copy_task *)t;
    return copy_now(c->dst_device, c->dst, c->src_device, c->src, c->bytes);
}

static copy_task *copy_task_new(tn_device *dst_device, void *dst, tn_device *src_device, const void *src, size_t len) {
    copy_task *c = tn_mem_zalloc(1, sizeof *c);
    if (c) *c = (copy_task){{.run = run_copy, .drop = tn_task_free}, dst_device, src_device, dst, src, len};
    return c;
}

tn_status tn_buffer_copy(tn_buffer *to, tn_buffer *from, size_t bytes) {
    tn_device *d = to->device;
    if (!bytes) return TN_OK;
    if (!is_ordered(d)) return tn_device_copy_bytes(d, d->handle, to->address, from->address, bytes, 2);
    tn_queue *q = tn_queue_for(d);
    copy_task *c = tn_queue_has_thread(q) ? copy_task_new(d, to->address, d, from->address, bytes) : NULL;
    if (tn_queue_has_thread(q) && !c) return TN_ERR_MEMORY;
    tn_submission o;
    tn_submission_begin(&o, d, q);
    tn_submission_use(&o, from, false, false);
    tn_submission_use(&o, to, true, false);
    if (c) {
        tn_submission_enqueue(&o, &c->task);
        return TN_OK;
    }
    TRY(tn_submission_start(&o));
    return tn_submission_end(&o, tn_device_copy_bytes(d, tn_stream_handle(d), to->address, from->address, bytes, 2));
}

/* ---- copies by hand ---------------------------------------------------------------------------------------------- */

/* Between two devices that cannot see each other: piece by piece through host memory. */
static tn_status copy_staged(tn_device *dst_device, char *dst, tn_device *src_device, const char *src, size_t len) {
    size_t piece = len < STAGE_BYTES ? len : STAGE_BYTES;
    AUTO_FREE char *stage = tn_mem_alloc(piece);
    if (!stage) return TN_ERR_MEMORY;
    for (size_t at = 0; at < len; at += piece) {
        size_t n = len - at < piece ? len - at : piece;
        TRY(copy_now(NULL, stage, src_device, src + at, n));
        TRY(copy_now(dst_device, dst + at, NULL, stage, n));
    }
    return TN_OK;
}

/* Between two devices: uses the driver's copy_peer if it has one. */
static tn_status copy_between(tn_device *dst_device, char *dst, tn_device *src_device, const char *src, size_t len) {
    const tn_driver *driver = dst_device->driver;
    if (driver != src_device->driver || !driver->copy_peer || dst_device->dry || src_device->dry)
        return copy_staged(dst_device, dst, src_device, src, len);
    TRY(tn_device_wait(src_device, src_device->handle));
    tn_status s = driver->copy_peer(dst_device->handle, dst, src_device->handle, src, len);
    if (s == TN_ERR_UNSUPPORTED) return copy_staged(dst_device, dst, src_device, src, len);
    return s == TN_OK ? tn_device_wait(dst_device, dst_device->handle) : s;
}

static tn_status copy_one_device(tn_device *d, void *dst, const void *src, size_t len, int kind) {
    if (kind == 1) return tn_device_fetch(d, d->handle, dst, src, len);
    TRY(kind == 0 ? tn_device_send(d, d->handle, dst, src, len)
                  : tn_device_copy_bytes(d, d->handle, dst, src, len, kind));
    return tn_device_wait(d, d->handle);
}

/* Memory of a host-visible device is host memory once its work is done. */
static tn_status as_host(tn_device **d) {
    if (!*d || !(*d)->caps.host_visible) return TN_OK;
    tn_status s = (*d)->is_cpu ? TN_OK : tn_device_wait(*d, (*d)->handle);
    *d = NULL;
    return s;
}

static tn_status copy_now(tn_device *dst_device, char *dst, tn_device *src_device, const char *src, size_t len) {
    if (dst_device && dst_device == src_device) return copy_one_device(dst_device, dst, src, len, 2);
    TRY(as_host(&src_device));
    TRY(as_host(&dst_device));
    if (dst_device && src_device) return copy_between(dst_device, dst, src_device, src, len);
    if (dst_device) return copy_one_device(dst_device, dst, src, len, 0);
    if (src_device) return copy_one_device(src_device, dst, src, len, 1);
    memcpy(dst, src, len);
    return TN_OK;
}

tn_status tn_buffer_move(tn_buffer *to, const tn_buffer *from, size_t bytes) {
    if (!bytes) return TN_OK;
    TRY(tn_buffer_await(from, false));
    (void)tn_buffer_await(to, true);
    return copy_now(to->device, to->address, from->device, from->address, bytes);
}

static tn_status check_copy(const char *function, const void *dst, const void *src) {
    if (dst && src) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "%s: %s is NULL", function, dst ? "src" : "dst");
}

static tn_status await_queues(tn_device *d) { return d && is_ordered(d) ? tn_device_drain(d) : TN_OK; }

tn_status tn_device_copy(tn_device *dst_device, void *dst, tn_device *src_device, const void *src, size_t len) {
    if (!len) return TN_OK;
    TRY(check_copy("tn_device_copy", dst, src));
    TRY(await_queues(src_device));
    if (dst_device != src_device) TRY(await_queues(dst_device));
    return copy_now(dst_device, dst, src_device, src, len);
}

/* The kind of the one driver call that does it, -1: it takes more than that. */
static int kind_on(const tn_device *d, const tn_device *dst_device, const tn_device *src_device) {
    bool from_host = !src_device || (src_device != d && src_device->caps.host_visible);
    bool to_host = !dst_device || (dst_device != d && dst_device->caps.host_visible);
    if (dst_device == d && src_device == d) return 2;
    if (dst_device == d && from_host) return 0;
    return src_device == d && to_host ? 1 : -1;
}

static tn_status copy_on_queue(tn_queue *q, int kind, void *dst, const void *src, size_t len) {
    const tn_driver *driver = q->device->driver;
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    TRY(tn_submission_start(&o));
    if (q->device->dry) return tn_submission_end(&o, tn_dry_copy(q->device, q->handle, dst, src, len, kind));
    return tn_submission_end(&o,
                             (driver->copy_async ? driver->copy_async : driver->copy)(q->handle, dst, src, len, kind));
}

static tn_status copy_in_thread(tn_queue *q, copy_task *c) {
    if (!c) return TN_ERR_MEMORY;
    tn_submission o;
    tn_submission_begin(&o, q->device, q);
    tn_submission_enqueue(&o, &c->task);
    return TN_OK;
}

static tn_status copy_async(tn_queue *q, tn_device *dst_device, void *dst, tn_device *src_device, const void *src,
                            size_t len) {
    if (!q) return tn_device_copy(dst_device, dst, src_device, src, len);
    if (tn_queue_has_thread(q)) return copy_in_thread(q, copy_task_new(dst_device, dst, src_device, src, len));
    int kind = kind_on(q->device, dst_device, src_device);
    return kind >= 0 ? copy_on_queue(q, kind, dst, src, len)
                     : tn_device_copy(dst_device, dst, src_device, src, len); /* in two steps, waited for */
}

tn_status tn_device_copy_async(tn_device *dst_device, void *dst, tn_device *src_device, const void *src, size_t len,
                               tn_queue *queue, tn_event *event) {
    if (len) TRY(check_copy("tn_device_copy_async", dst, src));
    tn_queue *q = queue ? queue : tn_current_queue();
    bool foreign = q && (dst_device || src_device) && q->device != dst_device && q->device != src_device;
    if (foreign)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "tn_device_copy_async: the queue belongs to %s, which is neither source nor destination of the copy",
            q->device->info.id);
    if (len) TRY(copy_async(q, dst_device, dst, src_device, src, len));
    return event ? tn_event_record(event, q) : TN_OK;
}

/* ---- memory of the host ------------------------------------------------------------------------------------------ */

/* An allocation of tn_host_alloc or tn_device_map. */
typedef struct host_piece {
    struct host_piece *next;
    tn_device *device;
    tn_buffer *keep_alive; /* keeps a closed device alive */
    void *host;            /* what the caller knows */
    void *block;           /* of the process, to be freed; NULL: the driver's */
    void *address;         /* of a mapping: what it shows */
    size_t bytes;
} host_piece;

static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;
static host_piece *pieces;

static tn_status piece_new(tn_device *d, size_t bytes, host_piece **out) {
    host_piece *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return TN_ERR_MEMORY;
    p->device = d;
    p->bytes = bytes;
    tn_status s = tn_buffer_borrow(d, NULL, 0, NULL, NULL, &p->keep_alive);
    if (s != TN_OK)
        tn_mem_free(p);
    else
        *out = p;
    return s;
}

static void piece_free(host_piece *p) {
    tn_mem_free(p->block);
    tn_buffer_release(p->keep_alive);
    tn_mem_free(p);
}

static void piece_add(host_piece *p) {
    AUTO_LOCK(&pieces_lock);
    p->next = pieces;
    pieces = p;
}

static bool is_piece(const host_piece *p, const tn_device *d, const void *host, const void *address) {
    return p->host == host && p->address == address && (!address || p->device == d);
}

/* Takes out the piece that the caller knows by this address; mapped: of this memory of the device. */
static host_piece *piece_take(const tn_device *d, const void *host, const void *address) {
    AUTO_LOCK(&pieces_lock);
    host_piece **link = &pieces;
    while (*link && !is_piece(*link, d, host, address))
        link = &(*link)->next;
    host_piece *p = *link;
    if (p) *link = p->next;
    return p;
}

static tn_status take_pages(host_piece *p) {
    if (p->bytes > SIZE_MAX - PAGE) return tn_fail(TN_ERR_MEMORY, "%zu bytes of host memory", p->bytes);
    p->block = tn_mem_alloc(p->bytes + PAGE);
    if (!p->block) return TN_ERR_MEMORY;
    uintptr_t block = (uintptr_t)p->block;
    p->host = (char *)p->block + ((block + PAGE - 1) / PAGE * PAGE - block);
    return TN_OK;
}

/* Pins memory as p->host. Returns NULL, or why the interface's own memory is not used. */
static const char *pin(host_piece *p) {
    const tn_device *d = p->device;
    if (d->caps.host_visible) return "the device computes in host memory, so nothing needs to be pinned";
    if (!d->driver->host_alloc || !d->driver->host_free) return "the interface does not support pinned memory";
    if (d->driver->host_alloc(d->handle, p->bytes, &p->host) == TN_OK) return NULL;
    return "the driver ran out of pinned memory";
}

tn_status tn_host_alloc(tn_device *device, size_t size, void **out, const char **reason) {
    TRY(tn_need(device, "tn_host_alloc: the device"));
    TRY(tn_need(out, "tn_host_alloc: out"));
    *out = NULL;
    host_piece *p = NULL;
    TRY(piece_new(device, size, &p));
    const char *why = pin(p);
    tn_status s = why ? take_pages(p) : TN_OK;
    if (s != TN_OK) {
        piece_free(p);
        return s;
    }
    if (reason) *reason = why ? why : "";
    *out = p->host;
    piece_add(p);
    return TN_OK;
}

void tn_host_free(void *address) {
    if (!address) return;
    host_piece *p = piece_take(NULL, address, NULL);
    if (!p) {
        (void)tn_fail(TN_ERR_ARGUMENT, "tn_host_free: %p was not allocated by tn_host_alloc", address);
        return;
    }
    (void)await_queues(p->device); /* a copy may be under way */
    if (!p->block) p->device->driver->host_free(p->device->handle, p->host);
    piece_free(p);
}

/* ---- mapping ----------------------------------------------------------------------------------------------------- */

static tn_status map_piece(host_piece *p, bool read) {
    tn_device *d = p->device;
    if (d->caps.host_visible) {
        p->host = p->address;
        return TN_OK;
    }
    if (d->driver->map && d->driver->unmap && !d->dry) {
        tn_status s = d->driver->map(d->handle, p->address, p->bytes, read, &p->host);
        if (s != TN_ERR_UNSUPPORTED) return s;
    }
    TRY(take_pages(p));
    return read && p->bytes ? copy_one_device(d, p->host, p->address, p->bytes, 1) : TN_OK;
}

tn_status tn_device_map(tn_device *device, void *address, size_t len, bool read, void **out) {
    TRY(tn_need(device, "tn_device_map: the device"));
    TRY(tn_need(address, "tn_device_map: the address"));
    TRY(tn_need(out, "tn_device_map: out"));
    *out = NULL;
    TRY(tn_device_drain(device));
    host_piece *p = NULL;
    TRY(piece_new(device, len, &p));
    p->address = address;
    tn_status s = map_piece(p, read);
    if (s != TN_OK) {
        piece_free(p);
        return s;
    }
    *out = p->host;
    piece_add(p);
    return TN_OK;
}

tn_status tn_device_unmap(tn_device *device, void *address, void *host) {
    TRY(tn_need(device, "tn_device_unmap: the device"));
    TRY(tn_need(host, "tn_device_unmap: the host's address"));
    TRY(tn_need(address, "tn_device_unmap: the device's address"));
    host_piece *p = piece_take(device, host, address);
    if (!p) return tn_fail(TN_ERR_ARGUMENT, "tn_device_unmap: %p is not a mapping of %s", host, device->info.id);
    tn_status s = TN_OK;
    if (p->block && p->bytes)
        s = copy_one_device(device, address, host, p->bytes, 0);
    else if (!p->block && !device->caps.host_visible)
        s = device->driver->unmap(device->handle, address, host);
    piece_free(p);
    return s;
}
