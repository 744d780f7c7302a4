"""many_programs.py BUILD COUNT [SEED] — tests/api/test_programs.c on COUNT random programs, in shards that can be taken up
again. The first program has seed SEED (1).

A shard is a run of the test on SHARD seeds of its own. JOBS of them run at a time. Shards that passed are kept in
BUILD/check/programs-done with the program's hash, so a run that was stopped goes on where it was; a program that was
built anew begins anew. A shard that needs more than MOST_BYTES of memory has failed: what grows with the number of
programs is a leak, whether or not it is freed in the end.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

SHARD = 2500
MOST_BYTES = 600 << 20
SECONDS = 1800  # for one shard: a program may run for ever

# Runs a command in a process that has no other child, and writes the peak of its memory, in KiB, to a file.
WATCHER = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code if code >= 0 else 1)
"""


def measured(command, environment, out):
    """Runs a command; exit code and peak of resident bytes."""
    with tempfile.NamedTemporaryFile("r") as peak:
        code = subprocess.run(["timeout", str(SECONDS), sys.executable, "-c", WATCHER, peak.name, *command],
                              stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                              env=os.environ | environment).returncode
        return code, int(peak.read() or 0) << 10


def run_shard(program, logs, first, count):
    """None when all is well, else what is not; and the peak of memory."""
    log = logs / f"programs-{first}.log"
    with open(log, "wb") as out:
        code, peak = measured([program], {"TRUNNION_FIRST": str(first), "TRUNNION_PROGRAMS": str(count)}, out)
    if code:
        return f"ended with {code}: {log}", peak
    if peak > MOST_BYTES:
        return f"took {peak >> 20} MiB of memory, at most {MOST_BYTES >> 20} are allowed", peak
    return None, peak


def main():
    build, count, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int((sys.argv + ["1"])[3])
    program = (build / "test_programs").resolve()
    logs = build / "check"
    logs.mkdir(parents=True, exist_ok=True)
    done_file = logs / "programs-done"
    built = hashlib.sha256(program.read_bytes()).hexdigest()
    done = {}
    for line in done_file.read_text().splitlines() if done_file.exists() else []:
        name, first, size = line.split()
        if name == built:
            done[int(first)] = int(size)
    shards = [(first, min(SHARD, seed + count - first)) for first in range(seed, seed + count, SHARD)]
    todo = [s for s in shards if done.get(s[0]) != s[1]]
    print(f"{count} programs in {len(shards)} shards, {len(shards) - len(todo)} of them done before", flush=True)
    lock, failed, most, start = threading.Lock(), [], 0, time.monotonic()

    def run(shard):
        nonlocal most
        wrong, peak = run_shard(program, logs, *shard)
        with lock:
            most = max(most, peak)
            if wrong:
                failed.append(shard)
                print(f"programs {shard[0]} to {sum(shard) - 1}: {wrong}", flush=True)
                return
            with open(done_file, "a") as out:
                out.write(f"{built} {shard[0]} {shard[1]}\n")

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        list(pool.map(run, todo))
    log = logs / f"programs-{shards[0][0]}.log"
    words = log.read_text(errors="replace") if log.exists() else ""
    print(*re.findall(r"^median of a program.*", words, re.MULTILINE))
    print(f"{time.monotonic() - start:.0f} s, peak of memory {most >> 20} MiB")
    print(f"{len(shards) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
