#include "train/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <nlohmann/json.hpp>

#include "backend/cuda/context.h"
#include "core/clock.h"
#include "core/interrupt.h"
#include "core/terminal.h"
#include "core/text.h"
#include "core/version.h"
#include "io/paths.h"
#include "train/batching.h"
#include "train/model_card.h"
#include "train/run_length.h"
#include "train/schedule.h"
#include "train/step_time.h"

namespace inlay::train {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The text of the template that the conversations are written by, where it is not the model's own.
std::string own_template(const options::TrainOptions& options) {
  std::vector<std::string> names = {options.chat_template};
  for (const data::DatasetOptions& dataset : options.datasets) names.push_back(dataset.format.chat_template);
  for (const std::string& name : names) {
    if (const auto text = data::template_text(name, options.base_model)) return *text;
  }
  return {};
}

// The beginning of a text, for a line of the log.
std::string beginning_of(std::string text) {
  constexpr std::size_t most = 100;
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  const std::string_view first = first_characters(text, most);
  return first.size() == text.size() ? text : std::string(first) + "…";
}

// Of an objective's metrics: the line has room for those that say whether it learns.
bool shown_in_the_log(std::string_view metric) { return metric != "ce_loss" && !metric.starts_with("logps/"); }

}  // namespace

Loop::Loop(const options::TrainOptions& options, const RunDocuments& documents, RunEngine& engine, OutputFolder& output,
           Console& console, const MetricsObserver& observer)
    : options_(options),
      documents_(documents),
      engine_(*engine.engine),
      plan_(engine.plan),
      peak_(engine.peak),
      output_(output),
      console_(console),
      origin_{options.base_model, own_template(options), engine.adapter},
      team_{.rank = output.ranks().rank(),
            .size = output.ranks().size(),
            .cost = deal_cost(plan_),
            .whole_batches =
                engine_.decoder().config().experts.balance > 0 || engine_.decoder().objective().wants_whole_batches()},
      evaluators_{
          .ranks = engine_.options().mesh.all, .cost = team_.cost, .idle = [this] { engine_.idle_evaluation(); }},
      observer_(observer),
      expected_speed_(engine.tokens_per_second),
      saver_(engine_.options().mesh.all) {
  if (!options.sample_prompts.empty()) {
    samples_.emplace(options);
    samples_->check_tokens(engine_.decoder().config().vocab);
  }
  if (options.on_policy()) answers_.emplace(options, documents.shown(), console);
}

