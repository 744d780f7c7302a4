"""hostile_gguf.py BUILD [N] — GGUF files of hybrids and mixtures of experts with hostile metadata, through the command.

Makes a small model of each of nine architectures (latent attention, experts, Mamba 2, DeltaNet, residual streams), then
leaves out each key and tensor, gives keys senseless values and tensors other shapes, and cuts files short. `trunnion
generate` must end by itself with 0 or 1, within bounds of memory, and say where it failed. N: of the files that differ in
one key, tensor or length, each N-th (1).
"""

import concurrent.futures
import math
import os
import pathlib
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile

import mutate_gguf as g

WHERE = re.compile(g.WHERE.pattern + r"|experts and uses -?\d+ per token|each must be a multiple of the next")
W = 32
POST_NORM = "post_attention_norm.weight"
HEAD = [("token_embd.weight", (260, W)), ("output_norm.weight", (W,))]

STREAMS = [("per_layer_token_embd.weight", (250, 32)), ("per_layer_model_proj.weight", (32, W)),
           ("per_layer_proj_norm.weight", (8,)), ("altup_proj.weight", (2, W, W)), ("altup_unembd_proj.weight", (2, W, W))]

# ---- the models ------------------------------------------------------------------------------------------------------


def common(arch, **keys):
    base = {"block_count": 2, "embedding_length": W, "feed_forward_length": 48, "context_length": 64,
            "attention.layer_norm_rms_epsilon": 1e-5}
    base |= {key.replace("__", "."): value for key, value in keys.items()}
    return arch, {f"{arch}.{key}": value for key, value in base.items()}


def layer(i, rows):
    return [(f"blk.{i}.{name}", shape) for name, shape in rows]


def norms(i, second="ffn_norm.weight"):
    return layer(i, [("attn_norm.weight", (W,))] + ([(second, (W,))] if second else []))


def attention(i, queries=W, width=0):
    own = [("attn_q_norm.weight", (width,)), ("attn_k_norm.weight", (width,))] if width else []
    return layer(i, [("attn_q.weight", (queries, W)), ("attn_k.weight", (16, W)), ("attn_v.weight", (16, W)),
                     ("attn_output.weight", (W, W)), *own])


def dense(i, gate=True):
    rows = [("ffn_gate.weight", (48, W)), ("ffn_up.weight", (48, W)), ("ffn_down.weight", (W, 48))]
    return layer(i, rows[not gate:])


def experts(i, bias=False, gate=True, router=False):
    rows = [("ffn_gate_inp.weight", (4, W)), ("ffn_up_exps.weight", (4, 8, W)), ("ffn_down_exps.weight", (4, W, 8)),
            ("ffn_up_shexp.weight", (8, W)), ("ffn_down_shexp.weight", (W, 8))]
    rows += [("ffn_gate_exps.weight", (4, 8, W)), ("ffn_gate_shexp.weight", (8, W))] if gate else []
    rows += [("exp_probs_b.bias", (4,))] if bias else []
    return layer(i, rows + ([("ffn_gate_inp_shexp.weight", (W,))] if router else []))


def latent(i):
    return layer(i, [("attn_q_a.weight", (12, W)), ("attn_q_a_norm.weight", (12,)), ("attn_q_b.weight", (24, 12)),
                     ("attn_kv_a_mqa.weight", (20, W)), ("attn_kv_a_norm.weight", (16,)),
                     ("attn_k_b.weight", (2, 16, 8)), ("attn_v_b.weight", (2, 8, 16)), ("attn_output.weight", (W, 16))])


def mamba(i, norm=True):
    rows = [("ssm_in.weight", (164, W)), ("ssm_conv1d.weight", (96, 4)), ("ssm_conv1d.bias", (96,)),
            ("ssm_dt.bias", (4,)), ("ssm_a", (4, 1)), ("ssm_d", (4, 1)), ("ssm_out.weight", (W, 64))]
    return layer(i, rows + ([("ssm_norm.weight", (2, 32))] if norm else []))


