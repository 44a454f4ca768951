#include "ops/rms_norm.h"
#include "backend/cpu/threads.h"

#include "op_cases.h"
#include "ops/reference/rms_norm.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

constexpr float eps = 1e-5f;

template <class S>
std::vector<S> reference_row(const std::vector<S>& x, const std::vector<S>& weight) {
  std::vector<S> out(x.size());
  reference::rms_norm<S>(out, x, weight, static_cast<double>(eps));
  return out;
}

std::vector<double> reference_forward(const std::vector<double>& x, const std::vector<double>& weight) {
  const auto cols = static_cast<std::int64_t>(weight.size());
  std::vector<double> out;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(x.size()) / cols; ++row) {
    const auto result = reference_row(row_of(x, row, cols), weight);
    out.insert(out.end(), result.begin(), result.end());
  }
  return out;
}

// The gradients of Σ dout · out, at the sampled columns of every row.
struct ExpectedNorm {
  std::vector<double> dx, dweight;
};
ExpectedNorm reference_backward(const std::vector<double>& dout, const std::vector<double>& x,
                                const std::vector<double>& weight) {
  const auto cols = static_cast<std::int64_t>(weight.size());
  const auto at = sampled(cols);
  ExpectedNorm expected{{}, std::vector<double>(weight.size(), 0.0)};
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(x.size()) / cols; ++row) {
    const auto x_row = row_of(x, row, cols), d_row = row_of(dout, row, cols);
    const auto loss = [&](const std::vector<Complex>& out) {
      Complex total = 0;
      for (std::size_t i = 0; i < out.size(); ++i) total += out[i] * d_row[i];
      return total;
    };
    const std::vector<Complex> weight_c(weight.begin(), weight.end()), x_c(x_row.begin(), x_row.end());
    const auto dx = complex_step(x_row, at, [&](const auto& point) { return loss(reference_row(point, weight_c)); });
    const auto dw = complex_step(weight, at, [&](const auto& point) { return loss(reference_row(x_c, point)); });
    expected.dx.insert(expected.dx.end(), dx.begin(), dx.end());
    expected.dweight = sum_of(expected.dweight, dw);
  }
  return expected;
}

std::vector<std::size_t> sampled_of_rows(std::int64_t rows, std::int64_t cols) {
  std::vector<std::size_t> result;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const std::size_t i : sampled(cols)) result.push_back(static_cast<std::size_t>(row * cols) + i);
  }
  return result;
}

class OpsRmsNorm : public DeviceDType {
 protected:
  // Inputs as the op sees them: rounded to the dtype.
  std::vector<double> values(std::int64_t count, std::uint64_t seed, double scale = 1.0) const {
    return rounded(random_values(count, seed, scale), dtype());
  }
};

TEST_P(OpsRmsNorm, ForwardMatchesTheReference) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto x = values(rows * cols, 1, 3.0), weight = values(cols, 2);
    const View out = bench.poisoned(dtype(), {rows, cols});
    rms_norm_forward(bench.exec, out, bench.tensor(dtype(), {rows, cols}, x), bench.tensor(dtype(), {cols}, weight),
                     eps);
    EXPECT_LT(relative_error(bench.read(out), reference_forward(x, weight)), tolerance(dtype()));
  }
}

