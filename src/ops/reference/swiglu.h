#pragma once

#include <cmath>
#include <complex>
#include <numbers>

// One element, with silu or tanh's approximation of gelu as the gate. S is float, double or std::complex<double>.
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

}  // namespace inlay::ops::reference
