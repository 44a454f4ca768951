#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/known_splits.h"
#include "data/tokenizer/pattern.h"
#include "data/tokenizer/piece.h"
#include "io/json.h"

namespace inlay::data::tokenizer {

// What becomes of the matches when text is split at them.
enum class Behavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Split {
  std::variant<Pattern, std::uint8_t> at;  // a pattern, or every character of some classes (characters.h)
  Behavior behavior = Behavior::isolated;
  bool invert = false;            // what lies between the matches takes their place
  SplitFunction known = nullptr;  // the same by hand
};
struct ByteLevel {
  bool add_prefix_space = false, use_regex = true;
};
struct Metaspace {
  enum class Prepend : std::uint8_t { always, first, never };

  std::string replacement;  // one character
  Prepend prepend = Prepend::always;
  bool split = true;
};

Metaspace parse_metaspace(const io::Json& json);  // of a pre-tokenizer or a decoder

// A text and the pieces it is cut into. Kept from text to text, so that cutting allocates nothing.
struct PreTokens {
  std::string_view text;
  std::vector<Piece> pieces;

  std::string storage, next_storage;  // the text, where a step has rewritten it
  std::vector<Piece> next_pieces, matches;
};

// Cuts text into the pieces that the model works on one by one: the `pre_tokenizer` of a tokenizer.json. Immutable, so
// threads may share it.
class PreTokenizer {
 public:
  // Of the value of `pre_tokenizer`, if there is one. Kinds that are not supported are errors that name them.
  static PreTokenizer parse(const io::Json& json);

  bool empty() const { return steps_.empty(); }
  // Whether the model works on bytes, spelt in the byte alphabet in its file.
  bool byte_level() const { return byte_level_; }

  // `at_start`: the text begins where the whole document does. With byte_level() the pieces are of plain bytes, not
  // spelt ones. No piece is empty.
  void apply(std::string_view text, bool at_start, PreTokens& tokens) const;

 private:
  using Step = std::variant<Split, ByteLevel, Metaspace>;

  void add(const io::Json& json);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  std::size_t spelt_from_ = 0;  // steps from here on see bytes spelt, because ByteLevel is not the last
};

}  // namespace inlay::data::tokenizer
