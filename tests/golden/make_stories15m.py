"""The loss that transformers computes for the real stories15M on a few texts, for the test that ours is the same.

    python tests/golden/make_stories15m.py MODEL_DIR TEXT_FILE

MODEL_DIR holds stories15M with its tokenizer, TEXT_FILE stories in plain text. Writes stories15M/data.jsonl (ids of the
texts; every label counts) and stories15M/expected.json (mean loss over labels, fp32 on a CPU, each text attended alone).
"""

import json
import pathlib
import sys

import torch
import transformers

model_dir, text_file = sys.argv[1:]
out = pathlib.Path(__file__).parent / "stories15M"
out.mkdir(exist_ok=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
text = pathlib.Path(text_file).read_text()
# Pieces from all over the file, cut to awkward lengths.
documents = [tokenizer(text[at : at + 4000]).input_ids[:length] for at, length in
             zip(range(0, len(text), len(text) // 6), (256, 200, 150, 97, 64, 2))]
total, count = 0.0, 0
with torch.no_grad():
    for ids in documents:
        logits = model(torch.tensor([ids])).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
(out / "data.jsonl").write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in documents))
(out / "expected.json").write_text(json.dumps({"loss": total / count, "labels": count, "transformers": transformers.__version__}) + "\n")
print(total / count, count)