// offset + weight is what the plain norm calls its weight; in fp32 where the weights are eighths, it is so exactly.
TEST_P(OpsRmsNorm, AnOffsetIsAddedToTheWeights) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const NormSpec norm{eps, 1.0f};
    std::vector<double> weight, more;
    for (std::int64_t i = 0; i < cols; ++i) {
      weight.push_back(static_cast<double>(i % 5 - 2) / 8);
      more.push_back(weight.back() + 1);
    }
    const auto x = values(rows * cols, 1, 3.0), dout = values(rows * cols, 2);
    const View in = bench.tensor(dtype(), {rows, cols}, x), d = bench.tensor(dtype(), {rows, cols}, dout);
    const View w = bench.tensor(dtype(), {cols}, weight), w_more = bench.tensor(dtype(), {cols}, more);
    const View out = bench.poisoned(dtype(), {rows, cols}), same = bench.poisoned(dtype(), {rows, cols});
    rms_norm_forward(bench.exec, out, in, w, norm);
    rms_norm_forward(bench.exec, same, in, w_more, eps);
    EXPECT_EQ(bench.read(out), bench.read(same));
    std::vector<double> expected(x.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row * cols);
      reference::rms_norm<double>(std::span(expected).subspan(at, static_cast<std::size_t>(cols)), row_of(x, row, cols),
                                  weight, static_cast<double>(eps), 1.0);
    }
    EXPECT_LT(relative_error(bench.read(out), expected), tolerance(dtype()));

    const View sum = bench.poisoned(dtype(), {rows, cols}), other = bench.poisoned(dtype(), {rows, cols});
    residual_rms_norm_forward(bench.exec, out, sum, in, d, w, norm);
    residual_rms_norm_forward(bench.exec, same, other, in, d, w_more, eps);
    EXPECT_EQ(bench.read(out), bench.read(same));

    const View dw = bench.poisoned(DType::f32, {cols}), dw_same = bench.poisoned(DType::f32, {cols});
    rms_norm_backward(bench.exec, {out, Grad::overwrite, dw, Grad::overwrite}, d, in, w, norm);
    rms_norm_backward(bench.exec, {same, Grad::overwrite, dw_same, Grad::overwrite}, d, in, w_more, eps);
    EXPECT_EQ(bench.read(out), bench.read(same));
    EXPECT_EQ(bench.read(dw), bench.read(dw_same));

    const View place = bench.tensor(dtype(), {rows, cols}, x);  // out in x's place
    rms_norm_forward(bench.exec, place, place, w, norm);
    rms_norm_forward(bench.exec, out, in, w, norm);
    EXPECT_EQ(bench.read(place), bench.read(out));
  }
}

TEST_P(OpsRmsNorm, ReadsAndWritesStridedRows) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    TestBench bench(device());
    const auto x = values(rows * cols, 3), weight = values(cols, 4);
    const Window in = strided(bench, dtype(), rows, cols, x), out = strided(bench, dtype(), rows, cols);
    rms_norm_forward(bench.exec, out.view, in.view, bench.tensor(dtype(), {cols}, weight), eps);
    EXPECT_LT(relative_error(bench.read(out.view), reference_forward(x, weight)), tolerance(dtype()));
    EXPECT_TRUE(surroundings_intact(bench, out));
  }
}

TEST_P(OpsRmsNorm, NormalisesHeadsOfStridedTokens) {
  // q inside a fused qkv matrix: [T, heads, D] with a token stride of more than heads · D.
  constexpr std::int64_t tokens = 7, heads = 3, head = 24;
  TestBench bench(device());
  const auto x = values(tokens * heads * head, 5), weight = values(head, 6), dout = values(tokens * heads * head, 7);
  const Window in = strided(bench, dtype(), tokens, heads * head, x);
  const View w = bench.tensor(dtype(), {head}, weight);
  const Window out = strided(bench, dtype(), tokens, heads * head);
  rms_norm_forward(bench.exec, out.view.split_cols(heads), in.view.split_cols(heads), w, eps);
  EXPECT_LT(relative_error(bench.read(out.view), reference_forward(x, weight)), tolerance(dtype()));
  EXPECT_TRUE(surroundings_intact(bench, out));

  const ExpectedNorm expected = reference_backward(dout, x, weight);
  const Window d = strided(bench, dtype(), tokens, heads * head, dout);
  const View dweight = bench.poisoned(DType::f32, {head});
  rms_norm_backward(bench.exec, {d.view.split_cols(heads), Grad::overwrite, dweight, Grad::overwrite},
                    d.view.split_cols(heads), in.view.split_cols(heads), w, eps);
  EXPECT_LT(relative_error(bench.read(d.view), expected.dx), tolerance(dtype()));
  EXPECT_LT(relative_error(bench.read(dweight), expected.dweight), 2e-6);
  EXPECT_TRUE(surroundings_intact(bench, d));
}

