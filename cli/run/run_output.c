/* run_output.c — the outputs of an ONNX network: shown as numbers, ranked by class, written as NumPy files.
 *
 * Small outputs are shown whole, larger ones as a summary. Output names come from the model file and are not trusted:
 * they never choose the folder. */
#define TN_NO_CALLER_LINES 1 /* errors name nodes; a line of this file would tell nothing */
#include "cli/run/run.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/run/npy.h"
#include "trunnion/backend.h"
#include "trunnion/ops.h"

enum {
    SMALL = 64,       /* values that are shown whole */
    FIRST = 8,        /* of a larger output */
    MOST_RANKED = 16, /* rows whose classes are printed */
    NAME_BYTES = 200, /* of a file's name, which may have 255 */
    MOST_LABELS = 1 << 24
};

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* An output's numbers; exactly one of the arrays is there. */
typedef struct numbers {
    double *reals;
    int64_t *wholes, count;
} numbers;

static bool read_numbers(const tn_onnx_value *v, numbers *n) {
    *n = (numbers){0};
    tn_tensor *t = tn_onnx_value_kind(v) == TN_ONNX_TENSOR ? tn_onnx_value_get(v) : NULL;
    if (!t) return false;
    bool real = tn_dtype_is_float(tn_dtype_of(t));
    tn_tensor *cast = tn_cast(t, real ? TN_F64 : TN_I64);
    n->count = tn_numel(t);
    size_t bytes = (size_t)n->count * sizeof(double);
    void *room = malloc(bytes + 1);
    bool good = room && tn_read(cast, room, bytes) == TN_OK;
    tn_free(cast);
    if (!good) {
        free(room);
        return false;
    }
    if (real)
        n->reals = room;
    else
        n->wholes = room;
    return true;
}

static void free_numbers(numbers *n) {
    free(n->reals);
    free(n->wholes);
}

static double number_at(const numbers *n, int64_t i) { return n->reals ? n->reals[i] : (double)n->wholes[i]; }

static void print_number(const numbers *n, int64_t i) {
    if (n->reals)
        printf(" %.6g", n->reals[i]);
    else
        printf(" %lld", (long long)n->wholes[i]);
}

typedef struct summary {
    double least, most, mean;
    int64_t not_finite;
} summary;

static summary summarise(const numbers *n) {
    summary s = {INFINITY, -INFINITY, 0, 0};
    for (int64_t i = 0; i < n->count; i++) {
        double v = number_at(n, i);
        if (!isfinite(v)) {
            s.not_finite++;
            continue;
        }
        s.least = fmin(s.least, v);
        s.most = fmax(s.most, v);
        s.mean += v;
    }
    s.mean = n->count > s.not_finite ? s.mean / (double)(n->count - s.not_finite) : NAN;
    return s;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

tn_status run_top_open(run_top *t) {
    if (!t->path) return TN_OK;
    unsigned char *bytes;
    size_t size;
    TRY(npy_load(t->path, &bytes, &size));
    t->text = malloc(size + 1);
    t->labels = malloc((size < MOST_LABELS ? size + 1 : MOST_LABELS) * sizeof *t->labels);
    if (t->text && t->labels) {
        memcpy(t->text, bytes, size);
        t->text[size] = 0;
    }
    free(bytes);
    if (!t->text || !t->labels) return tn_backend_fail(TN_ERR_MEMORY, "out of memory for the labels of '%s'", t->path);
    for (char *at = t->text, *end; *at && t->label_count < MOST_LABELS; at = end) {
        end = at + strcspn(at, "\n");
        t->labels[t->label_count++] = at;
        if (*end) *end++ = 0;
        char *last = at + strlen(at);
        if (last > at && last[-1] == '\r') last[-1] = 0;
    }
    return TN_OK;
}

void run_top_close(run_top *t) {
    free(t->text);
    free(t->labels);
    tn_json_free(t->config);
}

/* Classes stand along the last axis that is longer than 1: [1, 1000], [8, 1000], [1, 1000, 1, 1]. 0: there is none. */
static int64_t classes_of(const tn_onnx_value *v) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape);
    if (tn_onnx_value_kind(v) != TN_ONNX_TENSOR || !tn_dtype_is_float(tn_dtype_of(tn_onnx_value_get(v)))) return 0;
    for (int d = rank - 1; d >= 0; d--)
        if (shape[d] != 1) return shape[d];
    return 0;
}

