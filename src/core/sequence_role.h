#pragma once

#include <cstdint>

namespace inlay {

// What a sequence of a document is to the others of the same document, where preferences are learned.
enum class SequenceRole : std::int32_t {
  plain,
  chosen,  // followed by what was rejected
  rejected,
  desirable,  // judged alone
  undesirable,
  mismatched,  // the same prompt with another document's answer: follows the one it belongs to
  shown,       // a prompt that shows the document's answer, for a model to say it in its own words: follows it
};

}  // namespace inlay
