"""torch_optim.py — tests/golden/optim.h: what PyTorch's optimisers make of one small problem, step by step.

The problem is sum(a·w²/2 + b·sin(w)) over two variables; learning rates follow a cosine, so that a step's rate is seen to
count. Run it by hand where PyTorch is; the table it writes is committed.
"""

import math
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, SHOWN = 20, (1, 2, 5, 20)
W = [[0.5, -1.25, 2.0], [0.75, -0.1]]
A = [[1.0, 0.5, 2.0], [3.0, 0.25]]
B = [[0.3, -0.7, 1.1], [-0.2, 0.9]]
MOMENTUM = {"momentum": 0.9}

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
]


def rate(step):
    """The learning rate at a step: half a cosine from 0.1 to 0.01 over all of them."""
    return 0.01 + 0.09 * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def run(make, arguments, limit):
    w = [torch.tensor(v, requires_grad=True) for v in W]
    a, b = ([torch.tensor(v) for v in vs] for vs in (A, B))
    optimizer = make(w, lr=rate(0), **arguments)
    rows = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        sum((0.5 * x * w * w + y * torch.sin(w)).sum() for w, x, y in zip(w, a, b)).backward()
        if limit:
            torch.nn.utils.clip_grad_norm_(w, limit)
        optimizer.step()
        if step + 1 in SHOWN:
            rows.append([float(v) for t in w for v in t.detach()])
    return rows


def main():
    lines = [f"/* optim.h — written by tools/torch_optim.py with PyTorch {torch.__version__.split('+')[0]}: the problem's five",
             " * numbers after the steps named by `golden_steps`. */",
             "#ifndef TESTS_GOLDEN_OPTIM_H", "#define TESTS_GOLDEN_OPTIM_H", "",
             f"enum {{ GOLDEN_SHOWN = {len(SHOWN)}, GOLDEN_TOTAL = {STEPS}, GOLDEN_NUMBERS = 5 }};",
             f"static const int golden_steps[GOLDEN_SHOWN] = {{{', '.join(map(str, SHOWN))}}};", ""]
    for name, make, arguments, limit in RUNS:
        lines.append(f"static const double golden_{name}[GOLDEN_SHOWN][GOLDEN_NUMBERS] = {{")
        lines += ["    {" + ", ".join(f"{v:.9g}" for v in row) + "}," for row in run(make, arguments, limit)]
        lines += ["};", ""]
    lines += ["#endif", ""]
    (ROOT / "tests" / "golden" / "optim.h").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
