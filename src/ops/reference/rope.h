#pragma once

#include <complex>
#include <cstddef>
#include <span>

// One head of one token, in place; pairs are (i, i + R/2), or neighbours. cosines and sines have R/2 entries. S is
// float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
void rope(std::span<S> head, std::span<const double> cosines, std::span<const double> sines) {
  const std::size_t half = cosines.size();
  for (std::size_t i = 0; i < half; ++i) {
    const S a = head[i], b = head[i + half], c(cosines[i]), s(sines[i]);
    head[i] = a * c - b * s;
    head[i + half] = b * c + a * s;
  }
}

template <class S>
void rope_neighbours(std::span<S> head, std::span<const double> cosines, std::span<const double> sines) {
  for (std::size_t i = 0; i < cosines.size(); ++i) {
    const S a = head[2 * i], b = head[2 * i + 1], c(cosines[i]), s(sines[i]);
    head[2 * i] = a * c - b * s;
    head[2 * i + 1] = b * c + a * s;
  }
}

}  // namespace inlay::ops::reference
