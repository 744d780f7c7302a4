/* speech.h — speech recognition with Whisper, Wav2Vec 2 and its siblings: audio in, text out; reading WAV files.
 *
 * Part of libtrunnion-text; it uses only libtrunnion's public interface.
 *
 *   tn_audio audio = {0};
 *   tn_speech *s;
 *   tn_audio_read("talk.wav", TN_SPEECH_RATE, &audio);
 *   tn_speech_open("whisper-tiny", NULL, &s);
 *   tn_speech_transcribe(s, audio.samples, audio.count, NULL, print_segment, NULL);
 *   tn_speech_close(s);
 *   tn_audio_free(&audio);
 *
 * Threads: one thread at a time may use a tn_speech. */
#ifndef TRUNNION_SPEECH_H
#define TRUNNION_SPEECH_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- audio ------------------------------------------------------------------------------------------------------- */

/* One channel of sound. Initialize it with {0}. */
typedef struct tn_audio {
    float *samples; /* [count], full scale is -1 to 1 */
    int64_t count;
    int64_t rate;        /* samples per second */
    int64_t source_rate; /* of the file, before resampling */
    int channels;        /* of the file, before they were averaged */
} tn_audio;

/* Reads a WAV file: PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64 bits; 1 to 64 channels, which are averaged.
 *   rate: samples per second wanted; the sound is resampled by a band-limited interpolation (a sinc with a Kaiser
 *     window). 0: as in the file. Both rates must be in [1000, 192000].
 *   *out: freed with tn_audio_free; empty on failure.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT with what is wrong; TN_ERR_UNSUPPORTED for other encodings (A-law, ADPCM, MP3 …);
 * TN_ERR_ARGUMENT for a rate out of range; TN_ERR_MEMORY. Source: Microsoft, Multimedia Programming Interface 1.0
 * (RIFF WAVE); Smith, Digital Audio Resampling. */
TN_API tn_status tn_audio_read(const char *path, int64_t rate, tn_audio *out);
/* The same for a file in memory, `size` bytes. */
TN_API tn_status tn_audio_parse(const void *data, size_t size, int64_t rate, tn_audio *out);
TN_API void tn_audio_free(tn_audio *audio); /* leaves it empty; NULL is allowed */

/* ---- speech recognition ------------------------------------------------------------------------------------------ */

enum { TN_SPEECH_RATE = 16000 /* samples per second of all models */ };

typedef struct tn_speech tn_speech;

typedef struct tn_speech_options {
    size_t struct_size;
    tn_device *device; /* default NULL: the thread's current device */
} tn_speech_options;
#define TN_SPEECH_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_speech_options, device), NULL }

/* Opens a Whisper model in a Hugging Face folder: config.json, generation_config.json, tokenizer.json, and weights as
 * safetensors or pytorch_model.bin. options may be NULL. *out: closed with tn_speech_close.
 * Errors: those of tn_json_open, tn_safetensors_open and tn_tokenizer_open; TN_ERR_UNSUPPORTED for another model_type;
 * TN_ERR_FORMAT with the key, token or tensor that is missing or does not fit.
 * Source: Radford et al. 2022; transformers.WhisperForConditionalGeneration. */
TN_API tn_status tn_speech_open(const char *folder, const tn_speech_options *options, tn_speech **out);
TN_API void tn_speech_close(tn_speech *s); /* NULL is allowed */

/* Properties of a model. */
typedef struct tn_speech_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* "whisper" */
    int64_t encoder_layers, decoder_layers, hidden, heads, vocabulary;
    int64_t mels;    /* rows of the features */
    int64_t frames;  /* columns of the features of a window: 3000, which is 30 s */
    int64_t context; /* tokens of a window at most, with those that begin it */
    int64_t parameters, weights_bytes;
    bool multilingual; /* otherwise it knows only English, and cannot translate */
} tn_speech_facts;
/* Fills *facts; the caller sets facts->struct_size. */
TN_API tn_status tn_speech_get_facts(const tn_speech *s, tn_speech_facts *facts);

/* A part of the text. Pointers are valid during the call that hands it out. */
typedef struct tn_speech_segment {
    double start, end;  /* seconds */
    const char *text;   /* UTF-8; most begin with a space */
    const int32_t *ids; /* [count], with those of timestamps */
    int64_t count;
    const char *language; /* "en"; NULL for a model that knows only English */
} tn_speech_segment;

/* Called for each segment. If it fails, the transcription stops and returns its status. */
typedef tn_status tn_speech_take(void *ctx, const tn_speech_segment *segment);

typedef struct tn_transcribe_options {
    size_t struct_size;
    const char *language; /* code, "en"; default NULL: the most probable one at the beginning */
    bool translate;       /* the text in English, whatever is spoken; default false */
    bool timestamps;      /* segments with their times also for audio of up to 30 s; default false */
    int64_t max_tokens;   /* of a window; default 0: as many as the model can */
} tn_transcribe_options;
#define TN_TRANSCRIBE_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_transcribe_options, max_tokens), NULL, false, false, 0 }

