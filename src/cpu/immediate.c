/* immediate.c — the functions of kernels.h: single kernels on the caller's memory.
 *
 * Nothing is implemented twice: products are the library's kernels; row functions are small KIR programs, built when
 * first needed from the steps of which the ops of the same names are composed. So the bits are the same. */
#include "trunnion/kernels.h"

#include <pthread.h>

#include "cpu/cpu_kernels.h"

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* An operand: `rows` rows of `cols` numbers, `stride` apart. */
typedef struct operand {
    const char *name;
    const void *data;
    int64_t rows, cols, stride;
} operand;

static tn_status check_operand(const char *function, const operand *x) {
    int64_t reach, bytes;
    if (x->rows < 0 || x->cols < 0)
        return tn_fail(TN_ERR_ARGUMENT, "%s: %s has %lld rows of %lld elements: sizes must not be negative", function,
                       x->name, (long long)x->rows, (long long)x->cols);
    if (x->rows == 0 || x->cols == 0) return TN_OK;
    if (!x->data)
        return tn_fail(TN_ERR_ARGUMENT, "%s: %s is NULL and should have %lld rows of %lld elements", function, x->name,
                       (long long)x->rows, (long long)x->cols);
    if (x->rows > 1 && x->stride < x->cols)
        return tn_fail(TN_ERR_ARGUMENT, "%s: rows of %s are %lld elements apart, which is less than their length %lld",
                       function, x->name, (long long)x->stride, (long long)x->cols);
    if (tn_mul_overflow(x->rows, tn_max64(x->stride, x->cols), &reach) ||
        tn_mul_overflow(reach, sizeof(float), &bytes)) {
        return tn_fail(TN_ERR_ARGUMENT, "%s: %s with %lld rows, %lld elements apart, exceeds the address space",
                       function, x->name, (long long)x->rows, (long long)x->stride);
    }
    return TN_OK;
}

static uintptr_t operand_end(const operand *x) {
    return (uintptr_t)x->data + (uintptr_t)((x->rows - 1) * x->stride + x->cols) * sizeof(float);
}

static bool overlap(const operand *x, const operand *y) {
    if (x->rows <= 0 || x->cols <= 0 || y->rows <= 0 || y->cols <= 0) return false;
    return (uintptr_t)x->data < operand_end(y) && (uintptr_t)y->data < operand_end(x);
}

/* Checks operands; the last one is the output, which must not overlap the others. */
static tn_status check_operands(const char *function, const operand *x, int count) {
    for (int i = 0; i < count; i++)
        TRY(check_operand(function, &x[i]));
    for (int i = 0; i < count - 1; i++)
        if (overlap(&x[i], &x[count - 1]))
            return tn_fail(TN_ERR_ARGUMENT,
                           "%s: %s overlaps %s, which is read while it is written; use separate memory", function,
                           x[count - 1].name, x[i].name);
    return TN_OK;
}

/* Memory is sized for the current number of threads; if that grows meanwhile, the additional threads are not used. */
typedef struct team {
    int threads, limit_before;
} team;

static team team_begin(void) {
    int threads = tn_threads();
    return (team){threads, tn_threads_limit(threads)};
}

static void team_end(team t) { tn_threads_limit(t.limit_before); }

/* ---- products ---------------------------------------------------------------------------------------------------- */

static tn_matrix matrix_of(const operand *x) {
    return (tn_matrix){.data = (void *)(uintptr_t)x->data, .row_stride = x->stride, .col_stride = 1};
}

static tn_matrix transposed(tn_matrix x) {
    int64_t rows = x.row_stride;
    x.row_stride = x.col_stride;
    x.col_stride = rows;
    return x;
}

