"""counterparts.py — which entries of PyTorch's OpInfo database the library has, and how each is called.

TABLE: an entry's formatted name → a function of (library, input, *args, **kwargs) in PyTorch's own order and names, that
returns a tensor or a list of tensors. A sample that asks for something the library lacks raises NotOffered; so does a
keyword that the function does not know.
"""

import math

import torch

from .library import NotOffered, Tensor

TABLE = {}
SHAPE_ONLY = set()  # random or uninitialised: shape and dtype are compared


def entry(*names, shape_only=False):
    def add(function):
        for name in names:
            TABLE[name] = function
            if shape_only:
                SHAPE_ONLY.add(name)
        return function
    return add


def need(condition, what):
    """What a counterpart that is written here must check as PyTorch's function does."""
    if not condition:
        raise ValueError(f"needed: {what}")


def lacks(condition, what):
    if condition:
        raise NotOffered(what)


def dims_of(dim):
    """A dim argument as a list; [] is all."""
    if dim is None:
        return []
    return [dim] if isinstance(dim, int) else list(dim)


def shape_of(size):
    """(2, 3) of reshape(2, 3) or reshape((2, 3))."""
    if len(size) == 1 and isinstance(size[0], (list, tuple, torch.Size)):
        return list(size[0])
    return list(size)


def cast(L, x, dtype):
    return x if dtype is None or x.dtype == dtype else L.cast(x, dtype)


def tensors(L, x):
    return x if isinstance(x, Tensor) else L.number(x)


def ignore_memory(kwargs):
    """Keywords of factories and copies that mean nothing here."""
    for name in ("device", "layout", "memory_format", "pin_memory", "requires_grad", "non_blocking", "copy", "generator"):
        kwargs.pop(name, None)
    lacks(kwargs, f"keyword {sorted(kwargs)}")


# ---- element by element ------------------------------------------------------------------------------------------------

def one_operand(name, function=None):
    TABLE[name] = lambda L, x: getattr(L, function or name)(x)


for NAME in ("abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp exp2 expm1 floor frac isfinite isinf "
             "isnan log log10 log1p log2 logical_not neg reciprocal rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc "
             "trace").split():
    one_operand(NAME)
one_operand("sgn", "sign")
one_operand("round")
for NAME in ("relu6", "hardsigmoid", "hardswish", "selu", "silu", "mish", "logsigmoid", "relu"):
    TABLE[f"nn_functional_{NAME}"] = lambda L, x, inplace=False, f=NAME: getattr(L, f)(x)


def two_operands(name, function=None, turned=False):
    def call(L, x, y):
        x, y = tensors(L, x), tensors(L, y)
        return getattr(L, function or name)(*((y, x) if turned else (x, y)))
    TABLE[name] = call


for NAME in ("atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor eq floor_divide fmod ge gt "
             "heaviside hypot le logaddexp logical_and logical_or logical_xor lt maximum minimum mul ne pow remainder "
             "xlogy").split():
    two_operands(NAME)
TABLE["max_binary"] = lambda L, x, y: (need(isinstance(y, Tensor), "a tensor"), L.maximum(x, y))[1]
TABLE["min_binary"] = lambda L, x, y: (need(isinstance(y, Tensor), "a tensor"), L.minimum(x, y))[1]
two_operands("true_divide", "div")
for NAME in "and mul or xor add".split():
    two_operands(f"__r{NAME}__", f"bitwise_{NAME}" if NAME in ("and", "or", "xor") else NAME, turned=True)
two_operands("__rdiv__", "div", turned=True)
two_operands("__rmod__", "remainder", turned=True)
two_operands("__rpow__", "pow", turned=True)
two_operands("__rsub__", "sub", turned=True)
TABLE["__rmatmul__"] = lambda L, x, y: L.matmul(y, x)
TABLE["float_power"] = lambda L, x, y: L.pow(cast(L, tensors(L, x), torch.float64),
                                             L.cast(y, torch.float64) if isinstance(y, Tensor) else L.number(float(y)))


def summed(function, turned):
    def call(L, x, y, alpha=1):
        x, y = tensors(L, x), tensors(L, y)
        if isinstance(alpha, bool):
            return getattr(L, function)(x, y if alpha else L.zeros_like(y))
        if turned:
            x, y = y, x
            return getattr(L, function)(x, y if alpha == 1 else L.mul(y, L.number(alpha)))
        return getattr(L, function)(x, y if alpha == 1 else L.mul(y, L.number(alpha)))
    return call


TABLE["add"], TABLE["sub"], TABLE["rsub"] = summed("add", False), summed("sub", False), summed("sub", True)


@entry("div_no_rounding_mode", "div_trunc_rounding", "div_floor_rounding")
def div(L, x, y, rounding_mode=None):
    return getattr(L, {None: "div", "trunc": "div_trunc", "floor": "floor_divide"}[rounding_mode])(x, tensors(L, y))


@entry("lerp")
def lerp(L, x, end, weight):
    return L.lerp(x, end, weight if isinstance(weight, Tensor) else L.number(weight))


TABLE["addcmul"] = lambda L, x, a, b, value=1: L.addcmul(x, a, b, value)
TABLE["addcdiv"] = lambda L, x, a, b, value=1: L.addcdiv(x, a, b, value)
TABLE["deg2rad"] = lambda L, x: L.mul(x, L.number(math.pi / 180))
TABLE["rad2deg"] = lambda L, x: L.mul(x, L.number(180 / math.pi))
TABLE["positive"] = lambda L, x: L.contiguous(x)


@entry("where")
def where(L, x, condition, other):
    return L.where(condition, tensors(L, x), tensors(L, other))


def bound(L, x, v, function):
    if v is None:
        return x
    return getattr(L, function)(x, tensors(L, v))


@entry("clamp")
def clamp(L, x, min=None, max=None):
    numbers = all(v is None or not isinstance(v, Tensor) for v in (min, max))
    if numbers and x.dtype.is_floating_point:
        return L.clamp(x, -math.inf if min is None else min, math.inf if max is None else max)
    return bound(L, bound(L, x, min, "maximum"), max, "minimum")


TABLE["clamp_min"] = lambda L, x, min: bound(L, x, min, "maximum")
TABLE["clamp_max"] = lambda L, x, max: bound(L, x, max, "minimum")


@entry("masked_fill")
def masked_fill(L, x, mask, value):
    if isinstance(value, Tensor):
        need(value.ndim == 0, "a value without dimensions")
        return L.where(mask, L.cast(value, x.dtype), x)
    return L.masked_fill(x, mask, value)


@entry("nan_to_num")
def nan_to_num(L, x, nan=0.0, posinf=None, neginf=None):
    return L.nan_to_num(x, nan or 0.0, math.inf if posinf is None else posinf, -math.inf if neginf is None else neginf)


@entry("fill", "zero_")
def fill(L, x, value=0):
    lacks(isinstance(value, Tensor), "a tensor to fill with")
    return L.fill(x, value)


for NAME, DTYPE in (("bfloat16", torch.bfloat16), ("half", torch.half), ("float", torch.float32), ("double", torch.float64),
                    ("int", torch.int32), ("long", torch.int64), ("short", torch.int16), ("char", torch.int8),
                    ("byte", torch.uint8), ("bool", torch.bool)):
    TABLE[NAME] = lambda L, x, dtype=DTYPE, **kwargs: (ignore_memory(kwargs), L.cast(x, dtype))[1]


@entry("to")
def to(L, x, *args, **kwargs):
    wanted = [a for a in args if isinstance(a, torch.dtype)] + [a.dtype for a in args if isinstance(a, Tensor)]
    wanted += [kwargs.pop("dtype")] if "dtype" in kwargs else []
    ignore_memory(kwargs)
    return L.cast(x, wanted[0]) if wanted else L.contiguous(x)


@entry("clone", "contiguous", "alias_copy", "resolve_conj", "resolve_neg", "conj", "conj_physical", "real")
def clone(L, x, **kwargs):
    ignore_memory(kwargs)
    return L.contiguous(x)


# ---- made of numbers ---------------------------------------------------------------------------------------------------

FLOAT = torch.float32


TABLE["zeros"] = lambda L, size, dtype=FLOAT, **kwargs: (ignore_memory(kwargs), L.zeros(list(size), dtype or FLOAT))[1]
TABLE["ones"] = lambda L, size, dtype=FLOAT, **kwargs: (ignore_memory(kwargs), L.ones(list(size), dtype or FLOAT))[1]
for NAME in ("zeros_like", "ones_like"):
    TABLE[NAME] = lambda L, x, dtype=None, f=NAME, **kwargs: (ignore_memory(kwargs), getattr(L, f)(cast(L, x, dtype)))[1]


def dtype_of_number(v):
    if isinstance(v, bool):
        return torch.bool
    return torch.int64 if isinstance(v, int) else FLOAT


@entry("full")
def full(L, size, value, dtype=None, **kwargs):
    ignore_memory(kwargs)
    return L.full(list(size), value, dtype or dtype_of_number(value))


@entry("full_like")
def full_like(L, x, value, dtype=None, **kwargs):
    ignore_memory(kwargs)
    return L.full_like(cast(L, x, dtype), value)


@entry("new_full")
def new_full(L, x, size, value, dtype=None, **kwargs):
    ignore_memory(kwargs)
    return L.full(list(size), value, dtype or x.dtype)


TABLE["new_zeros"] = lambda L, x, size, dtype=None, **kw: (ignore_memory(kw), L.zeros(list(size), dtype or x.dtype))[1]
TABLE["new_ones"] = lambda L, x, size, dtype=None, **kw: (ignore_memory(kw), L.ones(list(size), dtype or x.dtype))[1]


@entry("new_empty", shape_only=True)
def new_empty(L, x, size, dtype=None, **kwargs):
    ignore_memory(kwargs)
    return L.zeros(list(size), dtype or x.dtype)


@entry("empty_like", "rand_like", "randn_like", shape_only=True)
def any_like(L, x, dtype=None, **kwargs):
    ignore_memory(kwargs)
    return L.zeros_like(cast(L, x, dtype))


@entry("empty", shape_only=True)
def empty(L, size, *more, dtype=FLOAT, **kwargs):
    ignore_memory(kwargs)
    return L.zeros(shape_of((size, *more)), dtype or FLOAT)


@entry("scalar_tensor")
def scalar_tensor(L, value, dtype=None, **kwargs):
    ignore_memory(kwargs)
    return L.full([], value, dtype or FLOAT)


