/* test_gguf_save.c — writing GGUF files: metadata and tensors of every type read back as they were, a file is there
 * whole or not at all; and quantising: blocks are as good as the formats allow. */
#include "test_support.h"

#include <math.h>

#include "cpu/cpu_kernels.h"
#include "random_numbers.h"
#include "trunnion/model.h"
#include "trunnion/ops.h"

static tn_gguf_writer *create(const char *path, int64_t alignment) {
    tn_gguf_writer *w = NULL;
    assert_ok(tn_gguf_create(path, alignment, &w));
    return w;
}

static void put_everything(tn_gguf_writer *w) {
    assert_ok(tn_gguf_put_int(w, "u8", TN_GGUF_U8, 255));
    assert_ok(tn_gguf_put_int(w, "i8", TN_GGUF_I8, -128));
    assert_ok(tn_gguf_put_int(w, "u16", TN_GGUF_U16, 65535));
    assert_ok(tn_gguf_put_int(w, "i16", TN_GGUF_I16, -32768));
    assert_ok(tn_gguf_put_int(w, "u32", TN_GGUF_U32, UINT32_MAX));
    assert_ok(tn_gguf_put_int(w, "i32", TN_GGUF_I32, INT32_MIN));
    assert_ok(tn_gguf_put_int(w, "u64", TN_GGUF_U64, INT64_MAX));
    assert_ok(tn_gguf_put_int(w, "i64", TN_GGUF_I64, INT64_MIN));
    assert_ok(tn_gguf_put_int(w, "bool", TN_GGUF_BOOL, 1));
    assert_ok(tn_gguf_put_float(w, "f32", TN_GGUF_F32, 1.5));
    assert_ok(tn_gguf_put_float(w, "f64", TN_GGUF_F64, 1e300));
    assert_ok(tn_gguf_put_string(w, "text", "a\0b", 3));
    assert_ok(tn_gguf_put_array(w, "numbers", TN_GGUF_I16, 3, (int16_t[]){1, -2, 3}));
    assert_ok(tn_gguf_put_array(w, "none", TN_GGUF_F32, 0, NULL));
    assert_ok(tn_gguf_put_strings(w, "texts", 2, (const char *[]){"one", "two"}, NULL));
}

static void expect_everything(const tn_gguf *file) {
    static const struct {
        const char *key;
        tn_gguf_type type;
        int64_t value;
    } ints[] = {{"u8", TN_GGUF_U8, 255},         {"i8", TN_GGUF_I8, -128},         {"u16", TN_GGUF_U16, 65535},
                {"i16", TN_GGUF_I16, -32768},    {"u32", TN_GGUF_U32, UINT32_MAX}, {"i32", TN_GGUF_I32, INT32_MIN},
                {"u64", TN_GGUF_U64, INT64_MAX}, {"i64", TN_GGUF_I64, INT64_MIN},  {"bool", TN_GGUF_BOOL, 1}};
    int64_t number, length;
    double real;
    const char *text;
    for (size_t i = 0; i < TN_COUNT(ints); i++) {
        assert_ok(tn_gguf_get_int(file, ints[i].key, &number));
        assert_true(number == ints[i].value);
        assert_int_equal(tn_gguf_type_of(tn_gguf_get(file, ints[i].key)), ints[i].type);
    }
    assert_ok(tn_gguf_get_float(file, "f32", &real));
    assert_true(real == 1.5);
    assert_ok(tn_gguf_get_float(file, "f64", &real));
    assert_true(real == 1e300);
    assert_ok(tn_gguf_get_string(file, "text", &text, &length));
    assert_int_equal(length, 3);
    assert_memory_equal(text, "a\0b", 3);
    assert_ok(tn_gguf_int(tn_gguf_get(file, "numbers"), 1, &number));
    assert_int_equal(number, -2);
    assert_int_equal(tn_gguf_length(tn_gguf_get(file, "none")), 0);
    assert_ok(tn_gguf_string(tn_gguf_get(file, "texts"), 1, &text, &length));
    assert_memory_equal(text, "two", 3);
}

static void metadata_of_every_type_reads_back(void **state) {
    (void)state;
    tn_gguf *first = NULL, *second = NULL;
    tn_gguf_writer *w = create(test_scratch("first.gguf"), 64);
    put_everything(w);
    assert_ok(tn_gguf_commit(w));
    assert_ok(tn_gguf_open(test_scratch("first.gguf"), &first));
    expect_everything(first);

    w = create(test_scratch("second.gguf"), 0);
    for (int64_t i = 0; i < tn_gguf_key_count(first); i++) {
        const char *key = tn_gguf_key(first, i);
        assert_ok(tn_gguf_put_value(w, key, tn_gguf_get(first, key)));
    }
    assert_int_equal(tn_gguf_put_int(w, "u8", TN_GGUF_U8, 1), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_put_int(w, "x", TN_GGUF_U8, 256), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_put_int(w, "x", TN_GGUF_F32, 1), TN_ERR_ARGUMENT);
    assert_ok(tn_gguf_commit(w));
    assert_ok(tn_gguf_open(test_scratch("second.gguf"), &second));
    expect_everything(second);
    tn_gguf_close(first);
    tn_gguf_close(second);
}

