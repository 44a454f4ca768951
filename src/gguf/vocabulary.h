#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "gguf/file.h"

namespace inlay::gguf {

struct VocabularyOptions {
  std::filesystem::path folder;    // with tokenizer.json, and what stands beside it
  std::int64_t rows = 0;           // of the embedding: tokens that are missing up to there get a name
  bool glm = false;                // whose cutting of texts goes by a name of its own
  std::optional<std::string> pre;  // how texts are cut, by llama.cpp's name; absent: recognised
};

// Tokens, their types, merges or scores, special ids, and the chat template, under llama.cpp's keys. What it has no
// word for is a UserError.
void describe_vocabulary(Metadata& metadata, const VocabularyOptions& options);

}  // namespace inlay::gguf
