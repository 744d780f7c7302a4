/* onnxruntime.c — ONNX Runtime by its C interface, a table of functions that only ever grows.
 *
 * The table is asked for in the lowest version that has all that is called here: a library says "too new" on standard
 * error, an old one has fewer functions. Places in the table are those of onnxruntime_c_api.h; what each version ends
 * with is fixed there by static assertions.
 *
 * All sessions share one pool of threads, of as many threads as ours. It does not spin: both pools would otherwise take
 * each other's processors. */
#include "vendor/onnxruntime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trunnion/status.h"

#if TRUNNION_WITH_ONNXRUNTIME

typedef void ort_status; /* NULL: no error */

/* X(place in the table, field, name, result, parameters) */
#define CALLS(X)                                                                                                    \
    X(1, error_code, "GetErrorCode", int, (const ort_status *status))                                               \
    X(2, error_text, "GetErrorMessage", const char *, (const ort_status *status))                                   \
    X(7, session_of_file, "CreateSession", ort_status *,                                                            \
      (const void *env, const void *path, const void *options, void **session))                                     \
    X(8, session_of_bytes, "CreateSessionFromArray", ort_status *,                                                  \
      (const void *env, const void *bytes, size_t size, const void *options, void **session))                       \
    X(9, run, "Run", ort_status *,                                                                                  \
      (void *session, const void *options, const char *const *input_names, const void *const *inputs,               \
       size_t input_count, const char *const *output_names, size_t output_count, void **outputs))                   \
    X(10, options_new, "CreateSessionOptions", ort_status *, (void **options))                                      \
    X(22, set_log, "SetSessionLogSeverityLevel", ort_status *, (void *options, int severity))                       \
    X(23, set_level, "SetSessionGraphOptimizationLevel", ort_status *, (void *options, int level))                  \
    X(24, set_threads, "SetIntraOpNumThreads", ort_status *, (void *options, int threads))                          \
    X(30, input_count, "SessionGetInputCount", ort_status *, (const void *session, size_t *count))                  \
    X(31, output_count, "SessionGetOutputCount", ort_status *, (const void *session, size_t *count))                \
    X(36, input_name, "SessionGetInputName", ort_status *,                                                          \
      (const void *session, size_t i, void *allocator, char **name))                                                \
    X(37, output_name, "SessionGetOutputName", ort_status *,                                                        \
      (const void *session, size_t i, void *allocator, char **name))                                                \
    X(49, value_over, "CreateTensorWithDataAsOrtValue", ort_status *,                                               \
      (const void *memory, void *data, size_t bytes, const int64_t *shape, size_t rank, int type, void **value))    \
    X(50, is_tensor, "IsTensor", ort_status *, (const void *value, int *out))                                       \
    X(51, value_data, "GetTensorMutableData", ort_status *, (void *value, void **data))                             \
    X(60, value_type, "GetTensorElementType", ort_status *, (const void *info, int *type))                          \
    X(61, value_rank, "GetDimensionsCount", ort_status *, (const void *info, size_t *rank))                         \
    X(62, value_shape, "GetDimensions", ort_status *, (const void *info, int64_t *shape, size_t rank))              \
    X(65, value_info, "GetTensorTypeAndShape", ort_status *, (const void *value, void **info))                      \
    X(69, memory_new, "CreateCpuMemoryInfo", ort_status *, (int allocator, int type, void **memory))                \
    X(76, give_back, "AllocatorFree", ort_status *, (void *allocator, void *memory))                                \
    X(78, allocator, "GetAllocatorWithDefaultOptions", ort_status *, (void **allocator))                            \
    X(93, status_free, "ReleaseStatus", void, (ort_status * status))                                                \
    X(95, session_free, "ReleaseSession", void, (void *session))                                                    \
    X(96, value_free, "ReleaseValue", void, (void *value))                                                          \
    X(99, info_free, "ReleaseTensorTypeAndShapeInfo", void, (void *info))                                           \
    X(100, options_free, "ReleaseSessionOptions", void, (void *options))                                            \
    X(119, env_new, "CreateEnvWithGlobalThreadPools", ort_status *,                                                 \
      (int severity, const char *name, const void *threading, void **env))                                          \
    X(120, use_shared_threads, "DisablePerSessionThreads", ort_status *, (void *options))                           \
    X(121, threading_new, "CreateThreadingOptions", ort_status *, (void **threading))                               \
    X(122, threading_free, "ReleaseThreadingOptions", void, (void *threading))                                      \
    X(125, providers, "GetAvailableProviders", ort_status *, (char ***names, int *count))                           \
    X(130, set_entry, "AddSessionConfigEntry", ort_status *, (void *options, const char *key, const char *value))   \
    X(147, share_threads, "SetGlobalIntraOpNumThreads", ort_status *, (void *threading, int threads))               \
    X(148, share_branches, "SetGlobalInterOpNumThreads", ort_status *, (void *threading, int threads))              \
    X(149, share_spinning, "SetGlobalSpinControl", ort_status *, (void *threading, int spins))                      \
    X(152, add_cuda, "SessionOptionsAppendExecutionProvider_CUDA", ort_status *, (void *options, const void *cuda)) \
    X(210, add_initializers, "AddExternalInitializers", ort_status *,                                               \
      (void *options, const char *const *names, const void *const *values, size_t count))                           \
    X(216, add_provider, "SessionOptionsAppendExecutionProvider", ort_status *,                                     \
      (void *options, const char *name, const char *const *keys, const char *const *values, size_t count))

