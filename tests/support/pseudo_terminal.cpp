#include "support/pseudo_terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "core/line_editor.h"
#include "core/utf8.h"
#include "support/command.h"

namespace inlay::testing {

void Screen::add(const std::string& bytes) {
  pending_ += bytes;
  std::size_t at = 0;
  for (const std::size_t whole = whole_utf8_prefix(pending_); at < whole;) {
    const char c = pending_[at];
    if (c == '\033') {
      const std::size_t last = pending_.find_first_of("ABCDHJKmhl", at + 2);
      if (last == std::string::npos) break;
      control(pending_.substr(at, last + 1 - at));
      at = last + 1;
      continue;
    }
    const std::size_t count = code_point_at(pending_.data() + at).bytes;
    if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      break_line();
    } else if (c == '\b') {
      column_ -= column_ > 0 ? 1 : 0;
    } else {
      put(pending_.substr(at, count));
    }
    at += count;
  }
  pending_.erase(0, at);
}

void Screen::put(const std::string& character) {
  const std::size_t width = columns_of(code_point_at(character.data()).value);
  if (column_ + width > columns_) {
    column_ = 0;
    break_line();
  }
  Line& line = lines_[row_];
  if (line.size() < column_ + width) line.resize(column_ + width, " ");
  if (width == 0) {
    if (column_ > 0) line[column_ - 1] += character;
    return;
  }
  line[column_] = character;
  if (width == 2) line[column_ + 1].clear();
  column_ += width;
}

void Screen::break_line() {
  if (++row_ < rows_) return;
  --row_;
  above_.push_back(lines_.front());
  lines_.erase(lines_.begin());
  lines_.emplace_back();
}

void Screen::control(const std::string& sequence) {
  const std::size_t number = sequence.size() > 3 ? std::strtoul(sequence.c_str() + 2, nullptr, 10) : 0;
  const std::size_t count = std::max<std::size_t>(1, number);
  Line& line = lines_[row_];
  switch (sequence.back()) {
    case 'A': row_ -= std::min(row_, count); break;
    case 'B': row_ = std::min(row_ + count, rows_ - 1); break;
    case 'C': column_ = std::min(column_ + count, columns_ - 1); break;
    case 'D': column_ -= std::min(column_, count); break;
    case 'H': row_ = column_ = 0; break;
    case 'K': line.resize(std::min(line.size(), column_)); break;
    case 'J':
      if (number == 2) {
        std::ranges::fill(lines_, Line());
      } else {
        line.resize(std::min(line.size(), column_));
        std::fill(lines_.begin() + static_cast<std::ptrdiff_t>(row_) + 1, lines_.end(), Line());
      }
      break;
    default: break;  // colours, and what is asked of the terminal
  }
}

std::string Screen::text() const {
  std::string all;
  const auto add = [&](const Line& line) {
    for (const std::string& character : line) all += character;
    all.resize(all.find_last_not_of(' ') + 1);
    all += '\n';
  };
  for (const Line& line : above_) add(line);
  for (const Line& line : lines_) add(line);
  all.resize(all.find_last_not_of('\n') + 1);
  return all;
}

// As terminals do that break lines anew: those that are too long now take several rows.
void Screen::resize(std::size_t rows, std::size_t columns) {
  std::vector<Line> broken;
  std::size_t cursor = 0;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (i == row_) {
      cursor = broken.size() + column_ / columns;
      column_ %= columns;
    }
    Line rest = lines_[i];
    do {
      const auto count = static_cast<std::ptrdiff_t>(std::min(columns, rest.size()));
      broken.emplace_back(rest.begin(), rest.begin() + count);
      rest.erase(rest.begin(), rest.begin() + count);
    } while (!rest.empty());
  }
  rows_ = rows;
  columns_ = columns;
  const std::size_t away = cursor < rows ? 0 : cursor - rows + 1;
  above_.insert(above_.end(), broken.begin(), broken.begin() + static_cast<std::ptrdiff_t>(away));
  lines_.assign(broken.begin() + static_cast<std::ptrdiff_t>(away), broken.end());
  lines_.resize(rows);
  row_ = cursor - away;
}

PseudoTerminal::PseudoTerminal(const std::vector<std::string>& command, unsigned short rows, unsigned short columns)
    : screen_(rows, columns) {
  const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  process_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (process_ < 0) throw std::runtime_error("no pseudo-terminal");
  if (process_ > 0) return;
  ::setenv("TERM", "xterm", 1);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  std::_Exit(127);
}

PseudoTerminal::~PseudoTerminal() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ::close(terminal_);
}

// A program that does not read for a while must not keep the one that types from seeing what it writes.
void PseudoTerminal::type(const std::string& bytes) const {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::write(terminal_, bytes.data() + at, std::min<std::size_t>(bytes.size() - at, 512));
    if (count < 0) throw std::runtime_error("nobody is at the terminal");
    at += static_cast<std::size_t>(count);
  }
}

void PseudoTerminal::resize(unsigned short rows, unsigned short columns) {
  while (read()) continue;
  screen_.resize(rows, columns);
  const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(terminal_, TIOCSWINSZ, &size);
}

bool PseudoTerminal::read() {
  pollfd input{.fd = terminal_, .events = POLLIN, .revents = 0};
  if (::poll(&input, 1, 20) <= 0) return false;
  char bytes[4096];
  const ssize_t count = ::read(terminal_, bytes, sizeof bytes);
  if (count <= 0) return false;
  bytes_.append(bytes, static_cast<std::size_t>(count));
  screen_.add({bytes, static_cast<std::size_t>(count)});
  return true;
}

bool PseudoTerminal::shows(const std::string& text) { return shows(text, 1); }

bool PseudoTerminal::shows(const std::string& text, std::size_t count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (times(screen_.text(), text) < count) {
    if (!read() && std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

termios PseudoTerminal::settings() const {
  termios settings{};
  ::tcgetattr(terminal_, &settings);
  return settings;
}

int PseudoTerminal::wait() {
  int status = 0;
  // What it writes is read meanwhile, so that it never waits for room.
  while (::waitpid(process_, &status, WNOHANG) == 0) read();
  while (read()) continue;
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace inlay::testing
