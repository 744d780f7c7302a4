/* driver.c — a backend outside of Trunnion: one file, linked with nothing, and every operation runs on it.
 *
 * Its "device" is this machine, and its compiler is the system's `cc`: a kernel arrives as C text, is compiled into a
 * shared object and called. So it shows each thing that a driver does in its simplest form, and works. To write your
 * own, let `python3 tools/new_backend.py NAME` copy it, and replace one function after the other by calls of your
 * machine; run the conformance suite after each (docs/new-backend.md).
 *
 *     cc -std=c17 -O2 -shared -fPIC -I include -o libcc_driver.so examples/backend/driver.c
 *     TRUNNION_DRIVERS=$PWD/libcc_driver.so trunnion train digits --device cc --strict */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trunnion/backend.h"

extern char **environ;

enum { PATH_BYTES = 512, LOG_BYTES = 400, ALIGNMENT = 64 };

static const tn_backend_host *host; /* what the library lends: how to report an error */

/* ---- finding devices --------------------------------------------------------------------------------------------- */

/* Where the compiler is: CC in the environment, else `cc` on the path. */
static const char *compiler(void) {
    const char *named = getenv("CC");
    return named && named[0] ? named : "cc";
}

/* Fill out->devices and out->count; or, when there is nothing, reason_code, reason and fix. */
static void probe(tn_probe *out) {
    if (out->capacity < 1) return;
    tn_device_info *d = &out->devices[0];
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    snprintf(d->name, sizeof d->name, "this machine, by way of %s", compiler());
    d->total_memory = d->free_memory = (int64_t)pages * page;
    d->software = true; /* `auto` takes it only when there is nothing else */
    out->count = 1;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* What calls need: here a folder for the files of the compiler. */
typedef struct device {
    char folder[PATH_BYTES];
    int64_t next_file;
} device;

static tn_status open_device(int index, const tn_device_options *options, void **out) {
    (void)options;
    if (index != 0) return host->fail(TN_ERR_ARGUMENT, "cc:%d does not exist, there is cc:0", index);
    device *d = calloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    const char *base = getenv("TMPDIR");
    snprintf(d->folder, sizeof d->folder, "%s/trunnion-cc-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(d->folder)) {
        tn_status s = host->fail(TN_ERR_IO, "cc:0: no folder %s can be made; set TMPDIR", d->folder);
        free(d);
        return s;
    }
    *out = d;
    return TN_OK;
}

static void close_device(void *self) {
    device *d = self;
    rmdir(d->folder); /* empty: each file goes when it was loaded */
    free(d);
}

static tn_status caps(void *self, tn_caps *out) {
    (void)self;
    *out = (tn_caps){
        .struct_size = sizeof *out,
        .code = TN_CODE_C,
        .f64 = true,
        .i64 = true,
        .max_buffer = INT64_MAX,
        .max_group = 1,
        .alignment = ALIGNMENT,
        .host_visible = false, /* it could be; so it is used as a machine with memory of its own would be */
        .exact = true,
    };
    snprintf(out->version, sizeof out->version, "%s", compiler());
    return TN_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static tn_status allocate(void *self, size_t bytes, void **address) {
    (void)self;
    *address = bytes <= SIZE_MAX - ALIGNMENT ? aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT) : NULL;
    return *address ? TN_OK : host->fail(TN_ERR_MEMORY, "cc:0: no %zu bytes", bytes);
}

static void release(void *self, void *address) {
    (void)self;
    free(address);
}

/* kind: 0 there, 1 back, 2 within. All of them are the same here. */
static tn_status copy(void *self, void *dst, const void *src, size_t bytes, int kind) {
    (void)self;
    (void)kind;
    memmove(dst, src, bytes);
    return TN_OK;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

/* Computes workgroups first … last-1. */
typedef void kernel_function(const void *params, void *const *buffers, uint64_t first, uint64_t last);

typedef struct module {
    void *library;
    kernel_function *run;
    void *object; /* the bytes of the shared object, for the disk cache */
    size_t object_size;
} module;

static bool write_file(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool good = fwrite(data, 1, size, f) == size;
    return fclose(f) == 0 && good;
}

/* The whole file in a new block; NULL when that fails. */
static void *read_file(const char *path, size_t *size) {
    struct stat s;
    FILE *f = fopen(path, "rb");
    void *data = f && fstat(fileno(f), &s) == 0 ? malloc((size_t)s.st_size + 1) : NULL;
    if (data && fread(data, 1, (size_t)s.st_size, f) != (size_t)s.st_size) {
        free(data);
        data = NULL;
    }
    if (data) *size = (size_t)s.st_size;
    if (f) fclose(f);
    return data;
}

/* Runs the compiler, its words into the file `log`. Contraction is off: a·b + c rounds twice unless it says fma. */
static bool run_compiler(char *source, char *object, const char *log) {
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "%s", compiler());
    char *const arguments[] = {name,   "-std=c11", "-O1",  "-w",  "-shared", "-fPIC", "-ffp-contract=off",
                               source, "-o",       object, "-lm", NULL};
    posix_spawn_file_actions_t files;
    pid_t child;
    int status = -1;
    if (posix_spawn_file_actions_init(&files) != 0) return false;
    bool started = posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600) == 0 &&
                   posix_spawnp(&child, arguments[0], &files, NULL, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    return started && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static tn_status compile(const tn_code *code, char *source, char *object, const char *log) {
    if (!write_file(source, code->data, code->size)) return host->fail(TN_ERR_IO, "cc:0: cannot write %s", source);
    bool good = run_compiler(source, object, log);
    size_t size = 0;
    char *words = good ? NULL : read_file(log, &size);
    unlink(source);
    unlink(log);
    if (good) return TN_OK;
    bool silent = !words || !size; /* UNSUPPORTED: this kernel is computed elsewhere, the device stays in use */
    tn_status s = host->fail(TN_ERR_UNSUPPORTED, "cc:0: %s does not compile %s: %.*s", compiler(), code->entry,
                             silent ? LOG_BYTES : (int)(size < LOG_BYTES ? size : LOG_BYTES),
                             silent ? "it says nothing; is it there? (CC names another)" : words);
    free(words);
    return s;
}

static void unload(void *self, void *loaded) {
    (void)self;
    module *m = loaded;
    if (m->library) dlclose(m->library);
    free(m->object);
    free(m);
}

static tn_status open_object(module *m, const char *object, const char *entry) {
    m->object = read_file(object, &m->object_size);
    m->library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    void *symbol = m->library ? dlsym(m->library, entry) : NULL;
    if (!m->object || !symbol) return host->fail(TN_ERR_DEVICE, "cc:0: %s does not load: %s", entry, dlerror());
    memcpy(&m->run, &symbol, sizeof m->run);
    return TN_OK;
}

/* Turns code into something that can be launched. code->binary is what `binary` gave for the same code before. */
static tn_status load(void *self, const tn_code *code, void **out) {
    device *d = self;
    char source[PATH_BYTES + 32], object[PATH_BYTES + 32], log[PATH_BYTES + 32];
    long long number = __atomic_fetch_add(&d->next_file, 1, __ATOMIC_RELAXED); /* several threads may load at once */
    snprintf(source, sizeof source, "%s/%lld.c", d->folder, number);
    snprintf(object, sizeof object, "%s/%lld.so", d->folder, number);
    snprintf(log, sizeof log, "%s/%lld.log", d->folder, number);
    module *m = calloc(1, sizeof *m);
    if (!m) return TN_ERR_MEMORY;
    tn_status s = TN_ERR_IO;
    if (code->binary && write_file(object, code->binary, code->binary_size)) s = open_object(m, object, code->entry);
    if (s != TN_OK) s = compile(code, source, object, log);
    if (s == TN_OK && !m->run) s = open_object(m, object, code->entry);
    unlink(object);
    if (s != TN_OK) {
        unload(self, m);
        return s;
    }
    *out = m;
    return TN_OK;
}

static tn_status binary(void *self, void *loaded, void **data, size_t *size) {
    (void)self;
    module *m = loaded;
    *data = m->object;
    *size = m->object_size;
    return TN_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A real machine puts these into its queue and returns; here they are done when it returns. */
static tn_status dispatch(void *self, void *loaded, const tn_dispatch *dispatches, int64_t count) {
    (void)self;
    const module *m = loaded;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t *g = dispatches[i].groups;
        m->run(dispatches[i].params, dispatches[i].buffers, 0, (uint64_t)g[0] * g[1] * g[2]);
    }
    return TN_OK;
}

static tn_status sync_device(void *self) {
    (void)self;
    return TN_OK;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

static const tn_driver driver = {
    .struct_size = sizeof(tn_driver),
    .abi = TN_BACKEND_ABI,
    .name = "cc",
    .title = "C compiler",
    .probe = probe,
    .open = open_device,
    .close = close_device,
    .caps = caps,
    .alloc = allocate,
    .free = release,
    .load = load,
    .unload = unload,
    .copy = copy,
    .sync = sync_device,
    .dispatch = dispatch,
    .binary = binary,
};

__attribute__((visibility("default"))) const tn_driver *trunnion_driver(const tn_backend_host *lent) {
    host = lent;
    if (lent->abi == TN_BACKEND_ABI) return &driver;
    lent->fail(TN_ERR_UNAVAILABLE, "cc: built for interface %d, this library has %d", TN_BACKEND_ABI, lent->abi);
    return NULL;
}
