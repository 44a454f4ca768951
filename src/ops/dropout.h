#pragma once

#include "ops/check.h"

namespace inlay::ops {

// Which numbers are dropped. Row i of x is row n = first_row + i of a site, or n = first_row + rows[i] where they are
// in another order. Its number n · cols + column is dropped where its word of Philox (word n % 4 of block n / 4; key:
// the seed, stream: the site) lies below p · 2³². So the mask of a tensor is the same however its rows are cut into
// tiles or sorted, when it is computed again, and on either device.
struct Dropout {
  float p = 0;  // probability, in [0, 1)
  std::uint64_t seed = 0, site = 0;
  std::int64_t first_row = 0;  // of the tensor that these rows are part of
  ConstView rows = {};         // int32 [rows of x], or absent

  // Words below are dropped.
  constexpr std::uint32_t threshold() const { return static_cast<std::uint32_t>(double{p} * 0x1p32); }
  constexpr float scale() const { return static_cast<float>(1.0 / (1.0 - double{p})); }
};

// y = or += x · mask / (1 − p), matrices of one shape and dtype (fp32 or bf16); with overwrite y may be x itself. The
// gradient is the same op: dx = or += dy · mask / (1 − p).
void dropout(Exec& exec, View y, Grad mode, ConstView x, const Dropout& which);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning, no
// skipping).
namespace cpu {
void dropout(Exec& exec, View y, Grad mode, ConstView x, const Dropout& which);
}
namespace cuda {
void dropout(Exec& exec, View y, Grad mode, ConstView x, const Dropout& which);
}

}  // namespace inlay::ops
