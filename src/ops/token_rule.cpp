#include "ops/token_rule.h"

#include "ops/kernels.h"

namespace inlay::ops {

void token_rule(Exec& exec, const RuledRows& rows, const TokenRuleSpec& spec) {
  INLAY_ASSERT(spec.rule != TokenRule::talr || !spec.temperature.absent(), "token_rule: talr without a temperature");
  INLAY_ASSERT(spec.most_likely >= 2, "token_rule: the entropy of {} probabilities", spec.most_likely);
  if (spec.rule == TokenRule::eaft) exec.count_bytes({rows.logits});
  if (exec.planning() || rows.logits.dim(0) == 0) return;
  exec.on_cuda() ? cuda::token_rule(exec, rows, spec) : cpu::kernels().token_rule(exec, rows, spec);
}

}  // namespace inlay::ops
