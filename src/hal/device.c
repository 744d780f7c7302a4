/* device.c — devices: choosing and opening one; drivers from plugins; reason codes; fallbacks to the host.
 *
 * A backend is one row of tn_backend_rows (drivers/drivers.c). Choosing walks the rows in order of preference and
 * records a reason for each backend or device that it rejects, which answers "why not my GPU?". Backends that are used
 * only by name are rejected without a probe. The devices of the others are read from the record on disk, so opening the
 * default device waits for a driver only once. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hal/discovery.h"
#include "hal/hal.h"
#include "hal/queue.h"

/* device.c: adds what TRUNNION_DRIVERS names, once. The caller holds the registry's lock. */
static void plugins_add(void);

/* ---- the table --------------------------------------------------------------------------------------------------- */

static tn_backend table[TN_MOST_BACKENDS];
static int table_count;

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER; /* the table, the findings, the open devices */

static _Thread_local int registry_depth; /* drivers are asked under the lock, and may ask back */

void tn_registry_lock(void) {
    if (registry_depth++ == 0) pthread_mutex_lock(&registry);
}

void tn_registry_unlock(void) {
    if (--registry_depth == 0) pthread_mutex_unlock(&registry);
}

static tn_backend *backend_named(const char *name, size_t length) {
    for (int i = 0; i < table_count; i++)
        if (strlen(table[i].name) == length && !memcmp(table[i].name, name, length)) return &table[i];
    return NULL;
}

/* Whether the driver was built when `dispatch` was there, and has it. */
static bool has_dispatch(const tn_driver *d) {
    return d->struct_size >= offsetof(tn_driver, dispatch) + sizeof d->dispatch && d->dispatch;
}

/* The first mandatory function that a driver lacks, or NULL. */
static const char *missing_function(const tn_driver *d) {
    const struct {
        const char *name;
        bool there;
    } need[] = {
        {"probe", d->probe}, {"open", d->open},     {"close", d->close},
        {"caps", d->caps},   {"alloc", d->alloc},   {"free", d->free},
        {"load", d->load},   {"unload", d->unload}, {"launch or dispatch", d->launch || has_dispatch(d)},
        {"copy", d->copy},   {"sync", d->sync},
    };
    for (size_t i = 0; i < TN_COUNT(need); i++)
        if (!need[i].there) return need[i].name;
    return NULL;
}

static tn_status driver_check(const tn_driver *d) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    if (!d || !d->name || !d->name[0] || strlen(d->name) > 20 || !d->title)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_backend_register: a driver must have a title, and a name of at most 20 characters");
    if (d->name[strspn(d->name, letters)])
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_backend_register: the name \"%s\" must consist of lower-case letters, digits, _ and -",
                       d->name);
    if (d->abi != TN_BACKEND_ABI || d->struct_size > sizeof *d)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "tn_backend_register: driver %s was built for interface %d, but this library has %d; rebuild the driver",
            d->name, d->abi, TN_BACKEND_ABI);
    if (d->struct_size < offsetof(tn_driver, memory))
        return tn_fail(TN_ERR_ARGUMENT, "tn_backend_register: driver %s: struct_size is not set", d->name);
    const char *missing = missing_function(d);
    if (missing) return tn_fail(TN_ERR_ARGUMENT, "tn_backend_register: driver %s has no %s function", d->name, missing);
    return TN_OK;
}

/* The driver with all fields of this version. A shorter one is copied once, into room in the table; missing fields are
 * NULL. */
static const tn_driver *whole_driver(const tn_driver *d) {
    static tn_driver copies[TN_MOST_BACKENDS];
    static int copied;
    if (d->struct_size == sizeof *d) return d;
    tn_driver *copy = &copies[copied++];
    memcpy(copy, d, d->struct_size);
    copy->struct_size = sizeof *copy;
    return copy;
}

static tn_status check_room(const char *name) {
    if (backend_named(name, strlen(name)))
        return tn_fail(TN_ERR_ARGUMENT, "tn_backend_register: a backend named %s exists already", name);
    if (table_count == TN_MOST_BACKENDS)
        return tn_fail(TN_ERR_ARGUMENT, "tn_backend_register: %s: the limit of %d backends is reached", name,
                       TN_MOST_BACKENDS);
    return TN_OK;
}

