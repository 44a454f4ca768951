#pragma once

#include <nlohmann/json.hpp>

#include "data/byte_tokenizer.h"
#include "support/files.h"

namespace inlay::testing {

// A folder with the tokenizer and the template of a chat model: a byte is a token, and turns stand between <|im_start|>
// (259) and <|im_end|> (260), which ends texts as well.
class ChatModel {
 public:
  static constexpr std::int32_t start = 259, end = 260, vocab = 261;

  ChatModel() {
    nlohmann::json tokenizer = nlohmann::json::parse(data::ByteTokenizer::tokenizer_json());
    for (const auto& [id, token] : {std::pair(start, "<|im_start|>"), std::pair(end, "<|im_end|>")}) {
      tokenizer["added_tokens"].push_back({{"id", id}, {"content", token}, {"special", true}});
    }
    folder_.write("tokenizer.json", tokenizer.dump());
    nlohmann::json config = nlohmann::json::parse(data::ByteTokenizer::tokenizer_config_json());
    config["eos_token"] = "<|im_end|>";
    config["add_bos_token"] = false;
    folder_.write("tokenizer_config.json", config.dump());
    set_template(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  }

  void set_template(const std::string& text) const { folder_.write("chat_template.jinja", text); }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return folder_.write(name, text);
  }

 private:
  TempFolder folder_;
};

}  // namespace inlay::testing
