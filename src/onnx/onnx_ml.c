/* onnx_ml.c — ai.onnx.ml, which scikit-learn's exporters write: encoders, scalers, linear models. See also
 * onnx_trees.c, onnx_svm.c.
 *
 * Arithmetic over whole tensors is recorded. Label look-ups and models with few numbers run on the host: it reads the
 * input, computes in f64, and returns f32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/operator_support.h"

/* ---- rows, scores, labels ---------------------------------------------------------------------------------------- */

tn_status onnx_make_rows(int64_t count, int64_t width, onnx_rows *out) {
    int64_t total;
    if (tn_mul_overflow(count, width, &total) || total > ONNX_MOST_NUMBERS)
        return tn_fail(TN_ERR_UNSUPPORTED, "%lld rows of %lld numbers are too many", (long long)count,
                       (long long)width);
    *out = (onnx_rows){tn_mem_zalloc((size_t)total, sizeof(double)), count, width};
    return out->at ? TN_OK : tn_error_code();
}

tn_status onnx_read_rows(const onnx_call *c, int i, onnx_rows *out) {
    const tn_tensor *x = onnx_in(c, i);
    int64_t total;
    *out = (onnx_rows){0};
    if (!x) return tn_fail(TN_ERR_FORMAT, "%s: input %d is missing", c->row->name, i);
    TRY(tn_status_of(x));
    int rank = tn_rank(x);
    if (rank < 1 || rank > 2) return onnx_refuse(c, "an input of rank %d is not supported", rank);
    total = tn_numel(x);
    if (total <= ONNX_MOST_NUMBERS && onnx_reads_freely(c, i)) {
        out->at = tn_mem_alloc((size_t)tn_max64(total, 1) * sizeof *out->at);
        if (!out->at) return TN_ERR_MEMORY;
        TRY(tn_read(tn_cast(x, TN_F64), out->at, (size_t)total * sizeof *out->at));
    } else {
        TRY(onnx_read_floats(c, i, &out->at, &total, ONNX_MOST_NUMBERS));
    }
    out->width = tn_size(x, -1);
    out->count = rank == 2 ? tn_size(x, 0) : 1;
    return TN_OK;
}

static tn_status put_floats(onnx_call *c, int k, const double *values, const int64_t *shape, int rank) {
    int64_t count = tn_product(shape, rank);
    AUTO_FREE float *copy = tn_mem_zalloc((size_t)count, sizeof *copy);
    if (!copy) return tn_error_code();
    for (int64_t i = 0; i < count; i++)
        copy[i] = (float)values[i];
    return onnx_put(c, k, tn_from_data(copy, shape, rank, TN_F32));
}

tn_status onnx_put_rows(onnx_call *c, int k, const onnx_rows *rows, tn_dtype dtype) {
    int64_t shape[] = {rows->count, rows->width};
    return dtype == TN_F64 ? onnx_put(c, k, tn_from_data(rows->at, shape, 2, TN_F64))
                           : put_floats(c, k, rows->at, shape, 2);
}

static tn_status read_tensor(const onnx_call *c, const tn_tensor *t, double **out, int64_t *count) {
    int64_t n = tn_numel(t);
    tn_dtype type = tn_dtype_of(t);
    if (type != TN_F32 && type != TN_F64 && type != TN_U8 && type != TN_I64)
        return onnx_refuse(c, "an attribute of type %s is not supported", tn_dtype_name(type));
    size_t bytes = tn_dtype_bytes(type, n);
    void *raw = tn_mem_alloc(bytes);
    *out = tn_mem_zalloc((size_t)n, sizeof **out);
    tn_status status = raw && *out ? tn_read(t, raw, bytes) : tn_error_code();
    for (int64_t i = 0; i < n && status == TN_OK; i++)
        (*out)[i] = type == TN_F32   ? (double)((float *)raw)[i]
                    : type == TN_F64 ? ((double *)raw)[i]
                    : type == TN_U8  ? ((uint8_t *)raw)[i]
                                     : (double)((int64_t *)raw)[i];
    *count = n;
    tn_mem_free(raw);
    if (status == TN_OK) return TN_OK;
    tn_mem_free(*out);
    *out = NULL;
    return status;
}

tn_status onnx_numbers_of(const onnx_call *c, const char *name, double **out, int64_t *count) {
    char longer[64];
    snprintf(longer, sizeof longer, "%s_as_tensor", name);
    const onnx_attribute *a = onnx_find(c, name);
    *out = NULL;
    *count = 0;
    if (!a) a = onnx_find(c, longer);
    if (!a) return TN_OK;
    if (a->tensor) return a->tensor->tensor ? read_tensor(c, a->tensor->tensor, out, count) : onnx_refuse(c, "texts");
    *out = tn_mem_zalloc(a->count, sizeof **out);
    if (!*out) return tn_error_code();
    *count = (int64_t)a->count;
    for (size_t i = 0; i < a->count; i++)
        (*out)[i] = a->floats ? (double)a->floats[i] : a->ints ? (double)a->ints[i] : 0;
    return TN_OK;
}

