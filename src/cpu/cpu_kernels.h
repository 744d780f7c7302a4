/* cpu_kernels.h — native kernels of the CPU: operations that need register blocking, packing or a special order.
 *
 * A native kernel has three stages: `load` (a tile program that computes an operand's elements), the kernel itself, and
 * `store` (a tile program over a block of finished elements that is still in cache). It knows no activations and no
 * other ops. Each computes the bits of its KIR definition (docs/numerics.md, KIR_KSUM). Sources in cpu/ are compiled
 * once per instruction set; cpu/select.c chooses the tables at start. */
#ifndef TN_CPU_KERNELS_H
#define TN_CPU_KERNELS_H

#include "base/base.h"
#include "kir/kir.h"

enum { TN_GEMM_BATCH_AXES = 4 };

/* A fused program. Its parallel axes are all TN_GEMM_BATCH_AXES batch axes (extent 1 where unused), then the operand's
 * two axes: (m, k), (k, n) or (m, n). The results of a prologue of B may differ from batch to batch, whatever the batch
 * strides are, unless packed_b is given. The kernel evaluates boxes of the program (kir_vm_run_box). It sets
 * `launch.buffers[block_buffer]`: where a load program stores its f32 results, or a store program reads the finished
 * f32 block. The access to that buffer must have stride 0 in the batch axes, TN_GEMM_BLOCK_LD in the row axis and 1 in
 * the column axis, and offset 0. */
enum { TN_GEMM_BLOCK_LD = 512 };

/* Where a program reads or writes element (row, column): buffer, or -1 for none, and elements from its beginning. */
typedef struct tn_epilogue_access {
    int buffer;
    int64_t first, row, column;
} tn_epilogue_access;

/* A store program that does no more than this, so that a product can apply it to sums in registers. With x the finished
 * sum, y = x + add[column], or x + fma(times[row], add[column], zero), or x + each[row]; then y + also[row, column].
 * to[row, column] = y; but +0 where `relu` is set and gate[row, column] ≤ 0, or y ≤ 0 without a gate; and at least the
 * number `floor`, at most the number `ceiling`, as KIR_MAX and KIR_MIN define it. With `times` or a gate there is none
 * of each, also, floor and ceiling. */
typedef struct tn_fused_epilogue {
    tn_epilogue_access to, add, times, gate, each, also, floor, ceiling;
    float zero;
    bool relu;
} tn_fused_epilogue;

typedef struct tn_fused_program {
    const kir_vm *vm; /* NULL: no epilogue, plain memory */
    kir_launch launch;
    int block_buffer, buffer_count;
    const tn_fused_epilogue *epilogue_ops; /* what a store program does, or NULL: it says so itself */
    /* For a convolution whose results lie in blocks of channels: epilogue_ops add the bias and do nothing else. Then
     * the program runs over the results in place, in the order of memory (its last axis); it reads -0 as the bias,
     * which changes no sum. */
    bool flat;
} tn_fused_program;

/* Reads it off a program with an epilogue's axes (fused_epilogue.c). false: that is another program. */
bool tn_fused_epilogue_read(const kir_program *p, const int64_t *sizes, int block_buffer, tn_fused_epilogue *out);
/* The same for a convolution, with a channel's index instead of a column's: only add, also, relu, floor and ceiling;
 * `to` names only the buffer, `also` one that lies as the results do. */
bool tn_epilogue_read_channels(const kir_program *p, const int64_t *sizes, int block_buffer, tn_fused_epilogue *out);
/* Whether a convolution's program can be `flat`, as those of hard swish or SiLU can: element by element, one result, no
 * operand except single numbers and a bias for each channel, which must be added to the sum first. Sets `to` and
 * `add`. */
bool tn_epilogue_read_flat(const kir_program *p, const int64_t *sizes, int block_buffer, tn_fused_epilogue *out);

/* An image that is added to bytes: round(((byte − its zero point) · own_scale + (addend − zero) · scale) · sum_scale) +
 * sum_zero, saturated, each operation in f32, ties to even. Scales are at most 1e18. */
typedef struct tn_byte_addend {
    const uint8_t *data; /* in the layout of the results */
    float own_scale, scale, sum_scale;
    int32_t zero, sum_zero;
} tn_byte_addend;

/* Sums of products of bytes as bytes: round((sum + bias) · scale) + zero, saturated to i8 or u8; the sum modulo 2³²,
 * the rest in f32, ties to even; NaN as the least byte. */
