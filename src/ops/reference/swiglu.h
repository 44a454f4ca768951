#pragma once

#include <cmath>
#include <complex>
#include <numbers>

// One element, with silu, tanh's approximation of gelu, or gelu itself as the gate. S is float, double or
// std::complex<double>.
namespace inlay::ops::reference {

template <class S>
S swiglu(const S& gate, const S& up) {
  using std::exp;
  return gate / (S(1) + exp(-gate)) * up;
}

template <class S>
S geglu(const S& gate, const S& up) {
  using std::tanh;
  const S inner = S(std::sqrt(2 / std::numbers::pi)) * (gate + S(0.044715) * gate * gate * gate);
  return S(0.5) * gate * (S(1) + tanh(inner)) * up;
}

// erf of the standard library is of real numbers: the imaginary part follows from the derivative, which is exact for
// the tiny ones of a complex step.
template <class S>
S exact_geglu(const S& gate, const S& up) {
  const double x = std::real(gate), density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  S share = S(0.5 * std::erfc(-x / std::numbers::sqrt2));
  share += S(density) * (gate - S(x));
  return gate * share * up;
}

}  // namespace inlay::ops::reference
