#include "weights/factor_subspace.h"

#include "backend/matmul.h"
#include "ops/op_cases.h"
#include "support/directions.h"
#include "support/named_start.h"
#include "support/projected_adamw.h"

namespace inlay::weights {
namespace {

using namespace inlay::testing;  // NOLINT
using ops::reference::direct_gradients;
using ops::reference::Factors;
using ops::reference::product;
using ops::reference::transposed;

// A matrix of one or more stacked tensors, each with its decomposition.
struct MatrixCase {
  std::string name;
  std::vector<std::int64_t> rows;  // of each tensor
  std::int64_t in;
  std::vector<std::int64_t> free;  // of each tensor
};
const MatrixCase cases[] = {
    {"square", {24}, 24, {9}}, {"square_mostly_free", {24}, 24, {20}},        {"tall", {40}, 16, {8}},
    {"wide", {12}, 31, {5}},   {"three_tensors", {24, 8, 8}, 24, {10, 3, 8}}, {"all_free", {7}, 9, {7}}};

struct CasePart {
  DoubleMatrix u, v;  // all directions, [R, N] and [R, M]
  std::vector<double> s;
  std::int64_t free;

  std::int64_t full() const { return u.rows; }
  Factors<double> trained() const {
    const std::int64_t frozen = full() - free;
    return {rows_of(u, frozen, full()), {s.begin() + frozen, s.end()}, rows_of(v, frozen, full())};
  }
};

std::vector<CasePart> make_parts(const MatrixCase& c) {
  std::vector<CasePart> parts;
  for (std::size_t i = 0; i < c.rows.size(); ++i) {
    const std::int64_t full = std::min(c.rows[i], c.in);
    CasePart part{orthonormal_rows(full, c.rows[i], 10 + i), orthonormal_rows(full, c.in, 20 + i), {}, c.free[i]};
    for (std::int64_t k = 0; k < full; ++k) part.s.push_back(2.0 * std::pow(0.9, static_cast<double>(k)));
    part.s = rounded(part.s, DType::f32);
    parts.push_back(std::move(part));
  }
  return parts;
}

// As a step multiplies by them.
std::vector<CasePart> rounded_parts(std::vector<CasePart> parts, DType dtype) {
  for (CasePart& part : parts) {
    part.u.data = rounded(part.u.data, dtype);
    part.v.data = rounded(part.v.data, dtype);
  }
  return parts;
}

DoubleMatrix stacked_weight(const std::vector<CasePart>& parts, std::int64_t in) {
  DoubleMatrix w(0, in);
  for (const CasePart& part : parts) {
    const DoubleMatrix piece = Factors<double>{part.u, part.s, part.v}.weight();
    w.data.insert(w.data.end(), piece.data.begin(), piece.data.end());
    w.rows += piece.rows;
  }
  return w;
}

class Harness {
 public:
  Harness(Device device, DType dtype, const MatrixCase& c, Route route, bool one_call = true)
      : bench(device, std::size_t{512} << 20, bases_on_host),
        parts(make_parts(c)),
        used(rounded_parts(parts, dtype)),
        w(stacked_weight(parts, c.in)) {
    w.data = rounded(w.data, dtype);
    dense.name = "matrix";
    FactorLayout layout{.parts = {}, .route = route, .one_call = one_call};
    std::int64_t row = 0;
    for (const CasePart& part : parts) {
      dense.parts.push_back({"tensor", row, part.u.cols});
      row += part.u.cols;
      layout.parts.push_back({.free = part.free, .frozen = part.full() - part.free});
    }
    dense.shape = {row, c.in};
    dense.value = bench.tensor(dtype, dense.shape, w.data);
    weight = std::make_unique<FactorSubspace>(bench.exec, dense, layout, BasisPlace::device);
    std::map<std::string, std::vector<float>> tensors;
    for (std::size_t i = 0; i < parts.size(); ++i) add_tensors(tensors, fmt::format("matrix.{}", i), parts[i]);
    const NamedStart start(std::move(tensors));
    weight->start(bench.exec, &start);
  }

  static void add_tensors(std::map<std::string, std::vector<float>>& to, const std::string& prefix,
                          const CasePart& part) {
    const Factors<double> trained = part.trained();
    const std::int64_t frozen = part.full() - part.free;
    to[prefix + ".u"] = floats(trained.u);
    to[prefix + ".v"] = floats(trained.v);
    to[prefix + ".s"] = std::vector<float>(trained.s.begin(), trained.s.end());
    to[prefix + ".u.frozen"] = floats(rows_of(part.u, 0, frozen));
    to[prefix + ".v.frozen"] = floats(rows_of(part.v, 0, frozen));
    const std::vector<double> scale(part.s.begin(), part.s.begin() + frozen);
    to[prefix + ".v.scaled"] = floats(ops::reference::scaled_rows(rows_of(part.v, 0, frozen), scale));
  }

