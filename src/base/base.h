/* base.h — used by every layer: errors, memory, text, JSON, files, shared libraries, the processor, threads.
 *
 * Nothing here knows tensors or devices. Every allocation of the library uses tn_mem_*, so that a test can let the n-th
 * one fail and check that nothing leaks. */
#ifndef TN_BASE_H
#define TN_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "trunnion/json.h"
#include "trunnion/status.h"

/* Files are little-endian. On other machines their numbers are converted: when a file is opened, or read. */
enum { TN_BIG_ENDIAN = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ };

#define TN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TN_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define TRY TN_TRY

static inline int64_t tn_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tn_max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline bool tn_dtype_is_byte(int dtype) { return dtype == TN_U8 || dtype == TN_I8; }
/* The product of numbers, such as the extents of a shape; 1 if there are none. */
static inline int64_t tn_product(const int64_t *factors, int64_t count) {
    int64_t product = 1;
    for (int64_t i = 0; i < count; i++)
        product *= factors[i];
    return product;
}
static inline int64_t tn_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tn_round_up(int64_t x, int64_t unit) { return tn_ceil_div(x, unit) * unit; }
/* `bytes` in whole cache lines of 64, so that what follows does not share one. */
static inline size_t tn_whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* The plain dtypes come first: elements of these can be loaded, stored and computed with one by one. */
enum { TN_PLAIN_DTYPES = TN_U16 + 1 };
static inline bool tn_dtype_is_quantized(tn_dtype t) { return t > TN_U16 && t < TN_DTYPE_COUNT; }

/* ---- status and errors (text.c) ---------------------------------------------------------------------------------- */

/* Stores the formatted text as this thread's error and returns `code`: `return tn_fail(TN_ERR_IO, "...", ...)`. */
tn_status tn_fail(tn_status code, const char *format, ...) TN_PRINTF(2, 3);
tn_status tn_fail_args(tn_status code, const char *format, va_list args) TN_PRINTF(2, 0);
/* The macros of functions that always fail use this, so that compilers know after TRY(f(&x)) that x was written. */
static inline tn_status tn_never_ok(tn_status code) { return code != TN_OK ? code : TN_ERR_INTERNAL; }
#define tn_fail(...) tn_never_ok(tn_fail(__VA_ARGS__))

/* Puts "prefix: " before this thread's error text and returns `code`; for callers that know more than the callee. */
tn_status tn_fail_prefix(tn_status code, const char *format, ...) TN_PRINTF(2, 3);
/* TN_OK when p is there; else TN_ERR_ARGUMENT with "what is NULL": tn_need(out, "tn_read: out"). */
tn_status tn_need(const void *p, const char *what);

void tn_error_clear(void); /* for functions that report success by an empty tn_error() */

/* Log lines go to standard error as "trunnion: …"; level from TRUNNION_LOG (0 silent, 1
 * notices — default —, 2 verbose). */
typedef enum tn_log_level { TN_LOG_NOTICE = 1, TN_LOG_VERBOSE = 2 } tn_log_level;
void tn_log_line(tn_log_level level, const char *format, ...) TN_PRINTF(2, 3);

/* A growing string. A failed allocation is remembered in `failed`; text stays a valid, shorter string. */
typedef struct tn_str {
    char *text; /* NULL until something is added; else NUL-terminated */
    size_t length, capacity;
    bool failed;
} tn_str;

void tn_str_add(tn_str *s, const char *format, ...) TN_PRINTF(2, 3);
void tn_str_addn(tn_str *s, const char *bytes, size_t n);
const char *tn_str_text(const tn_str *s); /* "" when empty */
void tn_str_free(tn_str *s);

/* Append to a text with `used` of `size` bytes (used < size). What does not fit is cut off. Return the new number of
 * bytes, without the NUL. Ten times faster than snprintf, for labels that every plan has. */
size_t tn_text_put(char *text, size_t size, size_t used, const char *words);
size_t tn_text_put_number(char *text, size_t size, size_t used, int64_t number);

/* 64-bit content hash; equal on every machine. Not for adversaries. */
uint64_t tn_hash64(const void *bytes, size_t n, uint64_t seed);

/* ---- memory (mem.c) ---------------------------------------------------------------------------------------------- */

/* As malloc, but NULL with an error set (TN_ERR_MEMORY) on failure; 64-byte aligned;
 * zero bytes give a valid pointer. */
