#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace inlay::data {

// A row's list of integers, read straight into the type that documents have.
struct TokenArray {
  std::vector<std::int32_t> values;
  bool present = false;
  // The first that no int32 holds, and its place; the nearest one stands there, which is in no vocabulary either.
  std::optional<std::pair<std::size_t, std::int64_t>> beyond;
  std::optional<std::size_t> missing;  // the place of the first that is null; 0 stands there

  void add(std::int64_t value) {
    using Limits = std::numeric_limits<std::int32_t>;
    const std::int64_t held = std::clamp<std::int64_t>(value, Limits::min(), Limits::max());
    if (held != value && !beyond) beyond = {values.size(), value};
    values.push_back(static_cast<std::int32_t>(held));
  }
  std::int64_t at(std::size_t index) const { return beyond && beyond->first == index ? beyond->second : values[index]; }
};

// What a row of type tokens is made of.
struct TokenArrays {
  TokenArray input_ids, labels, attention_mask;

  TokenArray* find(std::string_view key) {
    if (key == "input_ids") return &input_ids;
    if (key == "labels") return &labels;
    return key == "attention_mask" ? &attention_mask : nullptr;
  }
};

}  // namespace inlay::data
