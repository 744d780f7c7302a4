/* tiles_f64.c — tiles.c for double: same source, half the lanes. */
#define TN_VEC_F64
#include "cpu/tiles.c"
