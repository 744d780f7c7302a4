"""torch_optim.py — tests/golden/optim.h: what PyTorch's optimizers make of one small problem, step by step; its
schedules; its moving average. Lion and LAMB, which it does not have, are written here after their papers.

The problem is sum(a·w²/2 + b·sin(w)) over two variables; learning rates follow a cosine, so that a step's rate is seen to
count. Run it by hand where PyTorch is; the table it writes is committed.
"""

import math
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, SHOWN = 20, (1, 2, 5, 20)
W = [[0.5, -1.25, 2.0], [0.75, -0.1]]
A = [[1.0, 0.5, 2.0], [3.0, 0.25]]
B = [[0.3, -0.7, 1.1], [-0.2, 0.9]]
MOMENTUM = {"momentum": 0.9}


class Plain(torch.optim.Optimizer):
    """One step a parameter, by update(state, w, g, group)."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                self.update(self.state[w], w, w.grad, group)


class Lion(Plain):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @staticmethod
    def update(state, w, g, group):
        beta1, beta2 = group["betas"]
        m = state.setdefault("m", torch.zeros_like(w))
        direction = torch.sign(beta1 * m + (1 - beta1) * g)
        w.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
        m.mul_(beta2).add_((1 - beta2) * g)


class Lamb(Plain):
    """You et al. 2020, algorithm 2, with the identity as scaling function."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @staticmethod
    def update(state, w, g, group):
        beta1, beta2 = group["betas"]
        m, v = (state.setdefault(k, torch.zeros_like(w)) for k in "mv")
        t = state["t"] = state.get("t", 0) + 1
        m.mul_(beta1).add_((1 - beta1) * g)
        v.mul_(beta2).add_((1 - beta2) * g * g)
        r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"]) + group["weight_decay"] * w
        w.sub_(group["lr"] * w.norm() / r.norm() * r)


class Muon32(Plain):
    """torch.optim.Muon with its iteration in f32: PyTorch's own is in bf16, which another rounding would not repeat."""

    def __init__(self, params, lr, match=False):
        super().__init__(params, {"lr": lr, "match": match})

    @staticmethod
    def update(state, w, g, group):
        b = state.setdefault("b", torch.zeros_like(w))
        b.lerp_(g, 1 - 0.95)
        x = g.lerp(b, 0.95)
        tall = x.size(0) > x.size(1)
        x = x.T if tall else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315), x, beta=3.4445)
        x = x.T if tall else x
        rows, columns = w.shape
        ratio = 0.2 * math.sqrt(max(rows, columns)) if group["match"] else math.sqrt(max(1, rows / columns))
        w.mul_(1 - group["lr"] * 0.1).sub_(group["lr"] * ratio * x)


def in_groups(w, lr, **arguments):
    """AdamW, where the second variable has a tenth of the rate and a weight decay of its own."""
    slow = {"params": w[1:], "weight_decay": 0.2, "factor": 0.1}
    return torch.optim.AdamW([{"params": w[:1]}, slow], lr=lr, **arguments)


# name, optimiser, its arguments, largest norm of the gradients (0: any)
RUNS = [
    ("sgd", torch.optim.SGD, {}, 0),
    ("sgd_momentum", torch.optim.SGD, MOMENTUM, 0),
    ("sgd_dampening", torch.optim.SGD, MOMENTUM | {"dampening": 0.3, "weight_decay": 0.05}, 0),
    ("sgd_nesterov", torch.optim.SGD, MOMENTUM | {"nesterov": True, "weight_decay": 0.05}, 0),
    ("adam", torch.optim.Adam, {}, 0),
    ("adam_decay", torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.05}, 0),
    ("adam_clipped", torch.optim.Adam, {}, 0.5),
    ("adamw", torch.optim.AdamW, {}, 0),
    ("adam_amsgrad", torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.05}, 0),
    ("adamw_amsgrad", torch.optim.AdamW, {"amsgrad": True, "betas": (0.5, 0.6)}, 0),
    ("rmsprop", torch.optim.RMSprop, {}, 0),
    ("rmsprop_centered", torch.optim.RMSprop, MOMENTUM | {"alpha": 0.9, "centered": True, "eps": 0.1, "weight_decay": 0.05}, 0),
    ("adagrad", torch.optim.Adagrad, {}, 0),
    ("adagrad_decay", torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.05}, 0),
    ("lion", Lion, {"weight_decay": 0.1}, 0),
    ("lamb", Lamb, {"weight_decay": 0.1}, 0),
    ("groups", in_groups, {}, 0),
    ("adafactor_vectors", torch.optim.Adafactor, {"weight_decay": 0.05}, 0),
]

# Methods that treat matrices otherwise: a tall and a wide one; a and b follow from the place of an element.
MATRICES = [[[0.5, -1.25], [2.0, 0.75], [-0.1, 0.3]], [[1.0, -0.5, 0.25], [0.3, 0.8, -1.1]]]
MATRIX_RUNS = [
    ("adafactor", torch.optim.Adafactor, {"weight_decay": 0.05}),
    ("adafactor_settings", torch.optim.Adafactor, {"beta2_decay": -0.5, "eps": (1e-4, 0.1), "d": 2.0}),
    ("muon", Muon32, {}),
    ("muon_match", Muon32, {"match": True}),
]

