#!/usr/bin/env python3
"""torch_samples.py — small files of torch.save: tests/corpus/pickle. Needs PyTorch; the files are committed.

What is in them is what tests/formats/test_pickle.c expects: in sample.pt a dict of tensors of many types and layouts, in older.pt the
same state_dict in the layout before version 1.6, in module.pt a whole module, which is refused.
"""

import pathlib
import sys

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "corpus" / "pickle"


def layer():
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(6.0).view(2, 3))
        linear.bias.copy_(torch.tensor([0.5, -0.5]))
    return torch.nn.Sequential(linear, torch.nn.BatchNorm1d(2))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    base = torch.arange(24, dtype=torch.float32)
    sample = {
        "model": layer().state_dict(), "epoch": 3, "rate": 1e-3, "name": "x", "nothing": None, "flag": True,
        "list": [torch.ones(2, dtype=torch.bfloat16), torch.tensor([2**40, -1])], "pair": (1, torch.ones(1)),
        "turned": base.view(4, 6).t(), "part": base[4:10], "bools": torch.tensor([True, False]),
        "half": torch.ones(2, dtype=torch.float16), "bytes": torch.arange(5, dtype=torch.uint8),
        "scalar": torch.tensor(2.5), "float8": torch.ones(4).to(torch.float8_e4m3fn),
        "words": torch.tensor([1, 65535], dtype=torch.uint16), "spread": torch.ones(1).expand(5),
        "parameter": torch.nn.Parameter(torch.tensor([7.0])), "empty": torch.ones(0, 3), "size": torch.Size([1, 2]),
        7: torch.tensor([7], dtype=torch.int32)}
    torch.save(sample, OUT / "sample.pt")
    torch.save(layer().state_dict(), OUT / "older.pt", _use_new_zipfile_serialization=False)
    torch.save(layer(), OUT / "module.pt")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
