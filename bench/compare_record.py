"""compare_record.py — a plan-cache hit of fifteen nodes beside one PyTorch call, by turns in one run.

    compare_record.py [--build build] [--samples 41] [--calls 5000]

Builds bench_record and drives it as a server; PyTorch adds two tensors of 16 elements, on one thread.
Rows are the best and the median, in microseconds, and how many of PyTorch's calls ours costs, best by best and median by
median; on a machine that others use, the best are what to go by. At most 1.5 of PyTorch's calls are
allowed for `freed`, best by best.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = 1.5
WORKS = ("freed", "held")


def build(options):
    subprocess.run([ROOT / "tools" / "build.sh", options.build, "bench_record"], check=True, stdout=subprocess.DEVNULL)
    return ROOT / options.build / "bench_record"


def ask(process, work, calls):
    process.stdin.write(f"{work} {calls}\n")
    return float(process.stdout.readline())


def time_torch(x, calls):
    with torch.inference_mode():
        start = time.perf_counter()
        for _ in range(calls):
            torch.add(x, x)
        return (time.perf_counter() - start) / calls


def main():
    parser = argparse.ArgumentParser(description="a plan-cache hit beside one PyTorch call")
    parser.add_argument("--build", default="build")
    parser.add_argument("--samples", type=int, default=41)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.ones(16)
    process = subprocess.Popen([build(options), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    if process.stdout.readline().strip() != "ready":
        sys.exit("bench_record did not start")
    times = {name: [] for name in (*WORKS, "torch")}
    for _ in range(options.samples + 1):
        for work in WORKS:
            times[work].append(ask(process, work, options.calls))
        times["torch"].append(time_torch(x, options.calls))
    process.stdin.close()
    process.wait()
    best = {name: min(values[1:]) for name, values in times.items()}  # the first round warms up
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    print(f"PyTorch {torch.__version__}, add of 16 elements: best {best['torch'] * 1e6:.2f} µs, median {median['torch'] * 1e6:.2f} µs")
    for work in WORKS:
        ratios = best[work] / best["torch"], median[work] / median["torch"]
        verdict = f"  allowed {ALLOWED}: {'met' if ratios[0] <= ALLOWED else 'MISSED'}" if work == "freed" else ""
        print(f"15 nodes, {work:6} best {best[work] * 1e6:.2f} µs, median {median[work] * 1e6:.2f} µs; "
              f"{ratios[0]:.2f} and {ratios[1]:.2f} of its calls{verdict}")


if __name__ == "__main__":
    main()
