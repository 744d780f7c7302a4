/* gpu.h — workgroup kernels for devices other than the CPU, and the scheduler that gives each row a workgroup.
 *
 * A workgroup kernel makes a kernel program from extents only. It calls `load` for each operand element that it needs
 * and `store` for each finished result; what these append to the program (a plain access, a decoded weight, a window of
 * an image, an activation after the product) is up to the caller. Extents are sizes of the launch, and edges of tiles
 * are masked by them, so one structure serves all shapes. A workgroup kernel computes the bits of the definition
 * (cpu_kernels.h, kir.h): the order of each sum is that of the native kernels.
 *
 * A workgroup kernel is not used if the device's workgroups or their memory are too small (`fits`). */
#ifndef TN_GPU_H
#define TN_GPU_H

#include "cpu/cpu_kernels.h"
#include "kir/kir.h"
#include "trunnion/backend.h"

/* The device's limits for a workgroup. */
typedef struct tn_group_limits {
    int64_t items, local_bytes;
    int64_t subgroup;   /* items of one */
    uint32_t matrix;    /* TN_MATRIX_… of tn_caps */
    int64_t processors; /* that run workgroups side by side; 0: unknown */
    bool long_fma;      /* each fma in the text becomes much code: few of them */
} tn_group_limits;

/* A program that was made, with the sizes of its launch. */
typedef struct tn_workgroup_program {
    kir_program *program;
    int64_t *sizes;
} tn_workgroup_program;

/* ---- products of matrices (gemm_gpu.c) --------------------------------------------------------------------------- */

enum { TN_WORKGROUP_BATCH_AXES = 4, TN_WORKGROUP_DIGITS = 3 };

/* An index that combines several: a number in mixed radix, its last digit the fastest. count 0: a plain number. */
typedef struct tn_digits {
    int count;
    int64_t extent[TN_WORKGROUP_DIGITS];
} tn_digits;

/* The callbacks of a product. Indices are affine in the program's axes; `mask` says where there is an element
 * (KIR_NONE: everywhere), and loads happen only there. `k` and `column` point to one index per digit. */
typedef struct tn_product_callbacks {
    void *context;
    /* Called once, before anything else is appended. */
    void (*begin)(void *context, kir_builder *kb);
    kir_val (*load_a)(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *k, kir_val mask);
    kir_val (*load_b)(void *context, const kir_aff *batch, const kir_aff *k, const kir_aff *column, kir_val mask);
    void (*store)(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *column, kir_val value,
                  kir_val mask);
    /* As load_a and load_b, for packets (kir.h, FETCH) along memory from there on; NULL: the operand's layout does not
     * allow it. */
    kir_val (*fetch_a)(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *k, kir_val mask);
    kir_val (*fetch_b)(void *context, const kir_aff *batch, const kir_aff *k, const kir_aff *column, kir_val mask);
} tn_product_callbacks;

/* C[batch, m, n] = A · B in chains of KIR_KSUM, as CHAIN defines it; integers are summed in any order. */
typedef struct tn_gemm_shape {
    int batch_axes; /* at most TN_WORKGROUP_BATCH_AXES */
    int64_t batch[TN_WORKGROUP_BATCH_AXES];
    int64_t m, n, k;
    kir_type type;
    tn_dtype local_dtype; /* that holds an element of this type in workgroup memory */
    /* are neighbours along k next to each other in memory? Where items read, they should go along memory. */
    bool a_along_k, b_along_k;
    tn_digits a_k, b_k, columns; /* of k for load_a, of k for load_b; only of numbers below 2³¹ */
    tn_dtype half;               /* TN_F16 or TN_BF16 if both operands are of it; else 0 */
    bool plain;                  /* both are of f32 */
    int tile;                    /* 0: by rule; else one of the list below, where it fits */
} tn_gemm_shape;
bool tn_gemm_workgroup_fits(const tn_gemm_shape *s, const tn_group_limits *limits);
tn_status tn_gemm_workgroup(const tn_gemm_shape *s, const tn_group_limits *limits,
                            const tn_product_callbacks *callbacks, tn_workgroup_program *out);