/* c[m, n] = a[m, k] · b[k, n] */
static tn_status multiply_immediate(tn_matrix a, tn_matrix b, tn_matrix c, int64_t m, int64_t k, int64_t n) {
    tn_gemm_args args = {.batch = {1, 1, 1, 1}, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c};
    team t = team_begin();
    args.workspace = tn_mem_alloc(tn_gemm_workspace(&args, TN_F32, t.threads));
    bool ready = args.workspace != NULL;
    if (ready) tn_gemm_f32(&args);
    team_end(t);
    tn_mem_free(args.workspace);
    return ready ? TN_OK : TN_ERR_MEMORY;
}

/* out[rows] = w · x */
static tn_status multiply_vector(const operand *w, const operand *x, const operand *out) {
    return multiply_immediate(matrix_of(w), transposed(matrix_of(x)), transposed(matrix_of(out)), w->rows, w->cols, 1);
}

tn_status tn_kernel_matmul_vec_into(const float *w, int64_t row_stride, int64_t rows, int64_t cols, const float *x,
                                    float *out) {
    operand o[] = {{"w", w, rows, cols, row_stride}, {"x", x, 1, cols, cols}, {"out", out, 1, rows, rows}};
    TRY(check_operands("tn_kernel_matmul_vec_into", o, 3));
    return multiply_vector(&o[0], &o[1], &o[2]);
}

tn_status tn_kernel_matmul_vec(const float *w, int64_t rows, int64_t cols, const float *x, float **out) {
    if (!out) return tn_fail(TN_ERR_ARGUMENT, "tn_kernel_matmul_vec: out is NULL");
    *out = NULL;
    operand o[] = {{"w", w, rows, cols, cols}, {"x", x, 1, cols, cols}, {"out", NULL, 1, rows, rows}};
    TRY(check_operand("tn_kernel_matmul_vec", &o[0]));
    TRY(check_operand("tn_kernel_matmul_vec", &o[1]));
    float *result = tn_mem_zalloc((size_t)rows, sizeof *result);
    if (!result) return TN_ERR_MEMORY;
    o[2].data = result;
    tn_status status = multiply_vector(&o[0], &o[1], &o[2]);
    if (status == TN_OK)
        *out = result;
    else
        tn_mem_free(result);
    return status;
}

void tn_kernel_free(float *result) { tn_mem_free(result); }

tn_status tn_kernel_matmul(const float *a, const float *b, int64_t m, int64_t k, int64_t n, float *out) {
    operand o[] = {{"a", a, m, k, k}, {"b", b, k, n, n}, {"out", out, m, n, n}};
    TRY(check_operands("tn_kernel_matmul", o, 3));
    return multiply_immediate(matrix_of(&o[0]), matrix_of(&o[1]), matrix_of(&o[2]), m, k, n);
}

tn_status tn_kernel_weighted_sum_rows(const float *weights, const float *matrix, int64_t row_stride, int64_t n,
                                      int64_t d, float *out) {
    operand o[] = {{"weights", weights, 1, n, n}, {"matrix", matrix, n, d, row_stride}, {"out", out, 1, d, d}};
    TRY(check_operands("tn_kernel_weighted_sum_rows", o, 3));
    return multiply_immediate(matrix_of(&o[0]), matrix_of(&o[1]), matrix_of(&o[2]), 1, n, d);
}

tn_status tn_kernel_attention_scores(const float *query, const float *keys, int64_t row_stride, int64_t n, int64_t d,
                                     float scale, float *scores) {
    operand o[] = {{"query", query, 1, d, d}, {"keys", keys, n, d, row_stride}, {"scores", scores, 1, n, n}};
    TRY(check_operands("tn_kernel_attention_scores", o, 3));
    TRY(multiply_vector(&o[1], &o[0], &o[2]));
    for (int64_t i = 0; i < n; i++)
        scores[i] *= scale;
    return TN_OK;
}

/* ---- products with weights that are quantised in blocks ---------------------------------------------------------- */

struct tn_kernel_matrix {
    tn_dtype dtype;
    int64_t rows, cols;
    void *packed;
};

