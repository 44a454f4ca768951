"""Makes tests/golden/quantised.safetensors: what bitsandbytes makes of small matrices, in NF4 and int8, and PyTorch in
fp8.

    pip install torch==2.15.0 bitsandbytes==0.50.2 safetensors numpy
    python tests/golden/make_quantised.py           # on a CPU; the same bytes every time

nf4.map, dynamic.map          the numbers that codes stand for
<case>.values                 the matrix
<case>.nf4.codes, .absmax     quantize_4bit(quant_type="nf4", blocksize=64); absmax is fp32, before it is nested
<case>.nf4.scales, .nested_scales, .offset
                              the nested statistics of compress_statistics=True: the 8-bit codes of absmax - offset, the
                              fp32 scales of their blocks of 256, and the mean as PyTorch sums it on a CPU
<case>.nf4.fp32, .nf4.bf16    dequantize_4bit with the nested statistics
<case>.int8.codes, .scales    int8_vectorwise_quant; .int8.fp32: int8_vectorwise_dequant (not for many_blocks, nor fp8)
<case>.fp8.codes, .scales     absmax / 448 of every row, and the bytes of values / scale in float8_e4m3fn; .fp8.fp32

The 8-bit codes come from bitsandbytes' default kernel, which searches for the nearest number as its CUDA kernel does.
Its CPU library, which quantize_4bit(compress_statistics=True) would call here, looks them up in a table of coarse steps:
about two codes in a thousand are another one.
"""

import pathlib

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import save_file

DEFAULT_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)


def quantize_blockwise(values, code, blocksize):
    return torch.ops.bitsandbytes.quantize_blockwise.default.redispatch(DEFAULT_KERNELS, values, code, blocksize)


def cases():
    generator = torch.Generator().manual_seed(16)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    result = {
        "many_blocks": (normal(70, 256) * 0.02).bfloat16(),  # 280 blocks: two of nested scales
        "straddling": normal(33, 100) * 0.1,                 # 100 columns: blocks run across rows, the last is short
        "one_row": normal(1, 200).half(),
        "odd": (normal(5, 37) * 3).bfloat16(),               # the last byte holds one code
        "edges": normal(4, 128),
    }
    edges = result["edges"]
    edges[0, :64] = 0            # a block of zeros
    edges[1, 70] = 1e4           # a block that one number rules
    edges[2, :64] = 0.25         # all the same
    edges[3, 64:] *= 1e-30
    return result


def main():
    dynamic = bnb.create_dynamic_map()
    tensors = {"nf4.map": bnb.get_4bit_type("nf4", device="cpu"), "dynamic.map": dynamic}
    for name, values in cases().items():
        codes, state = bnb.quantize_4bit(values, quant_type="nf4", blocksize=64)
        offset = state.absmax.mean()
        scales, nested = quantize_blockwise(state.absmax - offset, dynamic, 256)
        opened = {}
        for dtype in (torch.float32, torch.bfloat16):
            opened[dtype] = bnb.dequantize_4bit(codes, bnb.QuantState(
                absmax=scales, shape=values.shape, dtype=dtype, blocksize=64, quant_type="nf4", offset=offset,
                state2=bnb.QuantState(absmax=nested, code=dynamic, blocksize=256, dtype=torch.float32)))
        parts = {
            "values": values,
            "nf4.codes": codes.reshape(-1),
            "nf4.absmax": state.absmax,
            "nf4.scales": scales,
            "nf4.nested_scales": nested,
            "nf4.offset": offset.reshape(1),
            "nf4.fp32": opened[torch.float32],
            "nf4.bf16": opened[torch.bfloat16],
        }
        if name != "many_blocks":  # whose size is for the nested scales
            int8, rows, _ = bnb.int8_vectorwise_quant(values)
            fp8_rows = values.float().abs().max(dim=1).values / 448
            fp8 = (values.float() / fp8_rows[:, None]).to(torch.float8_e4m3fn)
            parts |= {
                "int8.codes": int8,
                "int8.scales": rows,
                "int8.fp32": bnb.int8_vectorwise_dequant(int8, rows),
                "fp8.codes": fp8.view(torch.uint8),
                "fp8.scales": fp8_rows,
                "fp8.fp32": fp8.float() * fp8_rows[:, None],
            }
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    target = pathlib.Path(__file__).parent / "quantised.safetensors"
    save_file(tensors, target)
    target.chmod(0o644)


main()
