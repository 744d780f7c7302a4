"""onnx_decoders.py BUILD — networks that are given their own outputs again, beside ONNX Runtime, step by step.

Small random decoders in the forms that exporters write: keys and values of before as inputs, those of now as outputs;
one with attention in standard operators (Hugging Face's exporter), one of grouped attention and few-bit weights and one
of multi-head attention (ONNX Runtime's own model builder and optimiser), one without a cache, and a recurrent network.
`trunnion run --steps` has to choose the tokens that ONNX Runtime's outputs choose, and the last step's outputs, which
depend on all steps before, have to agree. Needs the packages onnx, onnxruntime and numpy.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import needs

STEPS, PROMPT, BOUND = 24, 5, 2e-4
LAYERS, HEADS, FEW, HEAD, WIDTH, INNER, WORDS, PLACES = 2, 4, 2, 16, 64, 96, 61, 64
OPSETS = {"": 21, "com.microsoft": 1}


class Graph:
    """Nodes, weights and names of a model that is put together."""

    def __init__(self, seed):
        import numpy

        self.np, self.random = numpy, numpy.random.default_rng(seed)
        self.nodes, self.weights, self.inputs, self.outputs = [], [], [], []

    def op(self, kind, *inputs, domain="", outputs=1, **attributes):
        from onnx import helper

        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def own(self, kind, *inputs, **attributes):
        return self.op(kind, *inputs, domain="com.microsoft", **attributes)

    def const(self, value, dtype=None):
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(self.np.asarray(value, dtype), name))
        return name

    def weight(self, *shape):
        return self.const(self.random.standard_normal(shape) * 0.3, "f4")

    def scales(self):
        return self.const(1 + self.random.standard_normal(WIDTH) * 0.3, "f4")

    def few_bits(self, x, n, k):
        bytes_ = self.const(self.random.integers(0, 256, (n, k // 32, 16)), "u1")
        steps = self.const(self.random.standard_normal(n * (k // 32)) * 0.05, "f4")
        return self.own("MatMulNBits", x, bytes_, steps, N=n, K=k, bits=4, block_size=32)

    def input(self, name, dtype, shape):
        from onnx import helper

        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name, value):
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def save(self, path):
        from onnx import helper, save

        graph = helper.make_graph(self.nodes, path.stem, self.inputs, self.outputs, self.weights)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in OPSETS.items()], ir_version=10),
             path)


def angles(g):
    places = g.np.arange(PLACES)[:, None] * 10000.0 ** -(g.np.arange(HEAD // 2) / (HEAD // 2))
    return g.const(g.np.cos(places), "f4"), g.const(g.np.sin(places), "f4")


def ends(g, mask):
    """What grouped attention wants to know: the last place of each text, and the number of places in all."""
    from onnx import TensorProto as T

    last = g.op("Sub", g.op("ReduceSum", mask, g.const([1], "i8"), keepdims=0), g.const(1, "i8"))
    total = g.op("Gather", g.op("Shape", mask), g.const(1, "i8"))
    return g.op("Cast", last, to=T.INT32), g.op("Cast", total, to=T.INT32)


def grouped(path, window=-1):
    """As ONNX Runtime's model builder writes Llama-like models of few bits."""
    from onnx import TensorProto as T

    g = Graph(1)
    ids = g.input("input_ids", T.INT64, ["batch_size", "sequence_length"])
    mask = g.input("attention_mask", T.INT64, ["batch_size", "total_sequence_length"])
    last, total = ends(g, mask)
    cos, sin = angles(g)
    x = g.op("Gather", g.weight(WORDS, WIDTH), ids)
    y = g.op("SimplifiedLayerNormalization", x, g.scales(), epsilon=1e-5)
    for i in range(LAYERS):
        shape = ["batch_size", FEW, "past_sequence_length", HEAD]
        past = [g.input(f"past_key_values.{i}.{what}", T.FLOAT, shape) for what in ("key", "value")]
        qkv = g.few_bits(y, (HEADS + 2 * FEW) * HEAD, WIDTH)
        a, key, value = g.own("GroupQueryAttention", qkv, "", "", *past, last, total, cos, sin, outputs=3,
                              num_heads=HEADS, kv_num_heads=FEW, do_rotary=1, local_window_size=window)
        g.output(f"present.{i}.key", key)
        g.output(f"present.{i}.value", value)
        a = g.few_bits(a, WIDTH, HEADS * HEAD)
        y, _, _, x = g.own("SkipSimplifiedLayerNormalization", x, a, g.scales(), outputs=4, epsilon=1e-5)
        gate = g.few_bits(y, INNER, WIDTH)
        inner = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), g.few_bits(y, INNER, WIDTH))
        y, _, _, x = g.own("SkipSimplifiedLayerNormalization", x, g.few_bits(inner, WIDTH, INNER), g.scales(),
                           outputs=4, epsilon=1e-5)
    g.output("logits", g.few_bits(y, WORDS, WIDTH))
    g.save(path)


