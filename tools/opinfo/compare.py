"""compare.py — one entry of the OpInfo database against the library: samples, gradients, in-place variants, error inputs.

What is right is PyTorch's result. How far ours may lie from it is derived, sample by sample: the same sample computed by
PyTorch in f64 tells how far PyTorch's own result is off, and a result of ours may be off as far (times SLACK) besides a few
units in the last place.
"""

import itertools
import math
import warnings

import torch

from .counterparts import SHAPE_ONLY, TABLE
from .library import DTYPES, NotOffered, Refused, Tensor

DTYPES_TESTED = (torch.float32, torch.float64, torch.int64, torch.bool, torch.float16, torch.bfloat16)
# Results: units in the last place of the result, and of the greatest input for sums and products.
ULPS = {torch.float32: 16, torch.float64: 16, torch.float16: 2, torch.bfloat16: 2}
INPUT_ULPS = {torch.float32: 4, torch.float64: 4, torch.float16: 0.5, torch.bfloat16: 0.5}
KINDS = ("forward", "backward", "in place", "error input")
GRADIENT_SLACK = 16  # of f64, where nothing more precise tells how much a gradient magnifies
SLACK = 8  # times PyTorch's own error: two right orders of summation differ by as much


# Indices of equal elements may be in any order: then what they lead to is compared, along the sample's dim.
CHOICES = {"sort": 1, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 1, "median": 1, "nanmedian": 1}


def own_signs(name, results):
    """PyTorch's factors with the signs that the library promises (linalg.h)."""
    if name == "linalg_qr" and len(results) == 2 and results[0].numel():
        q, r = results
        k = q.shape[-1]
        sign = torch.where(r.detach()[..., :k, :k].diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
        return [q * sign[..., None, :], torch.cat([r[..., :k, :] * sign[..., :, None], r[..., k:, :]], -2)]
    if name in ("linalg_svd", "svd") and len(results) == 3:
        u, s, v = results
        k = s.shape[-1]
        u, vh = u[..., :k], v[..., :k, :] if name == "linalg_svd" else v[..., :k].transpose(-2, -1)
        if u.numel() == 0 or vh.numel() == 0:
            return [u, s, vh]
        place = u.detach().abs().argmax(-2, keepdim=True)
        sign = torch.where(u.detach().gather(-2, place) < 0, -1.0, 1.0).to(u.dtype)
        return [u * sign, s, vh * sign.transpose(-2, -1)]
    if name in ("linalg_eig", "linalg_eigvals") and results[0].numel():
        values = results[0]
        order = (values.detach().real * (1 + 1e-9) - values.detach().imag * 1e-9).argsort(-1)
        values = values.gather(-1, order)
        if name == "linalg_eigvals":
            return [values]
        vectors = results[1].gather(-1, order[..., None, :].expand_as(results[1]))
        place = vectors.detach().abs().argmax(-2, keepdim=True)
        return [values, vectors * torch.where(vectors.detach().gather(-2, place).real < 0, -1.0, 1.0)]
    if name == "linalg_eigh" and results[1].numel():
        values, vectors = results
        place = vectors.detach().abs().argmax(-2, keepdim=True)
        return [values, vectors * torch.where(vectors.detach().gather(-2, place) < 0, -1.0, 1.0).to(vectors.dtype)]
    return results


class Different(Exception):
    """Ours is not PyTorch's."""


def ours(L, value, made):
    """A sample's argument with tensors of ours in place of torch's; `made` collects the pairs."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.is_quantized:
            raise NotOffered(str(value.dtype))
        t = L.tensor(value)
        made.append((value, t))
        return t
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[ours(L, v, made) for v in value])
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(ours(L, v, made) for v in value)
    if isinstance(value, dict):
        return {k: ours(L, v, made) for k, v in value.items()}
    return value


def wider(value):
    """The same argument in f64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(wider(v) for v in value)
    if isinstance(value, dict):
        return {k: wider(v) for k, v in value.items()}
    return torch.float64 if value in (torch.float32, torch.float16, torch.bfloat16) else value


def flat(value):
    if isinstance(value, (torch.Tensor, Tensor)):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in flat(v)]
    return [] if value is None else [torch.tensor(value)]


def text_of(sample):
    def short(v):
        if isinstance(v, torch.Tensor):
            return f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}"
        if isinstance(v, (list, tuple)):
            return "(" + ", ".join(short(w) for w in v) + ")"
        return str(v)
    parts = [short(sample.input), *[short(a) for a in sample.args], *[f"{k}={short(v)}" for k, v in sample.kwargs.items()]]
    return ", ".join(parts)[:200]


