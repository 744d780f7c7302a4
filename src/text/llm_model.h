/* llm_model.h — shared by the files of the language model: its checked sizes, its weights by slot.
 *
 * A model comes from a GGUF file or a Hugging Face folder. llm_gguf.c and llm_folder.c read its settings into an
 * llm_config; llm_families.c has the table of families, layer_slots.def and head_slots.def the weights with their names
 * and shapes; llm_config.c checks that every tensor matches; llm_record.c records the model's operations and exports
 * them to ONNX; llm.c owns the sequence: cache, plans, position. */
#ifndef TN_TEXT_LLM_MODEL_H
#define TN_TEXT_LLM_MODEL_H

#include "text/folder.h"
#include "trunnion/llm.h"
#include "trunnion/trunnion.h"

#include <stdatomic.h>

enum {
    LLM_PAGE = 64, /* tokens of a page of the cache: the attention's contract, */
    LLM_BLOCK = 32,
    LLM_BLOCK_BYTES = 34, /* and so are the blocks of q8_0 */
    LLM_CHUNK =
        TN_PROMPT_CHUNK,   /* tokens of a prompt that are computed at once: enough rows to be bound by arithmetic */
    LLM_SCAN = 16,         /* the same of models with recurrent layers, which are recorded token by token */
    LLM_LOGITS_CHUNK = 64, /* the same where all logits are wanted: these are the widest values of all */
    LLM_DEFAULT_CONTEXT = 4096
};

/* A size that tensors' shapes are made of. */
typedef enum llm_size {
    SIZE_ONE, /* the end of a shape */
    SIZE_HIDDEN,
    SIZE_INTERMEDIATE,
    SIZE_UP, /* the same, or twice that where one product makes the gate too */
    SIZE_VOCABULARY,
    SIZE_EMBEDDINGS, /* rows of the embedding: as many, or more */
    SIZE_QUERIES,    /* heads · head_dim */
    SIZE_KEYS,       /* kv_heads · head_dim */
    SIZE_HEAD,
    SIZE_HALF,   /* pairs of a head that rope rotates */
    SIZE_Q_NORM, /* what the norm of queries has a weight for: a head, all heads together, or each head */
    SIZE_K_NORM,
    SIZE_NORM_WIDTH, /* a head where each has weights of its own; else 0: the shape ends before it */
    SIZE_QKV,        /* queries, keys and values together */
    SIZE_POSITIONS,  /* rows of the table of learned positions */
    SIZE_EXPERTS,
    SIZE_EXPERT,    /* inner width of one */
    SIZE_EXPERT_UP, /* the same, or twice that where one product makes the gate too */
    SIZE_SHARED,    /* of the one that all tokens have, */
    SIZE_SHARED_UP, /* the same, or twice that */
    SIZE_MIXED,     /* what attention yields: SIZE_QUERIES, unless values are narrower than keys */
    SIZE_Q_RANK,    /* latent attention: of queries and … */
    SIZE_KV_RANK,   /* … of keys and values; 0: the family has none */
    SIZE_KV_DOWN,   /* the latter, and the part of keys that rope rotates */
    SIZE_KV_UP,     /* of all heads, keys without that part and values */
    SIZE_PLAIN,     /* of a head's key, what rope does not rotate, */
    SIZE_VALUE,     /* and of its value */
    SIZE_HEADS,
    SIZE_ASK,          /* rows of the matrix of queries: SIZE_QUERIES, or twice that with a gate for each */
    SIZE_UNIT,         /* 1, within a shape */
    SIZE_MIX_IN,       /* recurrent layers: rows of the first product; 0: the family has none */
    SIZE_CHANNELS,     /* that the convolution runs over, */
    SIZE_KERNEL,       /* and its length */
    SIZE_INNER,        /* what the last product reads */
    SIZE_STATE,        /* numbers that the state has for each of them, or for each of a head */
    SIZE_DECAYS,       /* heads, or channels, that decay together … */
    SIZE_DECAY_STATES, /* … where each number of a state has its own: SIZE_STATE; else 0 */
    SIZE_STEP_RANK,    /* of the vector that steps are made of */
    SIZE_MIX_X,        /* that, and two of SIZE_STATE */
    SIZE_MIX_NORM,
    SIZE_BLOCKS,        /* of channels of Griffin's recurrent unit, */
    SIZE_BLOCK,         /* and the channels of one */
    SIZE_RATES,         /* two for each value head */
    SIZE_INPUTS,        /* width of a layer's per-layer embedding (Gemma 4); 0: the model has none */
    SIZE_ALL_INPUTS,    /* of all layers */
    SIZE_GATES,         /* width of attention's gate: that of its result, or one a head */
    SIZE_TABLE_ROWS,    /* of the table of per-layer embeddings; later tokens have that of token 0 */
    SIZE_STREAMS,       /* residual streams (llm_altup.c); 0: one */
    SIZE_OTHER_STREAMS, /* the same less the first one, */
    SIZE_STREAM_PAIRS,  /* and its square */
    SIZE_LAUREL,        /* inner width of a second way from attention's input to its result; 0: the family has none */
    SIZE_COUNT
} llm_size;

/* What a layer holds. The first ones, up to SLOT_DOWN, are all that a layer of Llama has. */
#define SLOT(name, ...) SLOT_##name,
#define BIAS(of, ...) SLOT_##of##_BIAS,
typedef enum llm_slot {
#include "text/layer_slots.def"
    LAYER_SLOTS
} llm_slot;

/* Weights outside the layers. */
typedef enum llm_head_slot {
#include "text/head_slots.def"
    HEAD_SLOTS
} llm_head_slot;
#undef SLOT
#undef BIAS

