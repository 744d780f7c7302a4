"""operators.py — operators of ONNX that were slow once, beside ONNX Runtime: suppression, nested concats, NonZero, trees.

    operators.py [--build build] [--only 'nms* trees*'] [--seconds 1] [--page NOTE]

One thread on both sides, in one process, by turns; a figure is the least processor time of a run. Results must be equal
first. --page writes docs/measured/onnx-operators-DATE.md, with NOTE in its head. Runs in the peers' Python
(tools/peers/python.sh), and needs the shared library: tools/build.sh build trunnion_shared.
"""

import argparse
import datetime
import fnmatch
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]
from opinfo.process import in_peers_python  # noqa: E402


class Cases:
    """Models with their inputs, {name: array}, out of a fixed seed."""

    def __init__(self):
        import numpy as np
        from onnx import helper

        self.np, self.h, self.r = np, helper, np.random.default_rng(3)

    def model(self, nodes, inputs, outputs, constants=None, ml=False):
        from onnx import TypeProto, ValueInfoProto, numpy_helper

        h = self.h
        given = [h.make_tensor_value_info(k, h.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()]
        made = [ValueInfoProto(name=o, type=TypeProto()) for o in outputs]
        initial = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
        opsets = [h.make_opsetid("", 17)] + [h.make_opsetid("ai.onnx.ml", 2)] * ml
        return h.make_model(h.make_graph(nodes, "g", given, made, initial), opset_imports=opsets, ir_version=8), inputs

    def floats(self, *shape):
        return self.r.standard_normal(shape).astype("f4")

    def nms(self, boxes, classes, batch=1, spread=1.0, most=200, least=0.1, side=0.2):
        np, r = self.np, self.r
        centre, size = r.random((batch, boxes, 2)) * spread, r.random((batch, boxes, 2)) * side + 0.01
        corners = np.concatenate([centre - size / 2, centre + size / 2], 2).astype("f4")
        scores = r.random((batch, classes, boxes)).astype("f4")
        limits = {"m": np.array([most], "i8"), "i": np.array([0.5], "f4"), "l": np.array([least], "f4")}
        node = self.h.make_node("NonMaxSuppression", ["b", "s", "m", "i", "l"], ["y"])
        return self.model([node], {"b": corners, "s": scores}, ["y"], limits)

    def nested(self, depth, side):
        """x = concat(relu(x), x), again and again."""
        nodes, x = [], "x"
        for i in range(depth):
            nodes += [self.h.make_node("Relu", [x], [f"r{i}"]), self.h.make_node("Concat", [x, f"r{i}"], [f"c{i}"], axis=1)]
            x = f"c{i}"
        return self.model([*nodes, self.h.make_node("Sigmoid", [x], ["y"])], {"x": self.floats(1, 16, side, side)}, ["y"])

    def dense(self, layers, growth, side, ending):
        """A densely connected block without products: each layer reads all before it and adds a few channels."""
        np, h = self.np, self.h
        constants = {"z": np.array([0], "i8"), "g": np.array([growth], "i8"), "one": np.array([1], "i8")}
        nodes, x = [], "x"
        for i in range(layers):
            constants[f"w{i}"] = self.floats((i + 1) * growth, 1, 1)
            nodes += [h.make_node("Mul", [x, f"w{i}"], [f"m{i}"]), h.make_node("Relu", [f"m{i}"], [f"q{i}"]),
                      h.make_node("Slice", [f"q{i}", "z", "g", "one"], [f"s{i}"]),
                      h.make_node("Concat", [x, f"s{i}"], [f"c{i}"], axis=1)]
            x = f"c{i}"
        return self.model([*nodes, h.make_node(ending, [x], ["y"])], {"x": self.floats(1, growth, side, side)}, ["y"], constants)

    def joined(self, parts, width, ending):
        """A concat of two concats of vectors."""
        h, half = self.h, parts // 2
        nodes = [h.make_node("Relu", [f"x{i}"], [f"a{i}"]) for i in range(parts)]
        nodes += [h.make_node("Concat", [f"a{i}" for i in range(half)], ["l"], axis=-1),
                  h.make_node("Concat", [f"a{i}" for i in range(half, parts)], ["k"], axis=-1),
                  h.make_node("Concat", ["l", "k"], ["m"], axis=-1)]
        constants = {"w": self.floats(parts * width, 32)} if ending == "MatMul" else {}
        nodes.append(h.make_node(ending, ["m", *constants], ["y"]))
        return self.model(nodes, {f"x{i}": self.floats(64, width) for i in range(parts)}, ["y"], constants)

    def nonzero(self, shape, share, dtype="bool"):
        x = (self.r.random(shape) < share).astype(dtype)
        return self.model([self.h.make_node("NonZero", ["x"], ["y"])], {"x": x}, ["y"])

    def trees(self, count, depth, rows, features, classes=0):
        r, nodes, total, kind = self.r, 2**depth - 1, 2**(depth + 1) - 1, "class" if classes else "target"
        place = [(t, i) for t in range(count) for i in range(total)]
        leaf = [(t, i, c) for t, i in place if i >= nodes for c in range(max(classes, 1))]
        a = {"nodes_treeids": [t for t, _ in place], "nodes_nodeids": [i for _, i in place],
             "nodes_featureids": [int(r.integers(features)) if i < nodes else 0 for _, i in place],
             "nodes_values": [float(r.standard_normal()) if i < nodes else 0.0 for _, i in place],
             "nodes_truenodeids": [2 * i + 1 if i < nodes else 0 for _, i in place],
             "nodes_falsenodeids": [2 * i + 2 if i < nodes else 0 for _, i in place],
             "nodes_modes": ["BRANCH_LEQ" if i < nodes else "LEAF" for _, i in place],
             f"{kind}_treeids": [t for t, _, _ in leaf], f"{kind}_nodeids": [i for _, i, _ in leaf],
             f"{kind}_ids": [c for _, _, c in leaf], f"{kind}_weights": [float(r.standard_normal()) for _ in leaf]}
        a |= {"classlabels_int64s": list(range(classes))} if classes else {"n_targets": 1}
        outputs = ["l", "y"] if classes else ["y"]
        name = "TreeEnsembleClassifier" if classes else "TreeEnsembleRegressor"
        node = self.h.make_node(name, ["x"], outputs, domain="ai.onnx.ml", **a)
        return self.model([node], {"x": self.floats(rows, features)}, outputs, ml=True)

    def table(self):
        return {
            "nms, 16 boxes": lambda: self.nms(16, 1),
            "nms, 1000 boxes": lambda: self.nms(1000, 1),
            "nms, 100 boxes, 20 classes, 4 images": lambda: self.nms(100, 20, 4),
            "nms, 8400 boxes, 80 classes": lambda: self.nms(8400, 80, most=100, least=0.9),
            "nms, 8400 boxes, 80 classes, low scores": lambda: self.nms(8400, 80, most=100, least=0.001),
            "nms, 2000 boxes apart": lambda: self.nms(2000, 1, most=2000, spread=20, side=0.01),
            "concat of itself, 6 deep": lambda: self.nested(6, 28),
            "dense block, 8 layers of 16, pooled": lambda: self.dense(8, 16, 28, "GlobalAveragePool"),
            "dense block, 8 layers of 16, sigmoid": lambda: self.dense(8, 16, 28, "Sigmoid"),
            "dense block, 16 layers of 4, pooled": lambda: self.dense(16, 4, 14, "GlobalAveragePool"),
            "concat of concats of 64": lambda: self.joined(8, 64, "Sigmoid"),
            "concat of concats of 3": lambda: self.joined(8, 3, "Sigmoid"),
            "concat of concats of 1": lambda: self.joined(32, 1, "Sigmoid"),
            "concat of concats, softmax": lambda: self.joined(8, 64, "Softmax"),
            "concat of concats, transposed": lambda: self.joined(8, 64, "Transpose"),
            "concat of concats, product": lambda: self.joined(8, 64, "MatMul"),
            "NonZero, 1M bools, half": lambda: self.nonzero((1024, 1024), 0.5),
            "NonZero, 1M bools, 1 %": lambda: self.nonzero((1024, 1024), 0.01),
            "NonZero, 1M floats, 4 dims": lambda: self.nonzero((8, 32, 64, 64), 0.5, "f4"),
            "NonZero, 1200 floats": lambda: self.nonzero((100, 3, 4), 0.5, "f4"),
            "NonZero, 4096 bools": lambda: self.nonzero((4096,), 0.5),
            "trees, 10 of depth 3, 1 row": lambda: self.trees(10, 3, 1, 4),
            "trees, 100 of depth 6, 1 row": lambda: self.trees(100, 6, 1, 20),
            "trees, 100 of depth 6, 100 rows": lambda: self.trees(100, 6, 100, 20),
            "trees, 100 of depth 6, 10 classes, 10 rows": lambda: self.trees(100, 6, 10, 20, 10),
            "trees, 500 of depth 8, 1 row": lambda: self.trees(500, 8, 1, 20),
            "trees, 500 of depth 8, 1000 rows": lambda: self.trees(500, 8, 1000, 20),
        }


def measure(here, make, seconds):
    """(ONNX Runtime's seconds, ours)"""
    import numpy as np
    import onnxruntime as ort

    model, inputs = make()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = 1, 1, 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    opened, values = here.open(model), [here.value(v) for v in inputs.values()]
    for wanted, got in zip(session.run(None, inputs), opened.run(values)):
        assert wanted.shape == got.shape and np.allclose(wanted, got, 1e-4, 1e-5), "the results differ"
    best, end = [1e9, 1e9], time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, run in enumerate((lambda: session.run(None, inputs), lambda: opened.run(values))):
            for _ in range(3):
                start = time.thread_time()
                run()
                best[i] = min(best[i], time.thread_time() - start)
    opened.close()
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--only", default="*")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--page", default="")
    options = parser.parse_args()
    in_peers_python("onnx", "onnxruntime")
    from formats.onnx_ctypes import Here

    here, rows = Here(options.build), []
    for name, make in Cases().table().items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split()):
            continue
        theirs, ours = measure(here, make, options.seconds)
        rows.append(f"| {name} | {theirs * 1e6:.1f} | {ours * 1e6:.1f} | {theirs / ours:.2f}× |")
        print(rows[-1], flush=True)
    if options.page:
        date = datetime.date.today()
        path = ROOT / "docs" / "measured" / f"onnx-operators-{date}.md"
        path.write_text("\n".join([
            f"# Single operators beside ONNX Runtime, {date}", "",
            "Written by `bench/operators.py --page`: one thread, by turns in one process, least processor time of a run in",
            f"microseconds; results were equal. {options.page}", "",
            "| case | ONNX Runtime, µs | Trunnion, µs | speed |", "|---|---|---|---|", *rows]) + "\n")
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
