"""renderings.py BUILD [--all PERCENT [SEED]] — compiles kernels in CUDA C and HIP C with the compilers of the vendors.

The cases of the tests, random programs and all kernels of templates are written as files by test_render,
test_workgroup_kernels and test_matrix; NVRTC makes machine code for sm_80 and sm_90 of them (sm_90a of
those with wide matrices, which have a multiprocessor to themselves), hiprtc for gfx90a, and clang, with a short prelude
in the place of the vendors' headers, PTX and machine code for gfx1100. No device is needed, and none takes part. Two
workgroups of a kernel have to fit on a multiprocessor, and those of templates and cases may not spill registers, but for
a few bytes where registers are left: then the compiler had rather run more workgroups. Random programs may, and those
with indices of 64 bits, which only launches of more than 2^31 elements get: it is told. Without --all a sample is
compiled, with it PERCENT of all files, evenly spread; SEED chooses the first one. A compiler that is not installed is
skipped and reported; with --all NVRTC is fetched with pip.

Compilers run in child processes, for some crash. What one made of a text is kept in BUILD/check/renderings-made, by a hash
of the text, the compiler and this file: a run that was stopped goes on where it was, and what did not change is not
compiled again. Failures are.
"""

import concurrent.futures
import ctypes
import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRELUDE = ROOT / "tools" / "checks" / "renderings.h"
VENV = ROOT / ".deps" / "venv"

RANDOM = (8, 60)  # programs of each kind; with --all
SAMPLE = 48  # one file of so many
REGISTERS = 65536  # of a multiprocessor
CHOSEN = 32  # bytes, stored and loaded, that ptxas spills with half of its registers free, so that more workgroups fit
ATTENTION = "__shared__ float b2[2112]"  # its weights of 64 keys and 32 queries; no other template has these
QUANTIZED = "__shared__ signed char b1[512]"  # 16 rows of 32 numbers as bytes, in products with quantized weights
NVRTC_OPTIONS = ["--std=c++17", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false", "-w",
                 "--ptxas-options=-v"]
HIPRTC_OPTIONS = ["-std=c++17", "-O3", "-ffp-contract=off", "-w", "-fhip-fp32-correctly-rounded-divide-sqrt"]
# More than -O1 crashes clang 15 in its last pass for gfx1100, where kernels are long.
CLANG_OPTIONS = ["-nogpulib", "--cuda-device-only", "-std=c++17", "-O1", "-ffp-contract=off", "-w", "-include",
                 str(PRELUDE), "-fno-crash-diagnostics", "-S"]


# ---- compilers: what each makes of one file is {"log": "", "registers": n, "spills": n}, the log only of failures ------

class Runtime:
    """NVRTC or hiprtc: the same functions under two names."""

    def __init__(self, path, prefix):
        self.library, self.prefix = ctypes.CDLL(path), prefix

    def call(self, name, *arguments):
        return getattr(self.library, self.prefix + name)(*arguments)

    def bytes_of(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value + 1)
        self.call(f"Get{what}", program, room)
        return room.raw[:size.value]

    def compile(self, path, options, code):
        """(failed, log, machine code)"""
        program = ctypes.c_void_p()
        listed = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        self.call("CreateProgram", ctypes.byref(program), pathlib.Path(path).read_bytes(), b"kernel", 0, None, None)
        failed = self.call("CompileProgram", program, len(options), listed)
        log = self.bytes_of(program, "ProgramLog").decode(errors="replace").strip("\0\n ")
        made = b"" if failed else self.bytes_of(program, code)
        self.call("DestroyProgram", ctypes.byref(program))
        return failed, log, made


def nvidia_numbers(words):
    """Of what ptxas says."""
    registers = re.search(r"Used (\d+) registers", words)
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", words)]
    return {"log": "" if registers else "no registers told: " + words, "registers": int((registers or [0, 0])[1]),
            "spills": sum(spills), "words": words}


