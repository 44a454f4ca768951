#include "core/finite.h"

#include <cstdint>
#include <cstring>

namespace inlay {

namespace {

// Whether every number's exponent is less than the largest, which infinities and NaN have. Eight bytes at a time and
// without a branch, so that it takes no longer than reading: an exponent of ones and its lowest one more carry into the
// sign's place, and no other exponent does.
template <class Bits>
bool finite(std::span<const std::byte> bytes, Bits exponent) {
  constexpr std::uint64_t everywhere = ~std::uint64_t{0} / static_cast<Bits>(~Bits{0});  // one in each number
  constexpr std::uint64_t signs = everywhere << (8 * sizeof(Bits) - 1);
  const std::uint64_t mask = everywhere * exponent, one = everywhere * static_cast<Bits>(exponent & -exponent);
  std::uint64_t bad = 0, bits = 0;
  std::size_t at = 0;
  for (; at + sizeof bits <= bytes.size(); at += sizeof bits) {
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    bad |= (bits & mask) + one;
  }
  bits = 0;
  std::memcpy(&bits, bytes.data() + at, bytes.size() - at);
  bad |= (bits & mask) + one;
  return (bad & signs) == 0;
}

}  // namespace

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  if (bytes.empty()) return true;
  switch (dtype) {
    case DType::f32: return finite<std::uint32_t>(bytes, 0x7F800000u);
    case DType::bf16: return finite<std::uint16_t>(bytes, 0x7F80u);
    case DType::f16: return finite<std::uint16_t>(bytes, 0x7C00u);
    default: return true;
  }
}

}  // namespace inlay
