/* test_webgpu.c — the WebGPU driver alone, on the first WebGPU adapter of this machine: memory, kernels, launches,
 * which buffers share a binding, errors.
 *
 * The kernels here are written by hand, as kernels are rendered, but without a head (kir/render.h), for the driver puts
 * its own there. */
#include "axpy.h"
#include "drivers/drivers.h"
#include "drivers/webgpu_device.h"
#include "test_support.h"

static const tn_driver *webgpu = &tn_driver_webgpu;
static void *device; /* webgpu:0 */
static tn_device_info info;

/* out[i] = x[i] · scale + y[i] for n elements; the bases are bytes. */
static const char AXPY[] = "@compute @workgroup_size(64) fn axpy(@builtin(global_invocation_id) id: vec3<u32>) {\n"
                           "    let i = id.x;\n"
                           "    if (i >= p[0].x) { return; }\n"
                           "    let a = bitcast<f32>(word0(p[1].x / 4u + i));\n"
                           "    let b = bitcast<f32>(word1(p[1].z / 4u + i));\n"
                           "    put2(p[2].x / 4u + i, bitcast<u32>(a * bitcast<f32>(p[0].z) + b));\n"
                           "}\n";

static const bool LAST_WRITTEN[] = {false, false, true};

static tn_code axpy_code(void) { return axpy_of(TN_CODE_WGSL, AXPY, LAST_WRITTEN); }

static int open_device(void **state) {
    (void)state;
    tn_device_options options = TN_DEVICE_DEFAULTS;
    tn_probe probe = {.struct_size = sizeof probe, .devices = &info, .capacity = 1};
    webgpu->probe(&probe);
    tn_status s = webgpu->open(0, &options, &device);
    if (s != TN_OK) {
        printf("skipped: no WebGPU device: %s\n", tn_error());
        device = NULL;
    }
    return 0;
}

static int close_device(void **state) {
    (void)state;
    if (device) webgpu->close(device);
    return 0;
}

static void *alloc(size_t bytes) { return alloc_on(webgpu, device, bytes); }

static void *load(const tn_code *code) {
    void *module = NULL;
    assert_ok(webgpu->load(device, code, &module));
    return module;
}

#define NEEDS_DEVICE \
    (void)state;     \
    if (!device) skip()

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void addresses_can_be_offset(void **state) {
    NEEDS_DEVICE;
    addresses_are_offset(webgpu, device);
}

/* Any bytes to any place, in pieces that are larger and smaller than what is copied at once; all around stays. */
static void bytes_go_from_any_place_to_any(void **state) {
    NEEDS_DEVICE;
    enum { LONG = 3 << 20, ROOM = LONG + 4096 };
    static const size_t sizes[] = {1, 2, 3, 4, 5, 63, 1000, LONG - 5, LONG};
    unsigned char *host = malloc(ROOM), *back = malloc(ROOM);
    assert_true(host && back);
    for (size_t i = 0; i < ROOM; i++)
        host[i] = (unsigned char)(i * 2654435761u >> 13);
    char *a = alloc(2 * ROOM), *b = alloc(ROOM);
    for (size_t k = 0; k < TN_COUNT(sizes); k++)
        for (size_t from = 0; from < 4; from++)
            for (size_t to = 0; to<4; to += sizes[k]> 1000 ? 3 : 1) {
                size_t n = sizes[k];
                assert_ok(webgpu->copy(device, a, host, ROOM, 0));
                assert_ok(webgpu->fill(device, b, 0xAB, ROOM));
                assert_ok(webgpu->copy(device, b + 8 + to, a + from, n, 2));      /* to another block */
                assert_ok(webgpu->copy(device, a + ROOM + to, b + 8 + to, n, 2)); /* back */
                assert_ok(webgpu->copy(device, a + from + ROOM, a + ROOM + to, 0, 2));
                assert_ok(webgpu->copy(device, back, b, ROOM, 1));
                assert_memory_equal(back + 8 + to, host + from, n);
                for (size_t i = 0; i < 8 + to; i++)
                    assert_int_equal(back[i], 0xAB);
                assert_int_equal(back[8 + to + n], 0xAB);
                assert_ok(webgpu->copy(device, a + ROOM + 2 * n % 64 / 16 * 16, a + from, n, 2)); /* within a block */
                assert_ok(webgpu->copy(device, back, a + ROOM + 2 * n % 64 / 16 * 16, n, 1));
                assert_memory_equal(back, host + from, n);
            }
    free(host);
    free(back);
    webgpu->free(device, a);
    webgpu->free(device, b);
}

