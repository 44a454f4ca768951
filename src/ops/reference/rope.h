#pragma once

#include <complex>
#include <cstddef>
#include <span>

// One head of one token, in place; cosines and sines have R/2 entries. S is float, double or std::complex<double>.
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

}  // namespace inlay::ops::reference
