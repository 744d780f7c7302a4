"""onnx_runtime_ops.py BUILD — operators that the onnx package has no cases of, beside ONNX Runtime: its own
(com.microsoft), those of ai.onnx.ml that take maps, and products of bytes with constants, of which it has few.

Each case is a model of one node, or a graph of onnx_runtime_graphs.py, with inputs out of a fixed seed. ONNX Runtime
computes what `trunnion onnx-test` has to yield. Where operands are constants of the model, it runs several times, with other inputs: what is made of constants
once must be theirs, and a replay must not take an input for one. Where bytes come out, ONNX Runtime rounds some
operators by tables or by other orders of the same product, so a byte may be one off; scales are powers of two, so that
most of them are not. Needs the packages onnx, onnxruntime and numpy.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import needs
import onnx_runtime_graphs

RUNS = 4  # of models that have constants
OPSETS = {"": 17, "com.microsoft": 1, "ai.onnx.ml": 2}
FLOATS = {"rtol": 2e-4, "atol": 2e-5}
ONE_OFF = {"rtol": 0, "atol": 1}


def declared():
    """[(name, operator, domain, inputs, attributes, tolerance, outputs)]; an input is an array, a map or None."""
    import numpy as np

    r = np.random.default_rng(7)
    f32 = lambda *shape: r.standard_normal(shape).astype("f4")
    u8 = lambda *shape: r.integers(0, 256, shape).astype("u1")
    i8 = lambda *shape: r.integers(-128, 128, shape).astype("i1")
    number = lambda v, t="f4": np.array(v, t)
    scale, zero = number(2.0**-5), number(117, "u1")
    byte = lambda *shape: [u8(*shape), scale, zero]
    signed = lambda *shape: [i8(*shape), scale, number(-9, "i1")]
    to, to_signed = [number(2.0**-4), number(101, "u1")], [number(2.0**-4), number(5, "i1")]
    few = {"N": 6, "K": 64, "bits": 4, "block_size": 32}
    ml, ms = "ai.onnx.ml", "com.microsoft"
    heads = {"num_heads": 2}
    mask = np.array([5, 3], "i4")

    ids = lambda n, most: r.integers(0, most, n).astype("i4")
    table = {"block_size": 16, "bits": 4, "gather_axis": 0, "quantize_axis": 1}
    pairs = {"num_heads": 2, "kv_num_heads": 1}

    def grouped(batch, now, past, total, lengths=None, after=()):
        """Two heads of queries and one of keys, 16 wide, behind a cache of `past` places."""
        before = [f32(batch, 1, past, 16), f32(batch, 1, past, 16)] if past else [None, None]
        ends = np.array(lengths or [total - 1] * batch, "i4")
        return [f32(batch, now, 32), f32(batch, now, 16), f32(batch, now, 16), *before, ends, np.array(total, "i4"),
                f32(12, 8), f32(12, 8), *after]

    def both_ways(gates, steps, hidden=6, batch=2, ends=None, peephole=False):
        """A recurrent net of two directions: X, W, R, B, lengths, initial states."""
        state = [f32(2, batch, hidden)] * (2 if gates == 4 else 1)
        return [f32(steps, batch, 5), f32(2, gates * hidden, 5), f32(2, gates * hidden, hidden),
                f32(2, 2 * gates * hidden), ends, *state, *([f32(2, 3 * hidden)] if peephole else [])]

    both = {"direction": "bidirectional", "hidden_size": 6}
    rows = [
        ("gru_both", "GRU", "", both_ways(3, 12), both, FLOATS),
        ("gru_both_linear", "GRU", "", both_ways(3, 9, batch=1), both | {"linear_before_reset": 1}, FLOATS),
        ("gru_both_few", "GRU", "", both_ways(3, 3), both, FLOATS),
        ("gru_both_ends", "GRU", "", both_ways(3, 12, ends=np.array([12, 7], "i4")), both, FLOATS),
        ("lstm_both", "LSTM", "", both_ways(4, 12, peephole=True), both, FLOATS),
        ("lstm_both_clip", "LSTM", "", both_ways(4, 8), both | {"clip": 0.5}, FLOATS),
        ("rnn_both", "RNN", "", both_ways(1, 20), both, FLOATS),
        ("rnn_both_apart", "RNN", "", both_ways(1, 20), both | {"activations": ["Tanh", "Relu"]}, FLOATS),
        ("qadd", "QLinearAdd", ms, byte(2, 3, 4) + byte(3, 4) + to, {}, ONE_OFF),
        ("qadd_signed", "QLinearAdd", ms, signed(2, 3, 4) + signed(4) + to_signed, {}, ONE_OFF),
        ("qmul", "QLinearMul", ms, byte(2, 3, 4) + byte(2, 3, 4) + to, {}, ONE_OFF),
        ("qsigmoid", "QLinearSigmoid", ms, byte(3, 17) + [number(2.0**-8), number(0, "u1")], {}, ONE_OFF),
        ("qleaky", "QLinearLeakyRelu", ms, signed(3, 17) + to_signed, {"alpha": 0.25}, ONE_OFF),
        ("qsoftmax", "QLinearSoftmax", ms, byte(3, 9) + [number(2.0**-8), number(0, "u1")], {"opset": 13, "axis": -1},
         ONE_OFF),
        ("qglobal", "QLinearGlobalAveragePool", ms, byte(1, 3, 5, 7) + to, {}, ONE_OFF),
        ("qaverage", "QLinearAveragePool", ms, byte(1, 3, 6, 8) + to, {"kernel_shape": [2, 3], "strides": [2, 2]},
         ONE_OFF),
        ("qconcat", "QLinearConcat", ms, to + byte(2, 3) + byte(2, 4), {"axis": 1}, ONE_OFF),
        ("conv_relu", "FusedConv", ms, [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4)], {"activation": "Relu"}, FLOATS),
        ("conv_leaky_sum", "FusedConv", ms, [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4), f32(1, 4, 6, 6)],
         {"activation": "LeakyRelu", "activation_params": [0.1]}, FLOATS),
        ("conv_clip", "FusedConv", ms, [f32(1, 3, 8, 8), f32(4, 3, 3, 3)],
         {"activation": "Clip", "activation_params": [0.0, 6.0]}, FLOATS),
        ("gemm_leaky", "FusedGemm", ms, [f32(5, 7), f32(6, 7), f32(6)],
         {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1}, FLOATS),
        ("dynamic_product", "DynamicQuantizeMatMul", ms, [f32(5, 16), i8(16, 6), f32(6), i8(6), f32(6)], {}, FLOATS),
        ("to_float", "MatMulIntegerToFloat", ms,
         [u8(5, 16), i8(16, 6), number(0.02), f32(6), number(120, "u1"), i8(6), f32(6)], {}, FLOATS),
        ("qattention", "QAttention", ms,
         [u8(2, 5, 8), i8(8, 24), f32(24), number(0.02), number(0.01), mask, number(120, "u1"), number(3, "i1")], heads,
         FLOATS),
        ("attention", "Attention", ms, [f32(2, 5, 8), f32(8, 24), f32(24), mask], heads, FLOATS),
        ("attention_causal", "Attention", ms, [f32(2, 5, 8), f32(8, 24), f32(24)], heads | {"unidirectional": 1},
         FLOATS),
        ("multi_head", "MultiHeadAttention", ms, [f32(2, 5, 8), f32(2, 7, 8), f32(2, 7, 8)], heads, FLOATS),
        ("few_bits", "MatMulNBits", ms, [f32(5, 64), u8(6, 2, 16), f32(12)], few, FLOATS),
        ("few_bits_zero", "MatMulNBits", ms, [f32(5, 64), u8(6, 2, 16), f32(12), u8(6)], few, FLOATS),
        ("gelu", "Gelu", ms, [f32(3, 9)], {}, FLOATS),
        ("hardmax_empty", "Hardmax", "", [f32(2, 3, 0)], {"axis": 2}, FLOATS),
        ("quick_gelu", "QuickGelu", ms, [f32(3, 9)], {}, FLOATS),
        ("fast_gelu", "FastGelu", ms, [f32(3, 9), f32(9)], {}, FLOATS),
        ("bias_gelu", "BiasGelu", ms, [f32(3, 9), f32(9)], {}, FLOATS),
        ("skip_norm", "SkipLayerNormalization", ms, [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)], {}, FLOATS),
        ("skip_simple", "SkipSimplifiedLayerNormalization", ms, [f32(2, 3, 8), f32(2, 3, 8), f32(8)], {}, FLOATS),
        ("fused_product", "FusedMatMul", ms, [f32(2, 5, 4), f32(2, 5, 6)], {"transA": 1, "alpha": 0.5}, FLOATS),
        ("rotary", "RotaryEmbedding", ms,
         [f32(1, 2, 3, 8), np.arange(3, dtype="i8").reshape(1, 3), f32(9, 4), f32(9, 4)], {}, FLOATS),
        ("grouped", "GroupQueryAttention", ms,
         [f32(1, 3, 16), f32(1, 3, 8), f32(1, 3, 8), None, None, np.array([2], "i4"), np.array(3, "i4")],
         {"num_heads": 2, "kv_num_heads": 1}, FLOATS),
        ("few_bits_order", "MatMulNBits", ms, [f32(5, 64), u8(6, 2, 16), f32(12), None, ids(64, most=2)], few, FLOATS),
        ("few_bits_bias", "MatMulNBits", ms, [f32(5, 64), u8(6, 2, 32), f32(12), None, None, f32(6)], few | {"bits": 8},
         FLOATS),
        ("gather_blocks", "GatherBlockQuantized", ms, [u8(9, 16), np.array([[1, 3, 8]], "i8"), f32(9, 2)], table, FLOATS),
        ("gather_blocks_zero", "GatherBlockQuantized", ms,
         [u8(9, 16), np.array([[1], [8]], "i8"), f32(9, 2), u8(9, 1)], table, FLOATS),
        ("gather_blocks_8", "GatherBlockQuantized", ms, [u8(9, 32), np.array([4, 0], "i8"), f32(9, 2)],
         table | {"bits": 8}, FLOATS),
        ("multi_head_past", "MultiHeadAttention", ms,
         [f32(2, 1, 8), f32(2, 1, 8), f32(2, 1, 8), None, None, None, f32(2, 2, 6, 4), f32(2, 2, 6, 4)], heads, FLOATS),
        ("multi_head_piece", "MultiHeadAttention", ms,
         [f32(2, 3, 8), f32(2, 3, 8), f32(2, 3, 8), None, None, f32(1, 1, 3, 9), f32(2, 2, 6, 4), f32(2, 2, 6, 4)],
         heads | {"unidirectional": 1}, FLOATS),
        ("rotary_offset", "RotaryEmbedding", ms, [f32(2, 2, 3, 8), np.array([4], "i8"), f32(9, 4), f32(9, 4)], {}, FLOATS),
        ("rotary_part", "RotaryEmbedding", ms,
         [f32(1, 3, 16), np.array([[2, 3, 4]], "i8"), f32(9, 2), f32(9, 2)],
         {"rotary_embedding_dim": 4, "num_heads": 2}, FLOATS),
        ("grouped_step", "GroupQueryAttention", ms, grouped(1, 1, 6, 7), pairs | {"do_rotary": 1}, FLOATS),
        ("grouped_neighbours", "GroupQueryAttention", ms, grouped(1, 3, 0, 3),
         pairs | {"do_rotary": 1, "rotary_interleaved": 1}, FLOATS),
        ("grouped_piece", "GroupQueryAttention", ms, grouped(1, 3, 6, 9), pairs | {"do_rotary": 1}, FLOATS),
        ("grouped_buffer", "GroupQueryAttention", ms, grouped(1, 1, 10, 5), pairs | {"do_rotary": 1}, FLOATS),
        ("grouped_batch", "GroupQueryAttention", ms, grouped(3, 1, 6, 7, lengths=[6, 2, 4]), pairs | {"do_rotary": 1},
         FLOATS),
        ("grouped_batch_window", "GroupQueryAttention", ms, grouped(2, 1, 9, 7, lengths=[6, 5]),
         pairs | {"do_rotary": 1, "local_window_size": 3}, FLOATS),
        ("grouped_window", "GroupQueryAttention", ms, grouped(1, 6, 0, 6), pairs | {"local_window_size": 2}, FLOATS),
        ("grouped_window_step", "GroupQueryAttention", ms, grouped(1, 1, 8, 9), pairs | {"local_window_size": 4}, FLOATS),
        ("grouped_softcap", "GroupQueryAttention", ms, grouped(1, 4, 0, 4), pairs | {"softcap": 2.0}, FLOATS),
        ("grouped_smooth", "GroupQueryAttention", ms, grouped(1, 2, 5, 7), pairs | {"smooth_softmax": 1}, FLOATS),
        ("grouped_sink", "GroupQueryAttention", ms, grouped(1, 3, 0, 3, after=[None, None, f32(2)]), pairs, FLOATS),
        ("grouped_bias", "GroupQueryAttention", ms, grouped(1, 3, 2, 5, after=[None, f32(1, 2, 3, 5)]),
         pairs | {"scale": 0.5}, FLOATS),
        ("grouped_places", "GroupQueryAttention", ms, grouped(1, 3, 0, 3, after=[np.array([[4, 5, 6]], "i8")]),
         pairs | {"do_rotary": 1}, FLOATS),
        ("grouped_packed", "GroupQueryAttention", ms,
         [f32(1, 3, 64), None, None, None, None, np.array([2], "i4"), np.array(3, "i4")], pairs, FLOATS),
        ("linear_attention", "LinearAttention", ms,
         [f32(1, 3, 16), f32(1, 3, 16), f32(1, 3, 16), f32(1, 2, 8, 8), -abs(f32(1, 3, 16)), abs(f32(1, 3, 2))],
         {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated_delta"}, FLOATS),
        ("causal_conv", "CausalConvWithState", ms, [f32(1, 6, 5), f32(6, 1, 4), f32(6), f32(1, 6, 3)],
         {"activation": "silu"}, FLOATS),
        ("resize_rounded", "Resize", "", [f32(1, 1, 5, 10), None, number([1, 1, 2.6, 1.3])], {"mode": "linear"}, FLOATS),
        ("quantize", "QuantizeLinear", ms, [f32(3, 5), scale, zero], {}, ONE_OFF),
        ("dequantize", "DequantizeLinear", ms, byte(3, 5), {}, FLOATS),
        ("stft_flat", "STFT", "", [f32(2, 40), number(4, "i8"), f32(16), number(16, "i8")], {"constants": (1, 2, 3)},
         FLOATS),
        ("dict_texts", "DictVectorizer", ml, [{"b": 2.5, "z": 9.0, "a": 1.5}], {"string_vocabulary": ["a", "b", "c"]},
         FLOATS),
        ("dict_numbers", "DictVectorizer", ml, [{3: 7.0, 9: 8.0}], {"int64_vocabulary": [1, 3, 9]}, FLOATS),
        ("cast_map_dense", "CastMap", ml, [{5: 1.5, 1: 2.5, 9: 3.5}], {"cast_to": "TO_FLOAT", "map_form": "DENSE"},
         FLOATS),
        ("cast_map_sparse", "CastMap", ml, [{5: 1.5, 1: 2.5}],
         {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 7}, FLOATS),
    ]
    rows += products_of_bytes(r, u8, i8, number)
    rows += constant_scales(u8, number)
    rows += networks_of_bytes(f32, u8, i8, number)
    rows += decided_on_the_host(r, number) + nearest_resizes(number)
    outputs = {"DynamicQuantizeLSTM": 3, "TreeEnsembleClassifier": 2, "GroupQueryAttention": 3, "LinearAttention": 2, "CausalConvWithState": 2, "GRU": 2, "LSTM": 3,
               "RNN": 2}
    several = {"multi_head_past": 3, "multi_head_piece": 3}
    return [row + (several.get(row[0], outputs.get(row[1], 1)),) for row in rows]


def products_of_bytes(r, u8, i8, number):
    """With constants for weights and zero points, all signs, small and large sums, windows and groups."""
    import numpy as np

    constant = lambda *indices: {"constants": indices}
    kinds = {"u": u8, "s": i8}
    zeros = {"u": number(117, "u1"), "s": number(-9, "i1")}
    exact = {"rtol": 0, "atol": 0}
    rows = []
    for a in "us":
        for b in "us":
            x, w = kinds[a](5, 300), kinds[b](300, 37)
            rows += [(f"bytes_{a}{b}", "MatMulInteger", "", [x, w], constant(1), exact),
                     (f"bytes_{a}{b}_zeros", "MatMulInteger", "", [x, w, zeros[a], zeros[b]], constant(1, 2, 3), exact),
                     (f"bytes_{a}{b}_columns", "MatMulInteger", "", [x, w, zeros[a], kinds[b](37)], constant(1, 3), exact),
                     (f"bytes_{a}{b}_vary", "MatMulInteger", "", [x, w, zeros[a], zeros[b]], constant(), exact),
                     (f"bytes_{a}{b}_batches", "MatMulInteger", "",
                      [kinds[a](2, 3, 4, 600), kinds[b](2, 3, 600, 5), zeros[a], zeros[b]], constant(2, 3), exact)]
    high = {"u": lambda *shape: np.full(shape, 255, "u1"), "s": lambda *shape: np.full(shape, -128, "i1")}
    large = {"u": lambda *shape: r.integers(200, 256, shape).astype("u1"),
             "s": lambda *shape: r.integers(90, 128, shape).astype("i1")}  # sums beyond what f32 counts by ones
    for b in "us":  # ONNX Runtime's convolutions of bytes take u8 images
        for name, weights in (("", kinds[b]), ("_high", high[b])):
            small = (weights(6, 40, 3, 3) // 8).astype(zeros[b].dtype) if not name else weights(6, 40, 3, 3)
            centre = number(128 if b == "u" else 0, zeros[b].dtype)
            same = {"pads": [1, 1, 1, 1]}
            image, images = u8(1, 40, 9, 7), u8(2, 40, 9, 7)
            each = [number(0.5), zeros["u"]]
            rows += [(f"conv_{b}_large{name}", "ConvInteger", "", [large["u"](1, 160, 6, 6), large[b](4, 160, 3, 3)],
                      constant(1), exact)] if not name else []
            rows += [(f"conv_{b}{name}", "ConvInteger", "", [images, small, zeros["u"], zeros[b]],
                      same | constant(1, 2, 3), exact),
                     (f"conv_{b}{name}_centre", "ConvInteger", "", [image, small, zeros["u"], centre],
                      {"strides": [2, 1], "dilations": [1, 2]} | constant(1, 2, 3), exact),
                     (f"conv_{b}{name}_groups", "ConvInteger", "", [u8(1, 80, 6, 5), small, zeros["u"], centre],
                      {"group": 2} | same | constant(1, 2, 3), exact),
                     (f"qconv_{b}{name}", "QLinearConv", "",
                      [image, *each, small, r.random(6).astype("f4") + number(0.5), np.full(6, centre), number(2.0**9), zeros["u"],
                       r.integers(-999, 999, 6).astype("i4")], same | constant(1, 2, 3, 4, 5, 6, 7, 8), ONE_OFF)]
    return rows


def constant_scales(u8, number):
    """Operators of com.microsoft on bytes with scales that are constants: halves, and one without a reciprocal."""
    exact, ms, zero = {"rtol": 0, "atol": 0}, "com.microsoft", number(117, "u1")
    of = lambda scale: [u8(2, 300), number(scale), zero]
    two = {"constants": (1, 2, 4, 5, 6, 7)}
    to = lambda scale: [number(scale), number(90, "u1")]
    least = 2.0**-130
    return [
        ("qadd_constant", "QLinearAdd", ms, of(0.1) + of(0.03) + to(0.2), two, ONE_OFF),
        ("qmul_constant", "QLinearMul", ms, of(0.1) + of(0.03) + to(0.2), two, ONE_OFF),
        ("qmul_least", "QLinearMul", ms, of(least) + of(2.0**-6) + to(least), two, ONE_OFF),
        ("qleaky_halves", "QLinearLeakyRelu", ms, of(0.15) + [number(0.3), zero],
         {"alpha": 0.5, "constants": (1, 2, 3, 4)}, exact),
        ("qconcat_halves", "QLinearConcat", ms, [number(0.3), zero] + of(0.15) + of(0.15),
         {"axis": 1, "constants": (0, 1, 3, 4, 6, 7)}, exact)]


def networks_of_bytes(f32, u8, i8, number):
    """LSTMs as quantize_dynamic writes them, and QGemm with all that may be left out."""
    import numpy as np

    ms, rows = "com.microsoft", []
    same = [number(0.02), number(120, "u1")]

    def lstm(kind, directions, steps, hidden=6, batch=1, width=5, columns=False, bias=True, states=False, ends=None):
        weights = [kind(directions, k, 4 * hidden) for k in (width, hidden)]
        shape = (directions, 4 * hidden) if columns else (directions,)
        zero = np.zeros(shape, "i1") if columns else kind(*shape) // 8  # ONNX Runtime takes no others a column
        parts = [abs(f32(*shape)) / 256 + number(0.002), zero]
        state = [f32(directions, batch, hidden)] * 2 if states else [None, None]
        return [f32(steps, batch, width), *weights, f32(directions, 8 * hidden) if bias else None, ends, *state, None,
                *parts, abs(f32(*shape)) / 256 + number(0.002), zero]

    def attributes(direction, constant):
        return {"direction": direction, "hidden_size": 6} | ({"constants": (1, 2, 8, 9, 10, 11)} if constant else {})

    for name, kind in (("u", u8), ("s", i8)):
        for columns in (False, True)[:1 + (name == "s")]:
            tail = name + "_columns" * columns
            rows += [(f"lstm_bytes_{tail}", "DynamicQuantizeLSTM", ms, lstm(kind, 1, 7, columns=columns),
                      attributes("forward", True), FLOATS),
                     (f"lstm_bytes_both_{tail}", "DynamicQuantizeLSTM", ms, lstm(kind, 2, 12, columns=columns, states=True),
                      attributes("bidirectional", True), FLOATS)]
    rows += [("lstm_bytes_vary", "DynamicQuantizeLSTM", ms, lstm(i8, 1, 5, bias=False), attributes("reverse", False), FLOATS),
             ("lstm_bytes_ends", "DynamicQuantizeLSTM", ms, lstm(i8, 1, 9, ends=np.array([4], "i4")),
              attributes("forward", True), FLOATS)]
    a, b = [u8(5, 40), *same], [i8(40, 7), number(0.01), number(-3, "i1")]
    turned = {"transB": 1, "constants": (3, 4, 5)}
    result = [number(2.0), number(90, "u1")]
    exact, of_columns = {"rtol": 0, "atol": 0}, lambda n: [abs(f32(n)) / 64, np.zeros(n, "i1")]
    for n in (3, 64, 133):  # rounded where they are summed
        scales = {"one": [number(0.01), number(0, "i1")], "columns": of_columns(n)}
        for kind, of in scales.items():
            bias = (i8(n) * 100).astype("i4")
            rows += [(f"gemm_bytes_kept_{kind}_{n}", "QGemm", ms, [*a, i8(40, n), *of, bias, *result],
                      {"constants": tuple(range(1, 9))}, exact),
                     (f"gemm_bytes_turned_{kind}_{n}", "QGemm", ms, [u8(90, 300), *same, i8(n, 300), *of, bias, *result],
                      {"transB": 1, "constants": tuple(range(1, 9))}, exact),
                     (f"matmul_bytes_kept_{kind}_{n}", "QLinearMatMul", "", [u8(2, 9, 72), *same, i8(72, n), *of, *result],
                      {"constants": tuple(range(1, 8))}, exact)]
    rows += [("gemm_bytes", "QGemm", ms, [*a, *b], {}, FLOATS),
             ("gemm_bytes_bias", "QGemm", ms, [*a, *b, (i8(7) * 100).astype("i4")], {"alpha": 0.5}, FLOATS),
             ("gemm_bytes_rounded", "QGemm", ms, [*a, *b, None, *result], {}, ONE_OFF),
             ("gemm_bytes_turned", "QGemm", ms, [*a, i8(7, 40), *b[1:], i8(7).astype("i4"), *result], turned, ONE_OFF),
             ("gemm_bytes_both", "QGemm", ms, [u8(40, 5), *same, u8(7, 40), *same, None, number(2.0), number(117, "u1")],
              {"transA": 1, "transB": 1}, ONE_OFF),
             ("gemm_bytes_columns", "QGemm", ms, [*a, i8(40, 7), abs(f32(7)) / 64, i8(7)], {"constants": (3, 4, 5)}, FLOATS)]
    return rows


def nearest_resizes(number):
    """Places that fall on a tie, or beside one, are computed in f64 from the f32 scale, as in the onnx package, whose
    reference implementation decides here: ONNX Runtime computes them in f32 and takes the neighbor in some cases."""
    import numpy as np

    return [(f"resize_{scale}_{rounding}_{placing}", "Resize", "", [np.arange(10, dtype="f4"), None, number([scale])],
             {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": placing, "constants": (2,),
              "reference": True}, {"rtol": 0, "atol": 0})
            for scale in (0.6, 1.7) for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
            for placing in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")]


def decided_on_the_host(r, number):
    """What a row's function computes itself: boxes that hide others, forests, places of what is not zero."""
    import numpy as np

    exact, rows = {"rtol": 0, "atol": 0}, []

    def boxes(batches, count, centred):
        corner, size = r.random((batches, count, 2)) * 60, r.random((batches, count, 2)) * 20 + 1
        corner[:, ::7] = corner[:, 3:4]  # many in one place
        size[:, ::11] = 0
        turned = np.where(r.random((batches, count, 2)) < 0.2, -1, 1)
        return np.concatenate([corner, size if centred else corner + size * turned], 2).astype("f4")

    for name, batches, classes, count, most, overlap, least in (
            ("few", 1, 1, 9, 3, 0.5, None), ("all", 2, 3, 77, 1000, 0.3, 0.25), ("most", 1, 2, 400, 50, 0.7, 0.0),
            ("none", 1, 1, 30, 0, 0.5, 0.5), ("any_overlap", 1, 2, 40, 40, 1.0, 0.1), ("no_overlap", 2, 2, 90, 90, 0.0, 0.1)):
        for centred in (0, 1):
            scores = np.round(r.random((batches, classes, count)), 2).astype("f4")  # some are equal
            given = [boxes(batches, count, centred), scores, number(most, "i8"), number(overlap)]
            rows.append((f"nms_{name}_{centred}", "NonMaxSuppression", "", given + ([number(least)] if least is not None else []),
                         {"center_point_box": centred}, exact))
    for name, x in (("line", r.random(70000) < 0.01), ("plane", r.standard_normal((300, 70)).astype("f4")),
                    ("space", r.integers(0, 2, (5, 7, 3, 2))), ("nothing", np.zeros((4, 5), "f4")), ("empty", np.zeros((0, 3), "f4"))):
        rows.append((f"non_zero_{name}", "NonZero", "", [x], {}, exact))
    for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "mixed"):
        for count in (1, 5, 300):
            rows.append(forest(r, f"forest_{mode.lower()}_{count}", mode, count, classes=3 if count == 5 else 0))
    return rows


