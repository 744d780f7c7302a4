/* load.c — shared libraries that may or may not be there, and precise words for why one is not.
 *
 * Opening and locating walk the same candidates. A name of a library specification is one of
 *   libcuda.so.1                  a plain name: the dynamic linker looks for it, then we do in the known folders
 *   libnvrtc.so.*                 a pattern without a folder: matched in the known folders, highest version first
 *   /opt/x/libx.so, ~/lib/x-*.so  a path or a pattern of paths
 *   site-packages/torch/lib/…     a path below any folder of Python packages (virtual environment, user's, system's)
 * Known folders are those of LD_LIBRARY_PATH, of the linker's configuration, and the usual ones. */
#include "base/base.h"
#include "base/os.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <link.h>
#endif

enum { CONFIG_LIMIT = 64 << 10 };
static const char ELLIPSIS[] = "…";

/* ---- reasons ----------------------------------------------------------------------------------------------------- */

static const char *const reason_names[] = {
    [TN_REASON_NONE] = "none",
    [TN_REASON_NOT_BUILT] = "not_built",
    [TN_REASON_PLATFORM] = "platform",
    [TN_REASON_LIBRARY_NOT_FOUND] = "library_not_found",
    [TN_REASON_SYMBOL_MISSING] = "symbol_missing",
    [TN_REASON_TOO_OLD] = "too_old",
    [TN_REASON_PERMISSION] = "permission",
    [TN_REASON_NO_DEVICE] = "no_device",
    [TN_REASON_NO_MEMORY] = "no_memory",
    [TN_REASON_INIT_FAILED] = "init_failed",
    [TN_REASON_CRASHED] = "crashed",
    [TN_REASON_PROCESS_LIMIT] = "process_limit",
    [TN_REASON_NOT_ASKED] = "not_asked",
};

const char *tn_reason_code_name(tn_reason_code code) {
    return (size_t)code < TN_COUNT(reason_names) ? reason_names[code] : "unknown";
}

/* Says that something was left out, and where no character is cut in two. */
static void end_with_ellipsis(char *text, size_t size) {
    size_t at = size - sizeof ELLIPSIS;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    memcpy(text + at, ELLIPSIS, sizeof ELLIPSIS);
}

void tn_reason_set(tn_reason *r, tn_reason_code code, const char *fix, const char *format, ...) {
    char text[sizeof r->text]; /* the arguments may point into *r */
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length >= (int)sizeof text) end_with_ellipsis(text, sizeof text);
    char advice[sizeof r->fix];
    snprintf(advice, sizeof advice, "%s", fix != NULL ? fix : "");
    r->code = code;
    memcpy(r->text, text, sizeof text);
    memcpy(r->fix, advice, sizeof advice);
}

/* ---- known folders ----------------------------------------------------------------------------------------------- */

/* A list of folders in one string, each ended by a newline. */
typedef tn_str folder_list;

static void add_folder(folder_list *list, const char *folder, size_t n) {
    if (n == 0 || !tn_is_absolute(folder)) return; /* never load relative to the working directory */
    tn_str_addn(list, folder, n);
    tn_str_addn(list, "\n", 1);
}

/* Copies the folder at *cursor and moves on; false after the last. */
static bool next_folder(const char **cursor, char *out, size_t size) {
    const char *end = strchr(*cursor, '\n');
    if (end == NULL) return false;
    size_t n = (size_t)(end - *cursor);
    snprintf(out, size, "%.*s", n < size ? (int)n : 0, *cursor);
    *cursor = end + 1;
    return true;
}

static void add_search_path(folder_list *list, const char *path) {
    while (path != NULL && *path != '\0') {
        size_t n = strcspn(path, TN_PATH_LIST);
        add_folder(list, path, n);
        path += n + (path[n] != '\0');
    }
}

static void add_matching_folders(folder_list *list, const char *pattern) {
    glob_t found = {0};
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            add_folder(list, found.gl_pathv[i], strlen(found.gl_pathv[i]));
    globfree(&found);
}

static void add_config_file(folder_list *list, const char *path, int depth);

static void add_included_files(folder_list *list, const char *pattern, int depth) {
    glob_t found = {0};
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            add_config_file(list, found.gl_pathv[i], depth);
    globfree(&found);
}

