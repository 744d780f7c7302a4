/* test_pool.c — promises of the memory pool: sizes at open, growth and limits, best fit, joining, giving back, counts,
 * and errors that say what holds the memory. Reuse between queues: test_queue.c. */
#include <sys/mman.h>

#include "test_support.h"

#include "far_driver.h"
#include "trunnion/trunnion.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static tn_device *open_far(size_t initial, size_t growth, size_t most) {
    tn_device_options o = TN_DEVICE_DEFAULTS;
    o.fallback = TN_FALLBACK_STRICT;
    o.pool_initial = initial;
    o.pool_growth = growth;
    o.pool_max = most;
    return far_open(0, &o);
}

static tn_pool_stats stats_of(const tn_device *d) {
    tn_pool_stats s = {.struct_size = sizeof s};
    assert_ok(tn_device_get_pool_stats(d, &s));
    return s;
}

static tn_buffer *take(tn_device *d, size_t bytes) {
    tn_buffer *b;
    assert_ok(tn_buffer_new(d, bytes, &b));
    return b;
}

static void what_is_taken_at_open_is_used_first(void **state) {
    (void)state;
    int64_t before = far_counts_now.allocs;
    tn_device *d = open_far(MIB, 0, 0);
    assert_int_equal(far_counts_now.allocs - before, 1);
    tn_pool_stats s = stats_of(d);
    assert_int_equal(s.taken_bytes, MIB);
    assert_int_equal(s.free_bytes, MIB);
    assert_int_equal(s.largest_free, MIB);
    assert_int_equal(s.pieces, 1);
    assert_true(s.fragmentation == 0);
    tn_buffer *b[4];
    for (int i = 0; i < 4; i++)
        b[i] = take(d, 256 * KIB);
    assert_int_equal(far_counts_now.allocs - before, 1);
    assert_int_equal(stats_of(d).free_bytes, 0);
    tn_buffer *more = take(d, 256 * KIB); /* full: a block by itself */
    assert_int_equal(far_counts_now.allocs - before, 2);
    tn_buffer_release(more);
    for (int i = 0; i < 4; i++)
        tn_buffer_release(b[i]);
    int64_t given = -1;
    assert_ok(tn_device_trim(d, &given));
    assert_int_equal(given, 256 * KIB); /* what was taken at open stays */
    assert_int_equal(stats_of(d).taken_bytes, MIB);
    tn_device_close(d);
}

static void growth_is_by_pieces(void **state) {
    (void)state;
    tn_device *d = open_far(0, MIB, 0);
    int64_t before = far_counts_now.allocs;
    tn_buffer *b[64];
    for (int i = 0; i < 64; i++)
        b[i] = take(d, 32 * KIB);
    assert_int_equal(far_counts_now.allocs - before, 2);
    assert_int_equal(stats_of(d).pieces, 2);
    for (int i = 0; i < 64; i++) /* each its own memory */
        for (int k = 0; k < i; k++)
            assert_true((char *)b[i]->address + 32 * KIB <= (char *)b[k]->address ||
                        (char *)b[k]->address + 32 * KIB <= (char *)b[i]->address);
    tn_buffer *large = take(d, 2 * MIB); /* larger than a piece */
    assert_int_equal(stats_of(d).pieces, 2);
    tn_buffer_release(large);
    for (int i = 0; i < 64; i++)
        tn_buffer_release(b[i]);
    int64_t given;
    assert_ok(tn_device_defragment(d, &given));
    assert_int_equal(given, 2 * MIB); /* both pieces, whole again; the large block is kept */
    assert_ok(tn_device_trim(d, &given));
    assert_int_equal(given, 2 * MIB);
    assert_int_equal(stats_of(d).taken_bytes, 0);
    tn_device_close(d);
}

static void the_best_fit_is_taken(void **state) {
    (void)state;
    tn_device *d = open_far(MIB, 0, MIB);
    /* holes of 192, 64 and 128 KiB between blocks in use */
    static const int sizes[] = {192, 16, 64, 16, 128, 16, 576, 16};
    tn_buffer *b[8];
    for (int i = 0; i < 8; i++)
        b[i] = take(d, (size_t)sizes[i] * KIB);
    void *hole[3] = {b[0]->address, b[2]->address, b[4]->address};
    for (int i = 0; i < 6; i += 2)
        tn_buffer_release(b[i]);
    assert_ok(tn_device_defragment(d, NULL));
    tn_pool_stats s = stats_of(d);
    assert_int_equal(s.largest_free, 192 * KIB);
    assert_int_equal(s.free_bytes, 384 * KIB);
    assert_float_equal(s.fragmentation, 0.5, 1e-9);
    tn_buffer *x = take(d, 112 * KIB), *y = take(d, 60 * KIB), *z = take(d, 160 * KIB);
    assert_ptr_equal(x->address, hole[2]);
    assert_ptr_equal(y->address, hole[1]);
    assert_ptr_equal(z->address, hole[0]);
    tn_buffer_release(x);
    tn_buffer_release(y);
    tn_buffer_release(z);
    for (int i = 1; i < 8; i += 2)
        tn_buffer_release(b[i]);
    tn_buffer_release(b[6]);
    assert_ok(tn_device_defragment(d, NULL));
    assert_int_equal(stats_of(d).largest_free, MIB);
    tn_device_close(d);
}

