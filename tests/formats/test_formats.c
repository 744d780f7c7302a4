/* test_formats.c — safetensors: what is written reads back, what strangers send is refused with the reason, tensors
 * outlive the file; saving survives being killed; how much memory a model needs. */
#include "test_support.h"

#include <signal.h>
#include <sys/wait.h>

#include "trunnion/trunnion.h"

/* ---- round trips ------------------------------------------------------------------------------------------------- */

static void what_is_written_reads_back(void **state) {
    (void)state;
    const char *path = test_scratch("round.safetensors");
    float f[6] = {1, -2.5F, 3e-30F, 4, 5, 6};
    int64_t i[1] = {-7};
    uint8_t b[3] = {1, 0, 1};
    int64_t shape_f[] = {2, 3}, shape_b[] = {3}, shape_none[] = {0, 4};
    {
        TN_SCOPE;
        tn_named_tensor tensors[] = {{"mask", tn_from_data(b, shape_b, 1, TN_BOOL)},
                                     {"weights", tn_from_data(f, shape_f, 2, TN_F32)},
                                     {"count \"n\"", tn_from_data(i, shape_f, 0, TN_I64)},
                                     {"nothing", tn_from_data(NULL, shape_none, 2, TN_F16)}};
        tn_metadata metadata[] = {{"format", "pt"}, {"note", "a \"b\"\n"}};
        assert_ok(tn_safetensors_save(path, tensors, 4, metadata, 2));
    }
    tn_safetensors *file;
    assert_ok(tn_safetensors_open(path, &file));
    assert_int_equal(tn_safetensors_count(file), 4);
    assert_string_equal(tn_safetensors_metadata(file, "note"), "a \"b\"\n");
    assert_null(tn_safetensors_metadata(file, "absent"));
    tn_safetensors_info info = {.struct_size = sizeof info};
    assert_ok(tn_safetensors_find(file, "weights", &info));
    assert_string_equal(info.dtype_name, "F32");
    assert_int_equal((uintptr_t)info.data % sizeof(float), 0);
    {
        TN_SCOPE;
        float got_f[6];
        int64_t got_i;
        uint8_t got_b[3];
        tn_tensor *w = tn_safetensors_tensor(file, "weights");
        assert_ok(tn_read(w, got_f, sizeof got_f));
        assert_memory_equal(got_f, f, sizeof f);
        assert_int_equal(tn_size(w, 0), 2);
        assert_ok(tn_read(tn_safetensors_tensor(file, "count \"n\""), &got_i, sizeof got_i));
        assert_int_equal(got_i, -7);
        assert_ok(tn_read(tn_safetensors_tensor(file, "mask"), got_b, sizeof got_b));
        assert_memory_equal(got_b, b, sizeof b);
        assert_int_equal(tn_size(tn_safetensors_tensor(file, "nothing"), 1), 4);
        assert_int_equal(tn_status_of(tn_safetensors_tensor(file, "absent")), TN_ERR_ARGUMENT);
    }
    tn_safetensors_close(file);
}

static void tensors_outlive_the_file(void **state) {
    (void)state;
    const char *path = test_scratch("outlive.safetensors");
    float f[4] = {1, 2, 3, 4}, got[4];
    int64_t shape[] = {4};
    {
        TN_SCOPE;
        assert_ok(tn_safetensors_save(path, &(tn_named_tensor){"x", tn_from_data(f, shape, 1, TN_F32)}, 1, NULL, 0));
    }
    tn_safetensors *file;
    assert_ok(tn_safetensors_open(path, &file));
    tn_tensor *x = tn_safetensors_tensor(file, "x");
    tn_safetensors_close(file);
    assert_int_equal(unlink(path), 0);
    assert_ok(tn_read(x, got, sizeof got));
    assert_memory_equal(got, f, sizeof f);
    tn_free(x);
}

