#include "data/tokenizer/text_stream.h"

#include <algorithm>
#include <utility>

namespace inlay::data {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";
constexpr std::size_t patience = 8;  // tokens without one whole character: it will not come any more

}  // namespace

TextStream::TextStream(Tokenizer tokenizer, std::vector<std::int32_t> context, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), ids_(std::move(context)) {
  flush();
}

std::string TextStream::add(std::int32_t id) {
  ids_.push_back(id);
  const bool waits = tokenizer_.decode(ids_, skip_special_).ends_with(replacement) && ids_.size() - out_ < patience;
  return waits ? std::string() : flush();
}

std::string TextStream::finish() { return flush(); }

std::string TextStream::flush() {
  const std::string all = tokenizer_.decode(ids_, skip_special_);
  std::string fresh = all.substr(std::min(out_bytes_, all.size()));
  if (!fresh.empty()) ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(out_));
  out_ = ids_.size();
  out_bytes_ = tokenizer_.decode(ids_, skip_special_).size();
  return fresh;
}

}  // namespace inlay::data
