#!/usr/bin/env python3
"""torch_functions.py — results and gradients of the functions of functions.h as PyTorch computes them, in f64:
tests/golden/functions.h.

Needs torch (pip install torch); the file is committed, so neither builds nor checks do. A case has the C expression that
tests/ops/test_functions.c calls, its inputs, and PyTorch's way. Inputs follow from formulas that both sides have: the header
holds shapes, results and gradients alone.
"""

import pathlib
import sys
import warnings

import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "functions.h"
CASES = []
torch.set_default_dtype(torch.float64)
warnings.simplefilter("ignore")


def numbered(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int64).reshape(shape)


class In:
    """An input: 'f' floats in [−2.5, 2.5], 'p' floats from 0.25, 'i' integers below `below`, 'b' bools."""

    def __init__(self, kind, *shape, below=0):
        self.kind, self.shape, self.below = kind, shape, below

    def make(self, k):
        i = numbered(self.shape)
        if self.kind == "f":
            return ((i * 37 + k * 11) % 41 - 20) / 8
        if self.kind == "p":
            return ((i * 37 + k * 11) % 41 + 2) / 8
        if self.kind == "i":
            return (i * 7 + k) % self.below
        return (i * 5 + k) % 3 == 0


def f(*shape):
    return In("f", *shape)


def p(*shape):
    return In("p", *shape)


def i(below, *shape):
    return In("i", *shape, below=below)


def b(*shape):
    return In("b", *shape)


def case(expression, inputs, compute, constant=()):
    x = [t.make(k) for k, t in enumerate(inputs)]
    x = [t.requires_grad_(t.dtype.is_floating_point and k not in constant) for k, t in enumerate(x)]
    y = compute(*x)
    grads = [None] * len(x)
    if y.dtype.is_floating_point and y.requires_grad:
        wanted = [t for t in x if t.requires_grad]
        dy = ((numbered(y.shape) * 29 + 5) % 17 - 8) / 4
        found = iter(torch.autograd.grad(y, wanted, dy.to(y.dtype), allow_unused=True))
        grads = [next(found) if t.requires_grad else None for t in x]
        grads = [torch.zeros_like(t) if t.requires_grad and g is None else g for t, g in zip(x, grads)]
    CASES.append((expression, inputs, y.detach(), grads))


def dims(*items):
    return "(int64_t[]){" + ", ".join(str(v) for v in items) + "}"


