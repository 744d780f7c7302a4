"""record.py BUILD — when each slow suite was last run: writes docs/measured/check-all-DATE.md of what check.sh kept.

check.sh adds a line to BUILD/check/ran.tsv for each suite that it runs; the page holds the last one of each suite of
`make check-all`, and names those that were not run. Suites without a line keep their row of the newest page. What was
written by hand between a page's head and its table is kept in a page of the same day.
"""

import datetime
import os
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIELDS = ["suite", "ended", "commit", "seconds", "budget", "passed", "failed", "skipped", "load", "processor",
          "percent"]


def slow_suites():
    table = (ROOT / "tools" / "check.sh").read_text()
    return re.findall(r"^([\w-]+) *\| check-all *\|", table, re.MULTILINE)


def last_runs(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {run["suite"]: run for line in lines if (run := dict(zip(FIELDS, line.split("\t"))))}


def newest_page():
    """(its name, the rows by suite, what stands between head and table)"""
    path = max((ROOT / "docs" / "measured").glob("check-all-*.md"))
    head, _, table = path.read_text().partition("| suite | |")
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()[2:] if line.startswith("| ")}
    rows = {name: line + "  |" * (len(FIELDS) + 2 - line.count("|")) for name, line in rows.items()}  # pages had fewer
    return path.name, rows, "".join(part + "\n\n" for part in head.strip().split("\n\n")[2:])


def row(run):
    verdict = "red" if run["failed"] != "0" else "green" if run["passed"] != "0" else "skipped"
    return f"| {run['suite']} | {verdict} | " + " | ".join(run.get(field, "") for field in FIELDS[1:]) + " |"


def main():
    runs, suites = last_runs(ROOT / sys.argv[1] / "check" / "ran.tsv"), slow_suites()
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    words = (f"Written by `tools/checks/record.py BUILD`: the last run of each suite of `make check-all`, on "
             f"{processor[1] if processor else 'an unknown processor'}, {os.cpu_count()} threads. A commit with + had "
             "uncommitted changes. Load: of the machine, when the suite ended; with a load above the number of threads, "
             "the seconds do not hold for a quiet machine. Processor: its seconds. Percent: the part of the suite's "
             "random work (programs, files, moments) that was tried.")
    page, rows, notes = newest_page()
    path = ROOT / "docs" / "measured" / f"check-all-{datetime.date.today()}.md"
    rows |= {name: row(run) for name, run in runs.items()}
    lines = [f"# The slow suites, {datetime.date.today()}", "", textwrap.fill(words, 120), "",
             (notes if page == path.name else "") + "| suite | | " + " | ".join(FIELDS[1:]) + " |", "|---" * (len(FIELDS) + 1) + "|"]
    lines += [rows[name] for name in suites if name in rows]
    missing = [name for name in suites if name not in rows]
    if missing:
        lines += ["", "Not run: " + ", ".join(missing) + "."]
    path.write_text("\n".join(lines) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
