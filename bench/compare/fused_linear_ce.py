#!/usr/bin/env python3
"""Runs the peers of `inlay bench fused-linear-ce` on the same device: Liger (with fp32 accumulation, and as it comes),
torch.compile and eager PyTorch. Prints one JSON object a peer, with the median milliseconds of forward and backward
and the peak of memory beyond inputs and weights (dX and dW included, as `gradient_bytes` tells).

    python bench/compare/fused_linear_ce.py --tokens 16384 --hidden 4096 --vocab 128256 --device cuda --dtype bf16

Virtual machines that hide CPUID leaf 0x1D make oneDNN's AMX kernels die in PyTorch too: there, set
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 for --device cpu --dtype bf16.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import torch
import torch.nn.functional as F

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def plain_loss(x, w, y):
    return F.cross_entropy(F.linear(x, w).float(), y, ignore_index=-100)


def eager_loss(x, w, y):
    return F.cross_entropy(F.linear(x, w), y, ignore_index=-100)


def liger_loss(accumulate_in_fp32):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Function
    import inspect

    names = list(inspect.signature(Function.forward).parameters)[1:]  # without ctx
    values = {"ignore_index": -100, "reduction": "mean"}
    if accumulate_in_fp32:
        if "accum_dtype" not in names:
            raise RuntimeError("this version of Liger cannot accumulate in fp32")
        values["accum_dtype"] = torch.float32
    defaults = {n: p.default for n, p in inspect.signature(Function.forward).parameters.items()}
    rest = names[3:]

    def loss(x, w, y):
        result = Function.apply(x, w, y, *[values.get(n, defaults[n]) for n in rest])
        return result[0] if isinstance(result, tuple) else result

    return loss


class HostPeak:
    """Peak of this process's resident memory while the body runs, sampled."""

    def __enter__(self):
        self.start = self.peak = self.resident()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.stop.is_set():
            self.peak = max(self.peak, self.resident())
            time.sleep(0.001)

    def __exit__(self, *unused):
        self.stop.set()
        self.thread.join()

    @staticmethod
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name, loss, args):
    device, dtype = torch.device(args.device), DTYPES[args.dtype]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(args.tokens, args.hidden, generator=generator).to(device, dtype).requires_grad_()
    w = torch.randn(args.vocab, args.hidden, generator=generator) / args.hidden**0.5
    w = w.to(device, dtype).requires_grad_()
    y = torch.randint(args.vocab, (args.tokens,), generator=generator)
    y[torch.rand(args.tokens, generator=generator) < args.ignored] = -100
    y = y.to(device)
    cuda = device.type == "cuda"

    def step():
        x.grad = w.grad = None
        value = loss(x, w, y)
        value.backward()
        return value

    for _ in range(args.warmup):
        step()
    x.grad = w.grad = None
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with HostPeak() as host:
            step()
        peak = host.peak - host.start
    times = []
    for _ in range(args.repeats):
        if cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            value = step()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            value = step()
            times.append(1000 * (time.perf_counter() - start))
    gradients = x.grad.nbytes + w.grad.nbytes
    print(json.dumps({
        "peer": name, "ms": statistics.median(times), "min_ms": min(times), "peak_extra_bytes": peak,
        "gradient_bytes": gradients, "beyond_gradients_bytes": max(0, peak - gradients), "loss": value.item(),
        "tokens": args.tokens, "hidden": args.hidden, "vocab": args.vocab, "ignored": args.ignored,
        "device": torch.cuda.get_device_name() if cuda else "cpu", "dtype": args.dtype, "torch": torch.__version__,
    }), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--ignored", type=float, default=0.0, help="share of the labels that are ignored")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--peers", default="liger_fp32,liger,compile,eager", help="a list; also: eager_fp32_loss")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    makers = {
        "liger_fp32": lambda: liger_loss(True),
        "liger": lambda: liger_loss(False),
        "compile": lambda: torch.compile(plain_loss),
        "eager": lambda: eager_loss,
        "eager_fp32_loss": lambda: plain_loss,
    }
    names = args.peers.split(",")
    for name in names:
        if name not in makers:
            sys.exit(f"unknown peer {name}; there are {', '.join(makers)}")
        if len(names) > 1:  # each in a process of its own: memory starts clean, and a crash ends only that peer
            status = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peers", name]).returncode
            if status != 0:
                print(json.dumps({"peer": name, "error": f"ended with status {status}"}), flush=True)
            continue
        try:
            measure(name, makers[name](), args)
        except Exception as error:  # not installed, or does not fit
            print(json.dumps({"peer": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)


if __name__ == "__main__":
    main()
