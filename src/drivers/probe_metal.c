/* probe_metal.c — looks for Metal devices through the Objective-C run time, without an Objective-C compiler.
 *
 * A message is a call of objc_msgSend, cast to the types of that message. Only methods that take no argument or one and
 * return a pointer, a number or a truth value are used. On other systems than Apple's there is no Metal, unless
 * TRUNNION_METAL_LIB names a stand-in. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "drivers/probe.h"
#include "hal/hal.h"

#if TRUNNION_WITH_METAL

typedef void *object;
typedef void *selector;
typedef object (*message_object)(object, selector);
typedef object (*message_object_at)(object, selector, uint64_t);
typedef const char *(*message_text)(object, selector);
typedef uint64_t (*message_number)(object, selector);
typedef signed char (*message_truth)(object, selector);

static void (*message)(void);
static selector (*selector_named)(const char *);
static void *(*pool_push)(void);
static void (*pool_pop)(void *);
static object (*copy_all_devices)(void);      /* macOS */
static object (*system_default_device)(void); /* everywhere */

static const char *const objc_names[] = {"/usr/lib/libobjc.A.dylib", NULL};
static const tn_symbol objc_symbols[] = {
    {"objc_msgSend", (void **)&message, false},
    {"sel_registerName", (void **)&selector_named, false},
    {"objc_autoreleasePoolPush", (void **)&pool_push, false},
    {"objc_autoreleasePoolPop", (void **)&pool_pop, false},
};
static const tn_library_spec objc = {"Objective-C run time", "TRUNNION_OBJC_LIB",    objc_names,
                                     objc_symbols,           TN_COUNT(objc_symbols), ""};

static const char *const metal_names[] = {"/System/Library/Frameworks/Metal.framework/Metal", NULL};
static const tn_symbol metal_symbols[] = {
    {"MTLCreateSystemDefaultDevice", (void **)&system_default_device, false},
    {"MTLCopyAllDevices", (void **)&copy_all_devices, true},
};
static const tn_library_spec metal = {"Metal",       "TRUNNION_METAL_LIB",    metal_names,
                                      metal_symbols, TN_COUNT(metal_symbols), "update the system"};

static uint64_t number(object of, const char *what) { return ((message_number)message)(of, selector_named(what)); }

static void describe(tn_probe *out, object device) {
    tn_device_info *d = device ? tn_probe_device(out) : NULL;
    if (!d) return;
    object name = ((message_object)message)(device, selector_named("name"));
    const char *text = name ? ((message_text)message)(name, selector_named("UTF8String")) : NULL;
    snprintf(d->name, sizeof d->name, "%s", text ? text : "Metal device");
    d->total_memory = (int64_t)number(device, "recommendedMaxWorkingSetSize");
    d->free_memory = tn_max64(0, d->total_memory - (int64_t)number(device, "currentAllocatedSize"));
    d->unified_memory = ((message_truth)message)(device, selector_named("hasUnifiedMemory"));
}

static void describe_all(tn_probe *out) {
    object all = copy_all_devices ? copy_all_devices() : NULL;
    uint64_t count = all ? number(all, "count") : 0;
    for (uint64_t i = 0; i < count; i++)
        describe(out, ((message_object_at)message)(all, selector_named("objectAtIndex:"), i));
    if (all) (void)((message_object)message)(all, selector_named("release"));
    if (!count) describe(out, system_default_device());
}

static void probe(tn_probe *out) {
    if (!TN_PROBE_ON_APPLE && !tn_env(metal.env)) {
        tn_probe_reason(out, TN_REASON_PLATFORM, "", "Metal exists on Apple's systems alone");
        return;
    }
    if (!tn_probe_library(out, &objc) || !tn_probe_library(out, &metal)) return;
    void *pool = pool_push(); /* names and lists live until it is popped */
    describe_all(out);
    pool_pop(pool);
    if (!out->count) tn_probe_reason(out, TN_REASON_NO_DEVICE, "", "Metal runs, and has no device");
}

static void watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&metal, add, ctx);
    tn_probe_watch(&objc, add, ctx);
}

const tn_driver tn_driver_metal = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "metal",
    .title = "Apple Metal",
    .probe = probe,
    .watch = watch,
    .isolate = TN_PROBE_ISOLATE,
};

#endif