typedef struct tn_byte_rounding {
    const int32_t *bias; /* by channel */
    const float *scale;
    int32_t zero;
    bool is_signed;
    bool words;                   /* results lie in words of four channels (conv.h); tn_conv_bytes sets it */
    const tn_byte_addend *addend; /* NULL: none; not for windows of single channels */
} tn_byte_rounding;

/* A placeholder for functions that read only sizes and whether sums are rounded. */
extern const tn_byte_rounding tn_any_byte_rounding;

/* One operand in memory: element (batch…, row, col) at data + Σ batch·batch_stride +
 * row·row_stride + col·col_stride. */
typedef struct tn_matrix {
    void *data;
    int64_t batch_stride[TN_GEMM_BATCH_AXES]; /* 0 where broadcast */
    int64_t row_stride, col_stride;
    tn_fused_program fused; /* used instead of data when fused.vm is set */
} tn_matrix;

/* Choices of a product's implementation. Every way gives the same bits; one that is not possible is replaced by the
 * default. Zero: the kernel's own rules, which depend only on the sizes. */
typedef struct tn_gemm_way {
    uint8_t a;       /* TN_GEMM_PACKED or TN_GEMM_IN_PLACE */
    uint8_t b;       /* the same, packed by all threads together; or TN_GEMM_AT_USE: by the thread that needs it */
    uint8_t threads; /* at most */
} tn_gemm_way;
enum { TN_GEMM_BY_RULE, TN_GEMM_PACKED, TN_GEMM_IN_PLACE, TN_GEMM_AT_USE };

/* C[batch, m, n] = A[batch, m, k] · B[batch, k, n], all three f32, f64, f16 or bf16; or C i32, A and B i8 or u8.
 * Prologues are only for f32; an epilogue reads f32 and replaces the rounding to C's dtype; i32 has none. */
typedef struct tn_gemm_args {
    int64_t batch[TN_GEMM_BATCH_AXES]; /* extents, 1 where unused */
    int64_t m, n, k;
    tn_matrix a, b, c;
    /* A packed copy of B that is kept between calls: space of tn_gemm_packed_bytes, filled if *packed_valid is false,
     * which is then set to true; from then on neither B's data nor its prologue is read. NULL: packed at each call.
     * Only if all batches have the same B. */
    void *packed_b;
    bool *packed_valid;
    void *workspace; /* tn_gemm_workspace bytes, 64-byte aligned: part of the plan's arena, never allocated here */
    tn_gemm_way way;
    tn_dtype a_dtype, b_dtype; /* of products in i32: TN_I8 or TN_U8 */
    bool wide;                 /* of f16 and bf16: C is f32, and nothing is rounded */
    /* Of products in i32, if tn_gemm_takes_quads: C's columns are channels, its sums are rounded to bytes, whose rows
     * are contiguous. No addend. NULL: C is i32. */
    const tn_byte_rounding *rounding;
} tn_gemm_args;

/* For products in i32, TN_I8: with quads (TN_I32: without). */
size_t tn_gemm_packed_bytes(int64_t n, int64_t k, tn_dtype dtype);
/* A product in i32: u8 by i8, on a processor that multiplies and adds four at a time, four times as fast as floats. */
bool tn_gemm_takes_quads(const tn_gemm_args *args);
/* Fills args->packed_b from B, which must not have a prologue: what a product with *packed_valid false would do first.
 * Reads n, k, b, batch and the dtypes; the rest may be anything valid. */
void tn_gemm_pack(const tn_gemm_args *args, tn_dtype dtype);
/* `threads`: at least tn_threads() at the time of the product. Reads sizes, strides, fused programs and way of args, no
 * data. With packed_valid it is enough only for runs with packed_b, else only for runs without. */
size_t tn_gemm_workspace(const tn_gemm_args *args, tn_dtype dtype, int threads);
/* Cannot fail: all memory is provided. f32, f64: chains of KIR_KSUM fused multiply-adds from +0, added in order; the
 * same bits for any thread count, any division, any instruction set. f16, bf16: the same with the widened operands, in
 * f32, rounded once. If the processor multiplies pairs of bf16 faster, k runs in pairs, in chains twice as long,
 * rounded as the processor does (subnormal numbers are zero): the same bits on one machine. i32: exact, modulo 2³².
 * `dtype` is C's, or A's and B's if C is `wide`. */