def feed_forward(g, x):
    y = g.op("LayerNormalization", x, g.scales(), g.weight(WIDTH), epsilon=1e-5)
    inner = g.op("Gelu", g.op("MatMul", y, g.weight(WIDTH, INNER)))
    return g.op("Add", x, g.op("MatMul", inner, g.weight(INNER, WIDTH)))


def many_heads(path):
    """As ONNX Runtime's optimiser leaves decoders: rotary positions and multi-head attention by themselves."""
    from onnx import TensorProto as T

    g = Graph(2)
    ids = g.input("input_ids", T.INT32, ["batch", "tokens"])
    places = g.input("position_ids", T.INT64, ["batch", "tokens"])
    cos, sin = angles(g)
    x = g.op("Gather", g.weight(WORDS, WIDTH), ids)
    for i in range(LAYERS):
        past = [g.input(f"past_{what}_{i}", T.FLOAT, ["batch", HEADS, "past", HEAD]) for what in ("key", "value")]
        y = g.op("LayerNormalization", x, g.scales(), g.weight(WIDTH), epsilon=1e-5)
        parts = [g.op("MatMul", y, g.weight(WIDTH, WIDTH)) for _ in range(3)]
        for k in range(2):
            parts[k] = g.own("RotaryEmbedding", parts[k], places, cos, sin, num_heads=HEADS)
        a, key, value = g.own("MultiHeadAttention", *parts, "", "", "", *past, outputs=3, num_heads=HEADS,
                              unidirectional=1)
        g.output(f"present_key_{i}", key)
        g.output(f"present_value_{i}", value)
        x = feed_forward(g, g.op("Add", x, g.op("MatMul", a, g.weight(WIDTH, WIDTH))))
    g.output("logits", g.op("MatMul", x, g.weight(WIDTH, WORDS)))
    g.save(path)


def written_out(path, cached=True):
    """Standard operators alone; what a query sees is told by places, as exporters of PyTorch write it."""
    from onnx import TensorProto as T

    g = Graph(3)
    ids = g.input("input_ids", T.INT64, ["batch_size", "sequence_length"])
    mask = g.input("attention_mask", T.INT64, ["batch_size", "past_sequence_length + sequence_length"])
    places = g.input("position_ids", T.INT64, ["batch_size", "sequence_length"])
    total = g.op("Gather", g.op("Shape", mask), g.const(1, "i8"))
    keys = g.op("Range", g.const(0, "i8"), total, g.const(1, "i8"))
    seen = g.op("LessOrEqual", keys, g.op("Unsqueeze", places, g.const([2], "i8")))
    there = g.op("Cast", g.op("Unsqueeze", mask, g.const([1], "i8")), to=T.BOOL)
    seen = g.op("Unsqueeze", g.op("And", seen, there), g.const([1], "i8"))
    hidden = g.op("Where", seen, g.const(0, "f4"), g.const(g.np.finfo("f4").min, "f4"))
    x = g.op("Add", g.op("Gather", g.weight(WORDS, WIDTH), ids), g.op("Gather", g.weight(PLACES, WIDTH), places))
    for i in range(LAYERS):
        y = g.op("LayerNormalization", x, g.scales(), g.weight(WIDTH), epsilon=1e-5)
        parts = [g.op("MatMul", y, g.weight(WIDTH, WIDTH)) for _ in range(3)]
        shape = g.const([0, 0, HEADS, HEAD], "i8")
        parts = [g.op("Transpose", g.op("Reshape", p, shape), perm=[0, 2, 1, 3]) for p in parts]
        for k, what in enumerate(("key", "value")):
            if not cached:
                continue
            past = g.input(f"past_key_values.{i}.{what}", T.FLOAT, ["batch_size", HEADS, "past_sequence_length", HEAD])
            parts[k + 1] = g.op("Concat", past, parts[k + 1], axis=2)
            g.output(f"present.{i}.{what}", parts[k + 1])
        scores = g.op("MatMul", parts[0], g.op("Transpose", parts[1], perm=[0, 1, 3, 2]))
        scores = g.op("Add", g.op("Mul", scores, g.const(HEAD**-0.5, "f4")), hidden)
        a = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), parts[2]), perm=[0, 2, 1, 3])
        a = g.op("Reshape", a, g.const([0, 0, WIDTH], "i8"))
        x = feed_forward(g, g.op("Add", x, g.op("MatMul", a, g.weight(WIDTH, WIDTH))))
    g.output("logits", g.op("MatMul", x, g.weight(WIDTH, WORDS)))
    g.save(path)


