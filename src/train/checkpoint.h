#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "io/safetensors_writer.h"
#include "train/best.h"
#include "train/engine.h"
#include "train/model_folder.h"

// What a run leaves on disk. A checkpoint is a Hugging Face model folder with three more files: trainer_state.json
// (where the run stands), optimizer.safetensors (every bit that training needs to go on as if it had never stopped) and
// checkpoint.json (the checksum of each of its files).
namespace inlay::train {

struct EngineAdapter;  // train/adapters.h

// Where a run stands after `step` optimizer steps.
struct TrainerState {
  std::string run;    // its name for machines, from its beginning on
  std::string began;  // when, in UTC
  std::int64_t step = 0;
  std::int64_t epoch = 0, batch = 0;  // the next micro-batch to read
  std::int64_t tokens = 0;            // seen so far
  double seconds = 0;                 // spent so far
  double loss = 0;                    // of the last step
  bool evaluation_due = false;        // an interrupt came while the last step was evaluated
  Evaluated evaluated;                // last
  Best best;
  std::string data_fingerprint;   // of the documents, so that a resumed run reads the same ones
  std::string basis_fingerprint;  // of the directions that were found; empty without
  std::string batching;           // the options by which documents became batches
  std::string base_fingerprint;   // of the base model's weights, of which a resumed run takes what does not train
  std::string compute;            // dtype, and what products are made in
  std::optional<std::string> objective;  // as objective_text() has it; an earlier version kept none
  std::string adapter;          // what trains beside the base model, as EngineAdapter::identity(); empty without
  std::string adapter_targets;  // their fingerprint
};

// Where a model came from: the folder of the base model, and the text of the chat template that it learned by, where
// that is not the base model's own.
struct ModelOrigin {
  std::filesystem::path base;
  std::string chat_template;
  std::shared_ptr<const EngineAdapter> adapter;  // what is saved is an adapter alone; null: a whole model
};

// Writes the model as Hugging Face has it: the base model's tensor names and dtypes, its configuration and tokenizer
// files, with the trained values; or the adapter as PEFT has it, with the tokenizer files. All ranks write it together.
// Returns what it wrote. NotFinite leaves nothing behind, or in a run of many processes a folder to be removed.
SavedFiles save_model(Communicator& ranks, Engine& engine, const ModelOrigin& origin,
                      const std::filesystem::path& folder);

// Of a checkpoint: everything, or no more than the model, from which no run can go on.
enum class Contents : std::uint8_t { all, model };

// Writes output_dir/checkpoint-STEP whole or not at all: the same files whatever number of ranks there are. Where one
// of them fails, all do.
std::filesystem::path save_checkpoint(Communicator& ranks, Engine& engine, const ModelOrigin& origin,
                                      const std::filesystem::path& output_dir, const TrainerState& state,
                                      Contents contents = Contents::all);
// The same from a copy of the state, which is taken now, into the engine's staging: what it returns writes, on any
// thread, while the engine goes on. The copy is in use until then. What it is given must outlive it.
std::function<void(Communicator& ranks)> stage_checkpoint(Engine& engine, const ModelOrigin& origin,
                                                          const std::filesystem::path& output_dir,
                                                          const TrainerState& state, Contents contents);
std::filesystem::path checkpoint_folder(const std::filesystem::path& output_dir, std::int64_t step);
// Whether a run can go on from it.
bool is_resumable(const std::filesystem::path& checkpoint);
// Puts a checkpoint's model into a folder, as save_model would have written it there. It shares the disk space with the
// checkpoint where the file system can.
void take_model(const std::filesystem::path& checkpoint, const std::filesystem::path& folder);
// Reads every byte of a checkpoint, each rank some of its files: io::DamagedFile where one is not as it was written.
// False: an earlier version wrote it, without checksums.
bool verify_checkpoint(Communicator& ranks, const std::filesystem::path& folder,
                       const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);
// Where the run stood.
TrainerState read_trainer_state(const std::filesystem::path& folder);
// Puts every tensor back, bit for bit; on any number of ranks, whatever number wrote it.
void load_checkpoint(Communicator& ranks, Engine& engine, const std::filesystem::path& folder);

// All checkpoints in a run's folder, by their steps.
std::map<std::int64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& output_dir);
// The checkpoint of the most steps in a run's folder; of those of fewer than `below`.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& output_dir,
                                                       std::int64_t below = std::numeric_limits<std::int64_t>::max());
// Whole or not at all: no moment shows a part of it.
void remove_checkpoint(const std::filesystem::path& folder);
// Removes the oldest ones beyond `keep` (0: keeps all), but neither the last one nor that of the step `best`.
void remove_old_checkpoints(const std::filesystem::path& output_dir, std::int64_t keep, std::int64_t best = -1);
// Removes what killed processes left of checkpoints that were being written or removed.
void tidy_checkpoints(const std::filesystem::path& output_dir);

}  // namespace inlay::train
