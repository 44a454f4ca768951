#include "train/output_folder.h"

#include <algorithm>
#include <sstream>

#include "adapter/adapter_file.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "io/manifest.h"
#include "io/paths.h"
#include "train/checkpoint.h"
#include "train/model_card.h"

namespace inlay::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* summary_file = "summary.json";
constexpr const char* metrics_file = "metrics.jsonl";
constexpr const char* result_folder = ".result";  // the result in the making, or half moved into place

bool is_weights_file(const std::string& name) {
  return io::is_weights_file(name) || name == adapter::tensors_file || name == adapter::config_file;
}

std::vector<fs::path> weights_in(const fs::path& folder) {
  std::vector<fs::path> weights;
  for (const fs::path& file : io::entries_of(folder)) {
    if (is_weights_file(file.filename().string())) weights.push_back(file);
  }
  return weights;
}

// The first of NAME-1, NAME-2, ... that is free.
fs::path free_name(const fs::path& folder, const std::string& stem, const std::string& extension) {
  for (int number = 1;; ++number) {
    fs::path name = folder / fmt::format("{}-{}{}", stem, number, extension);
    if (!io::exists(name)) return name;
  }
}

// What a result is never seen without comes later: texts first, then weights, their index, and the summary at last.
int place_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name == summary_file) return 3;
  if (!is_weights_file(name)) return 0;
  return name.starts_with("model-") || name == adapter::config_file ? 1 : 2;
}

// A user's own words about the result are not replaced by the base model's.
bool is_prose(const fs::path& file) {
  return file.extension() == ".md" || file.filename() == "LICENSE" || file.filename() == "NOTICE";
}

bool verify(Communicator& ranks, const fs::path& checkpoint, Console& console) {
  return verify_checkpoint(ranks, checkpoint, [&](std::uint64_t done, std::uint64_t total) {
    stop_where_asked("verifying " + checkpoint.string());
    console.progress("verifying the checkpoint", done, total);
  });
}

}  // namespace

OutputFolder::OutputFolder(Communicator& ranks, fs::path path, const fs::path& base_model, bool resume,
                           Console& console)
    : ranks_(ranks), path_(std::move(path)) {
  by_leader(ranks_, "the output folder", [&] { take(base_model, resume); });
  finished_ = ranks_.any(finished_, "the output folder");
  if (resume) checkpoint_ = verified_checkpoint(console);
}

void OutputFolder::take(const fs::path& base_model, bool resume) {
  if (io::exists(path_) && io::real_path(path_) == io::real_path(base_model)) {
    user_error("{}: output_dir is the base model's folder; choose another", path_.string());
  }
  if (resume && !io::is_folder(path_)) {
    user_error("{}: --resume finds no checkpoint there; start without it", path_.string());
  }
  io::create_folders(path_);
  lock_.emplace(path_);
  finished_ = io::exists(path_ / summary_file);
  if (lock_->held()) remove_leftovers();
  check_start(resume);
}

void OutputFolder::check_start(bool resume) const {
  const auto checkpoints = checkpoints_in(path_);
  const bool holds_checkpoint = !checkpoints.empty();
  const bool goes_on = std::ranges::any_of(checkpoints, [](const auto& entry) { return is_resumable(entry.second); });
  if (holds_checkpoint && !goes_on && !(finished() && !resume)) {
    user_error(
        "{}: the run's checkpoints hold only models (save_only_model), so it cannot continue from them; choose {}",
        path_.string(), resume ? "one of them as the base_model of a new run" : "another folder");
  }
  if (resume && !holds_checkpoint) {
    if (finished()) {
      user_error("{}: the run is complete and has no checkpoint to continue from; set save_steps to write them",
                 path_.string());
    }
    user_error("{}: --resume finds no checkpoint there; start without it", path_.string());
  }
  if (resume) return;
  if (holds_checkpoint) {
    user_error("{}: output_dir already holds a run; add --resume to continue it, or choose another folder",
               path_.string());
  }
  if (finished()) user_error("{}: output_dir already holds a complete run; choose another folder", path_.string());
  // Every run has its metrics: weights without them are somebody's model.
  if (!io::exists(path_ / metrics_file) && !weights_in(path_).empty()) {
    user_error("{}: output_dir already holds {}; choose another folder", path_.string(),
               io::exists(path_ / adapter::config_file) ? "an adapter" : "a model");
  }
}

