#include "train/run.h"

#include <chrono>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "backend/cuda/context.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "io/file.h"
#include "io/paths.h"
#include "osft/find_bases.h"
#include "train/checkpoint.h"
#include "train/evaluation.h"
#include "train/metrics.h"
#include "train/output_folder.h"
#include "train/schedule.h"
#include "train/session.h"

namespace inlay::train {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Micro-batches in the order of the run: epoch after epoch.
class BatchStream {
 public:
  BatchStream(const data::BatchSampler& sampler, const data::Documents& documents, std::int64_t epoch,
              std::int64_t batch)
      : sampler_(sampler), documents_(documents), epoch_(epoch), batch_(batch) {}

  PackedBatch next() {
    if (batch_ >= sampler_.batches_per_epoch(epoch_)) {
      ++epoch_;
      batch_ = 0;
    }
    return pack(data::take_batch(sampler_, documents_, epoch_, batch_++));
  }
  // Micro-batches left in the current epoch; 0 at its end.
  std::int64_t left_in_epoch() const { return sampler_.batches_per_epoch(epoch_) - batch_; }
  std::int64_t epoch() const { return epoch_; }
  std::int64_t batch() const { return batch_; }

 private:
  const data::BatchSampler& sampler_;
  const data::Documents& documents_;
  std::int64_t epoch_, batch_;
};

// Steps of an epoch: the last one takes what is left, so that a step never mixes epochs.
std::int64_t steps_per_epoch(const data::BatchSampler& sampler, std::int64_t epoch, std::int64_t accumulation) {
  return (sampler.batches_per_epoch(epoch) + accumulation - 1) / accumulation;
}

std::int64_t total_steps(const options::TrainOptions& o, const data::BatchSampler& sampler) {
  if (o.max_steps > 0) return o.max_steps;
  std::int64_t steps = 0;
  const auto whole = static_cast<std::int64_t>(std::floor(o.num_epochs));
  // Only shuffled documents that are packed make more or fewer batches from epoch to epoch.
  const bool varies = o.shuffle && o.sample_packing;
  for (std::int64_t epoch = 0; epoch < (varies ? whole : std::min<std::int64_t>(whole, 1)); ++epoch) {
    stop_where_asked("counting the steps of all epochs");
    steps += steps_per_epoch(sampler, epoch, o.gradient_accumulation_steps);
  }
  if (!varies) steps *= whole;
  const double rest = o.num_epochs - static_cast<double>(whole);
  if (rest > 0) {
    steps += static_cast<std::int64_t>(
        std::ceil(rest * static_cast<double>(steps_per_epoch(sampler, whole, o.gradient_accumulation_steps))));
  }
  return std::max<std::int64_t>(steps, 1);
}

// The template that the conversations are written by, where it is a file of its own.
fs::path own_template(const options::TrainOptions& options) {
  std::vector<std::string> names = {options.chat_template};
  for (const data::DatasetOptions& dataset : options.datasets) names.push_back(dataset.format.chat_template);
  for (const std::string& name : names) {
    if (io::is_file(name)) return name;
  }
  return {};
}

// What decides which documents stand in which step.
std::string batching_of(const options::TrainOptions& o) {
  std::string text;
  for (const char* key : {"seed", "sequence_len", "micro_batch_size", "gradient_accumulation_steps", "sample_packing",
                          "shuffle", "excess_length_strategy"}) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, options::value_text(o, key));
  }
  return text;
}

Schedule schedule_of(const options::TrainOptions& o, std::int64_t steps) {
  Schedule schedule;
  schedule.decay = o.lr_scheduler;
  schedule.peak = o.learning_rate;
  schedule.total_steps = steps;
  schedule.min_ratio = schedule.decay == options::Decay::cosine ? o.cosine_min_lr_ratio : 0.0;
  schedule.warmup_steps = o.warmup_steps > 0
                              ? o.warmup_steps
                              : static_cast<std::int64_t>(std::ceil(o.warmup_ratio * static_cast<double>(steps)));
  return schedule;
}

