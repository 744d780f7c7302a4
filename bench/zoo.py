"""zoo.py — architectures that nobody tuned for, exported with random weights, timed here and in a peer.

    zoo.py [--count 10] [--seed N] [--only 'resnet* vit*'] [--threads 2] [--cpu-time] [--seconds 1] [--fast]
           [--precision qdq] [--peer openvino] [--build build] [--profile] [--scaling] [--page NOTE]

The networks are those of torchvision, timm and transformers in ZOO. A run takes --count of them, chosen by --seed, so
that no kernel is fitted to a fixed list; --count 0 takes all. Each is exported once, into the cache folder. Its results
have to agree with ONNX Runtime's within 2e-4 of the largest one (bytes: 0.2), then both sides run by turns in one process: blocks of runs, of which the
first is not counted. A figure is the ratio of the medians. At the end: the geometric mean, the worst five, and how many
are below 1.

  --precision  f32, or how ONNX Runtime's tools quantize the network to bytes: one of QUANTIZED
  --peer      onnxruntime, or openvino (with --fast in bf16 where the processor multiplies it)
  --cpu-time  one thread, and its processor time instead of the time of day: for a machine that others use too
  --profile   also the commands of each network that take most time
  --scaling   also the commands that more threads make less than 1.6 times as fast
  --page      writes docs/measured/zoo-DATE.md, with NOTE in its head

Runs in the peers' Python (tools/peers/python.sh), and needs the shared library: tools/build.sh build trunnion_shared.
"""

import argparse
import ctypes
import datetime
import fnmatch
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]
from digits import cache_folder  # noqa: E402

PACKAGES = ["torchvision", "timm", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "sympy"]
LIMIT = 2e-4  # of an output's largest number
LIMIT_BYTES = 0.2  # of networks of bytes: a sum that is rounded to another byte changes all that follow
LEAST_MS = 0.02  # of a command that is worth more threads
IMAGE = (1, 3, 224, 224)


# ---- the networks ----------------------------------------------------------------------------------------------------

def of_torchvision(name, **options):
    def make():
        import torchvision
        return torchvision.models.get_model(name, weights=None, **options)
    return make


def of_timm(name):
    def make():
        import timm
        return timm.create_model(name, pretrained=False)
    return make


def of_transformers(kind, **options):
    """The encoder or decoder without a head, of fewer layers than usual: each layer is the same."""
    def make():
        import transformers
        config = getattr(transformers, kind + "Config")(**options)
        return getattr(transformers, kind + "Model")(config)
    return make


TEXT = {"vocab_size": 8000, "num_hidden_layers": 4}
ZOO = {
    **{name: (of_torchvision(name), IMAGE) for name in (
        "alexnet", "vgg11_bn", "vgg16", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "squeezenet1_0",
        "squeezenet1_1", "densenet121", "densenet169", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "mobilenet_v2",
        "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "mnasnet1_0", "efficientnet_b0", "efficientnet_b1",
        "efficientnet_v2_s", "regnet_x_400mf", "regnet_y_400mf", "regnet_y_1_6gf", "convnext_tiny", "swin_t",
        "vit_b_32", "maxvit_t")},
    "googlenet": (of_torchvision("googlenet", aux_logits=False, init_weights=False), IMAGE),
    "inception_v3": (of_torchvision("inception_v3", aux_logits=False, init_weights=False), (1, 3, 299, 299)),
    "deeplabv3_mobilenet": (of_torchvision("deeplabv3_mobilenet_v3_large", weights_backbone=None), IMAGE),
    "lraspp_mobilenet": (of_torchvision("lraspp_mobilenet_v3_large", weights_backbone=None), IMAGE),
    **{name: (of_timm(name), IMAGE) for name in (
        "mobilenetv4_conv_small", "ghostnet_100", "repvgg_a0", "repvit_m0_9", "fbnetc_100", "hardcorenas_a",
        "tf_mixnet_s", "lcnet_100", "tinynet_a", "rexnet_100", "hrnet_w18_small", "dla34", "res2net50_26w_4s", "cspresnet50",
        "cspdarknet53", "vovnet39a", "ese_vovnet19b_dw", "selecsls42b", "xception41", "dpn68", "resnest14d", "nf_regnet_b0",
        "resmlp_12_224", "mixer_s16_224", "convmixer_768_32", "poolformer_s12", "levit_128s", "mobilevit_s",
        "edgenext_x_small", "fastvit_t8", "efficientformer_l1", "deit_tiny_patch16_224")},
    "bert": (of_transformers("Bert", **TEXT), (1, 64)),
    "distilbert": (of_transformers("DistilBert", vocab_size=8000, n_layers=4), (1, 64)),
    "albert": (of_transformers("Albert", vocab_size=8000, num_hidden_layers=4, hidden_size=768, num_attention_heads=12,
                               intermediate_size=3072), (1, 64)),
    "electra": (of_transformers("Electra", **TEXT), (1, 128)),
    "roberta": (of_transformers("Roberta", **TEXT), (4, 32)),
    "gpt2": (of_transformers("GPT2", vocab_size=8000, n_layer=4, use_cache=False), (1, 64)),
}


