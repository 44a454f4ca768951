#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "io/file.h"
#include "io/json.h"

namespace inlay::train {

// metrics.jsonl: one object per line. What is written outlives the process; after sync() also the machine.
class MetricsFile {
 public:
  // Writes nothing: of many ranks one keeps the file.
  MetricsFile() = default;
  // Continues an existing file after the lines of the given step (0: starts anew).
  MetricsFile(const std::filesystem::path& path, std::int64_t resume_step);

  // A record of the step that the file was continued after is not written again: a run that was killed may have
  // evaluated and sampled after its last checkpoint. False for such a one.
  bool write(const nlohmann::ordered_json& record);
  void sync() {
    if (file_) file_->sync();
  }

 private:
  std::int64_t resume_step_ = 0;
  std::set<std::string> kept_;  // the kinds of records of that step
  std::optional<io::AppendFile> file_;
};

// The records of such a file. A line that is not JSON is a UserError that names it, and so is what the visitor finds
// wrong with a record; half a line at the end, which a killed process may have left, is passed over.
void read_metrics(const std::filesystem::path& path,
                  const std::function<void(std::string_view line, const io::Json& record)>& visit);

// Anonymous memory of this process that is resident now: what the run really holds of the host.
std::size_t resident_bytes();

}  // namespace inlay::train