onnx_transform onnx_transform_of(const onnx_call *c) {
    static const char *const names[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
    onnx_text text = onnx_string(c, "post_transform", "NONE");
    for (size_t i = 0; i < TN_COUNT(names); i++)
        if (onnx_is(text, names[i])) return (onnx_transform)i;
    return TRANSFORM_NONE;
}

/* The inverse of the normal distribution's integral, as the standard's implementations approximate it: with
 * S. Winitzki's inverse error function. */
static double probit(double p) {
    double x = 2 * p - 1, l = log((1 - x) * (1 + x));
    if (x * x >= 1) return x > 0 ? INFINITY : -INFINITY;
    double v = 2 / (M_PI * 0.147) + 0.5 * l;
    return copysign(M_SQRT2 * sqrt(sqrt(v * v - l / 0.147) - v), x);
}

/* A softmax; with `zero`, inputs of 0 stay (nearly) 0. */
static void softmax(double *row, int64_t n, bool zero) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, row[i]);
    for (int64_t i = 0; i < n; i++) {
        row[i] = zero && fabs(row[i]) <= 1e-7 ? row[i] * exp(-most) : exp(row[i] - most);
        sum += row[i];
    }
    for (int64_t i = 0; i < n; i++)
        row[i] = sum == 0 ? 0.5 : row[i] / sum;
}

void onnx_transform_row(onnx_transform t, double *row, int64_t n) {
    if (t == TRANSFORM_SOFTMAX || t == TRANSFORM_SOFTMAX_ZERO) softmax(row, n, t == TRANSFORM_SOFTMAX_ZERO);
    for (int64_t i = 0; i < n && t == TRANSFORM_LOGISTIC; i++)
        row[i] = 1 / (1 + exp(-row[i]));
    for (int64_t i = 0; i < n && t == TRANSFORM_PROBIT; i++)
        row[i] = probit(row[i]);
}

void onnx_both_scores(onnx_transform t, bool share, double row[2], double score) {
    row[0] = share && t != TRANSFORM_LOGISTIC ? 1 - score : -score;
    row[1] = score;
    if (t == TRANSFORM_LOGISTIC) onnx_transform_row(t, row, 2);
}

