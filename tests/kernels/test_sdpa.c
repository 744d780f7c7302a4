/* test_sdpa.c — attention over tensors, forward and backward: the bits of its definition in cpu_kernels.h, whatever the
 * instruction set, the number of threads and the strides of its operands. A scalar loop spells the definition out. */
#include "test_support.h"

#include <math.h>

#include "cpu/isa.h"
#include "kir/kir_math.h"
#include "random_numbers.h"
#include "trunnion/trunnion.h"

enum { CHUNK = TN_PAGE_TOKENS, LANES = 16, MAX_POINTS = 5 };

typedef struct shape {
    int64_t batch, heads, kv_heads, queries, keys, features, value_features;
    bool causal;
    /* 0: none; 1: of all scores; 2: of keys alone, shared by all; 3: hides all keys of some queries; 4: several
     * texts in a list, each token sees the earlier ones of its own */
    int mask;
    bool turned; /* rows and columns of q, k and v change places in memory */
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, false, 0, false},      {1, 2, 2, 5, 7, 3, 4, false, 0, false},
    {2, 3, 3, 64, 64, 16, 16, false, 0, false},  {1, 2, 1, 70, 65, 33, 20, true, 0, false},
    {1, 4, 2, 67, 130, 24, 17, false, 1, true},  {2, 2, 2, 130, 70, 64, 64, true, 2, false},
    {1, 3, 1, 9, 200, 8, 40, false, 3, true},    {1, 1, 1, 66, 80, 300, 270, false, 0, false},
    {1, 2, 2, 200, 200, 16, 16, true, 0, false}, {1, 4, 2, 330, 330, 16, 16, false, 4, false},
    {2, 2, 2, 100, 400, 16, 20, true, 4, true},
};
enum { TEXT = 41 };

static uint64_t random_state = 1;
static float random_real(void) { return (float)(random_step(&random_state) >> 40) / (float)(1 << 23) - 1.0f; }

/* [batch, heads, rows, columns], with room between rows; turned: [batch, heads, columns, rows]. */
static tn_sdpa_tensor make(int64_t batch, int64_t heads, int64_t rows, int64_t columns, bool turned) {
    int64_t row = turned ? 1 : columns + 3, column = turned ? rows + 1 : 1;
    int64_t head = turned ? columns * column : rows * row, n = batch * heads * head + MAX_POINTS;
    tn_sdpa_tensor t = {calloc((size_t)n, sizeof(float)), heads * head, head, row, column};
    assert_non_null(t.data);
    for (int64_t i = 0; i < n; i++)
        t.data[i] = random_real();
    return t;
}

TEST_DEFINITION static float *at(const tn_sdpa_tensor *t, int64_t b, int64_t h, int64_t i, int64_t c) {
    return t->data + b * t->batch + h * t->head + i * t->row + c * t->column;
}

static void fill(const tn_sdpa_tensor *t, const shape *s, int64_t heads, int64_t rows, int64_t columns, float value) {
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < columns; c++)
                    *at(t, b, h, i, c) = value;
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

TEST_DEFINITION static float chains(const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t n,
                                    int64_t length) {
    float sum = 0;
    for (int64_t i = 0; i < n; i += length) {
        float chain = 0;
        for (int64_t k = i; k < n && k < i + length; k++)
            chain = fmaf(x[k * x_step], y[k * y_step], chain);
        sum = i ? sum + chain : chain;
    }
    return sum;
}

TEST_DEFINITION static float fold(float *lane) {
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int t = 0; t < w; t++)
            lane[t] += lane[t + w];
    return lane[0];
}

