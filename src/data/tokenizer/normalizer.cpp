#include "data/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/characters.h"

namespace inlay::data::tokenizer {

namespace {

// Characters that NFC leaves as they are and that never join the character before them: no marks, no decomposition, no
// second part of a composition. Nearly all text consists of these; only what lies between them is left to utf8proc.
bool is_inert_in_nfc(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  constexpr std::array ranges = {Range{0x0391, 0x03A9},  Range{0x03B1, 0x03C9}, Range{0x0410, 0x0418},
                                 Range{0x041A, 0x0438},  Range{0x043A, 0x044F}, Range{0x2010, 0x2027},
                                 Range{0x2030, 0x205E},  Range{0x2500, 0x257F}, Range{0x3001, 0x3029},
                                 Range{0x3041, 0x304A},  Range{0x4E00, 0x9FFF}, Range{0xFF01, 0xFF60},
                                 Range{0x1F300, 0x1F64F}};
  if (c < 0x0300) return true;
  return std::any_of(ranges.begin(), ranges.end(), [c](Range r) { return c >= r.first && c <= r.last; });
}

// The first place at `from` or behind it whose character is inert, or is not; the end where there is none.
std::size_t find_inert(std::string_view text, std::size_t from, bool inert) {
  while (from < text.size()) {
    const CodePoint c = code_point_at(text.data() + from);
    if (is_inert_in_nfc(c.value) == inert) break;
    from += c.bytes;
  }
  return from;
}

std::string mapped(UnicodeForm form, std::string_view text) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, std::free);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  INLAY_ASSERT(length >= 0, "utf8proc: {}", utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(result), static_cast<std::size_t>(length));
}

std::optional<std::string> applied(UnicodeForm form, std::string_view text) {
  if (form != UnicodeForm::nfc) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return {};
    return mapped(form, text);
  }
  std::size_t begin = find_inert(text, 0, false), done = 0;
  if (begin == text.size()) return std::nullopt;
  std::string result;
  result.reserve(text.size());
  while (begin < text.size()) {
    const std::size_t end = find_inert(text, begin, true);
    if (begin > done) begin = previous_character(text, begin);  // which the first mark may join
    result.append(text.substr(done, begin - done));
    result.append(mapped(form, text.substr(begin, end - begin)));
    done = end;
    begin = find_inert(text, end, false);
  }
  return result.append(text.substr(done));
}

std::optional<std::string> applied(const Prepend& step, std::string_view text) {
  if (text.empty()) return std::nullopt;
  return step.content + std::string(text);
}

std::optional<std::string> applied(const Replace& step, std::string_view text) {
  return step.pattern.replaced(text, step.content);
}

std::optional<std::string> applied(const Lowercase&, std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.data() + at);
    at += c.bytes;
    if (c.value == 0x130) {
      result += "i\xCC\x87";  // the one character whose small form is two: i and a dot above
    } else {
      append_utf8(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    }
  }
  return result;
}

std::optional<std::string> applied(const StripSpace& step, std::string_view text) {
  while (step.left && !text.empty()) {
    const CodePoint c = code_point_at(text.data());
    if ((classes_of(c.value) & space) == 0) break;
    text.remove_prefix(c.bytes);
  }
  while (step.right && !text.empty()) {
    const std::size_t last = previous_character(text, text.size());
    if ((classes_of(code_point_at(text.data() + last).value) & space) == 0) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

std::optional<std::string> applied(const StripAccents&, std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text.data() + at);
    if (utf8proc_category(static_cast<utf8proc_int32_t>(c.value)) != UTF8PROC_CATEGORY_MN) {
      result.append(text.substr(at, c.bytes));
    }
    at += c.bytes;
  }
  return result;
}

}  // namespace

Normalizer Normalizer::parse(const io::Json& json) {
  Normalizer normalizer;
  normalizer.place_ = fmt::format("{}: {}", json.source(), json.path());
  normalizer.add(json);
  return normalizer;
}

void Normalizer::add(const io::Json& json) {
  const std::string type = json.expect_object().string("type");
  if (type == "Sequence") {
    for (const io::Json& step : json.array("normalizers")) add(step);
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{json.string("prepend")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{Pattern::parse(json.object("pattern")), json.string("content")});
  } else if (type == "NFC") {
    steps_.emplace_back(UnicodeForm::nfc);
  } else if (type == "NFD") {
    steps_.emplace_back(UnicodeForm::nfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(UnicodeForm::nfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(UnicodeForm::nfkd);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    steps_.emplace_back(StripSpace{json.boolean("strip_left"), json.boolean("strip_right")});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccents{});
  } else {
    json.fail("type",
              fmt::format("the normalizer {} is not supported; expected one of Sequence, Prepend, Replace, NFC, NFD, "
                          "NFKC, NFKD, Lowercase, Strip, StripAccents",
                          io::in_quotes(type)));
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& storage) const {
  const std::size_t limit = 64 * text.size() + (std::size_t{1} << 20);
  for (const Step& step : steps_) {
    if (text.size() > limit) user_error("{}: makes {} bytes from a short text: too much", place_, text.size());
    if (auto changed = std::visit([&](const auto& s) { return applied(s, text); }, step)) {
      storage = *std::move(changed);
      text = storage;
    }
  }
  return text;
}

}  // namespace inlay::data::tokenizer
