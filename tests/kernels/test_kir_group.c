/* test_kir_group.c — promises of workgroups and variables: programs that share memory compute what plain loops do, and
 * one that breaks a rule (a race, memory that nobody wrote, an element outside) is told so, with its place. */
#include "test_support.h"

#include <math.h>

#include "kir/kir.h"
#include "kir/rules.h"
#include "kir_print.h"
#include "kir_random.h"

typedef struct kernel {
    kir_builder *b;
    kir_program *p;
    int64_t *sizes;
} kernel;

static kernel begin(int n_par, int n_loop, const int64_t *extents, int n_items) {
    kernel k = {0};
    assert_ok(kir_begin(n_par, n_loop, extents, &k.b));
    if (n_items > 0) kir_group(k.b, n_items);
    return k;
}

static void finish(kernel *k) { assert_ok(kir_finish(k->b, &k->p, &k->sizes)); }

static void release(kernel *k) {
    kir_free(k->p);
    tn_mem_free(k->sizes);
}

static tn_status run(const kernel *k, void *const *buffers) {
    return kir_interpret(k->p, &(kir_launch){k->sizes, buffers, NULL});
}

static kir_val number(kernel *k, int64_t i) { return kir_const_i(k->b, KIR_I64, i); }

/* A whole number that belongs to the launch and not to the structure. */
static kir_val size(kernel *k, int64_t i) {
    kir_aff index = kir_aff_const(i);
    return kir_index(k->b, &index);
}

static kir_aff index2(int x, int64_t sx, int y, int64_t sy) {
    kir_aff index = kir_aff_const(0);
    index.s[x] = sx;
    index.s[y] += sy;
    return index;
}

/* ---- a transpose by tiles ---------------------------------------------------------------------------------------- */

enum { TILE = 8, PITCH = TILE + 1 };
typedef enum fault { NONE, NO_BARRIER, OUTSIDE, UNWRITTEN, SAME_ELEMENT, OTHER_GROUP, FAULTS } fault;

static kir_val inside(kernel *k, int tile_axis, int item_axis, int64_t extent) {
    kir_aff at = index2(tile_axis, TILE, item_axis, 1);
    return kir_binary(k->b, KIR_LT, kir_index(k->b, &at), size(k, extent));
}

/* out [n, m] = in [m, n] transposed; axes: tile row, tile column, item row, item column. */
static kernel transpose(int64_t m, int64_t n, fault f) {
    const int64_t extents[] = {(m + TILE - 1) / TILE, (n + TILE - 1) / TILE, TILE, TILE};
    kernel k = begin(4, 0, extents, 2);
    int in = kir_buffer(k.b, TN_F32), out = kir_buffer(k.b, TN_F32), tile = kir_local(k.b, TN_F32, TILE * PITCH);
    kir_aff from = kir_aff_const(0), to = kir_aff_const(0), put = index2(2, PITCH, 3, 1), get = index2(3, PITCH, 2, 1);
    from.s[0] = TILE * n, from.s[1] = TILE, from.s[2] = n, from.s[3] = 1;
    to.s[0] = TILE, to.s[1] = TILE * m, to.s[2] = m, to.s[3] = 1;
    if (f == OUTSIDE) put.c = 2;
    if (f == SAME_ELEMENT) put.s[3] = 0;
    if (f == OTHER_GROUP) to.s[1] = 0;
    kir_val mask = kir_binary(k.b, KIR_AND, inside(&k, 0, 2, m), inside(&k, 1, 3, n));
    kir_val x = kir_load(k.b, in, &from, mask);
    kir_store(k.b, tile, &put, x, f == UNWRITTEN ? kir_binary(k.b, KIR_LT, x, kir_const(k.b, KIR_F32, 0)) : KIR_NONE);
    if (f != NO_BARRIER) kir_barrier(k.b);
    mask = kir_binary(k.b, KIR_AND, inside(&k, 1, 2, n), inside(&k, 0, 3, m));
    kir_store(k.b, out, &to, kir_load(k.b, tile, &get, KIR_NONE), mask);
    finish(&k);
    return k;
}

