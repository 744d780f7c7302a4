/* test_rematerialize.c — promises of large values that are computed again where they are needed (plan/fuse.c):
 * the bits that they have when they are stored, whatever they are made of and whoever needs them; less is written and
 * read; and what is small, dear or made of much stays in memory. */
#include "step_by_step.h"

#include <math.h>

enum { DRAWN = 60, IMAGES = 8, CHANNELS = 16, SIDE = 32, ROWS = 512, COLUMNS = 272 };

static tn_tensor *waves(const int64_t *shape, int rank, double by) {
    static float data[ROWS * COLUMNS];
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= shape[d];
    for (int64_t i = 0; i < count; i++)
        data[i] = sinf((float)(by * (double)(i + 1)));
    return tn_from_data(data, shape, rank, TN_F32);
}

/* What is normalized: along which dims, and of what shape the rest is; `twice`: then along the images, as layers do. */
typedef struct space {
    int rank, reduced;
    bool twice;
    int64_t shape[4], dims[3], kept[4];
} space;

static const space SPACES[] = {
    {4, 2, true, {IMAGES, CHANNELS, SIDE, SIDE}, {2, 3}, {1, CHANNELS, 1, 1}},
    {4, 3, false, {IMAGES, CHANNELS, SIDE, SIDE}, {0, 2, 3}, {1, CHANNELS, 1, 1}},
    {4, 2, false, {IMAGES, CHANNELS, SIDE, SIDE}, {2, 3}, {IMAGES, CHANNELS, 1, 1}},
    {2, 1, false, {ROWS, COLUMNS}, {0}, {1, COLUMNS}},
    {2, 1, false, {ROWS, COLUMNS}, {1}, {ROWS, 1}},
};

/* A convolution's results, a product's, an operation's, or what lies in memory. */
static tn_tensor *source(const space *s, double by) {
    int64_t kind = below(3);
    if (kind == 0) return waves(s->shape, s->rank, by);
    if (kind == 1) return step(tn_exp(waves(s->shape, s->rank, by)));
    if (s->rank == 2)
        return step(tn_matmul(waves((int64_t[]){ROWS, 8}, 2, by), waves((int64_t[]){8, COLUMNS}, 2, 0.3)));
    tn_tensor *x = waves((int64_t[]){IMAGES, 2, SIDE, SIDE}, 4, by);
    tn_tensor *w = waves((int64_t[]){CHANNELS, 2, 3, 3}, 4, 0.7);
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    return step(tn_conv2d(x, w, NULL, &o));
}

static tn_tensor *mean(const space *s, tn_tensor *x) {
    tn_tensor *m = step(tn_mean(x, s->dims, s->reduced, true));
    return s->twice ? step(tn_mean(m, (int64_t[]){0}, 1, true)) : m;
}

static tn_tensor *act(tn_tensor *x, int64_t kind) {
    if (kind == 0) return step(tn_abs(x));
    if (kind == 1) return step(tn_cast(step(tn_cast(x, TN_F16)), TN_F32));
    return step(tn_relu(x));
}

/* Someone who reads it from memory. */
static tn_tensor *multiplied(const space *s, tn_tensor *x) {
    if (s->rank == 2) return step(tn_matmul(x, waves((int64_t[]){COLUMNS, 4}, 2, 0.21)));
    return step(tn_conv2d(x, waves((int64_t[]){4, CHANNELS, 3, 3}, 4, 0.19), NULL, NULL));
}

static tn_tensor *to_normal(const space *s, tn_tensor *x, tn_tensor **deviation) {
    tn_tensor *centered = step(tn_sub(x, mean(s, x)));
    tn_tensor *variance = mean(s, step(tn_mul(centered, centered)));
    *deviation = step(tn_rsqrt(step(tn_add_scalar(variance, 1e-5))));
    return step(tn_mul(centered, *deviation));
}

