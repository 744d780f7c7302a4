/* conform.c — the promises of a driver, one function each (see conform.h). A function returns when its promise is
 * broken; what it had taken is then not given back, since nothing more is known of the device's state. */
#include "cli/device/conform.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct conform {
    const tn_driver *driver;
    void *device;
    tn_caps caps;
    tn_device_info info;
    conform_options options;
    FILE *out;
    const char *promise;
    conform_result result;
    bool broken, skipped;
} conform;

static void broken(conform *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void broken(conform *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(c->out, "%s: broken: ", c->promise);
    vfprintf(c->out, format, args);
    fputc('\n', c->out);
    va_end(args);
    c->broken = true;
}

/* The two ways out of a promise. */
#define NEED(condition, ...)        \
    do {                            \
        if (!(condition)) {         \
            broken(c, __VA_ARGS__); \
            return;                 \
        }                           \
    } while (0)
#define CALL(expr) NEED((expr) == TN_OK, "%s fails: %s", #expr, tn_error())

/* Whether the driver was built when the field was there, and has it. */
#define OFFERS(c, field) \
    ((c)->driver->struct_size >= offsetof(tn_driver, field) + sizeof(c)->driver->field && (c)->driver->field)

static void fill_pattern(unsigned char *p, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (unsigned char)(seed >> 24);
    }
}

static void *at(void *address, size_t bytes) { return (char *)address + bytes; }

static const size_t odd_sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 63, 64, 65, 255, 1000, 4095, 4096, 4097};
static const size_t odd_offsets[] = {0, 1, 2, 3, 4, 8, 63, 64, 65, 128, 1021};
enum { ROOM = 8192 };
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- the device -------------------------------------------------------------------------------------------------- */

static void capabilities_make_sense(conform *c) {
    NEED(c->caps.code >= TN_CODE_KIR && c->caps.code <= TN_CODE_C, "caps.code is %d", (int)c->caps.code);
    NEED(c->caps.max_buffer > 0, "caps.max_buffer is %lld", (long long)c->caps.max_buffer);
    NEED(c->caps.max_group > 0, "caps.max_group is %lld", (long long)c->caps.max_group);
    int64_t a = c->caps.alignment;
    NEED(a > 0 && (a & (a - 1)) == 0, "caps.alignment is %lld, no power of two", (long long)a);
    NEED(c->caps.code == TN_CODE_KIR ? c->driver->launch != NULL : OFFERS(c, dispatch),
         "no function that runs the form of code that it asks for");
    NEED(memchr(c->caps.version, 0, sizeof c->caps.version), "caps.version does not end");
    tn_caps again = {.struct_size = sizeof again};
    CALL(c->driver->caps(c->device, &again));
    NEED(again.code == c->caps.code && again.max_buffer == c->caps.max_buffer && again.alignment == a,
         "asked again, the capabilities are others");
}

static void a_probe_can_be_repeated(conform *c) {
    for (int i = 0; i < 3; i++) {
        tn_device_info devices[16] = {{0}};
        tn_probe p = {.struct_size = sizeof p, .devices = devices, .capacity = 16};
        c->driver->probe(&p);
        NEED(p.count > c->info.index, "look %d finds %d devices", i + 2, p.count);
        NEED(!strcmp(devices[c->info.index].name, c->info.name), "the device is now called %s",
             devices[c->info.index].name);
    }
    tn_probe none = {.struct_size = sizeof none};
    c->driver->probe(&none); /* no room: finds nothing, writes nothing */
    NEED(none.count == 0, "%d devices written where there is room for none", none.count);
}

static void a_device_that_is_not_there_does_not_open(conform *c) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    void *device = NULL;
    NEED(c->driver->open(12345, &o, &device) != TN_OK, "device 12345 opens");
}