RunEnd Loop::run(TrainerState state, std::int64_t steps) {
  state_ = std::move(state);
  steps_ = steps;
  saved_ = state_.step;  // a run begins with nothing, or goes on from a checkpoint
  metrics_ = std::make_unique<MetricsFile>();
  by_leader(output_.ranks(), "metrics.jsonl",
            [&] { metrics_ = std::make_unique<MetricsFile>(output_.path() / "metrics.jsonl", state_.step); });
  if (output_.ranks().leads()) {
    boards_ = make_boards(options_, {.output = output_.path(),
                                     .run = state_.run,
                                     .version = std::string(version_number()),
                                     .resumed_after = state_.step});
  }
  const Schedule schedule = schedule_of(options_, steps_);
  for (std::int64_t step = 0; step < state_.step; ++step) engine_.account(schedule.rate(step));
  const std::int64_t step_size = step_micro_batches(state_.batching);
  ReplaceDocuments replace;
  if (answers_) {
    replace = [this](std::span<const data::BatchSampler::Piece> pieces, std::vector<Document> documents) {
      return answers_->write(engine_, state_.step + 1, pieces, std::move(documents));
    };
  }
  BatchStream stream(documents_.sampler(), documents_.train(), state_.epoch, state_.batch, team_, replace);
  if (team_.size > 1) console_.line(team_text(documents_.sampler(), step_size, team_));
  const double began = now() - state_.seconds;
  const RunLength length = run_length(steps_, documents_.sampler(), step_size, expected_speed_);
  console_.line(fmt::format("run {}: {}", state_.run, text_of(length)));
  if (schedule.warmup_steps >= steps_) {
    console_.line(fmt::format("note: the warm-up takes {}, so the learning rate does not reach {:g}",
                              counted(schedule.warmup_steps, "step"), schedule.peak));
  }
  remove_old_checkpoints();  // a killed run may have left too many
  const bool evaluated =
      state_.step < steps_ && (state_.evaluation_due || (state_.step == 0 && options_.eval_on_start));
  if (evaluated && !evaluate_now()) return stop_between("evaluating before the first step");
  if (state_.step == 0) sample_now();
  if (state_.step > 0 && evaluated) save_where_due();
  while (state_.step < steps_ && !stops_early(options_, state_.best)) {
    const double step_began = now();
    TeamStep share;
    try {
      share = stream.next_step(step_size);
    } catch (const Interrupted&) {
      return stop_between("writing the answers of the first step");
    }
    const double rate = schedule.rate(state_.step);
    StepResult result = engine_.train_step(share.micro_batches, state_.step + 1, rate,
                                           {.first_micro_batch = share.first_micro_batch,
                                            .passes = share.passes,
                                            .tokens = share.tokens,
                                            .valid = share.valid,
                                            .weight = share.weight});
    ++state_.step;
    state_.epoch = stream.epoch();
    state_.batch = stream.batch();
    state_.tokens += result.tokens;
    state_.seconds = now() - began;
    host_peak_ = std::max(host_peak_, resident_bytes());
    check_finite(result);
    if (answers_ && answers_->share()) result.metrics.emplace_back("rewritten", *answers_->share());
    const double seconds = now() - step_began;
    const double reached = model_flops(plan_, share.micro_batches) / seconds;
    if (peak_ > 0) peak_ = std::max(peak_, reached);  // it may have been measured on a busy machine
    report(result, rate, seconds, peak_ > 0 ? reached / peak_ : 0);
    const auto due = [&](std::int64_t every) { return every > 0 && state_.step % every == 0 && state_.step < steps_; };
    if (due(options_.eval_steps)) evaluate_now();
    if (due(options_.sample_steps > 0 ? options_.sample_steps : options_.eval_steps)) sample_now();
    const bool stop = output_.ranks().any(interrupt_requested(), "whether to stop");
    if (stop && state_.step < steps_) return stop_early();
    save_where_due();
    with_saver([&] { saver_.check(); });
  }
  return finish();
}

void Loop::write_metrics(ordered_json record) {
  const double time = wall_clock();
  record["time"] = utc_text(time);
  record["run"] = state_.run;
  record["version"] = version_number();
  const bool is_new = metrics_->write(record);
  const std::string line = record.dump();
  if (observer_) observer_(line);
  const BoardRecord shown = board_record(line, time);
  for (const auto& board : boards_) {  // they were told of the others before the run was killed
    if (is_new && !shown.values.empty()) board->offer(shown);
  }
  tell_of_boards();
}

void Loop::tell_of_boards() {
  for (const auto& board : boards_) {
    for (const std::string& message : board->take_messages()) console_.line(message);
  }
}

void Loop::end_boards(BoardEnd how) {
  if (!boards_.empty()) console_.status("handing the last records to the boards");
  for (const auto& board : boards_) board->end(how);
  tell_of_boards();
}

void Loop::check_finite(const StepResult& result) {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return;
  diverged(
      state_.step,
      fmt::format("the loss is {} and the gradient norm {}", format_value(result.loss), format_value(result.grad_norm)),
      state_.step - 1);
}

void Loop::diverged(std::int64_t step, const std::string& what, std::int64_t bad) {
  try {
    saver_.wait();  // what is being written is to be spoken of, too
  } catch (const UserError&) {
    // The run ends anyway, and for a better reason.
  }
  throw Diverged(fmt::format("step {}: {}; stopped. {} A lower learning_rate or a longer warm-up usually helps", step,
                             what, output_.advice_to_go_back(bad)));
}

template <class Write>
auto Loop::write_finite(const Write& write) {
  try {
    return write();
  } catch (const NotFinite& error) {
    diverged(state_.step, error.what(), state_.step);
  }
}

