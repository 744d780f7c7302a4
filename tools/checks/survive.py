"""survive.py BUILD [MOMENTS] — trainings and texts whose device fails at a random moment end as undisturbed ones.

`trunnion train` runs on the doubles of CUDA, ROCm and Metal (tests/double), one call of the driver fails, with an error
that means lost, out of memory or a failed launch, and loss, metric and steps must be those of the cpu, with one line
that says so; texts of a small random model (tools/checks/finetune.py makes it) those of the cpu; an adapter that
`trunnion finetune` trains has the cpu's values within 5e-6, because devices compose attention's gradient. With --strict
the run must fail instead. Conversations (`chat`) and texts that `serve` computes together go on, too. MOMENTS: how many
failures for each (default 4).
"""

import concurrent.futures
import json
import math
import os
import pathlib
import random
import re
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

DOUBLES = {
    "cuda": ("cuda.so", ["TRUNNION_CUDA_LIB", "TRUNNION_NVRTC_LIB"], [719, 700, 2]),
    "rocm": ("rocm.so", ["TRUNNION_ROCM_LIB", "TRUNNION_HIPRTC_LIB"], [719, 700, 2]),
}
LIMIT = 900  # seconds of a run, on a machine with much other work
TRAININGS = [("digits", 12, []), ("digits", 3, ["--model", "cnn"]), ("chars", 2, [])]


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


def check(report, program, name, environment, task, steps, options, moments):
    what = " ".join([name, task, *options[:2 * ("--model" in options)]])
    _, undisturbed, _ = train(program, "cpu", task, steps, options, environment)
    code, there, words = train(program, name, task, steps, options, environment | {"DOUBLE_COUNTS": "1"})
    report.expect(code == 0 and there["failed_devices"] == [] and there["device"].startswith(name), f"{what}: {words[-300:]}")
    wanted = [undisturbed.get(k) for k in ("final_loss", "metric", "steps")]
    launches = re.search(r"(\d+) launches", words)
    calls = int(launches[1]) * 4 // 3 if launches else 1  # of the driver that can fail
    generator, moved = random.Random(f"{what} {moments}"), 0
    for i in range(moments):
        errors = DOUBLES[name][2]
        fault = f"any:{generator.randint(1, calls)}:{errors[i % len(errors)]}"
        code, got, words = train(program, name, task, steps, options, environment | {"DOUBLE_FAULT": fault})
        same = code == 0 and [got.get(k) for k in ("final_loss", "metric", "steps")] == wanted
        report.expect(same, f"{what}, {fault}: {code}, {got}, not {wanted}\n{words[-500:]}")
        failures = got.get("failed_devices", [])
        moved += bool(failures)
        told = sum("continuing from step" in line for line in words.splitlines())
        report.expect(told == len(failures) and (not failures or got["device"] == "cpu"), f"{what}, {fault}: told {told} times")
    report.expect(moved > 0, f"{what}: no run moved to another device")
    fault = {"DOUBLE_FAULT": f"any:{max(1, calls // 2)}:719"}
    code, _, words = train(program, name, task, steps, [*options, "--strict"], environment | fault)
    report.expect(code != 0 and "continuing" not in words, f"{what}: --strict did not end the run")
    print(f"{what}: {moved} of {moments} runs moved, about {calls} calls", flush=True)


def check_reads(report, program, name, environment):
    """A loss that cannot be read back is a failure of the device, not a number that is NaN."""
    call = {"cuda": "cuMemcpyDtoHAsync_v2", "rocm": "hipMemcpyDtoHAsync"}[name]
    fault = {"DOUBLE_FAULT": f"{call}:128:2"}
    code, got, words = train(program, name, "cartpole", 2048, ["--seed", "1"], environment | fault)
    report.expect(code == 0 and len(got["failed_devices"]) == 1, f"{name} cartpole, {fault}: {code}, {got}\n{words[-500:]}")


def check_texts(report, program, name, environment, model, moments):
    def generate(device, **more):
        command = [program, "generate", "-m", str(model), "-p", "a red house", "-n", "12", "--seed", "5", "--json",
                   "--device", device]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment | more, timeout=LIMIT)
        return ended.returncode, json.loads(ended.stdout) if ended.returncode == 0 else {}, ended.stderr

    wanted = generate("cpu")[1].get("ids")
    code, there, words = generate(name, DOUBLE_COUNTS="1")
    report.expect(code == 0 and there["ids"] == wanted and len(wanted) > 3 and there["device"].startswith(name),
                  f"{name} generate: {words[-300:]}")
    launches = re.search(r"(\d+) launches", words)
    calls = int(launches[1]) * 4 // 3 if launches else 1
    generator, moved = random.Random(f"{name} {moments}"), 0
    for i in range(moments):
        fault = f"any:{generator.randint(1, calls)}:{DOUBLES[name][2][i % 3]}"
        code, got, words = generate(name, DOUBLE_FAULT=fault)
        told = "continuing from step" in words
        moved += told
        report.expect(code == 0 and got.get("ids") == wanted and (not told or got["device"] == "cpu"),
                      f"{name} generate, {fault}: {code}, {got.get('ids')}, not {wanted}\n{words[-500:]}")
    report.expect(moved > 0, f"{name} generate: no run moved to another device")
    print(f"{name} generate: {moved} of {moments} runs moved, about {calls} calls", flush=True)


