/* gemm_f64.c — gemm.c for double: same source. */
#define TN_VEC_F64
#include "cpu/gemm.c"