/* A new backend is inserted before the CPU, because a registered driver is meant to be used. */
static tn_status table_insert(const tn_backend *b) {
    TRY(check_room(b->name));
    int at = table_count++;
    for (; at > 0 && !table[at].is_cpu; at--)
        table[at] = table[at - 1];
    table[at] = *b;
    return TN_OK;
}

/* Adds a driver, or a line for a file that holds none. The caller holds the registry's lock. */
static tn_status tn_backend_insert(const tn_driver *d) {
    TRY(driver_check(d));
    TRY(check_room(d->name));
    return table_insert(&(tn_backend){.name = d->name, .title = d->title, .driver = whole_driver(d)});
}

static tn_status tn_backend_insert_refused(const tn_refusal *r) {
    return table_insert(&(tn_backend){.name = r->name, .title = r->path, .refused = r});
}

static bool is_wanted(const tn_backend_row *row) {
    const char *value = row->wanted_by ? tn_env(row->wanted_by) : "1";
    return value && !strcmp(value, "1");
}

/* The library's own drivers, then those in files that the environment names. */
static void fill_table(void) {
    static bool done;
    if (done) return;
    done = true;
    for (const tn_backend_row *row = tn_backend_rows; row->name && table_count < TN_MOST_BACKENDS; row++)
        if (is_wanted(row))
            table[table_count++] = (tn_backend){.name = row->name,
                                                .title = row->title,
                                                .driver = row->driver,
                                                .is_cpu = row->is_cpu,
                                                .is_engine = row->is_engine};
    plugins_add();
}

tn_backend *tn_backends(int *count) {
    fill_table();
    *count = table_count;
    return table;
}

tn_status tn_backend_register(const tn_driver *driver) {
    if (registry_depth > 0) /* the table is being traversed */
        return tn_fail(TN_ERR_STATE,
                       "tn_backend_register: called by a driver while drivers are being loaded or probed");
    tn_registry_lock();
    fill_table();
    tn_status s = tn_backend_insert(driver);
    tn_registry_unlock();
    return s;
}

const tn_driver *tn_backend_driver(const char *name) {
    tn_registry_lock();
    int count;
    (void)tn_backends(&count);
    const tn_backend *b = name ? backend_named(name, strlen(name)) : NULL;
    tn_registry_unlock();
    return b ? b->driver : NULL;
}

tn_status tn_backend_open(const char *path, FILE **out) {
    TRY(tn_need(out, "tn_backend_open: out"));
    *out = NULL;
    TRY(tn_need(path, "tn_backend_open: the path"));
    return tn_file_open(path, out);
}

tn_status tn_backend_fail(tn_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    code = tn_fail_args(code, format ? format : "failed", args);
    va_end(args);
    return tn_never_ok(code);
}

/* ---- open devices ------------------------------------------------------------------------------------------------ */

static tn_device *open_devices; /* guarded by the registry's lock */

void tn_device_end(tn_device *d) {
    tn_device_order_end(d);
    tn_command_lists_close(d);
    tn_vendors_close(d);
    if (d->kernels) tn_kernels_close(d);
    tn_pool_free(d);
    tn_dry_end(d);
    if (d->handle) d->driver->close(d->handle);
    tn_watchdog_end(d);
    tn_mem_free_each(d->host_rows, (void *)(uintptr_t)d->settings.library, (void *)(uintptr_t)d->settings.tuning_file,
                     d);
}

enum { MATRIX_NONE = 1, MATRIX_HALF, MATRIX_ALL }; /* tn_device_options.matrix */

static tn_status device_start(tn_device *d, const tn_device_options *o) {
    TRY(d->driver->open(d->info.index, o, &d->handle));
    TRY(tn_watchdog_begin(d));
    d->caps.struct_size = sizeof d->caps;
    TRY(d->driver->caps(d->handle, &d->caps));
    bool rendered = d->caps.code != TN_CODE_KIR;
    if (rendered ? !d->driver->dispatch : !d->driver->launch)
        return tn_fail(TN_ERR_UNSUPPORTED, "%s: its driver lacks the function %s, which its code kind requires",
                       d->info.id, rendered ? "dispatch" : "launch");
    static const char *const matrices[] = {"0", "1", "tf32", NULL}; /* MATRIX_NONE … */
    int said = tn_env_word("TRUNNION_MATRIX", matrices) + MATRIX_NONE;
    int matrix = o->matrix ? o->matrix : said ? said : MATRIX_HALF;
    if (matrix == MATRIX_NONE) d->caps.matrix = 0;
    if (matrix != MATRIX_ALL) d->caps.matrix &= ~(uint32_t)TN_MATRIX_TF32;
    d->no_graphs = o->graphs ? o->graphs == 1 : !tn_env_switch("TRUNNION_GRAPHS", true);
    d->says_exact = d->caps.exact;
    if (o->dry_run) TRY(tn_dry_begin(d));
    if (tn_certify_list_has(d, "exact", NULL, 0)) d->caps.exact = false;
    TRY(tn_kernels_open(d));
    TRY(tn_device_take_libraries(d, o->library));
    return tn_pool_open(d, o);
}