QUANTIZED = {  # format, bytes of activations and weights, a scale for each filter
    "qdq": ("QDQ", "QUInt8", "QInt8", False),
    "qdq-channels": ("QDQ", "QUInt8", "QInt8", True),
    "qdq-signed": ("QDQ", "QInt8", "QInt8", True),
    "qoperator": ("QOperator", "QUInt8", "QInt8", False),
    "qoperator-channels": ("QOperator", "QUInt8", "QInt8", True),
    "qoperator-signed": ("QOperator", "QInt8", "QInt8", True),
    "dynamic": (None, None, "QInt8", False),
}


class Plain:
    """A module whose forward yields its first tensor, whatever the network hands out."""

    @staticmethod
    def of(network):
        import torch

        class Wrapped(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.network = network

            def forward(self, x):
                out = self.network(x)
                if isinstance(out, dict):
                    out = next(iter(out.values()))
                return out if isinstance(out, torch.Tensor) else out[0]
        return Wrapped()


def randomize(network):
    """Batch norms of a trained network neither scale by one nor shift by nothing."""
    import torch
    for part in network.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            torch.nn.init.uniform_(part.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(part.running_var, 0.8, 1.2)
            if part.affine:
                torch.nn.init.uniform_(part.bias, -0.1, 0.1)


def example(shape):
    import numpy as np
    numbers = np.random.default_rng(7)
    if len(shape) == 2:
        return numbers.integers(0, 8000, shape)
    return numbers.standard_normal(shape).astype(np.float32)


def export(name, path):
    """Writes the network; run in a process of its own, whose memory goes with it."""
    import torch
    make, shape = ZOO[name]
    torch.manual_seed(1)
    network = make().eval()
    randomize(network)
    with torch.no_grad():
        torch.onnx.export(Plain.of(network).eval(), (torch.from_numpy(example(shape)),), str(path) + ".part", opset_version=18,
                          input_names=["x"], output_names=["y"], dynamo=False)
    os.replace(str(path) + ".part", path)


def quantize(name, path, precision):
    """The network of bytes, made from the exported one; ranges are those of two random inputs."""
    import numpy as np
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process
    form, activations, weights, channels = QUANTIZED[precision]
    prepared, part = str(path) + ".prepared", str(path) + ".part"
    quant_pre_process(str(exported(name)), prepared, skip_symbolic_shape=True)
    if form is None:
        q.quantize_dynamic(prepared, part, weight_type=q.QuantType[weights], per_channel=channels)
    else:
        x = example(ZOO[name][1])
        other = x if len(x.shape) == 2 else (0.9 * x[..., ::-1]).astype(np.float32)

        class Reader(q.CalibrationDataReader):
            inputs = iter([{"x": x}, {"x": other}])

            def get_next(self):
                return next(self.inputs, None)
        q.quantize_static(prepared, part, Reader(), quant_format=q.QuantFormat[form], per_channel=channels,
                          activation_type=q.QuantType[activations], weight_type=q.QuantType[weights])
    os.remove(prepared)
    os.replace(part, path)


def exported(name, precision="f32"):
    """The network's file, or the reason why there is none."""
    kind = "" if precision == "f32" else "." + precision
    path = pathlib.Path(cache_folder()) / "models" / "zoo" / f"{name}{kind}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        made = subprocess.run([sys.executable, __file__, "--export", name, str(path), "--precision", precision],
                              capture_output=True, text=True)
        if made.returncode != 0:
            raise RuntimeError("export: " + (made.stderr.strip().splitlines() or ["no reason given"])[-1][:160])
    return path


# ---- both sides ------------------------------------------------------------------------------------------------------

class Row(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_char_p), ("label", ctypes.c_char_p), ("runs", ctypes.c_int64),
                ("bytes", ctypes.c_int64), ("flops", ctypes.c_double), ("seconds", ctypes.c_double)]


PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


