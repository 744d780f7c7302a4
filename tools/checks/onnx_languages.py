"""onnx_languages.py BUILD [NAME…] — language models as networks with a cache, generated with by ONNX Runtime.

Writes small folders with random weights, one for each way in which families differ, and lets `trunnion convert` make
networks of them. ONNX Runtime is given a prompt, and then a token at a time with its own keys and values: it has to
choose the tokens that `trunnion generate` chooses of the folder, with the logits of `trunnion logits`; so has `trunnion
run --steps` with the same file. A token that the mask hides must not count. Needs the packages onnx, onnxruntime and
numpy; SmolLM2 takes part where it is there. With names, only these models (gemma2, smollm2 …).
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import needs  # noqa: E402
from text import smollm2  # noqa: E402

STEPS, BOUND = 24, 1e-4
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 23]
HIDDEN, INNER, WORDS, HEADS, FEW, LAYERS, EXPERTS, INSIDE = 48, 80, 163, 6, 2, 3, 5, 40
SIZES = {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": WORDS, "num_attention_heads": HEADS,
         "num_key_value_heads": FEW, "num_hidden_layers": LAYERS, "max_position_embeddings": 128,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 16}
GEMMA2 = GEMMA | {"query_pre_attn_scalar": 16, "sliding_window": 9, "attn_logit_softcapping": 3.0,
                  "final_logit_softcapping": 4.0}
GEMMA3 = GEMMA | {"query_pre_attn_scalar": 16, "sliding_window": 9, "num_hidden_layers": 7, "rope_theta": 5000.0,
                  "rope_local_base_freq": 700.0}
GPT2 = {"n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": WORDS,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
MODELS = [  # name, model_type, what config.json has besides the sizes, what its layers have
    ("llama", "llama", {}, []),
    ("mistral-window", "mistral", {"sliding_window": 7}, []),
    ("qwen2", "qwen2", {"tie_word_embeddings": True}, ["biases"]),
    ("qwen3", "qwen3", {"head_dim": 16}, ["head norms"]),
    ("gemma", "gemma", GEMMA, []),
    ("gemma2", "gemma2", GEMMA2, ["post-norms"]),
    ("gemma3", "gemma3_text", GEMMA3, ["post-norms", "head norms"]),
    ("mixtral", "mixtral", {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}, ["mixtral"]),
    ("qwen2-moe", "qwen2_moe", {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INSIDE,
                                "shared_expert_intermediate_size": 56, "decoder_sparse_step": 1}, ["biases", "qwen"]),
    ("gpt2", "gpt2", None, []),
]


def of_experts(layer, has):
    form = ("block_sparse_moe.", ("w1", "w3", "w2"), INNER) if "mixtral" in has else \
        ("mlp.", ("gate_proj", "up_proj", "down_proj"), INSIDE)
    at = layer + form[0]
    yield at + "gate.weight", (EXPERTS, HIDDEN)
    for name, width in [(f"{at}experts.{e}.", form[2]) for e in range(EXPERTS)] + \
            [(at + "shared_expert.", 56)] * ("qwen" in has):
        gate, up, down = form[1]
        yield f"{name}{gate}.weight", (width, HIDDEN)
        yield f"{name}{up}.weight", (width, HIDDEN)
        yield f"{name}{down}.weight", (HIDDEN, width)
    if "qwen" in has:
        yield at + "shared_expert_gate.weight", (1, HIDDEN)


def of_layer(layer, config, has):
    head = config.get("head_dim", HIDDEN // HEADS)
    for name, rows in (("q", HEADS * head), ("k", FEW * head), ("v", FEW * head)):
        yield f"{layer}self_attn.{name}_proj.weight", (rows, HIDDEN)
        if "biases" in has:
            yield f"{layer}self_attn.{name}_proj.bias", (rows,)
        if "head norms" in has and name != "v":
            yield f"{layer}self_attn.{name}_norm.weight", (head,)
    yield layer + "self_attn.o_proj.weight", (HIDDEN, HEADS * head)
    norms = ["input", "post_attention"] + ["pre_feedforward", "post_feedforward"] * ("post-norms" in has)
    yield from ((f"{layer}{name}_layernorm.weight", (HIDDEN,)) for name in norms)
    if {"mixtral", "qwen"} & set(has):
        yield from of_experts(layer, has)
        return
    yield from ((f"{layer}mlp.{name}_proj.weight", (INNER, HIDDEN)) for name in ("gate", "up"))
    yield layer + "mlp.down_proj.weight", (HIDDEN, INNER)


def of_gpt2():
    yield "transformer.wte.weight", (WORDS, HIDDEN)
    yield "transformer.wpe.weight", (GPT2["n_positions"], HIDDEN)
    parts = {"attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN), "mlp.c_fc": (HIDDEN, 4 * HIDDEN),
             "mlp.c_proj": (4 * HIDDEN, HIDDEN), "ln_1": (HIDDEN,), "ln_2": (HIDDEN,)}
    for i in range(GPT2["n_layer"]):
        for name, shape in parts.items():
            yield f"transformer.h.{i}.{name}.weight", shape
            yield f"transformer.h.{i}.{name}.bias", shape[-1:]
    yield from ((f"transformer.ln_f.{name}", (HIDDEN,)) for name in ("weight", "bias"))


def of_model(config, has):
    yield "model.embed_tokens.weight", (WORDS, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (WORDS, HIDDEN)
    for i in range(config["num_hidden_layers"]):
        yield from of_layer(f"model.layers.{i}.", config, has)


def write_folder(folder, kind, own, has):
    import numpy as np

    random = np.random.default_rng(7)
    config = GPT2 if own is None else SIZES | own
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    head, data = {}, b""
    for name, shape in of_gpt2() if own is None else of_model(config, has):
        gemma = kind.startswith("gemma")  # norms are of 1 + weight, rows of the embedding are multiplied
        around = 1 if len(shape) == 1 and name.endswith("weight") and not gemma else 0
        size = 0.3 if len(shape) == 1 else 0.05 if gemma and "embed" in name else 0.2
        bytes_ = (around + random.standard_normal(shape) * size).astype("f4").tobytes()
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


class Suite:
    def __init__(self, program, folder):
        self.program, self.folder, self.passed, self.failed = program, folder, 0, 0

    def expect(self, good, text):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"failed: {text}", flush=True)

    def command(self, *words):
        result = subprocess.run([self.program, *map(str, words), "--json"], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"trunnion {' '.join(map(str, words[:3]))}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    def ours(self, model, ids):
        """Logits behind every token."""
        import numpy as np

        self.command("logits", "-m", model, "--ids", " ".join(map(str, ids)), "-o", self.folder / "x.npy", "--cache",
                     "f32")
        return np.load(self.folder / "x.npy")


def open_network(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def first_values(session, ids, hidden=0):
    """Nothing is cached; the mask hides the first `hidden` tokens."""
    import numpy as np

    places = np.maximum(np.arange(len(ids)) - hidden, 0)
    values = {"input_ids": np.array([ids]), "attention_mask": (np.arange(len(ids)) >= hidden).astype("i8")[None],
              "position_ids": places[None]}
    for i in session.get_inputs()[3:]:
        values[i.name] = np.zeros((1, i.shape[1], 0, i.shape[3]), "f4")
    return values


def generate(session, ids):
    """Tokens, the logits behind each token, and the last step's outputs by their names."""
    import numpy as np

    values, rows, tokens = first_values(session, ids), [], []
    names = [o.name for o in session.get_outputs()]
    for step in range(STEPS):
        out = dict(zip(names, session.run(None, values)))
        rows.append(out["logits"][0])
        tokens.append(int(rows[-1][-1].argmax()))
        values = {"past_key_values" + n[len("present"):]: v for n, v in out.items() if n != "logits"}
        count = len(ids) + step + 1
        values |= {"input_ids": np.array([tokens[-1:]]), "attention_mask": np.ones((1, count), "i8"),
                   "position_ids": np.array([[count - 1]])}
    return tokens, np.concatenate(rows), out


