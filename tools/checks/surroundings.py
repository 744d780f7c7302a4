"""surroundings.py BUILD [N] — every subcommand where files, streams and names are not as usual.

Closed standard streams, a full standard output, no place for a cache, a limit of file sizes: each command ends with 0 or
1 and a reason, and leaves no file that a complete run would not leave with the same size. File names with blanks, line
feeds, quotes, a leading dash and bytes that are not UTF-8 are read, written and shown in JSON. A training learns the same
whatever the locale and the width of the terminal. With N, one subcommand in N, from SEED on.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools/checks"))
import command  # noqa: E402
import signals  # noqa: E402

SLOW = {"certify", "train --resume", "perplexity", "generate", "logits", "serve", "convert"}  # serve has a suite
LONGEST = 120  # seconds
NAMES = ["a b", "-dash", "--json", "n\u00e4me\u2192", "new\nline", "per%s%n", 'quo"te', "$(x)", "tab\tx", b"bad\xff"]


def call(program, arguments, environment, **how):
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    return subprocess.run([program, *arguments], env=environment, timeout=LONGEST, **how)


def plain(cache):
    return signals.environment(cache)


def homeless(_):
    return {k: v for k, v in os.environ.items()
            if k not in ("HOME", "XDG_CACHE_HOME", "TRUNNION_CACHE", "TRUNNION_TUNE_CACHE")} | {"HOME": "/proc/none"}


def close_streams():
    os.closerange(0, 3)


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


# name, environment, how it is started, exit codes, text of standard error of a failure
WAYS = [
    ("a full standard output", plain, lambda: {"stdout": open("/dev/full", "wb")}, {1}, "standard output|an earlier write"),
    ("closed streams", plain, lambda: {"stdin": None, "stdout": None, "stderr": None, "preexec_fn": close_streams},
     {0, 1}, ""),
    ("no place for a cache", homeless, dict, {0, 1}, "cannot create|no cache folder|/proc/none"),
    ("a limit of file sizes", plain, lambda: {"preexec_fn": limit_files}, {0, 1},
     "File too large|writing to the cache folder failed"),
]


def sizes(folder):
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def check_case(program, name, line, read):
    """What is wrong with one command in all surroundings."""
    faults, whole, devices = [], {}, None
    for title, environment, how, codes, words in [("as usual", plain, dict, {0}, ""), *WAYS]:
        with tempfile.TemporaryDirectory() as folder:
            out, cache = pathlib.Path(folder, "out"), pathlib.Path(folder, "cache")
            out.mkdir()
            started = how()
            if name == "chat":
                started = {"stdin": open(read / "lines.txt", "rb")} | started
            ended = call(program, signals.words(line, read, out), environment(cache), **started)
            err = (ended.stderr or b"").decode(errors="replace")
            left = {file: size for file, size in sizes(out).items() if not file.endswith(".json")}
            if title == "as usual":
                whole = left
            if ended.returncode not in codes:
                faults.append(f"{title}: ended with {ended.returncode}: {err[-300:]}")
            if ended.returncode == 1 and not re.search(words, err):
                faults.append(f"{title}: no reason: {err[-300:]}")
            if ended.returncode == 0 and left != whole:
                faults.append(f"{title}: left {left}, not {whole}")
            cut = {file: size for file, size in left.items() if size != whole.get(file)}
            if cut:
                faults.append(f"{title}: left {cut}, a complete run {whole}")
            record = cache / "devices.json"
            found = re.sub(rb'"until":\d+', b"", record.read_bytes()) if record.exists() else None
            devices = devices or found
            if found and found != devices:
                faults.append(f"{title}: other devices were found: {found[:300]}")
    return faults


def check_names(program, read, report):
    for name in NAMES:
        name = name if isinstance(name, bytes) else name.encode()
        with tempfile.TemporaryDirectory() as folder:
            at = os.fsencode(folder) + b"/" + name
            for source, ending in (("model.onnx", b".onnx"), ("plain.safetensors", b".safetensors")):
                pathlib.Path(os.fsdecode(at + ending)).write_bytes((read / source).read_bytes())
            lines = [["run", at + b".onnx", "--random", "-o", at + b".out"], ["info", at + b".safetensors"],
                     ["convert", at + b".safetensors", at + b".copy.safetensors", "--quantize", "BF16"],
                     ["explain", at + b".missing"]]
            faults = []
            for arguments in lines:
                ended = call(program, [*arguments, "--json"], plain(pathlib.Path(folder, "cache")))
                try:
                    told = json.loads(ended.stdout.decode())
                    good = ended.returncode == (arguments[0] == "explain") == ("error" in told)
                except ValueError as error:
                    good, told = False, repr(error)
                faults += [] if good else [f"{arguments[0]}: {ended.returncode} {told}"]
            if not os.path.isdir(at + b".out") or not os.path.exists(at + b".copy.safetensors"):
                faults.append("its outputs are missing")
            report.add(not faults, f"files named {name!r}" + "".join(f"\n    {fault}" for fault in faults))


def check_locales(program, report, cache):
    losses = set()
    for words in ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "tr_TR.UTF-8", "COLUMNS": "40"}):
        ended = call(program, "train chars --steps 2 --device cpu --json".split(), plain(cache) | words)
        losses.add(json.loads(ended.stdout)["final_loss"] if ended.returncode == 0 else ended.stderr[-300:])
    report.add(len(losses) == 1, f"train chars in three locales: {losses}")


def main():
    program = (ROOT / sys.argv[1] / "trunnion").resolve()
    report = command.Report()
    with tempfile.TemporaryDirectory() as folder:
        read = pathlib.Path(folder)
        signals.prepare(read)
        signals.write_safetensors(read / "plain.safetensors", {"w": ([2, 2], bytes(16))}, {})
        table = [case for case in signals.cases() if case[0] not in SLOW]
        if len(sys.argv) > 2:
            every = int(sys.argv[2])
            table = table[int(os.environ.get("SEED", 1)) % every::every]
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", 2))) as pool:
            for (name, _), faults in zip(table, pool.map(lambda case: check_case(program, *case, read), table)):
                report.add(not faults, name + "".join(f"\n    {fault}" for fault in faults))
        check_names(program, read, report)
        check_locales(program, report, read / "cache")
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
