"""needs.py — says, for the checks, that a Python package is not there with which results are compared, or cannot compute
them on this processor."""

import importlib
import pathlib
import platform


def lacks(*packages):
    """True, after the suite's last lines, if one of them cannot be imported."""
    try:
        for package in packages:
            importlib.import_module(package)
    except ImportError as missing:
        print(f"skipped: the Python package {missing.name} is not there, with which results are compared")
        print("0 passed, 0 failed, 1 skipped")
        return True
    return False


def sums_saturate():
    """Whether ONNX Runtime adds pairs of u8 x i8 products in 16 bits: on x86-64 without VNNI (its documentation of
    quantization, "x64quantprecision"). Some operators do so in its precise mode, too."""
    flags = pathlib.Path("/proc/cpuinfo")
    return platform.machine() in ("x86_64", "AMD64") and flags.is_file() and "vnni" not in flags.read_text()
