/* tiles_bytes.c — tiles.c for processors that add four products of bytes in one instruction: same source.
 *
 * It is compiled as qtile.c is. Without such instructions bytes are widened to floats. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
#define TN_VEC_QUADS
#include "cpu/tiles.c"
#else
#include "cpu/isa.h"
#endif
