#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/formats/format.h"
#include "support/chat_model.h"

namespace inlay::data {
namespace {

using inlay::testing::ChatModel;
using inlay::testing::user_error_of;

struct Made {
  std::string masked, learned;
};

// The text without labels and the text with them; the first token, which never has one, counts by what follows it.
Made make_text(const std::string& row, const FormatOptions& options) {
  const ChatModel model;
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const io::Value value = io::read_value(row, "r:1");
  const Document document = make_format(options, tokenizer, model.path())->make(Row(value, "r:1"));
  EXPECT_EQ(document.labels.front(), ignore_label);
  std::vector<std::int32_t> masked, learned;
  for (std::size_t i = 0; i < document.labels.size(); ++i) {
    (document.labels[i] == ignore_label ? masked : learned).push_back(document.input_ids[i]);
  }
  return {tokenizer.decode(masked, false), tokenizer.decode(learned, false)};
}

std::string error_of_text(const std::string& row, const std::string& type) {
  return user_error_of([&] { make_text(row, {.type = type}); });
}

TEST(DataTextFormats, AlpacaLearnsTheAnswerAndTheEnd) {
  const Made plain = make_text(R"({"instruction": "Add.", "input": "", "output": "3"})", {.type = "alpaca"});
  EXPECT_EQ(plain.masked,
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\nAdd.\n\n### Response:\n");
  EXPECT_EQ(plain.learned, "3<|im_end|>");
  const Made with_input = make_text(R"({"instruction": "Add.", "input": "1 2", "output": "3"})", {.type = "alpaca"});
  EXPECT_EQ(
      with_input.masked,
      "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### "
      "Response:\n");
  const Made all = make_text(R"({"instruction": "Add.", "output": "3"})", {.type = "alpaca", .train_on_inputs = true});
  EXPECT_EQ(all.masked, "B");
  EXPECT_TRUE(all.learned.ends_with("### Response:\n3<|im_end|>"));
}

TEST(DataTextFormats, CompletionLearnsEverything) {
  const Made made = make_text(R"({"story": "Once."})", {.type = "completion", .field = "story"});
  EXPECT_EQ(made.masked + made.learned, "Once.<|im_end|>");
  EXPECT_EQ(made.masked, "O");
}

TEST(DataTextFormats, InputOutputIsTakenAsItIs) {
  const Made made =
      make_text(R"({"segments": [{"label": false, "text": "Q: 1+1\nA:"}, {"label": true, "text": " 2<|im_end|>"},
                             {"label": false, "text": "\nQ"}, {"label": true, "text": "!"}]})",
                {.type = "input_output"});
  EXPECT_EQ(made.masked, "Q: 1+1\nA:\nQ");
  EXPECT_EQ(made.learned, " 2<|im_end|>!");
}

TEST(DataTextFormats, MistakesNameTheKey) {
  EXPECT_EQ(error_of_text(R"({"instruction": "x"})", "alpaca"), "r:1: output: missing, expected a string");
  EXPECT_EQ(error_of_text(R"({"instruction": 1, "output": "x"})", "alpaca"),
            "r:1: instruction: expected a string, got 1");
  EXPECT_EQ(error_of_text(R"({"text": null})", "completion"), "r:1: text: missing, expected a string");
  EXPECT_EQ(error_of_text(R"({"segments": [{"text": "x"}]})", "input_output"),
            "r:1: segments[0].label: missing, expected true or false");
  EXPECT_EQ(error_of_text(R"({"segments": []})", "input_output"), "r:1: segments: hold no text");
}

TEST(DataTextFormats, RowsTellTheirType) {
  const auto type = [](const std::string& row) {
    const io::Value value = io::read_value(row, "r:1");
    return detect_format({}, Row(value, "r:1")).options.type;
  };
  EXPECT_EQ(type(R"({"input_ids": [1]})"), "tokens");
  EXPECT_EQ(type(R"({"messages": []})"), "chat_template");
  EXPECT_EQ(type(R"({"conversations": []})"), "chat_template");
  EXPECT_EQ(type(R"({"instruction": "a", "output": "b"})"), "alpaca");
  EXPECT_EQ(type(R"({"segments": []})"), "input_output");
  EXPECT_EQ(type(R"({"text": ""})"), "completion");
  EXPECT_EQ(type(R"({"prompt": "a", "completion": "b"})"), "prompt_completion");
  EXPECT_EQ(type(R"({"id": 1, "question": "a", "answer": "b"})"), "question_answer");
  EXPECT_EQ(type(R"({"query": "a", "response": "b", "text": "c"})"), "question_answer");
  EXPECT_EQ(type(R"({"dialog": [{"from": "human", "value": "a"}]})"), "chat_template");
  EXPECT_THAT(user_error_of([&] { type(R"({"prompt": ""})"); }),
              ::testing::HasSubstr("r:1: it is not clear what the row is: it has prompt. Known are messages"));
  EXPECT_EQ(type(R"({"prompt": "p", "chosen": "a", "rejected": "b"})"), "preference");
  EXPECT_EQ(type(R"({"prompt": "p", "completion": "a", "label": true})"), "judged");
}

