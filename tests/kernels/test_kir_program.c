/* test_kir_program.c — promises about programs of the kernel language as such: what the builder simplifies, what the
 * verifier refuses, that no failure loses memory, and that threads may share what is compiled. */
#include "kir_kernel.h"
#include "kir_print.h"

#include <math.h>
#include <pthread.h>

#include "kir/rules.h"

/* ---- the builder ------------------------------------------------------------------------------------------------- */

static void builder_shares_folds_and_drops(void **state) {
    (void)state;
    const int64_t extents[] = {10};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_F32);
    kir_val x = load_axis(&k, 0, 0), one = kir_const(k.b, KIR_F32, 1);
    assert_int_equal(load_axis(&k, 0, 0), x);
    kir_val sum = kir_binary(k.b, KIR_ADD, x, one);
    assert_int_equal(kir_binary(k.b, KIR_ADD, one, x), sum);
    assert_int_equal(kir_binary(k.b, KIR_MUL, x, one), x);
    assert_int_equal(kir_binary(k.b, KIR_SUB, x, kir_const(k.b, KIR_F32, 0)), x);
    assert_int_not_equal(kir_binary(k.b, KIR_ADD, x, kir_const(k.b, KIR_F32, 0)), x); /* -0 + 0 is 0 */
    assert_int_equal(kir_binary(k.b, KIR_ADD, x, kir_const(k.b, KIR_F32, -0.0)), x);
    assert_int_equal(kir_binary(k.b, KIR_ADD, one, one), kir_const(k.b, KIR_F32, 2));
    assert_int_equal(kir_cast(k.b, KIR_F32, x), x);
    assert_int_equal(kir_select(k.b, kir_const_i(k.b, KIR_BOOL, 0), x, sum), sum);
    assert_int_equal(kir_const(k.b, KIR_I32, 3e9), kir_const_i(k.b, KIR_I32, INT32_MAX));
    kir_unary(k.b, KIR_EXP, sum); /* nobody reads it */
    store_axis(&k, 1, 0, sum);
    assert_int_not_equal(load_axis(&k, 0, 0), x); /* the store may have changed it */
    finish(&k);
    assert_int_equal(k.p->n_ins, 4);
    assert_int_equal(k.p->n_access, 2);
    release(&k);
}

static void hash_depends_on_structure_alone(void **state) {
    (void)state;
    kernel kernels[4];
    for (int i = 0; i < 4; i++) {
        const int64_t extents[] = {10 + i % 2};
        kernels[i] = begin(1, 0, extents);
        kir_buffer(kernels[i].b, TN_F32);
        kir_buffer(kernels[i].b, i == 3 ? TN_F16 : TN_F32);
        store_axis(&kernels[i], 1, 0,
                   kir_unary(kernels[i].b, i == 2 ? KIR_LOG : KIR_EXP, load_axis(&kernels[i], 0, 0)));
        finish(&kernels[i]);
    }
    assert_true(kir_equal(kernels[0].p, kernels[1].p));
    assert_int_equal(kernels[0].p->hash, kernels[1].p->hash);
    assert_int_not_equal(kernels[0].sizes[0], kernels[1].sizes[0]);
    assert_false(kir_equal(kernels[0].p, kernels[2].p));
    assert_false(kir_equal(kernels[0].p, kernels[3].p));
    for (int i = 0; i < 4; i++)
        release(&kernels[i]);
}

