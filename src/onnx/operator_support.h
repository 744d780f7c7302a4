/* operator_support.h — shared by the operator rows: operands, axes, casts, texts; windows and activations. */
#ifndef TN_OPERATOR_SUPPORT_H
#define TN_OPERATOR_SUPPORT_H

#include "onnx/onnx.h"

/* ---- operands (operator_call.c) ---------------------------------------------------------------------------------- */

/* Input i as a tensor; an error if it is absent, not a tensor, or failed. */
tn_status onnx_need(const onnx_call *c, int i, const tn_tensor **out);
/* The same for the first inputs, as many as there are addresses: onnx_need_first(c, &x, &y). */
tn_status onnx_need_list(const onnx_call *c, const tn_tensor **const *out, size_t count);
#define onnx_need_first(c, ...)                                 \
    onnx_need_list(c, (const tn_tensor **const[]){__VA_ARGS__}, \
                   sizeof((const tn_tensor **const[]){__VA_ARGS__}) / sizeof(const tn_tensor **))

/* v as a rank-0 tensor of like's dtype. */
tn_tensor *onnx_number(double v, const tn_tensor *like);

/* axis in [-rank, rank) counted from the front. */
tn_status onnx_axis(const onnx_call *c, int64_t axis, int rank, int *out);

/* Distinct axes from input i where the node has it, else from an attribute; *count is −1 where there are neither. */
tn_status onnx_axes(const onnx_call *c, int i, const char *name, int rank, int64_t axes[TN_MAX_RANK], int *count);

/* As many numbers as a shape may have, from input i where the node has it, else from an attribute; −1: neither. */
tn_status onnx_list(const onnx_call *c, int i, const char *name, int64_t out[2 * TN_MAX_RANK], int *count);

/* Output k with the type of input i, which the operator does not change; t may be that input. */
tn_status onnx_put_like(onnx_call *c, int k, const tn_tensor *t, int i);

/* An attribute that is a list of this kind (ONNX_KIND_FLOATS …); NULL where the node has none or another. */
static inline const onnx_attribute *onnx_find_list(const onnx_call *c, const char *name, int kind) {
    const onnx_attribute *a = onnx_find(c, name);
    return a && a->kind == kind ? a : NULL;
}

/* ---- types (onnx_quant.c) ---------------------------------------------------------------------------------------- */

typedef enum onnx_rounding { ONNX_ROUND_UP, ONNX_ROUND_DOWN, ONNX_ROUND_NEAREST } onnx_rounding;

tn_status onnx_cast(onnx_call *c); /* Cast; with = 1: CastLike */
tn_status onnx_bit_cast(onnx_call *c);

/* ---- texts (onnx_text.c) ----------------------------------------------------------------------------------------- */

/* Equal numbers for equal texts, in the order of the texts. out: freed with tn_mem_free. */
tn_status onnx_text_ranks(const onnx_text *texts, int64_t count, int64_t **out);

/* Places 0 … count − 1 in order, equal ones as they were. before(a, b) of two places. out: freed with tn_mem_free. */
tn_status onnx_sort(int64_t count, bool (*before)(const void *data, int64_t a, int64_t b), const void *data,
                    int64_t **out);

/* ---- rows whose functions have files of their own ---------------------------------------------------------------- */

tn_status onnx_gather(onnx_call *c); /* onnx_index.c */
tn_status onnx_gather_elements(onnx_call *c);
tn_status onnx_gather_nd(onnx_call *c);
tn_status onnx_scatter_elements(onnx_call *c);
tn_status onnx_scatter_nd(onnx_call *c);
tn_status onnx_tensor_scatter(onnx_call *c);
tn_status onnx_one_hot(onnx_call *c);
tn_status onnx_reverse_sequence(onnx_call *c);
tn_status onnx_non_zero(onnx_call *c);
tn_status onnx_compress(onnx_call *c);
tn_status onnx_unique(onnx_call *c);

/* ==== networks ==================================================================================================== */

