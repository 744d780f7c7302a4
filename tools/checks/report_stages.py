"""report_stages.py — stages for tools/checks/gpu_report.py: one that passes, and one for each way to fail."""

import collections
import os
import subprocess
import time

Stage = collections.namedtuple("Stage", "about run")


class Session:
    def __init__(self, options, add, end):
        self.add, self.folder = add, options.python  # a word of the command line that these stages have no other use for


def passes(s):
    s.add({"what": "a row", "value": 1.5})


def fails(s):
    s.add({"what": "good"})
    s.add({"what": "bad", "failed": "7 differs | from 8"})


def raises(s):
    s.add({"what": "before"})
    raise RuntimeError("no such thing")


def crashes(s):
    os.kill(os.getpid(), 11)


def hangs(s):
    s.add({"what": "before"})
    child = subprocess.Popen(["sleep", "600"])
    with open(s.folder, "w", encoding="utf-8") as file:
        file.write(str(child.pid))
    time.sleep(600)


STAGES = {name: Stage(f"It {name}.", run) for name, run in
          [("passes", passes), ("fails", fails), ("raises", raises), ("crashes", crashes), ("hangs", hangs), ("ends", passes)]}
