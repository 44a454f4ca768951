#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace inlay::backend::cpu {

// Calls body(begin, end) on every thread's own contiguous share of [0, count). Shares depend only on count, grain and
// the number of threads; below one grain the caller's thread does it all.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  const std::int64_t pieces =
      std::min<std::int64_t>(omp_get_max_threads(), (count + grain - 1) / std::max<std::int64_t>(grain, 1));
  if (pieces <= 1 || omp_in_parallel()) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(pieces)) schedule(static, 1)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    body(count * piece / pieces, count * (piece + 1) / pieces);
  }
}

}  // namespace inlay::backend::cpu