int64_t onnx_largest(const double *row, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

int64_t onnx_label_count(const onnx_call *c, const char *ints_name) {
    const onnx_attribute *texts = onnx_find_list(c, "classlabels_strings", ONNX_KIND_STRINGS),
                         *ints = onnx_find_list(c, ints_name, ONNX_KIND_INTS);
    return texts && texts->count ? (int64_t)texts->count : ints ? (int64_t)ints->count : 0;
}

static tn_status put_texts(onnx_call *c, int k, const onnx_text *texts, size_t text_count, onnx_text otherwise,
                           const int64_t *places, const int64_t *shape, int rank) {
    int64_t count = tn_product(shape, rank);
    onnx_text *picked = tn_mem_zalloc((size_t)count, sizeof *picked);
    if (!picked) return tn_error_code();
    for (int64_t i = 0; i < count; i++)
        picked[i] = (size_t)places[i] < text_count ? texts[places[i]] : otherwise;
    onnx_value *v = onnx_value_strings(picked, shape, rank);
    tn_mem_free(picked);
    return v ? onnx_put_value(c, k, v) : tn_error_code();
}

tn_status onnx_put_labels(onnx_call *c, int k, const char *ints_name, const int64_t *places, int64_t count) {
    const onnx_attribute *texts = onnx_find_list(c, "classlabels_strings", ONNX_KIND_STRINGS),
                         *ints = onnx_find_list(c, ints_name, ONNX_KIND_INTS);
    if (texts && texts->count)
        return put_texts(c, k, texts->strings, texts->count, (onnx_text){"", 0}, places, &count, 1);
    AUTO_FREE int64_t *labels = tn_mem_zalloc((size_t)count, sizeof *labels);
    if (!labels) return tn_error_code();
    for (int64_t i = 0; i < count; i++)
        labels[i] = ints && (size_t)places[i] < ints->count ? ints->ints[places[i]] : places[i];
    return onnx_put(c, k, tn_from_data(labels, &count, 1, TN_I64));
}

/* ---- linear models ----------------------------------------------------------------------------------------------- */

static void multiply_ml(const onnx_rows *x, const double *weights, const double *bias, int64_t bias_count,
                        const onnx_rows *out) {
    for (int64_t i = 0; i < x->count; i++) {
        for (int64_t j = 0; j < out->width; j++) {
            double sum = j < bias_count ? bias[j] : 0;
            for (int64_t f = 0; f < x->width; f++)
                sum += x->at[i * x->width + f] * weights[j * x->width + f];
            out->at[i * out->width + j] = sum;
        }
    }
}

/* The products of x with the node's coefficients, [rows, targets]. */
static tn_status score(const onnx_call *c, const onnx_rows *x, int64_t targets, onnx_rows *out) {
    AUTO_FREE double *weights = NULL, *bias = NULL;
    int64_t weight_count, bias_count = 0;
    TRY(onnx_numbers_of(c, "coefficients", &weights, &weight_count));
    TRY(onnx_numbers_of(c, "intercepts", &bias, &bias_count));
    if (targets <= 0 && x->width) targets = weight_count / x->width;
    if (targets <= 0 || weight_count / targets != x->width || weight_count % targets)
        return tn_fail(TN_ERR_SHAPE, "%s: %lld coefficients do not fit %lld features", c->row->name,
                       (long long)weight_count, (long long)x->width);
    TRY(onnx_make_rows(x->count, targets, out));
    multiply_ml(x, weights, bias, bias_count, out);
    return TN_OK;
}

static tn_status run_linear_regressor(onnx_call *c) {
    AUTO_ROWS onnx_rows x = {0}, y = {0};
    onnx_transform t = onnx_transform_of(c);
    TRY(onnx_read_rows(c, 0, &x));
    TRY(score(c, &x, onnx_int(c, "targets", 1), &y));
    for (int64_t i = 0; i < y.count; i++)
        onnx_transform_row(t, y.at + i * y.width, y.width);
    return onnx_put_rows(c, 0, &y, TN_F32);
}

static tn_status put_classes(onnx_call *c, const onnx_rows *y, const onnx_rows *both) {
    onnx_transform t = onnx_transform_of(c);
    int64_t *places = tn_mem_zalloc((size_t)y->count, sizeof *places);
    if (!places) return tn_error_code();
    for (int64_t i = 0; i < y->count; i++) {
        double *row = y->at + i * y->width;
        places[i] = y->width == 1 ? row[0] > 0 : onnx_largest(row, y->width);
        if (both->at)
            onnx_both_scores(t, true, both->at + 2 * i, row[0]);
        else
            onnx_transform_row(t, row, y->width);
    }
    tn_status status = onnx_put_labels(c, 0, "classlabels_ints", places, y->count);
    tn_mem_free(places);
    if (status != TN_OK || !onnx_wants(c, 1)) return status;
    return onnx_put_rows(c, 1, both->at ? both : y, TN_F32);
}

static tn_status run_linear_classifier(onnx_call *c) {
    AUTO_ROWS onnx_rows x = {0}, y = {0}, both = {0};
    TRY(onnx_read_rows(c, 0, &x));
    TRY(score(c, &x, 0, &y));
    if (y.width == 1 && onnx_label_count(c, "classlabels_ints") == 2) TRY(onnx_make_rows(y.count, 2, &both));
    return put_classes(c, &y, &both);
}

/* ---- over whole tensors ------------------------------------------------------------------------------------------ */

/* An attribute's numbers as a tensor: of no dims where there is one, so that it fits every feature. */
static tn_status ml_constant(const onnx_call *c, const char *name, double otherwise, tn_tensor **out) {
    double *values;
    int64_t count;
    TRY(onnx_numbers_of(c, name, &values, &count));
    float *copy = tn_mem_zalloc((size_t)count + 1, sizeof *copy);
    if (copy) copy[0] = (float)otherwise;
    for (int64_t i = 0; i < count && copy; i++)
        copy[i] = (float)values[i];
    *out = copy ? tn_from_data(copy, &count, count > 1, TN_F32) : NULL;
    tn_mem_free_each(values, copy);
    return *out ? TN_OK : tn_error_code();
}

static tn_status run_scaler(onnx_call *c) {
    tn_tensor *offset, *scale;
    TRY(ml_constant(c, "offset", 0, &offset));
    TRY(ml_constant(c, "scale", 1, &scale));
    return onnx_put(c, 0, tn_mul(tn_sub(tn_cast(onnx_in(c, 0), TN_F32), offset), scale));
}

static tn_status run_normalizer(onnx_call *c) {
    onnx_text norm = onnx_string(c, "norm", "MAX");
    int64_t last = -1;
    tn_tensor *x = tn_cast(onnx_in(c, 0), TN_F32);
    if (onnx_is(norm, "MAX")) return onnx_put(c, 0, tn_div(x, tn_amax(x, &last, 1, true)));
    tn_tensor *length = tn_norm(x, onnx_is(norm, "L2") ? 2 : 1, &last, 1, true);
    return onnx_put(c, 0, tn_div(x, tn_maximum_scalar(length, 1e-30)));
}

static tn_status run_binarizer(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    tn_tensor *above = tn_gt_scalar(x, onnx_float(c, "threshold", 0));
    return onnx_put(c, 0, tn_cast(above, tn_dtype_of(x)));
}

static tn_status run_imputer(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0);
    TRY(tn_status_of(x));
    bool floats = tn_dtype_is_float(tn_dtype_of(x));
    double replaced =
        floats ? onnx_float(c, "replaced_value_float", 0) : (double)onnx_int(c, "replaced_value_int64", 0);
    tn_tensor *news;
    TRY(ml_constant(c, floats ? "imputed_value_floats" : "imputed_value_int64s", 0, &news));
    tn_tensor *typed = tn_cast(news, tn_dtype_of(x));
    tn_tensor *missing = isnan(replaced) ? tn_ne(x, x) : tn_eq_scalar(x, replaced);
    return onnx_put(c, 0, tn_where(missing, typed, x));
}

