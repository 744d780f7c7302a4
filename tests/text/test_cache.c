/* test_cache.c — a token at a time over a cache is the same computation as all tokens at once: bit for bit, however the
 * text is cut and wherever the pages lie; recorded once and launched for each token; the cache itself never moves.
 *
 * The subject is a layer as language models have it: quantised projections, attention, another projection. What the ops
 * compute by themselves is checked by their cases (test_ops) and the kernels' tests. */
#include "test_support.h"

#include "check/check.h"
#include "hal/hal.h"
#include "tensor/graph.h"
#include "trunnion/ops.h"

enum { HEADS = 6, KV_HEADS = 2, WIDTH = 16, HIDDEN = 96, VOCABULARY = 50, PAGES = 5, TOKENS = 200, PAGE = 64 };

typedef struct layer {
    tn_tensor *embedding, *q, *k, *v, *o; /* weights */
    tn_tensor *keys, *values, *pages;     /* the caches, and where places lie */
} layer;

static tn_tensor *weight_of(tn_dtype t, int64_t rows, int64_t columns, uint64_t seed) {
    tn_case_input in = {.dtype = t, .rank = 2, .shape = {rows, columns}};
    void *blocks = malloc(tn_dtype_bytes(t, rows * columns));
    tn_case_blocks(&in, seed, blocks);
    tn_tensor *w = tn_from_data(blocks, in.shape, 2, t);
    free(blocks);
    return w;
}

static layer layer_new(tn_dtype cache, const int64_t pages[PAGES]) {
    tn_tensor *caches[2] = {NULL};
    {
        TN_SCOPE;
        assert_ok(tn_zero_states(TN_DIMS(PAGES, KV_HEADS, PAGE, WIDTH), cache, caches, 2));
        tn_retain(caches[0]);
        tn_retain(caches[1]);
    }
    return (layer){.embedding = weight_of(TN_Q8_0, VOCABULARY, HIDDEN, 1),
                   .q = weight_of(TN_Q4_1, HEADS * WIDTH, HIDDEN, 2),
                   .k = weight_of(TN_Q4_0, KV_HEADS * WIDTH, HIDDEN, 3),
                   .v = weight_of(TN_Q5_1, KV_HEADS * WIDTH, HIDDEN, 4),
                   .o = weight_of(TN_Q4_1, HIDDEN, HEADS * WIDTH, 5),
                   .keys = caches[0],
                   .values = caches[1],
                   .pages = tn_from_data(pages, TN_DIMS(PAGES), TN_I64)};
}

static void layer_free(layer *l) {
    tn_tensor *all[] = {l->embedding, l->q, l->k, l->v, l->o, l->keys, l->values, l->pages};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_free(all[i]);
}

/* The layer's result for tokens at `position` and behind, [n, HIDDEN]; the caches then hold them. Inside a scope. */
static tn_tensor *forward(const layer *l, const tn_tensor *ids, const tn_tensor *position) {
    int64_t n = tn_numel(ids);
    tn_tensor *x = tn_embedding(ids, l->embedding);
    tn_tensor *q = tn_reshape(tn_linear(x, l->q, NULL), TN_DIMS(n, HEADS, WIDTH));
    tn_tensor *k = tn_reshape(tn_linear(x, l->k, NULL), TN_DIMS(n, KV_HEADS, WIDTH));
    tn_tensor *v = tn_reshape(tn_linear(x, l->v, NULL), TN_DIMS(n, KV_HEADS, WIDTH));
    tn_tensor *a = tn_cached_attention(q, k, v, l->keys, l->values, position, l->pages, NULL, NULL);
    tn_cache_append_(l->keys, k, position, l->pages);
    tn_cache_append_(l->values, v, position, l->pages);
    return tn_add(x, tn_linear(tn_reshape(a, TN_DIMS(n, HEADS * WIDTH)), l->o, NULL));
}

static int64_t id_of(int64_t token) { return token * 31 % VOCABULARY; }

