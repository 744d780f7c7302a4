/* vulkan_faults.c — the real Vulkan behind a counter (faults.h): built as a libvulkan and named by TRUNNION_VULKAN_LIB,
 * it passes all calls on to the loader that VULKAN_REAL names. A function without a result that is named is left out:
 * what it should have done is then missing, which a validation layer ought to see.
 *
 * VULKAN_LIES=old: the devices know Vulkan 1.0 alone. VULKAN_LIES=clock: times have 36 bits, and each that is asked for
 * lies 0.4 rounds behind the one before. SHRINK=BYTES: bindings hold no more. */
#include "faults.h"

/* What becomes of the count of living objects when the call went well, whether it has a result that may be an error. */
enum { NOTHING, MAKES, ENDS };
// clang-format off
#define CALLS(CALL)                                                                                     \
    CALL(vkCreateInstance, NOTHING, 1)                  CALL(vkEnumeratePhysicalDevices, NOTHING, 1)          \
    CALL(vkEnumerateDeviceExtensionProperties, NOTHING, 1) CALL(vkCreateDevice, MAKES, 1)                     \
    CALL(vkDestroyDevice, ENDS, 0)                      CALL(vkQueueSubmit, NOTHING, 1)                       \
    CALL(vkDeviceWaitIdle, NOTHING, 0)                  CALL(vkAllocateMemory, MAKES, 1)                      \
    CALL(vkFreeMemory, ENDS, 0)                         CALL(vkMapMemory, NOTHING, 1)                         \
    CALL(vkBindBufferMemory, NOTHING, 1)                CALL(vkCreateBuffer, MAKES, 1)                        \
    CALL(vkDestroyBuffer, ENDS, 0)                      CALL(vkCreateFence, MAKES, 1)                         \
    CALL(vkDestroyFence, ENDS, 0)                       CALL(vkResetFences, NOTHING, 1)                       \
    CALL(vkGetFenceStatus, NOTHING, 1)                  CALL(vkWaitForFences, NOTHING, 1)                     \
    CALL(vkCreateQueryPool, MAKES, 1)                   CALL(vkDestroyQueryPool, ENDS, 0)                     \
    CALL(vkGetQueryPoolResults, NOTHING, 1)             CALL(vkCreateShaderModule, MAKES, 1)                  \
    CALL(vkDestroyShaderModule, ENDS, 0)                CALL(vkCreatePipelineCache, MAKES, 1)                 \
    CALL(vkDestroyPipelineCache, ENDS, 0)               CALL(vkGetPipelineCacheData, NOTHING, 1)              \
    CALL(vkCreateComputePipelines, MAKES, 1)            CALL(vkDestroyPipeline, ENDS, 0)                      \
    CALL(vkCreatePipelineLayout, MAKES, 1)              CALL(vkDestroyPipelineLayout, ENDS, 0)                \
    CALL(vkCreateDescriptorSetLayout, MAKES, 1)         CALL(vkDestroyDescriptorSetLayout, ENDS, 0)           \
    CALL(vkCreateDescriptorPool, MAKES, 1)              CALL(vkDestroyDescriptorPool, ENDS, 0)                \
    CALL(vkResetDescriptorPool, NOTHING, 1)             CALL(vkAllocateDescriptorSets, NOTHING, 1)            \
    CALL(vkCreateCommandPool, MAKES, 1)                 CALL(vkDestroyCommandPool, ENDS, 0)                   \
    CALL(vkAllocateCommandBuffers, NOTHING, 1)          CALL(vkBeginCommandBuffer, NOTHING, 1)                \
    CALL(vkEndCommandBuffer, NOTHING, 1)                CALL(vkCmdPipelineBarrier, NOTHING, 0)                \
    CALL(vkCmdBindDescriptorSets, NOTHING, 0)
// clang-format on

enum {
#define CALL(name, lives, result) INDEX_##name,
    CALLS(CALL)
#undef CALL
        CALL_COUNT
};

