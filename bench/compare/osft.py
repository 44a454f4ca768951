"""The peer of `inlay bench osft`: mini_trainer's form of OSFT in PyTorch.

    python bench/compare/osft.py --config config.json --length 16384 --unfreeze 0.5 [--checkpointing]

Every target linear of the model multiplies by its factors, frozen and trained, instead of by a matrix:
y = ((x V_hᵀ)∘s_h) U_hᵀ + ((x V_lᵀ)∘s_l) U_lᵀ, flattened to 2-D and the second product added to the first (addmm), which
is the fastest way known to us to write that form. The step is forward, backward and the projection of the gradients
(dU −= U_h(U_hᵀ dU), dV −= V_h(V_hᵀ dV)); the optimizer is left out, since its state does not fit beside the
activations. Ranks are int(R·(1 − u)) frozen, as mini_trainer has them, or rounded to multiples of 64 (--aligned).
Factors are random. Prints one JSON object: median milliseconds, tokens a second, bytes at the peak.
"""

import argparse
import importlib.util
import json
import statistics
import time

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class FactoredLinear(torch.nn.Module):
    def __init__(self, outputs, inputs, unfreeze, aligned, device, dtype):
        super().__init__()
        full = min(outputs, inputs)
        frozen = int(full * (1 - unfreeze))
        if aligned:
            frozen = full - min(full, (round(full * unfreeze) + 63) // 64 * 64)
        free = full - frozen

        def random(*shape):
            return torch.randn(*shape, device=device, dtype=dtype) / shape[0] ** 0.5

        self.register_buffer("u_high", random(outputs, frozen))
        self.register_buffer("s_high", torch.ones(frozen, device=device, dtype=dtype))
        self.register_buffer("v_high", random(inputs, frozen))
        self.u_low = torch.nn.Parameter(random(outputs, free))
        self.s_low = torch.nn.Parameter(torch.ones(free, device=device, dtype=dtype))
        self.v_low = torch.nn.Parameter(random(inputs, free))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        high = (flat @ self.v_high * self.s_high) @ self.u_high.t()
        low = flat @ self.v_low * self.s_low
        return torch.addmm(high, low, self.u_low.t()).reshape(*x.shape[:-1], -1)

    @torch.no_grad()
    def project(self):
        for gradient, basis in ((self.u_low.grad, self.u_high), (self.v_low.grad, self.v_high)):
            gradient.addmm_(basis, basis.t() @ gradient, alpha=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--documents", type=int, default=1)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--unfreeze", type=float, default=0.5)
    parser.add_argument("--aligned", action="store_true", help="ranks that are multiples of 64")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--layers", type=int)
    a = parser.parse_args()

    config = transformers.AutoConfig.from_pretrained(a.config)
    if a.layers:
        config.num_hidden_layers = a.layers
    config.use_cache = False
    liger = importlib.util.find_spec("liger_kernel") is not None
    if liger:
        from liger_kernel.transformers import AutoLigerKernelForCausalLM as Model
    else:
        from transformers import AutoModelForCausalLM as Model
    torch.manual_seed(0)
    device, dtype = "cuda", torch.bfloat16
    with torch.device("meta"):
        model = Model.from_config(config, dtype=dtype, attn_implementation="sdpa")
    targets = []
    for name, module in list(model.named_modules()):
        if name.split(".")[-1] not in TARGETS:
            continue
        parent = model.get_submodule(name.rsplit(".", 1)[0])
        factored = FactoredLinear(module.out_features, module.in_features, a.unfreeze, a.aligned, device, dtype)
        setattr(parent, name.split(".")[-1], factored)
        targets.append(factored)
    for module in model.modules():  # everything else leaves the meta device
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                value = torch.randn(parameter.shape, device=device, dtype=dtype) * 0.02
                if parameter.dim() == 1:
                    value = torch.ones(parameter.shape, device=device, dtype=dtype)
                setattr(module, name, torch.nn.Parameter(value))
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer is not None and buffer.is_meta:
                rope = type(module)(config, device=device)
                for key, value in rope.named_buffers(recurse=False):
                    module.register_buffer(key, value, persistent=False)
                module.original_inv_freq = getattr(rope, "original_inv_freq", None)
                break
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        module.weight.requires_grad_(False)
    model.train()
    if a.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.randint(0, config.vocab_size, (a.documents, a.length), device=device)

    def step():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        for target in targets:
            target.project()
        model.zero_grad(set_to_none=False)
        return loss

    for _ in range(a.warmup):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(a.steps):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    median = statistics.median(times)
    print(json.dumps({
        "peer": "mini_trainer's form" + (" + liger" if liger else ""), "ms": round(median, 1),
        "tokens_per_second": round(1e3 * a.documents * a.length / median, 1),
        "peak_bytes": torch.cuda.max_memory_allocated(), "unfreeze": a.unfreeze, "aligned": a.aligned,
        "checkpointing": a.checkpointing, "documents": a.documents, "length": a.length,
        "layers": config.num_hidden_layers, "optimizer": "none"}))


if __name__ == "__main__":
    main()
