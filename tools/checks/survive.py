"""survive.py BUILD [MOMENTS [SEED]] — trainings and texts whose device fails at a random moment end as undisturbed ones.

`trunnion train` and `finetune` run on the doubles of CUDA and ROCm (tests/double) and on OpenCL behind
tests/fakes/opencl_faults.c; one call of the driver fails, with an error that means lost, out of memory or a failed
launch. Loss, metric and steps must be those of an undisturbed run on that device, at most as many steps may be computed
again as lie between two copies of the state, and one line must say so. Texts of a small random model
(tools/checks/finetune.py makes it) must be the cpu's; an adapter, and the weights of a transformer that is trained as a
whole, are within 5e-6, because devices compose attention's gradient. Calls that never return are survived, too. With
--strict the run must fail instead. Conversations (`chat`) and texts that `serve` computes together go on, too. MOMENTS:
how many failures for each run on the first device (default 3, and then no
convolutions and no adapters); SEED draws others. Two processes run at a time.
"""

import concurrent.futures
import ctypes
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from checks.finetune import make_data, make_model  # noqa: E402

LIMIT = 900  # seconds of a run, on a machine with much other work
HANGS = -99999  # as an error (tests/fakes/fault_counter.h): the device does not answer any more
TRAININGS = [("digits", 12, []), ("digits", 3, ["--model", "cnn"]), ("chars", 2, [])]
DEVICE_TIMEOUT = ["--device-timeout", "8"]
SEED = (sys.argv + ["", ""])[3]
POOL = concurrent.futures.ThreadPoolExecutor(2)


class Target:
    """A device whose library lets a call fail."""

    def __init__(self, name, environment, variable, errors):
        self.name, self.environment, self.variable, self.errors = name, environment, variable, errors

    def fault(self, generator, first, calls, i):
        return {self.variable: f"any:{generator.randint(first, calls)}:{self.errors[i % len(self.errors)]}"}


def double(name, build, folder):
    library = str(build / "doubles" / f"{name}.so")
    compiler = {"cuda": "NVRTC", "rocm": "HIPRTC"}[name]
    environment = os.environ | {f"TRUNNION_{name.upper()}_LIB": library, f"TRUNNION_{compiler}_LIB": library,
                                "TRUNNION_CACHE": f"{folder}/{name}", "DOUBLE_ABORT": "1", "DOUBLE_LEVEL": "0"}
    return Target(name, environment, "DOUBLE_FAULT", [719, 700, 2])


def opencl(folder):
    """PoCL behind a library that counts calls; None if there is no OpenCL."""
    library = f"{folder}/libOpenCL.so"
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-w", "-shared", "-fPIC", "-o", library,
                    str(root / "tests/fakes/opencl_faults.c"), "-ldl"], check=True)
    try:
        ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        return None
    environment = os.environ | {"TRUNNION_OPENCL_LIB": library, "TRUNNION_CACHE": f"{folder}/opencl"}
    return Target("opencl", environment, "FAULT", [-36, -5, -4])


def limit(fault):
    """The options of a run with this fault: a time limit for one that hangs."""
    return DEVICE_TIMEOUT if str(HANGS) in str(fault) else []


def calls_of(words):
    """How many calls of the driver could have failed in a run with FAULT_COUNTS=1."""
    return max([int(n) for n in re.findall(r"faults: \d+ of (\d+) calls", words)], default=1)


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"failed: {text}", flush=True)


