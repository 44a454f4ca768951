#include "data/token_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

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

// An integer may be spelt 5.0. What no int64 holds is far outside any vocabulary: the nearest one says so as well.
std::optional<std::int64_t> integer_of(const io::Value& value) {
  using Limits = std::numeric_limits<std::int64_t>;
  if (const io::Integer* integer = value.integer()) {
    return static_cast<std::int64_t>(std::clamp<io::Integer>(*integer, Limits::min(), Limits::max()));
  }
  const double* real = value.real();
  if (real == nullptr || std::trunc(*real) != *real || std::abs(*real) > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

}  // namespace

bool read_token_line(std::string_view line, TokenArrays& arrays) {
  arrays = {};
  Cursor cursor(line);
  if (!cursor.take('{')) return false;
  std::array<std::string_view, 8> others;
  std::size_t other_count = 0;
  do {
    std::string_view key, ignored;
    if (!cursor.take_string(key) || !cursor.take(':')) return false;
    if (TokenArray* array = arrays.find(key)) {
      if (array->present || !cursor.take_integers(array->values)) return false;
      array->present = true;
    } else {
      // None of them twice, which is for the full reader to say; few have more than some.
      const auto seen = std::span(others).first(other_count);
      if (other_count == others.size() || std::ranges::find(seen, key) != seen.end()) return false;
      others[other_count++] = key;
      if (!cursor.take_string(ignored)) return false;
    }
  } while (cursor.take(','));
  if (!cursor.take('}')) return false;
  cursor.skip_space();
  return cursor.done();
}

TokenArrays token_arrays(const Row& row) {
  TokenArrays arrays;
  for (const char* key : {"input_ids", "labels", "attention_mask"}) {
    const auto found = row.find(key);
    if (!found) continue;
    if (!found->is_list()) found->fail_expected("an array of integers");
    TokenArray& array = *arrays.find(key);
    array.present = true;
    const io::Value::List& items = *found->value().list();
    array.values.reserve(items.size());
    for (const io::Value& item : items) {
      const auto value = integer_of(item);
      if (!value) found->element(array.values.size()).fail_expected("an integer");
      array.add(*value);
    }
  }
  return arrays;
}

Document token_document(TokenArrays arrays, const std::string& where, std::int64_t vocab_size) {
  const auto fail = [&](std::string_view key, const std::string& message) {
    user_error("{}: {}: {}", where, key, message);
  };
  const auto check_each = [&](std::string_view key, const TokenArray& array, auto is_wrong, auto message) {
    if (array.missing) fail(fmt::format("{}[{}]", key, *array.missing), "expected an integer, got null");
    const auto bad = std::ranges::find_if(array.values, is_wrong);
    if (bad == array.values.end()) return;
    const auto place = static_cast<std::size_t>(bad - array.values.begin());
    fail(fmt::format("{}[{}]", key, place), message(array.at(place)));
  };
  const std::size_t count = arrays.input_ids.values.size();
  const auto check_size = [&](std::string_view key, const TokenArray& array) {
    if (array.values.size() == count) return;
    fail(key, fmt::format("has {} entries for {} input_ids", array.values.size(), count));
  };
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= vocab_size; };

  if (!arrays.input_ids.present) fail("input_ids", "missing, expected an array of token ids");
  if (count == 0) fail("input_ids", "is empty, expected at least one token");
  check_each("input_ids", arrays.input_ids, outside, [&](std::int64_t id) {
    return fmt::format("token id {} is outside the model's vocabulary, 0 to {}", id, vocab_size - 1);
  });
  Document document{.input_ids = std::move(arrays.input_ids.values), .labels = {}};
  if (arrays.labels.present) {
    check_size("labels", arrays.labels);
    check_each(
        "labels", arrays.labels, [&](std::int32_t label) { return label != ignore_label && outside(label); },
        [&](std::int64_t label) {
          return fmt::format("label {} is neither {} nor in the model's vocabulary, 0 to {}", label, ignore_label,
                             vocab_size - 1);
        });
    document.labels = std::move(arrays.labels.values);
  } else {
    document.labels = document.input_ids;
  }
  document.labels.front() = ignore_label;  // nothing precedes it that could predict it
  if (arrays.attention_mask.present) {
    check_size("attention_mask", arrays.attention_mask);
    check_each(
        "attention_mask", arrays.attention_mask, [](std::int32_t mask) { return mask != 1; },
        [](std::int64_t mask) {
          return fmt::format("is {}: documents must not be padded, leave the padding out of input_ids", mask);
        });
  }
  return document;
}

}  // namespace inlay::data