__extension__ typedef unsigned __int128 slot_set; /* bits of llm_slot, or of llm_head_slot */

/* What weights are called in a kind of file, where the rows of slots say otherwise or nothing. */
typedef struct llm_naming {
    const char *prefix; /* before all names but the output's, in some files */
    const char *layer;  /* before a layer's number */
    bool gguf;          /* else a folder */
    const char *layer_slots[LAYER_SLOTS], *head_slots[HEAD_SLOTS]; /* NULL: as in the row; "": not in such files */
    slot_set transposed;                                           /* bits of layer slots that are stored [in, out] */
    const char *beside[4];                                         /* endings of names that are no weights */
} llm_naming;

_Static_assert(LAYER_SLOTS <= 128, "sets of slots are bits");
#define BIT(slot) ((slot_set)1 << (slot))
#define KEY_SLOTS (BIT(SLOT_K) | BIT(SLOT_K_BIAS) | BIT(SLOT_K_NORM) | BIT(SLOT_V) | BIT(SLOT_V_BIAS))
#define STREAM_ENDS (BIT(SLOT_STREAMS_IN) | BIT(SLOT_STREAMS_OUT))
#define LAYER_INPUTS (BIT(SLOT_LAYER_TABLE) | BIT(SLOT_LAYER_PROJECTION) | BIT(SLOT_LAYER_NORM))
#define FFN_MATRICES (BIT(SLOT_GATE) | BIT(SLOT_UP) | BIT(SLOT_DOWN))
#define GATED_BIASES (BIT(SLOT_GATE_BIAS) | BIT(SLOT_UP_BIAS) | BIT(SLOT_DOWN_BIAS))
#define EXPERTS (BIT(SLOT_ROUTER) | BIT(SLOT_EXPERT_GATE) | BIT(SLOT_EXPERT_UP) | BIT(SLOT_EXPERT_DOWN))
#define QUERY_RANKS (BIT(SLOT_Q_DOWN) | BIT(SLOT_Q_DOWN_NORM) | BIT(SLOT_Q_UP))
#define ATTENTION_SLOTS                                                                                               \
    (BIT(SLOT_Q) | BIT(SLOT_K) | BIT(SLOT_V) | BIT(SLOT_O) | BIT(SLOT_Q_BIAS) | BIT(SLOT_K_BIAS) | BIT(SLOT_V_BIAS) | \
     BIT(SLOT_O_BIAS) | BIT(SLOT_Q_NORM) | BIT(SLOT_K_NORM))
#define KEY_RANKS (BIT(SLOT_KV_DOWN) | BIT(SLOT_KV_DOWN_NORM) | BIT(SLOT_KV_UP))
#define ROPE_TABLES (BIT(SLOT_ROPE_SHORT) | BIT(SLOT_ROPE_LONG))

typedef struct llm_config llm_config;

/* Which numbers the norms of queries and keys see together, and which weights they have. */
typedef enum llm_head_norm {
    HEAD_NORM_SHARED, /* each head; all heads have the same weights */
    HEAD_NORM_EACH,   /* each head; its own weights */
    HEAD_NORM_ALL     /* all heads at once */
} llm_head_norm;

/* Layers that keep a state of fixed size in place of keys and values (llm_recurrent.c). */
typedef enum llm_recurrence {
    RECURRENCE_NONE,
    RECURRENCE_CONV,     /* a short gated convolution (LFM2) */
    RECURRENCE_MAMBA,    /* Gu and Dao 2023, "Mamba" */
    RECURRENCE_MAMBA2,   /* Dao and Gu 2024, "Transformers are SSMs" */
    RECURRENCE_DELTANET, /* Yang et al. 2024, "Gated Delta Networks" */
    RECURRENCE_RWKV,     /* Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era" (RWKV-4) */
    RECURRENCE_GRIFFIN   /* De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention" */
} llm_recurrence;

/* How one kind of model differs from the others, by subject. */
typedef struct llm_slots { /* of a model; bits of layer slots and of head slots */
    bool lone;             /* a layer is attention, recurrent or feed-forward, after one norm (Nemotron-H) */
    slot_set needs, allows;
    slot_set needs_later; /* which only the first layer may lack */
    slot_set head_needs, head_allows;
} llm_slots;

typedef struct llm_norms {
    bool layer_norm;   /* with a mean; else by the root of the mean square */
    bool bare;         /* without weights */
    bool after_rope;   /* of queries and keys */
    bool from_one;     /* folders have the weights less 1 */
    bool values;       /* those of attention have one without weights */
    bool of_sums;      /* of the residual stream after attention and feed-forward, not of what they read */
    bool of_embedding; /* what the first layer reads has one without weights */
    llm_head_norm heads;
    double eps; /* of folders that do not say; 0: 1e-5 with a mean, else 1e-6 */
} llm_norms;

/* Sine and cosine waves of positions, added to the embedding. Frequencies: 10000^(-i / half) for i < half, or so that
 * the last one is 1/10000. Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5. */
typedef enum llm_waves { WAVES_NONE, WAVES_OPEN, WAVES_CLOSED } llm_waves;

typedef struct llm_position_rules {
    bool interleaved;          /* in GGUF files rope rotates neighbours; else the halves of a head */
    bool folder_interleaved;   /* the same in folders */
    bool in_windows;           /* other layers have no rope, if any layer has a window */
    bool parts_of_frequencies; /* in GGUF files: yarn sets in between any of them, not only between whole numbers */
    bool backwards;            /* rope rotates the other way */
    double wide_part;          /* of rope of layers without a window, where a folder says nothing of rope (Gemma 4) */
    bool plain_local;          /* layers with a window have the same base, not stretched */
    double part;        /* of a head that rope rotates, where config.json says nothing; 0: all of it, in any case */
    int64_t first;      /* row of the first token in the table of learned positions, or the position of its waves */
    llm_waves waves;    /* of learned positions' kind, but computed */
    bool explicit_rope; /* folders must have "rope_parameters": transformers' default for them is a scaled rope */
    double base, local_base; /* rope's where config.json says nothing; that of layers with a window */
} llm_position_rules;