static void it_opens_again_and_again(conform *c) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    for (int i = 0; i < 5; i++) {
        void *device = NULL;
        CALL(c->driver->open(c->info.index, &o, &device));
        void *address = NULL;
        CALL(c->driver->alloc(device, 100, &address));
        c->driver->free(device, address);
        c->driver->close(device);
    }
}

static void memory_numbers_make_sense(conform *c) {
    if (!OFFERS(c, memory)) {
        c->skipped = true;
        return;
    }
    int64_t total = -1, unused = -1;
    CALL(c->driver->memory(c->device, &total, &unused));
    NEED(total >= 0 && unused >= 0 && unused <= total, "%lld of %lld bytes are free", (long long)unused,
         (long long)total);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void memory_of_every_size_is_aligned(conform *c) {
    for (size_t i = 0; i < COUNT(odd_sizes); i++) {
        void *a = NULL, *b = NULL;
        size_t n = odd_sizes[i] ? odd_sizes[i] : 1; /* hal never asks for none */
        CALL(c->driver->alloc(c->device, n, &a));
        CALL(c->driver->alloc(c->device, n, &b));
        NEED(a && b && a != b, "%zu bytes twice are at %p and %p", n, a, b);
        NEED((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0, "%zu bytes are not aligned to 64", n);
        uintptr_t low = (uintptr_t)a, high = (uintptr_t)b;
        NEED((low < high ? high - low : low - high) >= n, "two times %zu bytes overlap", n);
        c->driver->free(c->device, b);
        c->driver->free(c->device, a);
    }
}

static void many_blocks_live_beside_each_other(conform *c) {
    enum { BLOCKS = 300 };
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CALL(c->driver->alloc(c->device, 64 + (size_t)i * 16, &blocks[i]));
        CALL(c->driver->copy(c->device, blocks[i], &i, sizeof i, 0));
    }
    for (int i = 0; i < BLOCKS; i++) {
        int k = i * 7 % BLOCKS, got = -1;
        CALL(c->driver->copy(c->device, &got, blocks[k], sizeof got, 1));
        NEED(got == k, "block %d holds %d", k, got);
        CALL(c->driver->sync(c->device));
        c->driver->free(c->device, blocks[k]);
    }
}

static void large_memory_holds_its_content(conform *c) {
    size_t n = c->options.large > 0 ? (size_t)c->options.large : (size_t)8 << 20;
    unsigned char *data = malloc(n), *back = malloc(n);
    void *a = NULL;
    NEED(data && back, "no memory for the test itself");
    fill_pattern(data, n, 5);
    memset(back, 0, n);
    CALL(c->driver->alloc(c->device, n, &a));
    CALL(c->driver->copy(c->device, a, data, n, 0));
    CALL(c->driver->copy(c->device, back, a, n, 1));
    NEED(!memcmp(data, back, n), "%zu bytes come back changed", n);
    size_t last = n - 5; /* an address far inside */
    CALL(c->driver->copy(c->device, back, at(a, last), 5, 1));
    NEED(!memcmp(data + last, back, 5), "the last bytes of %zu come back changed", n);
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
    free(data);
    free(back);
}

static void too_much_memory_is_refused_and_forgotten(conform *c) {
    if (c->options.no_huge) {
        c->skipped = true;
        return;
    }
    const size_t huge = sizeof huge > 4 ? SIZE_MAX / 16 + 1 : SIZE_MAX - 65535; /* 2^60, or all that 32 bits address */
    void *a = NULL;
    for (int i = 0; i < 3; i++) {
        tn_status s = c->driver->alloc(c->device, huge, &a);
        NEED(s == TN_ERR_MEMORY, "allocating %zu bytes returns status %d, not TN_ERR_MEMORY", huge, (int)s);
    }
    int here = 7, back = 0;
    CALL(c->driver->alloc(c->device, sizeof here, &a));
    CALL(c->driver->copy(c->device, a, &here, sizeof here, 0));
    CALL(c->driver->copy(c->device, &back, a, sizeof here, 1));
    NEED(back == here, "afterwards memory does not hold what was written");
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* A block of ROOM bytes with a pattern, and the same on the host. */
static bool two_sides(conform *c, unsigned seed, void **block, unsigned char *host) {
    fill_pattern(host, ROOM, seed);
    if (c->driver->alloc(c->device, ROOM, block) == TN_OK && c->driver->copy(c->device, *block, host, ROOM, 0) == TN_OK)
        return true;
    broken(c, "%d bytes cannot be allocated and written", ROOM);
    return false;
}

/* After each copy both whole blocks are as a copy on the host has left them. */
static bool is_as(conform *c, const void *block, const unsigned char *host, const char *what, size_t n, size_t offset) {
    static _Thread_local unsigned char back[ROOM];
    memset(back, 0, sizeof back);
    if (c->driver->copy(c->device, back, block, ROOM, 1) != TN_OK)
        broken(c, "reading after %s fails", what);
    else if (memcmp(back, host, ROOM))
        broken(c, "%s of %zu bytes at offset %zu leaves other bytes than it should", what, n, offset);
    else
        return true;
    return false;
}

static void copies_of_all_kinds_and_sizes(conform *c) {
    static unsigned char x[ROOM], y[ROOM], news[ROOM], back[ROOM];
    void *a = NULL, *b = NULL;
    if (!two_sides(c, 1, &a, x) || !two_sides(c, 2, &b, y)) return;
    for (size_t i = 0; i < COUNT(odd_sizes); i++) {
        for (size_t k = 0; k < COUNT(odd_offsets); k++) {
            size_t n = odd_sizes[i], from = odd_offsets[k], to = odd_offsets[(k + i) % COUNT(odd_offsets)];
            fill_pattern(news, n, (unsigned)(i * 100 + k));
            CALL(c->driver->copy(c->device, at(a, to), news, n, 0));
            memcpy(x + to, news, n);
            memset(news, 0xee, n); /* the host's memory may be reused at once */
            if (!is_as(c, a, x, "a write", n, to)) return;
            CALL(c->driver->copy(c->device, at(b, from), at(a, to), n, 2));
            memcpy(y + from, x + to, n);
            if (!is_as(c, b, y, "a copy within the device", n, from)) return;
            memset(back, 0xdd, sizeof back);
            CALL(c->driver->copy(c->device, back + 1, at(b, from), n, 1));
            NEED(!memcmp(back + 1, y + from, n) && back[0] == 0xdd && back[1 + n] == 0xdd,
                 "a read of %zu bytes at offset %zu gives other bytes", n, from);
        }
    }
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
    c->driver->free(c->device, b);
}

static void a_block_is_copied_into_itself(conform *c) {
    static unsigned char x[ROOM];
    void *a = NULL;
    if (!two_sides(c, 3, &a, x)) return;
    CALL(c->driver->copy(c->device, at(a, 4000), at(a, 100), 3000, 2)); /* apart from each other */
    memcpy(x + 4000, x + 100, 3000);
    if (!is_as(c, a, x, "a copy within a block", 3000, 4000)) return;
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
}

static void copies_keep_their_order(conform *c) {
    enum { STEPS = 200 };
    void *a = NULL, *b = NULL;
    CALL(c->driver->alloc(c->device, 64, &a));
    CALL(c->driver->alloc(c->device, 64, &b));
    int sum = 0;
    CALL(c->driver->copy(c->device, a, &sum, sizeof sum, 0));
    for (int i = 0; i < STEPS; i++) { /* no wait in between */
        int value = i;
        CALL(c->driver->copy(c->device, a, &value, sizeof value, 0));
        CALL(c->driver->copy(c->device, b, a, sizeof value, 2));
        value = -1;
        CALL(c->driver->copy(c->device, a, &value, sizeof value, 0));
        if (i % 10) continue;
        CALL(c->driver->copy(c->device, &value, b, sizeof value, 1));
        NEED(value == i, "step %d reads %d", i, value);
    }
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, b);
    c->driver->free(c->device, a);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct worker {
    conform *c;
    int number;
    const char *wrong;
} worker;

static const char *work_conform(const worker *w) {
    enum { BYTES = 3001 };
    conform *c = w->c;
    unsigned char data[BYTES], back[BYTES];
    for (int i = 0; i < 60; i++) {
        void *a = NULL, *b = NULL;
        fill_pattern(data, BYTES, (unsigned)(w->number * 1000 + i));
        if (c->driver->alloc(c->device, BYTES, &a) || c->driver->alloc(c->device, BYTES, &b)) return "alloc fails";
        if (c->driver->copy(c->device, a, data, BYTES, 0) || c->driver->copy(c->device, b, a, BYTES, 2) ||
            c->driver->copy(c->device, back, b, BYTES, 1))
            return "a copy fails";
        if (memcmp(data, back, BYTES)) return "bytes come back changed";
        if (c->driver->sync(c->device)) return "sync fails";
        c->driver->free(c->device, i % 2 ? a : b);
        c->driver->free(c->device, i % 2 ? b : a);
    }
    return NULL;
}

static void *work_entry(void *ctx) {
    worker *w = ctx;
    w->wrong = work_conform(w);
    return NULL;
}

static void several_threads_use_it_at_once(conform *c) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    worker workers[THREADS];
    int started = 0;
    for (; started < THREADS; started++) {
        workers[started] = (worker){c, started, NULL};
        if (pthread_create(&threads[started], NULL, work_entry, &workers[started])) break;
    }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < started; i++)
        NEED(!workers[i].wrong, "thread %d of %d: %s", i, started, workers[i].wrong);
    c->skipped = started == 0; /* a system without threads */
    NEED(started == THREADS || started == 0, "%d of %d threads could be started", started, THREADS);
}

