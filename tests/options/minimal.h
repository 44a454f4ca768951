#pragma once

#include <string>

#include "options/train_options.h"
#include "support/files.h"

namespace inlay::options {

// What a configuration must have.
inline const std::string minimal = "base_model: m\noutput_dir: o\ndatasets: [{path: d.jsonl}]\nlearning_rate: 1e-4\n";

inline TrainOptions parsed_whole(const std::string& yaml, const Overrides& overrides = {}) {
  return parse_options(yaml, "run.yaml", overrides);
}
inline std::string error_of_whole(const std::string& yaml, const Overrides& overrides = {}) {
  return inlay::testing::user_error_of([&] { parsed_whole(yaml, overrides); });
}

// The same of one that has more.
inline TrainOptions parsed(const std::string& more) { return parsed_whole(minimal + more); }
inline std::string error_of(const std::string& more) { return error_of_whole(minimal + more); }

}  // namespace inlay::options
