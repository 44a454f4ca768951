#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/command.h"

// From conversations to a trained model, by the commands that a newcomer would type.
namespace inlay::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CliData : public ::testing::Test {
 protected:
  void SetUp() override {
    const CommandResult made = inlay({"init", folder / "base", "--preset", "tiny"});
    ASSERT_EQ(made.code, 0) << made.err;
    folder.write("base/chat_template.jinja",
                 "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
                 "{% if add_generation_prompt %}assistant: {% endif %}");
    std::string rows;
    for (int i = 0; i < 8; ++i) {
      rows += R"({"messages": [{"role": "user", "content": "say )" + std::to_string(i) +
              R"("}, {"role": "assistant", "content": ")" + std::to_string(i) + "\"}]}\n";
    }
    folder.write("chat.jsonl", rows);
    configure("{path: " + (folder / "chat.jsonl").string() + "}");
  }

  void configure(const std::string& dataset, const std::string& more = "") {
    folder.write("run.yaml", "base_model: " + (folder / "base").string() +
                                 "\noutput_dir: " + (folder / "run").string() + "\ndatasets: [" + dataset +
                                 "]\nlearning_rate: 1e-2\nmax_steps: 3\nsequence_len: 64\n" +
                                 "dtype: fp32\ndevice: cpu\ndataset_prepared_path: " + (folder / "prepared").string() +
                                 "\n" + more);
  }

  TempFolder folder;
};

