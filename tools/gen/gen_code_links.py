"""gen_code_links.py [--check] — writes the targets of links to code in the documents.

A link to code has a function, type, table or file in backticks as its text: [`tn_flush`](…), [`fuse.c`](…). This script finds
the file that defines the name and writes the path, so a document survives moved files. A name that no file defines is a fault;
for a name with several definitions the link must already point to one of them. With --check: compare instead of writing.
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/decisions/*.md"]
FOLDERS = ["src", "include", "cli", "tests", "tools", "bench", "examples"]
LINK = re.compile(r"\[`([\w.]+)`\]\(([^)\s]*)\)")
DEFINITIONS = [
    re.compile(r"^(?!return\b|else\b)(?:TN_API )?[a-zA-Z_][\w \*]*?[ \*]\(?(\w+)\)?\([^;{}]*\)\s*\{", re.MULTILINE),  # a function
    re.compile(r"^[a-zA-Z_][\w \*]*?[ \*](\w+)(?:\[[^\]]*\])* = \{", re.MULTILINE),  # a table
    re.compile(r"^\} (\w+)(?:\[[^\]]*\])*(?:;| = \{)", re.MULTILINE),  # a type, or a table behind it
    re.compile(r"^#define (\w+)", re.MULTILINE),  # a macro
]


def sources():
    return sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def find_definitions(paths):
    """{name: [paths]}: base names of files, and what C files define."""
    found = {}
    for path in paths:
        found.setdefault(path.name, []).append(path)
        if path.suffix not in (".c", ".h"):
            continue
        text = path.read_text(encoding="utf-8")
        for name in {m for pattern in DEFINITIONS for m in pattern.findall(text)}:
            if path not in found.setdefault(name, []):
                found[name].append(path)
    return found


def target_of(name, old, document, defined):
    """The path to write, or None after a line that says what is wrong."""
    paths = [os.path.relpath(p, document.parent) for p in defined.get(name, [])]
    if old in paths:
        return old
    if len(paths) == 1:
        return paths[0]
    where = document.relative_to(ROOT)
    if not paths:
        print(f"{where}: no file of {', '.join(FOLDERS)} defines {name}: name another function or file")
    else:
        print(f"{where}: {name} is defined in {', '.join(paths)}: let the link point to one of them")
    return None


def main():
    defined, faults, links = find_definitions(sources()), 0, 0
    for document in sorted(p for pattern in DOCUMENTS for p in ROOT.glob(pattern)):
        text = document.read_text(encoding="utf-8")
        def relink(match):
            nonlocal faults, links
            links += 1
            target = target_of(match.group(1), match.group(2), document, defined)
            faults += target is None
            return match.group() if target is None else f"[`{match.group(1)}`]({target})"

        new = LINK.sub(relink, text)
        if new == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{document.relative_to(ROOT)}: a link points to a file that does not define its name")
            faults += 1
        else:
            document.write_text(new, encoding="utf-8")
    print(f"code links: {links} links, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
