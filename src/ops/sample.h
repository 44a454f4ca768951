#pragma once

#include "ops/check.h"

namespace inlay::ops {

// How the next token is chosen. Random numbers belong to (seed, sequence, position, token) alone: they do not depend on
// what else is in the batch.
struct SampleSpec {
  float temperature = 0.0f;  // 0: the likeliest token, the lowest id where several are; else softmax(logits / it)
  std::uint64_t seed = 0;
  std::int64_t first_sequence = 0;  // the number of row 0; row i is sequence first_sequence + i
  std::int64_t position = 0;        // of the logits in their sequences
  ConstView positions;              // int32 [B], in its place: each row's own, on the device
};

// ids[i] (int32 [B]) = a token drawn by the logits of row i, fp32 [B, V]; rows may be strided. A token whose logit is
// −∞ or NaN is never drawn (0 is, where all are). The noise has the same bits on both devices, so the same logits give
// the same ids; logits that differ in their last bits give another id only where two tokens all but tie.
void sample(Exec& exec, View ids, ConstView logits, const SampleSpec& spec);

// Makes −∞ of all logits outside the nucleus: the fewest likeliest tokens that have the share top_p of what
// softmax(logits / temperature) gives to all. Of equally likely tokens those of lower ids come first. logits as above;
// temperature is positive.
void keep_nucleus(Exec& exec, View logits, float temperature, float top_p);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void sample(Exec& exec, View ids, ConstView logits, const SampleSpec& spec);
}  // namespace cpu

namespace cuda {
void sample(Exec& exec, View ids, ConstView logits, const SampleSpec& spec);
void keep_nucleus(Exec& exec, View logits, float temperature, float top_p);
}  // namespace cuda

}  // namespace inlay::ops
