"""timing.py — how a peer's work is timed: as `trunnion bench` times its own (cli/bench/bench.c)."""

import math
import statistics
import time

MOST_SAMPLES, LEAST_SAMPLES, WARM_RUNS = 20, 3, 3
SAMPLE_SECONDS, LONG_RUN = 2e-3, 0.3


def seconds_of(run, count, wait):
    start = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - start) / count


def sample(run, most_seconds, wait=lambda: None):
    """{"value": median seconds of a run, "best":, "samples":} of up to twenty samples, or as many as the time allows.

    wait() returns when a device has finished what the runs gave it."""
    once = 0
    for i in range(WARM_RUNS + 1):
        if i < 2 or once < LONG_RUN:
            once = seconds_of(run, 1, wait)
    count = math.floor(SAMPLE_SECONDS / max(once, 1e-7)) + 1 if once < SAMPLE_SECONDS else 1
    samples, spent = [], 0
    while len(samples) < MOST_SAMPLES and (len(samples) < LEAST_SAMPLES or spent < most_seconds):
        samples.append(seconds_of(run, count, wait))
        spent += samples[-1] * count
    return {"value": statistics.median(samples), "best": min(samples), "samples": len(samples)}


def peak_bytes():
    """The most memory that this process has had resident: its own number, without what its parent had."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