RATES = 24  # of each schedule
SCHEDULES = [
    ("step", lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=7, gamma=0.3)),
    ("exponential", lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9)),
    ("one_cycle", lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=2.0, total_steps=20)),
]
METRICS = [5, 4, 3.9999, 3.5, 3.6, 3.5, 3.7, 3.4, 3.4, 3.4, 3.5, 3.6, 3.6, 3.6, 3.6, 2, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1]
PLATEAUS = [
    ("plateau", {"factor": 0.5, "patience": 2}),
    ("plateau_cooldown", {"factor": 0.5, "patience": 1, "cooldown": 2, "min_lr": 0.3}),
    ("plateau_max", {"factor": 0.1, "patience": 3, "mode": "max", "threshold_mode": "abs", "threshold": 0.05}),
]


def rate(step):
    """The learning rate at a step: half a cosine from 0.1 to 0.01 over all of them."""
    return 0.01 + 0.09 * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def run(make, arguments, limit, values=W):
    w = [torch.tensor(v, requires_grad=True) for v in values]
    a, b = ([torch.tensor(v) for v in vs] for vs in (A, B))
    if values is MATRICES:
        a, b = ([f(torch.arange(6.0)).view_as(v) for v in w] for f in (lambda i: 1 + 0.5 * i, lambda i: 0.5 - 0.25 * i))
    optimizer = make(w, lr=rate(0), **arguments)
    rows = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step) * group.get("factor", 1)
        optimizer.zero_grad()
        sum((0.5 * x * w * w + y * torch.sin(w)).sum() for w, x, y in zip(w, a, b)).backward()
        if limit:
            torch.nn.utils.clip_grad_norm_(w, limit)
        optimizer.step()
        if step + 1 in SHOWN:
            rows.append([float(v) for t in w for v in t.detach().flatten()])
    return rows


def rates(make):
    """The learning rate at each step; behind the end of a cycle its last one."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    schedule = make(optimizer)
    out = []
    for step in range(RATES):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < getattr(schedule, "total_steps", RATES):
            schedule.step()
    return out


def plateau_rates(arguments):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **arguments)
    out = []
    for metric in METRICS:
        schedule.step(metric)
        out.append(optimizer.param_groups[0]["lr"])
    return out


def averages():
    """Of the variables, which begin at the start and are multiplied by 0.9 at each of five steps."""
    w = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(v)) for v in W])
    average = torch.optim.swa_utils.AveragedModel(w, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    average.update_parameters(w)
    for _ in range(5):
        with torch.no_grad():
            for v in w:
                v.mul_(0.9)
        average.update_parameters(w)
    return [float(x) for v in average.module for x in v.detach()]


def numbers(name, size, values):
    rows = ["    " + ", ".join(f"{v:.9g}" for v in values[i : i + 8]) + "," for i in range(0, len(values), 8)]
    return [f"static const double golden_{name}[{size}] = {{"] + rows + ["};", ""]


def main():
    lines = [f"/* optim.h — written by tools/pytorch/torch_optim.py with PyTorch {torch.__version__.split('+')[0]}: the problem's five",
             " * numbers after the steps named by `golden_steps`. */",
             "#ifndef TESTS_GOLDEN_OPTIM_H", "#define TESTS_GOLDEN_OPTIM_H", "",
             f"enum {{ GOLDEN_SHOWN = {len(SHOWN)}, GOLDEN_TOTAL = {STEPS}, GOLDEN_NUMBERS = 5 }};",
             f"static const int golden_steps[GOLDEN_SHOWN] = {{{', '.join(map(str, SHOWN))}}};", ""]
    for name, make, arguments, limit in RUNS:
        lines.append(f"static const double golden_{name}[GOLDEN_SHOWN][GOLDEN_NUMBERS] = {{")
        lines += ["    {" + ", ".join(f"{v:.9g}" for v in row) + "}," for row in run(make, arguments, limit)]
        lines += ["};", ""]
    lines += [f"enum {{ GOLDEN_MATRIX_NUMBERS = 12 }};", ""]
    for name, make, arguments in MATRIX_RUNS:
        lines.append(f"static const double golden_{name}[GOLDEN_SHOWN][GOLDEN_MATRIX_NUMBERS] = {{")
        for row in run(make, arguments, 0, MATRICES):
            halves = [", ".join(f"{v:.9g}" for v in half) for half in (row[:6], row[6:])]
            lines += ["    {" + halves[0] + ",", "     " + halves[1] + "},"]
        lines += ["};", ""]
    lines += [f"enum {{ GOLDEN_RATES = {RATES} }};", ""]
    for name, make in SCHEDULES:
        lines += numbers(f"rates_{name}", "GOLDEN_RATES", rates(make))
    lines += numbers("metrics", "GOLDEN_RATES", METRICS)
    for name, arguments in PLATEAUS:
        lines += numbers(f"rates_{name}", "GOLDEN_RATES", plateau_rates(arguments))
    lines += numbers("average", "GOLDEN_NUMBERS", averages())
    lines += ["#endif", ""]
    (ROOT / "tests" / "golden" / "optim.h").write_text("\n".join(lines))


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
