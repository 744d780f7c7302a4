/* driver.h — shared by drivers: lost devices, address ranges for handles, bindings, streams of commands, limits,
 * clocks. */
#ifndef TN_DRIVER_H
#define TN_DRIVER_H

#include <pthread.h>

#include "base/base.h"
#include "kir/kir.h"
#include "trunnion/backend.h"

/* ==== failed calls and lost devices =============================================================================== */
/* A device that is lost stays lost: each later call says what happened first. */

#define TN_ADVICE_SMALLER "try a smaller batch, a smaller dtype, or another device"
#define TN_ADVICE_ANEW "open the device again or use another; the system's log may say why (dmesg)"
#define TN_ADVICE_UPDATE "update the driver; if that does not help, please report this text"

typedef struct tn_device_lost {
    char id[24]; /* the device's, "vulkan:0" */
    atomic_bool lost;
    pthread_mutex_t lock; /* guards first */
    char first[200];      /* what happened */
} tn_device_lost;

void tn_device_lost_open(tn_device_lost *l, const char *backend, int index);
void tn_device_lost_close(tn_device_lost *l);

/* Marks the device as lost; the first cause is kept. */
void tn_device_lost_note(tn_device_lost *l, const char *format, ...) TN_PRINTF(2, 3);
static inline bool tn_is_lost(const tn_device_lost *l) { return atomic_load_explicit(&l->lost, memory_order_acquire); }
/* TN_OK while the device can be talked to, else TN_ERR_LOST and what happened first. */
tn_status tn_device_lost_check(tn_device_lost *l);

/* Submitting commands with `call` failed with status `s`. The recorded commands are gone although callers were told
 * that they are under way, so the device counts as lost. */
tn_status tn_device_lost_with_work(tn_device_lost *l, tn_status s, const char *call);

/* A result code of the interface with a known meaning. TN_ERR_LOST: the device is lost. */
typedef struct tn_call_error {
    int32_t code;
    const char *name;
    tn_status status;
    const char *advice;
} tn_call_error;

/* The results that an interface gives; `next`: where to look for what is not among the rows. */
typedef struct tn_call_errors {
    const tn_call_error *rows;
    size_t count;
    bool positive; /* errors are numbers above 0, and not below */
    const struct tn_call_errors *next;
} tn_call_errors;

/* TN_OK, or an error made from the failed call: "vulkan:0: vkCall(values): NAME (-2); what to do", with the row's
 * status; notes a lost device. For a code without a row the advice is to update the driver. */
tn_status tn_call_check(tn_device_lost *l, const tn_call_errors *known, int32_t code, const char *call,
                        const char *format, ...) TN_PRINTF(5, 6);

/* ---- objects ----------------------------------------------------------------------------------------------------- */

/* Returns s. If it is TN_OK, *out = made; else `made`, whose initialization failed, is freed by `end`. */
tn_status tn_hand_out(tn_status s, void *made, void (*end)(void *device, void *made), void *device, void **out);
/* The same for a device that a driver opens. */
tn_status tn_hand_out_device(tn_status s, void *made, void (*close)(void *device), void **out);

/* ==== clocks ====================================================================================================== */

/* Extends a counter of `bits` bits to a clock that does not wrap: correct within half a period of *latest, which starts
 * at 0. One thread at a time. */
static inline uint64_t tn_clock_place(uint64_t *latest, uint64_t ticks, unsigned bits) {
    unsigned unused = 64 - bits;
    int64_t step = (int64_t)((ticks - *latest) << unused) >> unused;
    uint64_t at = *latest + (uint64_t)step;
    if (step > 0) *latest = at;
    return at;
}

/* ==== limits of a kernel ========================================================================================== */

/* The most; 0: no limit. */
typedef struct tn_code_limits {
    uint32_t group[3], group_items, buffers;
    int64_t local_bytes;
    size_t params_bytes;
} tn_code_limits;

/* TN_ERR_UNSUPPORTED, with the limit, for code that is beyond one of them. */
tn_status tn_code_check(const char *device, const tn_code *code, const tn_code_limits *most);
/* The same for a launch, and the workgroups along an axis. */
tn_status tn_groups_check(const char *device, const char *kernel, const tn_dispatch *l, uint32_t most);
static inline bool tn_dispatch_has_work(const tn_dispatch *l) { return l->groups[0] && l->groups[1] && l->groups[2]; }

/* ==== memory in use =============================================================================================== */
/* Some drivers find memory only when it is first touched, amid a plan. What cannot be there is refused before. */

