#pragma once

#include <filesystem>
#include <vector>

#include "core/batch.h"
#include "data/tokenizer/tokenizer.h"

namespace inlay::data {

// A text file as documents of `length` tokens each, one after the other (the last may be shorter), at most `most` of
// them; each begins as the tokenizer has texts begin. Every token but a document's first is a label. A file without
// text is a UserError.
std::vector<Document> read_text(const std::filesystem::path& path, const Tokenizer& tokenizer, std::int64_t length,
                                std::int64_t most);

}  // namespace inlay::data
