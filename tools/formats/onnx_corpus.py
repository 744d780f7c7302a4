"""onnx_corpus.py — writes the small models of tests/corpus/onnx: for tests/formats/test_onnx.c, and for the fuzzer to begin with.

Needs the onnx package. One model a feature of the reader or the executor; test_onnx.c knows their numbers.
"""

import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "corpus" / "onnx"
F = T.FLOAT
info = h.make_tensor_value_info
node = h.make_node


def write(name, message):
    (FOLDER / name).write_bytes(message.SerializeToString())


def model(name, nodes, inputs, outputs, opset=21, functions=(), imports=(), checked=True, **parts):
    graph = h.make_graph(nodes, name, inputs, outputs, **parts)
    opsets = [h.make_opsetid("", opset), *imports]
    made = h.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="", functions=list(functions))
    if checked:
        onnx.checker.check_model(made)
    write(name + ".onnx", made)


def mlp():
    weights = nh.from_array(np.arange(6, dtype="f4").reshape(3, 2) / 4 - 0.5, "w")
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["s"]), node("Relu", ["s"], ["y"], name="last")]
    model("mlp", nodes, [info("x", F, ["batch", 3])], [info("y", F, ["batch", 2])],
          initializer=[weights, h.make_tensor("b", F, [2], [0.5, -1])])


def branch():
    def side(name, op, out):
        return h.make_graph([node(op, ["x", "k"], [out])], name, [], [info(out, F, None)])

    nodes = [node("ReduceSum", ["x"], ["t"], keepdims=0), node("Greater", ["t", "zero"], ["c"]),
             node("If", ["c"], ["y"], then_branch=side("a", "Add", "ya"), else_branch=side("b", "Mul", "yb"))]
    model("if", nodes, [info("x", F, ["n"])], [info("y", F, ["n"])],
          initializer=[h.make_tensor("k", F, [], [2.0]), h.make_tensor("zero", F, [], [0.0])])


def loop():
    body = h.make_graph(
        [node("Add", ["v", "x"], ["v2"]), node("Identity", ["c"], ["c2"]), node("Mul", ["v2", "v2"], ["sq"])], "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("v", F, ["n"])],
        [info("c2", T.BOOL, []), info("v2", F, ["n"]), info("sq", F, ["n"])])
    model("loop", [node("Loop", ["steps", "", "x"], ["last", "all"], body=body)], [info("x", F, ["n"])],
          [info("last", F, ["n"]), info("all", F, ["s", "n"])], initializer=[h.make_tensor("steps", T.INT64, [], [3])])


def scan():
    body = h.make_graph([node("Add", ["a", "e"], ["a2"]), node("Identity", ["a2"], ["o"])], "body",
                        [info("a", F, [2]), info("e", F, [2])], [info("a2", F, [2]), info("o", F, [2])])
    model("scan", [node("Scan", ["a0", "x"], ["a1", "ys"], body=body, num_scan_inputs=1, scan_output_directions=[1])],
          [info("a0", F, [2]), info("x", F, ["t", 2])], [info("a1", F, [2]), info("ys", F, ["t", 2])])


def function():
    scale = h.make_function("my", "Scale", ["p"], ["q"], [node("Constant", [], ["k"]), node("Mul", ["p", "k"], ["q"])],
                            [h.make_opsetid("", 21)], ["factor"])
    scale.node[0].attribute.append(onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=1))
    nodes = [node("Scale", ["x"], ["u"], domain="my", factor=3.0), node("Scale", ["u"], ["y"], domain="my", factor=0.5)]
    model("function", nodes, [info("x", F, ["n"])], [info("y", F, ["n"])], functions=[scale],
          imports=[h.make_opsetid("my", 1)])


