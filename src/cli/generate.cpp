#include <filesystem>
#include <optional>

#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/model_arguments.h"
#include "data/byte_tokenizer.h"
#include "io/file.h"
#include "model/families/family.h"
#include "train/generate.h"

namespace inlay::cli {

namespace {

struct GenerateArguments : ModelArguments {
  std::vector<std::string> prompts;
  std::vector<std::int32_t> ids;
  train::GenerateOptions generation;
  std::optional<float> top_p;
  std::optional<std::uint64_t> seed;
};

// Text goes through the tokenizer of `inlay init`'s models; any other model is prompted with ids.
bool speaks_bytes(const std::filesystem::path& model) {
  const std::filesystem::path file = model / "tokenizer.json";
  return std::filesystem::exists(file) &&
         io::read_file(file, std::size_t{1} << 30) == data::ByteTokenizer::tokenizer_json();
}

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

int run(const GenerateArguments& arguments) {
  using data::ByteTokenizer;
  const bool text = !arguments.prompts.empty();
  if (text == !arguments.ids.empty()) user_error("generate wants either --prompt or --ids");
  if (text && !speaks_bytes(arguments.model)) {
    user_error("{}: --prompt needs the byte-level tokenizer of `inlay init`; prompt this model with --ids",
               arguments.model);
  }
  train::GenerateOptions options = checked_options(arguments);
  if (text) options.stop = ByteTokenizer::eos;
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& prompt : arguments.prompts) prompts.push_back(ByteTokenizer::encode(prompt));
  if (!text) prompts.push_back(arguments.ids);

  train::Console console;
  const model::ModelConfig config = model::load_config(arguments.model);
  std::vector<Document> longest(1);
  for (const std::vector<std::int32_t>& prompt : prompts) {
    if (prompt.empty()) user_error("--prompt: expected text, got nothing");
    for (const std::int32_t id : prompt) {
      if (id < 0 || id >= config.vocab)
        user_error("--ids: {} is not a token of this model (0 to {})", id, config.vocab - 1);
    }
    const std::size_t length = prompt.size() + static_cast<std::size_t>(options.count);
    if (length > longest[0].input_ids.size()) longest[0].input_ids.resize(length);
  }
  const auto engine = load_engine(arguments, config, longest, Purpose::generation, console);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    options.sequence = static_cast<std::int64_t>(i);
    const std::vector<std::int32_t> made = train::generate(*engine, prompts[i], options);
    if (text) {
      fmt::print("{}{}\n", arguments.prompts[i], ByteTokenizer::decode(made));
    } else {
      fmt::print("{}\n", fmt::join(made, " "));
    }
  }
  return 0;
}

}  // namespace

void add_generate(Program& program) {
  auto arguments = std::make_shared<GenerateArguments>();
  train::GenerateOptions& generation = arguments->generation;
  CLI::App* command = program.app.add_subcommand("generate", "Continue prompts, to see what a model has learnt");
  command->add_option("model", arguments->model, "Hugging Face model folder")->required();
  command->add_option("--prompt", arguments->prompts, "Text to continue (models of `inlay init`); may be repeated");
  command->add_option("--ids", arguments->ids, "Token ids to continue, separated by commas")->delimiter(',');
  command->add_option("--max-new-tokens", generation.count, "How many at most")->check(CLI::PositiveNumber);
  command->add_option("--stop", generation.stop, "Token id that ends the continuation, with --ids");
  command->add_option("--temperature", generation.temperature,
                      "0: always the likeliest token; above: drawn from softmax(logits / temperature)");
  command->add_option("--top-p", arguments->top_p,
                      "Draw from the fewest likeliest tokens whose probabilities add up to this");
  command->add_option("--seed", arguments->seed, "Of the random numbers: the same seed gives the same text");
  command->add_option("--device", arguments->device, "auto, cpu or cuda");
  command->add_option("--dtype", arguments->dtype, "fp32 or bf16");
  command->callback([&program, arguments] { program.action = [arguments] { return run(*arguments); }; });
}

}  // namespace inlay::cli