static void transpose_through_local_memory(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {8, 8}, {9, 7}, {20, 33}, {0, 5}};
    for (size_t s = 0; s < TN_COUNT(shapes); s++) {
        int64_t m = shapes[s][0], n = shapes[s][1];
        float in[20 * 33], out[20 * 33];
        for (int i = 0; i < m * n; i++)
            in[i] = (float)i;
        kernel k = transpose(m, n, NONE);
        assert_ok(run(&k, (void *const[]){in, out, NULL}));
        for (int64_t i = 0; i < m * n; i++)
            assert_int_equal((int)out[i % n * m + i / n], i);
        release(&k);
    }
}

static void what_breaks_a_rule_is_reported(void **state) {
    (void)state;
    static const char *const words[FAULTS] = {
        [NO_BARRIER] = "another item writes it, with no barrier between",
        [OUTSIDE] = "outside this workgroup memory",
        [UNWRITTEN] = "before any item of this workgroup has written it",
        [SAME_ELEMENT] = "another item writes it, with no barrier between",
        [OTHER_GROUP] = "another workgroup reads or writes it",
    };
    static float in[16 * 16], out[16 * 16];
    for (int i = 0; i < 16 * 16; i++)
        in[i] = i == 100 ? -1.0f : 1.0f;
    for (fault f = NONE + 1; f < FAULTS; f++) {
        kernel k = transpose(16, 16, f);
        assert_int_equal(run(&k, (void *const[]){in, out, NULL}), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), words[f]);
        assert_text_has(tn_error(), "item ");
        assert_text_has(tn_error(), f == OTHER_GROUP ? "of buffer 1" : "of buffer 2");
        release(&k);
    }
}

/* ---- a reduction by halves --------------------------------------------------------------------------------------- */

enum { ITEMS = 64 };

/* out[row] = Σ in[row, 0 … 63] by halves. `missing`: the number of a barrier that is left out, `all_store`: every item
 * stores the result. */
static kernel tree(int64_t rows, int missing, bool all_store) {
    const int64_t extents[] = {rows, ITEMS};
    kernel k = begin(2, 0, extents, 1);
    int in = kir_buffer(k.b, TN_F32), out = kir_buffer(k.b, TN_F32), part = kir_local(k.b, TN_F32, ITEMS);
    kir_aff from = index2(0, ITEMS, 1, 1), mine = index2(1, 1, 1, 0), row = index2(0, 1, 0, 0);
    kir_val item = kir_index(k.b, &mine);
    kir_store(k.b, part, &mine, kir_load(k.b, in, &from, KIR_NONE), KIR_NONE);
    int barriers = 0;
    for (int half = ITEMS / 2; half > 0; half /= 2) {
        if (barriers++ != missing) kir_barrier(k.b);
        kir_val mask = kir_binary(k.b, KIR_LT, item, number(&k, half));
        kir_aff other = mine;
        other.c = half;
        kir_val a = kir_load(k.b, part, &mine, mask), b = kir_load(k.b, part, &other, mask);
        kir_store(k.b, part, &mine, kir_binary(k.b, KIR_ADD, a, b), mask);
    }
    if (barriers != missing) kir_barrier(k.b);
    kir_aff first = kir_aff_const(0);
    kir_val sum = kir_load(k.b, part, &first, KIR_NONE);
    kir_store(k.b, out, &row, sum, all_store ? KIR_NONE : kir_binary(k.b, KIR_EQ, item, number(&k, 0)));
    finish(&k);
    return k;
}

static float sum_by_halves(const float *x) {
    float part[ITEMS];
    memcpy(part, x, sizeof part);
    for (int half = ITEMS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    }
    return part[0];
}

static void reduction_by_halves_needs_each_of_its_barriers(void **state) {
    (void)state;
    enum { ROWS = 5, HALVES = 6 };
    float in[ROWS * ITEMS], out[ROWS];
    for (int i = 0; i < ROWS * ITEMS; i++)
        in[i] = (float)(i % 37) / 7.0f;
    for (int missing = -1; missing <= HALVES; missing++) {
        kernel k = tree(ROWS, missing, false);
        tn_status status = run(&k, (void *const[]){in, out, NULL});
        assert_int_equal(status, missing < 0 ? TN_OK : TN_ERR_ARGUMENT);
        release(&k);
        if (missing > 0) assert_text_has(tn_error(), "a race: another item");
        for (int row = 0; missing < 0 && row < ROWS; row++)
            assert_true(out[row] == sum_by_halves(in + row * ITEMS));
    }
    kernel k = tree(ROWS, -1, true);
    assert_int_equal(run(&k, (void *const[]){in, out, NULL}), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "of buffer 1: a race: another item writes it");
    release(&k);
}

