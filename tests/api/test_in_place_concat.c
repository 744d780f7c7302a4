/* test_in_place_concat.c — promises of tensors joined by cat: their parts are made where the joined tensor has them,
 * with the bits of parts that were computed before and copied; on the processor with any threads, and on a far device
 * that lacks f64. */
#include "test_support.h"

#include <math.h>

#include "far_driver.h"
#include "trunnion/trunnion.h"

enum { CHANNELS = 8, SIDE = 24, MOST = 12 * CHANNELS * SIDE * SIDE };

static bool apart;          /* each part is evaluated before it is joined */
static int64_t side = SIDE; /* of the images; smaller where an interpreter computes them */

static tn_tensor *part(tn_tensor *t) {
    if (apart) assert_ok(tn_eval(&t, 1));
    return t;
}

/* Nothing is evaluated for it, as that would evaluate what is held. */
static tn_tensor *waves(const int64_t *shape, double step, tn_dtype dtype) {
    static float data[MOST];
    int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    assert_true(count <= MOST);
    for (int64_t i = 0; i < count; i++)
        data[i] = sinf((float)(step * (double)i));
    tn_tensor *t = tn_from_data(data, shape, 4, TN_F32);
    return dtype == TN_F32 ? t : tn_cast(t, dtype);
}

static tn_tensor *filtered(const tn_tensor *x, int64_t filters) {
    int64_t shape[] = {filters, tn_size(x, 1), 3, 3};
    tn_conv2d_options o = TN_CONV2D_DEFAULTS;
    o.padding[0] = o.padding[1] = 1;
    return tn_conv2d(x, waves(shape, 0.11, tn_dtype_of(x)), NULL, &o);
}

static tn_tensor *joined(tn_tensor *const *parts, int count) { return tn_cat(parts, count, 1); }

/* What two convolutions yield, one with steps behind it that its epilogue takes. */
static tn_tensor *of_two(const tn_tensor *x) {
    return joined((tn_tensor *[]){part(tn_silu(filtered(x, 8))), part(filtered(x, 16))}, 2);
}

/* Slices that are a whole again, and what is made of one of them. */
static tn_tensor *of_slices(const tn_tensor *x) {
    tn_tensor *y = part(tn_silu(filtered(x, 16)));
    tn_tensor *a = tn_narrow(y, 1, 0, 8), *b = tn_narrow(y, 1, 8, 8);
    return joined((tn_tensor *[]){a, b, part(tn_add(b, tn_silu(filtered(b, 8))))}, 3);
}

/* Joined tensors that are joined, and larger images. */
static tn_tensor *of_joined(const tn_tensor *x) {
    int64_t n = tn_size(x, 0), half = side / 2, thin[] = {n, 8, half, 1, half, 1}, wide[] = {n, 8, half, 2, half, 2},
            shape[] = {n, 8, side, side};
    tn_tensor *small = tn_max_pool2d(filtered(x, 8), (int64_t[]){2, 2}, NULL);
    tn_tensor *large = tn_reshape(tn_expand(tn_reshape(small, thin, 6), wide, 6), shape, 4);
    tn_tensor *first = joined((tn_tensor *[]){part(filtered(x, 8)), part(large)}, 2);
    return joined((tn_tensor *[]){part(tn_relu(filtered(first, 8))), part(first), part(filtered(x, 8))}, 3);
}

/* Parts that are needed when the joined tensor is not any more; what is written over what was read. */
static tn_tensor *of_needed_later(const tn_tensor *x) {
    tn_tensor *a = part(tn_silu(filtered(x, 8))), *b = part(tn_silu(filtered(a, 8)));
    tn_tensor *y = part(tn_silu(filtered(joined((tn_tensor *[]){a, b}, 2), 8)));
    return tn_add(tn_mul(tn_exp(y), a), b);
}

/* What one part is made of has the size of all, and is not needed afterwards. */
static tn_tensor *of_a_slice(const tn_tensor *x) {
    tn_tensor *y = tn_silu(filtered(x, 24)), *m = part(tn_neg(tn_narrow(y, 1, 0, 16)));
    return filtered(joined((tn_tensor *[]){part(filtered(x, 8)), m}, 2), 8);
}

