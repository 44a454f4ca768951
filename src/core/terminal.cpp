#include "core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "core/environment.h"
#include "core/text.h"

namespace inlay {

bool is_terminal(int descriptor) {
  const auto kind = environment("TERM");
  return ::isatty(descriptor) == 1 && kind && *kind != "dumb";
}

bool wants_colour(int descriptor) { return is_terminal(descriptor) && !environment("NO_COLOR"); }

std::optional<std::size_t> terminal_width(int descriptor) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

namespace {

// Where a line goes on that begins with columns: behind the last gap in it, or below its own beginning.
std::size_t last_column_of(std::string_view line, std::size_t width) {
  constexpr std::size_t least = 20;  // columns of text; where there are fewer, a table of two columns is not one
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = line.find("  ", first);
  if (gap == line.npos) return first + least <= width ? first : 0;
  const std::size_t column = line.find_first_not_of(' ', gap);
  return column != line.npos && column + least <= width ? column : std::min(first + 4, width / 2);
}

// How much of the text fits into so many columns, by whole words; a word that is too long alone stays whole.
std::string_view first_words(std::string_view text, std::size_t columns) {
  const std::string_view fitting = first_characters(text, columns);
  if (fitting.size() == text.size()) return text;
  std::size_t end = text.rfind(' ', fitting.size());
  if (end == text.npos || text.find_first_not_of(' ') >= end) {
    end = text.find(' ', std::min(text.find_first_not_of(' '), text.size()));
  }
  return text.substr(0, end);
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n')) {
    const std::size_t indent = last_column_of(line, width);
    std::string_view rest = line;
    for (std::size_t used = 0;; used = indent) {
      const std::string_view part = first_words(rest, width - used);
      lines.push_back(std::string(used, ' ') + std::string(part));
      rest.remove_prefix(part.size());
      if (rest.find_first_not_of(' ') == rest.npos) break;
      rest.remove_prefix(rest.find_first_not_of(' '));
    }
  }
  return join(lines, "\n");
}

std::string_view first_characters(std::string_view text, std::size_t most) {
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
    if (begins && characters++ == most) return text.substr(0, at);
  }
  return text;
}

std::string progress_bar(double share, int width) {
  const int full = static_cast<int>(std::floor(std::clamp(share, 0.0, 1.0) * width));
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < full ? "━" : "╌";
  return bar;
}

}  // namespace inlay
