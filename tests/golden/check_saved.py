"""Trains every model of tests/golden/models for two steps, and loads what was saved in transformers: the logits must be
those that inlay computes from the same folder. With --adapters it trains adapters in place of all weights, and PEFT loads
them over the base model. Not a test of the suite, which needs no PyTorch.

    pip install torch transformers safetensors peft
    python tests/golden/check_saved.py build/inlay [--adapters] [NAME ...]
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

import torch
import transformers
from make_fixtures import load
from safetensors.torch import load_file

LORA = dict(adapter="lora", lora_r=4, lora_alpha=8, lora_target_linear=True)
EXPERTS = dict(lora_target_parameters=["experts.gate_up_proj", "experts.down_proj"])
# What PEFT computes in another way each. PiSSA is saved with twice the rank, rsLoRA's scale then with another root.
ADAPTERS = {
    "lora": {},
    "dora": dict(peft_use_dora=True),
    "rslora": dict(peft_use_rslora=True),
    "pissa": dict(lora_init="pissa"),
    "pissa and rslora": dict(lora_init="pissa", peft_use_rslora=True),
    "free": dict(lora_init="free", lora_free_ratio=0.5, osft=dict(cache="off", calibration=dict(samples=4, length=16))),
    "embeddings": dict(lora_modules_to_save=["embed_tokens"]),
}


def adapters_of(fixture):
    config = json.loads((fixture / "config.json").read_text())
    mixture = any(key in config for key in ("num_local_experts", "num_experts"))
    for name, keys in ADAPTERS.items():
        yield name, LORA | keys
    if mixture:
        yield "experts", LORA | EXPERTS
        yield "experts, pissa", LORA | EXPERTS | dict(lora_init="pissa")


def check(inlay, fixture, folder, keys):
    data = fixture / "data.jsonl"
    options = dict(
        base_model=str(fixture), output_dir=str(folder / "out"), datasets=[dict(path=str(data))], sequence_len=64,
        max_steps=2, learning_rate=1e-3, dtype="fp32", device="cpu", **keys)
    (folder / "run.yaml").write_text(json.dumps(options))  # JSON is YAML
    subprocess.run([inlay, "train", folder / "run.yaml", "--quiet"], check=True)
    computed = [fixture, "--adapter", folder / "out"] if keys else [folder / "out"]
    subprocess.run([inlay, "grad", *computed, "--data", data, "--out", folder / "grad.safetensors", "--logits", "--dtype",
                    "fp32", "--device", "cpu", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    ours = load_file(folder / "grad.safetensors")
    if keys:
        from peft import PeftModel

        base = load(fixture, torch.float32).eval()
        before = [logits(base, line) for line in data.read_text().splitlines()]
        model = PeftModel.from_pretrained(base, folder / "out").eval()
    else:
        before, model = None, load(folder / "out", torch.float32).eval()
    worst = 0.0
    learned = before is None
    for number, line in enumerate(data.read_text().splitlines()):
        theirs = logits(model, line)
        worst = max(worst, float((ours[f"logits.{number}"] - theirs).norm() / theirs.norm()))
        learned = learned or float((theirs - before[number]).norm() / theirs.norm()) > 1e-4
    assert learned, "PEFT has loaded nothing that changes the model"
    return worst


def logits(model, line):
    with torch.no_grad():
        return model(input_ids=torch.tensor(json.loads(line)["input_ids"])[None]).logits[0]


def main():
    inlay, names = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    with_adapters = "--adapters" in names
    names = [name for name in names if name != "--adapters"]
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed = False
    for fixture in sorted((pathlib.Path(__file__).parent / "models").iterdir()):
        if names and fixture.name not in names:
            continue
        for what, keys in adapters_of(fixture) if with_adapters else [("all weights", {})]:
            with tempfile.TemporaryDirectory() as folder:
                worst = check(inlay, fixture.resolve(), pathlib.Path(folder), keys)
            print(f"{fixture.name}, {what}: {worst:.1e}", flush=True)
            failed = failed or not worst <= 1e-5
    sys.exit(failed)


if __name__ == "__main__":
    main()
