#include "core/line_editor.h"

#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <utility>

#include "core/utf8.h"

namespace inlay {

namespace {

constexpr char escape_byte = '\033';
constexpr std::string_view paste_begin = "200~", paste_end = "\033[201~";

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::optional<Key> control_key(char c) {
  switch (c) {
    case '\n':
    case '\r': return Key{KeyKind::enter, {}};
    case '\t': return Key{KeyKind::text, "\t"};
    case '\b':
    case 0x7f: return Key{KeyKind::backspace, {}};
    case 'A' & 0x1f: return Key{KeyKind::begin, {}};
    case 'B' & 0x1f: return Key{KeyKind::left, {}};
    case 'D' & 0x1f: return Key{KeyKind::remove_or_end, {}};
    case 'E' & 0x1f: return Key{KeyKind::end, {}};
    case 'F' & 0x1f: return Key{KeyKind::right, {}};
    case 'K' & 0x1f: return Key{KeyKind::remove_to_end, {}};
    case 'L' & 0x1f: return Key{KeyKind::redraw, {}};
    case 'N' & 0x1f: return Key{KeyKind::later, {}};
    case 'P' & 0x1f: return Key{KeyKind::earlier, {}};
    case 'U' & 0x1f: return Key{KeyKind::remove_to_begin, {}};
    case 'W' & 0x1f: return Key{KeyKind::remove_word, {}};
    default: return std::nullopt;
  }
}

// Of a sequence's parameters and its last byte. Shift and Control with an arrow are the arrow.
std::optional<Key> sequence_key(std::string_view parameters, char last) {
  switch (last) {
    case 'A': return Key{KeyKind::earlier, {}};
    case 'B': return Key{KeyKind::later, {}};
    case 'C': return Key{KeyKind::right, {}};
    case 'D': return Key{KeyKind::left, {}};
    case 'F': return Key{KeyKind::end, {}};
    case 'H': return Key{KeyKind::begin, {}};
    case '~': break;
    default: return std::nullopt;
  }
  const std::string_view number = parameters.substr(0, parameters.find(';'));
  if (number == "1" || number == "7") return Key{KeyKind::begin, {}};
  if (number == "4" || number == "8") return Key{KeyKind::end, {}};
  if (number == "3") return Key{KeyKind::remove, {}};
  return std::nullopt;
}

// Characters join the one before them where they take no column of their own.
bool joins(std::string_view text, std::size_t at) { return columns_of(code_point_at(text.data() + at).value) == 0; }

std::size_t character_before(std::string_view text, std::size_t at) {
  if (at == 0) return 0;
  at = previous_character(text, at);
  while (at > 0 && text[at] != '\n' && joins(text, at)) at = previous_character(text, at);
  return at;
}

std::size_t character_behind(std::string_view text, std::size_t at) {
  if (at >= text.size()) return text.size();
  do at += code_point_at(text.data() + at).bytes;
  while (at < text.size() && text[at] != '\n' && joins(text, at));
  return at;
}

}  // namespace

std::optional<Key> KeyReader::next() {
  while (!bytes_.empty()) {
    if (pasting_) return pasted();
    std::optional<Key> key;
    if (bytes_.front() == escape_byte) {
      if (!take_escape(key)) return std::nullopt;
    } else if (is_control(bytes_.front())) {
      key = control_key(bytes_.front());
      bytes_.erase(0, 1);
    } else {
      return characters();
    }
    if (key) return key;
  }
  return std::nullopt;
}

void KeyReader::settle() {
  if (!pasting_ && bytes_.size() == 1 && bytes_.front() == escape_byte) bytes_.clear();
}

std::optional<Key> KeyReader::pasted() {
  const std::size_t end = bytes_.find(paste_end);
  if (end == std::string::npos) return std::nullopt;
  std::string text = bytes_.substr(0, end);
  bytes_.erase(0, end + paste_end.size());
  pasting_ = false;
  std::ranges::replace(text, '\r', '\n');
  std::erase_if(text, [](char c) { return is_control(c) && c != '\n' && c != '\t'; });
  // A last line that is empty was not meant as one.
  if (const std::size_t last = text.find_last_not_of(' '); last != std::string::npos && text[last] == '\n') {
    text.resize(last);
  }
  return Key{KeyKind::text, repaired_utf8(text)};
}

std::optional<Key> KeyReader::characters() {
  const auto control = std::ranges::find_if(bytes_, is_control);
  auto count = static_cast<std::size_t>(control - bytes_.begin());
  // Another key is no part of a character: what was begun before it stays unfinished.
  if (control == bytes_.end()) count = whole_utf8_prefix(bytes_);
  if (count == 0) return std::nullopt;
  Key key{KeyKind::text, repaired_utf8(std::string_view(bytes_).substr(0, count))};
  bytes_.erase(0, count);
  return key;
}

bool KeyReader::take_escape(std::optional<Key>& key) {
  if (bytes_.size() < 2) return false;
  const char kind = bytes_[1];
  if (kind != '[' && kind != 'O') {  // a key together with Alt, or an escape and then something else
    bytes_.erase(0, kind > 0x20 && kind < 0x7f ? 2 : 1);
    return true;
  }
  const auto ends = [](char c) { return c < 0x20 || c >= 0x40; };
  const auto last = std::find_if(bytes_.begin() + 2, bytes_.end(), ends);
  if (last == bytes_.end()) return false;
  const auto length = static_cast<std::size_t>(last - bytes_.begin()) + 1;
  const std::string sequence = bytes_.substr(2, length - 2);
  const bool broken = is_control(sequence.back()) || static_cast<unsigned char>(sequence.back()) >= 0x80;
  bytes_.erase(0, broken ? length - 1 : length);
  if (broken) return true;
  pasting_ = sequence == paste_begin;
  key = sequence_key(std::string_view(sequence).substr(0, sequence.size() - 1), sequence.back());
  return true;
}

LineEditor::Outcome LineEditor::press(const Key& key) {
  switch (key.kind) {
    case KeyKind::text: insert(key.text); break;
    case KeyKind::enter: return Outcome::line;
    case KeyKind::backspace: erase(character_before(text_, cursor_), cursor_); break;
    case KeyKind::remove_or_end:
      if (text_.empty()) return Outcome::ended;
      [[fallthrough]];
    case KeyKind::remove: erase(cursor_, character_behind(text_, cursor_)); break;
    case KeyKind::remove_word: erase(word_begin(), cursor_); break;
    case KeyKind::remove_to_begin: erase(row_begin(), cursor_); break;
    case KeyKind::remove_to_end: erase(cursor_, row_end()); break;
    case KeyKind::left: cursor_ = character_before(text_, cursor_); break;
    case KeyKind::right: cursor_ = character_behind(text_, cursor_); break;
    case KeyKind::begin: cursor_ = row_begin(); break;
    case KeyKind::end: cursor_ = row_end(); break;
    case KeyKind::earlier:
      if (shown_ > 0) show(shown_ - 1);
      break;
    case KeyKind::later:
      if (shown_ < history_.size()) show(shown_ + 1);
      break;
    case KeyKind::redraw: break;
  }
  return Outcome::goes_on;
}

std::string LineEditor::take() {
  shown_ = history_.size();
  cursor_ = 0;
  draft_.clear();
  return std::exchange(text_, {});
}

void LineEditor::remember(const std::string& line) {
  const bool again = !history_.empty() && history_.back() == line;
  if (line.find_first_not_of(" \t\n") != std::string::npos && !again) history_.push_back(line);
  shown_ = history_.size();
}

void LineEditor::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineEditor::erase(std::size_t from, std::size_t to) {
  text_.erase(from, to - from);
  cursor_ = from;
}

void LineEditor::show(std::size_t which) {
  if (shown_ == history_.size()) draft_ = text_;
  shown_ = which;
  text_ = which == history_.size() ? draft_ : history_[which];
  cursor_ = text_.size();
}

std::size_t LineEditor::row_begin() const {
  return cursor_ == 0 ? 0 : text_.rfind('\n', cursor_ - 1) + 1;  // 0 where there is none
}

std::size_t LineEditor::row_end() const { return std::min(text_.find('\n', cursor_), text_.size()); }

std::size_t LineEditor::word_begin() const {
  const auto is_space = [this](std::size_t at) { return text_[at] == ' ' || text_[at] == '\t' || text_[at] == '\n'; };
  std::size_t at = cursor_;
  while (at > 0 && is_space(at - 1)) --at;
  while (at > 0 && !is_space(at - 1)) --at;
  return at;
}

std::size_t columns_of(char32_t character) {
  if (character < 0x300) return 1;  // most of what is typed need not be looked up
  // The C library knows, and asks the language of the program, which is none.
  static const locale_t language = [] {
    const locale_t plain = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return plain != nullptr ? plain : ::newlocale(LC_CTYPE_MASK, "en_US.UTF-8", nullptr);
  }();
  if (language == nullptr) return 1;
  const locale_t ours = ::uselocale(language);
  const int columns = ::wcwidth(static_cast<wchar_t>(character));
  ::uselocale(ours);
  return columns < 0 ? 1 : static_cast<std::size_t>(columns);
}

TextRows lay_out(std::string_view prompt, std::string_view text, std::size_t cursor, std::size_t columns) {
  const std::size_t most = columns > 2 ? columns - 1 : 2;  // a wide character needs two
  TextRows shown;
  shown.rows.emplace_back();
  shown.widths.push_back(0);
  const auto put = [&](std::string_view part, std::size_t width) {
    if (shown.widths.back() + width > most) {
      shown.rows.emplace_back();
      shown.widths.push_back(0);
    }
    shown.rows.back() += part;
    shown.widths.back() += width;
  };
  const auto put_all = [&](std::string_view whole, std::size_t marked) {
    for (std::size_t at = 0;;) {
      if (at == marked) {
        shown.cursor_row = shown.rows.size() - 1;
        shown.cursor_column = shown.widths.back();
      }
      if (at >= whole.size()) return;
      const CodePoint point = code_point_at(whole.data() + at);
      if (point.value == '\n') {
        shown.rows.emplace_back();
        shown.widths.push_back(0);
      } else if (point.value == '\t') {
        const std::size_t to_stop = 8 - shown.widths.back() % 8;
        const std::size_t room = most - shown.widths.back();
        const std::size_t width = room == 0 ? std::min<std::size_t>(8, most) : std::min(to_stop, room);
        put(std::string(width, ' '), width);
      } else {
        put(whole.substr(at, point.bytes), columns_of(point.value));
      }
      at += point.bytes;
    }
  };
  put_all(prompt, std::string_view::npos);
  put_all(text, cursor);
  return shown;
}

}  // namespace inlay
