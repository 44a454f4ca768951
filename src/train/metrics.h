#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace inlay::train {

// metrics.jsonl: one object a line, on disk after every line.
class MetricsFile {
 public:
  // Continues an existing file after the line of the given step (0: starts anew).
  MetricsFile(const std::filesystem::path& path, std::int64_t resume_step);

  void write(const nlohmann::ordered_json& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// Anonymous memory of this process that is resident now: what the run really holds of the host.
std::size_t resident_bytes();

// Dense bf16 multiply-add ceiling of a GPU by its name, in FLOP/s; 0 where it is not known.
double matmul_peak(const std::string& device_name);

}  // namespace inlay::train
