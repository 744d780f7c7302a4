/* safetensors.c — reads and writes safetensors files, one by one or as the shards of one model.
 *
 * A file is 8 bytes of header length, a JSON header that names each tensor's type, shape and place, and the tensors'
 * bytes without gaps. Headers come from strangers: everything they claim is checked when the file is opened, so that
 * afterwards a tensor is nothing but a pointer into the mapping. What is open is one or more such files, the parts, and
 * one list of their tensors. It is counted; every tensor made without a copy holds it. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "trunnion/model.h"

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER = 64 << 20, /* what tn_json_parse takes; a header is about 100 bytes a tensor */
    MOST_PARTS = 4096,     /* every shard is a mapping of its own */
    ALIGNMENT = 64         /* of the first tensor's bytes in files that we write: whole vectors and cache lines */
};

static const char metadata_name[] = "__metadata__";

typedef struct dtype_row {
    const char *name;
    tn_dtype dtype; /* TN_DTYPE_COUNT: known, but not computed with */
    uint8_t size;
} dtype_row;

static const dtype_row dtype_rows[] = {
    {"F32", TN_F32, 4},
    {"F64", TN_F64, 8},
    {"F16", TN_F16, 2},
    {"BF16", TN_BF16, 2},
    {"I64", TN_I64, 8},
    {"I32", TN_I32, 4},
    {"I16", TN_I16, 2},
    {"I8", TN_I8, 1},
    {"U64", TN_U64, 8},
    {"U32", TN_U32, 4},
    {"U16", TN_U16, 2},
    {"U8", TN_U8, 1},
    {"BOOL", TN_BOOL, 1},
    {"F8_E4M3", TN_DTYPE_COUNT, 1},
    {"F8_E5M2", TN_DTYPE_COUNT, 1},
    {"F8_E8M0", TN_DTYPE_COUNT, 1},
    {"C64", TN_DTYPE_COUNT, 8},
};

typedef struct part {
    tn_map map;
    tn_json_doc *header;
    const tn_json *metadata; /* NULL when there is none */
    const uint8_t *data;     /* after the header */
    int64_t data_bytes;
} part;

typedef struct entry {
    const char *name; /* in the document */
    const part *part;
    const dtype_row *type;
    int rank;
    int64_t shape[TN_MAX_RANK];
    int64_t begin, end; /* within the part's data */
} entry;

struct tn_safetensors {
    _Atomic int32_t refs;
    part *parts;
    size_t part_count;
    entry *entries;  /* in the headers' order */
    entry **by_name; /* sorted */
    size_t count, capacity;
};

/* ---- the header -------------------------------------------------------------------------------------------------- */

static const dtype_row *find_dtype(const char *name) {
    for (size_t i = 0; i < TN_COUNT(dtype_rows); i++)
        if (strcmp(dtype_rows[i].name, name) == 0) return &dtype_rows[i];
    return NULL;
}

static uint64_t read_length(const uint8_t *bytes) {
    uint64_t n = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        n = n << 8 | bytes[i];
    return n;
}

static tn_status parse_header(part *p) {
    if (p->map.size < LENGTH_BYTES)
        return tn_fail(TN_ERR_FORMAT, "%zu bytes are too few for a safetensors file", p->map.size);
    uint64_t length = read_length(p->map.data);
    if (length > MAX_HEADER)
        return tn_fail(TN_ERR_FORMAT, "the header has %llu bytes; the limit is %d: is this a safetensors file?",
                       (unsigned long long)length, MAX_HEADER);
    if (length > p->map.size - LENGTH_BYTES)
        return tn_fail(TN_ERR_FORMAT, "the header has %llu bytes, but the file %zu: it is truncated",
                       (unsigned long long)length, p->map.size);
    const char *text = (const char *)p->map.data + LENGTH_BYTES;
    if (length == 0 || text[0] != '{') return tn_fail(TN_ERR_FORMAT, "the header does not begin with '{'");
    tn_status status = tn_json_parse(text, (size_t)length, &p->header);
    if (status != TN_OK) return tn_fail_prefix(status, "header");
    p->data = p->map.data + LENGTH_BYTES + length;
    p->data_bytes = (int64_t)(p->map.size - LENGTH_BYTES - (size_t)length);
    return TN_OK;
}