def forest(r, name, mode, count, classes):
    """Trees that are not of one depth; some features are missing, some equal to what they are compared with."""
    import numpy as np

    keys = ("treeids", "nodeids", "featureids", "values", "truenodeids", "falsenodeids", "modes", "missing_value_tracks_true")
    nodes, votes, kinds = {k: [] for k in keys}, [], ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")

    def grow(tree, depth):
        at = len(nodes["treeids"])
        leaf = depth == 6 or depth > 1 and r.random() < 0.3
        kind = kinds[int(r.integers(6))] if mode == "mixed" else mode
        values = (tree, at, int(r.integers(5)), int(r.integers(-4, 5)) / 4, 0, 0, "LEAF" if leaf else "BRANCH_" + kind,
                  int(r.random() < 0.5))
        for key, value in zip(keys, values):
            nodes[key].append(value)
        if leaf:
            votes.extend((tree, at, k, int(r.integers(-9, 9)) / 8) for k in range(max(classes, 1)))
        else:
            nodes["truenodeids"][at], nodes["falsenodeids"][at] = grow(tree, depth + 1), grow(tree, depth + 1)
        return at

    for tree in range(11):
        grow(tree, 0)
    x = (r.integers(-5, 6, (count, 5)) / 4).astype("f4")
    x[r.random(x.shape) < 0.1] = np.nan
    prefix = "class" if classes else "target"
    ends = ("treeids", "nodeids", "ids", "weights")
    attributes = {"nodes_" + k: v for k, v in nodes.items()} | {f"{prefix}_{e}": v for e, v in zip(ends, map(list, zip(*votes)))}
    attributes |= {"classlabels_int64s": list(range(classes))} if classes else {"n_targets": 1}
    return (name, "TreeEnsemble" + ("Classifier" if classes else "Regressor"), "ai.onnx.ml", [x], attributes | {"constants": ()},
            {"rtol": 1e-6, "atol": 1e-6})


