#pragma once

#include <complex>
#include <cstddef>
#include <span>

// y[t] += bias, rows of bias.size() numbers. S is float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
void add_bias(std::span<S> y, std::span<const S> bias) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
}

}  // namespace inlay::ops::reference
