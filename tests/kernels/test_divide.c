/* test_divide.c — a launch divided for small bindings is the same computation: random element-wise programs and
 * reductions over random strides, run whole and in parts by the interpreter; and the check of a launch's arguments. */
#include "test_support.h"

#include "hal/kernel_code.h"
#include "random_numbers.h"

enum { MOST = 4096 }; /* elements of a buffer */

static uint64_t seed = 1;
static int64_t draw(int64_t n) { return (int64_t)(random_step(&seed) >> 33) % n; }

/* out[i, j, k] = Σ_l a[…] · 2 + value of the index, over random extents; a is read with random strides. */
typedef struct sample {
    kir_program *p;
    int64_t *sizes;
    int64_t extents[4], in_strides[4], in_offset, out_strides[4], out_offset;
} sample;

/* Strides of a dense layout in a random order of axes, some of them backwards. Returns the offset of the first point.
 * */
static int64_t random_layout(const int64_t *extents, int axes, int64_t *strides) {
    int64_t at = 1, offset = 0;
    bool done[4] = {false};
    for (int i = 0; i < axes; i++) {
        int axis = (int)draw(axes);
        while (done[axis])
            axis = (axis + 1) % axes;
        done[axis] = true;
        strides[axis] = at;
        at *= extents[axis];
        if (draw(4) == 0) {
            offset += strides[axis] * (extents[axis] - 1);
            strides[axis] = -strides[axis];
        }
    }
    return offset;
}

static kir_aff affine(int64_t c, const int64_t *strides, int axes) {
    kir_aff a = kir_aff_const(c);
    for (int i = 0; i < axes; i++)
        a.s[i] = strides[i];
    return a;
}

static sample sample_new(void) {
    sample s = {0};
    for (int i = 0; i < 4; i++)
        s.extents[i] = 1 + draw(i == 3 ? 5 : 9);
    s.in_offset = random_layout(s.extents, 4, s.in_strides);
    if (draw(3) == 0) s.in_strides[draw(3)] = 0; /* the same for all along an axis */
    s.out_offset = random_layout(s.extents, 3, s.out_strides);
    kir_builder *b;
    assert_ok(kir_begin(3, 1, s.extents, &b));
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    kir_aff from = affine(s.in_offset, s.in_strides, 4), to = affine(s.out_offset, s.out_strides, 3);
    kir_loop(b, 3, 1);
    kir_val x = kir_load(b, in, &from, KIR_NONE);
    kir_val sum = kir_reduce_value(b, KIR_SEQ, kir_binary(b, KIR_MUL, x, kir_const(b, KIR_F32, 2)), KIR_NONE);
    kir_end(b);
    int64_t name[3] = {100, 10, 1};
    kir_aff where = affine(7, name, 3);
    kir_val index = kir_cast(b, KIR_F32, kir_index(b, &where));
    kir_store(b, out, &to, kir_binary(b, KIR_ADD, sum, index), KIR_NONE);
    assert_ok(kir_finish(b, &s.p, &s.sizes));
    return s;
}

static void sample_free(sample *s) {
    kir_free(s->p);
    tn_mem_free(s->sizes);
}

/* What a device with small bindings sees: no part reaches `most` bytes behind the address that it is given. */
typedef struct device {
    const kir_program *p;
    int64_t most, alignment;
    int parts;
    float *memory[2]; /* of which the addresses of parts are aligned parts */
} device;

static tn_status run_part(void *ctx, const tn_launch *part) {
    device *d = ctx;
    d->parts++;
    int axes = d->p->n_par + d->p->n_loop;
    for (int a = 0; a < d->p->n_access; a++) {
        int buffer = d->p->access[a].buffer;
        const int64_t *at = kir_sizes_access(d->p, part->sizes, a);
        int64_t low = at[0], high = at[0];
        if (buffer < 0) continue;
        for (int i = 0; i < axes; i++) {
            int64_t reach = at[1 + i] * (part->sizes[i] - 1);
            *(reach < 0 ? &low : &high) += reach;
        }
        assert_true(low >= 0);
        assert_true((high + 1) * 4 + d->alignment <= d->most || d->most == INT64_MAX);
        assert_int_equal(((char *)part->buffers[buffer] - (char *)d->memory[buffer]) % d->alignment, 0);
    }
    return kir_interpret(d->p, &(kir_launch){part->sizes, part->buffers, NULL});
}

static void parts_compute_what_the_whole_does(void **state) {
    (void)state;
    static float in[MOST], whole[MOST], parts[MOST];
    static int64_t room[64];
    for (int i = 0; i < MOST; i++)
        in[i] = (float)draw(1000) / 8;
    int divided = 0, refused = 0;
    for (int round = 0; round < 400; round++) {
        sample s = sample_new();
        assert_true(kir_sizes_count(s.p) <= TN_COUNT(room));
        memset(whole, 0, sizeof whole);
        memset(parts, 0, sizeof parts);
        void *buffers[2] = {in, whole};
        assert_ok(kir_interpret(s.p, &(kir_launch){s.sizes, buffers, NULL}));
        buffers[1] = parts;
        device d = {.p = s.p, .alignment = (int64_t)1 << (2 + draw(4)), .memory = {in, parts}};
        d.most = d.alignment + 8 + draw(600);
        tn_launch launch = {s.sizes, buffers, NULL};
        tn_status look = tn_launch_split(s.p, &launch, d.most, d.alignment, room, NULL, NULL);
        tn_status done = tn_launch_split(s.p, &launch, d.most, d.alignment, room, run_part, &d);
        divided += d.parts > 1;
        if (done == TN_OK) {
            assert_ok(look);
            assert_memory_equal(whole, parts, sizeof whole);
        } else {
            assert_int_equal(done, TN_ERR_UNSUPPORTED);
            assert_int_equal(look, done);
            refused++;
        }
        sample_free(&s);
    }
    printf("divided: %d of 400 launches, %d refused\n", divided, refused);
    assert_true(divided > 50 && refused > 5);
}

