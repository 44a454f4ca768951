#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A line that a person types and changes, apart from the terminal that it is typed into: what keys its bytes are, what
// the keys make of the line, and where on the screen that stands.
namespace inlay {

enum class KeyKind : std::uint8_t {
  text,  // characters, or all that was pasted at once
  enter,
  backspace,
  remove,  // what stands under the cursor
  remove_or_end,
  remove_word,
  remove_to_begin,
  remove_to_end,
  left,
  right,
  begin,
  end,
  earlier,
  later,
  redraw,
};

struct Key {
  KeyKind kind = KeyKind::text;
  std::string text;

  bool operator==(const Key&) const = default;
};

// The keys behind the bytes that a terminal sends. What has begun and not ended waits for more of it.
class KeyReader {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  std::optional<Key> next();
  // Nothing has come for a while: an escape that nothing follows is a key of its own, and means nothing.
  void settle();
  void forget() { bytes_.clear(), pasting_ = false; }

 private:
  std::optional<Key> pasted();
  std::optional<Key> characters();
  // False: the rest of the sequence is still to come.
  bool take_escape(std::optional<Key>& key);

  std::string bytes_;
  bool pasting_ = false;
};

// The line, its cursor, and the lines before it. A line may hold newlines, where it was pasted.
class LineEditor {
 public:
  enum class Outcome : std::uint8_t { goes_on, line, ended };

  Outcome press(const Key& key);

  const std::string& text() const { return text_; }
  // A byte of the text at which a character begins, or its end.
  std::size_t cursor() const { return cursor_; }
  // The line as it is; the next one begins empty.
  std::string take();
  void forget() { take(); }
  // What earlier keys lead back to.
  void remember(const std::string& line);

 private:
  void insert(std::string_view text);
  void erase(std::size_t from, std::size_t to);
  void show(std::size_t which);
  // Where the line that the cursor is in begins and ends, of text that has newlines.
  std::size_t row_begin() const;
  std::size_t row_end() const;
  std::size_t word_begin() const;

  std::string text_, draft_;  // what was begun before somebody went back to an earlier line
  std::size_t cursor_ = 0;
  std::vector<std::string> history_;
  std::size_t shown_ = 0;  // of the history; its size: the line that is new
};

// Columns that a terminal gives a character: 0 for what joins the one before it, 2 for wide ones.
std::size_t columns_of(char32_t character);

// Text behind a prompt, broken into the rows of a terminal.
struct TextRows {
  std::vector<std::string> rows;
  std::vector<std::size_t> widths;  // of each, in columns
  std::size_t cursor_row = 0, cursor_column = 0;
};
// No row takes the last column: some terminals wait there with the break, and some do not.
TextRows lay_out(std::string_view prompt, std::string_view text, std::size_t cursor, std::size_t columns);

}  // namespace inlay
