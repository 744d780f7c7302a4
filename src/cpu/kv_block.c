/* kv_block.c — the q8_0 blocks of a cache of keys and values (cpu_kernels.h has the definition). */
#include "cpu/cpu_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kir/kir_math.h"

/* A quotient beyond int8 cannot be: |x| ≤ 127 · d, but for the rounding of 1 / d, and where d was cut. */
static int8_t round_to_byte(float x) {
    float bounded = x > 127 ? 127 : x < -127 ? -127 : x;
    return (int8_t)(bounded + (bounded < 0 ? -0.5f : 0.5f));
}

void tn_kv_block_encode(const float *x, uint8_t *block) {
    float most = 0, sum = 0;
    for (int i = 0; i < TN_KV_BLOCK; i++) {
        float size = x[i] < 0 ? -x[i] : x[i];
        most = size > most ? size : most;
        sum += x[i] * 0; /* NaN if one is not finite */
    }
    float d = most / 127, largest = 65504;
    d = d > largest ? largest : d;
    float by = sum == 0 && d > 0 ? 1 / d : 0;
    if (!(by <= FLT_MAX)) by = 0; /* 1 / d overflows: d is 0 in f16 */
    uint16_t h = kir_to_f16(sum == 0 ? d : NAN);
    memcpy(block, &h, sizeof h);
    for (int i = 0; i < TN_KV_BLOCK; i++)
        block[2 + i] = (uint8_t)(sum == 0 ? round_to_byte(x[i] * by) : 0);
}

void tn_kv_block_decode(const uint8_t *block, float *x) {
    uint16_t h;
    memcpy(&h, block, sizeof h);
    float d = kir_from_f16(h);
    for (int i = 0; i < TN_KV_BLOCK; i++)
        x[i] = d * (float)(int8_t)block[2 + i];
}
