/* onnx.h — ONNX models: opening, asking what they need, running.
 *
 * A model is a graph of the standard's operators. Opening it reads the file's structure and leaves the weights in the
 * mapping; nodes that Trunnion cannot run are reported all at once, before anything is computed. A run takes values by
 * the order of the inputs and hands out one value an output; what it computes is operations of ops.h on the current
 * device, planned, fused and replayed as they are anywhere else.
 *
 *   tn_onnx *m;
 *   tn_onnx_value *in = tn_onnx_value_tensor(x), *out;
 *   tn_onnx_open("model.onnx", NULL, &m);
 *   tn_onnx_run(m, &in, &out);            // as many as the model has, in its order
 *   tn_read(tn_onnx_value_get(out), numbers, sizeof numbers);
 *
 * Threads: several threads may run an open model at once, each with inputs that it made or evaluated itself; results
 * are those of a single thread. Runs share the weights and proceed in parallel, except the first two runs with new
 * input shapes and all runs of a model that reads values while it runs: those wait for each other. Close the model when
 * no thread uses it. */
#ifndef TRUNNION_ONNX_H
#define TRUNNION_ONNX_H

#include "trunnion/model.h"
#include "trunnion/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_onnx tn_onnx;

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* What goes in and comes out: a tensor of numbers, a tensor of texts, a sequence of values, an optional (one value or
 * none), a map from texts or integers to values. Never changed once it is made. Types that Trunnion does not compute
 * with live in the next one that holds them exactly: 8- and 4-bit floats as f32, 4- and 2-bit integers as i8 and u8;
 * complex numbers are f32 or f64 with a last dim of 2. */
typedef struct tn_onnx_value tn_onnx_value;

typedef enum tn_onnx_kind {
    TN_ONNX_TENSOR = 0,
    TN_ONNX_STRINGS,
    TN_ONNX_SEQUENCE,
    TN_ONNX_OPTIONAL,
    TN_ONNX_MAP
} tn_onnx_kind;

/* Each returns a value to be freed with tn_onnx_value_free, or NULL with tn_error set. What they are made of stays the
 * caller's too: tensors and values get one more owner, texts are copied. */
TN_API tn_onnx_value *tn_onnx_value_tensor(tn_tensor *t);
/* shape: `rank` extents; lengths: bytes of each text, NULL for texts that end in a zero */
TN_API tn_onnx_value *tn_onnx_value_strings(const char *const *texts, const size_t *lengths, const int64_t *shape,
                                            int rank);
TN_API tn_onnx_value *tn_onnx_value_sequence(tn_onnx_value *const *items, int64_t count);
TN_API tn_onnx_value *tn_onnx_value_optional(tn_onnx_value *item); /* NULL: empty */
/* keys: texts, or a tensor of i64, of `count` elements in one dim */
TN_API tn_onnx_value *tn_onnx_value_map(tn_onnx_value *keys, tn_onnx_value *const *items, int64_t count);
/* A value out of the bytes of a TensorProto (kinds TENSOR and STRINGS), SequenceProto, OptionalProto or MapProto: what
 * the standard's test cases keep in their .pb files. Errors: TN_ERR_FORMAT, TN_ERR_UNSUPPORTED for external data. */
TN_API tn_status tn_onnx_value_decode(const void *bytes, size_t size, tn_onnx_kind kind, tn_onnx_value **out);
TN_API void tn_onnx_value_free(tn_onnx_value *v); /* NULL is fine */

