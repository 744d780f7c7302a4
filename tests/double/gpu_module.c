/* gpu_module.c — of the double of CUDA and ROCm: the run-time compiler, modules, functions and launches.
 *
 * The compiler's "CUBIN" (hiprtc's code) is a head that names the architecture, and the engine's object; its PTX is the
 * same as text. Where the vendor's compiler contracts products and sums unless it is told not to, this one does too. */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shim's text, taken in by the assembler. */
#define TEXT(symbol, file)                                                                                         \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" DOUBLE_FOLDER "/" file "\"\n.byte 0\n.popsection\n"); \
    extern const char symbol[] __attribute__((visibility("hidden")))
TEXT(double_shim, "shim.h");
TEXT(double_shim_gpu, "shim_gpu.h");

/* ---- the compiler ------------------------------------------------------------------------------------------------ */

enum { RTC_OK = 0, RTC_MEMORY = 1, RTC_INPUT = 3, RTC_PROGRAM = 4, RTC_OPTION = 5, RTC_COMPILATION = 6 };

struct gpu_program {
    char *text, *name, *log, *image, *assembly; /* the last: PTX */
    size_t image_size;
    char arch[32];
    bool contracts;
};
typedef gpu_program program;

typedef struct image_head {
    char magic[8];
    char arch[24];
    uint64_t size; /* of the object behind it */
} image_head;
static const char MAGIC[8] = API("TNCUBIN", "TNHIPCO");
static const char ASSEMBLY[] = "// PTX of the CUDA double, ";

int API(nvrtcVersion, hiprtcVersion)(int *major, int *minor) {
    ENTER(NEEDS_NOTHING);
    *major = API(13, 6);
    *minor = 0;
    return RTC_OK;
}

const char *API(nvrtcGetErrorString, hiprtcGetErrorString)(int error) {
    static const char *const names[] = {"SUCCESS",
                                        "ERROR_OUT_OF_MEMORY",
                                        "ERROR_PROGRAM_CREATION_FAILURE",
                                        "ERROR_INVALID_INPUT",
                                        "ERROR_INVALID_PROGRAM",
                                        "ERROR_INVALID_OPTION",
                                        "ERROR_COMPILATION"};
    return error >= 0 && error < (int)(sizeof names / sizeof *names) ? names[error] : "unknown error";
}

#ifndef DOUBLE_HIP
static const int ARCHS[] = {75, 80, 86, 89, 90, 100, 120};
enum { ARCH_COUNT = sizeof ARCHS / sizeof *ARCHS };

int nvrtcGetNumSupportedArchs(int *count) {
    ENTER(NEEDS_NOTHING);
    *count = ARCH_COUNT;
    return RTC_OK;
}

int nvrtcGetSupportedArchs(int *archs) {
    ENTER(NEEDS_NOTHING);
    memcpy(archs, ARCHS, sizeof ARCHS);
    return RTC_OK;
}
#endif

static void free_program(program *p) {
    free(p->text);
    free(p->name);
    free(p->log);
    free(p->image);
    free(p->assembly);
    free(p);
}

int API(nvrtcCreateProgram, hiprtcCreateProgram)(program **out, const char *text, const char *name, int headers,
                                                 const char *const *header_texts, const char *const *header_names) {
    ENTER(NEEDS_NOTHING);
    (void)header_texts;
    (void)header_names;
    if (!text || headers) return gpu_misuse(&call, RTC_INPUT, "no text, or headers, which the double does not know");
    program *p = calloc(1, sizeof *p);
    if (!p) return RTC_MEMORY;
    p->text = strdup(text);
    p->name = strdup(name ? name : "default_program");
    if (!p->text || !p->name) {
        free_program(p);
        return RTC_MEMORY;
    }
    *out = p;
    return RTC_OK;
}

int API(nvrtcDestroyProgram, hiprtcDestroyProgram)(program **p) {
    ENTER(GIVES_BACK);
    if (!p || !*p) return gpu_misuse(&call, RTC_PROGRAM, "no program");
    free_program(*p);
    *p = NULL;
    return RTC_OK;
}

