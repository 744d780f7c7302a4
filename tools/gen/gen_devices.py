"""gen_devices.py [--check] — writes the table of reason codes in docs/devices.md from src/hal/reason_codes.def.

--check compares instead of writing, says what differs, and fails if something does.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/hal/reason_codes.def"
PAGE = ROOT / "docs/devices.md"
BEGIN = "<!-- made by tools/gen/gen_devices.py from src/hal/reason_codes.def -->\n"
END = "<!-- end of the made part -->\n"

TEXT = r'((?:"[^"]*"\s*)+)'  # one or several string literals, which C joins
ROW = re.compile(rf"^REASON\((\w+),\s*{TEXT},\s*{TEXT}\)$", re.MULTILINE)


def joined(literals):
    return "".join(re.findall(r'"([^"]*)"', literals))


def table():
    rows = ROW.findall(SOURCE.read_text(encoding="utf-8"))
    lines = ["| code | what it means | what to do |", "|---|---|---|"]
    lines += [f"| `{code}` | {joined(meaning)} | {joined(fix)} |" for code, meaning, fix in rows]
    return "\n".join(lines) + "\n"


def main():
    old = PAGE.read_text(encoding="utf-8")
    head, rest = old.split(BEGIN)
    tail = rest.split(END)[1]
    new = head + BEGIN + table() + END + tail
    if "--check" in sys.argv[1:]:
        if new != old:
            print(f"{PAGE.relative_to(ROOT)} differs from what {SOURCE.relative_to(ROOT)} says")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
