#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/lanes.h"
#include "model/decoder.h"
#include "train/optimizer.h"

namespace inlay::train {

// What of the training state is copied for a checkpoint.
enum class Staged : std::uint8_t { nothing, model, all };  // model: only what its own files are made of

// What of the state is copied, and who writes it.
struct StagingOptions {
  Staged what = Staged::nothing;
  // Where that is the model: parameters whose masters are written to every bit, not the numbers computed with alone.
  std::set<std::string> exact;
  bool leads = true;  // as Optimizer::for_each_state has it
  int adapters = 0;   // an adapter is saved in the model's place: its numbers once, or with those that it began at
};

// Host memory that holds the training state of one moment, so that steps go on while a checkpoint is written from it.
// On a GPU the copies run beside the next passes: only the update after these waits for them. Every process has a copy
// of what it writes.
class Staging {
 public:
  struct Entry {
    std::string name;  // of the state, as optimizer.safetensors has it
    DType dtype = DType::f32;
    Shape whole;
    View bytes;  // rows of it, which begin at first_row; absent where others write them
    std::int64_t first_row = 0;
    bool mine_to_write = true;
  };

  // Takes the memory from the host's arena.
  Staging(Exec& exec, model::Decoder& decoder, Optimizer& optimizer, const StagingOptions& options);

  // Begins to copy everything as it is now. What it held before must not be in use any more.
  void capture(Exec& exec, Optimizer& optimizer);
  // The next update of the state begins after the copies.
  void before_update(Exec& exec) const { copied_.wait(exec, backend::Lane::compute); }
  // Blocks the calling thread until everything is there.
  void wait() const { copied_.wait_on_host(); }

  const std::vector<Entry>& entries() const { return entries_; }
  const View* find(const std::string& state) const;  // null where there is no copy of it
  // For the numbers of a parameter that does not train itself, but whose owner has learned what it is to become: they
  // are computed where the owner lives. Room for fp32; empty where others write them.
  std::span<std::byte> room_for(const weights::Parameter& parameter) const;
  // For an adapter's, which are computed as well; empty where others write them.
  std::span<float> room_for_adapter() const;

 private:
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> by_name_;
  std::map<const weights::Parameter*, View> rooms_;
  View adapter_room_;
  backend::Signal copied_;
};

// The names of a parameter's states.
std::string value_state(const weights::Parameter& parameter);
std::string low_state(const weights::Parameter& parameter);
// Whether what is saved for a parameter is known to its owner alone.
bool is_completed_by_owner(const weights::Parameter& parameter);

}  // namespace inlay::train