static bool begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

/* What an option says to this compiler. False: there is no such option. */
static bool take_option(program *p, const char *o) {
    static const char *const archs[] = {"--gpu-architecture=", "-arch=", "--offload-arch="};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (begins(o, archs[i])) {
            snprintf(p->arch, sizeof p->arch, "%.*s", (int)strcspn(o + strlen(archs[i]), ":"), o + strlen(archs[i]));
            return true;
        }
#ifdef DOUBLE_HIP
    if (begins(o, "-ffp-contract=")) p->contracts = strcmp(o, "-ffp-contract=off") != 0;
    return o[0] == '-';
#else
    static const char *const known[] = {"--std=",
                                        "-std=",
                                        "--ftz=false",
                                        "-ftz=false",
                                        "--prec-div=true",
                                        "-prec-div=true",
                                        "--prec-sqrt=true",
                                        "-prec-sqrt=true",
                                        "--restrict",
                                        "-restrict",
                                        "-w",
                                        "--disable-warnings",
                                        "-D",
                                        "--define-macro=",
                                        "--maxrregcount=",
                                        "--ptxas-options=",
                                        "--device-as-default-execution-space",
                                        "-default-device",
                                        "--minimal",
                                        "--no-cache",
                                        "--no-source-include",
                                        "--dopt="};
    if (begins(o, "--fmad=") || begins(o, "-fmad=")) {
        p->contracts = strcmp(strchr(o, '=') + 1, "false") != 0;
        return true;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (begins(o, known[i])) return true;
    return false;
#endif
}

static bool keep_image(program *p, const void *object, size_t size) {
    image_head h = {.size = size};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    snprintf(h.arch, sizeof h.arch, "%.*s", (int)sizeof h.arch - 1, p->arch);
    p->image_size = sizeof h + size;
    p->image = malloc(p->image_size);
    if (!p->image) return false;
    memcpy(p->image, &h, sizeof h);
    memcpy(p->image + sizeof h, object, size);
    return true;
}

int API(nvrtcCompileProgram, hiprtcCompileProgram)(program *p, int count, const char *const *options) {
    ENTER(NEEDS_NOTHING);
    p->contracts = true;
    snprintf(p->arch, sizeof p->arch, "%s", API("compute_75", gpu_arch));
    for (int i = 0; i < count; i++) {
        if (take_option(p, options[i])) continue;
        if (asprintf(&p->log, "error: unknown option %s\n", options[i]) < 0) p->log = NULL;
        return RTC_OPTION;
    }
    char *tail = engine_tail(p->text, "__global__", "__launch_bounds__"), *shim = NULL, *log = NULL;
    if (asprintf(&shim, "%s\n%s", double_shim, double_shim_gpu) < 0) shim = NULL;
    size_t size = 0;
    engine_source s = {shim, p->text, p->name, tail,
                       p->contracts ? "-ffp-contract=fast -fexpensive-optimizations" : ""};
    void *object = shim && tail ? engine_compile(&s, &size, &log) : NULL;
    bool kept = object && keep_image(p, object, size);
    free(object);
    free(shim);
    free(tail);
    free(p->log);
    p->log = log;
    return kept ? RTC_OK : log ? RTC_COMPILATION : RTC_MEMORY;
}

static const char *log_of(const program *p) { return p->log ? p->log : ""; }

int API(nvrtcGetProgramLogSize, hiprtcGetProgramLogSize)(program *p, size_t *size) {
    ENTER(NEEDS_NOTHING);
    *size = strlen(log_of(p)) + 1;
    return RTC_OK;
}

int API(nvrtcGetProgramLog, hiprtcGetProgramLog)(program *p, char *log) {
    ENTER(NEEDS_NOTHING);
    strcpy(log, log_of(p));
    return RTC_OK;
}

/* There is machine code only for an architecture that is one: sm_90, not compute_90. */
static bool has_code(const program *p) { return p->image && API(begins(p->arch, "sm_"), true); }

int API(nvrtcGetCUBINSize, hiprtcGetCodeSize)(program *p, size_t *size) {
    ENTER(NEEDS_NOTHING);
    if (!p->image) return gpu_misuse(&call, RTC_PROGRAM, "of a program that was not compiled");
    *size = has_code(p) ? p->image_size : 0;
    return RTC_OK;
}

int API(nvrtcGetCUBIN, hiprtcGetCode)(program *p, char *out) {
    ENTER(NEEDS_NOTHING);
    if (!has_code(p)) return gpu_misuse(&call, RTC_PROGRAM, "there is no code");
    memcpy(out, p->image, p->image_size);
    return RTC_OK;
}

#ifndef DOUBLE_HIP
/* "// PTX of the CUDA double, SIZE\n" and the image in hexadecimal digits, for it is text. */
static bool make_assembly(program *p) {
    if (p->assembly || !p->image) return p->assembly != NULL;
    size_t size = 0;
    FILE *f = open_memstream(&p->assembly, &size);
    if (!f) return false;
    fprintf(f, "%s%zu\n", ASSEMBLY, p->image_size);
    for (size_t i = 0; i < p->image_size; i++)
        fprintf(f, "%02x", (unsigned char)p->image[i]);
    return !fclose(f);
}

int nvrtcGetPTXSize(program *p, size_t *size) {
    ENTER(NEEDS_NOTHING);
    if (!make_assembly(p)) return gpu_misuse(&call, RTC_PROGRAM, "of a program that was not compiled");
    *size = strlen(p->assembly) + 1;
    return RTC_OK;
}

int nvrtcGetPTX(program *p, char *out) {
    ENTER(NEEDS_NOTHING);
    if (!make_assembly(p)) return gpu_misuse(&call, RTC_PROGRAM, "of a program that was not compiled");
    strcpy(out, p->assembly);
    return RTC_OK;
}
#endif

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct gpu_function {
    struct gpu_function *next;
    gpu_module *module;
    const engine_kernel *kernel;
    uint32_t most_dynamic; /* more than every launch may have */
} gpu_function;

struct gpu_module {
    gpu_object object;
    engine_module *engine;
    gpu_function *functions;
};

void gpu_free_module(gpu_module *m) {
    while (m->functions) {
        gpu_function *next = m->functions->next;
        free(m->functions);
        m->functions = next;
    }
    engine_unload(m->engine);
    free(m);
}

/* The image that a text of make_assembly holds; the caller frees it. */
static char *image_of_assembly(const char *text) {
    unsigned byte;
    size_t size = strtoull(text + strlen(ASSEMBLY), NULL, 10);
    const char *at = strchr(text, '\n');
    if (!at || strlen(at + 1) != 2 * size) return NULL;
    char *image = malloc(size);
    for (size_t i = 0; image && i < size; i++)
        image[i] = (char)(sscanf(at + 1 + 2 * i, "%2x", &byte) == 1 ? byte : 0);
    return image;
}

/* PTX is for the architecture that it names and all later ones; code for sm_90a, say, for sm_90 alone. */
static bool fits_device(const char *arch) {
    size_t n = strlen(gpu_arch);
    if (!strncmp(arch, gpu_arch, n) && (!arch[n] || API(!strcmp(arch + n, "a"), false))) return true;
    return API(begins(arch, "compute_") && atoi(arch + 8) <= atoi(gpu_arch + 3), false);
}

static int load(const gpu_call *call, void **out, const char *image) {
    image_head h;
    char why[400];
    memcpy(&h, image, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC)) return E_IMAGE;
    if (!fits_device(h.arch)) return E_NO_BINARY;
    gpu_module *m = gpu_object_new(call->context, OBJECT_MODULE, sizeof *m);
    if (!m) return E_MEMORY;
    m->engine = engine_load(image + sizeof h, h.size, why, sizeof why);
    if (!m->engine) {
        fprintf(stderr, "double: %s: %s\n", call->name, why);
        gpu_object_remove(&m->object);
        gpu_free_module(m);
        return E_IMAGE;
    }
    *out = m;
    return E_OK;
}