def greatest(tensors):
    """The greatest finite absolute value of the floating-point tensors given."""
    most = 0.0
    for t in tensors:
        if t.is_floating_point() and t.numel():
            v = t.detach().double().abs()
            v = v[torch.isfinite(v)]
            most = max(most, v.max().item() if v.numel() else 0.0)
    return most


def check(got, want, exact, most_input, elementwise, what):
    """got, want: torch tensors of one result; exact: PyTorch's result from f64, or None."""
    if list(got.shape) != list(want.shape):
        raise Different(f"{what}: shape {list(got.shape)}, PyTorch {list(want.shape)}")
    if got.dtype != want.dtype:
        raise Different(f"{what}: dtype {got.dtype}, PyTorch {want.dtype}")
    if not want.is_floating_point():
        wrong = (got != want).sum().item()
        if wrong:
            place = (got != want).flatten().nonzero()[0].item()
            raise Different(f"{what}: {wrong} of {want.numel()} differ; [{place}]: {got.flatten()[place].item()}, PyTorch "
                            f"{want.flatten()[place].item()}")
        return
    g, w = got.double(), want.double()
    unit = torch.finfo(want.dtype).eps
    tiny = torch.finfo(want.dtype).tiny * unit
    r, own = w, 0.0
    if exact is not None and exact.shape == w.shape and want.dtype != torch.float64:
        finite = torch.isfinite(w) & torch.isfinite(exact)
        r = torch.where(finite, exact, w)
        distance = (w - r).abs()
        own = distance if elementwise else (distance[finite].max().item() if finite.any() else 0.0)
    allowed = ULPS[want.dtype] * unit * r.abs() + SLACK * own + tiny
    if not elementwise or want.dtype == torch.float64:  # of f64 nothing tells how much the op magnifies
        allowed = allowed + INPUT_ULPS[want.dtype] * unit * max(most_input, greatest([want]))
    same = (g == w) | (g.isnan() & w.isnan())
    if exact is not None and exact.shape == w.shape:  # at the edge of the range either side may overflow
        same |= g == exact
    good = same | ((g - r).abs() <= allowed)
    if good.all():
        return
    place = (~good).flatten().nonzero()[0].item()
    raise Different(f"{what}: {(~good).sum().item()} of {want.numel()} differ; [{place}]: {g.flatten()[place].item():.9g}, "
                    f"PyTorch {w.flatten()[place].item():.9g}, f64 {r.flatten()[place].item():.17g}")