TEST_F(CliData, ShowsWhatIsLearned) {
  const CommandResult shown = inlay({"data", folder / "run.yaml", "--samples", "8"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("8 rows, 8 documents"));
  EXPECT_THAT(shown.out, HasSubstr("user: say 3<|eos|>\nassistant: ⟦3<|eos|>⟧"));
  EXPECT_THAT(shown.out, Not(HasSubstr("\x1b[")));
  const auto whole = nlohmann::json::parse(inlay({"data", folder / "run.yaml", "--json"}).out);
  EXPECT_EQ(whole.at("learned_tokens"), 16);
  const std::string shorter = std::to_string(whole.at("longest").get<int>() - 2);
  const CommandResult json = inlay({"data", folder / "run.yaml", "--json", "--sequence_len", shorter});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto report = nlohmann::json::parse(json.out);
  EXPECT_EQ(report.at("documents"), 8);
  EXPECT_EQ(report.at("learned_tokens"), 8);  // the ends are cut off
  EXPECT_EQ(report.at("truncated"), 8);
  EXPECT_EQ(report.at("files")[0].at("rows"), 8);
}

TEST_F(CliData, WhatIsCutSoThatNothingIsLearnedIsLeftOut) {
  const CommandResult data = inlay({"data", folder / "run.yaml", "--sequence_len", "20"});
  EXPECT_EQ(data.code, 2);
  EXPECT_THAT(data.err, HasSubstr("none of the 8 documents has anything to learn within sequence_len (20 tokens)"));
  folder.write("chat.jsonl",
               R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
               "\n"
               R"({"messages": [{"role": "user", "content": ")" +
                   std::string(80, 'x') +
                   R"("}, {"role": "assistant", "content": "c"}]})"
                   "\n");
  const CommandResult trained = inlay({"train", folder / "run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("data: 1 document,"));
  EXPECT_THAT(trained.err, HasSubstr("holds nothing to learn within sequence_len"));
}

TEST_F(CliData, TheTemplateOfTheTrainingGoesWithTheResult) {
  const auto other =
      folder.write("other.jinja", "{% for m in messages %}{{ m.role }}> {{ m.content }}{{ eos_token }}{% endfor %}");
  configure("{path: " + (folder / "chat.jsonl").string() + "}", "chat_template: " + other.string() + "\n");
  ASSERT_EQ(inlay({"train", folder / "run.yaml"}).code, 0);
  EXPECT_EQ(inlay::testing::read_text(folder / "run/chat_template.jinja"), inlay::testing::read_text(other));
}

TEST_F(CliData, TrainsOnConversationsAndAnswers) {
  const CommandResult trained = inlay({"train", folder / "run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/chat_template.jinja"));  // the result chats like its base
  const CommandResult answer = inlay({"generate", folder / "run", "--prompt", "say 3", "--as", "chat", "--system", "S",
                                      "--max-new-tokens", "4", "--device", "cpu"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, Not(HasSubstr("say 3")));
  const CommandResult plan = inlay({"plan", folder / "run.yaml", "--json"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  const CommandResult eval =
      inlay({"eval", folder / "run", "--data", folder / "chat.jsonl", "--json", "--device", "cpu"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("tokens"), 16);
}

TEST_F(CliData, HoldsDocumentsOut) {
  configure("{path: " + (folder / "chat.jsonl").string() + "}", "val_set_size: 0.25\n");
  const CommandResult trained = inlay({"train", folder / "run.yaml"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("data: 6 documents"));
  EXPECT_THAT(trained.err, HasSubstr("eval loss"));
}

TEST_F(CliData, BadRowsAreErrorsOrCounted) {
  const std::string good = read_text(folder / "chat.jsonl");
  folder.write("chat.jsonl", good + "{\"messages\": [{\"content\": \"who?\"}]}\n");
  const CommandResult refused = inlay({"train", folder / "run.yaml"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("chat.jsonl:9: message 1 has no role, which says who speaks"));
  const CommandResult skipped = inlay({"train", folder / "run.yaml", "--on_bad_row", "skip"});
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_THAT(skipped.err, HasSubstr("1 of 9 rows are bad and were skipped"));
}

TEST_F(CliData, AHeadBiasThatNothingUsesOrThatDoesNotFitIsRefused) {
  const auto error = [&](const std::string& attention) {
    configure("{path: " + (folder / "chat.jsonl").string() + "}", "attention: " + attention + "\n");
    const CommandResult result = inlay({"train", folder / "run.yaml"});
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(error("{head_bias: [1]}"), HasSubstr("neither a mask nor a score that uses it is given"));
  EXPECT_THAT(error("{mask: causal, head_bias: [1]}"), HasSubstr("neither mask nor score uses it"));
  EXPECT_THAT(error("{score: head_bias, head_bias: [1]}"), HasSubstr("has 1 numbers, expected 4, one per head"));
}

// Files as other programs leave them: each is read, or its error says what it is and what would be right.
TEST_F(CliData, FilesOfOtherProgramsAreReadOrExplained) {
  const auto said = [&](const std::string& name, const std::string& content) {
    configure("{path: " + folder.write(name, content).string() + "}");
    const CommandResult result = inlay({"data", folder / "run.yaml", "--quiet"});
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(said("semicolons.csv", "question;answer\nwho;me\n"),
              HasSubstr("semicolons.csv:1: only one column, called 'question;answer'; expected commas between values, "
                        "as in a .csv file"));
  EXPECT_THAT(said("tabs.csv", "question\tanswer\nwho\tme\n"), HasSubstr("tabs.csv:1: only one column, called"));
  EXPECT_THAT(said("short.csv", "question,answer\nwho\n"),
              HasSubstr("short.csv:2: 1 value, but the first line names 2 columns"));
  for (const char* name : {"wide.jsonl", "wide.json", "wide.csv", "wide.txt"}) {
    EXPECT_THAT(said(name, std::string("\xFF\xFEh\0i\0\n\0", 8)),
                HasSubstr(std::string(name) + ": is text in UTF-16, expected UTF-8; iconv -f UTF-16 -t UTF-8 "
                                              "converts it"));
  }
  EXPECT_THAT(said("printed.json", "{\n  \"question\": \"who\",\n  \"answer\": \"me\"\n}\n"),
              HasSubstr("printed.json:1: an object that spans several lines; expected one on every line, or a "
                        "list of them in a file named *.json"));
  EXPECT_THAT(said("within.json", R"({"version": 1, "data": [{"question": "who", "answer": "me"}]})"),
              HasSubstr("within.json:1: its data is a list of rows; expected the rows themselves, as from jq "
                        "'.data'"));
  EXPECT_THAT(said("own.jsonl", R"({"query_text": "hi", "answers": [{"text": "x", "score": 3}]})"),
              HasSubstr("it is not clear what the row is: it has query_text, answers. Known are"));
  EXPECT_THAT(said("null.jsonl", R"({"question": "who", "answer": null})"),
              HasSubstr("it is not clear what the row is: it has question, answer (which is null). Known are"));
}

TEST_F(CliData, OneOfManyIsSaidAsOne) {
  configure("{path: " + folder.write("long.jsonl", "{\"text\": \"" + std::string(100, 'x') + "\"}\n").string() + "}");
  const CommandResult shown = inlay({"data", folder / "run.yaml"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("1 document is longer than sequence_len and cut, by "));
  const CommandResult trained = inlay({"train", folder / "run.yaml", "--max_steps", "1"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("data: 1 document was longer than sequence_len and lost "));
}

TEST_F(CliData, ATemplateThatIsMissingSaysWhatToDo) {
  std::filesystem::remove(folder / "base/chat_template.jinja");
  const CommandResult refused = inlay({"data", folder / "run.yaml"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("chat_template"));
}

}  // namespace
}  // namespace inlay::testing