/* Rows packed at once where the packed form is not kept: it stays in a cache, and is work for several threads. */
static int64_t rows_at_once(int64_t row_bytes) {
    enum { SLAB_BYTES = 1 << 20, GROUP = 16 };
    return tn_max64(SLAB_BYTES / tn_max64(row_bytes, 1) / GROUP, 1) * GROUP;
}

static tn_status check_blocks(const char *function, tn_dtype dtype, const void *blocks, int64_t rows, int64_t cols,
                              int64_t *row_bytes) {
    int64_t length = tn_dtype_block(dtype), all;
    if (length <= 1)
        return tn_fail(TN_ERR_DTYPE, "%s: %s is not block-quantized: use tn_kernel_matmul_vec for f32", function,
                       tn_dtype_name(dtype));
    if (rows < 0 || cols < 0 || cols % length != 0)
        return tn_fail(
            TN_ERR_ARGUMENT,
            "%s: %lld rows of %lld elements: sizes must not be negative, and rows of %s must be a multiple of %lld",
            function, (long long)rows, (long long)cols, tn_dtype_name(dtype), (long long)length);
    bool large = tn_mul_overflow(cols / length, (int64_t)tn_dtype_size(dtype), row_bytes) ||
                 tn_add_overflow(rows, 16, &all) || tn_mul_overflow(all, *row_bytes + 64, &all) ||
                 tn_mul_overflow(all, 2, &all);
    if (large)
        return tn_fail(TN_ERR_ARGUMENT, "%s: %lld rows of %lld elements exceed the address space", function,
                       (long long)rows, (long long)cols);
    if (rows > 0 && cols > 0 && !blocks) return tn_fail(TN_ERR_ARGUMENT, "%s: blocks is NULL", function);
    return TN_OK;
}

static tn_qmat_args quantized_args(const tn_kernel_matrix *w, const float *x, int64_t m, float *out,
                                   int64_t out_stride) {
    return (tn_qmat_args){.m = m,
                          .n = w->rows,
                          .k = w->cols,
                          .dtype = w->dtype,
                          .x = x,
                          .x_stride = w->cols,
                          .packed = w->packed,
                          .c = {.data = out, .row_stride = out_stride, .col_stride = 1}};
}

tn_status tn_kernel_matmul_vec_quantized(tn_dtype dtype, const void *blocks, int64_t rows, int64_t cols, const float *x,
                                         float *out) {
    static const char *const function = "tn_kernel_matmul_vec_quantized";
    int64_t row_bytes;
    operand o[] = {{"x", x, 1, cols, cols}, {"out", out, 1, rows, rows}};
    TRY(check_blocks(function, dtype, blocks, rows, cols, &row_bytes));
    TRY(check_operands(function, o, 2));
    tn_kernel_matrix slab = {dtype, tn_min64(rows_at_once(row_bytes), rows), cols, NULL};
    tn_qmat_args args = quantized_args(&slab, x, 1, out, rows);
    team t = team_begin();
    slab.packed = tn_mem_alloc(tn_qmat_packed_bytes(slab.rows, cols, dtype));
    args.workspace = tn_mem_alloc(tn_qmat_workspace(&args, t.threads));
    bool ready = slab.packed && args.workspace;
    args.packed = slab.packed;
    for (int64_t row = 0; ready && row < rows; row += args.n) {
        args.n = tn_min64(slab.rows, rows - row);
        args.c.data = out + row;
        tn_qmat_pack(dtype, (const char *)blocks + row * row_bytes, args.n, cols, slab.packed);
        tn_qmat(&args);
    }
    team_end(t);
    tn_mem_free_each(args.workspace, slab.packed);
    return ready ? TN_OK : TN_ERR_MEMORY;
}

