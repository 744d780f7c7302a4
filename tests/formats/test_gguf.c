/* test_gguf.c — GGUF files: everything in one reads back, what strangers send is refused with the byte and the reason,
 * tensors outlive the file, large metadata opens fast and in little memory, and memory may run out anywhere. */
#include "test_support.h"

#include "gguf_make.h"
#include "random_numbers.h"
#include "trunnion/ops.h"

enum { F32 = 0, F16 = 1, Q8_0 = 8, IQ4_NL = 20, I8 = 24 }; /* the file's numbers of some types */

static tn_gguf *open_made(gguf_make *g, const char *name) {
    const char *path = test_scratch(name);
    assert_int_equal(make_write(g, path), 0);
    make_free(g);
    tn_gguf *file = NULL;
    assert_ok(tn_gguf_open(path, &file));
    return file;
}

static void refuse_made(gguf_make *g, const char *reason) {
    const char *path = test_scratch("hostile.gguf");
    assert_int_equal(make_write(g, path), 0);
    make_free(g);
    tn_gguf *file = NULL;
    tn_status status = tn_gguf_open(path, &file);
    if (status == TN_OK) fail_msg("a file that should be refused for '%s' was opened", reason);
    assert_null(file);
    assert_true(status == TN_ERR_FORMAT || status == TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "hostile.gguf");
    assert_text_has(tn_error(), "byte ");
    assert_text_has(tn_error(), reason);
}

/* ---- what is in a file ------------------------------------------------------------------------------------------- */

static void put_scalars(gguf_make *g) {
    make_key(g, "u8", TN_GGUF_U8);
    make_number(g, 200, 1);
    make_key(g, "i8", TN_GGUF_I8);
    make_number(g, 200, 1);
    make_key(g, "u16", TN_GGUF_U16);
    make_number(g, 60000, 2);
    make_key(g, "i16", TN_GGUF_I16);
    make_number(g, 60000, 2);
    make_key_u32(g, "u32", 4000000000u);
    make_key(g, "i32", TN_GGUF_I32);
    make_number(g, 4000000000u, 4);
    make_key_f32(g, "f32", -1.5F);
    make_key_bool(g, "yes", true);
    make_key_text(g, "text", "gr\xc3\xbc\xc3\x9f");
    make_key(g, "u64", TN_GGUF_U64);
    make_number(g, UINT64_MAX, 8);
    make_key(g, "i64", TN_GGUF_I64);
    make_number(g, (uint64_t)-5, 8);
    make_key(g, "f64", TN_GGUF_F64);
    make_number(g, 0x4009000000000000u, 8); /* 3.125 */
}
enum { SCALARS = 12 };

static int64_t int_of(const tn_gguf *file, const char *key) {
    int64_t v = 0;
    assert_ok(tn_gguf_get_int(file, key, &v));
    return v;
}

static double float_of(const tn_gguf *file, const char *key) {
    double v = 0;
    assert_ok(tn_gguf_get_float(file, key, &v));
    return v;
}

static void scalars_of_every_type_read_back(void **state) {
    (void)state;
    gguf_make g = {0};
    make_head(&g, 0, SCALARS);
    put_scalars(&g);
    tn_gguf *file = open_made(&g, "scalars.gguf");
    assert_int_equal(tn_gguf_key_count(file), SCALARS);
    assert_string_equal(tn_gguf_key(file, 2), "u16");
    assert_null(tn_gguf_key(file, SCALARS));
    assert_null(tn_gguf_key(file, -1));
    assert_int_equal(int_of(file, "u8"), 200);
    assert_int_equal(int_of(file, "i8"), 200 - 256);
    assert_int_equal(int_of(file, "u16"), 60000);
    assert_int_equal(int_of(file, "i16"), 60000 - 65536);
    assert_int_equal(int_of(file, "u32"), 4000000000);
    assert_int_equal(int_of(file, "i32"), 4000000000 - 4294967296);
    assert_int_equal(int_of(file, "i64"), -5);
    assert_int_equal(int_of(file, "yes"), 1);
    assert_true(float_of(file, "f32") == -1.5);
    assert_true(float_of(file, "f64") == 3.125);
    assert_true(float_of(file, "i8") == -56);
    assert_true(float_of(file, "u64") == 0x1p64);
    bool yes = false;
    assert_ok(tn_gguf_get_bool(file, "yes", &yes));
    assert_true(yes);
    const char *text;
    int64_t length;
    assert_ok(tn_gguf_get_string(file, "text", &text, &length));
    assert_int_equal(length, 6);
    assert_memory_equal(text, "gr\xc3\xbc\xc3\x9f", 6);
    tn_gguf_close(file);
}

