/* test_rendered.c — kernels on the way from a program to a driver that takes source text: compiled once a structure and
 * machine, refused with words, launched in parts, in numbers and by several threads, with the bits of the interpreter.
 *
 * The device is OpenCL's in a wrapper that counts and fails (wrap_driver.h); what no compiler is needed for runs on far
 * memory. Without OpenCL the rest is left out, and says so. */
#include "test_support.h"

#include <dirent.h>
#include <pthread.h>

#include "drivers/drivers.h"
#include "far_driver.h"
#include "hal/kernel_code.h"
#include "tensor/graph.h"
#include "trunnion/trunnion.h"
#include "wrap_driver.h"

enum { POINTS = 1000 };

static const tn_driver *driver; /* wrapped; NULL: not here */

static int use(const tn_driver *inner, const char *id) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d;
    driver = NULL;
    wrap_reset();
    if (make_scratch(NULL) || setenv("TRUNNION_CACHE", test_scratch("cache"), 1)) return -1;
    if (id && tn_device_open(id, &o, NULL, &d) != TN_OK) return 0;
    if (id) tn_device_close(d);
    driver = wrap_driver(inner);
    if (!tn_backend_driver(driver->name)) assert_ok(tn_backend_register(driver));
    return 0;
}

static int use_opencl(void **state) {
    (void)state;
#if TRUNNION_WITH_OPENCL
    return use(&tn_driver_opencl, "opencl:0");
#else
    return use(NULL, "opencl:0");
#endif
}

static int use_vulkan(void **state) {
    (void)state;
#if TRUNNION_WITH_VULKAN
    return use(&tn_driver_vulkan, "vulkan:0");
#else
    return use(NULL, "vulkan:0");
#endif
}

static int use_far(void **state) {
    (void)state;
    return use(&far_driver, NULL);
}

static tn_device *open_wrapped(void) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    assert_ok(tn_device_open(driver->name, &o, NULL, &d));
    return d;
}

static void close_wrapped(tn_device *d) {
    tn_device_close(d);
    wrap_counts c = wrap_get_counts();
    assert_int_equal(c.devices + c.blocks + c.modules, 0);
}

/* y[i] = x[i] · runtime scalar + i · step, over n points. */
typedef struct scale {
    kir_program *p;
    int64_t *sizes;
} scale;

static scale scale_new(int64_t n, double step) {
    scale s;
    kir_builder *b;
    assert_ok(kir_begin(1, 0, &n, &b));
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    kir_aff at = kir_aff_const(0);
    at.s[0] = 1;
    kir_val x = kir_binary(b, KIR_MUL, kir_load(b, in, &at, KIR_NONE), kir_scalar_value(b, KIR_F32, 0));
    kir_val i = kir_binary(b, KIR_MUL, kir_cast(b, KIR_F32, kir_index(b, &at)), kir_const(b, KIR_F32, step));
    kir_store(b, out, &at, kir_binary(b, KIR_ADD, x, i), KIR_NONE);
    assert_ok(kir_finish(b, &s.p, &s.sizes));
    return s;
}

static void scale_free(scale *s) {
    kir_free(s->p);
    tn_mem_free(s->sizes);
}

static float scaled(float x, double scalar, int64_t i, double step) {
    float a = x * (float)scalar, b = (float)i * (float)step;
    return a + b;
}

static tn_buffer *numbers_on(tn_device *d, int64_t n, float first) {
    tn_buffer *b;
    float *v = malloc((size_t)n * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++)
        v[i] = first + (float)(i % 97);
    assert_ok(tn_buffer_new(d, (size_t)n * sizeof *v, &b));
    assert_ok(tn_buffer_write(b, 0, v, (size_t)n * sizeof *v));
    free(v);
    return b;
}