tn_status tn_kernel_pack_quantized(tn_dtype dtype, const void *blocks, int64_t rows, int64_t cols,
                                   tn_kernel_matrix **out) {
    static const char *const function = "tn_kernel_pack_quantized";
    int64_t row_bytes;
    if (!out) return tn_fail(TN_ERR_ARGUMENT, "%s: out is NULL", function);
    *out = NULL;
    TRY(check_blocks(function, dtype, blocks, rows, cols, &row_bytes));
    tn_kernel_matrix *w = tn_mem_alloc(sizeof *w);
    if (!w) return TN_ERR_MEMORY;
    *w = (tn_kernel_matrix){dtype, rows, cols, tn_mem_alloc(tn_qmat_packed_bytes(rows, cols, dtype))};
    if (!w->packed) {
        tn_mem_free(w);
        return TN_ERR_MEMORY;
    }
    tn_qmat_pack(dtype, blocks, rows, cols, w->packed);
    *out = w;
    return TN_OK;
}

tn_status tn_kernel_matmul_packed(const tn_kernel_matrix *w, const float *x, int64_t m, float *out) {
    static const char *const function = "tn_kernel_matmul_packed";
    if (!w) return tn_fail(TN_ERR_ARGUMENT, "%s: w is NULL", function);
    operand o[] = {{"x", x, m, w->cols, w->cols}, {"out", out, m, w->rows, w->rows}};
    TRY(check_operands(function, o, 2));
    tn_qmat_args args = quantized_args(w, x, m, out, w->rows);
    team t = team_begin();
    args.workspace = tn_mem_alloc(tn_qmat_workspace(&args, t.threads));
    bool ready = args.workspace != NULL;
    if (ready) tn_qmat(&args);
    team_end(t);
    tn_mem_free(args.workspace);
    return ready ? TN_OK : TN_ERR_MEMORY;
}