/* A whole number ≥ 0 out of the header. */
static bool read_natural(const tn_json *v, int64_t *out) {
    *out = tn_json_int(v, -1);
    return tn_json_kind_of(v) == TN_JSON_NUMBER && *out >= 0;
}

static tn_status read_shape(entry *e, const tn_json *shape, int64_t *bytes) {
    if (!shape || tn_json_kind_of(shape) != TN_JSON_ARRAY)
        return tn_fail(TN_ERR_FORMAT, "tensor '%s' has no list \"shape\"", e->name);
    size_t rank = tn_json_length(shape);
    if (rank > TN_MAX_RANK)
        return tn_fail(TN_ERR_FORMAT, "tensor '%s' has %zu dimensions; the limit is %d", e->name, rank, TN_MAX_RANK);
    e->rank = (int)rank;
    *bytes = e->type->size;
    for (size_t d = 0; d < rank; d++) {
        if (!read_natural(tn_json_at(shape, d), &e->shape[d]))
            return tn_fail(TN_ERR_FORMAT, "tensor '%s': extent %zu of its shape is not an integer", e->name, d);
        if (tn_mul_overflow(*bytes, e->shape[d], bytes))
            return tn_fail(TN_ERR_FORMAT, "tensor '%s' has more than 2^63 bytes", e->name);
    }
    return TN_OK;
}

static tn_status read_place(entry *e, const tn_json *offsets, int64_t bytes) {
    bool pair = offsets && tn_json_kind_of(offsets) == TN_JSON_ARRAY && tn_json_length(offsets) == 2;
    if (!pair || !read_natural(tn_json_at(offsets, 0), &e->begin) || !read_natural(tn_json_at(offsets, 1), &e->end))
        return tn_fail(TN_ERR_FORMAT, "tensor '%s' has no valid \"data_offsets\" (two integers)", e->name);
    if (e->begin > e->end || e->end > e->part->data_bytes)
        return tn_fail(TN_ERR_FORMAT, "tensor '%s' has bytes %lld to %lld of %lld: outside the file", e->name,
                       (long long)e->begin, (long long)e->end, (long long)e->part->data_bytes);
    if (e->end - e->begin != bytes)
        return tn_fail(TN_ERR_FORMAT, "tensor '%s' needs %lld bytes according to its shape and type, but has %lld",
                       e->name, (long long)bytes, (long long)(e->end - e->begin));
    return TN_OK;
}

static tn_status read_entry(entry *e, const tn_json *v) {
    if (tn_json_kind_of(v) != TN_JSON_OBJECT) return tn_fail(TN_ERR_FORMAT, "tensor '%s' is not an object", e->name);
    const tn_json *dtype = tn_json_get(v, "dtype");
    const char *type_name = dtype ? tn_json_string(dtype, NULL) : NULL;
    if (!type_name) return tn_fail(TN_ERR_FORMAT, "tensor '%s' has no string \"dtype\"", e->name);
    e->type = find_dtype(type_name);
    if (!e->type) return tn_fail(TN_ERR_FORMAT, "tensor '%s' has the unknown dtype '%s'", e->name, type_name);
    int64_t bytes = 0;
    TRY(read_shape(e, tn_json_get(v, "shape"), &bytes));
    return read_place(e, tn_json_get(v, "data_offsets"), bytes);
}

static tn_status read_metadata(part *p, const tn_json *v) {
    if (p->metadata) return tn_fail(TN_ERR_FORMAT, "duplicate member %s", metadata_name);
    if (tn_json_kind_of(v) != TN_JSON_OBJECT) return tn_fail(TN_ERR_FORMAT, "%s is not an object", metadata_name);
    for (size_t i = 0; i < tn_json_length(v); i++)
        if (tn_json_kind_of(tn_json_at(v, i)) != TN_JSON_STRING)
            return tn_fail(TN_ERR_FORMAT, "%s: '%s' is not a string", metadata_name, tn_json_key(v, i));
    p->metadata = v;
    return TN_OK;
}

