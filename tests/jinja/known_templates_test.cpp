#include "jinja/known_templates.h"

#include <gtest/gtest.h>

#include "io/value.h"
#include "jinja/chat_template.h"
#include "support/files.h"

namespace inlay::jinja {
namespace {

using inlay::testing::test_data;
using inlay::testing::user_error_of;

Value from_json(const std::string& json) { return from(io::read_value(json, "test")); }

std::string rendered(ChatTemplate chat, const std::string& messages, const RenderOptions& options) {
  chat.set_special_token("bos_token", "<s>");
  chat.set_special_token("eos_token", "</s>");
  return chat.render(from_json(messages), options).text;
}

std::string known(const std::string& name, const std::string& messages, bool prompt = false) {
  return rendered(ChatTemplate(name, *known_template(name)), messages, {.add_generation_prompt = prompt});
}

const std::string two = R"([{"role": "user", "content": "a "}, {"role": "assistant", "content": " b"}])";
const std::string asked = R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                              {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])";

// What the models' own templates write, by hand.
TEST(JinjaKnownTemplates, WriteWhatTheModelsExpect) {
  EXPECT_EQ(known("chatml", two), "<|im_start|>user\na <|im_end|>\n<|im_start|>assistant\n b<|im_end|>\n");
  EXPECT_TRUE(known("chatml", asked, true).starts_with("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na"));
  EXPECT_EQ(
      known("llama3", two, true),
      "<s><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
      "b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(known("gemma", two, true),
            "<s><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_NE(user_error_of([] { known("gemma", asked); }), "<no error>");
  EXPECT_EQ(known("gemma3", asked),
            "<s><start_of_turn>user\nS\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\n"
            "c<end_of_turn>\n");
  EXPECT_EQ(known("phi_3", asked),
            "<s><|system|>\nS<|end|>\n<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\n"
            "c<|end|>\n<|assistant|>\n");
  EXPECT_EQ(known("phi_35", two, true), "<|user|>\na <|end|>\n<|assistant|>\n b<|end|>\n<|assistant|>\n");
  EXPECT_EQ(
      known("phi_4", asked, true),
      "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>a<|im_end|><|im_start|>assistant<|im_sep|>"
      "b<|im_end|><|im_start|>user<|im_sep|>c<|im_end|><|im_start|>assistant<|im_sep|>");
  EXPECT_EQ(known("mistral_v1", asked), "<s> [INST] S\n\na [/INST] b</s> [INST] c [/INST]");
  EXPECT_EQ(known("mistral_v2v3", asked), "<s>[INST] a[/INST] b</s>[INST] S\n\nc[/INST]");
  EXPECT_EQ(known("mistral_v3_tekken", asked), "<s>[INST]a[/INST]b</s>[INST]S\n\nc[/INST]");
  EXPECT_EQ(known("alpaca", asked, true),
            "<s>S\n\n### Instruction:\na\n\n### Response:\nb</s>\n\n### Instruction:\nc\n\n### Response:\n");
  EXPECT_FALSE(known_template("qwen"));
}

TEST(JinjaKnownTemplates, WriteWhatQwensOwnDo) {
  const auto data = test_data();
  if (!data) GTEST_SKIP() << "no test data";
  const Value tools =
      from_json(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const std::string calls = R"("tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": "é"}}},
                               {"function": {"name": "g", "arguments": {}}}])";
  const std::vector<std::string> conversations = {
      two,
      asked,
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "<think>\nso\n</think>\n\nd"}])",
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "\nwhy\n"}])",
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", )" + calls +
          R"(}, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"},
          {"role": "assistant", "content": "done"}])",
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "t", )" +
          calls + R"(}, {"role": "tool", "content": "1"}])"};
  for (const auto& [name, file] :
       {std::pair("qwen_25", "Qwen-Qwen2.5-7B-Instruct.jinja"), std::pair("qwen3", "Qwen-Qwen3-0.6B.jinja")}) {
    const std::string text = inlay::testing::read_text(*data / "chat_templates" / file);
    for (const std::string& conversation : conversations) {
      for (int i = 0; i < 4; ++i) {
        RenderOptions options{.add_generation_prompt = i % 2 == 1};
        if (i >= 2) options.tools = tools;
        EXPECT_EQ(rendered(ChatTemplate(name, *known_template(name)), conversation, options),
                  rendered(ChatTemplate(file, text), conversation, options));
      }
    }
  }
}

}  // namespace
}  // namespace inlay::jinja