/* ---- a product by tiles ------------------------------------------------------------------------------------------ */

enum { T = 4 };

/* c [m, n] = a [m, kk] · b [kk, n], all multiples of T; axes: tile row, tile column, item row, item column; tile of k,
 * element of it. `late`: the barrier behind the inner loop is there. */
static kernel product(int64_t m, int64_t n, int64_t kk, bool late) {
    const int64_t extents[] = {m / T, n / T, T, T, kk / T, T};
    kernel k = begin(4, 2, extents, 2);
    int a = kir_buffer(k.b, TN_F32), b = kir_buffer(k.b, TN_F32), c = kir_buffer(k.b, TN_F32);
    int ta = kir_local(k.b, TN_F32, T * T), tb = kir_local(k.b, TN_F32, T * T);
    kir_aff from_a = index2(0, T * kk, 2, kk), from_b = index2(1, T, 3, 1), to = index2(0, T * n, 1, T);
    from_a.s[3] = 1, from_a.s[4] = T;
    from_b.s[2] = n, from_b.s[4] = T * n;
    to.s[2] = n, to.s[3] = 1;
    kir_aff mine = index2(2, T, 3, 1), row = index2(2, T, 5, 1), column = index2(3, 1, 5, T);
    kir_val sum = kir_var(k.b, kir_const(k.b, KIR_F32, 0));
    kir_loop(k.b, 4, 1);
    kir_store(k.b, ta, &mine, kir_load(k.b, a, &from_a, KIR_NONE), KIR_NONE);
    kir_store(k.b, tb, &mine, kir_load(k.b, b, &from_b, KIR_NONE), KIR_NONE);
    kir_barrier(k.b);
    kir_loop(k.b, 5, 1);
    kir_val x = kir_load(k.b, ta, &row, KIR_NONE), y = kir_load(k.b, tb, &column, KIR_NONE);
    kir_set(k.b, sum, kir_fma(k.b, x, y, kir_get(k.b, sum)));
    kir_end(k.b);
    if (late) kir_barrier(k.b);
    kir_end(k.b);
    kir_store(k.b, c, &to, kir_get(k.b, sum), KIR_NONE);
    finish(&k);
    return k;
}

static void product_by_tiles_is_one_ascending_chain(void **state) {
    (void)state;
    enum { M = 8, N = 12, K = 16 };
    static float a[M * K], b[K * N], c[M * N];
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i % 11) / 3.0f - 1;
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i % 13) / 7.0f - 1;
    kernel k = product(M, N, K, true);
    assert_ok(run(&k, (void *const[]){a, b, c, NULL, NULL}));
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int e = 0; e < K; e++)
                sum = fmaf(a[i * K + e], b[e * N + j], sum);
            assert_true(c[i * N + j] == sum);
        }
    }
    release(&k);
    k = product(M, N, K, false);
    assert_int_equal(run(&k, (void *const[]){a, b, c, NULL, NULL}), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "another item reads it, with no barrier between");
    release(&k);
    k = product(M, N, 0, true);
    assert_ok(run(&k, (void *const[]){a, b, c, NULL, NULL}));
    for (int i = 0; i < M * N; i++)
        assert_true(c[i] == 0);
    release(&k);
}

/* ---- global memory ----------------------------------------------------------------------------------------------- */

/* y[i] = x[last - i] of the group's part, through global memory and in place: `apart` items, with a barrier or not. */
static tn_status reverse(bool barrier, bool in_place) {
    enum { N = 16 };
    const int64_t extents[] = {2, N};
    kernel k = begin(2, 0, extents, 1);
    int from = kir_buffer(k.b, TN_I16), to = kir_buffer(k.b, TN_I16);
    kir_aff there = index2(0, N, 1, -1), here = index2(0, N, 1, 1);
    there.c = N - 1;
    kir_val x = kir_load(k.b, from, &there, KIR_NONE);
    if (barrier) kir_barrier(k.b);
    kir_store(k.b, to, &here, x, KIR_NONE);
    finish(&k);
    int16_t in[2 * N], out[2 * N];
    for (int i = 0; i < 2 * N; i++)
        in[i] = (int16_t)i;
    tn_status status = run(&k, (void *const[]){in, in_place ? in : out});
    for (int i = 0; status == TN_OK && i < 2 * N; i++)
        assert_int_equal((in_place ? in : out)[i], i / N * N + N - 1 - i % N);
    release(&k);
    return status;
}

