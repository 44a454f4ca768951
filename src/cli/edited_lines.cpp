#include "cli/edited_lines.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "core/interrupt.h"
#include "core/terminal.h"

namespace inlay::cli {

namespace {

struct TerminalSize {
  std::size_t rows = 24, columns = 80;
};

TerminalSize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_row, size.ws_col};
}

void show_at_once(std::string_view text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

}  // namespace

EditedLines::EditedLines() : colour_(wants_colour(STDOUT_FILENO)) {
  // What is here by now was typed while the terminal still made lines of it: an end of the input became a zero there.
  while (wait(0) && !ended_) {
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count <= 0) break;
    std::replace(bytes, bytes + count, '\0', '\4');
    keys_.add({bytes, static_cast<std::size_t>(count)});
  }
}

bool EditedLines::wait(int milliseconds) const {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, milliseconds) > 0;
}

void EditedLines::read() {
  char bytes[4096];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (count > 0) {
    keys_.add({bytes, static_cast<std::size_t>(count)});
  } else if (count == 0 || errno != EINTR) {
    ended_ = true;
  }
}

void EditedLines::take_what_is_there() {
  while (!ended_ && wait(0)) read();
  while (const std::optional<Key> key = keys_.next()) {
    const LineEditor::Outcome outcome = editor_.press(*key);
    if (outcome == LineEditor::Outcome::line) finished_.push_back(editor_.take());
    ended_ = ended_ || outcome == LineEditor::Outcome::ended;
  }
}

void EditedLines::forget() {
  keys_.forget();
  editor_.forget();
  finished_.clear();
}

std::optional<std::string> EditedLines::next(std::string_view prompt) {
  drawn_ = {};
  if (!finished_.empty()) {
    LineEditor shown;
    shown.press({KeyKind::text, finished_.front()});
    std::swap(shown, editor_);
    draw(prompt, true);
    std::swap(shown, editor_);
    show_at_once("\n");
    std::string line = std::move(finished_.front());
    finished_.pop_front();
    return line;
  }
  draw(prompt);
  while (!ended_) {
    bool changed = false;
    while (const std::optional<Key> key = keys_.next()) {
      const LineEditor::Outcome outcome = editor_.press(*key);
      if (outcome == LineEditor::Outcome::line) {
        draw(prompt, true);
        show_at_once("\n");
        return editor_.take();
      }
      if (outcome == LineEditor::Outcome::ended) ended_ = true;
      if (key->kind == KeyKind::redraw) {
        show_at_once("\033[H\033[2J");
        drawn_ = {};
      }
      changed = true;
    }
    if (terminal_.taken_back()) {
      drawn_ = {};
      changed = true;
    }
    const TerminalSize size = terminal_size();
    if (changed || size.columns != drawn_.columns || size.rows != drawn_.rows) draw(prompt);
    const bool ready = !ended_ && wait(100);
    if (interrupt_requested()) break;
    ready ? read() : keys_.settle();
  }
  draw(prompt, true);
  return std::nullopt;
}

// A terminal that became narrower breaks every row anew.
std::string EditedLines::to_first_row(std::size_t columns) const {
  std::size_t up = drawn_.widths.size();
  if (columns < drawn_.columns) {
    up = drawn_.column / columns;
    for (const std::size_t width : drawn_.widths) up += std::max<std::size_t>(1, (width + columns - 1) / columns);
  }
  return up > 0 ? fmt::format("\r\033[{}A", up) : "\r";
}

// All of a line that is done with, even where the terminal has fewer rows; of others the rows about the cursor.
void EditedLines::draw(std::string_view prompt, bool whole) {
  const TerminalSize size = terminal_size();
  const std::size_t cursor = whole ? editor_.text().size() : editor_.cursor();
  const TextRows all = lay_out(prompt, editor_.text(), cursor, size.columns);
  const std::size_t most = whole ? all.rows.size() : std::min(size.rows, all.rows.size());
  const std::size_t first = all.cursor_row < most ? 0 : all.cursor_row - most + 1;
  std::string out = drawn_.columns > 0 ? to_first_row(size.columns) + "\033[J" : "";
  for (std::size_t i = first; i < first + most; ++i) {
    if (i > first) out += "\r\n";
    std::string_view row = all.rows[i];
    if (i == 0 && colour_ && row.starts_with(prompt)) {
      out += fmt::format("\033[1m{}\033[0m", prompt);
      row.remove_prefix(prompt.size());
    }
    out += row;
  }
  const std::size_t last = first + most - 1;
  if (last > all.cursor_row) out += fmt::format("\033[{}A", last - all.cursor_row);
  if (last > all.cursor_row || all.widths[last] != all.cursor_column) {
    out += all.cursor_column > 0 ? fmt::format("\r\033[{}C", all.cursor_column) : "\r";
  }
  show_at_once(out);
  drawn_ = {.widths = {all.widths.begin() + static_cast<std::ptrdiff_t>(first),
                       all.widths.begin() + static_cast<std::ptrdiff_t>(all.cursor_row)},
            .column = all.cursor_column,
            .columns = size.columns,
            .rows = size.rows};
}

}  // namespace inlay::cli