/* The same for devices that multiply matrices of 16×16 (gemm_mma.c): f16 and bf16, without digits, with at most two
 * batch axes; order and rounding of sums are the device's. If callbacks load packets, rows and k, or k and columns,
 * must have extents and strides that are multiples of 8. */
bool tn_gemm_matrix_fits(const tn_gemm_shape *s, const tn_group_limits *limits);
tn_status tn_gemm_matrix(const tn_gemm_shape *s, const tn_group_limits *limits, const tn_product_callbacks *callbacks,
                         tn_workgroup_program *out);

/* Tile 1, 2 … as text, "64x64x16 by 16x16": rows and columns of a workgroup, depth of a panel, items. All give the same
 * bits. False after the last one. */
enum { TN_TILE_NAME = 40 };
bool tn_gemm_tile_name(int tile, char out[TN_TILE_NAME]);
/* Whether it can be had, and the one that the rules choose. */
bool tn_gemm_tile_fits(int tile, const tn_gemm_shape *s, const tn_group_limits *limits);
int tn_gemm_tile_by_rule(const tn_gemm_shape *s, const tn_group_limits *limits);

/* ---- products with weights in blocks (gemm_gpu.c) ---------------------------------------------------------------- */

/* One weight in its parts: it is s·u + t; t is KIR_NONE in formats without a minimum. */
typedef struct tn_weight_parts {
    kir_val u, s, t; /* I32, f32, f32 */
} tn_weight_parts;

typedef struct tn_qmat_callbacks {
    void *context;
    void (*begin)(void *context, kir_builder *kb);
    kir_val (*load_x)(void *context, const kir_aff *row, const kir_aff *k, kir_val mask);
    tn_weight_parts (*load_weight)(void *context, const kir_aff *column, const kir_aff *k, kir_val mask);
    void (*store)(void *context, const kir_aff *row, const kir_aff *column, kir_val value, kir_val mask);
} tn_qmat_callbacks;

/* C[m, n] = x · Wᵀ with x rounded in blocks of 32, as cpu_kernels.h defines it. */
typedef struct tn_qmat_shape {
    int64_t m, n, k;
    int parts; /* of a block of 32: 1 or 2 */
} tn_qmat_shape;
bool tn_qmat_workgroup_fits(const tn_qmat_shape *s, const tn_group_limits *limits);
tn_status tn_qmat_workgroup(const tn_qmat_shape *s, const tn_qmat_callbacks *callbacks, tn_workgroup_program *out);

/* ---- native operations ------------------------------------------------------------------------------------------- */

/* The callbacks of an operation: element `at` of operand `i`, in its own dims, and of the result. Operand TN_RESULT is
 * the current contents of the result's memory. */
enum { TN_RESULT = -1 };
typedef struct tn_operand_callbacks {
    void *context;
    void (*begin)(void *context, kir_builder *kb);
    kir_val (*load)(void *context, int i, const kir_aff *at, kir_val mask);
    void (*store)(void *context, const kir_aff *at, kir_val value, kir_val mask);
} tn_operand_callbacks;

/* Attention over a paged cache (attention_gpu.c), as cpu_kernels.h defines it. Operands: q [n, heads, width], k and v
 * [n, kv_heads, width] rounded to the caches' dtype when they are loaded, the caches of keys and of values [n_pages,
 * kv_heads, TN_PAGE_TOKENS, width], position, pages [page_count], with `sinks` those [heads]; result [n, heads,
 * width]. */
typedef struct tn_attention_shape {
    int64_t n, heads, kv_heads, width, n_pages, page_count, window;
    float scale, cap;
    bool sinks;
} tn_attention_shape;
bool tn_attention_workgroup_fits(const tn_attention_shape *s, const tn_group_limits *limits);
tn_status tn_attention_workgroup(const tn_attention_shape *s, const tn_operand_callbacks *callbacks,
                                 tn_workgroup_program *out);

/* Attention over tensors (attention_gpu.c), as cpu_kernels.h defines it. Operands: q [batch, heads, queries, width], k
 * and v [batch, kv_heads, keys, width or value_width], with `masked` a mask [batch, heads, queries, keys]; result
 * [batch, heads, queries, value_width]. */