/* What cannot lie there: a part twice, one of data, one that is joined elsewhere as well. */
static tn_tensor *of_others(const tn_tensor *x) {
    tn_tensor *a = part(filtered(x, 8)), *b = part(filtered(x, 16)), *data = tn_detach(x);
    tn_tensor *y = joined((tn_tensor *[]){b, a, a, data}, 4), *z = joined((tn_tensor *[]){tn_detach(x), a}, 2);
    return joined((tn_tensor *[]){part(tn_relu(filtered(y, 8))), part(tn_relu(filtered(z, 8))), b}, 3);
}

/* One part that lies there, again behind it: which is copied. */
static tn_tensor *of_one_twice(const tn_tensor *x) {
    tn_tensor *a = part(tn_silu(filtered(x, 8)));
    return joined((tn_tensor *[]){a, a}, 2);
}

/* … and slices of it. */
static tn_tensor *of_slices_again(const tn_tensor *x) {
    tn_tensor *y = part(tn_silu(filtered(x, 16)));
    tn_tensor *a = tn_narrow(y, 1, 0, 8), *b = tn_narrow(y, 1, 8, 8);
    return joined((tn_tensor *[]){a, b, b}, 3);
}

/* Who reads the joined tensor last, each element where it writes, reads a part of it elsewhere. */
static tn_tensor *of_whole_and_part(const tn_tensor *x) {
    tn_tensor *a = part(tn_silu(filtered(x, 8))), *y = joined((tn_tensor *[]){a, part(filtered(x, 8))}, 2);
    return filtered(tn_add(tn_silu(y), tn_pad(a, (int64_t[]){0, 0, 0, 0, 8, 0}, 6, 0)), 8);
}

/* As in DenseNet: parts are joined again and again with further ones. What was joined first is read last. */
static tn_tensor *of_growing(const tn_tensor *x) {
    tn_tensor *parts[4] = {part(filtered(x, 8))}, *all[4] = {parts[0]};
    for (int i = 1; i < 4; i++) {
        parts[i] = part(filtered(part(tn_silu(all[i - 1])), 8));
        all[i] = part(joined(parts, i + 1));
    }
    return tn_add(tn_exp(part(tn_silu(filtered(all[3], 16)))), all[1]);
}

/* Two that overlap, of which neither has all parts of the other, and one part in another order. */
static tn_tensor *of_overlaps(const tn_tensor *x) {
    tn_tensor *a = part(filtered(x, 8)), *b = part(tn_silu(filtered(a, 8))), *c = part(filtered(b, 8));
    tn_tensor *turned = part(tn_relu(filtered(joined((tn_tensor *[]){tn_transpose(a, 2, 3), b}, 2), 8)));
    tn_tensor *first = part(tn_relu(filtered(joined((tn_tensor *[]){a, b}, 2), 8)));
    return joined((tn_tensor *[]){b, c, part(filtered(joined((tn_tensor *[]){first, turned, a}, 3), 8))}, 3);
}

/* Two with the same first part, which lies in one of them; the other has a further part of its own. */
static tn_tensor *of_shared_first(const tn_tensor *x) {
    tn_tensor *a = part(tn_silu(filtered(x, 8))), *b = part(filtered(a, 8)), *large = part(tn_silu(filtered(b, 24)));
    tn_tensor *first = part(tn_relu(filtered(joined((tn_tensor *[]){a, large}, 2), 8)));
    return joined((tn_tensor *[]){first, part(tn_relu(filtered(joined((tn_tensor *[]){a, b}, 2), 8)))}, 2);
}

/* The whole has images of another size than its parts, which are views. */
static tn_tensor *of_views(const tn_tensor *x) {
    int64_t n = tn_size(x, 0), shape[] = {n, 8, side * 2, side * 2};
    tn_tensor *a = part(tn_silu(filtered(x, 32))), *b = part(tn_silu(filtered(a, 32)));
    tn_tensor *y = joined((tn_tensor *[]){tn_reshape(a, shape, 4), tn_reshape(b, shape, 4)}, 2);
    return tn_avg_pool2d(filtered(y, 8), (int64_t[]){2, 2}, NULL);
}

