"""Makes tests/golden/config_defaults.json: what transformers takes for the keys that a config.json leaves out.

    pip install transformers==5.17.0 numpy            # PyTorch is not needed
    python tests/golden/make_config_defaults.py       # rewrites the file, the same bytes every time

A case is a config.json with nothing but the sizes of a model and a few keys whose defaults depend on others, and what the
family's class of transformers reads from it. Cases that the class refuses are left out.
"""

import json
import pathlib

import transformers
from transformers import CONFIG_MAPPING

transformers.logging.set_verbosity_error()

SIZES = dict(hidden_size=512, intermediate_size=96, vocab_size=100, num_attention_heads=64, num_hidden_layers=4)
EXPERTS = dict(
    mixtral=dict(num_local_experts=8, num_experts_per_tok=2),
    qwen3_moe=dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=48),
    gpt_oss=dict(num_local_experts=8, num_experts_per_tok=2),
    granitemoehybrid=dict(num_local_experts=0, layer_types=["attention"] * 4, mamba_n_heads=64))
FAMILIES = ["gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_oss", "granite", "granitemoehybrid", "llama", "mistral",
            "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3"]
PARTIAL = ["glm", "glm4", "phi3"]  # families of which only a part of a head may rotate
MORE = [
    {},
    dict(num_key_value_heads=None),
    dict(bos_token_id=None),
    dict(sliding_window=None),
    dict(rope_theta=5e5),
    dict(rope_scaling=dict(rope_type="yarn", factor=4.0)),
    dict(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
    dict(rope_scaling=dict(rope_type="linear", factor=2.0)),
    dict(output_router_logits=True),
    dict(use_sliding_window=True, max_window_layers=2),
    dict(use_sliding_window=True, sliding_window=32),
    dict(partial_rotary_factor=0.25),
    dict(rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[1.0, 2.0, 4.0, 8.0])),
    dict(attn_logit_softcapping=None, final_logit_softcapping=None),
    dict(query_pre_attn_scalar=64, sliding_window_pattern=2, rope_local_base_freq=500.0),
    dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0078125, logits_scaling=16.0),
    dict(position_embedding_type="rope", shared_intermediate_size=48),
    dict(no_rope_layers=[1, 0, 0, 1]),
    dict(no_rope_layer_interval=3),
    dict(layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
]
KEYS = ["num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "bos_token_id",
        "hidden_act", "attention_dropout", "attention_bias", "mlp_bias", "num_local_experts", "num_experts_per_tok",
        "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "router_jitter_noise",
        "rope_parameters", "dtype", "hidden_activation", "attn_logit_softcapping", "final_logit_softcapping",
        "query_pre_attn_scalar", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
        "shared_intermediate_size", "position_embedding_type", "no_rope_layers"]


def reads(config):
    found = {key: getattr(config, key) for key in KEYS if hasattr(config, key)}
    found["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None) or 0
    found["windows"] = [window if kind == "sliding_attention" else 0 for kind in types]
    found["balance"] = config.router_aux_loss_coef if getattr(config, "output_router_logits", False) else 0
    return found


cases = []
for family in FAMILIES:
    config_class = CONFIG_MAPPING[family]
    known = set(config_class().to_dict()) | {"rope_theta", "rope_scaling"}
    if family in PARTIAL:
        known.add("partial_rotary_factor")
    if family == "gemma3_text":
        known |= {"sliding_window_pattern", "rope_local_base_freq"}
    for more in MORE:
        if not set(more) <= known or (family == "granitemoehybrid" and "layer_types" in more):
            continue
        given = {"model_type": family, **SIZES, **EXPERTS.get(family, {}), **more}
        try:
            config = config_class.from_dict(json.loads(json.dumps(given)))
        except Exception:  # a null where the class does not take one
            continue
        found = reads(config)
        if found["num_key_value_heads"] is None:  # which no model can be made of
            continue
        # transformers warns where the factors are not one per pair, and two rotations with them are refused here.
        if "short_factor" in str(more) and (found["head_dim"] != 8 or "full_attention" in config.rope_parameters):
            continue
        cases.append({"config": given, "reads": found})

target = pathlib.Path(__file__).parent / "config_defaults.json"
lines = ",\n  ".join(json.dumps(case) for case in cases)
target.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n  {lines}\n]}}\n')
