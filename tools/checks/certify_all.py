#!/usr/bin/env python3
"""certify_all.py BUILD [options] DEVICE… — every case of every operation on a device, forward and backward.

`trunnion certify --strict` runs once an operation, so that one which ends the process is that operation's failure.
What was found is kept in BUILD/check/certify/DEVICE: a run that was stopped goes on where it was, and does again what
failed. It is believed of the same command only, or with --keep of any.

A DEVICE is one of the table below; doubles are those of tests/double. Cases may be skipped for types that the device
lacks, and where the processor alone has a kernel; any other that is left out is a failure.

  --only NAMES    these operations, between commas
  --part I/N      of the operations each N-th, from the I-th on (1/2 and 2/2 may run side by side)
  --limit N       seconds that one operation may take (1800)
  --budget N      seconds of each device after which no further operation is begun: the rest counts as skipped, and is told
  --seed N        shuffles the operations: a budget then leaves out others each time
  --keep          what an earlier build did is believed too
  --page          writes docs/measured/certify-DEVICE-DATE.md of what is kept
"""

import argparse
import collections
import datetime
import glob
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WGPU = ".deps/venv/lib/python3*/site-packages/wgpu/resources/libwgpu_native*"
SWIFTSHADER = "/usr/lib/chromium/vk_swiftshader_icd.json"

# PoCL compiles each kernel once, not for a launch's size, and for half as long.
QUICK_POCL = {"POCL_WORK_GROUP_SPECIALIZATION": "0", "POCL_EXTRA_BUILD_FLAGS": "-cl-opt-disable"}

# name: what it is, the command's name for it, its environment (the value {build} is the build folder), the word for it
DEVICES = {
    "cpu": ("the processor", "cpu", {}, "real"),
    "opencl": ("OpenCL", "opencl", QUICK_POCL, "stand-in"),
    "oclgrind": ("OpenCL, interpreted and watched for races", "opencl",
                 {"TRUNNION_OPENCL_LIB": "/usr/lib/oclgrind/liboclgrind-rt.so", "OCLGRIND_DATA_RACES": "1",
                  "OCLGRIND_BUILD_OPTIONS": "-O0"}, "stand-in"),
    "vulkan": ("Vulkan", "vulkan", {}, "stand-in"),
    "swiftshader": ("Vulkan, the minimal device", "vulkan", {"VK_ICD_FILENAMES": SWIFTSHADER}, "stand-in"),
    "webgpu": ("WebGPU", "webgpu", {"TRUNNION_WEBGPU_LIB": WGPU}, "stand-in"),
    "cuda": ("CUDA", "cuda", {"TRUNNION_CUDA_LIB": "{build}/doubles/cuda.so",
                              "TRUNNION_NVRTC_LIB": "{build}/doubles/cuda.so"}, "double"),
    "rocm": ("ROCm", "rocm", {"TRUNNION_ROCM_LIB": "{build}/doubles/rocm.so",
                              "TRUNNION_HIPRTC_LIB": "{build}/doubles/rocm.so"}, "double"),
    "metal": ("Metal, unified memory", "metal", {"TRUNNION_METAL_LIB": "{build}/doubles/metal.so",
                                                 "TRUNNION_OBJC_LIB": "{build}/doubles/metal.so"}, "double"),
    "metal-card": ("Metal, a card's memory", "metal", {"TRUNNION_METAL_LIB": "{build}/doubles/metal.so",
                                                       "TRUNNION_OBJC_LIB": "{build}/doubles/metal.so",
                                                       "DOUBLE_DISCRETE": "1"}, "double"),
}
NOTES = {
    "opencl": "PoCL compiled without optimising (`-cl-opt-disable`), which takes it half the time.",
    "oclgrind": "It interprets what clang makes at -O0, and no operation left a word of a data race or a stray access.",
}
NO_F64 = {"metal", "metal-card", "webgpu", "swiftshader"}
# Only the processor has kernels for operations that begin so, with this text in the reason: q8_0 caches are of u8.
HOST_ONLY = {"linalg_": "", "cache_append": " u8: "}
STOPPED = "stopped after"
SEED = 5
COUNTS = ["forward_passed", "forward_failed", "backward_passed", "backward_failed", "skipped"]


def may_lack(device, operation, why):
    """Whether a case may be left out although nothing may be."""
    if device == "oclgrind" and why.startswith(STOPPED):
        return True  # it interprets
    host_only = any(operation.startswith(name) and text in why for name, text in HOST_ONLY.items())
    return (device in NO_F64 and "has no f64" in why) or (host_only and "has no kernel" in why)