void Loop::report(const StepResult& result, double rate, double seconds, double matmul_share) {
  const double speed = static_cast<double>(result.tokens) / seconds;
  const std::size_t device_peak = engine_.exec().arena().peak();
  state_.loss = result.loss;
  ordered_json record = {{"step", state_.step},
                         {"total_steps", steps_},
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
  for (const auto& [name, value] : result.metrics) record[name] = value;
  write_metrics(record);
  const std::string share = matmul_share > 0 ? fmt::format("  {:.0f} % of peak", 100 * matmul_share) : "";
  const std::string machine = share + "  " + format_bytes(device_peak);
  std::string objective;
  for (const auto& [name, value] : result.metrics) {
    if (shown_in_the_log(name)) objective += fmt::format("  {} {}", name, format_decimals(value, 4));
  }
  // The remaining time by this run's recent pace, which the first steps (warm-up of caches) do not know yet.
  pace_ = pace_ == 0 ? seconds : 0.9 * pace_ + 0.1 * seconds;
  const std::string left = "  ETA " + format_duration(pace_ * static_cast<double>(steps_ - state_.step));
  const auto line = [&](double loss, bool live, const std::string& more) {
    // A narrow terminal shows the beginning of the line that passes by, and people watch it for the time that is left.
    return fmt::format("step {}/{}{}  loss {:.4f}{}  norm {:.3f}  lr {:.2e}  {} tok/s{}{}", state_.step, steps_,
                       live ? left : "", loss, objective, result.grad_norm, rate, format_count(std::llround(speed)),
                       more, live ? "" : left);
  };
  const double done = static_cast<double>(state_.step) / static_cast<double>(steps_);
  history_.add(result.loss, done, now());
  const bool due = state_.step % options_.logging_steps == 0 || state_.step == steps_;
  // What stays has the mean since the line before it, what passes by the step's own loss.
  if (due && (history_.due() || !console_.live())) {
    const double mean = history_.take();
    const std::string whole = line(mean, false, machine);
    console_.line(console_.fits(whole) ? whole : line(mean, false, ""));  // metrics.jsonl has the rest of it
  }
  if (console_.live()) console_.status(done, line(result.loss, true, machine));
}

bool Loop::evaluate_now() {
  state_.evaluation_due = false;
  if (documents_.test().empty() || state_.evaluated.step == state_.step) return true;
  Evaluation found;
  try {
    found = evaluate(engine_, documents_.test(), evaluators_);
  } catch (const Interrupted&) {
    state_.evaluation_due = true;
    return false;
  }
  if (!std::isfinite(found.loss)) {
    diverged(state_.step, fmt::format("the evaluation's loss is {}", format_value(found.loss)), state_.step);
  }
  state_.evaluated = {.step = state_.step, .loss = found.loss, .accuracy = found.accuracy, .metrics = found.metrics};
  const std::int64_t before = state_.best.at.step;
  const bool best = note_evaluation(options_, state_.evaluated, state_.best);
  if (best) {
    outdone_ = before;
    if (options_.loads_best()) state_.best.leak = measured_leak();
  }
  ordered_json record = {{"step", state_.step}, {"eval_loss", found.loss}};
  std::string line = fmt::format("step {}: eval loss {:.4f}", state_.step, found.loss);
  for (const auto& [name, value] : found.metrics) {
    record["eval_" + name] = value;
    if (shown_in_the_log(name)) line += fmt::format(", {} {}", name, format_decimals(value, 4));
  }
  if (found.metrics.empty()) {
    record["eval_perplexity"] = std::exp(found.loss);
    record["eval_accuracy"] = found.accuracy;
    line += fmt::format(", perplexity {:.2f}, accuracy {:.1f} %", std::exp(found.loss), 100 * found.accuracy);
  }
  record["eval_tokens"] = found.tokens;
  if (state_.best.at.known()) record["best_step"] = state_.best.at.step;
  write_metrics(std::move(record));
  std::string note;
  if (best && before >= 0) note = ", the best so far";
  if (state_.best.not_improved > 0 && options_.early_stopping_patience > 0) {
    note = fmt::format("; {} of {} evaluations without improvement", state_.best.not_improved,
                       options_.early_stopping_patience);
  }
  console_.line(line + note);
  return true;
}

void Loop::sample_now() {
  if (!samples_ || sampled_ == state_.step) return;
  sampled_ = state_.step;
  console_.status(fmt::format("step {}: sampling", state_.step));
  const std::vector<std::string> answers = samples_->make(engine_);
  ordered_json list = ordered_json::array();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::string& prompt = samples_->prompts()[i];
    list.push_back({{"prompt", prompt}, {"answer", answers[i]}});
    console_.line(fmt::format("step {}: {} → {}", state_.step, beginning_of(prompt), beginning_of(answers[i])));
  }
  write_metrics({{"step", state_.step}, {"samples", std::move(list)}});
}