/* Steps alone, which are better done in one pass. */
static tn_tensor *of_steps(const tn_tensor *x) {
    return joined((tn_tensor *[]){part(tn_neg(x)), part(tn_exp(x)), part(tn_mul(x, x))}, 3);
}

enum { ON_FAR = 2 }; /* far devices do not read parts of what they write */

static const struct network {
    const char *name;
    tn_tensor *(*make)(const tn_tensor *x);
    int copies;
} networks[] = {
    {"two", of_two, false},
    {"slices", of_slices, false},
    {"joined", of_joined, false},
    {"later", of_needed_later, false},
    {"others", of_others, true},
    {"steps", of_steps, true},
    {"slice", of_a_slice, false},
    {"twice", of_one_twice, true},
    {"again", of_slices_again, true},
    {"whole", of_whole_and_part, false},
    {"growing", of_growing, ON_FAR},
    {"overlaps", of_overlaps, true},
    {"shared first", of_shared_first, true},
    {"views", of_views, false},
};

/* The steps between are nobody's when it is evaluated. */
static void computes(const struct network *n, int64_t images, tn_dtype dtype, float *out) {
    tn_tensor *y = NULL;
    {
        TN_SCOPE;
        y = tn_keep(tn_cast(n->make(waves((int64_t[]){images, CHANNELS, side, side}, 0.37, dtype)), TN_F32));
    }
    assert_true(tn_numel(y) <= MOST);
    memset(out, 0, MOST * sizeof *out);
    assert_ok(tn_read(y, out, (size_t)tn_numel(y) * sizeof *out));
    tn_free(y);
}

static void compare(const struct network *n, int64_t images, tn_dtype dtype) {
    static float together[MOST], by_parts[MOST];
    for (int again = 0; again < 2; again++) {
        apart = false;
        computes(n, images, dtype, together);
        char *text = tn_explain_last();
        bool copies = text && (strstr(text, "cat_few [") || strstr(text, "cat_few+"));
        tn_text_free(text);
        const bool expected = n->copies == ON_FAR ? side < SIDE : n->copies;
        if (images == 1 && dtype == TN_F32 && copies != expected)
            fail_msg("%s: tensors are%s copied to where they are joined", n->name, copies ? "" : " not");
        apart = true;
        computes(n, images, dtype, by_parts);
        for (int i = 0; i < MOST; i++)
            if (memcmp(&together[i], &by_parts[i], sizeof *together) != 0)
                fail_msg("%s, element %d: %a together, %a by parts", n->name, i, (double)together[i],
                         (double)by_parts[i]);
    }
}

static void concat_parts_are_computed_in_place(void **state) {
    (void)state;
    for (int threads = test_is_full() ? 1 : 3; threads <= 3; threads++) {
        assert_ok(tn_threads_set(threads));
        for (int64_t i = 0; i < (int64_t)TN_COUNT(networks); i++)
            for (int64_t images = 1; images <= 2; images++)
                if (test_is_full() || images == 1 + i % 2) compare(&networks[i], images, TN_F32);
    }
    assert_ok(tn_threads_set(0));
}

/* As in DenseNet: most parts are in memory, one would be computed where it is joined; steps read the whole. */
static tn_tensor *read_by_steps(const tn_tensor *x) {
    tn_tensor *pooled = part(tn_avg_pool2d(filtered(x, 8), (int64_t[]){2, 2}, NULL)), *parts[5] = {pooled};
    for (int i = 1; i < 5; i++)
        parts[i] = part(filtered(pooled, 4));
    tn_tensor *all = joined(parts, 5);
    return tn_relu(tn_mul(part(all), waves((int64_t[]){1, tn_size(all, 1), 1, 1}, 0.9, TN_F32)));
}

