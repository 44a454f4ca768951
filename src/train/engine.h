#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "model/decoder.h"
#include "model/weights_io.h"
#include "train/optimizer.h"
#include "train/staging.h"

namespace inlay::train {

// Another model, whose prediction is learned as well: never changed by that.
struct OtherModelOptions {
  bool wanted = false;
  std::optional<model::ModelConfig> config;  // absent: the base model itself
  bool on_host = false;                      // its layers live there
  bool itself = false;                       // it is the model in training, as it is by then
};

struct EngineOptions {
  Device device = Device::cpu;
  DType compute = DType::f32;
  std::optional<model::Fp8Options> fp8;  // products of the layers
  bool training = true;
  model::ActivationPolicy policy = model::ActivationPolicy::keep_all();
  std::int64_t mlp_tile = 0;
  model::LossSettings loss;
  std::shared_ptr<const model::ObjectiveKind> objective;  // absent: the next token
  OtherModelOptions other;
  std::vector<SequenceRole> roles;    // of the sequences that a document has; empty: it is one
  bool reference = false;             // documents bring the reference's log-probabilities
  std::int64_t kept_predictions = 0;  // that the data brings for each token
  std::int64_t host_layers = 0;       // the last so many layers live on the host
  std::string spill_folder;           // what the policy takes off the device goes into a file here; empty: host memory
  bool deterministic = true;
  OptimizerOptions optimizer;
  bool optimizer_state = true;    // false: gradients only (inlay grad, benchmarks of the passes alone)
  std::int64_t max_tokens = 0;    // of the largest micro-batch
  std::int64_t max_document = 0;  // of the longest document
  // The same of what another model sees, where that is not what the model sees; 0: it is.
  std::int64_t others_tokens = 0, others_document = 0;
  std::int64_t logit_rows = 0;  // rows whose logits are asked for at once; 0: never
  // Which matrix is of which kind; absent: everything trains as a whole.
  std::shared_ptr<const weights::WeightPlan> weights;
  bool saves_adapter = false;       // what is saved is an adapter, of the model only what trains as a whole
  Staged staged = Staged::nothing;  // of a checkpoint, in host memory, so that it is written beside the steps
  // Where it is the model: the parameters that are saved in another dtype than the one that is computed with.
  std::set<std::string> saved_otherwise;
  bool saves_start = false;  // an adapter is saved with what it began at
  // Of train::generate: sequences at once, and tokens of each; 0: never.
  std::int64_t decode_sequences = 0, decode_length = 0;
  bool row_losses = false;  // the loss of every position will be asked for
  parallel::Mesh mesh;      // the processes that work on the run, and what each of them keeps
  backend::MessageSink messages;
};

// What the work over a batch grows with.
struct BatchExtent {
  double tokens = 0;
  double squares = 0;  // of the documents' lengths, in all
};
BatchExtent extent_of(const PackedBatch& batch);

// Where the bytes go and what a step does, before any is allocated.
struct MemoryPlan {
  std::size_t device_peak = 0;
  MemoryByClass classes{};  // at the peak
  std::vector<PhasePeak> phases;
  std::size_t host_peak = 0;  // of the host's arena, pinned for a GPU
  MemoryByClass host_classes{};
  std::uint64_t disk_bytes = 0;
  std::int64_t trained = 0;  // numbers that the optimizer works on
  model::ActivationPolicy policy = model::ActivationPolicy::keep_all();
  backend::Cost cost;  // of a step over one micro-batch, as large as any that may come
  BatchExtent batch;   // of that one
};

struct StepResult {
  double loss = 0;          // mean over the step's valid labels, each by its weight
  double z_loss = 0;        // that part of it
  float grad_norm = 0;      // of what the step used, before clipping
  float raw_grad_norm = 0;  // before projections; the same where nothing is projected
  std::int64_t tokens = 0, valid = 0;
  double weight = 0;  // what the loss was divided by: the valid labels' together, or documents
  model::Objective::Metrics metrics;
};

// This process's part of a step that several work on.
struct StepShare {
  std::int64_t first_micro_batch = 0;  // its first one's number among those of all processes
  std::int64_t passes = 1;             // the most micro-batches that any process has
  // Of all processes: tokens, valid labels, and what these weigh together.
  std::int64_t tokens = 0, valid = 0;
  double weight = 0;
};

// A model on a device, ready to take batches. Made twice for a run: once over a planning Exec, whose arena then says
// how much the second one needs.
class Engine {
 public:
  Engine(Exec exec, const model::ModelConfig& config, const EngineOptions& options,
         std::shared_ptr<backend::SpillFile> spill = nullptr);

  // Memory for a step, an evaluation, loading and saving, by going through all of them without doing any.
  static MemoryPlan plan(const model::ModelConfig& config, const EngineOptions& options);
  // Plans, allocates exactly that, and builds the model there.
  static std::unique_ptr<Engine> create(const model::ModelConfig& config, const EngineOptions& options);

  Exec& exec() { return exec_; }
  model::Decoder& decoder() { return decoder_; }
  Optimizer& optimizer() { return *optimizer_; }
  Staging* staging() { return staging_.get(); }  // null where the options ask for none
  const EngineOptions& options() const { return options_; }

  void load(const io::Checkpoint& checkpoint, const model::Progress& progress = {});
  // Whether there is another model that is no part of this one; and its weights, which no checkpoint of a run has.
  model::Decoder* other() { return other_.get(); }
  void load_other(const io::Checkpoint& checkpoint, const model::Progress& progress = {});
  // After load(): the weights as loaded are the start, and these the directions, adapters, whatever their kinds need.
  void start(const weights::StartTensors* tensors = nullptr);
  // Of the matrix where it is largest: the share of what was learned, as saving would add it, that lies in frozen
  // directions, by norms; 0 where there are none. Waits for the device.
  double leak();

  // One optimizer step over the micro-batches of all processes; the loss is divided by the valid labels of all of them.
  // step counts from 1. Results are those of the whole step.
  StepResult train_step(const std::vector<PackedBatch>& micro_batches, std::int64_t step, double learning_rate,
                        const StepShare& share = {});
  // The learning rates of steps that were done before a run was resumed, in order: some optimizers weigh steps by them.
  void account(double learning_rate);
  // Gradients alone, left in the parameters.
  StepResult gradients(const std::vector<PackedBatch>& micro_batches, std::int64_t step = 0,
                       const StepShare& share = {});
  // Sums over one batch, of this process alone.
  model::LossSums evaluate(const PackedBatch& batch);
  // Takes part in what other processes evaluate.
  void idle_evaluation();
  // The loss of every position of one batch; the options must have announced it.
  std::vector<float> row_losses(const PackedBatch& batch);

 private:
  // Whether every pass of one process needs the others.
  bool passes_together() const;
  void look_ahead(std::int64_t step);
  // Every pass once, with the largest batch that may come.
  void rehearse();

  Exec exec_;
  EngineOptions options_;
  model::Decoder decoder_;
  std::unique_ptr<model::Decoder> other_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Staging> staging_;
  std::uint64_t disk_bytes_ = 0;  // that the rehearsal has counted
};

}  // namespace inlay::train
