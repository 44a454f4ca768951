#include "support/device_tensors.h"

#include <cstdlib>
#include <cstring>
#include <limits>

namespace inlay::testing {

namespace {

template <class T>
std::vector<std::byte> encode(const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T element;
    if constexpr (std::is_arithmetic_v<T>) {
      element = static_cast<T>(values[i]);
    } else {
      element = T(static_cast<float>(values[i]));
    }
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
  return bytes;
}

template <class T>
double decode(const std::byte* at) {
  T element;
  std::memcpy(&element, at, sizeof(T));
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(element);
  } else {
    return static_cast<double>(static_cast<float>(element));
  }
}

std::vector<std::byte> encode(const std::vector<double>& values, DType dtype) {
  switch (dtype) {
    case DType::f64: return encode<double>(values);
    case DType::f32: return encode<float>(values);
    case DType::bf16: return encode<bf16>(values);
    case DType::f16: return encode<f16>(values);
    case DType::i32: return encode<std::int32_t>(values);
    case DType::i16: return encode<std::int16_t>(values);
    default: INLAY_ASSERT(false, "no test tensors of {}", name_of(dtype));
  }
  return {};
}

double decode(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::f64: return decode<double>(at);
    case DType::f32: return decode<float>(at);
    case DType::bf16: return decode<bf16>(at);
    case DType::f16: return decode<f16>(at);
    case DType::i32: return decode<std::int32_t>(at);
    case DType::i16: return decode<std::int16_t>(at);
    default: INLAY_ASSERT(false, "no test tensors of {}", name_of(dtype));
  }
  return 0;
}

}  // namespace

std::vector<Device> devices() {
  std::vector<Device> result = {Device::cpu};
  const char* wanted = std::getenv("INLAY_TEST_GPU");
  if (backend::cuda::available() || (wanted != nullptr && std::string(wanted) == "1")) result.push_back(Device::cuda);
  return result;
}

View TestBench::tensor(DType dtype, Shape shape, const std::vector<double>& values) {
  INLAY_ASSERT(static_cast<std::int64_t>(values.size()) == shape.size(), "{} values for {}", values.size(),
               shape.str());
  View view = exec.arena().keep(MemoryClass::activations, "test tensor", dtype, shape);
  exec.upload(view, encode(values, dtype).data());
  return view;
}

View TestBench::poisoned(DType dtype, Shape shape) {
  View view = exec.arena().keep(MemoryClass::activations, "poisoned test tensor", dtype, shape);
  const std::vector<std::byte> bytes(view.bytes(), std::byte{0xFF});
  exec.upload(view, bytes.data());
  return view;
}

View TestBench::indices(const std::vector<std::int32_t>& values) {
  View view =
      exec.arena().keep(MemoryClass::batch, "test indices", DType::i32, {static_cast<std::int64_t>(values.size())});
  exec.upload(view, values.data());
  return view;
}

std::vector<double> TestBench::read(ConstView view) {
  if (view.size() == 0) return {};
  // The smallest contiguous range that holds the view, then its elements in order.
  std::int64_t span = 1;
  for (int axis = 0; axis < view.rank(); ++axis) span += (view.dim(axis) - 1) * view.stride(axis);
  const std::size_t width = size_of(view.dtype());
  std::vector<std::byte> bytes(static_cast<std::size_t>(span) * width);
  exec.download(bytes.data(), ConstView(view.data(), view.dtype(), {span}));
  std::vector<double> values;
  for (std::int64_t index = 0; index < view.size(); ++index) {
    std::int64_t rest = index, offset = 0;
    for (int axis = view.rank() - 1; axis >= 0; --axis) {
      offset += rest % view.dim(axis) * view.stride(axis);
      rest /= view.dim(axis);
    }
    values.push_back(decode(bytes.data() + static_cast<std::size_t>(offset) * width, view.dtype()));
  }
  return values;
}

std::vector<std::int32_t> TestBench::read_indices(ConstView view) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(view.size()));
  exec.download(values.data(), view);
  return values;
}

std::vector<double> random_values(std::int64_t count, std::uint64_t seed, double scale) {
  const Philox philox{seed};
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * philox.normal(i, 7);
  return values;
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  const std::vector<std::byte> bytes = encode(values, dtype);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = decode(bytes.data() + i * size_of(dtype), dtype);
  return values;
}

double relative_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i])) return std::numeric_limits<double>::infinity();
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

std::string case_name(Device device, DType dtype) {
  return std::string(name_of(device)) + "_" + std::string(name_of(dtype));
}

}  // namespace inlay::testing