enum { API_VERSION = 12, OLDEST_MINOR = 18, LOG_FATAL = 4, CPU_ARENA = 1, CPU_OUTPUT = 0 };

static struct {
#define X(place, field, name, result, parameters) result(*field) parameters;
    CALLS(X)
#undef X
} calls;

static const struct {
#define X(place, field, name, result, parameters) const char *field;
    CALLS(X)
#undef X
} call_names = {
#define X(place, field, name, result, parameters) .field = name,
    CALLS(X)
#undef X
};

typedef struct api_base {
    const void *const *(*table)(uint32_t version);
    const char *(*version)(void);
} api_base;

static const api_base *(*get_base)(void);

static const char *const library_names[] = {
    "libonnxruntime.so.1",
    "libonnxruntime.so",
    "libonnxruntime.so.1.*",
    "libonnxruntime.dylib",
    "site-packages/onnxruntime/capi/libonnxruntime.so.1.*",
    "site-packages/onnxruntime/capi/libonnxruntime.*.dylib",
    "/opt/onnxruntime*/lib/libonnxruntime.so",
    "site-packages/onnxruntime/capi/onnxruntime.dll", /* before Windows's own, which is older */
    "onnxruntime.dll",
    NULL,
};
static const tn_symbol library_symbols[] = {{"OrtGetApiBase", (void **)&get_base, false}};
const tn_library_spec tn_ort_library = {"ONNX Runtime",
                                        "TRUNNION_ONNXRUNTIME_LIB",
                                        library_names,
                                        library_symbols,
                                        TN_COUNT(library_symbols),
                                        "install it (pip install onnxruntime), or set TRUNNION_ONNXRUNTIME_LIB to "
                                        "libonnxruntime.so (onnxruntime.dll on Windows)"};

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Codes of OrtErrorCode; those without a row are TN_ERR_DEVICE. */
static const tn_status status_of_code[] = {
    [2] = TN_ERR_ARGUMENT, [3] = TN_ERR_IO,          [4] = TN_ERR_FORMAT,
    [7] = TN_ERR_FORMAT,   [9] = TN_ERR_UNSUPPORTED, [10] = TN_ERR_UNSUPPORTED,
};

/* Takes the library's status. */
static tn_status check_ort(ort_status *status, const char *call) {
    if (!status) return TN_OK;
    size_t code = (size_t)calls.error_code(status);
    const char *text = calls.error_text(status);
    tn_status s = code < TN_COUNT(status_of_code) && status_of_code[code] ? status_of_code[code] : TN_ERR_DEVICE;
    if (strstr(text, "bad_alloc") || strstr(text, "Failed to allocate memory")) s = TN_ERR_MEMORY;
    size_t length = strlen(text); /* some end with line feeds */
    while (length && (text[length - 1] == '\n' || text[length - 1] == ' '))
        length--;
    s = tn_fail(s, "ONNX Runtime: %s: %.*s (error %zu)", call, (int)length, text, code);
    calls.status_free(status);
    return s;
}

#define ORT(call, arguments) check_ort(calls.call arguments, call_names.call)

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool loaded;
static void *env, *memory, *allocator;
static int shared_threads;
static char version[32], **providers;
static int provider_count;

bool tn_ort_is_loaded(void) { return atomic_load(&loaded); }
static tn_status take_calls(const void *const *table) {
    const char *missing = NULL;
#define X(place, field, name, result, parameters)                \
    memcpy((void *)&calls.field, &table[place], sizeof(void *)); \
    if (!table[place]) missing = name;
    CALLS(X)
#undef X
    return missing ? tn_fail(TN_ERR_UNAVAILABLE, "ONNX Runtime %s: its table lacks a function of version %d (%s)",
                             version, API_VERSION, missing)
                   : TN_OK;
}

