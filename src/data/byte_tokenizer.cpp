#include "data/byte_tokenizer.h"

#include <nlohmann/json.hpp>

namespace inlay::data {

namespace {

// Byte-level BPE spells bytes as printable characters: those that are printable in Latin-1 as themselves, the others,
// in order, from U+0100 on.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  int beyond = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : 256 + beyond++;
    std::string utf8;
    if (code < 0x80) {
      utf8 = static_cast<char>(code);
    } else {
      utf8 = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
    alphabet.push_back(utf8);
  }
  return alphabet;
}

constexpr const char* special_names[] = {"<|bos|>", "<|eos|>", "<|pad|>"};

}  // namespace

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < 256) text += static_cast<char>(id);
  }
  return text;
}

std::string ByteTokenizer::tokenizer_json() {
  using nlohmann::ordered_json;
  ordered_json vocab = ordered_json::object();
  std::int32_t id = 0;
  for (const std::string& symbol : byte_alphabet()) vocab[symbol] = id++;
  ordered_json added = ordered_json::array();
  for (const char* name : special_names) {
    added.push_back({{"id", id++},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const ordered_json model = {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocab},
                              {"merges", ordered_json::array()}};
  const ordered_json root = {{"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
                             {"added_tokens", added},     {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
                             {"post_processor", nullptr}, {"decoder", byte_level}, {"model", model}};
  return root.dump(1) + "\n";
}

std::string ByteTokenizer::tokenizer_config_json() {
  const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"bos_token", special_names[0]},
                                         {"eos_token", special_names[1]},
                                         {"pad_token", special_names[2]},
                                         {"clean_up_tokenization_spaces", false},
                                         {"model_max_length", 4096}};
  return config.dump(1) + "\n";
}

}  // namespace inlay::data
