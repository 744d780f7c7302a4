/* torch_ops.c — operations by LibTorch: which of our ops is which aten overload.
 *
 * Most are one row of the table: the overload, and which input or the result goes where. out= overloads write into our
 * memory. What differs is a function: attributes in another order, indices outside (LibTorch refuses them, ours are NaN
 * or left out), padding on one side only, and everything whose schema has a Scalar, which the C interface cannot
 * convert.
 *
 * Where LibTorch defines less than we do for integers (division by zero, shifts by too much, conversions out of range)
 * the operands are kept away from there, and the results corrected. Composed ops are rows too, but only where nothing
 * was differentiated through them. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engines/engines.h"
#include "vendor/torch.h"

#include "gen/ops_build.h"

typedef tn_torch_tensor tensor;

enum { INPUTS = 16, MADE = 32 };

/* Kinds of dtypes. UNSIGNED: u16, u32 and u64, which LibTorch copies and converts, and little else. */
enum { FLOATS = 1, INTS = 2, BOOLS = 4, UNSIGNED = 8, ALL = FLOATS | INTS | BOOLS };

typedef struct operand {
    tn_dtype dtype;
    int rank;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK];
    bool absent, constant, reversed; /* reversed: some stride is negative, which LibTorch does not have */
    int64_t from[TN_MAX_RANK];       /* reversed: the strides from which it is copied, to contiguous ones */
    tensor *number;                  /* constant: what holds its value */
    void *address;                   /* of `over`, from the last run */
    tensor *over;
    char *copy; /* reversed: room for its elements in order */
} operand;

struct tn_engine_op {
    const struct torch_row *row;
    int64_t i[TN_MAX_ATTR_INTS];
    double f[TN_MAX_ATTR_FLOATS];
    int n_i, n_in;
    operand of[1 + INPUTS]; /* the result, then the inputs */
};

/* One run. After a failure all calls do nothing and yield NULL. */
typedef struct work {
    const tn_engine_op *op;
    tensor *out, *in[INPUTS];
    tensor *made[MADE];
    int made_count;
    tn_status status;
} work;

typedef struct torch_row {
    uint16_t op;
    uint8_t dtypes; /* of the first input */
    tn_torch_overload overload;
    const char *args; /* a character an argument: 0 … the inputs, = the result; NULL: by `run` */
    void (*run)(work *w);
    bool (*takes)(const tn_node *n, const char **why); /* NULL: all of the dtypes */
} torch_row;

/* ---- calls ------------------------------------------------------------------------------------------------------- */

#define T_(t) \
    { .kind = 'T', .tensor = (t) }
#define L_(t, n) \
    { .kind = 'L', .count = (n), .tensors = (t) }
#define O_(t, n) \
    { .kind = 'O', .count = (n), .tensors = (t) }
#define I_(v) \
    { .kind = 'I', .i = (v) }
#define N_(v, n) \
    { .kind = 'N', .count = (n), .ints = (v) }
#define F_(v) \
    { .kind = 'F', .f = (v) }
#define B_(v) \
    { .kind = 'B', .i = (v) }
#define P_(v, n) \
    { .kind = 'P', .count = (n), .bools = (v) }
#define S_(v) \
    { .kind = 'S', .text = (v) }
#define D_(v) \
    { .kind = 'D', .i = tn_torch_dtype(v) }
#define NONE_ \
    { .kind = '-' }
#define CALL(w, which, ...) \
    call(w, which, (const tn_torch_arg[]){__VA_ARGS__}, TN_COUNT(((const tn_torch_arg[]){__VA_ARGS__})), NULL)
#define RESULTS(w, to, which, ...) \
    call(w, which, (const tn_torch_arg[]){__VA_ARGS__}, TN_COUNT(((const tn_torch_arg[]){__VA_ARGS__})), to)

static void note(work *w, tn_status s) {
    if (w->status == TN_OK) w->status = s;
}

/* Freed when the run ends. */
static tensor *own(work *w, tensor *t) {
    if (!t) note(w, tn_error_code() != TN_OK ? tn_error_code() : TN_ERR_INTERNAL);
    if (t && w->made_count == MADE) {
        tn_torch_free(t);
        note(w, tn_fail(TN_ERR_INTERNAL, "LibTorch: an operation makes more than %d tensors", MADE));
        return NULL;
    }
    if (t) w->made[w->made_count++] = t;
    return w->status == TN_OK ? t : NULL;
}

static void call(work *w, tn_torch_overload which, const tn_torch_arg *args, size_t count, tensor **results) {
    tensor *got[4] = {NULL};
    if (w->status != TN_OK) return;
    note(w, tn_torch_call(which, args, (int)count, results ? got : NULL));
    for (int k = 0; results && k < tn_torch_signatures[which].results; k++)
        results[k] = w->status == TN_OK || got[k] ? own(w, got[k]) : NULL;
}

static tensor *empty(work *w, const int64_t *shape, int rank, tn_dtype dtype) {
    return w->status == TN_OK ? own(w, tn_torch_empty(shape, rank, dtype)) : NULL;
}

/* Other places of t's memory: `offset` elements behind its first. */
static tensor *view(work *w, tensor *t, tn_dtype dtype, int64_t offset, const int64_t *shape, const int64_t *stride,
                    int rank) {
    void *data = NULL;
    if (w->status != TN_OK) return NULL;
    note(w, tn_torch_data(t, &data));
    if (w->status != TN_OK) return NULL;
    char *at = (char *)data + offset * (int64_t)tn_dtype_size(dtype);
    return own(w, tn_torch_over(at, shape, stride, rank, dtype));
}

static void copy(work *w, tensor *to, tensor *from) { CALL(w, TORCH_COPY_, T_(to), T_(from), B_(false)); }

/* A number in `room` as a tensor without dimensions. */
static tensor *number(work *w, double *room, double value) {
    *room = value;
    return w->status == TN_OK ? own(w, tn_torch_over(room, NULL, NULL, 0, TN_F64)) : NULL;
}

static void fill(work *w, tensor *t, double value) {
    double room;
    CALL(w, TORCH_FILL__TENSOR, T_(t), T_(number(w, &room, value)));
}

/* The same for whole numbers that f64 does not have. */
static void fill_whole(work *w, tensor *t, int64_t value) {
    tensor *one = w->status == TN_OK ? own(w, tn_torch_over(&value, NULL, NULL, 0, TN_I64)) : NULL;
    CALL(w, TORCH_FILL__TENSOR, T_(t), T_(one));
}

/* The ends of a dtype of integers, in 64 bits. */
static int64_t least_of(tn_dtype t) { return t == TN_U8 ? 0 : INT64_MIN >> (64 - 8 * (int)tn_dtype_size(t)); }
static int64_t greatest_of(tn_dtype t) { return INT64_MAX >> (64 - 8 * (int)tn_dtype_size(t) - (t == TN_U8)); }

static tensor *to_dtype(work *w, tensor *t, tn_dtype from, tn_dtype to) {
    tensor *made = NULL;
    if (from == to) return t;
    RESULTS(w, &made, TORCH_TO_DTYPE, T_(t), D_(to), B_(false), B_(false), NONE_);
    return made;
}

static const operand *result_of(const work *w) { return &w->op->of[0]; }
static const operand *input_of(const work *w, int k) { return &w->op->of[1 + k]; }

/* ---- by a row ---------------------------------------------------------------------------------------------------- */

static void run_row(work *w) {
    const torch_row *row = w->op->row;
    tn_torch_arg args[4];
    size_t count = strlen(row->args);
    for (size_t k = 0; k < count; k++)
        args[k] = (tn_torch_arg)T_(row->args[k] == '=' ? w->out : w->in[row->args[k] - '0']);
    call(w, row->overload, args, count, NULL);
}

