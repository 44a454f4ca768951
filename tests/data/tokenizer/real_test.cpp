#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/byte_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "support/files.h"
#include "support/paths.h"

// The tokenizers of real models, against ids that others made.
namespace inlay::data {
namespace {

using inlay::testing::read_text;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

const fs::path golden_folder = testing::source_folder() / "tests/golden/tokenizer";

class DataTokenizerReal : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    data_ = inlay::testing::test_data().value_or("");
    if (data_.empty()) GTEST_SKIP() << "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";
    static std::map<std::string, Tokenizer> loaded;  // which takes a second for the largest
    if (!loaded.contains(GetParam())) loaded.emplace(GetParam(), Tokenizer::load(data_ / "tokenizers" / GetParam()));
    tokenizer_ = loaded.at(GetParam());
  }

  fs::path data_;
  std::optional<Tokenizer> tokenizer_;
};

nlohmann::json read(const fs::path& path) { return nlohmann::json::parse(read_text(path)); }

TEST_P(DataTokenizerReal, HuggingFacesIdsAndTexts) {
  const auto texts = read(data_ / "fixtures/tokenizer_ids/texts.json").get<std::vector<std::string>>();
  const auto expected = read(data_ / "fixtures/tokenizer_ids" / (std::string(GetParam()) + ".json"));
  const auto ids = expected.at("ids").get<std::vector<Ids>>();
  const auto special = expected.at("ids_with_special").get<std::vector<Ids>>();
  const auto decoded = expected.at("decoded").get<std::vector<std::string>>();
  ASSERT_EQ(ids.size(), texts.size());
  const std::vector<Ids> ours = tokenizer_->encode(texts, false, 2);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(ours[i], ids[i]) << i << ": " << io::in_quotes(texts[i]);
    EXPECT_EQ(tokenizer_->encode(texts[i], false), ids[i]) << i;
  }
  for (std::size_t i = 0; i < special.size(); ++i) EXPECT_EQ(tokenizer_->encode(texts[i]), special[i]) << i;
  for (std::size_t i = 0; i < decoded.size(); ++i) EXPECT_EQ(tokenizer_->decode(ids[i]), decoded[i]) << i;
}

// Texts that llama.cpp tests its own tokenizers with.
TEST_P(DataTokenizerReal, LlamaCppsVectors) {
  const std::map<std::string, std::string> files = {
      {"gpt2", "gpt-2"}, {"llama3_2", "llama-bpe"}, {"llama2", "llama-spm"}, {"qwen3", "qwen2"}};
  const auto file = files.find(GetParam());
  if (file == files.end()) GTEST_SKIP() << "no vectors for this tokenizer";
  const std::string base = (data_ / ("tokenizer_vectors/ggml-vocab-" + file->second + ".gguf")).string();
  std::string inputs = read_text(base + ".inp");
  std::istringstream lines(read_text(base + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::size_t count = 0;
  for (std::size_t at = 0; at <= inputs.size(); ++count) {
    const std::size_t end = std::min(inputs.find(separator, at), inputs.size());
    const std::string text = inputs.substr(at, end - at);
    std::string line;
    std::getline(lines, line);
    std::istringstream numbers(line);
    EXPECT_EQ(tokenizer_->encode(text, false),
              Ids(std::istream_iterator<std::int32_t>(numbers), std::istream_iterator<std::int32_t>()))
        << io::in_quotes(text);
    at = end + separator.size();
  }
  EXPECT_EQ(count, 47u);
}

void collect_strings(const nlohmann::ordered_json& value, std::vector<std::string>& strings) {
  if (value.is_string()) strings.push_back(value.get<std::string>());
  if (value.is_structured()) {
    for (const auto& item : value) collect_strings(item, strings);
  }
}

// As tests/golden/make_tokenizer_datasets.py has it.
std::vector<std::string> documents(const fs::path& path) {
  const std::string text = read_text(path);
  std::vector<std::string> result;
  if (path.extension() == ".txt") return {text};
  if (path.extension() == ".json") {
    collect_strings(nlohmann::ordered_json::parse(text), result);
    return result;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) collect_strings(nlohmann::ordered_json::parse(line), result);
  }
  return result;
}

TEST_P(DataTokenizerReal, WholeDatasets) {
  const nlohmann::json expected = read(golden_folder / "datasets.json").at("expected").at(GetParam());
  EXPECT_GT(expected.size(), 15u);
  for (const auto& [file, values] : expected.items()) {
    const std::vector<std::string> texts = documents(data_ / "datasets" / file);
    const std::vector<Ids> encoded = tokenizer_->encode(texts, false, 2);
    std::uint64_t checksum = 0;
    std::size_t ids = 0, round_trips = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      ids += encoded[i].size();
      for (const std::int32_t id : encoded[i]) {
        checksum = checksum * 6364136223846793005u + static_cast<std::uint64_t>(id + 1);
      }
      checksum *= 6364136223846793005u;
      round_trips += tokenizer_->decode(encoded[i], false) == texts[i] ? 1 : 0;
    }
    EXPECT_EQ(texts.size(), values.at("documents").get<std::size_t>()) << file;
    EXPECT_EQ(ids, values.at("ids").get<std::size_t>()) << file;
    EXPECT_EQ(round_trips, values.at("round_trips").get<std::size_t>()) << file;
    EXPECT_EQ(fmt::format("{:016x}", checksum), values.at("checksum").get<std::string>()) << file;
  }
}

