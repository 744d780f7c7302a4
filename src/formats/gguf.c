/* gguf.c — reads GGUF files: language models with everything needed to run them, in one mapping.
 *
 * A file is a header (magic, version, two counts), key-value pairs, one description a tensor, and from the next
 * multiple of the alignment on the tensors' bytes. Files come from strangers: one pass when the file is opened checks
 * all that it claims, so that afterwards a value or a tensor is nothing but a pointer into the mapping. Tables grow
 * with what has really been read, never with what a count claims. Strings of an array differ in length: every
 * MARK_STEP-th place is kept, so that any item is near one. An open file is counted; every tensor made without a copy
 * holds it.
 *
 * A model may be split over files "…-00001-of-00003.gguf": the first has the metadata, and it opens the others, whose
 * tensors join its tables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "formats/gguf.h"
#include "trunnion/model.h"

enum {
    MAX_NAME = 65535,   /* bytes of a key, by the format's description; taken for tensors too */
    MAX_KEYS = 1 << 16, /* thousands of times what models have */
    MAX_TENSORS = 1 << 18,
    MAX_NESTING = 4,            /* arrays in arrays */
    MIN_PAIR = 8 + 4 + 1,       /* bytes of the smallest key-value pair: an empty key with one byte */
    MIN_TENSOR = 8 + 4 + 4 + 8, /* and of the smallest description of a tensor */
    MARK_STEP = 16,             /* strings between two kept places */
    MAX_PARTS = 9999,           /* files of one model */
    PARTS_NAME = 20,            /* characters of "-00001-of-00003.gguf" */
    BLOCK_ALIGNMENT = 4         /* what kernels that read blocks ask for */
};

static const tn_gguf_dtype dtype_rows[] = {
    {0, "F32", TN_F32, 1, 4, NULL},
    {1, "F16", TN_F16, 1, 2, NULL},
    {2, "Q4_0", TN_Q4_0, 32, 18, NULL},
    {3, "Q4_1", TN_Q4_1, 32, 20, NULL},
    {6, "Q5_0", TN_Q5_0, 32, 22, NULL},
    {7, "Q5_1", TN_Q5_1, 32, 24, NULL},
    {8, "Q8_0", TN_Q8_0, 32, 34, NULL},
    {10, "Q2_K", TN_Q2_K, 256, 84, NULL},
    {11, "Q3_K", TN_Q3_K, 256, 110, NULL},
    {12, "Q4_K", TN_Q4_K, 256, 144, NULL},
    {13, "Q5_K", TN_Q5_K, 256, 176, NULL},
    {14, "Q6_K", TN_Q6_K, 256, 210, NULL},
    {16, "IQ2_XXS", TN_Q8_X, 256, 66, tn_decode_iq2_xxs},
    {17, "IQ2_XS", TN_Q8_X, 256, 74, tn_decode_iq2_xs},
    {18, "IQ3_XXS", TN_Q8_X, 256, 98, tn_decode_iq3_xxs},
    {19, "IQ1_S", TN_Q8_X, 256, 50, tn_decode_iq1_s},
    {20, "IQ4_NL", TN_Q8_X, 32, 18, tn_decode_iq4_nl},
    {21, "IQ3_S", TN_Q8_X, 256, 110, tn_decode_iq3_s},
    {22, "IQ2_S", TN_Q8_X, 256, 82, tn_decode_iq2_s},
    {23, "IQ4_XS", TN_Q8_X, 256, 136, tn_decode_iq4_xs},
    {24, "I8", TN_I8, 1, 1, NULL},
    {25, "I16", TN_I16, 1, 2, NULL},
    {26, "I32", TN_I32, 1, 4, NULL},
    {27, "I64", TN_I64, 1, 8, NULL},
    {28, "F64", TN_F64, 1, 8, NULL},
    {29, "IQ1_M", TN_Q8_X, 256, 56, tn_decode_iq1_m},
    {30, "BF16", TN_BF16, 1, 2, NULL},
    {34, "TQ1_0", TN_Q8_X, 256, 54, tn_decode_tq1_0},
    {35, "TQ2_0", TN_Q8_X, 256, 66, tn_decode_tq2_0},
    {39, "MXFP4", TN_Q8_X, 32, 17, tn_decode_mxfp4},
    {40, "NVFP4", TN_Q8_X, 64, 36, tn_decode_nvfp4},
};

typedef enum value_class { CLASS_UNSIGNED, CLASS_SIGNED, CLASS_FLOAT, CLASS_BOOL, CLASS_OTHER } value_class;

typedef struct type_row {
    const char *name;
    uint8_t size; /* 0: varies */
    uint8_t class_;
} type_row;

static const type_row type_rows[TN_GGUF_TYPE_COUNT] = {
    [TN_GGUF_U8] = {"u8", 1, CLASS_UNSIGNED},      [TN_GGUF_I8] = {"i8", 1, CLASS_SIGNED},
    [TN_GGUF_U16] = {"u16", 2, CLASS_UNSIGNED},    [TN_GGUF_I16] = {"i16", 2, CLASS_SIGNED},
    [TN_GGUF_U32] = {"u32", 4, CLASS_UNSIGNED},    [TN_GGUF_I32] = {"i32", 4, CLASS_SIGNED},
    [TN_GGUF_F32] = {"f32", 4, CLASS_FLOAT},       [TN_GGUF_BOOL] = {"bool", 1, CLASS_BOOL},
    [TN_GGUF_STRING] = {"string", 0, CLASS_OTHER}, [TN_GGUF_ARRAY] = {"array", 0, CLASS_OTHER},
    [TN_GGUF_U64] = {"u64", 8, CLASS_UNSIGNED},    [TN_GGUF_I64] = {"i64", 8, CLASS_SIGNED},
    [TN_GGUF_F64] = {"f64", 8, CLASS_FLOAT},
};

