"""layers.py — every #include goes upwards: a folder of src/ may include its own headers and those of folders above it.

The order below is the architecture. Everything may include the public headers (include/trunnion) and the system's;
functions, nn, text, cli and examples may include nothing else but headers of their own folder, which proves that the public interface is
enough. Each folder has a budget of lines. Prints one line a fault, as file:line, and fails if there is one.
tools/checks/links.py proves the same of calls.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ORDER = ["windows", "base", "kir", "cpu", "gpu", "vendor", "hal", "drivers", "tensor", "ops", "plan", "autograd", "check",
         "functions", "nn", "formats", "onnx", "engines", "text"]
# Generated files are in src/gen, each on the layer that it is generated for.
GENERATED = {"render_prelude.h": "kir", "legal_table.h": "kir", "op_ids.h": "tensor", "ops_build.h": "ops", "ops_table.c": "ops",
             "torch_signatures.h": "vendor",
             "iquant_tables.h": "formats", "scripts.h": "text"}
PUBLIC_ONLY = {"functions", "nn", "text"}
# At most so many lines in each folder (gen/ is not counted). A folder that grows beyond it needs a reason in the commit
# that raises its budget, or something that leaves.
BUDGET = {
    "windows": 1525,
    "base": 3880,
    "kir": 16430,
    "cpu": 17245,
    "gpu": 2706,
    "vendor": 3245,
    "hal": 9380,
    "drivers": 8020,
    "tensor": 3055,
    "ops": 13815,
    "plan": 13280,
    "autograd": 1410,
    "check": 1520,
    "functions": 4320,
    "nn": 7660,
    "formats": 4690,
    "onnx": 17060,
    "engines": 1755,
    "text": 27370,
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ENDINGS = {".c", ".h", ".def", ".inc"}


def includes(path):
    """Yields (line number, '<' or '"', name) of each include."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def find(path, name):
    """The file that a quoted include means: beside the includer, in src/, or in include/. None when there is none."""
    for folder in (path.parent, ROOT / "src", ROOT / "include", ROOT):
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(ROOT):
            return candidate.relative_to(ROOT)
    return None


def layer_of(path):
    """The layer of a file of src/ (relative to the root)."""
    return GENERATED.get(path.name) if path.parts[1] == "gen" else path.parts[1]


def fault_in_src(layer, target):
    """Why a file of src/<layer>/ may not include `target` (relative to the root), or None."""
    if target.parts[:2] == ("include", "trunnion"):
        return None
    if target.parts[0] != "src" or layer_of(target) not in ORDER:
        return f"{target} is in no layer"
    other = layer_of(target)
    if other == layer:
        return None
    if layer in PUBLIC_ONLY:
        return f"{layer} may include public headers only, not {target}"
    if ORDER.index(other) > ORDER.index(layer):
        return f"{layer} stands above {other} and may not include {target}"
    return None


def fault_outside(folder, target):
    """The same for cli/ and examples/ (own headers and public ones), and for include/ (public ones)."""
    if target.parts[:2] == ("include", "trunnion"):
        return None
    if target.parts[0] == folder and folder != "include":
        return None
    return f"{folder} may include public headers only, not {target}"


def fault_of(path, bracket, name):
    if bracket == "<" and not name.startswith("trunnion/"):
        return None
    target = find(path, name)
    if target is None:
        return f"{name} is not found"
    where = path.relative_to(ROOT).parts
    if where[0] == "src":
        return fault_in_src(layer_of(path.relative_to(ROOT)), target)
    return fault_outside(where[0], target)


def sources(folder):
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in ENDINGS)


def lines_of(folder):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(f"src/{folder}"))


def main():
    faults, count = [], 0
    lines = {folder: lines_of(folder) for folder in ORDER}
    faults += [f"src/{folder}: {lines[folder]} lines, budget {BUDGET[folder]}" for folder in ORDER
               if lines[folder] > BUDGET[folder]]
    for folder in sorted((ROOT / "src").iterdir()):
        if folder.name not in ORDER + ["gen"]:
            faults.append(f"{folder.relative_to(ROOT)}: not in the order of tools/layers.py")
    for path in [p for folder in ("include", "src", "cli", "examples") for p in sources(folder)]:
        if path.is_relative_to(ROOT / "src") and layer_of(path.relative_to(ROOT)) not in ORDER:
            continue
        count += 1
        for number, bracket, name in includes(path):
            fault = fault_of(path, bracket, name)
            if fault:
                faults.append(f"{path.relative_to(ROOT)}:{number}: {fault}")
    print("lines: " + ", ".join(f"{folder} {lines[folder]}" for folder in ORDER) + f"; {sum(lines.values())} in all")
    print("\n".join(faults + [f"layers: {count} files read, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
