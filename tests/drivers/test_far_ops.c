/* test_far_ops.c — every op of the table, forward and backward, on devices that have no native kernels, one with
 * workgroups (templates) and one without (plain programs): both yield what the cpu yields, to the bit but where this
 * file says why not.
 *
 * The far device (far_driver.h) runs plain programs on the tile VM and programs of workgroups on the interpreter. With
 * TRUNNION_TEST_DEVICE another device takes its place: then only the bounds of the cases count. */
#include "test_support.h"
#include "trial.h"

#include <math.h>

#include "cpu/isa.h"
#include "far_driver.h"
#include "tensor/graph.h"
#include "trunnion/trunnion.h"

static tn_device *there, *plain, *cpu; /* plain: far without workgroups, NULL when another device is tested */

/* Without workgroups these sum in one piece what the definition cuts in chunks. */
static const char *const near_only[] = {"cached_attention", "cached_attention_rows"};

/* Their gradients have a kernel on the cpu alone, and without workgroups so have all of them: its sums are cut in other
 * places than those of the products that other devices compute. */
static const char *const cpu_alone[] = {"attention_dense", "attention_dense_gradient", "scaled_dot_product_attention"};

/* `k`: 0 for the result, else a gradient. */
static bool may_differ(const tn_device *d, const char *name, int k) {
    for (size_t i = 0; i < TN_COUNT(cpu_alone); i++)
        if (strcmp(cpu_alone[i], name) == 0) return k > 0 || d == plain || !plain || strstr(name, "gradient");
    for (size_t i = 0; i < TN_COUNT(near_only); i++)
        if (d == plain && strcmp(near_only[i], name) == 0) return true;
    return !plain;
}

/* Factorizations are the host's, whatever the device: strict devices refuse them. */
static bool is_hosts(const char *name) { return strncmp(name, "linalg_", 7) == 0; }

static int open_devices(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    const char *name = getenv("TRUNNION_TEST_DEVICE");
    (void)tn_gemm_use_pairs(false); /* bf16 in pairs has other bits than other devices (docs/numerics.md) */
    if (make_scratch(state) != 0 || tn_device_open("cpu", &o, NULL, &cpu) != TN_OK) return -1;
    if (name) return tn_device_open(name, &o, NULL, &there) == TN_OK ? 0 : -1;
    there = far_open(0, NULL);
    far_nature_now.max_group = 1;
    plain = far_open(1, NULL);
    return 0;
}

static int close_devices(void **state) {
    tn_set_current_device(NULL);
    tn_device_close(there);
    tn_device_close(plain);
    tn_device_close(cpu);
    return remove_scratch(state);
}

/* ---- one case on one device -------------------------------------------------------------------------------------- */

typedef struct results {
    double *values[1 + TN_CASE_INPUTS]; /* of the result; of the gradients */
    int64_t count[1 + TN_CASE_INPUTS];
    tn_dtype dtype[1 + TN_CASE_INPUTS];
    int n;
} results;

static void results_free(results *r) {
    for (int i = 0; i < r->n; i++)
        free(r->values[i]);
}

static void keep(results *r, const trial *t, const tn_tensor *x) {
    if (tn_status_of(x) != TN_OK) {
        print_error("%s, case '%.*s': %s\n", tn_op(t->op)->name, t->c->length, t->c->text, tn_error());
        fail();
    }
    r->count[r->n] = tn_numel(x);
    r->dtype[r->n] = tn_dtype_of(x);
    r->values[r->n++] = trial_doubles(x);
}

/* The gradients of Σ y · weight with respect to all inputs that are f64 or f32. */
static void keep_gradients(results *r, trial *t, tn_tensor *y) {
    tn_tensor *leaf[TN_CASE_INPUTS], *grad[TN_CASE_INPUTS];
    int count = 0;
    for (int i = 0; i < t->c->n_in; i++)
        if (t->in[i] && tn_requires_grad(t->in[i])) leaf[count++] = t->in[i];
    if (!count || !tn_requires_grad(y)) return;
    int64_t n = tn_numel(y);
    double *w = calloc((size_t)n + 1, sizeof *w);
    tn_case_values(&(tn_case_input){.dtype = TN_F64, .rank = 1, .shape = {n}, .low = 0.5, .high = 1.5}, 99, w);
    tn_tensor *weight = trial_tensor(w, tn_shape(y), tn_rank(y), TN_F64);
    free(w);
    tn_tensor *sum = tn_sum(tn_mul(y, tn_cast(weight, tn_dtype_of(y))), TN_ALL, false);
    assert_ok(tn_gradients(&sum, 1, NULL, leaf, count, false, grad));
    for (int k = 0; k < count; k++)
        if (grad[k]) keep(r, t, grad[k]);
}

