#include "adapter/regex.h"

#include <pcre2.h>

#include <array>

#include "core/error.h"

namespace inlay::adapter {

namespace {

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Regex::Regex(const std::string& pattern, std::string place) : place_(std::move(place)) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    user_error("{}: '{}' is not a regular expression: {} (at byte {})", place_, pattern, message_of(error), offset);
  }
  code_ = {code, pcre2_code_free};
}

bool Regex::matches(std::string_view name) const {
  const std::shared_ptr<pcre2_match_data> data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const int found =
      pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, data.get(), nullptr);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) user_error("{}: cannot be matched: {}", place_, message_of(found));
  return found >= 0;
}

}  // namespace inlay::adapter