/* The caller's texts may go after the open. */
static tn_status keep_texts(tn_device *d, const tn_device_options *o) {
    d->settings.library = o->library ? tn_mem_strdup(o->library) : NULL;
    d->settings.tuning_file = o->tuning_file ? tn_mem_strdup(o->tuning_file) : NULL;
    bool lost = (o->library && !d->settings.library) || (o->tuning_file && !d->settings.tuning_file);
    return lost ? TN_ERR_MEMORY : TN_OK;
}

static void add_ignored(char *text, size_t size, const char *name, int64_t asked, int64_t is) {
    size_t n = strlen(text);
    if (asked && asked != is)
        snprintf(text + n, size - n, "%s%s %lld (it has %lld)", n ? ", " : "", name, (long long)asked, (long long)is);
}

static void add_ignored_text(char *text, size_t size, const char *name, const char *asked, const char *is) {
    size_t n = strlen(text);
    if (asked && (!is || strcmp(asked, is) != 0))
        snprintf(text + n, size - n, "%s%s \"%.60s\" (it has %.60s)", n ? ", " : "", name, asked, is ? is : "none");
}

/* The device is open: what this open asks for and the first one did not has no effect. */
static void say_ignored(const tn_device *d, const tn_device_options *o) {
    const tn_device_options *is = &d->settings;
    char text[640] = "";
    add_ignored(text, sizeof text, "simd", o->simd, is->simd);
    add_ignored(text, sizeof text, "pool_initial", (int64_t)o->pool_initial, (int64_t)is->pool_initial);
    add_ignored(text, sizeof text, "pool_max", (int64_t)o->pool_max, (int64_t)is->pool_max);
    add_ignored(text, sizeof text, "pool_growth", (int64_t)o->pool_growth, (int64_t)is->pool_growth);
    add_ignored_text(text, sizeof text, "library", o->library, is->library);
    add_ignored(text, sizeof text, "matrix", o->matrix, is->matrix);
    add_ignored(text, sizeof text, "numerics", o->numerics, is->numerics);
    add_ignored(text, sizeof text, "graphs", o->graphs, is->graphs);
    add_ignored(text, sizeof text, "vendor", o->vendor, is->vendor);
    add_ignored(text, sizeof text, "tuning", o->tuning, is->tuning);
    add_ignored(text, sizeof text, "time_limit", (int64_t)o->time_limit, (int64_t)is->time_limit);
    add_ignored_text(text, sizeof text, "tuning_file", o->tuning_file, is->tuning_file);
    add_ignored(text, sizeof text, "streams", o->streams, is->streams);
    if (text[0])
        tn_log_line(TN_LOG_NOTICE, "%s is open already, so these settings have no effect: %s; close it first",
                    d->info.id, text);
}

/* A device from the list of open ones, or newly opened and added. */
static tn_status device_get(const tn_backend *b, const tn_device_info *info, const tn_device_options *o,
                            tn_device **out) {
    for (tn_device *d = open_devices; d; d = d->next) {
        if (strcmp(d->info.id, info->id) != 0 || d->settings.dry_run != o->dry_run) continue;
        d->opens++;
        say_ignored(d, o);
        *out = d;
        return TN_OK;
    }
    tn_device *d = tn_mem_zalloc(1, sizeof *d);
    if (!d) return TN_ERR_MEMORY;
    d->driver = b->driver;
    d->info = *info;
    d->is_cpu = b->is_cpu || b->is_engine;
    d->is_engine = b->is_engine;
    d->fallback = o->fallback;
    d->settings = *o;
    static uint64_t serial; /* guarded by the registry's lock */
    d->serial = ++serial;
    d->opens = 1;
    tn_status s = keep_texts(d, o);
    if (s == TN_OK) s = device_start(d, o);
    if (s != TN_OK) {
        tn_device_end(d);
        return s;
    }
    d->next = open_devices;
    open_devices = d;
    *out = d;
    return TN_OK;
}

