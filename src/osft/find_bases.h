#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/console.h"
#include "osft/basis_store.h"
#include "parallel/communicator.h"

namespace inlay::osft {

// The layout of a run and the directions it learns in.
struct FoundBases {
  OsftLayout layout;
  BasisStore bases;
  std::size_t device_peak = 0;  // of the search; 0 where the cache had them
};

// What a search must know of the run. Text comes through `read`, so that the search knows nothing of formats.
struct SearchInputs {
  OsftOptions osft;
  std::string base_model;
  std::uint64_t seed = 0;
  std::set<std::string> frozen;   // parameters that do not train anyway
  std::size_t device_budget = 0;  // bytes that the search may take
  // The documents of a file that calibration.data names, and everything that decides how it is read.
  std::function<std::vector<Document>(const std::string& file)> read;
  std::string reading;
  // The processes that search together: each passes some of the text through the model and finds the directions of some
  // targets, and all get all of them: those that one process finds.
  std::shared_ptr<parallel::Communicator> ranks = parallel::single_process();
};

// Decomposes the weights or calibrates on text, as the options say, or takes what an earlier run left in the cache: it
// is keyed by the weights' contents and everything else that decides the outcome. Throws Interrupted
// (core/interrupt.h) where Ctrl-C came.
FoundBases find_bases(const SearchInputs& inputs, const model::ModelConfig& config, Device device, DType compute,
                      const StepShape& step, Console& console);

// Memory that the search will take, without doing any of it.
std::size_t plan_bases(const SearchInputs& inputs, const model::ModelConfig& config, Device device, DType compute,
                       const StepShape& step);

}  // namespace inlay::osft
