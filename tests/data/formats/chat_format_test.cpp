#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "data/formats/format.h"
#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::user_error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Document make(const Tokenizer& tokenizer, const ChatModel& model, const std::string& row, FormatOptions options = {}) {
  options.type = "chat_template";
  const io::Value value = io::read_value(row, "rows.jsonl:7");
  return make_format(options, tokenizer, model.path())->make(Row(value, "rows.jsonl:7"));
}

Document make(const ChatModel& model, const std::string& row, const FormatOptions& options = {}) {
  return make(Tokenizer::load(model.path()), model, row, options);
}

std::string error_of(const ChatModel& model, const std::string& row, const FormatOptions& options = {}) {
  return user_error_of([&] { make(model, row, options); });
}

// What is learned, runs of it apart.
std::vector<std::string> learned(const Tokenizer& tokenizer, const Document& document) {
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

std::vector<std::string> learned(const ChatModel& model, const Document& document) {
  return learned(Tokenizer::load(model.path()), document);
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
// A template of another family's closes answers with what is only text to this tokenizer.
TEST(DataChatFormat, AnEndThatIsNoTokenIsSaid) {
  const ChatModel model;
  const auto remark = [&](const std::string& closing, const std::string& ends = "turn") {
    const std::filesystem::path file = model.path() / "other.jinja";
    std::ofstream(file) << "{% for m in messages %}[{{ m.role }}]{{ m.content }}" << closing << "{% endfor %}";
    FormatOptions options{.type = "chat_template"};
    options.chat_template = file.string();
    options.train_on_eos = ends;
    return make_format(options, Tokenizer::load(model.path()), model.path())->remark();
  };
  EXPECT_EQ(remark("<|im_end|>"), "");
  EXPECT_THAT(remark("<end>\n"), HasSubstr("the end of an answer is not learned"));
  EXPECT_THAT(remark("<end>\n"), HasSubstr("writes '<end>' there, which is not a token"));
  EXPECT_THAT(remark(""), HasSubstr("writes nothing after an answer"));
  EXPECT_EQ(remark("<end>", "none"), "");
  FormatOptions own{.type = "chat_template"};
  EXPECT_EQ(make_format(own, Tokenizer::load(model.path()), model.path())->remark(), "");
}

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

// As GPT-OSS has it: the turn's own tokens lead to the message, and the end is another one in the middle.
const std::string channels =
    "{% for m in messages %}<|im_start|>{{ m.role }}<|bos|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|im_end|>{% else %}<|pad|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";

const std::string silent =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""},
                     {"role": "user", "content": ""}, {"role": "assistant", "content": ""}]})";

TEST(DataChatFormat, AnEmptyTurnEndsWithWhatFollowsIt) {
  const ChatModel model;
  EXPECT_THAT(learned(model, make(model, silent)), ElementsAre("<|im_end|>", "<|im_end|>"));
  model.set_template(channels);
  EXPECT_THAT(learned(model, make(model, silent)), ElementsAre("<|bos|><|pad|>", "<|bos|><|im_end|>"));
  EXPECT_THAT(learned(model, make(model, silent, {.train_on_eos = "none"})), ElementsAre("<|bos|>", "<|bos|>"));
  EXPECT_THAT(learned(model, make(model, silent, {.train_on_eos = "last"})),
              ElementsAre("<|bos|>", "<|bos|><|im_end|>"));
}

TEST(DataChatFormat, ASpecialTokenThatAMessageEndsWithIsNotTheEndWhereTheTemplateWritesOne) {
  const ChatModel model;
  model.set_template(channels);
  const std::string row =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a<|eos|>"},
                       {"role": "user", "content": "Bye"}]})";
  EXPECT_THAT(learned(model, make(model, row)), ElementsAre("<|bos|>a<|eos|><|pad|>"));
}

TEST(DataChatFormat, AGenerationBlockMayLeaveTheEndToTheTemplate) {
  const ChatModel model;
  const std::string before = "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.role == 'assistant' %}",
                    after = "{% else %}<|bos|>{{ m.content }}<|pad|>{% endif %}{% endfor %}";
  model.set_template(before + "{% generation %}<|bos|>{{ m.content }}{% endgeneration %}<|pad|>" + after);
  EXPECT_THAT(learned(model, make(model, silent)), ElementsAre("<|bos|><|pad|>", "<|bos|><|pad|>"));
  EXPECT_THAT(learned(model, make(model, two_turns)), ElementsAre("<|bos|>Hello.<|pad|>", "<|bos|>See you, é!<|pad|>"));
  model.set_template(before + "{% generation %}<|bos|>{{ m.content }}<|pad|>{% endgeneration %}" + after);
  EXPECT_THAT(learned(model, make(model, silent)), ElementsAre("<|bos|><|pad|>", "<|bos|><|pad|>"));
  EXPECT_THAT(learned(model, make(model, silent, {.train_on_eos = "none"})), ElementsAre("<|bos|>", "<|bos|>"));
}

