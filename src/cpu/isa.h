/* isa.h — native kernels that exist once per instruction set: tables, selection, and the interface of product kernels.
 *
 * tiles.c, tiles_f64.c, conv_vec.c, qplain.c, attention.c, sdpa.c and recurrent_step.c are compiled with the flags of
 * each instruction set and export one table each (tiles_bf16.c: one for AVX-512, one for ARM64). qtile.c and
 * tiles_bytes.c have other variants: they need dot products of small integers, and AVX-512 without these does not help
 * them. select.c examines the processor once and keeps the best tables of this build. */
#ifndef TN_ISA_H
#define TN_ISA_H

#include <string.h>

#include "cpu/cpu_kernels.h"

/* Products: one driver a type (gemm.c), kernels for each instruction set (tiles.c). */
struct tile_set;
typedef struct tn_gemm_table {
    void (*run)(const struct tile_set *with, const tn_gemm_args *args, tn_dtype dtype);
    size_t (*workspace)(const struct tile_set *with, const tn_gemm_args *args, tn_dtype dtype, int threads);
    size_t (*packed_bytes)(const struct tile_set *with, int64_t n, int64_t k);
    void (*pack)(const struct tile_set *with, const tn_gemm_args *args, tn_dtype dtype);
} tn_gemm_table;

typedef struct tn_gemm_chain_table {
    size_t bytes;
    bool (*takes)(const struct tile_set *with, const tn_gemm_args *args);
    size_t (*workspace)(const struct tile_set *with, const tn_gemm_row_fused *chain, int threads);
    void (*run)(const struct tile_set *with, const tn_gemm_row_fused *chain);
} tn_gemm_chain_table;

extern const tn_gemm_table tn_gemm_table_f32, tn_gemm_table_f64;
extern const tn_gemm_chain_table tn_gemm_chains;
extern const struct tile_set tn_tiles_f32_base, tn_tiles_f32_avx2, tn_tiles_f32_avx512;
extern const struct tile_set tn_tiles_f64_base, tn_tiles_f64_avx2, tn_tiles_f64_avx512;
extern const struct tile_set tn_tiles_bf16_avx512bf16, tn_tiles_bf16_bfdot;      /* only for bf16 */
extern const struct tile_set tn_tiles_bytes_avx2vnni, tn_tiles_bytes_avx512vnni; /* u8 by i8; others are widened */
extern const struct tile_set tn_tiles_bytes_avx2, tn_tiles_bytes_i8mm;
bool tn_gemm_pairs_pay(void); /* is their instruction fast here? Takes some microseconds. */

typedef struct tn_attention_table {
    void (*run)(const tn_attention_args *args);
    size_t (*workspace)(const tn_attention_args *args, int threads);
    void (*append)(const tn_kv_cache_write_args *args);
} tn_attention_table;

extern const tn_attention_table tn_attention_table_base, tn_attention_table_avx2, tn_attention_table_avx512;

typedef struct tn_sdpa_table {
    void (*run)(const tn_sdpa_args *args, bool backward);
    size_t (*workspace)(const tn_sdpa_args *args, bool backward, int threads);
} tn_sdpa_table;

extern const tn_sdpa_table tn_sdpa_table_base, tn_sdpa_table_avx2, tn_sdpa_table_avx512;

/* A step of recurrent_walk.c for rows [begin, end) of the batch: the products' results become states, and back. */
typedef struct recurrent_step {
    int64_t hidden;
    bool last;               /* backward: no step after this one gives it a gradient */
    const float *x, *from_h; /* rows of gates · hidden: sums of the input, products with the state. LSTM backward: x are
                              * the sums of both. */
    const float *bias;       /* NULL: none */
    const float *h, *c;      /* rows of hidden: the states before the step */
    float *h_out, *c_out;    /* … and after it; c_out is read backward */
    const float *dh, *dc;    /* backward: gradients of the states after the step, from the result */
    const float *from_later; /* backward: of h by the step after this one */
    float *carry;     /* backward: of c by the step after this one, then by this one; GRU: of h, without product */
    float *d_x, *d_h; /* backward: gradients of the sums; GRU: of x's and of from_h */
} recurrent_step;

