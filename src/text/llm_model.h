/* llm_model.h — what the files of the language model share: its sizes as checked, its weights by slot.
 *
 * llm_config.c turns a file's metadata into an llm_config and proves that every tensor fits it; llm_record.c records
 * the model's operations; llm.c owns the sequence: cache, plans, position. */
#ifndef TN_TEXT_LLM_MODEL_H
#define TN_TEXT_LLM_MODEL_H

#include "text/common.h"
#include "trunnion/llm.h"
#include "trunnion/trunnion.h"

enum {
    LLM_PAGE = 64, /* tokens of a page of the cache: the attention's contract */
    LLM_CHUNK =
        TN_PROMPT_CHUNK,   /* tokens of a prompt that are computed at once: enough rows to be bound by arithmetic */
    LLM_LOGITS_CHUNK = 64, /* the same where all logits are wanted: these are the widest values of all */
    LLM_DEFAULT_CONTEXT = 4096
};

/* A size that tensors' shapes are made of. */
typedef enum llm_size {
    SIZE_ONE, /* the end of a shape */
    SIZE_HIDDEN,
    SIZE_INTERMEDIATE,
    SIZE_VOCABULARY,
    SIZE_QUERIES, /* heads · head_dim */
    SIZE_KEYS,    /* kv_heads · head_dim */
    SIZE_HEAD,
    SIZE_HALF, /* pairs of a head that rope turns */
    SIZE_COUNT
} llm_size;

/* What a layer holds. */
typedef enum llm_slot {
    SLOT_ATTENTION_NORM,
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_O,
    SLOT_FFN_NORM,
    SLOT_GATE,
    SLOT_UP,
    SLOT_DOWN,
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_O_BIAS,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    LAYER_SLOTS
} llm_slot;

/* What stands beside the layers. */
typedef enum llm_head_slot {
    SLOT_EMBEDDING,
    SLOT_OUTPUT_NORM,
    SLOT_OUTPUT,
    SLOT_ROPE_FACTORS,
    HEAD_SLOTS
} llm_head_slot;

/* How one kind of model differs from the others: a row of the table in llm_config.c. */
typedef struct llm_family {
    const char *architecture; /* general.architecture */
    const char *models;       /* names that people know */
    bool interleaved_rope;    /* rope turns neighbours; else the halves of a head */
    uint32_t needs, allows;   /* bits of slots beyond the plain nine */
} llm_family;

typedef struct llm_config {
    const llm_family *family;
    int64_t layers, heads, kv_heads, trained_context, context, pages, window;
    int64_t size[SIZE_COUNT];
    double rope_base, rope_scale, rms_eps; /* rope_scale: positions are multiplied by it */
    tn_dtype cache;
    bool tied; /* the embedding is the output's weight too */
    int64_t weights_bytes, parameters;
    char quantisation[16];
} llm_config;

/* Reads and checks; options may be NULL. */
tn_status tn_llm_configure(const tn_gguf *file, const tn_llm_options *options, llm_config *out);
tn_status tn_llm_describe(const llm_config *c, const tn_gguf *file, tn_llm_facts *facts);

/* The name of a tensor, "blk.7.attn_q.weight"; layer < 0: of a head slot. */
enum { LLM_NAME_SIZE = 64 };
void tn_llm_name(char name[LLM_NAME_SIZE], int64_t layer, int slot);

typedef struct llm_layer {
    tn_tensor *weight[LAYER_SLOTS]; /* NULL where the file has none */
    tn_tensor *k_cache, *v_cache;   /* state [pages, kv_heads, LLM_PAGE, head_dim] */
} llm_layer;

typedef struct llm_weights {
    tn_tensor *head[HEAD_SLOTS];
    tn_tensor *rope_frequencies; /* [1, 1, half], by which a position is multiplied */
    tn_tensor *pages;            /* [pages] i64: one sequence, so page i is i */
    llm_layer *layers;
} llm_weights;

/* Which logits a recording yields. */
typedef enum llm_rows { LLM_NO_ROWS, LLM_LAST_ROW, LLM_ALL_ROWS } llm_rows;

/* The inputs of a recording. */
typedef struct llm_inputs {
    tn_tensor *rows;      /* [n, hidden]: the tokens' rows of the embedding, in the file's type */
    tn_tensor *positions; /* [n, 1, 1] f32 */
    tn_tensor *position;  /* rank 0, i64: of the first token */
    tn_tensor *last;      /* [1] i64: n - 1; for LLM_LAST_ROW */
} llm_inputs;

/* Records one pass that appends to the caches; the logits [rows, vocabulary] as a new handle, NULL for LLM_NO_ROWS. */
tn_tensor *tn_llm_record(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows);

#endif
