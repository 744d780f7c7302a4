/* convert.h — what `trunnion convert` is made of: any file as a list of tensors; their way into another one; what is
 * told of it; and how well a model still predicts a text. */
#ifndef TRUNNION_CLI_CONVERT_H
#define TRUNNION_CLI_CONVERT_H

#include "cli/cli.h"
#include "trunnion/json.h"
#include "trunnion/model.h"
#include "trunnion/onnx.h"

/* ---- a folder that becomes GGUF (convert_folder.c) --------------------------------------------------------------- */

enum { CONVERT_NAME = 192 };
/* In the place of a number of heads: a matrix whose rows become columns; a vector of which 1 is taken, or added to. */
#define CONVERT_TRANSPOSED INT64_MAX
#define CONVERT_LESS_ONE (INT64_MAX - 1)
#define CONVERT_PLUS_ONE (INT64_MAX - 2)
#define CONVERT_JOINED (INT64_MAX - 3) /* of all experts, which the file has one by one */
#define CONVERT_PART (INT64_MAX - 4)   /* of one of them, which the file has together */
#define CONVERT_NO_HEADS CONVERT_PART  /* what is this or more is no number of heads */

typedef struct convert_folder {
    const char *path, *architecture; /* GGUF's word */
    const struct convert_family *family;
    tn_json_doc *config;
    int64_t heads, kv_heads, count;
    double base;             /* of rope, where config.json says nothing */
    int64_t experts, layers; /* of a mixture; 0: it is none */
    bool turned;             /* rows of q and k change places */
    bool back;               /* from a GGUF file to a folder */
    char **names;            /* of the tensors that were asked for */
    int64_t *turns;
    char **expert_names;  /* the same of experts */
    tn_tensor *tables[2]; /* of rope: tensors that a GGUF file has and a folder has not */
    const char *table_names[2];
    int table_count;
} convert_folder;

