"""chat.py BUILD — `trunnion chat` as a user has it: through a pseudo-terminal, with the demo's language model.

Looks at what is computed anew each turn, at answers (those of `trunnion generate` for the same messages), Ctrl-C and
Ctrl-D, line editing, the commands, and a context that is full. Skipped without the model (tools/text/smollm2.py).
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from text import smollm2  # noqa: E402
from checks.command import Report  # noqa: E402

PATIENCE = 120


class Terminal:
    """A session of chat at a terminal. What it shows is in .text; .at is how far that was looked at."""

    def __init__(self, program, *options):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LANG="C.UTF-8", TRUNNION_LOG="0")
            os.execv(program, [str(program), "chat", "-m", str(smollm2.path()), "--greedy", "-v", *options])
        self.text, self.at = "", 0
        self.expect("Ctrl-D ends")

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
                return True
            except OSError:  # the session has ended
                return False
        return False

    def expect(self, pattern):
        """Waits for the pattern behind what was found last. Returns the match; None when it does not come."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            match = re.compile(pattern).search(self.text, self.at)
            if match:
                self.at = match.end()
                return match
            if not self.read(1) and self.status(False) is not None:
                break
        print(f"no {pattern!r} in: {self.text[self.at:][-1500:]!r}", flush=True)
        return None

    def send(self, text):
        os.write(self.fd, text.encode())

    def say(self, text):
        """Sends a message. Returns how many tokens the prompt had, and how many were computed."""
        self.send(text + "\n")
        match = self.expect(r"\[prompt: (\d+) tokens, (\d+) computed")
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def status(self, wait=True):
        """The exit status, or 128 + the signal; None while it runs."""
        if self.pid:
            while wait and self.read(0.2):
                pass
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            if pid == 0:
                return None
            self.pid = 0
            self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def end(self):
        if self.pid:
            time.sleep(0.5)  # until the next line is being read
            self.send("\x04")
            deadline = time.monotonic() + 20
            while self.status(False) is None and time.monotonic() < deadline:
                self.read(0.2)
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
        result = self.status()
        os.close(self.fd)
        return result


def generate(program, *options):
    result = subprocess.run([program, "generate", "-m", smollm2.path(), "--greedy", "--json", *options],
                            capture_output=True, text=True)
    return json.loads(result.stdout) if result.returncode == 0 else {"text": result.stderr}


def check_turns(program, report, folder):
    """The second turn computes what is new; its answer is what generate makes of the same messages."""
    t = Terminal(program, "-n", "24", "--system", "Answer briefly.")
    first, second = t.say("Name three colors."), t.say("Name three animals.")
    report.add(first[0] > 0 and first[1] == first[0], f"the first turn computes all of its {first[0]} tokens")
    report.add(second[0] > first[0] + 24 and second[1] < second[0] - first[0],
               f"the second of {second[0]} tokens computes {second[1]}")
    t.send(f"/save {folder}/talk.json\n")
    report.add(t.expect(r"5 messages saved"), "/save writes the conversation")
    saved = json.loads((folder / "talk.json").read_text())["messages"]
    (folder / "before.json").write_text(json.dumps(saved[:4]))
    again = generate(program, "--messages", str(folder / "before.json"), "-n", "24")["text"]
    report.add([m["role"] for m in saved] == ["system", "user", "assistant", "user", "assistant"]
               and again == saved[4]["content"], "the answer is generate's for the same messages")
    t.send("/reset\n")
    report.add(t.expect("conversation cleared"), "/reset")
    prompt, _ = t.say("Name three colors.")
    report.add(prompt == first[0], "after /reset only the system prompt is left")
    t.send(f"/load {folder}/talk.json\n")
    report.add(t.expect("5 messages loaded"), "/load")
    prompt, computed = t.say("And three plants.")
    report.add(prompt > second[0] + 24 and computed < prompt, "a loaded conversation goes on")
    t.send("/set\n")
    report.add(t.expect(r"temperature +0\s"), "/set shows no temperature with --greedy")
    t.send("/set temperature 0.25\n/set\n")
    report.add(t.expect(r"temperature +0\.25"), "/set changes a setting")
    t.send("/set temperature hot\n")
    report.add(t.expect("wrong value"), "/set refuses a wrong value")
    t.send("/nonsense\n")
    report.add(t.expect("no command"), "an unknown command is refused")
    t.send('"""two\nlines"""\n')
    report.add(t.expect(r"\[prompt: "), "a message of several lines")
    t.send(f"/save {folder}/lines.json\n")
    t.expect("messages saved")
    lines = json.loads((folder / "lines.json").read_text())["messages"][-2]["content"]
    report.add(lines == "two\nlines", "its lines are one message")
    report.add(t.end() == 0, "Ctrl-D ends the session with status 0")


