"""stages.py — the stages of tools/gpu_report. A stage is a function that adds rows; a command that fails is a row as well.

The first key of a row names what was done. "failed" says why a row failed; all rows of a stage are one table of the record.
"""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from text import smollm2  # noqa: E402

COMMAND_SECONDS = 150
LOSS_BOUND = 1e-3  # relative, after the few steps of a training here
LOGIT_BOUND = 2e-2
OWN, VENDOR = ["--library", "none"], ["--library", "auto"]
PROMPT = "The history of the steam engine begins long before the nineteenth century, when engineers"

Stage = collections.namedtuple("Stage", "about run")


class Session:
    def __init__(self, options, add, end):
        self.options, self.add, self.end = options, add, end
        self.program, self.device, self.quick = options.build / "trunnion", options.device, options.quick

    def run(self, command, most=COMMAND_SECONDS, **environment):
        """(exit status or None, standard output, why it failed or None). Never takes longer than the stage may."""
        limit = min(most, self.end - time.monotonic())
        if limit <= 1:
            return None, "", "no time left in this stage"
        try:
            ended = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=limit, cwd=ROOT,
                                   env=os.environ | environment, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return None, "", f"stopped after {limit:.0f} s"
        except OSError as error:
            return None, "", str(error)
        last = ended.stderr.strip().splitlines()[-1:]
        return ended.returncode, ended.stdout, None if ended.returncode == 0 else f"exit status {ended.returncode}: {' '.join(last)}"

    def call(self, *arguments, device=None, most=COMMAND_SECONDS, **environment):
        """(the JSON object of a subcommand or {}, why it failed or None)"""
        command = [self.program, *arguments, "--device", device or self.device, "--json"]
        _, out, why = self.run(command, most, **environment)
        try:
            return (json.loads(out), None) if not why else ({}, why)
        except json.JSONDecodeError as error:
            return {}, f"no JSON: {error}"

    def model(self):
        path = pathlib.Path(os.environ.get("TRUNNION_REPORT_MODEL", smollm2.path()))
        return path if path.exists() else None


# ---- devices ---------------------------------------------------------------------------------------------------------


def devices(s):
    _, out, why = s.run([s.program, "devices", "--json", "--fresh"])
    if why:
        s.add({"device": s.device, "failed": why})
        return
    listed = json.loads(out)
    for backend in listed["backends"]:
        for d in backend["devices"]:
            s.add({"device": d["id"], "name": d["name"], "memory": f"{d['total_memory'] / 2**30:.1f} GiB", "free":
                   f"{d['free_memory'] / 2**30:.1f} GiB", "level": d["compute_capability"], "recommended": d["id"] == listed["recommended"]})
        if not backend["available"]:
            s.add({"device": backend["name"], "reason": backend["reason"], "fix": backend["fix"]})
    for library in listed["libraries"]:
        s.add({"device": f"library {library['name']}", "reason": library["reason"] or library["path"]})


# ---- certify: operations in groups, so that one that crashes or hangs costs its group only ---------------------------

GROUP = 12


def certify(s):
    names, why = s.call("certify", "--sample", "100000", device="cpu")
    names = sorted(names.get("ops", {}))
    if why or not names:
        s.add({"operations": "the list", "failed": why or "no operation"})
        return
    sample = 400 if s.quick else 10
    names = names[::8] if s.quick else names
    sums = collections.Counter()
    for i in range(0, len(names), GROUP):
        group = names[i:i + GROUP]
        found, why = s.call("certify", "--only", ",".join(group), "--sample", sample, "--seed", 5)
        if why and not found:
            s.add({"operations": ", ".join(group), "failed": why})
            continue
        for name, op in found["ops"].items():
            sums.update({k: op[k] for k in ("forward_passed", "forward_failed", "backward_passed", "backward_failed", "skipped")})
            if op["forward_failed"] + op["backward_failed"]:
                s.add({"operations": name, "failed": op["why"]})
    s.add({"operations": f"{len(names)} operations, one case in {sample}", **sums})