/* Runs it over x = first, first + 1, … and compares. */
static void run_scale(tn_device *d, const scale *s, int64_t n, double step, float first, double scalar) {
    tn_kernel *k;
    tn_buffer *x = numbers_on(d, n, first), *y = numbers_on(d, n, -1);
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    kir_scalar scalars[1] = {{.f = scalar}};
    tn_launch launch = {s->sizes, (void *[]){x->address, y->address}, scalars};
    assert_ok(tn_kernel_get(d, s->p, &k));
    assert_ok(tn_kernel_prepare(d, k, &launch, 1));
    assert_ok(tn_kernel_launch(d, k, &launch, 1));
    assert_ok(tn_buffer_read(y, 0, got, (size_t)n * sizeof *got));
    for (int64_t i = 0; i < n; i++)
        if (got[i] != scaled(first + (float)(i % 97), scalar, i, step))
            fail_msg("point %lld of %lld is %g", (long long)i, (long long)n, (double)got[i]);
    free(got);
    tn_kernel_release(k);
    tn_buffer_release(x);
    tn_buffer_release(y);
}

/* ---- compiled once ----------------------------------------------------------------------------------------------- */

static void run_once(void) {
    scale s = scale_new(POINTS, 0.5);
    tn_device *d = open_wrapped();
    wrap_reset();
    run_scale(d, &s, POINTS, 0.5, 1, 3);
    run_scale(d, &s, POINTS, 0.5, 2, 4); /* of the device's table */
    assert_int_equal(wrap_get_counts().of[WRAP_LOAD], 1);
    close_wrapped(d);
    scale_free(&s);
}

/* Changes one byte in the middle of each file of the kernels' folder. Returns their number. */
static int damage_cache(void) {
    int n = 0;
    DIR *folder = opendir(test_scratch("cache/kernels"));
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        char path[700];
        if (!strstr(e->d_name, ".kernel")) continue;
        snprintf(path, sizeof path, "%s/%s", test_scratch("cache/kernels"), e->d_name);
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        fseek(f, 0, SEEK_END);
        long middle = ftell(f) / 2;
        fseek(f, middle, SEEK_SET);
        int byte = fgetc(f);
        fseek(f, middle, SEEK_SET);
        fputc(byte ^ 1, f);
        fclose(f);
        n++;
    }
    if (folder) closedir(folder);
    return n;
}

static void compiled_kernels_are_found_on_disk(void **state) {
    (void)state;
    if (!driver) skip();
    run_once();
    assert_int_equal(wrap_get_counts().binaries, 0);
    run_once(); /* a device opened anew */
    assert_int_equal(wrap_get_counts().binaries, 1);
    assert_int_equal(damage_cache(), 1);
    run_once();
    assert_int_equal(wrap_get_counts().binaries, 0);
    run_once(); /* it was replaced */
    assert_int_equal(wrap_get_counts().binaries, 1);
}

