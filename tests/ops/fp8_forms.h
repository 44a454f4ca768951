#pragma once

#include "ops/fp8.h"
#include "support/device_tensors.h"

// Operands of products in fp8 as tests see them.
namespace inlay::testing {

struct ReadForm {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};
inline ReadForm read_form(TestBench& bench, const ops::Fp8Matrix& m) {
  ReadForm result{std::vector<std::uint8_t>(static_cast<std::size_t>(m.codes.size())),
                  std::vector<float>(static_cast<std::size_t>(m.scales.size()))};
  if (m.absent()) return result;
  bench.exec.download(result.codes.data(), m.codes);
  bench.exec.download(result.scales.data(), m.scales);
  return result;
}

inline void poison_forms(TestBench& bench, const ops::Fp8Forms& forms) {
  for (const ops::Fp8Matrix* m : {&forms.rows, &forms.columns}) {
    if (m->absent()) continue;
    const std::vector<std::uint8_t> codes(static_cast<std::size_t>(m->codes.size()), 0xcd);
    const std::vector<float> scales(static_cast<std::size_t>(m->scales.size()), -7.0f);
    bench.exec.upload(m->codes, codes.data());
    bench.exec.upload(m->scales, scales.data());
  }
}

// Memory for forms, with nothing in it that anybody could mean.
inline ops::Fp8Forms poisoned_forms(TestBench& bench, const ops::Fp8Settings& settings, ops::Fp8Role role,
                                    ops::Fp8Use use, std::int64_t rows, std::int64_t cols) {
  const ops::Fp8Forms made = ops::keep_fp8(bench.exec, MemoryClass::weights, "x", settings, role, use, rows, cols);
  poison_forms(bench, made);
  return made;
}

inline void expect_same_forms(TestBench& bench, const ops::Fp8Forms& actual, const ops::Fp8Forms& expected) {
  for (const auto& [a, e] : {std::pair(actual.rows, expected.rows), std::pair(actual.columns, expected.columns)}) {
    const ReadForm got = read_form(bench, a), wanted = read_form(bench, e);
    EXPECT_EQ(got.codes, wanted.codes);
    EXPECT_EQ(got.scales, wanted.scales);
  }
}

}  // namespace inlay::testing
