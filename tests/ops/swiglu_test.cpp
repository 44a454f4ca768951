#include "ops/swiglu.h"

#include "op_cases.h"
#include "ops/reference/swiglu.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

struct ExpectedGlu {
  std::vector<double> act, dgate_up;
};

template <class S>
S reference_of(Gate gate, const S& g, const S& u) {
  if (gate == Gate::gelu) return reference::exact_geglu(g, u);
  return gate == Gate::silu ? reference::swiglu(g, u) : reference::geglu(g, u);
}

std::vector<Gate> gates_of(Device device) {
  std::vector<Gate> gates = {Gate::silu, Gate::gelu_tanh};
  if (device == Device::cpu) gates.push_back(Gate::gelu);
  return gates;
}

// Forward, and by complex step the gradient of Σ dact · act.
ExpectedGlu reference_swiglu(const std::vector<double>& gate_up, const std::vector<double>& dact, std::int64_t rows,
                             std::int64_t width, Gate gate) {
  ExpectedGlu expected{std::vector<double>(dact.size()), std::vector<double>(gate_up.size())};
  constexpr double h = 1e-40;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < width; ++col) {
      const auto at = static_cast<std::size_t>(row * 2 * width + col), up_at = at + static_cast<std::size_t>(width);
      const auto out = static_cast<std::size_t>(row * width + col);
      const double g = gate_up[at], u = gate_up[up_at];
      expected.act[out] = reference_of(gate, g, u);
      expected.dgate_up[at] = dact[out] * reference_of(gate, Complex(g, h), Complex(u)).imag() / h;
      expected.dgate_up[up_at] = dact[out] * reference_of(gate, Complex(g), Complex(u, h)).imag() / h;
    }
  }
  return expected;
}

class OpsSwiglu : public DeviceDType {
 protected:
  std::vector<double> values(std::int64_t count, std::uint64_t seed, double scale = 1.0) const {
    return rounded(random_values(count, seed, scale), dtype());
  }
};

TEST_P(OpsSwiglu, ForwardMatchesTheReference) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    for (const Gate gate : gates_of(device())) {
      SCOPED_TRACE(fmt::format("{} x {}, gate {}", rows, cols, static_cast<int>(gate)));
      TestBench bench(device());
      const auto gate_up = values(rows * 2 * cols, 1, 4.0);
      const auto expected =
          reference_swiglu(gate_up, std::vector<double>(static_cast<std::size_t>(rows * cols)), rows, cols, gate);
      const View out = bench.poisoned(dtype(), {rows, cols});
      swiglu_forward(bench.exec, out, bench.tensor(dtype(), {rows, 2 * cols}, gate_up), gate);
      EXPECT_LT(relative_error(bench.read(out), expected.act), tolerance(dtype()));
      const Window in = strided(bench, dtype(), rows, 2 * cols, gate_up), to = strided(bench, dtype(), rows, cols);
      swiglu_forward(bench.exec, to.view, in.view, gate);
      EXPECT_EQ(bench.read(to.view), bench.read(out));
      EXPECT_TRUE(surroundings_intact(bench, to));
    }
  }
}

TEST_P(OpsSwiglu, LargeGatesSaturate) {
  for (const Gate gate : gates_of(device())) {
    TestBench bench(device());
    const View out = bench.poisoned(dtype(), {1, 4}), d = bench.tensor(dtype(), {1, 4}, {1, 1, 1, 1});
    const View in = bench.tensor(dtype(), {1, 8}, {200, -200, 30000, -30000, 1, 1, 1, 1});
    swiglu_forward(bench.exec, out, in, gate);
    const auto act = bench.read(out);
    EXPECT_NEAR(act[0], 200, 1e-3);
    EXPECT_NEAR(act[1], 0, 1e-30);
    EXPECT_NEAR(act[2], rounded({30000}, dtype())[0], 1e-3);
    EXPECT_NEAR(act[3], 0, 1e-30);
    swiglu_backward(bench.exec, in, {}, d, in, gate);
    const auto slopes = bench.read(in);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(slopes[static_cast<std::size_t>(i)], i % 2 == 0 ? 1 : 0, 1e-6);
  }
}

TEST_P(OpsSwiglu, BackwardMatchesComplexStep) {
  for (const auto& [rows, cols] : awkward_shapes()) {
    const std::vector<Gate> gates = gates_of(device());
    const Gate gate = gates[static_cast<std::size_t>(rows + cols) % gates.size()];
    SCOPED_TRACE(fmt::format("{} x {}, gate {}", rows, cols, static_cast<int>(gate)));
    TestBench bench(device());
    const auto gate_up = values(rows * 2 * cols, 2, 3.0), dact = values(rows * cols, 3);
    const auto expected = reference_swiglu(gate_up, dact, rows, cols, gate);
    const auto same = [&](ConstView dgate_up, ConstView act) {
      EXPECT_LT(relative_error(bench.read(dgate_up), expected.dgate_up), tolerance(dtype()));
      EXPECT_LT(relative_error(bench.read(act), expected.act), tolerance(dtype()));
    };
    const View in = bench.tensor(dtype(), {rows, 2 * cols}, gate_up), d = bench.tensor(dtype(), {rows, cols}, dact);
    const View dgate_up = bench.poisoned(dtype(), {rows, 2 * cols}), act = bench.poisoned(dtype(), {rows, cols});
    swiglu_backward(bench.exec, dgate_up, act, d, in, gate);
    same(dgate_up, act);
    EXPECT_EQ(bench.read(in), gate_up) << "gate_up was written";
    EXPECT_EQ(bench.read(d), dact) << "dact was written";

    const View again = bench.poisoned(dtype(), {rows, 2 * cols});  // without act
    swiglu_backward(bench.exec, again, {}, d, in, gate);
    EXPECT_EQ(bench.read(again), bench.read(dgate_up));

    const Window wide_in = strided(bench, dtype(), rows, 2 * cols, gate_up),
                 wide_d = strided(bench, dtype(), rows, cols, dact);
    swiglu_backward(bench.exec, wide_in.view, wide_d.view, wide_d.view, wide_in.view, gate);  // in place, strided
    same(wide_in.view, wide_d.view);
    EXPECT_TRUE(surroundings_intact(bench, wide_in) && surroundings_intact(bench, wide_d));

    swiglu_backward(bench.exec, in, d, d, in, gate);  // in place
    same(in, d);
  }
}

TEST_P(OpsSwiglu, RejectsWrongShapes) {
  TestBench bench(device());
  const View gate_up = bench.poisoned(dtype(), {2, 8}), act = bench.poisoned(dtype(), {2, 4});
  EXPECT_THROW(swiglu_forward(bench.exec, gate_up, gate_up), InternalError);
  EXPECT_THROW(swiglu_backward(bench.exec, act, {}, act, gate_up), InternalError);
  swiglu_forward(bench.exec, act.slice_rows(0, 0), gate_up.slice_rows(0, 0));
}

INSTANTIATE_TEST_SUITE_P(All, OpsSwiglu, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
