"""programs.py BUILD KIND [NAME…] — runs what was built: `tests` (cmocka), `examples`, or `fuzzers` for some seconds.

A program is expected for every source file of its kind; one that is not there, that crashes, that runs over its time or
that runs fewer tests than it announced counts as failed, so nothing passes by being absent. Programs run from the root
of the repository, each with a folder of its own in TMPDIR, and their words are kept in BUILD/check/KIND/.
Lines "ran on: DEVICE" and "skipped: …" of theirs are passed on.

  --each N     seconds that one test or example may take (300), times PATIENCE of the environment, as budgets of suites
  --fuzz N     seconds for each fuzzer (5)
  --runs N     inputs for each fuzzer, if they come before these seconds; fewer count as failed
  --percent N    of the programs, N by --seed: seeds that follow one another, and those of check.sh's days, take turns
  --jobs N     programs that run at the same time (JOBS of the environment, else one a processor)
  --left-out FILE  with names of programs that are not expected here, one a line (tests/sweeps.txt)
  --in NAME    the program that holds all of them (all_tests), if it was built; it gets the name as an argument
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TAIL = 40
# Freed blocks wait in 32 MB until they are used again, not in 256: fewer pages are touched.
SANITIZERS = {"ASAN_OPTIONS": "print_legend=0:quarantine_size_mb=32", "UBSAN_OPTIONS": "print_stacktrace=1",
              "LSAN_OPTIONS": f"print_suppressions=0:suppressions={ROOT}/tools/checks/leaks_of_others.txt"}
PASSED_ON = ("ran on: ", "skipped: ")
# Begun first and in this order, so that no processor waits for one of them at the end. The first six wait for compilers
# of devices, unless these have cached their kernels.
LONGEST = ("test_device_training", "test_amp", "test_render", "test_vendor", "test_driver_faults", "test_conform",
           "test_conv_kernel", "test_ops", "test_gemm", "test_device", "test_winograd", "test_cli", "test_far_ops",
           "test_llm_model", "test_options")
A_DAY = 30000  # by which check.sh's seeds of two days differ
MEMORY = "/dev/shm"  # files of fuzzers, which write some for each input


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __iadd__(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        return self

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def end_of(code):
    """How a program ended, in words; None when well."""
    if code is None:
        return "ran over its time and was stopped"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}" if code else None


RUNNING = set()  # process groups


def stop_all(number, _):
    """A suite past its budget gets SIGTERM, which does not reach these groups."""
    for group in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(128 + number)


def execute(command, log, limit, environment):
    """Runs a command in a process group of its own, so that its children go with it. Returns the exit code, None when
    time ran out. Standard output goes to `log`.out alone: what a test counts must not be torn by its error output."""
    with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment, start_new_session=True)
        RUNNING.add(process.pid)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            RUNNING.discard(process.pid)


def words(log):
    parts = [pathlib.Path(f"{log}.{kind}").read_text(errors="replace") for kind in ("out", "err")]
    return "\n".join(part.rstrip("\n") for part in parts if part)


def count_tap(text):
    """Counts cmocka's TAP lines. A test that was announced and never reported counts as failed. Returns the count and
    the names of the failed."""
    count, failed = Count(), []
    planned = sum(int(n) for n in re.findall(r"^1\.\.(\d+)$", text, re.MULTILINE))
    for negative, name in re.findall(r"^(not )?ok [1-9]\d*\s*(?:- )?(.*)$", text, re.MULTILINE):
        if "# SKIP" in name:
            count.skipped += 1
        elif negative:
            count.failed += 1
            failed.append(name)
        else:
            count.passed += 1
    lost = planned - (count.passed + count.failed + count.skipped)
    if lost > 0:
        count.failed += lost
        failed.append(f"{lost} that never reported")
    return count, failed


def leak_checker_broke(log):
    """Its own thread, which stops all others at the end, sometimes falls over one that a driver's library is ending: it
    says so, and has looked at nothing. That is no verdict, so the program runs once more."""
    return "LeakSanitizer has encountered a fatal error" in words(log)


def run_test(program, log, options, environment):
    environment = environment | {"CMOCKA_MESSAGE_OUTPUT": "TAP"}
    code = execute(program, log, options.each, environment)
    if code and leak_checker_broke(log):
        code = execute(program, log, options.each, environment)
    count, failed = count_tap(pathlib.Path(f"{log}.out").read_text(errors="replace"))
    if end_of(code) and count.failed == 0:
        count.failed = 1
    if count.passed + count.failed + count.skipped == 0:
        count.failed = 1
        failed.append("it holds no test")
    # A plain failure of tests is no surprise; any other end is told.
    plain = code is not None and code > 0 and failed
    return count, failed + ([] if plain or not end_of(code) else [end_of(code)])


def run_example(program, log, options, environment):
    end = end_of(execute(program, log, options.each, environment))
    return (Count(failed=1), [end]) if end else (Count(passed=1), [])


def run_fuzzer(program, log, options, environment):
    """New inputs go to a folder of the run; the corpus in tests/ is only read."""
    corpus = ROOT / "tests" / "corpus" / log.name.removeprefix("fuzz_")
    found = pathlib.Path(environment["TMPDIR"]) / "found"
    found.mkdir()
    command = [*program, f"-max_total_time={options.fuzz}", f"-artifact_prefix={log}-"]
    command += [f"-runs={options.runs}"] if options.runs else []
    command += [found, corpus] if corpus.is_dir() else [found]
    end = end_of(execute(command, log, options.fuzz + 60, environment))
    done = inputs_of(words(log))
    if not end and options.runs and done < options.runs:
        end = f"tried {done} inputs, not {options.runs}, in {options.fuzz} s"
    return (Count(failed=1), [end]) if end else (Count(passed=1), [])


def inputs_of(text):
    """How many a fuzzer says that it tried: libFuzzer's last line, or fuzz_replay's."""
    found = re.findall(r"^Done (\d+) runs", text, re.MULTILINE) + re.findall(r"(\d+) mutations$", text, re.MULTILINE)
    return int(found[-1]) if found else 0


# kind: (pattern of the sources, name of the program from the name of its source, how to run it)
KINDS = {
    "tests": ("tests/**/test_*.c", "{}", run_test),
    "examples": ("examples/*.c", "example_{}", run_example),
    "fuzzers": ("tests/**/fuzz_*.c", "{}", run_fuzzer),
}


def run_one(program, log, options, run):
    """Runs one program: its path, and its name if it is a part of another. Returns its count and what is to be said of
    it."""
    if not program[0].exists():
        return Count(failed=1), f"{program[0].name}: was not built"
    in_memory = MEMORY if run is run_fuzzer and os.access(MEMORY, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix=f"{log.name}-", dir=in_memory)
    os.chmod(folder, 0o755)  # some tests look at it as a user without rights
    start = time.monotonic()
    try:
        count, failed = run(program, log, options, os.environ | {"TMPDIR": folder} | SANITIZERS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = [f"{log.name}: {count} ({time.monotonic() - start:.1f} s)"]
    lines = words(log).splitlines()
    said += [line for line in lines if line.startswith(PASSED_ON)]
    if count.failed:
        said += ["  failed: " + "; ".join(failed)] + ["  | " + line for line in lines[-TAIL:]]
    return count, "\n".join(said)


def left_out_by(path, names):
    """The names in a file that has one a line, # begins a comment. One that no program has would hide a mistake."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    left_out = {line for line in lines if line}
    if left_out - set(names):
        sys.exit(f"{path}: no source for: {', '.join(sorted(left_out - set(names)))}")
    return left_out


