#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/formats/format.h"
#include "data/template/json_value.h"
#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Document make(const ChatModel& model, const std::string& row, FormatOptions options = {}) {
  options.type = "chat_template";
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  return make_format(options, tokenizer, model.path())
      ->make(Row(jinja::read_json(row, "rows.jsonl:7"), "rows.jsonl:7"));
}

std::string error_of(const ChatModel& model, const std::string& row, const FormatOptions& options = {}) {
  return user_error_of([&] { make(model, row, options); });
}

// What is learned, runs of it apart.
std::vector<std::string> learned(const ChatModel& model, const Document& document) {
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  std::vector<std::string> runs;
  bool inside = false;
  std::vector<std::int32_t> run;
  const auto close = [&] {
    if (inside) runs.push_back(tokenizer.decode(run, false));
    run.clear();
    inside = false;
  };
  for (std::size_t i = 0; i < document.input_ids.size(); ++i) {
    if (document.labels[i] == ignore_label) {
      close();
      continue;
    }
    EXPECT_EQ(document.labels[i], document.input_ids[i]);
    inside = true;
    run.push_back(document.input_ids[i]);
  }
  close();
  return runs;
}

const std::string two_turns =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
                     {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you, é!"}]})";

TEST(DataChatFormat, LearnsTheAssistantsTurnsAndTheirEnds) {
  const ChatModel model;
  const Document document = make(model, two_turns);
  EXPECT_EQ(Tokenizer::load(model.path()).decode(document.input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSee you, é!<|im_end|>\n");
  EXPECT_THAT(learned(model, document), ElementsAre("Hello.<|im_end|>", "See you, é!<|im_end|>"));
  EXPECT_TRUE(document.weights.empty());
}

// The model's tokens are bytes here: its characters take up to four.
TEST(DataChatFormat, ALastCharacterOfSeveralTokensIsLearnedWhole) {
  const ChatModel model;
  for (const std::string end : {"é", "龘", "🦜", "🦜🦜", "🦜\\n"}) {
    const std::string row =
        R"({"messages": [{"role": "user", "content": "Hi 🦜"}, {"role": "assistant", "content": "Great! )" + end +
        R"("}, {"role": "user", "content": "Bye"}]})";
    const auto runs = learned(model, make(model, row));
    ASSERT_EQ(runs.size(), 1u) << end;
    EXPECT_EQ(runs[0], "Great! " + (end.ends_with("n") ? "🦜\n" : end) + "<|im_end|>");
  }
}

TEST(DataChatFormat, EndsOfTurnsAsAsked) {
  const ChatModel model;
  const auto with = [&](const std::string& train_on_eos) {
    return learned(model, make(model, two_turns, {.train_on_eos = train_on_eos}));
  };
  EXPECT_THAT(with("turn"), ElementsAre("Hello.<|im_end|>", "See you, é!<|im_end|>"));
  EXPECT_THAT(with("none"), ElementsAre("Hello.", "See you, é!"));
  EXPECT_THAT(with("last"), ElementsAre("Hello.", "See you, é!<|im_end|>"));
  EXPECT_THAT(with("all"), ElementsAre("<|im_end|>", "Hello.<|im_end|>", "<|im_end|>", "See you, é!<|im_end|>"));
}

TEST(DataChatFormat, ASpecialTokenThatFollowsATurnEndsIt) {
  const ChatModel model;
  model.set_template("{% for m in messages %}<|im_start|>{{ m.content }}<|pad|>{% endfor %}");
  EXPECT_THAT(learned(model, make(model, two_turns)), ElementsAre("Hello.<|pad|>", "See you, é!<|pad|>"));
  EXPECT_THAT(learned(model, make(model, two_turns, {.eot_tokens = {"<|im_end|>"}})),
              ElementsAre("Hello.", "See you, é!"));
}

