/* test_data.c — sources of samples and the loader: every batch is the same with any number of threads, a position goes
 * on at the same batch, damaged files are refused. */
#include "test_support.h"

#include "trunnion/backend.h"
#include "trunnion/trunnion.h"

static void put_file(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* A .npy file of version 1. */
static size_t make_npy(unsigned char *out, const char *descr, const char *shape, const void *data, size_t size) {
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    int length =
        snprintf((char *)out + 10, 200, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    out[8] = (unsigned char)length;
    out[9] = 0;
    memcpy(out + 10 + length, data, size);
    if (strcmp(descr, "<f4") == 0) tn_dtype_little_endian(TN_F32, out + 10 + length, (int64_t)size / 4);
    if (strcmp(descr, "<i8") == 0) tn_dtype_little_endian(TN_I64, out + 10 + length, (int64_t)size / 8);
    return 10 + (size_t)length + size;
}

enum { COUNT = 23, WIDTH = 3 };

static tn_dataset *numbers(void) {
    unsigned char file[2048];
    float x[COUNT * WIDTH];
    int64_t y[COUNT];
    for (int i = 0; i < COUNT; i++) {
        y[i] = i;
        for (int k = 0; k < WIDTH; k++)
            x[i * WIDTH + k] = (float)(i * 10 + k);
    }
    char a[512], b[512];
    snprintf(a, sizeof a, "%s", test_scratch("x.npy"));
    snprintf(b, sizeof b, "%s", test_scratch("y.npy"));
    put_file(a, file, make_npy(file, "<f4", "23, 3", x, sizeof x));
    put_file(b, file, make_npy(file, "<i8", "23,", y, sizeof y));
    tn_dataset *d;
    assert_ok(tn_dataset_npy((const char *const[]){a, b}, 2, &d));
    assert_int_equal(tn_dataset_count(d), COUNT);
    assert_int_equal(tn_dataset_fields(d), 2);
    return d;
}

static tn_loader *loader_of(tn_dataset *d, int threads, int ahead) {
    tn_loader_options o = TN_LOADER_DEFAULTS;
    tn_loader *l;
    o.batch = 4;
    o.seed = 9;
    o.threads = threads;
    o.ahead = ahead;
    assert_ok(tn_loader_new(d, &o, &l));
    return l;
}

/* The labels of the next batch; values must belong to them. */
static int64_t next_labels(tn_loader *l, int64_t labels[4]) {
    TN_SCOPE;
    tn_tensor *f[2];
    int64_t rows;
    float x[4 * WIDTH];
    assert_ok(tn_loader_next(l, f, &rows));
    assert_int_equal(tn_size(f[0], 0), rows);
    assert_int_equal(tn_size(f[0], 1), WIDTH);
    assert_ok(tn_read(f[0], x, (size_t)rows * WIDTH * sizeof *x));
    assert_ok(tn_read(f[1], labels, (size_t)rows * sizeof *labels));
    for (int64_t i = 0; i < rows; i++)
        assert_true(x[i * WIDTH + 2] == (float)(labels[i] * 10 + 2));
    return rows;
}

static void batches_do_not_depend_on_threads(void **state) {
    (void)state;
    enum { BATCHES = 20 };
    static const int settings[][2] = {{0, 1}, {1, 1}, {1, 2}, {4, 3}, {3, 8}};
    int64_t first[BATCHES][4] = {{0}};
    tn_dataset *d = numbers();
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
        tn_loader *l = loader_of(d, settings[k][0], settings[k][1]);
        int seen[COUNT] = {0};
        for (int i = 0; i < BATCHES; i++) {
            int64_t labels[4] = {0}, n = next_labels(l, labels);
            assert_int_equal(n, i % 6 == 5 ? 3 : 4);
            if (k == 0) memcpy(first[i], labels, sizeof labels);
            assert_memory_equal(first[i], labels, sizeof labels);
            for (int64_t j = 0; j < n && i < 6; j++)
                seen[labels[j]]++;
        }
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(seen[i], 1);
        tn_loader_free(l);
    }
    tn_dataset_free(d);
}

static void a_position_goes_on_at_the_same_batch(void **state) {
    (void)state;
    tn_dataset *d = numbers();
    tn_loader *l = loader_of(d, 2, 3), *other = loader_of(d, 1, 2);
    int64_t labels[4], again[4], epoch, next;
    for (int i = 0; i < 8; i++)
        next_labels(l, labels);
    tn_loader_position(l, &epoch, &next);
    assert_int_equal(epoch, 1);
    assert_int_equal(next, 2);
    next_labels(other, again);
    assert_ok(tn_loader_seek(other, epoch, next));
    for (int i = 0; i < 9; i++) {
        assert_int_equal(next_labels(l, labels), next_labels(other, again));
        assert_memory_equal(labels, again, sizeof labels);
    }
    assert_int_equal(tn_loader_seek(other, -1, 0), TN_ERR_ARGUMENT);
    tn_loader_free(l);
    tn_loader_free(other);
    tn_dataset_free(d);
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* Field `field` of sample `sample`, through a loader that does not shuffle. */
static void read_sample(tn_dataset *d, int64_t sample, int field, void *out, size_t size) {
    tn_loader_options o = TN_LOADER_DEFAULTS;
    tn_loader *l;
    o.shuffle = false;
    o.threads = 0;
    assert_ok(tn_loader_new(d, &o, &l));
    assert_ok(tn_loader_seek(l, 0, sample));
    TN_SCOPE;
    tn_tensor *f[TN_DATASET_FIELDS];
    assert_ok(tn_loader_next(l, f, NULL));
    assert_ok(tn_read(f[field], out, size));
    tn_loader_free(l);
}

static void idx_files_hold_images_and_labels(void **state) {
    (void)state;
    const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 7, 8, 9, 10};
    const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 4, 5};
    unsigned char got[2];
    char a[512], b[512];
    tn_dataset *d;
    snprintf(a, sizeof a, "%s", test_scratch("images"));
    snprintf(b, sizeof b, "%s", test_scratch("labels"));
    put_file(a, images, sizeof images);
    put_file(b, labels, sizeof labels);
    assert_ok(tn_dataset_idx(a, b, &d));
    read_sample(d, 1, 0, got, 2);
    assert_memory_equal(got, images + 18, 2);
    read_sample(d, 1, 1, got, 1);
    assert_int_equal(got[0], 5);
    tn_dataset_free(d);
    put_file(a, images, sizeof images - 1);
    assert_int_equal(tn_dataset_idx(a, b, &d), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "do not fit");
    put_file(b, "\0\0\x0d\1\0\0\0\1\0\0\0\0", 12);
    assert_int_equal(tn_dataset_idx(b, NULL, &d), TN_ERR_UNSUPPORTED);
}