static void run_on(tn_device *d, trial *t, results *r) {
    assert_ok(tn_set_current_device(d));
    TN_SCOPE;
    trial_make_tensors(t, false);
    for (int i = 0; i < t->c->n_in; i++)
        if (t->in[i] && (t->c->in[i].dtype == TN_F64 || t->c->in[i].dtype == TN_F32) && t->c->gradient)
            assert_ok(tn_set_requires_grad(t->in[i], true));
    tn_tensor *y = trial_apply(t);
    keep(r, t, y);
    keep_gradients(r, t, y);
}

static bool same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

static void compare(const tn_device *d, const trial *t, const results *want, const results *got) {
    assert_int_equal(want->n, got->n);
    for (int k = 0; k < want->n; k++) {
        assert_int_equal(want->count[k], got->count[k]);
        for (int64_t i = 0; i < want->count[k]; i++) {
            double a = got->values[k][i], b = want->values[k][i];
            if (same_bits(a, b)) continue;
            if (may_differ(d, tn_op(t->op)->name, k) && tn_case_allows(t->c, want->dtype[k], a, b)) continue;
            print_error("%s, case '%.*s' with %s: element %lld of %s is %.17g, on the cpu %.17g\n", tn_op(t->op)->name,
                        t->c->length, t->c->text, tn_dtype_name(t->c->type), (long long)i,
                        k ? "a gradient" : "the result", a, b);
            fail();
        }
    }
}

static void check_refused(tn_device *d, trial *t) {
    bool refused = false;
    d->fallback = TN_FALLBACK_STRICT;
    assert_ok(tn_set_current_device(d));
    {
        TN_SCOPE;
        trial_make_tensors(t, false);
        tn_tensor *y = trial_apply(t);
        refused = tn_numel(y) == 0 || tn_eval(&y, 1) == TN_ERR_UNSUPPORTED;
    }
    if (!refused) fail_msg("%s: not refused by a strict device", tn_op(t->op)->name);
    d->fallback = TN_FALLBACK_SILENT;
}

static void check_on(tn_device *d, trial *t, const results *want) {
    results got = {0};
    run_on(d, t, &got);
    compare(d, t, want, &got);
    results_free(&got);
}

/* Appending to a q8_0 cache: the host writes its blocks. */
static bool appends_blocks(int op, const tn_case *c) {
    return strncmp(tn_op(op)->name, "cache_append", 12) == 0 && c->in[0].dtype == TN_U8;
}

static void an_op_yields_what_the_cpu_yields(void **state) {
    int op = (int)(intptr_t)*state;
    tn_case_reader r;
    tn_case c;
    bool more = true, refused = false;
    tn_cases_begin(&r, op);
    for (;;) {
        assert_ok(tn_cases_next(&r, &c, &more));
        if (!more) break;
        bool hosts = is_hosts(tn_op(op)->name) || appends_blocks(op, &c);
        for (uint64_t seed = 1; seed <= (test_is_full() ? 2 : 1) && !c.error[0]; seed++) {
            trial t = {.op = op, .c = &c, .seed = seed * 7919};
            results here = {0};
            trial_make_values(&t);
            run_on(cpu, &t, &here);
            if (hosts && !refused) check_refused(there, &t);
            if (hosts && !refused && plain) check_refused(plain, &t);
            refused |= hosts;
            check_on(there, &t, &here);
            if (plain) check_on(plain, &t, &here);
            results_free(&here);
            trial_free_values(&t);
        }
    }
    there->fallback = TN_FALLBACK_STRICT;
    if (plain) plain->fallback = TN_FALLBACK_STRICT;
}

static bool asked_for(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return argc < 2;
}

int main(int argc, char **argv) {
    static struct CMUnitTest tests[512];
    size_t count = 0;
    for (int op = 0; op < tn_op_count(); op++) {
        const tn_op_row *row = tn_op(op);
        if (!row->impl || !row->impl->cases || !asked_for(row->name, argc, argv)) continue;
        tests[count++] = (struct CMUnitTest){
            .name = row->name, .test_func = an_op_yields_what_the_cpu_yields, .initial_state = (void *)(intptr_t)op};
    }
    if (count == 0) return 1;
    return _cmocka_run_group_tests("every op far from the host", tests, count, open_devices, close_devices);
}
