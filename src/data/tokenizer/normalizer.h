#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/pattern.h"
#include "io/json.h"

namespace inlay::data::tokenizer {

struct Prepend {
  std::string content;
};
struct Replace {
  Pattern pattern;
  std::string content;
};
enum class UnicodeForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
struct Lowercase {};
struct StripSpace {
  bool left = true, right = true;
};
struct StripAccents {};

// What happens to text before it is cut: the `normalizer` of a tokenizer.json. Immutable, so threads may share it.
class Normalizer {
 public:
  // Of the value of `normalizer`, if there is one. Kinds that are not supported are errors that name them.
  static Normalizer parse(const io::Json& json);

  bool empty() const { return steps_.empty(); }
  // The text normalised: itself where nothing changes, otherwise what `storage` then holds. Steps that multiply the
  // text beyond all reason are a UserError.
  std::string_view apply(std::string_view text, std::string& storage) const;

 private:
  using Step = std::variant<Prepend, Replace, UnicodeForm, Lowercase, StripSpace, StripAccents>;

  void add(const io::Json& json);

  std::vector<Step> steps_;
  std::string place_;  // "tokenizer.json: normalizer"
};

}  // namespace inlay::data::tokenizer
