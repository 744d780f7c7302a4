/* math.c — element-wise functions composed of the primitives of elementwise.c. */
#include <math.h>

#include "ops/common.h"

/* sign(x): −1, 0 or 1; NaN stays NaN. */
static tn_node *compose_sign(tn_build *b, const tn_node *n) {
    tn_node *x = n->in[0], *zero = tn_b_const(b, 0, x);
    tn_node *up = tn_b_cast(b, tn_b_lt(b, zero, x), (tn_dtype)x->dtype);
    tn_node *down = tn_b_cast(b, tn_b_lt(b, x, zero), (tn_dtype)x->dtype);
    tn_node *s = tn_b_sub(b, up, down);
    return tn_dtype_is_float((tn_dtype)x->dtype) ? tn_b_where(b, tn_b_eq(b, x, x), s, x) : s;
}
const tn_op_impl tn_impl_sign = {
    .infer = tn_infer_not_bool, .compose = compose_sign, .grad = tn_grad_none,
    .cases = "types=f32,f64,i32; [2,3]; [0,3]; []"};