/* Appends the part's tensors to those of the parts before it. */
static tn_status read_entries(tn_safetensors *f, part *p) {
    const tn_json *root = tn_json_root(p->header);
    if (tn_json_kind_of(root) != TN_JSON_OBJECT) return tn_fail(TN_ERR_FORMAT, "the header is not an object");
    size_t members = tn_json_length(root);
    if (members > INT_MAX - f->count)
        return tn_fail(TN_ERR_FORMAT, "the file has too many tensors: %zu", f->count + members);
    TRY(tn_mem_grow(&f->entries, &f->capacity, f->count + members, sizeof *f->entries));
    for (size_t i = 0; i < members; i++) {
        const char *name = tn_json_key(root, i);
        const tn_json *v = tn_json_at(root, i);
        if (strcmp(name, metadata_name) == 0) {
            TRY(read_metadata(p, v));
            continue;
        }
        f->entries[f->count] = (entry){.name = name, .part = p};
        TRY(read_entry(&f->entries[f->count], v));
        f->count++;
    }
    return TN_OK;
}

/* ---- what entries must be together ------------------------------------------------------------------------------- */

static int compare_place(const void *a, const void *b) {
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

/* The format wants every byte to belong to exactly one tensor: nothing can be hidden between them. The part's tensors
 * are those from `first` on; `order` has room for them. */
static tn_status check_places(tn_safetensors *f, const part *p, size_t first, entry **order) {
    size_t count = f->count - first;
    for (size_t i = 0; i < count; i++)
        order[i] = &f->entries[first + i];
    qsort(order, count, sizeof *order, compare_place);
    int64_t reached = 0;
    for (size_t i = 0; i < count; i++) {
        const entry *e = order[i];
        if (e->begin != reached)
            return tn_fail(TN_ERR_FORMAT, "tensor '%s' begins at byte %lld, but %lld was expected: %s", e->name,
                           (long long)e->begin, (long long)reached,
                           e->begin < reached ? "the tensors overlap" : "there is a gap");
        reached = e->end;
    }
    if (reached != p->data_bytes)
        return tn_fail(TN_ERR_FORMAT, "%lld bytes after the last tensor belong to no tensor",
                       (long long)(p->data_bytes - reached));
    return TN_OK;
}

static tn_status sort_names(tn_safetensors *f) {
    f->by_name = tn_mem_zalloc(f->count, sizeof *f->by_name);
    if (!f->by_name) return TN_ERR_MEMORY;
    for (size_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->entries[i];
    qsort(f->by_name, f->count, sizeof *f->by_name, compare_name);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return tn_fail(TN_ERR_FORMAT, "two tensors are named '%s'", f->by_name[i]->name);
    return TN_OK;
}

static const entry *find_entry(const tn_safetensors *f, const char *name) {
    const entry wanted = {.name = name}, *like = &wanted;
    entry **found = bsearch(&like, f->by_name, f->count, sizeof like, compare_name);
    return found ? *found : NULL;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void file_release(void *file) {
    tn_safetensors *f = file;
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t i = 0; i < f->part_count; i++) {
        tn_json_free(f->parts[i].header);
        tn_map_close(&f->parts[i].map);
    }
    tn_mem_free_each(f->parts, f->entries, f->by_name, f);
}

static tn_status read_part(tn_safetensors *f, part *p) {
    size_t first = f->count;
    TRY(parse_header(p));
    TRY(read_entries(f, p));
    entry **order = tn_mem_alloc((f->count - first + 1) * sizeof(entry *));
    if (!order) return TN_ERR_MEMORY;
    tn_status status = check_places(f, p, first, order);
    tn_mem_free(order);
    for (size_t i = first; i < f->count && status == TN_OK; i++) {
        const entry *e = &f->entries[i]; /* no two overlap */
        tn_map_convert(e->type->dtype, p->data + e->begin, (e->end - e->begin) / e->type->size);
    }
    return status;
}

/* Room for the parts is there. */
static tn_status add_part(tn_safetensors *f, const char *path) {
    part *p = &f->parts[f->part_count];
    TRY(tn_map_open(path, &p->map));
    f->part_count++;
    tn_status status = read_part(f, p);
    return status == TN_OK ? TN_OK : tn_fail_prefix(status, "'%s'", path);
}

static tn_status open_single(tn_safetensors *f, const char *path) {
    f->parts = tn_mem_zalloc(1, sizeof *f->parts);
    if (!f->parts) return TN_ERR_MEMORY;
    TRY(add_part(f, path));
    tn_status status = sort_names(f);
    return status == TN_OK ? TN_OK : tn_fail_prefix(status, "'%s'", path);
}

/* ---- shards: an index says which file of its folder holds which tensor ------------------------------------------- */

/* A file in the index's folder; refuses names that lead out of it. */
static bool is_plain_name(const char *name) { return name && name[0] && name[0] != '.' && !strpbrk(name, "/\\"); }

/* The names of the shards, each once; room for as many as the map has members. */
static tn_status list_shards(const tn_json *map, const char **names, size_t *count) {
    size_t n = tn_json_length(map);
    for (size_t i = 0; i < n; i++) {
        names[i] = tn_json_string(tn_json_at(map, i), NULL);
        if (!is_plain_name(names[i]))
            return tn_fail(TN_ERR_FORMAT,
                           "the file of tensor '%s' is not the name of a file in the folder of the index",
                           tn_json_key(map, i));
    }
    qsort(names, n, sizeof *names, tn_compare_texts);
    *count = 0;
    for (size_t i = 0; i < n; i++)
        if (*count == 0 || strcmp(names[*count - 1], names[i]) != 0) names[(*count)++] = names[i];
    if (*count > 0 && *count <= MOST_PARTS) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "the index lists %zu files; it must list 1 to %d", *count, MOST_PARTS);
}

static tn_status add_shard(tn_safetensors *f, const char *index, const char *name) {
    const char *slash = strrchr(index, '/');
    AUTO_STR tn_str path = {0};
    tn_str_add(&path, "%.*s%s", slash ? (int)(slash - index + 1) : 0, index, name);
    return path.failed ? TN_ERR_MEMORY : add_part(f, path.text);
}

/* What the index says of every tensor is so, and it speaks of all. */
static tn_status check_index(const tn_safetensors *f, const tn_json *map, const char *const *names) {
    size_t n = tn_json_length(map);
    for (size_t i = 0; i < n; i++) {
        const char *tensor = tn_json_key(map, i), *where = tn_json_string(tn_json_at(map, i), "");
        const entry *e = find_entry(f, tensor);
        if (!e || strcmp(names[e->part - f->parts], where) != 0)
            return tn_fail(TN_ERR_FORMAT, "tensor '%s' is not in '%s', although the index lists it there", tensor,
                           where);
    }
    if (n == f->count) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "the index lists %zu tensors, but the files contain %zu", n, f->count);
}

