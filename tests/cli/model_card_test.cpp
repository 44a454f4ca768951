#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/command.h"

namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CliModelCard : public ::testing::Test {
 protected:
  CliModelCard() {
    EXPECT_EQ(inlay({"init", "--preset", "tiny", folder_ / "base"}).code, 0);
    folder_.write("base/README.md", "---\nlicense: apache-2.0\nlanguage: en\n---\n# The base model\n");
    folder_.write("data.jsonl", "{\"text\": \"one two three\"}\n{\"text\": \"four five six\"}\n");
  }

  CommandResult train(const std::string& more = {}) const {
    folder_.write(
        "run.yaml",
        fmt::format("base_model: {}\noutput_dir: {}\ndatasets:\n  - path: {}\nlearning_rate: 1.0e-3\n"
                    "sequence_len: 32\nmax_steps: 2\ndevice: cpu\n{}",
                    (folder_ / "base").string(), (folder_ / "run").string(), (folder_ / "data.jsonl").string(), more));
    return inlay({"train", folder_ / "run.yaml", "--quiet"});
  }
  std::string card() const { return read_text(folder_ / "run/README.md"); }

  TempFolder folder_;
};

TEST_F(CliModelCard, SaysWhatTheModelIsAndHowItWasMade) {
  const CommandResult trained = train();
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(
      card().starts_with("---\nbase_model: \"base\"\nlibrary_name: transformers\npipeline_tag: text-generation\n"
                         "license: apache-2.0\ntags:\n- inlay\n---\n"));
  EXPECT_THAT(card(), HasSubstr("\n# run\n"));
  EXPECT_THAT(card(), HasSubstr("| steps | 2 |"));
  EXPECT_THAT(card(), HasSubstr(" → "));
  EXPECT_THAT(card(), HasSubstr("- `data.jsonl`"));
  EXPECT_THAT(card(), HasSubstr("learning_rate: 0.001"));
  EXPECT_THAT(card(), Not(HasSubstr("The base model")));
}

TEST_F(CliModelCard, AnAdapterIsOne) {
  const CommandResult trained = train("adapter: lora\nlora_r: 2\nlora_alpha: 4\nlora_target_linear: true\n");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(card(), HasSubstr("library_name: peft\n"));
  EXPECT_THAT(card(), HasSubstr("- lora\n"));
}

// Commands are there to be copied into a shell.
TEST_F(CliModelCard, CommandsHaveTheFolderAsOneWord) {
  train();
  const std::string named = folder_ / "o ut";
  const CommandResult trained = inlay({"train", folder_ / "run.yaml", "--output_dir", named});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("inlay report '" + named + "'\n"));
  EXPECT_THAT(read_text(folder_ / "o ut/README.md"),
              HasSubstr("inlay chat 'o ut'\ninlay export gguf 'o ut' 'o ut.gguf'\nvllm serve 'o ut'\n"));
}

TEST_F(CliModelCard, WordsOfOnesOwnStay) {
  std::filesystem::create_directories(folder_ / "run");
  folder_.write("run/README.md", "mine\n");
  const CommandResult trained = train();
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(card(), "mine\n");
}

// A run that is prolonged has another result.
TEST_F(CliModelCard, ACardOfOursIsReplaced) {
  ASSERT_EQ(train("save_steps: 2\n").code, 0);
  EXPECT_THAT(card(), HasSubstr("| steps | 2 |"));
  const CommandResult longer = inlay({"train", folder_ / "run.yaml", "--resume", "--max_steps", "3", "--quiet"});
  ASSERT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(card(), HasSubstr("| steps | 3 |"));
}

}  // namespace
}  // namespace inlay::testing
