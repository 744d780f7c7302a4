/* driver.c — shared by drivers: lost devices, device memory with handles, bindings, streams of commands, limits. */
#include <stdio.h>
#include <string.h>

#include "hal/driver.h"
#include "kir/render.h"

/* ==== failed calls and lost devices =============================================================================== */

void tn_device_lost_open(tn_device_lost *l, const char *backend, int index) {
    snprintf(l->id, sizeof l->id, "%s:%d", backend, index);
    atomic_init(&l->lost, false);
    l->first[0] = 0;
    pthread_mutex_init(&l->lock, NULL);
}

void tn_device_lost_close(tn_device_lost *l) { pthread_mutex_destroy(&l->lock); }

void tn_device_lost_note(tn_device_lost *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&l->lock);
    if (!tn_is_lost(l)) vsnprintf(l->first, sizeof l->first, format, args);
    atomic_store_explicit(&l->lost, true, memory_order_release);
    pthread_mutex_unlock(&l->lock);
    va_end(args);
}

tn_status tn_device_lost_check(tn_device_lost *l) {
    if (!tn_is_lost(l)) return TN_OK;
    return tn_fail(TN_ERR_LOST, "%s: the device was lost earlier (%s); " TN_ADVICE_ANEW, l->id, l->first);
}

tn_status tn_device_lost_with_work(tn_device_lost *l, tn_status s, const char *call) {
    if (s == TN_ERR_LOST) return s;
    tn_device_lost_note(l, "%s: submitting commands failed", call);
    return tn_fail_prefix(TN_ERR_LOST, "the device is lost, with the work submitted to it");
}

static const tn_call_error *call_error_row_of(const tn_call_errors *known, int32_t code) {
    static const tn_call_error unknown = {0, "an unknown driver error", TN_ERR_DEVICE, TN_ADVICE_UPDATE};
    for (; known; known = known->next)
        for (size_t i = 0; i < known->count; i++)
            if (known->rows[i].code == code) return &known->rows[i];
    return &unknown;
}

tn_status tn_call_check(tn_device_lost *l, const tn_call_errors *known, int32_t code, const char *call,
                        const char *format, ...) {
    char values[160];
    va_list args;
    if (known->positive ? code <= 0 : code >= 0) return TN_OK;
    va_start(args, format);
    vsnprintf(values, sizeof values, format, args);
    va_end(args);
    const tn_call_error *row = call_error_row_of(known, code);
    bool lost = row->status == TN_ERR_LOST;
    if (lost) tn_device_lost_note(l, "%s(%s): %s", call, values, row->name);
    return tn_fail(row->status, "%s: %s(%s): %s (%d)%s; %s", l->id, call, values, row->name, code,
                   lost ? ": the device is lost" : "", row->advice);
}

tn_status tn_hand_out(tn_status s, void *made, void (*end)(void *device, void *made), void *device, void **out) {
    if (s != TN_OK)
        end(device, made);
    else
        *out = made;
    return s;
}

tn_status tn_hand_out_device(tn_status s, void *made, void (*close)(void *device), void **out) {
    if (s != TN_OK)
        close(made);
    else
        *out = made;
    return s;
}

/* ==== limits of a kernel ========================================================================================== */

static uint64_t items_of(const tn_code *code, const tn_code_limits *most) {
    uint64_t items = 1;
    for (int i = 0; i < 3; i++) {
        uint64_t n = code->group[i] ? code->group[i] : 1;
        items = most->group[i] && n > most->group[i] ? UINT32_MAX : items > UINT32_MAX ? items : items * n;
    }
    return items;
}

