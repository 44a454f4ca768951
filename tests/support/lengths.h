#pragma once

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "support/files.h"

// How long documents are.
namespace inlay::testing {

inline std::vector<std::int64_t> random_lengths(std::int64_t count, std::int64_t longest, std::uint64_t seed = 1) {
  const Philox philox{seed};
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    lengths.push_back(1 + static_cast<std::int64_t>(random_below(philox, static_cast<std::uint64_t>(i), 0,
                                                                 static_cast<std::uint64_t>(longest))));
  }
  return lengths;
}

struct Lengths {
  std::string name;
  std::vector<std::int64_t> values;
};

// Of real documents, and log-normal ones: many short conversations, some of which are as long as a micro-batch.
inline std::vector<Lengths> real_lengths() {
  const auto file = source_folder() / "tests/golden/token_lengths.json";
  const auto json = nlohmann::json::parse(read_text(file));
  std::vector<Lengths> result;
  for (const auto& [name, values] : json.items()) result.push_back({name, values});
  const Philox philox{11};
  result.push_back({"log-normal", {}});
  for (std::uint64_t i = 0; i < 6000; ++i) {
    const auto uniform = [&](std::uint64_t stream) {
      constexpr std::uint64_t parts = 1 << 30;
      return (static_cast<double>(random_below(philox, i, stream, parts)) + 0.5) / static_cast<double>(parts);
    };
    const double normal = std::sqrt(-2 * std::log(uniform(0))) * std::cos(2 * std::numbers::pi * uniform(1));
    result.back().values.push_back(1 + static_cast<std::int64_t>(350 * std::exp(normal)));
  }
  return result;
}

}  // namespace inlay::testing
