/* onnx.h — ONNX models: opening, inspecting, running and exporting them.
 *
 * Opening a model reads the structure of the file; weights stay in the file mapping. All unsupported operators are
 * reported together, before anything is computed. A run takes one value per input, in the order of the inputs, and
 * returns one value per output. Nodes are computed by operations of ops.h on the current device, with the same
 * planning, fusion and replay.
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

/* An input or output value: a tensor of numbers, a tensor of strings, a sequence of values, an optional (one value or
 * none), or a map from strings or integers to values. Values are immutable. Element types that Trunnion does not
 * compute with are stored in a type that represents them exactly: 8- and 4-bit floats as f32, 4- and 2-bit integers as
 * i8 and u8, complex numbers as f32 or f64 with a last dimension of 2. */
typedef struct tn_onnx_value tn_onnx_value;

typedef enum tn_onnx_kind {
    TN_ONNX_TENSOR = 0,
    TN_ONNX_STRINGS,
    TN_ONNX_SEQUENCE,
    TN_ONNX_OPTIONAL,
    TN_ONNX_MAP
} tn_onnx_kind;

/* Each function creates a value, to be freed with tn_onnx_value_free; NULL with tn_error set on failure. The caller
 * keeps
 * its own references: tensors and values are retained, strings are copied. */
TN_API tn_onnx_value *tn_onnx_value_tensor(tn_tensor *t);
/* shape: `rank` extents; lengths: bytes of each string, NULL for strings that end with a 0 byte */
TN_API tn_onnx_value *tn_onnx_value_strings(const char *const *texts, const size_t *lengths, const int64_t *shape,
                                            int rank);
TN_API tn_onnx_value *tn_onnx_value_sequence(tn_onnx_value *const *items, int64_t count);
TN_API tn_onnx_value *tn_onnx_value_optional(tn_onnx_value *item); /* NULL: empty */
/* keys: strings or a tensor of i64, of `count` elements in one dimension */
TN_API tn_onnx_value *tn_onnx_value_map(tn_onnx_value *keys, tn_onnx_value *const *items, int64_t count);
/* Decodes a TensorProto (kinds TENSOR and STRINGS), SequenceProto, OptionalProto or MapProto, as in the .pb files of
 * the
 * ONNX test cases. *out: freed with tn_onnx_value_free. Errors: TN_ERR_FORMAT; TN_ERR_UNSUPPORTED for external data. */
TN_API tn_status tn_onnx_value_decode(const void *bytes, size_t size, tn_onnx_kind kind, tn_onnx_value **out);
TN_API void tn_onnx_value_free(tn_onnx_value *v); /* NULL is allowed */

TN_API tn_onnx_kind tn_onnx_value_kind(const tn_onnx_value *v); /* TENSOR for NULL */
/* Returns ONNX's name of the element type ("FLOAT8E4M3FN"), also of the items of a sequence; "UNDEFINED" for NULL. */
TN_API const char *tn_onnx_value_type(const tn_onnx_value *v);
/* Returns the tensor, borrowed: valid as long as the value. NULL with tn_error set for another kind. */
TN_API tn_tensor *tn_onnx_value_get(const tn_onnx_value *v);
/* Returns the number of strings, of items of a sequence, of values of an optional (0 or 1), of pairs of a map, or of
 * elements of a tensor. */
