#include "model/block_answer.h"

#include "model/norm_grads.h"
#include "ops/elementwise.h"

namespace inlay::model {

using backend::Grad;

void BlockAnswer::forward(Exec& exec, View to, ConstView answer) const {
  if (config_.output_norms) {
    ops::rms_norm_forward(exec, to, answer, norm_.value, {config_.norm_eps, config_.norm_offset});
    answer = to;
  }
  if (config_.residual_scale != 1) ops::scale(exec, to, answer, config_.residual_scale);
}

ConstView BlockAnswer::backward(Exec& exec, ConstView dout, ConstView answer) const {
  const bool scaled = config_.residual_scale != 1;
  if (!config_.output_norms && !scaled) return dout;
  const View gradient = exec.arena().scratch("answer gradient", dout.dtype(), dout.shape());
  if (scaled) {
    ops::scale(exec, gradient, dout, config_.residual_scale);
    dout = gradient;
  }
  if (config_.output_norms) {
    ops::rms_norm_backward(exec, norm_grads(gradient, Grad::overwrite, norm_), dout, answer, norm_.value,
                           {config_.norm_eps, config_.norm_offset});
  }
  return gradient;
}

}  // namespace inlay::model
