#include "data/text_documents.h"

#include <algorithm>

#include "core/error.h"
#include "io/file.h"

namespace inlay::data {

std::vector<Document> read_text(const std::filesystem::path& path, const Tokenizer& tokenizer, std::int64_t length,
                                std::int64_t most) {
  const std::string text = io::read_file(path, Tokenizer::max_text_bytes);
  const std::vector<std::int32_t> ids = tokenizer.encode(text, false);
  if (ids.empty()) user_error("{}: there is no text in it", path.string());
  // What stands before a text, found on an empty one.
  const std::vector<std::int32_t> around = tokenizer.encode("", true);
  const bool begins = !around.empty() && tokenizer.bos() && around.front() == *tokenizer.bos();
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(length - (begins ? 1 : 0), 1));

  std::vector<Document> documents;
  for (std::size_t at = 0; at < ids.size() && static_cast<std::int64_t>(documents.size()) < most; at += room) {
    Document document;
    if (begins) document.input_ids.push_back(*tokenizer.bos());
    const std::size_t end = std::min(at + room, ids.size());
    document.input_ids.insert(document.input_ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                              ids.begin() + static_cast<std::ptrdiff_t>(end));
    document.labels = document.input_ids;
    document.labels.front() = ignore_label;
    documents.push_back(std::move(document));
  }
  return documents;
}

}  // namespace inlay::data