static void tensors_of_every_type_read_back(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_F32,  TN_F64,  TN_F16,  TN_BF16, TN_I8,   TN_I16,  TN_I32,  TN_I64,  TN_Q4_0,
                                     TN_Q4_1, TN_Q5_0, TN_Q5_1, TN_Q8_0, TN_Q2_K, TN_Q3_K, TN_Q4_K, TN_Q5_K, TN_Q6_K};
    enum { TYPES = TN_COUNT(types), NUMEL = 3 * 256 };
    static uint8_t bytes[NUMEL * 8], back[NUMEL * 8];
    tn_named_tensor named[TYPES];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37 % 64);
    for (int i = 0; i < TYPES; i++)
        named[i] = (tn_named_tensor){tn_dtype_name(types[i]), tn_from_data(bytes, (int64_t[]){3, 256}, 2, types[i])};
    const tn_metadata metadata = {"general.name", "all types"};
    assert_ok(tn_gguf_save(test_scratch("types.gguf"), named, TYPES, &metadata, 1));
    tn_gguf *file = NULL;
    assert_ok(tn_gguf_open(test_scratch("types.gguf"), &file));
    assert_int_equal(tn_gguf_count(file), TYPES);
    for (int i = 0; i < TYPES; i++) {
        tn_tensor *t = tn_gguf_tensor(file, named[i].name);
        assert_int_equal(tn_dtype_of(t), types[i]);
        assert_int_equal(tn_size(t, 1), 256);
        size_t size = tn_dtype_bytes(types[i], NUMEL);
        assert_ok(tn_read(t, back, size));
        assert_memory_equal(back, bytes, size);
        tn_free(t);
        tn_free((tn_tensor *)(uintptr_t)named[i].tensor);
    }
    tn_gguf_close(file);
}

static void a_file_is_there_whole_or_not_at_all(void **state) {
    (void)state;
    const char *path = test_scratch("whole.gguf");
    tn_gguf_info t = {.struct_size = sizeof t, .name = "w", .dtype = TN_F32, .rank = 1, .shape = {3}};
    tn_gguf_writer *w = create(path, 0);
    assert_ok(tn_gguf_add(w, &t));
    assert_ok(tn_gguf_write(w, "12345678", 8));
    assert_int_equal(tn_gguf_write(w, "12345678", 8), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "needs only 4 more");
    assert_int_equal(tn_gguf_add(w, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "after tensor data");
    assert_int_equal(tn_gguf_commit(w), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "'w' is incomplete: 4 bytes");
    assert_int_equal(access(path, F_OK), -1);

    w = create(path, 0);
    t.dtype_name = "Q4_K";
    assert_int_equal(tn_gguf_add(w, &t), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "a multiple of 256");
    t.dtype_name = NULL;
    t.dtype = TN_BOOL;
    assert_int_equal(tn_gguf_add(w, &t), TN_ERR_DTYPE);
    t.dtype = TN_F32;
    assert_ok(tn_gguf_add(w, &t));
    assert_ok(tn_gguf_add(w, &t));
    assert_int_equal(tn_gguf_write(w, "1234", 4), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "two tensors are named 'w'");
    tn_gguf_abandon(w);
    assert_int_equal(access(path, F_OK), -1);
}

static void write_little(const char *path, tn_status *status) {
    tn_gguf_writer *w = NULL;
    tn_gguf_info t = {.struct_size = sizeof t, .name = "w", .dtype = TN_F32, .rank = 1, .shape = {1}};
    *status = tn_gguf_create(path, 64, &w);
    if (*status == TN_OK) *status = tn_gguf_put_strings(w, "k", 1, (const char *[]){"v"}, NULL);
    if (*status == TN_OK) *status = tn_gguf_add(w, &t);
    if (*status == TN_OK) *status = tn_gguf_write(w, "1234", 4);
    if (*status == TN_OK) {
        *status = tn_gguf_commit(w);
    } else {
        tn_gguf_abandon(w);
    }
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK && n < 200; n++) {
        int64_t before = tn_mem_get_stats().live_blocks;
        tn_mem_fail_at(n);
        write_little(test_scratch("little.gguf"), &status);
        tn_mem_fail_at(0);
        assert_int_equal(tn_mem_get_stats().live_blocks, before);
    }
    assert_int_equal(status, TN_OK);
}

