#include "weights/input_subspace.h"

#include "ops/op_cases.h"
#include "support/directions.h"
#include "support/named_start.h"
#include "support/projected_adamw.h"

namespace inlay::weights {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::product;
using ops::reference::transposed;

struct InputCase {
  std::int64_t out, in, frozen;
};
// B·V where few directions are free, D where few are frozen; nothing frozen; odd sizes.
const InputCase input_cases[] = {{24, 16, 12}, {24, 16, 8}, {24, 16, 5}, {9, 31, 29}, {9, 31, 1}, {7, 11, 0}};

class InputHarness {
 public:
  InputHarness(Device device, DType dtype, const InputCase& c)
      : bench(device, std::size_t{512} << 20, bases_on_host),
        directions(orthonormal_rows(c.in, c.in, 5)),
        w(random_matrix(c.out, c.in, 6)) {
    w.data = rounded(w.data, dtype);
    const InputLayout layout{.free = c.in - c.frozen, .frozen = c.frozen};
    dense.name = "matrix";
    dense.parts = {{"tensor", 0, c.out}};
    dense.shape = {c.out, c.in};
    dense.value = bench.tensor(dtype, dense.shape, w.data);
    weight = std::make_unique<InputSubspace>(bench.exec, dense, layout, BasisPlace::host);
    frozen = rows_of(directions, 0, c.frozen);
    stored = layout.stores_frozen() ? frozen : rows_of(directions, c.frozen, c.in);
    const NamedStart start({{layout.stores_frozen() ? "matrix.frozen" : "matrix.free", floats(stored)}});
    weight->start(bench.exec, &start);
    stored.data = rounded(stored.data, dtype);  // as a step multiplies by it
  }

  DoubleMatrix read(ConstView view) { return {view.dim(0), view.dim(1), bench.read(view)}; }
  // What saving adds.
  DoubleMatrix change() {
    const View rows = bench.tensor(DType::f32, dense.shape, std::vector<double>(w.data.size()));
    weight->add_change(bench.exec, rows, 0);
    return read(rows);
  }
  Parameter& factor() {
    Parameter* found = nullptr;
    weight->for_each_own([&](Parameter& p) { found = &p; });
    return *found;
  }
  void adamw(std::int64_t step, double lr) {
    optimizer.step(factor(), step, lr);
    weight->update_value(bench.exec);
  }

