"""empty_root.py BUILD — the command in a root folder with nothing but its libraries: no /proc, no /sys, no /dev, no /etc.

It must find the processor, and train to the bits of this system, also without AVX2. Needs the right to change the root: as root, or through `unshare -r`.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from digits import cache_folder  # noqa: E402

PATHS = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def make_root(program, root):
    """Copies the program and the libraries that it is linked with."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"(/\S+)", linked):
        target = root / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
    shutil.copy(program, root / "trunnion")
    shutil.copy(cache_folder() / "data" / "digits.csv", root / "digits.csv")


def into_root(root):
    """The words that start a program there; None: not permitted."""
    chroot, unshare = shutil.which("chroot", path=PATHS), shutil.which("unshare", path=PATHS)
    for words in ([chroot, str(root)], [unshare, "-r", chroot, str(root)]):
        if None not in words and subprocess.run([*words, "/trunnion", "--version"], capture_output=True).returncode == 0:
            return words
    return None


def main():
    program = pathlib.Path(sys.argv[1]).resolve() / "trunnion"
    training = ["train", "digits", "--model", "mlp", "--steps", "40", "--device", "cpu"]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        root.mkdir()
        make_root(program, root)
        words = into_root(root)
        if not words:
            print("skipped: this user may not change the root folder\n0 passed, 0 failed, 1 skipped")
            return 0
        subprocess.run([program, *training, "--save", f"{folder}/here", "--json"], check=True, stdout=subprocess.DEVNULL)
        here = pathlib.Path(folder, "here").read_bytes()
        settings = {"TRUNNION_CACHE": "/cache", "PATH": "/"}
        devices = subprocess.run([*words, "/trunnion", "devices"], env=settings, capture_output=True, text=True)
        if devices.returncode != 0 or not re.search(r"^. cpu +\S", devices.stdout, re.M) or "recommended: cpu" not in devices.stdout:
            wrong.append(f"devices: exit status {devices.returncode}: {devices.stdout}{devices.stderr}")
        for extra in ({}, {"TRUNNION_ISA": "baseline"}):
            (root / "there").unlink(missing_ok=True)
            trained = subprocess.run([*words, "/trunnion", *training, "--data", "/digits.csv", "--save", "/there", "--json"],
                                     env=settings | extra, capture_output=True, text=True)
            if trained.returncode != 0:
                wrong.append(f"train {extra}: exit status {trained.returncode}: {trained.stdout}{trained.stderr}")
            elif (root / "there").read_bytes() != here:
                wrong.append(f"train {extra}: the checkpoint differs from this system's")
    print("\n".join(wrong + [f"{3 - len(wrong)} passed, {len(wrong)} failed, 0 skipped"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