/* Tokens `first` … `first + n - 1`, their results into out [n, HIDDEN]. */
static void run_piece(const layer *l, int64_t first, int64_t n, float *out) {
    TN_SCOPE;
    int64_t ids[TOKENS];
    for (int64_t i = 0; i < n; i++)
        ids[i] = id_of(first + i);
    tn_tensor *list = tn_symbolic(tn_from_data(ids, TN_DIMS(n), TN_I64), 0, 0);
    assert_ok(tn_read(forward(l, list, tn_runtime_scalar_int(first)), out, (size_t)(n * HIDDEN) * sizeof *out));
}

static const int64_t in_order[PAGES] = {0, 1, 2, 3, 4}, shuffled[PAGES] = {3, 0, 4, 2, 1};
static float whole[TOKENS * HIDDEN], got[TOKENS * HIDDEN];

static void assert_same_bits(const float *is, const float *want, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (memcmp(is + i, want + i, sizeof *is) != 0)
            fail_msg("token %lld, [%lld] is %a, should be %a", (long long)(i / HIDDEN), (long long)(i % HIDDEN),
                     (double)is[i], (double)want[i]);
}

static void all_at_once(tn_dtype cache) {
    layer l = layer_new(cache, in_order);
    run_piece(&l, 0, TOKENS, whole);
    layer_free(&l);
}

static void any_cut_of_a_text_gives_the_same_bits(void **state) {
    (void)state;
    static const tn_dtype dtypes[] = {TN_F16, TN_F32, TN_BF16};
    static const int64_t cuts[][8] = {
        {1, 1, 62, 1, 70, 65}, {63, 2, 128, 7}, {199, 1}, {64, 64, 64, 8}, {30, 30, 30, 30, 30, 30, 20}};
    for (size_t t = 0; t < TN_COUNT(dtypes); t++) {
        all_at_once(dtypes[t]);
        for (size_t c = 0; c < TN_COUNT(cuts); c++) {
            layer l = layer_new(dtypes[t], c % 2 ? shuffled : in_order);
            int64_t at = 0;
            for (int i = 0; at < TOKENS; at += cuts[c][i++])
                run_piece(&l, at, cuts[c][i], got + at * HIDDEN);
            assert_int_equal(at, TOKENS);
            assert_same_bits(got, whole, TOKENS * HIDDEN);
            layer_free(&l);
        }
    }
}

/* A token's graph: captured once at the first token, launched for the others. */
static tn_graph *capture_token(const layer *l, float *first) {
    tn_graph *graph = NULL;
    TN_SCOPE;
    tn_tensor *id = tn_from_data((int64_t[]){id_of(0)}, TN_DIMS(1), TN_I64);
    assert_ok(tn_capture_begin());
    tn_tensor *y = forward(l, id, tn_runtime_scalar_int(0));
    assert_ok(tn_capture_end(&id, 1, &y, 1, &graph));
    assert_ok(tn_read(y, first, HIDDEN * sizeof *first));
    return graph;
}

static void launched_tokens_are_those_of_the_prompt(void **state) {
    (void)state;
    all_at_once(TN_F16);
    layer l = layer_new(TN_F16, shuffled);
    tn_graph *graph = capture_token(&l, got);
    tn_runtime_stats before = {.struct_size = sizeof before}, after = before;
    assert_ok(tn_get_runtime_stats(&before));
    for (int64_t t = 1; t < TOKENS; t++) {
        TN_SCOPE;
        tn_tensor *id = tn_from_data((int64_t[]){id_of(t)}, TN_DIMS(1), TN_I64), *y = NULL;
        assert_ok(tn_graph_set_runtime_scalar(graph, 0, (double)t));
        assert_ok(tn_graph_launch(graph, &id, &y));
        assert_ok(tn_read(y, got + t * HIDDEN, HIDDEN * sizeof *got));
    }
    assert_ok(tn_get_runtime_stats(&after));
    assert_int_equal(after.plans_made, before.plans_made);
    assert_same_bits(got, whole, TOKENS * HIDDEN);
    tn_graph_free(graph);
    layer_free(&l);
}

