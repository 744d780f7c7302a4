"""random_chains.py BUILD [--count N] [--seed N] [--device NAME] [--verbose] — random chains of operations, here and in PyTorch.

Each chain starts with a few tensors of any dtype and of shapes with extents of 0 and 1 and without dimensions. A step
makes a view (permuted, expanded, with gaps or backwards), computes, reduces, indexes, or writes in place, also into a
view. The values are small whole numbers, halves and quarters, so that PyTorch's results must be met to the last bit in
every dtype; they are read at random moments, so that steps are planned together in many ways. Chains of floats without
writes in place are differentiated, too; in f64 they hold any numbers and functions that round. A call that is refused here ends nothing: refusals are counted by message. Every
other chain runs several times with other numbers, offsets and scalars, so that plans and replays are used again.

A chain is made of its seed: --seed S --count 1 --verbose shows it again.
PyTorch comes as in opinfo.py. Each block of chains runs in a process, so that a crash names its seed.
"""

import argparse
import collections
import os
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[0] = str(ROOT / "tools")  # not this folder, whose opinfo.py is not the package
from opinfo.process import in_a_process, in_peers_python  # noqa: E402

BLOCK = 100  # chains a process
STEPS = 14
RUNS = 5  # of every other chain, with other numbers
EXTENTS = [0, 1, 1, 2, 3, 4, 5, 7, 17, 33, 65]
ROUNDING = 1e-9  # of the largest number, in f64, for chains of functions that round
LARGE = 60  # larger values are brought back, so that sums and products stay exact in bf16
MOST = 4096  # elements of a tensor


class Skip(Exception):
    """The step has no sense for these operands."""


class Pair:
    """PyTorch's tensor, ours, and the name of both in the chain's text."""

    def __init__(self, torch_tensor, ours, text):
        self.t, self.o, self.text = torch_tensor, ours, text


