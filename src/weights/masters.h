#pragma once

#include <vector>

#include "weights/parameter.h"

// The fp32 numbers of a parameter that trains: itself, or its value and what completes it.
namespace inlay::weights {

// Those that this process has, or some rows of them; in scratch where they must be joined.
ConstView master_of(Exec& exec, const Parameter& parameter);
ConstView master_of(Exec& exec, const Parameter& parameter, std::int64_t row, std::int64_t end);
// Some rows in host memory. Waits for the device.
std::vector<float> read_master(Exec& exec, const Parameter& parameter, std::int64_t row, std::int64_t end);
// Takes them from host memory, in fp32.
void set_master(Exec& exec, Parameter& parameter, const void* host);

}  // namespace inlay::weights