TEST_P(OpsRmsNorm, ResidualSumIsRoundedBeforeTheNorm) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    for (const int alias : {0, 1, 2}) {  // sum is its own tensor, x, or delta
      SCOPED_TRACE(fmt::format("{} x {}, alias {}", rows, cols, alias));
      TestBench bench(device());
      const auto x = values(rows * cols, 8), delta = values(rows * cols, 9, 0.3), weight = values(cols, 10);
      const View x_view = bench.tensor(dtype(), {rows, cols}, x),
                 delta_view = bench.tensor(dtype(), {rows, cols}, delta);
      const View sum = alias == 0 ? bench.poisoned(dtype(), {rows, cols}) : alias == 1 ? x_view : delta_view;
      const View out = bench.poisoned(dtype(), {rows, cols});
      residual_rms_norm_forward(bench.exec, out, sum, x_view, delta_view, bench.tensor(dtype(), {cols}, weight), eps);
      // The sum of two floats, rounded once: exact to compare in fp32 arithmetic.
      std::vector<double> expected(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) expected[i] = static_cast<float>(x[i]) + static_cast<float>(delta[i]);
      expected = rounded(expected, dtype());
      EXPECT_EQ(bench.read(sum), expected);
      EXPECT_LT(relative_error(bench.read(out), reference_forward(expected, weight)), tolerance(dtype()));
    }
  }
}

TEST_P(OpsRmsNorm, BackwardMatchesComplexStep) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, cols));
    const auto x = values(rows * cols, 11, 2.0), weight = values(cols, 12), dout = values(rows * cols, 13);
    const auto before = values(rows * cols, 14);
    const auto dweight_before = random_values(cols, 15);
    const ExpectedNorm expected = reference_backward(dout, x, weight);
    const auto at = sampled_of_rows(rows, cols), columns = sampled(cols);
    // Where a single column's gradient cancels to nothing, the error is measured against what cancelled.
    const auto error = [&](const std::vector<double>& actual, const std::vector<double>& wanted) {
      return cols == 1 ? std::abs(actual[0] - wanted[0]) : relative_error(pick(actual, at), pick(wanted, at));
    };
    for (const Grad mode : {Grad::overwrite, Grad::accumulate}) {
      TestBench bench(device());
      const View x_view = bench.tensor(dtype(), {rows, cols}, x), w = bench.tensor(dtype(), {cols}, weight);
      const View d = bench.tensor(dtype(), {rows, cols}, dout);
      const bool adds = mode == Grad::accumulate;
      const View dx = adds ? bench.tensor(dtype(), {rows, cols}, before) : bench.poisoned(dtype(), {rows, cols});
      const View dweight = adds ? bench.tensor(DType::f32, {cols}, dweight_before) : bench.poisoned(DType::f32, {cols});
      rms_norm_backward(bench.exec, {dx, mode, dweight, mode}, d, x_view, w, eps);
      const auto wanted_dx = adds ? sum_of(expected.dx, before) : expected.dx;
      const auto wanted_dw = adds ? sum_of(expected.dweight, dweight_before) : expected.dweight;
      EXPECT_LT(error(bench.read(dx), wanted_dx), tolerance(dtype()));
      EXPECT_LT(relative_error(pick(bench.read(dweight), columns), pick(wanted_dw, columns)), 2e-6);
      EXPECT_EQ(bench.read(d), dout) << "dout was written";
      EXPECT_EQ(bench.read(x_view), x) << "x was written";
    }
    // dx in dout's place, with and without accumulation; and each gradient alone.
    TestBench bench(device());
    const View x_view = bench.tensor(dtype(), {rows, cols}, x), w = bench.tensor(dtype(), {cols}, weight);
    const View in_place = bench.tensor(dtype(), {rows, cols}, dout);
    rms_norm_backward(bench.exec, {in_place, Grad::overwrite, {}, Grad::skip}, in_place, x_view, w, eps);
    EXPECT_LT(error(bench.read(in_place), expected.dx), tolerance(dtype()));
    const View added = bench.tensor(dtype(), {rows, cols}, dout);
    rms_norm_backward(bench.exec, {added, Grad::accumulate, {}, Grad::skip}, added, x_view, w, eps);
    EXPECT_LT(error(bench.read(added), sum_of(expected.dx, dout)), tolerance(dtype()));
    const View d = bench.tensor(dtype(), {rows, cols}, dout);
    const View dweight = bench.poisoned(DType::f32, {cols});
    rms_norm_backward(bench.exec, {{}, Grad::skip, dweight, Grad::overwrite}, d, x_view, w, eps);
    EXPECT_LT(relative_error(pick(bench.read(dweight), columns), pick(expected.dweight, columns)), 2e-6);
  }
}