/* ---- code -------------------------------------------------------------------------------------------------------- */

static bool is_text(tn_code_format form) { return form != TN_CODE_KIR && form != TN_CODE_SPIRV; }

static void wrong_code_is_refused_with_words(conform *c) {
    static const char nonsense[] = "this is no kernel {{{ at all;\n";
    bool given = c->options.wrong != NULL;
    if (!given && !is_text(c->caps.code)) {
        c->skipped = true;
        return;
    }
    bool written[1] = {true};
    tn_code code = {.format = c->caps.code,
                    .data = given ? c->options.wrong : nonsense,
                    .size = given ? c->options.wrong_size : sizeof nonsense - 1,
                    .entry = "kernel_entry",
                    .buffer_count = 1,
                    .group = {1, 1, 1},
                    .params_bytes = 8,
                    .bases_at = 0,
                    .written = written,
                    .options = ""};
    for (int i = 0; i < 2; i++) {
        void *module = NULL;
        tn_status s = c->driver->load(c->device, &code, &module);
        NEED(s != TN_OK, "what is no code is loaded");
        NEED(s != TN_ERR_MEMORY && s != TN_ERR_LOST, "status %d says that it may pass", (int)s);
    }
    /* a binary that is none may be refused too, or passed over for the text: nothing more */
    code.binary = nonsense;
    code.binary_size = sizeof nonsense - 1;
    void *module = NULL;
    NEED(c->driver->load(c->device, &code, &module) != TN_OK, "what is no code is loaded from a binary that is none");
    NEED(c->driver->sync(c->device) == TN_OK, "afterwards the device does not answer");
}