static tn_status run_extractor(onnx_call *c) {
    const tn_tensor *x = onnx_in(c, 0), *index = onnx_in(c, 1);
    int64_t all = tn_numel(index);
    tn_tensor *flat = tn_reshape(index, &all, 1), *picked = tn_index_select(x, -1, flat);
    if (tn_rank(x) != 1) return onnx_put(c, 0, picked);
    return onnx_put(c, 0, tn_unsqueeze(picked, 0));
}

enum { MOST_FEATURES = 256 };

/* Input i as [rows, width] of f32, cut or filled with zeros. */
static tn_tensor *features(const onnx_call *c, int i, int64_t width) {
    tn_tensor *x = tn_cast(onnx_in(c, i), TN_F32);
    if (tn_rank(x) == 1) x = tn_unsqueeze(x, 1);
    int64_t own = tn_size(x, -1);
    if (own == width) return x;
    return own > width ? tn_slice(x, 1, 0, width, 1) : tn_pad(x, (int64_t[]){0, width - own}, 2, 0);
}

static tn_status run_feature_vectorizer(onnx_call *c) {
    tn_tensor *parts[MOST_FEATURES];
    int count = 0;
    const int64_t *widths = onnx_ints(c, "inputdimensions", &count);
    if (count < c->in_count || count > MOST_FEATURES)
        return onnx_refuse(c, "%d inputs do not fit inputdimensions", c->in_count);
    for (int i = 0; i < c->in_count; i++)
        parts[i] = features(c, i, widths[i]);
    return onnx_put(c, 0, tn_cat(parts, c->in_count, 1));
}

/* ---- look-ups ---------------------------------------------------------------------------------------------------- */

/* What a key is compared by: its text, or its number (integers are exact up to their 64 bits). */
typedef struct label {
    onnx_text text;
    double number;
    int64_t integer, place;
} label;

typedef struct labels {
    label *sorted;
    int64_t count;
    int (*by)(const void *a, const void *b);
} labels;
static void free_labels(labels *l) { tn_mem_free(l->sorted); }

static int by_text(const void *a, const void *b) {
    const onnx_text *x = &((const label *)a)->text, *y = &((const label *)b)->text;
    size_t size = x->size < y->size ? x->size : y->size;
    int order = size ? memcmp(x->at, y->at, size) : 0;
    return order ? order : (x->size > y->size) - (x->size < y->size);
}
static int by_integer(const void *a, const void *b) {
    int64_t x = ((const label *)a)->integer, y = ((const label *)b)->integer;
    return (x > y) - (x < y);
}
static int by_number(const void *a, const void *b) { /* NaN is itself, and after all others */
    double x = ((const label *)a)->number, y = ((const label *)b)->number;
    if (isnan(x) || isnan(y)) return !!isnan(x) - !!isnan(y);
    return (x > y) - (x < y);
}

static int find_label(const labels *l, const label *key, int64_t *place) {
    const label *at = l->count ? bsearch(key, l->sorted, (size_t)l->count, sizeof *key, l->by) : NULL;
    *place = l->count;
    for (; at && at < l->sorted + l->count && !l->by(at, key); at++)
        if (*place == l->count || at->place > *place) *place = at->place; /* of equal keys the last */
    return at != NULL;
}

static tn_status make_labels(int64_t count, int (*by)(const void *a, const void *b), labels *out) {
    *out = (labels){tn_mem_zalloc((size_t)count, sizeof *out->sorted), count, by};
    if (!out->sorted) return tn_error_code();
    for (int64_t i = 0; i < count; i++)
        out->sorted[i].place = i;
    return TN_OK;
}

static void sort_labels(labels *l) {
    if (l->count) qsort(l->sorted, (size_t)l->count, sizeof *l->sorted, l->by);
    for (int64_t i = 1; i < l->count; i++) { /* bsearch may meet any of equal keys: the first stands for all */
        label *before = &l->sorted[i - 1], *at = &l->sorted[i];
        if (!l->by(before, at)) {
            int64_t last = before->place > at->place ? before->place : at->place;
            before->place = at->place = last;
        }
    }
    for (int64_t i = l->count - 1; i > 0; i--)
        if (!l->by(&l->sorted[i - 1], &l->sorted[i])) l->sorted[i - 1].place = l->sorted[i].place;
}

/* Lists of other kinds have an empty list of texts. */
static bool is_texts(const onnx_attribute *a) { return a && a->kind == ONNX_KIND_STRINGS; }

