#include "data/answers.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace inlay::data {

namespace {

// Templates put a token or two that are not learned between an answer and the token that ends it.
constexpr std::size_t max_gap = 3;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
// Around a text they are no part of what it says.
bool is_sign(char c) { return std::string_view(".,;:!?'\"`*()[]{}").find(c) != std::string_view::npos; }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Whether the point at i begins a number, as in ".5": not in "no.5", nor after other points.
bool begins_number(std::string_view text, std::size_t i) {
  return text[i] == '.' && i + 1 < text.size() && is_digit(text[i + 1]) &&
         (i == 0 || !(is_letter(text[i - 1]) || is_digit(text[i - 1]) || text[i - 1] == '.'));
}

// "1,234,567": up to three digits, and groups of exactly three. "(3,5)" has two numbers.
bool has_thousands(std::string_view digits) {
  const std::size_t first = digits.find(',');
  if (first == 0 || first > 3 || (digits.size() - first) % 4 != 0) return false;
  for (std::size_t i = first; i < digits.size(); ++i) {
    if ((digits[i] == ',') != ((i - first) % 4 == 0)) return false;
  }
  return true;
}

std::string without_thousands(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      result += text[i++];
      continue;
    }
    const std::size_t end = std::min(text.find_first_not_of("0123456789,", i), text.size());
    std::string_view digits = text.substr(i, end - i);
    while (digits.back() == ',') digits.remove_suffix(1);  // it follows the number
    const bool decimals =
        i > 0 && text[i - 1] == '.' && (begins_number(text, i - 1) || (i > 1 && is_digit(text[i - 2])));
    const bool grouped = !decimals && has_thousands(digits);
    std::ranges::copy_if(digits, std::back_inserter(result), [&](char c) { return !grouped || c != ','; });
    i += digits.size();
  }
  return result;
}

std::string normalised(std::string_view text) {
  std::string result;
  for (const char c : without_thousands(text)) {
    if (is_space(c)) {
      if (!result.empty() && result.back() != ' ') result += ' ';
    } else {
      result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  const auto outside = [](char c) { return is_sign(c) || c == ' '; };
  auto begin = std::ranges::find_if_not(result, outside);
  if (begin != result.begin() && begins_number(result, static_cast<std::size_t>(begin - result.begin()) - 1)) --begin;
  const auto end = std::find_if_not(result.rbegin(), std::make_reverse_iterator(begin), outside).base();
  return {begin, end};
}

// Nothing where the marker is missing.
std::optional<std::string> counted_part(std::string_view text, const AnswerRule& rule) {
  if (!rule.marker.empty()) {
    const std::size_t at = text.rfind(rule.marker);
    if (at == text.npos) return std::nullopt;
    text.remove_prefix(at + rule.marker.size());
  }
  return normalised(text);
}

std::optional<double> last_number(std::string_view text) {
  const auto last = std::find_if(text.rbegin(), text.rend(), is_digit);
  if (last == text.rend()) return std::nullopt;
  const auto end = static_cast<std::size_t>(text.rend() - last);
  std::size_t begin = end - 1;
  const auto belongs = [&](std::size_t i) {
    return is_digit(text[i]) || (text[i] == '.' && i > 0 && is_digit(text[i - 1]));
  };
  while (begin > 0 && belongs(begin - 1)) --begin;
  if (begin > 0 && begins_number(text, begin - 1)) --begin;
  if (begin > 0 && text[begin - 1] == '-' && (begin < 2 || !is_digit(text[begin - 2]))) --begin;
  double value = 0;
  if (std::from_chars(text.data() + begin, text.data() + end, value).ec != std::errc()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Exchange> last_exchange(const Document& document) {
  const auto& labels = document.labels;
  std::size_t end = labels.size();
  while (end > 0 && !is_label(labels[end - 1])) --end;
  const auto run_before = [&](std::size_t at) {
    while (at > 0 && is_label(labels[at - 1])) --at;
    return at;
  };
  std::size_t begin = run_before(end);
  // A label that stands alone may be what ends the answer. More than one is an answer: what was learned shortly before
  // it is a turn of its own, of which templates may leave but a token or two unlearned.
  if (end - begin == 1) {
    std::size_t gap = begin;
    while (gap > 0 && begin - gap < max_gap && !is_label(labels[gap - 1])) --gap;
    if (gap > 0 && is_label(labels[gap - 1])) begin = run_before(gap);
  }
  if (begin == end || begin == 0) return std::nullopt;
  const auto at = [&](std::size_t i) { return document.input_ids.begin() + static_cast<std::ptrdiff_t>(i); };
  return Exchange{.prompt = {at(0), at(begin)}, .answer = {at(begin), at(end)}};
}

std::optional<AnswerMatch> parse_match(std::string_view text) {
  for (const AnswerMatch match : {AnswerMatch::whole, AnswerMatch::contains, AnswerMatch::number}) {
    if (text == name_of(match)) return match;
  }
  return std::nullopt;
}

std::string_view name_of(AnswerMatch match) {
  switch (match) {
    case AnswerMatch::whole: return "whole";
    case AnswerMatch::contains: return "contains";
    case AnswerMatch::number: return "number";
  }
  return "";
}

bool agrees(std::string_view answer, std::string_view reference, const AnswerRule& rule) {
  const auto said = counted_part(answer, rule), right = counted_part(reference, rule);
  if (!said || !right) return false;
  switch (rule.match) {
    case AnswerMatch::whole: return *said == *right;
    case AnswerMatch::contains: return !right->empty() && said->find(*right) != said->npos;
    case AnswerMatch::number: {
      const auto number = last_number(*right);
      return number && last_number(*said) == number;
    }
  }
  return false;
}

bool is_judged_by(std::string_view reference, const AnswerRule& rule) { return agrees(reference, reference, rule); }

}  // namespace inlay::data