void describe_data(const data::BatchSampler& sampler, Console& console) {
  console.line(fmt::format("data: {} documents, {} tokens, {} micro-batches an epoch ({:.1f} % full)",
                           format_count(sampler.document_count()), format_count(sampler.tokens_per_epoch()),
                           format_count(sampler.batches_per_epoch(0)), 100 * sampler.efficiency(0)));
  if (sampler.truncated_documents() > 0) {
    console.line(fmt::format("data: {} documents were longer than sequence_len and lost {} tokens",
                             format_count(sampler.truncated_documents()), format_count(sampler.truncated_tokens())));
  }
  if (sampler.split_documents() > 0) {
    console.line(fmt::format("data: {} documents were longer than sequence_len and were split",
                             format_count(sampler.split_documents())));
  }
  if (sampler.dropped_documents() > 0) {
    console.line(fmt::format("data: {} documents longer than sequence_len were dropped",
                             format_count(sampler.dropped_documents())));
  }
  if (sampler.unlabelled_pieces() > 0) {
    console.line(
        fmt::format("data: {} documents, or parts of them, hold nothing to learn within sequence_len and were "
                    "left out",
                    format_count(sampler.unlabelled_pieces())));
  }
}

class Run {
 public:
  Run(const options::TrainOptions& options, bool resume, Console& console)
      : options_(options),
        console_(console),
        origin_{options.base_model, own_template(options)},
        config_(config_of(options)),
        output_(options.output_dir, options.base_model, resume, console),
        data_(read_run_data(options, config_.vocab, console)),
        test_documents_(data_.test.copies()),
        sampler_(data_.train, batch_options(options)) {
    describe_data(sampler_, console_);
    warn_of_positions();
    clip_test_documents();
    start_engine();
    steps_ = total_steps(options_, sampler_);
    state_.data_fingerprint = data_.train.fingerprint();
    state_.batching = batching_of(options_);
    state_.compute = name_of(engine_->options().compute);
    if (resume) {
      resume_from_latest();
    } else {
      output_.start_anew(console_);
    }
    io::write_file_atomic(output_.path() / "config.yaml", options::to_yaml(options_));
    metrics_ = std::make_unique<MetricsFile>(output_.path() / "metrics.jsonl", state_.step);
  }

  RunEnd execute() {
    const Schedule schedule = schedule_of(options_, steps_);
    BatchStream stream(sampler_, data_.train, state_.epoch, state_.batch);
    const double began = now() - state_.seconds;
    if (state_.evaluation_due && state_.step < steps_ && !evaluate_now()) return stop_early();
    while (state_.step < steps_) {
      const double step_began = now();
      const std::vector<PackedBatch> micro_batches = take_step(stream);
      const double rate = schedule.rate(state_.step);
      const StepResult result = engine_->train_step(micro_batches, state_.step + 1, rate);
      ++state_.step;
      state_.epoch = stream.epoch();
      state_.batch = stream.batch();
      state_.tokens += result.tokens;
      state_.seconds = now() - began;
      host_peak_ = std::max(host_peak_, resident_bytes());
      check_finite(result);
      report(result, rate, now() - step_began);
      if (options_.eval_steps > 0 && state_.step % options_.eval_steps == 0 && state_.step < steps_) evaluate_now();
      if (interrupt_requested() && state_.step < steps_) return stop_early();
      if (options_.save_steps > 0 && state_.step % options_.save_steps == 0) save();
    }
    return finish();
  }

 private:
  // Rotary positions go on for ever, what a model has learnt of them does not.
  void warn_of_positions() {
    const std::int64_t longest = bounds_of(sampler_).document;
    if (config_.max_positions <= 0 || longest <= config_.max_positions) return;
    console_.line(fmt::format("note: documents have up to {} tokens, and config.json knows {} positions",
                              format_count(longest), format_count(config_.max_positions)));
  }

  // Evaluation reads no further than training does.
  void clip_test_documents() {
    const auto most = static_cast<std::size_t>(options_.sequence_len);
    std::int64_t clipped = 0;
    for (Document& document : test_documents_) {
      if (document.input_ids.size() <= most) continue;
      document.input_ids.resize(most);
      document.labels.resize(most);
      if (!document.weights.empty()) document.weights.resize(most);
      ++clipped;
    }
    if (clipped > 0) {
      console_.line(fmt::format("test data: {} documents were cut to sequence_len", format_count(clipped)));
    }
  }

