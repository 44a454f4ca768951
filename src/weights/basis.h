#pragma once

#include <string>
#include <vector>

#include "weights/parameter.h"

namespace inlay::weights {

// Where bases live between uses. On the host they come back through scratch each time.
enum class BasisPlace : std::uint8_t { device, host };

// Orthonormal rows [n, d] in the compute dtype that never train.
class Basis {
 public:
  Basis() = default;
  Basis(Exec& exec, std::string name, DType dtype, Shape shape, BasisPlace place);
  // Rows on the device that somebody else owns.
  static Basis alias(View rows);

  bool absent() const { return shape_.rank() == 0 || shape_[0] == 0; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }

  // Takes the rows from host memory; bytes in the basis's own dtype.
  void set(Exec& exec, const void* host);
  // The rows on the device: its own, or a copy in the caller's scratch.
  ConstView rows(Exec& exec) const;

 private:
  std::string name_;
  DType dtype_ = DType::f32;
  Shape shape_;
  View device_;
  std::vector<std::byte> host_;
};

// What a row of a gradient, or of a change, may hold: the span of a basis, or what is orthogonal to it, whichever basis
// is narrower. `rows` is fp32 [n, d] and projected in place; products are in the basis's dtype. A basis rounded to bf16
// is orthonormal to 2⁻⁹ only, which is what one removal leaves of the forbidden part; two leave 2⁻¹⁸.
class Projection {
 public:
  enum class Onto : bool { span, complement };

  Projection() = default;
  Projection(const Basis* basis, Onto onto) : basis_(basis), onto_(onto) {}

  void apply(Exec& exec, View rows, int removals = 1) const;
  void apply(Exec& exec, View rows, Projected what) const { apply(exec, rows, what == Projected::change ? 2 : 1); }
  // The largest component outside of what is allowed: max |rows · hᵀ| for the complement, the largest entry of
  // rows − projected rows for a span. fp32 rows. Waits for the device.
  float leak(Exec& exec, ConstView rows) const;

 private:
  const Basis* basis_ = nullptr;
  Onto onto_ = Onto::complement;
};

}  // namespace inlay::weights
