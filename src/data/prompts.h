#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

// What a model is asked for an answer to, in the words that it was trained with.
namespace inlay::data {

// Text to go on with, a message of a user's, or an instruction.
enum class PromptKind : std::uint8_t { text, chat, alpaca };

struct Prompt {
  std::string text;
  PromptKind kind = PromptKind::text;
  std::string system;                               // of a chat
  std::string chat_template = "tokenizer_default";  // as FormatOptions has it
};
// model: the folder whose chat template it is.
std::vector<std::int32_t> encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer,
                                        const std::filesystem::path& model);

// What ends an answer: eos_token of the tokenizer, and what generation_config.json names, where the model's folder has
// one. An adapter's never has: what its model is, the base model says.
std::vector<std::int32_t> stop_tokens(const std::filesystem::path& model, const Tokenizer& tokenizer);

// The text of an answer's tokens, whole characters alone.
std::string answer_text(const Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt,
                        const std::vector<std::int32_t>& answer);

}  // namespace inlay::data
