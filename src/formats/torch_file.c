/* torch_file.c — tensors of PyTorch's .pt and .pth files: a zip archive with a pickle.
 *
 * Two layouts: an archive of stored entries (data.pkl says what there is, data/KEY are the storages), and the older one
 * of pickles after each other, then storages. Either way a tensor is a storage, a place in it, a shape and strides:
 * checked when the file is opened, so that afterwards it is a pointer into the mapping. What contains the tensors,
 * dicts, lists and tuples, becomes their dotted names; everything else in the file is passed over. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/torch_file.h"
#include "trunnion/model.h"

/* Reads the directory of an archive in memory, which must stay there. Errors: TN_ERR_FORMAT naming the byte;
 * TN_ERR_UNSUPPORTED for entries that are compressed or encrypted. Source: PKWARE's APPNOTE.TXT 6.3, with zip64. */
static tn_status zip_open(const uint8_t *bytes, size_t size, tn_zip *out);
static void zip_close(tn_zip *z);
static const tn_zip_entry *zip_find(const tn_zip *z, const char *name, size_t length); /* NULL when absent */

enum {
    MAX_DEPTH = 32,       /* containers in containers */
    MAX_VISITS = 1 << 23, /* values that are looked at: a container may stand in many places */
    MAX_NAME = 4096,
    HEAD_PICKLES = 3 /* of the older layout: mark, version, system */
};

typedef struct entry {
    size_t name_at;
    const char *name;
    const tn_pickle_place *tensor;
    const tn_pickle_type *type;
    const uint8_t *data; /* its first element */
    const uint8_t *storage;
    int64_t numel;
} entry;

struct tn_pickle {
    _Atomic int32_t refs;
    tn_map map;
    tn_zip zip;
    tn_pickle_values values;
    const uint8_t **storages; /* of each storage that the pickle names; as many elements as it says are there */
    tn_str names;
    entry *entries, **by_name;
    size_t count, capacity, visits;
};

static uint64_t little(const uint8_t *p, int n) {
    uint64_t v = 0;
    for (int i = n; i > 0; i--)
        v = v << 8 | p[i - 1];
    return v;
}

/* ---- storages ---------------------------------------------------------------------------------------------------- */

static tn_status storage_bytes(const tn_pickle_storage *s, size_t *out) {
    int64_t bytes;
    if (tn_mul_overflow(s->count, tn_pickle_types[s->type].size, &bytes))
        return tn_fail(TN_ERR_FORMAT, "byte 0: storage '%.*s' has an invalid size of %lld elements",
                       (int)(s->key_length & 63), s->key, (long long)s->count);
    *out = (size_t)bytes;
    return TN_OK;
}

/* Storages of an archive are entries of its folder. */
static tn_status find_zip_storage(const tn_pickle *f, const tn_zip_entry *pickle, size_t i) {
    const tn_pickle_storage *s = &f->values.storages[i];
    size_t bytes, folder = pickle->name_length - strlen("data.pkl");
    TRY(storage_bytes(s, &bytes));
    if (s->key_length > MAX_NAME) return tn_fail(TN_ERR_FORMAT, "byte 0: the name of a storage is too long");
    tn_str name = {0};
    tn_str_addn(&name, pickle->name, folder);
    tn_str_add(&name, "data/");
    tn_str_addn(&name, s->key, s->key_length);
    const tn_zip_entry *e = name.failed ? NULL : zip_find(&f->zip, name.text, name.length);
    bool failed = name.failed;
    tn_str_free(&name);
    if (failed) return tn_fail(TN_ERR_MEMORY, "out of memory for the name of a storage");
    if (!e || e->size < bytes)
        return tn_fail(TN_ERR_FORMAT, "byte 0: storage '%.*s' of %zu bytes is not in the file", (int)s->key_length,
                       s->key, bytes);
    f->storages[i] = e->data;
    return TN_OK;
}

