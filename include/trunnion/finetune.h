/* finetune.h — fine-tuning of language models: LoRA adapters or all weights, by gradients of the loss on answers.
 *
 * Part of libtrunnion-text; it uses only libtrunnion's public interface. A trainer works on an open tn_llm. With LoRA
 * (Hu et al. 2021) each chosen matrix W [out, in] gets two small trained matrices, and its product becomes
 * x·Wᵀ + alpha / rank · (x·Aᵀ)·Bᵀ, while W stays as in the file, also quantized (QLoRA). With rank 0 all weights are
 * trained, in f32. The tn_llm computes with the trained weights at once, so it can generate samples between steps.
 *
 *   tn_llm_open("model.gguf", NULL, &m);
 *   tn_finetune_new(m, NULL, &t);
 *   for (…) tn_finetune_step(t, examples, count, &result);
 *   tn_finetune_save_adapter(t, "adapter");                 // PEFT's format; tn_llm_options.adapter loads it
 *   tn_llm_save_model(m, "merged.gguf");                    // llm.h
 *   tn_finetune_free(t); tn_llm_close(m);
 *
 * Threads: one at a time for the trainer and its model. */
#ifndef TRUNNION_FINETUNE_H
#define TRUNNION_FINETUNE_H

#include "trunnion/amp.h"
#include "trunnion/distributed.h"
#include "trunnion/llm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_finetune tn_finetune;

typedef struct tn_finetune_options {
    size_t struct_size;
    int64_t rank; /* of LoRA; default 8; 0: all weights are trained */
    double alpha; /* of LoRA; default 16 */
    /* Matrices that get an adapter, separated by commas: the last part of their names in Hugging Face folders, with or
     * without "_proj": "q,v" or "q_proj,v_proj", "c_attn". Default NULL: all of the layers, but experts and routers. */
    const char *targets;
    tn_adam_options adam; /* of AdamW; default lr 2e-4, weight_decay 0, max_grad_norm 1; groups are not supported */
    /* If a batch runs out of memory (tn_device_set_pool_max limits it), it is computed again with recomputation
     * (tn_set_auto_recompute), which keeps its bits, then in passes of a half, a quarter … of the context, down to one
     * text; the first that fits stays. Default false. */
    bool save_memory;
    /* Several processes: each gives the same texts to tn_finetune_step and tn_finetune_backward, computes its parts of
     * them, and gets the gradients of all. The trainer does not own the group. Default NULL. */
    tn_group *group;
    /* The texts of a step are divided into so many parts, which are computed one by one and their gradients added in
     * this order: bits depend on the number of parts, not of processes. 0 to 256; default 0: the size of the group. */
    int parts;
    /* TN_F16 or TN_BF16: mixed precision (amp.h), f16 with a gradient scaler, which skips steps whose gradients
     * overflow. Trained numbers and optimizer state stay f32. Default TN_F32: none. */
    tn_dtype amp;
    /* Asked between the passes of a batch; if it returns true, the call fails with TN_ERR_STATE and changes nothing, as
     * after any failure. Not for groups of several processes, which would wait for each other. Default NULL. */
    bool (*stop)(void *ctx);
    void *stop_ctx;
} tn_finetune_options;
#define TN_FINETUNE_DEFAULTS                                                                                      \
    {                                                                                                             \
        TN_OPTIONS_SIZE(tn_finetune_options, stop_ctx), 8, 16, NULL,                                              \
            {TN_OPTIONS_SIZE(tn_adam_options, group_count), 2e-4, 0.9, 0.999, 1e-8, 0, 1, false, NULL, 0}, false, \
            NULL, 0, TN_F32, NULL, NULL                                                                           \
    }

/* Creates a trainer for m, which must outlive it. A is drawn from the thread's random generator as in PEFT (uniform in
 * ±1/sqrt(in)), B is 0, so the model computes as before. A model that was opened with an adapter goes on with that one:
 * rank, alpha and targets are then those of the adapter. The sequence of m restarts at position 0. With a group, all
 * processes must have opened the same model and have the same random state.
 *   options: NULL for the defaults. *out: freed with tn_finetune_free, after which m keeps the trained weights.
 * Errors: TN_ERR_ARGUMENT for options out of range, or targets that the model does not have, with those that it has;
 * TN_ERR_STATE if m has a trainer or trained weights; TN_ERR_MEMORY. */
