#include "data/tokenizer/known_splits.h"

#include <algorithm>
#include <array>

#include "core/utf8.h"
#include "data/tokenizer/characters.h"

namespace inlay::data::tokenizer {

namespace {

// The expressions besides GPT-2's, by the tokenizers they came with.
constexpr std::string_view llama3_split =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view qwen_split =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view o200k_split =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
    R"re(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
    R"re(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

// Mistral's since Nemo.
constexpr std::string_view tekken_split =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

// A place in the text, with the class and the end of the character there; at the end of the text the class is `none`.
class Reader {
 public:
  static constexpr unsigned none = 0x100;

  explicit Reader(std::string_view text) : text_(text) {}

  struct Character {
    unsigned classes = none;
    std::size_t end = 0;

    bool is(unsigned any_of) const { return (classes & any_of) != 0; }
    // [^\s\p{L}\p{N}]
    bool is_other() const { return (classes & (letter | number | space | none)) == 0; }
  };

  Character at(std::size_t place) const {
    if (place >= text_.size()) return {none, place};
    const auto byte = static_cast<unsigned char>(text_[place]);
    if (byte < 0x80) return {table_[byte], place + 1};
    const CodePoint c = code_point_at(text_.data() + place);
    return {classes_of(c.value, table_), place + c.bytes};
  }

  // Behind the longest row of characters from `place` on that have one of the classes, at most `limit` of them.
  std::size_t skip(std::size_t place, unsigned any_of, std::size_t limit = static_cast<std::size_t>(-1)) const {
    for (Character c = at(place); limit > 0 && c.is(any_of); c = at(place), --limit) place = c.end;
    return place;
  }
  std::size_t skip_others(std::size_t place) const {
    for (Character c = at(place); c.is_other(); c = at(place)) place = c.end;
    return place;
  }

  bool holds(std::size_t place, char wanted) const { return place < text_.size() && text_[place] == wanted; }
  // The byte there, as a small letter if it is an ASCII letter; 0 at the end.
  char lower(std::size_t place) const {
    const char c = place < text_.size() ? text_[place] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  }

  // Behind 's 't 're 've 'm 'll 'd, or `place` where none of them stands.
  template <bool any_case>
  std::size_t skip_contraction(std::size_t place) const {
    if (!holds(place, '\'')) return place;
    const auto letter_at = [&](std::size_t i) { return any_case ? lower(i) : i < text_.size() ? text_[i] : '\0'; };
    const char first = letter_at(place + 1), second = letter_at(place + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return place + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return place + 3;
    if (first == 'l' && second == 'l') return place + 3;
    // The long s of old prints is an s in another case.
    if (any_case && text_.substr(place + 1, 2) == "\xC5\xBF") return place + 3;
    return place;
  }

  // \s+(?!\S)|\s+ at a space: the last of several is left to the word that follows.
  std::size_t skip_spaces(std::size_t place) const {
    const std::size_t end = skip(place, space);
    if (end == text_.size()) return end;
    const std::size_t last = previous_character(text_, end);
    return last > place ? last : end;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line end, if there is one.
  std::size_t skip_lines(std::size_t place) const {
    const std::size_t end = skip(place, space);
    for (std::size_t i = end; i > place; --i) {
      if (text_[i - 1] == '\n' || text_[i - 1] == '\r') return i;
    }
    return skip_spaces(place);
  }

 private:
  std::string_view text_;
  const std::uint8_t* table_ = class_table();
};

// Where the piece ends that begins at `place`; c is the character there.
std::size_t gpt2_end(const Reader& reader, std::size_t place, Reader::Character c) {
  if (const std::size_t end = reader.skip_contraction<false>(place); end > place) return end;
  const std::size_t start = reader.holds(place, ' ') ? place + 1 : place;
  const Reader::Character first = start > place ? reader.at(start) : c;
  if (first.is(letter)) return reader.skip(first.end, letter);
  if (first.is(number)) return reader.skip(first.end, number);
  if (first.is_other()) return reader.skip_others(first.end);
  return reader.skip_spaces(place);
}

// What Llama 3, Qwen and GPT-OSS have in common behind their rules for words.
template <std::size_t digits, bool slashes>
std::size_t rest_end(const Reader& reader, std::size_t place, Reader::Character c) {
  if (c.is(number)) return reader.skip(c.end, number, digits - 1);
  const std::size_t start = reader.holds(place, ' ') ? place + 1 : place;
  if (reader.at(start).is_other()) {
    std::size_t end = reader.skip_others(start);
    while (reader.holds(end, '\r') || reader.holds(end, '\n') || (slashes && reader.holds(end, '/'))) ++end;
    return end;
  }
  return reader.skip_lines(place);
}

template <std::size_t digits>
std::size_t llama3_end(const Reader& reader, std::size_t place, Reader::Character c) {
  if (c.is(letter)) return reader.skip(c.end, letter);
  if (const std::size_t end = reader.skip_contraction<true>(place); end > place) return end;
  if (!c.is(newline | number)) {
    if (const std::size_t end = reader.skip(c.end, letter); end > c.end) return end;
  }
  return rest_end<digits, false>(reader, place, c);
}

struct Word {
  std::size_t end;
  bool has_tail;  // head*tail+ matched; otherwise head+tail*, or nothing
};

// Characters that are both go to the heads first; where no tail is left then, the heads give back down to the last one
// that can be a tail.
Word o200k_word(const Reader& reader, std::size_t place) {
  std::size_t at = place, last_that_is_both = place;
  Reader::Character c = reader.at(at);
  for (; c.is(head); c = reader.at(at)) {
    at = c.end;
    if (c.is(tail)) last_that_is_both = c.end;
  }
  if (c.is(tail)) return {reader.skip(c.end, tail), true};
  if (last_that_is_both > place) return {last_that_is_both, true};
  return {at, false};
}

template <std::size_t digits, bool contractions>
std::size_t o200k_end(const Reader& reader, std::size_t place, Reader::Character c) {
  // One character may stand before the word. A mark may also begin the word itself, and does where only so it has a
  // tail.
  const bool may_lead = !c.is(letter | number | newline);
  const Word led = may_lead ? o200k_word(reader, c.end) : Word{c.end, false};
  const Word alone = led.has_tail ? Word{place, false} : o200k_word(reader, place);
  const std::size_t end = led.has_tail || (led.end > c.end && !alone.has_tail) ? led.end : alone.end;
  if (end > place) return contractions ? reader.skip_contraction<true>(end) : end;
  return rest_end<digits, true>(reader, place, c);
}

template <std::size_t (*piece_end)(const Reader&, std::size_t, Reader::Character)>
void split(std::string_view text, std::vector<Piece>& pieces) {
  const Reader reader(text);
  for (std::size_t place = 0; place < text.size();) {
    const std::size_t end = piece_end(reader, place, reader.at(place));
    pieces.push_back(make_piece(place, end));
    place = end;
  }
}

struct Known {
  std::string_view regex;
  SplitFunction function;
};

constexpr std::array known = {Known{gpt2_split, split<gpt2_end>}, Known{llama3_split, split<llama3_end<3>>},
                              Known{qwen_split, split<llama3_end<1>>}, Known{o200k_split, split<o200k_end<3, true>>},
                              Known{tekken_split, split<o200k_end<1, false>>}};

}  // namespace

SplitFunction known_split(std::string_view regex) {
  const auto found = std::find_if(known.begin(), known.end(), [&](const Known& k) { return k.regex == regex; });
  return found == known.end() ? nullptr : found->function;
}

}  // namespace inlay::data::tokenizer