/* The mapping cannot be written: an in-place operation has to write elsewhere. */
static void mapped_tensors_can_be_changed(void **state) {
    (void)state;
    const char *path = test_scratch("changed.safetensors");
    float f[4] = {1, 2, 3, 4}, got[4];
    int64_t shape[] = {4};
    {
        TN_SCOPE;
        assert_ok(tn_safetensors_save(path, &(tn_named_tensor){"x", tn_from_data(f, shape, 1, TN_F32)}, 1, NULL, 0));
    }
    tn_safetensors *file;
    assert_ok(tn_safetensors_open(path, &file));
    {
        TN_SCOPE;
        tn_tensor *x = tn_safetensors_tensor(file, "x");
        tn_add_(x, tn_scalar(10));
        assert_ok(tn_read(x, got, sizeof got));
        for (int i = 0; i < 4; i++)
            assert_float_equal(got[i], f[i] + 10, 0);
        assert_ok(tn_read(tn_safetensors_tensor(file, "x"), got, sizeof got));
        assert_memory_equal(got, f, sizeof f);
    }
    tn_safetensors_close(file);
}

/* Pages of packed weights are given back; on big-endian machines they have numbers that the reader converted. */
static void numbers_stay_when_pages_are_given_back(void **state) {
    (void)state;
    enum { COUNT = 1 << 16 };
    const char *path = test_scratch("pages.safetensors");
    tn_safetensors_info x = {.struct_size = sizeof x};
    tn_safetensors *file;
    {
        TN_SCOPE;
        tn_tensor *numbers = tn_arange(0, COUNT, 1, TN_I32);
        assert_ok(tn_safetensors_save(path, &(tn_named_tensor){"x", numbers}, 1, NULL, 0));
    }
    assert_ok(tn_safetensors_open(path, &file));
    assert_ok(tn_safetensors_find(file, "x", &x));
    tn_map_return_pages(x.data, (size_t)x.bytes);
    for (int32_t i = 0; i < COUNT; i++)
        assert_memory_equal((const char *)x.data + (size_t)i * sizeof i, &i, sizeof i);
    tn_safetensors_close(file);
}

static void equal_names_are_not_saved(void **state) {
    (void)state;
    float one = 1;
    TN_SCOPE;
    tn_tensor *t = tn_from_data(&one, (int64_t[]){0}, 0, TN_F32);
    tn_named_tensor twice[] = {{"a", t}, {"b", t}, {"a", t}}, reserved[] = {{"__metadata__", t}};
    assert_int_equal(tn_safetensors_save(test_scratch("twice"), twice, 3, NULL, 0), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "'a'");
    assert_int_equal(tn_safetensors_save(test_scratch("reserved"), reserved, 1, NULL, 0), TN_ERR_ARGUMENT);
    assert_int_equal(access(test_scratch("twice"), F_OK), -1);
}

/* ---- hostile files ----------------------------------------------------------------------------------------------- */

typedef struct hostile {
    const char *header;
    size_t data_bytes;
    const char *reason; /* part of the message */
} hostile;

