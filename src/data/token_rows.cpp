#include "data/token_rows.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/error.h"
#include "data/line_reader.h"

namespace inlay::data {

Document make_document(TokenArrays arrays, const std::string& where, std::int64_t vocab_size) {
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

std::vector<Document> read_jsonl(const std::filesystem::path& path, std::int64_t vocab_size, const Progress& progress,
                                 const BadLine& bad_line) {
  INLAY_ASSERT(vocab_size > 0, "a vocabulary of {} tokens", vocab_size);
  LineReader reader(path);
  std::vector<Document> documents;
  TokenArrays arrays;
  std::uint64_t reported = 0;
  while (const auto line = reader.next()) {
    const std::string where = fmt::format("{}:{}", reader.path(), reader.line());
    try {
      if (!parse_line_quickly(*line, arrays)) parse_line_fully(*line, where, arrays);
      documents.push_back(make_document(std::move(arrays), where, vocab_size));
    } catch (const UserError& error) {
      if (!bad_line) throw;
      bad_line(error.what());
    }
    if (progress && reader.bytes_read() != reported) {
      reported = reader.bytes_read();
      progress(reported);
    }
  }
  if (documents.empty()) user_error("{}: holds no documents", reader.path());
  return documents;
}

}  // namespace inlay::data
