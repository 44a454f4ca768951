#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/console.h"
#include "io/lock.h"
#include "train/shared_save.h"

namespace inlay::train {

// The folder of a run, for its process or for all of them: the leader keeps it and changes it, and what goes wrong with
// it goes wrong for all. A run is finished when summary.json is in its folder: it comes last, after
// every other file of the result. Without it the run goes on from its latest checkpoint, or begins again.
class OutputFolder {
 public:
  // Takes the folder, before any of the work is done. UserError where it holds a run (to start) or none (to resume), a
  // model that is not a run's, or another process at work. Removes what killed processes left half written.
  // The communicator and the console must outlive it.
  OutputFolder(Communicator& ranks, std::filesystem::path path, const std::filesystem::path& base_model, bool resume,
               Console& console);

  const std::filesystem::path& path() const { return path_; }
  Communicator& ranks() const { return ranks_; }
  bool finished() const { return finished_; }  // when it was taken
  // Where a resumed run goes on: every byte of it is as it was written. One of an earlier version, without checksums,
  // is taken with a note.
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }

  // For one whose weights gave no finite number after `bad` steps (their own loss shows in the step after them): which
  // checkpoint is the last that did, and what must go before it can be resumed from.
  std::string advice_to_go_back(std::int64_t bad) const;

  // Makes room for a run that begins: what an unfinished one left (metrics, a model) stays under other names.
  void start_anew(Console& console);
  // Puts a result in place: write(), which all ranks call, makes all of its files in the folder that it is given,
  // summary.json among them. No reader ever meets a part of it together with summary.json.
  void publish(const std::function<void(const std::filesystem::path& folder)>& write);

 private:
  void take(const std::filesystem::path& base_model, bool resume);
  void check_start(bool resume) const;
  void remove_leftovers();
  void make_room(Console& console);
  void put_in_place(const std::filesystem::path& result);
  std::filesystem::path verified_checkpoint(Console& console) const;

  Communicator& ranks_;
  std::filesystem::path path_;
  bool finished_ = false;
  std::optional<io::FolderLock> lock_;
  std::optional<std::filesystem::path> checkpoint_;
};

}  // namespace inlay::train