int API(cuModuleLoadData, hipModuleLoadData)(void **module, const void *image) {
    ENTER(NEEDS_CONTEXT);
    if (!image) return gpu_misuse(&call, E_VALUE, "no image");
    if (!begins(image, ASSEMBLY)) return load(&call, module, image);
    char *made = image_of_assembly(image);
    int error = made ? load(&call, module, made) : E_IMAGE;
    free(made);
    return error;
}

/* Nobody promises that it waits for work that runs the module's kernels. */
int API(cuModuleUnload, hipModuleUnload)(void *module) {
    ENTER(NEEDS_CONTEXT | GIVES_BACK);
    int error = gpu_check(&call, module, OBJECT_MODULE);
    if (error) return error;
    if (gpu_is_used(call.context, ((gpu_module *)module)->engine) && !call.context->error)
        gpu_misuse(&call, E_OK, "a kernel of the module was given to a stream, and nobody has waited for it");
    error = gpu_finish(call.context);
    gpu_object_remove(module);
    gpu_free_module(module);
    return error;
}

int API(cuModuleGetFunction, hipModuleGetFunction)(void **function, void *module, const char *name) {
    ENTER(NEEDS_CONTEXT);
    int error = gpu_check(&call, module, OBJECT_MODULE);
    if (error) return error;
    gpu_module *m = module;
    const engine_kernel *k = engine_find_kernel(m->engine, name);
    if (!k) return E_NOT_FOUND;
    gpu_function *f = calloc(1, sizeof *f);
    if (!f) return E_MEMORY;
    *f = (gpu_function){m->functions, m, k, 0};
    m->functions = f;
    *function = f;
    return E_OK;
}

