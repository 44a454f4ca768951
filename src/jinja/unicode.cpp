#include "jinja/unicode.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include <utf8proc.h>

namespace inlay::jinja {
namespace {

struct Run {
  std::uint32_t first, last;
};
struct Expansion {
  std::uint32_t point;
  const char* text;
};

#include "jinja/unicode_tables.inc"

bool in(std::span<const Run> runs, char32_t point) {
  const auto run = std::ranges::lower_bound(runs, point, {}, &Run::last);
  return run != runs.end() && run->first <= point;
}

utf8proc_category_t category_of(char32_t point) {
  return static_cast<utf8proc_category_t>(utf8proc_category(static_cast<utf8proc_int32_t>(point)));
}

bool append_expansion(std::string& text, std::span<const Expansion> expansions, char32_t point) {
  const auto found = std::ranges::lower_bound(expansions, point, {}, &Expansion::point);
  if (found == expansions.end() || found->point != point) return false;
  text += found->text;
  return true;
}

void append_upper(std::string& text, char32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point >= 'a' && point <= 'z' ? point - 'a' + 'A' : point);
    return;
  }
  if (append_expansion(text, to_upper, point)) return;
  append_utf8(text, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point))));
}

void append_title(std::string& text, char32_t point) {
  if (point < 0x80) return append_upper(text, point);
  if (append_expansion(text, to_title, point)) return;
  const auto title = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(point)));
  if (title == point && !is_title(point) && append_expansion(text, to_upper, point)) return;
  append_utf8(text, title);
}

bool is_cased(char32_t point) { return is_lower(point) || is_upper(point) || is_title(point); }

// Marks that do not part a word: a sigma before them is still not the last letter.
bool is_case_ignorable(char32_t point) {
  return point == '\'' || point == '.' || point == ':' || point == '^' || point == '`' || point == 0xb7 ||
         point == 0x2019 || (point >= 0x300 && point <= 0x36f);
}

// The capital sigma becomes another small letter at the end of a word.
bool is_final_sigma(std::string_view text, std::size_t begin, std::size_t end) {
  while (begin > 0) {
    const char32_t before = decode_back(text, begin);
    if (is_case_ignorable(before)) continue;
    if (!is_cased(before)) return false;
    while (end < text.size()) {
      const char32_t after = decode(text, end);
      if (!is_case_ignorable(after)) return !is_cased(after);
    }
    return true;
  }
  return false;
}

void append_lower(std::string& result, std::string_view text, std::size_t begin, std::size_t end, char32_t point) {
  constexpr char32_t capital_sigma = 0x3a3, final_sigma = 0x3c2;
  if (point < 0x80) {
    result += static_cast<char>(point >= 'A' && point <= 'Z' ? point - 'A' + 'a' : point);
  } else if (point == capital_sigma && is_final_sigma(text, begin, end)) {
    append_utf8(result, final_sigma);
  } else if (!append_expansion(result, to_lower, point)) {
    append_utf8(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
  }
}

}  // namespace

bool is_alphabetic(char32_t point) {
  const utf8proc_category_t category = category_of(point);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t point) { return category_of(point) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t point) { return is_decimal(point) || in(other_digits, point); }
bool is_numeric(char32_t point) {
  const utf8proc_category_t category = category_of(point);
  return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) || in(other_numerics, point);
}
bool is_lower(char32_t point) { return category_of(point) == UTF8PROC_CATEGORY_LL || in(other_lowercase, point); }
bool is_upper(char32_t point) { return category_of(point) == UTF8PROC_CATEGORY_LU || in(other_uppercase, point); }
bool is_title(char32_t point) { return category_of(point) == UTF8PROC_CATEGORY_LT; }
bool is_printable(char32_t point) {
  const utf8proc_category_t category = category_of(point);
  const bool separator = category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
  const bool other = category >= UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CN;
  return point == ' ' || !(separator || other);
}

bool is_space(char32_t point) {
  return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20) || point == 0x85 || point == 0xa0 ||
         point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
         point == 0x202f || point == 0x205f || point == 0x3000;
}

bool is_line_end(char32_t point) {
  return (point >= 0x0a && point <= 0x0d) || (point >= 0x1c && point <= 0x1e) || point == 0x85 || point == 0x2028 ||
         point == 0x2029;
}

std::string upper(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) append_upper(result, decode(text, at));
  return result;
}

std::string lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t point = decode(text, at);
    append_lower(result, text, begin, at, point);
  }
  return result;
}

std::string title(std::string_view text) {
  std::string result;
  bool after_letter = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t point = decode(text, at);
    if (after_letter) {
      append_lower(result, text, begin, at, point);
    } else {
      append_title(result, point);
    }
    after_letter = is_cased(point);
  }
  return result;
}

std::string capitalize(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t point = decode(text, at);
    if (begin == 0) {
      append_title(result, point);
    } else {
      append_lower(result, text, begin, at, point);
    }
  }
  return result;
}

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

char32_t decode(std::string_view text, std::size_t& at) {
  const CodePoint point = code_point_at(text.data() + at);
  at += point.bytes;
  return point.value;
}

char32_t decode_back(std::string_view text, std::size_t& at) {
  at = previous_character(text, at);
  return code_point_at(text.data() + at).value;
}

std::size_t byte_of(std::string_view text, std::size_t point) {
  std::size_t at = 0;
  for (; point > 0 && at < text.size(); --point) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u);
  }
  return at;
}

}  // namespace inlay::jinja
