/* gguf.h — type codes of GGUF files, for reader and writer; decoding of i-quants. */
#ifndef TN_GGUF_H
#define TN_GGUF_H

#include <stdint.h>

#include "base/base.h"
#include "trunnion/model.h"

/* ==== i-quants ==================================================================================================== */

/* A block of TN_Q8_X: 32 weights, sixteen to a factor. */
typedef struct tn_block_q8_x {
    float s[2];
    int8_t u[32];
} tn_block_q8_x;

/* One block of a file to the TN_Q8_X blocks that have its values; one, two or eight of them. */
typedef void tn_iquant_decode(const uint8_t *block, tn_block_q8_x *out);

tn_iquant_decode tn_decode_iq1_s, tn_decode_iq1_m, tn_decode_iq2_xxs, tn_decode_iq2_xs, tn_decode_iq2_s,
    tn_decode_iq3_xxs, tn_decode_iq3_s, tn_decode_iq4_nl, tn_decode_iq4_xs, tn_decode_tq1_0, tn_decode_tq2_0,
    tn_decode_mxfp4, tn_decode_nvfp4;

/* ==== type codes ================================================================================================== */

enum {
    TN_GGUF_MAX_ALIGNMENT = 1 << 16, /* of the tensors' bytes; far above what any file uses */
    TN_GGUF_ALIGNMENT = 32           /* where general.alignment says nothing else */
};

typedef struct tn_gguf_dtype {
    uint32_t number; /* the file's */
    const char *name;
    tn_dtype dtype;           /* what a tensor of it has */
    uint16_t block;           /* elements of a block … */
    uint16_t bytes;           /* … and its size */
    tn_iquant_decode *decode; /* how blocks become those of `dtype`; NULL: they are such */
} tn_gguf_dtype;

/* The row of a type, by the file's number or word or by what needs no decoding; NULL if unknown. */
const tn_gguf_dtype *tn_gguf_dtype_named(const char *name);
const tn_gguf_dtype *tn_gguf_dtype_of(tn_dtype dtype);

/* Bytes of a shape; false when rows are no whole blocks or the number exceeds 63 bits. */
bool tn_gguf_bytes(const tn_gguf_dtype *type, int rank, const int64_t *shape, int64_t *out);

/* A value as it stands in the file: an item, or an array's items, with their lengths where they have such. */
const uint8_t *tn_gguf_value_bytes(const tn_gguf_value *v, size_t *bytes);

/* Bytes of an item of metadata; 0 for strings and arrays, which vary. */
size_t tn_gguf_type_size(int type);

#endif
