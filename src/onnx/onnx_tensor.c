/* onnx_tensor.c — TensorProto and its relatives as values.
 *
 * Whichever field holds a tensor's numbers, they are converted to little-endian bytes first. Data of a dtype that
 * Trunnion computes with stays in the mapped file if it is aligned; other dtypes are widened. The size that a file
 * claims is compared with its content before memory is allocated. */
#include <math.h>
#include <string.h>

#include "onnx/model.h"
#include "tensor/graph.h"

const onnx_type_row onnx_types[ONNX_TYPE_COUNT] = {
    [ONNX_UNDEFINED] = {"UNDEFINED", TN_DTYPE_COUNT, 0},
    [ONNX_FLOAT] = {"FLOAT", TN_F32, 32},
    [ONNX_UINT8] = {"UINT8", TN_U8, 8},
    [ONNX_INT8] = {"INT8", TN_I8, 8},
    [ONNX_UINT16] = {"UINT16", TN_U16, 16},
    [ONNX_INT16] = {"INT16", TN_I16, 16},
    [ONNX_INT32] = {"INT32", TN_I32, 32},
    [ONNX_INT64] = {"INT64", TN_I64, 64},
    [ONNX_STRING] = {"STRING", TN_DTYPE_COUNT, 0},
    [ONNX_BOOL] = {"BOOL", TN_BOOL, 8},
    [ONNX_FLOAT16] = {"FLOAT16", TN_F16, 16},
    [ONNX_DOUBLE] = {"DOUBLE", TN_F64, 64},
    [ONNX_UINT32] = {"UINT32", TN_U32, 32},
    [ONNX_UINT64] = {"UINT64", TN_U64, 64},
    [ONNX_COMPLEX64] = {"COMPLEX64", TN_F32, 64},
    [ONNX_COMPLEX128] = {"COMPLEX128", TN_F64, 128},
    [ONNX_BFLOAT16] = {"BFLOAT16", TN_BF16, 16},
    [ONNX_FLOAT8E4M3FN] = {"FLOAT8E4M3FN", TN_F32, 8},
    [ONNX_FLOAT8E4M3FNUZ] = {"FLOAT8E4M3FNUZ", TN_F32, 8},
    [ONNX_FLOAT8E5M2] = {"FLOAT8E5M2", TN_F32, 8},
    [ONNX_FLOAT8E5M2FNUZ] = {"FLOAT8E5M2FNUZ", TN_F32, 8},
    [ONNX_UINT4] = {"UINT4", TN_U8, 4},
    [ONNX_INT4] = {"INT4", TN_I8, 4},
    [ONNX_FLOAT4E2M1] = {"FLOAT4E2M1", TN_F32, 4},
    [ONNX_FLOAT8E8M0] = {"FLOAT8E8M0", TN_F32, 8},
    [ONNX_UINT2] = {"UINT2", TN_U8, 2},
    [ONNX_INT2] = {"INT2", TN_I8, 2},
    [ONNX_FLOAT6E2M3] = {"FLOAT6E2M3", TN_F32, 8}, /* in a byte each */
    [ONNX_FLOAT6E3M2] = {"FLOAT6E3M2", TN_F32, 8},
};

/* ---- files ------------------------------------------------------------------------------------------------------- */

tn_status onnx_file_open(const char *path, onnx_file **out) {
    onnx_file *f = tn_mem_zalloc(1, sizeof *f);
    if (!f) return TN_ERR_MEMORY;
    tn_status status = tn_map_open(path, &f->map);
    if (status != TN_OK) {
        tn_mem_free(f);
        return status;
    }
    atomic_init(&f->refs, 1);
    f->bytes = f->map.data;
    f->size = f->map.size;
    *out = f;
    return TN_OK;
}

