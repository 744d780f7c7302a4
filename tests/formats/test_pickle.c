/* test_pickle.c — PyTorch's files: tensors of every type and layout that PyTorch wrote (tests/corpus/pickle, made by
 * tools/pytorch/torch_samples.py) read back, nothing in a file is ever called, and what strangers send is refused. */
#include "test_support.h"

#include "trunnion/model.h"
#include "trunnion/onnx.h"

#define SAMPLE "tests/corpus/pickle/sample.pt"

static tn_pickle *open_sample(const char *path) {
    tn_pickle *file = NULL;
    assert_ok(tn_pickle_open(path, &file));
    return file;
}

static void expect(const tn_pickle *file, const char *name, tn_dtype dtype, int rank, const int64_t *shape,
                   const void *values) {
    char bytes[256];
    tn_tensor *t = tn_pickle_tensor(file, name);
    assert_ok(tn_status_of(t));
    assert_int_equal(tn_dtype_of(t), dtype);
    assert_int_equal(tn_rank(t), rank);
    for (int d = 0; d < rank; d++)
        assert_int_equal(tn_size(t, d), shape[d]);
    size_t size = tn_dtype_bytes(dtype, tn_numel(t));
    assert_ok(tn_read(t, bytes, size));
    if (size) assert_memory_equal(bytes, values, size);
    tn_free(t);
}

#define DIMS(...) \
    (sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]) { __VA_ARGS__ }

static void tensors_are_those_that_pytorch_saved(void **state) {
    (void)state;
    tn_pickle *file = open_sample(SAMPLE);
    assert_int_equal(tn_pickle_count(file), 22);
    expect(file, "model.0.weight", TN_F32, DIMS(2, 3), (float[]){0, 1, 2, 3, 4, 5});
    expect(file, "model.0.bias", TN_F32, DIMS(2), (float[]){0.5f, -0.5f});
    expect(file, "model.1.num_batches_tracked", TN_I64, 0, NULL, (int64_t[]){0});
    expect(file, "list.0", TN_BF16, DIMS(2), (uint16_t[]){0x3f80, 0x3f80});
    expect(file, "list.1", TN_I64, DIMS(2), (int64_t[]){INT64_C(1) << 40, -1});
    expect(file, "pair.1", TN_F32, DIMS(1), (float[]){1});
    expect(file, "part", TN_F32, DIMS(6), (float[]){4, 5, 6, 7, 8, 9});
    expect(file, "bools", TN_BOOL, DIMS(2), (uint8_t[]){1, 0});
    expect(file, "half", TN_F16, DIMS(2), (uint16_t[]){0x3c00, 0x3c00});
    expect(file, "bytes", TN_U8, DIMS(5), (uint8_t[]){0, 1, 2, 3, 4});
    expect(file, "scalar", TN_F32, 0, NULL, (float[]){2.5f});
    expect(file, "words", TN_U16, DIMS(2), (uint16_t[]){1, 65535});
    expect(file, "spread", TN_F32, DIMS(5), (float[]){1, 1, 1, 1, 1});
    expect(file, "parameter", TN_F32, DIMS(1), (float[]){7});
    expect(file, "empty", TN_F32, DIMS(0, 3), NULL);
    expect(file, "7", TN_I32, DIMS(1), (int32_t[]){7});
    float turned[24];
    for (int i = 0; i < 24; i++)
        turned[i] = (float)(i % 4 * 6 + i / 4);
    expect(file, "turned", TN_F32, DIMS(6, 4), turned);
    tn_pickle_info info = {.struct_size = sizeof info};
    assert_ok(tn_pickle_find(file, "turned", &info));
    assert_int_equal(info.stride[0], 1);
    assert_ok(tn_pickle_find(file, "float8", &info));
    assert_string_equal(info.dtype_name, "float8_e4m3fn");
    assert_int_equal(info.dtype, TN_DTYPE_COUNT);
    {
        TN_SCOPE;
        assert_int_equal(tn_status_of(tn_pickle_tensor(file, "float8")), TN_ERR_UNSUPPORTED);
    }
    assert_int_equal(tn_pickle_find(file, "absent", &info), TN_ERR_FORMAT);
    assert_int_equal(tn_pickle_at(file, 22, &info), TN_ERR_ARGUMENT);
    tn_tensor *t = tn_pickle_tensor(file, "part");
    tn_pickle_close(file);
    float part[6];
    assert_ok(tn_read(t, part, sizeof part)); /* it holds the file */
    assert_true(part[5] == 9);
    tn_free(t);
}

