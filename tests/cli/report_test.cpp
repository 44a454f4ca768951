#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"

// The commands around a run: the page, the configuration's schema and template, completion.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST(CliReport, ARunBecomesAPageWithSamplesOfBothModels) {
  const TempFolder folder;
  ASSERT_EQ(inlay({"init", folder / "base", "--preset", "tiny"}).code, 0);
  folder.write("data.jsonl", "{\"input_ids\": [5, 6, 7, 8, 9, 10]}\n{\"input_ids\": [5, 6, 7, 8, 9, 10]}\n");
  folder.write("run.yaml", "base_model: " + (folder / "base").string() + "\noutput_dir: " + (folder / "run").string() +
                               "\ndatasets: [" + (folder / "data.jsonl").string() +
                               "]\nlearning_rate: 1.0e-2\nmax_steps: 4\ndevice: cpu\ndtype: fp32\n");
  const CommandResult trained = inlay({"train", folder / "run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("inlay report " + (folder / "run").string()));

  const CommandResult plain = inlay({"report", folder / "run"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("run/report.html"));
  EXPECT_THAT(read_text(folder / "run/report.html"), Not(HasSubstr("Before and after")));

  const CommandResult sampled = inlay({"report", folder / "run", "--prompt", "<b>", "--prompt", "two",
                                       "--max-new-tokens", "4", "--device", "cpu", "--quiet"});
  ASSERT_EQ(sampled.code, 0) << sampled.err;
  EXPECT_EQ(sampled.err, "");
  const auto samples = nlohmann::json::parse(read_text(folder / "run/samples.json"));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].at("prompt"), "<b>");
  const std::string page = read_text(folder / "run/report.html");
  EXPECT_THAT(page, HasSubstr("Before and after"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;"));

  // The texts are those that generate prints for each model.
  for (const auto& [key, model] : {std::pair("before", "base"), std::pair("after", "run")}) {
    const CommandResult generated =
        inlay({"generate", folder / model, "--prompt", "two", "--max-new-tokens", "4", "--device", "cpu", "--quiet"});
    ASSERT_EQ(generated.code, 0) << generated.err;
    EXPECT_EQ("two" + samples[1].at(key).get<std::string>() + "\n", generated.out) << key;
  }
  // What the page shows stays when it is made again.
  ASSERT_EQ(inlay({"report", folder / "run"}).code, 0);
  EXPECT_THAT(read_text(folder / "run/report.html"), HasSubstr("Before and after"));
}

TEST(CliReport, WhatIsNoRunIsRefusedAndNothingIsWritten) {
  const TempFolder folder;
  const CommandResult result = inlay({"report", folder.path()});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("is not a run"));
  EXPECT_EQ(folder.entry_count(), 0u);
  folder.write("metrics.jsonl", "");
  const CommandResult without_model = inlay({"report", folder.path(), "--prompt", "a"});
  EXPECT_EQ(without_model.code, 2);
  EXPECT_THAT(without_model.err, HasSubstr("there is no model for --prompt"));
}

TEST(CliConfig, TheSchemaIsJsonAndTheTemplateIsNeverOverwritten) {
  const CommandResult schema = inlay({"config-schema"});
  ASSERT_EQ(schema.code, 0);
  EXPECT_TRUE(nlohmann::json::parse(schema.out).at("properties").contains("base_model"));
  const TempFolder folder;
  ASSERT_EQ(inlay({"init-config", folder / "a.yaml"}).code, 0);
  const std::string text = read_text(folder / "a.yaml");
  EXPECT_EQ(inlay({"init-config", "-"}).out, text);
  folder.write("a.yaml", "mine");
  const CommandResult again = inlay({"init-config", folder / "a.yaml"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("a.yaml: already exists"));
  EXPECT_EQ(read_text(folder / "a.yaml"), "mine");
}

// What bash would offer after these words, the last of which is being typed.
std::string completed(const TempFolder& folder, const std::vector<std::string>& words) {
  std::string line = "source '" + (folder / "inlay.bash").string() + "'; COMP_WORDS=(";
  for (const std::string& word : words) line += "'" + word + "' ";
  line += "); COMP_CWORD=" + std::to_string(words.size() - 1) + "; _inlay; printf '%s ' \"${COMPREPLY[@]}\"";
  folder.write("try.bash", line);
  const fs::path out = folder / "out";
  if (std::system(("bash '" + (folder / "try.bash").string() + "' >'" + out.string() + "' 2>&1").c_str()) != 0) {
    return "<bash failed> " + read_text(out);
  }
  return " " + read_text(out);
}

TEST(CliCompletion, BashOffersCommandsOptionsAndKeys) {
  if (std::system("bash -c true") != 0) GTEST_SKIP() << "there is no bash";
  const TempFolder folder;
  folder.write("inlay.bash", inlay({"completion", "bash"}).out);
  EXPECT_EQ(completed(folder, {"inlay", "tra"}), " train ");
  EXPECT_THAT(completed(folder, {"inlay", ""}), HasSubstr(" report "));
  EXPECT_EQ(completed(folder, {"inlay", "completion", "z"}), " zsh ");
  EXPECT_EQ(completed(folder, {"inlay", "report", "--qu"}), " --quiet ");
  EXPECT_EQ(completed(folder, {"inlay", "train", "run.yaml", "--micro"}), " --micro_batch_size ");
  EXPECT_EQ(completed(folder, {"inlay", "eval", "--micro"}), "  ");  // eval takes no keys
  EXPECT_EQ(completed(folder, {"inlay", "train", "r"}), "  ");       // a file: readline's own
}

TEST(CliCompletion, EveryShellKnowsEveryCommand) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const CommandResult script = inlay({"completion", shell});
    ASSERT_EQ(script.code, 0) << script.err;
    for (const char* word : {"train", "init-config", "attention", "learning_rate", "max-new-tokens"}) {
      EXPECT_THAT(script.out, HasSubstr(word)) << shell;
    }
  }
  EXPECT_EQ(inlay({"completion", "tcsh"}).code, 2);
}

}  // namespace
}  // namespace inlay::testing
