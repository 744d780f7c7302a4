/* sides.h — layers of models with an encoder and a decoder (seq2seq.c, speech.c, moonshine.c): their weights, a
 * decoder's states and its next token. */
#ifndef TN_TEXT_SIDES_H
#define TN_TEXT_SIDES_H

#include "text/folder.h"
#include "trunnion/trunnion.h"

enum { ENCODER, DECODER, PAGE = 64 /* tokens of a page of the cache: the attention's contract */ };

/* What a layer holds; an encoder's has no cross attention. */
typedef enum side_part {
    SELF_Q,
    SELF_K,
    SELF_V,
    SELF_O,
    SELF_NORM,
    UP,
    GATE,
    DOWN,
    FFN_NORM,
    CROSS_Q,
    CROSS_K,
    CROSS_V,
    CROSS_O,
    CROSS_NORM,
    BIAS,
    PARTS
} side_part;
extern const char *const tn_side_names[2];
extern const char *const tn_side_parts[PARTS]; /* in BART and Whisper; NULL: they have none */

/* A decoder's states: keys and values of its tokens, [pages, heads, PAGE, width], and of what the encoder made,
 * [1, heads, rows, width]. */
enum { KEYS, VALUES, CROSS_KEYS, CROSS_VALUES, STATES };

typedef struct side_layer {
    hf_linear part[PARTS];
    tn_tensor *state[STATES];
} side_layer;

tn_status tn_side_make_states(side_layer *layers, int64_t count, int64_t context, int64_t heads, int64_t width,
                              int64_t rows);
void tn_side_free_states(side_layer *layers, int64_t count); /* layers may be NULL */
void tn_side_free_layers(side_layer *layers, int64_t count);

/* A decoder's plan for one token, captured at the first one, and the logits of the last one. */
typedef struct side_token {
    tn_graph *graph;  /* free it before the states that it writes to */
    float *logits;    /* room, [vocabulary] */
    tn_tensor *shown; /* NULL, or whose memory the last logits are in */
} side_token;

/* Records the logits after a token; position: a runtime scalar. */
typedef tn_tensor *side_record(void *model, tn_tensor *const *inputs, tn_tensor *position);
/* *out: the logits after the token that `inputs` [count] hold, valid until the next call. */
tn_status tn_side_step(side_token *t, side_record *record, void *model, tn_tensor *const *inputs, int count,
                       int64_t position, int64_t vocabulary, const float **out);
void tn_side_free_graph(side_token *t);
void tn_side_free_token(side_token *t);

#endif