typedef struct llm_attention_rules {
    bool bidirectional;    /* a token sees the whole text: the model can embed, not generate */
    bool parallel;         /* attention and feed-forward read the same input, and both are added to it */
    bool chooses_parallel; /* "use_parallel_residual" in config.json; where it says nothing: `parallel` */
    bool latent;           /* keys and values are made of a short vector (MLA) */
    bool grouped_qkv;      /* in folders SLOT_QKV has, for each key head, its queries, the key and the value; */
    bool qkv_blocks;       /* or, QKV_BLOCKS times, queries, values and keys of some of the heads (CodeGen) */
    bool gated_queries;    /* SLOT_Q has, after the queries of each head, gates of what attention yields */
    int64_t window;        /* where config.json says nothing; 0: none */
    int64_t gguf_window;   /* where a GGUF file says nothing */
    int64_t pattern;       /* every pattern-th layer has no window; 0: all have one */
    bool whole_first;      /* and the first one is such a layer */
    double cap;            /* of scores, where the file says nothing */
    double query_scale;    /* scores are divided by its root where config.json says nothing; 0: a head's width */
    int64_t wide_layers;   /* GGUF models with this number of layers divide scores by √(hidden / heads) */
} llm_attention_rules;

typedef struct llm_forward_rules { /* of feed-forward layers and experts */
    const char *activation;        /* where config.json says nothing */
    bool gelu_by_tanh;             /* "gelu" in config.json means its approximation, in which they were trained */
    bool fused_gate;               /* the product of SLOT_UP has the gate in front; that of SLOT_EXPERT_UP too */
    bool clamped_gate; /* the product of SLOT_EXPERT_UP has gates and what they gate by turns, and both are clamped */
} llm_forward_rules;

typedef struct llm_expert_rules {
    slot_set slots;    /* bits of those that a layer has instead of feed-forward's matrices; 0: no such models */
    bool always;       /* all models are mixtures */
    bool beside;       /* layers have feed-forward too, and both results are added ("enable_moe_block") */
    bool own_width;    /* experts have a width of their own */
    bool whole_choice; /* weights of the chosen experts are made to add up to 1, where config.json says nothing */
    /* Where config.json says nothing: `scale` (0: 1), groups of experts and how many a token chooses from (0: one
     * group), first layers without experts. */
    double usual_scale;
    int64_t usual_groups, usual_chosen, usual_dense;
    bool by_sigmoid;   /* the router's values, each alone; else by softmax */
    bool pairs_count;  /* a group of experts is as good as its two best, as with by_sigmoid; else as its best one */
    bool sparse_mixer; /* each of two experts is weighted among those that are nearly as good (Phi-3.5-MoE) */
    bool fused_gate;   /* llm_forward_rules, of experts only */
    int usual_choice;  /* default of "norm_topk_prob" in folders: 1 true, -1 false, 0 true if by_sigmoid or recurrent */
    bool by_logits;    /* chosen by the router's values before the sigmoid */
    bool scales_input; /* weights multiply what an expert reads, not what it yields (Llama 4) */
} llm_expert_rules;

typedef struct llm_recurrent_rules {
    llm_recurrence kind;
    slot_set needs, allows; /* bits of slots that a recurrent layer has instead of attention's, or may have */
    int64_t interval;       /* every interval-th layer has attention; 0: config.json says which */
    bool beside;            /* all layers are recurrent and have attention, both are added (Falcon-H1) */
    bool tiled;             /* value head i has key head i modulo their number; else neighbours share one */
} llm_recurrent_rules;

/* A row of the table in llm_families.c. */
typedef struct llm_family {
    const char *architecture;      /* general.architecture, or config.json's model_type … */
    const char *models;            /* names that people know */
    const char *type;              /* … where that is another word; else NULL */
    bool in_gguf;                  /* else known from folders alone, unless `gguf` is given: */
    const char *gguf;              /* general.architecture where that is another word */
    const llm_naming *naming;      /* in folders; NULL: known from GGUF files alone */
    const llm_naming *gguf_naming; /* in GGUF files; NULL: tn_llm_gguf_names */
    const char *const *keys;       /* config.json's, by llm_key */
    const int64_t *usual;          /* sizes where config.json says nothing, by llm_key; NULL: it must say them */
    tn_status (*read)(const hf_folder *f, llm_config *c); /* what no other family's config.json has; NULL: nothing */
    bool tied;                                            /* where config.json says nothing */
    bool scaled_embedding; /* rows of the embedding are multiplied by the root of their length */
    double final_cap;      /* of logits, where the file says nothing */
    llm_slots slots;
    llm_norms norms;
    llm_position_rules positions;
    llm_attention_rules attention;
    llm_forward_rules forward;
    llm_expert_rules experts;
    llm_recurrent_rules recurrent;
} llm_family;

/* What config.json calls things. */
typedef enum llm_key {
    KEY_LAYERS,
    KEY_HIDDEN,
    KEY_INTERMEDIATE,
    KEY_HEADS,
    KEY_CONTEXT,
    KEY_EPS,
    KEY_ACTIVATION,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    LLM_KEYS
} llm_key;

