/* convert.c — `trunnion convert`: weights from one kind of file to another, in another type where that is asked for.
 *
 * Tensors pass one at a time. Of each that is rounded the error is measured on what was really written; with --verify
 * the file is opened again and every number compared, so that what is reported is what is there. */
#include "convert.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "commands.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum { OPT_QUANTIZE = 256, OPT_LIKE, OPT_VERIFY, OPT_TEXT, OPT_CONTEXT, MOST_CLASSES = 512 };

static int run(int argc, char **argv);

const cli_command cli_convert = {
    .name = "convert",
    .summary = "weights from one kind of file to another, quantised if asked for",
    .usage = "convert IN OUT [--quantize TYPE] [--like FILE.gguf] [--verify] [--text FILE]",
    .help = "  IN                    .gguf, .safetensors (or its index, or a folder), .pt, .pth, .bin; a Hugging Face "
            "folder\n"
            "                        of a Llama, Mistral or Qwen model becomes a GGUF model, with its tokenizer\n"
            "  OUT                   .gguf or .safetensors\n"
            "  --quantize TYPE       matrices become Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K … Q6_K (GGUF), F16, BF16 or\n"
            "                        F32; rows that are no multiple of 256 take Q4_0, Q5_0, Q5_1 or Q8_0 instead of\n"
            "                        a K type, and vectors stay as they are\n"
            "  --like FILE.gguf      take the metadata (sizes, tokenizer) from this file\n"
            "  --verify              open OUT again and compare every number\n"
            "  --text FILE           perplexity over this text before and after (GGUF language models)\n"
            "  --context N           tokens of a window for --text (default 512)\n"
            "  --json                tensors, bytes (of OUT), input_bytes (of IN's tensors), seconds, classes[],\n"
            "                        verified, perplexity{}\n"
            "\n"
            "examples:\n"
            "  trunnion convert model.gguf small.gguf --quantize Q4_K --verify --text text.txt\n"
            "  trunnion convert model.gguf model.safetensors\n"
            "  trunnion convert weights.pt weights.safetensors --verify\n",
    .accepts = CLI_JSON | CLI_THREADS | CLI_DEVICE | CLI_VERBOSE,
    .run = run,
};

typedef struct wishes {
    const char *in, *out, *quantize, *like, *text;
    int64_t context;
    bool verify;
    tn_dtype to; /* TN_DTYPE_COUNT: as it is */
} wishes;

