/* folder_quant.c — folders with quantized weights (GPTQ, AWQ, FP8, MXFP4), presented as if they were stored plainly.
 *
 * A weight that is stored in several tensors appears as one, in half precision; its values are computed when it is
 * read. So models need not know how a folder was quantized. GPTQ and AWQ become f16, FP8 and MXFP4 bf16, which are the
 * types that their authors' own programs compute with. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/folder.h"
#include "trunnion/ops.h"

enum { MOST_GROUPS_NAME = 24, WORD_BITS = 32 };

typedef enum quant_method { QUANT_GPTQ, QUANT_AWQ, QUANT_FP8, QUANT_MXFP4, QUANT_METHODS } quant_method;
static const char *const method_names[QUANT_METHODS] = {"gptq", "awq", "fp8", "mxfp4"};

/* A tensor as it is presented. */
typedef struct item {
    tn_safetensors_info info; /* data NULL: computed when it is read */
    char *name;               /* of a computed one: its memory; else NULL */
} item;

struct hf_quant {
    const tn_safetensors *file;
    char *path; /* the folder's, for messages */
    quant_method method;
    int64_t bits, group; /* group: input columns that share a scale; 0: all */
    int64_t block[2];    /* FP8: rows and columns that share a scale; 0: as the tensor of scales says */
    int64_t offset;      /* added to stored zero points */
    item *items;         /* sorted by name */
    int64_t count;
};

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static tn_status unsupported(const hf_quant *q, const char *key, const char *value) {
    return tn_hf_fail(q->path, TN_ERR_UNSUPPORTED,
                      "quantization_config has the %s '%s'; supported are gptq with 2, 4 or 8 bits, awq with 4 bits "
                      "(version gemm), fp8 (e4m3) and mxfp4",
                      key, tn_txt_shown(value, strlen(value)).text);
}

static tn_status read_method(hf_quant *q, const tn_json *c) {
    const char *name = tn_json_string(tn_json_get(c, "quant_method"), "");
    if (strcmp(name, "compressed-tensors") == 0) {
        const char *format = tn_json_string(tn_json_get(c, "format"), "");
        if (strcmp(format, "float-quantized") != 0) return unsupported(q, "format", format);
        name = "fp8";
    }
    for (q->method = 0; q->method < QUANT_METHODS; q->method++)
        if (strcmp(name, method_names[q->method]) == 0) return TN_OK;
    return unsupported(q, "quant_method", name);
}

