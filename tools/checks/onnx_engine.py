"""onnx_engine.py BUILD — ONNX Runtime as an engine, beside the same library used from Python.

Node cases of the onnx package: what ONNX Runtime computes by itself, on one thread, is what `trunnion onnx-test --device
engine:onnxruntime` has to compute, bit for bit; cases that it refuses, or answers differently from run to run, are left out.
Then the same cases with `--recorded`: our reader records the operators and the engine computes the recording, within the cases'
own tolerances; what does not pass there has to fail on the CPU as well. Last BUILD/test_engine_onnxruntime, which finds no
library in suite unit: all of its tests have to run here.

--networks  instead: the networks of tools/formats/onnx_models.py, from their files and recorded, beside ONNX Runtime

Needs the Python packages onnx and onnxruntime (tools/setup.sh); says "skipped" where they are missing.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import needs
import programs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
ENGINE = "engine:onnxruntime"


def library():
    """The shared library inside the package, or None."""
    found = importlib.util.find_spec("onnxruntime")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "capi" if found else None
    return next(iter(sorted(folder.glob("libonnxruntime.so.1*"))), None) if folder else None


def environment():
    return os.environ | {"TRUNNION_ONNXRUNTIME_LIB": str(library())}


def onnx_test(build, folders, *options):
    command = [str(pathlib.Path(build) / "trunnion"), "onnx-test", "--json", *options, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if not done.stdout:
        sys.exit(f"onnx-engine: trunnion onnx-test ends with {done.returncode}:\n{done.stderr}\n0 passed, 1 failed, 0 skipped")
    return json.loads(done.stdout)


# ---- node cases, from their files ------------------------------------------------------------------------------------

def read_inputs(case):
    """The case's inputs as arrays, or None when one is no tensor of numbers."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(case / "model.onnx")
    given = {i.name for i in model.graph.initializer}
    ports = [p for p in model.graph.input if p.name not in given]
    feed = {}
    for k, port in enumerate(ports):
        path = case / "test_data_set_0" / f"input_{k}.pb"
        if not port.type.HasField("tensor_type") or not path.is_file():
            return None
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind not in "fiub" or array.dtype == np.dtype("O"):
            return None
        feed[port.name] = array
    return feed


def answers(case, feed):
    """What ONNX Runtime computes, or None when it does not, not twice the same, or no tensors of numbers."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")  # as the engine has it
    try:
        session = onnxruntime.InferenceSession(str(case / "model.onnx"), options, providers=["CPUExecutionProvider"])
        if any("float8" in o.type or "int4" in o.type for o in session.get_outputs()):
            return None
        first, second = session.run(None, feed), session.run(None, feed)
    except Exception:  # noqa: BLE001  (the library has a class of exceptions for each of its codes)
        return None
    same = all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" and a.tobytes() == b.tobytes()
               for a, b in zip(first, second))
    return first if same else None


def write_case(case, outputs, room):
    """The case with ONNX Runtime's answers as what is expected."""
    from onnx import numpy_helper

    folder = room / case.name
    (folder / "test_data_set_0").mkdir(parents=True)
    shutil.copy(case / "model.onnx", folder)
    for path in (case / "test_data_set_0").glob("input_*.pb"):
        shutil.copy(path, folder / "test_data_set_0")
    for k, output in enumerate(outputs):
        (folder / "test_data_set_0" / f"output_{k}.pb").write_bytes(numpy_helper.from_array(output).SerializeToString())
    return folder


def check_files(build, cases):
    left_out = 0
    with tempfile.TemporaryDirectory() as name:
        folders = []
        for case in cases:
            feed = read_inputs(case)
            outputs = answers(case, feed) if feed is not None else None
            left_out += outputs is None
            if outputs is not None:
                folders.append(write_case(case, outputs, pathlib.Path(name)))
        done = onnx_test(build, folders, "--device", ENGINE, "--strict", "--threads", "1", "--atol", "0", "--rtol", "0")
    for case in done["cases"]:
        if case["result"] != "passed":
            print(f"{case['result']}: from its file: {case['name']}: {case['why']}")
    print(f"ran on: {done['device']}")
    print(f"from their files: {done['passed']} equal ONNX Runtime's bits; {left_out} of {len(cases)} are left out")
    return done["passed"], done["failed"] + done["skipped"]


# ---- node cases, recorded --------------------------------------------------------------------------------------------

def check_recorded(build, cases):
    done = onnx_test(build, cases, "--device", ENGINE, "--recorded")
    bad = [c for c in done["cases"] if c["result"] != "passed"]
    by_name = {case.name: case for case in cases}
    here = onnx_test(build, [by_name[c["name"]] for c in bad], "--device", "cpu") if bad else {"cases": []}
    passes_here = {c["name"] for c in here["cases"] if c["result"] == "passed"}
    failed, saturate = 0, needs.sums_saturate()
    for case in bad:
        if saturate and case["name"].startswith("test_qlinearmatmul"):
            print(f"{case['name']}: ONNX Runtime's sums of bytes saturate on this processor")
        elif case["name"] in passes_here:
            failed += 1
            print(f"{case['result']}: recorded: {case['name']}: {case['why']}")
    print(f"recorded: {done['passed']} of {len(cases)} pass; {len(bad) - failed} of the others do not on the CPU, or saturate")
    return done["passed"], failed


# ---- the engine's interface ------------------------------------------------------------------------------------------

def check_interface(build):
    command = [str(pathlib.Path(build) / "test_engine_onnxruntime")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                          env=environment() | {"CMOCKA_MESSAGE_OUTPUT": "TAP"})
    count, failed = programs.count_tap(done.stdout)
    left_out = done.stdout.count("skipped: ")
    if done.returncode or left_out or failed:
        print(done.stdout)
    print(f"interface: {count.passed} tests passed, {left_out} left out")
    return count.passed - left_out, max(count.failed + count.skipped + left_out, done.returncode != 0)


# ---- networks --------------------------------------------------------------------------------------------------------

def check_networks(build):
    """tools/formats/onnx_models.py computes and compares."""
    counts = [0, 0, 0]
    for options in [[], ["--recorded"]]:
        command = [sys.executable, str(ROOT / "tools" / "formats" / "onnx_models.py"), build, "--device", ENGINE,
                   "--rounds", "1", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment())
        lines = done.stdout.strip().splitlines()
        print("\n".join(["recorded:" if options else "from their files:", *lines[:-1]]), flush=True)
        passed, failed, skipped = (int(part.split()[0]) for part in lines[-1].split(", "))
        counts = [a + b for a, b in zip(counts, (passed, failed, skipped))]
    print(f"{counts[0]} passed, {counts[1]} failed, {counts[2]} skipped")
    return counts[1] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--networks", action="store_true")
    options = parser.parse_args()
    if not library() or not importlib.util.find_spec("onnx"):
        print("skipped: the Python packages onnx and onnxruntime are not there (tools/setup.sh fetches them)")
        print("0 passed, 0 failed, 1 skipped")
        return
    if options.networks:
        sys.exit(0 if check_networks(options.build) else 1)
    from formats import onnx_cases

    folder = onnx_cases.default_folder()
    onnx_cases.write_all(folder)
    cases = sorted(f for f in folder.iterdir() if (f / "model.onnx").is_file())
    checks = check_files(options.build, cases), check_recorded(options.build, cases), check_interface(options.build)
    passed, failed = (sum(counts) for counts in zip(*checks))
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
