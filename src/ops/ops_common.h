/* ops_common.h — shared by the files of ops/: steps of view functions, constants, f64 references, indices, windows. */
#ifndef TN_OPS_COMMON_H
#define TN_OPS_COMMON_H

#include "tensor/graph.h"

#include "gen/ops_build.h"

/* The code of an op, which the table of ops finds by this name: OP_CODE(add, .infer = …, .lower = …, .cases = "…"). */
#define OP_CODE(name, ...) const tn_op_impl tn_impl_##name = {__VA_ARGS__}

/* ---- view functions (kind VIEWS) --------------------------------------------------------------------------------- */

enum { TN_VIEW_STEPS = 3 };

/* The view ops that a function like unsqueeze stands for, in order. */
struct tn_view_steps {
    const char *name; /* the function's, for messages */
    int count;
    int op[TN_VIEW_STEPS];
    tn_attrs attrs[TN_VIEW_STEPS];
};
tn_attrs *tn_view_step(tn_view_steps *s, int op); /* adds a step; returns its attributes, empty */
void tn_view_shape(tn_view_steps *s, int op, const int64_t *items,
                   int count); /* adds a step whose attribute is a list */
tn_tensor *tn_view_record(const tn_tensor *x, const tn_view_steps *s);
tn_node *tn_view_build(tn_build *b, tn_node *x, const tn_view_steps *s);
/* dim in [-rank, rank) made ≥ 0, or TN_ERR_SHAPE in the name of s. */
tn_status tn_view_dim(const tn_view_steps *s, int64_t dim, int rank, int64_t *out);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* A rank-0 constant of like's dtype, on its device: exact in f64 as well. NULL if like is NULL, as after an earlier
 * failure. */
tn_node *tn_b_const(tn_build *b, double v, const tn_node *like);
tn_node *tn_b_scale(tn_build *b, tn_node *x, double v);  /* x · v */
tn_node *tn_b_offset(tn_build *b, tn_node *x, double v); /* x + v */
tn_node *tn_b_as_f32(tn_build *b, tn_node *x);           /* f16 and bf16 widened, others as they are */
/* Sum and mean over dims (ascending), which are kept with extent 1; where other dims lie between them, over the last
 * ones first. */
tn_node *tn_b_mean_apart(tn_build *b, tn_node *x, const int64_t *dims, int count);
/* Gradient of broadcasting: dy summed over the dims along which `like` was repeated, in like's shape. */
tn_node *tn_b_sum_to(tn_build *b, tn_node *dy, const tn_node *like);
/* Sums of bytes as bytes: round((sum + bias) · scale) + zero in f32, saturated, NaN as the least byte. tn_b_bytes: of
 * numbers in f32, which it rounds. infer: inputs 2 and 3 are bias (i32) and scale (f32) of `columns` sums each. */
tn_status tn_infer_rounding(tn_infer *c, int64_t columns, int64_t zero);
tn_node *tn_b_bytes(tn_build *b, tn_node *y, int64_t zero, tn_dtype dtype);
tn_node *tn_b_rounded(tn_build *b, tn_node *sums, tn_node *bias, tn_node *scale, int64_t zero, tn_dtype dtype);
double tn_reference_byte(float y, int64_t zero, bool is_signed);
/* x, or a copy of it if it is not contiguous: native kernels require contiguous inputs. */
tn_node *tn_b_row_major(tn_build *b, tn_node *x);
/* op_attention.c: the product n as attention, if it is that written out; else NULL. */
tn_node *tn_attention_of_product(tn_build *b, const tn_node *n);
/* The node itself as an operand: gradients use results again. */
static inline tn_node *tn_b_self(const tn_node *n) { return (tn_node *)(uintptr_t)n; }
static inline bool tn_needs_grad(const tn_node *n, int i) { return n->in[i] && (n->in[i]->flags & TN_NODE_GRAD); }
void tn_grad_none(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads); /* zero almost everywhere */

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

/* v as it is after it was stored as dtype and loaded again: rounded to f16 or bf16, wrapped to 8 or 16 bits. */
kir_val tn_lower_narrow(kir_builder *kb, tn_dtype dtype, kir_val v);

/* ---- f64 references ---------------------------------------------------------------------------------------------- */

/* Walks the result's elements in order; at[] is the index, in[] where the broadcast inputs' elements lie. */
typedef struct tn_walk {
    const tn_node *node;
    int64_t count, place;
    int64_t at[TN_MAX_RANK];
    int64_t in[4]; /* places in the first four inputs, moved by step */
    int64_t step[4][TN_MAX_RANK];
} tn_walk;
tn_walk tn_walk_begin(const tn_node *n); /* while (w.place < w.count) { …; tn_walk_next(&w); } */
void tn_walk_next(tn_walk *w);
void tn_op_reference(const tn_reference *r); /* by what the row of the node's op has */
/* Place of index at[] in a contiguous tensor of n's shape. */
int64_t tn_element_offset(const tn_node *n, const int64_t *at);

/* ---- shape rules ------------------------------------------------------------------------------------------------- */