// Under rl, answers to choose between come before whatever else the row has; else the keys that are named do.
TEST(DataTextFormats, PreferencesAreWhatRlLearnsFrom) {
  const auto type = [](const std::string& row, const FormatOptions& options) {
    const io::Value value = io::read_value(row, "r:1");
    return detect_format(options, Row(value, "r:1")).options.type;
  };
  const std::string pair = R"({"conversation": [], "chosen": {}, "rejected": {}})";
  EXPECT_EQ(type(pair, {.field_messages = "conversation", .most_tokens = 9}), "preference");
  EXPECT_EQ(type(pair, {.field_messages = "conversation"}), "chat_template");
  EXPECT_EQ(type(pair, {.field_messages = "chosen", .most_tokens = 9}), "chat_template");
  const std::string judged = R"({"messages": [{"role": "assistant", "content": "a"}], "label": true})";
  EXPECT_EQ(type(judged, {.most_tokens = 9}), "judged");
  EXPECT_EQ(type(judged, {}), "chat_template");
  EXPECT_EQ(type(R"({"instruction": "a", "output": "b", "kto_tag": true})", {.most_tokens = 9}), "judged");
  EXPECT_EQ(type(R"({"instruction": "a", "output": "b", "label": 3})", {.most_tokens = 9}), "alpaca");
}

TEST(DataTextFormats, PairsAreTextsOrConversations) {
  const ChatModel model;
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const auto text_of = [&](const std::string& row, const std::string& folder, FormatOptions options = {}) {
    const io::Value value = io::read_value(row, "r:7");
    options = detect_format(options, Row(value, "r:7")).options;
    const Document document = make_format(options, tokenizer, folder)->make(Row(value, "r:7"));
    std::string text, learned;
    for (std::size_t i = 0; i < document.input_ids.size(); ++i) {
      const std::string token = tokenizer.decode(std::vector{document.input_ids[i]}, false);
      text += token;
      if (document.labels[i] != ignore_label) learned += token;
    }
    return text + "|" + learned;
  };
  const std::string with = model.path().string(), without = "/";
  EXPECT_EQ(text_of(R"({"prompt": "Once ", "completion": "upon"})", with), "Once upon<|im_end|>|upon<|im_end|>");
  const std::string question = R"({"question": "2?", "answer": "3"})";
  const std::string turns = "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n|3<|im_end|>";
  EXPECT_EQ(text_of(question, with), turns);
  EXPECT_EQ(text_of(question, without), "Question: 2?\nAnswer: 3<|im_end|>|3<|im_end|>");
  EXPECT_EQ(text_of(question, without, {.chat_template = "chatml"}), turns);
  EXPECT_EQ(text_of(R"({"prompt": [{"role": "user", "content": "2?"}],
                        "completion": [{"role": "assistant", "content": "3"}]})",
                    with),
            turns);
  EXPECT_THAT(user_error_of([&] { text_of(R"({"prompt": [], "completion": []})", without); }),
              ::testing::HasSubstr("r:7: its messages need a chat template, and the model has none"));
}