tn_status run_top_check(const run_top *t, const tn_onnx *m, tn_onnx_value **out) {
    int64_t classes = 0;
    for (int k = 0; k < tn_onnx_output_count(m) && t->count; k++) {
        int64_t n = classes_of(out[k]);
        if (n && (!t->path || n == t->label_count)) return TN_OK;
        if (n) classes = n;
    }
    if (!t->count) return TN_OK;
    if (!classes)
        return tn_backend_fail(TN_ERR_ARGUMENT, "--top requires an output of floating-point values, one per class");
    return tn_backend_fail(TN_ERR_ARGUMENT, "--labels: '%s' has %lld lines, but the output has %lld classes", t->path,
                           (long long)t->label_count, (long long)classes);
}

int64_t run_next_largest(const double *row, int64_t count, int64_t last) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        bool after = last < 0 || row[i] < row[last] || (row[i] == row[last] && i > last);
        if (after && !isnan(row[i]) && (best < 0 || row[i] > row[best])) best = i;
    }
    return best;
}

void run_put_label(const char *label) {
    char *shown = strdup(label);
    for (char *at = shown; at && *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127) *at = '?';
    cli_print(stdout, "%s\n", shown ? shown : "");
    free(shown);
}

static void rank_text(const numbers *n, int64_t classes, const run_top *top) {
    int64_t rows = n->count / classes;
    for (int64_t r = 0; r < rows && r < MOST_RANKED; r++) {
        const double *row = n->reals + r * classes;
        int64_t at = -1;
        if (rows > 1) printf("  row %lld\n", (long long)r);
        for (int64_t i = 0; i < top->count && (at = run_next_largest(row, classes, at)) >= 0; i++) {
            printf("  %8lld  %.6g  ", (long long)at, row[at]);
            run_put_label(classes == top->label_count ? top->labels[at] : "");
        }
    }
    if (rows > MOST_RANKED) printf("  … %lld more rows; --json has all\n", (long long)(rows - MOST_RANKED));
}

static void rank_json(cli_json *j, const numbers *n, int64_t classes, const run_top *top) {
    cli_json_write(j, "'top': [");
    for (int64_t r = 0; r < n->count / classes; r++) {
        const double *row = n->reals + r * classes;
        int64_t at = -1;
        cli_json_write(j, "[");
        for (int64_t i = 0; i < top->count && (at = run_next_largest(row, classes, at)) >= 0; i++) {
            cli_json_write(j, "{'index': %jd, 'value': %g", at, row[at]);
            if (classes == top->label_count) cli_json_write(j, "'label': %s", top->labels[at]);
            cli_json_write(j, "}");
        }
        cli_json_write(j, "]");
    }
    cli_json_write(j, "]");
}

static bool is_ranked(const run_top *top, const tn_onnx_value *v) {
    int64_t classes = top->count ? classes_of(v) : 0;
    return classes && (!top->path || classes == top->label_count);
}

/* ---- showing ----------------------------------------------------------------------------------------------------- */

static void describe_output(const tn_onnx_value *v, char *text, size_t size) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape), n = 0;
    if (rank < 0) {
        snprintf(text, size, "%lld values", (long long)tn_onnx_value_count(v));
        return;
    }
    n = snprintf(text, size, "%s [", tn_onnx_value_type(v));
    for (int d = 0; d < rank; d++)
        n += snprintf(text + n, size - (size_t)n, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(text + n, size - (size_t)n, "]");
}

/* A line for each row of the last axis. */
static void print_whole(const numbers *n, const tn_onnx_value *v) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape);
    int64_t width = rank > 0 && shape[rank - 1] > 0 ? shape[rank - 1] : 1;
    for (int64_t i = 0; i < n->count; i++) {
        if (i % width == 0) printf(" ");
        print_number(n, i);
        if ((i + 1) % width == 0) printf("\n");
    }
}

static void print_summary(const numbers *n) {
    summary s = summarise(n);
    printf("  min %.6g, max %.6g, mean %.6g", s.least, s.most, s.mean);
    if (s.not_finite) printf(", %lld NaN or infinite", (long long)s.not_finite);
    printf("; first values");
    for (int64_t i = 0; i < FIRST; i++)
        print_number(n, i);
    printf("\n");
}

