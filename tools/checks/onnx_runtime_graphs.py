"""onnx_runtime_graphs.py — whole graphs for onnx_runtime_ops.py: what a single node cannot show.

Loops and lists of more steps than a node has inputs, nodes in another order than they run, and floats between bytes.
"""

EXACT = {"rtol": 0, "atol": 0}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
UNMAPPED = "floats_"  # ONNX Runtime computes these as they are written
STEP = {"rtol": 0, "atol": 0.041}


def declared():
    """[(name, function of the name that makes (model, inputs), tolerance)]"""
    rows = [(f"loop_{steps}", lambda name, steps=steps: loop(name, steps), CLOSE) for steps in (65, 300, 5000)]
    rows += [(f"scan_{steps}", lambda name, steps=steps: scan(name, steps), CLOSE) for steps in (65, 300, 5000)]
    rows += [(f"{kind}_{count}", lambda name, count=count, stack=stack: listed(name, count, stack), EXACT)
             for kind, stack in (("list_cat", 0), ("list_stack", 1)) for count in (65, 300)]
    rows += [(f"concat_{count}", lambda name, count=count: concat(name, count), EXACT) for count in (65, 300)]
    rows += [(f"split_{count}", lambda name, count=count: split(name, count), EXACT) for count in (65, 300)]
    rows += [(f"{op.lower()}_{count}", lambda name, op=op, count=count: several(name, op, count), CLOSE)
             for op in ("Sum", "Max", "Mean") for count in (65, 300)]
    rows += [("grown_300", lambda name: grown(name, 300), EXACT), ("unsorted", unsorted, CLOSE)]
    rows += [(f"qdq_{kind}", lambda name, kind=kind: between_bytes(name, kind), EXACT) for kind in ("u1", "i1", "relu")]
    rows += [(f"{UNMAPPED}{kind}", lambda name, kind=kind: between_bytes(name, kind), STEP) for kind in ("bias", "shared")]
    return rows


def made(name, nodes, inputs, outputs, initial=()):
    """The model, and its inputs, {name: array}."""
    from onnx import helper as h

    info = [h.make_tensor_value_info(k, h.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()]
    graph = h.make_graph(nodes, name, info, [untyped(o) for o in outputs], list(initial))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), inputs


def untyped(name):
    from onnx import TypeProto, ValueInfoProto

    return ValueInfoProto(name=name, type=TypeProto())


def numbers(*shape):
    import numpy as np

    return np.random.default_rng(11).standard_normal(shape).astype("f4")


def loop(name, steps):
    """Carries a vector, gathers its square and the step."""
    from onnx import TensorProto as T, helper as h

    info = h.make_tensor_value_info
    body = h.make_graph(
        [h.make_node("Mul", ["v", "half"], ["w"]), h.make_node("Add", ["w", "x"], ["v2"]),
         h.make_node("Identity", ["c"], ["c2"]), h.make_node("Mul", ["v2", "v2"], ["square"]),
         h.make_node("Identity", ["i"], ["at"])], "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("v", T.FLOAT, [2])],
        [info("c2", T.BOOL, []), info("v2", T.FLOAT, [2]), info("square", T.FLOAT, [2]), info("at", T.INT64, [])])
    return made(name, [h.make_node("Loop", ["steps", "", "x"], ["last", "squares", "places"], body=body)],
                {"x": numbers(2)}, ["last", "squares", "places"],
                [h.make_tensor("steps", T.INT64, [], [steps]), h.make_tensor("half", T.FLOAT, [], [0.5])])


def scan(name, steps):
    """A sum that leaks, over rows, gathered along the last axis from the end."""
    from onnx import TensorProto as T, helper as h

    info = h.make_tensor_value_info
    body = h.make_graph(
        [h.make_node("Mul", ["a", "half"], ["b"]), h.make_node("Add", ["b", "row"], ["a2"]),
         h.make_node("Identity", ["a2"], ["o"])], "body", [info("a", T.FLOAT, [3]), info("row", T.FLOAT, [3])],
        [info("a2", T.FLOAT, [3]), info("o", T.FLOAT, [3])])
    node = h.make_node("Scan", ["a0", "x"], ["a1", "all"], body=body, num_scan_inputs=1, scan_output_axes=[1],
                       scan_output_directions=[1])
    return made(name, [node], {"a0": numbers(3), "x": numbers(steps, 3)}, ["a1", "all"],
                [h.make_tensor("half", T.FLOAT, [], [0.5])])