/* ---- quantising -------------------------------------------------------------------------------------------------- */

enum { NUMBERS = 64 * 256 };

/* Numbers as weights have them: sums of twelve even ones, with a block of zeros, one of equal numbers, one large. */
static void make_weights(float *x) {
    uint64_t state = 7;
    for (int i = 0; i < NUMBERS; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) {
            sum += (double)(random_step(&state) >> 11) * 0x1p-53;
        }
        x[i] = (float)(sum * 0.02);
    }
    memset(x, 0, 256 * sizeof *x);
    for (int i = 256; i < 512; i++)
        x[i] = 0.125f;
    x[600] = 3;
}

/* The error of each format, as a share of the numbers' own size: a little above what this quantiser reaches; behind it
 * what the quantiser of the ggml project leaves on the same numbers (libggml-base 0.25.3). */
static const struct {
    tn_dtype dtype;
    double most;
} limits[] = {
    {TN_Q4_0, 0.0805},  /* 0.0846 */
    {TN_Q4_1, 0.0699},  /* 0.0773 */
    {TN_Q5_0, 0.0403},  /* 0.0428 */
    {TN_Q5_1, 0.0337},  /* 0.0376 */
    {TN_Q8_0, 0.00495}, /* 0.00526 */
    {TN_Q2_K, 0.267},   /* 0.2941 */
    {TN_Q3_K, 0.1446},  /* 0.1497 */
    {TN_Q4_K, 0.0702},  /* 0.0707 */
    {TN_Q5_K, 0.0347},  /* 0.0357 */
    {TN_Q6_K, 0.0169},  /* 0.0176 */
};

/* QEMU before 8.1 gets an instruction of s390x wrong: the product of two f32 as an f64. */
static bool multiplies_floats(void) {
    double product = 15;
#if defined(__s390x__)
    __asm__("ler %0, %1\n\tmdebr %0, %2" : "=&f"(product) : "f"(3.0f), "f"(5.0f));
#endif
    return product == 15;
}

/* For tests that measure how good the quantizing is. */
static void need_float_products(void) {
    if (multiplies_floats()) return;
    print_message("skipped: this emulator multiplies floats to double wrongly (QEMU before 8.1, s390x)\n");
    skip();
}

static void blocks_are_as_near_as_the_format_allows(void **state) {
    (void)state;
    need_float_products();
    static float x[NUMBERS], y[NUMBERS];
    static uint8_t blocks[NUMBERS * 2], alone[NUMBERS * 2];
    make_weights(x);
    for (size_t f = 0; f < TN_COUNT(limits); f++) {
        tn_dtype dtype = limits[f].dtype;
        assert_ok(tn_quantize_blocks(dtype, x, NUMBERS, blocks));
        tn_decode_blocks(dtype, blocks, NUMBERS / tn_dtype_block(dtype), y);
        double error = 0, size = 0;
        for (int i = 768; i < NUMBERS; i++) {
            error += (double)(y[i] - x[i]) * (double)(y[i] - x[i]);
            size += (double)x[i] * (double)x[i];
        }
        double share = sqrt(error / size);
        if (!(share <= limits[f].most))
            fail_msg("%s: an error of %.5f; at most %.5f is allowed", tn_dtype_name(dtype), share, limits[f].most);
        for (int i = 0; i < 256; i++)
            if (y[i] != 0) fail_msg("%s: zero became %g", tn_dtype_name(dtype), (double)y[i]);
        if (fabsf(y[300] - 0.125f) > 0.002f) fail_msg("%s: 0.125 became %g", tn_dtype_name(dtype), (double)y[300]);
        int before = tn_threads();
        assert_ok(tn_threads_set(1));
        assert_ok(tn_quantize_blocks(dtype, x, NUMBERS, alone));
        assert_ok(tn_threads_set(before));
        assert_memory_equal(alone, blocks, tn_dtype_bytes(dtype, NUMBERS));
    }
}

static double error_by_columns(tn_dtype dtype, const float *x, const float *importance, int columns, uint8_t *blocks) {
    static float y[NUMBERS];
    double error = 0;
    tn_decode_blocks(dtype, blocks, NUMBERS / tn_dtype_block(dtype), y);
    for (int i = 768; i < NUMBERS; i++)
        error += (double)importance[i % columns] * ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
    return error;
}

/* Some columns are multiplied with large numbers: the error of the product becomes smaller. Where all count alike,
 * nothing changes. */