def check_chat(report, program, name, environment, model, moments):
    """A conversation of two turns, whose device fails in one of them."""
    command = [program, "chat", "-m", str(model), "--greedy", "-n", "10", "--context", "200"]

    def chat(device, *words, **more):
        return subprocess.run([*command, "--device", device, *words], capture_output=True, text=True, timeout=LIMIT,
                              errors="backslashreplace", input="The sky?\nAnd the tree?\n", env=environment | more)

    wanted, there = chat("cpu"), chat(name, DOUBLE_COUNTS="1")
    report.expect(wanted.returncode == 0 and there.returncode == 0 and there.stdout == wanted.stdout and len(wanted.stdout) > 8,
                  f"{name} chat: {there.stdout!r}, not {wanted.stdout!r}: {there.stderr[-300:]}")
    launches = re.search(r"(\d+) launches", there.stderr)
    calls = int(launches[1]) * 4 // 3 if launches else 1
    generator, moved = random.Random(f"{name} chat {moments}"), 0
    for i in range(moments):
        fault = f"any:{generator.randint(calls // 3, calls)}:{DOUBLES[name][2][i % 3]}"
        ended = chat(name, DOUBLE_FAULT=fault)
        told = ended.stderr.count("continuing on")
        moved += told
        early = ended.returncode != 0 and ">" not in ended.stderr and "/help" not in ended.stderr  # before the session
        report.expect(early or (ended.stdout == wanted.stdout and ended.returncode == 0 and told <= 1),
                      f"{name} chat, {fault}: {ended.returncode}, {ended.stdout!r}, not {wanted.stdout!r}\n{ended.stderr[-500:]}")
    report.expect(moved > 0, f"{name} chat: no conversation moved to another device")
    ended = chat(name, "--strict", DOUBLE_FAULT=f"any:{calls * 3 // 4}:719")
    report.expect(ended.returncode != 0 and "continuing" not in ended.stderr, f"{name} chat: --strict did not end it")
    print(f"{name} chat: {moved} of {moments} conversations moved, about {calls} calls", flush=True)


def check_memory(report, program, model):
    """A message for which the cpu lacks memory leaves the conversation as it was: shorter ones are answered."""
    nowhere = dict.fromkeys((f"TRUNNION_{name}_LIB" for name in ("CUDA", "ROCM", "VULKAN", "OPENCL")), "/nonexistent")
    command = [program, "chat", "-m", str(model), "--greedy", "-n", "3", "--threads", "1", "--device", "cpu"]

    def chat(kib):
        return subprocess.run(["sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh", *command], capture_output=True, text=True,
                              timeout=LIMIT, errors="backslashreplace", env=os.environ | nowhere,
                              input="hi\n/reset\n" + "word " * 40 + "\n/reset\nhi\n")

    little, enough, failed, answered = 0, 1 << 20, 0, 0
    while enough - little > 64:
        middle = (little + enough) // 2
        little, enough = (little, middle) if chat(middle).returncode == 0 else (middle, enough)
    for kib in range(enough - 1024, enough, 64):
        words = chat(kib).stderr
        failed += "/help" in words and "error" in words
        answered += "no device is left" not in words
    report.expect(failed > 0 and answered == 16, f"chat with little memory: {failed} failed, {answered} could go on")


def check_serve(report, program, name, environment, model, moments):
    """Four texts at once, whose device fails: each is that of the cpu, also when streamed."""
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
    there, words = serve(name, DOUBLE_COUNTS="1")
    report.expect(there == wanted and len(wanted) == 5 and all(isinstance(text, str) and text for text in wanted),
                  f"{name} serve: {there}, not {wanted}: {words[-300:]}")
    launches = re.search(r"(\d+) launches", words)
    calls = int(launches[1]) * 4 // 3 if launches else 1
    generator, moved = random.Random(f"{name} serve {moments}"), 0
    for i in range(moments):
        fault = f"any:{generator.randint(calls // 3, calls)}:{DOUBLES[name][2][i % 2]}"
        answers, words = serve(name, DOUBLE_FAULT=fault)
        told = words.count("continuing on")
        moved += told
        report.expect(not answers or (answers == wanted and told <= 1), f"{name} serve, {fault}: {answers}, not {wanted}\n{words[-500:]}")
    report.expect(moved > 0, f"{name} serve: no text moved to another device")
    answers, words = serve(name, "--strict", DOUBLE_FAULT=f"any:{calls * 3 // 4}:719")
    report.expect("continuing" not in words and answers != wanted, f"{name} serve: --strict moved")
    print(f"{name} serve: {moved} of {moments} servers moved, about {calls} calls", flush=True)


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