void *tn_mem_alloc(size_t bytes);
/* The same for memory of tensors: from TN_LARGE_PAGE bytes on it is aligned to a large page and asks for such pages.
 * With small pages a large matrix needs thousands of TLB entries: a product with a vector took 14 % longer. */
enum { TN_LARGE_PAGE = 2 << 20 };
void *tn_mem_alloc_pages(size_t bytes);
void *tn_mem_zalloc(size_t count, size_t size); /* zeroed; overflow of count*size is TN_ERR_MEMORY */
void *tn_mem_realloc(void *p, size_t bytes);    /* on failure p stays valid and NULL is returned */
void tn_mem_free(void *p);                      /* NULL is fine */
void tn_mem_free_list(void *const *blocks, size_t count);
/* Frees each of its arguments, all of which are evaluated first: a struct can follow its members. */
#define tn_mem_free_each(...) tn_mem_free_list((void *const[]){__VA_ARGS__}, TN_COUNT(((void *const[]){__VA_ARGS__})))
char *tn_mem_strdup(const char *s);

/* AUTO_FREE char *text = NULL; declares a variable whose block is freed where its scope ends, on every way out, so that
 * a function can return early. Initialize it; set it to NULL when its block is given away. AUTO_CALL(f) calls
 * f(&variable) there; the other AUTO_… words are short for one f each. */
#define AUTO_CALL(function) __attribute__((cleanup(function)))
#define AUTO_FREE AUTO_CALL(tn_mem_free_held)
#define AUTO_STR AUTO_CALL(tn_str_free)
#define AUTO_JSON AUTO_CALL(tn_json_free_held)
static inline void tn_mem_free_held(void *variable) {
    void *block;
    memcpy(&block, variable, sizeof block);
    tn_mem_free(block);
}
static inline void tn_json_free_held(tn_json_doc **doc) { tn_json_free(*doc); }

/* AUTO_LOCK(&d->lock); is a declaration: the mutex is locked from here to the end of the block. */
#define AUTO_LOCK(mutex) AUTO_LOCK_AT_(mutex, __LINE__)
#define AUTO_LOCK_AT_(mutex, line) AUTO_LOCK_NAMED_(mutex, line)
#define AUTO_LOCK_NAMED_(mutex, line) \
    AUTO_CALL(tn_mutex_unlock) TN_UNUSED pthread_mutex_t *locked_##line = tn_mutex_lock(mutex)
static inline pthread_mutex_t *tn_mutex_lock(pthread_mutex_t *mutex) {
    pthread_mutex_lock(mutex);
    return mutex;
}
static inline void tn_mutex_unlock(pthread_mutex_t **mutex) { pthread_mutex_unlock(*mutex); }

/* Makes room for `need` items in *items (capacity in items, grows by half); TN_ERR_MEMORY leaves all as it was. */
tn_status tn_mem_grow(void *items_pointer, size_t *capacity, size_t need, size_t item_size);

/* The same where it is asked for at every step: no call when there is room. */
static inline tn_status tn_mem_reserve(void *items_pointer, size_t *capacity, size_t need, size_t item_size) {
    return need <= *capacity ? TN_OK : tn_mem_grow(items_pointer, capacity, need, item_size);
}

/* Test hook: the n-th allocation from now fails (1 = the next); 0 turns it off. Process-wide. */
void tn_mem_fail_at(int64_t n);
typedef struct tn_mem_stats {
    int64_t live_blocks, live_bytes, peak_bytes, calls; /* calls counts allocations, for the hook above */
} tn_mem_stats;
tn_mem_stats tn_mem_get_stats(void);

/* ---- memory of one pass (mem.c) ---------------------------------------------------------------------------------- */

/* {0} is an empty one. */
typedef struct tn_scratch {
    struct tn_scratch_block *last;
    char *next;
    size_t left;
} tn_scratch;
void *tn_scratch_take(tn_scratch *s, size_t bytes); /* 16-byte aligned, not zeroed; NULL with an error set */
/* As tn_mem_grow; the items that were there before stay where they are until all is freed. */
tn_status tn_scratch_grow(tn_scratch *s, void *items_pointer, size_t *capacity, size_t need, size_t item_size);
void tn_scratch_free(tn_scratch *s);

int tn_compare_texts(const void *a, const void *b); /* for qsort and bsearch over const char * */
bool tn_bytes_are_bools(const uint8_t *bytes, int64_t n);