static const tn_zip_entry *find_pickle(const tn_zip *z) {
    for (size_t i = 0; i < z->count; i++) {
        const tn_zip_entry *e = &z->entries[i];
        size_t n = strlen("data.pkl");
        bool ends = e->name_length >= n && memcmp(e->name + e->name_length - n, "data.pkl", n) == 0;
        if (ends && (e->name_length == n || e->name[e->name_length - n - 1] == '/')) return e;
    }
    return NULL;
}

static tn_status check_order(const tn_pickle *f, const tn_zip_entry *pickle) {
    char name[300];
    size_t folder = pickle->name_length - strlen("data.pkl");
    if (folder > 256) return tn_fail(TN_ERR_FORMAT, "byte 0: the name of the archive's folder is too long");
    int n = snprintf(name, sizeof name, "%.*sbyteorder", (int)folder, pickle->name);
    const tn_zip_entry *e = zip_find(&f->zip, name, (size_t)n);
    if (e && (e->size != 6 || memcmp(e->data, "little", 6) != 0))
        return tn_fail(TN_ERR_UNSUPPORTED, "the file is big-endian; save it on a little-endian machine");
    return TN_OK;
}

static tn_status alloc_storages(tn_pickle *f) {
    f->storages = tn_mem_zalloc(f->values.storage_count, sizeof *f->storages);
    return f->storages ? TN_OK : TN_ERR_MEMORY;
}

/* TorchScript and .pt2 hold programs. */
static const char PROGRAM_FIX[] =
    "; of a program save the weights, torch.save(model.state_dict(), \"weights.pt\"), or export it to ONNX, "
    "torch.onnx.export(model, inputs, \"model.onnx\")";

static tn_status read_archive(tn_pickle *f) {
    size_t used;
    TRY(zip_open(f->map.data, f->map.size, &f->zip));
    const tn_zip_entry *pickle = find_pickle(&f->zip);
    if (!pickle)
        return tn_fail(TN_ERR_FORMAT, "byte 0: the archive has no data.pkl: not a file of torch.save%s", PROGRAM_FIX);
    TRY(check_order(f, pickle));
    TRY(tn_pickle_read(pickle->data, pickle->size, (size_t)(pickle->data - f->map.data), &f->values, &used));
    TRY(alloc_storages(f));
    for (size_t i = 0; i < f->values.storage_count; i++)
        TRY(find_zip_storage(f, pickle, i));
    return TN_OK;
}

/* ---- the older layout -------------------------------------------------------------------------------------------- */

static bool text_is(const tn_pickle_node *n, const char *text) {
    return n->kind == TN_PICKLE_STRING && (size_t)n->number == strlen(text) && memcmp(n->text, text, strlen(text)) == 0;
}

static bool says_big_endian(const tn_pickle_values *v) {
    const tn_pickle_node *root = &v->nodes[v->root];
    if (root->kind != TN_PICKLE_DICT) return false;
    for (uint32_t c = root->first; c; c = v->cells[v->cells[c].next].next) {
        const tn_pickle_node *value = &v->nodes[v->cells[v->cells[c].next].node];
        if (text_is(&v->nodes[v->cells[c].node], "little_endian"))
            return value->kind == TN_PICKLE_BOOL && !value->number;
    }
    return false;
}

static tn_status read_part(const tn_pickle *f, size_t *at, tn_pickle_values *out) {
    size_t used;
    TRY(tn_pickle_read(f->map.data + *at, f->map.size - *at, *at, out, &used));
    *at += used;
    return TN_OK;
}

static tn_status skip_head(const tn_pickle *f, size_t *at) {
    for (int i = 0; i < HEAD_PICKLES; i++) {
        tn_pickle_values head;
        TRY(read_part(f, at, &head));
        bool big = says_big_endian(&head);
        tn_pickle_values_free(&head);
        if (big) return tn_fail(TN_ERR_UNSUPPORTED, "the file is big-endian; save it on a little-endian machine");
    }
    return TN_OK;
}

