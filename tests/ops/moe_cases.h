#pragma once

#include "ops/moe_permute.h"
#include "support/device_tensors.h"

// Routings that the tests of the experts' ops share: uneven, experts without a token, all tokens to the same ones.
namespace inlay::testing {

struct MoeCase {
  std::string name;
  std::int64_t tokens, experts, choices;
  std::vector<std::int32_t> chosen;  // [tokens, choices], distinct within a token

  std::int64_t pairs() const { return tokens * choices; }
};

inline MoeCase moe_case(std::string name, std::int64_t tokens, std::int64_t experts, std::int64_t choices,
                        std::uint64_t spread) {
  MoeCase c{std::move(name), tokens, experts, choices, {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    // spread 0: every token goes to the last experts; otherwise to neighbours from a scattered place on.
    const auto start = spread == 0 ? static_cast<std::uint64_t>(experts - choices)
                                   : static_cast<std::uint64_t>(t) * static_cast<std::uint64_t>(t) * spread;
    for (std::int64_t j = 0; j < choices; ++j) {
      c.chosen.push_back(
          static_cast<std::int32_t>((start + static_cast<std::uint64_t>(j)) % static_cast<std::uint64_t>(experts)));
    }
  }
  return c;
}

inline const std::vector<MoeCase>& moe_cases() {
  static const std::vector<MoeCase> list = {moe_case("one token", 1, 3, 2, 1),
                                            moe_case("one expert", 5, 1, 1, 1),
                                            moe_case("all to the last", 130, 5, 1, 0),
                                            moe_case("all to the last two", 33, 4, 2, 0),
                                            moe_case("squares leave gaps", 67, 32, 2, 8),
                                            moe_case("several sort blocks", 700, 32, 4, 3),
                                            moe_case("many experts", 300, 200, 8, 5)};
  return list;
}

// A case on a device, sorted.
struct MoeOrder {
  MoeOrder(TestBench& bench, const MoeCase& c)
      : experts(bench.indices(c.chosen).reshape({c.tokens, c.choices})),
        order{bench.poisoned(DType::i32, {c.experts + 1}), bench.poisoned(DType::i32, {c.pairs()}),
              bench.poisoned(DType::i32, {c.tokens, c.choices})} {
    ops::moe_sort(bench.exec, order, experts);
  }
  View experts;
  ops::ExpertOrder order;
};

}  // namespace inlay::testing