double Loop::measured_leak() { return options_.osft.enabled || options_.adapter.keeps_to_free() ? engine_.leak() : 0; }

fs::path Loop::save(Contents contents) {
  settle_saver();
  saved_ = state_.step;
  console_.status(fmt::format("step {}: saving a checkpoint", state_.step));
  by_leader(output_.ranks(), "metrics.jsonl",
            [&] { metrics_->sync(); });  // a checkpoint never knows of steps that the metrics have lost
  const fs::path folder = write_finite(
      [&] { return save_checkpoint(output_.ranks(), engine_, origin_, output_.path(), state_, contents); });
  remove_old_checkpoints();
  return folder;
}

template <class Work>
void Loop::with_saver(const Work& work) {
  try {
    work();
  } catch (const NotFinite& error) {
    diverged(saver_.step(), error.what(), saver_.step());
  }
}

void Loop::settle_saver() {
  with_saver([&] { saver_.wait(); });
}

void Loop::save_where_due() {
  const auto regular = [&](std::int64_t step) { return options_.save_steps > 0 && step % options_.save_steps == 0; };
  const bool best = options_.saves_best() && state_.best.at.step == state_.step;
  if (!best && !regular(state_.step)) return;
  saved_ = state_.step;
  const Contents contents = options_.save_only_model ? Contents::model : Contents::all;
  // One that was saved for being the best is no longer needed then, unless they were asked for.
  const bool kept = options_.save_strategy == options::When::best || regular(outdone_);
  const std::int64_t outdone = best && outdone_ >= 0 && !kept ? outdone_ : -1;
  if (best) outdone_ = -1;
  const auto remove_outdone = [this, outdone] {
    const fs::path folder = checkpoint_folder(output_.path(), outdone);
    if (outdone >= 0 && io::exists(folder)) remove_checkpoint(folder);
  };
  if (engine_.staging() == nullptr) {
    save(contents);
    by_leader(output_.ranks(), "old checkpoints", remove_outdone);
    return;
  }
  settle_saver();
  std::function<void(Communicator&)> write;
  parallel::together(output_.ranks(), "a copy for the checkpoint",
                     [&] { write = stage_checkpoint(engine_, origin_, output_.path(), state_, contents); });
  saver_.submit(state_.step, [this, write, remove_outdone, best_step = state_.best.at.step](Communicator& ranks) {
    by_leader(ranks, "metrics.jsonl", [&] { metrics_->sync(); });
    write(ranks);
    by_leader(ranks, "old checkpoints", [&] {
      train::remove_old_checkpoints(output_.path(), options_.save_total_limit, best_step);
      remove_outdone();
    });
  });
}

void Loop::remove_old_checkpoints() {
  by_leader(output_.ranks(), "old checkpoints",
            [&] { train::remove_old_checkpoints(output_.path(), options_.save_total_limit, state_.best.at.step); });
}

RunEnd Loop::stop_between(std::string_view doing) {
  if (state_.step > 0) return stop_early();
  end_boards(BoardEnd::stopped);
  console_.line(fmt::format("interrupted while {}; nothing was written", doing));
  return RunEnd::interrupted;
}

RunEnd Loop::stop_early() {
  const fs::path folder = save(Contents::all);
  end_boards(BoardEnd::stopped);
  console_.line(fmt::format(
      "interrupted after step {}; everything is saved in {}. To continue, run the same command with --resume",
      state_.step, folder.string()));
  return RunEnd::interrupted;
}

std::optional<fs::path> Loop::best_checkpoint() {
  if (!options_.loads_best() || !state_.best.at.known() || state_.best.at.step == state_.step) return std::nullopt;
  const fs::path folder = checkpoint_folder(output_.path(), state_.best.at.step);
  bool there = false;
  by_leader(output_.ranks(), "the best checkpoint", [&] { there = io::exists(folder); });
  if (output_.ranks().any(there, "the best checkpoint")) return folder;
  console_.line(fmt::format("{}, the best checkpoint, is gone: the result is the last step's model", folder.string()));
  return std::nullopt;
}

