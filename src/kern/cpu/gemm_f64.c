/* gemm_f64.c — gemm.c for double: same source, half the lanes. */
#define TN_VEC_F64
#include "gemm.c"
