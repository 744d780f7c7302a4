"""links.py BUILD — each layer links with the layers below it alone.

tools/layers.py reads the #includes; this proves the same of calls. For each folder of src/, in that order, the linker gets
its objects and those of all folders below, and nothing else of the library. What a layer gets from above is one table
each (SEAMS); the check defines these, as a program that links only the lower layers would. Prints what else is missing,
with the function that wants it, and one line for the suite.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import layers  # noqa: E402  (the order of the layers)

# What a layer is given from above, and by which layer.
SEAMS = {
    "tn_backend_rows": "drivers",  # hal opens the devices of this list
    "tn_op_rows": "ops",  # the recorder looks ops up in this table
    "tn_index_rules": "ops",  # which ops take indices
    "tn_check_indices": "ops",
    "tn_graph_evaluator": "plan",  # computing what is recorded
    "tn_engines": "engines",  # libraries that compute whole graphs
    "tn_op_engines": "engines",  # libraries that compute single operations
}


def objects(build):
    """{layer: [object files]} of the library's sources, in the build folder's object libraries."""
    found = {}
    for path in sorted(pathlib.Path(build).glob("CMakeFiles/objects_*.dir/src/*/*.o")):
        source = pathlib.Path("src") / path.parent.name / path.name.removesuffix(".o")
        if (ROOT / source).is_file():
            found.setdefault(layers.layer_of(source), []).append(path)
    return found


def missing(parts, seams, folder):
    """What the linker does not find, as 'function of file wants symbol'."""
    arguments = ["cc", "-o", f"{folder}/linked", f"{folder}/main.c", *map(str, parts),
                 *[f"-Wl,--defsym={name}=0" for name in seams], "-Wl,--unresolved-symbols=report-all", "-no-pie",
                 "-lpthread", "-ldl", "-lm", "-lpcre2-8", "-lutf8proc"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    wants = re.findall(r"in function `(\w+)':\n(?:.*\n)*?.*undefined reference to `(\w+)'", done.stderr)
    wants += [("?", name) for name in re.findall(r"undefined reference to `(\w+)'", done.stderr)]
    named = {}
    for user, name in wants:
        named.setdefault(name, user)
    if done.returncode and not named:
        named[done.stderr.strip()[-300:]] = "the linker"
    return named


def main():
    by_layer, failed, parts = objects(sys.argv[1]), 0, []
    if not by_layer:
        print("no objects: build first")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "main.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
        for layer in layers.ORDER:
            parts += by_layer.get(layer, [])
            above = layers.ORDER[layers.ORDER.index(layer) + 1:]
            named = missing(parts, [name for name, giver in SEAMS.items() if giver in above], folder)
            for name, user in sorted(named.items()):
                print(f"{layer}: {user} wants {name}, which no layer up to {layer} has")
            failed += bool(named)
    print(f"{len(layers.ORDER) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