RunEnd Loop::finish() {
  if (!evaluate_now()) return stop_early();
  sample_now();
  const bool early = stops_early(options_, state_.best) && state_.step < steps_;
  if (early) {
    // By a threshold one may have been the best all the same.
    const double threshold = options_.early_stopping_threshold;
    console_.line(fmt::format("stopped early: {} no better{}",
                              counted(state_.best.not_improved, "evaluation was", "evaluations in a row were"),
                              threshold > 0 ? fmt::format(" by more than {} (early_stopping_threshold)", threshold)
                                            : fmt::format(" than that of step {}", state_.best.at.step)));
    // For those who want to go on after all.
    if (options_.save_steps > 0 && state_.step % options_.save_steps != 0) save(Contents::all);
  }
  if (options_.save_strategy == options::When::best && saved_ != state_.step) save_where_due();
  settle_saver();
  const std::optional<fs::path> best = best_checkpoint();
  const Evaluated& evaluated = best ? state_.best.at : state_.evaluated;  // of the result
  ordered_json summary = {{"run", state_.run},
                          {"version", version_number()},
                          {"began", state_.began},
                          {"ended", utc_text(wall_clock())},
                          {"steps", state_.step},
                          {"loss", state_.loss},
                          {"tokens", state_.tokens},
                          {"seconds", state_.seconds},
                          {"tokens_per_second", static_cast<double>(state_.tokens) / std::max(state_.seconds, 1e-9)},
                          {"parameters", engine_.decoder().config().parameter_count()},
                          {"trainable_parameters", plan_.trained},
                          {"device", engine_.options().device == Device::cuda ? backend::cuda::device_name() : "cpu"},
                          {"dtype", name_of(engine_.options().compute)},
                          {"activation_policy", engine_.options().policy.str()},
                          {"deterministic", engine_.options().device == Device::cpu || options_.deterministic},
                          {"planned_device_peak_bytes", plan_.device_peak},
                          {"device_peak_bytes", engine_.exec().arena().peak()},
                          {"host_peak_bytes", host_peak_}};
  if (evaluated.known()) {
    summary["eval_loss"] = evaluated.loss;
    if (evaluated.metrics.empty()) summary["eval_accuracy"] = evaluated.accuracy;
    for (const auto& [name, value] : evaluated.metrics) summary["eval_" + name] = value;
  }
  if (state_.best.at.known()) {
    summary["best"] = {{"step", state_.best.at.step},
                       {"metric", options::name_of(options_.best_metric())},
                       {"value", state_.best.at.value(options_.best_metric())}};
    summary["result_step"] = best ? state_.best.at.step : state_.step;
  }
  if (early) summary["stopped_early"] = {{"step", state_.step}, {"evaluations", state_.best.not_improved}};
  if (options_.osft.enabled || options_.adapter.keeps_to_free()) {
    const double leak = best ? state_.best.leak : measured_leak();
    const char* const what = options_.osft.enabled ? "osft" : "adapter";
    if (options_.osft.enabled) {
      summary["osft"] = {{"basis", osft::name_of(options_.osft.basis)}, {"leak", leak}};
    } else {
      summary["adapter"] = {{"init", "free"}, {"leak", leak}};
    }
    console_.line(fmt::format("{}: of what was learned, {:.1e} lies in frozen directions", what, leak));
  }
  by_leader(output_.ranks(), "metrics.jsonl", [&] { metrics_->sync(); });
  output_.publish([&](const fs::path& folder) {
    if (best) {
      by_leader(output_.ranks(), "the best model", [&] { take_model(*best, folder); });
    } else {
      write_finite([&] { return save_model(output_.ranks(), engine_, origin_, folder); });
    }
    by_leader(output_.ranks(), "summary.json",
              [&] { io::write_file_atomic(folder / "summary.json", summary.dump(2) + "\n"); });
    by_leader(output_.ranks(), card_file, [&] {
      io::write_file_atomic(folder / card_file, model_card({.options = options_,
                                                            .summary = summary,
                                                            .metrics = output_.path() / "metrics.jsonl",
                                                            .data_fingerprint = state_.data_fingerprint,
                                                            .base_fingerprint = state_.base_fingerprint}));
    });
  });
  end_boards(BoardEnd::finished);
  console_.line(
      fmt::format("done: {} in {}, loss {:.4f}; the {}{} is in {}", counted(state_.step, "step"),
                  format_duration(state_.seconds), state_.loss, origin_.adapter != nullptr ? "adapter" : "model",
                  best ? fmt::format(" of step {}, the best,", state_.best.at.step) : "", output_.path().string()));
  return RunEnd::finished;
}

}  // namespace inlay::train
