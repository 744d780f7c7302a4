/* gguf_save.c — writes GGUF files: metadata and descriptions gather in memory, tensors' bytes go straight to the file.
 *
 * Nothing is written before the first tensor's bytes come: until then the place of every tensor may still change. */
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"

typedef struct item {
    char *name;
    int64_t bytes;
    const tn_gguf_dtype *type;
} item;

struct tn_gguf_writer {
    tn_save *save;
    int64_t alignment, place; /* of the next tensor that is added */
    tn_str pairs, rows;       /* as they will stand in the file */
    char **keys;
    item *items;
    size_t key_count, key_capacity, item_count, item_capacity;
    bool started;      /* the head is written */
    size_t current;    /* the item whose bytes come next */
    int64_t written;   /* bytes of it */
    uint8_t unit[256]; /* big-endian machines: an element or block, of which `written` modulo its size is there */
};

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void add_number(tn_str *s, uint64_t v, size_t bytes) {
    char little[8];
    for (size_t i = 0; i < 8; i++)
        little[i] = (char)(v >> (8 * i) & 255);
    tn_str_addn(s, little, bytes);
}

static void add_text(tn_str *s, const char *text, size_t length) {
    add_number(s, length, 8);
    if (length > 0) tn_str_addn(s, text, length);
}

static tn_status no_memory(void) { return tn_fail(TN_ERR_MEMORY, "GGUF: out of memory for the header"); }

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static tn_status check_open(const tn_gguf_writer *w, const char *name) {
    TRY(tn_need(w, "GGUF: the writer"));
    TRY(tn_need(name, "GGUF: the name"));
    if (!w->started) return TN_OK;
    return tn_fail(TN_ERR_ARGUMENT, "GGUF: '%.100s' cannot be added after tensor data was written", name);
}

static tn_status begin_pair(tn_gguf_writer *w, const char *key, int type) {
    TRY(check_open(w, key));
    for (size_t i = 0; i < w->key_count; i++)
        if (strcmp(w->keys[i], key) == 0) return tn_fail(TN_ERR_ARGUMENT, "GGUF: the key '%.100s' exists already", key);
    TRY(tn_mem_reserve(&w->keys, &w->key_capacity, w->key_count + 1, sizeof *w->keys));
    char *copy = tn_mem_strdup(key);
    if (!copy) return TN_ERR_MEMORY;
    w->keys[w->key_count++] = copy;
    add_text(&w->pairs, key, strlen(key));
    add_number(&w->pairs, (uint64_t)type, 4);
    return w->pairs.failed ? no_memory() : TN_OK;
}

static tn_status end_pair(const tn_gguf_writer *w) { return w->pairs.failed ? no_memory() : TN_OK; }

typedef struct range {
    int64_t least, most;
} range;

static const range ranges[TN_GGUF_TYPE_COUNT] = {
    [TN_GGUF_U8] = {0, UINT8_MAX},
    [TN_GGUF_I8] = {INT8_MIN, INT8_MAX},
    [TN_GGUF_U16] = {0, UINT16_MAX},
    [TN_GGUF_I16] = {INT16_MIN, INT16_MAX},
    [TN_GGUF_U32] = {0, UINT32_MAX},
    [TN_GGUF_I32] = {INT32_MIN, INT32_MAX},
    [TN_GGUF_BOOL] = {0, 1},
    [TN_GGUF_U64] = {0, INT64_MAX},
    [TN_GGUF_I64] = {INT64_MIN, INT64_MAX},
};

tn_status tn_gguf_put_int(tn_gguf_writer *w, const char *key, tn_gguf_type type, int64_t v) {
    if ((unsigned)type >= TN_GGUF_TYPE_COUNT || ranges[type].most == 0)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_put_int: type %d is not an integer type", (int)type);
    if (v < ranges[type].least || v > ranges[type].most)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_put_int: %lld does not fit in '%.100s'", (long long)v, key ? key : "");
    TRY(begin_pair(w, key, (int)type));
    add_number(&w->pairs, (uint64_t)v, tn_gguf_type_size((int)type));
    return end_pair(w);
}

tn_status tn_gguf_put_float(tn_gguf_writer *w, const char *key, tn_gguf_type type, double v) {
    uint64_t bits;
    uint32_t low;
    float narrow = (float)v;
    if (type != TN_GGUF_F32 && type != TN_GGUF_F64)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_put_float: type %d is not a float type", (int)type);
    TRY(begin_pair(w, key, (int)type));
    memcpy(&low, &narrow, sizeof low);
    memcpy(&bits, &v, sizeof bits);
    if (type == TN_GGUF_F32) bits = low;
    add_number(&w->pairs, bits, tn_gguf_type_size((int)type));
    return end_pair(w);
}