tn_status tn_code_check(const char *device, const tn_code *code, const tn_code_limits *most) {
    uint64_t items = items_of(code, most);
    if (most->group_items && items > most->group_items)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s needs workgroups of %llu items; the device supports at most %u",
                       device, code->entry, (unsigned long long)items, most->group_items);
    if (most->buffers && (uint32_t)code->buffer_count > most->buffers)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s binds %d buffers; the device supports at most %u", device,
                       code->entry, code->buffer_count, most->buffers);
    if (most->local_bytes && code->local_bytes > most->local_bytes)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s needs %lld bytes of workgroup memory; the device has %lld", device,
                       code->entry, (long long)code->local_bytes, (long long)most->local_bytes);
    if (most->params_bytes && code->params_bytes > most->params_bytes)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s has %zu bytes of parameters; the maximum is %zu", device,
                       code->entry, code->params_bytes, most->params_bytes);
    return TN_OK;
}

tn_status tn_groups_check(const char *device, const char *kernel, const tn_dispatch *l, uint32_t most) {
    for (int i = 0; i < 3; i++)
        if (l->groups[i] > most)
            return tn_fail(TN_ERR_UNSUPPORTED, "%s: %s: %u workgroups along axis %d; the device supports at most %u",
                           device, kernel, l->groups[i], i, most);
    return TN_OK;
}

/* ==== memory in use =============================================================================================== */

tn_status tn_memory_budget_take(tn_memory_budget *r, const char *device, size_t bytes) {
    int64_t size =
        (int64_t)((uint64_t)bytes < INT64_MAX / 2 ? bytes : INT64_MAX / 2); /* so that counting it does not overflow */
    if (r->largest && size > r->largest)
        return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes exceed the device's largest allocation of %lld; %s", device, bytes,
                       (long long)r->largest, TN_ADVICE_SMALLER);
    int64_t taken = atomic_fetch_add(&r->taken, size);
    if (!r->total || taken <= r->total - size) return TN_OK;
    tn_memory_budget_give(r, size);
    return tn_fail(TN_ERR_MEMORY, "%s: %zu bytes in addition to %lld of %lld in use; %s", device, bytes,
                   (long long)taken, (long long)r->total, TN_ADVICE_SMALLER);
}

int64_t tn_memory_budget_left(const tn_memory_budget *r, bool in_host) {
    int64_t left = tn_max64(r->total - atomic_load(&r->taken), 0);
    return in_host ? tn_min64(left, tn_host_memory_now().unused) : left;
}

/* ==== addresses for memory with handles =========================================================================== */
/* A sorted array with binary search. New ranges are added at the end, which costs nothing until the addresses are used
 * up (possible only on 32-bit machines); from then on the first gap that fits is used. */

enum { GRAIN = 4096 }; /* the largest alignment that tn_device_alloc gives, and room between two ranges */

/* Addresses that no program can have: on x86-64 with bit 62, on ARM64, which may ignore the top byte, with bit 55. On
 * 32-bit machines the third gigabyte. */
#if UINTPTR_MAX > 0xFFFFFFFF
static const uintptr_t FIRST = (uintptr_t)1 << 62 | (uintptr_t)1 << 55, LAST = (uintptr_t)1 << 62 | (uintptr_t)1 << 56;
#else
static const uintptr_t FIRST = (uintptr_t)1 << 31, LAST = (uintptr_t)3 << 30;
#endif

void tn_address_ranges_open(tn_address_ranges *s) {
    *s = (tn_address_ranges){.next = FIRST};
    pthread_mutex_init(&s->lock, NULL);
}

void tn_address_ranges_close(tn_address_ranges *s) {
    pthread_mutex_destroy(&s->lock);
    tn_mem_free(s->items);
}

/* Addresses that a range takes: whole grains, and an unused one after it. */
static uintptr_t taken(size_t bytes) { return (((uintptr_t)bytes + GRAIN - 1) / GRAIN + 1) * GRAIN; }

