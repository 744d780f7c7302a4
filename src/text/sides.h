/* sides.h — layers of models with an encoder and a decoder (seq2seq.c, speech.c): their weights, a decoder's states. */
#ifndef TN_TEXT_SIDES_H
#define TN_TEXT_SIDES_H

#include "text/folder.h"

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

#endif
