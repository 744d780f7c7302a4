/* metal_device.c — of the double of Metal: devices, buffers, libraries and what is made of them.
 *
 * A library's text becomes C++ by way of shim_metal.h. The attributes of each kernel's parameters are read here, and a
 * function is written behind the text that gives each parameter what its attribute names. The fast mathematics that
 * Apple's compiler takes liberties with unless it is told not to are the compiler's here too. */
#include "metal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shim's text, taken in by the assembler. */
#define TEXT(symbol, file)                                                                                         \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" DOUBLE_FOLDER "/" file "\"\n.byte 0\n.popsection\n"); \
    extern const char symbol[] __attribute__((visibility("hidden")))
TEXT(double_shim, "shim.h");
TEXT(double_shim_metal, "shim_metal.h");

enum { OWNER = 1, MOST_DEVICES = 4, GROUP_MOST = 1024, GROUP_MEMORY = 32 << 10, SUBGROUP = 32 };

static size_t memory_limit(void) {
    const char *asked = getenv("DOUBLE_MEMORY");
    return asked ? (size_t)strtoull(asked, NULL, 10) : (size_t)4 << 30;
}

static size_t memory_taken(void) {
    size_t bytes;
    engine_live(OWNER, &bytes);
    return bytes;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void end_buffer(object *o) {
    metal_buffer *b = (metal_buffer *)o;
    bool damaged;
    engine_free(b->memory, &damaged);
    if (damaged) metal_misuse("something was written beside a buffer of %zu bytes", b->bytes);
}

static void *buffer_contents(metal_buffer *b, selector s) {
    (void)s;
    return b->hidden ? NULL : b->memory;
}

static const method buffer_methods[] = {
    METHOD("contents", buffer_contents, FAULT_NOTHING),
    {NULL, NULL, FAULT_NEVER},
};
const metal_class metal_buffer_class = {"MTLBuffer", buffer_methods, sizeof(metal_buffer), end_buffer};

static metal_buffer *new_buffer(metal_device *d, selector s, uint64_t bytes, uint64_t options) {
    enum { SHARED = 0, PRIVATE = 2 << 4 };
    HOLD;
    (void)s;
    (void)d;
    if (!bytes) metal_misuse("a buffer of no bytes");
    if (options != SHARED && options != PRIVATE) metal_misuse("resource options %llu", (unsigned long long)options);
    if (!bytes || bytes > memory_limit() || memory_taken() > memory_limit() - bytes) return NULL;
    char *memory = engine_alloc(bytes, OWNER);
    metal_buffer *b = memory ? metal_new(&metal_buffer_class) : NULL;
    if (!b) return NULL;
    b->memory = memory;
    b->bytes = bytes;
    b->hidden = options == PRIVATE;
    return b;
}

static metal_buffer *new_buffer_of(metal_device *d, selector s, const void *bytes, uint64_t count, uint64_t options) {
    metal_buffer *b = new_buffer(d, s, count, options);
    if (b) memcpy(b->memory, bytes, count);
    return b;
}

/* ---- the language ------------------------------------------------------------------------------------------------ */

/* What a parameter with this attribute gets; .x is added for one that is a single number. */
static const struct {
    const char *name, *value;
    bool triple;
} attributes[] = {
    {"thread_position_in_threadgroup", "metal_triple(engine_here->item)", true},
    {"threadgroup_position_in_grid", "metal_triple(engine_here->group)", true},
    {"threadgroups_per_grid", "metal_triple(engine_here->groups)", true},
    {"threads_per_threadgroup", "metal_triple(engine_here->items)", true},
    {"thread_index_in_threadgroup", "engine_here->linear", false},
};

/* One parameter, without the comma; false: it has no attribute that is known. */
static bool write_parameter(FILE *out, const char *text, size_t n, uint32_t *bindings) {
    char word[300], number[8];
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    const char *attribute = strstr(word, "[["), *end = attribute ? strstr(attribute, "]]") : NULL;
    if (!end) return false;
    if (sscanf(attribute, "[[buffer(%7[0-9])]]", number) == 1) {
        int k = atoi(number);
        if (k >= MOST_BINDINGS || *bindings >> k & 1) return false;
        *bindings |= UINT32_C(1) << k;
        return fprintf(out, "metal_binding{args[%d]}", k) > 0;
    }
    bool single = strstr(word, "uint ") != NULL;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        size_t length = strlen(attributes[i].name);
        if (strncmp(attribute + 2, attributes[i].name, length) || attribute + 2 + length != end) continue;
        return fprintf(out, "%s%s", attributes[i].value, attributes[i].triple && single ? ".x" : "") > 0;
    }
    return false;
}