TN_API int64_t tn_onnx_value_count(const tn_onnx_value *v);
/* Returns the rank and fills the extents of a tensor of numbers or strings; -1 for another kind. */
TN_API int tn_onnx_value_shape(const tn_onnx_value *v, int64_t shape[TN_MAX_RANK]);
/* Returns string i in row-major order, not terminated; NULL with tn_error set if i is out of range. */
TN_API const char *tn_onnx_value_string(const tn_onnx_value *v, int64_t i, size_t *length);
/* Return item i of a sequence, optional or map, and the keys of a map, borrowed. NULL with tn_error set on failure. */
TN_API const tn_onnx_value *tn_onnx_value_item(const tn_onnx_value *v, int64_t i);
TN_API const tn_onnx_value *tn_onnx_value_keys(const tn_onnx_value *v);

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct tn_onnx_options {
    size_t struct_size;
    /* folder of external data files; default NULL: the model's folder (a model in memory has none) */
    const char *folder;
    char **report;     /* receives the unsupported operators, freed with tn_text_free, or NULL; default NULL */
    bool weights_only; /* do not look up operators: weights can be read, but the model cannot run; default false */
    /* on engine:onnxruntime, which runs models from their own files: record the model's operators all the same, and let
     * the engine compute the recording; default false */
    bool recorded;
    /* names of inputs that have a value in the file (initializers) and whose value is passed instead; NULL ends the
     * list. They are counted and passed as the other inputs are. Other names have no effect. Such a model is recorded
     * on engine:onnxruntime. Used during the call only; default NULL: none */
    const char *const *given;
} tn_onnx_options;
#define TN_ONNX_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_onnx_options, given), NULL, NULL, false, false, NULL }

/* Opens a model of opset 7 or newer. Weights are placed on the current device, which must also be current in runs. If
 * that is engine:onnxruntime, the engine opens the file and runs it: its operators are the engine's, and inputs and
 * outputs must be tensors of numbers.
 *   options: NULL for the defaults. *out: closed with tn_onnx_close. The file must not be truncated while it is open.
 * Errors: TN_ERR_IO; TN_ERR_FORMAT with what is wrong in the file; TN_ERR_UNSUPPORTED with every unsupported operator,
 * its number of nodes and one of their names. Source: onnx.proto and IR.md of the ONNX standard. */
TN_API tn_status tn_onnx_open(const char *path, const tn_onnx_options *options, tn_onnx **out);
/* The same from memory, which may be freed afterwards. */
TN_API tn_status tn_onnx_open_memory(const void *bytes, size_t size, const tn_onnx_options *options, tn_onnx **out);
TN_API void tn_onnx_close(tn_onnx *m); /* NULL is allowed; values that it returned stay valid */

/* Description of an input or output. Strings are valid as long as the model is open. */
typedef struct tn_onnx_info {
    size_t struct_size; /* set by the caller */
    const char *name;
    tn_onnx_kind kind;
    const char *type;              /* "FLOAT"; for a sequence, optional or map the type of the items */
    tn_dtype dtype;                /* storage type; TN_DTYPE_COUNT for strings and if the model does not declare it */
    int rank;                      /* -1: not declared */
    int64_t shape[TN_MAX_RANK];    /* -1: any */
    const char *dims[TN_MAX_RANK]; /* name of the extent ("batch"), or NULL */
} tn_onnx_info;

/* Number of inputs and outputs. Inputs with a value in the file (initializers) are counted, and passed, only if
 * tn_onnx_options.given names them. */
TN_API int tn_onnx_input_count(const tn_onnx *m);
TN_API int tn_onnx_output_count(const tn_onnx *m);
/* Describe input or output i. Errors: TN_ERR_ARGUMENT if i is out of range. */
TN_API tn_status tn_onnx_input_at(const tn_onnx *m, int i, tn_onnx_info *info);
TN_API tn_status tn_onnx_output_at(const tn_onnx *m, int i, tn_onnx_info *info);

/* Weights: the initializers of the main graph in the order of the file, then the tensors of its Constant nodes, with
 * the names of their outputs; then those of subgraphs (If, Loop, Scan) and of the model's functions. In subgraphs a
 * name that occurs several times is given as a path, NODE.ATTRIBUTE.NAME. Values and names are borrowed from the model.
 * NULL with tn_error set if i is out of range. */
TN_API int tn_onnx_weight_count(const tn_onnx *m);
TN_API const tn_onnx_value *tn_onnx_weight_at(const tn_onnx *m, int i, const char **name);

