"""empty_root.py BUILD — the command in a root folder with nothing but its libraries: no /proc, no /sys, no /dev, no /etc.

It must find the processor, and train to the bits of this system, also without AVX2. cross.py gives it commands for old
systems and the C library of one; they must also answer as this system's does. Needs the right to change the root: as
root, or through `unshare -r`.
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


def resolve(path, system):
    """The file that a path of a system in the folder `system` leads to; its links may be absolute."""
    while path.is_symlink():
        to = path.readlink()
        path = system / str(to)[1:] if to.is_absolute() else path.parent / to
    return path


def make_root(program, root, libraries):
    """Copies the program and the libraries that it is linked with; from `libraries`, or this system's."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout  # fails for static programs
    for name in re.findall(r"(/\S+)", linked):
        target = root / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(resolve(libraries / name[1:], libraries) if libraries else name, target)
    shutil.copy(program, root / "trunnion")
    shutil.copy(cache_folder() / "data" / "digits.csv", root / "digits.csv")


def into_root(root):
    """The words that start a program there; None: not permitted."""
    chroot, unshare = shutil.which("chroot", path=PATHS), shutil.which("unshare", path=PATHS)
    for words in ([chroot, str(root)], [unshare, "-r", chroot, str(root)]):
        if None not in words and subprocess.run([*words, "/trunnion", "--version"], capture_output=True).returncode == 0:
            return words
    return None


def check(program, native, libraries=None, model=None):
    """What the program does wrong in such a root, compared with the command `native` of this system; None: skipped."""
    training = ["train", "digits", "--model", "mlp", "--steps", "40", "--device", "cpu"]
    settings = {"TRUNNION_CACHE": "/cache", "PATH": "/"}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        root.mkdir()
        make_root(program, root, libraries)
        words = into_root(root)
        if not words:
            return None

        def run(*arguments, **extra):
            done = subprocess.run([*words, "/trunnion", *arguments], env=settings | extra, capture_output=True, text=True)
            if done.returncode != 0:
                wrong.append(f"{arguments[0]} {extra}: exit status {done.returncode}: {done.stdout}{done.stderr}")
            return done

        subprocess.run([native, *training, "--save", f"{folder}/here", "--json"], check=True, stdout=subprocess.DEVNULL)
        here = pathlib.Path(folder, "here").read_bytes()
        devices = run("devices")
        if not re.search(r"^. cpu +\S", devices.stdout, re.M) or "recommended: cpu" not in devices.stdout:
            wrong.append(f"devices: {devices.stdout}")
        for extra in ({}, {"TRUNNION_ISA": "baseline"}):
            (root / "there").unlink(missing_ok=True)
            trained = run(*training, "--data", "/digits.csv", "--save", "/there", "--json", **extra)
            if trained.returncode == 0 and (root / "there").read_bytes() != here:
                wrong.append(f"train {extra}: the checkpoint differs from this system's")
        if model:
            shutil.copy(model, root / "model.gguf")
            answer = ["-p", "Once upon a time, the", "-n", "8", "--greedy", "--device", "cpu"]
            ours = subprocess.run([native, "generate", "-m", model, *answer], check=True, capture_output=True, text=True).stdout
            theirs = run("generate", "-m", "/model.gguf", *answer).stdout
            if ours != theirs:
                wrong.append(f"generate: {theirs!r}, on this system {ours!r}")
    return wrong


def main():
    program = pathlib.Path(sys.argv[1]).resolve() / "trunnion"
    wrong = check(program, program)
    if wrong is None:
        print("skipped: this user may not change the root folder\n0 passed, 0 failed, 1 skipped")
        return 0
    print("\n".join(wrong + [f"{int(not wrong)} passed, {int(bool(wrong))} failed, 0 skipped"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