static tn_status take_table(void) {
    const api_base *base = get_base();
    int major = 0, minor = 0;
    if (!base || !base->table || !base->version)
        return tn_fail(TN_ERR_UNAVAILABLE, "ONNX Runtime: OrtGetApiBase yields no interface");
    snprintf(version, sizeof version, "%s", base->version() ? base->version() : "");
    if (sscanf(version, "%d.%d", &major, &minor) != 2 || major != 1 || minor < OLDEST_MINOR)
        return tn_fail(TN_ERR_UNAVAILABLE,
                       "ONNX Runtime says that it is version \"%s\"; needed is 1.%d or newer, with opset 21", version,
                       OLDEST_MINOR);
    const void *const *table = base->table(API_VERSION);
    return table ? take_calls(table)
                 : tn_fail(TN_ERR_UNAVAILABLE, "ONNX Runtime %s has no version %d of its interface", version,
                           API_VERSION);
}

/* One pool of threads for all sessions. */
static tn_status start_env(void) {
    void *threading = NULL;
    shared_threads = tn_threads();
    TRY(ORT(threading_new, (&threading)));
    tn_status s = ORT(share_threads, (threading, shared_threads));
    if (s == TN_OK) s = ORT(share_branches, (threading, 1));
    if (s == TN_OK) s = ORT(share_spinning, (threading, 0));
    if (s == TN_OK) s = ORT(env_new, (LOG_FATAL, "trunnion", threading, &env));
    calls.threading_free(threading);
    return s;
}

static tn_status load(void) {
    tn_reason why;
    if (!tn_library_open(&tn_ort_library, &why)) return tn_fail(TN_ERR_UNAVAILABLE, "%s (%s)", why.text, why.fix);
    TRY(take_table());
    TRY(start_env());
    TRY(ORT(memory_new, (CPU_ARENA, CPU_OUTPUT, &memory)));
    TRY(ORT(allocator, (&allocator)));
    return ORT(providers, (&providers, &provider_count));
}

tn_status tn_ort_load(void) {
    if (tn_ort_is_loaded()) return TN_OK;
    AUTO_LOCK(&load_lock);
    TRY(tn_ort_is_loaded() ? TN_OK : load());
    atomic_store(&loaded, true);
    return TN_OK;
}

const char *tn_ort_provider_at(int i) { return i >= 0 && i < provider_count ? providers[i] : NULL; }

/* ---- options of the device --------------------------------------------------------------------------------------- */

static pthread_mutex_t options_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_ort_options device_options;
static bool options_known;

static tn_ort_level level_of_environment(void) {
    static const char *const names[] = {"none", "basic", "extended", "all", NULL};
    static const tn_ort_level levels[] = {TN_ORT_NONE, TN_ORT_BASIC, TN_ORT_EXTENDED, TN_ORT_ALL};
    int place = tn_env_word("TRUNNION_ONNXRUNTIME_LEVEL", names);
    return place < 0 ? TN_ORT_ALL : levels[place];
}

tn_ort_options tn_ort_device_options(void) {
    AUTO_LOCK(&options_lock);
    if (!options_known) {
        const char *provider = tn_env("TRUNNION_ONNXRUNTIME_PROVIDER");
        device_options = (tn_ort_options){.level = level_of_environment()};
        snprintf(device_options.provider, sizeof device_options.provider, "%s", provider ? provider : "");
        options_known = true;
    }
    return device_options;
}

void tn_ort_set_device_options(const tn_ort_options *options) {
    AUTO_LOCK(&options_lock);
    device_options = *options;
    options_known = true;
}

/* ---- sessions ---------------------------------------------------------------------------------------------------- */

struct tn_ort_session {
    void *session;
    char **input_names, **output_names; /* the library's memory */
    int input_count, output_count;
};

/* OrtCUDAProviderOptions of version 8: the library's own defaults but for the device. */
typedef struct cuda_options {
    int device, search;
    size_t memory_limit;
    int arena_strategy, copies_in_own_stream, has_stream;
    void *stream, *arena;
} cuda_options;

/* With what this build of the library has. */
static tn_status refuse_provider(const char *name) {
    char known[240] = "";
    for (int i = 0; i < provider_count; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", providers[i]);
    }
    return tn_fail_prefix(TN_ERR_UNAVAILABLE, "execution provider \"%s\" (this library has %s)", name, known);
}