TN_API tn_onnx_kind tn_onnx_value_kind(const tn_onnx_value *v); /* TENSOR for NULL */
/* The standard's name of the element type, "FLOAT8E4M3FN", of a sequence's items too; "UNDEFINED" for NULL. */
TN_API const char *tn_onnx_value_type(const tn_onnx_value *v);
/* The tensor, the value's own: it lives as long as the value. NULL with tn_error set for another kind. */
TN_API tn_tensor *tn_onnx_value_get(const tn_onnx_value *v);
/* Texts, items of a sequence, 0 or 1 of an optional, pairs of a map; elements of a tensor. */
TN_API int64_t tn_onnx_value_count(const tn_onnx_value *v);
/* Rank and extents of a tensor of numbers or texts; -1 for another kind. */
TN_API int tn_onnx_value_shape(const tn_onnx_value *v, int64_t shape[TN_MAX_RANK]);
/* Text i in row-major order, not terminated; NULL with tn_error set when there is none. */
TN_API const char *tn_onnx_value_string(const tn_onnx_value *v, int64_t i, size_t *length);
/* Item i of a sequence, an optional or a map, and a map's keys: the value's own. NULL with tn_error set. */
TN_API const tn_onnx_value *tn_onnx_value_item(const tn_onnx_value *v, int64_t i);
TN_API const tn_onnx_value *tn_onnx_value_keys(const tn_onnx_value *v);

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct tn_onnx_options {
    size_t struct_size;
    /* where files of external data lie; default NULL: beside the model, for models in memory nowhere */
    const char *folder;
    char **report;      /* receives the missing operators, freed with tn_text_free, or NULL if none is; default NULL */
    bool weights_only;  /* operators are not looked up: weights can be read, the model cannot run; default false */
} tn_onnx_options;
#define TN_ONNX_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_onnx_options, weights_only), NULL, NULL, false }

/* Opens a model. options may be NULL. Weights are put on the current device, which runs must find the same. Opsets 7
 * and newer, as far as the operators go. *out: closed with tn_onnx_close. The file must not shrink meanwhile.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT naming what is wrong in the file; TN_ERR_UNSUPPORTED naming every operator that is
 * missing, with how many nodes and one of them. Source: onnx.proto and IR.md of the ONNX standard. */
TN_API tn_status tn_onnx_open(const char *path, const tn_onnx_options *options, tn_onnx **out);
/* The same from memory, which may go afterwards. */
TN_API tn_status tn_onnx_open_memory(const void *bytes, size_t size, const tn_onnx_options *options, tn_onnx **out);
TN_API void tn_onnx_close(tn_onnx *m); /* NULL is fine; values that it handed out stay valid */

/* What a model says of an input or an output. Strings live as long as it is open. */
typedef struct tn_onnx_info {
    size_t struct_size; /* set by the caller */
    const char *name;
    tn_onnx_kind kind;
    const char *type;              /* "FLOAT"; of items, of a sequence, optional or map */
    tn_dtype dtype;                /* in which it lives; TN_DTYPE_COUNT for texts and where the model does not tell */
    int rank;                      /* -1: not told */
    int64_t shape[TN_MAX_RANK];    /* -1: any */
    const char *dims[TN_MAX_RANK]; /* the extent's name where it has one ("batch"), else NULL */
} tn_onnx_info;

/* Inputs that have a value in the file (initialisers) are not counted and cannot be given. */
TN_API int tn_onnx_input_count(const tn_onnx *m);
TN_API int tn_onnx_output_count(const tn_onnx *m);
/* TN_ERR_ARGUMENT when there is none. */
TN_API tn_status tn_onnx_input_at(const tn_onnx *m, int i, tn_onnx_info *info);
TN_API tn_status tn_onnx_output_at(const tn_onnx *m, int i, tn_onnx_info *info);

/* Weights: the initialisers of the model's own graph in the file's order, then the tensors that its Constant nodes
 * hold, by their outputs' names; then those of subgraphs (If, Loop, Scan) and of the model's functions. A name that
 * occurs several times is told apart in subgraphs by its path, NODE.ATTRIBUTE.NAME. Borrowed from the model, as are
 * names. NULL with tn_error set when there is no weight i. */
TN_API int tn_onnx_weight_count(const tn_onnx *m);
TN_API const tn_onnx_value *tn_onnx_weight_at(const tn_onnx *m, int i, const char **name);

