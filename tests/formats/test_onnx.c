/* test_onnx.c — ONNX models: what is read, what a run computes and a replay repeats, how faults are told.
 *
 * The models lie in tests/corpus/onnx (onnx_corpus.py writes them). Operators are tested by the standard's own
 * cases (`trunnion onnx-test`); here it is the reader and the executor. */
#include "test_support.h"

#include <math.h>

#include "trunnion/onnx.h"
#include "trunnion/ops.h"

#define MODEL(name) "tests/corpus/onnx/" name

static tn_onnx *open_model(const char *path) {
    tn_onnx *m = NULL;
    assert_ok(tn_onnx_open(path, NULL, &m));
    return m;
}

static tn_onnx_value *floats(const float *numbers, const int64_t *shape, int rank) {
    tn_tensor *t = tn_from_data(numbers, shape, rank, TN_F32);
    tn_onnx_value *v = tn_onnx_value_tensor(t);
    assert_non_null(v);
    tn_free(t);
    return v;
}

/* Output v is these numbers; freed. */
static void assert_floats(tn_onnx_value *v, const float *expected, int64_t count) {
    float got[64];
    assert_non_null(v);
    assert_int_equal(tn_onnx_value_count(v), count);
    assert_ok(tn_read(tn_onnx_value_get(v), got, (size_t)count * sizeof *got));
    for (int64_t i = 0; i < count; i++)
        if (got[i] != expected[i]) fail_msg("element %lld is %g, not %g", (long long)i, got[i], expected[i]);
    tn_onnx_value_free(v);
}

static int64_t recorded(void) {
    tn_runtime_stats stats = {.struct_size = sizeof stats};
    assert_ok(tn_get_runtime_stats(&stats));
    return stats.nodes_recorded;
}

/* ---- running and replaying --------------------------------------------------------------------------------------- */

/* relu(x w + b) of mlp.onnx: w[i][j] = (2 i + j) / 4 − 1/2, b = {0.5, −1}: exact in f32. */
static void run_mlp(tn_onnx *m, int64_t batch, float seed) {
    float x[12], y[8];
    for (int64_t i = 0; i < 3 * batch; i++)
        x[i] = seed + (float)(i % 5) - 2;
    for (int64_t n = 0; n < batch; n++)
        for (int j = 0; j < 2; j++) {
            float sum = j ? -1 : 0.5F;
            for (int i = 0; i < 3; i++)
                sum += x[3 * n + i] * ((float)(2 * i + j) / 4 - 0.5F);
            y[2 * n + j] = sum > 0 ? sum : 0;
        }
    tn_onnx_value *in = floats(x, TN_DIMS(batch, 3)), *out = NULL;
    assert_ok(tn_onnx_run(m, &in, &out));
    assert_floats(out, y, 2 * batch);
    tn_onnx_value_free(in);
}

static void a_replay_computes_what_the_first_run_does(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("mlp.onnx"));
    for (int i = 0; i < 4; i++) {
        run_mlp(m, 2, (float)i);
        run_mlp(m, 4, (float)i);
    }
    tn_onnx_close(m);
}

static void a_third_run_records_nothing(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("mlp.onnx"));
    run_mlp(m, 2, 1);
    run_mlp(m, 2, 2);
    int64_t before = recorded();
    run_mlp(m, 2, 3);
    assert_int_equal(recorded(), before);
    tn_onnx_close(m);
}