/* Whether a handle is a function of a module that is loaded in the current context. */
static int check_function(const gpu_call *call, const void *handle) {
    for (gpu_object *o = call->context->objects; o; o = o->next) {
        if (o->kind != OBJECT_MODULE) continue;
        for (gpu_function *f = ((gpu_module *)o)->functions; f; f = f->next)
            if (f == handle) return E_OK;
    }
    return gpu_misuse(call, E_HANDLE, "%p is no function of a module that is loaded here", handle);
}

int API(cuFuncGetAttribute, hipFuncGetAttribute)(int *value, int attribute, void *function) {
    enum { MOST_ITEMS = 0, WORKGROUP_BYTES = 1, PRIVATE_BYTES = 3, REGISTERS = 4 };
    ENTER(NEEDS_CONTEXT);
    int error = check_function(&call, function);
    if (error) return error;
    const gpu_function *f = function;
    switch (attribute) {
    case MOST_ITEMS: *value = ENGINE_MOST_ITEMS; return E_OK;
    case WORKGROUP_BYTES: *value = (int)engine_workgroup_bytes(f->kernel); return E_OK;
    case PRIVATE_BYTES: *value = 0; return E_OK;
    case REGISTERS: *value = 32; return E_OK;
    default: return E_VALUE;
    }
}

#ifndef DOUBLE_HIP
int cuFuncSetAttribute(void *function, int attribute, int value) {
    enum { MOST_DYNAMIC_BYTES = 8, OPT_IN = 227 << 10 };
    ENTER(NEEDS_CONTEXT);
    int error = check_function(&call, function);
    if (error) return error;
    gpu_function *f = function;
    size_t declared = engine_workgroup_bytes(f->kernel);
    if (attribute != MOST_DYNAMIC_BYTES || value < 0 || (size_t)value + declared > OPT_IN)
        return gpu_misuse(&call, E_VALUE, "%s: attribute %d becomes %d; it declares %zu bytes of workgroup memory",
                          engine_kernel_name(f->kernel), attribute, value, declared);
    f->most_dynamic = (uint32_t)value;
    return E_OK;
}
#endif

/* ---- launches ---------------------------------------------------------------------------------------------------- */

