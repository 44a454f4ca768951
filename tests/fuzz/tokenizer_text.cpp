#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/text_stream.h"

namespace {

using inlay::data::Tokenizer;
using nlohmann::json;

// Byte-level files, each with one of the regular expressions that are matched by hand; a few merges, so that pieces
// merge in all kinds of ways.
std::vector<Tokenizer> make_tokenizers() {
  json vocab;
  std::int32_t id = 0;
  const auto& alphabet = inlay::data::tokenizer::byte_alphabet();
  for (const std::string& symbol : alphabet) vocab[symbol] = id++;
  json merges = json::array();
  const auto add = [&](const std::string& left, const std::string& right) {
    if (vocab.contains(left + right)) return;
    merges.push_back(json::array({left, right}));
    vocab[left + right] = id++;
  };
  for (const char* left : {"a", "e", "Ġ", "1", "'", "Ċ"}) {
    for (const char* right : {"a", "s", "Ġ", "2", "l", "Ċ"}) add(left, right);
  }
  for (int byte = 0x80; byte < 0xC0; ++byte) add(alphabet[0xC3], alphabet[static_cast<std::size_t>(byte)]);
  for (const char* pair : {"aa", "ĠĠ", "as", "12"}) add(pair, pair);
  const std::string contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  const std::string rest = "[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const std::vector<std::string> regexes = {
      "", contraction + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?" + rest,
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" + contraction +
          "?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" + contraction +
          "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};
  std::vector<Tokenizer> tokenizers;
  for (const std::string& regex : regexes) {
    const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", regex.empty()}};
    json steps = json::array({byte_level});
    if (!regex.empty()) {
      const json split = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
      steps = json::array({split, byte_level});
    }
    const json file = {{"added_tokens", json::array({{{"id", id}, {"content", "<s>"}, {"special", true}},
                                                     {{"id", id + 1}, {"content", "<sa"}}})},
                       {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
                       {"decoder", {{"type", "ByteLevel"}}},
                       {"model", {{"vocab", vocab}, {"merges", merges}}}};
    tokenizers.emplace_back(inlay::io::Json::parse(file.dump(), "fuzz.json"));
  }
  return tokenizers;
}

}  // namespace

// Any bytes as text: what is decoded is what was encoded, all at once and token by token.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace inlay;
  static const std::vector<Tokenizer> tokenizers = make_tokenizers();
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::string valid = repaired_utf8(text);
  for (const Tokenizer& tokenizer : tokenizers) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    INLAY_ASSERT(tokenizer.decode(ids, false) == valid, "the text has changed");
    data::TextStream stream(tokenizer, {}, false);
    std::string streamed;
    for (const std::int32_t id : ids) streamed += stream.add(id);
    INLAY_ASSERT(streamed + stream.finish() == valid, "the text has changed in the stream");
  }
  return 0;
}