def sparse():
    few = h.make_sparse_tensor(h.make_tensor("sp", F, [2], [1.5, -2]), h.make_tensor("i", T.INT64, [2], [1, 5]), [2, 3])
    nodes = [node("Add", ["x", "sp"], ["y"]), node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["n"]),
             node("Reshape", ["x", "m1"], ["flat"]), node("Reshape", ["one", "m1"], ["k"])]
    model("sparse", nodes, [info("x", F, [2, 3])],
          [info("y", F, [2, 3]), info("n", T.INT64, []), info("flat", F, [6]), info("k", T.INT64, [1])],
          initializer=[h.make_tensor("one", T.INT64, [], [1]), h.make_tensor("m1", T.INT64, [1], [-1])],
          sparse_initializer=[few])


def unsorted():
    """Nodes from the last to the first; a branch reads what a later node makes, and hides the name of another."""
    side = lambda name, factor: h.make_graph(
        [node("Mul", ["twice", factor], ["hidden"]), node("Add", ["hidden", "x"], ["s" + name])], name, [],
        [info("s" + name, F, None)])
    nodes = [node("Add", ["chosen", "hidden"], ["y"]),
             node("If", ["c"], ["chosen"], then_branch=side("a", "k"), else_branch=side("b", "x")),
             node("Relu", ["chosen"], ["hidden"]), node("Add", ["x", "x"], ["twice"]),
             node("Greater", ["t", "k"], ["c"]), node("ReduceSum", ["x"], ["t"], keepdims=0)]
    model("unsorted", nodes, [info("x", F, ["n"])], [info("y", F, ["n"])], checked=False,
          initializer=[h.make_tensor("k", F, [], [2.0])])
    cycle = [node("Relu", ["x"], ["p"], name="begin"), node("Add", ["p", "b"], ["a"], name="first"),
             node("Mul", ["a", "x"], ["b"], name="second"), node("Neg", ["b"], ["y"], name="end")]
    model("cycle", cycle, [info("x", F, ["n"])], [info("y", F, ["n"])], checked=False)


def pool():
    """A window that fits into the image with the padding behind it alone, as TensorFlow's "same" has it."""
    nodes = [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")]
    ends = [info("x", F, [1, 1, "h", "w"])], [info("y", F, [1, 1, "down", "across"])]
    model("pool", nodes, *ends)
    model("pool_ceil", [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], *ends)


def clip():
    """Bounds as attributes, as before opset 11, and as inputs, of which one is absent."""
    ends = [info("x", F, ["n"])], [info("y", F, ["n"])]
    model("clip", [node("Clip", ["x"], ["y"], min=-1.0, max=6.0)], *ends, opset=6)
    model("clip_above", [node("Clip", ["x", "", "most"], ["y"])], *ends, initializer=[h.make_tensor("most", F, [], [6])])


def external():
    weights = onnx.TensorProto(name="w", data_type=F, dims=[2], data_location=1)
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "8")):
        weights.external_data.add(key=key, value=value)
    model("external", [node("Add", ["x", "w"], ["y"])], [info("x", F, [2])], [info("y", F, [2])], checked=False,
          initializer=[weights])


def two():
    model("two", [node("Sub", ["a", "b"], ["y"])], [info("a", F, ["n"]), info("b", F, ["n"])], [info("y", F, ["n"])])


def told():
    nodes = [node("Range", ["zero", "limit", "one"], ["y"]), node("Size", ["x"], ["s"]),
             node("Cast", ["s"], ["n"], to=F)]
    model("told", nodes, [info("x", F, ["k"]), info("limit", F, [])], [info("y", F, ["r"]), info("n", F, [])],
          initializer=[h.make_tensor("zero", F, [], [0.0]), h.make_tensor("one", F, [], [1.0])])