def value_info(name, value):
    """What a model says of an input."""
    from onnx import TensorProto as T, helper

    if not isinstance(value, dict):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    of = helper.make_tensor_type_proto(T.FLOAT, [])
    key = T.STRING if isinstance(next(iter(value)), str) else T.INT64
    return helper.make_value_info(name, helper.make_map_type_proto(key, of))


def model_of(row):
    from onnx import TypeProto, ValueInfoProto, helper, numpy_helper

    name, operator, domain, inputs, attributes, _, outputs = row
    constants = attributes.get("constants", ())
    attributes = {k: v for k, v in attributes.items() if k not in ("constants", "reference")}
    weights = [numpy_helper.from_array(inputs[i], f"x{i}") for i in constants]
    given = {f"x{i}": v for i, v in enumerate(inputs) if v is not None and i not in constants}
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
    out = [ValueInfoProto(name=f"y{k}", type=TypeProto()) for k in range(outputs)]  # ONNX Runtime infers them
    node = helper.make_node(operator, names, [o.name for o in out], domain=domain, **attributes)
    graph = helper.make_graph([node], name, [value_info(n, v) for n, v in given.items()], out, weights)
    opsets = [helper.make_opsetid(d, v) for d, v in OPSETS.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


def map_message(value, name):
    """A map with the values as scalars; the package cannot write one of texts."""
    import numpy
    from onnx import MapProto, TensorProto, numpy_helper

    numbers = [numpy_helper.from_array(numpy.float32(v)) for v in value.values()]
    message = MapProto(name=name, values=numpy_helper.from_list([]))
    message.values.elem_type = 1  # SequenceProto.TENSOR
    message.values.tensor_values.extend(numbers)
    texts = isinstance(next(iter(value)), str)
    message.key_type = TensorProto.STRING if texts else TensorProto.INT64
    (message.string_keys if texts else message.keys).extend([k.encode() if texts else k for k in value])
    return message


def write_case(row, folder):
    """The case with what ONNX Runtime computes."""
    import numpy
    import onnxruntime
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    model, given = row[1](row[0]) if callable(row[1]) else model_of(row)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # see needs.sums_saturate
    options.log_severity_level = 3
    if row[0].startswith(onnx_runtime_graphs.UNMAPPED):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not callable(row[1]) and "reference" in row[4]:
        session = ReferenceEvaluator(model)
    else:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    case = folder / row[0]
    case.mkdir()
    (case / "model.onnx").write_bytes(model.SerializeToString())
    (case / "data.json").write_text(json.dumps(row[2] if callable(row[1]) else row[5]))
    for run in range(RUNS if callable(row[1]) or "constants" in row[4] else 1):
        data = case / f"test_data_set_{run}"
        data.mkdir()
        if run:
            given = {name: numpy.roll(value, 3 * run) for name, value in given.items()}
        for k, (name, value) in enumerate(given.items()):
            message = map_message(value, name) if isinstance(value, dict) else numpy_helper.from_array(value, name)
            (data / f"input_{k}.pb").write_bytes(message.SerializeToString())
        for k, value in enumerate(session.run(None, given)):
            (data / f"output_{k}.pb").write_bytes(numpy_helper.from_array(value, f"y{k}").SerializeToString())


# Cases whose operators of ONNX Runtime have no precise mode.
SATURATING = ("bytes_us", "dynamic_product", "gemm_bytes", "lstm_bytes", "qattention", "to_float")


def main():
    if needs.lacks("numpy", "onnx", "onnxruntime"):
        return 0
    import onnxruntime
    unmade, skipped, saturate = [], 0, needs.sums_saturate()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for row in declared() + onnx_runtime_graphs.declared():
            if saturate and row[0].startswith(SATURATING):
                print(f"skipped: {row[0]}: ONNX Runtime's sums of bytes saturate on this processor")
                skipped += 1
                continue
            try:
                write_case(row, folder)
            except Exception as fault:  # of either package
                unmade.append(f"{row[0]}: ONNX Runtime: {str(fault)[:300]}")
        command = [str(pathlib.Path(sys.argv[1]) / "trunnion"), "onnx-test", "--json", str(folder)]
        told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    bad = [f"{c['name']}: {c['result']}: {c.get('why')}" for c in told["cases"] if c["result"] != "passed"]
    for line in unmade + bad:
        print(line)
    print(f"ran on: onnxruntime {onnxruntime.__version__}")
    print(f"{told['passed']} passed, {len(unmade) + len(bad)} failed, {skipped} skipped")
    return 1 if unmade or bad else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
