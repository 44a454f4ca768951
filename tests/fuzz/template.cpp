#include <cstddef>
#include <cstdint>
#include <string_view>

#include "jinja/chat_template.h"

// A template and, behind a zero byte, the messages as JSON: anything may be in them, and only a UserError may come out.
namespace {

using namespace inlay;

const jinja::Value& usual_messages() {
  static const jinja::Value messages = jinja::from(io::read_value(
      R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Grüße 中😀"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]},
          {"role": "tool", "content": [{"type": "text", "text": "42"}]}])",
      "messages"));
  return messages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const std::size_t zero = input.find('\0');
  try {
    jinja::RenderOptions options{.add_generation_prompt = true};
    options.limits.steps = 100'000;
    options.limits.bytes = std::size_t{16} << 20;
    const jinja::Value messages =
        zero == input.npos ? usual_messages() : jinja::from(io::read_value(input.substr(zero + 1), "messages"));
    const jinja::ChatTemplate chat("template", input.substr(0, zero));
    chat.render(messages, options);
  } catch (const UserError&) {
  }
  return 0;
}