// Qwen3's way: reasoning, beside the content or in it, is written in the last turn alone.
TEST(DataChatFormat, ATurnWhoseReasoningTheTemplateDropsIsAnError) {
  const ChatModel model;
  model.set_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set content = m.content.split('</think>')[-1].lstrip() %}"
      "{% set thoughts = m.reasoning_content | trim or (m.content.split('</think>')[0].split('<think>')[-1].strip() if "
      "'</think>' in m.content else '') %}{% if loop.last and m.role == 'assistant' %}<think>\n{{ thoughts }}\n</think>"
      "\n\n{% endif %}{{ content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const auto row = [](const std::string& first, const std::string& second) {
    return R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", )" + first +
           R"(}, {"role": "user", "content": "Bye"}, {"role": "assistant", )" + second + "}]}";
  };
  const std::string plain = R"("content": "Hello.")", beside = R"("content": "Hello.", "reasoning_content": " Hm.\n")",
                    inside = R"("content": "<think>\nHm.\n</think>\n\nHello.")";
  EXPECT_THAT(learned(model, make(model, row(plain, plain))),
              ElementsAre("Hello.<|im_end|>", "<think>\n\n</think>\n\nHello.<|im_end|>"));
  for (const std::string& thinking : {beside, inside}) {
    EXPECT_THAT(
        learned(model, make(model, row(plain, thinking))),
        ElementsAre("Hello.<|im_end|>", ::testing::MatchesRegex("<think>\\s+Hm.\\s+</think>\\s+Hello.<.im_end.>")));
    EXPECT_THAT(
        error_of(model, row(thinking, plain)),
        HasSubstr("rows.jsonl:7: messages[1]: the chat template drops the reasoning of this assistant message"));
    EXPECT_THAT(learned(model, make(model, row(thinking + R"(, "training": false)", plain))),
                ElementsAre("<think>\n\n</think>\n\nHello.<|im_end|>"));
  }
  EXPECT_EQ(error_of(model, row(R"("content": "Hello.", "reasoning_content": "\n")", plain)), "<no error>");
}

TEST(DataChatFormat, ATemplateThatKnowsNoReasoningIsAnErrorWhereThereIsSome) {
  const ChatModel model;
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string row =
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello.", ")" +
        std::string(name) + R"(": "A greeting."}]})";
    EXPECT_THAT(error_of(model, row), HasSubstr("messages[1]: the chat template drops the reasoning")) << name;
    EXPECT_EQ(error_of(model, row, {.roles_to_train = {"user"}}), "<no error>");
  }
  // Of its own accord: DeepSeek's do so.
  model.set_template(
      "{% for m in messages %}<|im_start|>{% generation %}{{ m.content.split('</think>')[-1] }}<|im_end|>"
      "{% endgeneration %}{% endfor %}");
  EXPECT_THAT(error_of(model, R"({"messages": [{"role": "assistant", "content": "<think>Hm.</think>Hello."}]})"),
              HasSubstr("messages[0]: the chat template drops the reasoning"));
}

// A name for it that is not known here, dropped all the same.
TEST(DataChatFormat, ATurnThatIsWrittenDifferentlyInTheMiddleIsAnError) {
  const ChatModel model;
  model.set_template(
      "{% for m in messages %}<|im_start|>{% if loop.last %}{{ m.note }}{% endif %}{{ m.content }}<|im_end|>{% endfor "
      "%}");
  const std::string noted = R"({"role": "assistant", "content": "Hello.", "note": "Hm."})";
  EXPECT_THAT(learned(model, make(model, R"({"messages": [)" + noted + "]}")), ElementsAre("Hm.Hello.<|im_end|>"));
  EXPECT_THAT(error_of(model, R"({"messages": [)" + noted + R"(, {"role": "user", "content": "Bye"}]})"),
              HasSubstr("messages[0]: the chat template writes this assistant message differently in the middle"));
}

