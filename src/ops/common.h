/* common.h — what the files of ops/ share: steps of view functions, constants and sums in graphs, f64 references. */
#ifndef TN_OPS_COMMON_H
#define TN_OPS_COMMON_H

#include "ops/ops_build.h"

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

/* A rank-0 constant of like's dtype, on its device: exact in f64 as well, unlike tn_b_number. */
tn_node *tn_b_const(tn_build *b, double v, const tn_node *like);
tn_node *tn_b_scale(tn_build *b, tn_node *x, double v);  /* x · v */
tn_node *tn_b_offset(tn_build *b, tn_node *x, double v); /* x + v */
tn_node *tn_b_as_f32(tn_build *b, tn_node *x);           /* f16 and bf16 widened, others as they are */
/* Sum and mean over dims (ascending), which are kept with extent 1; where other dims lie between them, over the last
 * ones first. */
tn_node *tn_b_sum_apart(tn_build *b, tn_node *x, const int64_t *dims, int count);
tn_node *tn_b_mean_apart(tn_build *b, tn_node *x, const int64_t *dims, int count);
/* Gradient of broadcasting: dy summed over the dims along which `like` was repeated, in like's shape. */
tn_node *tn_b_sum_to(tn_build *b, tn_node *dy, const tn_node *like);
/* x with its elements in row-major order, as native kernels want them: a copy only where they do not lie so. */
tn_node *tn_b_whole(tn_build *b, tn_node *x);
/* x, or a copy of it when its elements do not lie in row-major order: native kernels take no other inputs. */
tn_node *tn_b_laid_out(tn_build *b, tn_node *x);
/* attention.c: the product n as attention, if it is that written out; else NULL. */
tn_node *tn_attention_of_product(tn_build *b, const tn_node *n);
/* The node itself as an operand: gradients use results again. */
static inline tn_node *tn_b_self(const tn_node *n) { return (tn_node *)(uintptr_t)n; }
static inline bool tn_needs_grad(const tn_node *n, int i) { return n->in[i] && (n->in[i]->flags & TN_NODE_GRAD); }
tn_status tn_grad_none(tn_build *b, const tn_node *n, tn_node *dy, tn_node **grads); /* zero almost everywhere */

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
/* Place of index at[] in a contiguous tensor of n's shape. */
int64_t tn_element_offset(const tn_node *n, const int64_t *at);

/* ---- shape rules ------------------------------------------------------------------------------------------------- */

tn_status tn_infer_bits(tn_infer *c); /* broadcast; TN_ERR_DTYPE unless integer or bool */
tn_status tn_need_integer(const tn_infer *c, int input);
tn_status tn_need_contiguous(const tn_infer *c, int input);
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

#endif
