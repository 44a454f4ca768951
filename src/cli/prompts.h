#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "data/tokenizer/tokenizer.h"

namespace inlay::cli {

// Prompts of the command line, in the words that a model was trained with.
struct PromptArguments {
  std::vector<std::string> prompts;
  std::string as = "text";  // text, chat, alpaca
  std::string system, chat_template;

  void add_to(CLI::App& command, const std::string& meaning);
  // Whether the prompt is part of the text that goes on.
  bool continues() const { return as == "text"; }
  std::vector<std::int32_t> encode(const std::string& prompt, const data::Tokenizer& tokenizer,
                                   const std::string& model) const;
};

}  // namespace inlay::cli