def indexing():
    rows, columns = i(4, 2, 3), i(5, 3)
    case("tn_index(x[0], LIST(x[1], x[2]))", [f(4, 5, 2), rows, columns], lambda x, r, c: x[r, c])
    case("tn_index(x[0], LIST(x[1], NULL, x[2]))", [f(4, 2, 5), i(4, 3), i(5, 2, 1)], lambda x, r, c: x[r, :, c])
    case("tn_index(x[0], LIST(NULL, x[1]))", [f(2, 5, 3), i(5, 2, 2)], lambda x, r: x[:, r])
    case("tn_index(x[0], LIST(tn_sub(x[1], tn_scalar_int(4))))", [f(4, 3), i(4, 5)], lambda x, r: x[r - 4])
    case("tn_index(x[0], LIST(x[1]))", [f(4, 5), b(4, 5)], lambda x, m: x[m])
    case("tn_index(x[0], LIST(x[1], x[2]))", [f(4, 5), b(4), i(5, 2)], lambda x, m, c: x[m, c])
    case("tn_index_put(x[0], LIST(x[1], x[2]), x[3], true)", [f(4, 5, 2), rows, columns, f(3, 1)],
         lambda x, r, c, v: x.index_put((r, c), v, accumulate=True))
    case("tn_index_put(x[0], LIST(NULL, x[1]), x[2], false)", [f(2, 5, 3), i(5, 4), f(2, 4, 3)],
         lambda x, r, v: x.index_put((torch.arange(2)[:, None], r), v))
    case("tn_index_put(x[0], LIST(x[1]), x[2], false)", [f(4, 3), b(4, 3), f(1)], lambda x, m, v: x.index_put((m,), v))
    case("tn_nonzero(x[0])", [b(3, 4)], torch.nonzero)
    case("tn_masked_select(x[0], x[1])", [f(3, 4), b(4)], torch.masked_select)
    case("tn_masked_scatter(x[0], x[1], x[2])", [f(3, 4), b(3, 4), f(12)], torch.masked_scatter)
    case("tn_take(x[0], x[1])", [f(3, 4), i(12, 2, 5)], torch.take)
    case("tn_put(x[0], x[1], x[2], true)", [f(3, 4), i(12, 5), f(5)], lambda x, r, v: x.put(r, v, accumulate=True))
    case("tn_index_fill(x[0], 1, x[1], 2.5)", [f(3, 4), i(4, 2)], lambda x, r: x.index_fill(1, r, 2.5))
    case("tn_index_copy(x[0], 0, x[1], x[2])", [f(5, 2), i(5, 3), f(3, 2)], lambda x, r, v: x.index_copy(0, r, v))
    case("tn_index_reduce(x[0], 0, x[1], x[2], TN_REDUCE_AMAX, true)", [f(3, 2), i(3, 5), f(5, 2)],
         lambda x, r, v: x.index_reduce(0, r, v, "amax"))
    case("tn_scatter_mean(x[0], 0, x[1], x[2], false)", [f(3, 2), i(2, 5, 2), f(5, 2)],
         lambda x, r, v: x.scatter_reduce(0, r, v, "mean", include_self=False))
    case("tn_unique(x[0], NULL, NULL)", [i(5, 3, 4)], torch.unique)
    case("second(tn_unique, x[0], 0)", [i(5, 3, 4)], lambda x: torch.unique(x, return_inverse=True)[1])
    case("second(tn_unique, x[0], 1)", [i(5, 3, 4)], lambda x: torch.unique(x, return_counts=True)[1])
    case("tn_unique_consecutive(tn_floor_divide(x[0], tn_scalar_int(3)), NULL, NULL)", [i(9, 9)],
         lambda x: torch.unique_consecutive(x // 3))
    case("tn_bincount(x[0], x[1], 8)", [i(6, 9), f(9)], lambda x, w: torch.bincount(x, w, 8), constant=[1])
    case("tn_histc(x[0], 5, -2, 2)", [f(20)], lambda x: torch.histc(x, 5, -2, 2), constant=[0])
    case("tn_searchsorted(tn_sort(x[0], 1, false), x[1], true)", [f(3, 7), f(3, 4)],
         lambda s, v: torch.searchsorted(torch.sort(s, 1)[0], v, right=True), constant=[0, 1])
    case("tn_bucketize(x[0], tn_sort(x[1], 0, false), false)", [f(3, 4), f(6)],
         lambda v, s: torch.bucketize(v, torch.sort(s)[0]), constant=[0, 1])
    case("tn_isin(x[0], x[1], true)", [i(9, 3, 3), i(4, 3)], lambda x, v: torch.isin(x, v, invert=True))
    case("tn_repeat_interleave(x[0], 3, 1)", [f(2, 3)], lambda x: x.repeat_interleave(3, 1))
    case("tn_repeat_interleave_by(x[0], x[1], 0)", [f(4, 2), i(3, 4)], lambda x, r: x.repeat_interleave(r, 0))


def shapes():
    case("tn_clone(x[0])", [f(2, 3)], torch.clone)
    case("tn_select_scatter(x[0], x[1], 1, 2)", [f(2, 4), f(2)], lambda x, s: torch.select_scatter(x, s, 1, 2))
    case("tn_slice_scatter(x[0], x[1], 0, 1, 5, 2)", [f(6, 2), f(2, 2)], lambda x, s: torch.slice_scatter(x, s, 0, 1, 5, 2))
    case("tn_as_strided_scatter(x[0], x[1], TN_DIMS(2, 2), TN_DIMS(4, 2), 1)", [f(3, 4), f(2, 2)],
         lambda x, s: torch.as_strided_scatter(x.detach(), s, (2, 2), (4, 2), 1), constant=[0])
    for offset in (0, 1, -2, 7):
        case(f"tn_diagonal(x[0], {offset}, 0, 2)", [f(3, 2, 4)], lambda x: torch.diagonal(x, offset, 0, 2))
    case("tn_diagonal(x[0], 1, 1, 0)", [f(3, 4)], lambda x: torch.diagonal(x, 1, 1, 0))
    case("tn_diagonal_scatter(x[0], x[1], -1, 2, 0)", [f(3, 2, 4), f(2, 3)],
         lambda x, s: torch.diagonal_scatter(x, s, -1, 2, 0))
    case("tn_diag_embed(x[0], 1, 0, 2)", [f(2, 3)], lambda x: torch.diag_embed(x, 1, 0, 2))
    case("tn_diag_embed(x[0], -1, 2, 1)", [f(2, 3)], lambda x: torch.diag_embed(x, -1, 2, 1))
    case("tn_diag(x[0], -1)", [f(3)], lambda x: torch.diag(x, -1))
    case("tn_diagflat(x[0], 1)", [f(2, 2)], lambda x: torch.diagflat(x, 1))
    case("tn_tril_indices(3, 4, -1)", [], lambda: torch.tril_indices(3, 4, -1))
    case("tn_triu_indices(4, 3, 1)", [], lambda: torch.triu_indices(4, 3, 1))
    case("grid(x[0], x[1], true)", [f(2), f(3)], lambda a, c: torch.meshgrid(a, c, indexing="xy")[1])
    case("tn_cartesian_prod(LIST(x[0], x[1]))", [f(2), f(3)], torch.cartesian_prod)
    case("tn_combinations(x[0], 3, true)", [f(4)], lambda x: torch.combinations(x, 3, True))
    case("tn_block_diag(LIST(x[0], x[1], x[2]))", [f(2, 3), f(2), f()], torch.block_diag)
    case("tn_unfold(x[0], 1, 3, 2)", [f(2, 7)], lambda x: x.unfold(1, 3, 2))
    case("tn_vander(x[0], 4)", [f(3)], lambda x: torch.linalg.vander(x, N=4))
    for name in ("reflect", "replicate", "circular"):
        case(f"tn_pad_by(x[0], {dims(2, 1, -1, 2)}, 4, TN_PAD_{name.upper()})", [f(1, 2, 4, 5)],
             lambda x: F.pad(x, (2, 1, -1, 2), name))


def products():
    case('tn_einsum("bij,bjk->bik", LIST(x[0], x[1]))', [f(2, 3, 4), f(2, 4, 2)], lambda x, y: torch.einsum("bij,bjk->bik", x, y))
    case('tn_einsum("ii", LIST(x[0]))', [f(3, 3)], lambda x: torch.einsum("ii", x))
    case('tn_einsum("iji->ij", LIST(x[0]))', [f(3, 2, 3)], lambda x: torch.einsum("iji->ij", x))
    case('tn_einsum("...ij, ...jk -> ...ki", LIST(x[0], x[1]))', [f(2, 1, 3, 4), f(5, 4, 2)],
         lambda x, y: torch.einsum("...ij,...jk->...ki", x, y))
    case('tn_einsum("ab,bc,cd", LIST(x[0], x[1], x[2]))', [f(2, 3), f(3, 4), f(4, 2)], lambda x, y, z: torch.einsum("ab,bc,cd", x, y, z))
    case('tn_einsum("ij,ik,i->kj", LIST(x[0], x[1], x[2]))', [f(3, 2), f(3, 4), f(3)],
         lambda x, y, z: torch.einsum("ij,ik,i->kj", x, y, z))
    case("tn_tensordot(x[0], x[1], TN_DIMS(0, 2), TN_DIMS(2, 1))", [f(3, 2, 4), f(5, 4, 3)],
         lambda x, y: torch.tensordot(x, y, dims=([0, 2], [2, 1])))
    case("tn_inner(x[0], x[1])", [f(2, 3), f(4, 3)], torch.inner)
    case("tn_kron(x[0], x[1])", [f(2, 3), f(2, 1, 2)], torch.kron)
    case("tn_linalg_cross(x[0], x[1], 0)", [f(3, 2), f(3, 2)], lambda x, y: torch.linalg.cross(x, y, dim=0))
    case("tn_bilinear(x[0], x[1], x[2], x[3])", [f(2, 3), f(2, 2), f(4, 3, 2), f(4)], F.bilinear)
    case("tn_linalg_matrix_power(x[0], 5)", [f(3, 3)], lambda x: torch.linalg.matrix_power(x, 5))
    case("tn_linalg_matrix_exp(tn_div(x[0], tn_scalar(4)))", [f(2, 3, 3)], lambda x: torch.matrix_exp(x / 4))
    case("tn_linalg_pinv(x[0], -1)", [f(4, 3)], torch.linalg.pinv)
    case("tn_linalg_matrix_rank(tn_matmul(x[0], x[1]), 1e-4)", [f(4, 2), f(2, 3)],
         lambda x, y: torch.linalg.matrix_rank(x @ y, rtol=1e-4), constant=[0, 1])
    case("tn_linalg_matrix_norm(x[0], TN_MATRIX_NORM_NUC, false)", [f(3, 4)], lambda x: torch.linalg.matrix_norm(x, "nuc"))
    case("tn_linalg_matrix_norm_of(x[0], -1, true)", [f(3, 4)], lambda x: torch.linalg.matrix_norm(x, -1, keepdim=True))
    case("tn_linalg_cond(x[0], 2)", [f(3, 3)], torch.linalg.cond)


def statistics():
    case("tn_kthvalue(x[0], 2, 0, true, NULL)", [f(5, 3)], lambda x: torch.kthvalue(x, 2, 0, True)[0])
    case("tn_median(x[0], 1, false, NULL)", [f(3, 4)], lambda x: torch.median(x, 1)[0])
    case("second(median, x[0], 0)", [f(3, 4)], lambda x: torch.median(x, 1)[1], constant=[0])
    case("tn_nanmedian(tn_where(x[1], tn_full_like(x[0], NAN), x[0]), 0, false, NULL)", [f(5, 3), b(5, 3)],
         lambda x, m: torch.nanmedian(torch.where(m, torch.nan, x), 0)[0], constant=[0])
    case("tn_mode(x[0], 1, false, NULL)", [i(3, 3, 7)], lambda x: torch.mode(x, 1)[0])
    for mode in ("linear", "lower", "higher", "midpoint", "nearest"):
        case(f"tn_quantile(x[0], tn_div(x[1], tn_scalar(6)), 0, false, TN_QUANTILE_{mode.upper()})", [f(6, 2), p(3)],
             lambda x, q: torch.quantile(x, q / 6, 0, interpolation=mode), constant=[1])
    case("tn_nanquantile(tn_where(x[2], tn_full_like(x[0], NAN), x[0]), tn_div(x[1], tn_scalar(6)), 1, true, "
         "TN_QUANTILE_LINEAR)", [f(2, 6), p(3), b(2, 6)],
         lambda x, q, m: torch.nanquantile(torch.where(m, torch.nan, x), q / 6, 1, True), constant=[0, 1])
    case("tn_cummax(x[0], 0, NULL)", [f(7, 2)], lambda x: torch.cummax(x, 0)[0])
    case("tn_cummin(x[0], 1, NULL)", [f(2, 6)], lambda x: torch.cummin(x, 1)[0])
    case("second(cummax, x[0], 0)", [f(3, 7)], lambda x: torch.cummax(x, 1)[1], constant=[0])
    case("tn_logcumsumexp(x[0], 1)", [f(2, 5)], lambda x: torch.logcumsumexp(x, 1))
    case("tn_diff(x[0], 2, 1)", [f(2, 5)], lambda x: torch.diff(x, 2, 1))
    case("tn_trapezoid(x[0], x[1], 1, 1)", [f(2, 5), f(5)], lambda y, x: torch.trapezoid(y, x, dim=1))
    case("tn_cumulative_trapezoid(x[0], NULL, 0.5, 0)", [f(5, 2)], lambda y: torch.cumulative_trapezoid(y, dx=0.5, dim=0))
    case("tn_cov(x[0], 1)", [f(3, 5)], torch.cov)
    case("tn_corrcoef(x[0])", [f(3, 5)], torch.corrcoef)
    case("tn_renorm(x[0], 2, 0, 3)", [f(3, 4)], lambda x: torch.renorm(x, 2, 0, 3))


def losses():
    mean, none = "TN_REDUCTION_MEAN", "TN_REDUCTION_NONE"
    case("tn_pairwise_distance(x[0], x[1], 3, 1e-6, true)", [f(3, 4), f(3, 4)], lambda x, y: F.pairwise_distance(x, y, 3, keepdim=True))
    case("tn_cdist(x[0], x[1], 1.5)", [f(2, 3, 4), f(5, 4)], lambda x, y: torch.cdist(x, y.expand(2, 5, 4), 1.5))
    case("tn_pdist(x[0], 2)", [f(4, 3)], F.pdist)
    sign = "tn_sub(tn_mul(x[2], tn_scalar_int(2)), tn_scalar_int(1))"
    case(f"tn_cosine_embedding_loss(x[0], x[1], {sign}, 0.1, {mean})", [f(4, 3), f(4, 3), i(2, 4)],
         lambda x, y, t: F.cosine_embedding_loss(x, y, 2 * t - 1, 0.1))
    case(f"tn_triplet_margin_loss(x[0], x[1], x[2], 1, 2, 1e-6, true, {none})", [f(4, 3), f(4, 3), f(4, 3)],
         lambda a, q, n: F.triplet_margin_loss(a, q, n, swap=True, reduction="none"))
    case(f"tn_multi_margin_loss(x[0], x[1], x[2], 2, 0.5, {mean})", [f(3, 4), i(4, 3), p(4)],
         lambda x, t, w: F.multi_margin_loss(x, t, 2, 0.5, w), constant=[2])
    case(f"tn_multilabel_margin_loss(x[0], tn_sub(x[1], tn_scalar_int(1)), {none})", [f(3, 4), i(5, 3, 4)],
         lambda x, t: F.multilabel_margin_loss(x, t - 1, reduction="none"))
    case(f"tn_multilabel_soft_margin_loss(x[0], tn_cast(x[1], tn_dtype_of(x[0])), NULL, {mean})", [f(3, 4), b(3, 4)],
         lambda x, t: F.multilabel_soft_margin_loss(x, t.double()))
    lengths = 'numbers("7 5 6"), numbers("3 0 2")'
    case(f"tn_ctc_loss(tn_log_softmax(x[0], 2), tn_add(x[1], tn_scalar_int(1)), {lengths}, 0, {mean}, false)",
         [f(7, 3, 5), i(4, 3, 3)], lambda x, t: F.ctc_loss(F.log_softmax(x, 2), t + 1, torch.tensor([7, 5, 6]), torch.tensor([3, 0, 2])))
    case(f'tn_ctc_loss(tn_log_softmax(x[0], 2), x[1], numbers("4 2"), numbers("3 3"), 3, TN_REDUCTION_SUM, true)',
         [f(4, 2, 4), i(3, 2, 3)], lambda x, t: F.ctc_loss(F.log_softmax(x, 2), t, torch.tensor([4, 2]), torch.tensor([3, 3]), 3, "sum", True))
    case(f'tn_ctc_loss(tn_log_softmax(x[0], 2), x[1], numbers("0 4 0"), numbers("0 2 1"), 3, TN_REDUCTION_NONE, true)',
         [f(4, 3, 4), i(3, 3, 2)], lambda x, t: F.ctc_loss(F.log_softmax(x, 2), t, torch.tensor([0, 4, 0]), torch.tensor([0, 2, 1]), 3, "none", True))
    case(f'tn_exp(tn_neg(tn_ctc_loss(tn_log_softmax(x[0], 2), x[1], numbers("0 4 0"), numbers("0 2 1"), 3, TN_REDUCTION_NONE, false)))',
         [f(4, 3, 4), i(3, 3, 2)], lambda x, t: torch.exp(-F.ctc_loss(F.log_softmax(x, 2), t, torch.tensor([0, 4, 0]), torch.tensor([0, 2, 1]), 3, "none", False)))


def images():
    for mode, align in (("nearest", False), ("nearest-exact", False), ("linear", False), ("linear", True), ("area", False)):
        name = {"nearest-exact": "NEAREST_EXACT"}.get(mode, mode.upper())
        case(f"tn_interpolate(x[0], TN_DIMS(7), NULL, TN_INTERPOLATE_{name}, {str(align).lower()})", [f(1, 2, 5)],
             lambda x: F.interpolate(x, 7, mode=mode, align_corners=align if mode == "linear" else None))
    for align in (False, True):
        case(f"tn_interpolate(x[0], TN_DIMS(6, 3), NULL, TN_INTERPOLATE_CUBIC, {str(align).lower()})", [f(1, 2, 4, 5)],
             lambda x: F.interpolate(x, (6, 3), mode="bicubic", align_corners=align))
    for name, mode in (("LINEAR", "bilinear"), ("CUBIC", "bicubic")):
        for align in (False, True):
            case(f"tn_interpolate(x[0], TN_DIMS(3, 9), NULL, TN_INTERPOLATE_{name}_ANTIALIAS, {str(align).lower()})",
                 [f(1, 2, 11, 5)], lambda x: F.interpolate(x, (3, 9), mode=mode, align_corners=align, antialias=True))
    case("tn_interpolate(x[0], TN_DIMS(3, 6, 3), NULL, TN_INTERPOLATE_LINEAR, false)", [f(1, 1, 2, 4, 5)],
         lambda x: F.interpolate(x, (3, 6, 3), mode="trilinear"))
    case("tn_pixel_shuffle(x[0], 2)", [f(2, 8, 2, 3)], lambda x: F.pixel_shuffle(x, 2))
    case("tn_pixel_unshuffle(x[0], 2)", [f(2, 1, 4, 6)], lambda x: F.pixel_unshuffle(x, 2))
    case("tn_channel_shuffle(x[0], 3)", [f(1, 6, 2, 2)], lambda x: F.channel_shuffle(x, 3))
    case("tn_local_response_norm(x[0], 3, 0.1, 0.75, 1)", [f(2, 4, 3)], lambda x: F.local_response_norm(x, 3, 0.1))
    case(f"tn_im2col(x[0], {dims(2, 3)}, {dims(2, 1)}, {dims(1, 0)}, {dims(1, 2)})", [f(2, 2, 4, 6)],
         lambda x: F.unfold(x, (2, 3), (2, 1), (1, 0), (1, 2)))
    case(f"tn_col2im(x[0], {dims(4, 5)}, {dims(2, 2)}, {dims(1, 2)}, {dims(0, 1)}, {dims(2, 1)})", [f(1, 8, 10)],
         lambda x: F.fold(x, (4, 5), (2, 2), (1, 2), (0, 1), (2, 1)))
    for mode, padding, align in (("bilinear", "zeros", False), ("bilinear", "border", True), ("bilinear", "reflection", False),
                                 ("nearest", "reflection", True)):
        case(f"tn_grid_sample(x[0], tn_mul(x[1], tn_scalar(0.59)), TN_GRID_{mode.upper()}, TN_GRID_{padding.upper()}, "
             f"{str(align).lower()})", [f(2, 2, 3, 4), f(2, 2, 3, 2)],
             lambda x, g: F.grid_sample(x, g * 0.59, mode, padding, align), constant=[1] if mode == "nearest" else [])
    case("tn_grid_sample(x[0], tn_mul(x[1], tn_scalar(0.59)), TN_GRID_BILINEAR, TN_GRID_ZEROS, true)",
         [f(1, 2, 2, 3, 4), f(1, 2, 2, 2, 3)], lambda x, g: F.grid_sample(x, g * 0.59, align_corners=True))
    case("tn_affine_grid(x[0], TN_DIMS(2, 1, 3, 4), false)", [f(2, 2, 3)], lambda x: F.affine_grid(x, (2, 1, 3, 4), align_corners=False))


def pools():
    def box(v):
        return dims(*v)
    case(f"tn_max_pool(x[0], 3, {box([2, 3, 2])}, {box([1, 2, 1])}, {box([1, 0, 1])}, {box([1, 1, 2])}, false, NULL)",
         [f(1, 2, 4, 5, 6)], lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2)))
    case(f"pool_places(x[0], {box([2, 2])})", [f(1, 2, 5, 5)],
         lambda x: F.max_pool2d(x, 2, ceil_mode=True, return_indices=True)[1], constant=[0])
    case(f"tn_avg_pool(x[0], 3, {box([2, 3, 2])}, {box([2, 2, 1])}, {box([1, 1, 0])}, true, false, 0)", [f(1, 2, 4, 5, 3)],
         lambda x: F.avg_pool3d(x, (2, 3, 2), (2, 2, 1), (1, 1, 0), True, False))
    case(f"tn_avg_pool(x[0], 1, {box([3])}, {box([2])}, {box([1])}, true, true, 0)", [f(2, 6)],
         lambda x: F.avg_pool1d(x, 3, 2, 1, True, True))
    case(f"tn_lp_pool(x[0], 1, 2, {box([3])}, NULL, false)", [p(1, 2, 7)], lambda x: F.lp_pool1d(x, 2, 3))
    case(f"tn_adaptive_avg_pool(x[0], 3, {box([2, 3, -1])})", [f(1, 2, 4, 4, 2)], lambda x: F.adaptive_avg_pool3d(x, (2, 3, None)))
    case(f"tn_adaptive_max_pool(x[0], 2, {box([2, 3])}, NULL)", [f(2, 4, 5)], lambda x: F.adaptive_max_pool2d(x, (2, 3)))
    case(f"tn_conv3d(x[0], x[1], x[2], {box([1, 2, 1])}, {box([1, 0, 1])}, {box([2, 1, 1])}, 2)", [f(1, 4, 4, 4, 3), f(2, 2, 2, 3, 2), f(2)],
         lambda x, w, c: F.conv3d(x, w, c, (1, 2, 1), (1, 0, 1), (2, 1, 1), 2))
    case("tn_conv_transpose1d(x[0], x[1], x[2], 2, 1, 1, 1, 1)", [f(1, 2, 4), f(2, 3, 3), f(3)],
         lambda x, w, c: F.conv_transpose1d(x, w, c, 2, 1, 1))
    case(f"tn_conv_transpose3d(x[0], x[1], x[2], {box([2, 1, 2])}, {box([1, 0, 1])}, {box([1, 0, 0])}, 2, {box([1, 2, 1])})",
         [f(1, 2, 3, 2, 2), f(2, 2, 3, 2, 2), f(4)], lambda x, w, c: F.conv_transpose3d(x, w, c, (2, 1, 2), (1, 0, 1), (1, 0, 0), 2, (1, 2, 1)))
    for name in ("sum", "mean", "max"):
        case(f'tn_embedding_bag(x[0], x[1], numbers("0 2 2"), TN_BAG_{name.upper()}, NULL)', [i(5, 6), f(5, 3)],
             lambda r, w: F.embedding_bag(r, w, torch.tensor([0, 2, 2]), mode=name))
    case("tn_embedding_bag(x[0], x[1], NULL, TN_BAG_SUM, x[2])", [i(5, 2, 3), f(5, 3), f(2, 3)],
         lambda r, w, s: F.embedding_bag(r, w, mode="sum", per_sample_weights=s))


