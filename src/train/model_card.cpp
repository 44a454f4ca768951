#include "train/model_card.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "core/text.h"
#include "core/version.h"
#include "io/file.h"
#include "io/paths.h"
#include "train/metrics.h"

namespace inlay::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view mark = "<!-- written by inlay train; edit this line away to keep your changes -->";
constexpr std::size_t most_bytes = std::size_t{4} << 20;

// "org/name" of a model or a dataset: out of the folders of a cache of Hugging Face's, or as it was given; nothing for
// files and folders of one's own.
std::optional<std::string> hub_name(const std::string& given) {
  for (const fs::path& part : fs::path(given)) {
    std::string name = part.string();
    for (const std::string_view kind : {"models--", "datasets--"}) {
      if (!name.starts_with(kind)) continue;
      name.erase(0, kind.size());
      const std::size_t dashes = name.find("--");
      if (dashes == std::string::npos) return name;
      return fmt::format("{}/{}", name.substr(0, dashes), name.substr(dashes + 2));
    }
  }
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  };
  const bool one_slash = std::count(given.begin(), given.end(), '/') == 1 && given.front() != '/' &&
                         given.front() != '.' && given.back() != '/';
  const bool hub = one_slash && std::all_of(given.begin(), given.end(), plain) && !fs::path(given).has_extension();
  return hub && !io::exists(given) ? std::optional(given) : std::nullopt;
}

std::string folder_name(const std::string& path) {
  const fs::path folder(path);
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

// What the base model's own card says in the lines at its top.
std::optional<std::string> license_of(const fs::path& base) {
  const fs::path file = base / card_file;
  if (!io::exists(file)) return std::nullopt;
  const std::string text = io::read_file(file, most_bytes);
  if (!text.starts_with("---")) return std::nullopt;
  const std::string top = text.substr(0, text.find("\n---", 3));
  constexpr std::string_view key = "\nlicense: ";
  const std::size_t at = top.find(key);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + key.size();
  return top.substr(begin, top.find('\n', begin) - begin);
}

struct Beginning {
  std::optional<double> loss, eval_loss;
};

Beginning beginning_of(const fs::path& metrics) {
  Beginning result;
  if (!io::exists(metrics)) return result;
  read_metrics(metrics, [&](std::string_view, const io::Json& record) {
    if (!result.loss) result.loss = record.find_number("loss");
    if (!result.eval_loss) result.eval_loss = record.find_number("eval_loss");
  });
  return result;
}

// As a value in YAML, whatever is in it.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

std::string model_card(const CardFacts& facts) {
  const options::TrainOptions& options = facts.options;
  const nlohmann::ordered_json& summary = facts.summary;
  const bool adapter = options.adapter.enabled();
  const std::string base = hub_name(options.base_model).value_or(folder_name(options.base_model));
  const std::string name = folder_name(options.output_dir);

  std::string card = "---\n";
  card += fmt::format("base_model: {}\n", quoted(base));
  card += fmt::format("library_name: {}\npipeline_tag: text-generation\n", adapter ? "peft" : "transformers");
  if (const auto license = license_of(options.base_model)) card += fmt::format("license: {}\n", *license);
  card += "tags:\n- inlay\n";
  if (adapter) card += "- lora\n";
  if (options.osft.enabled) card += "- osft\n";
  std::string datasets;
  for (const data::DatasetOptions& dataset : options.datasets) {
    if (const auto hub = hub_name(dataset.path)) datasets += fmt::format("- {}\n", quoted(*hub));
  }
  if (!datasets.empty()) card += fmt::format("datasets:\n{}", datasets);
  card += fmt::format("---\n{}\n\n# {}\n\n", mark, name);
  card += fmt::format("{} of `{}`, trained with Inlay {}.\n\n", adapter ? "An adapter" : "A fine-tuned version", base,
                      version_number());

  const Beginning first = beginning_of(facts.metrics);
  const auto number = [&](const char* key) { return summary.value(key, 0.0); };
  const auto row = [&](const std::string& what, const std::string& value) {
    card += fmt::format("| {} | {} |\n", what, value);
  };
  const auto change = [](const std::optional<double>& before, double after) {
    const std::string result = format_decimals(after, 4);
    return before ? fmt::format("{} → {}", format_decimals(*before, 4), result) : result;
  };
  card += "## How it went\n| | |\n|---|---|\n";
  row("loss, first step → last", change(first.loss, number("loss")));
  if (summary.contains("eval_loss")) {
    row("evaluation loss, first → last", change(first.eval_loss, number("eval_loss")));
    row("evaluation accuracy of tokens", fmt::format("{:.2f} %", 100 * number("eval_accuracy")));
  }
  row("steps", format_count(summary.value("steps", std::int64_t{0})));
  row("tokens", format_count(summary.value("tokens", std::int64_t{0})));
  row("time", format_duration(number("seconds")));
  row("trained parameters",
      fmt::format("{} of {}", format_count(summary.value("trainable_parameters", std::int64_t{0})),
                  format_count(summary.value("parameters", std::int64_t{0}))));
  row("on", fmt::format("{}, {}", summary.value("device", ""), summary.value("dtype", "")));

  card += "\n## Data\n";
  for (const data::DatasetOptions& dataset : options.datasets) {
    card += fmt::format("- `{}`\n", hub_name(dataset.path).value_or(fs::path(dataset.path).filename().string()));
  }
  card += fmt::format("\nFingerprint of the documents: `{}`; of the base model's weights: `{}`.\n",
                      facts.data_fingerprint, facts.base_fingerprint);
  card += fmt::format("\n## Configuration\n<details><summary>config.yaml</summary>\n\n```yaml\n{}```\n</details>\n",
                      options::to_yaml(options));
  const std::string word = shell_quoted(name), file = shell_quoted(name + ".gguf");
  card +=
      adapter
          ? fmt::format("\n## Use\n```\ninlay chat BASE_MODEL --adapter {0}\ninlay merge BASE_MODEL {0} merged\n```\n",
                        word)
          : fmt::format("\n## Use\n```\ninlay chat {0}\ninlay export gguf {0} {1}\nvllm serve {0}\n```\n", word, file);
  return card;
}

bool is_model_card(const fs::path& file) {
  return io::is_file(file) && io::file_bytes(file) <= most_bytes &&
         io::read_file(file, most_bytes).find(mark) != std::string::npos;
}

}  // namespace inlay::train
