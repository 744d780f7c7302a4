/* ml_support.h — shared by the classical models of ai.onnx.ml: rows of numbers on the host, scores, labels. */
#ifndef TN_ONNX_ML_SUPPORT_H
#define TN_ONNX_ML_SUPPORT_H

#include "onnx/operator_support.h"

enum { ONNX_MOST_NUMBERS = 1 << 26 }; /* that the host computes with at once */

typedef struct onnx_rows {
    double *at; /* [count, width], freed with tn_mem_free */
    int64_t count, width;
} onnx_rows;

/* Input i as rows; one of rank 1 is a single row. */
tn_status onnx_read_rows(const onnx_call *c, int i, onnx_rows *out);
tn_status onnx_make_rows(int64_t count, int64_t width, onnx_rows *out);              /* zeros */
tn_status onnx_put_rows(onnx_call *c, int k, const onnx_rows *rows, tn_dtype dtype); /* f32 or f64 */

/* The numbers of an attribute: floats, ints, or a tensor under the name or under name_as_tensor; none where absent. */
tn_status onnx_numbers_of(const onnx_call *c, const char *name, double **out, int64_t *count);

/* ai.onnx.ml's post_transform, which newer operators number in this order. */
typedef enum onnx_transform { TRANSFORM_NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT } onnx_transform;
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