static void a_wrong_type_or_an_absent_key_is_told_with_its_name(void **state) {
    (void)state;
    gguf_make g = {0};
    make_head(&g, 0, SCALARS + 1);
    put_scalars(&g);
    make_key_i32s(&g, "list", (int32_t[]){1, -2}, 2);
    tn_gguf *file = open_made(&g, "types.gguf");
    int64_t i = 7, length;
    double f;
    bool b;
    const char *text;
    assert_int_equal(tn_gguf_get_int(file, "absent", &i), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "types.gguf");
    assert_text_has(tn_error(), "'absent'");
    assert_int_equal(tn_gguf_get_int(file, "f32", &i), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "'f32' is f32");
    assert_text_has(tn_error(), "byte ");
    assert_int_equal(tn_gguf_get_int(file, "u64", &i), TN_ERR_FORMAT);
    assert_int_equal(tn_gguf_get_int(file, "list", &i), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "array of i32");
    assert_int_equal(tn_gguf_get_float(file, "text", &f), TN_ERR_FORMAT);
    assert_int_equal(tn_gguf_get_bool(file, "u8", &b), TN_ERR_FORMAT);
    assert_int_equal(tn_gguf_get_string(file, "u8", &text, &length), TN_ERR_FORMAT);
    assert_int_equal(tn_gguf_int(tn_gguf_get(file, "list"), 2, &i), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_int(tn_gguf_get(file, "list"), -1, &i), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_int(tn_gguf_get(file, "absent"), 0, &i), TN_ERR_ARGUMENT);
    assert_int_equal(i, 7);
    assert_int_equal(tn_gguf_type_of(tn_gguf_get(file, "absent")), TN_GGUF_TYPE_COUNT);
    assert_int_equal(tn_gguf_length(NULL), 0);
    assert_int_equal(tn_gguf_offset(NULL), -1);
    assert_int_equal(tn_gguf_offset(tn_gguf_get(file, "u8")), 24 + 8 + 2 + 4);
    tn_gguf_close(file);
}