#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const hostile hostile_files[] = {
    {"", 0, "does not begin"},
    {"[1]", 0, "does not begin"},
    {"{\"a\":", 0, "JSON"},
    {"{\"a\":3}", 0, "is not an object"},
    {"{\"a\":{}}", 0, "dtype"},
    {"{" ENTRY("a", "F99", "[1]", "[0,4]") "}", 4, "unknown dtype 'F99'"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
    {"{" ENTRY("a", "F32", "[-1]", "[0,4]") "}", 4, "not an integer"},
    {"{" ENTRY("a", "F32", "[1.5]", "[0,6]") "}", 6, "not an integer"},
    {"{" ENTRY("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "not an integer"},
    {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions"},
    {"{" ENTRY("a", "F64", "[4294967296,4294967296]", "[0,0]") "}", 0, "2^63"},
    {"{" ENTRY("a", "F32", "[9223372036854775807]", "[0,4]") "}", 4, "2^63"},
    {"{" ENTRY("a", "F32", "[18446744073709551617]", "[0,4]") "}", 4, "not an integer"},
    {"{" ENTRY("a", "F32", "[2]", "[0,4]") "}", 4, "needs 8 bytes"},
    {"{" ENTRY("a", "F32", "[1]", "[4,0]") "}", 4, "outside"},
    {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 3, "outside"},
    {"{" ENTRY("a", "F32", "[1]", "[0,4,8]") "}", 8, "data_offsets"},
    {"{" ENTRY("a", "F32", "[1]", "[-4,0]") "}", 4, "data_offsets"},
    {"{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[2,6]") "}", 6, "the tensors overlap"},
    {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("b", "U8", "[1]", "[2,3]") "}", 3, "there is a gap"},
    {"{" ENTRY("a", "U8", "[1]", "[1,2]") "}", 2, "there is a gap"},
    {"{" ENTRY("a", "U8", "[1]", "[0,1]") "}", 2, "belong to no tensor"},
    {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("a", "U8", "[1]", "[1,2]") "}", 2, "two tensors are named 'a'"},
    {"{\"__metadata__\":7}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "is not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate member"},
};

/* length: what the file says its header has. */
static void write_hostile(const char *path, uint64_t length, const char *header, size_t data_bytes) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> (8 * i) & 0xFF), f);
    fputs(header, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc(1, f);
    assert_int_equal(fclose(f), 0);
}

static void assert_refused(const char *path, const char *reason) {
    tn_safetensors *file;
    tn_mem_stats before = tn_mem_get_stats();
    assert_int_equal(tn_safetensors_open(path, &file), TN_ERR_FORMAT);
    assert_null(file);
    assert_text_has(tn_error(), reason);
    assert_text_has(tn_error(), path);
    assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
}

static void hostile_headers_are_refused(void **state) {
    (void)state;
    const char *path = test_scratch("hostile.safetensors");
    for (size_t i = 0; i < TN_COUNT(hostile_files); i++) {
        const hostile *h = &hostile_files[i];
        write_hostile(path, strlen(h->header), h->header, h->data_bytes);
        assert_refused(path, h->reason);
    }
}

static void hostile_lengths_are_refused(void **state) {
    (void)state;
    const char *path = test_scratch("length.safetensors");
    write_hostile(path, UINT64_MAX, "{}", 0);
    assert_refused(path, "is this a safetensors file");
    write_hostile(path, 3, "{}", 0);
    assert_refused(path, "truncated");
    write_file(path, "short");
    assert_refused(path, "too few");
    write_file(path, "");
    assert_refused(path, "too few");
    tn_safetensors *file;
    assert_int_equal(tn_safetensors_open(test_scratch("absent"), &file), TN_ERR_IO);
}

static void bytes_that_are_no_bools_are_refused(void **state) {
    (void)state;
    const char *path = test_scratch("bool.safetensors");
    const char header[] = "{" ENTRY("a", "BOOL", "[2]", "[0,2]") "}";
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 8; i++)
        fputc(i == 0 ? (int)strlen(header) : 0, f);
    fputs(header, f);
    fputs("\1\2", f);
    assert_int_equal(fclose(f), 0);
    tn_safetensors *file;
    assert_ok(tn_safetensors_open(path, &file));
    {
        TN_SCOPE;
        assert_int_equal(tn_status_of(tn_safetensors_tensor(file, "a")), TN_ERR_FORMAT);
    }
    tn_safetensors_close(file);
}

static void opening_survives_failure_at_every_allocation(void **state) {
    (void)state;
    const char *path = test_scratch("memory.safetensors");
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"}," ENTRY("a", "U8", "[1]", "[0,1]") "}";
    write_hostile(path, strlen(header), header, 1);
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status != TN_OK; n++) {
        tn_mem_stats before = tn_mem_get_stats();
        tn_safetensors *file;
        tn_mem_fail_at(n);
        status = tn_safetensors_open(path, &file);
        tn_mem_fail_at(0);
        if (status == TN_OK)
            tn_safetensors_close(file);
        else
            assert_int_equal(status, TN_ERR_MEMORY);
        assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
        assert_true(n < 1000);
    }
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static void save_shard(const char *path, const char *name, float value) {
    TN_SCOPE;
    assert_ok(tn_safetensors_save(path, &(tn_named_tensor){name, tn_full(TN_DIMS(2), value, TN_F32)}, 1, NULL, 0));
}

