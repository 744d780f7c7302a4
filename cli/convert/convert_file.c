/* convert_file.c — safetensors, GGUF, PyTorch and ONNX files as lists of tensors. */
#include "cli/convert/convert.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "trunnion/backend.h"
#include "trunnion/ops.h"

static const struct {
    const char *ending;
    convert_kind kind;
} endings[] = {
    {".safetensors", CONVERT_SAFETENSORS},
    {".safetensors.index.json", CONVERT_SAFETENSORS},
    {".gguf", CONVERT_GGUF},
    {".pt", CONVERT_PICKLE},
    {".pth", CONVERT_PICKLE},
    {".bin", CONVERT_PICKLE},
    {".onnx", CONVERT_ONNX},
};

convert_kind convert_kind_of(const char *path) {
    if (cli_is_folder(path)) return CONVERT_SAFETENSORS;
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i].ending);
        if (length > n && strcasecmp(path + length - n, endings[i].ending) == 0) return endings[i].kind;
    }
    return CONVERT_UNKNOWN;
}

/* Not weights: values that our exporter adds, such as constants (_c0, _c1 …) and RoPE frequencies. */
static bool is_weight(const char *name) {
    bool constant = strncmp(name, "_c", 2) == 0 && name[2] && name[2 + strspn(name + 2, "0123456789")] == 0;
    return !constant && strcmp(name, "rotary_emb.inv_freq") != 0;
}

static tn_status open_onnx(convert_file *f) {
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    o.weights_only = true;
    TRY(tn_onnx_open(f->path, &o, &f->onnx));
    int count = tn_onnx_weight_count(f->onnx);
    f->weights = malloc((size_t)count * sizeof *f->weights + 1);
    if (!f->weights) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %d weights", count);
    for (int i = 0; i < count; i++) {
        const char *name;
        const tn_onnx_value *v = tn_onnx_weight_at(f->onnx, i, &name);
        if (!is_weight(name)) continue;
        if (tn_onnx_value_kind(v) != TN_ONNX_TENSOR)
            return tn_backend_fail(TN_ERR_UNSUPPORTED,
                                   "'%s': '%.100s' contains strings, which other file types cannot store", f->path,
                                   name);
        f->weights[f->count++] = i;
    }
    return f->count > 0 ? TN_OK : tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s' has no weights", f->path);
}

tn_status convert_open(const char *path, convert_file *f) {
    *f = (convert_file){.kind = convert_kind_of(path), .path = path};
    tn_status status = TN_OK;
    switch (f->kind) {
    case CONVERT_SAFETENSORS:
        status = tn_safetensors_open(path, &f->safetensors);
        f->count = tn_safetensors_count(f->safetensors);
        return status;
    case CONVERT_GGUF:
        status = tn_gguf_open(path, &f->gguf);
        f->count = tn_gguf_count(f->gguf);
        return status;
    case CONVERT_PICKLE:
        status = tn_pickle_open(path, &f->pickle);
        f->count = tn_pickle_count(f->pickle);
        return status;
    case CONVERT_ONNX: return open_onnx(f);
    default:
        return tn_backend_fail(TN_ERR_UNSUPPORTED,
                               "'%s': unknown file type; supported are .safetensors, .gguf, .onnx, .pt, .pth, .bin, or "
                               "a folder with safetensors",
                               path);
    }
}

void convert_close(convert_file *f) {
    tn_safetensors_close(f->safetensors);
    tn_gguf_close(f->gguf);
    tn_pickle_close(f->pickle);
    tn_onnx_close(f->onnx);
    free(f->weights);
    if (f->folder) convert_folder_close(f->folder);
    *f = (convert_file){0};
}

static void take_source_option(convert_tensor *t, const char *name, const char *type, tn_dtype dtype, int rank,
                               const int64_t *shape) {
    *t = (convert_tensor){.name = name, .source = name, .type = type, .dtype = dtype, .rank = rank, .numel = 1};
    for (int d = 0; d < rank; d++)
        t->numel *= t->shape[d] = shape[d];
}

/* A table of rope, which the folder says in config.json. */
static tn_status table_at(const convert_folder *f, int64_t i, convert_tensor *t) {
    tn_tensor *x = f->tables[i];
    take_source_option(t, f->table_names[i], "F32", TN_F32, 1, tn_shape(x));
    t->bytes = (int64_t)tn_dtype_bytes(TN_F32, t->numel);
    t->value = x;
    return TN_OK;
}