  void start_engine() {
    BatchBounds bounds = bounds_of(sampler_);
    for (const Document& d : test_documents_) {
      bounds.document = std::max(bounds.document, static_cast<std::int64_t>(d.input_ids.size()));
    }
    bounds.tokens = std::max(bounds.tokens, bounds.document);
    EngineOptions engine = engine_options(options_, bounds);
    osft::FoundBases found;
    if (options_.osft.enabled) {
      found = osft::find_bases(search_inputs(options_, config_, engine.device, console_), config_, engine.device,
                               engine.compute, step_shape(options_, bounds), console_);
      engine.osft = std::make_shared<osft::OsftLayout>(found.layout);
      state_.basis_fingerprint = found.bases.fingerprint();
    } else {
      plan_frozen(options_, config_, engine);
    }
    const MemoryChoice memory = resolve_memory(options_, config_, engine);
    plan_ = memory.plan;
    const std::string device = engine.device == Device::cuda ? backend::cuda::device_name() : "CPU";
    console_.line(fmt::format("model: {}, {} parameters, {} on {}, activations: {}, plan: {}", config_.model_type,
                              format_count(config_.parameter_count()), name_of(engine.compute), device,
                              engine.policy.str(), format_bytes(plan_.device_peak)));
    if (!memory.fits) user_error("{} (inlay plan shows where the bytes go)", memory.reason);
    describe_memory(engine);
    engine_ = Engine::create(config_, engine);
    const io::Checkpoint weights(options_.base_model);
    state_.base_fingerprint = fmt::format("{:016x}", weights.sampled_hash());
    load_weights(*engine_, weights, console_);
    if (options_.osft.enabled) {
      engine_->start_osft(found.bases);
      describe_osft();
    }
  }

  void describe_memory(const EngineOptions& engine) {
    if (engine.mlp_tile > 0) {
      console_.line(fmt::format("memory: the MLP works on {} rows at once", format_count(engine.mlp_tile)));
    }
    if (engine.loss.chunk > 0) {
      console_.line(fmt::format("memory: the loss works on {} rows at once", format_count(engine.loss.chunk)));
    }
    if (plan_.host_peak > 0) {
      console_.line(
          fmt::format("memory: {} on the host{}", format_bytes(plan_.host_peak),
                      engine.host_layers > 0 ? fmt::format(", {} layers live there", engine.host_layers) : ""));
    }
    if (plan_.disk_bytes > 0) {
      console_.line(fmt::format("memory: {} in a file in {}", format_bytes(plan_.disk_bytes), engine.spill_folder));
    }
  }

  void describe_osft() {
    std::int64_t trained = 0;
    engine_->decoder().for_each_trained([&](weights::Parameter& p) { trained += p.size(); });
    console_.line(fmt::format("osft: basis {}, {} targets, {} numbers train ({:.1f} % of the model)",
                              osft::name_of(options_.osft.basis), engine_->decoder().subspaces().size(),
                              format_count(trained),
                              100.0 * static_cast<double>(trained) / static_cast<double>(config_.parameter_count())));
  }

  void resume_from_latest() {
    const std::optional<fs::path>& folder = output_.checkpoint();
    const TrainerState saved = read_trainer_state(*folder);
    if (saved.data_fingerprint != state_.data_fingerprint) {
      user_error("{}: the datasets are not those of the run (fingerprint {} now, {} then)", folder->string(),
                 state_.data_fingerprint, saved.data_fingerprint);
    }
    if (saved.base_fingerprint != state_.base_fingerprint) {
      user_error("{}: {} is not the base model of the run; resume with the one it began with", folder->string(),
                 options_.base_model);
    }
    if (saved.batching != state_.batching) {
      user_error(
          "{}: the run's batches were made by {}, but now it is {}: documents would be missed or met again; resume "
          "with the keys of the run",
          folder->string(), saved.batching, state_.batching);
    }
    if (saved.basis_fingerprint != state_.basis_fingerprint) {
      user_error(
          "{}: the directions found now are not those of the run (fingerprint {} now, {} then); resume with the "
          "base model, osft keys and machine of the run, or with its osft.cache",
          folder->string(), state_.basis_fingerprint, saved.basis_fingerprint);
    }
    if (saved.step >= steps_ && output_.finished()) {
      user_error("{}: the run is complete after {} steps; to go on, raise max_steps or num_epochs",
                 output_.path().string(), saved.step);
    }
    load_checkpoint(*engine_, *folder);
    state_ = saved;
    console_.line(fmt::format("resuming after step {} from {}", state_.step, folder->string()));
  }