static onnx_file *onnx_file_retain(onnx_file *f) {
    if (f) atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

static void onnx_file_release(void *file) {
    onnx_file *f = file;
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    tn_map_close(&f->map);
    tn_mem_free(f);
}

void onnx_source_close(onnx_source *s) {
    for (size_t i = 0; i < s->other_count; i++) {
        onnx_file_release(s->others[i]);
        tn_mem_free((char *)(uintptr_t)s->names[i]);
    }
    tn_mem_free_each(s->others, s->names);
    onnx_file_release(s->file);
}

/* A path that stays in the model's folder: relative, and no part of it is "..". */
static bool stays_inside(onnx_text path) {
    if (path.size == 0 || path.at[0] == '/' || memchr(path.at, 0, path.size) || memchr(path.at, '\\', path.size))
        return false;
    for (size_t begin = 0; begin <= path.size;) {
        const char *slash = memchr(path.at + begin, '/', path.size - begin);
        size_t length = slash ? (size_t)(slash - path.at) - begin : path.size - begin;
        if (length == 2 && memcmp(path.at + begin, "..", 2) == 0) return false;
        begin += length + 1;
    }
    return true;
}

static tn_status open_other(onnx_source *s, onnx_text location, onnx_file **out) {
    for (size_t i = 0; i < s->other_count; i++)
        if (strlen(s->names[i]) == location.size && memcmp(s->names[i], location.at, location.size) == 0) {
            *out = s->others[i];
            return TN_OK;
        }
    TRY(tn_mem_reserve(&s->others, &s->other_capacity, s->other_count + 1, sizeof(onnx_file *)));
    TRY(tn_mem_reserve(&s->names, &s->name_capacity, s->other_count + 1, sizeof(char *)));
    tn_str path = {0}, name = {0};
    tn_str_add(&path, "%s/", s->folder);
    tn_str_addn(&path, location.at, location.size);
    tn_str_addn(&name, location.at, location.size);
    tn_status status = path.failed || name.failed ? TN_ERR_MEMORY : onnx_file_open(path.text, out);
    tn_str_free(&path);
    if (status != TN_OK) {
        tn_str_free(&name);
        return status;
    }
    s->others[s->other_count] = *out;
    s->names[s->other_count++] = name.text;
    return TN_OK;
}

/* ---- the message ------------------------------------------------------------------------------------------------- */

/* Strings of a repeated field, gathered. */
typedef struct text_list {
    onnx_text *at;
    size_t count, capacity;
} text_list;

static tn_status text_list_add(text_list *l, onnx_text t) {
    TRY(tn_mem_reserve(&l->at, &l->capacity, l->count + 1, sizeof *l->at));
    l->at[l->count++] = t;
    return TN_OK;
}

typedef struct tensor_message {
    int64_t type;
    onnx_numbers dims, numbers; /* numbers: of whichever list of numbers there is */
    int number_field;
    text_list strings;
    onnx_text name, raw, location, floats; /* floats: of float_data, packed in one piece */
    int64_t offset, length;                /* of external data; length -1: not told */
    bool has_raw, external;
    int rank;
    int64_t shape[TN_MAX_RANK];
    int64_t numel;
} tensor_message;

enum {
    F_DIMS = 1,
    F_TYPE = 2,
    F_FLOATS = 4,
    F_INT32 = 5,
    F_STRINGS = 6,
    F_INT64 = 7,
    F_NAME = 8,
    F_RAW = 9,
    F_DOUBLES = 10,
    F_UINT64 = 11,
    F_EXTERNAL = 13,
    F_LOCATION = 14
};

static tn_status parse_natural(onnx_text t, int64_t *out) {
    int64_t v = 0;
    for (size_t i = 0; i < t.size; i++)
        if (t.at[i] < '0' || t.at[i] > '9' || tn_mul_overflow(v, 10, &v) || tn_add_overflow(v, t.at[i] - '0', &v))
            return tn_fail(TN_ERR_FORMAT, "external data: '%.*s' is not an offset or length",
                           (int)tn_min64((int64_t)t.size, 40), t.at);
    *out = v;
    return TN_OK;
}

/* key and value of a StringStringEntryProto */
static tn_status take_external(tensor_message *t, onnx_text entry) {
    onnx_wire w = onnx_wire_of(entry);
    onnx_field f;
    tn_status status;
    onnx_text key = {0}, value = {0};
    while (onnx_wire_next(&w, &f, &status)) {
        if (f.number == 1) key = f.bytes;
        if (f.number == 2) value = f.bytes;
    }
    TRY(status);
    if (onnx_is(key, "location")) t->location = value;
    if (onnx_is(key, "offset")) return parse_natural(value, &t->offset);
    if (onnx_is(key, "length")) return parse_natural(value, &t->length);
    return TN_OK;
}

static tn_status take_numbers(tensor_message *t, const onnx_field *f, int kind) {
    if (t->number_field && t->number_field != (int)f->number)
        return tn_fail(TN_ERR_FORMAT, "a tensor has data in two fields, %d and %u", t->number_field,
                       (unsigned)f->number);
    t->number_field = (int)f->number;
    bool whole = f->number == F_FLOATS && f->kind == ONNX_WIRE_BYTES && !t->floats.at && t->numbers.count == 0;
    if (whole) { /* as raw data; a second piece would be told apart below */
        t->floats = f->bytes;
        return TN_OK;
    }
    if (t->floats.at) {
        onnx_field first = {.number = F_FLOATS, .kind = ONNX_WIRE_BYTES, .bytes = t->floats};
        t->floats.at = NULL;
        TRY(onnx_numbers_add(&t->numbers, &first, kind));
    }
    return onnx_numbers_add(&t->numbers, f, kind);
}

static tn_status take_tensor_field(void *ctx, const onnx_field *f) {
    tensor_message *t = ctx;
    switch (f->number) {
    case F_DIMS: return onnx_numbers_add(&t->dims, f, ONNX_WIRE_VARINT);
    case F_TYPE: t->type = (int64_t)f->bits; return TN_OK;
    case F_FLOATS: return take_numbers(t, f, ONNX_WIRE_32);
    case F_INT32:
    case F_INT64:
    case F_UINT64: return take_numbers(t, f, ONNX_WIRE_VARINT);
    case F_DOUBLES: return take_numbers(t, f, ONNX_WIRE_64);
    case F_STRINGS: return text_list_add(&t->strings, f->bytes);
    case F_NAME: t->name = f->bytes; return TN_OK;
    case F_RAW:
        t->raw = f->bytes;
        t->has_raw = true;
        return TN_OK;
    case F_EXTERNAL: return take_external(t, f->bytes);
    case F_LOCATION: t->external = f->bits == 1; return TN_OK;
    default: return TN_OK;
    }
}

static tn_status read_shape(const onnx_numbers *dims, int *rank, int64_t *shape, int64_t *numel) {
    if (dims->count > TN_MAX_RANK)
        return tn_fail(TN_ERR_UNSUPPORTED, "a tensor has %zu dimensions; the limit is %d", dims->count, TN_MAX_RANK);
    *rank = (int)dims->count;
    *numel = 1;
    for (int d = 0; d < *rank; d++) {
        shape[d] = (int64_t)dims->at[d];
        if (shape[d] < 0 || tn_mul_overflow(*numel, shape[d], numel))
            return tn_fail(TN_ERR_FORMAT, "extent %d of a tensor is %lld", d, (long long)shape[d]);
    }
    return TN_OK;
}

static tn_status read_tensor_message(onnx_text message, tensor_message *t) {
    t->length = -1;
    TRY(onnx_wire_each(message, take_tensor_field, t));
    TRY(read_shape(&t->dims, &t->rank, t->shape, &t->numel));
    if (t->type <= 0 || t->type >= ONNX_TYPE_COUNT)
        return tn_fail(TN_ERR_FORMAT, "unknown tensor type %lld", (long long)t->type);
    return TN_OK;
}

static void tensor_message_free(tensor_message *t) { tn_mem_free_each(t->dims.at, t->numbers.at, t->strings.at); }

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

typedef struct tensor_bytes {
    const uint8_t *at;
    size_t size;
    onnx_file *file; /* whose mapping holds them; NULL: none's */
    uint8_t *owned;
} tensor_bytes;
static void free_tensor_bytes(tensor_bytes *b) { tn_mem_free(b->owned); }

static tn_status external_bytes(onnx_source *s, const tensor_message *t, size_t need, tensor_bytes *b) {
    int shown = (int)tn_min64((int64_t)t->location.size, 200);
    if (!s->folder)
        return tn_fail(TN_ERR_UNSUPPORTED, "its data is in the file '%.*s', but the folder of the model is not known",
                       shown, t->location.at ? t->location.at : "");
    if (!stays_inside(t->location))
        return tn_fail(TN_ERR_FORMAT, "its data is in '%.*s', but only files in the model's folder are read", shown,
                       t->location.at ? t->location.at : "");
    onnx_file *f;
    TRY(open_other(s, t->location, &f));
    int64_t length = t->length < 0 ? (int64_t)need : t->length, end;
    if (tn_add_overflow(t->offset, length, &end) || end > (int64_t)f->size)
        return tn_fail(TN_ERR_FORMAT, "its data begins at byte %lld and has %lld bytes, but '%.*s' has only %zu",
                       (long long)t->offset, (long long)length, shown, t->location.at, f->size);
    *b = (tensor_bytes){.at = f->bytes + t->offset, .size = (size_t)length, .file = f};
    return TN_OK;
}

/* What a number takes in the bytes, by the field it stands in. */
static size_t number_bytes(const tensor_message *t) {
    size_t own = (size_t)onnx_types[t->type].bits / 8;
    if (t->number_field == F_FLOATS) return 4;
    if (t->number_field == F_DOUBLES || t->number_field == F_INT64) return 8;
    return own ? own : 1;
}

static bool field_fits_type(const tensor_message *t) {
    switch (t->type) {
    case ONNX_FLOAT:
    case ONNX_COMPLEX64: return t->number_field == F_FLOATS;
    case ONNX_DOUBLE:
    case ONNX_COMPLEX128: return t->number_field == F_DOUBLES;
    case ONNX_INT64: return t->number_field == F_INT64;
    case ONNX_UINT32:
    case ONNX_UINT64: return t->number_field == F_UINT64;
    default: return t->number_field == F_INT32;
    }
}

static tn_status bytes_of_numbers(const tensor_message *t, tensor_bytes *b) {
    if (!t->number_field) return TN_OK; /* none: fine for a tensor without elements */
    if (!field_fits_type(t))
        return tn_fail(TN_ERR_FORMAT, "data of type %s is in field %d of the tensor", onnx_types[t->type].name,
                       t->number_field);
    size_t each = number_bytes(t);
    b->owned = tn_mem_alloc(t->numbers.count * each);
    if (!b->owned) return TN_ERR_MEMORY;
    for (size_t i = 0; i < t->numbers.count; i++)
        for (size_t k = 0; k < each; k++)
            b->owned[i * each + k] = (uint8_t)(t->numbers.at[i] >> (8 * k));
    b->at = b->owned;
    b->size = t->numbers.count * each;
    return TN_OK;
}

static tn_status find_bytes(onnx_source *s, const tensor_message *t, tensor_bytes *b) {
    int64_t bits;
    if (tn_mul_overflow(t->numel, onnx_types[t->type].bits, &bits) || tn_add_overflow(bits, 7, &bits))
        return tn_fail(TN_ERR_FORMAT, "it has more than 2^60 bytes");
    size_t need = (size_t)(bits / 8);
    if (t->external)
        TRY(external_bytes(s, t, need, b));
    else if (t->has_raw)
        *b = (tensor_bytes){.at = (const uint8_t *)t->raw.at, .size = t->raw.size, .file = s->file};
    else if (t->floats.at)
        *b = (tensor_bytes){.at = (const uint8_t *)t->floats.at, .size = t->floats.size, .file = s->file};
    else
        TRY(bytes_of_numbers(t, b));
    if (b->size != need)
        return tn_fail(TN_ERR_FORMAT, "it needs %zu bytes according to its shape and type, but has %zu", need, b->size);
    return TN_OK;
}

/* ---- small floats ------------------------------------------------------------------------------------------------ */

/* How a float of at most 8 bits is read. `unsigned_zero`: the only NaN is the pattern of -0, the bias one higher. */
typedef struct small_float {
    uint8_t exponent, mantissa;
    int8_t bias;
    bool unsigned_zero, infinite, all_ones_nan;
} small_float;

static small_float small_float_of(onnx_type type) {
    switch (type) {
    case ONNX_FLOAT8E4M3FN: return (small_float){4, 3, 7, false, false, true};
    case ONNX_FLOAT8E4M3FNUZ: return (small_float){4, 3, 8, true, false, false};
    case ONNX_FLOAT8E5M2: return (small_float){5, 2, 15, false, true, false};
    case ONNX_FLOAT8E5M2FNUZ: return (small_float){5, 2, 16, true, false, false};
    case ONNX_FLOAT6E2M3: return (small_float){2, 3, 1, false, false, false};
    case ONNX_FLOAT6E3M2: return (small_float){3, 2, 3, false, false, false};
    default: return (small_float){2, 1, 1, false, false, false}; /* FLOAT4E2M1 */
    }
}

static float small_float_value(onnx_type type, unsigned code) {
    if (type == ONNX_FLOAT8E8M0) return code == 255 ? NAN : ldexpf(1, (int)code - 127);
    small_float k = small_float_of(type);
    unsigned sign_bit = 1u << (k.exponent + k.mantissa);
    int e = (int)(code >> k.mantissa) & ((1 << k.exponent) - 1), m = (int)code & ((1 << k.mantissa) - 1);
    float sign = code & sign_bit ? -1.0f : 1.0f;
    if (k.unsigned_zero && code == sign_bit) return NAN;
    if (k.all_ones_nan && (code & (sign_bit - 1)) == sign_bit - 1) return NAN;
    if (k.infinite && e == (1 << k.exponent) - 1) return m ? NAN : sign * INFINITY;
    int hidden = e ? 1 << k.mantissa : 0;
    return sign * ldexpf((float)(hidden + m), (e ? e : 1) - k.bias - k.mantissa);
}

/* Element i of a list of elements of at most 8 bits: the lowest bits come first. */
static unsigned code_at(const uint8_t *bytes, unsigned bits, int64_t i) {
    int64_t at = i * bits;
    return (unsigned)bytes[at >> 3] >> (at & 7) & ((1u << bits) - 1);
}

static void widen_tensor(onnx_type type, const uint8_t *bytes, int64_t n, void *to) {
    unsigned bits = onnx_types[type].bits, sign = 1u << (bits - 1);
    float *floats = to, of_code[256];
    int8_t *small = to;
    bool is_signed = type == ONNX_INT4 || type == ONNX_INT2;
    if (onnx_types[type].dtype == TN_F32) {
        for (unsigned c = 0; c < 1u << bits; c++)
            of_code[c] = small_float_value(type, c);
        for (int64_t i = 0; i < n; i++)
            floats[i] = of_code[code_at(bytes, bits, i)];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int code = (int)code_at(bytes, bits, i);
        small[i] = (int8_t)(is_signed && code & (int)sign ? code - (int)(2 * sign) : code);
    }
}

static bool is_narrow(onnx_type type) { return onnx_types[type].bits < 8 * tn_dtype_size(onnx_types[type].dtype); }

/* ---- values ------------------------------------------------------------------------------------------------------ */

static tn_tensor *widened(const tensor_message *t, const tensor_bytes *b) {
    tn_dtype dtype = onnx_types[t->type].dtype;
    int64_t bytes;
    if (tn_mul_overflow(t->numel, (int64_t)tn_dtype_size(dtype), &bytes))
        return tn_failed(TN_ERR_FORMAT, "it has more than 2^63 bytes");
    AUTO_FREE void *wide = tn_mem_alloc((size_t)bytes);
    if (!wide) return tn_failed(TN_ERR_MEMORY, "out of memory for %lld bytes", (long long)bytes);
    widen_tensor((onnx_type)t->type, b->at, t->numel, wide);
    return tn_from_data(wide, t->shape, t->rank, dtype);
}

static tn_tensor *bools(const tensor_message *t, const tensor_bytes *b) {
    AUTO_FREE uint8_t *clean = tn_mem_alloc(b->size);
    if (!clean) return tn_failed(TN_ERR_MEMORY, "out of memory for %zu bytes", b->size);
    for (size_t i = 0; i < b->size; i++)
        clean[i] = b->at[i] != 0;
    return tn_from_data(clean, t->shape, t->rank, TN_BOOL);
}

/* On big-endian machines: tensors may share bytes of the file, so each is converted apart. */
static tn_tensor *converted(const tensor_message *t, const tensor_bytes *b, tn_dtype dtype) {
    AUTO_FREE uint8_t *copy = tn_mem_alloc(b->size);
    if (!copy) return tn_failed(TN_ERR_MEMORY, "out of memory for %zu bytes", b->size);
    if (b->size > 0) memcpy(copy, b->at, b->size);
    tn_dtype_little_endian(dtype, copy, (int64_t)(b->size / tn_dtype_size(dtype)));
    return tn_from_data(copy, t->shape, t->rank, dtype);
}

static tn_tensor *tensor_of(tensor_message *t, const tensor_bytes *b) {
    static const uint8_t nothing[16];
    const onnx_type_row *row = &onnx_types[t->type];
    if (t->type == ONNX_BOOL) return bools(t, b);
    if (t->type == ONNX_COMPLEX64 || t->type == ONNX_COMPLEX128) {
        if (t->rank == TN_MAX_RANK)
            return tn_failed(TN_ERR_UNSUPPORTED, "complex numbers in %d dimensions are not supported", t->rank);
        t->shape[t->rank++] = 2;
    } else if (is_narrow((onnx_type)t->type)) {
        return widened(t, b);
    }
    const void *at = t->numel ? b->at : nothing;
    if (TN_BIG_ENDIAN && tn_dtype_size(row->dtype) > 1) return converted(t, b, row->dtype);
    bool in_place = t->numel && b->file && (uintptr_t)at % tn_dtype_size(row->dtype) == 0;
    tn_tensor *made = in_place ? tn_from_ptr((void *)(uintptr_t)at, t->shape, t->rank, row->dtype, onnx_file_release,
                                             onnx_file_retain(b->file))
                               : tn_from_data(at, t->shape, t->rank, row->dtype);
    const tn_buffer *own = tn_tensor_node(made)->buffer;
    if (own && own->address != at) tn_map_return_pages(at, own->bytes); /* it is a copy, also on a device */
    return made;
}

static tn_status value_of_message(onnx_source *s, tensor_message *t, onnx_value **out) {
    if (t->type == ONNX_STRING) {
        if ((int64_t)t->strings.count != t->numel)
            return tn_fail(TN_ERR_FORMAT, "it has %zu strings, but its shape needs %lld", t->strings.count,
                           (long long)t->numel);
        *out = onnx_value_strings(t->strings.at, t->shape, t->rank);
        return *out ? TN_OK : tn_error_code();
    }
    AUTO_CALL(free_tensor_bytes) tensor_bytes b = {0};
    TRY(find_bytes(s, t, &b));
    *out = onnx_value_tensor(tensor_of(t, &b), (onnx_type)t->type);
    return *out ? TN_OK : tn_error_code();
}

tn_status onnx_read_tensor(onnx_source *s, onnx_text message, onnx_value **out, onnx_text *name) {
    tensor_message t = {0};
    *out = NULL;
    tn_status status = read_tensor_message(message, &t);
    if (status == TN_OK) status = value_of_message(s, &t, out);
    if (status != TN_OK && t.name.size)
        tn_fail_prefix(status, "tensor '%.*s'", (int)tn_min64((int64_t)t.name.size, 200), t.name.at);
    if (name) *name = t.name;
    tensor_message_free(&t);
    return status;
}

/* ---- sparse tensors ---------------------------------------------------------------------------------------------- */

typedef struct sparse_message {
    onnx_text values, indices;
    onnx_numbers dims;
    onnx_value *value, *index;
    onnx_text name;
    int rank;
    int64_t shape[TN_MAX_RANK], numel;
    uint8_t *dense, *numbers;
    int64_t *places;
} sparse_message;

static tn_status take_sparse_field(void *ctx, const onnx_field *f) {
    sparse_message *m = ctx;
    if (f->number == 1) m->values = f->bytes;
    if (f->number == 2) m->indices = f->bytes;
    return f->number == 3 ? onnx_numbers_add(&m->dims, f, ONNX_WIRE_VARINT) : TN_OK;
}

/* The place of number i in the dense tensor; indices are one a number, or one a number and dim. */
static tn_status tensor_place_of(const sparse_message *m, int64_t i, int64_t *out) {
    int64_t at = 0;
    if (tn_rank(m->index->tensor) == 1) {
        at = m->places[i];
        if (at < 0 || at >= m->numel) return tn_fail(TN_ERR_FORMAT, "index %lld is out of range", (long long)at);
        *out = at;
        return TN_OK;
    }
    for (int d = 0; d < m->rank; d++) {
        int64_t k = m->places[i * m->rank + d];
        if (k < 0 || k >= m->shape[d]) return tn_fail(TN_ERR_FORMAT, "index %lld is out of range", (long long)k);
        at = at * m->shape[d] + k;
    }
    *out = at;
    return TN_OK;
}

static tn_status fill_sparse(onnx_source *s, sparse_message *m, onnx_value **out) {
    TRY(onnx_read_tensor(s, m->values, &m->value, &m->name));
    TRY(onnx_read_tensor(s, m->indices, &m->index, NULL));
    TRY(read_shape(&m->dims, &m->rank, m->shape, &m->numel));
    if (m->value->kind != ONNX_TENSOR || m->index->kind != ONNX_TENSOR || m->index->type != ONNX_INT64 ||
        m->value->type == ONNX_COMPLEX64 || m->value->type == ONNX_COMPLEX128)
        return tn_fail(TN_ERR_UNSUPPORTED, "it must consist of numbers and INT64 indices");
    int64_t count = tn_numel(m->value->tensor), bytes;
    bool flat = tn_rank(m->index->tensor) == 1;
    if (tn_numel(m->index->tensor) != (flat ? count : count * m->rank))
        return tn_fail(TN_ERR_FORMAT, "it has %lld values but %lld indices", (long long)count,
                       (long long)tn_numel(m->index->tensor));
    size_t size = tn_dtype_size(tn_dtype_of(m->value->tensor));
    if (tn_mul_overflow(m->numel, (int64_t)size, &bytes) || bytes > ONNX_MAX_DENSE)
        return tn_fail(TN_ERR_UNSUPPORTED,
                       "as a dense tensor it has %lld elements, which exceeds the limit for sparse tensors",
                       (long long)m->numel);
    size_t index_bytes = (size_t)tn_numel(m->index->tensor) * sizeof(int64_t);
    m->dense = tn_mem_zalloc((size_t)m->numel, size);
    m->numbers = tn_mem_alloc((size_t)count * size);
    m->places = tn_mem_alloc(index_bytes);
    if (!m->dense || !m->numbers || !m->places) return TN_ERR_MEMORY;
    TRY(tn_read(m->value->tensor, m->numbers, (size_t)count * size));
    TRY(tn_read(m->index->tensor, m->places, index_bytes));
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;
        TRY(tensor_place_of(m, i, &at));
        memcpy(m->dense + (size_t)at * size, m->numbers + (size_t)i * size, size);
    }
    *out = onnx_value_tensor(tn_from_data(m->dense, m->shape, m->rank, tn_dtype_of(m->value->tensor)), m->value->type);
    return *out ? TN_OK : tn_error_code();
}

