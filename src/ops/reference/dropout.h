#pragma once

#include <cstddef>
#include <span>

#include "core/philox.h"

// Dropout of numbers first, first + 1, ... of a site. S is float, double or std::complex<double>.
namespace inlay::ops::reference {

template <class S>
void dropout(std::span<S> out, std::span<const S> x, double p, const Philox& philox, std::uint64_t site,
             std::uint64_t first) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool dropped = philox.words((first + i) / 4, site)[(first + i) % 4] < p * 0x1p32;
    out[i] = dropped ? S(0) : x[i] / S(1 - p);
  }
}

}  // namespace inlay::ops::reference