static void arrays_are_read_in_place(void **state) {
    (void)state;
    gguf_make g = {0};
    make_head(&g, 0, 5);
    make_key_array(&g, "texts", TN_GGUF_STRING, 100);
    for (int i = 0; i < 100; i++) {
        char text[8];
        snprintf(text, sizeof text, "%d", i * i);
        make_text(&g, i % 7 == 0 ? "" : text);
    }
    make_key_f32s(&g, "scores", (float[]){0.5F, -2}, 2);
    make_key_array(&g, "flags", TN_GGUF_BOOL, 3);
    make_bytes(&g, "\1\0\1", 3);
    make_key_array(&g, "nothing", TN_GGUF_STRING, 0);
    make_key_array(&g, "deep", TN_GGUF_ARRAY, 2);
    for (int i = 0; i < 2; i++) {
        make_number(&g, TN_GGUF_STRING, 4);
        make_number(&g, 1, 8);
        make_text(&g, "x");
    }
    tn_gguf *file = open_made(&g, "arrays.gguf");
    const tn_gguf_value *texts = tn_gguf_get(file, "texts");
    assert_int_equal(tn_gguf_type_of(texts), TN_GGUF_ARRAY);
    assert_int_equal(tn_gguf_item_type(texts), TN_GGUF_STRING);
    assert_int_equal(tn_gguf_length(texts), 100);
    for (int i = 99; i >= 0; i--) {
        const char *text;
        char want[8];
        int64_t length;
        snprintf(want, sizeof want, "%d", i * i);
        assert_ok(tn_gguf_string(texts, i, &text, &length));
        assert_int_equal(length, i % 7 == 0 ? 0 : (int64_t)strlen(want));
        assert_memory_equal(text, want, (size_t)length);
    }
    double score;
    assert_ok(tn_gguf_float(tn_gguf_get(file, "scores"), 1, &score));
    assert_true(score == -2);
    bool flag;
    assert_ok(tn_gguf_bool(tn_gguf_get(file, "flags"), 2, &flag));
    assert_true(flag);
    assert_int_equal(tn_gguf_length(tn_gguf_get(file, "nothing")), 0);
    assert_int_equal(tn_gguf_item_type(tn_gguf_get(file, "deep")), TN_GGUF_ARRAY);
    int64_t i;
    assert_int_equal(tn_gguf_int(tn_gguf_get(file, "deep"), 0, &i), TN_ERR_FORMAT);
    tn_gguf_close(file);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const float numbers[6] = {1, -2.5F, 3e-30F, 4, 5, 6};

/* Three tensors: f32 [2, 3], an empty one, and one of a type that only others compute with. */
static void make_tensors(gguf_make *g) {
    make_head(g, 3, 1);
    make_key_u32(g, "general.alignment", 64);
    make_tensor(g, "matrix", 2, (uint64_t[]){3, 2}, F32, 0);
    make_tensor(g, "empty", 3, (uint64_t[]){0, 2, 5}, F16, 64);
    make_tensor(g, "strange", 1, (uint64_t[]){32}, IQ4_NL, 64);
    make_padding(g, 64);
    for (int i = 0; i < 6; i++)
        make_f32(g, numbers[i]);
    make_padding(g, 64);
    for (int i = 0; i < 18; i++)
        make_number(g, (uint64_t)i, 1);
}

static void tensors_have_the_shape_that_pytorch_gives_them(void **state) {
    (void)state;
    gguf_make g = {0};
    make_tensors(&g);
    tn_gguf *file = open_made(&g, "tensors.gguf");
    assert_int_equal(tn_gguf_count(file), 3);
    tn_gguf_info info = {.struct_size = sizeof info};
    assert_ok(tn_gguf_find(file, "matrix", &info));
    assert_string_equal(info.dtype_name, "F32");
    assert_int_equal(info.dtype, TN_F32);
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.shape[0], 2);
    assert_int_equal(info.shape[1], 3);
    assert_int_equal(info.bytes, 24);
    assert_int_equal(info.offset % 64, 0);
    assert_memory_equal(info.data, numbers, sizeof numbers);
    assert_ok(tn_gguf_at(file, 2, &info));
    assert_string_equal(info.name, "strange");
    assert_string_equal(info.dtype_name, "IQ4_NL");
    assert_int_equal(info.dtype, TN_Q8_X);
    assert_int_equal(tn_gguf_at(file, 3, &info), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_find(file, "absent", &info), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "tensors.gguf' has no tensor 'absent'");
    {
        TN_SCOPE;
        assert_int_equal(tn_size(tn_gguf_tensor(file, "empty"), 0), 5);
        assert_int_equal(tn_status_of(tn_gguf_tensor(file, "absent")), TN_ERR_FORMAT);
    }
    tn_gguf_close(file);
}

static void rows_are_read_one_by_one(void **state) {
    (void)state;
    gguf_make g = {0};
    make_tensors(&g);
    tn_gguf *file = open_made(&g, "rows.gguf");
    float got[9];
    assert_ok(tn_gguf_rows(file, "matrix", (const int64_t[]){1, 0, 1}, 3, got));
    for (int i = 0; i < 3; i++)
        assert_memory_equal(got + 3 * i, numbers + (i == 1 ? 0 : 3), 3 * sizeof *got);
    assert_ok(tn_gguf_rows(file, "matrix", NULL, 0, NULL));
    assert_int_equal(tn_gguf_rows(file, "matrix", (const int64_t[]){2}, 1, got), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "row 2 is out of range");
    assert_int_equal(tn_gguf_rows(file, "matrix", (const int64_t[]){-1}, 1, got), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_rows(file, "strange", (const int64_t[]){0}, 1, got), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_rows(file, "absent", (const int64_t[]){0}, 1, got), TN_ERR_FORMAT);
    assert_int_equal(tn_gguf_rows(NULL, "matrix", (const int64_t[]){0}, 1, got), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_rows(file, "matrix", NULL, 1, got), TN_ERR_ARGUMENT);
    tn_gguf_close(file);
}