/* The weights of few_bits.onnx are made into floats by the first run, which later ones, of any extents, start from. */
static void weights_of_few_bits_are_unpacked_once(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("few_bits.onnx"));
    static const float scales[] = {0.5F, 0.25F, 1};
    for (int run = 0; run < 4; run++) {
        int64_t batch = run == 1 ? 2 : 1;
        float x[32], y[6] = {0};
        for (int64_t i = 0; i < 16 * batch; i++)
            x[i] = (float)((i + run) % 7) - 3;
        for (int64_t n = 0; n < batch; n++)
            for (int r = 0; r < 3; r++)
                for (int i = 0; i < 16; i++) {
                    int number = i % 2 ? (7 - i / 2) & 15 : (r + 2 * (i / 2)) & 15;
                    y[3 * n + r] += x[16 * n + i] * (float)(number - 8) * scales[r];
                }
        tn_onnx_value *in = floats(x, TN_DIMS(batch, 16)), *out = NULL;
        int64_t before = recorded();
        assert_ok(tn_onnx_run(m, &in, &out));
        if (run == 1 && recorded() - before > 3) fail_msg("%lld nodes", (long long)(recorded() - before));
        assert_floats(out, y, 3 * batch);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

/* chosen.onnx multiplies comparisons of indices with 0 … 3: with w it takes rows, an index outside none, and no sum is
 * −0; with v, in which infinity stands, it is the product, NaN included. */
static void comparisons_choose_rows_of_finite_numbers(void **state) {
    (void)state;
    static const float w[4][2] = {{1, 2}, {0, 4}, {5, 6}, {7, 8}};
    tn_onnx *m = open_model(MODEL("chosen.onnx"));
    for (int run = 0; run < 4; run++) {
        int32_t index[] = {run, 1, -1, 3, 4, 2 - run};
        float y[6][2], z[6][2];
        tn_tensor *t = tn_from_data(index, TN_DIMS(6, 1), TN_I32);
        tn_onnx_value *in = tn_onnx_value_tensor(t), *out[2] = {NULL};
        tn_free(t);
        assert_ok(tn_onnx_run(m, &in, out));
        assert_ok(tn_read(tn_onnx_value_get(out[0]), y, sizeof y));
        assert_ok(tn_read(tn_onnx_value_get(out[1]), z, sizeof z));
        for (int i = 0; i < 6; i++) {
            bool inside = index[i] >= 0 && index[i] < 4;
            for (int j = 0; j < 2; j++) {
                float want = inside ? w[index[i]][j] : 0;
                if (memcmp(&y[i][j], &want, sizeof want) != 0)
                    fail_msg("run %d, row %d: %g, not %g", run, i, y[i][j], want);
            }
            assert_true(z[i][0] == y[i][0] && (index[i] == 2 ? isinf(z[i][1]) : isnan(z[i][1])));
        }
        for (int k = 0; k < 2; k++)
            tn_onnx_value_free(out[k]);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

/* A capture tells inputs apart by their memory. */
static void an_input_given_twice_is_two_inputs_later(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("two.onnx"));
    tn_onnx_value *a = floats((float[]){5, 7}, TN_DIMS(2)), *b = floats((float[]){1, 2}, TN_DIMS(2)), *out = NULL;
    for (int i = 0; i < 5; i++) {
        bool same = i < 3;
        assert_ok(tn_onnx_run(m, (tn_onnx_value *[]){a, same ? a : b}, &out));
        assert_floats(out, same ? (float[]){0, 0} : (float[]){4, 5}, 2);
    }
    tn_onnx_value_free(a);
    tn_onnx_value_free(b);
    tn_onnx_close(m);
}

/* What extents told one run is any number to the next, which is given it. */
static void results_that_are_given_back_are_read_anew(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("told.onnx"));
    const float zeros[5] = {0}, counting[] = {0, 1, 2, 3, 4};
    tn_onnx_value *x[] = {floats(zeros, TN_DIMS(3)), floats(zeros, TN_DIMS(5))}, *count[2], *one, *out[2];
    one = floats((float[]){1}, NULL, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_onnx_run(m, (tn_onnx_value *[]){x[i], one}, out));
        assert_floats(out[0], counting, 1);
        count[i] = out[1];
    }
    tn_onnx_close(m);
    m = open_model(MODEL("told.onnx"));
    for (int i = 0; i < 4; i++) {
        assert_ok(tn_onnx_run(m, (tn_onnx_value *[]){x[0], count[i & 1]}, out));
        assert_floats(out[0], counting, i & 1 ? 5 : 3);
        tn_onnx_value_free(out[1]);
    }
    for (int i = 0; i < 2; i++) {
        tn_onnx_value_free(x[i]);
        tn_onnx_value_free(count[i]);
    }
    tn_onnx_value_free(one);
    tn_onnx_close(m);
}

