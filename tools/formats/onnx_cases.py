#!/usr/bin/env python3
"""onnx_cases.py [-o FOLDER] [--filter TEXT] [--models] — writes the onnx package's test cases as files.

The package makes its cases when its modules are imported; ONNX's own layout of such a case is a folder with model.onnx
and test_data_set_K/input_J.pb and output_J.pb, which `trunnion onnx-test` reads. FOLDER (default: the cache folder's
onnx/cases-VERSION) gets one folder a case. Cases that are there already stay: the file `complete` tells so, and how many.

  --models     also the package's cases of whole models (simple, pytorch-converted, pytorch-operator)
  --or-skip    for the checks: a package that is not there is told as skipped, and no failure

Needs the package onnx (pip install onnx). Prints the folder.
"""

import argparse
import json
import pathlib
import shutil
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from digits import cache_folder  # noqa: E402

RTOL, ATOL = 1e-3, 1e-7  # what a case without data.json has


def serialised(value, info):
    """A value of a data set as the message that its declared type asks for."""
    from onnx import TensorProto, numpy_helper

    if hasattr(value, "SerializeToString"):
        return value.SerializeToString()
    kind = info.type.WhichOneof("value")
    if kind == "map_type":
        message = numpy_helper.from_dict(value, info.name)
    elif kind == "sequence_type":
        message = numpy_helper.from_list(value, info.name)
    elif kind == "optional_type":
        message = numpy_helper.from_optional(value, info.name)
    else:
        import numpy

        message = numpy_helper.from_array(numpy.asarray(value), info.name)
        assert isinstance(message, TensorProto)
    return message.SerializeToString()


def write_case(case, folder):
    """One case as a folder. Old content goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    if (case.rtol, case.atol) != (RTOL, ATOL):
        (folder / "data.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
    for k, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{k}"
        data.mkdir()
        for what, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
            for j, value in enumerate(values):
                (data / f"{what}_{j}.pb").write_bytes(serialised(value, infos[j]))


def node_cases():
    """The package's cases of single operators."""
    with warnings.catch_warnings():  # the package's own arithmetic divides by zero on purpose
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return collect_testcases(None)


def copy_models(folder):
    """The package's cases of whole models, which lie in it as files. Returns how many."""
    from onnx.backend.test.case.model import __file__ as module

    data = pathlib.Path(module).resolve().parents[2] / "data"
    count = 0
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in sorted((data / kind).iterdir()):
            if (case / "model.onnx").is_file():
                shutil.copytree(case, folder / kind / case.name, dirs_exist_ok=True)
                count += 1
    return count


def default_folder():
    import onnx

    return cache_folder() / "onnx" / f"cases-{onnx.__version__}"


def write_all(folder, wanted=""):
    """All node cases, unless they are there. Returns how many there are."""
    complete = folder / "complete"
    if complete.is_file() and not wanted:
        return int(complete.read_text())
    cases = [case for case in node_cases() if wanted in case.name]
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        write_case(case, folder / case.name)
    if not wanted:
        complete.write_text(str(len(cases)))
    return len(cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--filter", default="", help="only cases whose names contain this")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--or-skip", action="store_true")
    options = parser.parse_args()
    try:
        import onnx  # noqa: F401
    except ImportError:
        if options.or_skip:
            print("skipped: no ONNX cases: the Python package onnx is not there (tools/setup.sh fetches it)")
            print("0 passed, 0 failed, 1 skipped")
            return
        sys.exit("onnx_cases: the Python package onnx is not there: pip install onnx")
    folder = options.output or default_folder()
    count = write_all(folder, options.filter)
    print(f"onnx_cases: {count} cases of operators", file=sys.stderr)
    if options.models:
        models = folder.with_name(folder.name + "-models")
        print(f"onnx_cases: {copy_models(models)} cases of models in {models}", file=sys.stderr)
    print(folder)


if __name__ == "__main__":
    main()
