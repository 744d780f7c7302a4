/* folder.h — a Hugging Face folder: config.json and the weights beside it, as families of models read them.
 *
 * Everything in it comes from strangers: numbers are read with their bounds, and errors name file and key. */
#ifndef TN_TEXT_FOLDER_H
#define TN_TEXT_FOLDER_H

#include "text/text_common.h"
#include "trunnion/json.h"

typedef struct hf_weights hf_weights;

typedef struct hf_folder {
    char *path;
    tn_json_doc *doc;
    const tn_json *config;
    hf_weights *weights;
    const char *prefix;         /* before the names of weights in this file: "bert.", or "" */
    int64_t taken, taken_bytes; /* numbers and bytes of the weights of tn_hf_take */
} hf_folder;

enum { HF_NAME_SIZE = 128, HF_MOST_LAYERS = 4096, HF_MOST_HEADS = 1 << 16, HF_MOST_WIDTH = 1 << 24 };

/* Whether a path is a folder. */
bool tn_hf_is_folder(const char *path);

tn_status tn_hf_open(const char *path, hf_folder *out); /* close it in either case */
void tn_hf_close(hf_folder *f);

/* How a kind of model is opened: its options (with their device's offset), its size, and functions for the rest. */
typedef struct hf_kind {
    const char *function, *initialiser; /* for errors: "tn_ctc_open", "tn_speech_options o = TN_SPEECH_DEFAULTS" */
    size_t size, device;
    tn_status (*open)(void *model, const char *folder, tn_device *device, const void *options);
    void (*close)(void *model); /* also after a failure of open */
} hf_kind;
/* Opens a model. options: the caller's, or NULL; defaults: those of the kind, which the caller's replace. *out: the
 * model, or NULL on failure. */
tn_status tn_hf_open_model(const hf_kind *kind, const char *folder, const void *options, void *defaults, void *out);

/* Another file of the folder; TN_OK and *out NULL when there is none. */
tn_status tn_hf_json(const hf_folder *f, const char *name, tn_json_doc **out);

/* ---- weights (folder.c) ------------------------------------------------------------------------------------------ */

/* Of a folder: model.safetensors or pytorch_model.bin, or the shards of one of them. *out: closed in either case. */
tn_status tn_hf_weights_open(const char *folder, hf_weights **out);
/* config: quantization_config of config.json. From then on the weights are presented as if they were stored plainly. */
void tn_hf_weights_close(hf_weights *w); /* NULL is fine */
#define AUTO_WEIGHTS AUTO_CALL(tn_hf_weights_close_held)
static inline void tn_hf_weights_close_held(hf_weights **w) { tn_hf_weights_close(*w); }
int64_t tn_hf_weights_count(const hf_weights *w);
/* Facts as for safetensors; data is NULL if a pickled tensor is not contiguous, or a quantized one must be decoded. */
tn_status tn_hf_weights_at(const hf_weights *w, int64_t i, tn_safetensors_info *info);
bool tn_hf_weights_find(const hf_weights *w, const char *name, tn_safetensors_info *info);
tn_tensor *tn_hf_weights_tensor(const hf_weights *w, const char *name);

/* Whether a name read from a file is a plain file name, so that it cannot lead out of the folder. */
bool tn_hf_plain_name(const char *name);

/* ---- what they hold ---------------------------------------------------------------------------------------------- */

/* Some files have `prefix` before the names of their weights, others leave it out: `probe` is a name without it. */
void tn_hf_find_prefix(hf_folder *f, const char *prefix, const char *probe);

/* A weight by its name, with the prefix or without. Norms that TensorFlow's names call gamma and beta are found as
 * weight and bias. */
bool tn_hf_find(const hf_folder *f, const char *name, tn_safetensors_info *info);
/* Whether a name ends in ".weight" or ".bias", or in ".gamma" or ".beta" (TensorFlow's names for norms). */
bool tn_hf_is_parameter(const char *ending);
/* Of a model that reads pictures or sound as well: whether the weight belongs to that part. */
bool tn_hf_is_other_part(const hf_folder *f, const char *name);
/* The name without the prefix. */
const char *tn_hf_strip(const hf_folder *f, const char *name);

/* Whether `path` is a folder whose config.json has a model_type that is_known takes. */
bool tn_hf_is_of(const char *path, bool (*is_known)(const char *type));