def few_bits():
    """Weights of 4 bits: byte i of row r holds the numbers r + 2 i and 7 − i, 8 is subtracted, a half scales them."""
    packed = [((r + 2 * i) & 15) | ((7 - i) & 15) << 4 for r in range(3) for i in range(8)]
    rows = [h.make_tensor("b", T.UINT8, [3, 1, 8], packed), h.make_tensor("scales", F, [3], [0.5, 0.25, 1.0])]
    model("few_bits", [node("MatMulNBits", ["x", "b", "scales"], ["y"], N=3, K=16, bits=4, block_size=16,
                            domain="com.microsoft")], [info("x", F, ["n", 16])], [info("y", F, ["n", 3])],
          imports=[h.make_opsetid("com.microsoft", 1)], checked=False, initializer=rows)


def chosen():
    """Rows that a product with comparisons takes: of finite numbers, and of others."""
    ramp = h.make_tensor("ramp", T.INT32, [1, 4], [0, 1, 2, 3])
    tables = [h.make_tensor(name, F, [4, 2], [1, 2, -0.0, 4, 5, last, 7, 8]) for name, last in (("w", 6), ("v", np.inf))]
    nodes = [node("Equal", ["i", "ramp"], ["same"]), node("Cast", ["same"], ["e"], to=F), node("MatMul", ["e", "w"], ["y"]),
             node("MatMul", ["e", "v"], ["z"])]
    model("chosen", nodes, [info("i", T.INT32, ["n", 1])], [info("y", F, ["n", 2]), info("z", F, ["n", 2])],
          initializer=[ramp, *tables])


def unfit():
    """Models that the checker would not let pass, and that fail when they are run."""
    steps = h.make_tensor("steps", T.INT64, [], [3])
    body = h.make_graph([node("Identity", ["i"], ["o"])], "body",
                        [info("i", T.INT64, []), info("c", T.BOOL, []), info("v", F, ["n"])],
                        [info("c", T.BOOL, []), info("v", F, ["n"]), info("v", F, ["n"])])
    model("unfit_loop", [node("Loop", ["steps", "", ""], ["last", "all"], body=body)], [info("x", F, ["n"])],
          [info("all", F, ["s", "n"])], checked=False, initializer=[steps])
    one = h.make_graph([node("Neg", ["e"], ["o"])], "body", [info("e", F, ["n"])], [info("o", F, ["n"])])
    model("unfit_map", [node("SequenceConstruct", ["x"], ["l"]), node("SequenceMap", ["l"], ["p", "q"], body=one),
                        node("SequenceAt", ["q", "zero"], ["y"])], [info("x", F, ["n"])], [info("y", F, ["n"])],
          checked=False, initializer=[h.make_tensor("zero", T.INT64, [], [0])])
    constant = node("Constant", [], ["k"])
    constant.attribute.append(onnx.AttributeProto(name="value_ints", type=6, ints=[1], floats=[0.0] * 64))
    model("unfit_list", [constant, node("Add", ["x", "x"], ["y"])], [info("x", F, ["n"])],
          [info("y", F, ["n"]), info("k", T.INT64, ["m"])], checked=False)
    runtime = h.make_opsetid("com.microsoft", 1)
    rows = [h.make_tensor(name, kind, dims, [0] * n) for name, kind, dims, n in (
        ("qkv", F, [1, 1, 8], 8), ("last", T.INT32, [1], 1), ("all", T.INT32, [1], 1), ("table", F, [4, 2], 8))]
    model("unfit_heads", [node("GroupQueryAttention", ["qkv", "", "", "", "", "last", "all"], ["y"], num_heads=2,
                               kv_num_heads=2**63 - 1, domain="com.microsoft")], [info("x", F, ["n"])],
          [info("y", F, None)], imports=[runtime], checked=False, initializer=rows[:3])
    place = h.make_tensor("place", T.INT64, [1], [-3])
    model("unfit_place", [node("RotaryEmbedding", ["qkv", "place", "table", "table"], ["y"], num_heads=2,
                               domain="com.microsoft")], [info("x", F, ["n"])],
          [info("y", F, None)], imports=[runtime], checked=False, initializer=[rows[0], place, rows[3]])
    image, zero = (h.make_tensor(name, T.UINT8, dims, [7] * int(np.prod(dims)))
                   for name, dims in (("image", [1, 2, 4, 4]), ("zero", [])))
    for name, kind, number in (("floats", F, 1.5), ("zeros", T.UINT8, 9), ("flat", T.UINT8, 9)):
        dims = [3, 2] if name == "flat" else [1, 2, 3, 3]
        weight = h.make_tensor("weight", kind, dims, [number] * int(np.prod(dims)))
        points = h.make_tensor("points", kind, [5], [128] * 5)
        names = ["image", "weight", "zero", "points"] if name == "zeros" else ["image", "weight"]
        model("unfit_" + name, [node("ConvInteger", names, ["y"])], [info("x", F, ["n"])],
              [info("y", T.INT32, None)], checked=False, initializer=[image, weight, zero, points])
    mixed = h.make_tensor("mixed", F, [4, 2], [0.5] * 8)
    model("unfit_product", [node("MatMulInteger", ["image", "mixed"], ["y"])], [info("x", F, ["n"])],
          [info("y", T.INT32, None)], checked=False, initializer=[image, mixed])