/* Weights of a query's keys; *most, *sum. Returns how many take part. */
TEST_DEFINITION static int64_t weigh(const tn_sdpa_args *x, int64_t b, int64_t h, int64_t i, float *w, float *most,
                                     float *sum) {
    int64_t kv = h / (x->heads / x->kv_heads), all = x->keys;
    float lane[LANES] = {0};
    if (x->causal && (i / CHUNK + 1) * CHUNK < all) all = (i / CHUNK + 1) * CHUNK;
    *most = -INFINITY;
    for (int64_t j = 0; j < all; j++) {
        float s = chains(at(&x->q, b, h, i, 0), x->q.column, at(&x->k, b, kv, j, 0), x->k.column, x->features, 256);
        w[j] = s * x->scale;
        if (x->mask.data) w[j] += *at(&x->mask, b, h, i, j);
        if (x->causal && j > i) w[j] = -INFINITY;
        if (w[j] > *most) *most = w[j];
    }
    for (int64_t j = 0; j < all; j++) {
        w[j] = kir_exp_f32(w[j] - (*most == -INFINITY ? 0 : *most));
        lane[j % LANES] += w[j];
    }
    *sum = fold(lane);
    return all;
}

TEST_DEFINITION static void define_forward(const tn_sdpa_args *x) {
    float *w = calloc((size_t)x->keys, sizeof *w), most, sum;
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t h = 0; h < x->heads; h++)
            for (int64_t i = 0; i < x->queries; i++) {
                int64_t kv = h / (x->heads / x->kv_heads), all = weigh(x, b, h, i, w, &most, &sum);
                for (int64_t c = 0; c < x->value_features; c++) {
                    float o = chains(w, 1, at(&x->v, b, kv, 0, c), x->v.row, all, CHUNK);
                    *at(&x->out, b, h, i, c) = x->blind && most == -INFINITY ? 0 : o / sum;
                }
            }
    free(w);
}

/* Of all queries of a head: weights, gradients of scores, [queries, keys]; 1 / L. */
typedef struct head {
    float *w, *g, *r;
} head;

TEST_DEFINITION static void define_scores(const tn_sdpa_args *x, int64_t b, int64_t h, head *s) {
    int64_t kv = h / (x->heads / x->kv_heads);
    for (int64_t i = 0; i < x->queries; i++) {
        float *w = s->w + i * x->keys, *g = s->g + i * x->keys, most, sum, lane[LANES] = {0};
        memset(w, 0, (size_t)x->keys * sizeof *w);
        memset(g, 0, (size_t)x->keys * sizeof *g);
        int64_t all = weigh(x, b, h, i, w, &most, &sum);
        s->r[i] = x->blind && most == -INFINITY ? 0 : 1 / sum;
        for (int64_t c = 0; c < x->value_features; c++)
            lane[c % LANES] = fmaf(*at(&x->dout, b, h, i, c), *at(&x->out, b, h, i, c), lane[c % LANES]);
        float along = fold(lane);
        for (int64_t j = 0; j < all; j++) {
            float slope = chains(at(&x->dout, b, h, i, 0), x->dout.column, at(&x->v, b, kv, j, 0), x->v.column,
                                 x->value_features, 256);
            g[j] = w[j] * (slope - along) * (x->scale * s->r[i]);
        }
        for (int64_t c = 0; c < x->features; c++)
            *at(&x->dq, b, h, i, c) = chains(g, 1, at(&x->k, b, kv, 0, c), x->k.row, all, CHUNK);
    }
}

/* += Σ over queries of x[i, j] · y[i], chains of CHUNK; y times r where that is given. Blocks that do not see the key's
 * chunk are left out. */
TEST_DEFINITION static void add_over_queries(const tn_sdpa_args *a, const float *x, int64_t j, const float *y,
                                             int64_t y_step, const float *r, float *to) {
    for (int64_t i = 0; i < a->queries; i += CHUNK) {
        float chain = 0;
        if (a->causal && j / CHUNK > i / CHUNK) continue;
        for (int64_t k = i; k < a->queries && k < i + CHUNK; k++)
            chain = fmaf(x[k * a->keys + j], r ? y[k * y_step] * r[k] : y[k * y_step], chain);
        *to += chain;
    }
}

