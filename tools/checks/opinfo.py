"""opinfo.py BUILD [--only NAME…] [--samples N] [--dtypes f32,…] [--verbose] — the library against PyTorch's OpInfo database.

Each entry of torch.testing's op_db that has a counterpart (tools/opinfo/counterparts.py) is called with the database's own
samples in f32, f64, i64, bool, f16 and bf16, forward, backward and in place, and with its error inputs; PyTorch on the
processor says what is right. An entry passes if all of its samples do. An entry that cannot agree stands in EXCEPTIONS with
the reason, and then at least one sample of it must differ: a reason that is no longer true fails.

PyTorch comes from PyPI, into the virtual environment of tools/peers/python.sh. Every entry runs in a process of its own, so
a crash is one entry's failure.
"""

import argparse
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[0] = str(ROOT / "tools")  # not this folder, whose opinfo.py is not the package
from opinfo import process  # noqa: E402

MOST_EXCEPTIONS = 11
SECONDS_AN_ENTRY = 300
EXCEPTIONS = {
    "as_strided_scatter": "PyTorch's gradient of the input misses the offset; ours is that of what is computed",
    "nn_functional_ctc_loss": "PyTorch's gradient is that of log_softmax and the loss together; ours that of the loss",
    "sinc": "of whole numbers PyTorch has sin(pi · x) / (pi · x) with a rounded angle; ours is 0",
    "digamma": "PyTorch's gradient in f64, its trigamma, is good to 9 digits; ours to 15",
    "grid_sampler_2d": "in f64 one of 780 sums that cancel is a few ulps beyond the allowance",
    "linalg_norm_subgradients_at_zero": "singular values that are equal, as those of zeros, have no gradient (NaN)",
    "linalg_eig": "in f64 one of 100 elements of eigenvectors is a few ulps beyond the allowance",
    "matrix_exp": "squarings magnify roundings beyond the allowance in f64; in f16 PyTorch's results are NaN",
    "nn_functional_interpolate_bicubic": "in f64 one of 150 sums of 16 products is a few ulps beyond the allowance",
    "nn_functional_hardsigmoid": "PyTorch's gradient in f64 is computed with 1/6 in f32, off by 3e-8; ours is exact",
    "nn_functional_scaled_dot_product_attention":
        "queries and keys of different ranks are refused: unsqueeze first; in f64 a few sums are ulps beyond the allowance",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--only", nargs="+", default=[], help="entries by name, as nn_functional_relu")
    parser.add_argument("--samples", type=int, default=40, help="at most so many samples a dtype")
    parser.add_argument("--dtypes", default="", help="for instance f32,i64")
    parser.add_argument("--verbose", action="store_true", help="every failure, and what was left out")
    parser.add_argument("--list", action="store_true", help="names of the entries that have a counterpart")
    args = parser.parse_args()
    process.in_peers_python("expecttest")  # which PyTorch's database imports

    os.environ.setdefault("TRUNNION_THREADS", "1")
    import signal

    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from opinfo import compare, counterparts, library

    torch.set_num_threads(1)
    short = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "bool": torch.bool, "f16": torch.float16,
             "bf16": torch.bfloat16}
    dtypes = [short[d] for d in args.dtypes.split(",")] if args.dtypes else compare.DTYPES_TESTED
    entries = {op.formatted_name: op for op in op_db}
    unknown = sorted(set(counterparts.TABLE) - set(entries))
    if unknown:
        print(f"counterparts that this PyTorch's database does not have: {', '.join(unknown)}")
    names = [name for name in entries if name in counterparts.TABLE and (not args.only or name in args.only)]
    if args.list:
        print("\n".join(names))
        return
    assert len(EXCEPTIONS) <= MOST_EXCEPTIONS

    def work(name):
        signal.alarm(SECONDS_AN_ENTRY)
        L = library.Library(args.build)
        e = compare.run_entry(L, entries[name], args.samples, dtypes)
        return {"passed": e.passed, "by_kind": e.by_kind, "left_out": e.left_out, "failures": e.failures}

    passed = failed = samples = left_out = 0
    by_kind = {kind: 0 for kind in compare.KINDS}
    start = time.monotonic()
    for name in names:
        result, code = process.in_a_process(lambda: work(name))
        if result is None:
            result = {"passed": 0, "by_kind": {}, "left_out": {}, "failures": [f"the process ended with {code}"]}
        samples += result["passed"] + len(result["failures"])
        left_out += sum(result["left_out"].values())
        for kind, count in result["by_kind"].items():
            by_kind[kind] += count
        bad = bool(result["failures"])
        excepted = name in EXCEPTIONS
        if bad == excepted and (bad or result["passed"]):
            passed += 1
        else:
            failed += 1
            why = result["failures"] or ["no sample was compared" if not excepted else "it agrees: take it off EXCEPTIONS"]
            print(f"FAIL  {name}: {len(result['failures'])} of {result['passed'] + len(result['failures'])}", flush=True)
            for line in why if args.verbose else why[:4]:
                print(f"      {line}")
        if args.verbose and result["left_out"]:
            print(f"      {name}: left out: {result['left_out']}")
    for name, reason in EXCEPTIONS.items():
        print(f"exception: {name}: {reason}")
    print(f"{len(names)} entries of {len(entries)}, {samples} samples compared, {left_out} left out, "
          f"{time.monotonic() - start:.0f} s, PyTorch {torch.__version__}")
    print("samples that passed: " + ", ".join(f"{kind} {count}" for kind, count in by_kind.items()))
    print("ran on: pytorch")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