static void a_binary_that_the_driver_refuses_is_compiled_anew(void **state) {
    (void)state;
    if (!driver) skip();
    run_once();
    scale s = scale_new(POINTS, 0.5);
    tn_device *d = open_wrapped();
    wrap_reset();
    wrap_now = (wrap_nature){.fail_kind = WRAP_LOAD, .fail_at = 1, .fail_with = TN_ERR_DEVICE};
    run_scale(d, &s, POINTS, 0.5, 1, 3);
    assert_int_equal(wrap_get_counts().of[WRAP_LOAD], 2);
    assert_int_equal(wrap_get_counts().binaries, 0);
    close_wrapped(d);
    scale_free(&s);
    run_once();
    assert_int_equal(wrap_get_counts().binaries, 1);
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

static void what_the_compiler_refuses_is_remembered_with_words(void **state) {
    (void)state;
    scale s = scale_new(8, 1), other = scale_new(8, 2);
    char name[TN_KERNEL_NAME];
    tn_kernel_answer a;
    tn_kernel *k;
    tn_device *d = open_wrapped();
    assert_true(tn_kernel_supported(d, s.p, s.sizes, &a));
    wrap_now = (wrap_nature){.fail_kind = WRAP_LOAD, .fail_at = 1, .fail_with = TN_ERR_UNSUPPORTED};
    assert_int_equal(tn_kernel_get(d, s.p, &k), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), tn_kernel_name(s.p, name));
    assert_text_has(tn_error(), "LOAD fails");
    assert_false(tn_kernel_supported(d, s.p, s.sizes, &a));
    assert_string_equal(a.code, "refused_by_compiler");
    int64_t loads = wrap_get_counts().of[WRAP_LOAD];
    assert_int_equal(tn_kernel_get(d, s.p, &k), TN_ERR_UNSUPPORTED); /* nobody is asked again */
    assert_int_equal(wrap_get_counts().of[WRAP_LOAD], loads);
    run_scale(d, &other, 8, 2, 1, 1);
    wrap_now = (wrap_nature){.fail_kind = WRAP_LOAD, .fail_at = 1, .fail_with = TN_ERR_DEVICE};
    scale third = scale_new(8, 3);
    assert_int_equal(tn_kernel_get(d, third.p, &k), TN_ERR_DEVICE); /* that may pass */
    assert_true(tn_kernel_supported(d, third.p, third.sizes, &a));
    run_scale(d, &third, 8, 3, 1, 1);
    close_wrapped(d);
    scale_free(&s);
    scale_free(&other);
    scale_free(&third);
}

static void what_failed_a_comparison_is_left_out(void **state) {
    (void)state;
    scale s = scale_new(8, 1);
    char name[TN_KERNEL_NAME];
    tn_kernel_answer a;
    tn_device *d = open_wrapped();
    assert_ok(tn_certify_list_add(d, tn_kernel_name(s.p, name), "wrong by 3"));
    assert_false(tn_kernel_supported(d, s.p, s.sizes, &a));
    assert_string_equal(a.code, "not_certified");
    assert_text_has(a.why, "wrong by 3");
    close_wrapped(d);
    scale_free(&s);
}

/* The sum of 1000 numbers. */
static scale long_sum_new(void) {
    scale s;
    kir_builder *b;
    assert_ok(kir_begin(1, 1, (int64_t[]){1, 1000}, &b));
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    kir_aff at = kir_aff_const(0), to = kir_aff_const(0);
    at.s[1] = 1;
    kir_loop(b, 1, 1);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_load(b, in, &at, KIR_NONE), KIR_NONE);
    kir_end(b);
    kir_store(b, out, &to, sum, KIR_NONE);
    assert_ok(kir_finish(b, &s.p, &s.sizes));
    return s;
}

static void loops_that_are_too_long_are_left_out(void **state) {
    (void)state;
    tn_kernel_answer a;
    scale s = long_sum_new();
    for (int64_t most = 1000; most <= 4000; most *= 4) {
        wrap_now = (wrap_nature){.max_loop = most};
        tn_device *d = open_wrapped();
        assert_int_equal(tn_kernel_supported(d, s.p, s.sizes, &a), most == 4000);
        assert_string_equal(a.code, most == 4000 ? "" : "loop_too_long");
        close_wrapped(d);
    }
    scale_free(&s);
}

static void limits_are_named(void **state) {
    (void)state;
    tn_kernel_answer a;
    scale s = scale_new(8, 1);
    wrap_now = (wrap_nature){.max_bindings = 1};
    tn_device *d = open_wrapped();
    assert_false(tn_kernel_supported(d, s.p, s.sizes, &a));
    assert_string_equal(a.code, "too_many_bindings");
    assert_string_equal(a.why, "binds at most 1 buffers; this kernel has 2");
    close_wrapped(d);
    wrap_now = (wrap_nature){.max_buffer = 2};
    d = open_wrapped();
    assert_true(tn_kernel_supported(d, s.p, NULL, &a)); /* some sizes fit */
    assert_false(tn_kernel_supported(d, s.p, s.sizes, &a));
    assert_string_equal(a.code, "buffer_too_large");
    close_wrapped(d);
    scale_free(&s);
}

