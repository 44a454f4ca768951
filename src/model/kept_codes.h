#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weights/weight.h"

namespace inlay::model {

using backend::Exec;

// What the backward pass reads of a product's input: for the gradient of its weight, and where the product is made
// again.
enum class InputNeed : std::uint8_t { nothing, codes, numbers };
InputNeed input_need(const ops::Linear& product, bool made_again);

// What a product in fp8 saw, for the gradient of its weight: of its input no more is read than the codes that were made
// in the forward pass, so these are kept in the input's place, in half of its memory or less. Rows that are worked off
// in tiles are coded tile by tile, whose scales are their own.
class KeptCodes {
 public:
  KeptCodes() = default;  // nothing is kept
  // For the input, [rows, the weight's inputs], of a weight that reads it in fp8 alone (Linear::fp8).
  KeptCodes(Exec& exec, std::string_view name, const ops::Linear& weight, std::int64_t rows, std::int64_t tile);

  bool absent() const { return tiles_.empty(); }
  // Codes a tile, from its first row on, in one reading, and hands out what the product and its gradient read of it;
  // what the product alone reads lies in scratch.
  ops::Fp8Forms encode(Exec& exec, ConstView rows, std::int64_t first);
  // For the gradient; null where nothing is kept.
  const ops::Fp8Forms* of_tile(std::int64_t first) const;

 private:
  std::size_t number(std::int64_t first) const { return static_cast<std::size_t>(tile_ > 0 ? first / tile_ : 0); }

  std::string name_;
  ops::Fp8Operands operands_;
  std::int64_t tile_ = 0;
  std::vector<ops::Fp8Forms> tiles_;
};

}  // namespace inlay::model