static void values_outlive_their_model(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("mlp.onnx"));
    tn_onnx_value *in = floats((float[]){1, 1, 3}, TN_DIMS(1, 3)), *out = NULL;
    {
        TN_SCOPE;
        assert_ok(tn_onnx_run(m, &in, &out));
    }
    tn_onnx_close(m);
    tn_onnx_value_free(in);
    assert_floats(out, (float[]){1.5F, 1.25F}, 2);
}

static void a_branch_follows_each_run_s_numbers(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("if.onnx"));
    for (int i = 0; i < 6; i++) {
        float sign = i % 3 == 1 ? -1 : 1, x[] = {sign * 1, sign * 3};
        tn_onnx_value *in = floats(x, TN_DIMS(2)), *out = NULL;
        assert_ok(tn_onnx_run(m, &in, &out));
        assert_floats(out, sign > 0 ? (float[]){3, 5} : (float[]){-2, -6}, 2);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

/* v ← v + x, three times from x; and v² of each step. */
static void a_loop_carries_and_gathers(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("loop.onnx"));
    for (int i = 0; i < 3; i++) {
        tn_onnx_value *in = floats((float[]){1, 2}, TN_DIMS(2)), *out[2] = {NULL, NULL};
        assert_ok(tn_onnx_run(m, &in, out));
        assert_floats(out[0], (float[]){4, 8}, 2);
        assert_floats(out[1], (float[]){4, 16, 9, 36, 16, 64}, 6);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

static void a_scan_gathers_from_the_end_when_told(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("scan.onnx"));
    tn_onnx_value *in[] = {floats((float[]){1, 1}, TN_DIMS(2)), floats((float[]){1, 2, 3, 4}, TN_DIMS(2, 2))};
    tn_onnx_value *out[2] = {NULL, NULL};
    assert_ok(tn_onnx_run(m, in, out));
    assert_floats(out[0], (float[]){5, 7}, 2);
    assert_floats(out[1], (float[]){5, 7, 2, 3}, 4);
    tn_onnx_value_free(in[0]);
    tn_onnx_value_free(in[1]);
    tn_onnx_close(m);
}

/* Each node of unsorted.onnx stands before those that it reads; a branch hides the name of a later node's output. */
static void nodes_run_in_the_order_of_what_they_read(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("unsorted.onnx"));
    for (int run = 0; run < 4; run++) {
        float sign = run % 2 ? -1.0F : 1.0F, x[2] = {sign * 2, sign * 3}, y[2];
        for (int i = 0; i < 2; i++) {
            float chosen = 2 * x[i] * (sign > 0 ? 2 : x[i]) + x[i];
            y[i] = chosen + (chosen > 0 ? chosen : 0);
        }
        tn_onnx_value *in = floats(x, TN_DIMS(2)), *out = NULL;
        assert_ok(tn_onnx_run(m, &in, &out));
        assert_floats(out, y, 2);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

static void a_cycle_of_nodes_is_refused_with_their_names(void **state) {
    (void)state;
    tn_onnx *m = NULL;
    assert_int_equal(tn_onnx_open(MODEL("cycle.onnx"), NULL, &m), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "'first' (Add) -> 'second' (Mul) -> 'first' (Add)");
}

static void a_function_s_attributes_are_the_call_s(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("function.onnx"));
    for (int i = 0; i < 3; i++) { /* first with 3, then with 0.5 */
        tn_onnx_value *in = floats((float[]){2, 4}, TN_DIMS(2)), *out = NULL;
        assert_ok(tn_onnx_run(m, &in, &out));
        assert_floats(out, (float[]){3, 6}, 2);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

static void a_window_may_need_the_padding_behind_it(void **state) {
    (void)state;
    static const float x[] = {-4, -3, -2, -1};
    tn_onnx *m = open_model(MODEL("pool.onnx"));
    for (int64_t side = 1; side <= 2; side++) {
        tn_onnx_value *in = floats(x, TN_DIMS(1, 1, side, side)), *out = NULL;
        assert_ok(tn_onnx_run(m, &in, &out));
        assert_floats(out, &x[side * side - 1], 1);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

/* The last window ends outside of the image, which is not copied for that. */
static void a_last_window_outside_needs_no_padding(void **state) {
    (void)state;
    enum { SIDE = 16, PLACES = 8 };
    static float x[SIDE * SIDE], want[PLACES * PLACES];
    for (int i = 0; i < SIDE * SIDE; i++)
        x[i] = (float)i;
    for (int i = 0; i < PLACES * PLACES; i++) {
        const int64_t row = tn_min64(i / PLACES * 2 + 2, SIDE - 1), column = tn_min64(i % PLACES * 2 + 2, SIDE - 1);
        want[i] = x[row * SIDE + column];
    }
    tn_onnx *m = open_model(MODEL("pool_ceil.onnx"));
    tn_onnx_value *in = floats(x, TN_DIMS(1, 1, SIDE, SIDE)), *out = NULL;
    assert_ok(tn_onnx_run(m, &in, &out));
    assert_floats(out, want, PLACES * PLACES);
    char *plan = tn_explain_last();
    assert_text_has(plan, "max_pool2d");
    assert_null(strstr(plan, "pad"));
    tn_text_free(plan);
    tn_onnx_value_free(in);
    tn_onnx_close(m);
}

static void bounds_of_clip_are_attributes_or_inputs(void **state) {
    (void)state;
    static const struct {
        const char *path;
        float want[4];
    } models[] = {{MODEL("clip.onnx"), {-1, 3, 6, 0}}, {MODEL("clip_above.onnx"), {-5, 3, 6, 0}}};
    for (size_t i = 0; i < TN_COUNT(models); i++) {
        tn_onnx *m = open_model(models[i].path);
        tn_onnx_value *in = floats((float[]){-5, 3, 8, 0}, TN_DIMS(4)), *out = NULL;
        assert_ok(tn_onnx_run(m, &in, &out));
        assert_floats(out, models[i].want, 4);
        tn_onnx_value_free(in);
        tn_onnx_close(m);
    }
}

static void sparse_initialisers_and_shapes_are_values(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("sparse.onnx"));
    float x[] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < 3; i++) {
        tn_onnx_value *in = floats(x, TN_DIMS(2, 3)), *out[4] = {NULL, NULL, NULL, NULL};
        int64_t before = recorded();
        assert_ok(tn_onnx_run(m, &in, out));
        if (i == 2) assert_int_equal(recorded(), before + 1); /* the input in another shape: a view */
        assert_floats(out[0], (float[]){1, 3.5F, 3, 4, 5, 4}, 6);
        assert_true(tn_item(tn_onnx_value_get(out[1])) == 3);
        tn_onnx_value_free(out[1]);
        assert_floats(out[2], x, 6);
        assert_true(tn_item(tn_onnx_value_get(out[3])) == 1);
        tn_onnx_value_free(out[3]);
        tn_onnx_value_free(in);
    }
    tn_onnx_close(m);
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static void narrow_types_live_in_wider_ones(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double numbers[4];
    } expected[] = {{"FLOAT8E4M3FN", {1, 2, -3, 0.5}},
                    {"INT4", {1, -8, 7, 0}},
                    {"FLOAT4E2M1", {0.5, 6, -2, 1}},
                    {"FLOAT16", {1, 2, 3, 4}},
                    {"BOOL", {1, 0, 1, 1}}};
    tn_onnx *m = open_model(MODEL("types.onnx"));
    tn_onnx_value *out[7] = {NULL};
    assert_int_equal(tn_onnx_output_count(m), 7);
    assert_ok(tn_onnx_run(m, NULL, out));
    for (size_t i = 0; i < TN_COUNT(expected); i++) {
        assert_string_equal(tn_onnx_value_type(out[i]), expected[i].type);
        tn_tensor *wide = tn_cast(tn_onnx_value_get(out[i]), TN_F64);
        double got[4];
        assert_ok(tn_read(wide, got, sizeof got));
        assert_memory_equal(got, expected[i].numbers, sizeof got);
        tn_free(wide);
    }
    int64_t shape[TN_MAX_RANK];
    assert_int_equal(tn_onnx_value_shape(out[5], shape), 2); /* complex: pairs */
    assert_int_equal(shape[1], 2);
    size_t length;
    assert_memory_equal(tn_onnx_value_string(out[6], 1, &length), "two", 3);
    assert_int_equal(length, 3);
    for (int k = 0; k < 7; k++)
        tn_onnx_value_free(out[k]);
    tn_onnx_close(m);
}

static char *load(const char *path, size_t *size) {
    char *bytes;
    assert_ok(tn_file_read(path, &bytes, size, 1 << 20));
    return bytes;
}

static tn_onnx_value *decode(const char *path, tn_onnx_kind kind) {
    size_t size;
    char *bytes = load(path, &size);
    tn_onnx_value *v = NULL;
    assert_ok(tn_onnx_value_decode(bytes, size, kind, &v));
    tn_mem_free(bytes);
    return v;
}

static void values_of_test_cases_are_read(void **state) {
    (void)state;
    tn_onnx_value *v = decode(MODEL("sequence.pb"), TN_ONNX_SEQUENCE);
    assert_int_equal(tn_onnx_value_count(v), 2);
    assert_int_equal(tn_onnx_value_count(tn_onnx_value_item(v, 0)), 2);
    tn_onnx_value_free(v);
    v = decode(MODEL("optional.pb"), TN_ONNX_OPTIONAL);
    assert_int_equal(tn_onnx_value_count(v), 1);
    tn_onnx_value_free(v);
    v = decode(MODEL("map.pb"), TN_ONNX_MAP);
    size_t length;
    assert_memory_equal(tn_onnx_value_string(tn_onnx_value_keys(v), 1, &length), "b", 1);
    assert_true(tn_item(tn_onnx_value_get(tn_onnx_value_item(v, 1))) == 2);
    tn_onnx_value_free(v);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Opens a model's bytes with one text, at its first place, put in another's of the same length. */
static tn_status open_changed(const char *path, const char *from, const char *to, tn_onnx **m, char **report) {
    size_t size, length = strlen(from);
    char *bytes = load(path, &size);
    bool found = false;
    for (size_t i = 0; i + length <= size && !found; i++)
        if ((found = memcmp(bytes + i, from, length) == 0)) memcpy(bytes + i, to, length);
    assert_true(found);
    tn_onnx_options o = TN_ONNX_DEFAULTS;
    o.folder = scratch_folder;
    o.report = report;
    tn_status status = tn_onnx_open_memory(bytes, size, &o, m);
    tn_mem_free(bytes);
    return status;
}

static void a_missing_operator_is_named_before_anything_runs(void **state) {
    (void)state;
    tn_onnx *m = NULL;
    char *report = NULL;
    assert_int_equal(open_changed(MODEL("mlp.onnx"), "Relu", "Relo", &m, &report), TN_ERR_UNSUPPORTED);
    assert_null(m);
    assert_text_has(tn_error(), "Relo of opset 21 (1 node, 'last')");
    assert_text_has(report, "Relo");
    tn_text_free(report);
}

static void external_data_stays_in_the_folder(void **state) {
    (void)state;
    tn_onnx *m = NULL;
    FILE *f = fopen(test_scratch("weights.bin"), "wb");
    assert_non_null(f);
    float weights[2] = {10, 20};
    tn_dtype_little_endian(TN_F32, weights, 2);
    assert_int_equal(fwrite(weights, sizeof *weights, 2, f), 2);
    fclose(f);
    assert_ok(open_changed(MODEL("external.onnx"), "weights.bin", "weights.bin", &m, NULL));
    tn_onnx_value *in = floats((float[]){1, 2}, TN_DIMS(2)), *out = NULL;
    assert_ok(tn_onnx_run(m, &in, &out));
    assert_floats(out, (float[]){11, 22}, 2);
    tn_onnx_value_free(in);
    tn_onnx_close(m);
    static const char *const outside[] = {"../ghts.bin", "/eights.bin", "a/../../bin", "weig\\ts.bin"};
    for (size_t i = 0; i < TN_COUNT(outside); i++) {
        assert_int_equal(open_changed(MODEL("external.onnx"), "weights.bin", outside[i], &m, NULL), TN_ERR_FORMAT);
        assert_text_has(tn_error(), "only files in the model's folder");
    }
    assert_int_equal(truncate(test_scratch("weights.bin"), sizeof weights - 1), 0);
    assert_int_equal(open_changed(MODEL("external.onnx"), "weights.bin", "weights.bin", &m, NULL), TN_ERR_FORMAT);
    assert_text_has(tn_error(), "begins at byte 0 and has 8 bytes, but 'weights.bin' has only 7");
}

static void inputs_that_do_not_fit_are_named(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("mlp.onnx"));
    tn_onnx_value *out = NULL, *in = floats((float[]){1, 2}, TN_DIMS(1, 2));
    assert_int_equal(tn_onnx_run(m, &in, &out), TN_ERR_SHAPE);
    assert_text_has(tn_error(), "input 'x' is [1, 2], but must be [?, 3]");
    tn_onnx_value_free(in);
    tn_tensor *t = tn_from_data((int32_t[]){1, 2, 3}, TN_DIMS(1, 3), TN_I32);
    in = tn_onnx_value_tensor(t);
    tn_free(t);
    assert_int_equal(tn_onnx_run(m, &in, &out), TN_ERR_DTYPE);
    assert_text_has(tn_error(), "input 'x' is i32");
    tn_onnx_value_free(in);
    in = NULL;
    assert_int_equal(tn_onnx_run(m, &in, &out), TN_ERR_ARGUMENT);
    assert_null(out);
    tn_onnx_close(m);
}

/* Whoever still held what is handed out would have it stored a second time. */
static void a_replay_stores_each_output_once(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("mlp.onnx"));
    for (int i = 0; i < 3; i++)
        run_mlp(m, 2, (float)i);
    char *plan = tn_explain_last();
    assert_text_has(plan, " 1 results,");
    tn_text_free(plan);
    tn_onnx_close(m);
}

static void what_a_model_declares_can_be_asked(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("mlp.onnx"));
    tn_onnx_info info = {.struct_size = sizeof info};
    assert_int_equal(tn_onnx_input_count(m), 1); /* initialisers are none */
    assert_ok(tn_onnx_input_at(m, 0, &info));
    assert_string_equal(info.name, "x");
    assert_string_equal(info.type, "FLOAT");
    assert_int_equal(info.rank, 2);
    assert_int_equal(info.shape[0], -1);
    assert_string_equal(info.dims[0], "batch");
    assert_int_equal(info.shape[1], 3);
    assert_int_equal(tn_onnx_input_at(m, 1, &info), TN_ERR_ARGUMENT);
    tn_onnx_close(m);
}

/* Subgraphs and attributes that do not fit their node. */
static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *reason;
        tn_status status;
    } unfit[] = {
        {MODEL("unfit_loop.onnx"), "output 1 of its subgraph has no value", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_map.onnx"), "output 1 of its subgraph has no value", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_list.onnx"), "declares type 6, but holds a value of type 7", TN_ERR_FORMAT},
        {MODEL("unfit_floats.onnx"), "input 1 is f32, but must be INT8 or UINT8", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_zeros.onnx"), "5 zero points of input 1", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_flat.onnx"), "a weight of 2 dimensions does not fit an input of 4", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_kernel.onnx"), "kernel_shape is 1 along axis 1, but the weight has 2", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_groups.onnx"), "attribute 'group' is 0", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_product.onnx"), "products of u8 with f32", TN_ERR_UNSUPPORTED},
        {MODEL("unfit_heads.onnx"), "heads do not fit", TN_ERR_SHAPE},
        {MODEL("unfit_place.onnx"), "1 positions from -3 on exceed a table of 4", TN_ERR_SHAPE}};
    for (size_t i = 0; i < TN_COUNT(unfit); i++) {
        tn_onnx *m = NULL;
        tn_onnx_value *in = floats((float[]){1, 2}, TN_DIMS(2)), *out[2] = {NULL, NULL};
        tn_status status = tn_onnx_open(unfit[i].path, NULL, &m);
        if (status == TN_OK) status = tn_onnx_run(m, &in, out);
        assert_int_equal(status, unfit[i].status);
        assert_text_has(tn_error(), unfit[i].reason);
        tn_onnx_value_free(in);
        tn_onnx_close(m);
    }
}