/* Keys out of an attribute: texts, ints, floats or a tensor; NULL: 0, 1, 2 … up to `count`. */
static tn_status labels_of(const onnx_call *c, const onnx_attribute *a, int64_t count, labels *out) {
    const onnx_value *t = a ? a->tensor : NULL;
    const onnx_text *texts = t && t->kind == ONNX_STRINGS ? t->strings : is_texts(a) ? a->strings : NULL;
    bool floats = t && t->tensor ? tn_dtype_is_float(tn_dtype_of(t->tensor)) : a && a->floats;
    AUTO_FREE double *numbers = NULL;
    if (t && t->tensor)
        TRY(read_tensor(c, t->tensor, &numbers, &count));
    else if (a)
        count = t ? t->count : (int64_t)a->count;
    TRY(make_labels(count, texts ? by_text : floats ? by_number : by_integer, out));
    for (int64_t i = 0; i < count; i++) {
        label *l = &out->sorted[i];
        if (texts) l->text = texts[i];
        if (a && a->floats) l->number = (double)a->floats[i];
        if (numbers) l->number = numbers[i];
        l->integer = numbers && !floats ? (int64_t)numbers[i] : a && a->ints ? a->ints[i] : a ? 0 : i;
    }
    sort_labels(out);
    return TN_OK;
}

typedef struct places {
    int64_t *at;
    int64_t shape[TN_MAX_RANK], count;
    int rank;
} places;
static void free_places_ml(places *p) { tn_mem_free(p->at); }

/* Where each element of input 0 stands among the keys; the number of keys where it does not. */
static tn_status look_up(const onnx_call *c, const labels *l, places *out) {
    const onnx_value *x = onnx_has(c, 0) ? c->in[0] : NULL;
    bool texts = x && x->kind == ONNX_STRINGS;
    AUTO_FREE double *numbers = NULL;
    AUTO_FREE int64_t *integers = NULL;
    if (!x || texts != (l->by == by_text))
        return tn_fail(TN_ERR_FORMAT, "%s: the input does not have the type of the keys", c->row->name);
    const tn_tensor *t = texts ? NULL : onnx_in(c, 0);
    if (t) TRY(tn_status_of(t));
    out->rank = texts ? x->rank : tn_rank(t);
    memcpy(out->shape, texts ? x->shape : tn_shape(t), (size_t)out->rank * sizeof *out->shape);
    out->count = texts ? x->count : tn_numel(t);
    if (l->by == by_number) TRY(onnx_read_floats(c, 0, &numbers, &out->count, ONNX_MOST_NUMBERS));
    bool as_integers = l->by == by_integer && !tn_dtype_is_float(tn_dtype_of(t));
    if (as_integers) TRY(onnx_read_ints(c, 0, &integers, &out->count, ONNX_MOST_NUMBERS));
    if (l->by == by_integer && !as_integers) TRY(onnx_read_floats(c, 0, &numbers, &out->count, ONNX_MOST_NUMBERS));
    out->at = tn_mem_zalloc((size_t)out->count, sizeof *out->at);
    for (int64_t i = 0; i < out->count && out->at; i++) {
        label key = {.place = 0};
        if (texts) key.text = x->strings[i];
        if (numbers) key.number = numbers[i];
        if (numbers) key.integer = numbers[i] > -9e18 && numbers[i] < 9e18 ? (int64_t)numbers[i] : INT64_MIN;
        if (integers) key.integer = integers[i];
        (void)find_label(l, &key, &out->at[i]);
    }
    return out->at ? TN_OK : tn_error_code();
}

/* The first of these attributes that the node has. */
static const onnx_attribute *first_of(const onnx_call *c, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        const onnx_attribute *a = onnx_find(c, names[i]);
        if (a) return a;
    }
    return NULL;
}

static int64_t length_of(const onnx_attribute *a) {
    const onnx_value *t = a->tensor;
    return !t ? (int64_t)a->count : t->kind == ONNX_STRINGS ? t->count : tn_numel(t->tensor);
}

/* Element p of the values, or `otherwise`, for each place p. */
static tn_status put_picked(onnx_call *c, tn_tensor *values, tn_tensor *otherwise, const places *p, onnx_type type) {
    int64_t one = 1;
    tn_tensor *last = tn_reshape(otherwise, &one, 1), *all = tn_cat((tn_tensor *[]){values, last}, 2, 0);
    tn_tensor *index = tn_from_data(p->at, &p->count, 1, TN_I64), *flat = tn_index_select(all, 0, index);
    return onnx_put_typed(c, 0, tn_reshape(flat, p->shape, p->rank), type);
}

