#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "core/utf8.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/text_stream.h"
#include "support/files.h"

namespace inlay::data {
namespace {

using inlay::testing::TempFolder;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ids = std::vector<std::int32_t>;
using nlohmann::json;

// Bytes, and a few merges: "h e" "l l" "he ll" "Ġ h".
json byte_level_file() {
  json vocab;
  std::int32_t id = 0;
  for (const std::string& symbol : tokenizer::byte_alphabet()) vocab[symbol] = id++;
  for (const char* token : {"he", "ll", "hell", "Ġh"}) vocab[token] = id++;
  return {{"added_tokens", {{{"id", 260}, {"content", "<end>"}, {"special", true}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", json::parse(R"([["h", "e"], ["l", "l"], ["he", "ll"], ["Ġ", "h"]])")}}}};
}

Tokenizer make(const json& file) { return Tokenizer(io::Json::parse(file.dump(), "t.json")); }
std::string error_of_file(const json& file) {
  return user_error_of([&] { make(file); });
}
// The error after one change: at a JSON pointer stands another value.
std::string error_with(const char* pointer, const json& value) {
  json file = byte_level_file();
  file[json::json_pointer(pointer)] = value;
  return error_of_file(file);
}

TEST(DataTokenizer, MergesTheEarliestFirst) {
  const Tokenizer tokenizer = make(byte_level_file());
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(258, 'o'));
  EXPECT_THAT(tokenizer.encode(" hello"), ElementsAre(' ', 258, 'o'));  // "he" merges before " h" can
  EXPECT_THAT(tokenizer.encode(" h"), ElementsAre(259));
  EXPECT_THAT(tokenizer.encode("hell<end>he"), ElementsAre(258, 260, 256));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.decode(Ids{258, 'o', 260, ' ', 256}), "hello he");
  EXPECT_EQ(tokenizer.decode(Ids{258, 'o', 260, ' ', 256}, false), "hello<end> he");
  EXPECT_EQ(tokenizer.decode(Ids{256, 5000, -3, 257}), "hell");  // ids without a token vanish
  EXPECT_EQ(tokenizer.vocab_size(), 261);
  EXPECT_EQ(tokenizer.find_id("hell"), 258);
  EXPECT_EQ(tokenizer.find_id("<end>"), 260);
  EXPECT_TRUE(tokenizer.is_special(260));
  EXPECT_FALSE(tokenizer.is_special(258));
  EXPECT_FALSE(tokenizer.bos().has_value());
}

// The heap for long pieces, and the search for short ones, by the definition.
TEST(DataTokenizer, LongPiecesMergeLikeShortOnes) {
  json file = byte_level_file();
  file["pre_tokenizer"]["use_regex"] = false;
  // All pairs of a and b up to four letters, in an order that makes them overlap.
  std::vector<std::string> tokens = {"aa", "ba", "ab", "aab", "bab", "abab", "aaba", "baba"};
  json& model = file["model"];
  model["merges"] =
      json::parse(R"([["b", "a"], ["a", "a"], ["aa", "ba"], ["ba", "ba"], ["a", "b"], ["aa", "b"], ["ba", "b"]])");
  file["added_tokens"] = json::array();
  std::int32_t next = 260;
  for (const std::string& token : tokens) model["vocab"][token] = next++;
  const Tokenizer tokenizer = make(file);
  const auto by_definition = [&](const std::string& text) {
    std::vector<std::string> symbols;
    for (const char c : text) symbols.emplace_back(1, c);
    for (const json& merge : model["merges"]) {
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != merge[0].get<std::string>() || symbols[i + 1] != merge[1].get<std::string>()) continue;
        symbols[i] += symbols[i + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
    Ids ids;
    for (const std::string& symbol : symbols) ids.push_back(*tokenizer.find_id(symbol));
    return ids;
  };
  const Philox philox{3};
  for (std::uint64_t round = 0; round < 400; ++round) {
    std::string text;
    for (std::size_t i = 0; i < 1 + round % 130; ++i) text += (philox.words(round * 256 + i)[0] & 1) != 0 ? 'a' : 'b';
    ASSERT_EQ(tokenizer.encode(text), by_definition(text)) << text;
  }
}

TEST(DataTokenizer, BytesThatAreNotUtf8CountAsReplacementCharacters) {
  const Tokenizer tokenizer = make(byte_level_file());
  EXPECT_EQ(tokenizer.encode("a\xFFz"), tokenizer.encode("a\uFFFDz"));
  EXPECT_EQ(tokenizer.encode("\xE2\x82"), tokenizer.encode("\uFFFD"));
  EXPECT_EQ(tokenizer.encode("\xED\xA0\x80"), tokenizer.encode("\uFFFD\uFFFD\uFFFD"));  // a lone surrogate
  EXPECT_EQ(tokenizer.decode(Ids{'a', 0xE2, 0x82, 'b'}), "a\uFFFDb");
  EXPECT_THAT(tokenizer.encode(std::string_view("a\0b", 3)), ElementsAre('a', 0, 'b'));
}

TEST(DataTokenizer, ThreadsDoNotChangeTheResult) {
  const Tokenizer tokenizer = make(byte_level_file());
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) texts.push_back(std::string(static_cast<std::size_t>(i % 37), 'h') + "ello hello");
  const auto alone = tokenizer.encode(texts, true, 1);
  EXPECT_EQ(tokenizer.encode(texts, true, 8), alone);
  EXPECT_EQ(tokenizer.encode(texts), alone);
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(tokenizer.encode(texts[i]), alone[i]);
  EXPECT_TRUE(tokenizer.encode(std::vector<std::string>{}).empty());
}

TEST(DataTokenizer, TheConfigurationNamesSpecialTokens) {
  const json file = byte_level_file();
  const auto with = [&](const json& config) {
    return Tokenizer(io::Json::parse(file.dump(), "t.json"), io::Json::parse(config.dump(), "c.json"));
  };
  const Tokenizer named = with({{"eos_token", {{"content", "<end>"}}}, {"bos_token", "he"}, {"pad_token", "[PAD]"}});
  EXPECT_EQ(named.bos(), 256);
  EXPECT_EQ(named.eos(), 260);
  EXPECT_FALSE(named.pad().has_value());
  EXPECT_THAT(named.encode("a"), ElementsAre('a'));
  const json both = {{"eos_token", "<end>"}, {"bos_token", "he"}, {"add_bos_token", true}, {"add_eos_token", true}};
  EXPECT_THAT(with(both).encode("a"), ElementsAre(256, 'a', 260));
  EXPECT_THAT(with(both).encode("a", false), ElementsAre('a'));
  EXPECT_EQ(user_error_of([&] {
              with({{"eos_token", "<stop>"}});
            }),
            "c.json: eos_token: \"<stop>\" is not a token of tokenizer.json");
}

TEST(DataTokenizer, StreamsWholeCharacters) {
  const Tokenizer tokenizer = make(byte_level_file());
  const std::string text = "hello 字😀 ñandú\u0301!";
  TextStream stream(tokenizer);
  std::string all;
  for (const std::int32_t id : tokenizer.encode(text)) {
    const std::string part = stream.add(id);
    EXPECT_TRUE(is_utf8(part));
    EXPECT_THAT(part, ::testing::Not(HasSubstr("\uFFFD")));
    all += part;
  }
  EXPECT_EQ(all + stream.finish(), text);

  TextStream broken(tokenizer, {'a', 260});
  EXPECT_EQ(broken.add('b'), "b");
  EXPECT_EQ(broken.add(0xF0), "");
  EXPECT_EQ(broken.add(0x9F), "");
  EXPECT_EQ(broken.add(260), "");  // special: says nothing
  EXPECT_EQ(broken.finish(), "\uFFFD");
  // Where more would have come, nothing was wrong.
  EXPECT_EQ(broken.add(0xF0), "");
  EXPECT_EQ(broken.finish(true), "");
}

TEST(DataTokenizer, StreamsWhatSentencePieceSpells) {
  const json file = {{"normalizer",
                      {{"type", "Sequence"},
                       {"normalizers",
                        {{{"type", "Prepend"}, {"prepend", "▁"}},
                         {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
                     {"decoder",
                      {{"type", "Sequence"},
                       {"decoders",
                        {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
                     {"model",
                      {{"byte_fallback", true},
                       {"vocab", {{"▁", 0}, {"a", 1}, {"▁a", 2}, {"<0xE5>", 3}, {"<0xAD>", 4}, {"<0x97>", 5}}},
                       {"merges", json::array({"▁ a"})}}}};
  const Tokenizer tokenizer = make(file);
  const Ids ids = tokenizer.encode("a aa字字 a");
  EXPECT_THAT(ids, ElementsAre(2, 2, 1, 3, 4, 5, 3, 4, 5, 2));
  TextStream stream(tokenizer);
  std::vector<std::string> parts;
  for (const std::int32_t id : ids) parts.push_back(stream.add(id));
  EXPECT_THAT(parts, ElementsAre("a", " a", "a", "", "", "字", "", "", "字", " a"));
  TextStream behind(tokenizer, {2});
  EXPECT_EQ(behind.add(2), " a");  // with something before it the space stays
}

TEST(DataTokenizer, FoldersWithoutATokenizerJsonSayWhatToDo) {
  const TempFolder folder;
  EXPECT_THAT(user_error_of([&] { Tokenizer::load(folder.path()); }), HasSubstr("has no tokenizer.json"));
  folder.write("tokenizer.model", "x");
  const std::string message = user_error_of([&] { Tokenizer::load(folder.path()); });
  EXPECT_THAT(message, HasSubstr("has tokenizer.model but no tokenizer.json"));
  EXPECT_THAT(message, HasSubstr("save_pretrained"));
  folder.write("tokenizer.json", byte_level_file().dump());
  EXPECT_THAT(Tokenizer::load(folder.path()).encode("he"), ElementsAre(256));
  EXPECT_THAT(Tokenizer::load(folder / "tokenizer.json").encode("he"), ElementsAre(256));
  EXPECT_THAT(user_error_of([&] { Tokenizer::load(folder / "nothing.json"); }), HasSubstr("nothing.json"));
}

TEST(DataTokenizerErrors, WhatIsNotSupportedIsNamed) {
  EXPECT_EQ(error_of_file(byte_level_file()), "<no error>");
  EXPECT_EQ(error_with("/model/type", "Unigram"),
            "t.json: model.type: the model \"Unigram\" is not supported, only BPE is");
  EXPECT_THAT(error_with("/model/type", "WordPiece"), StartsWith("t.json: model.type: the model \"WordPiece\""));
  EXPECT_THAT(error_with("/normalizer", {{"type", "Precompiled"}}),
              StartsWith("t.json: normalizer.type: the normalizer \"Precompiled\" is not supported; expected one of"));
  EXPECT_THAT(
      error_with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}}),
      StartsWith("t.json: normalizer.normalizers[1].type: the normalizer \"Nmt\""));
  EXPECT_THAT(error_with("/pre_tokenizer/type", "UnicodeScripts"),
              StartsWith("t.json: pre_tokenizer.type: the pre-tokenizer \"UnicodeScripts\""));
  EXPECT_THAT(error_with("/decoder", {{"type", "WordPiece"}}), StartsWith("t.json: decoder.type: the decoder"));
  EXPECT_THAT(error_with("/post_processor", {{"type", "BertProcessing"}}),
              StartsWith("t.json: post_processor.type: the post-processor"));
  EXPECT_THAT(error_with("/model/dropout", 0.1), StartsWith("t.json: model.dropout: is not supported"));
  EXPECT_THAT(error_with("/model/end_of_word_suffix", "</w>"), StartsWith("t.json: model.end_of_word_suffix"));
  EXPECT_EQ(error_with("/model/dropout", nullptr), "<no error>");
  EXPECT_EQ(error_with("/model/continuing_subword_prefix", ""), "<no error>");
}

TEST(DataTokenizerErrors, RegularExpressionsThatMeanOtherThingsElsewhere) {
  const auto split = [](const std::string& regex) {
    return error_with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}});
  };
  for (const char* regex : {"a{1,3}+", "[a&&b]", "[a[b]]", "(?m:.)", "\\h", "[\\W]", "a{,3}", "a\\", "\\u12"}) {
    EXPECT_THAT(split(regex), HasSubstr("t.json: pre_tokenizer.pattern.Regex: ")) << regex;
    EXPECT_THAT(split(regex), HasSubstr("is not supported in a regular expression")) << regex;
  }
  EXPECT_THAT(split("(a"),
              StartsWith("t.json: pre_tokenizer.pattern.Regex: not a regular expression that PCRE2 knows"));
  EXPECT_THAT(split(""), HasSubstr("is empty"));
  for (const char* regex :
       {"a{1,3}", "[[:alpha:]]", "(?i:a)", "[^]a]", "a{x", "(?=a)", "(?<n>a)", "a{1,3}?", "\\u0041"}) {
    EXPECT_EQ(split(regex), "<no error>") << regex;
  }
}

TEST(DataTokenizerErrors, BrokenFiles) {
  EXPECT_THAT(error_of_file("text"), HasSubstr("t.json: expected an object"));
  EXPECT_THAT(error_of_file(json::object()), HasSubstr("t.json: model: missing"));
  EXPECT_THAT(error_with("/model/vocab", json::array()), HasSubstr("t.json: model.vocab: expected an object"));
  EXPECT_THAT(error_with("/model/vocab", json::object()), HasSubstr("t.json: model.vocab: is empty"));
  EXPECT_THAT(error_with("/model/vocab/he", -1), HasSubstr("t.json: model.vocab.he: expected an id from 0 to"));
  EXPECT_THAT(error_with("/model/vocab/he", 1e30), HasSubstr("t.json: model.vocab.he: expected an id from 0 to"));
  EXPECT_THAT(error_with("/model/vocab/he", 4'194'304), HasSubstr("expected an id from 0 to 4194303"));
  EXPECT_THAT(error_with("/model/vocab/he", "7"), HasSubstr("expected an id"));
  EXPECT_THAT(error_with("/model/vocab/ll", 256), HasSubstr("has the id 256, and so has \"he\""));
  EXPECT_THAT(error_with("/model/merges", "x"), HasSubstr("t.json: model.merges: expected an array"));
  EXPECT_THAT(error_with("/model/merges/1", "l  l"), HasSubstr("model.merges: merge 1: expected two tokens"));
  EXPECT_THAT(error_with("/model/merges/1", "ll"), HasSubstr("model.merges: merge 1: expected two tokens"));
  EXPECT_THAT(error_with("/model/merges/1", {"l", 5}), HasSubstr("merge 1: expected an array of two tokens"));
  EXPECT_EQ(error_with("/model/merges/1", {"l", "zz"}), "t.json: model.merges: merge 1: \"zz\" is not in model.vocab");
  EXPECT_EQ(error_with("/model/merges/1", {"l", "h"}), "t.json: model.merges: merge 1: \"lh\" is not in model.vocab");
  EXPECT_THAT(error_with("/model/unk_token", "<unk>"), HasSubstr("model.unk_token: \"<unk>\" is not in model.vocab"));
  EXPECT_THAT(error_with("/added_tokens/0/id", 270),
              HasSubstr("added_tokens[0].id: is 270, but the next free id is 260"));
  EXPECT_THAT(error_with("/added_tokens/0/id", -1), HasSubstr("added_tokens[0].id: expected an integer from 0"));
  EXPECT_THAT(error_with("/added_tokens/0/content", "he"), HasSubstr("\"he\" has the id 256 in model.vocab"));
  EXPECT_THAT(error_with("/added_tokens/0/content", ""), HasSubstr("added_tokens[0].content: is empty"));
  EXPECT_THAT(error_with("/added_tokens/1", {{"id", 261}, {"content", "<end>"}}), HasSubstr("occurs twice"));
  EXPECT_THAT(error_with("/pre_tokenizer",
                         {{"type", "Sequence"},
                          {"pretokenizers", {byte_level_file()["pre_tokenizer"], byte_level_file()["pre_tokenizer"]}}}),
              HasSubstr("pre_tokenizer.pretokenizers[1]: ByteLevel occurs here a second time"));
  EXPECT_THAT(error_with("/pre_tokenizer/add_prefix_space", "yes"), HasSubstr("expected true or false"));
  EXPECT_THAT(error_with("/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}),
              HasSubstr("post_processor.single: has no"));
  EXPECT_THAT(error_with("/post_processor", {{"type", "TemplateProcessing"},
                                             {"special_tokens", json::object()},
                                             {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}}),
              HasSubstr("post_processor.special_tokens.<s>: missing"));
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 300; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  EXPECT_THAT(error_with("/normalizer", nested), HasSubstr("nested more than 256 levels deep"));
}

// Small files that ask for much: an error, and soon.
TEST(DataTokenizerErrors, FilesThatMultiplyText) {
  json file = byte_level_file();
  json doubling = json::array();
  for (int i = 0; i < 200; ++i)
    doubling.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", doubling}};
  EXPECT_THAT(user_error_of([&] { make(file).encode("aaaa"); }), HasSubstr("t.json: normalizer: makes"));
  file = byte_level_file();
  file["decoder"] = {{"type", "Sequence"}, {"decoders", doubling}};
  EXPECT_THAT(user_error_of([&] { make(file).decode(Ids{'a'}); }), HasSubstr("t.json: decoder: makes"));
  file = byte_level_file();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100000, 'x')}};
  EXPECT_THAT(user_error_of([&] { make(file).encode(std::string(100000, 'a')); }), HasSubstr("too much text"));
  // A regular expression that never ends.
  file = byte_level_file();
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a*)*[bc]"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(user_error_of([&] { make(file).encode(std::string(5000, 'a')); }), HasSubstr("gives up"));
}

// NFC leaves most characters alone; which ones is a list in the code. Every one of them, with all kinds of neighbours.
TEST(DataTokenizerNormalizer, NfcByRunsIsNfcOfTheWhole) {
  const auto nfc = tokenizer::Normalizer::parse(io::Json::parse(R"({"type": "NFC"})", "n.json"));
  const auto ours = [&](const std::string& text) {
    std::string storage;
    return std::string(nfc.apply(text, storage));
  };
  const auto whole = [](const std::string& text) {
    utf8proc_uint8_t* result = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    std::string copy(reinterpret_cast<const char*>(result), static_cast<std::size_t>(size));
    std::free(result);
    return copy;
  };
  const std::vector<std::string> neighbours = {"",       "e",      "\u0301", "\u0323", "\u1100", "\u1161",
                                               "\u11a8", "\u3099", "\u0338", "字",     "\u09be"};
  for (char32_t c = 0; c < 0x20000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    for (const std::string& neighbour : neighbours) {
      for (const std::string& both : {text + neighbour, neighbour + text, "x" + text + neighbour + "y"}) {
        ASSERT_EQ(ours(both), whole(both)) << std::hex << static_cast<unsigned>(c);
      }
    }
  }
  EXPECT_EQ(ours("cafe\u0301 A\u030a\u0323 x"), "café \u1ea0\u030a x");
}

}  // namespace
}  // namespace inlay::data