/* One line of ld.so.conf: a folder, "include pattern", or nothing but a comment. */
static void add_config_line(folder_list *list, char *line, int depth) {
    line[strcspn(line, "#")] = '\0';
    char *text = line + strspn(line, " \t");
    size_t n = strcspn(text, " \t\r");
    if (n == 7 && strncmp(text, "include", n) == 0) {
        text += n + strspn(text + n, " \t");
        text[strcspn(text, " \t\r")] = '\0';
        if (depth < 4) add_included_files(list, text, depth + 1);
        return;
    }
    add_folder(list, text, n);
}

static void add_config_file(folder_list *list, const char *path, int depth) {
    char *content;
    size_t size;
    if (access(path, R_OK) != 0 || tn_file_read(path, &content, &size, CONFIG_LIMIT) != TN_OK) return;
    char *rest = NULL;
    for (char *line = strtok_r(content, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        add_config_line(list, line, depth);
    tn_mem_free(content);
}

static folder_list library_folders(void) {
    static const char *const usual[] = {
        "/lib/*-linux-gnu*", "/usr/lib/*-linux-gnu*", "/lib64",         "/usr/lib64",        "/lib",
        "/usr/lib",          "/usr/local/lib64",      "/usr/local/lib", "/opt/homebrew/lib",
    };
    folder_list list = {0};
    add_search_path(&list, tn_env("LD_LIBRARY_PATH"));
    add_config_file(&list, "/etc/ld.so.conf", 0);
    for (size_t i = 0; i < TN_COUNT(usual); i++)
        add_matching_folders(&list, usual[i]);
    return list;
}

static void add_packages_below(folder_list *list, const char *prefix, const char *kind) {
    if (prefix == NULL) return;
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, TN_ON_WINDOWS ? "%s/Lib/%s" : "%s/lib/python3*/%s", prefix, kind);
    add_matching_folders(list, pattern);
}

static folder_list package_folders(void) {
    char home_local[PATH_MAX];
    const char *home = tn_env("HOME");
    snprintf(home_local, sizeof home_local, "%s/.local", home != NULL ? home : "");
    const char *prefixes[] = {tn_env("VIRTUAL_ENV"), tn_env("CONDA_PREFIX"), home_local, "/usr/local", "/usr"};
    folder_list list = {0};
    for (size_t i = 0; i < TN_COUNT(prefixes); i++) {
        add_packages_below(&list, prefixes[i], "site-packages");
        add_packages_below(&list, prefixes[i], "dist-packages");
    }
    return list;
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

/* Called for one candidate after the other until it returns true. A text without '/' is for the dynamic linker. */
typedef bool candidate_visitor(void *ctx, const char *candidate);

typedef struct walk {
    candidate_visitor *visit;
    void *ctx;
} walk;

enum { ELF_CLASS = 4, ELF_MACHINE = 18, ELF_BYTES = 20 };

static bool read_elf_start(const char *path, unsigned char out[ELF_BYTES]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return false;
    bool complete = read(fd, out, ELF_BYTES) == ELF_BYTES && memcmp(out, "\177ELF", 4) == 0;
    close(fd);
    return complete;
}

/* Whether a file has our word size and processor. Folders of several architectures may be searched, and libfoo.so may
 * be a text for the static linker. If our own program cannot be examined (no /proc, not ELF), any regular file is
 * accepted; so it is on Windows, where Wine shows the /proc of the system below. */
static bool fits_this_process(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    unsigned char own[ELF_BYTES], other[ELF_BYTES];
    if (TN_ON_WINDOWS || !read_elf_start("/proc/self/exe", own)) return true;
    if (!read_elf_start(path, other)) return access(path, R_OK) != 0; /* unreadable: let opening it give the reason */
    return own[ELF_CLASS] == other[ELF_CLASS] && memcmp(own + ELF_MACHINE, other + ELF_MACHINE, 2) == 0;
}

/* Higher versions first: runs of digits compare as numbers, so .so.12 comes before .so.9. */
static int compare_versions(const void *left, const void *right) {
    const char *a = *(const char *const *)left;
    const char *b = *(const char *const *)right;
    for (;;) {
        size_t digits_a = strspn(a, "0123456789");
        size_t digits_b = strspn(b, "0123456789");
        if (digits_a > 0 && digits_b > 0) {
            unsigned long number_a = strtoul(a, NULL, 10);
            unsigned long number_b = strtoul(b, NULL, 10);
            if (number_a != number_b) return number_a > number_b ? -1 : 1;
            a += digits_a;
            b += digits_b;
            continue;
        }
        if (*a != *b) return (unsigned char)*a > (unsigned char)*b ? -1 : 1;
        if (*a == '\0') return 0;
        a++;
        b++;
    }
}

static bool visit_matches(const walk *w, const char *pattern) {
    glob_t found = {0};
    bool stop = false;
    if (glob(pattern, 0, NULL, &found) == 0) {
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_versions);
        for (size_t i = 0; i < found.gl_pathc && !stop; i++)
            if (fits_this_process(found.gl_pathv[i])) stop = w->visit(w->ctx, found.gl_pathv[i]);
    }
    globfree(&found);
    return stop;
}

static bool visit_path(const walk *w, const char *path) {
    return strchr(path, '*') != NULL ? visit_matches(w, path) : w->visit(w->ctx, path);
}

/* `name` in each of the folders; the list is released. */
static bool visit_in_folders(const walk *w, folder_list *folders, const char *name) {
    const char *cursor = tn_str_text(folders);
    char folder[PATH_MAX], path[2 * PATH_MAX];
    bool stop = false;
    while (!stop && next_folder(&cursor, folder, sizeof folder)) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        stop = strchr(name, '*') != NULL ? visit_matches(w, path) : fits_this_process(path) && w->visit(w->ctx, path);
    }
    tn_str_free(folders);
    return stop;
}

