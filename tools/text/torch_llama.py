"""torch_llama.py — a Llama-like GGUF model in PyTorch, in f32: the reference for perplexity and logits.

    torch_llama.py MODEL.gguf perplexity TEXT_FILE [--context 512]     (token ids come from llama.cpp)

Weights are decoded to f32 by the package `gguf`; the network is written out here, plainly, from the papers: RMS norm
before attention and feed-forward, grouped queries, SwiGLU, tied output. One thing belongs to the file format: GGUF
keeps the rows of q and k of a `llama` model in the order in which a rotary position turns neighbours (2i, 2i + 1);
`qwen2` and `qwen3` turn halves (i, i + d/2). Nothing is cached and nothing is fused: a window is computed whole. Needs
torch, numpy and gguf; not part of the checks.
"""

import argparse
import math
import pathlib
import sys

import gguf
import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # for the peers

HALVES = {"qwen2", "qwen3"}  # architectures whose rotary positions turn halves instead of neighbours


class Llama:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.facts = {name: field.contents() for name, field in reader.fields.items()
                      if not name.startswith("tokenizer.ggml.") and not name.startswith("GGUF.")}
        self.weights = {t.name: self.decode(t) for t in reader.tensors}
        arch = self.facts["general.architecture"]
        self.halves = arch in HALVES
        of = lambda name, default=None: self.facts.get(f"{arch}.{name}", default)  # noqa: E731
        self.layers, self.hidden = of("block_count"), of("embedding_length")
        self.heads = of("attention.head_count")
        self.kv_heads = of("attention.head_count_kv", self.heads)
        self.width = of("attention.key_length", self.hidden // self.heads)
        self.epsilon = of("attention.layer_norm_rms_epsilon")
        self.base, self.turned = of("rope.freq_base", 10000.0), of("rope.dimension_count", self.width)

    @staticmethod
    def decode(tensor):
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        return torch.from_numpy(values.reshape([int(n) for n in reversed(tensor.shape)]).copy())

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weights[name + ".weight"]

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def rotate(self, x):
        """x [n, heads, width]: turns each pair of the first `turned` elements by position · base^(-2i / turned)."""
        n, half = x.shape[0], self.turned // 2
        rates = self.base ** (-torch.arange(half, dtype=torch.float64) * 2 / self.turned)
        angle = torch.arange(n, dtype=torch.float64)[:, None, None] * rates
        cos, sin = angle.cos().float(), angle.sin().float()
        part, rest = x[..., :self.turned], x[..., self.turned:]
        if self.halves:
            a, b = part[..., :half], part[..., half:]
            part = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        else:
            a, b = part[..., 0::2], part[..., 1::2]
            part = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return torch.cat([part, rest], -1)

    def attention(self, x, block):
        n = x.shape[0]
        q = self.linear(x, block + "attn_q").view(n, self.heads, self.width)
        k = self.linear(x, block + "attn_k").view(n, self.kv_heads, self.width)
        v = self.linear(x, block + "attn_v").view(n, self.kv_heads, self.width)
        if block + "attn_q_norm.weight" in self.weights:
            q, k = self.norm(q, block + "attn_q_norm"), self.norm(k, block + "attn_k_norm")
        q, k = self.rotate(q), self.rotate(k)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.width)
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, -math.inf).softmax(-1)
        return self.linear(torch.einsum("hij,jhd->ihd", shares, v).reshape(n, -1), block + "attn_output")

    @torch.inference_mode()
    def logits(self, ids):
        """[len(ids), vocabulary]: the logits behind every token of ids."""
        x = self.weights["token_embd.weight"][torch.tensor(ids)]
        for i in range(self.layers):
            block = f"blk.{i}."
            x = x + self.attention(self.norm(x, block + "attn_norm"), block)
            h = self.norm(x, block + "ffn_norm")
            h = torch.nn.functional.silu(self.linear(h, block + "ffn_gate")) * self.linear(h, block + "ffn_up")
            x = x + self.linear(h, block + "ffn_down")
        x = self.norm(x, "output_norm")
        return self.linear(x, "output" if "output.weight" in self.weights else "token_embd")


def perplexity(logits_of, ids, context):
    """exp of the mean negative log-likelihood, over windows of `context` tokens that do not overlap. A window's first
    token is given, the others are predicted; a last window of one token has nothing to predict. Returns it with the
    number of predicted tokens."""
    total, count = 0.0, 0
    for start in range(0, len(ids), context):
        window = ids[start:start + context]
        if len(window) < 2:
            break
        logits = torch.as_tensor(logits_of(window))[:-1].double()
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(window[1:])[:, None])
        total -= float(chosen.sum())
        count += len(window) - 1
    return math.exp(total / count), count


def main():
    parser = argparse.ArgumentParser(description="a GGUF model in PyTorch, in f32")
    parser.add_argument("model")
    parser.add_argument("what", choices=["perplexity"])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--context", type=int, default=512)
    options = parser.parse_args()

    from peers.llama_cpp import Peer
    ids = Peer(options.model).tokenize(options.text.read_bytes())
    value, count = perplexity(Llama(options.model).logits, ids, options.context)
    print(f"perplexity {value:.4f} over {count} predicted tokens of {len(ids)}")


if __name__ == "__main__":
    main()
