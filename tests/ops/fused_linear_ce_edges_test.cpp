#include <limits>

#include "ops/loss_case.h"

// Batches with hardly any labels, logits of any size, strided tensors, plans: what the options do not vary.
namespace inlay::testing {

namespace {

using backend::Grad;
using ops::Reduction;
namespace reference = ops::reference;

class OpsFusedLinearCeEdges : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  TestBench bench{device()};
};

INSTANTIATE_TEST_SUITE_P(Devices, OpsFusedLinearCeEdges,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16)),
                         [](const auto& info) { return case_name(std::get<0>(info.param), std::get<1>(info.param)); });

constexpr unsigned everything = (1u << feature::count) - 1;
constexpr Wanted all_wanted[] = {Wanted::all, Wanted::in_place, Wanted::head_only, Wanted::evaluation};

TEST_P(OpsFusedLinearCeEdges, OneValidRow) {
  for (const std::int64_t valid : {0, 5, 10}) {
    for (const unsigned features : {0u, everything}) {
      for (const Wanted wanted : all_wanted) {
        LossCase c{.tokens = 11, .width = 16, .columns = 37, .features = features, .wanted = wanted};
        c.targets.assign(11, ignore_label);
        c.targets[static_cast<std::size_t>(valid)] = 36;
        check_case(bench, c, dtype());
      }
    }
  }
}

// The loss is 0 and so is every gradient; nothing is NaN, and nothing is left unwritten.
TEST_P(OpsFusedLinearCeEdges, NoValidRow) {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (const unsigned features : {0u, feature::bias, everything}) {
      for (const Wanted wanted : all_wanted) {
        LossCase c{.tokens = 7, .width = 16, .columns = 37, .features = features, .reduction = reduction};
        c.wanted = wanted;
        c.targets.assign(7, ignore_label);
        check_case(bench, c, dtype());
      }
    }
  }
}

// A gradient that overwrites on its first write gets one even where no row has a label.
TEST_P(OpsFusedLinearCeEdges, AHeadThatOverwritesFirstIsWrittenWithoutRows) {
  struct Overwriting final : ops::Linear {
    View grad;
    std::int64_t in_features() const override { return grad.dim(1); }
    std::int64_t out_features() const override { return grad.dim(0); }
    bool trainable() const override { return true; }
    void forward(backend::Exec&, View, Grad, ConstView, const ops::Call&) override {}
    void backward_input(backend::Exec&, View, Grad, ConstView, const ops::Call&) override {}
    void accumulate(backend::Exec& exec, ConstView dy, ConstView x, const ops::Call& call) override {
      backend::matmul(exec, grad, dy, backend::Transpose::yes, x, backend::Transpose::no,
                      {.device_alpha = call.device_alpha});
    }
  };
  Overwriting head;
  head.grad = bench.poisoned(DType::f32, {5, 3});
  ops::LossInputs inputs;
  inputs.hidden = bench.poisoned(dtype(), {4, 3});
  inputs.targets = bench.indices({ignore_label, ignore_label, ignore_label, ignore_label});
  inputs.rows = bench.indices({});
  ops::LossOutputs outputs;
  outputs.loss = bench.tensor(DType::f32, {1}, {7.0});
  outputs.head_gradient = true;
  ops::fused_linear_ce(bench.exec, head, inputs, outputs, {});
  EXPECT_EQ(bench.read(head.grad), std::vector<double>(15, 0.0));
  EXPECT_EQ(bench.read(outputs.loss), std::vector<double>{7.0});
}

TEST_P(OpsFusedLinearCeEdges, WeightsThatSumToZero) {
  LossCase c{.tokens = 3, .width = 8, .columns = 9};
  LossProblem made = make_problem(c, dtype());
  made.problem.token_weights.assign(3, 0.0);
  const LossAnswer answer = run_case(bench, c, made, dtype());
  EXPECT_EQ(answer.loss[0], 0.0);
  EXPECT_EQ(answer.dhidden, std::vector<double>(24, 0.0));
  EXPECT_EQ(answer.dweight, std::vector<double>(72, 0.0));
}

TEST_P(OpsFusedLinearCeEdges, AllLabelsEqual) {
  LossCase c{.tokens = 150, .width = 32, .columns = 77, .chunk_tokens = 40};
  c.targets.assign(150, 76);
  check_case(bench, c, dtype());
  c.features = everything;
  check_case(bench, c, dtype());
}