static bool visit_name(const walk *w, const char *name) {
    static const char packages[] = "site-packages/";
    if (strncmp(name, packages, sizeof packages - 1) == 0) {
        folder_list folders = package_folders();
        return visit_in_folders(w, &folders, name + sizeof packages - 1);
    }
    if (strncmp(name, "~/", 2) == 0) {
        char path[PATH_MAX];
        const char *home = tn_env("HOME");
        snprintf(path, sizeof path, "%s%s", home != NULL ? home : "", name + 1);
        return visit_path(w, path);
    }
    if (strchr(name, '/') != NULL) return visit_path(w, name);
    if (strchr(name, '*') == NULL && w->visit(w->ctx, name)) return true;
    folder_list folders = library_folders();
    return visit_in_folders(w, &folders, name);
}

/* The environment's word is final: a name as above, or a folder in which the usual names are looked for. */
static bool visit_override(const walk *w, const tn_library_spec *spec, const char *value) {
    struct stat info;
    if (stat(value, &info) != 0 || !S_ISDIR(info.st_mode)) return visit_name(w, value);
    for (size_t i = 0; spec->names[i] != NULL; i++) {
        const char *slash = strrchr(spec->names[i], '/');
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", value, slash != NULL ? slash + 1 : spec->names[i]);
        if (visit_path(w, path)) return true;
    }
    return false;
}

static const char *override_of(const tn_library_spec *spec) { return spec->env != NULL ? tn_env(spec->env) : NULL; }

/* The tables have the names of all systems; those of Windows end in ".dll". */
static bool is_for_this_system(const char *name) { return (strstr(name, ".dll") != NULL) == (bool)TN_ON_WINDOWS; }

static bool visit_candidates(const walk *w, const tn_library_spec *spec) {
    const char *value = override_of(spec);
    if (value != NULL) return visit_override(w, spec, value);
    for (size_t i = 0; spec->names[i] != NULL; i++)
        if (is_for_this_system(spec->names[i]) && visit_name(w, spec->names[i])) return true;
    return false;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

typedef struct opening {
    const tn_library_spec *spec;
    void *handle;
    tn_reason why; /* of the first candidate that was found and did not work */
} opening;

/* Advice: if the environment names the library, that comes first. */
static const char *fix_for(const tn_library_spec *spec, char out[200]) {
    if (override_of(spec) == NULL) return spec->fix;
    snprintf(out, 200, "%s selects this library: set it to another file or folder, or unset it", spec->env);
    return out;
}

static void note_failure(opening *o, tn_reason_code code, const char *what, const char *detail) {
    char fix[200];
    if (o->why.code != TN_REASON_NONE) return;
    tn_reason_set(&o->why, code, fix_for(o->spec, fix), "%s: %s%s%s", o->spec->title, what,
                  detail[0] != '\0' ? ": " : "", detail);
}

/* The dynamic linker explains itself in words only. */
static tn_reason_code classify(const char *linker_text) {
    static const struct {
        const char *words;
        tn_reason_code code;
    } rows[] = {
        {"undefined symbol", TN_REASON_SYMBOL_MISSING},
        {"symbol not found", TN_REASON_SYMBOL_MISSING},
        {"version `", TN_REASON_TOO_OLD},
        {"No such file", TN_REASON_LIBRARY_NOT_FOUND},
        {"Permission denied", TN_REASON_PERMISSION},
        {"annot allocate memory", TN_REASON_PROCESS_LIMIT},
        {"Too many open files", TN_REASON_PROCESS_LIMIT},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++)
        if (strstr(linker_text, rows[i].words) != NULL) return rows[i].code;
    return TN_REASON_INIT_FAILED;
}

/* "name: cannot open shared object file: No such file…" is about the candidate itself; the same with another name in
 * front is about a library that the candidate needs. */
static bool is_plainly_absent(const char *candidate, const char *linker_text) {
    if (strchr(candidate, '/') != NULL) return access(candidate, F_OK) != 0;
    size_t n = strlen(candidate);
    return strncmp(linker_text, candidate, n) == 0 && linker_text[n] == ':' &&
           strstr(linker_text, "No such file") != NULL;
}

static const char *loaded_file(TN_UNUSED void *handle, const char *fallback) {
#if defined(__linux__)
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name[0] != '\0') return map->l_name;
#else
#endif
    return fallback;
}