TEST_DEFINITION static void define_backward(const tn_sdpa_args *x) {
    size_t scores = (size_t)(x->queries * x->keys);
    head s = {calloc(scores, 4), calloc(scores, 4), calloc((size_t)x->queries, 4)};
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t h = 0; h < x->heads; h++) {
            int64_t kv = h / (x->heads / x->kv_heads);
            define_scores(x, b, h, &s);
            for (int64_t j = 0; j < x->keys; j++) {
                for (int64_t c = 0; c < x->features; c++)
                    add_over_queries(x, s.g, j, at(&x->q, b, h, 0, c), x->q.row, NULL, at(&x->dk, b, kv, j, c));
                for (int64_t c = 0; c < x->value_features; c++)
                    add_over_queries(x, s.w, j, at(&x->dout, b, h, 0, c), x->dout.row, s.r, at(&x->dv, b, kv, j, c));
            }
        }
    free(s.w);
    free(s.g);
    free(s.r);
}

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

static tn_sdpa_tensor make_mask(const shape *s) {
    tn_sdpa_tensor m = make(s->batch, s->heads, s->queries, s->keys, false);
    if (s->mask == 2) m.batch = m.head = m.row = 0;
    for (int64_t i = 0; s->mask == 3 && i < s->queries; i += 2)
        for (int64_t j = 0; j < s->keys; j++)
            *at(&m, 0, 1, i, j) = -INFINITY;
    if (s->mask == 4) m.batch = m.head = 0;
    for (int64_t i = 0; s->mask == 4 && i < s->queries; i++)
        for (int64_t j = 0; j < s->keys; j++)
            *at(&m, 0, 0, i, j) = j <= i && j / TEXT == i / TEXT ? 0 : -INFINITY;
    return m;
}

static void same(const shape *s, int64_t heads, int64_t rows, int64_t columns, const tn_sdpa_tensor *want,
                 const tn_sdpa_tensor *got, const char *what) {
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < columns; c++) {
                    float x = *at(want, b, h, i, c), y = *at(got, b, h, i, c);
                    if (memcmp(&x, &y, sizeof x) != 0)
                        fail_msg("%s (%lld, %lld, %lld, %lld): %a, not %a", what, (long long)b, (long long)h,
                                 (long long)i, (long long)c, (double)y, (double)x);
                }
}

static void run_everywhere(const shape *s, const tn_sdpa_args *want) {
    tn_sdpa_args x = *want;
    x.out = make(s->batch, s->heads, s->queries, s->value_features, false);
    x.dq = make(s->batch, s->heads, s->queries, s->features, false);
    x.dk = make(s->batch, s->kv_heads, s->keys, s->features, false);
    x.dv = make(s->batch, s->kv_heads, s->keys, s->value_features, false);
    for (int way = 0; way < 3 * TN_ISA_COUNT; way++) {
        if (!tn_gemm_use((tn_isa)(way / 3))) continue;
        int threads = 1 + way % 3;
        assert_ok(tn_threads_set(threads));
        for (int backward = 0; backward < 2; backward++) {
            size_t bytes = tn_sdpa_workspace(&x, backward, threads);
            x.workspace = tn_mem_alloc(bytes);
            assert_non_null(x.workspace);
            tn_sdpa(&x, backward);
            tn_mem_free(x.workspace);
        }
        same(s, s->heads, s->queries, s->value_features, &want->out, &x.out, "out");
        same(s, s->heads, s->queries, s->features, &want->dq, &x.dq, "dq");
        same(s, s->kv_heads, s->keys, s->features, &want->dk, &x.dk, "dk");
        same(s, s->kv_heads, s->keys, s->value_features, &want->dv, &x.dv, "dv");
    }
    tn_gemm_use(tn_cpu().isa);
    free(x.out.data);
    free(x.dq.data);
    free(x.dk.data);
    free(x.dv.data);
}

