#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/batch.h"
#include "data/formats/row.h"
#include "data/token_arrays.h"

// Rows of type tokens: `input_ids`, and `labels` of the same length where they differ from the tokens (-100: nothing is
// learned there). Labels stand at their tokens' positions; the first is always masked, for nothing precedes it. An
// `attention_mask` must be all ones (documents are not padded here); other keys are left alone. Every mistake is a
// UserError that reads `file:line: key: what is wrong`.
namespace inlay::data {

// Reads a line in the plain form that tokenizers write: an object of integer arrays and simple strings. Gives up, and
// returns false, at anything it does not know; that is no verdict on the line.
bool read_token_line(std::string_view line, TokenArrays& arrays);

// The same of any row.
TokenArrays token_arrays(const Row& row);

// The document that arrays make; where is "file:line".
Document token_document(TokenArrays arrays, const std::string& where, std::int64_t vocab_size);

}  // namespace inlay::data
