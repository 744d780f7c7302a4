/* sides.c — layers of models with an encoder and a decoder: names of their weights, a decoder's states. */
#include "text/sides.h"
#include "trunnion/trunnion.h"

const char *const tn_side_names[] = {"encoder", "decoder"};
const char *const tn_side_parts[PARTS] = {
    [SELF_Q] = "self_attn.q_proj",
    [SELF_K] = "self_attn.k_proj",
    [SELF_V] = "self_attn.v_proj",
    [SELF_O] = "self_attn.out_proj",
    [SELF_NORM] = "self_attn_layer_norm",
    [UP] = "fc1",
    [DOWN] = "fc2",
    [FFN_NORM] = "final_layer_norm",
    [CROSS_Q] = "encoder_attn.q_proj",
    [CROSS_K] = "encoder_attn.k_proj",
    [CROSS_V] = "encoder_attn.v_proj",
    [CROSS_O] = "encoder_attn.out_proj",
    [CROSS_NORM] = "encoder_attn_layer_norm",
};

tn_status tn_side_make_states(side_layer *layers, int64_t count, int64_t context, int64_t heads, int64_t width,
                              int64_t rows) {
    const int64_t shapes[][4] = {{(context + PAGE - 1) / PAGE, heads, PAGE, width}, {1, heads, rows, width}};
    tn_tensor **made = tn_txt_zalloc((size_t)count, 2 * sizeof(tn_tensor *));
    tn_status status = made ? TN_OK : TN_ERR_MEMORY;
    for (int of = KEYS; of < STATES && status == TN_OK; of += 2) {
        TN_SCOPE;
        status = tn_zero_states(shapes[of / 2], 4, TN_F32, made, 2 * (int)count);
        for (int64_t i = 0; i < 2 * count && status == TN_OK; i++)
            layers[i / 2].state[of + i % 2] = tn_retain(made[i]);
    }
    tn_txt_free(made);
    return status;
}

void tn_side_free_states(side_layer *layers, int64_t count) {
    for (int64_t i = 0; layers && i < STATES * count; i++) {
        tn_tensor **state = &layers[i / STATES].state[i % STATES];
        tn_free(*state);
        *state = NULL;
    }
}

void tn_side_free_layers(side_layer *layers, int64_t count) {
    tn_side_free_states(layers, count);
    for (int64_t i = 0; layers && i < PARTS * count; i++)
        tn_hf_free_linear(&layers[i / PARTS].part[i % PARTS]);
    tn_txt_free(layers);
}
