#pragma once

#include <cstdint>
#include <vector>

#include "io/json.h"

namespace inlay::data::tokenizer {

// The special tokens around a text: the `post_processor` of a tokenizer.json, as it is for a single text.
struct PostProcessor {
  std::vector<std::int32_t> before, behind;

  // Kinds that are not supported are errors that name them.
  static PostProcessor parse(const io::Json& json);

 private:
  void add(const io::Json& json);
  void add_template(const io::Json& json);

  bool has_template_ = false;
};

}  // namespace inlay::data::tokenizer