size_t tn_gguf_type_size(int type) { return type_rows[type].size; }

struct tn_gguf_value {
    const tn_gguf *file;
    const char *key;
    size_t name_at; /* of the key in the file's names; `key` is set when these have their final address */
    tn_gguf_type type, item;
    int64_t count;
    size_t data, end; /* places of the first item and of what follows the last */
    size_t *marks;    /* strings of an array: places of items MARK_STEP, 2 · MARK_STEP …; NULL: none */
};

typedef struct entry {
    const tn_gguf *file; /* the part that holds it */
    const char *name;
    size_t name_at;
    const tn_gguf_dtype *type;
    size_t described; /* place of its description */
    int rank;
    int64_t shape[TN_MAX_RANK];
    int64_t begin, bytes; /* begin: after the start of all tensors' bytes, then place in the file */
} entry;

struct tn_gguf {
    _Atomic int32_t refs;
    char *path;
    tn_map map;
    tn_str names; /* keys and tensors' names, each terminated */
    tn_gguf_value *values;
    const tn_gguf_value **by_key; /* sorted */
    entry *entries;
    const entry **by_name;  /* sorted */
    const entry **in_order; /* all parts' entries */
    tn_gguf **parts;        /* the other files of a split model */
    size_t value_count, value_capacity, entry_count, entry_capacity, part_count;
    size_t all_count; /* entries of all parts */
};

/* ---- reading bytes ----------------------------------------------------------------------------------------------- */

/* A place in the file. Everything that is read goes through take(), which knows where the file ends. */
typedef struct cursor {
    const uint8_t *bytes;
    size_t size, at;
} cursor;

static tn_status take_gguf(cursor *c, size_t n, const char *what, const uint8_t **out) {
    if (n > c->size - c->at)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: %s needs %zu bytes, but the file ends after %zu", c->at, what, n,
                       c->size - c->at);
    *out = c->bytes + c->at;
    c->at += n;
    return TN_OK;
}

static uint64_t little_endian(const uint8_t *bytes, size_t n) {
    uint64_t v = 0;
    for (size_t i = n; i > 0; i--)
        v = v << 8 | bytes[i - 1];
    return v;
}

static tn_status take_u32(cursor *c, const char *what, uint32_t *out) {
    const uint8_t *bytes;
    TRY(take_gguf(c, 4, what, &bytes));
    *out = (uint32_t)little_endian(bytes, 4);
    return TN_OK;
}

static tn_status take_u64(cursor *c, const char *what, uint64_t *out) {
    const uint8_t *bytes;
    TRY(take_gguf(c, 8, what, &bytes));
    *out = little_endian(bytes, 8);
    return TN_OK;
}

/* A count: at most `most`, and the rest of the file must have `each` bytes for each item. */
static tn_status take_count(cursor *c, const char *what, size_t each, size_t most, size_t *out) {
    size_t at = c->at;
    uint64_t n;
    TRY(take_u64(c, what, &n));
    if (n > (c->size - c->at) / each)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: %s is %llu, more than the file's remaining %zu bytes can hold", at,
                       what, (unsigned long long)n, c->size - c->at);
    if (n > most)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: %s is %llu; the limit is %zu", at, what, (unsigned long long)n, most);
    *out = (size_t)n;
    return TN_OK;
}

static tn_status take_text(cursor *c, const char *what, const uint8_t **text, size_t *length) {
    TRY(take_count(c, what, 1, SIZE_MAX, length));
    return take_gguf(c, *length, what, text);
}

/* A key or a tensor's name is copied, so that it can be shown and compared as text:
 * nothing in it may disturb either. */
static tn_status take_name(tn_gguf *f, cursor *c, const char *what, size_t *name_at) {
    const uint8_t *text;
    size_t at = c->at, length;
    TRY(take_text(c, what, &text, &length));
    if (length > MAX_NAME)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: %s has %zu bytes; the limit is %d", at, what, length, MAX_NAME);
    for (size_t i = 0; i < length; i++)
        if (text[i] < 0x20 || text[i] == 0x7f)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: the control character 0x%02x in %s", at + 8 + i, text[i], what);
    *name_at = f->names.length;
    tn_str_addn(&f->names, (const char *)text, length);
    tn_str_addn(&f->names, "", 1);
    return f->names.failed ? tn_fail(TN_ERR_MEMORY, "out of memory for the names of keys and tensors") : TN_OK;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static tn_status check_bools(const uint8_t *bytes, size_t count, size_t at) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] > 1) return tn_fail(TN_ERR_FORMAT, "byte %zu: invalid bool value %u", at + i, bytes[i]);
    return TN_OK;
}

static tn_status take_type(cursor *c, const char *what, tn_gguf_type *out) {
    uint32_t number;
    size_t at = c->at;
    TRY(take_u32(c, what, &number));
    if (number >= TN_GGUF_TYPE_COUNT)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: %s is %u, which the format does not define", at, what, number);
    *out = (tn_gguf_type)number;
    return TN_OK;
}