static void bits_are_those_of_the_definition(void **state) {
    (void)state;
    for (size_t k = 0; k < TN_COUNT(shapes); k++) {
        const shape *s = &shapes[k];
        tn_sdpa_args x = {.batch = s->batch,
                          .heads = s->heads,
                          .kv_heads = s->kv_heads,
                          .queries = s->queries,
                          .keys = s->keys,
                          .features = s->features,
                          .value_features = s->value_features,
                          .scale = 0.7f,
                          .causal = s->causal,
                          .blind = s->mask == 3};
        x.q = make(s->batch, s->heads, s->queries, s->features, s->turned);
        x.k = make(s->batch, s->kv_heads, s->keys, s->features, s->turned);
        x.v = make(s->batch, s->kv_heads, s->keys, s->value_features, s->turned);
        x.out = make(s->batch, s->heads, s->queries, s->value_features, false);
        x.dout = make(s->batch, s->heads, s->queries, s->value_features, s->turned);
        x.dq = make(s->batch, s->heads, s->queries, s->features, false);
        x.dk = make(s->batch, s->kv_heads, s->keys, s->features, false);
        x.dv = make(s->batch, s->kv_heads, s->keys, s->value_features, false);
        fill(&x.dk, s, s->kv_heads, s->keys, s->features, 0);
        fill(&x.dv, s, s->kv_heads, s->keys, s->value_features, 0);
        if (s->mask) x.mask = make_mask(s);
        define_forward(&x);
        define_backward(&x);
        run_everywhere(s, &x);
        tn_sdpa_tensor all[] = {x.q, x.k, x.v, x.out, x.dout, x.dq, x.dk, x.dv, x.mask};
        for (size_t i = 0; i < TN_COUNT(all); i++)
            free(all[i].data);
    }
}