/* How many ranges start at or before `at`. */
static size_t count_before(const tn_address_ranges *s, uintptr_t at) {
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->items[middle].start <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first place for `need` numbers between others; 0 when there is none. */
static uintptr_t gap_for(const tn_address_ranges *s, uintptr_t need) {
    uintptr_t at = FIRST;
    for (size_t i = 0; i < s->count; i++) {
        if (s->items[i].start - at >= need) return at;
        at = s->items[i].start + taken(s->items[i].bytes);
    }
    return LAST - at >= need ? at : 0;
}

static tn_status insert(tn_address_ranges *s, tn_address_range span) {
    TRY(tn_mem_reserve(&s->items, &s->capacity, s->count + 1, sizeof *s->items));
    size_t at = count_before(s, span.start);
    memmove(s->items + at + 1, s->items + at, (s->count - at) * sizeof *s->items);
    s->items[at] = span;
    s->count++;
    return TN_OK;
}

static tn_status place_range(tn_address_ranges *s, void *handle, size_t bytes, uintptr_t *start) {
    uintptr_t need = taken(bytes);
    bool fits = s->next <= LAST && need <= LAST - s->next;
    *start = fits ? s->next : gap_for(s, need);
    if (!*start) return tn_fail(TN_ERR_MEMORY, "no address range is left for %zu bytes of device memory", bytes);
    TRY(insert(s, (tn_address_range){*start, bytes, handle}));
    if (fits) s->next += need;
    return TN_OK;
}

tn_status tn_address_range_add(tn_address_ranges *s, void *handle, size_t bytes, void **address) {
    uintptr_t start = 0;
    if (bytes > LAST - FIRST - 2 * GRAIN)
        return tn_fail(TN_ERR_MEMORY, "no address range is left for %zu bytes of device memory", bytes);
    pthread_mutex_lock(&s->lock);
    tn_status status = place_range(s, handle, bytes ? bytes : 1, &start);
    pthread_mutex_unlock(&s->lock);
    if (status == TN_OK) *address = (void *)start;
    return status;
}

tn_status tn_address_range_add_host(tn_address_ranges *s, void *handle, size_t bytes, const void *host) {
    AUTO_LOCK(&s->lock);
    return insert(s, (tn_address_range){(uintptr_t)host, bytes, handle});
}

void *tn_address_range_find(tn_address_ranges *s, const void *address, size_t bytes, size_t *offset) {
    uintptr_t at = (uintptr_t)address;
    void *handle = NULL;
    AUTO_LOCK(&s->lock);
    size_t before = count_before(s, at);
    const tn_address_range *span = before ? &s->items[before - 1] : NULL;
    if (span && at - span->start <= span->bytes && bytes <= span->bytes - (at - span->start)) {
        handle = span->handle;
        *offset = at - span->start;
    }
    return handle;
}

tn_status tn_address_range_locate(tn_address_ranges *s, const char *device, const char *role, const void *address,
                                  size_t bytes, void **handle, size_t *offset) {
    *handle = tn_address_range_find(s, address, bytes, offset);
    if (*handle) return TN_OK;
    return tn_fail(TN_ERR_INTERNAL,
                   "%s: %s: %zu bytes at %p are outside every allocation of the device; if your program does not "
                   "compute this address itself, please report this",
                   device, role, bytes, address);
}

void *tn_address_range_remove(tn_address_ranges *s, const void *address, size_t *bytes) {
    void *handle = NULL;
    AUTO_LOCK(&s->lock);
    size_t before = count_before(s, (uintptr_t)address);
    tn_address_range *span = before ? &s->items[before - 1] : NULL;
    if (span && span->start == (uintptr_t)address) {
        handle = span->handle;
        *bytes = span->bytes;
        memmove(span, span + 1, (s->count - before) * sizeof *span);
        s->count--;
    }
    return handle;
}

/* ==== bindings of a launch ======================================================================================== */

enum { NONE = 0xFF };

tn_sharing tn_sharing_apart(int buffers) {
    tn_sharing s = {.slots = buffers};
    for (int i = 0; i < buffers; i++) {
        s.slot_of[i] = s.twin[i] = (uint8_t)i;
        s.windows[i] = 1;
    }
    return s;
}

/* Bindings that would hold all allocations of a launch. */
static uint64_t bindings_for_all(const tn_bindings *b, int buffers, const tn_bind_limits *l) {
    uint64_t all = 0;
    for (int i = 0, k; i < buffers; i++) {
        for (k = 0; k < i && b->buffers[k].memory != b->buffers[i].memory;)
            k++;
        all += k == i ? (b->buffers[i].bytes - 1) / l->window + 1 : 0;
    }
    return all;
}

/* Where the bindings of a buffer may begin. */
static uint64_t binding_place_of(const tn_bound *b, const tn_bind_limits *l) {
    uint64_t at = b->at < b->bytes ? b->at : b->bytes - 1;
    return at / l->unit * l->unit;
}

/* Adds buffers without a slot to the slot that buffer i begins: all in its memory whose bindings of `each` bytes
 * overlap the slot's bindings. */
static void fill_slot(tn_bindings *b, int buffers, const tn_bind_limits *l, int i, uint64_t each, int slot) {
    const tn_bound *first = &b->buffers[i];
    uint64_t reach = each * l->window;
    bool large = (first->bytes - 1) / l->window + 1 > each;
    uint64_t from = large ? binding_place_of(first, l) : 0, end = large ? from + reach : first->bytes;
    for (int k = i; large && k < buffers;) {
        uint64_t at = binding_place_of(&b->buffers[k], l);
        bool meets = b->buffers[k].memory == first->memory && at < end && at + reach > from;
        if (!meets || (at >= from && at + reach <= end)) {
            k++;
            continue;
        }
        end = at + reach > end ? at + reach : end;
        from = at < from ? at : from;
        k = i; /* what did not meet it before may now */
    }
    for (int k = i; k < buffers; k++) {
        uint64_t at = binding_place_of(&b->buffers[k], l);
        if (b->buffers[k].memory == first->memory && (!large || (at >= from && at < end)))
            b->sharing.slot_of[k] = (uint8_t)slot;
    }
    b->first[slot] = i;
    b->from[slot] = from;
    b->end[slot] = end < first->bytes ? end : first->bytes;
    b->sharing.windows[slot] = (uint8_t)((b->end[slot] - from - 1) / l->window + 1);
}

void tn_bindings_choose(tn_bindings *b, int buffers, const tn_bind_limits *l) {
    tn_sharing *s = &b->sharing;
    uint64_t each = l->most;
    if (bindings_for_all(b, buffers, l) > each) each /= (uint64_t)buffers;
    for (int i = 0; i < buffers; i++)
        s->slot_of[i] = NONE;
    for (int i = 0; i < buffers; i++) {
        if (s->slot_of[i] != NONE) continue;
        for (int k = s->slots; k >= 0; k--)
            if (k == s->slots || b->buffers[b->first[k]].memory == b->buffers[i].memory) s->twin[s->slots] = (uint8_t)k;
        fill_slot(b, buffers, l, i, each, s->slots++);
    }
}

int tn_bindings_list(const tn_bindings *b, const tn_bind_limits *l, tn_bind_entry *out) {
    int n = 0;
    for (int slot = 0; slot < b->sharing.slots; slot++)
        for (int k = 0; k < b->sharing.windows[slot]; k++) {
            uint64_t from = b->from[slot] + (uint64_t)k * l->window, rest = b->end[slot] - from;
            out[n++] = (tn_bind_entry){b->buffers[b->first[slot]].memory, from, rest < l->window ? rest : l->window};
        }
    return n;
}

/* ==== copies of bytes as words ==================================================================================== */

enum {
    WORD = 4,
    BEFORE = WORD /* what is copied by scratch memory begins behind a word: the first bytes may be those before it */
};

static tn_status locate_word(const tn_word_copier *w, const void *address, size_t bytes, void **memory, size_t *at) {
    return tn_address_range_locate(w->ranges, w->id, "copying", address, bytes, memory, at);
}

/* The actions of a patch. */
typedef struct source {
    bool copies;
    uint32_t value, skip; /* of a word; bytes of the scratch memory before what is copied */
} source;

static tn_status patch_some(const tn_word_copier *w, char *dst, size_t bytes, const source *from) {
    uint32_t odd = (uint32_t)((uintptr_t)dst % WORD), end = (uint32_t)((odd + bytes) % WORD);
    size_t words = (odd + bytes + WORD - 1) / WORD;
    size_t groups = (words + KIR_WGSL_PATCH_ITEMS - 1) / KIR_WGSL_PATCH_ITEMS,
           x = groups < w->groups ? groups : w->groups;
    const kir_wgsl_patch_params params = {.count = (uint32_t)words,
                                          .first_mask = UINT32_MAX << odd * 8,
                                          .last_mask = end ? UINT32_MAX >> (WORD - end) * 8 : UINT32_MAX,
                                          .copies = from->copies,
                                          .value = from->value,
                                          .skip = from->skip - odd,
                                          .row = (uint32_t)x * KIR_WGSL_PATCH_ITEMS};
    void *buffers[] = {dst - odd, w->scratch};
    const tn_dispatch l = {{(uint32_t)x, (uint32_t)((groups + x - 1) / x), 1}, buffers, &params};
    return w->calls->patch(w->device, &l);
}

static tn_status patch(const tn_word_copier *w, char *dst, size_t bytes, source from) {
    for (size_t n; bytes; bytes -= n, dst += n, from.skip += (uint32_t)n) {
        n = bytes < w->reach ? bytes : w->reach;
        TRY(patch_some(w, dst, n, &from));
    }
    return TN_OK;
}

/* Within one allocation, or if offset or size is not a multiple of a word. */
static tn_status copy_by_scratch(const tn_word_copier *w, char *dst, void *from, size_t from_at, size_t bytes) {
    void *scratch, *to;
    size_t zero, to_at, most = w->scratch_bytes - 4 * WORD;
    TRY(locate_word(w, w->scratch, w->scratch_bytes, &scratch, &zero));
    for (size_t n; bytes; dst += n, from_at += n, bytes -= n) {
        size_t odd = from_at % WORD;
        n = bytes < most ? bytes : most;
        TRY(locate_word(w, dst, n, &to, &to_at));
        size_t cover = (odd + n + WORD - 1) / WORD * WORD;
        TRY(w->calls->copy(w->device, from, from_at - odd, scratch, BEFORE, cover));
        if (odd || to_at % WORD || n % WORD)
            TRY(patch(w, dst, n, (source){.copies = true, .skip = (uint32_t)(BEFORE + odd)}));
        else
            TRY(w->calls->copy(w->device, scratch, BEFORE, to, to_at, n));
    }
    return TN_OK;
}

tn_status tn_word_copy(const tn_word_copier *w, char *dst, const void *src, size_t bytes) {
    void *to, *from;
    size_t to_at, from_at;
    TRY(locate_word(w, dst, bytes, &to, &to_at));
    TRY(locate_word(w, src, bytes, &from, &from_at));
    if (to == from || (to_at | from_at | bytes) % WORD) return copy_by_scratch(w, dst, from, from_at, bytes);
    return w->calls->copy(w->device, from, from_at, to, to_at, bytes);
}

/* Up to three bytes within one word. */
static tn_status write_odd(const tn_word_copier *w, char *dst, const unsigned char *host, size_t bytes) {
    uint32_t value = 0, odd = (uint32_t)((uintptr_t)dst % WORD);
    for (size_t i = 0; i < bytes; i++)
        value |= (uint32_t)host[i] << (odd + i) * 8;
    return patch(w, dst, bytes, (source){.value = value});
}

tn_status tn_word_write(const tn_word_copier *w, char *dst, const unsigned char *host, size_t bytes) {
    void *to;
    size_t at;
    TRY(locate_word(w, dst, bytes, &to, &at));
    size_t head = at % WORD ? WORD - at % WORD : 0;
    head = head < bytes ? head : bytes;
    size_t tail = (bytes - head) % WORD;
    TRY(write_odd(w, dst, host, head));
    TRY(w->calls->write(w->device, to, at + head, (const char *)host + head, bytes - head - tail));
    return write_odd(w, dst + bytes - tail, host + bytes - tail, tail);
}

tn_status tn_word_fill(const tn_word_copier *w, char *dst, uint8_t value, size_t bytes) {
    return patch(w, dst, bytes, (source){.value = value * 0x01010101u});
}

/* ==== streams of commands ========================================================================================= */

void tn_stream_open(tn_stream *s, const tn_stream_calls *calls, void *device, tn_device_lost *lost_state) {
    *s = (tn_stream){.calls = calls, .device = device, .lost_state = lost_state};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, NULL);
}

