#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "weights/weight.h"

namespace inlay::testing {

// What a weight starts from, by name.
class NamedStart final : public weights::StartTensors {
 public:
  explicit NamedStart(std::map<std::string, std::vector<float>> tensors) : tensors_(std::move(tensors)) {}
  const void* at(const std::string& name, DType, const Shape& shape) const override {
    const std::vector<float>& values = tensors_.at(name);
    INLAY_ASSERT(values.size() == static_cast<std::size_t>(shape.size()), "{} is not {}", name, shape.str());
    return values.data();
  }

 private:
  std::map<std::string, std::vector<float>> tensors_;
};

}  // namespace inlay::testing
