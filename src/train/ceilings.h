#pragma once

#include <filesystem>
#include <string>

#include "backend/exec.h"

// Rates that large pieces of work reach on a machine: what estimates and shares of a peak are measured by.
namespace inlay::train {

struct Ceilings {
  double matmul = 0;     // FLOP/s of a large product in the compute dtype, held for a second
  double fp8 = 0;        // the same in fp8; that of the compute dtype where the device has no such products
  double attention = 0;  // FLOP/s of causal attention, there and back
  double memory = 0;     // bytes/s of the device's memory, read and written
  double link = 0;       // bytes/s between host and device, each way
  double host = 0;       // bytes/s of the host's memory under AdamW
  std::string source;    // where they come from, for people

  double product_seconds(const backend::Work& work) const;
  // FLOP/s of a mix of products like this one, with attention's as if in the compute dtype.
  double rate_of(const backend::Work& work) const;
};

enum class Remeasure : bool { no, yes };

// Those of the machine at hand: measured once, in some seconds, and kept in the cache folder for this device, its
// driver and the dtype. Where the device is missing, an H200's. Says what it does through `messages`.
Ceilings machine_ceilings(Device device, DType compute, Remeasure again, const backend::MessageSink& messages);

// An H200's (docs/numbers.md).
Ceilings h200_ceilings();

// Measures now.
Ceilings measure_ceilings(Device device, DType compute);
// FLOP/s of a large product of random numbers (e4m3: by blocks of 128): the median of as many as fill the time, ten at
// least. A GPU under its power limit slows down within a second.
double measured_matmul_rate(Device device, DType dtype, double seconds = 0);

// The kind of machine that rates are kept for.
std::string machine_name(Device device);
// The file, and what it says; a file that is missing, damaged or of another machine says nothing.
std::filesystem::path ceilings_file(const std::string& machine);
bool read_ceilings(const std::filesystem::path& file, const std::string& machine, Ceilings& ceilings);
void write_ceilings(const std::filesystem::path& file, const std::string& machine, const Ceilings& ceilings);

}  // namespace inlay::train