static void token_files_hold_texts_and_what_follows(void **state) {
    (void)state;
    uint16_t narrow[] = {5, 60000, 7, 8, 9, 10, 11};
    int32_t wide[] = {1, 100000, 3, 4, 5};
    int64_t got[3];
    tn_dataset *d;
    const char *path = test_scratch("tokens");
    tn_dtype_little_endian(TN_U16, narrow, sizeof narrow / sizeof *narrow);
    put_file(path, narrow, sizeof narrow);
    assert_ok(tn_dataset_tokens(path, 2, 3, &d));
    assert_int_equal(tn_dataset_count(d), 2);
    read_sample(d, 0, 1, got, sizeof got);
    assert_memory_equal(got, ((const int64_t[]){60000, 7, 8}), sizeof got);
    read_sample(d, 1, 0, got, sizeof got);
    assert_memory_equal(got, ((const int64_t[]){8, 9, 10}), sizeof got);
    tn_dataset_free(d);
    tn_dtype_little_endian(TN_I32, wide, sizeof wide / sizeof *wide);
    put_file(path, wide, sizeof wide);
    assert_ok(tn_dataset_tokens(path, 4, 2, &d));
    read_sample(d, 0, 0, got, 16);
    assert_int_equal(got[1], 100000);
    tn_dataset_free(d);
    assert_int_equal(tn_dataset_tokens(path, 4, 5, &d), TN_ERR_ARGUMENT);
    assert_int_equal(tn_dataset_tokens(path, 3, 1, &d), TN_ERR_ARGUMENT);
}

static void tables_hold_values_and_a_label(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } wrong[] = {{"1,2\n3\n", "line 2"},
                 {"1,2\n3,x\n", "line 2"},
                 {"1,2\n3,4,5\n", "line 2"},
                 {"a,b\n\n", "no rows"},
                 {"1,2\r3,4\r", "line 1"}, /* the second row must not get lost */
                 {"1,2.5\n", "whole number"},
                 {"x,1\n2,3\n", "line 1"}, /* no titles: a number */
                 {"1,\"2\"\n", "number is missing"},
                 {"1,2x\n", "commas"}};
    const char *path = test_scratch("table.csv"), text[] = "a,class,b\n1,2,3.5\n\n-4,0,1e3\r\n";
    float got[2];
    int64_t label;
    tn_dataset *d;
    put_file(path, text, sizeof text - 1);
    assert_ok(tn_dataset_csv(path, 1, &d));
    assert_int_equal(tn_dataset_count(d), 2);
    read_sample(d, 1, 0, got, sizeof got);
    assert_true(got[0] == -4 && got[1] == 1000);
    read_sample(d, 0, 1, &label, sizeof label);
    assert_int_equal(label, 2);
    tn_dataset_free(d);
    static const char marked[] = "\xEF\xBB\xBF"
                                 "5,6\n7,8\n"; /* a byte order mark is no text */
    put_file(path, marked, sizeof marked - 1);
    assert_ok(tn_dataset_csv(path, -1, &d));
    assert_int_equal(tn_dataset_count(d), 2);
    read_sample(d, 0, 0, got, sizeof got);
    assert_true(got[0] == 5 && got[1] == 6);
    tn_dataset_free(d);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put_file(path, wrong[i].text, strlen(wrong[i].text));
        assert_int_equal(tn_dataset_csv(path, 1, &d), TN_ERR_FORMAT);
        assert_text_has(tn_error(), wrong[i].error);
    }
    put_file(path, "1,2\0005,6\n", 8);
    assert_int_equal(tn_dataset_csv(path, 1, &d), TN_ERR_FORMAT);
}

