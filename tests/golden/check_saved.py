"""Trains every model of tests/golden/models for two steps, and loads what was saved in transformers: the logits must be
those that inlay computes from the same folder. Not a test of the suite, which needs no PyTorch.

    pip install torch transformers safetensors
    python tests/golden/check_saved.py build/inlay [NAME ...]
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


def check(inlay, fixture, folder):
    data = fixture / "data.jsonl"
    options = dict(
        base_model=str(fixture), output_dir=str(folder / "out"), datasets=[dict(path=str(data))], sequence_len=64,
        max_steps=2, learning_rate=1e-3, dtype="fp32", device="cpu")
    (folder / "run.yaml").write_text(json.dumps(options))  # JSON is YAML
    subprocess.run([inlay, "train", folder / "run.yaml", "--quiet"], check=True)
    subprocess.run([inlay, "grad", folder / "out", "--data", data, "--out", folder / "grad.safetensors", "--logits",
                    "--dtype", "fp32", "--device", "cpu", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    ours = load_file(folder / "grad.safetensors")
    model = load(folder / "out", torch.float32).eval()
    worst = 0.0
    for number, line in enumerate(data.read_text().splitlines()):
        with torch.no_grad():
            theirs = model(input_ids=torch.tensor(json.loads(line)["input_ids"])[None]).logits[0]
        worst = max(worst, float((ours[f"logits.{number}"] - theirs).norm() / theirs.norm()))
    return worst


def main():
    inlay, names = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed = False
    for fixture in sorted((pathlib.Path(__file__).parent / "models").iterdir()):
        if names and fixture.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            worst = check(inlay, fixture.resolve(), pathlib.Path(folder))
        print(f"{fixture.name}: {worst:.1e}", flush=True)
        failed = failed or not worst <= 1e-5
    sys.exit(failed)


if __name__ == "__main__":
    main()
