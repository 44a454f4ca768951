#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "data/prompts.h"
#include "model/decoding.h"

namespace inlay::cli {

// Prompts of the command line, in the words that a model was trained with.
struct PromptArguments {
  std::vector<std::string> prompts;
  std::optional<data::PromptKind> as;  // absent: text
  std::string system, chat_template;

  void add_to(CLI::App& command, const std::string& meaning);
  // Whether the prompt is part of the text that goes on.
  bool continues() const { return as.value_or(data::PromptKind::text) == data::PromptKind::text; }
  std::vector<std::int32_t> encode(const std::string& prompt, const data::Tokenizer& tokenizer,
                                   const std::string& model) const;
};

// How the next token is chosen, as the command line says it.
struct DrawingArguments {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::uint64_t> seed;

  void add_to(CLI::App& command);
  model::Drawing checked() const;
  // What generation_config.json in the folder says, where the command line says nothing.
  model::Drawing or_of_model(const std::filesystem::path& folder) const;
};

}  // namespace inlay::cli
