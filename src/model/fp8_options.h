#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/fp8.h"
#include "weights/kind.h"

namespace inlay::model {

// Whose products are made in fp8: those of the layers' matrices (but for routers) whose extents allow it, and the
// head's where that is asked for. Experts are multiplied by together: all of a layer are, or none.
struct Fp8Options {
  ops::Fp8Settings settings;
  bool head = false;
  std::int64_t skip_first = 0, skip_last = 0;  // so many layers stay as they are
  // Of the others those that are named: numbers of layers, or patterns of names that tensors have in a checkpoint.
  // Empty: all.
  std::vector<std::string> layers;

  // Whether an entry of `layers` means a matrix.
  static bool names(const std::string& entry, const weights::Parameter& parameter);
  bool takes(const weights::Parameter& parameter, const ModelConfig& config) const;
  ops::Fp8Settings settings_of(const weights::Parameter& parameter) const;
  // Of matrices of one shape, a layer's or the same of all its experts, those that are taken, whose kind allows it and
  // whose products the device can make get what multiplies them.
  void apply(weights::Exec& exec, const ModelConfig& config, const weights::WeightPlan& plan,
             std::span<weights::Parameter> alike) const;
};

}  // namespace inlay::model
