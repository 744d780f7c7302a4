/* test_image.c — files that `trunnion run` takes as inputs: pictures of all kinds are the same pixels, scaled and
 * normalised as it is said; NumPy's files have their numbers in whatever order; what is damaged is refused. */
#include "test_support.h"

#include "cli/run/image.h"
#include "cli/run/npy.h"
#include "trunnion/ops.h"

enum { HEIGHT = 5, WIDTH = 4 };

static unsigned char *corpus(const char *name, size_t *size) {
    char path[128];
    unsigned char *bytes;
    snprintf(path, sizeof path, "tests/corpus/npy/%s", name);
    assert_ok(npy_load(path, &bytes, size));
    return bytes;
}

/* What the pictures in the corpus show. */
static int expected(int y, int x, int c) {
    if (y == 2 && x == 1) return 255;
    return c == 0 ? x * 60 : c == 1 ? y * 50 : 0;
}

/* false: this build reads no such files. */
static bool decode(const char *name, image *out) {
    size_t size;
    unsigned char *bytes = corpus(name, &size);
    assert_true(image_is(bytes, size));
    tn_status status = image_decode(bytes, size, name, out);
    free(bytes);
    if (status == TN_ERR_UNSUPPORTED) return false;
    assert_ok(status);
    assert_int_equal(out->height, HEIGHT);
    assert_int_equal(out->width, WIDTH);
    return true;
}

static void pictures_of_all_kinds_are_the_same_pixels(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int tolerance; /* JPEG rounds, a table has 256 colours, grey is its own test */
    } files[] = {{"picture.ppm", 0}, {"picture.bmp", 0}, {"picture.png", 0}, {"alpha.png", 0}, {"picture.jpg", 120}};
    for (size_t i = 0; i < TN_COUNT(files); i++) {
        image p;
        if (!decode(files[i].name, &p)) continue;
        for (int k = 0; k < HEIGHT * WIDTH * 3; k++) {
            int want = expected(k / 3 / WIDTH, k / 3 % WIDTH, k % 3);
            if (abs(p.rgb[k] - want) > files[i].tolerance)
                fail_msg("%s: number %d is %d, not %d", files[i].name, k, p.rgb[k], want);
        }
        free(p.rgb);
    }
    image p;
    assert_true(decode("table.bmp", &p));
    free(p.rgb);
    assert_true(decode("grey.pgm", &p));
    for (int k = 0; k < HEIGHT * WIDTH; k++)
        assert_true(p.rgb[3 * k] == p.rgb[3 * k + 1] && p.rgb[3 * k] == p.rgb[3 * k + 2]);
    free(p.rgb);
}

static void damaged_pictures_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"picture.ppm", "picture.bmp", "picture.png", "picture.jpg", "text.ppm"};
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        size_t size;
        unsigned char *bytes = corpus(names[i], &size);
        for (size_t cut = 0; cut < size * 3 / 4; cut += 1 + cut / 8) { /* the last bytes may be an end mark */
            image p;
            assert_int_not_equal(image_decode(bytes, cut, names[i], &p), TN_OK);
            assert_null(p.rgb);
        }
        free(bytes);
    }
}

/* Each scan is worth nothing in bytes and goes over all pixels. */
static void endless_pictures_are_refused(void **state) {
    (void)state;
    size_t size;
    unsigned char *bytes = corpus("scans.jpg", &size);
    image p;
    tn_status status = image_decode(bytes, size, "scans.jpg", &p);
    free(bytes);
    assert_null(p.rgb);
    if (status == TN_ERR_UNSUPPORTED) return; /* this build reads no JPEG */
    assert_int_equal(status, TN_ERR_FORMAT);
    assert_non_null(strstr(tn_error(), "100 scans"));
}

static void read_input(const image *p, const image_options *o, const int64_t *shape, int rank, tn_dtype dtype,
                       float *out, int count) {
    tn_tensor *t;
    assert_ok(image_tensor(p, o, shape, rank, dtype, &t));
    {
        TN_SCOPE;
        tn_tensor *wide = tn_cast(t, TN_F32);
        assert_int_equal(tn_numel(wide), count);
        assert_ok(tn_read(wide, out, (size_t)count * sizeof *out));
    }
    tn_free(t);
}