def empty():
    """Sums of no products: zeros, of bytes as well."""
    a, b = (h.make_tensor(name, T.UINT8, dims, []) for name, dims in (("a", [2, 2, 0]), ("b", [0, 3])))
    model("empty", [node("MatMulInteger", ["a", "b"], ["sums"]), node("Cast", ["sums"], ["wide"], to=F),
                    node("Add", ["wide", "x"], ["y"])], [info("x", F, [3])],
          [info("y", F, [2, 2, 3])], initializer=[a, b])


def limits():
    """Extremes of no numbers: the limits of the dtype, which no double has for 64 bits."""
    kinds = [T.INT64, T.UINT64, T.INT32, T.INT8]
    tensors = [h.make_tensor(f"x{i}", kind, [2, 0], []) for i, kind in enumerate(kinds)]
    nodes = [node(f"Reduce{which}", [t.name, "axes"], [f"{which}{i}"], keepdims=0)
             for i, t in enumerate(tensors) for which in ("Max", "Min")]
    model("limits", nodes, [], [info(n.output[0], kinds[int(n.output[0][3:])], [2]) for n in nodes], opset=20,
          initializer=[*tensors, h.make_tensor("axes", T.INT64, [1], [1])])


def types():
    tensors = [h.make_tensor(name, kind, [4], values) for name, kind, values in (
        ("f8", T.FLOAT8E4M3FN, [1, 2, -3, 0.5]), ("i4", T.INT4, [1, -8, 7, 0]), ("f4", T.FLOAT4E2M1, [0.5, 6, -2, 1]),
        ("h", T.FLOAT16, [1, 2, 3, 4]), ("b", T.BOOL, [1, 0, 1, 1]), ("c", T.COMPLEX64, [1 + 1j, 2, 3, 4j]))]
    tensors.append(h.make_tensor("str", T.STRING, [2], [b"one", b"two"]))
    model("types", [node("Identity", [t.name], ["o_" + t.name]) for t in tensors], [],
          [info("o_" + t.name, t.data_type, list(t.dims)) for t in tensors], opset=24, initializer=tensors)


def values():
    def floats(*numbers):
        return h.make_tensor("", F, [len(numbers)], numbers)

    write("sequence.pb", h.make_sequence("s", 1, [floats(1, 2), floats(3)]))
    write("optional.pb", h.make_optional("o", 1, floats(1, 2)))
    write("map.pb", h.make_map("m", 8, [b"a", b"b"], h.make_sequence("", 1, [floats(1), floats(2)])))
    write("tensor.pb", nh.from_array(np.arange(6, dtype="i8").reshape(2, 3)))


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for make in (mlp, branch, loop, scan, function, unsorted, sparse, pool, clip, external, two, told, few_bits, chosen,
                 unfit, empty, limits, types, values):
        make()
