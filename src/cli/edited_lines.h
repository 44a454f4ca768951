#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/raw_terminal.h"
#include "core/line_editor.h"

namespace inlay::cli {

// Lines that a person types at a prompt of a terminal, and may change there. What was pasted is one, of several.
// Waiting for one ends when somebody wants the program to end.
class EditedLines {
 public:
  EditedLines();

  // A line that was typed ahead is shown as if it was typed now.
  std::optional<std::string> next(std::string_view prompt);
  // Takes what was typed while nobody asked: finished lines, and one that goes on at the next prompt.
  void take_what_is_there();
  // Whether a line is there that was finished while nobody asked, and this line.
  bool has_line() const { return !finished_.empty(); }
  const std::string& upcoming() const { return finished_.front(); }
  void remember(const std::string& line) { editor_.remember(line); }
  void forget();

 private:
  // Where the cursor was left, so that it finds back to the row that the prompt is in.
  struct Drawn {
    std::vector<std::size_t> widths;  // of the rows above the cursor's
    std::size_t column = 0, columns = 0, rows = 0;
  };

  bool wait(int milliseconds) const;
  void read();
  void draw(std::string_view prompt, bool whole = false);
  std::string to_first_row(std::size_t columns) const;

  RawTerminal terminal_;
  KeyReader keys_;
  LineEditor editor_;
  std::deque<std::string> finished_;
  Drawn drawn_;
  bool colour_, ended_ = false;
};

}  // namespace inlay::cli
