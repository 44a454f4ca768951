#pragma once

#include "data/dataset.h"

namespace inlay::data {

// Where a dataset's documents are kept: a name made of everything they depend on, which is the content of the file and
// its ending, the options, and the model's tokenizer and template. Another content has another name, so nothing ever
// goes stale.
std::filesystem::path prepared_path(const DatasetOptions& dataset, const ReadContext& context);

}  // namespace inlay::data