tn_status onnx_read_sparse(onnx_source *s, onnx_text message, onnx_value **out, onnx_text *name) {
    sparse_message m = {0};
    *out = NULL;
    tn_status status = onnx_wire_each(message, take_sparse_field, &m);
    if (status == TN_OK) status = fill_sparse(s, &m, out);
    if (status != TN_OK)
        tn_fail_prefix(status, "sparse tensor '%.*s'", (int)tn_min64((int64_t)m.name.size, 200),
                       m.name.at ? m.name.at : "");
    if (name) *name = m.name;
    onnx_value_release(m.value);
    onnx_value_release(m.index);
    tn_mem_free_each(m.dims.at, m.dense, m.numbers, m.places);
    return status;
}

/* ---- sequences, optionals, maps ---------------------------------------------------------------------------------- */

/* Fields 3 … 7 of SequenceProto and OptionalProto hold a tensor, a sparse tensor, a sequence, a map, an optional. */
static tn_status read_item(onnx_source *s, const onnx_field *f, int depth, onnx_value **out) {
    *out = NULL;
    switch (f->number) {
    case 3: return onnx_read_tensor(s, f->bytes, out, NULL);
    case 4: return onnx_read_sparse(s, f->bytes, out, NULL);
    case 5: return onnx_read_sequence(s, f->bytes, depth + 1, out);
    case 6: return onnx_read_map(s, f->bytes, depth + 1, out);
    case 7: return onnx_read_optional(s, f->bytes, depth + 1, out);
    default: return TN_OK;
    }
}

