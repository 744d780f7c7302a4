"""torch_layers.py — tests/golden/layers.safetensors: PyTorch's layers with their weights, one input each, what comes out, and
the gradient of the sum of squares of it with respect to the input.

Names are those of a module tree, so Trunnion reads the weights with tn_module_load; "input.", "output." and "gradient."
stand before a layer's name. Run it by hand where PyTorch is; the file it writes is committed.
"""

import json
import pathlib
import struct
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = {torch.float32: "F32", torch.int64: "I64"}


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, t in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        raw = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    torch.manual_seed(11)
    nn = torch.nn
    encoder = {"nhead": 3, "dim_feedforward": 20, "dropout": 0.0, "activation": "gelu", "batch_first": True}
    layers = {
        "linear": (nn.Linear(5, 7), torch.randn(2, 3, 5)),
        "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), torch.randn(2, 4, 7, 6)),
        "batch_norm2d": (nn.BatchNorm2d(3), torch.randn(4, 3, 5, 2) * 2 + 1),
        "layer_norm": (nn.LayerNorm(9), torch.randn(4, 9)),
        "embedding": (nn.Embedding(10, 4), torch.tensor([[1, 9, 1], [0, 3, 3]])),
        "attention": (nn.MultiheadAttention(12, 3, batch_first=True), torch.randn(2, 5, 12)),
        "encoder": (nn.TransformerEncoderLayer(12, **encoder), torch.randn(2, 5, 12)),
        "encoder_first": (nn.TransformerEncoderLayer(12, norm_first=True, **encoder), torch.randn(2, 5, 12)),
        "lstm_cell": (nn.LSTMCell(5, 6), torch.randn(3, 5)),
        "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), torch.randn(2, 4, 9)),
        "conv3d": (nn.Conv3d(2, 4, 2, padding=1, groups=2), torch.randn(2, 2, 3, 4, 3)),
        "batch_norm1d": (nn.BatchNorm1d(5), torch.randn(6, 5) * 2 + 1),
        "batch_norm3d": (nn.BatchNorm3d(2), torch.randn(2, 2, 3, 2, 2) * 2 + 1),
        "group_norm": (nn.GroupNorm(2, 6), torch.randn(3, 6, 4)),
        "rms_norm": (nn.RMSNorm(7, 1e-6), torch.randn(4, 7)),
    }
    tensors = {}
    for name, (layer, x) in layers.items():
        for p in layer.parameters():
            if p.dim() == 1:  # norms start with ones and zeros, which would prove little
                nn.init.uniform_(p, -1, 1)
        tensors |= {f"{name}.{k}": v.detach().clone() for k, v in layer.state_dict().items()}
        tensors["input." + name] = x
        x = x.clone().requires_grad_(x.is_floating_point())
        if name == "attention":
            y = layer(x, x, x, need_weights=False)[0]
        elif name == "lstm_cell":
            h, c = torch.randn(3, 6), torch.randn(3, 6)
            tensors |= {"input.lstm_h": h, "input.lstm_c": c}
            y = torch.cat(layer(x, (h, c)), 1)
        else:
            y = layer(x)
        (y * y).sum().backward()
        tensors["output." + name] = y.detach()
        if x.grad is not None:
            tensors["gradient." + name] = x.grad
    norm = layers["batch_norm2d"][0]
    tensors["output.running_mean"], tensors["output.running_var"] = norm.running_mean, norm.running_var
    tensors["output.batch_norm2d_evaluated"] = norm.eval()(layers["batch_norm2d"][1]).detach()
    version = torch.__version__.split("+")[0]
    write_safetensors(ROOT / "tests" / "golden" / "layers.safetensors", tensors,
                      {"written_by": f"tools/pytorch/torch_layers.py with PyTorch {version}"})


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
