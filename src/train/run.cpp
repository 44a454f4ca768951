#include "train/run.h"

#include <random>

#include "core/clock.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "data/dataset_files.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "parallel/processes.h"
#include "train/batch_stream.h"
#include "train/batching.h"
#include "train/board.h"
#include "train/disk_need.h"
#include "train/loop.h"
#include "train/objective.h"
#include "train/reference.h"
#include "train/schedule.h"
#include "train/self_distillation.h"

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
  // An earlier version kept no fingerprint of them.
  if (!saved.adapter_targets.empty() && saved.adapter_targets != now.adapter_targets) {
    user_error("{}: the adapter's targets are not those of the run; resume with the run's own {}", folder,
               adapter::target_keys);
  }
  if (saved.basis_fingerprint != now.basis_fingerprint) {
    // With an adapter both search for directions or neither does: lora_init was compared above.
    if (now.basis_fingerprint.empty()) {
      user_error("{}: the run uses osft, but now it is off; resume with the run's own osft keys", folder);
    }
    if (saved.basis_fingerprint.empty()) {
      user_error("{}: the run does not use osft, but now it is on; resume without the osft keys", folder);
    }
    user_error(
        "{}: the directions found now are not those of the run (fingerprint {} now, {} then); resume with the run's "
        "base model, {} and osft keys, machine and number of processes, or with its osft.cache",
        folder, now.basis_fingerprint, saved.basis_fingerprint, now.adapter.empty() ? "freeze" : "adapter");
  }
}

// A run that stopped early would stop again, unless it is given more patience.
void check_not_stopped(const options::TrainOptions& options, const std::filesystem::path& output) {
  const io::Json summary = io::Json::read(output / "summary.json");
  if (!summary.has("stopped_early") || options.early_stopping_patience == 0) return;
  const std::int64_t waited = summary.object("stopped_early").integer("evaluations", io::non_negative_integer);
  if (waited < options.early_stopping_patience) return;
  user_error(
      "{}: the run is complete: it stopped early after step {}, because {} no better than the best{}; to continue, "
      "raise early_stopping_patience",
      output.string(), summary.integer("steps", io::non_negative_integer),
      counted(waited, "evaluation was", "evaluations in a row were"),
      options.early_stopping_threshold > 0 ? " by more than early_stopping_threshold" : "");
}

// Where the latest checkpoint stands, and how far the run goes by it.
struct Resumed {
  TrainerState state;
  std::int64_t steps = 0;
};
Resumed resumed_run(const options::TrainOptions& options, const RunDocuments& documents, const TrainerState& now,
                    const OutputFolder& output, Console& console) {
  const std::string folder = output.checkpoint()->string();
  Resumed result{.state = read_trainer_state(folder)};
  const TrainerState& saved = result.state;
  check_same_run(saved, now, options.base_model, folder);
  // On another number of processes its steps stay as large as they were.
  result.steps = total_steps(options, documents.sampler(), step_micro_batches(saved.batching));
  if (saved.step >= result.steps && output.finished()) {
    user_error("{}: the run is complete after {}; to continue, raise max_steps or num_epochs", output.path().string(),
               counted(saved.step, "step"));
  }
  if (output.finished()) check_not_stopped(options, output.path());
  const std::string note = step_size_note(saved.batching, options, output.ranks().size());
  if (!note.empty()) console.line(note);
  return result;
}

// What is wrong with the adapter shall not come out after the data was read.
void check_adapter(const options::TrainOptions& options, const model::ModelConfig& config) {
  if (adapter_of(options, config) == nullptr || options.adapter.model_dir.empty()) return;
  adapter::AdapterFile(options.adapter.model_dir, config).check_base(io::Checkpoint(options.base_model));
}

// What tells its records from those of other runs.
std::string new_run_name() {
  std::random_device device;
  const std::uint64_t high = device(), low = device();
  return fmt::format("{:016x}", high << 32 | low);
}