/* The caller holds the registry's lock. true: the device has no users left, and the caller frees it. */
static bool device_put(tn_device *d) {
    if (--d->opens > 0) return false;
    tn_device **link = &open_devices;
    while (*link != d)
        link = &(*link)->next;
    *link = d->next;
    tn_error_counters_close(d);
    return tn_pool_close(d);
}

void tn_device_close(tn_device *d) {
    if (!d) return;
    tn_registry_lock();
    bool end = device_put(d);
    tn_registry_unlock();
    if (end) tn_device_end(d);
}

static void memory_now(const tn_device *d, int64_t *total, int64_t *unused) {
    *total = d->info.total_memory;
    *unused = d->info.free_memory;
    if (d->driver->memory) (void)d->driver->memory(d->handle, total, unused);
}

tn_status tn_device_get_info(const tn_device *d, tn_device_info *info) {
    TRY(tn_need(d, "tn_device_get_info: device"));
    tn_device_info now = d->info;
    memory_now(d, &now.total_memory, &now.free_memory);
    if (d->is_cpu) now.threads = tn_threads();
    return tn_result_write(info, &now, sizeof now, "tn_device_get_info: info");
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* One choice under way. */
typedef struct search {
    const tn_device_options *options;
    tn_selection *log;
    tn_device *found;
    int64_t most; /* memory of the largest device that was too small, and which it is */
    char largest[32];
} search;

static void add_selection_step(search *s, const char *id, const char *code, const char *reason, const char *fix) {
    if (s->log->step_count == (int)TN_COUNT(s->log->steps)) return;
    tn_selection_step *step = &s->log->steps[s->log->step_count++];
    snprintf(step->id, sizeof step->id, "%s", id);
    snprintf(step->reason_code, sizeof step->reason_code, "%s", code);
    snprintf(step->reason, sizeof step->reason, "%s", reason);
    snprintf(step->fix, sizeof step->fix, "%s", fix);
}

static void note_code(search *s, const char *id, tn_reason_code code, const char *reason, const char *fix) {
    add_selection_step(s, id, tn_reason_code_name(code), reason, fix);
}

static bool noted(const search *s, const char *id) {
    for (int i = 0; i < s->log->step_count; i++)
        if (!strcmp(s->log->steps[i].id, id)) return true;
    return false;
}

/* Whether a device has the memory that was asked for; one that does not say how much it has passes. */
static bool has_memory(search *s, const tn_device *d) {
    int64_t total, unused, need = s->options->minimum_memory;
    memory_now(d, &total, &unused);
    int64_t have = unused ? unused : total;
    if (!need || !have || have >= need) return true;
    char a[24], b[24], reason[160];
    if (have > s->most) {
        s->most = have;
        snprintf(s->largest, sizeof s->largest, "%s", d->info.id);
    }
    snprintf(reason, sizeof reason, "%s free, %s requested", tn_bytes_text(a, have), tn_bytes_text(b, need));
    note_code(s, d->info.id, TN_REASON_NO_MEMORY, reason,
              "close other programs on it, or lower minimum_memory (--mem of the command)");
    return false;
}

/* Opens one device and selects it if it fits. Errors: only TN_ERR_MEMORY; every other failure is recorded as a step. */
static tn_status try_device(search *s, const tn_backend *b, const tn_device_info *info) {
    tn_device *d = NULL;
    tn_status status = device_get(b, info, s->options, &d);
    if (status == TN_ERR_MEMORY && b->is_cpu) return status; /* the host is out of memory */
    if (status != TN_OK) {
        size_t name = strlen(info->id);
        const char *why = tn_error(); /* the step has the device's name already */
        if (!strncmp(why, info->id, name) && !strncmp(why + name, ": ", 2)) why += name + 2;
        note_code(s, info->id, TN_REASON_INIT_FAILED, why, "see: trunnion devices -v");
        return TN_OK;
    }
    if (!has_memory(s, d)) {
        if (device_put(d)) tn_device_end(d);
        return TN_OK;
    }
    note_code(s, info->id, TN_REASON_NONE, "", "");
    s->log->steps[s->log->step_count - 1].chosen = true;
    snprintf(s->log->chosen, sizeof s->log->chosen, "%s", info->id);
    s->found = d;
    return TN_OK;
}

enum { ANY = -1 };

/* Tries a backend's devices: the one with this index, or all; only of the wanted kind unless software is ANY. */
static tn_status try_backend(search *s, tn_backend *b, int index, int software) {
    TRY(tn_discover(b, 1, false));
    const tn_probe_result *f = b->found;
    if (!f->count) {
        if (!noted(s, b->name)) add_selection_step(s, b->name, f->code, f->reason, f->fix);
        return TN_OK;
    }
    bool seen = false;
    for (int i = 0; i < f->count && !s->found; i++) {
        const tn_device_info *info = &f->devices[i];
        if (index != ANY && info->index != index) continue;
        seen = true;
        if ((software == ANY || info->software == software) && !noted(s, info->id)) TRY(try_device(s, b, info));
    }
    if (!seen) {
        char id[32], reason[120];
        snprintf(id, sizeof id, "%s:%d", b->name, index);
        snprintf(reason, sizeof reason, "%s has %d device%s; the last is %s", b->name, f->count,
                 f->count > 1 ? "s" : "", f->devices[f->count - 1].id);
        note_code(s, id, TN_REASON_NO_DEVICE, reason, "see: trunnion devices");
    }
    return TN_OK;
}

/* All backends in order of preference: first hardware and the CPU, then software implementations. */
static tn_status try_auto(search *s) {
    for (int software = 0; software < 2; software++) {
        for (int i = 0; i < table_count && !s->found; i++) {
            tn_backend *b = &table[i];
            if (tn_backend_by_name(b)) {
                if (!noted(s, b->name)) note_code(s, b->name, TN_REASON_NOT_ASKED, "used only if named explicitly", "");
            } else {
                TRY(try_backend(s, b, ANY, software));
            }
        }
    }
    return TN_OK;
}

/* "cuda:1" → backend and 1, "cuda" → backend and ANY. A backend's name may hold a colon itself. */
static tn_backend *parse_id(const char *id, int *index) {
    *index = ANY;
    tn_backend *b = backend_named(id, strlen(id));
    const char *colon = strrchr(id, ':');
    if (b || !colon) return b;
    size_t digits = strspn(colon + 1, "0123456789");
    if (!digits || digits > 4 || colon[1 + digits]) return NULL;
    int n = 0;
    for (const char *c = colon + 1; *c; c++)
        n = n * 10 + (*c - '0');
    *index = n;
    return backend_named(id, (size_t)(colon - id));
}

static tn_status unknown_name(const char *preference) {
    char known[320] = "auto";
    for (int i = 0; i < table_count; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, ", %s", table[i].name);
    }
    return tn_fail(TN_ERR_ARGUMENT,
                   "unknown device \"%.40s\"; known devices are %s, each also with an index as in cuda:1", preference,
                   known);
}