static void pictures_become_inputs(void **state) {
    (void)state;
    uint8_t rgb[] = {0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110};
    const image p = {2, 2, rgb};
    image_options o = {0};
    float x[48];
    read_input(&p, &o, (int64_t[]){1, 3, 2, 2}, 4, TN_F32, x, 12); /* channels first */
    assert_float_equal(x[1], 30 / 255.0F, 1e-6);
    assert_float_equal(x[4], 10 / 255.0F, 1e-6);
    read_input(&p, &o, (int64_t[]){-1, -1, -1, 3}, 4, TN_U8, x, 12); /* channels last, open extents, whole numbers */
    for (int i = 0; i < 12; i++)
        assert_float_equal(x[i], rgb[i], 0);
    read_input(&p, &o, (int64_t[]){3, 1, 1}, 3, TN_U8, x, 3); /* shrunk: means */
    assert_float_equal(x[0], 45, 0);
    assert_float_equal(x[2], 65, 0);
    read_input(&p, &o, (int64_t[]){1, 1, 2, 2}, 4, TN_U8, x, 4); /* grey */
    assert_float_equal(x[0], (float)(int)(0.587 * 10 + 0.114 * 20 + 0.5), 0);
    o = (image_options){.bgr = true, .scale = 1, .mean = {10, 0, 0}, .std = {2, 1, 1}};
    read_input(&p, &o, (int64_t[]){1, 3, 2, 2}, 4, TN_F32, x, 12);
    assert_float_equal(x[0], (20 - 10) / 2.0F, 1e-6);
    assert_float_equal(x[8], 0, 1e-6);
    o = (image_options){.resize = IMAGE_FIT};
    read_input(&p, &o, (int64_t[]){2, 4, 3}, 3, TN_U8, x, 24); /* black at both sides */
    assert_float_equal(x[2], 0, 0);
    assert_float_equal(x[4], 10, 0);
    o.resize = IMAGE_CROP;
    read_input(&p, &o, (int64_t[]){2, 4, 3}, 3, TN_U8, x, 24); /* the middle rows of 4 by 4 */
    assert_float_equal(x[0], 15, 0);
    tn_tensor *none;
    assert_int_equal(image_tensor(&p, &o, (int64_t[]){1, 2, 2, 2}, 4, TN_F32, &none), TN_ERR_SHAPE);
    assert_int_equal(image_tensor(&p, &o, (int64_t[]){1, 12}, 2, TN_F32, &none), TN_ERR_SHAPE);
    for (o.resize = IMAGE_STRETCH; o.resize <= IMAGE_FIT; o.resize++) { /* products that are 0 in 64 bits, and not */
        const int64_t far = INT64_C(1) << 33;
        assert_int_equal(image_tensor(&p, &o, (int64_t[]){1, 3, far, far}, 4, TN_F32, &none), TN_ERR_FORMAT);
        assert_int_equal(image_tensor(&p, &o, (int64_t[]){1, 3, 1, INT64_MAX}, 4, TN_F32, &none), TN_ERR_FORMAT);
    }
}

static void numbers_come_in_any_order(void **state) {
    (void)state;
    static const char *const names[] = {"row.npy", "column.npy", "big.npy"};
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        size_t size;
        unsigned char *bytes = corpus(names[i], &size);
        tn_tensor *t;
        assert_ok(npy_decode(bytes, size, names[i], &t));
        free(bytes);
        assert_true(tn_rank(t) == 2 && tn_size(t, 0) == 2 && tn_size(t, 1) == 3);
        {
            TN_SCOPE;
            float x[6];
            assert_ok(tn_read(tn_cast(t, TN_F32), x, sizeof x));
            for (int k = 0; k < 6; k++)
                assert_float_equal(x[k], (float)k, 0);
        }
        tn_free(t);
    }
}

/* In UTF-8, without what fills them up; every cut of the file is refused. */
static void texts_come_as_they_were_saved(void **state) {
    (void)state;
    static const char *const want[] = {"a",
                                       "Gr\xc3\xbc\xc3\x9f"
                                       "e",
                                       "\xe6\x97\xa5\xe6\x9c\xac", ""};
    size_t size;
    unsigned char *bytes = corpus("texts.npy", &size);
    npy_texts t;
    tn_tensor *numbers = NULL;
    assert_true(npy_is_text(bytes, size));
    assert_ok(npy_decode_texts(bytes, size, "texts.npy", &t));
    assert_true(t.count == 4 && t.rank == 2 && t.shape[0] == 2 && t.shape[1] == 2);
    for (int i = 0; i < 4; i++)
        assert_string_equal(t.list[i], want[i]);
    npy_texts_free(&t);
    assert_int_equal(npy_decode(bytes, size, "texts.npy", &numbers), TN_ERR_UNSUPPORTED);
    for (size_t cut = 0; cut < size; cut++)
        assert_int_not_equal(npy_decode_texts(bytes, cut, "texts.npy", &t), TN_OK);
    memset(bytes + size - 4, 0xff, 4);
    assert_int_equal(npy_decode_texts(bytes, size, "texts.npy", &t), TN_ERR_FORMAT);
    free(bytes);
    bytes = corpus("row.npy", &size);
    assert_false(npy_is_text(bytes, size));
    assert_int_equal(npy_decode_texts(bytes, size, "row.npy", &t), TN_ERR_ARGUMENT);
    free(bytes);
}

static void archives_have_their_members(void **state) {
    (void)state;
    static const char *const names[] = {"plain.npz", "packed.npz"};
    for (size_t i = 0; i < TN_COUNT(names); i++) {
        size_t size, at = 0;
        unsigned char *bytes = corpus(names[i], &size);
        npz_member m;
        int count = 0;
        for (; npz_next(bytes, size, &at, &m); count++) {
            tn_tensor *t;
            tn_status status = npz_decode(&m, &t);
            if (m.packed && status == TN_ERR_UNSUPPORTED) continue; /* a build without zlib */
            assert_ok(status);
            assert_string_equal(m.name, count ? "b" : "a");
            if (count == 1) {
                TN_SCOPE;
                assert_float_equal(tn_item(tn_select(t, 0, tn_size(t, 0) - 1)), m.packed ? 39 : 3, 0);
            }
            tn_free(t);
            bytes[(size_t)(m.bytes - bytes) + (m.packed ? m.size / 2 : m.size - 1)] ^= 1;
            assert_int_equal(npz_decode(&m, &t), TN_ERR_FORMAT);
            m.whole -= m.whole ? 1 : 0; /* it says one byte less than there is */
            if (m.packed) assert_int_not_equal(npz_decode(&m, &t), TN_OK);
        }
        assert_int_equal(count, 2);
        free(bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_of_all_kinds_are_the_same_pixels),
        cmocka_unit_test(damaged_pictures_are_refused),
        cmocka_unit_test(endless_pictures_are_refused),
        cmocka_unit_test(pictures_become_inputs),
        cmocka_unit_test(numbers_come_in_any_order),
        cmocka_unit_test(texts_come_as_they_were_saved),
        cmocka_unit_test(archives_have_their_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