/* ---- what may be offered ----------------------------------------------------------------------------------------- */

static void fills_set_each_byte(conform *c) {
    static unsigned char x[ROOM];
    if (!OFFERS(c, fill)) {
        c->skipped = true;
        return;
    }
    void *a = NULL;
    if (!two_sides(c, 4, &a, x)) return;
    for (size_t i = 0; i < COUNT(odd_sizes); i++) {
        for (size_t k = 0; k < COUNT(odd_offsets); k++) {
            uint8_t value = (uint8_t)(i * 16 + k);
            CALL(c->driver->fill(c->device, at(a, odd_offsets[k]), value, odd_sizes[i]));
            memset(x + odd_offsets[k], value, odd_sizes[i]);
            if (!is_as(c, a, x, "a fill", odd_sizes[i], odd_offsets[k])) return;
        }
    }
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
}

static bool has_queues(const conform *c) {
    return OFFERS(c, queue_new) && OFFERS(c, queue_free) && OFFERS(c, event_new) && OFFERS(c, event_free) &&
           OFFERS(c, event_record) && OFFERS(c, event_wait) && OFFERS(c, event_query) && OFFERS(c, event_sync);
}

static void a_queue_works_in_order_beside_the_device(conform *c) {
    if (!has_queues(c)) {
        c->skipped = true;
        return;
    }
    void *queue = NULL, *a = NULL, *b = NULL;
    CALL(c->driver->queue_new(c->device, &queue));
    CALL(c->driver->alloc(c->device, 64, &a));
    CALL(c->driver->alloc(c->device, 64, &b));
    for (int i = 0; i < 100; i++) {
        int value = i, back = -1;
        CALL(c->driver->copy(queue, a, &value, sizeof value, 0));
        CALL(c->driver->copy(queue, b, a, sizeof value, 2));
        CALL(c->driver->copy(queue, &back, b, sizeof back, 1));
        NEED(back == i, "step %d reads %d", i, back);
    }
    CALL(c->driver->sync(queue));
    CALL(c->driver->sync(c->device));
    c->driver->queue_free(c->device, queue);
    c->driver->free(c->device, b);
    c->driver->free(c->device, a);
}