def transforms():
    """Complex numbers are pairs (torch.view_as_real)."""
    real, pairs = torch.view_as_real, lambda x: torch.view_as_complex(x.contiguous())
    for norm in ("backward", "ortho", "forward"):
        ours = f"TN_FFT_{norm.upper()}"
        case(f"tn_fft(x[0], -1, 0, {ours})", [f(5, 2, 2)], lambda x: real(torch.fft.fft(pairs(x), dim=0, norm=norm)))
        case(f"tn_ifft(x[0], 4, -1, {ours})", [f(2, 6, 2)], lambda x: real(torch.fft.ifft(pairs(x), 4, norm=norm)))
        case(f"tn_rfft(x[0], 7, -1, {ours})", [f(2, 6)], lambda x: real(torch.fft.rfft(x, 7, norm=norm)))
        case(f"tn_irfft(x[0], -1, -1, {ours})", [f(2, 4, 2)], lambda x: torch.fft.irfft(pairs(x), norm=norm))
    case("tn_irfft(x[0], 5, 0, TN_FFT_BACKWARD)", [f(4, 2, 2)], lambda x: torch.fft.irfft(pairs(x), 5, 0))
    case("tn_fftn(x[0], NULL, NULL, 2, TN_FFT_BACKWARD)", [f(2, 3, 4, 2)], lambda x: real(torch.fft.fft2(pairs(x))))
    case("tn_ifftn(x[0], TN_DIMS(3, 2), TN_DIMS(2, 0), 2, TN_FFT_ORTHO)".replace("TN_DIMS(3, 2)", "(int64_t[]){3, 2}").replace(
         "TN_DIMS(2, 0)", "(int64_t[]){2, 0}"), [f(2, 3, 4, 2)],
         lambda x: real(torch.fft.ifftn(pairs(x), (3, 2), (2, 0), norm="ortho")))
    case("tn_rfftn(x[0], NULL, NULL, 3, TN_FFT_BACKWARD)", [f(2, 3, 4)], lambda x: real(torch.fft.rfftn(x)))
    case("tn_irfftn(x[0], NULL, NULL, 2, TN_FFT_BACKWARD)", [f(2, 3, 3, 2)], lambda x: torch.fft.irfft2(pairs(x)))
    case("tn_stft(x[0], 8, 3, x[1], true, false)", [f(2, 20), p(6)],
         lambda x, w: real(torch.stft(x, 8, 3, 6, w, return_complex=True)))
    case("tn_stft(x[0], 7, 2, NULL, false, true)", [f(12)], lambda x: real(torch.stft(
        x, 7, 2, window=torch.ones(7), center=False, normalized=True, return_complex=True)))
    case("tn_istft(x[0], 8, 3, x[1], true, false, 12)", [f(5, 5, 2), p(8)],
         lambda x, w: torch.istft(pairs(x), 8, 3, 8, w, length=12))