/* true on overflow; *out undefined then. */
bool tn_mul_overflow(int64_t a, int64_t b, int64_t *out);
bool tn_add_overflow(int64_t a, int64_t b, int64_t *out);

/* ---- files, time, environment (sys.c) ---------------------------------------------------------------------------- */

double tn_now(void); /* seconds, monotonic */

typedef struct tn_map {
    const uint8_t *data;
    size_t size;
    void *handle; /* private */
    int file;     /* private */
} tn_map;
/* Maps a file for reading; an empty file maps to size 0. On big-endian machines the mapping is a private copy, in which
 * readers convert numbers (tn_map_convert). */
tn_status tn_map_open(const char *path, tn_map *out);
void tn_map_close(tn_map *m);
/* Copies bytes of the file without bringing any page of the mapping into memory. */
tn_status tn_map_read(const tn_map *m, size_t offset, void *out, size_t bytes);
/* Converts numbers of a mapping in place to this machine's byte order; each must be converted once only. */
static inline void tn_map_convert(tn_dtype dtype, const uint8_t *numbers, int64_t numel) {
    if (TN_BIG_ENDIAN) tn_dtype_little_endian(dtype, (void *)(uintptr_t)numbers, numel);
}
/* Drops the complete pages in this range if they belong to a file that tn_map_open mapped; they are read from the file
 * again on the next access. Does nothing for other memory, or on big-endian machines, where the converted numbers would
 * be lost. */
void tn_map_return_pages(const void *address, size_t bytes);
/* Zeros that take no memory until they are written. NULL with tn_error set on failure. */
void *tn_address_space(size_t bytes);
void tn_address_space_free(void *address, size_t bytes);
/* Asks for large pages where they fit completely into memory that has not been written yet; saves TLB misses when it is
 * read in order. Only a hint. */
void tn_large_pages(void *address, size_t bytes);
/* Memory of tn_mem_alloc_pages with `bytes` bytes, of which only the first `used` will be written: the others get small
 * pages, because a large page becomes resident as a whole. */
void tn_large_pages_until(void *address, size_t used, size_t bytes);

/* These and tn_map_open take regular files only: a pipe, a device or a folder is TN_ERR_IO at once. */
tn_status tn_file_open(const char *path, FILE **out);                              /* for reading; fclose it */
tn_status tn_file_read(const char *path, char **data, size_t *size, size_t limit); /* NUL-terminated; tn_mem_free it */

/* Atomic save: bytes go to a temporary file beside `path`; commit syncs and renames; abandon removes. A process killed
 * at any moment leaves either the old file or the new one. */
typedef struct tn_save tn_save;
tn_status tn_save_begin(const char *path, tn_save **out);
tn_status tn_save_write(tn_save *s, const void *bytes, size_t n);
tn_status tn_save_commit(tn_save *s);                /* frees s in any case */
void tn_save_abandon(tn_save *s);                    /* frees s; NULL is fine */
tn_status tn_save_end(tn_save *s, tn_status status); /* commits after TN_OK, otherwise abandons; the final status */

bool tn_is_file(const char *path); /* a regular file, or a link to one */
bool tn_is_folder(const char *path);
tn_status tn_make_dirs(const char *path, unsigned mode);
/* The cache folder (TRUNNION_CACHE, else XDG_CACHE_HOME/trunnion, else HOME/.cache/trunnion), made with mode 0700. */
tn_status tn_cache_dir(char *out, size_t size);
/* Environment variables; `name` is a literal. A wrong value is told as a notice and counts as unset. */
const char *tn_env(const char *name);                        /* NULL when unset or empty */
int tn_env_word(const char *name, const char *const *words); /* place in the list that NULL ends; -1: unset */
bool tn_env_switch(const char *name, bool otherwise);        /* 0 or 1 */
int tn_env_int(const char *name, int least, int most, int otherwise);

/* ---- shared libraries (load.c) ----------------------------------------------------------------------------------- */