static tn_status read_settings(hf_quant *q, const tn_json *c) {
    char shown[32];
    TRY(read_method(q, c));
    q->bits = tn_json_int(tn_json_get(c, "bits"), 4);
    q->group = tn_json_int(tn_json_get(c, "group_size"), 128);
    if (q->group == -1) q->group = 0;
    const tn_json *block = tn_json_get(c, "weight_block_size");
    for (size_t i = 0; i < 2; i++)
        q->block[i] = tn_json_int(tn_json_at(block, i), 0);
    if (q->method == QUANT_FP8 || q->method == QUANT_MXFP4) return TN_OK;
    bool known = q->bits == 4 || (q->method == QUANT_GPTQ && (q->bits == 2 || q->bits == 8));
    snprintf(shown, sizeof shown, "%" PRId64, known ? q->group : q->bits);
    if (!known) return unsupported(q, "bits", shown);
    if (q->group < 0) return unsupported(q, "group_size", shown);
    const char *version = tn_json_string(tn_json_get(c, "version"), "gemm");
    if (q->method == QUANT_AWQ && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return unsupported(q, "version", version);
    if (q->method == QUANT_AWQ) return TN_OK;
    /* The first format of GPTQ's files stores zero points less 1. */
    const char *format = tn_json_string(tn_json_get(c, "checkpoint_format"), "gptq");
    q->offset = strcmp(format, "gptq") == 0;
    return q->offset || strcmp(format, "gptq_v2") == 0 ? TN_OK : unsupported(q, "checkpoint_format", format);
}

/* ---- the list of tensors ----------------------------------------------------------------------------------------- */

/* Parts of other tensors. */
static bool is_part(const char *name) {
    static const char *const endings[] = {".qzeros",       ".scales",      ".g_idx",           ".weight_scale_inv",
                                          ".weight_scale", ".input_scale", ".activation_scale"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tn_txt_ends_with(name, endings[i])) return true;
    return false;
}

/* The tensor "STEM.ending" of the file. */
static bool find_part(const hf_quant *q, const char *stem, const char *ending, tn_safetensors_info *out) {
    char name[HF_NAME_SIZE + MOST_GROUPS_NAME];
    *out = (tn_safetensors_info){.struct_size = sizeof *out};
    int n = snprintf(name, sizeof name, "%.*s.%s", (int)(strrchr(stem, '.') - stem), stem, ending);
    return n < (int)sizeof name && tn_safetensors_find(q->file, name, out) == TN_OK;
}

/* Older programs write a bias of zeros for each packed matrix. */
static bool is_empty_bias(const hf_quant *q, const tn_safetensors_info *t) {
    tn_safetensors_info words;
    if (!tn_txt_ends_with(t->name, ".bias") || !find_part(q, t->name, "qweight", &words)) return false;
    for (int64_t i = 0; i < t->bytes; i++)
        if (((const char *)t->data)[i]) return false;
    return true;
}

static bool is_fp8(const tn_safetensors_info *t) { return strcmp(t->dtype_name, "F8_E4M3") == 0; }

static tn_status misfit(const hf_quant *q, const char *name, const char *what) {
    return tn_backend_fail(TN_ERR_FORMAT, "'%s': tensor '%.100s': %s", q->path, name, what);
}

static bool has_shape(const tn_safetensors_info *t, tn_dtype dtype, int64_t rows, int64_t columns) {
    bool type = dtype == TN_F32 ? t->dtype == TN_F16 || t->dtype == TN_BF16 || t->dtype == TN_F32 : t->dtype == dtype;
    return type && t->rank == 2 && t->shape[0] == rows && t->shape[1] == columns;
}

static int64_t pieces(int64_t n, int64_t size) { return size > 0 ? n / size + (n % size != 0) : 1; }

/* The sizes of a matrix of packed integers; all its parts fit them. */
static tn_status check_packed(const hf_quant *q, const tn_safetensors_info *t, int64_t *rows, int64_t *columns) {
    tn_safetensors_info scales, zeros, order;
    int64_t in_word = WORD_BITS / q->bits;
    bool awq = q->method == QUANT_AWQ;
    if (t->dtype != TN_I32 || t->rank != 2 || t->shape[0] > INT32_MAX || t->shape[1] > INT32_MAX)
        return misfit(q, t->name, "packed weights must be I32 with two dimensions");
    *columns = awq ? t->shape[0] : t->shape[0] * in_word;
    *rows = awq ? t->shape[1] * in_word : t->shape[1];
    int64_t groups = pieces(*columns, q->group);
    if (*rows < 1 || *columns < 1 || *rows % in_word != 0)
        return misfit(q, t->name, "the number of outputs must be a multiple of the integers of a word");
    if (!find_part(q, t->name, "scales", &scales) || !has_shape(&scales, TN_F32, groups, *rows))
        return misfit(q, t->name, "its scales are missing, or do not fit group_size");
    if (!find_part(q, t->name, "qzeros", &zeros) || !has_shape(&zeros, TN_I32, groups, *rows / in_word))
        return misfit(q, t->name, "its qzeros are missing, or do not fit group_size");
    if (!find_part(q, t->name, "g_idx", &order)) return TN_OK;
    if (order.dtype != TN_I32 || order.rank != 1 || order.shape[0] != *columns)
        return misfit(q, t->name, "its g_idx must be I32 and have an element for each input");
    for (int64_t i = 0; i < *columns; i++) {
        int32_t group;
        memcpy(&group, (const char *)order.data + i * 4, 4);
        if (group < 0 || group >= groups) return misfit(q, t->name, "its g_idx has a group that does not exist");
    }
    return TN_OK;
}

/* ---- MXFP4 ------------------------------------------------------------------------------------------------------- */

/* "X_blocks" [experts, out, groups, 16] of two numbers a byte, "X_scales" [experts, out, groups]: exponents. */
static const char BLOCKS[] = "_blocks";
enum { MXFP4_BYTES = 16, MXFP4_NUMBERS = 32 };

/* The tensor that belongs to "X_blocks". */
static bool find_exponents(const hf_quant *q, const char *blocks, tn_safetensors_info *out) {
    char name[HF_NAME_SIZE + MOST_GROUPS_NAME];
    *out = (tn_safetensors_info){.struct_size = sizeof *out};
    int n = snprintf(name, sizeof name, "%.*s_scales", (int)(strlen(blocks) - strlen(BLOCKS)), blocks);
    return n < (int)sizeof name && tn_safetensors_find(q->file, name, out) == TN_OK;
}

/* Appears as "X" [experts, in, out]. */
static tn_status present_mxfp4(hf_quant *q, const tn_safetensors_info *t, item *out) {
    tn_safetensors_info s;
    size_t length = strlen(t->name) - strlen(BLOCKS);
    const int64_t *shape = t->shape;
    if (t->dtype != TN_U8 || t->rank != 4 || shape[3] != MXFP4_BYTES || shape[2] > INT32_MAX / MXFP4_NUMBERS)
        return misfit(q, t->name, "blocks of mxfp4 must be U8 with four dimensions, the last of 16 bytes");
    if (!find_exponents(q, t->name, &s) || s.dtype != TN_U8 || s.rank != 3 || memcmp(s.shape, shape, 3 * sizeof *shape))
        return misfit(q, t->name, "its scales are missing, or do not fit the blocks");
    out->name = tn_txt_zalloc(length + 1, 1);
    if (!out->name) return TN_ERR_MEMORY;
    memcpy(out->name, t->name, length);
    out->info = (tn_safetensors_info){.struct_size = sizeof out->info,
                                      .name = out->name,
                                      .dtype_name = "BF16",
                                      .dtype = TN_BF16,
                                      .rank = 3,
                                      .shape = {shape[0], MXFP4_NUMBERS * shape[2], shape[1]},
                                      .bytes = 2 * MXFP4_NUMBERS / MXFP4_BYTES * t->bytes};
    return TN_OK;
}

static bool is_exponents(const hf_quant *q, const char *name) {
    char blocks[HF_NAME_SIZE + MOST_GROUPS_NAME];
    tn_safetensors_info t = {.struct_size = sizeof t};
    if (q->method != QUANT_MXFP4 || !tn_txt_ends_with(name, "_scales")) return false;
    int n = snprintf(blocks, sizeof blocks, "%.*s%s", (int)(strlen(name) - strlen("_scales")), name, BLOCKS);
    return n < (int)sizeof blocks && tn_safetensors_find(q->file, blocks, &t) == TN_OK;
}

/* A number is a sign, two bits of exponent and one of mantissa; its block's byte is a power of two. */
static tn_status read_mxfp4(const hf_quant *q, const item *t, float *out) {
    static const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    char name[HF_NAME_SIZE + MOST_GROUPS_NAME];
    tn_safetensors_info s, b = {.struct_size = sizeof b};
    snprintf(name, sizeof name, "%s%s", t->name, BLOCKS);
    TRY(tn_safetensors_find(q->file, name, &b));
    if (!find_exponents(q, name, &s)) return misfit(q, name, "its scales are missing");
    int64_t rows = t->info.shape[2], columns = t->info.shape[1], blocks = s.bytes;
    for (int64_t i = 0; i < blocks; i++) {
        const uint8_t *from = (const uint8_t *)b.data + i * MXFP4_BYTES;
        int64_t groups = columns / MXFP4_NUMBERS, row = i / groups % rows, expert = i / groups / rows;
        float scale = ldexpf(1, ((const uint8_t *)s.data)[i] - 127);
        float *to = out + (expert * columns + i % groups * MXFP4_NUMBERS) * rows + row;
        for (int k = 0; k < MXFP4_NUMBERS; k++, to += rows) {
            int code = k % 2 ? from[k / 2] >> 4 : from[k / 2] & 15;
            *to = scale * (code & 8 ? -values[code & 7] : values[code & 7]);
        }
    }
    return TN_OK;
}

static tn_status present(hf_quant *q, const tn_safetensors_info *t, item *out) {
    static const char packed[] = ".qweight";
    if (q->method == QUANT_MXFP4 && tn_txt_ends_with(t->name, BLOCKS)) return present_mxfp4(q, t, out);
    bool is_packed = q->method < QUANT_FP8 && tn_txt_ends_with(t->name, packed),
         byte = q->method == QUANT_FP8 && is_fp8(t) && t->rank == 2 && tn_txt_ends_with(t->name, ".weight");
    *out = (item){.info = *t};
    if (!is_packed && !byte) return TN_OK;
    size_t length = strlen(t->name);
    out->name = tn_txt_zalloc(length + 1, 1);
    if (!out->name) return TN_ERR_MEMORY;
    if (is_packed) /* "X.qweight" appears as "X.weight" */
        snprintf(out->name, length + 1, "%.*s.weight", (int)(length - strlen(packed)), t->name);
    else
        snprintf(out->name, length + 1, "%s", t->name);
    int64_t rows = t->shape[0], columns = t->shape[1];
    if (is_packed) TRY(check_packed(q, t, &rows, &columns));
    out->info = (tn_safetensors_info){.struct_size = sizeof out->info,
                                      .name = out->name,
                                      .dtype_name = is_packed ? "F16" : "BF16",
                                      .dtype = is_packed ? TN_F16 : TN_BF16,
                                      .rank = 2,
                                      .shape = {rows, columns},
                                      .bytes = 2 * rows * columns};
    return TN_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const item *)a)->info.name, ((const item *)b)->info.name);
}