/* ---- activations (onnx_nn.c) ------------------------------------------------------------------------------------- */

/* One by the standard's name, with its two numbers where it has any: what they are called as attributes of the
 * operator, and what they are unless given. Also what RNN, GRU and LSTM name. */
typedef struct onnx_activation {
    const char *name;
    tn_tensor *(*of)(const tn_tensor *x, double alpha, double beta);
    const char *alpha_name, *beta_name;
    double alpha, beta;
} onnx_activation;
const onnx_activation *onnx_activation_named(onnx_text name); /* case does not matter; NULL if unknown */

/* ---- windows (onnx_window.c) ------------------------------------------------------------------------------------- */

enum { ONNX_MAX_AXES = 3 }; /* [n, c, kernel…, places…] has TN_MAX_RANK dims */

typedef struct onnx_window {
    int axes;
    int64_t kernel[ONNX_MAX_AXES], stride[ONNX_MAX_AXES], dilation[ONNX_MAX_AXES];
    int64_t before[ONNX_MAX_AXES], after[ONNX_MAX_AXES]; /* padding */
} onnx_window;

/* Reads the attributes that all operators with windows share. kernel: the weight's; NULL: attribute kernel_shape. */
tn_status onnx_window_read(const onnx_call *c, const tn_tensor *x, const int64_t *kernel, onnx_window *w);
/* Places along an axis; with ceil_mode the last one must still begin before the padding after. 0: it does not fit. */
int64_t onnx_places(const onnx_window *w, int a, int64_t size, bool ceil_mode);
/* The same with channels side by side in memory, [n, places…, kernel…, c]: to be copied in long runs. */
tn_tensor *onnx_seen_by_place(const tn_tensor *x, const onnx_window *w, const int64_t *places, double value);
/* Attribute `name`: `count` numbers into out; `otherwise` where it is absent. */
tn_status onnx_ints_of(const onnx_call *c, const char *name, int count, int64_t otherwise, int64_t *out);
/* x [n, c, size…] with weight [out, c / groups, kernel…]; bias [out] or NULL. */
tn_tensor *onnx_convolve(const tn_tensor *x, const tn_tensor *weight, const tn_tensor *bias, const onnx_window *w,
                         int64_t groups);

/* x, already divided by its scale, as numbers of `to`: rounded to the nearest whole number, moved by the zero point
 * (NULL: none), saturated; or the nearest number of a small float type. */
tn_tensor *onnx_rounded(const onnx_call *c, const tn_tensor *x, const tn_tensor *zero, onnx_type to);

tn_status onnx_conv(onnx_call *c);
tn_status onnx_conv_transpose(onnx_call *c);
tn_status onnx_max_pool(onnx_call *c);
tn_status onnx_average_pool(onnx_call *c);
tn_status onnx_lp_pool(onnx_call *c);
tn_status onnx_max_unpool(onnx_call *c);

/* ---- attention (onnx_attention.c) -------------------------------------------------------------------------------- */

/* y [batch, heads, positions, features] → [batch, positions, heads · features]. */
tn_tensor *onnx_joined_heads(tn_tensor *y);
/* The other way round; x of rank 4 is there already (onnx_contrib.c). */
const tn_tensor *onnx_split_heads(const tn_tensor *x, int64_t heads);

/* One call, all in four dimensions: [batch, heads, positions, features]. */
typedef struct onnx_heads {
    const tn_tensor *q, *k, *v;
    tn_tensor *seen;       /* bool, broadcastable to the scores; NULL: all */
    const tn_tensor *bias; /* added to the scores; NULL */
    const tn_tensor *sink; /* [heads]: a further score that takes weight and gives nothing; NULL */
    double scale;
} onnx_heads;
/* causal: a plain call in which `seen` is NULL and queries and keys are as many. */
tn_status onnx_attend(onnx_call *c, const onnx_heads *h, bool causal, tn_tensor **y);
/* x [batch, heads, positions, features] with each pair of features turned; cosines and sines [batch or 1, positions,
 * half] (onnx_contrib.c). */
