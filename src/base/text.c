/* text.c — error messages, log lines, growing strings, the content hash; dtype names; options structs; the C locale.
 *
 * A failure must be reportable when memory has run out, so the error slot is a fixed buffer in thread-local storage and
 * tn_fail formats into the stack first: its arguments may point into the very text that it replaces. */
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "trunnion/backend.h"

enum { ERROR_TEXT_SIZE = 4096, LOG_LINE_SIZE = 2048 };

typedef struct error_slot {
    tn_status code;
    char text[ERROR_TEXT_SIZE];
} error_slot;

static _Thread_local error_slot last_error;

static const char *const status_names[] = {
    [TN_OK] = "ok",
    [TN_ERR_ARGUMENT] = "invalid argument",
    [TN_ERR_SHAPE] = "incompatible shapes",
    [TN_ERR_DTYPE] = "incompatible data types",
    [TN_ERR_MEMORY] = "out of memory",
    [TN_ERR_UNAVAILABLE] = "not available",
    [TN_ERR_DEVICE] = "device error",
    [TN_ERR_LOST] = "device lost",
    [TN_ERR_IO] = "input/output error",
    [TN_ERR_FORMAT] = "malformed file",
    [TN_ERR_UNSUPPORTED] = "not supported",
    [TN_ERR_STATE] = "called in the wrong state",
    [TN_ERR_INTERNAL] = "internal error",
};

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The longest length of at most `limit` bytes that does not cut a UTF-8 sequence of `text` in two. */
static size_t utf8_floor(const char *text, size_t limit) {
    size_t n = strnlen(text, limit + 1);
    if (n <= limit) return n;
    n = limit;
    while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    return n;
}

static void set_error(tn_status code, const char *text) {
    size_t n = utf8_floor(text, ERROR_TEXT_SIZE - 1);
    memmove(last_error.text, text, n);
    last_error.text[n] = '\0';
    last_error.code = code;
}

tn_status tn_fail_args(tn_status code, const char *format, va_list args) {
    char text[ERROR_TEXT_SIZE + 8]; /* longer than the slot, so that set_error sees where a sequence is cut */
    int n = vsnprintf(text, sizeof text, format, args);
    set_error(code, n < 0 ? format : text);
    return code;
}

tn_status(tn_fail)(tn_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    code = tn_fail_args(code, format, args);
    va_end(args);
    return code;
}

/* Removes the text's prefix if it is the same device's name as that of `prefix`, so that it is printed once. */
static const char *without_name(const char *text, const char *prefix) {
    const char *colon = strstr(prefix, ": ");
    size_t n = colon ? (size_t)(colon - prefix) + 2 : 0;
    return n && strncmp(text, prefix, n) == 0 ? text + n : text;
}

tn_status tn_fail_prefix(tn_status code, const char *format, ...) {
    char text[2 * ERROR_TEXT_SIZE + 8];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, ERROR_TEXT_SIZE, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? ": " : "", without_name(last_error.text, text));
    set_error(code, text);
    return code;
}

tn_status tn_need(const void *p, const char *what) { return p ? TN_OK : tn_fail(TN_ERR_ARGUMENT, "%s is NULL", what); }

tn_status tn_error_code(void) { return last_error.code; }

const char *tn_error(void) { return last_error.text; }

void tn_error_clear(void) { set_error(TN_OK, ""); }

const char *tn_status_name(tn_status s) {
    return (size_t)s < TN_COUNT(status_names) ? status_names[s] : "unknown status";
}

#define STRINGIFY_VALUE(x) #x
#define STRINGIFY(x) STRINGIFY_VALUE(x)

const char *tn_version(void) {
    return STRINGIFY(TN_VERSION_MAJOR) "." STRINGIFY(TN_VERSION_MINOR) "." STRINGIFY(TN_VERSION_PATCH);
}

/* ---- log --------------------------------------------------------------------------------------------------------- */

