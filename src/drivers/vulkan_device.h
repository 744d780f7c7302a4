/* vulkan_device.h — the data of a Vulkan device, shared by vulkan.c (memory, stream of commands) and vulkan_launch.c
 * (kernels and their launches). */
#ifndef TN_DRIVERS_VULKAN_DEVICE_H
#define TN_DRIVERS_VULKAN_DEVICE_H

#include <pthread.h>

#include "drivers/vulkan.h"
#include "hal/driver.h"
#include "hal/hal.h"

/* A piece of memory and the buffer over it. */
typedef struct vk_block {
    uint64_t buffer, memory;
    size_t bytes;
    unsigned char *host; /* where the host sees it; NULL: nowhere */
    uint64_t last;       /* number of the last submission that uses it */
    uint64_t serial;     /* unique among all blocks ever made, because handles of freed ones are reused */
} vk_block;

/* A command buffer, and what the commands in it need until they have ended. */
typedef struct vk_slot {
    void *commands;
    uint64_t fence, sets;
    vk_block room;            /* of the host: parameters, and bytes of small copies */
    size_t used;              /* of room */
    int dispatches, bindings; /* recorded */
} vk_slot;

enum { SLOT_ROOM = 128 << 10, SLOT_DISPATCHES = 128, SLOT_BINDINGS = 16 * SLOT_DISPATCHES };

typedef struct vk_device {
    tn_device_lost lost_state;    /* first: hal/driver.h */
    void *place, *device, *queue; /* the physical device, what was made of it, its queue */
    vk_abilities has;
    vk_memory memory;
    bool software, unified;
    uint32_t time_bits; /* valid bits of timestamps; 0: there are none */
    tn_memory_budget room;
    tn_address_ranges ranges, pinned; /* memory of the device; of the host, as it was given to callers */
    pthread_mutex_t staging_lock;
    vk_block staging; /* through which the host sees memory that it does not; made when it is first needed */
    tn_stream stream; /* its lock guards all that follows */
    uint64_t pool;    /* of command buffers */
    vk_slot slots[TN_STREAM_SLOTS];
    bool written;   /* something was recorded behind the last barrier */
    uint64_t clock; /* the latest time that was asked for, without an end to its bits */
} vk_device;

/* Whether the device can still be talked to. */
static inline tn_status alive(vk_device *d) { return tn_device_lost_check(&d->lost_state); }

/* TN_OK, or the failure of a call with these values. */
#define check(d, code, call, ...) tn_call_check(&(d)->lost_state, &tn_vulkan_errors, code, call, __VA_ARGS__)

/* The block and offset of `bytes` bytes at a device address. */
tn_status tn_vulkan_locate(vk_device *d, const void *address, size_t bytes, const char *role, vk_block **b, size_t *at);

/* ---- the stream: all of these want its lock to be held ----------------------------------------------------------- */

/* The slot that is being recorded, with room for this many bytes and a launch with this many bindings. */
tn_status tn_vulkan_record(vk_device *d, size_t bytes, int bindings, vk_slot **out);
void tn_vulkan_barrier(vk_device *d, void *commands, uint32_t stages, uint32_t access);
/* Puts what follows behind what was recorded, and notes that the blocks are used. */
void tn_vulkan_follow(vk_device *d, const vk_slot *s, vk_block *a, vk_block *b);
/* Submits the slot that is being recorded, followed by the commands `more` unless NULL. If that fails, the recorded
 * commands and the contents of their memory are lost, so the device counts as lost. */
tn_status tn_vulkan_submit_with(vk_device *d, void *more);
/* Prepares a slot with room for this many bytes, dispatches and bindings; of a list, or of the stream. */
tn_status tn_vulkan_slot_start(vk_device *d, vk_slot *s, size_t room, uint32_t dispatches, uint32_t bindings);
void tn_vulkan_slot_end(vk_device *d, vk_slot *s);
/* Resets a slot's command buffer and begins recording. */
tn_status tn_vulkan_commands_begin(vk_device *d, const vk_slot *s, uint32_t flags);

/* ---- kernels, launches, lists (vulkan_launch.c): what tn_driver wants of them ------------------------------------ */

tn_status tn_vulkan_load(void *device, const tn_code *code, void **module);
void tn_vulkan_unload(void *device, void *module);
tn_status tn_vulkan_binary(void *device, void *module, void **data, size_t *size);
tn_status tn_vulkan_dispatch(void *queue, void *module, const tn_dispatch *dispatches, int64_t count);
tn_status tn_vulkan_list_make(void *device, const tn_list_item *items, int64_t count, void **list);
tn_status tn_vulkan_list_run(void *queue, void *list, const tn_list_item *items, int64_t count);
void tn_vulkan_list_free(void *device, void *list);

#endif
