/* test_scatter_sort.c — scatter-add sums in ascending order of its rows on any number of threads; argsort is stable,
 * puts NaN last and knows every type. Both beside versions that are too simple to be wrong. */
#include "test_support.h"

#include <math.h>

#include "cpu/cpu_kernels.h"
#include "random_numbers.h"

enum { MAX_THREADS = 3 };

static uint64_t random_state = 1;

static uint64_t random_bits(void) { return random_mixed(&random_state); }

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static double random_real(void) { return (double)random_below(2000001) / 1000.0 - 1000.0; }

static void *room(size_t bytes) {
    void *p = tn_mem_alloc(bytes);
    assert_non_null(p);
    return p;
}

/* ---- scatter ----------------------------------------------------------------------------------------------------- */

static void naive_scatter_f32(const tn_scatter_args *x) {
    for (int64_t i = 0; i < x->count; i++) {
        if (x->index[i] < 0 || x->index[i] >= x->rows) continue;
        for (int64_t j = 0; j < x->width; j++) {
            ((float *)x->out)[x->index[i] * x->width + j] += ((const float *)x->src)[i * x->src_stride + j];
        }
    }
}

static void naive_scatter_f64(const tn_scatter_args *x) {
    for (int64_t i = 0; i < x->count; i++) {
        if (x->index[i] < 0 || x->index[i] >= x->rows) continue;
        for (int64_t j = 0; j < x->width; j++) {
            ((double *)x->out)[x->index[i] * x->width + j] += ((const double *)x->src)[i * x->src_stride + j];
        }
    }
}

static void fill_random(void *data, int64_t count, size_t size) {
    for (int64_t i = 0; i < count; i++) {
        if (size == sizeof(float)) {
            ((float *)data)[i] = (float)random_real();
        } else {
            ((double *)data)[i] = random_real();
        }
    }
}

static void check_scatter(int64_t rows, int64_t width, int64_t count, int64_t gap, size_t size) {
    size_t bytes = (size_t)(rows * width) * size;
    int64_t stride = width + gap, skipped = 0;
    void *start = room(bytes), *out = room(bytes), *expected = room(bytes);
    void *src = room((size_t)(count * stride + 1) * size);
    int64_t *index = room((size_t)(count + 1) * sizeof *index);
    fill_random(start, rows * width, size);
    fill_random(src, count * stride, size);
    for (int64_t i = 0; i < count; i++) {
        index[i] = random_below(rows + 2) - 1;
        if (i % 3 == 0) index[i] = rows / 2; /* one place takes much */
        if (i % 7 == 0) index[i] = random_below(2) ? INT64_MIN : INT64_MAX;
        skipped += index[i] < 0 || index[i] >= rows;
    }
    tn_scatter_args x = {.out = expected,
                         .src = src,
                         .index = index,
                         .rows = rows,
                         .width = width,
                         .count = count,
                         .src_stride = stride};
    memcpy(expected, start, bytes);
    (size == sizeof(float) ? naive_scatter_f32 : naive_scatter_f64)(&x);
    x.out = out;
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        assert_ok(tn_threads_set(threads));
        memcpy(out, start, bytes);
        assert_int_equal((size == sizeof(float) ? tn_scatter_add_f32 : tn_scatter_add_f64)(&x), skipped);
        assert_memory_equal(out, expected, bytes);
    }
    tn_mem_free(start);
    tn_mem_free(out);
    tn_mem_free(expected);
    tn_mem_free(src);
    tn_mem_free(index);
}

static void scatter_sums_in_ascending_order_on_any_number_of_threads(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 5},        {7, 3, 100},    {10, 384, 300}, {3, 1000, 80},
                                       {1000, 1, 30000}, {50, 16, 4000}, {5, 130, 500},  {2, 127, 1000},
                                       {0, 4, 10},       {4, 0, 10},     {4, 4, 0}};
    for (size_t i = 0; i < TN_COUNT(sizes); i++) {
        for (int gap = 0; gap < 2; gap++) {
            check_scatter(sizes[i][0], sizes[i][1], sizes[i][2], gap, sizeof(float));
            check_scatter(sizes[i][0], sizes[i][1], sizes[i][2], gap, sizeof(double));
        }
    }
}

static void one_source_row_may_be_added_everywhere(void **state) {
    (void)state;
    float out[3] = {0}, one = 1.5f;
    int64_t index[] = {0, 1, 1, 2, 2, 2};
    tn_scatter_args x = {.out = out, .src = &one, .index = index, .rows = 3, .width = 1, .count = 6, .src_stride = 0};
    assert_int_equal(tn_scatter_add_f32(&x), 0);
    for (int i = 0; i < 3; i++)
        assert_true(out[i] == 1.5f * (float)(i + 1));
}

/* ---- sort -------------------------------------------------------------------------------------------------------- */

