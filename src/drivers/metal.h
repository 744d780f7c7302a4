/* metal.h — declarations for Metal, so that a build needs neither an SDK nor an Objective-C compiler.
 *
 * A message is a call of objc_msgSend, cast to the types of that message: the receiver, the selector, the arguments.
 * Types and numbers are those of Apple's documentation: NSUInteger and NSInteger have 64 bits, BOOL 8. No message here
 * returns a struct, for which some machines have another function. */
#ifndef TN_DRIVERS_METAL_H
#define TN_DRIVERS_METAL_H

#include <stddef.h>
#include <stdint.h>

typedef struct metal_object *object;
typedef struct metal_selector *selector;

typedef struct metal_size {
    uint64_t width, height, depth;
} metal_size;

enum {
    STORAGE_SHARED = 0,       /* MTLResourceStorageModeShared */
    STORAGE_PRIVATE = 2 << 4, /* MTLResourceStorageModePrivate */
    STATUS_COMPLETED = 4,     /* MTLCommandBufferStatusCompleted */
    STATUS_ERROR = 5,
    MATH_SAFE = 0,         /* MTLMathModeSafe */
    FUNCTIONS_PRECISE = 1, /* MTLMathFloatingPointFunctionsPrecise */
    UTF8 = 4,              /* NSUTF8StringEncoding */
    INLINE_BYTES = 4096,   /* the most that setBytes takes */
    MOST_BUFFERS = 31      /* bindings of a kernel */
};

/* X(our name, selector, result, types of receiver, selector and arguments). The caller releases what `new…`, `init…`
 * and `retain` return; everything else lives as long as its owner, or until the pool around the call ends. */
#define RECEIVER object, selector
// clang-format off
#define MESSAGES(X)                                                                                                  \
    /* any object, and Foundation */                                                                                 \
    X(retain, "retain", object, (RECEIVER))                                                                          \
    X(release, "release", void, (RECEIVER))                                                                          \
    X(responds, "respondsToSelector:", signed char, (RECEIVER, selector))                                            \
    X(alloc, "alloc", object, (RECEIVER))                                                                            \
    X(new_, "new", object, (RECEIVER))                                                                               \
    X(init_text, "initWithBytes:length:encoding:", object, (RECEIVER, const void *, uint64_t, uint64_t))             \
    X(utf8, "UTF8String", const char *, (RECEIVER))                                                                  \
    X(count, "count", uint64_t, (RECEIVER))                                                                          \
    X(object_at, "objectAtIndex:", object, (RECEIVER, uint64_t))                                                     \
    X(description, "localizedDescription", object, (RECEIVER))                                                       \
    X(code, "code", int64_t, (RECEIVER))                                                                             \
    X(process, "processInfo", object, (RECEIVER))                                                                    \
    X(system_version, "operatingSystemVersionString", object, (RECEIVER))                                            \
    /* MTLDevice */                                                                                                  \
    X(name, "name", object, (RECEIVER))                                                                              \
    X(working_set, "recommendedMaxWorkingSetSize", uint64_t, (RECEIVER))                                             \
    X(allocated, "currentAllocatedSize", uint64_t, (RECEIVER))                                                       \
    X(unified, "hasUnifiedMemory", signed char, (RECEIVER))                                                          \
    X(max_buffer, "maxBufferLength", uint64_t, (RECEIVER))                                                           \
    X(group_memory, "maxThreadgroupMemoryLength", uint64_t, (RECEIVER))                                              \
    X(new_queue, "newCommandQueue", object, (RECEIVER))                                                              \
    X(new_buffer, "newBufferWithLength:options:", object, (RECEIVER, uint64_t, uint64_t))                            \
    X(new_buffer_of, "newBufferWithBytes:length:options:", object, (RECEIVER, const void *, uint64_t, uint64_t))     \
    X(new_library, "newLibraryWithSource:options:error:", object, (RECEIVER, object, object, object *))              \
    X(new_pipeline, "newComputePipelineStateWithFunction:error:", object, (RECEIVER, object, object *))              \
    X(new_event, "newSharedEvent", object, (RECEIVER))                                                               \
    /* MTLCompileOptions; the first two since macOS 15 */                                                            \
    X(math_mode, "setMathMode:", void, (RECEIVER, int64_t))                                                          \
    X(math_functions, "setMathFloatingPointFunctions:", void, (RECEIVER, int64_t))                                   \
    X(fast_math, "setFastMathEnabled:", void, (RECEIVER, signed char))                                               \
    /* MTLLibrary, MTLComputePipelineState, MTLBuffer */                                                             \
    X(new_function, "newFunctionWithName:", object, (RECEIVER, object))                                              \
    X(max_group, "maxTotalThreadsPerThreadgroup", uint64_t, (RECEIVER))                                              \
    X(subgroup, "threadExecutionWidth", uint64_t, (RECEIVER))                                                        \
    X(contents, "contents", void *, (RECEIVER))                                                                      \
    /* MTLCommandQueue, MTLCommandBuffer */                                                                          \
    X(command_buffer, "commandBuffer", object, (RECEIVER))                                                           \
    X(encoder, "computeCommandEncoder", object, (RECEIVER))                                                          \
    X(signal, "encodeSignalEvent:value:", void, (RECEIVER, object, uint64_t))                                        \
    X(wait_for, "encodeWaitForEvent:value:", void, (RECEIVER, object, uint64_t))                                     \
    X(commit, "commit", void, (RECEIVER))                                                                            \
    X(wait, "waitUntilCompleted", void, (RECEIVER))                                                                  \
    X(status, "status", uint64_t, (RECEIVER))                                                                        \
    X(error, "error", object, (RECEIVER))                                                                            \
    X(end_time, "GPUEndTime", double, (RECEIVER))                                                                    \
    /* MTLSharedEvent */                                                                                             \
    X(set_value, "setSignaledValue:", void, (RECEIVER, uint64_t))                                                    \
    /* MTLComputeCommandEncoder */                                                                                   \
    X(set_pipeline, "setComputePipelineState:", void, (RECEIVER, object))                                            \
    X(set_buffer, "setBuffer:offset:atIndex:", void, (RECEIVER, object, uint64_t, uint64_t))                         \
    X(set_bytes, "setBytes:length:atIndex:", void, (RECEIVER, const void *, uint64_t, uint64_t))                     \
    X(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:", void, (RECEIVER, metal_size, metal_size))             \
    X(end, "endEncoding", void, (RECEIVER))
// clang-format on

/* MTLCommandBufferError: what becomes of work that was sent. X(number, words, what to do) */
#define BUFFER_ERRORS(X)                                                                           \
    X(1, "internal error", "open the device again")                                                \
    X(2, "it took too long and was stopped", "try a smaller batch; open the device again")         \
    X(3, "page fault", "please report this")                                                       \
    X(4, "access was revoked", "open the device again; see the system's log")                      \
    X(7, "not permitted", "the process is in the background: bring it to the front")               \
    X(8, "out of memory", "try a smaller batch, a smaller dtype, or another device, opened again") \
    X(9, "invalid resource", "please report this")                                                 \
    X(11, "the device was removed", "use another device")                                          \
    X(12, "stack overflow", "please report this")

#endif