/* y[i] = x[n[i]]: all of x must be bound, for nobody knows which of it is read. */
static void what_is_read_anywhere_is_within_reach(void **state) {
    (void)state;
    enum { X, Y, N };
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
    tn_kernel_answer a;
    assert_ok(kir_begin(1, 0, (int64_t[]){8}, &b));
    kir_aff each = {.s = {1}, .dyn = KIR_NONE}, any = {.c = 0};
    (void)kir_buffer(b, TN_F32);
    (void)kir_buffer(b, TN_F32);
    (void)kir_buffer(b, TN_I64);
    any.dyn = kir_load(b, N, &each, KIR_NONE);
    kir_store(b, Y, &each, kir_load(b, X, &any, KIR_NONE), KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    wrap_now = (wrap_nature){.max_buffer = 1 << 16};
    tn_device *d = open_wrapped();
    assert_true(tn_kernel_supported(d, p, sizes, &a));
    assert_true(tn_kernel_addresses(d, p, X, 1 << 12, false, &a));
    assert_false(tn_kernel_addresses(d, p, X, 1 << 17, false, &a));
    assert_string_equal(a.code, "buffer_too_large");
    assert_string_equal(a.why, "binds at most 65536 bytes at once; this kernel reads anywhere in 131072");
    assert_true(tn_kernel_addresses(d, p, Y, 1 << 17, false, &a));
    d->caps.joins = true;
    d->caps.max_bindings = 9; /* three to a buffer */
    assert_true(tn_kernel_addresses(d, p, X, 1 << 17, false, &a));
    d->caps.joins = false;
    d->caps.code = TN_CODE_SPIRV;
    assert_false(tn_kernel_addresses(d, p, X, 1 << 17, false, &a));
    d->caps.features |= TN_SPIRV_WINDOWS;
    assert_true(tn_kernel_addresses(d, p, X, 1 << 17, false, &a));
    assert_int_equal(p->windows[X], 3);                             /* the first may begin an alignment before */
    assert_false(tn_kernel_addresses(d, p, X, 1 << 20, false, &a)); /* 17 and two others are more than nine */
    assert_true(tn_kernel_addresses(d, p, Y, 1 << 17, true, &a));
    assert_int_equal(p->windows[X] + p->windows[Y], 4);
    assert_true(tn_kernel_addresses(d, p, N, 64, true, &a));
    assert_int_equal(p->windows[N], 1);
    close_wrapped(d);
    kir_free(p);
    tn_mem_free(sizes);
}

/* One element-wise tree of more operands than a kernel binds: it is computed in several kernels, none of them on the
 * host. */
static void many_operands_are_computed_in_parts(void **state) {
    (void)state;
    if (!driver) skip();
    enum { OPERANDS = 12, N = 50 };
    float data[N], got[N], want[N] = {0};
    wrap_now = (wrap_nature){.max_bindings = 4};
    tn_device *d = open_wrapped();
    assert_ok(tn_set_current_device(d));
    {
        TN_SCOPE;
        tn_tensor *sum = tn_zeros(TN_DIMS(N), TN_F32);
        for (int k = 0; k < OPERANDS; k++) {
            for (int i = 0; i < N; i++) {
                data[i] = (float)((i * 5 + k * 3) % 17);
                want[i] += data[i] * (float)(k + 1);
            }
            tn_tensor *x = tn_from_data(data, TN_DIMS(N), TN_F32);
            sum = tn_add(sum, tn_mul(x, tn_scalar(k + 1)));
        }
        assert_ok(tn_read(sum, got, sizeof got));
        assert_memory_equal(got, want, sizeof got);
    }
    assert_true(wrap_get_counts().dispatches >= 4); /* three operands each at most, beside the result */
    assert_ok(tn_set_current_device(NULL));
    tn_recorder_drop();
    tn_handles_drop();
    close_wrapped(d);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void small_limits_give_the_same_numbers(void **state) {
    (void)state;
    if (!driver) skip();
    enum { MANY = 100000 };
    static const wrap_nature natures[] = {
        {.max_groups_x = 3}, {.max_group = 16}, {.max_group = 1, .max_groups_x = 1000}, {.max_buffer = 8192}};
    for (size_t i = 0; i < TN_COUNT(natures); i++) {
        scale s = scale_new(MANY, 0.25);
        wrap_reset();
        wrap_now = natures[i];
        tn_device *d = open_wrapped();
        run_scale(d, &s, MANY, 0.25, 1, 3);
        int64_t dispatches = wrap_get_counts().dispatches;
        assert_true(natures[i].max_buffer ? dispatches > MANY * 4 / 8192 : dispatches == 1);
        close_wrapped(d);
        scale_free(&s);
    }
}

static void indices_of_both_widths(void **state) {
    (void)state;
    if (!driver) skip();
    for (int software = 0; software < 2; software++) { /* a processor's kernels are wide in any case */
        scale s = scale_new(POINTS, 0.5);
        tn_device *d = open_wrapped();
        d->info.software = software;
        run_scale(d, &s, POINTS, 0.5, 1, 3);
        close_wrapped(d);
        scale_free(&s);
    }
}

/* More launches in a call than fit into one of the driver's, each with runtime scalars of its own; one without any
 * point. */
static void many_launches_in_one_call(void **state) {
    (void)state;
    if (!driver) skip();
    enum { LAUNCHES = 150, EACH = 40 };
    scale s = scale_new(EACH, 0.5);
    tn_device *d = open_wrapped();
    tn_buffer *x = numbers_on(d, LAUNCHES * EACH, 1), *y = numbers_on(d, LAUNCHES * EACH, -1);
    static kir_scalar scalars[LAUNCHES];
    static void *buffers[LAUNCHES][2];
    static tn_launch launches[LAUNCHES];
    int64_t *none = tn_mem_zalloc(kir_sizes_count(s.p), sizeof *none);
    for (int i = 0; i < LAUNCHES; i++) {
        scalars[i].f = i;
        buffers[i][0] = (char *)x->address + (size_t)i * EACH * 4;
        buffers[i][1] = (char *)y->address + (size_t)i * EACH * 4;
        launches[i] = (tn_launch){i == 77 ? none : s.sizes, buffers[i], &scalars[i]};
    }
    tn_kernel *k;
    float got[LAUNCHES * EACH];
    assert_ok(tn_kernel_get(d, s.p, &k));
    wrap_reset();
    assert_ok(tn_kernel_launch(d, k, launches, LAUNCHES));
    assert_int_equal(wrap_get_counts().dispatches, LAUNCHES - 1);
    assert_true(wrap_get_counts().of[WRAP_DISPATCH] < LAUNCHES / 10);
    assert_ok(tn_buffer_read(y, 0, got, sizeof got));
    for (int i = 0; i < LAUNCHES; i++)
        for (int n = 0; n < EACH; n++) {
            int at = i * EACH + n;
            float want = i == 77 ? -1 + (float)(at % 97) : scaled(1 + (float)(at % 97), i, n, 0.5);
            if (got[at] != want) fail_msg("launch %d, point %d is %g", i, n, (double)got[at]);
        }
    tn_mem_free(none);
    tn_kernel_release(k);
    tn_buffer_release(x);
    tn_buffer_release(y);
    close_wrapped(d);
    scale_free(&s);
}

/* What a list's three kernels should have made of x: the first two write y, the third adds to it. */
static void check_list(tn_buffer *x, tn_buffer *y, double scalar) {
    float in[POINTS], got[POINTS];
    assert_ok(tn_buffer_read(x, 0, in, sizeof in));
    assert_ok(tn_buffer_read(y, 0, got, sizeof got));
    for (int64_t i = 0; i < POINTS; i++) {
        float want = scaled(scaled(scaled(in[i], scalar, i, 0.5), scalar, i, 0.5), scalar, i, 2);
        if (got[i] != want) fail_msg("point %lld is %g, not %g", (long long)i, (double)got[i], (double)want);
    }
}

/* y = x scaled, y = y scaled, y = y scaled by another kernel: in order, with other buffers and runtime scalars at each
 * run. */
static void lists_run_again_with_other_buffers(void **state) {
    (void)state;
    if (!driver) skip();
    static const wrap_nature natures[] = {{0}, {.max_buffer = 1024}, {0}};
    for (size_t n = 0; n < TN_COUNT(natures); n++) {
        scale s = scale_new(POINTS, 0.5), other = scale_new(POINTS, 2);
        wrap_reset();
        wrap_now = natures[n];
        tn_device *d = open_wrapped();
        tn_driver without_lists = *d->driver; /* the third time */
        without_lists.dispatch_list = NULL;
        if (n == 2) d->driver = &without_lists;
        tn_buffer *x[2] = {numbers_on(d, POINTS, 1), numbers_on(d, POINTS, 50)};
        tn_buffer *y[2] = {numbers_on(d, POINTS, -1), numbers_on(d, POINTS, -1)};
        tn_kernel *a, *b;
        assert_ok(tn_kernel_get(d, s.p, &a));
        assert_ok(tn_kernel_get(d, other.p, &b));
        kir_scalar scalars[1];
        void *first[2] = {x[0]->address, y[0]->address}, *again[2] = {y[0]->address, y[0]->address};
        tn_launch launches[3] = {{s.sizes, first, scalars}, {s.sizes, again, scalars}, {other.sizes, again, scalars}};
        tn_command_list *l;
        assert_ok(tn_command_list_new(d, &l));
        assert_ok(tn_command_list_add(l, a, &launches[0], 1));
        assert_ok(tn_command_list_add(l, a, &launches[1], 1));
        assert_ok(tn_command_list_add(l, b, &launches[2], 1));
        for (int run = 0; run < 4; run++) {
            first[0] = x[run % 2]->address;
            first[1] = again[0] = again[1] = y[run % 2]->address;
            scalars[0].f = run + 1;
            int64_t calls = wrap_get_counts().of[WRAP_DISPATCH_LIST];
            assert_ok(tn_command_list_run(l));
            bool listed = d->caps.code != TN_CODE_KIR && d->driver->dispatch_list;
            assert_int_equal(wrap_get_counts().of[WRAP_DISPATCH_LIST], calls + listed);
            check_list(x[run % 2], y[run % 2], run + 1);
        }
        tn_command_list_free(l);
        tn_kernel_release(a);
        tn_kernel_release(b);
        for (int i = 0; i < 2; i++) {
            tn_buffer_release(x[i]);
            tn_buffer_release(y[i]);
        }
        close_wrapped(d);
        scale_free(&s);
        scale_free(&other);
    }
}

/* Opens the device, loads a kernel, launches it alone and in a list. */
static tn_status all_of_it(const scale *s) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    tn_device *d = NULL;
    tn_kernel *k = NULL;
    tn_buffer *b = NULL;
    tn_command_list *l = NULL;
    kir_scalar scalars[1] = {{.f = 2}};
    TRY(tn_device_open(driver->name, &o, NULL, &d));
    tn_status status = tn_kernel_get(d, s->p, &k);
    if (status == TN_OK) status = tn_buffer_new(d, POINTS * sizeof(float), &b);
    tn_launch launch = {s->sizes, (void *[]){b ? b->address : NULL, b ? b->address : NULL}, scalars};
    if (status == TN_OK) status = tn_kernel_prepare(d, k, &launch, 1);
    if (status == TN_OK) status = tn_kernel_launch(d, k, &launch, 1);
    if (status == TN_OK) status = tn_command_list_new(d, &l);
    if (status == TN_OK) status = tn_command_list_add(l, k, &launch, 1);
    if (status == TN_OK) status = tn_command_list_run(l);
    tn_command_list_free(l);
    tn_kernel_release(k);
    tn_buffer_release(b);
    tn_device_close(d);
    return status;
}

static void every_failed_allocation_is_clean(void **state) {
    (void)state;
    if (!driver) skip();
    scale s = scale_new(POINTS, 0.5);
    assert_ok(all_of_it(&s)); /* what is made once a process is made now */
    int failed = 0;
    for (int64_t n = 1;; n++) {
        tn_mem_stats before = tn_mem_get_stats();
        tn_mem_fail_at(n);
        tn_status status = all_of_it(&s);
        tn_mem_fail_at(0);
        tn_mem_stats after = tn_mem_get_stats();
        bool fits = status == TN_OK || status == TN_ERR_MEMORY || status == TN_ERR_UNAVAILABLE;
        if (!fits || after.live_blocks != before.live_blocks)
            fail_msg("allocation %d fails: %s, %lld blocks more: %s", (int)n, tn_status_name(status),
                     (long long)(after.live_blocks - before.live_blocks), tn_error());
        failed += status != TN_OK;
        wrap_counts c = wrap_get_counts();
        assert_int_equal(c.devices + c.blocks + c.modules, 0);
        if (after.calls - before.calls < n) break;
        assert_true(n < 1000);
    }
    assert_true(failed > 5);
    scale_free(&s);
}

/* state ← 2 · state + softmax(x): captured, launched with other inputs each time; from the third run on by lists. */
static void captured_graphs_are_launched_as_lists(void **state) {
    (void)state;
    if (!driver) skip();
    enum { ROWS = 3, COLUMNS = 5, N = ROWS * COLUMNS, RUNS = 7 };
    float data[N] = {0}, want[RUNS][N], state_want[N], got[N];
    for (int here = 0; here < 2; here++) {
        tn_device *d = here ? open_wrapped() : NULL;
        assert_ok(d ? TN_OK : tn_device_open("cpu", NULL, NULL, &d));
        assert_ok(tn_set_current_device(d));
        wrap_reset();
        {
            TN_SCOPE;
            memset(data, 0, sizeof data);
            tn_tensor *kept = tn_zeros(TN_DIMS(ROWS, COLUMNS), TN_F32), *out = NULL;
            tn_graph *graph = NULL;
            assert_ok(tn_make_state(kept));
            tn_tensor *x = tn_from_data(data, TN_DIMS(ROWS, COLUMNS), TN_F32);
            assert_ok(tn_eval(NULL, 0));
            assert_ok(tn_capture_begin());
            tn_tensor *y = tn_softmax(tn_softmax(tn_softmax(x, -1), 0), -1);
            assert_ok(tn_status_of(tn_add_(tn_mul_(kept, tn_scalar(2)), y)));
            tn_tensor *z = tn_add(y, tn_scalar(1));
            assert_ok(tn_capture_end(&x, 1, &z, 1, &graph));
            for (int run = 0; run < RUNS; run++) {
                for (int i = 0; i < N; i++)
                    data[i] = (float)((i * 7 + run * 3) % 11);
                tn_tensor *next = tn_from_data(data, TN_DIMS(ROWS, COLUMNS), TN_F32);
                assert_ok(tn_graph_launch(graph, &next, &out));
                assert_ok(tn_read(out, here ? got : want[run], sizeof got));
                tn_free(out);
                if (here) assert_memory_equal(got, want[run], sizeof got);
            }
            assert_ok(tn_read(kept, here ? got : state_want, sizeof got));
            if (here) assert_memory_equal(got, state_want, sizeof got);
            tn_graph_free(graph);
        }
        if (here && d->caps.code != TN_CODE_KIR) assert_true(wrap_get_counts().of[WRAP_DISPATCH_LIST] >= RUNS - 3);
        assert_ok(tn_set_current_device(NULL));
        tn_recorder_drop();
        tn_handles_drop();
        if (here)
            close_wrapped(d);
        else
            tn_device_close(d);
    }
}

typedef struct worker {
    tn_device *device;
    const scale *s;
    int number, wrong;
} worker;

static void *launch_again_and_again(void *ctx) {
    worker *w = ctx;
    for (int round = 0; round < 40; round++) {
        tn_kernel *k;
        tn_buffer *x, *y;
        float v[POINTS], got[POINTS];
        kir_scalar scalars[1] = {{.f = w->number + round}};
        for (int i = 0; i < POINTS; i++)
            v[i] = (float)(i + w->number);
        if (tn_kernel_get(w->device, w->s->p, &k) || tn_buffer_new(w->device, sizeof v, &x) ||
            tn_buffer_new(w->device, sizeof v, &y)) {
            w->wrong++;
            break;
        }
        tn_launch launch = {w->s->sizes, (void *[]){x->address, y->address}, scalars};
        w->wrong += tn_buffer_write(x, 0, v, sizeof v) || tn_kernel_launch(w->device, k, &launch, 1) ||
                    tn_buffer_read(y, 0, got, sizeof got);
        for (int i = 0; i < POINTS; i++)
            w->wrong += got[i] != scaled(v[i], scalars[0].f, i, 0.5);
        tn_buffer_release(x);
        tn_buffer_release(y);
        tn_kernel_release(k);
    }
    return NULL;
}

static void threads_launch_one_kernel(void **state) {
    (void)state;
    if (!driver) skip();
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    worker workers[THREADS];
    scale s = scale_new(POINTS, 0.5);
    tn_device *d = open_wrapped();
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){d, &s, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, launch_again_and_again, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(workers[i].wrong, 0);
    printf("ran on: %s (%s)\n", d->info.id, d->info.name);
    close_wrapped(d);
    scale_free(&s);
}

int main(void) {
#define ON_FAR(f) cmocka_unit_test_setup_teardown(f, use_far, remove_scratch)
#define ON_OPENCL(f) cmocka_unit_test_setup_teardown(f, use_opencl, remove_scratch)
#define ON_VULKAN(f) cmocka_unit_test_setup_teardown(f, use_vulkan, remove_scratch)
    const struct CMUnitTest tests[] = {
        ON_FAR(what_the_compiler_refuses_is_remembered_with_words),
        ON_FAR(what_failed_a_comparison_is_left_out),
        ON_FAR(limits_are_named),
        ON_FAR(what_is_read_anywhere_is_within_reach),
        ON_FAR(loops_that_are_too_long_are_left_out),
        ON_FAR(threads_launch_one_kernel),
        ON_OPENCL(compiled_kernels_are_found_on_disk),
        ON_OPENCL(a_binary_that_the_driver_refuses_is_compiled_anew),
        ON_OPENCL(many_operands_are_computed_in_parts),
        ON_OPENCL(small_limits_give_the_same_numbers),
        ON_OPENCL(indices_of_both_widths),
        ON_OPENCL(many_launches_in_one_call),
        ON_FAR(captured_graphs_are_launched_as_lists),
        ON_OPENCL(captured_graphs_are_launched_as_lists),
        ON_FAR(every_failed_allocation_is_clean),
        ON_OPENCL(every_failed_allocation_is_clean),
        ON_FAR(lists_run_again_with_other_buffers),
        ON_OPENCL(lists_run_again_with_other_buffers),
        ON_OPENCL(threads_launch_one_kernel),
        ON_VULKAN(small_limits_give_the_same_numbers),
        ON_VULKAN(indices_of_both_widths),
        ON_VULKAN(many_launches_in_one_call),
        ON_VULKAN(captured_graphs_are_launched_as_lists),
        ON_VULKAN(every_failed_allocation_is_clean),
        ON_VULKAN(lists_run_again_with_other_buffers),
        ON_VULKAN(threads_launch_one_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