// Logits of magnitude 1e4 overflow nothing: the loss is about their differences.
TEST_P(OpsFusedLinearCeEdges, HugeLogits) {
  for (const unsigned features : {0u, feature::smoothing, feature::softcap, feature::bias | feature::class_weights}) {
    LossCase c{.tokens = 40, .width = 32, .columns = 500, .features = features, .spread = 4000};
    check_case(bench, c, dtype());
  }
}

// Nearly all probability on the target: p - 1 must not be lost to rounding of p.
TEST_P(OpsFusedLinearCeEdges, CertainTargets) {
  LossCase c{.tokens = 64, .width = 64, .columns = 300, .spread = 3};
  LossProblem made = make_problem(c, dtype());
  const std::vector<double> logits = reference::logits(made.problem);
  c.targets = reference::cross_entropy(made.problem, made.options, logits).predicted;
  check_case(bench, c, dtype());
}

// A NaN in a row that counts is not hidden.
TEST_P(OpsFusedLinearCeEdges, NaNReachesTheLoss) {
  LossCase c{.tokens = 5, .width = 8, .columns = 40};
  LossProblem made = make_problem(c, dtype());
  made.problem.hidden[11] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(run_case(bench, c, made, dtype()).loss[0]));
}

TEST_P(OpsFusedLinearCeEdges, SameBitsEveryTime) {
  const LossCase c{.tokens = 130, .width = 48, .columns = 1000, .features = everything, .chunk_tokens = 60};
  const LossProblem made = make_problem(c, dtype());
  const LossAnswer first = run_case(bench, c, made, dtype()), second = run_case(bench, c, made, dtype());
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.dhidden, second.dhidden);
  EXPECT_EQ(first.dweight, second.dweight);
  EXPECT_EQ(first.dbias, second.dbias);
}

// Two halves of a batch with the whole batch's normalizer add up to the whole.
TEST_P(OpsFusedLinearCeEdges, MicroBatchesAddUp) {
  const std::int64_t half = 24, width = 16, columns = 60;
  const LossCase whole{.tokens = 2 * half, .width = width, .columns = columns};
  const auto problem = make_problem(whole, dtype()).problem;
  const View x = bench.tensor(dtype(), {2 * half, width}, problem.hidden);
  const View targets = bench.indices(problem.targets);
  const std::vector<double> zeros(static_cast<std::size_t>(columns * width), 0.0);
  const View weight = bench.tensor(dtype(), {columns, width}, problem.weight);
  const auto run = [&](std::int64_t pieces) {
    const View grad = bench.tensor(DType::f32, {columns, width}, zeros);
    DenseHead head(weight, grad);
    const View loss = bench.tensor(DType::f32, {1}, {0.0});
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::int64_t begin = 2 * half * piece / pieces, end = 2 * half * (piece + 1) / pieces;
      ops::LossInputs inputs;
      inputs.hidden = x.slice_rows(begin, end);
      inputs.targets = targets.slice_rows(begin, end);
      ops::LossOutputs outputs;
      outputs.loss = loss;
      outputs.head_gradient = true;
      ops::fused_linear_ce(bench.exec, head, inputs, outputs, {.normalizer = static_cast<double>(2 * half)});
    }
    std::vector<double> result = bench.read(grad);
    result.push_back(bench.read(loss)[0]);
    return result;
  };
  EXPECT_LE(relative_error(run(2), run(1)), 1e-6);
}

