/* certify.c — compares every operation of a device with its definition, and a device's exactness with what its driver
 * says.
 *
 * Values are compared with tn_reference_of, which walks the recorded nodes in f64, gradients too: a gradient is a graph
 * of operations like any other, so its definition is known as long as it has not been computed. That derivatives
 * themselves are right is another matter, which tests/ops/test_ops.c settles once for all devices. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/check.h"
#include "trunnion/certify.h"
#include "trunnion/trunnion.h"

/* Has the device the bits that exact ones have (kir/kir.h)? Else *exact is false and why names an operation. */
static tn_status device_try_exact(tn_device *d, uint64_t seed, bool *exact, char *why, size_t size);

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
    int64_t count = tn_product(in->shape, in->rank);
    bool blocks = tn_dtype_is_quantized(in->dtype);
    AUTO_FREE double *values = blocks ? NULL : tn_mem_zalloc((size_t)count + 1, sizeof *values);
    AUTO_FREE void *data = tn_mem_zalloc(1, tn_dtype_bytes(in->dtype, count) + 1);
    if (data && values) {
        tn_case_values(in, seed, values);
        tn_case_store(in->dtype, values, count, data);
    } else if (data && blocks) {
        tn_case_blocks(in, seed, data);
    }
    return tn_from_data(data, in->shape, in->rank, in->dtype); /* data NULL: an error tensor */
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

static void compare_elements(certify *m, const char *what, tn_dtype dtype, const double *got, const double *want,
                             int64_t n, allows *near, bool *good) {
    for (int64_t i = 0; i < n && *good; i++) {
        if (near(m->c, dtype, got[i], want[i])) continue;
        char text[160];
        snprintf(text, sizeof text, "%s: element %lld is %.9g, expected %.9g", what, (long long)i, got[i], want[i]);
        say(m, true, text);
        *good = false;
    }
}