/* How positions become angles. */
enum { QKV_BLOCKS = 4, DISTANCE_DIMS = 2, DISTANCE_STEP = 64 };
typedef enum llm_rope_kind { ROPE_PLAIN, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG, ROPE_PROPORTIONAL } llm_rope_kind;
typedef struct llm_rope {
    llm_rope_kind kind;
    double base, scale; /* scale: positions are multiplied by it */
    double factor;      /* llama3, yarn: slow frequencies are divided by it */
    double low, high;   /* turns within `trained` tokens between which it sets in; proportional: pairs that rotate */
    double trained;     /* longrope: a longer context has factors of its own */
    double amplitude;   /* by which sines and cosines are multiplied */
    bool whole;         /* yarn: between whole numbers of frequencies */
} llm_rope;

/* factors: by which frequencies are divided besides, or NULL. */
void tn_llm_rope_fill(const llm_rope *r, int64_t half, const float *factors, float *out);

enum { LLM_MOST_ENDS = 16 };

enum { LLM_MOST_LAYERS = 4096 };

/* What one model has, by subject. */
typedef struct llm_attention {
    int64_t heads, kv_heads;
    int64_t window;                      /* 0: none */
    uint8_t slides[LLM_MOST_LAYERS / 8]; /* bits of the layers that have it */
    bool bidirectional;                  /* a window then has this many tokens on each side, itself included */
    bool parallel;                       /* llm_attention_rules */
    double alibi;      /* the largest exponent of ALiBi's slopes, negated; 0: none. See add_distances in llm_record.c */
    double cap;        /* 0: none */
    double scale;      /* of scores; TN_AUTO: 1 / √ of a head's width */
    double late_scale; /* queries are multiplied by 1 + late_scale · log(1 + ⌊position / rope.trained⌋), */
    double late_step;  /* Llama 4: only in layers without rope, by ⌊(position + 1) / late_step⌋; 0: not so */
    bool unit_heads;   /* Llama 4: rotated queries and keys are divided by their root mean square */
    uint8_t absent[LLM_MOST_LAYERS / 8]; /* bits of the layers without attention */
    int64_t wide_head, wide_kv_heads;    /* of layers without a window; 0: as of the others */
    bool wide_keys_only;                 /* their values are their keys before norm and rope */
    /* From this layer on, layers have the keys and values of the last one before of their kind; 0: none. */
    int64_t first_shared;
    int64_t shared_width; /* inner width of their feed-forward; 0: as in the others */
} llm_attention;

typedef struct llm_positions {
    llm_rope rope, local_rope;
    bool two_ropes; /* layers with a window have local_rope */
    bool interleaved;
    bool halves_mixed; /* queries and keys have the halves of a head element by element, but rope's pairs are of the
                        * first elements (GGUF files of Bamba) */
    uint8_t unrotated[LLM_MOST_LAYERS / 8]; /* bits of the layers without rope */
} llm_positions;

typedef struct llm_experts {
    int64_t choices; /* experts that a token has; 0: no mixture */
    bool whole_choice;
    int64_t groups, chosen_groups;        /* of experts; 0, or from how many of them a token may choose */
    double gate_slope, gate_limit;        /* of clamped gates */
    double scale;                         /* by which the weights of the chosen experts are multiplied */
    double jitter;                        /* of sparse_mixer: half of the distance within which others count */
    uint8_t unmixed[LLM_MOST_LAYERS / 8]; /* bits of the layers without experts in a mixture */
    int64_t bytes;                        /* of weights_bytes, those of experts that are chosen */
} llm_experts;

/* Residual streams, and feed-forward layers in which only large gates count (llm_altup.c). */
typedef struct llm_streams {
    int64_t active;                      /* the stream that layers read */
    bool scales;                         /* per-layer embeddings read it times SLOT_STREAM_SCALE */
    double cutoff;                       /* in sparse layers gates count from mean + cutoff · deviation on */
    uint8_t sparse[LLM_MOST_LAYERS / 8]; /* bits of these layers */
} llm_streams;

typedef struct llm_recurrent {
    uint8_t which[LLM_MOST_LAYERS / 8]; /* bits of the layers with a state */
    int64_t layers;
    int64_t key_heads, value_heads; /* groups of Mamba 2 that share a key, and its heads */
    bool decays_made;               /* the file has -exp(A), not A */
    int64_t halved_every;           /* the residual stream is halved after every n layers; 0: never */
    double inner_eps;               /* of norms of steps and of what states write and read; 0: no such norms */
    tn_activation *activation;      /* of the convolution; NULL: the model's */
} llm_recurrent;

/* What the first product of a Mamba 2 layer yields, in order: gates, inputs, what states write, read, and steps. */
enum { MIX_PARTS = 5 };

typedef struct llm_scales {
    double embedding, residual, logits; /* by which they are multiplied */
    double final_cap;                   /* of logits; 0: none */
    /* Falcon-H1's: of what attention reads and yields, of parts of the recurrent layer and what it yields, of
     * feed-forward's gate and of what it yields. */
    double attention_in, attention_out, mix[MIX_PARTS], mix_out, gate, down;
} llm_scales;

typedef struct llm_file_facts {
    const llm_naming *naming;
    int64_t predicting_layers; /* after the others, for guesses of further tokens: not read */
    bool norms_from_one;       /* the file has the weights of norms less 1 */
    int64_t weights_bytes, parameters;
    char quantization[16];
} llm_file_facts;

typedef struct llm_ends { /* tokens that end a text, by generation_config.json */
    int32_t ids[LLM_MOST_ENDS];
    int count;
} llm_ends;