/* A norm with what stands behind it, and its gradient, as they meet in training; some results are held. */
static int network(uint64_t seed, tn_tensor **out) {
    state_of_numbers = seed;
    const space *s = &SPACES[below((int64_t)TN_COUNT(SPACES))];
    tn_tensor *deviation, *x = source(s, 0.07), *normal = to_normal(s, x, &deviation);
    tn_tensor *scaled = step(tn_mul(normal, waves(s->kept, s->rank, 0.9)));
    tn_tensor *y = act(step(tn_add(scaled, waves(s->kept, s->rank, 1.7))), below(4)), *dy = source(s, 0.05);
    int count = 0;
    if (below(3)) out[count++] = multiplied(s, y);
    if (below(4) == 0) out[count++] = y;
    if (below(4) == 0) out[count++] = mean(s, normal);
    tn_tensor *zero = waves((int64_t[]){1}, 1, 0.0);
    tn_tensor *masked = step(tn_where(step(tn_gt_scalar(y, 0.1)), dy, zero));
    if (below(3) == 0) masked = step(tn_mul(masked, y));
    tn_tensor *a = mean(s, masked), *b = mean(s, step(tn_mul(masked, normal)));
    tn_tensor *inner = step(tn_sub(step(tn_sub(masked, a)), step(tn_mul(normal, b))));
    tn_tensor *dx = step(tn_mul(inner, deviation));
    out[count++] = a;
    out[count++] = b;
    out[count++] = below(2) ? dx : multiplied(s, dx);
    return count;
}

static void what_is_made_again_has_the_bits_that_are_stored(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < DRAWN; seed++) {
        float *wanted[MOST_RESULTS], *got[MOST_RESULTS];
        int64_t counts[MOST_RESULTS];
        assert_ok(tn_set_num_threads(1 + (int)(seed % 3)));
        int count = results_of(network, seed, true, wanted, counts);
        assert_int_equal(results_of(network, seed, false, got, counts), count);
        assert_same_bits(seed, 0, count, got, wanted, counts);
        for (int i = 0; i < count; i++)
            free(wanted[i]);
    }
}

/* A norm, the mask of what stands behind it, and its gradient; what is held lies behind further convolutions. */
static void record_norm(const space *s, bool dear, tn_tensor *held[4]) {
    tn_tensor *deviation, *weights = waves((int64_t[]){CHANNELS, 2, 3, 3}, 4, 0.7);
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    tn_tensor *x = tn_conv2d(waves((int64_t[]){s->shape[0], 2, SIDE, SIDE}, 4, 0.1), weights, NULL, &o);
    tn_tensor *normal = to_normal(s, x, &deviation), *y = tn_relu(dear ? tn_sin(normal) : normal);
    tn_tensor *masked = tn_where(tn_gt_scalar(y, 0), waves(s->shape, 4, 0.05), waves((int64_t[]){1}, 1, 0.0));
    tn_tensor *a = mean(s, masked), *b = mean(s, tn_mul(masked, normal));
    tn_tensor *dx = tn_mul(tn_sub(tn_sub(masked, a), tn_mul(normal, b)), deviation);
    tn_tensor *results[] = {multiplied(s, y), multiplied(s, dx), a, b};
    for (int i = 0; i < 4; i++)
        held[i] = tn_keep(results[i]);
}

/* How many images of floats the kernel whose label begins so reads and writes, but for a few; 0: there is none. */
static int64_t images_through(const char *label, int64_t images, bool dear) {
    int64_t bytes = 0;
    space s = SPACES[0];
    s.shape[0] = images;
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *held[4];
        {
            TN_SCOPE;
            record_norm(&s, dear, held);
        }
        tn_profile *profile = tn_profile_begin();
        assert_ok(tn_eval(held, 4));
        tn_profile_end(profile);
        for (int64_t i = 0; i < tn_profile_count(profile); i++) {
            tn_profile_row row = {.struct_size = sizeof row};
            assert_ok(tn_profile_at(profile, i, &row));
            if (strncmp(row.label, label, strlen(label)) == 0) bytes += row.bytes;
        }
        tn_profile_free(profile);
        for (int i = 0; i < 4; i++)
            tn_free(held[i]);
    }
    return bytes / (images * CHANNELS * SIDE * SIDE * (int64_t)sizeof(float));
}

static void large_values_are_rematerialized(void **state) {
    (void)state;
    apart = false;
    assert_int_equal(images_through("sub+sum [", IMAGES, false), 0);
    assert_int_not_equal(images_through("sub+sum [", IMAGES / 2, false), 0);
    assert_int_equal(images_through("maximum+sum+sum [", IMAGES, false), 3); /* y besides, and no mask */
    assert_int_equal(images_through("mul [", IMAGES, false), 3); /* of x, dy and dx; y and the mask are made of x */
    assert_int_equal(images_through("mul [", IMAGES, true), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_made_again_has_the_bits_that_are_stored),
        cmocka_unit_test(large_values_are_rematerialized),
    };
    printf("ran on: cpu\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