static void one_queue_waits_for_another(conform *c) {
    if (!has_queues(c)) {
        c->skipped = true;
        return;
    }
    enum { BYTES = 1 << 20, STEPS = 20 };
    static unsigned char data[BYTES], back[BYTES];
    void *queue = NULL, *a = NULL, *b = NULL, *there = NULL, *ready = NULL;
    CALL(c->driver->queue_new(c->device, &queue));
    CALL(c->driver->event_new(c->device, false, &there));
    CALL(c->driver->event_new(c->device, false, &ready));
    CALL(c->driver->alloc(c->device, BYTES, &a));
    CALL(c->driver->alloc(c->device, BYTES, &b));
    for (int i = 0; i < STEPS; i++) {
        fill_pattern(data, BYTES, (unsigned)i);
        CALL(c->driver->copy(c->device, a, data, BYTES, 0));
        CALL(c->driver->event_record(c->device, there));
        CALL(c->driver->event_wait(queue, there));
        CALL(c->driver->copy(queue, b, a, BYTES, 2));
        CALL(c->driver->event_record(queue, ready));
        CALL(c->driver->event_wait(c->device, ready));
        CALL(c->driver->copy(c->device, back, b, BYTES, 1));
        NEED(!memcmp(data, back, BYTES), "step %d: the second queue did not wait for the first one's copy", i);
        bool passed = false;
        CALL(c->driver->event_sync(c->device, ready));
        CALL(c->driver->event_query(c->device, ready, &passed));
        NEED(passed, "an event that was waited for has not passed");
    }
    CALL(c->driver->sync(queue));
    CALL(c->driver->sync(c->device));
    c->driver->event_free(c->device, there);
    c->driver->event_free(c->device, ready);
    c->driver->queue_free(c->device, queue);
    c->driver->free(c->device, b);
    c->driver->free(c->device, a);
}