static void builder_keeps_its_first_failure(void **state) {
    (void)state;
    const int64_t extents[] = {10};
    kir_builder *b = NULL;
    kir_program *p = NULL;
    int64_t *sizes = NULL;
    assert_ok(kir_begin(1, 0, extents, &b));
    int buffer = kir_buffer(b, TN_F32);
    kir_aff index = along(0);
    kir_val x = kir_load(b, buffer, &index, KIR_NONE);
    kir_val bad = kir_binary(b, KIR_ADD, x, kir_const_i(b, KIR_I64, 1));
    assert_int_equal(bad, KIR_NONE);
    assert_int_equal(kir_unary(b, KIR_EXP, bad), KIR_NONE);
    kir_loop(b, 7, 3);
    kir_end(b);
    kir_store(b, 12, &index, bad, bad);
    tn_fail(TN_ERR_IO, "something else");
    assert_int_equal(kir_finish(b, &p, &sizes), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), "ADD");
    assert_text_has(tn_error(), "different types");
    assert_null(p);
    assert_null(sizes);
    assert_int_equal(kir_begin(9, 9, extents, &b), TN_ERR_ARGUMENT);
}

static void values_are_not_seen_outside_their_loop(void **state) {
    (void)state;
    const int64_t extents[] = {10};
    for (int variant = 0; variant < 3; variant++) {
        kir_builder *b = NULL;
        kir_program *p = NULL;
        int64_t *sizes = NULL;
        assert_ok(kir_begin(0, 1, extents, &b));
        int buffer = kir_buffer(b, TN_F32);
        kir_aff index = along(0), first = kir_aff_const(0);
        kir_loop(b, 0, 1);
        kir_val x = kir_load(b, buffer, &index, KIR_NONE);
        kir_val sum = kir_reduce_value(b, KIR_SUM, x, KIR_NONE);
        if (variant == 0) kir_store(b, buffer, &index, sum, KIR_NONE);
        if (variant != 2) kir_end(b);
        if (variant == 1) kir_store(b, buffer, &first, x, KIR_NONE);
        assert_int_equal(kir_finish(b, &p, &sizes), TN_ERR_ARGUMENT);
    }
}

static void programs_can_be_read(void **state) {
    (void)state;
    const int64_t extents[] = {4, 6};
    kernel k = begin(1, 1, extents);
    kir_buffer(k.b, TN_F16);
    kir_buffer(k.b, TN_F32);
    kir_aff index = along(1);
    index.s[0] = 6;
    kir_loop(k.b, 1, 1);
    kir_val x = kir_load(k.b, 0, &index, KIR_NONE);
    kir_val sum = kir_reduce_value(k.b, KIR_SUM, kir_rounding(k.b, KIR_FLOOR, x), KIR_NONE);
    kir_end(k.b);
    store_axis(&k, 1, 0, kir_binary(k.b, KIR_MUL, sum, kir_const(k.b, KIR_F32, 0.5)));
    finish(&k);
    tn_str text = {0};
    kir_print(k.p, k.sizes, &text);
    static const char *const parts[] = {"x0=4 x1=6",
                                        "b0: f16",
                                        "b1: f32 written",
                                        "LOOP over 1 axes from x1",
                                        "%1 = LOAD f32 b0[0 + 6·x0 + 1·x1]",
                                        "ROUND f32 floor %1",
                                        "REDUCE f32 SUM %2",
                                        "CONST f32 0.5",
                                        "STORE f32 b1[0 + 1·x0] %6"};
    for (size_t i = 0; i < TN_COUNT(parts); i++)
        assert_text_has(tn_str_text(&text), parts[i]);
    tn_str_free(&text);
    release(&k);
}

/* ---- the verifier ------------------------------------------------------------------------------------------------ */

static kernel small_program(void) {
    const int64_t extents[] = {8, 5};
    kernel k = begin(1, 1, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_I64);
    kir_buffer(k.b, TN_F32);
    kir_aff index = along(1), gathered = kir_aff_const(0);
    index.s[0] = 5;
    kir_loop(k.b, 1, 1);
    gathered.dyn = kir_load(k.b, 1, &index, KIR_NONE);
    kir_val x = kir_load(k.b, 0, &gathered, KIR_NONE);
    kir_val positive = kir_binary(k.b, KIR_LT, kir_const(k.b, KIR_F32, 0), x);
    kir_val y = kir_select(k.b, positive, kir_unary(k.b, KIR_SQRT, x), kir_scalar_value(k.b, KIR_F32, 0));
    kir_val sum = kir_reduce_value(k.b, KIR_SUM, y, KIR_NONE);
    kir_end(k.b);
    kir_aff out = along(0);
    kir_store(k.b, 2, &out, kir_fma(k.b, sum, sum, sum), KIR_NONE);
    finish(&k);
    return k;
}

