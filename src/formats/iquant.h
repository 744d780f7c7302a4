/* iquant.h — GGUF's i-quants and its ternary and 4-bit float types, decoded when a file's tensor is asked for. */
#ifndef TN_IQUANT_H
#define TN_IQUANT_H

#include <stdint.h>

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

#endif