static tn_status add_provider(void *options, const char *name) {
    unsigned device = 0;
    if (!name[0] || !strcmp(name, "cpu")) return TN_OK;
    bool is_cuda = !strcmp(name, "cuda") || sscanf(name, "cuda:%u", &device) == 1;
    const cuda_options cuda = {.device = (int)device, .memory_limit = SIZE_MAX, .copies_in_own_stream = 1};
    tn_status s = is_cuda ? ORT(add_cuda, (options, &cuda)) : ORT(add_provider, (options, name, NULL, NULL, 0));
    return s == TN_OK ? s : refuse_provider(name);
}

static tn_status set_options(void *options, const tn_ort_options *o) {
    int threads = o->threads ? o->threads : tn_threads();
    TRY(ORT(set_log, (options, LOG_FATAL)));
    TRY(ORT(set_level, (options, (int)o->level)));
    /* Without it, sums of bytes saturate on x86-64 processors without VNNI. */
    TRY(ORT(set_entry, (options, "session.x64quantprecision", "1")));
    TRY(add_provider(options, o->provider));
    return threads == shared_threads ? ORT(use_shared_threads, (options)) : ORT(set_threads, (options, threads));
}

static tn_status take_names(tn_ort_session *s) {
    size_t inputs = 0, outputs = 0;
    TRY(ORT(input_count, (s->session, &inputs)));
    TRY(ORT(output_count, (s->session, &outputs)));
    s->input_names = tn_mem_zalloc(inputs + 1, sizeof *s->input_names);
    s->output_names = tn_mem_zalloc(outputs + 1, sizeof *s->output_names);
    if (!s->input_names || !s->output_names) return TN_ERR_MEMORY;
    for (; (size_t)s->input_count < inputs; s->input_count++)
        TRY(ORT(input_name, (s->session, (size_t)s->input_count, allocator, &s->input_names[s->input_count])));
    for (; (size_t)s->output_count < outputs; s->output_count++)
        TRY(ORT(output_name, (s->session, (size_t)s->output_count, allocator, &s->output_names[s->output_count])));
    return TN_OK;
}

/* What a session is made of: a file, or bytes and the values of initializers that they lack. */
typedef struct session_source {
    const char *path;
    const void *bytes;
    size_t size;
    const char *const *names;
    const tn_ort_tensor *values;
    int count;
} session_source;

void tn_ort_value_free(void *value) {
    if (value) calls.value_free(value);
}

static tn_status make_value(const tn_ort_tensor *t, void **value) {
    static char nothing[8]; /* an address for tensors without elements */
    return ORT(value_over, (memory, t->data ? t->data : nothing, t->bytes, t->shape, (size_t)t->rank, t->type, value));
}

/* The library copies them while it makes the session; *values must live until then. */
static tn_status add_values(void *options, const session_source *from, void **values) {
    for (int i = 0; i < from->count; i++)
        TRY(make_value(&from->values[i], &values[i]));
    return from->count ? ORT(add_initializers, (options, from->names, (const void *const *)values, (size_t)from->count))
                       : TN_OK;
}

/* Paths are in the system's characters: UTF-16 on Windows. */
static tn_status open_file(const char *path, const void *options, void **session) {
#if defined(_WIN32)
    wchar_t *wide = tn_win_wide(path);
    if (!wide) return tn_fail(TN_ERR_IO, "%s: %s", path, strerror(errno));
    tn_status status = ORT(session_of_file, (env, wide, options, session));
    free(wide);
    return status;
#else
    return ORT(session_of_file, (env, path, options, session));
#endif
}

static tn_status open_session(tn_ort_session *s, const session_source *from, const tn_ort_options *o) {
    void *options = NULL, **values = tn_mem_zalloc((size_t)from->count + 1, sizeof *values);
    tn_status status = values ? ORT(options_new, (&options)) : TN_ERR_MEMORY;
    if (status == TN_OK) status = set_options(options, o);
    if (status == TN_OK) status = add_values(options, from, values);
    if (status == TN_OK)
        status = from->path ? open_file(from->path, options, &s->session)
                            : ORT(session_of_bytes, (env, from->bytes, from->size, options, &s->session));
    if (options) calls.options_free(options);
    for (int i = 0; values && i < from->count; i++)
        tn_ort_value_free(values[i]);
    tn_mem_free(values);
    return status == TN_OK ? take_names(s) : status;
}

