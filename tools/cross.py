"""cross.py [TARGET…] [--check BUILD] — builds Trunnion for other processors and systems, and tries the result there.

The compiler is the package `ziglang`, which compiles C for every target without further files; it and `wasmtime` go
into .deps/cross. A target is built in build-TARGET. With --check the command of each target runs: Linux programs under
QEMU's user emulation, WebAssembly in wasmtime. It must certify every operation, train to the same bits, pass the same
ONNX node cases and generate the same tokens as BUILD, the command of this machine; the kernels' tests run on each kind
of ARM64 processor. What cannot run here is built and reported as compiled only.

Without TARGET all of them, or with --part a third; `cross.py --list` names them. docs/platforms.md says what ran where.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "checks"))  # the files there import each other
import cross_libraries  # noqa: E402
import digits  # noqa: E402
from checks import empty_root, onnx_nodes, serve  # noqa: E402
from checks.command import Report  # noqa: E402
from text import smollm2  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPS = ROOT / ".deps" / "cross"
PYTHON = DEPS / "venv" / "bin" / "python"


@dataclasses.dataclass
class Target:
    name: str
    triple: str  # in Zig's words
    emulator: tuple = ()  # programs of which one runs it; empty: compiled only
    program: str = "trunnion"
    processors: tuple = ()  # of the emulator, on which the kernels' tests run; empty: its usual one
    without: tuple = ()  # libraries that cannot be built
    tests: tuple = ()  # programs that run on it once


# Programs that read and write files; on a big-endian processor each number of a file must be turned.
READERS = ("test_gguf", "test_gguf_save", "test_formats", "test_pickle", "test_data", "test_onnx", "test_onnx_export", "test_convert",
           "test_tokenizer", "test_sound", "test_folder_quant", "test_qmat")
ARM64 = ("cortex-a72", "cortex-a76", "max")  # NEON; with dot products; with i8mm as well
TARGETS = [
    Target("aarch64-linux", "aarch64-linux-musl", ("qemu-aarch64-static", "qemu-aarch64"), processors=ARM64),
    Target("riscv64-linux", "riscv64-linux-musl", ("qemu-riscv64-static", "qemu-riscv64")),
    Target("s390x-linux", "s390x-linux-musl", ("qemu-s390x-static", "qemu-s390x"), tests=READERS),
    Target("x86_64-musl", "x86_64-linux-musl", ("env",), tests=("test_posix",)),
    Target("x86_64-glibc2.17", "x86_64-linux-gnu.2.17", ("env",), tests=("test_posix",)),
    Target("wasm32-wasi", "wasm32-wasi", ("wasmtime",), "trunnion.wasm", without=("cmocka", "microhttpd")),
    Target("x86_64-windows", "x86_64-windows-gnu", ("wine64", "/usr/lib/wine/wine64"), "trunnion.exe", tests=("test_posix",)),
    Target("aarch64-macos", "aarch64-macos"),
    Target("x86_64-macos", "x86_64-macos"),
]
PARTS = 3  # of the targets, a part each night: a target takes 3 to 9 minutes
MOST_SECONDS = 900 * int(os.environ.get("PATIENCE", 1))  # of one program of a target: the slowest takes about 200 in QEMU


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def limited(command, **options):
    return run(command, timeout=MOST_SECONDS, **options)


def attempt(command, **options):
    """Runs a program of a target; what went wrong, or None, and what it printed."""
    try:
        test = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", cwd=ROOT,
                              timeout=MOST_SECONDS, **options)
    except subprocess.TimeoutExpired:
        return f"not finished after {MOST_SECONDS} s", ""
    return f"exit status {test.returncode}: {test.stderr[-1000:]}" if test.returncode else None, test.stdout


def prepare():
    """The compiler, and programs by which CMake calls it."""
    if not PYTHON.exists():
        run([sys.executable, "-m", "venv", DEPS / "venv"])
        run([PYTHON, "-m", "pip", "install", "-q", "ziglang", "wasmtime"])
    place = run([PYTHON, "-c", "import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).resolve().parent / 'zig')"],
                capture_output=True, text=True).stdout.strip()
    folder = DEPS / "bin"
    folder.mkdir(exist_ok=True)
    for name in ("cc", "ar", "ranlib"):
        program = folder / f"zig-{name}"
        flags = "-fno-sanitize=undefined " if name == "cc" else ""  # Zig turns it on at -O0, and glibc 2.17 lacks its functions
        program.write_text(f'#!/bin/sh\nexec "{place}" {name} {flags}"$@"\n')
        program.chmod(0o755)
    return folder


def build(target, wrappers):
    """The target's command, made in build-TARGET."""
    folder = ROOT / f"build-{target.name}"
    compiler = [wrappers / "zig-cc", "-target", target.triple]
    packages = cross_libraries.build(DEPS, target.name, compiler, wrappers / "zig-ar", target.without)
    environment = os.environ | {"PKG_CONFIG_LIBDIR": str(packages)}  # the host's libraries are not the target's
    for wanted in ("all", *((*KERNEL_TESTS, "bench_vm") if target.processors else ()), *target.tests):
        run([ROOT / "tools" / "build.sh", folder, wanted, f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'zig.cmake'}",
             f"-DTN_ZIG_TARGET={target.triple}", f"-DTN_ZIG_WRAPPERS={wrappers}", "-DTRUNNION_SHARED=OFF", "-DTRUNNION_TEXT=ON",
             "-DTRUNNION_WERROR=ON"],
            env=environment, capture_output=True, text=True, cwd=ROOT)
    return folder / target.program


