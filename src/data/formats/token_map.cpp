#include "data/formats/token_map.h"

#include <algorithm>
#include <span>
#include <string>

#include "core/utf8.h"

namespace inlay::data {

TokenMap::TokenMap(const Tokenizer& tokenizer, std::string_view text, const std::vector<std::int32_t>& ids)
    : tokenizer_(tokenizer), text_(text), ids_(ids) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!tokenizer.is_special(ids[i])) continue;
    // Nowhere else can it stand before this: it would have been a token there.
    const std::string spelling = tokenizer.text(ids[i]).value_or("");
    const std::size_t begin = spelling.empty() ? text.npos : text.find(spelling, at);
    if (begin == text.npos) continue;
    at = begin + spelling.size();
    anchors_.push_back({i, begin, at});
  }
}

std::pair<std::size_t, std::size_t> TokenMap::tokens(std::size_t begin, std::size_t end) const {
  const std::size_t first = token_at(begin);
  if (begin >= end) return {first, first};
  // The last character may share its token with what follows, or take several tokens by itself.
  const std::size_t last = token_at(previous_character(text_, end));
  return {first, std::min(std::max(last + 1, token_at(end)), ids_.size())};
}

// The token that holds the byte, which begins a character.
std::size_t TokenMap::token_at(std::size_t byte) const {
  if (byte >= text_.size()) return ids_.size();
  const auto behind = std::ranges::upper_bound(anchors_, byte, {}, &Anchor::begin);
  const std::size_t last = behind == anchors_.end() ? ids_.size() : behind->token;
  if (behind == anchors_.begin()) return byte == 0 ? 0 : count_before({0, 0, 0}, last, byte);
  const Anchor& anchor = *(behind - 1);
  if (byte < anchor.end) return anchor.token;
  return byte == anchor.end ? std::min(anchor.token + 1, ids_.size()) : count_before(anchor, last, byte);
}

// Tokens that end at the byte or before it. What is read begins with the anchor, for a tokenizer may treat the first
// part of a text unlike the others.
std::size_t TokenMap::count_before(const Anchor& anchor, std::size_t last, std::size_t byte) const {
  const std::vector<std::int32_t> beginning = tokenizer_.encode(text_.substr(anchor.begin, byte - anchor.begin), false);
  const std::span all(ids_.begin() + static_cast<std::ptrdiff_t>(anchor.token),
                      ids_.begin() + static_cast<std::ptrdiff_t>(last));
  const auto [mine, theirs] = std::ranges::mismatch(beginning, all);
  auto same = static_cast<std::size_t>(theirs - all.begin());
  if (mine == beginning.end()) return anchor.token + same;
  // The end of the beginning is tokenized differently when it goes on. Go on from there, token by token, as long as the
  // text of the tokens shows that they end before the byte.
  for (; same < all.size(); ++same) {
    const std::string text = tokenizer_.decode(all.first(same + 1), false);
    const std::size_t end = anchor.begin + text.size();
    if (end > byte || text_.substr(anchor.begin, text.size()) != text) break;
  }
  return anchor.token + same;
}

}  // namespace inlay::data
