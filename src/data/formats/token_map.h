#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace inlay::data {

// Which tokens hold which bytes of the text they were made of, by tokenizer.encode(text, false). Special tokens cut a
// text into parts that are tokenized by themselves, and their places are plain to see; inside a part, the tokens of its
// beginning say where a place is.
class TokenMap {
 public:
  TokenMap(const Tokenizer& tokenizer, std::string_view text, const std::vector<std::int32_t>& ids);

  // The tokens, the first and the one behind the last, that hold at least one byte of [begin, end). Where that is
  // empty, so are they: they stand before the token that holds the byte.
  std::pair<std::size_t, std::size_t> tokens(std::size_t begin, std::size_t end) const;

 private:
  struct Anchor {
    std::size_t token, begin, end;
  };

  std::size_t token_at(std::size_t byte) const;
  std::size_t count_before(const Anchor& anchor, std::size_t last, std::size_t byte) const;

  const Tokenizer& tokenizer_;
  std::string_view text_;
  const std::vector<std::int32_t>& ids_;
  std::vector<Anchor> anchors_;  // special tokens, in order
};

}  // namespace inlay::data