/* The largest part is a sum, which is in memory too: a reduction has a kernel of its own. */
static tn_tensor *read_with_sum(const tn_tensor *x) {
    int64_t n = tn_size(x, 0), pairs[] = {n, 16, 2, SIDE, SIDE}, second = 2;
    tn_tensor *sums = tn_sum(tn_reshape(part(filtered(x, 32)), pairs, 5), &second, 1, false);
    tn_tensor *all = joined((tn_tensor *[]){part(sums), part(filtered(x, 2)), part(filtered(x, 4))}, 3);
    return tn_relu(tn_mul(part(all), waves((int64_t[]){1, tn_size(all, 1), 1, 1}, 0.9, TN_F32)));
}

/* As in ShuffleNet: channels of two halves take turns, so that what is joined is read in another shape. */
static tn_tensor *read_in_turns(const tn_tensor *x) {
    int64_t n = tn_size(x, 0), split[] = {n, 2, 8, SIDE, SIDE}, whole[] = {n, 16, SIDE, SIDE};
    for (int unit = 0; unit < 2; unit++) {
        tn_tensor *a = unit ? tn_narrow(x, 1, 0, 8) : filtered(x, 8),
                  *b = unit ? tn_narrow(x, 1, 8, 8) : filtered(x, 8);
        tn_tensor *both = part(joined((tn_tensor *[]){a, part(tn_relu(filtered(b, 8)))}, 2));
        x = part(tn_reshape(tn_transpose(tn_reshape(both, split, 5), 1, 2), whole, 4));
    }
    return filtered(x, 4);
}

/* A kernel that read through the join would evaluate all parts at each element. */
static void joined_tensors_are_made_before_they_are_read(void **state) {
    (void)state;
    static const struct network rows[] = {
        {"steps", read_by_steps, true}, {"sum", read_with_sum, true}, {"turns", read_in_turns, true}};
    static float together[MOST], by_parts[MOST];
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        apart = false;
        computes(&rows[i], 2, TN_F32, together);
        char *text = tn_explain_last();
        if (!text || !strstr(text, "native  cat_few") || strstr(text, "kernel  cat_few"))
            fail_msg("%s: a program joins: %s", rows[i].name, text ? text : "");
        tn_text_free(text);
        apart = true;
        computes(&rows[i], 2, TN_F32, by_parts);
        assert_memory_equal(together, by_parts, sizeof together);
    }
}

/* Parts of the host, whose memory is its own, and of the device. */
static void a_far_device_and_its_host_have_the_same_bits(void **state) {
    (void)state;
    static const far_nature natures[] = {{0}, {.no_f64 = true}};
    side = SIDE / 3;
    for (size_t k = 0; k < TN_COUNT(natures); k++) {
        far_nature_now = natures[k];
        tn_device_options o = TN_DEVICE_DEFAULTS;
        o.fallback = TN_FALLBACK_SILENT;
        tn_device *d = far_open(0, &o);
        assert_ok(tn_set_current_device(d));
        for (size_t i = 0; i < TN_COUNT(networks); i++) {
            if (!test_is_full() && i % 2 != k) continue;
            if (k == 0 || test_is_full()) compare(&networks[i], 1, TN_F32);
            if (k > 0) compare(&networks[i], 1, TN_F64);
        }
        assert_ok(tn_set_current_device(NULL));
        tn_device_close(d);
    }
    far_nature_now = (far_nature){0};
    side = SIDE;
}

/* Types with elements of 1, 2, 4 and 8 bytes, and bytes that are finite numbers of all of them. */
static const tn_dtype sized[] = {TN_U8, TN_F16, TN_F32, TN_I64, TN_I8, TN_BOOL};
enum { SIZED_A = 7, SIZED_B = 9, SIZED_C = 11, SIZED_COUNT = SIZED_A * SIZED_B * SIZED_C };
static unsigned char sized_data[SIZED_COUNT * 8], sized_got[64 * sizeof sized_data];

