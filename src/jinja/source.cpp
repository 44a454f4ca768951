#include "jinja/source.h"

#include <algorithm>

#include "jinja/unicode.h"

namespace inlay::jinja {
namespace {

constexpr std::size_t window = 60;  // characters shown on each side of a place in a long line

}  // namespace

Source::Source(std::string name, std::string_view text) : name_(std::move(name)) {
  if (text.size() > max_bytes) {
    user_error("{}: a template of {} bytes, expected at most {}", name_, text.size(), max_bytes);
  }
  if (const std::size_t at = valid_utf8_prefix(text); at < text.size()) {
    user_error("{}: byte {} is not UTF-8", name_, at);
  }
  text_.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    text_ += text[i] == '\r' ? '\n' : text[i];
  }
  if (text_.ends_with('\n')) text_.pop_back();  // one newline at the end belongs to the file, not to the text
}

std::size_t Source::line_of(std::size_t at) const {
  at = std::min(at, text_.size());
  return 1 + static_cast<std::size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

void Source::fail(std::size_t at, const std::string& message) const {
  at = std::min(at, text_.size());
  const std::size_t before = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::size_t end = std::min(text_.find('\n', at), text_.size());
  const std::string_view head = std::string_view(text_).substr(begin, at - begin);
  const std::string_view tail = std::string_view(text_).substr(at, end - at);
  const std::size_t column = 1 + code_points(head);
  const std::size_t skipped = column - 1 > window ? byte_of(head, column - 1 - window) : 0;
  std::string shown = skipped > 0 ? "..." : "";
  shown += head.substr(skipped);
  const std::string pointer(code_points(shown), ' ');
  const std::size_t kept = byte_of(tail, window);
  shown += tail.substr(0, kept);
  if (kept < tail.size()) shown += "...";
  std::ranges::replace(shown, '\t', ' ');
  const std::size_t line = line_of(at);
  throw TemplateError(fmt::format("{}:{}:{}: {}\n    {}\n    {}^", name_, line, column, message, shown, pointer),
                      message, line, column);
}

}  // namespace inlay::jinja