tn_tensor *onnx_turned(const tn_tensor *x, const tn_tensor *cosines, const tn_tensor *sines, bool neighbours);
/* Rows of a table at positions first … first + count − 1: [1, count, half]. */
tn_tensor *onnx_rows_from(const tn_tensor *cache, int64_t first, int64_t count);
tn_status onnx_attention(onnx_call *c);
tn_status onnx_grouped_attention(onnx_call *c); /* onnx_attention.c */
tn_status onnx_rotary_embedding(onnx_call *c);
tn_status onnx_linear_attention(onnx_call *c);
tn_status onnx_causal_conv(onnx_call *c);

/* ---- small things (onnx_nn.c) ------------------------------------------------------------------------------------ */

/* t [c] so that it meets dimension 1 of something of this rank. */
tn_tensor *onnx_per_channel(const tn_tensor *t, int rank);
/* dims first … end − 1 into a list; returns how many. */
int onnx_dims(int first, int end, int64_t *dims);
/* Tensors of one shape along a new dimension, or (fresh = false) joined along dim; one tensor is itself. */
tn_tensor *onnx_joined(tn_tensor *const *parts, int64_t count, int dim, bool fresh);
/* Numbers that the host computed, as a tensor of dtype (floating point). */
tn_tensor *onnx_from_doubles(const double *v, const int64_t *shape, int rank, tn_dtype dtype);
/* The dtype that an attribute names; `otherwise` where it is absent. */
onnx_type onnx_type_attribute(const onnx_call *c, const char *name, onnx_type otherwise);

/* Like a chain of tn_cast: nothing where x is of that dtype already. The caller's scope owns the result. */
const tn_tensor *onnx_as(const tn_tensor *x, tn_dtype dtype);

/* ---- samples between pixels (onnx_image.c) ----------------------------------------------------------------------- */

typedef enum onnx_interpolation { ONNX_NEAREST, ONNX_LINEAR, ONNX_CUBIC } onnx_interpolation;
typedef enum onnx_outside { ONNX_ZEROS, ONNX_BORDER, ONNX_REFLECTION } onnx_outside;
/* x [n, c, size…] at places[a] [n, count], in pixels along axis a: [n, c, count]. */
tn_status onnx_deform_conv(onnx_call *c);

/* ---- signals (onnx_signal.c) ------------------------------------------------------------------------------------- */

tn_status onnx_dft(onnx_call *c);
tn_status onnx_stft(onnx_call *c);
tn_status onnx_signal_window(onnx_call *c); /* with: 0 Hann, 1 Hamming, 2 Blackman */
tn_status onnx_mel_weight_matrix(onnx_call *c);

/* ---- recurrent networks (onnx_rnn.c) ----------------------------------------------------------------------------- */

enum { ONNX_LSTM_OF_BYTES = 0, ONNX_RNN = 1, ONNX_GRU = 3, ONNX_LSTM = 4 };
tn_status onnx_recurrent(onnx_call *c); /* with: one of these; from RNN on, how many gates there are */

/* ---- boxes (onnx_image.c) ---------------------------------------------------------------------------------------- */

tn_status onnx_non_max_suppression(onnx_call *c); /* non_max_suppression.c */

/* ---- scales and zero points (onnx_quant.c) ----------------------------------------------------------------------- */

/* A zero point, if there is one, has the type of input `of`. */
tn_status onnx_check_zero(const onnx_call *c, int zero, int of);
/* Constant scales are finite; those that numbers are divided by are not 0. */
tn_status onnx_check_scale(const onnx_call *c, int scale, bool divides);

/* ---- products of bytes (onnx_contrib.c) -------------------------------------------------------------------------- */

/* Which inputs of a node hold what; zero points and the bias may be left out. */
typedef struct onnx_byte_operands {
    int a, b, a_scale, b_scale, a_zero, b_zero, bias;
} onnx_byte_operands;

