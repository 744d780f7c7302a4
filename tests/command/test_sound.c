/* test_sound.c — `trunnion run` with a WAV file as an input: the samples arrive in the input's shape, resampled if that
 * is wanted, and inputs that take no sound say so. */
#include "test_support.h"

#include <math.h>

#include "trunnion/onnx.h"
#include "trunnion/trunnion.h"

enum { COUNT = 400, RATE = 8000, HEAD = 44 };

static void put(uint8_t *at, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static double tone(int i, int rate) { return 0.5 * sin(2 * 3.14159265358979323846 * 440 * i / rate); }

/* 50 ms of a tone, 16 bits. */
static const char *write_wav(void) {
    uint8_t file[HEAD + 2 * COUNT] = "RIFF....WAVEfmt ";
    const char *path = test_scratch("tone.wav");
    put(file + 4, sizeof file - 8, 4);
    put(file + 16, 16, 4);
    put(file + 20, 1, 2);
    put(file + 22, 1, 2);
    put(file + 24, RATE, 4);
    put(file + 28, 2 * RATE, 4);
    put(file + 32, 2, 2);
    put(file + 34, 16, 2);
    memcpy(file + 36, "data", 4);
    put(file + 40, 2 * COUNT, 4);
    for (int i = 0; i < COUNT; i++)
        put(file + HEAD + 2 * i, (uint32_t)lrint(32768 * tone(i, RATE)), 2);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file, sizeof file, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* y = 2x, for x of this shape; open: its last extent. */
static const char *write_network(const char *name, const int64_t *shape, int rank, bool open, tn_dtype dtype) {
    const char *path = test_scratch(name);
    tn_onnx_export_options o = TN_ONNX_EXPORT_DEFAULTS;
    o.dims[0] = "n";
    TN_SCOPE;
    tn_tensor *x = tn_zeros(shape, rank, dtype);
    assert_ok(tn_eval(&x, 1));
    if (open) x = tn_symbolic(x, rank - 1, 0);
    const tn_named_tensor in = {"x", x}, out = {"y", tn_mul(x, dtype == TN_I64 ? tn_scalar_int(2) : tn_scalar(2))};
    assert_ok(tn_onnx_export(path, &in, 1, &out, 1, &o));
    return path;
}

static int run(const char *network, const char *wav, const char *more, char *heard, size_t size) {
    char line[2000];
    snprintf(line, sizeof line, "%%s run %s -i x=%s %s --json --device cpu 2>&1", network, wav, more);
    return run_trunnion(line, heard, size);
}

/* The values of y, which an npy file has behind its header. */
static void read_output(const char *folder, float *out, size_t count) {
    char path[700];
    uint8_t head[10];
    snprintf(path, sizeof path, "%s/y.npy", folder);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(head, sizeof head, 1, f), 1);
    assert_int_equal(fseek(f, (long)sizeof head + head[8] + head[9] * 256, SEEK_SET), 0);
    assert_int_equal(fread(out, sizeof *out, count, f), count);
    tn_dtype_little_endian(TN_F32, out, (int64_t)count);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void samples_become_the_input(void **state) {
    (void)state;
    char heard[4000], more[700];
    static float got[2 * COUNT];
    const char *wav = write_wav(), *folder = test_scratch("out");
    const char *open = write_network("open.onnx", (int64_t[]){1, 16}, 2, true, TN_F32);
    snprintf(more, sizeof more, "-o %s", folder);
    assert_int_equal(run(open, wav, more, heard, sizeof heard), 0);
    assert_non_null(strstr(heard, "\"shape\": [1, 400]"));
    read_output(folder, got, COUNT);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs((double)got[i] - 2 * tone(i, RATE)) < 1e-4);

    snprintf(more, sizeof more, "-o %s --rate 16000", folder);
    assert_int_equal(run(open, wav, more, heard, sizeof heard), 0);
    read_output(folder, got, 2 * COUNT);
    for (int i = COUNT / 2; i < COUNT; i++)
        assert_true(fabs((double)got[i] - 2 * tone(i, 2 * RATE)) < 1e-4);

    const char *fixed = write_network("fixed.onnx", (int64_t[]){450}, 1, false, TN_F32);
    snprintf(more, sizeof more, "-o %s", folder);
    assert_int_equal(run(fixed, wav, more, heard, sizeof heard), 0);
    read_output(folder, got, 450);
    for (int i = COUNT; i < 450; i++)
        assert_true((double)got[i] == 0);
}

static void inputs_that_take_no_sound_say_so(void **state) {
    (void)state;
    char heard[4000];
    const char *wav = write_wav();
    const char *whole = write_network("whole.onnx", (int64_t[]){1, 400}, 2, false, TN_I64);
    assert_int_equal(run(whole, wav, "", heard, sizeof heard), 1);
    assert_non_null(strstr(heard, "does not take sound"));
    const char *wide = write_network("wide.onnx", (int64_t[]){3, 400}, 2, false, TN_F32);
    assert_int_equal(run(wide, wav, "", heard, sizeof heard), 1);
    assert_non_null(strstr(heard, "does not take sound"));
    const char *small = write_network("small.onnx", (int64_t[]){1, 399}, 2, false, TN_F32);
    assert_int_equal(run(small, wav, "", heard, sizeof heard), 1);
    assert_non_null(strstr(heard, "400 samples at 8000 per second, but the input takes 399"));
    assert_int_equal(run(small, wav, "--rate 9", heard, sizeof heard), 2);
    char line[1600];
    snprintf(line, sizeof line, "%%s run %s --random --rate 16000 2>&1", small);
    assert_int_equal(run_trunnion(line, heard, sizeof heard), 1);
    assert_non_null(strstr(heard, "--rate applies to sound"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_become_the_input),
        cmocka_unit_test(inputs_that_take_no_sound_say_so),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
