"""compare_policy.py — the generic policy here and in PyTorch, side by side in one run.

    compare_policy.py [--build build] [--threads 2] [--samples 21]

Builds bench/policy.c, checks that both sides compute the same: results of the first weights, then the losses of 100
steps of training. Only then it times them by turns: forward (batch 1, 64, 4096), a whole training step (forward, loss,
backward, fused Adam), fifteen small operations that hit the plan cache against one PyTorch call, and the peak memory of
two fresh processes that train. Needs PyTorch and a machine that does nothing else: it says how busy the machine was.
Rows are medians in microseconds; "ratio" is PyTorch's median by ours, "best" the same of the quickest samples.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import torch_train  # noqa: E402
from torch_train import Policy, read_safetensors  # noqa: E402

BATCHES = (1, 64, 4096)
CALLS = {1: 400, 64: 100, 4096: 6}
ROUND = 64  # batches taken in turn
MEMORY_BATCH, MEMORY_STEPS = 4096, 20
STEPS_COMPARED, TOLERANCE = 100, 1e-4
SETTLE_SECONDS = 0.06
TARGETS = {("forward", 1): 8, ("forward", 64): 6, ("forward", 4096): 2.2,
           ("train", 1): 8, ("train", 64): 5, ("train", 4096): 2}


class Here:
    """bench_policy as a server: a command a line."""

    def __init__(self, program, file, threads):
        self.process = subprocess.Popen([program, "serve", file, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("bench_policy did not start")

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit(f"bench_policy ended at: {words}")
        return [float(x) for x in answer]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Torch:
    def __init__(self, tensors):
        self.net = Policy()
        self.net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        self.x, self.actions, self.returns = (tensors["data." + k] for k in ("observations", "actions", "returns"))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)
        self.small = torch.ones(16)

    def time_forward(self, n, calls):
        x = self.x[:n]
        with torch.inference_mode():
            return seconds_of(lambda: self.net(x), calls)

    def time_train(self, n, calls):
        places, done = len(self.x) // n, 0

        def step():  # on batches that differ, as bench/policy.c
            nonlocal done
            rows = slice(done % ROUND % places * n, (done % ROUND % places + 1) * n)
            done += 1
            x, actions, returns = self.x[rows], self.actions[rows], self.returns[rows]
            self.optimizer.zero_grad()
            logits, value = self.net(x)
            loss = torch.nn.functional.cross_entropy(logits, actions) + torch.nn.functional.mse_loss(value, returns)
            loss.backward()
            self.optimizer.step()
            return loss.item()

        return seconds_of(step, calls)

    def time_call(self, calls):
        with torch.inference_mode():
            return seconds_of(lambda: torch.add(self.small, self.small), calls)


def seconds_of(work, calls):
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def build(options):
    subprocess.run([ROOT / "tools" / "build.sh", options.build, "bench_policy"], check=True, stdout=subprocess.DEVNULL)
    return ROOT / options.build / "bench_policy"


def check_losses(program):
    """The same training from the same weights loses the same."""
    options = argparse.Namespace(policy_bench=program, steps=STEPS_COMPARED, tolerance=TOLERANCE)
    if not torch_train.compare("policy", options):
        sys.exit("the losses differ: nothing is timed")


def check(tensors, net):
    with torch.inference_mode():
        logits, value = net(tensors["data.observations"][:64])
    for name, got in (("logits", logits), ("value", value)):
        torch.testing.assert_close(tensors["result." + name], got, rtol=1e-5, atol=1e-5)


def alone(work):
    """Lets the other side's threads go to sleep first: those of OpenMP spin for a while after their work."""
    time.sleep(SETTLE_SECONDS)
    return work()


def compare(samples, ours, theirs):
    """Both, taken by turns; the first of each warms up. ours() may give further numbers behind the seconds."""
    a, b = [], []
    for _ in range(samples + 1):
        a.append(alone(ours))
        b.append(alone(theirs))
    return list(zip(*a[1:])), b[1:]


def peak(command):
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_of_torch():
    """In a process of its own: what `--memory-of-torch` does."""
    return peak([sys.executable, __file__, "--memory-of-torch"])


def train_in_torch():
    file_less = {"data.observations": torch.rand(MEMORY_BATCH, 64),
                 "data.actions": torch.zeros(MEMORY_BATCH, dtype=torch.long),
                 "data.returns": torch.zeros(MEMORY_BATCH, 1)}
    side = Torch({**{"model." + k: v for k, v in Policy().state_dict().items()}, **file_less})
    side.time_train(MEMORY_BATCH, MEMORY_STEPS)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def row(work, batch, samples, with_host=False):
    ours, theirs = samples
    mine, its = statistics.median(ours[0]), statistics.median(theirs)
    target = TARGETS.get((work, batch))
    ratio, best = its / mine, min(theirs) / min(ours[0])
    verdict = "" if target is None else f"target {target}: {'met' if ratio >= target else 'MISSED'}"
    host = f"host {statistics.median(ours[1]):.0%} of the step" if with_host else ""
    name = work + (f"-{batch}" if batch else "")
    print(f"{name:22} {mine * 1e6:12.2f} {its * 1e6:12.2f} {ratio:8.2f} {best:8.2f}  {verdict} {host}", flush=True)
    return {"work": work, "batch": batch, "ours": mine, "torch": its, "ratio": ratio, "best_ratio": best,
            "target": target}


def timed_rows(options, here, there):
    n = options.samples
    for batch in BATCHES:
        calls = CALLS[batch]
        for work, words in (("forward", "forward"), ("forward, replayed", "replay")):
            yield row(work, batch, compare(n, lambda: here.ask(words, batch, calls),
                                           lambda: there.time_forward(batch, calls)))
    for batch in BATCHES:
        calls = max(CALLS[batch] // 4, 3)
        for work, words in (("train", "train"), ("train, replayed", "replay-train")):
            yield row(work, batch, compare(n, lambda words=words: here.ask(words, batch, calls),
                                           lambda: there.time_train(batch, calls)), with_host=True)
    yield row("15 nodes : 1 call", 0, compare(n, lambda: here.ask("chain", 2000), lambda: there.time_call(2000)))


def run(options):
    program = build(options)
    check_losses(program)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "policy.safetensors")
        here = Here(program, file, options.threads)
        tensors = read_safetensors(file)
        there = Torch(tensors)
        check(tensors, there.net)
        print(f"PyTorch {torch.__version__}, {options.threads} threads; results and losses agree; "
              f"others keep {os.getloadavg()[0]:.1f} processors busy\n")
        print(f"{'work':22} {'here, µs':>12} {'PyTorch, µs':>12} {'ratio':>8} {'best':>8}")
        rows = list(timed_rows(options, here, there))
        here.close()
    ours = peak([program, "memory", str(MEMORY_BATCH), str(MEMORY_STEPS)])
    theirs = peak_of_torch()
    print(f"\npeak memory, training at batch {MEMORY_BATCH}: {ours / 1e6:.1f} MB here, {theirs / 1e6:.1f} MB in PyTorch "
          f"({ours / theirs:.1%})")
    if options.json:
        figures = {"rows": rows, "peak_bytes": ours, "torch_peak_bytes": theirs}
        pathlib.Path(options.json).write_text(json.dumps(figures) + "\n")


def main():
    parser = argparse.ArgumentParser(description="the generic policy here and in PyTorch")
    parser.add_argument("--build", default="build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--json", help="write the figures to this file too")
    parser.add_argument("--memory-of-torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of_torch:
        train_in_torch()
    else:
        run(options)


if __name__ == "__main__":
    main()
