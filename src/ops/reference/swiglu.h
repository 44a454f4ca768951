#pragma once

#include <cmath>
#include <complex>

// One element. S is float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
S swiglu(const S& gate, const S& up) {
  using std::exp;
  return gate / (S(1) + exp(-gate)) * up;
}

}  // namespace inlay::ops::reference