// The place is the one in the data, whatever is put before the messages or taken away, and by the key that is there.
TEST(DataChatFormat, ErrorsNameTheMessageAsItStandsInTheData) {
  const ChatModel model;
  const std::string thinking = R"({"from": "gpt", "value": "Hello.", "reasoning": "Hm."})",
                    error = ": the chat template drops the reasoning";
  EXPECT_THAT(error_of(model, R"({"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}, )" +
                                  thinking + "]}"),
              HasSubstr("rows.jsonl:7: conversations[1]" + error));
  EXPECT_THAT(error_of(model,
                       R"({"messages": [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hi"}, )" +
                           thinking + "]}",
                       {.drop_system_message = true}),
              HasSubstr("rows.jsonl:7: messages[2]" + error));
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

// A call of a tool often stands alone. Templates that add to its content get an empty one; others see that it has none.
TEST(DataChatFormat, CallsOfToolsNeedNoContent) {
  const ChatModel model;
  const std::string calls = R"("tool_calls": [{"function": {"name": "f", "arguments": {}}}]})",
                    begin = R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", )",
                    end = R"(, {"role": "tool", "content": "T"}, {"role": "assistant", "content": "A"}]})";
  for (const std::string content : {"", R"("content": null, )", R"("content": "", )"}) {
    const std::string row = begin + content + calls + end;
    model.set_template(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content }}{% if m.tool_calls %}{{ "
        "m.tool_calls[0].function.name }}{% endif %}<|im_end|>{% endfor %}");
    EXPECT_THAT(learned(model, make(model, row)), ElementsAre("f<|im_end|>", "A<|im_end|>")) << content;
    model.set_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is defined %}{{ m.content }}{% endif %}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}<|im_end|>{% endfor %}");
    EXPECT_THAT(learned(model, make(model, row)), ElementsAre("f<|im_end|>", "A<|im_end|>")) << content;
  }
}

TEST(DataChatFormat, MistakesNameTheRowAndTheKey) {
  const ChatModel model;
  EXPECT_EQ(error_of(model, R"({"text": "x"})"), "rows.jsonl:7: messages: missing, expected an array of messages");
  EXPECT_EQ(error_of(model, R"({"messages": []})"), "rows.jsonl:7: messages: is empty, expected at least one message");
  EXPECT_EQ(error_of(model, R"({"messages": [{"content": "x"}]})"),
            "rows.jsonl:7: message 1 has no role, which says who speaks");
  const std::string user = R"({"messages": [{"role": "user", "content": "x"}, )";
  EXPECT_EQ(error_of(model, user + R"({"role": "assistant"}]})"),
            "rows.jsonl:7: message 2 has no content: it has role (message_property_mappings names others)");
  EXPECT_EQ(error_of(model, user + R"({"role": "assistant", "content": null}]})"),
            "rows.jsonl:7: message 2 has no content: it is null");
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
struct RealModel {
  std::string tokenizer, chat_template;
};

// A tokenizer takes a second to read.
const Tokenizer& real_tokenizer(const std::string& name) {
  static std::map<std::string, Tokenizer> all;
  const auto found = all.find(name);
  if (found != all.end()) return found->second;
  return all.emplace(name, Tokenizer::load(*inlay::testing::test_data() / "tokenizers" / name)).first->second;
}

void set_template(const ChatModel& model, const RealModel& real) {
  const auto data = *inlay::testing::test_data();
  model.write("tokenizer_config.json",
              inlay::testing::read_text(data / "tokenizers" / real.tokenizer / "tokenizer_config.json"));
  model.set_template(inlay::testing::read_text(data / "chat_templates" / (real.chat_template + ".jinja")));
}

const RealModel qwen3{"qwen3", "Qwen-Qwen3-0.6B"}, qwen2_5{"qwen3", "Qwen-Qwen2.5-7B-Instruct"},
    llama3_2{"llama3_2", "meta-llama-Llama-3.2-3B-Instruct"}, llama3_1{"llama3_2", "meta-llama-Llama-3.1-8B-Instruct"},
    smollm3{"qwen3", "HuggingFaceTB-SmolLM3-3B"}, gpt_oss{"gptoss", "openai-gpt-oss-120b"},
    mistral{"llama2", "mistralai-Mistral-Nemo-Instruct-2407"};

struct RealCase {
  RealModel model;
  std::vector<std::string> learned;
};

void expect_learned(const std::vector<RealCase>& cases, const std::string& row) {
  if (!inlay::testing::test_data()) GTEST_SKIP() << "no test data";
  for (const RealCase& c : cases) {
    const ChatModel model;
    set_template(model, c.model);
    const Tokenizer& tokenizer = real_tokenizer(c.model.tokenizer);
    EXPECT_THAT(learned(tokenizer, make(tokenizer, model, row)), ::testing::ElementsAreArray(c.learned))
        << c.model.chat_template;
  }
}

TEST(DataChatFormatReal, WhatIsLearned) {
  expect_learned(
      {
          {qwen3, {"Hello there.<|im_end|>", "<think>\n\n</think>\n\nIt is 3.<|im_end|>"}},
          {qwen2_5, {"Hello there.<|im_end|>", "It is 3.<|im_end|>"}},
          {llama3_2, {"Hello there.<|eot_id|>", "It is 3.<|eot_id|>"}},
          {llama3_1, {"Hello there.<|eot_id|>", "It is 3.<|eot_id|>"}},
          {smollm3, {"Hello there.<|im_end|>", "It is 3.<|im_end|>"}},
          {gpt_oss,
           {"<|channel|>final<|message|>Hello there.<|end|>", "<|channel|>final<|message|>It is 3.<|return|>"}},
          {mistral, {"Hello there.</s>", "It is 3.</s>"}},
      },
      R"({"messages": [{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Sum 1 2"}, {"role": "assistant", "content": "It is 3."}]})");
}

