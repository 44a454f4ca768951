"""Makes tests/golden/schedule_free.json: what AdamW without a schedule does, by its authors' own code in fp64.

    pip install torch transformers schedulefree==1.4.1
    python tests/golden/make_schedule_free.py

  matrix    steps of a matrix with given gradients and learning rates: start, and the model (x) and z after each
  models    ten steps of fixtures of tests/golden/models at a constant rate: the losses, where gradients are computed, and
            the loss of the model at the end
"""

import json
import pathlib

import torch
from schedulefree import AdamWScheduleFree

import make_fixtures

SETTINGS = dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
RATES = [0.01, 0.02, 0.03, 0.03, 0.02, 0.03]  # a warm-up, and one that falls: the highest so far counts
MODELS = ["llama_llama3_tied", "qwen3_mixed_window", "gpt_oss_balance"]


def numbers(x):
    return [float(f"{v:.12g}") for v in x.flatten().tolist()]


def matrix(shape=(5, 9)):
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(shape, generator=generator)
    p = torch.nn.Parameter(start.double())
    optimizer = AdamWScheduleFree([p], lr=RATES[0], **SETTINGS)
    gradients, x, z = [], [], []
    for rate in RATES:
        optimizer.train()
        gradients.append(torch.randn(shape, generator=generator))
        p.grad = gradients[-1].double()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        z.append(numbers(optimizer.state[p]["z"]))
        optimizer.eval()
        x.append(numbers(p.detach()))
    return dict(shape=shape, rates=RATES, start=numbers(start), gradients=[numbers(g) for g in gradients], x=x, z=z)


def steps(folder, lr=3e-3):
    documents = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    model = make_fixtures.load(folder, torch.float64)
    optimizer = AdamWScheduleFree(model.parameters(), lr=lr, **SETTINGS)
    optimizer.train()
    losses = []
    for _ in range(10):
        loss, *_ = make_fixtures.forward(model, documents)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.eval()
    with torch.no_grad():
        loss, *_ = make_fixtures.forward(model, documents)
    return dict(model=folder.name, lr=lr, losses=losses, result=loss.item())


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    found = dict(beta1=SETTINGS["betas"][0], beta2=SETTINGS["betas"][1], eps=SETTINGS["eps"],
                 weight_decay=SETTINGS["weight_decay"], matrix=matrix(),
                 models=[steps(here / "models" / name) for name in MODELS])
    (here / "schedule_free.json").write_text(json.dumps(found) + "\n")
    for case in found["models"]:
        print(case["model"], case["losses"][0], case["losses"][-1], case["result"])


if __name__ == "__main__":
    main()
