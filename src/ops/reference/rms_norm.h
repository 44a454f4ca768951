#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <span>

// One row of RMS normalisation. S is float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
void rms_norm(std::span<S> out, std::span<const S> x, std::span<const S> weight, double eps, double offset = 0) {
  using std::sqrt;
  S squares{};
  for (const S& value : x) squares += value * value;
  const S root = sqrt(squares / S(static_cast<double>(x.size())) + S(eps));
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] / root * (S(offset) + weight[i]);
}

}  // namespace inlay::ops::reference