def main():
    parser = argparse.ArgumentParser(description="runs built tests, examples or fuzzers")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--each", type=int, default=300)
    parser.add_argument("--fuzz", type=int, default=5)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--percent", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or os.cpu_count() or 1))
    parser.add_argument("--left-out", type=pathlib.Path)
    parser.add_argument("--in", dest="inside")
    options = parser.parse_intermixed_args()
    options.each *= int(os.environ.get("PATIENCE", 1))
    signal.signal(signal.SIGTERM, stop_all)

    pattern, program_name, run = KINDS[options.kind]
    names = sorted((p.stem for p in ROOT.glob(pattern) if p.stem != "fuzz_replay"),
                   key=lambda name: (LONGEST.index(name) if name in LONGEST else len(LONGEST), name))
    if options.left_out:
        left_out = left_out_by(ROOT / options.left_out, names)
        names = [name for name in names if name not in left_out]
    if options.percent < 100:
        parts = min(max(1, round(100 / options.percent)), len(names))
        part = (options.seed // A_DAY + options.seed % A_DAY) % parts
        print(f"part {part + 1} of {parts} of the programs, by seed {options.seed}", flush=True)
        names = names[part::parts]
    unknown = [name for name in options.names if name not in names]
    if unknown:
        sys.exit(f"no source for: {', '.join(unknown)}")
    logs = (ROOT / options.build / "check" / options.kind).resolve()
    logs.mkdir(parents=True, exist_ok=True)

    def one(name):
        build = (ROOT / options.build).resolve()
        whole = build / options.inside if options.inside else None
        program = [whole, name] if whole and whole.exists() else [build / program_name.format(name)]
        return run_one(program, logs / name, options, run)

    total = Count()
    with concurrent.futures.ThreadPoolExecutor(max(options.jobs, 1)) as workers:
        for count, said in workers.map(one, options.names or names):
            print(said, flush=True)
            total += count
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
