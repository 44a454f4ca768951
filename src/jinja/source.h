#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace inlay::jinja {

// A mistake in a template, or one that it raises itself: UserError with the place. The whole message reads
//   chat_template.jinja:3:14: 'foo' is undefined
//       {{- foo.bar }}
//               ^
class TemplateError : public UserError {
 public:
  TemplateError(const std::string& text, std::string message, std::size_t line, std::size_t column)
      : UserError(text), message_(std::move(message)), line_(line), column_(column) {}

  const std::string& message() const { return message_; }  // without the place
  std::size_t line() const { return line_; }
  std::size_t column() const { return column_; }  // in characters; both from 1

 private:
  std::string message_;
  std::size_t line_, column_;
};

// The text of a template, its lines ended by \n alone, and where a byte of it is.
class Source {
 public:
  static constexpr std::size_t max_bytes = std::size_t{512} << 10;

  // Text that is not UTF-8 or too long is a UserError.
  Source(std::string name, std::string_view text);

  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }
  std::size_t line_of(std::size_t at) const;
  [[noreturn]] void fail(std::size_t at, const std::string& message) const;

 private:
  std::string name_, text_;
};

}  // namespace inlay::jinja
