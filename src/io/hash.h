#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace inlay::io {

// XXH3, 64 bits, piece by piece: names caches by their content and finds damaged files. Not cryptographic: it does not
// withstand somebody who wants two files to collide. The value does not depend on how the bytes are cut into updates.
class Hasher {
 public:
  explicit Hasher(std::uint64_t seed = 0);

  Hasher& update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

std::uint64_t content_hash(std::span<const std::byte> bytes, std::uint64_t seed = 0);

}  // namespace inlay::io
