/* info.c — `trunnion info`: what a model file says of itself. Only headers are read; nothing is computed.
 *
 * Names and texts come from files of strangers: what reaches the terminal has no control characters. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/convert/convert.h"
#include "cli/run/npy.h"
#include "trunnion/backend.h"

enum { SHOWN_ITEMS = 8, SHOWN_TEXT = 56, JSON_ITEMS = 64, MAGIC = 16 };

static int run_info(int argc, char **argv);

const cli_command cli_info = {
    .name = "info",
    .summary = "show what is in a model file: metadata, tensors, inputs, outputs",
    .usage = "info MODEL [options]",
    .help = "MODEL is a GGUF, safetensors, ONNX, PyTorch (.pt, .pth, .bin), .npz or .npy file, or a\n"
            "Hugging Face folder. Reads headers only and computes nothing.\n"
            "\n"
            "      --tensors         list every tensor with its type, shape and bytes\n"
            "      --template        print the chat template and nothing else\n"
            "      --json            format, architecture, name, parameters, bytes, types{},\n"
            "                        tensors[] {name, type, shape, bytes}, inputs[], outputs[],\n"
            "                        tokenizer {model, tokens}, chat_template, metadata{}\n"
            "\n"
            "examples:\n"
            "  trunnion info model.gguf\n"
            "  trunnion info all-MiniLM-L6-v2 --tensors\n"
            "  trunnion info model.onnx --json\n",
    .accepts = CLI_JSON,
    .run = run_info,
};

typedef struct request {
    cli_options common;
    bool tensors, template;
} request;

/* An open model: one of the readers of `file`, or arrays of NumPy's; of a folder its JSON files too. */
typedef struct model {
    const char *path, *format;
    convert_file file;
    unsigned char *bytes; /* of an .npz or .npy file */
    convert_tensor *arrays;
    tn_json_doc *config, *tokenizer, *tokenizer_config;
    char *architecture, *name, *tokens_model, *template; /* copies; NULL: not said */
    int64_t tokens;                                      /* of the vocabulary */
} model;

/* ---- what is said of the model ----------------------------------------------------------------------------------- */

static tn_status copy_text(const char *text, size_t size, char **out) {
    *out = malloc(size + 1);
    if (!*out) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for a text of %zu bytes", size);
    memcpy(*out, text, size);
    (*out)[size] = 0;
    return TN_OK;
}

/* *out stays NULL if the file does not say it. */
static tn_status gguf_text(const tn_gguf *f, const char *key, char **out) {
    const char *text;
    int64_t length;
    bool there = tn_gguf_type_of(tn_gguf_get(f, key)) == TN_GGUF_STRING;
    if (!there || tn_gguf_get_string(f, key, &text, &length) != TN_OK) return TN_OK;
    return copy_text(text, (size_t)length, out);
}

static tn_status read_gguf_words(model *m) {
    const tn_gguf *f = m->file.gguf;
    m->tokens = tn_gguf_length(tn_gguf_get(f, "tokenizer.ggml.tokens"));
    TRY(gguf_text(f, "general.architecture", &m->architecture));
    TRY(gguf_text(f, "general.name", &m->name));
    TRY(gguf_text(f, "tokenizer.ggml.model", &m->tokens_model));
    return gguf_text(f, "tokenizer.chat_template", &m->template);
}

static tn_status json_text(const tn_json *v, char **out) {
    if (tn_json_kind_of(v) != TN_JSON_STRING) return TN_OK;
    return copy_text(tn_json_string(v, ""), tn_json_length(v), out);
}

