#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/formats/format.h"
#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;

struct Sequence {
  SequenceRole role;
  std::string text, learned;
};

std::vector<Sequence> make_pair_of(const std::string& row, FormatOptions options = {.type = "preference"}) {
  const ChatModel model;
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const io::Value value = io::read_value(row, "r:1");
  const Document document = make_format(options, tokenizer, model.path())->make(Row(value, "r:1"));
  std::vector<Sequence> result;
  std::vector<std::int32_t> text, learned;
  const auto close = [&] {
    if (result.empty()) return;
    result.back().text = tokenizer.decode(text, false);
    result.back().learned = tokenizer.decode(learned, false);
    text.clear();
    learned.clear();
  };
  for (std::size_t i = 0; i < document.labels.size(); ++i) {
    if (marks_sequence(document.labels[i])) {
      close();
      result.push_back({marked_role(document.labels[i]), "", ""});
    }
    text.push_back(document.input_ids[i]);
    if (is_label(document.labels[i])) learned.push_back(document.input_ids[i]);
  }
  close();
  return result;
}

TEST(DataPreferenceFormat, TextsAreTwoSequencesWhoseAnswersAreLearned) {
  const auto sequences = make_pair_of(R"({"prompt": "Q: 1+1? A:", "chosen": " 2", "rejected": " three"})");
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[0].role, SequenceRole::chosen);
  EXPECT_EQ(sequences[0].text, "Q: 1+1? A: 2<|im_end|>");
  EXPECT_EQ(sequences[0].learned, " 2<|im_end|>");
  EXPECT_EQ(sequences[1].role, SequenceRole::rejected);
  EXPECT_EQ(sequences[1].learned, " three<|im_end|>");
}

