#!/usr/bin/env python3
"""torch_lbfgs.py — what torch.optim.LBFGS does with Rosenbrock's function in f64: prints the table of
tests/training/test_lbfgs.c. Needs torch."""

import torch


def run(steps, **options):
    x = torch.tensor([-1.2, 1.0, 0.7], dtype=torch.float64, requires_grad=True)
    lbfgs, calls = torch.optim.LBFGS([x], **options), [0]

    def closure():
        lbfgs.zero_grad()
        calls[0] += 1
        loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        first = float(lbfgs.step(closure))
    return first, calls[0], x.tolist()


for steps, options in ((1, {"line_search_fn": "strong_wolfe"}), (3, {"line_search_fn": "strong_wolfe"}),
                       (4, {"line_search_fn": "strong_wolfe", "history_size": 2, "max_iter": 5}),
                       (2, {"lr": 0.05, "max_iter": 6}), (3, {"lr": 0.02, "max_iter": 10, "history_size": 3})):
    first, calls, x = run(steps, **options)
    lr, most = options.get("lr", 1), options.get("max_iter", 20)
    wolfe = "true" if "line_search_fn" in options else "false"
    print(f"    {{{steps}, {lr}, {most}, {options.get('history_size', 100)}, {wolfe}, {first!r}, {calls}, "
          "{" + ", ".join(map(repr, x)) + "}},")
