/* speech_ctc.h — the encoder of Wav2Vec 2 and its siblings: sound to one row for each 20 ms. Letters are made of the
 * rows in speech_ctc.c, classes in classify_sound.c. */
#ifndef TN_TEXT_SPEECH_CTC_H
#define TN_TEXT_SPEECH_CTC_H

#include "text/network.h"
#include "trunnion/speech.h"

enum { CTC_MOST_CONVOLUTIONS = 16 };

typedef struct ctc_kind ctc_kind;

typedef struct ctc_encoder {
    const ctc_kind *kind;
    int64_t convolution_count, layers, heads, hidden, position_kernel, position_groups;
    int64_t position_count, buckets, most_distance;
    struct {
        int64_t channels, kernel, stride;
    } convolutions[CTC_MOST_CONVOLUTIONS];
    bool norms_each;  /* each convolution has a norm over channels; else the first has one of each channel */
    bool norms_first; /* in front of attention and feed-forward, and one at the end; else after them */
    bool normalizes;  /* the sound gets mean 0 and variance 1 */
    bool convolution_bias, front_norm;
    tn_activation *front_activation;
    tn_tensor *positions; /* the filter that tells positions, of its direction and length; NULL: stored plainly */
} ctc_encoder;

bool tn_ctc_encoder_knows(const char *model_type);
/* Reads config.json and preprocessor_config.json; sets eps, activation and prefix of the network. */
tn_status tn_ctc_encoder_read(net *n, ctc_encoder *e);
/* What is computed of loaded weights. */
tn_status tn_ctc_encoder_load(net *n, ctc_encoder *e);
void tn_ctc_encoder_free(ctc_encoder *e);

int64_t tn_ctc_encoder_frames(const ctc_encoder *e, int64_t count); /* rows for `count` samples */
int64_t tn_ctc_encoder_least(const ctc_encoder *e);                 /* samples for one row; at most those of 30 s */
/* A copy of the sound as the model takes it; to be freed. */
tn_status tn_ctc_encoder_prepare(const ctc_encoder *e, const float *samples, int64_t count, float **out);
/* Sound [n] → [1, frames, hidden]. states: NULL, or room for layers + 1: the rows before each layer and after the
 * last. */
tn_tensor *tn_ctc_encoder_record(const ctc_encoder *e, net *n, const tn_tensor *sound, tn_tensor **states);

/* Appends the tokens and the text of a window of sound. */
typedef tn_status tn_window_hear(void *model, const float *samples, int64_t count, tn_ids *ids, tn_bytes *text);
/* Hands out the text of each 30 s of sound; what is left of it counts from `least` samples on. */
tn_status tn_ctc_windows(const float *samples, int64_t count, int64_t least, tn_window_hear *hear, void *model,
                         tn_speech_take *take, void *ctx);

#endif
