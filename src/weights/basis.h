#pragma once

#include <string>

#include "weights/parameter.h"

namespace inlay::weights {

// Where bases live between uses. On the host they come back through scratch each time.
enum class BasisPlace : std::uint8_t { device, host };
// Whether somebody will ask for a basis in fp32.
enum class BasisPrecision : std::uint8_t { rounded, exact };

// Orthonormal rows [n, d] in fp32 that never train. A step multiplies by them rounded to the compute dtype; what
// defines the change of a weight takes them as they are. Of bf16 rows the lower halves, which complete them to fp32
// (the rule stands at ops::AdamWState), stay on the host: a step has no use for them.
class Basis {
 public:
  Basis() = default;
  Basis(Exec& exec, std::string name, DType dtype, Shape shape, BasisPlace place,
        BasisPrecision precision = BasisPrecision::exact);
  // Whose rounded rows are on the device, and somebody else's.
  Basis(Exec& exec, std::string name, View rounded);

  bool absent() const { return shape_.rank() == 0 || shape_[0] == 0; }
  const Shape& shape() const { return shape_; }

  // Takes the rows from host memory, in fp32.
  void set(Exec& exec, const void* host);
  // The rounded rows on the device: its own, or a copy in the caller's scratch.
  ConstView rows(Exec& exec) const;
  // The rows in fp32 on the device, likewise.
  ConstView exact_rows(Exec& exec) const;

 private:
  void keep_low(Exec& exec);

  std::string name_;
  DType dtype_ = DType::f32;
  Shape shape_;
  View device_, host_;  // the rounded rows, in one place or the other
  View low_;            // int16, on the host; absent where the rounded rows are fp32 or all that is kept
};

// What a row of a change may hold: the span of a basis, or what is orthogonal to it, whichever basis is narrower.
class Projection {
 public:
  enum class Onto : bool { span, complement };
  enum class Along : bool { rows, columns };

  Projection() = default;
  Projection(const Basis* basis, Onto onto) : basis_(basis), onto_(onto) {}

  // Projects fp32 rows [n, d] in place, in the step: products are in the compute dtype. A basis rounded to bf16 is
  // orthonormal to 2⁻⁸ only, which is what one removal leaves of the part along its rounded rows; two leave 2⁻¹⁶.
  void apply(Exec& exec, View rows, Projected what) const;
  // The same against the fp32 rows in fp32 products. Projections are linear, and AdamW's change does not depend on
  // where the weight stands (decay only scales that): to project what has added up is to have projected every change.
  void apply_exactly(Exec& exec, View rows) const;
  // sums[slot] = Σ squares of what the matrix's rows, or its columns, hold beside what is allowed, against the fp32
  // rows in fp32; sums fp64, the matrix fp32 and contiguous.
  void square_outside(Exec& exec, View sums, std::int64_t slot, ConstView matrix, Along along = Along::rows) const;

 private:
  bool idle() const { return basis_ == nullptr || basis_->absent(); }

  const Basis* basis_ = nullptr;
  Onto onto_ = Onto::complement;
};

}  // namespace inlay::weights