// Rows of a wider matrix, as hidden and as dhidden.
TEST_P(OpsFusedLinearCeEdges, StridedHidden) {
  const LossCase c{.tokens = 20, .width = 24, .columns = 50, .features = feature::ignored};
  const auto made = make_problem(c, dtype());
  std::vector<double> wide(20 * 40, 3.0);
  for (std::size_t i = 0; i < made.problem.hidden.size(); ++i) wide[i / 24 * 40 + 5 + i % 24] = made.problem.hidden[i];
  const View x = bench.tensor(dtype(), {20, 40}, wide);
  DenseHead head(bench.tensor(dtype(), {50, 24}, made.problem.weight), {});
  std::vector<std::int32_t> rows;
  for (std::int32_t t = 0; t < 20; ++t) {
    if (made.problem.valid(t)) rows.push_back(t);
  }
  ops::LossInputs inputs;
  inputs.hidden = x.slice_cols(5, 29);
  inputs.targets = bench.indices(made.problem.targets);
  inputs.rows = bench.indices(rows);
  ops::LossOutputs outputs;
  outputs.dhidden = x.slice_cols(5, 29);
  ops::fused_linear_ce(bench.exec, head, inputs, outputs, {.chunk_tokens = 6});
  const auto dz = reference::logit_gradient(made.problem, made.options, reference::logits(made.problem));
  EXPECT_LE(relative_error(bench.read(x.slice_cols(5, 29)), reference::backward(made.problem, dz).hidden),
            dtype() == DType::f32 ? 4e-6 : 2 * tolerance(dtype()));
  EXPECT_EQ(bench.read(x.slice_cols(0, 5)), std::vector<double>(20 * 5, 3.0));
  EXPECT_EQ(bench.read(x.slice_cols(29, 40)), std::vector<double>(20 * 11, 3.0));
}

// The gradient of the head may be kept in the compute dtype.
TEST_P(OpsFusedLinearCeEdges, GradientInTheComputeDtype) {
  const LossCase c{.tokens = 64, .width = 32, .columns = 100};
  const auto made = make_problem(c, dtype());
  const View grad = bench.tensor(dtype(), {100, 32}, std::vector<double>(3200, 0.0));
  DenseHead head(bench.tensor(dtype(), {100, 32}, made.problem.weight), grad);
  ops::LossInputs inputs;
  inputs.hidden = bench.tensor(dtype(), {64, 32}, made.problem.hidden);
  inputs.targets = bench.indices(made.problem.targets);
  ops::LossOutputs outputs;
  outputs.head_gradient = true;
  ops::fused_linear_ce(bench.exec, head, inputs, outputs, {.chunk_tokens = 32});
  const auto dz = reference::logit_gradient(made.problem, made.options, reference::logits(made.problem));
  EXPECT_LE(relative_error(bench.read(grad), reference::backward(made.problem, dz).weight),
            dtype() == DType::f32 ? 4e-6 : 2 * tolerance(dtype()));
}

// A plan takes what a run takes, and the logits are one chunk however many tokens there are.
TEST(OpsFusedLinearCePlan, LogitsAreOneChunk) {
  for (const Device device : {Device::cpu, Device::cuda}) {
    const auto peak = [&](std::int64_t tokens, std::int64_t rows, std::int64_t chunk) {
      backend::Exec exec = backend::Exec::planner(device);
      const auto keep = [&](DType type, Shape shape) {
        return exec.arena().keep(MemoryClass::activations, "tensor", type, shape);
      };
      const View weight = keep(DType::bf16, {1000, 64});
      DenseHead head(weight, keep(DType::f32, {1000, 64}));
      ops::LossInputs inputs;
      inputs.hidden = keep(DType::bf16, {tokens, 64});
      inputs.targets = keep(DType::i32, {tokens});
      inputs.rows = keep(DType::i32, {rows});
      ops::LossOutputs outputs;
      outputs.dhidden = keep(DType::bf16, {tokens, 64});
      outputs.head_gradient = true;
      ops::fused_linear_ce(exec, head, inputs, outputs, {.chunk_tokens = chunk});
      return exec.arena().peak_by_class()[static_cast<std::size_t>(MemoryClass::logits)];
    };
    const std::size_t row_bytes = 1024 * 2;  // 1000 columns, padded
    EXPECT_EQ(peak(4000, 4000, 256), 256 * row_bytes);
    EXPECT_EQ(peak(4000, 3000, 256), 256 * row_bytes);
    EXPECT_EQ(peak(400, 100, 256), 256 * row_bytes);
    EXPECT_EQ(peak(200, 100, 256), 200 * row_bytes);
    // The more rows, the more memory, up to the chunk: a plan for a full batch holds for every smaller one.
    std::size_t last = 0;
    for (std::int64_t rows = 1; rows <= 4000; rows += 123) {
      const std::size_t now = peak(4000, rows, 0);
      EXPECT_GE(now, last);
      last = now;
    }
  }
}

}  // namespace

}  // namespace inlay::testing
