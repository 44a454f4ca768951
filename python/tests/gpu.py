"""inlay.torch on a GPU: its tests, then milliseconds and memory beside Liger, PyTorch and transformers.

    python3 gpu.py [--quick] [--only loss,mlp,attention,moe,osft,llama] [--skip-tests]

Needs an inlay built with CUDA and torch; liger_kernel and transformers where they are installed. Prints a JSON object per
measurement: the median of the iterations in CUDA events, after warm-up, forward and backward together, and the peak of
PyTorch's allocator above what was there before. Everything is bf16, on one stream. Exits with 1 where a test fails.
"""

import argparse
import gc
import json
import statistics
import sys
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F

import inlay
import inlay.torch as ops

sys.path.insert(0, str(Path(__file__).parent))


def optional(name):
    try:
        return __import__(name, fromlist=["x"])
    except ImportError:
        return None


def measure(what, who, step, iterations=10, warmup=4, **more):
    """step() does the whole work; what it returns is thrown away."""
    try:
        for _ in range(warmup):
            step()
        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(iterations):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        record = {"what": what, "who": who, "ms": round(statistics.median(times), 3),
                  "peak_mib": round((torch.cuda.max_memory_allocated() - before) / 2**20), **more}
    except torch.OutOfMemoryError:
        record = {"what": what, "who": who, "out_of_memory": True, **more}
    print(json.dumps(record), flush=True)
    torch.cuda.empty_cache()
    return record


def tensor(*shape, scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).bfloat16().requires_grad_()


def stepper(function, inputs):
    """Forward and backward with fresh gradients."""
    def step():
        for x in inputs:
            x.grad = None
        out = function(*inputs)
        out.backward() if out.dim() == 0 else out.backward(torch.ones_like(out))

    return step


def loss(tokens, liger):
    width, vocab = 4096, 128256
    inputs = [tensor(tokens, width), tensor(vocab, width, scale=0.02)]
    for share, name in ((0.0, "all labelled"), (0.5, "half labelled")):
        target = torch.randint(0, vocab, (tokens,), device="cuda")
        target[torch.rand(tokens, device="cuda") < share] = -100
        shape = {"tokens": tokens, "hidden": width, "vocab": vocab, "labels": name}
        measure("loss", "inlay", stepper(lambda h, w: ops.fused_linear_cross_entropy(h, w, target), inputs), **shape)
        if liger:
            from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as theirs

            measure("loss", "liger", stepper(lambda h, w: theirs(h, w, target), inputs), **shape)
            measure("loss", "liger, fp32 sums",
                    stepper(lambda h, w: theirs(h, w, target, accum_dtype=torch.float32), inputs), **shape)
        measure("loss", "torch", stepper(lambda h, w: F.cross_entropy((h @ w.T).float(), target), inputs), **shape)


def mlp(tokens, liger):
    width, inner = 4096, 14336
    inputs = [tensor(tokens, width), *(tensor(*s, scale=0.02) for s in ((inner, width), (inner, width), (width, inner)))]
    shape = {"tokens": tokens, "hidden": width, "inner": inner}
    for tile in (0, 4096):
        measure("mlp", f"inlay, tile {tile}", stepper(lambda *a: ops.swiglu_mlp(*a, tile), inputs), **shape)
    measure("mlp", "inlay, keeping", stepper(lambda *a: ops.swiglu_mlp(*a, 0, True), inputs), **shape)
    plain = lambda x, g, u, d: (F.silu(x @ g.T) * (x @ u.T)) @ d.T
    measure("mlp", "torch", stepper(plain, inputs), **shape)
    measure("mlp", "torch, checkpointed",
            stepper(lambda *a: torch.utils.checkpoint.checkpoint(plain, *a, use_reentrant=False), inputs), **shape)
    if liger:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        measure("mlp", "liger", stepper(lambda x, g, u, d: LigerSiLUMulFunction.apply(x @ g.T, x @ u.T) @ d.T, inputs),
                **shape)