static void races_in_global_memory_are_found_under_two_names(void **state) {
    (void)state;
    assert_ok(reverse(false, false));
    assert_ok(reverse(true, true));
    assert_int_equal(reverse(false, true), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "a race: another item reads it");
}

static void items_of_a_launch_are_those_of_the_structure(void **state) {
    (void)state;
    float in[ITEMS] = {0}, out[1];
    kernel k = tree(1, -1, false);
    k.sizes[1] = ITEMS / 2;
    assert_int_equal(run(&k, (void *const[]){in, out, NULL}), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "32 items, the program 64");
    k.sizes[1] = ITEMS;
    k.sizes[0] = -1;
    assert_int_equal(run(&k, (void *const[]){in, out, NULL}), TN_ERR_ARGUMENT);
    release(&k);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

static void variables_live_in_their_region(void **state) {
    (void)state;
    const int64_t extents[] = {2, 3, 4};
    kernel k = begin(1, 2, extents, 0);
    int in = kir_buffer(k.b, TN_I32), out = kir_buffer(k.b, TN_I32);
    kir_val all = kir_var(k.b, kir_const(k.b, KIR_I32, 1));
    kir_loop(k.b, 1, 1);
    kir_val row = kir_var(k.b, kir_const(k.b, KIR_I32, 0)); /* anew in each turn */
    kir_loop(k.b, 2, 1);
    kir_aff index = index2(0, 12, 1, 4);
    index.s[2] = 1;
    kir_set(k.b, row, kir_binary(k.b, KIR_ADD, kir_get(k.b, row), kir_load(k.b, in, &index, KIR_NONE)));
    kir_end(k.b);
    kir_set(k.b, all, kir_binary(k.b, KIR_MUL, kir_get(k.b, all), kir_get(k.b, row)));
    kir_end(k.b);
    kir_aff to = index2(0, 1, 0, 0);
    to.s[0] = 1;
    kir_store(k.b, out, &to, kir_get(k.b, all), KIR_NONE);
    finish(&k);
    int32_t x[24], y[2], want[2] = {1, 1};
    for (int i = 0; i < 24; i++)
        x[i] = i % 5 + 1;
    for (int i = 0; i < 6; i++)
        want[i / 3] *= x[4 * i] + x[4 * i + 1] + x[4 * i + 2] + x[4 * i + 3];
    assert_ok(run(&k, (void *const[]){x, y}));
    assert_memory_equal(y, want, sizeof y);
    kir_vm *vm = NULL;
    assert_int_equal(kir_vm_compile(k.p, &vm), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "variables");
    release(&k);
    k = tree(1, -1, false);
    assert_int_equal(kir_vm_compile(k.p, &vm), TN_ERR_UNSUPPORTED);
    assert_text_has(tn_error(), "workgroups");
    release(&k);
}

static int count(const kir_program *p, kir_op op) {
    int n = 0;
    for (int i = 0; i < p->n_ins; i++)
        n += p->ins[i].op == op;
    return n;
}

static void variables_that_nobody_reads_go(void **state) {
    (void)state;
    const int64_t extents[] = {4, 3};
    kernel k = begin(1, 1, extents, 0);
    int out = kir_buffer(k.b, TN_I32);
    kir_aff to = index2(0, 1, 0, 1);
    to.s[0] = 1;
    kir_val zero = kir_const(k.b, KIR_I32, 0), read = kir_var(k.b, zero), unread = kir_var(k.b, zero);
    kir_val last = kir_var(k.b, zero);
    kir_loop(k.b, 1, 1);
    kir_val was = kir_get(k.b, last); /* before the SET that it keeps */
    kir_set(k.b, read, kir_binary(k.b, KIR_ADD, was, kir_get(k.b, read)));
    kir_set(k.b, unread, kir_binary(k.b, KIR_ADD, was, kir_get(k.b, unread)));
    kir_set(k.b, last, kir_binary(k.b, KIR_ADD, was, kir_const(k.b, KIR_I32, 5)));
    kir_end(k.b);
    assert_int_equal(kir_get(k.b, read), kir_get(k.b, read));
    kir_store(k.b, out, &to, kir_get(k.b, read), KIR_NONE);
    finish(&k);
    assert_int_equal(count(k.p, KIR_VAR), 2); /* unread is read by itself alone */
    int32_t y[4];
    assert_ok(run(&k, (void *const[]){y}));
    assert_int_equal(y[3], 0 + 5 + 10);
    release(&k);

    k = begin(1, 1, extents, 0);
    out = kir_buffer(k.b, TN_I32);
    zero = kir_const(k.b, KIR_I32, 0), unread = kir_var(k.b, zero);
    kir_loop(k.b, 1, 1);
    kir_set(k.b, unread, kir_const(k.b, KIR_I32, 7));
    kir_end(k.b);
    kir_store(k.b, out, &to, zero, KIR_NONE);
    finish(&k);
    assert_int_equal(k.p->n_ins, 2);
    release(&k);
}

/* ---- loops whose end is computed --------------------------------------------------------------------------------- */

/* out[group] = how often items went through a loop over 5 points that ends at `constant` + group, + item if `apart`. */
static kernel turns(int64_t constant, bool apart) {
    const int64_t extents[] = {4, ITEMS, 5};
    kernel k = begin(2, 1, extents, 1);
    int out = kir_buffer(k.b, TN_I32);
    kir_aff end = index2(0, 1, 1, apart), to = index2(0, ITEMS, 1, 1);
    end.c = constant;
    kir_val one = kir_const(k.b, KIR_I32, 1), turn = kir_var(k.b, kir_const(k.b, KIR_I32, 0));
    kir_loop_until(k.b, 2, kir_index(k.b, &end));
    kir_set(k.b, turn, kir_binary(k.b, KIR_ADD, kir_get(k.b, turn), one));
    kir_end(k.b);
    kir_loop(k.b, 2, 1); /* goes on to the end of the axis */
    kir_set(k.b, turn, kir_binary(k.b, KIR_ADD, kir_get(k.b, turn), kir_const(k.b, KIR_I32, 100)));
    kir_end(k.b);
    kir_store(k.b, out, &to, kir_get(k.b, turn), KIR_NONE);
    finish(&k);
    return k;
}

static void a_loop_ends_where_all_items_say(void **state) {
    (void)state;
    int32_t out[4 * ITEMS];
    for (int64_t constant = -2; constant <= 4; constant++) {
        kernel k = turns(constant, false);
        assert_ok(run(&k, (void *const[]){out}));
        for (int i = 0; i < 4 * ITEMS; i++) {
            int64_t points = constant + i / ITEMS;
            assert_int_equal(out[i], 500 + (points < 0 ? 0 : points > 5 ? 5 : points));
        }
        release(&k);
    }
    kernel k = turns(0, true);
    assert_int_equal(run(&k, (void *const[]){out}), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "0 points for item 0, 1 for item 1");
    release(&k);
}

static void computed_ends_are_of_workgroups_and_hold_no_reductions(void **state) {
    (void)state;
    for (int grouped = 0; grouped < 2; grouped++) {
        const int64_t extents[] = {4, 3};
        kernel k = begin(1, 1, extents, grouped);
        int out = kir_buffer(k.b, TN_I64);
        kir_aff to = index2(0, 1, 0, 0);
        kir_loop_until(k.b, 1, number(&k, 2));
        kir_val sum = kir_reduce_value(k.b, KIR_SUM, number(&k, 1), KIR_NONE);
        kir_end(k.b);
        kir_store(k.b, out, &to, sum, KIR_NONE);
        assert_int_equal(kir_finish(k.b, &k.p, &k.sizes), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), grouped ? "in a loop whose end is computed" : "without workgroups");
    }
}

