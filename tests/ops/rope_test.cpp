#include "ops/rope.h"

#include "op_cases.h"
#include "ops/reference/rope.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

struct RopeCase {
  std::int64_t tokens, heads, head, rotated;
  RopePairs pairs = RopePairs::halves;
};
const RopeCase rope_cases[] = {{1, 1, 2, 2},
                               {3, 2, 10, 10},
                               {5, 3, 64, 64},
                               {7, 2, 24, 16},
                               {11, 4, 128, 128},
                               {2, 1, 256, 256},
                               {130, 2, 96, 32},
                               {4, 3, 80, 0},
                               {1, 1, 2, 2, RopePairs::neighbours},
                               {3, 2, 10, 6, RopePairs::neighbours},
                               {7, 2, 24, 16, RopePairs::neighbours},
                               {130, 3, 128, 64, RopePairs::neighbours}};

// Positions restart, skip and repeat.
std::vector<std::int32_t> positions_for(std::int64_t tokens, std::int32_t limit) {
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<std::int32_t>(t * 7 % limit));
  return positions;
}

struct Table {
  std::vector<double> values;  // [positions, half, 2]
  std::int64_t half;
  std::vector<double> column(std::int32_t position, std::int64_t which) const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < half; ++i) {
      result.push_back(values[static_cast<std::size_t>((position * half + i) * 2 + which)]);
    }
    return result;
  }
};

Table make_table(std::int64_t positions, std::int64_t half) {
  Table table{{}, half};
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
      table.values.push_back(1.25 * std::cos(angle));  // scaled, as YaRN does
      table.values.push_back(1.25 * std::sin(angle));
    }
  }
  table.values = rounded(table.values, DType::f32);
  return table;
}

template <class S>
void reference_rope(std::vector<S>& x, const RopeCase& c, const std::vector<std::int32_t>& positions,
                    const Table& table) {
  for (std::int64_t row = 0; row < c.tokens * c.heads; ++row) {
    const std::int32_t position = positions[static_cast<std::size_t>(row / c.heads)];
    const auto cosines = table.column(position, 0), sines = table.column(position, 1);
    const auto head = std::span(x).subspan(static_cast<std::size_t>(row * c.head), static_cast<std::size_t>(c.head));
    if (c.pairs == RopePairs::halves) {
      reference::rope<S>(head, cosines, sines);
    } else {
      reference::rope_neighbours<S>(head, cosines, sines);
    }
  }
}

class OpsRope : public DeviceDType {};

TEST_P(OpsRope, ForwardMatchesTheReference) {
  for (const RopeCase& c : rope_cases) {
    SCOPED_TRACE(fmt::format("{} tokens, {} heads of {}, {} rotated", c.tokens, c.heads, c.head, c.rotated));
    TestBench bench(device());
    const Table table = make_table(13, c.rotated / 2);
    const auto positions = positions_for(c.tokens, 13);
    auto x = rounded(random_values(c.tokens * c.heads * c.head, 1), dtype());
    const View table_view = bench.tensor(DType::f32, {13, c.rotated / 2, 2}, table.values);
    const View position_view = bench.indices(positions);
    const View dense = bench.tensor(dtype(), {c.tokens, c.heads, c.head}, x);
    const Window wide = strided(bench, dtype(), c.tokens, c.heads * c.head, x);
    rope(bench.exec, dense, position_view, table_view, Rotation::forward, c.pairs);
    rope(bench.exec, wide.view.split_cols(c.heads), position_view, table_view, Rotation::forward, c.pairs);
    const auto before = x;
    reference_rope(x, c, positions, table);
    EXPECT_LT(relative_error(bench.read(dense), x), tolerance(dtype()));
    EXPECT_EQ(bench.read(wide.view), bench.read(dense));
    EXPECT_TRUE(surroundings_intact(bench, wide));
    const auto after = bench.read(dense);
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (static_cast<std::int64_t>(i) % c.head < c.rotated) continue;
      ASSERT_EQ(after[i], before[i]) << "the rest of the head";
    }
  }
}

TEST_P(OpsRope, BackwardMatchesComplexStep) {
  for (const RopeCase& c : rope_cases) {
    if (c.tokens * c.heads * c.head > 2000) continue;
    SCOPED_TRACE(fmt::format("{} tokens, {} heads of {}, {} rotated", c.tokens, c.heads, c.head, c.rotated));
    TestBench bench(device());
    const Table table = make_table(13, c.rotated / 2);
    const auto positions = positions_for(c.tokens, 13);
    const std::int64_t count = c.tokens * c.heads * c.head;
    const auto x = random_values(count, 2), dout = rounded(random_values(count, 3), dtype());
    std::vector<std::size_t> all(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    const auto expected = complex_step(x, all, [&](std::vector<Complex> point) {
      reference_rope(point, c, positions, table);
      Complex loss = 0;
      for (std::size_t i = 0; i < point.size(); ++i) loss += point[i] * dout[i];
      return loss;
    });
    const View d = bench.tensor(dtype(), {c.tokens, c.heads, c.head}, dout);
    rope(bench.exec, d, bench.indices(positions), bench.tensor(DType::f32, {13, c.rotated / 2, 2}, table.values),
         Rotation::backward, c.pairs);
    EXPECT_LT(relative_error(bench.read(d), expected), tolerance(dtype()));
  }
}

TEST_P(OpsRope, RejectsATableWiderThanTheHead) {
  TestBench bench(device());
  const View x = bench.poisoned(dtype(), {2, 3, 8}), positions = bench.indices({0, 1});
  EXPECT_THROW(rope(bench.exec, x, positions, bench.poisoned(DType::f32, {4, 5, 2}), Rotation::forward), InternalError);
  EXPECT_THROW(rope(bench.exec, x, bench.indices({0}), bench.poisoned(DType::f32, {4, 4, 2}), Rotation::forward),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(All, OpsRope, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
