#pragma once

#include <cmath>
#include <vector>

#include "support/device_tensors.h"
#include "weights/weight.h"

namespace inlay::testing {

// Directions and adapters like any: rows of about unit length, and scales of about 1.
class AnyStart final : public weights::StartTensors {
 public:
  const void* at(const std::string&, DType, const Shape& shape) const override {
    const double width = shape.rank() > 1 ? static_cast<double>(shape[1]) : 1.0;
    const auto values = random_values(shape.size(), ++seed_, 1.0 / std::sqrt(width));
    rows_.assign(values.begin(), values.end());
    return rows_.data();
  }

 private:
  mutable std::vector<float> rows_;
  mutable std::uint64_t seed_ = 1000;
};

}  // namespace inlay::testing
