/* convert.h — what `trunnion convert` is made of: any file as a list of tensors, and how well a model still predicts a
 * text. */
#ifndef TRUNNION_CLI_CONVERT_H
#define TRUNNION_CLI_CONVERT_H

#include "cli.h"
#include "trunnion/model.h"

/* ---- files (convert_file.c) -------------------------------------------------------------------------------------- */

typedef enum convert_kind {
    CONVERT_SAFETENSORS, /* a file, an index or a folder */
    CONVERT_GGUF,
    CONVERT_PICKLE,
    CONVERT_UNKNOWN
} convert_kind;

typedef struct convert_file {
    convert_kind kind;
    const char *path;
    tn_safetensors *safetensors;
    tn_gguf *gguf;
    tn_pickle *pickle;
    int64_t count;
} convert_file;

/* A tensor of a file, whatever its kind. Strings live as long as the file. */
typedef struct convert_tensor {
    const char *name, *type; /* type: the file's word */
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK];
    int64_t numel, bytes;
    const void *data; /* of a GGUF file: as it stands there */
} convert_tensor;

convert_kind convert_kind_of(const char *path); /* by the ending of its name, or what is in a folder */
tn_status convert_open(const char *path, convert_file *out);
void convert_close(convert_file *f);
tn_status convert_at(const convert_file *f, int64_t i, convert_tensor *out);
tn_tensor *convert_tensor_of(const convert_file *f, const char *name);
/* All numbers of a tensor in f32; free with free(). NULL after a failure of the library. */
float *convert_numbers(const convert_file *f, const char *name, int64_t numel);

/* ---- how well a model predicts a text (perplexity.c; refused where there is no libtrunnion-text) ----------------- */

bool convert_perplexity(const cli_options *o, const char *model, const char *text, int64_t context, double *out);

#endif