static void sums_of_no_products_are_zeros(void **state) {
    (void)state;
    tn_onnx *m = open_model(MODEL("empty.onnx"));
    tn_onnx_value *in = floats((float[]){1, 2, 3}, TN_DIMS(3)), *out = NULL;
    assert_ok(tn_onnx_run(m, &in, &out));
    assert_floats(out, (float[]){1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}, 12);
    tn_onnx_value_free(in);
    tn_onnx_close(m);
}

static void extremes_of_no_numbers_are_the_dtype_s_limits(void **state) {
    (void)state;
    static const uint64_t limits[] = {
        (uint64_t)INT64_MIN,         INT64_MAX, 0, UINT64_MAX, (uint64_t)(int64_t)INT32_MIN, INT32_MAX,
        (uint64_t)(int64_t)INT8_MIN, INT8_MAX};
    tn_onnx *m = open_model(MODEL("limits.onnx"));
    tn_onnx_value *out[TN_COUNT(limits)] = {NULL};
    assert_ok(tn_onnx_run(m, NULL, out));
    for (size_t i = 0; i < TN_COUNT(limits); i++) {
        uint64_t got[2];
        assert_non_null(out[i]);
        tn_tensor *wide = tn_cast(tn_onnx_value_get(out[i]), TN_U64);
        assert_ok(tn_read(wide, got, sizeof got));
        if (got[0] != limits[i] || got[1] != limits[i]) fail_msg("limit %zu is %llx", i, (unsigned long long)got[0]);
        tn_free(wide);
        tn_onnx_value_free(out[i]);
    }
    tn_onnx_close(m);
}

