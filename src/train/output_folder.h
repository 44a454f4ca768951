#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/console.h"
#include "io/file.h"

namespace inlay::train {

// The folder of a run, for one process. A run is finished when summary.json is in its folder: it comes last, after
// every other file of the result. Without it the run goes on from its latest checkpoint, or begins again.
class OutputFolder {
 public:
  // Takes the folder, before any of the work is done. UserError where it holds a run (to start) or none (to resume), a
  // model that is not a run's, or another process at work. Removes what killed processes left half written.
  OutputFolder(std::filesystem::path path, const std::filesystem::path& base_model, bool resume, Console& console);

  const std::filesystem::path& path() const { return path_; }
  bool finished() const;
  // Where a resumed run goes on: every byte of it is as it was written. One of an earlier version, without checksums,
  // is taken with a note.
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }

  // For one whose weights gave no finite number after `bad` steps (their own loss shows in the step after them): which
  // checkpoint is the last that did, and what must go before it can be resumed from.
  std::string advice_to_go_back(std::int64_t bad) const;

  // Makes room for a run that begins: what an unfinished one left (metrics, a model) stays under other names.
  void start_anew(Console& console);
  // Puts a result in place: write() makes all of its files in the folder that it is given, summary.json among them.
  // No reader ever meets a part of it together with summary.json.
  void publish(const std::function<void(const std::filesystem::path& folder)>& write);

 private:
  void check_start(bool resume) const;
  void remove_leftovers();
  std::filesystem::path verified_checkpoint(Console& console) const;

  std::filesystem::path path_;
  std::optional<io::FolderLock> lock_;
  std::optional<std::filesystem::path> checkpoint_;
};

}  // namespace inlay::train