/* The parameters from behind '(' on, as arguments; NULL when one is not known, else behind ')'. */
static const char *write_parameters(FILE *out, const char *text, uint32_t *bindings) {
    const char *begin = text;
    int depth = 0;
    for (const char *at = text; *at; at++) {
        depth += (*at == '(' || *at == '[') - (*at == ']' || (*at == ')' && depth));
        if (depth || (*at != ',' && *at != ')')) continue;
        if (at > begin && !write_parameter(out, begin, (size_t)(at - begin), bindings)) return NULL;
        if (*at == ')') return at + 1;
        fputs(", ", out);
        begin = at + 1;
    }
    return NULL;
}

/* From "[[kernel" on. */
static bool write_kernel(FILE *out, const char *text, metal_kernel *k) {
    const char *limit = strstr(text, "max_total_threads_per_threadgroup("), *end = strstr(text, "]]");
    const char *type = end ? strstr(end, "void ") : NULL, *open = type ? strchr(type, '(') : NULL;
    unsigned most;
    if (!open) return false;
    type += strlen("void ");
    snprintf(k->name, sizeof k->name, "%.*s", (int)(open - type), type);
    k->limit = GROUP_MOST;
    if (limit && limit < end && sscanf(strchr(limit, '('), "(%u)", &most) == 1) k->limit = most;
    fprintf(out, "ENGINE_EXPORT void engine_run_%s(void **args) { while (engine_next()) %s(", k->name, k->name);
    bool good = write_parameters(out, open + 1, &k->bindings) != NULL;
    fputs("); }\n", out);
    return good;
}

/* The functions for all kernels of the text, NULL: one of them could not be read. The caller frees text and kernels. */
static char *write_tail(const char *text, metal_kernel **kernels, int *count) {
    static const char marker[] = "[[kernel";
    char *tail = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&tail, &size);
    bool good = out != NULL;
    *kernels = NULL;
    *count = 0;
    for (const char *at = text; good && (at = strstr(at, marker)); at++) {
        metal_kernel *grown = realloc(*kernels, ((size_t)*count + 1) * sizeof *grown);
        good = grown != NULL;
        if (!good) break;
        *kernels = grown;
        grown[*count] = (metal_kernel){.name = ""};
        good = write_kernel(out, at, &grown[(*count)++]);
    }
    if (out) fclose(out);
    if (good) return tail;
    free(tail);
    free(*kernels);
    *kernels = NULL;
    return NULL;
}

/* ---- libraries, functions, pipelines ----------------------------------------------------------------------------- */

static void end_library(object *o) {
    metal_library *l = (metal_library *)o;
    engine_unload(l->module);
    free(l->kernels);
}

static void end_function(object *o) { metal_release(((metal_function *)o)->library); }

static uint64_t pipeline_most(metal_function *p, selector s) {
    (void)s;
    return p->kernel->limit;
}
static uint64_t pipeline_width(metal_function *p, selector s) {
    (void)p;
    (void)s;
    return SUBGROUP;
}