/* One of several matrices of bytes, [count, k, n] (onnx_quant.c). */
typedef struct onnx_byte_weight {
    const tn_tensor *bytes, *sums; /* as i8, [k, n]; the sums of its columns, [1, n] */
    const tn_tensor *scale;        /* one, or one a column */
    const tn_tensor *zero;         /* the same; NULL: 0 */
} onnx_byte_weight;
/* Matrix `which` of input at->b; at->b_scale and b_zero have a number, or one a column, for each. */
onnx_byte_weight onnx_byte_weight_of(const onnx_call *c, const onnx_byte_operands *at, int64_t which);
/* x [m, k], f32, rounded to bytes that span all of it, times w: [m, n], f32. */
tn_tensor *onnx_product_of_rounded(const onnx_call *c, const tn_tensor *x, const onnx_byte_weight *w);

/* QLinearMatMul of u8 and i8 whose inputs are constants except the first matrix, perhaps with a bias as input 8 (i32):
 * its sums are rounded where they are computed. *y stays NULL for others (onnx_quant.c). */
tn_status onnx_matmul_rounded(const onnx_call *c, tn_tensor **y);

/* ---- encoded pictures (onnx_image.c) ----------------------------------------------------------------------------- */

tn_status onnx_image_decoder(onnx_call *c);
bool onnx_decodes_images(void); /* is there a decoder? */

/* ---- classical machine learning (onnx_ml.c) ---------------------------------------------------------------------- */
/* Shared by the classical models of ai.onnx.ml: rows of numbers on the host, scores, labels. */

enum { ONNX_MOST_NUMBERS = 1 << 26 }; /* that the host computes with at once */

typedef struct onnx_rows {
    double *at; /* [count, width], freed with tn_mem_free */
    int64_t count, width;
} onnx_rows;
static inline void onnx_rows_free(onnx_rows *rows) { tn_mem_free(rows->at); }
#define AUTO_ROWS AUTO_CALL(onnx_rows_free) /* as AUTO_FREE */

/* Input i as rows; one of rank 1 is a single row. Freed by the caller, also after an error. */
tn_status onnx_read_rows(const onnx_call *c, int i, onnx_rows *out);
tn_status onnx_make_rows(int64_t count, int64_t width, onnx_rows *out);              /* zeros */
tn_status onnx_put_rows(onnx_call *c, int k, const onnx_rows *rows, tn_dtype dtype); /* f32 or f64 */

/* The numbers of an attribute: floats, ints, or a tensor under the name or under name_as_tensor; none where absent. */
tn_status onnx_numbers_of(const onnx_call *c, const char *name, double **out, int64_t *count);

/* ai.onnx.ml's post_transform, which newer operators number in this order. */
typedef enum onnx_transform {
    TRANSFORM_NONE,
    TRANSFORM_SOFTMAX,
    TRANSFORM_LOGISTIC,
    TRANSFORM_SOFTMAX_ZERO,
    TRANSFORM_PROBIT
} onnx_transform;
onnx_transform onnx_transform_of(const onnx_call *c); /* the text of attribute post_transform */
void onnx_transform_row(onnx_transform t, double *row, int64_t n);
/* The scores of both classes out of the single one that tells them apart: a share of 1, or a distance from 0. */
void onnx_both_scores(onnx_transform t, bool share, double row[2], double score);

/* Labels by place, from the attributes ints_name or classlabels_strings, or the places where the node has neither. */
int64_t onnx_label_count(const onnx_call *c, const char *ints_name);
tn_status onnx_put_labels(onnx_call *c, int k, const char *ints_name, const int64_t *places, int64_t count);
int64_t onnx_largest(const double *row, int64_t n);

/* onnx_trees.c, onnx_svm.c */
tn_status onnx_run_trees(onnx_call *c);       /* TreeEnsemble */
tn_status onnx_run_older_trees(onnx_call *c); /* .with: whether it classifies */
tn_status onnx_run_svm_regressor(onnx_call *c);
tn_status onnx_run_svm_classifier(onnx_call *c);

#endif
