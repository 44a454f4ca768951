#include "io/hash.h"

#include <algorithm>
#include <cstring>

namespace inlay::io {
namespace {

// Odd constants with their bits well spread: the fractional parts of the golden ratio, sqrt 2, sqrt 3, sqrt 5 and
// sqrt 7.
constexpr std::array<std::uint64_t, 5> salts = {0x9E3779B97F4A7C15u, 0x6A09E667F3BCC909u, 0xBB67AE8584CAA73Bu,
                                                0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u};

// The two halves of a 128-bit product, folded: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t load(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

}  // namespace

Hasher::Hasher(std::uint64_t seed) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) lanes_[lane] = mix(seed ^ salts[lane], salts[4] + lane);
}

// Each lane takes 16 bytes. The lane's state is added after the product, so that a word that happens to meet its salt
// and makes the product zero cannot erase what came before.
void Hasher::absorb(const std::byte* block) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::uint64_t a = load(block + 16 * lane), b = load(block + 16 * lane + 8);
    const std::uint64_t state = lanes_[lane];
    lanes_[lane] = mix(a ^ state, b ^ salts[lane]) + ((state << 29) | (state >> 35)) * salts[4];
  }
}

Hasher& Hasher::update(std::span<const std::byte> bytes) {
  length_ += bytes.size();
  if (pending_bytes_ > 0) {
    const std::size_t taken = std::min(bytes.size(), block_bytes - pending_bytes_);
    std::copy_n(bytes.begin(), taken, pending_.begin() + static_cast<std::ptrdiff_t>(pending_bytes_));
    pending_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (pending_bytes_ < block_bytes) return *this;
    absorb(pending_.data());
    pending_bytes_ = 0;
  }
  for (; bytes.size() >= block_bytes; bytes = bytes.subspan(block_bytes)) absorb(bytes.data());
  std::ranges::copy(bytes, pending_.begin());
  pending_bytes_ = bytes.size();
  return *this;
}

std::uint64_t Hasher::digest() const {
  Hasher last = *this;
  std::fill(last.pending_.begin() + static_cast<std::ptrdiff_t>(pending_bytes_), last.pending_.end(), std::byte{0});
  if (pending_bytes_ > 0) last.absorb(last.pending_.data());  // zeros as padding; the length below tells them apart
  std::uint64_t result = mix(length_ ^ salts[0], salts[4]);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) result = mix(result ^ last.lanes_[lane], salts[lane]) + lane;
  return mix(result ^ (result >> 32), salts[4]);
}

std::uint64_t content_hash(std::span<const std::byte> bytes, std::uint64_t seed) {
  return Hasher(seed).update(bytes).digest();
}

}  // namespace inlay::io