/* Values out of an attribute (NULL: 0, 1, 2 …), picked by place. */
static tn_status put_values(onnx_call *c, const onnx_attribute *a, int64_t count, const places *p) {
    const onnx_value *t = a ? a->tensor : NULL;
    const onnx_attribute *other = onnx_find(c, "default_tensor");
    const onnx_value *o = other ? other->tensor : NULL;
    if ((t && t->kind == ONNX_STRINGS) || is_texts(a)) {
        onnx_text otherwise =
            o && o->kind == ONNX_STRINGS && o->count ? o->strings[0] : onnx_string(c, "default_string", "_Unused");
        return put_texts(c, 0, t ? t->strings : a->strings, t ? (size_t)t->count : a->count, otherwise, p->at, p->shape,
                         p->rank);
    }
    if (t) {
        tn_tensor *last = o ? o->tensor : tn_scalar(tn_dtype_is_float(tn_dtype_of(t->tensor)) ? -0.0 : -1);
        tn_tensor *typed = tn_cast(last, tn_dtype_of(t->tensor));
        return put_picked(c, t->tensor, typed, p, t->type);
    }
    if (a && a->floats) {
        float last = (float)onnx_float(c, "default_float", -0.0);
        int64_t n = (int64_t)a->count;
        return put_picked(c, tn_from_data(a->floats, &n, 1, TN_F32), tn_from_data(&last, NULL, 0, TN_F32), p,
                          ONNX_FLOAT);
    }
    if (a && !a->ints) return tn_fail(TN_ERR_FORMAT, "%s: the values have an unknown type", c->row->name);
    int64_t last = onnx_int(c, "default_int64", -1), n = a ? (int64_t)a->count : count;
    AUTO_FREE int64_t *order = a ? NULL : tn_mem_zalloc((size_t)n, sizeof *order);
    if (!a && !order) return tn_error_code();
    for (int64_t i = 0; i < n && order; i++)
        order[i] = i;
    return put_picked(c, tn_from_data(a ? a->ints : order, &n, 1, TN_I64), tn_from_data(&last, NULL, 0, TN_I64), p,
                      ONNX_INT64);
}

static tn_status encode_ml(onnx_call *c, const onnx_attribute *keys, const onnx_attribute *values, int64_t count) {
    AUTO_CALL(free_labels) labels l = {0};
    AUTO_CALL(free_places_ml) places p = {0};
    TRY(labels_of(c, keys, count, &l));
    if (values && length_of(values) != l.count)
        return tn_fail(TN_ERR_FORMAT, "%s: keys and values must have the same length", c->row->name);
    TRY(look_up(c, &l, &p));
    return put_values(c, values, l.count, &p);
}

static tn_status run_label_encoder(onnx_call *c) {
    static const char *const key_names[] = {"keys_tensor", "keys_strings", "keys_int64s", "keys_floats"};
    static const char *const value_names[] = {"values_tensor", "values_strings", "values_int64s", "values_floats"};
    const onnx_attribute *keys = first_of(c, key_names, 4), *values = first_of(c, value_names, 4);
    if (!keys || !values) return tn_fail(TN_ERR_FORMAT, "LabelEncoder: keys or values are missing");
    return encode_ml(c, keys, values, 0);
}

/* Text to its place in a list, or back: `names`, and what the numbers are (NULL: places). */
static tn_status map_names(onnx_call *c, const onnx_attribute *names, const onnx_attribute *numbers) {
    bool texts = onnx_has(c, 0) && c->in[0]->kind == ONNX_STRINGS;
    if (!names) return tn_fail(TN_ERR_FORMAT, "%s: the names are missing", c->row->name);
    if (numbers && numbers->count != names->count)
        return tn_fail(TN_ERR_FORMAT, "%s: names and numbers must have the same length", c->row->name);
    return encode_ml(c, texts ? names : numbers, texts ? numbers : names, (int64_t)names->count);
}

static tn_status run_first_label_encoder(onnx_call *c) {
    return map_names(c, onnx_find_list(c, "classes_strings", ONNX_KIND_STRINGS), NULL);
}

static tn_status run_category_mapper(onnx_call *c) {
    return map_names(c, onnx_find_list(c, "cats_strings", ONNX_KIND_STRINGS),
                     onnx_find_list(c, "cats_int64s", ONNX_KIND_INTS));
}

static tn_status put_one_hot(onnx_call *c, const places *p, int64_t classes) {
    AUTO_ROWS onnx_rows y = {0};
    int64_t shape[TN_MAX_RANK];
    bool zeros = onnx_int(c, "zeros", 1) != 0;
    if (p->rank + 1 > TN_MAX_RANK) return onnx_refuse(c, "an input of rank %d is not supported", p->rank);
    TRY(onnx_make_rows(p->count, classes, &y));
    for (int64_t i = 0; i < p->count; i++) {
        if (p->at[i] < classes)
            y.at[i * classes + p->at[i]] = 1;
        else if (!zeros)
            return tn_fail(TN_ERR_ARGUMENT, "OneHotEncoder: element %lld is not a known category", (long long)i);
    }
    memcpy(shape, p->shape, sizeof shape);
    shape[p->rank] = classes;
    return put_floats(c, 0, y.at, shape, p->rank + 1);
}

