#!/usr/bin/env python3
"""torch_golden.py — values and gradients of our operations as PyTorch computes them, in f64: tests/golden/ops.json.

Needs torch (pip install torch); the file is committed, so neither builds nor checks do. tests/ops/test_golden.c runs every
case in f64 and f32 and compares. A case names an op of the table, its inputs (null: an optional one left out), its
attributes as a node holds them (i: integers, f: floats, in the order of the signature), the gradient given to the result
and what PyTorch gives back. Inputs have two decimals, so that they read back exactly as written; results have eight digits.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "ops.json"
CASES = []
MEAN, SUM, NONE = 0, 1, 2
REDUCTIONS = ["mean", "sum", "none"]
AUTO = "-inf"  # TN_AUTO

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)


def values(*shape, low=-2.0, high=2.0):
    """Random numbers with two decimals."""
    return torch.round((torch.rand(shape) * (high - low) + low) * 100) / 100


def listed(*items):
    return torch.tensor(items)


def classes(count, *shape):
    return torch.randint(0, count, shape)


def number(v):
    v = float(v)
    if math.isnan(v):
        return "nan"
    if math.isinf(v):
        return "inf" if v > 0 else "-inf"
    short = float(f"{v:.8g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def packed(t):
    if t is None:
        return None
    kind = "bool" if t.dtype == torch.bool else "float" if t.dtype.is_floating_point else "i64"
    return {"type": kind, "shape": list(t.shape), "data": [number(v) for v in t.detach().reshape(-1)]}


def case(op, inputs, compute, i=(), f=(), tol=1.0, constant=()):
    """compute(*inputs) is PyTorch's way; inputs that are floating and not in `constant` get gradients. tol widens the
    tolerance of f32, with the reason beside the case."""
    leaves = [t.clone().requires_grad_(t.dtype.is_floating_point and k not in constant) if t is not None else None
              for k, t in enumerate(inputs)]
    y = compute(*leaves)
    row = {"op": op, "i": [int(v) for v in i], "f": list(f), "in": [packed(t) for t in inputs], "out": packed(y)}
    if tol != 1.0:
        row["tol"] = tol
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    if wanted and y.requires_grad:
        dy = values(*y.shape, low=-1.0, high=1.0)
        grads = torch.autograd.grad(y, wanted, dy, allow_unused=True)
        found = iter(grads)
        row["dy"] = packed(dy)
        row["grads"] = [packed(next(found)) if t is not None and t.requires_grad else None for t in leaves]
    CASES.append(row)


# ---- products -------------------------------------------------------------------------------------------------------

def products():
    shapes = [((5,), (5,)), ((4,), (4, 3)), ((3, 4), (4,)), ((3, 5), (5, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 1)),
              ((3, 1, 2, 3), (2, 3, 2)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((3, 4), (5, 4, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))]
    for a, b in shapes:
        case("matmul", [values(*a), values(*b)], torch.matmul)
    case("mm", [values(7, 3), values(3, 5)], torch.mm)
    case("bmm", [values(3, 2, 4), values(3, 4, 3)], torch.bmm)
    case("mv", [values(4, 3), values(3)], torch.mv)
    case("dot", [values(9), values(9)], torch.dot)
    case("outer", [values(3), values(4)], torch.outer)
    case("linear", [values(5, 4), values(3, 4), values(3)], F.linear)
    case("linear", [values(2, 3, 4), values(2, 4), None], lambda x, w, b: F.linear(x, w))
    case("linear", [values(4), values(3, 4), values(3)], F.linear)
    case("addmm", [values(3), values(2, 4), values(4, 3)], lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2.0), f=[0.5, -2.0])
    case("addmm", [values(2, 1), values(2, 4), values(4, 3)], torch.addmm, f=[1, 1])
    case("baddbmm", [values(3, 2, 2), values(3, 2, 4), values(3, 4, 2)],
         lambda c, a, b: torch.baddbmm(c, a, b, beta=2.0, alpha=0.25), f=[2.0, 0.25])
    case("gemm", [values(4, 2), values(3, 4), values(3)], lambda a, b, c: 0.5 * a.T @ b.T + 2 * c, i=[1, 1], f=[0.5, 2.0])
    case("gemm", [values(2, 4), values(4, 3), None], lambda a, b, c: a @ b, i=[0, 0], f=[1.0, 1.0])
    case("gemv", [values(4, 2), values(4), values(2)], lambda a, x, y: 3 * a.T @ x - y, i=[1], f=[3.0, -1.0])
    case("gemv", [values(3, 2), values(2), None], lambda a, x, y: a @ x, i=[0], f=[1.0, 0.0])
    case("trace", [values(3, 5)], torch.trace)
    case("trace", [values(4, 2)], torch.trace)
    case("cosine_similarity", [values(3, 5), values(3, 5)], F.cosine_similarity, i=[1], f=[1e-8])
    case("cosine_similarity", [values(3, 5), values(3, 1)], lambda x, y: F.cosine_similarity(x, y, dim=0, eps=1e-6), i=[0], f=[1e-6])


# ---- between layers -------------------------------------------------------------------------------------------------

def activations():
    x = torch.cat([values(9, low=-4, high=4), listed(0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 30.0, -30.0, 0.01)]).reshape(3, 6)
    simple = {"relu": F.relu, "relu6": F.relu6, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "selu": F.selu,
              "sigmoid": torch.sigmoid, "silu": F.silu, "mish": F.mish, "logsigmoid": F.logsigmoid}
    for name, compute in simple.items():
        case(name, [x], compute)
    case("sigmoid", [listed(-800.0, 800.0, 88.0)], torch.sigmoid)
    case("hardtanh", [x], lambda x: F.hardtanh(x, -1.0, 3.0), f=[-1.0, 3.0])
    case("leaky_relu", [x], lambda x: F.leaky_relu(x, 0.1), f=[0.1])
    case("elu", [x], lambda x: F.elu(x, 1.5), f=[1.5])
    case("elu", [listed(100.0, 2000.0, -2000.0)], F.elu, f=[1.0])
    case("softplus", [x], F.softplus, f=[1.0, 20.0])
    case("softplus", [x], lambda x: F.softplus(x, 2.0, 5.0), f=[2.0, 5.0])
    case("prelu", [x, listed(0.25)], F.prelu)
    case("prelu", [values(2, 3, 2), values(3)], F.prelu)
    case("gelu", [x], F.gelu, i=[0])
    case("gelu", [x], lambda x: F.gelu(x, approximate="tanh"), i=[1])
    case("glu", [values(3, 4)], lambda x: F.glu(x, 1), i=[1])
    case("glu", [values(4, 3)], lambda x: F.glu(x, 0), i=[0])
    case("swiglu", [values(3, 4), values(3, 4)], lambda g, u: F.silu(g) * u)


# ---- softmax, normalisation -----------------------------------------------------------------------------------------

def norms():
    for name, compute in {"softmax": F.softmax, "log_softmax": F.log_softmax}.items():
        case(name, [values(3, 5)], lambda x: compute(x, 1), i=[1])
        case(name, [values(2, 3, 4) * 20], lambda x: compute(x, 1), i=[-2])
        case(name, [values(7)], lambda x: compute(x, 0), i=[0])
        case(name, [values(1)[0]], lambda x: compute(x, 0), i=[0])
    case("layer_norm", [values(3, 6), values(6), values(6)], lambda x, w, b: F.layer_norm(x, [6], w, b), i=[1, 6], f=[1e-5])
    case("layer_norm", [values(2, 3, 4), None, None], lambda x, w, b: F.layer_norm(x, [3, 4], eps=0.1), i=[2, 3, 4], f=[0.1])
    case("layer_norm", [values(2, 3, 4), values(4), None], lambda x, w, b: F.layer_norm(x, [4], w), i=[1, 4], f=[1e-5])
    case("rms_norm", [values(3, 6), values(6)], lambda x, w: F.rms_norm(x, [6], w, 1e-6), i=[1, 6], f=[1e-6])
    case("rms_norm", [values(2, 3, 4), None], lambda x, w: F.rms_norm(x, [3, 4], None, 0.01), i=[2, 3, 4], f=[0.01])
    case("group_norm", [values(2, 4, 3), values(4), values(4)], lambda x, w, b: F.group_norm(x, 2, w, b), i=[2], f=[1e-5])
    case("group_norm", [values(2, 6, 2, 2), None, None], lambda x, w, b: F.group_norm(x, 3, eps=0.1), i=[3], f=[0.1])
    case("instance_norm", [values(2, 3, 5), values(3), values(3)], lambda x, w, b: F.instance_norm(x, weight=w, bias=b), f=[1e-5])
    train = lambda x, m, v, w, b: F.batch_norm(x, None, None, w, b, True)
    case("batch_norm", [values(5, 3), None, None, values(3), values(3)], train, i=[1], f=[1e-5])
    case("batch_norm", [values(2, 3, 2, 2), None, None, None, None], train, i=[1], f=[1e-5])
    fixed = lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False, eps=0.01)
    case("batch_norm", [values(4, 3), values(3), values(3, low=0.5, high=2), values(3), values(3)], fixed, i=[0], f=[0.01], constant=[1, 2])
    case("batch_norm", [values(2, 3, 3), values(3), values(3, low=0.5, high=2), None, None], fixed, i=[0], f=[0.01], constant=[1, 2])
    case("batch_mean", [values(3, 2, 4)], lambda x: x.mean((0, 2)))
    case("batch_var", [values(3, 2, 4)], lambda x: x.var((0, 2), correction=0))


# ---- convolution, pooling -------------------------------------------------------------------------------------------

def pair(v):
    return list(v) if isinstance(v, tuple) else [v, v]


def conv2d(x, w, bias, stride=1, padding=0, dilation=1, groups=1):
    i = pair(stride) + pair(padding) + pair(dilation) + [groups]
    case("conv2d", [values(*x), values(*w), values(w[0]) if bias else None],
         lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, groups), i=i)


def transposed(x, w, bias, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    i = pair(stride) + pair(padding) + pair(output_padding) + [groups] + pair(dilation)
    case("conv_transpose2d", [values(*x), values(*w), values(w[1] * groups) if bias else None],
         lambda x, w, b: F.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation), i=i)


def convolutions():
    conv2d((2, 2, 4, 5), (3, 2, 3, 2), True)
    conv2d((1, 3, 5, 4), (2, 3, 3, 3), True, stride=2, padding=1)
    conv2d((2, 2, 5, 6), (2, 2, 2, 2), False, stride=(1, 2), padding=(1, 0), dilation=(2, 1))
    conv2d((2, 4, 3, 3), (2, 2, 2, 2), True, groups=2)
    conv2d((2, 3, 4, 4), (3, 1, 3, 3), True, padding=1, groups=3)
    conv2d((1, 2, 3, 4), (4, 1, 2, 2), False, groups=2)
    conv2d((2, 3, 3, 4), (2, 3, 1, 1), True)
    conv2d((1, 3, 5, 4), (2, 3, 1, 1), False, stride=2)
    conv2d((2, 4, 4), (3, 2, 2, 2), True)
    case("conv1d", [values(2, 3, 7), values(2, 3, 3), values(2)], lambda x, w, b: F.conv1d(x, w, b, 2, 1), i=[2, 1, 1, 1])
    case("conv1d", [values(4, 6), values(4, 2, 2), None], lambda x, w, b: F.conv1d(x, w, b, 1, 0, 2, 2), i=[1, 0, 2, 2])
    transposed((2, 2, 3, 2), (2, 3, 2, 2), True)
    transposed((1, 2, 2, 3), (2, 2, 3, 3), True, stride=2, padding=1, output_padding=1)
    transposed((1, 4, 2, 2), (4, 1, 2, 3), False, stride=(2, 3), groups=2, dilation=(2, 1))
    transposed((1, 1, 2, 2), (1, 2, 2, 2), True, padding=1, output_padding=1, dilation=2)
    transposed((2, 3, 2), (2, 1, 2, 2), False)


def pools():
    def largest(x, k, s, p, d, ceil):
        case("max_pool2d", [x], lambda x: F.max_pool2d(x, tuple(k), tuple(s) if any(s) else None, tuple(p), tuple(d), bool(ceil)),
             i=k + s + p + d + [ceil])
    largest(values(2, 2, 4, 5), [2, 2], [0, 0], [0, 0], [1, 1], 0)
    largest(values(1, 2, 5, 6), [3, 2], [2, 1], [1, 1], [1, 1], 0)
    largest(values(1, 1, 6, 6), [2, 2], [2, 2], [0, 0], [2, 3], 0)
    largest(values(1, 2, 5, 5), [2, 2], [2, 2], [0, 0], [1, 1], 1)
    largest(values(1, 1, 6, 7), [3, 3], [3, 2], [1, 1], [1, 1], 1)
    largest(torch.relu(values(2, 4, 4)), [2, 2], [1, 1], [0, 0], [1, 1], 0)

    def mean(x, k, s, p, ceil=0, exclude=0, divisor=0):
        case("avg_pool2d", [x], lambda x: F.avg_pool2d(x, tuple(k), tuple(s) if any(s) else None, tuple(p), bool(ceil), not exclude,
                                                       divisor or None), i=k + s + p + [ceil, 1 - exclude, divisor])
    mean(values(2, 2, 4, 5), [2, 2], [0, 0], [0, 0])
    mean(values(1, 2, 5, 4), [3, 2], [2, 1], [1, 1])
    mean(values(1, 2, 5, 4), [3, 2], [2, 1], [1, 1], exclude=1)
    mean(values(1, 1, 6, 7), [3, 3], [2, 2], [1, 0], ceil=1)
    mean(values(1, 1, 6, 6), [3, 3], [2, 3], [1, 1], ceil=1, exclude=1)
    mean(values(2, 5, 5), [2, 2], [2, 2], [0, 0], divisor=3)
    for size in [(1, 1), (2, 3), (3, 2), (4, 5)]:
        case("adaptive_avg_pool2d", [values(2, 2, 4, 6)], lambda x: F.adaptive_avg_pool2d(x, size), i=size)
    case("adaptive_avg_pool2d", [values(2, 5, 3)], lambda x: F.adaptive_avg_pool2d(x, (2, 2)), i=[2, 2])


# ---- reading and mixing ---------------------------------------------------------------------------------------------

def turned(x, cos, sin, interleaved):
    half = cos.shape[-1]
    a, b = (x[..., 0:2 * half:2], x[..., 1:2 * half:2]) if interleaved else (x[..., :half], x[..., half:2 * half])
    first, second = a * cos - b * sin, b * cos + a * sin
    y = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return torch.cat([y, x[..., 2 * half:]], -1)


def attention():
    attend = F.scaled_dot_product_attention
    case("scaled_dot_product_attention", [values(2, 2, 3, 4), values(2, 2, 5, 4), values(2, 2, 5, 3), None],
         lambda q, k, v, m: attend(q, k, v), i=[0], f=[AUTO])
    case("scaled_dot_product_attention", [values(1, 2, 4, 3), values(1, 2, 4, 3), values(1, 2, 4, 3), None],
         lambda q, k, v, m: attend(q, k, v, is_causal=True), i=[1], f=[AUTO])
    case("scaled_dot_product_attention", [values(3, 2), values(4, 2), values(4, 2), values(3, 4)],
         lambda q, k, v, m: attend(q, k, v, m, scale=0.3), i=[0], f=[0.3])
    case("scaled_dot_product_attention", [values(2, 4, 3, 2), values(2, 2, 4, 2), values(2, 2, 4, 2), None],
         lambda q, k, v, m: attend(q, k, v, enable_gqa=True), i=[0], f=[AUTO])
    case("scaled_dot_product_attention", [values(1, 4, 2, 2), values(1, 2, 3, 2), values(1, 2, 3, 2), values(1, 4, 2, 3)],
         lambda q, k, v, m: attend(q, k, v, m, enable_gqa=True), i=[0], f=[AUTO])
    see = torch.rand(2, 1, 3, 4) < 0.6
    see[0, 0, 1] = False
    case("scaled_dot_product_attention", [values(2, 2, 3, 2), values(2, 2, 4, 2), values(2, 2, 4, 2), see],
         lambda q, k, v, m: attend(q, k, v, m), i=[0], f=[AUTO])


def readers():
    case("embedding", [classes(5, 2, 3), values(5, 4)], lambda i, w: F.embedding(i, w))
    case("embedding", [torch.tensor(3), values(5, 2)], lambda i, w: F.embedding(i, w))
    case("embedding", [torch.tensor([1, 1, 4, 1, 0]), values(5, 3)], lambda i, w: F.embedding(i, w))
    angle = values(3, 2, low=-3, high=3)
    for interleaved in (0, 1):
        for width in (4, 6):
            case("rope", [values(2, 3, width), torch.round(angle.cos() * 100) / 100, torch.round(angle.sin() * 100) / 100],
                 lambda x, c, s: turned(x, c, s, interleaved), i=[interleaved])
    attention()


# ---- losses ---------------------------------------------------------------------------------------------------------

def distances():
    x, t = values(3, 4), values(3, 4)
    x[0, 0] = t[0, 0]
    x[1, 1] = t[1, 1] + 1
    for r, name in enumerate(REDUCTIONS):
        case("mse_loss", [x, t], lambda x, t: F.mse_loss(x, t, reduction=name), i=[r])
        case("l1_loss", [x, t], lambda x, t: F.l1_loss(x, t, reduction=name), i=[r])
    case("smooth_l1_loss", [x, t], F.smooth_l1_loss, i=[MEAN], f=[1.0])
    case("smooth_l1_loss", [x, t], lambda x, t: F.smooth_l1_loss(x, t, reduction="none", beta=0.5), i=[NONE], f=[0.5])
    case("huber_loss", [x, t], F.huber_loss, i=[MEAN], f=[1.0])
    case("huber_loss", [x, t], lambda x, t: F.huber_loss(x, t, reduction="sum", delta=0.3), i=[SUM], f=[0.3])
    logs, p = torch.round(F.log_softmax(x, 1) * 100) / 100, torch.round(F.softmax(t, 1) * 100) / 100
    case("kl_div", [logs, p], lambda x, t: F.kl_div(x, t, reduction="mean"), i=[MEAN, 0])
    case("kl_div", [logs, p], lambda x, t: F.kl_div(x, t, reduction="none"), i=[NONE, 0])
    case("kl_div", [logs, torch.round(F.log_softmax(t, 1) * 100) / 100],
         lambda x, t: F.kl_div(x, t, reduction="sum", log_target=True), i=[SUM, 1])


def binary():
    p, t, w = values(2, 5, low=0.05, high=0.95), values(2, 5, low=0, high=1), values(2, 5, low=0.5, high=2)
    case("binary_cross_entropy", [p, t, None], lambda x, t, w: F.binary_cross_entropy(x, t), i=[MEAN])
    case("binary_cross_entropy", [p, t, w], lambda x, t, w: F.binary_cross_entropy(x, t, w, reduction="none"), i=[NONE], constant=[2])
    # f32 has a different distance from 0 and 1, and the clamped gradient there is 1e12: only values are compared.
    case("binary_cross_entropy", [listed(0.0, 1.0, 1.0), listed(0.0, 1.0, 0.0), None],
         lambda x, t, w: F.binary_cross_entropy(x, t, reduction="none"), i=[NONE], constant=[0, 1])
    x = torch.cat([values(7), listed(0.0, 90.0, -90.0)]).reshape(2, 5)
    logits = F.binary_cross_entropy_with_logits
    case("binary_cross_entropy_with_logits", [x, t, None, None], lambda x, t, w, p: logits(x, t), i=[MEAN])
    case("binary_cross_entropy_with_logits", [x, t, w, values(5, low=0.5, high=3)],
         lambda x, t, w, p: logits(x, t, w, pos_weight=p, reduction="sum"), i=[SUM], constant=[2, 3])


def classifiers():
    def both(x, t, weight=None, reduction=MEAN, ignore=-100, smoothing=None):
        name, i = REDUCTIONS[reduction], [reduction, ignore]
        if smoothing is None:
            case("nll_loss", [x, t, weight], lambda x, t, w: F.nll_loss(x, t, w, reduction=name, ignore_index=ignore), i=i, constant=[2])
        case("cross_entropy", [x, t, weight],
             lambda x, t, w: F.cross_entropy(x, t, w, reduction=name, ignore_index=ignore, label_smoothing=smoothing or 0.0),
             i=i, f=[smoothing or 0.0], constant=[2])
    weight = values(4, low=0.5, high=2)
    some = torch.tensor([1, -100, 3])
    both(values(5, 4), classes(4, 5))
    both(values(5, 4), classes(4, 5), weight, SUM)
    both(values(3, 4), some, weight, NONE)
    both(values(3, 4), some)
    both(values(3, 4), torch.tensor([0, 2, 1]), weight, MEAN, ignore=0)
    both(values(2, 4, 3), classes(4, 2, 3), weight, MEAN, ignore=2)
    both(values(4), torch.tensor(2))
    both(values(3, 4), some, None, MEAN, smoothing=0.1)
    both(values(3, 4), some, weight, MEAN, smoothing=0.2)
    both(values(2, 4, 2), classes(4, 2, 2), weight, NONE, smoothing=0.3)
    both(values(3, 4) * 100, classes(4, 3))


# ---- factorizations: all results of one in the last dimension, with our signs ---------------------------------------

def signs_of_columns(x):
    """1 or -1 a column: that of the element of the greatest size."""
    return torch.gather(x, -2, x.abs().argmax(-2, keepdim=True)).sign().detach()


def qr(x):
    q, r = torch.linalg.qr(x)
    sign = r.diagonal(dim1=-2, dim2=-1).sign().detach()
    return torch.cat([(q * sign.unsqueeze(-2)).flatten(-2), (r * sign.unsqueeze(-1)).flatten(-2)], -1)


def eigh(x):
    w, v = torch.linalg.eigh(x)
    return torch.cat([w, (v * signs_of_columns(v)).flatten(-2)], -1)


def svd(x):
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    sign = signs_of_columns(u)
    return torch.cat([(u * sign).flatten(-2), s, (vh * sign.transpose(-2, -1)).flatten(-2)], -1)


def lu(x):
    p, low, u = torch.linalg.lu(x)
    m, n = x.shape[-2:]
    both = torch.zeros_like(x)
    both = both + torch.nn.functional.pad(low.tril(-1), (0, n - low.shape[-1]))
    both = both + torch.nn.functional.pad(u, (0, 0, 0, m - u.shape[-2]))
    return torch.cat([both.flatten(-2), p.flatten(-2)], -1)


def determinants(x):
    sign, size = torch.linalg.slogdet(x)
    return torch.stack([torch.linalg.det(x), sign, size], -1)


def eigvals(x):
    """By ascending real part, of a pair the positive imaginary part first."""
    w = torch.linalg.eigvals(x)
    order = (w.detach().real * (1 + 1e-9) - w.detach().imag * 1e-9).argsort(-1)
    return torch.view_as_real(w.gather(-1, order))


def factorizations():
    def good(*shape):  # well-conditioned
        return values(*shape, low=-1, high=1) + 3 * torch.eye(shape[-2], shape[-1])

    for shape in ((1, 1), (4, 4), (2, 3, 3)):
        lower = values(*shape, low=-1, high=1)
        case("linalg_cholesky", [lower + lower.transpose(-2, -1) + 5 * torch.eye(shape[-1])], torch.linalg.cholesky, tol=4)
        case("linalg_inv", [good(*shape)], torch.linalg.inv, tol=4)
        case("linalg_det", [good(*shape)], torch.linalg.det, tol=4)
        case("linalg_determinants", [good(*shape)], determinants, tol=4)
        case("linalg_eigvalsh", [values(*shape)], torch.linalg.eigvalsh, tol=4)
        case("linalg_eigh_packed", [values(*shape)], eigh, tol=40)
    case("linalg_solve", [good(3, 3), values(3)], torch.linalg.solve, tol=4)
    case("linalg_solve", [good(2, 3, 3), values(2, 3)], torch.linalg.solve, tol=4)
    case("linalg_solve", [good(3, 3), values(2, 3, 4)], torch.linalg.solve, tol=4)
    for upper in (True, False):
        case("linalg_solve_triangular", [good(4, 4), values(2, 4, 3)],
             lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper), i=[upper], tol=4)
    for shape in ((3, 3), (5, 3), (2, 4, 2)):
        case("linalg_qr_packed", [good(*shape)], qr, tol=4)
        case("linalg_svd_packed", [good(*shape)], svd, tol=40)
        case("linalg_svdvals", [good(*shape)], torch.linalg.svdvals, tol=4)
    case("linalg_svd_packed", [good(3, 5)], svd, tol=40)
    for shape in ((3, 3), (5, 3), (2, 2, 4)):
        case("linalg_lu_packed", [values(*shape, low=-1, high=1)], lu, tol=40)
    for shape in ((1, 1), (4, 4), (2, 5, 5)):
        case("linalg_eigvals", [values(*shape)], eigvals, tol=40)


def main():
    for part in (products, activations, norms, convolutions, pools, readers, distances, binary, classifiers,
                 factorizations):
        part()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    made = f"tools/pytorch/torch_golden.py, torch {torch.__version__}, f64, {len(CASES)} cases"
    rows = ",\n".join(json.dumps(c, separators=(",", ":")) for c in CASES)
    OUT.write_text(f'{{"made":"{made}","cases":[\n{rows}\n]}}\n', encoding="utf-8")
    print(f"{OUT}: {len(CASES)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
