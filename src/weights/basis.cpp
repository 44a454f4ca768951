#include "weights/basis.h"

#include <cstring>

#include "backend/matmul.h"
#include "ops/elementwise.h"
#include "ops/factors.h"

namespace inlay::weights {

using backend::matmul;
using backend::ScratchScope;
using backend::Transpose;

Basis::Basis(Exec& exec, std::string name, DType dtype, Shape shape, BasisPlace place)
    : name_(std::move(name)), dtype_(dtype), shape_(shape) {
  if (absent()) return;
  if (place == BasisPlace::device) {
    device_ = exec.arena().keep(MemoryClass::bases, name_, dtype, shape);
  } else if (!exec.planning()) {
    host_.resize(static_cast<std::size_t>(shape.size()) * size_of(dtype));
  }
}

Basis Basis::alias(View rows) {
  Basis basis;
  basis.dtype_ = rows.dtype();
  basis.shape_ = rows.shape();
  basis.device_ = rows;
  return basis;
}

void Basis::set(Exec& exec, const void* host) {
  if (absent() || exec.planning()) return;
  if (host_.empty()) return exec.upload(device_, host);
  std::memcpy(host_.data(), host, host_.size());
}

ConstView Basis::rows(Exec& exec) const {
  if (!device_.absent()) return device_;
  View copy = exec.arena().scratch(name_, dtype_, shape_);
  exec.upload(copy, host_.data());
  return copy;
}

namespace {

// The rows in the basis's dtype: themselves, or rounded in scratch.
ConstView operand(Exec& exec, ConstView rows, DType dtype) {
  if (rows.dtype() == dtype) return rows;
  View rounded = exec.arena().scratch("rounded rows", dtype, rows.shape());
  ops::cast(exec, rounded, rows);
  return rounded;
}

}  // namespace

void Projection::apply(Exec& exec, View rows, int removals) const {
  if (basis_ == nullptr || basis_->absent()) return;
  const ScratchScope scope(exec.arena());
  const ConstView basis = basis_->rows(exec);
  View coefficients = exec.arena().scratch("coefficients", basis.dtype(), {rows.dim(0), basis.dim(0)});
  // What is made of a span's rows lies in it however they are rounded; and fp32 leaves nothing to remove again.
  if (onto_ == Onto::span || basis.dtype() == DType::f32) removals = 1;
  for (int i = 0; i < removals; ++i) {
    const ScratchScope operand_scope(exec.arena());
    matmul(exec, coefficients, operand(exec, rows, basis.dtype()), Transpose::no, basis, Transpose::yes);
    if (onto_ == Onto::span) {
      matmul(exec, rows, coefficients, Transpose::no, basis, Transpose::no);  // =
    } else {
      matmul(exec, rows, coefficients, Transpose::no, basis, Transpose::no, {.alpha = -1.0f, .beta = 1.0f});  // -=
    }
  }
}

float Projection::leak(Exec& exec, ConstView rows) const {
  if (basis_ == nullptr || basis_->absent()) return 0;
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  View result = arena.scratch("leak", DType::f32, {1});
  // In fp32 throughout: bf16 coefficients would show their own rounding.
  ConstView basis = operand(exec, basis_->rows(exec), DType::f32);
  View coefficients = arena.scratch("coefficients", DType::f32, {rows.dim(0), basis.dim(0)});
  if (onto_ == Onto::complement) {
    matmul(exec, coefficients, rows, Transpose::no, basis, Transpose::yes);
    ops::max_abs(exec, result, 0, coefficients);
  } else {
    View outside = arena.scratch("outside", DType::f32, rows.shape());
    ops::cast(exec, outside, rows);
    for (int i = 0; i < 2; ++i) {  // twice: the basis is orthonormal only as far as its dtype goes
      matmul(exec, coefficients, outside, Transpose::no, basis, Transpose::yes);
      matmul(exec, outside, coefficients, Transpose::no, basis, Transpose::no, {.alpha = -1.0f, .beta = 1.0f});
    }
    ops::max_abs(exec, result, 0, outside);
  }
  float leak = 0;
  exec.download(&leak, result);
  return leak;
}

}  // namespace inlay::weights
