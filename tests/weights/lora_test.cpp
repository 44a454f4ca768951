#include "weights/lora.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/op_cases.h"
#include "support/directions.h"
#include "support/named_start.h"
#include "weights/dense.h"
#include "weights/experts.h"

namespace inlay::weights {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::product;
using ops::reference::transposed;

struct AdapterCase {
  std::int64_t in;
  std::vector<std::int64_t> rows;   // of every tensor of the matrix
  std::vector<std::int64_t> ranks;  // 0: no adapter
  std::vector<double> scales;
};
// One tensor; three with adapters of different ranks; the middle one without; odd extents.
const AdapterCase adapter_cases[] = {
    {16, {24}, {4}, {2.0}}, {32, {16, 8, 8}, {8, 4, 4}, {2, 1, 0.5}}, {11, {7, 5, 3}, {3, 0, 2}, {1.5, 0, 3}}};

// The matrix and its adapters in double precision, as the compute dtype has them.
struct Reference {
  Reference(const AdapterCase& c, DType dtype, std::uint64_t seed) {
    std::int64_t row = 0;
    for (std::size_t i = 0; i < c.rows.size(); ++i) {
      if (c.ranks[i] > 0) {
        layout.parts.push_back({.row = row, .rows = c.rows[i], .rank = c.ranks[i], .scale = c.scales[i]});
        a.push_back(random_matrix(c.ranks[i], c.in, seed + 10 + i));
        b.push_back(random_matrix(c.rows[i], c.ranks[i], seed + 20 + i, 0.5));
        a.back().data = rounded(a.back().data, dtype);
        b.back().data = rounded(b.back().data, dtype);
      }
      row += c.rows[i];
    }
    w = random_matrix(row, c.in, seed);
    w.data = rounded(w.data, dtype);
  }

  DoubleMatrix weight() const {
    DoubleMatrix whole = w;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const DoubleMatrix change = product(b[i], a[i]);
      const LoraPart& part = layout.parts[i];
      for (std::int64_t r = 0; r < part.rows; ++r) {
        for (std::int64_t c = 0; c < w.cols; ++c) whole(part.row + r, c) += part.scale * change(r, c);
      }
    }
    return whole;
  }
  DoubleMatrix columns(const DoubleMatrix& m, const LoraPart& part) const {
    DoubleMatrix result(m.rows, part.rows);
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < part.rows; ++c) result(r, c) = m(r, part.row + c);
    }
    return result;
  }
  DoubleMatrix scaled(DoubleMatrix m, double by) const {
    for (double& value : m.data) value *= by;
    return m;
  }
  DoubleMatrix gradient_of_a(std::size_t i, const DoubleMatrix& dy, const DoubleMatrix& x) const {
    const LoraPart& part = layout.parts[i];
    return scaled(product(transposed(product(columns(dy, part), b[i])), x), part.scale);
  }
  DoubleMatrix gradient_of_b(std::size_t i, const DoubleMatrix& dy, const DoubleMatrix& x) const {
    const LoraPart& part = layout.parts[i];
    return scaled(product(transposed(columns(dy, part)), product(x, transposed(a[i]))), part.scale);
  }

  // Under the names of the weight of a parameter.
  void add_start(std::map<std::string, std::vector<float>>& to, const std::string& name) const {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::vector<float> rows = floats(a[i]);
      to[name + ".lora_a"].insert(to[name + ".lora_a"].end(), rows.begin(), rows.end());
      to[fmt::format("{}.lora_b.{}", name, i)] = floats(b[i]);
    }
  }

  LoraLayout layout;
  DoubleMatrix w{0, 0};
  std::vector<DoubleMatrix> a, b;
};

// A parameter of that matrix, its memory and numbers given by the weight.
Parameter parameter_of(const std::string& name, const AdapterCase& c) {
  Parameter p;
  p.name = name;
  p.role = Role::qkv;
  p.trainable = false;
  std::int64_t row = 0;
  for (const std::int64_t rows : c.rows) {
    p.parts.push_back({"tensor", row, rows});
    row += rows;
  }
  p.shape = {row, c.in};
  return p;
}

