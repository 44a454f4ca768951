#pragma once

#include <cstdint>

// Random numbers for sampling: the entry with the largest logit / temperature + noise is drawn with the softmax's
// probability when the noise is Gumbel's, −log(−log u). Both devices compute it by the template below, where every
// operation is a single IEEE one (multiply-adds are fused by name, and nothing is left that a compiler could fuse or
// take apart): the same word gives the same bits anywhere.
//
// Entry v of a row takes word v / 16 % 4 of Philox block gumbel_block(v): sixteen neighbours are a vector
// or a few on the host, and coalesced loads on the GPU.
namespace inlay::ops {

inline constexpr std::int64_t gumbel_blocks = 16;                  // neighbours, which take the same word
inline constexpr std::int64_t gumbel_stretch = 4 * gumbel_blocks;  // entries that they serve
constexpr std::int64_t gumbel_block(std::int64_t entry) {
  return entry / gumbel_stretch * gumbel_blocks + entry % gumbel_blocks;
}

// The stream of a row's blocks; Philox's key is the seed.
constexpr std::uint64_t gumbel_stream(std::int64_t sequence, std::int64_t position) {
  return static_cast<std::uint64_t>(sequence) << 32 | static_cast<std::uint32_t>(position);
}

// log(x) of a normal number within two units in the last place. Where x lies around 1 (from √½ to √2), x − 1 is taken
// from the caller, who may know it better than x tells.
//
// Math says what a Float, a Word and an Int are (one of each, or vectors), and how they are converted, selected and
// fused.
template <class Math>
constexpr typename Math::Float log_of(typename Math::Float x, typename Math::Float x_minus_one) {
  using Float = typename Math::Float;
  constexpr std::uint32_t root_half = 0x3f3504f3u;  // the bits of √½
  const auto above = Math::bits(x) - root_half;
  const auto exponent = Math::signed_bits(above) >> 23;
  const Float mantissa = Math::from_bits((above & 0x7fffffu) + root_half);
  const Float f = Math::select(exponent == 0, x_minus_one, mantissa - 1.0f);
  // log(1 + f) = f + f² · p(f): p interpolates at Chebyshev's points of [√½ − 1, √2 − 1].
  Float p = Math::splat(0.0878726542f);
  p = Math::fused(p, f, Math::splat(-0.141596466f));
  p = Math::fused(p, f, Math::splat(0.14834787f));
  p = Math::fused(p, f, Math::splat(-0.165884882f));
  p = Math::fused(p, f, Math::splat(0.199720502f));
  p = Math::fused(p, f, Math::splat(-0.250011474f));
  p = Math::fused(p, f, Math::splat(0.333336711f));
  p = Math::fused(p, f, Math::splat(-0.49999997f));
  const Float square = f * f;
  return Math::fused(Math::number(exponent), Math::splat(0.693147182f), Math::fused(square, p, f));
}

// −log(−log u) with u = 1 − w, w = (word + ½) / 2³². What matters are the large values, at small w: −log(1 − w) is
// taken from w itself, so that they reach up to 22.9 without gaps, and entries of one in 2³² are still drawn.
template <class Math>
constexpr typename Math::Float gumbel(typename Math::Word word) {
  using Float = typename Math::Float;
  const Float w = (Math::number(word) + 0.5f) * 0x1p-32f;
  const Float exponential = -log_of<Math>(1.0f - w, -w);
  return -log_of<Math>(exponential, exponential - 1.0f);
}

}  // namespace inlay::ops