void tn_gemm_run(const tn_gemm_args *args, tn_dtype dtype);
void tn_gemm_f32(const tn_gemm_args *args);

/* f32 products to be computed in order, of which row r reads only rows r of the others' results: as A, or in its
 * epilogue. So they can be computed row by row, and each thread reads what it has just computed. All have the same
 * number of rows. The bits are those of separate tn_gemm_run calls. */
enum { TN_ROW_FUSED_MOST = 8 };
typedef struct tn_gemm_row_fused {
    const tn_gemm_args *step[TN_ROW_FUSED_MOST];
    int count;
    void *workspace; /* tn_gemm_row_fused_workspace bytes, 64-byte aligned; the workspaces of the steps are not used */
    void *plan;      /* tn_gemm_row_fused_bytes, zero before the first run of these steps, then not to be changed */
} tn_gemm_row_fused;
/* by sizes, strides, fused programs and way, with and without data */
bool tn_gemm_row_fused_takes(const tn_gemm_args *args);
size_t tn_gemm_row_fused_bytes(void);
size_t tn_gemm_row_fused_workspace(const tn_gemm_row_fused *chain, int threads);
void tn_gemm_row_fused_run(const tn_gemm_row_fused *chain);

/* ---- products with weights as files store them ---------------------------------------------------------------------
 *
 * y[m, n] = x[m, k] · W[n, k]ᵀ in f32. W in f16 or bf16: what tn_gemm_f32 gives for the widened weight. W in one of the
 * block formats (TN_Q4_0 … TN_Q8_X): this is the definition. The kernels of every instruction set, for any m, any
 * number of threads and any split, give its bits (a NaN is a NaN, whatever its sign and payload).
 *
 * Weights. A block of 32 is one part of 32 weights, or in Q2_K, Q3_K, Q6_K and Q8_X two parts of 16. In a part,
 * w = s·u + t:
 *   u is an integer: 4 bits less 8 (Q4_0), 4 bits (Q4_1, Q4_K), 5 bits less 16 (Q5_0), 5 bits (Q5_1, Q5_K), 8 bits with
 *   sign (Q8_0, Q8_X), 2 bits (Q2_K), 3 bits less 4 (Q3_K), 6 bits less 32 (Q6_K);
 *   s = d, or d·scale in the K formats (d: f16 widened; the product is exact in f32), or an f32 as it is (Q8_X);
 *   t = the f16 minimum (Q4_1, Q5_1), −(dmin·min) (Q2_K, Q4_K, Q5_K; exact), absent in the others.
 * Activations. Per row and per 32 elements of x, with a = max|x| of them:
 *   a < 2⁻¹⁰⁰: q = 0, dx = 0.    Not finite (any of them): q = 0, dx = NaN.
 *   Else dx = a / 127 and q = x · (127 / a) rounded to the nearest integer, ties to even; so |q| ≤ 127.
 * Result. acc = +0; then for each block of ascending k, for each of its parts in order:
 *   acc = fma(s · dx, (float)Σ u·q, acc), the sum in integers, s · dx and dx · (float)Σ q rounded to f32;
 *   where there is a minimum: acc = fma(t, dx · (float)Σ q, acc). */

/* Weights are multiplied in a packed layout: 16 rows next to each other, with as few bits and scales as in the file,
 * the same on every instruction set. Its size is at most 1.02 times the blocks' bytes with n rounded up to 16, plus
 * some cache lines for each 16 rows. `dtype` is a block format and k a multiple of its block size, or f16 or bf16, here
 * and in tn_qmat; any n. */
size_t tn_qmat_packed_bytes(int64_t n, int64_t k, tn_dtype dtype);
/* `blocks`: [n, k] as GGUF has them, row after row, any alignment. `packed`: 64-byte aligned. Runs on all threads. */
void tn_qmat_pack(tn_dtype dtype, const void *blocks, int64_t n, int64_t k, void *packed);