TN_API tn_status tn_finetune_new(tn_llm *m, const tn_finetune_options *options, tn_finetune **out);
TN_API void tn_finetune_free(tn_finetune *t); /* NULL is allowed */

/* One text. */
typedef struct tn_finetune_example {
    const int32_t *ids; /* [count] */
    /* [count]: 1 for tokens that the model must learn to predict, 0 for the others (the prompt); NULL: all. The first
     * token is never predicted. */
    const uint8_t *answer;
    int64_t count; /* 2 … the context of the model */
} tn_finetune_example;

typedef struct tn_finetune_stats {
    size_t struct_size; /* set by the caller */
    double loss;        /* mean cross-entropy of the predicted tokens, in nats */
    int64_t predicted;  /* tokens that the loss is a mean of */
    int64_t tokens;     /* of the texts, without the last token of each */
    /* Euclidean norm of all gradients before clipping; not finite if the step was skipped, NAN from an evaluation */
    double grad_norm;
    bool recomputes; /* with save_memory: the backward pass computes values again */
    int64_t pass;    /* most tokens of a pass */
} tn_finetune_stats;

/* Computes the loss of a batch and adds its gradients to tn_grad of the variables of tn_finetune_module, for optimizers
 * of your own. Texts that fit into the context together are computed in one pass, each token seeing only its own text:
 * nothing is padded, and memory depends on the context, not on the batch. A prefix that texts of a pass share, such as
 * a system message, is computed once. A pass that is longer than all before clears the thread's cached plans
 * (tn_clear_plans).
 * Errors: TN_ERR_ARGUMENT for a text that is too short or longer than the context, an id outside the vocabulary, or no
 * token to predict; TN_ERR_MEMORY, with save_memory and a limit with what is missing. On failure the gradients are
 * removed. */
TN_API tn_status tn_finetune_backward(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                                      tn_finetune_stats *result);

/* One step of AdamW on the batch: tn_finetune_backward, clipping by norm, the update. result may be NULL. If the norm
 * of the gradients is not finite, nothing is changed and the error is TN_ERR_STATE; with amp TN_F16 the step is skipped
 * instead, and the loss scale becomes smaller, unless the loss itself is not finite. */
TN_API tn_status tn_finetune_step(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                                  tn_finetune_stats *result);

/* The same loss without gradients, for validation. */
TN_API tn_status tn_finetune_evaluate(tn_finetune *t, const tn_finetune_example *examples, int64_t count,
                                      tn_finetune_stats *result);

/* The trained variables, borrowed. With LoRA under PEFT's names, for example
 * "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; of GGUF files of the llama architecture the rows of
 * B for q and k are in the order of the file, which differs from that of folders. Else under the file's names. */
TN_API tn_module *tn_finetune_module(tn_finetune *t);
/* The optimizer, borrowed: for tn_optimizer_set_lr, and with the module for tn_checkpoint_save (model.h). A run that is
 * resumed from a checkpoint has the bits of one that was not interrupted. */
TN_API tn_optimizer *tn_finetune_optimizer(tn_finetune *t);
TN_API int64_t tn_finetune_parameter_count(tn_finetune *t); /* trained numbers; -1 if host memory ran out */

/* Writes adapter_model.safetensors and adapter_config.json to a folder, which is made if it does not exist: PEFT's
 * format, for a model in a Hugging Face folder also if m is a GGUF file.
 *   base_model: the model's name in adapter_config.json; NULL: the path of m.
 * Errors: TN_ERR_STATE without LoRA; TN_ERR_IO. Source: peft 0.21, PeftModel.save_pretrained. */
TN_API tn_status tn_finetune_save_adapter(tn_finetune *t, const char *folder, const char *base_model);

#ifdef __cplusplus
}
#endif
#endif
