/* llm_mixture.c — mixtures of experts: a router gives each token some of the layer's feed-forward networks. */
#include <math.h>

#include "text/llm_model.h"

/* The expert that all tokens have, weighted by its gate value for each token where it has one. */
static tn_tensor *share(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight, *router = weight[SLOT_SHARED_ROUTER];
    tn_tensor *up = tn_llm_product(w, layer, SLOT_SHARED_UP, x, NULL);
    tn_tensor *gate = weight[SLOT_SHARED_GATE] ? tn_llm_product(w, layer, SLOT_SHARED_GATE, x, NULL)
                                               : tn_llm_split_gate(&up, 1, c->size[SIZE_SHARED]);
    tn_tensor *inner = tn_mul(c->activation(gate), up);
    tn_tensor *y = tn_llm_product(w, layer, SLOT_SHARED_DOWN, inner, NULL);
    if (!router) return y;
    tn_tensor *wish = tn_linear(x, tn_reshape(router, TN_DIMS(1, c->size[SIZE_HIDDEN])), NULL);
    return tn_mul(tn_sigmoid(wish), y);
}

/* What an expert's first product, [tokens, width] or [tokens, choices, width], becomes before the second one. */
static tn_tensor *activate(const llm_config *c, tn_tensor *gate, tn_tensor *up) {
    if (!c->family->forward.clamped_gate) return tn_mul(c->activation(gate), up);
    gate = tn_clamp(gate, -INFINITY, c->experts.gate_limit);
    up = tn_clamp(up, -c->experts.gate_limit, c->experts.gate_limit);
    return tn_mul(tn_add_scalar(up, 1), tn_mul(gate, tn_sigmoid(tn_mul_scalar(gate, c->experts.gate_slope))));
}

/* Of such a product: the gate, which is returned, and what it gates. */
static tn_tensor *part_gate(const llm_config *c, tn_tensor **up) {
    int64_t width = c->size[SIZE_EXPERT];
    int rank = tn_rank(*up);
    if (!c->family->forward.clamped_gate) return tn_llm_split_gate(up, rank - 1, width);
    tn_tensor *pairs = rank == 2 ? tn_reshape(*up, TN_DIMS(tn_size(*up, 0), width, 2))
                                 : tn_reshape(*up, TN_DIMS(tn_size(*up, 0), tn_size(*up, 1), width, 2));
    *up = tn_select(pairs, rank, 1);
    return tn_select(pairs, rank, 0);
}

static tn_tensor *biased(tn_tensor *x, const tn_tensor *bias, const tn_tensor *chosen) {
    return bias ? tn_add(x, tn_embedding(chosen, bias)) : x;
}

/* The sum over all experts, each times what the router gives it: 0 for those that are not chosen.
 *   by, chosen: [n, choices].
 * Costs experts / choices times as much as the chosen ones, and has gradients. */
static tn_tensor *mix_all(const llm_config *c, tn_tensor *const *weight, const tn_tensor *x, const tn_tensor *chosen,
                          const tn_tensor *by) {
    tn_tensor *y = NULL;
    for (int64_t e = 0; e < c->size[SIZE_EXPERTS]; e++) {
        tn_tensor *share = tn_sum(tn_mul(by, tn_eq_scalar(chosen, (double)e)), (int64_t[]){1}, 1, true);
        tn_tensor *up_bias = weight[SLOT_EXPERT_UP_BIAS] ? tn_select(weight[SLOT_EXPERT_UP_BIAS], 0, e) : NULL;
        tn_tensor *down_bias = weight[SLOT_EXPERT_DOWN_BIAS] ? tn_select(weight[SLOT_EXPERT_DOWN_BIAS], 0, e) : NULL;
        tn_tensor *up = tn_linear(x, tn_select(weight[SLOT_EXPERT_UP], 0, e), up_bias);
        tn_tensor *gate = c->family->forward.fused_gate ? part_gate(c, &up)
                                                        : tn_linear(x, tn_select(weight[SLOT_EXPERT_GATE], 0, e), NULL);
        tn_tensor *inner = activate(c, gate, up);
        tn_tensor *made = tn_mul(tn_linear(inner, tn_select(weight[SLOT_EXPERT_DOWN], 0, e), down_bias), share);
        y = y ? tn_add(y, made) : made;
    }
    return y;
}

/* -inf for experts [n, experts] outside the best groups. A group is as good as the sum of its two best experts, or as
 * its best one. Source: DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2; transformers. */