static void too_much_memory_is_refused(void **state) {
    NEEDS_DEVICE;
    tn_caps caps = {.struct_size = sizeof caps};
    void *address = NULL;
    assert_ok(webgpu->caps(device, &caps));
    assert_int_equal(webgpu->alloc(device, (size_t)1 << 60, &address), TN_ERR_MEMORY);
    assert_int_equal(webgpu->alloc(device, SIZE_MAX, &address), TN_ERR_MEMORY);
    webgpu->free(device, alloc(0));
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static void run_axpy(void *module, char *x, char *y, char *out, size_t base) {
    axpy_run(webgpu, device, module, x, y, out, base);
}

/* Buffers in allocations of their own, in one, in each other's place, the same one twice. */
static void buffers_may_share_and_overlap(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = load(&code);
    char *one = alloc(1 << 16), *two = alloc(1 << 16), *three = alloc(1 << 16);
    run_axpy(module, one, two, three, 40);
    run_axpy(module, one + 64, two + 128, two + 8192, 40); /* beside each other */
    run_axpy(module, one + 64, one + 8192, one + 16384, 0);
    run_axpy(module, one, two, one, 0); /* in place */
    run_axpy(module, one, two, two, 0);
    run_axpy(module, one, one, two, 0); /* x + x */
    run_axpy(module, one, one, one, 0); /* all of it */
    assert_ok(webgpu->sync(device));
    webgpu->unload(device, module);
    webgpu->free(device, one);
    webgpu->free(device, two);
    webgpu->free(device, three);
    printf("ran on: webgpu:0 (%s%s): hand-written kernels\n", info.name, info.software ? ", software" : "");
}

/* Elements smaller than words, by atomics, beside others and in their place. */
static void packed_elements_share_words(void **state) {
    NEEDS_DEVICE;
    static const char TEXT[] =
        "@compute @workgroup_size(64) fn invert(@builtin(global_invocation_id) id: vec3<u32>) {\n"
        "    if (id.x >= p[0].x) { return; }\n"
        "    let source = p[0].z + id.x;\n"
        "    let dest = p[1].x + id.x;\n"
        "    let v = ~(word0(source / 4u) >> (source % 4u * 8u)) & 255u;\n"
        "    let old = word1(dest / 4u) >> (dest % 4u * 8u) & 255u;\n"
        "    flip1(dest / 4u, (v ^ old) << (dest % 4u * 8u));\n"
        "}\n";
    enum { BYTES = 777 };
    static const bool written[] = {false, true};
    static const tn_dtype elements[] = {TN_U8, TN_U8};
    tn_code code = {.format = TN_CODE_WGSL,
                    .data = TEXT,
                    .size = sizeof TEXT - 1,
                    .entry = "invert",
                    .buffer_count = 2,
                    .group = {64, 1, 1},
                    .params_bytes = 24,
                    .bases_at = 8,
                    .written = written,
                    .elements = elements};
    unsigned char in[BYTES], out[BYTES];
    for (int i = 0; i < BYTES; i++)
        in[i] = (unsigned char)(i * 5);
    void *module = load(&code);
    char *a = alloc(4096), *b = alloc(4096);
    char *places[][2] = {{a + 1, b + 3}, {a + 1, a + 1022}, {a + 3, a + 3}};
    for (size_t k = 0; k < TN_COUNT(places); k++) {
        int64_t params[3] = {BYTES};
        tn_dispatch d = {.groups = {(BYTES + 63) / 64, 1, 1}, .buffers = (void **)places[k], .params = params};
        assert_ok(webgpu->copy(device, places[k][0], in, BYTES, 0));
        assert_ok(webgpu->dispatch(device, module, &d, 1));
        assert_ok(webgpu->copy(device, out, places[k][1], BYTES, 1));
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(out[i], in[i] ^ 255);
    }
    webgpu->unload(device, module);
    webgpu->free(device, a);
    webgpu->free(device, b);
}

/* More launches than are submitted at once, each with parameters of its own, each behind the one before. */
static void launches_keep_their_order(void **state) {
    NEEDS_DEVICE;
    enum { ROUNDS = 500 };
    tn_code code = axpy_code();
    void *module = load(&code);
    char *x = alloc(64), *y = alloc(64);
    float one = 1, seen = 0, want = 0;
    assert_ok(webgpu->copy(device, y, &one, 4, 0));
    assert_ok(webgpu->fill(device, x, 0, 64));
    for (int i = 0; i < ROUNDS; i++) {
        axpy_params params = {.n = 1, .scale = i % 7 ? 1.0f : 0.5f};
        void *buffers[] = {x, y, x};
        tn_dispatch d = {.groups = {1, 1, 1}, .buffers = buffers, .params = &params};
        assert_ok(webgpu->dispatch(device, module, &d, 1));
        want = want * params.scale + 1;
    }
    assert_ok(webgpu->copy(device, &seen, x, 4, 1));
    assert_true(seen == want);
    webgpu->unload(device, module); /* what was launched may still be under way */
    webgpu->free(device, x);
    webgpu->free(device, y);
}

static void compiler_words_are_told(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = NULL;
    code.data = "@compute @workgroup_size(1) fn axpy() { let x = no_such_name; }";
    code.size = strlen(code.data);
    assert_int_equal(webgpu->load(device, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "no_such_name");
    assert_text_has(tn_error(), "axpy: compiling failed");
    code = axpy_code();
    code.entry = "another";
    assert_int_equal(webgpu->load(device, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "another");
    code = axpy_code();
    code.group[0] = 1 << 20;
    assert_int_equal(webgpu->load(device, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "workgroups of");
    code = axpy_code();
    code.local_bytes = 1 << 30;
    assert_int_equal(webgpu->load(device, &code, &module), TN_ERR_UNSUPPORTED);
    code = axpy_code();
    char *buffers[] = {alloc(8192), alloc(8192), alloc(8192)};
    run_axpy(module = load(&code), buffers[0], buffers[1], buffers[2], 0); /* and the device goes on */
    for (size_t i = 0; i < TN_COUNT(buffers); i++)
        webgpu->free(device, buffers[i]);
    webgpu->unload(device, module);
}

static void empty_launch_does_nothing(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    void *module = load(&code);
    axpy_params params = {.n = 0};
    void *buffers[3] = {NULL, NULL, NULL};
    tn_dispatch d = {.groups = {0, 1, 1}, .buffers = buffers, .params = &params};
    assert_ok(webgpu->dispatch(device, module, &d, 1));
    d.groups[0] = 1;
    assert_ok(webgpu->dispatch(device, module, &d, 1)); /* NULL is a buffer that the kernel does not touch */
    d.groups[1] = UINT32_MAX;
    assert_int_equal(webgpu->dispatch(device, module, &d, 1), TN_ERR_UNSUPPORTED);
    d.groups[1] = 1;
    buffers[1] = (void *)0x1234;
    assert_int_equal(webgpu->dispatch(device, module, &d, 1), TN_ERR_INTERNAL);
    assert_ok(webgpu->sync(device));
    webgpu->unload(device, module);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void threads_share_a_kernel(void **state) {
    NEEDS_DEVICE;
    tn_code code = axpy_code();
    threads_launch_one_kernel(webgpu, device, &code);
}

/* ---- loss ------------------------------------------------------------------------------------------------------- */

/* Commands that the library does not take as a whole: what others had encoded among them is gone, so none of them may
 * be told that it went well. */
static void work_that_is_not_taken_is_lost(void **state) {
    NEEDS_DEVICE;
    const tn_device_options options = TN_DEVICE_DEFAULTS;
    void *other = NULL, *address = NULL, *buffer;
    uint32_t word = 1;
    assert_ok(webgpu->open(0, &options, &other));
    wg_device *d = other;
    assert_ok(webgpu->alloc(other, 64, &address));
    assert_ok(webgpu->fill(other, address, 0, 64)); /* encoded */
    buffer = d->staging.buffer;
    tn_wg_gpu.CommandEncoderCopyBufferToBuffer(d->encoder, buffer, 0, buffer, 0, (uint64_t)1 << 40);
    assert_int_equal(webgpu->copy(other, &word, address, 4, 1), TN_ERR_LOST);
    assert_text_has(tn_error(), "wgpuCommandEncoderFinish");
    assert_int_equal(webgpu->copy(other, &word, address, 4, 1), TN_ERR_LOST);
    assert_text_has(tn_error(), "submitting commands failed");
    assert_int_equal(webgpu->sync(other), TN_ERR_LOST);
    webgpu->free(other, address);
    webgpu->close(other);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void absent_device_is_named(void **state) {
    NEEDS_DEVICE;
    void *other = NULL;
    tn_device_options options = TN_DEVICE_DEFAULTS;
    assert_int_equal(webgpu->open(15, &options, &other), TN_ERR_UNAVAILABLE);
    assert_text_has(tn_error(), "webgpu:15");
}

static void caps_are_sensible(void **state) {
    NEEDS_DEVICE;
    tn_caps caps = {.struct_size = sizeof caps};
    assert_ok(webgpu->caps(device, &caps));
    assert_int_equal(caps.code, TN_CODE_WGSL);
    int64_t least = getenv("SHRINK") ? 1 << 10 : 128 << 20; /* tests/fakes/wgpu_faults.c shrinks it */
    assert_true(caps.max_group >= 128 && caps.max_buffer >= least && caps.shared_memory >= 16 << 10);
    assert_true(caps.max_bindings >= 8 && caps.max_groups_x >= 65535);
    assert_true(caps.words_only && !caps.i64 && !caps.f64 && !caps.exact && !caps.host_visible);
    assert_true(caps.version[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caps_are_sensible),           cmocka_unit_test(absent_device_is_named),
        cmocka_unit_test(addresses_can_be_offset),     cmocka_unit_test(bytes_go_from_any_place_to_any),
        cmocka_unit_test(too_much_memory_is_refused),  cmocka_unit_test(buffers_may_share_and_overlap),
        cmocka_unit_test(packed_elements_share_words), cmocka_unit_test(launches_keep_their_order),
        cmocka_unit_test(compiler_words_are_told),     cmocka_unit_test(empty_launch_does_nothing),
        cmocka_unit_test(threads_share_a_kernel),      cmocka_unit_test(work_that_is_not_taken_is_lost),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