def environment(device, build):
    """The environment of a device's processes, or None and what is missing."""
    own = {}
    for name, value in DEVICES[device][2].items():
        if name in os.environ and DEVICES[device][3] != "double":
            continue
        found = sorted(glob.glob(str(ROOT / value.format(build=build)))) if "/" in value else [value]
        if not found:
            return None, f"{value} is not here"
        own[name] = found[-1]
    if DEVICES[device][3] == "double":
        own |= {"DOUBLE_ABORT": "1", "DOUBLE_LEVEL": "0"}
    return os.environ | {"TRUNNION_LOG": "0"} | own, None


class Device:
    def __init__(self, build, name, options):
        self.build, self.name, self.options = build, name, options
        self.folder = build / "check" / "certify" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment, self.missing = environment(name, build)
        if self.environment:
            self.environment["TRUNNION_CACHE"] = str(self.folder / "cache")
            self.environment.setdefault("POCL_CACHE_DIR", str(self.folder / "pocl"))
            os.makedirs(self.folder / "pocl", exist_ok=True)
        self.stamp = hashlib.sha256((build / "trunnion").read_bytes()).hexdigest()[:16]
        self.commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True,
                                     text=True).stdout.strip()

    def call(self, *arguments):
        """(what the command's JSON holds or None, how it ended, in words)"""
        command = [str(self.build / "trunnion"), *arguments, "--json"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, env=self.environment,
                                   timeout=self.options.limit)
        except subprocess.TimeoutExpired:
            return None, f"{STOPPED} {self.options.limit} s"
        try:
            return json.loads(ended.stdout[ended.stdout.find("{"):]), ended.stderr
        except json.JSONDecodeError:
            return None, f"ended with {ended.returncode}: {ended.stderr[-400:].strip()}"

    def certify(self, *arguments, device=None):
        return self.call("certify", "--device", device or DEVICES[self.name][1], "--strict", "--seed", str(SEED),
                         *arguments)

    def kept(self, operation):
        """What is known of an operation; None: nothing that may be believed."""
        path = self.folder / f"{operation}.json"
        if not path.exists():
            return None
        found = json.loads(path.read_text())
        return found if self.options.keep or found["stamp"] == self.stamp else None

    def keep(self, operation, found):
        path = self.folder / f"{operation}.json"
        part = path.with_suffix(".new")
        part.write_text(json.dumps(found | {"stamp": self.stamp, "commit": self.commit}))
        part.replace(path)

    def run(self, operation):
        begun = time.monotonic()
        log = self.folder / f"{operation}.log"  # of oclgrind, which finds fault and lets the program go on
        self.environment["OCLGRIND_LOG"] = str(log)
        answer, words = self.certify("--only", operation)
        found = (answer or {}).get("ops", {}).get(operation)
        if answer and operation == "exact" and not found:
            found = dict.fromkeys(COUNTS, 0) | {"why": "it promises no equal bits"}
        if not found:
            lacks = may_lack(self.name, operation, words)
            found = dict.fromkeys(COUNTS, 0) | {"skipped" if lacks else "forward_failed": 1, "why": words or "no answer"}
        if log.exists() and log.stat().st_size:
            found |= {"forward_failed": found["forward_failed"] + 1, "why": log.read_text()[:400]}
        found["seconds"] = round(time.monotonic() - begun, 1)
        self.keep(operation, found)
        return found

    def fault(self, operation, found):
        """What is wrong with an operation, or None."""
        if found["forward_failed"] + found["backward_failed"]:
            return found["why"]
        if found["skipped"] and not may_lack(self.name, operation, found["why"]):
            return f"{found['skipped']} cases left out: {found['why']}"
        return None

    def names(self):
        answer, words = self.certify("--sample", "1000000", device="cpu")
        names = sorted(answer["ops"]) if answer else []
        if self.options.only:
            names = [n for n in self.options.only.split(",") if n in names]
        if self.options.seed:
            random.Random(self.options.seed).shuffle(names)
        first, of = map(int, self.options.part.split("/"))
        return names[first - 1::of]

    def who(self):
        """The device's own name, and that of its driver."""
        listing, _ = self.call("devices")
        for backend in (listing or {"backends": []})["backends"]:
            if backend["name"] == DEVICES[self.name][1] and backend["devices"]:
                d = backend["devices"][0]
                return f"{d['name']} ({d.get('driver', '')})".replace(" ()", "")
        return None


