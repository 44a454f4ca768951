#include "train/loop.h"

#include <chrono>
#include <cmath>

#include <nlohmann/json.hpp>

#include "backend/cuda/context.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "io/paths.h"
#include "train/batching.h"
#include "train/schedule.h"
#include "train/step_time.h"

namespace inlay::train {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The template that the conversations are written by, where it is a file of its own.
fs::path own_template(const options::TrainOptions& options) {
  std::vector<std::string> names = {options.chat_template};
  for (const data::DatasetOptions& dataset : options.datasets) names.push_back(dataset.format.chat_template);
  for (const std::string& name : names) {
    if (io::is_file(name)) return name;
  }
  return {};
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
      observer_(observer) {}

RunEnd Loop::run(TrainerState state, std::int64_t steps) {
  state_ = std::move(state);
  steps_ = steps;
  metrics_ = std::make_unique<MetricsFile>();
  by_leader(output_.ranks(), "metrics.jsonl",
            [&] { metrics_ = std::make_unique<MetricsFile>(output_.path() / "metrics.jsonl", state_.step); });
  const Schedule schedule = schedule_of(options_, steps_);
  const std::int64_t step_size = step_micro_batches(state_.batching);
  BatchStream stream(documents_.sampler(), documents_.train(), state_.epoch, state_.batch, team_);
  if (team_.size > 1) console_.line(team_text(documents_.sampler(), step_size, team_));
  const double began = now() - state_.seconds;
  remove_old_checkpoints();  // a killed run may have left too many
  if (state_.evaluation_due && state_.step < steps_ && !evaluate_now()) return stop_early();
  while (state_.step < steps_) {
    const double step_began = now();
    const TeamStep share = stream.next_step(step_size);
    const double rate = schedule.rate(state_.step);
    const StepResult result = engine_.train_step(share.micro_batches, state_.step + 1, rate,
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
    const double seconds = now() - step_began;
    const double reached = model_flops(plan_, share.micro_batches) / seconds;
    if (peak_ > 0) peak_ = std::max(peak_, reached);  // it may have been measured on a busy machine
    report(result, rate, seconds, peak_ > 0 ? reached / peak_ : 0);
    if (options_.eval_steps > 0 && state_.step % options_.eval_steps == 0 && state_.step < steps_) evaluate_now();
    const bool stop = output_.ranks().any(interrupt_requested(), "whether to stop");
    if (stop && state_.step < steps_) return stop_early();
    if (options_.save_steps > 0 && state_.step % options_.save_steps == 0) save();
  }
  return finish();
}

void Loop::write_metrics(const ordered_json& record) {
  metrics_->write(record);
  if (observer_) observer_(record.dump());
}

void Loop::check_finite(const StepResult& result) {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return;
  diverged(
      fmt::format("the loss is {} and the gradient norm {}", format_value(result.loss), format_value(result.grad_norm)),
      state_.step - 1);
}

void Loop::diverged(const std::string& what, std::int64_t bad) {
  throw Diverged(fmt::format("step {}: {}; stopped. {} A lower learning_rate or a longer warm-up usually helps",
                             state_.step, what, output_.advice_to_go_back(bad)));
}

template <class Write>
auto Loop::write_finite(const Write& write) {
  try {
    return write();
  } catch (const NotFinite& error) {
    diverged(error.what(), state_.step);
  }
}

void Loop::report(const StepResult& result, double rate, double seconds, double matmul_share) {
  const double speed = static_cast<double>(result.tokens) / seconds;
  const std::size_t device_peak = engine_.exec().arena().peak();
  state_.loss = result.loss;
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
  for (const auto& [name, value] : result.metrics) record[name] = value;
  write_metrics(record);
  const std::string share = matmul_share > 0 ? fmt::format("  {:.0f} % of peak", 100 * matmul_share) : "";
  std::string objective;
  for (const auto& [name, value] : result.metrics) {
    if (shown_in_the_log(name)) objective += fmt::format("  {} {:.4f}", name, value);
  }
  // The remaining time by this run's recent pace, which the first steps (warm-up of caches) do not know yet.
  pace_ = pace_ == 0 ? seconds : 0.9 * pace_ + 0.1 * seconds;
  const std::string line =
      fmt::format("step {}/{}  loss {:.4f}{}  norm {:.3f}  lr {:.2e}  {} tok/s{}  {}  ETA {}", state_.step, steps_,
                  result.loss, objective, result.grad_norm, rate, format_count(std::llround(speed)), share,
                  format_bytes(device_peak), format_duration(pace_ * static_cast<double>(steps_ - state_.step)));
  const bool due = state_.step % options_.logging_steps == 0 || state_.step == steps_;
  console_.status(static_cast<double>(state_.step) / static_cast<double>(steps_), line, due);
}

bool Loop::evaluate_now() {
  state_.evaluation_due = false;
  if (documents_.test().empty()) return true;
  try {
    evaluation_ = evaluate(engine_, documents_.test(), evaluators_);
  } catch (const Interrupted&) {
    state_.evaluation_due = true;
    return false;
  }
  if (!std::isfinite(evaluation_.loss)) {
    diverged(fmt::format("the evaluation's loss is {}", format_value(evaluation_.loss)), state_.step);
  }
  ordered_json record = {{"step", state_.step}, {"eval_loss", evaluation_.loss}};
  std::string line = fmt::format("step {}: eval loss {:.4f}", state_.step, evaluation_.loss);
  for (const auto& [name, value] : evaluation_.metrics) {
    record["eval_" + name] = value;
    if (shown_in_the_log(name)) line += fmt::format(", {} {:.4f}", name, value);
  }
  if (evaluation_.metrics.empty()) {
    record["eval_perplexity"] = std::exp(evaluation_.loss);
    record["eval_accuracy"] = evaluation_.accuracy;
    line +=
        fmt::format(", perplexity {:.2f}, accuracy {:.1f} %", std::exp(evaluation_.loss), 100 * evaluation_.accuracy);
  }
  record["eval_tokens"] = evaluation_.tokens;
  write_metrics(record);
  console_.line(line);
  return true;
}

fs::path Loop::save() {
  console_.status(fmt::format("step {}: saving a checkpoint", state_.step));
  by_leader(output_.ranks(), "metrics.jsonl",
            [&] { metrics_->sync(); });  // a checkpoint never knows of steps that the metrics have lost
  const fs::path folder =
      write_finite([&] { return save_checkpoint(output_.ranks(), engine_, origin_, output_.path(), state_); });
  remove_old_checkpoints();
  return folder;
}

void Loop::remove_old_checkpoints() {
  by_leader(output_.ranks(), "old checkpoints",
            [&] { train::remove_old_checkpoints(output_.path(), options_.save_total_limit); });
}

RunEnd Loop::stop_early() {
  const fs::path folder = save();
  console_.line(fmt::format(
      "interrupted after step {}; everything is saved in {}. To continue, run the same command with --resume",
      state_.step, folder.string()));
  return RunEnd::interrupted;
}

RunEnd Loop::finish() {
  if (!evaluate_now()) return stop_early();
  ordered_json summary = {{"steps", state_.step},
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
  if (!documents_.test().empty()) {
    summary["eval_loss"] = evaluation_.loss;
    if (evaluation_.metrics.empty()) summary["eval_accuracy"] = evaluation_.accuracy;
    for (const auto& [name, value] : evaluation_.metrics) summary["eval_" + name] = value;
  }
  if (options_.osft.enabled) {
    const double leak = engine_.leak();
    summary["osft"] = {{"basis", osft::name_of(options_.osft.basis)}, {"leak", leak}};
    console_.line(fmt::format("osft: of what was learned, {:.1e} lies in frozen directions", leak));
  }
  if (options_.adapter.keeps_to_free()) {
    const double leak = engine_.leak();
    summary["adapter"] = {{"init", "free"}, {"leak", leak}};
    console_.line(fmt::format("adapter: of what was learned, {:.1e} lies in frozen directions", leak));
  }
  by_leader(output_.ranks(), "metrics.jsonl", [&] { metrics_->sync(); });
  output_.publish([&](const fs::path& folder) {
    write_finite([&] { return save_model(output_.ranks(), engine_, origin_, folder); });
    by_leader(output_.ranks(), "summary.json",
              [&] { io::write_file_atomic(folder / "summary.json", summary.dump(2) + "\n"); });
  });
  console_.line(fmt::format("done: {} steps in {}, loss {:.4f}; the {} is in {}", state_.step,
                            format_duration(state_.seconds), state_.loss,
                            origin_.adapter != nullptr ? "adapter" : "model", output_.path().string()));
  return RunEnd::finished;
}

}  // namespace inlay::train
