"""torch_works.py — the works of `trunnion bench` in PyTorch, for bench/compare.py.

    torch_works.py serve THREADS             obeys lines of JSON on standard input, answers each with one
    torch_works.py peak WORK FILE THREADS    does a work some times, prints the peak of resident memory in bytes
    torch_works.py time WORK FOLDER SECONDS DEVICE THREADS    one work on "cpu" or "cuda": prints the answer as JSON

Each work starts from the numbers that `trunnion bench --save` wrote (WORK.start.safetensors) and shows that it gets the
same results (WORK.result.safetensors) before it is timed. It is written as PyTorch's own documentation would have it:
inference mode, fused optimisers, its encoder layer with the fast path.
"""

import json
import pathlib
import struct
import sys

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "tools")]
from text import minilm  # noqa: E402
from timing import peak_bytes, sample  # noqa: E402

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "I32": torch.int32}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # of the largest value
CHANGE = 2e-2  # of what a training step changes, in the 2-norm: Adam's first step divides by the gradient's size
PEAK_SECONDS = 0.5
device = "cpu"  # where the works run


def read(path):
    """{name: tensor} of a safetensors file: a length, a JSON header, bytes."""
    data = bytearray(pathlib.Path(path).read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length:]
    return {name: torch.frombuffer(body[slice(*t["data_offsets"])], dtype=DTYPES[t["dtype"]]).reshape(t["shape"]).clone().to(device)
            for name, t in header.items()}


def below(tensors, prefix):
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def inputs(start):
    return [start[f"input.{i}"] for i in range(len(below(start, "input.")))]


# ---- the works: each takes the numbers to start from; run() gives results, of which the first ones are compared ------


class Plain:
    """A function of the inputs, without gradients."""

    def __init__(self, start, function):
        self.x, self.function = inputs(start), function

    def run(self):
        with torch.inference_mode():
            return [self.function(*self.x)]


def chain(x, y):
    return torch.relu(torch.tanh(x * y + 1) * x)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.logits, self.value = nn.Linear(128, 8), nn.Linear(128, 1)

    def forward(self, x):
        h = self.hidden(x)
        return self.logits(h), self.value(h)


class Network:
    """A network on its inputs: evaluated, or trained by step()."""

    def __init__(self, start, net):
        self.net, self.x, self.turn = net.to(device), inputs(start), 0
        net.load_state_dict(below(start, "model."))

    def run(self):
        with torch.inference_mode():
            y = self.net(self.x[0])
        return list(y) if isinstance(y, tuple) else [y]


class PolicyForward(Network):
    def __init__(self, start):
        super().__init__(start, Policy().eval())


class PolicyTrain(Network):
    def __init__(self, start):
        super().__init__(start, Policy())
        self.batches = [self.x[i:i + 3] for i in range(0, len(self.x), 3)]
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=True)

    def run(self):
        x, actions, returns = self.batches[self.turn % len(self.batches)]
        self.turn += 1
        self.optimizer.zero_grad()
        logits, value = self.net(x)
        loss = F.cross_entropy(logits, actions) + F.mse_loss(value, returns)
        loss.backward()
        self.optimizer.step()
        return [loss.detach()]


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(4):
            self.add_module(f"block{i}", nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, activation="gelu",
                                                                    batch_first=True))

    def forward(self, x):
        for block in self.children():
            x = block(x)
        return x


class TransformerForward(Network):
    def __init__(self, start):
        super().__init__(start, Blocks().eval())


class TransformerTrain(Network):
    def __init__(self, start):
        super().__init__(start, Blocks())

    def run(self):
        self.net.zero_grad()
        y = self.net(self.x[0])
        loss = (y * y).mean()
        loss.backward()
        return [loss.detach()]


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        sizes, strides = (3, 32, 64, 64, 128, 128), (1, 2, 1, 2, 1)
        layers = []
        for cin, cout, stride in zip(sizes, sizes[1:], strides):
            layers += [nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
        self.net = nn.Sequential(*layers, Mean(), nn.Linear(128, 10))

    def forward(self, x):
        return self.net(x)


class ImagesForward(Network):
    def __init__(self, start):
        super().__init__(start, Images().eval())


class ImagesTrain(Network):
    def __init__(self, start):
        super().__init__(start, Images())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2, fused=True)

    def run(self):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.x[0]), self.x[1])
        loss.backward()
        self.optimizer.step()
        return [loss.detach()]


