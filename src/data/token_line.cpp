#include "data/token_line.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace inlay::data {
namespace {

// Walks over bytes; every step says whether what it wanted was there.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  bool done() const { return at_ == end_; }
  bool take(char wanted) {
    skip_space();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  // A string of printable ASCII without escapes.
  bool take_string(std::string_view& text) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"') {
      if (*at_ < 0x20 || *at_ > 0x7e || *at_ == '\\') return false;
      ++at_;
    }
    if (at_ == end_) return false;
    text = std::string_view(begin, static_cast<std::size_t>(at_ - begin));
    ++at_;
    return true;
  }

  // An array of integers of at most nine digits; whatever follows a number must be a comma or the end.
  bool take_integers(std::vector<std::int32_t>& values) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      skip_space();
      const bool negative = at_ != end_ && *at_ == '-';
      if (negative) ++at_;
      const char* first = at_;
      std::uint64_t value = 0;  // wraps around where there are too many digits, which are counted below
      while (at_ != end_ && static_cast<unsigned char>(*at_ - '0') < 10)
        value = 10 * value + static_cast<std::uint64_t>(*at_++ - '0');
      const auto digits = at_ - first;
      if (digits == 0 || digits > 9 || (digits > 1 && *first == '0')) return false;  // 007 is not JSON
      values.push_back(negative ? -static_cast<std::int32_t>(value) : static_cast<std::int32_t>(value));
    } while (take(','));
    return take(']');
  }

 private:
  const char* at_;
  const char* end_;
};

// Receives the events of the general parser. Depth 1 is inside the line's object, depth 2 inside one of its arrays.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  LineHandler(const std::string& where, TokenArrays& arrays) : where_(where), arrays_(arrays) {}

  bool null() override {
    if (depth_ == 1 && wanted_ != nullptr) {
      wanted_->present = false;  // null is as good as absent
      return true;
    }
    return scalar("null");
  }
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool string(std::string&) override { return scalar("a string"); }
  bool binary(binary_t&) override { return scalar("binary data"); }
  bool number_integer(std::int64_t value) override {
    if (!collecting()) return scalar("a number");
    wanted_->add(value);
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!collecting()) return scalar("a number");
    // What no int64 holds is far outside any vocabulary: the largest value says so as well.
    const auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    wanted_->add(static_cast<std::int64_t>(std::min(value, limit)));
    return true;
  }
  bool number_float(double value, const std::string& text) override {
    if (!collecting()) return scalar("a number");
    if (std::trunc(value) != value || std::abs(value) > 0x1p53) return scalar(text);
    wanted_->add(static_cast<std::int64_t>(value));
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ > 0) scalar("an object");
    return enter();
  }
  bool key(std::string& name) override {
    if (depth_ != 1) return true;
    name_ = name;
    wanted_ = arrays_.find(name);
    if (wanted_ != nullptr && wanted_->present) user_error("{}: {}: occurs twice", where_, name_);
    if (wanted_ != nullptr) wanted_->present = true;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || collecting()) scalar("an array");
    return enter();
  }
  bool end_array() override { return leave(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string_view what = error.what();  // "[json.exception...] parse error at line 1, column 2: syntax error ..."
    if (const auto at = what.find("syntax error"); at != what.npos) what.remove_prefix(at);
    if (what.size() > 240) what = what.substr(0, 240);
    user_error("{}: column {}: not valid JSON: {}", where_, position, what);
  }

 private:
  bool collecting() const { return depth_ == 2 && wanted_ != nullptr; }

  // A value that is no integer: an error where an integer or an array of them belongs, otherwise nobody's business.
  bool scalar(std::string_view what) {
    if (depth_ == 0) user_error("{}: expected an object with \"input_ids\" on every line, got {}", where_, what);
    if (depth_ == 1 && wanted_ != nullptr) {
      user_error("{}: {}: expected an array of integers, got {}", where_, name_, what);
    }
    if (collecting()) {
      user_error("{}: {}[{}]: expected an integer, got {}", where_, name_, wanted_->values.size(), what);
    }
    return true;
  }
  bool enter() {
    if (++depth_ > max_depth) user_error("{}: nested more than {} levels deep", where_, max_depth);
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  static constexpr int max_depth = 256;

  const std::string& where_;
  TokenArrays& arrays_;
  int depth_ = 0;
  std::string name_;              // of the member that is being read, at depth 1
  TokenArray* wanted_ = nullptr;  // where it goes
};

}  // namespace

bool parse_line_quickly(std::string_view line, TokenArrays& arrays) {
  arrays = {};
  Cursor cursor(line);
  if (!cursor.take('{')) return false;
  do {
    std::string_view key, ignored;
    if (!cursor.take_string(key) || !cursor.take(':')) return false;
    if (TokenArray* array = arrays.find(key)) {
      if (array->present || !cursor.take_integers(array->values)) return false;
      array->present = true;
    } else if (!cursor.take_string(ignored)) {
      return false;
    }
  } while (cursor.take(','));
  if (!cursor.take('}')) return false;
  cursor.skip_space();
  return cursor.done();
}

void parse_line_fully(std::string_view line, const std::string& where, TokenArrays& arrays) {
  arrays = {};
  LineHandler handler(where, arrays);
  nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
}

}  // namespace inlay::data
