/* classify.h — what is in a picture or a sound: classifiers in Hugging Face folders (ViT, DeiT, BEiT, DINOv2, Swin,
 * ResNet, ConvNeXt, MobileNetV2; AST, Whisper's encoder, Wav2Vec 2 and its siblings).
 *
 * Part of libtrunnion-text; it uses only libtrunnion's public interface.
 *
 *   tn_classifier *c;
 *   tn_classifier_open("vit-base-patch16-224", NULL, &c);
 *   tn_classifier_picture(c, rgb, height, width, logits); // logits [classes]
 *   tn_classifier_close(c);
 *
 * One thread at a time may use a classifier. */
#ifndef TRUNNION_CLASSIFY_H
#define TRUNNION_CLASSIFY_H

#include "trunnion/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_classifier tn_classifier;

typedef struct tn_classifier_options {
    size_t struct_size;
    tn_device *device; /* default NULL: the thread's current device */
} tn_classifier_options;
#define TN_CLASSIFIER_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_classifier_options, device), NULL }

/* Properties of a classifier. Strings are valid as long as it is open. */
typedef struct tn_classifier_facts {
    size_t struct_size;       /* set by the caller */
    const char *architecture; /* config.json's model_type: "vit" */
    bool hears;               /* classifies sound; otherwise pictures */
    int64_t classes;
    int64_t height, width; /* of a picture as the network gets it; 0 for sound */
    bool independent;      /* a picture or sound may be of several classes: probabilities do not add up to 1 */
    int64_t parameters, weights_bytes;
} tn_classifier_facts;

/* Returns whether a path is a folder whose config.json has a supported model_type. */
TN_API bool tn_classifier_knows(const char *path);
/* Opens the classifier in a folder: config.json, preprocessor_config.json, and weights as safetensors or
 * pytorch_model.bin, which are computed in f32. options may be NULL. *out: closed with tn_classifier_close.
 * Errors: those of tn_json_open and tn_safetensors_open; TN_ERR_UNSUPPORTED with the name of an unsupported model_type
 * or feature; TN_ERR_FORMAT with the key or tensor that is missing or does not fit; TN_ERR_SHAPE from an operation that
 * a weight does not fit. Source: the classes …ForImageClassification, …ForAudioClassification and
 * …ForSequenceClassification of transformers. */
TN_API tn_status tn_classifier_open(const char *folder, const tn_classifier_options *options, tn_classifier **out);
TN_API void tn_classifier_close(tn_classifier *c); /* NULL is allowed */
/* Fills *facts; the caller sets facts->struct_size. */
TN_API tn_status tn_classifier_get_facts(const tn_classifier *c, tn_classifier_facts *facts);
/* Returns the name of a class from config.json; "" if it has none. Valid as long as c is open. */
TN_API const char *tn_classifier_label(const tn_classifier *c, int64_t index);

/* Computes the logits of a picture, rows of RGB from the top: out [classes]. It is resized, cut and scaled as
 * preprocessor_config.json says. Errors: TN_ERR_ARGUMENT for a classifier of sound, or no pixels. */
TN_API tn_status tn_classifier_picture(tn_classifier *c, const uint8_t *rgb, int64_t height, int64_t width, float *out);
/* Writes what the network would get of a picture: out [3, facts.height, facts.width]. */
TN_API tn_status tn_classifier_prepare(const tn_classifier *c, const uint8_t *rgb, int64_t height, int64_t width,
                                       float *out);
/* The same for a network that was exported from a folder: *out [1, 3, height, width] in f32, as the folder's
 * preprocessor_config.json says, on the current device; a new handle. Errors: TN_ERR_IO without such a file,
 * TN_ERR_FORMAT and TN_ERR_UNSUPPORTED with the key, TN_ERR_ARGUMENT for no pixels or too many. */
TN_API tn_status tn_classifier_prepare_by(const char *folder, const uint8_t *rgb, int64_t height, int64_t width,
                                          tn_tensor **out);
/* Computes the logits of samples [count], 16000 per second (TN_SPEECH_RATE): out [classes]. AST and Whisper look at the
 * first 10 s and 30 s, as their configuration says. Errors: TN_ERR_ARGUMENT for a classifier of pictures, samples that
 * are not finite, or too few of them. */
TN_API tn_status tn_classifier_sound(tn_classifier *c, const float *samples, int64_t count, float *out);
/* Turns logits [classes] into probabilities, in place: by softmax or, with facts.independent, each by a sigmoid. */
TN_API void tn_classifier_probabilities(const tn_classifier *c, float *logits);

#ifdef __cplusplus
}
#endif
#endif