// The prompt is named, or is what both begin with, or are messages beside them: the same document.
TEST(DataPreferenceFormat, ConversationsAreRenderedByTheTemplate) {
  const std::string user = R"({"role": "user", "content": "Hi"})",
                    good = R"({"role": "assistant", "content": "Hello."})",
                    bad = R"({"role": "assistant", "content": "What?"})";
  const std::string rows[] = {
      R"({"prompt": [)" + user + R"(], "chosen": [)" + good + R"(], "rejected": [)" + bad + "]}",
      R"({"chosen": [)" + user + "," + good + R"(], "rejected": [)" + user + "," + bad + "]}",
      R"({"messages": [)" + user + R"(], "chosen": )" + good + R"(, "rejected": )" + bad + "}"};
  for (const std::string& row : rows) {
    const auto sequences = make_pair_of(row);
    ASSERT_EQ(sequences.size(), 2u) << row;
    EXPECT_EQ(sequences[0].text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n") << row;
    EXPECT_EQ(sequences[0].learned, "Hello.<|im_end|>") << row;
    EXPECT_EQ(sequences[1].learned, "What?<|im_end|>") << row;
  }
}

TEST(DataPreferenceFormat, JudgedAnswersSayWhatTheyAre) {
  const FormatOptions options{.type = "judged"};
  const auto good = make_pair_of(R"({"prompt": "Q", "completion": "A", "label": true})", options);
  const auto bad = make_pair_of(R"({"prompt": "Q", "completion": "B", "label": false})", options);
  ASSERT_EQ(good.size(), 1u);
  EXPECT_EQ(good[0].role, SequenceRole::desirable);
  EXPECT_EQ(bad[0].role, SequenceRole::undesirable);
  EXPECT_EQ(bad[0].learned, "B<|im_end|>");
}

TEST(DataPreferenceFormat, LongSequencesAreCutLeftOutOrRefused) {
  const std::string row = R"({"prompt": "abc", "chosen": "defgh", "rejected": "i"})";
  const auto cut = make_pair_of(row, {.type = "preference", .most_tokens = 5});
  EXPECT_EQ(cut[0].text, "abcde");
  EXPECT_EQ(cut[1].text, "abci<|im_end|>");
  EXPECT_TRUE(make_pair_of(row, {.type = "preference", .most_tokens = 5, .longer = Longer::leave_out}).empty());
  EXPECT_THAT(
      user_error_of([&] { make_pair_of(row, {.type = "preference", .most_tokens = 5, .longer = Longer::raise}); }),
      HasSubstr("r:1: prompt and answer have 9 tokens, sequence_len is 5"));
  EXPECT_THAT(user_error_of([&] { make_pair_of(row, {.type = "preference", .most_tokens = 3}); }),
              HasSubstr("nothing of an answer is left"));
}

// ORPO learns the prompts of chosen answers too; they weigh nothing in the answer's log-probability.
TEST(DataPreferenceFormat, PromptsHaveLabelsWhereTheyAreLearned) {
  const auto sequences = make_pair_of(R"({"prompt": "abc", "chosen": "d", "rejected": "e"})",
                                      {.type = "preference", .learns_prompts = true});
  EXPECT_EQ(sequences[0].learned, "bcd<|im_end|>");
  EXPECT_EQ(sequences[1].learned, "e<|im_end|>");
}

// There is nothing to prefer in two answers that are the same: of texts as of conversations, of all or of what is left.
TEST(DataPreferenceFormat, TiesAreLeftOut) {
  const std::string turns = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  EXPECT_TRUE(make_pair_of(R"({"prompt": "abc", "chosen": "d", "rejected": "d"})").empty());
  EXPECT_TRUE(make_pair_of(R"({"chosen": )" + turns + R"(, "rejected": )" + turns + "}").empty());
  EXPECT_TRUE(make_pair_of(R"({"prompt": "a", "chosen": )" + turns + R"(, "rejected": )" + turns + "}").empty());
  const std::string late = R"({"prompt": "abc", "chosen": "ddd", "rejected": "dde"})";
  EXPECT_TRUE(make_pair_of(late, {.type = "preference", .most_tokens = 5}).empty());
  EXPECT_EQ(make_pair_of(late, {.type = "preference", .most_tokens = 6}).size(), 2u);
  // But not where the chosen one is learned by itself.
  EXPECT_EQ(make_pair_of(R"({"prompt": "abc", "chosen": "d", "rejected": "d"})",
                         {.type = "preference", .learns_chosen = true})
                .size(),
            2u);
}

constexpr const char* question_and_good = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\ngood<|im_end|>\n";

// As TRL has it: where the answers hold the prompt themselves, they are whole conversations.
TEST(DataPreferenceFormat, AnswersMayRepeatThePrompt) {
  const std::string user = R"({"content": "q", "role": "user"})", good = R"({"role": "assistant", "content": "good"})",
                    bad = R"({"role": "assistant", "content": "bad"})";
  const std::string both = R"("chosen": [)" + user + "," + good + R"(], "rejected": [)" + user + "," + bad + "]}";
  const std::string rows[] = {
      R"({"prompt": "q", )" + both,
      R"({"prompt": " q\n", )" + both,
      R"({"prompt": [{"role": "user", "content": "q", "name": null}], )" + both,
      R"({"prompt": "q", "messages": [)" + user + "," + good + "], " + both,  // ultrafeedback_binarized
      R"({"messages": [)" + user + "," + good + "], " + both,
      R"({"question": "q", )" + both,
      R"({"prompt": [], )" + both};
  for (const std::string& row : rows) {
    const auto sequences = make_pair_of(row);
    ASSERT_EQ(sequences.size(), 2u) << row;
    EXPECT_EQ(sequences[0].text, question_and_good) << row;
    EXPECT_EQ(sequences[0].learned, "good<|im_end|>") << row;
    EXPECT_EQ(sequences[1].learned, "bad<|im_end|>") << row;
  }
  // All that both begin with is the prompt, whichever of its messages the row has by itself.
  const std::string turns =
      R"({"role": "system", "content": "S"},)" + user + "," + good + R"(,{"role": "user", "content": "more"})";
  for (const char* prompt : {R"("q")", R"("more")", R"([{"role": "user", "content": "q"}])"}) {
    const auto sequences = make_pair_of(R"({"prompt": )" + std::string(prompt) + R"(, "chosen": [)" + turns + "," +
                                        good + R"(], "rejected": [)" + turns + "," + bad + "]}");
    EXPECT_THAT(sequences[0].text, HasSubstr("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>"));
    EXPECT_EQ(sequences[0].learned, "good<|im_end|>") << prompt;
    EXPECT_EQ(sequences[1].learned, "bad<|im_end|>") << prompt;
  }
  // A system message, or what was said before, does not stand in the answers again.
  for (const char* prompt :
       {R"([{"role": "system", "content": "S"}])", R"([{"role": "assistant", "content": "Hi"}])"}) {
    const auto sequences = make_pair_of(R"({"prompt": )" + std::string(prompt) + ", " + both);
    EXPECT_TRUE(sequences[0].text.ends_with(question_and_good)) << sequences[0].text;
    EXPECT_GT(sequences[0].text.size(), std::string(question_and_good).size());
    EXPECT_EQ(sequences[0].learned, "good<|im_end|>") << prompt;
  }
}

TEST(DataPreferenceFormat, APromptThatIsAnotherOneThanTheAnswersIsAnError) {
  const std::string both =
      R"("chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
         "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}]})";
  for (const char* prompt : {R"("other")", R"([{"role": "user", "content": "other"}])"}) {
    EXPECT_THAT(user_error_of([&] { make_pair_of(R"({"prompt": )" + std::string(prompt) + ", " + both); }),
                HasSubstr("r:1: chosen: begins with a user message of its own, which differs from prompt"));
  }
  EXPECT_THAT(user_error_of([&] {
                make_pair_of(
                    R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
         "rejected": [{"from": "human", "value": "p"}, {"role": "assistant", "content": "bad"}]})");
              }),
              HasSubstr("r:1: chosen and rejected begin with different messages"));
}

