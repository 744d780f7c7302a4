"""torch_train.py — trains in PyTorch what Trunnion trains, from the same weights on the same data, and compares the losses.

    torch_train.py --command build/trunnion [--steps 100] [--tolerance 1e-4] [digits-mlp digits-cnn policy]

The command writes its first weights (`train digits --steps 0 --save`) and the losses of its steps (`--log`); for the policy
bench/policy.c writes both. PyTorch starts from these weights, sees the same batches and has to lose the same, step by
step, within the tolerance (relative). Needs PyTorch and safetensors; not part of the checks.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {"F32": torch.float32, "I64": torch.int64, "F64": torch.float64}
BATCH, TEST_EVERY, MASK = 64, 5, (1 << 64) - 1


def read_safetensors(path):
    """{name: tensor} of a file: its format is a length, a JSON header, and bytes."""
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, t in header.items():
        begin, end = (8 + length + o for o in t["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
    return tensors


# ---- digits ------------------------------------------------------------------------------------------------------------


def split_mix(state):
    """One step of the generator of cli/random.c: (new state, 64 bits)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return state, z ^ z >> 31


def shuffled(state, n):
    items = list(range(n))
    for i in range(n - 1, 0, -1):
        state, bits = split_mix(state)
        k = bits % (i + 1)
        items[i], items[k] = items[k], items[i]
    return items


def batches(path, seed):
    """The batches of cli/train/train_digits.c, for ever."""
    rows = [list(map(int, line.split(","))) for line in pathlib.Path(path).read_text().splitlines()]
    rows = [row for i, row in enumerate(rows) if i % TEST_EVERY]
    x = torch.tensor([row[:-1] for row in rows], dtype=torch.float32) / 16
    y = torch.tensor([row[-1] for row in rows])
    epoch = 0
    while True:
        order = shuffled((seed * 0x10001 + epoch) & MASK, len(rows))
        for b in range(len(rows) // BATCH):
            chosen = torch.tensor(order[b * BATCH:(b + 1) * BATCH])
            yield x[chosen], y[chosen]
        epoch += 1


class MeanOfChannels(torch.nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def digits_network(model):
    nn = torch.nn
    if model == "mlp":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
                         nn.Conv2d(32, 64, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                         MeanOfChannels(), nn.Linear(64, 10))


def call(*words):
    subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)


def digits(options, model, folder):
    """(losses of PyTorch, losses of Trunnion)"""
    start, log = folder / "start.safetensors", folder / "log.jsonl"
    common = [options.command, "train", "digits", "--model", model, "--data", options.data, "--json"]
    call(*common, "--steps", 0, "--save", start)
    call(*common, "--steps", options.steps, "--log", log)
    ours = [json.loads(line)["loss"] for line in log.read_text().splitlines()]

    net = digits_network(model)
    prefix = "model.net."
    net.load_state_dict({k.removeprefix(prefix): v for k, v in read_safetensors(start).items() if k.startswith(prefix)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    theirs = []
    for _, (x, y) in zip(range(options.steps), batches(options.data, 0)):
        if model == "cnn":
            x = x.reshape(-1, 1, 8, 8)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    return theirs, ours


# ---- policy ------------------------------------------------------------------------------------------------------------


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.hidden = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.logits, self.value = nn.Linear(128, 8), nn.Linear(128, 1)

    def forward(self, x):
        h = self.hidden(x)
        return self.logits(h), self.value(h)


def policy(options, _, folder):
    """bench/policy.c writes weights, data and losses; the loss is cross-entropy plus mean squared error."""
    start = folder / "policy.safetensors"
    out = subprocess.run([options.policy_bench, "losses", str(start), str(options.steps)], check=True, capture_output=True,
                         text=True).stdout
    ours = [float(line) for line in out.split()]
    tensors = read_safetensors(start)
    net = Policy()
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    x, actions, returns = (tensors[f"data.{name}"] for name in ("observations", "actions", "returns"))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    theirs = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        logits, value = net(x)
        loss = torch.nn.functional.cross_entropy(logits, actions) + torch.nn.functional.mse_loss(value, returns)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    return theirs, ours


# ---- comparison --------------------------------------------------------------------------------------------------------

RUNS = {"digits-mlp": (digits, "mlp"), "digits-cnn": (digits, "cnn"), "policy": (policy, None)}


def compare(name, options):
    run, model = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = run(options, model, pathlib.Path(folder))
    if len(theirs) != len(ours):
        print(f"{name}: {len(ours)} losses instead of {len(theirs)}")
        return False
    worst = max(range(len(theirs)), key=lambda i: abs(ours[i] - theirs[i]) / abs(theirs[i]))
    error = abs(ours[worst] - theirs[worst]) / abs(theirs[worst])
    print(f"{name}: {len(theirs)} steps, loss {theirs[0]:.6f} → {theirs[-1]:.6f}; largest relative difference {error:.2e} at "
          f"step {worst + 1} ({ours[worst]:.8g} here, {theirs[worst]:.8g} in PyTorch)")
    return error <= options.tolerance


def main():
    parser = argparse.ArgumentParser(description="the same training in PyTorch, compared step by step")
    parser.add_argument("runs", nargs="*", choices=[*RUNS, []], default=[])
    parser.add_argument("--command", default=str(ROOT / "build" / "trunnion"))
    parser.add_argument("--policy-bench", default=str(ROOT / "build" / "bench_policy"))
    parser.add_argument("--data", default=str(pathlib.Path.home() / ".cache/trunnion/data/digits.csv"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [compare(name, options) for name in options.runs or RUNS]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