/* Why something cannot be used, for people (`text`, `fix`) and programs (`code`). */
typedef enum tn_reason_code {
    TN_REASON_NONE = 0,  /* usable */
    TN_REASON_NOT_BUILT, /* left out at build time */
    TN_REASON_PLATFORM,  /* does not exist on this operating system */
    TN_REASON_LIBRARY_NOT_FOUND,
    TN_REASON_SYMBOL_MISSING,
    TN_REASON_TOO_OLD,
    TN_REASON_PERMISSION,
    TN_REASON_NO_DEVICE,
    TN_REASON_NO_MEMORY, /* too little memory for what was asked */
    TN_REASON_INIT_FAILED,
    TN_REASON_CRASHED,       /* the library killed the probing child process */
    TN_REASON_PROCESS_LIMIT, /* of files, processes or memory of this process */
    TN_REASON_NOT_ASKED      /* only used when asked for by name */
} tn_reason_code;

typedef struct tn_reason {
    tn_reason_code code;
    char text[TN_REASON_BYTES];
    char fix[TN_REASON_BYTES];
} tn_reason;
const char *tn_reason_code_name(tn_reason_code code); /* "library_not_found" */
void tn_reason_set(tn_reason *r, tn_reason_code code, const char *fix, const char *format, ...) TN_PRINTF(4, 5);

typedef struct tn_symbol {
    const char *name;
    void **address; /* set to the symbol, or to NULL when it is optional and missing */
    bool optional;
} tn_symbol;

typedef struct tn_library_spec {
    const char *title;        /* "CUDA driver" */
    const char *env;          /* environment variable that overrides the names: a file or a folder; may be NULL */
    const char *const *names; /* candidates, tried in order, NULL-terminated; a '*' is globbed in known folders, and
                                 * "site-packages/…" is looked for below every folder of Python packages */
    const tn_symbol *symbols; /* may be NULL */
    size_t symbol_count;
    const char *fix; /* what to install */
} tn_library_spec;

/* Opens the first candidate that has all required symbols. NULL with *why filled otherwise. Never closed again: driver
 * libraries own threads and exit handlers. */
void *tn_library_open(const tn_library_spec *spec, tn_reason *why);
/* Finds the file that tn_library_open would load, without loading it; false when there is none. */
bool tn_library_locate(const tn_library_spec *spec, char *path, size_t size);

/* ---- processor (processor.c) ------------------------------------------------------------------------------------- */

typedef enum tn_isa { TN_ISA_BASE = 0, TN_ISA_AVX2, TN_ISA_AVX512, TN_ISA_COUNT } tn_isa;

typedef struct tn_cpu_info {
    char name[96];
    tn_isa isa;                  /* the best level that processor and system allow (TRUNNION_ISA lowers it) */
    bool vnni, bf16, f16c, neon; /* vnni: dot products of four bytes; ARM64's sdot and udot too */
    bool i8mm;                   /* ARM64: those of a byte without a sign and one with a sign (usdot) too */
    bool vbmi;                   /* AVX-512's permutations of bytes */
    bool avx_vnni;               /* vnni in the encoding of AVX2, whatever the level above it */
    int cores;                   /* processors this process may run on (affinity mask) */
    int usable_threads;          /* the same, cut by the cgroup quota, at least 1 */
    int64_t l1d, l2, l3;         /* bytes; sensible defaults when unknown */
} tn_cpu_info;
tn_cpu_info tn_cpu(void);       /* read once */
void tn_cpu_limit(tn_isa most); /* from now on tn_cpu names no higher level than this; what was chosen before stays */
const char *tn_isa_name(tn_isa isa); /* "baseline", "avx2", "avx512" */

/* Bytes that this process may use, in total and now, within the limits of its cgroups. Each call reads about twenty
 * files. */
typedef struct tn_host_memory {
    int64_t total, unused;
} tn_host_memory;
tn_host_memory tn_host_memory_now(void);
int64_t tn_resident_bytes(void);      /* of this process; 0 if the system does not report them */
int64_t tn_address_space_limit(void); /* bytes, of this process (ulimit -v); INT64_MAX: none */

/* ---- the one thread pool (threads.c) ----------------------------------------------------------------------------- */

/* Sets the pool's size, the caller included; 0 = usable_threads. Takes effect at the next tn_parallel. */
tn_status tn_threads_set(int n);
int tn_threads(void);

/* Limits tn_threads() and tn_parallel to `most` threads on the calling thread from now on; 0: no limit. Returns the
 * previous limit, to be restored. For work whose memory was allocated for a number of threads. */
int tn_threads_limit(int most);