/* Integers are whole already. */
static void run_rounded(work *w) {
    if (tn_dtype_is_float(w->op->of[0].dtype))
        run_row(w);
    else
        copy(w, w->out, w->in[0]);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

static void run_copy(work *w) { copy(w, w->out, w->in[0]); }

/* A bool tensor of x's shape. */
static tensor *compare(work *w, const operand *x, tn_torch_overload which, tensor *a, tensor *b) {
    tensor *made = empty(w, x->shape, x->rank, TN_BOOL);
    CALL(w, which, T_(a), T_(b), T_(made));
    return made;
}

/* A whole number as a tensor without dimensions. */
static tensor *whole_number(work *w, tn_dtype dtype, int64_t value) {
    tensor *t = empty(w, NULL, 0, dtype);
    if (t) fill_whole(w, t, value);
    return t;
}

/* out = instead, where the condition holds. */
static void replace(work *w, tensor *condition, tensor *instead, tensor *out) {
    CALL(w, TORCH_WHERE_SELF_OUT, T_(condition), T_(instead), T_(out), T_(out));
}

/* Float to integer saturates, and NaN is 0; LibTorch's result is any number then. Short integers are i32 that wraps. */
static void saturate(work *w) {
    const operand *x = input_of(w, 0), *y = result_of(w);
    tn_dtype wide = y->dtype == TN_I64 ? TN_I64 : TN_I32;
    double low, high, zero;
    tensor *from = to_dtype(w, w->in[0], x->dtype, TN_F64), *most = empty(w, NULL, 0, wide);
    tensor *least = number(w, &low, (double)least_of(wide)), *none = number(w, &zero, 0);
    tensor *above = compare(w, x, TORCH_GE_TENSOR_OUT, from, number(w, &high, (double)greatest_of(wide)));
    tensor *nan = compare(w, x, TORCH_NE_TENSOR_OUT, from, from), *in_range = empty(w, x->shape, x->rank, TN_F64);
    tensor *out = wide == y->dtype ? w->out : empty(w, x->shape, x->rank, wide);
    if (!in_range || !most || !out) return;
    fill_whole(w, most, greatest_of(wide));
    CALL(w, TORCH_LOGICAL_OR_OUT, T_(above), T_(nan), T_(nan));
    CALL(w, TORCH_WHERE_SELF_OUT, T_(nan), T_(none), T_(from), T_(in_range));
    CALL(w, TORCH_MAXIMUM_OUT, T_(in_range), T_(least), T_(in_range));
    copy(w, out, in_range);
    replace(w, above, most, out);
    if (out != w->out) copy(w, w->out, out);
}

static void run_cast(work *w) {
    tn_dtype to = result_of(w)->dtype;
    if (tn_dtype_is_float(input_of(w, 0)->dtype) && !tn_dtype_is_float(to) && to != TN_BOOL)
        saturate(w);
    else
        run_copy(w);
}

static void divide(work *w, tensor *by) {
    if (w->op->row->op == TN_OP_DIV_TRUNC)
        CALL(w, TORCH_DIV_OUT_MODE, T_(w->in[0]), T_(by), S_("trunc"), T_(w->out));
    else
        CALL(w, w->op->row->overload, T_(w->in[0]), T_(by), T_(w->out));
}

/* x / 0 is 0 here and an error there, and the least integer divided by -1 is itself here and a trap there: both are
 * divided by 1, and corrected. */
static void divide_integers(work *w) {
    const operand *a = input_of(w, 0), *b = input_of(w, 1);
    bool quotient = w->op->row->op == TN_OP_FLOOR_DIVIDE || w->op->row->op == TN_OP_DIV_TRUNC;
    tensor *zero = whole_number(w, b->dtype, 0), *one = whole_number(w, b->dtype, 1);
    tensor *by_zero = compare(w, b, TORCH_EQ_TENSOR_OUT, w->in[1], zero), *safe = empty(w, b->shape, b->rank, b->dtype);
    tensor *by_minus_one = NULL;
    CALL(w, TORCH_WHERE_SELF_OUT, T_(by_zero), T_(one), T_(w->in[1]), T_(safe));
    if (b->dtype != TN_U8) {
        by_minus_one = compare(w, b, TORCH_EQ_TENSOR_OUT, w->in[1], whole_number(w, b->dtype, -1));
        replace(w, by_minus_one, one, safe);
    }
    divide(w, safe);
    if (by_minus_one && quotient) {
        tensor *negative = empty(w, a->shape, a->rank, a->dtype);
        CALL(w, TORCH_NEG_OUT, T_(w->in[0]), T_(negative));
        replace(w, by_minus_one, negative, w->out);
    } else if (by_minus_one) {
        replace(w, by_minus_one, zero, w->out);
    }
    replace(w, by_zero, zero, w->out);
}

static void run_division(work *w) {
    if (tn_dtype_is_float(result_of(w)->dtype))
        divide(w, w->in[1]);
    else
        divide_integers(w);
}

/* By fewer than 0 bits or by all and more: 0, or the sign alone. */
static void run_shift(work *w) {
    const operand *a = input_of(w, 0), *b = input_of(w, 1);
    int64_t width = 8 * (int64_t)tn_dtype_size(a->dtype);
    tensor *zero = whole_number(w, b->dtype, 0), *outside = compare(w, b, TORCH_LT_TENSOR_OUT, w->in[1], zero);
    tensor *too_far = compare(w, b, TORCH_GE_TENSOR_OUT, w->in[1], whole_number(w, b->dtype, width));
    tensor *safe = empty(w, b->shape, b->rank, b->dtype), *rest = zero;
    CALL(w, TORCH_LOGICAL_OR_OUT, T_(outside), T_(too_far), T_(outside));
    CALL(w, TORCH_WHERE_SELF_OUT, T_(outside), T_(zero), T_(w->in[1]), T_(safe));
    CALL(w, w->op->row->overload, T_(w->in[0]), T_(safe), T_(w->out));
    if (w->op->row->op == TN_OP_BITWISE_RIGHT_SHIFT && a->dtype != TN_U8) {
        rest = empty(w, a->shape, a->rank, a->dtype);
        tensor *below = compare(w, a, TORCH_LT_TENSOR_OUT, w->in[0], zero);
        CALL(w, TORCH_WHERE_SELF_OUT, T_(below), T_(whole_number(w, a->dtype, -1)), T_(zero), T_(rest));
    }
    replace(w, outside, rest, w->out);
}

static void run_view_dtype(work *w) {
    const operand *x = input_of(w, 0);
    tn_dtype to = result_of(w)->dtype == TN_BOOL ? TN_U8 : result_of(w)->dtype; /* a bool is whether any bit is set */
    copy(w, w->out, view(w, w->in[0], to, 0, x->shape, x->stride, x->rank));
}

/* x in the result's shape. */
static tensor *broadcast(work *w, int input) {
    const operand *x = input_of(w, input), *y = result_of(w);
    int64_t stride[TN_MAX_RANK] = {0};
    for (int d = 0; d < x->rank; d++)
        stride[y->rank - x->rank + d] = x->shape[d] == 1 ? 0 : x->stride[d];
    return view(w, w->in[input], x->dtype, 0, y->shape, stride, y->rank);
}

/* Integers: aten::add needs a Scalar of their kind, which the interface cannot convert; a sum of two does not. */
static void add_integers(work *w, bool subtract) {
    const operand *y = result_of(w);
    int64_t shape[TN_MAX_RANK + 1] = {2}, first = 0;
    memcpy(shape + 1, y->shape, (size_t)y->rank * sizeof *shape);
    tensor *both[2] = {broadcast(w, 0), broadcast(w, 1)}, *stacked;
    if (subtract) {
        tensor *negative = empty(w, y->shape, y->rank, y->dtype);
        CALL(w, TORCH_NEG_OUT, T_(both[1]), T_(negative));
        both[1] = negative;
    }
    stacked = y->rank < TN_MAX_RANK ? empty(w, shape, y->rank + 1, y->dtype) : NULL;
    if (!stacked) return;
    CALL(w, TORCH_STACK_OUT, L_(both, 2), I_(0), T_(stacked));
    CALL(w, TORCH_SUM_INTLIST_OUT, T_(stacked), N_(&first, 1), B_(false), D_(y->dtype), T_(w->out));
}

static void add_scaled(work *w, double scale) {
    tensor *sum = NULL;
    if (result_of(w)->dtype == TN_BOOL) {
        CALL(w, TORCH_LOGICAL_OR_OUT, T_(w->in[0]), T_(w->in[1]), T_(w->out));
        return;
    }
    if (!tn_dtype_is_float(result_of(w)->dtype)) {
        add_integers(w, scale < 0);
        return;
    }
    note(w, tn_torch_add(w->in[0], w->in[1], scale, &sum));
    if (w->status == TN_OK) copy(w, w->out, own(w, sum));
}

static void run_add(work *w) { add_scaled(w, 1); }
static void run_sub(work *w) { add_scaled(w, -1); }

static void run_gelu(work *w) {
    CALL(w, TORCH_GELU_OUT, T_(w->in[0]), S_(w->op->i[TN_GELU_APPROXIMATE] ? "tanh" : "none"), T_(w->out));
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

/* dims, keepdim: the attributes of all reductions. */
static void reduce(work *w, tn_torch_overload which, bool has_dtype) {
    const int64_t *dims = w->op->i + 1;
    int count = (int)w->op->i[0];
    bool keepdim = w->op->i[1 + count];
    if (count == 0) { /* to LibTorch no dims are all */
        copy(w, w->out, w->in[0]);
    } else if (has_dtype) {
        CALL(w, which, T_(w->in[0]), N_(dims, count), B_(keepdim), NONE_, T_(w->out));
    } else {
        CALL(w, which, T_(w->in[0]), N_(dims, count), B_(keepdim), T_(w->out));
    }
}

static void run_sum(work *w) { reduce(w, TORCH_SUM_INTLIST_OUT, true); }
static void run_mean(work *w) { reduce(w, TORCH_MEAN_OUT, true); }
static void run_amax(work *w) { reduce(w, TORCH_AMAX_OUT, false); }
static void run_amin(work *w) { reduce(w, TORCH_AMIN_OUT, false); }

/* One dim after the other; the last product goes to the result with the dims kept. */
static void run_prod(work *w) {
    const int64_t *dims = w->op->i + 1;
    int count = (int)w->op->i[0];
    const operand *x = input_of(w, 0), *y = result_of(w);
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK];
    tensor *from = w->in[0];
    memcpy(shape, x->shape, sizeof shape);
    for (int k = 0; k < count; k++) {
        shape[dims[k]] = 1;
        tn_strides_contiguous(shape, x->rank, stride);
        tensor *to =
            k + 1 < count ? empty(w, shape, x->rank, y->dtype) : view(w, w->out, y->dtype, 0, shape, stride, x->rank);
        CALL(w, TORCH_PROD_INT_OUT, T_(from), I_(dims[k]), B_(true), NONE_, T_(to));
        from = to;
    }
    if (count == 0) copy(w, w->out, from);
}

/* The dims in one, behind the others: in row-major order, which is how places are counted. */
static tensor *reduced_last(work *w) {
    const operand *x = input_of(w, 0);
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK], whole[TN_MAX_RANK], joined = 1;
    bool reduced[TN_MAX_RANK] = {false};
    int count = 0;
    for (int k = 0; k < (int)w->op->i[0]; k++)
        reduced[w->op->i[1 + k]] = true;
    for (int last = 0; last < 2; last++)
        for (int d = 0; d < x->rank; d++) {
            if (reduced[d] != last) continue;
            shape[count] = x->shape[d];
            stride[count++] = x->stride[d];
            if (last) joined *= x->shape[d];
        }
    tensor *t = empty(w, shape, count, x->dtype);
    copy(w, t, view(w, w->in[0], x->dtype, 0, shape, stride, count));
    count -= (int)w->op->i[0];
    shape[count++] = joined;
    tn_strides_contiguous(shape, count, whole);
    return view(w, t, x->dtype, 0, shape, whole, count);
}