typedef struct tn_qmat_args {
    int64_t m, n, k;
    tn_dtype dtype;
    const float *x; /* element (row, i) at x + row·x_stride + i */
    int64_t x_stride;
    const void *packed;
    tn_matrix c;     /* f32; its epilogue is as in tn_gemm_f32, all batch axes of extent 1 */
    void *workspace; /* tn_qmat_workspace bytes, 64-byte aligned; of a chain the first one's */
    /* Another product of the same x (m, k, dtype, x and its stride are equal), or NULL. A chain is one launch, and x is
     * rounded once. If n is equal too, one thread computes the same places of all of them in order, so an epilogue may
     * read there what earlier products wrote. */
    const struct tn_qmat_args *next;
    /* The product after this chain, or NULL: its weights are prefetched if there is one row. Only sizes, dtype and
     * `packed` are read; the memory of `packed` may be gone. */
    const struct tn_qmat_args *later;
    /* tn_threads() numbers, initially 0, or NULL: by how much the threads' shares of the columns differ from equal
     * ones. Runs of one row learn them; a chain uses the first product's. */
    int16_t *column_cuts;
} tn_qmat_args;
enum { TN_QMAT_MOST_SIBLINGS = 4 }; /* products of one, at most */

/* `threads`: at least tn_threads() at the time of the product. Reads sizes, dtype and epilogue of args, no data. Does
 * not decrease as m grows: enough for m is enough for fewer rows. For a single product; a chain needs the maximum of
 * its products. */
size_t tn_qmat_workspace(const tn_qmat_args *args, int threads);
/* Cannot fail: all memory is given. */
void tn_qmat(const tn_qmat_args *args);

/* Products of which each row has its own matrix (experts.c), as in a mixture of experts: result[t, j] = W[chosen[t, j]]
 * · x[t, j], with the bits of tn_qmat, or in f32 of tn_gemm_run. A number that is not an expert's gives NaN. Only
 * chosen experts are read. */
typedef struct tn_experts_args {
    int64_t tokens, choices, experts, out, in;
    tn_dtype dtype; /* of weights: f32, or one that tn_qmat takes */
    const float *x; /* rows of `in` numbers */
    int64_t x_token_stride, x_choice_stride;
    const void *weight;    /* expert after expert, tn_experts_weight_bytes each: [out, in] in f32, else packed */
    const int64_t *chosen; /* [tokens, choices] */
    float *result;         /* [tokens, choices, out] */
    void *workspace;       /* tn_experts_workspace bytes, 64-byte aligned */
    int threads;           /* for which the workspace was asked: tn_threads() when the product will run, or more */
} tn_experts_args;
size_t tn_experts_workspace(const tn_experts_args *args, int threads);
void tn_experts(const tn_experts_args *args);

/* Blocks to f32, in the order of their elements: s·u + t, rounded once. `count` blocks; any alignment; one thread. */
void tn_decode_blocks(tn_dtype dtype, const void *blocks, int64_t count, float *out);

/* out[index[i], :] += src[i, :] in ascending i for each row (each row has one owner); rows outside [0, rows) are
 * skipped and counted. out [rows, width] is read and written; src row i at src + i·src_stride. f32 or f64 by element
 * size. */
typedef struct tn_scatter_args {
    void *out;
    const void *src;
    const int64_t *index;
    int64_t rows, width, count, src_stride;
} tn_scatter_args;
int64_t tn_scatter_add_f32(const tn_scatter_args *args);
int64_t tn_scatter_add_f64(const tn_scatter_args *args);

/* out = the parts concatenated along `dim`; elements of 1, 2, 4 or 8 bytes. A part has out's shape except along dim;
 * its strides count elements; out is contiguous and does not overlap the parts. */
enum { TN_CAT_PARTS = 16, TN_CAT_AXES = 8 };
typedef struct tn_cat_part {
    const void *data;
    int64_t extent, stride[TN_CAT_AXES];
} tn_cat_part;
typedef struct tn_cat_args {
    void *out;
    size_t size; /* bytes of an element */
    int rank, dim, parts;
    int64_t shape[TN_CAT_AXES];
    tn_cat_part part[TN_CAT_PARTS];
} tn_cat_args;
void tn_cat_run(const tn_cat_args *args);

/* out = the slices of data along `dim` that index names, in its order; 4-byte elements. out is contiguous with shape
 * `shape`; an index outside 0 … extent - 1 gives `outside`. */
typedef struct tn_take_args {
    uint32_t *out, outside;
    const uint32_t *data;
    const void *index; /* i64, or i32 */
    bool wide;         /* i64 */
    int rank, dim;
    int64_t extent, index_stride, shape[TN_CAT_AXES], stride[TN_CAT_AXES]; /* stride: of data */
} tn_take_args;
void tn_take_run(const tn_take_args *args);