/* Two points: nothing of the first one's loop exists, the second one's is too long for any part. */
static void what_cannot_be_divided_to_the_end_is_not_begun(void **state) {
    (void)state;
    static float memory[2][MOST];
    enum { LENGTH = 512 };
    int64_t extents[2] = {2, LENGTH}, in_strides[2] = {LENGTH, 1}, out_strides[1] = {1}, room[64], *sizes;
    kir_builder *b;
    kir_program *p;
    assert_ok(kir_begin(1, 1, extents, &b));
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    kir_aff from = affine(-LENGTH, in_strides, 2), to = affine(0, out_strides, 1);
    kir_loop(b, 1, 1);
    kir_val there = kir_binary(b, KIR_LE, kir_const_i(b, KIR_I64, 0), kir_index(b, &from));
    kir_val sum = kir_reduce_value(b, KIR_SEQ, kir_load(b, in, &from, there), KIR_NONE);
    kir_end(b);
    kir_store(b, out, &to, sum, KIR_NONE);
    assert_ok(kir_finish(b, &p, &sizes));
    void *buffers[2] = {memory[0], memory[1]};
    device d = {.p = p, .alignment = 4, .most = LENGTH, .memory = {memory[0], memory[1]}};
    tn_launch launch = {sizes, buffers, NULL};
    assert_int_equal(tn_launch_split(p, &launch, d.most, d.alignment, room, run_part, &d), TN_ERR_UNSUPPORTED);
    assert_int_equal(d.parts, 0);
    kir_free(p);
    tn_mem_free(sizes);
}

static void a_launch_that_fits_is_left_alone(void **state) {
    (void)state;
    static float memory[2][MOST];
    int64_t room[64];
    sample s = sample_new();
    void *buffers[2] = {memory[0], memory[1]};
    device d = {.p = s.p, .alignment = 4, .most = INT64_MAX, .memory = {memory[0], memory[1]}};
    tn_launch launch = {s.sizes, buffers, NULL};
    assert_ok(tn_launch_split(s.p, &launch, d.most, d.alignment, room, run_part, &d));
    assert_int_equal(d.parts, 1);
    sample_free(&s);
}

/* y[i] = x[i] over n points. */
static void build_copy(int64_t n, kir_program **p, int64_t **sizes) {
    kir_builder *b;
    assert_ok(kir_begin(1, 0, &n, &b));
    int in = kir_buffer(b, TN_F32), out = kir_buffer(b, TN_F32);
    kir_aff at = kir_aff_const(0);
    at.s[0] = 1;
    kir_store(b, out, &at, kir_load(b, in, &at, KIR_NONE), KIR_NONE);
    assert_ok(kir_finish(b, p, sizes));
}

static void indices_of_32_bits_are_proven(void **state) {
    (void)state;
    kir_program *p;
    int64_t *sizes;
    build_copy(16, &p, &sizes);
    assert_true(tn_launch_is_narrow(p, sizes));
    sizes[0] = INT32_MAX - KIR_MAX_ITEMS;
    assert_true(tn_launch_is_narrow(p, sizes));
    sizes[0]++;
    assert_false(tn_launch_is_narrow(p, sizes));
    sizes[0] = 3;
    sizes[2] = (int64_t)1 << 30; /* the stride of an access */
    assert_false(tn_launch_is_narrow(p, sizes));
    sizes[2] = INT64_MAX;
    assert_false(tn_launch_is_narrow(p, sizes));
    sizes[2] = -((int64_t)1 << 30);
    assert_true(tn_launch_is_narrow(p, sizes));
    kir_free(p);
    tn_mem_free(sizes);
}

static void wrong_arguments_are_named(void **state) {
    (void)state;
    float x[4];
    kir_program *p;
    int64_t *sizes;
    build_copy(4, &p, &sizes);
    void *buffers[2] = {x, x};
    tn_launch launch = {sizes, buffers, NULL};
    assert_ok(tn_launch_check(p, &launch, 1));
    assert_ok(tn_launch_check(p, NULL, 0));
    assert_int_equal(tn_launch_check(p, &launch, -1), TN_ERR_ARGUMENT);
    assert_int_equal(tn_launch_check(p, NULL, 1), TN_ERR_ARGUMENT);
    buffers[1] = NULL;
    assert_int_equal(tn_launch_check(p, &launch, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "buffer 1 is NULL");
    buffers[1] = (char *)x + 2;
    assert_int_equal(tn_launch_check(p, &launch, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "not aligned to its elements");
    buffers[1] = x;
    sizes[0] = -1;
    assert_int_equal(tn_launch_check(p, &launch, 1), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "axis 0 is -1");
    sizes[0] = 0; /* no point: buffers are not looked at */
    buffers[0] = NULL;
    assert_ok(tn_launch_check(p, &launch, 1));
    launch.buffers = NULL;
    assert_int_equal(tn_launch_check(p, &launch, 1), TN_ERR_ARGUMENT);
    kir_free(p);
    tn_mem_free(sizes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_compute_what_the_whole_does),
        cmocka_unit_test(what_cannot_be_divided_to_the_end_is_not_begun),
        cmocka_unit_test(a_launch_that_fits_is_left_alone),
        cmocka_unit_test(indices_of_32_bits_are_proven),
        cmocka_unit_test(wrong_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
