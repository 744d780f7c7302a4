"""onnx_nodes.py BUILD [--device NAME] [--every N] [--record | --page] — the onnx package's node cases, by `trunnion onnx-test`.

tests/onnx_not_passing.txt lists the cases that do not pass, on the processor and on OpenCL without fallback, each with its
reason. A case that is not listed must pass: so the number that passes cannot fall. A listed one that passes is told.

--every N   only every N-th case (the checks: on OpenCL each case compiles kernels)
--record    writes the device's part of the list anew
--page      writes docs/measured/onnx-DATE.md out of runs on the processor and on OpenCL
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
LIST = ROOT / "tests" / "onnx_not_passing.txt"
HEADER = """# Node cases of the onnx package that do not pass: device, case, result, reason. Written by
# tools/checks/onnx_nodes.py BUILD --device DEVICE --record; the suite onnx compares: every other case must pass.
"""
STRICT = {"opencl": ["--strict"]}


def find_cases():
    """The folder of the cases, or None after a word on why there is none."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        print("skipped: no ONNX cases: the Python package onnx is not there (tools/setup.sh fetches it)")
        return None
    from formats import onnx_cases

    folder = onnx_cases.default_folder()
    onnx_cases.write_all(folder)
    return folder


def run(build, device, folders):
    """Runs the cases. Returns what the command says as an object."""
    command = [str(pathlib.Path(build) / "trunnion"), "onnx-test", "--json", "--device", device,
               *STRICT.get(device, []), *map(str, folders)]
    environment = os.environ | {"POCL_WORK_GROUP_SPECIALIZATION": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if not result.stdout:
        sys.exit(f"onnx: trunnion onnx-test ends with {result.returncode}:\n{result.stderr}\n0 passed, 1 failed, 0 skipped")
    return json.loads(result.stdout)


def sees_a_difference(build, folder):
    """Whether a case with another number in what is expected fails: else the rest says nothing."""
    with tempfile.TemporaryDirectory() as room:
        changed = pathlib.Path(room) / "test_add"
        shutil.copytree(folder / "test_add", changed)
        path = changed / "test_data_set_0" / "output_0.pb"
        data = bytearray(path.read_bytes())
        data[-1] ^= 0x40  # the exponent of the last number
        path.write_bytes(data)
        return run(build, "cpu", [changed])["failed"] == 1


def read_list():
    """{(device, case): (result, reason)}"""
    listed = {}
    for line in LIST.read_text().splitlines() if LIST.is_file() else []:
        if line and not line.startswith("#"):
            device, case, result, reason = line.split(" ", 3)
            listed[device, case] = result, reason
    return listed


def plain(reason):
    """A reason on one line, without the model's path and the line of the command that recorded the operation."""
    return " ".join(re.sub(r"'[^']*model\.onnx': |^\S+\.c:\d+: ", "", reason).split()) or "-"


def record(device, outcome):
    listed = {key: value for key, value in read_list().items() if key[0] != device}
    for case in outcome["cases"]:
        if case["result"] != "passed":
            listed[device, case["name"]] = case["result"], plain(case["why"])
    lines = [f"{device} {case} {result} {reason}\n" for (device, case), (result, reason) in sorted(listed.items())]
    LIST.write_text(HEADER + "".join(lines))


def compare(device, outcome):
    """Prints what passes and what does not, against the list, and the counts."""
    listed = read_list()
    passed = failed = skipped = 0
    for case in outcome["cases"]:
        known = listed.get((device, case["name"]))
        if case["result"] == "passed":
            passed += 1
            if known:
                print(f"{case['name']} passes now: take it off {LIST.name} (--record)")
        elif known and not (known[0] == "skipped" and case["result"] == "failed"):
            skipped += 1
        else:
            failed += 1
            print(f"{case['result']}: {case['name']}: {case['why']}")
    reasons = collections.Counter(kind_of(listed[device, c["name"]][1]) for c in outcome["cases"]
                                  if c["result"] != "passed" and (device, c["name"]) in listed)
    for reason, count in reasons.most_common():
        print(f"not passing, as listed: {count} × {reason}")
    print(f"ran on: {outcome['device']}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed == 0


# ---- the page --------------------------------------------------------------------------------------------------------

KINDS = [
    (r"random|bernoulli|dropout|multinomial", "random result: implementations draw different numbers"),
    (r"dft_inverse", "the expected value is rounding noise, 2e-7, where the result is 0; the absolute tolerance is 1e-7"),
    (r"_fp16", "differs by one ulp of f16: an intermediate is rounded elsewhere"),
    (r"image_decoder", "ImageDecoder: JPEG 2000, TIFF and WebP are not supported"),
]


def kind_of(reason):
    """A reason without names and numbers of the case."""
    reason = re.sub(r"'[^']*'|\"[^\"]*\"", "…", reason)
    reason = re.sub(r"\d+ of \d+ numbers differ.*", "numbers differ", reason)
    return re.sub(r"\(\d+ nodes?\)", "", reason).strip()[:160]


def explained(case):
    for pattern, words in KINDS:
        if re.search(pattern, case["name"]) and re.search("differ|ImageDecoder", case["why"]):
            return words
    return kind_of(plain(case["why"]))


def write_page(runs):
    import onnx

    date = datetime.date.today().isoformat()
    page = ROOT / "docs" / "measured" / f"onnx-{date}.md"
    lines = [f"# Node tests of the onnx package, {date}", "",
             f"Written by `tools/checks/onnx_nodes.py BUILD --page`: the {len(runs[0]['cases'])} node tests of onnx {onnx.__version__},",
             "with tolerances of 1e-3 (relative) and 1e-7 (absolute); dtypes and shapes must be equal. OpenCL runs with `--strict`:",
             "the host computes no operation, except strings, sequences and the classical models of ai.onnx.ml, which run on the",
             "host for every device.", "", "| device | passed | failed | skipped |", "|---|---|---|---|"]
    for outcome in runs:
        lines.append(f"| {outcome['device']} | {outcome['passed']} | {outcome['failed']} | {outcome['skipped']} |")
    for outcome in runs:
        groups = collections.defaultdict(list)
        for case in outcome["cases"]:
            if case["result"] != "passed":
                groups[explained(case)].append(case)
        lines += ["", f"## Cases that do not pass on {outcome['device']}", "", "| reason | cases |", "|---|---|"]
        for words, cases in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
            names = ", ".join(c["name"].removeprefix("test_") for c in cases)
            lines.append(f"| {words.replace('|', '/')} | {len(cases)}: {names} |")
    page.write_text("\n".join(lines) + "\n")
    print(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    folder = find_cases()
    if folder is None:
        print("0 passed, 0 failed, 1 skipped")
        return
    cases = sorted(f for f in folder.iterdir() if (f / "model.onnx").is_file())[::options.every]
    if options.page:
        write_page([run(options.build, device, cases) for device in ("cpu", "opencl")])
        return
    outcome = run(options.build, options.device, cases)
    if options.record:
        record(options.device, outcome)
        print(f"{outcome['passed']} passed, {outcome['failed']} failed, {outcome['skipped']} skipped")
        return
    if not sees_a_difference(options.build, folder):
        sys.exit("onnx: a case with a wrong expectation does not fail\n0 passed, 1 failed, 0 skipped")
    if not compare(options.device, outcome):
        sys.exit(1)


if __name__ == "__main__":
    main()
