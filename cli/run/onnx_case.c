/* onnx_case.c — one case of ONNX's test layout: runs the model over each data set and compares value by value.
 *
 * Numbers are compared on the host, in f64, after they were read from the device as bytes: the arithmetic that is
 * tested has no part in the judgement. What is compared is what the standard's own runner compares: kinds, element
 * types, shapes, then the numbers within the tolerance; equal bytes pass at once. */
#include "cli/run/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "trunnion/backend.h"
#include "trunnion/onnx.h"

enum { PATH = 4096, DEEPEST = 16 /* values in values */ };

typedef struct verdict {
    onnx_tolerance tolerance;
    char *why;
    size_t size, used;
} verdict;

static bool differs(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool differs(verdict *v, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (v->used < v->size) vsnprintf(v->why + v->used, v->size - v->used, format, args);
    va_end(args);
    return false;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static double half(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return h >> 15 ? -size : size;
}

static double brain(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#define ELEMENT(type) (((const type *)data)[i])
static double case_number(const void *data, tn_dtype t, int64_t i) {
    switch (t) {
    case TN_F32: return ELEMENT(float);
    case TN_F64: return ELEMENT(double);
    case TN_F16: return half(ELEMENT(uint16_t));
    case TN_BF16: return brain(ELEMENT(uint16_t));
    case TN_I64: return (double)ELEMENT(int64_t);
    case TN_U64: return (double)ELEMENT(uint64_t);
    case TN_I32: return ELEMENT(int32_t);
    case TN_U32: return ELEMENT(uint32_t);
    case TN_I16: return ELEMENT(int16_t);
    case TN_U16: return ELEMENT(uint16_t);
    case TN_I8: return ELEMENT(int8_t);
    default: return ELEMENT(uint8_t);
    }
}
#undef ELEMENT

static bool case_fits(const verdict *v, double got, double want) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got)) return want == got;
    return fabs(got - want) <= v->tolerance.absolute + v->tolerance.relative * fabs(want);
}

/* Both have the type and count that is compared; a complex number is a pair, which is as far off as its distance. */
static bool numbers_fit(verdict *v, const void *got, const void *want, tn_dtype t, int64_t count, bool complex) {
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < count; i += 1 + complex) {
        double a = case_number(got, t, i), b = case_number(want, t, i);
        bool fit = case_fits(v, a, b);
        if (complex) {
            double c = case_number(got, t, i + 1), d = case_number(want, t, i + 1);
            fit = case_fits(v, a, b) && case_fits(v, c, d);
            if (!fit && isfinite(a + b + c + d))
                fit = hypot(a - b, c - d) <= v->tolerance.absolute + v->tolerance.relative * hypot(b, d);
        }
        if (fit) continue;
        if (wrong++ == 0) first = i;
    }
    if (!wrong) return true;
    return differs(v, "%lld of %lld numbers differ, the first at %lld: %.9g, expected %.9g", (long long)wrong,
                   (long long)count, (long long)first, case_number(got, t, first), case_number(want, t, first));
}

static bool shapes_fit(verdict *v, const int64_t *got, int got_rank, const int64_t *want, int want_rank) {
    if (got_rank == want_rank && !memcmp(got, want, (size_t)got_rank * sizeof *got)) return true;
    char text[2][160];
    for (int k = 0; k < 2; k++) {
        const int64_t *shape = k ? want : got;
        int rank = k ? want_rank : got_rank, at = 0;
        text[k][0] = 0;
        for (int i = 0; i < rank && at < (int)sizeof text[k]; i++)
            at += snprintf(text[k] + at, sizeof text[k] - (size_t)at, "%s%lld", i ? "," : "", (long long)shape[i]);
    }
    return differs(v, "shape [%s], expected [%s]", text[0], text[1]);
}

