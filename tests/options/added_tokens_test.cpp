#include "options/added_tokens.h"

#include <gmock/gmock.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer.h"
#include "io/checkpoint.h"
#include "model/families/family.h"
#include "support/command.h"
#include "support/paths.h"

namespace inlay::options {
namespace {

using inlay::testing::inlay;
using inlay::testing::read_text;
using inlay::testing::Setting;
using inlay::testing::TempFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class OptionsAddedTokens : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = inlay({"init", folder / "base", "--preset", "tiny"});
    ASSERT_EQ(made.code, 0) << made.err;
  }
  TempFolder folder;
  Setting cache{"XDG_CACHE_HOME", (folder / "cache").string()};
};

// A model with images says of its text model how many tokens there are.
TEST_F(OptionsAddedTokens, OfAModelWithImagesTheTextModelGrows) {
  namespace fs = std::filesystem;
  const fs::path base = folder / "images";
  fs::copy(::inlay::testing::source_folder() / "tests/golden/models/mistral3_images", base);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    if (fs::exists(folder / "base" / name)) fs::copy(folder / "base" / name, base / name);
  }
  const ChangedModel changed = change_tokens(base, {{{"eos_token", "<|stop|>"}}, {}});
  const auto config = model::load_config(changed.folder);
  EXPECT_EQ(config.vocab, 59 + changed.rows_added);
  EXPECT_GT(changed.rows_added, 0);
  const auto written = nlohmann::json::parse(read_text(changed.folder / "config.json"));
  EXPECT_EQ(written.at("text_config").at("vocab_size"), config.vocab);
  EXPECT_EQ(written.at("text_config").at("eos_token_id"), *data::Tokenizer::load(changed.folder).eos());
  EXPECT_FALSE(written.contains("vocab_size"));
  const io::Checkpoint before(base), after(changed.folder);
  EXPECT_EQ(before.names(), after.names());
  EXPECT_EQ(after.find(config.names.head)->shape[0], config.vocab);
}

TEST_F(OptionsAddedTokens, TheVocabularyGrowsByTheMeanOfItsRows) {
  const std::filesystem::path base = folder / "base";
  const auto old_config = model::load_config(base);
  const auto old_size = data::Tokenizer::load(base).vocab_size();
  std::vector<std::string> added;
  for (std::int64_t i = old_size; i < old_config.vocab + 2; ++i) added.push_back("<|extra-" + std::to_string(i) + "|>");
  const ChangedModel changed = change_tokens(base, {{{"eos_token", "<|stop|>"}}, added});
  EXPECT_EQ(changed.rows_added, 3);
  const data::Tokenizer tokenizer = data::Tokenizer::load(changed.folder);
  EXPECT_EQ(tokenizer.text(*tokenizer.eos()), "<|stop|>");
  EXPECT_TRUE(tokenizer.is_special(*tokenizer.find_id("<|stop|>")));
  EXPECT_EQ(tokenizer.encode("a" + added.back() + "b", false).size(), 3u);
  const auto config = model::load_config(changed.folder);
  EXPECT_EQ(config.vocab, old_config.vocab + 3);
  const auto written = nlohmann::json::parse(read_text(changed.folder / "config.json"));
  EXPECT_EQ(written.at("eos_token_id"), *tokenizer.eos());
  // Old rows as they were, new ones their mean; everything else is the base's.
  const io::Checkpoint before(base), after(changed.folder);
  EXPECT_EQ(before.names(), after.names());
  for (const std::string& name : before.names()) {
    const io::TensorInfo &old_info = *before.find(name), &info = *after.find(name);
    const auto* old_data = static_cast<const std::byte*>(before.tensor(name).data());
    const auto* data = static_cast<const std::byte*>(after.tensor(name).data());
    EXPECT_EQ(std::memcmp(old_data, data, old_info.bytes()), 0) << name;
    if (info.shape == old_info.shape) continue;
    ASSERT_EQ(info.dtype, DType::f32) << name;
    const auto columns = static_cast<std::size_t>(info.shape[1]);
    const auto at = [&](std::size_t row, std::size_t column) {
      float value = 0;
      std::memcpy(&value, data + (row * columns + column) * sizeof(float), sizeof(float));
      return value;
    };
    for (std::size_t c = 0; c < columns; c += 7) {
      double sum = 0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(old_size); ++r) sum += static_cast<double>(at(r, c));
      for (std::size_t r = static_cast<std::size_t>(old_info.shape[0]); r < static_cast<std::size_t>(info.shape[0]);
           ++r) {
        EXPECT_FLOAT_EQ(at(r, c), static_cast<float>(sum / static_cast<double>(old_size)));
      }
    }
  }
  EXPECT_EQ(change_tokens(base, {{{"eos_token", "<|stop|>"}}, added}).folder, changed.folder);
}

