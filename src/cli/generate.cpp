#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "cli/prompts.h"
#include "data/tokenizer/text_stream.h"
#include "model/families/family.h"
#include "train/generate.h"

namespace inlay::cli {

namespace {

struct GenerateArguments : ModelArguments {
  PromptArguments prompts;
  std::vector<std::int32_t> ids;
  bool bos = false;
  train::GenerateOptions generation;
  std::optional<float> top_p;
  std::optional<std::uint64_t> seed;
};

train::GenerateOptions checked_options(const GenerateArguments& arguments) {
  train::GenerateOptions options = arguments.generation;
  const float temperature = options.temperature, top_p = arguments.top_p.value_or(options.top_p);
  if (temperature != 0.0f && !(temperature >= 1e-6f && temperature <= 1e6f)) {
    user_error("--temperature: expected 0 or a number from 1e-6 to 1e6, got {}", temperature);
  }
  if (temperature == 0.0f && (arguments.top_p || arguments.seed)) {
    user_error("--top-p and --seed are for sampling: give a --temperature above 0 with them");
  }
  if (!(top_p > 0.0f && top_p <= 1.0f)) {
    user_error("--top-p: expected a number above 0 and at most 1, got {}", top_p);
  }
  options.top_p = top_p;
  options.seed = arguments.seed.value_or(options.seed);
  return options;
}

// Ids of every prompt.
std::vector<std::vector<std::int32_t>> prompt_ids(const GenerateArguments& arguments,
                                                  const std::optional<data::Tokenizer>& tokenizer,
                                                  const model::ModelConfig& config) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& prompt : arguments.prompts.prompts) {
    prompts.push_back(arguments.prompts.encode(prompt, *tokenizer, arguments.text_folder()));
  }
  if (!tokenizer) prompts.push_back(arguments.ids);
  if (!arguments.bos) return prompts;
  if (config.bos < 0) user_error("{}: --bos: config.json has no bos_token_id", arguments.model);
  const auto bos = static_cast<std::int32_t>(config.bos);
  for (auto& prompt : prompts) {
    if (prompt.empty() || prompt.front() != bos) prompt.insert(prompt.begin(), bos);
  }
  return prompts;
}

int run(const GenerateArguments& arguments) {
  const bool text = !arguments.prompts.prompts.empty();
  if (text == !arguments.ids.empty()) user_error("generate needs either --prompt or --ids");
  train::GenerateOptions options = checked_options(arguments);
  std::optional<data::Tokenizer> tokenizer;
  if (text) tokenizer = data::Tokenizer::load(arguments.text_folder());
  if (text && options.stop < 0) options.stop = tokenizer->eos().value_or(-1);

  Console console(arguments.quiet);
  const model::ModelConfig config = model::load_config(arguments.model);
  const std::vector<std::vector<std::int32_t>> prompts = prompt_ids(arguments, tokenizer, config);
  const auto engine = load_generator(arguments, config, prompts, options.count,
                                     text ? "--prompt, by tokenizer.json" : "--ids", console);
  const auto print = [](const std::string& part) {
    fmt::print("{}", part);
    std::fflush(stdout);
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    options.sequence = static_cast<std::int64_t>(i);
    if (!text) {
      std::string ids;
      for (const std::int32_t id : train::generate(*engine, prompts[i], options)) {
        ids += fmt::format("{}{}", ids.empty() ? "" : " ", id);
      }
      fmt::print("{}\n", ids);
      continue;
    }
    data::TextStream stream(*tokenizer, prompts[i]);
    if (arguments.prompts.continues()) print(arguments.prompts.prompts[i]);
    options.made = [&](std::int32_t id) { print(stream.add(id)); };
    train::generate(*engine, prompts[i], options);
    print(stream.finish() + "\n");
  }
  return 0;
}

}  // namespace

void add_generate(Program& program) {
  auto arguments = std::make_shared<GenerateArguments>();
  train::GenerateOptions& generation = arguments->generation;
  CLI::App* command = program.app.add_subcommand("generate", "Continue prompts, to see what a model has learned");
  command->add_option("model", arguments->model, "Hugging Face model folder")->required();
  arguments->prompts.add_to(*command, "Text to continue, as the tokenizer.json of the model reads it");
  command->add_option("--ids", arguments->ids, "Token ids to continue, separated by commas")->delimiter(',');
  command->add_flag("--bos", arguments->bos,
                    "Start each prompt with the model's bos_token_id, as its training documents did");
  command->add_option("--max-new-tokens", generation.count, "Most tokens to generate")->check(CLI::PositiveNumber);
  command->add_option("--stop", generation.stop,
                      "Token id that ends the continuation (with --prompt, by default eos_token)");
  command->add_option("--temperature", generation.temperature,
                      "0: always the most likely token; above 0: sample from softmax(logits / temperature)");
  command->add_option("--top-p", arguments->top_p,
                      "Sample from the fewest most likely tokens whose probabilities add up to this");
  command->add_option("--seed", arguments->seed, "Random seed: the same seed gives the same text");
  arguments->add_adapter_to(*command);
  arguments->add_machine_to(*command);
  command->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