static bool take(void *ctx, int val, const char *arg) {
    wishes *w = ctx;
    switch (val) {
    case OPT_QUANTIZE: w->quantize = arg; return *arg != 0;
    case OPT_LIKE: w->like = arg; return *arg != 0;
    case OPT_VERIFY: w->verify = true; return true;
    case OPT_TEXT: w->text = arg; return *arg != 0;
    default: return cli_parse_int(arg, 2, INT64_C(1) << 40, &w->context);
    }
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* What --quantize takes; the number that general.file_type has for it; the type for rows that are no whole blocks. */
static const struct {
    tn_dtype dtype;
    int file_type;
    tn_dtype instead;
} targets[] = {
    {TN_F32, 0, TN_F32},    {TN_F16, 1, TN_F16},    {TN_BF16, 32, TN_BF16}, {TN_Q4_0, 2, TN_F16},
    {TN_Q4_1, 3, TN_F16},   {TN_Q5_0, 8, TN_F16},   {TN_Q5_1, 9, TN_F16},   {TN_Q8_0, 7, TN_F16},
    {TN_Q2_K, 10, TN_Q4_0}, {TN_Q3_K, 11, TN_Q4_0}, {TN_Q4_K, 14, TN_Q5_0}, {TN_Q5_K, 16, TN_Q5_1},
    {TN_Q6_K, 18, TN_Q8_0},
};
enum { TARGETS = sizeof targets / sizeof *targets };

static int find_target(tn_dtype dtype) {
    for (int i = 0; i < TARGETS; i++)
        if (targets[i].dtype == dtype) return i;
    return -1;
}

static bool parse_target(const char *text, tn_dtype *out) {
    for (int i = 0; i < TARGETS; i++)
        if (strcasecmp(tn_dtype_name(targets[i].dtype), text) == 0) {
            *out = targets[i].dtype;
            return true;
        }
    return false;
}

static bool fits(tn_dtype dtype, const convert_tensor *t) {
    return t->rank > 0 && t->shape[t->rank - 1] % tn_dtype_block(dtype) == 0;
}

static bool is_plain_float(tn_dtype t) { return t < TN_DTYPE_COUNT && tn_dtype_is_float(t); }

/* What a tensor becomes; *same: it stays as it is, byte for byte. */
static tn_dtype type_for(const wishes *w, const convert_tensor *t, bool to_gguf, bool *same) {
    bool blocks = t->dtype < TN_DTYPE_COUNT && tn_dtype_block(t->dtype) > 1;
    tn_dtype to = t->dtype;
    if (w->to != TN_DTYPE_COUNT && t->rank >= 2 && (blocks || is_plain_float(t->dtype))) {
        to = w->to;
        while (!fits(to, t))
            to = targets[find_target(to)].instead;
    } else if (blocks && !to_gguf) {
        to = TN_F32;
    }
    if (t->rank <= 1 && to_gguf && !t->data && is_plain_float(t->dtype)) to = TN_F32; /* as GGUF files have vectors */
    if (w->to == TN_DTYPE_COUNT && to_gguf && (t->dtype == TN_BOOL || t->dtype == TN_U8)) to = TN_I32;
    *same = to == t->dtype && to != TN_Q8_X;
    if (to == TN_Q8_X && to_gguf) *same = true; /* an i-quant goes on as its bytes */
    return to;
}

/* ---- errors by class of tensors ---------------------------------------------------------------------------------- */

/* Tensors whose names differ in numbers alone. */
typedef struct class_row {
    char name[128];
    const char *from, *to;
    int64_t tensors, bytes, numel;
    double most, squares, size; /* largest error, sum of squares, and of the numbers' */
} class_row;

typedef struct report {
    class_row rows[MOST_CLASSES];
    int count;
    int64_t tensors, bytes, input_bytes;
    double seconds;
    int64_t compared; /* tensors that --verify compared */
} report;

static void class_name(const char *name, char *out, size_t size) {
    size_t n = 0;
    for (size_t i = 0; name[i] && n + 1 < size; i++) {
        bool digit = isdigit((unsigned char)name[i]), inside = i > 0 && name[i - 1] != '.';
        if (digit && !inside) {
            out[n++] = '*';
            while (isdigit((unsigned char)name[i + 1]))
                i++;
        } else {
            out[n++] = name[i];
        }
    }
    out[n] = 0;
}

static class_row *class_of(report *r, const convert_tensor *t, const char *to) {
    char name[sizeof r->rows->name];
    class_name(t->name, name, sizeof name);
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->rows[i].name, name) == 0 && strcmp(r->rows[i].to, to) == 0) return &r->rows[i];
    if (r->count == MOST_CLASSES) return &r->rows[MOST_CLASSES - 1];
    class_row *row = &r->rows[r->count++];
    memcpy(row->name, name, sizeof name);
    row->from = t->type;
    row->to = to;
    return row;
}

static void measure(class_row *row, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double e = (double)y[i] - (double)x[i];
        row->most = fmax(row->most, fabs(e));
        row->squares += e * e;
        row->size += (double)x[i] * (double)x[i];
    }
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

/* A tensor as it will be written. */
typedef struct written {
    void *data; /* owned where `own` is set */
    const void *bytes;
    int64_t size;
} written;

static void *blocks_of(tn_dtype to, const float *x, int64_t numel, size_t bytes) {
    void *data = malloc(bytes ? bytes : 1);
    if (!data) tn_backend_fail(TN_ERR_MEMORY, "no memory for %zu bytes", bytes);
    if (!data) return NULL;
    tn_status status = TN_OK;
    if (tn_dtype_block(to) > 1) {
        status = tn_quantize_blocks(to, x, numel, data);
    } else {
        tn_tensor *t = tn_from_data(x, &numel, 1, TN_F32), *cast = tn_cast(t, to);
        status = tn_read(cast, data, bytes);
        tn_free(cast);
        tn_free(t);
    }
    if (status == TN_OK) return data;
    free(data);
    return NULL;
}

