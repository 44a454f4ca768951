#include "weights/masters.h"

#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

ConstView master_of(Exec& exec, const Parameter& parameter) {
  return master_of(exec, parameter, parameter.first_row(), parameter.end_row());
}

ConstView master_of(Exec& exec, const Parameter& parameter, std::int64_t row, std::int64_t end) {
  const std::int64_t first = parameter.first_row();
  const View value = parameter.my_value().slice_rows(row - first, end - first);
  if (parameter.low.absent() && value.dtype() == DType::f32) return value;
  View master = exec.arena().scratch("fp32 master", DType::f32, value.shape());
  if (parameter.low.absent()) {
    ops::cast(exec, master, value);
  } else {
    ops::join_master(exec, master, value, parameter.low.slice_rows(row - first, end - first));
  }
  return master;
}

std::vector<float> read_master(Exec& device, const Parameter& parameter, std::int64_t row, std::int64_t end) {
  Exec& exec = parameter.home(device);
  const std::int64_t first = parameter.first_row();
  const ConstView value = parameter.my_value().slice_rows(row - first, end - first);
  std::vector<float> result(static_cast<std::size_t>(value.size()));
  if (value.dtype() == DType::f32) {
    exec.download(result.data(), value);
    return result;
  }
  std::vector<bf16> rounded(result.size());
  std::vector<std::int16_t> low(result.size());
  exec.download(rounded.data(), value);
  if (!parameter.low.absent()) exec.download(low.data(), parameter.low.slice_rows(row - first, end - first));
  // Without lower halves the value is all there is: zeros complete it to itself.
  ops::join_master(exec.host(), View(result.data(), DType::f32, value.shape()),
                   ConstView(rounded.data(), DType::bf16, value.shape()),
                   ConstView(low.data(), DType::i16, value.shape()));
  return result;
}

void set_master(Exec& exec, Parameter& parameter, const void* host) {
  if (exec.planning()) return;
  if (parameter.value.dtype() == DType::f32) return exec.upload(parameter.value, host);
  const auto size = static_cast<std::size_t>(parameter.size());
  std::vector<bf16> rounded(size);
  std::vector<std::int16_t> low(size);
  ops::split_master(exec.host(), View(rounded.data(), DType::bf16, parameter.shape),
                    View(low.data(), DType::i16, parameter.shape), ConstView(host, DType::f32, parameter.shape));
  exec.upload(parameter.value, rounded.data());
  if (!parameter.low.absent()) exec.upload(parameter.low, low.data());
}

}  // namespace inlay::weights