/* ---- what is shared ---------------------------------------------------------------------------------------------- */

static void loads_are_shared_until_something_may_change_them(void **state) {
    (void)state;
    const int64_t extents[] = {8};
    kernel k = begin(1, 0, extents, 1);
    int in = kir_buffer(k.b, TN_F32), out = kir_buffer(k.b, TN_F32);
    int one = kir_local(k.b, TN_F32, 8), two = kir_local(k.b, TN_F32, 8);
    kir_aff index = index2(0, 1, 0, 0);
    index.s[0] = 1;
    kir_val x = kir_load(k.b, in, &index, KIR_NONE), y = kir_load(k.b, one, &index, KIR_NONE);
    kir_store(k.b, two, &index, x, KIR_NONE);
    assert_int_equal(kir_load(k.b, in, &index, KIR_NONE), x); /* local memory has no second name */
    assert_int_equal(kir_load(k.b, one, &index, KIR_NONE), y);
    kir_barrier(k.b);
    assert_int_equal(kir_load(k.b, in, &index, KIR_NONE), x); /* nobody writes it */
    kir_val z = kir_load(k.b, one, &index, KIR_NONE);
    assert_int_not_equal(z, y);
    kir_store(k.b, one, &index, x, KIR_NONE);
    assert_int_not_equal(kir_load(k.b, one, &index, KIR_NONE), z);
    kir_store(k.b, out, &index, x, KIR_NONE);
    assert_int_not_equal(kir_load(k.b, in, &index, KIR_NONE), x); /* may be `out` under another name */
    kir_val w = kir_load(k.b, out, &index, KIR_NONE);
    kir_barrier(k.b);
    assert_int_not_equal(kir_load(k.b, out, &index, KIR_NONE), w);
    kir_val v = kir_var(k.b, x), got = kir_get(k.b, v);
    assert_int_equal(kir_get(k.b, v), got);
    kir_set(k.b, v, w);
    assert_int_not_equal(kir_get(k.b, v), got);
    assert_int_not_equal(kir_var(k.b, x), v);
    kir_abandon(k.b);
}

