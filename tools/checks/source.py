"""source.py — what must not stand in the sources.

The library never ends the caller's process: no abort, exit or assert in src/ (a forked child may use _exit). No file
names the machine it was written on: no absolute home or work folders. C that README.md shows stands in an example, which
is compiled and run. Every public function that takes a pointer is called with NULL in tests/test_null.c.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ENDS_PROCESS = re.compile(r"\b(abort|exit|quick_exit|assert)\s*\(|#\s*include\s*<assert\.h>")
OWN_FOLDER = re.compile(r"[\"'\s(](/home/|/root/|/work/|/Users/)\w")
COMMENTS_AND_STRINGS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
LIBRARY = ["include", "src"]
ALL = LIBRARY + ["cli", "examples", "bench", "tests", "tools", "docs"]
TEXT = {".c", ".h", ".def", ".inc", ".py", ".sh", ".md", ".txt", ".cmake"}


def blank(match):
    """Takes a comment or string out but leaves its line ends, so that line numbers stay true."""
    return "".join(c if c == "\n" else " " for c in match.group())


def files(folders, endings):
    return sorted(p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in endings and p.is_file())


def faults(path, text, pattern, what):
    for number, line in enumerate(text.splitlines(), 1):
        match = pattern.search(line)
        if match:
            yield f"{path.relative_to(ROOT)}:{number}: {what}: {match.group().strip()}"


def unproven(readme):
    """Blocks of C in the text that are in no example."""
    examples = [p.read_text(encoding="utf-8") for p in files(["examples"], {".c"})]
    for block in re.finditer(r"^```c\n(.*?)^```", readme, re.DOTALL | re.MULTILINE):
        if not any(block.group(1) in e for e in examples):
            number = readme.count("\n", 0, block.start()) + 1
            yield f"README.md:{number}: this C is not, letter by letter, in a file of examples/"


def unproven_nulls():
    """Public functions with a pointer among their arguments that tests/test_null.c does not call; ops.h has a generated list."""
    tested = (ROOT / "tests" / "test_null.c").read_text(encoding="utf-8")
    for path in files(["include"], {".h"}):
        if path.name in ("ops.h", "text.h", "llm.h"):  # the last two: the second library's
            continue
        code = COMMENTS_AND_STRINGS.sub(blank, path.read_text(encoding="utf-8"))
        for name, arguments in re.findall(r"^TN_API [^;]*?\b(tn_\w+)\(([^;]*)\)", code, re.MULTILINE):
            if "*" in arguments and not re.search(rf"\b{name}\(", tested):
                yield f"{path.relative_to(ROOT)}: {name} is not called with NULL in tests/test_null.c"


def main():
    found = list(unproven_nulls())
    for path in files(LIBRARY, {".c", ".h", ".def", ".inc"}):
        code = COMMENTS_AND_STRINGS.sub(blank, path.read_text(encoding="utf-8"))
        found += faults(path, code, ENDS_PROCESS, "ends the caller's process")
    for path in files(ALL, TEXT):
        if path != pathlib.Path(__file__).resolve():
            found += faults(path, path.read_text(encoding="utf-8"), OWN_FOLDER, "names a folder of one machine")
    found += unproven((ROOT / "README.md").read_text(encoding="utf-8"))
    print("\n".join(found + [f"source: {len(found)} faults"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