class RecurrentNet(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.net = kind(128, 128)

    def forward(self, x):
        return self.net(x)[0]


class RecurrentForward(Network):
    def __init__(self, start, kind):
        super().__init__(start, RecurrentNet(kind).eval())


class RecurrentTrain(TransformerTrain):
    def __init__(self, start, kind):
        Network.__init__(self, start, RecurrentNet(kind))


class AdamStep:
    """One fused step over many tensors that have their gradients."""

    def __init__(self, start):
        x = inputs(start)
        count = len(x) // 2
        self.params = [nn.Parameter(p) for p in x[:count]]
        for p, g in zip(self.params, x[count:]):
            p.grad = g
        self.optimizer = torch.optim.Adam(self.params, lr=1e-3, fused=True)

    def run(self):
        self.optimizer.step()
        return [p.detach() for p in self.params[::len(self.params) // 2]]


class Batches:
    """A loader over tensors in memory; the epoch's order is given, so that batches compare."""

    def __init__(self, start, workers):
        data, labels, order = inputs(start)
        self.loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, labels), batch_size=64,
                                                  sampler=order.tolist(), num_workers=workers, persistent_workers=workers > 0)
        self.at = iter(self.loader)

    def run(self):
        try:
            return next(self.at)
        except StopIteration:
            self.at = iter(self.loader)
            return next(self.at)


class Call(Plain):
    """One call, which is what fifteen recorded operations are measured by; they are checked as fifteen."""

    def __init__(self, start):
        super().__init__(start, torch.add)

    def whole(self):
        x, y = self.x
        z = x + y
        for i in range(1, 15):
            z = z * x if i % 2 else z + x
        return [z]


class Sentences:
    """all-MiniLM-L6-v2 on token ids: BERT with its norms behind, the mean of the tokens' vectors, made 1 long."""

    HEADS, EPS = 12, 1e-12

    def __init__(self, start):
        self.ids = inputs(start)[0].long()
        self.weights = read(minilm.path() / "model.safetensors")
        self.layers = 1 + max(int(name.split(".")[2]) for name in self.weights if name.startswith("encoder.layer."))

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], self.EPS)

    def layer(self, x, name):
        q, k, v = (self.linear(x, f"{name}.attention.self.{part}").unflatten(-1, (self.HEADS, -1)).transpose(1, 2)
                   for part in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm(x + self.linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = F.gelu(self.linear(x, f"{name}.intermediate.dense"))
        return self.norm(x + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def run(self):
        w = self.weights
        with torch.inference_mode():
            x = F.embedding(self.ids, w["embeddings.word_embeddings.weight"])
            x = x + w["embeddings.position_embeddings.weight"][:self.ids.shape[1]]
            x = self.norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
            for i in range(self.layers):
                x = self.layer(x, f"encoder.layer.{i}")
            return [F.normalize(x.mean(1))]


WORKS = {
    "gemm-": lambda start: Plain(start, torch.mm),
    "gemv-": lambda start: Plain(start, lambda a, x: torch.mv(a, x[:, 0])[:, None]),
    "record-15": Call,
    "add-": lambda start: Plain(start, torch.add),
    "chain5-": lambda start: Plain(start, chain),
    "attention-": lambda start: Plain(start, F.scaled_dot_product_attention),
    "conv3x3-": lambda start: Plain(start, lambda x, w: F.conv2d(x, w, padding=1)),
    "minilm-": Sentences,
    "policy-forward-": PolicyForward,
    "policy-train-": PolicyTrain,
    "transformer-forward-": TransformerForward,
    "transformer-train-": TransformerTrain,
    "lstm-forward-": lambda start: RecurrentForward(start, nn.LSTM),
    "lstm-train-": lambda start: RecurrentTrain(start, nn.LSTM),
    "gru-forward-": lambda start: RecurrentForward(start, nn.GRU),
    "gru-train-": lambda start: RecurrentTrain(start, nn.GRU),
    "adam-": AdamStep,
    "loader-64-ahead": lambda start: Batches(start, 1),
    "loader-64": lambda start: Batches(start, 0),
    "cnn-forward-": ImagesForward,
    "cnn-train-": ImagesTrain,
}


def make(work, start):
    return next(kind for prefix, kind in WORKS.items() if work.startswith(prefix))(start)


# ---- is it the same? --------------------------------------------------------------------------------------------------


def differs(got, want):
    """None, or what differs: by the largest value."""
    bound = TOLERANCE.get(want.dtype, 0) * want.float().abs().max().item()
    error = (got.float() - want.float()).abs().max().item()
    return None if error <= bound else f"{error:.2g}, where {bound:.2g} is allowed"


def changed_otherwise(got, want, before):
    change = (want - before).norm().item()
    error = (got - want).norm().item()
    return None if error <= CHANGE * change + 1e-12 else f"a change of {change:.2g} differs by {error:.2g}"


def check(work, folder):
    """What differs between a first run here and there; empty when nothing does."""
    start, want = (read(f"{folder}/{work}.{when}.safetensors") for when in ("start", "result"))
    it = make(work, start)
    wrong = [(f"result {i}", differs(y, want[f"result.{i}"])) for i, y in enumerate(getattr(it, "whole", it.run)())]
    net = getattr(it, "net", None)
    if net is not None and "-train-" in work:
        before, after = below(start, "model."), below(want, "model.")
        wrong += [(name, changed_otherwise(p.detach(), after[name], before[name])) for name, p in net.named_parameters()]
        gradients = below(want, "gradient.")
        wrong += [("gradient " + name, differs(p.grad, gradients[name])) for name, p in net.named_parameters()
                  if name in gradients]
    return [f"{name}: {text}" for name, text in wrong if text]


def serve():
    ready = {}
    print("ready", torch.__version__.split("+")[0], flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        work, folder = asked["work"], asked["folder"]
        if asked["do"] == "check":
            answer = {"wrong": check(work, folder)}
        else:
            if work not in ready:
                ready = {work: make(work, read(f"{folder}/{work}.start.safetensors"))}
            answer = sample(ready[work].run, asked["seconds"])
        print(json.dumps(answer), flush=True)


def time_once(work, folder, seconds):
    """The answer to one work on `device`: its results compared, then its time."""
    torch.backends.cudnn.allow_tf32 = False  # as ours by default; torch.mm's default is the same
    answer = {"version": torch.__version__, "wrong": check(work, folder)}
    run = make(work, read(f"{folder}/{work}.start.safetensors")).run
    print(json.dumps(answer | sample(run, seconds, torch.cuda.synchronize if device == "cuda" else lambda: None)))


def main():
    global device
    torch.set_num_threads(int(sys.argv[-1]))
    if sys.argv[1] == "serve":
        serve()
    elif sys.argv[1] == "time":
        device = sys.argv[5]
        time_once(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        work = make(sys.argv[2], read(sys.argv[3]))
        sample(work.run, PEAK_SECONDS)
        print(peak_bytes())


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