/* Dim `to` of the result has the extent and symbol of this dim of an input. */
static inline void tn_infer_dim_of(tn_infer *c, int to, const tn_node *from, int dim) {
    c->shape[to] = from->shape[dim];
    c->symbol[to] = from->symbol[dim];
}
tn_status tn_infer_bits(tn_infer *c); /* broadcast; TN_ERR_DTYPE unless integer or bool */
tn_status tn_need_integer(const tn_infer *c, int input);
/* A number among the attributes is in [least, most] (and not NaN); `what` is the argument's name. */
tn_status tn_need_range(const tn_infer *c, const char *what, double v, double least, double most);
tn_status tn_need_finite(const tn_infer *c, const char *what, double v); /* neither NaN nor infinite */
bool tn_rows_follow(const tn_node *x);                /* a matrix: in order, without gaps, wherever it begins */
tn_status tn_need_rows(const tn_infer *c, int input); /* a matrix whose rows follow each other without a gap */
/* A tensor without dimensions counts as a vector of one element where an op works along a dim, as in PyTorch. */
static inline int tn_line_rank(const tn_node *x) { return x->rank ? x->rank : 1; }
static inline int64_t tn_line_extent(const tn_node *x, int64_t dim) { return x->rank ? x->shape[dim] : 1; }
tn_node *tn_b_line(tn_build *b, tn_node *x); /* x, or [1] if it has no dimensions */
/* Whether index [..., along dim] and src fit a target: equal ranks; no extent of index greater than the source's, nor
 * (but along dim) than the target's. An empty index fits any. */
tn_status tn_infer_scattered(const tn_infer *c, const tn_node *index, const tn_node *src, int64_t dim,
                             const int64_t *shape, int64_t rank);
/* Rank and shape from a list of attributes, or c->shape checked as it is (symbols stay then); refuses negative extents
 * and products that overflow. */
tn_status tn_infer_shape(tn_infer *c, const int64_t *shape, int64_t rank);
tn_status tn_infer_reshaped(tn_infer *c, const int64_t *shape, int64_t rank); /* the same, with in[0]'s dtype */

/* ==== indices of elements in a kernel ============================================================================= */
/* Comparisons are made on `index − bound` against 0, so that bounds stay among a kernel's
 * sizes and shapes share its code. */

static inline kir_aff index_shifted(const kir_aff *at, int64_t by) {
    kir_aff moved = *at;
    moved.c += by;
    return moved;
}

/* index + by < 0 */
static inline kir_val index_below(kir_builder *kb, const kir_aff *at, int64_t by) {
    kir_aff moved = index_shifted(at, by);
    return kir_lt(kb, kir_index(kb, &moved), kir_whole(kb, 0));
}

/* 0 <= index */
static inline kir_val index_not_negative(kir_builder *kb, const kir_aff *at) {
    return kir_le(kb, kir_whole(kb, 0), kir_index(kb, at));
}

/* a and b, either of which may be KIR_NONE ("always"). */
static inline kir_val mask_both(kir_builder *kb, kir_val a, kir_val b) {
    if (a == KIR_NONE) return b;
    return b == KIR_NONE ? a : kir_and(kb, a, b);
}

static inline kir_val index_in_range(kir_builder *kb, kir_val index, int64_t size) {
    kir_val low = kir_le(kb, kir_whole(kb, 0), index);
    return kir_and(kb, low, kir_lt(kb, index, kir_whole(kb, size)));
}

static inline kir_val index_zero(tn_lower *lw, tn_dtype t) { return kir_const_i(lw->kb, kir_type_of(t), 0); }

/* Σ at[d] · stride[d] + c over `rank` dims. */
static inline kir_aff index_flat(tn_lower *lw, const kir_aff *at, const int64_t *stride, int rank, int64_t c) {
    kir_aff sum = kir_aff_const(c);
    for (int d = 0; d < rank; d++) {
        kir_aff part = tn_aff_scale(lw, &at[d], stride[d]);
        sum = tn_aff_add(lw, &sum, &part);
    }
    return sum;
}

/* The inverse for a contiguous tensor: dims of these extents from a flat index, by division
 * where there is more than one. */
static inline void index_unflatten(tn_lower *lw, const kir_aff *flat, const int64_t *shape, int rank, kir_aff *out) {
    int last = -1, first = rank;
    for (int d = 0; d < rank; d++) {
        out[d] = kir_aff_const(0);
        if (shape[d] == 1) continue;
        if (last < 0) first = d;
        last = d;
    }
    if (last < 0) return;
    if (first == last) {
        out[last] = *flat;
        return;
    }
    kir_val rest = kir_index(lw->kb, flat);
    for (int d = last; d > first; d--) {
        if (shape[d] == 1) continue;
        kir_val size = kir_whole(lw->kb, shape[d]);
        out[d] = kir_aff_value(kir_mod(lw->kb, rest, size));
        rest = kir_div(lw->kb, rest, size);
    }
    out[first] = kir_aff_value(rest);
}

