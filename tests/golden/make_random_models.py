"""Makes tests/golden/random_models.json: models of all families with configurations drawn at random, keys left out at
random, and what PyTorch computes for them in fp64.

    pip install torch transformers safetensors           # made with torch 2.15, transformers 5.17, on a CPU
    python tests/golden/make_random_models.py            # rewrites the file, the same bytes every time

No weight is stored: numbers(name, count) below and in tests/model/random_models_test.cpp are the same. Of every tensor
there are two numbers, [its norm, its product with numbers(name)]. An error e of a tensor changes the second by about
|e| / sqrt(3), so that nothing can be wrong unseen.
"""

import json
import math
import pathlib
import random
import sys
import tempfile

sys.dont_write_bytecode = True

import numpy
import torch
import transformers
from make_fixtures import decided, evaluate, load
from safetensors.numpy import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

CASES = 3  # of every family
LENGTHS = [9, 1, 19]
MOST_PARAMETERS = 60_000


def numbers(name, count):
    """Multiples of 2^-23 in [-1, 1): splitmix64 of FNV-1a of the name, and on."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        x = numpy.uint64(state) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        x = x ^ (x >> numpy.uint64(31))
    return (x >> numpy.uint64(40)).astype(numpy.float64) / 2**23 - 1


def weights(name, shape, gemma):
    """Norms around one (Gemma's add it themselves), vectors small, matrices so that every part of a model matters."""
    drawn = numbers(name, math.prod(shape))
    if "norm" in name:
        drawn = drawn / 4 + (0 if gemma else 1)
    elif len(shape) == 1 or name.endswith("_bias"):
        drawn = drawn / 4
    else:
        drawn = drawn / (2 if "embed" in name else 2 ** round(math.log2(math.sqrt(max(shape[1:]) / 3))))
    return drawn.astype(numpy.float32).reshape(shape)


class Draw:
    """A configuration, key by key; what maybe() leaves out is the family's default."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.config = {}

    def give(self, **keys):
        self.config.update(keys)

    def maybe(self, **choices):
        for key, values in choices.items():
            if self.random.random() < 0.6:
                self.config[key] = self.random.choice(values)

    def sizes(self, heads, width=1):
        count = self.random.choice(heads)
        self.give(hidden_size=count * self.random.choice([4, 6, 10]) * width, num_attention_heads=count,
                  intermediate_size=self.random.choice([10, 17, 24]), vocab_size=self.random.choice([31, 40]),
                  num_hidden_layers=self.random.choice([1, 2, 4]), pad_token_id=0)
        self.maybe(num_key_value_heads=[n for n in (1, 2, 4, 8) if count % n == 0], rms_norm_eps=[1e-5, 1e-3],
                   tie_word_embeddings=[True, False], max_position_embeddings=[64, 128])

    def rope(self):
        kind = self.random.choice(["none", "none", "linear", "yarn", "llama3"])
        self.maybe(rope_theta=[500.0, 50000.0])
        if kind == "linear":
            self.give(rope_scaling=dict(rope_type="linear", factor=3.0))
        elif kind == "yarn":
            self.give(max_position_embeddings=64,
                      rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))
        elif kind == "llama3":
            self.give(rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=16))

    def layer_types(self):
        if self.random.random() < 0.4:
            kinds = ["sliding_attention", "full_attention"]
            self.give(layer_types=[self.random.choice(kinds) for _ in range(self.config["num_hidden_layers"])])


def draw(family, d):
    few, eight = [1, 2, 3, 4], [8]
    heads = dict(head_dim=[6, 8, 14])
    if family in ("llama", "granite", "smollm3", "olmo2", "olmo3"):
        d.sizes([4, 8] if family == "smollm3" else few, 2)
        d.maybe(attention_bias=[True, False])
        if family != "olmo3":
            d.rope()
        if family != "granite":
            d.maybe(**heads) if family != "olmo3" else None
        if family in ("llama", "granite", "smollm3"):
            d.maybe(mlp_bias=[True, False])
        if family == "granite":
            d.maybe(embedding_multiplier=[12.0, 0.7], residual_multiplier=[0.22, 1.3], attention_multiplier=[0.1, 0.4],
                    logits_scaling=[16.0, 0.9])
        if family == "smollm3":
            d.maybe(no_rope_layer_interval=[1, 2, 3], use_sliding_window=[True], sliding_window=[5])
        if family == "olmo3":
            d.maybe(rope_theta=[700.0], sliding_window=[5, None])
            d.layer_types()
    elif family == "granitemoehybrid":
        d.sizes([2, 4], 2)
        d.rope()
        d.give(num_local_experts=0, layer_types=["attention"] * d.config["num_hidden_layers"],
               shared_intermediate_size=22, mamba_n_heads=d.config["hidden_size"])
        d.maybe(attention_bias=[True], embedding_multiplier=[12.0], residual_multiplier=[0.22],
                attention_multiplier=[0.1], logits_scaling=[3.0], position_embedding_type=["rope", "nope"])
    elif family in ("mistral", "mixtral", "gpt_oss"):
        d.sizes(eight, 1 if family == "gpt_oss" else 2)
        d.rope()
        d.maybe(sliding_window=[4, None])
        if family == "mistral":
            d.maybe(**heads)
        else:
            d.give(num_local_experts=4, num_experts_per_tok=2, head_dim=d.random.choice([6, 8]))
            d.maybe(output_router_logits=[True], router_aux_loss_coef=[0.3])
    elif family in ("qwen2", "qwen3", "qwen3_moe"):
        d.sizes([8] if family == "qwen3_moe" else few, 2)
        d.config.setdefault("num_key_value_heads", 1)
        d.rope()
        d.maybe(use_sliding_window=[True, False], sliding_window=[5])
        if family != "qwen3_moe":
            d.maybe(max_window_layers=[0, 1])
            d.layer_types()
        if family != "qwen2":
            d.maybe(attention_bias=[True, False])
            d.give(head_dim=d.random.choice([6, 8]))
        if family == "qwen3_moe":
            d.give(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=9)
            d.maybe(norm_topk_prob=[True, False], decoder_sparse_step=[1, 2], output_router_logits=[True])
    elif family in ("gemma", "gemma2", "gemma3_text"):
        d.sizes([4, 8] if family != "gemma" else [1, 2])
        d.config.setdefault("num_key_value_heads", 1) if family == "gemma" else None
        d.give(head_dim=d.random.choice([6, 8, 14]))
        d.maybe(attention_bias=[True, False])
        if family == "gemma3_text":
            d.maybe(rope_theta=[700.0], rope_local_base_freq=[90.0], sliding_window_pattern=[2, 3],
                    rope_scaling=[dict(rope_type="linear", factor=8.0)])
        else:
            d.rope()
        if family != "gemma":
            d.maybe(sliding_window=[5, None], query_pre_attn_scalar=[5, 24], final_logit_softcapping=[3.0, None])
            d.layer_types()
        if family == "gemma2":
            d.maybe(attn_logit_softcapping=[2.0, None])
    elif family == "phi3":
        d.sizes(few, 2)
        d.maybe(rope_theta=[700.0], sliding_window=[5, None], original_max_position_embeddings=[12],
                partial_rotary_factor=[0.5, 0.8])
        width = d.config["hidden_size"] // d.config["num_attention_heads"]
        pairs = int(width * d.config.get("partial_rotary_factor", 1.0)) // 2
        if d.random.random() < 0.6:
            d.give(rope_scaling=dict(type="longrope", short_factor=[1 + i / 4 for i in range(pairs)],
                                     long_factor=[1.0 + 2 * i for i in range(pairs)]))
    elif family in ("glm", "glm4"):
        d.sizes([2, 4], 2)
        d.give(head_dim=d.random.choice([8, 12]))
        d.maybe(attention_bias=[True, False], rope_theta=[700.0], partial_rotary_factor=[0.25, 1.0])
    return d.config


FAMILIES = ["gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_oss", "granite", "granitemoehybrid", "llama",
            "mistral", "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3"]


def two_numbers(name, tensor):
    values = tensor.detach().double().flatten().numpy()
    return [float(numpy.linalg.norm(values)), float(values @ numbers(name, values.size))]


def make(family, seed, folder):
    """A case, or nothing where transformers refuses what was drawn, or it is too large."""
    config = {"model_type": family, **draw(family, Draw(f"{family} {seed}"))}
    (folder / "config.json").write_text(json.dumps(config))
    try:
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family].from_dict(json.loads(json.dumps(config))))
    except Exception:
        return None
    count = sum(parameter.numel() for parameter in model.parameters())
    ropes = model.config.rope_parameters or {}
    width = getattr(model.config, "head_dim", None) or config["hidden_size"] // config["num_attention_heads"]
    if count > MOST_PARAMETERS or int(width * ropes.get("partial_rotary_factor", 1.0)) % 2 != 0:
        return None
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    stored = load_file(folder / "model.safetensors")
    gemma = family.startswith("gemma")
    save_file({name: weights(name, tensor.shape, gemma) for name, tensor in stored.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    exact, generator = load(folder, torch.float64), random.Random(seed)
    try:
        exact(input_ids=torch.tensor([[3, 4]]))
    except Exception:  # a window of null on a layer that should have one
        return None
    documents = []
    for length in LENGTHS:
        for _ in range(200):
            ids = [generator.randrange(3, config["vocab_size"]) for _ in range(length)]
            if decided(exact, torch.tensor(ids)):
                break
        else:
            return None
        documents.append(dict(input_ids=ids, labels=[i if generator.random() < 0.8 else -100 for i in ids]))
    truth, valid = evaluate(folder, documents, torch.float64)
    return dict(config=config, parameters=count, documents=documents, valid_labels=valid, loss=truth["loss"].item(),
                tensors={name: two_numbers(name, truth[name]) for name in truth if name.startswith(("logits.", "grad."))})


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    cases = []
    for family in FAMILIES:
        found, seed = 0, 0
        while found < CASES:
            seed += 1
            assert seed < 60, family
            with tempfile.TemporaryDirectory() as folder:
                case = make(family, seed, pathlib.Path(folder))
            if case is not None:
                cases.append(case)
                found += 1
        print(f"{family}: {CASES} of {seed}", flush=True)
    lines = ",\n ".join(json.dumps(case) for case in cases)
    target = pathlib.Path(__file__).parent / "random_models.json"
    target.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n {lines}\n]}}\n')


if __name__ == "__main__":
    main()