static tn_status skip_strings(cursor *c, size_t count, size_t *marks) {
    for (size_t i = 0; i < count; i++) {
        const uint8_t *text;
        size_t length;
        if (marks && i > 0 && i % MARK_STEP == 0) marks[i / MARK_STEP - 1] = c->at;
        TRY(take_text(c, "a string's length", &text, &length));
    }
    return TN_OK;
}

static tn_status skip_array(cursor *c, int depth);

/* Goes over `count` items. Each has room in the file: callers have seen to it. */
static tn_status skip_items(cursor *c, tn_gguf_type type, size_t count, int depth, size_t *marks) {
    if (type == TN_GGUF_STRING) return skip_strings(c, count, marks);
    if (type == TN_GGUF_ARRAY) {
        for (size_t i = 0; i < count; i++)
            TRY(skip_array(c, depth + 1));
        return TN_OK;
    }
    const uint8_t *bytes;
    size_t at = c->at;
    TRY(take_gguf(c, count * type_rows[type].size, "a value", &bytes));
    return type == TN_GGUF_BOOL ? check_bools(bytes, count, at) : TN_OK;
}

static tn_status take_array(cursor *c, tn_gguf_type *item, size_t *count) {
    TRY(take_type(c, "the type of an array's items", item));
    size_t least = *item == TN_GGUF_ARRAY ? 4 + 8 : *item == TN_GGUF_STRING ? 8 : type_rows[*item].size;
    return take_count(c, "an array's length", least, SIZE_MAX, count);
}

static tn_status skip_array(cursor *c, int depth) {
    tn_gguf_type item;
    size_t count;
    if (depth > MAX_NESTING)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: arrays are nested more than %d deep", c->at, MAX_NESTING);
    TRY(take_array(c, &item, &count));
    return skip_items(c, item, count, depth, NULL);
}

static tn_status take_value(tn_gguf_value *v, cursor *c) {
    size_t count = 1;
    TRY(take_type(c, "the type of a value", &v->type));
    v->item = v->type;
    if (v->type == TN_GGUF_ARRAY) TRY(take_array(c, &v->item, &count));
    v->count = (int64_t)count;
    v->data = c->at;
    if (v->item == TN_GGUF_STRING && count > MARK_STEP) {
        v->marks = tn_mem_zalloc((count - 1) / MARK_STEP, sizeof *v->marks);
        if (!v->marks) return TN_ERR_MEMORY;
    }
    TRY(skip_items(c, v->item, count, 1, v->marks));
    v->end = c->at;
    return TN_OK;
}

static tn_status read_values(tn_gguf *f, cursor *c, size_t count) {
    for (size_t i = 0; i < count; i++) {
        TRY(tn_mem_reserve(&f->values, &f->value_capacity, i + 1, sizeof *f->values));
        tn_gguf_value *v = &f->values[i];
        *v = (tn_gguf_value){.file = f};
        f->value_count++;
        TRY(take_name(f, c, "a key", &v->name_at));
        tn_status status = take_value(v, c);
        if (status != TN_OK) return tn_fail_prefix(status, "key '%.100s'", f->names.text + v->name_at);
    }
    return TN_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const tn_gguf_dtype *tn_gguf_dtype_numbered(uint32_t number) {
    for (size_t i = 0; i < TN_COUNT(dtype_rows); i++)
        if (dtype_rows[i].number == number) return &dtype_rows[i];
    return NULL;
}

const tn_gguf_dtype *tn_gguf_dtype_named(const char *name) {
    for (size_t i = 0; i < TN_COUNT(dtype_rows); i++)
        if (strcmp(dtype_rows[i].name, name) == 0) return &dtype_rows[i];
    return NULL;
}

const tn_gguf_dtype *tn_gguf_dtype_of(tn_dtype dtype) {
    for (size_t i = 0; i < TN_COUNT(dtype_rows); i++)
        if (dtype_rows[i].dtype == dtype && !dtype_rows[i].decode) return &dtype_rows[i];
    return NULL;
}

bool tn_gguf_bytes(const tn_gguf_dtype *type, int rank, const int64_t *shape, int64_t *out) {
    int64_t row = rank > 0 ? shape[rank - 1] : 1;
    if (row % type->block != 0) return false;
    bool over = tn_mul_overflow(row / type->block, type->bytes, out);
    for (int d = 0; d + 1 < rank && !over; d++)
        over = tn_mul_overflow(*out, shape[d], out);
    return !over;
}

/* The file names the contiguous dim first, PyTorch last. */
static tn_status take_shape(entry *e, cursor *c) {
    uint32_t rank;
    size_t at = c->at;
    TRY(take_u32(c, "a tensor's number of dimensions", &rank));
    if (rank > TN_MAX_RANK)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: %u dimensions; the limit is %d", at, rank, TN_MAX_RANK);
    e->rank = (int)rank;
    for (uint32_t d = rank; d > 0; d--) {
        uint64_t extent;
        at = c->at;
        TRY(take_u64(c, "a tensor's extent", &extent));
        if (extent > INT64_MAX)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: extent %llu is out of range", at, (unsigned long long)extent);
        e->shape[d - 1] = (int64_t)extent;
    }
    return TN_OK;
}

static tn_status count_bytes(entry *e, size_t at) {
    if (tn_gguf_bytes(e->type, e->rank, e->shape, &e->bytes)) return TN_OK;
    int64_t row = e->rank > 0 ? e->shape[e->rank - 1] : 1;
    if (row % e->type->block != 0)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: rows of %lld elements are not a multiple of %d, as %s requires", at,
                       (long long)row, e->type->block, e->type->name);
    return tn_fail(TN_ERR_FORMAT, "byte %zu: the shape has more than 2^63 bytes", at);
}