class Entry:
    """One entry of the database. Each check adds to `passed`, `left_out` or `failures`."""

    def __init__(self, L, op, limit):
        self.L, self.op, self.limit = L, op, limit
        self.call = TABLE[op.formatted_name]
        self.elementwise = type(op).__name__ in ("UnaryUfuncInfo", "BinaryUfuncInfo")
        self.shape_only = op.formatted_name in SHAPE_ONLY
        self.passed, self.left_out, self.failures = 0, {}, []
        self.by_kind = {kind: 0 for kind in KINDS}  # samples that passed

    def judge(self, what, sample, run):
        try:
            run()
            self.passed += 1
            self.by_kind[next((kind for kind in KINDS if what.endswith(kind)), "forward")] += 1
        except NotOffered as e:
            self.left_out[str(e)] = self.left_out.get(str(e), 0) + 1
        except (Refused, Different) as e:
            self.failures.append(f"{what} ({text_of(sample)}): {str(e).strip()[:300]}")
        except TypeError as e:
            self.failures.append(f"{what} ({text_of(sample)}): harness: {str(e)[:200]}")

    def samples(self, dtype, requires_grad):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
            return list(itertools.islice(made, self.limit))

    # ---- forward -----------------------------------------------------------------------------------------------------

    def run_torch(self, sample):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = own_signs(self.op.formatted_name, flat(self.op(sample.input, *sample.args, **sample.kwargs)))
        return [torch.view_as_real(r.resolve_conj()) if r.is_complex() else r for r in results]

    def torch_result(self, sample):
        """PyTorch's results, or None for a sample that it refuses in this dtype."""
        try:
            return self.run_torch(sample)
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
            return None

    def exact_result(self, sample, dtype):
        """The results from f64 inputs, or Nones."""
        if not dtype.is_floating_point or dtype == torch.float64:
            return None
        try:
            return self.run_torch(self.widened(sample))
        except (RuntimeError, NotImplementedError, TypeError):
            return None

    @staticmethod
    def widened(sample):
        return type(sample)(wider(sample.input), args=wider(sample.args), kwargs=wider(sample.kwargs))

    def our_result(self, sample):
        made = []
        args = [ours(self.L, v, made) for v in (sample.input, *sample.args)]
        kwargs = ours(self.L, sample.kwargs, made)
        return self.same_part(flat(self.call(self.L, *args, **kwargs))), made

    def same_part(self, results):
        """Of full matrices, the columns that are determined."""
        if self.op.formatted_name not in ("linalg_svd", "svd"):
            return results
        u, s, vh = results
        k = s.shape[-1]
        rank = u.ndim
        return [self.L.slice(u, rank - 1, 0, k, 1), s, self.L.slice(vh, rank - 2, 0, k, 1)]

    def forward(self, sample, dtype):
        want = self.torch_result(sample)
        if want is None:
            raise NotOffered("PyTorch refuses the sample")
        got, made = self.our_result(sample)
        exact = self.exact_result(sample, dtype) or [None] * len(want)
        most = greatest([t for t, _ in made])
        if len(got) > len(want):
            raise Different(f"{len(got)} results, PyTorch {len(want)}")
        for i, (g, w) in enumerate(zip(got, want)):
            value = g.read()
            if self.shape_only:
                value, w = value.new_zeros(value.shape), w.new_zeros(w.shape)
            e = exact[i] if i < len(exact) else None
            if CHOICES.get(self.op.formatted_name) == i and list(value.shape) == list(w.shape):
                value, w = [self.chosen(sample, t) for t in (value, w)]
                e = None
            check(value, w.detach(), e, most, self.elementwise, f"result {i + 1}")

    def chosen(self, sample, index):
        """What an index leads to in the sample's input."""
        x = sample.input.detach()
        if x.ndim == 0:
            return index
        given = sample.kwargs.get("dim", next((a for a in sample.args[self.op.formatted_name in ("topk", "kthvalue"):]
                                               if isinstance(a, int) and not isinstance(a, bool)), -1))
        if index.numel() and (index.min() < 0 or index.max() >= x.shape[given]):
            raise Different("an index is out of range")
        return x.gather(given, index if index.ndim == x.ndim else index.unsqueeze(given))

    # ---- backward ----------------------------------------------------------------------------------------------------

    def torch_gradients(self, sample, seeds, widen):
        twin = self.widened(sample) if widen else sample
        leaves = [t for t in flat_arguments(twin)]
        originals = [t for t in flat_arguments(sample)]
        leaves = [t.requires_grad_(True) if widen and o.requires_grad else t for t, o in zip(leaves, originals)]
        wanted = [t for t, o in zip(leaves, originals) if o.requires_grad]
        out = [t for t in self.run_torch(twin) if t.requires_grad]
        seeds = [s.to(o.dtype) for s, o in zip(seeds, out)]
        return torch.autograd.grad(out, wanted, seeds, allow_unused=True)

    def backward(self, sample, dtype):
        leaves = [t for t in flat_arguments(sample) if t.requires_grad]
        want = self.torch_result(sample)
        if want is None or not leaves or not any(w.requires_grad for w in want):
            raise NotOffered("no gradient in PyTorch")
        used = [i for i, w in enumerate(want) if w.requires_grad]
        generator = torch.Generator().manual_seed(7)
        seeds = [torch.randn(want[i].shape, generator=generator, dtype=torch.float64).to(want[i].dtype) for i in used]
        try:
            right = self.torch_gradients(sample, seeds, False)
        except RuntimeError:
            raise NotOffered("no gradient in PyTorch") from None
        try:
            exact = self.torch_gradients(sample, seeds, True) if dtype != torch.float64 else [None] * len(right)
        except (RuntimeError, TypeError):
            exact = [None] * len(right)
        made = []
        args = [ours(self.L, v, made) for v in (sample.input, *sample.args)]
        kwargs = ours(self.L, sample.kwargs, made)
        inputs = [t for value, t in made if value.requires_grad]
        for t in inputs:
            self.L.dll.tn_set_requires_grad(t.handle, True)
        got = self.same_part(flat(self.call(self.L, *args, **kwargs)))
        pairs = [(got[i], seed) for i, seed in zip(used, seeds) if i < len(got)]
        if len(pairs) < len(used):
            raise NotOffered("a further result of PyTorch's takes part in the gradient")
        mine = self.L.gradients([g for g, _ in pairs], [self.L.tensor(s) for _, s in pairs], inputs)
        most = greatest([t for t, _ in made] + seeds)
        for i, (g, w) in enumerate(zip(mine, right)):
            w = torch.zeros_like(leaves[i]) if w is None else w
            e = exact[i].detach() if exact[i] is not None else None
            magnified = GRADIENT_SLACK * most * max(1.0, most) if e is None else most * max(1.0, most)
            check(g.read(), w.detach(), e, magnified, False, f"gradient {i + 1}")

    # ---- in place ----------------------------------------------------------------------------------------------------

    def inplace(self, sample, dtype):
        """The in-place variant on x; a view made before must show the result."""
        op = self.L.ops.get(self.op.formatted_name)
        variant = self.op.inplace_variant
        if op is None or not op.inplace or variant is None or not isinstance(sample.input, torch.Tensor):
            raise NotOffered("no in-place variant")
        twin = sample.input.detach().clone()
        try:
            with torch.no_grad():
                want = variant(twin, *sample.args, **sample.kwargs).detach()
            refused = False
        except (RuntimeError, TypeError, IndexError, ValueError):
            refused, want = True, None
        made = []
        x = ours(self.L, sample.input.detach(), made)
        args = [ours(self.L, v, made) for v in sample.args]
        kwargs = ours(self.L, sample.kwargs, made)
        view = self.L.view(x, [-1]) if x.numel() else self.L.unsqueeze(x, 0)
        plain = InPlace(self.L, op.name)
        try:
            self.call(plain, x, *args, **kwargs)
        except Refused:
            if refused:
                return
            raise
        if not plain.used:
            raise NotOffered("no in-place variant of this form")
        if refused:
            raise Different("accepted in place, PyTorch refuses it")
        most = greatest([t for t, _ in made])
        exact = self.exact_result(sample, dtype)
        e = exact[0].detach().reshape(-1) if exact and exact[0].numel() == want.numel() else None
        check(view.read().reshape(-1), want.reshape(-1), e, most, self.elementwise, "older view")

    # ---- error inputs ------------------------------------------------------------------------------------------------

    def errors(self):
        if self.op.error_inputs_func is None:
            return
        for e in itertools.islice(self.op.error_inputs("cpu"), self.limit * 2):
            self.judge("error input", e.sample_input, lambda: self.refuses(e.sample_input))

    def refuses(self, sample):
        given = set(sample.kwargs)
        if given & {"out", "device", "generator", "names"}:
            raise NotOffered("out, device, generator")
        try:
            self.op(sample.input, *sample.args, **sample.kwargs)
            raise NotOffered("PyTorch accepts the error input here")
        except NotOffered:
            raise
        except (TypeError, AttributeError) as e:  # a wrong type in Python, which C cannot write
            raise NotOffered("an argument of a wrong type in Python") from e
        except Exception:
            pass
        try:
            got, _ = self.our_result(sample)
            for g in got:
                g.read()
        except (Refused, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError):
            return
        raise Different("accepted, PyTorch refuses it")