@entry("arange")
def arange(L, *args, dtype=None, **kwargs):
    step = kwargs.pop("step", None)
    start, end = kwargs.pop("start", None), kwargs.pop("end", None)
    ignore_memory(kwargs)
    given = list(args)
    if start is None and len(given) + (end is not None) >= 2:
        start = given.pop(0)
    if end is None:
        end = given.pop(0)
    if step is None:
        step = given.pop(0) if given else 1
    start = 0 if start is None else start
    if dtype is None:
        dtype = torch.int64 if all(isinstance(v, int) for v in (start, end, step)) else FLOAT
    return L.arange(start, end, step, dtype)


@entry("linspace", "linspace_tensor_overload")
def linspace(L, start, end, steps, dtype=FLOAT, **kwargs):
    ignore_memory(kwargs)
    need(all(not isinstance(v, Tensor) or v.numel() == 1 for v in (start, end)), "numbers")
    start, end = [v.read().item() if isinstance(v, Tensor) else v for v in (start, end)]
    lacks(isinstance(start, complex) or isinstance(end, complex), "complex numbers")
    return L.linspace(start, end, steps, dtype or FLOAT)


@entry("eye")
def eye(L, n, m=None, dtype=FLOAT, **kwargs):
    ignore_memory(kwargs)
    return L.eye(n, n if m is None else m, dtype or FLOAT)


TABLE["tril"] = lambda L, x, diagonal=0: L.tril(x, diagonal)
TABLE["triu"] = lambda L, x, diagonal=0: L.triu(x, diagonal)
TABLE["nn_functional_one_hot"] = lambda L, x, num_classes=-1: (
    lacks(num_classes < 0, "a number of classes found from the values"), L.one_hot(x, num_classes, torch.int64))[1]
for NAME in ("randn", "normal_in_place", "uniform"):
    SHAPE_ONLY.add(NAME)
TABLE["randn"] = lambda L, *size, dtype=FLOAT, **kw: (
    ignore_memory(kw), lacks(dtype != FLOAT, "random numbers in other dtypes than f32"), L.randn(shape_of(size)))[2]


@entry("uniform", shape_only=True)
def uniform(L, x, low=0.0, high=1.0, **kwargs):
    ignore_memory(kwargs)
    kwargs.pop("from_", None)
    return L.cast(L.uniform(low, high, x.shape), x.dtype)


@entry("normal_in_place", shape_only=True)
def normal_(L, x, mean=0.0, std=1.0, **kwargs):
    ignore_memory(kwargs)
    return L.cast(L.normal(mean, std, x.shape), x.dtype)


@entry("normal_number_mean", "normal", shape_only=True)
def normal(L, mean, std=1.0, size=None, dtype=FLOAT, **kwargs):
    ignore_memory(kwargs)
    if size is not None:
        lacks(dtype != FLOAT, "random numbers in other dtypes than f32")
        return L.normal(mean, std, list(size))
    mean, std = tensors(L, mean), tensors(L, std)
    noise = L.randn(L.add(mean, std).shape)
    return L.add(mean, L.mul(std, L.cast(noise, mean.dtype if mean.ndim else std.dtype)))


@entry("randint", shape_only=True)
def randint(L, *args, dtype=torch.int64, **kwargs):
    ignore_memory(kwargs)
    low, high, size = args if len(args) == 3 else (0, *args)
    return cast(L, L.randint(low, high, list(size)), dtype or torch.int64)


@entry("randint_like", shape_only=True)
def randint_like(L, x, *args, dtype=None, **kwargs):
    ignore_memory(kwargs)
    low, high = args if len(args) == 2 else (0, *args)
    return L.cast(L.randint(low, high, x.shape), dtype or x.dtype)


@entry("bernoulli", shape_only=True)
def bernoulli(L, x, p=None, **kwargs):
    ignore_memory(kwargs)
    return L.bernoulli(x if p is None else L.full_like(x, p))


@entry("nn_functional_dropout", shape_only=True)
def dropout(L, x, p=0.5, training=True, inplace=False):
    return L.dropout(x, p, training)


# ---- views and copies --------------------------------------------------------------------------------------------------

@entry("T")
def transposed(L, x):
    lacks(x.ndim > 2, "T of more than two dimensions")
    return L.t(x)


@entry("mT", "mH")
def matrix_transposed(L, x):
    return L.transpose(x, -2, -1)


@entry("H")
def adjoint(L, x):
    return L.t(x)


TABLE["t"] = TABLE["t_copy"] = lambda L, x: L.t(x)
TABLE["transpose"] = TABLE["transpose_copy"] = lambda L, x, dim0, dim1: L.transpose(x, dim0, dim1)
TABLE["permute"] = TABLE["permute_copy"] = lambda L, x, *dims: L.permute(x, shape_of(dims))


@entry("movedim")
def movedim(L, x, source, destination):
    if isinstance(source, int):
        return L.movedim(x, source, destination)
    need(len(source) == len(destination), "as many dims")
    for dims in (source, destination):
        need(all(-x.ndim <= d < x.ndim for d in dims) and len({d % x.ndim for d in dims}) == len(dims), "different dims")
    source, destination = [[d % x.ndim for d in dims] for dims in (source, destination)]
    order = [d for d in range(x.ndim) if d not in source]
    for to_, from_ in sorted(zip(destination, source)):
        order.insert(to_, from_)
    return L.permute(x, order)


TABLE["view"] = TABLE["view_copy"] = lambda L, x, *size: (
    lacks(isinstance(size[0], torch.dtype), "a dtype"), L.view(x, shape_of(size)))[1]
TABLE["reshape"] = lambda L, x, *size: L.reshape(x, shape_of(size))
TABLE["view_as"] = lambda L, x, other: L.view_as(x, other)
TABLE["reshape_as"] = lambda L, x, other: L.reshape(x, other.shape)
TABLE["ravel"] = lambda L, x: L.reshape(x, [-1])
TABLE["flatten"] = lambda L, x, start_dim=0, end_dim=-1: L.flatten(x, start_dim, end_dim)
TABLE["unflatten"] = lambda L, x, dim, sizes: L.unflatten(x, dim, list(sizes))
TABLE["unsqueeze"] = TABLE["unsqueeze_copy"] = lambda L, x, dim: L.unsqueeze(x, dim)


@entry("squeeze", "squeeze_copy", "squeeze_multiple")
def squeeze(L, x, dim=None):
    if dim is not None and not isinstance(dim, int) and len(dim) == 0:
        return L.contiguous(x)
    return L.squeeze(x, dims_of(dim))


TABLE["expand"] = TABLE["expand_copy"] = lambda L, x, *size: L.expand(x, shape_of(size))
TABLE["expand_as"] = lambda L, x, other: L.expand_as(x, other)
TABLE["broadcast_to"] = lambda L, x, size: L.broadcast_to(x, list(size))


@entry("broadcast_tensors")
def broadcast_tensors(L, *given):
    shape = list(torch.broadcast_shapes(*[t.shape for t in given]))
    return [L.broadcast_to(t, shape) for t in given]


TABLE["narrow"] = TABLE["narrow_copy"] = lambda L, x, dim, start, length: (
    L.narrow(x, dim, number_of(start), length))


def number_of(start):
    """A start given as a tensor without dimensions."""
    if not isinstance(start, Tensor):
        return start
    need(start.ndim == 0 and not start.dtype.is_floating_point and start.dtype != torch.bool, "a whole number")
    return int(start.read())
TABLE["select"] = lambda L, x, dim, index: L.select(x, dim, index)


@entry("slice")
def slice_(L, x, dim=0, start=None, end=None, step=1):
    return L.slice(x, dim, 0 if start is None else start, 2**63 - 1 if end is None else end, step)


@entry("as_strided", "as_strided_copy")
def as_strided(L, x, size, stride, storage_offset=0):
    return L.as_strided(x, list(size), list(stride), storage_offset or 0)


@entry("__getitem__")
def getitem(L, x, index):
    dim = 0
    lacks(isinstance(index, list), "a list of indices")
    index = index if isinstance(index, (tuple, list)) else [index]
    lacks(isinstance(index, list) and index and not isinstance(index[0], (slice, int, type(None), Tensor)), "such an index")
    for position, i in enumerate(index):
        if isinstance(i, bool):
            raise NotOffered("a bool as index")
        if i is None:
            x = L.unsqueeze(x, dim)
            dim += 1
        elif i is Ellipsis:
            dim = x.ndim - sum(j is not None for j in index[position + 1:])
        elif isinstance(i, int):
            x = L.select(x, dim, i)
        elif isinstance(i, slice):
            x = slice_(L, x, dim, i.start, i.stop, i.step or 1)
            dim += 1
        else:
            lacks(not isinstance(i, Tensor) or i.dtype == torch.bool or i.ndim != 1, "such an index")
            lacks(sum(isinstance(j, Tensor) for j in index) > 1, "several index tensors")
            x = L.index_select(x, dim, i)
            dim += 1
    return x


@entry("chunk")
def chunk(L, x, chunks, dim=0):
    return L.chunk(x, chunks, dim)


@entry("unsafe_chunk")
def unsafe_chunk(L, x, chunks, dim=0):
    return L.chunk(x, chunks, dim)


@entry("split", "unsafe_split", "split_with_sizes", "split_list_args", "split_with_sizes_copy")
def split(L, x, sizes, dim=0):
    if isinstance(sizes, int):
        extent = x.shape[dim]
        sizes = [min(sizes, extent - start) for start in range(0, extent, sizes)] or [0]
    return L.split(x, list(sizes), dim)


def split_at(L, x, where_, dim):
    lacks(isinstance(where_, Tensor), "places as a tensor")
    extent = x.shape[dim]
    if isinstance(where_, int):
        small, more = divmod(extent, where_)
        return L.split(x, [small + 1] * more + [small] * (where_ - more), dim)
    ends = [0, *[min(max(w + extent if w < 0 else w, 0), extent) for w in where_], extent]
    return [L.slice(x, dim, a, max(a, b), 1) for a, b in zip(ends, ends[1:])]


TABLE["tensor_split"] = lambda L, x, where_, dim=0: split_at(L, x, where_, dim)
TABLE["hsplit"] = lambda L, x, where_: split_at(L, x, where_, 1 if x.ndim > 1 else 0)
TABLE["vsplit"] = lambda L, x, where_: split_at(L, x, where_, 0)
TABLE["dsplit"] = lambda L, x, where_: split_at(L, x, where_, 2)


@entry("unbind", "unbind_copy")
def unbind(L, x, dim=0):
    return [L.select(x, dim, i) for i in range(x.shape[dim])]