/* What the bytes are as numbers, beside what they were. */
static tn_status measure_written(class_row *row, const float *x, const void *data, tn_dtype to, int64_t numel) {
    tn_tensor *t = tn_from_data(data, &numel, 1, to), *cast = tn_cast(t, TN_F32);
    float *y = malloc((size_t)numel * sizeof *y + 1);
    tn_status status = y ? tn_read(cast, y, (size_t)numel * sizeof *y)
                         : tn_backend_fail(TN_ERR_MEMORY, "no memory for %lld numbers", (long long)numel);
    if (status == TN_OK) measure(row, x, y, numel);
    free(y);
    tn_free(cast);
    tn_free(t);
    return status;
}

static tn_status read_same(const convert_file *in, const convert_tensor *t, written *out) {
    if (t->data) {
        out->bytes = t->data;
        out->size = t->bytes;
        return TN_OK;
    }
    out->size = (int64_t)tn_dtype_bytes(t->dtype, t->numel);
    out->bytes = out->data = malloc((size_t)out->size + 1);
    if (!out->data) return tn_backend_fail(TN_ERR_MEMORY, "no memory for '%s'", t->name);
    tn_tensor *tensor = convert_tensor_of(in, t);
    tn_status status = tn_read(tensor, out->data, (size_t)out->size);
    tn_free(tensor);
    return status;
}