def recurrent(path):
    from onnx import TensorProto as T

    g = Graph(4)
    x = g.input("x", T.FLOAT, [3, "batch", 7])
    state = [g.input(n, T.FLOAT, [1, "batch", 8]) for n in ("h", "c")]
    y, h, c = g.op("LSTM", x, g.weight(1, 32, 7), g.weight(1, 32, 8), g.weight(1, 64), "", *state, outputs=3,
                   hidden_size=8)
    for name, value in (("y", y), ("hn", h), ("cn", c)):
        g.output(name, value)
    g.save(path)


CASES = [  # name, how the model is made, texts, places that are cached already, further words of the command
    ("grouped", grouped, 1, 0, []),
    ("grouped-window", lambda p: grouped(p, 7), 1, 0, []),
    ("grouped-batch", grouped, 3, 0, []),
    ("many-heads", many_heads, 2, 0, []),
    ("written-out", written_out, 2, 0, []),
    ("written-out-feed", written_out, 1, 0, ["--feed", "present.*=past_key_values.*"]),
    ("written-out-past", written_out, 2, 3, []),
    ("many-heads-past", many_heads, 1, 2, []),
    ("no-cache", lambda p: written_out(p, False), 2, 0, []),
    ("recurrent", recurrent, 2, 0, ["--feed", "hn=h", "--feed", "cn=c"]),
]
PAIRS = [("present.", "past_key_values."), ("present_", "past_"), ("hn", "h"), ("cn", "c")]


def first_inputs(session, texts, past, random):
    """What a user gives, and what the command makes by itself: empty caches, unless they hold `past` places; a mask."""
    import numpy as np

    given, made = {}, {}
    for i in session.get_inputs():
        dtype = {"tensor(int64)": "i8", "tensor(int32)": "i4"}.get(i.type, "f4")
        if i.name == "input_ids":
            given[i.name] = random.integers(0, WORDS, (texts, PROMPT)).astype(dtype)
        elif i.name == "attention_mask":
            made[i.name] = np.ones((texts, past + PROMPT), dtype)
        elif i.name == "position_ids":
            made[i.name] = np.tile(np.arange(past, past + PROMPT, dtype=dtype), (texts, 1))
        elif i.name == "x":
            given[i.name] = random.standard_normal((3, texts, 7)).astype(dtype)
        else:
            shape = [d if isinstance(d, int) else texts if d.startswith("batch") else past for d in i.shape]
            (given if past or i.name in "hc" else made)[i.name] = random.standard_normal(shape).astype(dtype)
    return given, made


def steps_of(session, values):
    """Tokens of every step, and the outputs of the last one."""
    import numpy as np

    names = [o.name for o in session.get_outputs()]
    tokens = []
    for step in range(STEPS):
        out = dict(zip(names, session.run(None, values)))
        cached = False
        fed = {}
        for a, b in PAIRS:
            for name in names:
                if name.startswith(a) and b + name[len(a):] in values:
                    fed[b + name[len(a):]] = out[name]
        cached = bool(fed)
        values = values | fed
        if "logits" not in out:
            continue
        chosen = out["logits"][:, -1].argmax(-1)
        tokens.append(chosen)
        column = chosen[:, None].astype(values["input_ids"].dtype)
        values["input_ids"] = column if cached else np.concatenate([values["input_ids"], column], 1)
        if "attention_mask" in values:
            values["attention_mask"] = np.pad(values["attention_mask"], ((0, 0), (0, 1)), constant_values=1)
        if "position_ids" in values:
            more = values["position_ids"][:, -1:] + 1
            values["position_ids"] = more if cached else np.concatenate([values["position_ids"], more], 1)
    return np.array(tokens).T.tolist() if tokens else [], out


