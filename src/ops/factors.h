#pragma once

#include "ops/check.h"

// The small arithmetic around factored weights (weights/): offsets that train beside bases that do not, and scales of
// rows.
namespace inlay::ops {

// An fp32 tensor as AdamW keeps it (ops/adamw.h): low is absent where value is fp32.
struct Master {
  ConstView value, low;
};

// out = base + offset; base and out in one dtype, contiguous, of one shape.
void add_offset(Exec& exec, View out, ConstView base, const Master& offset);

// out[i] = Σ_j a[i, j] · b[i, j] in a fixed order; out fp32 [rows], a and b fp32 or bf16 each.
void row_dot(Exec& exec, View out, ConstView a, ConstView b);

// Rows of a factor with their scales, each a base and what it was moved by.
struct FactorRows {
  ConstView base;          // [r, d]
  Master offset;           // [r, d]
  ConstView scale;         // fp32 [r]
  ConstView scale_offset;  // fp32 [r]
};
// With s = scale + scale_offset: scaled = s ∘ (base + offset), change = s ∘ offset + scale_offset ∘ base, which is what
// the scaled rows moved by. Both in base's dtype.
void change_rows(Exec& exec, View scaled, View change, const FactorRows& rows);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void add_offset(Exec& exec, View out, ConstView base, const Master& offset);
void row_dot(Exec& exec, View out, ConstView a, ConstView b);
void change_rows(Exec& exec, View scaled, View change, const FactorRows& rows);
}  // namespace cpu

namespace cuda {
void add_offset(Exec& exec, View out, ConstView base, const Master& offset);
void row_dot(Exec& exec, View out, ConstView a, ConstView b);
void change_rows(Exec& exec, View scaled, View change, const FactorRows& rows);
}  // namespace cuda

}  // namespace inlay::ops