struct llm_config {
    const llm_family *family;
    int64_t layers, trained_context, context, pages;
    slot_set needs, allows; /* bits of layer slots: of the first layer that is like most */
    int64_t size[SIZE_COUNT];
    double eps;
    tn_activation *activation, *last_activation; /* the second one of SLOT_LAST_DENSE */
    tn_dtype cache[2];                           /* of keys, of values */
    bool tied;                                   /* the embedding is the output's weight too */
    uint8_t skipped[LLM_MOST_LAYERS / 8];        /* bits of the layers that texts do not go through */
    llm_attention attention;
    llm_positions positions;
    llm_experts experts;
    llm_streams streams;
    llm_recurrent recurrent;
    llm_scales scales;
    llm_file_facts file;
    llm_ends ends;
};

/* What a model is read from. */
typedef struct llm_source {
    tn_gguf *gguf; /* NULL: the folder */
    hf_folder folder;
} llm_source;

/* A tensor of either; `offset` is -1 in folders. */
typedef tn_gguf_info llm_tensor;

tn_status tn_llm_source_open(const char *path, llm_source *out); /* close it in either case */
void tn_llm_source_close(llm_source *s);
const char *tn_llm_source_path(const llm_source *s);
int64_t tn_llm_source_count(const llm_source *s);
tn_status tn_llm_source_at(const llm_source *s, int64_t i, llm_tensor *out);
/* TN_ERR_FORMAT naming the file if it is missing. */
tn_status tn_llm_source_find(const llm_source *s, const char *name, llm_tensor *out);
tn_tensor *tn_llm_source_tensor(const llm_source *s, const llm_tensor *t);
/* As tn_gguf_rows. */
tn_status tn_llm_source_rows(const llm_source *s, const char *name, const int64_t *rows, int64_t count, void *out);
/* "'file': byte 7", or "'folder'", for messages. */
typedef struct llm_place {
    char text[320];
} llm_place;
llm_place tn_llm_source_place(const llm_source *s, const llm_tensor *t);

/* Family and sizes, from metadata or config.json. */
tn_status tn_llm_read_gguf(const tn_gguf *f, llm_config *c);
tn_status tn_llm_read_folder(hf_folder *f, llm_config *c);
/* The row of this name; or TN_ERR_UNSUPPORTED with the list of those that are known in such files. */
const llm_family *tn_llm_find_family(const char *name, size_t length, bool gguf);
const llm_family *tn_llm_next_family(const llm_family *f); /* with the same name in GGUF files; or NULL */
void tn_llm_list_families(bool gguf, char *out, size_t size);
enum { LLM_LIST_SIZE = 2400 }; /* for such a list */
/* llm_folder.c, for families whose config.json has more than their row says. A flag: null is false, as in Python. */
bool tn_llm_flag(const hf_folder *f, const char *key, bool usual);
tn_status tn_llm_refuse(const hf_folder *f, const char *key, const char *value); /* "'key' is value, …" */
tn_status tn_llm_read_factor(const hf_folder *f, const char *key, double *out);
tn_status tn_llm_read_cap(const hf_folder *f, const char *key, double usual, double *out); /* null: no cap */
tn_status tn_llm_read_window(const hf_folder *f, llm_config *c);
tn_status tn_llm_read_layer_types(const hf_folder *f, const tn_json *types, llm_config *c);
const tn_json *tn_llm_rope_of(const hf_folder *f, const char *layers); /* rope's settings for this kind of layers */
/* The last layers have keys and values of earlier ones. Returns whether these have what they need. */
bool tn_llm_share_layers(llm_config *c, int64_t shared);
void tn_llm_set_streams(llm_config *c, int64_t count);
const char *tn_llm_gguf_word(const llm_family *f); /* general.architecture; NULL: not in such files */
/* apart: experts have a tensor each; falcon_two: a norm each for attention and feed-forward. */
extern const llm_naming tn_llm_gguf_names, tn_llm_gguf_apart, tn_llm_gguf_falcon_two;

/* Sizes of Mamba layers that follow from those of their state, heads and inner width (llm_recurrent.c). */
tn_status tn_llm_size_mamba(llm_config *c, const char *place);
tn_status tn_llm_size_deltanet(llm_config *c, const char *place); /* the same of gated delta nets */
bool tn_llm_is_pure(const llm_config *c);                         /* all layers are recurrent */