static void arg(work *w, tn_torch_overload which) {
    const operand *x = input_of(w, 0), *y = result_of(w);
    if (w->op->i[0] == 1) {
        CALL(w, which, T_(w->in[0]), I_(w->op->i[1]), B_(w->op->i[2]), T_(w->out));
        return;
    }
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK];
    int count = 0;
    for (int d = 0; d < x->rank; d++) {
        bool kept = true;
        for (int k = 0; k < (int)w->op->i[0]; k++)
            kept &= w->op->i[1 + k] != d;
        if (kept) shape[count++] = x->shape[d];
    }
    tn_strides_contiguous(shape, count, stride);
    tensor *out = view(w, w->out, y->dtype, 0, shape, stride, count);
    CALL(w, which, T_(reduced_last(w)), I_(-1), B_(false), T_(out));
}

static void run_argmax(work *w) { arg(w, TORCH_ARGMAX_OUT); }
static void run_argmin(work *w) { arg(w, TORCH_ARGMIN_OUT); }

static void run_cumsum(work *w) { CALL(w, TORCH_CUMSUM_OUT, T_(w->in[0]), I_(w->op->i[0]), NONE_, T_(w->out)); }
static void run_cumprod(work *w) { CALL(w, TORCH_CUMPROD_OUT, T_(w->in[0]), I_(w->op->i[0]), NONE_, T_(w->out)); }

