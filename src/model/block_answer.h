#pragma once

#include "model/config.h"
#include "ops/rms_norm.h"
#include "weights/parameter.h"

namespace inlay::model {

using backend::Exec;

// What a model does to the answer of attention or the MLP before it joins the residual stream: a norm, a factor, both,
// or nothing.
class BlockAnswer {
 public:
  BlockAnswer(const ModelConfig& config, weights::Parameter& norm) : config_(config), norm_(norm) {}

  // Whether the way back asks for the answer as it was.
  bool is_needed() const { return config_.output_norms; }
  // to = what joins the stream. `to` may be the answer, and must be where nothing is done to it.
  void forward(Exec& exec, View to, ConstView answer) const;
  // The answer's gradient from that of what joined the stream: the same where nothing is done to it, else in scratch.
  ConstView backward(Exec& exec, ConstView dout, ConstView answer) const;

 private:
  const ModelConfig& config_;
  weights::Parameter& norm_;
};

}  // namespace inlay::model