/* As the file has it. */
static tn_status source_at(const convert_file *f, int64_t i, convert_tensor *t) {
    tn_status status = TN_OK;
    if (f->safetensors) {
        tn_safetensors_info s = {.struct_size = sizeof s};
        if ((status = tn_safetensors_at(f->safetensors, (int)i, &s)) != TN_OK) return status;
        take_source_option(t, s.name, s.dtype_name, s.dtype, s.rank, s.shape);
        t->bytes = s.bytes;
    } else if (f->gguf) {
        tn_gguf_info g = {.struct_size = sizeof g};
        if ((status = tn_gguf_at(f->gguf, i, &g)) != TN_OK) return status;
        take_source_option(t, g.name, g.dtype_name, g.dtype, g.rank, g.shape);
        t->bytes = g.bytes;
        t->data = g.data;
    } else if (f->onnx) {
        const char *name = "";
        const tn_onnx_value *v = tn_onnx_weight_at(f->onnx, (int)i, &name);
        tn_tensor *x = tn_onnx_value_get(v);
        if (!x) return TN_ERR_ARGUMENT;
        take_source_option(t, name, tn_onnx_value_type(v), tn_dtype_of(x), tn_rank(x), tn_shape(x));
        t->bytes = (int64_t)tn_dtype_bytes(t->dtype, t->numel);
        t->value = x;
    } else {
        tn_pickle_info p = {.struct_size = sizeof p};
        if ((status = tn_pickle_at(f->pickle, i, &p)) != TN_OK) return status;
        take_source_option(t, p.name, p.dtype_name, p.dtype, p.rank, p.shape);
        t->bytes = (int64_t)tn_dtype_bytes(p.dtype, t->numel);
    }
    return status;
}

tn_status convert_leave_out(convert_file *f) {
    int64_t kept = 0;
    f->weights = malloc((size_t)f->count * sizeof *f->weights + 1);
    if (!f->weights) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld names", (long long)f->count);
    for (int64_t i = 0; i < f->count; i++) {
        convert_tensor t;
        TRY(source_at(f, i, &t));
        if (!convert_folder_leaves_out(f->folder, t.name)) f->weights[kept++] = (int)i;
    }
    f->count = kept + f->folder->table_count + convert_experts_count(f->folder);
    return TN_OK;
}

tn_status convert_at(const convert_file *f, int64_t i, convert_tensor *t) {
    int64_t tables = f->folder ? f->folder->table_count : 0, experts = f->folder ? convert_experts_count(f->folder) : 0;
    int64_t plainly = f->count - tables - experts; /* as the file has them */
    if (i < 0 || i >= f->count) return TN_ERR_ARGUMENT;
    if (i >= plainly + tables)
        return convert_experts_at(f, i - plainly - tables, &f->folder->expert_names[i - plainly - tables], t);
    if (i >= plainly) return table_at(f->folder, i - plainly, t);
    tn_status status = source_at(f, f->weights ? f->weights[i] : i, t);
    if (status != TN_OK || !f->folder) return status;
    if ((status = convert_folder_name(f->folder, i, t->source, &t->name, &t->heads)) != TN_OK) return status;
    if (t->heads != 0) t->data = NULL; /* its rows do not stand there as they will */
    if (t->heads == CONVERT_TRANSPOSED && t->rank == 2) {
        int64_t rows = t->shape[0];
        t->shape[0] = t->shape[1];
        t->shape[1] = rows;
        return TN_OK;
    }
    if (t->heads == CONVERT_TRANSPOSED) return tn_backend_fail(TN_ERR_FORMAT, "'%s' is not a matrix", t->source);
    bool plain = t->heads == 0 || t->heads >= CONVERT_NO_HEADS;
    if (plain || (t->rank >= 1 && t->rank <= 2 && t->shape[0] % (2 * t->heads) == 0)) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "the rows of '%s' do not match %lld heads", t->source, (long long)t->heads);
}

static bool is_expert(const convert_tensor *t) { return t->heads == CONVERT_JOINED || t->heads == CONVERT_PART; }

static tn_tensor *open_tensor(const convert_file *f, const convert_tensor *t) {
    if (is_expert(t)) return convert_experts_tensor(f, t);
    if (t->value) return tn_retain(t->value);
    if (f->safetensors) return tn_safetensors_tensor(f->safetensors, t->source);
    return f->gguf ? tn_gguf_tensor(f->gguf, t->source) : tn_pickle_tensor(f->pickle, t->source);
}

tn_tensor *convert_tensor_of(const convert_file *f, const convert_tensor *t) {
    tn_tensor *tensor = open_tensor(f, t);
    if (t->heads == 0 || is_expert(t)) return tensor;
    tn_tensor *turned = convert_turn(tensor, t->heads);
    tn_free(tensor);
    return turned;
}

float *convert_numbers(const convert_file *f, const convert_tensor *from) {
    tn_tensor *t = convert_tensor_of(f, from);
    if (!t) return NULL; /* it has been said why */
    tn_tensor *cast = tn_cast(t, TN_F32);
    float *x = malloc((size_t)from->numel * sizeof *x + 1);
    if (!x)
        tn_backend_fail(TN_ERR_MEMORY, "out of memory for the %lld numbers of '%s'", (long long)from->numel,
                        from->name);
    if (x && tn_read(cast, x, (size_t)from->numel * sizeof *x) != TN_OK) {
        free(x);
        x = NULL;
    }
    tn_free(cast);
    tn_free(t);
    return x;
}