class Here:
    """libtrunnion through ctypes."""

    DTYPES = {"float32": 0, "int64": 3}

    def __init__(self, build, threads, fast):
        self.dll = ctypes.CDLL(str(next(pathlib.Path(build).glob("libtrunnion.so*"))))
        for name in ("tn_from_data", "tn_onnx_value_tensor", "tn_onnx_value_get", "tn_profile_begin"):
            getattr(self.dll, name).restype = ctypes.c_void_p
        self.dll.tn_error.restype = ctypes.c_char_p
        self.dll.tn_profile_count.restype = ctypes.c_int64
        self.check(self.dll.tn_set_num_threads(threads))
        self.check(self.dll.tn_set_numerics(1 if fast else 0))

    def check(self, status):
        if status != 0:
            raise RuntimeError("trunnion: " + self.dll.tn_error().decode())

    def open(self, path, x, like):
        import numpy as np
        self.model, self.like = ctypes.c_void_p(), like
        self.check(self.dll.tn_onnx_open(str(path).encode(), None, ctypes.byref(self.model)))
        shape = (ctypes.c_int64 * x.ndim)(*x.shape)
        self.x = self.dll.tn_from_data(x.ctypes.data_as(ctypes.c_void_p), shape, x.ndim, self.DTYPES[x.dtype.name])
        self.value = ctypes.c_void_p(self.dll.tn_onnx_value_tensor(ctypes.c_void_p(self.x)))
        self.y = np.zeros_like(like)

    def run(self):
        out = ctypes.c_void_p()
        self.check(self.dll.tn_onnx_run(self.model, ctypes.byref(self.value), ctypes.byref(out)))
        tensor = ctypes.c_void_p(self.dll.tn_onnx_value_get(out))
        self.check(self.dll.tn_read(tensor, self.y.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(self.y.nbytes)))
        self.dll.tn_onnx_value_free(out)
        return self.y

    def profile(self, runs):
        """[(milliseconds a run, times, kind, label, GFLOP/s)] of each command's best run, what takes longest first."""
        best = {}
        for _ in range(runs):
            profile = ctypes.c_void_p(self.dll.tn_profile_begin())
            self.run()
            self.dll.tn_profile_end(profile)
            for i in range(self.dll.tn_profile_count(profile)):
                row = Row(size=ctypes.sizeof(Row))
                self.check(self.dll.tn_profile_at(profile, ctypes.c_int64(i), ctypes.byref(row)))
                key = (row.kind.decode(), row.label.decode())
                if key not in best or row.seconds < best[key][0]:
                    best[key] = (row.seconds, row.runs, *key, row.flops / max(row.seconds, 1e-12) * 1e-9)
            self.dll.tn_profile_free(profile)
        return sorted(best.values(), reverse=True)

    def scaling(self, threads, runs):
        """[(milliseconds with one thread, with `threads`, kind, label)] of each command's best run, by turns."""
        best = {}
        for turn in range(runs):
            count = threads if turn % 2 else 1
            self.check(self.dll.tn_set_num_threads(count))
            for seconds, _, *key, _ in self.profile(4):
                times = best.setdefault(tuple(key), {})
                times[count] = min(seconds, times.get(count, seconds))
        self.check(self.dll.tn_set_num_threads(threads))
        return [(times[1] * 1e3, times[threads] * 1e3, *key) for key, times in best.items() if len(times) == 2]


class OnnxRuntime:
    def __init__(self, path, x, threads):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if threads > 1 else "0")
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.feed = {self.session.get_inputs()[0].name: x}

    def run(self):
        return self.session.run(None, self.feed)[0]


class OpenVino:
    """OpenVINO's latency mode; f32, or with `fast` bf16 where the processor has instructions for it."""

    def __init__(self, path, x, threads, fast):
        import openvino
        core = openvino.Core()
        brain = fast and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        model = core.compile_model(core.read_model(str(path)), "CPU", {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if brain else "f32"})
        self.request, self.x = model.create_infer_request(), openvino.Tensor(x, shared_memory=True)
        self.request.set_input_tensor(self.x)

    def run(self):
        self.request.infer()
        return self.request.get_output_tensor(0).data


def block(run, clock, seconds):
    """Times of runs for so many seconds, the first of them not counted."""
    run()
    end, times = time.perf_counter() + seconds, []
    while not times or time.perf_counter() < end:
        start = clock()
        run()
        times.append(clock() - start)
    return times