static void tensors_outlive_the_file(void **state) {
    (void)state;
    gguf_make g = {0};
    make_tensors(&g);
    tn_gguf *file = open_made(&g, "outlive.gguf");
    tn_tensor *t = tn_gguf_tensor(file, "matrix");
    tn_gguf_close(file);
    float got[6];
    assert_ok(tn_read(t, got, sizeof got));
    assert_memory_equal(got, numbers, sizeof got);
    tn_free(t);
}

static void unaligned_tensors_are_copied(void **state) {
    (void)state;
    gguf_make g = {0};
    make_head(&g, 2, 1);
    make_key_u32(&g, "general.alignment", 1);
    make_tensor(&g, "byte", 1, (uint64_t[]){1}, I8, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){6}, F32, g.size % 4 == 2 ? 2 : 1);
    for (int i = 0; i < 32; i++)
        make_number(&g, (uint64_t)i, 1);
    tn_gguf *file = open_made(&g, "unaligned.gguf");
    tn_gguf_info info = {.struct_size = sizeof info};
    assert_ok(tn_gguf_find(file, "x", &info));
    assert_true((uintptr_t)info.data % sizeof(float) != 0);
    float got[6], want[6];
    memcpy(want, info.data, sizeof want);
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_gguf_tensor(file, "x"), got, sizeof got));
    }
    assert_memory_equal(got, want, sizeof got);
    tn_gguf_close(file);
}

/* ---- hostile files ----------------------------------------------------------------------------------------------- */

static void broken_heads_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *reason;
    } rows[] = {{"", 0, "magic number"},
                {"GGU", 3, "magic number"},
                {"GGML\3\0\0\0", 8, "does not begin with"},
                {"GGUF\1\0\0\0", 8, "version 1"},
                {"GGUF\0\0\0\3", 8, "big-endian"},
                {"GGUF\4\0\0\0", 8, "version 4"},
                {"GGUF\3\0\0\0\1", 9, "number of tensors needs 8"},
                {"GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "number of tensors is 1"},
                {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 24, "number of keys"}};
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        gguf_make g = {0};
        make_bytes(&g, rows[i].bytes, rows[i].size);
        refuse_made(&g, rows[i].reason);
    }
}

static void broken_metadata_is_refused(void **state) {
    (void)state;
    gguf_make g = {0};
    make_head(&g, 0, 1);
    make_number(&g, UINT64_MAX, 8);
    make_number(&g, 0, 64);
    refuse_made(&g, "a key");

    make_head(&g, 0, 1);
    make_key(&g, "a", (tn_gguf_type)13);
    make_number(&g, 0, 8);
    refuse_made(&g, "is 13");

    make_head(&g, 0, 1);
    make_key(&g, "a\x1b[2J", TN_GGUF_U8);
    make_number(&g, 0, 8);
    refuse_made(&g, "control character 0x1b");

    make_head(&g, 0, 1);
    make_key(&g, "truth", TN_GGUF_BOOL);
    make_number(&g, 2, 1);
    refuse_made(&g, "'truth': byte");

    make_head(&g, 0, 1);
    make_key_array(&g, "list", TN_GGUF_F64, UINT64_MAX / 8 + 2);
    make_number(&g, 0, 8);
    refuse_made(&g, "array's length");

    make_head(&g, 0, 1);
    make_key_array(&g, "list", TN_GGUF_STRING, 2);
    make_text(&g, "fine");
    make_number(&g, 9, 8);
    refuse_made(&g, "string's length is 9");

    make_head(&g, 0, 1);
    make_key(&g, "deep", TN_GGUF_ARRAY);
    for (int i = 0; i < 1000; i++) {
        make_number(&g, TN_GGUF_ARRAY, 4);
        make_number(&g, 1, 8);
    }
    refuse_made(&g, "nested more than 4");

    make_head(&g, 0, 2);
    make_key_u32(&g, "same", 1);
    make_key_u32(&g, "same", 2);
    refuse_made(&g, "'same' occurs twice");

    for (uint32_t alignment = 0; alignment < 100; alignment += 24) {
        make_head(&g, 0, 1);
        make_key_u32(&g, "general.alignment", alignment);
        refuse_made(&g, "power of two");
    }
}

