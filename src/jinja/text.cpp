#include "jinja/text.h"

#include <algorithm>

#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

// A growing list of pieces within the budget.
void add(Budget& budget, std::vector<std::string_view>& pieces, std::string_view piece) {
  budget.spend(1);
  pieces.push_back(piece);
}

}  // namespace

std::size_t find_last_text(Budget& budget, std::string_view text, std::string_view wanted) {
  if (wanted.size() > text.size()) return std::string_view::npos;
  if (wanted.empty()) return text.size();
  for (std::size_t end = text.size() - wanted.size() + 1; end > 0;) {
    const std::size_t at = text.substr(0, end).rfind(wanted[0]);
    budget.spend_on_bytes(end - std::min(at, end) + wanted.size());
    if (at == std::string_view::npos || text.substr(at).starts_with(wanted)) return at;
    end = at;
  }
  return std::string_view::npos;
}

std::string_view stripped(Budget& budget, std::string_view text, std::optional<std::string_view> characters,
                          Side side) {
  const auto goes = [&](char32_t point) {
    if (!characters) return is_space(point);
    budget.spend_on_bytes(characters->size());
    for (std::size_t at = 0; at < characters->size();) {
      if (decode(*characters, at) == point) return true;
    }
    return false;
  };
  budget.spend_on_bytes(text.size());
  std::size_t begin = 0, end = text.size();
  while (side != Side::right && begin < end) {
    std::size_t next = begin;
    if (!goes(decode(text, next))) break;
    begin = next;
  }
  while (side != Side::left && end > begin) {
    std::size_t previous = end;
    if (!goes(decode_back(text, previous))) break;
    end = previous;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> split_at_spaces(Budget& budget, std::string_view text, Integer most, Side side) {
  std::vector<std::string_view> pieces;
  budget.spend_on_bytes(text.size());
  const bool back = side == Side::right;
  text = stripped(budget, text, std::nullopt, side);
  while (!text.empty()) {
    if (most >= 0 && static_cast<Integer>(pieces.size()) == most) {
      add(budget, pieces, stripped(budget, text, std::nullopt, back ? Side::right : Side::left));
      break;
    }
    std::size_t end = back ? text.size() : 0;
    while (back ? end > 0 : end < text.size()) {
      std::size_t next = end;
      if (is_space(back ? decode_back(text, next) : decode(text, next))) break;
      end = next;
    }
    add(budget, pieces, back ? text.substr(end) : text.substr(0, end));
    text = back ? text.substr(0, end) : text.substr(end);
    // Only the spaces between two pieces: looking at all of the rest each time would be too much work.
    while (!text.empty()) {
      std::size_t next = back ? text.size() : 0;
      if (!is_space(back ? decode_back(text, next) : decode(text, next))) break;
      text = back ? text.substr(0, next) : text.substr(next);
    }
  }
  if (back) std::ranges::reverse(pieces);
  return pieces;
}

std::vector<std::string_view> split_at(Budget& budget, std::string_view text, std::string_view separator, Integer most,
                                       Side side) {
  if (separator.empty()) fail("empty separator");
  const bool back = side == Side::right;
  std::vector<std::string_view> pieces;
  while (most < 0 || static_cast<Integer>(pieces.size()) < most) {
    const std::size_t at = back ? find_last_text(budget, text, separator) : find_text(budget, text, separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at), after = text.substr(at + separator.size());
    add(budget, pieces, back ? after : before);
    text = back ? before : after;
  }
  add(budget, pieces, text);
  if (back) std::ranges::reverse(pieces);
  return pieces;
}

std::vector<std::string_view> split_lines(Budget& budget, std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  budget.spend_on_bytes(text.size());
  for (std::size_t at = 0, begin = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t point = decode(text, at);
    if (is_line_end(point)) {
      if (point == '\r' && at < text.size() && text[at] == '\n') ++at;
      add(budget, lines, text.substr(begin, (keep_ends ? at : end) - begin));
      begin = at;
    } else if (at == text.size()) {
      add(budget, lines, text.substr(begin));
    }
  }
  return lines;
}

Value replaced(Runtime& runtime, const String& string, std::string_view old, std::string_view fresh, Integer most) {
  const std::string_view text = string.text;
  Builder out(runtime.budget());
  std::size_t begin = 0;
  for (Integer count = 0; most < 0 || count < most; ++count) {
    if (old.empty()) {  // between all characters, and at both ends
      out.append(fresh);
      if (begin == text.size()) break;
      const std::size_t from = begin;
      decode(text, begin);
      out.append(text.substr(from, begin - from));
      continue;
    }
    const std::size_t at = find_text(runtime.budget(), text, old, begin);
    if (at == std::string_view::npos) break;
    out.append(text.substr(begin, at - begin));
    out.append(fresh);
    begin = at + old.size();
  }
  out.append(text.substr(std::min(begin, text.size())));
  return out.finish(string.markup);
}

Value strings(Runtime& runtime, const std::vector<std::string_view>& pieces, bool markup) {
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (const std::string_view piece : pieces) {
    runtime.budget().spend_on_bytes(piece.size());
    items.push_back(runtime.string(std::string(piece), markup));
  }
  return runtime.list(std::move(items));
}

Value joined(Runtime& runtime, const Value& items, std::string_view separator, bool strict) {
  Builder out(runtime.budget());
  Cursor cursor(runtime, items);
  for (std::size_t index = 0; const auto item = cursor.next(); ++index) {
    if (strict && item->string() == nullptr) {
      fail("sequence item {}: expected str instance, {} found", index, item->type());
    }
    if (index > 0) out.append(separator);
    append_text(out, *item);
  }
  return out.finish();
}

}  // namespace inlay::jinja