def train(program, device, task, steps, options, environment):
    """(exit code, the JSON object, standard error)"""
    command = [program, "train", task, "--steps", str(steps), "--device", device, "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT)
    return ended.returncode, json.loads(ended.stdout) if ended.returncode == 0 else {}, ended.stderr


def check(report, program, target, task, steps, options, moments):
    what, environment = " ".join([target.name, task, *options[:2 * ("--model" in options)]]), target.environment
    names = ("final_loss", "metric", "steps")
    _, undisturbed, _ = train(program, "cpu", task, steps, options, environment)
    code, there, words = train(program, target.name, task, steps, options, environment | {"FAULT_COUNTS": "1"})
    report.expect(code == 0 and there["failed_devices"] == [] and there["device"].startswith(target.name) and
                  [there[k] for k in names] == [undisturbed[k] for k in names], f"{what}: {there} {words[-300:]}")
    wanted, calls = [undisturbed.get(k) for k in names], calls_of(words)
    generator = random.Random(f"{what} {moments}{SEED}")
    faults = [target.fault(generator, 1, calls, i) for i in range(moments)]
    faults.append({target.variable: f"any:{calls // 3}:{HANGS}"})

    def run(fault):
        return fault, train(program, target.name, task, steps, options + limit(fault), environment | fault)

    moved = recomputed = 0
    for fault, (code, got, words) in POOL.map(run, faults):
        same = code == 0 and [got.get(k) for k in names] == wanted
        report.expect(same, f"{what}, {fault}: {code}, {got}, not {wanted}\n{words[-500:]}")
        failures = got.get("failed_devices", [])
        moved += bool(failures)
        recomputed = max(recomputed, got.get("recomputed_steps", 0))
        report.expect(got.get("recomputed_steps", 0) <= got.get("steps_between_copies", 0) or not failures,
                      f"{what}, {fault}: {got.get('recomputed_steps')} steps computed again")
        told = words.count("continuing from step")
        report.expect(told == len(failures) and (not failures or got["device"] == "cpu"), f"{what}, {fault}: told {told}")
    report.expect(bool(failures), f"{what}: a wait without end was not noticed")
    report.expect(moved > 1, f"{what}: no run moved to another device")
    fault = {target.variable: f"any:{max(1, calls // 4)}:{target.errors[0]}"}  # strict runs make no copies
    code, _, words = train(program, target.name, task, steps, [*options, "--strict"], environment | fault)
    report.expect(code != 0 and "continuing" not in words, f"{what}: --strict did not end the run")
    print(f"{what}: {moved} of {len(faults)} runs moved, at most {recomputed} steps again, {calls} calls", flush=True)


def check_reads(report, program, target):
    """A loss that cannot be read back is a failure of the device, not a number that is NaN."""
    call, error = {"cuda": ("cuMemcpyDtoHAsync_v2", 2), "rocm": ("hipMemcpyDtoHAsync", 2),
                   "opencl": ("clEnqueueReadBuffer", -4)}[target.name]
    fault = {target.variable: f"{call}:128:{error}"}
    code, got, words = train(program, target.name, "cartpole", 2048, ["--seed", "1"], target.environment | fault)
    report.expect(code == 0 and len(got["failed_devices"]) == 1, f"{target.name} cartpole, {fault}: {code}, {got}\n{words[-500:]}")


def check_graphs(report, program, target, table):
    """A graph that cannot be made or launched is an error of the step that launches it, and the training goes on."""
    wanted = train(program, "cpu", "digits", 8, ["--data", str(table)], target.environment)[1]
    for call, at, error in (("cuGraphInstantiateWithFlags", 1, 719), ("cuGraphExecKernelNodeSetParams", 5, 700),
                            ("cuGraphLaunch", 1, 2), ("cuGraphLaunch", 5, 719)):
        fault = {target.variable: f"{call}:{at}:{error}"}
        code, got, words = train(program, target.name, "digits", 8, ["--data", str(table)], target.environment | fault)
        reasons = [failed["reason"] for failed in got.get("failed_devices", [])]
        report.expect(code == 0 and len(reasons) == 1 and call in reasons[0] and
                      [got[k] for k in ("final_loss", "steps")] == [wanted[k] for k in ("final_loss", "steps")],
                      f"{target.name} graphs, {fault}: {code}, {got}\n{words[-500:]}")


def check_texts(report, program, target, model, moments):
    name, environment = target.name, target.environment

    def generate(device, *words, **more):
        command = [program, "generate", "-m", str(model), "-p", "a red house", "-n", "12", "--seed", "5", "--json",
                   "--device", device, *words]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment | more, timeout=LIMIT)
        return ended.returncode, json.loads(ended.stdout) if ended.returncode == 0 else {}, ended.stderr

    wanted = generate("cpu")[1].get("ids")
    code, there, words = generate(name, FAULT_COUNTS="1")
    report.expect(code == 0 and there["ids"] == wanted and len(wanted) > 3 and there["device"].startswith(name),
                  f"{name} generate: {words[-300:]}")
    calls, generator, moved = calls_of(words), random.Random(f"{name} {moments}{SEED}"), 0
    faults = [target.fault(generator, 1, calls, i) for i in range(moments)]
    faults.append({target.variable: f"any:{calls * 2 // 3}:{HANGS}"})
    for fault, (code, got, words) in POOL.map(lambda fault: (fault, generate(name, *limit(fault), **fault)), faults):
        told = "continuing from step" in words
        moved += told
        report.expect(code == 0 and got.get("ids") == wanted and (not told or got["device"] == "cpu"),
                      f"{name} generate, {fault}: {code}, {got.get('ids')}, not {wanted}\n{words[-500:]}")
    report.expect("no answer for 8 seconds" in words, f"{name} generate: a wait without end was not noticed: {words[-300:]}")
    report.expect(moved > 1, f"{name} generate: no run moved to another device")
    print(f"{name} generate: {moved} of {len(faults)} runs moved, {calls} calls", flush=True)