static tn_status take_entry(entry *e, cursor *c) {
    uint32_t number;
    uint64_t begin;
    TRY(take_shape(e, c));
    size_t at = c->at;
    TRY(take_u32(c, "a tensor's type", &number));
    e->type = tn_gguf_dtype_numbered(number);
    if (!e->type) return tn_fail(TN_ERR_FORMAT, "byte %zu: unknown type %u", at, number);
    TRY(count_bytes(e, e->described));
    at = c->at;
    TRY(take_u64(c, "a tensor's offset", &begin));
    if (begin > INT64_MAX)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: the offset %llu is outside any file", at, (unsigned long long)begin);
    e->begin = (int64_t)begin;
    return TN_OK;
}

static tn_status read_entries(tn_gguf *f, cursor *c, size_t count) {
    for (size_t i = 0; i < count; i++) {
        TRY(tn_mem_reserve(&f->entries, &f->entry_capacity, i + 1, sizeof *f->entries));
        entry *e = &f->entries[i];
        *e = (entry){.file = f, .described = c->at};
        f->entry_count++;
        TRY(take_name(f, c, "a tensor's name", &e->name_at));
        tn_status status = take_entry(e, c);
        if (status != TN_OK) return tn_fail_prefix(status, "tensor '%.100s'", f->names.text + e->name_at);
    }
    return TN_OK;
}

/* ---- what keys and tensors must be together ---------------------------------------------------------------------- */

static int compare_key(const void *a, const void *b) {
    return strcmp((*(const tn_gguf_value *const *)a)->key, (*(const tn_gguf_value *const *)b)->key);
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(const entry *const *)a)->name, (*(const entry *const *)b)->name);
}

static int compare_place(const void *a, const void *b) {
    const entry *x = *(const entry *const *)a, *y = *(const entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Sorted tables: they find any name in a few comparisons, whatever names a file was made of. */
static tn_status sort_keys(tn_gguf *f) {
    f->by_key = tn_mem_zalloc(f->value_count, sizeof *f->by_key);
    if (!f->by_key) return TN_ERR_MEMORY;
    for (size_t i = 0; i < f->value_count; i++) {
        f->values[i].key = f->names.text + f->values[i].name_at;
        f->by_key[i] = &f->values[i];
    }
    qsort(f->by_key, f->value_count, sizeof *f->by_key, compare_key);
    for (size_t i = 1; i < f->value_count; i++)
        if (strcmp(f->by_key[i - 1]->key, f->by_key[i]->key) == 0)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: the key '%.100s' occurs twice",
                           f->by_key[i - 1] > f->by_key[i] ? f->by_key[i - 1]->data : f->by_key[i]->data,
                           f->by_key[i]->key);
    return TN_OK;
}

static tn_status sort_names(tn_gguf *f) {
    qsort(f->by_name, f->all_count, sizeof *f->by_name, compare_name);
    for (size_t i = 1; i < f->all_count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: two tensors are named '%.100s'",
                           f->by_name[i - 1] > f->by_name[i] ? f->by_name[i - 1]->described : f->by_name[i]->described,
                           f->by_name[i]->name);
    return TN_OK;
}

/* Turns places after `start` into places in the file. */
static tn_status place_entry(const tn_gguf *f, entry *e, int64_t start, int64_t alignment) {
    int64_t end;
    if (e->begin % alignment != 0)
        return tn_fail(TN_ERR_FORMAT,
                       "byte %zu: tensor '%.100s' has offset %lld, which is not a multiple of the alignment %lld",
                       e->described, e->name, (long long)e->begin, (long long)alignment);
    bool over = tn_add_overflow(e->begin, start, &e->begin) || tn_add_overflow(e->begin, e->bytes, &end);
    if (over || (uint64_t)end > f->map.size)
        return tn_fail(TN_ERR_FORMAT,
                       "byte %zu: tensor '%.100s' has %lld bytes from byte %lld on, but the file ends at %zu: it is "
                       "truncated or damaged",
                       e->described, e->name, (long long)e->bytes, (long long)e->begin, f->map.size);
    return TN_OK;
}

static tn_status check_overlaps(tn_gguf *f) {
    qsort(f->by_name, f->entry_count, sizeof *f->by_name, compare_place);
    const entry *last = NULL;
    for (size_t i = 0; i < f->entry_count; i++) {
        const entry *e = f->by_name[i];
        if (e->bytes == 0) continue;
        if (last && e->begin < last->begin + last->bytes)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: tensor '%.100s' begins at byte %lld, inside '%.100s'",
                           e->described, e->name, (long long)e->begin, last->name);
        last = e;
    }
    return TN_OK;
}

static tn_status place_entries(tn_gguf *f, size_t start, int64_t alignment) {
    f->by_name = tn_mem_zalloc(f->entry_count, sizeof *f->by_name);
    if (!f->by_name) return TN_ERR_MEMORY;
    for (size_t i = 0; i < f->entry_count; i++) {
        entry *e = &f->entries[i];
        e->name = f->names.text + e->name_at;
        f->by_name[i] = e;
        TRY(place_entry(f, e, (int64_t)start, alignment));
    }
    return check_overlaps(f);
}