/* out [rows, places, inner] = Σ over taps t of x[…, index[t, i], …] · weight[t, i], x [rows, extent, inner], in order,
 * each operation rounded. All contiguous; an index outside 0 … extent - 1 gives NaN. */
typedef struct tn_resample_args {
    float *out;
    const float *x, *weight;
    const int64_t *index;
    int64_t rows, extent, inner, places, taps;
} tn_resample_args;
void tn_resample_run(const tn_resample_args *args);

/* Stable order of each row: order[r, i] = position of the i-th smallest (largest if descending) element of row r. NaN
 * is the greatest. Rows of `length` contiguous elements; scratch: 2·length int64 per thread. Any compute dtype. */
typedef struct tn_argsort_args {
    const void *data;
    int64_t *order;
    int64_t rows, length;
    tn_dtype dtype;
    bool descending;
    void *workspace; /* threads · 2 · length int64 */
} tn_argsort_args;
void tn_argsort_rows(const tn_argsort_args *args);

/* Rotary positions: in each row of x [extent…, features] pair i, features (i, i + half) or the neighbours (2i, 2i + 1),
 * becomes (x·cos - y·sin, y·cos + x·sin) with entry i of the row's cosine and sine, each operation rounded; features
 * from 2·half on are copied. x and out are contiguous and do not overlap. */
enum { TN_ROPE_AXES = 6 };
typedef struct tn_rope_args {
    const float *x, *cosine, *sine;
    float *out;
    int64_t extent[TN_ROPE_AXES]; /* of the rows; 1 where unused */
    /* from row to row in cosine and sine, elements; 0 where the rows share theirs */
    int64_t table_stride[TN_ROPE_AXES];
    int64_t features, half;
    bool interleaved; /* neighbours are a pair */
} tn_rope_args;
void tn_rope_f32(const tn_rope_args *args);

/* ---- attention over a paged cache (cpu/attention.c) -------------------------------------------------------------- */

enum { TN_PAGE_TOKENS = 64 }; /* tokens of a page of a cache, keys of a chunk of the softmax: part of the contract */

/* A cache of TN_U8 holds q8_0 blocks: TN_KV_BLOCK numbers x are an f16 scale d and as many bytes q, little endian; x is
 * about d · q. In f32, d = min(max |x| / 127, 65504) and q = x · (1 / d), rounded to the nearest, halves away from
 * zero; then d is rounded to f16. A block with a NaN or an infinity is NaN. */
enum { TN_KV_BLOCK = 32, TN_KV_BLOCK_BYTES = 34 };
void tn_kv_block_encode(const float *x, uint8_t *block);
void tn_kv_block_decode(const uint8_t *block, float *x);
/* Elements of a token's row, of head_dim numbers, in a cache of this dtype; and how many numbers a row has. */
static inline int64_t tn_kv_row(tn_dtype dtype, int64_t head_dim) {
    return dtype == TN_U8 ? head_dim / TN_KV_BLOCK * TN_KV_BLOCK_BYTES : head_dim;
}
static inline int64_t tn_kv_numbers(tn_dtype dtype, int64_t row) {
    return dtype == TN_U8 ? row / TN_KV_BLOCK_BYTES * TN_KV_BLOCK : row;
}

/* Keys or values of all tokens so far: data [n_pages, kv_heads, TN_PAGE_TOKENS, row], contiguous within a page; a row
 * is head_dim numbers, or their q8_0 blocks. Token t is row t % TN_PAGE_TOKENS of page pages[t / TN_PAGE_TOKENS]. */
typedef struct tn_kv_cache {
    void *data;
    tn_dtype dtype;       /* TN_F32, TN_F16, TN_BF16, or TN_U8: q8_0; head_dim is then whole blocks */
    int64_t n_pages;      /* pages in data; a number in `pages` outside [0, n_pages) names no page */
    int64_t page_stride;  /* elements from page to page, at least kv_heads · TN_PAGE_TOKENS · row */
    const int64_t *pages; /* [page_count], of a batch [n, page_count]; NULL: page i is i */
    int64_t page_count;   /* pages of this sequence; with pages NULL at most n_pages of them exist */
} tn_kv_cache;

/* Rounds x (f32, to nearest even or to q8_0) to the cache's dtype and writes token i to logical position position + i.
 * Tokens without a page are not written. Cannot fail. */
