#include "data/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/tokenizer/byte_alphabet.h"

namespace inlay::data {

namespace {

constexpr const char* special_names[] = {"<|bos|>", "<|eos|>", "<|pad|>"};

}  // namespace

std::string ByteTokenizer::tokenizer_json() {
  using nlohmann::ordered_json;
  ordered_json vocab = ordered_json::object();
  std::int32_t id = 0;
  for (const std::string& symbol : tokenizer::byte_alphabet()) vocab[symbol] = id++;
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