static tn_status read_folder_words(model *m) {
    const tn_json *words = m->tokenizer ? tn_json_get(tn_json_root(m->tokenizer), "model") : NULL;
    const tn_json *config = m->config ? tn_json_root(m->config) : NULL;
    const tn_json *other = m->tokenizer_config ? tn_json_root(m->tokenizer_config) : NULL;
    m->tokens = (int64_t)tn_json_length(tn_json_get(words, "vocab"));
    TRY(json_text(tn_json_get(config, "model_type"), &m->architecture));
    TRY(json_text(tn_json_get(words, "type"), &m->tokens_model));
    return !m->template ? json_text(tn_json_get(other, "chat_template"), &m->template) : TN_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static tn_status add_array(model *m, const char *name, tn_tensor *t, int64_t *room) {
    if (m->file.count == *room) {
        *room = *room ? 2 * *room : 16;
        convert_tensor *more = realloc(m->arrays, (size_t)*room * sizeof *more);
        if (!more) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %" PRId64 " arrays", *room);
        m->arrays = more;
    }
    convert_tensor a = {.name = strdup(name), .dtype = tn_dtype_of(t), .rank = tn_rank(t), .numel = tn_numel(t)};
    if (!a.name) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for a name");
    a.type = tn_dtype_name(a.dtype);
    a.bytes = (int64_t)tn_dtype_bytes(a.dtype, a.numel);
    for (int d = 0; d < a.rank; d++)
        a.shape[d] = tn_shape(t)[d];
    m->arrays[m->file.count++] = a;
    return TN_OK;
}

static tn_status open_npz(model *m, size_t size) {
    npz_member member;
    size_t at = 0;
    int64_t room = 0;
    while (npz_next(m->bytes, size, &at, &member)) {
        AUTO_CLI_TENSOR tn_tensor *t = NULL;
        TRY(npz_decode(&member, &t));
        TRY(add_array(m, member.name, t, &room));
    }
    if (npz_is_end(m->bytes, size, at)) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': the archive is damaged at byte %zu", m->path, at);
}

static tn_status open_numpy(model *m) {
    size_t size;
    int64_t room = 0;
    tn_tensor *t = NULL;
    TRY(npy_load(m->path, &m->bytes, &size));
    m->format = npz_is(m->bytes, size) ? "npz" : "npy";
    if (m->format[2] == 'z') return open_npz(m, size);
    tn_status status = npy_decode(m->bytes, size, m->path, &t);
    if (status == TN_OK) status = add_array(m, "array", t, &room);
    tn_free(t);
    return status;
}

static tn_status open_safetensors(model *m) {
    m->format = "safetensors";
    tn_status status = tn_safetensors_open(m->path, &m->file.safetensors);
    m->file.count = tn_safetensors_count(m->file.safetensors);
    return status;
}

static tn_status open_gguf(model *m) {
    m->format = "gguf";
    TRY(tn_gguf_open(m->path, &m->file.gguf));
    m->file.count = tn_gguf_count(m->file.gguf);
    return read_gguf_words(m);
}

static tn_status open_pickle(model *m) {
    m->format = "pytorch";
    tn_status status = tn_pickle_open(m->path, &m->file.pickle);
    m->file.count = status == TN_OK ? tn_pickle_count(m->file.pickle) : 0;
    return status;
}

static tn_status open_onnx(model *m) {
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    o.weights_only = true;
    m->format = "onnx";
    tn_status status = tn_onnx_open(m->path, &o, &m->file.onnx);
    m->file.count = status == TN_OK ? tn_onnx_weight_count(m->file.onnx) : 0;
    return status;
}

static const struct {
    const char *ending;
    tn_status (*open)(model *m);
} endings[] = {
    {".gguf", open_gguf},
    {".safetensors", open_safetensors},
    {".safetensors.index.json", open_safetensors},
    {".onnx", open_onnx},
    {".npz", open_numpy},
    {".npy", open_numpy},
    {".pt", open_pickle},
    {".pth", open_pickle},
    {".bin", open_pickle},
};

/* Opening a pipe would wait for a writer. */
static tn_status check_regular(const char *path) {
    FILE *f;
    TRY(tn_backend_open(path, &f));
    fclose(f);
    return TN_OK;
}

/* A file whose name says nothing is known by its first bytes. */
static tn_status open_by_content(model *m) {
    unsigned char first[MAGIC] = {0};
    FILE *f;
    TRY(tn_backend_open(m->path, &f));
    size_t n = fread(first, 1, sizeof first, f);
    fclose(f);
    if (n >= 4 && memcmp(first, "GGUF", 4) == 0) return open_gguf(m);
    if (n >= 6 && memcmp(first, "\x93NUMPY", 6) == 0) return open_numpy(m);
    if (n >= 4 && memcmp(first, "PK\3\4", 4) == 0) return open_pickle(m);
    if (n >= 9 && first[8] == '{') return open_safetensors(m);
    return tn_backend_fail(TN_ERR_UNSUPPORTED,
                           "'%s': unknown file type (first bytes are %02x %02x %02x %02x); supported are .gguf, "
                           ".safetensors, .onnx, .pt, .pth, .bin, .npz, .npy and Hugging Face folders",
                           m->path, first[0], first[1], first[2], first[3]);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* NULL if there is no such file. */
static tn_status open_beside(const model *m, const char *name, tn_json_doc **out) {
    char path[CLI_PATH];
    snprintf(path, sizeof path, "%s/%s", m->path, name);
    return access(path, F_OK) == 0 ? tn_json_open(path, out) : TN_OK;
}

static tn_status read_template(model *m) {
    char path[CLI_PATH];
    size_t size = 0;
    unsigned char *bytes = NULL;
    snprintf(path, sizeof path, "%s/chat_template.jinja", m->path);
    if (access(path, F_OK) != 0) return TN_OK;
    TRY(check_regular(path));
    tn_status status = npy_load(path, &bytes, &size);
    if (status == TN_OK) status = copy_text((const char *)bytes, size, &m->template);
    free(bytes);
    return status;
}

static bool has_safetensors(const model *m) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char path[CLI_PATH];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", m->path, names[i]);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

static tn_status open_folder(model *m) {
    char path[CLI_PATH];
    TRY(open_beside(m, "config.json", &m->config));
    TRY(open_beside(m, "tokenizer.json", &m->tokenizer));
    TRY(open_beside(m, "tokenizer_config.json", &m->tokenizer_config));
    TRY(read_template(m));
    TRY(read_folder_words(m));
    m->format = "huggingface";
    snprintf(path, sizeof path, "%s/pytorch_model.bin", m->path);
    if (access(path, F_OK) == 0 && !has_safetensors(m)) {
        TRY(tn_pickle_open(path, &m->file.pickle));
        m->file.count = tn_pickle_count(m->file.pickle);
        return TN_OK;
    }
    TRY(tn_safetensors_open(m->path, &m->file.safetensors));
    m->file.count = tn_safetensors_count(m->file.safetensors);
    return TN_OK;
}

static tn_status open_model(model *m, const char *path) {
    *m = (model){.path = path, .format = "", .file.path = path};
    if (cli_is_folder(path)) return open_folder(m);
    TRY(check_regular(path));
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i].ending);
        if (length > n && strcasecmp(path + length - n, endings[i].ending) == 0) return endings[i].open(m);
    }
    return open_by_content(m);
}