def check_finetune(report, program, name, environment, folder, moments):
    """An adapter of a small model; its log has each step once."""
    out, log = folder / "adapter", folder / "steps.jsonl"
    command = [program, "finetune", "-m", str(folder / "model"), "--data", str(folder / "texts.jsonl"), "--out", str(out),
               "--lora", "4", "--lr", "0.02", "--context", "48", "--batch", "2", "--validation", "0.2", "--steps", "5",
               "--seed", "2", "--log", str(log), "--json"]

    def tune(device, *words, **more):
        shutil.rmtree(out, ignore_errors=True)
        ended = subprocess.run([*command, "--device", device, *words], capture_output=True, text=True,
                               env=environment | more, timeout=LIMIT)
        got = json.loads(ended.stdout) if ended.returncode == 0 else {}
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return ended, got, (*values_of(out / "adapter_model.safetensors"), lines) if got else None

    wanted = tune("cpu")[2]
    ended, got, there = tune(name, DOUBLE_COUNTS="1")
    report.expect(near(there, wanted) and got["failed_devices"] == [] and got["device"].startswith(name) and
                  [line["step"] for line in wanted[2] if "loss" in line] == [1, 2, 3, 4, 5],
                  f"{name} finetune: {there and there[2]}, not {wanted[2]}: {ended.stderr[-300:]}")
    launches = re.search(r"(\d+) launches", ended.stderr)
    calls = int(launches[1]) * 4 // 3 if launches else 1
    generator, moved = random.Random(f"{name} finetune {moments}"), 0
    for i in range(moments):
        fault = f"any:{generator.randint(1, calls)}:{DOUBLES[name][2][i % 3]}"
        ended, got, there = tune(name, DOUBLE_FAULT=fault)
        failures = got.get("failed_devices", [])
        told = ended.stderr.count("continuing from step")
        moved += bool(failures)
        report.expect(near(there, wanted) and told == len(failures) and (not failures or got["device"] == "cpu"),
                      f"{name} finetune, {fault}: {ended.returncode}, {there and there[2]}, not {wanted[2]}, told {told} times\n"
                      f"{ended.stderr[-500:]}")
    report.expect(moved > 0, f"{name} finetune: no run moved to another device")
    ended, _, _ = tune(name, "--strict", DOUBLE_FAULT=f"any:{max(1, calls // 2)}:719")
    report.expect(ended.returncode != 0 and "continuing" not in ended.stderr, f"{name} finetune: --strict did not end it")
    print(f"{name} finetune: {moved} of {moments} runs moved, about {calls} calls", flush=True)


def main():
    build, moments = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    report = Report()
    rows = [[(r * r + 7 * r * c) % 17 for c in range(64)] + [r % 10] for r in range(320)]
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "digits.csv"
        table.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        model = pathlib.Path(folder) / "model"
        make_model(model)
        make_data(pathlib.Path(folder) / "texts.jsonl", 12)
        check_memory(report, str(build / "trunnion"), model)
        for name in list(DOUBLES)[:1 if moments < 10 else 2]:
            file, variables, _ = DOUBLES[name]
            environment = os.environ | dict.fromkeys(variables, str(build / "doubles" / file)) | {
                "TRUNNION_CACHE": f"{folder}/{name}", "DOUBLE_ABORT": "1", "DOUBLE_LEVEL": "0"}
            for task, steps, options in TRAININGS[:2 if moments < 10 else 3]:
                more = options + (["--data", str(table)] if task == "digits" else [])
                check(report, str(build / "trunnion"), name, environment, task, steps, more, moments)
            check_reads(report, str(build / "trunnion"), name, environment)
            check_texts(report, str(build / "trunnion"), name, environment, model, moments)
            check_chat(report, str(build / "trunnion"), name, environment, model, moments)
            check_serve(report, str(build / "trunnion"), name, environment, model, moments)
            check_finetune(report, str(build / "trunnion"), name, environment, pathlib.Path(folder), moments)
            if not report.failed:
                print(f"ran on: {name} double (tests/double: no hardware): trainings and texts that lose their device")
    print(f"{report.passed} passed, {report.failed} failed, 0 skipped")
    return report.failed > 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
