#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"

namespace inlay::testing {
namespace {

using ::testing::HasSubstr;

class CliTokenize : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(inlay({"init", "--preset", "tiny", model_}).code, 0); }

  TempFolder folder_;
  std::string model_ = folder_ / "m";
};

TEST_F(CliTokenize, ThereAndBack) {
  const std::string text = "Hé!\n<|eos|>";
  const std::string file = folder_.write("text", text);
  const CommandResult plain = inlay({"tokenize", model_, file});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(plain.out, "72 195 169 33 10 257\n");
  const CommandResult json = inlay({"tokenize", model_, file, "--json"});
  EXPECT_EQ(json.out, "{\"ids\":[72,195,169,33,10,257]}\n");
  for (const std::string& ids :
       {plain.out, json.out, std::string(" [72, 195, 169, 33, 10, 257]"), std::string("72,195,169,33 10\n257")}) {
    const std::string ids_file = folder_.write("ids", ids);
    EXPECT_EQ(inlay({"tokenize", model_, ids_file, "--decode"}).out, text);
    EXPECT_EQ(inlay({"tokenize", model_, ids_file, "--decode", "--no-special"}).out, "Hé!\n");
    EXPECT_EQ(nlohmann::json::parse(inlay({"tokenize", model_, ids_file, "--decode", "--json"}).out).at("text"), text);
  }
  EXPECT_EQ(inlay({"tokenize", model_, folder_.write("empty", ""), "--json"}).out, "{\"ids\":[]}\n");
  EXPECT_EQ(inlay({"tokenize", model_, folder_ / "empty", "--decode"}).out, "");
}

TEST_F(CliTokenize, SpecialTokensAroundATextAreOptional) {
  std::string config = read_text(model_ + "/tokenizer_config.json");
  config.insert(config.find('{') + 1, "\"add_bos_token\": true, ");
  folder_.write("m/tokenizer_config.json", config);
  const std::string file = folder_.write("text", "a");
  EXPECT_EQ(inlay({"tokenize", model_, file}).out, "256 97\n");
  EXPECT_EQ(inlay({"tokenize", model_, file, "--no-special"}).out, "97\n");
}

TEST_F(CliTokenize, MistakesAreNamed) {
  const auto decode = [&](const char* ids) {
    return inlay({"tokenize", model_, folder_.write("ids", ids), "--decode"});
  };
  EXPECT_THAT(decode("1 2 259").err,
              HasSubstr("ids: ids[2]: 259 is not a token of this tokenizer, whose ids go from 0 to 258"));
  EXPECT_THAT(decode("[1, -1]").err, HasSubstr("ids[1]: -1 is not a token"));
  EXPECT_THAT(decode("1 two").err, HasSubstr("expected token ids, got \"two\""));
  EXPECT_THAT(decode("1 2x").err, HasSubstr("expected token ids"));
  EXPECT_THAT(decode("{\"id\": [1]}").err, HasSubstr("ids: missing"));
  EXPECT_THAT(decode("[1").err, HasSubstr("not valid JSON"));
  EXPECT_EQ(decode("[1").code, 2);
  EXPECT_THAT(inlay({"tokenize", model_, folder_ / "nothing"}).err, HasSubstr("nothing: cannot be opened"));
  EXPECT_THAT(inlay({"tokenize", folder_ / "nothing"}).err, HasSubstr("nothing"));
  std::filesystem::remove(model_ + "/tokenizer.json");
  folder_.write("m/tokenizer.model", "x");
  const CommandResult only_model = inlay({"tokenize", model_, folder_ / "ids"});
  EXPECT_EQ(only_model.code, 2);
  EXPECT_THAT(only_model.err, HasSubstr("has tokenizer.model but no tokenizer.json"));
  EXPECT_THAT(inlay({"generate", model_, "--prompt", "x", "--device", "cpu"}).err, HasSubstr("no tokenizer.json"));
}

TEST(CliGenerate, ContinuesAStoryInText) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "the shared test data is not available";
  const CommandResult result = inlay({"generate", (*data / "models/stories15M").string(), "--prompt",
                                      "Once upon a time", "--max-new-tokens", "12", "--device", "cpu"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "Once upon a time, there was a little girl named Lily. She loved\n");
}

}  // namespace
}  // namespace inlay::testing