static void run_softmax(work *w) { CALL(w, TORCH_SOFTMAX_OUT, T_(w->in[0]), I_(w->op->i[0]), B_(false), T_(w->out)); }
static void run_log_softmax(work *w) {
    CALL(w, TORCH_LOG_SOFTMAX_OUT, T_(w->in[0]), I_(w->op->i[0]), B_(false), T_(w->out));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Of bytes, and of halves whose sums are not rounded, the operands are widened first. */
static void run_matmul(work *w) {
    tn_dtype to = result_of(w)->dtype;
    tensor *a = to_dtype(w, w->in[0], input_of(w, 0)->dtype, to), *b = to_dtype(w, w->in[1], input_of(w, 1)->dtype, to);
    CALL(w, TORCH_MATMUL_OUT, T_(a), T_(b), T_(w->out));
}

static tn_torch_arg optional(const work *w, int input) {
    bool there = input < w->op->n_in && w->in[input];
    return there ? (tn_torch_arg)T_(w->in[input]) : (tn_torch_arg)NONE_;
}

static int64_t numel_of(const operand *x) { return tn_product(x->shape, x->rank); }

static void run_linear(work *w) { CALL(w, TORCH_LINEAR_OUT, T_(w->in[0]), T_(w->in[1]), optional(w, 2), T_(w->out)); }

/* inputs: x in f32, the weight in f16 or bf16. */
static void run_linear_half(work *w) {
    tensor *weight = to_dtype(w, w->in[1], input_of(w, 1)->dtype, result_of(w)->dtype);
    CALL(w, TORCH_LINEAR_OUT, T_(w->in[0]), T_(weight), NONE_, T_(w->out));
}

static bool takes_linear_half(const tn_node *n, const char **why) {
    *why = "has no kernel for its dtypes";
    return n->dtype == TN_F32 && n->in[0]->dtype == TN_F32 && n->in[0]->rank >= 2 && n->in[1]->rank == 2;
}

static bool takes_linear(const tn_node *n, const char **why) {
    *why = "multiplies operands of one dtype and of two dimensions or more";
    return n->in[0]->dtype == n->in[1]->dtype && n->in[1]->rank == 2 && n->in[0]->rank >= 2 &&
           (!n->in[2] || n->in[2]->dtype == n->dtype);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* out_size or size, stride, padding before, dilation, groups: the attributes of all three. */
enum { STRIDE = 2, BEFORE = 4, DILATION = 6, GROUPS = 8 };
static const int64_t NO_PADDING[2] = {0, 0};

/* Padding after an axis, so that there are `count` windows and no pixel behind the last; negative: pixels left out. */
static int64_t padding_after(const work *w, int d, int64_t size, int64_t kernel, int64_t count) {
    const int64_t *i = w->op->i;
    int64_t reach = (kernel - 1) * i[DILATION + d] + 1;
    return (count - 1) * i[STRIDE + d] + reach - size - i[BEFORE + d];
}

/* Does LibTorch come to `count` windows with as much padding after as before? */
static bool is_even(const work *w, int d, int64_t size, int64_t kernel, int64_t count) {
    const int64_t *i = w->op->i;
    int64_t reach = (kernel - 1) * i[DILATION + d] + 1, room = size + 2 * i[BEFORE + d] - reach;
    return i[BEFORE + d] >= 0 && room >= 0 && room / i[STRIDE + d] + 1 == count;
}

/* Rows and columns of images [n, c, h, w] from `from` to `to`, which begin `before` pixels into it (or are that far
 * outside): the part that both have. */
static void copy_images(work *w, tensor *to, const int64_t *to_size, tensor *from, const int64_t *from_size,
                        const int64_t *from_stride, const int64_t before[2]) {
    int64_t shape[4] = {from_size[0], from_size[1]}, stride[4], source = 0, target = 0;
    tn_strides_contiguous(to_size, 4, stride);
    for (int d = 0; d < 2; d++) {
        int64_t first = before[d] < 0 ? -before[d] : 0, at = before[d] > 0 ? before[d] : 0;
        shape[2 + d] = tn_min64(from_size[2 + d] - first, to_size[2 + d] - at);
        if (shape[2 + d] <= 0) return;
        source += first * from_stride[2 + d];
        target += at * stride[2 + d];
    }
    tn_dtype dtype = result_of(w)->dtype;
    copy(w, view(w, to, dtype, target, shape, stride, 4), view(w, from, dtype, source, shape, from_stride, 4));
}

/* Images [n, c, h, w], or [c, h, w] as a batch of one. */
typedef struct images {
    tensor *t;
    tn_dtype dtype;
    int64_t shape[4], stride[4];
} images;

static images images_of(work *w, int input) {
    const operand *x = input_of(w, input);
    images to = {.t = w->in[input], .dtype = x->dtype, .shape = {1}};
    int first = 4 - x->rank;
    for (int d = 0; d < x->rank; d++) {
        to.shape[first + d] = x->shape[d];
        to.stride[first + d] = x->stride[d];
    }
    if (first) to.t = view(w, to.t, x->dtype, 0, to.shape, to.stride, 4);
    return to;
}

/* The images with the zeros around them that the attributes say. */
static tensor *padded(work *w, const images *x, const int64_t kernel[2], const int64_t count[2]) {
    int64_t before[2], size[4];
    memcpy(size, x->shape, sizeof size);
    for (int d = 0; d < 2; d++) {
        before[d] = w->op->i[BEFORE + d];
        size[2 + d] += before[d] + padding_after(w, d, x->shape[2 + d], kernel[d], count[d]);
    }
    tensor *t = empty(w, size, 4, x->dtype);
    if (!t) return NULL;
    fill(w, t, 0);
    copy_images(w, t, size, x->t, x->shape, x->stride, before);
    return t;
}

static bool even(const work *w, const int64_t *size, const int64_t *kernel, const int64_t *count) {
    return is_even(w, 0, size[0], kernel[0], count[0]) && is_even(w, 1, size[1], kernel[1], count[1]);
}

static void run_conv2d_forward(work *w) {
    const int64_t *i = w->op->i, *pads = i + BEFORE, *kernel = input_of(w, 1)->shape + 2;
    const int64_t *count = result_of(w)->shape + 2;
    images x = images_of(w, 0);
    if (!even(w, x.shape + 2, kernel, count)) {
        x.t = padded(w, &x, kernel, count);
        pads = NO_PADDING;
    }
    CALL(w, TORCH_CONVOLUTION_OUT, T_(x.t), T_(w->in[1]), NONE_, N_(i + STRIDE, 2), N_(pads, 2), N_(i + DILATION, 2),
         B_(false), N_(NO_PADDING, 2), I_(i[GROUPS]), T_(w->out));
}

/* inputs: x, weight, bias or none. */
static void run_conv2d(work *w) {
    const int64_t *i = w->op->i;
    const operand *y = result_of(w);
    images x = images_of(w, 0);
    int64_t shape[4] = {1}, stride[4];
    memcpy(shape + 4 - y->rank, y->shape, (size_t)y->rank * sizeof *shape);
    tn_strides_contiguous(shape, 4, stride);
    CALL(w, TORCH_CONVOLUTION_OUT, T_(x.t), T_(w->in[1]), optional(w, 2), N_(i + TN_CONV2D_STRIDE, 2),
         N_(i + TN_CONV2D_PADDING, 2), N_(i + TN_CONV2D_DILATION, 2), B_(false), N_(NO_PADDING, 2),
         I_(i[TN_CONV2D_GROUPS]), T_(y->rank == 4 ? w->out : view(w, w->out, y->dtype, 0, shape, stride, 4)));
}

/* Of x's (0) or the weight's (1) gradient only that is made; the values of that operand are not read. */
static tensor *backward(work *w, tensor *dy, tensor *x, tensor *weight, const int64_t *pads, int which) {
    const int64_t *i = w->op->i;
    bool wanted[3] = {which == 0, which == 1, false};
    tensor *gradients[3] = {NULL};
    RESULTS(w, gradients, TORCH_CONVOLUTION_BACKWARD, T_(dy), T_(x), T_(weight), NONE_, N_(i + STRIDE, 2), N_(pads, 2),
            N_(i + DILATION, 2), B_(false), N_(NO_PADDING, 2), I_(i[GROUPS]), P_(wanted, 3));
    return w->status == TN_OK ? gradients[which] : NULL;
}

/* inputs: the results' gradient, the weight. */
static void run_conv2d_dgrad(work *w) {
    const operand *dy = input_of(w, 0), *weight = input_of(w, 1), *dx = result_of(w);
    const int64_t *kernel = weight->shape + 2;
    int64_t size[4];
    bool same = even(w, dx->shape + 2, kernel, dy->shape + 2);
    memcpy(size, dx->shape, sizeof size);
    for (int d = 0; !same && d < 2; d++)
        size[2 + d] += w->op->i[BEFORE + d] + padding_after(w, d, dx->shape[2 + d], kernel[d], dy->shape[2 + d]);
    tensor *x = empty(w, size, 4, dx->dtype);
    tensor *made = x ? backward(w, w->in[0], x, w->in[1], same ? w->op->i + BEFORE : NO_PADDING, 0) : NULL;
    if (!made) return;
    if (same) {
        copy(w, w->out, made);
        return;
    }
    const int64_t *shape, *stride, before[2] = {-w->op->i[BEFORE], -w->op->i[BEFORE + 1]};
    int rank;
    fill(w, w->out, 0);
    note(w, tn_torch_shape(made, &shape, &stride, &rank));
    if (w->status == TN_OK) copy_images(w, w->out, dx->shape, made, shape, stride, before);
}

/* inputs: the images, the results' gradient. */
static void run_conv2d_wgrad(work *w) {
    const operand *weight = result_of(w);
    const int64_t *kernel = weight->shape + 2;
    images x = images_of(w, 0), dy = images_of(w, 1);
    bool same = even(w, x.shape + 2, kernel, dy.shape + 2);
    tensor *all = same ? x.t : padded(w, &x, kernel, dy.shape + 2);
    tensor *shape = empty(w, weight->shape, 4, weight->dtype);
    tensor *made = all && shape ? backward(w, dy.t, all, shape, same ? w->op->i + BEFORE : NO_PADDING, 1) : NULL;
    if (made) copy(w, w->out, made);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

enum { WINDOW_KERNEL = 0, WINDOW_STRIDE = 2, WINDOW_PADDING = 4, WINDOW_DILATION = 6, WINDOW_SIZE = 8 };

/* Every window as a view of the padded images, copied. */
static void run_unfold2d(work *w) {
    const operand *x = input_of(w, 0), *y = result_of(w);
    const int64_t *i = w->op->i, *from = x->stride;
    int64_t size[4], stride[6], own_stride[4];
    tensor *t = w->in[0];
    memcpy(size, x->shape, sizeof size);
    if (i[WINDOW_PADDING] || i[WINDOW_PADDING + 1]) {
        size[2] += 2 * i[WINDOW_PADDING];
        size[3] += 2 * i[WINDOW_PADDING + 1];
        t = empty(w, size, 4, x->dtype);
        if (!t) return;
        fill(w, t, w->op->f[TN_UNFOLD2D_VALUE]);
        copy_images(w, t, size, w->in[0], x->shape, x->stride, i + WINDOW_PADDING);
        tn_strides_contiguous(size, 4, own_stride);
        from = own_stride;
    }
    for (int d = 0; d < 2; d++) {
        stride[d] = from[d];
        stride[2 + d] = i[WINDOW_DILATION + d] * from[2 + d];
        stride[4 + d] = i[WINDOW_STRIDE + d] * from[2 + d];
    }
    copy(w, w->out, view(w, t, x->dtype, 0, y->shape, stride, 6));
}

/* The windows that a stride of 0 stands for lie side by side. */
static void run_max_pool2d(work *w) {
    const int64_t *i = w->op->i, *stride = i + TN_MAX_POOL2D_STRIDE;
    tensor *made = NULL;
    if (!stride[0]) stride = i + TN_MAX_POOL2D_KERNEL_SIZE;
    RESULTS(w, &made, TORCH_MAX_POOL2D, T_(w->in[0]), N_(i + TN_MAX_POOL2D_KERNEL_SIZE, 2), N_(stride, 2),
            N_(i + TN_MAX_POOL2D_PADDING, 2), N_(i + TN_MAX_POOL2D_DILATION, 2), B_(i[TN_MAX_POOL2D_CEIL_MODE]));
    if (made) copy(w, w->out, made);
}

static bool takes_max_pool2d(const tn_node *n, const char **why) {
    *why = "pools images of three or four dimensions, with strides on both axes or none";
    return n->rank >= 3 && !n->i[TN_MAX_POOL2D_STRIDE] == !n->i[TN_MAX_POOL2D_STRIDE + 1];
}

static void run_avg_pool2d(work *w) {
    const int64_t *i = w->op->i, *stride = i + TN_AVG_POOL2D_STRIDE, divisor = i[TN_AVG_POOL2D_DIVISOR_OVERRIDE];
    if (!stride[0]) stride = i + TN_AVG_POOL2D_KERNEL_SIZE;
    CALL(w, TORCH_AVG_POOL2D_OUT, T_(w->in[0]), N_(i + TN_AVG_POOL2D_KERNEL_SIZE, 2), N_(stride, 2),
         N_(i + TN_AVG_POOL2D_PADDING, 2), B_(i[TN_AVG_POOL2D_CEIL_MODE]), B_(i[TN_AVG_POOL2D_COUNT_INCLUDE_PAD]),
         divisor ? (tn_torch_arg)I_(divisor) : (tn_torch_arg)NONE_, T_(w->out));
}

static void run_adaptive_avg_pool2d(work *w) {
    CALL(w, TORCH_ADAPTIVE_AVG_POOL2D_OUT, T_(w->in[0]), N_(w->op->i + TN_ADAPTIVE_AVG_POOL2D_OUTPUT_SIZE, 2),
         T_(w->out));
}

static bool takes_pool(const tn_node *n, const char **why) {
    *why = "pools images of three or four dimensions that are not empty";
    return (n->rank == 3 || n->rank == 4) && tn_node_numel(n) > 0;
}

static bool takes_avg_pool2d(const tn_node *n, const char **why) {
    if (!takes_pool(n, why)) return false;
    *why = "pools with strides on both axes or none";
    return !n->i[TN_AVG_POOL2D_STRIDE] == !n->i[TN_AVG_POOL2D_STRIDE + 1];
}

static void run_fold2d(work *w) {
    const operand *x = input_of(w, 0);
    const int64_t *i = w->op->i, *s = x->shape;
    int64_t shape[3] = {s[0], s[1] * s[2] * s[3], s[4] * s[5]}, stride[3];
    tensor *whole = empty(w, s, 6, x->dtype);
    if (!whole) return;
    copy(w, whole, w->in[0]);
    tn_strides_contiguous(shape, 3, stride);
    CALL(w, TORCH_COL2IM_OUT, T_(view(w, whole, x->dtype, 0, shape, stride, 3)), N_(i + WINDOW_SIZE, 2),
         N_(i + WINDOW_KERNEL, 2), N_(i + WINDOW_DILATION, 2), N_(i + WINDOW_PADDING, 2), N_(i + WINDOW_STRIDE, 2),
         T_(w->out));
}

/* ---- movement ---------------------------------------------------------------------------------------------------- */

static void run_cat(work *w) { CALL(w, TORCH_CAT_OUT, L_(w->in, w->op->n_in), I_(w->op->i[0]), T_(w->out)); }

/* (before, after) of the last dimension, then of the one before it; negative ones cut off. */
static void run_pad(work *w) {
    const operand *x = input_of(w, 0), *y = result_of(w);
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK], source = 0, target = 0;
    tn_strides_contiguous(y->shape, y->rank, stride);
    fill(w, w->out, w->op->f[TN_PAD_VALUE]);
    for (int d = 0; d < x->rank; d++) {
        int64_t place = 2 * (int64_t)(x->rank - 1 - d), before = place < w->op->i[0] ? w->op->i[1 + place] : 0;
        int64_t first = before < 0 ? -before : 0, at = before > 0 ? before : 0;
        shape[d] = tn_min64(x->shape[d] - first, y->shape[d] - at);
        if (shape[d] <= 0) return;
        source += first * x->stride[d];
        target += at * stride[d];
    }
    copy(w, view(w, w->out, y->dtype, target, shape, stride, y->rank),
         view(w, w->in[0], x->dtype, source, shape, x->stride, x->rank));
}

/* attributes: the offset, the number of strides, the strides. Steps backwards are forwards from the other end, with the
 * value turned around. */
static void run_assign_view(work *w) {
    const operand *value = input_of(w, 1);
    int64_t strides[TN_MAX_RANK], turned[TN_MAX_RANK], offset = w->op->i[TN_ASSIGN_VIEW_OFFSET];
    int count = 0;
    copy(w, w->out, w->in[0]);
    for (int d = 0; d < value->rank; d++) {
        if (value->shape[d] == 0) return;
        strides[d] = w->op->i[TN_ASSIGN_VIEW_STRIDES + 1 + d];
        if (strides[d] >= 0) continue;
        offset += (value->shape[d] - 1) * strides[d];
        strides[d] = -strides[d];
        turned[count++] = d;
    }
    tensor *from = w->in[1];
    if (count) {
        from = empty(w, value->shape, value->rank, value->dtype);
        CALL(w, TORCH_FLIP_OUT, T_(w->in[1]), N_(turned, count), T_(from));
    }
    copy(w, view(w, w->out, value->dtype, offset, value->shape, strides, value->rank), from);
}

/* ---- indices ----------------------------------------------------------------------------------------------------- */

/* Indices as LibTorch wants them: i64, and those outside [0, extent) are `instead`; *inside: where they are not, a bool
 * tensor of their shape. */
static tensor *safe_index(work *w, int input, int64_t extent, int64_t instead, tensor **inside) {
    const operand *x = input_of(w, input);
    int64_t numbers[3] = {-1, extent, instead};
    tensor *index = to_dtype(w, w->in[input], x->dtype, TN_I64);
    tensor *above = empty(w, x->shape, x->rank, TN_BOOL), *below = empty(w, x->shape, x->rank, TN_BOOL);
    tensor *safe = empty(w, x->shape, x->rank, TN_I64), *number_of[3];
    for (int k = 0; k < 3; k++)
        number_of[k] = w->status == TN_OK ? own(w, tn_torch_over(&numbers[k], NULL, NULL, 0, TN_I64)) : NULL;
    CALL(w, TORCH_GT_TENSOR_OUT, T_(index), T_(number_of[0]), T_(above));
    CALL(w, TORCH_LT_TENSOR_OUT, T_(index), T_(number_of[1]), T_(below));
    CALL(w, TORCH_LOGICAL_AND_OUT, T_(above), T_(below), T_(above));
    CALL(w, TORCH_WHERE_SELF_OUT, T_(above), T_(index), T_(number_of[2]), T_(safe));
    *inside = above;
    return safe;
}

/* NaN, or 0 of integers, where the index is outside. */
static void blank_outside(work *w, tensor *inside, tensor *out, tn_dtype dtype) {
    double room[2];
    tensor *blank = empty(w, NULL, 0, dtype);
    if (!blank) return;
    CALL(w, TORCH_FILL__TENSOR, T_(blank), T_(number(w, room, tn_dtype_is_float(dtype) ? (double)NAN : 0.0)));
    CALL(w, TORCH_WHERE_SELF_OUT, T_(inside), T_(out), T_(blank), T_(out));
}

/* A tensor without dimensions as one of one element. */
static const int64_t ONE[1] = {1};
static tensor *as_line(work *w, tensor *t, const operand *x) {
    return x->rank ? t : view(w, t, x->dtype, 0, ONE, ONE, 1);
}
static int64_t extent_of(const operand *x, int64_t dim) { return x->rank ? x->shape[dim] : 1; }

static void run_gather(work *w) {
    const operand *x = input_of(w, 0), *index = input_of(w, 1), *y = result_of(w);
    int64_t dim = w->op->i[TN_GATHER_DIM];
    tensor *inside = NULL, *safe = safe_index(w, 1, extent_of(x, dim), 0, &inside);
    operand of_index = *index;
    of_index.dtype = TN_I64;
    CALL(w, TORCH_GATHER_OUT, T_(as_line(w, w->in[0], x)), I_(dim), T_(as_line(w, safe, &of_index)), B_(false),
         T_(as_line(w, w->out, y)));
    blank_outside(w, inside, w->out, y->dtype);
}

static bool takes_lines(const tn_node *n, const char **why) {
    *why = "takes no slices of a tensor that is empty";
    return tn_node_numel(n->in[0]) > 0;
}

static void run_index_select(work *w) {
    const operand *x = input_of(w, 0), *index = input_of(w, 1), *y = result_of(w);
    int64_t dim = w->op->i[TN_INDEX_SELECT_DIM], shape[TN_MAX_RANK], stride[TN_MAX_RANK] = {0};
    tensor *inside = NULL, *safe = safe_index(w, 1, extent_of(x, dim), 0, &inside);
    operand of_index = *index;
    of_index.dtype = TN_I64;
    CALL(w, TORCH_INDEX_SELECT_OUT, T_(as_line(w, w->in[0], x)), I_(dim), T_(as_line(w, safe, &of_index)),
         T_(as_line(w, w->out, y)));
    for (int d = 0; d < y->rank; d++)
        shape[d] = d == dim ? y->shape[d] : 1;
    if (y->rank) stride[dim] = 1;
    tensor *spread = view(w, inside, TN_BOOL, 0, shape, stride, y->rank);
    blank_outside(w, spread, w->out, y->dtype);
}

/* What is scattered goes to a target that is one longer along `dim`: what an index puts outside lands there. */
typedef struct target {
    tensor *t;
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK];
} target;

static target target_for(work *w, int64_t dim) {
    const operand *y = result_of(w);
    target to;
    memcpy(to.shape, y->shape, sizeof to.shape);
    to.shape[dim]++;
    tn_strides_contiguous(to.shape, y->rank, to.stride);
    to.t = empty(w, to.shape, y->rank, y->dtype);
    return to;
}

static void copy_target(work *w, const target *to, bool back) {
    const operand *y = result_of(w);
    tensor *part = view(w, to->t, y->dtype, 0, y->shape, to->stride, y->rank);
    if (back)
        copy(w, w->out, part);
    else
        copy(w, part, w->in[0]);
}

/* inputs: index, source, of which the index's extents count; attributes: dim, shape. `target` is filled. */
static void scatter_into(work *w, const target *to, tensor *source, const char *how) {
    int64_t dim = w->op->i[0], extent = result_of(w)->shape[dim];
    tensor *inside = NULL, *safe = safe_index(w, 0, extent, extent, &inside);
    if (how)
        CALL(w, TORCH_SCATTER_REDUCE__TWO, T_(to->t), I_(dim), T_(safe), T_(source), S_(how), B_(true));
    else
        CALL(w, TORCH_SCATTER_ADD_, T_(to->t), I_(dim), T_(safe), T_(source));
    copy_target(w, to, true);
}

/* From the number that changes nothing. */
static void scatter(work *w, double neutral, int64_t whole, const char *how) {
    const operand *index = input_of(w, 0), *src = input_of(w, 1);
    target to = target_for(w, w->op->i[0]);
    if (!to.t) return;
    if (tn_dtype_is_float(src->dtype))
        fill(w, to.t, neutral);
    else
        fill_whole(w, to.t, whole);
    scatter_into(w, &to, view(w, w->in[1], src->dtype, 0, index->shape, src->stride, src->rank), how);
}

static void run_scatter_sum(work *w) { scatter(w, 0, 0, NULL); }
static void run_scatter_prod(work *w) { scatter(w, 1, 1, "prod"); }
static void run_scatter_amax(work *w) { scatter(w, -(double)INFINITY, least_of(result_of(w)->dtype), "amax"); }
static void run_scatter_amin(work *w) { scatter(w, (double)INFINITY, greatest_of(result_of(w)->dtype), "amin"); }

/* The greatest place along dim that an index leads from; -1: none. */
static void run_scatter_last(work *w) {
    const operand *index = input_of(w, 0);
    int64_t dim = w->op->i[0], stride[TN_MAX_RANK] = {0};
    target to = target_for(w, dim);
    tensor *places = empty(w, index->shape + dim, 1, TN_I64);
    void *data = NULL;
    if (!to.t || !places) return;
    note(w, tn_torch_data(places, &data));
    for (int64_t k = 0; k < index->shape[dim] && w->status == TN_OK; k++)
        ((int64_t *)data)[k] = k;
    stride[dim] = 1;
    fill_whole(w, to.t, -1);
    scatter_into(w, &to, view(w, places, TN_I64, 0, index->shape, stride, index->rank), "amax");
}

/* inputs: x, index, source: rows of the source are added to rows of x. */
static void run_index_add_rows(work *w) {
    const operand *y = result_of(w);
    tensor *inside = NULL, *safe = safe_index(w, 1, y->shape[0], y->shape[0], &inside);
    target to = target_for(w, 0);
    if (!to.t) return;
    copy_target(w, &to, false);
    CALL(w, TORCH_INDEX_PUT_, T_(to.t), O_(&safe, 1), T_(w->in[2]), B_(true));
    copy_target(w, &to, true);
}

static void run_argsort_last(work *w) {
    tensor *order = NULL;
    RESULTS(w, &order, TORCH_ARGSORT_STABLE, T_(w->in[0]), B_(true), I_(-1), B_(w->op->i[0]));
    if (order) copy(w, w->out, order);
}

/* ---- norms, attention -------------------------------------------------------------------------------------------- */

static bool takes_one_dtype(const tn_node *n, const char **why) {
    *why = "has convolutions and norms of operands of one dtype";
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && n->in[k]->dtype != n->dtype) return false;
    return true;
}

