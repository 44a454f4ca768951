#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "train/engine.h"

namespace inlay::testing {

using Bytes = std::vector<std::byte>;

// Every tensor of the training state by its name, as it is.
inline std::map<std::string, Bytes> training_state(train::Engine& engine) {
  std::map<std::string, Bytes> result;
  engine.optimizer().for_each_state(engine.exec(), true, [&](const train::StateTensor& state) {
    Bytes& bytes = result[state.name];
    bytes.resize(state.share.bytes());
    state.home.download(bytes.data(), state.share);
  });
  return result;
}

}  // namespace inlay::testing
