#include "ops/fp8.h"

#include <bit>
#include <cstring>
#include <limits>

#include "core/fp8.h"
#include "fp8_forms.h"
#include "op_cases.h"
#include "ops/swiglu.h"

namespace inlay::ops {
namespace {

using namespace inlay::testing;  // NOLINT

constexpr std::array formats = {DType::e4m3, DType::e5m2};

// All finite numbers of a format that are not negative, ascending: code i stands for the i-th.
std::vector<double> table_of(DType format) {
  std::vector<double> values;
  for (int code = 0; code < 128; ++code) {
    const double value = fp8::value_of(format, static_cast<std::uint8_t>(code));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

// The code by search: the nearest, of two equally near ones that with the even mantissa; NaN is 0x7f.
std::uint8_t searched_code(const std::vector<double>& table, float x) {
  if (std::isnan(x)) return 0x7f;
  const double m = std::abs(static_cast<double>(x));
  std::size_t code = std::min<std::size_t>(
      static_cast<std::size_t>(std::lower_bound(table.begin(), table.end(), m) - table.begin()), table.size() - 1);
  if (code > 0 && m < table[code]) {
    const double up = table[code] - m, down = m - table[code - 1];
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80u : 0u));
}

TEST(OpsFp8Codes, AreTheNearest) {
  EXPECT_EQ(table_of(DType::e4m3).back(), 448);
  EXPECT_EQ(table_of(DType::e5m2).back(), 57344);
  EXPECT_EQ(table_of(DType::e4m3)[1], 0x1p-9);
  EXPECT_EQ(table_of(DType::e5m2)[1], 0x1p-16);
  for (const DType format : formats) {
    const std::vector<double> table = table_of(format);
    const auto check = [&](float x) {
      for (const float signed_x : {x, -x}) {
        ASSERT_EQ(fp8::code_of(format, signed_x), searched_code(table, signed_x)) << name_of(format) << " " << signed_x;
      }
    };
    for (std::size_t i = 0; i + 1 < table.size(); ++i) {
      const auto middle = static_cast<float>((table[i] + table[i + 1]) / 2);
      for (const float x : {static_cast<float>(table[i]), middle}) {
        check(x);
        check(std::nextafter(x, std::numeric_limits<float>::infinity()));
        check(std::nextafter(x, -std::numeric_limits<float>::infinity()));
      }
    }
    for (const float x : {1e-45f, 1e-30f, 449.0f, 1e5f, 1e38f, std::numeric_limits<float>::infinity()}) check(x);
    EXPECT_EQ(fp8::code_of(format, std::numeric_limits<float>::quiet_NaN()), 0x7f);
  }
}

// Element by element, by the definition: which numbers share a scale, their largest magnitude, the nearest code.
void expect_form(const ReadForm& form, const Fp8Matrix& m, const std::function<float(std::int64_t, std::int64_t)>& at) {
  const std::vector<double> table = table_of(m.codes.dtype());
  const auto largest = static_cast<float>(table.back());
  const auto block = [](std::int64_t i) { return i / 128; };
  const auto shares = [&](std::int64_t r, std::int64_t c, std::int64_t row, std::int64_t col) {
    switch (m.scaling) {
      case Fp8Scaling::tensor: return true;
      case Fp8Scaling::row: return r == row;
      case Fp8Scaling::vector: return r == row && block(c) == block(col);
      case Fp8Scaling::square: return block(r) == block(row) && block(c) == block(col);
    }
    return false;
  };
  std::map<std::size_t, float> magnitudes;  // by the scale's place
  const auto place = [&](std::int64_t row, std::int64_t col) -> std::size_t {
    switch (m.scaling) {
      case Fp8Scaling::tensor: return 0;
      case Fp8Scaling::row: return static_cast<std::size_t>(row);
      case Fp8Scaling::vector: return static_cast<std::size_t>(block(col) * m.scales.dim(1) + row);
      case Fp8Scaling::square: return static_cast<std::size_t>(block(row) * m.scales.dim(1) + block(col));
    }
    return 0;
  };
  for (std::int64_t row = 0; row < m.rows; ++row) {
    for (std::int64_t col = 0; col < m.cols; ++col) {
      ASSERT_TRUE(shares(row, col, row, col));
      float& magnitude = magnitudes[place(row, col)];
      const float x = std::abs(at(row, col));
      magnitude =
          std::isnan(x) || std::isnan(magnitude) ? std::numeric_limits<float>::quiet_NaN() : std::max(magnitude, x);
    }
  }
  for (auto& [where, magnitude] : magnitudes) {
    if (magnitude < 0x1p-100f) magnitude = 0x1p-100f;
    const float scale = magnitude / largest, found = form.scales[where];
    ASSERT_TRUE(std::isnan(scale) ? std::isnan(found) : found == scale) << "scale " << where;
  }
  for (std::int64_t row = 0; row < m.rows; ++row) {
    for (std::int64_t col = 0; col < m.codes.dim(1); ++col) {
      const std::uint8_t code = form.codes[static_cast<std::size_t>(row * m.codes.dim(1) + col)];
      if (col >= m.cols) {
        ASSERT_EQ(code & 0x7f, 0) << "margin " << row << " " << col;
        continue;
      }
      const float inverse = largest / magnitudes[place(row, col)];
      ASSERT_EQ(code, searched_code(table, at(row, col) * inverse)) << row << " " << col << " of " << at(row, col);
    }
  }
}

class OpsFp8 : public DeviceDType {
 protected:
  // Sizes from denormal to huge, rows of zeros, columns of zeros.
  std::vector<double> values(std::int64_t rows, std::int64_t cols) const {
    std::vector<double> result = random_values(rows * cols, 11);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        double& x = result[static_cast<std::size_t>(row * cols + col)];
        if (row % 7 == 3 || col % 11 == 5) x = 0;
        if (row % 13 == 1) x *= 1e-39;
        if (row % 13 == 2) x *= 1e30;
        if (row % 13 == 4) x *= 1e-20;
        if (col % 17 == 2) x *= 1e-4;
      }
    }
    return rounded(result, dtype());
  }
};

constexpr RowsCols shapes[] = {{1, 1}, {3, 5}, {128, 128}, {130, 257}, {300, 16}};

TEST_P(OpsFp8, FormsMatchTheDefinitionBitForBit) {
  for (const auto& [rows, cols] : shapes) {
    const auto x = values(rows, cols);
    const auto at = [&, cols = cols](std::int64_t r, std::int64_t c) {
      return static_cast<float>(x[static_cast<std::size_t>(r * cols + c)]);
    };
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::row, Fp8Recipe::tensor}) {
      for (const Fp8Role role : {Fp8Role::input, Fp8Role::gradient, Fp8Role::weight}) {
        for (const Fp8Use use : {Fp8Use::both, Fp8Use::rows, Fp8Use::columns}) {
          if (use != Fp8Use::both && rows != 130) continue;
          SCOPED_TRACE(fmt::format("{} x {}, {}, role {}, use {}", rows, cols, name_of(recipe), static_cast<int>(role),
                                   static_cast<int>(use)));
          TestBench bench(device(), std::size_t{64} << 20);
          const Fp8Settings settings{.recipe = recipe, .gradients = DType::e5m2};
          const Fp8Forms forms = keep_fp8(bench.exec, MemoryClass::weights, "x", settings, role, use, rows, cols);
          poison_forms(bench, forms);
          quantise_fp8(bench.exec, forms, strided(bench, dtype(), rows, cols, x).view);
          if (use != Fp8Use::columns) expect_form(read_form(bench, forms.rows), forms.rows, at);
          if (use == Fp8Use::rows) continue;
          expect_form(read_form(bench, forms.columns), forms.columns,
                      [&](std::int64_t r, std::int64_t c) { return at(c, r); });
          // Contiguous rows take the way of vectors.
          const Fp8Forms again = keep_fp8(bench.exec, MemoryClass::weights, "x", settings, role, use, rows, cols);
          poison_forms(bench, again);
          quantise_fp8(bench.exec, again, bench.tensor(dtype(), {rows, cols}, x));
          expect_form(read_form(bench, again.columns), again.columns,
                      [&](std::int64_t r, std::int64_t c) { return at(c, r); });
        }
      }
    }
  }
}