static bool same_words(const tn_selection_step *a, const tn_selection_step *b) {
    return !strcmp(a->reason, b->reason) && !strcmp(a->fix, b->fix);
}

static void append_texts(char *text, size_t size, const char *first, const char *second, const char *third) {
    size_t n = strlen(text);
    snprintf(text + n, size - n, "%s%s%s", first, second, third);
}

/* Backends without anything installed on this machine, which are seldom the reason why a request failed. */
static bool is_absent(const tn_selection_step *step) {
    static const tn_reason_code absent[] = {TN_REASON_NOT_BUILT, TN_REASON_PLATFORM, TN_REASON_LIBRARY_NOT_FOUND,
                                            TN_REASON_NO_DEVICE, TN_REASON_NOT_ASKED};
    for (size_t i = 0; i < TN_COUNT(absent); i++)
        if (strcmp(step->reason_code, tn_reason_code_name(absent[i])) == 0) return true;
    return false;
}

/* "vulkan, opencl: reason - fix; cpu: …": backends with the same reason share an entry. Existing devices come first, so
 * that a truncated text has the cause. */
static void gather_reasons(const tn_selection *log, char *out, size_t size) {
    out[0] = 0;
    for (int turn = 0; turn < 2 * log->step_count; turn++) {
        int i = turn % log->step_count;
        const tn_selection_step *step = &log->steps[i];
        bool told = is_absent(step) != (turn >= log->step_count);
        for (int k = 0; k < i; k++)
            told = told || same_words(&log->steps[k], step);
        if (told) continue;
        append_texts(out, size, out[0] ? "; " : "", step->id, "");
        for (int k = i + 1; k < log->step_count; k++)
            if (same_words(&log->steps[k], step)) append_texts(out, size, ", ", log->steps[k].id, "");
        append_texts(out, size, ": ", step->reason, "");
        if (step->fix[0]) append_texts(out, size, " — ", step->fix, "");
    }
}