/* Reads and checks; options may be NULL. */
tn_status tn_llm_configure(llm_source *s, const tn_llm_options *options, llm_config *out);
/* The same of a model whose hidden states are read, and whose output matrix is not needed. */
tn_status tn_llm_configure_reader(llm_source *s, llm_config *out);
/* Windows: all layers, or those of a pattern, have one. */
void tn_llm_set_window(llm_config *c, int64_t layer, bool slides);
void tn_llm_set_pattern(llm_config *c, int64_t pattern);
int64_t tn_llm_window(const llm_config *c, int64_t layer); /* 0: none */
/* Whether the layer has one in longer texts: such layers may have a rope of their own, or the only one. */
bool tn_llm_slides(const llm_config *c, int64_t layer);
void tn_llm_set_rope(llm_config *c, int64_t layer, bool rotates);
bool tn_llm_has_rope(const llm_config *c, int64_t layer);
/* The layer whose keys and values this one has: itself, in most models. */
int64_t tn_llm_key_layer(const llm_config *c, int64_t layer);
bool tn_llm_has_cache(const llm_config *c, int64_t layer);
/* The configuration with the sizes of this layer: c, or *own. */
const llm_config *tn_llm_of_layer(const llm_config *c, int64_t layer, llm_config *own);
void tn_llm_set_head_sizes(llm_config *c);
/* Rows of the matrices into which those of latent attention are cut: as many as both sizes are multiples of. */
int64_t tn_llm_latent_rows(int64_t plain, int64_t values);
int64_t tn_llm_row_width(const llm_config *c); /* numbers of a token's row, with its per-layer embeddings */
void tn_llm_set_sparse(llm_config *c, int64_t layer);
bool tn_llm_is_sparse(const llm_config *c, int64_t layer);
/* Numbers of a head's key: those of a head, and with ALiBi its position in DISTANCE_DIMS parts. */
int64_t tn_llm_key_width(const llm_config *c);
/* Caches that a layer with attention has: of keys and of values, or one of latent vectors; and their heads. */
int tn_llm_cache_count(const llm_config *c);
int64_t tn_llm_cache_heads(const llm_config *c);
void tn_llm_set_unmixed(llm_config *c, int64_t layer);
/* Layers that texts do not go through: those that read pictures. */
void tn_llm_set_skipped(llm_config *c, int64_t layer);
bool tn_llm_is_skipped(const llm_config *c, int64_t layer);
int64_t tn_llm_group_best(const llm_config *c); /* of how many of its experts the worth of a group is the sum */
void tn_llm_set_recurrent(llm_config *c, int64_t layer);
bool tn_llm_is_recurrent(const llm_config *c, int64_t layer);
void tn_llm_set_attention(llm_config *c, int64_t layer, bool attends);
bool tn_llm_attends(const llm_config *c, int64_t layer);
int64_t tn_llm_attention_layers(const llm_config *c); /* number of them */
/* Bits of the slots that this layer must or may have. */
int64_t tn_llm_cache_row(const llm_config *c,
                         int which); /* elements of a token's row of a head: CACHE_KEYS or …VALUES */
/* llm_config.c: yarn's factor of sines and cosines; a model that it stretches may be asked for longer texts. */
double tn_llm_yarn_amplitude(double factor, double by);
void tn_llm_lengthen(llm_config *c);
/* llm_folder.c: the list of config.json's rope under this name, checked; out may be NULL. */
tn_status tn_llm_rope_list(const hf_folder *f, const char *key, int64_t count, float *out);
/* llm_folder.c: sizes of heads of latent attention, and the scale of its scores with YaRN (all: mscale_all_dim). */
void tn_llm_set_latent_sizes(llm_config *c, int64_t rope, int64_t plain, int64_t values);
tn_status tn_llm_check_latent_sizes(const char *path, const llm_config *c);
void tn_llm_set_latent_scale(llm_config *c, double all);
tn_status tn_llm_describe(const llm_config *c, const llm_source *s, tn_llm_facts *facts);

/* The name of a tensor, "blk.7.attn_q.weight"; layer < 0: of a head slot; false where such files have none. */
enum {
    LLM_NAME_SIZE = 96,
    LLM_MOST_EXPERTS = 1 << 12,
    LLM_MOST_HEADS = 1 << 16,
    LLM_MOST_WIDTH = 1 << 24,
    LLM_MOST_CONTEXT = 1 << 30
};
bool tn_llm_name(const llm_naming *n, char name[LLM_NAME_SIZE], int64_t layer, int slot);
/* Whether a file may hold this weight though it is not read: a tied model's second embedding, and what a layer with
 * keys and values of another would make its own of. */
bool tn_llm_is_spare(const llm_config *c, int64_t layer, int slot);
/* Tensors of a slot whose name has a *: experts, or residual streams. */
int64_t tn_llm_parts(const llm_config *c, int64_t layer, int slot);
/* The slot of a tensor of this name, without the prefix; false if unknown. *layer is -1 for a head slot. */
bool tn_llm_find_slot(const llm_config *c, const llm_naming *n, const char *name, int64_t *layer, int *slot);
/* In such a name, this number instead of *; false where there is none. */
bool tn_llm_expert_name(const char name[LLM_NAME_SIZE], int64_t expert, char out[LLM_NAME_SIZE]);
/* Experts and choices are in c; what else follows from them, checked. `place`: of the file, for messages. */
tn_status tn_llm_set_experts(llm_config *c, const char *place, int64_t experts, int64_t choices);

/* States of a layer: those of attention are pages, those of a recurrent layer are of one conversation. */
typedef enum llm_cache {
    CACHE_KEYS,
    CACHE_VALUES,
    CACHE_CONV,  /* [channels, kernel - 1]: the last inputs of the convolution; RWKV: of attention and feed-forward */
    CACHE_STATE, /* tn_llm_state_shape */
    LLM_CACHES
} llm_cache;

typedef struct llm_layer {
    tn_tensor *weight[LAYER_SLOTS]; /* NULL where the file has none */
    /* Latent attention: of SLOT_KV_UP what makes keys, [heads, rank, keys]; NULL: made in each recording */
    tn_tensor *key_up;
    /* The sequence's, by llm_cache; NULL: not in this layer. Keys and values: [pages, kv_heads, LLM_PAGE, head_dim];
     * latent attention has one of both, [pages, 1, LLM_PAGE, rope's part + rank] */
    tn_tensor *cache[LLM_CACHES];
} llm_layer;

/* LoRA's pair for a matrix [out, in]: scale · (x · aᵀ) · bᵀ is added to its product. a [rank, in], b [out, rank], in
 * f32; NULL: none. The rows of b are in the order of the matrix's rows. */
typedef struct llm_lora {
    tn_tensor *a, *b;
} llm_lora;

typedef struct llm_weights {
    tn_tensor *head[HEAD_SLOTS];
    tn_tensor *rope[2]; /* [1, 1, half], by which a position is multiplied; NULL: positions are learned. Local ones:
                         * NULL where all layers have the same */
    tn_tensor *pages;   /* [pages] i64: the pages of the sequence in the caches */
    llm_layer *layers;
    llm_lora *lora; /* [layers · LAYER_SLOTS], or NULL: no adapter */
    double lora_scale;
} llm_weights;