typedef struct tn_memory_budget {
    int64_t total;   /* 0: unknown */
    int64_t largest; /* allocation; 0: no limit */
    atomic_llong taken;
} tn_memory_budget;

/* Counts `bytes` bytes as taken; TN_ERR_MEMORY, and nothing is counted, when the device cannot have them. */
tn_status tn_memory_budget_take(tn_memory_budget *r, const char *device, size_t bytes);
static inline void tn_memory_budget_give(tn_memory_budget *r, int64_t bytes) {
    atomic_fetch_sub(&r->taken, (long long)bytes);
}

/* Bytes that are free; in_host: the device has them from the host. */
int64_t tn_memory_budget_left(const tn_memory_budget *r, bool in_host);

/* ==== addresses for memory with handles =========================================================================== */
/* The layers above add offsets to addresses. A driver whose memory has handles reserves a range of addresses here for
 * each allocation, and finds handle and offset again from any address in it. None of these is ever a valid pointer, so
 * dereferencing one crashes at once. */

typedef struct tn_address_range {
    uintptr_t start;
    size_t bytes;
    void *handle;
} tn_address_range;

/* A device's ranges, in ascending order. All functions but open and close may be called from several threads. */
typedef struct tn_address_ranges {
    pthread_mutex_t lock;
    tn_address_range *items;
    size_t count, capacity;
    uintptr_t next; /* no number from here on was given out in this round */
} tn_address_ranges;

void tn_address_ranges_open(tn_address_ranges *s);
void tn_address_ranges_close(tn_address_ranges *s); /* the handles are the driver's to free */

/* Gives `handle` a range of `bytes` addresses (1 if 0). Ranges start at multiples of 4096. Addresses are reused only
 * when all others were used, so that stale ones are detected. Errors: TN_ERR_MEMORY. */
tn_status tn_address_range_add(tn_address_ranges *s, void *handle, size_t bytes, void **address);

/* For ranges that are host memory lent by drivers: `handle` stands for these bytes. Errors: TN_ERR_MEMORY. */
tn_status tn_address_range_add_host(tn_address_ranges *s, void *handle, size_t bytes, const void *host);

/* The handle whose range holds the `bytes` bytes from `address`, and where in it they begin; NULL if none does. */
void *tn_address_range_find(tn_address_ranges *s, const void *address, size_t bytes, size_t *offset);

/* The same as *handle; TN_ERR_INTERNAL with the device and what the bytes were for when none does. */
tn_status tn_address_range_locate(tn_address_ranges *s, const char *device, const char *role, const void *address,
                                  size_t bytes, void **handle, size_t *offset);

/* Ends the range that starts at `address`; its handle and length, or NULL if there is none. */
void *tn_address_range_remove(tn_address_ranges *s, const void *address, size_t *bytes);

/* ==== bindings of a launch ======================================================================================== */
/* WebGPU refuses bindings of one launch that overlap if one of them is written, and binding one buffer both as
 * read-only and as read-write. So buffers of a launch in one allocation share a slot, and an allocation that is larger
 * than a binding is a slot with several bindings (windows), or several slots. */

/* A buffer of a launch: its allocation, that one's size, and the buffer's offset in it. */
typedef struct tn_bound {
    void *memory;
    uint64_t bytes, at;
} tn_bound;

typedef struct tn_bind_limits {
    uint64_t window; /* bytes of a binding */
    uint64_t unit;   /* of the places at which bindings begin */
    uint64_t most;   /* bindings of a launch */
} tn_bind_limits;

/* Which buffers share a slot, how many bindings a slot takes, and the first slot in the same memory. */
typedef struct tn_sharing {
    int slots;
    uint8_t slot_of[KIR_MAX_BUFFERS], windows[KIR_MAX_BUFFERS], twin[KIR_MAX_BUFFERS];
} tn_sharing;

typedef struct tn_bindings {
    tn_sharing sharing;
    tn_bound buffers[KIR_MAX_BUFFERS];
    int first[KIR_MAX_BUFFERS];     /* of a slot: a buffer in it */
    uint64_t from[KIR_MAX_BUFFERS]; /* … where in that buffer's memory the bindings begin */
    uint64_t end[KIR_MAX_BUFFERS];  /* … and end */
} tn_bindings;

/* Each buffer a slot of one binding. */
tn_sharing tn_sharing_apart(int buffers);

/* Chooses the slots for b->buffers (everything else must be 0): one allocation each, if there are enough bindings;
 * otherwise the bindings that each buffer gets (tn_caps.joins) cover part of it, with several slots if buffers are far
 * apart. */
void tn_bindings_choose(tn_bindings *b, int buffers, const tn_bind_limits *l);