static tn_status convert_one(const convert_file *in, const convert_tensor *t, tn_dtype to, bool same, report *r,
                             written *out) {
    *out = (written){0};
    class_row *row = class_of(r, t, same ? t->type : tn_dtype_name(to));
    row->tensors++;
    row->numel += t->numel;
    if (same) {
        tn_status status = read_same(in, t, out);
        row->bytes += out->size;
        return status;
    }
    float *x = convert_numbers(in, t);
    if (!x) return tn_backend_fail(TN_ERR_FORMAT, "'%s' cannot be converted: %s", t->name, tn_error());
    out->size = (int64_t)tn_dtype_bytes(to, t->numel);
    out->bytes = out->data = blocks_of(to, x, t->numel, (size_t)out->size);
    row->bytes += out->size;
    tn_status status = out->data ? measure_written(row, x, out->data, to, t->numel) : TN_ERR_MEMORY;
    free(x);
    return status;
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------- */

static bool is_ours(const char *key) { /* written anew */
    static const char *const keys[] = {"general.alignment", "general.file_type", "general.quantization_version",
                                       "split.no",          "split.count",       "split.tensors.count"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0) return true;
    return false;
}

static tn_status copy_metadata(const tn_gguf *from, tn_gguf_writer *w, bool all) {
    for (int64_t i = 0; i < tn_gguf_key_count(from); i++) {
        const char *key = tn_gguf_key(from, i);
        if (is_ours(key) && (!all || strcmp(key, "general.file_type") != 0)) continue;
        tn_status status = tn_gguf_put_value(w, key, tn_gguf_get(from, key));
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static tn_status put_metadata(const convert_file *in, const wishes *w, const tn_gguf *like, tn_gguf_writer *out) {
    tn_status status = TN_OK;
    if (in->folder && !like) status = convert_folder_metadata(in->folder, out);
    if (in->gguf || like) status = copy_metadata(like ? like : in->gguf, out, w->to == TN_DTYPE_COUNT);
    for (int i = 0;
         in->safetensors && !in->folder && !like && tn_safetensors_metadata_key(in->safetensors, i) && status == TN_OK;
         i++) {
        const char *key = tn_safetensors_metadata_key(in->safetensors, i);
        const char *text = tn_safetensors_metadata(in->safetensors, key);
        if (!is_ours(key)) status = tn_gguf_put_string(out, key, text, (int64_t)strlen(text));
    }
    if (status == TN_OK && w->to != TN_DTYPE_COUNT)
        status = tn_gguf_put_int(out, "general.file_type", TN_GGUF_U32, targets[find_target(w->to)].file_type);
    if (status == TN_OK) status = tn_gguf_put_int(out, "general.quantization_version", TN_GGUF_U32, 2);
    return status;
}

static tn_status add_gguf_tensor(tn_gguf_writer *out, const wishes *w, const convert_file *in,
                                 const convert_tensor *t) {
    bool same;
    tn_gguf_info info = {.struct_size = sizeof info, .name = t->name, .rank = t->rank};
    info.dtype = type_for(w, t, true, &same);
    if (same && in->gguf) info.dtype_name = t->type;
    memcpy(info.shape, t->shape, sizeof info.shape);
    return tn_gguf_add(out, &info);
}

static tn_status write_gguf_tensor(tn_gguf_writer *out, const wishes *w, const convert_file *in,
                                   const convert_tensor *t, report *r) {
    bool same;
    written data;
    tn_dtype to = type_for(w, t, true, &same);
    tn_status status = convert_one(in, t, to, same, r, &data);
    if (status == TN_OK) status = tn_gguf_write(out, data.bytes, data.size);
    free(data.data);
    return status;
}

static tn_status fill_gguf(const convert_file *in, const wishes *w, const tn_gguf *like, tn_gguf_writer *out,
                           report *r) {
    convert_tensor t;
    tn_status status = put_metadata(in, w, like, out);
    for (int64_t i = 0; i < in->count && status == TN_OK; i++) {
        status = convert_at(in, i, &t);
        if (status == TN_OK) status = add_gguf_tensor(out, w, in, &t);
    }
    cli_progress p;
    cli_progress_begin(&p, "convert", "tensors", in->count);
    for (int64_t i = 0; i < in->count && status == TN_OK; i++) {
        status = convert_at(in, i, &t);
        cli_progress_update(&p, i, t.name);
        if (status == TN_OK) status = write_gguf_tensor(out, w, in, &t, r);
    }
    cli_progress_end(&p);
    return status;
}

static tn_status to_gguf(const convert_file *in, const wishes *w, report *r) {
    tn_gguf *like = NULL;
    tn_gguf_writer *out = NULL;
    tn_status status = w->like ? tn_gguf_open(w->like, &like) : TN_OK;
    if (status == TN_OK) status = tn_gguf_create(w->out, 0, &out);
    if (status == TN_OK) status = fill_gguf(in, w, like, out, r);
    if (status == TN_OK) {
        status = tn_gguf_commit(out);
    } else {
        tn_gguf_abandon(out);
    }
    tn_gguf_close(like);
    return status;
}

/* ---- safetensors ------------------------------------------------------------------------------------------------- */

typedef struct gathered {
    tn_named_tensor *tensors;
    tn_metadata *metadata;
    char **texts;
    int count, metadata_count;
} gathered;

static void gathered_free(gathered *g) {
    for (int i = 0; i < g->count; i++)
        tn_free((tn_tensor *)(uintptr_t)g->tensors[i].tensor);
    for (int i = 0; i < g->metadata_count; i++)
        free(g->texts[i]);
    free(g->tensors);
    free(g->metadata);
    free(g->texts);
}

/* A text or a number of GGUF metadata as text; NULL for arrays, which safetensors has no place for. */
static char *text_of(const tn_gguf_value *v) {
    const char *text;
    int64_t length, whole;
    double real;
    char number[40];
    if (tn_gguf_type_of(v) == TN_GGUF_ARRAY) return NULL;
    if (tn_gguf_string(v, 0, &text, &length) == TN_OK) return strndup(text, (size_t)length);
    if (tn_gguf_int(v, 0, &whole) == TN_OK) {
        snprintf(number, sizeof number, "%lld", (long long)whole);
    } else if (tn_gguf_float(v, 0, &real) == TN_OK) {
        snprintf(number, sizeof number, "%.17g", real);
    } else {
        return NULL;
    }
    return strdup(number);
}

static void add_text(gathered *g, const char *key, char *text) {
    if (!text) return;
    g->texts[g->metadata_count] = text;
    g->metadata[g->metadata_count++] = (tn_metadata){key, text};
}

static tn_status gather_metadata(const convert_file *in, gathered *g) {
    int64_t most = in->gguf ? tn_gguf_key_count(in->gguf) : 0;
    while (in->safetensors && tn_safetensors_metadata_key(in->safetensors, (int)most))
        most++;
    g->metadata = calloc((size_t)most + 1, sizeof *g->metadata);
    g->texts = calloc((size_t)most + 1, sizeof *g->texts);
    if (!g->metadata || !g->texts) return tn_backend_fail(TN_ERR_MEMORY, "no memory for the metadata");
    for (int64_t i = 0; i < most; i++) {
        const char *key = in->gguf ? tn_gguf_key(in->gguf, i) : tn_safetensors_metadata_key(in->safetensors, (int)i);
        add_text(g, key,
                 in->gguf ? text_of(tn_gguf_get(in->gguf, key))
                          : strdup(tn_safetensors_metadata(in->safetensors, key)));
    }
    return TN_OK;
}

static tn_status gather_tensor(const convert_file *in, const wishes *w, const convert_tensor *t, report *r,
                               gathered *g) {
    bool same;
    written data;
    tn_dtype to = type_for(w, t, false, &same);
    tn_status status = convert_one(in, t, to, same, r, &data);
    if (status == TN_OK) {
        tn_tensor *made = tn_from_data(data.bytes, t->shape, t->rank, to);
        status = tn_status_of(made);
        g->tensors[g->count++] = (tn_named_tensor){t->name, made};
    }
    free(data.data);
    return status;
}

static tn_status to_safetensors(const convert_file *in, const wishes *w, report *r) {
    gathered g = {.tensors = calloc((size_t)in->count + 1, sizeof *g.tensors)};
    tn_status status = g.tensors ? gather_metadata(in, &g) : tn_backend_fail(TN_ERR_MEMORY, "no memory");
    cli_progress p;
    cli_progress_begin(&p, "convert", "tensors", in->count);
    for (int64_t i = 0; i < in->count && status == TN_OK; i++) {
        convert_tensor t;
        status = convert_at(in, i, &t);
        cli_progress_update(&p, i, t.name);
        if (status == TN_OK) status = gather_tensor(in, w, &t, r, &g);
    }
    cli_progress_end(&p);
    if (status == TN_OK) status = tn_safetensors_save(w->out, g.tensors, g.count, g.metadata, g.metadata_count);
    gathered_free(&g);
    return status;
}

/* ---- proof ------------------------------------------------------------------------------------------------------- */

static tn_status find_in(const convert_file *f, const char *name, convert_tensor *out) {
    for (int64_t i = 0; i < f->count; i++)
        if (convert_at(f, i, out) == TN_OK && strcmp(out->name, name) == 0) return TN_OK;
    return tn_backend_fail(TN_ERR_FORMAT, "'%s' lacks the tensor '%s'", f->path, name);
}

static tn_status verify_bytes(const convert_file *in, const convert_file *out, const convert_tensor *t,
                              const convert_tensor *back) {
    written x = {0}, y = {0};
    tn_status status = read_same(in, t, &x);
    if (status == TN_OK) status = read_same(out, back, &y);
    if (status == TN_OK && (x.size != y.size || memcmp(x.bytes, y.bytes, (size_t)x.size) != 0))
        status = tn_backend_fail(TN_ERR_FORMAT, "'%s' came back with other bytes", t->name);
    free(x.data);
    free(y.data);
    return status;
}

static tn_status verify_tensor(const convert_file *in, const convert_file *out, const wishes *w,
                               const convert_tensor *t, report *again) {
    convert_tensor back;
    bool same;
    tn_dtype to = type_for(w, t, out->gguf != NULL, &same);
    tn_status status = find_in(out, t->name, &back);
    if (status != TN_OK) return status;
    if (back.rank != t->rank || memcmp(back.shape, t->shape, sizeof back.shape) != 0 || back.dtype != to)
        return tn_backend_fail(TN_ERR_FORMAT, "'%s' came back in another shape or type", t->name);
    if (same) return verify_bytes(in, out, t, &back);
    float *x = convert_numbers(in, t), *y = convert_numbers(out, &back);
    if (x && y) measure(class_of(again, t, tn_dtype_name(to)), x, y, t->numel);
    status = x && y ? TN_OK : TN_ERR_FORMAT;
    free(x);
    free(y);
    return status;
}

/* Every tensor is there; what was not rounded has its bits, what was has the errors that were measured. */
static tn_status verify(const convert_file *in, const wishes *w, report *r) {
    convert_file out;
    report *again = calloc(1, sizeof *again);
    if (!again) return tn_backend_fail(TN_ERR_MEMORY, "no memory to compare with");
    tn_status status = convert_open(w->out, &out);
    if (status == TN_OK && out.count != in->count)
        status = tn_backend_fail(TN_ERR_FORMAT, "'%s' has %lld tensors, not %lld", w->out, (long long)out.count,
                                 (long long)in->count);
    for (int64_t i = 0; i < in->count && status == TN_OK; i++) {
        convert_tensor t;
        status = convert_at(in, i, &t);
        if (status == TN_OK) status = verify_tensor(in, &out, w, &t, again);
        if (status == TN_OK) r->compared++;
    }
    for (int i = 0; i < r->count && status == TN_OK; i++) {
        const class_row *a = &r->rows[i];
        for (int k = 0; k < again->count; k++) {
            const class_row *b = &again->rows[k];
            if (strcmp(a->name, b->name) || strcmp(a->to, b->to)) continue;
            bool rounded = a->squares > 0 || b->squares > 0;
            if (rounded && (a->most != b->most || a->squares != b->squares))
                status = tn_backend_fail(TN_ERR_FORMAT, "'%s' came back with other errors than were written", a->name);
        }
    }
    convert_close(&out);
    free(again);
    return status;
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

static double share(const class_row *row) { return row->size > 0 ? sqrt(row->squares / row->size) : 0; }
static double rms(const class_row *row) { return row->numel ? sqrt(row->squares / (double)row->numel) : 0; }

static void put_text(const wishes *w, const report *r, const double *perplexity) {
    int64_t weights = 0;
    printf("%-40s %7s  %-18s %12s %10s %10s %9s\n", "class", "tensors", "type", "bytes", "max error", "rms error",
           "relative");
    for (int i = 0; i < r->count; i++) {
        const class_row *row = &r->rows[i];
        weights += row->bytes;
        char type[40];
        snprintf(type, sizeof type, "%s → %s", row->from, row->to);
        cli_print(stdout, "%-40s %7lld  %-20s %12lld %10.3g %10.3g %8.3f%%\n", row->name, (long long)row->tensors, type,
                  (long long)row->bytes, row->most, rms(row), 100 * share(row));
    }
    printf("%s: %lld bytes in %.1f s; %lld tensors of %lld bytes, before %lld\n", w->out, (long long)r->bytes,
           r->seconds, (long long)r->tensors, (long long)weights, (long long)r->input_bytes);
    if (w->verify) printf("verified: %lld tensors read back as they were written\n", (long long)r->compared);
    if (w->text) printf("perplexity: %.4f before, %.4f after\n", perplexity[0], perplexity[1]);
}

static void put_json(const wishes *w, const report *r, const double *perplexity) {
    cli_json j = {.out = stdout};
    cli_json_object(&j, NULL);
    cli_json_int(&j, "tensors", r->tensors);
    cli_json_int(&j, "bytes", r->bytes);
    cli_json_int(&j, "input_bytes", r->input_bytes);
    cli_json_number(&j, "seconds", r->seconds);
    cli_json_array(&j, "classes");
    for (int i = 0; i < r->count; i++) {
        const class_row *row = &r->rows[i];
        cli_json_object(&j, NULL);
        cli_json_string(&j, "name", row->name);
        cli_json_int(&j, "tensors", row->tensors);
        cli_json_string(&j, "from", row->from);
        cli_json_string(&j, "to", row->to);
        cli_json_int(&j, "bytes", row->bytes);
        cli_json_number(&j, "max_error", row->most);
        cli_json_number(&j, "rms_error", rms(row));
        cli_json_number(&j, "relative_error", share(row));
        cli_json_end(&j, '}');
    }
    cli_json_end(&j, ']');
    if (w->verify) cli_json_int(&j, "verified", r->compared);
    if (w->text) {
        cli_json_object(&j, "perplexity");
        cli_json_number(&j, "before", perplexity[0]);
        cli_json_number(&j, "after", perplexity[1]);
        cli_json_end(&j, '}');
    }
    cli_json_end(&j, '}');
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int64_t size_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (int64_t)s.st_size : 0;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static const char *wrong_wish(const wishes *w, convert_kind from, convert_kind to) {
    size_t length = strlen(w->in);
    if (length > 5 && strcasecmp(w->in + length - 5, ".onnx") == 0)
        return "ONNX files are not converted yet: weights come from .safetensors, .gguf, .pt";
    length = strlen(w->out);
    if (length > 5 && strcasecmp(w->out + length - 5, ".onnx") == 0)
        return "files of weights do not become ONNX: a network is more than its weights";
    if (from == CONVERT_UNKNOWN) return "IN is .gguf, .safetensors, .pt, .pth, .bin or a folder with safetensors";
    if (to != CONVERT_GGUF && to != CONVERT_SAFETENSORS) return "OUT ends with .gguf or .safetensors";
    if (to == CONVERT_SAFETENSORS && w->to != TN_DTYPE_COUNT && tn_dtype_block(w->to) > 1)
        return "safetensors files have no quantised types: take F16, BF16 or F32, or an OUT that ends with .gguf";
    if (is_same_file(w->in, w->out)) return "OUT is IN: what is rounded could not be had back; take another name";
    if (w->like && to != CONVERT_GGUF) return "--like is for an OUT that ends with .gguf";
    if (w->text && to != CONVERT_GGUF) return "--text is for an OUT that ends with .gguf";
    return NULL;
}

static tn_status convert(const wishes *w, convert_kind to, report *r) {
    convert_file in;
    double begun = cli_now();
    convert_folder folder;
    tn_status status = convert_open(w->in, &in);
    if (status == TN_OK && to == CONVERT_GGUF && cli_is_folder(w->in)) {
        in.folder = &folder;
        status = convert_folder_open(w->in, in.count, &folder);
    }
    if (status == TN_OK) status = to == CONVERT_GGUF ? to_gguf(&in, w, r) : to_safetensors(&in, w, r);
    r->tensors = in.count;
    for (int64_t i = 0; i < in.count && status == TN_OK; i++) {
        convert_tensor t;
        status = convert_at(&in, i, &t);
        r->input_bytes += t.bytes;
    }
    r->bytes = size_of(w->out);
    r->seconds = cli_now() - begun;
    if (status == TN_OK && w->verify) status = verify(&in, w, r);
    convert_close(&in);
    return status;
}

static int run(int argc, char **argv) {
    static const struct option own[] = {
        {"quantize", required_argument, NULL, OPT_QUANTIZE}, {"like", required_argument, NULL, OPT_LIKE},
        {"verify", no_argument, NULL, OPT_VERIFY},           {"text", required_argument, NULL, OPT_TEXT},
        {"context", required_argument, NULL, OPT_CONTEXT},   {0},
    };
    wishes w = {.to = TN_DTYPE_COUNT};
    cli_options o;
    int status, first = cli_parse(&cli_convert, argc, argv, &o, own, "", take, &w, &status);
    if (first < 0) return status;
    if (argc - first != 2) return cli_wrong_usage(&cli_convert, "it takes two files: IN and OUT");
    w.in = argv[first];
    w.out = argv[first + 1];
    if (w.quantize && !parse_target(w.quantize, &w.to))
        return cli_wrong_usage(&cli_convert, "\"%s\" is no type that weights are converted to", w.quantize);
    convert_kind from = convert_kind_of(w.in), to = convert_kind_of(w.out);
    const char *wrong = wrong_wish(&w, from, to);
    if (wrong) return cli_wrong_usage(&cli_convert, "%s", wrong);

    int code = CLI_OK;
    double perplexity[2] = {0};
    report *r = calloc(1, sizeof *r);
    tn_device *device = r ? cli_open_device(&o, &code) : NULL;
    if (!device) {
        free(r);
        return r ? code : CLI_FAILED;
    }
    if (w.text && !convert_perplexity(&o, w.in, w.text, w.context, &perplexity[0])) code = cli_failed();
    if (code == CLI_OK && convert(&w, to, r) != TN_OK) code = cli_failed();
    if (code == CLI_OK && w.text && !convert_perplexity(&o, w.out, w.text, w.context, &perplexity[1]))
        code = cli_failed();
    if (code == CLI_OK) (o.json ? put_json : put_text)(&w, r, perplexity);
    tn_device_close(device);
    free(r);
    return code;
}