/* Fails with "'FOLDER/config.json': " in front of the text. */
tn_status tn_hf_fail(const char *folder, tn_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Values of config.json. A key whose value is null counts as absent. */
bool tn_hf_has(const hf_folder *f, const char *key);
const char *tn_hf_text(const hf_folder *f, const char *key, const char *fallback);
/* TN_ERR_FORMAT if a member of the object that the file holds is of another kind than its row says; keys: ends with a
 * NULL key. */
typedef struct hf_key {
    const char *key;
    tn_json_kind kind;
} hf_key;
tn_status tn_hf_check_kinds(const hf_folder *f, const char *file, const tn_json *object, const hf_key *keys);
/* A whole number from 1 to most; fallback < 0: the key is needed. */
tn_status tn_hf_size(const hf_folder *f, const char *key, int64_t fallback, int64_t most, int64_t *out);
/* object: a member of the configuration, or the whole; fallback NaN: the key is needed. */
tn_status tn_hf_real(const hf_folder *f, const tn_json *object, const char *key, double fallback, double least,
                     double most, double *out);
/* TN_ERR_UNSUPPORTED unless the key is absent or false. */
tn_status tn_hf_refuse(const hf_folder *f, const char *key);

/* What computing takes: f32, f16 or bf16. `shape` ends with a 0. */
tn_status tn_hf_check(const hf_folder *f, const tn_safetensors_info *t, const int64_t *shape);

/* "[3, 4]" */
typedef struct shape_text {
    char text[80];
} shape_text;
shape_text tn_txt_shape(const int64_t *shape, int rank);

/* A checked weight, computed: a handle of the caller's. f32: it becomes that; other weights keep their type. */
tn_status tn_hf_take(hf_folder *f, const char *name, const int64_t *shape, bool f32, tn_tensor **out);

/* A matrix, filter or norm, and its bias; NULL: none. */
typedef struct hf_linear {
    tn_tensor *weight, *bias;
} hf_linear;

/* "STEM.weight", and with `bias` "STEM.bias". Matrices keep their type unless f32 is set, all else becomes f32. */
tn_status tn_hf_take_linear(hf_folder *f, const char *stem, const int64_t *shape, bool f32, bool bias, hf_linear *out);
void tn_hf_free_linear(const hf_linear *l);
#define AUTO_LINEAR AUTO_CALL(tn_hf_free_linear)
tn_tensor *tn_hf_linear(const tn_tensor *x, const hf_linear *l);
/* Norms over the last dimension, with a mean and by the root of the mean square; weight: NULL for none. */
tn_tensor *tn_hf_norm(const tn_tensor *x, const hf_linear *l, double eps);
tn_tensor *tn_hf_rms_norm(const tn_tensor *x, const tn_tensor *weight, double eps);

/* Logits [count] that were computed, where they lie if the host can read them there (*shown holds them then), else in
 * `room`. */
tn_status tn_txt_show(tn_tensor *logits, float *room, int64_t count, tn_tensor **shown, const float **out);

/* What config.json calls an activation, as a function; NULL for a name that is not known here. */
typedef tn_tensor *tn_activation(const tn_tensor *x);
tn_activation *tn_txt_activation(const char *name);
tn_status tn_hf_activation(const hf_folder *f, const char *key, const char *fallback, tn_activation **out);

/* A word of a file, short and without what would disturb a terminal. */
typedef struct shown_word {
    char text[64];
} shown_word;
shown_word tn_txt_shown(const char *text, size_t length);

/* ---- quantized folders (folder_quant.c) -------------------------------------------------------------------------- */
/* The weights of a quantized folder, as if they were stored plainly. */

typedef struct hf_quant hf_quant;

/* config: quantization_config of config.json; file: the weights, NULL if they are no safetensors; it must stay open.
 * *out: closed in either case. */
tn_status tn_hf_quant_open(const char *folder, const tn_json *config, const tn_safetensors *file, hf_quant **out);
void tn_hf_quant_close(hf_quant *q); /* NULL is fine */

/* As the functions of hf_weights; data is NULL for what is computed. */
int64_t tn_hf_quant_count(const hf_quant *q);
void tn_hf_quant_at(const hf_quant *q, int64_t i, tn_safetensors_info *info);
bool tn_hf_quant_find(const hf_quant *q, const char *name, tn_safetensors_info *info);
tn_tensor *tn_hf_quant_tensor(const hf_quant *q, const char *name);

#endif