static tn_status read_alignment(const tn_gguf *f, int64_t *out) {
    *out = TN_GGUF_ALIGNMENT;
    const tn_gguf_value *v = tn_gguf_get(f, "general.alignment");
    if (!v) return TN_OK;
    bool is_int = v->type != TN_GGUF_ARRAY && tn_gguf_int(v, 0, out) == TN_OK;
    if (!is_int || *out < 1 || *out > TN_GGUF_MAX_ALIGNMENT || (*out & (*out - 1)) != 0)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: general.alignment must be a power of two up to %d", v->data,
                       TN_GGUF_MAX_ALIGNMENT);
    return TN_OK;
}

static int64_t elements_of(const entry *e) { return e->bytes / e->type->bytes * e->type->block; }

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void file_free(tn_gguf *f) {
    for (size_t i = 0; i < f->value_count; i++)
        tn_mem_free(f->values[i].marks);
    tn_mem_free_each(f->values, f->by_key, f->entries, f->by_name, f->in_order);
    tn_str_free(&f->names);
    tn_map_close(&f->map);
    tn_mem_free_each(f->path, f);
}

static void file_release(void *file) {
    tn_gguf *f = file;
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t i = 0; i < f->part_count; i++)
        file_free(f->parts[i]);
    tn_mem_free(f->parts);
    file_free(f);
}