// As GPT-OSS ends a call of a tool: the token belongs to the message, and another turn's beginning follows.
TEST(DataChatFormat, ASpecialTokenThatAMessageEndsWithEndsTheTurn) {
  const ChatModel model;
  model.set_template("{% for m in messages %}<|im_start|>{{ m.content }}{% if m.call %}<|pad|>{% endif %}{% endfor %}");
  const std::string row =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "f 1", "call": true},
                       {"role": "user", "content": "2"}]})";
  EXPECT_THAT(learned(model, make(model, row)), ElementsAre("f 1<|pad|>"));
  EXPECT_THAT(learned(model, make(model, row, {.train_on_eos = "none"})), ElementsAre("f 1"));
}

TEST(DataChatFormat, RolesToTrain) {
  const ChatModel model;
  EXPECT_THAT(learned(model, make(model, two_turns, {.roles_to_train = {"user"}})),
              ElementsAre("Hi<|im_end|>", "Bye<|im_end|>"));
  EXPECT_THAT(learned(model, make(model, two_turns, {.train_on_inputs = true})),
              ElementsAre("Hi<|im_end|>", "Hello.<|im_end|>", "Bye<|im_end|>", "See you, é!<|im_end|>"));
  EXPECT_THAT(learned(model, make(model, two_turns, {.roles_to_train = {"tool"}})), ElementsAre());
}

TEST(DataChatFormat, MessagesMaySayWhetherAndHowMuch) {
  const ChatModel model;
  const Document document =
      make(model,
           R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "training": false},
          {"role": "user", "content": "c", "training": true}, {"role": "assistant", "content": "d", "weight": 0.5},
          {"role": "user", "content": "e", "loss_weight": 1},
          {"role": "assistant", "content": "f", "loss_weight": 0}]})");
  EXPECT_THAT(learned(model, document), ElementsAre("c<|im_end|>", "d<|im_end|>"));
  ASSERT_EQ(document.weights.size(), document.input_ids.size());
  for (std::size_t i = 0; i < document.labels.size(); ++i) {
    const bool half =
        i > 0 && document.labels[i] != ignore_label && (document.labels[i] == 'd' || document.labels[i - 1] == 'd');
    EXPECT_EQ(document.weights[i], half ? 0.5f : 1.0f) << i;
  }
}

TEST(DataChatFormat, GenerationBlocksDecideWhereThereAreSome) {
  const ChatModel model;
  model.set_template(
      "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>{% generation %}[{{ "
      "message.content }}]"
      "<|im_end|>{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}");
  EXPECT_THAT(learned(model, make(model, two_turns)), ElementsAre("[Hello.]<|im_end|>", "[See you, é!]<|im_end|>"));
  EXPECT_THAT(learned(model, make(model, two_turns, {.train_on_eos = "none"})),
              ElementsAre("[Hello.]", "[See you, é!]"));
}

// What templates do to messages: trimmed, another ending for the last one, something before the answer.
TEST(DataChatFormat, TemplatesThatChangeMessages) {
  const ChatModel model;
  model.set_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n{% endif %}"
      "{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const std::string row =
      R"({"messages": [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "\n Hello.  "}]})";
  EXPECT_THAT(learned(model, make(model, row)), ElementsAre("<think>\n\n</think>\nHello.<|im_end|>"));
}

TEST(DataChatFormat, OtherNamesForThingsAreUnderstood) {
  const ChatModel model;
  EXPECT_THAT(learned(model, make(model, R"({"conversations": [{"from": "system", "value": "Be nice."},
                                  {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]})")),
              ElementsAre("Hello.<|im_end|>"));
  FormatOptions options;
  options.field_messages = "chat";
  options.message_property_mappings = {{"role", "who"}, {"content", "what"}};
  options.roles = {{"user", {"me"}}, {"assistant", {"bot", "machine"}}};
  options.roles_to_train = {"machine"};
  EXPECT_THAT(learned(model, make(model, R"({"chat": [{"who": "me", "what": "Hi"}, {"who": "bot", "what": "Hello."}]})",
                                  options)),
              ElementsAre("Hello.<|im_end|>"));
}

