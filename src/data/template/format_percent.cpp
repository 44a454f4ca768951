#include <cmath>

#include "data/template/format.h"
#include "data/template/operators.h"
#include "data/template/unicode.h"

namespace inlay::data::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, std::string_view format, const Value& values)
      : runtime_(runtime), format_(format), values_(values), out_(runtime.budget()) {}

  Value run(bool markup) {
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      out_.append(format_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent < format_.size()) field();
    }
    const bool may_stay = values_.dict() != nullptr || values_.is_list() || by_name_;
    const std::size_t given = values_.is_tuple() ? values_.sequence()->items.size() : 1;
    if (taken_ < given && !may_stay) fail("not all arguments converted during string formatting");
    return out_.finish(markup);
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) fail("incomplete format");
    return format_[at_];
  }

  Value next() {
    if (values_.is_tuple()) {
      const auto& items = values_.sequence()->items;
      if (taken_ < items.size()) return items[taken_++];
    } else if (taken_++ == 0) {
      return values_;
    }
    fail("not enough arguments for format string");
  }

  std::size_t size() {
    if (peek() != '*') return read_size(format_, at_);
    ++at_;
    const Value value = next();
    if (!value.integer() || *value.integer() < 0 || *value.integer() > (Integer{1} << 40)) fail("* wants a size");
    return static_cast<std::size_t>(*value.integer());
  }

  std::optional<Value> name() {
    if (peek() != '(') return std::nullopt;
    const std::size_t end = format_.find(')', at_);
    if (end == format_.npos) fail("incomplete format key");
    if (values_.dict() == nullptr) fail("format requires a mapping");
    const std::string_view key = format_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    by_name_ = true;
    const Value* found = values_.dict()->find(key);
    if (found == nullptr) fail("'{}'", key);
    return *found;
  }

  void field() {
    std::optional<Value> value = name();
    Layout layout;
    layout.align = '>';
    for (bool more = true; more;) {
      switch (peek()) {
        case '-': layout.align = '<'; break;
        case '0':
          if (layout.align != '<') layout.align = '=', layout.fill = "0";
          break;
        case '+': layout.sign = '+'; break;
        case ' ':
          if (layout.sign == '-') layout.sign = ' ';
          break;
        case '#': layout.alternate = true; break;
        default: more = false; --at_;
      }
      ++at_;
    }
    layout.width = size();
    if (peek() == '.') {
      ++at_;
      layout.precision = size();
    }
    if (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    layout.type = peek();
    ++at_;
    if (layout.type == '%') return out_.append("%");
    convert(layout, value ? *value : next());
  }

  void convert(Layout layout, const Value& value) {
    const std::string_view kinds = "sradiuoxXeEfFgGc";
    if (kinds.find(layout.type) == kinds.npos) fail("unsupported format character '{}'", layout.type);
    if (layout.type == 's' || layout.type == 'r' || layout.type == 'a') return convert_text(layout, value);
    if (layout.type == 'c' && value.string() != nullptr) {
      if (value.string()->length != 1) fail("%c requires int or char");
      layout.type = 's';
      return convert_text(layout, value);
    }
    require_defined(value);
    if (!value.number()) {
      fail("%{} format: a real number is required, not {}", layout.type, value.type());
    }
    if (std::string_view("eEfFgG").find(layout.type) != std::string_view::npos) {
      return append_real(out_, layout, *value.number());
    }
    if (layout.type == 'i' || layout.type == 'u') layout.type = 'd';
    append_integer(out_, layout, value.integer() ? *value.integer() : whole(layout, *value.number()));
  }

  static Integer whole(const Layout& layout, double value) {
    if (layout.type != 'd') fail("%{} format: an integer is required, not float", layout.type);
    if (!std::isfinite(value) || std::fabs(value) > 0x1p120) fail("cannot convert float to integer");
    return static_cast<Integer>(value);
  }

  void convert_text(Layout layout, const Value& value) {
    Builder text(runtime_.budget());
    if (layout.type == 's') {
      append_text(text, value);
    } else {
      append_repr(text, value);
    }
    layout.type = 's';
    layout.fill = " ";
    if (layout.align == '=') layout.align = '>';
    append_string(out_, layout, text.text());
  }

  Runtime& runtime_;
  std::string_view format_;
  const Value& values_;
  Builder out_;
  std::size_t at_ = 0, taken_ = 0;
  bool by_name_ = false;
};

}  // namespace

Value format_percent(Runtime& runtime, const String& format, const Value& values) {
  return PercentFormatter(runtime, format.text, values).run(format.markup);
}

}  // namespace inlay::data::jinja