  std::vector<PackedBatch> take_step(BatchStream& stream) {
    std::vector<PackedBatch> micro_batches;
    do {
      micro_batches.push_back(stream.next());
    } while (static_cast<std::int64_t>(micro_batches.size()) < options_.gradient_accumulation_steps &&
             stream.left_in_epoch() > 0);
    return micro_batches;
  }

  void check_finite(const StepResult& result) {
    if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return;
    diverged(fmt::format("the loss is {} and the gradient norm {}", format_value(result.loss),
                         format_value(result.grad_norm)),
             state_.step - 1);
  }

  // bad: the steps after which the weights are known to give this.
  [[noreturn]] void diverged(const std::string& what, std::int64_t bad) {
    throw Diverged(fmt::format("step {}: {}; stopped. {} A lower learning_rate or a longer warm-up usually helps",
                               state_.step, what, output_.advice_to_go_back(bad)));
  }

  // The step's loss is that of the weights before their update: only what is written tells what became of them.
  template <class Write>
  auto write_finite(const Write& write) {
    try {
      return write();
    } catch (const NotFinite& error) {
      diverged(error.what(), state_.step);
    }
  }

  void report(const StepResult& result, double rate, double seconds) {
    const double speed = static_cast<double>(result.tokens) / seconds;
    const std::size_t device_peak = engine_->exec().arena().peak();
    state_.loss = result.loss;
    // The share of the GPU's matmul peak that the model's own products make up; 0 where the peak is not known.
    const bool on_gpu = engine_->options().device == Device::cuda;
    const double peak = on_gpu ? matmul_peak(backend::cuda::device_name()) : 0;
    const double matmul_share = peak > 0 ? speed * config_.matmul_flops_per_token() / peak : 0;
    ordered_json record = {{"step", state_.step},
                           {"epoch", state_.epoch},
                           {"loss", result.loss},
                           {"grad_norm", result.grad_norm},
                           {"raw_grad_norm", result.raw_grad_norm},
                           {"lr", rate},
                           {"tokens", result.tokens},
                           {"valid_tokens", result.valid},
                           {"tokens_total", state_.tokens},
                           {"tokens_per_second", speed},
                           {"matmul_share", matmul_share},
                           {"seconds", state_.seconds},
                           {"device_peak_bytes", device_peak},
                           {"host_peak_bytes", host_peak_}};
    if (options_.loss.z_loss > 0) record["z_loss"] = result.z_loss;
    metrics_->write(record);
    const std::string share = peak > 0 ? fmt::format("  {:.0f} % of peak", 100 * matmul_share) : "";
    // The remaining time by this run's recent pace, which the first steps (warm-up of caches) do not know yet.
    pace_ = pace_ == 0 ? seconds : 0.9 * pace_ + 0.1 * seconds;
    const std::string line =
        fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {} tok/s{}  {}  ETA {}", state_.step, steps_,
                    result.loss, result.grad_norm, rate, format_count(std::llround(speed)), share,
                    format_bytes(device_peak), format_duration(pace_ * static_cast<double>(steps_ - state_.step)));
    const bool due = state_.step % options_.logging_steps == 0 || state_.step == steps_;
    console_.status(static_cast<double>(state_.step) / static_cast<double>(steps_), line, due);
  }

  // False where an interrupt came: then it is due when the run goes on.
  bool evaluate_now() {
    state_.evaluation_due = false;
    if (test_documents_.empty()) return true;
    try {
      evaluation_ = evaluate(*engine_, test_documents_);
    } catch (const Interrupted&) {
      state_.evaluation_due = true;
      return false;
    }
    if (!std::isfinite(evaluation_.loss)) {
      diverged(fmt::format("the evaluation's loss is {}", format_value(evaluation_.loss)), state_.step);
    }
    metrics_->write({{"step", state_.step},
                     {"eval_loss", evaluation_.loss},
                     {"eval_perplexity", std::exp(evaluation_.loss)},
                     {"eval_accuracy", evaluation_.accuracy},
                     {"eval_tokens", evaluation_.tokens}});
    console_.line(fmt::format("step {}: eval loss {:.4f}, perplexity {:.2f}, accuracy {:.1f} %", state_.step,
                              evaluation_.loss, std::exp(evaluation_.loss), 100 * evaluation_.accuracy));
    return true;
  }

  fs::path save() {
    console_.status(fmt::format("step {}: saving a checkpoint", state_.step));
    metrics_->sync();  // a checkpoint never knows of steps that the metrics have lost
    const fs::path folder = write_finite([&] { return save_checkpoint(*engine_, origin_, output_.path(), state_); });
    remove_old_checkpoints(output_.path(), options_.save_total_limit);
    return folder;
  }

  RunEnd stop_early() {
    const fs::path folder = save();
    console_.line(
        fmt::format("interrupted after step {}; {} holds everything. To go on, run the same command with --resume",
                    state_.step, folder.string()));
    return RunEnd::interrupted;
  }

  RunEnd finish() {
    if (!evaluate_now()) return stop_early();
    ordered_json summary = {
        {"steps", state_.step},
        {"loss", state_.loss},
        {"tokens", state_.tokens},
        {"seconds", state_.seconds},
        {"tokens_per_second", static_cast<double>(state_.tokens) / std::max(state_.seconds, 1e-9)},
        {"parameters", config_.parameter_count()},
        {"device", engine_->options().device == Device::cuda ? backend::cuda::device_name() : "cpu"},
        {"dtype", name_of(engine_->options().compute)},
        {"activation_policy", engine_->options().policy.str()},
        {"deterministic", engine_->options().device == Device::cpu || options_.deterministic},
        {"planned_device_peak_bytes", plan_.device_peak},
        {"device_peak_bytes", engine_->exec().arena().peak()},
        {"host_peak_bytes", host_peak_}};
    if (!test_documents_.empty()) {
      summary["eval_loss"] = evaluation_.loss;
      summary["eval_accuracy"] = evaluation_.accuracy;
    }
    if (options_.osft.enabled) {
      const double leak = engine_->leak();
      summary["osft"] = {{"basis", osft::name_of(options_.osft.basis)}, {"leak", leak}};
      console_.line(fmt::format("osft: of what was learned, {:.1e} lies in frozen directions", leak));
    }
    metrics_->sync();
    output_.publish([&](const fs::path& folder) {
      write_finite([&] { return save_model(*engine_, origin_, folder); });
      io::write_file_atomic(folder / "summary.json", summary.dump(2) + "\n");
    });
    console_.line(fmt::format("done: {} steps in {}, loss {:.4f}; the model is in {}", state_.step,
                              format_duration(state_.seconds), state_.loss, output_.path().string()));
    return RunEnd::finished;
  }

  options::TrainOptions options_;
  Console& console_;
  ModelOrigin origin_;
  model::ModelConfig config_;
  OutputFolder output_;
  RunData data_;
  std::vector<Document> test_documents_;
  data::BatchSampler sampler_;
  MemoryPlan plan_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MetricsFile> metrics_;
  TrainerState state_;
  Evaluation evaluation_;
  std::int64_t steps_ = 0;
  double pace_ = 0;
  std::size_t host_peak_ = 0;
};

}  // namespace

RunEnd run_training(const options::TrainOptions& options, bool resume, Console& console) {
  try {
    return Run(options, resume, console).execute();
  } catch (const Interrupted& interruption) {
    console.line(interruption.what());
    return RunEnd::interrupted;
  }
}

}  // namespace inlay::train
