"""Makes the small models of tests/golden/models, and what PyTorch says about them.

    pip install torch transformers safetensors      # made with torch 2.11, transformers 5.17, on a CPU
    python tests/golden/make_fixtures.py            # rewrites tests/golden/models/, the same bytes every time
    python tests/golden/make_fixtures.py NAME ...   # these alone

A folder holds a random model as transformers saves it, and
  data.jsonl            documents: input_ids and labels, -100 where nothing is learned
  expected.safetensors  logits.<document> [tokens, vocabulary] and grad.<parameter in the checkpoint>, computed in fp64
                        from the stored weights (rotary tables stay fp32, as transformers makes them) and rounded to
                        fp32 to be stored
  expected.json         loss, valid_labels: sum of cross entropies / labels that count, over all documents, each
                        attended alone, and the load-balancing loss of all documents' tokens where the configuration
                        has output_router_logits; loss_fp64: the same in fp64
                        adamw: its options, and the losses of ten steps on all documents, in fp32
                        fp32, bf16: by how much PyTorch itself, in that dtype, misses the fp64 truth,
                        ||x - truth|| / ||truth||, for "loss", "logits" (all documents together) and every tensor of
                        expected.safetensors. The error of a sum may be small by luck: "loss_typical" is what it would
                        be if the errors of the labels had random signs, sqrt(sum of e_i squared) / (sum of losses)
"""

import argparse
import json
import math
import os
import pathlib
import shutil

# Virtual machines that hide half of AMX make oneDNN fail in bf16; without AMX the sums are fp32 all the same.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config, Gemma3Config, Gemma3TextConfig, GemmaConfig, Glm4Config, GlmConfig, GptOssConfig, GraniteConfig,
    GraniteMoeHybridConfig, LlamaConfig, Mistral3Config, MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config,
    Phi3Config, Qwen2Config, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)

LENGTHS = [13, 1, 29, 7, 22]
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
COMMON = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0, use_cache=False)


def legacy_rope(config):
    """Writes the rotary settings and the dtype the way configurations before transformers 5 did."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["torch_dtype"] = config.pop("dtype")
    if "type" not in rope and rope["rope_type"] == "linear":
        rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope


def legacy_gemma3(config):
    """Two thetas, one scaling and a pattern, as the published files have them, and no default spelled out."""
    ropes = config.pop("rope_parameters")
    config["rope_theta"] = ropes["full_attention"].pop("rope_theta")
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = ropes["full_attention"]
    config["sliding_window_pattern"] = 3
    for key in ("layer_types", "tie_word_embeddings", "hidden_activation", "rms_norm_eps", "attention_bias"):
        del config[key]


def published_gemma3(config):
    """As the files of the models with images have it."""
    text = config["text_config"]
    legacy_gemma3(text)
    for key in ("rope_theta", "rope_local_base_freq", "num_attention_heads", "num_key_value_heads"):  # the defaults
        del text[key]
    text["rope_scaling"] = dict(factor=8.0, rope_type="linear")
    del config["tie_word_embeddings"]
    config["torch_dtype"] = config.pop("dtype")


def legacy_phi3(config):
    """As Phi-3's own files: the scaling and its type under their old names, the share of a head beside them."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    rope.pop("original_max_position_embeddings")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope


