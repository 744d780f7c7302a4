/* row_split.c — when a launch's rows are better shared by workgroups than computed a row an item.
 *
 * On a GPU an item that walks along its row reads far from its neighbours, and few rows leave the device idle; a group
 * reads a row side by side. Where rows lie across (neighbouring items read neighbouring elements anyway) and there are
 * many of them, a row an item is the better way. On a processor it always is: its compiler makes vector code of one
 * item's lanes, and a barrier costs as much as many additions (bench/rows.c: PoCL is several times slower). */
#include <stdatomic.h>

#include "hal/kernel_code.h"

enum {
    SHORT_ROW = 2 * KIR_LANES, /* elements: below this most lanes of a workgroup would stand idle */
    MANY_ROWS = 1 << 14        /* enough for the items of any device */
};

static _Atomic int chosen = TN_ROW_SPLIT_AUTO;

void tn_row_split_set(tn_row_split_policy policy) { atomic_store(&chosen, (int)policy); }

static int64_t stride_size_of(int64_t stride) { return stride < 0 ? -stride : stride; }

/* Loads and stores in loops whose elements lie closer together along the rows than across them, less the others. */
static int along(const kir_program *p, const kir_rows *rows, const int64_t *sizes) {
    int row = rows->first + rows->count - 1, score = 0, depth = 0;
    for (int i = 0; i < p->n_ins; i++) {
        const kir_ins *in = &p->ins[i];
        depth += (in->op == KIR_LOOP) - (in->op == KIR_END);
        if (depth == 0 || (in->op != KIR_LOAD && in->op != KIR_STORE)) continue;
        const int64_t *strides = kir_sizes_access(p, sizes, (int)in->imm.i) + 1;
        int64_t inner = stride_size_of(strides[row]),
                across = p->n_par > 0 ? stride_size_of(strides[p->n_par - 1]) : INT64_MAX;
        if (inner != across) score += inner < across || across == 0 ? 1 : -1;
    }
    return score;
}

bool tn_row_split_pays(const tn_device *d, const kir_program *p, const kir_rows *rows, const int64_t *sizes) {
    int policy = atomic_load(&chosen);
    if (policy != TN_ROW_SPLIT_AUTO) return policy == TN_ROW_SPLIT_ALWAYS;
    if (d->info.software) return false;
    int64_t elements = 1, points = 1;
    for (int k = 0; k < p->n_par; k++)
        points *= sizes[k];
    for (int k = 0; k < rows->count; k++)
        elements *= sizes[rows->first + k];
    return elements >= SHORT_ROW && (points < MANY_ROWS || along(p, rows, sizes) >= 0);
}