static int find(const kir_program *p, kir_op op) {
    for (int i = 0; i < p->n_ins; i++) {
        if (p->ins[i].op == op) return i;
    }
    fail_msg("no %s", kir_op_name(op));
    return -1;
}

static void refuses(kir_program *p, const char *why) {
    assert_int_equal(kir_verify(p), TN_ERR_ARGUMENT);
    assert_text_has(tn_error(), why);
}

static void verifier_names_what_is_wrong(void **state) {
    (void)state;
    kernel k = small_program();
    kir_program *p = k.p;
    kir_ins saved;
#define WITH(op, change, why)               \
    do {                                    \
        kir_ins *in = &p->ins[find(p, op)]; \
        saved = *in;                        \
        change;                             \
        refuses(p, why);                    \
        *in = saved;                        \
    } while (0)
    WITH(KIR_SQRT, in->a = 4000, "not an earlier instruction");
    WITH(KIR_SQRT, in->a = -7, "not an earlier instruction");
    WITH(KIR_SQRT, in->type = KIR_F64, "different types");
    WITH(KIR_SQRT, in->type = KIR_I32, "result type");
    WITH(KIR_SQRT, in->type = 99, "result type");
    WITH(KIR_SQRT, in->op = 200, "no such operation");
    WITH(KIR_SQRT, in->b = in->a, "too many operands");
    WITH(KIR_SELECT, in->a = in->b, "not bool");
    WITH(KIR_LT, in->b = KIR_NONE, "not an earlier instruction");
    WITH(KIR_LOAD, in->imm.i = 77, "no such access");
    WITH(KIR_LOAD, in->type = KIR_F64, "computes in");
    WITH(KIR_SCALAR, in->imm.i = 5, "no such runtime scalar");
    WITH(KIR_CONST, in->imm.f = 0.1, "outside its type");
    WITH(KIR_LOOP, in->imm.i = 0 | 1 << 8, "loop axes");
    WITH(KIR_LOOP, in->imm.i = 1 | 9 << 8, "loop axes");
    WITH(KIR_END, in->op = KIR_LOOP; in->imm.i = 1 | 1 << 8, "runs over already");
    WITH(KIR_REDUCE, in->kind = 90, "no such reduction");
    WITH(KIR_REDUCE, in->type = KIR_I64, "does not follow");
    WITH(KIR_FMA, in->a = (kir_val)find(p, KIR_SQRT), "inside a loop that has ended");
    WITH(KIR_STORE, in->a = (kir_val)find(p, KIR_END), "yields no value");
    WITH(KIR_STORE, in->type = KIR_F64, "other than its value's");
#undef WITH
    p->buffer_written[2] = false;
    refuses(p, "not marked as written");
    p->buffer_written[2] = true;
    p->buffer_dtype[1] = 100;
    refuses(p, "no valid dtype");
    p->buffer_dtype[1] = TN_I64;
    p->n_par = 12;
    refuses(p, "limits");
    p->n_par = 1;
    assert_ok(kir_verify(p));
    assert_int_equal(kir_verify(NULL), TN_ERR_ARGUMENT);
    release(&k);
}