TEST(DataChatFormatReal, EmptyTurnsEndAsOthersDo) {
  expect_learned(
      {
          {qwen3, {"<|im_end|>", "<think>\n\n</think>\n\n<|im_end|>"}},
          {qwen2_5, {"<|im_end|>", "<|im_end|>"}},
          {llama3_2, {"<|eot_id|>", "<|eot_id|>"}},
          {llama3_1, {"<|eot_id|>", "<|eot_id|>"}},
          {smollm3, {"<|im_end|>", "<|im_end|>"}},
          {gpt_oss, {"<|channel|>final<|message|><|end|>", "<|channel|>final<|message|><|return|>"}},
          {mistral, {"</s>", "</s>"}},
      },
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""},
        {"role": "user", "content": "Bye"}, {"role": "assistant", "content": ""}]})");
}

TEST(DataChatFormatReal, CallsOfToolsEndAsTheTemplateEndsThem) {
  const std::string
      call =
          R"({"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "", "tool_calls":
        [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]})",
      answer =
          R"(, {"role": "tool", "content": "4", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "Four."})";
  const std::string qwen = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>",
                    llama = R"({"name": "f", "parameters": {"x": 1}}<|eot_id|>)",
                    oss = R"( to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>)";
  expect_learned(
      {
          {qwen3, {qwen, "<think>\n\n</think>\n\nFour.<|im_end|>"}},
          {qwen2_5, {qwen, "Four.<|im_end|>"}},
          {llama3_2, {llama, "Four.<|eot_id|>"}},
          {llama3_1, {llama, "Four.<|eot_id|>"}},
          {gpt_oss, {oss, "<|channel|>final<|message|>Four.<|return|>"}},
      },
      call + answer + "]}");
  expect_learned(
      {
          {qwen3, {"<think>\n\n</think>\n\n" + qwen}},
          {qwen2_5, {qwen}},
          {llama3_2, {llama}},
          {llama3_1, {llama}},
          {gpt_oss, {oss}},
      },
      call + "]}");
}

TEST(DataChatFormatReal, ReasoningIsLearnedOrAnError) {
  const auto row = [](const std::string& name, bool goes_on) {
    return R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo.", ")" + name +
           R"(": "A greeting."})" +
           (goes_on ? R"(, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So long."})" : "") +
           "]}";
  };
  expect_learned({{qwen3, {"<think>\nA greeting.\n</think>\n\nYo.<|im_end|>"}}}, row("reasoning_content", false));
  expect_learned({{gpt_oss,
                   {"<|channel|>analysis<|message|>A greeting.<|end|><|start|>assistant<|channel|>final<|message|>Yo."
                    "<|return|>"}}},
                 row("thinking", false));
  const std::string inside =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content":
        "<think>\nA greeting.\n</think>\n\nYo."}, {"role": "user", "content": "Bye"}]})";
  struct Dropped {
    RealModel model;
    std::string row;
  };
  const std::vector<Dropped> dropped = {{qwen3, row("reasoning_content", true)},
                                        {qwen3, inside},
                                        {gpt_oss, row("thinking", true)},
                                        {gpt_oss, row("reasoning_content", false)},
                                        {llama3_2, row("reasoning_content", false)}};
  if (!inlay::testing::test_data()) GTEST_SKIP() << "no test data";
  for (const Dropped& d : dropped) {
    const ChatModel model;
    set_template(model, d.model);
    EXPECT_THAT(user_error_of([&] { make(real_tokenizer(d.model.tokenizer), model, d.row); }),
                HasSubstr("messages[1]: the chat template drops the reasoning"))
        << d.model.chat_template;
  }
}

}  // namespace
}  // namespace inlay::data
