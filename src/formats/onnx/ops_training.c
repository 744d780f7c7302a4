/* ops_training.c — ai.onnx.preview.training: steps of optimisers, the rows of onnx_training_ops.
 *
 * Inputs are the rate R, the count of updates T, then for n tensors their values, their gradients and each of their
 * states in turn; outputs are the new values and states in the same order. Each tensor is updated by itself. */
#include "formats/onnx/operator_support.h"

/* One tensor's step; the rate and the count are tensors of one element. */
typedef struct step {
    const tn_tensor *rate, *count, *x, *gradient, *state[2];
    tn_tensor *new_x, *new_state[2];
} step;

/* With the gradient of ½ · norm_coefficient · |x|². */
static tn_tensor *regularized(const onnx_call *c, const step *s) {
    return tn_add(tn_mul_scalar(s->x, onnx_float(c, "norm_coefficient", 0)), s->gradient);
}

static void adagrad(const onnx_call *c, step *s) {
    tn_tensor *g = regularized(c, s), *count = tn_cast(s->count, tn_dtype_of(s->rate));
    tn_tensor *slowed = tn_add_scalar(tn_mul_scalar(count, onnx_float(c, "decay_factor", 0)), 1);
    s->new_state[0] = tn_add(s->state[0], tn_square(g));
    tn_tensor *root = tn_add_scalar(tn_sqrt(s->new_state[0]), onnx_float(c, "epsilon", 1e-6F));
    s->new_x = tn_sub(s->x, tn_div(tn_mul(tn_div(s->rate, slowed), g), root));
}

/* 1 − base^count */
static tn_tensor *correction(double base, const tn_tensor *count) {
    return tn_rsub_scalar(tn_exp2(tn_mul(count, tn_log2(onnx_number(base, count)))), 1);
}

static void adam(const onnx_call *c, step *s) {
    double alpha = onnx_float(c, "alpha", 0.9F), beta = onnx_float(c, "beta", 0.999F);
    double after = onnx_float(c, "norm_coefficient_post", 0);
    tn_tensor *g = regularized(c, s), *count = tn_cast(s->count, tn_dtype_of(s->rate));
    s->new_state[0] = tn_add(tn_mul_scalar(s->state[0], alpha), tn_mul_scalar(g, 1 - alpha));
    s->new_state[1] = tn_add(tn_mul_scalar(s->state[1], beta), tn_mul_scalar(tn_square(g), 1 - beta));
    tn_tensor *root = tn_add_scalar(tn_sqrt(s->new_state[1]), onnx_float(c, "epsilon", 1e-6F));
    tn_tensor *adjusted = tn_div(tn_mul(s->rate, tn_sqrt(correction(beta, count))), correction(alpha, count));
    tn_tensor *rate = tn_where(tn_gt_scalar(count, 0), adjusted, s->rate);
    s->new_x = tn_mul_scalar(tn_sub(s->x, tn_div(tn_mul(rate, s->new_state[0]), root)), 1 - after);
}

static void momentum(const onnx_call *c, step *s) {
    double alpha = onnx_float(c, "alpha", 0), beta = onnx_float(c, "beta", 0);
    tn_tensor *g = regularized(c, s), *one = onnx_number(1, g);
    tn_tensor *weight = tn_where(tn_gt_scalar(s->count, 0), onnx_number(beta, g), one);
    s->new_state[0] = tn_add(tn_mul_scalar(s->state[0], alpha), tn_mul(weight, g));
    bool nesterov = onnx_is(onnx_string(c, "mode", "standard"), "nesterov");
    tn_tensor *way = nesterov ? tn_add(g, tn_mul_scalar(s->new_state[0], alpha)) : s->new_state[0];
    s->new_x = tn_sub(s->x, tn_mul(s->rate, way));
}

enum { ADAGRAD, ADAM, MOMENTUM };
static const struct {
    void (*step)(const onnx_call *c, step *s);
    int states;
} optimisers[] = {[ADAGRAD] = {adagrad, 1}, [ADAM] = {adam, 2}, [MOMENTUM] = {momentum, 1}};

static tn_status optimise(onnx_call *c) {
    int states = optimisers[c->row->with].states, each = 2 + states, many = (c->in_count - 2) / each;
    if (many < 1 || c->in_count != 2 + many * each)
        return onnx_refuse(c, "%d inputs; rate, count, and %d for each tensor are needed", c->in_count, each);
    for (int i = 0; i < many; i++) {
        step s = {0};
        TRY(onnx_need(c, 0, &s.rate));
        TRY(onnx_need(c, 1, &s.count));
        TRY(onnx_need(c, 2 + i, &s.x));
        TRY(onnx_need(c, 2 + many + i, &s.gradient));
        for (int k = 0; k < states; k++)
            TRY(onnx_need(c, 2 + (2 + k) * many + i, &s.state[k]));
        optimisers[c->row->with].step(c, &s);
        TRY(onnx_put(c, i, s.new_x));
        for (int k = 0; k < states; k++)
            TRY(onnx_put(c, (1 + k) * many + i, s.new_state[k]));
    }
    return TN_OK;
}

// clang-format off
const onnx_op_row onnx_training_ops[] = {
    {"Adagrad", 1, optimise, .with = ADAGRAD},
    {"Adam", 1, optimise, .with = ADAM},
    {"Momentum", 1, optimise, .with = MOMENTUM},
    {.name = NULL},
};
// clang-format on
