#include <algorithm>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/hub_arguments.h"
#include "core/philox.h"
#include "core/terminal.h"
#include "core/text.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "report/data_report.h"
#include "train/session.h"

namespace inlay::cli {

namespace {

struct DataArguments {
  std::string config;
  HubArguments hub;
  std::int64_t samples = 3;
  bool json = false, quiet = false;
};

struct LoadedData {
  options::TrainOptions options;
  data::Documents documents;
  std::vector<report::DataReport::File> files;
  std::int64_t held_out = 0;  // documents to evaluate on
};

LoadedData load(const DataArguments& arguments, const options::Overrides& overrides) {
  Console console(arguments.quiet);
  LoadedData loaded;
  loaded.options =
      options::load_options(arguments.config, overrides, options::Needed::all, arguments.hub.access(arguments.quiet));
  for (const std::string& note : loaded.options.notes) console.line(note);
  const std::int64_t vocab = model::load_config(loaded.options.base_model).vocab;
  train::RunData data = train::read_run_data(loaded.options, vocab, console);
  loaded.documents = std::move(data.train);
  loaded.held_out = data.test.size();
  for (std::size_t i = 0; i < loaded.options.datasets.size(); ++i) {
    const data::Corpus& corpus = loaded.documents.corpus(i);
    report::DataReport::File file{.path = loaded.options.datasets[i].path,
                                  .counts = corpus.counts(),
                                  .documents = corpus.size(),
                                  .weight = loaded.options.datasets[i].weight};
    for (std::int64_t d = 0; d < corpus.size(); ++d) {
      const auto labels = corpus.read_labels(d, 0, corpus.length(d));
      file.tokens += corpus.length(d);
      file.learned += std::ranges::count_if(labels, is_label);
    }
    loaded.files.push_back(std::move(file));
  }
  return loaded;
}

nlohmann::ordered_json to_json(const report::DataReport& r) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array(), lengths = files;
  for (const auto& f : r.files) {
    files.push_back({{"path", f.path},
                     {"rows", f.counts.rows},
                     {"skipped", f.counts.skipped},
                     {"unlabelled", f.counts.unlabelled},
                     {"documents", f.documents},
                     {"tokens", f.tokens},
                     {"learned_tokens", f.learned},
                     {"weight", f.weight}});
  }
  for (const auto& bin : r.lengths)
    lengths.push_back({{"from", bin.from}, {"to", bin.to}, {"documents", bin.documents}});
  return {{"files", files},
          {"documents", r.documents},
          {"tokens", r.tokens},
          {"learned_tokens", r.learned},
          {"lengths", lengths},
          {"median_length", r.median},
          {"longest", r.longest},
          {"used_tokens", r.used_tokens},
          {"micro_batches", r.batches},
          {"packing_efficiency", r.efficiency},
          {"truncated", r.truncated},
          {"truncated_tokens", r.truncated_tokens},
          {"split", r.split},
          {"dropped", r.dropped},
          {"unlabelled", r.unlabelled}};
}

void print_report(const report::DataReport& r) {
  for (const auto& f : r.files) {
    fmt::print("{}: {}, {}, {}, {:.1f} % of them learned{}\n", f.path, counted(f.counts.rows, "row"),
               counted(f.documents, "document"), counted(f.tokens, "token"),
               100.0 * static_cast<double>(f.learned) / static_cast<double>(std::max<std::int64_t>(f.tokens, 1)),
               f.weight == 1 ? "" : fmt::format(", weight {:g}", f.weight));
    if (f.counts.skipped > 0) fmt::print("  {} skipped because of errors\n", counted(f.counts.skipped, "row"));
    if (f.counts.unlabelled > 0) fmt::print("  {} with nothing to learn\n", counted(f.counts.unlabelled, "row"));
  }
  fmt::print("\nlengths in tokens (shortest {}, median {}, longest {})\n", format_count(r.shortest),
             format_count(r.median), format_count(r.longest));
  std::int64_t most = 1;
  for (const auto& bin : r.lengths) most = std::max(most, bin.documents);
  for (const auto& bin : r.lengths) {
    const auto width = static_cast<std::size_t>((40 * bin.documents + most - 1) / most);
    std::string bar;
    for (std::size_t i = 0; i < width; ++i) bar += "█";
    fmt::print("{:>9} to {:>9} {:>9}  {}\n", format_count(bin.from), format_count(bin.to), format_count(bin.documents),
               bar);
  }
  fmt::print("\none epoch: {}, {}, {:.1f} % of them learned, in {}, {:.1f} % full\n",
             counted(r.used_documents, "document"), counted(r.used_tokens, "token"),
             100.0 * static_cast<double>(r.learned) / static_cast<double>(std::max<std::int64_t>(r.used_tokens, 1)),
             counted(r.batches, "micro-batch"), 100 * r.efficiency);
  const auto said = [](std::int64_t count, const std::string& text) {
    if (count > 0)
      fmt::print("{} longer than sequence_len and {}\n", counted(count, "document is", "documents are"), text);
  };
  said(r.truncated, fmt::format("cut, by {} in all", counted(r.truncated_tokens, "token")));
  said(r.split, "split");
  said(r.dropped, "dropped");
  if (r.unlabelled > 0) {
    fmt::print("{} left out\n",
               counted(r.unlabelled, "document, or part of one, holds nothing to learn within sequence_len and is",
                       "documents, or parts of them, hold nothing to learn within sequence_len and are"));
  }
}

// Pretokenised data need not come with a tokenizer.
std::optional<data::Tokenizer> tokenizer_of(const std::string& model) {
  if (!io::exists(std::filesystem::path(model) / "tokenizer.json")) return std::nullopt;
  return data::Tokenizer::load(model);
}

void print_samples(const LoadedData& loaded, std::int64_t count) {
  const auto tokenizer = tokenizer_of(loaded.options.base_model);
  const bool colour = wants_colour(STDOUT_FILENO);
  const Philox philox{static_cast<std::uint64_t>(loaded.options.seed)};
  const std::int64_t total = loaded.documents.size();
  for (std::int64_t i = 0; i < std::min(count, total); ++i) {
    const auto chosen = count >= total ? i
                                       : static_cast<std::int64_t>(random_below(philox, static_cast<std::uint64_t>(i),
                                                                                0, static_cast<std::uint64_t>(total)));
    Document document = loaded.documents.read(chosen);
    const auto length = static_cast<std::int64_t>(document.input_ids.size());
    const bool cut =
        length > loaded.options.sequence_len && loaded.options.excess_length_strategy == data::Oversized::truncate;
    if (cut) truncate(document, static_cast<std::size_t>(loaded.options.sequence_len));
    fmt::print("\n── document {}, {} tokens{}; {} ──\n{}\n", format_count(chosen + 1), format_count(length),
               cut ? fmt::format(", cut to {}", format_count(loaded.options.sequence_len)) : "",
               colour ? "learned tokens are green" : "learned tokens are in ⟦brackets⟧",
               report::show_runs(report::text_runs(document, tokenizer), colour));
  }
}

int run(const DataArguments& arguments, const options::Overrides& overrides) {
  const LoadedData loaded = load(arguments, overrides);
  const data::BatchSampler sampler(loaded.documents, train::batch_options(loaded.options));
  const report::DataReport report = report::data_report(loaded.files, loaded.documents, sampler);
  if (arguments.json) {
    fmt::print("{}\n", to_json(report).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  print_report(report);
  if (loaded.held_out > 0) fmt::print("evaluated on: {}\n", counted(loaded.held_out, "document"));
  print_samples(loaded, arguments.samples);
  return 0;
}

}  // namespace

void add_data(Program& program) {
  auto arguments = std::make_shared<DataArguments>();
  CLI::App* command = program.app.add_subcommand(
      "data", "Show what a run would read: samples with the learned tokens marked, lengths, packing, what is left out");
  command->add_option("config", arguments->config, "YAML file")->required();
  command->add_option("--samples", arguments->samples, "Documents to show")->check(whole(0));
  command->add_flag("--json", arguments->json, "Print one JSON object, without samples");
  arguments->hub.add_to(*command);
  command->add_flag("--quiet", arguments->quiet, "Print errors and results only");
  command->allow_extras();
  command->callback([&program, command, arguments] {
    program.action = [command, arguments] { return run(*arguments, parse_overrides(*command)); };
  });
}

}  // namespace inlay::cli
