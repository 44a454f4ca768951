#include "cli/typed_lines.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "core/interrupt.h"

namespace inlay::cli {

std::optional<std::string> TypedLines::next() {
  for (;;) {
    if (const std::size_t end = text_.find('\n'); end != std::string::npos) {
      std::string line = text_.substr(0, end);
      text_.erase(0, end + 1);
      lost_ = lost_ || (line.size() >= longest && ::isatty(STDIN_FILENO) == 1);
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
