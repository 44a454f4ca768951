#include "ops/loss_case.h"

#include <limits>

namespace inlay::testing {

namespace {

using ops::Reduction;
namespace reference = ops::reference;

std::vector<double> positive_values(std::int64_t count, std::uint64_t seed) {
  std::vector<double> values = random_values(count, seed, 0.5);
  for (double& value : values) value = static_cast<double>(static_cast<float>(std::exp(value)));
  return values;
}

std::vector<std::int32_t> valid_rows(const std::vector<std::int32_t>& targets) {
  std::vector<std::int32_t> rows;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] >= 0) rows.push_back(static_cast<std::int32_t>(t));
  }
  return rows;
}

std::vector<double> rounded_to(std::vector<double> values, DType dtype) { return rounded(std::move(values), dtype); }

void expect_close(const std::string& what, const std::vector<double>& actual, const std::vector<double>& expected,
                  const std::vector<double>& plain, const LossCase& c, DType dtype) {
  // Over a handful of numbers the plain code's own error is a matter of luck: there, a unit of rounding is granted, or
  // a part of it where one number is the sum of many.
  const double unit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  const double large = actual.size() < 1000 ? std::max(unit / 8, 1e-4) : 1e-4;
  const double exact = std::max(4e-6, 5e-8 * c.spread);  // of large logits that cancel, an fp32 sum keeps less
  const double floor = dtype == DType::f32 ? exact : c.tokens < 32 ? unit : large;
  EXPECT_LE(relative_error(actual, expected), 2 * relative_error(plain, expected) + floor) << what;
}

}  // namespace

std::string LossCase::str() const {
  static constexpr const char* names[] = {"bias",   "ignored",       "class_weights", "smoothing", "softcap",
                                          "z_loss", "token_weights", "upstream",      "normalizer"};
  std::string text = fmt::format("[{}, {}, {}] chunk {} {} gradients {}", tokens, width, columns, chunk_tokens,
                                 reduction == Reduction::mean  ? "mean"
                                 : reduction == Reduction::sum ? "sum"
                                                               : "none",
                                 static_cast<int>(wanted));
  for (int bit = 0; bit < feature::count; ++bit) {
    if (has(1u << bit)) text += fmt::format(" {}", names[bit]);
  }
  return text;
}

LossProblem make_problem(const LossCase& c, DType dtype) {
  LossProblem made;
  auto& problem = made.problem;
  problem.tokens = c.tokens;
  problem.width = c.width;
  problem.columns = c.columns;
  problem.hidden = rounded(random_values(c.tokens * c.width, 11), dtype);
  problem.weight = rounded(random_values(c.columns * c.width, 12, c.spread / std::sqrt(c.width)), dtype);
  if (c.has(feature::bias)) problem.bias = rounded(random_values(c.columns, 13), dtype);
  if (c.has(feature::class_weights)) problem.class_weights = positive_values(c.columns, 14);
  if (c.has(feature::token_weights)) problem.token_weights = positive_values(c.tokens, 15);
  const Philox philox{16};
  problem.targets = c.targets;
  if (problem.targets.empty()) {
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const bool drop = c.has(feature::ignored) && random_below(philox, static_cast<std::uint64_t>(t), 1, 3) == 0;
      const auto label = random_below(philox, static_cast<std::uint64_t>(t), 2, static_cast<std::uint64_t>(c.columns));
      problem.targets.push_back(drop ? ignore_label : static_cast<std::int32_t>(label));
    }
  }
  // What stands in rows that are ignored must not matter.
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    if (problem.valid(t)) continue;
    for (std::int64_t h = 0; h < c.width; ++h) problem.hidden[static_cast<std::size_t>(t * c.width + h)] = 0;
  }
  made.options.label_smoothing = c.has(feature::smoothing) ? 0.125 : 0;
  made.options.softcap = c.has(feature::softcap) ? 2.5 : 0;
  made.options.z_loss = c.has(feature::z_loss) ? 0.03125 : 0;
  made.options.normalizer = c.has(feature::normalizer) ? 3.0 * static_cast<double>(c.tokens) : 0;
  made.options.reduction = static_cast<reference::CrossEntropyOptions::Reduction>(c.reduction);
  if (c.has(feature::upstream)) made.upstream = positive_values(c.reduction == Reduction::none ? c.tokens : 1, 17);
  return made;
}

