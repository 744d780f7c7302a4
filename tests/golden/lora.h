/* lora.h — five steps of LoRA by transformers and peft; written by tools/pytorch/torch_lora.py. */

enum { LORA_RANK = 4, LORA_ALPHA = 8, LORA_STEPS = 5, LORA_TEXTS = 3 };
static const double LORA_RATE = 0.01;
static const int64_t lora_lengths[] = {20, 13, 7}, lora_answers[] = {9, 4, 1};

typedef struct lora_tensor {
    const char *name;
    int rank;
    int64_t shape[3];
    double sum; /* of an adapter: of absolute values after the steps */
} lora_tensor;

typedef struct lora_row {
    const char *name, *config, *targets;
    double losses[5], norms[5];
    int weight_count, adapter_count;
    const lora_tensor *weights, *adapter;
} lora_row;

static const lora_tensor llama_weights[] = {
    {"lm_head.weight", 2, {64, 32}, 0},
    {"model.embed_tokens.weight", 2, {64, 32}, 0},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.0.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.1.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.norm.weight", 1, {32}, 0},
};
static const lora_tensor llama_adapter[] = {
    {"base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", 2, {4, 48}, 13.0720739},
    {"base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", 2, {32, 4}, 8.36250822},
    {"base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight", 2, {4, 32}, 7.67177655},
    {"base_model.model.model.layers.0.mlp.gate_proj.lora_B.weight", 2, {48, 4}, 12.6528758},
    {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", 2, {4, 32}, 8.84801157},
    {"base_model.model.model.layers.0.mlp.up_proj.lora_B.weight", 2, {48, 4}, 11.3778876},
    {"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", 2, {4, 32}, 9.25490738},
    {"base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight", 2, {16, 4}, 4.30324473},
    {"base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight", 2, {4, 32}, 7.86780815},
    {"base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight", 2, {32, 4}, 7.81120133},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 9.25527555},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 8.11927694},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.52976003},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.64066833},
    {"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", 2, {4, 48}, 13.0991346},
    {"base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", 2, {32, 4}, 8.43788435},
    {"base_model.model.model.layers.1.mlp.gate_proj.lora_A.weight", 2, {4, 32}, 8.35847213},
    {"base_model.model.model.layers.1.mlp.gate_proj.lora_B.weight", 2, {48, 4}, 13.0476338},
    {"base_model.model.model.layers.1.mlp.up_proj.lora_A.weight", 2, {4, 32}, 8.52343171},
    {"base_model.model.model.layers.1.mlp.up_proj.lora_B.weight", 2, {48, 4}, 12.3611788},
    {"base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight", 2, {4, 32}, 8.92471487},
    {"base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", 2, {16, 4}, 4.29853305},
    {"base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight", 2, {4, 32}, 7.76158329},
    {"base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight", 2, {32, 4}, 8.58641948},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 8.48365146},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 7.64426737},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.09119877},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.07908387},
};
static const lora_tensor qwen2_weights[] = {
    {"model.embed_tokens.weight", 2, {64, 32}, 0},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.0.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.self_attn.k_proj.bias", 1, {16}, 0},
    {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.q_proj.bias", 1, {32}, 0},
    {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.v_proj.bias", 1, {16}, 0},
    {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.1.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.self_attn.k_proj.bias", 1, {16}, 0},
    {"model.layers.1.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.q_proj.bias", 1, {32}, 0},
    {"model.layers.1.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.v_proj.bias", 1, {16}, 0},
    {"model.layers.1.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.norm.weight", 1, {32}, 0},
};
static const lora_tensor qwen2_adapter[] = {
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 9.35707331},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 8.22472908},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.28939038},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.41585718},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 8.45838183},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 7.66671143},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.77212018},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.62979792},
};
static const lora_tensor gemma2_weights[] = {
    {"model.embed_tokens.weight", 2, {64, 32}, 0},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.0.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.post_feedforward_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.pre_feedforward_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.1.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.post_feedforward_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.pre_feedforward_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.norm.weight", 1, {32}, 0},
};
static const lora_tensor gemma2_adapter[] = {
    {"base_model.model.model.layers.0.mlp.down_proj.lora_A.weight", 2, {4, 48}, 13.521119},
    {"base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", 2, {32, 4}, 8.46846507},
    {"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", 2, {4, 32}, 7.49600807},
    {"base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight", 2, {16, 4}, 4.28310148},
    {"base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight", 2, {4, 32}, 8.6895836},
    {"base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight", 2, {32, 4}, 7.99921427},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 8.40131598},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 8.82021249},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.24372865},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.11736821},
    {"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", 2, {4, 48}, 13.2151753},
    {"base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", 2, {32, 4}, 8.0184058},
    {"base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight", 2, {4, 32}, 8.30560897},
    {"base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", 2, {16, 4}, 4.4709401},
    {"base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight", 2, {4, 32}, 8.5700862},
    {"base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight", 2, {32, 4}, 7.78587321},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 8.21831118},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 8.76432474},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.48578831},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.42100698},
};
static const lora_tensor phi3_weights[] = {
    {"lm_head.weight", 2, {64, 32}, 0},
    {"model.embed_tokens.weight", 2, {64, 32}, 0},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.0.mlp.gate_up_proj.weight", 2, {96, 32}, 0},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.qkv_proj.weight", 2, {64, 32}, 0},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.1.mlp.gate_up_proj.weight", 2, {96, 32}, 0},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.qkv_proj.weight", 2, {64, 32}, 0},
    {"model.norm.weight", 1, {32}, 0},
};
static const lora_tensor phi3_adapter[] = {
    {"base_model.model.model.layers.0.mlp.gate_up_proj.lora_A.weight", 2, {4, 32}, 8.76824435},
    {"base_model.model.model.layers.0.mlp.gate_up_proj.lora_B.weight", 2, {96, 4}, 24.7540592},
    {"base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight", 2, {4, 32}, 8.07567972},
    {"base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight", 2, {64, 4}, 17.2941844},
    {"base_model.model.model.layers.1.mlp.gate_up_proj.lora_A.weight", 2, {4, 32}, 8.63796141},
    {"base_model.model.model.layers.1.mlp.gate_up_proj.lora_B.weight", 2, {96, 4}, 24.1371383},
    {"base_model.model.model.layers.1.self_attn.qkv_proj.lora_A.weight", 2, {4, 32}, 8.43783663},
    {"base_model.model.model.layers.1.self_attn.qkv_proj.lora_B.weight", 2, {64, 4}, 17.1716118},
};
static const lora_tensor gpt2_weights[] = {
    {"transformer.h.0.attn.c_attn.bias", 1, {96}, 0},
    {"transformer.h.0.attn.c_attn.weight", 2, {32, 96}, 0},
    {"transformer.h.0.attn.c_proj.bias", 1, {32}, 0},
    {"transformer.h.0.attn.c_proj.weight", 2, {32, 32}, 0},
    {"transformer.h.0.ln_1.bias", 1, {32}, 0},
    {"transformer.h.0.ln_1.weight", 1, {32}, 0},
    {"transformer.h.0.ln_2.bias", 1, {32}, 0},
    {"transformer.h.0.ln_2.weight", 1, {32}, 0},
    {"transformer.h.0.mlp.c_fc.bias", 1, {128}, 0},
    {"transformer.h.0.mlp.c_fc.weight", 2, {32, 128}, 0},
    {"transformer.h.0.mlp.c_proj.bias", 1, {32}, 0},
    {"transformer.h.0.mlp.c_proj.weight", 2, {128, 32}, 0},
    {"transformer.h.1.attn.c_attn.bias", 1, {96}, 0},
    {"transformer.h.1.attn.c_attn.weight", 2, {32, 96}, 0},
    {"transformer.h.1.attn.c_proj.bias", 1, {32}, 0},
    {"transformer.h.1.attn.c_proj.weight", 2, {32, 32}, 0},
    {"transformer.h.1.ln_1.bias", 1, {32}, 0},
    {"transformer.h.1.ln_1.weight", 1, {32}, 0},
    {"transformer.h.1.ln_2.bias", 1, {32}, 0},
    {"transformer.h.1.ln_2.weight", 1, {32}, 0},
    {"transformer.h.1.mlp.c_fc.bias", 1, {128}, 0},
    {"transformer.h.1.mlp.c_fc.weight", 2, {32, 128}, 0},
    {"transformer.h.1.mlp.c_proj.bias", 1, {32}, 0},
    {"transformer.h.1.mlp.c_proj.weight", 2, {128, 32}, 0},
    {"transformer.ln_f.bias", 1, {32}, 0},
    {"transformer.ln_f.weight", 1, {32}, 0},
    {"transformer.wpe.weight", 2, {64, 32}, 0},
    {"transformer.wte.weight", 2, {64, 32}, 0},
};
static const lora_tensor gpt2_adapter[] = {
    {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", 2, {4, 32}, 8.87118168},
    {"base_model.model.transformer.h.0.attn.c_attn.lora_B.weight", 2, {96, 4}, 24.8171369},
    {"base_model.model.transformer.h.0.attn.c_proj.lora_A.weight", 2, {4, 32}, 7.55177425},
    {"base_model.model.transformer.h.0.attn.c_proj.lora_B.weight", 2, {32, 4}, 8.36466966},
    {"base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight", 2, {4, 32}, 8.52994748},
    {"base_model.model.transformer.h.0.mlp.c_fc.lora_B.weight", 2, {128, 4}, 35.2943966},
    {"base_model.model.transformer.h.0.mlp.c_proj.lora_A.weight", 2, {4, 128}, 37.4719217},
    {"base_model.model.transformer.h.0.mlp.c_proj.lora_B.weight", 2, {32, 4}, 8.77478355},
    {"base_model.model.transformer.h.1.attn.c_attn.lora_A.weight", 2, {4, 32}, 8.02534192},
    {"base_model.model.transformer.h.1.attn.c_attn.lora_B.weight", 2, {96, 4}, 25.6857278},
    {"base_model.model.transformer.h.1.attn.c_proj.lora_A.weight", 2, {4, 32}, 8.40873979},
    {"base_model.model.transformer.h.1.attn.c_proj.lora_B.weight", 2, {32, 4}, 8.31893094},
    {"base_model.model.transformer.h.1.mlp.c_fc.lora_A.weight", 2, {4, 32}, 7.73090129},
    {"base_model.model.transformer.h.1.mlp.c_fc.lora_B.weight", 2, {128, 4}, 35.4064243},
    {"base_model.model.transformer.h.1.mlp.c_proj.lora_A.weight", 2, {4, 128}, 31.3257477},
    {"base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight", 2, {32, 4}, 7.49041966},
};
static const lora_tensor qwen2moe_weights[] = {
    {"lm_head.weight", 2, {64, 32}, 0},
    {"model.embed_tokens.weight", 2, {64, 32}, 0},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.mlp.experts.0.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.0.mlp.experts.0.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.0.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.1.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.0.mlp.experts.1.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.1.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.2.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.0.mlp.experts.2.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.2.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.3.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.0.mlp.experts.3.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.experts.3.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.0.mlp.gate.weight", 2, {4, 32}, 0},
    {"model.layers.0.mlp.shared_expert.down_proj.weight", 2, {32, 40}, 0},
    {"model.layers.0.mlp.shared_expert.gate_proj.weight", 2, {40, 32}, 0},
    {"model.layers.0.mlp.shared_expert.up_proj.weight", 2, {40, 32}, 0},
    {"model.layers.0.mlp.shared_expert_gate.weight", 2, {1, 32}, 0},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.self_attn.k_proj.bias", 1, {16}, 0},
    {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.q_proj.bias", 1, {32}, 0},
    {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.v_proj.bias", 1, {16}, 0},
    {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.mlp.experts.0.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.1.mlp.experts.0.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.0.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.1.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.1.mlp.experts.1.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.1.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.2.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.1.mlp.experts.2.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.2.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.3.down_proj.weight", 2, {32, 24}, 0},
    {"model.layers.1.mlp.experts.3.gate_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.experts.3.up_proj.weight", 2, {24, 32}, 0},
    {"model.layers.1.mlp.gate.weight", 2, {4, 32}, 0},
    {"model.layers.1.mlp.shared_expert.down_proj.weight", 2, {32, 40}, 0},
    {"model.layers.1.mlp.shared_expert.gate_proj.weight", 2, {40, 32}, 0},
    {"model.layers.1.mlp.shared_expert.up_proj.weight", 2, {40, 32}, 0},
    {"model.layers.1.mlp.shared_expert_gate.weight", 2, {1, 32}, 0},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.self_attn.k_proj.bias", 1, {16}, 0},
    {"model.layers.1.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.q_proj.bias", 1, {32}, 0},
    {"model.layers.1.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.v_proj.bias", 1, {16}, 0},
    {"model.layers.1.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.norm.weight", 1, {32}, 0},
};
static const lora_tensor qwen2moe_adapter[] = {
    {"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", 2, {4, 32}, 7.91449412},
    {"base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight", 2, {16, 4}, 4.08313195},
    {"base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight", 2, {4, 32}, 7.76669241},
    {"base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight", 2, {32, 4}, 8.04675236},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 7.43489403},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 7.7953971},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 9.10384392},
    {"base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 4.55067277},
    {"base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight", 2, {4, 32}, 8.30603545},
    {"base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", 2, {16, 4}, 4.03525086},
    {"base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight", 2, {4, 32}, 8.80183654},
    {"base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight", 2, {32, 4}, 9.04798805},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", 2, {4, 32}, 7.91928324},
    {"base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", 2, {32, 4}, 8.36966879},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight", 2, {4, 32}, 8.59355849},
    {"base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight", 2, {16, 4}, 3.26046519},
};
static const lora_tensor whole_weights[] = {
    {"model.embed_tokens.weight", 2, {64, 32}, 0},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.0.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.mlp.down_proj.weight", 2, {32, 48}, 0},
    {"model.layers.1.mlp.gate_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.mlp.up_proj.weight", 2, {48, 32}, 0},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 0},
    {"model.layers.1.self_attn.k_proj.weight", 2, {16, 32}, 0},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.q_proj.weight", 2, {32, 32}, 0},
    {"model.layers.1.self_attn.v_proj.weight", 2, {16, 32}, 0},
    {"model.norm.weight", 1, {32}, 0},
};
static const lora_tensor whole_adapter[] = {
    {"model.embed_tokens.weight", 2, {64, 32}, 254.04006},
    {"model.layers.0.input_layernorm.weight", 1, {32}, 30.3644193},
    {"model.layers.0.mlp.down_proj.weight", 2, {32, 48}, 192.727991},
    {"model.layers.0.mlp.gate_proj.weight", 2, {48, 32}, 195.356052},
    {"model.layers.0.mlp.up_proj.weight", 2, {48, 32}, 195.802119},
    {"model.layers.0.post_attention_layernorm.weight", 1, {32}, 30.8116973},
    {"model.layers.0.self_attn.k_proj.weight", 2, {16, 32}, 64.7188521},
    {"model.layers.0.self_attn.o_proj.weight", 2, {32, 32}, 130.065046},
    {"model.layers.0.self_attn.q_proj.weight", 2, {32, 32}, 130.683179},
    {"model.layers.0.self_attn.v_proj.weight", 2, {16, 32}, 62.533367},
    {"model.layers.1.input_layernorm.weight", 1, {32}, 33.2010054},
    {"model.layers.1.mlp.down_proj.weight", 2, {32, 48}, 196.025321},
    {"model.layers.1.mlp.gate_proj.weight", 2, {48, 32}, 197.426109},
    {"model.layers.1.mlp.up_proj.weight", 2, {48, 32}, 198.232152},
    {"model.layers.1.post_attention_layernorm.weight", 1, {32}, 32.0726932},
    {"model.layers.1.self_attn.k_proj.weight", 2, {16, 32}, 64.2438402},
    {"model.layers.1.self_attn.o_proj.weight", 2, {32, 32}, 127.788293},
    {"model.layers.1.self_attn.q_proj.weight", 2, {32, 32}, 130.309315},
    {"model.layers.1.self_attn.v_proj.weight", 2, {16, 32}, 64.4318488},
    {"model.norm.weight", 1, {32}, 32.1127893},
};

static const lora_row lora_rows[] = {
    {"llama",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_drop"
     "out\": 0.0, \"bos_token_id\": 1, \"dtype\": \"float32\", \"eos_token_id\": 2, \"head_dim\":"
     " 8, \"hidden_act\": \"silu\", \"hidden_size\": 32, \"initializer_range\": 0.02, \"interme"
     "diate_size\": 48, \"max_position_embeddings\": 128, \"mlp_bias\": false, \"model_type\""
     ": \"llama\", \"num_attention_heads\": 4, \"num_hidden_layers\": 2, \"num_key_value_head"
     "s\": 2, \"pad_token_id\": 0, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-06, \"rope_para"
     "meters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}, \"tie_word_embeddings\":"
     " false, \"transformers_version\": \"5.24.0\", \"use_cache\": true, \"vocab_size\": 64}",
     "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
     {4.28455496, 4.21023989, 4.4839201, 4.42007017, 4.34638691},
     {0.812063813, 0.719343722, 1.0595727, 0.728473008, 0.715329885},
     21, 28, llama_weights, llama_adapter},
    {"qwen2",
     "{\"architectures\": [\"Qwen2ForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\""
     ": 1, \"dtype\": \"float32\", \"eos_token_id\": 2, \"hidden_act\": \"silu\", \"hidden_size\":"
     " 32, \"initializer_range\": 0.02, \"intermediate_size\": 48, \"layer_types\": [\"full_a"
     "ttention\", \"full_attention\"], \"max_position_embeddings\": 128, \"max_window_layers"
     "\": 28, \"model_type\": \"qwen2\", \"num_attention_heads\": 4, \"num_hidden_layers\": 2, "
     "\"num_key_value_heads\": 2, \"pad_token_id\": 0, \"rms_norm_eps\": 1e-06, \"rope_parame"
     "ters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}, \"sliding_window\": null, "
     "\"tie_word_embeddings\": true, \"transformers_version\": \"5.24.0\", \"use_cache\": true"
     ", \"use_sliding_window\": false, \"vocab_size\": 64}",
     "q_proj,v_proj",
     {4.23489189, 4.24005604, 4.3021369, 4.18102932, 4.32020521},
     {0.332491964, 0.478037566, 0.491195858, 0.305842727, 0.378238916},
     26, 8, qwen2_weights, qwen2_adapter},
    {"gemma2",
     "{\"architectures\": [\"Gemma2ForCausalLM\"], \"attention_bias\": false, \"attention_dro"
     "pout\": 0.0, \"attn_logit_softcapping\": 3.0, \"bos_token_id\": 1, \"dtype\": \"float32\""
     ", \"eos_token_id\": 2, \"final_logit_softcapping\": 4.0, \"head_dim\": 8, \"hidden_acti"
     "vation\": \"gelu_pytorch_tanh\", \"hidden_size\": 32, \"initializer_range\": 0.02, \"int"
     "ermediate_size\": 48, \"layer_types\": [\"sliding_attention\", \"full_attention\"], \"ma"
     "x_position_embeddings\": 128, \"model_type\": \"gemma2\", \"num_attention_heads\": 4, \""
     "num_hidden_layers\": 2, \"num_key_value_heads\": 2, \"pad_token_id\": 0, \"query_pre_a"
     "ttn_scalar\": 8, \"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"rope_theta\": 10000.0"
     ", \"rope_type\": \"default\"}, \"sliding_window\": 5, \"tie_word_embeddings\": true, \"tr"
     "ansformers_version\": \"5.24.0\", \"use_bidirectional_attention\": null, \"use_cache\":"
     " true, \"vocab_size\": 64}",
     "q_proj,k_proj,v_proj,o_proj,down_proj",
     {4.77989912, 5.21262121, 4.83937359, 4.64513493, 4.96116877},
     {2.7429359, 2.1942606, 2.08307958, 2.40489173, 2.6297698},
     24, 20, gemma2_weights, gemma2_adapter},
    {"phi3",
     "{\"architectures\": [\"Phi3ForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\":"
     " 1, \"dtype\": \"float32\", \"embd_pdrop\": 0.0, \"eos_token_id\": 2, \"hidden_act\": \"sil"
     "u\", \"hidden_size\": 32, \"initializer_range\": 0.02, \"intermediate_size\": 48, \"max_"
     "position_embeddings\": 128, \"model_type\": \"phi3\", \"num_attention_heads\": 4, \"num_"
     "hidden_layers\": 2, \"num_key_value_heads\": 2, \"original_max_position_embeddings\":"
     " 4096, \"pad_token_id\": 0, \"resid_pdrop\": 0.0, \"rms_norm_eps\": 1e-05, \"rope_param"
     "eters\": {\"partial_rotary_factor\": 1.0, \"rope_theta\": 10000.0, \"rope_type\": \"defa"
     "ult\"}, \"sliding_window\": null, \"tie_word_embeddings\": false, \"transformers_versi"
     "on\": \"5.24.0\", \"use_cache\": true, \"vocab_size\": 64}",
     "qkv_proj,gate_up_proj",
     {4.3321867, 4.35717058, 4.26869249, 4.28654146, 4.32097864},
     {0.481371462, 0.494694322, 0.532342851, 0.582014918, 0.48245725},
     15, 8, phi3_weights, phi3_adapter},
    {"gpt2",
     "{\"activation_function\": \"gelu_new\", \"add_cross_attention\": false, \"architectures"
     "\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.0, \"bos_token_id\": 1, \"dtype\": \"float32\""
     ", \"embd_pdrop\": 0.0, \"eos_token_id\": 2, \"initializer_range\": 0.02, \"layer_norm_e"
     "psilon\": 1e-05, \"model_type\": \"gpt2\", \"n_embd\": 32, \"n_head\": 4, \"n_inner\": null"
     ", \"n_layer\": 2, \"n_positions\": 64, \"pad_token_id\": null, \"reorder_and_upcast_att"
     "n\": false, \"resid_pdrop\": 0.0, \"scale_attn_by_inverse_layer_idx\": false, \"scale_"
     "attn_weights\": true, \"summary_activation\": null, \"summary_first_dropout\": 0.1, \""
     "summary_proj_to_labels\": true, \"summary_type\": \"cls_index\", \"summary_use_proj\": "
     "true, \"tie_word_embeddings\": true, \"transformers_version\": \"5.24.0\", \"use_cache\""
     ": true, \"vocab_size\": 64}",
     "c_attn,c_proj,c_fc",
     {5.77567816, 4.72889996, 4.78664684, 4.66603947, 4.48492336},
     {10.6367521, 6.90214682, 6.43360567, 5.58916283, 3.17191648},
     28, 16, gpt2_weights, gpt2_adapter},
    {"qwen2moe",
     "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_"
     "id\": 1, \"decoder_sparse_step\": 1, \"dtype\": \"float32\", \"eos_token_id\": 2, \"hidden"
     "_act\": \"silu\", \"hidden_size\": 32, \"initializer_range\": 0.02, \"intermediate_size\""
     ": 48, \"layer_types\": [\"full_attention\", \"full_attention\"], \"max_position_embeddi"
     "ngs\": 128, \"max_window_layers\": 28, \"mlp_only_layers\": [], \"model_type\": \"qwen2_"
     "moe\", \"moe_intermediate_size\": 24, \"norm_topk_prob\": false, \"num_attention_heads"
     "\": 4, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 2, \"num_k"
     "ey_value_heads\": 2, \"output_router_logits\": false, \"pad_token_id\": 0, \"qkv_bias\""
     ": true, \"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_"
     "type\": \"default\"}, \"router_aux_loss_coef\": 0.001, \"shared_expert_intermediate_si"
     "ze\": 40, \"sliding_window\": 0, \"tie_word_embeddings\": false, \"transformers_versio"
     "n\": \"5.24.0\", \"use_cache\": true, \"use_sliding_window\": false, \"vocab_size\": 64}",
     "q_proj,k_proj,v_proj,o_proj",
     {4.23428202, 4.36417866, 4.22002411, 4.15481997, 4.21829367},
     {0.726264, 1.23926103, 0.683806181, 0.652658224, 0.849673212},
     55, 16, qwen2moe_weights, qwen2moe_adapter},
    {"whole",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_drop"
     "out\": 0.0, \"bos_token_id\": 1, \"dtype\": \"float32\", \"eos_token_id\": 2, \"head_dim\":"
     " 8, \"hidden_act\": \"silu\", \"hidden_size\": 32, \"initializer_range\": 0.02, \"interme"
     "diate_size\": 48, \"max_position_embeddings\": 128, \"mlp_bias\": false, \"model_type\""
     ": \"llama\", \"num_attention_heads\": 4, \"num_hidden_layers\": 2, \"num_key_value_head"
     "s\": 2, \"pad_token_id\": 0, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-06, \"rope_para"
     "meters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}, \"tie_word_embeddings\":"
     " true, \"transformers_version\": \"5.24.0\", \"use_cache\": true, \"vocab_size\": 64}",
     "",
     {4.20040941, 4.29795504, 4.49207973, 4.42482853, 4.42758512},
     {2.27012205, 2.15778136, 2.47704887, 1.64150465, 1.66036928},
     20, 20, whole_weights, whole_adapter},
};