static tn_status check_depth(int depth) {
    if (depth < ONNX_MAX_TYPES) return TN_OK;
    return tn_fail(TN_ERR_FORMAT, "sequences, maps and optionals are nested more than %d deep", ONNX_MAX_TYPES);
}

typedef struct item_list {
    onnx_value **at;
    size_t count, capacity;
} item_list;

static void item_list_free(item_list *l) {
    for (size_t i = 0; i < l->count; i++)
        onnx_value_release(l->at[i]);
    tn_mem_free(l->at);
}

static tn_status read_items(onnx_source *s, onnx_text message, int depth, item_list *l) {
    TRY(check_depth(depth));
    onnx_wire w = onnx_wire_of(message);
    onnx_field f;
    tn_status status;
    while (onnx_wire_next(&w, &f, &status)) {
        onnx_value *item;
        TRY(read_item(s, &f, depth, &item));
        if (!item) continue;
        tn_status room = tn_mem_reserve(&l->at, &l->capacity, l->count + 1, sizeof(onnx_value *));
        if (room != TN_OK) onnx_value_release(item);
        TRY(room);
        l->at[l->count++] = item;
    }
    return status;
}

tn_status onnx_read_sequence(onnx_source *s, onnx_text message, int depth, onnx_value **out) {
    item_list l = {0};
    *out = NULL;
    tn_status status = read_items(s, message, depth, &l);
    if (status != TN_OK) {
        item_list_free(&l);
        return status;
    }
    *out = onnx_value_sequence(l.at, (int64_t)l.count, l.count ? l.at[0]->type : ONNX_UNDEFINED);
    tn_mem_free(l.at);
    return *out ? TN_OK : tn_error_code();
}