static void close_model(model *m) {
    for (int64_t i = 0; m->arrays && i < m->file.count; i++)
        free((char *)(uintptr_t)m->arrays[i].name);
    free(m->arrays);
    free(m->bytes);
    free(m->architecture);
    free(m->name);
    free(m->tokens_model);
    free(m->template);
    tn_json_free(m->config);
    tn_json_free(m->tokenizer);
    tn_json_free(m->tokenizer_config);
    convert_close(&m->file);
}

/* Tensor i. An ONNX file may have lists of strings among its weights: their type is all that is known. */
static tn_status tensor_at(const model *m, int64_t i, convert_tensor *out) {
    const char *name = "";
    if (m->arrays) {
        *out = m->arrays[i];
        return TN_OK;
    }
    if (!m->file.onnx) return convert_at(&m->file, i, out);
    const tn_onnx_value *v = tn_onnx_weight_at(m->file.onnx, (int)i, &name);
    if (tn_onnx_value_kind(v) == TN_ONNX_TENSOR) return convert_at(&m->file, i, out);
    *out = (convert_tensor){.name = name, .type = tn_onnx_value_type(v), .dtype = TN_DTYPE_COUNT};
    out->rank = tn_onnx_value_shape(v, out->shape);
    out->numel = tn_onnx_value_count(v);
    return TN_OK;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Sums over tensors, by the files' words for their types. */
enum { MOST_TYPES = 64 };
typedef struct totals {
    int64_t parameters, bytes;
    int count;
    struct {
        const char *type;
        int64_t tensors, bytes;
    } types[MOST_TYPES];
} totals;

static tn_status add_up(const model *m, totals *out) {
    *out = (totals){0};
    for (int64_t i = 0; i < m->file.count; i++) {
        convert_tensor t;
        TRY(tensor_at(m, i, &t));
        int k = 0;
        while (k < out->count && strcmp(out->types[k].type, t.type) != 0)
            k++;
        if (k == MOST_TYPES) k--;
        if (k == out->count) out->types[out->count++].type = t.type;
        out->types[k].tensors++;
        out->types[k].bytes += t.bytes;
        out->parameters += t.numel;
        out->bytes += t.bytes;
    }
    return TN_OK;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* At most `most` bytes of a stranger's text, on one line: what could move the cursor becomes ?. */
static void put_foreign(const char *text, size_t size, size_t most) {
    char line[512];
    size_t n = size < most ? size : most;
    if (n > sizeof line - 1) n = sizeof line - 1;
    memcpy(line, text, n);
    line[n] = 0;
    while (n < size && n > 0 && ((unsigned char)line[n - 1] & 0xC0) == 0x80)
        line[--n] = 0; /* a character that was cut */
    if (n < size && n > 0 && ((unsigned char)line[n - 1] & 0x80)) line[--n] = 0;
    cli_whole_characters(line, n);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)line[i];
        if (c == '\n')
            line[i] = ' ';
        else if (c < 0x20 || c == 0x7F)
            line[i] = '?';
        else if (c == 0xC2 && (unsigned char)line[i + 1] < 0xA0)
            line[i] = line[i + 1] = '?'; /* C1 controls */
    }
    cli_put(stdout, line);
    if (n < size) cli_put(stdout, "…");
}