class WeightsLora : public DeviceDType {
 protected:
  // Numbers of the matrix itself, as loading would put them there.
  void fill(TestBench& bench, Parameter& p, const DoubleMatrix& values) {
    const View staged = bench.tensor(dtype(), p.shape, values.data);
    ops::cast(bench.exec, p.value, staged);
  }
  std::unique_ptr<Weight> make(TestBench& bench, Parameter& p, const Reference& reference) {
    const LoraKind kind(reference.layout, std::make_shared<DenseKind>());
    auto weight = kind.make(bench.exec, p, {.compute = dtype(), .training = true});
    fill(bench, p, reference.w);
    return weight;
  }
  // Inner products are rounded once more on their way.
  double bound() const { return dtype() == DType::bf16 ? 1e-2 : 3e-6; }
};

TEST_P(WeightsLora, ProductsAndGradientsAreThoseOfTheSum) {
  for (const AdapterCase& c : adapter_cases) {
    SCOPED_TRACE(fmt::format("in {}, {} tensors", c.in, c.rows.size()));
    TestBench bench(device());
    const Reference reference(c, dtype(), 5);
    Parameter p = parameter_of("matrix", c);
    const auto weight = make(bench, p, reference);
    std::map<std::string, std::vector<float>> tensors;
    reference.add_start(tensors, "matrix");
    const NamedStart start(std::move(tensors));
    weight->start(bench.exec, &start);

    const std::int64_t tokens = 13, out = p.rows();
    DoubleMatrix x = random_matrix(tokens, c.in, 1), dy = random_matrix(tokens, out, 2);
    x.data = rounded(x.data, dtype()), dy.data = rounded(dy.data, dtype());
    const View x_view = bench.tensor(dtype(), {tokens, c.in}, x.data);
    const View dy_view = bench.tensor(dtype(), {tokens, out}, dy.data);
    const View y = bench.poisoned(dtype(), {tokens, out}), dx = bench.poisoned(dtype(), {tokens, c.in});
    const DoubleMatrix whole = reference.weight();
    weight->forward(bench.exec, y, Grad::overwrite, x_view);
    EXPECT_LT(relative_error(bench.read(y), product(x, transposed(whole)).data), bound());
    weight->backward_input(bench.exec, dx, Grad::overwrite, dy_view);
    EXPECT_LT(relative_error(bench.read(dx), product(dy, whole).data), bound());

    // Two calls of different sizes, with a factor on the device.
    const View alpha = bench.tensor(DType::f32, {1}, {0.5});
    const ops::Call call{.device_alpha = static_cast<const float*>(alpha.data())};
    weight->accumulate(bench.exec, dy_view.slice_rows(0, 4), x_view.slice_rows(0, 4), call);
    weight->accumulate(bench.exec, dy_view.slice_rows(4, tokens), x_view.slice_rows(4, tokens), call);
    std::size_t seen = 0;
    weight->for_each_own([&](Parameter& own) {
      ++seen;
      EXPECT_TRUE(own.trainable);
      DoubleMatrix expected(0, c.in);
      if (seen == 1) {  // A of all parts
        for (std::size_t i = 0; i < reference.a.size(); ++i) {
          const DoubleMatrix rows = reference.gradient_of_a(i, dy, x);
          expected.data.insert(expected.data.end(), rows.data.begin(), rows.data.end());
        }
      } else {
        expected = reference.gradient_of_b(seen - 2, dy, x);
      }
      for (double& value : expected.data) value *= 0.5;
      EXPECT_LT(relative_error(bench.read(own.grad), expected.data), bound()) << own.name;
    });
    EXPECT_EQ(seen, 1 + reference.a.size());

    // What is saved is exact in any dtype.
    DoubleMatrix rows = rows_of(reference.w, 2, 5);
    const View merged = bench.tensor(DType::f32, {3, c.in}, rows.data);
    weight->complete(bench.exec, merged, 2);
    EXPECT_LT(relative_error(bench.read(merged), rows_of(whole, 2, 5).data), 3e-6);
  }
}