/* Runs the model: `inputs` one an input (none NULL), `outputs` filled with one value an output, computed, each to be
 * freed. On failure all outputs are NULL. What was run twice with inputs of the same shapes is replayed from then on,
 * if its shapes and branches depend on nothing else. Gradients are not recorded.
 * Errors: TN_ERR_ARGUMENT, TN_ERR_DTYPE, TN_ERR_SHAPE for an input that does not fit, naming it; an operator's, naming
 * the node. */
TN_API tn_status tn_onnx_run(tn_onnx *m, tn_onnx_value *const *inputs, tn_onnx_value **outputs);

/* What decodes pictures for ImageDecoder, in the whole process: the library reads no such files itself. Without one
 * (NULL, as at the start) models with ImageDecoder are refused. It is given a file's bytes and yields *rgb from malloc,
 * extent[0] rows from the top of extent[1] pixels of red, green and blue; its failure is the run's. */
typedef tn_status tn_image_decoder(const void *bytes, size_t size, int64_t extent[2], uint8_t **rgb);
TN_API void tn_onnx_set_image_decoder(tn_image_decoder *decode);

/* ---- writing a model --------------------------------------------------------------------------------------------- */

typedef struct tn_onnx_export_options {
    size_t struct_size;
    const char *name;    /* the graph's; default NULL: "graph" */
    const char *dims[4]; /* names of the symbolic extents 0 … 3 (tn_symbolic): "batch"; default NULL: "dim0" … */
    /* names for tensors that become initialisers: parameters by their paths; others are called _w0, _w1 …; default
     * NULL, 0 */
    const tn_named_tensor *weights;
    int weight_count;
    /* weights go to PATH.data beside the model, as they do where one file cannot hold them; default false */
    bool external_data;
} tn_onnx_export_options;
#define TN_ONNX_EXPORT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_onnx_export_options, external_data), NULL, {NULL, NULL, NULL, NULL}, NULL, 0, false }

/* Writes what this thread has recorded from `inputs` to `outputs` as an ONNX model (opset 21). Nothing is computed, and
 * what was recorded is evaluated afterwards as it would have been; so export before reading an output.
 *   tn_tensor *y = tn_forward(net, x);
 *   tn_onnx_export("net.onnx", &(tn_named_tensor){"x", x}, 1, &(tn_named_tensor){"y", y}, 1, NULL);
 * Everything may be part of it: gradients, losses, steps of optimisers (between tn_capture_begin and the export, as a
 * step is evaluated at its end else). Inputs are tensors with a value, or recorded ones, at which the model begins;
 * an extent that was declared by tn_symbolic is a named one of the model, one of several that are joined (tn_cat)
 * their sum, "past + tokens"; others are what they were. Other tensors with a value become initialisers, weights in
 * blocks as f32. States that were written become an input, whose default is the value before, and an output NAME_out:
 * what a step has to be given at its next run. Runtime scalars are inputs _dial_0 … with a default, too. Names have 1
 * to 200 bytes, the first not _ (names that are made up begin so).
 * options may be NULL. Errors: TN_ERR_ARGUMENT for names; TN_ERR_UNSUPPORTED for what ONNX has no operator for
 * (random numbers, caches of keys and values, factorizations), naming it with its line; TN_ERR_STATE for an output that
 * was evaluated already; TN_ERR_IO. Indices that lead outside of a tensor are left out here and may be refused
 * elsewhere. A model of more than 2 GiB has its weights in PATH.data (external data). Each file appears whole or not at
 * all, the model last. Source: onnx.proto, IR.md, ExternalData.md, Operators.md. */
TN_API tn_status tn_onnx_export(const char *path, const tn_named_tensor *inputs, int input_count,
                                const tn_named_tensor *outputs, int output_count,
                                const tn_onnx_export_options *options);

/* ---- the caller's line, for error messages ----------------------------------------------------------------------- */

#ifndef TN_NO_CALLER_LINES
#define tn_onnx_run(...) (tn_at(__FILE__, __LINE__), tn_onnx_run(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
