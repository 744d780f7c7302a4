/* certify.c — every operation on one device, compared with its definition (certify.h).
 *
 * Values are compared with tn_reference_of, which walks the recorded nodes in f64, gradients too: a gradient is a graph
 * of operations like any other, so its definition is known as long as it has not been computed. That derivatives
 * themselves are right is another matter, which tests/test_ops.c settles once for all devices. */
#include "trunnion/certify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/reference.h"
#include "ops/cases.h"
#include "trunnion/trunnion.h"

/* Bounds of a gradient, relative to its size, at least 1: a derivative is a few operations of the case's size, each
 * within the bound of its row. */
static const double GRADIENT_F64 = 1e-9, GRADIENT_F32 = 1e-4;

enum { WHY_BYTES = 400 };

typedef struct certify {
    tn_certify_op op;
    char why[WHY_BYTES];
    bool why_fails; /* the text is of a failure, not of a case left out */
    const tn_case *c;
    uint64_t seed;
    tn_tensor *in[TN_CASE_INPUTS];
} certify;

static void say(certify *m, bool fails, const char *what) {
    if (m->why[0] && (m->why_fails || !fails)) return;
    m->why_fails = fails;
    snprintf(m->why, sizeof m->why, "case '%.*s' with %s: %s", m->c->length, m->c->text, tn_dtype_name(m->c->type),
             what);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static tn_tensor *input_of(const tn_case_input *in, uint64_t seed) {
    int64_t count = 1;
    for (int d = 0; d < in->rank; d++)
        count *= in->shape[d];
    bool blocks = tn_dtype_is_quantized(in->dtype);
    double *values = blocks ? NULL : tn_mem_zalloc((size_t)count + 1, sizeof *values);
    void *data = tn_mem_zalloc(1, tn_dtype_bytes(in->dtype, count) + 1);
    if (data && values) {
        tn_case_values(in, seed, values);
        tn_case_store(in->dtype, values, count, data);
    } else if (data && blocks) {
        tn_case_blocks(in, seed, data);
    }
    tn_tensor *t = tn_from_data(data, in->shape, in->rank, in->dtype); /* data NULL: an error tensor */
    tn_mem_free(values);
    tn_mem_free(data);
    return t;
}

static void make_inputs(certify *m) {
    for (int i = 0; i < m->c->n_in; i++)
        m->in[i] = m->c->in[i].absent ? NULL : input_of(&m->c->in[i], m->seed + (uint64_t)i * 1000);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef bool allows(const tn_case *c, tn_dtype dtype, double got, double want);

static bool allows_gradient(const tn_case *c, tn_dtype dtype, double got, double want) {
    double bound = dtype == TN_F64 ? GRADIENT_F64 : GRADIENT_F32;
    return tn_case_allows(c, dtype, got, want) || fabs(got - want) <= bound * fmax(1, fabs(want));
}

static void compare_certify(certify *m, const char *what, tn_dtype dtype, const double *got, const double *want,
                            int64_t n, allows *near, bool *good) {
    for (int64_t i = 0; i < n && *good; i++) {
        if (near(m->c, dtype, got[i], want[i])) continue;
        char text[160];
        snprintf(text, sizeof text, "%s: element %lld is %.9g, it should be %.9g", what, (long long)i, got[i], want[i]);
        say(m, true, text);
        *good = false;
    }
}

/* Reads t from the device and compares it with its definition. TN_ERR_UNSUPPORTED: the device cannot compute it. */
static tn_status check(certify *m, const char *what, tn_tensor *t, allows *near, bool *good) {
    int64_t n = tn_numel(t);
    tn_dtype dtype = tn_dtype_of(t);
    size_t bytes = tn_dtype_bytes(dtype, n);
    tn_reference_values v = {0};
    const double *found = NULL;
    double *want = tn_mem_zalloc((size_t)n + 1, sizeof *want), *got = tn_mem_zalloc((size_t)n + 1, sizeof *got);
    void *raw = tn_mem_zalloc(1, bytes + 1);
    tn_status s = want && got && raw ? tn_reference_of(&v, tn_tensor_node(t), &found) : TN_ERR_MEMORY;
    if (s == TN_OK && n) memcpy(want, found, (size_t)n * sizeof *want);
    tn_reference_free(&v);
    if (s == TN_OK) s = tn_read(t, raw, bytes);
    if (s == TN_OK) {
        tn_doubles_of(dtype, raw, n, got);
        compare_certify(m, what, dtype, got, want, n, near, good);
    }
    tn_mem_free(want);
    tn_mem_free(got);
    tn_mem_free(raw);
    return s;
}

/* Counts what came of a check. Out of memory is the caller's matter, not the operation's. */
static tn_status settle(certify *m, tn_status s, bool good, int64_t *passed, int64_t *failed) {
    if (s == TN_ERR_MEMORY) return s;
    if (s == TN_ERR_UNSUPPORTED) {
        say(m, false, tn_error());
        m->op.skipped++;
        return TN_OK;
    }
    if (s != TN_OK) say(m, true, tn_error());
    *(s == TN_OK && good ? passed : failed) += 1;
    return TN_OK;
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

static tn_tensor *apply_certify(const certify *m, int op) {
    return tn_record(op, (const tn_tensor *const *)m->in, m->c->n_in, &m->c->attrs);
}

static tn_status check_forward(certify *m, int op) {
    tn_status s = TN_OK;
    bool good = true;
    {
        TN_SCOPE;
        make_inputs(m);
        tn_tensor *y = apply_certify(m, op);
        s = tn_status_of(y);
        if (s == TN_OK) s = check(m, "forward", y, tn_case_allows, &good);
    }
    return settle(m, s, good, &m->op.forward_passed, &m->op.forward_failed);
}

static bool moves(const tn_case_input *in) { return !in->absent && (in->dtype == TN_F64 || in->dtype == TN_F32); }

static tn_tensor *weights_like(const tn_tensor *y) {
    tn_case_input in = {.dtype = tn_dtype_of(y), .rank = tn_rank(y), .low = 0.5, .high = 1.5};
    memcpy(in.shape, tn_shape(y), (size_t)in.rank * sizeof *in.shape);
    return input_of(&in, 99);
}

/* *asked: there was a gradient to compare. */
static tn_status check_gradients(certify *m, int op, bool *asked, bool *good) {
    tn_tensor *leaf[TN_CASE_INPUTS], *grad[TN_CASE_INPUTS];
    int count = 0;
    make_inputs(m);
    for (int i = 0; i < m->c->n_in; i++)
        if (moves(&m->c->in[i])) leaf[count++] = m->in[i];
    for (int i = 0; i < count; i++)
        TRY(tn_set_requires_grad(leaf[i], true));
    tn_tensor *y = apply_certify(m, op);
    TRY(tn_status_of(y));
    *asked = count > 0 && tn_requires_grad(y) && tn_numel(y) > 0 && tn_dtype_is_float(tn_dtype_of(y));
    if (!*asked) return TN_OK;
    tn_tensor *dy = weights_like(y);
    TRY(tn_gradients(&y, 1, &dy, leaf, count, false, grad));
    tn_status s = TN_OK;
    for (int i = 0; i < count; i++) {
        if (s == TN_OK) s = check(m, "gradient", grad[i], allows_gradient, good);
        tn_free(grad[i]);
    }
    return s;
}

static tn_status check_backward(certify *m, int op) {
    tn_status s = TN_OK;
    bool asked = false, good = true;
    if (!m->c->gradient) return TN_OK;
    {
        TN_SCOPE;
        s = check_gradients(m, op, &asked, &good);
    }
    if (s == TN_OK && !asked) return TN_OK;
    return settle(m, s, good, &m->op.backward_passed, &m->op.backward_failed);
}

/* ---- one operation ----------------------------------------------------------------------------------------------- */

/* The first case always, of the others one in `every`. */
static bool taken(const tn_certify_options *o, int op, int64_t number) {
    if (number == 0 || o->every <= 1) return true;
    uint64_t word[3] = {o->seed, (uint64_t)op, (uint64_t)number};
    return tn_hash64(word, sizeof word, 0) % (uint64_t)o->every == 0;
}

static tn_status certify_op(int op, const tn_certify_options *o, certify *m) {
    tn_case_reader r;
    tn_case c;
    bool more = true;
    tn_cases_begin(&r, op);
    m->c = &c;
    for (int64_t number = 0;;) {
        TRY(tn_cases_next(&r, &c, &more));
        if (!more) return TN_OK;
        if (c.error[0]) continue; /* refusals are made before any device is asked */
        m->seed = o->seed + (uint64_t)number * 7919 + 1;
        if (!taken(o, op, number++)) continue;
        TRY(check_forward(m, op));
        TRY(check_backward(m, op));
    }
}

/* Is `name` among the names between commas? */
static bool listed(const char *names, const char *name) {
    size_t length = strlen(name);
    for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
    return false;
}

/* Not an operation: the driver's promise to compute them to the bit. */
static const char EXACT[] = "exact";

static tn_status check_names(const char *names) {
    for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',') {
        int length = (int)strcspn(at, ","), op = 0;
        if (length == (int)strlen(EXACT) && !strncmp(at, EXACT, strlen(EXACT))) continue;
        while (op < tn_op_count() && (strncmp(tn_op(op)->name, at, (size_t)length) != 0 || tn_op(op)->name[length]))
            op++;
        if (op == tn_op_count())
            return tn_fail(TN_ERR_ARGUMENT,
                           "certify: there is no operation '%.*s'; the header trunnion/ops.h declares them", length,
                           at);
    }
    return TN_OK;
}

static void add_up(tn_certify_counts *sum, const tn_certify_op *op) {
    sum->passed += op->forward_passed + op->backward_passed;
    sum->failed += op->forward_failed + op->backward_failed;
    sum->skipped += op->skipped;
}

static bool has_cases(const tn_certify_options *o, int op) {
    const tn_op_row *row = tn_op(op);
    if (o->only && !listed(o->only, row->name)) return false;
    return row->impl && row->impl->cases;
}

/* What failed runs on the processor from now on; what passes now may run on the device again. The processor itself has
 * nobody to leave work to. A list that cannot be kept is no reason to stop. */
static void note_certify(const tn_device *d, const tn_certify_op *op) {
    if (!d->is_cpu && (op->forward_failed || op->backward_failed)) (void)tn_certify_list_add(d, op->name, op->why);
}

/* The promise is tried by itself. One that is not kept is not believed any more, here and when the device is opened
 * again, until it passes. */
static tn_status certify_exact(tn_device *d, const tn_certify_options *o, certify *m) {
    bool good = false;
    tn_status s = tn_device_try_exact(d, o->seed, &good, m->why, sizeof m->why);
    if (s == TN_ERR_MEMORY) return s;
    if (s != TN_OK) snprintf(m->why, sizeof m->why, "%s", tn_error());
    *(s == TN_ERR_UNSUPPORTED ? &m->op.skipped : good ? &m->op.forward_passed : &m->op.forward_failed) += 1;
    if (good) (void)tn_certify_list_forget(d, EXACT);
    if (s != TN_ERR_UNSUPPORTED) d->caps.exact = good;
    return TN_OK;
}

/* One row of the report: an operation, or the promise when op is negative. */
static tn_status certify_row(tn_device *d, int op, const tn_certify_options *o, tn_certify_counts *counts, int done,
                             int total) {
    certify m = {.op = {.struct_size = sizeof m.op, .name = op < 0 ? EXACT : tn_op(op)->name}};
    m.op.why = m.why;
    if (op >= 0) (void)tn_certify_list_forget(d, m.op.name); /* else it would not be computed here */
    TRY(op < 0 ? certify_exact(d, o, &m) : certify_op(op, o, &m));
    note_certify(d, &m.op);
    add_up(counts, &m.op);
    if (o->found) o->found(o->ctx, &m.op, done, total);
    return TN_OK;
}

static tn_status certify_all(tn_device *d, const tn_certify_options *o, tn_certify_counts *counts) {
    bool promised = d->says_exact && (!o->only || listed(o->only, EXACT));
    int total = promised, done = 0;
    for (int op = 0; op < tn_op_count(); op++)
        total += has_cases(o, op);
    if (promised) TRY(certify_row(d, -1, o, counts, ++done, total));
    for (int op = 0; op < tn_op_count(); op++)
        if (has_cases(o, op)) TRY(certify_row(d, op, o, counts, ++done, total));
    return TN_OK;
}

tn_status tn_certify(tn_device *device, const tn_certify_options *options, tn_certify_counts *counts) {
    tn_certify_options o = TN_CERTIFY_DEFAULTS;
    tn_certify_counts sum = {.struct_size = sizeof sum};
    TRY(tn_options_read(&o, options, "tn_certify", "tn_certify_options o = TN_CERTIFY_DEFAULTS"));
    if (!device || !counts) return tn_fail(TN_ERR_ARGUMENT, "certify: %s is NULL", device ? "counts" : "device");
    if (o.every < 1)
        return tn_fail(TN_ERR_ARGUMENT, "tn_certify: every is %lld; it must be at least 1", (long long)o.every);
    if (o.only) TRY(check_names(o.only));
    tn_device *before = tn_current_device();
    TRY(tn_set_current_device(device));
    tn_status s = certify_all(device, &o, &sum);
    tn_status back = tn_set_current_device(before);
    size_t room = counts->struct_size, size = room < sizeof sum ? room : sizeof sum;
    memcpy(counts, &sum, size);
    counts->struct_size = room;
    return s == TN_OK ? back : s;
}
