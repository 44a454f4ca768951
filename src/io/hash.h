#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace inlay::io {

// A fast 64-bit hash of content, to name caches by. Not cryptographic: it tells different weights apart, it does not
// withstand somebody who wants two files to collide. The value does not depend on how the bytes are cut into updates.
class Hasher {
 public:
  explicit Hasher(std::uint64_t seed = 0);

  Hasher& update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;

 private:
  static constexpr std::size_t block_bytes = 64;

  void absorb(const std::byte* block);

  std::array<std::uint64_t, 4> lanes_{};
  std::array<std::byte, block_bytes> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t length_ = 0;
};

std::uint64_t content_hash(std::span<const std::byte> bytes, std::uint64_t seed = 0);

}  // namespace inlay::io