static void forget_symbols(const tn_library_spec *spec) {
    for (size_t i = 0; i < spec->symbol_count; i++)
        *spec->symbols[i].address = NULL;
}

/* The name of the first required symbol that is missing, NULL when all are there. */
static const char *bind_symbols(const tn_library_spec *spec, void *handle) {
    for (size_t i = 0; i < spec->symbol_count; i++) {
        const tn_symbol *symbol = &spec->symbols[i];
        *symbol->address = dlsym(handle, symbol->name);
        if (*symbol->address != NULL || symbol->optional) continue;
        forget_symbols(spec);
        return symbol->name;
    }
    return NULL;
}

static bool try_to_open(void *ctx, const char *candidate) {
    opening *o = ctx;
    void *handle = dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *error = dlerror();
        if (error == NULL) error = "no reason given";
        if (!is_plainly_absent(candidate, error)) note_failure(o, classify(error), "cannot be loaded", error);
        return false;
    }
    const char *file = loaded_file(handle, candidate);
    const char *missing = bind_symbols(o->spec, handle);
    if (missing != NULL) {
        char text[160];
        snprintf(text, sizeof text, "function %s is missing from %s", missing, file);
        note_failure(o, TN_REASON_SYMBOL_MISSING, text, "");
        return false;
    }
    tn_log_line(TN_LOG_VERBOSE, "%s: %s", o->spec->title, file);
    o->handle = handle;
    return true;
}

static void explain_absence(const tn_library_spec *spec, tn_reason *why) {
    const char *value = override_of(spec);
    if (value != NULL) {
        char fix[200];
        tn_reason_set(why, TN_REASON_LIBRARY_NOT_FOUND, fix_for(spec, fix), "%s: not found at the path in %s: %s",
                      spec->title, spec->env, value);
        return;
    }
    char names[TN_REASON_BYTES] = "";
    size_t used = 0;
    for (size_t i = 0; spec->names[i] != NULL && used < sizeof names; i++) {
        if (!is_for_this_system(spec->names[i])) continue;
        int n = snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", spec->names[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used == 0)
        tn_reason_set(why, TN_REASON_LIBRARY_NOT_FOUND, spec->fix, "%s: its file's name on this system is not known",
                      spec->title);
    else
        tn_reason_set(why, TN_REASON_LIBRARY_NOT_FOUND, spec->fix, "%s: not found: %s", spec->title, names);
}

void *tn_library_open(const tn_library_spec *spec, tn_reason *why) {
    opening o = {.spec = spec};
    const walk w = {try_to_open, &o};
    forget_symbols(spec);
    *why = (tn_reason){0};
    if (visit_candidates(&w, spec)) return o.handle;
    if (o.why.code != TN_REASON_NONE)
        *why = o.why;
    else
        explain_absence(spec, why);
    return NULL;
}

/* ---- locating ---------------------------------------------------------------------------------------------------- */

typedef struct locating {
    char *path;
    size_t size;
} locating;

static bool take_if_file(void *ctx, const char *candidate) {
    locating *l = ctx;
    if (strchr(candidate, '/') == NULL || strlen(candidate) >= l->size) return false;
    if (!fits_this_process(candidate)) return false;
    snprintf(l->path, l->size, "%s", candidate);
    return true;
}

bool tn_library_locate(const tn_library_spec *spec, char *path, size_t size) {
    locating l = {path, size};
    const walk w = {take_if_file, &l};
    if (size > 0) path[0] = '\0';
    return visit_candidates(&w, spec);
}
