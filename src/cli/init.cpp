#include <filesystem>

#include "cli/checks.h"
#include "cli/commands.h"
#include "core/error.h"
#include "core/text.h"
#include "data/byte_tokenizer.h"
#include "io/file.h"
#include "io/paths.h"
#include "model/families/family.h"
#include "model/presets.h"

namespace inlay::cli {

namespace {

int run(const std::string& preset_name, const std::filesystem::path& folder, std::uint64_t seed, bool weights) {
  namespace fs = std::filesystem;
  using data::ByteTokenizer;
  std::string known;
  const model::Preset* chosen = nullptr;
  auto presets = model::presets(ByteTokenizer::size, ByteTokenizer::bos, ByteTokenizer::eos, ByteTokenizer::pad);
  for (model::Preset& shape : model::published_shapes()) presets.push_back(std::move(shape));
  for (const model::Preset& preset : presets) {
    if (preset.name == preset_name) chosen = &preset;
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  if (chosen == nullptr) user_error("--preset: '{}' is unknown; expected one of {}", preset_name, known);
  if (io::exists(folder) && (!io::is_folder(folder) || !io::entries_of(folder).empty())) {
    user_error("{}: is not empty; init writes into a new folder only", folder.string());
  }
  io::create_folders(folder);
  io::write_file_atomic(folder / "config.json", chosen->config_json);
  io::write_file_atomic(folder / "tokenizer.json", ByteTokenizer::tokenizer_json());
  io::write_file_atomic(folder / "tokenizer_config.json", ByteTokenizer::tokenizer_config_json());
  const model::ModelConfig config = model::load_config(folder);
  if (!weights) {
    fmt::print("{}: the shape of a {} of {} parameters\n", folder.string(), config.model_type,
               format_count(config.parameter_count()));
    return 0;
  }
  model::write_random_weights(config, seed, folder);
  fmt::print("{}: a {} of {} parameters with random weights (seed {})\n", folder.string(), config.model_type,
             format_count(config.parameter_count()), seed);
  return 0;
}

}  // namespace

void add_init(Program& program) {
  struct Arguments {
    std::string preset = "tiny", folder;
    std::uint64_t seed = 0;
    bool no_weights = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.app.add_subcommand("init", "Make a small model with random weights and a byte-level tokenizer");
  command->add_option("--preset", arguments->preset,
                      "tiny, small, or a published shape: llama-8b, qwen2.5-7b, qwen2.5-0.5b, gemma-3-4b, phi-4-mini, "
                      "gpt-oss-20b, qwen3-30b-a3b");
  command->add_option("folder", arguments->folder, "New folder to write")->required();
  command->add_option("--seed", arguments->seed, "Seed of the random weights")->check(whole(0));
  command->add_flag("--no-weights", arguments->no_weights,
                    "Write everything except the weights: enough for inlay plan");
  command->callback([&program, arguments] {
    program.action = [arguments] {
      return run(arguments->preset, arguments->folder, arguments->seed, !arguments->no_weights);
    };
  });
}

}  // namespace inlay::cli
