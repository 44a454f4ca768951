#include "core/console.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "core/arena.h"
#include "core/terminal.h"
#include "core/text.h"

namespace inlay {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr int bar_width = 20;

// Left free at the end of a line that passes by, so that the ^C of whoever presses it does not break it.
constexpr std::size_t left_free = 4;

}  // namespace

Console::Console(bool quiet) : quiet_(quiet), terminal_(is_terminal(STDERR_FILENO)) {}

Console Console::passing(bool quiet) {
  Console console(quiet);
  console.passing_ = true;
  return console;
}

Console::~Console() { clear_status(); }

void Console::clear_status() {
  if (!status_shown_) return;
  std::fputs("\r\033[K", stderr);
  status_shown_ = false;
}

void Console::line(std::string_view text) {
  if (passing_) return status(text);
  if (quiet_) return;
  clear_status();
  fmt::print(stderr, "{}\n", text);
}

bool Console::fits(std::string_view text) const {
  const std::optional<std::size_t> width = live() ? terminal_width(STDERR_FILENO) : std::nullopt;
  return !width || first_characters(text, *width).size() == text.size();
}

void Console::status(std::string_view text, bool important) {
  if (quiet_) return;
  if (!terminal_) {
    if (important && !passing_) line(text);
    return;
  }
  const std::size_t width = std::max(terminal_width(STDERR_FILENO).value_or(100), 2 * left_free);
  fmt::print(stderr, "\r\033[K{}", first_characters(text, width - left_free));
  std::fflush(stderr);
  status_shown_ = true;
}

void Console::status(double share, std::string_view text, bool important) {
  // The bar passes by with the line; what stays in a log is the text.
  if (terminal_) return status(fmt::format("{} {}", progress_bar(share, bar_width), text));
  status(text, important);
}

void Console::progress(std::string_view what, std::uint64_t done, std::uint64_t total) {
  show_progress(what, static_cast<double>(done), static_cast<double>(total),
                total > 0 ? fmt::format("{} of {}", format_bytes(done), format_bytes(total)) : format_bytes(done));
}

void Console::progress_count(std::string_view what, std::int64_t done, std::int64_t total) {
  show_progress(what, static_cast<double>(done), static_cast<double>(total), fmt::format("{} of {}", done, total));
}

void Console::show_progress(std::string_view what, double done, double total, const std::string& amount) {
  if (quiet_) return;
  const double time = now();
  if (progress_what_ != what) {
    progress_what_ = what;
    progress_began_ = progress_shown_ = time;
  }
  const bool due = time - progress_began_ > 1.0 && time - progress_shown_ > (terminal_ ? 0.2 : 5.0);
  if (!due) return;
  progress_shown_ = time;
  std::string text = fmt::format("{} {}", what, amount);
  if (done > 0 && done < total) {
    text += fmt::format(", ETA {}", format_duration((time - progress_began_) * (total - done) / done));
  }
  if (total > 0) return status(done / total, text, true);
  status(text, true);
}

}  // namespace inlay
