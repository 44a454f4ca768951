#pragma once

#include <cstdint>
#include <string>

namespace inlay::data {

// The tokenizer of models that `inlay init` makes: a byte is a token. Ids 0 to 255 are the bytes, then the specials.
struct ByteTokenizer {
  static constexpr std::int32_t bos = 256, eos = 257, pad = 258, size = 259;

  // As Hugging Face files: byte-level BPE without merges.
  static std::string tokenizer_json();
  static std::string tokenizer_config_json();
};

}  // namespace inlay::data