TEST_P(OpsRmsNorm, SameBitsOnAnyNumberOfThreads) {
  constexpr std::int64_t rows = 777, cols = 96;
  const auto x = values(rows * cols, 16), weight = values(cols, 17), dout = values(rows * cols, 18);
  std::vector<double> first;
  const int usual = backend::cpu::threads();
  for (const int threads : {1, 2, 3, 2}) {
    backend::cpu::set_threads(threads);
    TestBench bench(device());
    const View dweight = bench.poisoned(DType::f32, {cols});
    rms_norm_backward(bench.exec, {{}, Grad::skip, dweight, Grad::overwrite}, bench.tensor(dtype(), {rows, cols}, dout),
                      bench.tensor(dtype(), {rows, cols}, x), bench.tensor(dtype(), {cols}, weight), eps);
    if (first.empty()) first = bench.read(dweight);
    EXPECT_EQ(bench.read(dweight), first);
  }
  backend::cpu::set_threads(usual);
}

TEST_P(OpsRmsNorm, PlanTakesTheScratchOfTheRun) {
  constexpr std::int64_t rows = 600, cols = 40;
  auto planner = backend::Exec::planner(device());
  const auto imagined = [&](DType type, Shape shape) {
    return planner.arena().keep(MemoryClass::activations, "t", type, shape);
  };
  const View x = imagined(dtype(), {rows, cols}), w = imagined(dtype(), {cols}), dw = imagined(DType::f32, {cols});
  const std::size_t before = planner.arena().used();
  rms_norm_backward(planner, {x, Grad::overwrite, dw, Grad::overwrite}, x, x, w, eps);
  EXPECT_EQ(planner.arena().used(), before);
  EXPECT_EQ(planner.arena().peak() - before, std::size_t{512} * cols * sizeof(float));
}

TEST_P(OpsRmsNorm, RejectsWrongShapesAndAcceptsNoRows) {
  TestBench bench(device());
  const View x = bench.poisoned(dtype(), {2, 8}), w = bench.poisoned(dtype(), {8}),
             narrow = bench.poisoned(dtype(), {7});
  EXPECT_THROW(rms_norm_forward(bench.exec, x, x, narrow, eps), InternalError);
  EXPECT_THROW(rms_norm_forward(bench.exec, x.slice_rows(0, 1), x, w, eps), InternalError);
  const View none = x.slice_rows(0, 0), dweight = bench.poisoned(DType::f32, {8});
  rms_norm_forward(bench.exec, none, none, w, eps);
  rms_norm_backward(bench.exec, {none, Grad::overwrite, dweight, Grad::overwrite}, none, none, w, eps);
  EXPECT_EQ(bench.read(dweight), std::vector<double>(8, 0.0));
}

INSTANTIATE_TEST_SUITE_P(All, OpsRmsNorm, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