enum { MOST_PARAMETER_BYTES = 4096, MOST_GROUPS_YZ = 65535, MOST_ITEMS_Z = 64, MOST_DYNAMIC = 48 << 10 };

static int check_shape(const gpu_call *call, const gpu_launch *l, uint32_t most_dynamic) {
    const uint32_t *g = l->groups, *i = l->items;
    uint64_t items = (uint64_t)i[0] * i[1] * i[2];
    const char *name = engine_kernel_name(l->kernel);
    if (!g[0] || !g[1] || !g[2] || g[0] > INT32_MAX || g[1] > MOST_GROUPS_YZ || g[2] > MOST_GROUPS_YZ)
        return gpu_misuse(call, E_VALUE, "%s: %u x %u x %u workgroups", name, g[0], g[1], g[2]);
    if (!items || i[0] > ENGINE_MOST_ITEMS || i[1] > ENGINE_MOST_ITEMS || i[2] > MOST_ITEMS_Z ||
        items > ENGINE_MOST_ITEMS)
        return gpu_misuse(call, E_VALUE, "%s: %u x %u x %u items", name, i[0], i[1], i[2]);
    if (l->dynamic_bytes > (most_dynamic > MOST_DYNAMIC ? most_dynamic : MOST_DYNAMIC))
        return gpu_misuse(call, E_VALUE, "%s: %u bytes of dynamic workgroup memory", name, l->dynamic_bytes);
    return E_OK;
}

/* The values behind `values`, in one block with their addresses. */
static int copy_parameters(const gpu_call *call, gpu_launch *l, void **values) {
    int n = engine_parameters(l->kernel);
    size_t bytes = 0, taken = 0, at = (size_t)n * sizeof(void *);
    for (int i = 0; i < n; i++) {
        size_t size = engine_parameter_size(l->kernel, i);
        bytes += (size + 15) / 16 * 16;
        taken += (size + 7) / 8 * 8; /* as the device lays them out: none is aligned further */
    }
    if (taken > MOST_PARAMETER_BYTES)
        return gpu_misuse(call, E_VALUE, "%s: %zu bytes of parameters", engine_kernel_name(l->kernel), taken);
    if (n && !values) return gpu_misuse(call, E_VALUE, "%s: no parameters", engine_kernel_name(l->kernel));
    at = (at + 15) / 16 * 16;
    l->args = malloc(at + bytes + 1);
    if (!l->args) return E_MEMORY;
    for (int i = 0; i < n; i++) {
        size_t size = engine_parameter_size(l->kernel, i);
        l->args[i] = (char *)l->args + at;
        memcpy(l->args[i], values[i], size);
        at += (size + 15) / 16 * 16;
    }
    return E_OK;
}

int gpu_make_launch(const gpu_call *call, const gpu_node_params *from, gpu_launch *out) {
    int error = check_function(call, from->function);
    if (error) return error;
    if (from->extra) return gpu_misuse(call, E_VALUE, "parameters in `extra`, which the double does not know");
    *out = (gpu_launch){.kernel = ((gpu_function *)from->function)->kernel, .dynamic_bytes = from->dynamic};
    memcpy(out->groups, from->groups, sizeof out->groups);
    memcpy(out->items, from->items, sizeof out->items);
    error = check_shape(call, out, ((gpu_function *)from->function)->most_dynamic);
    return error ? error : copy_parameters(call, out, from->values);
}

int API(cuLaunchKernel, hipModuleLaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned ix,
                                               unsigned iy, unsigned iz, unsigned dynamic, void *stream, void **values,
                                               void **extra) {
    ENTER(NEEDS_CONTEXT);
    const gpu_node_params p = {.function = function,
                               .groups = {gx, gy, gz},
                               .items = {ix, iy, iz},
                               .dynamic = dynamic,
                               .values = values,
                               .extra = extra};
    gpu_launch l;
    int error = gpu_make_launch(&call, &p, &l);
    return error ? error : gpu_queue_launch(&call, stream, &l);
}
