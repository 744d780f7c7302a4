"""built.py — where the peers are that tools/peers/*.sh build; no package is needed for asking."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parent / "llama_cpp.sh"


def llama_cpp():
    """The folder of llama.cpp; builds it when it is not there."""
    result = subprocess.run([SCRIPT], stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit("llama.cpp could not be built; its words are above")
    return pathlib.Path(result.stdout.strip())


def llama_cpp_version():
    return "llama.cpp of llama-cpp-python " + llama_cpp().name.removeprefix("llama.cpp-")


def python():
    """The Python that has PyTorch, OpenBLAS and oneDNN; makes it when it is not there."""
    result = subprocess.run([SCRIPT.with_name("python.sh")], stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit("the peers' Python could not be made; its words are above")
    return result.stdout.strip()
