#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/exec.h"
#include "core/philox.h"

// What the tests of ops share: the devices to test on, tensors made from plain numbers, and a comparison that fails on
// NaN. Numbers travel as double, rounded to the tensor's dtype on the way in.
namespace inlay::testing {

// The CPU, and the GPU where there is one. INLAY_TEST_GPU=1 makes a missing GPU a failure instead of a silence.
std::vector<Device> devices();

// An Exec with an arena for one test.
class TestBench {
 public:
  explicit TestBench(Device device, std::size_t arena_bytes = std::size_t{512} << 20, std::size_t host_bytes = 0)
      : exec(backend::Exec::runner(device, arena_bytes, host_bytes)) {}

  View tensor(DType dtype, Shape shape, const std::vector<double>& values);
  View poisoned(DType dtype, Shape shape);  // every byte 0xFF: NaN in any floating dtype
  View indices(const std::vector<std::int32_t>& values);
  std::vector<double> read(ConstView view);  // strided views too
  std::vector<std::int32_t> read_indices(ConstView view);

  backend::Exec exec;
};

// Standard normal numbers times scale, the same for the same seed.
std::vector<double> random_values(std::int64_t count, std::uint64_t seed, double scale = 1.0);
// What a dtype makes of the values.
std::vector<double> rounded(std::vector<double> values, DType dtype);

// ‖a − b‖ / max(‖b‖, tiny); infinite where a NaN is involved or the sizes differ.
double relative_error(const std::vector<double>& actual, const std::vector<double>& expected);

// Tolerance of a result that is stored in the dtype and summed in fp32.
inline double tolerance(DType dtype) { return dtype == DType::bf16 ? 6e-3 : dtype == DType::f16 ? 1e-3 : 2e-6; }

// "cpu_bf16": names for parameterised tests.
std::string case_name(Device device, DType dtype);

}  // namespace inlay::testing
