/* test_folder_quant.c — folders with quantized weights: every stored number becomes the right value, in the order of
 * its format, and parts that do not fit each other are refused.
 *
 * tools/text/hf_folders.py compares whole models with transformers. */
#include "test_support.h"

#include <errno.h>
#include <math.h>
#include <strings.h>

#include "text/folder.h"
#include "trunnion/trunnion.h"

enum { MOST = 8, MOST_BYTES = 4096 };

/* A safetensors file by hand: it may have types that Trunnion does not write. */
typedef struct raw {
    char header[2000];
    uint8_t data[MOST_BYTES];
    size_t header_size, data_size;
    int count;
} raw;

static void add_shaped(raw *r, const char *name, const char *type, const char *shape, const void *data, size_t bytes) {
    r->header_size += (size_t)snprintf(r->header + r->header_size, sizeof r->header - r->header_size,
                                       "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                       r->count++ ? "," : "{", name, type, shape, r->data_size, r->data_size + bytes);
    memcpy(r->data + r->data_size, data, bytes);
    for (tn_dtype t = TN_F32; t < TN_Q4_0; t++)
        if (strcasecmp(tn_dtype_name(t), type) == 0)
            tn_dtype_little_endian(t, r->data + r->data_size, (int64_t)(bytes / tn_dtype_size(t)));
    r->data_size += bytes;
}

static void add(raw *r, const char *name, const char *type, int64_t rows, int64_t columns, const void *data,
                size_t bytes) {
    char shape[48];
    snprintf(shape, sizeof shape, columns ? "%lld,%lld" : "%lld", (long long)rows, (long long)columns);
    add_shaped(r, name, type, shape, data, bytes);
}

static const char *write_folder(raw *r, const char *config) {
    const char *folder = test_scratch("folder");
    char path[700];
    assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    r->header[r->header_size++] = '}';
    uint64_t size = r->header_size;
    tn_dtype_little_endian(TN_U64, &size, 1);
    assert_int_equal(fwrite(&size, 8, 1, f), 1);
    assert_int_equal(fwrite(r->header, r->header_size, 1, f), 1);
    assert_int_equal(fwrite(r->data, 1, r->data_size, f), r->data_size);
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    char text[600];
    snprintf(text, sizeof text, "{\"quantization_config\":{%s}}", config);
    write_file(path, text);
    return folder;
}

/* Reads "x.weight" as f32 [rows, columns]. */
static tn_status read_weight(const char *folder, int64_t rows, int64_t columns, float *out) {
    hf_folder f;
    tn_safetensors_info info = {.struct_size = sizeof info};
    tn_status status = tn_hf_open(folder, &f);
    if (status == TN_OK) {
        TN_SCOPE;
        assert_true(tn_hf_find(&f, "x.weight", &info));
        assert_int_equal(info.shape[0], rows);
        assert_int_equal(info.shape[1], columns);
        tn_tensor *t = tn_hf_weights_tensor(f.weights, "x.weight");
        status = tn_read_as(tn_cast(t, TN_F32), out, rows * columns, TN_F32);
        assert_true(status != TN_OK || tn_dtype_of(t) == info.dtype);
        assert_int_equal(tn_hf_weights_count(f.weights), 1);
    }
    tn_hf_close(&f);
    return status;
}

/* ---- FP8 --------------------------------------------------------------------------------------------------------- */

/* By the definition of e4m3. */
static double value_of(int byte) {
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    double value = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa, -9);
    if ((byte & 127) == 127) return NAN;
    return byte & 128 ? -value : value;
}

/* All bytes, in 16 rows; scales of blocks of 16 × 8, of rows, and of all. */
static void every_byte_of_fp8_has_its_value(void **state) {
    (void)state;
    static const char *const configs[] = {"\"quant_method\":\"fp8\",\"weight_block_size\":[16,8]",
                                          "\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"",
                                          "\"quant_method\":\"fp8\""};
    uint8_t bytes[256];
    float scales[16], got[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    for (int i = 0; i < 16; i++)
        scales[i] = ldexpf(1, i % 5 - 2); /* exact in bf16 */
    for (int kind = 0; kind < 3; kind++) {
        raw r = {0};
        add(&r, "x.weight", "F8_E4M3", 16, 16, bytes, 256);
        if (kind == 0) add(&r, "x.weight_scale_inv", "F32", 1, 2, scales, 8);
        if (kind == 1) add(&r, "x.weight_scale", "F32", 16, 1, scales, 64);
        if (kind == 2) add(&r, "x.weight_scale", "F32", 1, 0, scales, 4);
        assert_ok(read_weight(write_folder(&r, configs[kind]), 16, 16, got));
        for (int i = 0; i < 256; i++) {
            double scale = (double)scales[kind == 0 ? i % 16 / 8 : kind == 1 ? i / 16 : 0];
            double wanted = value_of(i) * scale;
            assert_true(isnan(wanted) ? isnan(got[i]) : (double)got[i] == wanted);
        }
    }
}

/* ---- GPTQ and AWQ ------------------------------------------------------------------------------------------------ */

enum { ROWS = 16, COLUMNS = 16, GROUPS = 2 };

static int number_of(int row, int column) { return (row * 7 + column * 3) % 16; }
static int zero_of(int group, int row) { return (group * 5 + row) % 16; }

/* Packed parts of a matrix with these numbers; order NULL: groups follow each other. */
static void put_packed(raw *r, bool awq, int offset, const int32_t *order) {
    static const int awq_order[] = {0, 2, 4, 6, 1, 3, 5, 7}; /* of the columns in a word */
    uint32_t words[ROWS * COLUMNS / 8] = {0}, zeros[GROUPS * ROWS / 8] = {0};
    float scales[GROUPS * ROWS];
    for (int g = 0; g < GROUPS; g++)
        for (int o = 0; o < ROWS; o++) {
            int place = 0;
            while (awq_order[place] != o % 8)
                place++;
            int shift = 4 * (awq ? place : o % 8);
            zeros[g * (ROWS / 8) + o / 8] |= (uint32_t)((zero_of(g, o) - offset) & 15) << shift;
            scales[g * ROWS + o] = ldexpf(1, g - o % 3);
            for (int i = g * COLUMNS / GROUPS; i < (g + 1) * COLUMNS / GROUPS; i++) {
                if (awq) words[i * (ROWS / 8) + o / 8] |= (uint32_t)number_of(o, i) << shift;
                if (!awq) words[i / 8 * ROWS + o] |= (uint32_t)number_of(o, i) << 4 * (i % 8);
            }
        }
    add(r, "x.qweight", "I32", awq ? COLUMNS : COLUMNS / 8, awq ? ROWS / 8 : ROWS, words, sizeof words);
    add(r, "x.qzeros", "I32", GROUPS, ROWS / 8, zeros, sizeof zeros);
    add(r, "x.scales", "F32", GROUPS, ROWS, scales, sizeof scales);
    if (order) add(r, "x.g_idx", "I32", COLUMNS, 0, order, COLUMNS * sizeof *order);
}

static void expect_packed(const char *folder, const int32_t *order) {
    float got[ROWS * COLUMNS];
    assert_ok(read_weight(folder, ROWS, COLUMNS, got));
    for (int o = 0; o < ROWS; o++)
        for (int i = 0; i < COLUMNS; i++) {
            int g = order ? order[i] : i / (COLUMNS / GROUPS);
            double wanted = ldexp(number_of(o, i) - zero_of(g, o), g - o % 3);
            if ((double)got[o * COLUMNS + i] != wanted)
                fail_msg("[%d, %d] is %g, must be %g", o, i, (double)got[o * COLUMNS + i], wanted);
        }
}

static void packed_numbers_have_their_values(void **state) {
    (void)state;
    int32_t order[COLUMNS];
    for (int i = 0; i < COLUMNS; i++)
        order[i] = i * 5 % 3 == 1;
    raw first = {0}, second = {0}, sorted = {0}, awq = {0};
    put_packed(&first, false, 1, NULL);
    expect_packed(write_folder(&first, "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8"), NULL);
    put_packed(&second, false, 0, NULL);
    expect_packed(write_folder(&second, "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8,"
                                        "\"checkpoint_format\":\"gptq_v2\""),
                  NULL);
    put_packed(&sorted, false, 1, order);
    uint8_t zeros[2 * ROWS] = {0};
    add(&sorted, "x.bias", "F16", ROWS, 0, zeros, sizeof zeros); /* is left out */
    expect_packed(write_folder(&sorted, "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8,\"desc_act\":true"),
                  order);
    put_packed(&awq, true, 0, NULL);
    expect_packed(write_folder(&awq, "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":8,\"version\":\"gemm\""),
                  NULL);
}

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

static void other_methods_are_refused(void **state) {
    (void)state;
    static const char *const configs[][2] = {
        {"\"quant_method\":\"bitsandbytes\"", "quant_method 'bitsandbytes'"},
        {"\"bits\":4", "quant_method ''"},
        {"\"quant_method\":\"gptq\",\"bits\":3", "bits '3'"},
        {"\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-7", "group_size '-7'"},
        {"\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"", "checkpoint_format 'marlin'"},
        {"\"quant_method\":\"awq\",\"bits\":8", "bits '8'"},
        {"\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"", "version 'gemv'"},
        {"\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"", "format 'pack-quantized'"},
    };
    for (size_t i = 0; i < TN_COUNT(configs); i++) {
        raw r = {0};
        hf_folder f;
        put_packed(&r, false, 1, NULL);
        assert_int_equal(tn_hf_open(write_folder(&r, configs[i][0]), &f), TN_ERR_UNSUPPORTED);
        if (!strstr(tn_error(), configs[i][1])) fail_msg("row %zu: %s", i, tn_error());
        tn_hf_close(&f);
    }
}

static void parts_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const char gptq[] = "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8";
    static const struct {
        const char *from, *to, *config, *says; /* what is changed in the header */
    } rows[] = {
        {"x.scales", "x.scalez", gptq, "its scales are missing"},
        {"x.qzeros", "x.qzeroz", gptq, "its qzeros are missing"},
        {"\"x.qweight\":{\"dtype\":\"I32\"", "\"x.qweight\":{\"dtype\":\"F32\"", gptq, "must be I32"},
        {"\"x.scales\":{\"dtype\":\"F32\"", "\"x.scales\":{\"dtype\":\"I32\"", gptq, "its scales are missing"},
        {"[2,16]", "[16,2]", gptq, "multiple of the integers"},
        {"", "", "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":16", "do not fit group_size"},
        {"", "", "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1", "do not fit group_size"},
        {"", "", "\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":8", "do not fit group_size"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        raw r = {0};
        hf_folder f;
        put_packed(&r, false, 1, NULL);
        char *at = strstr(r.header, rows[i].from);
        assert_non_null(at);
        memcpy(at, rows[i].to, strlen(rows[i].to));
        tn_status status = tn_hf_open(write_folder(&r, rows[i].config), &f);
        if (status != TN_ERR_FORMAT || !strstr(tn_error(), rows[i].says))
            fail_msg("row %zu: %s", i, status == TN_OK ? "opened" : tn_error());
        tn_hf_close(&f);
    }
    int32_t order[COLUMNS] = {0};
    for (int wrong = -1; wrong <= GROUPS; wrong += GROUPS + 1) {
        raw r = {0};
        hf_folder f;
        order[7] = wrong;
        put_packed(&r, false, 1, order);
        assert_int_equal(tn_hf_open(write_folder(&r, gptq), &f), TN_ERR_FORMAT);
        assert_non_null(strstr(tn_error(), "a group that does not exist"));
        tn_hf_close(&f);
    }
    raw twice = {0};
    hf_folder f;
    put_packed(&twice, false, 1, NULL);
    add(&twice, "x.weight", "F32", 1, 1, &(float){1}, 4);
    assert_int_equal(tn_hf_open(write_folder(&twice, gptq), &f), TN_ERR_FORMAT);
    assert_non_null(strstr(tn_error(), "stored twice"));
    tn_hf_close(&f);
}

static void scales_of_fp8_must_fit(void **state) {
    (void)state;
    uint8_t bytes[24] = {0};
    float scales[4] = {1, 1, 1, 1}, got[24];
    raw none = {0}, wrong = {0};
    add(&none, "x.weight", "F8_E4M3", 4, 6, bytes, 24);
    assert_int_equal(read_weight(write_folder(&none, "\"quant_method\":\"fp8\""), 4, 6, got), TN_ERR_FORMAT);
    assert_non_null(strstr(tn_error(), "its scales are missing"));
    add(&wrong, "x.weight", "F8_E4M3", 4, 6, bytes, 24);
    add(&wrong, "x.weight_scale_inv", "F32", 2, 1, scales, 8);
    const char *folder = write_folder(&wrong, "\"quant_method\":\"fp8\",\"weight_block_size\":[2,3]");
    assert_int_equal(read_weight(folder, 4, 6, got), TN_ERR_FORMAT);
    assert_non_null(strstr(tn_error(), "do not fit weight_block_size"));
}

/* ---- MXFP4 ------------------------------------------------------------------------------------------------------- */

enum { EXPERTS = 2, OUT = 3, PARTS = 2, IN = 32 * PARTS };

static int code_of(int expert, int out, int in) { return (expert * 5 + out * 7 + in * 3) % 16; }

/* Bit by bit: sign, two bits of exponent with bias 1, one of mantissa. */
static double e2m1(int code) {
    int exponent = code >> 1 & 3, mantissa = code & 1;
    double value = exponent ? ldexp(1 + 0.5 * mantissa, exponent - 1) : 0.5 * mantissa;
    return code & 8 ? -value : value;
}

static void put_mxfp4(raw *r, const char *scales_shape) {
    uint8_t blocks[EXPERTS * OUT * PARTS * 16], scales[EXPERTS * OUT * PARTS];
    for (int e = 0; e < EXPERTS; e++)
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i += 2)
                blocks[((e * OUT + o) * IN + i) / 2] = (uint8_t)(code_of(e, o, i) | code_of(e, o, i + 1) << 4);
    for (int i = 0; i < EXPERTS * OUT * PARTS; i++)
        scales[i] = (uint8_t)(120 + i);
    add_shaped(r, "x_blocks", "U8", "2,3,2,16", blocks, sizeof blocks);
    if (scales_shape) add_shaped(r, "x_scales", "U8", scales_shape, scales, sizeof scales);
}

static void blocks_of_mxfp4_have_their_values(void **state) {
    (void)state;
    raw r = {0};
    hf_folder f;
    float got[EXPERTS * IN * OUT];
    put_mxfp4(&r, "2,3,2");
    assert_ok(tn_hf_open(write_folder(&r, "\"quant_method\":\"mxfp4\""), &f));
    {
        TN_SCOPE;
        tn_tensor *t = tn_hf_weights_tensor(f.weights, "x");
        assert_int_equal(tn_hf_weights_count(f.weights), 1);
        assert_int_equal(tn_size(t, 1), IN);
        assert_int_equal(tn_size(t, 2), OUT);
        assert_ok(tn_read_as(tn_cast(t, TN_F32), got, TN_COUNT(got), TN_F32));
    }
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < IN; i++)
            for (int o = 0; o < OUT; o++) {
                double want = e2m1(code_of(e, o, i)) * ldexp(1, 120 + (e * OUT + o) * PARTS + i / 32 - 127);
                assert_true((double)got[(e * IN + i) * OUT + o] == want);
            }
    tn_hf_close(&f);
}

static void scales_of_mxfp4_must_fit(void **state) {
    (void)state;
    static const char *const shapes[] = {NULL, "3,2,2", "12"};
    for (size_t i = 0; i < TN_COUNT(shapes); i++) {
        raw r = {0};
        hf_folder f;
        put_mxfp4(&r, shapes[i]);
        assert_int_equal(tn_hf_open(write_folder(&r, "\"quant_method\":\"mxfp4\""), &f), TN_ERR_FORMAT);
        assert_non_null(strstr(tn_error(), "do not fit the blocks"));
        tn_hf_close(&f);
    }
}

/* Only folders of that method have scales for such bytes. */
static void bytes_of_fp8_beside_mxfp4_keep_their_type(void **state) {
    (void)state;
    static const uint8_t bytes[6] = {0};
    tn_safetensors_info t = {.struct_size = sizeof t};
    raw r = {0};
    hf_folder f;
    put_mxfp4(&r, "2,3,2");
    add_shaped(&r, "y.weight", "F8_E4M3", "2,3", bytes, sizeof bytes);
    assert_ok(tn_hf_open(write_folder(&r, "\"quant_method\":\"mxfp4\""), &f));
    assert_true(tn_hf_weights_find(f.weights, "y.weight", &t));
    assert_string_equal(t.dtype_name, "F8_E4M3");
    tn_hf_close(&f);
}

static tn_status use_once(const char *folder) {
    float got[ROWS * COLUMNS];
    return read_weight(folder, ROWS, COLUMNS, got);
}

static void reading_leaves_nothing_behind(void **state) {
    (void)state;
    raw r = {0};
    put_packed(&r, false, 1, NULL);
    const char *folder = write_folder(&r, "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8");
    for (int i = 0; i < 3; i++) /* plans are kept */
        assert_ok(use_once(folder));
    int64_t before = (int64_t)tn_mem_get_stats().live_blocks;
    for (int i = 0; i < 5; i++)
        assert_ok(use_once(folder));
    assert_int_equal(tn_mem_get_stats().live_blocks, before);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    raw r = {0};
    put_packed(&r, false, 1, NULL);
    const char *folder = write_folder(&r, "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":8");
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_txt_fail_at(n);
        status = use_once(folder);
        tn_txt_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        assert_int_equal(tn_txt_live_blocks(), 0);
        assert_true(n < 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_of_fp8_has_its_value), cmocka_unit_test(packed_numbers_have_their_values),
        cmocka_unit_test(other_methods_are_refused),       cmocka_unit_test(parts_that_do_not_fit_are_refused),
        cmocka_unit_test(scales_of_fp8_must_fit),          cmocka_unit_test(reading_leaves_nothing_behind),
        cmocka_unit_test(memory_may_run_out_anywhere),     cmocka_unit_test(blocks_of_mxfp4_have_their_values),
        cmocka_unit_test(scales_of_mxfp4_must_fit),        cmocka_unit_test(bytes_of_fp8_beside_mxfp4_keep_their_type),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
