/* convert_tensor.c — one tensor on its way: the type that it takes, its bytes, and the error of what was rounded.
 *
 * The error is measured on what is really written. Tensors whose names differ in numbers alone are told together. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/convert/convert.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

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

int convert_file_type(tn_dtype dtype) { return targets[find_target(dtype)].file_type; }

bool convert_parse_type(const char *text, tn_dtype *out) {
    for (int i = 0; i < TARGETS; i++)
        if (strcasecmp(tn_dtype_name(targets[i].dtype), text) == 0) {
            *out = targets[i].dtype;
            return true;
        }
    return false;
}

const char *convert_type_names(char *out, size_t size) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < TARGETS && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", tn_dtype_name(targets[i].dtype));
    return out;
}

static bool converted_fits(tn_dtype dtype, const convert_tensor *t) {
    return t->rank > 0 && t->shape[t->rank - 1] % tn_dtype_block(dtype) == 0;
}

static bool is_plain_float(tn_dtype t) { return t < TN_DTYPE_COUNT && tn_dtype_is_float(t); }

/* What a tensor becomes; *same: it stays as it is, byte for byte. */
tn_dtype convert_type_for(const convert_wishes *w, const convert_tensor *t, bool to_gguf, bool *same) {
    bool blocks = t->dtype < TN_DTYPE_COUNT && tn_dtype_block(t->dtype) > 1;
    bool places = strcmp(t->name, "position_embd.weight") == 0; /* small, and only added: never quantized */
    places |= strstr(t->name, "ffn_gate_inp") != NULL;          /* small, and decides which expert it is */
    tn_dtype to = t->dtype;
    if (w->to != TN_DTYPE_COUNT && t->rank >= 2 && !places && (blocks || is_plain_float(t->dtype))) {
        to = w->mix ? convert_mix_type(w, t) : w->to;
        while (!converted_fits(to, t))
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

convert_class *convert_class_of(convert_report *r, const convert_tensor *t, const char *to) {
    char name[sizeof r->rows->name];
    class_name(t->name, name, sizeof name);
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->rows[i].name, name) == 0 && strcmp(r->rows[i].to, to) == 0) return &r->rows[i];
    if (r->count == CONVERT_MOST_CLASSES) return &r->rows[CONVERT_MOST_CLASSES - 1];
    convert_class *row = &r->rows[r->count++];
    memcpy(row->name, name, sizeof name);
    row->from = t->type;
    row->to = to;
    return row;
}

void convert_measure(convert_class *row, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double e = (double)y[i] - (double)x[i];
        row->most = fmax(row->most, fabs(e));
        row->squares += e * e;
        row->size += (double)x[i] * (double)x[i];
    }
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* The importance of the columns of a matrix that has this number of them; NULL if it is not known. */
static const float *columns_of(const convert_importance *i, const char *name, int64_t columns) {
    for (int64_t k = 0; i && k < i->count; k++)
        if (i->list[k].columns == columns && strcmp(i->list[k].name, name) == 0) return i->list[k].squares;
    return NULL;
}

void convert_importance_free(convert_importance *i) {
    for (int64_t k = 0; k < i->count; k++) {
        free(i->list[k].name);
        free(i->list[k].squares);
    }
    free(i->list);
    *i = (convert_importance){0};
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static void *blocks_of(const convert_file *in, const convert_tensor *t, tn_dtype to, const float *x, size_t bytes) {
    int64_t numel = t->numel, columns = t->rank > 0 ? t->shape[t->rank - 1] : 0;
    void *data = malloc(bytes ? bytes : 1);
    if (!data) tn_backend_fail(TN_ERR_MEMORY, "out of memory for %zu bytes", bytes);
    if (!data) return NULL;
    tn_status status = TN_OK;
    if (tn_dtype_block(to) > 1) {
        status = tn_quantize_rows(to, x, numel, columns_of(in->importance, t->source, columns), columns, data);
    } else {
        tn_tensor *plain = tn_from_data(x, &numel, 1, TN_F32), *cast = tn_cast(plain, to);
        status = tn_read(cast, data, bytes);
        tn_free(cast);
        tn_free(plain);
    }
    if (status == TN_OK) return data;
    free(data);
    return NULL;
}

/* What the bytes are as numbers, beside what they were. */
static tn_status measure_written(convert_class *row, const float *x, const void *data, tn_dtype to, int64_t numel) {
    AUTO_CLI_TENSOR tn_tensor *t = tn_from_data(data, &numel, 1, to), *cast = tn_cast(t, TN_F32);
    AUTO_CLI_FREE float *y = malloc((size_t)numel * sizeof *y + 1);
    if (!y) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for %lld numbers", (long long)numel);
    TRY(tn_read(cast, y, (size_t)numel * sizeof *y));
    convert_measure(row, x, y, numel);
    return TN_OK;
}

tn_status convert_read_same(const convert_file *in, const convert_tensor *t, convert_bytes *out) {
    if (t->data) {
        out->bytes = t->data;
        out->size = t->bytes;
        return TN_OK;
    }
    out->size = (int64_t)tn_dtype_bytes(t->dtype, t->numel);
    out->bytes = out->data = malloc((size_t)out->size + 1);
    if (!out->data) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for '%s'", t->name);
    AUTO_CLI_TENSOR tn_tensor *tensor = convert_tensor_of(in, t);
    if (!tensor) return TN_ERR_FORMAT; /* it has been said why */
    return tn_read(tensor, out->data, (size_t)out->size);
}

tn_status convert_one(const convert_file *in, const convert_tensor *t, tn_dtype to, bool same, convert_report *r,
                      convert_bytes *out) {
    *out = (convert_bytes){0};
    convert_class *row = convert_class_of(r, t, same ? t->type : tn_dtype_name(to));
    row->tensors++;
    row->numel += t->numel;
    if (same) {
        tn_status status = convert_read_same(in, t, out);
        row->bytes += out->size;
        return status;
    }
    AUTO_CLI_FREE float *x = convert_numbers(in, t);
    if (!x) return tn_backend_fail(TN_ERR_FORMAT, "'%s' cannot be converted: %s", t->name, tn_error());
    out->size = (int64_t)tn_dtype_bytes(to, t->numel);
    out->bytes = out->data = blocks_of(in, t, to, x, (size_t)out->size);
    row->bytes += out->size;
    return out->data ? measure_written(row, x, out->data, to, t->numel) : TN_ERR_MEMORY;
}
