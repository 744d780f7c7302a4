/* folder.h — a Hugging Face folder: config.json and the weights beside it, as families of models read them.
 *
 * Everything in it comes from strangers: numbers are read with their bounds, and errors name file and key. */
#ifndef TN_TEXT_FOLDER_H
#define TN_TEXT_FOLDER_H

#include "text/common.h"
#include "trunnion/json.h"

typedef struct hf_folder {
    char *path;
    tn_json_doc *doc;
    const tn_json *config;
    tn_safetensors *weights;
    const char *prefix; /* before the names of weights in this file: "bert.", or "" */
} hf_folder;

enum { HF_NAME_SIZE = 128, HF_MOST_LAYERS = 4096, HF_MOST_HEADS = 1 << 16, HF_MOST_WIDTH = 1 << 24 };

/* Whether a path is a folder. */
bool tn_hf_is_folder(const char *path);

tn_status tn_hf_open(const char *path, hf_folder *out); /* close it in either case */
void tn_hf_close(hf_folder *f);

/* Another file of the folder; TN_OK and *out NULL when there is none. */
tn_status tn_hf_json(const hf_folder *f, const char *name, tn_json_doc **out);

/* Some files have `prefix` before the names of their weights, others leave it out: `probe` is a name without it. */
void tn_hf_find_prefix(hf_folder *f, const char *prefix, const char *probe);

/* A weight by its name, with the prefix or without. */
bool tn_hf_find(const hf_folder *f, const char *name, tn_safetensors_info *info);
/* The name without the prefix. */
const char *tn_hf_strip(const hf_folder *f, const char *name);

/* Values of config.json. A key whose value is null counts as absent. */
bool tn_hf_has(const hf_folder *f, const char *key);
const char *tn_hf_text(const hf_folder *f, const char *key, const char *fallback);
/* A whole number from 1 to most; fallback < 0: the key is needed. */
tn_status tn_hf_size(const hf_folder *f, const char *key, int64_t fallback, int64_t most, int64_t *out);
/* object: a member of the configuration, or the whole; fallback NaN: the key is needed. */
tn_status tn_hf_real(const hf_folder *f, const tn_json *object, const char *key, double fallback, double least,
                     double most, double *out);
/* TN_ERR_UNSUPPORTED unless the key is absent or false. */
tn_status tn_hf_refuse(const hf_folder *f, const char *key);

/* What computing takes: f32, f16 or bf16. `shape` ends with a 0 where the rank is less than 2. */
tn_status tn_hf_check(const hf_folder *f, const tn_safetensors_info *t, const int64_t shape[2]);

/* What config.json calls an activation, as a function; NULL for a name that is not known here. */
typedef tn_tensor *tn_activation(const tn_tensor *x);
tn_activation *tn_txt_activation(const char *name);
tn_status tn_hf_activation(const hf_folder *f, const char *key, const char *fallback, tn_activation **out);

/* A word of a file, short and without what would disturb a terminal. */
typedef struct shown_word {
    char text[64];
} shown_word;
shown_word tn_txt_shown(const char *text, size_t length);

#endif