/* Of 330 tokens, those from 256 on see none before 246: keys and values of the first three chunks may be NaN. */
static void chunks_that_a_mask_hides_are_skipped(void **state) {
    enum { N = 330, D = 16, UNSEEN = 192, FROM = 256 };
    static const shape s = {1, 1, 1, N, N, D, D, false, 4, false};
    (void)state;
    tn_sdpa_args x = {.batch = 1, .heads = 1, .kv_heads = 1, .queries = N, .keys = N, .features = D};
    x.value_features = D;
    x.scale = 0.7f;
    tn_sdpa_tensor *all[] = {&x.q, &x.k, &x.v, &x.out, &x.dout, &x.dq, &x.dk, &x.dv};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        *all[i] = make(1, 1, N, D, false);
    x.mask = make_mask(&s);
    for (int64_t j = 0; j < UNSEEN; j++)
        for (int64_t c = 0; c < D; c++)
            *at(&x.k, 0, 0, j, c) = *at(&x.v, 0, 0, j, c) = NAN;
    for (int backward = 0; backward < 2; backward++) {
        x.workspace = tn_mem_alloc(tn_sdpa_workspace(&x, backward, tn_threads()));
        assert_non_null(x.workspace);
        tn_sdpa(&x, backward);
        tn_mem_free(x.workspace);
    }
    for (int64_t i = FROM; i < N; i++)
        for (int64_t c = 0; c < D; c++)
            assert_true(isfinite(*at(&x.out, 0, 0, i, c)) && isfinite(*at(&x.dq, 0, 0, i, c)));
    for (size_t i = 0; i < TN_COUNT(all); i++)
        free(all[i]->data);
    free(x.mask.data);
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

enum { MOST_RANK = 5, INPUTS = 4 };

typedef struct call {
    int rank;
    int64_t q[MOST_RANK], k[MOST_RANK], v[MOST_RANK];
    bool causal, masked;
} call;

static tn_tensor *random_tensor(const int64_t *of, int rank, int swap, tn_dtype dtype, uint64_t seed) {
    int64_t n = 1, dims[MOST_RANK];
    for (int d = 0; d < rank; d++)
        n *= dims[d] = of[d];
    if (swap) {
        dims[rank - 1] = of[rank - 2];
        dims[rank - 2] = of[rank - 1];
    }
    float *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    random_state = seed;
    for (int64_t i = 0; i < n; i++)
        x[i] = random_real();
    tn_tensor *t = tn_cast(tn_from_data(x, dims, rank, TN_F32), dtype);
    free(x);
    assert_ok(tn_eval(&t, 1));
    return t;
}

/* A loss, and the gradients of the inputs; `again`: those of the sum of squares of the gradients. */
static void run_call(const call *c, tn_dtype dtype, bool again, tn_tensor *out[INPUTS]) {
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.is_causal = c->causal;
    tn_tensor *in[3] = {random_tensor(c->q, c->rank, 0, dtype, 1), random_tensor(c->k, c->rank, 1, dtype, 2),
                        random_tensor(c->v, c->rank, 0, dtype, 3)};
    for (int i = 0; i < 3; i++)
        assert_ok(tn_set_requires_grad(in[i], true));
    int64_t scores[MOST_RANK];
    memcpy(scores, c->q, sizeof scores);
    scores[c->rank - 1] = c->k[c->rank - 2];
    tn_tensor *mask = c->masked ? tn_gt(random_tensor(scores, c->rank, 0, dtype, 4), tn_scalar(-0.5)) : NULL;
    tn_tensor *y = tn_scaled_dot_product_attention(in[0], tn_transpose(in[1], -2, -1), in[2], mask, &o);
    tn_tensor *loss = tn_sum(tn_mul(y, tn_sin(y)), NULL, 0, false), *grads[3];
    assert_ok(tn_gradients(&loss, 1, NULL, in, 3, again, grads));
    if (again) {
        loss = tn_scalar(0);
        for (int i = 0; i < 3; i++)
            loss = tn_add(loss, tn_sum(tn_mul(grads[i], grads[i]), NULL, 0, false));
        loss = tn_sqrt(loss);
        assert_ok(tn_gradients(&loss, 1, NULL, in, 3, false, grads));
    }
    out[0] = y;
    memcpy(out + 1, grads, sizeof grads);
    assert_ok(tn_eval(out, INPUTS));
}

static void are_close(const tn_tensor *a, const tn_tensor *b) {
    double far = 0, most = 0;
    {
        TN_SCOPE;
        tn_tensor *wide = tn_cast(a, TN_F64);
        far = tn_item(tn_amax(tn_abs(tn_sub(wide, b)), NULL, 0, false));
        most = tn_item(tn_amax(tn_abs(b), NULL, 0, false));
    }
    assert_true(far <= 2e-5 * (1 + most));
}

/* In f32 there is a kernel, in f64 the composition. */
static void gradients_are_those_of_the_composition(void **state) {
    static const call calls[] = {
        {4, {2, 3, 70, 16}, {2, 3, 70, 16}, {2, 3, 70, 16}, false, false},
        {4, {1, 4, 33, 8}, {1, 2, 40, 8}, {1, 2, 40, 12}, true, false},
        {3, {2, 20, 8}, {2, 9, 8}, {2, 9, 8}, false, true},
        {5, {2, 2, 4, 12, 4}, {2, 2, 2, 12, 4}, {2, 2, 2, 12, 4}, true, true},
    };
    (void)state;
    for (size_t i = 0; i < TN_COUNT(calls); i++)
        for (int again = 0; again < 2; again++) {
            TN_SCOPE;
            tn_tensor *narrow[INPUTS], *wide[INPUTS];
            run_call(&calls[i], TN_F32, again, narrow);
            run_call(&calls[i], TN_F64, again, wide);
            for (int k = 0; k < INPUTS; k++)
                are_close(narrow[k], wide[k]);
        }
}

/* ---- written by hand --------------------------------------------------------------------------------------------- */

typedef enum way { PLAIN, DIVIDED, MASKED, FILLED, HELD, WAYS } way;

/* Attention as its users write it. HELD: the weights are kept. */
static tn_tensor *written(way how, const tn_tensor *q, const tn_tensor *k, const tn_tensor *v, tn_tensor **weights) {
    enum { N = 40 };
    tn_tensor *result = NULL;
    TN_SCOPE;
    tn_tensor *scores = tn_matmul(q, tn_transpose(k, -2, -1));
    tn_tensor *later = tn_gt(tn_arange(0, N, 1, TN_I64), tn_unsqueeze(tn_arange(0, N, 1, TN_I64), 1));
    scores = how == DIVIDED ? tn_div(scores, tn_scalar(4)) : tn_mul(tn_scalar(0.25), scores);
    if (how == MASKED)
        scores = tn_add(tn_masked_fill(tn_zeros((int64_t[]){N, N}, 2, TN_F32), later, -INFINITY), scores);
    if (how == FILLED) scores = tn_masked_fill(scores, later, -INFINITY);
    tn_tensor *w = tn_softmax(scores, -1);
    result = tn_keep(how == DIVIDED ? tn_bmm(w, v) : tn_matmul(w, v));
    if (how == HELD) *weights = tn_keep(w);
    return result;
}

static void compare(way how, const tn_tensor *want, const tn_tensor *got) {
    double far = tn_item(tn_amax(tn_abs(tn_sub(want, got)), NULL, 0, false));
    if (how == HELD)
        assert_true(far < 1e-6);
    else
        assert_true(far == 0);
}

static void check_way(way how) {
    static const int64_t dims[] = {3, 40, 16};
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    o.is_causal = how == MASKED || how == FILLED;
    tn_tensor *in[3], *y[2], *grads[2][3], *weights = NULL;
    for (int i = 0; i < 3; i++) {
        in[i] = random_tensor(dims, 3, 0, TN_F32, (uint64_t)i + 1);
        assert_ok(tn_set_requires_grad(in[i], true));
    }
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        y[by_hand] = by_hand ? written(how, in[0], in[1], in[2], &weights)
                             : tn_scaled_dot_product_attention(in[0], in[1], in[2], NULL, &o);
        tn_tensor *loss = tn_sum(tn_mul(y[by_hand], y[by_hand]), NULL, 0, false);
        assert_ok(tn_gradients(&loss, 1, NULL, in, 3, false, grads[by_hand]));
        assert_ok(tn_eval(grads[by_hand], 3));
    }
    char *plan = tn_explain_last();
    assert_non_null(plan);
    assert_int_equal(strstr(plan, "attention_dense ") != NULL, how != HELD);
    assert_int_equal(strstr(plan, "attention_dense_gradient ") != NULL, how != HELD);
    tn_text_free(plan);
    compare(how, y[0], y[1]);
    for (int i = 0; i < 3; i++)
        compare(how, grads[0][i], grads[1][i]);
    tn_free(weights);
}