/* Small blocks that were freed make room for a large one, without a call by hand. */
static void free_neighbours_join_when_room_is_needed(void **state) {
    (void)state;
    tn_device *d = open_far(MIB, 0, MIB);
    tn_buffer *b[32];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 32; i++)
            b[i] = take(d, 32 * KIB);
        for (int i = 0; i < 32; i++)
            tn_buffer_release(b[(i * 13) % 32]);
        tn_buffer *whole = take(d, MIB);
        tn_buffer_release(whole);
    }
    tn_device_close(d);
}

static void at_random_nothing_overlaps_and_nothing_is_lost(void **state) {
    (void)state;
    enum { BLOCKS = 60, STEPS = 6000 };
    tn_device *d = open_far(256 * KIB, 512 * KIB, 0);
    tn_buffer *b[BLOCKS] = {NULL};
    uint32_t random = 1;
    for (int i = 0; i < STEPS; i++) {
        random = random * 1664525U + 1013904223U;
        int at = (int)((random >> 8) % BLOCKS);
        unsigned char mark = (unsigned char)at, bytes[64], got[64];
        memset(bytes, mark, sizeof bytes);
        if (b[at]) {
            size_t end = b[at]->bytes - sizeof got;
            assert_ok(tn_buffer_read(b[at], 0, got, sizeof got));
            assert_memory_equal(got, bytes, sizeof got);
            assert_ok(tn_buffer_read(b[at], end, got, sizeof got));
            assert_memory_equal(got, bytes, sizeof got);
            tn_buffer_release(b[at]);
            b[at] = NULL;
            continue;
        }
        size_t size = 64 + (random >> 4) % (random % 3 ? 5000 : 100000);
        b[at] = take(d, size);
        assert_ok(tn_buffer_write(b[at], 0, bytes, sizeof bytes));
        assert_ok(tn_buffer_write(b[at], size - sizeof bytes, bytes, sizeof bytes));
        if (i % 500 == 0) assert_ok(tn_device_defragment(d, NULL));
    }
    for (int i = 0; i < BLOCKS; i++)
        tn_buffer_release(b[i]);
    tn_pool_stats s = stats_of(d);
    assert_int_equal(s.in_use_bytes, 0);
    assert_int_equal(s.buffers, 0);
    assert_ok(tn_device_trim(d, NULL));
    s = stats_of(d);
    assert_int_equal(s.taken_bytes, 256 * KIB);
    assert_int_equal(s.largest_free, 256 * KIB);
    assert_int_equal(s.kept_bytes, 0);
    tn_device_close(d);
}

static void counts_are_true(void **state) {
    (void)state;
    tn_device *d = open_far(0, 0, 0);
    tn_buffer *a = take(d, 64 * KIB), *b = take(d, 64 * KIB);
    tn_pool_stats s = stats_of(d);
    assert_int_equal(s.in_use_bytes, 128 * KIB);
    assert_int_equal(s.peak_bytes, 128 * KIB);
    assert_int_equal(s.taken_bytes, 128 * KIB);
    assert_int_equal(s.buffers, 2);
    assert_int_equal(s.allocations, 2);
    assert_int_equal(s.hits, 0);
    tn_buffer_release(a);
    tn_buffer_release(b);
    s = stats_of(d);
    assert_int_equal(s.in_use_bytes, 0);
    assert_int_equal(s.kept_bytes, 128 * KIB);
    assert_int_equal(s.taken_bytes, 128 * KIB);
    a = take(d, 64 * KIB);
    s = stats_of(d);
    assert_int_equal(s.allocations, 3);
    assert_int_equal(s.hits, 1);
    tn_device_reset_pool_peak(d);
    assert_int_equal(stats_of(d).peak_bytes, 64 * KIB);
    assert_int_equal(stats_of(d).hits, 0);
    tn_buffer_release(a);
    tn_pool_stats old = {.struct_size = offsetof(tn_pool_stats, kept_bytes), .kept_bytes = 77};
    assert_ok(tn_device_get_pool_stats(d, &old));
    assert_int_equal(old.kept_bytes, 77); /* fields behind the size are not written */
    tn_device_close(d);
}

