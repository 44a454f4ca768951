#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What a run left in its folder, and the page that shows it.
namespace inlay::report {

// samples.json: [{"prompt": …, "before": …, "after": …}], continuations by the base model and by the run's.
struct RunSample {
  std::string prompt, before, after;
};

struct RunRecord {
  struct Step {
    std::int64_t step = 0, epoch = 0;
    // Not a number where the file says null or nothing.
    double loss = 0, grad_norm = 0, raw_grad_norm = 0, learning_rate = 0, tokens_per_second = 0;
    double device_bytes = 0, host_bytes = 0;
    double seconds = 0, tokens = 0;  // since the run began
  };
  struct Evaluation {
    std::int64_t step = 0;
    double loss = 0, accuracy = 0;
  };
  struct Fact {
    std::string name, value;
  };
  struct Answer {
    std::int64_t step = 0;
    std::string text;
  };

  std::string name;                   // of the folder
  std::string run;                    // as metrics.jsonl calls it; empty: by a version that gave runs no names
  std::vector<std::string> versions;  // that wrote it, in order
  std::string began, last;            // the times of its first and last record, in UTC
  std::int64_t total_steps = 0;       // 0: unknown
  std::vector<Step> steps;
  std::vector<Evaluation> evaluations;
  bool finished = false;                    // summary.json is there
  std::vector<Fact> facts;                  // of summary.json, in words
  std::optional<std::int64_t> result_step;  // whose model the result is, where summary.json says so
  std::string config;                       // config.yaml as it is
  std::string base_model;                   // by config.yaml
  std::vector<Fact> data;                   // what it learns from and is evaluated on, by config.yaml
  std::vector<RunSample> samples;
  std::vector<std::pair<std::string, std::vector<Answer>>> answers;  // to each of sample_prompts, by steps
};

// Reads what is there. A folder without metrics.jsonl is no run; a last line that is broken off (a run that was killed,
// or is writing it) does not count.
RunRecord read_run(const std::filesystem::path& folder);

// One page that needs nothing else; everything that comes from files is escaped. live: it asks for itself again every
// few seconds, until the run is complete.
enum class Page : std::uint8_t { still, live };
std::string run_html(const RunRecord& run, Page page = Page::still);

void write_samples(const std::filesystem::path& folder, const std::vector<RunSample>& samples);

}  // namespace inlay::report
