#!/usr/bin/env python3
"""What gguf's own quantiser makes of some blocks of numbers, for tests/gguf/numbers_test.cpp.

    python3 -m venv V && V/bin/pip install gguf numpy && V/bin/python tests/golden/make_gguf_numbers.py"""
import json, os
import numpy as np
import gguf

rng = np.random.default_rng(5)
blocks = [rng.normal(0, s, 32) for s in (1e-6, 0.02, 1.0, 37.0)]
blocks += [np.zeros(32), np.full(32, -0.75), np.arange(-16, 16) / 8.0, np.ldexp(1.0, np.arange(-16, 16)), rng.uniform(-6, 6, 32)]
edge = rng.normal(0, 1, 32)
edge[3] = np.float32(8) - np.float32(4.8e-7)  # just below a power of two
blocks += [edge, np.where(np.arange(32) % 2, 6.0, 5.0), np.linspace(-127, 127, 32) + 0.5]
values = np.array(blocks, dtype=np.float32)
kinds = {"f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "mxfp4": "MXFP4"}
out = {"values": values.tobytes().hex()}
for name, kind in kinds.items():
    out[name] = gguf.quants.quantize(values, getattr(gguf.GGMLQuantizationType, kind)).tobytes().hex()
path = os.path.join(os.path.dirname(__file__), "gguf_numbers.json")
json.dump(out, open(path, "w"), indent=1)