# name -> configuration, dtype of the checkpoint, largest shard, and what is done to config.json after saving
MODELS = {
    # Grouped queries, heads that do not add up to the hidden size, nothing a multiple of eight; three shards or more.
    "llama_linear_sharded": dict(
        config=LlamaConfig(
            hidden_size=36, intermediate_size=46, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            head_dim=10, vocab_size=113, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5), **COMMON),
        dtype=torch.float32, max_shard_size="60KB", edit=legacy_rope),
    # Every bias llama can have, llama3 scaling, tied head, config.json in the old spelling.
    "llama_llama3_tied": dict(
        config=LlamaConfig(
            hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
            head_dim=16, vocab_size=163, rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=32), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=legacy_rope),
    # A window shorter than the documents, one head of keys and values, saved in fp16.
    "mistral_window_fp16": dict(
        config=MistralConfig(
            hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            head_dim=16, vocab_size=131, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=6,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
        dtype=torch.float16, max_shard_size="5GB", edit=None),
    # Biases on q, k and v, YaRN, tied head, saved in bf16.
    "qwen2_yarn_bf16": dict(
        config=Qwen2Config(
            hidden_size=56, intermediate_size=88, num_hidden_layers=2, num_attention_heads=7, num_key_value_heads=1,
            vocab_size=173, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=64,
            rope_parameters=dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0,
                                 original_max_position_embeddings=16), **COMMON),
        dtype=torch.bfloat16, max_shard_size="5GB", edit=None),
    # Norms on q and k, an explicit head size, the second layer with a window.
    "qwen3_mixed_window": dict(
        config=Qwen3Config(
            hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=24, vocab_size=127, rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=True,
            sliding_window=9, max_window_layers=1,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Three of five experts, and a load-balancing loss large enough to be seen in every gradient.
    "mixtral_balance": dict(
        config=MixtralConfig(
            hidden_size=36, intermediate_size=22, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=10, vocab_size=107, rms_norm_eps=1e-5, tie_word_embeddings=False, num_local_experts=5,
            num_experts_per_tok=3, output_router_logits=True, router_aux_loss_coef=0.5, sliding_window=None,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Experts' weights as the softmax over all says, a layer without experts, a load-balancing loss.
    "qwen3_moe_mixed": dict(
        config=Qwen3MoeConfig(
            hidden_size=28, intermediate_size=44, moe_intermediate_size=18, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=12, vocab_size=101, rms_norm_eps=1e-6, tie_word_embeddings=True,
            num_experts=7, num_experts_per_tok=2, norm_topk_prob=False, mlp_only_layers=[1], decoder_sparse_step=1,
            output_router_logits=True, router_aux_loss_coef=0.3,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Sinks, windows on every second layer, YaRN, biases everywhere, stacked experts, a load-balancing loss.
    "gpt_oss_balance": dict(
        config=GptOssConfig(
            hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            head_dim=10, vocab_size=103, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=5,
            num_local_experts=5, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.4,
            max_position_embeddings=64,
            rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                 truncate=False, original_max_position_embeddings=16), **COMMON),
        dtype=torch.float32, max_shard_size="60KB", edit=None),
    # Norms by 1 + weight, GeGLU, embeddings scaled, one head of keys and values.
    "gemma_scaled": dict(
        config=GemmaConfig(
            hidden_size=24, intermediate_size=34, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            head_dim=10, vocab_size=61, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Norms around both blocks, softcaps low enough to matter, windows on every second layer.
    "gemma2_softcaps": dict(
        config=Gemma2Config(
            hidden_size=28, intermediate_size=38, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=10, vocab_size=67, sliding_window=5, query_pre_attn_scalar=7, attn_logit_softcapping=3.0,
            final_logit_softcapping=4.0, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Two rotations, the one scaled; norms on q and k; a window on two layers of three; the published files' spelling.
    "gemma3_two_ropes": dict(
        config=Gemma3TextConfig(
            hidden_size=24, intermediate_size=38, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=10, vocab_size=59, sliding_window=6, sliding_window_pattern=3, query_pre_attn_scalar=13,
            max_position_embeddings=128,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0)), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=legacy_gemma3),
    # qkv and gate/up in one tensor each, two thirds of a head rotate, some documents longer than the original length.
    "phi3_longrope": dict(
        config=Phi3Config(
            hidden_size=36, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            vocab_size=71, rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=64,
            original_max_position_embeddings=16, sliding_window=20, partial_rotary_factor=0.67,
            rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.67,
                                 short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.0, 2.5, 6.0, 17.0]), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=legacy_phi3),
    # All four multipliers and every bias.
    "granite_multipliers": dict(
        config=GraniteConfig(
            hidden_size=28, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=73, attention_bias=True, mlp_bias=True, embedding_multiplier=6.3, residual_multiplier=0.43,
            attention_multiplier=0.29, logits_scaling=3.7, tie_word_embeddings=True, head_dim=10, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Granite 4 without experts, state-space layers and rotation.
    "granite_hybrid_dense": dict(
        config=GraniteMoeHybridConfig(
            hidden_size=32, intermediate_size=36, shared_intermediate_size=42, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, vocab_size=79, num_local_experts=0, num_experts_per_tok=0,
            layer_types=["attention", "attention"], position_embedding_type="nope", embedding_multiplier=3.0,
            residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=2.5, mamba_n_heads=8, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Every second layer without rotation, and with a window instead.
    "smollm3_no_rope": dict(
        config=SmolLM3Config(
            hidden_size=24, intermediate_size=34, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=10, vocab_size=83, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=7, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Norms behind the blocks alone, and of all queries and keys of a token at once.
    "olmo2_norms_behind": dict(
        config=Olmo2Config(
            hidden_size=28, intermediate_size=38, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=10, vocab_size=89, attention_bias=True, **COMMON),
        dtype=torch.bfloat16, max_shard_size="5GB", edit=None),
    # The same with windows, and a scaled rotation for layers that have none.
    "olmo3_windows": dict(
        config=Olmo3Config(
            hidden_size=24, intermediate_size=34, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3,
            vocab_size=61, sliding_window=6, max_position_embeddings=64,
            rope_parameters=dict(
                full_attention=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                    original_max_position_embeddings=16),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # Half of a head rotates, in pairs of neighbours; biases on q, k and v.
    "glm_neighbours": dict(
        config=GlmConfig(
            hidden_size=28, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=12, vocab_size=67, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # The same with norms around both blocks.
    "glm4_four_norms": dict(
        config=Glm4Config(
            hidden_size=28, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
            head_dim=8, vocab_size=59, attention_bias=False, **COMMON),
        dtype=torch.float32, max_shard_size="5GB", edit=None),
    # A text model beside one of images, as published: the head is the embedding, most defaults are left out.
    "gemma3_images": dict(
        config=Gemma3Config(
            text_config=dict(
                hidden_size=24, intermediate_size=38, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4,
                head_dim=6, vocab_size=53, sliding_window=6, sliding_window_pattern=3, max_position_embeddings=128,
                query_pre_attn_scalar=7,
                rope_parameters=dict(
                    full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                    sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **COMMON),
            vision_config=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                               image_size=16, patch_size=8, vision_use_head=False),
            mm_tokens_per_image=4, image_token_index=52, boi_token_index=50, eoi_token_index=51),
        dtype=torch.bfloat16, max_shard_size="30KB", edit=published_gemma3),
    # The same of another family, with a head of its own; words of names in the order of transformers' modules.
    "mistral3_images": dict(
        config=Mistral3Config(
            text_config=dict(
                model_type="mistral", hidden_size=28, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=10, vocab_size=59, sliding_window=None, rms_norm_eps=1e-5,
                rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
            vision_config=dict(model_type="pixtral", hidden_size=8, intermediate_size=12, num_hidden_layers=1,
                               num_attention_heads=2, image_size=16, patch_size=8, head_dim=4),
            image_token_index=58, tie_word_embeddings=False),
        dtype=torch.float32, max_shard_size="5GB", edit=None, modules_names=True),
}


class DoubleTorch:
    """The torch module with float32 meaning float64. Handed to a modeling file, it turns that file's own casts to fp32
    (in the norms) into casts to fp64."""

    def __getattr__(self, name):
        return torch.float64 if name == "float32" else getattr(torch, name)


def is_with_images(config):
    return hasattr(config, "vision_config")


def auto_class(config):
    return transformers.AutoModelForImageTextToText if is_with_images(config) else transformers.AutoModelForCausalLM


def in_checkpoint(name, names):
    """A parameter's name among those of the file, where the prefix of a text model has another order of words."""
    turned = name.replace("model.language_model.", "language_model.model.").replace("lm_head.", "language_model.lm_head.")
    return name if name in names else turned


def randomise(model, generator):
    """Weights large enough that every part of the model matters; norms around one, biases around zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:  # Gemma's add the one themselves
                parameter.copy_(0.2 * noise + (0 if model.config.model_type.startswith("gemma") else 1))
            elif "language_model" not in name and "lm_head" not in name and is_with_images(model.config):
                parameter.copy_(0.2 * noise)
            elif parameter.dim() == 1 or name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.5 * noise if not model.config.tie_word_embeddings else 0.2 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))


def wide_norm(self, x):
    """Gemma's norm without its casts to fp32."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def decided(model, ids):
    """Whether no token's choice of experts hangs on the rounding of bf16: the last that is chosen and the first that is
    not are well apart, measured by how far the logits spread."""
    chosen = getattr(model.config, "num_experts_per_tok", None)
    if not chosen or getattr(model.config, "num_local_experts", None) == 0:
        return True
    with torch.no_grad():
        logits = torch.cat(model(input_ids=ids[None], output_router_logits=True).router_logits)
    ordered = logits.sort(dim=-1, descending=True).values
    return bool((ordered[:, chosen - 1] - ordered[:, chosen] > 0.05 * logits.std()).all())


def make_documents(model, generator):
    documents = []
    for length in LENGTHS:
        while True:
            top = 50 if is_with_images(model.config) else model.config.vocab_size  # the last are images
            ids = torch.randint(3, top, (length,), generator=generator)
            if decided(model, ids):
                break
        learned = torch.rand(length, generator=generator) < 0.7
        documents.append(dict(input_ids=ids.tolist(), labels=torch.where(learned, ids, -100).tolist()))
    return documents


def load(folder, dtype):
    # Sinks and softcaps are beyond PyTorch's own attention.
    config = transformers.AutoConfig.from_pretrained(folder)
    attention = "eager" if config.model_type in ("gpt_oss", "gemma2") else "sdpa"
    experts = {} if is_with_images(config) else dict(experts_implementation="eager")
    model = auto_class(config).from_pretrained(folder, dtype=dtype, attn_implementation=attention, **experts)
    return model.train()


def balance_loss(config, router_logits, wide):
    """Experts * sum over them of (share of rows that chose it) * (mean probability), over all layers' rows."""
    probabilities = torch.softmax(torch.cat(router_logits).to(wide), dim=-1)
    chosen = torch.topk(probabilities, config.num_experts_per_tok, dim=-1).indices
    experts = probabilities.shape[1]
    share = torch.bincount(chosen.flatten(), minlength=experts) / len(probabilities)
    return experts * (share * probabilities.mean(dim=0)).sum()


def forward(model, documents):
    """Loss, its summands, and logits. Cross entropy is taken in fp32 or, where the model is, in fp64."""
    wide = torch.float64 if model.dtype == torch.float64 else torch.float32
    entropies, valid, logits, router_logits = [], 0, [], []
    for document in documents:
        ids, labels = (torch.tensor(document[key]) for key in ("input_ids", "labels"))
        answer = model(input_ids=ids[None])
        output = answer.logits[0]
        router_logits += [layer for layer in getattr(answer, "router_logits", None) or [] if layer is not None]
        targets = labels[1:]
        entropies.append(torch.nn.functional.cross_entropy(output[:-1].to(wide), targets, reduction="none"))
        valid += int((targets != -100).sum())
        logits.append(output)
    entropies = torch.cat(entropies)  # 0 where the label does not count
    loss = entropies.sum() / valid
    if router_logits:
        loss = loss + model.config.router_aux_loss_coef * balance_loss(model.config, router_logits, wide)
    return loss, entropies, logits, valid


class Truth:
    """While it lasts, and the dtype is fp64, casts to fp32 in the model's own file are casts to fp64."""

    def __init__(self, folder, dtype):
        self.wide = dtype == torch.float64
        self.modeling = __import__(type(load(folder, dtype)).__module__, fromlist=["torch"])
        norm = next((value for name, value in vars(self.modeling).items() if name.endswith("RMSNorm")), None)
        self.norm = norm if norm is not None and norm.__name__.startswith("Gemma") else None
        self.usual = self.norm.forward if self.norm else None

    def __enter__(self):
        if self.wide:
            self.modeling.torch = DoubleTorch()
            if self.norm:
                self.norm.forward = wide_norm

    def __exit__(self, *_):
        self.modeling.torch = torch
        if self.norm:
            self.norm.forward = self.usual


def checkpoint_names(folder):
    return {name for file in folder.glob("model*.safetensors") for name in load_file(file)}


def evaluate(folder, documents, dtype):
    """All results in one dtype, as fp64 tensors, and the number of labels that count."""
    with Truth(folder, dtype):
        model = load(folder, dtype)
        loss, entropies, logits, valid = forward(model, documents)
        loss.backward()
    results = {"loss": loss, "entropies": entropies, "logits": torch.cat(logits)}
    results |= {f"logits.{i}": tensor for i, tensor in enumerate(logits)}
    names = checkpoint_names(folder)
    results |= {f"grad.{in_checkpoint(name, names)}": parameter.grad for name, parameter in model.named_parameters()
                if parameter.grad is not None}  # the part for images has none
    return {name: tensor.detach().double() for name, tensor in results.items()}, valid


def errors(results, truth):
    found = {name: (results[name] - truth[name]).norm() / truth[name].norm() for name in truth if name != "entropies"}
    found["loss_typical"] = (results["entropies"] - truth["entropies"]).norm() / truth["entropies"].sum()
    return {name: float(f"{error:.6e}") for name, error in found.items()}


def adamw_losses(folder, documents):
    model = load(folder, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for _ in range(10):
        loss, *_ = forward(model, documents)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make(name, spec, folder, seed):
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    experts = {} if is_with_images(spec["config"]) else dict(experts_implementation="eager")
    model = auto_class(spec["config"]).from_config(spec["config"], **experts)
    randomise(model, generator)
    documents = make_documents(model, generator)
    model.to(spec["dtype"]).save_pretrained(folder, max_shard_size=spec["max_shard_size"])
    if spec.get("modules_names"):
        tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if spec["edit"]:
        config = json.loads((folder / "config.json").read_text())
        spec["edit"](config)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))

    truth, valid = evaluate(folder, documents, torch.float64)
    fp32, _ = evaluate(folder, documents, torch.float32)
    bf16, _ = evaluate(folder, documents, torch.bfloat16)
    stored = {key: truth[key].float().contiguous() for key in truth if key.startswith(("logits.", "grad."))}
    save_file(stored, folder / "expected.safetensors")
    expected = dict(
        loss=fp32["loss"].item(), loss_fp64=truth["loss"].item(), valid_labels=valid,
        adamw=dict(**ADAMW, decay_all_parameters=True, losses=adamw_losses(folder, documents)),
        fp32=errors(fp32, truth), bf16=errors(bf16, truth),
        transformers=transformers.__version__, torch=torch.__version__)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    worst = {dtype: max(expected[dtype], key=expected[dtype].get) for dtype in ("fp32", "bf16")}
    print(f"{name}: {size / 1e3:.0f} KB, loss {expected['loss']:.6f}, " + ", ".join(
        f"{dtype} loss {expected[dtype]['loss']:.1e} logits {expected[dtype]['logits']:.1e} "
        f"worst {expected[dtype][key]:.1e} ({key})" for dtype, key in worst.items()))
    assert size < 400_000, "fixtures are kept small"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "models")
    parser.add_argument("names", nargs="*", metavar="NAME", help="make these alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    for seed, (name, spec) in enumerate(MODELS.items()):
        if arguments.names and name not in arguments.names:
            continue
        make(name, spec, arguments.out / name, seed=1000 + seed)


if __name__ == "__main__":
    main()