def special():
    case("tn_linalg_lstsq(x[0], x[1], -1)", [f(5, 3), f(5, 2)], lambda a, b: torch.linalg.pinv(a) @ b)
    case("tn_linalg_lstsq(x[0], x[1], -1)", [f(2, 3, 4), f(2, 3, 2)], lambda a, b: torch.linalg.pinv(a) @ b)
    case("tn_polygamma(2, x[0])", [f(4, 5)], lambda x: torch.polygamma(2, x))
    case("tn_polygamma(3, x[0])", [f(4, 5)], lambda x: torch.polygamma(3, x))
    case("tn_polygamma(7, x[0])", [p(4, 5)], lambda x: torch.polygamma(7, x))


def number(v):
    if v != v:
        return "NAN"
    if abs(v) == float("inf"):
        return "INFINITY" if v > 0 else "-INFINITY"
    return f"{float(v):.9g}"


def array(t):
    flat = t.reshape(-1).tolist()
    return "{" + ", ".join(number(v) for v in flat) + "}" if flat else "{0}"


def shape(t):
    return ", ".join(str(n) for n in t.shape) or "0"


def write():
    lines = ["/* functions.h — cases of functions.h with PyTorch's results and gradients. Generated by tools/pytorch/torch_functions.py "
             f"with PyTorch {torch.__version__.split('+')[0]}: do not edit. */", "// clang-format off"]
    rows = []
    for n, (expression, inputs, y, grads) in enumerate(CASES):
        lines.append(f"static tn_tensor *call_{n}(tn_tensor *const *x) {{ (void)x; return {expression}; }}")
        lines.append(f"static const double out_{n}[] = {array(y)};")
        for k, g in enumerate(grads):
            if g is not None:
                lines.append(f"static const double grad_{n}_{k}[] = {array(g)};")
        made = ", ".join(f"{{'{t.kind}', {t.below}, {len(t.shape)}, {{{', '.join(map(str, t.shape)) or '0'}}}, "
                         f"{f'grad_{n}_{k}' if grads[k] is not None else 'NULL'}}}" for k, t in enumerate(inputs))
        name = expression.replace('\\', '\\\\').replace('"', '\\"')
        rows.append(f'    {{"{name}", call_{n}, {len(inputs)}, {{{made or "{0}"}}}, {y.ndim}, {{{shape(y)}}}, out_{n}}},')
    OUT.write_text("\n".join([*lines, "static const golden_case golden_cases[] = {", *rows, "};", ""]), encoding="utf-8")
    print(f"{len(CASES)} cases")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    for part in (indexing, shapes, products, statistics, losses, images, pools, transforms, special):
        part()
    write()