static const method no_methods[] = {{NULL, NULL, FAULT_NEVER}};
static const method pipeline_methods[] = {
    METHOD("maxTotalThreadsPerThreadgroup", pipeline_most, FAULT_NEVER),
    METHOD("threadExecutionWidth", pipeline_width, FAULT_NEVER),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class function_class = {"MTLFunction", no_methods, sizeof(metal_function), end_function};
const metal_class metal_pipeline_class = {"MTLComputePipelineState", pipeline_methods, sizeof(metal_function),
                                          end_function};

static metal_function *new_function(metal_library *l, selector s, object *name) {
    HOLD;
    (void)s;
    const char *text = metal_text_of(name);
    for (int i = 0; text && i < l->count; i++) {
        if (strcmp(l->kernels[i].name, text)) continue;
        metal_function *f = metal_new(&function_class);
        if (!f) return NULL;
        metal_retain(l);
        f->library = l;
        f->kernel = &l->kernels[i];
        f->code = engine_find_kernel(l->module, text);
        return f;
    }
    return NULL;
}

static const method library_methods[] = {
    METHOD("newFunctionWithName:", new_function, FAULT_NOTHING),
    {NULL, NULL, FAULT_NEVER},
};
static const metal_class library_class = {"MTLLibrary", library_methods, sizeof(metal_library), end_library};

static metal_function *new_pipeline(metal_device *d, selector s, metal_function *f, object **error) {
    HOLD;
    (void)d;
    (void)s;
    if (!metal_is(f, &function_class, "newComputePipelineStateWithFunction:")) return NULL;
    if (engine_workgroup_bytes(f->code) > GROUP_MEMORY) {
        if (error) *error = metal_autorelease(metal_error(3, "the kernel takes more threadgroup memory than there is"));
        return NULL;
    }
    metal_function *p = metal_new(&metal_pipeline_class);
    if (!p) return NULL;
    metal_retain(f->library);
    p->library = f->library;
    p->kernel = f->kernel;
    p->code = f->code;
    return p;
}

/* What the compiler is told; without options, or with those that nobody set, fast mathematics. */
static const char *flags_of(const compile_options *o) {
    bool safe = o && (o->fast_off || (o->mode == 1 && o->functions == 1));
    return safe ? "" : "-ffast-math -ffp-contract=fast";
}

/* As C++; NULL, with words in *log, when it is not the language. The caller frees both. */
static void *compile(const char *text, const compile_options *o, const char *tail, size_t *size, char **log) {
    static const char include[] = "#include <metal_stdlib>";
    char *own = strdup(text), *shim = NULL;
    char *line = own ? strstr(own, include) : NULL;
    void *compiled = NULL;
    *log = NULL;
    if (line) memset(line, ' ', strlen(include));
    if (asprintf(&shim, "%s\n%s", double_shim, double_shim_metal) < 0) shim = NULL;
    if (!line)
        *log = strdup("error: no <metal_stdlib> is included, so that nothing of it is known");
    else if (!tail)
        *log = strdup("error: a kernel's parameters have attributes that are unknown, or none, or one twice");
    else if (shim)
        compiled = engine_compile(&(engine_source){shim, own, "program_source", tail, flags_of(o)}, size, log);
    free(own);
    free(shim);
    return compiled;
}

static object *new_library(metal_device *d, selector s, object *source, compile_options *o, object **error) {
    HOLD;
    (void)d;
    (void)s;
    const char *text = metal_text_of(source);
    char *log = NULL, why[300] = "no words";
    size_t size = 0;
    metal_library *l = NULL;
    metal_kernel *kernels = NULL;
    int count = 0;
    if (!text || (o && !metal_is(o, &metal_compile_options, "newLibraryWithSource:"))) return NULL;
    char *tail = write_tail(text, &kernels, &count);
    void *bytes = compile(text, o, tail, &size, &log);
    engine_module *module = bytes ? engine_load(bytes, size, why, sizeof why) : NULL;
    if (module) l = metal_new(&library_class);
    if (l) {
        l->module = module;
        l->kernels = kernels;
        l->count = count;
    } else {
        engine_unload(module);
        free(kernels);
        if (error) *error = metal_autorelease(metal_error(3, log && *log ? log : why));
    }
    free(tail);
    free(bytes);
    free(log);
    return (object *)l;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static object *device_name(metal_device *d, selector s) {
    (void)s;
    const char *asked = getenv("DOUBLE_NAME");
    return metal_autorelease(metal_text(asked ? asked : d->unified ? "Metal double" : "Metal double, discrete"));
}

static uint64_t device_working_set(metal_device *d, selector s) {
    (void)d;
    (void)s;
    return memory_limit();
}

static uint64_t device_allocated(metal_device *d, selector s) {
    (void)d;
    (void)s;
    return memory_taken();
}

static signed char device_unified(metal_device *d, selector s) {
    (void)s;
    return d->unified;
}

static uint64_t device_max_buffer(metal_device *d, selector s) {
    (void)d;
    (void)s;
    return memory_limit();
}

static uint64_t device_group_memory(metal_device *d, selector s) {
    (void)d;
    (void)s;
    return GROUP_MEMORY;
}

static object *device_queue(metal_device *d, selector s) {
    (void)s;
    return metal_new_queue(d);
}

static metal_event *device_event(metal_device *d, selector s) {
    (void)d;
    (void)s;
    return metal_new(&metal_event_class);
}

static const method device_methods[] = {
    METHOD("name", device_name, FAULT_NOTHING),
    METHOD("recommendedMaxWorkingSetSize", device_working_set, FAULT_NEVER),
    METHOD("currentAllocatedSize", device_allocated, FAULT_NEVER),
    METHOD("hasUnifiedMemory", device_unified, FAULT_NEVER),
    METHOD("maxBufferLength", device_max_buffer, FAULT_NEVER),
    METHOD("maxThreadgroupMemoryLength", device_group_memory, FAULT_NEVER),
    METHOD("newCommandQueue", device_queue, FAULT_NOTHING),
    METHOD("newBufferWithLength:options:", new_buffer, FAULT_NOTHING),
    METHOD("newBufferWithBytes:length:options:", new_buffer_of, FAULT_NOTHING),
    METHOD("newLibraryWithSource:options:error:", new_library, FAULT_ERROR),
    METHOD("newComputePipelineStateWithFunction:error:", new_pipeline, FAULT_ERROR),
    METHOD("newSharedEvent", device_event, FAULT_NOTHING),
    {NULL, NULL, FAULT_NEVER},
};
const metal_class metal_device_class = {"MTLDevice", device_methods, sizeof(metal_device), NULL};

/* Devices live as long as the process, as Apple's do; each is made anew for who asks, to count who has it. */
static metal_device *new_device(int index) {
    metal_device *d = metal_new(&metal_device_class);
    if (!d) return NULL;
    d->index = index;
    d->unified = getenv("DOUBLE_DISCRETE") == NULL;
    return d;
}

static int device_count(void) {
    const char *asked = getenv("DOUBLE_DEVICES");
    int count = asked ? atoi(asked) : 1;
    return count < 0 ? 0 : count > MOST_DEVICES ? MOST_DEVICES : count;
}

METAL_EXPORT object *MTLCreateSystemDefaultDevice(void);
object *MTLCreateSystemDefaultDevice(void) {
    HOLD;
    return device_count() ? (object *)new_device(0) : NULL;
}

METAL_EXPORT object *MTLCopyAllDevices(void);
object *MTLCopyAllDevices(void) {
    HOLD;
    object *devices[MOST_DEVICES];
    int count = device_count();
    for (int i = 0; i < count; i++)
        devices[i] = (object *)new_device(i);
    object *list = metal_list(devices, (size_t)count);
    for (int i = 0; i < count; i++)
        metal_release(devices[i]);
    return list;
}