def delta(i, apart):
    rates = [("ssm_beta.weight", (4, W)), ("ssm_alpha.weight", (4, W))] if apart else [("ssm_ba.weight", (8, W))]
    return layer(i, [("attn_qkv.weight", (64, W)), ("attn_gate.weight", (32, W)), ("ssm_conv1d.weight", (64, 4)),
                     ("ssm_dt.bias", (4,)), ("ssm_a", (4,)), ("ssm_norm.weight", (8,)), ("ssm_out.weight", (W, 32)),
                     *rates])


def streams(i):
    return layer(i, [(POST_NORM, (W,)), ("post_ffw_norm.weight", (W,)),
                     ("inp_gate.weight", (8, W)), ("proj.weight", (W, 8)), ("post_norm.weight", (W,)),
                     ("altup_router.weight", (3, W)), ("altup_router_norm.weight", (W,)),
                     ("altup_predict_coef.weight", (9, 3)), ("altup_correct_coef.weight", (3, 3)),
                     ("altup_correct_scale.weight", (W,)), ("laurel_l.weight", (5, W)), ("laurel_r.weight", (W, 5)),
                     ("laurel_post_norm.weight", (W,))])


heads = {"attention__head_count": 2, "attention__head_count_kv": 1}
state = {"ssm__conv_kernel": 4, "ssm__inner_size": 64, "ssm__state_size": 8, "ssm__time_step_rank": 4,
         "ssm__group_count": 2}
deltanet = heads | state | {"ssm__inner_size": 32, "full_attention_interval": 2, "attention__key_length": 16,
                            "rope__dimension_count": 4}
mixed = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 8}
lone = state | {"block_count": 3, "feed_forward_length": [0, 0, 48], "attention__head_count": 2,
                "attention__head_count_kv": [0, 1, 0], "attention__key_length": 16}
altup = heads | {"block_count": 4, "attention__key_length": 16, "attention__sliding_window": 16,
                 "attention__sliding_window_pattern": [True, False] * 2, "attention__shared_kv_layers": 2,
                 "altup__num_inputs": 3, "altup__active_idx": 1, "embedding_length_per_layer_input": 8,
                 "activation_sparsity_scale": [1.5, -math.inf, 1.5, -math.inf], "feed_forward_length": [48] * 4,
                 "final_logit_softcapping": 30.0}
MODELS = {
    "deepseek2": (*common("deepseek2", **heads, **mixed, expert_shared_count=1, expert_gating_func=2,
                          expert_group_count=2, expert_group_used_count=1, expert_weights_scale=2.5,
                          attention__kv_lora_rank=16, attention__q_lora_rank=12, attention__key_length_mla=12,
                          attention__value_length_mla=8, rope__dimension_count=4),
                  norms(0) + norms(1) + latent(0) + latent(1) + dense(0) + experts(1, bias=True)),
    "llama4": (*common("llama4", **heads, **mixed, attention__sliding_window=8192),
               norms(0) + norms(1) + attention(0) + attention(1) + dense(0) + experts(1)),
    "falcon-h1": (*common("falcon-h1", **heads, **state), norms(0, "ffn_norm") + norms(1, "ffn_norm") + attention(0) +
                  attention(1) + dense(0) + dense(1) + mamba(0, norm=False) + mamba(1, norm=False)),
    "nemotron_h": (*common("nemotron_h", **lone), norms(0, None) + norms(1, None) + norms(2, None) + mamba(0) +
                   attention(1) + dense(2, gate=False)),
    "nemotron_h_moe": (*common("nemotron_h_moe", **lone, **mixed, expert_shared_count=1), norms(0, None) +
                       norms(1, None) + norms(2, None) + mamba(0) + attention(1) + experts(2, gate=False, bias=True)),
    "qwen3next": (*common("qwen3next", **deltanet, **mixed, expert_shared_feed_forward_length=8), norms(0, POST_NORM) +
                  norms(1, POST_NORM) + delta(0, False) + attention(1, 64, 16) + experts(0, router=True) +
                  experts(1, router=True)),
    "qwen35": (*common("qwen35", **deltanet), norms(0, POST_NORM) + norms(1, POST_NORM) + delta(0, True) +
               attention(1, 64, 16) + dense(0) + dense(1)),
    "gemma3n": (*common("gemma3n", **altup), STREAMS + [row for i in range(4) for row in norms(i) + streams(i) +
                                                        attention(i, width=16) + dense(i)]),
    "bamba": (*common("granitehybrid", **heads | state | {"attention__head_count_kv": [0, 1]}, attention__key_length=16,
                      rope__scaling__finetuned=True), norms(0) + norms(1) + mamba(0) + attention(1) + dense(0) +
              dense(1)),
}