/* Damages a program at random; whatever is left must be refused or be safe to compile. */
static void verifier_survives_any_damage(void **state) {
    (void)state;
    kernel k = small_program();
    size_t bytes = (size_t)k.p->n_ins * sizeof *k.p->ins;
    kir_ins *good = malloc(bytes);
    assert_non_null(good);
    memcpy(good, k.p->ins, bytes);
    uint32_t random = 1;
    int refused = 0;
    const int rounds = 20000 / test_every(2, 8);
    for (int round = 0; round < rounds; round++) {
        for (int hits = 1 + round % 3; hits > 0; hits--) {
            random = random * 1664525u + 1013904223u;
            ((uint8_t *)k.p->ins)[(random >> 8) % bytes] ^= (uint8_t)(1 << (random >> 3 & 7));
        }
        kir_vm *vm = NULL;
        tn_str text = {0};
        if (kir_vm_compile(k.p, &vm) != TN_OK) refused++;
        if (kir_verify(k.p) == TN_OK) kir_print(k.p, NULL, &text);
        tn_str_free(&text);
        kir_vm_free(vm);
        memcpy(k.p->ins, good, bytes);
    }
    assert_in_range(refused, rounds / 4, rounds - 1);
    free(good);
    release(&k);
}

/* ---- failures and threads ---------------------------------------------------------------------------------------- */

/* Builds, compiles and runs small_program under a failing allocation; TN_OK when none failed. */
enum { ROWS = 300, LAUNCHES = 3 };

static tn_status live_through(float out[LAUNCHES][ROWS]) {
    const int64_t extents[] = {ROWS, 40};
    kir_builder *b = NULL;
    kir_program *p = NULL;
    kir_vm *vm = NULL;
    int64_t *sizes = NULL;
    static float in[ROWS * 40];
    for (int i = 0; i < ROWS * 40; i++)
        in[i] = (float)(i % 17) - 3;
    TRY(kir_begin(1, 1, extents, &b));
    int from = kir_buffer(b, TN_F32), to = kir_buffer(b, TN_F32);
    kir_aff index = along(1), row = along(0);
    index.s[0] = 40;
    kir_loop(b, 1, 1);
    kir_val x = kir_load(b, from, &index, KIR_NONE);
    kir_val sum = kir_reduce_value(b, KIR_SUM, kir_binary(b, KIR_MUL, kir_binary(b, KIR_ADD, x, x), x), KIR_NONE);
    kir_end(b);
    kir_store(b, to, &row, sum, KIR_NONE);
    tn_status status = kir_finish(b, &p, &sizes);
    void *buffers[LAUNCHES][2];
    kir_launch launches[LAUNCHES];
    for (int i = 0; i < LAUNCHES; i++) {
        buffers[i][0] = in;
        buffers[i][1] = out[i];
        launches[i] = (kir_launch){sizes, buffers[i], NULL};
    }
    if (status == TN_OK) status = kir_interpret(p, &launches[0]);
    if (status == TN_OK) status = kir_vm_compile(p, &vm);
    if (status == TN_OK) status = kir_vm_run(vm, launches, LAUNCHES);
    kir_vm_free(vm);
    kir_free(p);
    tn_mem_free(sizes);
    return status;
}

static void failure_of_any_allocation_is_an_error_and_loses_nothing(void **state) {
    (void)state;
    float right[LAUNCHES][ROWS], out[LAUNCHES][ROWS];
    assert_ok(tn_threads_set(2));
    kir_vm_trim();
    int64_t blocks = tn_mem_get_stats().live_blocks, calls = tn_mem_get_stats().calls;
    assert_ok(live_through(right));
    kir_vm_trim();
    calls = tn_mem_get_stats().calls - calls;
    assert_true(calls > 20);
    for (int64_t n = 1; n <= calls; n++) {
        memset(out, 0, sizeof out);
        tn_mem_fail_at(n);
        tn_status status = live_through(out);
        tn_mem_fail_at(0);
        kir_vm_trim();
        assert_int_equal(tn_mem_get_stats().live_blocks, blocks);
        if (status == TN_OK)
            assert_memory_equal(out, right, sizeof out); /* a pattern of kinds need not be kept */
        else
            assert_int_equal(status, TN_ERR_MEMORY);
    }
}