/* Calls body(ctx, begin, end, worker) for parts of [0, n), each at least `grain` long except the last, on the pool and
 * the caller; returns when all are done. Parts are split statically: worker w of t gets the w-th run of grains. A
 * nested call, or one made while another thread uses the pool, runs completely on its own thread with worker 0. A body
 * must not fork() without exec. */
typedef void tn_parallel_body(void *ctx, int64_t begin, int64_t end, int worker);
void tn_parallel(int64_t n, int64_t grain, tn_parallel_body *body, void *ctx);

/* The same for work that may be split anywhere: each thread takes its part in chunks (multiples of `grain` except the
 * last), large ones first, and then steals chunks from the others, so that a thread whose processor other programs also
 * use delays nothing. A body is called several times with one worker, never twice at once. */
void tn_parallel_shared(int64_t n, int64_t grain, tn_parallel_body *body, void *ctx);

/* Called by a body: what its thread will read in a later call. While the thread waits for others it prefetches that,
 * line by line. Nothing is read, so the memory may be freed. */
void tn_parallel_expect(const void *from, int64_t bytes);
/* Takes `bytes` of it, to be prefetched by a kernel that leaves memory idle instead of by a wait. NULL: there is
 * less. */
const char *tn_parallel_expected(int64_t bytes);

/* For this thread's last call: the last worker that it had to wait for; 0: all workers had finished before it; -1:
 * there were no workers. */
int tn_parallel_awaited(void);

/* ---- JSON (json.c) ----------------------------------------------------------------------------------------------- */

/* The reader is public: json.h. This writer is not. */
typedef struct tn_json_writer {
    tn_str *out;
    int depth;
    uint64_t has_items; /* one bit a level */
    bool after_key;
} tn_json_writer;
void tn_json_begin_object(tn_json_writer *w);
void tn_json_end_object(tn_json_writer *w);
void tn_json_begin_array(tn_json_writer *w);
void tn_json_end_array(tn_json_writer *w);
void tn_json_put_key(tn_json_writer *w, const char *key);
void tn_json_put_string(tn_json_writer *w, const char *text);
void tn_json_put_number(tn_json_writer *w, double v); /* shortest text that reads back to the same double */
void tn_json_put_int(tn_json_writer *w, int64_t v);
void tn_json_put_bool(tn_json_writer *w, bool v);
void tn_json_put_null(tn_json_writer *w);

/* ==== options structs ============================================================================================= */

/* The mark's half of struct_size, in 32 bits and in 64; the lower half counts bytes. */
#define TN_OPTIONS_MARK_BITS (~(size_t)0xFFFF)

/* Bytes of `given` that have fields, struct_size included; 0 if it was not set by its initializer, or has more than the
 * `known` ones. */
static inline size_t tn_options_covers(const void *given, size_t known) {
    size_t size;
    memcpy(&size, given, sizeof size);
    size_t bytes = size & ~TN_OPTIONS_MARK_BITS;
    bool started = (size & TN_OPTIONS_MARK_BITS) == TN_OPTIONS_MARK;
    return started && bytes >= sizeof size && bytes <= known ? bytes : 0;
}

/* Sets and returns the error for a struct for which tn_options_covers is 0. */
tn_status tn_options_refuse(const void *given, size_t known, const char *function, const char *initialiser);

/* For structs that are also results: copies the fields of `from` to `given`, as far as `given` has them.
 * tn_options_read must have accepted `given`. */
void tn_options_write(void *given, const void *from);

/* ==== limits of control groups ==================================================================================== */

typedef struct tn_cgroup_limits {
    double processors;   /* quota in processors, 0 when there is none */
    int64_t memory;      /* bytes, 0 when there is no limit */
    int64_t memory_free; /* bytes that may still be taken; meaningful when `memory` is not 0 */
} tn_cgroup_limits;

/* Reads versions 1 and 2. `root` is put before every path; "" is the real system, tests give a folder. */
tn_cgroup_limits tn_cgroup_read(const char *root);

/* ==== pinning workers to processors =============================================================================== */

enum { TN_MOST_THREADS = 512 }; /* of the pool, its caller included */

/* Whether workers should be pinned now. `crowded`: since the last call a worker lost much time to other programs. Then
 * nothing is pinned for a while, which is short at first and doubles each time this happens again at once. */
typedef struct tn_pin_pause {
    double until, length, tied_since;
} tn_pin_pause;
bool tn_pin_may_tie(tn_pin_pause *p, double now, bool crowded);

#endif
