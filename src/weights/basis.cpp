#include "weights/basis.h"

#include <vector>

#include "backend/matmul.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace inlay::weights {

using backend::matmul;
using backend::ScratchScope;
using enum backend::Transpose;

namespace {

// With C = operand·basisᵀ: rows = C·basis, or rows -= C·basis. operand: the rows in the basis's dtype.
void project(Exec& exec, View rows, ConstView operand, ConstView basis, Projection::Onto onto) {
  const ScratchScope scope(exec.arena());
  const bool span = onto == Projection::Onto::span;
  View coefficients = exec.arena().scratch("coefficients", basis.dtype(), {rows.dim(0), basis.dim(0)});
  matmul(exec, coefficients, operand, no, basis, yes);
  matmul(exec, rows, coefficients, no, basis, no, {.alpha = span ? 1.0f : -1.0f, .beta = span ? 0.0f : 1.0f});
}

}  // namespace

Basis::Basis(Exec& exec, std::string name, DType dtype, Shape shape, BasisPlace place, BasisPrecision precision)
    : name_(std::move(name)), dtype_(dtype), shape_(shape) {
  if (absent()) return;
  const bool on_host = place == BasisPlace::host;
  (on_host ? host_ : device_) = (on_host ? exec.host() : exec).arena().keep(MemoryClass::bases, name_, dtype, shape);
  if (precision == BasisPrecision::exact) keep_low(exec);
}

Basis::Basis(Exec& exec, std::string name, View rounded)
    : name_(std::move(name)), dtype_(rounded.dtype()), shape_(rounded.shape()), device_(rounded) {
  if (!absent()) keep_low(exec);
}

void Basis::keep_low(Exec& exec) {
  if (dtype_ == DType::f32) return;
  low_ = exec.host().arena().keep(MemoryClass::bases, name_ + ".low", DType::i16, shape_);
}

void Basis::set(Exec& exec, const void* host) {
  if (absent() || exec.planning()) return;
  if (dtype_ == DType::f32) return device_.absent() ? exec.host().upload(host_, host) : exec.upload(device_, host);
  const auto size = static_cast<std::size_t>(shape_.size());
  std::vector<bf16> staged(device_.absent() ? 0 : size);
  std::vector<std::int16_t> dropped(low_.absent() ? size : 0);
  const View rounded = device_.absent() ? host_ : View(staged.data(), dtype_, shape_);
  ops::split_master(exec.host(), rounded, low_.absent() ? View(dropped.data(), DType::i16, shape_) : low_,
                    ConstView(host, DType::f32, shape_));
  if (!device_.absent()) exec.upload(device_, staged.data());
}

ConstView Basis::rows(Exec& exec) const {
  if (!device_.absent()) return device_;
  View copy = exec.arena().scratch(name_, dtype_, shape_);
  exec.upload(copy, host_.data());
  return copy;
}

ConstView Basis::exact_rows(Exec& exec) const {
  if (dtype_ == DType::f32) return rows(exec);
  INLAY_ASSERT(!low_.absent(), "{} is kept rounded", name_);
  View exact = exec.arena().scratch(name_, DType::f32, shape_);
  const ScratchScope scope(exec.arena());
  View low = exec.arena().scratch("lower halves", DType::i16, shape_);
  exec.upload(low, low_.data());
  ops::join_master(exec, exact, rows(exec), low);
  return exact;
}

void Projection::apply(Exec& exec, View rows, Projected what) const {
  if (idle()) return;
  const ScratchScope scope(exec.arena());
  const ConstView basis = basis_->rows(exec);
  if (basis.dtype() == DType::f32) return project(exec, rows, rows, basis, onto_);
  View rounded = exec.arena().scratch("rounded rows", basis.dtype(), rows.shape());
  // What is made of a span's rows lies in it however they are rounded.
  const int removals = what == Projected::change && onto_ == Onto::complement ? 2 : 1;
  for (int i = 0; i < removals; ++i) {
    ops::cast(exec, rounded, rows);
    project(exec, rows, rounded, basis, onto_);
  }
}

void Projection::apply_exactly(Exec& exec, View rows) const {
  if (idle()) return;
  const ScratchScope scope(exec.arena());
  project(exec, rows, rows, basis_->exact_rows(exec), onto_);
}

void Projection::square_outside(Exec& exec, View sums, std::int64_t slot, ConstView matrix, Along along) const {
  if (idle()) return exec.fill_zero(sums.slice_rows(slot, slot + 1));
  Arena& arena = exec.arena();
  const ScratchScope scope(arena);
  const ConstView basis = basis_->exact_rows(exec);
  const std::int64_t count = basis.dim(0);
  const bool rows = along == Along::rows;
  View inside =
      arena.scratch("coefficients", DType::f32, rows ? Shape{matrix.dim(0), count} : Shape{count, matrix.dim(1)});
  if (rows) {
    matmul(exec, inside, matrix, no, basis, yes);
  } else {
    matmul(exec, inside, basis, no, matrix, no);
  }
  // Along frozen directions the coefficients are what must not be; along free ones, all that they do not make up.
  if (onto_ == Onto::complement) return ops::sum_of_squares(exec, sums, slot, inside);
  View outside = arena.scratch("outside", DType::f32, matrix.shape());
  ops::cast(exec, outside, matrix);
  if (rows) {
    matmul(exec, outside, inside, no, basis, no, {.alpha = -1.0f, .beta = 1.0f});
  } else {
    matmul(exec, outside, basis, yes, inside, no, {.alpha = -1.0f, .beta = 1.0f});
  }
  ops::sum_of_squares(exec, sums, slot, outside);
}

}  // namespace inlay::weights
