"""Makes the adapters of tests/golden/adapters, and what PEFT says about them.

    pip install torch==2.11.0 transformers==5.17.0 peft==0.21.2 safetensors
    python tests/golden/make_adapters.py            # rewrites tests/golden/adapters/, the same bytes every time
    python tests/golden/make_adapters.py --only NAME ...  # these alone

A folder holds an adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors) with random A, B and
magnitudes, so that no gradient is zero, for a model of tests/golden/models and its data.jsonl, and
  expected.safetensors  logits.<document> [tokens, vocabulary] of the documents in LOGITS, grad.<adapter tensor> and
                        after.<adapter tensor>: after ten AdamW steps on all documents. All computed in fp64 from the
                        stored weights and rounded to fp32 to be stored. merged.<parameter of transformers> in the
                        cases of MERGED: what merge_and_unload makes of a few weights, in fp32
  expected.json         model: the folder in tests/golden/models; loss, valid_labels as there, loss_fp64; adamw: its
                        options and the losses of ten steps, in fp64; fp32: by how much PEFT itself, in fp32, misses the
                        fp64 truth, ||x - truth|| / ||truth||, for every tensor of expected.safetensors and "loss";
                        merged_logits: by how much merging moves the logits of all documents, in fp32
`mixtral_separate` is an adapter as transformers 4 had them, a pair for every expert's w1, w2 and w3: PEFT turns it into
one for stacked experts when it loads it, so there are logits and a loss, but no gradients.

tests/golden/pissa.json: the losses of ten AdamW steps of adapters that PEFT begins with init_lora_weights="pissa",
in fp64 from what PEFT has computed in fp32, and of every module before the first of them B·A (start) and the product's
gradient along A and B, dB·A + B·dA (gradients), three numbers each: the norm, the sum of x[i] cos(i), and by how much the
fp32 in which PEFT finds singular vectors misses the fp64 truth, ||x - truth|| / ||x||; and the singular values of every
module. Singular vectors have no sign, and AdamW knows none either: none of these numbers depends on it.

How PEFT writes things down (0.21 with transformers 5)
- A module is base_model.model.<module>.lora_A.weight [r, in] and lora_B.weight [out, r]; DoRA adds
  lora_magnitude_vector [out]; a module to save is base_model.model.<module>.weight. The change is scale * B A, where
  scale is alpha / r, or alpha / sqrt(r) with use_rslora.
- Experts are stacked since transformers 5, [experts, out, in] in Mixtral and Qwen3-MoE and [experts, in, out] in
  GPT-OSS (is_transposed), and target_parameters names them. A is [experts * r, in] and B is [out, r * experts] in all
  families: in and out are those of the product, however the tensor lies. The two stack their experts differently:
      A.reshape(experts, r, in)[e]          rows e * r ... e * r + r - 1 belong to expert e
      B.reshape(out, r, experts)[:, :, e]   columns e, e + experts, e + 2 * experts, ... do: the expert runs fastest
  and expert e's change is scale * B_e A_e [out, in], transposed in GPT-OSS. Rows of out are gate, then up, in Mixtral
  and Qwen3-MoE, and alternate in GPT-OSS, as in the weights.
- PEFT wraps a module once for each of its parameters, so names tell nothing about which it is: where gate_up_proj and
  down_proj are both targets, gate_up_proj is inside, experts.base_layer.lora_A.weight, and down_proj outside,
  experts.lora_A.weight; where only one is, it is experts.lora_A.weight, whichever it is.
- A router is a parameter as well (gate.weight, router.weight); it is named and laid out like a linear layer.
- Names are those of transformers 5: Mixtral's block_sparse_moe is mlp.
- A target_modules list of w1, w2, w3 (or gate_proj, up_proj, down_proj of a Qwen3-MoE) becomes target_parameters with
  twice the rank and alpha for gate_up_proj, also where a dense layer beside the experts was meant.
"""