  DoubleMatrix read(ConstView view) { return {view.dim(0), view.dim(1), bench.read(view)}; }

  void adamw(std::int64_t step, double lr) {
    weight->finish_gradients(bench.exec);
    weight->for_each_own([&](Parameter& p) { optimizer.step(p, step, lr); });
    weight->update_value(bench.exec);
  }

  TestBench bench;
  std::vector<CasePart> parts, used;
  DoubleMatrix w;
  Parameter dense;
  std::unique_ptr<FactorSubspace> weight;
  ProjectedAdamW optimizer{bench};
};

constexpr Route all_routes[] = {Route::direct, Route::dense, Route::factored};

TEST(WeightsRoutes, AllGiveTheSameGradientsInDoublePrecision) {
  const Factors<double> f{random_matrix(7, 13, 1), random_values(7, 2), random_matrix(7, 11, 3)};
  const DoubleMatrix x = random_matrix(17, 11, 4), dy = random_matrix(17, 13, 5);
  const auto direct = direct_gradients(f, x, dy);
  for (const auto& other : {ops::reference::dense_gradients(f, x, dy), ops::reference::factored_gradients(f, x, dy)}) {
    EXPECT_LT(relative_error(other.u.data, direct.u.data), 1e-12);
    EXPECT_LT(relative_error(other.s, direct.s), 1e-12);
    EXPECT_LT(relative_error(other.v.data, direct.v.data), 1e-12);
  }
}

// The loss Σ dy∘(x·Wᵀ) is analytic in the factors, so its gradient by complex step is independent of the routes.
TEST(WeightsRoutes, GradientsAreThoseOfTheFunction) {
  const Factors<double> f{random_matrix(3, 5, 1), random_values(3, 2), random_matrix(3, 4, 3)};
  const DoubleMatrix x = random_matrix(6, 4, 4), dy = random_matrix(6, 5, 5);
  std::vector<double> point = f.u.data;
  point.insert(point.end(), f.s.begin(), f.s.end());
  point.insert(point.end(), f.v.data.begin(), f.v.data.end());
  const auto loss = [&](const std::vector<Complex>& p) {
    using M = ops::reference::Matrix<Complex>;
    const Factors<Complex> moved{
        M(3, 5, {p.begin(), p.begin() + 15}), {p.begin() + 15, p.begin() + 18}, M(3, 4, {p.begin() + 18, p.end()})};
    const M w = moved.weight();
    Complex total = 0;
    for (std::int64_t t = 0; t < x.rows; ++t) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        for (std::int64_t m = 0; m < w.cols; ++m) total += dy(t, n) * w(n, m) * x(t, m);
      }
    }
    return total;
  };
  const std::vector<double> expected = complex_step(point, sampled(static_cast<std::int64_t>(point.size())), loss);
  const auto found = direct_gradients(f, x, dy);
  std::vector<double> actual = found.u.data;
  actual.insert(actual.end(), found.s.begin(), found.s.end());
  actual.insert(actual.end(), found.v.data.begin(), found.v.data.end());
  EXPECT_LT(relative_error(actual, expected), 1e-12);
}

class WeightsFactors : public DeviceDType {};

TEST_P(WeightsFactors, GradientsOfEveryRouteAreTheReferences) {
  for (const MatrixCase& c : cases) {
    for (const Route route : all_routes) {
      for (const bool one_call : {true, false}) {
        SCOPED_TRACE(c.name + " " + std::string(name_of(route)));
        Harness h(device(), dtype(), c, route, one_call);
        const std::int64_t tokens = 19, out = h.dense.shape[0];
        DoubleMatrix x = random_matrix(tokens, c.in, 7), dy = random_matrix(tokens, out, 8, 0.1);
        x.data = rounded(x.data, dtype()), dy.data = rounded(dy.data, dtype());
        const View x_view = h.bench.tensor(dtype(), {tokens, c.in}, x.data);
        const View dy_view = h.bench.tensor(dtype(), {tokens, out}, dy.data);
        // In one call, or in two that add up.
        const std::int64_t cut = one_call ? tokens : 8;
        for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, tokens}}) {
          if (begin == end) continue;
          h.weight->accumulate(h.bench.exec, dy_view.slice_rows(begin, end), x_view.slice_rows(begin, end));
        }
        h.weight->finish_gradients(h.bench.exec);
        std::int64_t row = 0;
        for (std::size_t i = 0; i < h.parts.size(); ++i) {
          const CasePart& part = h.used[i];
          DoubleMatrix dpart(tokens, part.u.cols);
          for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t n = 0; n < part.u.cols; ++n) dpart(t, n) = dy(t, row + n);
          }
          row += part.u.cols;
          const auto expected = direct_gradients(part.trained(), x, dpart);
          FactorSubspace::PartFactors& f = *h.weight->parts()[i];
          // Products round their inner result once: 2⁻⁹ relative in bf16.
          const double bound = dtype() == DType::bf16 ? 8e-3 : 2e-6;
          EXPECT_LT(relative_error(h.bench.read(f.u->offset.grad), expected.u.data), bound);
          EXPECT_LT(relative_error(h.bench.read(f.v->offset.grad), expected.v.data), bound);
          EXPECT_LT(relative_error(h.bench.read(f.scale_offset.grad), expected.s), bound);
        }
      }
    }
  }
}

