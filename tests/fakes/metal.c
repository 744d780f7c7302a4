/* metal.c — an Objective-C run time and a Metal in one, with one device. A selector is its name, an object a number. */
#include "fake.h"

enum { DEVICE = 1, NAME, LIST };

const char *sel_registerName(const char *name) { return name; }

const char *objc_getClass(const char *name) { return name; }
void *objc_autoreleasePoolPush(void) { return NULL; }
void objc_autoreleasePoolPop(void *pool) { (void)pool; }

uintptr_t objc_msgSend(uintptr_t object, const char *selector, uint64_t argument) {
    if (object == LIST && !strcmp(selector, "count")) return 1;
    if (object == LIST && !strcmp(selector, "objectAtIndex:") && argument == 0) return DEVICE;
    if (object == LIST && !strcmp(selector, "release")) return 0;
    if (object == DEVICE && !strcmp(selector, "retain")) return DEVICE;
    if (object == DEVICE && !strcmp(selector, "release")) return 0;
    if (object == DEVICE && !strcmp(selector, "name")) return NAME;
    if (object == NAME && !strcmp(selector, "UTF8String")) return (uintptr_t) "Fake M9";
    if (object == DEVICE && !strcmp(selector, "recommendedMaxWorkingSetSize")) return (uintptr_t)16 << 30;
    if (object == DEVICE && !strcmp(selector, "currentAllocatedSize")) return (uintptr_t)1 << 30;
    if (object == DEVICE && !strcmp(selector, "hasUnifiedMemory")) return 1;
    abort(); /* a message that nobody understands */
}

uintptr_t MTLCreateSystemDefaultDevice(void) { return fake_first_call() ? 0 : DEVICE; }
uintptr_t MTLCopyAllDevices(void) { return fake_first_call() ? 0 : LIST; }
