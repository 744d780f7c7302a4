/* print.c — tensors as text, laid out as PyTorch's repr: four digits, one format for all elements, only the edges of
 * a tensor of more than 1000 elements. Source: torch/_tensor_str.py. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "functions/common.h"
#include "trunnion/backend.h"

enum { EDGE = 3, THRESHOLD = 1000, LINE = 80 };

/* Text that grows like snprintf's: what does not fit is only counted. */
typedef struct text {
    char *to;
    size_t size, length, line; /* line: where the last line began */
} text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t room = t->length < t->size ? t->size - t->length : 0;
    int n = vsnprintf(room ? t->to + t->length : NULL, room, format, args);
    va_end(args);
    t->length += n > 0 ? (size_t)n : 0;
}

static void new_lines(text *t, int count, int indent) {
    for (int i = 0; i < count; i++)
        put(t, "\n");
    t->line = t->length;
    put(t, "%*s", indent, "");
}

typedef union element {
    double f;
    int64_t i;
} element;

typedef struct printed {
    const element *data;
    const int64_t *shape;
    int rank;
    bool floats, truth, is_unsigned, summary, whole, scientific;
    int width;
} printed;

/* ---- one element ------------------------------------------------------------------------------------------------- */

static int element_text(const printed *p, element e, char *out, size_t size) {
    if (p->truth) return snprintf(out, size, "%s", e.i ? "True" : "False");
    if (!p->floats && p->is_unsigned) return snprintf(out, size, "%llu", (unsigned long long)(uint64_t)e.i);
    if (!p->floats) return snprintf(out, size, "%lld", (long long)e.i);
    if (isnan(e.f)) return snprintf(out, size, "nan");
    if (isinf(e.f)) return snprintf(out, size, "%sinf", e.f < 0 ? "-" : "");
    if (p->scientific) return snprintf(out, size, "%.4e", e.f);
    return p->whole ? snprintf(out, size, "%.0f.", e.f) : snprintf(out, size, "%.4f", e.f);
}

static void put_element(const printed *p, text *t, element e) {
    char one[400]; /* the greatest f64 in full has 309 digits */
    element_text(p, e, one, sizeof one);
    put(t, "%*s", p->width, one);
}

/* ---- the format of all ------------------------------------------------------------------------------------------- */

typedef void visit(printed *p, element e, double *range);

/* Calls f for the elements that are shown. */
static void each_shown(printed *p, int dim, int64_t first, visit *f, double *range) {
    int64_t n = dim < p->rank ? p->shape[dim] : 1, step = 1;
    for (int d = dim + 1; d < p->rank; d++)
        step *= p->shape[d];
    for (int64_t i = 0; i < n; i++) {
        if (p->summary && n > 2 * EDGE && i == EDGE) i = n - EDGE;
        if (dim + 1 >= p->rank)
            f(p, p->data[first + i * step], range);
        else
            each_shown(p, dim + 1, first + i * step, f, range);
    }
}

static void find_range(printed *p, element e, double *range) {
    if (!isfinite(e.f) || e.f == 0) return;
    if (e.f != ceil(e.f)) p->whole = false;
    range[0] = fmin(range[0], fabs(e.f));
    range[1] = fmax(range[1], fabs(e.f));
}

static void find_width(printed *p, element e, TN_UNUSED double *range) {
    char one[400];
    if (p->floats && (!isfinite(e.f) || e.f == 0)) return;
    int n = element_text(p, e, one, sizeof one);
    if (n > p->width) p->width = n;
}

static void choose_format(printed *p) {
    double range[2] = {INFINITY, 0};
    p->width = 1;
    if (p->floats) {
        p->whole = true;
        each_shown(p, 0, 0, find_range, range);
        bool any = range[1] > 0;
        p->scientific = any && (range[1] / range[0] > 1000 || range[1] > 1e8 || (!p->whole && range[0] < 1e-4));
    }
    each_shown(p, 0, 0, find_width, range);
}

/* ---- brackets and lines ------------------------------------------------------------------------------------------ */

static void put_row(const printed *p, text *t, int64_t first, int indent) {
    int64_t n = p->shape[p->rank - 1], a_line = (LINE - indent) / (p->width + 2), shown = 0;
    if (a_line < 1) a_line = 1;
    put(t, "[");
    for (int64_t i = 0; i < n; i++, shown++) {
        bool gap = p->summary && n > 2 * EDGE && i == EDGE;
        if (shown && shown % a_line == 0) {
            put(t, ",");
            new_lines(t, 1, indent + 1);
        } else if (shown) {
            put(t, ", ");
        }
        if (gap) {
            put(t, " ...");
            i = n - EDGE - 1;
        } else {
            put_element(p, t, p->data[first + i]);
        }
    }
    put(t, "]");
}