/* [A, B, C], strided: element (a, b, c) is number (b·A + a)·C + c of sized_data. */
static tn_tensor *sized_tensor(tn_dtype dtype) {
    for (size_t i = 0; i < sizeof sized_data; i++)
        sized_data[i] = dtype == TN_BOOL ? i * 7 % 11 < 5 : (unsigned char)(i * i * 37 % 59);
    tn_tensor *x = tn_from_data(sized_data, TN_DIMS(SIZED_B, SIZED_A, SIZED_C), dtype);
    return tn_transpose(x, 0, 1);
}

static void assert_sized(int64_t at, tn_dtype dtype, int64_t a, int64_t b, int64_t c) {
    size_t size = tn_dtype_size(dtype);
    const unsigned char *want = sized_data + (size_t)((b * SIZED_A + a) * SIZED_C + c) * size;
    if (memcmp(sized_got + (size_t)at * size, want, size) != 0)
        fail_msg("%s, element %lld is not that at %lld, %lld, %lld", tn_dtype_name(dtype), (long long)at, (long long)a,
                 (long long)b, (long long)c);
}

static void read_sized(tn_tensor *y, const char *kernel) {
    size_t bytes = tn_dtype_bytes(tn_dtype_of(y), tn_numel(y));
    assert_true(bytes <= sizeof sized_got);
    assert_ok(tn_read(y, sized_got, bytes));
    char *text = tn_explain_last();
    if (!text || !strstr(text, kernel)) fail_msg("%s: %s", tn_dtype_name(tn_dtype_of(y)), text ? text : "");
    tn_text_free(text);
}

/* Elements and rows that stand several times: each where the view has it. */
static void repeated_elements_are_copied_in_place(void **state) {
    (void)state;
    static const int64_t times[][2] = {{2, 2}, {1, 3}, {4, 4}, {3, 1}, {5, 8}, {2, 15}, {1, 2}, {1, 16}, {2, 17}};
    for (size_t i = 0; i < TN_COUNT(times) * TN_COUNT(sized); i++) {
        TN_SCOPE;
        tn_dtype dtype = sized[i % TN_COUNT(sized)];
        int64_t rows = times[i / TN_COUNT(sized)][0], columns = times[i / TN_COUNT(sized)][1];
        assert_ok(tn_threads_set(1 + (int)(i % 2)));
        tn_tensor *y = tn_reshape(sized_tensor(dtype), TN_DIMS(SIZED_A, SIZED_B, 1, SIZED_C, 1));
        y = tn_contiguous(tn_expand(y, TN_DIMS(SIZED_A, SIZED_B, rows, SIZED_C, columns)));
        read_sized(y, columns > 16 ? "contiguous" : "native  contiguous");
        for (int64_t k = 0; k < tn_numel(y); k++) {
            int64_t c = k / columns % SIZED_C, b = k / (columns * SIZED_C * rows);
            assert_sized(k, dtype, b / SIZED_B, b % SIZED_B, c);
        }
    }
    assert_ok(tn_threads_set(0));
}

/* Parts of different layouts along each dim: strided, with its ends cut off, backwards, with one slice repeated. */
static void parts_of_each_element_size_are_joined(void **state) {
    (void)state;
    enum { REPEATED = 5 };
    for (size_t i = 0; i < 3 * TN_COUNT(sized); i++) {
        TN_SCOPE;
        tn_dtype dtype = sized[i / 3];
        int64_t dim = (int64_t)i % 3, n[] = {SIZED_A, SIZED_B, SIZED_C}, at[3];
        assert_ok(tn_threads_set(1 + (int)(i % 2)));
        tn_tensor *x = sized_tensor(dtype);
        int64_t extent = n[dim], shape[] = {n[0], n[1], n[2]};
        shape[dim] = REPEATED;
        tn_tensor *once = tn_expand(tn_narrow(x, dim, 3, 1), shape, 3);
        tn_tensor *y = tn_cat((tn_tensor *[]){x, tn_narrow(x, dim, 1, extent - 3), tn_flip(x, &dim, 1), once}, 4, dim);
        read_sized(y, "native  cat_few");
        n[dim] += extent - 3 + extent + REPEATED;
        for (int64_t k = 0; k < tn_numel(y); k++) {
            at[0] = k / n[2] / n[1], at[1] = k / n[2] % n[1], at[2] = k % n[2];
            int64_t j = at[dim] - extent, *to = &at[dim];
            if (j >= 0) *to = j + 1;
            if (j >= extent - 3) *to = 2 * extent - 4 - j;
            if (j >= 2 * extent - 3) *to = 3;
            assert_sized(k, dtype, at[0], at[1], at[2]);
        }
    }
    assert_ok(tn_threads_set(0));
}

