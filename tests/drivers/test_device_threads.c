/* test_device_threads.c — devices, buffers and kernels from many threads at once; also run under the thread
 * sanitizer. */
#include "test_support.h"

#include <pthread.h>
#include <sched.h>

#include "drivers/drivers.h"
#include "hal/hal.h"

enum { THREADS = 6, ROUNDS = 300 };

static int closed_environment(void **state) {
    (void)state;
    static const char *const libraries[] = {
        "TRUNNION_CUDA_LIB",   "TRUNNION_ROCM_LIB", "TRUNNION_OPENCL_LIB",      "TRUNNION_VULKAN_LIB",
        "TRUNNION_WEBGPU_LIB", "TRUNNION_NVML_LIB", "TRUNNION_ONNXRUNTIME_LIB", "TRUNNION_TORCH_LIB",
    };
    for (size_t i = 0; i < TN_COUNT(libraries); i++)
        setenv(libraries[i], "/nowhere/at-all.so", 1);
    setenv("TRUNNION_CACHE", test_scratch("cache"), 1);
    return 0;
}

static atomic_int wrong; /* cmocka's checks are for one thread: the others count */

static void run_everywhere(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    wrong = 0;
    for (intptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, body, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void *use_buffers(void *number) {
    tn_device *d = tn_current_device();
    unsigned char mark = (unsigned char)(intptr_t)number;
    for (int i = 0; i < ROUNDS; i++) {
        tn_buffer *b;
        size_t bytes = (size_t)(i * 37 % 2000 + 1);
        if (tn_buffer_new(d, bytes, &b) != TN_OK) {
            wrong++;
            continue;
        }
        unsigned char *p = b->address;
        memset(p, mark, bytes);
        for (size_t k = 0; k < bytes; k++)
            wrong += p[k] != mark;
        tn_buffer_release(b);
    }
    return NULL;
}

static void no_block_is_given_twice(void **state) {
    (void)state;
    tn_memory_stats before = tn_memory_get_stats();
    run_everywhere(use_buffers);
    assert_int_equal(tn_memory_get_stats().live_buffers, before.live_buffers);
    assert_int_equal(tn_memory_get_stats().live_bytes, before.live_bytes);
}

static tn_buffer *shared;
static atomic_int released;

static void count_release(void *ctx) {
    (void)ctx;
    released++;
}

static void *share_buffer(void *number) {
    (void)number;
    for (int i = 0; i < ROUNDS; i++)
        tn_buffer_release(tn_buffer_retain(shared));
    tn_buffer_release(shared); /* this thread's own count */
    return NULL;
}

static void shared_buffer_is_freed_once(void **state) {
    (void)state;
    static char memory[64];
    released = 0;
    assert_ok(tn_buffer_borrow(tn_best_device(), memory, sizeof memory, count_release, NULL, &shared));
    for (int i = 1; i < THREADS; i++)
        (void)tn_buffer_retain(shared);
    run_everywhere(share_buffer);
    assert_int_equal(released, 1);
}

static void *allocate_by_hand(void *number) {
    (void)number;
    void *p[16];
    for (int i = 0; i < ROUNDS / 10; i++) {
        for (size_t k = 0; k < TN_COUNT(p); k++)
            wrong += tn_device_alloc(tn_best_device(), 100 * k, 256, &p[k]) != TN_OK;
        for (size_t k = 0; k < TN_COUNT(p); k++)
            tn_device_dealloc(tn_best_device(), p[k]);
    }
    return NULL;
}

static void hand_allocation_works_from_any_thread(void **state) {
    (void)state;
    run_everywhere(allocate_by_hand);
}

/* ---- devices and kernels ----------------------------------------------------------------------------------------- */

static kir_program *programs[8];

/* A kernel that stores `value`. */
static kir_program *program_of(double value) {
    kir_builder *b;
    kir_program *p;
    int64_t n = 8, *sizes;
    kir_aff at = {.s = {1}, .dyn = KIR_NONE};
    assert_ok(kir_begin(1, 0, &n, &b));
    kir_store(b, kir_buffer(b, TN_F32), &at, kir_const(b, KIR_F32, value), KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    tn_mem_free(sizes);
    return p;
}

static void *use_device(void *number) {
    for (int i = 0; i < ROUNDS / 10; i++) {
        tn_device *d;
        tn_buffer *b;
        tn_kernel *k;
        if (tn_device_open("null", NULL, NULL, &d) != TN_OK) {
            wrong++;
            continue;
        }
        wrong += tn_buffer_new(d, 64, &b) != TN_OK;
        wrong += tn_kernel_get(d, programs[(i + (intptr_t)number) % (int)TN_COUNT(programs)], &k) != TN_OK;
        tn_device_close(d); /* the buffer keeps it alive */
        if (i % 2) tn_kernel_release(k);
        tn_buffer_release(b);
        if (i % 2 == 0) tn_kernel_release(k); /* the device may have ended */
    }
    return NULL;
}

static void devices_are_opened_shared_and_ended_by_any_thread(void **state) {
    (void)state;
    for (size_t i = 0; i < TN_COUNT(programs); i++)
        programs[i] = program_of((double)i);
    tn_null_reset_counts();
    run_everywhere(use_device);
    tn_null_counts c = tn_null_get_counts();
    assert_string_equal(c.first_fault, "");
    assert_int_equal(c.opens, c.closes);
    assert_int_equal(c.loads, c.unloads);
    assert_int_equal(c.live_blocks + c.live_modules, 0);
    for (size_t i = 0; i < TN_COUNT(programs); i++)
        kir_free(programs[i]);
}

/* A driver whose compiler takes its time: the first structure's load ends when the second one's has. */
static tn_driver slow;
static const kir_program *first_structure;
static atomic_int loads_of_first, loads_of_second;

static tn_status load_slowly(void *device, const tn_code *code, void **module) {
    const kir_program *p = code->data;
    if (p->hash != first_structure->hash) {
        loads_of_second++;
        return tn_driver_null.load(device, code, module);
    }
    loads_of_first++;
    while (!loads_of_second)
        sched_yield();
    return tn_driver_null.load(device, code, module);
}

static tn_kernel *kernels[THREADS];

static void *get_one_kernel(void *number) {
    tn_device *d = NULL;
    wrong += tn_device_open("slow", NULL, NULL, &d) != TN_OK;
    wrong += tn_kernel_get(d, first_structure, &kernels[(intptr_t)number]) != TN_OK;
    tn_device_close(d);
    return NULL;
}

static void *get_another_kernel(void *device) {
    tn_kernel *k = NULL;
    while (!loads_of_first)
        sched_yield();
    wrong += tn_kernel_get(device, programs[1], &k) != TN_OK;
    tn_kernel_release(k);
    return NULL;
}

static void who_wants_what_another_thread_loads_waits_for_it(void **state) {
    (void)state;
    pthread_t other;
    tn_device *d;
    first_structure = programs[0] = program_of(7);
    programs[1] = program_of(8);
    assert_ok(tn_device_open("slow", NULL, NULL, &d));
    assert_int_equal(pthread_create(&other, NULL, get_another_kernel, d), 0);
    run_everywhere(get_one_kernel);
    pthread_join(other, NULL);
    for (int i = 1; i < THREADS; i++)
        assert_ptr_equal(kernels[i], kernels[0]);
    assert_int_equal(loads_of_first, 1);
    assert_int_equal(loads_of_second, 1);
    for (int i = 0; i < THREADS; i++)
        tn_kernel_release(kernels[i]);
    tn_device_close(d);
    kir_free(programs[0]);
    kir_free(programs[1]);
}

static void *list_devices(void *number) {
    for (int i = 0; i < 3; i++) {
        tn_device_list *l = NULL;
        wrong += tn_device_list_new(number == 0 && i == 1, &l) != TN_OK;
        wrong += strcmp(tn_device_list_recommended(l), "cpu") != 0;
        tn_device_list_free(l);
    }
    return NULL;
}

static void listing_works_from_any_thread(void **state) {
    (void)state;
    run_everywhere(list_devices);
}

static tn_device *seen[THREADS];

static void *find_best(void *number) {
    seen[(intptr_t)number] = tn_current_device();
    return NULL;
}

static void default_device_is_one(void **state) {
    (void)state;
    run_everywhere(find_best);
    for (int i = 0; i < THREADS; i++)
        assert_ptr_equal(seen[i], tn_best_device());
}

int main(void) {
    slow = tn_driver_null;
    slow.name = "slow";
    slow.load = load_slowly;
    if (tn_backend_register(&tn_driver_null) != TN_OK || tn_backend_register(&slow) != TN_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(default_device_is_one, closed_environment),
        cmocka_unit_test_setup(no_block_is_given_twice, closed_environment),
        cmocka_unit_test_setup(shared_buffer_is_freed_once, closed_environment),
        cmocka_unit_test_setup(hand_allocation_works_from_any_thread, closed_environment),
        cmocka_unit_test_setup(devices_are_opened_shared_and_ended_by_any_thread, closed_environment),
        cmocka_unit_test_setup(who_wants_what_another_thread_loads_waits_for_it, closed_environment),
        cmocka_unit_test_setup(listing_works_from_any_thread, closed_environment),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