def worst(got, want):
    import numpy as np

    return float(np.abs(got - want).max() / np.abs(want).max()) if got.shape == want.shape else float("inf")


def check_form(suite, name, session):
    """Names and extents are those that others feed by."""
    both = "past_sequence_length + sequence_length"
    told = [(i.name, i.shape[1] if len(i.shape) == 2 else i.shape[2]) for i in session.get_inputs()]
    layers = (len(told) - 3) // 2
    wanted = [("input_ids", "sequence_length"), ("attention_mask", both), ("position_ids", "sequence_length")]
    wanted += [(f"past_key_values.{i}.{w}", "past_sequence_length") for i in range(layers) for w in ("key", "value")]
    suite.expect(told == wanted, f"{name}: inputs {told}")
    told = [(o.name, o.shape[1] if o.name == "logits" else o.shape[2]) for o in session.get_outputs()]
    wanted = [("logits", "sequence_length")]
    wanted += [(f"present.{i}.{w}", both) for i in range(layers) for w in ("key", "value")]
    suite.expect(told == wanted, f"{name}: outputs {told}")


def check_steps(suite, name, path, tokens, wanted):
    """Our own command with the same network."""
    import numpy as np

    np.save(suite.folder / "ids.npy", np.array([PROMPT]))
    told = suite.command("run", path, "-i", f"input_ids={suite.folder / 'ids.npy'}", "-o", suite.folder / name,
                         "--steps", STEPS)
    suite.expect(told["tokens"] == [tokens], f"{name}: run --steps {told['tokens']}, by ONNX Runtime {tokens}")
    error = max(worst(np.load(suite.folder / name / f"{n}.npy"), v) for n, v in wanted.items())
    suite.expect(error <= BOUND, f"{name}: run --steps: outputs of the last step differ by {error:.2g} of the largest")