TEST_F(OptionsAddedTokens, WhatIsSoAlreadyChangesNothing) {
  const std::filesystem::path base = folder / "base";
  const data::Tokenizer tokenizer = data::Tokenizer::load(base);
  const std::string eos = *tokenizer.text(*tokenizer.eos());
  EXPECT_EQ(change_tokens(base, {{{"eos_token", eos}}, {eos}}).folder, base);
}

// Nobody wonders what became of a token that needs no row.
TEST_F(OptionsAddedTokens, WhatIsThereAlreadyIsSaid) {
  const auto plan = [&](const std::string& more) {
    folder.write("run.yaml", "base_model: base\noutput_dir: run\ndatasets: [rows.jsonl]\nlearning_rate: 1e-2\n" + more);
    return inlay({"plan", folder / "run.yaml", "--max_steps", "1", "--device", "cpu"}).err;
  };
  const data::Tokenizer tokenizer = data::Tokenizer::load(folder / "base");
  const std::string eos = *tokenizer.text(*tokenizer.eos());
  EXPECT_THAT(plan("tokens: ['" + eos + "']\n"), ::testing::HasSubstr("tokens: the tokenizer already has " + eos));
  EXPECT_THAT(plan("special_tokens: {eos_token: ''}\n"),
              ::testing::HasSubstr("run.yaml: special_tokens: eos_token is empty, expected the token's text"));
  std::string more;
  for (auto id = tokenizer.vocab_size(); id <= model::load_config(folder / "base").vocab; ++id) {
    more += fmt::format("{}'<|{}|>'", more.empty() ? "" : ", ", id);
  }
  EXPECT_THAT(plan("tokens: [" + more + "]\n"),
              ::testing::HasSubstr("; the vocabulary grows by 1 row, which begins as the mean of the others"));
  // What lies in the cache for it has a name there, too.
  const std::string cached = inlay({"cache"}).out;
  EXPECT_THAT(cached, ::testing::HasSubstr("models with added tokens"));
  EXPECT_THAT(cached, ::testing::Not(::testing::HasSubstr("files that Inlay does not know")));
}

TEST_F(OptionsAddedTokens, ARunLearnsThemAndSavesThem) {
  folder.write("rows.jsonl", "{\"text\": \"<|new|> one\"}\n{\"text\": \"two <|new|>\"}\n");
  std::string many;
  for (int i = 0; i < 400; ++i) many += ", <|filler-" + std::to_string(i) + "|>";
  folder.write("run.yaml",
               "base_model: base\noutput_dir: run\ndatasets: [rows.jsonl]\nlearning_rate: 1e-2\nmax_steps: 2\n"
               "sequence_len: 32\ndtype: fp32\ndevice: cpu\ntokens: ['<|new|>'" +
                   many + "]\n");
  const auto trained = inlay({"train", folder / "run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, ::testing::HasSubstr("401 new tokens; the vocabulary grows by"));
  const data::Tokenizer tokenizer = data::Tokenizer::load(folder / "run");
  ASSERT_TRUE(tokenizer.find_id("<|new|>"));
  EXPECT_GT(model::load_config(folder / "run").vocab, *tokenizer.find_id("<|new|>"));
  EXPECT_EQ(inlay({"generate", folder / "run", "--prompt", "<|new|>", "--max-new-tokens", "2"}).code, 0);
  const auto adapter = inlay({"train", folder / "run.yaml", "--output_dir", (folder / "a").string(), "--adapter",
                              "lora", "--lora_r", "4", "--lora_alpha", "4", "--lora_target_linear", "true"});
  EXPECT_EQ(adapter.code, 2);
  EXPECT_THAT(adapter.err, ::testing::HasSubstr("write lora_modules_to_save: [embed_tokens, lm_head]"));
}

}  // namespace
}  // namespace inlay::options
