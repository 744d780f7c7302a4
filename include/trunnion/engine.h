/* engine.h — how an engine computes: its execution provider, its graph optimization, its threads.
 *
 * An engine is another library that computes graphs, used as a device: tn_device_open("engine:onnxruntime", …).
 * Recorded operations are handed to it as one graph, ONNX models (onnx.h) as the file that they are. What it lacks is
 * computed by the CPU and reported, as for other devices (tn_device_host_at, tn_get_placed).
 *
 *   tn_engine_options o = TN_ENGINE_DEFAULTS;
 *   o.provider = "cuda:0";
 *   tn_engine_set_options(device, &o);
 *
 * Threads: every function here may be called from any thread. */
#ifndef TRUNNION_ENGINE_H
#define TRUNNION_ENGINE_H

#include "trunnion/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How much ONNX Runtime rearranges a graph before it runs it: its levels, GraphOptimizationLevel. */
typedef enum tn_engine_level {
    TN_ENGINE_LEVEL_ALL = 0,
    TN_ENGINE_LEVEL_NONE,
    TN_ENGINE_LEVEL_BASIC,
    TN_ENGINE_LEVEL_EXTENDED
} tn_engine_level;

typedef struct tn_engine_options {
    size_t struct_size;
    /* "cpu"; "cuda" or "cuda:1"; or a name that the library knows ("XNNPACK"). Inputs and results stay in host memory.
     * Default NULL: what TRUNNION_ONNXRUNTIME_PROVIDER names, else "cpu" */
    const char *provider;
    tn_engine_level level; /* default TN_ENGINE_LEVEL_ALL */
    int threads;           /* of a run; default 0: as many as Trunnion uses (tn_set_num_threads) */
} tn_engine_options;
#define TN_ENGINE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_engine_options, threads), NULL, TN_ENGINE_LEVEL_ALL, 0 }

/* For graphs and models that are compiled from now on, in the whole process; plans of this thread are dropped. options
 * may be NULL: the defaults. A provider that cannot be used is refused where a graph is compiled: graphs then run on
 * the CPU's kernels, and opening a model fails, with the library's words and the providers that it has.
 * Errors: TN_ERR_ARGUMENT for a device that is not engine:onnxruntime, an unknown level, threads outside 0 to 1024, or
 * a provider's name of more than 47 bytes. */
TN_API tn_status tn_engine_set_options(tn_device *engine, const tn_engine_options *options);

/* The execution providers that the library was built with, by its names ("CPUExecutionProvider"), in its order of
 * preference. at: NULL outside [0, count). Both: nothing for a device that is not engine:onnxruntime. */
TN_API int tn_engine_provider_count(const tn_device *engine);
TN_API const char *tn_engine_provider_at(const tn_device *engine, int i);

#ifdef __cplusplus
}
#endif
#endif