tn_status tn_gguf_put_string(tn_gguf_writer *w, const char *key, const char *text, int64_t length) {
    if (length < 0 || (length > 0 && !text)) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_put_string: the text is NULL");
    TRY(begin_pair(w, key, TN_GGUF_STRING));
    add_text(&w->pairs, text, (size_t)length);
    return end_pair(w);
}

static tn_status begin_array(tn_gguf_writer *w, const char *key, int type, int64_t count, const void *items) {
    if (count < 0 || (count > 0 && !items))
        return tn_fail(TN_ERR_ARGUMENT, "GGUF: the array has %lld items, or its data is NULL", (long long)count);
    TRY(begin_pair(w, key, TN_GGUF_ARRAY));
    add_number(&w->pairs, (uint64_t)type, 4);
    add_number(&w->pairs, (uint64_t)count, 8);
    return end_pair(w);
}

tn_status tn_gguf_put_array(tn_gguf_writer *w, const char *key, tn_gguf_type type, int64_t count, const void *items) {
    int64_t bytes;
    size_t size = (unsigned)type < TN_GGUF_TYPE_COUNT ? tn_gguf_type_size((int)type) : 0;
    if (size == 0 || tn_mul_overflow(count, (int64_t)size, &bytes))
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_put_array: %lld items of type %d", (long long)count, (int)type);
    TRY(begin_array(w, key, (int)type, count, items));
    if (count > 0) tn_str_addn(&w->pairs, items, (size_t)bytes);
    if (w->pairs.failed) return no_memory();
    static const tn_dtype number_of[] = {[1] = TN_U8, [2] = TN_U16, [4] = TN_U32, [8] = TN_U64};
    if (count > 0) tn_dtype_little_endian(number_of[size], w->pairs.text + w->pairs.length - bytes, count);
    return TN_OK;
}

tn_status tn_gguf_put_strings(tn_gguf_writer *w, const char *key, int64_t count, const char *const *texts,
                              const int64_t *lengths) {
    for (int64_t i = 0; i < count && texts; i++)
        if (!texts[i] || (lengths && lengths[i] < 0))
            return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_put_strings: text %lld is NULL", (long long)i);
    TRY(begin_array(w, key, TN_GGUF_STRING, count, texts));
    for (int64_t i = 0; i < count; i++)
        add_text(&w->pairs, texts[i], lengths ? (size_t)lengths[i] : strlen(texts[i]));
    return end_pair(w);
}