/* Read once: a level that changes while threads log would need more than an environment variable. */
static int log_level(void) {
    static _Atomic int cached = -1;
    int level = atomic_load_explicit(&cached, memory_order_relaxed);
    if (level >= 0) return level;
    atomic_store_explicit(&cached, TN_LOG_NOTICE, memory_order_relaxed); /* the level of a notice about the variable */
    level = tn_env_int("TRUNNION_LOG", 0, TN_LOG_VERBOSE, TN_LOG_NOTICE);
    atomic_store_explicit(&cached, level, memory_order_relaxed);
    return level;
}

void tn_log_line(tn_log_level level, const char *format, ...) {
    if ((int)level > log_level()) return;
    char line[LOG_LINE_SIZE];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) return;
    fprintf(stderr, "trunnion: %s\n", line); /* one call a line, so that lines of several threads do not mix */
}

/* ---- texts of a fixed size --------------------------------------------------------------------------------------- */

size_t tn_text_put(char *text, size_t size, size_t used, const char *words) {
    while (*words && used + 1 < size)
        text[used++] = *words++;
    text[used] = '\0';
    return used;
}

size_t tn_text_put_number(char *text, size_t size, size_t used, int64_t number) {
    char digits[24], *at = digits + sizeof digits - 1;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    *at = '\0';
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (number < 0) *--at = '-';
    return tn_text_put(text, size, used, at);
}

/* ---- growing strings --------------------------------------------------------------------------------------------- */

/* Makes room for `more` bytes and the NUL. After the first failure nothing is added any more: a text with a gap in the
 * middle would be worse than a short one. */
static bool str_reserve(tn_str *s, size_t more) {
    if (s->failed) return false;
    if (more > SIZE_MAX - s->length - 1) {
        s->failed = true;
        return false;
    }
    if (tn_mem_grow(&s->text, &s->capacity, s->length + more + 1, 1) != TN_OK) {
        s->failed = true;
        return false;
    }
    return true;
}

void tn_str_addn(tn_str *s, const char *bytes, size_t n) {
    if (!str_reserve(s, n)) return;
    if (n > 0) memcpy(s->text + s->length, bytes, n);
    s->length += n;
    s->text[s->length] = '\0';
}

void tn_str_add(tn_str *s, const char *format, ...) {
    char small[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n < 0) {
        s->failed = true;
        return;
    }
    if ((size_t)n < sizeof small) {
        tn_str_addn(s, small, (size_t)n);
        return;
    }
    if (!str_reserve(s, (size_t)n)) return;
    va_start(args, format);
    vsnprintf(s->text + s->length, (size_t)n + 1, format, args);
    va_end(args);
    s->length += (size_t)n;
}

const char *tn_str_text(const tn_str *s) { return s->text != NULL ? s->text : ""; }

void tn_str_free(tn_str *s) {
    tn_mem_free(s->text);
    *s = (tn_str){0};
}

/* ---- hash -------------------------------------------------------------------------------------------------------- */

/* Odd constants: the golden ratio in 64 bits, and the two multipliers of the splitmix64 finaliser (Steele, Lea and
 * Flood, 2014), which spread every input bit over the word. */
static const uint64_t HASH_STEP = 0x9E3779B97F4A7C15u;
static const uint64_t HASH_MIX_1 = 0xBF58476D1CE4E5B9u;
static const uint64_t HASH_MIX_2 = 0x94D049BB133111EBu;

static uint64_t rotate_left(uint64_t x, int k) { return x << k | x >> (64 - k); }

/* Eight bytes as a little-endian number, whatever the machine's own order. */
static uint64_t load_word(const unsigned char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return TN_BIG_ENDIAN ? __builtin_bswap64(word) : word;
}

static uint64_t hash_word(uint64_t hash, uint64_t word) {
    word *= HASH_MIX_1;
    word = rotate_left(word, 31) * HASH_STEP;
    return rotate_left(hash ^ word, 27) * HASH_MIX_2 + HASH_STEP;
}

