#!/usr/bin/env python3
"""Runs the peers of `inlay bench moe` on the same device: transformers' GPT-OSS MLP with grouped products and as it
comes. Prints one JSON object a peer, with the median milliseconds of forward and backward and the peak of memory beyond
weights and inputs (the gradients of the weights, in their own dtype, count).

    python bench/compare/moe.py --tokens 16384 --hidden 2880 --intermediate 2880 --experts 32 --chosen 4 --device cuda
"""
import argparse
import json
import statistics
import time

import torch
import transformers
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(arguments, implementation):
    config = transformers.GptOssConfig(
        hidden_size=arguments.hidden, intermediate_size=arguments.intermediate, num_local_experts=arguments.experts,
        num_experts_per_tok=arguments.chosen)
    config._experts_implementation = implementation
    device, dtype = arguments.device, DTYPES[arguments.dtype]
    torch.manual_seed(1)
    with torch.device(device):
        block = GptOssMLP(config).to(dtype)
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.normal_(0, 0.02)
        x = torch.randn(1, arguments.tokens, arguments.hidden, dtype=dtype, requires_grad=True)
        dout = torch.randn(1, arguments.tokens, arguments.hidden, dtype=dtype)

    def step():
        out, _ = block(x)
        out.backward(dout)
        block.zero_grad(set_to_none=True)
        x.grad = None

    step()
    step()
    synchronize(device)
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(arguments.iterations):
        synchronize(device)
        began = time.perf_counter()
        step()
        synchronize(device)
        times.append((time.perf_counter() - began) * 1e3)
    peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else None
    return {"peer": f"transformers {implementation}", "ms": statistics.median(times), "peak_extra_bytes": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 16384), ("hidden", 2880), ("intermediate", 2880), ("experts", 32), ("chosen", 4),
                          ("iterations", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--peers", nargs="*", default=["grouped_mm", "eager"])
    arguments = parser.parse_args()
    for peer in arguments.peers:
        try:
            result = measure(arguments, peer)
        except Exception as error:  # a peer that cannot run here is reported, the others go on
            result = {"peer": peer, "error": str(error)}
        result |= {"torch": torch.__version__, "transformers": transformers.__version__}
        print(json.dumps(result))


if __name__ == "__main__":
    main()
