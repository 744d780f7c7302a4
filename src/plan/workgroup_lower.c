/* workgroup_lower.c — lowers products and native ops to workgroup kernels: the callbacks for operands and results.
 *
 * A workgroup kernel (gpu/) knows extents and asks for elements by its own indices. The callbacks here translate such
 * an index to the operand's, and pass each finished result through the fused element-wise values, with the lowering
 * that all other kernels use. */
#include "cpu/qformat.h"
#include "gpu/gpu.h"
#include "ops/ops_common.h"
#include "plan/native.h"
#include "plan/passes.h"

/* One index that combines those of several dims: the dim of each digit. Dims without a digit have index 0. */
typedef struct folded {
    tn_digits digits;
    int dim[TN_WORKGROUP_DIGITS];
} folded;

/* A workgroup kernel at work: lowering, and the operands' values. */
typedef struct workgroup_kernel {
    tn_lower lw;
    tn_lowering w;
    const tn_value *lead;
    int batch_dim[TN_WORKGROUP_BATCH_AXES]; /* the result's dim behind each batch axis */
    int batch_axes;
    bool sorts;
    /* of convolutions */
    folded k_of_a, k_of_b, columns;
    tn_window window;
    bool may_be_outside[2];
    bool wgrad;
    int64_t groups, rows;       /* of the product, within a group */
    int row_of_a;               /* the dim of operand 1 that they are */
    int image_axis, group_axis; /* of the batch, -1: there is but one */
} workgroup_kernel;

