#include "jinja/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace inlay::jinja {
namespace {

using inlay::testing::read_text;
using inlay::testing::TempFolder;
using inlay::testing::test_data;
using inlay::testing::user_error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr const char* no_data = "no test data (INLAY_TEST_DATA, or shared/data beside the repository)";

Value value(std::string_view json) { return from(io::read_value(json, "test")); }

std::tm day(int year, int month, int day, int hour = 0) {
  std::tm time{};
  time.tm_year = year - 1900, time.tm_mon = month - 1, time.tm_mday = day, time.tm_hour = hour;
  return time;
}

const Value& member(const Value& object, std::string_view key) {
  static const Value none;
  const Value* found = object.dict()->find(key);
  return found != nullptr ? *found : none;
}

// Every real template on every conversation, against Jinja2: texts and errors.
TEST(JinjaChatTemplate, RealTemplatesRenderAsJinjaDoes) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << no_data;
  const fs::path fixtures = *data / "fixtures/chat_rendered";
  const Value conversations = value(read_text(fixtures / "conversations.json"));
  std::size_t compared = 0, errors = 0;
  for (const auto& file : fs::directory_iterator(*data / "chat_templates")) {
    if (file.path().extension() != ".jinja") continue;
    ChatTemplate chat = ChatTemplate::load(file.path());
    chat.set_special_token("bos_token", "<s>");
    chat.set_special_token("eos_token", "</s>");
    const auto expected = nlohmann::json::parse(read_text(fixtures / (file.path().stem().string() + ".json")));
    for (const auto& [name, conversation] : conversations.dict()->entries()) {
      RenderOptions options{.add_generation_prompt = member(conversation, "add_generation_prompt").truth(),
                            .tools = member(conversation, "tools"),
                            .now = day(2026, 11, 15, 12)};
      const Value thinking = member(conversation, "enable_thinking");
      if (!thinking.is_none()) options.variables.emplace_back("enable_thinking", thinking);
      const std::string where = file.path().filename().string() + ", " + name.string()->text;
      const auto& wanted = expected.at(name.string()->text);
      try {
        const RenderedChat rendered = chat.render(member(conversation, "messages"), options);
        ASSERT_TRUE(wanted.contains("text")) << where;
        EXPECT_EQ(rendered.text, wanted.at("text").get<std::string>()) << where;
      } catch (const TemplateError& error) {
        ASSERT_TRUE(wanted.contains("error")) << where << ": " << error.what();
        EXPECT_EQ("TemplateError: " + error.message(), wanted.at("error").get<std::string>()) << where;
        ++errors;
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 8u * 6u);
  EXPECT_GT(errors, 0u);
}

// What OpenAI's own renderer makes of conversations. The template always names the day and the last message ends the
// turn, so only conversations that agree in that are compared whole.
TEST(JinjaChatTemplate, GptOssRendersHarmony) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << no_data;
  const ChatTemplate chat = ChatTemplate::load(*data / "chat_templates/openai-gpt-oss-120b.jinja");
  const auto harmony = [&](const std::string& name) {
    std::string text = read_text(*data / "chat_templates/harmony_rendered" / ("test_" + name + ".txt"));
    while (text.ends_with('\n')) text.pop_back();
    return text;
  };
  const auto render = [&](const char* messages, RenderOptions options) {
    options.now = day(2025, 6, 28);
    return chat.render(value(messages), options).text;
  };
  const auto without = [](std::string text, const std::string& part) {
    const std::size_t at = text.find(part);
    return at == std::string::npos ? "<not there>" : text.erase(at, part.size());
  };
  const char* hello = R"([{"role": "user", "content": "Hello"}])";
  const std::string hello_text = "<|start|>user<|message|>Hello<|end|>";
  const auto prompt = [&](const char* builtin_tools, const char* tools) {
    RenderOptions options{.add_generation_prompt = true, .tools = value(tools)};
    options.variables.emplace_back("builtin_tools", value(builtin_tools));
    return without(render(hello, options), hello_text);
  };
  EXPECT_EQ(prompt("null", "null"), harmony("no_tools"));
  EXPECT_EQ(prompt(R"(["browser"])", "null"), harmony("browser_tool_only"));
  EXPECT_EQ(prompt(R"(["browser", "python"])", "null"), harmony("browser_and_python_tool"));
  EXPECT_EQ(prompt(R"(["browser"])", R"([{"type": "function", "function": {"name": "lookup_weather", "description":
      "Use this tool to lookup the weather in a given location. Call it with the parameter 'location', can be any textual description of a location.",
      "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}}}])"),
            harmony("browser_and_function_tool"));

  const auto behind_system = [](const std::string& text) { return text.substr(text.find("<|end|>") + 7); };
  const char* two_turns = R"([{"role": "user", "content": "What is 2 + 2?"},
      {"role": "assistant", "thinking": "User asks a simple question.", "content": "2 + 2 equals 4."},
      {"role": "user", "content": "What about 9 / 2?"}])";
  EXPECT_EQ(behind_system(render(two_turns, {.add_generation_prompt = true})), harmony("dropping_cot_by_default"));
  const char* last_thought = R"([{"role": "user", "content": "What is 2 + 2?"},
      {"role": "assistant", "thinking": "thinking 2+2", "content": "4"},
      {"role": "user", "content": "What is 3 + 5?"},
      {"role": "assistant", "thinking": "thinking 3+5", "content": "8"}])";
  EXPECT_EQ(without(behind_system(render(last_thought, {})), "<|return|>") + "<|end|>",
            harmony("keep_analysis_between_finals"));
}

