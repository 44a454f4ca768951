"""Makes tests/golden/optimizers.json: what optimizers other than AdamW do, by PyTorch's own code and in fp64.

    python tests/golden/make_optimizers.py        # torch with torch.optim.Muon (2.9 or later), transformers, torchao

Muon's products are in bf16, so PyTorch's own result is not exact either. The fixture holds the truth, the same formulas
in fp64 throughout, and how far PyTorch is from it: ours may be twice as far.
  matrices  three steps of a matrix with given gradients: start, gradients, the fp64 result, PyTorch's error
            ||x - truth|| / ||truth - start||, for both scales
  adamw_8bit  three steps of torchao's AdamW with moments in 8 bits: the map's numbers, start, gradients, the result, and
            the moments that are kept
  models    (of Muon) ten steps of fixtures of tests/golden/models: losses in fp64 and PyTorch's in fp32
"""

import json
import pathlib

import torch

import make_fixtures

MUON = dict(momentum=0.95, weight_decay=0.1)
SCALES = {"shape": "original", "adamw": "match_rms_adamw"}
SHAPES = [(5, 9), (12, 7), (16, 16), (1, 6)]
MODELS = ["llama_llama3_tied", "qwen3_mixed_window", "phi3_longrope"]


def numbers(x):
    return [float(f"{v:.9g}") for v in x.flatten().tolist()]


def orthogonal(x):
    a, b, c = 3.4445, -4.7750, 2.0315
    transposed = x.shape[0] > x.shape[1]
    x = x.mT if transposed else x
    x = x / max(float(x.norm()), 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if transposed else x


class ExactMuon(torch.optim.Optimizer):
    """The formulas of torch.optim.Muon, in the parameters' own precision."""

    def __init__(self, parameters, lr, scale, momentum, weight_decay):
        super().__init__(parameters, dict(lr=lr))
        self.scale, self.momentum, self.weight_decay = scale, momentum, weight_decay

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - self.momentum)
                rows, columns = p.shape
                factor = max(1, rows / columns) ** 0.5 if self.scale == "shape" else 0.2 * max(rows, columns) ** 0.5
                p.mul_(1 - group["lr"] * self.weight_decay)
                p.sub_(group["lr"] * factor * orthogonal(p.grad.lerp(m, self.momentum)))


def muon(parameters, lr, scale, exact):
    if exact:
        return ExactMuon(parameters, lr, scale, **MUON)
    return torch.optim.Muon(parameters, lr=lr, adjust_lr_fn=SCALES[scale], **MUON)


def matrix(shape, scale, lr=0.05, steps=3):
    generator = torch.Generator().manual_seed(shape[0] * 100 + shape[1])
    start = torch.randn(shape, generator=generator)
    gradients = [torch.randn(shape, generator=generator) * 10 ** (k - 1) for k in range(steps)]
    results = []
    for exact in (True, False):
        dtype = torch.float64 if exact else torch.float32
        p = torch.nn.Parameter(start.to(dtype, copy=True))
        optimizer = muon([p], lr, scale, exact)
        for gradient in gradients:
            p.grad = gradient.to(dtype)
            optimizer.step()
        results.append(p.detach().double())
    truth, theirs = results
    error = float((theirs - truth).norm() / (truth - start.double()).norm())
    return dict(shape=shape, scale=scale, lr=lr, start=numbers(start), gradients=[numbers(g) for g in gradients],
                result=numbers(truth), error=error)


def adamw_8bit(shape=(2, 512), steps=3):
    from torchao.optim.adam import single_param_adam
    from torchao.optim.quant_utils import create_dynamic_map
    from torchao.optim.subclass_8bit import OptimState8bit

    settings = dict(lr=1e-2, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8)
    generator = torch.Generator().manual_seed(8)
    p = torch.randn(shape, generator=generator)
    start = p.clone()
    # From number to number over decades, as gradients are.
    gradients = [torch.randn(shape, generator=generator) * 10 ** (3 * torch.rand(shape, generator=generator) - 3)
                 for _ in range(steps)]
    m, v = OptimState8bit.zeros(shape), OptimState8bit.zeros(shape, signed=False)
    for step, gradient in enumerate(gradients, 1):
        single_param_adam(p, gradient, torch.tensor(float(step)), m, v, None, IS_ADAMW=True, BF16_STOCHASTIC_ROUND=False,
                          **dict(settings, lr=torch.tensor(settings["lr"])))
    return dict(settings, shape=shape, signed_map=create_dynamic_map(), unsigned_map=create_dynamic_map(signed=False),
                start=numbers(start), gradients=[numbers(g) for g in gradients], result=numbers(p),
                m=numbers(m.dequantize()), v=numbers(v.dequantize()))


def losses(folder, documents, scale, exact, lr=3e-3):
    model = make_fixtures.load(folder, torch.float64 if exact else torch.float32)
    matrices, others = [], []
    for name, p in model.named_parameters():
        (matrices if p.ndim == 2 and ".layers." in name else others).append(p)
    adamw = dict(make_fixtures.ADAMW, lr=lr)
    optimizers = [muon(matrices, lr, scale, exact), torch.optim.AdamW(others, **adamw)]
    found = []
    for _ in range(10):
        loss, *_ = make_fixtures.forward(model, documents)
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        found.append(loss.item())
    return found


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    models = []
    for name in MODELS:
        folder = here / "models" / name
        documents = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
        for scale in SCALES:
            models.append(dict(model=name, scale=scale, lr=3e-3, adamw=make_fixtures.ADAMW,
                               truth=losses(folder, documents, scale, True),
                               torch=losses(folder, documents, scale, False)))
    found = dict(muon=dict(**MUON, matrices=[matrix(s, scale) for s in SHAPES for scale in SCALES], models=models),
                 adamw_8bit=adamw_8bit(), torch=torch.__version__)
    (here / "optimizers.json").write_text(json.dumps(found) + "\n")
    for case in found["muon"]["matrices"]:
        print(case["shape"], case["scale"], f"{case['error']:.1e}")
    for case in models:
        print(case["model"], case["scale"], case["truth"][0], case["truth"][-1],
              max(abs(a - b) / a for a, b in zip(case["truth"], case["torch"])))


if __name__ == "__main__":
    main()