static tn_status run_one_hot(onnx_call *c) {
    static const char *const names[] = {"cats_strings", "cats_int64s"};
    AUTO_CALL(free_labels) labels l = {0};
    AUTO_CALL(free_places_ml) places p = {0};
    const onnx_attribute *keys = first_of(c, names, 2);
    if (!keys) return tn_fail(TN_ERR_FORMAT, "OneHotEncoder: the categories are missing");
    TRY(labels_of(c, keys, 0, &l));
    TRY(look_up(c, &l, &p));
    return put_one_hot(c, &p, l.count);
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

static onnx_value *map_of_row(onnx_value *keys, const double *row, int64_t n) {
    AUTO_FREE onnx_value **items = tn_mem_zalloc((size_t)n, sizeof(onnx_value *));
    onnx_value *map = NULL;
    int64_t made = 0;
    for (; items && made < n; made++) {
        float v = (float)row[made];
        items[made] = onnx_value_tensor(tn_from_data(&v, NULL, 0, TN_F32), ONNX_FLOAT);
        if (!items[made]) break;
    }
    if (items && made == n)
        map = onnx_value_map(onnx_value_retain(keys), items, n);
    else
        while (made > 0)
            onnx_value_release(items[--made]);
    return map;
}

static onnx_value *keys_of(const onnx_call *c) {
    const onnx_attribute *texts = onnx_find_list(c, "classlabels_strings", ONNX_KIND_STRINGS),
                         *ints = onnx_find_list(c, "classlabels_int64s", ONNX_KIND_INTS);
    const onnx_attribute *a = texts && texts->count ? texts : ints;
    int64_t count = a ? (int64_t)a->count : 0;
    if (a == texts && a) return onnx_value_strings(a->strings, &count, 1);
    return onnx_value_tensor(tn_from_data(a ? a->ints : &count, &count, 1, TN_I64), ONNX_INT64);
}

static tn_status run_zip_map(onnx_call *c) {
    AUTO_ROWS onnx_rows x = {0};
    TRY(onnx_read_rows(c, 0, &x));
    AUTO_FREE onnx_value **maps = tn_mem_zalloc((size_t)x.count, sizeof(onnx_value *));
    AUTO_VALUE onnx_value *keys = keys_of(c);
    int64_t count = keys ? (keys->kind == ONNX_STRINGS ? keys->count : tn_numel(keys->tensor)) : 0, made = 0;
    tn_status status = keys && maps ? TN_OK : tn_error_code();
    if (status == TN_OK && count != x.width)
        status = tn_fail(TN_ERR_SHAPE, "ZipMap: %lld keys for %lld columns; one key per column is required",
                         (long long)count, (long long)x.width);
    for (; made < x.count && status == TN_OK; made++) {
        maps[made] = map_of_row(keys, x.at + made * x.width, x.width);
        if (!maps[made]) status = tn_error_code();
    }
    onnx_value *list = status == TN_OK ? onnx_value_sequence(maps, x.count, ONNX_FLOAT) : NULL;
    if (status == TN_OK) status = list ? onnx_put_value(c, 0, list) : tn_error_code();
    for (int64_t i = 0; i < made && !list; i++)
        onnx_value_release(maps[i]);
    return status;
}

/* ---- maps to tensors --------------------------------------------------------------------------------------------- */

/* A map's keys that are numbers; *out is freed with tn_mem_free. */
static tn_status number_keys(const onnx_call *c, const onnx_value *map, int64_t **out) {
    const onnx_value *keys = map->keys;
    *out = NULL;
    if (keys->kind != ONNX_TENSOR || tn_dtype_of(keys->tensor) != TN_I64)
        return onnx_refuse(c, "keys of this type are not supported");
    *out = tn_mem_alloc((size_t)map->count * sizeof **out);
    return *out ? tn_read(keys->tensor, *out, (size_t)map->count * sizeof **out) : tn_error_code();
}

/* The map that is input 0, whose values are numbers. */
static tn_status need_map(const onnx_call *c, const onnx_value **map) {
    *map = onnx_has(c, 0) && c->in[0]->kind == ONNX_MAP ? c->in[0] : NULL;
    if (!*map) return onnx_refuse(c, "the input is not a map");
    for (int64_t i = 0; i < (*map)->count; i++)
        if ((*map)->items[i]->kind != ONNX_TENSOR || tn_numel((*map)->items[i]->tensor) != 1)
            return onnx_refuse(c, "the values must be numbers");
    return TN_OK;
}

/* [1, count]: at each place the value that `from` names, 0 for −1. Zeros in a row are one part, for a file may ask for
 * millions of them. */
static tn_status put_values_at(onnx_call *c, const onnx_value *map, const int64_t *from, int64_t count, tn_dtype as) {
    AUTO_FREE tn_tensor **parts = tn_mem_zalloc((size_t)count + 1, sizeof *parts);
    if (!parts) return tn_error_code();
    int64_t n = 0, end;
    for (int64_t i = 0; i < count; i = end) {
        for (end = i; end < count && from[end] < 0;)
            end++;
        bool zeros = end > i;
        parts[n++] =
            zeros ? tn_zeros(TN_DIMS(end - i), as) : tn_reshape(onnx_as(map->items[from[i]]->tensor, as), TN_DIMS(1));
        end += !zeros;
    }
    tn_tensor *row = n ? onnx_joined(parts, n, 0, false) : tn_zeros(TN_DIMS(0), as);
    return onnx_put(c, 0, tn_reshape(row, TN_DIMS(1, count)));
}

/* Where each word of the vocabulary stands in the map: −1 for nowhere. */
static tn_status find_words(const onnx_call *c, const labels *words, const onnx_value *map, int64_t *from) {
    AUTO_FREE int64_t *numbers = NULL;
    int64_t place;
    bool texts = map->keys->kind == ONNX_STRINGS;
    if (!texts) TRY(number_keys(c, map, &numbers));
    for (int64_t w = 0; w < words->count; w++)
        from[w] = -1;
    for (int64_t i = 0; i < map->count; i++) {
        const label key = {.text = texts ? map->keys->strings[i] : (onnx_text){0}, .integer = texts ? 0 : numbers[i]};
        if (find_label(words, &key, &place)) from[place] = i;
    }
    return TN_OK;
}

/* The values of a map in the order of a vocabulary. */
static tn_status run_dict_vectorizer(onnx_call *c) {
    static const char *const names[] = {"string_vocabulary", "int64_vocabulary"};
    const onnx_attribute *vocabulary = first_of(c, names, 2);
    const onnx_value *map;
    AUTO_CALL(free_labels) labels words = {0};
    TRY(need_map(c, &map));
    if (!vocabulary || is_texts(vocabulary) != (map->keys->kind == ONNX_STRINGS))
        return onnx_refuse(c, "the vocabulary must have the type of the keys");
    TRY(labels_of(c, vocabulary, 0, &words));
    AUTO_FREE int64_t *from = tn_mem_alloc((size_t)words.count * sizeof *from);
    if (!from) return TN_ERR_MEMORY;
    TRY(find_words(c, &words, map, from));
    return put_values_at(c, map, from, words.count, map->count ? tn_dtype_of(map->items[0]->tensor) : TN_F32);
}

static bool is_smaller(const void *keys, int64_t a, int64_t b) {
    return ((const int64_t *)keys)[a] < ((const int64_t *)keys)[b];
}

/* The values of a map in the order of their keys, or each at the place that its key names. */
static tn_status run_cast_map(onnx_call *c) {
    bool sparse = onnx_is(onnx_string(c, "map_form", "DENSE"), "SPARSE");
    bool whole = onnx_is(onnx_string(c, "cast_to", "TO_FLOAT"), "TO_INT64");
    AUTO_FREE int64_t *keys = NULL, *from = NULL;
    const onnx_value *map;
    TRY(need_map(c, &map));
    if (onnx_is(onnx_string(c, "cast_to", ""), "TO_STRING"))
        return onnx_refuse(c, "strings as the output are not supported");
    int64_t count = sparse ? onnx_int(c, "max_map", 1) : map->count;
    if (count < 0 || count > ONNX_MOST_NUMBERS)
        return onnx_refuse(c, "a map of %lld entries is too large", (long long)count);
    TRY(number_keys(c, map, &keys));
    if (!sparse) TRY(onnx_sort(count, is_smaller, keys, &from));
    if (sparse && !(from = tn_mem_alloc((size_t)count * sizeof *from))) return tn_error_code();
    for (int64_t i = 0; sparse && from && i < count; i++)
        from[i] = -1;
    for (int64_t i = 0; sparse && from && i < map->count; i++) {
        if (keys[i] >= 0 && keys[i] < count)
            from[keys[i]] = i;
        else
            return tn_fail(TN_ERR_ARGUMENT, "CastMap: key %lld is out of range; the map has %lld entries",
                           (long long)keys[i], (long long)count);
    }
    return put_values_at(c, map, from, count, whole ? TN_I64 : TN_F32);
}

const onnx_op_row onnx_ml_ops[] = {
    {"ArrayFeatureExtractor", 1, .run = run_extractor},
    {"Binarizer", 1, .run = run_binarizer},
    {"CastMap", 1, .run = run_cast_map},
    {"CategoryMapper", 1, .run = run_category_mapper},
    {"DictVectorizer", 1, .run = run_dict_vectorizer},
    {"FeatureVectorizer", 1, .run = run_feature_vectorizer},
    {"Imputer", 1, .run = run_imputer},
    {"LabelEncoder", 1, .run = run_first_label_encoder},
    {"LabelEncoder", 2, .run = run_label_encoder},
    {"LinearClassifier", 1, .run = run_linear_classifier},
    {"LinearRegressor", 1, .run = run_linear_regressor},
    {"Normalizer", 1, .run = run_normalizer},
    {"OneHotEncoder", 1, .run = run_one_hot},
    {"SVMClassifier", 1, .run = onnx_run_svm_classifier},
    {"SVMRegressor", 1, .run = onnx_run_svm_regressor},
    {"Scaler", 1, .run = run_scaler},
    {"TreeEnsemble", 5, .run = onnx_run_trees},
    {"TreeEnsembleClassifier", 1, .run = onnx_run_older_trees, .with = 1},
    {"TreeEnsembleRegressor", 1, .run = onnx_run_older_trees},
    {"ZipMap", 1, .run = run_zip_map},
    {.name = NULL},
};