class Chain:
    def __init__(self, L, torch, seed, run):
        from opinfo import library

        self.L, self.torch = L, torch
        self.r, self.values = random.Random(seed), random.Random(f"{seed} {run}")  # of the steps; of numbers in them
        self.refused_type = library.Refused
        self.pool, self.lines, self.refused = [], [], collections.Counter()
        self.floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
        self.dtypes = self.floats + [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
        # Chains to be differentiated hold tensors of one float dtype and nothing is written in place.
        self.smooth = self.r.choice([*self.floats, torch.float64, torch.float64]) if self.r.random() < 0.4 else None
        self.rough = self.smooth == torch.float64  # any numbers, and functions that round
        self.leaves = []

    # ---- operands ----------------------------------------------------------------------------------------------------

    def shape(self):
        shape = [self.r.choice(EXTENTS) for _ in range(self.r.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]))]
        while shape and _count(shape) > MOST:
            shape.pop()
        return shape

    def fresh(self, shape=None, dtype=None):
        torch, r = self.torch, self.r
        shape = self.shape() if shape is None else shape
        dtype = dtype or self.smooth or r.choice(self.dtypes)
        g = torch.Generator().manual_seed(self.values.randrange(2**31))
        t = torch.randn(shape, generator=g, dtype=torch.float64) if self.rough else torch.randint(-8, 9, shape, generator=g)
        t = t if self.rough else (t / r.choice([1, 1, 2, 4])).to(dtype) if dtype.is_floating_point else t.abs().to(dtype) if dtype in (
            torch.uint8, torch.bool) else t.to(dtype)
        o = self.L.tensor(t)
        name = f"x{len(self.pool)}"
        self.lines.append(f"{name} = {str(dtype)[6:]} {list(t.shape)}")
        if self.smooth:
            t.requires_grad_(True)
            self.L.dll.tn_set_requires_grad(o.handle, True)
            self.leaves.append((t, o))
        pair = Pair(t, o, name)
        self.pool.append(pair)
        return pair

    def any(self, test=lambda t: True):
        fit = [p for p in self.pool if test(p.t)]
        if not fit:
            raise Skip
        return self.r.choice(fit)

    def matching(self, x):
        """A tensor that broadcasts with x: of the pool, or fresh."""
        torch = self.torch
        fit = []
        for p in self.pool:
            try:
                if _count(torch.broadcast_shapes(p.t.shape, x.t.shape)) <= MOST and len(p.t.shape) <= 6:
                    fit.append(p)
            except RuntimeError:
                pass
        if self.r.random() < 0.4 or not fit:
            shape = [e if self.r.random() < 0.7 else 1 for e in x.t.shape]
            return self.fresh(shape[self.r.randint(0, len(shape)):] if self.r.random() < 0.3 else shape)
        return self.r.choice(fit)

    def number(self):
        """For a run's call another one of the same kind."""
        return self.values.choice([-2, -1, 0, 1, 2, 3] if self.r.random() < 0.6 else [0.5, -1.5, 2.5])

    def dim(self, t):
        if t.ndim == 0:
            return self.r.choice([0, -1])
        return self.r.randrange(-t.ndim, t.ndim)

    # ---- steps: each returns (text, PyTorch's result, function that makes ours) ----------------------------------------

    def view(self):
        r, L = self.r, self.L
        x = self.any()
        t, o = x.t, x.o
        kind = r.choice(["permute", "transpose", "narrow", "slice", "select", "expand", "unsqueeze", "squeeze", "view",
                         "flip", "diagonal", "unfold"])
        if kind == "permute":
            dims = r.sample(range(t.ndim), t.ndim)
            return f"permute({x.text}, {dims})", t.permute(dims), lambda: L.permute(o, dims)
        if kind == "unsqueeze":
            d = r.randrange(-t.ndim - 1, t.ndim + 1)
            if t.ndim > 5:
                raise Skip
            return f"unsqueeze({x.text}, {d})", t.unsqueeze(d), lambda: L.unsqueeze(o, d)
        if t.ndim == 0:
            raise Skip
        d = self.dim(t)
        n = t.shape[d]
        if kind == "transpose":
            e = self.dim(t)
            return f"transpose({x.text}, {d}, {e})", t.transpose(d, e), lambda: L.transpose(o, d, e)
        if kind == "narrow":
            c = r.randint(0, n)
            a = self.values.randint(0, n - c)
            return f"narrow({x.text}, {d}, {a}, {c})", t.narrow(d, a, c), lambda: L.narrow(o, d, a, c)
        if kind == "slice":
            a, b, s = r.randint(-n - 1, n + 1), r.randint(-n - 1, n + 1), r.choice([1, 1, 2, 3])
            index = [slice(None)] * (d % t.ndim) + [slice(a, b, s)]
            return f"slice({x.text}, {d}, {a}, {b}, {s})", t[tuple(index)], lambda: L.slice(o, d, a, b, s)
        if kind == "select":
            if n == 0:
                raise Skip
            i = self.values.randrange(-n, n)
            return f"select({x.text}, {d}, {i})", t.select(d, i), lambda: L.select(o, d, i)
        if kind == "squeeze":
            return f"squeeze({x.text}, {d})", t.squeeze(d), lambda: L.squeeze(o, [d])
        if kind == "expand":
            shape = [r.choice([1, 2, 3, 0]) if e == 1 else e for e in t.shape]
            if r.random() < 0.3 and len(shape) < 5:
                shape.insert(0, r.choice([1, 2]))
            if _count(shape) > MOST:
                raise Skip
            return f"expand({x.text}, {shape})", t.expand(shape), lambda: L.expand(o, shape)
        if kind == "view":
            shape = self.split_shape(t)
            try:
                y = t.view(shape)
            except RuntimeError:
                raise Skip
            return f"view({x.text}, {shape})", y, lambda: L.view(o, shape)
        if kind == "flip":
            dims = r.sample(range(t.ndim), r.randint(1, t.ndim))
            return f"flip({x.text}, {dims})", t.flip(dims), lambda: L.flip(o, dims)
        if kind == "diagonal":
            if t.ndim < 2:
                raise Skip
            d, e = r.sample(range(t.ndim), 2)
            k = r.randint(-2, 2)
            return f"diagonal({x.text}, {k}, {d}, {e})", t.diagonal(k, d, e), lambda: L.diagonal(o, k, d, e)
        size, step = r.randint(1, max(n, 1)), r.choice([1, 2])
        if size > n or t.ndim > 4 or t.numel() * size > MOST:
            raise Skip
        return f"unfold({x.text}, {d}, {size}, {step})", t.unfold(d, size, step), lambda: L.unfold(o, d, size, step)

    def split_shape(self, t):
        shape = list(t.shape)
        if len(shape) > 1 and self.r.random() < 0.6:
            d = self.r.randrange(len(shape) - 1)
            return shape[:d] + [shape[d] * shape[d + 1]] + shape[d + 2:]
        d = self.r.randrange(len(shape))
        for k in (2, 3, 5):
            if shape[d] and shape[d] % k == 0:
                return shape[:d] + [k, shape[d] // k] + shape[d + 1:]
        return shape[:d] + [1] + shape[d:] if len(shape) < 6 else shape

    UNARY = {"neg": "neg", "abs": "abs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round", "relu": "relu",
             "sign": "sign", "square": "square", "logical_not": "logical_not", "bitwise_not": "bitwise_not",
             "isnan": "isnan", "isfinite": "isfinite", "signbit": "signbit", "frac": "frac"}

    def unary(self):
        x, name = self.any(), self.r.choice(list(self.UNARY))
        if self.smooth and name in ("logical_not", "bitwise_not", "isnan", "isfinite", "signbit"):
            raise Skip
        return f"{name}({x.text})", getattr(self.torch, name)(x.t), lambda: getattr(self.L, name)(x.o)

    ROUNDED = "sin cos tanh sigmoid exp erf atan asinh expm1 gelu silu softplus softsign elu mish logsigmoid exp2".split()

    def rounded(self):
        """A step of chains whose results may differ by roundings."""
        torch, L, r = self.torch, self.L, self.r
        if not self.rough:
            raise Skip
        x = self.any()
        t, o, d, keep = x.t, x.o, self.dim(x.t), r.random() < 0.5
        kind = r.choice(["function", "function", "mean", "var", "softmax", "log_softmax", "logsumexp", "amax", "cumprod",
                         "layer_norm", "conv", "div", "pool", "linear"])
        if kind == "function":
            name = r.choice(self.ROUNDED)
            function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
            more = (1.0,) if name == "elu" else ()
            return f"{name}({x.text})", function(t), lambda: getattr(L, name)(o, *more)
        if kind == "div":
            y = self.matching(x)
            return (f"{x.text} / ({y.text}² + 1)", t / (y.t * y.t + 1),
                    lambda: L.div(o, L.add(L.mul(y.o, y.o), L.number(1.0))))
        if t.ndim == 0 or t.shape[d] == 0 or t.numel() == 0:
            raise Skip
        if kind in ("softmax", "log_softmax"):
            return f"{kind}({x.text}, {d})", getattr(torch, kind)(t, d), lambda: getattr(L, kind)(o, d)
        if kind == "cumprod":
            return f"cumprod({x.text} / 4, {d})", torch.cumprod(t / 4, d), lambda: L.cumprod(L.div(o, L.number(4.0)), d)
        if kind in ("mean", "logsumexp", "amax"):
            dims = r.sample(range(t.ndim), r.randint(1, t.ndim))
            return (f"{kind}({x.text}, {dims}, {keep})", getattr(torch, kind)(t, dims, keepdim=keep),
                    lambda: getattr(L, kind)(o, dims, keep))
        if kind == "var":
            return (f"var({x.text}, {d}, {keep})", torch.var(t, dim=d, correction=0, keepdim=keep),
                    lambda: L.var(o, [d], 0, keep))
        if kind == "layer_norm":
            shape = list(t.shape[d:] if d < 0 else t.shape[d - t.ndim:])
            w, b = self.fresh(shape), self.fresh(shape)
            return (f"layer_norm({x.text}, {shape}, {w.text}, {b.text})",
                    torch.nn.functional.layer_norm(t, shape, w.t, b.t, 0.1), lambda: L.layer_norm(o, shape, w.o, b.o, eps=0.1))
        if kind == "linear":
            w = self.fresh([r.choice([1, 2, 5]), t.shape[-1]])
            return f"linear({x.text}, {w.text})", torch.nn.functional.linear(t, w.t), lambda: L.linear(o, w.o, None)
        if t.ndim != 4 or min(t.shape[2:]) < 2:
            raise Skip
        if kind == "pool":
            return (f"avg_pool2d({x.text}, 2)", torch.nn.functional.avg_pool2d(t, 2, stride=1),
                    lambda: L.avg_pool2d(o, [2, 2], stride=[1, 1]))
        w = self.fresh([r.choice([1, 2, 3]), t.shape[1], r.choice([1, 2]), r.choice([1, 2])])
        return (f"conv2d({x.text}, {w.text})", torch.nn.functional.conv2d(t, w.t, padding=1),
                lambda: L.conv2d(o, w.o, None, padding=[1, 1]))

    BINARY = ("add sub mul maximum minimum eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor logical_and logical_or "
              "logical_xor remainder fmod floor_divide heaviside copysign fmax fmin").split()

    def binary(self):
        x = self.any()
        y = self.matching(x)
        if self.r.random() < 0.5:
            x, y = y, x
        name = self.r.choice(self.BINARY)
        if self.smooth and name not in ("add", "sub", "mul", "maximum", "minimum"):
            raise Skip
        if name in ("remainder", "fmod", "floor_divide") and (y.t == 0).any():
            raise Skip
        return f"{name}({x.text}, {y.text})", getattr(self.torch, name)(x.t, y.t), lambda: getattr(self.L, name)(x.o, y.o)

    def scalar(self):
        x = self.any()
        name, v = self.r.choice(["add", "sub", "mul"]), self.number()
        if x.t.dtype == self.torch.bool and name == "sub":
            raise Skip
        t = getattr(self.torch, name)(x.t, v)
        return f"{name}({x.text}, {v})", t, lambda: getattr(self.L, name)(x.o, self.L.number(v))

    def where(self):
        x = self.any()
        y = self.matching(x)
        condition = self.matching(x)
        c = condition.t.detach() > 0
        t = self.torch.where(c, x.t, y.t)
        if t.numel() > MOST:
            raise Skip
        return (f"where({condition.text} > 0, {x.text}, {y.text})", t,
                lambda: self.L.where(self.L.gt(condition.o, self.L.number(0)), x.o, y.o))

    def cast(self):
        if self.smooth:
            raise Skip
        x, dtype = self.any(), self.r.choice(self.dtypes)
        t = x.t
        if t.dtype.is_floating_point and dtype == self.torch.uint8 and (t < 0).any():
            raise Skip  # undefined
        return f"cast({x.text}, {str(dtype)[6:]})", t.to(dtype, copy=True), lambda: self.L.cast(x.o, dtype)

    def reduce(self):
        torch, L, r = self.torch, self.L, self.r
        x = self.any()
        t, o = x.t, x.o
        name = r.choice(["sum", "amax", "amin", "any", "all", "count_nonzero", "argmax", "argmin", "cumsum", "prod", "sort",
                         "cummax", "topk"])
        keep, d = r.random() < 0.5, self.dim(t)
        if self.smooth and name not in ("sum", "cumsum", "sort"):
            raise Skip
        if name in ("sum", "amax", "amin", "any", "all"):
            dims = sorted(r.sample(range(t.ndim), r.randint(1, t.ndim))) if t.ndim else []
            if not dims or (name in ("any", "all") and t.dtype == torch.uint8) or (name[:2] == "am" and any(t.shape[e] == 0 for e in dims)):
                raise Skip
            function = getattr(torch, name)
            return (f"{name}({x.text}, {dims}, {keep})", function(t, dim=dims, keepdim=keep),
                    lambda: getattr(L, name)(o, dims, keep))
        n = t.shape[d] if t.ndim else 1
        if name == "count_nonzero":
            return f"count_nonzero({x.text}, {d})", torch.count_nonzero(t, d), lambda: L.count_nonzero(o, [d], False)
        if name in ("argmax", "argmin"):
            if n == 0 or t.dtype == torch.bool:
                raise Skip
            return f"{name}({x.text}, {d}, {keep})", getattr(torch, name)(t, d, keep), lambda: getattr(L, name)(o, [d], keep)
        if name == "cumsum":
            return f"cumsum({x.text}, {d})", torch.cumsum(t, d), lambda: L.cumsum(o, d)
        if name == "prod":
            small = t.sign() if t.dtype != torch.bool else t
            return f"prod(sign {x.text}, {d})", torch.prod(small, d, keep), lambda: L.prod(
                L.sign(o) if t.dtype != torch.bool else o, [d], keep)
        if name == "cummax":
            if n == 0 or t.numel() == 0:
                raise Skip
            return f"cummax({x.text}, {d})", torch.cummax(t, d)[0], lambda: L.cummax(o, d, results=1)[0]
        down = r.random() < 0.5
        if name == "topk":
            k = r.randint(0, n)
            return f"topk({x.text}, {k}, {d}, {down})", torch.topk(t, k, d, down)[0], lambda: L.topk(o, k, d, down)
        return f"sort({x.text}, {d}, {down})", torch.sort(t, dim=d, descending=down, stable=True)[0], lambda: L.sort(o, d, down)

    def join(self):
        torch, L, r = self.torch, self.L, self.r
        x = self.any(lambda t: t.ndim > 0)
        d = self.dim(x.t)
        many = [x]
        for _ in range(r.choice([1, 1, 2, 3])):
            shape = list(x.t.shape)
            if r.random() < 0.5:
                shape[d] = r.choice(EXTENTS)
            same = [p for p in self.pool if p.t.ndim == x.t.ndim and
                    all(a == b or e == d % x.t.ndim for e, (a, b) in enumerate(zip(p.t.shape, x.t.shape)))]
            many.append(r.choice(same) if r.random() < 0.5 else self.fresh(shape))
        r.shuffle(many)
        t = torch.cat([p.t for p in many], d)
        if t.numel() > MOST:
            raise Skip
        return f"cat({', '.join(p.text for p in many)}; {d})", t, lambda: L.cat([p.o for p in many], d)

    def move(self):
        torch, L, r = self.torch, self.L, self.r
        x = self.any(lambda t: t.ndim > 0)
        t, o, d = x.t, x.o, self.dim(x.t)
        n = t.shape[d]
        name = r.choice(["roll", "pad", "repeat", "index_select", "gather", "index_add", "tril", "triu", "scatter",
                         "repeat_interleave", "scatter_add"])
        if name == "roll":
            s = r.randint(-n - 1, n + 1)
            return f"roll({x.text}, {s}, {d})", t.roll(s, d), lambda: L.roll(o, [s], [d])
        if name == "pad":
            pads = [r.randint(-1, 2) for _ in range(2 * r.randint(1, t.ndim))]
            value = r.choice([0, 1, 3])
            y = torch.nn.functional.pad(t, pads, value=value)
            return f"pad({x.text}, {pads}, {value})", y, lambda: L.pad(o, pads, value)
        if name == "repeat":
            times = [r.choice([1, 1, 2, 3, 0]) for _ in range(t.ndim)]
            if _count(times) * t.numel() > MOST:
                raise Skip
            return f"repeat({x.text}, {times})", t.repeat(times), lambda: L.repeat(o, times)
        if name in ("tril", "triu"):
            if t.ndim < 2:
                raise Skip
            k = r.randint(-2, 2)
            return f"{name}({x.text}, {k})", getattr(torch, name)(t, k), lambda: getattr(L, name)(o, k)
        if n == 0:
            raise Skip
        if name == "repeat_interleave":
            k = r.randint(0, 3)
            return (f"repeat_interleave({x.text}, {k}, {d})", t.repeat_interleave(k, d),
                    lambda: L.repeat_interleave(o, k, d))
        if name in ("index_select", "index_add"):
            index = torch.tensor([r.randrange(n) for _ in range(r.randint(0, 5))], dtype=torch.int64)
            i = L.tensor(index)
            if name == "index_select":
                return f"index_select({x.text}, {d}, {index.tolist()})", t.index_select(d, index), lambda: L.index_select(
                    o, d, i)
            shape = list(t.shape)
            shape[d] = len(index)
            src = self.fresh(shape, t.dtype)
            return (f"index_add({x.text}, {d}, {index.tolist()}, {src.text})", t.index_add(d, index, src.t),
                    lambda: L.index_add(o, d, i, src.o))
        shape = [r.randint(0, e) if e != d % t.ndim else r.randint(0, 4) for e, _ in enumerate(t.shape)]
        shape = [min(e, t.shape[k]) if k != d % t.ndim else e for k, e in enumerate(shape)]
        index = torch.randint(0, n, shape, generator=torch.Generator().manual_seed(r.randrange(2**31)))
        i = L.tensor(index)
        if name == "gather":
            return f"gather({x.text}, {d}, {shape})", t.gather(d, index), lambda: L.gather(o, d, i)
        src = self.fresh(shape, t.dtype)
        if name == "scatter":
            if shape[d] > 1:  # of two values for one place either may stay
                raise Skip
            return f"scatter({x.text}, {d}, {src.text})", t.scatter(d, index, src.t), lambda: L.scatter(o, d, i, src.o)
        return (f"scatter_add({x.text}, {d}, {src.text})", t.scatter_add(d, index, src.t),
                lambda: L.scatter_add(o, d, i, src.o))

    def product(self):
        torch, L, r = self.torch, self.L, self.r
        x = self.any(lambda t: t.ndim > 0 and t.dtype != torch.bool and t.dtype.is_floating_point)
        t, o = x.t, x.o
        k = t.shape[-1]
        shape = r.choice([[k], [k, r.choice(EXTENTS)], [*t.shape[:-2][-1:], k, r.choice([1, 2, 3])]])
        y = self.fresh(shape, t.dtype)
        z = torch.matmul(t, y.t)
        if z.numel() > MOST or z.numel() and z.abs().max() > 2000:
            raise Skip
        return f"matmul({x.text}, {y.text})", z, lambda: L.matmul(o, y.o)

    def in_place(self):
        """Writes into a tensor or a view: PyTorch's own views see it, and so must ours."""
        torch, L, r = self.torch, self.L, self.r
        x = self.any()
        t = x.t
        if self.smooth and (t.grad_fn is None or t._is_view() and t._base.grad_fn is None):
            raise Skip  # a leaf
        if any(s == 0 and e > 1 for s, e in zip(t.stride(), t.shape)):
            raise Skip  # several elements are one
        if r.random() < 0.3:
            name, v = r.choice(["add_scalar", "mul_scalar", "fill", "zero"]), self.number()
            v = v if t.dtype.is_floating_point else int(v)
            if name == "zero":
                return f"zero_({x.text})", t.zero_(), lambda: L.zero_(x.o)
            if t.dtype == torch.bool and name != "fill":
                raise Skip
            call = {"add_scalar": t.add_, "mul_scalar": t.mul_, "fill": t.fill_}[name]
            return f"{name}_({x.text}, {v})", call(v), lambda: getattr(L, name + "_")(x.o, v)
        y = self.matching(x)
        if torch.broadcast_shapes(t.shape, y.t.shape) != t.shape:
            raise Skip
        name = r.choice(["add", "sub", "mul"])
        if t.dtype == torch.bool and name == "sub":
            raise Skip
        if t.untyped_storage().data_ptr() == y.t.untyped_storage().data_ptr():
            y = Pair(y.t.clone(), y.o, y.text)  # PyTorch would read what it has written
        torch_function = getattr(t, name + "_")
        return f"{name}_({x.text}, {y.text})", torch_function(y.t), lambda: getattr(L, name + "_")(x.o, y.o)

    # ---- a chain -----------------------------------------------------------------------------------------------------

    def step(self):
        kinds = [self.view] * 4 + [self.unary] + [self.binary] * 3 + [self.scalar, self.where, self.cast, self.reduce,
                                                                     self.reduce, self.join, self.move, self.move,
                                                                     self.product] + [self.in_place] * 2
        kinds += [self.rounded] * 8 if self.rough else []
        try:
            text, t, make = self.r.choice(kinds)()
        except Skip:
            return
        except (RuntimeError, IndexError, NotImplementedError, TypeError):
            return  # PyTorch refuses it; some of these calls are more generous here
        try:
            self.L.dll.tn_at(b"chain", self.at)
            o = make()
        except self.refused_type as e:
            self.refused[f"{text.split('(')[0]}: {e}"[:150]] += 1
            if text.split("(")[0].endswith("_"):
                raise StopIteration  # PyTorch's tensor has changed
            return
        name = f"v{len(self.pool)}"
        self.lines.append(f"{name} = {text}  {str(t.dtype)[6:]} {list(t.shape)}")
        if text.split("(")[0].endswith("_"):
            return
        self.pool.append(Pair(t, o, name))
        if t.dtype != self.torch.bool and t.numel() and t.detach().abs().double().max() > LARGE:
            self.tame(self.pool[-1])

    def tame(self, x):
        torch, L = self.torch, self.L
        self.pool.remove(x)
        t = torch.where(x.t.detach().double().abs() > 9, torch.zeros_like(x.t), x.t)
        far = L.gt(L.abs(L.cast(x.o, torch.float64)), L.number(9.0))
        o = L.where(far, L.zeros_like(x.o), x.o)
        self.lines[-1] += "  (0 above 9)"
        self.pool.append(Pair(t, o, x.text))

    def compare(self, x):
        t, got = x.t.detach(), x.o.read()
        if got.dtype != t.dtype or list(got.shape) != list(t.shape):
            return f"{x.text} is {got.dtype} {list(got.shape)}, not {t.dtype} {list(t.shape)}"
        near = ROUNDING * (t.abs().max() + 1) if self.rough and t.numel() else 0
        bad = (got.double() != t.double()) & ~((got.double() - t.double()).abs() <= near) & ~(got.isnan() & t.isnan())
        if not bad.any():
            return None
        at = bad.nonzero()[0].tolist()
        return f"{x.text} at {at}: {got[tuple(at)].item()}, not {t[tuple(at)].item()} ({int(bad.sum())} of {bad.numel()})"

    def differentiate(self):
        torch = self.torch
        for x in self.r.sample(self.pool, min(3, len(self.pool))):
            if not x.t.requires_grad or x.t.grad_fn is None:
                continue
            seed = torch.randint(-2, 3, x.t.shape, generator=torch.Generator().manual_seed(1)).to(x.t.dtype)
            try:
                wanted = torch.autograd.grad(x.t, [t for t, _ in self.leaves], seed, retain_graph=True, allow_unused=True)
            except RuntimeError:
                continue  # PyTorch needs a value that was written in place since
            used = [(w, leaf) for w, leaf in zip(wanted, self.leaves) if w is not None]
            if not used:
                continue
            try:
                got = self.L.gradients([x.o], [self.L.tensor(seed)], [o for _, (_, o) in used])
                for g, (w, (t, _)) in zip(got, used):
                    name = next(p.text for p in self.pool if p.t is t)
                    bad = self.compare(Pair(w, g, f"gradient of {x.text} to {name}"))
                    if bad:
                        return bad
            except self.refused_type as e:
                self.refused[f"gradient: {e}"[:150]] += 1
        return None

    def run(self):
        for _ in range(self.r.randint(2, 4)):
            self.fresh()
        for self.at in range(STEPS):
            try:
                self.step()
            except StopIteration:
                return None
            if self.r.random() < 0.12:
                bad = self.compare(self.r.choice(self.pool))
                if bad:
                    return bad
        for x in self.r.sample(self.pool, len(self.pool)):
            bad = self.compare(x)
            if bad:
                return bad
        return self.differentiate() if self.smooth else None


def _count(shape):
    n = 1
    for e in shape:
        n *= e
    return n


def use_device(L, name):
    import ctypes

    device = ctypes.c_void_p()
    for status in (L.dll.tn_device_open(name.encode(), None, None, ctypes.byref(device)),
                   L.dll.tn_set_current_device(device)):
        if status != 0:
            sys.exit(L.error())


def run_block(build, device, first, count, verbose):
    import warnings

    import torch
    from opinfo import library

    warnings.simplefilter("ignore")
    L = library.Library(build)
    if device:
        use_device(L, device)
    differing, refused, steps = [], collections.Counter(), 0
    for seed in range(first, first + count):
        for run in range(RUNS if seed % 2 else 1):
            chain = Chain(L, torch, seed, run)
            try:
                bad = chain.run()
            except library.Refused as e:
                bad = f"refused at the reading: {e}"
            steps += len(chain.lines)
            refused.update(chain.refused)
            if bad or verbose:
                differing.append([seed, bad and f"run {run + 1}: {bad}", chain.lines])
            if bad:
                break
    return {"differing": differing, "refused": dict(refused), "steps": steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="instead of the processor")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    in_peers_python()
    os.environ.setdefault("TRUNNION_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    failed, refused, steps, bad_blocks = 0, collections.Counter(), 0, 0
    for first in range(args.seed, args.seed + args.count, BLOCK):
        count = min(BLOCK, args.seed + args.count - first)
        result, code = in_a_process(lambda: run_block(args.build, args.device, first, count, args.verbose))
        if result is None:
            for seed in range(first, first + count):
                one, code = in_a_process(lambda: run_block(args.build, args.device, seed, 1, args.verbose))
                result = one or {"differing": [[seed, f"the process ended with {code}", []]], "refused": {}, "steps": 0}
                failed += report(result, refused, args.verbose)
                steps += result["steps"]
            continue
        failed += report(result, refused, args.verbose)
        steps += result["steps"]
    for text, count in refused.most_common(40 if args.verbose else 12):
        print(f"refused {count}: {text}")
    print(f"{args.count} chains, {steps} steps, PyTorch {torch.__version__}")
    print("ran on: pytorch")
    print(f"{args.count - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


def report(result, refused, verbose):
    refused.update(result["refused"])
    for seed, bad, lines in result["differing"]:
        if bad or verbose:
            print(f"seed {seed}: {bad}", *lines, sep="\n      ", flush=True)
    return sum(bad is not None for _, bad, _ in result["differing"])


if __name__ == "__main__":
    main()