tn_status convert_folder_open(const char *path, int64_t tensors, convert_folder *out); /* close it in either case */
/* The other way: what the tensors of a GGUF file are called in a folder. */
tn_status convert_folder_from(const tn_gguf *file, int64_t tensors, convert_folder *out); /* close it in either case */
void convert_folder_close(convert_folder *f);
bool convert_folder_leaves_out(const convert_folder *f, const char *name); /* masks, tables: what is no weight */
/* Fails with "'FOLDER/config.json': " in front of the text. */
tn_status convert_fail(const char *folder, tn_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A JSON file of the folder; *out is NULL where it is not there and not needed. */
tn_status convert_folder_json(const convert_folder *f, const char *name, bool needed, tn_json_doc **out);
/* The other kind's name of tensor i; *heads: over how many heads its rows change places (convert_turn), 0: none. */
tn_status convert_folder_name(const convert_folder *f, int64_t i, const char *name, const char **out, int64_t *heads);
tn_tensor *convert_turn(const tn_tensor *t, int64_t heads);
/* Sizes by both names, ended by a row of NULL. */
typedef struct convert_size {
    const char *hf, *gguf; /* GGUF's behind the architecture */
    bool needed;
} convert_size;
const convert_size *convert_folder_sizes(const convert_folder *f);
bool convert_folder_weighs_whole(const convert_folder *f); /* the weights of a token's experts add up to 1 */
/* config.json's word for a model of that architecture; window: layers look back over so many tokens alone. */
const char *convert_folder_type(const convert_folder *f, bool window);
/* May a GGUF file of the folder have that file's metadata? */
tn_status convert_folder_is_like(const convert_folder *f, const tn_gguf *like);
tn_status convert_folder_metadata(const convert_folder *f, tn_gguf_writer *w);
/* Rope (convert_rope.c): makes tables and writes keys; the other way, writes config.json's members. */
tn_status convert_rope_open(convert_folder *f);
tn_status convert_rope_put(const convert_folder *f, tn_gguf_writer *w);
bool convert_rope_is_table(const char *name);
bool convert_rope_is_known(const tn_gguf *file, const char *architecture);
/* head: elements of a head. */
void convert_rope_back(const tn_gguf *file, const char *architecture, int64_t context, int64_t head, cli_json *j);
/* Experts (convert_experts.c), which count as tensors behind all others: how many tensors, and number i of them, whose
 * name is made at *name where there is none yet. */
tn_status convert_experts_open(convert_folder *f, int64_t experts, int64_t layers);
bool convert_experts_has(const convert_folder *f, const char *name);
int64_t convert_experts_count(const convert_folder *f);
/* What Gemma 2 and 3 have besides (convert_gemma.c), by GGUF's word for them. */
bool convert_is_gemma(const char *architecture);
tn_status convert_gemma_put(const convert_folder *f, tn_gguf_writer *w);
bool convert_gemma_is_known(const tn_gguf *file, const char *architecture); /* has a folder words for it? */
void convert_gemma_back(const tn_gguf *file, const char *architecture, int64_t heads, cli_json *j);
void convert_scales_back(const tn_gguf *file, const char *architecture, cli_json *j); /* Granite's multipliers */
tn_status convert_tokenizer(const convert_folder *f, tn_gguf_writer *w); /* tokenizer.json (convert_tokenizer.c) */

/* ---- importance of columns (convert_llm.c; an error in builds without libtrunnion-text) -------------------------- */

typedef struct convert_importance {
    struct convert_columns {
        char *name; /* of a tensor in the file */
        float *squares;
        int64_t columns;
    } * list;
    int64_t count, room;
} convert_importance;

/* From the model in `model`, run over a text. */
bool convert_find_importance(const cli_options *o, const char *model, const char *text, convert_importance *out);
void convert_importance_free(convert_importance *i);

/* ---- files (convert_file.c) -------------------------------------------------------------------------------------- */

typedef enum convert_kind {
    CONVERT_SAFETENSORS, /* a file, an index or a folder */
    CONVERT_GGUF,
    CONVERT_PICKLE,
    CONVERT_ONNX,
    CONVERT_FOLDER, /* to be made; as an input it is CONVERT_SAFETENSORS */
    CONVERT_UNKNOWN
} convert_kind;

typedef struct convert_file {
    convert_kind kind;
    const char *path;
    tn_safetensors *safetensors;
    tn_gguf *gguf;
    tn_pickle *pickle;
    tn_onnx *onnx;
    int *weights;                         /* of the file's tensors, those that count; NULL: all */
    const convert_importance *importance; /* of columns, for quantising; NULL */
    convert_folder *folder;               /* NULL unless its tensors are called as in GGUF files */
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
    tn_tensor *value; /* of an ONNX file; else NULL */
    int64_t expert;   /* its number among those of experts */
} convert_tensor;

convert_kind convert_kind_of(const char *path); /* by the ending of its name, or what is in a folder */
tn_status convert_open(const char *path, convert_file *out);
void convert_close(convert_file *f);
/* Tensors of a folder that are no weights do not count any more; tables that the other kind holds as tensors do. */
tn_status convert_leave_out(convert_file *f);
tn_status convert_at(const convert_file *f, int64_t i, convert_tensor *out);
tn_tensor *convert_tensor_of(const convert_file *f, const convert_tensor *t);
tn_status convert_experts_at(const convert_file *f, int64_t i, char **name, convert_tensor *out);
tn_tensor *convert_experts_tensor(const convert_file *f, const convert_tensor *t);
/* All numbers of a tensor in f32; free with free(). NULL after a failure of the library. */
float *convert_numbers(const convert_file *f, const convert_tensor *t);

/* ---- what is asked for, and what is told of it ------------------------------------------------------------------- */

/* convert_llm.c: writes the model with the adapter merged beside OUT; *merged is its path. false after a message. end
 * removes it; "" is fine. */
bool convert_merge(const char *in, const char *adapter, const char *out, char merged[CLI_PATH]);
void convert_merge_end(const char *merged);

typedef struct convert_wishes {
    const char *in, *out, *quantize, *like, *text, *importance, *lora;
    int64_t context;
    bool verify, no_cache;
    tn_dtype to;                   /* TN_DTYPE_COUNT: as it is */
    const struct convert_mix *mix; /* NULL, or how matrices have different types; `to` is that of most */
    int64_t layers;                /* of a mix: of the model, */
    bool tied;                     /* and whether the embedding is its output matrix too */
} convert_wishes;

enum { CONVERT_MOST_CLASSES = 512 };

/* Tensors whose names differ in numbers alone. */
typedef struct convert_class {
    char name[128];
    const char *from, *to;
    int64_t tensors, bytes, numel;
    double most, squares, size; /* largest error, sum of squares, and of the numbers' */
} convert_class;

typedef struct convert_report {
    convert_class rows[CONVERT_MOST_CLASSES];
    int count;
    int64_t tensors, bytes, input_bytes;
    int64_t requantized; /* tensors that were quantised before, in another type */
    double seconds;
    int64_t compared;     /* tensors that --verify compared */
    const char *outputs;  /* what it compared besides, computed by both files: "logits"; NULL: nothing */
    double output_error;  /* the largest, by the largest number of them */
    double perplexity[2]; /* before and after, with --text */
} convert_report;

/* ---- one tensor (convert_tensor.c) ------------------------------------------------------------------------------- */

/* A tensor as it will be written. */
typedef struct convert_bytes {
    void *data; /* NULL, or to be freed */
    const void *bytes;
    int64_t size;
} convert_bytes;
static inline void convert_bytes_free(convert_bytes *b) { free(b->data); }

bool convert_parse_type(const char *text, tn_dtype *out); /* what --quantize takes */
const char *convert_type_names(char *out, size_t size);   /* "F32, F16, …"; returns out */
int convert_file_type(tn_dtype dtype);                    /* GGUF's general.file_type for it */
/* What a tensor becomes; *same: it stays as it is, byte for byte. */
tn_dtype convert_type_for(const convert_wishes *w, const convert_tensor *t, bool to_gguf, bool *same);
/* Mixed types (convert_mix.c): the name of one; what the model has that they depend on; and of a matrix of it. */
bool convert_parse_mix(const char *text, convert_wishes *w);
tn_status convert_mix_open(const convert_file *in, convert_wishes *w);
tn_dtype convert_mix_type(const convert_wishes *w, const convert_tensor *t);
int convert_mix_file_type(const convert_wishes *w);
convert_class *convert_class_of(convert_report *r, const convert_tensor *t, const char *to);
void convert_measure(convert_class *row, const float *x, const float *y, int64_t n);
tn_status convert_read_same(const convert_file *in, const convert_tensor *t, convert_bytes *out);
/* A tensor in type `to`, counted in the report. Free out->data, after a failure too. */
tn_status convert_one(const convert_file *in, const convert_tensor *t, tn_dtype to, bool same, convert_report *r,
                      convert_bytes *out);

/* ---- a file (convert_write.c, convert_verify.c, convert_report.c) ------------------------------------------------ */

tn_status convert_to_gguf(const convert_file *in, const convert_wishes *w, convert_report *r);
tn_status convert_to_safetensors(const convert_file *in, const convert_wishes *w, convert_report *r);
/* A GGUF language model as a folder: weights, config.json, tokenizer.json and what belongs to it (convert_to_folder.c).
 */
tn_status convert_to_folder(const convert_file *in, const convert_wishes *w, convert_report *r);
/* Every tensor is there; what was not rounded has its bits, what was has the errors that were measured. */
tn_status convert_verify(const convert_file *in, const convert_wishes *w, convert_report *r);
/* The tensor of that name; TN_ERR_FORMAT when there is none. */
tn_status convert_find(const convert_file *f, const char *name, convert_tensor *out);
void convert_put_text(const convert_wishes *w, const convert_report *r);
void convert_put_json(const convert_wishes *w, const convert_report *r);

/* ---- models as a whole (convert_onnx.c; refused where there is no libtrunnion-text) ------------------------------ */

/* A language model, or an encoder in a folder, as an ONNX model. Its proof: weights are IN's number for number, and
 * both compute the same for texts of two lengths, which a network with a cache is given in pieces. */
tn_status convert_to_onnx(const convert_file *in, const convert_wishes *w, convert_report *r);
tn_status convert_verify_onnx(const convert_file *in, const convert_wishes *w, convert_report *r);
/* Is it a language model that is computed here as it stands? Of another nobody knows what the converted one leaves out.
 * Without libtrunnion-text nothing is asked. */
tn_status convert_is_computed(const char *path);

/* ---- how well a model predicts a text (perplexity.c; refused where there is no libtrunnion-text) ----------------- */

/* context: tokens of a window; 0: the usual ones */
bool convert_perplexity(const cli_options *o, const char *model, const char *text, int64_t context, double *out);

#endif
