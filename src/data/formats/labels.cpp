#include "data/formats/labels.h"

#include <algorithm>

namespace inlay::data {

bool has_labels(const Document& document) {
  return std::ranges::any_of(document.labels, [](std::int32_t label) { return is_label(label); });
}

void append(Document& document, const std::vector<std::int32_t>& ids, bool trained) {
  document.input_ids.insert(document.input_ids.end(), ids.begin(), ids.end());
  if (trained) {
    document.labels.insert(document.labels.end(), ids.begin(), ids.end());
  } else {
    document.labels.insert(document.labels.end(), ids.size(), ignore_label);
  }
}

void mask_first(Document& document) {
  if (!document.labels.empty()) document.labels.front() = ignore_label;
}

}  // namespace inlay::data
