#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <inlay/types.h>

namespace inlay {

// Text to tokens and back, with the ids of Hugging Face's tokenizers. Cheap to copy; threads may share one.
class INLAY_API Tokenizer {
 public:
  // From a model folder, or its tokenizer.json.
  explicit Tokenizer(const std::string& path);

  // special: with the tokens that the model expects around a text. Bytes that are not UTF-8 count as U+FFFD.
  std::vector<std::int32_t> encode(std::string_view text, bool special = true) const;
  // Many texts at once on so many threads; 0: as many as this process may use.
  std::vector<std::vector<std::int32_t>> encode(std::span<const std::string_view> texts, bool special = true,
                                                int threads = 0) const;
  // Ids without a token vanish.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;
  std::vector<std::string> decode(std::span<const std::vector<std::int32_t>> texts, bool skip_special = true,
                                  int threads = 0) const;

  std::int32_t vocab_size() const;  // one more than the largest id
  std::optional<std::int32_t> id_of(std::string_view token) const;
  std::optional<std::string> token_of(std::int32_t id) const;
  std::optional<std::int32_t> bos() const;
  std::optional<std::int32_t> eos() const;
  std::optional<std::int32_t> pad() const;

  struct Parts;

 private:
  std::shared_ptr<const Parts> parts_;
};

// A model's template for conversations, as transformers renders it. It may be hostile: rendering is bounded.
class INLAY_API ChatTemplate {
 public:
  // From a model folder, or a .jinja file.
  explicit ChatTemplate(const std::string& path);
  // From the text of a template; bos_token and the like come as variables.
  static ChatTemplate from_text(std::string_view text);

  struct Options {
    bool add_generation_prompt = false;
    std::string tools, documents;  // JSON; empty: none
    std::string variables;         // a JSON object of more variables; empty: none
  };
  // messages: a JSON array of objects with "role" and what else the template needs.
  std::string render(std::string_view messages, const Options& options) const;
  std::string render(std::string_view messages) const { return render(messages, Options{}); }
  // Many conversations at once on so many threads; 0: as many as this process may use.
  std::vector<std::string> render(std::span<const std::string_view> conversations, const Options& options,
                                  int threads = 0) const;

  struct Parts;

 private:
  ChatTemplate() = default;

  std::shared_ptr<const Parts> parts_;
};

}  // namespace inlay
