#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inlay::data {

// The tokenizer of models that `inlay init` makes: a byte is a token. Ids 0 to 255 are the bytes, then the specials.
struct ByteTokenizer {
  static constexpr std::int32_t bos = 256, eos = 257, pad = 258, size = 259;

  static std::vector<std::int32_t> encode(std::string_view text);
  static std::string decode(std::span<const std::int32_t> ids);  // specials vanish

  // The same as Hugging Face files: byte-level BPE without merges.
  static std::string tokenizer_json();
  static std::string tokenizer_config_json();
};

}  // namespace inlay::data