static tn_group_limits limits_of(const tn_device *d) {
    return (tn_group_limits){.items = d->caps.max_group,
                             .local_bytes = d->caps.shared_memory,
                             .subgroup = d->caps.subgroup,
                             .matrix = d->caps.matrix,
                             .processors = d->caps.processors,
                             .long_fma = d->caps.code == TN_CODE_WGSL && !(d->caps.features & TN_WGSL_FUSED)};
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Is the second operand [n, k], as weights are? */
static bool weight_first(const tn_node *n) { return tn_op_has(n, TN_FACT_WEIGHT_FIRST); }

static void product_begin(void *context, kir_builder *kb) { ((workgroup_kernel *)context)->lw.kb = kb; }

/* Index of an operand for the result's batch indices; the last two dims are the caller's. */
static void batch_index(const workgroup_kernel *t, const tn_node *x, const kir_aff *batch, kir_aff *at) {
    const tn_node *n = t->lead->node;
    for (int d = 0; d < x->rank; d++)
        at[d] = kir_aff_const(0);
    for (int k = 0; k < t->batch_axes; k++) {
        int d = t->batch_dim[k] - (n->rank - x->rank);
        if (d >= 0 && x->shape[d] != 1) at[d] = batch[k];
    }
}

typedef kir_val load_fn(tn_lower *lw, int value, const kir_aff *at, kir_val mask);

static kir_val load_with(load_fn *load, workgroup_kernel *t, int i, const kir_aff *batch, const kir_aff *row,
                         const kir_aff *column, kir_val mask) {
    const tn_node *x = t->lead->node->in[i];
    kir_aff at[TN_MAX_RANK];
    batch_index(t, x, batch, at);
    at[x->rank - 2] = *row;
    at[x->rank - 1] = *column;
    return load(&t->lw, t->lead->in[i], at, mask);
}

static kir_val operand_at(workgroup_kernel *t, int i, const kir_aff *batch, const kir_aff *row, const kir_aff *column,
                          kir_val mask) {
    return load_with(tn_lowering_value, t, i, batch, row, column, mask);
}

static kir_val fetch_a(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *k, kir_val mask) {
    return load_with(tn_lowering_packet, context, 0, batch, row, k, mask);
}

static kir_val fetch_b(void *context, const kir_aff *batch, const kir_aff *k, const kir_aff *column, kir_val mask) {
    return load_with(tn_lowering_packet, context, 1, batch, k, column, mask);
}

static kir_val load_a(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *k, kir_val mask) {
    return operand_at(context, 0, batch, row, k, mask);
}

static kir_val load_b(void *context, const kir_aff *batch, const kir_aff *k, const kir_aff *column, kir_val mask) {
    workgroup_kernel *t = context;
    bool turned = weight_first(t->lead->node);
    return operand_at(t, 1, batch, turned ? column : k, turned ? k : column, mask);
}

static void store_product(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *column, kir_val value,
                          kir_val mask) {
    workgroup_kernel *t = context;
    const tn_node *n = t->lead->node;
    kir_aff at[TN_MAX_RANK];
    batch_index(t, n, batch, at);
    if (n->shape[n->rank - 2] != 1) at[n->rank - 2] = *row;
    if (n->shape[n->rank - 1] != 1) at[n->rank - 1] = *column;
    tn_lowering_results(&t->lw, at, value, mask);
}

static tn_dtype local_dtype(kir_type t) {
    static const uint8_t dtypes[KIR_TYPE_COUNT] = {[KIR_F32] = TN_F32, [KIR_F64] = TN_F64, [KIR_I32] = TN_I32,
                                                   [KIR_I64] = TN_I64, [KIR_U32] = TN_U32, [KIR_U64] = TN_U64};
    return (tn_dtype)dtypes[t];
}

static tn_gemm_shape product_shape(const tn_node *n, workgroup_kernel *t) {
    const tn_node *a = n->in[0];
    tn_gemm_shape s = {.m = n->shape[n->rank - 2], .n = n->shape[n->rank - 1], .k = a->shape[a->rank - 1]};
    s.type = kir_type_of((tn_dtype)n->dtype);
    s.local_dtype = local_dtype(s.type);
    if (tn_dtype_is_half(a->dtype) && n->in[1]->dtype == a->dtype) s.half = (tn_dtype)a->dtype;
    for (int d = 0; d < n->rank - 2; d++) {
        if (n->shape[d] == 1) continue;
        if (t) t->batch_dim[s.batch_axes] = d;
        s.batch[s.batch_axes++] = n->shape[d];
    }
    if (t) t->batch_axes = s.batch_axes;
    return s;
}

static bool is_plain_f32(const tn_node *n) { return n->in[0]->dtype == TN_F32 && n->in[1]->dtype == TN_F32; }

static bool along_last(const tn_value *v) { return v->stride[v->node->rank - 1] == 1; }

/* Along the last dim, or the one before. */
static bool has_packets(const workgroup_kernel *t, int i, bool last) {
    return tn_lowering_has_packets(&t->w, t->lead->in[i], t->lead->node->in[i]->rank - (last ? 1 : 2));
}

static tn_status make_product(workgroup_kernel *t, tn_workgroup_program *out) {
    const tn_value *values = t->w.g->values, *lead = t->lead;
    tn_product_callbacks callbacks = {t, product_begin, load_a, load_b, store_product, NULL, NULL};
    tn_gemm_shape s = product_shape(lead->node, t);
    tn_group_limits limits = limits_of(lead->node->device);
    s.a_along_k = along_last(&values[lead->in[0]]);
    s.b_along_k = along_last(&values[lead->in[1]]) == weight_first(lead->node);
    s.plain = is_plain_f32(lead->node);
    if (s.plain) s.tile = tn_tune_tile(lead->node->device, &s, &limits);
    if (!tn_gemm_matrix_fits(&s, &limits)) return tn_gemm_workgroup(&s, &limits, &callbacks, out);
    t->lw.sized = true;
    if (limits.matrix & TN_MATRIX_PACKETS && s.half) {
        if (has_packets(t, 0, s.a_along_k)) callbacks.fetch_a = fetch_a;
        if (has_packets(t, 1, !s.b_along_k)) callbacks.fetch_b = fetch_b;
    }
    return tn_gemm_matrix(&s, &limits, &callbacks, out);
}

/* With one row each element of B is needed once. A CPU, whose caches buffer the panels, is then faster with the plain
 * program (PoCL: 1.2 to 1.3 times); a GPU reads B contiguously only by panels. */
static bool better_plain(const tn_node *n) { return n->device->info.software && n->shape[n->rank - 2] == 1; }

static bool takes_product(const tn_node *n, const tn_group_limits *limits) {
    enum { FEW = 16 }; /* results for which a workgroup is not worth its panels */
    int outer = 0;
    if (better_plain(n)) return false;
    for (int d = 0; d < n->rank - 2; d++)
        outer += n->shape[d] != 1;
    if (outer > TN_WORKGROUP_BATCH_AXES || n->shape[n->rank - 2] * n->shape[n->rank - 1] < FEW) return false;
    tn_gemm_shape s = product_shape(n, NULL);
    return tn_gemm_workgroup_fits(&s, limits);
}

/* ---- products with weights in blocks ----------------------------------------------------------------------------- */

static kir_val load_x(void *context, const kir_aff *row, const kir_aff *k, kir_val mask) {
    return operand_at(context, 0, NULL, row, k, mask);
}

static tn_weight_parts load_weight(void *context, const kir_aff *column, const kir_aff *k, kir_val mask) {
    workgroup_kernel *t = context;
    kir_aff at[2] = {*column, *k};
    t->lw.mask = mask;
    tn_quant q = tn_lower_quant_at(&t->lw, t->lead->node->in[1], at, 0);
    t->lw.mask = KIR_NONE;
    return (tn_weight_parts){.u = q.u, .s = q.s, .t = q.t};
}

static void store_row(void *context, const kir_aff *row, const kir_aff *column, kir_val value, kir_val mask) {
    store_product(context, NULL, row, column, value, mask);
}

static tn_qmat_shape quantized_shape(const tn_node *n) {
    tn_qmat_shape s = {.m = n->shape[0], .n = n->shape[1], .k = n->in[0]->shape[1]};
    s.parts = tn_qformat_of((tn_dtype)n->in[1]->dtype)->parts;
    return s;
}

static tn_status make_quantized(workgroup_kernel *t, tn_workgroup_program *out) {
    tn_qmat_callbacks callbacks = {t, product_begin, load_x, load_weight, store_row};
    tn_qmat_shape s = quantized_shape(t->lead->node);
    return tn_qmat_workgroup(&s, &callbacks, out);
}

static bool takes_quantized(const tn_node *n, const tn_group_limits *limits) {
    tn_qmat_shape s = quantized_shape(n);
    return tn_qmat_workgroup_fits(&s, limits);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* A convolution is the product of filters and im2col; wgrad is the product of results and im2col. im2col is never
 * stored: the index of k or of a column is split where an element is loaded. */
enum { IMAGE, CHANNEL, DOWN, ACROSS, IMAGE_DIMS };
static const int taps[] = {CHANNEL, DOWN, ACROSS}, places[] = {IMAGE, DOWN, ACROSS};

/* Combines dims of these extents into one index; with strides, dims that are contiguous in memory are one digit. */
static folded fold_workgroup(const int64_t *extent, const int64_t *stride, const int *dims, int count) {
    folded f = {.dim = {dims[count - 1]}};
    int n = 0;
    for (int i = 0; i < count; i++) {
        int d = dims[i];
        if (extent[d] == 1) continue;
        bool behind = n > 0 && stride && stride[f.dim[n - 1]] == stride[d] * extent[d];
        int at = behind ? n - 1 : n++;
        f.digits.extent[at] = behind ? f.digits.extent[at] * extent[d] : extent[d];
        f.dim[at] = d;
    }
    f.digits.count = n > 1 ? n : 0;
    return f;
}

static int last_dim(const folded *f) { return f->dim[f->digits.count ? f->digits.count - 1 : 0]; }

static void unfold(const folded *f, const kir_aff *index, kir_aff *at) {
    for (int i = 0; i <= (f->digits.count ? f->digits.count - 1 : 0); i++)
        at[f->dim[i]] = index[i];
}

static void no_index(kir_aff *at) {
    for (int d = 0; d < IMAGE_DIMS; d++)
        at[d] = kir_aff_const(0);
}

static kir_aff image_of(const workgroup_kernel *t, const kir_aff *batch) {
    return t->image_axis < 0 ? kir_aff_const(0) : batch[t->image_axis];
}

/* The channel among all, from that within its group; groups have `count` channels. */
static kir_aff channel_of(workgroup_kernel *t, const kir_aff *batch, const kir_aff *channel, int64_t count) {
    if (t->group_axis < 0) return *channel;
    kir_aff first = tn_aff_scale(&t->lw, &batch[t->group_axis], count);
    return tn_aff_add(&t->lw, &first, channel);
}

/* The input that a tap reads at an output pixel: 0 outside the image. */
static kir_val load_im2col(workgroup_kernel *t, const kir_aff *batch, const kir_aff *place, const kir_aff *tap,
                           kir_val mask) {
    const int64_t *size = t->lead->node->in[0]->shape;
    kir_builder *kb = t->lw.kb;
    kir_aff at[IMAGE_DIMS] = {place[IMAGE], channel_of(t, batch, &tap[CHANNEL], size[CHANNEL] / t->groups)};
    for (int a = 0; a < 2; a++) {
        kir_aff begin = tn_aff_scale(&t->lw, &place[DOWN + a], t->window.stride[a]);
        kir_aff further = tn_aff_scale(&t->lw, &tap[DOWN + a], t->window.dilation[a]);
        kir_aff *to = &at[DOWN + a];
        *to = tn_aff_add(&t->lw, &begin, &further);
        to->c -= t->window.padding[a];
        if (!t->may_be_outside[a]) continue;
        mask = mask_both(kb, mask, index_not_negative(kb, to));
        mask = mask_both(kb, mask, tn_inside(kb, to, size[DOWN + a]));
    }
    return tn_lowering_value(&t->lw, t->lead->in[0], at, mask);
}

/* The other operand of the product: filters, or results (wgrad). Its rows are the program's, within a group. */
static kir_val load_rows_of_conv(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *k,
                                 kir_val mask) {
    workgroup_kernel *t = context;
    kir_aff at[IMAGE_DIMS];
    no_index(at);
    unfold(&t->k_of_a, k, at);
    at[t->row_of_a] = channel_of(t, batch, row, t->rows);
    return tn_lowering_value(&t->lw, t->lead->in[1], at, mask);
}

/* k runs over taps and columns over output pixels; of wgrad the other way round, over those of all images. */
static kir_val load_window(void *context, const kir_aff *batch, const kir_aff *k, const kir_aff *column, kir_val mask) {
    workgroup_kernel *t = context;
    kir_aff place[IMAGE_DIMS], tap[IMAGE_DIMS];
    no_index(place);
    no_index(tap);
    unfold(&t->k_of_b, k, t->wgrad ? place : tap);
    unfold(&t->columns, column, t->wgrad ? tap : place);
    if (!t->wgrad) place[IMAGE] = image_of(t, batch);
    return load_im2col(t, batch, place, tap, mask);
}

static void store_conv(void *context, const kir_aff *batch, const kir_aff *row, const kir_aff *column, kir_val value,
                       kir_val mask) {
    workgroup_kernel *t = context;
    int row_dim = t->wgrad ? IMAGE : CHANNEL;
    kir_aff at[IMAGE_DIMS];
    no_index(at);
    unfold(&t->columns, column, at);
    if (!t->wgrad) at[IMAGE] = image_of(t, batch);
    if (t->lead->node->shape[row_dim] != 1) at[row_dim] = channel_of(t, batch, row, t->rows);
    tn_lowering_results(&t->lw, at, value, mask);
}

/* `place`: how many there are. */
static void note_window(workgroup_kernel *t, const int64_t *kernel, const int64_t *place, const int64_t *stride,
                        const int64_t *before, const int64_t *dilation) {
    const int64_t *size = t->lead->node->in[0]->shape + DOWN;
    for (int a = 0; a < 2; a++) {
        t->window.kernel[a] = kernel[a];
        t->window.stride[a] = stride[a];
        t->window.padding[a] = before[a];
        t->window.dilation[a] = dilation[a];
        int64_t last = (place[a] - 1) * stride[a] - before[a] + (kernel[a] - 1) * dilation[a];
        t->may_be_outside[a] = before[a] > 0 || last >= size[a];
    }
}

static void add_batch(tn_gemm_shape *s, int *axis, int64_t extent) {
    *axis = extent == 1 ? -1 : s->batch_axes;
    if (extent != 1) s->batch[s->batch_axes++] = extent;
}

static tn_gemm_shape conv_shape(const tn_node *n, workgroup_kernel *t) {
    bool wgrad = t->wgrad = tn_op_has(n, TN_FACT_CONV_WGRAD);
    const int64_t *filter = wgrad ? n->shape : n->in[1]->shape, *results = wgrad ? n->in[1]->shape : n->shape;
    int64_t taps_of_one = filter[CHANNEL] * filter[DOWN] * filter[ACROSS], pixels = results[DOWN] * results[ACROSS];
    folded of_taps = fold_workgroup(filter, NULL, taps, TN_COUNT(taps));
    t->groups = n->i[wgrad ? TN_CONV2D_WGRAD_GROUPS : TN_CONV2D_FORWARD_GROUPS];
    t->rows = filter[IMAGE] / t->groups;
    t->row_of_a = wgrad ? CHANNEL : IMAGE;
    t->k_of_b = wgrad ? fold_workgroup(results, NULL, places, TN_COUNT(places)) : of_taps;
    t->columns = wgrad ? of_taps : fold_workgroup(results, NULL, places + 1, TN_COUNT(places) - 1);
    tn_gemm_shape s = {.m = t->rows, .type = KIR_F32, .local_dtype = TN_F32};
    s.n = wgrad ? taps_of_one : pixels;
    s.k = wgrad ? results[IMAGE] * pixels : taps_of_one;
    add_batch(&s, &t->image_axis, wgrad ? 1 : results[IMAGE]);
    add_batch(&s, &t->group_axis, t->groups);
    s.b_k = t->k_of_b.digits;
    s.columns = t->columns.digits;
    return s;
}

static tn_status make_conv(workgroup_kernel *t, tn_workgroup_program *out) {
    const tn_node *n = t->lead->node;
    const int64_t *other = n->in[1]->shape, *stride = t->w.g->values[t->lead->in[1]].stride, *attrs = n->i;
    tn_product_callbacks callbacks = {t, product_begin, load_rows_of_conv, load_window, store_conv, NULL, NULL};
    tn_gemm_shape s = conv_shape(n, t);
    tn_group_limits limits = limits_of(n->device);
    if (t->wgrad)
        note_window(t, n->shape + DOWN, other + DOWN, attrs + TN_CONV2D_WGRAD_STRIDE, attrs + TN_CONV2D_WGRAD_PADDING,
                    attrs + TN_CONV2D_WGRAD_DILATION);
    else
        note_window(t, other + DOWN, n->shape + DOWN, attrs + TN_CONV2D_FORWARD_STRIDE,
                    attrs + TN_CONV2D_FORWARD_PAD_BEFORE, attrs + TN_CONV2D_FORWARD_DILATION);
    t->k_of_a = fold_workgroup(other, stride, t->wgrad ? places : taps, TN_COUNT(taps));
    s.a_k = t->k_of_a.digits;
    s.a_along_k = stride[last_dim(&t->k_of_a)] == 1;
    s.b_along_k = t->wgrad && s.a_along_k;
    return tn_gemm_workgroup(&s, &limits, &callbacks, out);
}

/* One that the host has a kernel for, should the device refuse this one; what has none is composed. */
static bool takes_conv(const tn_node *n, const tn_group_limits *limits) {
    bool known = tn_op_has(n, TN_FACT_CONV_WGRAD) ? tn_takes_conv2d_wgrad(n) : tn_takes_conv_product(n);
    if (!known || tn_node_numel(n) == 0 || tn_node_numel(n->in[0]) == 0) return false;
    workgroup_kernel t;
    tn_gemm_shape s = conv_shape(n, &t);
    return s.k > 0 && s.k <= INT32_MAX && s.n <= INT32_MAX && tn_gemm_workgroup_fits(&s, limits);
}

/* ---- native operations ------------------------------------------------------------------------------------------- */

static kir_val load_operand(void *context, int i, const kir_aff *at, kir_val mask) {
    workgroup_kernel *t = context;
    return tn_lowering_value(&t->lw, t->lead->in[i], at, mask);
}

static void store_result(void *context, const kir_aff *at, kir_val value, kir_val mask) {
    tn_lowering_results(&((workgroup_kernel *)context)->lw, at, value, mask);
}

/* An operand seen as rows: the first dim and what follows, flat; of what is sorted all dims but the last, flat, and the
 * last. */
static void split_rows(workgroup_kernel *t, const tn_node *x, const kir_aff *at, kir_aff *own) {
    int of_rows = t->sorts ? x->rank - 1 : 1;
    index_unflatten(&t->lw, &at[0], x->shape, of_rows, own);
    index_unflatten(&t->lw, &at[1], x->shape + of_rows, x->rank - of_rows, own + of_rows);
}

/* The current contents of the result's memory. */
static kir_val load_result(workgroup_kernel *t, const kir_aff *at, kir_val mask) {
    const tn_node *n = t->lead->node;
    kir_aff index = index_flat(&t->lw, at, t->lead->stride, n->rank, 0);
    int buffer = tn_lowering_buffer(&t->lw, t->w.group->lead, (tn_dtype)n->dtype);
    return kir_load(t->lw.kb, buffer, &index, mask);
}

static kir_val load_rows(void *context, int i, const kir_aff *at, kir_val mask) {
    workgroup_kernel *t = context;
    const tn_node *x = i == TN_RESULT ? t->lead->node : t->lead->node->in[i];
    kir_aff own[TN_MAX_RANK];
    split_rows(t, x, at, own);
    return i == TN_RESULT ? load_result(t, own, mask) : load_operand(context, i, own, mask);
}

static void store_rows(void *context, const kir_aff *at, kir_val value, kir_val mask) {
    workgroup_kernel *t = context;
    kir_aff own[TN_MAX_RANK];
    split_rows(t, t->lead->node, at, own);
    store_result(context, own, value, mask);
}

static tn_status make_index_add(workgroup_kernel *t, tn_workgroup_program *out) {
    const tn_node *n = t->lead->node;
    tn_operand_callbacks callbacks = {t, product_begin, load_rows, store_rows};
    int64_t rows = n->shape[0];
    tn_index_add_shape s = {.rows = rows, .width = rows ? tn_node_numel(n) / rows : 0, .count = n->in[1]->shape[0]};
    t->w.group->updates = true;
    return tn_index_add_workgroup(&s, &callbacks, out);
}

static bool takes_index_add(TN_UNUSED const tn_node *n, const tn_group_limits *limits) {
    return tn_index_add_workgroup_fits(limits);
}

static tn_status make_argsort(workgroup_kernel *t, tn_workgroup_program *out) {
    const tn_node *n = t->lead->node;
    tn_operand_callbacks callbacks = {t, product_begin, load_rows, store_rows};
    int64_t length = n->shape[n->rank - 1];
    tn_argsort_shape s = {.rows = length ? tn_node_numel(n) / length : 0, .length = length};
    s.descending = n->i[TN_ARGSORT_LAST_DESCENDING] != 0;
    t->sorts = true;
    return tn_argsort_workgroup(&s, &callbacks, out);
}

static bool takes_argsort(TN_UNUSED const tn_node *n, const tn_group_limits *limits) {
    return tn_argsort_workgroup_fits(limits);
}

static tn_status make_append(workgroup_kernel *t, tn_workgroup_program *out) {
    const tn_node *n = t->lead->node;
    tn_operand_callbacks callbacks = {t, product_begin, load_operand, store_result};
    tn_append_shape s = {.n = n->in[1]->shape[0],
                         .kv_heads = n->shape[1],
                         .width = n->shape[3],
                         .n_pages = n->shape[0],
                         .page_count = n->in[3]->shape[n->in[3]->rank - 1],
                         .batch = n->in[3]->rank == 2};
    t->w.group->updates = true;
    return tn_append_workgroup(&s, &callbacks, out);
}

/* The kernel stores numbers; the host writes the blocks of a q8_0 cache. */
static bool takes_append(const tn_node *n, TN_UNUSED const tn_group_limits *limits) {
    return n->rank == 4 && n->dtype != TN_U8;
}

enum { ATTEND_K = 1, ATTEND_V, ATTEND_K_CACHE, ATTEND_POSITION = 5, ATTEND_PAGES, ATTEND_SINKS };

/* New keys and values are what the caches will hold. */
static kir_val load_attended(void *context, int i, const kir_aff *at, kir_val mask) {
    workgroup_kernel *t = context;
    kir_val v = load_operand(context, i, at, mask);
    bool fresh = i == ATTEND_K || i == ATTEND_V;
    return fresh ? tn_lower_narrow(t->lw.kb, (tn_dtype)t->lead->node->in[i + 2]->dtype, v) : v; /* its cache */
}

static tn_attention_shape attention_shape(const tn_node *n) {
    const tn_node *cache = n->in[ATTEND_K_CACHE];
    return (tn_attention_shape){.n = n->shape[0],
                                .heads = n->shape[1],
                                .kv_heads = cache->shape[1],
                                .width = n->shape[2],
                                .n_pages = cache->shape[0],
                                .page_count = n->in[ATTEND_PAGES]->shape[0],
                                .window = n->i[TN_CACHED_ATTENTION_ROWS_WINDOW],
                                .scale = (float)n->f[TN_CACHED_ATTENTION_ROWS_SCALE],
                                .cap = (float)n->f[TN_CACHED_ATTENTION_ROWS_SOFTCAP],
                                .sinks = n->in[ATTEND_SINKS] != NULL};
}

static tn_status make_attention(workgroup_kernel *t, tn_workgroup_program *out) {
    tn_operand_callbacks callbacks = {t, product_begin, load_attended, store_result};
    tn_attention_shape s = attention_shape(t->lead->node);
    return tn_attention_workgroup(&s, &callbacks, out);
}

/* Of one sequence: tokens of a batch have a position each. */
static bool takes_attention(const tn_node *n, const tn_group_limits *limits) {
    tn_attention_shape s = attention_shape(n);
    return n->in[ATTEND_POSITION]->rank == 0 && tn_attention_workgroup_fits(&s, limits);
}

/* Dims of extent 1 broadcast. */
static kir_val load_im2col_alike(void *context, int i, const kir_aff *at, kir_val mask) {
    const workgroup_kernel *t = context;
    const tn_node *x = t->lead->node->in[i];
    kir_aff own[TN_MAX_RANK];
    for (int d = 0; d < x->rank; d++)
        own[d] = x->shape[d] == 1 ? kir_aff_const(0) : at[d];
    return load_operand(context, i, own, mask);
}

static tn_dense_shape dense_shape(const tn_node *n) {
    const int64_t *q = n->in[0]->shape, *k = n->in[1]->shape;
    return (tn_dense_shape){.batch = q[0],
                            .heads = q[1],
                            .kv_heads = k[1],
                            .queries = q[2],
                            .keys = k[2],
                            .width = q[3],
                            .value_width = n->in[2]->shape[3],
                            .scale = (float)n->f[TN_ATTENTION_DENSE_SCALE],
                            .masked = n->in[3] != NULL,
                            .causal = n->i[TN_ATTENTION_DENSE_IS_CAUSAL] != 0,
                            .blind = n->i[TN_ATTENTION_DENSE_BLIND] != 0,
                            .hides = n->i[TN_ATTENTION_DENSE_HIDES] != 0};
}

static tn_status make_dense(workgroup_kernel *t, tn_workgroup_program *out) {
    tn_operand_callbacks callbacks = {t, product_begin, load_im2col_alike, store_result};
    tn_dense_shape s = dense_shape(t->lead->node);
    tn_group_limits limits = limits_of(t->lead->node->device);
    return tn_dense_workgroup(&s, &limits, &callbacks, out);
}

static bool takes_dense(const tn_node *n, const tn_group_limits *limits) {
    tn_dense_shape s = dense_shape(n);
    if (limits->long_fma) return false; /* a compiler takes minutes (wgpu-native on llvmpipe) */
    return tn_node_numel(n) > 0 && s.keys > 0 && s.width > 0 && tn_dense_workgroup_fits(&s, limits);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const struct {
    int op;
    bool (*takes)(const tn_node *n, const tn_group_limits *limits);
    tn_status (*make)(workgroup_kernel *t, tn_workgroup_program *out);
    bool joins; /* though no product, what follows may join it */
} workgroup_kernels[] = {
    {TN_OP_MATMUL_BATCHED, takes_product, make_product, false},
    {TN_OP_MATMUL_WIDE, takes_product, make_product, false},
    {TN_OP_LINEAR_HALF, takes_product, make_product, false},
    {TN_OP_CONV2D_FORWARD, takes_conv, make_conv, true},
    {TN_OP_CONV2D_WGRAD, takes_conv, make_conv, true},
    {TN_OP_LINEAR_QUANTIZED, takes_quantized, make_quantized, false},
    {TN_OP_CACHED_ATTENTION_ROWS, takes_attention, make_attention, false},
    {TN_OP_ATTENTION_DENSE, takes_dense, make_dense, false},
    {TN_OP_CACHE_APPEND_ROWS, takes_append, make_append, false},
    {TN_OP_INDEX_ADD_ROWS, takes_index_add, make_index_add, false},
    {TN_OP_ARGSORT_LAST, takes_argsort, make_argsort, false},
};

static int workgroup_kernel_of(const tn_node *n) {
    for (size_t i = 0; i < TN_COUNT(workgroup_kernels); i++)
        if (workgroup_kernels[i].op == n->op) return (int)i;
    return -1;
}

bool tn_workgroup_takes_node(const tn_node *n) {
    int i = n->device->is_cpu ? -1 : workgroup_kernel_of(n);
    tn_group_limits limits = limits_of(n->device);
    return i >= 0 && workgroup_kernels[i].takes(n, &limits);
}

bool tn_workgroup_takes(const tn_value *v) {
    return v->row && !v->host.only && !v->plain && tn_workgroup_takes_node(v->node);
}

bool tn_workgroup_fuses(const tn_value *v) {
    return tn_workgroup_takes(v) && workgroup_kernels[workgroup_kernel_of(v->node)].joins;
}

/* A program that grew too large: without what joined the lead, or else without the workgroup kernel. */
static void leave_out(tn_graph_plan *g, const tn_group *group) {
    for (size_t i = group->member_count; i-- > 0 && g->lowering.forbid < 0;)
        if (group->members[i] != group->lead) g->lowering.forbid = group->members[i];
    if (g->lowering.forbid >= 0) return;
    tn_value *lead = &g->values[group->lead];
    *(lead->row->impl->lower ? &lead->plain : &lead->host.only) = true;
    g->lowering.forbid = group->lead;
}

tn_status tn_workgroup_lower(tn_graph_plan *g, int group_id) {
    tn_group *group = &g->groups[group_id];
    workgroup_kernel t = {.lead = &g->values[group->lead]};
    TRY(tn_lowering_begin(&t.w, g, group_id));
    tn_workgroup_program made = {0};
    t.lw = (tn_lower){.calls = &tn_lowering_calls, .mask = KIR_NONE, .group = &t.w};
    group->lowered.buffer_count = group->lowered.scalar_count = 0;
    group->lowered.block_buffer = -1;
    tn_status s = workgroup_kernels[workgroup_kernel_of(t.lead->node)].make(&t, &made);
    if (t.w.status != TN_OK) s = t.w.status;
    if (s == TN_OK && g->lowering.forbid < 0) {
        group->lowered.program = made.program;
        group->lowered.sizes = made.sizes;
        return TN_OK;
    }
    kir_free(made.program);
    tn_mem_free(made.sizes);
    if (s == TN_ERR_MEMORY || g->lowering.forbid >= 0) return s == TN_ERR_MEMORY ? s : TN_OK;
    leave_out(g, group);
    return TN_OK;
}
