#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace inlay::data {

// Text to tokens and back, as the tokenizer.json of a Hugging Face model says: byte-pair encoding, byte-level or with
// byte fallback. Ids and texts are those of Hugging Face's tokenizers; what a file asks for and is not supported is a
// UserError that names its key. Special tokens that stand in a text are taken for what they are. `truncation` and
// `padding` are left alone: here neither exists. Cheap to copy; threads may share one.
class Tokenizer {
 public:
  // From a model folder (or its tokenizer.json): tokenizer.json, and tokenizer_config.json where there is one.
  static Tokenizer load(const std::filesystem::path& path);
  // The same of files at hand. As in transformers, `add_bos_token` and `add_eos_token` in the configuration decide what
  // stands around a text, whatever the post-processor says.
  explicit Tokenizer(const io::Json& tokenizer, const std::optional<io::Json>& config = {});

  static constexpr std::size_t max_text_bytes = std::size_t{512} << 20;

  // `special`: with the tokens that the model wants around a text (a beginning-of-text token, say). Bytes that are not
  // UTF-8 count as U+FFFD. Longer texts than max_text_bytes are a UserError.
  std::vector<std::int32_t> encode(std::string_view text, bool special = true) const;
  // Many texts on several threads (0: as many as processors are granted). The result does not depend on their number.
  std::vector<std::vector<std::int32_t>> encode(std::span<const std::string> texts, bool special = true,
                                                int threads = 0) const;

  // Ids without a token vanish. Bytes that do not make a character become U+FFFD.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // The bytes that a token adds to a text wherever it stands, which need not be whole characters. Nothing where tokens
  // depend on each other; only byte-level ones do not. An id without a token adds none.
  std::optional<std::string> bytes(std::int32_t id) const;

  // One more than the largest id. Models may have more rows, for alignment; they must not have fewer.
  std::int32_t vocab_size() const;
  // By the spelling in the file; `text` is the way back.
  std::optional<std::int32_t> find_id(std::string_view token) const;
  std::optional<std::string> text(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  // Of tokenizer_config.json, where it names them.
  std::optional<std::int32_t> bos() const;
  std::optional<std::int32_t> eos() const;
  std::optional<std::int32_t> pad() const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace inlay::data
