#pragma once

#include <vector>

#include "core/batch.h"

// How formats put documents together.
namespace inlay::data {

bool has_labels(const Document& document);

// Adds tokens; what is trained has labels.
void append(Document& document, const std::vector<std::int32_t>& ids, bool trained);

// Nothing precedes the first token, so nothing could predict it: = ignore_label.
void mask_first(Document& document);

}  // namespace inlay::data
