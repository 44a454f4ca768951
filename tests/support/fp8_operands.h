#pragma once

#include <vector>

#include "backend/fp8_matmul.h"
#include "core/fp8.h"
#include "support/device_tensors.h"

namespace inlay::testing {

// The numbers that codes and scales stand for.
inline std::vector<double> opened(TestBench& bench, const backend::Fp8Matrix& m) {
  using backend::Fp8Scaling;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(m.codes.size()));
  std::vector<float> scales(static_cast<std::size_t>(m.scales.size()));
  bench.exec.download(codes.data(), m.codes);
  bench.exec.download(scales.data(), m.scales);
  std::vector<double> result;
  for (std::int64_t row = 0; row < m.rows; ++row) {
    for (std::int64_t col = 0; col < m.cols; ++col) {
      std::int64_t place = 0;
      if (m.scaling == Fp8Scaling::row) place = row;
      if (m.scaling == Fp8Scaling::vector) place = col / 128 * m.scales.dim(1) + row;
      if (m.scaling == Fp8Scaling::square) place = row / 128 * m.scales.dim(1) + col / 128;
      const std::uint8_t code = codes[static_cast<std::size_t>(row * m.codes.dim(1) + col)];
      result.push_back(static_cast<double>(fp8::value_of(m.codes.dtype(), code)) *
                       static_cast<double>(scales[static_cast<std::size_t>(place)]));
    }
  }
  return result;
}

}  // namespace inlay::testing