TEST_P(WeightsFactors, TheFactoredRouteMultipliesLikeTheMatrix) {
  for (const MatrixCase& c : cases) {
    SCOPED_TRACE(c.name);
    Harness h(device(), dtype(), c, Route::factored);
    const std::int64_t tokens = 5, out = h.dense.shape[0];
    DoubleMatrix x = random_matrix(tokens, c.in, 7), dy = random_matrix(tokens, out, 8);
    x.data = rounded(x.data, dtype()), dy.data = rounded(dy.data, dtype());
    const View y = h.bench.poisoned(dtype(), {tokens, out}), dx = h.bench.poisoned(dtype(), {tokens, c.in});
    h.weight->forward(h.bench.exec, y, Grad::overwrite, h.bench.tensor(dtype(), {tokens, c.in}, x.data));
    h.weight->backward_input(h.bench.exec, dx, Grad::overwrite, h.bench.tensor(dtype(), {tokens, out}, dy.data));
    const DoubleMatrix w = stacked_weight(h.used, c.in);
    const double bound = dtype() == DType::bf16 ? 1.2e-2 : 2e-6;  // three roundings on the way
    EXPECT_LT(relative_error(h.bench.read(y), product(x, transposed(w)).data), bound);
    EXPECT_LT(relative_error(h.bench.read(dx), product(dy, w).data), bound);
  }
}

TEST_P(WeightsFactors, StepZeroIsTheBaseBitForBit) {
  for (const MatrixCase& c : cases) {
    SCOPED_TRACE(c.name);
    Harness h(device(), dtype(), c, Route::dense);
    h.weight->update_value(h.bench.exec);
    EXPECT_EQ(h.bench.read(h.dense.value), h.w.data);
    const View saved = h.bench.tensor(DType::f32, h.dense.shape, h.w.data);
    h.weight->add_change(h.bench.exec, saved, 0);
    EXPECT_EQ(h.bench.read(saved), rounded(h.w.data, DType::f32));
  }
}