TEST_P(WeightsLora, ExpertsTogetherDoWhatEachDoesAlone) {
  const AdapterCase c{32, {16, 16}, {8, 8}, {2, 2}};
  TestBench bench(device());
  const std::vector<std::int32_t> offsets = {0, 5, 5, 12};
  std::vector<Reference> references;
  std::vector<Parameter> parameters;
  std::map<std::string, std::vector<float>> tensors;
  for (std::uint64_t e = 0; e < 3; ++e) {
    references.emplace_back(c, dtype(), 100 * (e + 1));
    parameters.push_back(parameter_of(fmt::format("experts.{}", e), c));
    references.back().add_start(tensors, parameters.back().name);
  }
  std::vector<Weight*> weights;
  ExpertWeights experts(bench.exec, parameters, [&](Exec&, Parameter& p) {
    auto weight = make(bench, p, references[weights.size()]);
    weights.push_back(weight.get());
    return weight;
  });
  ASSERT_NE(weights.front()->group(weights), nullptr);
  const NamedStart start(std::move(tensors));
  for (Weight* weight : weights) weight->start(bench.exec, &start);

  const std::int64_t tokens = 12, out = 32;
  DoubleMatrix x = random_matrix(tokens, c.in, 1), dy = random_matrix(tokens, out, 2);
  x.data = rounded(x.data, dtype()), dy.data = rounded(dy.data, dtype());
  const View x_view = bench.tensor(dtype(), {tokens, c.in}, x.data);
  const View dy_view = bench.tensor(dtype(), {tokens, out}, dy.data);
  const View y = bench.poisoned(dtype(), {tokens, out}), dx = bench.poisoned(dtype(), {tokens, c.in});
  const View at = bench.indices(offsets);
  experts.forward(bench.exec, y, x_view, at, {});
  experts.backward_input(bench.exec, dx, dy_view, at, {});
  experts.accumulate(bench.exec, dy_view, x_view, at, {});
  experts.accumulate(bench.exec, dy_view, x_view, at, {});
  for (std::size_t e = 0; e < 3; ++e) {
    const std::int64_t begin = offsets[e], end = offsets[e + 1];
    const DoubleMatrix mine = rows_of(x, begin, end), dmine = rows_of(dy, begin, end), whole = references[e].weight();
    if (begin < end) {
      EXPECT_LT(relative_error(bench.read(y.slice_rows(begin, end)), product(mine, transposed(whole)).data), bound());
      EXPECT_LT(relative_error(bench.read(dx.slice_rows(begin, end)), product(dmine, whole).data), bound());
    }
    std::size_t seen = 0;
    weights[e]->for_each_own([&](Parameter& own) {
      DoubleMatrix expected(0, c.in);
      for (std::size_t i = 0; seen == 0 && i < 2; ++i) {
        const DoubleMatrix rows = references[e].gradient_of_a(i, dmine, mine);
        expected.data.insert(expected.data.end(), rows.data.begin(), rows.data.end());
      }
      if (seen > 0) expected = references[e].gradient_of_b(seen - 1, dmine, mine);
      for (double& value : expected.data) value *= 2;
      if (begin == end) {
        for (const double value : bench.read(own.grad)) EXPECT_EQ(value, 0.0);
      } else {
        EXPECT_LT(relative_error(bench.read(own.grad), expected.data), bound()) << own.name;
      }
      ++seen;
    });
  }
}