static void put_bytes(gguf_make *g, int n) {
    make_padding(g, 32);
    for (int i = 0; i < n; i++)
        make_number(g, 0, 1);
}

static void broken_tensors_are_refused(void **state) {
    (void)state;
    gguf_make g = {0};
    make_head(&g, 1, 0);
    make_tensor(&g, "x", 9, (uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, F32, 0);
    put_bytes(&g, 32);
    refuse_made(&g, "9 dimensions");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){1}, 77, 0);
    put_bytes(&g, 32);
    refuse_made(&g, "unknown type 77");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 2, (uint64_t[]){1ull << 62, 4}, F32, 0);
    put_bytes(&g, 32);
    refuse_made(&g, "2^63");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){UINT64_MAX}, F32, 0);
    put_bytes(&g, 32);
    refuse_made(&g, "extent");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 2, (uint64_t[]){33, 2}, Q8_0, 0);
    put_bytes(&g, 256);
    refuse_made(&g, "a multiple of 32");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){9}, F32, 0);
    put_bytes(&g, 35);
    refuse_made(&g, "truncated");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){1}, F32, INT64_MAX - 31);
    put_bytes(&g, 32);
    refuse_made(&g, "truncated");

    make_head(&g, 1, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){1}, F32, 4);
    put_bytes(&g, 32);
    refuse_made(&g, "not a multiple of the alignment");

    make_head(&g, 2, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){16}, F32, 0);
    make_tensor(&g, "y", 1, (uint64_t[]){1}, F32, 32);
    put_bytes(&g, 64);
    refuse_made(&g, "'y' begins at byte");

    make_head(&g, 2, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){1}, F32, 0);
    make_tensor(&g, "x", 1, (uint64_t[]){1}, F32, 32);
    put_bytes(&g, 64);
    refuse_made(&g, "two tensors are named 'x'");
}

/* A file that ends anywhere is refused, not read past its end. */
static void files_cut_anywhere_are_refused(void **state) {
    (void)state;
    gguf_make g = {0};
    make_tensors(&g);
    for (size_t size = 0; size < g.size; size++) {
        gguf_make part = {0};
        make_bytes(&part, g.data, size);
        refuse_made(&part, "'");
    }
    make_free(&g);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

static void large_vocabularies_take_little_memory(void **state) {
    (void)state;
    enum { TOKENS = 200000 };
    gguf_make g = {0};
    make_head(&g, 0, 1);
    make_key_array(&g, "tokens", TN_GGUF_STRING, TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        make_text(&g, text);
    }
    size_t size = g.size;
    int64_t before = tn_mem_get_stats().live_bytes;
    tn_gguf *file = open_made(&g, "large.gguf");
    assert_true(tn_mem_get_stats().live_bytes - before < (int64_t)(size / 8));
    const char *text;
    int64_t length;
    assert_ok(tn_gguf_string(tn_gguf_get(file, "tokens"), 123456, &text, &length));
    assert_int_equal(length, 6);
    assert_memory_equal(text, "123456", 6);
    tn_gguf_close(file);
}

static void many_names_are_found(void **state) {
    (void)state;
    enum { TENSORS = 3000 };
    gguf_make g = {0};
    make_head(&g, TENSORS, 0);
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.weight", (i * 7919) % TENSORS);
        make_tensor(&g, name, 0, NULL, F32, (uint64_t)i * 32);
    }
    put_bytes(&g, TENSORS * 32);
    tn_gguf *file = open_made(&g, "many.gguf");
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        tn_gguf_info info = {.struct_size = sizeof info};
        snprintf(name, sizeof name, "blk.%d.weight", (i * 7919) % TENSORS);
        assert_ok(tn_gguf_find(file, name, &info));
        assert_string_equal(info.name, name);
        assert_int_equal(info.offset % 32, 0);
        assert_int_equal(info.rank, 0);
        assert_int_equal(info.bytes, 4);
    }
    tn_gguf_close(file);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    gguf_make g = {0};
    make_tensors(&g);
    const char *path = test_scratch("memory.gguf");
    assert_int_equal(make_write(&g, path), 0);
    make_free(&g);
    int64_t before = tn_mem_get_stats().live_blocks;
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_gguf *file = NULL;
        tn_mem_fail_at(n);
        status = tn_gguf_open(path, &file);
        tn_mem_fail_at(0);
        assert_true(status == TN_OK || status == TN_ERR_MEMORY);
        tn_gguf_close(file);
        assert_int_equal(tn_mem_get_stats().live_blocks, before);
    }
}