static tn_status new_session(const session_source *from, const tn_ort_options *options, tn_ort_session **out) {
    *out = NULL;
    TRY(tn_ort_load());
    tn_ort_session *s = tn_mem_zalloc(1, sizeof *s);
    if (!s) return TN_ERR_MEMORY;
    tn_status status = open_session(s, from, options);
    if (status == TN_OK)
        *out = s;
    else
        tn_ort_session_free(s);
    return status;
}

tn_status tn_ort_session_new(const char *path, const void *bytes, size_t size, const tn_ort_options *options,
                             tn_ort_session **out) {
    return new_session(&(session_source){.path = path, .bytes = bytes, .size = size}, options, out);
}

tn_status tn_ort_session_with(const void *bytes, size_t size, const char *const *names, const tn_ort_tensor *values,
                              int count, const tn_ort_options *options, tn_ort_session **out) {
    return new_session(&(session_source){NULL, bytes, size, names, values, count}, options, out);
}

static void free_names(char **names, int count) {
    for (int i = 0; i < count; i++)
        (void)ORT(give_back, (allocator, names[i]));
    tn_mem_free(names);
}

void tn_ort_session_free(tn_ort_session *s) {
    if (!s) return;
    free_names(s->input_names, s->input_count);
    free_names(s->output_names, s->output_count);
    if (s->session) calls.session_free(s->session);
    tn_mem_free(s);
}

int tn_ort_input_count(const tn_ort_session *s) { return s->input_count; }
int tn_ort_output_count(const tn_ort_session *s) { return s->output_count; }
const char *tn_ort_input_name(const tn_ort_session *s, int i) { return s->input_names[i]; }
const char *tn_ort_output_name(const tn_ort_session *s, int i) { return s->output_names[i]; }

/* ---- running ----------------------------------------------------------------------------------------------------- */

static tn_status describe_value(tn_ort_tensor *t) {
    void *info = NULL;
    size_t rank = 0;
    int is_tensor = 0;
    TRY(ORT(is_tensor, (t->value, &is_tensor)));
    if (!is_tensor)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "ONNX Runtime: an output is a sequence, map or optional: only tensors are taken from it");
    TRY(ORT(value_info, (t->value, &info)));
    tn_status s = ORT(value_type, (info, &t->type));
    if (s == TN_OK) s = ORT(value_rank, (info, &rank));
    if (s == TN_OK && rank > TN_COUNT(t->shape))
        s = tn_fail(TN_ERR_UNSUPPORTED, "ONNX Runtime: an output has %zu dims; at most %zu are taken from it", rank,
                    TN_COUNT(t->shape));
    if (s == TN_OK) s = ORT(value_shape, (info, t->shape, rank));
    t->rank = (int)rank;
    calls.info_free(info);
    return s == TN_OK ? ORT(value_data, (t->value, &t->data)) : s;
}

typedef struct ort_values {
    void **inputs, **outputs;
} ort_values;

static tn_status run_values(const tn_ort_session *s, ort_values *v, const tn_ort_tensor *inputs,
                            tn_ort_tensor *outputs) {
    for (int i = 0; i < s->input_count; i++)
        TRY(make_value(&inputs[i], &v->inputs[i]));
    for (int i = 0; i < s->output_count; i++)
        if (outputs[i].data) TRY(make_value(&outputs[i], &v->outputs[i]));
    TRY(ORT(run, (s->session, NULL, (const char *const *)s->input_names, (const void *const *)v->inputs,
                  (size_t)s->input_count, (const char *const *)s->output_names, (size_t)s->output_count, v->outputs)));
    for (int i = 0; i < s->output_count; i++) {
        if (outputs[i].data) continue;
        outputs[i].value = v->outputs[i];
        v->outputs[i] = NULL;
        TRY(describe_value(&outputs[i]));
    }
    return TN_OK;
}

tn_status tn_ort_run(const tn_ort_session *s, const tn_ort_tensor *inputs, tn_ort_tensor *outputs) {
    enum { FEW = 64 };
    int count = s->input_count + s->output_count;
    void *few[FEW] = {0}, **all = count > FEW ? tn_mem_zalloc((size_t)count, sizeof *all) : few;
    if (!all) return TN_ERR_MEMORY;
    ort_values v = {all, all + s->input_count};
    for (int i = 0; i < s->output_count; i++)
        outputs[i].value = NULL;
    tn_status status = run_values(s, &v, inputs, outputs);
    for (int i = 0; i < count; i++)
        tn_ort_value_free(all[i]);
    if (all != few) tn_mem_free(all);
    for (int i = 0; i < s->output_count && status != TN_OK; i++) {
        tn_ort_value_free(outputs[i].value);
        outputs[i].value = NULL;
    }
    return status;
}

#endif