static bool takes_channels(const tn_node *n, const char **why) {
    if (!takes_one_dtype(n, why)) return false;
    *why = "has no norms of empty tensors";
    return tn_node_numel(n) > 0;
}

/* The first result of a norm. */
static void take_first(work *w, tensor *const *made) {
    if (made[0]) copy(w, w->out, made[0]);
}

static void run_rms_norm(work *w) {
    const operand *x = input_of(w, 0);
    double eps = w->op->f[TN_RMS_NORM_EPS];
    tensor *made = NULL;
    if (eps == TN_AUTO) eps = x->dtype == TN_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    RESULTS(w, &made, TORCH_RMS_NORM, T_(w->in[0]), N_(w->op->i + 1, (int)w->op->i[0]), optional(w, 1), F_(eps));
    take_first(w, &made);
}

static void run_group_norm(work *w) {
    const operand *x = input_of(w, 0);
    int64_t batch = x->shape[0], channels = x->shape[1];
    tensor *made[3] = {NULL};
    RESULTS(w, made, TORCH_NATIVE_GROUP_NORM, T_(w->in[0]), optional(w, 1), optional(w, 2), I_(batch), I_(channels),
            I_(numel_of(x) / (batch * channels)), I_(w->op->i[TN_GROUP_NORM_NUM_GROUPS]),
            F_(w->op->f[TN_GROUP_NORM_EPS]));
    take_first(w, made);
}

/* inputs: x, running mean and variance (evaluation only), weight, bias. */
static void run_batch_norm(work *w) {
    bool training = w->op->i[TN_BATCH_NORM_TRAINING];
    const tn_torch_arg mean = training ? (tn_torch_arg)NONE_ : optional(w, 1);
    const tn_torch_arg variance = training ? (tn_torch_arg)NONE_ : optional(w, 2);
    tensor *made[3] = {NULL};
    RESULTS(w, made, TORCH_NATIVE_BATCH_NORM, T_(w->in[0]), optional(w, 3), optional(w, 4), mean, variance,
            B_(training), F_(0), F_(w->op->f[TN_BATCH_NORM_EPS]));
    take_first(w, made);
}

static void run_batch_normalize(work *w) {
    tensor *made[3] = {NULL};
    RESULTS(w, made, TORCH_NATIVE_BATCH_NORM, T_(w->in[0]), optional(w, 1), optional(w, 2), NONE_, NONE_, B_(true),
            F_(0), F_(w->op->f[TN_BATCH_NORMALIZE_EPS]));
    take_first(w, made);
}