static void columns_that_count_more_are_nearer(void **state) {
    (void)state;
    need_float_products();
    enum { COLUMNS = 512 };
    static float x[NUMBERS], importance[COLUMNS], alike[COLUMNS];
    static uint8_t plain[NUMBERS * 2], blocks[NUMBERS * 2];
    make_weights(x);
    for (int k = 0; k < COLUMNS; k++) {
        importance[k] = k % 8 == 3 ? 400 : 1;
        alike[k] = 1e-20f;
    }
    for (size_t f = 0; f < TN_COUNT(limits); f++) {
        tn_dtype dtype = limits[f].dtype;
        assert_ok(tn_quantize_blocks(dtype, x, NUMBERS, plain));
        assert_ok(tn_quantize_rows(dtype, x, NUMBERS, alike, COLUMNS, blocks));
        assert_memory_equal(plain, blocks, tn_dtype_bytes(dtype, NUMBERS));
        double before = error_by_columns(dtype, x, importance, COLUMNS, plain);
        assert_ok(tn_quantize_rows(dtype, x, NUMBERS, importance, COLUMNS, blocks));
        double after = error_by_columns(dtype, x, importance, COLUMNS, blocks);
        if (!(after <= 0.8 * before)) fail_msg("%s: %g, and %g without", tn_dtype_name(dtype), after, before);
    }
    importance[5] = NAN;
    importance[6] = INFINITY;
    assert_ok(tn_quantize_rows(TN_Q4_K, x, NUMBERS, importance, COLUMNS, blocks));
    assert_int_equal(tn_quantize_rows(TN_Q4_K, x, NUMBERS, importance, 100, blocks), TN_ERR_ARGUMENT);
}

/* Factors below the smallest normal f16 are kept, as well as so few bits can: 2e-6 is 34 of the smallest steps. */
static void tiny_numbers_are_kept(void **state) {
    (void)state;
    need_float_products();
    static float x[NUMBERS], y[NUMBERS];
    static uint8_t blocks[NUMBERS * 2];
    for (size_t f = 0; f < TN_COUNT(limits); f++)
        for (float scale = 1e-4f; scale > 1e-9f; scale /= 7) {
            tn_dtype dtype = limits[f].dtype;
            double error = 0, size = 0;
            make_weights(x);
            for (int i = 768; i < NUMBERS; i++)
                x[i] *= scale;
            assert_ok(tn_quantize_blocks(dtype, x + 768, NUMBERS - 768, blocks));
            tn_decode_blocks(dtype, blocks, (NUMBERS - 768) / tn_dtype_block(dtype), y + 768);
            for (int i = 768; i < NUMBERS; i++) {
                error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
                size += (double)x[i] * (double)x[i];
            }
            double share = sqrt(error / size), each = sqrt(size / (NUMBERS - 768));
            double most = each > 2e-6 ? 1.5 * limits[f].most + 0.02 : 1.02;
            if (!(share <= most))
                fail_msg("%s, scale %g: an error of %.3f; at most %.3f is allowed", tn_dtype_name(dtype), (double)scale,
                         share, most);
        }
}

static void odd_numbers_are_quantised_to_something_finite(void **state) {
    (void)state;
    float x[256], y[256];
    uint8_t blocks[512];
    for (size_t f = 0; f < TN_COUNT(limits); f++) {
        tn_dtype dtype = limits[f].dtype;
        for (int i = 0; i < 256; i++)
            x[i] = i % 64 == 0 ? INFINITY : i % 64 == 1 ? NAN : i % 3 == 0 ? 1e38f : i % 3 == 1 ? -1e-40f : 1e-20f;
        assert_ok(tn_quantize_blocks(dtype, x, 256, blocks));
        tn_decode_blocks(dtype, blocks, 256 / tn_dtype_block(dtype), y);
        for (int i = 0; i < 256; i++)
            if (!isfinite(y[i])) fail_msg("%s: element %d became %g", tn_dtype_name(dtype), i, (double)y[i]);
    }
    assert_int_equal(tn_quantize_blocks(TN_F16, x, 256, blocks), TN_ERR_DTYPE);
    assert_int_equal(tn_quantize_blocks(TN_Q4_K, x, 128, blocks), TN_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_of_every_type_reads_back),
        cmocka_unit_test(tensors_of_every_type_read_back),
        cmocka_unit_test(a_file_is_there_whole_or_not_at_all),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(blocks_are_as_near_as_the_format_allows),
        cmocka_unit_test(columns_that_count_more_are_nearer),
        cmocka_unit_test(tiny_numbers_are_kept),
        cmocka_unit_test(odd_numbers_are_quantised_to_something_finite),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
