#pragma once

#include <memory>

#include "model/config.h"
#include "ops/attention/rules/rule.h"

namespace inlay::model {

// The rule of a layer, whose own window and softcap (0: none) hold all the same; nothing where no text is given and the
// scores stay as they are. Mistakes in the texts, and
// a head_bias that does not fit, are UserErrors.
std::shared_ptr<const ops::AttentionRule> attention_rule(const AttentionText& text, std::int64_t heads,
                                                         std::int64_t window, float softcap);

}  // namespace inlay::model