TEST(JinjaChatTemplate, RealModelFoldersBringTheirTemplateAndTokens) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << no_data;
  const Value messages = value(R"([{"role": "user", "content": "Hello"}])");
  const ChatTemplate qwen = ChatTemplate::load(*data / "tokenizers/qwen3");
  EXPECT_EQ(qwen.special_tokens().at("eos_token"), "<|im_end|>");
  EXPECT_EQ(qwen.render(messages, {.add_generation_prompt = true}).text,
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(user_error_of([&] { ChatTemplate::load(*data / "tokenizers/gpt2"); }),
              HasSubstr("tokenizers/gpt2: no chat template: expected chat_template.jinja there"));
}

TEST(JinjaChatTemplate, AFolderMayHaveOneTemplateOrSeveral) {
  const TempFolder folder;
  const Value messages = value(R"([{"role": "user", "content": "Hi"}])");
  folder.write("tokenizer_config.json", R"({"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ pad_token }}",
      "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null})");
  ChatTemplate one = ChatTemplate::load(folder.path());
  EXPECT_EQ(one.render(messages).text, "<s>Hi");
  EXPECT_EQ(one.special_tokens().at("eos_token"), "</s>");

  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
      {"name": "tool_use", "template": "tools {{ tools|length }}"}]})");
  const ChatTemplate two = ChatTemplate::load(folder.path());
  EXPECT_EQ(two.render(messages).text, "plain");
  EXPECT_EQ(two.render(messages, {.tools = value("[1, 2]")}).text, "tools 2");

  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "a", "template": "A"}, {"name": "b",
      "template": "B"}], "bos_token": "<s>"})");
  EXPECT_THAT(user_error_of([&] { ChatTemplate::load(folder.path()).render(messages); }), HasSubstr("'default'"));

  folder.write("chat_template.jinja", "from the file{{ bos_token }}\n");
  folder.write("special_tokens_map.json", R"({"bos_token": "other", "eos_token": {"content": "E"}})");
  const ChatTemplate file = ChatTemplate::load(folder.path());
  EXPECT_EQ(file.render(messages).text, "from the file<s>");
  EXPECT_EQ(file.special_tokens().at("eos_token"), "E");
  EXPECT_EQ(ChatTemplate::load(folder / "chat_template.jinja").render(messages).text, "from the file<s>");

  EXPECT_THAT(user_error_of([&] { ChatTemplate::load(folder / "none"); }), HasSubstr("none"));
  folder.write("tokenizer_config.json", R"({"chat_template": 5})");
  fs::remove(folder / "chat_template.jinja");
  EXPECT_THAT(user_error_of([&] { ChatTemplate::load(folder.path()); }), HasSubstr("chat_template: expected a string"));
}

TEST(JinjaChatTemplate, OptionsBecomeVariables) {
  const Value messages = value("[]");
  const ChatTemplate chat(
      "t", "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ x }}{{ bos_token }}");
  EXPECT_EQ(chat.render(messages).text, "TrueTrueFalse");
  RenderOptions options{.add_generation_prompt = true, .tools = value("[]"), .documents = value("[{}]")};
  options.variables.emplace_back("x", value("1.5"));
  options.variables.emplace_back("bos_token", value("\"B\""));
  EXPECT_EQ(chat.render(messages, options).text, "FalseFalseTrue1.5B");
  EXPECT_EQ(ChatTemplate("t", "{{ strftime_now('%d %b %Y') }}").render(messages, {.now = day(2024, 2, 29)}).text,
            "29 Feb 2024");
}

TEST(JinjaChatTemplate, KeysKeepTheirOrder) {
  const ChatTemplate chat("t", "{{ messages[0]|tojson }}{% for k in messages[0] %} {{ k }}{% endfor %}");
  EXPECT_EQ(chat.render(value(R"([{"z": 1, "a": {"y": 2, "b": null}, "m": [1.0, 12345678901234567890123]}])")).text,
            R"({"z": 1, "a": {"y": 2, "b": null}, "m": [1.0, 12345678901234567890123]} z a m)");
}