// The files that a dataset is read from and how long they are, a line for each: what can be said of them at once. What
// they hold is compared when it has been read.
std::string files_text(const std::vector<data::DatasetOptions>& datasets) {
  std::string text;
  for (const data::DatasetOptions& dataset : datasets) {
    if (!data::is_there(dataset)) {
      text += dataset.path + " is not there\n";
      continue;
    }
    for (const std::filesystem::path& file : data::find_files(dataset).files) {
      std::error_code error;
      const std::uintmax_t bytes = std::filesystem::file_size(file, error);
      text += fmt::format("{} with {}\n", file.string(), error ? error.message() : fmt::format("{} bytes", bytes));
    }
  }
  return text;
}

// Processes that would do different things must not begin.
void check_same_everywhere(const options::TrainOptions& options, parallel::Communicator& communicator) {
  if (communicator.single()) return;
  parallel::agree_on(communicator, {{"configuration", options::to_yaml(options)}});
  parallel::Facts facts;
  together(communicator, "comparing program, model and data", [&] {
    const auto weights = [](const std::string& model) {
      return fmt::format("{:016x}", io::Checkpoint(model).sampled_hash());
    };
    facts = {{"program", fmt::format("{:016x}", io::content_hash(io::MappedFile("/proc/self/exe").bytes()))},
             {"base model", weights(options.base_model)},
             {"set of data files", files_text(options.datasets)},
             {"set of test data files", files_text(options.test_datasets)}};
    if (!options.distillation.teacher.empty()) facts.emplace_back("teacher", weights(options.distillation.teacher));
  });
  parallel::agree_on(communicator, facts);
}

// Of the exception that is being handled: whether the other ranks know nothing of it.
bool is_of_this_rank() {
  try {
    throw;
  } catch (const parallel::SharedError&) {
    return false;
  } catch (const Diverged&) {  // all have met the same numbers
    return false;
  } catch (const parallel::FailedElsewhere&) {
    return false;
  } catch (...) {
    return true;
  }
}

// Before the minutes that directions, or a reference's predictions, may take: room for what the plan says. Adaptive
// ranks are not known yet. What is wrong with the options is so on all ranks.
void require_planned_room(const options::TrainOptions& options, const model::ModelConfig& config,
                          const RunDocuments& documents, parallel::Communicator& ranks) {
  if (options.finds_directions() && options.osft.ranks == osft::Ranks::adaptive) return;
  DiskNeed need;
  parallel::together(ranks, "what is written to the disk", [&] {
    EngineOptions engine = engine_options(options, documents.bounds());
    plan_weights(options, config, documents.bounds(), engine);
    const std::int64_t micro_batches = step_micro_batches(batching_of(options, ranks.size()));
    need = disk_need(options, config, engine, {.steps = total_steps(options, documents.sampler(), micro_batches)});
  });
  by_leader(ranks, "room on the disk", [&] { require_room(need, options); });
}

