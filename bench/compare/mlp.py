#!/usr/bin/env python3
"""Runs the peers of `inlay bench mlp` on the same GPU: Liger's SwiGLU MLP as it is, and tiled. Prints one JSON object a
peer, with the median milliseconds of forward and backward and the peak of memory beyond weights, input and gradients.

    python bench/compare/mlp.py --tokens 65536 --hidden 4096 --intermediate 14336 --shards 4 16
"""
import argparse
import json
import statistics
import time
from types import SimpleNamespace

import torch


def measure(name, module, x, dy, iterations):
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    x.grad = torch.zeros_like(x)

    def call():
        module(x).backward(dy)

    call()
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(iterations):
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    peak = torch.cuda.max_memory_allocated() - base
    print(json.dumps({"peer": name, "ms": statistics.median(times), "peak_extra_bytes": peak}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--shards", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--iterations", type=int, default=10)
    a = parser.parse_args()
    from liger_kernel.transformers.swiglu import LigerSwiGLUMLP
    from liger_kernel.transformers.tiled_mlp import LigerTiledSwiGLUMLP

    config = SimpleNamespace(hidden_size=a.hidden, intermediate_size=a.intermediate, hidden_act="silu")
    torch.manual_seed(0)
    x = torch.randn(1, a.tokens, a.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn_like(x)
    peers = [("liger", LigerSwiGLUMLP(config))]
    peers += [(f"liger tiled in {n}", LigerTiledSwiGLUMLP(config, num_shards=n)) for n in a.shards]
    for name, module in peers:
        try:
            measure(name, module.to("cuda", torch.bfloat16), x, dy, a.iterations)
        except Exception as error:  # a peer that cannot run is said, not hidden
            print(json.dumps({"peer": name, "error": str(error)}), flush=True)
        del module
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
