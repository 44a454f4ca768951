#pragma once

#include "jinja/value.h"

namespace inlay::jinja {

// Text that grows within a budget: nothing that a template can ask for is made before it is known to fit.
class Builder {
 public:
  explicit Builder(Budget& budget) : budget_(budget) {}
  ~Builder() { budget_.give(text_.size()); }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  void append(std::string_view text) {
    budget_.spend_on_bytes(text.size());
    budget_.take(text.size());
    text_ += text;
  }
  void append(std::string_view text, std::size_t times);
  void append_point(char32_t point);

  Budget& budget() { return budget_; }
  const std::string& text() const { return text_; }
  std::size_t size() const { return text_.size(); }
  // The text, which the builder gives away.
  std::string release();
  Value finish(bool markup = false) { return make_string(&budget_, release(), markup); }

 private:
  Budget& budget_;
  std::string text_;
};

// str() and repr() of a value.
void append_text(Builder& out, const Value& value);
void append_repr(Builder& out, const Value& value);
std::string repr(Budget& budget, const Value& value);

// 0.1, 1e-07, 1e+16, inf: the fewest digits that read back as the same number, laid out as Python does.
std::string format_real(double value);
std::string format_integer(Integer value);

// A copy with < > & " ' written as HTML entities.
void append_escaped(Builder& out, std::string_view text);

}  // namespace inlay::jinja