void run_output_text(const char *name, const tn_onnx_value *v, const run_top *top) {
    char text[256];
    numbers n;
    describe_output(v, text, sizeof text);
    printf("%s: %s\n", name, text);
    if (!read_numbers(v, &n)) return;
    if (is_ranked(top, v))
        rank_text(&n, classes_of(v), top);
    else if (n.count <= SMALL)
        print_whole(&n, v);
    else
        print_summary(&n);
    free_numbers(&n);
}

static void put_values(cli_json *j, const numbers *n) {
    if (n->count > SMALL) {
        summary s = summarise(n);
        cli_json_write(j, "'min': %g, 'max': %g, 'mean': %g, 'not_finite': %jd", s.least, s.most, s.mean, s.not_finite);
        return;
    }
    cli_json_write(j, "'values': [");
    for (int64_t i = 0; i < n->count; i++)
        if (n->reals)
            cli_json_write(j, "%g", n->reals[i]);
        else
            cli_json_write(j, "%jd", n->wholes[i]);
    cli_json_write(j, "]");
}

void run_output_json(cli_json *j, const char *name, const tn_onnx_value *v, const run_top *top, const char *file) {
    int64_t shape[TN_MAX_RANK];
    int rank = tn_onnx_value_shape(v, shape);
    tn_tensor *t = tn_onnx_value_kind(v) == TN_ONNX_TENSOR ? tn_onnx_value_get(v) : NULL;
    numbers n;
    cli_json_write(j, "%s: {'shape': [", name);
    for (int d = 0; d < rank; d++)
        cli_json_write(j, "%jd", shape[d]);
    cli_json_write(j, "], 'dtype': %s", t ? tn_dtype_name(tn_dtype_of(t)) : tn_onnx_value_type(v));
    if (file && t) cli_json_write(j, "'file': %s", file);
    if (read_numbers(v, &n)) {
        put_values(j, &n);
        if (is_ranked(top, v)) rank_json(j, &n, classes_of(v), top);
        free_numbers(&n);
    }
    cli_json_write(j, "}");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A name that is one visible file of any folder: no separators, no leading dot, no control characters. */
static void safe_name(const char *name, char *out, size_t size) {
    snprintf(out, size, "%s", *name ? name : "_");
    for (char *c = out; *c; c++)
        if (*c == '/' || *c == '\\' || (c == out && *c == '.') || iscntrl((unsigned char)*c)) *c = '_';
}

static const char *output_name_of(const tn_onnx *m, int k) {
    tn_onnx_info info = {.struct_size = sizeof info};
    return tn_onnx_output_at(m, k, &info) == TN_OK ? info.name : "";
}

void run_output_file(const tn_onnx *m, int k, char *out, size_t size) {
    char name[NAME_BYTES], other[NAME_BYTES];
    int before = 0;
    safe_name(output_name_of(m, k), name, sizeof name);
    for (int i = 0; i < k; i++) {
        safe_name(output_name_of(m, i), other, sizeof other);
        before += strcmp(name, other) == 0;
    }
    if (before)
        snprintf(out, size, "%s.%d.npy", name, before + 1);
    else
        snprintf(out, size, "%s.npy", name);
}

static tn_status write_one(const char *path, const tn_tensor *t) {
    cli_output out;
    TRY(cli_output_begin(&out, path));
    tn_status status = npy_write(out.file, path, t);
    if (status == TN_OK) return cli_output_commit(&out);
    cli_output_abandon(&out);
    return status;
}

tn_status run_output_check(const char *folder) {
    char path[CLI_PATH];
    if (!folder || !cli_is_folder(folder)) return cli_output_check(folder);
    if (snprintf(path, sizeof path, "%s/output.npy", folder) < (int)sizeof path) return cli_output_check(path);
    return tn_backend_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", folder);
}

tn_status run_output_write(const tn_onnx *m, tn_onnx_value **out, const char *folder) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return tn_backend_fail(TN_ERR_IO, "cannot create the folder '%s': %s", folder, strerror(errno));
    for (int k = 0; k < tn_onnx_output_count(m); k++) {
        char name[NAME_BYTES + 32], path[CLI_PATH];
        if (tn_onnx_value_kind(out[k]) != TN_ONNX_TENSOR) continue; /* NumPy has no file for it */
        run_output_file(m, k, name, sizeof name);
        if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
            return tn_backend_fail(TN_ERR_ARGUMENT, "the path '%s' is too long", folder);
        TRY(write_one(path, tn_onnx_value_get(out[k])));
    }
    return TN_OK;
}