@entry("cat")
def cat(L, given, dim=0):
    return L.cat(given, dim)


TABLE["stack"] = lambda L, given, dim=0: L.stack(given, dim)
TABLE["atleast_1d"] = lambda L, *given: at_least(L, given, 1)
TABLE["atleast_2d"] = lambda L, *given: at_least(L, given, 2)
TABLE["atleast_3d"] = lambda L, *given: at_least(L, given, 3)


def at_least(L, given, rank):
    many = len(given) > 1 or isinstance(given[0], (list, tuple))
    given = given[0] if isinstance(given[0], (list, tuple)) else given
    out = []
    for x in given:
        while x.ndim < rank:
            x = L.unsqueeze(x, -1 if rank == 3 and x.ndim == 2 else 0)
        out.append(x)
    return out if many else out[0]


@entry("hstack")
def hstack(L, given):
    given = [L.unsqueeze(x, 0) if x.ndim == 0 else x for x in given]
    return L.cat(given, 0 if given[0].ndim == 1 else 1)


@entry("vstack")
def vstack(L, given):
    return L.cat([at_least(L, [x], 2) for x in given], 0)


@entry("dstack")
def dstack(L, given):
    return L.cat([at_least(L, [x], 3) for x in given], 2)


@entry("column_stack")
def column_stack(L, given):
    return L.cat([x if x.ndim > 1 else L.reshape(x, [-1, 1]) for x in given], 1)


TABLE["repeat"] = lambda L, x, *repeats: L.repeat(x, shape_of(repeats))
TABLE["tile"] = lambda L, x, *repeats: L.tile(x, shape_of(repeats))
TABLE["flip"] = lambda L, x, dims: L.flip(x, dims_of(dims)) if dims_of(dims) else L.contiguous(x)
TABLE["fliplr"] = lambda L, x: (need(x.ndim > 1, "a matrix"), L.flip(x, [1]))[1]
TABLE["flipud"] = lambda L, x: (need(x.ndim > 0, "a dimension"), L.flip(x, [0]))[1]


@entry("roll")
def roll(L, x, shifts, dims=()):
    if not dims_of(dims):
        return L.view_as(L.roll(L.reshape(x, [-1]), dims_of(shifts), [0]), x)
    return L.roll(x, dims_of(shifts), dims_of(dims))


@entry("rot90")
def rot90(L, x, k=1, dims=(0, 1)):
    need(x.ndim >= 2 and len(dims) == 2 and dims[0] % x.ndim != dims[1] % x.ndim, "two dims")
    need(all(-x.ndim <= d < x.ndim for d in dims), "dims in range")
    k %= 4
    if k == 0:
        return L.contiguous(x)
    if k == 2:
        return L.flip(x, list(dims))
    return L.flip(L.transpose(x, *dims), [dims[0] if k == 1 else dims[1]])


@entry("constant_pad_nd", "nn_functional_pad_constant")
def pad(L, x, pads, *mode_and_value, value=None, mode="constant"):
    given = [v for v in mode_and_value if not isinstance(v, str)]
    value = given[0] if given else value
    return L.pad(x, list(pads), 0 if value is None else value)


# ---- indices -----------------------------------------------------------------------------------------------------------

@entry("gather")
def gather(L, x, dim, index, sparse_grad=False):
    return L.gather(x, dim, index)


TABLE["index_select"] = lambda L, x, dim, index: L.index_select(x, dim, index)


@entry("index_add")
def index_add(L, x, dim, index, source, alpha=1):
    return L.index_add(x, dim, index, source if alpha == 1 else L.cast(L.mul(source, L.number(alpha)), source.dtype))


@entry("take_along_dim")
def take_along_dim(L, x, index, dim=None):
    return L.take_along_dim(x, dim, index) if dim is not None else L.take_along_dim(
        L.reshape(x, [-1]), 0, L.reshape(index, [-1]))


@entry("scatter")
def scatter(L, x, dim, index, src, reduce=None):
    if not isinstance(src, Tensor):
        src = L.full(index.shape, src, x.dtype)
    if reduce:
        return L.scatter_reduce(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce], True)
    return L.scatter(x, dim, index, src)


TABLE["scatter_add"] = lambda L, x, dim, index, src: L.scatter_add(x, dim, index, src)


@entry("scatter_reduce_sum", "scatter_reduce_prod", "scatter_reduce_amax", "scatter_reduce_amin")
def scatter_reduce(L, x, dim, index, src, reduce, include_self=True):
    return L.scatter_reduce(x, dim, index, src, reduce, include_self)


@entry("sort")
def sort(L, x, dim=-1, descending=False, stable=None):
    return [L.sort(x, dim, descending), L.argsort(x, dim, descending)]


@entry("msort")
def msort(L, x):
    return L.sort(x, 0, False)


@entry("argsort")
def argsort(L, x, dim=-1, descending=False, stable=None):
    return L.argsort(x, dim, descending)


@entry("topk")
def topk(L, x, k, dim=-1, largest=True, sorted=True):
    return [L.topk(x, k, dim, largest), L.topk_indices(x, k, dim, largest)]