def check_interrupts(program, report, _):
    t = Terminal(program)
    t.send("Write a long story about a dragon.\n")
    t.expect("dragon")
    t.expect(r"[a-z0-9]+\W+[a-z0-9]+\W+[a-z0-9]+")
    time.sleep(0.5)
    t.send("\x03")
    report.add(t.expect(r"\(stopped\)"), "Ctrl-C stops the answer")
    t.expect("answer: ")
    t.send("half a line\x03")
    time.sleep(0.3)
    t.send("/set predict 3\n")
    prompt, computed = t.say("Hello.")
    report.add(0 < computed < prompt, "and the session goes on, with the answer in the cache")
    report.add("half a lineHello" not in t.text and "half a line/set" not in t.text.replace("\r", "").replace("\n", ""),
               "Ctrl-C drops a line")
    report.add(t.end() == 0, "the status is 0 then, too")
    t = Terminal(program)
    time.sleep(0.3)
    os.kill(t.pid, signal.SIGTERM)
    report.add(t.end() == 143, "SIGTERM ends the session with status 143")


def check_editing(program, report, _):
    t = Terminal(program, "-n", "2")
    if not t.expect("line editing: libedit"):
        report.skip("libedit is not installed: no line editing")
        t.end()
        return
    t.send("/set top-p 0.7\x1b[D\x1b[D\x1b[D0.12\x0b\n/set\n")  # left three times, other digits, the rest of the line away
    report.add(t.expect(r"top-p +0\.12\W"), "the line can be edited")
    t.send("\x1b[A\x1b[A\x01\x0b/set min-p 0.31\n\x1b[A\x1b[A\n")
    report.add(t.expect(r"temperature"), "lines of before come back")
    report.add(t.end() == 0, "the editor leaves with Ctrl-D")


def check_full_context(program, report, _):
    t = Terminal(program, "--context", "160", "-n", "30", "--system", "Be brief.")
    for topic in ("rivers", "mountains", "oceans", "deserts"):
        prompt, _ = t.say(f"Tell me about {topic}.")
        report.add(0 < prompt <= 160, f"a prompt of {prompt} tokens fits")
    report.add("dropped the" in t.text, "the oldest messages are dropped when the context is full")
    t.send("word " * 400 + "\n")
    report.add(t.expect("no room for it"), "a message that is too long is refused")
    report.add(t.say("Hello.")[0] > 0, "and the session goes on")
    t.end()
    t = Terminal(program, "--context", "64")
    t.say("Write a long story about a dragon.")
    report.add("answer cut: the context of 64 tokens is full" in t.text, "an answer that fills the context is told so")
    report.add(t.end() == 0, "its status is 0")


def check_pipe(program, report, _):
    def chat(text, *options):
        return subprocess.run([program, "chat", "-m", smollm2.path(), "--greedy", "-n", "8", *options], input=text,
                              capture_output=True, text=True)
    piped = chat("Name three colors.\n\nName three animals.")
    alone = generate(program, "--chat", "-p", "Name three colors.", "-n", "8")["text"]
    report.add(piped.returncode == 0 and piped.stdout.startswith(alone + "\n"), "lines of a pipe are messages")
    report.add(chat("/load /not/there\n").returncode == 1, "a script finds out that a command failed")
    report.add(chat("").returncode == 0, "no messages")
    missing = subprocess.run([program, "chat", "-m", "/not/there"], capture_output=True, stdin=subprocess.DEVNULL)
    report.add(missing.returncode == 1, "a model that is not there")


def main():
    program = (ROOT / sys.argv[1] / "trunnion").resolve()
    report = Report()
    if not smollm2.is_there():
        report.skip(f"no model at {smollm2.path()}; tools/text/smollm2.py fetches it")
    else:
        for check in (check_turns, check_interrupts, check_editing, check_full_context, check_pipe):
            with tempfile.TemporaryDirectory() as folder:
                check(program, report, pathlib.Path(folder))
    print(f"{report.passed} passed, {report.failed} failed, {report.skipped} skipped")
    return 1 if report.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
