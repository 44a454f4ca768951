#include "cli/typed_lines.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "core/interrupt.h"
#include "core/terminal.h"

namespace inlay::cli {

namespace {

void ask_terminal(std::string_view sequence) {
  fmt::print("{}", sequence);
  std::fflush(stdout);
}

std::string without_marks(std::string text) {
  for (const std::string_view mark : {MarkedPastes::begin, MarkedPastes::end}) {
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at))
      text.erase(at, mark.size());
  }
  return text;
}

}  // namespace

SilentTerminal::SilentTerminal() : silenced_(::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
  if (!silenced_) return;
  termios silent = before_;
  silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &silent);
}

SilentTerminal::~SilentTerminal() {
  if (silenced_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

MarkedPastes::MarkedPastes(bool person) : marked_(person && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
  if (!marked_) return;
  termios plain = before_;
  plain.c_lflag &= ~static_cast<tcflag_t>(ECHOCTL);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &plain);
  ask_terminal("\033[?2004h");
}

MarkedPastes::~MarkedPastes() {
  if (!marked_) return;
  ask_terminal("\033[?2004l");
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

std::optional<std::string> TypedLines::next() {
  std::optional<std::string> line = next_typed();
  if (!line || !is_terminal(STDIN_FILENO)) return line;
  std::string whole;
  for (std::string_view mark = MarkedPastes::begin;;) {  // or the end, within a paste
    const bool pasted = mark == MarkedPastes::end;
    if (const std::size_t at = line->find(mark); at != std::string::npos) {
      whole += line->substr(0, at);
      line->erase(0, at + mark.size());
      mark = pasted ? MarkedPastes::begin : MarkedPastes::end;
      // A last line that is empty was not meant as one.
      if (pasted && line->find_first_not_of(' ') == std::string::npos && whole.ends_with('\n')) whole.pop_back();
      continue;
    }
    whole += *line;
    if (!pasted) return whole;
    line = next_typed();
    if (!line) return std::nullopt;
    whole += '\n';
  }
}

// A terminal that hands over lines keeps one that is not finished to itself, where it could be edited, but not be seen.
void TypedLines::take_what_is_there() {
  termios before{};
  if (::tcgetattr(STDIN_FILENO, &before) != 0) return;
  termios at_once = before;
  at_once.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  at_once.c_cc[VMIN] = at_once.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &at_once);
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(STDIN_FILENO, bytes, sizeof bytes)) > 0;) {
    text_.append(bytes, static_cast<std::size_t>(count));
  }
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
  // So Ctrl-D looks then: the end at the beginning of a line, else nothing.
  for (std::size_t at = text_.find('\0'); at != std::string::npos; at = text_.find('\0', at)) {
    if (at == 0 || text_[at - 1] == '\n') {
      text_.resize(at);
      ended_ = true;
    } else {
      text_.erase(at, 1);
    }
  }
  taken_ = text_.size();
}

std::string TypedLines::begun() const {
  const auto last = [this](std::string_view mark) { return text_.rfind(mark) + 1; };  // 0 where there is none
  const bool pasting = last(MarkedPastes::begin) > last(MarkedPastes::end);
  return has_line() && !pasting ? "" : without_marks(text_);
}

std::optional<std::string> TypedLines::next_typed() {
  for (;;) {
    if (const std::size_t end = text_.find('\n'); end != std::string::npos) {
      std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      // What was taken before the line was finished, and the rest, each had the terminal's room for a line.
      const std::size_t before = taken_ <= end ? taken_ : 0;
      taken_ -= std::min(taken_, end + 1);
      const bool full = before >= longest || line.size() - before >= longest;
      lost_ = lost_ || (full && is_terminal(STDIN_FILENO));
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ended_) return text_.empty() ? std::nullopt : std::optional(std::exchange(text_, {}));
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&input, 1, 100);
    if (interrupt_requested()) return std::nullopt;
    if (ready <= 0) continue;
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count > 0) {
      text_.append(bytes, static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      ended_ = true;
    }
  }
}

}  // namespace inlay::cli