/* Writes down what is said in samples [count], TN_SPEECH_RATE per second, always with the most probable token.
 * Audio of up to 30 s becomes one segment, unless options->timestamps is set. Longer audio is cut into windows of 30 s;
 * a window begins where the last complete segment ended, so the times that the model predicts are always used.
 *   options: NULL for the defaults. take: called for each segment, in order.
 * Errors: TN_ERR_ARGUMENT for no samples, values that are not finite, an unknown language, or a language or translation
 * that the model cannot do; those of take. Source: Radford et al. 2022, section 3.8, without its fallbacks. */
TN_API tn_status tn_speech_transcribe(tn_speech *s, const float *samples, int64_t count,
                                      const tn_transcribe_options *options, tn_speech_take *take, void *ctx);

/* ---- models without a decoder ------------------------------------------------------------------------------------ */

/* Wav2Vec 2, HuBERT, UniSpeech, UniSpeech-SAT, WavLM and data2vec-audio: each 20 ms of sound get a letter or nothing
 * (CTC). One thread at a time may use a model. */
typedef struct tn_ctc tn_ctc;

/* Returns whether a path is a folder whose config.json has a model_type of this kind. */
TN_API bool tn_ctc_knows(const char *path);
/* Opens a model in a Hugging Face folder: config.json, vocab.json, preprocessor_config.json (if it exists), and weights
 * as safetensors or pytorch_model.bin. *out: closed with tn_ctc_close.
 * Errors: those of tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED for another model_type, or adapters;
 * TN_ERR_FORMAT with the key or tensor that is missing or does not fit.
 * Source: Baevski et al. 2020, "wav2vec 2.0"; Wav2Vec2ForCTC, HubertForCTC of transformers. */
TN_API tn_status tn_ctc_open(const char *folder, const tn_speech_options *options, tn_ctc **out);
TN_API void tn_ctc_close(tn_ctc *m);                          /* NULL is allowed */
TN_API int64_t tn_ctc_vocabulary(const tn_ctc *m);            /* tokens; 0 for NULL */
TN_API int64_t tn_ctc_frames(const tn_ctc *m, int64_t count); /* rows of logits for `count` samples */
/* Computes the logits of samples [count], TN_SPEECH_RATE per second, at most 30 s: out [frames, vocabulary]. */
TN_API tn_status tn_ctc_logits(tn_ctc *m, const float *samples, int64_t count, float *out);
/* Writes down what is said in samples [count], with the most probable letter of each frame, in windows of 30 s, each of
 * which is a segment. A failing `take` stops it. */
TN_API tn_status tn_ctc_transcribe(tn_ctc *m, const float *samples, int64_t count, tn_speech_take *take, void *ctx);

/* ---- Moonshine --------------------------------------------------------------------------------------------------- */

/* Moonshine, whose work grows with the length of the sound. One thread at a time may use a model. */
typedef struct tn_moonshine tn_moonshine;

/* Returns whether a path is a folder whose config.json has this model_type. */
TN_API bool tn_moonshine_knows(const char *path);
/* Opens a model in a Hugging Face folder: config.json, tokenizer.json and weights. *out: closed with
 * tn_moonshine_close. Errors: as tn_speech_open. Source: Jeffries et al. 2024, "Moonshine". */
TN_API tn_status tn_moonshine_open(const char *folder, const tn_speech_options *options, tn_moonshine **out);
TN_API void tn_moonshine_close(tn_moonshine *m); /* NULL is allowed */
/* Writes down what is said in samples [count] with the most probable tokens, at most 6.5 a second, in windows of 30 s,
 * each of which is a segment. A failing `take` stops it. */
TN_API tn_status tn_moonshine_transcribe(tn_moonshine *m, const float *samples, int64_t count, tn_speech_take *take,
                                         void *ctx);

/* ---- the model's parts ------------------------------------------------------------------------------------------- */

/* Computes the log-mel spectrogram of samples [count]: out [mels, tn_speech_feature_frames(s, count)], in f64 rounded
 * to f32. Audio is padded with silence to 30 s. Source: transformers.WhisperFeatureExtractor. */
TN_API tn_status tn_speech_features(const tn_speech *s, const float *samples, int64_t count, float *out);
/* Returns the number of columns: one for each 10 ms, at least those of a window. */
TN_API int64_t tn_speech_feature_frames(const tn_speech *s, int64_t count);

/* Encodes a window of features [mels, frames of the facts] and begins an empty sequence of tokens that describes it. */
TN_API tn_status tn_speech_encode(tn_speech *s, const float *features);
/* Appends a token to the sequence. *logits: [vocabulary] of the next token, valid until the next call on s; may be
 * NULL. Errors: TN_ERR_STATE before tn_speech_encode; TN_ERR_ARGUMENT for an id outside the vocabulary or a full
 * sequence. */
TN_API tn_status tn_speech_step(tn_speech *s, int32_t id, const float **logits);

#ifdef __cplusplus
}
#endif
#endif
