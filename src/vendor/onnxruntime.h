/* onnxruntime.h — ONNX Runtime: the library, its sessions, running one.
 *
 * A session is a model that the library has compiled. Values are memory of the caller's: nothing is copied here. Errors
 * are the library's own, with its words. Several threads may run one session at once. */
#ifndef TN_VENDOR_ONNXRUNTIME_H
#define TN_VENDOR_ONNXRUNTIME_H

#include "base/base.h"

extern const tn_library_spec tn_ort_library;

/* Loads the library and starts it, once a process. Errors: TN_ERR_UNAVAILABLE with the reason. */
tn_status tn_ort_load(void);
bool tn_ort_is_loaded(void);
/* The execution providers that this build of the library has, "CPUExecutionProvider", in its order of preference; NULL
 * outside of them. Loaded only. */
const char *tn_ort_provider_at(int i);

/* Its levels of graph optimization. */
typedef enum tn_ort_level { TN_ORT_NONE = 0, TN_ORT_BASIC = 1, TN_ORT_EXTENDED = 2, TN_ORT_ALL = 99 } tn_ort_level;

typedef struct tn_ort_options {
    tn_ort_level level;
    int threads;       /* of a run; 0: as many as this process uses */
    char provider[48]; /* "cpu", "cuda", "cuda:1", or a name that the library knows ("XNNPACK"); "": "cpu" */
} tn_ort_options;

/* What sessions for the engine's device are opened with. Until they are set: this process's threads, the provider
 * that TRUNNION_ONNXRUNTIME_PROVIDER names ("cpu"), and the level of TRUNNION_ONNXRUNTIME_LEVEL: none, basic,
 * extended or all ("all"). */
tn_ort_options tn_ort_device_options(void);
void tn_ort_set_device_options(const tn_ort_options *options);

typedef struct tn_ort_session tn_ort_session;

/* A tensor: its element type as TensorProto.DataType numbers it. */
typedef struct tn_ort_tensor {
    int type, rank;
    int64_t shape[8];
    void *data; /* of an output: NULL for the library to choose shape and memory */
    size_t bytes;
    void *value; /* of an output of the library's own: freed with tn_ort_value_free; else NULL */
} tn_ort_tensor;

/* From a file, or where `path` is NULL from `size` bytes, which may go afterwards. */
tn_status tn_ort_session_new(const char *path, const void *bytes, size_t size, const tn_ort_options *options,
                             tn_ort_session **out);
/* From bytes, with the values of initializers that the model names but does not contain. They are copied. */
tn_status tn_ort_session_with(const void *bytes, size_t size, const char *const *names, const tn_ort_tensor *values,
                              int count, const tn_ort_options *options, tn_ort_session **out);
void tn_ort_session_free(tn_ort_session *s); /* NULL is fine */

int tn_ort_input_count(const tn_ort_session *s);
int tn_ort_output_count(const tn_ort_session *s);
const char *tn_ort_input_name(const tn_ort_session *s, int i);
const char *tn_ort_output_name(const tn_ort_session *s, int i);

/* inputs and outputs in the session's order, all of them. Outputs of the library's own come back with shape and data.
 * After a failure none is left. */
tn_status tn_ort_run(const tn_ort_session *s, const tn_ort_tensor *inputs, tn_ort_tensor *outputs);
void tn_ort_value_free(void *value); /* NULL is fine */

#endif