static void times_of_events_grow(conform *c) {
    if (!has_queues(c) || !OFFERS(c, event_time)) {
        c->skipped = true;
        return;
    }
    void *a = NULL, *first = NULL, *second = NULL;
    double from = 0, to = 0;
    CALL(c->driver->event_new(c->device, true, &first));
    CALL(c->driver->event_new(c->device, true, &second));
    CALL(c->driver->alloc(c->device, ROOM, &a));
    for (int i = 0; i < 3; i++) { /* an event can be recorded again */
        static const unsigned char zeros[ROOM];
        CALL(c->driver->event_record(c->device, first));
        CALL(c->driver->copy(c->device, a, zeros, ROOM, 0));
        CALL(c->driver->event_record(c->device, second));
        CALL(c->driver->event_sync(c->device, second));
        CALL(c->driver->event_time(c->device, first, &from));
        CALL(c->driver->event_time(c->device, second, &to));
        NEED(to >= from, "the later event is %g s before the earlier one", from - to);
    }
    c->driver->event_free(c->device, first);
    c->driver->event_free(c->device, second);
    c->driver->free(c->device, a);
}

static void copies_beside_the_caller(conform *c) {
    if (!has_queues(c) || !OFFERS(c, copy_async)) {
        c->skipped = true;
        return;
    }
    static unsigned char data[ROOM], back[ROOM];
    void *a = NULL, *done = NULL;
    CALL(c->driver->event_new(c->device, false, &done));
    CALL(c->driver->alloc(c->device, ROOM, &a));
    for (int i = 0; i < 20; i++) {
        fill_pattern(data, ROOM, (unsigned)i);
        CALL(c->driver->copy_async(c->device, a, data, ROOM, 0));
        CALL(c->driver->copy_async(c->device, back, a, ROOM, 1));
        CALL(c->driver->event_record(c->device, done));
        CALL(c->driver->event_sync(c->device, done));
        NEED(!memcmp(data, back, ROOM), "round %d: bytes come back changed", i);
    }
    c->driver->event_free(c->device, done);
    c->driver->free(c->device, a);
}

static void pinned_memory_is_memory(conform *c) {
    if (!OFFERS(c, host_alloc) || !OFFERS(c, host_free)) {
        c->skipped = true;
        return;
    }
    static unsigned char data[ROOM];
    void *pinned = NULL, *back = NULL, *a = NULL;
    CALL(c->driver->host_alloc(c->device, ROOM, &pinned));
    CALL(c->driver->host_alloc(c->device, ROOM, &back));
    CALL(c->driver->alloc(c->device, ROOM, &a));
    fill_pattern(data, ROOM, 9);
    memcpy(pinned, data, ROOM);
    CALL(c->driver->copy(c->device, a, pinned, ROOM, 0));
    CALL(c->driver->copy(c->device, back, a, ROOM, 1));
    NEED(!memcmp(back, data, ROOM), "bytes come back changed");
    CALL(c->driver->copy(c->device, at(a, 100), at(pinned, 3), 1000, 0)); /* from inside of it */
    CALL(c->driver->copy(c->device, back, at(a, 100), 1000, 1));
    NEED(!memcmp(back, data + 3, 1000), "bytes from inside of it come back changed");
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
    c->driver->host_free(c->device, back);
    c->driver->host_free(c->device, pinned);
}

