#include "data/tokenizer/text_stream.h"

#include <algorithm>
#include <utility>

#include "core/utf8.h"

namespace inlay::data {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";
constexpr std::size_t patience = 8;  // tokens without one whole character: it will not come any more

}  // namespace

TextStream::TextStream(Tokenizer tokenizer, std::vector<std::int32_t> context, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), window_(std::move(context)) {
  flush_window();
}

std::string TextStream::add(std::int32_t id) {
  const auto bytes = tokenizer_.bytes(id);
  if (!bytes) return add_to_window(id);
  if (!skip_special_ || !tokenizer_.is_special(id)) bytes_ += *bytes;
  const std::string rest = bytes_.substr(whole_utf8_prefix(bytes_));
  bytes_.resize(bytes_.size() - rest.size());
  return repaired_utf8(std::exchange(bytes_, rest));
}

std::string TextStream::finish(bool cut) {
  if (!cut) return repaired_utf8(std::exchange(bytes_, {})) + flush_window();
  bytes_.clear();
  std::string rest = flush_window();
  while (rest.ends_with(replacement)) rest.resize(rest.size() - replacement.size());
  return rest;
}

std::string TextStream::add_to_window(std::int32_t id) {
  window_.push_back(id);
  const bool waits =
      tokenizer_.decode(window_, skip_special_).ends_with(replacement) && window_.size() - out_ < patience;
  return waits ? std::string() : flush_window();
}

std::string TextStream::flush_window() {
  const std::string all = tokenizer_.decode(window_, skip_special_);
  std::string fresh = all.substr(std::min(out_bytes_, all.size()));
  if (!fresh.empty()) window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(out_));
  out_ = window_.size();
  out_bytes_ = tokenizer_.decode(window_, skip_special_).size();
  return fresh;
}

}  // namespace inlay::data