/* One storage: how many elements, then these. All that the pickle calls by this key have them. */
static tn_status take_storage(const tn_pickle *f, const tn_pickle_node *key, size_t *at) {
    int64_t count = 0;
    if (key->kind != TN_PICKLE_STRING || f->map.size - *at < 8)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: a storage is missing", *at);
    count = (int64_t)little(f->map.data + *at, 8);
    const uint8_t *data = f->map.data + *at + 8;
    size_t left = f->map.size - *at - 8, taken = 0;
    for (size_t i = 0; i < f->values.storage_count; i++) {
        const tn_pickle_storage *s = &f->values.storages[i];
        size_t bytes;
        if (s->key_length != (size_t)key->number || memcmp(s->key, key->text, s->key_length) != 0) continue;
        TRY(storage_bytes(s, &bytes));
        if (s->count != count || bytes > left)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: a storage has %lld elements, but %lld were declared", *at,
                           (long long)count, (long long)s->count);
        f->storages[i] = data;
        taken = bytes;
    }
    *at += 8 + taken;
    return TN_OK;
}

enum { MOST_KEYS_TIMES_STORAGES = 1 << 26 };

static tn_status take_storages(tn_pickle *f, const tn_pickle_values *keys, size_t at) {
    const tn_pickle_node *list = &keys->nodes[keys->root];
    if (list->kind != TN_PICKLE_LIST) return tn_fail(TN_ERR_FORMAT, "byte %zu: the list of storages is missing", at);
    size_t work = 0;
    for (uint32_t c = list->first; c; c = keys->cells[c].next) {
        work += f->values.storage_count;
        if (work > MOST_KEYS_TIMES_STORAGES) return tn_fail(TN_ERR_FORMAT, "byte %zu: too many storages", at);
        TRY(take_storage(f, &keys->nodes[keys->cells[c].node], &at));
    }
    for (size_t i = 0; i < f->values.storage_count; i++)
        if (!f->storages[i]) return tn_fail(TN_ERR_FORMAT, "byte %zu: a storage is missing", at);
    return TN_OK;
}

