#include "core/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "core/environment.h"

namespace inlay {

bool is_terminal(int descriptor) {
  const auto kind = environment("TERM");
  return ::isatty(descriptor) == 1 && kind && *kind != "dumb";
}

bool wants_colour(int descriptor) { return is_terminal(descriptor) && !environment("NO_COLOR"); }

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