static const struct row {
    const char *name;
    int lives;
    bool result;
} rows[] = {
#define CALL(name, lives, result) {#name, lives, result},
    CALLS(CALL)
#undef CALL
};

static function *real[CALL_COUNT];

static intptr_t pass(int i, const intptr_t *w) {
    const struct row *row = &rows[i];
    if (fails(row->name, row->result)) return fault.with;
    intptr_t result = real[i](w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]);
    if (row->lives == MAKES && (int32_t)result == 0) count(1);
    if (row->lives == ENDS && (w[1] || i == INDEX_vkDestroyDevice)) count(-1);
    return result;
}

#define CALL(name, lives, result)                                                                            \
    static intptr_t name(intptr_t a, intptr_t b, intptr_t c, intptr_t d, intptr_t e, intptr_t f, intptr_t g, \
                         intptr_t h, intptr_t i, intptr_t j) {                                               \
        return pass(INDEX_##name, (const intptr_t[]){a, b, c, d, e, f, g, h, i, j});                         \
    }
CALLS(CALL)
#undef CALL

static function *const forwarders[] = {
#define CALL(name, lives, result) name,
    CALLS(CALL)
#undef CALL
};

static int lies(const char *of) {
    const char *wanted = getenv("VULKAN_LIES");
    return wanted && !strcmp(wanted, of);
}

static function *real_properties, *real_families;
enum { TIME_BITS = 36 };

/* The version is the first word, the limits begin with the 75th, and the bytes of a binding are the eighth of them. */
static void properties(intptr_t place, uint32_t *out) {
    const char *shrink = getenv("SHRINK");
    real_properties(place, (intptr_t)out, 0, 0, 0, 0, 0, 0, 0, 0);
    if (lies("old")) *out = 1u << 22;
    if (shrink) out[74 + 7] = (uint32_t)atoll(shrink);
}

/* Words of a family: what it can do, how many queues, bits of times, and three more. */
static void families(intptr_t place, uint32_t *count, uint32_t (*list)[6]) {
    real_families(place, (intptr_t)count, (intptr_t)list, 0, 0, 0, 0, 0, 0, 0);
    for (uint32_t i = 0; list && i < *count && lies("clock"); i++)
        list[i][2] = TIME_BITS;
}

/* As the driver asks for one time. */
static intptr_t times(intptr_t device, intptr_t pool, intptr_t first, intptr_t n, intptr_t size, uint64_t *out,
                      intptr_t stride, intptr_t flags) {
    static uint64_t clock;
    const uint64_t round = (uint64_t)1 << TIME_BITS;
    intptr_t result = vkGetQueryPoolResults(device, pool, first, n, size, (intptr_t)out, stride, flags, 0, 0);
    if (lies("clock") && !(int32_t)result) *out = (clock += round / 5 * 2) % round;
    return result;
}

typedef function *lookup(void *instance, const char *name);

static lookup *loader(void) {
    static lookup *found;
    const char *path = getenv("VULKAN_REAL");
    void *library = found ? NULL : dlopen(path ? path : "libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library) *(void **)&found = dlsym(library, "vkGetInstanceProcAddr");
    if (!found) fprintf(stderr, "vulkan_faults: %s\n", dlerror());
    return found;
}

function *vkGetInstanceProcAddr(void *instance, const char *name);
function *vkGetInstanceProcAddr(void *instance, const char *name) {
    lookup *look = loader();
    function *known = look ? look(instance, name) : NULL;
    for (int i = 0; known && i < CALL_COUNT; i++) {
        if (strcmp(rows[i].name, name)) continue;
        real[i] = known;
        return i == INDEX_vkGetQueryPoolResults ? (function *)times : forwarders[i];
    }
    if (known && !strcmp(name, "vkGetPhysicalDeviceProperties")) {
        real_properties = known;
        return (function *)properties;
    }
    if (known && !strcmp(name, "vkGetPhysicalDeviceQueueFamilyProperties")) {
        real_families = known;
        return (function *)families;
    }
    return known;
}
