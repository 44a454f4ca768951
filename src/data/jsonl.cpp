#include "data/jsonl.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/error.h"
#include "data/line_reader.h"

namespace inlay::data {

Document make_document(const LineArrays& arrays, const std::string& where, std::int64_t vocab_size) {
  const auto& ids = arrays.input_ids.values;
  const auto& labels = arrays.labels.values;
  const auto fail = [&](std::string_view key, const std::string& message) {
    user_error("{}: {}: {}", where, key, message);
  };
  if (!arrays.input_ids.present) fail("input_ids", "missing, expected an array of token ids");
  if (ids.empty()) fail("input_ids", "is empty, expected at least one token");
  const auto outside = [&](std::int64_t id) { return id < 0 || id >= vocab_size; };
  if (const auto bad = std::ranges::find_if(ids, outside); bad != ids.end()) {
    fail(fmt::format("input_ids[{}]", bad - ids.begin()),
         fmt::format("token id {} is outside the model's vocabulary, 0 to {}", *bad, vocab_size - 1));
  }

  Document document;
  document.input_ids.assign(ids.begin(), ids.end());
  if (arrays.labels.present) {
    if (labels.size() != ids.size()) {
      fail("labels", fmt::format("has {} entries for {} input_ids", labels.size(), ids.size()));
    }
    const auto wrong = [&](std::int64_t label) { return label != ignore_label && outside(label); };
    if (const auto bad = std::ranges::find_if(labels, wrong); bad != labels.end()) {
      fail(fmt::format("labels[{}]", bad - labels.begin()),
           fmt::format("label {} is neither {} nor in the model's vocabulary, 0 to {}", *bad, ignore_label,
                       vocab_size - 1));
    }
    document.labels.assign(labels.begin(), labels.end());
  } else {
    document.labels = document.input_ids;
  }
  document.labels.front() = ignore_label;  // nothing precedes it that could predict it

  if (arrays.attention_mask.present) {
    const auto& mask = arrays.attention_mask.values;
    if (mask.size() != ids.size()) {
      fail("attention_mask", fmt::format("has {} entries for {} input_ids", mask.size(), ids.size()));
    }
    if (const auto bad = std::ranges::find_if(mask, [](std::int64_t m) { return m != 1; }); bad != mask.end()) {
      fail(fmt::format("attention_mask[{}]", bad - mask.begin()),
           fmt::format("is {}: documents must not be padded, leave the padding out of input_ids", *bad));
    }
  }
  return document;
}

std::vector<Document> read_jsonl(const std::filesystem::path& path, std::int64_t vocab_size, const Progress& progress,
                                 const BadLine& bad_line) {
  INLAY_ASSERT(vocab_size > 0, "a vocabulary of {} tokens", vocab_size);
  LineReader reader(path);
  std::vector<Document> documents;
  LineArrays arrays;
  std::uint64_t reported = 0;
  while (const auto line = reader.next()) {
    const std::string where = fmt::format("{}:{}", reader.path(), reader.line());
    try {
      if (!parse_line_quickly(*line, arrays)) parse_line_fully(*line, where, arrays);
      documents.push_back(make_document(arrays, where, vocab_size));
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
