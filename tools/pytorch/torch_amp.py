"""torch_amp.py — tests/golden/amp.h: PyTorch's autocast lists, and what its GradScaler makes of forced overflows.

The problem is that of torch_optim.py; at some steps the loss is multiplied by infinity, and one run begins with a scale
at which its gradients overflow by themselves. Run it by hand where PyTorch is; the table it writes is committed.
"""

import pathlib
import re
import sys

import torch
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from pytorch.torch_optim import A, B, W, rate  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 24
OVERFLOWS = (3, 7, 8, 15)  # counted from 1
LISTS = {"low": ["LOWER_PRECISION_FP"], "f32": ["FP32", "FP32_SET_OPT_DTYPE", "DIFFERENT_REDISPATCH_SIGNATURE"]}

# name, optimizer, its arguments, the scaler's
RUNS = [
    ("defaults", torch.optim.SGD, {"momentum": 0.9}, {}),
    ("growing", torch.optim.Adam, {}, {"growth_interval": 4}),
    ("factors", torch.optim.AdamW, {}, {"init_scale": 1000.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 3}),
    ("too_large", torch.optim.Adam, {}, {"init_scale": 2.0**127, "growth_interval": 2}),
    ("dampened", torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}, {"growth_interval": 1}),
]


def lists():
    """The names in the macros of ATen/autocast_mode.h, without overloads."""
    header = pathlib.Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text().replace("\\\n", "")
    for name, macros in LISTS.items():
        names = set()
        for macro in macros:
            line = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*)", text).group(1)
            names |= set(re.findall(r"_\((?:ADD_NS\()?(\w+)", line))
        yield name, sorted(names)


def run(make, arguments, scaling):
    w = [torch.tensor(v, requires_grad=True) for v in W]
    a, b = ([torch.tensor(v) for v in vs] for vs in (A, B))
    optimizer = make(w, lr=rate(0), **arguments)
    scaler = torch.amp.GradScaler("cpu", **scaling)
    rows = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate(step % 20)
        optimizer.zero_grad()
        loss = sum((0.5 * x * w * w + y * torch.sin(w)).sum() for w, x, y in zip(w, a, b))
        if step + 1 in OVERFLOWS:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        rows.append([scaler.get_scale(), scaler._get_growth_tracker()] + [float(v) for t in w for v in t.detach()])
    return rows


def main():
    lines = [f"/* amp.h — written by tools/pytorch/torch_amp.py with PyTorch {torch.__version__.split('+')[0]}: autocast's lists of ops; of each",
             " * run with a GradScaler, after each step: scale, growth tracker, and the problem's five numbers. */",
             "#ifndef TESTS_GOLDEN_AMP_H", "#define TESTS_GOLDEN_AMP_H", "",
             f"enum {{ GOLDEN_STEPS = {STEPS}, GOLDEN_OVERFLOWS = {len(OVERFLOWS)}, GOLDEN_FIELDS = 7 }};",
             f"static const int golden_overflows[GOLDEN_OVERFLOWS] = {{{', '.join(map(str, OVERFLOWS))}}}; /* from 1 */", ""]
    for name, names in lists():
        lines.append(f"static const char *const golden_autocast_{name}[] = {{")
        lines += [f'    "{n}",' for n in names]
        lines += ["};", ""]
    for name, make, arguments, scaling in RUNS:
        lines.append(f"static const double golden_{name}[GOLDEN_STEPS][GOLDEN_FIELDS] = {{")
        lines += ["    {" + ", ".join(f"{v:.9g}" for v in row) + "}," for row in run(make, arguments, scaling)]
        lines += ["};", ""]
    lines += ["#endif", ""]
    (ROOT / "tests" / "golden" / "amp.h").write_text("\n".join(lines))


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