void tn_stream_close(tn_stream *s) {
    pthread_cond_destroy(&s->left);
    pthread_mutex_destroy(&s->lock);
}

void tn_stream_submitted(tn_stream *s) {
    uint64_t number = ++s->submitted;
    s->slots[tn_stream_slot(number)].number = number;
}

tn_status tn_stream_submit(tn_stream *s) { return s->recording ? s->calls->submit(s->device) : TN_OK; }

tn_status tn_stream_await(tn_stream *s, uint64_t number) {
    int slot = tn_stream_slot(number);
    TRY(tn_device_lost_check(s->lost_state));
    if (number <= s->done) return TN_OK;
    s->slots[slot].waiters++;
    pthread_mutex_unlock(&s->lock);
    tn_status status = s->calls->wait(s->device, slot, number);
    pthread_mutex_lock(&s->lock);
    s->slots[slot].waiters--;
    pthread_cond_broadcast(&s->left);
    if (status == TN_OK && number > s->done) s->done = number;
    return status;
}

tn_status tn_stream_finish(tn_stream *s) {
    TRY(tn_device_lost_check(s->lost_state));
    TRY(tn_stream_submit(s));
    return tn_stream_await(s, s->submitted);
}

tn_status tn_stream_query(tn_stream *s, uint64_t number, bool *ended) {
    int slot = tn_stream_slot(number);
    *ended = number <= s->done || s->slots[slot].number != number;
    tn_status status = *ended ? TN_OK : s->calls->query(s->device, slot, number, ended);
    if (*ended && number > s->done) s->done = number;
    return status;
}