def driver(s):
    """Memory, copies, order, threads and errors of the driver; a case of each operation runs with them."""
    found, why = s.call("certify", "--sample", "100000", most=s.options.seconds)
    if why and not found:
        s.add({"driver": s.device, "failed": why})
        return
    broken = found["driver"].get("broken", 0)
    s.add({"driver": s.device, **found["driver"], "cases passed": found["passed"], "cases failed": found["failed"],
           **({"failed": why or f"{broken} driver checks"} if why or broken else {})})


# ---- trainings -------------------------------------------------------------------------------------------------------

TRAININGS = [("digits", 1000, 40, []), ("digits", 300, 4, ["--model", "cnn"]), ("chars", 100, 2, []), ("cartpole", 20000, 512, []),
             ("cartpole", 4000, 128, ["--policy", "lstm"]), ("chars", 50, 1, ["--amp", "bf16"])]
QUICK_TRAININGS = [row for row in TRAININGS if row[0] != "chars"]  # minutes on a software device
COMPARED = {"digits": 60, "chars": 3, "cartpole": 512}  # steps after which losses are compared: later, rounding has grown


def train(s):
    for task, steps, few, more in QUICK_TRAININGS if s.quick else TRAININGS:
        name, steps = " ".join([task, *more]), few if s.quick else steps
        short = str(min(steps, COMPARED[task]))
        here, why_here = s.call("train", task, "--steps", short, "--seed", 7, *more, device="cpu")
        there, why = s.call("train", task, "--steps", short, "--seed", 7, *more)
        row = {"training": name, "compared steps": int(short)}
        if why or why_here:
            s.add(row | {"failed": why or f"on the CPU: {why_here}"})
            continue
        loss, want = there["final_loss"], here["final_loss"]
        off = abs(loss - want) / max(1e-3, abs(want))
        row |= {"loss": loss, "CPU's loss": want, "off": off, "host operations": len(there["fallback"]), "failed": ""}
        full, why = s.call("train", task, "--steps", steps, "--seed", 7, *more)
        row |= {"steps": steps, "steps/s": full.get("steps_per_second", 0.0), "CPU steps/s": here["steps_per_second"],
                "final loss": full.get("final_loss", "")}
        bound = LOSS_BOUND if "--amp" not in more else 0.1
        row["failed"] = why or (f"the loss differs by more than {bound}" if not off <= bound else "")
        s.add({k: v for k, v in row.items() if k != "failed" or v})


# ---- a language model ------------------------------------------------------------------------------------------------


def language(s):
    model = s.model()
    if not model:
        s.add({"language model": "SmolLM2", "skipped": f"{smollm2.path()} is not there; tools/text/smollm2.py fetches it"})
        return
    count = 2 if s.quick else 64
    words = ["generate", "-m", model, "-p", PROMPT, "-n", count, "--greedy"]
    here, why_here = s.call(*words, device="cpu")
    there, why = s.call(*words, most=s.options.seconds)
    same = next((i for i, (a, b) in enumerate(zip(here.get("ids", []), there.get("ids", []))) if a != b), len(there.get("ids", [])))
    s.add({"language model": "greedy text", "tokens": len(there.get("ids", [])), "same as the CPU's": same,
           "host operations": len(there.get("fallback", []))} | ({"failed": why or why_here} if why or why_here else {}))
    if s.quick:
        return
    for work, tokens in (("llm-prompt-512", 512), ("llm-generate-128", 128)):
        for label, more in (("own kernels", OWN), ("vendor library", VENDOR)):
            row, why = bench(s, work, more, model=model)
            rate = {"tokens/s": tokens / row["value"]} if row else {"failed": why}
            s.add({"language model": work, "setting": label, **rate})