static tn_status open_shards(tn_safetensors *f, const char *index, const tn_json *map, const char **names) {
    size_t count = 0;
    TRY(list_shards(map, names, &count));
    f->parts = tn_mem_zalloc(count, sizeof *f->parts);
    if (!f->parts) return TN_ERR_MEMORY;
    for (size_t i = 0; i < count; i++)
        TRY(add_shard(f, index, names[i]));
    TRY(sort_names(f));
    return check_index(f, map, names);
}

static tn_status open_index(tn_safetensors *f, const char *path) {
    tn_json_doc *doc;
    TRY(tn_json_open(path, &doc));
    const tn_json *map = tn_json_get(tn_json_root(doc), "weight_map");
    const char **names = NULL;
    tn_status status = TN_OK;
    if (tn_json_kind_of(map) != TN_JSON_OBJECT)
        status = tn_fail(TN_ERR_FORMAT, "the object \"weight_map\" is missing");
    else if (!(names = tn_mem_zalloc(tn_json_length(map), sizeof *names)))
        status = TN_ERR_MEMORY;
    else
        status = open_shards(f, path, map, names);
    tn_mem_free(names);
    tn_json_free(doc);
    return status == TN_OK ? TN_OK : tn_fail_prefix(status, "'%s'", path);
}

/* ---- what a path names ------------------------------------------------------------------------------------------- */