// Intel/orca_dpo_pairs, argilla's, LLaMA-Factory's in both of its shapes.
TEST(DataPreferenceFormat, PromptsHaveManyNames) {
  const std::string answers = R"("chosen": "good", "rejected": "bad"})";
  const auto text_of = [](const std::string& row) {
    const auto sequences = make_pair_of(row);
    EXPECT_EQ(sequences.size(), 2u) << row;
    EXPECT_EQ(sequences[0].learned, "good<|im_end|>") << row;
    EXPECT_EQ(sequences[1].learned, "bad<|im_end|>") << row;
    return sequences[0].text;
  };
  for (const char* prompt : {R"("question": "q")", R"("instruction": "q")", R"("instruction": "q", "input": "")",
                             R"("query": "q")", R"("input": "q")", R"("system": "", "question": "q")",
                             R"("instruction": "q", "history": [])", R"("system": null, "prompt": "q")"}) {
    EXPECT_EQ(text_of("{" + std::string(prompt) + ", " + answers), question_and_good) << prompt;
  }
  const std::string system = "<|im_start|>system\nS<|im_end|>\n";
  for (const char* prompt : {R"("system": "S", "question": "q")", R"("system": "S", "input": "q")",
                             R"("system_prompt": "S", "query": "q")", R"("system": "S", "prompt": "q")"}) {
    EXPECT_EQ(text_of("{" + std::string(prompt) + ", " + answers), system + question_and_good) << prompt;
  }
  EXPECT_THAT(text_of(R"({"instruction": "Add.", "input": "1 2", )" + answers),
              HasSubstr("<|im_start|>user\nAdd.\n1 2<|im_end|>\n<|im_start|>assistant\ngood"));
  EXPECT_EQ(text_of(R"({"instruction": "q", "history": [["a", "b"]], )" + answers),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n" + std::string(question_and_good));
  EXPECT_EQ(text_of(R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "good"},
                        "rejected": {"from": "gpt", "value": "bad"}})"),
            question_and_good);
  EXPECT_EQ(text_of(R"({"conversations": [{"from": "human", "value": "q"}], )" + answers), question_and_good);
  EXPECT_EQ(text_of(R"({"question": "q", "chosen": [{"role": "assistant", "content": "good"}],
                        "rejected": [{"role": "assistant", "content": "bad"}]})"),
            question_and_good);
}

// As hh-rlhf has them.
TEST(DataPreferenceFormat, WholeTextsAreTakenAsTheyAre) {
  const auto sequences = make_pair_of(R"({"chosen": "\n\nHuman: q\n\nAssistant: good",
                                          "rejected": "\n\nHuman: q\n\nAssistant: bad"})");
  EXPECT_EQ(sequences[0].text, "\n\nHuman: q\n\nAssistant: good<|im_end|>");
  EXPECT_EQ(sequences[1].learned, "\nHuman: q\n\nAssistant: bad<|im_end|>");
}