/* One block of pages for the caches of several conversations: `context` pages for each, in order. */
typedef struct llm_pool {
    int users, room;
    uint64_t taken;    /* bits of the conversations */
    llm_layer *layers; /* caches only */
} llm_pool;

/* The open file, which conversations share. */
typedef struct llm_file {
    _Atomic int users;
    llm_source source;
} llm_file;

struct tn_llm {
    llm_file *file;
    tn_device *device;
    llm_config config;
    llm_weights weights;
    llm_pool *pool;   /* that the caches are in; NULL: they are its own */
    int slot;         /* its place in the pool */
    int64_t renewals; /* how often a failure has replaced them, or a trainer weights */
    int64_t position;
    int32_t *tokens;         /* [context]; the first `position` are the sequence */
    float *logits;           /* of the last token: what callers get to see … */
    tn_tensor *shown;        /* … unless they lie where this was computed; or NULL */
    tn_graph *token;         /* captured at the first single token */
    int64_t *numbers;        /* LLM_CHUNK ids, */
    void *rows;              /* their rows of the embedding as the file has them, */
    float *places;           /* and their positions, on their way into tensors */
    struct llm_draft *draft; /* or NULL */
    bool stale;              /* states of recurrent layers are not those of the sequence: they are computed anew */
    bool trained;            /* has or had a trainer */
    bool trained_embedding;  /* rows of the embedding come from the tensor, in f32, not from the file */
    tn_dtype rows_dtype;     /* the file's, or f32 if per-layer embeddings are packed or have another one */
};

/* llm.c: a conversation's parts that llm_state.c and llm_batch.c need. enter makes the model's device the thread's
 * current one, and gives the one that leave goes back to. */
size_t tn_llm_embedding_row(const tn_llm *m); /* bytes of a token's row */
tn_status tn_llm_train_embedding(tn_llm *m);  /* for a trainer: its rows are those of the tensor from now on */
void tn_llm_append(tn_llm *m, const int32_t *ids, int64_t count); /* these were computed; a draft is obsolete */
void tn_llm_append_accepted(tn_llm *m, int32_t id); /* the same for a step that the draft stays valid in */
tn_status tn_llm_step_alone(tn_llm *m, int32_t id, const float **logits); /* without a draft */
/* Copies the rows of n tokens, each tn_llm_row_width numbers, to `out`; and makes a tensor of such rows. */
tn_status tn_llm_copy_rows(const tn_llm *m, const int64_t *ids, int64_t n, void *out);
tn_tensor *tn_llm_rows(const tn_llm *m, const void *rows, int64_t n);
tn_status tn_llm_read_rows(tn_llm *m, const int32_t *ids,
                           int64_t n);      /* the tokens' rows of the embedding, to m->rows */
int64_t tn_llm_first_page(const tn_llm *m); /* of its caches; the others follow */
tn_status tn_llm_refresh(tn_llm *m);        /* computes the states of recurrent layers anew if they are stale */
/* TN_ERR_UNSUPPORTED for a model with recurrent layers (why: what they have that forbids it), or whose layers have
 * per-layer embeddings or share the keys of others. */
tn_status tn_llm_refuse_recurrent(const tn_llm *m, const char *function, const char *why);
/* After a failure: makes caches anew that a failed write has left as errors. Returns the failure. */
tn_status tn_llm_mend(tn_llm *m, tn_status failure);

/* llm_draft.c: a step with a draft, its checked id; the guesses, or also the captured graphs, are obsolete. */
tn_status tn_llm_step_drafted(tn_llm *m, int32_t id, const float **logits);
/* The parts of that step, for batches.
 * holds: whether id is the next guess of the last pass. accept: appends that guess and returns the logits after it.
 * make: guesses what follows id; *ids [*count] replace the guesses of the last pass; with `batch` no guesses, mostly,
 * if few of the last ones were right. checked: appends id; logits [count + 1, vocabulary] were computed after id and
 * after each of the first `count` guesses. */
bool tn_llm_draft_holds(const tn_llm *m, int32_t id);
const float *tn_llm_draft_accept(tn_llm *m);
tn_status tn_llm_draft_make(const tn_llm *m, int32_t id, bool batch, const int32_t **ids, int *count);
void tn_llm_draft_checked(tn_llm *m, int32_t id, int count, const float *logits);
void tn_llm_drop_draft(tn_llm *m);
void tn_llm_drop_draft_graphs(tn_llm *m);
void tn_llm_draft_free(struct llm_draft *d);

/* Which logits a recording yields. */
typedef enum llm_rows { LLM_NO_ROWS, LLM_LAST_ROW, LLM_ALL_ROWS } llm_rows;

/* One of the sequences whose next tokens are computed together. */
typedef struct llm_sequence {
    tn_tensor *position; /* rank 0, i64 */
    tn_tensor *pages;
    const llm_layer *layers; /* its caches and states */
} llm_sequence;

