#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace inlay {

// Philox 4x32-10 (Salmon et al., 2011): counter-based random numbers. The same key and counter give the same four
// words anywhere, in any order, so nothing random has to be saved in order to be computed again.
struct Philox {
  std::uint64_t key = 0;

  static constexpr int rounds = 10;
  static constexpr std::uint32_t factor0 = 0xD2511F53u, factor1 = 0xCD9E8D57u;
  static constexpr std::uint32_t step0 = 0x9E3779B9u, step1 = 0xBB67AE85u;  // added to the key's halves every round

  // constexpr also so that kernels can call it.
  constexpr std::array<std::uint32_t, 4> words(std::uint64_t counter, std::uint64_t stream = 0) const {
    std::array<std::uint32_t, 4> x = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                                      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t p0 = std::uint64_t{factor0} * x[0];
      const std::uint64_t p1 = std::uint64_t{factor1} * x[2];
      x = {static_cast<std::uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += step0;
      k1 += step1;
    }
    return x;
  }

  // Uniform in [0, 1).
  static float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

  // One standard normal number for each counter (Box-Muller on the first two words).
  float normal(std::uint64_t counter, std::uint64_t stream = 0) const {
    const auto x = words(counter, stream);
    const double u = (static_cast<double>(x[0]) + 0.5) * 0x1p-32;
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(x[1]) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
  }
};

// Deterministic Fisher-Yates index below bound, without modulo bias worth speaking of.
inline std::uint64_t random_below(const Philox& philox, std::uint64_t counter, std::uint64_t stream,
                                  std::uint64_t bound) {
  const auto x = philox.words(counter, stream);
  const std::uint64_t wide = (std::uint64_t{x[0]} << 32) | x[1];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(wide) * bound) >> 64);
}

}  // namespace inlay