// The folder first, so that no work is done in vain; then what is learned, what learns it, and the steps. What goes
// wrong on the way there goes wrong on all ranks.
RunEnd run(const options::TrainOptions& options, bool resume, Console& console,
           const std::shared_ptr<parallel::Communicator>& ranks, const MetricsObserver& observer) {
  check_same_everywhere(options, *ranks);
  std::optional<model::ModelConfig> config;
  parallel::together(*ranks, "reading the model's configuration", [&] {
    check_shared_answers(options, ranks->size());
    check_boards(options);
    config = config_of(options);
    check_adapter(options, *config);
    check_teacher(options, *config);
  });
  OutputFolder output(*ranks, options.output_dir, options.base_model, resume, console);
  std::optional<RunDocuments> documents;
  together_as<Interrupted>(*ranks, "reading data", [&] { documents.emplace(options, *config, console); });
  if (!ranks->single()) {
    parallel::agree_on(*ranks,
                       {{"data", documents->train().fingerprint()}, {"test data", documents->test_fingerprint()}});
  }
  if (!resume) require_planned_room(options, *config, *documents, *ranks);
  RunEngine engine = make_run_engine(options, *config, documents->bounds(), console, ranks);
  add_reference(options, engine, *documents, console, ranks);
  TrainerState state;
  state.run = ranks->from_leader(new_run_name(), "the run's name");
  state.began = utc_text(wall_clock());
  state.data_fingerprint = documents->train().fingerprint();
  mask_surprising(options, engine, *documents, console);  // the fingerprint is that of the data as it was read
  state.basis_fingerprint = engine.basis_fingerprint;
  state.base_fingerprint = engine.base_fingerprint;
  state.batching = batching_of(options, ranks->size());
  state.compute = arithmetic_text(engine.engine->options());
  state.objective = objective_text(options::with_absolute_paths(options));
  if (engine.adapter != nullptr) {
    state.adapter = engine.adapter->identity();
    state.adapter_targets = engine.adapter->targets_fingerprint();
  }
  std::int64_t steps = total_steps(options, documents->sampler(), step_micro_batches(state.batching));
  if (resume) {
    Resumed resumed;
    parallel::together(*ranks, "the checkpoint's state",
                       [&] { resumed = resumed_run(options, *documents, state, output, console); });
    load_checkpoint(*ranks, *engine.engine, *output.checkpoint());
    console.line(fmt::format("resuming after step {} from {}", resumed.state.step, output.checkpoint()->string()));
    if (resumed.state.compute != state.compute) {
      console.line(fmt::format("trained in {} so far, from here on in {}", resumed.state.compute, state.compute));
      resumed.state.compute = state.compute;
    }
    if (resumed.state.objective && resumed.state.objective != state.objective) {
      const auto named = [](const std::string& text) { return text.empty() ? "objective: next tokens" : text; };
      console.line(fmt::format("so far it learned with another {}", named(*resumed.state.objective)));
    }
    resumed.state.objective = state.objective;
    if (resumed.state.run.empty()) {  // by a version that gave runs no names
      resumed.state.run = state.run;
      resumed.state.began = state.began;
    }
    state = resumed.state;
    steps = resumed.steps;
  } else {
    output.start_anew(console);
  }
  const auto epoch_batches = static_cast<double>(documents->sampler().batches_per_epoch(0));
  const options::TrainOptions resolved =
      in_steps(options, steps, epoch_batches / static_cast<double>(step_micro_batches(state.batching)));
  by_leader(*ranks, "room on the disk", [&] {
    // What a killed run has left too many of makes room.
    remove_old_checkpoints(output.path(), options.save_total_limit, state.best.at.step);
    const Ahead ahead{.steps = steps,
                      .done = state.step,
                      .checkpoints = static_cast<std::int64_t>(checkpoints_in(output.path()).size())};
    check_room(disk_need(resolved, *config, engine.engine->options(), ahead), resolved, console);
  });
  by_leader(*ranks, "config.yaml", [&] {
    io::write_file_atomic(output.path() / "config.yaml", options::to_yaml(options::with_absolute_paths(resolved)));
  });
  Loop loop(resolved, *documents, engine, output, console, observer);
  try {
    return loop.run(std::move(state), steps);
  } catch (...) {
    // The loop waits for the file that is being written when it goes, and the others would wait for this rank as long.
    if (is_of_this_rank()) parallel::fail_alone([&] { loop.give_up(); });
    throw;
  }
}

}  // namespace

RunEnd run_training(const options::TrainOptions& options, bool resume, Console& console,
                    const std::shared_ptr<parallel::Communicator>& ranks, const MetricsObserver& observer) {
  try {
    return run(options, resume, console, ranks, observer);
  } catch (const Diverged& error) {
    if (ranks->single()) throw;
    throw parallel::SharedError(error.what());  // all have met the same numbers
  } catch (const Interrupted& interruption) {
    if (!ranks->single()) throw;  // the others have not stopped here
    console.line(interruption.what());
    return RunEnd::interrupted;
  }
}

}  // namespace inlay::train