TEST(DataChatFormat, ContentInPartsAndSystemBeside) {
  const ChatModel model;
  const Document document = make(
      model,
      R"({"system": "S", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text",
                 "text": "there"}]}, {"role": "assistant", "content": "Hello."}]})");
  EXPECT_THAT(Tokenizer::load(model.path()).decode(document.input_ids, false),
              ::testing::StartsWith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi there<|im_end|>"));
  EXPECT_THAT(error_of(model, R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
              HasSubstr("messages[0].content[0]: content of type 'image' is not supported"));
}

TEST(DataChatFormat, MistakesNameTheRowAndTheKey) {
  const ChatModel model;
  EXPECT_EQ(error_of(model, R"({"text": "x"})"), "rows.jsonl:7: messages: missing, expected an array of messages");
  EXPECT_EQ(error_of(model, R"({"messages": []})"), "rows.jsonl:7: messages: is empty, expected at least one message");
  EXPECT_EQ(error_of(model, R"({"messages": [{"content": "x"}]})"),
            "rows.jsonl:7: messages[0].role: missing, expected who speaks, such as \"user\"");
  EXPECT_EQ(error_of(model, R"({"messages": [{"role": 3, "content": "x"}]})"),
            "rows.jsonl:7: messages[0].role: expected a string, got 3");
  EXPECT_EQ(error_of(model, R"({"messages": "hello"})"), "rows.jsonl:7: messages: expected an array, got \"hello\"");
  EXPECT_THAT(error_of(model, R"({"messages": [{"role": "user", "content": "x", "weight": -1}]})"),
              HasSubstr("messages[0].weight: expected a weight from 0"));
  model.set_template("{{ raise_exception('roles must alternate') }}");
  EXPECT_THAT(error_of(model, R"({"messages": [{"role": "user", "content": "x"}]})"),
              HasSubstr("rows.jsonl:7: the chat template refuses the conversation: "));
  EXPECT_THAT(error_of(model, R"({"messages": [{"role": "user", "content": "x"}]})", {.eot_tokens = {"<nope>"}}),
              HasSubstr("eot_tokens: '<nope>' is not a token"));
}

// Real templates with the tokenizers of their models.
TEST(DataChatFormatReal, WhatIsLearned) {
  const auto data = inlay::testing::test_data();
  if (!data) GTEST_SKIP() << "no test data";
  struct Case {
    std::string tokenizer, chat_template;
    std::vector<std::string> learned;
  };
  const std::vector<Case> cases = {
      {"qwen3", "Qwen-Qwen3-0.6B", {"Hello there.<|im_end|>", "<think>\n\n</think>\n\nIt is 3.<|im_end|>"}},
      {"qwen3", "Qwen-Qwen2.5-7B-Instruct", {"Hello there.<|im_end|>", "It is 3.<|im_end|>"}},
      {"llama3_2", "meta-llama-Llama-3.2-3B-Instruct", {"Hello there.<|eot_id|>", "It is 3.<|eot_id|>"}},
      {"llama3_2", "meta-llama-Llama-3.1-8B-Instruct", {"Hello there.<|eot_id|>", "It is 3.<|eot_id|>"}},
      {"qwen3", "HuggingFaceTB-SmolLM3-3B", {"Hello there.<|im_end|>", "It is 3.<|im_end|>"}},
      {"gptoss",
       "openai-gpt-oss-120b",
       {"<|channel|>final<|message|>Hello there.<|end|>", "<|channel|>final<|message|>It is 3.<|return|>"}},
  };
  for (const Case& c : cases) {
    const ChatModel model;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      model.write(name, inlay::testing::read_text(*data / "tokenizers" / c.tokenizer / name));
    }
    model.set_template(inlay::testing::read_text(*data / "chat_templates" / (c.chat_template + ".jinja")));
    const Document document = make(model, R"({"messages": [{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Sum 1 2"}, {"role": "assistant", "content": "It is 3."}]})");
    EXPECT_THAT(learned(model, document), ::testing::ElementsAreArray(c.learned)) << c.chat_template;
  }
}

}  // namespace
}  // namespace inlay::data