# No debugger in a window if the program crashes, no questions about browsers and .NET when Wine makes its folder.
WITHOUT_WINDOWS = "WINEDLLOVERRIDES=winedbg.exe=d;mscoree,mshtml="


def launcher(target):
    """The words before the program's own arguments, or None: it cannot run here."""
    if target.name.startswith("wasm"):
        return [PYTHON, ROOT / "tools" / "run_wasi.py"]
    found = next(([path] for path in map(shutil.which, target.emulator) if path), None)
    if found and "windows" in target.name:
        prefix = ROOT / f"build-{target.name}" / "wine"
        return ["env", "LC_ALL=C.UTF-8", f"WINEPREFIX={prefix}", "WINEDEBUG=-all", WITHOUT_WINDOWS, *found]
    return found


# Programs that compare the kernels with their definition, bit by bit.
KERNEL_TESTS = ("test_gemm", "test_conv_kernel", "test_conv_bytes", "test_attention_kernel", "test_sdpa", "test_qmat", "test_kir_vm",
                "test_machine_code")


def test_kernels(target):
    """Runs the kernels' tests on each of the target's processors; the list of those that fail."""
    wrong = []
    for processor in target.processors:
        for name in KERNEL_TESTS:
            error, _ = attempt([*launcher(target), "-cpu", processor, ROOT / f"build-{target.name}" / name])
            if error:
                wrong.append(f"{name} on {processor}: {error}")
        print(f"{target.name}: kernels on {processor}: {'passed' if not wrong else 'failed'}", flush=True)
    return wrong


# Cases of bench/vm.c, and how many instructions machine code may take for one of the compiled loop.
CODE_CASES = ("tanh-2k", "silu-mul-2k", "adam-2k", "bias-relu-8x384", "softmax-16x128", "layer-norm-8x384", "rms-norm-8x576",
              "row-sum-32x128")
MOST_INSTRUCTIONS = 1.1
ENDED_BY_CTRL_C = 130


