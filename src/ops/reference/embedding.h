#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>

// out[t] = table[tokens[t]], rows of `width` numbers. S is float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
void embedding(std::span<S> out, std::span<const std::int32_t> tokens, std::span<const S> table, std::size_t width) {
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::size_t i = 0; i < width; ++i) out[t * width + i] = table[static_cast<std::size_t>(tokens[t]) * width + i];
  }
}

}  // namespace inlay::ops::reference
