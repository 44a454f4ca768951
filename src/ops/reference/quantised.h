#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

// Quantising as it is defined, in fp64: small floating-point formats from their bits, and the nearest of some numbers.
namespace inlay::ops::reference {

// (-1)^s · 2^(e - bias) · (1 + m / 2^mantissa_bits); where e is 0: (-1)^s · 2^(1 - bias) · m / 2^mantissa_bits.
inline double small_float(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
  const double magnitude = std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - bias);
  return (code >> (exponent_bits + mantissa_bits) & 1) != 0 ? -magnitude : magnitude;
}

// The code whose number is nearest to x, and the even one of two that are equally near. NaNs are never near.
inline std::size_t nearest(std::span<const double> numbers, double x) {
  std::size_t best = numbers.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (std::isnan(numbers[i])) continue;
    const double distance = std::abs(x - numbers[i]);
    const double record = best < numbers.size() ? std::abs(x - numbers[best]) : INFINITY;
    if (distance < record || (distance == record && i % 2 == 0 && best % 2 == 1)) best = i;
  }
  return best;
}

}  // namespace inlay::ops::reference
