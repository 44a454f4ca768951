#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/batch.h"
#include "data/token_line.h"

namespace inlay::data {

// Called now and then with the bytes read so far.
using Progress = std::function<void(std::uint64_t bytes_read)>;
// Called with the message about a line that is left out.
using BadLine = std::function<void(const std::string& message)>;

// Reads tokenized documents, one JSON object a line: `input_ids`, and `labels` of the same length where they differ
// from the tokens (-100: nothing is learned there). Labels stand at their tokens' positions; the first is always
// masked, for nothing precedes it. An `attention_mask` must be all ones (documents are not padded here); other keys are
// left alone, and so are blank lines. Every mistake is a UserError that reads `file:line: key: what is wrong`; where
// bad_line is given, it gets the message instead, and reading goes on with the next line.
std::vector<Document> read_jsonl(const std::filesystem::path& path, std::int64_t vocab_size,
                                 const Progress& progress = {}, const BadLine& bad_line = {});

// The document that arrays make; where is "file:line".
Document make_document(TokenArrays arrays, const std::string& where, std::int64_t vocab_size);

}  // namespace inlay::data