static tn_status nothing_fits(const search *s, const char *preference) {
    char why[3072], wanted[24], most[24];
    gather_reasons(s->log, why, sizeof why);
    if (s->most == 0) return tn_fail(TN_ERR_UNAVAILABLE, "no device matches \"%s\": %s", preference, why);
    return tn_fail(TN_ERR_UNAVAILABLE,
                   "no device has %s free; the most is %s, on %s: lower minimum_memory (--mem of the command), or "
                   "close other programs on it. Devices tried: %s",
                   tn_bytes_text(wanted, s->options->minimum_memory), tn_bytes_text(most, s->most), s->largest, why);
}

static tn_status choose_device(search *s, const char *preference) {
    if (!strcmp(preference, "auto")) {
        TRY(try_auto(s));
        return s->found ? TN_OK : nothing_fits(s, preference);
    }
    int index;
    tn_backend *b = parse_id(preference, &index);
    if (!b) return unknown_name(preference);
    TRY(try_backend(s, b, index, ANY));
    if (s->found) return TN_OK;
    if (s->options->fallback == TN_FALLBACK_STRICT) return nothing_fits(s, preference);
    TRY(try_auto(s));
    if (!s->found) return nothing_fits(s, preference);
    if (s->options->fallback == TN_FALLBACK_WARN)
        tn_log_line(TN_LOG_NOTICE, "%s cannot be used (%s); using %s instead", preference, s->log->steps[0].reason,
                    s->found->info.id);
    return TN_OK;
}

static tn_status read_device_options(const tn_device_options *given, tn_device_options *out) {
    *out = (tn_device_options)TN_DEVICE_DEFAULTS;
    TRY(tn_options_read(out, given, "tn_device_open", "tn_device_options o = TN_DEVICE_DEFAULTS"));
    if (out->threads < 0 || out->minimum_memory < 0 || out->simd < 0 || out->simd > 3)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_device_open: threads %d, minimum_memory %lld, simd %d: a value is out of range",
                       out->threads, (long long)out->minimum_memory, out->simd);
    if (out->matrix < 0 || out->matrix > MATRIX_ALL || out->numerics < 0 || out->numerics > 2 || out->graphs < 0 ||
        out->graphs > 2)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "tn_device_open: matrix %d (0 to 3), numerics %d (0 to 2), graphs %d (0 to 2): a value is out of "
            "range",
            out->matrix, out->numerics, out->graphs);
    if (out->vendor < 0 || out->vendor > VENDOR_ALL || out->tuning < 0 || out->tuning > TN_TUNING_OFF + 1)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_device_open: vendor %d (0 to 2), tuning %d (0 to 3): a value is out of range", out->vendor,
                       out->tuning);
    if (out->streams < 0 || out->streams > TN_TIMELINES - 1)
        return tn_fail(TN_ERR_ARGUMENT, "tn_device_open: streams is %d; it must be 0 to %d", out->streams,
                       TN_TIMELINES - 1);
    if (!(out->time_limit >= 0 && out->time_limit <= 1e6))
        return tn_fail(TN_ERR_ARGUMENT, "tn_device_open: time_limit is %g; it must be 0 to 1e6 seconds",
                       out->time_limit);
    if ((unsigned)out->fallback > TN_FALLBACK_SILENT)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_device_open: fallback is %d; it must be one of TN_FALLBACK_WARN, TN_FALLBACK_STRICT, "
                       "TN_FALLBACK_SILENT",
                       (int)out->fallback);
    return TN_OK;
}

tn_status tn_device_open(const char *preference, const tn_device_options *options, tn_selection *selection,
                         tn_device **out) {
    if (!out) return tn_fail(TN_ERR_ARGUMENT, "tn_device_open: out is NULL");
    *out = NULL;
    if (selection) TRY(tn_result_check(selection, "tn_device_open: selection"));
    tn_device_options o;
    TRY(read_device_options(options, &o));

    tn_selection log = {.struct_size = sizeof log};
    search s = {.options = &o, .log = &log};
    tn_registry_lock();
    fill_table();
    tn_status status = choose_device(&s, preference ? preference : "auto");
    tn_registry_unlock();
    if (selection) (void)tn_result_write(selection, &log, sizeof log, "tn_device_open: selection");
    *out = s.found;
    return status;
}