bool tn_stream_is_idle(tn_stream *s) {
    bool ended = false;
    return !s->recording && tn_stream_query(s, s->submitted, &ended) == TN_OK && ended;
}

tn_status tn_stream_record(tn_stream *s, size_t bytes, int bindings, int *out) {
    for (;;) {
        int slot = *out = tn_stream_slot(s->submitted + 1);
        TRY(tn_device_lost_check(s->lost_state));
        if (s->recording && s->calls->has_room(s->device, slot, bytes, bindings)) return TN_OK;
        if (s->recording)
            TRY(tn_stream_submit(s));
        else if (s->slots[slot].number > s->done)
            TRY(tn_stream_await(s, s->slots[slot].number));
        else if (s->slots[slot].waiters)
            pthread_cond_wait(&s->left, &s->lock);
        else {
            TRY(s->calls->begin(s->device, slot));
            s->recording = true;
        }
    }
}

void tn_stream_wait_unused(tn_stream *s, uint64_t last) {
    AUTO_LOCK(&s->lock);
    if (last > s->done) {
        if (!tn_is_lost(s->lost_state) && last > s->submitted) (void)tn_stream_submit(s);
        if (tn_is_lost(s->lost_state) || tn_stream_await(s, last) != TN_OK) s->calls->idle(s->device);
    }
}

tn_status tn_stream_queue_new(void *device, void **queue) {
    *queue = device;
    return tn_device_lost_check(device);
}

void tn_stream_queue_free(TN_UNUSED void *device, TN_UNUSED void *queue) {}

tn_status tn_stream_event_wait(void *queue, TN_UNUSED void *event) { return tn_device_lost_check(queue); }