def listed(name, count, stack):
    """`count` tensors, one of them computed, as a sequence that is joined."""
    from onnx import helper as h

    nodes = [h.make_node("Mul", ["x", "x"], ["y"]),
             h.make_node("SequenceConstruct", ["y" if i == count - 2 else "x" for i in range(count)], ["s"]),
             h.make_node("ConcatFromSequence", ["s"], ["all"], axis=1, new_axis=stack)]
    return made(name, nodes, {"x": numbers(2, 3)}, ["all"])


def concat(name, count):
    """Parts of different widths."""
    from onnx import helper as h

    nodes = [h.make_node("Concat", [("x", "w", "y")[i % 3] for i in range(count)], ["all"], axis=-1)]
    return made(name, nodes, {"x": numbers(2, 3), "w": numbers(2, 1), "y": numbers(2, 2)}, ["all"])


def split(name, count):
    """As many outputs, of which three are read."""
    from onnx import TensorProto as T, helper as h

    parts = [f"part{i}" for i in range(count)]
    nodes = [h.make_node("Split", ["x", "sizes"], parts, axis=1),
             h.make_node("Concat", [parts[0], parts[count // 2], parts[-1]], ["some"], axis=0)]
    return made(name, nodes, {"x": numbers(2, 2 * count)}, ["some"], [h.make_tensor("sizes", T.INT64, [count], [2] * count)])


def several(name, op, count):
    """An operator over as many inputs as there are."""
    from onnx import helper as h

    return made(name, [h.make_node(op, [("x", "y", "z")[i % 3] for i in range(count)], ["all"])],
                {"x": numbers(4, 3), "y": numbers(1, 3), "z": numbers(4, 1)}, ["all"])


def grown(name, steps):
    """A sequence to which a loop adds an item a step."""
    from onnx import TensorProto as T, helper as h

    items = h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, [2]))
    info = h.make_tensor_value_info
    body = h.make_graph(
        [h.make_node("Identity", ["c"], ["c2"]), h.make_node("Cast", ["i"], ["f"], to=T.FLOAT),
         h.make_node("Add", ["x", "f"], ["item"]), h.make_node("SequenceInsert", ["s", "item"], ["s2"])], "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), h.make_value_info("s", items)],
        [info("c2", T.BOOL, []), h.make_value_info("s2", items)])
    nodes = [h.make_node("SequenceEmpty", [], ["none"], dtype=T.FLOAT),
             h.make_node("Loop", ["steps", "", "none"], ["s"], body=body),
             h.make_node("ConcatFromSequence", ["s"], ["all"], axis=0, new_axis=1)]
    return made(name, nodes, {"x": numbers(2)}, ["all"], [h.make_tensor("steps", T.INT64, [], [steps])])


def unsorted(name):
    """Nodes from the last to the first, and a branch that reads what a later one makes."""
    from onnx import TensorProto as T, helper as h

    def side(kind, out):
        return h.make_graph([h.make_node(kind, ["twice", "k"], [out])], out, [],
                            [h.make_tensor_value_info(out, T.FLOAT, None)])

    nodes = [h.make_node("Add", ["chosen", "x"], ["y"]),
             h.make_node("If", ["c"], ["chosen"], then_branch=side("Mul", "a"), else_branch=side("Sub", "b")),
             h.make_node("Add", ["x", "x"], ["twice"]), h.make_node("Greater", ["t", "k"], ["c"]),
             h.make_node("ReduceSum", ["x"], ["t"], keepdims=0)]
    return made(name, nodes, {"x": numbers(5)}, ["y"], [h.make_tensor("k", T.FLOAT, [], [2.0])])


def between_bytes(name, kind):
    """Convolutions, sums, a list, pools and a product, each between DequantizeLinear and QuantizeLinear. kind: type of
    the bytes; relu: with a Relu before rounding; bias: whose scale is not the product of the operands'; shared: what a
    convolution yields is read as floats as well."""
    import numpy as np
    from onnx import helper as h, numpy_helper

    r, nodes, weights = np.random.default_rng(5), [], []
    of = "i1" if kind == "i1" else "u1"
    least = np.array(-128 if of == "i1" else 0, of)

    def hold(label, value):
        weights.append(numpy_helper.from_array(np.asarray(value), label))
        return label

    def scale_of(label, scale, zero):
        return [hold(label + "_s", np.float32(scale)), hold(label + "_z", np.array(zero, of))]

    def through(label, scale, zero, relu=False):
        """The name behind: rounded to bytes and floats again."""
        if relu:
            nodes.append(h.make_node("Relu", [label], [label + "_r"]))
        at = scale_of(label, scale, zero)
        nodes.append(h.make_node("QuantizeLinear", [label + "_r" * relu, *at], [label + "_q"]))
        nodes.append(h.make_node("DequantizeLinear", [label + "_q", *at], [label + "_d"]))
        return label + "_d"

    def filters(label, shape, x_scale, axis=0, wrong=1):
        scales = (r.uniform(0.5, 1, shape[axis]) / 300).astype("f4")
        zeros = np.zeros(shape[axis], "i1")
        held = [hold(label + "_w", r.integers(-127, 128, shape).astype("i1")), hold(label + "_ws", scales), hold(label + "_wz", zeros)]
        nodes.append(h.make_node("DequantizeLinear", held, [label + "_wd"], axis=axis))
        bias = [hold(label + "_b", r.integers(-4000, 4000, shape[axis]).astype("i4")),
                hold(label + "_bs", (np.float32(x_scale) * scales * np.float32(wrong)).astype("f4")),
                hold(label + "_bz", np.zeros(shape[axis], "i4"))]
        nodes.append(h.make_node("DequantizeLinear", bias, [label + "_bd"], axis=0))
        return [label + "_wd", label + "_bd"]

    middle = int(least) + 117
    x = through("x", 0.017, middle)
    nodes.append(h.make_node("Conv", [x, *filters("c", (24, 3, 3, 3), 0.017, wrong=3 if kind == "bias" else 1)], ["c"],
                             pads=[1, 1, 1, 1], strides=[2, 2]))
    relu = kind == "relu"
    c = through("c", 0.031, least if relu else middle, relu)
    nodes.append(h.make_node("Conv", [c, *filters("d", (24, 1, 3, 3), 0.031)], ["d"], group=24, pads=[1, 1, 1, 1]))
    d = through("d", 0.023, middle)
    nodes.append(h.make_node("Add", [c, d], ["e"]))
    e = through("e", 0.037, middle)
    nodes.append(h.make_node("Conv", [e, *filters("n", (24, 24, 1, 1), 0.037)], ["n"]))
    n = through("n", 0.029, least + 90)
    nodes.append(h.make_node("Add", [e, n], ["o"]))  # of a convolution that nothing else reads
    o = through("o", 0.043, least if relu else middle, relu)
    nodes.append(h.make_node("Concat", [o, d], ["f"], axis=1))
    f = through("f", 0.041, middle)
    nodes.append(h.make_node("MaxPool", [f], ["g"], kernel_shape=[2, 2], strides=[2, 2]))
    at_f = ["f_s", "f_z"]
    nodes.append(h.make_node("QuantizeLinear", ["g", *at_f], ["g_q"]))
    nodes.append(h.make_node("DequantizeLinear", ["g_q", *at_f], ["g_d"]))
    nodes.append(h.make_node("GlobalAveragePool", ["g_d"], ["k"]))
    k = through("k", 0.02, middle)
    nodes.append(h.make_node("Flatten", [k], ["l"]))
    nodes.append(h.make_node("QuantizeLinear", ["l", "k_s", "k_z"], ["l_q"]))
    nodes.append(h.make_node("DequantizeLinear", ["l_q", "k_s", "k_z"], ["l_d"]))
    nodes.append(h.make_node("Gemm", ["l_d", *filters("m", (10, 48), 0.02)], ["m"], transB=1))
    m = through("m", 0.03, middle)
    outputs = [m, d, e, f] + (["c"] if kind == "shared" else [])
    return made(name, nodes, {"x": numbers(1, 3, 33, 31)}, outputs, weights)