@entry("nn_functional_embedding")
def embedding(L, weight, index, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    lacks(max_norm is not None, "max_norm")
    lacks(padding_idx is not None or scale_grad_by_freq, "padding_idx, scale_grad_by_freq")
    return L.embedding(index, weight)


# ---- reductions --------------------------------------------------------------------------------------------------------

for NAME in ("sum", "prod"):
    TABLE[NAME] = lambda L, x, dim=None, keepdim=False, dtype=None, f=NAME: cast(
        L, getattr(L, f)(cast(L, x, dtype), dims_of(dim), keepdim), dtype)
for NAME in ("amax", "amin", "any", "all"):
    TABLE[NAME] = lambda L, x, dim=None, keepdim=False, f=NAME: getattr(L, f)(x, dims_of(dim), keepdim)
for NAME in ("argmax", "argmin"):
    TABLE[NAME] = lambda L, x, dim=None, keepdim=False, f=NAME: getattr(L, f)(x, dims_of(dim), keepdim)
TABLE["count_nonzero"] = lambda L, x, dim=None: L.count_nonzero(x, dims_of(dim), False)
TABLE["mean"] = lambda L, x, dim=None, keepdim=False, dtype=None: L.mean(cast(L, x, dtype), dims_of(dim), keepdim)
TABLE["logsumexp"] = lambda L, x, dim, keepdim=False: L.logsumexp(x, dims_of(dim), keepdim)


@entry("aminmax")
def aminmax(L, x, dim=None, keepdim=False):
    return [L.amin(x, dims_of(dim), keepdim), L.amax(x, dims_of(dim), keepdim)]


@entry("max_reduction_no_dim")
def max_all(L, x):
    return L.amax(x, [], False)


@entry("min_reduction_no_dim")
def min_all(L, x):
    return L.amin(x, [], False)


for NAME in ("max", "min"):
    TABLE[f"{NAME}_reduction_with_dim"] = lambda L, x, dim, keepdim=False, f=NAME: [
        getattr(L, f)(x, dim, keepdim), getattr(L, f"arg{f}")(x, [dim], keepdim)]


for NAME in ("cumsum", "cumprod"):
    TABLE[NAME] = lambda L, x, dim, dtype=None, f=NAME: getattr(L, f)(cast(L, x, dtype), dim)


def spread(name, with_mean):
    def call(L, x, dim=None, unbiased=None, correction=None, keepdim=False):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        lacks(correction != int(correction), "a correction that is not whole")
        v = getattr(L, name)(x, dims_of(dim), correction, keepdim)
        return [v, L.mean(x, dims_of(dim), keepdim)] if with_mean else v
    return call


for NAME in ("std", "var"):
    TABLE[NAME] = TABLE[f"{NAME}_unbiased"] = spread(NAME, False)
    TABLE[f"{NAME}_mean"] = TABLE[f"{NAME}_mean_unbiased"] = spread(NAME, True)


@entry("linalg_vector_norm")
def vector_norm(L, x, ord=2, dim=None, keepdim=False, dtype=None):
    return L.norm(cast(L, x, dtype), ord, dims_of(dim), keepdim)


@entry("norm", "norm_inf", "norm_fro")
def norm(L, x, p="fro", dim=None, keepdim=False, dtype=None):
    lacks(p == "nuc", "the nuclear norm")
    return L.norm(cast(L, x, dtype), 2 if p in ("fro", None) else p, dims_of(dim), keepdim)


@entry("dist")
def dist(L, x, y, p=2):
    return L.norm(L.sub(x, y), p, [], False)


@entry("linalg_norm", "linalg_norm_subgradients_at_zero")
def linalg_norm(L, x, ord=None, dim=None, keepdim=False, dtype=None):
    dims = dims_of(dim) or list(range(x.ndim))
    matrix = len(dims) == 2 and (dim is not None or ord is not None)
    lacks(matrix and ord not in (None, "fro"), "norms of matrices")
    lacks(len(dims) > 2 and ord is not None and dim is None, "norms of matrices")
    return L.norm(cast(L, x, dtype), 2 if ord in (None, "fro") else ord, dims_of(dim), keepdim)


@entry("linalg_matrix_norm")
def matrix_norm(L, x, ord="fro", dim=(-2, -1), keepdim=False, dtype=None):
    lacks(ord != "fro", "norms of matrices")
    return L.norm(cast(L, x, dtype), 2, list(dim), keepdim)


@entry("sum_to_size")
def sum_to_size(L, x, *size):
    size = shape_of(size)
    extra = x.ndim - len(size)
    dims = [d for d in range(x.ndim) if d < extra or (size[d - extra] == 1 and x.shape[d] != 1)]
    lacks(x.dtype == torch.bool, "bools")
    return L.reshape(L.sum(x, dims, True), size) if dims else L.reshape(x, size)


# ---- products ----------------------------------------------------------------------------------------------------------

for NAME in ("matmul", "mm", "bmm", "mv", "dot", "outer"):
    TABLE[NAME] = lambda L, x, y, f=NAME: getattr(L, f)(x, y)
TABLE["vdot"] = lambda L, x, y: L.dot(x, y)
TABLE["inner"] = lambda L, x, y: (lacks(not x.ndim or not y.ndim, "rank 0"), L.matmul(x, L.t(y)))[1] if y.ndim < 3 else (
    lacks(True, "more than two dimensions"))
TABLE["addmm"] = TABLE["addmm_decomposed"] = lambda L, x, a, b, beta=1, alpha=1: L.addmm(x, a, b, beta, alpha)
TABLE["baddbmm"] = lambda L, x, a, b, beta=1, alpha=1: L.baddbmm(x, a, b, beta, alpha)


@entry("addmv")
def addmv(L, x, matrix, vector, beta=1, alpha=1):
    return L.gemv(matrix, vector, x, alpha, beta, False)


def whole_factors(x, beta, alpha):
    """PyTorch cuts fractions of factors off beside integers, and takes them as truth beside bools."""
    lacks(not x.dtype.is_floating_point and (beta != int(beta) or alpha != int(alpha)), "fractions beside integers")
    lacks(x.dtype == torch.bool and (beta != 1 or alpha != 1), "factors beside bools")


@entry("addr")
def addr(L, x, a, b, beta=1, alpha=1):
    whole_factors(x, beta, alpha)
    product = L.outer(a, b)
    product = product if alpha == 1 else L.mul(product, L.number(alpha))
    if beta == 0:
        return product
    return L.add(x if beta == 1 else L.mul(x, L.number(beta)), product)


@entry("addbmm")
def addbmm(L, x, a, b, beta=1, alpha=1):
    whole_factors(x, beta, alpha)
    product = L.sum(L.bmm(a, b), [0], False)
    product = L.cast(product, x.dtype)
    product = product if alpha == 1 else L.mul(product, L.number(alpha))
    if beta == 0:
        return product
    return L.add(x if beta == 1 else L.mul(x, L.number(beta)), product)


@entry("linalg_multi_dot")
def multi_dot(L, given):
    out = given[0]
    for x in given[1:]:
        out = L.matmul(out, x)
    return out


@entry("linalg_vecdot")
def vecdot(L, x, y, dim=-1):
    return L.sum(L.mul(x, y), [dim], False)


TABLE["nn_functional_linear"] = lambda L, x, weight, bias=None: L.linear(x, weight, bias)


@entry("nn_functional_cosine_similarity")
def cosine_similarity(L, x, y, dim=1, eps=1e-8):
    return L.cosine_similarity(x, y, dim, eps=eps)


@entry("linalg_cholesky")
def cholesky(L, x, upper=False):
    factor = L.linalg_cholesky(x)
    return L.transpose(factor, -2, -1) if upper else factor


for NAME in ("det", "inv", "svdvals"):
    TABLE[f"linalg_{NAME}"] = lambda L, x, f=NAME: getattr(L, f"linalg_{f}")(x)


def lower_triangle(L, x, UPLO):
    need(UPLO in ("L", "U", "l", "u"), "UPLO")
    return x if UPLO in ("L", "l") else L.transpose(x, -2, -1)


TABLE["linalg_eigvalsh"] = lambda L, x, UPLO="L": L.linalg_eigvalsh(lower_triangle(L, x, UPLO))
TABLE["linalg_inv_ex"] = lambda L, x, check_errors=False: [L.linalg_inv(x)]
TABLE["linalg_cholesky_ex"] = lambda L, x, upper=False, check_errors=False: [cholesky(L, x, upper)]
TABLE["logdet"] = lambda L, x: L.log(L.linalg_det(x))
TABLE["linalg_slogdet"] = lambda L, x: L.linalg_slogdet(x)


TABLE["linalg_eig"] = lambda L, x: L.linalg_eig(x)
TABLE["linalg_eigvals"] = lambda L, x: L.linalg_eigvals(x)


@entry("linalg_eigh")
def eigh(L, x, UPLO="L"):
    return L.linalg_eigh(lower_triangle(L, x, UPLO))


@entry("linalg_svd", "svd")
def svd(L, x, full_matrices=True, some=None, compute_uv=True):
    lacks(not compute_uv, "svd without vectors")
    full_matrices = full_matrices if some is None else not some
    u, s, vh = L.linalg_svd(x, full_matrices)
    return [u, s, vh]


@entry("linalg_qr")
def qr(L, x, mode="reduced"):
    lacks(mode != "reduced", f"mode {mode}")
    return L.linalg_qr(x)


@entry("linalg_lu")
def lu(L, x, pivot=True):
    lacks(not pivot, "LU without pivots")
    return L.linalg_lu(x)


@entry("linalg_solve")
def solve(L, a, b, left=True):
    if left:
        return L.linalg_solve(a, b)
    vector = b.ndim == 1 or b.shape == a.shape[:-1]
    lacks(vector, "a vector from the right")
    return L.transpose(L.linalg_solve(L.transpose(a, -2, -1), L.transpose(b, -2, -1)), -2, -1)


TABLE["linalg_solve_ex"] = lambda L, a, b, left=True, check_errors=False: [solve(L, a, b, left)]


@entry("linalg_solve_triangular")
def solve_triangular(L, a, b, upper, left=True, unitriangular=False):
    lacks(unitriangular, "unitriangular")
    if left:
        return L.linalg_solve_triangular(a, b, upper)
    return L.transpose(L.linalg_solve_triangular(L.transpose(a, -2, -1), L.transpose(b, -2, -1), not upper), -2, -1)


@entry("triangular_solve")
def triangular_solve(L, b, a, upper=True, transpose=False, unitriangular=False):
    lacks(unitriangular, "unitriangular")
    a, upper = (L.transpose(a, -2, -1), not upper) if transpose else (a, upper)
    return [L.linalg_solve_triangular(a, b, upper)]


# ---- layers ------------------------------------------------------------------------------------------------------------

def layer(name):
    def add(function):
        TABLE[f"nn_functional_{name}"] = function
        return function
    return add


layer("hardtanh")(lambda L, x, min_val=-1.0, max_val=1.0, inplace=False: L.hardtanh(x, min_val, max_val))
layer("leaky_relu")(lambda L, x, negative_slope=0.01, inplace=False: L.leaky_relu(x, negative_slope))
layer("prelu")(lambda L, x, weight: L.prelu(x, weight))
layer("gelu")(lambda L, x, approximate="none": L.gelu(x, approximate=approximate))
layer("glu")(lambda L, x, dim=-1: L.glu(x, dim))
layer("softplus")(lambda L, x, beta=1, threshold=20: L.softplus(x, beta=beta, threshold=threshold))


@layer("elu")
def elu(L, x, alpha=1.0, inplace=False):
    return L.elu(x, alpha)


@entry("softmax", "softmax_with_dtype")
def softmax(L, x, dim, dtype=None):
    return L.softmax(cast(L, x, dtype), dim)


@entry("log_softmax", "log_softmax_with_dtype")
def log_softmax(L, x, dim, dtype=None):
    return L.log_softmax(cast(L, x, dtype), dim)


@entry("nn_functional_softmin", "nn_functional_softmin_with_dtype")
def softmin(L, x, dim, dtype=None):
    return L.softmax(L.neg(cast(L, x, dtype)), dim)


layer("layer_norm")(lambda L, x, shape, weight=None, bias=None, eps=1e-5: L.layer_norm(x, list(shape), weight, bias, eps=eps))
layer("rms_norm")(lambda L, x, shape, weight=None, eps=None: L.rms_norm(x, list(shape), weight, **rms_eps(eps)))
layer("group_norm")(lambda L, x, groups, weight=None, bias=None, eps=1e-5: L.group_norm(x, groups, weight, bias, eps=eps))


def rms_eps(eps):
    return {} if eps is None else {"eps": eps}


@layer("normalize")
def normalize(L, x, p=2.0, dim=1, eps=1e-12):
    return L.div(x, L.maximum(L.norm(x, p, dims_of(dim), True), L.number(eps)))


@layer("instance_norm")
def instance_norm(L, x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1,
                  eps=1e-5):
    lacks(not use_input_stats, "running statistics")
    return L.instance_norm(x, weight, bias, eps=eps)


@layer("batch_norm")
def batch_norm(L, x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    lacks(x.ndim < 2, "a batch without channels")
    return L.batch_norm(x, running_mean, running_var, weight, bias, training, eps=eps)


@entry("native_batch_norm")
def native_batch_norm(L, x, weight, bias, running_mean, running_var, training, momentum, eps):
    return [batch_norm(L, x, running_mean, running_var, weight, bias, training, momentum, eps)]


@entry("native_layer_norm")
def native_layer_norm(L, x, shape, weight, bias, eps):
    return [L.layer_norm(x, list(shape), weight, bias, eps=eps)]


@entry("native_group_norm")
def native_group_norm(L, x, weight, bias, n, c, inner, groups, eps):
    return [L.group_norm(x, groups, weight, bias, eps=eps)]


def same_padding(L, padding):
    lacks(isinstance(padding, str), f"padding as the word '{padding}'")
    return padding


def pair(v):
    return list(v) * 2 if isinstance(v, (list, tuple)) and len(v) == 1 else v


@layer("conv2d")
def conv2d(L, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return L.conv2d(x, weight, bias, stride=pair(stride), padding=pair(same_padding(L, padding)), dilation=pair(dilation),
                    groups=groups)


def single(v):
    return v[0] if isinstance(v, (list, tuple)) else v


@layer("conv1d")
def conv1d(L, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return L.conv1d(x, weight, bias, stride=single(stride), padding=single(same_padding(L, padding)),
                    dilation=single(dilation), groups=groups)


@layer("conv_transpose2d")
def conv_transpose2d(L, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return L.conv_transpose2d(x, weight, bias, stride=pair(stride), padding=pair(padding),
                              output_padding=pair(output_padding), groups=groups, dilation=pair(dilation))


@layer("conv_transpose1d")
def conv_transpose1d(L, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """The one in two dimensions with a height of 1."""
    y = L.conv_transpose2d(L.unsqueeze(x, -2), L.unsqueeze(weight, -2), bias, stride=[1, single(stride)],
                           padding=[0, single(padding)], output_padding=[0, single(output_padding)], groups=groups,
                           dilation=[1, single(dilation)])
    return L.squeeze(y, [-2])


@layer("max_pool2d")
def max_pool2d(L, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    options = {"padding": pair(padding), "dilation": pair(dilation), "ceil_mode": ceil_mode}
    if stride is not None and stride != ():
        options["stride"] = pair(stride)
    y = L.max_pool2d(x, pair(kernel_size), **options)
    return [y, L.max_pool2d_indices(x, pair(kernel_size), **options)] if return_indices else y


@layer("max_pool1d")
def max_pool1d(L, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The one in two dimensions with a height of 1."""
    need(stride is None or stride == () or single(stride) > 0, "a stride")
    need(x.ndim == 2 and x.shape[0] or x.ndim == 3 and x.shape[1], "channels")
    y = max_pool2d(L, L.unsqueeze(x, -2), [1, single(kernel_size)], [1, single(stride or kernel_size)], [0, single(padding)],
                   [1, single(dilation)], ceil_mode, return_indices)
    return [L.squeeze(v, [-2]) for v in y] if return_indices else L.squeeze(y, [-2])


@layer("avg_pool2d")
def avg_pool2d(L, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    options = {"padding": pair(padding), "ceil_mode": ceil_mode}
    if stride is not None and stride != ():
        options["stride"] = pair(stride)
    need(divisor_override != 0, "a divisor")
    if divisor_override is not None:
        options["divisor_override"] = divisor_override
    return L.avg_pool2d(x, pair(kernel_size), count_include_pad=count_include_pad, **options)


@layer("avg_pool1d")
def avg_pool1d(L, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    stride = stride if stride not in (None, ()) else kernel_size
    y = avg_pool2d(L, L.unsqueeze(x, -2), [1, single(kernel_size)], [1, single(stride)], [0, single(padding)], ceil_mode,
                   count_include_pad)
    return L.squeeze(y, [-2])


@layer("adaptive_avg_pool2d")
def adaptive_avg_pool2d(L, x, output_size):
    size = [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    return L.adaptive_avg_pool2d(x, [extent if s is None else s for s, extent in zip(size, x.shape[-2:])])


@layer("adaptive_avg_pool1d")
def adaptive_avg_pool1d(L, x, output_size):
    return L.squeeze(L.adaptive_avg_pool2d(L.unsqueeze(x, -2), [1, single(output_size)]), [-2])


@layer("scaled_dot_product_attention")
def attention(L, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    lacks(dropout_p > 0, "dropout inside attention")
    options = {"is_causal": is_causal} | ({} if scale is None else {"scale": scale})
    return L.scaled_dot_product_attention(q, k, v, attn_mask, **options)


# ---- losses ------------------------------------------------------------------------------------------------------------

def reduction_of(reduction, size_average=None, reduce=None):
    lacks(size_average is not None or reduce is not None, "size_average, reduce")
    return reduction


def distance(name, **defaults):
    def call(L, x, target, size_average=None, reduce=None, reduction="mean", weight=None, **options):
        lacks(weight is not None, "weight")
        return getattr(L, name)(x, target, reduction_of(reduction, size_average, reduce), **options)
    layer(name)(call)


for NAME in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
    distance(NAME)


@layer("kl_div")
def kl_div(L, x, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    if reduction == "batchmean":
        y = L.kl_div(x, target, "sum", log_target=log_target)
        return L.div(y, L.number(x.shape[0] if x.ndim else 1))
    return L.kl_div(x, target, reduction_of(reduction, size_average, reduce), log_target=log_target)


@layer("binary_cross_entropy")
def binary_cross_entropy(L, x, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    return L.binary_cross_entropy(x, target, weight, reduction_of(reduction, size_average, reduce))


@layer("binary_cross_entropy_with_logits")
def with_logits(L, x, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
    return L.binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction_of(reduction, size_average, reduce))


@layer("nll_loss")
def nll_loss(L, x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    return L.nll_loss(x, target, weight, reduction=reduction, **ignored(L, "nll_loss", ignore_index))


def ignored(L, name, index):
    """How the ignored class is said."""
    if index == 0 and any(p.name == "ignore_zero" for p in L.ops[name].options):
        return {"ignore_zero": True}
    return {"ignore_index": index}


@layer("cross_entropy")
def cross_entropy(L, x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                  label_smoothing=0.0):
    return L.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=label_smoothing,
                           **ignored(L, "cross_entropy", ignore_index))


# ---- functions.h: indexing ---------------------------------------------------------------------------------------------

def index_entry(L, i):
    if isinstance(i, (list, tuple)):
        i = torch.tensor(i)
    return L.tensor(i) if isinstance(i, torch.Tensor) else i


@entry("__getitem__")
def getitem(L, x, index):
    """Slices, numbers and new dims one by one, then tn_index with the tensors."""
    index = list(index) if isinstance(index, tuple) else [index]
    lacks(any(isinstance(i, bool) for i in index), "a bool as index")
    index = [index_entry(L, i) for i in index]
    covered = sum(1 if not isinstance(i, Tensor) or i.dtype != torch.bool else i.ndim for i in index
                  if i is not None and i is not Ellipsis)
    need(covered <= x.ndim, "as many indices as dims")
    if Ellipsis not in [i for i in index if not isinstance(i, Tensor)]:
        index.append(Ellipsis)
    at = next(k for k, i in enumerate(index) if i is Ellipsis)
    index[at:at + 1] = [slice(None)] * (x.ndim - covered)
    several = any(isinstance(i, Tensor) for i in index)
    found, dim = [], 0
    for i in index:
        if i is None:
            x = L.unsqueeze(x, dim)
        elif isinstance(i, int) and not several:
            x = L.select(x, dim, i)
            continue
        elif isinstance(i, int):
            i = L.tensor(torch.tensor(i))
        elif isinstance(i, slice):
            need(i.step is None or i.step > 0, "a positive step")
            x = slice_(L, x, dim, i.start, i.stop, i.step or 1)
        found.append(i if isinstance(i, Tensor) else None)
        dim += i.ndim if isinstance(i, Tensor) and i.dtype == torch.bool else 1
    lacks(any(isinstance(i, Tensor) and i.dtype == torch.bool and i.ndim == 0 for i in found), "a mask without dimensions")
    return L.index(x, found) if several else x


@entry("index_put")
def index_put(L, x, indices, values, accumulate=False):
    lacks(any(isinstance(i, Tensor) and i.dtype == torch.bool and i.ndim == 0 for i in indices), "a mask without dimensions")
    return L.index_put(x, list(indices), values, accumulate)


TABLE["nonzero"] = lambda L, x, as_tuple=False: (
    [L.select(L.nonzero(x), 1, d) for d in range(x.ndim)] if as_tuple else L.nonzero(x))
TABLE["argwhere"] = lambda L, x: L.nonzero(x)
TABLE["masked_select"] = lambda L, x, mask: L.masked_select(x, mask)
TABLE["masked_scatter"] = lambda L, x, mask, source: L.masked_scatter(x, mask, source)
TABLE["take"] = lambda L, x, index: L.take(x, index)
TABLE["put"] = lambda L, x, index, source, accumulate=False: L.put(x, index, source, accumulate)


@entry("index_fill")
def index_fill(L, x, dim, index, value):
    lacks(isinstance(value, Tensor) and value.ndim == 0, "a tensor to fill with")
    need(not isinstance(value, Tensor), "a value without dimensions")
    return L.index_fill(x, dim, index, value)


TABLE["index_copy"] = lambda L, x, dim, index, source: L.index_copy(x, dim, index, source)


@entry("index_reduce_prod", "index_reduce_amin", "index_reduce_amax")
def index_reduce(L, x, dim, index, source, reduce, include_self=True):
    return L.index_reduce(x, dim, index, source, reduce, include_self)


@entry("scatter_reduce_mean")
def scatter_mean(L, x, dim, index, src, reduce="mean", include_self=True):
    return L.scatter_mean(x, dim, index, src, include_self)


@entry("unique")
def unique(L, x, sorted=True, return_inverse=False, return_counts=False, dim=None):
    lacks(dim is not None, "unique rows")
    y, inverse, counts = L.unique(x, results=2)
    return [y, *([inverse] if return_inverse else []), *([counts] if return_counts else [])]


@entry("unique_consecutive")
def unique_consecutive(L, x, return_inverse=False, return_counts=False, dim=None):
    lacks(dim is not None, "unique rows")
    y, inverse, counts = L.unique_consecutive(x, results=2)
    return [y, *([inverse] if return_inverse else []), *([counts] if return_counts else [])]


TABLE["bincount"] = lambda L, x, weights=None, minlength=0: L.bincount(x, weights, minlength)
TABLE["histc"] = lambda L, x, bins=100, min=0, max=0: L.histc(x, bins, min, max)


@entry("searchsorted")
def searchsorted(L, sorted_, values, out_int32=False, right=False, side=None, sorter=None):
    need(side is None or not (right and side == "left"), "side and right to agree")
    if sorter is not None:
        need(sorter.shape == sorted_.shape and sorter.dtype == torch.int64, "a sorter")
        sorted_ = L.gather(sorted_, -1, sorter)
    y = L.searchsorted(sorted_, tensors(L, values), right or side == "right")
    return L.cast(y, torch.int32) if out_int32 else y


@entry("bucketize")
def bucketize(L, x, boundaries, out_int32=False, right=False):
    y = L.bucketize(tensors(L, x), boundaries, right)
    return L.cast(y, torch.int32) if out_int32 else y


TABLE["isin"] = lambda L, x, values, assume_unique=False, invert=False: L.isin(tensors(L, x), tensors(L, values), invert)


@entry("repeat_interleave")
def repeat_interleave(L, x, repeats, dim=None, output_size=None):
    if dim is None:
        x, dim = L.reshape(x, [-1]), 0
    by = isinstance(repeats, Tensor)
    return (L.repeat_interleave_by if by else L.repeat_interleave)(x, repeats, dim)


# ---- functions.h: shapes -----------------------------------------------------------------------------------------------

TABLE["diagonal"] = TABLE["diagonal_copy"] = lambda L, x, offset=0, dim1=0, dim2=1: L.diagonal(x, offset, dim1, dim2)
TABLE["linalg_diagonal"] = lambda L, x, offset=0, dim1=-2, dim2=-1: L.diagonal(x, offset, dim1, dim2)
TABLE["diagonal_scatter"] = lambda L, x, src, offset=0, dim1=0, dim2=1: L.diagonal_scatter(x, src, offset, dim1, dim2)
TABLE["diag_embed"] = lambda L, x, offset=0, dim1=-2, dim2=-1: L.diag_embed(x, offset, dim1, dim2)
TABLE["diag"] = lambda L, x, diagonal=0: L.diag(x, diagonal)
TABLE["diagflat"] = lambda L, x, offset=0: L.diagflat(x, offset)
TABLE["select_scatter"] = lambda L, x, src, dim, index: L.select_scatter(x, src, dim, index)


@entry("slice_scatter")
def slice_scatter(L, x, src, dim=0, start=None, end=None, step=1):
    return L.slice_scatter(x, src, dim, 0 if start is None else start, 2**63 - 1 if end is None else end, step)


@entry("as_strided_scatter")
def as_strided_scatter(L, x, src, size, stride, storage_offset=0):
    return L.as_strided_scatter(x, src, list(size), list(stride), storage_offset or 0)


for NAME in ("tril_indices", "triu_indices"):
    TABLE[NAME] = lambda L, row, col, offset=0, f=NAME, dtype=torch.int64, **kw: (
        ignore_memory(kw), cast(L, getattr(L, f)(row, col, offset), dtype))[1]


@entry("meshgrid_variadic_tensors", "meshgrid_list_of_tensors")
def meshgrid(L, *given, indexing="ij"):
    given = given[0] if isinstance(given[0], (list, tuple)) else given
    need(indexing in ("ij", "xy"), "indexing")
    need(all(t.dtype == given[0].dtype for t in given), "one dtype")
    return L.meshgrid(list(given), indexing == "xy", results=1)


TABLE["cartesian_prod"] = lambda L, *given: L.cartesian_prod(list(given))
TABLE["combinations"] = lambda L, x, r=2, with_replacement=False: L.combinations(x, r, with_replacement)
TABLE["block_diag"] = lambda L, *given: L.block_diag(list(given))
TABLE["unfold"] = TABLE["unfold_copy"] = lambda L, x, dim, size, step: L.unfold(x, dim, size, step)
TABLE["linalg_vander"] = lambda L, x, N=None: L.vander(x, x.shape[-1] if N is None else N)
# Complex numbers have a last dimension of extent 2; so have PyTorch's results, once compare.py has read them.
NORMS = {None: 0, "backward": 0, "ortho": 1, "forward": 2}
OTHER_WAY = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def as_complex(L, x):
    x = x if x.dtype.is_floating_point else L.cast(x, torch.float32)
    return L.stack([x, L.zeros_like(x)], -1)


def conjugate(L, x):
    return L.mul(x, L.tensor(torch.tensor([1.0, -1.0], dtype=x.dtype)))


def fourier(name, real):
    def along(L, x, n=None, dim=-1, norm=None):
        given = x if real else as_complex(L, x)
        return getattr(L, name)(given, -1 if n is None else n, dim % x.ndim, NORMS[norm])

    def over(L, x, s=None, dim=None, norm=None):
        s, dim = [[v] if isinstance(v, int) else v for v in (s, dim)]
        count = len(s) if s is not None else x.ndim
        dims = [d % x.ndim for d in (dim if dim is not None else range(x.ndim - count, x.ndim))]
        return getattr(L, f"{name}n")(x if real else as_complex(L, x), s, dims, NORMS[norm])

    TABLE[f"fft_{name}"] = along
    TABLE[f"fft_{name}n"] = over
    TABLE[f"fft_{name}2"] = lambda L, x, s=None, dim=(-2, -1), norm=None: over(L, x, s, dim, norm)


for NAME in ("fft", "ifft", "irfft"):
    fourier(NAME, False)
fourier("rfft", True)
TABLE["fft_hfft"] = lambda L, x, n=None, dim=-1, norm=None: TABLE["fft_irfft"](L, x, n, dim, OTHER_WAY[norm])
TABLE["fft_ihfft"] = lambda L, x, n=None, dim=-1, norm=None: (
    conjugate(L, TABLE["fft_rfft"](L, x, n, dim, OTHER_WAY[norm])))
TABLE["fft_fftshift"] = lambda L, x, dim=None: shifted(L, x, dim, lambda n: n // 2)
TABLE["fft_ifftshift"] = lambda L, x, dim=None: shifted(L, x, dim, lambda n: (n + 1) // 2)


def shifted(L, x, dim, by):
    dims = dims_of(dim) or list(range(x.ndim))
    return L.roll(x, [by(x.shape[d]) for d in dims], dims) if dims else L.contiguous(x)


@entry("broadcast_shapes")
def broadcast_shapes(L, *shapes):
    given = [L.zeros([s] if isinstance(s, int) else list(s), FLOAT) for s in shapes]
    total = given[0]
    for t in given[1:]:
        total = L.add(total, t)
    return [L.tensor(torch.tensor(n)) for n in total.shape]


for NAME, MODE in (("reflect", 0), ("replicate", 1), ("replicate_negative", 1), ("circular", 2)):
    TABLE[f"nn_functional_pad_{NAME}"] = lambda L, x, pads, mode=None, value=None, m=MODE: (
        need(len(pads) // 2 <= x.ndim - 1, "dims to pad"), L.pad_by(x, list(pads), m))[1]


# ---- functions.h: products ---------------------------------------------------------------------------------------------

@entry("einsum")
def einsum(L, given, equation):
    lacks(any(not isinstance(t, Tensor) for t in given), "lists of labels")
    return L.einsum(equation, list(given))


@entry("tensordot")
def tensordot(L, x, y, dims=2):
    if isinstance(dims, Tensor):
        dims = dims.read().tolist()
    if isinstance(dims, int):
        need(0 <= dims <= min(x.ndim, y.ndim), "dims")
        dims = (list(range(x.ndim - dims, x.ndim)), list(range(dims)))
    a, b = [[d] if isinstance(d, int) else list(d) for d in dims]
    return L.tensordot(x, y, a, b)


TABLE["inner"] = lambda L, x, y: L.inner(x, y)
TABLE["kron"] = lambda L, x, y: L.kron(x, y)


@entry("linalg_cross", "cross")
def cross(L, x, y, dim=None):
    if dim is None:
        shape = torch.broadcast_shapes(x.shape, y.shape)
        dim = next((d for d, n in enumerate(shape) if n == 3), -1)
    shape = list(torch.broadcast_shapes(x.shape, y.shape))
    need(x.ndim == y.ndim, "equal ranks")
    return L.linalg_cross(L.broadcast_to(x, shape), L.broadcast_to(y, shape), dim)


TABLE["linalg_cross"] = lambda L, x, y, dim=-1: (
    need(x.shape[dim] == 3 and y.shape[dim] == 3, "three elements"), cross(L, x, y, dim))[1]
TABLE["nn_functional_bilinear"] = lambda L, a, b, weight, bias=None: L.bilinear(a, b, weight, bias)
TABLE["linalg_matrix_power"] = lambda L, x, n: L.linalg_matrix_power(x, n)
TABLE["matrix_exp"] = lambda L, x: L.linalg_matrix_exp(x)


def cutoff(atol, rtol):
    lacks(atol is not None or isinstance(rtol, Tensor), "atol, or rtol as a tensor")
    return -1 if rtol is None else rtol


@entry("linalg_pinv")
def pinv(L, x, atol=None, rtol=None, hermitian=False, rcond=None):
    lacks(hermitian, "hermitian")
    return L.linalg_pinv(x, cutoff(atol, rtol if rtol is not None else rcond))


@entry("linalg_lstsq_grad_oriented")
def lstsq(L, a, b, rcond=None, driver=None):
    lacks(b.ndim != a.ndim, "a vector")
    return L.linalg_lstsq(a, b, -1 if rcond is None else rcond)


TABLE["pinverse"] = lambda L, x, rcond=1e-15: L.linalg_pinv(x, rcond)

@entry("linalg_matrix_rank")
def matrix_rank(L, x, atol=None, rtol=None, hermitian=False, tol=None):
    lacks(hermitian or tol is not None, "hermitian, tol")
    return L.linalg_matrix_rank(x, cutoff(atol, rtol))


def norm_of_matrix(L, x, ord, keepdim):
    if ord in ("fro", "nuc"):
        return L.linalg_matrix_norm(x, ("fro", "nuc").index(ord), keepdim)
    return L.linalg_matrix_norm_of(x, ord, keepdim)


@entry("linalg_matrix_norm")
def matrix_norm(L, x, ord="fro", dim=(-2, -1), keepdim=False, dtype=None):
    x = cast(L, x, dtype)
    need(len(dim) == 2 and x.ndim >= 2 and dim[0] % x.ndim != dim[1] % x.ndim, "two dims")
    a, b = [d % x.ndim for d in dim]
    rest = [d for d in range(x.ndim) if d not in (a, b)]
    y = norm_of_matrix(L, L.permute(x, [*rest, a, b]), ord, keepdim)
    if not keepdim:
        return y
    order = [*rest, a, b]
    return L.permute(y, [order.index(d) for d in range(x.ndim)])


@entry("linalg_norm", "linalg_norm_subgradients_at_zero")
def linalg_norm(L, x, ord=None, dim=None, keepdim=False, dtype=None):
    dims = dims_of(dim)
    if ord is not None and (len(dims) == 2 or (dim is None and x.ndim == 2)):
        return matrix_norm(L, x, ord, dims or (0, 1), keepdim, dtype)
    need(ord is None or isinstance(ord, (int, float)), "a number")
    need(ord is None or dim is not None or x.ndim < 3, "dims")
    return L.norm(cast(L, x, dtype), 2 if ord is None else ord, dims, keepdim)


TABLE["norm_nuc"] = lambda L, x, p="nuc", dim=None, keepdim=False: matrix_norm(L, x, "nuc", dim or (0, 1), keepdim)


@entry("linalg_cond")
def cond(L, x, p=None):
    if p in ("fro", "nuc"):
        return L.mul(norm_of_matrix(L, x, p, False), norm_of_matrix(L, L.linalg_inv(x), p, False))
    return L.linalg_cond(x, 2 if p is None else p)


# ---- functions.h: statistics -------------------------------------------------------------------------------------------

@entry("kthvalue")
def kthvalue(L, x, k, dim=-1, keepdim=False):
    return L.kthvalue(x, k, dim, keepdim, results=1)


@entry("median")
def median(L, x, dim=None, keepdim=False):
    return L.median(L.reshape(x, [-1]), 0, False) if dim is None else L.median(x, dim, keepdim, results=1)


@entry("nanmedian")
def nanmedian(L, x, dim=None, keepdim=False):
    return L.nanmedian(L.reshape(x, [-1]), 0, False) if dim is None else L.nanmedian(x, dim, keepdim, results=1)


TABLE["mode"] = lambda L, x, dim=-1, keepdim=False: L.mode(x, dim, keepdim, results=1)
QUANTILES = ["linear", "lower", "higher", "midpoint", "nearest"]


def quantile_of(name):
    def call(L, x, q, dim=None, keepdim=False, interpolation="linear"):
        need(interpolation in QUANTILES, "an interpolation")
        q = q if isinstance(q, Tensor) else L.tensor(torch.tensor(q, dtype=x.dtype))
        rank = x.ndim
        y = getattr(L, name)(L.reshape(x, [-1]) if dim is None else x, q, 0 if dim is None else dim,
                             keepdim and dim is not None, QUANTILES.index(interpolation))
        return L.reshape(y, [*q.shape, *[1] * rank]) if keepdim and dim is None else y
    TABLE[name] = call


quantile_of("quantile")
quantile_of("nanquantile")
for NAME in ("cummax", "cummin"):
    TABLE[NAME] = lambda L, x, dim, f=NAME: getattr(L, f)(x, dim, results=1)
TABLE["logcumsumexp"] = lambda L, x, dim: L.logcumsumexp(x, dim)


@entry("diff")
def diff(L, x, n=1, dim=-1, prepend=None, append=None):
    need(x.ndim > 0, "a dimension")
    if n == 0:
        return L.contiguous(x)
    given = [t for t in (prepend, x, append) if t is not None]
    return L.diff(L.cat(given, dim) if len(given) > 1 else x, n, dim)


@entry("trapz", "trapezoid")
def trapezoid(L, y, x=None, dim=-1, dx=1):
    return L.trapezoid(y, x, dx, dim)


TABLE["cumulative_trapezoid"] = lambda L, y, x=None, dim=-1, dx=1: L.cumulative_trapezoid(y, x, dx, dim)


@entry("cov")
def cov(L, x, correction=1, fweights=None, aweights=None):
    lacks(fweights is not None or aweights is not None, "weights")
    return L.cov(x, correction)


TABLE["corrcoef"] = lambda L, x: L.corrcoef(x)
TABLE["renorm"] = lambda L, x, p, dim, maxnorm: L.renorm(x, p, dim, maxnorm)
TABLE["nansum"] = lambda L, x, dim=None, keepdim=False, dtype=None: cast(
    L, L.nansum(cast(L, x, dtype), dims_of(dim), keepdim), dtype)
TABLE["nanmean"] = lambda L, x, dim=None, keepdim=False, dtype=None: L.nanmean(cast(L, x, dtype), dims_of(dim), keepdim)


# ---- element by element ------------------------------------------------------------------------------------------------

for NAME in "copysign fmax fmin logaddexp2".split():
    two_operands(NAME)
two_operands("special_xlog1py", "xlog1py")
for NAME in ("signbit", "sinc"):
    one_operand(NAME)
one_operand("special_entr", "entr")
one_operand("erfinv", "erfinv")
for NAME in "lgamma digamma i0".split():
    one_operand(NAME)
for NAME in "i0e i1 i1e".split():
    one_operand("special_" + NAME, NAME)
for NAME in "i0 i1".split():
    one_operand("special_modified_bessel_" + NAME, NAME)


@entry(*[f"polygamma_polygamma_n_{n}" for n in range(5)], "special_polygamma_special_polygamma_n_0")
def polygamma(L, x, n):
    lacks(n == 1 and x.dtype == torch.float64, "PyTorch's trigamma in f64, which is good to 9 digits")
    return L.polygamma(n, x)


TABLE["logit"] = lambda L, x, eps=None: L.logit(x, -1 if eps is None else eps)
TABLE["isclose"] = lambda L, x, y, rtol=1e-5, atol=1e-8, equal_nan=False: (
    need(x.dtype == y.dtype, "one dtype"), L.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan))[1]
TABLE["allclose"] = lambda L, x, y, rtol=1e-5, atol=1e-8, equal_nan=False: (
    need(x.dtype == y.dtype, "one dtype"), L.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan))[1]
TABLE["isposinf"] = lambda L, x: L.eq(x, L.number(math.inf))
TABLE["isneginf"] = lambda L, x: L.eq(x, L.number(-math.inf))
TABLE["isreal"] = lambda L, x: L.ones(x.shape, torch.bool)
TABLE["ldexp"] = lambda L, x, y: L.mul(x, cast(L, L.pow(L.number(2.0), y), x.dtype if x.dtype.is_floating_point else None))
TABLE["equal"] = lambda L, x, y: (
    L.all(L.eq(x, y), [], False) if x.shape == y.shape else L.zeros([], torch.bool))


@entry("round_decimals_0", "round_decimals_3", "round_decimals_neg_3")
def round_decimals(L, x, decimals=0):
    if not x.dtype.is_floating_point or decimals == 0:
        return L.round(x)
    scale = L.number(10.0 ** abs(decimals))
    up, down = (L.mul, L.div) if decimals > 0 else (L.div, L.mul)
    return down(L.round(up(x, scale)), scale)


@entry("logspace", "logspace_tensor_overload")
def logspace(L, start, end, steps, base=10.0, dtype=FLOAT, **kwargs):
    ignore_memory(kwargs)
    need(all(not isinstance(v, Tensor) or v.numel() == 1 for v in (start, end)), "numbers")
    start, end = [v.read().item() if isinstance(v, Tensor) else v for v in (start, end)]
    lacks(any(isinstance(v, complex) for v in (start, end, base)), "complex numbers")
    power = L.linspace(start, end, steps, torch.float64)
    return L.cast(L.pow(L.number(float(base)), power), dtype or FLOAT)


@entry("item")
def item(L, x):
    need(x.numel() == 1, "one element")
    whole = x.dtype == torch.bool or not x.dtype.is_floating_point
    return L.reshape(cast(L, x, (x.dtype if x.dtype == torch.bool else torch.int64) if whole else FLOAT), [])


for NAME, CALL in (("exponential", lambda L, s, lambd=1.0: L.exponential(lambd, s)),
                   ("cauchy", lambda L, s, median=0.0, sigma=1.0: L.cauchy(median, sigma, s)),
                   ("log_normal", lambda L, s, mean=1.0, std=2.0: L.log_normal(mean, std, s)),
                   ("geometric", lambda L, s, p=0.5: L.geometric(p, s))):
    SHAPE_ONLY.add(NAME)
    TABLE[NAME] = lambda L, x, *a, f=CALL, **kw: (ignore_memory(kw), L.cast(f(L, x.shape, *a), x.dtype))[1]


@entry("multinomial", shape_only=True)
def multinomial(L, p, num_samples, replacement=False, generator=None):
    return L.multinomial(p, num_samples, replacement)


# ---- functions.h: layers -----------------------------------------------------------------------------------------------

for NAME in ("softsign", "tanhshrink"):
    TABLE[f"nn_functional_{NAME}"] = lambda L, x, f=NAME: getattr(L, f)(x)
layer("celu")(lambda L, x, alpha=1.0, inplace=False: L.celu(x, alpha))
layer("hardshrink")(lambda L, x, lambd=0.5: L.hardshrink(x, lambd))
layer("softshrink")(lambda L, x, lambd=0.5: L.softshrink(x, lambd))
layer("threshold")(lambda L, x, threshold, value, inplace=False: L.threshold(x, threshold, value))
TABLE["nn_functional_softmin"] = TABLE["nn_functional_softmin_with_dtype"] = (
    lambda L, x, dim, dtype=None: L.softmin(cast(L, x, dtype), dim))


@layer("rrelu")
def rrelu(L, x, lower=1.0 / 8, upper=1.0 / 3, training=False, inplace=False):
    lacks(training, "random slopes, which differ")
    return L.rrelu(x, lower, upper, False)


def numbers_of(v, axes):
    """An argument with one number an axis, or None."""
    if v is None or v == ():
        return None
    v = list(v) if isinstance(v, (list, tuple)) else [v]
    return v * axes if len(v) == 1 else v


def pooled(axes, average):
    def largest(L, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        need(kernel_size and all(s > 0 for s in numbers_of(stride, axes) or [1]), "a kernel and strides")
        y = L.max_pool(x, axes, numbers_of(kernel_size, axes), numbers_of(stride, axes), numbers_of(padding, axes),
                       numbers_of(dilation, axes), ceil_mode, results=int(return_indices))
        return y

    def mean(L, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        need(divisor_override != 0, "a divisor")
        return L.avg_pool(x, axes, numbers_of(kernel_size, axes), numbers_of(stride, axes), numbers_of(padding, axes),
                          ceil_mode, count_include_pad, divisor_override or 0)
    return mean if average else largest


layer("max_pool3d")(pooled(3, False))
layer("avg_pool3d")(pooled(3, True))


def adaptive(axes, average):
    def call(L, x, output_size, return_indices=False):
        size = output_size if isinstance(output_size, (list, tuple)) else [output_size] * axes
        need(len(size) == axes and all(n is None or n >= 0 for n in size), "a size for each axis")
        size = [-1 if s is None else s for s in size]
        if average:
            return L.adaptive_avg_pool(x, axes, size)
        return L.adaptive_max_pool(x, axes, size, results=int(return_indices))
    return call


layer("adaptive_avg_pool3d")(adaptive(3, True))
for AXES in (1, 2, 3):
    layer(f"adaptive_max_pool{AXES}d")(adaptive(AXES, False))


def unpooled(axes):
    def call(L, x, indices, kernel_size, stride=None, padding=0, output_size=None):
        kernel, padding = numbers_of(kernel_size, axes), numbers_of(padding, axes)
        stride = numbers_of(stride, axes) or kernel
        rows = indices.read().flatten(-axes).flatten(0, -2).tolist() if indices.ndim > axes else []
        lacks(any(len(set(row)) < len(row) for row in rows), "a place that is named twice")
        size = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(x.shape[-axes:], stride, padding, kernel)]
        return L.max_unpool(x, indices, axes, size if output_size is None else list(output_size)[-axes:])
    return call


for AXES in (1, 2, 3):
    TABLE[f"nn_functional_max_unpool{AXES}d"] = TABLE[f"nn_functional_max_unpool{AXES}d_grad"] = unpooled(AXES)


@layer("conv3d")
def conv3d(L, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return L.conv3d(x, weight, bias, numbers_of(stride, 3), numbers_of(same_padding(L, padding), 3),
                    numbers_of(dilation, 3), groups)


@layer("conv_transpose1d")
def conv_transpose1d(L, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return L.conv_transpose1d(x, weight, bias, single(stride), single(padding), single(output_padding), groups,
                              single(dilation))


@layer("conv_transpose3d")
def conv_transpose3d(L, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return L.conv_transpose3d(x, weight, bias, numbers_of(stride, 3), numbers_of(padding, 3),
                              numbers_of(output_padding, 3), groups, numbers_of(dilation, 3))


layer("local_response_norm")(lambda L, x, size, alpha=1e-4, beta=0.75, k=1.0: (
    lacks(not x.dtype.is_floating_point, "integers"), L.local_response_norm(x, size, alpha, beta, k))[1])
layer("pixel_shuffle")(lambda L, x, upscale_factor: L.pixel_shuffle(x, upscale_factor))
layer("pixel_unshuffle")(lambda L, x, downscale_factor: L.pixel_unshuffle(x, downscale_factor))
layer("channel_shuffle")(lambda L, x, groups: L.channel_shuffle(x, groups))


@layer("unfold")
def im2col(L, x, kernel_size, dilation=1, padding=0, stride=1):
    return L.im2col(x, *[numbers_of(v, 2) for v in (kernel_size, dilation, padding, stride)])


MODES = {"nearest": 0, "nearest-exact": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 3, "area": 4}


@entry(*[f"nn_functional_interpolate_{m}" for m in MODES])
def interpolate(L, x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None,
                antialias=False):
    axes = x.ndim - 2
    scales = None
    if size is None:
        given = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor] * axes
        size = [math.floor(n * s) for n, s in zip(x.shape[2:], given)]
        scales = None if recompute_scale_factor or mode == "area" else [float(s) for s in given]
    size = list(size) if isinstance(size, (list, tuple)) else [size] * axes
    need(mode in ("nearest", "nearest-exact", "area") or {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}[mode] == axes,
         "as many axes as the mode has")
    number = {"bilinear": 5, "bicubic": 6}.get(mode) if antialias else MODES[mode]
    need(number is not None, "antialias with bilinear or bicubic")
    return L.interpolate(x, size, scales, number, bool(align_corners))


layer("upsample_bilinear")(lambda L, x, size=None, scale_factor=None: interpolate(L, x, size, scale_factor, "bilinear", True))
layer("upsample_nearest")(lambda L, x, size=None, scale_factor=None: interpolate(L, x, size, scale_factor, "nearest"))


@layer("grid_sample")
def grid_sample(L, x, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    lacks(mode == "bicubic", "bicubic")
    return L.grid_sample(x, grid, ("bilinear", "nearest").index(mode),
                         ("zeros", "border", "reflection").index(padding_mode), bool(align_corners))


@entry("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(L, x, grid, mode, padding, align_corners):
    lacks(mode == 2, "bicubic")
    return L.grid_sample(x, grid, mode, padding, align_corners)


@layer("embedding_bag")
def embedding_bag(L, weight, index, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean",
                  sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None):
    lacks(max_norm is not None or padding_idx is not None or scale_grad_by_freq or include_last_offset,
          "max_norm, padding_idx, scale_grad_by_freq, include_last_offset")
    return L.embedding_bag(index, weight, offsets, ("sum", "mean", "max").index(mode), per_sample_weights)


for NAME in ("dropout2d", "dropout3d", "alpha_dropout"):
    SHAPE_ONLY.add(f"nn_functional_{NAME}")
    layer(NAME)(lambda L, x, p=0.5, training=True, inplace=False, f=NAME: (
        L.alpha_dropout(x, p, training) if f == "alpha_dropout" else L.feature_dropout(x, p, training, True)))


# ---- functions.h: distances and losses ---------------------------------------------------------------------------------

layer("pairwise_distance")(lambda L, x, y, p=2.0, eps=1e-6, keepdim=False: L.pairwise_distance(x, y, p, eps, keepdim))
layer("pdist")(lambda L, x, p=2.0: L.pdist(x, p))
TABLE["cdist"] = lambda L, x, y, p=2.0, compute_mode=None: L.cdist(x, y, p)


@layer("soft_margin_loss")
def soft_margin_loss(L, x, target, size_average=None, reduce=None, reduction="mean"):
    return L.soft_margin_loss(x, target, reduction_of(reduction, size_average, reduce))


@layer("hinge_embedding_loss")
def hinge_embedding_loss(L, x, target, margin=1.0, size_average=None, reduce=None, reduction="mean"):
    return L.hinge_embedding_loss(x, target, reduction_of(reduction, size_average, reduce), margin=margin)


@layer("margin_ranking_loss")
def margin_ranking_loss(L, a, b, target, margin=0.0, size_average=None, reduce=None, reduction="mean"):
    need(a.ndim == b.ndim == target.ndim, "equal ranks")
    lacks(not a.dtype.is_floating_point, "integers")
    return L.margin_ranking_loss(a, b, target, reduction_of(reduction, size_average, reduce), margin=margin)


@layer("poisson_nll_loss")
def poisson_nll_loss(L, x, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction="mean"):
    need(reduction in ("mean", "sum", "none"), "a reduction")
    lacks(not x.dtype.is_floating_point, "integers")
    return L.poisson_nll_loss(x, target, reduction_of(reduction, size_average, reduce), log_input=log_input, full=full, eps=eps)


@layer("gaussian_nll_loss")
def gaussian_nll_loss(L, x, target, var, full=False, eps=1e-6, reduction="mean"):
    need(reduction in ("mean", "sum", "none"), "a reduction")
    need(eps > 0, "eps")
    if isinstance(var, float):
        var = L.full_like(x, var)
    if var.shape != x.shape:
        if var.shape == x.shape[:-1]:
            var = L.unsqueeze(var, -1)
        else:
            need(var.ndim == x.ndim and var.shape[-1] == 1 and var.shape[:-1] == x.shape[:-1], "a variance that fits")
    return L.gaussian_nll_loss(x, target, var, reduction, full=full, eps=eps)


@layer("cosine_embedding_loss")
def cosine_embedding_loss(L, a, b, target, margin=0.0, size_average=None, reduce=None, reduction="mean"):
    return L.cosine_embedding_loss(a, b, target, margin, reduction_of(reduction, size_average, reduce))


@layer("triplet_margin_loss")
def triplet_margin_loss(L, anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, size_average=None, reduce=None,
                        reduction="mean"):
    return L.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction_of(reduction, size_average, reduce))


@layer("triplet_margin_with_distance_loss")
def triplet_margin_with_distance(L, anchor, positive, negative, distance_function=None, margin=1.0, swap=False,
                                 reduction="mean"):
    lacks(distance_function is not None, "a distance of the caller")
    return L.triplet_margin_loss(anchor, positive, negative, margin, 2, 1e-6, swap, reduction)


@layer("multi_margin_loss")
def multi_margin_loss(L, x, target, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
    return L.multi_margin_loss(x, target, weight, p, margin, reduction_of(reduction, size_average, reduce))


@layer("multilabel_margin_loss")
def multilabel_margin_loss(L, x, target, size_average=None, reduce=None, reduction="mean"):
    return L.multilabel_margin_loss(x, target, reduction_of(reduction, size_average, reduce))


@layer("multilabel_soft_margin_loss")
def multilabel_soft_margin_loss(L, x, target, weight=None, size_average=None, reduce=None, reduction="mean"):
    return L.multilabel_soft_margin_loss(x, target, weight, reduction_of(reduction, size_average, reduce))


@layer("ctc_loss")
def ctc_loss(L, log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    lengths = [L.tensor(torch.tensor(v)) if not isinstance(v, Tensor) else v for v in (input_lengths, target_lengths)]
    lacks(targets.ndim == 1, "targets in one row")
    return L.ctc_loss(log_probs, targets, *lengths, blank, reduction, zero_infinity)


# ---- windows of signals ------------------------------------------------------------------------------------------------

def cosine_window(weights):
    """Σ (−1)^k a[k] cos(2πk i / n)."""
    def call(L, M, *, sym=True, dtype=FLOAT, **kwargs):
        ignore_memory(kwargs)
        need(M >= 0, "a length")
        dtype = dtype or FLOAT
        if M == 0:
            return L.zeros([0], dtype)
        place = L.arange(0, M, 1, torch.float64)
        n = (M - 1 if sym else M) or 1
        out = L.full([M], 0.0, torch.float64)
        for k, a in enumerate(weights):
            angle = L.mul(place, L.number(2 * math.pi * k / n))
            out = L.add(out, L.mul(L.cos(angle), L.number((-1) ** k * a)))
        return L.cast(out if M > 1 else L.ones([1], torch.float64), dtype)
    return call


for NAME, WEIGHTS in (("hann", [0.5, 0.5]), ("hamming", [0.54, 0.46]), ("blackman", [0.42, 0.5, 0.08]),
                      ("nuttall", [0.3635819, 0.4891775, 0.1365995, 0.0106411])):
    TABLE[f"signal_windows_{NAME}"] = cosine_window(WEIGHTS)
TABLE["signal_windows_general_cosine"] = lambda L, M, *, a, **kw: cosine_window(a)(L, M, **kw)
TABLE["signal_windows_general_hamming"] = lambda L, M, *, alpha=0.54, **kw: cosine_window([alpha, 1 - alpha])(L, M, **kw)


# ---- masked reductions: with what changes nothing in place of masked elements -------------------------------------------

def masked(name, neutral, call):
    def run(L, x, *args, mask=None, dtype=None, **kwargs):
        x = cast(L, x, dtype)
        lacks(x.dtype == torch.bool, "bools")
        value = neutral(x.dtype)
        if mask is not None:
            x = L.where(L.broadcast_to(mask, x.shape), x, L.tensor(torch.tensor(value, dtype=x.dtype)))
        return call(L, x, *args, **kwargs)
    TABLE[f"masked_{name}"] = run


def least_of(dtype):
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def most_of(dtype):
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


masked("sum", lambda t: 0, lambda L, x, dim=None, keepdim=False: L.sum(x, dims_of(dim), keepdim))
masked("prod", lambda t: 1, lambda L, x, dim=None, keepdim=False: L.prod(x, dims_of(dim), keepdim))
masked("cumsum", lambda t: 0, lambda L, x, dim: L.cumsum(x, dim))
masked("cumprod", lambda t: 1, lambda L, x, dim: L.cumprod(x, dim))
masked("amax", least_of, lambda L, x, dim=None, keepdim=False: L.amax(x, dims_of(dim), keepdim))
masked("amin", most_of, lambda L, x, dim=None, keepdim=False: L.amin(x, dims_of(dim), keepdim))
masked("softmax", least_of, lambda L, x, dim: L.softmax(x, dim))
masked("log_softmax", least_of, lambda L, x, dim: L.log_softmax(x, dim))
masked("softmin", most_of, lambda L, x, dim: L.softmin(x, dim))
masked("logsumexp", least_of, lambda L, x, dim=None, keepdim=False: (
    lacks(not x.dtype.is_floating_point, "integers"), L.logsumexp(x, dims_of(dim), keepdim))[1])
masked("norm", lambda t: 0, lambda L, x, ord=2.0, dim=None, keepdim=False: L.norm(x, ord, dims_of(dim), keepdim))
masked("normalize", lambda t: 0, lambda L, x, ord, dim, eps=1e-12: L.div(
    x, L.maximum(L.norm(x, ord, dims_of(dim), True), L.number(eps))))
