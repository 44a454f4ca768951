#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/piece.h"
#include "io/json.h"

struct pcre2_real_code_8;

namespace inlay::data::tokenizer {

// What a tokenizer.json looks for in text: {"String": "..."} or {"Regex": "..."}. Regular expressions are written for
// Oniguruma there and matched by PCRE2 here: what the two read differently is translated, and where that cannot be done
// it is refused. Immutable, so threads may share it.
class Pattern {
 public:
  static Pattern parse(const io::Json& json);
  // A regular expression that `json` implies; errors are about it.
  static Pattern regex(const io::Json& json, std::string source);

  // Appends every match, from left to right and without overlap. The text must be valid UTF-8. A match that is empty
  // does not count where the one before it ended. An expression that takes beyond all reason is a UserError.
  void find(std::string_view text, std::vector<Piece>& matches) const;
  // The text with content in place of every match. More than 64 times as much text (and 1 MiB) is a UserError: no
  // tokenizer needs it, and a hostile file could ask for all memory.
  std::string replaced(std::string_view text, std::string_view content) const;

  const std::string& source() const { return source_; }
  bool is_regex() const { return code_ != nullptr; }

 private:
  class Search;

  std::string source_, place_;                     // place_: "tokenizer.json: pre_tokenizer.pattern.Regex"
  std::shared_ptr<const pcre2_real_code_8> code_;  // none: source_ stands for itself
};

}  // namespace inlay::data::tokenizer