tn_status tn_gguf_put_value(tn_gguf_writer *w, const char *key, const tn_gguf_value *v) {
    size_t bytes;
    TRY(tn_need(v, "tn_gguf_put_value: the value"));
    tn_gguf_type type = tn_gguf_type_of(v);
    const uint8_t *data = tn_gguf_value_bytes(v, &bytes);
    if (type == TN_GGUF_ARRAY)
        TRY(begin_array(w, key, (int)tn_gguf_item_type(v), tn_gguf_length(v), data));
    else
        TRY(begin_pair(w, key, (int)type));
    if (bytes > 0) tn_str_addn(&w->pairs, (const char *)data, bytes);
    return end_pair(w);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static tn_status check_tensor(const tn_gguf_info *t, const tn_gguf_dtype **type, int64_t *bytes) {
    *type = t->dtype_name ? tn_gguf_dtype_named(t->dtype_name) : tn_gguf_dtype_of(t->dtype);
    if (!*type)
        return tn_fail(TN_ERR_DTYPE, "GGUF: '%.100s' is %s, which the format cannot store", t->name,
                       t->dtype_name ? t->dtype_name : tn_dtype_name(t->dtype));
    if (t->rank < 0 || t->rank > TN_MAX_RANK)
        return tn_fail(TN_ERR_ARGUMENT, "GGUF: '%.100s' has rank %d, which is not supported", t->name, t->rank);
    for (int d = 0; d < t->rank; d++)
        if (t->shape[d] < 0) return tn_fail(TN_ERR_ARGUMENT, "GGUF: '%.100s' has a negative extent", t->name);
    if (!tn_gguf_bytes(*type, t->rank, t->shape, bytes))
        return tn_fail(TN_ERR_ARGUMENT, "GGUF: rows of '%.100s' are not a multiple of %d, as %s requires", t->name,
                       (*type)->block, (*type)->name);
    return TN_OK;
}

tn_status tn_gguf_add(tn_gguf_writer *w, const tn_gguf_info *t) {
    const tn_gguf_dtype *type;
    int64_t bytes, end;
    TRY(tn_need(t, "tn_gguf_add: the tensor"));
    if (t->struct_size < sizeof *t) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_add: struct_size is not set");
    TRY(check_open(w, t->name));
    TRY(check_tensor(t, &type, &bytes));
    if (tn_add_overflow(w->place, bytes, &end) || tn_add_overflow(end, w->alignment, &end))
        return tn_fail(TN_ERR_ARGUMENT, "GGUF: more than 2^63 bytes with '%.100s'", t->name);
    TRY(tn_mem_reserve(&w->items, &w->item_capacity, w->item_count + 1, sizeof *w->items));
    char *name = tn_mem_strdup(t->name);
    if (!name) return TN_ERR_MEMORY;
    w->items[w->item_count++] = (item){name, bytes, type};
    add_text(&w->rows, name, strlen(name));
    add_number(&w->rows, (uint64_t)t->rank, 4);
    for (int d = t->rank; d > 0; d--)
        add_number(&w->rows, (uint64_t)t->shape[d - 1], 8);
    add_number(&w->rows, type->number, 4);
    add_number(&w->rows, (uint64_t)w->place, 8);
    w->place = (w->place + bytes + w->alignment - 1) / w->alignment * w->alignment;
    return w->rows.failed ? no_memory() : TN_OK;
}

static tn_status check_names(const tn_gguf_writer *w) {
    AUTO_FREE const char **names = tn_mem_zalloc(w->item_count, sizeof *names);
    if (!names) return TN_ERR_MEMORY;
    for (size_t i = 0; i < w->item_count; i++)
        names[i] = w->items[i].name;
    qsort(names, w->item_count, sizeof *names, tn_compare_texts);
    for (size_t i = 1; i < w->item_count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return tn_fail(TN_ERR_ARGUMENT, "GGUF: two tensors are named '%.100s'", names[i]);
    return TN_OK;
}

static tn_status write_padding(const tn_gguf_writer *w, int64_t behind) {
    static const uint8_t zeros[256];
    int64_t left = (w->alignment - behind % w->alignment) % w->alignment;
    for (int64_t n; left > 0; left -= n) {
        n = tn_min64(left, sizeof zeros);
        TRY(tn_save_write(w->save, zeros, (size_t)n));
    }
    return TN_OK;
}

static tn_status start(tn_gguf_writer *w) {
    if (w->started) return TN_OK;
    TRY(check_names(w));
    tn_str head = {0};
    tn_str_addn(&head, "GGUF", 4);
    add_number(&head, 3, 4);
    add_number(&head, w->item_count, 8);
    add_number(&head, w->key_count, 8);
    tn_status status = head.failed ? no_memory() : tn_save_write(w->save, head.text, head.length);
    int64_t bytes = (int64_t)(head.length + w->pairs.length + w->rows.length);
    tn_str_free(&head);
    TRY(status);
    if (w->pairs.length) TRY(tn_save_write(w->save, w->pairs.text, w->pairs.length));
    if (w->rows.length) TRY(tn_save_write(w->save, w->rows.text, w->rows.length));
    w->started = true;
    return w->item_count > 0 ? write_padding(w, bytes) : TN_OK;
}

/* Goes on to the next tensor that has bytes to come. */
static tn_status pass_whole(tn_gguf_writer *w) {
    while (w->current < w->item_count && w->written == w->items[w->current].bytes) {
        TRY(write_padding(w, w->written));
        w->current++;
        w->written = 0;
    }
    return TN_OK;
}

/* Writes bytes of an item in the file's order. On big-endian machines an element or block is converted when its last
 * byte has come. */
static tn_status write_piece(tn_gguf_writer *w, const item *t, const uint8_t *data, size_t bytes) {
    if (!TN_BIG_ENDIAN || t->type->decode) return tn_save_write(w->save, data, bytes);
    size_t each = t->type->bytes, have = (size_t)w->written % each;
    for (size_t i = 0; i < bytes; i++) {
        w->unit[have++] = data[i];
        if (have < each) continue;
        have = 0;
        tn_dtype_little_endian(t->type->dtype, w->unit, t->type->block);
        TRY(tn_save_write(w->save, w->unit, each));
    }
    return TN_OK;
}

tn_status tn_gguf_write(tn_gguf_writer *w, const void *data, int64_t bytes) {
    TRY(tn_need(w, "tn_gguf_write: the writer"));
    if (bytes < 0 || (bytes > 0 && !data)) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_write: the data is NULL");
    TRY(start(w));
    TRY(pass_whole(w));
    if (bytes == 0) return TN_OK;
    if (w->current == w->item_count)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_write: all tensors that were added are complete");
    const item *t = &w->items[w->current];
    if (bytes > t->bytes - w->written)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_write: %lld bytes, but '%.100s' needs only %lld more",
                       (long long)bytes, t->name, (long long)(t->bytes - w->written));
    TRY(write_piece(w, t, data, (size_t)bytes));
    w->written += bytes;
    return TN_OK;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

tn_status tn_gguf_create(const char *path, int64_t alignment, tn_gguf_writer **out) {
    TRY(tn_need(out, "tn_gguf_create: out"));
    *out = NULL;
    TRY(tn_need(path, "tn_gguf_create: the path"));
    if (alignment < 0 || alignment > TN_GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_create: alignment is %lld; it must be a power of two",
                       (long long)alignment);
    tn_gguf_writer *w = tn_mem_zalloc(1, sizeof *w);
    if (!w) return TN_ERR_MEMORY;
    w->alignment = alignment ? alignment : TN_GGUF_ALIGNMENT;
    tn_status status = tn_save_begin(path, &w->save);
    if (status == TN_OK && w->alignment != TN_GGUF_ALIGNMENT)
        status = tn_gguf_put_int(w, "general.alignment", TN_GGUF_U32, w->alignment);
    if (status == TN_OK) {
        *out = w;
        return TN_OK;
    }
    tn_gguf_abandon(w);
    return status;
}

void tn_gguf_abandon(tn_gguf_writer *w) {
    if (!w) return;
    tn_save_abandon(w->save);
    for (size_t i = 0; i < w->key_count; i++)
        tn_mem_free(w->keys[i]);
    for (size_t i = 0; i < w->item_count; i++)
        tn_mem_free(w->items[i].name);
    tn_mem_free_each(w->keys, w->items);
    tn_str_free(&w->pairs);
    tn_str_free(&w->rows);
    tn_mem_free(w);
}

static tn_status finish_gguf(tn_gguf_writer *w) {
    TRY(tn_gguf_write(w, NULL, 0));
    if (w->current < w->item_count)
        return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_commit: '%.100s' is incomplete: %lld bytes are missing",
                       w->items[w->current].name, (long long)(w->items[w->current].bytes - w->written));
    tn_save *save = w->save;
    w->save = NULL;
    return tn_save_commit(save);
}

tn_status tn_gguf_commit(tn_gguf_writer *w) {
    TRY(tn_need(w, "tn_gguf_commit: the writer"));
    tn_status status = finish_gguf(w);
    tn_gguf_abandon(w);
    return status;
}

/* ---- all at once ------------------------------------------------------------------------------------------------- */

static tn_status evaluate_tensors(const tn_named_tensor *tensors, int count) {
    AUTO_FREE tn_tensor **all = tn_mem_zalloc((size_t)count, sizeof *all);
    if (!all) return TN_ERR_MEMORY;
    for (int i = 0; i < count; i++) {
        all[i] = (tn_tensor *)(uintptr_t)tensors[i].tensor;
        TRY(tn_need(all[i], "tn_gguf_save: a tensor"));
    }
    return tn_eval(all, count);
}

static tn_status add_tensor(tn_gguf_writer *w, const tn_named_tensor *t) {
    tn_gguf_info info = {.struct_size = sizeof info, .name = t->name, .dtype = tn_dtype_of(t->tensor)};
    info.rank = tn_rank(t->tensor);
    for (int d = 0; d < info.rank; d++)
        info.shape[d] = tn_size(t->tensor, d);
    return tn_gguf_add(w, &info);
}

static tn_status write_tensor(tn_gguf_writer *w, const tn_tensor *t) {
    size_t bytes = tn_dtype_bytes(tn_dtype_of(t), tn_numel(t));
    AUTO_FREE void *copy = tn_mem_alloc(bytes);
    if (!copy) return TN_ERR_MEMORY;
    TRY(tn_read(t, copy, bytes));
    return tn_gguf_write(w, copy, (int64_t)bytes);
}

static tn_status fill_gguf(tn_gguf_writer *w, const tn_named_tensor *tensors, int count, const tn_metadata *metadata,
                           int metadata_count) {
    for (int i = 0; i < metadata_count; i++) {
        TRY(tn_need(metadata, "tn_gguf_save: the metadata"));
        TRY(tn_need(metadata[i].value, "tn_gguf_save: a value"));
        TRY(tn_gguf_put_string(w, metadata[i].key, metadata[i].value, (int64_t)strlen(metadata[i].value)));
    }
    for (int i = 0; i < count; i++)
        TRY(add_tensor(w, &tensors[i]));
    for (int i = 0; i < count; i++)
        TRY(write_tensor(w, tensors[i].tensor));
    return TN_OK;
}

tn_status tn_gguf_save(const char *path, const tn_named_tensor *tensors, int count, const tn_metadata *metadata,
                       int metadata_count) {
    tn_gguf_writer *w;
    if (count < 0 || (count > 0 && !tensors)) return tn_fail(TN_ERR_ARGUMENT, "tn_gguf_save: %d tensors", count);
    TRY(evaluate_tensors(tensors, count));
    TRY(tn_gguf_create(path, 0, &w));
    tn_status status = fill_gguf(w, tensors, count, metadata, metadata_count);
    if (status == TN_OK) return tn_gguf_commit(w);
    tn_gguf_abandon(w);
    return status;
}
