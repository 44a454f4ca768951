#include "train/metrics.h"

#include <fstream>
#include <optional>
#include <utility>

#include "core/error.h"
#include "data/line_reader.h"
#include "io/paths.h"

namespace inlay::train {

void read_metrics(const std::filesystem::path& path,
                  const std::function<void(std::string_view line, const io::Json& record)>& visit) {
  data::LineReader lines(path);
  std::string broken;  // the error of a line that turns out not to be the last
  while (const auto line = lines.next()) {
    if (!broken.empty()) user_error("{}; remove the line to continue", broken);
    std::optional<io::Json> record;
    try {
      record = io::Json::parse(*line, fmt::format("{}:{}", path.string(), lines.line()));
    } catch (const UserError& error) {
      broken = error.what();
      continue;
    }
    visit(*line, *record);
  }
}

namespace {

// Of a step there are its own record, one of an evaluation and one of samples.
template <class Has>
std::string kind_of(const Has& has) {
  for (const char* kind : {"eval_loss", "samples"}) {
    if (has(kind)) return kind;
  }
  return "loss";
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t resume_step) : resume_step_(resume_step) {
  std::string kept;
  if (resume_step > 0 && io::exists(path)) {
    read_metrics(path, [&](std::string_view line, const io::Json& record) {
      const std::int64_t step = record.integer("step", io::non_negative_integer);
      if (step > resume_step) return;
      kept.append(line).append("\n");
      if (step == resume_step) kept_.insert(kind_of([&](const char* key) { return record.has(key); }));
    });
  }
  io::write_file_atomic(path, kept);
  file_.emplace(path);
}

bool MetricsFile::write(const nlohmann::ordered_json& record) {
  const bool known = record.at("step") == resume_step_ &&
                     kept_.contains(kind_of([&](const char* key) { return record.contains(key); }));
  if (file_ && !known) file_->append(record.dump() + "\n");
  return !known;
}

std::size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  return 0;
}

}  // namespace inlay::train