static void run_layer_norm(work *w) {
    tensor *made[3] = {NULL};
    RESULTS(w, made, TORCH_NATIVE_LAYER_NORM, T_(w->in[0]), N_(w->op->i + 1, (int)w->op->i[0]), optional(w, 1),
            optional(w, 2), F_(w->op->f[TN_LAYER_NORM_EPS]));
    take_first(w, made);
}

/* inputs: x [..., features], cos and sin [..., half], whose rows go with those of x from the last dim on. The first
 * 2 · half features turn in pairs (neighbours, or half apart); the others stay. */
static void run_rope_rows(work *w) {
    const operand *x = input_of(w, 0), *cosine = input_of(w, 1);
    int64_t half = cosine->shape[cosine->rank - 1], shape[TN_MAX_RANK], stride[TN_MAX_RANK], from[TN_MAX_RANK];
    int last = x->rank - 1;
    bool neighbours = w->op->i[TN_ROPE_ROWS_INTERLEAVED];
    memcpy(shape, x->shape, sizeof shape);
    memcpy(from, x->stride, sizeof from);
    tn_strides_contiguous(x->shape, x->rank, stride);
    shape[last] = half;
    if (neighbours) from[last] = stride[last] = 2;
    int64_t apart = neighbours ? 1 : half;
    copy(w, w->out, w->in[0]);
    for (int part = 0; part < 2; part++) { /* a·cos − b·sin, then b·cos + a·sin */
        tensor *own_part = view(w, w->in[0], x->dtype, part * apart, shape, from, x->rank), *sum = NULL;
        tensor *other = view(w, w->in[0], x->dtype, (1 - part) * apart, shape, from, x->rank);
        tensor *turned = empty(w, shape, x->rank, x->dtype), *added = empty(w, shape, x->rank, x->dtype);
        CALL(w, TORCH_MUL_OUT, T_(own_part), T_(w->in[1]), T_(turned));
        CALL(w, TORCH_MUL_OUT, T_(other), T_(w->in[2]), T_(added));
        if (w->status != TN_OK) return;
        note(w, tn_torch_add(turned, added, part ? 1 : -1, &sum));
        if (w->status != TN_OK) return;
        copy(w, view(w, w->out, x->dtype, part * apart, shape, stride, x->rank), own(w, sum));
    }
}

static bool takes_attention(const tn_node *n, const char **why) {
    const int64_t *i = n->i;
    bool causal = i[TN_ATTENTION_DENSE_IS_CAUSAL], square = n->in[0]->shape[2] == n->in[1]->shape[2];
    *why = "has no attention with queries that see no key";
    return !i[TN_ATTENTION_DENSE_BLIND] && !i[TN_ATTENTION_DENSE_HIDES] && (!causal || (square && !n->in[3]));
}

static void run_attention(work *w) {
    const operand *q = input_of(w, 0), *k = input_of(w, 1);
    tensor *made = NULL;
    RESULTS(w, &made, TORCH_SCALED_DOT_PRODUCT_ATTENTION, T_(w->in[0]), T_(w->in[1]), T_(w->in[2]), optional(w, 3),
            F_(0), B_(w->op->i[TN_ATTENTION_DENSE_IS_CAUSAL]), F_(w->op->f[TN_ATTENTION_DENSE_SCALE]),
            B_(q->shape[1] != k->shape[1]));
    if (made) copy(w, w->out, made);
}

/* ---- linear systems and factorizations --------------------------------------------------------------------------- */
/* In f64 and rounded once, with the signs, the order and the undefined results that cpu/linalg.h states. LibTorch
 * refuses matrices with NaN or infinities: zeros are factorized instead, and their results replaced by NaN. */

static tensor *get_one(work *w, tn_torch_overload which, const tn_torch_arg *args, size_t count) {
    tensor *made[4] = {NULL};
    call(w, which, args, count, made);
    return made[0];
}
#define GET(w, which, ...) \
    get_one(w, which, (const tn_torch_arg[]){__VA_ARGS__}, TN_COUNT(((const tn_torch_arg[]){__VA_ARGS__})))

typedef struct matrices {
    int64_t m, n;
    tensor *x, *lost; /* f64; a bool [..., 1, 1] for each matrix */
} matrices;

static int64_t extent_from_last(const operand *x, int back) { return x->shape[x->rank - back]; }

static tensor *input_f64(work *w, int k) { return to_dtype(w, w->in[k], input_of(w, k)->dtype, TN_F64); }

static matrices matrices_of(work *w, bool lower) {
    static const int64_t both[2] = {-2, -1};
    const operand *x = input_of(w, 0);
    double zero;
    matrices a = {.m = extent_from_last(x, 2), .n = extent_from_last(x, 1), .x = input_f64(w, 0)};
    tensor *none = number(w, &zero, 0);
    if (lower) a.x = GET(w, TORCH_TRIL, T_(a.x), I_(0));
    tensor *sum = GET(w, TORCH_MUL_TENSOR, T_(a.x), T_(none));
    sum = GET(w, TORCH_SUM_DIM_INTLIST, T_(sum), N_(both, 2), B_(true), NONE_);
    a.lost = GET(w, TORCH_NE_TENSOR, T_(sum), T_(sum));
    a.x = GET(w, TORCH_WHERE_SELF, T_(a.lost), T_(none), T_(a.x));
    return a;
}

/* A matrix [rows, columns] of each result, `first` elements behind its beginning. */
static void store_matrix(work *w, const matrices *a, int64_t first, int64_t rows, int64_t columns, tensor *value) {
    const operand *x = input_of(w, 0), *y = result_of(w);
    int64_t shape[TN_MAX_RANK], stride[TN_MAX_RANK];
    int batch = x->rank - 2;
    double room;
    tn_strides_contiguous(y->shape, y->rank, stride);
    memcpy(shape, x->shape, sizeof shape);
    shape[batch] = rows;
    shape[batch + 1] = columns;
    stride[batch] = columns;
    stride[batch + 1] = 1;
    if (a->lost) value = GET(w, TORCH_WHERE_SELF, T_(a->lost), T_(number(w, &room, (double)NAN)), T_(value));
    copy(w, view(w, w->out, y->dtype, first, shape, stride, x->rank), value);
}

/* -1 where x is negative, else 1. */
static tensor *signs(work *w, tensor *x) {
    double room[3];
    tensor *negative = GET(w, TORCH_LT_TENSOR, T_(x), T_(number(w, &room[0], 0)));
    return GET(w, TORCH_WHERE_SELF, T_(negative), T_(number(w, &room[1], -1)), T_(number(w, &room[2], 1)));
}

/* The sign of the greatest element of each column, [..., 1, columns]. */
static tensor *column_signs(work *w, tensor *x) {
    tensor *size = GET(w, TORCH_ABS, T_(x)), *place = GET(w, TORCH_ARGMAX, T_(size), I_(-2), B_(true));
    return signs(w, GET(w, TORCH_GATHER, T_(x), I_(-2), T_(place), B_(false)));
}

static tensor *times(work *w, tensor *a, tensor *b) { return GET(w, TORCH_MUL_TENSOR, T_(a), T_(b)); }
static tensor *as_row(work *w, tensor *x) { return GET(w, TORCH_UNSQUEEZE, T_(x), I_(-2)); }
static tensor *turned(work *w, tensor *x) { return GET(w, TORCH_TRANSPOSE_INT, T_(x), I_(-2), I_(-1)); }
static tensor *as_column(work *w, tensor *x) { return GET(w, TORCH_UNSQUEEZE, T_(x), I_(-1)); }

static void run_cholesky(work *w) {
    matrices a = matrices_of(w, true);
    tensor *made[2] = {NULL};
    double zero;
    RESULTS(w, made, TORCH_LINALG_CHOLESKY_EX, T_(a.x), B_(false), B_(false));
    tensor *failed = GET(w, TORCH_GT_TENSOR, T_(made[1]), T_(number(w, &zero, 0)));
    failed = as_column(w, as_column(w, failed));
    a.lost = GET(w, TORCH_LOGICAL_OR, T_(a.lost), T_(failed));
    store_matrix(w, &a, 0, a.n, a.n, made[0]);
}

static void run_solve(work *w) {
    int64_t n = extent_from_last(input_of(w, 0), 1), columns = extent_from_last(result_of(w), 1);
    tensor *made[2] = {NULL}, *a = input_f64(w, 0), *b = input_f64(w, 1);
    if (w->op->row->op == TN_OP_LINALG_SOLVE_SYSTEMS)
        RESULTS(w, made, TORCH_LINALG_SOLVE_EX, T_(a), T_(b), B_(true), B_(false));
    else
        RESULTS(w, made, TORCH_LINALG_SOLVE_TRIANGULAR, T_(a), T_(b), B_(w->op->row->op == TN_OP_LINALG_SOLVE_UPPER),
                B_(true), B_(false));
    store_matrix(w, &(matrices){.n = n}, 0, n, columns, made[0]);
}

static void run_determinants(work *w) {
    matrices a = matrices_of(w, false);
    tensor *made[3] = {GET(w, TORCH_LINALG_DET, T_(a.x))};
    RESULTS(w, made + 1, TORCH_LINALG_SLOGDET, T_(a.x));
    for (int k = 0; k < 3; k++)
        store_matrix(w, &a, k, 1, 1, as_column(w, as_column(w, made[k])));
}

static void run_lu(work *w) {
    matrices a = matrices_of(w, false);
    tensor *made[3] = {NULL};
    RESULTS(w, made, TORCH_LINALG_LU_FACTOR_EX, T_(a.x), B_(true), B_(false));
    tensor *order = GET(w, TORCH_LU_UNPACK, T_(made[0]), T_(made[1]), B_(false), B_(true));
    store_matrix(w, &a, 0, a.m, a.n, made[0]);
    store_matrix(w, &a, a.m * a.n, a.m, a.m, order);
}

