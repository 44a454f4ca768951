#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "io/file.h"

namespace inlay::train {

// metrics.jsonl: one object per line. What is written outlives the process; after sync() also the machine.
class MetricsFile {
 public:
  // Continues an existing file after the lines of the given step (0: starts anew). A line that is not a record of a
  // step is a UserError that names it; half a line at the end, which a killed process may have left, goes.
  MetricsFile(const std::filesystem::path& path, std::int64_t resume_step);

  void write(const nlohmann::ordered_json& record) { file_.append(record.dump() + "\n"); }
  void sync() { file_.sync(); }

 private:
  io::AppendFile file_;
};

// Anonymous memory of this process that is resident now: what the run really holds of the host.
std::size_t resident_bytes();

// Dense bf16 multiply-add ceiling of a GPU by its name, in FLOP/s; 0 where it is not known.
double matmul_peak(const std::string& device_name);

}  // namespace inlay::train
