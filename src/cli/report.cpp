#include <cstdio>

#include "adapter/adapter_file.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "cli/prompts.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "io/file.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "options/train_options.h"
#include "report/follow.h"
#include "report/run_report.h"
#include "train/checkpoint.h"
#include "train/generate.h"

namespace inlay::cli {

namespace {

namespace fs = std::filesystem;

struct ReportArguments : ModelArguments {
  std::string folder;
  PromptArguments prompts;
  train::GenerateOptions generation{.count = 64};
  bool follow = false;
  int port = 0;
};

// What one model makes of every prompt, always by the likeliest token.
std::vector<std::string> continuations(const ReportArguments& arguments, Console& console) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(arguments.text_folder());
  const model::ModelConfig config = model::load_config(arguments.model);
  train::GenerateOptions generation = arguments.generation;
  generation.stops = data::stop_tokens(arguments.model, tokenizer);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& prompt : arguments.prompts.prompts) {
    prompts.push_back(arguments.prompts.encode(prompt, tokenizer, arguments.text_folder()));
  }
  const auto engine =
      load_generator(arguments, config, prompts, generation.count, "--prompt, by tokenizer.json", console);
  std::vector<std::string> texts;
  for (const std::vector<std::int32_t>& ids : train::generate(*engine, prompts, generation)) {
    texts.push_back(data::answer_text(tokenizer, prompts[texts.size()], ids));
  }
  return texts;
}

// The result of a run, or of one that has not come to its end, its latest checkpoint.
std::string trained_model(const fs::path& folder) {
  if (io::exists(folder / "config.json") || io::exists(folder / adapter::tensors_file)) return folder.string();
  const auto checkpoint = train::latest_checkpoint(folder);
  if (!checkpoint)
    user_error("{}: there is no model for --prompt: the run has neither a result nor a checkpoint yet",
               folder.string());
  return checkpoint->string();
}

void make_samples(ReportArguments arguments, Console& console) {
  const fs::path folder = arguments.folder;
  const std::string trained = trained_model(folder);
  const options::TrainOptions options = options::load_options(folder / "config.yaml", {}, options::Needed::models);
  arguments.model = options.base_model;
  const std::vector<std::string> before = continuations(arguments, console);
  (options.adapter.enabled() ? arguments.adapter : arguments.model) = trained;
  const std::vector<std::string> after = continuations(arguments, console);
  std::vector<report::RunSample> samples;
  for (std::size_t i = 0; i < before.size(); ++i)
    samples.push_back({arguments.prompts.prompts[i], before[i], after[i]});
  report::write_samples(folder, samples);
}

// The page of a run that may be under way, for a browser on this machine, until Ctrl-C.
int follow(const ReportArguments& arguments) {
  install_interrupt_handler();
  report::PageServer server(arguments.port,
                            [&] { return report::run_html(report::read_run(arguments.folder), report::Page::live); });
  fmt::print("the report is at {} until Ctrl-C\n", server.url());
  std::fflush(stdout);
  server.serve(interrupt_requested);
  return 0;
}

int run(const ReportArguments& arguments) {
  Console console(arguments.quiet);
  report::read_run(arguments.folder);  // before any work: is it one?
  if (!arguments.prompts.prompts.empty()) make_samples(arguments, console);
  if (arguments.follow) return follow(arguments);
  const fs::path page = fs::path(arguments.folder) / "report.html";
  io::write_file_atomic(page, report::run_html(report::read_run(arguments.folder)));
  fmt::print("the report is {}\n", page.string());
  return 0;
}

}  // namespace

void add_report(Program& program) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = program.app.add_subcommand("report", "A run as one HTML page: curves, figures, samples, setup");
  command->add_option("run", arguments->folder, "output_dir of a run, finished or not")->required();
  arguments->prompts.add_to(
      *command, "Continue this with the base model and with the trained one, and keep both in samples.json");
  command->add_option("--max-new-tokens", arguments->generation.count, "Most tokens to generate")->check(whole(1));
  CLI::Option* follow =
      command->add_flag("--follow", arguments->follow, "Show the page on this machine while the run goes on");
  command->add_option("--port", arguments->port, "Port for --follow; by default any free one")
      ->check(whole(1, 65535))
      ->needs(follow);
  arguments->add_machine_to(*command);
  command->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
