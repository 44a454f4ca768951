#!/usr/bin/env python3
"""Holds what `inlay export gguf` writes against the gguf package and llama.cpp, both from PyPI:

    python3 -m venv V && V/bin/pip install gguf numpy xllamacpp
    V/bin/python tests/golden/check_gguf.py build/inlay [MODEL_FOLDER ...]

A small model of every family with random weights is exported in fp32, read back, and continued by llama.cpp and by inlay: the
greedy tokens must be the same. q8_0 and mxfp4 must be, byte for byte, what gguf's own quantiser makes of the same numbers. Of
real models the greedy answers to some prompts must be the same, as texts and through their chat template."""
import json, os, struct, subprocess, sys, tempfile
import numpy as np
import gguf
import xllamacpp as xlc

inlay = os.path.abspath(sys.argv[1])
failures = []


def check(what, good, detail=""):
    print(("ok    " if good else "WRONG ") + what + ("" if good else f": {detail}"), flush=True)
    if not good:
        failures.append(what)


def run(*words):
    result = subprocess.run([inlay, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"inlay {' '.join(map(str, words))}: {result.stderr}")
    return result.stdout


def save_tensors(path, tensors):
    head, at, blobs = {}, 0, []
    for name, value in tensors.items():
        packed = np.asarray(value).dtype == np.uint8
        value = np.ascontiguousarray(value, dtype=np.uint8 if packed else np.float32)
        head[name] = {"dtype": "U8" if packed else "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
        blobs.append(value.tobytes())
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def bytes_to_unicode():
    shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {b: chr(b) for b in shown}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def byte_tokenizer(folder, vocab):
    table = bytes_to_unicode()
    tokens = {table[b]: b for b in range(128)}  # whole characters alone: llama.cpp reports no ids of parts of one
    tokens.update({f"w{i}": i for i in range(128, 256)})
    tokens["Ġt"], tokens["he"], tokens["Ġthe"] = 256, 257, 258
    added = [{"id": 259, "content": "<bos>", "special": True}, {"id": 260, "content": "<eos>", "special": True}]
    for token in added:
        token.update(single_word=False, lstrip=False, rstrip=False, normalized=False)
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
               "post_processor": None, "decoder": {"type": "ByteLevel"},
               "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                         "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": tokens,
                         "merges": ["Ġ t", "h e", "Ġt he"]}}, open(f"{folder}/tokenizer.json", "w"))
    json.dump({"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": False,
               "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
              open(f"{folder}/tokenizer_config.json", "w"))


H, I, V, HEADS, KV, D = 64, 96, 264, 4, 2, 32
BASE = dict(hidden_size=H, intermediate_size=I, vocab_size=V, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=D,
            num_hidden_layers=4, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
            bos_token_id=259, eos_token_id=260, torch_dtype="float32")
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
MOE = dict(num_local_experts=4, num_experts_per_tok=2)
FAMILIES = {
    "llama": dict(model_type="llama"),
    "llama llama3 tied biases": dict(model_type="llama", rope_scaling=LLAMA3, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama linear": dict(model_type="llama", rope_scaling=dict(rope_type="linear", factor=2.0)),
    "llama yarn": dict(model_type="llama", rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)),
    "mistral": dict(model_type="mistral", sliding_window=None),
    "mixtral": dict(model_type="mixtral", **MOE),
    "qwen2": dict(model_type="qwen2", head_dim=16),
    "qwen3": dict(model_type="qwen3"),
    "qwen3_moe": dict(model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True),
    "gpt_oss": dict(model_type="gpt_oss", sliding_window=8, rope_scaling=dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=True), **MOE),
    "gemma": dict(model_type="gemma", tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh"),
    "gemma2": dict(model_type="gemma2", tie_word_embeddings=True, query_pre_attn_scalar=D, sliding_window=8),
    "gemma3_text": dict(model_type="gemma3_text", tie_word_embeddings=True, query_pre_attn_scalar=D, sliding_window=8, num_hidden_layers=7),
    "phi3": dict(model_type="phi3", num_attention_heads=2, head_dim=None),
    "granite": dict(model_type="granite", embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0),
    "granitemoehybrid": dict(model_type="granitemoehybrid", num_local_experts=0, layer_types=["attention"] * 4, shared_intermediate_size=I,
                             embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0, position_embedding_type="rope"),
    "granitemoehybrid nope": dict(model_type="granitemoehybrid", num_local_experts=0, layer_types=["attention"] * 4, shared_intermediate_size=I,
                                  attention_multiplier=0.2, position_embedding_type="nope"),
    "smollm3": dict(model_type="smollm3", no_rope_layers=[1, 1, 1, 0], tie_word_embeddings=True),
    "olmo2": dict(model_type="olmo2", head_dim=16),
    "olmo3": dict(model_type="olmo3", sliding_window=8, head_dim=16, rope_theta=500000.0),
    "glm": dict(model_type="glm", partial_rotary_factor=0.5, head_dim=16),
    "glm4": dict(model_type="glm4", partial_rotary_factor=0.5, attention_bias=True),
}


def tensors_of(c, rng):
    kind, h, inter = c["model_type"], c["hidden_size"], c["intermediate_size"]
    heads, kv, d = c["num_attention_heads"], c["num_key_value_heads"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    out = {}

    def w(name, *shape):
        out[name] = rng.normal(0, 1.5 / np.sqrt(shape[-1]), shape)

    def norm(name, n, centre=1.0):
        out[name] = centre + rng.normal(0, 0.2, n)

    centre = 0.0 if kind.startswith("gemma") else 1.0
    w("model.embed_tokens.weight", c["vocab_size"], h)
    norm("model.norm.weight", h, centre)
    if not c["tie_word_embeddings"]:
        w("lm_head.weight", c["vocab_size"], h)
    qkv_bias = c.get("attention_bias", kind in ("qwen2", "gpt_oss", "glm"))
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        if kind not in ("olmo2", "olmo3"):
            norm(p + "input_layernorm.weight", h, centre)
        if kind == "phi3":
            w(p + "self_attn.qkv_proj.weight", (heads + 2 * kv) * d, h)
        else:
            for n, rows in (("q", heads * d), ("k", kv * d), ("v", kv * d)):
                w(p + f"self_attn.{n}_proj.weight", rows, h)
                if qkv_bias:
                    out[p + f"self_attn.{n}_proj.bias"] = rng.normal(0, 0.3, rows)
        w(p + "self_attn.o_proj.weight", h, heads * d)
        if qkv_bias and kind in ("llama", "gpt_oss"):
            out[p + "self_attn.o_proj.bias"] = rng.normal(0, 0.3, h)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            norm(p + "self_attn.q_norm.weight", d, centre), norm(p + "self_attn.k_norm.weight", d, centre)
        if kind in ("olmo2", "olmo3"):
            norm(p + "self_attn.q_norm.weight", heads * d), norm(p + "self_attn.k_norm.weight", kv * d)
        norm(p + "post_attention_layernorm.weight", h, centre)
        if kind in ("gemma2", "gemma3_text"):
            norm(p + "pre_feedforward_layernorm.weight", h, centre)
        if kind in ("gemma2", "gemma3_text", "olmo2", "olmo3"):
            norm(p + "post_feedforward_layernorm.weight", h, centre)
        if kind == "glm4":
            norm(p + "post_self_attn_layernorm.weight", h), norm(p + "post_mlp_layernorm.weight", h)
        if kind == "gpt_oss":
            out[p + "self_attn.sinks"] = rng.normal(0, 1, heads)
            e = c["num_local_experts"]
            w(p + "mlp.router.weight", e, h)
            out[p + "mlp.router.bias"] = rng.normal(0, 0.3, e)
            for n, i, o in (("gate_up_proj", h, 2 * inter), ("down_proj", inter, h)):
                out[p + f"mlp.experts.{n}"] = rng.normal(0, 1.5 / np.sqrt(i), (e, i, o))
                out[p + f"mlp.experts.{n}_bias"] = rng.normal(0, 0.3, (e, o))
        elif kind in ("mixtral", "qwen3_moe"):
            e = c.get("num_local_experts") or c["num_experts"]
            width = c.get("moe_intermediate_size", inter)
            block = "block_sparse_moe" if kind == "mixtral" else "mlp"
            names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
            w(p + block + ".gate.weight", e, h)
            for x in range(e):
                w(p + f"{block}.experts.{x}.{names[0]}.weight", width, h)
                w(p + f"{block}.experts.{x}.{names[1]}.weight", width, h)
                w(p + f"{block}.experts.{x}.{names[2]}.weight", h, width)
        elif kind in ("phi3", "glm", "glm4"):
            w(p + "mlp.gate_up_proj.weight", 2 * inter, h), w(p + "mlp.down_proj.weight", h, inter)
        elif kind == "granitemoehybrid":
            w(p + "shared_mlp.input_linear.weight", 2 * inter, h), w(p + "shared_mlp.output_linear.weight", h, inter)
        else:
            for n, rows, cols in (("gate", inter, h), ("up", inter, h), ("down", h, inter)):
                w(p + f"mlp.{n}_proj.weight", rows, cols)
                if c.get("mlp_bias"):
                    out[p + f"mlp.{n}_proj.bias"] = rng.normal(0, 0.3, rows)
    return out


def server(path, context=512):
    params = xlc.CommonParams()
    params.model.path = path
    params.n_ctx = context
    params.n_parallel = 1
    params.warmup = False
    params.cpuparams.n_threads = 2
    params.cache_type_k = params.cache_type_v = xlc.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xlc.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.verbosity = 0
    return xlc.Server(params)


def continued(llama, prompt, count):
    answer = llama.handle_completions({"prompt": prompt, "n_predict": count, "temperature": 0.0, "top_k": 1, "logprobs": 1,
                                       "cache_prompt": False, "ignore_eos": False, "stream": False})
    return answer if isinstance(answer, dict) else json.loads(answer)


def tensors_in(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def check_quantised(what, folder, floats):
    for name, kind in (("q8_0", gguf.GGMLQuantizationType.Q8_0), ("mxfp4", gguf.GGMLQuantizationType.MXFP4)):
        path = f"{folder}-{name}.gguf"
        run("export", "gguf", folder, path, "--type", name, "--quiet")
        wrong, seen = [], 0
        for key, tensor in tensors_in(path).items():
            if tensor.tensor_type not in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.MXFP4):
                continue
            seen += tensor.tensor_type == kind
            numbers = floats[key].data.astype(np.float32).reshape(floats[key].data.shape)
            if not np.array_equal(gguf.quants.quantize(numbers, tensor.tensor_type), tensor.data):
                wrong.append(key)
        check(f"{what}: {name} is gguf's", not wrong and seen > 0, f"{wrong[:3]}, {seen} tensors")


work = tempfile.mkdtemp()
for number, (what, changes) in enumerate(FAMILIES.items()):
    c = {**BASE, **changes}
    folder, rng = f"{work}/{number}", np.random.default_rng(number)
    os.makedirs(folder)
    json.dump({k: v for k, v in c.items() if v is not None}, open(f"{folder}/config.json", "w"))
    save_tensors(f"{folder}/model.safetensors", tensors_of(c, rng))
    byte_tokenizer(folder, V)
    path = f"{work}/{number}.gguf"
    try:
        run("export", "gguf", folder, path, "--type", "f32", "--quiet")
        prompt, count = [int(x) for x in rng.integers(0, 128, 24)], 24
        ours = json.loads(run("generate", folder, "--ids", ",".join(map(str, prompt)), "--max-new-tokens", count, "--device", "cpu",
                              "--dtype", "fp32", "--json", "--quiet"))["ids"]
        theirs = continued(server(path), prompt, count)
        made = [token["id"] for token in theirs["choices"][0]["logprobs"]["content"]]
        made = made[:made.index(260)] if 260 in made else made
        ours = ours[:ours.index(260)] if 260 in ours else ours
        check(f"{what}: llama.cpp goes on as inlay does", made == ours and len(ours) > 3, f"{made} and {ours}")
        if what in ("llama", "mixtral"):
            check_quantised(what, folder, tensors_in(path))
    except Exception as error:
        check(what, False, str(error)[-400:])

# Experts in MXFP4 are taken over as they are: of rows 2i and 2i + 1 of gate_up_proj one is gate's, the other up's.
c, rng, folder = {**BASE, **FAMILIES["gpt_oss"], "quantization_config": {"quant_method": "mxfp4"}}, np.random.default_rng(77), f"{work}/packed"
os.makedirs(folder)
json.dump(c, open(f"{folder}/config.json", "w"))
byte_tokenizer(folder, V)
tensors = tensors_of(c, rng)
codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
decoded = {}
for l in range(c["num_hidden_layers"]):
    for n, rows, cols in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
        name = f"model.layers.{l}.mlp.experts.{n}"
        del tensors[name]
        blocks = rng.integers(0, 256, (4, rows, cols // 32, 16)).astype(np.uint8)
        scales = rng.integers(118, 126, (4, rows, cols // 32)).astype(np.uint8)
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
        values = np.stack([codes[blocks & 15], codes[blocks >> 4]], axis=-1).reshape(4, rows, cols // 32, 32)
        decoded[(l, n)] = (values * np.exp2(scales.astype(np.float32) - 127)[..., None]).reshape(4, rows, cols)
save_tensors(f"{folder}/model.safetensors", tensors)
run("export", "gguf", folder, f"{work}/packed.gguf", "--type", "bf16", "--quiet")
found = tensors_in(f"{work}/packed.gguf")
for key, (l, n, part) in {"blk.0.ffn_gate_exps.weight": (0, "gate_up_proj", slice(0, None, 2)), "blk.3.ffn_up_exps.weight": (3, "gate_up_proj", slice(1, None, 2)),
                          "blk.2.ffn_down_exps.weight": (2, "down_proj", slice(None))}.items():
    tensor = found[key]
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(4, -1, int(tensor.shape[0]))
    check(f"gpt_oss in MXFP4: {key}", tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4 and np.array_equal(values, decoded[(l, n)][:, part]))

PROMPTS = ["Once upon a time", "The capital of France is", "def add(a, b):"]
for folder in sys.argv[2:]:
    name = os.path.basename(os.path.normpath(folder))
    for kind in ("auto", "q8_0"):
        path = f"{work}/{name}-{kind}.gguf"
        run("export", "gguf", folder, path, "--type", kind, "--quiet")
        llama = server(path)
        for prompt in PROMPTS:
            answer = continued(llama, prompt, 32)
            theirs = answer["choices"][0]["text"]
            ours = json.loads(run("generate", folder, "--prompt", prompt, "--max-new-tokens", 32, "--dtype", "fp32", "--device", "cpu",
                                  "--json", "--quiet"))["text"]
            if kind == "auto":
                check(f"{name}: {prompt!r}", theirs == ours, f"llama.cpp: {theirs!r}, inlay: {ours!r}")
            else:
                print(f"      {name} in q8_0: {prompt!r} {'the same' if theirs == ours else 'differs: ' + repr(theirs)}")
        if not os.path.exists(f"{folder}/tokenizer_config.json") or "chat_template" not in open(f"{folder}/tokenizer_config.json").read():
            continue
        question = "Name three colours."
        answer = llama.handle_chat_completions({"messages": [{"role": "user", "content": question}], "max_tokens": 32, "temperature": 0.0, "top_k": 1})
        answer = answer if isinstance(answer, dict) else json.loads(answer)
        theirs = answer["choices"][0]["message"]["content"]
        ours = json.loads(run("generate", folder, "--as", "chat", "--prompt", question, "--max-new-tokens", 32, "--dtype", "fp32",
                              "--device", "cpu", "--json", "--quiet"))["text"]
        if kind == "auto":
            check(f"{name}: chat", theirs == ours, f"llama.cpp: {theirs!r}, inlay: {ours!r}")

print(f"{len(failures)} wrong" if failures else "all well")
sys.exit(1 if failures else 0)