static tn_status read_head(cursor *c, size_t *tensors, size_t *pairs) {
    const uint8_t *magic;
    uint32_t version;
    TRY(take_gguf(c, 4, "the GGUF magic number", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return tn_fail(TN_ERR_FORMAT, "byte 0: the file does not begin with \"GGUF\": not a GGUF file");
    TRY(take_u32(c, "the version", &version));
    if (version << 16 == 0 && version != 0)
        return tn_fail(TN_ERR_UNSUPPORTED, "byte 4: the file is big-endian; convert it to little-endian");
    if (version == 1)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "byte 4: version 1 is not supported; convert the model again (versions 2 and 3 are supported)");
    if (version != 2 && version != 3)
        return tn_fail(TN_ERR_FORMAT, "byte 4: version %u is not supported; versions 2 and 3 are", version);
    TRY(take_count(c, "the number of tensors", MIN_TENSOR, MAX_TENSORS, tensors));
    return take_count(c, "the number of keys", MIN_PAIR, MAX_KEYS, pairs);
}

static tn_status read_file_gguf(tn_gguf *f) {
    cursor c = {.bytes = f->map.data, .size = f->map.size};
    size_t tensors = 0, pairs = 0;
    int64_t alignment;
    TRY(read_head(&c, &tensors, &pairs));
    TRY(read_values(f, &c, pairs));
    TRY(read_entries(f, &c, tensors));
    TRY(sort_keys(f));
    TRY(read_alignment(f, &alignment));
    size_t behind = c.at % (size_t)alignment;
    return place_entries(f, behind ? c.at + (size_t)alignment - behind : c.at, alignment);
}

static tn_status open_file(tn_gguf *f, const char *path) {
    f->path = tn_mem_strdup(path);
    if (!f->path) return TN_ERR_MEMORY;
    TRY(tn_map_open(path, &f->map));
    tn_status status = read_file_gguf(f);
    for (size_t i = 0; i < f->entry_count && status == TN_OK; i++) {
        const entry *e = &f->entries[i]; /* no two overlap; what is decoded stays as in the file */
        if (!e->type->decode) tn_map_convert(e->type->dtype, f->map.data + e->begin, elements_of(e));
    }
    return status == TN_OK ? TN_OK : tn_fail_prefix(status, "'%s'", path);
}

/* ---- split models ------------------------------------------------------------------------------------------------ */

/* Part and number of parts, 0 and 1 where the file says nothing. */
static tn_status read_split(const tn_gguf *f, int64_t *part, int64_t *count) {
    *part = 0;
    *count = 1;
    const tn_gguf_value *v = tn_gguf_get(f, "split.count");
    if (!v) return TN_OK;
    TRY(tn_gguf_int(v, 0, count));
    if (tn_gguf_get(f, "split.no")) TRY(tn_gguf_get_int(f, "split.no", part));
    if (*count < 0 || *count > MAX_PARTS || *part < 0 || (*count > 0 && *part >= *count))
        return tn_fail(TN_ERR_FORMAT, "'%s': byte %zu: part %lld of %lld is out of range", f->path, v->data,
                       (long long)*part, (long long)*count);
    *count = tn_max64(*count, 1);
    return TN_OK;
}

/* The name of part `i` (from 0): that of the first with another number. */
static tn_status part_path(const tn_gguf *f, int64_t i, int64_t count, tn_str *out) {
    char ending[PARTS_NAME + 16];
    size_t length = strlen(f->path);
    snprintf(ending, sizeof ending, "-%05d-of-%05d.gguf", 1, (int)count);
    if (length < PARTS_NAME || strcmp(f->path + length - PARTS_NAME, ending) != 0)
        return tn_fail(TN_ERR_FORMAT,
                       "'%s': byte %zu: the model is split into %lld files, so the name of this one must end with %s",
                       f->path, tn_gguf_get(f, "split.count")->data, (long long)count, ending);
    tn_str_addn(out, f->path, length - PARTS_NAME);
    tn_str_add(out, "-%05d-of-%05d.gguf", (int)i + 1, (int)count);
    return out->failed ? tn_fail(TN_ERR_MEMORY, "out of memory for a file's name") : TN_OK;
}

static tn_status open_part(tn_gguf *f, int64_t i, int64_t count) {
    int64_t part, parts;
    tn_str path = {0};
    tn_gguf *p = tn_mem_zalloc(1, sizeof *p);
    if (!p) return TN_ERR_MEMORY;
    f->parts[f->part_count++] = p;
    tn_status status = part_path(f, i, count, &path);
    if (status == TN_OK) status = open_file(p, path.text);
    tn_str_free(&path);
    TRY(status);
    TRY(read_split(p, &part, &parts));
    if (part != i || parts != count)
        return tn_fail(TN_ERR_FORMAT, "'%s': byte 0: its metadata says part %lld of %lld, its name %lld of %lld",
                       p->path, (long long)part + 1, (long long)parts, (long long)i + 1, (long long)count);
    return TN_OK;
}

static tn_status open_parts(tn_gguf *f) {
    int64_t part, count;
    TRY(read_split(f, &part, &count));
    if (part != 0)
        return tn_fail(TN_ERR_FORMAT, "'%s': byte %zu: this is part %lld of %lld: open the first part", f->path,
                       tn_gguf_get(f, "split.no")->data, (long long)part + 1, (long long)count);
    f->parts = tn_mem_zalloc((size_t)count, sizeof(tn_gguf *));
    if (!f->parts) return TN_ERR_MEMORY;
    for (int64_t i = 1; i < count; i++)
        TRY(open_part(f, i, count));
    return TN_OK;
}

/* All parts' entries, in the order of the files and by name. */
static tn_status join_parts(tn_gguf *f) {
    f->all_count = f->entry_count;
    for (size_t i = 0; i < f->part_count; i++)
        f->all_count += f->parts[i]->entry_count;
    tn_mem_free(f->by_name);
    f->by_name = tn_mem_zalloc(f->all_count, sizeof *f->by_name);
    f->in_order = tn_mem_zalloc(f->all_count, sizeof *f->in_order);
    if (!f->by_name || !f->in_order) return TN_ERR_MEMORY;
    size_t n = 0;
    for (size_t part = 0; part <= f->part_count; part++) {
        const tn_gguf *p = part == 0 ? f : f->parts[part - 1];
        for (size_t i = 0; i < p->entry_count; i++)
            f->by_name[n] = f->in_order[n] = &p->entries[i], n++;
    }
    tn_status status = sort_names(f);
    return status == TN_OK ? TN_OK : tn_fail_prefix(status, "'%s'", f->path);
}

tn_status tn_gguf_open(const char *path, tn_gguf **out) {
    if (!out) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_open: out is NULL");
    *out = NULL;
    if (!path) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_open: the path is NULL");
    tn_gguf *f = tn_mem_zalloc(1, sizeof *f);
    if (!f) return TN_ERR_MEMORY;
    atomic_init(&f->refs, 1);
    tn_status status = open_file(f, path);
    if (status == TN_OK) status = open_parts(f);
    if (status == TN_OK) status = join_parts(f);
    if (status == TN_OK)
        *out = f;
    else
        file_release(f);
    return status;
}

void tn_gguf_close(tn_gguf *file) { file_release(file); }

const char *tn_gguf_path(const tn_gguf *file) { return file ? file->path : ""; }

/* ---- looking at metadata ----------------------------------------------------------------------------------------- */

int64_t tn_gguf_key_count(const tn_gguf *file) { return file ? (int64_t)file->value_count : 0; }

const char *tn_gguf_key(const tn_gguf *file, int64_t i) {
    return i >= 0 && i < tn_gguf_key_count(file) ? file->values[i].key : NULL;
}

const tn_gguf_value *tn_gguf_get(const tn_gguf *file, const char *key) {
    if (!file || !key) return NULL;
    const tn_gguf_value wanted = {.key = key}, *like = &wanted;
    const tn_gguf_value **found = bsearch(&like, file->by_key, file->value_count, sizeof like, compare_key);
    return found ? *found : NULL;
}

tn_gguf_type tn_gguf_type_of(const tn_gguf_value *v) { return v ? v->type : TN_GGUF_TYPE_COUNT; }
tn_gguf_type tn_gguf_item_type(const tn_gguf_value *v) { return v ? v->item : TN_GGUF_TYPE_COUNT; }
int64_t tn_gguf_length(const tn_gguf_value *v) { return v ? v->count : 0; }
int64_t tn_gguf_offset(const tn_gguf_value *v) { return v ? (int64_t)v->data : -1; }

const uint8_t *tn_gguf_value_bytes(const tn_gguf_value *v, size_t *bytes) {
    *bytes = v->end - v->data;
    return v->file->map.data + v->data;
}

static tn_status wrong_type(const tn_gguf_value *v, const char *wanted) {
    return tn_fail(TN_ERR_FORMAT, "'%s': byte %zu: key '%.100s' is %s%s; expected %s", v->file->path, v->data, v->key,
                   v->type == TN_GGUF_ARRAY ? "an array of " : "", type_rows[v->item].name, wanted);
}

static tn_status check_item(const tn_gguf_value *v, int64_t i, const void *out) {
    if (!v || !out) return tn_fail(TN_ERR_ARGUMENT, "GGUF metadata: the value or the output pointer is NULL");
    if (i < 0 || i >= v->count)
        return tn_fail(TN_ERR_ARGUMENT, "'%s': key '%.100s' has %lld items; index %lld is out of range", v->file->path,
                       v->key, (long long)v->count, (long long)i);
    return TN_OK;
}

static uint64_t item_bits(const tn_gguf_value *v, int64_t i) {
    size_t size = type_rows[v->item].size;
    return little_endian(v->file->map.data + v->data + (size_t)i * size, size);
}

static int64_t extend_sign(uint64_t bits, size_t bytes) {
    uint64_t sign = 1ull << (8 * bytes - 1);
    return (int64_t)((bits ^ sign) - sign);
}

tn_status tn_gguf_int(const tn_gguf_value *v, int64_t i, int64_t *out) {
    TRY(check_item(v, i, out));
    const type_row *t = &type_rows[v->item];
    if (t->class_ == CLASS_FLOAT || t->class_ == CLASS_OTHER) return wrong_type(v, "an integer");
    uint64_t bits = item_bits(v, i);
    if (t->class_ == CLASS_SIGNED) {
        *out = extend_sign(bits, t->size);
        return TN_OK;
    }
    if (bits > INT64_MAX)
        return tn_fail(TN_ERR_FORMAT, "'%s': byte %zu: key '%.100s' holds %llu, which exceeds 63 bits", v->file->path,
                       v->data, v->key, (unsigned long long)bits);
    *out = (int64_t)bits;
    return TN_OK;
}

tn_status tn_gguf_float(const tn_gguf_value *v, int64_t i, double *out) {
    TRY(check_item(v, i, out));
    const type_row *t = &type_rows[v->item];
    if (t->class_ == CLASS_BOOL || t->class_ == CLASS_OTHER) return wrong_type(v, "a number");
    uint64_t bits = item_bits(v, i);
    uint32_t low = (uint32_t)bits;
    float narrow;
    memcpy(&narrow, &low, sizeof narrow);
    if (t->class_ == CLASS_UNSIGNED)
        *out = (double)bits;
    else if (t->class_ == CLASS_SIGNED)
        *out = (double)extend_sign(bits, t->size);
    else if (t->size == sizeof narrow)
        *out = narrow;
    else
        memcpy(out, &bits, sizeof *out);
    return TN_OK;
}

tn_status tn_gguf_bool(const tn_gguf_value *v, int64_t i, bool *out) {
    TRY(check_item(v, i, out));
    if (v->item != TN_GGUF_BOOL) return wrong_type(v, "a bool");
    *out = item_bits(v, i) != 0;
    return TN_OK;
}

/* Lengths were checked when the file was opened. */
tn_status tn_gguf_string(const tn_gguf_value *v, int64_t i, const char **text, int64_t *length) {
    TRY(check_item(v, i, text));
    if (!length) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_string: length is NULL");
    if (v->item != TN_GGUF_STRING) return wrong_type(v, "a string");
    const uint8_t *bytes = v->file->map.data;
    const uint8_t *at = bytes + (i < MARK_STEP ? v->data : v->marks[i / MARK_STEP - 1]);
    for (int64_t skip = i % MARK_STEP; skip > 0; skip--)
        at += 8 + little_endian(at, 8);
    *length = (int64_t)little_endian(at, 8);
    *text = (const char *)at + 8;
    return TN_OK;
}

static tn_status need_scalar(const tn_gguf *file, const char *key, const tn_gguf_value **out) {
    if (!file || !key) return tn_fail(TN_ERR_ARGUMENT, "GGUF metadata: the file or the key is NULL");
    *out = tn_gguf_get(file, key);
    if (!*out) return tn_fail(TN_ERR_FORMAT, "'%s' has no key '%.100s'", file->path, key);
    return (*out)->type == TN_GGUF_ARRAY ? wrong_type(*out, "one value") : TN_OK;
}

tn_status tn_gguf_get_int(const tn_gguf *file, const char *key, int64_t *out) {
    const tn_gguf_value *v;
    TRY(need_scalar(file, key, &v));
    return tn_gguf_int(v, 0, out);
}

tn_status tn_gguf_get_float(const tn_gguf *file, const char *key, double *out) {
    const tn_gguf_value *v;
    TRY(need_scalar(file, key, &v));
    return tn_gguf_float(v, 0, out);
}

tn_status tn_gguf_get_bool(const tn_gguf *file, const char *key, bool *out) {
    const tn_gguf_value *v;
    TRY(need_scalar(file, key, &v));
    return tn_gguf_bool(v, 0, out);
}

tn_status tn_gguf_get_string(const tn_gguf *file, const char *key, const char **text, int64_t *length) {
    const tn_gguf_value *v;
    TRY(need_scalar(file, key, &v));
    return tn_gguf_string(v, 0, text, length);
}

/* ---- looking at tensors ------------------------------------------------------------------------------------------ */

static const entry *find_entry(const tn_gguf *f, const char *name) {
    const entry wanted = {.name = name}, *like = &wanted;
    const entry **found = bsearch(&like, f->by_name, f->all_count, sizeof like, compare_name);
    return found ? *found : NULL;
}

static tn_status describe_gguf(const entry *e, tn_gguf_info *info) {
    tn_gguf_info full = {.name = e->name,
                         .dtype_name = e->type->name,
                         .dtype = e->type->dtype,
                         .rank = e->rank,
                         .data = e->file->map.data + e->begin,
                         .bytes = e->bytes,
                         .offset = e->begin};
    memcpy(full.shape, e->shape, sizeof full.shape);
    return tn_result_write(info, &full, sizeof full, "tn_gguf: info");
}

int64_t tn_gguf_count(const tn_gguf *file) { return file ? (int64_t)file->all_count : 0; }

tn_status tn_gguf_at(const tn_gguf *file, int64_t i, tn_gguf_info *info) {
    if (i < 0 || i >= tn_gguf_count(file))
        return tn_fail(TN_ERR_ARGUMENT, "tensor index %lld is out of range; the GGUF file has %lld tensors",
                       (long long)i, (long long)tn_gguf_count(file));
    return describe_gguf(file->in_order[i], info);
}

tn_status tn_gguf_find(const tn_gguf *file, const char *name, tn_gguf_info *info) {
    if (!file || !name) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_find: the file or the name is NULL");
    const entry *e = find_entry(file, name);
    if (!e) return tn_fail(TN_ERR_FORMAT, "'%s' has no tensor '%.100s'", file->path, name);
    return describe_gguf(e, info);
}

/* ---- blocks that are decoded ------------------------------------------------------------------------------------- */

typedef struct decoding {
    const tn_gguf_dtype *type;
    const uint8_t *from;
    tn_block_q8_x *to;
} decoding;

static void decode_blocks(void *ctx, int64_t begin, int64_t end, TN_UNUSED int worker) {
    const decoding *d = ctx;
    for (int64_t i = begin; i < end; i++)
        d->type->decode(d->from + i * d->type->bytes, d->to + i * (d->type->block / 32));
}

static tn_tensor *decoded_tensor(const entry *e) {
    enum { BLOCKS_A_PART = 256 };
    int64_t blocks = e->bytes / e->type->bytes;
    decoding d = {.type = e->type, .from = e->file->map.data + e->begin};
    d.to = tn_mem_zalloc((size_t)blocks * (size_t)(e->type->block / 32), sizeof *d.to);
    if (!d.to) return tn_failed(TN_ERR_MEMORY, "out of memory for tensor '%.100s'", e->name);
    tn_parallel(blocks, BLOCKS_A_PART, decode_blocks, &d);
    return tn_from_ptr(d.to, e->shape, e->rank, e->type->dtype, tn_mem_free, d.to);
}

tn_tensor *tn_gguf_tensor(const tn_gguf *file, const char *name) {
    if (!file || !name) return tn_failed(TN_ERR_ARGUMENT, "tn_gguf_tensor: the file or the name is NULL");
    const entry *e = find_entry(file, name);
    if (!e) return tn_failed(TN_ERR_FORMAT, "'%s' has no tensor '%.100s'", file->path, name);
    if (e->type->decode) return decoded_tensor(e);
    const uint8_t *bytes = e->file->map.data + e->begin;
    size_t alignment = e->type->block > 1 ? BLOCK_ALIGNMENT : e->type->bytes;
    if ((uintptr_t)bytes % alignment != 0) return tn_from_data(bytes, e->shape, e->rank, e->type->dtype);

    tn_gguf *owner = (tn_gguf *)(uintptr_t)file; /* counting does not change what the file says */
    atomic_fetch_add_explicit(&owner->refs, 1, memory_order_relaxed);
    return tn_from_ptr((void *)(uintptr_t)bytes, e->shape, e->rank, e->type->dtype, file_release, owner);
}

/* One row, in what stands in the file; of blocks that are decoded, a piece at a time. */
static tn_status read_row(const entry *e, size_t at, size_t bytes, char *out) {
    enum { PIECE = 64 };
    const tn_map *map = &e->file->map;
    if (!e->type->decode) return tn_map_read(map, at, out, bytes);
    uint8_t piece[PIECE * 256];
    tn_block_q8_x block[8];
    size_t each = (size_t)(e->type->block / 32) * sizeof *block, most = sizeof piece / e->type->bytes * e->type->bytes;
    for (size_t done = 0; done < bytes; done += most) {
        size_t n = bytes - done < most ? bytes - done : most;
        TRY(tn_map_read(map, at + done, piece, n));
        for (size_t i = 0; i < n; i += e->type->bytes, out += each) {
            e->type->decode(piece + i, block);
            memcpy(out, block, each);
        }
    }
    return TN_OK;
}

tn_status tn_gguf_rows(const tn_gguf *file, const char *name, const int64_t *rows, int64_t count, void *out) {
    if (!file || !name || (count > 0 && (!rows || !out)))
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_rows: an argument is NULL");
    const entry *e = find_entry(file, name);
    if (!e) return tn_fail(TN_ERR_FORMAT, "'%s' has no tensor '%.100s'", file->path, name);
    if (e->rank != 2)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_rows: '%.100s' has rank %d; it must be a matrix", name, e->rank);
    size_t row = e->shape[0] ? (size_t)(e->bytes / e->shape[0]) : 0;
    size_t each = tn_dtype_bytes(e->type->dtype, e->shape[1]);
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= e->shape[0])
            return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_rows: '%.100s' has %lld rows; row %lld is out of range", name,
                           (long long)e->shape[0], (long long)rows[i]);
        TRY(read_row(e, (size_t)e->begin + (size_t)rows[i] * row, row, (char *)out + (size_t)i * each));
        if (!e->type->decode) tn_dtype_little_endian(e->type->dtype, (char *)out + (size_t)i * each, e->shape[1]);
    }
    return TN_OK;
}