static tn_status list_items(hf_quant *q) {
    int count = tn_safetensors_count(q->file);
    q->items = tn_txt_zalloc((size_t)count + 1, sizeof *q->items);
    if (!q->items) return TN_ERR_MEMORY;
    for (int i = 0; i < count; i++) {
        tn_safetensors_info t = {.struct_size = sizeof t};
        TRY(tn_safetensors_at(q->file, i, &t));
        if (!is_part(t.name) && !is_exponents(q, t.name) && !is_empty_bias(q, &t))
            TRY(present(q, &t, &q->items[q->count++]));
    }
    qsort(q->items, (size_t)q->count, sizeof *q->items, by_name);
    for (int64_t i = 1; i < q->count; i++)
        if (by_name(&q->items[i - 1], &q->items[i]) == 0)
            return misfit(q, q->items[i].info.name, "it is stored twice, plainly and quantized");
    return TN_OK;
}

tn_status tn_hf_quant_open(const char *folder, const tn_json *config, const tn_safetensors *file, hf_quant **out) {
    hf_quant *q = *out = tn_txt_zalloc(1, sizeof *q);
    if (!q) return TN_ERR_MEMORY;
    size_t size = strlen(folder) + 1;
    q->path = tn_txt_alloc(size, 1);
    if (!q->path) return TN_ERR_MEMORY;
    memcpy(q->path, folder, size);
    q->file = file;
    if (!file)
        return tn_backend_fail(TN_ERR_UNSUPPORTED, "'%s': quantized weights must be stored as safetensors", folder);
    TRY(read_settings(q, config));
    return list_items(q);
}

