/* compile.c — rendered text becomes an object by way of the system's C++ compiler, and an object a loaded module.
 *
 * An object is a head and the bytes of a shared library. Both the libraries and nothing else lie in the cache
 * folder, each under the hash of shim, text, tail, flags and compiler; a file there is whole, because it comes under
 * its name by a rename. Of more than MOST_BYTES there (DOUBLE_CACHE_BYTES) those go that were used the longest time
 * ago; whoever needs one again puts it there again. No header is included and little is linked: that is what makes
 * 30 ms of 150. */
#include "parts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a wrong address or index becomes is found by these; what the kernels' numbers are must not depend on them. */
static const char FLAGS[] = "-std=c++17 -fPIC -shared -w -fvisibility=hidden -fno-exceptions -fno-rtti "
                            "-fno-asynchronous-unwind-tables -fno-strict-aliasing -ffp-contract=off -fno-math-errno "
                            "-fno-trapping-math -fno-stack-protector "
                            "-fsanitize=bounds,shift,integer-divide-by-zero -fsanitize-undefined-trap-on-error "
                            "-nostartfiles -nodefaultlibs";
static const char LIBRARIES[] = "-lm -lc";

enum { KEY = 32, MOST_ARGUMENTS = 64 };
static const char MAGIC[8] = "TNDOUBL1";

typedef struct head {
    char magic[8];
    char key[KEY];
    uint64_t size; /* of the library behind it */
} head;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t compiled, from_disk;

void engine_count_compiled(engine_counts *out) {
    pthread_mutex_lock(&lock);
    out->compiled = compiled;
    out->from_disk = from_disk;
    pthread_mutex_unlock(&lock);
}