uint64_t tn_hash64(const void *bytes, size_t n, uint64_t seed) {
    const unsigned char *p = bytes;
    uint64_t hash = seed ^ ((uint64_t)n + 1) * HASH_STEP;
    size_t whole = n & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8)
        hash = hash_word(hash, load_word(p + i));
    if (whole < n) {
        unsigned char tail[8] = {0}; /* the length is in the hash already: padding cannot collide */
        memcpy(tail, p + whole, n - whole);
        hash = hash_word(hash, load_word(tail));
    }
    hash = (hash ^ hash >> 30) * HASH_MIX_1;
    hash = (hash ^ hash >> 27) * HASH_MIX_2;
    return hash ^ hash >> 31;
}

/* ==== dtypes: sizes and names ===================================================================================== */

typedef struct dtype_row {
    const char *name;
    size_t size;
    bool is_float;
    int64_t block; /* elements */
} dtype_row;

static const dtype_row dtype_table[TN_DTYPE_COUNT] = {
    [TN_F32] = {"f32", 4, true, 1},        [TN_F64] = {"f64", 8, true, 1},        [TN_I32] = {"i32", 4, false, 1},
    [TN_I64] = {"i64", 8, false, 1},       [TN_U32] = {"u32", 4, false, 1},       [TN_U64] = {"u64", 8, false, 1},
    [TN_BOOL] = {"bool", 1, false, 1},     [TN_F16] = {"f16", 2, true, 1},        [TN_BF16] = {"bf16", 2, true, 1},
    [TN_I8] = {"i8", 1, false, 1},         [TN_U8] = {"u8", 1, false, 1},         [TN_I16] = {"i16", 2, false, 1},
    [TN_U16] = {"u16", 2, false, 1},       [TN_Q4_0] = {"q4_0", 18, false, 32},   [TN_Q4_1] = {"q4_1", 20, false, 32},
    [TN_Q5_0] = {"q5_0", 22, false, 32},   [TN_Q5_1] = {"q5_1", 24, false, 32},   [TN_Q8_0] = {"q8_0", 34, false, 32},
    [TN_Q2_K] = {"q2_k", 84, false, 256},  [TN_Q3_K] = {"q3_k", 110, false, 256}, [TN_Q4_K] = {"q4_k", 144, false, 256},
    [TN_Q5_K] = {"q5_k", 176, false, 256}, [TN_Q6_K] = {"q6_k", 210, false, 256}, [TN_Q8_X] = {"q8_x", 40, false, 32},
};

static const dtype_row *find_row(tn_dtype t) {
    static const dtype_row invalid = {"invalid", 0, false, 1};
    return (unsigned)t < TN_DTYPE_COUNT ? &dtype_table[t] : &invalid;
}

size_t tn_dtype_size(tn_dtype t) { return find_row(t)->size; }

int64_t tn_dtype_block(tn_dtype t) { return find_row(t)->block; }

size_t tn_dtype_bytes(tn_dtype t, int64_t numel) { return (size_t)(numel / tn_dtype_block(t)) * tn_dtype_size(t); }

/* Places of the f16 factors in a block; -1: none. In blocks of TN_Q8_X, f32 factors are at bytes 0 and 4. */
static const int16_t factors_at[TN_DTYPE_COUNT][2] = {
    [TN_Q4_0] = {0, -1}, [TN_Q4_1] = {0, 2},    [TN_Q5_0] = {0, -1},   [TN_Q5_1] = {0, 2},
    [TN_Q8_0] = {0, -1}, [TN_Q2_K] = {80, 82},  [TN_Q3_K] = {108, -1}, [TN_Q4_K] = {0, 2},
    [TN_Q5_K] = {0, 2},  [TN_Q6_K] = {208, -1}, [TN_Q8_X] = {0, 4},
};

static void reverse(uint8_t *number, size_t size) {
    for (size_t i = 0; i < size / 2; i++) {
        uint8_t low = number[i];
        number[i] = number[size - 1 - i];
        number[size - 1 - i] = low;
    }
}