def check_model(suite, name, model):
    import onnx

    path = suite.folder / f"{name}.onnx"
    suite.command("convert", model, path, "--verify")
    onnx.checker.check_model(str(path), full_check=True)
    session = open_network(path)
    check_form(suite, name, session)
    tokens, rows, last = generate(session, PROMPT)
    wanted = suite.ours(model, PROMPT + tokens[:-1])
    error = worst(rows, wanted)
    suite.expect(error <= BOUND, f"{name}: ONNX Runtime's logits differ by {error:.2g} of the largest")
    suite.expect(len(set(tokens)) >= 4, f"{name}: a weak case: tokens {tokens}")
    got = suite.command("generate", "-m", model, "--ids", " ".join(map(str, PROMPT)), "-n", STEPS, "--greedy",
                        "--cache", "f32")["ids"]
    suite.expect(got == tokens, f"{name}: generate {got}, by ONNX Runtime {tokens}")
    check_steps(suite, name, path, tokens, last)
    masked = session.run(["logits"], first_values(session, [7, 8] + PROMPT, hidden=2))[0][0, 2:]
    hidden = worst(masked, wanted[:len(PROMPT)])
    suite.expect(hidden <= BOUND, f"{name}: behind hidden tokens logits differ by {hidden:.2g} of the largest")
    print(f"{name}: {STEPS} tokens, {len(set(tokens))} differ, logits {error:.1e}, behind hidden ones {hidden:.1e}",
          flush=True)
    return wanted


def check_no_cache(suite, name, model, wanted):
    import numpy as np

    path = suite.folder / "plain.onnx"
    suite.command("convert", model, path, "--no-cache", "--verify")
    session = open_network(path)
    suite.expect([i.name for i in session.get_inputs()] == ["input_ids"], f"{name}: --no-cache leaves more inputs")
    error = worst(session.run(None, {"input_ids": np.array([PROMPT])})[0][0], wanted[:len(PROMPT)])
    suite.expect(error <= BOUND, f"{name}: --no-cache: logits differ by {error:.2g} of the largest")


def main():
    if needs.lacks("numpy", "onnx", "onnxruntime"):
        return 0
    import onnxruntime
    skipped = 0
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(pathlib.Path(sys.argv[1]).resolve() / "trunnion", pathlib.Path(folder))
        chosen = sys.argv[2:] or [model[0] for model in MODELS] + ["smollm2"]
        unknown = set(chosen) - {model[0] for model in MODELS} - {"smollm2"}
        suite.expect(not unknown, f"all names are models: {unknown or chosen}")
        for name, kind, own, has in [model for model in MODELS if model[0] in chosen]:
            try:
                write_folder(suite.folder / name, kind, own, has)
                wanted = check_model(suite, name, suite.folder / name)
                if name == "gemma2":
                    check_no_cache(suite, name, suite.folder / name, wanted)
            except Exception as fault:  # of the command, or of either package
                suite.expect(False, f"{name}: {fault}")
        if "smollm2" not in chosen:
            pass
        elif smollm2.is_there():  # in f32: weights in blocks are multiplied with rounded activations here, not there
            suite.command("convert", smollm2.path(), f"{suite.folder / 'smollm2'}/", "--quantize", "F32")
            check_model(suite, "smollm2", suite.folder / "smollm2")
        else:
            print("skipped: SmolLM2 is not there; tools/text/smollm2.py fetches it")
            skipped = 1
    print(f"ran on: onnxruntime {onnxruntime.__version__}")
    print(f"{suite.passed} passed, {suite.failed} failed, {skipped} skipped")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
