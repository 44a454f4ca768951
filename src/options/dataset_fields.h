#pragma once

#include "options/fields.h"

// The keys of an entry of `datasets`: how one file is read.
namespace inlay::options::option {

// A list of them: "a.jsonl", [a.jsonl, b.jsonl], or [{path: a.jsonl, type: alpaca}].
Field datasets(std::string name, std::vector<data::DatasetOptions> TrainOptions::*member, std::string meaning);

// Their keys, for the reference. They are fields of options that have a single dataset.
const std::vector<Field>& dataset_fields();
const Field* find_dataset_field(const std::string& name);  // null: it is not one of them

}  // namespace inlay::options::option
