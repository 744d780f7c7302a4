#!/usr/bin/env python3
"""pairs.py — times works of `trunnion bench` in two builds of this project by turns, each in a new process, on one
thread or --threads of them, and prints the ratio of the shortest samples. For finding what a change made slower:

    python3 bench/pairs.py OLD/build/trunnion NEW/build/trunnion policy-forward-1 'gemm-f32-*'
"""

import argparse
import json
import pathlib
import subprocess


def best(program, work, seconds, threads):
    """The shortest sample, in the work's unit; None where this build does not have the work."""
    ended = subprocess.run([program, "bench", work, "--json", "--threads", str(threads), "--seconds", str(seconds)],
                           capture_output=True, text=True)
    rows = json.loads(ended.stdout).get("rows") if ended.returncode == 0 else None
    return rows[0].get("best") or rows[0]["value"] if rows else None


def works_of(program, patterns):
    names = subprocess.run([program, "bench", "--list"], capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if any(pathlib.PurePath(name).match(p) for p in patterns)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, help="the command of the older build")
    parser.add_argument("new", type=pathlib.Path, help="the command of the newer build")
    parser.add_argument("works", nargs="+", help="names of `trunnion bench --list`, or patterns")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a work in a process (0.5)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    sides = {"old": options.old.resolve(), "new": options.new.resolve()}
    print("| work | old | new | new / old |\n|---|---|---|---|")
    for work in works_of(sides["new"], options.works):
        samples = {side: [] for side in sides}
        for turn in range(options.rounds):
            for side in sorted(sides, reverse=turn % 2 == 1):
                samples[side].append(best(sides[side], work, options.seconds, options.threads))
        if any(sample is None for side in samples.values() for sample in side):
            print(f"| {work} | not in both builds | | |")
            continue
        old, new = min(samples["old"]), min(samples["new"])
        print(f"| {work} | {old:.4g} | {new:.4g} | {new / old:.3f} |", flush=True)


if __name__ == "__main__":
    main()