def pair(v):
    if isinstance(v, list):
        kind, code = {float: (g.F32, "<f"), bool: (g.BOOL, "<?")}.get(type(v[0]) if v else int, (g.I32, "<i"))
        return g.ARRAY, g.array(kind, [struct.pack(code, x) for x in v])
    if isinstance(v, bool):
        return g.BOOL, struct.pack("<?", v)
    if isinstance(v, float):
        return g.F32, struct.pack("<f", v)
    return (g.U32, struct.pack("<I", v)) if 0 <= v < 1 << 32 else (g.I64, struct.pack("<q", v))


def make(arch, keys, rows):
    tokens = g.array(g.STRING, [g.text(t) for t in g.letters() + ["ab", "abc", "<|s|>", "<|e|>"]])
    pairs = {"general.architecture": (g.STRING, g.text(arch)), **{key: pair(v) for key, v in keys.items()},
             "tokenizer.ggml.model": (g.STRING, g.text("gpt2")), "tokenizer.ggml.pre": (g.STRING, g.text("smollm")),
             "tokenizer.ggml.tokens": (g.ARRAY, tokens), "tokenizer.ggml.eos_token_id": pair(259),
             "tokenizer.ggml.merges": (g.ARRAY, g.array(g.STRING, [g.text("a b"), g.text("ab c")]))}
    source, head, data = random.Random(1), b"", b""
    for name, shape in HEAD + rows:
        dims = b"".join(struct.pack("<Q", extent) for extent in reversed(shape))
        head += g.text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", 0, len(data))
        data += g.values(source, shape, "F32")
        data += bytes(-len(data) % 32)
    first = b"GGUF" + struct.pack("<IQQ", 3, len(HEAD + rows), len(pairs))
    head = first + b"".join(g.text(k) + struct.pack("<I", t) + v for k, (t, v) in pairs.items()) + head
    return head + bytes(-len(head) % 32) + data


# ---- the damage ------------------------------------------------------------------------------------------------------


def senseless(v):
    if isinstance(v, list):
        lists = [[0], [1], [-1], [(1 << 31) - 1]] + ([[math.nan], [math.inf]] if isinstance(v[0], float) else [])
        return [v[:-1], [], *[x * len(v) for x in lists], 48]
    if isinstance(v, float):
        return [0.0, float("nan"), float("inf")]
    return [0, 3, 65535, -1, 1 << 62, [0, 1]]