static tn_tensor *limit_to_groups(const llm_config *c, tn_tensor *wishes) {
    int64_t n = tn_size(wishes, 0), each = c->size[SIZE_EXPERTS] / c->experts.groups;
    tn_tensor *groups = tn_reshape(wishes, TN_DIMS(n, c->experts.groups, each));
    tn_tensor *best = tn_sum(tn_topk(groups, c->family->experts.by_sigmoid ? 2 : 1, 2, true), (int64_t[]){2}, 1, false);
    tn_tensor *chosen = tn_unsqueeze(tn_topk_indices(best, c->experts.chosen_groups, 1, true), 2);
    tn_tensor *numbers = tn_arange(0, (double)c->experts.groups, 1, TN_I64);
    tn_tensor *other = tn_eq_scalar(tn_sum(tn_cast(tn_eq(chosen, numbers), TN_F32), (int64_t[]){1}, 1, false), 0);
    return tn_reshape(tn_masked_fill(groups, tn_unsqueeze(other, 2), -INFINITY), TN_DIMS(n, c->size[SIZE_EXPERTS]));
}

/* The best of `left`, scores [n, experts] without an expert that has been chosen, and its share of the softmax over
 * those that are nearly as good. */
static tn_tensor *take_best(const llm_config *c, const tn_tensor *scores, const tn_tensor *left, tn_tensor **which) {
    tn_tensor *best = tn_amax(left, (int64_t[]){1}, 1, true);
    tn_tensor *distance = tn_div(tn_sub(best, scores), tn_maximum(tn_abs(scores), best));
    tn_tensor *far = tn_gt_scalar(distance, 2 * c->experts.jitter);
    *which = tn_topk_indices(left, 1, 1, true);
    return tn_gather(tn_softmax(tn_masked_fill(left, far, -INFINITY), -1), 1, *which);
}

/* Two experts, each weighted alone. Source: Liu et al. 2024, "GRIN: GRadient-INformed MoE", as transformers has it. */
static tn_tensor *choose_sparsely(const llm_config *c, const tn_tensor *scores, tn_tensor **chosen) {
    tn_tensor *which[2], *by[2];
    by[0] = take_best(c, scores, scores, &which[0]);
    tn_tensor *numbers = tn_arange(0, (double)c->size[SIZE_EXPERTS], 1, TN_I64);
    by[1] = take_best(c, scores, tn_masked_fill(scores, tn_eq(numbers, which[0]), -INFINITY), &which[1]);
    *chosen = tn_cat(which, 2, 1);
    return tn_cat(by, 2, 1);
}

/* The experts of each token, *chosen [n, choices], and their weights. */
static tn_tensor *choose(const llm_config *c, tn_tensor *const *weight, const tn_tensor *x, tn_tensor **chosen) {
    tn_tensor *likes = tn_linear(x, weight[SLOT_ROUTER], weight[SLOT_ROUTER_BIAS]);
    if (c->family->experts.sparse_mixer) return choose_sparsely(c, likes, chosen);
    likes = c->family->experts.by_sigmoid ? tn_sigmoid(likes) : tn_softmax(likes, -1);
    tn_tensor *wishes = weight[SLOT_CHOICE_BIAS] ? tn_add(likes, weight[SLOT_CHOICE_BIAS]) : likes;
    if (c->experts.groups > 0) wishes = limit_to_groups(c, wishes);
    *chosen = tn_topk_indices(wishes, c->experts.choices, 1, true);
    tn_tensor *by = wishes == likes ? tn_topk(likes, c->experts.choices, 1, true) : tn_gather(likes, 1, *chosen);
    if (c->experts.whole_choice) by = tn_div(by, tn_sum(by, (int64_t[]){1}, 1, true));
    return c->experts.scale == 1 ? by : tn_mul_scalar(by, c->experts.scale);
}

/* Each token goes through the experts that its router likes best, and what they make is added by how much it likes
 * them. No matrix has columns to be looked at: they differ from expert to expert. */
tn_tensor *tn_llm_mix(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                      const tn_tensor *x) {
    tn_tensor *const *weight = w->layers[layer].weight, *y, *chosen;
    tn_tensor *by = choose(c, weight, x, &chosen);
    if (in->trains) {
        y = mix_all(c, weight, x, chosen, by);
    } else {
        tn_tensor *up = tn_linear_experts(x, weight[SLOT_EXPERT_UP], chosen);
        up = biased(up, weight[SLOT_EXPERT_UP_BIAS], chosen);
        tn_tensor *gate =
            c->family->forward.fused_gate ? part_gate(c, &up) : tn_linear_experts(x, weight[SLOT_EXPERT_GATE], chosen);
        tn_tensor *made = tn_linear_experts(activate(c, gate, up), weight[SLOT_EXPERT_DOWN], chosen);
        made = biased(made, weight[SLOT_EXPERT_DOWN_BIAS], chosen);
        y = tn_sum(tn_mul(made, tn_unsqueeze(by, 2)), (int64_t[]){1}, 1, false);
    }
    return weight[SLOT_SHARED_UP] ? tn_add(y, share(c, w, layer, x)) : y;
}