typedef struct tn_dense_shape {
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    float scale;
    bool masked, causal, blind, hides;
} tn_dense_shape;
bool tn_dense_workgroup_fits(const tn_dense_shape *s, const tn_group_limits *limits);
tn_status tn_dense_workgroup(const tn_dense_shape *s, const tn_group_limits *limits,
                             const tn_operand_callbacks *callbacks, tn_workgroup_program *out);

/* Operations on rows (indexed_rows.c).
 *
 * Appending to a cache: operands the cache [n_pages, kv_heads, TN_PAGE_TOKENS, width], x [n, kv_heads, width],
 * position, pages [page_count]. The result's memory already has the cache; elements of the new tokens are stored. Of a
 * batch of sequences: position [n], pages [n, page_count]. */
typedef struct tn_append_shape {
    int64_t n, kv_heads, width, n_pages, page_count;
    bool batch;
} tn_append_shape;
tn_status tn_append_workgroup(const tn_append_shape *s, const tn_operand_callbacks *callbacks,
                              tn_workgroup_program *out);

/* Adding rows: operands x [rows, width], index [count], src [count, width], each with one dim of rows and one for the
 * rest. The result's memory already has x. */
typedef struct tn_index_add_shape {
    int64_t rows, width, count;
} tn_index_add_shape;
bool tn_index_add_workgroup_fits(const tn_group_limits *limits);
tn_status tn_index_add_workgroup(const tn_index_add_shape *s, const tn_operand_callbacks *callbacks,
                                 tn_workgroup_program *out);

/* The stable order of each row of x [rows, length], NaN the greatest. */
typedef struct tn_argsort_shape {
    int64_t rows, length;
    bool descending;
} tn_argsort_shape;
bool tn_argsort_workgroup_fits(const tn_group_limits *limits);
tn_status tn_argsort_workgroup(const tn_argsort_shape *s, const tn_operand_callbacks *callbacks,
                               tn_workgroup_program *out);

/* ---- pieces that workgroup kernels share ------------------------------------------------------------------------- */

/* stride · x, x the axis. */
static inline kir_aff tn_along(int axis, int64_t stride) {
    kir_aff a = kir_aff_const(0);
    a.s[axis] = stride;
    return a;
}

/* A number that is a size of the launch. */
static inline kir_val tn_launch_size(kir_builder *b, int64_t v) {
    kir_aff a = kir_aff_const(v);
    return kir_index(b, &a);
}

/* index < bound, the bound being a size of the launch. */
static inline kir_val tn_inside(kir_builder *b, const kir_aff *index, int64_t bound) {
    kir_aff left = *index;
    left.c -= bound;
    return kir_lt(b, kir_index(b, &left), kir_whole(b, 0));
}

/* ==== rows by workgroups ========================================================================================== */
/* A plain program with loops (sums, softmax, norms) runs one row per point. With few rows most of a device would be
 * idle; the schedule gives each row to a workgroup of KIR_LANES items, whose item i is lane i of every reduction. The
 * bits are the same, because the order in which lanes and blocks are folded is part of the language. */

/* How an access of the scheduled program gets its offset and strides from the plain program's sizes. */
typedef struct kir_size_rule {
    uint8_t kind;                 /* rule_kind of sched.c */
    int8_t axis;                  /* of the plain program, where a rule is about one */
    int16_t access;               /* of the plain program */
    int32_t c, item, block, step; /* RULE_FIXED: the offset, and the strides along the axes that were added */
} kir_size_rule;

typedef struct kir_rows {
    kir_program *program;                /* the plain one's buffers and runtime scalars, then local buffers */
    kir_size_rule *rules;                /* one for each access that lives in its sizes */
    uint8_t n_par, n_loop, first, count; /* of the plain program: axes, the range of its loops */
} kir_rows;

/* TN_ERR_UNSUPPORTED for programs without such a schedule: no loops, loops that nest or have different axes, chains
 * (CHAIN, SEQ, SCAN, variables), group programs. */
tn_status kir_schedule_rows(const kir_program *p, kir_rows **out);
void kir_rows_free(kir_rows *r);

/* The sizes of a launch of r->program (kir_sizes_count of them) from those of the plain program. */
void kir_schedule_sizes(const kir_rows *r, const int64_t *plain, int64_t *sizes);

#endif
