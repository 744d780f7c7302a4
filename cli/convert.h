/* convert.h — what `trunnion convert` is made of: any file as a list of tensors, and how well a model still predicts a
 * text. */
#ifndef TRUNNION_CLI_CONVERT_H
#define TRUNNION_CLI_CONVERT_H

#include "cli.h"
#include "trunnion/json.h"
#include "trunnion/model.h"

/* ---- a folder that becomes GGUF (convert_folder.c) --------------------------------------------------------------- */

enum { CONVERT_NAME = 192 };

typedef struct convert_folder {
    const char *path, *architecture; /* GGUF's word */
    tn_json_doc *config;
    int64_t heads, kv_heads, count;
    bool turned;  /* rows of q and k change places */
    char **names; /* of the tensors that were asked for */
    int64_t *turns;
} convert_folder;

tn_status convert_folder_open(const char *path, int64_t tensors, convert_folder *out); /* close it in either case */
void convert_folder_close(convert_folder *f);
/* GGUF's name of tensor i; *heads: over how many heads its rows change places (convert_turn), 0: none. */
tn_status convert_folder_name(const convert_folder *f, int64_t i, const char *name, const char **out, int64_t *heads);
tn_tensor *convert_turn(const tn_tensor *t, int64_t heads);
tn_status convert_folder_metadata(const convert_folder *f, tn_gguf_writer *w);

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
    convert_folder *folder; /* NULL unless its tensors are called as in GGUF files */
    int64_t count;
} convert_file;

/* A tensor of a file, whatever its kind. Strings live as long as the file. */
typedef struct convert_tensor {
    const char *name, *type; /* type: the file's word */
    const char *source;      /* its name in the file */
    int64_t heads;           /* its rows change places over so many heads; 0: they do not */
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
tn_tensor *convert_tensor_of(const convert_file *f, const convert_tensor *t);
/* All numbers of a tensor in f32; free with free(). NULL after a failure of the library. */
float *convert_numbers(const convert_file *f, const convert_tensor *t);

/* ---- how well a model predicts a text (perplexity.c; refused where there is no libtrunnion-text) ----------------- */

/* context: tokens of a window; 0: the usual ones */
bool convert_perplexity(const cli_options *o, const char *model, const char *text, int64_t context, double *out);

#endif