static void structure_knows_items_and_local_memory(void **state) {
    (void)state;
    kernel kernels[4];
    for (int i = 0; i < 4; i++) {
        const int64_t extents[] = {3 + i % 2, i == 2 ? 32 : 64};
        kernels[i] = begin(2, 0, extents, 1);
        int out = kir_buffer(kernels[i].b, TN_F32), local = kir_local(kernels[i].b, TN_F32, i == 3 ? 65 : 64);
        kir_aff mine = index2(1, 1, 1, 0), to = index2(0, 64, 1, 1);
        kir_store(kernels[i].b, local, &mine, kir_const(kernels[i].b, KIR_F32, 1), KIR_NONE);
        kir_store(kernels[i].b, out, &to, kir_load(kernels[i].b, local, &mine, KIR_NONE), KIR_NONE);
        finish(&kernels[i]);
    }
    assert_true(kir_equal(kernels[0].p, kernels[1].p));
    assert_int_equal(kernels[0].p->hash, kernels[1].p->hash);
    for (int i = 2; i < 4; i++) {
        assert_int_not_equal(kernels[0].p->hash, kernels[i].p->hash);
        kernels[i].p->hash = kernels[0].p->hash;
        assert_false(kir_equal(kernels[0].p, kernels[i].p));
    }
    tn_str text = {0};
    kir_print(kernels[0].p, kernels[0].sizes, &text);
    assert_text_has(tn_str_text(&text), "2 parallel axes, 0 loop axes, workgroups of 64\n");
    assert_text_has(tn_str_text(&text), "b1: f32 local, 64 elements written\n");
    tn_str_free(&text);
    assert_int_equal(kir_local_bytes(kernels[3].p), 260);
    for (int i = 0; i < 4; i++)
        release(&kernels[i]);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

typedef void misuse(kir_builder *b);

static kir_val zero_of(kir_builder *b) { return kir_const(b, KIR_F32, 0); }
static void barrier_alone(kir_builder *b) { kir_barrier(b); }
static void local_alone(kir_builder *b) { kir_local(b, TN_F32, 8); }
static void too_many_items(kir_builder *b) { kir_group(b, 2); }
static void too_many_axes(kir_builder *b) { kir_group(b, 3); }
static void group_twice(kir_builder *b) { kir_group(b, 1), kir_group(b, 1); }
static void group_late(kir_builder *b) { zero_of(b), kir_group(b, 1); }
static void local_of_nothing(kir_builder *b) { kir_group(b, 1), kir_local(b, TN_F32, 0); }
static void locals_too_large(kir_builder *b) {
    kir_group(b, 1), kir_local(b, TN_F64, KIR_MAX_LOCAL / 8), kir_local(b, TN_I8, 1);
}
static void variable_as_value(kir_builder *b) { kir_unary(b, KIR_EXP, kir_var(b, zero_of(b))); }
static void value_as_variable(kir_builder *b) { kir_get(b, zero_of(b)); }
static void value_set(kir_builder *b) { kir_set(b, zero_of(b), zero_of(b)); }
static void other_type_set(kir_builder *b) { kir_set(b, kir_var(b, zero_of(b)), kir_const(b, KIR_F64, 1)); }
static void variable_outside(kir_builder *b) {
    kir_loop(b, 2, 1);
    kir_val v = kir_var(b, zero_of(b));
    kir_end(b);
    kir_get(b, v);
}

static void builder_refuses_misuse(void **state) {
    (void)state;
    static const struct {
        misuse *fn;
        const char *why;
    } rows[] = {
        {barrier_alone, "without workgroups"},
        {local_alone, "in a group program"},
        {too_many_items, "too many items"},
        {too_many_axes, "too many items"},
        {group_twice, "too late"},
        {group_late, "too late"},
        {local_of_nothing, "between 1"},
        {locals_too_large, "bytes of workgroup memory"},
        {variable_as_value, "no value here"},
        {value_as_variable, "no variable here"},
        {value_set, "no variable"},
        {other_type_set, "different types"},
        {variable_outside, "no variable here"},
    };
    for (size_t i = 0; i < TN_COUNT(rows); i++) {
        const int64_t extents[] = {1025, 64, 4};
        kernel k = begin(2, 1, extents, 0);
        rows[i].fn(k.b);
        assert_int_equal(kir_finish(k.b, &k.p, &k.sizes), TN_ERR_ARGUMENT);
        assert_text_has(tn_error(), rows[i].why);
    }
}

static void refuses(kir_program *p, const char *why) {
    assert_int_equal(kir_verify(p), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), why);
}