// What the rows of Dolly, OpenOrca and LLaMA-Factory have around a question is read with it.
TEST(DataTextFormats, QuestionsHaveInputsSystemMessagesAndEarlierTurns) {
  const ChatModel model;
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const auto text_of = [&](const std::string& row, const std::string& folder) {
    const io::Value value = io::read_value(row, "r:7");
    const FormatOptions options = detect_format({}, Row(value, "r:7")).options;
    const Document document = make_format(options, tokenizer, folder)->make(Row(value, "r:7"));
    return tokenizer.decode(document.input_ids, false);
  };
  const std::string with = model.path().string(), without = "/";
  const auto turn = [](const std::string& role, const std::string& content) {
    return "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
  };
  const std::string answer = turn("assistant", "A");
  const std::string dolly = R"({"instruction": "Q", "context": "C", "response": "A", "category": "x"})";
  EXPECT_EQ(text_of(dolly, with), turn("user", "Q\nC") + answer);
  EXPECT_EQ(text_of(dolly, without), "Question: Q\nC\nAnswer: A<|im_end|>");
  EXPECT_EQ(text_of(R"({"instruction": "Q", "context": "", "response": "A"})", with), turn("user", "Q") + answer);
  EXPECT_EQ(text_of(R"({"instruction": "Q", "input": "C", "response": "A"})", with), turn("user", "Q\nC") + answer);
  EXPECT_EQ(text_of(R"({"context": "C", "question": "Q", "answer": "A"})", with), turn("user", "Q\nC") + answer);
  EXPECT_EQ(text_of(R"({"input": "Q", "output": "A"})", with), turn("user", "Q") + answer);
  const std::string orca = R"({"id": "t0", "system_prompt": "S", "question": "Q", "response": "A"})";
  EXPECT_EQ(text_of(orca, with), turn("system", "S") + turn("user", "Q") + answer);
  EXPECT_EQ(text_of(orca, without), "S\n\nQuestion: Q\nAnswer: A<|im_end|>");
  EXPECT_EQ(text_of(R"({"system_prompt": "", "question": "Q", "response": "A"})", with), turn("user", "Q") + answer);
  const std::string history = R"({"question": "Q", "answer": "A", "history": [["q", "a"]]})";
  EXPECT_EQ(text_of(history, with), turn("user", "q") + turn("assistant", "a") + turn("user", "Q") + answer);
  EXPECT_EQ(text_of(history, without), "Question: q\nAnswer: a<|im_end|>\n\nQuestion: Q\nAnswer: A<|im_end|>");
  // Alpaca's are texts, whatever the model.
  const std::string factory =
      R"({"instruction": "Q", "input": "C", "output": "A", "system": "S", "history": [["q", "a"], ["p", "b"]]})";
  EXPECT_EQ(
      text_of(factory, with),
      "S\n\n### Instruction:\nq\n\n### Response:\na<|im_end|>\n\n### Instruction:\np\n\n### Response:\nb<|im_end|>"
      "\n\n### Instruction:\nQ\n\n### Input:\nC\n\n### Response:\nA<|im_end|>");
  EXPECT_EQ(make_text(R"({"instruction": "Q", "output": "A", "history": [["q", "a"]]})", {.type = "alpaca"}).learned,
            "a<|im_end|>A<|im_end|>");
  EXPECT_EQ(text_of(R"({"instruction": "Q", "output": "A", "system": "", "history": null})", with),
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nQ\n\n### Response:\nA<|im_end|>");
  EXPECT_EQ(text_of(R"({"question": "Q", "answer": "A", "history": "of the town"})", with), turn("user", "Q") + answer);
  EXPECT_THAT(user_error_of([&] { text_of(R"({"question": "Q", "answer": "A", "history": [["q"]]})", with); }),
              ::testing::HasSubstr("r:7: history[0]: expected a question and its answer, got an array"));
}

TEST(DataTextFormats, WhatIsNotReadIsSaid) {
  const auto said = [](const std::string& row) {
    const io::Value value = io::read_value(row, "r:1");
    return detect_format({}, Row(value, "r:1")).said;
  };
  EXPECT_EQ(said(R"({"instruction": "a", "context": "d", "response": "b", "category": "c"})"),
            "questions and answers (instruction, context, response)");
  EXPECT_EQ(said(R"({"question": "a", "passage": "p", "history": "h", "document": "", "answer": "b"})"),
            "questions and answers (question, answer); not read: passage, history");
  EXPECT_EQ(said(R"({"system_prompt": "s", "question": "a", "response": "b"})"),
            "questions and answers (system_prompt, question, response)");
  EXPECT_EQ(said(R"({"instruction": "a", "output": "b", "input": "c"})"), "");
  EXPECT_EQ(said(R"({"instruction": "a", "output": "b", "document": "c"})"),
            "instructions and outputs (instruction, output); not read: document");
  EXPECT_EQ(said(R"({"messages": [], "context": "c"})"), "conversations (messages); not read: context");
  EXPECT_EQ(said(R"({"prompt": "a", "completion": "b", "system": "c", "input": "d"})"),
            "prompts and completions (prompt, completion); not read: system, input");
  EXPECT_EQ(said(R"({"instruction": "q", "input": "i", "context": "c", "chosen": "a", "rejected": "b"})"),
            "pairs of answers (instruction, input, chosen, rejected); not read: context");
  EXPECT_EQ(said(R"({"text": "a", "context": "c"})"), "");
}

TEST(DataTextFormats, AlpacaRowsMayHaveOtherNamesAndPrompts) {
  const ChatModel model;
  const Tokenizer tokenizer = Tokenizer::load(model.path());
  const auto text_of = [&](const std::string& row, FormatOptions options) {
    options.type = "alpaca";
    options.field_instruction = "question";
    options.field_input = "about";
    options.field_output = "answer";
    const io::Value value = io::read_value(row, "rows.jsonl:7");
    const Document document = make_format(options, tokenizer, model.path())->make(Row(value, "rows.jsonl:7"));
    return tokenizer.decode(document.input_ids, true);
  };
  const std::string plain = R"({"question": "1+1 {input}?", "answer": "2"})",
                    about = R"({"question": "Sum", "about": "1 2", "answer": "3"})";
  EXPECT_EQ(text_of(plain, {.format = "Q: {instruction}\nA: "}), "Q: 1+1 {input}?\nA: 2");
  EXPECT_EQ(text_of(about, {.format = "{input}: {instruction} = "}), "1 2: Sum = 3");
  EXPECT_EQ(text_of(plain, {.format = "{input}: {instruction} = ", .no_input_format = "{instruction} {x} "}),
            "1+1 {input}? {x} 2");
  EXPECT_THAT(text_of(about, {}), ::testing::HasSubstr("### Instruction:\nSum\n\n### Input:\n1 2"));
}

}  // namespace
}  // namespace inlay::data