static int compare_reals(double x, double y) {
    if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
    return (x > y) - (x < y);
}

static double real_at(const void *data, int64_t i, tn_dtype t) {
    return t == TN_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static int compare_at(const void *data, int64_t i, int64_t j, tn_dtype t) {
    int64_t x = 0, y = 0;
    switch (t) {
    case TN_F32:
    case TN_F64: return compare_reals(real_at(data, i, t), real_at(data, j, t));
    case TN_U64:
        return (((const uint64_t *)data)[i] > ((const uint64_t *)data)[j]) -
               (((const uint64_t *)data)[i] < ((const uint64_t *)data)[j]);
    case TN_I64: x = ((const int64_t *)data)[i], y = ((const int64_t *)data)[j]; break;
    case TN_I32: x = ((const int32_t *)data)[i], y = ((const int32_t *)data)[j]; break;
    case TN_U32: x = ((const uint32_t *)data)[i], y = ((const uint32_t *)data)[j]; break;
    default: x = ((const uint8_t *)data)[i], y = ((const uint8_t *)data)[j]; break;
    }
    return (x > y) - (x < y);
}

/* Few different values, so that stability shows; and the ends of the type. */
static void fill_sortable(void *data, int64_t count, tn_dtype t) {
    static const double odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-42, -1e-42, 1e300, -1e300};
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = random_bits() | random_bits() << 40;
        if (random_below(2)) bits &= 7;
        double real = random_below(4) ? (double)random_below(20) - 10.0 : odd[random_below((int64_t)TN_COUNT(odd))];
        if (random_below(2)) real = random_real();
        switch (t) {
        case TN_F32: ((float *)data)[i] = (float)real; break;
        case TN_F64: ((double *)data)[i] = real; break;
        case TN_I32: ((int32_t *)data)[i] = (int32_t)bits; break;
        case TN_U32: ((uint32_t *)data)[i] = (uint32_t)bits; break;
        case TN_BOOL: ((uint8_t *)data)[i] = bits & 1; break;
        default: ((uint64_t *)data)[i] = bits; break;
        }
    }
}

/* An order is right when it is a permutation, and neighbours ascend: by value, and by
 * position where values are equal. */
static void check_order(const void *data, const int64_t *order, int64_t length, tn_dtype t, bool descending) {
    char *seen = room((size_t)length + 1);
    memset(seen, 0, (size_t)length);
    for (int64_t i = 0; i < length; i++) {
        assert_in_range(order[i], 0, length - 1);
        assert_int_equal(seen[order[i]]++, 0);
        if (i == 0) continue;
        int c = compare_at(data, order[i - 1], order[i], t);
        if (descending) c = -c;
        if (c < 0 || (c == 0 && order[i - 1] < order[i])) continue;
        fail_msg("%s, length %lld, %s: positions %lld and %lld are out of order", tn_dtype_name(t), (long long)length,
                 descending ? "descending" : "ascending", (long long)order[i - 1], (long long)order[i]);
    }
    tn_mem_free(seen);
}

static void check_sort(int64_t rows, int64_t length, tn_dtype t) {
    size_t size = tn_dtype_size(t), count = (size_t)(rows * length);
    char *data = room(count * size + 1);
    int64_t *order = room(count * sizeof *order + 1);
    fill_sortable(data, rows * length, t);
    for (int variant = 0; variant < 2 * MAX_THREADS; variant++) {
        int threads = variant / 2 + 1;
        assert_ok(tn_threads_set(threads));
        void *workspace = room((size_t)(threads * 2 * length) * sizeof(int64_t));
        tn_argsort_args x = {.data = data,
                             .order = order,
                             .rows = rows,
                             .length = length,
                             .dtype = t,
                             .descending = variant % 2,
                             .workspace = workspace};
        memset(order, 0xff, count * sizeof *order);
        tn_argsort_rows(&x);
        for (int64_t r = 0; r < rows; r++) {
            check_order(data + (size_t)(r * length) * size, order + r * length, length, t, x.descending);
        }
        tn_mem_free(workspace);
    }
    tn_mem_free(data);
    tn_mem_free(order);
}

static void argsort_is_stable_for_every_type_and_length(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1},   {5, 2},   {1000, 7}, {3, 0},    {0, 3},
                                       {20, 47}, {20, 48}, {9, 300},  {2, 20000}};
    for (int t = TN_F32; t <= TN_BOOL; t++) {
        for (size_t i = 0; i < TN_COUNT(sizes); i++)
            check_sort(sizes[i][0], sizes[i][1], (tn_dtype)t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scatter_sums_in_ascending_order_on_any_number_of_threads),
        cmocka_unit_test(one_source_row_may_be_added_everywhere),
        cmocka_unit_test(argsort_is_stable_for_every_type_and_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