/* Slices that a list names, of any layout. */
static void slices_are_taken_by_their_numbers(void **state) {
    (void)state;
    enum { A = 7, B = 290, C = 11, COUNT = 40 };
    static float got[COUNT * B * C];
    int64_t wide[COUNT];
    int32_t narrow[COUNT];
    for (int k = 0; k < 12; k++) {
        TN_SCOPE;
        int64_t dim = k % 3, n[] = {A, B, C};
        for (int i = 0; i < COUNT; i++)
            narrow[i] = (int32_t)(wide[i] = i * 5 % n[dim]);
        bool small = k / 3 % 2, whole = k >= 6;
        assert_ok(tn_threads_set(1 + k / 6));
        tn_tensor *x = tn_transpose(tn_reshape(tn_arange(0, A * B * C, 1, TN_F32), TN_DIMS(B, A, C)), 0, 1);
        if (whole) x = tn_cast(x, TN_I32);
        assert_ok(tn_eval(&x, 1));
        tn_tensor *index =
            small ? tn_from_data(narrow, TN_DIMS(COUNT), TN_I32) : tn_from_data(wide, TN_DIMS(COUNT), TN_I64);
        index = tn_neg(tn_neg(index)); /* computed by the plan */
        tn_tensor *y = tn_cast(tn_index_select(x, dim, index), TN_F32);
        assert_ok(tn_read(y, got, (size_t)tn_numel(y) * sizeof *got));
        char *text = tn_explain_last();
        assert_true(text && strstr(text, "native  index_select"));
        tn_text_free(text);
        int64_t end[] = {tn_size(y, 0), tn_size(y, 1), tn_size(y, 2)};
        for (int64_t e = 0; e < tn_numel(y); e++) {
            int64_t at[] = {e / (end[1] * end[2]), e / end[2] % end[1], e % end[2]};
            at[dim] = wide[at[dim]];
            float want = (float)((at[1] * A + at[0]) * C + at[2]);
            if (got[e] != want) fail_msg("case %d, element %lld: %g", k, (long long)e, (double)got[e]);
        }
    }
    assert_ok(tn_threads_set(0));
}

/* A state is joined of parts: its memory is not theirs before it is committed. */
static void a_state_is_joined_at_the_end(void **state) {
    (void)state;
    static float got[MOST], want[MOST];
    for (int run = 0; run < 2; run++) {
        TN_SCOPE;
        apart = run == 1;
        tn_tensor *x = waves((int64_t[]){1, CHANNELS, SIDE, SIDE}, 0.37, TN_F32),
                  *s = tn_zeros(TN_DIMS(1, 24, SIDE, SIDE), TN_F32);
        assert_ok(tn_make_state(s));
        for (int step = 0; step < 3; step++) {
            {
                TN_SCOPE;
                tn_copy_(s, of_two(tn_add(x, tn_narrow(s, 1, 0, CHANNELS))));
            }
            assert_ok(tn_eval(&s, 1));
        }
        assert_ok(tn_read(s, run ? want : got, (size_t)tn_numel(s) * sizeof *got));
    }
    assert_memory_equal(got, want, sizeof got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(concat_parts_are_computed_in_place),
        cmocka_unit_test(joined_tensors_are_made_before_they_are_read),
        cmocka_unit_test(a_far_device_and_its_host_have_the_same_bits),
        cmocka_unit_test(repeated_elements_are_copied_in_place),
        cmocka_unit_test(parts_of_each_element_size_are_joined),
        cmocka_unit_test(slices_are_taken_by_their_numbers),
        cmocka_unit_test(a_state_is_joined_at_the_end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    puts("ran on: cpu");
    return failed;
}