static void run_qr(work *w) {
    matrices a = matrices_of(w, false);
    int64_t k = tn_min64(a.m, a.n);
    tensor *made[2] = {NULL};
    RESULTS(w, made, TORCH_LINALG_QR, T_(a.x), S_("reduced"));
    tensor *sign = signs(w, GET(w, TORCH_DIAGONAL, T_(made[1]), I_(0), I_(-2), I_(-1)));
    store_matrix(w, &a, 0, a.m, k, times(w, made[0], as_row(w, sign)));
    store_matrix(w, &a, a.m * k, k, a.n, times(w, made[1], as_column(w, sign)));
}

static void run_eigh(work *w) {
    matrices a = matrices_of(w, true);
    tensor *made[2] = {NULL};
    RESULTS(w, made, TORCH_LINALG_EIGH, T_(a.x), S_("L"));
    store_matrix(w, &a, 0, 1, a.n, as_row(w, made[0]));
    store_matrix(w, &a, a.n, a.n, a.n, times(w, made[1], column_signs(w, made[1])));
}

static void run_svd(work *w) {
    matrices a = matrices_of(w, false);
    int64_t k = tn_min64(a.m, a.n);
    tensor *made[3] = {NULL};
    RESULTS(w, made, TORCH_LINALG_SVD, T_(a.x), B_(false), NONE_);
    tensor *sign = column_signs(w, made[0]);
    store_matrix(w, &a, 0, a.m, k, times(w, made[0], sign));
    store_matrix(w, &a, a.m * k, 1, k, as_row(w, made[1]));
    store_matrix(w, &a, (a.m + 1) * k, k, a.n, times(w, made[2], turned(w, sign)));
}

static bool takes_matrices(const tn_node *n, const char **why) {
    *why = "has no factorizations of empty matrices";
    return tn_node_numel(n) > 0 && tn_node_numel(n->in[0]) > 0;
}

/* ---- which nodes ------------------------------------------------------------------------------------------------- */

static bool takes_alike(const tn_node *n, const char **why) {
    *why = "was given operands of several dtypes";
    return n->n_in < 2 || n->in[0]->dtype == n->in[1]->dtype;
}

static bool takes_i64(const tn_node *n, const char **why) {
    *why = "has no kernel for its dtypes";
    return n->dtype == TN_I64;
}

/* Numbers out of the range of an unsigned type become others there. */
static bool takes_cast(const tn_node *n, const char **why) {
    bool to_unsigned = n->dtype == TN_U16 || n->dtype == TN_U32 || n->dtype == TN_U64;
    *why = "converts floats to no unsigned integers but u8";
    return !to_unsigned || !tn_dtype_is_float((tn_dtype)n->in[0]->dtype);
}

static bool takes_sum(const tn_node *n, const char **why) {
    *why = "adds no integers of eight dimensions";
    return n->dtype == TN_BOOL || tn_dtype_is_float((tn_dtype)n->dtype) || n->rank < TN_MAX_RANK;
}

