"""rows.py — the rows of bench/compare.py: which peers stand beside a work, and what it is to reach.

A target is a ratio (the named peer's time by ours, the strongest peer's for "best"), a part of the limit that
`trunnion bench` probes in the same run, an absolute figure, or several of these. A row below 1.0 is lost, whatever its
target; but for fifteen recorded operations, beside which one call of PyTorch's stands.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    peers: tuple = ("PyTorch",)
    ratio: float = 1.0     # by the strongest peer
    lost: float = 1.0      # a ratio below this is behind it
    limit: float = 0.0     # part of the limit
    most: float = 0.0      # seconds or bytes
    share: float = 0.0     # of the peer's memory, at most
    tokens: int = 0        # a run's tokens: shown as a rate


BLAS = ("PyTorch", "OpenBLAS", "oneDNN")

ROWS = [
    Row("gemm-f32-256", BLAS, limit=0.78),
    Row("gemm-f32-512", BLAS, limit=0.88),
    Row("gemm-f32-1024", BLAS, limit=0.90),
    Row("gemm-f32-2048", BLAS, limit=0.90),
    Row("gemm-bf16-1024"),
    Row("gemv-4096", ("PyTorch", "OpenBLAS"), limit=0.9),
    Row("add-16", most=0.3e-6),
    Row("record-15", ratio=0.67, lost=0.67),  # fifteen operations in at most one and a half of its calls
    Row("add-64k", ratio=1.2),
    Row("chain5-16m", ratio=15),
    Row("policy-forward-1", ratio=8),
    Row("policy-forward-64", ratio=6),
    Row("policy-forward-4096", ratio=2.2),
    Row("policy-train-1", ratio=8),
    Row("policy-train-64", ratio=5),
    Row("policy-train-4096", ratio=2),
    Row("transformer-forward-1x16", ratio=2),
    Row("transformer-forward-8x128", ratio=2.2),
    Row("transformer-forward-2x512", ratio=2.2),
    Row("transformer-train-1x16", ratio=2.2),
    Row("transformer-train-8x128", ratio=2.2),
    Row("transformer-train-2x512", ratio=2.2),
    Row("cnn-forward-32", ratio=1.5),
    Row("cnn-train-32", ratio=1.5),
    Row("cnn-forward-32-fast", ratio=1.5),  # Winograd's algorithm, here and below
    Row("cnn-train-32-fast", ratio=1.5),
    Row("lstm-forward-800", ratio=1.5),
    Row("lstm-train-800", ratio=1.5),
    Row("gru-forward-800", ratio=1.5),
    Row("gru-train-800", ratio=1.5),
    Row("adam-200x1k", ratio=1.5),
    Row("adam-200x64k", ratio=1.5),
    Row("loader-64", ratio=1.5),
    Row("loader-64-ahead", ratio=1.5),
    Row("conv3x3-64-56"),
    Row("conv3x3-64-56-fast", ratio=1.1),
    Row("minilm-1", ratio=5),
    Row("minilm-32", ratio=3),
    Row("llm-prompt-512", ("llama.cpp",), ratio=6, tokens=512),
    Row("llm-generate-128", ("llama.cpp",), ratio=1.8, limit=0.85, tokens=128),
    Row("peak-memory-policy-train-4096", share=0.5),
    Row("peak-memory-transformer-train-8x128", share=0.5),
    Row("peak-memory-cnn-train-32", share=0.5),
    Row("start", most=50e-3),
    Row("size", most=4e6),
]