/* The inputs of a recording. */
typedef struct llm_inputs {
    tn_tensor *rows;      /* [n, hidden]: the tokens' rows of the embedding, in the file's type */
    tn_tensor *positions; /* [n, 1, 1] f32 */
    tn_tensor *position;  /* rank 0, i64: of the first token */
    tn_tensor *last;      /* [1] i64: n - 1; for LLM_LAST_ROW */
    /* [n, n] bool, keys that a query sees, all and within the window; NULL: the tokens go to the caches. */
    tn_tensor *seen, *near;
    /* NULL, or keys and values of before, [1, kv_heads, past, head_dim], two a layer, to which the tokens' own are
     * joined: what is seen is [n, past + n]; and what takes handles to both together. */
    tn_tensor *const *past;
    tn_tensor **present;
    bool trains; /* gradients are wanted: a mixture computes all experts, by operations that have gradients */
    /* Row i is the next token of sequence i, and goes to its caches; NULL: all rows belong to one. */
    const llm_sequence *sequences;
    int sequence_count;
    tn_tensor *goes_on; /* [n] bool: a sequence with false keeps its states of recurrent layers; NULL: all go on */
    /* NULL, or the same where the caches of all sequences are one pool: `position` is [n] i64, and pages [n, pages] */
    tn_tensor *pages;
    bool drafted; /* adjacent rows may belong to one sequence (`runs` of tn_cached_attention); with `pages`, CPU */
    tn_tensor **probes; /* NULL, or takes a handle for each of LLM_PROBES a layer, and the output's */
} llm_inputs;

/* Sums over tokens of squares of what weights are multiplied with: [columns]. */
typedef enum llm_probe { PROBE_ATTENTION, PROBE_O, PROBE_FFN, PROBE_DOWN, LLM_PROBES } llm_probe;

/* Records one pass that appends to the caches; the logits [rows, vocabulary] as a new handle, NULL for LLM_NO_ROWS. */
tn_tensor *tn_llm_record(const llm_config *c, const llm_weights *w, const llm_inputs *in, llm_rows rows);

/* llm.c: opens a model without caches, to read its hidden states. Close it with tn_llm_close. */
tn_status tn_llm_open_reader(const char *path, tn_device *device, tn_llm **out);
/* The hidden states after the last norm of a text alone, [n, hidden], as a new handle. ids, places: [n] i64. */
tn_tensor *tn_llm_record_states(const llm_config *c, const llm_weights *w, const tn_tensor *ids,
                                const tn_tensor *places);
enum { LLM_READER_CONTEXT = 8192 }; /* tokens of a text at most: scores are written out for each pair */

/* llm_lora.c: adapters. Makes an empty list of pairs for m; reads the adapter of a folder; frees a list. */
tn_status tn_llm_lora_new(const llm_config *c, llm_lora **out);
tn_status tn_llm_lora_read(tn_llm *m, const char *folder);
void tn_llm_lora_free(llm_lora *list, const llm_config *c);
/* Whether an adapter may have a pair for this slot. *name (if not NULL): PEFT's name of the module. */
bool tn_llm_lora_slot(const llm_config *c, int64_t layer, int slot, char name[LLM_NAME_SIZE]);
/* b with rows in the order of folders, from that of this file's matrix; and back. Returns a new handle. */
tn_tensor *tn_llm_lora_rows(const llm_config *c, int slot, const tn_tensor *b, bool to_folder);
/* The weight with its pair added, in f32: a new handle, or NULL if there is no such weight. */
tn_tensor *tn_llm_merged(const tn_llm *m, int64_t layer, int slot);

/* llm_save.c */
tn_status tn_llm_save_adapter(const tn_llm *m, const char *folder, const char *base_model);

/* llm_record.c: a layer's product with the weight of a slot and a bias (NULL: none), and what an adapter adds; a norm
 * of the family's kind; and the two parts of a product along a dimension: returns the gate, *up becomes what it gates.
 */
/* The part of SLOT_KV_UP that makes keys, transposed: [heads, rank, keys]. */
tn_tensor *tn_llm_keys_of(const llm_config *c, const tn_tensor *up);
tn_tensor *tn_llm_product(const llm_weights *w, int64_t layer, int slot, const tn_tensor *x, const tn_tensor *bias);
/* llm_altup.c: residual streams [n, hidden] of families that have several. begin: makes them of the embedding.
 * predict: changes them to what they should be after the layer, and returns the one that the layer reads. correct:
 * changes them by what the layer has made of that. end: what the last norm reads. gates: those of a sparse layer.
 * laurel: the way beside attention, sum [n, hidden] with it. */
enum { LLM_MOST_STREAMS = 8 };
void tn_llm_begin_streams(const llm_config *c, const llm_weights *w, tn_tensor *x, tn_tensor **streams);
tn_tensor *tn_llm_predict_streams(const llm_config *c, const llm_weights *w, int64_t layer, tn_tensor **streams);
void tn_llm_correct_streams(const llm_config *c, const llm_weights *w, int64_t layer, tn_tensor *made,
                            tn_tensor **streams);
tn_tensor *tn_llm_end_streams(const llm_config *c, const llm_weights *w, tn_tensor *const *streams);
tn_tensor *tn_llm_sparse_gates(const llm_config *c, const tn_tensor *gates);
tn_tensor *tn_llm_add_laurel(const llm_config *c, const llm_weights *w, int64_t layer, const tn_tensor *x,
                             const tn_tensor *sum);
/* llm_recurrent.c: sizes of recurrent layers from config.json; the shape of their state (rank 0: none); one layer for
 * at most LLM_SCAN tokens x [n, hidden], or one token of each sequence, which changes its states. */
tn_status tn_llm_read_recurrent(const hf_folder *f, llm_config *c);
int tn_llm_state_shape(const llm_config *c, int64_t shape[3]);
tn_tensor *tn_llm_recur(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                        const tn_tensor *x);
/* Whether feed-forward reads the token before as well; and that. */
bool tn_llm_shifts(const llm_config *c);
tn_tensor *tn_llm_shifted_forward(const llm_config *c, const llm_weights *w, int64_t layer, const llm_inputs *in,
                                  const tn_tensor *x);
tn_status tn_llm_write_onnx(const llm_source *s, const llm_config *c, const llm_weights *w, const char *path,
                            bool cache);

#endif