static void every_cut_of_a_file_is_refused_or_whole(void **state) {
    (void)state;
    size_t size;
    char *bytes = load(MODEL("loop.onnx"), &size);
    for (size_t n = 0; n < size; n++) {
        tn_onnx *m = NULL;
        char *cut = tn_mem_alloc(n); /* so that the sanitizer sees a byte too many */
        memcpy(cut, bytes, n);
        tn_status status = tn_onnx_open_memory(cut, n, NULL, &m);
        assert_true((status == TN_OK) == (m != NULL));
        tn_onnx_close(m);
        tn_mem_free(cut);
    }
    tn_mem_free(bytes);
}

static void memory_may_run_out_anywhere(void **state) {
    (void)state;
    int64_t blocks = 0;
    for (int64_t n = 1;; n += 1 + n / 16) { /* every one at first, then fewer */
        tn_mem_fail_at(n);
        tn_onnx *m = NULL;
        tn_onnx_value *out[2] = {NULL, NULL}, *in = NULL;
        tn_status status = tn_onnx_open(MODEL("loop.onnx"), NULL, &m);
        tn_tensor *t = tn_from_data((float[]){1, 2}, TN_DIMS(2), TN_F32);
        if (status == TN_OK && !(in = tn_onnx_value_tensor(t))) status = TN_ERR_MEMORY;
        for (int i = 0; i < 3 && status == TN_OK; i++) {
            status = tn_onnx_run(m, &in, out);
            tn_onnx_value_free(out[0]);
            tn_onnx_value_free(out[1]);
        }
        tn_mem_fail_at(0);
        tn_onnx_value_free(in);
        tn_free(t);
        tn_onnx_close(m);
        if (status == TN_OK) break;
        assert_int_equal(status, TN_ERR_MEMORY);
        blocks = n;
    }
    assert_true(blocks > 30);
}

