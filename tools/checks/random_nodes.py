"""random_nodes.py BUILD [--count N] [--seed N] [--verbose] — random ONNX nodes and short graphs, here and in ONNX Runtime.

A graph is one node of a random operator with random attributes, often with nodes before and behind it that change its
operands' layout. Shapes have extents of 0 and 1. Inputs are given or are constants of the model; each graph runs four
times, with other numbers, so that replays and what is prepared of constants are compared, too. A graph that ONNX Runtime
refuses is not counted, one that only Trunnion refuses is counted by message, and one at which ONNX Runtime itself aborts
is skipped. Where the two differ, a result that the
onnx package's reference implementation confirms is right, too. Floats agree within 1e-4 of a result's
largest number, all else exactly.

A graph is made of its seed: --seed S --count 1 --verbose shows it. Needs the packages onnx, onnxruntime and numpy.
"""

import argparse
import collections
import os
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[0] = str(ROOT / "tools")
from opinfo.process import in_a_process, in_peers_python  # noqa: E402

BLOCK, RUNS = 50, 4
EXTENTS = [0, 1, 1, 2, 3, 4, 5, 8, 17]


class Skip(Exception):
    """The operator has no sense for these numbers."""


class Graph:
    def __init__(self, seed):
        import numpy as np

        self.np, self.r, self.n = np, random.Random(seed), np.random.default_rng(seed)
        self.nodes, self.inputs, self.constants, self.shapes = [], {}, {}, {}
        self.opset = self.r.choice([11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22])
        self.whole = set()  # names whose values are indices and so on, which stay as they are
        self.ranges = {}  # least and greatest number of some names

    # ---- operands ----------------------------------------------------------------------------------------------------

    def shape(self, low=0, high=4, extents=None):
        return [self.r.choice(extents or EXTENTS) for _ in range(self.r.randint(low, high))]

    def numbers(self, shape, dtype="f4", between=None):
        np = self.np
        if between:
            return np.array(self.n.integers(between[0], between[1] + 1, shape)).astype(dtype)
        if dtype == "?":
            return self.n.random(shape) < 0.5 if shape else np.array(self.n.random() < 0.5)
        low = 0 if np.dtype(dtype).kind == "u" else -8
        v = self.n.integers(low, 9, shape)
        if np.dtype(dtype).kind == "f":
            v = v / self.r.choice([1, 2, 4, 3])
        return np.array(v).astype(dtype)

    def tensor(self, shape, dtype="f4", value=None, constant=None):
        """The name of a new input or constant."""
        name = f"x{len(self.inputs) + len(self.constants)}"
        v = self.numbers(shape, dtype) if value is None else self.np.array(value)
        self.shapes[name] = list(v.shape)
        if value is not None:
            self.whole.add(name)
        if constant is None:
            constant = self.r.random() < (0.8 if value is not None else 0.25)
        (self.constants if constant else self.inputs)[name] = v
        return name

    def bytes_between(self, between, shape, dtype, constant=False):
        name = self.tensor(shape, dtype, constant=constant)
        self.ranges[name] = between
        (self.constants if constant else self.inputs)[name] = self.numbers(shape, dtype, between)
        return name

    def all_bytes(self, dtype):
        return self.np.iinfo(dtype).min, self.np.iinfo(dtype).max

    def ints(self, values):
        return self.tensor(None, "i8", self.np.array(values, "i8"))

    def node(self, op, inputs, outputs=1, **attributes):
        from onnx import helper as h

        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(h.make_node(op, inputs, names, **attributes))
        return names

    def turned(self, x):
        """Sometimes another layout or origin of the same shape before the operator."""
        shape, k = self.shapes[x], self.r.random()
        if x in self.whole or k > 0.35 or not shape:
            return x
        if k < 0.15 and len(shape) > 1:
            perm = list(range(len(shape)))
            self.r.shuffle(perm)
            back = self.node("Transpose", [x], perm=perm)[0]
            inverse = [perm.index(i) for i in range(len(perm))]
            y = self.node("Transpose", [back], perm=inverse)[0]
            source = self.inputs.get(x)
            if source is not None:  # an input that is declared transposed
                self.nodes.pop()
                self.nodes.pop()
                self.inputs[x] = self.np.ascontiguousarray(source.transpose(perm))
                y = self.node("Transpose", [x], perm=inverse)[0]
        elif k < 0.25:
            y = self.node("Identity", [x])[0]
        else:
            dtype = (self.inputs if x in self.inputs else self.constants)[x].dtype
            if dtype.kind != "f":
                return x
            y = self.node("Neg", [x])[0]
        self.shapes[y] = shape
        return y

    def dtype(self, of="f4 f4 f4 f8 i4 i8"):
        return self.r.choice(of.split())

    # ---- operators ---------------------------------------------------------------------------------------------------

    def axis(self, rank):
        return self.r.randrange(-rank, rank) if rank else 0

    def op_elementwise(self):
        r = self.r
        op = r.choice("Abs Neg Ceil Floor Round Sign Relu Sqrt Exp Erf Sigmoid Tanh Softplus Softsign Sin Cos Atan Elu Selu "
                      "LeakyRelu HardSigmoid ThresholdedRelu Celu HardSwish IsNaN IsInf Not Identity Shrink Mish Gelu "
                      "Reciprocal".split())
        a = {}
        if op in ("Elu", "LeakyRelu", "ThresholdedRelu", "Celu") and r.random() < 0.6:
            a["alpha"] = r.choice([0.5, 0.25, 1.5])
        if op == "HardSigmoid" and r.random() < 0.6:
            a |= {"alpha": 0.5, "beta": 0.25}
        if op == "Shrink":
            a |= {"lambd": r.choice([0.5, 1.0]), "bias": r.choice([0.0, 0.5])}
        if op == "IsInf":
            a |= {"detect_negative": r.choice([0, 1])}
        dtype = "?" if op == "Not" else self.dtype("f4 f4 i4 i8 i1" if op in ("Abs", "Neg", "Sign", "Relu") else "f4")
        return self.node(op, [self.turned(self.tensor(self.shape(), dtype))], **a)

    def pair(self, dtype):
        shape = self.shape()
        other = [e if self.r.random() < 0.7 else 1 for e in shape]
        other = other[self.r.randint(0, len(other)):] if self.r.random() < 0.4 else other
        names = [self.turned(self.tensor(shape, dtype)), self.turned(self.tensor(other, dtype))]
        self.r.shuffle(names)
        return names

    def op_binary(self):
        op = self.r.choice("Add Sub Mul Div Max Min Equal Greater Less GreaterOrEqual LessOrEqual And Or Xor Mod Sum Mean PRelu "
                           "Where Pow".split())
        if op in ("And", "Or", "Xor"):
            return self.node(op, self.pair("?"))
        if op == "Where":
            x, y = self.pair(self.dtype())
            return self.node(op, [self.tensor(self.shapes[x], "?"), x, y])
        if op == "Pow":
            x, y = self.pair("f4")
            return self.node(op, [self.node("Abs", [x])[0], y])
        if op == "Mod":
            d = self.dtype("i4 i8 f4")
            x = self.tensor(self.shape(), d)
            return self.node(op, [x, self.tensor([], d, self.np.array(self.r.choice([-3, 3, 5]), d))],
                             fmod=1 if d == "f4" else self.r.choice([0, 1]))
        if op == "Div":
            d = self.dtype()
            x = self.tensor(self.shape(), d)
            return self.node(op, [x, self.tensor([], d, self.np.array(self.r.choice([-3, 3, 2]), d))])
        x, y = self.pair(self.dtype("f4 f4 f8 i4 i8" if op not in ("Sum", "Mean", "PRelu") else "f4"))
        if op == "PRelu" and len(self.shapes[x]) < len(self.shapes[y]):
            x, y = y, x
        return self.node(op, [x, y])

    def op_clip(self):
        d = self.dtype("f4 i4 i8 i1 u1")
        bounds = [self.tensor([], d, self.np.array(v, d)) if self.r.random() < 0.7 else "" for v in (1, 4)]
        while bounds and not bounds[-1]:
            bounds.pop()
        return self.node("Clip", [self.turned(self.tensor(self.shape(), d)), *bounds])

    def op_cast(self):
        from onnx import TensorProto as T

        to = self.r.choice([T.FLOAT, T.DOUBLE, T.INT32, T.INT64, T.INT8, T.UINT8, T.BOOL, T.FLOAT16, T.INT16])
        return self.node("Cast", [self.turned(self.tensor(self.shape(), self.dtype("f4 f8 i4 i8 i1 u1 ? f2")))], to=to)

    def op_slice(self):
        r = self.r
        shape = self.shape(1)
        axes = r.sample(range(len(shape)), r.randint(1, len(shape)))
        far = [2**31, -2**31, 2**62, -2**62]
        at = lambda e: r.randint(-e - 2, e + 2) if r.random() < 0.8 else r.choice(far)
        start, stop = [[at(shape[a]) for a in axes] for _ in range(2)]
        steps = [r.choice([1, 1, 2, 3, -1, -1, -2, -3]) for _ in axes]
        axes = [a - len(shape) if r.random() < 0.3 else a for a in axes]
        kind = r.choice(["i8", "i8", "i4"])
        if kind == "i4":
            start, stop = [[max(min(v, 2**31 - 1), -2**31) for v in vs] for vs in (start, stop)]
        whole = lambda v: self.tensor(None, kind, self.np.array(v, kind))
        return self.node("Slice", [self.turned(self.tensor(shape, self.dtype())), *map(whole, (start, stop, axes, steps))])

    def op_pad(self):
        r = self.r
        mode = r.choice(["constant", "reflect", "edge", *(["wrap"] if self.opset >= 19 else [])])
        shape = self.shape(1, 4, None if mode == "constant" else [2, 3, 4, 5])
        pads = [r.randint(-1, 2) if mode == "constant" else r.randint(0, 1) for _ in range(2 * len(shape))]
        d = self.dtype("f4 f4 i4 i8 f8")
        more = [self.tensor([], d, self.np.array(3, d))] if mode == "constant" and r.random() < 0.5 else []
        return self.node("Pad", [self.turned(self.tensor(shape, d)), self.ints(pads), *more], mode=mode)

    def op_reduce(self):
        r = self.r
        op = "Reduce" + r.choice("Sum Mean Max Min Prod L1 L2 SumSquare LogSum LogSumExp".split())
        shape = self.shape()
        axes = r.sample(range(len(shape)), r.randint(0, len(shape)))
        axes = [a - len(shape) if r.random() < 0.3 else a for a in axes]
        x = self.turned(self.tensor(shape, self.dtype("f4 f4 f8 i4 i8" if op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd") else "f4")))
        if op == "ReduceLogSum":
            x = self.node("Abs", [x])[0]
        a = {"keepdims": r.choice([0, 1])}
        if self.opset >= (13 if op == "ReduceSum" else 18):
            if r.random() < 0.3:
                a["noop_with_empty_axes"] = r.choice([0, 1])
            given = [self.ints(axes)] if axes or r.random() < 0.3 else []
            return self.node(op, [x, *given], **a)
        if axes:
            a["axes"] = axes
        return self.node(op, [x], **a)

    def op_arg(self):
        shape = self.shape(1, 4, [1, 2, 3, 5, 8])
        a = {"axis": self.axis(len(shape)), "keepdims": self.r.choice([0, 1])}
        if self.opset >= 12:
            a["select_last_index"] = self.r.choice([0, 1])
        return self.node(self.r.choice(["ArgMax", "ArgMin"]), [self.turned(self.tensor(shape, self.dtype("f4 i4")))], **a)

    def op_topk(self):
        shape = self.shape(1, 4, [1, 2, 3, 5, 8])
        axis = self.axis(len(shape))
        x = self.tensor(shape, value=self.n.permutation(_count(shape)).reshape(shape).astype("f4"), constant=False)
        return self.node("TopK", [x, self.ints([self.r.randint(0, shape[axis])])], 2, axis=axis,
                         largest=self.r.choice([0, 1]))

    def op_cumsum(self):
        shape = self.shape(1)
        return self.node("CumSum", [self.turned(self.tensor(shape, self.dtype())),
                                    self.tensor([], "i8", self.np.array(self.axis(len(shape)), "i8"))],
                         exclusive=self.r.choice([0, 1]), reverse=self.r.choice([0, 1]))

    def op_softmax(self):
        shape = self.shape(1, 4)
        return self.node(self.r.choice(["Softmax", "LogSoftmax", "Hardmax"]), [self.turned(self.tensor(shape))],
                         **({"axis": self.axis(len(shape))} if self.r.random() < 0.8 else {}))

    def op_gather(self):
        r = self.r
        shape = self.shape(1, 3, [1, 2, 3, 5, 8])
        axis = self.axis(len(shape))
        n = shape[axis]
        x = self.turned(self.tensor(shape, self.dtype()))
        kind = r.choice(["Gather", "GatherElements", "GatherND"])
        index_type = r.choice(["i4", "i8"])
        if kind == "Gather":
            index = self.n.integers(-n, n, self.shape(0, 2)).astype(index_type)
            return self.node("Gather", [x, self.tensor(None, value=index)], axis=axis)
        if kind == "GatherElements":
            size = list(shape)
            size[axis] = r.choice([0, 1, 2, 4])
            return self.node(kind, [x, self.tensor(None, value=self.n.integers(-n, n, size).astype(index_type))], axis=axis)
        batch = r.randint(0, len(shape) - 1) if self.opset >= 12 else 0
        k = r.randint(1, len(shape) - batch)
        size = shape[:batch] + self.shape(0, 2, [1, 2, 3])
        index = self.np.stack([self.n.integers(-shape[batch + i], shape[batch + i], size) for i in range(k)], -1)
        return self.node(kind, [x, self.tensor(None, value=index.astype("i8"))], **({"batch_dims": batch} if batch else {}))

    def op_scatter(self):
        r = self.r
        shape = self.shape(1, 3, [1, 2, 3, 5, 8])
        d = self.dtype("f4 i4 i8")
        x = self.turned(self.tensor(shape, d))
        reductions = ["none"] + (["add", "mul"] if self.opset >= 16 else []) + (["max", "min"] if self.opset >= 18 else [])
        a = {"reduction": r.choice(reductions)} if self.opset >= 16 else {}
        if r.random() < 0.5:
            axis = self.axis(len(shape))
            size = [min(e, r.choice([1, 2, 3])) for e in shape]
            n = shape[axis]
            index = self.np.argsort(self.n.random([*size[:axis % len(shape)], n, *size[axis % len(shape) + 1:]]), axis)
            index = self.np.take(index, range(size[axis]), axis) - r.choice([0, n])
            return self.node("ScatterElements", [x, self.tensor(None, value=index.astype("i8")),
                                                 self.turned(self.tensor(size, d))], axis=axis, **a)
        k = r.randint(1, len(shape))
        places = self.n.permutation(_count(shape[:k]))[:r.randint(0, 4)]
        index = self.np.stack(self.np.unravel_index(places, shape[:k]), -1).reshape(len(places), k)
        return self.node("ScatterND", [x, self.tensor(None, value=index.astype("i8")),
                                       self.turned(self.tensor([len(places), *shape[k:]], d))], **a)

    def windows(self, rank, extents):
        r = self.r
        kernel = [r.choice([1, 2, 3]) for _ in range(rank)]
        a = {"kernel_shape": kernel}
        if r.random() < 0.6:
            a["strides"] = [r.choice([1, 2, 3]) for _ in range(rank)]
        if r.random() < 0.4:
            a["dilations"] = [r.choice([1, 2]) for _ in range(rank)]
        if r.random() < 0.25:
            a["auto_pad"] = r.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
            if a["auto_pad"] != "VALID":
                a.pop("dilations", None)
        elif r.random() < 0.7:
            a["pads"] = [r.randint(0, k - 1) for k in kernel * 2]
        return a

    def op_conv(self):
        r = self.r
        rank = r.choice([1, 2, 2, 2, 3])
        sides = [r.choice([4, 5, 7, 8, 12]) for _ in range(rank)]
        groups = r.choice([1, 1, 2, 3, 4])
        per, out = r.choice([1, 2, 4]), groups * r.choice([1, 2, 4])
        a = self.windows(rank, sides)
        x = self.turned(self.tensor([r.choice([1, 1, 2, 3]), groups * per, *sides]))
        constant = r.random() < 0.6
        if r.random() < 0.3:
            a["output_padding"] = [r.randint(0, 1) if s > 1 else 0 for s in a.get("strides", [1] * rank)]
            if "auto_pad" in a:
                raise Skip
            if not any(a["output_padding"]) or r.random() < 0.5:
                del a["output_padding"]
            w = self.tensor([groups * per, out // groups, *a["kernel_shape"]], constant=constant)
            bias = [self.tensor([out], constant=constant)] if r.random() < 0.5 else []
            return self.node("ConvTranspose", [x, w, *bias], group=groups, **a)
        w = self.tensor([out, per, *a["kernel_shape"]], constant=constant)
        bias = [self.tensor([out], constant=constant)] if r.random() < 0.5 else []
        y = self.node("Conv", [x, w, *bias], group=groups, **a)
        if r.random() < 0.4:
            y = self.node(r.choice(["Relu", "Sigmoid", "HardSwish"]) if self.opset >= 14 else "Relu", y)
        return y

    def op_pool(self):
        r = self.r
        rank = r.choice([1, 2, 2, 2, 3])
        op = r.choice(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
        x = self.turned(self.tensor([r.choice([1, 2]), r.choice([1, 3]), *[r.choice([4, 5, 7, 8]) for _ in range(rank)]]))
        if op[:6] == "Global":
            return self.node(op, [x])
        a = self.windows(rank, None)
        if op == "LpPool":
            if self.opset < 18:
                a.pop("dilations", None)
            return self.node(op, [x], p=r.choice([1, 2, 3]), **a)
        a["ceil_mode"] = r.choice([0, 0, 1])
        if op == "AveragePool":
            a["count_include_pad"] = r.choice([0, 1])
            if self.opset < 19:
                a.pop("dilations", None)
            return self.node(op, [x], **a)
        return self.node(op, [x], r.choice([1, 1, 2]), **a)

    def op_product(self):
        r = self.r
        op = r.choice(["MatMul", "MatMul", "Gemm", "MatMulInteger", "Einsum"])
        m, k, n = [r.choice([0, 1, 2, 3, 8, 17]) for _ in range(3)]
        if op == "Gemm":
            ta, tb = r.choice([0, 1]), r.choice([0, 1])
            more = [self.tensor(r.choice([[m, n], [n], [1], [], [m, 1]]))] if r.random() < 0.7 else []
            return self.node(op, [self.turned(self.tensor([k, m] if ta else [m, k])),
                                  self.turned(self.tensor([n, k] if tb else [k, n])), *more],
                             transA=ta, transB=tb, alpha=r.choice([1.0, 0.5]), beta=r.choice([1.0, 2.0]))
        if op == "Einsum":
            return self.node(op, [self.turned(self.tensor([m, k])), self.turned(self.tensor([k, n]))],
                             equation=r.choice(["ij,jk->ik", "ij,jk->ki", "ij,jk", "ij,jk->i", "ab,bc->b", "ij,jk->"]))
        batch = self.shape(0, 2, [1, 2, 3])
        other = [e if r.random() < 0.6 else 1 for e in batch]
        if op == "MatMulInteger":
            zero = [self.tensor([], value=self.np.array(v, t)) for v, t in ((3, "u1"), (2, "i1"))]
            return self.node(op, [self.turned(self.tensor([*batch, m, k], "u1")), self.turned(self.tensor([*other, k, n], "i1")),
                                  *zero[:r.randint(0, 2)]])
        a, b = [*batch, m, k], [*other, k, n]
        if r.random() < 0.15:
            a = [k]
        elif r.random() < 0.15:
            b = [k]
        return self.node(op, [self.turned(self.tensor(a)), self.turned(self.tensor(b))])

    def op_shape(self):
        r = self.r
        op = r.choice("Reshape Expand Tile Concat Split Squeeze Unsqueeze Flatten Transpose DepthToSpace SpaceToDepth Trilu "
                      "Shape Compress ReverseSequence OneHot Size ConstantOfShape EyeLike Range Unique NonZero".split())
        shape = self.shape(1)
        d = self.dtype("f4 i8 i4 f8")
        x = lambda s=None: self.turned(self.tensor(shape if s is None else s, d))
        if op == "Reshape":
            n = _count(shape)
            target = r.choice([[-1], [n], [n, 1], [0, -1], [1, -1]])
            if r.random() < 0.3 and self.opset >= 14 and -1 not in target:
                return self.node(op, [x(), self.ints(target)], allowzero=1)
            return self.node(op, [x(), self.ints(target)])
        if op == "Expand":
            target = [e if e != 1 or r.random() < 0.5 else r.choice([0, 2, 3]) for e in shape]
            target = [r.choice([1, 2])] + target if r.random() < 0.3 else [1 if r.random() < 0.3 else e for e in target]
            return self.node(op, [x(), self.ints(target)])
        if op == "Tile":
            return self.node(op, [x(), self.ints([r.choice([1, 1, 2, 3, 0]) for _ in shape])])
        if op == "Concat":
            axis = self.axis(len(shape))
            parts = []
            for _ in range(r.randint(1, 5)):
                s = list(shape)
                s[axis] = r.choice(EXTENTS)
                parts.append(x(s))
            if len(parts) > 2 and r.random() < 0.5:  # nested
                return self.node(op, [self.node(op, parts[:2], axis=axis)[0], *parts[2:]], axis=axis)
            return self.node(op, parts, axis=axis)
        if op == "Split":
            axis = self.axis(len(shape))
            sizes = [r.randint(0, 3) for _ in range(r.randint(1, 3))]
            s = list(shape)
            s[axis] = sum(sizes)
            if self.opset < 13:
                return self.node(op, [x(s)], len(sizes), axis=axis, split=sizes)
            return self.node(op, [x(s), self.ints(sizes)], len(sizes), axis=axis)
        if op in ("Squeeze", "Unsqueeze"):
            rank = len(shape)
            axes = [r.randrange(-rank - 1, rank + 1)] if op == "Unsqueeze" else [a for a in range(rank) if shape[a] == 1]
            if self.opset >= 13:
                return self.node(op, [x(), self.ints(axes)])
            return self.node(op, [x()], **({"axes": axes} if axes else {}))
        if op == "Flatten":
            return self.node(op, [x()], axis=r.randint(-len(shape), len(shape)))
        if op == "Transpose":
            perm = list(range(len(shape)))
            r.shuffle(perm)
            return self.node(op, [x()], **({"perm": perm} if r.random() < 0.8 else {}))
        if op in ("DepthToSpace", "SpaceToDepth"):
            s = [r.choice([1, 2]), 4 * r.choice([1, 2]), 2 * r.choice([1, 2, 3]), 2 * r.choice([1, 2])]
            a = {"mode": r.choice(["DCR", "CRD"])} if op == "DepthToSpace" else {}
            return self.node(op, [self.turned(self.tensor(s))], blocksize=2, **a)
        if op == "Trilu":
            k = [self.tensor([], value=self.np.array(r.randint(-3, 3), "i8"))] if r.random() < 0.7 else []
            return self.node(op, [x([*shape, r.choice([1, 3, 5])]), *k], upper=r.choice([0, 1]))
        if op == "Shape":
            a = {"start": r.randint(-5, 4), "end": r.randint(-5, 5)} if self.opset >= 15 and r.random() < 0.6 else {}
            return self.node(op, [x()], **a)
        if op == "Size":
            return self.node(op, [x()])
        if op == "Compress":
            axis = self.axis(len(shape))
            flags = self.n.random(r.randint(0, shape[axis])) < 0.5
            a = {"axis": axis} if r.random() < 0.7 else {}
            return self.node(op, [x(), self.tensor(None, value=flags)], **a)
        if op == "ReverseSequence":
            s = [r.choice([1, 2, 3]), r.choice([1, 3, 4]), 2]
            batch = r.choice([0, 1])
            ends = self.n.integers(1, s[1 - batch] + 1, s[batch]).astype("i8")
            return self.node(op, [self.turned(self.tensor(s)), self.tensor(None, value=ends)], batch_axis=batch, time_axis=1 - batch)
        if op == "OneHot":
            index = self.n.integers(-4, 4, self.shape(0, 2)).astype("i8")
            values = self.tensor(None, value=self.np.array([2, 5], "f4"))
            return self.node(op, [self.tensor(None, value=index), self.tensor([], value=self.np.array(4, "i8")), values],
                             axis=r.choice([-1, 0]))
        if op == "ConstantOfShape":
            return self.node(op, [self.ints(shape)])
        if op == "EyeLike":
            return self.node(op, [self.tensor([r.choice([1, 3, 5]), r.choice([1, 3, 4])])], k=r.randint(-2, 2))
        if op == "Range":
            t = self.dtype("f4 i8 i4")
            return self.node(op, [self.tensor([], value=self.np.array(v, t)) for v in (r.randint(-3, 3), r.randint(-3, 9), r.choice([1, 2, -1]))])
        if op == "Unique":
            return self.node(op, [self.tensor(shape, self.dtype("f4 i8"))], 4, **({"axis": self.axis(len(shape))} if r.random() < 0.4 else {}))
        return self.node("NonZero", [x()])

    def op_norm(self):
        r = self.r
        op = r.choice(["LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN", "LpNormalization",
                       "MeanVarianceNormalization"])
        if op == "LayerNormalization":
            shape = self.shape(1, 3, [1, 2, 3, 8, 17])
            axis = self.axis(len(shape))
            s = shape[axis:]
            more = [self.tensor(s)] + ([self.tensor(s)] if r.random() < 0.7 else [])
            return self.node(op, [self.turned(self.tensor(shape)), *more], axis=axis)
        c = r.choice([1, 2, 3, 8])
        shape = [r.choice([1, 2]), c, *self.shape(1, 2, [1, 3, 5, 8])]
        x = self.turned(self.tensor(shape))
        if op == "LRN":
            return self.node(op, [x], size=r.choice([1, 3, 5]), alpha=0.1)
        if op == "LpNormalization":
            return self.node(op, [x], axis=self.axis(len(shape)), p=r.choice([1, 2]))
        if op == "MeanVarianceNormalization":
            return self.node(op, [self.turned(self.tensor([2, 3, 4, 5]))])
        one = lambda: self.tensor([c])
        if op == "InstanceNormalization":
            return self.node(op, [x, one(), one()])
        return self.node(op, [x, one(), one(), one(), self.tensor(None, value=self.n.random(c).astype("f4") + 0.5)])

    def op_quantize(self):
        r = self.r
        np = self.np
        shape = self.shape(1, 3, [1, 2, 3, 5])
        axis = self.axis(len(shape))
        t = r.choice(["u1", "i1"])
        many = r.random() < 0.5 and self.opset >= 13
        size = [shape[axis]] if many else []
        scale = self.tensor(None, value=np.array(2.0 ** -self.n.integers(0, 4, size)).astype("f4"))
        zero = [self.tensor(None, value=np.array(self.n.integers(0, 9, size)).astype(t))] if r.random() < 0.7 else []
        if not zero:
            t = "u1"
        a = {"axis": axis} if many else {}
        if r.random() < 0.5:
            return self.node("QuantizeLinear", [self.turned(self.tensor(shape)), scale, *zero], **a)
        return self.node("DequantizeLinear", [self.turned(self.tensor(shape, t)), scale, *zero], **a)

    # Scales are powers of two, so that floats hold all numbers exactly, in whatever order they are computed.

    def scale(self, low, high, count=None):
        return self.tensor(None, value=self.np.array(2.0 ** -self.n.integers(low, high, count)).astype("f4"), constant=True)

    def zero_point(self, dtype, middle=False):
        value = self.np.array(0) if middle else self.numbers([], dtype, self.all_bytes(dtype))
        return self.tensor(None, value=value.astype(dtype), constant=True)

    def quantized(self, x, t, scale, zero):
        return self.node("QuantizeLinear", [x, scale, zero])[0], t, scale, zero

    def dequantized(self, q):
        return self.node("DequantizeLinear", [q[0], *q[2:]])[0]

    def qdq_conv(self, x, channels, groups, out, a):
        """DequantizeLinear, Conv, perhaps Relu, QuantizeLinear, of bytes x = (name, type, scale, zero point)."""
        r, np = self.r, self.np
        w_type = r.choice(["i1", "i1", "u1"])
        many = self.opset >= 13 and r.random() < 0.4
        w = self.bytes_between(self.all_bytes(w_type), [out, channels // groups, *a["kernel_shape"]], w_type, True)
        w_scale = self.scale(4, 9, out if many else None)
        zeros = np.zeros(out if many else [], w_type) + (r.choice([0, 0, 3]) if w_type == "i1" else 128)
        w_zero = self.tensor(None, value=zeros.astype(w_type), constant=True)
        weight = self.node("DequantizeLinear", [w, w_scale, w_zero], **({"axis": 0} if many else {}))[0]
        bias = []
        if r.random() < 0.5:
            value = self.n.integers(-4000, 4000, out).astype("i4")
            sums = self.constants[x[2]] * self.constants[w_scale]
            names = [self.tensor(None, value=v, constant=True) for v in (value, np.array(sums).astype("f4"))]
            bias = [self.node("DequantizeLinear", names, **({"axis": 0} if many else {}))[0]]
        y = self.node("Conv", [self.dequantized(x), weight, *bias], group=groups, **a)[0]
        if r.random() < 0.4:
            y = self.node("Relu", [y])[0]
        t = x[1]
        zero = self.tensor(None, value=np.array(np.iinfo(t).min).astype(t), constant=True) if r.random() < 0.5 else self.zero_point(t)
        return self.quantized(y, t, self.scale(-6, 1), zero)

    def op_conv_bytes(self):
        r, np = self.r, self.np
        rank = r.choice([1, 2, 2, 2, 2, 2])
        sides = [r.choice([4, 5, 7, 8, 12, 19]) for _ in range(rank)]
        groups = r.choice([1, 1, 1, 2, 4, 8])
        per, out = r.choice([1, 1, 3, 4, 6, 16]), groups * r.choice([1, 2, 4, 5, 16])
        a = self.windows(rank, sides)
        batch, t = r.choice([1, 1, 2]), r.choice(["u1", "u1", "i1"])
        x = self.bytes_between(self.all_bytes(t), [batch, groups * per, *sides], t)
        kind = r.choice(["QLinearConv", "ConvInteger", "QDQ", "QDQ", "QDQ"])
        if kind != "QDQ":
            w_type = r.choice(["i1", t])
            # With greater filters in i8 ONNX Runtime's kernels for AVX2 saturate sums of two products.
            between = (-64, 63) if w_type == "i1" else self.all_bytes(w_type)
            w = self.bytes_between(between, [out, per, *a["kernel_shape"]], w_type, r.random() < 0.8)
            w_zero = self.zero_point(w_type, r.random() < 0.7)
            if kind == "ConvInteger":
                return self.node(kind, [x, w, self.zero_point(t), w_zero], group=groups, **a)
            bias = [self.tensor(None, value=self.n.integers(-4000, 4000, out).astype("i4"), constant=True)] if r.random() < 0.5 else []
            return self.node(kind, [x, self.scale(3, 6), self.zero_point(t), w, self.scale(3, 6, out if r.random() < 0.4 else None),
                                    w_zero, self.scale(-6, 1), self.zero_point(t), *bias], group=groups, **a)
        y = self.qdq_conv((x, t, self.scale(3, 6), self.zero_point(t)), groups * per, groups, out, a)
        if r.random() < 0.3 and rank == 2:
            y = self.node("MaxPool", [self.dequantized(y)], kernel_shape=[2, 2], strides=[1, 1], pads=[0, 1, 1, 0])[0], *y[1:]
            y = self.quantized(*y)
        end = r.choice(["", "conv", "add", "add conv", "average"])
        if "add" in end:  # of two branches, or of the same one
            same = r.random() < 0.2
            other = y if same else self.qdq_conv((x, t, self.scale(3, 6), self.zero_point(t)), groups * per, groups, out, a)
            sum_ = self.node("Add", [self.dequantized(y), self.dequantized(other)])[0]
            if r.random() < 0.5:
                sum_ = self.node("Relu", [sum_])[0]
            least = self.tensor(None, value=np.array(np.iinfo(t).min).astype(t), constant=True)
            y = self.quantized(sum_, t, self.scale(-6, 1), least)
        if end == "average":
            return [self.node("GlobalAveragePool", [self.dequantized(y)])[0]]
        if "conv" in end:
            pads = [0] * (2 * rank) if r.random() < 0.5 else [1] * (2 * rank)
            size = r.choice([1, 3])
            window = {"kernel_shape": [size] * rank, "pads": pads if size > 1 else [0] * (2 * rank)}
            y = self.qdq_conv(y, out, 1, r.choice([3, 8, 16]), window)
        return [y[0]]

    def op_resize(self):
        r = self.r
        shape = [r.choice([1, 2]), r.choice([1, 3]), r.choice([1, 2, 3, 5]), r.choice([1, 2, 4, 7])]
        mode = r.choice(["nearest", "linear", "cubic"])
        a = {"mode": mode, "coordinate_transformation_mode": r.choice(
            ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])}
        if mode == "nearest":
            a["nearest_mode"] = r.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        if mode == "cubic" and r.random() < 0.5:
            a |= {"cubic_coeff_a": -0.5, "exclude_outside": r.choice([0, 1])}
        x = self.turned(self.tensor(shape))
        empty = self.tensor(None, value=self.np.zeros(0, "f4"), constant=True)
        if r.random() < 0.5:
            scales = [1.0, 1.0, r.choice([0.5, 1.0, 2.0, 1.5, 3.0]), r.choice([0.5, 1.0, 2.0, 2.5])]
            if any(int(s * e) < 1 for s, e in zip(scales, shape)):
                raise Skip
            return self.node("Resize", [x, empty, self.tensor(None, value=self.np.array(scales, "f4"), constant=True)], **a)
        sizes = [shape[0], shape[1], r.choice([1, 2, 4, 6]), r.choice([1, 3, 7, 9])]
        if self.opset >= 13:
            return self.node("Resize", [x, "", "", self.ints(sizes)], **a)
        return self.node("Resize", [x, empty, empty, self.ints(sizes)], **a)

    def op_grid(self):
        r = self.r
        if self.opset < 16:
            raise Skip
        linear, cubic = ("linear", "cubic") if self.opset >= 20 else ("bilinear", "bicubic")
        x = self.turned(self.tensor([2, r.choice([1, 3]), r.choice([1, 3, 5]), r.choice([1, 4])]))
        grid = self.tensor([2, r.choice([1, 3]), r.choice([1, 4]), 2], value=(self.n.random([2, 3, 4, 2]) * 3 - 1.5).astype("f4"), constant=False)
        return self.node("GridSample", [x, grid], mode=r.choice([linear, cubic, "nearest"]),
                         padding_mode=r.choice(["zeros", "border", "reflection"]), align_corners=r.choice([0, 1]))

    def op_recurrent(self):
        r = self.r
        op, gates = r.choice([("RNN", 1), ("GRU", 3), ("LSTM", 4)])
        direction = r.choice(["forward", "reverse", "bidirectional"])
        d, h, n, b, t = 2 if direction[0] == "b" else 1, r.choice([1, 3, 8]), r.choice([1, 4]), r.choice([1, 2]), r.choice([1, 2, 7])
        ins = [self.turned(self.tensor([t, b, n])), self.tensor([d, gates * h, n]), self.tensor([d, gates * h, h])]
        optional = [self.tensor([d, 2 * gates * h]), self.tensor(None, value=self.n.integers(1, t + 1, b).astype("i4")),
                    self.tensor([d, b, h])]
        keep = r.randint(0, 3)
        used = [v if r.random() < 0.7 else "" for v in optional[:keep]]
        for v in set(optional) - set(used):
            self.inputs.pop(v, None), self.constants.pop(v, None)
        while used and not used[-1]:
            used.pop()
        a = {"linear_before_reset": r.choice([0, 1])} if op == "GRU" else {}
        return self.node(op, ins + used, r.choice([1, 2, 3 if op == "LSTM" else 2]), hidden_size=h, direction=direction, **a)

    OPERATORS = ("elementwise binary binary clip cast slice slice pad reduce reduce arg topk cumsum softmax gather scatter conv conv "
                 "conv_bytes conv_bytes pool product product shape shape shape norm quantize resize grid recurrent").split()

    # ---- a model -----------------------------------------------------------------------------------------------------

    def make(self):
        from onnx import TypeProto, ValueInfoProto, helper as h, numpy_helper

        outputs = getattr(self, "op_" + self.r.choice(self.OPERATORS))()
        k = self.r.random()
        if k < 0.15:
            outputs = self.node("Identity", outputs[:1])
        elif k < 0.3 and self.nodes[-1].op_type not in ("Unique",):
            outputs = [*outputs, *self.node("Transpose", outputs[:1])]
        elif k < 0.4:
            outputs = [*outputs, *self.node("Cast", outputs[:1], to=1)]
        info = [h.make_tensor_value_info(k, h.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in self.inputs.items()]
        initial = [numpy_helper.from_array(v, k) for k, v in self.constants.items()]
        given = [ValueInfoProto(name=o, type=TypeProto()) for o in outputs]
        return h.make_model(h.make_graph(self.nodes, "g", info, given, initial),
                            opset_imports=[h.make_opsetid("", self.opset)], ir_version=10)

    def renew(self):
        """Other numbers for the inputs that are numbers."""
        self.inputs = {k: v if k in self.whole else self.numbers(list(v.shape), v.dtype, self.ranges.get(k)) for k, v in self.inputs.items()}


def _count(shape):
    n = 1
    for e in shape:
        n *= e
    return n


def different(np, wanted, got):
    if got is None or isinstance(got, tuple):
        return "no tensor"
    if list(wanted.shape) != list(got.shape) or wanted.dtype != got.dtype:
        return f"{got.dtype} {list(got.shape)}, not {wanted.dtype} {list(wanted.shape)}"
    if wanted.dtype.kind in "iub":
        bad = wanted != got
    else:
        w, g = wanted.astype("f8"), got.astype("f8")
        finite = np.abs(w[np.isfinite(w)])
        allowed = 1e-4 * (finite.max() if finite.size else 1) + 1e-6
        with np.errstate(invalid="ignore"):
            bad = ~((np.abs(w - g) <= allowed) | (w == g) | (np.isnan(w) & np.isnan(g)))
    if not bad.any():
        return None
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"at {list(at)}: {got[at]}, not {wanted[at]} ({int(bad.sum())} of {bad.size})"


def referee_agrees(np, model, inputs, output, got):
    """Where the two differ: does the onnx package's reference implementation compute what Trunnion does?"""
    from onnx.reference import ReferenceEvaluator

    try:
        return different(np, np.asarray(ReferenceEvaluator(model).run(None, inputs)[output]), got) is None
    except Exception:
        return False


def session_of(model):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_peer(seed):
    """The runs of check in ONNX Runtime only."""
    graph = Graph(seed)
    session = session_of(graph.make())
    for run in range(RUNS):
        if run:
            graph.renew()
        session.run(None, graph.inputs)


def check(here, seed):
    """(what differs or None, what is refused or None, the graph's text), or None if ONNX Runtime refuses it."""
    graph = Graph(seed)
    np = graph.np
    try:
        model = graph.make()
    except Skip:
        return None
    text = [f"opset {graph.opset}"] + [
        f"{n.op_type}({', '.join(n.input)}) -> {', '.join(n.output)}  " + ", ".join(
            f"{a.name}={list(a.ints) or a.i or a.f or a.s.decode()}" for a in n.attribute) for n in graph.nodes]
    text += [f"{k}: {v.dtype} {list(v.shape)} {'constant ' if k in graph.constants else ''}"
             f"{v.tolist() if k in graph.whole or v.size < 9 else ''}" for k, v in {**graph.inputs, **graph.constants}.items()]
    try:
        session = session_of(model)
        wanted = session.run(None, graph.inputs)
    except Exception:
        return None
    opened = None
    try:
        opened = here.open(model)
        for run in range(RUNS):
            if run:
                graph.renew()
                wanted = session.run(None, graph.inputs)
            got = opened.run([here.value(v) for v in graph.inputs.values()])
            for i, (w, g) in enumerate(zip(wanted, got)):
                bad = different(np, w, g)
                if bad and not referee_agrees(np, model, graph.inputs, i, g):
                    return f"run {run + 1}, output {i} {bad}", None, text
    except RuntimeError as e:
        return None, str(e), text
    finally:
        if opened:
            opened.close()
    return None, None, text


def run_block(build, first, count, verbose):
    from formats.onnx_ctypes import Here

    here = Here(build)
    differing, refused, ran = [], [], 0
    for seed in range(first, first + count):
        result = check(here, seed)
        if result is None:
            continue
        bad, why, text = result
        ran += 1
        if why:
            refused.append([seed, why, text])
        elif bad or verbose:
            differing.append([seed, bad, text])
    return {"differing": differing, "refused": refused, "ran": ran}


def run_alone(build, seed, verbose):
    """One graph whose block ended by a signal. If ONNX Runtime alone ends so too, the graph is skipped."""
    one, code = in_a_process(lambda: run_block(build, seed, 1, verbose))
    if one:
        return one
    _, peer = in_a_process(lambda: run_peer(seed))
    if peer < 0:
        return {"differing": [], "refused": [[seed, f"(ONNX Runtime itself ended by signal {-peer})", []]], "ran": 1}
    return {"differing": [[seed, f"the process ended with {code}", []]], "refused": [], "ran": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    in_peers_python("onnx", "onnxruntime")
    os.environ.setdefault("TRUNNION_THREADS", "1")
    failed = ran = 0
    refused = collections.Counter()
    for first in range(args.seed, args.seed + args.count, BLOCK):
        count = min(BLOCK, args.seed + args.count - first)
        result, _ = in_a_process(lambda: run_block(args.build, first, count, args.verbose))
        results = [result]
        if result is None:
            results = [run_alone(args.build, seed, args.verbose) for seed in range(first, first + count)]
        for result in results:
            ran += result["ran"]
            for seed, bad, text in result["differing"]:
                failed += bad is not None
                print(f"seed {seed}: {bad}", *text, sep="\n      ", flush=True)
            for seed, why, text in result["refused"]:
                refused[why[:110]] += 1
                if args.verbose:
                    print(f"seed {seed}: refused: {why}", *text, sep="\n      ", flush=True)
    for text, count in refused.most_common(30):
        print(f"refused {count}: {text}")
    print(f"{ran} of {args.count} graphs were tried, {sum(refused.values())} were refused here or end ONNX Runtime")
    print("ran on: onnxruntime")
    print(f"{ran - failed - sum(refused.values())} passed, {failed} failed, {sum(refused.values())} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
