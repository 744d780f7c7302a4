/* test_vulkan.c — the Vulkan driver alone: its promises, the order of what it records, bindings that do not reach over
 * an allocation, words that are no kernel. tools/checks/vulkan.sh runs it under Khronos' validation layer, with memory
 * that the host does not see, and on SwiftShader.
 *
 * --work does a little of everything and nothing else: mistakes are seeded into it. */
#include "test_support.h"

#include "cli/device/conform.h"
#include "drivers/drivers.h"
#include "hal/kernel_code.h"
#include "trunnion/trunnion.h"

#if TRUNNION_WITH_VULKAN

static tn_device *device; /* vulkan:0; NULL: there is none */

static int open_device(void **state) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    if (make_scratch(state)) return -1;
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    if (tn_device_open("vulkan:0", &o, NULL, &device) == TN_OK) return 0;
    printf("skipped: no Vulkan device: %s\n", tn_error());
    device = NULL;
    return 0;
}

static int close_device(void **state) {
    tn_device_close(device);
    return remove_scratch(state);
}

#define NEEDS_DEVICE \
    (void)state;     \
    if (!device) skip()

/* ---- a kernel: x[i] = 3 · x[i] + 1 ------------------------------------------------------------------------------- */

typedef struct step {
    kir_program *program;
    int64_t *sizes;
    tn_kernel *kernel;
} step;

static step step_new(int64_t n) {
    step s;
    kir_builder *b;
    assert_ok(kir_begin(1, 0, &n, &b));
    int x = kir_buffer(b, TN_I32);
    kir_aff at = {.s = {1}, .dyn = KIR_NONE};
    kir_val three = kir_const_i(b, KIR_I32, 3), one = kir_const_i(b, KIR_I32, 1);
    kir_val v = kir_binary(b, KIR_MUL, kir_load(b, x, &at, KIR_NONE), three);
    kir_store(b, x, &at, kir_binary(b, KIR_ADD, v, one), KIR_NONE);
    assert_ok(kir_finish(b, &s.program, &s.sizes));
    assert_ok(tn_kernel_get(device, s.program, &s.kernel));
    return s;
}

static void step_free(step *s) {
    tn_kernel_release(s->kernel);
    kir_free(s->program);
    tn_mem_free(s->sizes);
}

static void step_run(const step *s, void *address) {
    const tn_launch launch = {.sizes = s->sizes, .buffers = &address};
    assert_ok(tn_kernel_launch(device, s->kernel, &launch, 1));
}

static uint32_t stepped(uint32_t x, int times) {
    while (times-- > 0)
        x = 3 * x + 1;
    return x;
}

static tn_buffer *numbers(size_t n, uint32_t first) {
    tn_buffer *b;
    uint32_t *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = first + (uint32_t)i;
    assert_ok(tn_buffer_new(device, n * sizeof *x, &b));
    assert_ok(tn_buffer_write(b, 0, x, n * sizeof *x));
    free(x);
    return b;
}

static void assert_stepped(const tn_buffer *b, size_t n, uint32_t first, int times) {
    uint32_t *x = malloc(n * sizeof *x);
    assert_ok(tn_buffer_read(b, 0, x, n * sizeof *x));
    for (size_t i = 0; i < n; i++)
        if (x[i] != stepped(first + (uint32_t)i, times)) fail_msg("element %zu is %u after %d steps", i, x[i], times);
    free(x);
}

/* ---- what is tested ---------------------------------------------------------------------------------------------- */

static void promises_are_kept(void **state) {
    NEEDS_DEVICE;
    static const char wrong[] = "\x03\x02\x23\x06 begins as SPIR-V does, and has no whole number of words";
    conform_options o = {.large = 9 << 20, .wrong = wrong, .wrong_size = sizeof wrong};
    conform_result r = conform_driver(&tn_driver_vulkan, 0, &o, stdout);
    assert_int_equal(r.broken, 0);
    assert_true(r.promises - r.skipped > 15);
}

static void capabilities_are_within_vulkans(void **state) {
    NEEDS_DEVICE;
    const tn_caps *c = &device->caps;
    assert_int_equal(c->code, TN_CODE_SPIRV);
    assert_true((getenv("SHRINK") || c->max_buffer >= (128 << 20) - 4096) && c->max_group >= 128 &&
                c->shared_memory >= 16 << 10);
    assert_true(c->max_bindings >= 3 && c->max_groups_x >= 65535 && c->alignment <= 256);
    bool small = (c->features & TN_SPIRV_STORAGE_8) && (c->features & TN_SPIRV_STORAGE_16);
    assert_int_equal(c->words_only, !small);
    assert_true(strlen(c->version) > 16);
    printf("ran on: vulkan:0 (%s%s)\n", device->info.name, device->info.software ? ", software" : "");
}

