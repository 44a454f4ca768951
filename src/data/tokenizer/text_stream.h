#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace inlay::data {

// The text of tokens as they are made, one by one, in whole characters. Put together it is what decode() gives for all
// of them; where tokens depend on each other (Tokenizer::bytes) as long as they make valid text.
class TextStream {
 public:
  // `context`: the tokens before the first one, which may decide how it is spelt (a leading space, say).
  explicit TextStream(Tokenizer tokenizer, std::vector<std::int32_t> context = {}, bool skip_special = true);

  // What the token adds; nothing as long as its last character is not complete.
  std::string add(std::int32_t id);
  // What is left at the end: of a character that was broken off U+FFFD, or nothing, where more tokens would have come.
  std::string finish(bool cut = false);

 private:
  std::string add_to_window(std::int32_t id);
  std::string flush_window();

  Tokenizer tokenizer_;
  bool skip_special_;
  std::string bytes_;  // of a character that is not complete

  // Where a token depends on those before it: the last ones that gave text, which end with a whole character, are
  // decoded again with what follows.
  std::vector<std::int32_t> window_;
  std::size_t out_ = 0;        // tokens of the window whose text is out
  std::size_t out_bytes_ = 0;  // of their text
};

}  // namespace inlay::data
