"""onnx_export.py BUILD — models that we export, judged by others: onnx.checker and ONNX Runtime.

BUILD/test_onnx_export and test_onnx_export_ops leave models and what they were computed to in a folder. Every model must
pass the checker (full_check, which infers all shapes) and yield the same numbers: within 1e-5 of the greatest one, about
80 ulp of f32, as sums of a few thousand numbers are added in another order there. Needs the packages onnx, onnxruntime,
numpy."""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

TOLERANCE = 1e-5


def read_safetensors(path):
    import numpy

    types = {"F32": "f4", "F64": "f8", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1", "I8": "i1", "BOOL": "?"}
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in t["data_offsets"])
        tensors[name] = numpy.frombuffer(data[begin:end], types[t["dtype"]]).reshape(t["shape"])
    return tensors


def worst_error(got, want):
    import numpy

    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    got, want = got.astype("f8"), want.astype("f8")
    same = (got == want) | (numpy.isnan(got) & numpy.isnan(want))
    top = numpy.abs(want[numpy.isfinite(want)]).max(initial=1.0)
    with numpy.errstate(invalid="ignore"):  # infinities that are the same
        return numpy.where(same, 0.0, numpy.abs(got - want)).max(initial=0.0) / top


def check_model(path):
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    errors = {}
    for file in sorted(path.parent.glob(f"{path.stem}[.+]*safetensors")):  # NAME+again: of other extents
        errors |= compare(session, read_safetensors(file), file.stem.removeprefix(path.stem))
    return errors


def compare(session, expected, mark):
    given = {i.name for i in session.get_inputs()} & {name[3:] for name in expected if name.startswith("in:")}
    names = [o.name for o in session.get_outputs()]
    results = zip(names, session.run(names, {name: expected["in:" + name] for name in given}))
    return {name + mark: worst_error(got, expected["out:" + name]) for name, got in results if "out:" + name in expected}


def judge(path):
    try:
        errors = check_model(path)
    except Exception as fault:  # of either package
        return False, f"{path.stem}: {fault}"
    bad = "".join(f"; {name}: {error:.1e}" for name, error in errors.items() if not error <= TOLERANCE)
    worst = max(errors.values(), default=float("inf"))
    return bool(errors) and not bad, f"{path.stem}: {len(errors)} outputs, worst error {worst:.1e}{bad}"


def main():
    try:
        import numpy, onnx, onnxruntime  # noqa: E401, F401
    except ImportError as missing:
        print(f"skipped: the Python package {missing.name} is not there, with which exported models are run")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for program in ("test_onnx_export", "test_onnx_export_ops"):
            command = [str(Path(sys.argv[1]).resolve() / program)]
            subprocess.run(command, env=os.environ | {"TRUNNION_ONNX_EXPORT": folder}, check=True, capture_output=True)
        verdicts = [judge(path) for path in sorted(Path(folder).glob("*.onnx"))]
    for good, words in verdicts:
        if not good or not words.startswith("op-"):
            print(words)
    passed = sum(good for good, _ in verdicts)
    print(f"ran on: onnxruntime {onnxruntime.__version__}")
    print(f"{passed} passed, {len(verdicts) - passed} failed, 0 skipped")
    return 0 if verdicts and passed == len(verdicts) else 1


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
