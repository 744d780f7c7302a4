/* sides.c — layers of models with an encoder and a decoder: names of weights, a decoder's states, its next token. */
#include "text/sides.h"

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
    AUTO_TXT_FREE tn_tensor **made = tn_txt_zalloc((size_t)count, 2 * sizeof(tn_tensor *));
    if (!made) return TN_ERR_MEMORY;
    for (int of = KEYS; of < STATES; of += 2) {
        TN_SCOPE;
        TRY(tn_zero_states(shapes[of / 2], 4, TN_F32, made, 2 * (int)count));
        for (int64_t i = 0; i < 2 * count; i++)
            layers[i / 2].state[of + i % 2] = tn_retain(made[i]);
    }
    return TN_OK;
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

tn_status tn_side_step(side_token *t, side_record *record, void *model, tn_tensor *const *inputs, int count,
                       int64_t position, int64_t vocabulary, const float **out) {
    TN_SCOPE;
    tn_tensor *logits = NULL;
    tn_free(t->shown); /* its memory is for the next ones */
    t->shown = NULL;
    if (t->graph) {
        TRY(tn_graph_set_runtime_scalar(t->graph, 0, (double)position));
        TRY(tn_graph_launch(t->graph, inputs, &logits));
    } else {
        TN_NO_GRAD;
        TRY(tn_capture_begin());
        logits = record(model, inputs, tn_runtime_scalar_int(position));
        TRY(tn_capture_end(inputs, count, &logits, 1, &t->graph));
    }
    return tn_txt_show(logits, t->logits, vocabulary, &t->shown, out);
}

void tn_side_free_graph(side_token *t) {
    tn_graph_free(t->graph);
    t->graph = NULL;
}

void tn_side_free_token(side_token *t) {
    tn_free(t->shown);
    tn_graph_free(t->graph);
    tn_txt_free(t->logits);
}