/* Reads t from the device and compares it with its definition. TN_ERR_UNSUPPORTED: the device cannot compute it. */
static tn_status check(certify *m, const char *what, tn_tensor *t, allows *near, bool *good) {
    int64_t n = tn_numel(t);
    tn_dtype dtype = tn_dtype_of(t);
    size_t bytes = tn_dtype_bytes(dtype, n);
    AUTO_CALL(tn_reference_free) tn_reference_values v = {0};
    const double *want = NULL;
    AUTO_FREE double *got = tn_mem_zalloc((size_t)n + 1, sizeof *got);
    AUTO_FREE void *raw = tn_mem_zalloc(1, bytes + 1);
    if (!got || !raw) return TN_ERR_MEMORY;
    TRY(tn_reference_of(&v, tn_tensor_node(t), &want));
    TRY(tn_read(t, raw, bytes));
    tn_doubles_of(dtype, raw, n, got);
    compare_elements(m, what, dtype, got, want, n, near, good);
    return TN_OK;
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

static tn_tensor *record_case(const certify *m, int op) {
    return tn_record(op, (const tn_tensor *const *)m->in, m->c->n_in, &m->c->attrs);
}

static tn_status check_forward(certify *m, int op) {
    tn_status s = TN_OK;
    bool good = true;
    {
        TN_SCOPE;
        make_inputs(m);
        tn_tensor *y = record_case(m, op);
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
    tn_tensor *y = record_case(m, op);
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
            return tn_fail(TN_ERR_ARGUMENT, "certify: unknown operation '%.*s'; trunnion/ops.h declares the operations",
                           length, at);
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
static void list_failure(const tn_device *d, const tn_certify_op *op) {
    if (!d->is_cpu && (op->forward_failed || op->backward_failed)) (void)tn_certify_list_add(d, op->name, op->why);
}

/* The promise is tried by itself. One that is not kept is not believed any more, here and when the device is opened
 * again, until it passes. */
static tn_status certify_exact(tn_device *d, const tn_certify_options *o, certify *m) {
    bool good = false;
    tn_status s = device_try_exact(d, o->seed, &good, m->why, sizeof m->why);
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
    list_failure(d, &m.op);
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
    TRY(tn_need(device, "tn_certify: device"));
    TRY(tn_result_check(counts, "tn_certify: counts"));
    if (o.every < 1)
        return tn_fail(TN_ERR_ARGUMENT, "tn_certify: every is %lld; it must be at least 1", (long long)o.every);
    if (o.only) TRY(check_names(o.only));
    tn_device *before = tn_current_device();
    TRY(tn_set_current_device(device));
    tn_status s = certify_all(device, &o, &sum);
    tn_status back = tn_set_current_device(before);
    (void)tn_result_write(counts, &sum, sizeof sum, "tn_certify: counts");
    return s == TN_OK ? back : s;
}

/* ==== exactness of a device ======================================================================================= */
/* Bits are promised of exact devices alone (kir/kir.h), so a driver's word is worth trying: compilers contract, flush
 * denormals and divide by reciprocals unless they are told not to, and some do so all the same. */

enum { OPERANDS = 3, VALUES = 4096 };

/* The operations, in the order in which they are stored. */
static const struct {
    const char *name;
    int operands;
    kir_op op;
} ASKED[] = {
    {"division", 2, KIR_DIV}, {"the square root", 1, KIR_SQRT}, {"fma", 3, KIR_FMA},
    {"addition", 2, KIR_ADD}, {"multiplication", 2, KIR_MUL},   {"exp", 1, KIR_EXP},
};

static kir_val exact_result_of(kir_builder *b, size_t asked, const kir_val *x) {
    if (ASKED[asked].operands == 3) return kir_fma(b, x[0], x[1], x[2]);
    kir_op op = ASKED[asked].op;
    return ASKED[asked].operands == 1 ? kir_unary(b, op, x[0]) : kir_binary(b, op, x[0], x[1]);
}

/* results[k · VALUES + i] = operation k of the i-th values of each operand. */
static tn_status make_program(kir_program **p, int64_t **sizes) {
    kir_builder *b = NULL;
    kir_val x[OPERANDS];
    int64_t extent = VALUES;
    kir_aff at = kir_aff_const(0);
    TRY(kir_begin(1, 0, &extent, &b));
    at.s[0] = 1;
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    for (int k = 0; k < OPERANDS; k++) {
        at.c = k * VALUES;
        x[k] = kir_load(b, in, &at, KIR_NONE);
    }
    for (size_t k = 0; k < TN_COUNT(ASKED); k++) {
        at.c = (int64_t)k * VALUES;
        kir_store(b, out, &at, exact_result_of(b, k, x), KIR_NONE);
    }
    return kir_finish(b, p, sizes);
}

/* Each of the special values with each, then any bits, half of them of ordinary size. */
static void make_values(uint64_t seed, uint32_t *values) {
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807FFFFF, 0x00400000, 0x00800000,
                                       0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000, 0xBF800001,
                                       0x40490FDB, 0x34000000, 0x4B800001, 0xC2AEAC50};
    enum { COUNT = TN_COUNT(special) };
    for (size_t i = 0; i < OPERANDS * VALUES; i++) {
        uint64_t word[2] = {seed, i};
        uint32_t any = (uint32_t)tn_hash64(word, sizeof word, 7);
        values[i] = i % 2 ? any : (any & 0x87FFFFFF) | 0x38000000;
    }
    for (size_t i = 0; i < COUNT * COUNT; i++) {
        values[i] = special[i % COUNT];
        values[VALUES + i] = special[i / COUNT];
        values[2 * VALUES + i] = special[i * 7 % COUNT];
    }
}

static bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

static float exact_number_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static bool compare_exact(const uint32_t *values, const uint32_t *got, const uint32_t *want, char *why, size_t size) {
    for (size_t i = 0; i < TN_COUNT(ASKED) * VALUES; i++) {
        if (got[i] == want[i] || (is_nan(got[i]) && is_nan(want[i]))) continue;
        const uint32_t *x = values + i % VALUES;
        char of[96];
        int n = snprintf(of, sizeof of, "%.9g", (double)exact_number_of(x[0]));
        for (int k = 1; k < ASKED[i / VALUES].operands; k++)
            n += snprintf(of + n, sizeof of - (size_t)n, ", %.9g", (double)exact_number_of(x[k * VALUES]));
        snprintf(why, size,
                 "%s of %s is %.9g (%08x), expected %.9g (%08x): the driver reports exact results (caps.exact), but "
                 "the bits differ",
                 ASKED[i / VALUES].name, of, (double)exact_number_of(got[i]), got[i], (double)exact_number_of(want[i]),
                 want[i]);
        return false;
    }
    return true;
}

/* Operands to the device, the kernel, its results back. */
static tn_status run_there(tn_device *d, const kir_program *p, const int64_t *sizes, const uint32_t *values,
                           tn_buffer *const *memory, uint32_t *got) {
    tn_kernel *k = NULL;
    TRY(tn_buffer_write(memory[0], 0, values, OPERANDS * VALUES * sizeof *values));
    TRY(tn_kernel_get(d, p, &k));
    tn_launch launch = {.sizes = sizes, .buffers = (void *[]){memory[0]->address, memory[1]->address}};
    tn_status s = tn_kernel_launch(d, k, &launch, 1);
    if (s == TN_OK) s = tn_device_synchronize(d);
    tn_kernel_release(k);
    return s == TN_OK ? tn_buffer_read(memory[1], 0, got, TN_COUNT(ASKED) * VALUES * sizeof *got) : s;
}

static tn_status device_try_exact(tn_device *d, uint64_t seed, bool *exact, char *why, size_t size) {
    enum { RESULTS = TN_COUNT(ASKED) * VALUES };
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    tn_buffer *memory[2] = {NULL, NULL};
    TRY(make_program(&p, &sizes));
    uint32_t *values = tn_mem_zalloc(OPERANDS * VALUES + 2 * RESULTS, sizeof *values);
    uint32_t *got = values ? values + OPERANDS * VALUES : NULL, *want = values ? got + RESULTS : NULL;
    tn_status s = values ? tn_buffer_new(d, OPERANDS * VALUES * sizeof *values, &memory[0]) : TN_ERR_MEMORY;
    if (s == TN_OK) s = tn_buffer_new(d, RESULTS * sizeof *got, &memory[1]);
    if (s == TN_OK) {
        make_values(seed, values);
        s = kir_interpret(p, &(kir_launch){.sizes = sizes, .buffers = (void *[]){values, want}});
    }
    if (s == TN_OK) s = run_there(d, p, sizes, values, memory, got);
    *exact = s == TN_OK && compare_exact(values, got, want, why, size);
    tn_buffer_release(memory[0]);
    tn_buffer_release(memory[1]);
    tn_mem_free_each(values, sizes);
    kir_free(p);
    return s;
}