  TestBench bench;
  DoubleMatrix directions, w, frozen, stored;
  Parameter dense;
  std::unique_ptr<InputSubspace> weight;
  ProjectedAdamW optimizer{bench};
};

class WeightsInputs : public DeviceDType {};

TEST_P(WeightsInputs, TheGradientIsThatOfTheFactor) {
  for (const InputCase& c : input_cases) {
    SCOPED_TRACE(fmt::format("{}x{}, {} frozen", c.out, c.in, c.frozen));
    InputHarness h(device(), dtype(), c);
    const std::int64_t tokens = 13;
    DoubleMatrix x = random_matrix(tokens, c.in, 1), dy = random_matrix(tokens, c.out, 2);
    x.data = rounded(x.data, dtype()), dy.data = rounded(dy.data, dtype());
    const View x_view = h.bench.tensor(dtype(), {tokens, c.in}, x.data);
    const View dy_view = h.bench.tensor(dtype(), {tokens, c.out}, dy.data);
    const View alpha = h.bench.tensor(DType::f32, {1}, {0.5});
    const auto* factor_on_device = static_cast<const float*>(alpha.data());
    h.weight->accumulate(h.bench.exec, dy_view.slice_rows(0, 4), x_view.slice_rows(0, 4),
                         {.device_alpha = factor_on_device});
    h.weight->accumulate(h.bench.exec, dy_view.slice_rows(4, tokens), x_view.slice_rows(4, tokens),
                         {.device_alpha = factor_on_device});
    Parameter& p = h.factor();
    if (p.projected) p.owner->project(h.bench.exec, p, p.grad, Projected::gradient);
    DoubleMatrix g = product(transposed(dy), x);
    for (double& value : g.data) value *= 0.5;
    const DoubleMatrix along = product(g, transposed(h.stored));  // [out, stored]
    const DoubleMatrix expected = h.weight->layout().stores_frozen() ? difference(g, product(along, h.stored)) : along;
    const double bound = dtype() == DType::bf16 ? 8e-3 : 2e-6;  // the inner product is rounded once
    EXPECT_LT(relative_error(h.bench.read(p.grad), expected.data), bound);
  }
}

TEST_P(WeightsInputs, ALookupIsAProductWithOneHotInputs) {
  for (const InputCase& c : input_cases) {
    SCOPED_TRACE(fmt::format("{}x{}, {} frozen", c.out, c.in, c.frozen));
    InputHarness h(device(), dtype(), c);
    const std::vector<std::int32_t> tokens = {3, 1, 3, 0, 6, 1};
    const auto count = static_cast<std::int64_t>(tokens.size());
    DoubleMatrix dout = random_matrix(count, c.in, 2), g(c.out, c.in);
    dout.data = rounded(dout.data, dtype());
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t j = 0; j < c.in; ++j) g(tokens[static_cast<std::size_t>(t)], j) += dout(t, j);
    }
    const ops::TokenGroups groups{.order = h.bench.indices({3, 1, 5, 0, 2, 4}),
                                  .starts = h.bench.indices({0, 1, 3, 5, 6}),
                                  .ids = h.bench.indices({0, 1, 3, 6})};
    h.weight->accumulate_lookup(h.bench.exec, h.bench.tensor(dtype(), {count, c.in}, dout.data), groups);
    const DoubleMatrix expected = h.weight->layout().stores_frozen() ? g : product(g, transposed(h.stored));
    EXPECT_LT(relative_error(h.bench.read(h.factor().grad), expected.data), dtype() == DType::bf16 ? 8e-3 : 2e-6);
  }
}

TEST_P(WeightsInputs, StepZeroIsTheBaseBitForBit) {
  for (const InputCase& c : input_cases) {
    InputHarness h(device(), dtype(), c);
    h.weight->update_value(h.bench.exec);
    EXPECT_EQ(h.bench.read(h.dense.value), h.w.data);
  }
}

TEST_P(WeightsInputs, OutputsOfFrozenInputsNeverChange) {
  std::vector<InputCase> shapes(std::begin(input_cases), std::end(input_cases));
  for (const InputCase& wide : {InputCase{40, 160, 120}, InputCase{40, 160, 40}}) shapes.push_back(wide);
  for (const InputCase& c : shapes) {
    SCOPED_TRACE(fmt::format("{}x{}, {} frozen", c.out, c.in, c.frozen));
    InputHarness h(device(), dtype(), c);
    EXPECT_EQ(h.weight->leak(h.bench.exec).share(), 0.0);  // nothing was learned
    for (int step = 1; step <= 300; ++step) {
      const auto seed = static_cast<std::uint64_t>(step);
      const View x = h.bench.tensor(dtype(), {4, c.in}, random_values(4 * c.in, 100 + seed));
      const View dy = h.bench.tensor(dtype(), {4, c.out}, random_values(4 * c.out, 7000 + seed));
      h.weight->accumulate(h.bench.exec, dy, x);
      h.adamw(step, 1e-2);
    }
    // What was learned is exact in any dtype.
    const DoubleMatrix change = h.change();
    EXPECT_GT(norm(change), 0.05 * norm(h.w));
    const double leak = norm(product(change, transposed(h.frozen))) / norm(change);
    EXPECT_LE(leak, 1e-6);
    EXPECT_NEAR(h.weight->leak(h.bench.exec).share(), leak, 1e-6);
    // What the layers multiply by is W₀ + that, rounded to the compute dtype as any weight is; B or D and the
    // directions are rounded before, which is as small beside it as the change is beside the weight.
    const DoubleMatrix exact = sum(h.w, change), used = h.read(h.dense.value);
    const double unit = dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
    EXPECT_LE(norm(difference(used, exact)), unit * (norm(exact) + 2 * norm(change)));
  }
}

INSTANTIATE_TEST_SUITE_P(, WeightsInputs, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::weights