/* More launches than all slots hold, each of what the one before it wrote, with copies in between. */
static void launches_keep_their_order(void **state) {
    NEEDS_DEVICE;
    enum { COUNT = 77, STEPS = 2500 };
    step s = step_new(COUNT);
    tn_buffer *x = numbers(COUNT, 5), *y = numbers(COUNT, 9);
    for (int i = 0; i < STEPS; i++) {
        step_run(&s, x->address);
        if (i % 100 != 99) continue;
        assert_ok(tn_buffer_copy(y, x, COUNT * sizeof(uint32_t)));
        assert_ok(tn_buffer_copy(x, y, COUNT * sizeof(uint32_t)));
    }
    assert_stepped(x, COUNT, 5, STEPS);
    assert_stepped(y, COUNT, 5, STEPS);
    tn_buffer_release(x);
    tn_buffer_release(y);
    step_free(&s);
}

/* One call with more launches than a slot holds. */
static void launches_of_one_call_are_all_done(void **state) {
    NEEDS_DEVICE;
    enum { COUNT = 64, CALLS = 500 };
    static tn_launch launches[CALLS];
    static void *buffers[CALLS];
    step s = step_new(COUNT);
    tn_buffer *x = numbers((size_t)COUNT * CALLS, 1);
    for (int i = 0; i < CALLS; i++) {
        buffers[i] = (uint32_t *)x->address + (size_t)i * COUNT;
        launches[i] = (tn_launch){.sizes = s.sizes, .buffers = &buffers[i]};
    }
    for (int k = 0; k < 3; k++)
        assert_ok(tn_kernel_launch(device, s.kernel, launches, CALLS));
    assert_stepped(x, (size_t)COUNT * CALLS, 1, 3);
    tn_buffer_release(x);
    step_free(&s);
}

/* Memory larger than a binding: a kernel finds its place from any address. */
static void bindings_begin_where_they_have_to(void **state) {
    NEEDS_DEVICE;
    enum { COUNT = 33 };
    size_t most = (size_t)device->caps.max_buffer, bytes = most + most / 2;
    void *address = NULL;
    if (bytes > (size_t)1 << 28) skip(); /* too much for a test */
    step s = step_new(COUNT);
    assert_ok(tn_driver_vulkan.alloc(device->handle, bytes, &address));
    const size_t places[] = {0, 4, 1000, most - 64, most + 4, bytes - COUNT * 4};
    for (size_t i = 0; i < TN_COUNT(places); i++) {
        uint32_t x[COUNT];
        char *at = (char *)address + places[i] / 4 * 4;
        for (uint32_t k = 0; k < COUNT; k++)
            x[k] = k;
        assert_ok(tn_driver_vulkan.copy(device->handle, at, x, sizeof x, 0));
        step_run(&s, at);
        assert_ok(tn_driver_vulkan.copy(device->handle, x, at, sizeof x, 1));
        for (uint32_t k = 0; k < COUNT; k++)
            assert_int_equal(x[k], 3 * k + 1);
    }
    tn_driver_vulkan.free(device->handle, address);
    step_free(&s);
}

/* Joined parts lie in the result where masked accesses to each of them reach far beyond it: no part of a divided launch
 * may begin there. */
static void joined_tensors_reach_beyond_a_binding(void **state) {
    NEEDS_DEVICE;
    enum { PARTS = 3 };
    size_t most = (size_t)device->caps.max_buffer;
    int64_t each = (int64_t)(most / 8) * 3 + 7; /* of 8 bytes: three bindings each */
    if (most > (size_t)1 << 20) skip();         /* too much for a test */
    int64_t *got = malloc((size_t)(PARTS * each) * sizeof *got);
    assert_non_null(got);
    assert_ok(tn_set_current_device(device));
    {
        TN_SCOPE;
        tn_tensor *parts[PARTS];
        for (int i = 0; i < PARTS; i++) /* computed: what lies in memory is copied */
            parts[i] = tn_flip(tn_arange((double)(i * each), (double)((i + 1) * each), 1, TN_I64), (int64_t[]){0}, 1);
        assert_ok(tn_read(tn_cat(parts, PARTS, 0), got, (size_t)(PARTS * each) * sizeof *got));
    }
    assert_ok(tn_set_current_device(NULL));
    for (int64_t k = 0; k < PARTS * each; k++)
        assert_int_equal(got[k], (k / each + 1) * each - 1 - k % each);
    free(got);
}

/* Rows of a table that no binding holds, from all over it, by an op; and that it is the device which finds them. */
static void gathers_reach_beyond_a_binding(void **state) {
    NEEDS_DEVICE;
    enum { WIDTH = 1 << 10, ROWS = 40 };
    size_t most = (size_t)device->caps.max_buffer;
    int64_t rows = (int64_t)(most + most / 4) / (WIDTH * 4) + 1, index[ROWS];
    if (most > (size_t)1 << 28) skip(); /* too much for a test */
    float *table = malloc((size_t)rows * WIDTH * sizeof *table), *got = malloc(ROWS * WIDTH * sizeof *got);
    assert_true(table && got);
    for (int64_t i = 0; i < rows * WIDTH; i++)
        table[i] = (float)(i * 7 % 16777213);
    for (int i = 0; i < ROWS; i++)
        index[i] = i == 0 ? rows - 1 : i * (rows - 1) / (ROWS - 1);
    assert_ok(tn_set_current_device(device));
    {
        TN_SCOPE;
        tn_tensor *of = tn_from_data(table, (int64_t[]){rows, WIDTH}, 2, TN_F32);
        tn_tensor *at = tn_from_data(index, (int64_t[]){ROWS}, 1, TN_I64);
        assert_ok(tn_read(tn_embedding(at, of), got, ROWS * WIDTH * sizeof *got));
    }
    assert_ok(tn_set_current_device(NULL));
    for (int i = 0; i < ROWS; i++)
        assert_memory_equal(got + i * WIDTH, table + index[i] * WIDTH, WIDTH * sizeof *got);
    free(table);
    free(got);
}

