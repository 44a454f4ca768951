#pragma once

#include "core/batch.h"
#include "data/formats/row.h"

namespace inlay::data {

// What another model has predicted, as axolotl's distillation reads it: `logprobs` (or whatever the field is called),
// at each position a list of log-probabilities, with `target_token_ids` beside them; or a list of {"token":
// "token_id:17", "logprob": -0.3} in one. The last entry belongs to the last token; where there are fewer entries than
// tokens, the first tokens have none. An entry says how likely its token was, given those before it.
KeptPredictions read_kept(const Row& row, const std::string& field, std::size_t tokens, std::int64_t vocab);

}  // namespace inlay::data