// A piece of a million letters must not take a million times a million steps.
TEST_P(DataTokenizerReal, LongRuns) {
  for (const char* unit : {"a", " ", "\n", "1", "!", "ab", "é", "字", " \n", "a'", "<|"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, false), false), text) << io::in_quotes(unit);
  }
}

TEST_P(DataTokenizerReal, KnowsItsSpecialTokens) {
  const nlohmann::json config = read(data_ / "tokenizers" / GetParam() / "tokenizer_config.json");
  const auto check = [&](const char* key, std::optional<std::int32_t> id) {
    const nlohmann::json& value = config.value(key, nlohmann::json());
    const std::string text = value.is_object() ? value.at("content") : value.is_string() ? value : nlohmann::json("");
    EXPECT_EQ(id.has_value(), !text.empty()) << key;
    if (!id) return;
    EXPECT_EQ(tokenizer_->text(*id), text);
    EXPECT_EQ(tokenizer_->find_id(text), *id);
    EXPECT_TRUE(tokenizer_->is_special(*id));
    EXPECT_EQ(tokenizer_->encode(text + text, false), (Ids{*id, *id}));
    EXPECT_EQ(tokenizer_->decode(Ids{*id}), "");
    EXPECT_EQ(tokenizer_->decode(Ids{*id}, false), text);
  };
  check("bos_token", tokenizer_->bos());
  check("eos_token", tokenizer_->eos());
  check("pad_token", tokenizer_->pad());
  EXPECT_FALSE(tokenizer_->find_id("no such token").has_value());
  EXPECT_FALSE(tokenizer_->text(tokenizer_->vocab_size()).has_value());
  EXPECT_TRUE(tokenizer_->text(tokenizer_->vocab_size() - 1).has_value());
}

INSTANTIATE_TEST_SUITE_P(, DataTokenizerReal, ::testing::Values("gpt2", "llama2", "llama3_2", "qwen3", "gptoss"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DataTokenizerFiles, ThoseOfStories15M) {
  const auto data = inlay::testing::test_data();
  if (!data) GTEST_SKIP() << "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";
  const Tokenizer tokenizer = Tokenizer::load(*data / "models/stories15M");
  const std::string text = "Once upon a time, there was a little girl.\n";
  const Ids expected = {1, 9038, 2501, 263, 931, 29892, 727, 471, 263, 2217, 7826, 29889, 13};
  EXPECT_EQ(tokenizer.encode(text), expected);
  EXPECT_EQ(tokenizer.decode(expected), text);
}

TEST(DataTokenizerFiles, ThoseOfInit) {
  const Tokenizer tokenizer(io::Json::parse(ByteTokenizer::tokenizer_json(), "tokenizer.json"),
                            io::Json::parse(ByteTokenizer::tokenizer_config_json(), "tokenizer_config.json"));
  std::string text;
  for (int byte = 0; byte < 128; ++byte) text += static_cast<char>(byte);
  text += "äöü 字😀";
  Ids expected;
  for (const char c : text) expected.push_back(static_cast<unsigned char>(c));
  EXPECT_EQ(tokenizer.encode(text), expected);
  EXPECT_EQ(tokenizer.decode(expected), text);
  EXPECT_EQ(tokenizer.bos(), ByteTokenizer::bos);
  EXPECT_EQ(tokenizer.eos(), ByteTokenizer::eos);
  EXPECT_EQ(tokenizer.pad(), ByteTokenizer::pad);
  EXPECT_EQ(tokenizer.vocab_size(), ByteTokenizer::size);
}

}  // namespace
}  // namespace inlay::data