TEST_P(OpsFp8, WhatIsNotFiniteSpoilsItsBlockAlone) {
  constexpr std::int64_t rows = 140, cols = 272;
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    auto x = rounded(random_values(rows * cols, 3), dtype());
    x[2 * cols + 3] = bad;
    TestBench bench(device(), std::size_t{64} << 20);
    const Fp8Forms forms =
        keep_fp8(bench.exec, MemoryClass::weights, "x", {}, Fp8Role::gradient, Fp8Use::both, rows, cols);
    quantise_fp8(bench.exec, forms, bench.tensor(dtype(), {rows, cols}, x));
    const auto at = [&](std::int64_t r, std::int64_t c) {
      return static_cast<float>(x[static_cast<std::size_t>(r * cols + c)]);
    };
    const ReadForm by_rows = read_form(bench, forms.rows);
    expect_form(by_rows, forms.rows, at);
    expect_form(read_form(bench, forms.columns), forms.columns,
                [&](std::int64_t r, std::int64_t c) { return at(c, r); });
    const auto is_nan = [&](std::int64_t r, std::int64_t c) {
      return (by_rows.codes[static_cast<std::size_t>(r * forms.rows.codes.dim(1) + c)] & 0x7f) == 0x7f;
    };
    EXPECT_TRUE(is_nan(2, 3));
    EXPECT_FALSE(is_nan(2, 200));
    EXPECT_FALSE(is_nan(3, 3));
  }
}

