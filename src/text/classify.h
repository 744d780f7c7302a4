/* classify.h — inside a classifier: its family, its network, and how pictures become its input.
 *
 * classify.c opens models and runs them; classify_picture.c reads preprocessor_config.json and resizes; vision.c and
 * classify_sound.c record the families. */
#ifndef TN_TEXT_CLASSIFY_H
#define TN_TEXT_CLASSIFY_H

#include "text/speech_ctc.h"
#include "text/speech_model.h"
#include "trunnion/classify.h"

/* What a network is given. */
typedef enum classifier_input {
    INPUT_PICTURE,     /* [1, 3, height, width] */
    INPUT_LOG_MEL,     /* Whisper's features, [1, mels, 3000] */
    INPUT_FILTER_BANK, /* Kaldi's features, [1, frames, mels] */
    INPUT_WAVES        /* [samples] */
} classifier_input;

/* A row of the table in classify.c. */
typedef struct classifier_family {
    const char *type, *prefix; /* config.json's model_type; what names of weights begin with */
    classifier_input input;
    double eps; /* of norms, where config.json says nothing */
    tn_tensor *(*record)(tn_classifier *c, tn_tensor *x);
    const net_layer *layer; /* NULL: not a transformer */
} classifier_family;

/* preprocessor_config.json of a model of pictures. */
typedef struct picture_preparation {
    bool resizes, cuts, to_square;
    int64_t resized[2]; /* height and width; to_square false: of the shorter edge */
    int64_t height, width;
    tn_interpolate_mode mode;
    double scale, mean[3], std[3];
} picture_preparation;

struct tn_classifier {
    net net;
    const classifier_family *family;
    picture_preparation picture;
    ctc_encoder waves;
    log_mel mel;
    int64_t layers, heads, classes, frames, mels;
    bool weighted; /* a sum of all layers' results is classified */
    double mean, std;
};

tn_status tn_picture_read(const hf_folder *f, picture_preparation *p);
/* rgb [height, width, 3] → [1, 3, p->height, p->width], recorded. */
tn_tensor *tn_picture_record(const picture_preparation *p, const uint8_t *rgb, int64_t height, int64_t width);

/* A number above 0, which tn_classifier_open checked, or a boolean of config.json; fallback if it is absent. */
int64_t tn_classifier_int(const tn_classifier *c, const char *key, int64_t fallback);
bool tn_classifier_bool(const tn_classifier *c, const char *key, bool fallback);

/* vision.c */
tn_tensor *tn_record_vit(tn_classifier *c, tn_tensor *x); /* ViT, DeiT, BEiT, DINOv2, AST */
tn_tensor *tn_record_swin(tn_classifier *c, tn_tensor *x);
tn_tensor *tn_record_resnet(tn_classifier *c, tn_tensor *x);
tn_tensor *tn_record_convnext(tn_classifier *c, tn_tensor *x);
tn_tensor *tn_record_mobilenet(tn_classifier *c, tn_tensor *x);

/* classify_sound.c */
tn_status tn_sound_read(tn_classifier *c);
/* Samples as the network's input, recorded. */
tn_tensor *tn_sound_record(tn_classifier *c, const float *samples, int64_t count);
tn_tensor *tn_record_whisper(tn_classifier *c, tn_tensor *x);
tn_tensor *tn_record_waves(tn_classifier *c, tn_tensor *x);

#endif