def llama(s):
    program = os.environ.get("LLAMA_BENCH") or shutil.which("llama-bench")
    if not program or not s.model():
        s.add({"llama.cpp": "llama-bench", "skipped": "not on PATH; LLAMA_BENCH names it" if not program else "no model"})
        return
    _, out, why = s.run([program, "-m", s.model(), "-p", "512", "-n", "128", "-ngl", "99", "-o", "json"], most=400)
    if why:
        s.add({"llama.cpp": program, "failed": why})
        return
    for run in json.loads(out):
        s.add({"llama.cpp": "prompt 512" if run["n_prompt"] else "generate 128", "tokens/s": run["avg_ts"],
               "backend": run.get("backends", ""), "build": run.get("build_commit", "")})


# ---- works of `trunnion bench` beside the vendor's library and PyTorch -------------------------------------------------

ATTENTION = 4.0 * 16 * 64


def gemm(n):
    return 2.0 * n ** 3


# work: operations, bytes (0: not shown)
PRODUCTS = {"gemm-f32-1024": (gemm(1024), 0), "gemm-f32-4096": (gemm(4096), 0), "gemm-f16-4096": (gemm(4096), 0),
            "gemm-bf16-4096": (gemm(4096), 0), "gemv-4096": (2.0 * 4096 ** 2, 4.0 * 4096 ** 2)}
ATTENTIONS = {"attention-f32-2048": (ATTENTION * 2048 ** 2, 0), "attention-f16-2048": (ATTENTION * 2048 ** 2, 0),
              "attention-token-f32-4096": (ATTENTION * 4096, 2 * 4.0 * 16 * 64 * 4096),
              "attention-token-f16-4096": (ATTENTION * 4096, 2 * 2.0 * 16 * 64 * 4096)}
COPIES = {"add-64k": (0, 3 * 4.0 * 65536), "chain5-16m": (0, 3 * 4.0 * 2 ** 24), "upload-64m": (0, 2.0 ** 26),
          "download-64m": (0, 2.0 ** 26)}
NETWORKS = {f"{net}": (0, 0) for net in ("policy-forward-64", "policy-train-64", "policy-train-4096", "transformer-forward-8x128",
                                         "transformer-train-8x128", "transformer-train-2x512", "cnn-forward-32", "cnn-train-32",
                                         "conv3x3-64-56")}
QUICK = {"products": {"gemm-f32-256": (gemm(256), 0), "gemm-f16-256": (gemm(256), 0)}, "attention": {"attention-f32-256": (ATTENTION * 256 ** 2, 0)},
         "copies": {"add-64k": (0, 3 * 4.0 * 65536), "upload-64m": (0, 2.0 ** 26)}, "networks": {"policy-train-64": (0, 0)}}
# setting: options, environment
MATRIX = {"own": (OWN, {}), "own, no matrix units": (OWN, {"TRUNNION_MATRIX": "0"}), "own, tf32": (OWN, {"TRUNNION_MATRIX": "tf32"}),
          "vendor": (VENDOR, {})}
PLAIN = {"own": (OWN, {}), "vendor": (VENDOR, {})}


def bench(s, work, more, model=None, **environment):
    """(the row of one work or None, why not)"""
    seconds = "0.1" if s.quick else "1"
    found, why = s.call("bench", work, "--seconds", seconds, *more, *(["--model", model] if model else []), **environment)
    return (found["rows"][0], None) if found.get("rows") else (None, why or "no row")


def rates(row, seconds, operations, moved):
    row["ms"] = 1e3 * seconds
    if operations:
        row["TFLOP/s"] = operations / seconds * 1e-12
    if moved:
        row["GB/s"] = moved / seconds * 1e-9
    return row


def torch_device(s):
    """ROCm's PyTorch calls its devices cuda as well."""
    return "cuda" if s.device.split(":")[0] in ("cuda", "rocm") else "cpu"


def torch(s, work, folder):
    """(PyTorch's answer to the same numbers, or {}; why not)"""
    command = [s.options.python, ROOT / "bench" / "peers" / "torch_works.py", "time", work, folder, "0.1" if s.quick else "1",
               torch_device(s), "2"]
    _, out, why = s.run(command)
    return ({}, why) if why else (json.loads(out), None)