class InPlace:
    """The library with one op replaced by its in-place variant, for the first call on the sample's input."""

    def __init__(self, L, name):
        self.L, self.name, self.used = L, name, False

    def __getattr__(self, name):
        if name != self.name or self.used:
            return getattr(self.L, name)
        self.used = True
        return getattr(self.L, name + "_")


def flat_arguments(sample):
    out = []

    def walk(v):
        if isinstance(v, torch.Tensor):
            out.append(v)
        elif isinstance(v, (list, tuple)):
            for w in v:
                walk(w)
        elif isinstance(v, dict):
            for w in v.values():
                walk(w)
    walk(sample.input)
    walk(sample.args)
    walk(sample.kwargs)
    return out


def run_entry(L, op, limit, dtypes=DTYPES_TESTED):
    """Everything of one entry. Returns it."""
    entry = Entry(L, op, limit)
    supported = op.supported_dtypes("cpu")
    for dtype in dtypes:
        if dtype not in supported or dtype not in DTYPES:
            continue
        name = str(dtype).removeprefix("torch.")
        torch.manual_seed(0)
        for sample in entry.samples(dtype, False):
            entry.judge(f"{name}", sample, lambda: entry.forward(sample, dtype))
            if op.inplace_variant is not None:
                entry.judge(f"{name} in place", sample, lambda: entry.inplace(sample, dtype))
        if not op.supports_autograd or entry.shape_only or dtype not in (torch.float32, torch.float64):
            continue
        torch.manual_seed(0)
        for sample in entry.samples(dtype, True):
            entry.judge(f"{name} backward", sample, lambda: entry.backward(sample, dtype))
    entry.errors()
    return entry