static void tables_have_points_in_every_locale(void **state) {
    test_enter_comma_locale();
    tables_hold_values_and_a_label(state);
    setlocale(LC_ALL, "C");
}

static void damaged_numpy_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *descr, *shape;
        tn_status status;
    } rows[] = {{"<f4", "2, 2", TN_ERR_FORMAT},
                {"<f4", "9223372036854775807, 4", TN_ERR_FORMAT},
                {"<f4", "1, 9223372036854775807", TN_ERR_FORMAT},
                {"<f4", "99999999999999999999,", TN_ERR_FORMAT},
                {"<f4", "", TN_ERR_FORMAT},
                {"<f4", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", TN_ERR_FORMAT},
                {"<f4", "0,", TN_ERR_FORMAT},
                {">f4", "1,", TN_ERR_UNSUPPORTED},
                {"|O", "1,", TN_ERR_UNSUPPORTED}};
    unsigned char file[1024];
    char path[512];
    tn_dataset *d;
    float x[3] = {0};
    snprintf(path, sizeof path, "%s", test_scratch("bad.npy"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_file(path, file, make_npy(file, rows[i].descr, rows[i].shape, x, sizeof x));
        if (tn_dataset_npy((const char *const[]){path}, 1, &d) != rows[i].status)
            fail_msg("%s (%s): %s", rows[i].descr, rows[i].shape, tn_error());
    }
    size_t size = make_npy(file, "<f4", "3,", x, sizeof x);
    for (size_t cut = 0; cut < size; cut += 3) {
        put_file(path, file, cut);
        assert_int_equal(tn_dataset_npy((const char *const[]){path}, 1, &d), TN_ERR_FORMAT);
    }
}

static tn_status fails_at_five(void *ctx, int64_t sample, int field, void *out) {
    (void)ctx, (void)field;
    memcpy(out, &sample, sizeof sample);
    return sample == 5 ? tn_backend_fail(TN_ERR_IO, "no luck") : TN_OK;
}

static void a_failure_names_the_sample_and_the_next_batch_comes(void **state) {
    (void)state;
    const tn_dataset_field field = {.dtype = TN_I64};
    tn_dataset *d;
    assert_ok(tn_dataset_new(8, &field, 1, fails_at_five, NULL, NULL, &d));
    for (int threads = 0; threads < 3; threads++) {
        tn_loader_options o = TN_LOADER_DEFAULTS;
        tn_loader *l;
        tn_tensor *x;
        o.batch = 2;
        o.shuffle = false;
        o.threads = threads;
        assert_ok(tn_loader_new(d, &o, &l));
        TN_SCOPE;
        assert_ok(tn_loader_next(l, &x, NULL));
        assert_ok(tn_loader_next(l, &x, NULL));
        assert_int_equal(tn_loader_next(l, &x, NULL), TN_ERR_IO);
        assert_text_has(tn_error(), "sample 5: no luck");
        assert_ok(tn_loader_next(l, &x, NULL));
        assert_int_equal((int)tn_item(tn_select(x, 0, 0)), 6);
        tn_loader_free(l);
    }
    tn_dataset_free(d);
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    tn_dataset *d = numbers();
    tn_loader_options o = TN_LOADER_DEFAULTS;
    tn_loader *l;
    o.batch = 0;
    assert_int_equal(tn_loader_new(d, &o, &l), TN_ERR_ARGUMENT);
    o.batch = 24;
    o.drop_last = true;
    assert_int_equal(tn_loader_new(d, &o, &l), TN_ERR_ARGUMENT);
    o.batch = 1;
    o.ahead = 0;
    assert_int_equal(tn_loader_new(d, &o, &l), TN_ERR_ARGUMENT);
    tn_dataset_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_do_not_depend_on_threads),
        cmocka_unit_test(a_position_goes_on_at_the_same_batch),
        cmocka_unit_test(idx_files_hold_images_and_labels),
        cmocka_unit_test(token_files_hold_texts_and_what_follows),
        cmocka_unit_test(tables_hold_values_and_a_label),
        cmocka_unit_test(tables_have_points_in_every_locale),
        cmocka_unit_test(damaged_numpy_files_are_refused),
        cmocka_unit_test(a_failure_names_the_sample_and_the_next_batch_comes),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
