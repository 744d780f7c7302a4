/* gpu_blas.h — of the double of CUDA and ROCm: a product as the vendors' libraries see it, columns first. */
#ifndef TN_DOUBLE_GPU_BLAS_H
#define TN_DOUBLE_GPU_BLAS_H

#include "gpu.h"

typedef enum blas_type { BLAS_F32, BLAS_F64, BLAS_F16, BLAS_BF16, BLAS_TYPES } blas_type;

/* One column behind the other, `ld` apart. */
typedef struct blas_matrix {
    blas_type type;
    int64_t rows, columns, ld, stride; /* stride: to the next of the batch */
    bool turned;                       /* the product takes its transpose */
    char *data;
} blas_matrix;

typedef struct blas_product {
    blas_matrix a, b, c;
    int64_t batch;
    double alpha; /* beta is 0: c is not read */
    char *workspace;
    size_t workspace_bytes;
} blas_product;

size_t blas_size(blas_type type);
/* An element, at an address of any alignment. */
double blas_load(blas_type type, const char *p);
void blas_store(blas_type type, char *p, double value);
/* Descriptors live on the host, and of none of any context: the double counts them as it counts contexts. */
void *blas_part_new(size_t bytes);
int blas_part_free(void *part);
/* What is wrong with the sizes; NULL: they fit. */
const char *blas_misfit(const blas_product *p);
/* Checks memory and puts the product into a stream. 0 or an error of the interface. */
int blas_give(const gpu_call *call, void *stream, const blas_product *p);

#endif