void tn_dtype_little_endian(tn_dtype t, void *numbers, int64_t numel) {
    const dtype_row *row = find_row(t);
    if (!TN_BIG_ENDIAN || !numbers || row->size <= 1) return;
    uint8_t *at = numbers;
    for (int64_t i = 0; i < numel / row->block; i++, at += row->size) {
        if (row->block == 1) reverse(at, row->size);
        for (int k = 0; k < 2 && row->block > 1 && factors_at[t][k] >= 0; k++)
            reverse(at + factors_at[t][k], t == TN_Q8_X ? sizeof(float) : sizeof(uint16_t));
    }
}

const char *tn_dtype_name(tn_dtype t) { return find_row(t)->name; }

bool tn_dtype_is_float(tn_dtype t) { return find_row(t)->is_float; }

/* ==== options structs of callers ================================================================================== */
/* A struct that was started from its TN_…_DEFAULTS carries a mark in struct_size (status.h). Without the mark, fields
 * that the caller did not set may be zeros instead of defaults, so the struct is refused; the error shows the line to
 * write. */

tn_status tn_options_refuse(const void *given, size_t known, const char *function, const char *initialiser) {
    size_t size, bytes;
    memcpy(&size, given, sizeof size);
    bytes = size & ~TN_OPTIONS_MARK_BITS;
    if ((size & TN_OPTIONS_MARK_BITS) == TN_OPTIONS_MARK && bytes > known)
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s: the options have %zu bytes, but this library supports %zu: the program was compiled with "
                       "newer headers; use headers and library of one version",
                       function, bytes, known);
    return tn_fail(TN_ERR_ARGUMENT,
                   "%s: the options were not initialized (struct_size is %zu): write %s; then set fields", function,
                   size, initialiser);
}

tn_status tn_options_read(void *to, const void *given, const char *function, const char *initialiser) {
    if (!to || !function || !initialiser) return tn_fail(TN_ERR_ARGUMENT, "tn_options_read: an argument is NULL");
    if (!given) return TN_OK;
    size_t known = tn_options_covers(to, SIZE_MAX), bytes = tn_options_covers(given, known);
    if (!bytes) return tn_options_refuse(given, known, function, initialiser);
    memcpy((char *)to + sizeof(size_t), (const char *)given + sizeof(size_t), bytes - sizeof(size_t));
    return TN_OK;
}

void tn_options_write(void *given, const void *from) {
    size_t bytes = tn_options_covers(given, SIZE_MAX);
    memcpy((char *)given + sizeof(size_t), (const char *)from + sizeof(size_t), bytes - sizeof(size_t));
}

tn_status tn_result_check(const void *given, const char *what) {
    size_t size = 0;
    if (!what) what = "a result";
    if (given) memcpy(&size, given, sizeof size);
    if (size >= sizeof size) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, given ? "%s: struct_size is not set; set it to the struct's sizeof" : "%s is NULL",
                   what);
}

tn_status tn_result_write(void *given, const void *from, size_t size, const char *what) {
    size_t room;
    TRY(tn_result_check(given, what));
    TRY(tn_need(from, "tn_result_write: from"));
    memcpy(&room, given, sizeof room);
    if (room > size) room = size;
    memcpy(given, from, room);
    memcpy(given, &room, sizeof room);
    return TN_OK;
}

/* ---- the C locale ------------------------------------------------------------------------------------------------ */

static locale_t c_locale; /* 0 when it could not be made */
static _Thread_local locale_t outer_locale;
static _Thread_local int c_locale_depth; /* of blocks; the outermost one restores */

static void make_c_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

tn_c_locale tn_c_locale_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_c_locale);
    tn_c_locale scope = {c_locale != (locale_t)0};
    if (scope.begun && c_locale_depth++ == 0) outer_locale = uselocale(c_locale);
    return scope;
}

void tn_c_locale_end(tn_c_locale *scope) {
    if (!scope || !scope->begun) return;
    scope->begun = false;
    if (--c_locale_depth == 0) uselocale(outer_locale);
}
