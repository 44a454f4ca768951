#pragma once

#include <gtest/gtest.h>

#include <complex>
#include <string>
#include <tuple>
#include <vector>

#include "support/device_tensors.h"

// What the tests of row-wise ops share: (device, dtype) parameters, awkward shapes, and gradients by complex step.
namespace inlay::testing {

using Complex = std::complex<double>;

class DeviceDType : public ::testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};
inline std::string device_dtype_name(const ::testing::TestParamInfo<std::tuple<Device, DType>>& info) {
  return case_name(std::get<0>(info.param), std::get<1>(info.param));
}
inline auto on_all_devices() {
  return ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(DType::f32, DType::bf16));
}

struct RowsCols {
  std::int64_t rows, cols;
};
inline const std::vector<RowsCols>& awkward_shapes() {
  static const std::vector<RowsCols> shapes = {{1, 1}, {1, 7}, {3, 5}, {17, 64}, {13, 288}, {5, 4096}, {1100, 48}};
  return shapes;
}

// The gradient of an analytic function, exact to rounding: the imaginary part of f(x + i·h) is h·f'(x), and h may be so
// small that nothing cancels. Entries that are not among `coordinates` stay 0.
template <class Function>
std::vector<double> complex_step(const std::vector<double>& at, const std::vector<std::size_t>& coordinates,
                                 const Function& function) {
  constexpr double h = 1e-40;
  std::vector<Complex> point(at.begin(), at.end());
  std::vector<double> gradient(at.size(), 0.0);
  for (const std::size_t i : coordinates) {
    point[i] = Complex(at[i], h);
    gradient[i] = Complex(function(point)).imag() / h;
    point[i] = at[i];
  }
  return gradient;
}

// All coordinates of a short row, every 61st of a long one.
inline std::vector<std::size_t> sampled(std::int64_t count) {
  std::vector<std::size_t> result;
  for (std::int64_t i = 0; i<count; i += count> 512 ? 61 : 1) result.push_back(static_cast<std::size_t>(i));
  return result;
}

inline std::vector<double> pick(const std::vector<double>& values, const std::vector<std::size_t>& at) {
  std::vector<double> result;
  for (const std::size_t i : at) result.push_back(values[i]);
  return result;
}

inline std::vector<double> row_of(const std::vector<double>& values, std::int64_t row, std::int64_t cols) {
  return {values.begin() + row * cols, values.begin() + (row + 1) * cols};
}

// A poisoned matrix of `rows` with `gap` more columns on either side of the `cols` that are used: the strided window,
// and the whole, so that a test can see that nothing else was touched.
struct Window {
  View whole, view;
};
inline Window strided(TestBench& bench, DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 3) {
  const View whole = bench.poisoned(dtype, {rows, cols + 2 * gap});
  return {whole, whole.slice_cols(gap, gap + cols)};
}
// The same with the window filled.
inline Window strided(TestBench& bench, DType dtype, std::int64_t rows, std::int64_t cols,
                      const std::vector<double>& values, std::int64_t gap = 3) {
  std::vector<double> all(static_cast<std::size_t>(rows * (cols + 2 * gap)), 777.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      all[static_cast<std::size_t>(row * (cols + 2 * gap) + gap + col)] =
          values[static_cast<std::size_t>(row * cols + col)];
    }
  }
  const View whole = bench.tensor(dtype, {rows, cols + 2 * gap}, all);
  return {whole, whole.slice_cols(gap, gap + cols)};
}
// Whether the columns around a window are as strided() left them.
inline bool surroundings_intact(TestBench& bench, const Window& window) {
  const std::int64_t gap = (window.whole.dim(1) - window.view.dim(1)) / 2;
  for (const View& side :
       {window.whole.slice_cols(0, gap), window.whole.slice_cols(gap + window.view.dim(1), window.whole.dim(1))}) {
    for (const double value : bench.read(side)) {
      if (!std::isnan(value) && std::abs(value - 777.0) > 2.0) return false;
    }
  }
  return true;
}

inline std::vector<double> sum_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result = a;
  for (std::size_t i = 0; i < a.size(); ++i) result[i] += b[i];
  return result;
}

}  // namespace inlay::testing
