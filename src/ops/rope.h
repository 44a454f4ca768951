#pragma once

#include "ops/check.h"

// Rotary position embedding. Pairs are (i, i + R/2), as in most Hugging Face models, or neighbours (2i, 2i + 1).
// `table` is fp32 [positions, R/2, 2]: cosine and sine, already scaled (see model/rope_table.h). R may be smaller than
// the head: the rest of the head passes unchanged.
namespace inlay::ops {

enum class Rotation : bool { forward, backward };  // backward rotates by the negative angle: the transpose
enum class RopePairs : bool { halves, neighbours };

// In place on x [T, heads, D]; positions int32 [T].
void rope(Exec& exec, View x, ConstView positions, ConstView table, Rotation rotation,
          RopePairs pairs = RopePairs::halves);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
namespace cpu {
void rope(Exec& exec, View x, ConstView positions, ConstView table, Rotation rotation, RopePairs pairs);
}  // namespace cpu

namespace cuda {
void rope(Exec& exec, View x, ConstView positions, ConstView table, Rotation rotation, RopePairs pairs);
}  // namespace cuda

}  // namespace inlay::ops
