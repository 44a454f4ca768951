#pragma once

#include <nlohmann/json.hpp>

#include "support/command.h"

namespace inlay::testing {

// A run of a few steps on a tiny model, started as a user starts it. In memory where there is such a folder.
class SmallRun {
 public:
  SmallRun() {
    std::optional<Setting> in_memory;
    if (std::filesystem::is_directory("/dev/shm")) in_memory.emplace("TMPDIR", "/dev/shm");
    folder_.emplace();
    std::filesystem::copy(source_folder() / "tests/golden/models/llama_llama3_tied", *folder_ / "base");
    for (const char* name : {"expected.json", "expected.safetensors"})
      std::filesystem::remove(*folder_ / "base" / name);
  }

  std::string dtype = "fp32";

  const TempFolder& folder() const { return *folder_; }
  std::filesystem::path path(const std::string& name = "") const { return folder() / "run" / name; }
  std::filesystem::path data() const { return folder() / "base/data.jsonl"; }
  // More of the configuration that evaluates on the training data.
  std::string evaluation() const { return "test_datasets: [{path: " + data().string() + "}]\n"; }

  CommandResult train(const std::string& more, std::vector<std::string> arguments = {},
                      CommandLimits limits = {}) const {
    folder().write("run.yaml", "base_model: " + (folder() / "base").string() + "\noutput_dir: " + path().string() +
                                   "\ndatasets: [{path: " + data().string() +
                                   "}]\nlearning_rate: 1.0e-3\nlr_scheduler: constant\nsequence_len: 64\n"
                                   "micro_batch_size: 2\nsample_packing: false\ndevice: cpu\n"
                                   "dataset_prepared_path: off\ndtype: " +
                                   dtype + "\n" + more);
    arguments.insert(arguments.begin(), {"train", folder() / "run.yaml"});
    limits.environment.push_back({"OMP_NUM_THREADS", "1"});
    return inlay(arguments, std::move(limits));
  }

  static std::vector<nlohmann::json> records_of(const std::string& lines) {
    std::vector<nlohmann::json> records;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) records.push_back(nlohmann::json::parse(line));
    return records;
  }
  std::vector<nlohmann::json> metrics() const { return records_of(read_text(path("metrics.jsonl"))); }
  nlohmann::json summary() const { return nlohmann::json::parse(read_text(path("summary.json"))); }
  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      const std::string name = entry.path().filename();
      if (name.starts_with("checkpoint-")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::optional<TempFolder> folder_;
};

}  // namespace inlay::testing