def attention(tokens, _):
    heads, kv_heads, width, documents = 32, 8, 128, 4
    inputs = [tensor(tokens, n, width) for n in (heads, kv_heads, kv_heads)]
    places = [tokens * i // documents for i in range(documents + 1)]
    shape = {"tokens": tokens, "heads": heads, "kv_heads": kv_heads, "documents": documents}
    for name, settings in (("causal", {}), ("causal, not deterministic", {"deterministic": False}),
                           ("window 1024", {"window": 1024}),
                           ("rule: softcap", {"score": "30 * tanh(s / 30)", "deterministic": False})):
        measure("attention", f"inlay, {name}", stepper(lambda *a: ops.attention(*a, places, **settings), inputs), **shape)

    def theirs(q, k, v):  # equal documents, so a batch of them is the same work
        q, k, v = (t.view(documents, -1, t.shape[1], width).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    measure("attention", "torch, causal", stepper(theirs, inputs), **shape)


def moe(tokens, _):
    experts, chosen, width, inner = 32, 4, 2048, 1024
    inputs = [tensor(tokens, width), tensor(experts, width, scale=0.02), tensor(experts, 2 * inner, width, scale=0.02),
              tensor(experts, width, inner, scale=0.02)]
    shape = {"tokens": tokens, "experts": experts, "chosen": chosen}
    measure("moe", "inlay", stepper(lambda *a: ops.moe(*a, chosen), inputs), **shape)

    def theirs(x, router, gate_up, down):
        weights, picks = torch.softmax((x @ router.T).float(), -1).topk(chosen, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        for e in range(experts):
            rows, choice = (picks == e).nonzero(as_tuple=True)
            gate, up = (x[rows] @ gate_up[e].T).chunk(2, -1)
            out = out.index_add(0, rows, weights[rows, choice, None] * ((F.silu(gate) * up) @ down[e].T))
        return out

    measure("moe", "torch, expert by expert", stepper(theirs, inputs), **shape)


def osft(tokens, _):
    width, out = 4096, 4096
    x = tensor(tokens, width)
    linear = torch.nn.Linear(width, out, bias=False, device="cuda", dtype=torch.bfloat16)
    shape = {"tokens": tokens, "in": width, "out": out}
    measure("osft", "torch, whole matrix", stepper(lambda x, w: F.linear(x, w), [x, linear.weight]), **shape)
    for ratio in (0.125, 0.5):
        free = torch.linalg.qr(torch.randn(width, int(ratio * width), device="cuda")).Q.T.contiguous()
        layer = ops.OsftLinear(linear, free)
        measure("osft", f"inlay, ratio {ratio}", stepper(lambda x, b: layer(x), [x, layer.factor]), **shape)


def llama(tokens, liger):
    """A training step of a transformers model: forward, backward, AdamW."""
    transformers = optional("transformers")
    if transformers is None:
        return
    sizes = dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=8, num_attention_heads=32,
                 num_key_value_heads=8, tie_word_embeddings=False, attn_implementation="sdpa")

    def run(who, prepare):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).to("cuda", torch.bfloat16).train()
        model = prepare(model) or model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        ids = torch.randint(0, 128256, (4, tokens // 4), device="cuda")
        losses = []

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

        record = measure("llama step", who, step, iterations=6, tokens=tokens, layers=sizes["num_hidden_layers"])
        if losses:
            print(json.dumps({"what": "llama losses", "who": who, "losses": [round(float(x), 4) for x in losses[:6]]}))
        del model, optimizer
        gc.collect()
        torch.cuda.empty_cache()
        return record

    run("transformers", lambda model: None)
    run("inlay", ops.patch_llama)
    run("inlay, computed again", lambda model: ops.patch_llama(model, keep=False))
    run("inlay, loss alone", lambda model: ops.patch_llama(model, mlp=False))
    if liger:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        run("liger", lambda model: apply_liger_kernel_to_llama(model=model))
        run("liger, loss and swiglu alone", lambda model: apply_liger_kernel_to_llama(model=model, rope=False,
                                                                                      rms_norm=False))
        run("liger, then inlay's loss and mlp", lambda model: (apply_liger_kernel_to_llama(model=model),
                                                               ops.patch_llama(model))[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--only", default="loss,mlp,attention,moe,osft,llama")
    arguments = parser.parse_args()
    liger = optional("liger_kernel.transformers")
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, **inlay.build,
                      "liger": liger is not None}), flush=True)
    if not inlay.build["cuda"]:
        sys.exit("this inlay was built without CUDA")
    failed = False
    if not arguments.skip_tests:
        import test_torch

        result = unittest.TextTestRunner(verbosity=1).run(unittest.defaultTestLoader.loadTestsFromModule(test_torch))
        failed = not result.wasSuccessful()
    tokens = 4096 if arguments.quick else 16384
    for name in filter(None, arguments.only.split(",")):
        try:
            globals()[name](tokens, liger)
        except Exception as error:  # one that fails does not keep the others from being measured
            failed = True
            print(json.dumps({"what": name, "error": f"{type(error).__name__}: {error}"}), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