/* Runs the model.
 *   inputs: one value per input, not NULL. outputs: receives one computed value per output, each to be freed; all NULL
 *     on failure.
 * From the third run with the same input shapes on, the plan is replayed without recording, if shapes and branches
 * depend only on the input shapes. Gradients are not recorded.
 * Errors: TN_ERR_ARGUMENT, TN_ERR_DTYPE, TN_ERR_SHAPE with the name of an input that does not fit; errors of an
 * operator with the name of the node. */
TN_API tn_status tn_onnx_run(tn_onnx *m, tn_onnx_value *const *inputs, tn_onnx_value **outputs);

/* Sets the function that decodes images for the operator ImageDecoder, in the whole process: the library itself reads
 * no image files. Without one (NULL, the initial value) models with ImageDecoder are refused. The function receives the
 * bytes of a file and returns *rgb, allocated with malloc: extent[0] rows of extent[1] pixels (red, green, blue), top
 * row first. If it fails, the run fails. */
typedef tn_status tn_image_decoder(const void *bytes, size_t size, int64_t extent[2], uint8_t **rgb);
TN_API void tn_onnx_set_image_decoder(tn_image_decoder *decode);

/* ---- writing a model --------------------------------------------------------------------------------------------- */

typedef struct tn_onnx_export_options {
    size_t struct_size;
    const char *name;    /* of the graph; default NULL: "graph" */
    const char *dims[4]; /* names of the symbolic extents 0 … 3 (tn_symbolic): "batch"; default NULL: "dim0" … */
    /* names of tensors that become initializers, for example parameters; others are named _w0, _w1 …; default NULL,
     * 0 */
    const tn_named_tensor *weights;
    int weight_count;
    /* write weights to PATH.data next to the model, as for models larger than 2 GiB; default false */
    bool external_data;
} tn_onnx_export_options;
#define TN_ONNX_EXPORT_DEFAULTS \
    { TN_OPTIONS_SIZE(tn_onnx_export_options, external_data), NULL, {NULL, NULL, NULL, NULL}, NULL, 0, false }

/* Writes the operations that this thread has recorded from `inputs` to `outputs` as an ONNX model (opset 21). Nothing
 * is computed, and the recorded operations can still be evaluated afterwards. Export before you evaluate anything that
 * depends on an input: a value that has been evaluated becomes an initializer, unless gradients keep its history.
 * More than 4096 operations are evaluated in pieces while they are recorded; record and export such a model between
 * tn_capture_begin and tn_capture_end.
 *   tn_tensor *y = tn_forward(net, x);
 *   tn_onnx_export("net.onnx", &(tn_named_tensor){"x", x}, 1, &(tn_named_tensor){"y", y}, 1, NULL);
 * Gradients, losses and optimizer steps can be exported too (a step only between tn_capture_begin and
 * tn_capture_end, because it is evaluated immediately otherwise).
 *   inputs: tensors with a value, or recorded tensors at which the model begins. An extent marked with tn_symbolic is a
 *     named dimension of the model; the sum of several (tn_cat) is named "past + tokens"; other extents are fixed.
 *   names: 1 to 200 bytes, not beginning with _, which marks generated names.
 * Other tensors with a value become initializers, block-quantized weights as f32. A state that was written becomes an
 * input with the old value as default, and an output NAME_out, to be passed to the next run. Runtime scalars are inputs
 * _dial_0 … with a default. options may be NULL. A model larger than 2 GiB has its weights in PATH.data (external
 * data). Files are written atomically, the model last. Indices out of range are not exported and may fail elsewhere.
 * Errors: TN_ERR_ARGUMENT for names; TN_ERR_UNSUPPORTED, with operation and line, if ONNX has no operator (random
 * numbers, key/value caches, factorizations); TN_ERR_STATE for an output that was already evaluated, for an input that
 * nothing reads although an evaluated value became an initializer, and for a value that was evaluated because the
 * recording was long; TN_ERR_IO; an in-place operation that failed before.
 * Source: torch.onnx.export; onnx.proto, IR.md, ExternalData.md, Operators.md. */
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