static int find(const kir_program *p, kir_op op) {
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == op) return i;
    }
    fail_msg("no %s", kir_op_name(op));
    return -1;
}

static void verifier_refuses_what_a_builder_would(void **state) {
    (void)state;
    kernel k = product(4, 4, 4, true);
    kir_program *p = k.p;
    kir_ins *in = &p->ins[find(p, KIR_FMA)], saved = *in;
    in->a = (kir_val)find(p, KIR_VAR);
    refuses(p, "a variable where a value is wanted");
    *in = saved;
    in = &p->ins[find(p, KIR_SET)], saved = *in;
    in->a = in->b;
    refuses(p, "not a variable");
    *in = saved;
    in->type = KIR_F64;
    refuses(p, "different types");
    *in = saved;
    int16_t dyn = p->access[0].dyn;
    p->access[0].dyn = (kir_val)find(p, KIR_VAR);
    refuses(p, "where a value is wanted");
    p->access[0].dyn = dyn;
    p->item[0] = 0;
    refuses(p, "a workgroup of 2 axes");
    p->item[0] = 1000;
    refuses(p, "a workgroup of 2 axes");
    p->item[0] = T;
    p->n_items = 9;
    refuses(p, "a workgroup of 9 axes");
    p->n_items = 0;
    refuses(p, "local buffer");
    p->n_items = 2;
    p->local[3] = -4;
    refuses(p, "local buffer 3 of -4");
    p->local[3] = INT32_MAX;
    refuses(p, "bytes of workgroup memory");
    p->local[3] = T * T;
    assert_ok(kir_verify(p));
    release(&k);
}

static tn_status live_through(float *out) {
    static float in[2 * ITEMS];
    kir_builder *b = NULL;
    kernel k = {0};
    TRY(kir_begin(2, 0, (const int64_t[]){2, ITEMS}, &b));
    kir_group(b, 1);
    int from = kir_buffer(b, TN_F32), to = kir_buffer(b, TN_F32), local = kir_local(b, TN_F32, ITEMS);
    kir_aff mine = index2(1, 1, 1, 0), all = index2(0, ITEMS, 1, 1), other = index2(1, -1, 1, 0);
    other.c = ITEMS - 1;
    kir_store(b, local, &mine, kir_load(b, from, &all, KIR_NONE), KIR_NONE);
    kir_barrier(b);
    kir_val v = kir_var(b, kir_load(b, local, &other, KIR_NONE));
    kir_set(b, v, kir_unary(b, KIR_EXP, kir_get(b, v)));
    kir_store(b, to, &all, kir_get(b, v), KIR_NONE);
    TRY(kir_finish(b, &k.p, &k.sizes));
    tn_status status = run(&k, (void *const[]){in, out, NULL});
    release(&k);
    return status;
}