TEST(DataPreferenceFormat, WhatMayBeThePromptIsNotLeftOut) {
  const auto error = [](const std::string& rest) {
    return user_error_of([&] { make_pair_of("{" + rest + R"(, "chosen": "a", "rejected": "b"})"); });
  };
  EXPECT_THAT(error(R"("dialog": [{"role": "user", "content": "q"}])"),
              HasSubstr("r:1: dialog: is not read: a pair has its prompt under prompt, messages, conversations, "
                        "question, instruction, query or input; field_messages names another"));
  EXPECT_THAT(error(R"("context": "q")"), HasSubstr("r:1: context: is not read"));
  EXPECT_THAT(error(R"("system": "S")"), HasSubstr("r:1: system: is not read"));
  EXPECT_EQ(error(R"("source": "web", "context": "")"), "<no error>");
}

TEST(DataPreferenceFormat, QuestionsNeedATemplate) {
  const ChatModel model;
  std::filesystem::remove(model.path() / "chat_template.jinja");
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const auto make = [&](const std::string& row, FormatOptions options) {
    const io::Value value = io::read_value(row, "r:1");
    make_format(options, tokenizer, model.path())->make(Row(value, "r:1"));
  };
  const std::string question = R"({"question": "q", "chosen": "a", "rejected": "b"})",
                    system = R"({"system": "S", "prompt": "q", "chosen": "a", "rejected": "b"})";
  for (const std::string& row : {question, system}) {
    EXPECT_THAT(user_error_of([&] { make(row, {.type = "preference"}); }),
                HasSubstr("conversations need a chat template"));
    EXPECT_EQ(user_error_of([&] { make(row, {.type = "preference", .chat_template = "chatml"}); }), "<no error>");
  }
}

// That is what axolotl's chatml.intel, llama3.ultra and others mean.
TEST(DataPreferenceFormat, ATemplateThatIsNamedIsForTextsToo) {
  const std::string row = R"({"prompt": "q", "chosen": "good", "rejected": "bad"})";
  const auto sequences = make_pair_of(row, {.type = "preference", .chat_template = "chatml"});
  EXPECT_EQ(sequences[0].text, question_and_good);
  EXPECT_EQ(sequences[0].learned, "good<|im_end|>");
  EXPECT_EQ(make_pair_of(row)[0].text, "qgood<|im_end|>");
  const auto judged = make_pair_of(R"({"prompt": "q", "completion": "good", "label": true})",
                                   {.type = "judged", .chat_template = "chatml"});
  EXPECT_EQ(judged[0].text, question_and_good);
  const auto whole =
      make_pair_of(R"({"chosen": "a b", "rejected": "a c"})", {.type = "preference", .chat_template = "chatml"});
  EXPECT_EQ(whole[0].text, "a b<|im_end|>");
}

TEST(DataPreferenceFormat, JudgedAnswersHavePromptsAsPairsDo) {
  const std::string rest = R"("label": true})";
  for (const char* row :
       {R"("prompt": [{"role": "user", "content": "q"}],
           "completion": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}])",
        R"("prompt": "q", "completion": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}])",
        R"("completion": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}])",
        R"("question": "q", "completion": "good")",
        R"("conversations": [{"from": "human", "value": "q"}], "completion": {"from": "gpt", "value": "good"})",
        R"("messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}])",
        R"("instruction": "q", "output": "good")"}) {
    const auto sequences = make_pair_of("{" + std::string(row) + ", " + rest, {.type = "judged"});
    ASSERT_EQ(sequences.size(), 1u) << row;
    EXPECT_EQ(sequences[0].text, question_and_good) << row;
    EXPECT_EQ(sequences[0].learned, "good<|im_end|>") << row;
  }
  EXPECT_THAT(
      user_error_of([&] { make_pair_of(R"({"context": "q", "completion": "a", )" + rest, {.type = "judged"}); }),
      HasSubstr("r:1: context: is not read"));
}

TEST(DataPreferenceFormat, MistakesNameTheKey) {
  EXPECT_THAT(user_error_of([] { make_pair_of(R"({"prompt": "a", "chosen": "b"})"); }), HasSubstr("rejected"));
  EXPECT_THAT(user_error_of([] {
                make_pair_of(
                    R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "rejected": [{"role": "user", "content": "a"}]})");
              }),
              HasSubstr("do not differ"));
}

}  // namespace
}  // namespace inlay::data