static void put_line(const char *what, const char *value) {
    if (!value) return;
    printf("%-14s ", what);
    put_foreign(value, strlen(value), SHOWN_TEXT * 2);
    putchar('\n');
}

static void put_size(char *out, size_t size, double v, double step, const char *unit) {
    static const char *const powers[] = {"", "k", "M", "G", "T"};
    int i = 0;
    for (; v >= step && i < 4; i++)
        v /= step;
    snprintf(out, size, i ? "%.1f %s%s" : "%.0f %s%s", v, powers[i], unit);
}

static void put_gguf_item(const tn_gguf_value *v, int64_t i) {
    int64_t n = 0;
    double x = 0;
    bool b = false;
    const char *text;
    switch (tn_gguf_item_type(v)) {
    case TN_GGUF_STRING:
        if (tn_gguf_string(v, i, &text, &n) == TN_OK) put_foreign(text, (size_t)n, SHOWN_TEXT);
        break;
    case TN_GGUF_BOOL: printf("%s", tn_gguf_bool(v, i, &b) == TN_OK && b ? "true" : "false"); break;
    case TN_GGUF_F32:
    case TN_GGUF_F64: printf("%g", tn_gguf_float(v, i, &x) == TN_OK ? x : 0); break;
    case TN_GGUF_ARRAY: printf("[…]"); break;
    default:
        if (tn_gguf_int(v, i, &n) == TN_OK) printf("%" PRId64, n);
    }
}

static void put_gguf_metadata(const tn_gguf *f) {
    for (int64_t i = 0; i < tn_gguf_key_count(f); i++) {
        const char *key = tn_gguf_key(f, i);
        const tn_gguf_value *v = tn_gguf_get(f, key);
        int64_t length = tn_gguf_length(v);
        bool array = tn_gguf_type_of(v) == TN_GGUF_ARRAY;
        printf("  ");
        put_foreign(key, strlen(key), SHOWN_TEXT * 2);
        printf(array ? " = [" : " = ");
        for (int64_t k = 0; k < length && k < (array ? SHOWN_ITEMS : 1); k++) {
            if (k) printf(", ");
            put_gguf_item(v, k);
        }
        if (array && length > SHOWN_ITEMS) cli_print(stdout, ", … (%" PRId64 " items)", length);
        printf(array ? "]\n" : "\n");
    }
}