static const char index_ending[] = ".index.json";

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

/* The names under which a folder's weights are found. */
static tn_status open_folder(tn_safetensors *f, const char *folder) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        tn_str path = {0};
        tn_str_add(&path, "%s/%s", folder, names[i]);
        bool found = !path.failed && tn_is_file(path.text);
        tn_status status = path.failed ? TN_ERR_MEMORY : TN_OK;
        if (found) status = i == 0 ? open_single(f, path.text) : open_index(f, path.text);
        tn_str_free(&path);
        if (found || status != TN_OK) return status;
    }
    return tn_fail(TN_ERR_IO, "'%s' contains neither %s nor %s: the weights must be safetensors files", folder,
                   names[0], names[1]);
}

static tn_status open_path(tn_safetensors *f, const char *path) {
    if (tn_is_folder(path)) return open_folder(f, path);
    return ends_with(path, index_ending) ? open_index(f, path) : open_single(f, path);
}

tn_status tn_safetensors_open(const char *path, tn_safetensors **out) {
    TRY(tn_need(out, "tn_safetensors_open: out"));
    *out = NULL;
    TRY(tn_need(path, "tn_safetensors_open: the path"));
    tn_safetensors *f = tn_mem_zalloc(1, sizeof *f);
    if (!f) return TN_ERR_MEMORY;
    atomic_init(&f->refs, 1);
    tn_status status = open_path(f, path);
    if (status == TN_OK)
        *out = f;
    else
        file_release(f);
    return status;
}

void tn_safetensors_close(tn_safetensors *file) { file_release(file); }

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static tn_status describe_safetensors(const entry *e, tn_safetensors_info *info) {
    tn_safetensors_info full = {.name = e->name,
                                .dtype_name = e->type->name,
                                .dtype = e->type->dtype,
                                .rank = e->rank,
                                .data = e->part->data + e->begin,
                                .bytes = e->end - e->begin};
    memcpy(full.shape, e->shape, sizeof full.shape);
    return tn_result_write(info, &full, sizeof full, "tn_safetensors: info");
}

int tn_safetensors_count(const tn_safetensors *file) { return file ? (int)file->count : 0; }

tn_status tn_safetensors_at(const tn_safetensors *file, int i, tn_safetensors_info *info) {
    TRY(tn_need(file, "tn_safetensors_at: the file"));
    if (i < 0 || (size_t)i >= file->count)
        return tn_fail(TN_ERR_ARGUMENT, "tensor index %d is out of range; the file has %zu tensors", i, file->count);
    return describe_safetensors(&file->entries[i], info);
}

tn_status tn_safetensors_find(const tn_safetensors *file, const char *name, tn_safetensors_info *info) {
    TRY(tn_need(file, "tn_safetensors_find: the file"));
    TRY(tn_need(name, "tn_safetensors_find: the name"));
    const entry *e = find_entry(file, name);
    if (!e) return tn_fail(TN_ERR_ARGUMENT, "the file has no tensor '%s'", name);
    return describe_safetensors(e, info);
}

const char *tn_safetensors_metadata(const tn_safetensors *file, const char *key) {
    return tn_json_string(tn_json_get(file ? file->parts[0].metadata : NULL, key), NULL);
}

const char *tn_safetensors_metadata_key(const tn_safetensors *file, int i) {
    return file && i >= 0 ? tn_json_key(file->parts[0].metadata, (size_t)i) : NULL;
}