#define ROW(op, dtypes, overload, args) \
    { TN_OP_##op, dtypes, TORCH_##overload, args, NULL, NULL }
#define ALIKE(op, dtypes, overload) \
    { TN_OP_##op, dtypes, TORCH_##overload, "01=", NULL, takes_alike }
#define INTEGERS(op, dtypes, overload, run) \
    { TN_OP_##op, dtypes, TORCH_##overload, "01=", run, takes_alike }
#define RUN(op, dtypes, run) \
    { TN_OP_##op, dtypes, TORCH_OVERLOADS, NULL, run, NULL }
#define IF(op, dtypes, run, takes) \
    { TN_OP_##op, dtypes, TORCH_OVERLOADS, NULL, run, takes }

static const torch_row rows[] = {
    ROW(NEG, FLOATS | INTS, NEG_OUT, "0="),
    ROW(ABS, FLOATS | INTS, ABS_OUT, "0="),
    {TN_OP_FLOOR, FLOATS | INTS, TORCH_FLOOR_OUT, "0=", run_rounded, NULL},
    {TN_OP_CEIL, FLOATS | INTS, TORCH_CEIL_OUT, "0=", run_rounded, NULL},
    {TN_OP_TRUNC, FLOATS | INTS, TORCH_TRUNC_OUT, "0=", run_rounded, NULL},
    {TN_OP_ROUND, FLOATS | INTS, TORCH_ROUND_OUT, "0=", run_rounded, NULL},
    ROW(SQRT, FLOATS, SQRT_OUT, "0="),
    ROW(EXP, FLOATS, EXP_OUT, "0="),
    ROW(LOG, FLOATS, LOG_OUT, "0="),
    ROW(SIN, FLOATS, SIN_OUT, "0="),
    ROW(COS, FLOATS, COS_OUT, "0="),
    ROW(TANH, FLOATS, TANH_OUT, "0="),
    ROW(ERF, FLOATS, ERF_OUT, "0="),
    ROW(BITWISE_NOT, INTS | BOOLS, BITWISE_NOT_OUT, "0="),
    ROW(EXP2, FLOATS, EXP2_OUT, "0="),
    ROW(LOG2, FLOATS, LOG2_OUT, "0="),
    ROW(LOG10, FLOATS, LOG10_OUT, "0="),
    ROW(ATAN, FLOATS, ATAN_OUT, "0="),
    IF(ADD, ALL, run_add, takes_sum),
    IF(SUB, FLOATS | INTS, run_sub, takes_sum),
    ALIKE(MUL, ALL, MUL_OUT),
    ALIKE(DIV, FLOATS, DIV_OUT),
    INTEGERS(REMAINDER, FLOATS | INTS, REMAINDER_TENSOR_OUT, run_division),
    INTEGERS(FMOD, FLOATS | INTS, FMOD_TENSOR_OUT, run_division),
    INTEGERS(FLOOR_DIVIDE, FLOATS | INTS, FLOOR_DIVIDE_OUT, run_division),
    INTEGERS(DIV_TRUNC, FLOATS | INTS, DIV_OUT_MODE, run_division),
    INTEGERS(BITWISE_LEFT_SHIFT, INTS, BITWISE_LEFT_SHIFT_TENSOR_OUT, run_shift),
    INTEGERS(BITWISE_RIGHT_SHIFT, INTS, BITWISE_RIGHT_SHIFT_TENSOR_OUT, run_shift),
    ALIKE(HEAVISIDE, ALL, HEAVISIDE_OUT),
    ALIKE(MAXIMUM, ALL, MAXIMUM_OUT),
    ALIKE(MINIMUM, ALL, MINIMUM_OUT),
    ALIKE(EQ, ALL, EQ_TENSOR_OUT),
    ALIKE(LT, ALL, LT_TENSOR_OUT),
    ALIKE(LE, ALL, LE_TENSOR_OUT),
    ALIKE(BITWISE_AND, INTS | BOOLS, BITWISE_AND_TENSOR_OUT),
    ALIKE(BITWISE_OR, INTS | BOOLS, BITWISE_OR_TENSOR_OUT),
    ALIKE(BITWISE_XOR, INTS | BOOLS, BITWISE_XOR_TENSOR_OUT),
    ALIKE(POW, FLOATS | INTS, POW_TENSOR_TENSOR_OUT),
    ALIKE(ATAN2, FLOATS, ATAN2_OUT),
    ROW(WHERE, BOOLS, WHERE_SELF_OUT, "012="),
    IF(CAST, ALL | UNSIGNED, run_cast, takes_cast),
    RUN(VIEW_DTYPE, ALL | UNSIGNED, run_view_dtype),
    RUN(CONTIGUOUS, ALL | UNSIGNED, run_copy),
    RUN(SUM, ALL, run_sum),
    RUN(PROD, ALL, run_prod),
    RUN(AMAX, FLOATS | INTS, run_amax),
    RUN(AMIN, FLOATS | INTS, run_amin),
    RUN(ARGMAX, FLOATS | INTS, run_argmax),
    RUN(ARGMIN, FLOATS | INTS, run_argmin),
    RUN(CUMSUM, ALL, run_cumsum),
    RUN(CUMPROD, ALL, run_cumprod),
    RUN(MATMUL_BATCHED, FLOATS | INTS, run_matmul),
    RUN(MATMUL_WIDE, FLOATS, run_matmul),
    RUN(INT_MM, INTS, run_matmul),
    IF(LINEAR_HALF, FLOATS, run_linear_half, takes_linear_half),
    RUN(CONV2D_FORWARD, FLOATS, run_conv2d_forward),
    RUN(CONV2D_DGRAD, FLOATS, run_conv2d_dgrad),
    RUN(CONV2D_WGRAD, FLOATS, run_conv2d_wgrad),
    RUN(UNFOLD2D, ALL, run_unfold2d),
    RUN(FOLD2D, FLOATS, run_fold2d),
    RUN(ROPE_ROWS, FLOATS, run_rope_rows),
    RUN(CAT_FEW, ALL, run_cat),
    RUN(PAD, ALL, run_pad),
    RUN(ASSIGN_VIEW, ALL, run_assign_view),
    IF(GATHER, ALL, run_gather, takes_lines),
    IF(INDEX_SELECT, ALL, run_index_select, takes_lines),
    IF(SCATTER_LAST, INTS, run_scatter_last, takes_i64),
    RUN(SCATTER_SUM, INTS, run_scatter_sum),
    RUN(SCATTER_PROD, INTS, run_scatter_prod),
    RUN(SCATTER_AMAX, INTS, run_scatter_amax),
    RUN(SCATTER_AMIN, INTS, run_scatter_amin),
    RUN(INDEX_ADD_ROWS, FLOATS, run_index_add_rows),
    RUN(ARGSORT_LAST, FLOATS | INTS, run_argsort_last),
    IF(LINALG_CHOLESKY_LOWER, FLOATS, run_cholesky, takes_matrices),
    IF(LINALG_SOLVE_SYSTEMS, FLOATS, run_solve, takes_matrices),
    IF(LINALG_SOLVE_LOWER, FLOATS, run_solve, takes_matrices),
    IF(LINALG_SOLVE_UPPER, FLOATS, run_solve, takes_matrices),
    IF(LINALG_DETERMINANTS, FLOATS, run_determinants, takes_matrices),
    IF(LINALG_LU_PACKED, FLOATS, run_lu, takes_matrices),
    IF(LINALG_QR_PACKED, FLOATS, run_qr, takes_matrices),
    IF(LINALG_EIGH_PACKED, FLOATS, run_eigh, takes_matrices),
    IF(LINALG_SVD_PACKED, FLOATS, run_svd, takes_matrices),
    /* composed */
    ROW(LOG1P, FLOATS, LOG1P_OUT, "0="),
    ROW(EXPM1, FLOATS, EXPM1_OUT, "0="),
    ROW(SIGMOID, FLOATS, SIGMOID_OUT, "0="),
    ROW(RECIPROCAL, FLOATS, RECIPROCAL_OUT, "0="),
    ROW(RSQRT, FLOATS, RSQRT_OUT, "0="),
    ROW(TAN, FLOATS, TAN_OUT, "0="),
    ROW(SINH, FLOATS, SINH_OUT, "0="),
    ROW(COSH, FLOATS, COSH_OUT, "0="),
    ROW(ASIN, FLOATS, ASIN_OUT, "0="),
    ROW(ACOS, FLOATS, ACOS_OUT, "0="),
    ROW(ASINH, FLOATS, ASINH_OUT, "0="),
    ROW(ACOSH, FLOATS, ACOSH_OUT, "0="),
    ROW(ATANH, FLOATS, ATANH_OUT, "0="),
    ROW(SIGN, FLOATS | INTS, SIGN_OUT, "0="),
    ROW(FRAC, FLOATS, FRAC_OUT, "0="),
    ROW(LOGICAL_NOT, ALL, LOGICAL_NOT_OUT, "0="),
    ROW(RELU, FLOATS | INTS, RELU_OUT, "0="),
    ROW(SILU, FLOATS, SILU_OUT, "0="),
    ROW(MISH, FLOATS, MISH_OUT, "0="),
    ROW(LOGSIGMOID, FLOATS, LOG_SIGMOID_OUT, "0="),
    RUN(GELU, FLOATS, run_gelu),
    ALIKE(HYPOT, FLOATS, HYPOT_OUT),
    ALIKE(XLOGY, FLOATS, XLOGY_OUTTENSOR),
    ALIKE(LOGADDEXP, FLOATS, LOGADDEXP_OUT),
    ALIKE(NE, ALL, NE_TENSOR_OUT),
    ALIKE(GT, ALL, GT_TENSOR_OUT),
    ALIKE(GE, ALL, GE_TENSOR_OUT),
    ALIKE(LOGICAL_AND, ALL, LOGICAL_AND_OUT),
    ALIKE(LOGICAL_OR, ALL, LOGICAL_OR_OUT),
    ALIKE(LOGICAL_XOR, ALL, LOGICAL_XOR_OUT),
    RUN(SOFTMAX, FLOATS, run_softmax),
    RUN(LOG_SOFTMAX, FLOATS, run_log_softmax),
    RUN(MEAN, FLOATS, run_mean),
    IF(MAX_POOL2D, FLOATS, run_max_pool2d, takes_max_pool2d),
    IF(LINEAR, FLOATS, run_linear, takes_linear),
    IF(LAYER_NORM, FLOATS, run_layer_norm, takes_one_dtype),
    IF(RMS_NORM, FLOATS, run_rms_norm, takes_channels),
    IF(GROUP_NORM, FLOATS, run_group_norm, takes_channels),
    IF(BATCH_NORM, FLOATS, run_batch_norm, takes_channels),
    IF(BATCH_NORMALIZE, FLOATS, run_batch_normalize, takes_channels),
    IF(CONV2D, FLOATS, run_conv2d, takes_channels),
    IF(AVG_POOL2D, FLOATS, run_avg_pool2d, takes_avg_pool2d),
    IF(ADAPTIVE_AVG_POOL2D, FLOATS, run_adaptive_avg_pool2d, takes_pool),
    IF(ATTENTION_DENSE, FLOATS, run_attention, takes_attention),
};

static const torch_row *row_of(int op) {
    for (size_t k = 0; k < TN_COUNT(rows); k++)
        if (rows[k].op == op) return &rows[k];
    return NULL;
}

static int kind_of(tn_dtype t) {
    if (t == TN_U16 || t == TN_U32 || t == TN_U64) return UNSIGNED;
    return t == TN_BOOL ? BOOLS : tn_dtype_is_float(t) ? FLOATS : INTS;
}

static bool has_dtypes(const tn_node *n) {
    if (tn_torch_dtype((tn_dtype)n->dtype) < 0) return false;
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && tn_torch_dtype((tn_dtype)n->in[k]->dtype) < 0) return false;
    return true;
}

static bool torch_takes(const tn_node *n, const char **why) {
    const torch_row *row = row_of(n->op);
    *why = "has no operator for it";
    if (!row || n->n_in > INPUTS || n->n_in < 1) return false;
    *why = "has no kernel for its dtypes";
    if (!has_dtypes(n)) return false;
    *why = "has no kernel for this dtype";
    if (!(row->dtypes & kind_of((tn_dtype)n->in[0]->dtype))) return false;
    return !row->takes || row->takes(n, why);
}

/* ---- one operation ----------------------------------------------------------------------------------------------- */

static void forget(operand *o) {
    tn_torch_free(o->over);
    o->over = NULL;
    o->address = NULL;
}

static void torch_free(tn_engine_op *op) {
    for (int k = 0; op && k <= op->n_in; k++) {
        forget(&op->of[k]);
        tn_torch_free(op->of[k].number);
        tn_mem_free(op->of[k].copy);
    }
    tn_mem_free(op);
}

static void describe(operand *o, const tn_node *n, const int64_t *stride) {
    o->dtype = (tn_dtype)n->dtype;
    o->rank = n->rank;
    memcpy(o->shape, n->shape, sizeof o->shape);
    memcpy(o->stride, stride, sizeof o->stride);
    for (int d = 0; d < n->rank; d++)
        o->reversed |= stride[d] < 0 && n->shape[d] > 1;
    if (!o->reversed) return;
    memcpy(o->from, stride, sizeof o->from);
    tn_strides_contiguous(o->shape, o->rank, o->stride);
}

/* Its number is one element, which all places are. */
static tn_status make_constant(operand *o, double value) {
    static const int64_t none[TN_MAX_RANK];
    work w = {.status = TN_OK};
    void *data;
    o->number = tn_torch_empty(NULL, 0, o->dtype);
    if (!o->number) return tn_error_code();
    fill(&w, o->number, value);
    for (int k = 0; k < w.made_count; k++)
        tn_torch_free(w.made[k]);
    TRY(w.status);
    TRY(tn_torch_data(o->number, &data));
    o->over = tn_torch_over(data, o->shape, none, o->rank, o->dtype);
    memcpy(o->stride, none, sizeof o->stride);
    return o->over ? TN_OK : tn_error_code();
}

static tn_status make_input(operand *o, const tn_engine_input *in) {
    o->absent = !in->node;
    if (o->absent) return TN_OK;
    describe(o, in->node, in->stride);
    o->constant = in->constant;
    if (o->constant) return make_constant(o, in->value);
    if (!o->reversed) return TN_OK;
    o->copy = tn_mem_alloc(tn_node_bytes(in->node) + 1);
    return o->copy ? TN_OK : TN_ERR_MEMORY;
}

static tn_status torch_make(const tn_node *n, const tn_engine_input *in, tn_engine_op **out) {
    int64_t stride[TN_MAX_RANK];
    tn_engine_op *op = *out = tn_mem_zalloc(1, sizeof *op);
    if (!op) return TN_ERR_MEMORY;
    tn_torch_begin(tn_threads());
    op->row = row_of(n->op);
    op->n_i = n->n_i;
    op->n_in = n->n_in;
    memcpy(op->i, n->i, (size_t)n->n_i * sizeof *op->i);
    memcpy(op->f, n->f, (size_t)n->n_f * sizeof *op->f);
    tn_strides_contiguous(n->shape, n->rank, stride);
    describe(&op->of[0], n, stride);
    for (int k = 0; k < n->n_in; k++)
        TRY(make_input(&op->of[1 + k], &in[k]));
    return TN_OK;
}

/* The elements of an operand with steps backwards, in order. */
static char *gather(const operand *o, const char *from, char *to, int d) {
    size_t size = tn_dtype_size(o->dtype);
    if (d == o->rank) {
        memcpy(to, from, size);
        return to + size;
    }
    for (int64_t k = 0; k < o->shape[d]; k++)
        to = gather(o, from + k * o->from[d] * (int64_t)size, to, d + 1);
    return to;
}

/* The operand's tensor; made anew where it lies elsewhere than at the last run. */
static tn_status bind_operand(operand *o, void *address) {
    if (o->absent || o->constant) return TN_OK;
    if (o->reversed) {
        gather(o, address, o->copy, 0);
        address = o->copy;
    }
    if (o->over && o->address == address) return TN_OK;
    forget(o);
    o->over = tn_torch_over(address, o->shape, o->stride, o->rank, o->dtype);
    o->address = address;
    return o->over ? TN_OK : tn_error_code();
}

static tn_status torch_run(tn_engine_op *op, void *const *pointers) {
    work w = {.op = op, .status = TN_OK};
    tn_torch_begin(tn_threads());
    for (int k = 0; k <= op->n_in; k++)
        TRY(bind_operand(&op->of[k], pointers[k]));
    w.out = op->of[0].over;
    for (int k = 0; k < op->n_in; k++)
        w.in[k] = op->of[1 + k].over;
    (op->row->run ? op->row->run : run_row)(&w);
    for (int k = 0; k < w.made_count; k++)
        tn_torch_free(w.made[k]);
    return w.status;
}

const tn_op_engine tn_op_engine_torch = {
    .backend = "engine:torch", .takes = torch_takes, .make = torch_make, .run = torch_run, .free = torch_free};
