#include "weights/rank.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace inlay::weights {

std::int64_t trainable_rank(double ratio, std::int64_t full) {
  INLAY_ASSERT(full > 0 && ratio > 0 && ratio <= 1, "a share of {} of {} directions", ratio, full);
  const std::int64_t unit = full >= 512 ? 64 : full >= 128 ? 16 : full >= 64 ? 8 : 1;
  const auto wanted = std::max<std::int64_t>(1, std::llround(ratio * static_cast<double>(full)));
  return std::min(full, (wanted + unit - 1) / unit * unit);
}

}  // namespace inlay::weights