/* A first run that fails anywhere, also between the weights' new form and the result, spoils no later one. Each has
 * extents of its own, so that it is planned anew. */
static void what_failed_once_is_computed_later(void **state) {
    (void)state;
    enum { MOST = 400 };
    static const float x[16 * MOST] = {1, 1, 1, 1}, y[3] = {-8.5F, -3.75F, -13};
    static float got[3 * MOST];
    tn_status status = TN_ERR_MEMORY;
    int64_t n = 1;
    for (; status != TN_OK && n <= MOST; n++) {
        tn_onnx *m = open_model(MODEL("few_bits.onnx"));
        tn_onnx_value *in = floats(x, TN_DIMS(n, 16)), *out = NULL;
        size_t bytes = (size_t)n * sizeof y;
        tn_mem_fail_at(n);
        status = tn_onnx_run(m, &in, &out);
        if (status == TN_OK) status = tn_read(tn_onnx_value_get(out), got, bytes);
        tn_mem_fail_at(0);
        if (status != TN_OK) {
            assert_int_equal(status, TN_ERR_MEMORY);
            tn_onnx_value_free(out);
            out = NULL;
            assert_ok(tn_onnx_run(m, &in, &out));
            assert_ok(tn_read(tn_onnx_value_get(out), got, bytes));
        }
        assert_memory_equal(got, y, sizeof y);
        tn_onnx_value_free(out);
        tn_onnx_value_free(in);
        tn_onnx_close(m);
    }
    assert_int_equal(status, TN_OK);
    assert_true(n > 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_computes_what_the_first_run_does),
        cmocka_unit_test(a_third_run_records_nothing),
        cmocka_unit_test(weights_of_few_bits_are_unpacked_once),
        cmocka_unit_test(comparisons_choose_rows_of_finite_numbers),
        cmocka_unit_test(an_input_given_twice_is_two_inputs_later),
        cmocka_unit_test(results_that_are_given_back_are_read_anew),
        cmocka_unit_test(values_outlive_their_model),
        cmocka_unit_test(a_branch_follows_each_run_s_numbers),
        cmocka_unit_test(a_loop_carries_and_gathers),
        cmocka_unit_test(a_scan_gathers_from_the_end_when_told),
        cmocka_unit_test(nodes_run_in_the_order_of_what_they_read),
        cmocka_unit_test(a_cycle_of_nodes_is_refused_with_their_names),
        cmocka_unit_test(a_function_s_attributes_are_the_call_s),
        cmocka_unit_test(a_window_may_need_the_padding_behind_it),
        cmocka_unit_test(a_last_window_outside_needs_no_padding),
        cmocka_unit_test(bounds_of_clip_are_attributes_or_inputs),
        cmocka_unit_test(sparse_initialisers_and_shapes_are_values),
        cmocka_unit_test(narrow_types_live_in_wider_ones),
        cmocka_unit_test(values_of_test_cases_are_read),
        cmocka_unit_test(a_missing_operator_is_named_before_anything_runs),
        cmocka_unit_test(external_data_stays_in_the_folder),
        cmocka_unit_test(inputs_that_do_not_fit_are_named),
        cmocka_unit_test(a_replay_stores_each_output_once),
        cmocka_unit_test(what_a_model_declares_can_be_asked),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(sums_of_no_products_are_zeros),
        cmocka_unit_test(extremes_of_no_numbers_are_the_dtype_s_limits),
        cmocka_unit_test(every_cut_of_a_file_is_refused_or_whole),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(what_failed_once_is_computed_later),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