/* One entry of a bind group. */
typedef struct tn_bind_entry {
    void *memory;
    uint64_t from, bytes;
} tn_bind_entry;

/* All of them, in the order of slots; how many there are. */
int tn_bindings_list(const tn_bindings *b, const tn_bind_limits *l, tn_bind_entry *out);

/* ==== copies of bytes as words ==================================================================================== */

typedef struct tn_word_calls {
    /* Whole words, at places that are multiples of a word; between different handles. */
    tn_status (*copy)(void *device, void *from, size_t from_at, void *to, size_t to_at, size_t bytes);
    tn_status (*write)(void *device, void *to, size_t at, const char *host, size_t bytes);
    tn_status (*patch)(void *device, const tn_dispatch *launch);
} tn_word_calls;

typedef struct tn_word_copier {
    const tn_word_calls *calls;
    void *device;
    const char *id;
    tn_address_ranges *ranges;
    void *scratch; /* device address of this many bytes */
    size_t scratch_bytes;
    size_t reach;    /* bytes that one patch changes at most */
    uint32_t groups; /* workgroups along an axis */
} tn_word_copier;

tn_status tn_word_copy(const tn_word_copier *w, char *dst, const void *src, size_t bytes);
tn_status tn_word_write(const tn_word_copier *w, char *dst, const unsigned char *host, size_t bytes);
tn_status tn_word_fill(const tn_word_copier *w, char *dst, uint8_t value, size_t bytes);

/* ==== streams of commands ========================================================================================= */
/* A slot is reused when its last submission has completed and no thread waits for it. The driver owns the commands;
 * this code begins, submits and waits for slots. One lock guards the slots and the driver's recording; it is released
 * while a thread waits. A lost device waits for nothing. */

enum { TN_STREAM_SLOTS = 8 };

/* All but `wait` are called with the lock held. */
typedef struct tn_stream_calls {
    tn_status (*begin)(void *device, int slot);
    bool (*has_room)(void *device, int slot, size_t bytes, int bindings); /* in the slot that is being recorded */
    tn_status (*submit)(void *device);                                    /* calls tn_stream_submitted */
    tn_status (*wait)(void *device, int slot, uint64_t number);
    tn_status (*query)(void *device, int slot, uint64_t number, bool *ended);
    void (*idle)(void *device); /* waits for all that a lost device may still do */
} tn_stream_calls;

typedef struct tn_stream {
    const tn_stream_calls *calls;
    void *device;
    tn_device_lost *lost_state;
    pthread_mutex_t lock;
    pthread_cond_t left;      /* a waiter has left its slot */
    uint64_t submitted, done; /* numbers of the last submission, and of the last that is known to have ended */
    bool recording;           /* what will be number submitted + 1 */
    struct {
        uint64_t number; /* of its last submission; 0: none */
        int waiters;
    } slots[TN_STREAM_SLOTS];
} tn_stream;

void tn_stream_open(tn_stream *s, const tn_stream_calls *calls, void *device, tn_device_lost *lost_state);
void tn_stream_close(tn_stream *s);
static inline int tn_stream_slot(uint64_t number) { return (int)(number % TN_STREAM_SLOTS); }

/* ---- the lock is held -------------------------------------------------------------------------------------------- */

/* *slot: the one to record into, with room for `bytes` and `bindings`. */
tn_status tn_stream_record(tn_stream *s, size_t bytes, int bindings, int *slot);
/* The driver has submitted what was recorded. */
void tn_stream_submitted(tn_stream *s);
tn_status tn_stream_submit(tn_stream *s);                 /* if something is being recorded */
tn_status tn_stream_await(tn_stream *s, uint64_t number); /* until that submission has ended */
tn_status tn_stream_finish(tn_stream *s);                 /* all that was recorded has ended */
/* Whether a submission has completed, as far as can be determined without waiting. */
tn_status tn_stream_query(tn_stream *s, uint64_t number, bool *ended);
bool tn_stream_is_idle(tn_stream *s); /* the same of all */

/* ---- the caller does not hold it --------------------------------------------------------------------------------- */

/* The stream is through with what the submission of this number used: a handle of it may go. */
void tn_stream_wait_unused(tn_stream *s, uint64_t last);

/* ---- a driver's functions ---------------------------------------------------------------------------------------- */

/* For devices whose struct starts with tn_device_lost and that have a single stream: every queue is the device, and
 * anything submitted is ordered after all events anyway. */
tn_status tn_stream_queue_new(void *device, void **queue);
void tn_stream_queue_free(void *device, void *queue);
tn_status tn_stream_event_wait(void *queue, void *event);

#endif