TEST(JinjaChatTemplate, GenerationBlocksSayWhichBytesTheyWrote) {
  const ChatTemplate chat(
      "t",
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_TRUE(chat.marks_generation());
  const RenderedChat rendered = chat.render(value(
      R"([{"role": "user", "content": "é"}, {"role": "assistant", "content": "中"}, {"role": "assistant", "content": ""}])"));
  ASSERT_EQ(rendered.generation.size(), 2u);
  const auto part = [&](std::size_t i) {
    const auto [begin, end] = rendered.generation[i];
    return rendered.text.substr(begin, end - begin);
  };
  EXPECT_EQ(part(0), "中!");
  EXPECT_EQ(part(1), "!");
  EXPECT_FALSE(rendered.generation_lost);

  const ChatTemplate lost("t", "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}a{{ m() }}");
  EXPECT_TRUE(lost.marks_generation());
  EXPECT_TRUE(lost.render(value("[]")).generation_lost);
  EXPECT_FALSE(ChatTemplate("t", "{{ 1 }}{# {% generation %} #}").marks_generation());
}

TEST(JinjaChatTemplate, ErrorsGiveNameLineColumnAndTheLine) {
  const auto error_of = [](std::string_view text) {
    return user_error_of([&] { ChatTemplate("x.jinja", text).render(value("[]")); });
  };
  EXPECT_EQ(error_of("a\nb {{ foo.bar }}"), "x.jinja:2:10: 'foo' is undefined\n    b {{ foo.bar }}\n             ^");
  EXPECT_EQ(error_of("中文 {{ 1 + 'a' }}\n"),
            "x.jinja:1:9: unsupported operand type(s) for +: 'int' and 'str'\n    中文 {{ 1 + 'a' }}\n            ^");
  EXPECT_THAT(
      error_of("{% if x %}\n{% for a in b %}\n{% endfor %}"),
      StartsWith(
          "x.jinja:1:4: Unexpected end of template: the block 'if' that begins here is not closed by 'elif' or"));
  EXPECT_THAT(error_of("\n\n  {{ x|nofilter }}"), StartsWith("x.jinja:3:8: No filter named 'nofilter'."));
  EXPECT_THAT(error_of("{{ (1 }}"), StartsWith("x.jinja:1:7: unexpected '}', expected ')'"));
  EXPECT_THAT(error_of("{{ 'abc }}"), StartsWith("x.jinja:1:4: unexpected char"));
  EXPECT_THAT(error_of("{{ '\\u12' }}"), StartsWith("x.jinja:1:5: truncated escape"));
  EXPECT_THAT(error_of("x\r\ny\rz {{ raise_exception('no!') }}"), StartsWith("x.jinja:3:6: no!\n"));
  EXPECT_THAT(error_of("{% set a, b = [1] %}"), StartsWith("x.jinja:1:8: not enough values to unpack"));
  EXPECT_THAT(error_of("{% macro m(x) %}\n{{ x.y.z }}\n{% endmacro %}{{ m({}) }}"),
              StartsWith("x.jinja:2:8: 'dict object' has no attribute 'y'"));
  EXPECT_THAT(error_of("{% include 'x' %}"), StartsWith("x.jinja:1:4: the tag 'include' is not supported"));
  EXPECT_THAT(
      error_of("{% if 1 %}{% endfor %}"),
      StartsWith(
          "x.jinja:1:14: Encountered unknown tag 'endfor'. The innermost block that needs to be closed is 'if'"));
  // Of a long line, the part around the place is shown.
  const std::string long_error = error_of(std::string(1000, 'a') + "{{ x.y }}" + std::string(1000, 'b'));
  EXPECT_THAT(long_error, StartsWith("x.jinja:1:1006: 'x' is undefined\n    ...aaa"));
  EXPECT_LT(long_error.size(), 400u);

  try {
    ChatTemplate("x.jinja", "\n {{ raise_exception('no!') }}").render(value("[]"));
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.message(), "no!");
    EXPECT_EQ(error.line(), 2u);
    EXPECT_EQ(error.column(), 5u);
  }
}

TEST(JinjaChatTemplate, TextThatIsNotUtf8IsRefused) {
  EXPECT_THAT(user_error_of([] { ChatTemplate("x", "ab\xff"); }), HasSubstr("x: byte 2 is not UTF-8"));
  EXPECT_THAT(user_error_of([] { ChatTemplate("x", "a\xed\xa0\x80"); }), HasSubstr("not UTF-8"));
  EXPECT_THAT(user_error_of([] { value("[\"\\ud800\"]"); }), HasSubstr("test: not valid JSON"));
  EXPECT_THAT(user_error_of([] { value("{\"a\": 1, \"a\": 2}"); }), HasSubstr("test: the key \"a\" occurs twice"));
  EXPECT_THAT(user_error_of([] { value(std::string(300, '[')); }), HasSubstr("nested more than 256 levels deep"));
  EXPECT_THAT(user_error_of([] { value("[1" + std::string(60, '0') + "]"); }), HasSubstr("does not fit 128 bits"));
}

}  // namespace
}  // namespace inlay::jinja
