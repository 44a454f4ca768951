#include "ops/adamw_8bit.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "op_cases.h"
#include "ops/quant_codes.h"
#include "support/fixtures.h"
#include "support/paths.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

nlohmann::json fixture() {
  std::ifstream file(source_folder() / "tests/golden/optimizers.json");
  return nlohmann::json::parse(file).at("adamw_8bit");
}

class OpsAdamW8bit : public ::testing::TestWithParam<Device> {
 protected:
  static Moments8 zeros(TestBench& bench, std::int64_t rows, std::int64_t cols) {
    const Shape scales{rows, moment_blocks(cols)};
    Moments8 moments{bench.exec.arena().keep(MemoryClass::optimizer, "m", DType::u8, {rows, cols}),
                     bench.exec.arena().keep(MemoryClass::optimizer, "v", DType::u8, {rows, cols}),
                     bench.exec.arena().keep(MemoryClass::optimizer, "m scale", DType::f32, scales),
                     bench.exec.arena().keep(MemoryClass::optimizer, "v scale", DType::f32, scales)};
    for (const View& view : {moments.m, moments.v, moments.m_scale, moments.v_scale}) bench.exec.fill_zero(view);
    return moments;
  }
  // The numbers that are kept.
  static std::vector<double> open(TestBench& bench, ConstView codes, ConstView scales,
                                  const std::array<float, 256>& map) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codes.size()));
    bench.exec.download(bytes.data(), codes);
    const std::vector<double> scale = bench.read(scales);
    std::vector<double> result;
    const std::int64_t cols = codes.dim(1), across = scales.dim(1);
    for (std::int64_t i = 0; i < codes.size(); ++i) {
      const std::int64_t block = i / cols * across + i % cols / moment_block;
      result.push_back(map[bytes[static_cast<std::size_t>(i)]] * scale[static_cast<std::size_t>(block)]);
    }
    return result;
  }
};

TEST(OpsAdamW8bitMaps, AreThePublishedOnes) {
  const nlohmann::json expected = fixture();
  const std::vector<double> with_sign = expected.at("signed_map"), without = expected.at("unsigned_map");
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_FLOAT_EQ(quant::dynamic_values[i], static_cast<float>(with_sign[i])) << i;
    EXPECT_FLOAT_EQ(quant::unsigned_dynamic_values[i], static_cast<float>(without[i])) << i;
  }
}

// Every code is torchao's on a CPU. A GPU fuses multiplications with additions: where a number lies in the middle of
// two codes its last bit decides, so a few may be kept by the neighbouring one.
TEST_P(OpsAdamW8bit, StepsAreThoseOfTorchao) {
  TestBench bench(GetParam());
  const nlohmann::json expected = fixture();
  const std::int64_t rows = expected.at("shape")[0], cols = expected.at("shape")[1];
  AdamWSettings settings{.lr = expected.at("lr"),
                         .beta1 = expected.at("beta1"),
                         .beta2 = expected.at("beta2"),
                         .eps = expected.at("eps"),
                         .weight_decay = expected.at("weight_decay"),
                         .step = 0};
  const View value = bench.tensor(DType::f32, {rows, cols}, expected.at("start"));
  const Moments8 moments = zeros(bench, rows, cols);
  for (const std::vector<double> gradient : expected.at("gradients")) {
    ++settings.step;
    const View grad = bench.tensor(DType::f32, {rows, cols}, gradient);
    adamw_update_8bit(bench.exec, grad, moments, {}, settings);
    add_update(bench.exec, value, {}, grad, settings);
  }
  EXPECT_LE(relative_error(bench.read(value), expected.at("result")), 1e-5);
  const std::size_t most = GetParam() == Device::cpu ? 0 : static_cast<std::size_t>(rows * cols) / 100;
  const auto expect_kept = [most](const std::vector<double>& actual, const std::vector<double>& wanted) {
    std::size_t other = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::abs(actual[i] - wanted[i]) > 1e-5 * std::abs(wanted[i])) ++other;
    }
    EXPECT_LE(other, most);
  };
  expect_kept(open(bench, moments.m, moments.m_scale, quant::dynamic_values), expected.at("m"));
  expect_kept(open(bench, moments.v, moments.v_scale, quant::unsigned_dynamic_values), expected.at("v"));
}