/* How many there were before. */
static uint64_t count(uint64_t *what) {
    pthread_mutex_lock(&lock);
    uint64_t before = (*what)++;
    pthread_mutex_unlock(&lock);
    return before;
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static void cache_folder(char *out, size_t room) {
    const char *asked = getenv("DOUBLE_CACHE");
    snprintf(out, room, "%s", asked ? asked : DOUBLE_CACHE_FOLDER);
    for (char *p = out + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        (void)mkdir(out, 0777);
        *p = '/';
    }
    (void)mkdir(out, 0777);
}

typedef struct place {
    char folder[400], library[500];
} place;

static place place_of(const char key[KEY]) {
    place p;
    cache_folder(p.folder, sizeof p.folder);
    snprintf(p.library, sizeof p.library, "%s/%.*s.so", p.folder, KEY, key);
    return p;
}

/* ---- its bound --------------------------------------------------------------------------------------------------- */

enum { LOOK_EVERY = 64, LEFT_OVER = 3600 }; /* compilations of a process; seconds */
static const int64_t MOST_BYTES = (int64_t)512 << 20;

typedef struct entry {
    char name[KEY + 16];
    struct timespec used;
    int64_t bytes;
} entry;

static int by_age(const void *a, const void *b) {
    const struct timespec *x = &((const entry *)a)->used, *y = &((const entry *)b)->used;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* The libraries of an open folder, NULL if none; what killed processes began goes. */
static entry *list_entries(DIR *folder, size_t *count, int64_t *bytes) {
    entry *all = NULL;
    size_t room = 0;
    struct stat info;
    time_t now = time(NULL);
    for (const struct dirent *e; (e = readdir(folder));) {
        if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof all->name) continue;
        if (fstatat(dirfd(folder), e->d_name, &info, AT_SYMLINK_NOFOLLOW)) continue;
        if (!strncmp(e->d_name, "new-", 4)) {
            if (info.st_mtime < now - LEFT_OVER) (void)unlinkat(dirfd(folder), e->d_name, 0);
            continue;
        }
        if (*count == room) {
            entry *grown = realloc(all, (room = 2 * room + 64) * sizeof *all);
            if (!grown) break;
            all = grown;
        }
        entry *at = &all[(*count)++];
        strcpy(at->name, e->d_name);
        at->used = info.st_mtim;
        *bytes += at->bytes = info.st_size;
    }
    return all;
}

static void keep_bound(const char *path) {
    const char *asked = getenv("DOUBLE_CACHE_BYTES");
    int64_t most = asked ? atoll(asked) : MOST_BYTES, bytes = 0;
    size_t count = 0;
    DIR *folder = opendir(path);
    if (!folder) return;
    entry *all = list_entries(folder, &count, &bytes);
    bool too_much = bytes > most;
    if (too_much) qsort(all, count, sizeof *all, by_age);
    for (size_t i = 0; too_much && i < count && bytes > most / 4 * 3; i++) {
        (void)unlinkat(dirfd(folder), all[i].name, 0);
        bytes -= all[i].bytes;
    }
    free(all);
    closedir(folder);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void add_hash(uint64_t h[2], const char *text) {
    for (const char *p = text ? text : "";; p++) {
        h[0] = (h[0] ^ (unsigned char)*p) * 0x100000001b3u;
        h[1] = (h[1] ^ (unsigned char)*p) * 0x9e3779b97f4a7c15u;
        h[1] ^= h[1] >> 29;
        if (!*p) return;
    }
}

static const char *compiler(void) {
    const char *asked = getenv("DOUBLE_CXX");
    return asked ? asked : "c++";
}

/* So that fma and floor are instructions, which makes kernels ten times as fast. */
static const char *machine_flags(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("fma") ? "-mfma -msse4.1" : "";
#else
    return "";
#endif
}

/* What a sanitizer finds, and what is computed, is the same at every level. A program whose kernels run once each, as
 * certify does, spends its time here: without optimising (DOUBLE_LEVEL=0) half as much. */
static const char *level_flag(void) {
    const char *asked = getenv("DOUBLE_LEVEL");
    return asked && *asked == '0' ? "-O0" : "-O1";
}

static void key_of(const engine_source *s, char key[KEY + 1]) {
    uint64_t h[2] = {0xcbf29ce484222325u, 0x2545f4914f6cdd1du};
    const char *parts[] = {s->shim, s->text,      s->tail,         s->name,   s->flags,
                           FLAGS,   level_flag(), machine_flags(), compiler()};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        add_hash(h, parts[i]);
    snprintf(key, KEY + 1, "%016llx%016llx", (unsigned long long)h[0], (unsigned long long)h[1]);
}

/* ---- the compiler ------------------------------------------------------------------------------------------------ */

static char *read_all(int file, size_t *size) {
    size_t room = 1 << 14, n = 0;
    char *text = malloc(room + 1);
    for (ssize_t got; text && (got = read(file, text + n, room - n)) > 0;) {
        n += (size_t)got;
        if (n < room) continue;
        char *grown = realloc(text, 2 * room + 1);
        if (!grown) break;
        text = grown;
        room *= 2;
    }
    if (text) text[n] = 0;
    if (size) *size = n;
    return text;
}

static bool write_source(const char *path, const engine_source *s) {
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f, "%s\n#line 1 \"%s\"\n%s\n#line 1 \"tail\"\n%s\n", s->shim, s->name, s->text, s->tail ? s->tail : "");
    return !fclose(f);
}

/* Adds the words of `text`, which it takes apart. */
static int add_words(char **argv, int n, char *text) {
    for (char *rest, *word = strtok_r(text, " ", &rest); word && n < MOST_ARGUMENTS - 1;
         word = strtok_r(NULL, " ", &rest))
        argv[n++] = word;
    return n;
}

/* Runs the compiler; *log is all that it says. */
static bool run_compiler(const engine_source *s, const char *from, const char *to, char **log) {
    extern char **environ;
    enum { WORDS = 5 };
    char words[WORDS][2200], libraries[sizeof LIBRARIES], *argv[MOST_ARGUMENTS];
    int pipe_ends[2], n = 0, status = -1;
    pid_t child;
    const char *parts[WORDS] = {compiler(), FLAGS, level_flag(), machine_flags(), s->flags ? s->flags : ""};
    for (int i = 0; i < WORDS; i++) {
        snprintf(words[i], sizeof words[i], "%s", parts[i]);
        n = add_words(argv, n, words[i]);
    }
    snprintf(libraries, sizeof libraries, "%s", LIBRARIES);
    if (n + 6 >= MOST_ARGUMENTS) return false;
    argv[n++] = (char *)(uintptr_t)from;
    argv[n++] = "-o";
    argv[n++] = (char *)(uintptr_t)to;
    n = add_words(argv, n, libraries);
    argv[n] = NULL;

    if (pipe2(pipe_ends, O_CLOEXEC)) return false;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 2);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 1);
    int error = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_ends[1]);
    *log = read_all(pipe_ends[0], NULL);
    close(pipe_ends[0]);
    if (error) return false;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Puts a temporary source beside the library that is to be, and what comes of it under its name. */
