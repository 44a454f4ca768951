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
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


class ToTensors(ast.NodeTransformer):
    """and, or, not and chains of comparisons, which tensors do not know, as operators that they do."""

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        result = node.values[0]
        for value in node.values[1:]:
            result = ast.BinOp(result, operator, value)
        return result

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        return ast.Call(ast.Name("logical_not", ast.Load()), [node.operand], []) if isinstance(node.op, ast.Not) else node

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


def compiled(text):
    tree = ToTensors().visit(ast.parse(text.strip(), mode="eval"))
    return compile(ast.fix_missing_locations(tree), text, "eval")


def names(arguments, q, k, h, document):
    position_q, position_k = q % arguments.length, k % arguments.length
    values = {
        "q": position_q, "k": position_k, "h": h, "heads": arguments.heads, "q_doc": document, "k_doc": document,
        "length": arguments.length, "prefix_length": arguments.prefix,
        "causal": position_k <= position_q, "document": position_q == position_q,
        "prefix": position_k < arguments.prefix, "window": lambda size: position_q - position_k < size,
        "logical_not": torch.logical_not, "abs": torch.abs, "floor": torch.floor, "tanh": torch.tanh, "exp": torch.exp,
        "log": torch.log, "where": torch.where, "true": position_q == position_q, "false": position_q != position_q,
    }
    return values


def rules(arguments):
    mask = compiled(arguments.mask or "causal")
    stages = [compiled(stage) for stage in arguments.score.split(" then ")] if arguments.score else []

    def mask_mod(b, h, q, k):
        same = q // arguments.length == k // arguments.length
        return same & eval(mask, names(arguments, q, k, h, q // arguments.length))

    def score_mod(s, b, h, q, k):
        for stage in stages:
            known = names(arguments, q, k, h, q // arguments.length)
            score, distance = s, torch.abs(known["q"] - known["k"])
            known |= {"s": score, "softcap": lambda c: c * torch.tanh(score / c),
                      "alibi": score - torch.exp2(-8.0 * (h + 1) / arguments.heads) * distance}
            s = eval(stage, known)
        return s

    return mask_mod, score_mod if stages else None


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
    blocks = create_block_mask(mask_mod, None, heads, tokens, tokens, device=q.device, _compile=True)
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
        print(json.dumps(result | {"torch": torch.__version__}))


if __name__ == "__main__":
    main()