static float first_number(const tn_safetensors *file, const char *name) {
    float got[2] = {0};
    {
        TN_SCOPE;
        assert_ok(tn_read(tn_safetensors_tensor(file, name), got, sizeof got));
    }
    return got[0];
}

static void shards_are_one_file(void **state) {
    (void)state;
    char index[512], folder[512];
    snprintf(index, sizeof index, "%s", test_scratch("model.safetensors.index.json"));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(index, '/') - index), index);
    save_shard(test_scratch("x-1.safetensors"), "a", 1);
    save_shard(test_scratch("x-2.safetensors"), "b", 2);
    write_file(index, "{\"weight_map\":{\"b\":\"x-2.safetensors\",\"a\":\"x-1.safetensors\"}}");
    const char *const ways[] = {index, folder};
    for (int i = 0; i < 2; i++) {
        tn_safetensors *file;
        assert_ok(tn_safetensors_open(ways[i], &file));
        assert_int_equal(tn_safetensors_count(file), 2);
        assert_true(first_number(file, "a") == 1);
        assert_true(first_number(file, "b") == 2);
        tn_safetensors_close(file);
    }
    for (int64_t n = 1; n < 200; n++) {
        tn_mem_stats before = tn_mem_get_stats();
        tn_safetensors *file;
        tn_mem_fail_at(n);
        tn_status status = tn_safetensors_open(index, &file);
        tn_mem_fail_at(0);
        tn_safetensors_close(file);
        assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
        if (status == TN_OK) return;
        assert_int_equal(status, TN_ERR_MEMORY);
    }
    fail_msg("opening shards never succeeded");
}

static void hostile_indexes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *reason;
    } rows[] = {
        {"[]", "the object \"weight_map\" is missing"},
        {"{\"weight_map\":{}}", "0 files"},
        {"{\"weight_map\":{\"a\":\"../x-1.safetensors\"}}", "not the name of a file in the folder"},
        {"{\"weight_map\":{\"a\":\"/dev/zero\"}}", "not the name of a file in the folder"},
        {"{\"weight_map\":{\"a\":7}}", "not the name of a file in the folder"},
        {"{\"weight_map\":{\"c\":\"x-1.safetensors\"}}", "is not in 'x-1.safetensors'"},
        {"{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-1.safetensors\"}}", "is not in 'x-1.safetensors'"},
        {"{\"weight_map\":{\"a\":\"x-1.safetensors\",\"a\":\"x-1.safetensors\"}}", "lists 2"},
        {"{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-3.safetensors\"}}", "two tensors are named 'a'"},
    };
    const char *path = test_scratch("hostile.index.json");
    save_shard(test_scratch("x-1.safetensors"), "a", 1);
    save_shard(test_scratch("x-3.safetensors"), "a", 1);
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        write_file(path, rows[i].text);
        assert_refused(path, rows[i].reason);
    }
}

/* ---- being killed ------------------------------------------------------------------------------------------------ */

enum { KILLS = 200, NUMBERS = 50000 };

static tn_module *module_of(float value) {
    int64_t n = NUMBERS;
    tn_module *root = tn_module_root();
    TN_SCOPE;
    tn_module_add_parameter(root, "w", tn_full(&n, 1, (double)value, TN_F32));
    return root;
}

/* Saves for ever: in checkpoint k every number is k. */
static void save_for_ever(const char *path) {
    for (int64_t k = 1;; k++) {
        tn_module *m = module_of((float)k);
        tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
        c.model = m;
        c.step = k;
        if (tn_checkpoint_save(path, &c) != TN_OK) _exit(1);
        tn_module_free(m);
    }
}