static void put_block(const printed *p, text *t, int dim, int64_t first, int indent) {
    if (p->rank == 0) {
        put_element(p, t, p->data[0]);
        return;
    }
    if (dim == p->rank - 1) {
        put_row(p, t, first, indent);
        return;
    }
    int64_t n = p->shape[dim], step = 1;
    for (int d = dim + 1; d < p->rank; d++)
        step *= p->shape[d];
    put(t, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i) {
            put(t, ",");
            new_lines(t, p->rank - dim - 1, indent + 1);
        }
        if (p->summary && n > 2 * EDGE && i == EDGE) {
            put(t, "...");
            i = n - EDGE - 1;
        } else {
            put_block(p, t, dim + 1, first + i * step, indent + 1);
        }
    }
    put(t, "]");
}

static void put_suffix(text *t, const char *suffix) {
    const size_t indent = 7; /* of "tensor(" */
    if (t->length - t->line + strlen(suffix) + 4 > LINE) {
        put(t, ",");
        new_lines(t, 1, (int)indent);
        put(t, "%s", suffix);
    } else {
        put(t, ", %s", suffix);
    }
}

static void put_empty(const printed *p, text *t) {
    char suffix[TN_MAX_RANK * 24] = "size=(";
    put(t, "[]");
    if (p->rank == 1) return;
    for (int d = 0; d < p->rank; d++)
        snprintf(suffix + strlen(suffix), sizeof suffix - strlen(suffix), "%s%lld", d ? ", " : "",
                 (long long)p->shape[d]);
    snprintf(suffix + strlen(suffix), sizeof suffix - strlen(suffix), ")");
    put_suffix(t, suffix);
}

/* ---- the functions ----------------------------------------------------------------------------------------------- */

/* All elements of x, in f64 or i64; NULL with *status set. */
static element *read_elements(const tn_tensor *x, bool floats, tn_status *status) {
    size_t count = (size_t)tn_numel(x);
    element *data = malloc((count + 1) * sizeof *data);
    TN_SCOPE;
    if (!data) {
        *status = tn_status_of(tn_failed(TN_ERR_MEMORY, "tensor_text: no memory for %zu elements", count));
        return NULL;
    }
    const tn_tensor *wide = tn_dtype_of(x) == TN_U64 ? tn_view_dtype(x, TN_I64) : tn_cast(x, floats ? TN_F64 : TN_I64);
    *status = tn_read(wide, data, count * sizeof *data);
    if (*status == TN_OK) return data;
    free(data);
    return NULL;
}

tn_status tn_tensor_text(const tn_tensor *x, char *to, size_t size, size_t *length) {
    TN_C_LOCALE;
    text t = {.to = to, .size = to ? size : 0};
    tn_status status = tn_status_of(x);
    if (length) *length = 0;
    if (to && size) *to = 0;
    if (status != TN_OK) return status;
    tn_dtype type = tn_dtype_of(x);
    printed p = {.shape = tn_shape(x),
                 .rank = tn_rank(x),
                 .floats = is_float(x),
                 .truth = type == TN_BOOL,
                 .is_unsigned = type == TN_U64,
                 .summary = tn_numel(x) > THRESHOLD};
    element *data = read_elements(x, p.floats, &status);
    if (!data) return status;
    p.data = data;
    put(&t, "tensor(");
    if (tn_numel(x) == 0) {
        put_empty(&p, &t);
    } else {
        choose_format(&p);
        put_block(&p, &t, 0, 0, 7);
    }
    if (tn_numel(x) == 0 ? type != TN_F32 : type != TN_F32 && type != TN_I64 && type != TN_BOOL) {
        char suffix[32];
        snprintf(suffix, sizeof suffix, "dtype=%s", tn_dtype_name(type));
        put_suffix(&t, suffix);
    }
    if (tn_requires_grad(x)) put_suffix(&t, "requires_grad=True");
    put(&t, ")");
    free(data);
    if (length) *length = t.length;
    return TN_OK;
}

tn_status tn_print(const tn_tensor *x) {
    size_t length = 0;
    tn_status status = tn_tensor_text(x, NULL, 0, &length);
    if (status != TN_OK) return status;
    char *all = malloc(length + 1);
    if (!all) {
        TN_SCOPE;
        return tn_status_of(tn_failed(TN_ERR_MEMORY, "print: no memory for %zu characters", length));
    }
    status = tn_tensor_text(x, all, length + 1, &length);
    if (status == TN_OK) printf("%s\n", all);
    free(all);
    return status;
}