static void put_json_metadata(const tn_json *root) {
    for (size_t i = 0; i < tn_json_length(root); i++) {
        const tn_json *v = tn_json_at(root, i);
        const char *key = tn_json_key(root, i);
        printf("  ");
        put_foreign(key, strlen(key), SHOWN_TEXT * 2);
        printf(" = ");
        switch (tn_json_kind_of(v)) {
        case TN_JSON_STRING: put_foreign(tn_json_string(v, ""), tn_json_length(v), SHOWN_TEXT); break;
        case TN_JSON_NUMBER: printf("%.15g", tn_json_number(v, 0)); break;
        case TN_JSON_BOOL: printf("%s", tn_json_bool(v, false) ? "true" : "false"); break;
        case TN_JSON_NULL: printf("null"); break;
        default: printf("(%zu items)", tn_json_length(v));
        }
        putchar('\n');
    }
}

static void put_metadata(const model *m) {
    bool any =
        m->config || m->file.gguf || (m->file.safetensors && tn_safetensors_metadata_key(m->file.safetensors, 0));
    if (any) printf("\nmetadata\n");
    if (m->file.gguf) put_gguf_metadata(m->file.gguf);
    if (m->config) put_json_metadata(tn_json_root(m->config));
    const char *key;
    for (int i = 0; m->file.safetensors && (key = tn_safetensors_metadata_key(m->file.safetensors, i)); i++) {
        const char *value = tn_safetensors_metadata(m->file.safetensors, key);
        printf("  ");
        put_foreign(key, strlen(key), SHOWN_TEXT * 2);
        printf(" = ");
        put_foreign(value ? value : "", value ? strlen(value) : 0, SHOWN_TEXT);
        putchar('\n');
    }
}

static void put_shape(const convert_tensor *t) {
    putchar('[');
    for (int d = 0; d < t->rank; d++)
        printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
    putchar(']');
}

static tn_status put_tensors(const model *m) {
    printf("\ntensors\n");
    for (int64_t i = 0; i < m->file.count; i++) {
        convert_tensor t;
        TRY(tensor_at(m, i, &t));
        printf("  ");
        put_foreign(t.name, strlen(t.name), 200);
        printf("  %s ", t.type);
        put_shape(&t);
        printf(" %" PRId64 "\n", t.bytes);
    }
    return TN_OK;
}

static void put_ports(const model *m, const char *what, int count,
                      tn_status (*at)(const tn_onnx *, int, tn_onnx_info *)) {
    if (count > 0) printf("\n%s\n", what);
    for (int i = 0; i < count; i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        if (at(m->file.onnx, i, &info) != TN_OK) continue;
        printf("  ");
        put_foreign(info.name, strlen(info.name), 200);
        printf("  %s%s", info.type, info.rank < 0 ? "" : " [");
        for (int d = 0; d < info.rank; d++) {
            if (d) printf(", ");
            if (info.dims[d])
                put_foreign(info.dims[d], strlen(info.dims[d]), SHOWN_TEXT);
            else if (info.shape[d] < 0)
                putchar('?');
            else
                printf("%" PRId64, info.shape[d]);
        }
        printf(info.rank < 0 ? "\n" : "]\n");
    }
}

