#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/kernels.h"

namespace inlay::ops {

namespace {

// Most nuclei are small: sorting their surroundings is enough.
void keep_nucleus_of(float* logits, std::size_t vocab, float temperature, float top_p) {
  std::vector<std::int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const auto top = static_cast<double>(*std::max_element(logits, logits + vocab));
  const auto likelihood = [&](std::size_t token) { return std::exp((logits[token] - top) / temperature); };
  double total = 0, passed = 0;
  for (std::size_t i = 0; i < vocab; ++i) total += likelihood(i);
  std::size_t kept = 0;
  for (std::size_t sorted = 0; kept < vocab && passed < top_p * total; ++kept) {
    if (kept == sorted) {
      const std::size_t end = std::min(vocab, std::max<std::size_t>(64, 8 * sorted));
      std::partial_sort(order.begin() + static_cast<std::ptrdiff_t>(sorted),
                        order.begin() + static_cast<std::ptrdiff_t>(end), order.end(), before);
      sorted = end;
    }
    passed += likelihood(static_cast<std::size_t>(order[kept]));
  }
  for (std::size_t i = kept; i < vocab; ++i) {
    logits[order[i]] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void keep_nucleus(Exec& exec, View logits, float temperature, float top_p) {
  INLAY_ASSERT(logits.rank() == 2, "keep_nucleus: logits are {}, expected [B, V]", logits.shape().str());
  check_dtype("keep_nucleus", "logits", logits, DType::f32);
  INLAY_ASSERT(temperature >= std::numeric_limits<float>::min() && top_p > 0,
               "keep_nucleus: temperature {} and top_p {}, expected positive numbers", temperature, top_p);
  exec.count_bytes({logits});
  if (exec.planning() || logits.size() == 0 || top_p >= 1) return;
  if (exec.on_cuda()) return cuda::keep_nucleus(exec, logits, temperature, top_p);
  for (std::int64_t row = 0; row < logits.dim(0); ++row) {
    keep_nucleus_of(logits.as<float>() + row * logits.ld(), static_cast<std::size_t>(logits.dim(1)), temperature,
                    top_p);
  }
}

void sample(Exec& exec, View ids, ConstView logits, const SampleSpec& spec) {
  constexpr std::string_view op = "sample";
  INLAY_ASSERT(logits.rank() == 2, "sample: logits are {}, expected [B, V]", logits.shape().str());
  check_dtype(op, "logits", logits, DType::f32);
  check_shape(op, "ids", ids, {logits.dim(0)});
  check_dtype(op, "ids", ids, DType::i32);
  // Smaller ones than this have no finite inverse.
  INLAY_ASSERT(spec.temperature == 0.0f || spec.temperature >= std::numeric_limits<float>::min(),
               "sample: temperature {}, expected 0 or a positive number", spec.temperature);
  INLAY_ASSERT(spec.first_sequence >= 0 && spec.position >= 0, "sample: sequence {} at position {}",
               spec.first_sequence, spec.position);
  if (!spec.positions.absent()) {
    check_shape(op, "positions", spec.positions, {logits.dim(0)});
    check_dtype(op, "positions", spec.positions, DType::i32);
  }
  exec.count_bytes({logits});
  if (exec.planning() || logits.size() == 0) return;
  if (exec.on_cuda()) return cuda::sample(exec, ids, logits, spec);
  cpu::kernels().sample(exec, ids, logits, spec);
}

}  // namespace inlay::ops