LossAnswer run_case(TestBench& bench, const LossCase& c, const LossProblem& made, DType dtype) {
  const auto& problem = made.problem;
  const std::size_t mark = bench.exec.arena().mark();
  const bool none = c.reduction == Reduction::none;
  const std::int64_t per_loss = none ? c.tokens : 1;

  std::vector<double> hidden = problem.hidden;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    if (problem.valid(t)) continue;
    for (std::int64_t h = 0; h < c.width; ++h) {
      hidden[static_cast<std::size_t>(t * c.width + h)] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  const auto optional = [&](DType type, const std::vector<double>& values) {
    return values.empty() ? View{} : bench.tensor(type, {static_cast<std::int64_t>(values.size())}, values);
  };
  const View x = bench.tensor(dtype, {c.tokens, c.width}, hidden);
  ops::LossInputs inputs;
  inputs.hidden = x;
  inputs.targets = bench.indices(problem.targets);
  const std::vector<std::int32_t> rows = valid_rows(problem.targets);
  // Where every row counts, `rows` may be left out.
  if (c.has(feature::ignored) || static_cast<std::int64_t>(rows.size()) < c.tokens || c.has(feature::softcap)) {
    inputs.rows = bench.indices(rows);
  }
  inputs.bias = optional(dtype, problem.bias);
  inputs.class_weights = optional(DType::f32, problem.class_weights);
  inputs.token_weights = optional(DType::f32, problem.token_weights);
  inputs.upstream = optional(DType::f32, made.upstream);

  const bool dhidden = c.wanted == Wanted::all || c.wanted == Wanted::in_place || c.wanted == Wanted::frozen_head;
  const bool dweight = c.wanted == Wanted::all || c.wanted == Wanted::in_place || c.wanted == Wanted::head_only;
  const bool dbias = c.has(feature::bias) && c.wanted != Wanted::evaluation;
  const std::vector<double> start(static_cast<std::size_t>(c.columns * c.width), 0.0);
  const View weight = bench.tensor(dtype, {c.columns, c.width}, problem.weight);
  const View grad = dweight ? bench.tensor(DType::f32, {c.columns, c.width}, start) : View{};
  DenseHead head(weight, grad);

  ops::LossOutputs outputs;
  // Scalars are added to; tensors are overwritten, so they come poisoned.
  outputs.loss = none ? bench.poisoned(DType::f32, {per_loss}) : bench.tensor(DType::f32, {1}, {0.0});
  outputs.z_loss = none ? bench.poisoned(DType::f32, {per_loss}) : bench.tensor(DType::f32, {1}, {0.0});
  outputs.correct = bench.indices({100});
  outputs.predicted = bench.poisoned(DType::i32, {c.tokens});
  if (dhidden) outputs.dhidden = c.wanted == Wanted::in_place ? x : bench.poisoned(dtype, {c.tokens, c.width});
  if (dbias) {
    outputs.dbias = bench.poisoned(DType::f32, {c.columns});
    outputs.dbias_mode = backend::Grad::overwrite;
  }
  outputs.head_gradient = c.wanted != Wanted::evaluation;  // a frozen head is asked, and does nothing

  ops::LossOptions options;
  options.label_smoothing = static_cast<float>(made.options.label_smoothing);
  options.softcap = static_cast<float>(made.options.softcap);
  options.z_loss = static_cast<float>(made.options.z_loss);
  options.reduction = c.reduction;
  options.normalizer = made.options.normalizer;
  options.z_normalizer = made.options.z_normalizer;
  options.chunk_tokens = c.chunk_tokens;
  ops::fused_linear_ce(bench.exec, head, inputs, outputs, options);
  EXPECT_EQ(head.accumulated > 0, dweight) << c.str();

  LossAnswer answer;
  answer.loss = bench.read(outputs.loss);
  answer.z_loss = bench.read(outputs.z_loss);
  answer.correct = bench.read_indices(outputs.correct);
  answer.correct[0] -= 100;
  answer.predicted = bench.read_indices(outputs.predicted);
  if (dhidden) answer.dhidden = bench.read(outputs.dhidden);
  if (dweight) answer.dweight = bench.read(grad);
  if (dbias) answer.dbias = bench.read(outputs.dbias);
  bench.exec.arena().release_to(mark);
  return answer;
}

void check_case(TestBench& bench, const LossCase& c, DType dtype) {
  SCOPED_TRACE(c.str() + " " + std::string(name_of(dtype)));
  const LossProblem made = make_problem(c, dtype);
  const auto& problem = made.problem;
  const LossAnswer answer = run_case(bench, c, made, dtype);

  const std::vector<double> logits = reference::logits(problem);
  const auto expected = reference::cross_entropy(problem, made.options, logits);
  const std::vector<double> rough_logits = rounded_to(logits, dtype);
  const auto plain = reference::cross_entropy(problem, made.options, rough_logits);
  expect_close("loss", answer.loss, expected.loss, plain.loss, c, dtype);
  expect_close("z_loss", answer.z_loss, expected.z_loss, plain.z_loss, c, dtype);

  // The predicted column holds the largest logit, up to the rounding of logits; `correct` counts those that are right.
  const double slack = dtype == DType::f32 ? 1e-6 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
  std::int32_t correct = 0;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int32_t predicted = answer.predicted[static_cast<std::size_t>(t)];
    const std::int32_t best = expected.predicted[static_cast<std::size_t>(t)];
    if (!problem.valid(t)) {
      EXPECT_EQ(predicted, -1);
      continue;
    }
    ASSERT_TRUE(0 <= predicted && predicted < c.columns) << predicted;
    const double* row = logits.data() + t * c.columns;
    EXPECT_GE(row[predicted], row[best] - 2 * slack * (std::abs(row[best]) + 1));
    correct += predicted == problem.target(t) ? 1 : 0;
  }
  EXPECT_EQ(answer.correct[0], correct);

  if (c.wanted == Wanted::evaluation) return;
  const auto gradients =
      reference::backward(problem, reference::logit_gradient(problem, made.options, logits, made.upstream));
  if (c.tokens * c.width * c.columns > (std::int64_t{1} << 30)) {  // too large to do it all again in plain code
    EXPECT_LE(relative_error(answer.dhidden, gradients.hidden), tolerance(dtype));
    EXPECT_LE(relative_error(answer.dweight, gradients.weight), tolerance(dtype));
    return;
  }
  const auto rough = reference::backward(
      problem, rounded_to(reference::logit_gradient(problem, made.options, rough_logits, made.upstream), dtype));
  if (!answer.dhidden.empty()) {
    expect_close("dhidden", answer.dhidden, gradients.hidden, rounded_to(rough.hidden, dtype), c, dtype);
    for (std::int64_t i = 0; i < c.tokens * c.width; ++i) {
      if (problem.valid(i / c.width)) continue;
      EXPECT_EQ(answer.dhidden[static_cast<std::size_t>(i)], 0.0) << i;
    }
  }
  if (!answer.dweight.empty()) expect_close("dweight", answer.dweight, gradients.weight, rough.weight, c, dtype);
  if (!answer.dbias.empty()) expect_close("dbias", answer.dbias, gradients.bias, rough.bias, c, dtype);
}

}  // namespace inlay::testing