static int64_t assert_whole(const char *path, tn_module *m) {
    static float numbers[NUMBERS];
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = m;
    assert_ok(tn_checkpoint_load(path, &c));
    assert_ok(tn_read(tn_module_variable(m, "w"), numbers, sizeof numbers));
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i] != (float)c.step)
            fail_msg("number %d is %g in checkpoint %d", i, (double)numbers[i], (int)c.step);
    return c.step;
}

static void no_kill_loses_a_checkpoint(void **state) {
    (void)state;
    const char *path = test_scratch("killed.safetensors");
    tn_module *m = module_of(0);
    tn_checkpoint c = TN_CHECKPOINT_DEFAULTS;
    c.model = m;
    int64_t furthest = 0;
    assert_ok(tn_checkpoint_save(path, &c));
    for (int k = 0; k < KILLS; k++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) save_for_ever(path);
        usleep((useconds_t)(k * 97 % 5000));
        assert_int_equal(kill(child, SIGKILL), 0);
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how));
        furthest = tn_max64(furthest, assert_whole(path, m));
    }
    assert_true(furthest > 0); /* else no save was ever under way */
    tn_module_free(m);
}

/* ---- estimates --------------------------------------------------------------------------------------------------- */

/* Mistral 7B at 4,096 tokens in f32: 7.24 billion weights. */
static void memory_of_a_known_model_is_right(void **state) {
    (void)state;
    tn_model_sizes s = TN_MODEL_SIZES_DEFAULTS;
    s.hidden = 4096;
    s.intermediate = 14336;
    s.layers = 32;
    s.vocabulary = 32000;
    s.heads = 32;
    s.kv_heads = 8;
    s.sequence = 4096;
    s.bytes_per_weight = 4;
    tn_memory_estimate e = {.struct_size = sizeof e};
    assert_ok(tn_estimate_inference_memory(&s, &e));
    assert_int_equal(e.weights_bytes, INT64_C(7241732096) * 4);
    assert_int_equal(e.cache_bytes, INT64_C(2) * 32 * 4096 * 1024 * 2);
    assert_int_equal(e.parameters, INT64_C(7241732096));
    assert_true(e.activation_bytes > 0 && e.runtime_bytes > 0);
    assert_int_equal(e.total_bytes, e.weights_bytes + e.cache_bytes + e.activation_bytes + e.runtime_bytes);
    assert_ok(tn_estimate_training_memory(&s, 1, 2, &e));
    assert_int_equal(e.gradient_bytes, e.weights_bytes);
    assert_int_equal(e.optimizer_bytes, 2 * e.weights_bytes);
    assert_int_equal(e.cache_bytes, 0);
    assert_int_equal(tn_estimate_training_memory(&s, 0, 2, &e), TN_ERR_ARGUMENT);
    s.parameters = 1000; /* known: not counted */
    assert_ok(tn_estimate_inference_memory(&s, &e));
    assert_int_equal(e.parameters, 1000);
    assert_int_equal(e.weights_bytes, 4000);
    s.parameters = -1;
    assert_int_equal(tn_estimate_inference_memory(&s, &e), TN_ERR_ARGUMENT);
    s.parameters = 0;
    s.heads = 0;
    assert_int_equal(tn_estimate_inference_memory(&s, &e), TN_ERR_ARGUMENT);
    s.heads = 32;
    s.vocabulary = INT64_MAX;
    assert_int_equal(tn_estimate_inference_memory(&s, &e), TN_ERR_ARGUMENT);
}

int main(void) {
    (void)tn_set_num_threads(1); /* the children of the last test have no other threads */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(tensors_outlive_the_file),
        cmocka_unit_test(mapped_tensors_can_be_changed),
        cmocka_unit_test(numbers_stay_when_pages_are_given_back),
        cmocka_unit_test(equal_names_are_not_saved),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(bytes_that_are_no_bools_are_refused),
        cmocka_unit_test(opening_survives_failure_at_every_allocation),
        cmocka_unit_test(shards_are_one_file),
        cmocka_unit_test(hostile_indexes_are_refused),
        cmocka_unit_test(no_kill_loses_a_checkpoint),
        cmocka_unit_test(memory_of_a_known_model_is_right),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