/* ==== the range of indices ======================================================================================== */

/* Indices in host memory. */
typedef struct tn_index_list {
    const char *first; /* element 0, …, 0 */
    tn_dtype dtype;
    int rank;
    bool dense;                                             /* elements lie in order without gaps */
    int64_t count, shape[TN_MAX_RANK], stride[TN_MAX_RANK]; /* strides in elements */
} tn_index_list;

/* Whether what is known of b's integers (tn_buffer_is_known) says that all of them are inside. */
bool tn_known_inside(const tn_buffer *b, const tn_index_range *range);
bool tn_indices_checked_everywhere(void); /* TRUNNION_CHECK_INDICES */
bool tn_indices_inside(const tn_index_list *list, const tn_index_range *range);
/* TN_ERR_ARGUMENT with the first index outside: "gather: index 7, element 3 of [4], is out of bounds: …". */
tn_status tn_indices_refuse(const char *name, const tn_index_list *list, const tn_index_range *range);
/* What x was made of by casts between integers that keep every value. */
const tn_node *tn_index_source(const tn_node *x);

/* ==== windows that slide over images ============================================================================== */
/* What it sees is made without masks: the image is padded once, then every place of the window is an affine step away.
 * The way back (a gradient, a transposed convolution) is made so too: seen from a pixel, the windows that cover it are
 * again a window over the results. With a stride s there are s classes of pixels along an axis, which meet different
 * taps of the kernel; each class is computed by itself (a phase), and the classes are interleaved. */

typedef struct tn_window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} tn_window;

/* Of an op whose first attributes are these eight. */
static inline tn_window tn_window_of(const int64_t *i) {
    return (tn_window){{i[0], i[1]}, {i[2], i[3]}, {i[4], i[5]}, {i[6], i[7]}};
}

int64_t tn_window_reach(const tn_window *w, int axis);
/* Places of the window along an axis, -1 when it does not fit. Rounding up, the last one must still begin inside. */
int64_t tn_window_out_size(const tn_window *w, int axis, int64_t size, bool ceil_mode);
tn_status tn_window_check(const tn_infer *c, const tn_window *w, int first_axis);
tn_status tn_window_too_large(const tn_infer *c, const tn_window *w, int axis, int64_t size);

/* Images come as [batch, channels, size…] with `axes` sizes, or without the batch. */
tn_status tn_nchw_check(const tn_infer *c, int axes);
int tn_nchw_channel_dim(const tn_node *x, int axes);
void tn_nchw_infer(tn_infer *c, int axes, int64_t channels,
                   const int64_t *size);                  /* the batch, if any, is the input's */
tn_node *tn_b_as_nchw(tn_build *b, tn_node *x, int axes); /* as [n, c, h, w], whatever it was */

/* What the window sees of x [n, c, h, w] at out_size[0] × out_size[1]: [n, c, kernel, kernel, out_h,
 * out_w]; `value` outside. */
tn_node *tn_b_im2col(tn_build *b, tn_node *x, const tn_window *w, const int64_t *out_size, double value);

/* tn_b_pad of an image; what is only cut off is a view. */
tn_node *tn_b_padded(tn_build *b, tn_node *x, const int64_t pads[4], double value);

enum { TN_MAX_PHASES = 8 }; /* along an axis */

/* One class of pixels: the taps that meet it, as a window over the results. */
typedef struct tn_phase {
    int64_t first[2];   /* its lowest tap; then every stride-th */
    int64_t taps[2];    /* how many; 0: nothing reaches these pixels */
    int64_t spacing[2]; /* of the results that neighbouring taps lead to */
    int64_t pads[4];    /* of the results, as tn_b_pad takes them */
    int64_t pixels[2];  /* of this class (one too many where the image ends before) */
} tn_phase;

/* Can the way back be made of phases? Not with both a stride and a dilation. */
bool tn_window_has_phases(const tn_window *w);
/* What windows have, [n, c, kernel, kernel, out_h, out_w], added up in images of `size`. The uncut image is made and
 * then cut, as fold2d requires exactly the output pixels of an image. */
tn_node *tn_b_col2im(tn_build *b, tn_node *seen, const tn_window *w, const int64_t *size);
/* The class of pixels `number` (down, across) of an image of `size`, seen from results of `out_size`. */
tn_phase tn_phase_of(const tn_window *w, const int64_t *number, const int64_t *size, const int64_t *out_size);
/* Has the phase pixels that nothing reaches? */
static inline bool tn_phase_is_empty(const tn_phase *p) { return p->taps[0] == 0 || p->taps[1] == 0; }
/* Results [n, c, out_h, out_w] under the phase's window: [n, c, taps, taps, pixels, pixels]. Taps run downwards. */
tn_node *tn_b_im2col_phase(tn_build *b, tn_node *y, const tn_phase *p, double value);
/* All phases' pixels [n, c, pixels, pixels], row by row, as images of `size`. */
tn_node *tn_b_join_phases(tn_build *b, tn_node *const *parts, const tn_window *w, const int64_t *size);

#endif
