#pragma once

#include "ops/check.h"

namespace inlay::ops {

// out[t] = table[tokens[t]]; tokens int32 [T], in range (checked when the batch was made).
void embedding_forward(Exec& exec, View out, ConstView tokens, ConstView table);

// The positions of a batch sorted by token id (ties in order), so that equal tokens are summed in a fixed order without
// atomics. order int32 [T]; starts int32 [D + 1] where D is the number of distinct tokens; ids int32 [D].
struct TokenGroups {
  ConstView order, starts, ids;
};
// dtable (fp32 [V, H], contiguous) at the rows of the batch's tokens; overwrite clears the others first.
void embedding_backward(Exec& exec, View dtable, Grad mode, ConstView dout, const TokenGroups& groups);

// What the devices answer. Shapes are checked by then, and there is something to do (no empty tensors, no planning).
// embedding_backward here is +=: the table was cleared before, where it had to be.
namespace cpu {
void embedding_forward(Exec& exec, View out, ConstView tokens, ConstView table);
void embedding_backward(Exec& exec, View dtable, ConstView dout, const TokenGroups& groups);
}  // namespace cpu

namespace cuda {
void embedding_forward(Exec& exec, View out, ConstView tokens, ConstView table);
void embedding_backward(Exec& exec, View dtable, ConstView dout, const TokenGroups& groups);
}  // namespace cuda

}  // namespace inlay::ops