tn_status onnx_read_optional(onnx_source *s, onnx_text message, int depth, onnx_value **out) {
    AUTO_CALL(item_list_free) item_list l = {0};
    *out = NULL;
    TRY(read_items(s, message, depth, &l));
    if (l.count > 1) return tn_fail(TN_ERR_FORMAT, "an optional holds %zu values", l.count);
    *out = onnx_value_optional(l.count ? onnx_value_retain(l.at[0]) : NULL);
    return *out ? TN_OK : tn_error_code();
}

/* MapProto: key_type 2, keys 3, string_keys 4, values 5 (a sequence) */
typedef struct map_message {
    onnx_numbers keys;
    text_list texts;
    onnx_text values;
    item_list items;
} map_message;
static void map_message_free(map_message *m) {
    item_list_free(&m->items);
    tn_mem_free_each(m->keys.at, m->texts.at);
}

static tn_status take_map_field(void *ctx, const onnx_field *f) {
    map_message *m = ctx;
    if (f->number == 3) return onnx_numbers_add(&m->keys, f, ONNX_WIRE_VARINT);
    if (f->number == 4) return text_list_add(&m->texts, f->bytes);
    if (f->number == 5) m->values = f->bytes;
    return TN_OK;
}

static tn_status make_map(onnx_source *s, map_message *m, int depth, onnx_value **out) {
    TRY(read_items(s, m->values, depth, &m->items));
    int64_t n = (int64_t)(m->texts.count ? m->texts.count : m->keys.count);
    if (n != (int64_t)m->items.count)
        return tn_fail(TN_ERR_FORMAT, "a map has %lld keys but %zu values", (long long)n, m->items.count);
    onnx_value *keys =
        m->texts.count
            ? onnx_value_strings(m->texts.at, &n, 1)
            : onnx_value_tensor(tn_from_data(n ? (void *)m->keys.at : (void *)&n, &n, 1, TN_I64), ONNX_INT64);
    m->items.count = 0; /* the map's from here on */
    *out = onnx_value_map(keys, m->items.at, n);
    return *out ? TN_OK : tn_error_code();
}

tn_status onnx_read_map(onnx_source *s, onnx_text message, int depth, onnx_value **out) {
    AUTO_CALL(map_message_free) map_message m = {0};
    *out = NULL;
    TRY(check_depth(depth));
    TRY(onnx_wire_each(message, take_map_field, &m));
    return make_map(s, &m, depth, out);
}