/* Nobody reads the cache here: what is appended is all that the append waits for. */
static void an_append_waits_for_what_it_is_made_of(void **state) {
    (void)state;
    enum { N = 70, CACHED = PAGES * KV_HEADS * PAGE * WIDTH };
    static float is[CACHED], want[CACHED];
    for (int pieces = 0; pieces < 2; pieces++) {
        layer l = layer_new(TN_F32, shuffled);
        {
            TN_SCOPE;
            int64_t ids[N];
            for (int64_t i = 0; i < N; i++)
                ids[i] = id_of(i);
            tn_tensor *x = tn_embedding(tn_from_data(ids, TN_DIMS(N), TN_I64), l.embedding);
            tn_tensor *k = tn_linear(tn_linear(tn_linear(x, l.q, NULL), l.o, NULL), l.k, NULL);
            if (pieces) assert_ok(tn_eval(&k, 1));
            tn_cache_append_(l.keys, tn_reshape(k, TN_DIMS(N, KV_HEADS, WIDTH)), tn_runtime_scalar_int(0), l.pages);
            assert_ok(tn_eval(NULL, 0));
            assert_ok(tn_read(l.keys, pieces ? want : is, sizeof is));
        }
        layer_free(&l);
    }
    assert_memory_equal(is, want, sizeof is);
}

/* The append is the last of a plan, and no copy of the cache is made for it. */
static void a_cache_is_written_where_it_lies(void **state) {
    (void)state;
    layer l = layer_new(TN_F32, in_order);
    run_piece(&l, 0, 3, got);
    tn_memory_reset_peak();
    int64_t before = tn_memory_get_stats().peak_bytes;
    run_piece(&l, 3, 3, got);
    char *text = tn_explain_last();
    assert_non_null(text);
    assert_null(strstr(text, "copy to state"));
    tn_text_free(text);
    assert_true(tn_memory_get_stats().peak_bytes - before < (int64_t)(PAGES * KV_HEADS * PAGE * WIDTH * sizeof(float)));
    layer_free(&l);
}

/* Elsewhere it is an ordinary op: a new value, the old one stays. */
static void without_state_the_old_value_stays(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *cache = tn_contiguous(tn_zeros(TN_DIMS(2, 1, PAGE, 2), TN_F32));
    tn_tensor *x = tn_from_data((float[]){1, 2, 3, 4}, TN_DIMS(2, 1, 2), TN_F32),
              *pages = tn_from_data((int64_t[]){1, 0}, TN_DIMS(2), TN_I64);
    tn_tensor *written = tn_cache_append(cache, x, tn_runtime_scalar_int(63), pages);
    assert_true(tn_item(tn_sum(cache, TN_ALL, false)) == 0);
    assert_true(tn_item(tn_sum(written, TN_ALL, false)) == 10);
    float row[2];
    assert_ok(tn_read(tn_reshape(tn_slice(tn_select(written, 0, 0), 1, 0, 1, 1), TN_DIMS(2)), row, sizeof row));
    assert_true(row[0] == 3 && row[1] == 4);
}

/* Recorded after an append, attention sees what was appended; recorded before, what was there. */
static void reading_follows_the_order_of_recording(void **state) {
    (void)state;
    TN_SCOPE;
    tn_tensor *keys = tn_contiguous(tn_zeros(TN_DIMS(1, 1, PAGE, 2), TN_F32)),
              *values = tn_contiguous(tn_zeros(TN_DIMS(1, 1, PAGE, 2), TN_F32));
    assert_ok(tn_make_state(keys));
    assert_ok(tn_make_state(values));
    tn_tensor *pages = tn_from_data((int64_t[]){0}, TN_DIMS(1), TN_I64), *zero = tn_runtime_scalar_int(0),
              *one = tn_runtime_scalar_int(1);
    tn_tensor *old = tn_from_data((float[]){8, 8}, TN_DIMS(1, 1, 2), TN_F32),
              *now = tn_from_data((float[]){0, 0}, TN_DIMS(1, 1, 2), TN_F32);
    tn_tensor *before = tn_cached_attention(now, now, now, keys, values, one, pages, NULL, NULL);
    tn_cache_append_(values, old, zero, pages);
    tn_tensor *after = tn_cached_attention(now, now, now, keys, values, one, pages, NULL, NULL);
    assert_ok(tn_eval((tn_tensor *[]){before, after}, 2));
    assert_true(tn_item(tn_sum(before, TN_ALL, false)) == 0);
    assert_true(tn_item(tn_sum(after, TN_ALL, false)) == 8); /* half of (8, 8), for two equal keys */
    assert_true(tn_item(tn_sum(values, TN_ALL, false)) == 16);
}

