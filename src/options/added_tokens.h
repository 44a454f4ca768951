#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace inlay::options {

// A model with other special tokens, and tokens in addition.
struct TokenChanges {
  std::map<std::string, std::string> special;  // eos_token and such, and the tokens that are these
  std::vector<std::string> added;

  bool none() const { return special.empty() && added.empty(); }
};

struct ChangedModel {
  std::filesystem::path folder;
  std::vector<std::string> new_tokens;  // those that the tokenizer did not have
  std::vector<std::string> known;       // those of `added` that it had
  std::int64_t rows_added = 0;          // to the embedding and the head: 0 where they have room
};

// A folder in the cache that stands for the base model with these changes: its own tokenizer files and configuration,
// and links to the base's weights; where the vocabulary grows, embedding and head with further rows, which are the mean
// of those that there are. It is made once; a model without weights gives one without.
ChangedModel change_tokens(const std::filesystem::path& base, const TokenChanges& changes);

}  // namespace inlay::options
