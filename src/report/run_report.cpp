#include "report/run_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "core/arena.h"
#include "core/error.h"
#include "core/text.h"
#include "io/file.h"
#include "io/json.h"
#include "io/paths.h"
#include "options/train_options.h"
#include "train/metrics.h"

namespace inlay::report {

namespace fs = std::filesystem;

namespace {

constexpr double absent = std::numeric_limits<double>::quiet_NaN();

// A run that was killed and resumed may answer once more after the same step.
void add_answer(RunRecord& run, const std::string& prompt, RunRecord::Answer answer) {
  auto found = std::ranges::find(run.answers, prompt, [](const auto& entry) { return entry.first; });
  if (found == run.answers.end()) found = run.answers.insert(found, {prompt, {}});
  std::vector<RunRecord::Answer>& answers = found->second;
  if (!answers.empty() && answers.back().step == answer.step) answers.pop_back();
  answers.push_back(std::move(answer));
}

void read_record(const io::Json& json, RunRecord& run) {
  const std::int64_t step = json.integer("step", io::non_negative_integer);
  const auto number = [&](std::string_view key) { return json.find_number(key).value_or(absent); };
  if (const auto time = json.find_string("time")) {
    if (run.began.empty()) run.began = *time;
    run.last = *time;
  }
  run.run = json.find_string("run").value_or(run.run);
  if (const auto version = json.find_string("version");
      version && (run.versions.empty() || run.versions.back() != *version)) {
    run.versions.push_back(*version);
  }
  run.total_steps = json.find_integer("total_steps").value_or(run.total_steps);
  if (json.has("samples")) {
    for (const io::Json& sample : json.array("samples")) {
      add_answer(run, sample.string("prompt"), {.step = step, .text = sample.string("answer")});
    }
    return;
  }
  if (json.has("eval_loss")) {
    run.evaluations.push_back({.step = step, .loss = number("eval_loss"), .accuracy = number("eval_accuracy")});
    return;
  }
  run.steps.push_back({.step = step,
                       .epoch = json.find_integer("epoch").value_or(0),
                       .loss = number("loss"),
                       .grad_norm = number("grad_norm"),
                       .raw_grad_norm = number("raw_grad_norm"),
                       .learning_rate = number("lr"),
                       .tokens_per_second = number("tokens_per_second"),
                       .device_bytes = number("device_peak_bytes"),
                       .host_bytes = number("host_peak_bytes"),
                       .seconds = number("seconds"),
                       .tokens = number("tokens_total")});
}

std::vector<RunRecord::Fact> read_summary(const fs::path& file) {
  const io::Json json = io::Json::read(file).expect_object();
  std::vector<RunRecord::Fact> facts;
  const auto add = [&](std::string_view name, const std::optional<std::string>& value) {
    if (value) facts.push_back({std::string(name), *value});
  };
  const auto number = [&](std::string_view key, auto format) -> std::optional<std::string> {
    const auto value = json.find_number(key);
    return value ? std::optional<std::string>(format(*value)) : std::nullopt;
  };
  const auto count = [](double value) { return format_count(std::llround(value)); };
  const auto bytes = [](double value) { return format_bytes(static_cast<std::uint64_t>(std::max(0.0, value))); };
  const auto date = [&](std::string_view key) { return json.find_string(key); };
  add("began", date("began"));
  add("ended", date("ended"));
  add("run", json.find_string("run"));
  add("version", json.find_string("version"));
  if (json.has("best")) {
    const io::Json best = json.object("best");
    add("best step", fmt::format("{}, {} {:.6g}", format_count(best.integer("step", io::non_negative_integer)),
                                 best.string("metric"), best.number("value")));
    add("step of the result", number("result_step", count));
  }
  if (json.has("stopped_early")) add("stopped early", "yes");
  add("steps", number("steps", count));
  add("tokens", number("tokens", count));
  add("time", number("seconds", format_duration));
  add("tokens per second, including evaluation and checkpoints", number("tokens_per_second", count));
  add("parameters", number("parameters", count));
  add("device", json.find_string("device"));
  add("dtype", json.find_string("dtype"));
  add("activations", json.find_string("activation_policy"));
  add("device memory, planned", number("planned_device_peak_bytes", bytes));
  add("device memory, peak", number("device_peak_bytes", bytes));
  add("host memory, peak", number("host_peak_bytes", bytes));
  return facts;
}

void describe_data(const options::TrainOptions& options, RunRecord& run) {
  for (const data::DatasetOptions& dataset : options.datasets) run.data.push_back({"learned", dataset.path});
  for (const data::DatasetOptions& dataset : options.test_datasets) run.data.push_back({"evaluated on", dataset.path});
  if (options.val_set_size > 0) {
    run.data.push_back({"evaluated on", options.val_set_size < 1
                                            ? fmt::format("{} % of it, held out", 100 * options.val_set_size)
                                            : fmt::format("{} documents of it, held out", options.val_set_size)});
  }
}

std::vector<RunSample> read_samples(const fs::path& file) {
  std::vector<RunSample> samples;
  for (const io::Json& json : io::Json::read(file).elements()) {
    samples.push_back({json.string("prompt"), json.string("before"), json.string("after")});
  }
  return samples;
}

}  // namespace

RunRecord read_run(const fs::path& folder) {
  if (!io::is_folder(folder)) user_error("{}: is not a folder; expected the output_dir of a run", folder.string());
  if (!io::exists(folder / "metrics.jsonl")) {
    user_error("{}: is not a run: there is no metrics.jsonl; expected the output_dir of inlay train", folder.string());
  }
  RunRecord run;
  const fs::path whole = io::real_path(folder);
  run.name = whole.filename().string();
  train::read_metrics(folder / "metrics.jsonl",
                      [&](std::string_view, const io::Json& record) { read_record(record, run); });
  run.finished = io::exists(folder / "summary.json");
  if (run.finished) {
    run.facts = read_summary(folder / "summary.json");
    run.result_step = io::Json::read(folder / "summary.json").expect_object().find_integer("result_step");
  }
  if (io::exists(folder / "config.yaml")) {
    constexpr std::size_t most = std::size_t{16} << 20;
    run.config = io::read_file(folder / "config.yaml", most);
    try {
      const options::TrainOptions options = options::parse_options(run.config, (folder / "config.yaml").string(), {});
      run.base_model = options.base_model;
      describe_data(options, run);
    } catch (const UserError&) {
      // Another version's keys: the page shows the text all the same.
    }
  }
  if (io::exists(folder / "samples.json")) run.samples = read_samples(folder / "samples.json");
  return run;
}

void write_samples(const fs::path& folder, const std::vector<RunSample>& samples) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RunSample& sample : samples) {
    list.push_back({{"prompt", sample.prompt}, {"before", sample.before}, {"after", sample.after}});
  }
  // A continuation may end within a character.
  using Handler = nlohmann::ordered_json::error_handler_t;
  io::write_file_atomic(folder / "samples.json", list.dump(2, ' ', false, Handler::replace) + "\n");
}

}  // namespace inlay::report