void tn_hf_quant_close(hf_quant *q) {
    if (!q) return;
    for (int64_t i = 0; q->items && i < q->count; i++)
        tn_txt_free(q->items[i].name);
    tn_txt_free_each(q->items, q->path, q);
}

int64_t tn_hf_quant_count(const hf_quant *q) { return q->count; }

void tn_hf_quant_at(const hf_quant *q, int64_t i, tn_safetensors_info *info) { *info = q->items[i].info; }

static const item *find_item(const hf_quant *q, const char *name) {
    const item key = {.info.name = name};
    return bsearch(&key, q->items, (size_t)q->count, sizeof key, by_name);
}

bool tn_hf_quant_find(const hf_quant *q, const char *name, tn_safetensors_info *info) {
    const item *found = find_item(q, name);
    if (found) *info = found->info;
    return found;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A tensor of the file as f32: [count], to be freed. */
static tn_status read_part(const hf_quant *q, const char *stem, const char *ending, int64_t count, float **out) {
    tn_safetensors_info t;
    *out = NULL;
    if (!find_part(q, stem, ending, &t)) return misfit(q, stem, "its scales are missing");
    *out = tn_txt_alloc((size_t)count, sizeof **out);
    if (!*out) return TN_ERR_MEMORY;
    TN_SCOPE;
    return tn_read_as(tn_cast(tn_safetensors_tensor(q->file, t.name), TN_F32), *out, count, TN_F32);
}

static uint32_t word_at(const tn_safetensors_info *t, int64_t i) {
    uint32_t word;
    memcpy(&word, (const char *)t->data + i * 4, 4);
    return word;
}

/* The packed integers of a matrix [rows, columns], with what is needed to decode them. */
typedef struct packed {
    const hf_quant *q;
    tn_safetensors_info words, zeros, order; /* order.data NULL: groups follow each other */
    const float *scales;                     /* [groups, rows] */
    int64_t rows, columns;
} packed;

static int64_t group_of(const packed *p, int64_t column) {
    if (p->order.data) return (int32_t)word_at(&p->order, column);
    return p->q->group > 0 ? column / p->q->group : 0;
}

/* AWQ's order of the integers in a word. */
static int awq_shift(int64_t i) {
    static const int places[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return 4 * places[i];
}

static float decode(const packed *p, int64_t group, int64_t row, uint32_t number) {
    int64_t bits = p->q->bits, in_word = WORD_BITS / bits;
    uint32_t word = word_at(&p->zeros, group * (p->rows / in_word) + row / in_word), mask = (1u << bits) - 1;
    int shift = p->q->method == QUANT_AWQ ? awq_shift(row % in_word) : (int)(row % in_word * bits);
    int64_t zero = ((word >> shift) + (uint32_t)p->q->offset) & mask; /* 0 less 1 is stored as all ones */
    return p->scales[group * p->rows + row] * (float)((int64_t)number - zero);
}

/* A word of GPTQ has the integers of neighbouring inputs, one of AWQ those of neighbouring outputs. */
static void decode_packed(const packed *p, float *out) {
    int64_t bits = p->q->bits, in_word = WORD_BITS / bits;
    uint32_t mask = (1u << bits) - 1;
    bool awq = p->q->method == QUANT_AWQ;
    for (int64_t a = 0; a < p->words.shape[0]; a++)
        for (int64_t b = 0; b < p->words.shape[1]; b++) {
            uint32_t word = word_at(&p->words, a * p->words.shape[1] + b);
            for (int64_t i = 0; i < in_word; i++) {
                int64_t row = awq ? b * in_word + i : b, column = awq ? a : a * in_word + i;
                int shift = awq ? awq_shift(i) : (int)(i * bits);
                out[row * p->columns + column] = decode(p, group_of(p, column), row, word >> shift & mask);
            }
        }
}

static tn_status read_packed(const hf_quant *q, const item *t, float *out) {
    packed p = {.q = q, .rows = t->info.shape[0], .columns = t->info.shape[1]};
    AUTO_TXT_FREE float *scales = NULL;
    if (!find_part(q, t->name, "qweight", &p.words) || !find_part(q, t->name, "qzeros", &p.zeros))
        return misfit(q, t->name, "its parts are missing");
    if (!find_part(q, t->name, "g_idx", &p.order)) p.order.data = NULL;
    TRY(read_part(q, t->name, "scales", pieces(p.columns, q->group) * p.rows, &scales));
    p.scales = scales;
    decode_packed(&p, out);
    return TN_OK;
}

/* A byte of e4m3: sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no infinities, NaN is all ones. */
static float decode_fp8(uint8_t byte) {
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    float sign = byte & 0x80 ? -1 : 1;
    if (exponent == 15 && mantissa == 7) return NAN;
    float value = exponent ? (float)(8 + mantissa) : (float)(2 * mantissa);
    for (int e = exponent ? exponent : 0; e > 10; e--)
        value *= 2;
    for (int e = exponent ? exponent : 0; e < 10; e++)
        value /= 2;
    return sign * value;
}

/* Rows and columns that share a scale, by the shape of the scales: a number, one for each row, or blocks. */
static tn_status fp8_blocks(const hf_quant *q, const item *t, const tn_safetensors_info *s, int64_t block[2]) {
    int64_t rows = t->info.shape[0], columns = t->info.shape[1], count = 1;
    for (int i = 0; i < s->rank; i++)
        count *= s->shape[i];
    block[0] = count == 1 ? rows : 1;
    block[1] = columns;
    if (count == 1 || (count == rows && (s->rank == 1 || s->shape[0] == rows))) return TN_OK;
    block[0] = q->block[0];
    block[1] = q->block[1];
    bool fits = s->rank == 2 && block[0] > 0 && block[1] > 0 && s->shape[0] == pieces(rows, block[0]) &&
                s->shape[1] == pieces(columns, block[1]);
    return fits ? TN_OK : misfit(q, t->name, "its scales do not fit weight_block_size");
}

static tn_status read_fp8(const hf_quant *q, const item *t, float *out) {
    tn_safetensors_info s, words = {.struct_size = sizeof words};
    int64_t rows = t->info.shape[0], columns = t->info.shape[1], block[2];
    const char *ending = find_part(q, t->name, "weight_scale_inv", &s) ? "weight_scale_inv" : "weight_scale";
    float table[256];
    AUTO_TXT_FREE float *scales = NULL;
    if (!find_part(q, t->name, ending, &s)) return misfit(q, t->name, "its scales are missing");
    TRY(fp8_blocks(q, t, &s, block));
    TRY(tn_safetensors_find(q->file, t->name, &words));
    int64_t across = pieces(columns, block[1]);
    TRY(read_part(q, t->name, ending, pieces(rows, block[0]) * across, &scales));
    for (int i = 0; i < 256; i++)
        table[i] = decode_fp8((uint8_t)i);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            out[r * columns + c] =
                table[((const uint8_t *)words.data)[r * columns + c]] * scales[r / block[0] * across + c / block[1]];
    return TN_OK;
}

tn_tensor *tn_hf_quant_tensor(const hf_quant *q, const char *name) {
    const item *t = find_item(q, name);
    if (!t) return tn_failed(TN_ERR_FORMAT, "'%s' has no tensor '%s'", q->path, name);
    if (!t->name) return tn_safetensors_tensor(q->file, name);
    static tn_status (*const readers[])(const hf_quant *q, const item *t, float *out) = {
        [QUANT_GPTQ] = read_packed, [QUANT_AWQ] = read_packed, [QUANT_FP8] = read_fp8, [QUANT_MXFP4] = read_mxfp4};
    AUTO_TXT_FREE float *values = tn_txt_alloc((size_t)(t->info.bytes / 2), sizeof *values);
    tn_status status = values ? readers[q->method](q, t, values) : TN_ERR_MEMORY;
    if (status != TN_OK) return tn_failed(status, "%s", tn_error());
    TN_SCOPE;
    return tn_keep(tn_cast(tn_from_data(values, t->info.shape, t->info.rank, TN_F32), t->info.dtype));
}