// swiglu that writes operands of products gives the very codes that swiglu and then quantise_fp8 give.
TEST_P(OpsFp8, SwigluInOnePassIsSwigluAndThenThis) {
  for (const auto& [rows, width] : {RowsCols{1, 128}, RowsCols{131, 256}, RowsCols{40, 48}}) {
    for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::tensor}) {
      SCOPED_TRACE(fmt::format("{} x {}, {}", rows, width, name_of(recipe)));
      TestBench bench(device(), std::size_t{64} << 20);
      const Fp8Settings settings{.recipe = recipe};
      const View gate_up =
          bench.tensor(dtype(), {rows, 2 * width}, rounded(random_values(rows * 2 * width, 1, 3.0), dtype()));
      const View dact = bench.tensor(dtype(), {rows, width}, rounded(random_values(rows * width, 2), dtype()));
      const auto forms = [&, rows = rows](Fp8Role role, std::int64_t cols) {
        return poisoned_forms(bench, settings, role, Fp8Use::both, rows, cols);
      };
      const View act = bench.poisoned(dtype(), {rows, width}), dgate_up = bench.poisoned(dtype(), {rows, 2 * width});
      const Fp8Forms act_forms = forms(Fp8Role::input, width), act_plain = forms(Fp8Role::input, width);
      swiglu_forward(bench.exec, act, gate_up);
      quantise_fp8(bench.exec, act_plain, act);
      swiglu_forward_fp8(bench.exec, act_forms, gate_up);
      expect_same_forms(bench, act_forms, act_plain);

      const Fp8Forms d_forms = forms(Fp8Role::gradient, 2 * width), d_plain = forms(Fp8Role::gradient, 2 * width);
      poison_forms(bench, act_forms);
      swiglu_backward(bench.exec, dgate_up, act, dact, gate_up);
      quantise_fp8(bench.exec, d_plain, dgate_up);
      quantise_fp8(bench.exec, act_plain, act);
      swiglu_backward_fp8(bench.exec, d_forms, act_forms, dact, gate_up);
      expect_same_forms(bench, d_forms, d_plain);
      expect_same_forms(bench, act_forms, act_plain);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpsFp8, on_all_devices(), device_dtype_name);

}  // namespace
}  // namespace inlay::ops