def count_instructions(target, case, way):
    """What one more call of a case executes: QEMU translates one instruction at a time and logs each."""
    counts = []
    for calls in (5, 6):
        command = [*map(str, launcher(target)), "-cpu", "max", "-singlestep", "-d", "nochain,exec", "-D", "/dev/stdout",
                   str(ROOT / f"build-{target.name}" / "bench_vm"), case, way, str(calls)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as run_:
            counts.append(sum(block.count(b"Trace ") for block in iter(lambda: run_.stdout.read(1 << 20), b"")))
        if run_.returncode:
            raise subprocess.CalledProcessError(run_.returncode, command)
    return counts[1] - counts[0]


def test_machine_code(target):
    """Compares machine code with the loops that a compiler makes of C; the list of cases that take too many instructions."""
    wrong = []
    for case in CODE_CASES if target.processors else ():
        compiled, emitted = (count_instructions(target, case, way) for way in ("hand", "code"))
        print(f"{target.name}: machine code of {case}: {emitted} instructions, compiled {compiled}: {emitted / compiled:.2f}", flush=True)
        if emitted > MOST_INSTRUCTIONS * compiled:
            wrong.append(f"machine code of {case}: {emitted} instructions, at most {MOST_INSTRUCTIONS} × {compiled}")
    return wrong


def emulated(target):
    """A program that starts the target's command here, for tests that start it by one name."""
    folder = ROOT / f"build-{target.name}"
    command = folder / "emulated"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, [*launcher(target), folder / target.program]))} "$@"\n')
    command.chmod(0o755)
    return command


def test_serve(target, native):
    """`trunnion serve` where it runs at this machine's speed: answers, clients that go away, Ctrl-C; the list of what is wrong."""
    if not {"env", "wine64"} & set(target.emulator) or not smollm2.is_there():
        return []
    report = Report()
    with serve.serving(emulated(target), "-m", str(smollm2.path()), "--context", "512", "--parallel", "4", "--device", "cpu") as server:
        if not server.port:
            return [f"serve: {server.words[-500:]}"]
        serve.check_answers(native, report, server)
        serve.check_disconnects(report, server)
        serve.check_slow_reader(report, server)
        server.process.send_signal(signal.SIGINT)  # Wine makes it a Ctrl-C
        status = server.wait()[0]
    report.add(status == ENDED_BY_CTRL_C, f"Ctrl-C ends it with {status}")
    print(f"{target.name}: serve: {report.passed} passed, {report.failed} failed", flush=True)
    return [f"serve: {report.failed} failed"] if report.failed else []


def test_system(target):
    """Runs the target's own tests; the list of those that fail."""
    wrong, folder, command = [], ROOT / f"build-{target.name}", emulated(target)
    for name in target.tests:
        program = folder / (name + ("" if target.program == "trunnion" else ".exe"))
        error, _ = attempt([*launcher(target), program], env=os.environ | {"TRUNNION_COMMAND": str(command)})
        print(f"{target.name}: {name}: {'failed' if error else 'passed'}", flush=True)
        if error:
            wrong.append(f"{name}: {error}")
    return wrong