typedef struct tn_kv_cache_write_args {
    tn_kv_cache cache;
    int64_t n, kv_heads, head_dim, position;
    bool batch;                            /* token i is appended to sequence i instead, … */
    const int64_t *positions;              /* … [n], which has a row of `pages`; each writes a row of its own */
    const float *x;                        /* [n, kv_heads, head_dim], the last axis contiguous */
    int64_t x_token_stride, x_head_stride; /* elements */
} tn_kv_cache_write_args;
void tn_kv_cache_write(const tn_kv_cache_write_args *args);

/* Causal attention of n new tokens, which follow `position` tokens of the cache. Query i sees the logical keys
 * (position + i - window, position + i], all up to position + i if window is 0: keys below `position` come from the
 * cache, the others are the new tokens' k and v ROUNDED to the caches' dtypes, so that it does not matter whether they
 * came in one call or in several. Head h uses kv head h / (heads / kv_heads). The caches are only read: appending may
 * happen before or after. A key without a page is a vector of zeros. `position` is clamped to [0, TN_PAGE_TOKENS ·
 * page_count].
 *
 * Definition, for one query and one head, all in f32:
 *   - the logical keys are divided at the multiples of TN_PAGE_TOKENS into chunks, ascending; chunks without a visible
 *     key are skipped, and so are invisible keys of the others;
 *   - score s_j = scale · (q·k_j), where q·k_j is the matrix product's: ascending fma chains of KIR_KSUM from +0, added
 *     in order; with a cap > 0 it becomes cap · tanh(s_j / cap), by kir_tanh_f32;
 *   - chunk: m = max s_j, NaN ignored; p_j = exp(s_j - m), with 0 instead of an m of -inf; l = Σ p_j, where position t
 *     of the page is added to lane t % 16, ascending, invisible ones as +0, and then lane t adds lane t + w for w = 8,
 *     4, 2, 1; o = Σ p_j · v_j, one fma chain from +0 over the visible keys, ascending;
 *   - the chunks are merged ascending from M = -inf, L = 0, O = 0, or with a sink from M = the sink, L = 1, O = 0:
 *     M' = max(M, m), a = exp(M - M'), b = exp(m - M'), with 0 instead of an M' of -inf; L = fma(l, b, L·a),
 *     O = fma(o, b, O·a), M = M';
 *   - out = O / L. Scores that are all -inf give NaN, and so does a NaN or +inf among them.
 * exp is kir_exp_f32. A row's bits depend only on its own query and visible keys: not on n, the division of a prompt,
 * the position of pages, threads or instruction set. */
typedef struct tn_attention_args {
    int64_t n;                         /* may be 0 */
    int64_t heads, kv_heads, head_dim; /* heads is a multiple of kv_heads */
    int64_t position, window;          /* window ≥ 0 */
    bool batch;                        /* each token follows another sequence, in its row of `pages` … */
    const int64_t *positions;          /* … [n], which has that many tokens */
    bool runs;          /* adjacent tokens with equal rows of `pages` and successive positions are of one sequence */
    float scale, cap;   /* cap ≥ 0; 0: none */
    const float *sinks; /* [heads], or NULL */
    const float *q, *k, *v; /* [n, heads or kv_heads, head_dim], the last axis contiguous; strides in elements */
    int64_t q_token_stride, q_head_stride;
    int64_t k_token_stride, k_head_stride;
    int64_t v_token_stride, v_head_stride;
    float *out; /* [n, heads, head_dim]; must not overlap q, k or v */
    int64_t out_token_stride, out_head_stride;
    tn_kv_cache k_cache, v_cache; /* with the same page_count */
    void *workspace;              /* tn_attention_workspace bytes, 64-byte aligned */
} tn_attention_args;

/* Enough for any position. Reads only n, heads, kv_heads, head_dim, window, batch and page_count. `threads`: at least
 * tn_threads() at the time of the call. */
size_t tn_attention_workspace(const tn_attention_args *args, int threads);
void tn_attention(const tn_attention_args *args);

/* ---- attention over tensors (cpu/sdpa.c) ------------------------------------------------------------------------- */

/* Element (batch, head, row, column) at data + batch·batch stride + … in elements. */
typedef struct tn_sdpa_tensor {
    float *data;
    int64_t batch, head, row, column;
} tn_sdpa_tensor;

