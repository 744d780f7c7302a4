"""digits.py — puts scikit-learn's handwritten digits where `trunnion train digits` reads them.

The set is a small table inside the scikit-learn package: 1,797 rows of 64 pixels (0 to 16) and a label (0 to 9). Only
that one file is taken, from an installed scikit-learn or else out of its package; scikit-learn itself is never imported
or installed. It lands in the cache folder as data/digits.csv, whole or not at all.
"""

import gzip
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

MEMBER = "sklearn/datasets/data/digits.csv.gz"
ROWS, COLUMNS = 1797, 65

# A fixed package: the table is the same in all, and so this works on any processor and with any Python.
PACKAGE = ["scikit-learn==1.5.2", "--no-deps", "--only-binary=:all:", "--platform=manylinux2014_x86_64",
           "--implementation=cp", "--python-version=3.11"]


def cache_folder():
    """The folder that src/base/sys.c chooses."""
    if os.environ.get("TRUNNION_CACHE"):
        return pathlib.Path(os.environ["TRUNNION_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "trunnion"
    return pathlib.Path.home() / ".cache" / "trunnion"


def fault(text):
    """What is wrong with the table, or None."""
    rows = text.decode("ascii", "replace").splitlines()
    if len(rows) != ROWS:
        return f"{len(rows)} rows instead of {ROWS}"
    for number, row in enumerate(rows, 1):
        cells = row.split(",")
        if len(cells) != COLUMNS or not all(cell.isdecimal() for cell in cells):
            return f"row {number} is not {COLUMNS} whole numbers"
        if max(map(int, cells[:-1])) > 16 or int(cells[-1]) > 9:
            return f"row {number} is out of range"
    return None


def from_installed():
    """The table of an installed scikit-learn, or None. find_spec locates a top-level package without importing it."""
    spec = importlib.util.find_spec("sklearn")
    for folder in spec.submodule_search_locations if spec else []:
        path = pathlib.Path(folder).parent / MEMBER
        if path.is_file():
            return gzip.decompress(path.read_bytes())
    return None


def from_package():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, *PACKAGE]
        print("digits: fetching", PACKAGE[0], "for its data set", flush=True)
        if subprocess.run(command).returncode != 0:
            sys.exit("digits: pip could not fetch scikit-learn (its words are above). Offline? Then put the file\n"
                     f"digits.csv at {cache_folder() / 'data'} by hand: it is {MEMBER} of scikit-learn, unpacked.\n"
                     "No pip? Then run tools/setup.sh.")
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            return gzip.decompress(archive.read(MEMBER))


def save(target, text):
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".digits-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def main():
    target = cache_folder() / "data" / "digits.csv"
    if target.is_file() and fault(target.read_bytes()) is None:
        return
    text = from_installed() or from_package()
    wrong = fault(text)
    if wrong:
        sys.exit(f"digits: the data set is not what it should be: {wrong}")
    save(target, text)
    print("digits: wrote", target)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