static void null_arguments_are_answered(void **state) {
    (void)state;
    tn_gguf *file = NULL;
    tn_gguf_info info = {.struct_size = sizeof info};
    int64_t i;
    assert_int_equal(tn_gguf_open(NULL, &file), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_open("x", NULL), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_open(test_scratch("not-there"), &file), TN_ERR_IO);
    tn_gguf_close(NULL);
    assert_string_equal(tn_gguf_path(NULL), "");
    assert_int_equal(tn_gguf_key_count(NULL), 0);
    assert_null(tn_gguf_get(NULL, "a"));
    assert_int_equal(tn_gguf_get_int(NULL, "a", &i), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_count(NULL), 0);
    assert_int_equal(tn_gguf_at(NULL, 0, &info), TN_ERR_ARGUMENT);
    assert_int_equal(tn_gguf_find(NULL, "a", &info), TN_ERR_ARGUMENT);
    TN_SCOPE;
    assert_int_equal(tn_status_of(tn_gguf_tensor(NULL, "a")), TN_ERR_ARGUMENT);
}

/* ---- types that are decoded -------------------------------------------------------------------------------------- */

enum { CODED_BLOCKS = 256 };

/* The bytes that tools/formats/gguf_golden.py made its values of. */
static void make_coded(gguf_make *g, int number, int elements, int size, int factor) {
    make_head(g, 1, 0);
    make_tensor(g, "w", 2, (uint64_t[]){(uint64_t)elements, CODED_BLOCKS}, (uint32_t)number, 0);
    make_padding(g, 32);
    uint64_t state = 1;
    for (int i = 0; i < CODED_BLOCKS * size; i++) {
        uint64_t byte = random_step(&state) >> 56;
        make_number(g, i % size == factor ? (byte & 0x8f) | 0x20 : byte, 1);
    }
}

static uint64_t hash_of(const void *bytes, size_t n) {
    uint64_t value = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++)
        value = (value ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
    return value;
}

static void decoded_types_have_the_values_of_the_gguf_package(void **state) {
    (void)state;
    static float values[CODED_BLOCKS * 256];
    static uint8_t rows[3 * 320];
    FILE *golden = fopen("tests/golden/iquants.txt", "r");
    assert_non_null(golden);
    char line[256], name[16];
    int number, elements, size, factor, types = 0;
    while (fgets(line, sizeof line, golden)) {
        unsigned long long hash;
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%15s %d %d %d %d %llx", name, &number, &elements, &size, &factor, &hash), 6);
        gguf_make g = {0};
        make_coded(&g, number, elements, size, factor);
        tn_gguf *file = open_made(&g, "coded.gguf");
        tn_gguf_info info = {.struct_size = sizeof info};
        assert_ok(tn_gguf_at(file, 0, &info));
        assert_string_equal(info.dtype_name, name);
        size_t bytes = (size_t)(CODED_BLOCKS * elements) * sizeof *values, row = tn_dtype_bytes(TN_Q8_X, elements);
        {
            TN_SCOPE;
            tn_tensor *w = tn_gguf_tensor(file, "w");
            assert_ok(tn_read(tn_dequantize(w, TN_F32), values, bytes));
            tn_dtype_little_endian(TN_F32, values, CODED_BLOCKS * elements);
            uint64_t found = hash_of(values, bytes);
            tn_dtype_little_endian(TN_F32, values, CODED_BLOCKS * elements);
            if (found != hash) fail_msg("%s: other values than the gguf package's", name);
            assert_ok(tn_gguf_rows(file, "w", (int64_t[]){9, 0, 255}, 3, rows));
            tn_tensor *some = tn_from_data(rows, (int64_t[]){3, elements}, 2, TN_Q8_X);
            float few[3 * 256];
            assert_ok(tn_read(tn_dequantize(some, TN_F32), few, (size_t)(3 * elements) * sizeof *few));
            assert_memory_equal(few, values + 9 * elements, (size_t)elements * sizeof *few);
            assert_memory_equal(few + 2 * elements, values + 255 * elements, (size_t)elements * sizeof *few);
        }
        assert_true(row * 3 <= sizeof rows);
        tn_gguf_close(file);
        types++;
    }
    fclose(golden);
    assert_int_equal(types, 13);
}