static void attention_written_by_hand_is_recognised(void **state) {
    (void)state;
    for (way how = PLAIN; how < WAYS; how++) {
        TN_SCOPE;
        check_way(how);
    }
}

/* What scales and masks may do to the product of q and k: nothing is left of it, or it is spread by the mask. */
typedef enum twist { NOTHING_LEFT, SPREAD_OVER_QUERIES, SPREAD_OVER_KEYS, TWISTS } twist;

static tn_tensor *twisted(twist how, tn_tensor *const in[3], const tn_tensor *mask) {
    const tn_tensor *q = how == SPREAD_OVER_QUERIES ? tn_slice(in[0], -2, 0, 1, 1) : in[0];
    const tn_tensor *k = how == SPREAD_OVER_KEYS ? tn_slice(in[1], -2, 0, 1, 1) : in[1];
    tn_tensor *scores = tn_matmul(q, tn_transpose(k, -2, -1));
    scores = how == NOTHING_LEFT ? tn_mul(scores, tn_scalar(0)) : tn_add(scores, mask);
    return tn_matmul(tn_softmax(scores, -1), in[2]);
}

/* In f32 what could be attention, in f64 what is written. */
static void twisted_attention_is_what_is_written(void **state) {
    (void)state;
    static const int64_t dims[] = {2, 12, 4}, mask_dims[] = {12, 12};
    for (twist how = 0; how < TWISTS; how++) {
        TN_SCOPE;
        tn_tensor *grads[2][3];
        for (int wide = 0; wide < 2; wide++) {
            tn_dtype dtype = wide ? TN_F64 : TN_F32;
            tn_tensor *in[3], *y = NULL, *mask = random_tensor(mask_dims, 2, 0, dtype, 4);
            for (int i = 0; i < 3; i++) {
                in[i] = random_tensor(dims, 3, 0, dtype, (uint64_t)i + 1);
                assert_ok(tn_set_requires_grad(in[i], true));
            }
            {
                TN_SCOPE;
                y = tn_keep(twisted(how, in, mask));
            }
            tn_tensor *loss = tn_sum(tn_mul(y, y), NULL, 0, false);
            assert_ok(tn_gradients(&loss, 1, NULL, in, 3, false, grads[wide]));
            assert_ok(tn_eval(grads[wide], 3));
        }
        for (int i = 0; i < 3; i++)
            are_close(grads[0][i], grads[1][i]);
    }
}