def compare(program, folder, case):
    """None, or what is wrong."""
    import numpy as np
    import onnxruntime

    name, make, texts, past, words = case
    path = folder / f"{name}.onnx"
    make(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given, made = first_inputs(session, texts, past, np.random.default_rng(5))
    tokens, wanted = steps_of(session, given | made)
    np.savez(folder / f"{name}.npz", **given)
    command = [program, "run", path, "-i", folder / f"{name}.npz", "-o", folder / name, "--steps", STEPS, "--json"]
    result = subprocess.run([*map(str, command), *words], capture_output=True, text=True)
    if result.returncode:
        return result.stderr.strip()
    told = json.loads(result.stdout)
    if told["tokens"] != tokens:
        return f"tokens {told['tokens']}, by ONNX Runtime {tokens}"
    distinct = len({t for row in tokens for t in row})
    if tokens and distinct < 4:
        return f"a weak case: only {distinct} tokens differ"
    worst = 0.0
    for output, value in wanted.items():
        got = np.load(folder / name / f"{output}.npy")
        if got.shape != value.shape:
            return f"{output} is {got.shape}, by ONNX Runtime {value.shape}"
        worst = max(worst, float(np.abs(got - value).max() / np.abs(value).max()))
    print(f"{name}: {STEPS} steps, {distinct} different tokens, last outputs within {worst:.1e}, "
          f"{told['median_seconds'] * 1e3:.2f} ms a step")
    return None if worst <= BOUND else f"outputs of the last step differ by {worst:.2g} of the largest"


REFUSED = [  # model, further words of the command, what the message names, exit code (none: 1 or 2)
    ("recurrent", ["--steps", 3], "--feed OUTPUT=INPUT"),
    ("recurrent", ["--steps", 3, "--feed", "hn=other"], "--feed hn=other"),
    ("recurrent", ["--steps", 3, "--feed", "hn=other", "-v"], "output hn: FLOAT"),
    ("written-out", ["--steps", 3], "input_ids"),
    ("written-out", ["--steps", 3, "-i", "input_ids=none.npy"], "[texts, tokens]"),
    ("recurrent", ["--feed", "hn=h"], "--steps"),
    ("recurrent", ["-i", "x=two.npy", "--dim", "batch=5"], "an unnamed node LSTM"),
    ("recurrent", ["--steps", 3, "--repeat", 3], "--repeat"),
    ("recurrent", ["-i", "other=two.npy"], "its inputs are "),
    ("recurrent", ["-i", "x=two.npy", "-i", "x=two.npy"], "input 'x' is given more than once", 2),
    ("recurrent", ["-i", "two.npy", "-i", "x=two.npy"], "input 'x' is given more than once", 2),
    ("recurrent", ["-i", "x=two.npy", "-i", "x.npz"], "input 'x' is given more than once", 2),
    ("recurrent", ["--steps", 3, "--feed", "hn=h", "--feed", "cn=h"], '--feed names "h" more than once', 2),
    ("recurrent", ["--steps", 3, "--feed", "hn=h", "--feed", "hn=c"], '--feed names "hn" more than once', 2),
    ("recurrent", ["--dim", "batch=5", "--dim", "batch=6"], '--dim gives "batch" more than once', 2),
]


def refuse(program, folder, case):
    """None, or what is wrong: each mistake is told by its name, and none by a line of the command's own source."""
    model, words, named, *code = case
    command = [program, "run", folder / f"{model}.onnx", "--random", *words]
    if model == "written-out":
        command.remove("--random")
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=folder)
    said = " ".join(result.stderr.split())
    told = named in said and ".c:" not in said
    return None if result.returncode in (code or (1, 2)) and told else f"exit {result.returncode}: {said}"


