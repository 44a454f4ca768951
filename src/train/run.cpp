#include "train/run.h"

#include "core/interrupt.h"
#include "io/file.h"
#include "train/batch_stream.h"
#include "train/batching.h"
#include "train/loop.h"

namespace inlay::train {

namespace {

// Refuses a checkpoint that another run has left: what it had learned would go on with other data, or from elsewhere.
void check_same_run(const TrainerState& saved, const TrainerState& now, const std::string& base_model,
                    const std::string& folder) {
  if (saved.data_fingerprint != now.data_fingerprint) {
    user_error("{}: the datasets are not those of the run (fingerprint {} now, {} then)", folder, now.data_fingerprint,
               saved.data_fingerprint);
  }
  if (saved.base_fingerprint != now.base_fingerprint) {
    user_error("{}: {} is not the run's base model; resume with the one it started from", folder, base_model);
  }
  check_batching(folder, saved.batching, now.batching);
  if (saved.adapter != now.adapter) {
    const auto text = [](const std::string& adapter) { return adapter.empty() ? "no adapter" : adapter; };
    user_error("{}: the run has {}, but now it is {}; resume with the run's own adapter keys", folder,
               text(saved.adapter), text(now.adapter));
  }
  if (saved.basis_fingerprint != now.basis_fingerprint) {
    user_error(
        "{}: the directions found now are not those of the run (fingerprint {} now, {} then); resume with the run's "
        "base model, osft keys and machine, or with its osft.cache",
        folder, now.basis_fingerprint, saved.basis_fingerprint);
  }
}

// Puts the engine where the latest checkpoint was.
TrainerState resume_run(Engine& engine, const TrainerState& now, const OutputFolder& output,
                        const std::string& base_model, std::int64_t steps, Console& console) {
  const std::filesystem::path& folder = *output.checkpoint();
  const TrainerState saved = read_trainer_state(folder);
  check_same_run(saved, now, base_model, folder.string());
  if (saved.step >= steps && output.finished()) {
    user_error("{}: the run is complete after {} steps; to continue, raise max_steps or num_epochs",
               output.path().string(), saved.step);
  }
  load_checkpoint(engine, folder);
  console.line(fmt::format("resuming after step {} from {}", saved.step, folder.string()));
  return saved;
}

// What is wrong with the adapter shall not come out after the data was read.
void check_adapter(const options::TrainOptions& options, const model::ModelConfig& config) {
  if (adapter_of(options, config) == nullptr || options.adapter.model_dir.empty()) return;
  adapter::AdapterFile(options.adapter.model_dir, config).check_base(io::Checkpoint(options.base_model));
}

// The folder first, so that no work is done in vain; then what is learned, what learns it, and the steps.
RunEnd run(const options::TrainOptions& options, bool resume, Console& console) {
  const model::ModelConfig config = config_of(options);
  check_adapter(options, config);
  OutputFolder output(options.output_dir, options.base_model, resume, console);
  const RunDocuments documents(options, config, console);
  const std::int64_t steps = total_steps(options, documents.sampler(), options.gradient_accumulation_steps);
  RunEngine engine = make_run_engine(options, config, documents.bounds(), console);
  TrainerState state;
  state.data_fingerprint = documents.train().fingerprint();
  state.basis_fingerprint = engine.basis_fingerprint;
  state.base_fingerprint = engine.base_fingerprint;
  state.batching = batching_of(options);
  state.compute = name_of(engine.engine->options().compute);
  if (engine.adapter != nullptr) state.adapter = engine.adapter->identity();
  if (resume) {
    state = resume_run(*engine.engine, state, output, options.base_model, steps, console);
  } else {
    output.start_anew(console);
  }
  io::write_file_atomic(output.path() / "config.yaml", options::to_yaml(options));
  return Loop(options, documents, engine, output, console).run(std::move(state), steps);
}

}  // namespace

RunEnd run_training(const options::TrainOptions& options, bool resume, Console& console) {
  try {
    return run(options, resume, console);
  } catch (const Interrupted& interruption) {
    console.line(interruption.what());
    return RunEnd::interrupted;
  }
}

}  // namespace inlay::train