/* ---- the default device ------------------------------------------------------------------------------------------ */

static _Atomic(tn_device *) best;
static _Thread_local tn_device *current;

tn_device *tn_best_device(void) {
    tn_device *d = atomic_load_explicit(&best, memory_order_acquire);
    if (d) return d;
    if (tn_device_open("auto", NULL, NULL, &d) != TN_OK) return NULL;
    tn_device *expected = NULL;
    if (atomic_compare_exchange_strong(&best, &expected, d)) return d;
    tn_device_close(d); /* another thread was quicker */
    return expected;
}

tn_device *tn_chosen_device(void) { return current; }
tn_device *tn_current_device(void) { return current ? current : tn_best_device(); }

tn_status tn_set_current_device(tn_device *device) {
    current = device;
    return TN_OK;
}

tn_status tn_set_num_threads(int n) { return tn_threads_set(n); }
int tn_get_num_threads(void) { return tn_threads(); }

/* ==== drivers in shared libraries ================================================================================= */
/* Such a file exports one symbol, which gets the functions that it may call and returns its driver. A file from the
 * environment that cannot be used stays in the listing with its reason, so that the user sees what happened. */

enum { SEPARATOR = ':' };

static const tn_backend_host host = {sizeof host, TN_BACKEND_ABI, tn_backend_fail};

static tn_status open_driver(const char *path, const tn_driver **driver) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return tn_fail(TN_ERR_UNAVAILABLE, "%s", dlerror());
    tn_backend_entry *entry = NULL;
    void *symbol = dlsym(library, TN_BACKEND_ENTRY);
    if (!symbol) return tn_fail(TN_ERR_UNAVAILABLE, "%s has no symbol " TN_BACKEND_ENTRY, path);
    memcpy(&entry, &symbol, sizeof entry);
    (void)tn_fail(TN_ERR_UNAVAILABLE, "%s: its " TN_BACKEND_ENTRY " refused without a reason", path);
    *driver = entry(&host);
    return *driver ? TN_OK : TN_ERR_UNAVAILABLE;
}

tn_status tn_backend_load(const char *path) {
    const tn_driver *driver = NULL;
    if (!path || !path[0]) return tn_fail(TN_ERR_ARGUMENT, "tn_backend_load: the path is NULL or empty");
    TRY(open_driver(path, &driver));
    return tn_backend_register(driver);
}

/* Named after the file: "plugin:mychip" for /opt/mychip.so, with a number when there is one already. */
static void note_refusal(const char *path) {
    static tn_refusal refusals[TN_MOST_BACKENDS];
    static int count;
    if (count == TN_MOST_BACKENDS) return;
    tn_refusal *r = &refusals[count++];
    const char *file = strrchr(path, '/');
    file = file ? file + 1 : path;
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(r->reason, sizeof r->reason, "%s", tn_error());
    r->code = access(path, R_OK) == 0 ? TN_REASON_INIT_FAILED : TN_REASON_LIBRARY_NOT_FOUND;
    snprintf(r->name, sizeof r->name, "plugin:%.*s", (int)strcspn(file, "."), file);
    if (tn_backend_insert_refused(r) == TN_OK) return;
    snprintf(r->name, sizeof r->name, "plugin:%d", count);
    (void)tn_backend_insert_refused(r);
}

static void add_file(const char *path) {
    const tn_driver *driver = NULL;
    tn_status s = open_driver(path, &driver);
    if (s == TN_OK) s = tn_backend_insert(driver);
    if (s != TN_OK) note_refusal(path);
}

static void plugins_add(void) {
    const char *list = tn_env("TRUNNION_DRIVERS");
    while (list && *list) {
        const char *end = strchr(list, SEPARATOR);
        size_t length = end ? (size_t)(end - list) : strlen(list);
        char *path = length > 0 ? tn_mem_zalloc(1, length + 1) : NULL;
        if (path) add_file(memcpy(path, list, length));
        tn_mem_free(path);
        list += length + (end != NULL);
    }
}

/* ==== operations that the host computes for a device ============================================================== */

