#include "model/host_transpose.h"

#include <algorithm>

#include "backend/cpu/parallel.h"

namespace inlay::model {

namespace {

// In squares that stay in the cache.
template <class Word>
void transpose(Word* to, const ConstView& from) {
  constexpr std::int64_t square = 32;
  const std::int64_t rows = from.dim(0), columns = from.dim(1), ld = from.ld();
  const auto* source = static_cast<const Word*>(from.data());
  backend::cpu::parallel_for((columns + square - 1) / square, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c0 = first * square; c0 < std::min(last * square, columns); c0 += square) {
      for (std::int64_t r0 = 0; r0 < rows; r0 += square) {
        for (std::int64_t c = c0; c < std::min(c0 + square, columns); ++c) {
          for (std::int64_t r = r0; r < std::min(r0 + square, rows); ++r) to[c * rows + r] = source[r * ld + c];
        }
      }
    }
  });
}

}  // namespace

void host_transpose(std::byte* to, ConstView from) {
  INLAY_ASSERT(from.rank() == 2, "a matrix is turned round, not {}", from.shape().str());
  if (size_of(from.dtype()) == 4) return transpose(reinterpret_cast<std::uint32_t*>(to), from);
  INLAY_ASSERT(size_of(from.dtype()) == 2, "no matrix of {} is turned round", name_of(from.dtype()));
  transpose(reinterpret_cast<std::uint16_t*>(to), from);
}

}  // namespace inlay::model