import argparse
import copy
import json
import math
import os
import pathlib
import re
import shutil
import warnings

import make_fixtures as fixtures  # sets oneDNN's environment before torch is loaded

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = pathlib.Path("tests/golden/models")
LOGITS = [0]
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
PLAIN = dict(r=4, lora_alpha=8)
SMALL = dict(r=3, lora_alpha=6)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEARS = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

CASES = {
    "llama": ("llama_linear_sharded", dict(**PLAIN, target_modules=LINEARS)),
    "llama_tied": ("llama_llama3_tied", dict(**PLAIN, target_modules=LINEARS)),
    "mistral": ("mistral_window_fp16", dict(**PLAIN, target_modules="all-linear")),
    "qwen2": ("qwen2_yarn_bf16", dict(**PLAIN, target_modules=LINEARS)),
    "qwen3": ("qwen3_mixed_window", dict(**PLAIN, target_modules=LINEARS)),
    "mixtral": ("mixtral_balance", dict(**PLAIN, target_modules=ATTENTION)),
    "qwen3_moe": ("qwen3_moe_mixed", dict(**PLAIN, target_modules=ATTENTION)),
    "gpt_oss": ("gpt_oss_balance", dict(**PLAIN, target_modules=ATTENTION)),
    # Experts and routers. The rank is no divisor of anything, and one family has other ranks than the rest.
    "mixtral_experts": ("mixtral_balance", dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], target_parameters=EXPERTS + ["mlp.gate.weight"])),
    "mixtral_all_linear": ("mixtral_balance", dict(r=2, lora_alpha=3, target_modules="all-linear")),
    "qwen3_moe_experts": ("qwen3_moe_mixed", dict(
        r=3, lora_alpha=6, target_modules=["o_proj"], target_parameters=EXPERTS,
        rank_pattern={r".*\.gate_up_proj": 2}, alpha_pattern={"experts.down_proj": 9})),
    "gpt_oss_experts": ("gpt_oss_balance", dict(
        r=3, lora_alpha=6, target_modules=["k_proj"], target_parameters=EXPERTS + ["mlp.router.weight"])),
    "gpt_oss_down": ("gpt_oss_balance", dict(r=3, lora_alpha=6, target_parameters=["experts.down_proj"])),
    # Ranks and alphas by pattern, layers by number, a module left out.
    "llama_patterns": ("llama_linear_sharded", dict(
        r=2, lora_alpha=5, target_modules=ATTENTION, layers_to_transform=[0, 2],
        exclude_modules=["layers.2.self_attn.v_proj"], alpha_pattern={"layers.0.self_attn.k_proj": 7},
        rank_pattern={"q_proj": 6, r"layers\.[12]\.self_attn\.o_proj": 3})),
    "qwen2_regex": ("qwen2_yarn_bf16", dict(
        r=3, lora_alpha=6, target_modules=r".*layers\.1\..*(q_proj|up_proj)")),
    "qwen3_rslora": ("qwen3_mixed_window", dict(**PLAIN, target_modules=["q_proj", "down_proj"], use_rslora=True)),
    "llama_dora": ("llama_linear_sharded", dict(
        **PLAIN, target_modules=LINEARS, use_dora=True, layers_to_transform=[1])),
    "qwen2_dora": ("qwen2_yarn_bf16", dict(
        r=3, lora_alpha=6, target_modules=["k_proj", "down_proj"], use_dora=True, use_rslora=True)),
    "mistral_head": ("mistral_window_fp16", dict(
        r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "qwen3_embeddings": ("qwen3_mixed_window", dict(
        r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"])),
    "llama_tied_embeddings": ("llama_llama3_tied", dict(
        r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "llama_lora_head": ("llama_linear_sharded", dict(r=2, lora_alpha=4, target_modules=["o_proj", "lm_head"])),
    "mixtral_separate": ("mixtral_balance", dict(r=2, lora_alpha=3, target_modules=["w1", "w2", "w3", "q_proj"])),
    # The newer families: norms around blocks, softcaps, multipliers. Where q, k and v, or gate and up, are one tensor, so
    # is their pair of A and B.
    "gemma2": ("gemma2_softcaps", dict(**SMALL, target_modules=LINEARS)),
    "gemma3": ("gemma3_two_ropes", dict(r=1, lora_alpha=2, target_modules="all-linear")),
    "phi3": ("phi3_longrope", dict(**SMALL, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "phi3_all_linear": ("phi3_longrope", dict(r=1, lora_alpha=2, target_modules="all-linear")),
    "phi3_dora": ("phi3_longrope", dict(
        **SMALL, target_modules=["qkv_proj", "gate_up_proj"], use_dora=True, layers_to_transform=[1])),
    "granite": ("granite_multipliers", dict(**SMALL, target_modules=LINEARS)),
    "olmo2": ("olmo2_norms_behind", dict(**SMALL, target_modules=LINEARS)),
    "glm4": ("glm4_four_norms", dict(**SMALL, target_modules=ATTENTION + ["gate_up_proj", "down_proj"])),
    "smollm3": ("smollm3_no_rope", dict(**SMALL, target_modules=ATTENTION, layers_to_transform=[2, 3])),
}
# Cases that are merged, and the weights kept of them.
MERGED = {
    "llama_dora": ["model.layers.1.mlp.down_proj.weight"],
    "qwen3_rslora": ["model.layers.0.self_attn.q_proj.weight"],
    "mixtral_experts": ["model.layers.1.mlp.experts.down_proj"],
    "gpt_oss_experts": ["model.layers.1.mlp.experts.gate_up_proj"],
    "phi3": ["model.layers.0.mlp.gate_up_proj.weight"],
}


def serialised(name):
    """The name of a parameter in adapter_model.safetensors; the adapter's own name, "default", does not stand there."""
    name = name.replace(".modules_to_save.default", "").replace(".default", "")
    return name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def randomise(model, generator):
    with torch.no_grad():
        for name, p in trained(model).items():
            noise = torch.randn(p.shape, generator=generator)
            if "lora_A" in name:
                p.copy_(noise / math.sqrt(p.shape[1]))
            elif "lora_B" in name:
                p.copy_(0.3 * noise)
            elif "magnitude" in name:
                p.copy_(p * (1 + 0.2 * noise))
            else:  # a module to save
                p.copy_(p + 0.1 * noise)


def documents_of(model_folder):
    return [json.loads(line) for line in (model_folder / "data.jsonl").read_text().splitlines()]


def evaluate(model_folder, folder, dtype, gradients):
    """Loss, logits, gradients and what ten steps make of the adapter, as fp64 tensors, and the number of labels."""
    documents = documents_of(model_folder)
    results = {}
    with fixtures.Truth(model_folder, dtype):
        model = PeftModel.from_pretrained(fixtures.load(model_folder, dtype), folder, is_trainable=True)
        for p in trained(model).values():
            assert p.dtype == dtype
        loss, _, logits, valid = fixtures.forward(model, documents)
        results |= {"loss": loss} | {f"logits.{i}": logits[i] for i in LOGITS}
        losses = []
        if gradients:
            loss.backward()
            parameters = trained(model)
            results |= {f"grad.{serialised(name)}": p.grad.clone() for name, p in parameters.items()}
            optimizer = torch.optim.AdamW(parameters.values(), **ADAMW)
            for step in range(10):
                if step > 0:
                    loss, *_ = fixtures.forward(model, documents)
                    optimizer.zero_grad()
                    loss.backward()
                losses.append(loss.item())
                optimizer.step()
            results |= {f"after.{serialised(name)}": p for name, p in parameters.items()}
    return {name: tensor.detach().double() for name, tensor in results.items()}, valid, losses


def separate_experts(folder, arguments, model_folder, generator):
    """An adapter with a pair for each expert's matrices, which transformers 5 has no modules for any more."""
    c = transformers.AutoConfig.from_pretrained(model_folder)
    r, tensors = arguments["r"], {}

    def add(module, rows, columns):
        noise = torch.randn(r, columns, generator=generator)
        tensors[f"base_model.model.{module}.lora_A.weight"] = noise / math.sqrt(columns)
        tensors[f"base_model.model.{module}.lora_B.weight"] = 0.3 * torch.randn(rows, r, generator=generator)

    for layer in range(c.num_hidden_layers):
        add(f"model.layers.{layer}.self_attn.q_proj", c.num_attention_heads * c.head_dim, c.hidden_size)
        for expert in range(c.num_local_experts):
            name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            add(f"{name}.w1", c.intermediate_size, c.hidden_size)
            add(f"{name}.w2", c.hidden_size, c.intermediate_size)
            add(f"{name}.w3", c.intermediate_size, c.hidden_size)
    LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=str(model_folder), **arguments).save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def save(folder, name, arguments, model_folder, generator):
    if name == "mixtral_separate":
        separate_experts(folder, arguments, model_folder, generator)
    else:
        model = get_peft_model(
            fixtures.load(model_folder, torch.float32), LoraConfig(task_type="CAUSAL_LM", **arguments))
        randomise(model, generator)
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
    # Sets are written in whatever order they come.
    config = json.loads((folder / "adapter_config.json").read_text())
    for key in ("target_modules", "exclude_modules", "target_parameters", "modules_to_save"):
        if isinstance(config[key], list):
            config[key] = sorted(config[key])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))


def merged(folder, model_folder, names):
    """Weights that the adapter has been merged into, by PEFT, and by how much the logits move."""
    model = PeftModel.from_pretrained(fixtures.load(model_folder, torch.float32), folder)
    documents = documents_of(model_folder)
    with torch.no_grad():
        _, _, before, _ = fixtures.forward(model, documents)
        model = model.merge_and_unload()
        _, _, after, _ = fixtures.forward(model, documents)
    difference = (torch.cat(after) - torch.cat(before)).norm() / torch.cat(before).norm()
    state = model.state_dict()
    return {f"merged.{name}": state[name].contiguous() for name in names}, float(f"{difference:.6e}")


def make(name, folder, seed):
    model_name, arguments = CASES[name]
    model_folder = MODELS / model_name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    save(folder, name, arguments, model_folder, torch.Generator().manual_seed(seed))

    gradients = name != "mixtral_separate"
    truth, valid, losses = evaluate(model_folder, folder, torch.float64, gradients)
    fp32, *_ = evaluate(model_folder, folder, torch.float32, gradients)
    stored = {key: tensor.float().contiguous() for key, tensor in truth.items() if key != "loss"}
    expected = dict(
        model=model_name, loss=fp32["loss"].item(), loss_fp64=truth["loss"].item(), valid_labels=valid,
        adamw=dict(**ADAMW, decay_all_parameters=True, losses=losses) if gradients else None,
        fp32={key: float(f"{(fp32[key] - truth[key]).norm() / truth[key].norm():.6e}") for key in truth},
        transformers=transformers.__version__, torch=torch.__version__, peft=peft.__version__)
    if name in MERGED:
        tensors, expected["merged_logits"] = merged(folder, model_folder, MERGED[name])
        stored |= tensors
    save_file(stored, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)

    # A tensor that PEFT wrote but nobody trains is a copy of the base model's embeddings; all others have a gradient.
    written = {key for key in load_file(folder / "adapter_model.safetensors") if ".base_layer.weight" not in key}
    if gradients:
        found = {key.removeprefix("grad.") for key in stored if key.startswith("grad.")}
        # tied embeddings are one parameter, saved under both of its names
        assert found == written or written - found == {"base_model.model.lm_head.weight"}, found ^ written
        assert all(stored[f"grad.{key}"].norm() > 0 for key in found)
    size = sum(path.stat().st_size for path in folder.iterdir())
    worst = max(expected["fp32"], key=expected["fp32"].get)
    print(f"{name}: {size / 1e3:.0f} KB, loss {expected['loss']:.6f}, "
          f"fp32 worst {expected['fp32'][worst]:.1e} ({worst})")
    # Had the choice of experts or the like hung on rounding, some tensor would be far off.
    assert expected["fp32"][worst] < 1e-4
    return size


PISSA = {"llama_linear_sharded": {}, "qwen3_mixed_window": {}, "llama_llama3_tied": dict(use_rslora=True)}
PISSA_ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


def two_numbers(matrix):
    places = torch.arange(matrix.numel(), dtype=torch.float64)
    return [float(f"{x:.10e}") for x in (matrix.norm(), matrix.flatten() @ places.cos())]


def pissa_modules(model):
    return {name.removeprefix("base_model.model."): module for name, module in model.named_modules()
            if hasattr(module, "lora_A")}


def products(model, documents):
    """The loss, after backward, and of every module B·A and dB·A + B·dA."""
    loss, *_ = fixtures.forward(model, documents)
    model.zero_grad()
    loss.backward()
    start, gradients = {}, {}
    for name, module in pissa_modules(model).items():
        a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        start[name] = (b @ a).detach()
        gradients[name] = (b.grad @ a + b @ a.grad).detach()
    return loss, dict(start=start, gradients=gradients)


def begin_exactly(model):
    """As PEFT begins, but by singular vectors in fp64: PEFT takes them in fp32."""
    with torch.no_grad():
        for name, module in pissa_modules(model).items():
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            base = module.get_base_layer().weight
            scale, r = module.scaling["default"], a.shape[0]
            whole = base + scale * (b @ a)
            u, s, vh = torch.linalg.svd(whole, full_matrices=False)
            root = torch.sqrt(s[:r] / scale)
            a.copy_(root[:, None] * vh[:r])
            b.copy_(u[:, :r] * root)
            base.copy_(whole - scale * (b @ a))


def make_pissa(path):
    cases = {}
    for name, options in PISSA.items():
        folder = MODELS / name
        documents = documents_of(folder)
        with fixtures.Truth(folder, torch.float64):
            model = get_peft_model(fixtures.load(folder, torch.float32), LoraConfig(
                task_type="CAUSAL_LM", init_lora_weights="pissa", target_modules=LINEARS, **PLAIN, **options)).double()
            optimizer = torch.optim.AdamW(trained(model).values(), **PISSA_ADAMW)
            losses = []
            for _ in range(10):
                loss, found = products(model, documents)
                if not losses:
                    exact = copy.deepcopy(model)
                    first = found
                losses.append(loss.item())
                optimizer.step()
            begin_exactly(exact)
            _, truth = products(exact, documents)
        cases[name] = dict(rslora=options.get("use_rslora", False), losses=losses)
        for kind, matrices in first.items():
            cases[name][kind] = {
                module: [*two_numbers(x), float(f"{(x - truth[kind][module]).norm() / x.norm():.6e}")]
                for module, x in matrices.items()}
        print(f"pissa of {name}: {losses[0]:.6f} to {losses[-1]:.6f}")
    text = json.dumps(dict(adamw=PISSA_ADAMW, **PLAIN, peft=peft.__version__, cases=cases), indent=1)
    path.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / "adapters")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    os.chdir(ROOT)  # so that base_model_name_or_path is the same everywhere
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    seeds = {name: 2000 + number for number, name in enumerate(CASES)}
    if arguments.only == list(CASES):
        make_pissa(arguments.out.parent / "pissa.json")
    sizes = [make(name, arguments.out / name, seeds[name]) for name in arguments.only]
    print(f"{sum(sizes) / 1e6:.2f} MB")
    assert sum(sizes) < 2_200_000, "fixtures are kept small"


if __name__ == "__main__":
    main()
