/* vulkan_device.h — what the files of Vulkan's driver share: a device, its memory and its stream of commands. */
#ifndef TN_DRIVERS_VULKAN_DEVICE_H
#define TN_DRIVERS_VULKAN_DEVICE_H

#include <pthread.h>

#include "drivers/vulkan.h"
#include "hal/hal.h"
#include "hal/loss.h"
#include "hal/span.h"

/* A piece of memory and the buffer over it. */
typedef struct block {
    uint64_t buffer, memory;
    size_t bytes;
    unsigned char *host; /* where the host sees it; NULL: nowhere */
    uint64_t last;       /* number of the last submission that uses it */
    uint64_t serial;     /* of all blocks ever made: a handle may be that of one which is gone */
    struct block *next;  /* among the pinned */
} block;

/* A command buffer, and what the commands in it need until they have ended. */
typedef struct slot {
    void *commands;
    uint64_t fence, sets;
    block room;               /* of the host: parameters, and bytes of small copies */
    size_t used;              /* of room */
    int dispatches, bindings; /* recorded */
    uint64_t number;          /* of its last submission; 0: none */
    int waiters;              /* threads that wait for its fence */
} slot;

enum { SLOTS = 8, SLOT_ROOM = 128 << 10, SLOT_DISPATCHES = 128, SLOT_BINDINGS = 16 * SLOT_DISPATCHES };

typedef struct vk_device {
    tn_loss loss;
    void *place, *device, *queue; /* the physical device, what was made of it, its queue */
    vk_abilities has;
    vk_memory memory;
    bool software, unified;
    uint32_t time_bits; /* of a time that mean something; 0: there are no times */
    int64_t total_memory;
    atomic_llong taken_memory;
    tn_spans spans;
    pthread_mutex_t staging_lock;
    block staging;        /* through which the host sees memory that it does not; made when it is first needed */
    pthread_mutex_t lock; /* guards all that follows: the stream */
    pthread_cond_t left;  /* a waiter has left its slot */
    block *pinned;        /* memory of the host that was given to callers */
    uint64_t pool;        /* of command buffers */
    slot slots[SLOTS];
    uint64_t submitted, done; /* numbers of the last submission, and of the last that is known to have ended */
    bool recording;           /* in the slot of number submitted + 1 */
    bool written;             /* something was recorded behind the last barrier */
    uint64_t clock;           /* the latest time that was asked for, without an end to its bits */
} vk_device;

static inline slot *slot_of(vk_device *d, uint64_t number) { return &d->slots[number % SLOTS]; }

/* Whether the device can still be talked to. */
static inline tn_status alive(vk_device *d) { return tn_loss_check(&d->loss); }

/* TN_OK, or the failure of a call with these values. */
extern const tn_call_errors tn_vulkan_errors;
#define check(d, code, call, ...) tn_call_check(&(d)->loss, &tn_vulkan_errors, code, call, __VA_ARGS__)

/* The block and offset of `bytes` bytes at a device address. */
tn_status tn_vulkan_locate(vk_device *d, const void *address, size_t bytes, const char *role, block **b, size_t *at);

/* ---- the stream: all of these want the lock to be held (vulkan.c) ------------------------------------------------ */

void tn_vulkan_barrier(vk_device *d, void *commands, uint32_t stages, uint32_t access);
/* Waits until the submission of this number has ended. Lets the lock go meanwhile. */
tn_status tn_vulkan_await(vk_device *d, uint64_t number);
/* The slot to record into; it has room for so many bytes, and for a dispatch with so many bindings. */
tn_status tn_vulkan_record(vk_device *d, size_t bytes, int bindings, slot **out);
/* Puts what follows behind what was recorded, and notes that the blocks are used. */
void tn_vulkan_follow(vk_device *d, const slot *s, block *a, block *b);
/* Ends the slot that is being recorded and has the device begin with it, and behind it with `more` commands, if there
 * are any. What was recorded is gone when that fails, and with it what the memory ought to hold: the device counts as
 * lost. */
tn_status tn_vulkan_submit_with(vk_device *d, void *more);
tn_status tn_vulkan_submit(vk_device *d); /* the same without more, if a slot is being recorded */
/* The stream is through with what the submission of this number used: a handle of it may go. */
void tn_vulkan_settle(vk_device *d, uint64_t last);
/* A slot with room for so many bytes, dispatches and bindings of them; of a list, or of the stream. */
tn_status tn_vulkan_slot_start(vk_device *d, slot *s, size_t room, uint32_t dispatches, uint32_t bindings);
void tn_vulkan_slot_end(vk_device *d, slot *s);
/* Forgets what was recorded in a slot's commands and begins anew. */
tn_status tn_vulkan_commands_begin(vk_device *d, const slot *s, uint32_t flags);

/* ---- kernels (vulkan_kernels.c), as the driver's functions are defined ------------------------------------------- */

tn_status tn_vulkan_load(void *device, const tn_code *code, void **module);
void tn_vulkan_unload(void *device, void *module);
tn_status tn_vulkan_binary(void *device, void *module, void **data, size_t *size);
tn_status tn_vulkan_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count);
tn_status tn_vulkan_list_make(void *device, const tn_list_item *items, int64_t count, void **list);
tn_status tn_vulkan_list_run(void *queue, void *list, const tn_list_item *items, int64_t count);
void tn_vulkan_list_free(void *device, void *list);

#endif
