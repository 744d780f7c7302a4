/* test_convert.c — `trunnion convert`, where the command was built beside this program: weights go from file to file
 * and come back with the same bytes; what is rounded is reported, what cannot be converted is refused in words. */
#include "test_support.h"

#include "trunnion/model.h"
#include "trunnion/onnx.h"
#include "trunnion/ops.h"

static void expect(int code, const char *arguments, const char *words) {
    char said[8192];
    int got = run_convert(arguments, said, sizeof said);
    if (got != code || !strstr(said, words))
        fail_msg("convert %s: %d, not %d with '%s': %s", arguments, got, code, words, said);
}

static void make_model(const char *name) {
    float x[64 * 256], norm[256];
    for (int i = 0; i < 64 * 256; i++)
        x[i] = (float)((i * 7919 % 1000) - 500) * 1e-3f;
    for (int i = 0; i < 256; i++)
        norm[i] = 1 + (float)i * 1e-3f;
    TN_SCOPE;
    const tn_named_tensor named[] = {
        {"blk.0.ffn_up.weight", tn_from_data(x, (int64_t[]){64, 256}, 2, TN_F32)},
        {"blk.1.ffn_up.weight", tn_from_data(x + 32, (int64_t[]){63, 256}, 2, TN_F32)},
        {"blk.0.odd.weight", tn_from_data(x, (int64_t[]){4, 96}, 2, TN_F32)},
        {"norm.weight", tn_from_data(norm, (int64_t[]){256}, 1, TN_F32)},
    };
    const tn_metadata metadata[] = {{"general.architecture", "none"}, {"general.name", "a test"}};
    assert_ok(tn_gguf_save(test_scratch(name), named, 4, metadata, 2));
}

static void files_come_back_with_the_same_bytes(void **state) {
    (void)state;
    char *before = NULL, *after = NULL;
    size_t n, m;
    make_model("model.gguf");
    expect(0, "model.gguf same.gguf --verify", "verified: 4 tensors");
    expect(0, "model.gguf model.safetensors --verify", "verified: 4 tensors");
    expect(0, "model.safetensors back.gguf --like model.gguf --verify", "verified: 4 tensors");
    assert_ok(tn_file_read(test_scratch("same.gguf"), &before, &n, 1 << 20));
    expect(0, "same.gguf again.gguf", "4 tensors");
    assert_ok(tn_file_read(test_scratch("again.gguf"), &after, &m, 1 << 20));
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    tn_mem_free(before);
    tn_mem_free(after);
    tn_gguf *a = NULL, *b = NULL;
    assert_ok(tn_gguf_open(test_scratch("model.gguf"), &a));
    assert_ok(tn_gguf_open(test_scratch("back.gguf"), &b));
    for (int64_t i = 0; i < tn_gguf_count(a); i++) {
        tn_gguf_info x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
        assert_ok(tn_gguf_at(a, i, &x));
        assert_ok(tn_gguf_find(b, x.name, &y));
        assert_int_equal(x.bytes, y.bytes);
        assert_memory_equal(x.data, y.data, (size_t)x.bytes);
    }
    tn_gguf_close(a);
    tn_gguf_close(b);
}

static void what_is_rounded_is_reported(void **state) {
    (void)state;
    make_model("model.gguf");
    expect(0, "model.gguf q4.gguf --quantize Q4_K --verify --json", "\"name\": \"blk.*.ffn_up.weight\"");
    expect(0, "model.gguf q8.gguf --quantize q8_0 --json", "\"to\": \"q8_0\"");
    tn_gguf *file = NULL;
    tn_gguf_info info = {.struct_size = sizeof info};
    int64_t type;
    assert_ok(tn_gguf_open(test_scratch("q4.gguf"), &file));
    assert_ok(tn_gguf_find(file, "blk.1.ffn_up.weight", &info));
    assert_string_equal(info.dtype_name, "Q4_K");
    assert_ok(tn_gguf_find(file, "blk.0.odd.weight", &info)); /* its rows are no blocks of 256 */
    assert_string_equal(info.dtype_name, "Q5_0");
    assert_ok(tn_gguf_find(file, "norm.weight", &info));
    assert_string_equal(info.dtype_name, "F32");
    assert_ok(tn_gguf_get_int(file, "general.file_type", &type));
    assert_int_equal(type, 14);
    tn_gguf_close(file);
}

static void pytorch_files_are_converted(void **state) {
    (void)state;
    char folder[400], line[900];
    assert_non_null(getcwd(folder, sizeof folder));
    snprintf(line, sizeof line, "'%s/tests/corpus/pickle/older.pt' older.safetensors --verify", folder);
    expect(0, line, "verified: 7 tensors");
    snprintf(line, sizeof line, "'%s/tests/corpus/pickle/module.pt' module.safetensors", folder);
    expect(1, line, "Sequential");
}

static void weights_come_out_of_onnx_files(void **state) {
    (void)state;
    float x[12], back[12];
    for (int i = 0; i < 12; i++)
        x[i] = (float)i / 7;
    {
        TN_SCOPE;
        tn_tensor *in = tn_from_data(x, (int64_t[]){2, 4}, 2, TN_F32),
                  *w = tn_from_data(x, (int64_t[]){3, 4}, 2, TN_F32);
        const tn_named_tensor weight = {"layer.weight", w};
        tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
        o.weights = &weight;
        o.weight_count = 1;
        const tn_named_tensor input = {"x", in}, output = {"y", tn_reshape(tn_linear(in, w, NULL), (int64_t[]){6}, 1)};
        assert_ok(tn_onnx_export(test_scratch("net.onnx"), &input, 1, &output, 1, &o));
    }
    expect(0, "net.onnx net.safetensors --verify", "verified: 1 tensors"); /* not the shape of the reshape */
    tn_safetensors *file = NULL;
    assert_ok(tn_safetensors_open(test_scratch("net.safetensors"), &file));
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_safetensors_tensor(file, "layer.weight"), back, sizeof back));
    }
    tn_safetensors_close(file);
    assert_memory_equal(x, back, sizeof x);
    tn_onnx_options alone = TN_ONNX_DEFAULTS;
    alone.weights_only = true;
    tn_onnx *m = NULL;
    tn_onnx_value *none = NULL;
    assert_ok(tn_onnx_open(test_scratch("net.onnx"), &alone, &m));
    assert_int_equal(tn_onnx_run(m, &none, &none), TN_ERR_STATE);
    tn_onnx_close(m);
}

static void what_cannot_be_converted_is_refused_in_words(void **state) {
    (void)state;
    make_model("model.gguf");
    expect(2, "model.safetensors x.onnx", "cannot become an ONNX network");
    expect(1, "absent.onnx x.gguf", "absent.onnx");
    expect(2, "model.gguf x.txt", "OUT must end with");
    expect(2, "model.gguf", "two files");
    expect(2, "model.gguf x.gguf --quantize Q9", "the types are Q4_K_M and other mixes, f32");
    expect(2, "model.gguf x.safetensors --quantize Q4_0", "no quantized types");
    expect(2, "model.gguf ./model.gguf --quantize Q4_0", "OUT must differ from IN");
    expect(1, "absent.gguf x.gguf", "absent.gguf");
    assert_int_equal(access(test_scratch("x.gguf"), F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_come_back_with_the_same_bytes),
        cmocka_unit_test(what_is_rounded_is_reported),
        cmocka_unit_test(pytorch_files_are_converted),
        cmocka_unit_test(weights_come_out_of_onnx_files),
        cmocka_unit_test(what_cannot_be_converted_is_refused_in_words),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
