#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "io/json.h"

namespace inlay::data::tokenizer {

struct SpeltBytes {};    // ByteLevel: tokens spell bytes in the byte alphabet
struct ByteFallback {};  // rows of <0x..> become the characters that their bytes are
struct Fuse {};          // all tokens become one
struct StripCharacter {  // up to so many of a character, from each token
  char32_t content = ' ';
  std::size_t start = 0, stop = 0;
};

// Makes text of tokens: the `decoder` of a tokenizer.json. Immutable, so threads may share it.
class Decoder {
 public:
  // Of the value of `decoder`, if there is one. Kinds that are not supported are errors that name them.
  static Decoder parse(const io::Json& json);

  // Bytes that are not UTF-8 become U+FFFD.
  std::string apply(std::vector<std::string> tokens) const;
  // Whether every token spells bytes of its own, and text is these one behind the other.
  bool is_byte_level() const { return steps_.size() == 1 && std::holds_alternative<SpeltBytes>(steps_[0]); }

 private:
  using Step = std::variant<Replace, SpeltBytes, ByteFallback, Fuse, StripCharacter, Metaspace>;

  void add(const io::Json& json);

  std::vector<Step> steps_;
  std::string place_;     // "tokenizer.json: decoder"
  bool present_ = false;  // without a decoder a space stands between tokens
};

}  // namespace inlay::data::tokenizer