def measure(name, options):
    """One network, in this process."""
    import numpy as np
    x = example(ZOO[name][1])
    threads = 1 if options.cpu_time else options.threads
    path = exported(name, options.precision)
    reference = OnnxRuntime(path, x, threads)
    wanted = reference.run()
    peer = OpenVino(path, x, threads, options.fast) if options.peer == "openvino" else reference
    here = Here(options.build, threads, options.fast)
    here.open(path, x, wanted)
    for _ in range(3):
        got = here.run()
    off = float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-30))
    if not off <= (LIMIT_BYTES if options.precision != "f32" else 100 * LIMIT if options.fast else LIMIT):
        raise RuntimeError(f"results differ by {off:.1e} of the largest")
    if options.profile:
        for seconds, runs, kind, label, rate in here.profile(20)[:options.profile]:
            print(f"{seconds * 1e3:9.3f} ms × {runs:<3} {rate:6.1f} GFLOP/s  {kind:7} {label[:150]}", file=sys.stderr)
    if options.scaling and threads > 1:
        rows = sorted(here.scaling(threads, 40), reverse=True)
        for one, more, kind, label in rows:
            if one >= LEAST_MS and one < options.scaling * more:
                print(f"{one:9.3f} ms  {more:9.3f} ms  {one / more:5.2f}x  {kind:7} {label[:150]}", file=sys.stderr)
        print(f"{sum(r[0] for r in rows):9.3f} ms  {sum(r[1] for r in rows):9.3f} ms  all commands", file=sys.stderr)
    clock = time.thread_time if options.cpu_time else time.perf_counter
    mine, theirs = [], []
    for _ in range(4):
        theirs += block(peer.run, clock, options.seconds / 8)
        mine += block(here.run, clock, options.seconds / 8)
    pick = min if options.best else statistics.median
    return {"name": name, "off": off, "theirs": pick(theirs), "mine": pick(mine)}


# ---- all of them -----------------------------------------------------------------------------------------------------

def chosen(options):
    if options.only:
        return [n for n in ZOO if any(fnmatch.fnmatch(n, pattern) for pattern in options.only.split())]
    names = sorted(ZOO)
    if options.count == 0:
        return names
    return sorted(random.Random(options.seed).sample(names, min(options.count, len(names))))


def summary(rows):
    ratios = sorted((row["theirs"] / row["mine"], row["name"]) for row in rows)
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in ratios))
    worst = ", ".join(f"{name} {ratio:.2f}" for ratio, name in ratios[:5])
    below = sum(ratio < 1 for ratio, _ in ratios)
    return f"geometric mean {mean:.3f}; below 1.0: {below} of {len(rows)}; worst: {worst}"


def write_page(rows, options):
    page = ROOT / "docs" / "measured" / f"zoo-{datetime.date.today()}.md"
    how = "one thread, processor time" if options.cpu_time else f"{options.threads} threads"
    peer, numerics = PEERS[options.peer], "fast" if options.fast else "exact"
    lines = [f"# Networks of torchvision, timm and transformers beside {peer}, {datetime.date.today()}", "",
             f"Written by `bench/zoo.py --page`; random weights, {options.precision}, {numerics} numerics, {how}.",
             options.page, "", f"{summary(rows)[0].upper() + summary(rows)[1:]}.", "",
             f"| network | difference | {peer}, ms | Trunnion, ms | speed |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['name']} | {row['off']:.1e} | {row['theirs'] * 1e3:.2f} | {row['mine'] * 1e3:.2f} | "
                     f"{row['theirs'] / row['mine']:.2f}× |")
    page.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--best", action="store_true", help="the shortest run instead of the median")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--precision", choices=["f32", *QUANTIZED], default="f32")
    parser.add_argument("--peer", choices=list(PEERS), default="onnxruntime")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--profile", type=int, nargs="?", const=12, default=0)
    parser.add_argument("--scaling", type=float, nargs="?", const=1.6, default=0)
    parser.add_argument("--page", default="")
    parser.add_argument("--export", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.export and options.precision == "f32":
        return export(*options.export)
    if options.export:
        return quantize(*options.export, options.precision)
    if options.one:
        return print(json.dumps(measure(options.one, options)))
    rows, own = [], [w for w in sys.argv[1:]]
    print(f"seed {options.seed}", flush=True)
    for name in chosen(options):
        done = subprocess.run([sys.executable, __file__, *own, "--one", name], stdout=subprocess.PIPE, text=True,
                              stderr=None if options.profile or options.scaling else subprocess.PIPE)
        if done.returncode != 0:
            print(f"{name:24} skipped: {((done.stderr or '').strip().splitlines() or ['?'])[-1][:200]}", flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        print(f"{name:24} {row['off']:8.1e}  {PEERS[options.peer]} {row['theirs'] * 1e3:8.2f} ms  Trunnion "
              f"{row['mine'] * 1e3:8.2f} ms  {row['theirs'] / row['mine']:5.2f}x", flush=True)
    if rows:
        print(summary(rows))
    if rows and options.page:
        write_page(rows, options)


if __name__ == "__main__":
    try:
        import torch  # noqa: F401
    except ImportError:
        script = ROOT / "tools" / "peers" / "python.sh"
        python = subprocess.run([script, *PACKAGES], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        os.execv(python, [python, *sys.argv])
    main()
