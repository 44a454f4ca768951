#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer.h"
#include "support/files.h"
#include "support/paths.h"

// Every step that a tokenizer.json may ask for, against what Hugging Face's tokenizers made of the same file
// (tests/golden/make_tokenizer_cases.py).
namespace inlay::data {
namespace {

using Ids = std::vector<std::int32_t>;

const nlohmann::json& golden_cases() {
  static const nlohmann::json json = nlohmann::json::parse(
      inlay::testing::read_text(testing::source_folder().string() + "/tests/golden/tokenizer/cases.json"));
  return json;
}

Tokenizer tokenizer_of(const nlohmann::json& entry) {
  nlohmann::json file = {{"added_tokens", entry.value("added_tokens", nlohmann::json::array())},
                         {"model", golden_cases().at("models").at(entry.at("model").get<std::string>())}};
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    if (entry.contains(key)) file[key] = entry.at(key);
  }
  file["model"].update(entry.at("options"));
  return Tokenizer(io::Json::parse(file.dump(), "case.json"));
}

TEST(DataTokenizerCases, EveryStepAsHuggingFaceDoesIt) {
  const auto texts = golden_cases().at("texts").get<std::vector<std::string>>();
  EXPECT_GT(golden_cases().at("cases").size(), 90u);
  for (const nlohmann::json& entry : golden_cases().at("cases")) {
    const Tokenizer tokenizer = tokenizer_of(entry);
    const auto ids = entry.at("ids").get<std::vector<Ids>>();
    const auto special = entry.value("ids_with_special", ids);
    const auto decoded = entry.at("decoded").get<std::vector<std::string>>();
    const auto kept = entry.value("decoded_with_special", decoded);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string where = entry.at("name").get<std::string>() + ": " + io::in_quotes(texts[i]);
      EXPECT_EQ(tokenizer.encode(texts[i], false), ids[i]) << where;
      EXPECT_EQ(tokenizer.encode(texts[i]), special[i]) << where;
      EXPECT_EQ(tokenizer.decode(special[i]), decoded[i]) << where;
      EXPECT_EQ(tokenizer.decode(special[i], false), kept[i]) << where;
    }
    EXPECT_EQ(tokenizer.encode(texts, true, 3), special) << entry.at("name");
  }
}

}  // namespace
}  // namespace inlay::data