void OutputFolder::remove_leftovers() {
  tidy_checkpoints(path_);
  for (const fs::path& entry : io::entries_of(path_)) {
    if (io::is_temporary(entry)) io::remove_all(entry);
  }
  const fs::path result = path_ / result_folder;
  if (!io::exists(result)) return;
  // Weights beside it are half of a result. A run that can go on replaces them when it ends.
  if (!finished() && !latest_checkpoint(path_)) {
    for (const fs::path& file : weights_in(path_)) io::remove_all(file);
    io::sync_folder(path_);
  }
  io::remove_all(result);
}

fs::path OutputFolder::verified_checkpoint(Console& console) const {
  // As the leader sees them: a shared file system may show others an earlier state.
  std::string steps;
  by_leader(ranks_, "checkpoints", [&] {
    for (const auto& [step, folder] : checkpoints_in(path_)) {
      if (is_resumable(folder)) steps = fmt::format("{}\n{}", folder.filename().string(), steps);
    }
  });
  std::istringstream newest_first(ranks_.from_leader(steps, "checkpoints"));
  std::string damage;
  for (std::string name; std::getline(newest_first, name);) {
    const fs::path folder = path_ / name;
    bool verified = false;
    try {
      verified = verify(ranks_, folder, console);
    } catch (const io::DamagedFile& error) {
      if (damage.empty()) damage = error.what();
      continue;
    }
    if (!damage.empty()) {
      user_error("{}; {} is {}: to continue from it, remove the newer ones", damage, folder.string(),
                 verified ? "intact" : "older, from a version that wrote no checksums");
    }
    if (!verified) {
      console.line(fmt::format("{}: written by an earlier version without checksums, so it cannot be verified",
                               folder.string()));
    }
    return folder;
  }
  user_error("{}; there is no intact checkpoint before it: start again in another folder", damage);
}

std::string OutputFolder::advice_to_go_back(std::int64_t bad) const {
  const auto last = latest_checkpoint(path_), good = latest_checkpoint(path_, bad);
  if (!last) return "No checkpoint has been written yet.";
  if (!good) return fmt::format("The weights of the only checkpoint, {}, already give this.", last->string());
  const std::string text = fmt::format("The last checkpoint whose weights gave a finite loss is {}", good->string());
  return last == good ? text + "." : fmt::format("{}; to continue from it, remove {}.", text, last->string());
}

void OutputFolder::start_anew(Console& console) {
  by_leader(ranks_, "the output folder", [&] { make_room(console); });
}

void OutputFolder::make_room(Console& console) {
  const std::vector<fs::path> weights = weights_in(path_);
  if (!weights.empty()) {
    const fs::path aside = free_name(path_, "unfinished", "");
    io::create_folders(aside);
    for (const fs::path& file : weights) io::rename(file, aside / file.filename());
    console.line(
        fmt::format("an earlier run here ended before it was complete: its weights are now in {}", aside.string()));
  }
  const fs::path metrics = path_ / metrics_file;
  if (!io::exists(metrics) || io::file_bytes(metrics) == 0) return;
  const fs::path aside = free_name(path_, "metrics", ".jsonl");
  io::rename(metrics, aside);
  console.line(
      fmt::format("an earlier run here ended before its first checkpoint: its metrics are now {}", aside.string()));
}

void OutputFolder::publish(const std::function<void(const fs::path& folder)>& write) {
  const fs::path result = path_ / result_folder;
  by_leader(ranks_, "the result's folder", [&] { io::remove_all(result); });
  try {
    by_leader(ranks_, "the result's folder", [&] { io::create_folders(result); });
    write(result);
  } catch (...) {
    std::error_code ignored;
    if (ranks_.leads()) fs::remove_all(result, ignored);  // the disk may be full of it
    throw;
  }
  by_leader(ranks_, "the result", [&] { put_in_place(result); });
}

void OutputFolder::put_in_place(const fs::path& result) {
  std::vector<fs::path> files = io::entries_of(result);
  std::ranges::stable_sort(files, std::less<>(), place_of);
  // From here on the run is not finished, until it is again.
  io::remove_all(path_ / summary_file);
  io::sync_folder(path_);
  for (const fs::path& file : weights_in(path_)) {
    if (!io::exists(result / file.filename())) io::remove_all(file);  // it would contradict the new ones
  }
  for (const fs::path& file : files) {
    const fs::path target = path_ / file.filename();
    if (is_prose(file) && io::exists(target) && !is_model_card(target)) continue;
    if (file.filename() == summary_file) io::sync_folder(path_);  // everything else is on disk before it
    io::rename(file, target);
  }
  io::sync_folder(path_);
  io::remove_all(result);
}

}  // namespace inlay::train