/* softmax(scale · q kᵀ + mask) v and its gradients. Head h uses kv head h / (heads / kv_heads). causal: query i sees
 * keys 0 … i.
 *
 * Definition, for one query i, all in f32, with keys and queries divided at multiples of 64 (TN_PAGE_TOKENS):
 *   - score s_j = scale · (q·k_j) (+ mask), q·k_j the matrix product's chains of KIR_KSUM; -inf where j is not visible.
 *     If the mask `hides`, its value replaces the score where it is not 0.
 *     M = max s_j, NaN ignored; w_j = exp(s_j - M), with 0 instead of an M of -inf; L = Σ w_j: key j is added to lane
 *     j % 16, ascending, then lane t adds lane t + w for w = 8, 4, 2, 1;
 *   - a sum over keys, or over queries, is one fma chain from +0 for each 64 of them, the chains added ascending. It
 *     includes keys of chunks up to that of the last visible key; invisible ones have weight 0. Chunks that the mask
 *     hides with -inf from all 64 queries of a block may be skipped: only NaN and infinities there would matter;
 *   - out = (Σ_j w_j·v_j) / L. If `blind`, a row whose M is -inf and L no NaN is 0, without gradients; else NaN;
 *   - r = 1 / L, D = out·dout (an fma into lane c % 16 for each feature c, ascending; lanes folded as above),
 *     g_j = (w_j · (dout·v_j - D)) · (scale · r);
 *     dq = Σ_j g_j·k_j, dk_j = Σ_i g_j·q_i, dv_j = Σ_i w_j·(dout_i·r_i), the sums over queries head after head of
 *     those that share a kv head.
 * exp is kir_exp_f32. A row's bits do not depend on threads or instruction set. */
typedef struct tn_sdpa_args {
    int64_t batch, heads, kv_heads; /* heads is a multiple of kv_heads */
    int64_t queries, keys, features, value_features;
    float scale;
    bool causal;
    bool blind; /* rows that see nothing are 0 */
    bool hides; /* the mask is 0 or -inf, and no score shows where it is -inf, not even NaN */
    tn_sdpa_tensor q, k, v;
    tn_sdpa_tensor mask;       /* added to the scores; strides of 0 where broadcast; data NULL: none */
    tn_sdpa_tensor out;        /* column stride 1; must not overlap the others */
    tn_sdpa_tensor dout;       /* backward: the gradient of out */
    tn_sdpa_tensor dq, dk, dv; /* backward, results: column stride 1 */
    void *workspace;           /* tn_sdpa_workspace bytes, 64-byte aligned */
} tn_sdpa_args;

/* Reads only the extents. `threads`: at least tn_threads() at the time of the call. */
size_t tn_sdpa_workspace(const tn_sdpa_args *args, bool backward, int threads);
void tn_sdpa(const tn_sdpa_args *args, bool backward);

/* ---- recurrent layers (cpu/recurrent_walk.c) --------------------------------------------------------------------- */

/* All steps of an LSTM (4 gates) or GRU (3) layer in one direction in f32, and their gradients; tensors contiguous.
 * The definitions are the compositions in ops/op_recurrent.c, whose operations and order these are; products are those
 * of tn_gemm_run, functions those of kir_math.h. A result's bits do not depend on threads or instruction set. */
typedef struct tn_recurrent_args {
    int64_t steps, batch, hidden;
    int gates;
    bool reverse, backward;
    const float *x;      /* from_x, or backward for an LSTM the gates' sums: [steps, batch, gates · hidden] */
    const float *weight; /* [gates · hidden, hidden] */
    const float *bias;   /* [gates · hidden], or NULL; not backward */
    const float *h;      /* h0 [batch, hidden]; backward for a GRU: the states before each step */
    const float *c;      /* LSTM: c0; GRU backward: from_h [steps, batch, 3 · hidden] */
    const float *cells;  /* LSTM backward: c of all steps */
    const float *dy;     /* backward: gradient of the result */
    float *out;          /* [h and c of an LSTM, steps, batch, hidden]; backward as the ops have it */
    void *workspace;     /* tn_recurrent_workspace bytes, 64-byte aligned */
} tn_recurrent_args;

/* Reads only the extents. `threads`: at least tn_threads() at the time of the call. */
size_t tn_recurrent_workspace(const tn_recurrent_args *args, int threads);
void tn_recurrent(const tn_recurrent_args *args);

#endif