static void what_is_too_much_is_told_with_what_holds_it(void **state) {
    (void)state;
    tn_device *d = open_far(512 * KIB, 0, 768 * KIB);
    tn_buffer *a = take(d, 256 * KIB), *b = take(d, 128 * KIB), *c = take(d, 128 * KIB), *none;
    tn_buffer_release(b);
    assert_int_equal(tn_buffer_new(d, 512 * KIB, &none), TN_ERR_MEMORY);
    assert_null(none);
    assert_text_has(tn_error(), "out of device memory: 512 KiB");
    assert_text_has(tn_error(), "384 KiB in use by 2 buffers");
    assert_text_has(tn_error(), "128 KiB free in pieces (largest: 128 KiB)");
    assert_text_has(tn_error(), "limit 768 KiB");
    tn_buffer_release(a);
    tn_buffer_release(c);
    tn_device_close(d);
}

static void tensors_work_in_pieces(void **state) {
    (void)state;
    tn_device *d = open_far(MIB, 256 * KIB, 0);
    assert_ok(tn_set_current_device(d));
    {
        TN_SCOPE;
        tn_tensor *s = tn_zeros((int64_t[]){64, 64}, 2, TN_F32);
        assert_ok(tn_make_state(s));
        for (int i = 0; i < 20; i++) {
            TN_SCOPE;
            tn_tensor *x = tn_full((int64_t[]){64, 64}, 2, i, TN_F32);
            (void)tn_add_(s, tn_mul(x, x));
            assert_ok(tn_eval(NULL, 0));
            if (i % 5 == 0) assert_ok(tn_device_defragment(d, NULL));
        }
        assert_float_equal(tn_item(tn_mean(s, NULL, 0, false)), 2470, 1e-3);
    }
    assert_ok(tn_set_current_device(NULL));
    tn_device_close(d);
}

/* Every allocation of the host's may fail on the way. */
static void a_lack_of_host_memory_loses_nothing(void **state) {
    (void)state;
    for (int n = 1; n < 40; n++) {
        tn_device *d = open_far(256 * KIB, 256 * KIB, 0);
        tn_buffer *b[6] = {NULL};
        tn_mem_fail_at(n);
        for (int i = 0; i < 6; i++)
            (void)tn_buffer_new(d, (size_t)(30 + i) * KIB, &b[i]);
        tn_mem_fail_at(0);
        for (int i = 0; i < 6; i++)
            tn_buffer_release(b[i]);
        assert_ok(tn_device_trim(d, NULL));
        tn_pool_stats s = stats_of(d);
        assert_int_equal(s.taken_bytes, 256 * KIB);
        assert_int_equal(s.largest_free, 256 * KIB);
        assert_int_equal(s.in_use_bytes, 0);
        tn_device_close(d);
    }
}

/* A tensor takes the memory of its elements: a large page of the system's would bring in up to 2 MiB behind them. */
static void memory_behind_a_tensor_is_not_resident(void **state) {
    (void)state;
    enum { USED = 15 * MIB + 64 * KIB, ROUNDED = 16 * MIB };
    tn_device *cpu;
    assert_ok(tn_device_open("cpu", NULL, NULL, &cpu));
    tn_buffer *b = take(cpu, USED);
    char *address = b->address;
    memset(address, 1, USED);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *behind = (char *)(((uintptr_t)address + USED + page - 1) / page * page);
    unsigned char resident[MIB / 4096];
    size_t pages = (size_t)(address + ROUNDED - behind) / page;
    assert_in_range(pages, 1, TN_COUNT(resident));
    assert_int_equal(mincore(behind, pages * page, resident), 0);
    for (size_t i = 0; i < pages; i++)
        assert_int_equal(resident[i] & 1, 0);
    tn_buffer_release(b);
    tn_device_close(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_taken_at_open_is_used_first),
        cmocka_unit_test(growth_is_by_pieces),
        cmocka_unit_test(the_best_fit_is_taken),
        cmocka_unit_test(free_neighbours_join_when_room_is_needed),
        cmocka_unit_test(at_random_nothing_overlaps_and_nothing_is_lost),
        cmocka_unit_test(counts_are_true),
        cmocka_unit_test(what_is_too_much_is_told_with_what_holds_it),
        cmocka_unit_test(tensors_work_in_pieces),
        cmocka_unit_test(a_lack_of_host_memory_loses_nothing),
        cmocka_unit_test(memory_behind_a_tensor_is_not_resident),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