enum { RUNNERS = 4, ROUNDS = 200 };

static void *run_again_and_again(void *argument) {
    const kernel *k = argument;
    static float in[1000];
    float out[1000];
    kir_vm *vm = (kir_vm *)k->b; /* shared by all */
    void *const buffers[] = {in, out};
    kir_launch launch = {k->sizes, buffers, NULL};
    for (int i = 0; i < ROUNDS; i++) {
        if (kir_vm_run(vm, &launch, 1) != TN_OK || out[999] != 1) return NULL;
    }
    return argument;
}

static void threads_share_a_compiled_program(void **state) {
    (void)state;
    const int64_t extents[] = {1000};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_F32);
    store_axis(&k, 1, 0,
               kir_unary(k.b, KIR_COS, kir_unary(k.b, KIR_EXP, kir_unary(k.b, KIR_LOG, load_axis(&k, 0, 0)))));
    finish(&k);
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(k.p, &vm));
    k.b = (kir_builder *)vm;
    pthread_t threads[RUNNERS];
    for (int i = 0; i < RUNNERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_again_and_again, &k), 0);
    for (int i = 0; i < RUNNERS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, &k);
    }
    kir_vm_free(vm);
    release(&k);
}

static _Atomic bool ended;

static void *change_threads(void *state) {
    while (!atomic_load(&ended)) {
        (void)tn_threads_set(2);
        (void)tn_threads_set(8);
    }
    return state;
}

/* Memory is measured out for those that there are when a launch begins. */
static void threads_that_are_set_meanwhile_are_not_used(void **state) {
    enum { POINTS = 1 << 10, MANY = 1 << 10 }; /* launches, each looked at before the threads are called */
    static float in[POINTS], out[MANY][POINTS];
    static void *buffers[MANY][2];
    static kir_launch launches[MANY];
    const int64_t extents[] = {POINTS};
    kernel k = begin(1, 0, extents);
    kir_buffer(k.b, TN_F32);
    kir_buffer(k.b, TN_F32);
    store_axis(&k, 1, 0, kir_unary(k.b, KIR_COS, load_axis(&k, 0, 0)));
    finish(&k);
    kir_vm *vm = NULL;
    assert_ok(kir_vm_compile(k.p, &vm));
    for (int i = 0; i < MANY; i++) {
        buffers[i][0] = in;
        buffers[i][1] = out[i];
        launches[i] = (kir_launch){k.sizes, buffers[i], NULL};
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change_threads, state), 0);
    for (int run = 0; run < ROUNDS / test_every(1, 4); run++) {
        memset(out, 0, sizeof out);
        kir_vm_trim(); /* no room is left over from a launch on more threads */
        assert_ok(kir_vm_run(vm, launches, MANY));
        int wrong = 0; /* counted, because a call for each number takes most of the time */
        for (int i = 0; i < MANY * POINTS; i++)
            wrong += out[i / POINTS][i % POINTS] != 1;
        assert_int_equal(wrong, 0);
    }
    atomic_store(&ended, true);
    pthread_join(thread, NULL);
    assert_ok(tn_threads_set(0));
    kir_vm_free(vm);
    release(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builder_shares_folds_and_drops),
        cmocka_unit_test(hash_depends_on_structure_alone),
        cmocka_unit_test(builder_keeps_its_first_failure),
        cmocka_unit_test(values_are_not_seen_outside_their_loop),
        cmocka_unit_test(programs_can_be_read),
        cmocka_unit_test(verifier_names_what_is_wrong),
        cmocka_unit_test(verifier_survives_any_damage),
        cmocka_unit_test(failure_of_any_allocation_is_an_error_and_loses_nothing),
        cmocka_unit_test(threads_share_a_compiled_program),
        cmocka_unit_test(threads_that_are_set_meanwhile_are_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