static tn_status read_older(tn_pickle *f) {
    size_t at = 0;
    AUTO_CALL(tn_pickle_values_free) tn_pickle_values keys = {0};
    TRY(skip_head(f, &at));
    TRY(read_part(f, &at, &f->values));
    TRY(alloc_storages(f));
    TRY(read_part(f, &at, &keys));
    return take_storages(f, &keys, at);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static tn_status check_tensor(const tn_pickle *f, entry *e) {
    const tn_pickle_place *t = e->tensor;
    const tn_pickle_storage *s = &f->values.storages[t->storage];
    int64_t last = t->offset, step, have = s->count, size = e->type->size, bytes;
    e->numel = 1;
    bool over = false;
    for (int d = 0; d < t->rank; d++)
        over |= tn_mul_overflow(e->numel, t->shape[d], &e->numel);
    for (int d = 0; d < t->rank && e->numel > 0 && !over; d++)
        over |= tn_mul_overflow(t->shape[d] - 1, t->stride[d], &step) || tn_add_overflow(last, step, &last);
    over |= tn_mul_overflow(e->numel, size, &bytes) || tn_mul_overflow(have, tn_pickle_types[s->type].size, &bytes);
    if (!over) have = bytes / size;
    if (over || (e->numel > 0 && last >= have))
        return tn_fail(TN_ERR_FORMAT, "byte 0: tensor '%.100s' exceeds its storage of %lld elements",
                       f->names.text + e->name_at, (long long)have);
    e->storage = f->storages[t->storage];
    e->data = e->storage + (e->numel > 0 ? t->offset * size : 0);
    return TN_OK;
}

static tn_status add_entry(tn_pickle *f, const tn_str *name, int64_t tensor) {
    TRY(tn_mem_reserve(&f->entries, &f->capacity, f->count + 1, sizeof *f->entries));
    entry *e = &f->entries[f->count++];
    *e = (entry){.name_at = f->names.length, .tensor = &f->values.tensors[tensor]};
    e->type = &tn_pickle_types[e->tensor->type];
    const char *text = name->length ? name->text : "data";
    tn_str_addn(&f->names, text, strlen(text) + 1);
    if (f->names.failed) return tn_fail(TN_ERR_MEMORY, "out of memory for the names of tensors");
    if (f->names.length > INT_MAX) return tn_fail(TN_ERR_FORMAT, "byte 0: the names of tensors are too long");
    return check_tensor(f, e);
}

/* Cuts the name back to `length` characters. */
static void truncate_name(tn_str *name, size_t length) {
    name->length = length;
    if (name->text) name->text[length] = 0;
}

static void add_step(tn_str *name, const tn_pickle_node *key, int64_t i) {
    if (name->length > 0) tn_str_add(name, ".");
    if (!key || key->kind == TN_PICKLE_INT) {
        tn_str_add(name, "%lld", (long long)(key ? key->number : i));
        return;
    }
    for (int64_t k = 0; k < key->number && k < MAX_NAME; k++) { /* nothing in a name may disturb a message */
        char c = key->text[k];
        tn_str_addn(name, (unsigned char)c < 0x20 || c == 0x7f ? "?" : &c, 1);
    }
}

static tn_status flatten(tn_pickle *f, uint32_t node, tn_str *name, int depth) {
    const tn_pickle_values *v = &f->values;
    const tn_pickle_node *n = &v->nodes[node];
    if (++f->visits > MAX_VISITS || depth > MAX_DEPTH || name->length > MAX_NAME)
        return tn_fail(TN_ERR_FORMAT, "byte 0: containers are nested too deeply, or referenced too often");
    if (n->kind == TN_PICKLE_TENSOR) return add_entry(f, name, n->number);
    if (n->kind != TN_PICKLE_DICT && n->kind != TN_PICKLE_LIST && n->kind != TN_PICKLE_TUPLE) return TN_OK;
    bool dict = n->kind == TN_PICKLE_DICT;
    size_t length = name->length;
    int64_t i = 0;
    for (uint32_t c = n->first; c; c = v->cells[c].next, i++) {
        const tn_pickle_node *key = dict ? &v->nodes[v->cells[c].node] : NULL;
        if (dict) c = v->cells[c].next;
        f->visits++; /* items that are passed over take time as well */
        if (key && key->kind != TN_PICKLE_STRING && key->kind != TN_PICKLE_INT) continue;
        add_step(name, key, i);
        if (name->failed) return tn_fail(TN_ERR_MEMORY, "out of memory for a tensor's name");
        TRY(flatten(f, v->cells[c].node, name, depth + 1));
        truncate_name(name, length);
    }
    return TN_OK;
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

static tn_status name_entries(tn_pickle *f) {
    tn_str name = {0};
    tn_status status = flatten(f, f->values.root, &name, 0);
    tn_str_free(&name);
    TRY(status);
    f->by_name = tn_mem_zalloc(f->count, sizeof *f->by_name);
    if (!f->by_name) return TN_ERR_MEMORY;
    for (size_t i = 0; i < f->count; i++) {
        f->entries[i].name = f->names.text + f->entries[i].name_at;
        f->by_name[i] = &f->entries[i];
    }
    qsort(f->by_name, f->count, sizeof *f->by_name, compare_name);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return tn_fail(TN_ERR_FORMAT, "byte 0: two tensors are named '%.100s'", f->by_name[i]->name);
    return TN_OK;
}

/* ---- byte order -------------------------------------------------------------------------------------------------- */

static int compare_data(const void *a, const void *b) {
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    const uint8_t *p = x->storage, *q = y->storage;
    return p != q ? (p > q) - (p < q) : (x->type->size > y->type->size) - (x->type->size < y->type->size);
}

/* On big-endian machines: converts each storage once. Tensors of one storage must agree on the size of its numbers. */
static tn_status convert_storages(tn_pickle *f) {
    AUTO_FREE entry **order = tn_mem_alloc((f->count + 1) * sizeof *order);
    if (!order) return TN_ERR_MEMORY;
    for (size_t i = 0; i < f->count; i++)
        order[i] = &f->entries[i];
    qsort(order, f->count, sizeof *order, compare_data);
    const uint8_t *end = NULL;
    for (size_t i = 0; i < f->count; i++) {
        const entry *e = order[i];
        const tn_pickle_storage *s = &f->values.storages[e->tensor->storage];
        int64_t bytes = s->count * tn_pickle_types[s->type].size;
        bool again = i > 0 && order[i - 1]->storage == e->storage, wide = e->type->dtype < TN_DTYPE_COUNT;
        if (again && order[i - 1]->type->size == e->type->size && e->storage + bytes <= end) continue;
        if (end && e->storage < end)
            return tn_fail(TN_ERR_UNSUPPORTED,
                           "'%.100s' shares bytes with a tensor whose numbers have another size; "
                           "this is not supported on big-endian machines",
                           e->name);
        if (wide) tn_map_convert(e->type->dtype, e->storage, bytes / e->type->size);
        end = e->storage + bytes;
    }
    return TN_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void file_release(void *file) {
    tn_pickle *f = file;
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    zip_close(&f->zip);
    tn_pickle_values_free(&f->values);
    tn_mem_free_each(f->storages, f->entries, f->by_name);
    tn_str_free(&f->names);
    tn_map_close(&f->map);
    tn_mem_free(f);
}

static tn_status read_torch_file(tn_pickle *f) {
    const uint8_t *b = f->map.data;
    if (f->map.size >= 2 && memcmp(b, "PK", 2) == 0) {
        TRY(read_archive(f));
    } else if (f->map.size >= 2 && b[0] == 0x80) {
        TRY(read_older(f));
    } else {
        return tn_fail(TN_ERR_FORMAT, "byte 0: neither a zip archive nor a pickle: not a file of torch.save");
    }
    TRY(name_entries(f));
    return TN_BIG_ENDIAN ? convert_storages(f) : TN_OK;
}

tn_status tn_pickle_open(const char *path, tn_pickle **out) {
    TRY(tn_need(out, "tn_pickle_open: out"));
    *out = NULL;
    TRY(tn_need(path, "tn_pickle_open: the path"));
    tn_pickle *f = tn_mem_zalloc(1, sizeof *f);
    if (!f) return TN_ERR_MEMORY;
    atomic_init(&f->refs, 1);
    tn_status status = tn_map_open(path, &f->map);
    if (status == TN_OK && (status = read_torch_file(f)) != TN_OK) tn_fail_prefix(status, "'%s'", path);
    if (status == TN_OK)
        *out = f;
    else
        file_release(f);
    return status;
}

void tn_pickle_close(tn_pickle *file) { file_release(file); }

/* ---- looking ----------------------------------------------------------------------------------------------------- */

int64_t tn_pickle_count(const tn_pickle *file) { return file ? (int64_t)file->count : 0; }

static tn_status describe_torch_file(const entry *e, tn_pickle_info *info) {
    tn_pickle_info full = {.name = e->name,
                           .dtype_name = e->type->name,
                           .dtype = e->type->dtype,
                           .rank = e->tensor->rank,
                           .data = e->data};
    memcpy(full.shape, e->tensor->shape, sizeof full.shape);
    memcpy(full.stride, e->tensor->stride, sizeof full.stride);
    return tn_result_write(info, &full, sizeof full, "tn_pickle: info");
}

tn_status tn_pickle_at(const tn_pickle *file, int64_t i, tn_pickle_info *info) {
    if (i < 0 || i >= tn_pickle_count(file))
        return tn_fail(TN_ERR_ARGUMENT, "tensor index %lld is out of range; the file has %lld tensors", (long long)i,
                       (long long)tn_pickle_count(file));
    return describe_torch_file(&file->entries[i], info);
}

static const entry *find_entry(const tn_pickle *f, const char *name) {
    entry wanted = {.name = name}, *like = &wanted, **found;
    found = bsearch(&like, f->by_name, f->count, sizeof like, compare_name);
    return found ? *found : NULL;
}

tn_status tn_pickle_find(const tn_pickle *file, const char *name, tn_pickle_info *info) {
    TRY(tn_need(file, "tn_pickle_find: the file"));
    TRY(tn_need(name, "tn_pickle_find: the name"));
    const entry *e = find_entry(file, name);
    if (!e) return tn_fail(TN_ERR_FORMAT, "the file has no tensor '%.100s'", name);
    return describe_torch_file(e, info);
}

static bool is_contiguous(const tn_pickle_place *t) {
    int64_t step = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->stride[d] != step) return false;
        step *= t->shape[d];
    }
    return true;
}

/* Copies the elements in the order of the shape: a row of the last dim at a time. */
static void copy_strided(const entry *e, uint8_t *out) {
    const tn_pickle_place *t = e->tensor;
    int64_t at[TN_MAX_RANK] = {0}, size = e->type->size;
    int last = t->rank - 1;
    for (int64_t done = 0; done < e->numel; done += t->shape[last]) {
        int64_t place = 0;
        for (int d = 0; d < last; d++)
            place += at[d] * t->stride[d];
        for (int64_t i = 0; i < t->shape[last]; i++, out += size)
            memcpy(out, e->data + (place + i * t->stride[last]) * size, (size_t)size);
        for (int d = last - 1; d >= 0 && ++at[d] == t->shape[d]; d--)
            at[d] = 0;
    }
}

static tn_tensor *copied_tensor(const entry *e) {
    uint8_t *copy = tn_mem_zalloc((size_t)e->numel, e->type->size);
    if (!copy) return tn_failed(TN_ERR_MEMORY, "out of memory for tensor '%.100s'", e->name);
    if (is_contiguous(e->tensor))
        memcpy(copy, e->data, (size_t)e->numel * e->type->size);
    else
        copy_strided(e, copy);
    if (e->type->dtype == TN_BOOL && !tn_bytes_are_bools(copy, e->numel)) {
        tn_mem_free(copy);
        return tn_failed(TN_ERR_FORMAT, "tensor '%.100s' is bool but contains bytes other than 0 and 1", e->name);
    }
    return tn_from_ptr(copy, e->tensor->shape, e->tensor->rank, e->type->dtype, tn_mem_free, copy);
}

tn_tensor *tn_pickle_tensor(const tn_pickle *file, const char *name) {
    if (!file || !name) return tn_failed(TN_ERR_ARGUMENT, "tn_pickle_tensor: the file or the name is NULL");
    const entry *e = find_entry(file, name);
    if (!e) return tn_failed(TN_ERR_FORMAT, "the file has no tensor '%.100s'", name);
    if (e->type->dtype == TN_DTYPE_COUNT)
        return tn_failed(TN_ERR_UNSUPPORTED, "tensor '%.100s' has type %s, which is not supported for computing", name,
                         e->type->name);
    bool direct = is_contiguous(e->tensor) && (uintptr_t)e->data % e->type->size == 0 && e->type->dtype != TN_BOOL;
    if (!direct || e->numel == 0) return copied_tensor(e);
    tn_pickle *owner = (tn_pickle *)(uintptr_t)file; /* counting does not change what the file says */
    atomic_fetch_add_explicit(&owner->refs, 1, memory_order_relaxed);
    return tn_from_ptr((void *)(uintptr_t)e->data, e->tensor->shape, e->tensor->rank, e->type->dtype, file_release,
                       owner);
}

/* ==== zip directory =============================================================================================== */

enum {
    END_BYTES = 22,       /* the record at the end, without its comment of at most … */
    MOST_COMMENT = 65535, /* bytes */
    LOCATOR_BYTES = 20,   /* of zip64, before that record */
    END64_BYTES = 56,
    ROW_BYTES = 46,  /* of an entry in the directory, without its texts */
    HEAD_BYTES = 30, /* before an entry's data, without its texts */
    MAX_ENTRIES = 1 << 20
};

typedef struct archive {
    const uint8_t *bytes;
    size_t size;
} archive;

/* `n` bytes at `at` that begin with the signature. */
static tn_status record_at(const archive *a, uint64_t at, size_t n, uint32_t signature, const uint8_t **out) {
    if (at > a->size || a->size - at < n)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: a zip record extends beyond the file", (unsigned long long)at);
    *out = a->bytes + at;
    if (little(*out, 4) != signature)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: expected another zip record", (unsigned long long)at);
    return TN_OK;
}

static tn_status find_end(const archive *a, size_t *out) {
    size_t least = a->size > END_BYTES + MOST_COMMENT ? a->size - END_BYTES - MOST_COMMENT : 0;
    for (size_t at = a->size < END_BYTES ? 0 : a->size - END_BYTES + 1; at > least; at--) {
        const uint8_t *p = a->bytes + at - 1;
        if (little(p, 4) != 0x06054b50 || little(p + 20, 2) != a->size - (at - 1) - END_BYTES) continue;
        *out = at - 1;
        return TN_OK;
    }
    return tn_fail(TN_ERR_FORMAT, "byte %zu: the archive has no end record: it is truncated, or not a zip file",
                   a->size);
}

/* Number of entries and place of the directory; those that do not fit are in the zip64 record. */
static tn_status read_end(const archive *a, uint64_t *count, uint64_t *place) {
    size_t at = 0;
    const uint8_t *p;
    TRY(find_end(a, &at));
    *count = little(a->bytes + at + 10, 2);
    *place = little(a->bytes + at + 16, 4);
    if (*count != 0xffff && *place != 0xffffffff) return TN_OK;
    if (at < LOCATOR_BYTES) return tn_fail(TN_ERR_FORMAT, "byte %zu: the zip64 record is missing", at);
    TRY(record_at(a, at - LOCATOR_BYTES, LOCATOR_BYTES, 0x07064b50, &p));
    TRY(record_at(a, little(p + 8, 8), END64_BYTES, 0x06064b50, &p));
    *count = little(p + 32, 8);
    *place = little(p + 48, 8);
    return TN_OK;
}

typedef struct row {
    uint64_t size, stored, place;
} row;

/* Numbers that do not fit in 32 bits stand in an extra field, in this order. */
static tn_status read_extra(const uint8_t *p, size_t n, row *r, size_t at) {
    uint64_t *wide[] = {&r->size, &r->stored, &r->place};
    for (size_t i = 0; n - i >= 4;) {
        size_t length = (size_t)little(p + i + 2, 2), used = 0;
        if (length > n - i - 4) break;
        for (size_t k = 0; k < TN_COUNT(wide) && little(p + i, 2) == 1; k++) {
            if (*wide[k] != 0xffffffff) continue;
            if (length - used < 8) return tn_fail(TN_ERR_FORMAT, "byte %zu: a zip64 field is too short", at);
            *wide[k] = little(p + i + 4 + used, 8);
            used += 8;
        }
        i += 4 + length;
    }
    return TN_OK;
}

static tn_status locate_zip(const archive *a, const row *r, tn_zip_entry *e) {
    const uint8_t *head;
    TRY(record_at(a, r->place, HEAD_BYTES, 0x04034b50, &head));
    uint64_t begin = r->place + HEAD_BYTES + little(head + 26, 2) + little(head + 28, 2);
    if (begin > a->size || a->size - begin < r->size)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: '%.*s' extends beyond the file", (unsigned long long)r->place,
                       (int)e->name_length, e->name);
    e->data = a->bytes + begin;
    e->size = (size_t)r->size;
    return TN_OK;
}