/* To the device and back beside the caller, from several pinned blocks and places in them. */
static void pinned_memory_is_copied_beside_the_caller(void **state) {
    NEEDS_DEVICE;
    enum { COUNT = 1000, BLOCKS = 5 };
    const tn_driver *vulkan = &tn_driver_vulkan;
    void *h = device->handle, *done = NULL, *there[BLOCKS], *here[BLOCKS];
    step s = step_new(COUNT);
    assert_ok(vulkan->event_new(h, false, &done));
    for (int i = 0; i < BLOCKS; i++) {
        assert_ok(vulkan->alloc(h, COUNT * sizeof(uint32_t), &there[i]));
        assert_ok(vulkan->host_alloc(h, 2 * COUNT * sizeof(uint32_t), &here[i]));
        for (uint32_t k = 0; k < COUNT; k++)
            ((uint32_t *)here[i])[k] = k + (uint32_t)i;
    }
    for (int i = 0; i < BLOCKS; i++) {
        assert_ok(vulkan->copy_async(h, there[i], here[i], COUNT * sizeof(uint32_t), 0));
        step_run(&s, there[i]);
        assert_ok(vulkan->copy_async(h, (uint32_t *)here[i] + COUNT, there[i], COUNT * sizeof(uint32_t), 1));
    }
    assert_ok(vulkan->event_record(h, done));
    assert_ok(vulkan->event_sync(h, done));
    for (int i = 0; i < BLOCKS; i++) {
        for (uint32_t k = 0; k < COUNT; k++)
            assert_int_equal(((uint32_t *)here[i])[COUNT + k], 3 * (k + (uint32_t)i) + 1);
        vulkan->host_free(h, here[i]);
        vulkan->free(h, there[i]);
    }
    vulkan->event_free(h, done);
    step_free(&s);
}

static void what_is_no_kernel_is_refused_with_words(void **state) {
    NEEDS_DEVICE;
    uint32_t words[8] = {0x03022307, 1};
    tn_code code = {.format = TN_CODE_SPIRV, .data = words, .size = sizeof words, .entry = "none", .buffer_count = 1};
    void *module = NULL;
    assert_int_equal(tn_driver_vulkan.load(device->handle, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "not SPIR-V");
    assert_text_has(tn_error(), "vulkan:0");
    code.params_bytes = (size_t)1 << 20;
    assert_int_equal(tn_driver_vulkan.load(device->handle, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "bytes of parameters");
    code = (tn_code){.format = TN_CODE_SPIRV, .data = words, .size = sizeof words, .entry = "none", .buffer_count = 1};
    words[0] = 0x07230203;
    code.windows = (const uint8_t[]){64};
    assert_int_equal(tn_driver_vulkan.load(device->handle, &code, &module), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "64 bindings");
}

static void absurd_sizes_are_refused(void **state) {
    NEEDS_DEVICE;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX / 2 + 1, (size_t)1 << 50};
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        void *address = NULL;
        assert_int_equal(tn_driver_vulkan.alloc(device->handle, sizes[i], &address), TN_ERR_MEMORY);
        assert_int_equal(tn_driver_vulkan.host_alloc(device->handle, sizes[i], &address), TN_ERR_MEMORY);
    }
}

static void absent_device_is_named(void **state) {
    (void)state;
    tn_device_options o = TN_DEVICE_DEFAULTS;
    void *handle = NULL;
    assert_int_equal(tn_driver_vulkan.open(77, &o, &handle), TN_ERR_UNAVAILABLE);
    if (device) assert_text_has(tn_error(), "vulkan:77");
}

static int work(void) {
    if (open_device(NULL) || !device) return 1;
    step s = step_new(100);
    tn_buffer *x = numbers(100, 1);
    step_run(&s, x->address);
    assert_stepped(x, 100, 1, 1);
    tn_buffer_release(x);
    step_free(&s);
    return close_device(NULL);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--work")) return work();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capabilities_are_within_vulkans),
        cmocka_unit_test(promises_are_kept),
        cmocka_unit_test(launches_keep_their_order),
        cmocka_unit_test(launches_of_one_call_are_all_done),
        cmocka_unit_test(bindings_begin_where_they_have_to),
        cmocka_unit_test(gathers_reach_beyond_a_binding),
        cmocka_unit_test(joined_tensors_reach_beyond_a_binding),
        cmocka_unit_test(pinned_memory_is_copied_beside_the_caller),
        cmocka_unit_test(what_is_no_kernel_is_refused_with_words),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(absent_device_is_named),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

#else

int main(void) {
    printf("skipped: built without Vulkan\n");
    return 0;
}

#endif