/* ---- split models ------------------------------------------------------------------------------------------------ */

static const char *write_part(int part, int says_part, int parts, const char *tensor) {
    static char path[512];
    char name[64];
    gguf_make g = {0};
    make_head(&g, 1, 2);
    make_key(&g, "split.no", TN_GGUF_U16);
    make_number(&g, (uint64_t)says_part, 2);
    make_key(&g, "split.count", TN_GGUF_U16);
    make_number(&g, (uint64_t)parts, 2);
    make_tensor(&g, tensor, 1, (uint64_t[]){1}, 0, 0);
    make_padding(&g, 32);
    make_f32(&g, (float)part);
    snprintf(name, sizeof name, "split-%05d-of-%05d.gguf", part + 1, parts);
    snprintf(path, sizeof path, "%s", test_scratch(name));
    assert_int_equal(make_write(&g, path), 0);
    make_free(&g);
    return path;
}

static void a_split_model_is_opened_whole(void **state) {
    (void)state;
    tn_gguf *file = NULL;
    float v;
    write_part(1, 1, 3, "b");
    write_part(2, 2, 3, "a");
    char first[512];
    snprintf(first, sizeof first, "%s", write_part(0, 0, 3, "c"));
    assert_ok(tn_gguf_open(first, &file));
    assert_int_equal(tn_gguf_count(file), 3);
    tn_gguf_info info = {.struct_size = sizeof info};
    assert_ok(tn_gguf_at(file, 2, &info));
    assert_string_equal(info.name, "a");
    tn_tensor *t = tn_gguf_tensor(file, "a");
    tn_gguf_close(file);
    assert_ok(tn_read(t, &v, sizeof v)); /* it holds its part */
    assert_true(v == 2);
    tn_free(t);

    assert_int_equal(tn_gguf_open(write_part(1, 1, 3, "b"), &file), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "part 2 of 3: open the first");
    write_part(1, 1, 3, "c");
    assert_int_equal(tn_gguf_open(first, &file), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "two tensors are named 'c'");
    write_part(1, 2, 3, "b");
    assert_int_equal(tn_gguf_open(first, &file), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "part 3 of 3, its name 2 of 3");
    unlink(write_part(1, 1, 3, "b"));
    assert_int_equal(tn_gguf_open(first, &file), TN_ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoded_types_have_the_values_of_the_gguf_package),
        cmocka_unit_test(a_split_model_is_opened_whole),
        cmocka_unit_test(scalars_of_every_type_read_back),
        cmocka_unit_test(a_wrong_type_or_an_absent_key_is_told_with_its_name),
        cmocka_unit_test(arrays_are_read_in_place),
        cmocka_unit_test(tensors_have_the_shape_that_pytorch_gives_them),
        cmocka_unit_test(rows_are_read_one_by_one),
        cmocka_unit_test(tensors_outlive_the_file),
        cmocka_unit_test(unaligned_tensors_are_copied),
        cmocka_unit_test(broken_heads_are_refused),
        cmocka_unit_test(broken_metadata_is_refused),
        cmocka_unit_test(broken_tensors_are_refused),
        cmocka_unit_test(files_cut_anywhere_are_refused),
        cmocka_unit_test(large_vocabularies_take_little_memory),
        cmocka_unit_test(many_names_are_found),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(null_arguments_are_answered),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
