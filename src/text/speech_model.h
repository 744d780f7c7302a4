/* speech_model.h — shared by the files of speech recognition: the log-mel front end, the model, its special tokens. */
#ifndef TN_TEXT_SPEECH_MODEL_H
#define TN_TEXT_SPEECH_MODEL_H

#include "text/sides.h"
#include "trunnion/speech.h"
#include "trunnion/trunnion.h"

/* ---- log-mel spectrogram (wav.c) --------------------------------------------------------------------------------- */

enum { MEL_HOP = 160, MEL_WINDOW_FRAMES = 3000 /* 30 s */ };

typedef struct log_mel {
    int64_t mels, points; /* points: of a Fourier transform */
    tn_device *device;    /* the CPU: f64 is not available everywhere */
    tn_tensor *filters;   /* [points / 2 + 1, mels] f64 */
} log_mel;

/* kaldi: for tn_log_mel_kaldi, otherwise for tn_log_mel_run. Free it in either case. */
tn_status tn_log_mel_init(log_mel *m, int64_t mels, bool kaldi);
void tn_log_mel_free(log_mel *m);
int64_t tn_log_mel_frames(int64_t count);
/* samples [count] → out [mels, tn_log_mel_frames(count)] */
tn_status tn_log_mel_run(const log_mel *m, const float *samples, int64_t count, float *out);
/* Kaldi's filter bank, as torchaudio computes it: out [rows, mels]; only the rows that the sound has are written. */
tn_status tn_log_mel_kaldi(const log_mel *m, const float *samples, int64_t count, int64_t rows, float *out);

/* ---- model (speech.c) -------------------------------------------------------------------------------------------- */

/* Ids of special tokens. */
typedef struct speech_tokens {
    int32_t start, end, no_timestamps, transcribe, translate;
    int32_t first_language, language_count; /* their tokens follow each other */
    int64_t last_initial;                   /* the latest timestamp that a window may begin with, in steps of 20 ms */
    int32_t *suppressed, *suppressed_first; /* never, and not as the first token of a window */
    int64_t suppressed_count, suppressed_first_count;
} speech_tokens;

typedef struct speech_config {
    int64_t layers[2]; /* of encoder and decoder */
    int64_t heads[2], inner[2];
    int64_t hidden, mels, vocabulary, source_positions, context;
    tn_activation *activation;
    bool multilingual;
} speech_config;

struct tn_speech {
    hf_folder folder;
    tn_device *device;
    tn_tokenizer *tokenizer;
    speech_config config;
    speech_tokens tokens;
    log_mel front;
    hf_linear conv[2], norm[2]; /* norm: after the last layer of encoder and decoder */
    tn_tensor *positions[2], *embedding, *pages;
    side_layer *layers[2];
    side_token token;
    int64_t position; /* tokens of the sequence */
    bool encoded;
};

/* speech_text.c: reads generation_config.json, config.json and the tokenizer. */
tn_status tn_speech_read_tokens(tn_speech *s);

#endif