static tn_status read_row(const archive *a, uint64_t *at, tn_zip_entry *e) {
    const uint8_t *p;
    TRY(record_at(a, *at, ROW_BYTES, 0x02014b50, &p));
    size_t name = (size_t)little(p + 28, 2), extra = (size_t)little(p + 30, 2), comment = (size_t)little(p + 32, 2);
    if (a->size - *at - ROW_BYTES < name + extra + comment)
        return tn_fail(TN_ERR_FORMAT, "byte %llu: an entry extends beyond the file", (unsigned long long)*at);
    e->name = (const char *)p + ROW_BYTES;
    e->name_length = name;
    if (little(p + 10, 2) != 0 || little(p + 8, 2) & 1)
        return tn_fail(TN_ERR_UNSUPPORTED, "byte %llu: '%.*s' is compressed or encrypted; entries must be stored%s",
                       (unsigned long long)*at, (int)name, e->name, PROGRAM_FIX);
    row r = {.size = little(p + 24, 4), .stored = little(p + 20, 4), .place = little(p + 42, 4)};
    TRY(read_extra(p + ROW_BYTES + name, extra, &r, (size_t)*at));
    *at += ROW_BYTES + name + extra + comment;
    return locate_zip(a, &r, e);
}

static int compare_zip(const void *a, const void *b) {
    const tn_zip_entry *x = a, *y = b;
    size_t n = x->name_length < y->name_length ? x->name_length : y->name_length;
    int order = n ? memcmp(x->name, y->name, n) : 0;
    return order ? order : (x->name_length > y->name_length) - (x->name_length < y->name_length);
}