static void mapped_memory_is_the_devices(conform *c) {
    if (!OFFERS(c, map) || !OFFERS(c, unmap)) {
        c->skipped = true;
        return;
    }
    static unsigned char x[ROOM];
    void *a = NULL, *host = NULL;
    if (!two_sides(c, 6, &a, x)) return;
    tn_status first = c->driver->map(c->device, a, ROOM, true, &host); /* not of this device's memory: hal copies */
    c->skipped = first == TN_ERR_UNSUPPORTED;
    if (first == TN_OK) CALL(c->driver->unmap(c->device, a, host));
    for (size_t k = 0; k < COUNT(odd_offsets) && !c->skipped; k++) {
        size_t from = odd_offsets[k], n = 1000 + k;
        CALL(c->driver->map(c->device, at(a, from), n, true, &host));
        NEED(host && !memcmp(host, x + from, n), "%zu bytes at %zu are shown wrongly", n, from);
        fill_pattern(x + from, n, (unsigned)k);
        memcpy(host, x + from, n);
        CALL(c->driver->unmap(c->device, at(a, from), host));
        if (!is_as(c, a, x, "writing through a map", n, from)) return;
        CALL(c->driver->map(c->device, at(a, from), n, false, &host)); /* all of it is written */
        fill_pattern(x + from, n, (unsigned)k + 50);
        memcpy(host, x + from, n);
        CALL(c->driver->unmap(c->device, at(a, from), host));
        if (!is_as(c, a, x, "writing through a map without reading", n, from)) return;
    }
    CALL(c->driver->sync(c->device));
    c->driver->free(c->device, a);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(conform *c);
} promises[] = {
#define PROMISE(f) \
    { #f, f }
    PROMISE(capabilities_make_sense),
    PROMISE(a_probe_can_be_repeated),
    PROMISE(a_device_that_is_not_there_does_not_open),
    PROMISE(it_opens_again_and_again),
    PROMISE(memory_numbers_make_sense),
    PROMISE(memory_of_every_size_is_aligned),
    PROMISE(many_blocks_live_beside_each_other),
    PROMISE(large_memory_holds_its_content),
    PROMISE(too_much_memory_is_refused_and_forgotten),
    PROMISE(copies_of_all_kinds_and_sizes),
    PROMISE(a_block_is_copied_into_itself),
    PROMISE(copies_keep_their_order),
    PROMISE(several_threads_use_it_at_once),
    PROMISE(wrong_code_is_refused_with_words),
    PROMISE(fills_set_each_byte),
    PROMISE(a_queue_works_in_order_beside_the_device),
    PROMISE(one_queue_waits_for_another),
    PROMISE(times_of_events_grow),
    PROMISE(copies_beside_the_caller),
    PROMISE(pinned_memory_is_memory),
    PROMISE(mapped_memory_is_the_devices),
#undef PROMISE
};

static bool open_one(conform *c, int index) {
    tn_device_info devices[16] = {{0}};
    tn_probe p = {.struct_size = sizeof p, .devices = devices, .capacity = 16};
    tn_device_options o = TN_DEVICE_DEFAULTS;
    c->promise = "open";
    c->driver->probe(&p);
    if (p.count <= index) {
        broken(c, "the probe finds %d devices: %s", p.count, p.reason);
        return false;
    }
    c->info = devices[index];
    c->info.index = index;
    c->caps.struct_size = sizeof c->caps;
    if (c->driver->open(index, &o, &c->device) != TN_OK) {
        broken(c, "device %d does not open: %s", index, tn_error());
        return false;
    }
    if (c->driver->caps(c->device, &c->caps) == TN_OK) return true;
    broken(c, "caps fails: %s", tn_error());
    c->driver->close(c->device);
    return false;
}

conform_result conform_driver(const tn_driver *driver, int index, const conform_options *options, FILE *out) {
    conform c = {.driver = driver, .out = out};
    if (options) c.options = *options;
    if (!open_one(&c, index)) return (conform_result){.promises = 1, .broken = 1};
    for (size_t i = 0; i < COUNT(promises); i++) {
        if (c.options.only && strcmp(c.options.only, promises[i].name) != 0) continue;
        c.promise = promises[i].name;
        c.broken = c.skipped = false;
        promises[i].run(&c);
        c.result.promises++;
        c.result.broken += c.broken;
        c.result.skipped += c.skipped;
        fflush(out); /* what follows may crash in the driver */
        if (!c.broken || promises[i].run != memory_of_every_size_is_aligned) continue;
        fprintf(out, "what else is promised needs memory, and is left out\n");
        break;
    }
    driver->close(c.device);
    fprintf(out, "ran on: %s:%d (%s%s)\n", driver->name, index, c.info.name, c.info.software ? ", software" : "");
    fprintf(out, "its driver: %d promises, %d not offered, %d broken\n", c.result.promises, c.result.skipped,
            c.result.broken);
    return c.result;
}