// One step from nothing: the change is AdamW's to rounding, and what is kept is the nearest of the map's numbers.
TEST_P(OpsAdamW8bit, RaggedRowsKeepTheNearestNumbers) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {5, 256}, {2, 257}, {70, 600}}) {
    TestBench bench(GetParam());
    const std::vector<double> g = random_values(rows * cols, 5);
    const View grad = bench.tensor(DType::f32, {rows, cols}, g), scale = bench.tensor(DType::f32, {1}, {0.5});
    const AdamWSettings settings{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0, .step = 1};
    const Moments8 moments = zeros(bench, rows, cols);
    adamw_update_8bit(bench.exec, grad, moments, scale, settings);
    const std::vector<double> change = bench.read(grad);
    const std::vector<double> m = open(bench, moments.m, moments.m_scale, quant::dynamic_values);
    const std::vector<double> v = open(bench, moments.v, moments.v_scale, quant::unsigned_dynamic_values);
    const std::vector<double> m_scale = bench.read(moments.m_scale), v_scale = bench.read(moments.v_scale);
    const auto nearest = [](double x, double largest, const std::array<float, 256>& map) {
      double best = map[0] * largest;
      for (const float value : map) {
        if (std::abs(value * largest - x) < std::abs(best - x)) best = value * largest;
      }
      return std::abs(best - x);
    };
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double x = 0.5 * g[i];
      EXPECT_NEAR(change[i], -0.1 * x / (std::abs(x) + 1e-6), 2e-6);
      const auto at = static_cast<std::int64_t>(i);
      const auto block = static_cast<std::size_t>(at / cols * moment_blocks(cols) + at % cols / moment_block);
      EXPECT_LE(std::abs(m[i] - 0.1 * x),
                nearest(0.1 * x, m_scale[block], quant::dynamic_values) + 1e-6 * m_scale[block]);
      EXPECT_LE(std::abs(v[i] - 0.01 * x * x),
                nearest(0.01 * x * x, v_scale[block], quant::unsigned_dynamic_values) + 1e-6 * v_scale[block]);
    }
  }
}

// A step is the two halves, to the last bit, on each device; and what one step keeps the next one reads.
TEST_P(OpsAdamW8bit, AStepIsItsTwoHalves) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols] :
         {std::pair<std::int64_t, std::int64_t>{3, 7}, {5, 256}, {2, 257}, {1, 8}, {70, 600}, {9, 2048}}) {
      SCOPED_TRACE(fmt::format("{} x {}, {}", rows, cols, name_of(dtype)));
      TestBench bench(GetParam());
      struct Weight {
        View value, low;
        Moments8 moments;
      };
      const auto make = [&, rows = rows, cols = cols] {
        Weight weight{bench.tensor(dtype, {rows, cols}, random_values(rows * cols, 3)), {}, zeros(bench, rows, cols)};
        if (dtype == DType::bf16)
          weight.low = bench.exec.arena().keep(MemoryClass::optimizer, "low", DType::i16, {rows, cols});
        if (dtype == DType::bf16) bench.exec.fill_zero(weight.low);
        return weight;
      };
      const Weight once = make(), halves = make();
      const View scale = bench.tensor(DType::f32, {1}, {0.5});
      AdamWSettings settings{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1, .step = 0};
      for (unsigned seed = 10; seed < 14; ++seed) {
        ++settings.step;
        std::vector<double> g = random_values(rows * cols, seed);
        for (std::size_t i = 0; i < g.size(); ++i) g[i] *= std::pow(10.0, -static_cast<double>(i % 7));  // all decades
        const View first = bench.tensor(DType::f32, {rows, cols}, g),
                   second = bench.tensor(DType::f32, {rows, cols}, g);
        adamw_step_8bit(bench.exec, once.value, once.low, first, once.moments, scale, settings);
        adamw_update_8bit(bench.exec, second, halves.moments, scale, settings);
        add_update(bench.exec, halves.value, halves.low, second, settings);
      }
      const auto expect_same = [&](ConstView x, ConstView y) {
        std::vector<std::byte> a(x.bytes()), b(y.bytes());
        bench.exec.download(a.data(), x);
        bench.exec.download(b.data(), y);
        EXPECT_TRUE(a == b);
      };
      expect_same(once.value, halves.value);
      if (!once.low.absent()) expect_same(once.low, halves.low);
      expect_same(once.moments.m, halves.moments.m);
      expect_same(once.moments.v, halves.moments.v);
      expect_same(once.moments.m_scale, halves.moments.m_scale);
      expect_same(once.moments.v_scale, halves.moments.v_scale);
    }
  }
}

// What would be read and written through the wrong half is refused, however many columns there are.
TEST_P(OpsAdamW8bit, AWeightHasItsLowHalfOrNone) {
  for (const std::int64_t cols : {8, 9}) {
    TestBench bench(GetParam());
    const auto tensor = [&](DType dtype) {
      return bench.exec.arena().keep(MemoryClass::optimizer, "x", dtype, {2, cols});
    };
    const View grad = tensor(DType::f32), half = tensor(DType::bf16), low = tensor(DType::i16);
    const Moments8 moments = zeros(bench, 2, cols);
    const auto step = [&](View value, View completes) {
      adamw_step_8bit(bench.exec, value, completes, grad, moments, {}, {.lr = 0.01});
    };
    EXPECT_THROW(step(half, {}), InternalError) << cols;
    EXPECT_THROW(step(tensor(DType::f32), low), InternalError) << cols;
    EXPECT_THROW(step(half, low.slice_rows(0, 1)), InternalError) << cols;
  }
}

INSTANTIATE_TEST_SUITE_P(, OpsAdamW8bit, ::testing::ValuesIn(devices()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace inlay::ops
