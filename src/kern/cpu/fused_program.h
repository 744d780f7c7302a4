/* fused_program.h — an epilogue made ready for one thread, with its own copy of the buffer addresses. */
#ifndef TN_KERN_FUSED_CALL_H
#define TN_KERN_FUSED_CALL_H

#include <string.h>

#include "kern/kern.h"

typedef struct fused_call {
    const kir_vm *vm; /* NULL: no epilogue */
    kir_launch launch;
    void *buffers[KIR_MAX_BUFFERS];
    int block;
    void *scratch;
} fused_call;

static inline void fused_call_open(fused_call *p, const tn_fused_program *program, void *scratch) {
    p->vm = program->vm;
    if (!program->vm) return;
    p->launch = program->launch;
    memcpy(p->buffers, program->launch.buffers, (size_t)program->buffer_count * sizeof *p->buffers);
    p->launch.buffers = p->buffers;
    p->block = program->block_buffer;
    p->scratch = scratch;
}

typedef struct box {
    int64_t row, rows, col, cols;
} box;

/* The program counts rows and columns from those of the whole matrix: the block's address is moved back by as much. */
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

/* The largest scratch memory of several fused programs: give the largest so far. */
static inline size_t fused_call_scratch(const tn_fused_program *program, size_t most) {
    if (!program->vm) return most;
    size_t need = (kir_vm_scratch(program->vm) + 63) / 64 * 64;
    return need > most ? need : most;
}

#endif