def newer_symbols(target, program):
    """The versions of glibc that the command needs although its target is older."""
    if "glibc" not in target.name or not shutil.which("readelf"):
        return []
    versions = run(["readelf", "-V", program], capture_output=True, text=True).stdout
    needed = {tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([0-9.]+)", versions)}
    most = tuple(map(int, target.name.split("glibc")[1].split(".")))
    return [f"needs glibc {'.'.join(map(str, version))}" for version in sorted(needed) if version > most]


def test_old_root(target, program, native):
    """Runs a command for every x86-64 Linux in a root folder with an old C library, or none; the list of what is wrong."""
    if target.emulator != ("env",):
        return []
    libraries = cross_libraries.old_glibc(DEPS) if "glibc" in target.name else None
    wrong = empty_root.check(program, native, libraries, smollm2.path() if smollm2.is_there() else None)
    state = "skipped: this user may not change the root folder" if wrong is None else "failed" if wrong else "passed"
    place = f"root with the C library of Debian {cross_libraries.OLD_SYSTEM}" if libraries else "empty root"
    print(f"{target.name}: {place}: {state}", flush=True)
    return wrong or []


ENGINE_CASES = ("test_add", "test_basic_conv_with_padding", "test_lstm_defaults", "test_softmax_example")


def test_engine(target, program):
    """On Windows, node cases by ONNX Runtime, whose library pip brings; the list of what is wrong."""
    cases = onnx_nodes.find_cases() if "windows" in target.name else None
    if not cases:
        return []
    place = DEPS / "onnxruntime-windows"
    if not place.exists():
        run([PYTHON, "-m", "pip", "download", "-q", "--platform", "win_amd64", "--python-version", "3.11", "--only-binary=:all:",
             "--no-deps", "-d", DEPS, "onnxruntime"])
        shutil.unpack_archive(next(DEPS.glob("onnxruntime-*-win_amd64.whl")), place, "zip")
    library = place / "onnxruntime" / "capi" / "onnxruntime.dll"
    environment = os.environ | {"TRUNNION_ONNXRUNTIME_LIB": str(library)}
    with tempfile.TemporaryDirectory() as folder:
        copies = pathlib.Path(folder) / "größe 模型"  # the engine opens the file by its path
        for name in ENGINE_CASES:
            shutil.copytree(cases / name, copies / name)
        error, printed = attempt([*launcher(target), program, "onnx-test", copies, "--device", "engine:onnxruntime", "--strict"],
                                 env=environment)
    if not error and f"{len(ENGINE_CASES)} passed, 0 failed, 0 skipped" not in printed:
        error = "other counts than expected"
    print(f"{target.name}: ONNX Runtime: {'failed' if error else 'passed'}", flush=True)
    return [f"ONNX Runtime: {error}: {printed[-500:]}"] if error else []


TRAININGS = (("mlp", 40), ("cnn", 6))  # networks of `trunnion train digits`, and their steps
IMAGE_CASES = 4  # of ONNX, that decode PNG and JPEG
NETWORK = ROOT / "tests" / "corpus" / "onnx" / "mlp.onnx"


@functools.cache  # this machine's command is compared with every target's
def results(*command):
    """What a command certifies ("N passed, …"), its checkpoint after each training, and a network's outputs."""
    certified = limited([*command, "certify", "--device", "cpu"], capture_output=True, text=True).stdout.splitlines()[-1]
    checkpoints = []
    with tempfile.TemporaryDirectory() as folder:
        for model, steps in TRAININGS:
            path = pathlib.Path(folder) / f"größe 模型 {model}"
            limited([*command, "train", "digits", "--model", model, "--steps", str(steps), "--device", "cpu", "--save", path,
                     "--data", digits.cache_folder() / "data" / "digits.csv", "--json"], stdout=subprocess.DEVNULL)
            checkpoints.append(path.read_bytes())
        path = pathlib.Path(folder) / "cartpole"
        limited([*command, "train", "cartpole", "--steps", "4", "--save", path, "--device", "cpu", "--json"], stdout=subprocess.DEVNULL)
        checkpoints.append(path.read_bytes())
        outputs = pathlib.Path(folder) / "выход"
        limited([*command, "run", NETWORK, "--random", "-o", outputs, "--device", "cpu"], stdout=subprocess.DEVNULL)
        checkpoints += [path.read_bytes() for path in sorted(outputs.iterdir())]
    return certified.split(": ")[-1], checkpoints


@functools.cache
def node_cases(*command):
    """Counts of the ONNX node cases that pass, fail and are skipped, and the names of those that fail."""
    error, printed = attempt([*command, "onnx-test", onnx_nodes.find_cases(), "--device", "cpu"])
    counts = re.findall(r"(\d+) (?:passed|failed|skipped)", printed.splitlines()[-1] if printed else "")
    return [int(count) for count in counts] or error, re.findall(r"^failed  (\w+)", printed, re.M)


def test_nodes(target, program, native):
    """Runs the ONNX node cases: those fail that fail here, and only what needs libraries (for images) is skipped; what is wrong."""
    if not onnx_nodes.find_cases():
        return []
    (here, here_failed), (there, there_failed) = node_cases(native), node_cases(*launcher(target), program)
    print(f"{target.name}: ONNX node cases: {there}, on this machine {here}", flush=True)
    right = isinstance(there, list) and here_failed == there_failed and there[2] - here[2] <= IMAGE_CASES
    return [] if right else [f"ONNX node cases: {there}, failed {there_failed}; on this machine {here}, failed {here_failed}"]


@functools.cache
def tokens(*command):
    """What a language model answers, greedily."""
    return limited([*command, "generate", "-m", smollm2.path(), "-p", "Once upon a time, the", "-n", "8", "--greedy", "--device",
                    "cpu"], capture_output=True, text=True).stdout


def check(target, program, native):
    """Compares the target's command with this machine's; the list of what differs."""
    here, here_bits = results(native)
    there, there_bits = results(*launcher(target), program)
    wrong = []
    if here != there or " 0 failed" not in there:
        wrong.append(f"certify: {there}; on this machine {here}")
    if len(here_bits) != len(there_bits):
        wrong.append(f"run {NETWORK.name}: {len(there_bits)} files, on this machine {len(here_bits)}")
    names = [f"digits ({model}, {steps} steps)" for model, steps in TRAININGS] + ["cartpole"] + len(here_bits) * [f"run {NETWORK.name}"]
    for name, ours, theirs in zip(names, here_bits, there_bits):
        if ours != theirs:
            wrong.append(f"{name}: the bits differ from this machine's")
    if smollm2.is_there():
        ours, theirs = tokens(native), tokens(*launcher(target), program)
        if ours != theirs:
            wrong.append(f"generate: {theirs!r}; on this machine {ours!r}")
    print(f"{target.name}: certify {there}; trainings and a network: {'the same' if here_bits == there_bits else 'other'} bits", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--check", metavar="BUILD")
    parser.add_argument("--part", type=int, metavar="N", help=f"every {PARTS}th target, from N modulo {PARTS} on")
    parser.add_argument("--list", action="store_true")
    o = parser.parse_args()
    by_name = {t.name: t for t in TARGETS}
    if o.list:
        print("\n".join(f"{t.name:16}{' or '.join(t.emulator) or 'compiled only'}" for t in TARGETS))
        return 0
    unknown = [name for name in o.targets if name not in by_name]
    if unknown:
        print(f"cross.py: unknown target {unknown[0]}; known: {' '.join(by_name)}", file=sys.stderr)
        return 2
    wrappers = prepare()
    if o.check:
        run([sys.executable, ROOT / "tools" / "digits.py"], stdout=subprocess.DEVNULL)
        run([sys.executable, ROOT / "tools" / "text" / "smollm2.py", "--or-skip"], stdout=subprocess.DEVNULL)
    passed, failed, skipped = 0, 0, 0
    part = TARGETS if o.part is None else TARGETS[o.part % PARTS::PARTS]
    for target in [by_name[name] for name in o.targets] or part:
        try:
            program = build(target, wrappers)
        except subprocess.CalledProcessError as e:
            errors = [line for line in (e.stdout or "").splitlines() if "error: " in line][:20]
            print(f"{target.name}: does not compile", *errors, (e.stderr or "")[-500:], sep="\n    ")
            failed += 1
            continue
        print(f"{target.name}: built, {program.stat().st_size} bytes", flush=True)
        passed += 1
        if not o.check:
            continue
        if not target.emulator or not launcher(target):
            need = f"needs {' or '.join(target.emulator)}" if target.emulator else "nothing here runs it"
            print(f"{target.name}: compiled only ({need})")
            skipped += 1
            continue
        try:
            wrong = check(target, program, pathlib.Path(o.check) / "trunnion") + test_kernels(target) + test_machine_code(target)
            wrong += test_nodes(target, program, pathlib.Path(o.check) / "trunnion") + test_system(target)
            wrong += test_serve(target, pathlib.Path(o.check) / "trunnion")
            wrong += test_engine(target, program)
            wrong += test_old_root(target, program, pathlib.Path(o.check) / "trunnion")
            wrong += newer_symbols(target, program)
        except subprocess.TimeoutExpired as e:
            wrong = [f"not finished after {MOST_SECONDS} s: {' '.join(e.cmd)[:300]}"]
        except subprocess.CalledProcessError as e:
            wrong = [f"exit status {e.returncode}: {' '.join(map(str, e.cmd))[:300]}: {(e.stderr or '')[:500]}"]
        for line in wrong:
            print(f"{target.name}: {line}")
        passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
