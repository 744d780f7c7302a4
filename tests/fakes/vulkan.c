/* vulkan.c — a Vulkan loader that makes no instance, or one without devices. */
#include "fake.h"

static int32_t create_instance(const void *info, const void *allocator, void **instance) {
    (void)info;
    (void)allocator;
    *instance = (void *)1;
    return fake_first_call();
}

static int32_t enumerate(void *instance, uint32_t *count, void **devices) {
    (void)instance;
    (void)devices;
    *count = 0;
    return 0;
}

static void never(void) { abort(); }

typedef void (*function)(void);
function vkGetInstanceProcAddr(void *instance, const char *name) {
    (void)instance;
    if (!strcmp(name, "vkCreateInstance")) return (function)create_instance;
    if (!strcmp(name, "vkEnumeratePhysicalDevices")) return (function)enumerate;
    return never;
}