static bool tensors_fit(verdict *v, const tn_onnx_value *got, const tn_onnx_value *want) {
    const tn_tensor *a = tn_onnx_value_get(got), *b = tn_onnx_value_get(want);
    tn_dtype t = tn_dtype_of(b);
    if (tn_dtype_of(a) != t) return differs(v, "%s, expected %s", tn_dtype_name(tn_dtype_of(a)), tn_dtype_name(t));
    if (!shapes_fit(v, tn_shape(a), tn_rank(a), tn_shape(b), tn_rank(b))) return false;
    int64_t count = tn_numel(b);
    size_t bytes = tn_dtype_bytes(t, count);
    char *room = malloc(2 * bytes + 1);
    if (!room) return differs(v, "out of memory to compare %zu bytes", bytes);
    bool good = tn_read(a, room, bytes) == TN_OK && tn_read(b, room + bytes, bytes) == TN_OK;
    if (!good) (void)differs(v, "reading failed: %s", tn_error());
    double relative = v->tolerance.relative;
    if (t == TN_BF16 && relative < 0x1p-6) v->tolerance.relative = 0x1p-6; /* two units in its last place */
    if (good && memcmp(room, room + bytes, bytes))
        good = numbers_fit(v, room, room + bytes, t, count, !strncmp(tn_onnx_value_type(want), "COMPLEX", 7));
    v->tolerance.relative = relative;
    free(room);
    return good;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool texts_fit(verdict *v, const tn_onnx_value *got, const tn_onnx_value *want) {
    int64_t shapes[2][TN_MAX_RANK];
    int got_rank = tn_onnx_value_shape(got, shapes[0]), want_rank = tn_onnx_value_shape(want, shapes[1]);
    if (!shapes_fit(v, shapes[0], got_rank, shapes[1], want_rank)) return false;
    for (int64_t i = 0; i < tn_onnx_value_count(want); i++) {
        size_t sizes[2];
        const char *a = tn_onnx_value_string(got, i, &sizes[0]), *b = tn_onnx_value_string(want, i, &sizes[1]);
        if (sizes[0] != sizes[1] || memcmp(a, b, sizes[0]))
            return differs(v, "string %lld is \"%.*s\", expected \"%.*s\"", (long long)i, (int)sizes[0], a,
                           (int)sizes[1], b);
    }
    return true;
}

static bool values_fit(verdict *v, const tn_onnx_value *got, const tn_onnx_value *want, int depth);

static bool items_fit(verdict *v, const tn_onnx_value *got, const tn_onnx_value *want, int depth) {
    int64_t count = tn_onnx_value_count(want);
    if (tn_onnx_value_count(got) != count)
        return differs(v, "%lld items, expected %lld", (long long)tn_onnx_value_count(got), (long long)count);
    if (depth >= DEEPEST) return differs(v, "values are nested more than %d deep", DEEPEST);
    bool map = tn_onnx_value_kind(want) == TN_ONNX_MAP;
    if (map && !values_fit(v, tn_onnx_value_keys(got), tn_onnx_value_keys(want), depth + 1)) return false;
    for (int64_t i = 0; i < count; i++)
        if (!values_fit(v, tn_onnx_value_item(got, i), tn_onnx_value_item(want, i), depth + 1)) return false;
    return true;
}

static bool values_fit(verdict *v, const tn_onnx_value *got, const tn_onnx_value *want, int depth) {
    tn_onnx_kind kind = tn_onnx_value_kind(want);
    if (!got || tn_onnx_value_kind(got) != kind) return differs(v, "a value of another kind");
    if (kind != TN_ONNX_TENSOR && kind != TN_ONNX_STRINGS) return items_fit(v, got, want, depth);
    if (strcmp(tn_onnx_value_type(got), tn_onnx_value_type(want)) != 0)
        return differs(v, "type %s, expected %s", tn_onnx_value_type(got), tn_onnx_value_type(want));
    return kind == TN_ONNX_STRINGS ? texts_fit(v, got, want) : tensors_fit(v, got, want);
}

/* ---- one data set ------------------------------------------------------------------------------------------------ */

typedef struct data_set {
    const tn_onnx *model;
    const char *folder;
    int index, inputs, outputs;
    tn_onnx_value **in, **out, **want;
} data_set;

static bool exists(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0;
}

static tn_status load_value(const char *path, tn_onnx_kind kind, tn_onnx_value **out) {
    struct stat facts;
    FILE *f = fopen(path, "rb");
    char *bytes = NULL;
    size_t size = 0;
    bool good = f && fstat(fileno(f), &facts) == 0 && facts.st_size >= 0;
    if (good) {
        size = (size_t)facts.st_size;
        bytes = malloc(size + 1);
        good = bytes && fread(bytes, 1, size, f) == size;
    }
    if (f) fclose(f);
    tn_status status =
        good ? tn_onnx_value_decode(bytes, size, kind, out) : tn_backend_fail(TN_ERR_IO, "'%s' cannot be read", path);
    free(bytes);
    return status;
}

/* Reads input_J.pb or output_J.pb of the set; one that is not there stays NULL. */
static tn_status load_values(const data_set *s, bool outputs, tn_onnx_value **values) {
    for (int j = 0; j < (outputs ? s->outputs : s->inputs); j++) {
        char path[PATH];
        tn_onnx_info info = {.struct_size = sizeof info};
        tn_status status = (outputs ? tn_onnx_output_at : tn_onnx_input_at)(s->model, j, &info);
        snprintf(path, sizeof path, "%s/test_data_set_%d/%s_%d.pb", s->folder, s->index, outputs ? "output" : "input",
                 j);
        if (status == TN_OK && exists(path)) status = load_value(path, info.kind, &values[j]);
        if (status != TN_OK) return status;
    }
    return TN_OK;
}

static onnx_result run_set(const data_set *s, tn_onnx *model, verdict *v) {
    tn_status status = load_values(s, false, s->in);
    if (status == TN_OK) status = load_values(s, true, s->want);
    if (status == TN_OK) status = tn_onnx_run(model, s->in, s->out);
    if (status != TN_OK) {
        (void)differs(v, "%s", tn_error());
        return status == TN_ERR_UNSUPPORTED ? ONNX_SKIPPED : ONNX_FAILED;
    }
    for (int j = 0; j < s->outputs; j++) {
        if (!s->want[j]) continue;
        tn_onnx_info info = {.struct_size = sizeof info};
        if (tn_onnx_output_at(model, j, &info) != TN_OK) info.name = "?";
        v->used = (size_t)snprintf(v->why, v->size, "output %s: ", info.name);
        if (!values_fit(v, s->out[j], s->want[j], 0)) return ONNX_FAILED;
        v->used = 0;
        v->why[0] = 0;
    }
    return ONNX_PASSED;
}

static onnx_result run_in_room(data_set *s, tn_onnx *model, verdict *v, tn_onnx_value **room) {
    size_t all = (size_t)s->inputs + 2 * (size_t)s->outputs;
    s->in = room;
    s->out = s->in + s->inputs;
    s->want = s->out + s->outputs;
    onnx_result result = run_set(s, model, v);
    for (size_t i = 0; i < all; i++) {
        tn_onnx_value_free(room[i]);
        room[i] = NULL;
    }
    return result;
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

/* The number behind "key": in a short text of JSON; `otherwise` where there is none. */
static double case_number_of(const char *text, const char *key, double otherwise) {
    const char *at = strstr(text, key);
    at = at ? strchr(at, ':') : NULL;
    return at ? strtod(at + 1, NULL) : otherwise;
}

static onnx_tolerance tolerance_of(const char *folder, onnx_tolerance asked) {
    char path[PATH], text[1024] = "";
    snprintf(path, sizeof path, "%s/data.json", folder);
    FILE *f = fopen(path, "rb");
    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
    }
    if (asked.absolute < 0) asked.absolute = case_number_of(text, "\"atol\"", 1e-7);
    if (asked.relative < 0) asked.relative = case_number_of(text, "\"rtol\"", 1e-3);
    return asked;
}

static onnx_result run_sets(const char *folder, tn_onnx *model, verdict *v) {
    data_set s = {.model = model, .folder = folder};
    s.inputs = tn_onnx_input_count(model);
    s.outputs = tn_onnx_output_count(model);
    tn_onnx_value **room = calloc((size_t)s.inputs + 2 * (size_t)s.outputs + 1, sizeof(tn_onnx_value *));
    onnx_result result = ONNX_PASSED;
    if (!room) {
        (void)differs(v, "out of memory for the values");
        return ONNX_FAILED;
    }
    for (; result == ONNX_PASSED; s.index++) {
        char path[PATH];
        snprintf(path, sizeof path, "%s/test_data_set_%d", folder, s.index);
        if (!exists(path)) break;
        result = run_in_room(&s, model, v, room);
    }
    if (s.index == 0) {
        (void)differs(v, "the folder has no test_data_set_0");
        result = ONNX_FAILED;
    }
    free(room);
    return result;
}

onnx_result onnx_case_run(const char *folder, onnx_tolerance tolerance, bool recorded, char *why, size_t size) {
    verdict v = {.tolerance = tolerance_of(folder, tolerance), .why = why, .size = size};
    char path[PATH];
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    tn_onnx *model = NULL;
    o.recorded = recorded;
    why[0] = 0;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    tn_status status = tn_onnx_open(path, &o, &model);
    if (status != TN_OK) {
        (void)differs(&v, "%s", tn_error());
        return status == TN_ERR_UNSUPPORTED ? ONNX_SKIPPED : ONNX_FAILED;
    }
    onnx_result result = run_sets(folder, model, &v);
    tn_onnx_close(model);
    return result;
}