def override(program, folder, case):
    """None, or what is wrong: initializers that are inputs too can be given, as in ONNX Runtime. The shape of the
    result, a folded sum and a product's weights depend on them."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto as T, helper, numpy_helper

    _, names = case
    path, random = folder / "override.onnx", np.random.default_rng(7)
    shapes = {"x": (2, 6), "w": (6, 4), "b": (4,), "c": (4,)}
    held = {name: random.standard_normal(shapes[name]).astype("f4") for name in "wbc"} | {"s": np.array([4, 2], "i8")}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["b", "c"], ["bc"]),
             helper.make_node("Add", ["m", "bc"], ["a"]), helper.make_node("Reshape", ["a", "s"], ["y"])]
    inputs = [helper.make_tensor_value_info(n, T.FLOAT, shapes[n]) for n in "bxw"]
    inputs.append(helper.make_tensor_value_info("s", T.INT64, [2]))
    graph = helper.make_graph(nodes, "override", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)],
                              [numpy_helper.from_array(v, n) for n, v in held.items()])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)],
                                       ir_version=10).SerializeToString())
    values = {"x": random.standard_normal(shapes["x"]).astype("f4")}
    values |= {n: np.array([8, 1], "i8") if n == "s" else held[n] + 1 for n in names}
    words = []
    for n, v in values.items():
        np.save(folder / f"{n}.npy", v)
        words += ["-i", f"{n}={folder / n}.npy"]
    result = subprocess.run([program, "run", path, *words, "-o", folder, "--repeat", "4"], capture_output=True, text=True)
    if "c" in names:  # a constant only: ONNX Runtime has no such input either
        return None if result.returncode == 1 and "'c' has a value in the model" in result.stderr else result.stderr
    if result.returncode:
        return result.stderr.strip()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted, got = session.run(None, values)[0], np.load(folder / "y.npy")
    if got.shape != wanted.shape or np.abs(got - wanted).max() > BOUND * np.abs(wanted).max():
        return f"with {names or 'nothing'} given: {got.tolist()}, by ONNX Runtime {wanted.tolist()}"
    return None


OVERRIDDEN = [("override", names) for names in ("", "b", "w", "s", "bws", "c")]

EXPLAINED = [  # model, further words, exit code, what the message names
    ("recurrent", [], 0, ""),
    ("recurrent", ["--dim", "none=3"], 1, "--dim none"),
    ("recurrent", ["--dim", "batch=3", "--dim", "batch=4"], 2, '--dim gives "batch" more than once'),
    ("recurrent", ["--prompt", 3], 2, "--prompt"),
    ("absent", [], 1, "absent.onnx"),
]


def explain(program, folder, case):
    """None, or what is wrong: `trunnion explain` of a network has rows for what ran, under one plan."""
    model, words, code, named = case
    command = [program, "explain", folder / f"{model}.onnx", "--json", *words]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True)
    said = " ".join(result.stderr.split())
    if result.returncode != code or named not in said:
        return f"explain ended with {result.returncode}: {said}"
    if code:
        return None
    told = json.loads(result.stdout)
    rows = sum(op["runs"] for op in told["ops"] if op["phase"] == "run" and op["measured_seconds"] > 0)
    if told["run"]["plan_misses"] or rows != told["run"]["commands"] or rows < told["run"]["runs"]:
        return f"explain tells of {rows} commands in {told['run']}"
    return None if told["measured_peak_bytes"] > 0 else "explain tells of no memory"


def main():
    if needs.lacks("numpy", "onnx", "onnxruntime"):
        return 0
    import numpy
    import onnxruntime
    program, failed = pathlib.Path(sys.argv[1]).resolve() / "trunnion", 0
    with tempfile.TemporaryDirectory() as name:
        numpy.save(pathlib.Path(name) / "none.npy", numpy.zeros((0, 3), "i8"))
        numpy.save(pathlib.Path(name) / "two.npy", numpy.zeros((3, 2, 7), "f4"))
        numpy.savez(pathlib.Path(name) / "x.npz", x=numpy.zeros((3, 2, 7), "f4"))
        tries = [(compare, case) for case in CASES] + [(refuse, case) for case in REFUSED]
        tries += [(override, case) for case in OVERRIDDEN]
        tries += [(explain, case) for case in EXPLAINED]
        for check, case in tries:
            wrong = check(program, pathlib.Path(name), case)
            failed += wrong is not None
            if wrong:
                print(f"failed: {case[0]}: {wrong}")
    print(f"ran on: onnxruntime {onnxruntime.__version__}")
    print(f"{len(tries) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