def cases():
    """(what, file, what the error must say; None: it must be computed)"""
    source = random.Random(1)
    for name, (arch, keys, rows) in MODELS.items():
        whole = make(arch, keys, rows)
        yield f"{name}: whole", whole, None
        for cut in range(4):
            yield f"{name}: cut {cut}", whole[:source.randrange(len(whole))], ""
        for key, v in keys.items():
            yield f"{name} without {key}", make(arch, {k: x for k, x in keys.items() if k != key}, rows), ""
            for other in senseless(v):
                yield f"{name}: {key} = {other}", make(arch, keys | {key: other}, rows), ""
        for i, (tensor, shape) in enumerate(rows):
            yield f"{name} without {tensor}", make(arch, keys, rows[:i] + rows[i + 1:]), ""
            turned = (4,) if len(shape) == 1 and shape != (4,) else (shape[0] + 1, *shape[1:])
            yield f"{name}: {tensor} {turned}", make(arch, keys, [*rows[:i], (tensor, turned), *rows[i + 1:]]), ""
    arch, keys, rows = MODELS["deepseek2"]
    thin = {k: v for k, v in keys.items() if not k.endswith("expert_feed_forward_length")}
    thin |= {"deepseek2.feed_forward_length": 1, "deepseek2.expert_shared_feed_forward_length": 8}
    shapes = {"ffn_up_exps": (4,), "ffn_gate_exps": (4,), "ffn_down_exps": (4, W), "ffn_up": (1, W), "ffn_gate": (1, W),
              "ffn_down": (W, 1)}
    yield ("experts without a width", make(arch, thin, [(n, shapes.get(n.split(".")[2], s)) for n, s in rows]),
           "key 'deepseek2.feed_forward_length' is 1; it must lie between 2")
    yield ("another gating function", make(arch, keys | {"deepseek2.expert_gating_func": 3}, rows),
           "known are 1 (softmax) and 2 (sigmoid)")
    yield ("no router", make(arch, keys, [row for row in rows if "ffn_gate_inp" not in row[0]]),
           "no tensor 'blk.1.ffn_gate_inp.weight'")


def run_one(job):
    program, folder, number, (what, data, wanted) = job
    path = os.path.join(folder, f"{number}.gguf")
    pathlib.Path(path).write_bytes(data)
    try:
        run = subprocess.run([program, "generate", "-m", path, "-p", "abc ab", "-n", "2", "--greedy", "--threads", "1"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=g.limit, timeout=g.SECONDS)
    except subprocess.TimeoutExpired:
        return f"{what}: did not end within {g.SECONDS} s"
    said = " ".join(run.stderr.decode(errors="replace").split())
    os.unlink(path)
    if run.returncode not in (0, 1) or (wanted is None and run.returncode):
        return f"{what}: ended with {run.returncode}: {said[:300]}"
    unclear = run.returncode == 1 and not WHERE.search(said)
    return f"{what}: says {said[:300]}" if unclear or (wanted or "") not in said else None


def cache_of(program, path, model):
    pathlib.Path(path).write_bytes(make(*model))
    told = subprocess.run([program, "fit", path], capture_output=True, text=True).stdout
    return re.search(r"cache +(\S+ \S+)", told)[1]


def main():
    program, each = str((g.ROOT / sys.argv[1] / "trunnion").resolve()), int([*sys.argv, "1"][2])
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(program, folder, number, case) for number, case in enumerate(cases()) if case[2] != "" or number % each == 0]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            faults = [fault for fault in pool.map(run_one, jobs) if fault]
        arch, keys, rows = MODELS["qwen3next"]  # that layer 0 is recurrent may be said twice
        twice = arch, keys | {"qwen3next.attention.head_count_kv": [0, 1]}, rows
        caches = [cache_of(program, os.path.join(folder, "fit.gguf"), m) for m in ((arch, keys, rows), twice)]
    if caches[0] != caches[1]:
        faults.append(f"a recurrent layer said twice is counted twice: caches of {caches}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if peak > g.MEMORY:
        faults.append(f"a run took {peak >> 20} MiB; {g.MEMORY >> 20} are allowed")
    print(*faults, f"at most {peak >> 20} MiB", sep="\n")
    print(f"{len(jobs) + 1 - len(faults)} passed, {len(faults)} failed, 0 skipped")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        sys.exit(print(__doc__))
    sys.exit(main())
