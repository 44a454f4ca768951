#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "data/byte_tokenizer.h"
#include "data/formats/chat_format.h"
#include "data/formats/format.h"

namespace {

using namespace inlay;

constexpr const char* chat_text =
    "{% for m in messages %}<|bos|>{{ m.role }}\n{{ m.content | trim }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}<|eos|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|bos|>"
    "assistant\n{% endif %}";

}  // namespace

// A row of data, as every type reads it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const data::Tokenizer tokenizer(io::Json::parse(data::ByteTokenizer::tokenizer_json(), "t"),
                                         io::Json::parse(data::ByteTokenizer::tokenizer_config_json(), "c"));
  static const auto chat = std::make_shared<const data::ChatTemplate>("fuzz.jinja", chat_text);
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  io::Value value;
  try {
    value = io::read_value(text, "fuzz.jsonl:1");
  } catch (const UserError&) {
    return 0;
  }
  const data::Row row(value, "fuzz.jsonl:1");
  const auto check = [&](const data::RowFormat& format) {
    try {
      const Document document = format.make(row);
      INLAY_ASSERT(document.labels.size() == document.input_ids.size(), "as many labels as tokens");
      INLAY_ASSERT(document.weights.empty() || document.weights.size() == document.labels.size(), "weights");
      for (std::size_t i = 0; i < document.labels.size(); ++i) {
        const bool learned = document.labels[i] != ignore_label && !marks_sequence(document.labels[i]);
        INLAY_ASSERT(!learned || (i > 0 && document.labels[i] == document.input_ids[i]), "the label {}", i);
      }
    } catch (const UserError&) {
    }
  };
  for (const char* type : {"alpaca", "completion", "input_output"}) {
    check(*data::make_format({.type = type}, tokenizer, "nowhere"));
  }
  for (const char* type : {"preference", "judged", "question_answer", "prompt_completion"}) {
    for (const char* chat_template : {"tokenizer_default", "chatml"}) {
      check(*data::make_format({.type = type, .chat_template = chat_template}, tokenizer, "nowhere"));
    }
  }
  for (const std::int64_t most_tokens : {0, 9}) {
    try {
      const auto found = data::detect_format({.chat_template = "chatml", .most_tokens = most_tokens}, row);
      if (found.options.type != "tokens") check(*data::make_format(found.options, tokenizer, "nowhere"));
    } catch (const UserError&) {
    }
  }
  for (const char* train_on_eos : {"turn", "all", "last", "none"}) {
    check(data::ChatFormat({.type = "chat_template", .train_on_eos = train_on_eos}, tokenizer, chat));
  }
  return 0;
}