/* masked_fill takes the place of a score, whatever that is; k holds a NaN in a key that nobody sees. */
static void what_is_filled_hides_even_nan(void **state) {
    (void)state;
    static const int64_t dims[] = {2, 12, 4};
    TN_SCOPE;
    tn_tensor *in[3], *y = NULL;
    for (int i = 0; i < 3; i++)
        in[i] = random_tensor(dims, 3, 0, TN_F32, (uint64_t)i + 1);
    tn_tensor *key = tn_eq(tn_arange(0, 12, 1, TN_I64), tn_scalar(5));
    in[1] = tn_masked_fill(in[1], tn_unsqueeze(key, 1), NAN);
    assert_ok(tn_eval(&in[1], 1));
    {
        TN_SCOPE;
        tn_tensor *scores = tn_masked_fill(tn_matmul(in[0], tn_transpose(in[1], -2, -1)), key, -INFINITY);
        y = tn_keep(tn_matmul(tn_softmax(scores, -1), in[2]));
    }
    assert_ok(tn_eval(&y, 1));
    char *plan = tn_explain_last();
    assert_non_null(plan);
    assert_non_null(strstr(plan, "attention_dense "));
    tn_text_free(plan);
    assert_true(isfinite(tn_item(tn_sum(y, NULL, 0, false))));
}

/* A query that is NaN sees keys: 0 would hide the fault. */
static void a_query_that_is_nan_yields_nan(void **state) {
    (void)state;
    enum { TOKENS = 60, WIDTH = 32 };
    static const int64_t dims[] = {1, TOKENS, WIDTH};
    static float y[TOKENS][WIDTH];
    TN_SCOPE;
    tn_scaled_dot_product_attention_options o = TN_SCALED_DOT_PRODUCT_ATTENTION_DEFAULTS;
    tn_tensor *places = tn_arange(0, TOKENS, 1, TN_I64), *rows = tn_unsqueeze(places, 1), *in[3];
    for (int i = 0; i < 3; i++)
        in[i] = random_tensor(dims, 3, 0, TN_F32, (uint64_t)i + 1);
    tn_tensor *nan = tn_eq(rows, tn_scalar(5)), *seen = tn_logical_and(tn_ge(rows, places), tn_ne(rows, tn_scalar(9)));
    in[0] = tn_masked_fill(in[0], nan, NAN);
    assert_ok(tn_read(tn_scaled_dot_product_attention(in[0], in[1], in[2], seen, &o), y, sizeof y));
    for (int i = 0; i < TOKENS; i++)
        assert_true(i == 5 ? isnan(y[i][0]) : i == 9 ? y[i][0] == 0 : isfinite(y[i][0]));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_those_of_the_definition),
                                       cmocka_unit_test(chunks_that_a_mask_hides_are_skipped),
                                       cmocka_unit_test(gradients_are_those_of_the_composition),
                                       cmocka_unit_test(attention_written_by_hand_is_recognised),
                                       cmocka_unit_test(twisted_attention_is_what_is_written),
                                       cmocka_unit_test(what_is_filled_hides_even_nan),
                                       cmocka_unit_test(a_query_that_is_nan_yields_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