// A matrix regressed onto a random one for thousands of steps, which pulls in every direction.
TEST_P(WeightsFactors, FrozenDirectionsStayThroughThousandsOfSteps) {
  const bool wide_dtype = dtype() == DType::f32;
  // The sizes of a small real model.
  const MatrixCase small_model[] = {{"square_mostly_free", {96}, 96, {64}},
                                    {"tall", {160}, 96, {48}},
                                    {"three_tensors", {96, 48, 48}, 96, {48, 16, 32}}};
  for (const MatrixCase& c : small_model) {
    SCOPED_TRACE(c.name);
    Harness h(device(), dtype(), c, Route::direct);
    const std::int64_t tokens = 8, out = h.dense.shape[0];
    const View dy = h.bench.poisoned(dtype(), {tokens, out});
    const int steps = 2000;
    const DoubleMatrix goal = random_matrix(out, c.in, 99);
    const View goal_view = h.bench.tensor(dtype(), h.dense.shape, goal.data);
    for (int step = 1; step <= steps; ++step) {
      const View x = h.bench.tensor(dtype(), {tokens, c.in},
                                    random_values(tokens * c.in, 1000 + static_cast<std::uint64_t>(step)));
      // dy = x·Wᵀ − x·Goalᵀ
      h.weight->forward(h.bench.exec, dy, Grad::overwrite, x);
      backend::matmul(h.bench.exec, dy, x, backend::Transpose::no, goal_view, backend::Transpose::yes,
                      {.alpha = -1.0f, .beta = 1.0f});
      h.weight->accumulate(h.bench.exec, dy, x);
      h.adamw(step, 5e-5);  // moves a direction by about its own length
    }
    const DoubleMatrix learned = h.read(h.dense.value);
    const View saved = h.bench.tensor(DType::f32, h.dense.shape, std::vector<double>(h.w.data.size()));
    h.weight->add_change(h.bench.exec, saved, 0);
    const DoubleMatrix change = h.read(saved);
    double most = 0;
    EXPECT_GT(relative_error(learned.data, h.w.data), 0.05);  // it did learn
    std::int64_t row = 0;
    for (std::size_t i = 0; i < h.parts.size(); ++i) {
      const CasePart& part = h.parts[i];
      const std::int64_t frozen = part.full() - part.free;
      const DoubleMatrix uh = rows_of(part.u, 0, frozen), vh = rows_of(part.v, 0, frozen);
      FactorSubspace::PartFactors& f = *h.weight->parts()[i];
      // The factors of a step are as orthogonal as the rounded directions are.
      const auto master = [&](const Parameter& p) { return h.read(master_of(h.bench.exec, p)); };
      const DoubleMatrix u = master(f.u->offset), v = master(f.v->offset);
      const double rounding = wide_dtype ? 1e-6 : 0x1p-8;
      EXPECT_LE(norm(product(u, transposed(uh))), rounding * norm(u));
      EXPECT_LE(norm(product(v, transposed(vh))), rounding * norm(v));
      // What was learned is exact.
      const DoubleMatrix moved_exactly = rows_of(change, row, row + part.u.cols);
      for (const DoubleMatrix& frozen_part : {product(uh, moved_exactly), product(moved_exactly, transposed(vh))}) {
        EXPECT_LE(norm(frozen_part), 1e-6 * norm(moved_exactly)) << "part " << i;
        most = std::max(most, norm(frozen_part) / norm(moved_exactly));
      }
      // U_h W V_hᵀ: what the frozen directions do to each other.
      const DoubleMatrix before = rows_of(h.w, row, row + part.u.cols),
                         after = rows_of(learned, row, row + part.u.cols);
      row += part.u.cols;
      const DoubleMatrix moved = product(product(uh, difference(after, before)), transposed(vh));
      // |u·E·v| ≤ ‖E‖: E is W's rounding to the compute dtype, at most half a unit in the last place of every entry,
      // and as much again for the factors' own rounding.
      EXPECT_LE(largest(moved), norm(after) * (wide_dtype ? 0x1p-22 : 0x1p-8)) << "part " << i;
    }
    EXPECT_NEAR(h.weight->leak(h.bench.exec).share(), most, 1e-6);
  }
}

TEST_P(WeightsFactors, SavingAddsTheChangeInFp32) {
  const MatrixCase& c = cases[4];
  Harness h(device(), dtype(), c, Route::dense);
  const std::int64_t tokens = 6, out = h.dense.shape[0];
  h.weight->accumulate(h.bench.exec, h.bench.tensor(dtype(), {tokens, out}, random_values(tokens * out, 1)),
                       h.bench.tensor(dtype(), {tokens, c.in}, random_values(tokens * c.in, 2)));
  h.adamw(1, 1e-2);
  // The whole, and row by row across the tensors' borders.
  DoubleMatrix expected(0, c.in);
  for (std::size_t i = 0; i < h.parts.size(); ++i) {
    FactorSubspace::PartFactors& f = *h.weight->parts()[i];
    const Factors<double> start = h.parts[i].trained();
    Factors<double> now = start;
    const auto du = h.bench.read(master_of(h.bench.exec, f.u->offset)), ds = h.bench.read(f.scale_offset.value),
               dv = h.bench.read(master_of(h.bench.exec, f.v->offset));
    const auto outside = [&](const std::vector<double>& offset, const DoubleMatrix& all) {
      const DoubleMatrix rows(h.parts[i].free, all.cols, offset);
      return difference(rows, along(rows, rows_of(all, 0, all.rows - h.parts[i].free)));
    };
    now.u = sum(now.u, outside(du, h.parts[i].u));
    for (std::size_t k = 0; k < ds.size(); ++k) now.s[k] += ds[k];
    now.v = sum(now.v, outside(dv, h.parts[i].v));
    const DoubleMatrix change = difference(now.weight(), start.weight());
    expected.data.insert(expected.data.end(), change.data.begin(), change.data.end());
  }
  std::vector<double> actual;
  for (std::int64_t row = 0; row < out; row += 5) {
    const std::int64_t count = std::min<std::int64_t>(5, out - row);
    const View rows =
        h.bench.tensor(DType::f32, {count, c.in}, std::vector<double>(static_cast<std::size_t>(count * c.in)));
    h.weight->add_change(h.bench.exec, rows, row);
    for (const double value : h.bench.read(rows)) actual.push_back(value);
  }
  EXPECT_LT(relative_error(actual, expected.data), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(, WeightsFactors, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::weights