tn_tensor *tn_safetensors_tensor(const tn_safetensors *file, const char *name) {
    if (!file || !name)
        return tn_failed(TN_ERR_ARGUMENT, "tn_safetensors_tensor: the %s is NULL", file ? "name" : "file");
    const entry *e = find_entry(file, name);
    if (!e) return tn_failed(TN_ERR_ARGUMENT, "the file has no tensor '%s'", name);
    if (e->type->dtype == TN_DTYPE_COUNT)
        return tn_failed(TN_ERR_UNSUPPORTED,
                         "tensor '%s' has type %s, which is not supported for computing; convert it first", name,
                         e->type->name);
    const uint8_t *bytes = e->part->data + e->begin;
    if (e->type->dtype == TN_BOOL && !tn_bytes_are_bools(bytes, e->end - e->begin))
        return tn_failed(TN_ERR_FORMAT, "tensor '%s' is BOOL but contains bytes other than 0 and 1", name);
    if ((uintptr_t)bytes % e->type->size != 0) return tn_from_data(bytes, e->shape, e->rank, e->type->dtype);

    tn_safetensors *owner = (tn_safetensors *)(uintptr_t)file; /* counting does not change what the file says */
    atomic_fetch_add_explicit(&owner->refs, 1, memory_order_relaxed);
    return tn_from_ptr((void *)(uintptr_t)bytes, e->shape, e->rank, e->type->dtype, file_release, owner);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static const char *dtype_word(tn_dtype dtype) {
    for (size_t i = 0; i < TN_COUNT(dtype_rows); i++)
        if (dtype_rows[i].dtype == dtype) return dtype_rows[i].name;
    return NULL;
}

static size_t tensor_bytes(const tn_tensor *t) { return tn_dtype_bytes(tn_dtype_of(t), tn_numel(t)); }

static tn_status check_distinct(const tn_named_tensor *tensors, int count) {
    AUTO_FREE const char **names = tn_mem_zalloc((size_t)count, sizeof *names);
    if (!names) return TN_ERR_MEMORY;
    for (int i = 0; i < count; i++)
        names[i] = tensors[i].name;
    qsort(names, (size_t)count, sizeof *names, tn_compare_texts);
    for (int i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return tn_fail(TN_ERR_ARGUMENT, "safetensors: two tensors are named '%s'", names[i]);
    return TN_OK;
}

/* Checks what is to be written and computes it, all in one run. */
static tn_status prepare_safetensors(const tn_named_tensor *tensors, int count) {
    if (count < 0 || (count > 0 && !tensors))
        return tn_fail(TN_ERR_ARGUMENT, "safetensors: the number of tensors is %d; it must be at least 0", count);
    AUTO_FREE tn_tensor **all = tn_mem_zalloc((size_t)count, sizeof *all);
    if (!all) return TN_ERR_MEMORY;
    for (int i = 0; i < count; i++) {
        const char *name = tensors[i].name;
        if (!name || strcmp(name, metadata_name) == 0)
            return tn_fail(TN_ERR_ARGUMENT, "safetensors: tensor %d cannot be named '%s'", i, name ? name : "(NULL)");
        if (!tensors[i].tensor) return tn_fail(TN_ERR_ARGUMENT, "safetensors: tensor '%s' is NULL", name);
        tn_status status = tn_status_of(tensors[i].tensor);
        if (status != TN_OK) return tn_fail_prefix(status, "safetensors: '%s'", name);
        if (!dtype_word(tn_dtype_of(tensors[i].tensor)))
            return tn_fail(TN_ERR_DTYPE,
                           "safetensors: '%s' is %s, which the format cannot store; save tn_dequantize of it", name,
                           tn_dtype_name(tn_dtype_of(tensors[i].tensor)));
        all[i] = (tn_tensor *)(uintptr_t)tensors[i].tensor;
    }
    TRY(check_distinct(tensors, count));
    return tn_eval(all, count);
}

static void put_tensor(tn_json_writer *w, const tn_named_tensor *t, int64_t *offset) {
    tn_json_put_key(w, t->name);
    tn_json_begin_object(w);
    tn_json_put_key(w, "dtype");
    tn_json_put_string(w, dtype_word(tn_dtype_of(t->tensor)));
    tn_json_put_key(w, "shape");
    tn_json_begin_array(w);
    for (int d = 0; d < tn_rank(t->tensor); d++)
        tn_json_put_int(w, tn_size(t->tensor, d));
    tn_json_end_array(w);
    tn_json_put_key(w, "data_offsets");
    tn_json_begin_array(w);
    tn_json_put_int(w, *offset);
    *offset += (int64_t)tensor_bytes(t->tensor);
    tn_json_put_int(w, *offset);
    tn_json_end_array(w);
    tn_json_end_object(w);
}

static void put_metadata(tn_json_writer *w, const tn_metadata *metadata, int count) {
    if (count <= 0) return;
    tn_json_put_key(w, metadata_name);
    tn_json_begin_object(w);
    for (int i = 0; i < count; i++) {
        tn_json_put_key(w, metadata[i].key);
        tn_json_put_string(w, metadata[i].value);
    }
    tn_json_end_object(w);
}

/* Tensors stand in the order of falling element size, so that every one is aligned to its own. */
static int compare_size(const void *a, const void *b) {
    const tn_named_tensor *x = *(const tn_named_tensor *const *)a, *y = *(const tn_named_tensor *const *)b;
    size_t m = tn_dtype_size(tn_dtype_of(x->tensor)), n = tn_dtype_size(tn_dtype_of(y->tensor));
    if (m != n) return m > n ? -1 : 1;
    return (x > y) - (x < y); /* else as given */
}

static tn_status build_header(const tn_named_tensor *const *order, int count, const tn_metadata *metadata,
                              int metadata_count, tn_str *header) {
    tn_json_writer w = {.out = header};
    int64_t offset = 0;
    tn_json_begin_object(&w);
    put_metadata(&w, metadata, metadata_count);
    for (int i = 0; i < count; i++)
        put_tensor(&w, order[i], &offset);
    tn_json_end_object(&w);
    while ((header->length + LENGTH_BYTES) % ALIGNMENT != 0 && !header->failed)
        tn_str_addn(header, " ", 1);
    if (header->failed) return tn_fail(TN_ERR_MEMORY, "safetensors: out of memory while writing the header");
    if (header->length > MAX_HEADER)
        return tn_fail(TN_ERR_ARGUMENT, "safetensors: the header would have %zu bytes; the limit is %d", header->length,
                       MAX_HEADER);
    return TN_OK;
}

static tn_status write_tensor(tn_save *s, const tn_tensor *t) {
    size_t bytes = tensor_bytes(t);
    AUTO_FREE void *copy = tn_mem_alloc(bytes);
    if (!copy) return TN_ERR_MEMORY;
    TRY(tn_read(t, copy, bytes));
    tn_dtype_little_endian(tn_dtype_of(t), copy, tn_numel(t));
    return tn_save_write(s, copy, bytes);
}

static tn_status write_all_safetensors(tn_save *s, const tn_str *header, const tn_named_tensor *const *order,
                                       int count) {
    uint8_t length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (uint8_t)((uint64_t)header->length >> (8 * i));
    TRY(tn_save_write(s, length, sizeof length));
    TRY(tn_save_write(s, header->text, header->length));
    for (int i = 0; i < count; i++)
        TRY(write_tensor(s, order[i]->tensor));
    return TN_OK;
}

static tn_status save_ordered(const char *path, const tn_named_tensor *const *order, int count, const tn_str *header) {
    tn_save *s = NULL;
    TRY(tn_save_begin(path, &s));
    return tn_save_end(s, write_all_safetensors(s, header, order, count));
}

tn_status tn_safetensors_save(const char *path, const tn_named_tensor *tensors, int count, const tn_metadata *metadata,
                              int metadata_count) {
    if (!path) return tn_fail(TN_ERR_ARGUMENT, "tn_safetensors_save: the path is NULL");
    for (int i = 0; i < metadata_count; i++)
        if (!metadata || !metadata[i].key || !metadata[i].value)
            return tn_fail(TN_ERR_ARGUMENT, "tn_safetensors_save: metadata entry %d is NULL, or its key or value is",
                           i);
    TRY(prepare_safetensors(tensors, count));
    AUTO_FREE const tn_named_tensor **order = tn_mem_zalloc((size_t)count, sizeof *order);
    if (!order) return TN_ERR_MEMORY;
    for (int i = 0; i < count; i++)
        order[i] = &tensors[i];
    qsort(order, (size_t)count, sizeof *order, compare_size);
    AUTO_STR tn_str header = {0};
    TRY(build_header(order, count, metadata, metadata_count, &header));
    return save_ordered(path, order, count, &header);
}