static tn_status put_text(const model *m, const totals *sums, const request *r) {
    char text[64];
    const char *tokenizer = m->tokens_model, *template = m->template;
    put_line("format", m->format);
    put_line("architecture", m->architecture);
    put_line("name", m->name);
    put_size(text, sizeof text, (double)sums->parameters, 1000, "");
    put_line("parameters", text);
    put_size(text, sizeof text, (double)sums->bytes, 1024, "iB");
    put_line("weights",
             sums->bytes < 1024 ? (snprintf(text, sizeof text, "%" PRId64 " bytes", sums->bytes), text) : text);
    printf("%-14s %" PRId64 ":", "tensors", m->file.count);
    for (int i = 0; i < sums->count; i++)
        printf("%s %" PRId64 " %s", i ? "," : "", sums->types[i].tensors, sums->types[i].type);
    putchar('\n');
    if (tokenizer) printf("%-14s ", "tokenizer");
    if (tokenizer) put_foreign(tokenizer, strlen(tokenizer), SHOWN_TEXT);
    if (tokenizer) printf(", %" PRId64 " tokens\n", m->tokens);
    if (template) printf("%-14s %zu bytes (--template prints it)\n", "chat template", strlen(template));
    if (m->file.onnx) put_ports(m, "inputs", tn_onnx_input_count(m->file.onnx), tn_onnx_input_at);
    if (m->file.onnx) put_ports(m, "outputs", tn_onnx_output_count(m->file.onnx), tn_onnx_output_at);
    put_metadata(m);
    return r->tensors ? put_tensors(m) : TN_OK;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void json_gguf_item(cli_json *j, const char *key, const tn_gguf_value *v, int64_t i) {
    int64_t n = 0;
    double x = 0;
    bool b = false;
    const char *text = NULL;
    switch (tn_gguf_item_type(v)) {
    case TN_GGUF_STRING:
        (void)tn_gguf_string(v, i, &text, &n);
        char *copy = calloc(1, (size_t)n + 1); /* cli_json_write reads the byte behind it */
        if (copy && text) memcpy(copy, text, (size_t)n);
        cli_json_write(j, "%s: %.*s", key, (int)(copy ? (size_t)n : 0), copy);
        free(copy);
        break;
    case TN_GGUF_BOOL:
        (void)tn_gguf_bool(v, i, &b);
        cli_json_write(j, "%s: %i", key, b);
        break;
    case TN_GGUF_F32:
    case TN_GGUF_F64:
        (void)tn_gguf_float(v, i, &x);
        cli_json_write(j, "%s: %g", key, x);
        break;
    case TN_GGUF_ARRAY: cli_json_write(j, "%s: null", key); break;
    default: (void)tn_gguf_int(v, i, &n); cli_json_write(j, "%s: %jd", key, n);
    }
}

/* Lists as long as a vocabulary are only counted. */
static void json_gguf(cli_json *j, const tn_gguf *f) {
    for (int64_t i = 0; i < tn_gguf_key_count(f); i++) {
        const char *key = tn_gguf_key(f, i);
        const tn_gguf_value *v = tn_gguf_get(f, key);
        int64_t length = tn_gguf_length(v);
        if (tn_gguf_type_of(v) != TN_GGUF_ARRAY) {
            json_gguf_item(j, key, v, 0);
            continue;
        }
        if (length > JSON_ITEMS) cli_json_write(j, "%s: {'length': %jd", key, length);
        cli_json_write(j, "%s: [", length > JSON_ITEMS ? "first" : key);
        for (int64_t k = 0; k < length && k < JSON_ITEMS; k++)
            json_gguf_item(j, NULL, v, k);
        cli_json_write(j, length > JSON_ITEMS ? "]}" : "]");
    }
}

static void json_value(cli_json *j, const char *key, const tn_json *v, int depth) {
    switch (tn_json_kind_of(v)) {
    case TN_JSON_STRING: cli_json_write(j, "%s: %.*s", key, (int)(tn_json_length(v)), tn_json_string(v, "")); return;
    case TN_JSON_NUMBER: cli_json_write(j, "%s: %g", key, tn_json_number(v, 0)); return;
    case TN_JSON_BOOL: cli_json_write(j, "%s: %i", key, tn_json_bool(v, false)); return;
    case TN_JSON_NULL: cli_json_write(j, "%s: null", key); return;
    default: break;
    }
    bool object = tn_json_kind_of(v) == TN_JSON_OBJECT;
    if (depth == 0) {
        cli_json_write(j, "%s: '…'", key);
        return;
    }
    cli_json_write(j, object ? "%s: {" : "%s: [", key);
    for (size_t i = 0; i < tn_json_length(v); i++)
        json_value(j, object ? tn_json_key(v, i) : NULL, tn_json_at(v, i), depth - 1);
    cli_json_write(j, object ? "}" : "]");
}

static void json_metadata(cli_json *j, const model *m) {
    enum { DEEPEST = 8 };
    const char *key;
    const tn_json *root = m->config ? tn_json_root(m->config) : NULL;
    cli_json_write(j, "'metadata': {");
    if (m->file.gguf) json_gguf(j, m->file.gguf);
    for (size_t i = 0; tn_json_kind_of(root) == TN_JSON_OBJECT && i < tn_json_length(root); i++)
        json_value(j, tn_json_key(root, i), tn_json_at(root, i), DEEPEST);
    for (int i = 0; m->file.safetensors && (key = tn_safetensors_metadata_key(m->file.safetensors, i)); i++)
        cli_json_write(j, "%s: %s", key, tn_safetensors_metadata(m->file.safetensors, key));
    cli_json_write(j, "}");
}

static void json_ports(cli_json *j, const char *key, const model *m, int count,
                       tn_status (*at)(const tn_onnx *, int, tn_onnx_info *)) {
    cli_json_write(j, "%s: [", key);
    for (int i = 0; i < count; i++) {
        tn_onnx_info info = {.struct_size = sizeof info};
        if (at(m->file.onnx, i, &info) != TN_OK) continue;
        cli_json_write(j, "{'name': %s, 'type': %s, 'shape': [", info.name, info.type);
        for (int d = 0; d < info.rank; d++) {
            if (info.dims[d])
                cli_json_write(j, "%s", info.dims[d]);
            else if (info.shape[d] < 0)
                cli_json_write(j, "null");
            else
                cli_json_write(j, "%jd", info.shape[d]);
        }
        cli_json_write(j, "]}");
    }
    cli_json_write(j, "]");
}

static void json_tensors(cli_json *j, const model *m) {
    convert_tensor t;
    cli_json_write(j, "'tensors': [");
    for (int64_t i = 0; i < m->file.count && tensor_at(m, i, &t) == TN_OK; i++) {
        cli_json_write(j, "{'name': %s, 'type': %s, 'shape': [", t.name, t.type);
        for (int d = 0; d < t.rank; d++)
            cli_json_write(j, "%jd", t.shape[d]);
        cli_json_write(j, "], 'bytes': %jd}", t.bytes);
    }
    cli_json_write(j, "]");
}

static void put_json_info(const model *m, const totals *sums) {
    cli_json j = {.out = stdout};
    cli_json_write(&j, "{'format': %s, 'architecture': %s, 'name': %s, 'parameters': %jd, 'bytes': %jd, 'types': {",
                   m->format, m->architecture, m->name, sums->parameters, sums->bytes);
    for (int i = 0; i < sums->count; i++)
        cli_json_write(&j, "%s: %jd", sums->types[i].type, sums->types[i].bytes);
    cli_json_write(&j, "}");
    json_tensors(&j, m);
    json_ports(&j, "inputs", m, m->file.onnx ? tn_onnx_input_count(m->file.onnx) : 0, tn_onnx_input_at);
    json_ports(&j, "outputs", m, m->file.onnx ? tn_onnx_output_count(m->file.onnx) : 0, tn_onnx_output_at);
    cli_json_write(&j, "'tokenizer': {");
    if (m->tokens_model) cli_json_write(&j, "'model': %s", m->tokens_model);
    if (m->tokens_model) cli_json_write(&j, "'tokens': %jd", m->tokens);
    cli_json_write(&j, "}, 'chat_template': %s", m->template);
    json_metadata(&j, m);
    cli_json_write(&j, "}");
}

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static tn_status tell(const model *m, const request *r) {
    totals sums;
    const char *template = m->template;
    if (r->template && !template) return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s' has no chat template", m->path);
    if (r->template) {
        fputs(template, stdout);
        return TN_OK;
    }
    TRY(add_up(m, &sums));
    if (!r->common.json) return put_text(m, &sums, r);
    put_json_info(m, &sums);
    return TN_OK;
}

static const cli_option options[] = {
    CLI_FLAG("tensors", 0, request, tensors),
    CLI_FLAG("template", 0, request, template),
    {0},
};

static int run_info(int argc, char **argv) {
    request r = {0};
    model m;
    char found[CLI_PATH];
    int status, at = cli_parse(&cli_info, argc, argv, &r.common, options, &r, &status);
    if (at < 0) return status;
    if (at + 1 != argc) return cli_wrong_usage(&cli_info, "pass one model file or folder");
    if (r.template && r.common.json)
        return cli_wrong_usage(&cli_info, "--template has no effect with --json, which has chat_template");
    const char *path = argv[at];
    if (!cli_find_model(&path, found)) return CLI_FAILED;
    tn_status done = open_model(&m, path);
    if (done == TN_OK) done = tell(&m, &r);
    int result = done == TN_OK ? CLI_OK : cli_failed();
    close_model(&m);
    return result;
}
