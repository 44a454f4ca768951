#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "options/train_options.h"
#include "train/engine.h"

// What a model that is being trained answers to the prompts that the configuration names (sample_prompts).
namespace inlay::train {

class Samples {
 public:
  explicit Samples(const options::TrainOptions& options);

  // UserError where a prompt has a token that a model with that vocabulary does not have.
  void check_tokens(std::int64_t vocab) const;
  // Room for them in an engine.
  void announce(EngineOptions& engine) const;
  // An answer to each of the prompts, always by the likeliest tokens. All ranks of a run make the same ones together.
  std::vector<std::string> make(Engine& engine) const;
  const std::vector<std::string>& prompts() const { return prompts_; }

 private:
  std::vector<std::string> prompts_;
  data::Tokenizer tokenizer_;
  std::vector<std::vector<std::int32_t>> ids_;
  std::vector<std::int32_t> stops_;
  std::int64_t count_;
};

}  // namespace inlay::train