static void failure_of_any_allocation_is_an_error_and_loses_nothing(void **state) {
    (void)state;
    float out[2 * ITEMS];
    int64_t blocks = tn_mem_get_stats().live_blocks, calls = tn_mem_get_stats().calls;
    assert_ok(live_through(out));
    calls = tn_mem_get_stats().calls - calls;
    assert_true(calls >= 8 && out[0] == 1);
    for (int64_t n = 1; n <= calls; n++) {
        tn_mem_fail_at(n);
        tn_status status = live_through(out);
        tn_mem_fail_at(0);
        assert_int_equal(tn_mem_get_stats().live_blocks, blocks);
        assert_int_equal(status, TN_ERR_MEMORY);
    }
}

/* ---- random programs --------------------------------------------------------------------------------------------- */

#define CASES TEST_SWEEP(300)

/* Interprets; afterwards once more for each barrier without it. Returns how many of them were missed. */
static int missed_barriers(const kir_random *t, uint64_t seed, int *barriers) {
    void *buffers[KIR_MAX_BUFFERS];
    char *memory = kir_random_memory(t, seed);
    kir_random_buffers(t, memory, buffers);
    kir_launch launch = {t->sizes, buffers, t->scalars};
    tn_status status = kir_interpret(t->program, &launch);
    if (status != TN_OK) kir_random_print(t, seed);
    assert_ok(status);
    int missed = 0;
    for (int i = 0; i < t->program->n_ins; i++) {
        kir_ins saved = t->program->ins[i];
        if (saved.op != KIR_BARRIER) continue;
        t->program->ins[i] =
            (kir_ins){.op = KIR_CONST, .type = KIR_F32, .a = KIR_NONE, .b = KIR_NONE, .c = KIR_NONE, .imm.f = 0};
        missed += kir_interpret(t->program, &launch) != TN_OK;
        t->program->ins[i] = saved;
        (*barriers)++;
    }
    free(memory);
    return missed;
}

static void random_programs_keep_the_rules_and_need_their_barriers(void **state) {
    (void)state;
    int barriers = 0, missed = 0;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        kir_random t;
        bool no_f64 = seed % 3 == 0;
        kir_random_make(&t, seed, &(kir_random_options){.group = true, .variables = seed % 2, .no_f64 = no_f64});
        for (int i = 0; i < t.program->n_ins; i++)
            assert_false(no_f64 && t.program->ins[i].type == KIR_F64);
        missed += missed_barriers(&t, seed, &barriers);
        kir_random_free(&t);
    }
    assert_true(barriers > CASES);
    print_message("%d of %d barriers were missed\n", missed, barriers);
    assert_true(missed > barriers / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transpose_through_local_memory),
        cmocka_unit_test(what_breaks_a_rule_is_reported),
        cmocka_unit_test(reduction_by_halves_needs_each_of_its_barriers),
        cmocka_unit_test(product_by_tiles_is_one_ascending_chain),
        cmocka_unit_test(races_in_global_memory_are_found_under_two_names),
        cmocka_unit_test(items_of_a_launch_are_those_of_the_structure),
        cmocka_unit_test(variables_live_in_their_region),
        cmocka_unit_test(variables_that_nobody_reads_go),
        cmocka_unit_test(a_loop_ends_where_all_items_say),
        cmocka_unit_test(computed_ends_are_of_workgroups_and_hold_no_reductions),
        cmocka_unit_test(loads_are_shared_until_something_may_change_them),
        cmocka_unit_test(structure_knows_items_and_local_memory),
        cmocka_unit_test(builder_refuses_misuse),
        cmocka_unit_test(verifier_refuses_what_a_builder_would),
        cmocka_unit_test(random_programs_keep_the_rules_and_need_their_barriers),
        cmocka_unit_test(failure_of_any_allocation_is_an_error_and_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