static bool compile_to(const engine_source *s, const place *p, char **log) {
    char from[sizeof p->library], to[sizeof p->library + 4];
    snprintf(from, sizeof from, "%s/new-XXXXXX.cc", p->folder);
    int file = mkstemps(from, 3);
    if (file < 0) return false;
    close(file);
    snprintf(to, sizeof to, "%s.so", from);
    bool good = write_source(from, s) && run_compiler(s, from, to, log) && !rename(to, p->library);
    (void)unlink(from);
    (void)unlink(to);
    return good;
}

static void *read_object(const place *p, const char *key, size_t *size) {
    struct stat info;
    int file = open(p->library, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    (void)futimens(file, NULL); /* used now: others are older */
    head *h = !fstat(file, &info) ? malloc(sizeof *h + (size_t)info.st_size) : NULL;
    if (h) {
        memcpy(h->magic, MAGIC, sizeof h->magic);
        memcpy(h->key, key, KEY);
        h->size = (uint64_t)info.st_size;
        *size = sizeof *h + (size_t)info.st_size;
        if (read(file, h + 1, (size_t)info.st_size) != info.st_size) {
            free(h);
            h = NULL;
        }
    }
    close(file);
    return h;
}

void *engine_compile(const engine_source *s, size_t *size, char **log) {
    char key[KEY + 1];
    *log = NULL;
    key_of(s, key);
    place p = place_of(key);
    void *object = read_object(&p, key, size);
    if (object) {
        (void)count(&from_disk);
        return object;
    }
    if (compile_to(s, &p, log)) object = read_object(&p, key, size);
    if (object) {
        free(*log);
        *log = NULL;
        if (count(&compiled) % LOOK_EVERY == 0) keep_bound(p.folder);
    } else if (!*log || !**log) {
        free(*log);
        if (asprintf(log, "the compiler %s cannot be run, or %s not be written: %s", compiler(), p.folder,
                     strerror(errno)) < 0)
            *log = NULL;
    }
    return object;
}

/* ---- names of kernels -------------------------------------------------------------------------------------------- */

static bool is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
static bool is_name(char c) { return is_letter(c) || c == '_' || (c >= '0' && c <= '9'); }

/* The name before the first '(' from `text` on whose word is not `skip`; its length, 0: none. */
static size_t kernel_name(const char *text, const char *skip, const char **name) {
    for (const char *open = strchr(text, '('); open; open = strchr(open + 1, '(')) {
        const char *end = open;
        while (end > text && (end[-1] == ' ' || end[-1] == '\n'))
            end--;
        const char *begin = end;
        while (begin > text && is_name(begin[-1]))
            begin--;
        size_t n = (size_t)(end - begin);
        if (!n || (skip && n == strlen(skip) && !strncmp(begin, skip, n))) continue;
        *name = begin;
        return n;
    }
    return 0;
}

char *engine_tail(const char *text, const char *marker, const char *skip) {
    char *tail = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&tail, &size);
    for (const char *at = text; out && (at = strstr(at, marker)); at++) {
        const char *name;
        size_t n = kernel_name(at + strlen(marker), skip, &name);
        if (n) fprintf(out, "ENGINE_KERNEL(%.*s)\n", (int)n, name);
    }
    if (out) fclose(out);
    return tail;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* The library lies in the cache, or is put there again. */
static bool restore(const head *h, const place *p) {
    struct stat info;
    if (!utimensat(AT_FDCWD, p->library, NULL, 0) && !stat(p->library, &info) && (uint64_t)info.st_size == h->size)
        return true;
    char path[sizeof p->library];
    snprintf(path, sizeof path, "%s/new-XXXXXX.so", p->folder);
    int file = mkstemps(path, 3);
    if (file < 0) return false;
    bool good = write(file, h + 1, h->size) == (ssize_t)h->size;
    close(file);
    if (good && !rename(path, p->library)) return true;
    (void)unlink(path);
    return false;
}

engine_module *engine_load(const void *object, size_t size, char *why, size_t room) {
    const head *h = object;
    if (size < sizeof *h || memcmp(h->magic, MAGIC, sizeof MAGIC) || h->size != size - sizeof *h) {
        snprintf(why, room, "these %zu bytes are no object of the double", size);
        return NULL;
    }
    place p = place_of(h->key);
    engine_module *m = restore(h, &p) ? calloc(1, sizeof *m) : NULL;
    if (m) m->library = dlopen(p.library, RTLD_NOW | RTLD_LOCAL);
    uint8_t *const *shared = m && m->library ? dlsym(m->library, "engine_shared") : NULL;
    if (shared) m->here = (engine_context **)dlsym(m->library, "engine_here");
    if (!shared || !m->here) {
        const char *words = dlerror();
        snprintf(why, room, "%s", words ? words : "the double's cache cannot be written");
        engine_unload(m);
        return NULL;
    }
    m->shared = shared[0];
    m->shared_end = shared[1];
    return m;
}

void engine_unload(engine_module *m) {
    if (!m) return;
    while (m->kernels) {
        engine_kernel *next = m->kernels->next;
        free(m->kernels);
        m->kernels = next;
    }
    if (m->library) dlclose(m->library);
    free(m);
}

static engine_kernel *new_kernel(engine_module *m, const char *name) {
    char symbol[300];
    snprintf(symbol, sizeof symbol, "engine_run_%s", name);
    void *run = dlsym(m->library, symbol);
    if (!run) return NULL;
    engine_kernel *k = calloc(1, sizeof *k + strlen(name) + 1);
    if (!k) return NULL;
    snprintf(symbol, sizeof symbol, "engine_sizes_%s", name);
    const uint32_t *const *sizes = (const uint32_t *const *)dlsym(m->library, symbol);
    strcpy(k->name, name);
    *(void **)&k->run = run;
    k->sizes = sizes ? *sizes : NULL;
    k->module = m;
    k->next = m->kernels;
    m->kernels = k;
    return k;
}

const engine_kernel *engine_find_kernel(engine_module *m, const char *name) {
    engine_kernel *k = m->kernels;
    pthread_mutex_lock(&lock);
    while (k && strcmp(k->name, name))
        k = k->next;
    if (!k) k = new_kernel(m, name);
    pthread_mutex_unlock(&lock);
    return k;
}

const char *engine_kernel_name(const engine_kernel *k) { return k->name; }
const engine_module *engine_kernel_module(const engine_kernel *k) { return k->module; }

int engine_parameters(const engine_kernel *k) {
    int n = 0;
    while (k->sizes && k->sizes[n])
        n++;
    return n;
}

enum { POINTER_BIT = 31 };
size_t engine_parameter_size(const engine_kernel *k, int i) { return k->sizes[i] & ~(1u << POINTER_BIT); }
bool engine_parameter_is_pointer(const engine_kernel *k, int i) { return k->sizes[i] >> POINTER_BIT; }
size_t engine_workgroup_bytes(const engine_kernel *k) { return (size_t)(k->module->shared_end - k->module->shared); }