void tn_kernel_matrix_free(tn_kernel_matrix *w) {
    if (!w) return;
    tn_mem_free_each(w->packed, w);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Only the structure is cached: extents and strides come with each call. While building, strides only tell accesses
 * apart. Accesses are numbered in order of first use. */

static kir_aff along(int axis, int64_t offset, int64_t stride) {
    kir_aff at = kir_aff_const(offset);
    at.s[axis] = stride;
    return at;
}

/* Buffers: x, out. Axes: element. Accesses: x, out. */
static tn_status build_silu(kir_builder **b) {
    TRY(kir_begin(1, 0, (int64_t[]){1}, b));
    int from = kir_buffer(*b, TN_F32), to = kir_buffer(*b, TN_F32);
    kir_aff at = along(0, 0, 1);
    kir_val x = kir_load(*b, from, &at, KIR_NONE), one = kir_const(*b, KIR_F32, 1);
    kir_val below = kir_binary(*b, KIR_ADD, kir_unary(*b, KIR_EXP, kir_unary(*b, KIR_NEG, x)), one);
    kir_store(*b, to, &at, kir_binary(*b, KIR_MUL, x, kir_binary(*b, KIR_DIV, one, below)), KIR_NONE);
    return TN_OK;
}

/* exp(x - greatest); x is loaded again, because values loaded in a loop are not visible after it. */
static kir_val weight_at(kir_builder *b, int buffer, const kir_aff *at, kir_val greatest) {
    return kir_unary(b, KIR_EXP, kir_sub(b, kir_load(b, buffer, at, KIR_NONE), greatest));
}

/* Buffers: x, out. Axes: one point, element. Accesses: x, out. */
static tn_status build_softmax(kir_builder **b) {
    TRY(kir_begin(1, 1, (int64_t[]){1, 1}, b));
    int from = kir_buffer(*b, TN_F32), to = kir_buffer(*b, TN_F32);
    kir_aff at = along(1, 0, 1);
    kir_loop(*b, 1, 1);
    kir_val greatest = kir_reduce_value(*b, KIR_RMAX, kir_load(*b, from, &at, KIR_NONE), KIR_NONE);
    kir_end(*b);
    kir_loop(*b, 1, 1);
    kir_val sum = kir_reduce_value(*b, KIR_SUM, weight_at(*b, from, &at, greatest), KIR_NONE);
    kir_end(*b);
    kir_loop(*b, 1, 1);
    kir_store(*b, to, &at, kir_binary(*b, KIR_DIV, weight_at(*b, from, &at, greatest), sum), KIR_NONE);
    kir_end(*b);
    return TN_OK;
}

/* Buffers: x, weight, out. Axes: one point, element. Accesses: x, weight, out. Runtime scalars: n, eps. */
static tn_status build_rmsnorm(kir_builder **b) {
    TRY(kir_begin(1, 1, (int64_t[]){1, 1}, b));
    int from = kir_buffer(*b, TN_F32), weight = kir_buffer(*b, TN_F32), to = kir_buffer(*b, TN_F32);
    kir_aff at = along(1, 0, 1);
    kir_loop(*b, 1, 1);
    kir_val x = kir_load(*b, from, &at, KIR_NONE);
    kir_val sum = kir_reduce_value(*b, KIR_SUM, kir_binary(*b, KIR_MUL, x, x), KIR_NONE);
    kir_end(*b);
    kir_val mean = kir_binary(*b, KIR_DIV, sum, kir_scalar_value(*b, KIR_F32, 0));
    kir_val root = kir_unary(*b, KIR_SQRT, kir_binary(*b, KIR_ADD, mean, kir_scalar_value(*b, KIR_F32, 1)));
    kir_val factor = kir_binary(*b, KIR_DIV, kir_const(*b, KIR_F32, 1), root);
    kir_loop(*b, 1, 1);
    kir_val y = kir_binary(*b, KIR_MUL, kir_load(*b, from, &at, KIR_NONE), factor);
    kir_store(*b, to, &at, kir_binary(*b, KIR_MUL, y, kir_load(*b, weight, &at, KIR_NONE)), KIR_NONE);
    kir_end(*b);
    return TN_OK;
}

/* Buffers: x, cos, sin. Axes: row, pair. Accesses: first, cos, second, sin. */
static tn_status build_rope(kir_builder **b) {
    TRY(kir_begin(2, 0, (int64_t[]){1, 1}, b));
    int x = kir_buffer(*b, TN_F32), cosine = kir_buffer(*b, TN_F32), sine = kir_buffer(*b, TN_F32);
    kir_aff first = along(1, 0, 1), second = along(1, 1, 1), angle = along(1, 0, 1);
    kir_val p = kir_load(*b, x, &first, KIR_NONE), c = kir_load(*b, cosine, &angle, KIR_NONE);
    kir_val q = kir_load(*b, x, &second, KIR_NONE), s = kir_load(*b, sine, &angle, KIR_NONE);
    kir_val left = kir_binary(*b, KIR_SUB, kir_binary(*b, KIR_MUL, p, c), kir_binary(*b, KIR_MUL, q, s));
    kir_val right = kir_binary(*b, KIR_ADD, kir_binary(*b, KIR_MUL, q, c), kir_binary(*b, KIR_MUL, p, s));
    kir_store(*b, x, &first, left, KIR_NONE);
    kir_store(*b, x, &second, right, KIR_NONE);
    return TN_OK;
}

typedef enum kernel { SILU, SOFTMAX, RMSNORM, ROPE, KERNELS } kernel;

static tn_status (*const builders[KERNELS])(kir_builder **b) = {
    [SILU] = build_silu, [SOFTMAX] = build_softmax, [RMSNORM] = build_rmsnorm, [ROPE] = build_rope};

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(kir_vm *) made[KERNELS]; /* kept as long as the process */

static tn_status make_program(kernel k, kir_vm **out) {
    kir_builder *b = NULL;
    AUTO_PROGRAM kir_program *program = NULL;
    AUTO_FREE int64_t *sizes = NULL;
    TRY(builders[k](&b));
    TRY(kir_finish(b, &program, &sizes));
    return kir_vm_compile(program, out);
}

static tn_status program_of(kernel k, kir_vm **out) {
    *out = atomic_load_explicit(&made[k], memory_order_acquire);
    if (*out) return TN_OK;
    AUTO_LOCK(&making);
    *out = atomic_load_explicit(&made[k], memory_order_relaxed);
    if (!*out) TRY(make_program(k, out));
    atomic_store_explicit(&made[k], *out, memory_order_release);
    return TN_OK;
}

static tn_status run_immediate(kernel k, const int64_t *sizes, void *const *buffers, const kir_scalar *scalars) {
    kir_vm *vm = NULL;
    TRY(program_of(k, &vm));
    return kir_vm_run(vm, &(kir_launch){.sizes = sizes, .buffers = buffers, .scalars = scalars}, 1);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* sizes: extents, then offset and strides of each access. */

tn_status tn_kernel_silu(const float *x, int64_t n, float *out) {
    operand o[] = {{"x", x, 1, n, n}, {"out", out, 1, n, n}};
    TRY(check_operands("tn_kernel_silu", o, x == out ? 1 : 2));
    if (n == 0) return TN_OK;
    const int64_t sizes[] = {n, 0, 1, 0, 1};
    return run_immediate(SILU, sizes, (void *[]){(void *)(uintptr_t)x, out}, NULL);
}

static tn_status softmax(const char *function, float *x, int64_t n, int64_t stride) {
    int64_t reach;
    TRY(check_operand(function, &(operand){"x", x, 1, n, n}));
    if (n == 0) return TN_OK;
    if (stride == 0 && n > 1)
        return tn_fail(TN_ERR_ARGUMENT, "%s: stride is 0, so all elements would share one address", function);
    if (tn_mul_overflow(n, stride, &reach) || tn_mul_overflow(reach, sizeof *x, &reach))
        return tn_fail(TN_ERR_ARGUMENT, "%s: %lld elements, %lld apart, exceed the address space", function,
                       (long long)n, (long long)stride);
    const int64_t sizes[] = {1, n, 0, 0, stride, 0, 0, stride};
    return run_immediate(SOFTMAX, sizes, (void *[]){x, x}, NULL);
}

tn_status tn_kernel_softmax(float *x, int64_t n) { return softmax("tn_kernel_softmax", x, n, 1); }

tn_status tn_kernel_softmax_view(float *x, int64_t n, int64_t stride) {
    return softmax("tn_kernel_softmax_view", x, n, stride);
}

tn_status tn_kernel_rmsnorm(float *x, const float *weight, int64_t n, float eps) {
    static const char *const function = "tn_kernel_rmsnorm";
    operand o[] = {{"weight", weight, 1, n, n}, {"x", x, 1, n, n}};
    TRY(check_operands(function, o, 2));
    if (!(eps >= 0)) return tn_fail(TN_ERR_ARGUMENT, "%s: eps is %g; it must not be negative", function, (double)eps);
    if (n == 0) return TN_OK;
    const int64_t sizes[] = {1, n, 0, 0, 1, 0, 0, 1, 0, 0, 1};
    const kir_scalar scalars[] = {{.f = (double)n}, {.f = (double)eps}};
    return run_immediate(RMSNORM, sizes, (void *[]){x, (void *)(uintptr_t)weight, x}, scalars);
}

tn_status tn_kernel_apply_rope(float *x, int64_t rows, int64_t features, const float *cos, const float *sin,
                               int64_t half, bool interleaved) {
    static const char *const function = "tn_kernel_apply_rope";
    operand o[] = {{"cos", cos, 1, half, half}, {"sin", sin, 1, half, half}, {"x", x, rows, features, features}};
    TRY(check_operands(function, o, 3));
    if (half > features / 2)
        return tn_fail(TN_ERR_ARGUMENT,
                       "%s: half is %lld, but x has only %lld features (half may be at most half of them)", function,
                       (long long)half, (long long)features);
    if (rows == 0 || half == 0) return TN_OK;
    int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    const int64_t sizes[] = {rows, half, 0, features, step, 0, 0, 1, apart, features, step, 0, 0, 1};
    return run_immediate(ROPE, sizes, (void *[]){x, (void *)(uintptr_t)cos, (void *)(uintptr_t)sin}, NULL);
}