enum { MOST = 64 }; /* rows of a device; more would not say more */

struct tn_host_rows {
    int count;
    tn_host_use rows[MOST];
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* of all devices' rows */

/* The row of an operation and reason, added if it is new; NULL if the table is full. *told: the reason already has a
 * row. */
static tn_host_use *host_use_row_of(struct tn_host_rows *t, const char *op, const char *code, bool *told) {
    for (int i = 0; i < t->count; i++) {
        bool same = strcmp(t->rows[i].code, code) == 0;
        *told |= same;
        if (same && strcmp(t->rows[i].op, op) == 0) return &t->rows[i];
    }
    if (t->count == MOST) return NULL;
    tn_host_use *row = &t->rows[t->count++];
    snprintf(row->op, sizeof row->op, "%s", op);
    snprintf(row->code, sizeof row->code, "%s", code);
    return row;
}

bool tn_device_note_host(tn_device *d, const char *op, const char *code, const char *reason) {
    bool told = false;
    AUTO_LOCK(&guard);
    if (!d->host_rows) d->host_rows = tn_mem_zalloc(1, sizeof *d->host_rows);
    tn_host_use *row = d->host_rows ? host_use_row_of(d->host_rows, op, code, &told) : NULL;
    if (row && row->operations++ == 0) snprintf(row->reason, sizeof row->reason, "%s", reason);
    return !told;
}

int tn_device_host_count(const tn_device *d) {
    if (!d) return 0;
    AUTO_LOCK(&guard);
    return d->host_rows ? d->host_rows->count : 0;
}

tn_status tn_device_host_at(const tn_device *d, int i, tn_host_use *out) {
    TRY(tn_need(d, "tn_device_host_at: device"));
    tn_host_use row = {.struct_size = 0};
    pthread_mutex_lock(&guard);
    int count = d->host_rows ? d->host_rows->count : 0;
    if (i >= 0 && i < count) row = d->host_rows->rows[i];
    pthread_mutex_unlock(&guard);
    if (i < 0 || i >= count)
        return tn_fail(TN_ERR_ARGUMENT, "tn_device_host_at: row %d is out of range; there are %d for %s", i, count,
                       d->info.id);
    return tn_result_write(out, &row, sizeof row, "tn_device_host_at: out");
}

/* ==== exactness of results, for the whole process ================================================================= */
/* Plans are made for one of both modes, which is part of their key; kernels are told which one. */

enum { UNDECIDED = -1 };

static atomic_int chosen = UNDECIDED;

/* Threads that get here at the same time find the same; a choice made meanwhile stays. */
static int heed_environment(void) {
    bool fast = tn_env_word("TRUNNION_NUMERICS", (const char *const[]){"exact", "fast", NULL}) == 1;
    int said = fast ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT, before = UNDECIDED;
    return atomic_compare_exchange_strong(&chosen, &before, said) ? said : before;
}

tn_status tn_set_numerics(tn_numerics numerics) {
    if (numerics != TN_NUMERICS_EXACT && numerics != TN_NUMERICS_FAST)
        return tn_fail(TN_ERR_ARGUMENT,
                       "tn_set_numerics: numerics is %d; it must be one of TN_NUMERICS_EXACT, TN_NUMERICS_FAST",
                       (int)numerics);
    atomic_store(&chosen, (int)numerics);
    return TN_OK;
}

tn_numerics tn_get_numerics(void) {
    int now = atomic_load_explicit(&chosen, memory_order_relaxed);
    return (tn_numerics)(now == UNDECIDED ? heed_environment() : now);
}

tn_tuning tn_device_tuning(const tn_device *d) {
    return d->settings.tuning ? (tn_tuning)(d->settings.tuning - 1) : tn_tuning_mode();
}

tn_numerics tn_device_numerics(const tn_device *d) {
    if (!d->settings.numerics) return tn_get_numerics();
    return d->settings.numerics == 2 ? TN_NUMERICS_FAST : TN_NUMERICS_EXACT;
}

/* ==== meaning of reason codes ===================================================================================== */

static const tn_reason_help reasons[] = {
#define REASON(code, meaning, fix) {#code, meaning, fix},
#include "hal/reason_codes.def"
#undef REASON
};

const tn_reason_help *tn_reason_help_at(int i) { return i >= 0 && i < (int)TN_COUNT(reasons) ? &reasons[i] : NULL; }