/* ---- states side by side ----------------------------------------------------------------------------------------- */

static void assert_all(const tn_tensor *t, float wanted) {
    float values[24];
    assert_ok(tn_read(t, values, sizeof values));
    for (size_t i = 0; i < TN_COUNT(values); i++)
        assert_float_equal(values[i], wanted, 0);
}

static const char *home_of(const tn_tensor *t) { return tn_tensor_storage(t)->home->address; }

static void states_side_by_side_are_states_of_their_own(void **state) {
    (void)state;
    enum { COUNT = 3, STEP = 128 }; /* 24 numbers, from line to line of a cache */
    tn_tensor *t[COUNT];
    assert_ok(tn_zero_states(TN_DIMS(6, 4), TN_F32, t, COUNT));
    const char *first = home_of(t[0]);
    for (int i = 0; i < COUNT; i++) {
        assert_ptr_equal(home_of(t[i]), first + i * STEP);
        assert_all(t[i], 0);
    }
    tn_fill_(t[1], 2);
    assert_ok(tn_eval(&t[1], 1));
    assert_all(t[0], 0);
    assert_all(t[2], 0);
    assert_ptr_equal(home_of(t[1]), first + STEP);
    tn_free(t[2]);
    tn_free(t[0]);
    assert_all(t[1], 2);
    tn_free(t[1]);
}

static void states_side_by_side_are_all_or_none(void **state) {
    (void)state;
    tn_tensor *t[2];
    assert_int_equal(tn_zero_states(TN_DIMS(2, -1), TN_F32, t, 2), TN_ERR_SHAPE);
    assert_int_equal(tn_zero_states(TN_DIMS(INT64_MAX / 8), TN_F32, t, 2), TN_ERR_SHAPE);
    assert_int_equal(tn_zero_states(TN_DIMS(2), (tn_dtype)99, t, 2), TN_ERR_DTYPE);
    assert_int_equal(tn_zero_states(TN_DIMS(INT64_C(1) << 62), TN_F32, t, 2), TN_ERR_SHAPE); /* 2^64 bytes */
    assert_int_equal(tn_zero_states(TN_DIMS(INT64_MAX), TN_U8, t, 1), TN_ERR_SHAPE);
    assert_true(!t[0] && !t[1]);
    assert_int_equal(tn_zero_states(TN_DIMS(4), TN_F32, t, -1), TN_ERR_ARGUMENT);
    for (int64_t n = 0; n < 12; n += 6) { /* none, and the block that the pool keeps afterwards */
        assert_ok(tn_zero_states(TN_DIMS(n, 4), TN_F32, t, 2));
        tn_free(t[0]);
        tn_free(t[1]);
    }
    tn_mem_stats before = tn_mem_get_stats();
    tn_status status = TN_ERR_MEMORY;
    for (int64_t n = 1; status == TN_ERR_MEMORY && n < 100; n++) {
        tn_mem_fail_at(n);
        status = tn_zero_states(TN_DIMS(6, 4), TN_F32, t, 2);
        tn_mem_fail_at(0);
        if (status != TN_OK) assert_true(!t[0] && !t[1]);
    }
    assert_ok(status);
    tn_free(t[0]);
    tn_free(t[1]);
    assert_int_equal(tn_mem_get_stats().live_blocks, before.live_blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_of_a_text_gives_the_same_bits),
        cmocka_unit_test(launched_tokens_are_those_of_the_prompt),
        cmocka_unit_test(an_append_waits_for_what_it_is_made_of),
        cmocka_unit_test(a_cache_is_written_where_it_lies),
        cmocka_unit_test(without_state_the_old_value_stays),
        cmocka_unit_test(reading_follows_the_order_of_recording),
        cmocka_unit_test(states_side_by_side_are_states_of_their_own),
        cmocka_unit_test(states_side_by_side_are_all_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