def certify_device(device):
    """Runs what is not known yet. Returns passed, failed, left out; a case that may be left out is none of these."""
    passed = failed = left = lacked = 0
    begun = time.monotonic()
    for operation in device.names():
        found = device.kept(operation)
        if not found or device.fault(operation, found):
            if device.options.budget and time.monotonic() - begun > device.options.budget:
                left += 1
                continue
            found = device.run(operation)
        fault = device.fault(operation, found)
        passed += found["forward_passed"] + found["backward_passed"]
        failed += max(found["forward_failed"] + found["backward_failed"], fault is not None)
        lacked += found["skipped"]
        if fault:
            print(f"failed: {device.name}: {operation}: {fault}", flush=True)
    if left:
        print(f"skipped: {device.name}: {left} operations, for which there was no time; the next run does them")
    print(f"{device.name}: {passed} cases passed, {failed} failed, {lacked} skipped ({time.monotonic() - begun:.0f} s)",
          flush=True)
    return passed, failed, left


# ---- the record ------------------------------------------------------------------------------------------------------

def reason(found):
    """Why a case was skipped, without the case."""
    return re.sub(r"^case '.*' with [^ ]*: ", "", found["why"])


def processor():
    words = pathlib.Path("/proc/cpuinfo").read_text()
    return (re.search(r"model name\s*: (.*)", words) or [0, "an unknown processor"])[1]


def page(device, who):
    rows = {name: found for name in device.names() if (found := device.kept(name))}
    what, _, _, word = DEVICES[device.name]
    sums = {key: sum(found[key] for found in rows.values()) for key in COUNTS}
    commits = list(dict.fromkeys(found["commit"] for found in sorted(rows.values(), key=lambda f: f["commit"])))
    lines = [f"# {what}: every operation compared with its definition, {datetime.date.today()}", "",
             f"Written by `tools/checks/certify_all.py BUILD --page {device.name}`: `trunnion certify --strict`, all cases, on "
             f"{who} — a {word} — on {processor()}, {os.cpu_count()} threads, while other work ran on the machine; builds of "
             f"{', '.join(commits)}. Each case is computed on the device and compared with the operation's definition in "
             "double precision.", "",
             "| operations | forward passed | failed | backward passed | failed | skipped | seconds |",
             "|---|---|---|---|---|---|---|",
             f"| {len(rows)} | " + " | ".join(str(sums[key]) for key in COUNTS) +
             f" | {sum(found['seconds'] for found in rows.values()):.0f} |", ""]
    missing = [name for name in device.names() if name not in rows]
    if missing:
        lines += ["Not run: " + ", ".join(missing) + ".", ""]
    faults = {name: fault for name, found in rows.items() if (fault := device.fault(name, found))}
    if faults:
        lines += ["## Failures", ""] + [f"- `{name}`: {fault}" for name, fault in faults.items()] + [""]
    skips = collections.defaultdict(list)
    for name, found in rows.items():
        if found["skipped"] and "has no f64" in found["why"]:
            skips["the device has no f64"].append((found["skipped"], ""))
        elif found["skipped"]:
            kind = "has no kernel" in found["why"] and "left to the CPU, which has the kernels"
            skips[kind or reason(found)].append((found["skipped"], name))
    for why, cases in skips.items():
        names = ", ".join(name for _, name in cases if name)
        lines += [f"Skipped: {why}: {sum(n for n, _ in cases)} cases of {len(cases)} operations" +
                  (f" ({names})." if names else "."), ""]
    slow = sorted(rows, key=lambda name: -rows[name]["seconds"])[:12]
    if device.name in NOTES:
        lines += [NOTES[device.name], ""]
    lines += ["Longest: " + ", ".join(f"{name} {rows[name]['seconds']:.0f} s" for name in slow) + "."]
    path = ROOT / "docs" / "measured" / f"certify-{device.name}-{datetime.date.today()}.md"
    wrapped = [line if line.startswith(("|", "#", "-")) else textwrap.fill(line, 120, break_on_hyphens=False)
               for line in lines]
    path.write_text("\n".join(wrapped) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


def parse(arguments=None):
    parser = argparse.ArgumentParser(description="every case of every operation on a device")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("devices", nargs="+", choices=DEVICES, metavar="DEVICE")
    parser.add_argument("--only")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--limit", type=int, default=1800)
    parser.add_argument("--budget", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--page", action="store_true")
    return parser.parse_args(arguments)


def main():
    options = parse()
    sums = [0, 0, 0]
    for name in options.devices:
        device = Device((ROOT / options.build).resolve(), name, options)
        who = device.environment and device.who()
        if not who:
            print(f"skipped: {name}: {device.missing or 'there is no such device'}")
            sums[2] += 1
            continue
        if options.page:
            page(device, who)
            continue
        counts = certify_device(device)
        sums = [a + b for a, b in zip(sums, counts)]
        if not counts[1]:
            print(f"ran on: {DEVICES[name][1]} ({who}: {counts[0]} cases of operations, strictly)")
    print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return sums[1] != 0


if __name__ == "__main__":
    sys.exit(main())