def message_pack_number(code, key):
    """The number behind a key in a code object's notes."""
    at = code.find(key)
    if at < 0:
        return 0
    at += len(key)
    size = {0xcc: 1, 0xcd: 2, 0xce: 4}.get(code[at], 0)
    return int.from_bytes(code[at + 1:at + 1 + size], "big") if size else code[at]


def amd_numbers(code):
    return {"log": "", "registers": message_pack_number(code, b".vgpr_count"),
            "spills": 4 * (message_pack_number(code, b".vgpr_spill_count"))}


def with_nvrtc(library, arch, path):
    failed, log, _ = Runtime(library, "nvrtc").compile(path, [f"--gpu-architecture={arch}"] + NVRTC_OPTIONS, "CUBIN")
    return {"log": log or "failed"} if failed else nvidia_numbers(log)


def with_hiprtc(library, arch, path):
    failed, log, code = Runtime(library, "hiprtc").compile(path, [f"--offload-arch={arch}"] + HIPRTC_OPTIONS, "Code")
    return {"log": log or "failed"} if failed else amd_numbers(code)


def run(*command):
    ended = subprocess.run(command, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def with_clang_for_nvidia(clang, arch, path):
    failed, log = run(clang, "-x", "cuda", "-nocudainc", f"--cuda-gpu-arch={arch}", *CLANG_OPTIONS, "-o", path + ".ptx",
                      path)
    if not failed and shutil.which("ptxas"):
        failed, log = run("ptxas", "-v", f"-arch={arch}", path + ".ptx", "-o", "/dev/null")
        return {"log": log} if failed else nvidia_numbers(log)
    return {"log": log if failed else ""}


def with_clang_for_amd(clang, arch, path):
    failed, log = run(clang, "-x", "hip", "-nogpuinc", f"--offload-arch={arch}", *CLANG_OPTIONS, "-o", path + ".s", path)
    if failed:
        return {"log": log}
    text = pathlib.Path(path + ".s").read_text()
    found = [int((re.search(rf"\.{name}:\s*(\d+)", text) or [0, 0])[1]) for name in ("vgpr_count", "vgpr_spill_count")]
    return {"log": "", "registers": found[0], "spills": 4 * found[1]}


def work(kind, compiler):
    """The child process: one line "ARCH PATH" in, one of JSON out."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer
    for line in sys.stdin:
        arch, path = line.split()
        print(json.dumps(KINDS[kind][0](compiler, arch, path)), file=out, flush=True)


# ---- which are here ----------------------------------------------------------------------------------------------------

def first_file(*patterns):
    return next((found for pattern in patterns if pattern for found in sorted(glob.glob(pattern), reverse=True)), None)


def nvrtc(everything):
    places = [os.environ.get("TRUNNION_NVRTC_LIB"), f"{VENV}/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*",
              "/usr/local/cuda*/lib64/libnvrtc.so*", "/usr/lib/*/libnvrtc.so.*"]
    if everything and not first_file(*places) and (VENV / "bin" / "python").exists():
        run(str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "nvidia-cuda-nvrtc")
    return first_file(*places)


def hiprtc(_):
    return first_file(os.environ.get("TRUNNION_HIPRTC_LIB"), "/opt/rocm*/lib/libhiprtc.so*",
                      "/usr/lib/*/libhiprtc.so.*", "/usr/lib/*/libamdhip64.so.*")


def clang(target):
    """The latest clang that has the target."""
    names = ["clang"] + [f"clang-{n}" for n in range(30, 12, -1)]
    for name in filter(shutil.which, names):
        failed, log = run(name, "--print-targets")
        if failed or target[0] not in log:
            continue
        failed, _ = run(name, *target[1:], *CLANG_OPTIONS, "-o", "/dev/null", "/dev/null")
        if not failed:
            return name
    return None


def clang_for_nvidia(_):
    return clang(["nvptx64", "-x", "cuda", "-nocudainc", "--cuda-gpu-arch=sm_80"])


def clang_for_amd(_):
    return clang(["amdgcn", "-x", "hip", "-nogpuinc", "--offload-arch=gfx1100"])


FOR_NVIDIA = ("NVRTC", "clang for NVIDIA")
# name: compiling, finding, files, architectures, registers of the fullest kernel of n items
KINDS = {
    "NVRTC": (with_nvrtc, nvrtc, "cu", ["sm_80", "sm_90"], lambda items: REGISTERS // 2 // items),
    "hiprtc": (with_hiprtc, hiprtc, "hip", ["gfx90a"], lambda items: 256),
    "clang for NVIDIA": (with_clang_for_nvidia, clang_for_nvidia, "cu", ["sm_80"], lambda items: REGISTERS // 2 // items),
    "clang for AMD": (with_clang_for_amd, clang_for_amd, "hip", ["gfx1100"], lambda items: 256),
}


# ---- compiling all of it -----------------------------------------------------------------------------------------------

def stamp_of(tool):
    """Of a program or library, that another one of its name has not; of one that is not here, nothing."""
    path = shutil.which(tool) or tool
    return f"{os.path.realpath(path)} {os.stat(path).st_size} {os.stat(path).st_mtime_ns}" if os.path.exists(path) else ""


class Workers:
    """A child process for each thread; one that dies is replaced at the next file. What they made is kept in a folder."""

    def __init__(self, kind, compiler, folder):
        self.kind, self.compiler, self.mine = kind, compiler, threading.local()
        self.all = []
        self.made = folder.parent / "renderings-made"
        self.made.mkdir(exist_ok=True)
        self.stamp = "\n".join([kind, stamp_of(compiler), stamp_of("ptxas"), PRELUDE.read_text(),
                                pathlib.Path(__file__).read_text()])

    def child(self):
        child = getattr(self.mine, "child", None)
        if child is None or child.poll() is not None:
            child = subprocess.Popen([sys.executable, __file__, "--worker", self.kind, self.compiler], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.mine.child = child
            self.all.append(child)
        return child

    def compile(self, arch, path):
        words = "\n".join([self.stamp, arch, pathlib.Path(path).read_text()])
        made = self.made / hashlib.sha256(words.encode()).hexdigest()
        if made.exists():
            return json.loads(made.read_text())
        answer = self.ask(arch, path)
        if not answer["log"]:
            part = made.with_suffix(f".{threading.get_ident()}")
            part.write_text(json.dumps(answer))
            part.replace(made)
        return answer

    def ask(self, arch, path):
        child = self.child()
        try:
            print(arch, path, file=child.stdin, flush=True)
            answer = child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer) if answer else {"log": f"the compiler crashed ({child.wait()})"}

    def end(self):
        for child in self.all:
            child.stdin.close()
            child.wait()


def is_wide(text):
    return "; mat_zero(" in text and "mat_wide<" in text.split("__global__")[-1]


def may_spill(kind, path, text):
    """clang 15 makes code for gfx1100 with half of its registers only where there are 16-bit numbers; and in attention
    over tensors it computes the addresses of workgroup memory before all loops, and keeps them in memory. In products of
    16 rows with quantized weights it spills 120 to 178 registers beside the 128 that it takes, in each of the 13
    templates; other schedulers change little. NVRTC needs 56 registers for one, and the 22 templates of 4 rows spill none."""
    named = "matrix" in path or ATTENTION in text or QUANTIZED in text
    return "-64." in path or "random" in path or (kind == "clang for AMD" and named)


def is_chosen(kind, spills, registers, most):
    return kind in FOR_NVIDIA and spills <= CHOSEN and 2 * registers <= most


def complaint(kind, path, answer):
    """What is wrong with a compiled kernel, or None."""
    if answer["log"]:
        return answer["log"][-800:]
    text = pathlib.Path(path).read_text()
    items = int(re.search(r"__launch_bounds__\((\d+)\)", text)[1])
    spills, registers, most = answer.get("spills", 0), answer.get("registers", 0), KINDS[kind][4](items)
    if is_wide(text):
        most = REGISTERS // items
    if "serialized" in answer.get("words", ""):
        return "products of wide matrices wait for each other"
    if spills and not may_spill(kind, path, text) and not is_chosen(kind, spills, registers, most):
        return f"{spills} bytes of registers are spilled, with {registers} registers and {items} items"
    if registers > most:
        return f"{registers} registers, and {most} are the most for workgroups of {items}"
    return None


def architectures(kind, path):
    """Kernels with matrices are for the subgroups of one kind of device; wide ones for Hopper."""
    text, known = pathlib.Path(path).read_text(), KINDS[kind][3]
    lanes = re.search(r"#define MAT_LANES (\d+)", text)
    if is_wide(text):
        return ["sm_90a"] if kind == "NVRTC" else []
    return known if not lanes or int(lanes[1]) == (64 if known[0] == "gfx90a" else 32) else []


def compile_all(kind, compiler, folder, files, report):
    workers = Workers(kind, compiler, folder)
    jobs = []
    for i, path in enumerate(files):
        fitting = architectures(kind, path)
        jobs += [(arch, path) for arch in (fitting if report.everything else fitting[i % len(fitting):][:1] if fitting else [])]
    most = faults = spilling = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        for (arch, path), answer in zip(jobs, pool.map(lambda job: workers.compile(*job), jobs)):
            fault = complaint(kind, path, answer)
            most = max(most, answer.get("registers", 0))
            spilling += answer.get("spills", 0) > 0 and not fault
            report.passed += not fault
            faults += bool(fault)
            if fault and faults <= 5:
                print(f"failed: {kind}, {arch}: {path}: {fault}")
    workers.end()
    report.failed += faults
    if not faults:
        print(f"ran on: {kind} ({' and '.join(sorted({arch for arch, _ in jobs}))})")
        print(f"listing: {kind}: {len(jobs)} kernels, at most {most} registers; {spilling} spill registers, and may")


def sample(files, percent, seed):
    """Without a percentage, some of each kind, and all of the wide matrices that most launches get; else a part that
    begins elsewhere for another seed."""
    if percent:
        files = files[seed % len(files):] + files[:seed % len(files)]
        return [f for i, f in enumerate(files) if (i + 1) * percent // 100 > i * percent // 100]
    wide = {f for f in files if "-64." not in f and is_wide(pathlib.Path(f).read_text())}
    return sorted(wide | set(files[::SAMPLE]))


class Report:
    def __init__(self, percent):
        self.passed = self.failed = self.skipped = 0
        self.percent, self.everything = percent, percent > 0


def write_sources(build, folder, everything):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([str(build / "test_render"), "--sources", str(folder), str(RANDOM[everything])], check=True)
    for test in ("test_workgroup_kernels", "test_matrix"):
        subprocess.run([str(build / test), "--sources", str(folder)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)


def main():
    if sys.argv[1] == "--worker":
        return work(sys.argv[2], sys.argv[3])
    seed = int((sys.argv + ["0"])[4]) if "--all" in sys.argv else 0
    build, report = ROOT / sys.argv[1], Report(int(sys.argv[3]) if "--all" in sys.argv else 0)
    folder = build / "check" / "renderings"
    here = {kind: KINDS[kind][1](report.everything) for kind in KINDS}
    if any(here.values()):
        write_sources(build, folder, report.everything)
    for kind, compiler in here.items():
        if not compiler:
            print(f"skipped: {kind} is not here")
            report.skipped += 1
            continue
        files = sorted(map(str, folder.glob(f"*.{KINDS[kind][2]}")))
        compile_all(kind, compiler, folder, sample(files, report.percent, seed), report)
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return report.failed != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
