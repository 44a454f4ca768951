#include "train/metrics.h"

#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.h"
#include "io/file.h"

namespace inlay::train {

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t resume_step) : path_(path) {
  std::string kept;
  if (resume_step > 0 && std::filesystem::exists(path)) {
    std::ifstream old(path);
    for (std::string line; std::getline(old, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object() && record.value("step", std::int64_t{0}) <= resume_step) kept += line + "\n";
    }
  }
  io::write_file_atomic(path, kept);
  file_.reset(std::fopen(path.c_str(), "a"));
  if (!file_) user_error("{}: cannot be opened for writing: {}", path.string(), std::strerror(errno));
}

void MetricsFile::write(const nlohmann::ordered_json& record) {
  const std::string line = record.dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    user_error("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  }
}

std::size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

double matmul_peak(const std::string& device_name) {
  static constexpr std::pair<const char*, double> known[] = {{"B200", 2250e12}, {"H200", 989e12}, {"H100 PCIe", 756e12},
                                                             {"H100", 989e12},  {"H800", 989e12}, {"A100", 312e12},
                                                             {"A800", 312e12},  {"L40S", 362e12}, {"RTX 4090", 165e12}};
  for (const auto& [name, peak] : known) {
    if (device_name.find(name) != std::string::npos) return peak;
  }
  return 0;
}

}  // namespace inlay::train