def compare(s, works, settings, peer=True):
    peer = peer and s.run([s.options.python, "-c", "import torch"])[2] is None
    with tempfile.TemporaryDirectory() as folder:
        for work, (operations, moved) in works.items():
            for label, (more, environment) in settings.items():
                row, why = bench(s, work, more, **environment)
                head = {"work": work, "setting": label}
                s.add(rates(head, row["value"], operations, moved) if row else head | {"failed": why})
            if not peer:
                continue
            _, why = s.call("bench", work, "--save", folder, *OWN)
            found, why = torch(s, work, folder) if not why else ({}, why)
            head = {"work": work, "setting": f"PyTorch {found.get('version', '')} on {torch_device(s)}"}
            if why:
                s.add(head | {"failed": why})
                continue
            note = {"failed": "; ".join(found["wrong"])} if found["wrong"] else {}
            s.add(rates(head, found["value"], operations, moved) | note)


def products(s):
    compare(s, QUICK["products"] if s.quick else PRODUCTS, MATRIX)


def attention(s):
    compare(s, QUICK["attention"] if s.quick else ATTENTIONS, {k: v for k, v in MATRIX.items() if k in ("own", "own, no matrix units")})


def copies(s):
    compare(s, QUICK["copies"] if s.quick else COPIES, {"own": (OWN, {})}, peer=False)


def networks(s):
    compare(s, QUICK["networks"] if s.quick else NETWORKS, PLAIN)


def graphs(s):
    works = dict.fromkeys(["record-15"] if s.quick else ["add-16", "record-15", "policy-train-64", "transformer-train-1x16"], (0, 0))
    if not s.quick and s.model():
        works["llm-generate-128"] = (0, 0)
    compare(s, works, {"graphs": (OWN, {}), "no graphs": (OWN, {"TRUNNION_GRAPHS": "0"})}, peer=False)


def tuner(s):
    """Tiles by rule, then measured; the cache of tuning is a file of this stage."""
    sizes = [256] if s.quick else [512, 1024, 2048]
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TRUNNION_TUNE_CACHE": f"{folder}/tune.json"}
        for n in sizes:
            before, why_before = bench(s, f"gemm-f32-{n}", OWN, TRUNNION_TUNE="0")
            tuned, why = s.call("tune", f"{n}x{n}x{n}", most=300, **environment)
            after, why_after = bench(s, f"gemm-f32-{n}", OWN, **environment)
            row, bad = {"tuned": f"gemm-f32-{n}"}, why_before or why or why_after
            if bad:
                s.add(row | {"failed": bad})
                continue
            ways = ", ".join(e["way"] for e in tuned.get("entries", []))
            s.add(row | {"by rule, ms": 1e3 * before["value"], "tuned, ms": 1e3 * after["value"], "entries": ways})


STAGES = {
    "devices": Stage("What `trunnion devices` lists.", devices),
    "driver": Stage("The checks of the driver, and one case of each operation.", driver),
    "certify": Stage("A sample of the cases of every operation, forward and backward, against f64 references.", certify),
    "train": Stage("Short trainings, whose losses must be the CPU's within rounding, then longer ones for their rate.", train),
    "products": Stage("Matrix products with own kernels, with the vendor's library, and in PyTorch.", products),
    "attention": Stage("Attention of 16 heads of 64 elements, and of one token, with own kernels and in PyTorch.", attention),
    "copies": Stage("Memory of the device, and copies from and to pinned host memory.", copies),
    "networks": Stage("Policies, transformers and convolutional networks, forward and training.", networks),
    "language": Stage("SmolLM2: greedy text beside the CPU's, and tokens a second.", language),
    "llama": Stage("The same model in llama.cpp, if llama-bench is installed.", llama),
    "graphs": Stage("Repeated work as graphs of the driver and as single launches.", graphs),
    "tuner": Stage("Products with tiles by rule, and as the tuner measured.", tuner),
}
