/* probe_metal.c — Apple's Metal: its libraries, the messages by their selectors, and looking for devices.
 *
 * What is sent is spelled out in metal.h; here each message gets its selector. What computes is in metal.c. */
#include <stdint.h>
#include <stdio.h>

#include "drivers/probe_metal.h"
#include "hal/hal.h"

#if TRUNNION_WITH_METAL

/* ---- the libraries and messages ---------------------------------------------------------------------------------- */

metal_functions tn_objc;

static const char *const objc_names[] = {"/usr/lib/libobjc.A.dylib", NULL};
static const tn_symbol objc_symbols[] = {
    {"objc_msgSend", (void **)&tn_objc.send, false},
    {"sel_registerName", (void **)&tn_objc.selector_named, false},
    {"objc_getClass", (void **)&tn_objc.class_named, false},
    {"objc_autoreleasePoolPush", (void **)&tn_objc.pool_push, false},
    {"objc_autoreleasePoolPop", (void **)&tn_objc.pool_pop, false},
};
static const tn_library_spec objc_library = {"Objective-C run time", "TRUNNION_OBJC_LIB",    objc_names,
                                             objc_symbols,           TN_COUNT(objc_symbols), ""};

static const char *const metal_names[] = {"/System/Library/Frameworks/Metal.framework/Metal", NULL};
static const tn_symbol metal_symbols[] = {
    {"MTLCreateSystemDefaultDevice", (void **)&tn_objc.default_device, false},
    {"MTLCopyAllDevices", (void **)&tn_objc.all_devices, true},
};
static const tn_library_spec metal_library = {"Metal",       "TRUNNION_METAL_LIB",    metal_names,
                                              metal_symbols, TN_COUNT(metal_symbols), "update the system"};

static const char *const selector_texts[MESSAGE_COUNT] = {
#define X(name, text, result, parameters) text,
    MESSAGES(X)
#undef X
};
selector tn_metal_selectors[MESSAGE_COUNT];

/* Opens both once a process; hal probes and opens under one lock. A probe's own process looks anew: its environment may
 * not be the one in which this process opened them. *which is the library of *why. */
static bool load_libraries(bool anew, const tn_library_spec **which, tn_reason *why) {
    static bool loaded;
    if (loaded && !anew) return true;
    *which = &objc_library;
    loaded = tn_library_open(*which, why) != NULL;
    if (loaded) *which = &metal_library;
    loaded = loaded && tn_library_open(*which, why) != NULL;
    for (int i = 0; loaded && i < MESSAGE_COUNT; i++)
        tn_metal_selectors[i] = tn_objc.selector_named(selector_texts[i]);
    return loaded;
}

/* ---- finding devices --------------------------------------------------------------------------------------------- */

enum { MOST_DEVICES = 16 };

/* The devices, retained. */
static int list_devices(object list[MOST_DEVICES]) {
    object all = tn_objc.all_devices ? tn_objc.all_devices() : NULL;
    uint64_t there = all ? ASK(count, all) : 0;
    int count = 0;
    for (; (uint64_t)count < there && count < MOST_DEVICES; count++)
        list[count] = ASK(retain, SEND(object_at, all, (uint64_t)count));
    metal_release(all);
    if (count) return count;
    list[0] = tn_objc.default_device();
    return list[0] != NULL;
}

static void describe_metal(tn_probe *out, object device) {
    tn_device_info *d = tn_probe_device(out);
    if (!d) return;
    snprintf(d->name, sizeof d->name, "%s", metal_text(ASK(name, device), "Metal device"));
    d->total_memory = (int64_t)ASK(working_set, device);
    d->free_memory = tn_max64(0, d->total_memory - (int64_t)ASK(allocated, device));
    d->unified_memory = ASK(unified, device);
}

void tn_metal_probe(tn_probe *out) {
    const tn_library_spec *which;
    tn_reason why;
    object list[MOST_DEVICES];
    if (!TN_PROBE_ON_APPLE && !tn_env(metal_library.env)) {
        tn_probe_reason(out, TN_REASON_PLATFORM, "", "Metal exists on Apple's systems alone");
        return;
    }
    if (!tn_library_locate(&metal_library, out->library, sizeof out->library)) out->library[0] = 0;
    if (!load_libraries(TN_PROBE_ISOLATE, &which, &why)) {
        if (!tn_library_locate(which, out->library, sizeof out->library)) out->library[0] = 0;
        tn_probe_reason(out, why.code, why.fix, "%s", why.text);
        return;
    }
    void *pool = tn_objc.pool_push(); /* names live until it is popped */
    int count = list_devices(list);
    for (int i = 0; i < count; i++) {
        describe_metal(out, list[i]);
        metal_release(list[i]);
    }
    tn_objc.pool_pop(pool);
    if (!count) tn_probe_reason(out, TN_REASON_NO_DEVICE, "", "Metal runs, and has no device");
}

tn_status tn_metal_find(int index, object *out) {
    const tn_library_spec *which;
    tn_reason why;
    object list[MOST_DEVICES];
    if (!TN_PROBE_ON_APPLE && !tn_env(metal_library.env))
        return tn_fail(TN_ERR_UNAVAILABLE, "Metal exists on Apple's systems alone");
    if (!load_libraries(false, &which, &why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s; %s", why.text, why.fix);
    void *pool = tn_objc.pool_push();
    int count = list_devices(list);
    for (int i = 0; i < count; i++) {
        if (i == index)
            *out = list[i];
        else
            metal_release(list[i]);
    }
    tn_objc.pool_pop(pool);
    if (index >= 0 && index < count) return TN_OK;
    return tn_fail(TN_ERR_UNAVAILABLE, "metal:%d does not exist; Metal has %d device%s", index, count,
                   count == 1 ? "" : "s");
}

void tn_metal_watch(tn_watch_add *add, void *ctx) {
    tn_probe_watch(&metal_library, add, ctx);
    tn_probe_watch(&objc_library, add, ctx);
}

#endif
