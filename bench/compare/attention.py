#!/usr/bin/env python3
"""Runs the peers of `inlay bench attention` on the same device: PyTorch's attention by cuDNN and by FlashAttention-2
(causal only), and flex attention with the same mask and score, which are read as `inlay` reads them. Prints one JSON
object a peer, with the median milliseconds of forward, of backward and of both.

    python bench/compare/attention.py --documents 1 --length 16384 --heads 32 --kv-heads 8 --head-dim 128
    python bench/compare/attention.py --mask "causal and (window(4096) or k % 64 == 0)" --score "softcap(50)"
"""
import argparse
import ast
import json
import os
import statistics

# With its pool of compiling processes, PyTorch 2.11 did not come back from compiling flex attention within minutes.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


class ToTensors(ast.NodeTransformer):
    """What tensors do not know (and, or, not, chains of comparisons, our own names) as operators that they do."""

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        result = node.values[0]
        for value in node.values[1:]:
            result = ast.BinOp(result, operator, value)
        return result

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.Call(ast.parse("torch.logical_not", mode="eval").body, [node.operand], [])

    def visit_Compare(self, node):
        self.generic_visit(node)
        parts, left = [], node.left
        for operator, right in zip(node.ops, node.comparators):
            parts.append(ast.Compare(left, [operator], [right]))
            left = right
        result = parts[0]
        for part in parts[1:]:
            result = ast.BinOp(result, ast.BitAnd(), part)
        return result

    def visit_Call(self, node):
        self.generic_visit(node)
        arguments = [f"({ast.unparse(argument)})" for argument in node.args]
        forms = {"window": "(q - k < {0})", "softcap": "({0} * torch.tanh(s / {0}))",
                 "alibi": "(s - {0} * torch.abs(q - k))", "min": "torch.where({0} < {1}, {0}, {1})",
                 "max": "torch.where({0} > {1}, {0}, {1})"}
        form = forms.get(node.func.id, "torch." + node.func.id + "(" + ", ".join(arguments) + ")")
        return ast.parse(form.format(*arguments), mode="eval").body

    def visit_Name(self, node):
        forms = {"causal": "(k <= q)", "document": "(q >= 0)", "true": "(q >= 0)", "false": "(q < 0)",
                 "prefix": "(k < prefix_length)", "alibi": "(s - torch.exp2(-8.0 * (h + 1) / heads) * torch.abs(q - k))"}
        return ast.parse(forms[node.id], mode="eval").body if node.id in forms else node


def to_tensors(text):
    tree = ToTensors().visit(ast.parse(text.strip(), mode="eval"))
    return ast.unparse(ast.fix_missing_locations(tree))


def rules(arguments):
    """mask_mod and score_mod as Python functions, which torch.compile can trace."""
    known = (f"    q, k = q_index % {arguments.length}, k_index % {arguments.length}\n"
             f"    q_doc = k_doc = q_index // {arguments.length}\n"
             f"    heads, length, prefix_length = {arguments.heads}, {arguments.length}, {arguments.prefix}\n")
    stages = arguments.score.split(" then ") if arguments.score else []
    source = ("import torch\n"
              f"def mask_mod(b, h, q_index, k_index):\n{known}"
              f"    return (q_index // {arguments.length} == k_index // {arguments.length})"
              f" & ({to_tensors(arguments.mask or 'causal')})\n"
              f"def score_mod(s, b, h, q_index, k_index):\n{known}"
              + "".join(f"    s = {to_tensors(stage)}\n" for stage in stages) + "    return s\n")
    functions = {}
    exec(source, functions)
    return functions["mask_mod"], functions["score_mod"] if stages else None


def attention_of(peer, arguments, q, k, v):
    if peer in SDPA:
        if arguments.mask or arguments.score or arguments.documents > 1:
            raise RuntimeError("this one knows causal attention over one document alone")

        def call():
            with sdpa_kernel(SDPA[peer]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return call
    mask_mod, score_mod = rules(arguments)
    tokens = arguments.documents * arguments.length
    heads = arguments.heads if "h" in (arguments.mask or "").split() else None
    blocks = create_block_mask(mask_mod, None, heads, tokens, tokens, device=q.device)
    flex = torch.compile(flex_attention)
    return lambda: flex(q, k, v, score_mod=score_mod, block_mask=blocks, enable_gqa=True)


def milliseconds(call):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), result


def measure(arguments, peer):
    torch.manual_seed(1)
    tokens = arguments.documents * arguments.length

    def tensor(heads):
        shape = (1, tokens, heads, arguments.head_dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()

    q, k, v = tensor(arguments.heads), tensor(arguments.kv_heads), tensor(arguments.kv_heads)
    dout = torch.randn_like(q)
    attention = attention_of(peer, arguments, q, k, v)
    forwards, backwards = [], []
    for iteration in range(arguments.iterations + 3):
        forward, out = milliseconds(attention)
        backward, _ = milliseconds(lambda: out.backward(dout))
        q.grad = k.grad = v.grad = None
        if iteration >= 3:
            forwards.append(forward)
            backwards.append(backward)
    forward, backward = statistics.median(forwards), statistics.median(backwards)
    return {"peer": peer, "ms": forward + backward, "forward_ms": forward, "backward_ms": backward}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("documents", 1), ("length", 16384), ("heads", 32), ("kv-heads", 8), ("head-dim", 128),
                          ("prefix", 0), ("iterations", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mask", default="")
    parser.add_argument("--score", default="")
    parser.add_argument("--peers", nargs="*", default=["cudnn", "flash", "flex"])
    arguments = parser.parse_args()
    for peer in arguments.peers:
        try:
            result = measure(arguments, peer)
        except Exception as error:  # a peer that cannot run here is reported, the others go on
            result = {"peer": peer, "error": str(error)[:300]}
        print(json.dumps(result | {"torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