static void the_older_layout_is_read_too(void **state) {
    (void)state;
    tn_pickle *file = open_sample("tests/corpus/pickle/older.pt");
    assert_int_equal(tn_pickle_count(file), 7);
    expect(file, "0.weight", TN_F32, DIMS(2, 3), (float[]){0, 1, 2, 3, 4, 5});
    expect(file, "1.running_var", TN_F32, DIMS(2), (float[]){1, 1});
    expect(file, "1.num_batches_tracked", TN_I64, 0, NULL, (int64_t[]){0});
    tn_pickle_close(file);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refuse_bytes(const void *bytes, size_t n, tn_status status, const char *reason) {
    const char *path = test_scratch("hostile.pt");
    tn_pickle *file = NULL;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    assert_int_equal(tn_pickle_open(path, &file), status);
    assert_null(file);
    assert_text_has(tn_error(), "hostile.pt");
    assert_text_has(tn_error(), reason);
}

/* A pickle in the place of the older layout's first. */
#define REFUSE(pickle, status, reason) refuse_bytes("\x80\x02" pickle, sizeof("\x80\x02" pickle) - 1, status, reason)

static void names_that_are_not_allowed_are_told(void **state) {
    (void)state;
    tn_pickle *file = NULL;
    assert_int_equal(tn_pickle_open("tests/corpus/pickle/module.pt", &file), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "torch.nn.modules.container.Sequential");
    assert_text_has(tn_error(), "state_dict");
    REFUSE("cos\nsystem\n(S'true'\ntR.", TN_ERR_UNSUPPORTED, "'os.system'");
    REFUSE("\x8c\x08"
           "builtins\x8c\x04"
           "eval\x93.",
           TN_ERR_UNSUPPORTED, "'builtins.eval'");
    REFUSE("ctorch\nload\n.", TN_ERR_UNSUPPORTED, "'torch.load'");
    REFUSE("I1\n.", TN_ERR_UNSUPPORTED, "instruction 0x49");
}

static void broken_pickles_are_refused(void **state) {
    (void)state;
    REFUSE("", TN_ERR_FORMAT, "ends within an instruction");
    REFUSE(".", TN_ERR_FORMAT, "the stack is empty");
    REFUSE("0", TN_ERR_FORMAT, "the stack is empty");
    REFUSE("t", TN_ERR_FORMAT, "a mark is missing");
    REFUSE("N(0", TN_ERR_FORMAT, "the stack is empty");
    REFUSE("\x87", TN_ERR_FORMAT, "the stack is empty");
    REFUSE("h\x01", TN_ERR_FORMAT, "was not stored");
    REFUSE("Nr\xff\xff\xff\xff", TN_ERR_FORMAT, "a memo index");
    REFUSE("X\xff\xff\xff\xffx", TN_ERR_FORMAT, "ends within a text");
    REFUSE("]N\x86R", TN_ERR_FORMAT, "stack is empty");
    REFUSE("N)R", TN_ERR_FORMAT, "not a function");
    REFUSE("NNa", TN_ERR_FORMAT, "not a container");
    REFUSE("}(Nu", TN_ERR_FORMAT, "not a container");
    REFUSE("NQ", TN_ERR_FORMAT, "storage in a form");
    REFUSE("ctorch._utils\n_rebuild_tensor_v2\n)R", TN_ERR_FORMAT, "without storage");
    char deep[2 + 1100];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "\x80\x02", 2);
    refuse_bytes(deep, sizeof deep, TN_ERR_FORMAT, "nested too deep");
    refuse_bytes("PK\x03\x04 and nothing else", 20, TN_ERR_FORMAT, "no end");
    refuse_bytes("hello", 5, TN_ERR_FORMAT, "neither");
}

/* Every byte of a file that PyTorch wrote, wrong in turn: read or refused, never worse. */
static void damaged_files_are_read_or_refused(void **state) {
    (void)state;
    char *bytes = NULL;
    size_t size, refused = 0;
    assert_ok(tn_file_read("tests/corpus/pickle/older.pt", &bytes, &size, 1 << 20));
    const char *path = test_scratch("damaged.pt");
    for (size_t at = 0; at < size; at += 3) {
        char before = bytes[at];
        bytes[at] = (char)~before;
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, size, f), size);
        fclose(f);
        bytes[at] = before;
        tn_pickle *file = NULL;
        refused += tn_pickle_open(path, &file) != TN_OK;
        tn_pickle_close(file);
    }
    assert_true(refused > size / 6);
    tn_mem_free(bytes);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK && n < 5000; n++) {
        tn_pickle *file = NULL;
        int64_t before = tn_mem_get_stats().live_blocks;
        tn_mem_fail_at(n);
        status = tn_pickle_open(SAMPLE, &file);
        tn_mem_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        tn_pickle_close(file);
        assert_int_equal(tn_mem_get_stats().live_blocks, before);
    }
    assert_int_equal(status, TN_OK);
}

/* TorchScript's code is compressed; nothing here runs programs, and the error says what to save instead. */
static void programs_are_refused_with_what_to_export(void **state) {
    (void)state;
    static const char zip[] = "PK\3\4 an archive";
    const char *path = test_scratch("program.pt");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(zip, 1, sizeof zip, f), sizeof zip);
    assert_int_equal(fclose(f), 0);
    tn_onnx *model = NULL;
    assert_int_equal(tn_onnx_open(path, NULL, &model), TN_ERR_UNSUPPORTED);
    assert_null(model);
    assert_non_null(strstr(tn_error(), "torch.onnx.export"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_those_that_pytorch_saved),     cmocka_unit_test(the_older_layout_is_read_too),
        cmocka_unit_test(names_that_are_not_allowed_are_told),      cmocka_unit_test(broken_pickles_are_refused),
        cmocka_unit_test(damaged_files_are_read_or_refused),        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(programs_are_refused_with_what_to_export),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
