/* encoder.h — shared by the files of the embedder: an encoder's checked sizes, its weights by slot.
 *
 * Encoders of BERT's kind are computed here. Models of the families of
 * llm_families.c become embedders by their hidden states: of them this has only the sizes and the modules.
 *
 * encoder_config.c reads a folder into an encoder_config, with the modules after the encoder, and checks the shape of
 * every weight. embedder.c opens models, records network and pooling, batches and runs, and exports to ONNX. */
#ifndef TN_TEXT_ENCODER_H
#define TN_TEXT_ENCODER_H

#include "text/folder.h"
#include "trunnion/embed.h"
#include "trunnion/trunnion.h"

/* What a layer holds: each a weight and a bias. */
typedef enum encoder_part {
    PART_Q,
    PART_K,
    PART_V,
    PART_O,
    PART_NORM1, /* after the attention */
    PART_UP,
    PART_DOWN,
    PART_NORM2, /* after the feed-forward */
    PART_GATE,  /* multiplies PART_UP's result */
    PART_QKV,   /* in place of the three; of a layer that was read, they are always one product */
    LAYER_PARTS
} encoder_part;

/* What stands before the layers: tables, and a norm with its bias. */
typedef enum encoder_table {
    TABLE_WORDS,
    TABLE_POSITIONS,
    TABLE_TYPES,         /* every token has type 0 here */
    TABLE_NORM,          /* optional */
    TABLE_BUCKETS,       /* added to scores: a row for each distance, a column for each head */
    TABLE_RELATIVE,      /* a row for each distance, which queries and keys are compared with (DeBERTa); */
    TABLE_RELATIVE_NORM, /* and a norm of it with its bias */
    TABLE_TASKS,         /* as TABLE_TYPES, if config.json says use_task_id (ERNIE) */
    TABLE_PROJECTION,    /* from the width of the tables to that of the layers, where the file has it */
    TABLE_LAST_NORM,     /* after the layers */
    TABLE_OUTPUT,        /* without a bias: what a pooled text is multiplied by, where the file has it (CLIP) */
    TABLES
} encoder_table;

typedef enum encoder_key {
    ENC_LAYERS,
    ENC_HIDDEN,
    ENC_INTERMEDIATE,
    ENC_HEADS,
    ENC_POSITIONS,
    ENC_EPS,
    ENC_ACTIVATION,
    ENC_KEYS
} encoder_key;

/* How one kind of encoder differs from the others: a row of the table in encoder_config.c. */
typedef struct encoder_family {
    const char *model_type;        /* config.json */
    const char *prefix, *layer;    /* of weights' names: "bert.", "encoder.layer." */
    const char *const *keys;       /* [ENC_KEYS]; NULL: a constant of the family */
    const char *const *parts;      /* [LAYER_PARTS], without ".weight" and ".bias"; NULL: it has none */
    const char *const *tables;     /* [TABLES]; NULL: it has none */
    bool positions_behind_padding; /* positions begin at pad_token_id + 1, … */
    int64_t padding;               /* … or at this + 1, whatever pad_token_id is; 0: they do not */
    double rope;                   /* its base where config.json says nothing; 0: none */
    bool fused_gate;               /* PART_UP has what is multiplied in front, then the gate */
    unsigned bare;                 /* bits of parts without biases */
    const char *activation;        /* where config.json says nothing */
    double eps;                    /* the same; 0: 1e-12 */
    bool norm_first;               /* norms stand before attention and feed-forward, not after them */
    bool one_layer;                /* all layers have the weights of the first */
    bool interleaved;              /* rope rotates neighbours */
    bool causal;                   /* a token sees itself and those before it */
    tn_pooling pooling;            /* where the folder says nothing; default: mean */
    const char *position_type;     /* position_embedding_type; NULL: absolute */
    const char *other_prefix;      /* before names, in files that have not `prefix`; NULL: none */
    const char *spare;             /* a table that some files have and no token reads; NULL: none */
    const int64_t *usual;          /* [ENC_KEYS], where config.json says nothing; NULL: it must say it */
} encoder_family;

/* A layer after pooling: a folder of its own. */
enum { ENC_MOST_DENSE = 4 };
typedef struct encoder_dense {
    char path[HF_NAME_SIZE];
    int64_t in, out;
    bool has_bias;
    tn_activation *activation;
} encoder_dense;

typedef struct encoder_config {
    const encoder_family *family;
    int64_t layers, heads, hidden, intermediate, vocabulary, positions, types, buckets;
    int64_t stored;                       /* layers with weights of their own: all, or one */
    int64_t embedding;                    /* width of the tables */
    bool projects, tasks, projects_texts; /* TABLE_PROJECTION, TABLE_TASKS, TABLE_OUTPUT are used */
    int64_t span;                         /* of TABLE_RELATIVE: rows for distances to one side; 0: none */
    double base;                          /* of rope */
    int64_t mask_token;                   /* its rows are 0, and the others larger (ESM); -1: no such token */
    int64_t first_position;               /* of a text, in the table of positions */
    int64_t longest;                      /* tokens of a text */
    double eps;
    tn_activation *activation;
    tn_pooling pooling;
    tn_embed_norm norm;
    int64_t width; /* of a text's vector */
    int dense_count;
    encoder_dense dense[ENC_MOST_DENSE];
    int64_t parameters, weights_bytes;
} encoder_config;

/* The row of TABLE_RELATIVE for a key that is `away` tokens before the query. */
int64_t tn_encoder_distance(const encoder_config *c, int64_t away);
/* Whether config.json's model_type is a family of this kind. */
bool tn_encoder_knows(const char *type);
/* Reads and checks; sets the folder's prefix. */
tn_status tn_encoder_configure(hf_folder *f, const tn_embedder_options *options, encoder_config *out);

/* encoder_config.c: the modules after the encoder, pooling and norm as the options have them. */
tn_status tn_encoder_modules(const hf_folder *f, const tn_embedder_options *o, encoder_config *c);
/* The weights of a dense layer, "linear.weight" and "linear.bias"; to be closed. */
tn_status tn_encoder_dense_weights(const hf_folder *f, const encoder_dense *d, hf_weights **out);

/* The name of a weight: `part` of a layer, or for layer < 0 a table. */
void tn_encoder_name(const encoder_config *c, int64_t layer, int part, const char *ending, char name[HF_NAME_SIZE]);

typedef struct encoder_weights {
    tn_tensor *words;
    tn_tensor *places;      /* a token's position and type together, from a text's first position on; a single row if
                             * positions are not learned; NULL: neither */
    tn_tensor *buckets;     /* NULL, or TABLE_BUCKETS */
    tn_tensor *frequencies; /* NULL, or rope's, [half] */
    tn_tensor *relative;    /* NULL, or TABLE_RELATIVE after its norm, [2 · span, hidden] */
    tn_tensor *distances;   /* and the row of each distance, from 1 - longest on, [2 · longest - 1, 1] */
    hf_linear norm, projection, last_norm, output; /* weight: NULL where there is none */
    hf_linear (*layers)[LAYER_PARTS];
    hf_linear dense[ENC_MOST_DENSE]; /* bias: NULL if absent */
} encoder_weights;

/* What a pass gets: `batch` texts of `length` tokens, shorter ones filled up. */
typedef struct encoder_batch {
    tn_tensor *ids;    /* [batch, length] i64 */
    tn_tensor *places; /* [length] i64: 0, 1, … */
    tn_tensor *seen;   /* [batch, length] f32: 1, and 0 where it is filled up; NULL: nothing is */
    bool apart;        /* texts are not put together to one matrix: both extents may be open ones */
} encoder_batch;

#endif