static tn_status read_rows(const archive *a, uint64_t at, tn_zip *z) {
    for (size_t i = 0; i < z->count; i++)
        TRY(read_row(a, &at, &z->entries[i]));
    qsort(z->entries, z->count, sizeof *z->entries, compare_zip);
    for (size_t i = 1; i < z->count; i++)
        if (compare_zip(&z->entries[i - 1], &z->entries[i]) == 0)
            return tn_fail(TN_ERR_FORMAT, "byte %zu: two entries are named '%.*s'",
                           (size_t)((const uint8_t *)z->entries[i].name - a->bytes), (int)z->entries[i].name_length,
                           z->entries[i].name);
    return TN_OK;
}

static tn_status zip_open(const uint8_t *bytes, size_t size, tn_zip *out) {
    archive a = {bytes, size};
    uint64_t count, place;
    *out = (tn_zip){0};
    TRY(read_end(&a, &count, &place));
    if (count > size / ROW_BYTES || count > MAX_ENTRIES)
        return tn_fail(TN_ERR_FORMAT, "byte %zu: the archive declares %llu entries", size, (unsigned long long)count);
    out->entries = tn_mem_zalloc((size_t)count, sizeof *out->entries);
    if (!out->entries) return TN_ERR_MEMORY;
    out->count = (size_t)count;
    tn_status status = read_rows(&a, place, out);
    if (status != TN_OK) zip_close(out);
    return status;
}

static void zip_close(tn_zip *z) {
    tn_mem_free(z->entries);
    *z = (tn_zip){0};
}

static const tn_zip_entry *zip_find(const tn_zip *z, const char *name, size_t length) {
    const tn_zip_entry wanted = {.name = name, .name_length = length};
    return bsearch(&wanted, z->entries, z->count, sizeof wanted, compare_zip);
}