def check_chat(report, program, target, model, moments):
    """A conversation of two turns, whose device fails in one of them."""
    name, environment = target.name, target.environment
    command = [program, "chat", "-m", str(model), "--greedy", "-n", "10", "--context", "200"]

    def chat(device, *words, **more):
        return subprocess.run([*command, "--device", device, *words], capture_output=True, text=True, timeout=LIMIT,
                              errors="backslashreplace", input="The sky?\nAnd the tree?\n", env=environment | more)

    wanted, there = chat("cpu"), chat(name, FAULT_COUNTS="1")
    report.expect(wanted.returncode == 0 and there.returncode == 0 and there.stdout == wanted.stdout and len(wanted.stdout) > 8,
                  f"{name} chat: {there.stdout!r}, not {wanted.stdout!r}: {there.stderr[-300:]}")
    calls, generator, moved = calls_of(there.stderr), random.Random(f"{name} chat {moments}{SEED}"), 0
    faults = [target.fault(generator, calls // 3, calls, i) for i in range(moments)]
    faults.append({target.variable: f"any:{calls * 2 // 3}:{HANGS}"})
    for fault, ended in POOL.map(lambda fault: (fault, chat(name, *limit(fault), **fault)), faults):
        told = ended.stderr.count("continuing on")
        moved += told
        early = ended.returncode != 0 and ">" not in ended.stderr and "/help" not in ended.stderr  # before the session
        report.expect(early or (ended.stdout == wanted.stdout and ended.returncode == 0 and told <= 1),
                      f"{name} chat, {fault}: {ended.returncode}, {ended.stdout!r}, not {wanted.stdout!r}\n{ended.stderr[-500:]}")
    report.expect("no answer for 8 seconds" in ended.stderr, f"{name} chat: a wait without end was not noticed: {ended.stderr[-300:]}")
    report.expect(moved > 0, f"{name} chat: no conversation moved to another device")
    ended = chat(name, "--strict", **{target.variable: f"any:{calls * 3 // 4}:{target.errors[0]}"})
    report.expect(ended.returncode != 0 and "continuing" not in ended.stderr, f"{name} chat: --strict did not end it")
    print(f"{name} chat: {moved} of {len(faults)} conversations moved, {calls} calls", flush=True)


def check_memory(report, program, model):
    """A message for which the cpu lacks memory is an error, and the session goes on: the cpu does not count as lost, and
    a shorter message may then be answered. The limit is set when the session has begun: with it from the start, the model
    would be refused."""
    nowhere = dict.fromkeys((f"TRUNNION_{name}_LIB" for name in ("CUDA", "ROCM", "VULKAN", "OPENCL")), "/nonexistent")
    command = [program, "chat", "-m", str(model), "--greedy", "-n", "3", "--threads", "1", "--device", "cpu"]

    def chat(spare):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=os.environ | nowhere)
        words = b""
        while b"/help" not in words:
            read = os.read(process.stderr.fileno(), 4096)
            if not read:
                break
            words += read
        size = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(process.pid, resource.RLIMIT_AS, (size + spare, size + spare))
        rest = process.communicate(b"hi\n" + b"word " * 40 + b"\nhi\n", timeout=LIMIT)[1]
        return (words + rest).decode(errors="backslashreplace")

    told = [chat(kib << 10) for kib in (*range(0, 512, 128), *range(512, 1280, 32))]
    failed, answered = sum("error" in words for words in told), sum("no device is left" not in words for words in told)
    report.expect(failed > 0 and answered == len(told), f"chat with little memory: {failed} failed, {answered} could go on")
    shorter = sum(words.count("error") == 1 for words in told)
    report.expect(shorter > 0, f"chat with little memory: {shorter} answered a short message after a long one had failed")


def check_serve(report, program, target, model, moments):
    """Four texts at once, whose device fails: each is that of the cpu, also when streamed."""
    name, environment = target.name, target.environment
    prompts = ["a red house", "The sky", "What about", "one two three"]

    def serve(device, *words, **more):
        process = subprocess.Popen([program, "serve", "-m", str(model), "--port", "0", "--json", "--context", "128",
                                    "--device", device, *words], env=environment | more, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        answers = []
        if line.strip():
            url = json.loads(line)["url"].rstrip("/") + "/v1/completions"

            def ask(prompt):
                fields = {"prompt": prompt, "max_tokens": 14, "temperature": 0, "seed": 3}
                request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
                try:
                    with urllib.request.urlopen(request, timeout=200) as reply:
                        return json.loads(reply.read())["choices"][0]["text"]
                except urllib.error.HTTPError as error:
                    return error.code

            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                answers = list(pool.map(ask, prompts)) + [ask(prompts[0])]
        process.send_signal(signal.SIGTERM)
        return answers, process.communicate(timeout=100)[1]

    wanted, _ = serve("cpu")
    there, words = serve(name, FAULT_COUNTS="1")
    report.expect(there == wanted and len(wanted) == 5 and all(isinstance(text, str) and text for text in wanted),
                  f"{name} serve: {there}, not {wanted}: {words[-300:]}")
    calls, generator, moved = calls_of(words), random.Random(f"{name} serve {moments}{SEED}"), 0
    faults = [target.fault(generator, calls // 3, calls, 3 * (i // 2) + i % 2) for i in range(moments)]
    faults.append({target.variable: f"any:{calls * 2 // 3}:{HANGS}"})
    for fault, (answers, words) in POOL.map(lambda fault: (fault, serve(name, *limit(fault), **fault)), faults):
        told = words.count("continuing on")
        moved += told
        report.expect(not answers or (answers == wanted and told <= 1), f"{name} serve, {fault}: {answers}, not {wanted}\n{words[-500:]}")
    report.expect("no answer for 8 seconds" in words, f"{name} serve: a wait without end was not noticed: {words[-300:]}")
    report.expect(moved > 0, f"{name} serve: no text moved to another device")
    answers, words = serve(name, "--strict", **{target.variable: f"any:{calls * 3 // 4}:{target.errors[0]}"})
    report.expect("continuing" not in words and answers != wanted, f"{name} serve: --strict moved")
    print(f"{name} serve: {moved} of {len(faults)} servers moved, {calls} calls", flush=True)


def values_of(path):
    """The tensors of a safetensors file: (header, all values)."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return data[8:start], struct.unpack(f"<{(len(data) - start) // 4}f", data[start:])


def near(one, other):
    """Two finetunings of check_finetune: the same steps and validations, and values within the bound."""
    if not one or not other or one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    return ([line.keys() for line in one[2]] == [line.keys() for line in other[2]] and
            all(abs(a - b) < 5e-6 for a, b in zip(one[1], other[1])) and
            all(math.isclose(a[k], b[k], rel_tol=5e-6) for a, b in zip(one[2], other[2]) for k in a if "loss" in k or k == "step"))


def check_finetune(report, program, target, folder, moments, lora):
    """An adapter of a small model, or all of its weights; the log has each step once."""
    name, environment, kind = target.name, target.environment, "adapter" if lora else "transformer"
    command = [program, "finetune", "-m", str(folder / "model"), "--data", str(folder / "texts.jsonl"), "--context", "48",
               "--batch", "2", "--validation", "0.2", "--steps", "5", "--seed", "2", "--json",
               *(["--lora", "4", "--lr", "0.02"] if lora else ["--full", "--lr", "0.002"])]

    def tune(device, *words, **more):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            out, log = pathlib.Path(place) / "out", pathlib.Path(place) / "steps.jsonl"
            ended = subprocess.run([*command, "--out", str(out), "--log", str(log), "--device", device, *words],
                                   capture_output=True, text=True, env=environment | more, timeout=LIMIT)
            got = json.loads(ended.stdout) if ended.returncode == 0 else {}
            lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            return ended, got, (*values_of(out / ("adapter_model.safetensors" if lora else "model.safetensors")), lines) if got else None

    wanted = tune("cpu")[2]
    ended, got, there = tune(name, FAULT_COUNTS="1")
    report.expect(near(there, wanted) and got["failed_devices"] == [] and got["device"].startswith(name) and
                  [line["step"] for line in wanted[2] if "loss" in line] == [1, 2, 3, 4, 5],
                  f"{name} {kind}: {there and there[2]}, not {wanted[2]}: {ended.stderr[-300:]}")
    calls, generator, moved, recomputed = calls_of(ended.stderr), random.Random(f"{name} {kind} {moments}{SEED}"), 0, 0
    faults = [target.fault(generator, 1, calls, i) for i in range(moments)]
    faults.append({target.variable: f"any:{calls // 3}:{HANGS}"})

    def run(fault):
        return fault, tune(name, *limit(fault), **fault)

    for fault, (ended, got, there) in POOL.map(run, faults):
        failures = got.get("failed_devices", [])
        told = ended.stderr.count("continuing from step")
        moved += bool(failures)
        recomputed = max(recomputed, got.get("recomputed_steps", 0))
        report.expect(near(there, wanted) and told == len(failures) and (not failures or got["device"] == "cpu") and
                      got["recomputed_steps"] <= max(1, got["steps_between_copies"]),
                      f"{name} {kind}, {fault}: {ended.returncode}, {there and there[2]}, not {wanted[2]}, told {told} times\n"
                      f"{ended.stderr[-500:]}")
    report.expect(bool(failures), f"{name} {kind}: a wait without end was not noticed")
    report.expect(moved > 1, f"{name} {kind}: no run moved to another device")
    ended, _, _ = tune(name, "--strict", **{target.variable: f"any:{max(1, calls // 4)}:{target.errors[0]}"})
    report.expect(ended.returncode != 0 and "continuing" not in ended.stderr, f"{name} {kind}: --strict did not end it")
    print(f"{name} finetune, {kind}: {moved} of {len(faults)} runs moved, at most {recomputed} steps again, {calls} calls", flush=True)


def check_resumed(report, program, target, folder):
    """A resumed finetuning that has written a checkpoint of its own and loses its device ends on the next one."""
    command = [program, "finetune", "-m", str(folder / "model"), "--data", str(folder / "texts.jsonl"), "--context", "48",
               "--batch", "2", "--steps", "6", "--seed", "2", "--json", "--lora", "4", "--lr", "0.02", "--save-every", "1",
               "--device", target.name]

    def tune(out, *words, **more):
        return subprocess.run([*command, "--out", str(folder / out), *words], capture_output=True, text=True,
                              env=target.environment | more, timeout=LIMIT)

    def fault(calls):
        return {target.variable: f"any:{calls}:{target.errors[0]}"}

    calls = calls_of(tune("undisturbed", FAULT_COUNTS="1").stderr)
    tune("cut", "--strict", **fault(calls // 2))
    shutil.copytree(folder / "cut", folder / "counted")
    calls = calls_of(tune("counted", "--resume", FAULT_COUNTS="1").stderr)
    ended = tune("cut", "--resume", **fault(calls * 3 // 4))
    failures = json.loads(ended.stdout)["failed_devices"] if ended.returncode == 0 else []
    report.expect(len(failures) == 1, f"{target.name}, resumed: {failures} {ended.stderr[-500:]}")
    if not failures:
        return
    one, other = (values_of(folder / out / "adapter_model.safetensors")[1] for out in ("undisturbed", "cut"))
    report.expect(len(one) == len(other) and all(abs(a - b) < 5e-6 for a, b in zip(one, other)),
                  f"{target.name}: the adapter of a resumed run differs")


def check_target(report, program, target, folder, moments, all_runs):
    table, model, failed = folder / "digits.csv", folder / "model", report.failed
    for task, steps, options in TRAININGS[:3 if all_runs else 2 if moments > 3 else 1]:
        more = options + (["--data", str(table)] if task == "digits" else [])
        check(report, program, target, task, steps, more, 2 if task == "chars" else moments)
    check_reads(report, program, target)
    check_texts(report, program, target, model, moments)
    for lora in (True, False) if moments > 3 else (False,):
        check_finetune(report, program, target, folder, moments, lora)
    check_chat(report, program, target, model, moments if moments < 20 else moments // 5)
    check_serve(report, program, target, model, moments if moments < 20 else moments // 5)
    if report.failed == failed:
        print(f"ran on: {target.name} (no hardware): trainings and texts that lose their device", flush=True)


def main():
    build, moments = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    report, program, all_runs = Report(), str(build / "trunnion"), moments >= 10
    rows = [[(r * r + 7 * r * c) % 17 for c in range(64)] + [r % 10] for r in range(320)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "digits.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        make_model(folder / "model")
        make_data(folder / "texts.jsonl", 12)
        check_memory(report, program, folder / "model")
        check_target(report, program, double("cuda", build, folder), folder, moments, all_runs)
        check_graphs(report, program, double("cuda", build, folder), folder / "digits.csv")
        check_resumed(report, program, double("cuda", build, folder), folder)
        if all_runs:
            check_target(report, program, double("rocm", build, folder), folder, 4, False)
            target = opencl(folder)
            if target:
                check_target(report, program, target, folder, max(4, moments // 10), False)
    print(f"{report.passed} passed, {report.failed} failed, 0 skipped")
    return report.failed > 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