// What is dropped of a row hangs on its number alone, not on its place or on the rows beside it: two tiles give what
// all rows give at once, where experts are multiplied by together and where they are not.
TEST_P(WeightsLora, ExpertsDropByTheNumbersOfRows) {
  for (const bool together : {true, false}) {
    SCOPED_TRACE(together);
    const AdapterCase c{32, {16, 16}, {8, together ? 8 : 0}, {2, 2}};
    TestBench bench(device());
    std::vector<Parameter> parameters;
    std::map<std::string, std::vector<float>> tensors;
    std::vector<Reference> references;
    for (std::uint64_t e = 0; e < 3; ++e) {
      references.emplace_back(c, dtype(), 100 * (e + 1));
      references.back().layout.dropout = 0.5;
      parameters.push_back(parameter_of(fmt::format("experts.{}", e), c));
      parameters.back().expert = static_cast<std::int64_t>(e);
      references.back().add_start(tensors, parameters.back().name);
    }
    std::vector<Weight*> weights;
    ExpertWeights experts(bench.exec, parameters, [&](Exec&, Parameter& p) {
      auto weight = make(bench, p, references[weights.size()]);
      weights.push_back(weight.get());
      return weight;
    });
    ASSERT_EQ(weights.front()->group(weights) != nullptr, together);
    const NamedStart start(std::move(tensors));
    for (Weight* weight : weights) {
      weight->start(bench.exec, &start);
      weight->begin_pass({.training = true, .step = 1});
    }

    const std::vector<std::int32_t> numbers = {7, 2, 9, 4, 11, 6, 1, 8, 3, 10, 5, 0};
    const std::vector<std::int64_t> expert_of = {0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2};
    const DoubleMatrix x = random_matrix(12, c.in, 1), dy = random_matrix(12, 32, 2);
    struct Results {
      std::vector<double> y, dx;  // by numbers
      std::vector<std::vector<double>> gradients;
    };
    // In tiles of so many numbers.
    const auto results = [&](std::int32_t tile) {
      Results all{std::vector<double>(12 * 32), std::vector<double>(12 * 32), {}};
      for (Weight* weight : weights) {
        weight->for_each_own([](Parameter& own) { own.forget_grad(); });
      }
      for (std::int32_t first = 0; first < 12; first += tile) {
        std::vector<std::int32_t> mine, offsets(4);
        std::vector<double> tile_x, tile_dy;
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          if (numbers[i] < first || numbers[i] >= first + tile) continue;
          mine.push_back(numbers[i] - first);
          for (std::size_t e = static_cast<std::size_t>(expert_of[i]); e < 3; ++e) ++offsets[e + 1];
          for (std::int64_t col = 0; col < 32; ++col) {
            tile_x.push_back(x(static_cast<std::int64_t>(i), col));
            tile_dy.push_back(dy(static_cast<std::int64_t>(i), col));
          }
        }
        const Shape shape{static_cast<std::int64_t>(mine.size()), 32};
        const View x_view = bench.tensor(dtype(), shape, tile_x), dy_view = bench.tensor(dtype(), shape, tile_dy);
        const View y = bench.poisoned(dtype(), shape), dx = bench.poisoned(dtype(), shape);
        const View at = bench.indices(offsets);
        const ops::Call call{.first_row = first, .rows = bench.indices(mine)};
        experts.forward(bench.exec, y, x_view, at, call);
        experts.backward(bench.exec, dx, dy_view, x_view, at, call);
        const auto read_y = bench.read(y), read_dx = bench.read(dx);
        for (std::size_t i = 0; i < mine.size(); ++i) {
          const std::size_t to = static_cast<std::size_t>(mine[i] + first) * 32;
          std::copy_n(&read_y[i * 32], 32, &all.y[to]);
          std::copy_n(&read_dx[i * 32], 32, &all.dx[to]);
        }
      }
      for (Weight* weight : weights) {
        weight->for_each_own([&](Parameter& own) { all.gradients.push_back(bench.read(own.grad)); });
      }
      return all;
    };
    const Results whole = results(12), tiles = results(5);
    EXPECT_LT(relative_error(tiles.y, whole.y), bound());
    EXPECT_LT(relative_error(tiles.dx, whole.dx), bound());
    for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
      if (std::ranges::all_of(whole.gradients[i], [](double value) { return value == 0; })) continue;  // no rows
      EXPECT_LT(relative_error(tiles.gradients[i], whole.gradients[i]), bound()) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, WeightsLora, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::weights
