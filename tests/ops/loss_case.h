#pragma once

#include <string>
#include <vector>

#include "core/batch.h"
#include "ops/fused_linear_ce.h"
#include "ops/reference/cross_entropy.h"
#include "support/dense_head.h"
#include "support/device_tensors.h"

// One call of the fused linear cross entropy with random tensors, held against the fp64 reference.
namespace inlay::testing {

// The options that a case may switch on, as bits.
namespace feature {
inline constexpr unsigned bias = 1, ignored = 2, class_weights = 4, smoothing = 8, softcap = 16, z_loss = 32,
                          token_weights = 64, upstream = 128, normalizer = 256;
inline constexpr int count = 9;
}  // namespace feature

// Which gradients are asked for.
enum class Wanted { all, in_place, frozen_head, head_only, evaluation };
inline constexpr int wanted_count = 5;

struct LossCase {
  std::int64_t tokens = 4, width = 8, columns = 8;
  unsigned features = 0;
  ops::Reduction reduction = ops::Reduction::mean;
  Wanted wanted = Wanted::all;
  std::int64_t chunk_tokens = 0;
  double spread = 1.5;                     // standard deviation of the logits
  std::vector<std::int32_t> targets = {};  // drawn where empty

  bool has(unsigned bit) const { return (features & bit) != 0; }
  std::string str() const;
};

// The inputs in fp64, already rounded to the dtype they are given in.
struct LossProblem {
  ops::reference::CrossEntropyProblem<double> problem;
  ops::reference::CrossEntropyOptions options;
  std::vector<double> upstream;
};
LossProblem make_problem(const LossCase& loss_case, DType dtype);

// What the device answers, as numbers.
struct LossAnswer {
  std::vector<double> loss, z_loss, dhidden, dweight, dbias;
  std::vector<std::int32_t> correct, predicted;
};
LossAnswer run_case(TestBench& bench, const LossCase& loss_case, const LossProblem& problem, DType dtype);

// Runs the case and holds every output against fp64: an error of at most twice that of plain code in the same dtype
// (logits and dZ rounded to it), and a little.
void check_case(TestBench& bench, const LossCase& loss_case, DType dtype);

}  // namespace inlay::testing