typedef struct tn_recurrent_table {
    void (*lstm)(const recurrent_step *s, int64_t begin, int64_t end);
    void (*gru)(const recurrent_step *s, int64_t begin, int64_t end);
    void (*lstm_back)(const recurrent_step *s, int64_t begin, int64_t end);
    void (*gru_back)(const recurrent_step *s, int64_t begin, int64_t end);
} tn_recurrent_table;

extern const tn_recurrent_table tn_recurrent_table_base, tn_recurrent_table_avx2, tn_recurrent_table_avx512;
const tn_recurrent_table *tn_recurrent_steps(void);

/* Test hook: uses the kernels of `isa` from now on. false, without effect, if this build or this processor does not
 * have them. Packed weights and workspace sizes from before must not be used again. */
bool tn_gemm_use(tn_isa isa);
/* The same for products of bf16: in pairs, or widened. false: this processor has no such instruction. */
bool tn_gemm_use_pairs(bool pairs);
/* … and of bytes: several at a time, or widened to floats as everywhere. */
bool tn_gemm_use_quads(bool quads);
bool tn_qmat_use(tn_isa isa, bool vnni);

/* ==== a prologue or epilogue program made ready for one thread ==================================================== */

typedef struct fused_call {
    const kir_vm *vm; /* NULL: no epilogue */
    kir_launch launch;
    void *buffers[KIR_MAX_BUFFERS];
    int block;
    void *scratch;
} fused_call;

static const float fused_no_bias = -0.0f;

static inline void fused_call_open(fused_call *p, const tn_fused_program *program, void *scratch) {
    p->vm = program->vm;
    if (!program->vm) return;
    p->launch = program->launch;
    memcpy(p->buffers, program->launch.buffers, (size_t)program->buffer_count * sizeof *p->buffers);
    p->launch.buffers = p->buffers;
    if (program->flat && program->epilogue_ops->add.buffer >= 0)
        p->buffers[program->epilogue_ops->add.buffer] = (void *)(uintptr_t)&fused_no_bias;
    p->block = program->block_buffer;
    p->scratch = scratch;
}

typedef struct box {
    int64_t row, rows, col, cols;
} box;

/* The program's row and column indices are those of the whole matrix: the block's address is moved back accordingly. */
static inline void fused_call_run(fused_call *p, const int64_t *batch, box at, void *block) {
    int64_t lo[TN_GEMM_BATCH_AXES + 2], hi[TN_GEMM_BATCH_AXES + 2];
    for (int axis = 0; axis < TN_GEMM_BATCH_AXES; axis++) {
        lo[axis] = batch[axis];
        hi[axis] = batch[axis] + 1;
    }
    lo[TN_GEMM_BATCH_AXES] = at.row;
    hi[TN_GEMM_BATCH_AXES] = at.row + at.rows;
    lo[TN_GEMM_BATCH_AXES + 1] = at.col;
    hi[TN_GEMM_BATCH_AXES + 1] = at.col + at.cols;
    uintptr_t origin = (uintptr_t)block - (uintptr_t)(at.row * TN_GEMM_BLOCK_LD + at.col) * sizeof(float);
    p->buffers[p->block] = (void *)origin;
    kir_vm_run_box(p->vm, &p->launch, lo, hi, p->scratch);
}

/* The same of a flat program: `count` elements of the results at `out`, from `first` on. */
static inline void fused_call_flat(fused_call *p, float *out, int64_t first, int64_t count) {
    fused_call_run(p, (const int64_t[TN_GEMM_BATCH_AXES]){0}, (box){0, 1, first, count}, out + first);
}

/* The largest scratch memory of several fused programs: give the largest so far. */
static inline size_t fused_call_scratch(const tn_fused_program *program, size_t most) {
    if (!program->vm) return most;
    size_t need = tn_whole_lines(kir_vm_scratch(program->vm));
    return need > most ? need : most;
}

#endif
