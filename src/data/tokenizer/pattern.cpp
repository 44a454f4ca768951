#include "data/tokenizer/pattern.h"

#include <pcre2.h>
#include <time.h>

#include <array>
#include <optional>

#include "core/error.h"
#include "core/utf8.h"
#include "data/tokenizer/onig_syntax.h"

namespace inlay::data::tokenizer {

namespace {

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

std::shared_ptr<const pcre2_code> compile(const io::Json& json, const std::string& source) {
  const std::string pattern = pcre2_pattern(json, source);
  const std::shared_ptr<pcre2_compile_context> context(pcre2_compile_context_create(nullptr),
                                                       pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code == nullptr) {
    json.fail(fmt::format("not a regular expression that PCRE2 knows: {} (at byte {} of {})", message_of(error), offset,
                          io::in_quotes(pattern)));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT the interpreter gives the same matches
  return {code, pcre2_code_free};
}

}  // namespace

Pattern Pattern::parse(const io::Json& json) {
  const auto literal = json.find("String"), expression = json.find("Regex");
  if (literal.has_value() == expression.has_value() || json.keys().size() != 1) {
    json.fail("expected {\"String\": \"...\"} or {\"Regex\": \"...\"}");
  }
  const io::Json& source = literal ? *literal : *expression;
  if (source.as_string().empty()) source.fail("is empty, expected something to look for");
  if (expression) return regex(source, source.as_string());
  Pattern pattern;
  pattern.source_ = source.as_string();
  pattern.place_ = fmt::format("{}: {}", source.source(), source.path());
  return pattern;
}

Pattern Pattern::regex(const io::Json& json, std::string source) {
  Pattern pattern;
  pattern.code_ = compile(json, source);
  pattern.source_ = std::move(source);
  pattern.place_ = fmt::format("{}: {}", json.source(), json.path());
  return pattern;
}

namespace {

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

// Looks for one expression in one text. PCRE2 bounds the steps from one place in the text only, so it is asked place by
// place, and the time for all of them is bounded here.
class Pattern::Search {
 public:
  Search(const Pattern& pattern, std::string_view text)
      : pattern_(pattern),
        text_(text),
        data_(pcre2_match_data_create_from_pattern(pattern.code_.get(), nullptr), pcre2_match_data_free),
        context_(pcre2_match_context_create(nullptr), pcre2_match_context_free) {
    // A few steps for every byte of the longest match there can be, and plenty for a short text.
    pcre2_set_match_limit(context_.get(), static_cast<std::uint32_t>(1'000'000 + 4 * text.size()));
    pcre2_set_heap_limit(context_.get(), 512 << 10);  // in KiB
  }

  // The match at `place` or the next one behind it.
  bool find(std::size_t place, Piece& match) {
    for (; place <= text_.size(); place += place < text_.size() ? code_point_at(text_.data() + place).bytes : 1) {
      if (++tries_ % 16 == 0 && thread_seconds() > deadline_) give_up("it takes too long");
      int status = match_at(place, 0);
      if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = match_at(place, PCRE2_NO_JIT);  // its stack is on the heap
      if (status == PCRE2_ERROR_NOMATCH) continue;
      if (status < 0) give_up(message_of(status));
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
      if (ends[0] != place || ends[1] < place) give_up("\\K is not supported");
      match = make_piece(ends[0], ends[1]);
      return true;
    }
    return false;
  }

 private:
  int match_at(std::size_t place, std::uint32_t options) {
    return pcre2_match(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), place,
                       options | PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }
  [[noreturn]] void give_up(std::string_view reason) const {
    user_error("{}: gives up on a text of {} bytes: {}", pattern_.place_, text_.size(), reason);
  }

  const Pattern& pattern_;
  std::string_view text_;
  std::shared_ptr<pcre2_match_data> data_;
  std::shared_ptr<pcre2_match_context> context_;
  std::uint64_t tries_ = 0;
  double deadline_ = thread_seconds() + 5.0 + 2e-6 * static_cast<double>(text_.size());
};

void Pattern::find(std::string_view text, std::vector<Piece>& matches) const {
  if (!code_) {
    for (std::size_t at = text.find(source_); at != text.npos; at = text.find(source_, at + source_.size())) {
      matches.push_back(make_piece(at, at + source_.size()));
    }
    return;
  }
  Search search(*this, text);
  std::optional<std::size_t> last_end;
  Piece match;
  for (std::size_t at = 0; search.find(at, match);) {
    if (match.begin == match.end && match.end == last_end) {
      at += at < text.size() ? code_point_at(text.data() + at).bytes : 1;
      continue;
    }
    matches.push_back(match);
    at = match.end;
    last_end = match.end;
  }
}

std::string Pattern::replaced(std::string_view text, std::string_view content) const {
  std::vector<Piece> matches;
  find(text, matches);
  if (content.size() > 64 && matches.size() > (64 * text.size() + (std::size_t{1} << 20)) / content.size()) {
    user_error("{}: {} matches, each replaced by {} bytes: too much text", place_, matches.size(), content.size());
  }
  std::string result;
  result.reserve(text.size() + matches.size() * content.size());
  std::size_t at = 0;
  for (const Piece match : matches) {
    result.append(text.substr(at, match.begin - at)).append(content);
    at = match.end;
  }
  return result.append(text.substr(at));
}

}  // namespace inlay::data::tokenizer
